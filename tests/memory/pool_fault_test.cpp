// Everything a pool asks for fails, call by call: the driver's calls on a simulated device, and the
// host's heap on the host device.
//
// In each scenario the first call fails, then the second, until none is left to fail; once, for
// ever, or every second one from there. Whatever happens the answer is a typed one, the books
// agree, a refused call has changed nothing that is live, the same call succeeds without the fault,
// and in the end everything goes back. LONG_TESTS=1 tries every call, not a sample.
//
// The heap is tried on the host device only: the simulated one keeps its own books on it, and is
// not made for a host without memory.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "support/allocation_counter.hpp"
#include "support/thorough.hpp"
#include "tern/backends/catalog.hpp"
#include "tern/backends/sim.hpp"
#include "tern/core/bytes.hpp"
#include "tern/core/error.hpp"
#include "tern/device/stream.hpp"
#include "tern/memory/budget_resource.hpp"
#include "tern/memory/guard_resource.hpp"
#include "tern/memory/pool_resource.hpp"
#include "tern/memory/tracking_resource.hpp"

namespace tern {
namespace {

constexpr std::size_t budget_bytes = 128 * mib;

enum class Around : std::uint8_t { nothing, budget, guard, tracking };

struct Rig {
  struct Live {
    Block block;
    StreamRef stream;
  };

  Rig(const Device& on, const PoolOptions& with, Around what)
      : device(on), options(with), around(what) {
    live.reserve(256);  // the test itself needs no heap while it is exhausted
  }

  void make_pool() {
    pool = std::make_shared<PoolResource>(device, options);
    top = pool;
    if (around == Around::budget) {
      budget = Budget::make("test", BudgetLimit::bytes(budget_bytes));
      top = std::make_shared<BudgetResource>(pool, budget);
    } else if (around == Around::guard) {
      top = std::make_shared<GuardResource>(pool, GuardOptions{.quarantine_bytes = 1 * mib});
    } else if (around == Around::tracking) {
      top = std::make_shared<TrackingResource>(pool);
    }
  }

  Result<void> take(const Request& request) {
    const Result<Block> block = top->try_allocate(request);
    if (!block) return block.failure();
    live.push_back({*block, request.stream});
    return {};
  }
  /// For preparations: no fault is armed.
  void have(std::size_t bytes, StreamRef stream = {}, std::size_t count = 1) {
    for (std::size_t i = 0; i < count; ++i) take({.bytes = bytes, .stream = stream}).value();
  }
  void use_all() const {
    for (const Live& one : live) {
      if (one.stream.id()) one.stream.fill(static_cast<std::byte*>(one.block.address), 64, {});
    }
  }
  Result<void> give(std::size_t index, StreamRef stream) {
    Result<void> freed = top->try_deallocate(live[index].block, stream);
    if (freed) live.erase(live.begin() + static_cast<std::ptrdiff_t>(index));
    return freed;
  }
  Result<void> give(std::size_t index) { return give(index, live[index].stream); }
  /// Out of the host's cache, and joined.
  void give_by_host(std::size_t index) {
    give(index, {}).value();
    pool->trim(SIZE_MAX);
  }

