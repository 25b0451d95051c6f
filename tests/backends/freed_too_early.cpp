// Frees a vector that a queued copy may still read, on the device of the given spec.

#include <tern/backends/catalog.hpp>
#include <tern/buffer/array.hpp>
#include <vector>

int main(int, char** argv) {
  const tern::Device device = tern::open_device(argv[1]);
  const tern::Stream upload(device, {.name = "upload"});
  auto array = tern::Array<float>::uninitialized(device, 1'000'000);
  {
    const std::vector<float> values(1'000'000, 1.5f);
    array.copy_from(values, upload);
  }
  upload.synchronize();
}
