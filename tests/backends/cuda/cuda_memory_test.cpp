#include "backends/cuda/cuda_memory.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "support/allocation_counter.hpp"
#include "support/cuda_bench.hpp"
#include "support/forked_child.hpp"
#include "support/thread.hpp"

namespace tern::cuda {
namespace {

constexpr MemoryKind kinds[] = {MemoryKind::device, MemoryKind::pinned, MemoryKind::managed};

std::byte* inside(void* address, std::size_t offset) {
  return static_cast<std::byte*>(address) + offset;
}

TEST(CudaMemory, AllocatesEveryKindAtEveryAlignment) {
  CudaBench bench;
  for (const MemoryKind kind : kinds) {
    for (std::size_t alignment = 256; alignment <= 4 * mib; alignment *= 4) {
      const Result<void*> made = bench.device().allocate(kind, 1000, alignment, {}, {});
      ASSERT_EQ(why(made), "");
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(*made) % alignment, 0u);
      const PointerInfo info = bench.device().pointer_info(inside(*made, 999)).value();
      EXPECT_EQ(info.kind, kind);
      EXPECT_EQ(info.base, *made);
      EXPECT_EQ(info.bytes, 1000u);
      bench.write(*made, numbered(1000));
      EXPECT_EQ(bench.read(*made, 1000), numbered(1000));
      EXPECT_EQ(why(bench.device().release(*made, {})), "");
    }
  }
  EXPECT_TRUE(sim::leaks(bench.fake.device(0)).empty());
}

TEST(CudaMemory, RefusesToFreeTwiceInsideOrWhatIsNotItsOwn) {
  CudaBench bench;
  int somewhere = 0;
  for (const MemoryKind kind : kinds) {
    void* const block = bench.memory(1000, kind);
    void* const other = bench.memory(1000, kind, 1);
    bench.fake.clear_failures();
    EXPECT_EQ(code(bench.device().release(inside(block, 1), {})), "use_after_free");
    EXPECT_EQ(code(bench.device().release(&somewhere, {})), "use_after_free");
    EXPECT_EQ(code(bench.device().release(other, {})), "use_after_free");
    // The driver has not been asked.
    EXPECT_EQ(bench.fake.total_calls(), 0u);
    EXPECT_EQ(why(bench.device().release(block, {})), "");
    const Result<void> twice = bench.device().release(block, {});
    ASSERT_EQ(code(twice), "use_after_free");
    EXPECT_EQ(twice.failure().number("address"), reinterpret_cast<std::uintptr_t>(block));
    EXPECT_EQ(why(bench.device(1).release(other, {})), "");
  }
}

TEST(CudaMemory, SaysWhatWasWantedAndWhatIsLeft) {
  CudaBench bench;
  for (const MemoryKind kind : kinds) {
    const char* const call = kind == MemoryKind::device   ? "cuMemAlloc"
                             : kind == MemoryKind::pinned ? "cuMemHostAlloc"
                                                          : "cuMemAllocManaged";
    bench.fake.fail_call(call, 1, CUDA_ERROR_OUT_OF_MEMORY);
    const Result<void*> refused = bench.device().allocate(kind, 12345, 256, {}, {});
    ASSERT_EQ(code(refused), "out_of_memory");
    EXPECT_EQ(refused.failure().number("requested"), 12345u);
    if (kind == MemoryKind::pinned) {
      // Of the host's memory the driver says nothing.
      EXPECT_FALSE(refused.failure().number("free"));
    } else {
      EXPECT_EQ(refused.failure().number("total"), 64 * mib);
      EXPECT_EQ(refused.failure().number("free"), 64 * mib);
    }
    EXPECT_EQ(refused.failure().string("call"), call);
    EXPECT_EQ(refused.failure().number("code"), 2u);
    EXPECT_EQ(refused.failure().string("device"), "cuda:0?driver=sim");
  }
  EXPECT_EQ(code(bench.device().allocate(MemoryKind::device, 65 * mib, 256, {}, {})),
            "out_of_memory");
}

TEST(CudaMemory, KeepsTheBlockIfTheDriverDoesNotTakeItBack) {
  CudaBench bench;
  for (const MemoryKind kind : kinds) {
    void* const block = bench.memory(1000, kind);
    const char* const call = kind == MemoryKind::pinned ? "cuMemFreeHost" : "cuMemFree";
    for (const char* failing : {call, "cuCtxPushCurrent"}) {
      bench.fake.fail_call(failing, 1, CUDA_ERROR_UNKNOWN);
      const Result<void> refused = bench.device().release(block, {});
      ASSERT_EQ(code(refused), "driver") << failing;
      EXPECT_EQ(refused.failure().string("call"), failing);
      EXPECT_EQ(bench.device().pointer_info(block)->kind, kind);
    }
    EXPECT_EQ(why(bench.device().release(block, {})), "");
  }
  EXPECT_TRUE(sim::leaks(bench.fake.device(0)).empty());
}

TEST(CudaMemory, MapsAndRegistersLargePinnedBlocks) {
  CudaBench bench;
  constexpr std::size_t bytes = 16 * mib + 1000;
  for (const std::size_t alignment : {std::size_t{256}, 4 * mib}) {
    const Result<void*> made =
        bench.device().allocate(MemoryKind::pinned, bytes, alignment, {}, {});
    ASSERT_EQ(why(made), "");
    EXPECT_EQ(bench.fake.live().registrations, 1u);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(*made) % alignment, 0u);
    const PointerInfo info = bench.device().pointer_info(inside(*made, bytes - 1)).value();
    EXPECT_EQ(info.kind, MemoryKind::pinned);
    EXPECT_EQ(info.base, *made);
    EXPECT_EQ(info.bytes, bytes);
    bench.write(*made, numbered(bytes));
    EXPECT_EQ(bench.read(*made, bytes), numbered(bytes));
    const auto has_pages = [&] { return msync(*made, bytes, MS_ASYNC) == 0; };
    EXPECT_EQ(test::in_a_forked_child([&] { return !has_pages(); }), 0);
    EXPECT_EQ(code(bench.device().unregister_host(*made)), "use_after_free");
    for (const char* failing : {"cuMemHostUnregister", "cuCtxPushCurrent"}) {
      bench.fake.fail_call(failing, 1, CUDA_ERROR_UNKNOWN);
      EXPECT_EQ(code(bench.device().release(*made, {})), "driver") << failing;
      EXPECT_TRUE(has_pages());
    }
    EXPECT_EQ(why(bench.device().release(*made, {})), "");
    EXPECT_FALSE(has_pages());
    EXPECT_EQ(bench.fake.live().registrations, 0u);
  }
  EXPECT_EQ(bench.fake.calls("cuMemHostAlloc"), 0u);
}

