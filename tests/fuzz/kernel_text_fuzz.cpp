// libFuzzer target: parses arbitrary bytes as the text of kernels.

#include "support/kernel_text_fuzz.hpp"

#include <cstddef>
#include <cstdint>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  tern::test::fuzz_kernel_text({reinterpret_cast<const char*>(data), size});
  return 0;
}
