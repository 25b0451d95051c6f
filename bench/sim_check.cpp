// The cost of the checker: pool operations checked per second, and opening a device of 141 GiB.

#include "bench/case.hpp"
#include "bench/measure.hpp"
#include "tern/backends/sim.hpp"
#include "tools/pool_program.hpp"

namespace tern::bench {
namespace {

constexpr int programs = 200;

void run(Context& context) {
  context.step("checker");
  std::uint64_t operations = 0;
  std::uint64_t rounds = 0;
  const double seconds =
      median_seconds({[&] {
                       ++rounds;
                       for (int seed = 0; seed < programs; ++seed) {
                         tools::PoolProgram program;
                         program.seed = static_cast<std::uint64_t>(seed);
                         static_cast<void>(program.run(tools::Mistake::none, &operations));
                       }
                     }},
                     context.seconds_per_figure())
          .front();
  const double per_round = static_cast<double>(operations) / static_cast<double>(rounds);
  context.add({.name = "pool operations judged, 1 core",
               .value = per_round / seconds / 1e6,
               .unit = "M/s",
               .baseline_name = "one million a second,",
               .baseline = 1.0,
               .goal_ratio = 1.0});

  context.step("open");
  const double open_us =
      median_seconds({[] { static_cast<void>(sim::open({})); }}, context.seconds_per_figure())
          .front() *
      1e6;
  context.add({.name = "open and close the default device",
               .value = open_us,
               .unit = "us",
               .better = Better::lower,
               .baseline_name = "one millisecond,",
               .baseline = 1000.0,
               .goal_ratio = 1.0});

  context.step("submit");
  constexpr std::size_t batch = 1000;
  constexpr std::size_t bytes = 4096;
  const auto fill_ns = [&](bool check) {
    const Device device = sim::open({.policy = sim::Policy::lazy, .check = check});
    const Stream stream(device);
    auto* memory = static_cast<std::byte*>(device.allocate(MemoryKind::device, bytes));
    return median_ns(
        [&] {
          for (std::size_t i = 0; i < batch; ++i) stream.fill(memory, bytes, std::byte{1});
          stream.synchronize();
        },
        batch, context.seconds_per_figure());
  };
  const double unchecked = fill_ns(false);
  context.add({.name = "fill 4 KiB, judged and run",
               .value = fill_ns(true),
               .unit = "ns",
               .better = Better::lower,
               .baseline_name = "without the checker",
               .baseline = unchecked});
}

const Registration registered({"sim.check", "what the simulated device and its checker cost", run});

}  // namespace
}  // namespace tern::bench
