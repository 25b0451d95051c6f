#include "buffer/file_copy.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "buffer/file_transfers.hpp"
#include "support/copy_places.hpp"
#include "support/file_faults.hpp"
#include "support/gate.hpp"
#include "support/ladder.hpp"
#include "support/simulated.hpp"
#include "support/temporary_folder.hpp"
#include "tern/backends/catalog.hpp"
#include "tern/buffer/copy.hpp"
#include "tern/buffer/file.hpp"
#include "tern/core/bytes.hpp"

namespace tern::test {
namespace {

std::vector<std::string> device_specs() {
  std::vector<std::string> specs = {"cuda?driver=sim"};
  for (const BackendListing& backend : list_backends()) {
    if (!backend.devices.empty()) specs.push_back(backend.devices[0]);
  }
  return specs;
}

class FileCopyTest : public testing::TestWithParam<std::string> {
 protected:
  [[nodiscard]] Buffer device_buffer(const Bytes& bytes) const {
    return CopyPlace{"", device, MemoryKind::device}.holding(bytes);
  }
  [[nodiscard]] Buffer empty_buffer(std::size_t bytes) const {
    return Buffer(device, {bytes}, DType::byte);
  }
  [[nodiscard]] std::string path_of(const Bytes& bytes) const { return folder.write("a", bytes); }
  [[nodiscard]] Buffer created(std::size_t bytes) const {
    return open_file(folder / "made", {.bytes = bytes, .create = true});
  }
  [[nodiscard]] Bytes content(const std::string& name) const {
    return bytes_of(open_file(folder / name));
  }

  const TemporaryFolder folder;
  const Device device = open_device(GetParam());
  const Stream stream{device}, other{device};
};

INSTANTIATE_TEST_SUITE_P(Devices, FileCopyTest, testing::ValuesIn(device_specs()), spec_name);

TEST_P(FileCopyTest, BytesGoFromAFileToMemoryAndBack) {
  constexpr std::size_t large = 4 * FileCopy::chunk_bytes + 4097;
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{5000}, mib + 1, large}) {
    const Bytes sample = test::sample(bytes + 3);
    const Buffer source = open_file(path_of(sample), {.offset_bytes = 3});
    const Buffer target = created(bytes);
    for (const CopyPlace& place : places_of(device, "")) {
      if (bytes == large && place.kind != MemoryKind::device && place.kind != MemoryKind::host) {
        continue;
      }
      const Buffer memory = place.make(bytes);
      copy(memory, source, stream);
      copy(target, memory, stream);
      stream.synchronize();
      for (const Bytes& copied : {bytes_of(memory), content("made")}) {
        ASSERT_EQ(copied.size(), bytes);
        ASSERT_EQ(std::memcmp(copied.data(), sample.data() + 3, bytes), 0) << place.name;
      }
      ASSERT_EQ(truncate((folder / "made").c_str(), 0), 0);
      ASSERT_EQ(truncate((folder / "made").c_str(), off_t(bytes)), 0);
    }
    unlink((folder / "made").c_str());
  }
}

TEST_P(FileCopyTest, ReturnsBeforeTheFileIsReadOrWritten) {
  const Bytes sample = test::sample(3 * mib);
  const Buffer source = open_file(path_of(sample)), target = created(3 * mib);
  const Buffer memory = empty_buffer(3 * mib);
  PlannedFaults faults(FileTransfers::instance());
  Gate gate;
  gate.hold(stream);
  copy(memory, source, stream);
  copy(target, memory, stream);
  EXPECT_TRUE(faults.calls().empty()) << "the stream has not reached the copies";
  gate.open();
  stream.synchronize();
  EXPECT_EQ(content("made"), sample);
  // A disk that does not answer blocks no call either. It would block a whole simulation.
  if (is_simulated(device)) return;
  faults.hold();
  copy(memory, source, stream);
  copy(target, memory, stream);
  EXPECT_FALSE(stream.is_idle());
  faults.release();
  stream.synchronize();
  EXPECT_EQ(content("made"), sample);
}

TEST_P(FileCopyTest, LaterWorkOfTheStreamSeesTheBytes) {
  const Bytes sample = test::sample(2 * FileCopy::chunk_bytes);
  const Buffer source = open_file(path_of(sample));
  const Buffer first = empty_buffer(sample.size()), second = empty_buffer(sample.size());
  copy(first, source, stream);
  copy(second, first, other);
  EXPECT_EQ(bytes_of(second), sample);
}

