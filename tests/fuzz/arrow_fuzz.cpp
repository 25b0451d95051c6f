// libFuzzer target: imports arbitrary bytes as an Arrow table.

#include "support/arrow_fuzz.hpp"

#include <cstddef>
#include <cstdint>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  tern::test::fuzz_arrow({reinterpret_cast<const std::byte*>(data), size});
  return 0;
}
