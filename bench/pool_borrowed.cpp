// Pairs of one allocation and one free by a caller that has only the driver's handle of a stream,
// as a plug-in of another library does. Nobody else borrows the stream.

#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <latch>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "bench/contestants.hpp"
#include "bench/instruction_count.hpp"
#include "bench/measure.hpp"
#include "tern/core/bytes.hpp"

namespace tern::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t block_bytes = 4 * kib, rounds_per_look = 64, batches = 7;
constexpr double goal_lookup_ns = 60, goal_pair_ns = 100, goal_mops = 20;

/// The operations that one thread measures. `handle` is the driver's handle of `own`.
struct Work {
  const Device& device;
  Resource& pool;
  StreamRef own;
  NativeStream handle;

  void pair(StreamRef stream) const {
    const Block block = pool.try_allocate({.bytes = block_bytes, .stream = stream}).value();
    pool.try_deallocate(block, stream).value();
  }
  void on_own_stream() const { pair(own); }
  void borrow() const { static_cast<void>(Stream::try_borrow(device, handle).value()); }
  void borrow_default() const { static_cast<void>(Stream::try_borrow(device, {0}).value()); }
  void borrow_per_pair() const { pair(Stream::try_borrow(device, handle).value()); }
  void borrow_per_call() const {
    const Block block = pool.try_allocate({.bytes = block_bytes,
                                           .stream = Stream::try_borrow(device, handle).value()})
                            .value();
    pool.try_deallocate(block, Stream::try_borrow(device, handle).value()).value();
  }
};

using Step = void (Work::*)() const;

double ns_of(const Work& work, Step step, double seconds) {
  std::vector<double> times;
  for (std::size_t batch = 0; batch < batches; ++batch) {
    std::size_t count = 0;
    const Clock::time_point start = Clock::now();
    double taken = 0;
    while (taken < seconds / static_cast<double>(batches)) {
      for (std::size_t i = 0; i < rounds_per_look; ++i) (work.*step)();
      count += rounds_per_look;
      taken = std::chrono::duration<double>(Clock::now() - start).count();
    }
    times.push_back(taken * 1e9 / static_cast<double>(count));
  }
  return median(std::move(times));
}

/// Returns the rate of all threads together, in millions of steps per second.
double mops_of(const std::vector<Work>& works, std::size_t threads, Step step, double seconds) {
  std::latch ready(static_cast<std::ptrdiff_t>(threads) + 1);
  std::atomic<bool> is_over = false;
  std::vector<std::size_t> steps(threads);
  std::vector<std::jthread> workers;
  for (std::size_t index = 0; index < threads; ++index) {
    workers.emplace_back([&, index] {
      const Work& work = works[index];
      for (std::size_t i = 0; i < rounds_per_look; ++i) (work.*step)();
      ready.arrive_and_wait();
      std::size_t done = 0;
      while (!is_over.load(std::memory_order_relaxed)) {
        for (std::size_t i = 0; i < rounds_per_look; ++i) (work.*step)();
        done += rounds_per_look;
      }
      steps[index] = done;
    });
  }
  ready.arrive_and_wait();
  const Clock::time_point start = Clock::now();
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  is_over = true;
  for (std::jthread& worker : workers) worker.join();
  const double taken = std::chrono::duration<double>(Clock::now() - start).count();
  std::size_t all = 0;
  for (const std::size_t one : steps) all += one;
  return static_cast<double>(all) / taken / 1e6;
}

void add_counts(Context& context, const Work& work) {
  const auto count = [&](Step step) {
    for (std::size_t i = 0; i < rounds_per_look; ++i) (work.*step)();
    return count_instructions([&] { (work.*step)(); });
  };
  const InstructionCount pair = count(&Work::borrow_per_pair);
  if (!pair.refusal.empty()) {
    context.note(fmt::format("instructions were not counted: {}.", pair.refusal));
    return;
  }
  const InstructionCount own = count(&Work::on_own_stream);
  const InstructionCount borrow = count(&Work::borrow_default);
  const auto add = [&](const char* unit, auto member) {
    context.add({.name = fmt::format("borrow the default stream, {}", unit),
                 .value = static_cast<double>(borrow.*member),
                 .better = Better::lower});
    context.add({.name = fmt::format("pair, borrowed per pair, {}", unit),
                 .value = static_cast<double>(pair.*member),
                 .better = Better::lower,
                 .baseline_name = "own stream",
                 .baseline = static_cast<double>(own.*member)});
  };
  add("atomics", &InstructionCount::atomics);
  add("instructions", &InstructionCount::instructions);
}

void run(Context& context) {
  const Stage stage(context);
  const auto pool = make_filled_pool(stage.device, fitting_bytes(context, stage.device, gib));
  std::vector<Work> works;
  for (const Stream& stream : stage.streams) {
    works.push_back({stage.device, *pool, stream, stream.try_native().value()});
  }
  const double seconds = context.seconds_per_figure();
  context.step("one thread");
  const double own_ns = ns_of(works[0], &Work::on_own_stream, seconds);
  context.add({.name = "pair, own stream", .value = own_ns, .unit = "ns", .better = Better::lower});
  if (!stage.device.can(Capability::borrowed_streams)) {
    context.note("the device does not lend streams by their handles.");
    return;
  }
  const auto add_ns = [&](const char* name, Step step, double goal,
                          std::optional<double> baseline) {
    Figure figure{.name = name,
                  .value = ns_of(works[0], step, seconds),
                  .unit = "ns",
                  .better = Better::lower,
                  .baseline_name = baseline ? "own stream" : "",
                  .baseline = baseline};
    figure.goal = goal;
    context.add(std::move(figure));
  };
  add_ns("borrow a stream seen before", &Work::borrow, goal_lookup_ns, std::nullopt);
  add_ns("borrow the default stream", &Work::borrow_default, goal_lookup_ns, std::nullopt);
  add_ns("pair, borrowed per pair", &Work::borrow_per_pair, goal_pair_ns, own_ns);
  add_ns("pair, borrowed per call", &Work::borrow_per_call, 2 * goal_lookup_ns + own_ns, own_ns);
  context.note(fmt::format("on {} processors.", std::thread::hardware_concurrency()));
  for (const std::size_t threads : {1u, 4u, 16u}) {
    const std::string what =
        fmt::format("pairs, borrowed per pair, {} thread{}", threads, threads == 1 ? "" : "s");
    context.step(what);
    Figure figure{.name = what,
                  .value = mops_of(works, threads, &Work::borrow_per_pair, seconds / 2),
                  .unit = "M/s",
                  .baseline_name = "own streams",
                  .baseline = mops_of(works, threads, &Work::on_own_stream, seconds / 2)};
    if (threads == 16) figure.goal = goal_mops;
    context.add(std::move(figure));
  }
  context.step("instructions");
  add_counts(context, works[0]);
}

const Registration registered({"pool.borrowed",
                               "pairs by a caller that has only the driver's handle of a stream",
                               run});

}  // namespace
}  // namespace tern::bench
