// Why a stream is behind: the waits that were not over, from stream to stream.

#include "tools/report/wait_chain.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace tern::tools {
namespace {

class WaitChainTest : public testing::Test {
 protected:
  void wait(std::uint64_t time, std::uint32_t stream, std::uint32_t waits_for,
            std::uint64_t over = TraceSummary::never) {
    summary_.waits.push_back({time, 0, stream, waits_for, stream, 1, over});
  }
  [[nodiscard]] std::vector<std::uint32_t> streams(std::uint32_t stream, std::uint64_t time) const {
    std::vector<std::uint32_t> found = {stream};
    for (const WaitChain::Link& one : wait_chain(summary_, stream, time).links) {
      EXPECT_EQ(one.stream, found.back());
      found.push_back(one.waits_for);
    }
    return found;
  }

  TraceSummary summary_{trace::MemoryTrace{}, "made"};
};

TEST_F(WaitChainTest, FollowsTheFirstWaitThatWasNotOver) {
  wait(10, 3, 4);
  wait(20, 2, 5, 40);  // over at 40
  wait(30, 2, 3);
  wait(50, 2, 6);
  EXPECT_EQ(streams(2, 60), std::vector<std::uint32_t>({2, 3, 4}));
  EXPECT_EQ(streams(2, 39), std::vector<std::uint32_t>({2, 5}));
  EXPECT_EQ(streams(2, 19), std::vector<std::uint32_t>({2})) << "it does not wait yet";
}

TEST_F(WaitChainTest, DoesNotFollowWaitsThatCameLater) {
  wait(10, 2, 3);
  wait(20, 3, 4);
  EXPECT_EQ(streams(2, 30), std::vector<std::uint32_t>({2, 3}));
}

TEST_F(WaitChainTest, StreamsThatWaitForEachOtherAreNoCycle) {
  for (std::uint64_t step = 0; step < 100; ++step) {
    wait(10 * step, 2, 3);
    wait(10 * step + 5, 3, 2);
  }
  EXPECT_EQ(streams(2, 2000), std::vector<std::uint32_t>({2, 3}));
  EXPECT_EQ(streams(3, 2000), std::vector<std::uint32_t>({3, 2, 3}));
}

TEST_F(WaitChainTest, IsBounded) {
  for (std::uint32_t stream = 0; stream < 100; ++stream) {
    wait(10 * (100 - stream), stream, stream + 1);
  }
  EXPECT_EQ(streams(1, 2000).size(), WaitChain::max_links + 1);
}

TEST_F(WaitChainTest, EndsAtAHostFunction) {
  wait(10, 3, 4);
  wait(30, 2, 3);
  summary_.host_calls.push_back({5, 100, 3, 9});
  EXPECT_EQ(streams(2, 60), std::vector<std::uint32_t>({2, 3}));
  const WaitChain chain = wait_chain(summary_, 2, 60);
  ASSERT_NE(chain.call, nullptr);
  EXPECT_EQ(chain.call->site, 9u);
  EXPECT_EQ(streams(2, 100), std::vector<std::uint32_t>({2, 3, 4})) << "the function is over";
}

}  // namespace
}  // namespace tern::tools
