#include "backends/opencl/opencl_memory.hpp"

#include <cstring>

#include "support/opencl_bench.hpp"

namespace tern::opencl {
namespace {

class OpenClMemory : public test::OpenClTest {
 protected:
  void SetUp() override {
    OpenClTest::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    make(facts);
  }
  void make(const DeviceFacts& described) {
    memory.reset();
    context = Context::open(table(), described, "opencl:0").value();
    memory = std::make_unique<Memory>(context);
  }
  void TearDown() override {
    memory.reset();
    OpenClTest::TearDown();
  }
  void* take(std::size_t bytes, std::size_t alignment = Memory::alignment) {
    return memory->allocate(MemoryKind::device, bytes, alignment).value();
  }
  std::size_t used() const { return facts.total_bytes - memory->free_bytes(); }

  std::unique_ptr<Memory> memory;
};

TEST_F(OpenClMemory, CountsWhatIsInUse) {
  void* first = take(1000);
  EXPECT_EQ(used(), 1000u);
  void* second = take(24);
  EXPECT_EQ(used(), 1024u);
  EXPECT_TRUE(memory->release(first));
  EXPECT_TRUE(memory->release(second));
  EXPECT_EQ(used(), 0u);
  EXPECT_EQ(memory->live_blocks(), 0u);
}

TEST_F(OpenClMemory, AlignsBeyondWhatOpenClPromises) {
  for (std::size_t alignment = 128; alignment <= Memory::max_alignment; alignment *= 2) {
    void* address = take(100, alignment);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(address) % alignment, 0u);
    EXPECT_EQ(used(), 100 + alignment - 128);  // the price of it
    EXPECT_TRUE(memory->release(address));
  }
}

TEST_F(OpenClMemory, LetsTheHostUseFineGrainedBlocks) {
  if (!facts.is_fine_grained()) GTEST_SKIP() << "is coarse-grained only";
  void* address = take(64);
  std::memset(address, 7, 64);
  EXPECT_EQ(static_cast<unsigned char*>(address)[63], 7);
  EXPECT_TRUE(memory->release(address));
}

TEST_F(OpenClMemory, KnowsABlockByAnyAddressInIt) {
  auto* address = static_cast<std::byte*>(take(1000, 4096));
  EXPECT_EQ(memory->find(address + 999)->base, address);
  EXPECT_EQ(memory->find(address + 999)->bytes, 1000u);
  EXPECT_FALSE(memory->find(address + 1000));
  EXPECT_FALSE(memory->find(address - 1));
  EXPECT_TRUE(memory->release(address));
  EXPECT_FALSE(memory->find(address));
}

TEST_F(OpenClMemory, RefusesAddressesThatAreNotThoseOfALiveBlock) {
  auto* address = static_cast<std::byte*>(take(1000));
  EXPECT_EQ(memory->release(address + 128).failure().code(), ErrorCode::use_after_free);
  EXPECT_TRUE(memory->release(address));
  const Result<void> again = memory->release(address);
  EXPECT_EQ(again.failure().code(), ErrorCode::use_after_free);
  EXPECT_EQ(again.failure().number("address"), reinterpret_cast<std::uintptr_t>(address));
}

TEST_F(OpenClMemory, GivesNoMoreThanThereIs) {
  DeviceFacts small = facts;
  small.total_bytes = 1000;
  small.largest_block_bytes = 600;
  make(small);
  EXPECT_FALSE(memory->allocate(MemoryKind::device, 601, 128));
  EXPECT_FALSE(memory->allocate(MemoryKind::device, 500, 256));  // 628 with the slack
  void* most = take(600);
  const Result<void*> refused = memory->allocate(MemoryKind::device, 401, 128);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.failure().code(), ErrorCode::out_of_memory);
  EXPECT_EQ(refused.failure().number("requested"), 401u);
  EXPECT_EQ(refused.failure().number("free"), 400u);
  EXPECT_EQ(refused.failure().number("total"), 1000u);
  EXPECT_EQ(refused.failure().number("largest"), 600u);
  void* rest = take(400);
  EXPECT_EQ(memory->free_bytes(), 0u);
  EXPECT_TRUE(memory->release(most));
  EXPECT_TRUE(memory->release(rest));
}

TEST_F(OpenClMemory, KeepsNoChargeForABlockThatOpenClRefused) {
  fail("clSVMAlloc", 0);
  EXPECT_EQ(memory->allocate(MemoryKind::device, 100, 128).failure().code(),
            ErrorCode::out_of_memory);
  EXPECT_EQ(used(), 0u);
}

TEST_F(OpenClMemory, IsDeadToCallersBetweenTheHalvesOfARelease) {
  void* address = take(100);
  EXPECT_TRUE(memory->begin_release(address));
  EXPECT_FALSE(memory->find(address));
  EXPECT_EQ(memory->release(address).failure().code(), ErrorCode::use_after_free);
  EXPECT_EQ(used(), 100u);  // still taken
  memory->cancel_release(address);
  EXPECT_TRUE(memory->find(address));
  EXPECT_TRUE(memory->begin_release(address));
  memory->finish_release(address);
  EXPECT_EQ(used(), 0u);
}

TEST_F(OpenClMemory, GivesNothingAndTakesEverythingOnceTheDeviceIsLost) {
  void* address = take(100);
  static_cast<void>(context->lose("clFlush", result::device_not_available));
  EXPECT_EQ(memory->allocate(MemoryKind::device, 100, 128).failure().code(),
            ErrorCode::device_lost);
  EXPECT_TRUE(memory->release(address));
  EXPECT_EQ(memory->release(address).failure().code(), ErrorCode::use_after_free);
}

TEST_F(OpenClMemory, FreesWhatNobodyReleased) {
  take(100);
  take(200, 4096);
  memory.reset();
  EXPECT_EQ(test::live_handles<void*>, 0);
}

}  // namespace
}  // namespace tern::opencl