TEST(CudaMemory, UnmapsLargePinnedBlocksOfALostDevice) {
  CudaBench bench;
  bench.is_lost = true;
  void* const block = bench.memory(16 * mib, MemoryKind::pinned);
  bench.fake.reset(0);
  EXPECT_EQ(code(bench.device().memory()), "device_lost");
  EXPECT_EQ(why(bench.device().release(block, {})), "");
  EXPECT_NE(msync(block, 16 * mib, MS_ASYNC), 0);
}

TEST(CudaMemory, LeavesPinnedBlocksToTheDriverThatItCannotRegister) {
  CudaBench bench;
  bench.fake.fail_call("cuMemHostRegister", 1, CUDA_ERROR_UNKNOWN);
  void* const block = bench.memory(16 * mib, MemoryKind::pinned);
  EXPECT_EQ(bench.fake.calls("cuMemHostAlloc"), 1u);
  EXPECT_EQ(bench.fake.live().registrations, 0u);
  EXPECT_EQ(why(bench.device().release(block, {})), "");
  // Touching more than the machine has would end the process.
  bench.driver.available_host_bytes = []() noexcept { return std::size_t{20 * mib}; };
  void* const large = bench.memory(16 * mib, MemoryKind::pinned);
  EXPECT_EQ(bench.fake.calls("cuMemHostAlloc"), 2u);
  EXPECT_EQ(bench.fake.calls("cuMemHostRegister"), 1u);
  EXPECT_EQ(why(bench.device().release(large, {})), "");
}

TEST(CudaMemory, RegistersNothingWhereTheDeviceWouldUseAnotherAddress) {
  sim::FakeDriverOptions options = sim::bench_options();
  options.attributes = {{CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, 0}};
  CudaBench bench(options);
  void* const block = bench.memory(16 * mib, MemoryKind::pinned);
  EXPECT_EQ(bench.fake.calls("cuMemHostRegister"), 0u);
  EXPECT_EQ(why(bench.device().release(block, {})), "");
}

