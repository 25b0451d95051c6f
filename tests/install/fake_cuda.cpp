// A program that is linked with the fake CUDA driver opens a CUDA device without a GPU.

#include <cstdio>
#include <tern/backends/catalog.hpp>
#include <tern/backends/sim.hpp>
#include <tern/core/error.hpp>
#include <tern/device/stream.hpp>

int main() {
  try {
    const tern::Device device = tern::open_device("cuda:0?driver=sim");
    const tern::Stream stream(device);
    void* memory = device.allocate(tern::MemoryKind::device, 4096);
    stream.fill(static_cast<unsigned char*>(memory), 4096, 7);
    stream.synchronize();
    device.release(memory);
    if (!tern::sim::findings(device).empty()) return 1;
    std::printf("with tern::fake_cuda: %s\n", device.info().name.c_str());
    return 0;
  } catch (const tern::Error& error) {
    std::printf("%s\n", error.text());
    return 1;
  }
}
