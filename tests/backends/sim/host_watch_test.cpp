// Host memory that is used while a copy still needs it, the most common error in code with streams.
// The report names the line of the copy and the call that detected the error. Correct programs
// cause no report.

#include "backends/sim/host_watch.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "core/memory_tool.hpp"
#include "core/process.hpp"
#include "core/spans_in_flight.hpp"
#include "support/fake_memory_tool.hpp"
#include "tern/backends/sim.hpp"
#include "tern/buffer/array.hpp"
#include "tern/buffer/copy.hpp"
#include "tern/device/event.hpp"

namespace tern {
namespace {

constexpr std::size_t bytes = 4096;
constexpr CallSite at(std::uint32_t line) { return {"src/app.cpp", "run", line}; }

/// Pages that are gone when they are freed, as those of a large vector are.
class Pages {
 public:
  Pages()
      : address_(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
  }
  ~Pages() { munmap(address_, bytes); }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  [[nodiscard]] std::byte* data() const { return static_cast<std::byte*>(address_); }

 private:
  void* const address_;
};

class HostWatchTest : public testing::TestWithParam<sim::Policy> {
 protected:
  HostWatchTest() {
    block = static_cast<std::byte*>(
        device.allocate(MemoryKind::device, bytes, {.tag = "block", .site = at(10)}));
    stream.fill(block, bytes, std::byte{1});
    device.synchronize();
  }
  ~HostWatchTest() override { device.release(block); }
  [[nodiscard]] std::vector<Finding> found() const { return sim::findings(device); }
  /// The one finding there is.
  [[nodiscard]] std::string text() const {
    const std::vector<Finding> all = found();
    EXPECT_EQ(all.size(), 1u);
    return all.empty() ? "" : all.front().text();
  }

