// Kernels that say what they do with their arguments: two streams, three kernels, and no wait in
// sight. The same program with one declaration left out is caught by the simulated device.

#include <cstdint>
#include <cstdio>
#include <tern/backends/sim.hpp>
#include <tern/buffer/array.hpp>
#include <tern/device/stream.hpp>
#include <tern/launch/kernel.hpp>
#include <vector>

namespace {

using tern::elements, tern::in, tern::inout, tern::out;

void fill_ramp(tern::View<float> to) {
  for (std::size_t i = 0; i < to.size(); ++i) to[i] = static_cast<float>(i);
}
void square(tern::View<const float> from, tern::View<float> to) {
  for (std::size_t i = 0; i < to.size(); ++i) to[i] = from[i] * from[i];
}
void scale(tern::View<float> values, float factor) {
  for (float& value : values) value *= factor;
}

/// The largest square, doubled.
float pipeline(const tern::Device& device, bool declares_everything) {
  constexpr std::uint32_t count = 1000;
  const tern::Stream load(device, {.name = "load"}), compute(device, {.name = "compute"});
  const auto ramp = tern::Kernel::from_function(device, "fill_ramp", fill_ramp);
  const auto squares = tern::Kernel::from_function(device, "square", square);
  const auto scaling = tern::Kernel::from_function(device, "scale", scale);
  auto x = tern::Array<float>::uninitialized(device, count, {.tag = "x"});
  auto y = tern::Array<float>::uninitialized(device, count, {.tag = "y"});

  ramp.launch(load, elements(count), out(x));
  if (declares_everything) {
    squares.launch(compute, elements(count), in(x), out(y));  // waits for `load` by itself
  } else {
    // What a launch by bare addresses looks like: right nearly always, on hardware.
    const auto from = x.address(), to = y.address();
    const tern::KernelArgument bare[] = {{&from, sizeof from}, {&to, sizeof to}};
    compute.launch(squares.native(), tern::LaunchSize::for_elements(count), bare);
  }
  scaling.launch(load, elements(count), inout(y), 2.0f);  // and this one for `compute`
  return y.to_vector().back();
}

}  // namespace

int main() {
  const float right = pipeline(tern::sim::open({.seed = 7}), true);
  std::printf("declared:    %.0f\n", static_cast<double>(right));
  const tern::Device device = tern::sim::open({.seed = 7, .policy = tern::sim::Policy::lazy});
  try {
    pipeline(device, false);
    return 1;
  } catch (const tern::Violation& violation) {
    std::printf("undeclared:  %s\n\n%s\n", violation.what(),
                tern::sim::findings(device).front().text().c_str());
  }
  return right == 2.0f * 999 * 999 ? 0 : 1;
}
