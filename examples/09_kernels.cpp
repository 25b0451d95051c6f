// Kernels that declare what they do with their arguments: two streams, three kernels, and no wait
// in the program. Runs on the device that is named as argument, or on a simulated one. The
// simulated device finds the wait that is missing if one launch declares nothing.

#include <cstdint>
#include <cstdio>
#include <tern/backends/catalog.hpp>
#include <tern/backends/sim.hpp>
#include <tern/buffer/array.hpp>
#include <tern/device/stream.hpp>
#include <tern/launch/kernel.hpp>
#include <vector>

namespace {

using tern::elements;

TERN_KERNEL(fill_ramp, (out<float> to), {
  if (index.x < size(to)) to[index.x] = float(index.x);
})
TERN_ELEMENT_KERNEL(square, (in<float> from, out<float> to), { to = from * from; })
TERN_ELEMENT_KERNEL(scale, (inout<float> values, float factor), { values *= factor; })

/// The largest square, doubled.
float pipeline(const tern::Device& device, bool declares_everything) {
  constexpr std::uint32_t count = 1000;
  const tern::Stream load(device, {.name = "load"}), compute(device, {.name = "compute"});
  const auto ramp = tern::Kernel::from_text(device, fill_ramp);
  const auto squares = tern::Kernel::from_text(device, square);
  const auto scaling = tern::Kernel::from_text(device, scale);
  auto x = tern::Array<float>::uninitialized(device, count, {.tag = "x"});
  auto y = tern::Array<float>::uninitialized(device, count, {.tag = "y"});

  ramp.launch(load, elements(count), x);
  if (declares_everything) {
    squares.launch(compute, elements(), x, y);  // Tern makes `compute` wait for `load`
  } else {
    // What a launch by bare addresses looks like: right nearly always, on hardware.
    const auto from = x.address(), to = y.address();
    const std::uint64_t size = count;  // an array is its address and its size
    const tern::KernelArgument bare[] = {
        {&from, sizeof from}, {&size, sizeof size}, {&to, sizeof to}, {&size, sizeof size}};
    compute.launch(squares.native(), tern::LaunchSize::for_elements(count), bare);
  }
  scaling.launch(load, elements(), y, 2.0f);  // and this one for `compute`
  return y.to_vector().back();
}

}  // namespace

int main(int argc, char** argv) {
  const float right = pipeline(tern::open_device(argc > 1 ? argv[1] : "sim"), true);
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
