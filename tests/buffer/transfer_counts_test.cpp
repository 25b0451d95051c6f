#include "buffer/transfer_counts.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "support/allocation_counter.hpp"
#include "support/thread.hpp"

namespace tern {
namespace {

constexpr TransferDirection up = TransferDirection::host_to_device;

TEST(TransferCounts, AddUpByDirectionAndSinceASnapshot) {
  TransferCounts then;
  then.at(up, TransferPurpose::data) = {1, 100};
  TransferCounts now = then;
  now.at(up, TransferPurpose::data) += {2, 50};
  now.at(up, TransferPurpose::scalar) += {1, 4};
  EXPECT_EQ((now - then).host_to_device(), (CopyCount{3, 54}));
  EXPECT_EQ((now - then).device_to_host(), CopyCount());
}

TEST(TransferCounts, AllocateNothing) {
  const Tag tag = "takes no memory";
  const test::AllocationCounter counter;
  for (int i = 0; i < 1000; ++i) count_transfer(up, tag, 5000);
  EXPECT_EQ(counter.count(), 0u);
  EXPECT_EQ(transfer_counts(tag).host_to_device(), (CopyCount{1000, 5'000'000}));
}

// One process for all of it: places in the table are never given back.
TEST(TransferCounts, MergeTagsBeyondTheLimit) {
  const TransferCounts before = transfer_counts();
  const std::uint64_t others = transfer_counts_of_other_tags().host_to_device().copies;
  std::vector<Tag> tags;
  for (int i = 0; i < 300; ++i) tags.emplace_back("tag " + std::to_string(i));
  std::vector<test::Thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (const Tag tag : tags) count_transfer(up, tag, 10);
    });
  }
  for (test::Thread& thread : threads) thread.join();
  EXPECT_EQ((transfer_counts() - before).host_to_device(), (CopyCount{1200, 12'000}));

  const std::vector<std::pair<Tag, TransferCounts>> own = transfer_counts_by_tag();
  ASSERT_EQ(own.size(), max_counted_tags);
  std::uint64_t with_place = 0;
  for (const Tag tag : tags) {
    const bool has_place =
        std::ranges::find(own, tag, &std::pair<Tag, TransferCounts>::first) != own.end();
    with_place += has_place ? 1 : 0;
    EXPECT_EQ(transfer_counts(tag).host_to_device().copies, has_place ? 4u : 0u) << tag.name();
  }
  EXPECT_GE(with_place, 100u);
  EXPECT_EQ(transfer_counts_of_other_tags().host_to_device().copies - others,
            4 * (300 - with_place));
}

TEST(TransferRules, ReportToAllOpenGates) {
  const CopyCount refused = transfer_gate_statistics().refused;
  {
    const TransferGate outer(TransferGate::Mode::count);
    {
      const TransferGate inner;
      EXPECT_TRUE(try_download({}, 0, {}));
      EXPECT_TRUE(try_download({}, max_metadata_bytes, {}));
      EXPECT_TRUE(check_download({}, max_metadata_bytes, {}));
      EXPECT_FALSE(check_download({}, max_metadata_bytes + 1, {}));
      EXPECT_EQ(inner.violations(), (CopyCount{1, 4097}));
      EXPECT_EQ(inner.small_reads(), (CopyCount{1, 4096}));
    }
    EXPECT_TRUE(check_download({}, max_metadata_bytes + 1, {})) << "the copy itself is counted";
    EXPECT_EQ(outer.violations().copies, 1u);
    EXPECT_TRUE(try_download({}, max_metadata_bytes + 1, {}));
    EXPECT_EQ(outer.violations(), (CopyCount{2, 2 * 4097}));
    EXPECT_EQ(outer.small_reads(), (CopyCount{1, 4096}));
  }
  EXPECT_EQ(transfer_rule(), nullptr);
  EXPECT_TRUE(try_download({}, max_metadata_bytes + 1, {}));
  EXPECT_EQ(transfer_gate_statistics().refused - refused, (CopyCount{1, 4097}));
}

}  // namespace
}  // namespace tern
