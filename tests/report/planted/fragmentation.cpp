// Long-lived blocks between short-lived ones. When the short-lived ones are gone, half of the pool
// is free, but no two free megabytes are adjacent.

#include <cstdio>
#include <tern/backends/catalog.hpp>
#include <tern/core/bytes.hpp>
#include <tern/device/stream.hpp>
#include <tern/memory/pool_resource.hpp>
#include <vector>

int main() {
  const tern::Device device = tern::open_device("sim");
  const tern::Stream stream(device);
  tern::PoolResource pool(device, {.limit_bytes = 64 * tern::mib});
  std::vector<tern::Block> batches, index;
  for (int i = 0; i < 32; ++i) {
    batches.push_back(pool.allocate({.bytes = 1 * tern::mib, .stream = stream, .tag = "batch"}));
    index.push_back(pool.allocate(
        {.bytes = 1 * tern::mib, .stream = stream, .tag = "index"}));  // planted: lies between
  }
  for (const tern::Block& one : batches) pool.deallocate(one, stream);
  const tern::Result<tern::Block> table = pool.try_allocate(
      {.bytes = 8 * tern::mib, .stream = stream, .tag = "table"});  // planted: refused
  if (table) return 1;
  std::printf("%s\n", table.failure().text().c_str());
  for (const tern::Block& one : index) pool.deallocate(one, stream);
}