TEST(CudaMemory, TakesMemoryInStreamOrderFromAPoolOfItsOwn) {
  CudaBench bench;
  const NativeStream stream = bench.stream();
  std::vector<void*> blocks;
  for (const std::size_t alignment : {256u, 4096u}) {
    const Result<void*> made = bench.device().allocate_async({stream}, 5000, alignment);
    ASSERT_EQ(why(made), "");
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(*made) % alignment, 0u);
    EXPECT_EQ(bench.device().pointer_info(*made)->kind, MemoryKind::device);
    bench.fill(*made, 5000, 0x5a, stream);
    blocks.push_back(*made);
  }
  EXPECT_EQ(bench.fake.calls("cuMemPoolCreate"), 1u);
  // What is released is forgotten at once, though the stream is not there yet.
  const std::uint64_t hold = bench.fake.hold(CudaBench::raw(stream));
  EXPECT_EQ(why(bench.device().release_async({stream}, blocks[0])), "");
  EXPECT_EQ(bench.device().pointer_info(blocks[0])->kind, MemoryKind::host);
  EXPECT_EQ(code(bench.device().release_async({stream}, blocks[0])), "use_after_free");
  bench.fake.resume(hold);
  bench.synchronize();
  // By the device, too, when nothing uses it any more.
  EXPECT_EQ(why(bench.device().release(blocks[1], {})), "");
  EXPECT_TRUE(sim::leaks(bench.fake.device(0)).empty());
  bench.backends.clear();
  EXPECT_EQ(bench.fake.calls("cuMemPoolDestroy"), 1u);
}

TEST(CudaMemory, ReleasesInStreamOrderOnlyWhatWasAllocatedSo) {
  CudaBench bench;
  const NativeStream stream = bench.stream();
  void* const block = bench.memory(1000);
  const Result<void> refused = bench.device().release_async({stream}, block);
  ASSERT_EQ(code(refused), "invalid_argument");
  EXPECT_EQ(bench.fake.calls("cuMemFreeAsync"), 0u);
  EXPECT_EQ(why(bench.device().release(block, {})), "");
  int somewhere = 0;
  EXPECT_EQ(code(bench.device().release_async({stream}, &somewhere)), "use_after_free");
}

TEST(CudaMemory, KeepsAPooledBlockIfTheDriverDoesNotTakeItBack) {
  CudaBench bench;
  const NativeStream stream = bench.stream();
  void* const block = bench.device().allocate_async({stream}, 1000, 256).value();
  for (const char* failing : {"cuMemFreeAsync", "cuCtxPushCurrent"}) {
    bench.fake.fail_call(failing, 1, CUDA_ERROR_UNKNOWN);
    ASSERT_EQ(code(bench.device().release_async({stream}, block)), "driver") << failing;
    EXPECT_EQ(bench.device().pointer_info(block)->kind, MemoryKind::device);
  }
  EXPECT_EQ(why(bench.device().release_async({stream}, block)), "");
}

TEST(CudaMemory, TriesAgainToMakeItsPool) {
  CudaBench bench;
  const NativeStream stream = bench.stream();
  for (const char* failing :
       {"cuMemPoolCreate", "cuMemPoolSetAttribute", "cuMemAllocFromPoolAsync"}) {
    bench.fake.fail_call(failing, 1, CUDA_ERROR_OUT_OF_MEMORY);
    const Result<void*> refused = bench.device().allocate_async({stream}, 1000, 256);
    ASSERT_EQ(code(refused), "out_of_memory");
    EXPECT_EQ(refused.failure().string("call"), failing);
  }
  // The one that could not be set up is gone.
  EXPECT_EQ(bench.fake.calls("cuMemPoolDestroy"), 1u);
  void* const block = bench.device().allocate_async({stream}, 1000, 256).value();
  EXPECT_EQ(why(bench.device().release_async({stream}, block)), "");
}

