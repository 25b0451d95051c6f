#include "memory/block_table.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <set>
#include <vector>

#include "support/thread.hpp"
#include "tern/backends/sim.hpp"
#include "tern/device/stream.hpp"

namespace tern {
namespace {

const DeviceId device{7};
const Resource* const owner = nullptr;

Block begin(void* address = nullptr, std::size_t bytes = 64) {
  return {address, bytes, device,
          try_begin_block({address, bytes, device, owner, {}, "block", 5}).value()};
}

ErrorCode refusal(const Block& block) {
  const Result<BlockFacts> claimed = try_claim_block(block, owner);
  EXPECT_FALSE(claimed);
  return claimed ? ErrorCode::timeout : claimed.failure().code();
}

TEST(BlockTable, KnowsALiveBlock) {
  int memory = 0;
  const Block block = begin(&memory);
  EXPECT_EQ(state_of(block.generation), BlockState::live);
  const BlockFacts facts = try_find_block(block.generation).value();
  EXPECT_EQ(facts.address, &memory);
  EXPECT_EQ(facts.bytes, 64u);
  EXPECT_EQ(facts.device, device);
  EXPECT_EQ(facts.tag, Tag("block"));
  EXPECT_EQ(facts.note, 5u);
  EXPECT_EQ(try_claim_block(block, owner).value().note, 5u);
  end_block(block.generation, {});
}

TEST(BlockTable, LetsABlockBeFreedOnce) {
  const Block block = begin();
  ASSERT_TRUE(try_claim_block(block, owner));
  EXPECT_EQ(state_of(block.generation), BlockState::live);
  EXPECT_EQ(refusal(block), ErrorCode::use_after_free);
  unclaim_block(block.generation);
  ASSERT_TRUE(try_claim_block(block, owner));
  end_block(block.generation, {});
  EXPECT_EQ(refusal(block), ErrorCode::use_after_free);
  EXPECT_EQ(state_of(block.generation), BlockState::freed);
  EXPECT_FALSE(try_find_block(block.generation));
}

TEST(BlockTable, DetectsAStaleBlockAfterReuseOfItsEntry) {
  const Block old = begin();
  ASSERT_TRUE(try_claim_block(old, owner));
  end_block(old.generation, {});
  const Block fresh = begin();
  EXPECT_EQ(fresh.generation.slot(), old.generation.slot());
  EXPECT_EQ(fresh.generation.count(), old.generation.count() + 1);
  EXPECT_EQ(refusal(old), ErrorCode::use_after_free);
  EXPECT_EQ(state_of(old.generation), BlockState::freed);
  EXPECT_EQ(state_of(fresh.generation), BlockState::live);
  ASSERT_TRUE(try_claim_block(fresh, owner));
  end_block(fresh.generation, {});
}

TEST(BlockTable, DistinguishesBadFrees) {
  char around[66] = {};
  char* const memory = around + 1;
  const Block block = begin(memory);
  Block wrong = block;
  wrong.device = DeviceId{8};
  EXPECT_EQ(refusal(wrong), ErrorCode::device_mismatch);
  wrong = block;
  wrong.address = memory + 1;
  EXPECT_EQ(refusal(wrong), ErrorCode::out_of_bounds);
  wrong.address = memory + 63;
  EXPECT_EQ(refusal(wrong), ErrorCode::out_of_bounds);
  wrong.address = memory + 64;
  EXPECT_EQ(refusal(wrong), ErrorCode::use_after_free);
  wrong.address = memory - 1;
  EXPECT_EQ(refusal(wrong), ErrorCode::use_after_free);
  wrong = block;
  wrong.bytes = 63;
  EXPECT_EQ(refusal(wrong), ErrorCode::use_after_free);
  wrong = block;
  wrong.generation = {};
  EXPECT_EQ(refusal(wrong), ErrorCode::use_after_free);
  wrong.generation = Generation((1u << Generation::slot_bits) - 1, 1);
  EXPECT_EQ(refusal(wrong), ErrorCode::use_after_free);
  EXPECT_EQ(state_of(wrong.generation), BlockState::freed);
  EXPECT_EQ(try_claim_block(block, reinterpret_cast<const Resource*>(&around)).failure().code(),
            ErrorCode::use_after_free);
  EXPECT_EQ(state_of(block.generation), BlockState::live);
  ASSERT_TRUE(try_claim_block(block, owner));
  end_block(block.generation, {});
}

TEST(BlockTable, ShowsABlockAsRetiredUntilItsStreamHasPassedIt) {
  const Device sim = sim::open({.policy = sim::Policy::lazy});
  const Stream stream(sim);
  const std::uint64_t hold = sim::hold(stream);
  stream.call([](void*) {}, nullptr);
  const Block block = begin();
  ASSERT_TRUE(try_claim_block(block, owner));
  end_block(block.generation, stream.mark());
  EXPECT_EQ(state_of(block.generation), BlockState::retired);
  EXPECT_EQ(refusal(block), ErrorCode::use_after_free);
  const Block other = begin();  // does not take the place
  EXPECT_NE(other.generation.slot(), block.generation.slot());
  sim::resume(sim, hold);
  stream.synchronize();
  EXPECT_EQ(state_of(block.generation), BlockState::freed);
  ASSERT_TRUE(try_claim_block(other, owner));
  end_block(other.generation, {});
}

TEST(BlockTable, ShowsAQuarantinedBlock) {
  const Block block = begin();
  ASSERT_TRUE(try_claim_block(block, owner));
  quarantine_block(block.generation);
  EXPECT_EQ(state_of(block.generation), BlockState::quarantined);
  EXPECT_EQ(refusal(block), ErrorCode::use_after_free);
  end_block(block.generation, {});
  EXPECT_EQ(state_of(block.generation), BlockState::freed);
}

TEST(BlockTable, GivesEveryBlockItsOwnGeneration) {
  std::set<Generation> seen;
  std::vector<Block> blocks;
  for (int i = 0; i < 10'000; ++i) {
    blocks.push_back(begin());
    EXPECT_TRUE(seen.insert(blocks.back().generation).second);
  }
  for (const Block& block : blocks) {
    ASSERT_TRUE(try_claim_block(block, owner));
    end_block(block.generation, {});
  }
}

TEST(BlockTable, LetsOneOfManyThreadsFreeABlock) {
  for (int round = 0; round < 200; ++round) {
    const Block block = begin();
    std::atomic<int> winners = 0;
    std::vector<test::Thread> threads;
    for (int i = 0; i < 3; ++i) {
      threads.emplace_back([&] {
        if (!try_claim_block(block, owner)) return;
        ++winners;
        end_block(block.generation, {});
      });
    }
    for (test::Thread& thread : threads) thread.join();
    EXPECT_EQ(winners, 1);
  }
}

}  // namespace
}  // namespace tern
