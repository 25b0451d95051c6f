#include "tern/launch/graph.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "support/cuda_bench.hpp"
#include "support/gate.hpp"
#include "support/on_device.hpp"
#include "support/thread.hpp"
#include "tern/backends/catalog.hpp"
#include "tern/backends/sim.hpp"
#include "tern/buffer/buffer.hpp"
#include "tern/coherence/unified_buffer.hpp"
#include "tern/core/bytes.hpp"
#include "tern/device/event.hpp"
#include "tern/launch/kernel.hpp"
#include "tern/memory/arena_resource.hpp"
#include "tern/memory/budget_resource.hpp"
#include "tern/memory/pool_resource.hpp"

namespace tern::test {
namespace {

using cuda::code;

void* address_of(const Buffer& buffer) { return reinterpret_cast<void*>(buffer.address()); }

constexpr std::size_t count = 64;
constexpr std::size_t size = count * sizeof(std::uint32_t);

// --- On a device that checks the order

class GraphTest : public testing::Test {
 protected:
  /// A buffer whose elements are `value`. The stream a has written them.
  Buffer numbers(std::uint32_t value = 0) {
    Buffer made(device, Shape{count}, DType::u32);
    made.fill(value, a);
    return made;
  }
  static std::vector<std::uint32_t> all(std::uint32_t value) {
    return std::vector<std::uint32_t>(count, value);
  }
  /// A graph that copies one buffer to the other.
  Graph copy(const Buffer& to, const Buffer& from) {
    a.synchronize();
    GraphCapture capture(a);
    a.copy(address_of(to), address_of(from), size);
    return capture.end();
  }
  [[nodiscard]] std::string found() const {
    std::string codes;
    for (const Finding& finding : sim::findings(device)) {
      codes += (codes.empty() ? "" : " ") + code_text(finding.code);
    }
    return codes;
  }

  void TearDown() override {
    device.synchronize();
    EXPECT_EQ(found(), planted);
    EXPECT_EQ(poll_graphs(), 0u);
  }

