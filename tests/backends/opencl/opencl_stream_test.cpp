#include "backends/opencl/opencl_stream.hpp"

#include <future>
#include <thread>

#include "support/opencl_bench.hpp"
#include "support/thread_famine.hpp"

namespace tern::opencl {
namespace {

class OpenClStream : public test::OpenClTest {
 protected:
  void SetUp() override {
    OpenClTest::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    open_context();
    memory = std::make_shared<Memory>(context);
    stream = make();
    block = static_cast<std::byte*>(memory->allocate(MemoryKind::device, 4096, 128).value());
  }
  void TearDown() override {
    if (block != nullptr) {
      static_cast<void>(wait(stream->position()));  // no work may use what is released
      EXPECT_TRUE(memory->release(block));
    }
    stream.reset();
    memory.reset();
    OpenClTest::TearDown();
  }

  std::unique_ptr<Stream> make() { return Stream::make(context, false).value(); }
  void finish(Stream& which) { ASSERT_TRUE(wait(which.position())); }
  std::vector<std::byte> read(std::size_t bytes) {
    std::vector<std::byte> out(bytes);
    EXPECT_TRUE(stream->copy(out.data(), block, bytes));
    finish(*stream);
    return out;
  }

  /// Holds a stream until it is opened.
  struct Gate {
    std::promise<void> promise;
    std::shared_future<void> future = promise.get_future().share();
    static void pass(void* self) { static_cast<Gate*>(self)->future.wait(); }
    void open() { promise.set_value(); }
  };

