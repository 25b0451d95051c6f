// Captures of streams, and graphs that are launched many times.

#include <atomic>

#include "support/ladder.hpp"

namespace tern::test {
namespace {

class CapturesWork : public Ladder {
 protected:
  void SetUp() override {
    if (can(Capability::graphs)) return;
    expect_unsupported(stream.try_begin_capture(), Capability::graphs, device);
    expect_unsupported(stream.try_end_capture(), Capability::graphs, device);
    expect_unsupported(stream.try_launch_graph({1}), Capability::graphs, device);
    stream.abort_capture();
    device.destroy_graph({});
    GTEST_SKIP() << "has no graphs";
  }

  void begin() { stream.try_begin_capture().value(); }
  /// Ends the capture and expects that the stream can be used again.
  void expect_end_refused() {
    expect_refused(stream.try_end_capture(), ErrorCode::stream_misuse);
    expect_usable(stream);
  }
  void expect_usable(StreamRef used) {
    EXPECT_FALSE(used.is_capturing());
    const Block block(device, 100);
    const Bytes bytes = sample(100, 9);
    used.copy(block.get(), bytes.data(), 100);
    used.synchronize();
    EXPECT_EQ(read(block.get(), 100), bytes);
  }

  Stream second{device};
};
TERN_CLIMB(CapturesWork);

TEST_P(CapturesWork, AndRunsItAtEachLaunchOnly) {
  const Block from(device, 1000), to(device, 1000);
  write(from.get(), sample(1000, 1));
  write(to.get(), sample(1000, 2));
  EXPECT_FALSE(stream.is_capturing());
  begin();
  EXPECT_TRUE(stream.is_capturing());
  stream.copy(to.get(), from.get(), 1000);
  stream.fill(to.get() + 10, 5, std::byte{7});
  stream.copy_2d({.destination = to.get() + 100,
                  .destination_pitch_bytes = 20,
                  .source = from.get(),
                  .source_pitch_bytes = 30,
                  .width_bytes = 10,
                  .height = 3});
  const NativeGraph graph = stream.try_end_capture().value();
  EXPECT_FALSE(stream.is_capturing());
  EXPECT_EQ(read(to.get(), 1000), sample(1000, 2)) << "nothing has run";
  for (const unsigned seed : {3u, 4u}) {
    Bytes expected = sample(1000, seed);
    write(from.get(), expected);
    stream.try_launch_graph(graph).value();
    const Bytes source = expected;
    std::fill_n(expected.begin() + 10, 5, std::byte{7});
    for (std::size_t row = 0; row < 3; ++row) {
      std::copy_n(source.begin() + static_cast<std::ptrdiff_t>(30 * row), 10,
                  expected.begin() + static_cast<std::ptrdiff_t>(100 + 20 * row));
    }
    EXPECT_EQ(read(to.get(), 1000), expected);
  }
  device.destroy_graph(graph);
}

TEST_P(CapturesWork, OfAStreamThatJoins) {
  const Block a(device, 256), b(device, 256), c(device, 256);
  Event forked(device), joined(device);
  begin();
  stream.copy(b.get(), a.get(), 256);
  stream.record(forked);
  second.wait(forked);
  EXPECT_TRUE(second.is_capturing());
  second.copy(c.get(), b.get(), 256);
  second.record(joined);
  stream.wait(joined);
  stream.fill(b.get(), 256, std::byte{1});
  const NativeGraph graph = stream.try_end_capture().value();
  EXPECT_FALSE(second.is_capturing());
  for (const unsigned seed : {1u, 2u, 3u}) {
    write(a.get(), sample(256, seed));
    stream.try_launch_graph(graph).value();
    EXPECT_EQ(read(c.get(), 256), sample(256, seed));
    EXPECT_EQ(read(b.get(), 256), Bytes(256, std::byte{1}));
  }
  device.destroy_graph(graph);
  expect_usable(second);
}

TEST_P(CapturesWork, OfHostFunctions) {
  if (!can(Capability::host_functions)) GTEST_SKIP() << "has no host functions";
  std::atomic<int> calls = 0;
  begin();
  stream.call([](void* context) { ++*static_cast<std::atomic<int>*>(context); }, &calls);
  const NativeGraph graph = stream.try_end_capture().value();
  stream.synchronize();
  EXPECT_EQ(calls, 0);
  for (int i = 1; i <= 3; ++i) {
    stream.try_launch_graph(graph).value();
    stream.synchronize();
    EXPECT_EQ(calls, i);
  }
  device.destroy_graph(graph);
}

TEST_P(CapturesWork, AndLaunchesAnEmptyGraph) {
  begin();
  const NativeGraph graph = stream.try_end_capture().value();
  stream.try_launch_graph(graph).value();
  stream.synchronize();
  device.destroy_graph(graph);
}

TEST_P(CapturesWork, AndRunsTheLaunchesOfAGraphOneAfterAnother) {
  if (!can(Capability::host_functions)) GTEST_SKIP() << "needs a gate, which is a host function";
  const Block a(device, 64);
  begin();
  stream.fill(a.get(), 64, std::byte{1});
  const NativeGraph graph = stream.try_end_capture().value();
  Gate gate;
  gate.hold(stream);
  stream.try_launch_graph(graph).value();
  second.try_launch_graph(graph).value();
  EXPECT_FALSE(second.is_idle());
  gate.open();
  second.synchronize();
  stream.synchronize();
  EXPECT_EQ(read(a.get(), 64), Bytes(64, std::byte{1}));
  device.destroy_graph(graph);
}

TEST_P(CapturesWork, AndDestroysAGraphThatIsInFlight) {
  if (!can(Capability::host_functions)) GTEST_SKIP() << "needs a gate, which is a host function";
  const Block a(device, 64);
  write(a.get(), sample(64));
  begin();
  stream.fill(a.get(), 64, std::byte{5});
  const NativeGraph graph = stream.try_end_capture().value();
  Gate gate;
  gate.hold(stream);
  stream.try_launch_graph(graph).value();
  device.destroy_graph(graph);
  gate.open();
  EXPECT_EQ(read(a.get(), 64), Bytes(64, std::byte{5}));
}

TEST_P(CapturesWork, UntilItIsAborted) {
  const Block a(device, 64);
  write(a.get(), sample(64));
  Event forked(device);
  begin();
  stream.fill(a.get(), 64, std::byte{5});
  stream.record(forked);
  second.wait(forked);
  second.fill(a.get(), 64, std::byte{6});
  stream.abort_capture();
  stream.abort_capture();
  expect_usable(stream);
  expect_usable(second);
  EXPECT_EQ(read(a.get(), 64), sample(64)) << "nothing has run";
  expect_refused(stream.try_end_capture(), ErrorCode::stream_misuse);
}

TEST_P(CapturesWork, ButNotTwiceAtATime) {
  begin();
  expect_refused(stream.try_begin_capture(), ErrorCode::stream_misuse);
  device.destroy_graph(stream.try_end_capture().value());
  expect_refused(stream.try_end_capture(), ErrorCode::stream_misuse);
  expect_usable(stream);
}

TEST_P(CapturesWork, ButNotOfTheDefaultStream) {
  expect_refused(device.default_stream().try_begin_capture(), ErrorCode::stream_misuse);
  expect_usable(device.default_stream());
}

TEST_P(CapturesWork, ButNotOfAStreamThatIsNotJoinedBack) {
  const Block a(device, 64);
  Event forked(device);
  begin();
  stream.record(forked);
  second.wait(forked);
  second.fill(a.get(), 64, std::byte{1});
  expect_end_refused();
  expect_usable(second);
}

TEST_P(CapturesWork, AndEndsOnlyWhereItBegan) {
  Event forked(device);
  begin();
  stream.record(forked);
  second.wait(forked);
  expect_refused(second.try_end_capture(), ErrorCode::stream_misuse);
  static_cast<void>(stream.try_end_capture());
  expect_usable(stream);
  expect_usable(second);
}

TEST_P(CapturesWork, UntilTheHostWaitsForTheStream) {
  begin();
  expect_refused(stream.try_synchronize(), ErrorCode::stream_misuse);
  expect_end_refused();
  begin();
  expect_refused(stream.try_is_idle(), ErrorCode::stream_misuse);
  expect_end_refused();
}

TEST_P(CapturesWork, ButNotOfWaitsForWorkOutside) {
  const Block a(device, 64);
  Event outside(device);
  second.fill(a.get(), 64, std::byte{1});
  second.record(outside);
  begin();
  expect_refused(stream.try_wait(outside), ErrorCode::stream_misuse);
  expect_end_refused();
  second.synchronize();
}

TEST_P(CapturesWork, WhoseEventsCannotBeWaitedForOutside) {
  Event inside(device);
  begin();
  stream.record(inside);
  expect_refused(inside.try_is_done(), ErrorCode::stream_misuse);
  // A wait of the host may invalidate the capture.
  expect_refused(inside.try_synchronize(), ErrorCode::stream_misuse);
  if (const Result<NativeGraph> graph = stream.try_end_capture()) device.destroy_graph(*graph);
  begin();
  stream.record(inside);
  device.destroy_graph(stream.try_end_capture().value());
  expect_refused(second.try_wait(inside), ErrorCode::stream_misuse);
  second.record(inside);
  stream.wait(inside);
  expect_usable(stream);
  EXPECT_TRUE(inside.is_done());
}

TEST_P(CapturesWork, ButNotOfMarks) {
  const Block a(device, 64);
  if (!can(Capability::host_functions)) GTEST_SKIP() << "needs a gate, which is a host function";
  Gate gate;
  gate.hold(second);
  const Mark other = second.mark();
  begin();
  stream.fill(a.get(), 64, std::byte{1});
  const Mark own = stream.mark();
  expect_refused(stream.try_wait(other), ErrorCode::stream_misuse);
  expect_refused(second.try_wait(own), ErrorCode::stream_misuse);
  device.destroy_graph(stream.try_end_capture().value());
  gate.open();
  second.synchronize();
  Device::wait(own);
}

TEST_P(CapturesWork, ButNotOfGraphs) {
  begin();
  const NativeGraph graph = stream.try_end_capture().value();
  begin();
  expect_refused(stream.try_launch_graph(graph), ErrorCode::stream_misuse);
  stream.abort_capture();
  stream.try_launch_graph(graph).value();
  stream.synchronize();
  device.destroy_graph(graph);
  expect_refused(stream.try_launch_graph({}), ErrorCode::invalid_argument);
}

TEST_P(CapturesWork, UntilTheStreamIsDestroyed) {
  StreamRef gone;
  {
    const Stream brief(device);
    gone = brief;
    brief.try_begin_capture().value();
  }
  expect_refused(gone.try_end_capture(), ErrorCode::stream_misuse);
  gone.abort_capture();
  expect_usable(stream);
}

}  // namespace
}  // namespace tern::test
