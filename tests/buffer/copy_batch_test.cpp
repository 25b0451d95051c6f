#include <gtest/gtest.h>

#include <vector>

#include "support/copy_places.hpp"
#include "support/ladder.hpp"
#include "tern/buffer/copy.hpp"
#include "tern/memory/default_resource.hpp"
#include "tern/memory/fault_resource.hpp"

namespace tern::test {
namespace {

class Batch : public Ladder {
 protected:
  void TearDown() override {
    Ladder::TearDown();
    expect_no_findings(device);
  }
};
TERN_CLIMB(Batch);

TEST_P(Batch, CopiesBetweenAllKindsOfMemory) {
  const Bytes in = counted(1000);
  std::vector<BufferCopy> copies;
  for (const CopyPlace& from : places_of(device, "0")) {
    for (const CopyPlace& to : places_of(device, "1")) {
      copies.push_back({to.make(1000), from.holding(in)});
    }
  }
  copies.push_back({Buffer(device, {0}, DType::byte), Buffer(device, {0}, DType::byte)});
  copy_batch(copies, stream);
  for (const BufferCopy& one : copies) {
    EXPECT_TRUE(bytes_of(one.destination) == bytes_of(one.source));
  }
}

class BatchRules : public testing::Test {
 protected:
  void TearDown() override {
    for (const Device& device : peers) {
      device.synchronize();
      expect_no_findings(device);
    }
  }
  [[nodiscard]] Buffer holding(const Bytes& bytes, std::size_t on = 0) const {
    return CopyPlace{"", peers[on], MemoryKind::device}.holding(bytes);
  }
  void expect_refused_at(const std::vector<BufferCopy>& copies, ErrorCode code, std::size_t index) {
    const Result<Mark> refused = try_copy_batch(copies, stream);
    ASSERT_FALSE(refused);
    EXPECT_EQ(name(refused.failure().code()), name(code)) << refused.failure().text();
    EXPECT_EQ(refused.failure().number("index"), index);
  }

  std::vector<Device> peers = sim::open_peers({}, 2);
  Stream stream{peers[0]};
  Bytes in = counted(100);
  Buffer from = holding(in);
  Buffer fresh{peers[0], {100}, DType::byte};
};

TEST_F(BatchRules, SubmitNoneIfOneIsRefused) {
  const Buffer never(peers[0], {100}, DType::byte), abroad(peers[1], {100}, DType::byte);
  const Buffer there = holding(in, 1);
  expect_refused_at({{fresh, from}, {fresh.byte_view(0, 10), from}}, ErrorCode::size_mismatch, 1);
  expect_refused_at({{fresh, from}, {never, Buffer()}}, ErrorCode::not_allocated, 1);
  expect_refused_at({{fresh, from}, {from, never}}, ErrorCode::never_written, 1);
  expect_refused_at({{fresh, from}, {abroad, there}}, ErrorCode::device_mismatch, 1);
  EXPECT_FALSE(fresh.is_allocated());
}

TEST_F(BatchRules, RejectCopiesThatOverlap) {
  const Buffer other = holding(in);
  expect_refused_at({{fresh, from}, {fresh, other}}, ErrorCode::invalid_argument, 1);
  expect_refused_at({{fresh, from}, {from.byte_view(99, 1), other.byte_view(0, 1)}},
                    ErrorCode::invalid_argument, 1);
  expect_refused_at({{other.byte_view(0, 50), from.byte_view(0, 50)},
                     {fresh.byte_view(0, 2), other.byte_view(49, 2)}},
                    ErrorCode::invalid_argument, 1);
  EXPECT_FALSE(fresh.is_allocated());
  // One source for many, and neighbours.
  EXPECT_TRUE(
      try_copy_batch(std::vector<BufferCopy>{{fresh.byte_view(0, 50), from.byte_view(0, 50)},
                                             {fresh.byte_view(50, 50), from.byte_view(0, 50)},
                                             {other.byte_view(0, 10), other.byte_view(10, 10)}},
                     stream));
}

TEST_F(BatchRules, NameACopyByItsIndexEvenIfOthersAreEmpty) {
  const BufferCopy empty = {fresh.byte_view(0, 0), from.byte_view(0, 0)};
  const Buffer other = holding(in);
  expect_refused_at({empty, {fresh, from}, empty, {fresh, other}}, ErrorCode::invalid_argument, 3);
  const auto none = std::make_shared<FaultResource>(try_default_resource(peers[0]).value());
  none->set_rules({{.nth = 1}});
  const Buffer starved(peers[0], {100}, DType::byte, {.resource = none});
  expect_refused_at({empty, {starved, from}}, ErrorCode::out_of_memory, 1);
}

TEST_F(BatchRules, CopyOneByOneIfTheStreamCannotBatch) {
  const Buffer there = holding(in, 1), local(peers[0], {100}, DType::byte);
  const Buffer self = holding(in);
  copy_batch(
      std::vector<BufferCopy>{
          {local, from}, {fresh, there}, {self.byte_view(1, 50), self.byte_view(0, 50)}},
      stream);
  EXPECT_TRUE(bytes_of(local) == in);
  EXPECT_TRUE(bytes_of(fresh) == in);
  EXPECT_TRUE(bytes_of(self.byte_view(1, 50)) == Bytes(in.begin(), in.begin() + 50));
}

TEST_F(BatchRules, MakeNoCallForZeroBytes) {
  sim::set_faults(peers[0], "");
  EXPECT_TRUE(try_copy_batch({}, stream));
  EXPECT_TRUE(try_copy_batch({}, StreamRef()));
  EXPECT_TRUE(try_copy_batch(std::vector<BufferCopy>{{fresh.byte_view(0, 0), from.byte_view(0, 0)}},
                             stream));
  EXPECT_EQ(sim::calls(peers[0], "copy"), 0u);
}

TEST_F(BatchRules, CountOnlySubmittedCopiesAsWritten) {
  sim::set_faults(peers[0], "copy#1=fail");
  EXPECT_FALSE(try_copy_batch(std::vector<BufferCopy>{{fresh, from}}, stream));
  EXPECT_FALSE(fresh.storage()->check_written(0, 1, {}));
  EXPECT_TRUE(try_copy_batch(std::vector<BufferCopy>{{fresh, from}}, stream));
  EXPECT_TRUE(bytes_of(fresh) == in);
}

}  // namespace
}  // namespace tern::test
