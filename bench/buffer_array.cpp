// The cost of a buffer beyond its memory: arrays compared with plain blocks, views, and access
// through a view.

#include <fmt/format.h>

#include <chrono>
#include <cstddef>
#include <memory>
#include <new>
#include <numeric>
#include <optional>
#include <vector>

#include "bench/contestants.hpp"
#include "bench/instruction_count.hpp"
#include "bench/measure.hpp"
#include "tern/buffer/array.hpp"
#include "tern/buffer/buffer.hpp"
#include "tern/core/bytes.hpp"

namespace tern::bench {
namespace {

/// Making an array may take 1.5 times as long as allocating its block.
constexpr double goal_share = 1 / 1.5;
constexpr double goal_view_ns = 10;

void add_arrays(Context& context, const Stage& stage, const ResourceHandle& pool) {
  const std::size_t rounds = context.usual_or_quick<std::size_t>(10'000, 100);
  const StreamRef stream = stage.streams[0];
  for (const std::size_t count : {std::size_t{64}, 256 * kib}) {
    const std::size_t bytes = count * sizeof(float);
    context.step(format_bytes(bytes));
    const std::vector<double> seconds = median_seconds(
        {[&] {
           for (std::size_t i = 0; i < rounds; ++i) {
             const Array<float> array =
                 Array<float>::uninitialized(pool, count, {.stream = stream});
           }
         },
         [&] {
           for (std::size_t i = 0; i < rounds; ++i) {
             const Block block = pool->try_allocate({.bytes = bytes, .stream = stream}).value();
             pool->try_deallocate(block, stream).value();
           }
         }},
        context.seconds_per_figure());
    const double each = 1e9 / static_cast<double>(rounds);
    context.add({.name = fmt::format("{} array, made and dropped", format_bytes(bytes)),
                 .value = seconds[0] * each,
                 .unit = "ns",
                 .better = Better::lower,
                 .baseline_name = "a block of the pool",
                 .baseline = seconds[1] * each,
                 .goal_ratio = goal_share});
    add_instructions(context, fmt::format("{} array, made and dropped", format_bytes(bytes)), [&] {
      const Array<float> array = Array<float>::uninitialized(pool, count, {.stream = stream});
    });
  }
}

/// Returns the nanoseconds to make one object. Makes a row of objects; destroying the row is not
/// timed.
template <class Made, class Make>
double ns_to_make(const Context& context, const Make& make) {
  constexpr std::size_t at_once = 256;
  using Clock = std::chrono::steady_clock;
  // Raw memory, so that only the constructors are timed.
  const auto row = std::make_unique<std::byte[]>(at_once * sizeof(Made));
  Made* const first = reinterpret_cast<Made*>(row.get());
  std::vector<double> batches;
  const std::size_t rounds = context.usual_or_quick<std::size_t>(2'000, 5);
  for (std::size_t round = 0; round < rounds; ++round) {
    const Clock::time_point start = Clock::now();
    for (std::size_t i = 0; i < at_once; ++i) ::new (static_cast<void*>(first + i)) Made(make(i));
    batches.push_back(std::chrono::duration<double, std::nano>(Clock::now() - start).count());
    std::destroy_n(first, at_once);
  }
  return median(std::move(batches)) / static_cast<double>(at_once);
}

void add_views(Context& context, const Stage& stage, const ResourceHandle& pool) {
  const std::size_t rounds = context.usual_or_quick<std::size_t>(100'000, 100);
  const Buffer buffer(stage.device, Shape{1024}, DType::f32, {.resource = pool});
  const Array<float> array = Array<float>::uninitialized(pool, 1024);
  const auto view = [&](std::size_t i) { return buffer.byte_view(i % 1024, 64); };
  const auto slice = [&](std::size_t i) { return array.slice(i % 512, 64); };
  const auto add = [&](const char* name, double ns, std::optional<double> goal) {
    context.step(name);
    context.add({.name = name, .value = ns, .unit = "ns", .better = Better::lower, .goal = goal});
  };
  std::size_t sum = 0;
  const auto repeat = [&](const auto& make) {
    return median_ns(
        [&] {
          for (std::size_t i = 0; i < rounds; ++i)
            if (make(i).storage()) ++sum;
        },
        rounds, context.seconds_per_figure());
  };
  add("a view of a buffer, made", ns_to_make<Buffer>(context, view), goal_view_ns);
  add("a view of a buffer, made and dropped", repeat(view), std::nullopt);
  add("a slice of an array, made", ns_to_make<Array<float>>(context, slice), goal_view_ns);
  add("a slice of an array, made and dropped", repeat(slice), std::nullopt);
  if (sum == 0) context.note("no view had a storage");
}

[[gnu::noinline]] float sum_pointer(const float* data, std::size_t size) {
  float sum = 0;
  for (std::size_t i = 0; i < size; ++i) sum += data[i];
  return sum;
}
[[gnu::noinline]] float sum_view(View<const float> view) {
  float sum = 0;
  for (std::size_t i = 0; i < view.size(); ++i) sum += view[i];
  return sum;
}

void add_access(Context& context) {
  context.step("instructions");
  std::vector<float> data(1000);
  std::iota(data.begin(), data.end(), 0.0f);
  float by_pointer = 0, by_view = 0;
  const InstructionCount pointer =
      count_instructions([&] { by_pointer = sum_pointer(data.data(), data.size()); });
  const InstructionCount view = count_instructions([&] {
    by_view = sum_view({data.data(), data.size()});
  });
  if (!view.refusal.empty() || by_pointer != by_view) {
    context.note(fmt::format("instructions were not counted: {}.", view.refusal));
    return;
  }
  context.add({.name = "1000 floats through a View, instructions",
               .value = static_cast<double>(view.instructions),
               .better = Better::lower,
               .baseline_name = "through a pointer",
               .baseline = static_cast<double>(pointer.instructions),
               .goal_ratio = 1});
}

void run(Context& context) {
  const Stage stage(context);
  const ResourceHandle pool =
      make_filled_pool(stage.device, fitting_bytes(context, stage.device, gib));
  add_arrays(context, stage, pool);
  add_views(context, stage, pool);
  add_access(context);
}

const Registration registered({"buffer.array", "arrays beside bare blocks, and views", run});

}  // namespace
}  // namespace tern::bench
