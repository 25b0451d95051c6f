// What every resource guarantees: sizes, alignments and generations, misuse that changes nothing,
// statistics that end at zero, and a stream order that the checker accepts.

#include "tern/memory/resource.hpp"

#include <atomic>
#include <cstring>
#include <random>

#include "memory/block_table.hpp"
#include "support/resources.hpp"
#include "support/simulated.hpp"
#include "support/thread.hpp"
#include "tern/core/bytes.hpp"
#include "tern/device/stream.hpp"

namespace tern::test {
namespace {

class EveryResource : public testing::TestWithParam<ResourceCase> {
 protected:
  [[nodiscard]] Block take(std::size_t bytes, std::size_t alignment = 0) {
    return resource->allocate({.bytes = bytes, .alignment = alignment, .stream = stream});
  }
  void give(const Block& block) { ASSERT_TRUE(resource->try_deallocate(block, stream)); }
  void expect_refused(const Block& block, StreamRef on, ErrorCode code) {
    const Statistics before = resource->statistics();
    const CallSite here = CallSite::here();
    const Result<void> freed = resource->try_deallocate(block, on, here);
    ASSERT_FALSE(freed);
    EXPECT_EQ(name(freed.failure().code()), name(code)) << freed.failure().text();
    EXPECT_EQ(freed.failure().site().line, here.line);
    EXPECT_EQ(resource->statistics().live_bytes, before.live_bytes);
    EXPECT_EQ(resource->statistics().live_blocks, before.live_blocks);
  }
  void TearDown() override {
    stream.synchronize();
    EXPECT_EQ(resource->statistics().live_bytes, 0u);
    EXPECT_EQ(resource->statistics().live_blocks, 0u);
    if (device.info().backend != "sim") return;
    resource.reset();  // with what it keeps
    for (const Finding& finding : sim::findings(device)) ADD_FAILURE() << finding.text();
    EXPECT_TRUE(sim::leaks(device).empty());
  }