TEST_P(FileCopyTest, ReadsOfAFileWaitForItsWritesOnOtherStreams) {
  const Bytes old = test::sample(mib, 1), changed = test::sample(mib, 2);
  const Buffer file = open_file(path_of(old), {.writable = true});
  const Buffer memory = empty_buffer(mib), back = empty_buffer(mib);
  const Buffer from = device_buffer(changed);
  copy(memory, file, stream);
  copy(file, from, other);
  copy(back, file, stream);
  EXPECT_EQ(bytes_of(memory), old);
  EXPECT_EQ(bytes_of(back), changed);
  EXPECT_TRUE(std::ranges::equal(file.read_host<std::byte>().span(), changed));
}

TEST_P(FileCopyTest, AFailedReadIsReportedByTheStreamAndByTheBytes) {
  const Bytes sample = test::sample(3 * FileCopy::chunk_bytes);
  const std::string path = path_of(sample);
  const Buffer source = open_file(path);
  const Buffer memory = empty_buffer(sample.size());
  const Buffer good = empty_buffer(100);
  PlannedFaults faults(FileTransfers::instance());
  faults.fail(EIO, [](const FileCall& call) { return call.offset == FileCopy::chunk_bytes + mib; });
  copy(memory, source, stream);
  copy(good, source.byte_view(5, 100), stream);
  const Failure failure = stream.try_synchronize().failure();
  EXPECT_EQ(failure.code(), ErrorCode::file);
  EXPECT_EQ(failure.string("path"), path);
  EXPECT_EQ(failure.string("call"), "pread");
  EXPECT_EQ(failure.number("os_code"), std::uint64_t{EIO});
  EXPECT_EQ(failure.number("failed_offset"), FileCopy::chunk_bytes + mib);
  EXPECT_TRUE(stream.try_synchronize()) << "the stream reports a failure once";
  Bytes to(sample.size());
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(memory.try_copy_to(to.data(), to.size()).failure().string("path"), path);
    EXPECT_EQ(memory.try_synchronize().failure().code(), ErrorCode::file);
    EXPECT_EQ(try_copy(empty_buffer(10), memory.byte_view(7, 10), stream).failure().code(),
              ErrorCode::file);
  }
  EXPECT_EQ(bytes_of(good), Bytes(sample.begin() + 5, sample.begin() + 105));
  // Bytes that are written again can be read.
  copy(memory.byte_view(0, 100), good, stream);
  EXPECT_EQ(bytes_of(memory.byte_view(0, 100)), bytes_of(good));
  EXPECT_FALSE(memory.byte_view(0, 101).try_copy_to(to.data(), 101));
}

TEST_P(FileCopyTest, BytesAreReadableAgainAfterTheCopyIsRepeated) {
  const Bytes sample = test::sample(mib);
  const Buffer source = open_file(path_of(sample)), memory = empty_buffer(mib);
  {
    PlannedFaults faults(FileTransfers::instance());
    faults.fail(EIO, any_call);
    copy(memory, source, stream);
    EXPECT_FALSE(stream.try_synchronize());
  }
  copy(memory, source, stream);
  EXPECT_TRUE(stream.try_synchronize());
  EXPECT_EQ(bytes_of(memory), sample);
}

TEST_P(FileCopyTest, AFullDiskIsReportedAndLosesNothing) {
  const Bytes sample = test::sample(3 * FileCopy::chunk_bytes + 5);
  const Buffer memory = device_buffer(sample);
  const Buffer target = created(sample.size());
  {
    PlannedFaults faults(FileTransfers::instance());
    faults.fail(ENOSPC, [](const FileCall& call) { return call.is_write && call.offset >= mib; });
    copy(target, memory, stream);
    const Failure failure = stream.try_synchronize().failure();
    EXPECT_EQ(failure.code(), ErrorCode::file);
    EXPECT_EQ(failure.string("path"), folder / "made");
    EXPECT_EQ(failure.string("call"), "pwrite");
    EXPECT_EQ(failure.number("os_code"), std::uint64_t{ENOSPC});
    EXPECT_EQ(try_flush(target).failure().number("os_code"), std::uint64_t{ENOSPC});
    EXPECT_EQ(target.try_read_host<std::byte>().failure().code(), ErrorCode::file);
  }
  EXPECT_EQ(bytes_of(memory), sample);
  copy(target, memory, stream);
  flush(target);
  EXPECT_TRUE(stream.try_synchronize());
  EXPECT_EQ(content("made"), sample);
}

