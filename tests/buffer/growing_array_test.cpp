#include "tern/buffer/growing_array.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "support/budgets.hpp"
#include "support/fake_backend.hpp"
#include "support/on_device.hpp"
#include "support/refused.hpp"
#include "support/sharing_devices.hpp"
#include "support/thread.hpp"
#include "tern/backends/sim.hpp"
#include "tern/buffer/foreign.hpp"
#include "tern/buffer/scalar.hpp"
#include "tern/core/bytes.hpp"
#include "tern/core/error.hpp"
#include "tern/launch/graph.hpp"
#include "tern/launch/kernel.hpp"

namespace tern {
namespace {

using test::Call;
using test::refused;
using Numbers = GrowingArray<std::uint32_t>;

static_assert(!std::is_copy_constructible_v<Numbers>);
static_assert(std::is_nothrow_move_constructible_v<Numbers> &&
              std::is_nothrow_move_assignable_v<Numbers>);

/// `count` numbers from `first` on.
std::vector<std::uint32_t> numbers(std::uint32_t first, std::size_t count) {
  std::vector<std::uint32_t> made(count);
  std::iota(made.begin(), made.end(), first);
  return made;
}

std::vector<std::string> growing_devices() {
  std::vector<std::string> specs = test::sharing_devices();
  specs.push_back("opencl:0");
  return specs;
}

class GrowingArrayOn : public test::OnDevice {
 protected:
  [[nodiscard]] bool moves() const { return !device.can(Capability::virtual_memory); }
  void expect_numbers(const Numbers& array, std::size_t count) {
    EXPECT_EQ(array.to_vector(), numbers(0, count));
  }
};
INSTANTIATE_TEST_SUITE_P(Devices, GrowingArrayOn, testing::ValuesIn(growing_devices()),
                         [](const auto& one) {
                           std::string name = one.param;
                           std::erase_if(name, [](char c) { return std::isalnum(c) == 0; });
                           return name;
                         });

TEST_P(GrowingArrayOn, BeginsEmptyAndWithoutMemory) {
  const BudgetHandle budget = test::limited(1 * gib);
  Numbers array = Numbers::make(device, {.budget = budget});
  EXPECT_TRUE(array.empty());
  EXPECT_EQ(array.capacity(), 0u);
  EXPECT_GT(array.max_size(), 0u);
  EXPECT_EQ(array.statistics().resident_bytes, 0u);
  EXPECT_EQ(array.to_vector(), std::vector<std::uint32_t>());
  array.clear();
  array.shrink_to_fit(stream);
  array.resize(0, stream);
  array.append(std::span<const std::uint32_t>(), stream);
  array.append(Array<std::uint32_t>::zeros(device, 0), stream);
  EXPECT_EQ(array.size(), 0u);
  EXPECT_EQ(budget->charged_bytes(), 0u);
}

TEST_P(GrowingArrayOn, GrowsInStreamOrder) {
  Numbers array = Numbers::make(device);
  const std::vector<std::uint32_t> host = numbers(0, 100'000);
  const std::span<const std::uint32_t> all = host;
  array.append(all.first(1000), stream);
  array.push_back(1000, stream);
  array.append(all.subspan(1001, 50'000));
  const Array<std::uint32_t> others = Array<std::uint32_t>::from(device, all.subspan(51'001));
  array.append(others, stream);
  EXPECT_EQ(array.size(), 100'000u);
  EXPECT_EQ(array.size_bytes(), 400'000u);
  expect_numbers(array, 100'000);
  EXPECT_EQ(array.slice(51'000, 2).to_vector(), numbers(51'000, 2));
  std::vector<std::uint32_t> read(100'000);
  array.copy_to(read, stream);
  stream.synchronize();
  EXPECT_EQ(read, host);
  refused(array.try_copy_to(std::span(read).first(1)), ErrorCode::size_mismatch);
}

TEST_P(GrowingArrayOn, NeverMovesAndCopiesNothing) {
  Numbers array = Numbers::make(device);
  const std::vector<std::uint32_t> host = numbers(0, 1 * mib / 4);
  array.append(host, stream);
  const std::uintptr_t address = array.address();
  for (int i = 1; i < 32; ++i) {
    array.append(host, stream);
    if (!moves()) {
      ASSERT_EQ(array.address(), address);
    }
  }
  const GrowingStatistics now = array.statistics();
  EXPECT_EQ(now.size_bytes, 32 * mib);
  if (moves()) {
    EXPECT_GT(now.moved.copies, 0u);
    // Larger by half each time: less than 1 / (1.5 - 1) + 1 copies of each element.
    EXPECT_LE(now.moved.bytes, 3 * now.size_bytes);
    EXPECT_EQ(now.reserved_bytes, now.resident_bytes);
  } else {
    EXPECT_EQ(now.moved, CopyCount{});
    EXPECT_GE(now.reserved_bytes, 64 * mib);
    EXPECT_LE(now.resident_bytes, 36 * mib);
  }
  const std::vector<std::uint32_t> read = array.to_vector();
  for (std::size_t i = 0; i < read.size(); i += 1009) ASSERT_EQ(read[i], i % host.size());
}

TEST_P(GrowingArrayOn, ChargesExactlyTheMemoryThatItHolds) {
  const BudgetHandle budget = test::limited(1 * gib);
  {
    Numbers array = Numbers::make(device, {.budget = budget, .tag = "rows"});
    array.resize(3 * mib, stream);
    EXPECT_EQ(budget->used_bytes("rows"), array.statistics().resident_bytes);
    EXPECT_GE(budget->used_bytes(), 12 * mib);
    const Numbers other = std::move(array);
    EXPECT_EQ(budget->used_bytes(), other.statistics().resident_bytes);
    test::expect_sound(*budget);
  }
  stream.synchronize();
  static_cast<void>(reclaim_deferred());
  budget->drain();
  EXPECT_EQ(budget->charged_bytes(), 0u);
}

TEST_P(GrowingArrayOn, ChangesNothingIfTheBudgetRefuses) {
  const BudgetHandle budget = test::limited(16 * mib);
  Numbers array = Numbers::make(device, {.budget = budget});
  array.append(numbers(0, 1000));
  const std::size_t charged = budget->charged_bytes();
  const std::vector<std::uint32_t> large(8 * mib);
  refused(array.try_append(large, stream), ErrorCode::out_of_budget);
  refused(array.try_resize(8 * mib, stream), ErrorCode::out_of_budget);
  refused(array.try_reserve(8 * mib, stream), ErrorCode::out_of_budget);
  EXPECT_EQ(budget->charged_bytes(), charged);
  expect_numbers(array, 1000);
  array.push_back(1000, stream);
  expect_numbers(array, 1001);
}

TEST_P(GrowingArrayOn, IsNotLargerThanItsReservation) {
  Numbers array = Numbers::make(device, {.reserved_bytes = 4000});
  EXPECT_EQ(array.max_size(), 1000u);
  array.append(numbers(0, 999));
  array.push_back(999, stream);
  EXPECT_LE(array.capacity(), 1000u);
  const Failure no = refused(array.try_push_back(1000, stream), ErrorCode::capacity);
  EXPECT_EQ(no.number("requested"), 4004u);
  EXPECT_EQ(no.number("reserved"), 4000u);
  EXPECT_EQ(no.number("held"), 4000u);
  EXPECT_NE(no.text().find("Make it with more reserved_bytes"), std::string::npos);
  expect_numbers(array, 1000);
}

TEST_P(GrowingArrayOn, RefusesSizesThatOverflow) {
  constexpr std::size_t max = std::numeric_limits<std::size_t>::max();
  Numbers array = Numbers::make(device);
  array.push_back(0, stream);
  refused(array.try_resize(max, stream), ErrorCode::size_overflow);
  refused(array.try_reserve(max / 2, stream), ErrorCode::size_overflow);
  refused(array.try_resize(max / 4, stream), ErrorCode::capacity);
  const Result<Numbers> too_large = Numbers::try_make(device, {.reserved_bytes = max});
  if (!moves()) refused(too_large, ErrorCode::size_overflow);
  expect_numbers(array, 1);
}

TEST_P(GrowingArrayOn, IsEmptyAfterAMove) {
  Numbers array = Numbers::make(device);
  array.append(numbers(0, 10));
  const Numbers other = std::move(array);
  EXPECT_EQ(array.size(), 0u);  // NOLINT: a moved-from array is empty
  EXPECT_EQ(array.max_size(), 0u);
  EXPECT_EQ(array.address(), 0u);
  EXPECT_EQ(array.statistics().resident_bytes, 0u);
  array.clear();
  EXPECT_EQ(array.reclaim(), 0u);
  const std::vector<std::uint32_t> more = numbers(0, 1);
  refused(array.try_append(more), ErrorCode::not_allocated);
  refused(array.try_append(Array<std::uint32_t>(), stream), ErrorCode::not_allocated);
  refused(array.try_push_back(1, stream), ErrorCode::not_allocated);
  refused(array.try_resize(1, stream), ErrorCode::not_allocated);
  refused(array.try_reserve(1, stream), ErrorCode::not_allocated);
  refused(array.try_shrink_to_fit(stream), ErrorCode::not_allocated);
  expect_numbers(other, 10);
}

TEST_P(GrowingArrayOn, HasElementsWithoutAValueAfterAResize) {
  Numbers array = Numbers::make(device);
  array.append(numbers(0, 10));
  array.resize(20, stream);
  std::vector<std::uint32_t> read(20);
  refused(array.try_copy_to(read), ErrorCode::never_written);
  array.slice(10, 10).copy_from(numbers(10, 10));
  expect_numbers(array, 20);
  // Elements that come back have lost their values.
  array.resize(5, stream);
  array.resize(20, stream);
  refused(array.try_copy_to(read), ErrorCode::never_written);
  EXPECT_EQ(array.slice(0, 5).to_vector(), numbers(0, 5));
  array.clear();
  array.append(numbers(0, 7));
  expect_numbers(array, 7);
}

TEST_P(GrowingArrayOn, KeepsItsCapacityUntilItShrinksToFit) {
  Numbers array = Numbers::make(device);
  array.reserve(8 * mib, stream);
  EXPECT_GE(array.capacity(), 8 * mib);
  EXPECT_EQ(array.size(), 0u);
  array.append(numbers(0, 1000));
  const std::size_t held = array.statistics().resident_bytes;
  array.resize(500, stream);
  EXPECT_EQ(array.statistics().resident_bytes, held);
  array.shrink_to_fit(stream);
  stream.synchronize();
  array.reclaim();
  // What was reserved in one piece stays in one piece.
  EXPECT_EQ(array.statistics().resident_bytes, moves() ? 2048u : held);
  expect_numbers(array, 500);
  array.clear();
  array.shrink_to_fit(stream);
  stream.synchronize();
  array.reclaim();
  EXPECT_EQ(array.statistics().resident_bytes, 0u);
  array.append(numbers(0, 10));
  expect_numbers(array, 10);
}

TEST_P(GrowingArrayOn, GivesAllButAnEighthBack) {
  Numbers array = Numbers::make(device);
  const std::vector<std::uint32_t> host = numbers(0, 1 * mib / 4);
  for (int i = 0; i < 64; ++i) array.append(host, stream);
  EXPECT_GE(array.statistics().resident_bytes, 64 * mib);
  array.resize(2 * mib, stream);  // 8 MiB
  array.shrink_to_fit(stream);
  stream.synchronize();
  array.reclaim();
  EXPECT_LE(array.statistics().resident_bytes, 10 * mib);
  EXPECT_EQ(array.slice(0, host.size()).to_vector(), host);
}

TEST_P(GrowingArrayOn, GrowsWhileOthersShareItUnlessItMustMove) {
  Numbers array = Numbers::make(device);
  array.append(numbers(0, 1000));
  const Array<std::uint32_t> slice = array.slice(10, 5);
  if (moves()) {
    array.resize(array.capacity(), stream);
    const Failure no = refused(array.try_push_back(7, stream), ErrorCode::access_conflict);
    EXPECT_EQ(no.number("handles"), 1u);
  } else {
    array.append(numbers(1000, 4 * mib));
    EXPECT_EQ(slice.to_vector(), numbers(10, 5));
    expect_numbers(array, 1000 + 4 * mib);
  }
}

TEST_P(GrowingArrayOn, GrowsWhileAnotherThreadUsesASlice) {
  if (moves()) GTEST_SKIP() << "cannot grow while others share it";
  Numbers array = Numbers::make(device);
  array.append(numbers(0, 1000));
  const Array<std::uint32_t> slice = array.slice(0, 1000);
  test::Thread user([&slice] {
    for (int i = 0; i < 50; ++i) EXPECT_EQ(slice.to_vector(), numbers(0, 1000));
  });
  for (std::uint32_t i = 1; i < 200; ++i) array.append(numbers(1000 * i, 1000));
  user.join();
  expect_numbers(array, 200'000);
}

TEST_P(GrowingArrayOn, DoesNotShrinkWhileOthersShareIt) {
  Numbers array = Numbers::make(device);
  array.append(numbers(0, 1000));
  std::optional<Array<std::uint32_t>> slice = array.slice(10, 5);
  const Failure no = refused(array.try_clear(), ErrorCode::access_conflict);
  EXPECT_EQ(no.number("handles"), 1u);
  refused(array.try_resize(999, stream), ErrorCode::access_conflict);
  refused(array.try_shrink_to_fit(stream), ErrorCode::access_conflict);
  EXPECT_EQ(slice->to_vector(), numbers(10, 5));
  expect_numbers(array, 1000);
  slice.reset();
  array.clear();
  EXPECT_TRUE(array.empty());
}

TEST_P(GrowingArrayOn, DoesNotShrinkWhileItIsLeasedOrExported) {
  Numbers array = Numbers::make(device);
  array.append(numbers(0, 1000));
  if (array.array().buffer().reach().host_reads) {
    const HostView<const std::uint32_t> lease = array.array().buffer().read_host<std::uint32_t>();
    refused(array.try_clear(), ErrorCode::access_conflict);
    EXPECT_EQ(lease[999], 999u);
    if (!moves()) array.append(numbers(1000, 1 * mib));
    EXPECT_EQ(lease[999], 999u);
  }
  array.resize(1000, stream);
  Export exported = Export::try_begin(array.storage()).value();
  refused(array.try_clear(), ErrorCode::access_conflict);
  exported.end();
  if (!device.info().is_host) {
    // The consumer's work is unknown to every stream.
    refused(array.try_shrink_to_fit(stream), ErrorCode::access_conflict);
    device.synchronize();
  }
  array.shrink_to_fit(stream);
  expect_numbers(array, 1000);
}

TEST_P(GrowingArrayOn, KeepsItsElementsAliveInSlices) {
  Array<std::uint32_t> slice;
  {
    Numbers array = Numbers::make(device);
    array.append(numbers(0, 1000));
    slice = array.slice(10, 5);
  }
  EXPECT_EQ(slice.to_vector(), numbers(10, 5));
  refused(slice.try_resize(2 * mib, stream), ErrorCode::invalid_argument);
}

TEST_P(GrowingArrayOn, IsNotResizedByAnArrayOfItsElements) {
  Numbers array = Numbers::make(device);
  array.reserve(4000, stream);
  array.append(numbers(0, 1000));
  Array<std::uint32_t> all = array.array();
  EXPECT_EQ(bool(all.try_resize(2000, stream)), moves());  // a copy in other memory
  EXPECT_EQ(array.size(), 1000u);
  array.push_back(1000, stream);
  expect_numbers(array, 1001);
}

TEST_P(GrowingArrayOn, AppendsItsOwnElements) {
  Numbers array = Numbers::make(device);
  array.append(numbers(0, 1000));
  array.reserve(2000, stream);
  array.append(array.array(), stream);
  std::vector<std::uint32_t> twice = numbers(0, 1000);
  twice.insert(twice.end(), twice.begin(), twice.begin() + 1000);
  EXPECT_EQ(array.to_vector(), twice);
}

TEST_P(GrowingArrayOn, HasLargeElements) {
  struct Row {
    std::array<std::uint64_t, 7> values;
    bool operator==(const Row&) const = default;
  };
  GrowingArray<Row> rows = GrowingArray<Row>::make(device);
  for (std::uint64_t i = 0; i < 3; ++i) rows.push_back({{i, 1, 2, 3, 4, 5, 6 + i}}, stream);
  EXPECT_EQ(rows.to_vector(),
            (std::vector<Row>{
                {{0, 1, 2, 3, 4, 5, 6}}, {{1, 1, 2, 3, 4, 5, 7}}, {{2, 1, 2, 3, 4, 5, 8}}}));
}

TEST_P(GrowingArrayOn, RefusesStreamsOfOtherDevices) {
  const Device other = sim::open({});
  const Stream foreign(other);
  Numbers array = Numbers::make(device);
  const std::vector<std::uint32_t> host = numbers(0, 10);
  refused(array.try_append(host, foreign), ErrorCode::device_mismatch);
  refused(array.try_push_back(0, foreign), ErrorCode::device_mismatch);
  refused(array.try_resize(10, foreign), ErrorCode::device_mismatch);
  EXPECT_TRUE(array.empty());
}

TEST_P(GrowingArrayOn, DoesNotGrowInACapture) {
  if (!device.can(Capability::graphs)) GTEST_SKIP() << "has no graphs";
  Numbers array = Numbers::make(device);
  array.append(numbers(0, 10));
  const std::vector<std::uint32_t> host = numbers(10, 10);
  GraphCapture capture(stream);
  refused(array.try_append(host, stream), ErrorCode::stream_misuse);
  refused(array.try_push_back(10, stream), ErrorCode::stream_misuse);
  refused(array.try_resize(20, stream), ErrorCode::stream_misuse);
  refused(array.try_reserve(2 * mib, stream), ErrorCode::stream_misuse);
  EXPECT_EQ(array.size(), 10u);
  static_cast<void>(capture.end());
  array.append(host, stream);
  expect_numbers(array, 20);
}

TEST_P(GrowingArrayOn, IsAnArgumentOfKernels) {
  if (!device.can(Capability::kernels) || device.info().backend == "opencl" ||
      device.spec().starts_with("cuda")) {
    GTEST_SKIP() << "runs no C++ functions";
  }
  const Kernel twice = Kernel::from_function(
      device, "twice",
      [](View<const std::uint32_t> from, View<std::uint32_t> to, View<std::uint32_t> total) {
        for (std::size_t i = 0; i < from.size(); ++i) {
          to[i] = 2 * from[i];
          total[0] += from[i];
        }
      });
  Numbers array = Numbers::make(device), doubled = Numbers::make(device);
  array.append(numbers(0, 100));
  doubled.resize(100, stream);
  auto total = Scalar<std::uint32_t>::make(device, 5, stream);
  twice.launch(stream, elements(1), in(array), out(doubled), inout(total));
  EXPECT_EQ(total.get(stream), 4955u);
  twice.launch(stream, elements(1), in(doubled), inout(doubled), inout(total));
  EXPECT_EQ(total.get(stream), 4955u + 19800u);
  EXPECT_EQ(doubled.slice(99, 1).to_vector(), (std::vector<std::uint32_t>{4 * 99}));
  doubled.clear();
  twice.launch(stream, elements(0), in(doubled), out(doubled), inout(total));
  Numbers moved = std::move(array);
  refused(twice.try_launch(stream, elements(1), in(array), out(doubled), inout(total)),
          ErrorCode::not_allocated);
}

TEST(GrowingArray, DoesNotKeepItsDeviceOpenAfterAnExport) {
  std::shared_ptr<test::Ledger> ledger;
  {
    const test::FakeDevice fake({.describe = [](DeviceInfo& info) { info.is_host = false; }});
    ledger = fake.ledger;
    Numbers array = Numbers::make(fake.device);
    array.append(numbers(0, 1000));
    Export::try_begin(array.storage()).value().end();
  }
  EXPECT_TRUE(ledger->has_closed());
}

// --- The checker

class GrowingArrayOnSim : public testing::Test {
 protected:
  Device device =
      sim::open({.policy = sim::Policy::lazy, .print_findings = false, .memory_bytes = 512 * mib});
  Stream stream{device}, other{device};
  Numbers array = Numbers::make(device);
};

TEST_F(GrowingArrayOnSim, FreesPagesBehindTheirUsers) {
  array.resize(8 * mib, stream);
  array.array().fill(1, stream);
  array.clear();
  array.shrink_to_fit(stream);
  EXPECT_EQ(array.statistics().resident_bytes, 32 * mib);
  EXPECT_EQ(array.statistics().pending_bytes, 32 * mib);
  EXPECT_FALSE(stream.is_idle());
  stream.synchronize();
  EXPECT_EQ(array.reclaim(), 32 * mib);
  EXPECT_EQ(array.statistics().resident_bytes, 0u);
  EXPECT_TRUE(sim::findings(device).empty());
}

TEST_F(GrowingArrayOnSim, TakesPendingPagesBackInOrder) {
  array.resize(8 * mib, stream);
  array.array().fill(1, stream);
  array.clear();
  array.shrink_to_fit(stream);
  array.resize(8 * mib, other);
  EXPECT_EQ(array.statistics().pending_bytes, 0u);
  array.array().fill(2, other);  // waits for the first fill
  EXPECT_EQ(array.slice(8 * mib - 1, 1).to_vector(), (std::vector<std::uint32_t>{2}));
  EXPECT_TRUE(sim::findings(device).empty());
}

TEST_F(GrowingArrayOnSim, ReportsTheUseOfPagesThatWereShrunkAway) {
  array.resize(8 * mib, stream);
  View<std::uint32_t> stale = array.kernel_view(stream, Access::discard);
  stream.fill(reinterpret_cast<std::byte*>(stale.data()), stale.size() * 4, std::byte{1});
  stream.synchronize();
  array.clear();
  array.shrink_to_fit(stream);
  stream.synchronize();
  EXPECT_EQ(array.reclaim(), 32 * mib);
  refused(stream.try_fill(reinterpret_cast<std::byte*>(stale.data()), 4, std::byte{2}),
          ErrorCode::violation);
  ASSERT_EQ(sim::findings(device).size(), 1u);
  EXPECT_EQ(sim::findings(device)[0].code, FindingCode::use_after_free);
}

TEST_F(GrowingArrayOnSim, IsOrderedBetweenStreams) {
  const std::vector<std::uint32_t> host = numbers(0, 1000);
  array.append(host, stream);
  array.append(host, other);
  array.array().fill(7, stream);
  EXPECT_EQ(array.to_vector(), std::vector<std::uint32_t>(2000, 7));
  EXPECT_TRUE(sim::findings(device).empty());
}

// --- Faults

/// Calls `grow` on an array of 1000 numbers, and fails each driver call in turn.
template <class Grow>
void fail_each_call(Grow grow, bool has_virtual_memory) {
  for (std::size_t at = 1;; ++at) {
    test::FakeDevice fake({.describe = [&](DeviceInfo& info) {
      if (!has_virtual_memory) {
        info.capabilities = info.capabilities.without(Capability::virtual_memory);
      }
    }});
    Stream stream(fake.device);
    const BudgetHandle budget = test::limited(1 * gib);
    bool has_failed = false;
    {
      Numbers array = Numbers::make(fake.device, {.budget = budget});
      array.append(numbers(0, 1000));
      stream.synchronize();
      const std::size_t failures = fake.ledger->failures();
      fake.ledger->fail_at(at);
      const bool is_done = grow(array, stream);
      has_failed = fake.ledger->failures() != failures;
      fake.ledger->fail_at(0);
      EXPECT_EQ(array.size() != 1000, is_done) << at;
      EXPECT_EQ(array.slice(0, 1000).to_vector(), numbers(0, 1000)) << at;
      if (has_virtual_memory) {
        EXPECT_EQ(budget->used_bytes(), array.statistics().resident_bytes) << at;
      }
      EXPECT_TRUE(grow(array, stream)) << at;
      fake.device.synchronize();
    }
    fake.device.synchronize();
    static_cast<void>(reclaim_deferred());
    budget->drain();
    EXPECT_EQ(budget->charged_bytes(), 0u) << at;
    if (!has_failed) {
      EXPECT_GT(at, 1u);
      return;
    }
  }
}

TEST(GrowingArrayFaults, OfAnAppendChangeNothing) {
  const std::vector<std::uint32_t> host = numbers(0, 2 * mib);
  for (const bool has_virtual_memory : {true, false}) {
    fail_each_call(
        [&](Numbers& array, StreamRef stream) { return bool(array.try_append(host, stream)); },
        has_virtual_memory);
  }
}

TEST(GrowingArrayFaults, OfAPushBackChangeNothing) {
  for (const bool has_virtual_memory : {true, false}) {
    fail_each_call(
        [](Numbers& array, StreamRef stream) { return bool(array.try_push_back(7, stream)); },
        has_virtual_memory);
  }
}

// --- A model

/// Random programs on an array and a std::vector, under a budget, with faults.
void run_programs(const Device& device, test::Ledger* ledger, unsigned seeds) {
  for (unsigned seed = 0; seed < seeds; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const auto up_to = [&](std::size_t max) {
      return std::uniform_int_distribution<std::size_t>(0, max)(random);
    };
    const BudgetHandle budget = test::limited(12 * mib);
    const Stream streams[2] = {Stream(device), Stream(device)};
    std::vector<std::uint32_t> model;
    std::uint32_t next = 0;
    {
      Numbers array = Numbers::make(device, {.reserved_bytes = 16 * mib, .budget = budget});
      for (int step = 0; step < 40; ++step) {
        const Stream& stream = streams[up_to(1)];
        if (ledger != nullptr && up_to(3) == 0) ledger->fail_at(1 + up_to(5));
        const std::vector<std::uint32_t> added =
            numbers(next, up_to(19) == 0 ? up_to(2 * mib) : up_to(5000));
        bool is_done = true;
        switch (up_to(7)) {
          case 0:
          case 1:
          case 2:
            is_done = bool(up_to(1) ? array.try_append(added)
                           : array.try_append(Array<std::uint32_t>::from(device, added), stream)
                               ? Result<void>()
                               : Result<void>(Failure(ErrorCode::driver)));
            if (is_done) model.insert(model.end(), added.begin(), added.end());
            break;
          case 3:
            is_done = bool(array.try_push_back(next, stream));
            if (is_done) model.push_back(next);
            break;
          case 4: {
            const std::size_t count = up_to(model.size());
            is_done = bool(array.try_resize(count, stream));
            if (is_done) model.resize(count);
            break;
          }
          case 5:
            is_done = bool(array.try_reserve(model.size() + up_to(1 * mib), stream));
            break;
          case 6:
            is_done = bool(array.try_shrink_to_fit(stream));
            break;
          case 7:
            is_done = up_to(3) != 0 || array.try_clear();
            if (array.empty()) model.clear();
            break;
        }
        if (ledger != nullptr) ledger->fail_at(0);
        next += 10'000;
        ASSERT_EQ(array.size(), model.size()) << step;
        ASSERT_GE(array.capacity(), model.size()) << step;
        ASSERT_LE(budget->charged_bytes(), 12 * mib) << step;
        if (device.can(Capability::virtual_memory)) {
          ASSERT_EQ(budget->used_bytes(), array.statistics().resident_bytes) << step;
          ASSERT_EQ(array.statistics().moved.copies, 0u) << step;
        }
        if (step % 8 == 0) {
          ASSERT_TRUE(array.to_vector() == model) << step;
        }
      }
      ASSERT_TRUE(array.to_vector() == model);
    }
    device.synchronize();
    static_cast<void>(reclaim_deferred());
    budget->drain();
    ASSERT_EQ(budget->charged_bytes(), 0u);
  }
}

TEST(GrowingArrayModel, HoldsOnTheSimulatedDevice) {
  const Device device = sim::open({.memory_bytes = 256 * mib});
  run_programs(device, nullptr, 4);
  EXPECT_TRUE(sim::findings(device).empty());
}

TEST(GrowingArrayModel, HoldsWithFaults) {
  const test::FakeDevice fake;
  run_programs(fake.device, fake.ledger.get(), 12);
}

TEST(GrowingArrayModel, HoldsByCopying) {
  const test::FakeDevice fake({.describe = [](DeviceInfo& info) {
    info.capabilities = info.capabilities.without(Capability::virtual_memory);
  }});
  run_programs(fake.device, nullptr, 6);
}

}  // namespace
}  // namespace tern