  Device device = GetParam().open();
  ResourceHandle resource = GetParam().make(device);
  Stream stream{device, {.name = "A"}};
};
INSTANTIATE_TEST_SUITE_P(OfTheLibrary, EveryResource, testing::ValuesIn(every_resource()),
                         case_name);

TEST_P(EveryResource, GivesMemoryThatWorks) {
  const Block block = take(1000);
  EXPECT_GE(block.bytes, 1000u);
  EXPECT_EQ(block.device, device.id());
  EXPECT_EQ(state_of(block.generation), BlockState::live);
  const std::vector<std::byte> out(1000, std::byte{5});
  std::vector<std::byte> in(1000);
  stream.copy(block.address, out.data(), 1000);
  stream.copy(in.data(), block.address, 1000);
  stream.synchronize();
  EXPECT_EQ(in, out);
  give(block);
  stream.synchronize();
  EXPECT_EQ(state_of(block.generation), BlockState::freed);
}

TEST_P(EveryResource, GrantsWhatItSaysItWould) {
  for (const std::size_t bytes : {1u, 255u, 256u, 257u, 4096u, 100'000u, 3'000'000u}) {
    const Request request{.bytes = bytes, .stream = stream};
    const std::size_t promised = resource->good_size(request);
    const Block block = resource->allocate(request);
    EXPECT_EQ(block.bytes, promised);
    give(block);
  }
}

TEST_P(EveryResource, AlignsAsItIsAsked) {
  const ResourceTraits traits = resource->traits();
  for (std::size_t alignment = 1; alignment <= 2 * mib; alignment *= 2) {
    const Block block = take(100, alignment);
    EXPECT_EQ(
        reinterpret_cast<std::uintptr_t>(block.address) % std::max(alignment, traits.alignment),
        0u);
    give(block);
  }
  for (const std::size_t wrong : {std::size_t{3}, std::size_t{257}, traits.max_alignment * 2}) {
    const Result<Block> refused =
        resource->try_allocate({.bytes = 64, .alignment = wrong, .stream = stream});
    ASSERT_FALSE(refused) << wrong;
    EXPECT_EQ(refused.failure().code(), ErrorCode::misaligned);
  }
}

TEST_P(EveryResource, GivesAnEmptyBlockForNothing) {
  const Block empty = take(0);
  EXPECT_EQ(empty, Block{});
  EXPECT_EQ(resource->good_size({.bytes = 0}), 0u);
  EXPECT_TRUE(resource->try_deallocate(empty, stream));
  EXPECT_EQ(resource->statistics().requests, 1u);
  EXPECT_EQ(resource->statistics().frees, 0u);
}

TEST_P(EveryResource, RefusesSizesThatMemoryCannotHave) {
  for (const std::size_t bytes :
       {SIZE_MAX, SIZE_MAX - 255, SIZE_MAX / 2 + 1, max_request_bytes + 1}) {
    const CallSite here = CallSite::here();
    const Result<Block> refused =
        resource->try_allocate({.bytes = bytes, .stream = stream, .site = here});
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.failure().code(), ErrorCode::size_overflow);
    EXPECT_EQ(refused.failure().site().line, here.line);
  }
  const Result<Block> too_much =
      resource->try_allocate({.bytes = max_request_bytes, .stream = stream});
  ASSERT_FALSE(too_much);
  EXPECT_EQ(name(too_much.failure().code()), name(ErrorCode::out_of_memory));
  EXPECT_EQ(resource->statistics().refusals, 5u);
  EXPECT_EQ(resource->statistics().live_bytes, 0u);
  give(take(64));
}

TEST_P(EveryResource, TakesABlockBackOnce) {
  const Block block = take(100);
  give(block);
  expect_refused(block, stream, ErrorCode::use_after_free);
  const Block next = take(100);
  expect_refused(block, stream, ErrorCode::use_after_free);  // even if the address is the same
  EXPECT_EQ(state_of(next.generation), BlockState::live);
  give(next);
}

TEST_P(EveryResource, DistinguishesBadFrees) {
  const Block block = take(1000);
  Block wrong = block;
  wrong.address = static_cast<std::byte*>(block.address) + 10;
  expect_refused(wrong, stream, ErrorCode::out_of_bounds);
  wrong = block;
  wrong.device = DeviceId{0xFFFFFF};
  expect_refused(wrong, stream, ErrorCode::device_mismatch);
  wrong = block;
  wrong.bytes -= 1;
  expect_refused(wrong, stream, ErrorCode::use_after_free);
  wrong = block;
  wrong.generation = Generation(block.generation.slot(), block.generation.count() + 1);
  expect_refused(wrong, stream, ErrorCode::use_after_free);
  int foreign = 0;
  expect_refused({&foreign, 4, device.id(), Generation(123'456, 99)}, stream,
                 ErrorCode::use_after_free);
  give(block);
}

TEST_P(EveryResource, RefusesStreamsOfOtherDevices) {
  const Device other = sim::open({.policy = sim::Policy::lazy});
  const Stream foreign(other);
  const Result<Block> refused = resource->try_allocate({.bytes = 64, .stream = foreign});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.failure().code(), ErrorCode::device_mismatch);
  const Block block = take(64);
  expect_refused(block, foreign, ErrorCode::device_mismatch);
  give(block);
}

TEST_P(EveryResource, DoesNotMixItsBlocksWithThoseOfAnother) {
  const ResourceHandle other = GetParam().make(device);
  const Block block = other->allocate({.bytes = 64, .stream = stream});
  expect_refused(block, stream, ErrorCode::use_after_free);
  ASSERT_TRUE(other->try_deallocate(block, stream));
}

TEST_P(EveryResource, FreesOnAStreamThatHasEnded) {
  Block block;
  StreamRef ended;
  {
    const Stream brief(device);
    ended = brief;
    block = resource->allocate({.bytes = 4096, .stream = brief});
    brief.fill(static_cast<std::byte*>(block.address), 4096, std::byte{1});
  }
  EXPECT_TRUE(resource->try_deallocate(block, ended));
}

TEST_P(EveryResource, WorksForTheHostAlone) {
  const Block block = resource->allocate({.bytes = 100});
  if (resource->traits().is_host_accessible) std::memset(block.address, 1, 100);
  EXPECT_TRUE(resource->try_deallocate(block, {}));
}

TEST_P(EveryResource, FreesInTheOrderOfTheStream) {
  // Work that was submitted before the free still finds its bytes, whoever gets the memory next.
  const Stream other(device, {.name = "B"});
  std::vector<std::byte> in(64 * kib);
  for (int round = 0; round < 20; ++round) {
    const Block block = take(64 * kib);
    stream.fill(static_cast<std::byte*>(block.address), 64 * kib, std::byte(round));
    stream.copy(in.data(), block.address, 64 * kib);
    give(block);
    const Block next = resource->allocate({.bytes = 64 * kib, .stream = other});
    other.fill(static_cast<std::byte*>(next.address), 64 * kib, std::byte{0xEE});
    ASSERT_TRUE(resource->try_deallocate(next, other));
    stream.synchronize();
    EXPECT_EQ(in.front(), std::byte(round));
    EXPECT_EQ(in.back(), std::byte(round));
  }
}

TEST_P(EveryResource, CountsWhatASilentFreeCouldNotDo) {
  const Block block = take(100);
  give(block);
  resource->deallocate(block, stream);
  resource->deallocate(block, stream);
  EXPECT_EQ(resource->failed_frees(), 2u);
  EXPECT_EQ(resource->failed_free_bytes(), 0u);  // nothing is kept by a mistake
  ASSERT_TRUE(resource->take_free_failure());
  EXPECT_FALSE(resource->take_free_failure());
  EXPECT_EQ(resource->retry_failed_frees(), 0u);
}

TEST_P(EveryResource, KeepsWhatTheDriverWouldNotFreeAndTriesAgain) {
  if (!is_simulated(device)) GTEST_SKIP() << "needs a driver that fails on demand";
  if (GetParam().is_pool) GTEST_SKIP() << "needs a resource whose frees reach the driver";
  const Block block = take(4096);
  sim::set_faults(device, "release#1+=fail");
  resource->deallocate(block, stream);
  EXPECT_EQ(resource->statistics().live_bytes, 4096u);
  EXPECT_EQ(resource->statistics().failed_frees, 1u);
  EXPECT_EQ(resource->statistics().failed_free_bytes, 4096u);
  EXPECT_EQ(resource->take_free_failure()->code(), ErrorCode::driver);
  EXPECT_EQ(resource->retry_failed_frees(), 0u);
  EXPECT_EQ(resource->failed_free_bytes(), 4096u);
  sim::set_faults(device, "");
  EXPECT_EQ(resource->retry_failed_frees(), 1u);
  EXPECT_EQ(resource->statistics().live_bytes, 0u);
  EXPECT_EQ(resource->statistics().failed_free_bytes, 0u);
}

TEST_P(EveryResource, SurvivesEveryFailureOfTheDriver) {
  if (!is_simulated(device)) GTEST_SKIP() << "needs a driver that fails on demand";
  for (const char* plan : {"allocate#1=oom", "allocate#1=fail", "allocate%2=oom", "pin#1=refuse",
                           "pin#1=oom", "record#1=fail", "sync#1=fail", "release#1=fail"}) {
    sim::set_faults(device, plan);
    for (int i = 0; i < 4; ++i) {
      const Result<Block> block = resource->try_allocate({.bytes = 4096, .stream = stream});
      if (!block) continue;
      for (int again = 0; again < 4 && !resource->try_deallocate(*block, stream); ++again) continue;
    }
    sim::set_faults(device, "");
    EXPECT_EQ(resource->statistics().live_bytes, 0u) << plan;
    give(take(4096));
  }
}

TEST_P(EveryResource, ServesManyThreads) {
  constexpr int threads = 4, steps = 300;
  std::vector<test::Thread> workers;
  for (int t = 0; t < threads; ++t) {
    workers.emplace_back([&, t] {
      const Stream own(device);
      std::mt19937 random(static_cast<unsigned>(t));
      std::vector<Block> held;
      for (int i = 0; i < steps; ++i) {
        if (held.empty() || random() % 2 == 0) {
          held.push_back(resource->allocate({.bytes = 1 + random() % 10'000, .stream = own}));
        } else {
          EXPECT_TRUE(resource->try_deallocate(held.back(), own));
          held.pop_back();
        }
      }
      for (const Block& block : held) EXPECT_TRUE(resource->try_deallocate(block, own));
      own.synchronize();
    });
  }
  for (test::Thread& worker : workers) worker.join();
  const Statistics end = resource->statistics();
  EXPECT_EQ(end.requests - end.refusals, end.frees);
  EXPECT_GT(end.peak_live_bytes, 0u);
}

}  // namespace
}  // namespace tern::test
