// A pipeline whose last stream is far behind. It frees every buffer, but has not reached the frees,
// so the first stream gets new memory for each step.

#include <atomic>
#include <tern/backends/catalog.hpp>
#include <tern/core/bytes.hpp>
#include <tern/device/stream.hpp>
#include <tern/memory/pool_resource.hpp>

int main() {
  const tern::Device device = tern::open_device("host");
  tern::PoolResource pool(device);
  std::atomic<bool> is_open = false;
  tern::Stream compute(device, {.name = "compute"});
  tern::Stream upload(device, {.name = "upload"});
  const auto wait_for = [](void* gate) { static_cast<std::atomic<bool>*>(gate)->wait(false); };
  upload.call(wait_for, &is_open);  // planted: the host function
  for (int step = 0; step < 12; ++step) {
    const tern::Block result = pool.allocate(
        {.bytes = 4 * tern::mib, .stream = compute, .tag = "result"});  // planted: new memory
    compute.fill(static_cast<std::byte*>(result.address), result.bytes, std::byte{1});
    upload.wait(compute.mark());
    pool.deallocate(result, upload);  // planted: the stream is behind
  }
  is_open = true;
  is_open.notify_all();
  device.synchronize();
}
