#include "coherence/transfer_log.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace tern::test {
namespace {

Transfer numbered(std::size_t number) {
  return {
      .begin = number, .end = number + 1, .runs = 1, .bytes = 1, .reason = TransferReason::drop};
}

TEST(TransferLog, ReturnsTransfersInTheirOrder) {
  TransferLog log;
  EXPECT_TRUE(log.last().empty());
  log.add(numbered(1));
  log.add(numbered(2));
  const std::vector<Transfer> last = log.last();
  ASSERT_EQ(last.size(), 2u);
  EXPECT_EQ(last[0].begin, 1u);
  EXPECT_EQ(last[1].begin, 2u);
}

TEST(TransferLog, CountsAllAndRemembersTheLast) {
  TransferLog log;
  for (std::size_t i = 0; i < TransferLog::max_entries + 3; ++i) log.add(numbered(i));
  const std::vector<Transfer> last = log.last();
  ASSERT_EQ(last.size(), TransferLog::max_entries);
  EXPECT_EQ(last.front().begin, 3u);
  EXPECT_EQ(last.back().begin, TransferLog::max_entries + 2);
  EXPECT_EQ(log.statistics().of(TransferReason::drop).bytes, TransferLog::max_entries + 3);
}

TEST(TransferLog, AddsEveryCountToTheTotals) {
  const UnifiedStatistics before = unified_totals();
  TransferLog log;
  log.add(numbered(1));
  log.count([](UnifiedStatistics& counts) {
    ++counts.host_waits;
    counts.evicted += {1, 40};
  });
  EXPECT_EQ(log.statistics().host_waits, 1u);
  EXPECT_EQ(log.statistics().evicted, (CopyCount{1, 40}));
  const UnifiedStatistics now = unified_totals();
  EXPECT_EQ(now.host_waits - before.host_waits, 1u);
  EXPECT_EQ(now.evicted - before.evicted, (CopyCount{1, 40}));
  EXPECT_EQ(now.of(TransferReason::drop).bytes - before.of(TransferReason::drop).bytes, 1u);
}

}  // namespace
}  // namespace tern::test