  Gate gate;  // outlives whatever stands at it
  std::shared_ptr<Memory> memory;
  std::unique_ptr<Stream> stream;
  std::byte* block = nullptr;
};

TEST_F(OpenClStream, IsNotThereIfTheDriverRefuses) {
  fail("clCreateCommandQueueWithProperties", result::out_of_host_memory);
  EXPECT_EQ(Stream::make(context, false).failure().code(), ErrorCode::out_of_memory);
}

TEST_F(OpenClStream, StandsNowhereBeforeItsFirstCommand) {
  EXPECT_EQ(stream->position(), nullptr);
  ASSERT_TRUE(stream->fill(block, 16, Pattern{}));
  EXPECT_NE(stream->position(), nullptr);
}

TEST_F(OpenClStream, BringsMemoryToItsDeviceAndBack) {
  if (test::opencl_faults::real->clEnqueueSVMMigrateMem == nullptr)
    GTEST_SKIP() << "OpenCL before 2.1";
  ASSERT_TRUE(stream->fill(block, 4096, Pattern{}));
  EXPECT_TRUE(stream->migrate(block, 4096, false));
  EXPECT_TRUE(stream->migrate(block + 100, 200, true));
  finish(*stream);
  fail("clEnqueueSVMMigrateMem", result::invalid_value);
  const Result<void> refused = stream->migrate(block, 4096, true);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.failure().string("call"), "clEnqueueSVMMigrateMem");
}

TEST_F(OpenClStream, FillsAlignedPatternsWithOneCommand) {
  Pattern pattern;
  pattern.width_bytes = 8;
  pattern.bytes[0] = std::byte{1};
  fail("clEnqueueSVMMemFill", result::invalid_value, 1);  // the second would fail
  EXPECT_TRUE(stream->fill(block, 4096, pattern));
  finish(*stream);
}

TEST_F(OpenClStream, FillsRepeatedBytesWithOneCommandAtAnyAddress) {
  Pattern pattern;
  pattern.width_bytes = 12;
  std::fill_n(pattern.bytes, 12, std::byte{7});
  fail("clEnqueueSVMMemFill", result::invalid_value, 1);
  EXPECT_TRUE(stream->fill(block + 1, 1200, pattern));
  EXPECT_EQ(read(1201)[1200], std::byte{7});
}

TEST_F(OpenClStream, FillsEveryWidthAtEveryOffset) {
  for (std::size_t width = 1; width <= Pattern::max_bytes; ++width) {
    Pattern pattern;
    pattern.width_bytes = width;
    for (std::size_t i = 0; i < width; ++i) pattern.bytes[i] = static_cast<std::byte>(i + 1);
    for (std::size_t offset = 0; offset < 16; offset += 5) {
      ASSERT_TRUE(stream->fill(block, 200, Pattern{}));
      ASSERT_TRUE(stream->fill(block + offset, 7 * width, pattern));
      const std::vector<std::byte> out = read(200);
      for (std::size_t i = 0; i < 200; ++i) {
        const bool is_inside = i >= offset && i < offset + 7 * width;
        ASSERT_EQ(out[i], is_inside ? pattern.bytes[(i - offset) % width] : std::byte{0})
            << i << " with width " << width << " at " << offset;
      }
    }
  }
}

TEST_F(OpenClStream, FillsOddWidthsWithFewCommands) {
  Pattern pattern;
  pattern.width_bytes = 3;
  pattern.bytes[2] = std::byte{1};
  fail("clEnqueueSVMMemcpy", result::invalid_value, 1000);
  EXPECT_TRUE(stream->fill(block, 3 * 1024, pattern));
  EXPECT_EQ(calls_of("clEnqueueSVMMemcpy"), 10);
}

TEST_F(OpenClStream, CopiesRowsWithoutGapsAtOnce) {
  std::vector<std::byte> from(100, std::byte{3});
  fail("clEnqueueSVMMemcpy", result::invalid_value, 1);
  EXPECT_TRUE(stream->copy_2d({block, 10, from.data(), 10, 10, 10}));
  finish(*stream);
}

TEST_F(OpenClStream, QueuesNothingThatWasRefused) {
  const Position before = stream->position();
  fail("clEnqueueSVMMemcpy", result::invalid_value);
  std::byte from[8] = {};
  const Result<void> refused = stream->copy(block, from, 8);
  EXPECT_EQ(refused.failure().string("call"), "clEnqueueSVMMemcpy");
  EXPECT_EQ(refused.failure().code(), ErrorCode::driver);
  EXPECT_EQ(stream->position(), before);
  EXPECT_TRUE(stream->copy(block, from, 8));
  finish(*stream);
}

TEST_F(OpenClStream, FlushesAgainWhatTheDriverDidNotFlush) {
  fail("clFlush", result::out_of_resources);
  EXPECT_TRUE(stream->fill(block, 64, Pattern{}));
  EXPECT_EQ(calls_of("clFlush"), 1);
  EXPECT_NE(stream->position(), nullptr);
  EXPECT_EQ(calls_of("clFlush"), 2);
  EXPECT_NE(stream->position(), nullptr);
  EXPECT_EQ(calls_of("clFlush"), 2);
}

TEST_F(OpenClStream, StandsStillWhileAHostFunctionRuns) {
  Pattern one;
  one.bytes[0] = std::byte{1};
  ASSERT_TRUE(stream->fill(block, 64, Pattern{}));
  finish(*stream);
  ASSERT_TRUE(stream->call(Gate::pass, &gate));
  ASSERT_TRUE(stream->fill(block, 64, one));
  const Position behind = stream->position();
  EXPECT_FALSE(*is_passed(behind));
  // Many more gates than the device has processors: none of its threads waits in them.
  std::vector<std::unique_ptr<Stream>> others;
  for (int i = 0; i < 16; ++i) {
    others.push_back(make());
    ASSERT_TRUE(others.back()->call(Gate::pass, &gate));
  }
  const std::unique_ptr<Stream> free_stream = make();
  std::byte seen{9};
  ASSERT_TRUE(free_stream->copy(&seen, block, 1));
  finish(*free_stream);
  EXPECT_EQ(seen, std::byte{0});
  gate.open();
  EXPECT_EQ(read(1)[0], std::byte{1});
  for (const auto& other : others) finish(*other);
}

TEST_F(OpenClStream, CallsHostFunctionsThoughWaitingIsRefusedOnce) {
  int calls = 0;
  ASSERT_TRUE(stream->call(Gate::pass, &gate));
  fail("clSetUserEventStatus", result::out_of_host_memory);
  fail("clGetEventInfo", result::out_of_host_memory);
  fail("clWaitForEvents", result::out_of_host_memory);
  ASSERT_TRUE(stream->call([](void* number) { ++*static_cast<int*>(number); }, &calls));
  gate.open();
  while (!wait(stream->position())) {
  }
  EXPECT_EQ(calls, 1);
  EXPECT_TRUE(context->check_alive());
}

TEST_F(OpenClStream, QueuesNoHostFunctionItCannotCall) {
  const auto never = [](void*) { ADD_FAILURE() << "was refused"; };
  for (const char* entry : {"clCreateUserEvent", "clEnqueueBarrierWithWaitList"}) {
    fail(entry, result::out_of_resources);
    const Result<void> refused = stream->call(never, nullptr);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.failure().string("call"), entry);
  }
  EXPECT_EQ(stream->position(), nullptr);
}