TEST_P(FileCopyTest, AFileThatIsTruncatedDuringTheCopyIsAnError) {
  const std::string path = path_of(test::sample(2 * FileCopy::chunk_bytes));
  const Buffer source = open_file(path), memory = empty_buffer(2 * FileCopy::chunk_bytes);
  Gate gate;
  gate.hold(stream);
  copy(memory, source, stream);
  set_length(path, 10);
  gate.open();
  const Failure failure = stream.try_synchronize().failure();
  EXPECT_EQ(failure.code(), ErrorCode::file);
  EXPECT_EQ(failure.string("why"), "the file is too short");
  EXPECT_EQ(try_copy(memory, source, stream).failure().code(), ErrorCode::file)
      << "a file that is too short before the copy is refused at once";
}

TEST_P(FileCopyTest, HandlesMayBeDroppedDuringTheCopy) {
  const Bytes sample = test::sample(2 * FileCopy::chunk_bytes);
  Gate gate;
  {
    const Buffer memory = empty_buffer(sample.size());
    const Buffer kept = device_buffer(sample);
    gate.hold(stream);
    copy(memory, open_file(path_of(sample)), stream);
    copy(created(sample.size()), kept, stream);
  }
  gate.open();
  stream.synchronize();
  EXPECT_EQ(content("made"), sample);
}

TEST_P(FileCopyTest, RowsLeaveTheBytesBetweenThemUnchanged) {
  const Bytes sample = test::sample(1000);
  const Buffer source = open_file(path_of(sample));
  const Buffer target = open_file(folder.write("made", Bytes(1000)), {.writable = true});
  const Buffer memory = device_buffer(Bytes(1000));
  copy_pitched(memory, {.offset_bytes = 3, .row_bytes = 50}, source,
               {.offset_bytes = 7, .row_bytes = 90}, {.width_bytes = 20, .height = 9}, stream);
  copy_pitched(target, {.offset_bytes = 1, .row_bytes = 30}, memory,
               {.offset_bytes = 3, .row_bytes = 50}, {.width_bytes = 20, .height = 9}, stream);
  stream.synchronize();
  Bytes in_memory(1000), in_file(1000);
  for (std::size_t row = 0; row < 9; ++row) {
    std::copy_n(&sample[7 + 90 * row], 20, &in_memory[3 + 50 * row]);
    std::copy_n(&sample[7 + 90 * row], 20, &in_file[1 + 30 * row]);
  }
  EXPECT_EQ(bytes_of(memory), in_memory);
  EXPECT_EQ(content("made"), in_file);
}

TEST_P(FileCopyTest, CopiesWithoutAStreamAreCompleteOnReturn) {
  const Bytes sample = test::sample(2 * FileCopy::chunk_bytes + 1);
  const Buffer source = open_file(path_of(sample)), target = created(sample.size());
  const Buffer memory = empty_buffer(sample.size());
  copy(memory, source);
  copy(target, memory);
  EXPECT_EQ(content("made"), sample);
  PlannedFaults faults(FileTransfers::instance());
  faults.fail(EIO, any_call);
  EXPECT_EQ(try_copy(target, memory).failure().string("call"), "pwrite");
  EXPECT_EQ(try_copy(memory, source).failure().string("call"), "pread");
  EXPECT_TRUE(stream.try_synchronize());
}

TEST_P(FileCopyTest, ReadOnlyFilesAndOtherFilesAreRefused) {
  const Buffer source = open_file(path_of(Bytes(16))), target = created(16);
  const Buffer memory = device_buffer(Bytes(16));
  EXPECT_EQ(try_copy(source, memory, stream).failure().code(), ErrorCode::read_only);
  EXPECT_EQ(try_copy(source, memory).failure().code(), ErrorCode::read_only);
  EXPECT_EQ(try_copy(target, source, stream).failure().code(), ErrorCode::unsupported);
}

TEST_P(FileCopyTest, AStreamThatIsBeingCapturedIsRefused) {
  if (!device.can(Capability::graphs)) GTEST_SKIP() << "the device has no graphs";
  const Buffer source = open_file(path_of(test::sample(100))), memory = empty_buffer(100);
  Buffer filled = memory;
  static_cast<void>(filled.try_fill(std::byte{1}, stream));
  stream.synchronize();
  ASSERT_TRUE(stream.try_begin_capture());
  EXPECT_EQ(try_copy(memory, source, stream).failure().code(), ErrorCode::stream_misuse);
  stream.abort_capture();
  copy(memory, source, stream);
  EXPECT_EQ(bytes_of(memory), test::sample(100));
}

}  // namespace
}  // namespace tern::test
