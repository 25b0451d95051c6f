// libFuzzer target: imports arbitrary bytes as a DLPack tensor.

#include "support/dlpack_fuzz.hpp"

#include <cstddef>
#include <cstdint>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  tern::test::fuzz_dlpack({reinterpret_cast<const std::byte*>(data), size});
  return 0;
}
