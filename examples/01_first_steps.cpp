// Fills memory of a device on one stream, reads it on another, and waits only where it must.

#include <iostream>
#include <tern/backends/catalog.hpp>
#include <tern/device/stream.hpp>
#include <vector>

int main() {
  tern::Device device = tern::open_best_device();  // or open_device("host"), "cuda:0", ...
  tern::Stream producer(device), consumer(device);

  std::vector<float> result(1000);
  auto* data = static_cast<float*>(device.allocate(tern::MemoryKind::device, 4000));

  producer.fill(data, 1000, 1.5f);           // returns at once
  consumer.wait(producer.mark());            // orders the streams; the host does not wait
  consumer.copy(result.data(), data, 4000);  // so this copy sees the filled floats
  consumer.synchronize();                    // now the host waits

  device.release(data);
  std::cout << device.spec() << ": " << result.front() << " ... " << result.back() << "\n";
  return result.back() == 1.5f ? 0 : 1;
}
