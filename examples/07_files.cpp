// A file goes to a device: it is opened without being read, and copied from there in stream order.
// What is not there is refused with both sizes.

#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <string>
#include <tern/backends/catalog.hpp>
#include <tern/buffer/copy.hpp>
#include <tern/buffer/file.hpp>

int main() {
  const std::string path =
      (std::filesystem::temp_directory_path() / "tern_example_weights.bin").string();
  std::array<float, 1024> weights;
  std::iota(weights.begin(), weights.end(), 0.0f);
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(weights.data()), sizeof weights);

  const tern::Device device = tern::open_device("sim");
  const tern::Stream stream(device);

  // All of it, to the device and back.
  const tern::Buffer file = tern::open_file(path, {.dtype = tern::dtype_of<float>()});
  const tern::Buffer loaded(device, file.shape(), file.dtype());
  tern::copy(loaded, file, stream);
  std::printf("%s\n", file.text().c_str());
  std::printf("on the device, element 1000 is %g\n",
              static_cast<double>(loaded.to_vector<float>()[1000]));

  // A part, where it is.
  const tern::Buffer part = tern::open_file(
      path, {.offset_bytes = 2048, .bytes = 64, .dtype = tern::dtype_of<float>(), .map = true});
  std::printf("in place, element 512 is %g\n", static_cast<double>(part.read_host<float>()[0]));

  const tern::Result<tern::Buffer> too_much = tern::try_open_file(path, {.bytes = 5000});
  if (too_much) return 1;
  std::printf("refused: %s\n", too_much.failure().text().c_str());
  std::filesystem::remove(path);
}
