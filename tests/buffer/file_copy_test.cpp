#include "buffer/file_copy.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "buffer/file_transfers.hpp"
#include "device/device_state.hpp"
#include "support/copy_places.hpp"
#include "support/file_faults.hpp"
#include "support/gate.hpp"
#include "support/ladder.hpp"
#include "support/simulated.hpp"
#include "support/temporary_folder.hpp"
#include "tern/backends/catalog.hpp"
#include "tern/backends/sim.hpp"
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

TEST_P(FileCopyTest, TheHostReadsAFileAfterItsWritesByStreams) {
  const Bytes old = test::sample(5000), changed = test::sample(5000, 2);
  const Buffer file = open_file(path_of(old), {.writable = true});
  const Buffer from = device_buffer(changed),
               plain = Buffer(open_device("host"), {5000}, DType::byte);
  // Without synchronization, the writes of the stream are still pending here.
  copy(file, from, stream);
  Bytes to(5000);
  file.try_copy_to(to.data(), to.size()).value();
  EXPECT_EQ(to, changed);
  copy(file, device_buffer(old), stream);
  copy(plain, file);
  EXPECT_EQ(bytes_of(plain), old);
  {
    PlannedFaults faults(FileTransfers::instance());
    faults.fail(EIO, is_write_call);
    copy(file, from, stream);
    EXPECT_FALSE(stream.try_synchronize());
  }
  EXPECT_FALSE(file.try_copy_to(to.data(), to.size()));
  EXPECT_FALSE(try_copy(plain, file));
}

TEST_P(FileCopyTest, AFailureEndsWithTheNextWriteEvenIfItsBytesAreDiscardedLater) {
  const Buffer source = open_file(path_of(test::sample(100)));
  Buffer memory = empty_buffer(100);
  {
    PlannedFaults faults(FileTransfers::instance());
    faults.fail(EIO, any_call);
    copy(memory, source, stream);
    EXPECT_FALSE(stream.try_synchronize());
  }
  memory.fill(std::byte{5}, stream);
  memory.storage()->note_unwritten(0, 10);
  EXPECT_EQ(bytes_of(memory.byte_view(10, 90)), Bytes(90, std::byte{5}));
  Bytes to(10);
  EXPECT_EQ(memory.byte_view(0, 10).try_copy_to(to.data(), 10).failure().code(),
            ErrorCode::never_written);
}

TEST_P(FileCopyTest, AFailureIsThatOfTheRowsAlone) {
  const Buffer source = open_file(path_of(test::sample(1000)));
  const Bytes before = test::sample(1000, 2);
  const Buffer memory = device_buffer(before);
  const auto copy_rows = [&](std::size_t first) {
    copy_pitched(memory, {.offset_bytes = first, .row_bytes = 50}, source, {.row_bytes = 90},
                 {.width_bytes = 20, .height = 9}, stream);
  };
  {
    PlannedFaults faults(FileTransfers::instance());
    faults.fail(EIO, any_call);
    copy_rows(3);
    EXPECT_FALSE(stream.try_synchronize());
  }
  // The bytes between the rows are as before.
  EXPECT_EQ(bytes_of(memory.byte_view(23, 30)), Bytes(&before[23], &before[53]));
  // Rows beside them that do arrive do not make the lost rows readable.
  copy_rows(25);
  stream.synchronize();
  Bytes to(20);
  EXPECT_FALSE(memory.byte_view(53, 20).try_copy_to(to.data(), 20));
  EXPECT_TRUE(memory.byte_view(75, 20).try_copy_to(to.data(), 20));
}

TEST_P(FileCopyTest, WaitsOfTheLibraryLeaveTheReportToTheProgram) {
  const Buffer source = open_file(path_of(test::sample(100))), memory = empty_buffer(100);
  const StreamRef own = device.default_stream();
  {
    PlannedFaults faults(FileTransfers::instance());
    faults.fail(EIO, any_call);
    copy(memory, source, own);
    Device::wait(own.mark());
  }
  EXPECT_TRUE(DeviceState::wait_for_stream(own, CallSite::here()));
  EXPECT_FALSE(own.try_synchronize());
}

/// A program of random copies on two streams, beside a model of the bytes. Now and then the disk
/// fails, and the model notes which bytes are lost.
class RandomProgram {
 public:
  static constexpr std::size_t bytes = mib + 9000;

  RandomProgram(const Device& device, const std::string& path, unsigned seed)
      : random_(seed), streams_{Stream(device), Stream(device)} {
    for (Place& place : places_) {
      const Bytes content = test::sample(bytes, unsigned(&place - places_) + seed);
      place.model = content;
      place.is_lost.assign(bytes, false);
      if (&place - places_ < 2) {
        place.buffer = open_file(path + std::to_string(&place - places_),
                                 {.offset_bytes = 5, .bytes = bytes, .create = true});
        copy(place.buffer, CopyPlace{"", device, MemoryKind::device}.holding(content));
      } else {
        place.buffer = CopyPlace{"", device, MemoryKind::device}.holding(content);
      }
    }
  }