  Device device;
  PoolOptions options;
  Around around;
  std::shared_ptr<PoolResource> pool;
  ResourceHandle top;
  BudgetHandle budget;
  Stream a{device, {.name = "A"}};
  Stream b{device, {.name = "B"}};
  std::vector<Live> live;
  StreamRef ended = {};
};

struct Scenario {
  std::string name;
  PoolOptions options = {};
  std::function<void(Rig&)> prepare = [](Rig&) {};
  /// What the faults are for. Refused, it may be called again.
  std::function<Result<void>(Rig&)> act = {};
  Around around = Around::nothing;
  /// The pool is made by the act.
  bool makes_pool = false;
  std::size_t memory = 1024 * mib;
};

/// Eight blocks of 16 MiB, every second one free.
void make_holes(Rig& rig) {
  rig.have(16 * mib, {}, 8);
  for (const std::size_t index : {6u, 4u, 2u, 0u}) rig.give_by_host(index);
}

std::vector<Scenario> every_scenario() {
  const PoolOptions segments{.backing = PoolBacking::segments};
  const PoolOptions pinned{.kind = MemoryKind::pinned};
  const auto limited = [](PoolOptions options, std::size_t bytes) {
    options.limit_bytes = bytes;
    return options;
  };
  const auto take = [](std::size_t bytes, Wait wait = Wait::forever) {
    return [=](Rig& rig) { return rig.take({.bytes = bytes, .stream = rig.a, .wait = wait}); };
  };
  const auto host_take = [](std::size_t bytes, std::size_t alignment = 0) {
    return [=](Rig& rig) { return rig.take({.bytes = bytes, .alignment = alignment}); };
  };
  const auto trim = [](Rig& rig) -> Result<void> {
    rig.top->trim(0);
    return {};
  };
  /// Blocks of A that are freed and in use, in lanes or in its cache.
  const auto busy = [](std::size_t bytes, std::size_t count) {
    return [=](Rig& rig) {
      rig.have(bytes, rig.a, count);
      rig.use_all();
      while (!rig.live.empty()) rig.give(0).value();
    };
  };
  const auto grow_and_free_all = [](Rig& rig) {
    rig.have(12 * mib, {}, 2);
    rig.have(40 * mib);
    while (!rig.live.empty()) rig.give_by_host(0);
  };
  const auto make = [](Rig& rig) -> Result<void> {
    try {
      rig.make_pool();
      return {};
    } catch (const Error& error) {
      return error.failure();
    } catch (const std::bad_alloc&) {
      return Failure(ErrorCode::out_of_memory);
    }
  };
  std::vector<Scenario> all = {
      {.name = "first growth", .act = take(5 * mib)},
      {.name = "growth of a small block", .act = take(1000)},
      {.name = "growth behind a free tail",
       .prepare = [](Rig& rig) { rig.have(1 * mib); },
       .act = take(8 * mib)},
      {.name = "growth with extra pages",
       .prepare = [](Rig& rig) { rig.have(128 * mib); },
       .act = take(6 * mib)},
      {.name = "growth of an aligned block",
       .prepare = [](Rig& rig) { rig.have(2 * mib); },
       .act = host_take(6 * mib, 8 * mib)},
      {.name = "growth at old addresses",
       .prepare =
           [](Rig& rig) {
             rig.have(2 * mib, {}, 4);
             rig.give_by_host(1);
             rig.pool->trim(0);
           },
       .act = take(2 * mib)},
      {.name = "growth with loose pages",
       .prepare =
           [](Rig& rig) {
             rig.have(4 * mib);
             rig.give_by_host(0);
             if (rig.device.info().backend != "sim") return;
             sim::set_faults(rig.device, "release#2+=fail");
             rig.pool->trim(0);
             sim::set_faults(rig.device, "");
           },
       .act = take(8 * mib)},
      {.name = "moving pages",
       .options = limited({}, 128 * mib),
       .prepare = make_holes,
       .act = host_take(48 * mib)},
      {.name = "moving pages, and making those missing",
       .prepare = make_holes,
       .act = host_take(80 * mib)},
      {.name = "moving pages for a small block",
       .options = limited({}, 16 * mib),
       .prepare =
           [](Rig& rig) {
             rig.have(2 * mib, {}, 8);
             for (const std::size_t index : {5u, 3u, 1u}) rig.give_by_host(index);
           },
       .act = host_take(5 * mib)},
      {.name = "own blocks in flight", .prepare = busy(3 * mib, 8), .act = take(3 * mib + 256)},
      {.name = "a steal",
       .options = limited({}, 8 * mib),
       .prepare =
           [busy](Rig& rig) {
             busy(8 * mib, 1)(rig);
             rig.have(256, rig.b);
             rig.give(0).value();
           },
       .act = [](Rig& rig) { return rig.take({.bytes = 6 * mib, .stream = rig.b}); }},
      {.name = "a steal without a wait of the host",
       .options = limited({.preference = PoolPreference::reuse}, 16 * mib),
       .prepare = busy(4 * mib, 3),
       .act =
           [](Rig& rig) {
             return rig.take({.bytes = 4 * mib, .stream = rig.b, .wait = Wait::never});
           }},
      {.name = "a wait of the host",
       .options = limited({}, 16 * mib),
       .prepare = busy(4 * mib, 4),
       .act = host_take(12 * mib)},
      {.name = "pieces of two streams",
       .options = limited({}, 16 * mib),
       .prepare =
           [](Rig& rig) {
             for (int i = 0; i < 4; ++i) {
               rig.have(2 * mib, rig.a);
               rig.have(2 * mib, rig.b);
             }
             rig.use_all();
             while (!rig.live.empty()) rig.give(0).value();
           },
       .act = take(10 * mib)},
      {.name = "trim",
       .prepare =
           [](Rig& rig) {
             make_holes(rig);
             rig.have(3 * mib, rig.a, 2);
             rig.give(rig.live.size() - 1).value();
           },
       .act = trim},
      {.name = "trim of what streams have",
       .prepare =
           [busy](Rig& rig) {
             busy(3 * mib, 8)(rig);
             rig.have(1000, rig.b, 3);
           },
       .act = trim},
      {.name = "idle memory goes by itself",
       .options = {},
       .prepare =
           [](Rig& rig) {
             rig.have(600 * mib);
             rig.have(3 * mib, rig.a, 12);
             rig.give_by_host(0);
             while (rig.live.size() > 1) rig.give(0).value();
           },
       .act = [](Rig& rig) { return rig.give(0); }},
      {.name = "an event behind freed blocks",
       .prepare =
           [](Rig& rig) {
             rig.have(256, rig.a, 200);
             rig.use_all();
           },
       .act = [](Rig& rig) -> Result<void> {
         while (!rig.live.empty()) {
           if (Result<void> freed = rig.give(0); !freed) return freed;
         }
         return {};
       }},
      {.name = "poll",
       .prepare =
           [busy](Rig& rig) {
             busy(3 * mib, 6)(rig);
             rig.have(3 * mib, rig.b, 6);
             while (!rig.live.empty()) rig.give(0).value();
           },
       .act = [](Rig& rig) -> Result<void> {
         rig.pool->poll();
         return {};
       }},
      {.name = "a free on a stream that has ended",
       .prepare =
           [](Rig& rig) {
             Stream short_lived(rig.device);
             rig.have(3 * mib, short_lived);
             rig.use_all();
             rig.ended = short_lived;
           },
       .act = [](Rig& rig) { return rig.give(0, rig.ended); }},
      {.name = "a free on another stream that has ended",
       .prepare =
           [](Rig& rig) {
             const Stream short_lived(rig.device);
             rig.have(3 * mib);
             rig.ended = short_lived;
           },
       .act = [](Rig& rig) { return rig.give(0, rig.ended); }},
      {.name = "a free on another stream",
       .prepare =
           [](Rig& rig) {
             rig.have(3 * mib, rig.a);
             rig.use_all();
             rig.b.wait(rig.a.mark());
           },
       .act = [](Rig& rig) { return rig.give(0, rig.b); }},
      {.name = "segments grow", .options = segments, .act = take(5 * mib)},
      {.name = "segments of their own", .options = segments, .act = take(100 * mib)},
      {.name = "segments are smaller where memory is short",
       .options = segments,
       .act = take(5 * mib),
       .memory = 16 * mib},
      {.name = "segments go back", .options = segments, .prepare = grow_and_free_all, .act = trim},
      {.name = "segments make room for others",
       .options = limited(segments, 128 * mib),
       .prepare = grow_and_free_all,
       .act = take(90 * mib)},
      {.name = "segments of a busy stream",
       .options = limited(segments, 64 * mib),
       .prepare = busy(16 * mib, 4),
       .act = host_take(60 * mib)},
      {.name = "pinned memory grows", .options = pinned, .act = take(5 * mib)},
      {.name = "pinned memory that is in use",
       .options = limited(pinned, 16 * mib),
       .prepare = busy(4 * mib, 4),
       .act = take(4 * mib)},
      {.name = "pinned memory goes back",
       .options = pinned,
       .prepare = grow_and_free_all,
       .act = trim},
      {.name = "a free of pinned memory",
       .options = pinned,
       .prepare = [](Rig& rig) { rig.have(3 * mib, rig.a); },
       .act = [](Rig& rig) { return rig.give(0, rig.b); }},
      {.name = "managed memory grows",
       .options = {.kind = MemoryKind::managed},
       .act = take(5 * mib)},
      {.name = "a pool", .act = make, .makes_pool = true},
      {.name = "a pool that begins with memory",
       .options = {.initial_bytes = 32 * mib},
       .act = make,
       .makes_pool = true},
      {.name = "a pool that begins with a segment",
       .options = {.initial_bytes = 32 * mib, .backing = PoolBacking::segments},
       .act = make,
       .makes_pool = true},
      {.name = "a pool that begins with pinned memory",
       .options = {.kind = MemoryKind::pinned, .initial_bytes = 32 * mib},
       .act = make,
       .makes_pool = true},
      {.name = "a budget over a pool", .act = take(5 * mib), .around = Around::budget},
      {.name = "a free below a budget",
       .prepare =
           [](Rig& rig) {
             rig.have(3 * mib, rig.a, 2);
             rig.use_all();
             rig.b.wait(rig.a.mark());
           },
       .act = [](Rig& rig) { return rig.give(0, rig.b); },
       .around = Around::budget},
      {.name = "a budget at its limit",
       .prepare =
           [](Rig& rig) {
             rig.have(32 * mib, rig.a, 4);
             rig.use_all();
             while (!rig.live.empty()) rig.give(0).value();
           },
       .act = [](Rig& rig) { return rig.take({.bytes = 100 * mib, .stream = rig.b}); },
       .around = Around::budget},
      {.name = "moving pages below a budget",
       .prepare = make_holes,
       .act = host_take(48 * mib),
       .around = Around::budget},
      {.name = "segments make room below a budget",
       .options = segments,
       .prepare = grow_and_free_all,
       .act = take(90 * mib),
       .around = Around::budget},
      {.name = "a budget that gets a lower limit",
       .prepare = make_holes,
       .act = [](Rig& rig) -> Result<void> {
         rig.budget->set_limit(BudgetLimit::bytes(budget_bytes / 2));
         return {};
       },
       .around = Around::budget},
      {.name = "a guard over a pool", .act = take(5 * mib), .around = Around::guard},
      {.name = "a free below a guard",
       .prepare = [](Rig& rig) { rig.have(3 * mib, rig.a); },
       .act = [](Rig& rig) { return rig.give(0); },
       .around = Around::guard},
      {.name = "a pool that is tracked", .act = take(5 * mib), .around = Around::tracking},
  };
  // Without a limit a pool has large handles. With one that is never reached, handles have one
  // page, so that each scenario makes more calls.
  const std::size_t count = all.size();
  for (std::size_t i = 0; i < count; ++i) {
    Scenario twin = all[i];
    if (twin.options.limit_bytes != 0 || twin.options.kind != MemoryKind::device ||
        twin.options.backing == PoolBacking::segments) {
      continue;
    }
    twin.name += ", handles of one page";
    twin.options.limit_bytes = twin.memory;
    all.push_back(std::move(twin));
  }
  return all;
}

// --- One run

struct Point {
  std::string text;
  bool is_lost = false;  // the device may be gone
  bool is_heap = false;
  bool is_pair = false;  // pages may stay where they were mapped
};

void expect_sums(Rig& rig, const Point& point) {
  const PoolStatistics now = rig.pool->pool_statistics();
  EXPECT_EQ(now.live_bytes + now.cached_bytes + now.in_flight_bytes + now.available_bytes +
                now.unmapped_bytes,
            now.held_bytes)
      << point.text;
  EXPECT_TRUE(rig.pool->check_invariants()) << point.text;
  if (rig.options.limit_bytes != 0) {
    EXPECT_LE(now.peak_held_bytes, rig.options.limit_bytes) << point.text;
  }
  if (rig.budget) {
    // If the driver does not take free memory back, the pool holds more rather than refuse.
    EXPECT_LE(now.peak_held_bytes, budget_bytes + budget_bytes / 4) << point.text;
    EXPECT_EQ(rig.budget->provisional_bytes(), 0u) << point.text;
    EXPECT_EQ(rig.budget->charged_bytes(), rig.budget->used_bytes()) << point.text;
  }
}

bool is_expected(ErrorCode code, const Point& point) {
  if (point.is_heap) return code == ErrorCode::out_of_memory;
  return code == ErrorCode::out_of_memory || code == ErrorCode::driver ||
         code == ErrorCode::out_of_budget || (point.is_lost && code == ErrorCode::device_lost);
}

void drain(Rig& rig, const Point& point) {
  while (!rig.live.empty()) {
    StreamRef stream = rig.live.back().stream;
    if (stream.id() && !stream.is_usable()) stream = {};
    const Result<void> freed = rig.give(rig.live.size() - 1, stream);
    EXPECT_TRUE(freed) << point.text << ": " << freed.failure().text();
    if (!freed) rig.live.pop_back();
  }
  static_cast<void>(rig.device.try_synchronize());
  rig.top->trim(0);
  rig.pool->poll();
  rig.top->trim(0);
  if (rig.budget) {
    static_cast<void>(rig.budget->drain());
    EXPECT_EQ(rig.budget->used_bytes(), 0u) << point.text;
    EXPECT_EQ(rig.budget->charged_bytes(), 0u) << point.text;
  }
  EXPECT_EQ(rig.top->statistics().live_blocks, 0u) << point.text;
  const PoolStatistics now = rig.pool->pool_statistics();
  EXPECT_EQ(now.live_bytes, 0u) << point.text;
  EXPECT_EQ(now.in_flight_bytes, 0u) << point.text;
  EXPECT_EQ(now.held_bytes, point.is_pair ? now.unmapped_bytes : 0u) << point.text;
  EXPECT_TRUE(rig.pool->check_invariants()) << point.text;
}

/// Runs the scenario with what `arm` makes fail; `disarm` ends that, and says whether anything
/// failed. False: the fault came too late to happen.
bool run(const Scenario& scenario, const Device& device, const Point& point,
         const std::function<Result<void>(Rig&)>& act_with_faults,
         const std::function<bool(const Device&)>& has_fired) {
  std::optional<Rig> rig(std::in_place, device, scenario.options, scenario.around);
  if (!scenario.makes_pool) rig->make_pool();
  scenario.prepare(*rig);
  PoolStatistics before;
  Statistics top_before;
  if (rig->pool) {
    before = rig->pool->pool_statistics();
    top_before = rig->top->statistics();
  }
  const std::size_t blocks_before = rig->live.size();
  const Result<void> outcome = act_with_faults(*rig);
  const bool fired = has_fired(device);
  if (!outcome) {
    EXPECT_TRUE(is_expected(outcome.failure().code(), point))
        << point.text << ": " << outcome.failure().text();
    if (rig->pool && rig->live.size() == blocks_before) {
      const PoolStatistics after = rig->pool->pool_statistics();
      EXPECT_EQ(after.live_bytes, before.live_bytes) << point.text;
      EXPECT_EQ(after.requested_bytes, before.requested_bytes) << point.text;
      const Statistics top_after = rig->top->statistics();
      EXPECT_EQ(top_after.live_bytes, top_before.live_bytes) << point.text;
      EXPECT_EQ(top_after.live_blocks, top_before.live_blocks) << point.text;
      EXPECT_EQ(top_after.frees, top_before.frees) << point.text;
    }
  }
  if (rig->pool) expect_sums(*rig, point);
  if (!outcome && !point.is_lost) {
    const Result<void> again = scenario.act(*rig);
    const bool has_lost_pages = rig->pool && rig->pool->pool_statistics().unmapped_bytes > 0;
    if (!point.is_pair || !has_lost_pages) {
      EXPECT_TRUE(again) << point.text << ", again: " << again.failure().text();
    }
    if (rig->pool) expect_sums(*rig, point);
  }
  if (rig->pool) drain(*rig, point);
  rig.reset();
  if (!point.is_lost && device.info().backend == "sim") {
    for (const Finding& finding : sim::findings(device)) {
      ADD_FAILURE() << point.text << ": " << finding.text();
    }
    for (const Finding& leak : sim::leaks(device)) {
      ADD_FAILURE() << point.text << ": " << leak.text();
    }
  }
  return fired;
}

/// Which of the calls are tried: all, or the first and then fewer and fewer.
std::size_t next_index(std::size_t index) {
  if (test::in_full() || index < 6) return index + 1;
  return index + index / 2;
}

struct FaultClass {
  const char* name;
  std::vector<const char*> kinds;
};

const std::vector<FaultClass> classes = {{"allocate", {"oom", "fragmented", "fail", "lost"}},
                                         {"release", {"fail", "lost"}},
                                         {"map", {"oom", "fail", "lost"}},
                                         {"pin", {"oom", "fail", "refuse", "lost"}},
                                         {"record", {"fail", "fault", "lost", "slow"}},
                                         {"wait", {"fail", "fault", "lost", "slow"}},
                                         {"query", {"fail", "lost", "not_ready"}},
                                         {"sync", {"fail", "lost"}},
                                         {"stream", {"fail", "lost"}},
                                         {"copy", {"fail", "fault", "lost", "slow"}},
                                         {"fill", {"fail", "fault", "lost", "slow"}}};

enum class Mode : std::uint8_t { once, for_ever, every_second };

std::string plan_of(const char* fault_class, const char* kind, std::size_t index, Mode mode) {
  if (mode == Mode::once) return fmt::format("{}#{}={}", fault_class, index, kind);
  if (mode == Mode::for_ever) return fmt::format("{}#{}+={}", fault_class, index, kind);
  std::string plan;
  for (std::size_t i = 0; i < 20; ++i) {
    plan += fmt::format("{}{}#{}={}", i == 0 ? "" : ", ", fault_class, index + 2 * i, kind);
  }
  return plan;
}

/// One run with a plan. Gives how many calls of the classes there were while it was in force.
std::vector<std::uint64_t> run_plan(const Scenario& scenario, sim::Policy policy,
                                    const std::string& plan, const Point& point,
                                    const std::vector<const char*>& counted) {
  // The order of what is noted behind a loss means nothing, and is not judged.
  const Device device =
      sim::open({.policy = policy, .memory_bytes = scenario.memory, .check = !point.is_lost});
  std::vector<std::uint64_t> calls;
  run(
      scenario, device, point,
      [&](Rig& rig) {
        sim::set_faults(device, plan);
        Result<void> outcome = scenario.act(rig);
        for (const char* fault_class : counted) calls.push_back(sim::calls(device, fault_class));
        sim::set_faults(device, "");
        return outcome;
      },
      [](const Device&) { return true; });
  return calls;
}

std::vector<sim::Policy> every_policy() {
  if (!test::in_full()) return {sim::Policy::lazy};
  return {sim::Policy::lazy, sim::Policy::eager, sim::Policy::random, sim::Policy::stall_one};
}

TEST(PoolFaults, LeaveThePoolIntactWhicheverCallFails) {
  std::size_t points = 0;
  const auto try_all = [&](const Scenario& scenario, sim::Policy policy, const char* fault_class,
                           const char* kind, Mode mode) {
    const bool is_lost = std::string_view(kind) == "lost" || std::string_view(kind) == "fault";
    // A device is lost once.
    if (is_lost && mode != Mode::once) return;
    for (std::size_t index = 1;; index = next_index(index)) {
      const std::string plan = plan_of(fault_class, kind, index, mode);
      const Point point{fmt::format("{}, {}, policy {}", scenario.name, plan, int(policy)),
                        is_lost};
      const std::uint64_t calls = run_plan(scenario, policy, plan, point, {fault_class})[0];
      if (testing::Test::HasFailure()) FAIL() << point.text;
      if (calls < index) return;
      ++points;
    }
  };
  for (const Scenario& scenario : every_scenario()) {
    for (const sim::Policy policy : every_policy()) {
      for (const FaultClass& fault_class : classes) {
        for (const char* kind : fault_class.kinds) {
          for (const Mode mode : {Mode::once, Mode::for_ever, Mode::every_second}) {
            try_all(scenario, policy, fault_class.name, kind, mode);
            if (HasFatalFailure()) return;
          }
        }
      }
    }
  }
  RecordProperty("points", std::to_string(points));
  EXPECT_GE(points, test::in_full() ? 10'000u : 1500u);
}

TEST(PoolFaults, LeaveThePoolIntactWhicheverTwoCallsFail) {
  const std::vector<std::pair<const char*, const char*>> pairs = {
      {"map", "release"}, {"allocate", "release"}, {"allocate", "map"},
      {"wait", "query"},  {"record", "query"},     {"record", "sync"}};
  const std::size_t most = test::in_full() ? 40 : 6;
  std::size_t points = 0;
  for (const Scenario& scenario : every_scenario()) {
    // A pool that ends at once because its beginning failed cannot try again to give back.
    if (scenario.makes_pool) continue;
    for (const auto& [first, second] : pairs) {
      for (std::size_t i = 1; i <= most; ++i) {
        for (std::size_t j = 1; j <= most; ++j) {
          const std::string plan = fmt::format("{}#{}=fail, {}#{}=fail", first, i, second, j);
          const Point point{fmt::format("{}, {}", scenario.name, plan), false, false, true};
          const std::vector<std::uint64_t> calls =
              run_plan(scenario, sim::Policy::lazy, plan, point, {first, second});
          if (testing::Test::HasFailure()) FAIL() << point.text;
          if (calls[0] < i) {
            i = most;
            break;
          }
          if (calls[1] < j) break;
          ++points;
        }
      }
    }
  }
  RecordProperty("points", std::to_string(points));
  EXPECT_GE(points, 100u);
}

TEST(PoolFaults, LeaveThePoolIntactWithoutHostMemory) {
  if (!test::HeapExhausted::is_possible()) GTEST_SKIP();
  using test::HeapExhausted;
  std::size_t points = 0;
  for (const Scenario& scenario : every_scenario()) {
    if (scenario.options.kind == MemoryKind::managed) continue;
    for (const HeapExhausted::Mode mode : {HeapExhausted::Mode::once, HeapExhausted::Mode::for_ever,
                                           HeapExhausted::Mode::every_second}) {
      for (std::size_t index = 0;; ++index) {
        const Point point{fmt::format("{}, allocation {} of the heap, mode {}", scenario.name,
                                      index + 1, int(mode)),
                          false, true};
        const Device device = open_device("host");
        bool has_failed = false;
        const bool fired = run(
            scenario, device, point,
            [&](Rig& rig) {
              const HeapExhausted heap(index, mode);
              Result<void> outcome = scenario.act(rig);
              has_failed = heap.has_failed();
              return outcome;
            },
            [&](const Device&) { return has_failed; });
        if (testing::Test::HasFailure()) FAIL() << point.text;
        if (!fired) break;
        ++points;
      }
    }
  }
  RecordProperty("points", std::to_string(points));
  EXPECT_GE(points, 300u);
}

}  // namespace
}  // namespace tern
