// The cost of counting every copy and of checking the gates, compared with a small copy.

#include <array>
#include <cstddef>
#include <vector>

#include "bench/contestants.hpp"
#include "bench/measure.hpp"
#include "buffer/transfer_counts.hpp"
#include "tern/buffer/buffer.hpp"
#include "tern/buffer/transfer_audit.hpp"

namespace tern::bench {
namespace {

constexpr double goal_ns = 50;
constexpr std::size_t copy_bytes = 64;

void run(Context& context) {
  const Stage stage(context);
  const std::size_t rounds = context.usual_or_quick<std::size_t>(10'000, 10);
  const Tag tag = "bench.audit";
  Buffer buffer = Buffer::allocate(stage.device, Shape{copy_bytes}, DType::byte,
                                   {.contents = Contents::zero, .tag = tag});
  std::array<std::byte, copy_bytes> host = {};
  stage.device.synchronize();
  const auto repeat = [&](const auto& body) {
    return [&, body] {
      for (std::size_t i = 0; i < rounds; ++i) body();
    };
  };
  context.step("a copy to the host");
  const std::vector<double> seconds = median_seconds(
      {repeat([&] { buffer.try_copy_to(host.data(), copy_bytes).value(); }),
       repeat([&] { count_transfer(TransferDirection::device_to_host, tag, copy_bytes); }),
       repeat([&] { try_download(tag, copy_bytes, {}).value(); })},
      context.seconds_per_figure());
  const double each = 1e9 / static_cast<double>(rounds);
  context.add({.name = "counting a copy",
               .value = seconds[1] * each,
               .unit = "ns",
               .better = Better::lower,
               .baseline_name = "the copy of 64 B to the host",
               .baseline = seconds[0] * each,
               .others = {{"asking for a gate", seconds[2] * each}},
               .goal = goal_ns});
  const TransferGate gate;
  const double gated_ns = median_ns(repeat([&] { try_download(tag, copy_bytes, {}).value(); }),
                                    rounds, context.seconds_per_figure());
  context.add({.name = "asking inside a gate",
               .value = gated_ns,
               .unit = "ns",
               .better = Better::lower,
               .goal = goal_ns});
}

const Registration registered({"launch.audit", "what counting every copy costs", run});

}  // namespace
}  // namespace tern::bench
