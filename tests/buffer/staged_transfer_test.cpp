#include "buffer/staged_transfer.hpp"

#include <gtest/gtest.h>

#include "support/copy_places.hpp"
#include "support/gate.hpp"
#include "tern/backends/catalog.hpp"
#include "tern/backends/sim.hpp"
#include "tern/memory/default_resource.hpp"

namespace tern::test {
namespace {

constexpr std::size_t three_chunks_and_one = 3 * StagedTransfer::chunk_bytes + 1;

class Staged : public testing::Test {
 protected:
  void TearDown() override {
    for (const Device& device : peers) {
      device.synchronize();
      expect_no_findings(device);
    }
  }
  [[nodiscard]] std::shared_ptr<ServedFile> served(std::size_t bytes) const {
    auto file = std::make_shared<ServedFile>();
    file->bytes = counted(bytes);
    return file;
  }

  Device host = open_device("host");
  std::vector<Device> peers = sim::open_peers({}, 2);
  Stream a{peers[0]}, b{peers[1]};
};

TEST_F(Staged, FilesOfThreeChunksAndAByteArriveOnTheDeviceWithoutBeingMapped) {
  const auto file = served(three_chunks_and_one);
  const Buffer source = open_served(host, file);
  const Buffer to(peers[0], {three_chunks_and_one}, DType::byte);
  copy(to, source, a);
  EXPECT_TRUE(bytes_of(to) == file->bytes);
  EXPECT_EQ(file->reads, 4u);
  EXPECT_EQ(file->max_bytes, StagedTransfer::chunk_bytes);
  EXPECT_FALSE(file->was_mapped);
}

TEST_F(Staged, UsesAtMostTwoPageLockedChunks) {
  const ResourceHandle pinned = default_resource(peers[0], MemoryKind::pinned);
  const auto file = served(three_chunks_and_one);
  const Buffer source = open_served(host, file);
  const Buffer to(peers[0], {three_chunks_and_one}, DType::byte);
  copy(to, source, a);
  EXPECT_EQ(pinned->statistics().requests, 2u);
  EXPECT_EQ(pinned->statistics().peak_live_bytes, 2 * StagedTransfer::chunk_bytes);
  a.synchronize();
  EXPECT_EQ(pinned->statistics().live_bytes, 0u);

  copy(to.byte_view(0, 100), source.byte_view(0, 100), a);
  EXPECT_EQ(pinned->statistics().requests, 3u);
}

TEST_F(Staged, UsesPageableMemoryIfPageLockedMemoryRunsOut) {
  const auto file = served(three_chunks_and_one);
  const Buffer source = open_served(host, file);
  const Buffer to(peers[0], {three_chunks_and_one}, DType::byte);
  sim::set_faults(peers[0], "pin#1+=oom");
  const Result<Mark> mark = try_copy(to, source, a);
  sim::set_faults(peers[0], "");
  ASSERT_TRUE(mark) << mark.failure().text();
  EXPECT_TRUE(bytes_of(to) == file->bytes);
}

TEST_F(Staged, CountsAsWrittenOnlyWhatArrivedBeforeTheFileFailed) {
  const auto file = served(three_chunks_and_one);
  file->fail_at = 3;
  const Buffer source = open_served(host, file);
  const Buffer to(peers[0], {three_chunks_and_one}, DType::byte);
  const Result<Mark> failed = try_copy(to, source, a);
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.failure().code(), ErrorCode::file);
  // The third was read before the second was written, and so neither is there.
  const Result<void> gap = to.storage()->check_written(0, to.size_bytes(), {});
  ASSERT_FALSE(gap);
  EXPECT_EQ(gap.failure().number("begin"), StagedTransfer::chunk_bytes);
  file->fail_at = 0;
  copy(to, source, a);
  EXPECT_TRUE(bytes_of(to) == file->bytes);
}

TEST_F(Staged, TruncatedFilesCountNoBytesAsWritten) {
  const auto file = served(5000);
  const Buffer source = open_served(host, file);
  file->bytes.resize(4999);
  for (const MemoryKind kind : {MemoryKind::device, MemoryKind::pinned}) {
    const Buffer to = CopyPlace{"", peers[0], kind}.make(5000);
    EXPECT_EQ(try_copy(to, source, a).failure().code(), ErrorCode::file);
    EXPECT_EQ(try_copy(to, source).failure().code(), ErrorCode::file);
    EXPECT_FALSE(to.storage()->check_written(0, 5000, {}));
  }
  Bytes out(5000);
  EXPECT_EQ(source.try_copy_to(out.data(), 5000).failure().code(), ErrorCode::file);
}

TEST_F(Staged, BetweenDevicesOfOneBackendOnlySubmits) {
  const Bytes in = counted(three_chunks_and_one);
  const Buffer from = CopyPlace{"", peers[0], MemoryKind::managed}.holding(in);
  const Buffer to(peers[1], {in.size()}, DType::byte);
  for (const StreamRef stream : {StreamRef(a), StreamRef(b)}) {
    Gate gate;
    gate.hold(stream);
    const Mark mark = copy(to, from, stream);
    EXPECT_FALSE(Device::is_done(mark));
    gate.open();
    Device::wait(mark);
    EXPECT_TRUE(bytes_of(to) == in);
  }
}

TEST_F(Staged, BetweenBackendsArrivesWholeInBothDirections) {
  const Device cuda = open_device("cuda?driver=sim");
  const Stream there(cuda);
  const Bytes in = counted(three_chunks_and_one);
  const Buffer from = CopyPlace{"", peers[0], MemoryKind::device}.holding(in);
  const Buffer to(cuda, {in.size()}, DType::byte), back(peers[0], {in.size()}, DType::byte);
  copy(to, from, a);
  copy(back, to, a);
  EXPECT_TRUE(bytes_of(back) == in);
  copy(to.byte_view(1, 9 * mib), back.byte_view(2, 9 * mib), there);
  EXPECT_TRUE(bytes_of(to.byte_view(1, 9 * mib)) == bytes_of(back.byte_view(2, 9 * mib)));
  cuda.synchronize();
  expect_no_findings(cuda);
}

TEST_F(Staged, RowsOfAFileLeaveTheBytesBetweenThemUnchanged) {
  const auto file = served(400);
  const Buffer source = open_served(host, file);
  for (const MemoryKind kind : {MemoryKind::device, MemoryKind::pinned}) {
    const Buffer to = CopyPlace{"", peers[0], kind}.holding(Bytes(40 * 4));
    copy_pitched(to, {3, 40}, source, {5, 100}, {30, 4}, a);
    const Bytes out = bytes_of(to);
    for (std::size_t row = 0; row < 4; ++row) {
      for (std::size_t column = 0; column < 37; ++column) {
        const bool is_inside = column >= 3 && column < 33;
        EXPECT_EQ(out[row * 40 + column],
                  is_inside ? file->bytes[row * 100 + 5 + column - 3] : std::byte{});
      }
    }
  }
}

}  // namespace
}  // namespace tern::test
