// A graph: work is captured once and launched many times. Each launch waits for earlier uses of its
// buffers by itself. The simulated device checks every launch.

#include <iostream>
#include <tern/backends/sim.hpp>
#include <tern/tern.hpp>

namespace {

void scale(tern::View<float> x, float factor) {
  for (float& value : x) value *= factor;
}

void add(tern::View<const float> x, tern::View<float> y) {
  for (std::size_t i = 0; i < y.size(); ++i) y[i] += x[i];
}

}  // namespace

int main() {
  const tern::Device device = tern::sim::open({.seed = 7});
  const tern::Stream stream(device), other(device);
  const tern::Kernel scaling = tern::Kernel::from_function(device, "scale", scale);
  const tern::Kernel adding = tern::Kernel::from_function(device, "add", add);
  auto x = tern::Array<float>::zeros(device, 4), y = tern::Array<float>::zeros(device, 4);
  x.fill(1.0f, stream);

  tern::GraphCapture capture(stream);
  scaling.launch(stream, tern::elements(4), tern::inout(x), 2.0f);
  adding.launch(stream, tern::elements(4), tern::in(x), tern::inout(y));
  const tern::Graph graph = capture.end();

  for (int step = 0; step < 3; ++step) graph.launch(stream);
  graph.launch(other);  // after the launches on `stream`
  for (const float value : y.to_vector()) {
    std::cout << value << " ";  // 2 + 4 + 8 + 16
    if (value != 30) return 1;
  }
  std::cout << "\n";
}
