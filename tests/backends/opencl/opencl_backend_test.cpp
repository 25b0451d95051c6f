#include "backends/opencl/opencl_backend.hpp"

#include <cstring>
#include <functional>
#include <thread>

#include "core/spans_in_flight.hpp"
#include "support/opencl_bench.hpp"
#include "tern/core/bytes.hpp"
#include "tern/device/device.hpp"
#include "tern/device/event.hpp"
#include "tern/device/stream.hpp"
#include "tern/memory/pool_resource.hpp"

namespace tern::opencl {
namespace {

constexpr const char* add_one =
    "__kernel void add_one(__global uchar* data) { data[get_global_id(0)] += 1; }";

/// Does a bit of everything, step by step, and goes on when a step is refused, as far as it can.
/// Notes what was refused.
class Program {
 public:
  Program(Backend& backend, bool with_kernel) : backend_(backend), with_kernel_(with_kernel) {}

  void run() {
    Result<NativeStream> made = backend_.create_stream({.blocking = true});
    note(made);
    const Submission main{backend_.default_stream(), {}, {}};
    const Submission side{made ? *made : backend_.default_stream(), {}, {}};
    Result<void*> block = backend_.allocate(MemoryKind::device, 4096, 256, {}, {});
    Result<void*> brief = backend_.allocate_async(side, 100, 128);
    note(block);
    note(brief);
    if (block) use(static_cast<std::byte*>(*block), main, side);
    note(backend_.synchronize(side.stream));
    note(backend_.synchronize());
    finish();
    if (brief) {
      const Result<void> released = backend_.release_async(side, *brief);
      note(released);
      finish();
      if (!released) {
        EXPECT_TRUE(backend_.release(*brief, {}));
      }
    }
    if (block) {
      EXPECT_TRUE(backend_.release(*block, {}));
    }
    if (made) backend_.destroy_stream(*made);
  }

  std::vector<Failure> failures;
  int host_calls = 0;

 private:
  template <class T>
  void note(const Result<T>& result) {
    if (!result) failures.push_back(result.failure());
  }

  void use(std::byte* block, const Submission& main, const Submission& side) {
    Pattern odd;
    odd.width_bytes = 3;
    odd.bytes[1] = std::byte{1};
    Pattern wide;
    wide.width_bytes = 4;
    wide.bytes[1] = std::byte{1};
    Result<NativeEvent> start = backend_.create_event(true);
    Result<NativeEvent> end = backend_.create_event(true);
    Result<NativeEvent> plain = backend_.create_event(false);
    ASSERT_TRUE(start && end && plain);
    const Result<void> started = backend_.record(main, *start);
    note(started);
    note(backend_.fill(main, block, 300, odd));
    note(backend_.fill(main, block + 1, 400, wide));
    note(backend_.copy(side, block + 1024, block, 512));
    note(backend_.copy_2d(side, {block + 2048, 20, block, 30, 10, 3}));
    note(backend_.record(side, *plain));
    note(backend_.wait(main, *plain));
    const auto count = [](void* context) { ++*static_cast<int*>(context); };
    note(backend_.call_host(main, count, &host_calls));
    if (with_kernel_) launch(block, main);
    note(backend_.query(main.stream));
    const Result<void> ended = backend_.record(main, *end);
    note(ended);
    note(backend_.synchronize(*plain));
    finish();
    if (started && ended) note(backend_.elapsed_ns(*start, *end));
    for (const NativeEvent event : {*start, *end, *plain}) backend_.destroy_event(event);
  }

  void launch(std::byte* block, const Submission& main) {
    Result<NativeKernel> kernel = backend_.load_kernel({.entry = "add_one", .text = add_one});
    note(kernel);
    if (!kernel) return;
    const KernelArgument argument{&block, sizeof block, block, 4096, Access::read_write};
    note(backend_.launch(main, *kernel, {.grid = {64, 1, 1}}, std::span(&argument, 1)));
    backend_.unload_kernel(*kernel);
  }