  void step() {
    const std::size_t from = below(4), to = below(4);
    std::size_t size = 1 + below(below(8) == 0 ? bytes - 1 : 9000);
    const std::size_t from_offset = below(bytes - size + 1), to_offset = below(bytes - size + 1);
    if (from == to || (from < 2 && to < 2)) return check(places_[to], to_offset, size);
    Place &source = places_[from], &target = places_[to];
    const Stream& stream = streams_[below(2)];
    const bool is_lost = source.has_lost(from_offset, size);
    const bool fails = !is_lost && (from < 2 || to < 2) && below(4) == 0;
    std::optional<PlannedFaults> faults;
    if (fails) {
      synchronize();
      faults.emplace(FileTransfers::instance());
      faults->fail(
          EIO, [](const FileCall& call) { return !call.asks_cache; }, 1);
    }
    const Result<Mark> copied = try_copy(target.buffer.byte_view(to_offset, size),
                                         source.buffer.byte_view(from_offset, size), stream);
    ASSERT_EQ(bool(copied), !is_lost);
    if (is_lost) return;
    if (fails) {
      const Result<void> done = stream.try_synchronize();
      ASSERT_FALSE(done);
      ASSERT_EQ(done.failure().number("os_code"), std::uint64_t{EIO});
    }
    const auto offset = std::ptrdiff_t(to_offset);
    std::copy_n(source.model.begin() + std::ptrdiff_t(from_offset), size,
                target.model.begin() + offset);
    std::fill_n(target.is_lost.begin() + offset, size, fails);
    if (below(3) == 0) synchronize();
  }
  void check_all() {
    for (const Place& place : places_) {
      for (std::size_t at = 0; at < bytes; at += 50'000) {
        check(place, at, std::min<std::size_t>(50'000, bytes - at));
      }
    }
  }

 private:
  struct Place {
    [[nodiscard]] bool has_lost(std::size_t offset, std::size_t size) const {
      const auto begin = is_lost.begin() + std::ptrdiff_t(offset);
      return std::find(begin, begin + std::ptrdiff_t(size), true) != begin + std::ptrdiff_t(size);
    }
    Buffer buffer;
    Bytes model;
    std::vector<bool> is_lost;
  };

  [[nodiscard]] std::size_t below(std::size_t bound) { return random_() % bound; }
  void synchronize() const {
    for (const Stream& stream : streams_) ASSERT_TRUE(stream.try_synchronize());
  }
  void check(const Place& place, std::size_t offset, std::size_t size) const {
    Bytes to(size);
    const Result<void> read = place.buffer.byte_view(offset, size).try_copy_to(to.data(), size);
    ASSERT_EQ(bool(read), !place.has_lost(offset, size));
    if (!read) return;
    ASSERT_TRUE(std::equal(to.begin(), to.end(), place.model.begin() + std::ptrdiff_t(offset)));
  }

  std::mt19937 random_;
  Stream streams_[2];
  Place places_[4];
};

TEST_P(FileCopyTest, RandomProgramsMatchAModel) {
  for (unsigned seed = 1; seed <= 2; ++seed) {
    SCOPED_TRACE(seed);
    RandomProgram program(device, folder / "a", seed);
    for (int i = 0; i < 30 && !HasFatalFailure(); ++i) program.step();
    program.check_all();
    if (HasFatalFailure()) return;
    for (const char* name : {"a0", "a1"}) unlink((folder / name).c_str());
  }
}

/// Transfers of all bytes behind the first chunk are slow: their first calls transfer one byte.
class SlowLaterChunks final : public FileFaults {
 public:
  SlowLaterChunks() { FileTransfers::instance().set_faults(this); }
  ~SlowLaterChunks() override { FileTransfers::instance().set_faults(nullptr); }
  [[nodiscard]] Verdict before(const FileCall& call) noexcept override {
    if (call.offset < FileCopy::chunk_bytes) return {};
    return ++calls < 300'000 ? Verdict{.max_bytes = 1} : Verdict{};
  }
  std::atomic<int> calls = 0;
};

TEST(FileCopyOfALostDeviceTest, NoTransferUsesMemoryAfterTheLoss) {
  const TemporaryFolder folder;
  const std::string path = folder.write("a", test::sample(3 * FileCopy::chunk_bytes));
  const Device device = sim::open({.policy = sim::Policy::lazy});
  const Stream stream(device);
  SlowLaterChunks slow;
  Buffer source = open_file(path), memory(device, {3 * FileCopy::chunk_bytes}, DType::byte);
  memory.ensure_allocated();
  // The device is lost when it copies the first chunk, while the later ones are being read.
  sim::set_faults(device, "copy#1=fault");
  copy(memory, source, stream);
  EXPECT_EQ(stream.try_synchronize().failure().code(), ErrorCode::device_lost);
  const int calls = slow.calls;
  EXPECT_GT(calls, 0);
  EXPECT_EQ(source.read_host<std::byte>().span().size(), source.size_bytes());
  EXPECT_LE(slow.calls, calls + 40) << "only the pieces of the last read";
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
