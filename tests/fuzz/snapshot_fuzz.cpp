// libFuzzer target: reads arbitrary bytes as a PyTorch memory snapshot.

#include "support/snapshot_fuzz.hpp"

#include <cstddef>
#include <cstdint>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  tern::test::fuzz_snapshot({reinterpret_cast<const std::byte*>(data), size});
  return 0;
}