  Device device = sim::open({.policy = sim::Policy::lazy, .print_findings = false});
  Stream a{device, {.name = "a"}}, b{device, {.name = "b"}}, c{device, {.name = "c"}};
  std::string planted = {};  // findings that the test has provoked
};

TEST_F(GraphTest, RunsAtEachLaunchWithTheContentsOfThatMoment) {
  Buffer from = numbers(1), to = numbers(2);
  const Graph graph = copy(to, from);
  EXPECT_EQ(to.to_vector<std::uint32_t>(), all(2));
  for (const std::uint32_t value : {3u, 4u}) {
    from.fill(value, b);
    graph.launch(c, in(from), out(to));
    EXPECT_EQ(to.to_vector<std::uint32_t>(), all(value));
  }
}

TEST_F(GraphTest, PutsItsUsesInOrderLikeALaunchOfAKernel) {
  Buffer from = numbers(1), to = numbers(2);
  const Graph graph = copy(to, from);
  const std::uint64_t hold = sim::hold(b);
  from.fill(5u, b);
  const std::uint64_t waits = sim::calls(device, "wait");
  const Mark mark = graph.launch(c, in(from), inout(to));
  EXPECT_EQ(sim::calls(device, "wait"), waits + 1) << "for b, and not for a, which is done";
  EXPECT_EQ(mark.stream, c.id());
  EXPECT_FALSE(to.storage()->uses().try_is_ready(Access::read).value());
  EXPECT_FALSE(from.storage()->uses().try_is_ready(Access::discard).value());
  sim::resume(device, hold);
  to.fill(6u, a);  // after the launch
  EXPECT_EQ(to.to_vector<std::uint32_t>(), all(6));
  EXPECT_TRUE(Device::is_done(mark));
}

TEST_F(GraphTest, CapturesStreamsThatJoin) {
  Buffer x = numbers(1), y = numbers(2), z = numbers(3);
  a.synchronize();
  Event forked(device), joined(device);
  GraphCapture capture(a);
  EXPECT_TRUE(capture.is_active());
  EXPECT_EQ(capture.stream(), a);
  a.copy(address_of(y), address_of(x), size);
  a.record(forked);
  b.wait(forked);
  b.copy(address_of(z), address_of(y), size);
  b.record(joined);
  a.wait(joined);
  a.fill(static_cast<std::uint32_t*>(address_of(y)), count, 9u);
  const Graph graph = capture.end();
  EXPECT_FALSE(capture.is_active());
  x.fill(7u, c);
  graph.launch(c, in(x), out(y), out(z));
  graph.launch(a, in(x), out(y), out(z));
  EXPECT_EQ(y.to_vector<std::uint32_t>(), all(9));
  EXPECT_EQ(z.to_vector<std::uint32_t>(), all(7));
}

TEST_F(GraphTest, CapturesKernels) {
  Buffer x = numbers(1);
  a.synchronize();
  const Kernel add = Kernel::from_function(
      device, "add", +[](View<std::uint32_t> values, std::uint32_t more) {
        for (std::uint32_t& value : values) value += more;
      });
  GraphCapture capture(a);
  add.launch(a, elements(count), inout(x), 2u);
  add.launch(a, elements(count), inout(x), 3u);
  const Graph graph = capture.end();
  for (int i = 0; i < 3; ++i) graph.launch(b, inout(x));
  EXPECT_EQ(x.to_vector<std::uint32_t>(), all(16));
}

// --- Uses that are captured

class CapturedUsesTest : public GraphTest {
 protected:
  /// Adds a value to every element.
  Kernel add = Kernel::from_function(
      device, "add", +[](View<std::uint32_t> values, std::uint32_t more) {
        for (std::uint32_t& value : values) value += more;
      });
  Kernel copy_all = Kernel::from_function(
      device, "copy_all", +[](View<const std::uint32_t> from, View<std::uint32_t> to) {
        for (std::size_t i = 0; i < to.size(); ++i) to[i] = from[i];
      });
};

TEST_F(CapturedUsesTest, AreDeclaredAtEachLaunch) {
  Buffer x = numbers(1), y = numbers(2);
  GraphCapture capture(a);
  copy_all.launch(a, elements(count), in(x), out(y));
  add.launch(a, elements(count), inout(y), 3u);
  const Graph graph = capture.end();
  EXPECT_EQ(y.to_vector<std::uint32_t>(), all(2));
  for (const std::uint32_t value : {10u, 20u}) {
    const std::uint64_t hold = sim::hold(b);
    x.fill(value, b);
    graph.launch(c);
    EXPECT_FALSE(y.storage()->uses().try_is_ready(Access::read).value());
    sim::resume(device, hold);
    EXPECT_EQ(y.to_vector<std::uint32_t>(), all(value + 3));
  }
}

TEST_F(CapturedUsesTest, NeedNoWaitDuringTheCapture) {
  Buffer x = numbers(1);
  const std::uint64_t hold = sim::hold(b);
  x.fill(5u, b);
  GraphCapture capture(a);
  add.launch(a, elements(count), inout(x), 1u);  // could not wait for b
  const Graph graph = capture.end();
  EXPECT_FALSE(x.storage()->uses().try_is_ready(Access::read).value());
  graph.launch(a);
  sim::resume(device, hold);
  EXPECT_EQ(x.to_vector<std::uint32_t>(), all(6));
}

TEST_F(CapturedUsesTest, IncludeThoseOfStreamsThatJoin) {
  Buffer x = numbers(1), y = numbers(2);
  a.synchronize();
  Event forked(device), joined(device);
  GraphCapture capture(a);
  a.record(forked);
  b.wait(forked);
  add.launch(b, elements(count), inout(x), 1u);
  b.record(joined);
  add.launch(a, elements(count), inout(y), 1u);
  a.wait(joined);
  add.launch(c, elements(count), inout(y), 100u);  // not captured
  const Graph graph = capture.end();
  graph.launch(c);
  x.fill(50u, a);  // after the launch
  EXPECT_EQ(x.to_vector<std::uint32_t>(), all(50));
  EXPECT_EQ(y.to_vector<std::uint32_t>(), all(103));
}

TEST_F(CapturedUsesTest, AreAddedToThoseOfTheLaunch) {
  Buffer x = numbers(1), y = numbers(2);
  a.synchronize();
  GraphCapture capture(a);
  add.launch(a, elements(count), inout(x), 1u);
  a.copy(address_of(y), address_of(x), size);
  const Graph graph = capture.end();
  graph.launch(b, in(x), out(y));
  EXPECT_EQ(y.to_vector<std::uint32_t>(), all(2));
}

TEST_F(CapturedUsesTest, KeepBuffersAndKernelsAlive) {
  Buffer y = numbers(2);
  std::optional<Buffer> x(numbers(1));
  GraphCapture capture(a);
  copy_all.launch(a, elements(count), in(*x), out(y));
  const Graph graph = capture.end();
  a.synchronize();
  x.reset();
  copy_all = Kernel();
  EXPECT_EQ(poll_kernels(), 0u);
  graph.launch(b);
  EXPECT_EQ(y.to_vector<std::uint32_t>(), all(1));
}

TEST_F(CapturedUsesTest, OutliveAGraphThatIsInFlight) {
  Buffer y = numbers(2);
  const std::uint64_t hold = sim::hold(b);
  EXPECT_EQ(poll_kernels(), 0u);
  {
    const Buffer x = numbers(1);
    GraphCapture capture(a);
    copy_all.launch(a, elements(count), in(x), out(y));
    const Graph graph = capture.end();
    graph.launch(b);
  }
  a.synchronize();
  copy_all = Kernel();
  EXPECT_EQ(poll_graphs(), 1u);
  sim::resume(device, hold);
  EXPECT_EQ(y.to_vector<std::uint32_t>(), all(1));
  EXPECT_EQ(poll_kernels(), 0u);
}

TEST(CapturedKernel, IsNotUnloadedBeforeTheLastLaunchOfItsGraph) {
  const Device device = sim::open({.policy = sim::Policy::eager});
  const Stream a(device), b(device);
  Kernel kernel = Kernel::from_function(device, "nothing", [](const KernelCall&) {});
  std::optional<GraphCapture> capture(a);
  kernel.launch(a, elements(1));
  std::optional<Graph> graph = capture->end();
  const std::uint64_t hold = sim::hold(b);
  graph->launch(b);
  graph.reset();
  kernel = Kernel();
  EXPECT_EQ(poll_graphs(), 1u);
  EXPECT_EQ(poll_kernels(), 1u);
  sim::resume(device, hold);
  b.synchronize();
  EXPECT_EQ(poll_graphs(), 0u);
  EXPECT_EQ(poll_kernels(), 0u);
}

TEST_F(CapturedUsesTest, AreForgottenIfTheCaptureIsDiscarded) {
  Buffer x = numbers(1);
  a.synchronize();
  {
    const GraphCapture capture(b);
    add.launch(b, elements(count), inout(x), 1u);
  }
  const std::uint64_t hold = sim::hold(b);
  add.launch(b, elements(count), inout(x), 2u);
  EXPECT_FALSE(x.storage()->uses().try_is_ready(Access::read).value());
  sim::resume(device, hold);
  EXPECT_EQ(x.to_vector<std::uint32_t>(), all(3));
}

TEST_F(CapturedUsesTest, AreCheckedDuringTheCapture) {
  Buffer unwritten(device, Shape{count}, DType::u32), x = numbers(1);
  auto unified = UnifiedBuffer<std::uint32_t>::try_make(Shape{count}, {.device = device}).value();
  GraphCapture capture(a);
  EXPECT_EQ(code(copy_all.try_launch(a, elements(count), in(unwritten), out(x))), "never_written");
  EXPECT_EQ(code(add.try_launch(a, elements(count), inout(unified), 1u)), "stream_misuse");
  // What captured work writes can be read by later captured work.
  copy_all.launch(a, elements(count), in(x), out(unwritten));
  copy_all.launch(a, elements(count), in(unwritten), out(x));
  capture.end().launch(b);
  EXPECT_EQ(unwritten.to_vector<std::uint32_t>(), all(1));
}

TEST_F(CapturedUsesTest, AreRefusedIfTheirCaptureIsNotKnown) {
  Buffer x = numbers(1);
  Event forked(device);
  GraphCapture first(a), second(b);
  a.record(forked);
  c.wait(forked);
  const Result<Mark> launched = add.try_launch(c, elements(count), inout(x), 1u);
  ASSERT_EQ(code(launched), "stream_misuse");
  EXPECT_EQ(launched.failure().string("why"), "the device has several open captures");
}

TEST_F(GraphTest, RunsOneLaunchAtATimeOnWhateverStream) {
  Buffer x = numbers(1);
  a.synchronize();
  GraphCapture capture(a);
  a.fill(static_cast<std::uint32_t*>(address_of(x)), count, 8u);
  const Graph graph = capture.end();
  graph.launch(a);
  graph.launch(b);  // would race with the launch on a
  b.synchronize();
  EXPECT_EQ(x.to_vector<std::uint32_t>(), all(8));
}

TEST_F(GraphTest, IsAHandleThatKeepsItsDeviceOpen) {
  Graph graph;
  {
    const Device brief = sim::open({.policy = sim::Policy::lazy});
    const Stream stream(brief);
    GraphCapture capture(stream);
    graph = capture.end();
    EXPECT_EQ(graph.device(), brief);
  }
  EXPECT_TRUE(graph);
  EXPECT_NE(graph.native().value, 0u);
  const Graph copied = graph;
  EXPECT_EQ(copied, graph);
  const Stream stream(graph.device());
  const Graph moved = std::move(graph);
  EXPECT_FALSE(graph);
  moved.launch(stream);
}

TEST_F(GraphTest, IsDestroyedAfterItsLastLaunchWithoutAWait) {
  Buffer from = numbers(1), to = numbers(2);
  std::optional<Graph> graph = copy(to, from);
  const std::uint64_t hold = sim::hold(b);
  graph->launch(b, in(from), out(to));
  graph.reset();
  EXPECT_EQ(poll_graphs(), 1u);
  sim::resume(device, hold);
  b.synchronize();
  EXPECT_EQ(poll_graphs(), 0u);
  EXPECT_EQ(to.to_vector<std::uint32_t>(), all(1));
}

TEST_F(GraphTest, ThatIsInFlightDoesNotKeepADeviceOpen) {
  std::optional<Device> brief = sim::open({.policy = sim::Policy::lazy});
  std::optional<Stream> stream(*brief);
  {
    GraphCapture capture(*stream);
    capture.end().launch(*stream);
  }
  EXPECT_EQ(poll_graphs(), 1u);
  stream.reset();
  brief.reset();
  EXPECT_EQ(poll_graphs(), 0u);
}

TEST_F(GraphTest, OwnsTheResourceOfItsMemoryUntilItsLastLaunchIsDone) {
  auto memory = std::make_shared<PoolResource>(device);
  const std::weak_ptr<PoolResource> watched = memory;
  Buffer to(device, Shape{count}, DType::u32);
  to.fill(0u, a);
  std::optional<Graph> graph;
  {
    Buffer scratch(device, Shape{count}, DType::u32, {.resource = memory});
    scratch.fill(1u, a);
    a.synchronize();
    GraphCapture capture(a, std::move(memory));
    a.fill(static_cast<std::uint32_t*>(address_of(scratch)), count, 4u);
    a.copy(address_of(to), address_of(scratch), size);
    graph = capture.end();
    graph->launch(b, out(to), out(scratch));
    b.synchronize();
  }
  EXPECT_FALSE(watched.expired());
  graph.reset();
  EXPECT_TRUE(watched.expired());
  EXPECT_EQ(to.to_vector<std::uint32_t>(), all(4));
}

TEST_F(GraphTest, UsesMemoryThatWasAllocatedAndFreedInTheCapture) {
  const auto memory = std::make_shared<PoolResource>(device);
  Buffer from = numbers(1), to = numbers(2);
  a.synchronize();
  GraphCapture capture(a, memory);
  for (int i = 0; i < 2; ++i) {
    const Buffer scratch =
        Buffer::allocate(device, Shape{count}, DType::u32, {.resource = memory, .stream = a});
    a.copy(address_of(scratch), address_of(from), size);
    a.copy(address_of(to), address_of(scratch), size);
  }
  const Graph graph = capture.end();
  for (const std::uint32_t value : {3u, 4u}) {
    from.fill(value, b);
    graph.launch(c, in(from), out(to));
    EXPECT_EQ(to.to_vector<std::uint32_t>(), all(value));
  }
}

TEST_F(GraphTest, HasAnArenaOfTheRehearsedSizeThatABudgetCharges) {
  const BudgetHandle budget = Budget::make("graphs", BudgetLimit::bytes(64 * mib));
  const auto limited =
      std::make_shared<BudgetResource>(std::make_shared<PoolResource>(device), budget);
  Buffer from = numbers(1), to = numbers(2);
  const auto step = [&](const std::shared_ptr<ArenaResource>& memory) {
    for (int i = 0; i < 3; ++i) {
      const Buffer scratch =
          Buffer::allocate(device, Shape{count}, DType::u32, {.resource = memory, .stream = a});
      a.copy(address_of(scratch), address_of(from), size);
      a.copy(address_of(to), address_of(scratch), size);
    }
  };
  auto rehearsal = std::make_shared<ArenaResource>(limited, ArenaOptions{.rehearse = true});
  step(rehearsal);
  const std::size_t needed = rehearsal->needed_bytes();
  EXPECT_GE(needed, size);
  EXPECT_LT(needed, 2 * size + 256) << "the stream uses what it has freed again";
  a.synchronize();
  rehearsal.reset();
  budget->drain();
  EXPECT_EQ(budget->charged_bytes(), 0u);
  std::optional<Graph> graph;
  {
    auto arena = std::make_shared<ArenaResource>(
        limited, ArenaOptions{.bytes = needed, .may_grow = false});
    GraphCapture capture(a, arena);
    step(arena);
    graph = capture.end();
  }
  const std::size_t charged = budget->charged_bytes();
  EXPECT_GE(charged, needed);
  for (const std::uint32_t value : {3u, 4u}) {
    from.fill(value, b);
    graph->launch(c, in(from), out(to));
    EXPECT_EQ(to.to_vector<std::uint32_t>(), all(value));
  }
  EXPECT_EQ(budget->charged_bytes(), charged) << "launches charge nothing";
  graph.reset();
  budget->drain();
  EXPECT_EQ(budget->charged_bytes(), 0u);
}

TEST_F(GraphTest, KeepsMemoryThatWasAllocatedInTheCaptureUntilItsBufferIsDestroyed) {
  const auto memory = std::make_shared<PoolResource>(device);
  Buffer from = numbers(1);
  a.synchronize();
  GraphCapture capture(a, memory);
  Buffer result =
      Buffer::allocate(device, Shape{count}, DType::u32, {.resource = memory, .stream = a});
  a.copy(address_of(result), address_of(from), size);
  const Graph graph = capture.end();
  for (const std::uint32_t value : {3u, 4u}) {
    from.fill(value, b);
    graph.launch(c, in(from), out(result));
    EXPECT_EQ(result.to_vector<std::uint32_t>(), all(value));
  }
}

TEST_F(GraphTest, ForgetsTheMemoryOfACaptureThatIsDiscarded) {
  const auto memory = std::make_shared<PoolResource>(device);
  std::optional<Buffer> kept;
  {
    const GraphCapture capture(a, memory);
    static_cast<void>(
        Buffer::allocate(device, Shape{count}, DType::u32, {.resource = memory, .stream = a}));
    kept = Buffer::allocate(device, Shape{count}, DType::u32, {.resource = memory, .stream = a});
  }
  kept->fill(1u, b);
  EXPECT_EQ(kept->to_vector<std::uint32_t>(), all(1));
}

TEST_F(GraphTest, WaitsForItsLastLaunchBeforeItReleasesItsResource) {
  const auto memory = std::make_shared<PoolResource>(device);
  GraphCapture capture(a, memory);
  std::optional<Graph> graph = capture.end();
  const Mark mark = graph->launch(b);
  EXPECT_EQ(memory.use_count(), 2);
  graph.reset();
  EXPECT_TRUE(Device::is_done(mark));
  EXPECT_EQ(memory.use_count(), 1);
}

TEST_F(GraphTest, ReleasesTheResourceOfACaptureThatMakesNoGraph) {
  const auto memory = std::make_shared<PoolResource>(device);
  { const GraphCapture abandoned(a, memory); }
  EXPECT_EQ(memory.use_count(), 1);
  GraphCapture capture(a, memory);
  EXPECT_EQ(code(a.try_synchronize()), "stream_misuse");
  EXPECT_EQ(code(capture.try_end()), "stream_misuse");
  EXPECT_EQ(memory.use_count(), 1);
}

TEST_F(GraphTest, IsNotMadeByACaptureThatIsDestroyed) {
  Buffer x = numbers(1);
  a.synchronize();
  {
    GraphCapture first(a);
    const GraphCapture capture(std::move(first));
    EXPECT_FALSE(first.is_active());
    a.fill(static_cast<std::uint32_t*>(address_of(x)), count, 8u);
    EXPECT_TRUE(a.is_capturing());
  }
  EXPECT_FALSE(a.is_capturing());
  a.synchronize();
  EXPECT_EQ(x.to_vector<std::uint32_t>(), all(1));
}

TEST_F(GraphTest, RefusesMisuse) {
  Buffer x = numbers(1);
  a.synchronize();
  GraphCapture capture(a);
  const Result<GraphCapture> twice = GraphCapture::try_begin(a);
  EXPECT_EQ(code(twice), "stream_misuse");
  EXPECT_EQ(code(GraphCapture::try_begin(device.default_stream())), "stream_misuse");
  EXPECT_EQ(code(GraphCapture::try_begin(StreamRef())), "stream_misuse");
  EXPECT_THROW(GraphCapture(StreamRef{}), StreamMisuse);
  const Graph graph = capture.end();
  const Result<Graph> again = capture.try_end();
  EXPECT_EQ(code(again), "stream_misuse");
  EXPECT_EQ(again.failure().string("why"), "it has already ended");

  EXPECT_EQ(code(Graph().try_launch(a)), "invalid_argument");
  EXPECT_EQ(code(graph.try_launch(StreamRef())), "stream_misuse");
  EXPECT_EQ(code(graph.try_launch(a, in(Buffer()))), "not_allocated");
  const Device other = sim::open({});
  const Stream elsewhere(other);
  const Result<Mark> wrong = graph.try_launch(elsewhere);
  EXPECT_EQ(code(wrong), "device_mismatch");
  EXPECT_EQ(wrong.failure().string("a"), device.spec());
  Buffer foreign(other, Shape{count}, DType::u32);
  EXPECT_EQ(code(graph.try_launch(a, out(foreign))), "device_mismatch");
  Buffer unwritten(device, Shape{count}, DType::u32);
  EXPECT_EQ(code(graph.try_launch(a, in(unwritten))), "never_written");
  auto unified = UnifiedBuffer<std::uint32_t>::try_make(Shape{count}, {.device = device}).value();
  EXPECT_EQ(code(graph.try_launch(a, out(unified))), "invalid_argument");
  {
    const GraphCapture open(b);
    const Result<Mark> inside = graph.try_launch(b);
    EXPECT_EQ(code(inside), "stream_misuse");
    EXPECT_EQ(inside.failure().string("why"), "it is being captured into a graph");
  }
  graph.launch(b, inout(x));
}

TEST_F(GraphTest, OfADeviceWithoutGraphsIsUnsupported) {
  const Device host = open_device("host");
  const Stream stream(host);
  const Result<GraphCapture> begun = GraphCapture::try_begin(stream);
  ASSERT_EQ(code(begun), "unsupported");
  EXPECT_EQ(begun.failure().string("what"), name(Capability::graphs));
}

TEST_F(GraphTest, JoinsNoStreamOfAnotherDevice) {
  const std::vector<Device> peers =
      sim::open_peers({.policy = sim::Policy::lazy, .print_findings = false}, 2);
  const Stream one(peers[0]), two(peers[1]);
  Event forked(peers[0]);
  GraphCapture capture(one);
  one.record(forked);
  EXPECT_EQ(code(two.try_wait(forked)), "stream_misuse");
  EXPECT_EQ(code(capture.try_end()), "stream_misuse");
  one.synchronize();
  two.synchronize();
}

TEST_F(GraphTest, DoesNotMergeCaptures) {
  Event forked(device);
  GraphCapture first(a), second(b);
  a.record(forked);
  EXPECT_EQ(code(b.try_wait(forked)), "stream_misuse");
  EXPECT_EQ(code(first.try_end()), "stream_misuse");
  EXPECT_EQ(code(second.try_end()), "stream_misuse");
}

TEST_F(GraphTest, KeepsTheDefaultStreamOutOfCapturesOfBlockingStreams) {
  const Stream blocking(device, {.blocking = true});
  auto* memory = static_cast<std::byte*>(device.allocate(MemoryKind::device, 64));
  GraphCapture capture(blocking);
  EXPECT_TRUE(device.default_stream().is_capturing());
  EXPECT_EQ(code(device.default_stream().try_fill(memory, 64, std::byte{1})), "stream_misuse");
  EXPECT_EQ(code(capture.try_end()), "stream_misuse");
  device.release(memory);
}

TEST_F(GraphTest, AllocatesNoStreamOrderedMemory) {
  GraphCapture capture(a);
  EXPECT_EQ(code(a.try_allocate(64)), "stream_misuse");
  EXPECT_EQ(code(capture.try_end()), "stream_misuse");
}

TEST_F(GraphTest, IsLaunchedBySeveralThreads) {
  Buffer from = numbers(1), to = numbers(2);
  const Graph graph = copy(to, from);
  Thread other([&] {
    for (int i = 0; i < 10; ++i) graph.launch(b, in(from), out(to));
  });
  for (int i = 0; i < 10; ++i) graph.launch(c, in(from), out(to));
  other.join();
  EXPECT_EQ(to.to_vector<std::uint32_t>(), all(1));
}

// --- Planted mistakes, which the checker must find

TEST_F(GraphTest, HasARaceInsideIfAStreamDoesNotWait) {
  Buffer x = numbers(1), y = numbers(2);
  a.synchronize();
  Event forked(device), joined(device);
  GraphCapture capture(a);
  a.record(forked);
  b.wait(forked);
  b.copy(address_of(y), address_of(x), size);
  const CallSite line = CallSite::here();
  a.fill(static_cast<std::uint32_t*>(address_of(x)), count, 9u);  // does not wait for b
  b.record(joined);
  a.wait(joined);
  const Graph graph = capture.end();
  EXPECT_EQ(found(), "") << "nothing has run";
  EXPECT_EQ(code(graph.try_launch(c, inout(x), inout(y))), "violation");
  planted = "TERN-S101";
  ASSERT_EQ(found(), planted);
  EXPECT_EQ(sim::findings(device)[0].site.line, line.line + 1);
  EXPECT_EQ(std::string(sim::findings(device)[0].site.file), line.file);
}

TEST_F(GraphTest, RacesWithOtherWorkIfAUseIsNotDeclared) {
  Buffer from = numbers(1), to = numbers(2);
  const Graph graph = copy(to, from);
  const std::uint64_t hold = sim::hold(b);
  from.fill(5u, b);
  EXPECT_EQ(code(graph.try_launch(c, out(to))), "violation") << "reads `from` without a wait";
  sim::resume(device, hold);
  planted = "TERN-S101";
  // Declared, the same launch is right.
  graph.launch(c, in(from), out(to));
  EXPECT_EQ(to.to_vector<std::uint32_t>(), all(5));
}

TEST_F(GraphTest, RacesWithLaterWorkIfAUseIsNotDeclared) {
  Buffer from = numbers(1), to = numbers(2);
  const Graph graph = copy(to, from);
  graph.launch(b, out(to));
  EXPECT_EQ(code(from.try_fill(7u, c)), "violation") << "the graph still reads it";
  planted = "TERN-S101";
  b.synchronize();
}

TEST_F(GraphTest, UsesFreedMemoryIfItOutlivesABuffer) {
  Buffer from = numbers(1);
  std::optional<Buffer> to(numbers(2));
  const Graph graph = copy(*to, from);
  graph.launch(b, in(from), out(*to));
  to.reset();
  EXPECT_EQ(code(graph.try_launch(b, in(from))), "violation");
  planted = found();
  EXPECT_TRUE(planted.starts_with("TERN-S2")) << planted;
}

TEST_F(GraphTest, RacesWithOtherUsersOfAPoolThatItsCaptureFreedMemoryTo) {
  const auto shared = std::make_shared<PoolResource>(device);
  Buffer to = numbers(2);
  a.synchronize();
  GraphCapture capture(a);
  {
    const Buffer scratch =
        Buffer::allocate(device, Shape{count}, DType::u32, {.resource = shared, .stream = a});
    a.fill(static_cast<std::uint32_t*>(address_of(scratch)), count, 1u);
    a.copy(address_of(to), address_of(scratch), size);
  }
  const Graph graph = capture.end();
  Buffer other(device, Shape{count}, DType::u32, {.resource = shared, .stream = a});
  other.fill(7u, a);  // takes the memory that the graph uses
  EXPECT_EQ(code(graph.try_launch(b, out(to))), "violation");
  planted = found();
  EXPECT_TRUE(planted.starts_with("TERN-S")) << planted;
  a.synchronize();
}

TEST_F(GraphTest, LaunchesNoKernelThatWasUnloaded) {
  Buffer x = numbers(1);
  a.synchronize();
  const KernelSource source{.entry = "nothing", .body = [](const KernelCall&) {}};
  const NativeKernel kernel = device.try_load_kernel(source).value();
  GraphCapture capture(a);
  a.launch(kernel, {}, {});
  const Graph graph = capture.end();
  graph.launch(a);
  device.unload_kernel(kernel);
  EXPECT_EQ(code(graph.try_launch(a)), "use_after_free");
  planted = "TERN-S205";
}

TEST_F(GraphTest, IsJudgedAnewAtEachLaunch) {
  Buffer from = numbers(1), to = numbers(2);
  const Graph graph = copy(to, from);
  for (int i = 0; i < 3; ++i) {
    from.fill(5u, b);
    EXPECT_EQ(code(graph.try_launch(c, out(to))), "violation");
    b.synchronize();
    graph.launch(c, out(to));
    c.synchronize();
  }
  planted = "TERN-S101 TERN-S101 TERN-S101";
}

TEST_F(GraphTest, GivesTheSameResultUnderEverySchedule) {
  const sim::Exploration explored = sim::for_every_schedule(
      {.policy = sim::Policy::lazy, .print_findings = false}, 2000, [](const Device& checked) {
        const Stream s(checked), t(checked), u(checked);
        auto* memory = static_cast<std::byte*>(checked.allocate(MemoryKind::device, 3));
        Event forked(checked), joined(checked);
        GraphCapture capture(s);
        s.fill(memory, 1, std::byte{1});
        s.record(forked);
        t.wait(forked);
        t.copy(memory + 1, memory, 1);
        t.record(joined);
        s.fill(memory + 2, 1, std::byte{3});
        s.wait(joined);
        const Graph graph = capture.end();
        graph.launch(u);
        graph.launch(s);
        const std::vector<std::byte> expected = {std::byte{1}, std::byte{1}, std::byte{3}};
        std::vector<std::byte> seen(3);
        s.copy(seen.data(), memory, 3);
        s.synchronize();
        EXPECT_EQ(seen, expected);
        checked.release(memory);
      });
  EXPECT_GT(explored.runs, 1u);
}

// --- Failures

TEST_F(GraphTest, LeaksNothingIfACallFails) {
  for (const char* fault_class : {"stream", "launch", "copy", "fill", "record", "wait"}) {
    for (int n = 1; n <= 4; ++n) {
      Buffer x = numbers(1), y = numbers(2);
      a.synchronize();
      Event forked(device), joined(device);
      sim::set_faults(device, std::string(fault_class) + "#" + std::to_string(n) + "=fail");
      const auto run = [&]() -> Result<void> {
        Result<GraphCapture> capture = GraphCapture::try_begin(a);
        if (!capture) return capture.failure();
        if (Result<void> r = a.try_copy(address_of(y), address_of(x), size); !r) return r;
        if (Result<void> r = a.try_record(forked); !r) return r;
        if (Result<void> r = b.try_wait(forked); !r) return r;
        if (Result<void> r = b.try_fill(static_cast<std::uint32_t*>(address_of(x)), count, 5u);
            !r) {
          return r;
        }
        if (Result<void> r = b.try_record(joined); !r) return r;
        if (Result<void> r = a.try_wait(joined); !r) return r;
        const Result<Graph> graph = capture->try_end();
        if (!graph) return graph.failure();
        const Result<Mark> mark = graph->try_launch(c, inout(x), out(y));
        return mark ? Result<void>() : Result<void>(mark.failure());
      };
      const Result<void> done = run();
      sim::set_faults(device, "");
      EXPECT_FALSE(a.is_capturing()) << fault_class << n;
      EXPECT_FALSE(b.is_capturing());
      a.synchronize();
      b.synchronize();
      c.synchronize();
      EXPECT_EQ(y.to_vector<std::uint32_t>(), all(done ? 1 : 2)) << fault_class << n;
      EXPECT_EQ(x.to_vector<std::uint32_t>(), all(done ? 5 : 1));
    }
  }
}

TEST(GraphOnALostDevice, FailsWithTheLoss) {
  const Device device = sim::open({.policy = sim::Policy::lazy, .print_findings = false});
  const Stream a(device), b(device);
  GraphCapture capture(a);
  GraphCapture other(b);
  const Graph graph = capture.end();
  graph.launch(a);
  sim::set_faults(device, "copy#1=lost");
  std::byte from{}, to{};
  EXPECT_EQ(code(a.try_copy(&to, &from, 1)), "device_lost");
  EXPECT_EQ(code(graph.try_launch(a)), "device_lost");
  EXPECT_EQ(code(other.try_end()), "device_lost");
  EXPECT_EQ(code(GraphCapture::try_begin(a)), "device_lost");
}

// --- On every device with graphs, real ones included

constexpr std::string_view increment_ptx = R"(
.version 7.0
.target sm_52
.address_size 64

.visible .entry increment(.param .u64 x, .param .u32 count)
{
  .reg .pred %outside;
  .reg .b32 %i, %block, %threads, %count, %value;
  .reg .b64 %at, %offset;
  ld.param.u64 %at, [x];
  ld.param.u32 %count, [count];
  mov.u32 %block, %ctaid.x;
  mov.u32 %threads, %ntid.x;
  mov.u32 %i, %tid.x;
  mad.lo.u32 %i, %block, %threads, %i;
  setp.ge.u32 %outside, %i, %count;
  @%outside bra done;
  cvta.to.global.u64 %at, %at;
  mul.wide.u32 %offset, %i, 4;
  add.u64 %at, %at, %offset;
  ld.global.u32 %value, [%at];
  add.u32 %value, %value, 1;
  st.global.u32 [%at], %value;
done:
  ret;
}
)";

class GraphOnDevice : public OnDevice {
 protected:
  [[nodiscard]] Kernel increment() const {
    if (device.info().backend == "cuda") {
      return Kernel::from_image(device, increment_ptx, "increment");
    }
    return Kernel::from_function(
        device, "increment", +[](View<std::uint32_t> x, std::uint32_t) {
          for (std::uint32_t& value : x) ++value;
        });
  }
};

TEST_P(GraphOnDevice, RunsKernelsAndCopiesOfTwoStreamsInOrder) {
  const Kernel kernel = increment();
  const Stream other(device), third(device);
  Buffer x(device, Shape{count}, DType::u32), y(device, Shape{count}, DType::u32);
  x.fill(0u, stream);
  y.fill(0u, stream);
  stream.synchronize();
  Event forked(device), joined(device);
  GraphCapture capture(stream);
  for (int i = 0; i < 10; ++i) {
    kernel.launch(stream, elements(count), inout(x), static_cast<std::uint32_t>(count));
  }
  stream.record(forked);
  other.wait(forked);
  other.copy(address_of(y), address_of(x), size);
  kernel.launch(other, elements(count), inout(y), static_cast<std::uint32_t>(count));
  other.record(joined);
  stream.wait(joined);
  std::optional<Graph> graph = capture.end();
  for (std::uint32_t launch = 1; launch <= 20; ++launch) {
    graph->launch(launch % 2 == 0 ? third : stream, inout(x), out(y));
  }
  graph.reset();
  EXPECT_EQ(x.to_vector<std::uint32_t>(), std::vector<std::uint32_t>(count, 200));
  EXPECT_EQ(y.to_vector<std::uint32_t>(), std::vector<std::uint32_t>(count, 201));
  device.synchronize();
  EXPECT_EQ(poll_graphs(), 0u);
}

TEST_P(GraphOnDevice, UsesScratchMemoryOfItsCapture) {
  const Kernel kernel = increment();
  Buffer x(device, Shape{count}, DType::u32);
  x.fill(0u, stream);
  stream.synchronize();
  const auto memory = std::make_shared<PoolResource>(device);
  GraphCapture capture(stream, memory);
  for (int i = 0; i < 3; ++i) {
    Buffer scratch =
        Buffer::allocate(device, Shape{count}, DType::u32,
                         {.resource = memory, .contents = Contents::unspecified, .stream = stream});
    stream.copy(address_of(scratch), address_of(x), size);
    kernel.launch(stream, elements(count), inout(scratch), static_cast<std::uint32_t>(count));
    stream.copy(address_of(x), address_of(scratch), size);
  }
  const Graph graph = capture.end();
  for (int i = 0; i < 5; ++i) graph.launch(stream, inout(x));
  EXPECT_EQ(x.to_vector<std::uint32_t>(), std::vector<std::uint32_t>(count, 15));
}

INSTANTIATE_TEST_SUITE_P(Devices, GraphOnDevice, testing::Values("sim", "cuda:0"),
                         [](const testing::TestParamInfo<std::string>& info) {
                           return info.param == "sim" ? "sim" : "cuda";
                         });

// --- On the CUDA backend, over a driver that can fail

class CudaGraphTest : public testing::Test {
 protected:
  cuda::CudaBench bench;
  Device device{bench.open(0).value()};
  Stream a{device}, b{device};
};

TEST_F(CudaGraphTest, LeavesNoHandlesAndNoCaptureIfADriverCallFails) {
  const sim::LiveHandles before = bench.fake.live();
  for (const char* entry : {"cuStreamBeginCapture", "cuStreamEndCapture",
                            "cuGraphInstantiateWithFlags", "cuGraphLaunch", "cuEventRecord",
                            "cuStreamWaitEvent", "cuMemsetD8Async", "cuStreamIsCapturing"}) {
    for (unsigned n = 1; n <= 6; ++n) {
      Buffer x(device, Shape{64}, DType::u8);
      x.fill(std::uint8_t{1}, a);
      a.synchronize();
      std::optional<Event> forked(device), joined(device);
      bench.fake.fail_call(entry, n, cuda::CUDA_ERROR_UNKNOWN);
      const auto run = [&]() -> Result<void> {
        Result<GraphCapture> capture = GraphCapture::try_begin(a);
        if (!capture) return capture.failure();
        if (Result<void> r = a.try_record(*forked); !r) return r;
        if (Result<void> r = b.try_wait(*forked); !r) return r;
        if (Result<void> r = b.try_fill(static_cast<std::uint8_t*>(address_of(x)), 64, 5); !r) {
          return r;
        }
        if (Result<void> r = b.try_record(*joined); !r) return r;
        if (Result<void> r = a.try_wait(*joined); !r) return r;
        const Result<Graph> graph = capture->try_end();
        if (!graph) return graph.failure();
        const Result<Mark> mark = graph->try_launch(b, inout(x));
        return mark ? Result<void>() : Result<void>(mark.failure());
      };
      const Result<void> done = run();
      bench.fake.clear_failures();
      EXPECT_FALSE(a.is_capturing()) << entry << n;
      EXPECT_FALSE(b.is_capturing());
      a.synchronize();
      b.synchronize();
      EXPECT_EQ(x.to_vector<std::uint8_t>(), std::vector<std::uint8_t>(64, done ? 5 : 1))
          << entry << n;
      EXPECT_EQ(poll_graphs(), 0u);
      EXPECT_EQ(bench.fake.live().graphs, before.graphs) << entry << n;
      EXPECT_EQ(bench.fake.live().graph_execs, before.graph_execs) << entry << n;
    }
  }
}

TEST_F(CudaGraphTest, IsUnsupportedByADriverOlderThan11_4) {
  EXPECT_TRUE(device.can(Capability::graphs));
  cuda::Driver old = bench.driver;
  old.table.cuGraphInstantiateWithFlags = nullptr;
  const Device limited(
      cuda::open_backend(old, {.spec = "cuda:0?driver=sim", .ordinal = 0, .staging = {}}).value());
  const Stream stream(limited);
  EXPECT_EQ(code(GraphCapture::try_begin(stream)), "unsupported");
}

TEST_F(CudaGraphTest, NamesTheReasonForACaptureThatCannotEnd) {
  Event forked(device);
  GraphCapture unjoined(a);
  a.record(forked);
  b.wait(forked);
  std::uint8_t* memory = static_cast<std::uint8_t*>(device.allocate(MemoryKind::device, 64));
  b.fill(memory, 64, 1);
  const Result<Graph> graph = unjoined.try_end();
  ASSERT_EQ(code(graph), "stream_misuse");
  EXPECT_NE(graph.failure().text().find("has not waited for"), std::string::npos)
      << graph.failure().text();
  GraphCapture invalid(a);
  EXPECT_EQ(code(a.try_synchronize()), "stream_misuse");
  EXPECT_NE(invalid.try_end().failure().text().find("invalidated"), std::string::npos);
  device.release(memory);
}

}  // namespace
}  // namespace tern::test