TEST_F(OpenClStream, QueuesNoHostFunctionWithoutAThreadToCallIt) {
  const auto never = [](void*) { ADD_FAILURE() << "was refused"; };
  {
    const test::ThreadFamine famine;
    EXPECT_EQ(stream->call(never, nullptr).failure().string("call"), "pthread_create");
  }
  EXPECT_EQ(stream->position(), nullptr);
}

TEST_F(OpenClStream, WaitsForAnotherOfItsDevice) {
  const std::unique_ptr<Stream> other = make();
  ASSERT_TRUE(other->call(Gate::pass, &gate));
  ASSERT_TRUE(stream->wait(other->position()));
  ASSERT_TRUE(stream->fill(block, 64, Pattern{}));
  EXPECT_FALSE(*is_passed(stream->position()));
  gate.open();
  finish(*stream);
}

TEST_F(OpenClStream, WaitsForOneOfAnotherContextByItsThread) {
  std::shared_ptr<Context> second = Context::open(table(), facts, "opencl:1").value();
  std::unique_ptr<Stream> foreign = Stream::make(second, false).value();
  ASSERT_TRUE(foreign->call(Gate::pass, &gate));
  ASSERT_TRUE(stream->wait(foreign->position()));
  ASSERT_TRUE(stream->fill(block, 64, Pattern{}));
  EXPECT_FALSE(*is_passed(stream->position()));
  gate.open();
  finish(*stream);
  finish(*foreign);
}

TEST_F(OpenClStream, IsLostWithTheDeviceItWaitsFor) {
  std::shared_ptr<Context> second = Context::open(table(), facts, "opencl:1").value();
  std::unique_ptr<Stream> foreign = Stream::make(second, false).value();
  ASSERT_TRUE(foreign->call(Gate::pass, &gate));
  static_cast<void>(second->lose("clFlush", result::device_not_available));
  ASSERT_TRUE(stream->wait(foreign->position()));
  while (!context->is_lost()) std::this_thread::yield();
  EXPECT_EQ(stream->fill(block, 64, Pattern{}).failure().code(), ErrorCode::device_lost);
  gate.open();
}

TEST_F(OpenClStream, CallsNothingOnceTheDeviceIsLost) {
  ASSERT_TRUE(stream->call(Gate::pass, &gate));
  ASSERT_TRUE(stream->call([](void*) { ADD_FAILURE() << "the device is lost"; }, nullptr));
  static_cast<void>(context->lose("clFlush", result::device_not_available));
  gate.open();
}

TEST_F(OpenClStream, ReleasesABlockWhenItGetsThere) {
  void* address = memory->allocate(MemoryKind::device, 1000, 128).value();
  ASSERT_TRUE(stream->call(Gate::pass, &gate));
  ASSERT_TRUE(memory->begin_release(address));
  ASSERT_TRUE(stream->release(memory, address));
  EXPECT_EQ(memory->live_blocks(), 2u);
  gate.open();
  finish(*stream);
  EXPECT_EQ(memory->live_blocks(), 1u);
}

TEST_F(OpenClStream, IsFinishedWhenItIsClosedAndDone) {
  ASSERT_TRUE(stream->call(Gate::pass, &gate));
  EXPECT_FALSE(stream->is_finished());
  stream->close();
  EXPECT_FALSE(stream->is_finished());
  gate.open();
  while (!stream->is_finished()) std::this_thread::yield();
}

}  // namespace
}  // namespace tern::opencl