  test::NeverPoisons never_poisons;
  const ScopedMemoryTool scoped{never_poisons.if_needed()};
  const Device device = sim::open({.seed = 2, .policy = GetParam(), .print_findings = false});
  const Stream stream{device, {.name = "A"}};
  const Stream other{device, {.name = "B"}};
  std::byte* block = nullptr;
};

using Lazily = HostWatchTest;
using InAnyOrder = HostWatchTest;

INSTANTIATE_TEST_SUITE_P(Sim, Lazily, testing::Values(sim::Policy::lazy));
INSTANTIATE_TEST_SUITE_P(Sim, InAnyOrder,
                         testing::Values(sim::Policy::lazy, sim::Policy::eager, sim::Policy::random,
                                         sim::Policy::stall_one));

// --- Mistakes

TEST_P(Lazily, S107ASourceIsChangedBeforeTheWait) {
  std::vector<std::byte> source(bytes, std::byte{2});
  stream.copy(block, source.data(), bytes, at(20));
  source[100] = std::byte{3};
  const Result<void> waited = stream.try_synchronize();
  ASSERT_FALSE(waited);
  EXPECT_EQ(waited.failure().code(), ErrorCode::violation);
  EXPECT_EQ(
      text(),
      R"(TERN-S107 changed-in-flight                     sim:0  seed 0x2  schedule lazy  step 10
  what    host memory was changed or freed while A@2 could still read it
  now     H0@2  synchronize() detects the change before A@2 ran
  before  A@2   copy [host+0x100000000000, +4 KiB) to [0x0, +4 KiB)  src/app.cpp:20 in run
  fix     keep the memory unchanged until the host has waited for A@2
  replay  TERN_SIM_SEED=0x2 TERN_SIM_SCHEDULE=lazy
)");
  // It is told once, and everything goes on.
  EXPECT_TRUE(stream.try_synchronize());
}

TEST_P(Lazily, S107ADestinationIsWrittenBeforeTheWait) {
  std::vector<std::byte> destination(bytes);
  stream.copy(destination.data(), block, bytes, at(20));
  destination[4095] = std::byte{3};
  ASSERT_FALSE(stream.try_synchronize());
  EXPECT_EQ(
      text(),
      R"(TERN-S107 changed-in-flight                     sim:0  seed 0x2  schedule lazy  step 10
  what    host memory was changed or freed while A@2 could still write it
  now     H0@2  synchronize() detects the change before A@2 ran
  before  A@2   copy [0x0, +4 KiB) to [host+0x100000000000, +4 KiB)  src/app.cpp:20 in run
  fix     keep the memory unchanged until the host has waited for A@2
  replay  TERN_SIM_SEED=0x2 TERN_SIM_SCHEDULE=lazy
)");
  // It may have been freed, and belong to somebody else: it is not written.
  EXPECT_EQ(destination[0], sim::in_flight_byte);
}

TEST_P(Lazily, S108ASourceIsFreedBeforeTheWait) {
  auto source = std::make_unique<Pages>();
  stream.copy(block, source->data(), bytes, at(20));
  source.reset();
  ASSERT_FALSE(stream.try_synchronize());
  EXPECT_EQ(
      text(),
      R"(TERN-S108 freed-in-flight                       sim:0  seed 0x2  schedule lazy  step 10
  what    host memory was freed while A@2 could still read it
  now     H0@2  synchronize() detects the change before A@2 ran
  before  A@2   copy [host+0x100000000000, +4 KiB) to [0x0, +4 KiB)  src/app.cpp:20 in run
  fix     keep the memory unchanged until the host has waited for A@2
  replay  TERN_SIM_SEED=0x2 TERN_SIM_SCHEDULE=lazy
)");
}

TEST_P(InAnyOrder, FreedMemoryIsNeverACrash) {
  auto source = std::make_unique<Pages>();
  auto destination = std::make_unique<Pages>();
  stream.copy(block, source->data(), bytes, at(20));
  stream.copy(destination->data(), block, bytes, at(21));
  source.reset();
  destination.reset();
  EXPECT_FALSE(stream.try_synchronize());
  ASSERT_EQ(found().size(), 2u);
  for (const Finding& one : found()) EXPECT_EQ(one.code, FindingCode::freed_in_flight);
}

TEST_P(InAnyOrder, AChangeIsFoundWhetherTheCopyHasRunOrNot) {
  std::vector<std::byte> source(bytes, std::byte{2}), destination(bytes);
  stream.copy(block, source.data(), bytes, at(20));
  stream.copy(destination.data(), block, bytes, at(21));
  source[0] = destination[0] = std::byte{9};
  EXPECT_FALSE(device.try_synchronize());
  // A copy that ran before is looked at when the host knows of it, one that did not when it runs.
  std::multiset<std::uint32_t> lines;
  for (const Finding& one : found()) {
    EXPECT_EQ(one.code, FindingCode::changed_in_flight);
    lines.insert(one.site.line);
  }
  EXPECT_EQ(lines, (std::multiset<std::uint32_t>{20, 21}));
}

TEST_P(InAnyOrder, AChangeIsFoundThoughTheHostWaitsForAnEvent) {
  std::vector<std::byte> source(bytes, std::byte{2});
  stream.copy(block, source.data(), bytes, at(20));
  Event event(device);
  stream.record(event);
  std::ranges::fill(source, std::byte{7});
  EXPECT_FALSE(event.try_synchronize());
  EXPECT_EQ(found().size(), 1u);
}

TEST_P(InAnyOrder, AChangedVectorOfAnArrayIsFound) {
  auto array = Array<int>::zeros(device, 1000);
  std::vector<int> values(1000, 5);
  array.copy_from(values, stream);
  values[999] = 6;
  EXPECT_THROW(stream.synchronize(), Violation);
}

TEST_P(InAnyOrder, RowsAreWatchedToo) {
  std::vector<std::byte> source(bytes, std::byte{2});
  stream.copy_2d({block, 64, source.data(), 128, 64, 32}, at(20));
  source[64] = std::byte{9};  // beside the first row
  EXPECT_TRUE(stream.try_synchronize());
  stream.copy_2d({block, 64, source.data(), 128, 64, 32}, at(20));
  source[63] = std::byte{9};  // its last byte
  EXPECT_FALSE(stream.try_synchronize());
  EXPECT_EQ(found().size(), 1u);
}

TEST_P(Lazily, TheHostReadsAPatternFromWhatIsNotThereYet) {
  // The seed decides whether the copy of pageable memory returns before it has run.
  std::size_t early = 0;
  for (int i = 0; i < 16; ++i) {
    std::vector<std::byte> destination(bytes, std::byte{5});
    stream.copy(destination.data(), block, bytes);
    const bool is_there = destination == std::vector<std::byte>(bytes, std::byte{1});
    if (!is_there) {
      ++early;
      EXPECT_EQ(destination, std::vector<std::byte>(bytes, sim::in_flight_byte));
    }
    stream.synchronize();
    EXPECT_EQ(destination, std::vector<std::byte>(bytes, std::byte{1}));
  }
  EXPECT_GT(early, 0u);
  EXPECT_TRUE(found().empty());
}

// --- Correct programs

TEST_P(InAnyOrder, OneVectorMayBeTheSourceOfSeveralCopies) {
  std::vector<std::byte> source(bytes, std::byte{2});
  stream.copy(block, source.data(), bytes);
  stream.copy(block, source.data(), bytes);
  other.wait(stream.mark());
  other.copy(block, source.data(), bytes);
  device.synchronize();
  source[0] = std::byte{9};
  device.synchronize();
  EXPECT_TRUE(found().empty());
}

TEST_P(InAnyOrder, ACopyMayReadWhatAQueuedOneWrites) {
  std::vector<std::byte> between(bytes, std::byte{7}), last(bytes);
  auto* second = static_cast<std::byte*>(device.allocate(MemoryKind::device, bytes));
  stream.copy(between.data(), block, bytes);
  stream.copy(second, between.data(), bytes);
  other.wait(stream.mark());
  other.copy(last.data(), second, bytes);
  device.synchronize();
  EXPECT_EQ(last, std::vector<std::byte>(bytes, std::byte{1}));
  EXPECT_TRUE(found().empty());
  device.release(second);
}

TEST_P(InAnyOrder, ACopyMayWriteWhatAQueuedOneReads) {
  std::vector<std::byte> memory(bytes, std::byte{7});
  auto* second = static_cast<std::byte*>(device.allocate(MemoryKind::device, bytes));
  stream.copy(second, memory.data(), bytes);
  stream.copy(memory.data(), block, bytes);
  stream.copy(block, second, bytes);
  std::vector<std::byte> last(bytes);
  stream.copy(last.data(), block, bytes);
  stream.synchronize();
  EXPECT_EQ(memory, std::vector<std::byte>(bytes, std::byte{1}));
  EXPECT_EQ(last, std::vector<std::byte>(bytes, std::byte{7}));
  EXPECT_TRUE(found().empty());
  device.release(second);
}

TEST_P(InAnyOrder, TwoCopiesMayWriteOneVectorInTurn) {
  std::vector<std::byte> memory(bytes, std::byte{7});
  stream.copy(memory.data(), block, bytes);
  stream.fill(block, bytes, std::byte{2});
  stream.copy(memory.data() + 100, block, bytes - 100);
  other.wait(stream.mark());
  other.fill(memory.data(), 10, std::byte{3});
  device.synchronize();
  EXPECT_EQ(memory[0], std::byte{3});
  EXPECT_EQ(memory[10], std::byte{1});
  EXPECT_EQ(memory[100], std::byte{2});
  EXPECT_TRUE(found().empty());
}

TEST_P(InAnyOrder, AHostFunctionMayUseTheMemoryInItsTurn) {
  struct Turn {
    std::vector<std::byte> memory = std::vector<std::byte>(bytes, std::byte{7});
    std::byte seen = {};
  } turn;
  const auto look = [](void* context) noexcept {
    auto& own = *static_cast<Turn*>(context);
    own.seen = own.memory[0];
    own.memory[1] = std::byte{8};
  };
  // It reads before a copy writes, and writes between a copy that reads and the wait.
  stream.call(look, &turn);
  stream.copy(turn.memory.data(), block, bytes);
  stream.synchronize();
  EXPECT_EQ(turn.seen, std::byte{7});
  EXPECT_EQ(turn.memory[1], std::byte{1});
  stream.copy(block, turn.memory.data(), bytes);
  stream.call(look, &turn);
  stream.copy(block, turn.memory.data(), bytes);
  stream.synchronize();
  EXPECT_TRUE(found().empty());
}

TEST_P(InAnyOrder, AQueryThatSaysYesIsAWait) {
  std::vector<std::byte> source(bytes, std::byte{2});
  stream.copy(block, source.data(), bytes);
  while (!stream.is_idle()) continue;
  source[0] = std::byte{3};
  device.synchronize();
  EXPECT_TRUE(found().empty());
}

TEST_P(InAnyOrder, BlockingCopiesAreSilent) {
  auto array = Array<int>::zeros(device, 1000);
  std::vector<int> values(1000, 5);
  for (int i = 0; i < 20; ++i) {
    array.copy_from(values);
    std::ranges::fill(values, -1);
    array.copy_to(values);
    ASSERT_EQ(values, std::vector<int>(1000, 5));
  }
  EXPECT_TRUE(found().empty());
}

TEST_P(Lazily, MemoryHasItsOldBytesWhenTheDeviceIsLostBeforeTheCopy) {
  std::vector<std::byte> destination(bytes, std::byte{7});
  sim::set_faults(device, "fill#1=fault");
  stream.fill(block, bytes, std::byte{2});
  stream.copy(destination.data(), block, bytes);
  EXPECT_FALSE(stream.try_synchronize());
  EXPECT_EQ(destination, std::vector<std::byte>(bytes, std::byte{7}));
}

TEST_P(Lazily, NothingIsWatchedWithoutTheChecker) {
  const Device unchecked = sim::open({.policy = sim::Policy::lazy, .check = false});
  const Stream reader(unchecked);
  auto* memory = unchecked.allocate(MemoryKind::device, bytes);
  std::vector<std::byte> source(bytes, std::byte{7});
  reader.copy(memory, source.data(), bytes);
  source[0] = std::byte{9};
  EXPECT_TRUE(reader.try_synchronize());
  unchecked.release(memory);
}

TEST(HostWatch, ComparesNothingWhenThereIsTooMuch) {
  sim::HostWatch watch;
  std::vector<sim::HostWatch::Finding> found;
  std::vector<std::byte> memory(8, std::byte{1});
  const sim::HostWatch::Range range{memory.data(), memory.size(), false};
  std::vector<std::uint64_t> numbers;
  for (std::size_t i = 0; i <= sim::HostWatch::max_operations; ++i) {
    numbers.push_back(watch.submitted({.sequence = i}, {&range, 1}, sim::HostWatch::Kind::copy,
                                      sim::HostWatch::Queued::known_ranges, found));
  }
  memory[0] = std::byte{2};
  for (const std::uint64_t number : numbers) {
    EXPECT_TRUE(watch.runs(number, found));
    watch.has_run(number);
  }
  watch.host_learned([](ActorId, std::uint64_t) { return true; }, found);
  EXPECT_TRUE(found.empty());
  EXPECT_TRUE(watch.is_empty());
}

/// AddressSanitizer and Valgrind learn what is filled.
class HostWatchToolTest : public testing::Test {
 protected:
  std::uint64_t submit(bool is_written) {
    const sim::HostWatch::Range range{memory.data(), memory.size(), is_written};
    return watch.submitted({.device = 3}, {&range, 1}, sim::HostWatch::Kind::copy,
                           sim::HostWatch::Queued::known_ranges, found);
  }
  [[nodiscard]] bool is_closed() const { return tool.is_poisoned(memory.data(), memory.size()); }

