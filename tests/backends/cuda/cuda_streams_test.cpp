#include "backends/cuda/cuda_streams.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "support/allocation_counter.hpp"
#include "support/cuda_bench.hpp"
#include "support/thread.hpp"
#include "tern/device/stream.hpp"

namespace tern::cuda {
namespace {

NativeStream native(CUstream stream) { return {reinterpret_cast<std::uintptr_t>(stream)}; }

struct StreamBench : CudaBench {
  /// Work that is not done before the hold is let go.
  std::uint64_t hold(NativeStream stream) {
    const std::uint64_t held = fake.hold(raw(stream));
    memory_ = memory(1000);
    fill(memory_, 1000, 0x11, stream);
    return held;
  }
  bool is_done(NativeStream stream) { return device().query(stream).value(); }

  void* memory_ = memory(1000);
};

TEST(CudaStreams, ArePrioritisedWithinWhatTheDeviceHas) {
  CudaBench bench;
  for (const auto& [asked, given] : {std::pair{-100, -5}, {-1, -1}, {0, 0}, {100, 0}}) {
    const NativeStream stream =
        bench.device().create_stream({.blocking = asked == 0, .priority = asked}).value();
    unsigned flags = 7;
    const CudaBench::Elsewhere elsewhere(bench);
    EXPECT_EQ(bench.cu.cuStreamGetFlags(CudaBench::raw(stream), &flags), CUDA_SUCCESS);
    EXPECT_EQ(bench.fake.priority(CudaBench::raw(stream)), given);
    EXPECT_EQ(flags, unsigned{asked == 0 ? CU_STREAM_DEFAULT : CU_STREAM_NON_BLOCKING});
    bench.device().destroy_stream(stream);
  }
  EXPECT_EQ(bench.fake.live().streams, 0u);
}

TEST(CudaStreams, HaveNoPrioritiesWhereTheDriverNamesNone) {
  sim::FakeDriver fake;
  const Driver driver = load_driver(fake_library());
  fake.fail_call("cuCtxGetStreamPriorityRange", 1, CUDA_ERROR_UNKNOWN);
  const auto device = open_backend(driver, {.spec = "cuda:0", .staging = no_staging()}).value();
  EXPECT_EQ(why(device->create_stream({.priority = -3})), "");
}

TEST(CudaStreams, AreNotDoneBeforeTheirWorkIs) {
  StreamBench bench;
  const NativeStream stream = bench.stream();
  EXPECT_TRUE(bench.is_done(stream));
  const std::uint64_t hold = bench.hold(stream);
  EXPECT_FALSE(bench.is_done(stream));
  EXPECT_FALSE(bench.is_done(stream));
  bench.fake.resume(hold);
  EXPECT_EQ(why(bench.device().synchronize(stream)), "");
  EXPECT_TRUE(bench.is_done(stream));
  bench.fake.fail_call("cuStreamQuery", 1, CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(code(bench.device().query(stream)), "driver");
}

TEST(CudaStreams, WaitForEventsOfOtherStreamsAndDevices) {
  StreamBench bench;
  const NativeStream first = bench.stream(), second = bench.stream(),
                     other = bench.stream(false, 1);
  const NativeEvent event = bench.device().create_event(false).value();
  const std::uint64_t hold = bench.hold(first);
  EXPECT_EQ(why(bench.device().record({first}, event)), "");
  EXPECT_FALSE(bench.device().query(event).value());
  EXPECT_EQ(why(bench.device().wait({second}, event)), "");
  EXPECT_EQ(why(bench.device(1).wait({other}, event)), "");
  EXPECT_FALSE(bench.is_done(second));
  EXPECT_FALSE(bench.device(1).query(other).value());
  // One that was never recorded stands for nothing.
  EXPECT_EQ(why(bench.device().wait({second}, {})), "");
  bench.fake.resume(hold);
  EXPECT_EQ(why(bench.device().synchronize(event)), "");
  EXPECT_TRUE(bench.device().query(event).value());
  EXPECT_EQ(why(bench.device().synchronize(second)), "");
  EXPECT_EQ(why(bench.device(1).synchronize(other)), "");
  bench.device().destroy_event(event);
  EXPECT_EQ(bench.fake.live().events, 0u);
}

TEST(CudaStreams, MeasureTheTimeBetweenTwoEvents) {
  StreamBench bench;
  const NativeStream stream = bench.stream();
  const NativeEvent start = bench.device().create_event(true).value();
  const NativeEvent end = bench.device().create_event(true).value();
  EXPECT_EQ(why(bench.device().record({stream}, start)), "");
  bench.fill(bench.memory_, 1000, 1, stream);
  EXPECT_EQ(why(bench.device().record({stream}, end)), "");
  EXPECT_EQ(why(bench.device().synchronize(end)), "");
  EXPECT_GT(bench.device().elapsed_ns(start, end).value(), 0u);
  // Events are of a tick's precision: what comes out negative is none at all.
  EXPECT_EQ(bench.device().elapsed_ns(end, start).value(), 0u);
  const NativeEvent plain = bench.device().create_event(false).value();
  EXPECT_EQ(code(bench.device().elapsed_ns(plain, end)), "driver");
  for (const NativeEvent event : {start, end, plain}) bench.device().destroy_event(event);
}

TEST(CudaStreams, NameTheCallThatFailed) {
  StreamBench bench;
  const NativeStream stream = bench.stream();
  const NativeEvent event = bench.device().create_event(false).value();
  const auto failing = [&](const char* call, auto body) {
    bench.fake.fail_call(call, 1, CUDA_ERROR_UNKNOWN);
    const auto result = body();
    ASSERT_EQ(code(result), "driver") << call;
    EXPECT_EQ(result.failure().string("call"), call);
  };
  Backend& device = bench.device();
  failing("cuStreamCreateWithPriority", [&] { return device.create_stream({}); });
  failing("cuStreamSynchronize", [&] { return device.synchronize(stream); });
  failing("cuEventCreate", [&] { return device.create_event(false); });
  failing("cuEventRecord", [&] { return device.record({stream}, event); });
  failing("cuStreamWaitEvent", [&] { return device.wait({stream}, event); });
  failing("cuEventQuery", [&] { return device.query(event); });
  failing("cuEventSynchronize", [&] { return device.synchronize(event); });
  failing("cuStreamGetCtx", [&] { return device.borrow_stream(stream); });
  failing("cuStreamGetId", [&] { return device.borrow_stream(stream); });
  // In waiting for all of them every stream is still waited for.
  const std::uint64_t hold = bench.hold(stream);
  bench.fake.resume(hold);
  failing("cuEventCreate", [&] { return device.synchronize(); });
  failing("cuEventRecord", [&] { return device.synchronize(); });
  failing("cuEventSynchronize", [&] { return device.synchronize(); });
  EXPECT_EQ(why(device.synchronize()), "");
  device.destroy_event(event);
  EXPECT_EQ(bench.fake.live().events, 0u);
}

// --- Borrowed

TEST(CudaStreams, OfOthersAreKnownByANumberThatIsNeverUsedAgain) {
  CudaBench bench;
  const CUstream stream = bench.foreign_stream();
  const BorrowedStream first = bench.device().borrow_stream(native(stream)).value();
  const BorrowedStream again = bench.device().borrow_stream(native(stream)).value();
  EXPECT_FALSE(first.is_default);
  EXPECT_NE(first.id, 0u);
  EXPECT_EQ(first.id, again.id);
  bench.device().destroy_stream(first.native);
  bench.device().destroy_stream(again.native);
  bench.end_foreign(stream);
  // Its handle is the next one's.
  const CUstream next = bench.foreign_stream();
  ASSERT_EQ(next, stream);
  const BorrowedStream other = bench.device().borrow_stream(native(next)).value();
  EXPECT_NE(other.id, first.id);
  bench.device().destroy_stream(other.native);
  bench.end_foreign(next);
}

TEST(CudaStreams, OfOthersHaveNoNumberWithOlderDrivers) {
  sim::FakeDriverOptions options = sim::bench_options();
  options.driver_version = 11080;
  CudaBench bench(options);
  const CUstream stream = bench.foreign_stream();
  const BorrowedStream borrowed = bench.device().borrow_stream(native(stream)).value();
  EXPECT_EQ(borrowed.id, 0u);
  void* const memory = bench.memory(100);
  bench.fill(memory, 100, 7, borrowed.native);
  bench.device().destroy_stream(borrowed.native);
  bench.end_foreign(stream);
}

TEST(CudaStreams, MeanTheLegacyStreamByNullAndByItsOwnHandle) {
  CudaBench bench;
  for (const std::uintptr_t handle : {std::uintptr_t{0}, stream_legacy}) {
    const BorrowedStream borrowed = bench.device().borrow_stream({handle}).value();
    EXPECT_TRUE(borrowed.is_default);
    EXPECT_EQ(borrowed.native.value, bench.device().default_stream().value);
  }
}

TEST(CudaStreams, OfAnotherDeviceAreRefused) {
  CudaBench bench;
  const CUstream stream = bench.foreign_stream(CU_STREAM_NON_BLOCKING, 1);
  const Result<BorrowedStream> refused = bench.device().borrow_stream(native(stream));
  ASSERT_EQ(code(refused), "device_mismatch");
  EXPECT_EQ(refused.failure().string("a"), "cuda:0?driver=sim");
  EXPECT_EQ(why(bench.device(1).borrow_stream(native(stream))), "");
  EXPECT_EQ(code(bench.device().borrow_stream({0x1230})), "driver");
}

TEST(CudaStreams, OfOthersEndByTheLoanOnly) {
  StreamBench bench;
  const CUstream stream = bench.foreign_stream();
  const BorrowedStream first = bench.device().borrow_stream(native(stream)).value();
  const BorrowedStream second = bench.device().borrow_stream(native(stream)).value();
  bench.device().destroy_stream(first.native);
  // The other loan still counts: its work is waited for.
  const std::uint64_t hold = bench.hold(second.native);
  test::Thread([&] { bench.fake.resume(hold); }).join();
  bench.synchronize();
  EXPECT_TRUE(bench.is_done(second.native));
  bench.device().destroy_stream(second.native);
  bench.device().destroy_stream(second.native);  // which is none any more
  EXPECT_EQ(bench.fake.live().streams, 1u);
  bench.backends.clear();
  EXPECT_EQ(bench.fake.live().streams, 1u);
  bench.end_foreign(stream);
}

TEST(CudaStreams, OfItsOwnMayComeBackAsLoans) {
  StreamBench bench;
  const NativeStream stream = bench.stream();
  const BorrowedStream loan = bench.device().borrow_stream(stream).value();
  bench.device().destroy_stream(loan.native);
  // The loan has ended, and not the stream.
  EXPECT_EQ(bench.fake.live().streams, 1u);
  bench.fill(bench.memory_, 1000, 1, stream);
  bench.synchronize();
  bench.device().destroy_stream(stream);
  EXPECT_EQ(bench.fake.live().streams, 0u);
}

TEST(CudaStreams, OfAThreadsOwnAreRefusedFromAnyOther) {
  StreamBench bench;
  const BorrowedStream own = bench.device().borrow_stream({stream_per_thread}).value();
  EXPECT_FALSE(own.is_default);
  EXPECT_NE(own.id, 0u);
  Backend& device = bench.device();
  bench.fill(bench.memory_, 1000, 1, own.native);
  EXPECT_EQ(why(device.synchronize(own.native)), "");
  void* const pooled = device.allocate_async({own.native}, 100, 256).value();
  test::Thread([&] {
    const NativeEvent event = device.create_event(false).value();
    const Result<void> refused = device.synchronize(own.native);
    ASSERT_EQ(code(refused), "stream_misuse");
    EXPECT_EQ(refused.failure().number("stream"), std::uint64_t{stream_per_thread});
    EXPECT_EQ(code(device.query(own.native)), "stream_misuse");
    EXPECT_EQ(code(device.record({own.native}, event)), "stream_misuse");
    EXPECT_EQ(code(device.wait({own.native}, event)), "stream_misuse");
    EXPECT_EQ(code(device.fill({own.native}, bench.memory_, 10, {})), "stream_misuse");
    EXPECT_EQ(code(device.allocate_async({own.native}, 10, 256)), "stream_misuse");
    EXPECT_EQ(code(device.release_async({own.native}, pooled)), "stream_misuse");
    // It is that thread's to wait for.
    EXPECT_EQ(why(device.synchronize()), "");
    // Here the same handle is another stream.
    const BorrowedStream here = device.borrow_stream({stream_per_thread}).value();
    EXPECT_NE(here.id, own.id);
    device.destroy_stream(here.native);
    device.destroy_event(event);
  }).join();
  EXPECT_EQ(why(device.release_async({own.native}, pooled)), "");
  bench.synchronize();
  // The other thread may end the loan.
  test::Thread([&] { device.destroy_stream(own.native); }).join();
  // And one that is never ended ends with the device.
  EXPECT_EQ(why(device.borrow_stream({stream_per_thread})), "");
}

// --- All of them

TEST(CudaStreams, AreAllWaitedForAlsoThoseThatEnded) {
  StreamBench bench;
  const NativeStream stream = bench.stream();
  std::uint64_t hold = bench.hold(stream);
  bench.device().destroy_stream(stream);
  EXPECT_EQ(bench.fake.live().streams, 0u);
  EXPECT_EQ(bench.fake.live().events, 1u);
  test::Thread other([&] { bench.fake.resume(hold); });
  bench.synchronize();
  other.join();
  EXPECT_EQ(bench.fake.live().events, 0u);
  EXPECT_EQ(bench.read(bench.memory_, 1)[0], std::byte{0x11});
  // What they leave behind does not pile up.
  for (int i = 0; i < 40; ++i) {
    const NativeStream one = bench.stream();
    hold = bench.hold(one);
    bench.device().destroy_stream(one);
    bench.fake.resume(hold);
    bench.fake.device(0).synchronize();
  }
  EXPECT_LT(bench.fake.live().events, 30u);
  bench.synchronize();
  EXPECT_EQ(bench.fake.live().events, 0u);
}

TEST(CudaStreams, ThatAreBorrowedAgainAndAgainShareAnEventForWhatTheyLeave) {
  StreamBench bench;
  const CUstream foreign = bench.foreign_stream();
  const auto lend = [&] {
    const BorrowedStream borrowed = bench.device().borrow_stream(native(foreign)).value();
    bench.fill(bench.memory_, 1000, 0x11, borrowed.native);
    bench.device().destroy_stream(borrowed.native);
  };
  const auto finish = [&] {
    const CudaBench::Elsewhere elsewhere(bench);
    EXPECT_EQ(bench.cu.cuStreamSynchronize(foreign), CUDA_SUCCESS);
  };
  bench.fake.clear_failures();
  for (int i = 0; i < 100; ++i) {
    lend();
    finish();
  }
  EXPECT_EQ(bench.fake.calls("cuEventCreate"), 1u);
  lend();
  lend();
  EXPECT_EQ(bench.fake.calls("cuEventCreate"), 2u) << "one that is not done is left alone";
  finish();
  bench.fake.clear_failures();
  bench.fake.fail_call("cuEventRecord", 1, CUDA_ERROR_OUT_OF_MEMORY);
  lend();
  EXPECT_EQ(bench.fake.calls("cuStreamSynchronize"), 1u) << "where nothing can be left behind";
  bench.synchronize();
  EXPECT_EQ(bench.fake.live().events, 0u);
  bench.end_foreign(foreign);
}

TEST(CudaStreams, ThatEndedAreWaitedForByEverybodyWhoWaitsForAll) {
  StreamBench bench;
  const NativeStream stream = bench.stream();
  const std::uint64_t hold = bench.hold(stream);
  bench.device().destroy_stream(stream);
  std::atomic<int> returned = 0;
  const auto wait = [&] {
    EXPECT_EQ(why(bench.device().synchronize()), "");
    ++returned;
  };
  const std::uint64_t before = bench.fake.calls("cuEventSynchronize");
  test::Thread first(wait);
  // Each waits for the default stream, which is done, and then for what was left.
  const auto both_wait = [&](std::uint64_t calls) {
    while (bench.fake.calls("cuEventSynchronize") < before + calls && returned == 0) {
      std::this_thread::yield();
    }
  };
  both_wait(2);
  test::Thread second(wait);
  both_wait(4);
  EXPECT_EQ(returned, 0);
  bench.fake.resume(hold);
  first.join();
  second.join();
  EXPECT_EQ(returned, 2);
  EXPECT_EQ(bench.fake.live().events, 0u);
}

TEST(CudaStreams, OfAThreadsOwnAreGivenToOthersByTheDriversNumberForThem) {
  CudaBench bench;
  const BorrowedStream own = bench.device().borrow_stream({stream_per_thread}).value();
  EXPECT_NE(own.native.value, stream_per_thread);
  EXPECT_EQ(bench.device().native_handle(own.native).value, stream_per_thread);
  const NativeStream made = bench.stream();
  EXPECT_EQ(bench.device().native_handle(made).value, made.value);
  bench.device().destroy_stream(own.native);
}

TEST(CudaStreams, ThatWereBeingCapturedWhenTheyEndedGiveTheirPlaceBack) {
  CudaBench bench;
  const CUstream captured = bench.foreign_stream();
  const Device device(bench.open(0).value());
  std::set<std::uint32_t> slots;
  for (int i = 0; i < 20; ++i) {
    {
      const Stream borrowed = Stream::borrow(device, native(captured));
      slots.insert(borrowed.id().slot());
      bench.capture(captured, CU_STREAM_CAPTURE_MODE_RELAXED);
      static_cast<void>(borrowed.mark());
    }
    EXPECT_TRUE(bench.is_capturing(captured));
    bench.fake.end_capture(captured);
  }
  EXPECT_LE(slots.size(), 2u);
  bench.end_foreign(captured);
}

TEST(CudaStreams, ThatCanLeaveNothingBehindAreWaitedFor) {
  StreamBench bench;
  for (const char* failing : {"cuEventCreate", "cuEventRecord"}) {
    const NativeStream stream = bench.stream();
    const std::uint64_t hold = bench.hold(stream);
    bench.fake.fail_call(failing, 1, CUDA_ERROR_OUT_OF_MEMORY);
    test::Thread other([&] { bench.fake.resume(hold); });
    bench.device().destroy_stream(stream);
    other.join();
    EXPECT_GE(bench.fake.calls("cuStreamSynchronize"), 1u);
    EXPECT_EQ(bench.fake.live().events, 0u);
    EXPECT_EQ(bench.fake.live().streams, 0u);
  }
}

TEST(CudaStreams, ThatEndWhileTheDriverHasFaultsAreStillWaitedFor) {
  for (const std::vector<const char*>& failing :
       {std::vector{"cuEventQuery"}, std::vector{"cuStreamQuery"},
        std::vector{"cuStreamIsCapturing"}, std::vector{"cuEventRecord", "cuStreamSynchronize"}}) {
    SCOPED_TRACE(failing[0]);
    StreamBench bench;
    std::vector<std::uint64_t> holds;
    std::vector<void*> used;
    for (const char* const call : failing) {
      bench.fake.fail_calls_from(call, 1, CUDA_ERROR_UNKNOWN);
    }
    for (int i = 0; i < 20; ++i) {
      const NativeStream stream = bench.stream();
      holds.push_back(bench.hold(stream));
      used.push_back(bench.memory_);
      bench.device().destroy_stream(stream);
    }
    bench.fake.clear_failures();
    std::atomic<bool> has_resumed = false;
    test::Thread other([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
      has_resumed = true;
      for (const std::uint64_t hold : holds) bench.fake.resume(hold);
    });
    bench.synchronize();
    EXPECT_TRUE(has_resumed);
    other.join();
    // The checker reports memory that is released while a stream may use it.
    for (void* const memory : used) EXPECT_EQ(why(bench.device().release(memory, {})), "");
    const std::uint64_t waits = bench.fake.calls("cuCtxSynchronize");
    bench.synchronize();
    EXPECT_EQ(bench.fake.calls("cuCtxSynchronize"), waits) << "one wait is enough";
    EXPECT_EQ(bench.fake.live().events, 0u);
  }
}

TEST(CudaStreams, NeedNoHeapToEndAndSayIfTheyWantSomeElsewhere) {
  if (!test::HeapExhausted::is_possible()) GTEST_SKIP();
  StreamBench bench;
  const CUstream foreign = bench.foreign_stream();
  Backend& device = bench.device();
  std::vector<NativeStream> made;
  made.reserve(100);
  const auto refused = [&](const char* what, auto make) {
    std::optional<Failure> failure;
    // Until there is no room left for one more.
    for (int i = 0; i < 100 && !failure; ++i) {
      const test::HeapExhausted exhausted;
      if (const auto stream = make()) {
        made.push_back(*stream);
      } else {
        failure = stream.failure();
      }
    }
    ASSERT_TRUE(failure) << what;
    EXPECT_EQ(failure->code(), ErrorCode::out_of_memory);
    EXPECT_EQ(failure->string("what"), what);
    for (const NativeStream stream : made) device.destroy_stream(stream);
    made.clear();
  };
  const auto borrow = [&](NativeStream handle) -> Result<NativeStream> {
    const Result<BorrowedStream> stream = device.borrow_stream(handle);
    if (!stream) return stream.failure();
    return stream->native;
  };
  refused("a stream", [&] { return device.create_stream({}); });
  refused("a borrowed stream", [&] { return borrow(native(foreign)); });
  refused("a borrowed stream", [&] { return borrow({stream_per_thread}); });
  refused("synchronisation", [&]() -> Result<NativeStream> {
    const Result<void> done = device.synchronize();
    if (!done) return done.failure();
    return NativeStream{};
  });
  EXPECT_EQ(bench.fake.live().streams, 1u);
  // Ending one that has work left, with no memory to remember it by.
  for (std::size_t left = 0; left < 30; ++left) {
    const NativeStream stream = bench.stream();
    const std::uint64_t hold = bench.hold(stream);
    test::Thread other([&] { bench.fake.resume(hold); });
    {
      const test::HeapExhausted exhausted(left);
      device.destroy_stream(stream);
    }
    other.join();
    bench.synchronize();
    EXPECT_EQ(bench.fake.live().events, 0u);
  }
  bench.end_foreign(foreign);
}

// --- Beside a capture

TEST(CudaStreams, LeaveACaptureOfSomebodyElseAlone) {
  for (const CUstreamCaptureMode mode :
       {CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
        CU_STREAM_CAPTURE_MODE_RELAXED}) {
    StreamBench bench;
    Backend& device = bench.device();
    const CUstream captured = bench.foreign_stream();
    const NativeEvent event = device.create_event(false).value();
    std::vector<std::byte> memory(10'000);
    bench.capture(captured, mode);
    const auto unharmed = [&](const char* what, const auto& result) {
      EXPECT_EQ(why(result), "") << what;
      EXPECT_TRUE(bench.is_capturing(captured)) << what;
    };
    for (const MemoryKind kind : {MemoryKind::device, MemoryKind::pinned, MemoryKind::managed}) {
      const Result<void*> block = device.allocate(kind, 1000, 256, {}, {});
      unharmed("allocate", block);
      unharmed("release", device.release(*block, {}));
    }
    unharmed("register_host", device.register_host(memory.data(), memory.size()));
    unharmed("unregister_host", device.unregister_host(memory.data()));
    const Result<void*> addresses = device.reserve(sim::page_bytes);
    unharmed("reserve", addresses);
    const Result<NativePages> pages = device.create_pages(sim::page_bytes);
    unharmed("create_pages", pages);
    unharmed("map", device.map(*addresses, *pages));
    unharmed("set_access", device.set_access(*addresses, sim::page_bytes, PageAccess::read_write));
    unharmed("unmap", device.unmap(*addresses, sim::page_bytes));
    unharmed("release_pages", device.release_pages(*pages));
    unharmed("unreserve", device.unreserve(*addresses, sim::page_bytes));
    const Result<NativeStream> stream = device.create_stream({});
    unharmed("create_stream", stream);
    const Result<void*> pooled = device.allocate_async({*stream}, 1000, 256);
    unharmed("allocate_async", pooled);
    unharmed("release_async", device.release_async({*stream}, *pooled));
    unharmed("record", device.record({*stream}, event));
    unharmed("query of an event", device.query(event));
    unharmed("synchronize an event", device.synchronize(event));
    unharmed("query of a stream", device.query(*stream));
    unharmed("synchronize a stream", device.synchronize(*stream));
    unharmed("synchronize", device.synchronize());
    unharmed("enable_peer_access", device.enable_peer_access(bench.device(1)));
    unharmed("peer_access", device.peer_access(bench.device(1)));
    unharmed("disable_peer_access", device.disable_peer_access(bench.device(1)));
    device.destroy_stream(*stream);
    EXPECT_TRUE(bench.is_capturing(captured));
    device.destroy_event(event);
    bench.backends.clear();
    EXPECT_TRUE(bench.is_capturing(captured));
    bench.fake.end_capture(captured);
    bench.end_foreign(captured);
  }
}

TEST(CudaStreams, KeepTheLibrarysOwnEventsOutOfGraphs) {
  StreamBench bench;
  Backend& device = bench.device();
  const CUstream captured = bench.foreign_stream();
  const NativeStream stream = bench.stream();
  const NativeEvent event = device.create_event(false).value();
  EXPECT_EQ(why(device.record({.stream = stream, .stays_out_of_graphs = true}, event)), "");
  EXPECT_FALSE(device.is_capturing(native(captured)).value());
  bench.capture(captured);
  bench.fake.clear_failures();
  EXPECT_TRUE(device.is_capturing(native(captured)).value());
  EXPECT_FALSE(device.is_capturing(stream).value());
  const Submission there{.stream = native(captured), .stays_out_of_graphs = true};
  EXPECT_EQ(code(device.record(there, event)), "stream_misuse");
  EXPECT_EQ(code(device.wait(there, event)), "stream_misuse");
  EXPECT_EQ(bench.fake.calls("cuEventRecord") + bench.fake.calls("cuStreamWaitEvent"), 0u);
  EXPECT_TRUE(bench.is_capturing(captured));
  // What is the caller's own is the driver's affair: streams are forked and joined with it.
  EXPECT_EQ(why(device.record({.stream = native(captured)}, event)), "");
  EXPECT_EQ(bench.fake.calls("cuEventRecord"), 1u);
  bench.fake.end_capture(captured);
  device.destroy_event(event);
  bench.end_foreign(captured);
}

TEST(CudaStreams, CallTheLegacyStreamCapturedWhereABlockingOneIs) {
  StreamBench bench;
  const CUstream captured = bench.foreign_stream(CU_STREAM_DEFAULT);
  EXPECT_FALSE(bench.device().is_capturing(bench.device().default_stream()).value());
  bench.capture(captured);
  EXPECT_TRUE(bench.device().is_capturing(bench.device().default_stream()).value());
  bench.fake.end_capture(captured);
  bench.fake.fail_call("cuStreamIsCapturing", 1, CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(code(bench.device().is_capturing(bench.device().default_stream())), "driver");
  bench.end_foreign(captured);
}

TEST(CudaStreams, CanBeBorrowedAndGivenBackInTheMiddleOfACapture) {
  StreamBench bench;
  const CUstream captured = bench.foreign_stream();
  const BorrowedStream borrowed = bench.device().borrow_stream(native(captured)).value();
  bench.capture(captured);
  EXPECT_EQ(why(bench.device().borrow_stream(native(captured))), "");
  // What goes into a graph is not work, but what was submitted before it may be.
  EXPECT_EQ(code(bench.device().synchronize()), "stream_misuse");
  EXPECT_TRUE(bench.is_capturing(captured));
  bench.device().destroy_stream(borrowed.native);
  EXPECT_TRUE(bench.is_capturing(captured));
  bench.backends.clear();
  EXPECT_TRUE(bench.is_capturing(captured));
  bench.fake.end_capture(captured);
  bench.end_foreign(captured);
}

TEST(CudaStreams, SayThatACaptureOfABlockingStreamIsInTheWay) {
  StreamBench bench;
  const CUstream captured = bench.foreign_stream(CU_STREAM_DEFAULT);
  const NativeStream stream = bench.stream();
  const std::uint64_t hold = bench.hold(stream);
  bench.capture(captured);
  bench.fake.resume(hold);
  bench.fake.clear_failures();
  // The legacy stream would become a part of it, so it cannot be waited for; all others are.
  const Result<void> refused = bench.device().synchronize();
  ASSERT_EQ(code(refused), "stream_misuse");
  EXPECT_EQ(refused.failure().number("code"), 906u);
  EXPECT_TRUE(bench.is_done(stream));
  EXPECT_EQ(bench.fake.calls("cuEventRecord"), 1u);
  EXPECT_TRUE(bench.is_capturing(captured));
  bench.fake.end_capture(captured);
  bench.synchronize();
  bench.end_foreign(captured);
}

}  // namespace
}  // namespace tern::cuda
