// libFuzzer target: reads and checks arbitrary bytes as a trace.

#include <cstddef>
#include <cstdint>

#include "support/trace_fuzz.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  tern::test::fuzz_trace({reinterpret_cast<const std::byte*>(data), size});
  return 0;
}