  /// What follows relies on the work being done, so this insists.
  void finish() {
    while (true) {
      const Result<void> done = backend_.synchronize();
      if (done || done.failure().code() == ErrorCode::device_lost) return;
      note(done);
    }
  }

  Backend& backend_;
  const bool with_kernel_;
};

class OpenClBackend : public test::OpenClTest {
 protected:
  Result<std::unique_ptr<Backend>> try_open() { return open_backend(table(), facts, "opencl:0"); }
  std::unique_ptr<Backend> open() { return try_open().value(); }

  void expect_works(Backend& backend) {
    const Submission main{backend.default_stream(), {}, {}};
    void* block = backend.allocate(MemoryKind::device, 64, 128, {}, {}).value();
    const std::vector<char> in(64, 'x');
    std::vector<char> out(64);
    EXPECT_TRUE(backend.copy(main, block, in.data(), 64));
    EXPECT_TRUE(backend.copy(main, out.data(), block, 64));
    EXPECT_TRUE(backend.synchronize());
    EXPECT_EQ(out, in);
    EXPECT_TRUE(backend.release(block, {}));
  }

  /// Runs the program once for each call it makes, with that call failing.
  void expect_survives_every_fault(bool with_kernel, std::function<bool(std::string_view)> chosen) {
    std::vector<int> calls;
    {
      const auto backend = open();
      Program clean(*backend, with_kernel);
      clean.run();
      ASSERT_TRUE(clean.failures.empty()) << clean.failures.front().text();
      for (const test::PlannedFault* fault : faults) calls.push_back(fault->calls);
    }
    int tried = 0;
    for (std::size_t i = 0; i < faults.size(); ++i) {
      const std::string_view name = faults[i]->name;
      if (!chosen(name)) continue;
      for (int at = 0; at < calls[i]; ++at) {
        SCOPED_TRACE(std::string(name) + " call " + std::to_string(at + 1));
        clear_faults();
        fail(name, result::out_of_host_memory, at);
        ++tried;
        Result<std::unique_ptr<Backend>> backend = try_open();
        if (!backend) {
          EXPECT_EQ(backend.failure().string("call"), name);
          continue;
        }
        Program program(**backend, with_kernel);
        program.run();
        clear_faults();
        for (const Failure& failure : program.failures) {
          EXPECT_EQ(failure.code(), ErrorCode::out_of_memory) << failure.text();
          if (name == "clSVMAlloc") continue;
          EXPECT_EQ(failure.string("call"), name) << failure.text();
        }
        EXPECT_LE(program.host_calls, 1);
        expect_works(**backend);
        backend->reset();
        EXPECT_EQ(test::live_handles<void*>, 0);
        EXPECT_EQ(test::live_handles<cl_event>, 0);
        EXPECT_EQ(test::live_handles<cl_command_queue>, 0);
        EXPECT_EQ(test::live_handles<cl_context>, 0);
        EXPECT_EQ(spans_in_flight(), 0u);
      }
    }
    EXPECT_GT(tried, 0);
  }
};

TEST_F(OpenClBackend, DeclaresWhatTheDeviceOffers) {
  facts.svm = svm_coarse_grain_buffer;
  facts.has_compiler = facts.has_float64 = false;
  EXPECT_EQ(open()->info().capabilities,
            (Capabilities{Capability::host_functions, Capability::stream_ordered_memory,
                          Capability::event_timing}));
  facts.has_compiler = true;
  EXPECT_TRUE(open()->info().capabilities.has(Capability::kernels));
  EXPECT_FALSE(open()->info().capabilities.has(Capability::host_access));
  EXPECT_FALSE(open()->info().capabilities.has(Capability::float64));
  facts.has_float64 = true;
  EXPECT_TRUE(open()->info().capabilities.has(Capability::float64));
}

TEST_F(OpenClBackend, DeclaresOneMemoryForHostAndDeviceWhereItIsFineGrained) {
  if (!facts.is_fine_grained()) GTEST_SKIP() << "is coarse-grained only";
  const Capabilities can = open()->info().capabilities;
  EXPECT_TRUE(can.has(Capability::host_access));
  EXPECT_TRUE(can.has(Capability::managed_memory));
  EXPECT_TRUE(can.has(Capability::concurrent_managed));
}

// What a device does that shares less than the one here: only commands touch its memory.
TEST_F(OpenClBackend, WorksWithCoarseGrainedMemory) {
  facts.svm = svm_coarse_grain_buffer;
  const auto backend = open();
  Program program(*backend, facts.has_compiler);
  program.run();
  EXPECT_TRUE(program.failures.empty()) << program.failures.front().text();
  expect_works(*backend);
}

TEST_F(OpenClBackend, LosesNothingWhenAnyCallFails) {
  expect_survives_every_fault(false,
                              [](std::string_view name) { return name != "clGetEventInfo"; });
}

// Whether events are asked once or twice depends on how fast the device is, so these are fewer.
TEST_F(OpenClBackend, LosesNothingWhenAskingAnEventFails) {
  for (int at = 0; at < 3; ++at) {
    fail("clGetEventInfo", result::out_of_host_memory, at);
    const auto backend = open();
    Program program(*backend, false);
    program.run();
    clear_faults();
    expect_works(*backend);
  }
}

TEST_F(OpenClBackend, LosesNothingWhenACallOfAKernelFails) {
  if (!facts.has_compiler) GTEST_SKIP() << "has no compiler";
  expect_survives_every_fault(true, [](std::string_view name) {
    return name.find("Kernel") != name.npos || name.find("Program") != name.npos;
  });
}

TEST_F(OpenClBackend, FailsFastWithTheFirstCauseOnceTheDeviceIsLost) {
  const auto backend = open();
  const Submission main{backend->default_stream(), {}, {}};
  void* block = backend->allocate(MemoryKind::device, 64, 128, {}, {}).value();
  void* second = backend->allocate(MemoryKind::device, 64, 128, {}, {}).value();
  const NativeStream stream = backend->create_stream({}).value();
  const NativeEvent event = backend->create_event(false).value();
  std::byte host[64] = {};
  fail("clEnqueueSVMMemcpy", result::device_not_available);
  EXPECT_EQ(backend->copy(main, block, host, 64).failure().code(), ErrorCode::device_lost);

  const auto expect_lost = [](const auto& result) {
    ASSERT_FALSE(result);
    EXPECT_EQ(result.failure().code(), ErrorCode::device_lost);
    EXPECT_EQ(result.failure().string("call"), "clEnqueueSVMMemcpy");
  };
  const auto never = [](void*) { ADD_FAILURE() << "the device is lost"; };
  expect_lost(backend->copy(main, block, host, 64));
  expect_lost(backend->copy_2d(main, {block, 8, host, 8, 8, 8}));
  expect_lost(backend->fill(main, block, 64, Pattern{}));
  expect_lost(backend->allocate(MemoryKind::device, 64, 128, {}, {}));
  expect_lost(backend->allocate_async(main, 64, 128));
  expect_lost(backend->call_host(main, never, nullptr));
  expect_lost(backend->create_stream({}));
  expect_lost(backend->create_event(false));
  expect_lost(backend->record(main, event));
  expect_lost(backend->wait(main, event));
  expect_lost(backend->query(event));
  expect_lost(backend->synchronize(event));
  expect_lost(backend->query(stream));
  expect_lost(backend->synchronize(stream));
  expect_lost(backend->synchronize());
  expect_lost(backend->memory());
  expect_lost(backend->pointer_info(block));
  expect_lost(backend->load_kernel({.entry = "add_one", .text = add_one}));
  EXPECT_TRUE(backend->release(block, {}));
  EXPECT_TRUE(backend->release_async(main, second));
  EXPECT_EQ(backend->release(block, {}).failure().code(), ErrorCode::use_after_free);
  backend->destroy_event(event);
  backend->destroy_stream(stream);
}

TEST_F(OpenClBackend, CompletesItsWorkBeforeItEnds) {
  std::vector<std::byte> out(1 << 20);
  {
    const auto backend = open();
    void* block = backend->allocate(MemoryKind::device, out.size(), 128, {}, {}).value();
    const Submission side{backend->create_stream({}).value(), {}, {}};
    Pattern five;
    five.bytes[0] = std::byte{5};
    ASSERT_TRUE(backend->fill(side, block, out.size(), five));
    ASSERT_TRUE(backend->copy(side, out.data(), block, out.size()));
    fail("clWaitForEvents", result::out_of_host_memory);
  }
  EXPECT_GE(calls_of("clWaitForEvents"), 1);  // and was not put off by the refusal
  EXPECT_EQ(out.back(), std::byte{5});
}

TEST_F(OpenClBackend, ServesAPoolOfItsMemory) {
  const Device device(open());
  const tern::Stream produce(device), consume(device);
  const auto pool = std::make_shared<PoolResource>(device);
  std::byte out[1000] = {};
  for (int i = 1; i <= 50; ++i) {
    const Block block = pool->allocate({.bytes = 1000, .stream = produce});
    auto* data = static_cast<std::byte*>(block.address);
    produce.fill(data, 1000, static_cast<std::byte>(i));
    consume.wait(produce.mark());
    consume.copy(out, data, 1000);
    pool->deallocate(block, consume);
    consume.synchronize();
    ASSERT_EQ(out[999], static_cast<std::byte>(i));
  }
}

TEST_F(OpenClBackend, RunsKernelsThroughDevicesAndStreams) {
  if (!facts.has_compiler) GTEST_SKIP() << "has no compiler";
  const Device device(open());
  const tern::Stream stream(device);
  auto* block = static_cast<std::byte*>(device.allocate(MemoryKind::device, 256));
  const NativeKernel kernel = device.try_load_kernel({.entry = "add_one", .text = add_one}).value();
  const KernelArgument argument{&block, sizeof block, block, 256, Access::read_write};
  std::byte out[256] = {};
  stream.fill(block, 256, std::byte{6});
  stream.launch(kernel, {.grid = {4, 1, 1}, .block = {64, 1, 1}}, std::span(&argument, 1));
  stream.copy(out, block, 256);
  stream.synchronize();
  EXPECT_EQ(out[0], std::byte{7});
  EXPECT_EQ(out[255], std::byte{7});
  device.unload_kernel(kernel);
  EXPECT_EQ(stream.try_launch(kernel, {}, std::span(&argument, 1)).failure().code(),
            ErrorCode::use_after_free);
  device.release(block);
}

TEST_F(OpenClBackend, WaitsForEventsOfAnotherDevice) {
  const Device first(open());
  const Device second(open_backend(table(), facts, "opencl:1").value());
  const tern::Stream produce(first), consume(second);
  std::atomic<bool> is_open = false;
  produce.call(
      [](void* flag) {
        while (!*static_cast<std::atomic<bool>*>(flag)) std::this_thread::yield();
      },
      &is_open);
  Event event(first);
  produce.record(event);
  consume.wait(event);
  std::atomic<int> calls = 0;
  consume.call([](void* number) { ++*static_cast<std::atomic<int>*>(number); }, &calls);
  EXPECT_FALSE(consume.is_idle());
  EXPECT_EQ(calls, 0);
  is_open = true;
  consume.synchronize();
  EXPECT_EQ(calls, 1);
}

TEST_F(OpenClBackend, ForgetsStreamsThatEnded) {
  const auto backend = open();
  for (int i = 0; i < 100; ++i) {
    const NativeStream stream = backend->create_stream({.blocking = i % 2 == 0}).value();
    ASSERT_TRUE(backend->call_host(
        {stream, {}, {}}, [](void*) {}, nullptr));
    ASSERT_TRUE(backend->synchronize(stream));
    backend->destroy_stream(stream);
  }
  EXPECT_LT(test::live_handles<cl_command_queue>, 50);
}

}  // namespace
}  // namespace tern::opencl