TEST(CudaMemory, RegistersHostMemoryOnceAndRefusesItTwice) {
  CudaBench bench;
  std::vector<std::byte> memory(10'000);
  const Result<void*> on_device = bench.device().register_host(memory.data(), memory.size());
  ASSERT_EQ(why(on_device), "");
  EXPECT_EQ(*on_device, memory.data());
  const PointerInfo info = bench.device().pointer_info(&memory[5000]).value();
  EXPECT_EQ(info.kind, MemoryKind::registered);
  EXPECT_EQ(info.base, memory.data());
  EXPECT_EQ(info.bytes, 10'000u);
  const Result<void*> twice = bench.device().register_host(&memory[100], 100);
  ASSERT_EQ(code(twice), "invalid_argument");
  EXPECT_EQ(twice.failure().number("bytes"), 100u);
  // It was not allocated here, so it is not released here.
  EXPECT_EQ(code(bench.device().release(memory.data(), {})), "use_after_free");
  EXPECT_EQ(code(bench.device().unregister_host(&memory[1])), "use_after_free");
  EXPECT_EQ(why(bench.device().unregister_host(memory.data())), "");
  EXPECT_EQ(code(bench.device().unregister_host(memory.data())), "use_after_free");
  EXPECT_EQ(bench.device().pointer_info(&memory[5000])->kind, MemoryKind::host);
  void* const pinned = bench.memory(1000, MemoryKind::pinned);
  EXPECT_EQ(code(bench.device().unregister_host(pinned)), "use_after_free");
  EXPECT_EQ(why(bench.device().release(pinned, {})), "");
}

TEST(CudaMemory, KeepsARegistrationOrNoneIfTheDriverFails) {
  CudaBench bench;
  std::vector<std::byte> memory(10'000);
  for (const char* failing : {"cuMemHostRegister", "cuMemHostGetDevicePointer"}) {
    bench.fake.fail_call(failing, 1, CUDA_ERROR_UNKNOWN);
    EXPECT_EQ(code(bench.device().register_host(memory.data(), memory.size())), "driver");
    EXPECT_EQ(bench.fake.live().registrations, 0u);
  }
  ASSERT_EQ(why(bench.device().register_host(memory.data(), memory.size())), "");
  for (const char* failing : {"cuMemHostUnregister", "cuCtxPushCurrent"}) {
    bench.fake.fail_call(failing, 1, CUDA_ERROR_UNKNOWN);
    EXPECT_EQ(code(bench.device().unregister_host(memory.data())), "driver") << failing;
    EXPECT_EQ(bench.device().pointer_info(memory.data())->kind, MemoryKind::registered);
  }
  EXPECT_EQ(why(bench.device().unregister_host(memory.data())), "");
}

TEST(CudaMemory, KeepsRegisteredPagesFromForkedChildren) {
  CudaBench bench;
  constexpr std::size_t bytes = 1 << 16;
  void* const memory =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  const auto has_pages = [&] { return msync(memory, bytes, MS_ASYNC) == 0; };
  ASSERT_EQ(why(bench.device().register_host(memory, bytes)), "");
  EXPECT_EQ(test::in_a_forked_child([&] { return !has_pages(); }), 0);
  // Also if giving them back fails.
  bench.fake.fail_call("cuMemHostUnregister", 1, CUDA_ERROR_UNKNOWN);
  EXPECT_EQ(code(bench.device().unregister_host(memory)), "driver");
  EXPECT_EQ(test::in_a_forked_child([&] { return !has_pages(); }), 0);
  ASSERT_EQ(why(bench.device().unregister_host(memory)), "");
  EXPECT_EQ(test::in_a_forked_child(has_pages), 0);
  munmap(memory, bytes);
}

TEST(CudaMemory, DoesNotTakeMemoryOfAnotherDeviceForItsOwn) {
  CudaBench bench;
  void* const there = bench.memory(1000, MemoryKind::device, 1);
  void* const pinned = bench.memory(1000, MemoryKind::pinned, 1);
  void* const managed = bench.memory(1000, MemoryKind::managed, 1);
  EXPECT_EQ(bench.device(1).pointer_info(there)->kind, MemoryKind::device);
  EXPECT_EQ(bench.device(0).pointer_info(there)->kind, MemoryKind::host);
  EXPECT_EQ(bench.device(0).pointer_info(there)->base, nullptr);
  EXPECT_EQ(bench.device(0).pointer_info(pinned)->kind, MemoryKind::pinned);
  EXPECT_EQ(bench.device(0).pointer_info(managed)->kind, MemoryKind::managed);
  for (void* const block : {there, pinned, managed}) {
    EXPECT_EQ(why(bench.device(1).release(block, {})), "");
  }
}

TEST(CudaMemory, AsksTheDriverAboutMemoryOfOthers) {
  CudaBench bench;
  const CudaBench::Elsewhere elsewhere(bench);
  CUdeviceptr plain = 0, managed = 0;
  void* pinned = nullptr;
  ASSERT_EQ(bench.cu.cuMemAlloc(&plain, 1000), CUDA_SUCCESS);
  ASSERT_EQ(bench.cu.cuMemAllocManaged(&managed, 1000, CU_MEM_ATTACH_GLOBAL), CUDA_SUCCESS);
  ASSERT_EQ(bench.cu.cuMemHostAlloc(&pinned, 1000, 0), CUDA_SUCCESS);
  const auto kind_of = [&](std::uintptr_t address) {
    const PointerInfo info =
        bench.device().pointer_info(reinterpret_cast<void*>(address + 10)).value();
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(info.base), address);
    EXPECT_EQ(info.bytes, 1000u);
    return info.kind;
  };
  EXPECT_EQ(kind_of(plain), MemoryKind::device);
  EXPECT_EQ(kind_of(managed), MemoryKind::managed);
  EXPECT_EQ(kind_of(reinterpret_cast<std::uintptr_t>(pinned)), MemoryKind::pinned);
  int ordinary = 0;
  const PointerInfo info = bench.device().pointer_info(&ordinary).value();
  EXPECT_EQ(info.kind, MemoryKind::host);
  EXPECT_EQ(info.base, nullptr);
  bench.fake.fail_call("cuPointerGetAttributes", 1, CUDA_ERROR_UNKNOWN);
  EXPECT_EQ(code(bench.device().pointer_info(&ordinary)), "driver");
  EXPECT_EQ(bench.cu.cuMemFree(plain), CUDA_SUCCESS);
  EXPECT_EQ(bench.cu.cuMemFree(managed), CUDA_SUCCESS);
  EXPECT_EQ(bench.cu.cuMemFreeHost(pinned), CUDA_SUCCESS);
}

TEST(CudaMemory, GivesBackWhatItCannotRemember) {
  if (!test::HeapExhausted::is_possible()) GTEST_SKIP();
  CudaBench bench;
  const NativeStream stream = bench.stream();
  std::vector<std::byte> memory(10'000);
  void* const first = bench.device().allocate_async({stream}, 1000, 256).value();
  Backend& device = bench.device();
  const auto refused = [&](const char* what, auto allocate, auto release) {
    std::optional<Result<void*>> made;
    {
      const test::HeapExhausted exhausted;
      made.emplace(allocate());
    }
    ASSERT_EQ(code(*made), "out_of_memory") << what;
    EXPECT_NE(why(*made).find("for the record of a block"), std::string::npos) << why(*made);
    made.emplace(allocate());
    ASSERT_EQ(why(*made), "") << what;
    EXPECT_EQ(why(release(**made)), "") << what;
  };
  for (const MemoryKind kind : kinds) {
    refused(
        "allocate", [&] { return device.allocate(kind, 1000, 256, {}, {}); },
        [&](void* block) { return device.release(block, {}); });
  }
  refused(
      "allocate_async", [&] { return device.allocate_async({stream}, 1000, 256); },
      [&](void* block) { return device.release_async({stream}, block); });
  refused(
      "register_host", [&] { return device.register_host(memory.data(), memory.size()); },
      [&](void* block) { return device.unregister_host(block); });
  EXPECT_EQ(why(bench.device().release_async({stream}, first)), "");
  bench.synchronize();
  EXPECT_EQ(bench.fake.live().registrations, 0u);
  EXPECT_TRUE(sim::leaks(bench.fake.device(0)).empty());
}

TEST(CudaMemory, NeedsNoHeapToReleaseAndToKeepWhatIsNotTakenBack) {
  if (!test::HeapExhausted::is_possible()) GTEST_SKIP();
  CudaBench bench;
  void* const block = bench.memory(1000);
  bench.fake.fail_call("cuMemFree", 1, CUDA_ERROR_UNKNOWN);
  std::optional<Result<void>> refused, released;
  {
    const test::HeapExhausted exhausted;
    refused = bench.device().release(block, {});
    released = bench.device().release(block, {});
  }
  EXPECT_EQ(code(*refused), "driver");
  EXPECT_EQ(why(*released), "");
  EXPECT_TRUE(sim::leaks(bench.fake.device(0)).empty());
}

TEST(CudaMemory, IsSafeFromManyThreads) {
  CudaBench bench;
  std::vector<test::Thread> threads;
  for (unsigned i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      for (int n = 0; n < 25; ++n) {
        void* const block = bench.memory(1000 + i, kinds[i % 3]);
        EXPECT_EQ(bench.device().pointer_info(block)->bytes, 1000 + i);
        EXPECT_EQ(why(bench.device().release(block, {})), "");
      }
    });
  }
  for (test::Thread& thread : threads) thread.join();
  EXPECT_TRUE(sim::leaks(bench.fake.device(0)).empty());
}

}  // namespace
}  // namespace tern::cuda
