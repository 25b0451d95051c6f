// Launches that a library makes on streams of its own: two streams, three launches, in order
// because each says what it uses. What is not declared is refused in strict mode, and found by the
// simulated device where somebody launches all the same. A gate shows that no data came back to the
// host.

#include <cstdio>
#include <span>
#include <tern/backends/catalog.hpp>
#include <tern/backends/sim.hpp>
#include <tern/buffer/array.hpp>
#include <tern/buffer/transfer_audit.hpp>
#include <tern/device/stream.hpp>
#include <tern/launch/kernel.hpp>
#include <tern/launch/launch_recorder.hpp>

namespace {

using tern::Access, tern::Array, tern::LaunchRecorder, tern::StreamRef;

constexpr std::uint32_t count = 1000;

TERN_KERNEL(ramp_of, (out<float> to), {
  if (index.x < size(to)) to[index.x] = float(index.x);
})
TERN_ELEMENT_KERNEL(square_of, (in<float> from, out<float> to), { to = from * from; })
TERN_ELEMENT_KERNEL(twice_of, (inout<float> x), { x *= 2; })

/// Another library, which has kernels and takes addresses.
struct Library {
  explicit Library(const tern::Device& device)
      : ramp(tern::Kernel::from_text(device, ramp_of)),
        square(tern::Kernel::from_text(device, square_of)),
        twice(tern::Kernel::from_text(device, twice_of)) {}

  static void launch(const tern::Kernel& kernel, StreamRef stream, void* a, Access how_a,
                     void* b = nullptr, Access how_b = Access::read) {
    const std::uint64_t size = count;  // an array is its address and its size
    const tern::KernelArgument arguments[] = {{&a, sizeof a, a, count * sizeof(float), how_a},
                                              {&size, sizeof size},
                                              {&b, sizeof b, b, count * sizeof(float), how_b},
                                              {&size, sizeof size}};
    stream.launch(kernel.native(), tern::LaunchSize::for_elements(count),
                  std::span(arguments).first(b == nullptr ? 2 : 4));
  }

  tern::Kernel ramp, square, twice;
};

/// The largest square, doubled. `tracks` says whether the second launch declares what it reads.
float pipeline(const tern::Device& device, bool tracks) {
  const Library library(device);
  const tern::Stream load(device, {.name = "load"}), compute(device, {.name = "compute"});
  auto x = Array<float>::uninitialized(device, count, {.tag = "x"});
  auto y = Array<float>::uninitialized(device, count, {.tag = "y"});

  LaunchRecorder first(load);
  first.use(x, Access::discard);
  first.preflight();
  Library::launch(library.ramp, load, first.pointer(0), Access::discard);
  first.commit();

  LaunchRecorder second(compute);
  second.use(y, Access::discard);
  if (tracks) second.use(x, Access::read);
  second.preflight();  // waits for `load`, if it was told that x is read
  void* const from = tracks ? second.pointer(1) : reinterpret_cast<void*>(x.address());
  Library::launch(library.square, compute, from, Access::read, second.pointer(0), Access::discard);
  second.commit();

  LaunchRecorder third(load);
  third.use(y, Access::read_write);
  third.preflight();  // and this one for `compute`
  Library::launch(library.twice, load, third.pointer(0), Access::read_write);
  third.commit();
  return y.slice(count - 1, 1).buffer().item<float>();
}

}  // namespace

int main(int argc, char** argv) {
  // All of it, with not one array read back on the way: only the result, which is four bytes.
  const tern::TransferGate gate;
  const float result = pipeline(tern::open_device(argc > 1 ? argv[1] : "sim"), true);
  std::printf("declared:    %.0f, and %llu bytes came to the host\n", static_cast<double>(result),
              static_cast<unsigned long long>(gate.small_reads().bytes));

  // An address alone: nobody could put its users in order, so a strict recorder refuses it.
  const tern::Device device = tern::sim::open({.seed = 7, .policy = tern::sim::Policy::lazy});
  const tern::Stream stream(device);
  const auto x = Array<float>::zeros(device, count);
  LaunchRecorder strict(stream);
  strict.use_external(reinterpret_cast<void*>(x.address()), x.size_bytes(), Access::read);
  const tern::Result<void> refused = strict.try_preflight();
  if (refused) return 1;
  std::printf("strict:      %s\n", refused.failure().text().c_str());

  // And who launches with it all the same is found out by the simulated device.
  try {
    pipeline(device, false);
    return 1;
  } catch (const tern::Violation& violation) {
    std::printf("undeclared:  %s\n", violation.what());
  }

  // Data does not leave the device while the gate is there.
  try {
    static_cast<void>(Array<float>::zeros(device, 2000, {.tag = "rows"}).to_vector());
    return 1;
  } catch (const tern::DownloadRefused& download) {
    std::printf("gate:        %s\n", download.what());
  }
  return result == 2.0f * 999 * 999 && gate.violations().copies == 1 ? 0 : 1;
}
