// A loop that keeps a small block of every step and never frees it. The weights live as long, and
// the activations are larger; neither is a leak.

#include <tern/backends/catalog.hpp>
#include <tern/core/bytes.hpp>
#include <tern/device/stream.hpp>
#include <tern/memory/owned_block.hpp>
#include <tern/memory/pool_resource.hpp>

int main() {
  const tern::Device device = tern::open_device("sim?check=off");
  const tern::Stream stream(device);
  const auto pool = std::make_shared<tern::PoolResource>(device);
  const tern::OwnedBlock weights(pool,
                                 {.bytes = 32 * tern::mib, .stream = stream, .tag = "weights"});
  for (int step = 0; step < 40; ++step) {
    const tern::OwnedBlock batch(pool, {.bytes = 4 * tern::mib, .stream = stream, .tag = "batch"});
    const tern::OwnedBlock activations(
        pool, {.bytes = 16 * tern::mib, .stream = stream, .tag = "activations"});
    static_cast<void>(pool->allocate(
        {.bytes = 64 * tern::kib, .stream = stream, .tag = "history"}));  // planted: never freed
  }
}
