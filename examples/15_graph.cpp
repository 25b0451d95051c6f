// A graph: work is captured once and launched many times. Each launch waits for earlier uses of its
// buffers by itself. The simulated device checks every launch.

#include <iostream>
#include <tern/tern.hpp>

namespace {

TERN_ELEMENT_KERNEL(scale, (inout<float> x, float factor), { x *= factor; })
TERN_ELEMENT_KERNEL(add, (in<float> x, inout<float> y), { y += x; })

}  // namespace

int main(int argc, char** argv) {
  // Or "cuda:0". Host and OpenCL devices have no graphs.
  const tern::Device device = tern::open_device(argc > 1 ? argv[1] : "sim");
  const tern::Stream stream(device), other(device);
  const tern::Kernel scaling = tern::Kernel::from_text(device, scale);
  const tern::Kernel adding = tern::Kernel::from_text(device, add);
  auto x = tern::Array<float>::zeros(device, 4), y = tern::Array<float>::zeros(device, 4);
  x.fill(1.0f, stream);

  tern::GraphCapture capture(stream);
  scaling.launch(stream, tern::elements(), x, 2.0f);
  adding.launch(stream, tern::elements(), x, y);
  const tern::Graph graph = capture.end();

  for (int step = 0; step < 3; ++step) graph.launch(stream);
  graph.launch(other);  // after the launches on `stream`
  for (const float value : y.to_vector()) {
    std::cout << value << " ";  // 2 + 4 + 8 + 16
    if (value != 30) return 1;
  }
  std::cout << "\n";
}