  test::FakeMemoryTool tool;
  const ScopedMemoryTool scoped{&tool};
  std::vector<std::byte> memory = std::vector<std::byte>(64, std::byte{1});
  sim::HostWatch watch;
  std::vector<sim::HostWatch::Finding> found;
};

TEST_F(HostWatchToolTest, ADestinationIsClosedUntilItsCopyRuns) {
  const std::uint64_t number = submit(true);
  EXPECT_TRUE(is_closed());
  EXPECT_TRUE(watch.runs(number, found));
  EXPECT_EQ(tool.poisoned_bytes(), 0u);
  EXPECT_TRUE(found.empty());
}

TEST_F(HostWatchToolTest, ASourceStaysOpenAndSoDoesWhatTwoOperationsShare) {
  static_cast<void>(submit(false));
  EXPECT_EQ(tool.poisoned_bytes(), 0u);
  static_cast<void>(submit(true));
  EXPECT_EQ(tool.poisoned_bytes(), 0u);
}

TEST_F(HostWatchToolTest, OtherDevicesLeaveTheMemoryOfPendingWorkOpen) {
  const HostSpan span{memory.data(), memory.size(), HostSpan::Use::awaited};
  const std::uint64_t number = submit(false);
  const SpansNumber during = spans_submitted({&tool}, {&span, 1});
  EXPECT_EQ(tool.poisoned_bytes(), 0u);
  EXPECT_TRUE(watch.runs(number, found));
  watch.has_run(number);
  EXPECT_TRUE(found.empty());
  spans_ended(during);
  // Work that has run, or never will, does not use its memory.
  const SpansNumber after = spans_submitted({&tool}, {&span, 1});
  EXPECT_TRUE(is_closed());
  spans_ended(after);
  static_cast<void>(submit(false));
  watch.lost(3);
  EXPECT_EQ(spans_in_flight(), 0u);
}

TEST_F(HostWatchToolTest, AForkedChildMayUseItsCopyOfADestination) {
  static_cast<void>(process_generation());
  const std::uint64_t number = submit(true);
  const pid_t child = fork();
  if (child == 0) _exit(tool.poisoned_bytes() == 0 ? 0 : 1);
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(is_closed());
  EXPECT_TRUE(watch.runs(number, found));
  EXPECT_EQ(tool.poisoned_bytes(), 0u);
}

TEST_F(HostWatchToolTest, ALaterUseOpensADestination) {
  static_cast<void>(submit(true));
  EXPECT_TRUE(is_closed());
  static_cast<void>(submit(false));
  EXPECT_EQ(tool.poisoned_bytes(), 0u);
}

TEST_F(HostWatchToolTest, ALostDeviceOpensItsDestinations) {
  static_cast<void>(submit(true));
  watch.lost(3);
  EXPECT_EQ(tool.poisoned_bytes(), 0u);
  EXPECT_EQ(memory, std::vector<std::byte>(64, std::byte{1}));
}

TEST_F(HostWatchToolTest, AFreedDestinationIsReported) {
  const std::uint64_t number = submit(true);
  tool.free(memory.data(), memory.size());
  EXPECT_FALSE(watch.runs(number, found));
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found.front().change, sim::HostWatch::Change::freed);
}

}  // namespace
}  // namespace tern
