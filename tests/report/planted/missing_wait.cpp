// Two streams share a block. The first fills it, the second copies it, and nothing orders them.

#include <cstddef>
#include <tern/backends/catalog.hpp>
#include <tern/core/bytes.hpp>
#include <tern/device/stream.hpp>
#include <tern/memory/pool_resource.hpp>

int main() {
  const tern::Device device = tern::open_device("host");
  tern::PoolResource pool(device);
  const tern::Stream produce(device, {.name = "produce"});
  const tern::Stream consume(device, {.name = "consume"});
  const tern::Block column = pool.allocate({.bytes = 1 * tern::mib, .stream = produce});
  const tern::Block result = pool.allocate({.bytes = 1 * tern::mib, .stream = consume});
  consume.wait(produce.mark());
  produce.fill(static_cast<std::byte*>(column.address), column.bytes,
               std::byte{1});                                  // planted: the fill
  consume.copy(result.address, column.address, column.bytes);  // planted: no wait before this
  device.synchronize();
  pool.deallocate(column, produce);
  pool.deallocate(result, consume);
}
