#include "tern/buffer/file.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <limits>
#include <string>
#include <vector>

#include "backends/device_spec.hpp"
#include "support/allocation_counter.hpp"
#include "support/file_limit.hpp"
#include "support/forked_child.hpp"
#include "support/ladder.hpp"
#include "support/temporary_folder.hpp"
#include "support/thread.hpp"
#include "tern/backends/catalog.hpp"
#include "tern/buffer/copy.hpp"
#include "tern/core/bytes.hpp"

namespace tern {
namespace {

using test::Bytes;
using test::set_length;

bool equals(std::span<const std::byte> a, std::span<const std::byte> b) {
  return std::ranges::equal(a, b);
}

std::size_t open_files() {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    ++count;
  }
  return count;
}

/// Read by pread, and mapped.
class FileTest : public testing::TestWithParam<bool> {
 protected:
  [[nodiscard]] FileOptions options() const { return {.map = GetParam()}; }
  [[nodiscard]] std::string file() const { return folder_.write("a.bin", bytes_); }
  /// What try_read, and nothing else, has to say.
  static Result<void> read(const Buffer& buffer, std::size_t offset, std::span<std::byte> to) {
    return buffer.storage()->origin()->try_read(offset, to.size(), to.data(), CallSite::here());
  }

  const std::size_t files_before_ = open_files();
  test::TemporaryFolder folder_;
  const Bytes bytes_ = test::sample(4096);
};

TEST_P(FileTest, HasTheBytesOfTheFile) {
  const Buffer buffer = open_file(file(), options());
  EXPECT_EQ(buffer.kind(), MemoryKind::file);
  EXPECT_EQ(buffer.size_bytes(), 4096u);
  EXPECT_EQ(buffer.dtype(), DType::byte);
  EXPECT_EQ(buffer.shape(), Shape{4096});
  EXPECT_TRUE(equals(buffer.read_host<std::byte>().span(), bytes_));
  Bytes some(100);
  read(buffer, 7, some).value();
  EXPECT_TRUE(equals(some, std::span(bytes_).subspan(7, 100)));
}

TEST_P(FileTest, HasNoDevice) {
  const std::string path = file();
  const Buffer buffer = open_file(path, options());
  EXPECT_FALSE(buffer.device().is_open());
  EXPECT_EQ(buffer.device().spec(), "");
  EXPECT_EQ(buffer.reach(), (Reach{true, false, false, false}));
  EXPECT_FALSE(buffer.is_pinned());
  EXPECT_FALSE(buffer.is_external());
  EXPECT_EQ(buffer.wasted_bytes(), 0u);
  EXPECT_EQ(buffer.text(), "byte {4096} at 0 of buffer " + std::to_string(buffer.id().value) +
                               ", file '" + path + "'");
  EXPECT_TRUE(buffer.try_synchronize());
}

TEST_P(FileTest, ReadsARangeAsElements) {
  const Buffer buffer = open_file(
      file(),
      {.offset_bytes = 1024, .bytes = 40, .dtype = dtype_of<std::uint32_t>(), .map = GetParam()});
  EXPECT_EQ(buffer.shape(), Shape{10});
  const auto view = buffer.slice(2, 3);
  EXPECT_EQ(std::memcmp(view.read_host<std::uint32_t>().data(), bytes_.data() + 1032, 12), 0);
  Bytes some(4);
  read(buffer, 36, some).value();
  EXPECT_TRUE(equals(some, std::span(bytes_).subspan(1060, 4)));
  EXPECT_EQ(read(buffer, 37, some).failure().code(), ErrorCode::invalid_view);
}

TEST_P(FileTest, ReadsBeyondFourGibibytes) {
  const std::size_t offset = 5 * gib + 1;
  const std::string path = folder_.write("large", bytes_, offset);
  const Buffer buffer = open_file(path, {.offset_bytes = offset, .map = GetParam()});
  EXPECT_TRUE(equals(buffer.read_host<std::byte>().span(), bytes_));
  Bytes last(1);
  read(buffer, 4095, last).value();
  EXPECT_EQ(last[0], bytes_[4095]);
}

TEST_P(FileTest, AcceptsEmptyFilesAndRanges) {
  const Buffer empty = open_file(folder_.write("empty", {}), options());
  EXPECT_EQ(empty.size_bytes(), 0u);
  EXPECT_TRUE(empty.read_host<std::byte>().empty());
  EXPECT_TRUE(read(empty, 0, {}));
  const Buffer none = open_file(file(), {.offset_bytes = 17, .bytes = 0, .map = GetParam()});
  EXPECT_TRUE(none.read_host<std::byte>().empty());
  EXPECT_EQ(open_file(file(), {.offset_bytes = 4096, .map = GetParam()}).size_bytes(), 0u);
}

TEST_P(FileTest, RefusesMoreThanTheFileHas) {
  const std::string path = file();
  const Failure failure = try_open_file(path, {.bytes = 5000, .map = GetParam()}).failure();
  EXPECT_EQ(failure.code(), ErrorCode::file);
  EXPECT_EQ(failure.string("path"), path);
  EXPECT_EQ(failure.string("call"), "fstat");
  EXPECT_EQ(failure.number("os_code"), 0u);
  EXPECT_EQ(failure.number("wanted"), 5000u);
  EXPECT_EQ(failure.number("there"), 4096u);
  EXPECT_EQ(failure.number("offset"), 0u);
  EXPECT_EQ(failure.text(), "file '" + path +
                                "' has 4096 bytes, but the read needs 5000 bytes at offset 0. Read "
                                "less, or check whether the file was truncated.");
  constexpr std::size_t huge = std::numeric_limits<std::size_t>::max();
  for (const FileOptions& options :
       {FileOptions{.offset_bytes = 1, .bytes = 4096}, FileOptions{.offset_bytes = 4097},
        FileOptions{.offset_bytes = huge}, FileOptions{.offset_bytes = huge, .bytes = huge},
        FileOptions{.bytes = huge}}) {
    FileOptions either = options;
    either.map = GetParam();
    EXPECT_EQ(try_open_file(path, either).failure().code(), ErrorCode::file);
  }
}

TEST_P(FileTest, RefusesWritesAndKernels) {
  const Device device = open_device("sim");
  const Stream stream(device);
  Buffer buffer = open_file(file(), options());
  EXPECT_EQ(buffer.try_rw_host<std::byte>().failure().code(), ErrorCode::read_only);
  EXPECT_EQ(buffer.try_discard_host<std::byte>().failure().code(), ErrorCode::read_only);
  EXPECT_EQ(buffer.slice(5, 0).try_discard_host<std::byte>().failure().code(),
            ErrorCode::read_only);
  for (const Access access : {Access::read_write, Access::discard}) {
    EXPECT_EQ(buffer.try_use(stream, access).failure().code(), ErrorCode::read_only);
    EXPECT_EQ(buffer.storage()
                  ->try_use(stream, access, 0, 1, {}, Storage::Streams::any_device)
                  .failure()
                  .code(),
              ErrorCode::read_only);
  }
  EXPECT_EQ(buffer.try_use(stream, Access::read).failure().code(), ErrorCode::unsupported);
  EXPECT_EQ(buffer.try_device_ptr(stream, Access::read).failure().code(), ErrorCode::unsupported);
  EXPECT_EQ(buffer.storage()->try_use(stream, Access::read, 0, 1, {}).failure().code(),
            ErrorCode::unsupported);
  EXPECT_EQ(buffer.storage()->try_release_block({}, {}).failure().code(), ErrorCode::unsupported);
  EXPECT_TRUE(equals(buffer.read_host<std::byte>().span(), bytes_));
}

TEST_P(FileTest, ReportsAFileThatWasTruncatedAfterOpening) {
  const std::string path = file();
  const Buffer buffer = open_file(path, options());
  set_length(path, 100);
  Bytes to(101, std::byte{0xEE});
  const Failure failure = read(buffer, 0, to).failure();
  EXPECT_EQ(failure.code(), ErrorCode::file);
  EXPECT_EQ(failure.string("path"), path);
  EXPECT_EQ(failure.string("call"), "pread");
  EXPECT_EQ(failure.number("wanted"), 101u);
  EXPECT_EQ(failure.number("there"), 100u);
  EXPECT_EQ(to, Bytes(101, std::byte{0xEE}));
  EXPECT_TRUE(read(buffer, 0, std::span(to).first(100)));
  EXPECT_EQ(buffer.try_read_host<std::byte>().failure().code(), ErrorCode::file);
  EXPECT_EQ(buffer.try_read_host<std::byte>().failure().number("wanted"), 4096u);
  set_length(path, 4096);
  EXPECT_TRUE(buffer.try_read_host<std::byte>());
}

TEST_P(FileTest, ReadsAFileThatWasDeletedAfterOpening) {
  const std::string path = file();
  const Buffer buffer = open_file(path, options());
  ASSERT_EQ(unlink(path.c_str()), 0);
  EXPECT_TRUE(equals(buffer.read_host<std::byte>().span(), bytes_));
}

TEST_P(FileTest, WorksInAForkedChild) {
  const std::string path = file();
  const Buffer buffer = open_file(path, options());
  const Buffer read_before = open_file(path, options());
  EXPECT_TRUE(equals(read_before.read_host<std::byte>().span(), bytes_));
  EXPECT_EQ(test::in_a_forked_child([&] {
              Bytes some(10);
              return equals(buffer.read_host<std::byte>().span(), bytes_) &&
                     equals(read_before.read_host<std::byte>().span(), bytes_) &&
                     bool(read(buffer, 0, some)) && try_open_file(path, options());
            }),
            0);
}

TEST_P(FileTest, ClosesARejectedFile) {
  const std::string path = file();
  {
    const Buffer buffer = open_file(path, options());
    EXPECT_EQ(open_files(), files_before_ + 1);
  }
  FileOptions odd = options();
  odd.bytes = 4095;
  odd.dtype = dtype_of<float>();
  EXPECT_EQ(try_open_file(path, odd).failure().code(), ErrorCode::size_mismatch);
  odd.bytes = 5000;
  EXPECT_FALSE(try_open_file(path, odd));
  EXPECT_FALSE(try_open_file(testing::TempDir(), options()));
  EXPECT_EQ(open_files(), files_before_);
}

TEST_P(FileTest, IsNotInheritedByAProgramThatIsExecuted) {
  const std::string path = file();
  const Buffer buffer = open_file(path, options());
  int found = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    if (std::filesystem::read_symlink(entry, gone) != path) continue;
    ++found;
    EXPECT_NE(fcntl(std::stoi(entry.path().filename()), F_GETFD) & FD_CLOEXEC, 0);
  }
  EXPECT_EQ(found, 1);
}

TEST_P(FileTest, LeaksNothingIfTheHostHasNoMemory) {
  if (!test::HeapExhausted::is_possible()) GTEST_SKIP() << "operator new cannot be refused here";
  const std::string path = file();
  static_cast<void>(open_file(path, options()));  // what is made once is there
  for (std::size_t left = 0;; ++left) {
    ErrorCode code = ErrorCode::driver;
    bool has_failed = false, is_read = false;
    {
      const test::HeapExhausted exhausted(left);
      const Result<Buffer> buffer = try_open_file(path, options());
      if (!buffer) {
        code = buffer.failure().code();
      } else {
        const auto view = buffer->try_read_host<std::byte>();
        is_read = bool(view);
        if (!view) code = view.failure().code();
      }
      has_failed = exhausted.has_failed();
    }
    EXPECT_EQ(open_files(), files_before_);
    if (!has_failed) {
      EXPECT_TRUE(is_read);
      EXPECT_GE(left, 2u);
      break;
    }
    EXPECT_EQ(code, ErrorCode::out_of_memory);
  }
}

INSTANTIATE_TEST_SUITE_P(Files, FileTest, testing::Bool(), [](const auto& one) {
  return std::string(one.param ? "mapped" : "read");
});

class OneFileTest : public FileTest {};
INSTANTIATE_TEST_SUITE_P(Files, OneFileTest, testing::Values(false));
class MappedFileTest : public FileTest {};
INSTANTIATE_TEST_SUITE_P(Files, MappedFileTest, testing::Values(true));

TEST_P(OneFileTest, ReadsNothingBeforeItIsUsed) {
  const std::string path = file();
  const Buffer buffer = open_file(path);
  EXPECT_FALSE(buffer.is_allocated());
  EXPECT_EQ(buffer.try_address().failure().code(), ErrorCode::not_allocated);
  Bytes some(10);
  EXPECT_TRUE(read(buffer, 0, some));
  EXPECT_FALSE(buffer.is_allocated());
  static_cast<void>(buffer.read_host<std::byte>());
  EXPECT_TRUE(buffer.is_allocated());
}

TEST_P(OneFileTest, ReadsOnceForConcurrentUsers) {
  const Buffer buffer = open_file(file());
  std::vector<const std::byte*> addresses(16);
  {
    std::vector<test::Thread> threads;
    for (const std::byte*& address : addresses) {
      threads.emplace_back([&] { address = buffer.read_host<std::byte>().data(); });
    }
  }
  for (const std::byte* address : addresses) EXPECT_EQ(address, addresses[0]);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(addresses[0]) % 64, 0u);
}

TEST_P(OneFileTest, KeepsItsBytesWhenTheFileChanges) {
  const std::string path = file();
  const Buffer buffer = open_file(path);
  static_cast<void>(buffer.read_host<std::byte>());
  set_length(path, 0);
  EXPECT_TRUE(equals(buffer.read_host<std::byte>().span(), bytes_));
}

TEST_P(OneFileTest, RejectsAFileThatReadsShort) {
  const char* const path = "/sys/kernel/mm/transparent_hugepage/enabled";
  const Result<Buffer> buffer = try_open_file(path);
  if (!buffer || buffer->size_bytes() != 4096) GTEST_SKIP() << "there is no such file here";
  const Failure failure = buffer->try_read_host<std::byte>().failure();
  EXPECT_EQ(failure.code(), ErrorCode::file);
  EXPECT_EQ(failure.string("call"), "pread");
  EXPECT_EQ(failure.number("wanted"), 4096u);
  EXPECT_LT(failure.number("there"), 4096u);
  EXPECT_FALSE(buffer->is_allocated());
}

TEST_P(OneFileTest, SaysWhyAFileCannotBeOpened) {
  const Failure missing = try_open_file(folder_ / "none").failure();
  EXPECT_EQ(missing.code(), ErrorCode::file);
  EXPECT_EQ(missing.string("path"), folder_ / "none");
  EXPECT_EQ(missing.string("call"), "open");
  EXPECT_EQ(missing.number("os_code"), static_cast<std::uint64_t>(ENOENT));
  EXPECT_EQ(missing.text(),
            "file '" + (folder_ / "none") + "': open failed: No such file or directory.");
  EXPECT_EQ(try_open_file("").failure().number("os_code"), static_cast<std::uint64_t>(ENOENT));
  EXPECT_EQ(try_open_file(testing::TempDir()).failure().number("os_code"),
            static_cast<std::uint64_t>(EISDIR));
  EXPECT_EQ(try_open_file(file() + "/below").failure().number("os_code"),
            static_cast<std::uint64_t>(ENOTDIR));
  EXPECT_THROW(static_cast<void>(open_file(folder_ / "none")), FileError);
}

TEST_P(OneFileTest, DoesNotWaitForAPipe) {
  const std::string pipe = folder_ / "pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0644), 0);
  const Failure failure = try_open_file(pipe).failure();
  EXPECT_EQ(failure.code(), ErrorCode::file);
  EXPECT_EQ(failure.string("why"), "not a regular file");
  EXPECT_EQ(try_open_file("/dev/zero").failure().code(), ErrorCode::file);
}

TEST_P(OneFileTest, ReportsMissingReadPermission) {
  const std::string path = file();
  ASSERT_EQ(chmod(path.c_str(), 0), 0);
  EXPECT_EQ(test::in_a_forked_child([&] {
              // The administrator may read everything.
              if (geteuid() == 0 && seteuid(65534) != 0) return false;
              const Result<Buffer> buffer = try_open_file(path);
              return !buffer && buffer.failure().code() == ErrorCode::file &&
                     buffer.failure().number("os_code") == static_cast<std::uint64_t>(EACCES);
            }),
            0);
}

TEST_P(OneFileTest, RejectsInvalidPathsAndTypes) {
  using namespace std::string_view_literals;
  EXPECT_EQ(try_open_file("a\0b"sv).failure().code(), ErrorCode::invalid_argument);
  EXPECT_EQ(try_open_file("a\0b"sv).failure().string("value"), "a");
  EXPECT_EQ(try_open_file(file(), {.dtype = DType::void_}).failure().code(),
            ErrorCode::invalid_argument);
  const Failure odd = try_open_file(file(), {.bytes = 10, .dtype = dtype_of<float>()}).failure();
  EXPECT_EQ(odd.code(), ErrorCode::size_mismatch);
  EXPECT_EQ(odd.number("actual"), 10u);
  EXPECT_EQ(odd.number("expected"), 4u);
}

TEST_P(OneFileTest, ReadsElementsFromAnyOffset) {
  const Buffer buffer =
      open_file(file(), {.offset_bytes = 3, .bytes = 16, .dtype = dtype_of<double>()});
  const auto view = buffer.read_host<double>();
  EXPECT_EQ(std::memcmp(view.data(), bytes_.data() + 3, 16), 0);
}

TEST_P(OneFileTest, OpensAFileByTheTextThatNamesIt) {
  const std::string path = folder_.write("Upper And Lower?x=1", bytes_);
  for (const char* disk : {"disk:", "DISK:", "Disk:"}) {
    EXPECT_EQ(open_disk(disk + path).size_bytes(), 4096u);
  }
  for (const char* wrong : {"", "disk", "disk:", "host", "disc:/x", "/x"}) {
    const Failure failure = try_open_disk(wrong).failure();
    EXPECT_EQ(failure.code(), ErrorCode::invalid_device);
    EXPECT_EQ(failure.string("spec"), wrong);
  }
  EXPECT_EQ(try_open_disk("disk:" + path + "y").failure().code(), ErrorCode::file);
  EXPECT_EQ(parse_device_spec("Disk:" + path).path, path);
}

TEST_P(OneFileTest, ChecksHostAccessesOnRequest) {
  const Buffer buffer = open_file(file(), {.checked = true});
  const auto one = buffer.read_host<std::byte>();
  const auto another = buffer.read_host<std::byte>();
  EXPECT_EQ(one.data(), another.data());
}

TEST_P(MappedFileTest, SurvivesTruncationDuringARead) {
  const std::string path = folder_.write("mapped", test::sample(64 * kib));
  const Buffer buffer = open_file(path, options());
  const auto view = buffer.read_host<std::byte>();
  set_length(path, 0);
  std::size_t sum = 0;
  for (const std::byte byte : view) sum += std::to_integer<std::size_t>(byte);
  EXPECT_EQ(sum, 0u);
  EXPECT_EQ(buffer.try_read_host<std::byte>().failure().code(), ErrorCode::file);
  Bytes one(1);
  EXPECT_EQ(read(buffer, 0, one).failure().code(), ErrorCode::file);
}

TEST_P(MappedFileTest, StaysInvalidAfterTruncationAndGrowth) {
  const std::string path = folder_.write("mapped", test::sample(64 * kib));
  const Buffer buffer = open_file(path, options());
  const auto view = buffer.read_host<std::byte>();
  set_length(path, 0);
  EXPECT_EQ(view[64 * kib - 1], std::byte{0});
  set_length(path, 64 * kib);
  const Failure failure = buffer.try_read_host<std::byte>().failure();
  EXPECT_EQ(failure.code(), ErrorCode::file);
  EXPECT_EQ(failure.string("path"), path);
  EXPECT_EQ(failure.number("wanted"), 64 * kib);
  EXPECT_EQ(failure.number("there"), 64 * kib);
  Bytes one(1);
  EXPECT_EQ(read(buffer, 0, one).failure().code(), ErrorCode::file);
  EXPECT_TRUE(open_file(path, options()).try_read_host<std::byte>());
}

TEST_P(MappedFileTest, SurvivesTruncationInAForkedChild) {
  const std::string path = folder_.write("mapped", test::sample(64 * kib));
  const Buffer buffer = open_file(path, options());
  const auto view = buffer.read_host<std::byte>();
  EXPECT_EQ(test::in_a_forked_child([&] {
              set_length(path, 0);
              return view[5000] == std::byte{0} && !buffer.try_read_host<std::byte>();
            }),
            0);
}

TEST_P(MappedFileTest, RejectsUnalignedElements) {
  const std::string path = file();
  FileOptions odd = options();
  odd.offset_bytes = 2;
  odd.bytes = 16;
  EXPECT_TRUE(try_open_file(path, odd));
  EXPECT_EQ(open_file(path, odd).try_as(dtype_of<double>()).failure().code(),
            ErrorCode::misaligned);
  odd.dtype = dtype_of<double>();
  EXPECT_EQ(try_open_file(path, odd).failure().code(), ErrorCode::misaligned);
}

class WritableFileTest : public FileTest {
 protected:
  [[nodiscard]] Buffer open() const {
    return open_file(file(), {.map = GetParam(), .writable = true});
  }
  [[nodiscard]] Bytes content() const {
    const Buffer again = open_file(folder_ / "a.bin");
    const auto view = again.read_host<std::byte>();
    return {view.begin(), view.end()};
  }
};
INSTANTIATE_TEST_SUITE_P(Files, WritableFileTest, testing::Bool(), [](const auto& one) {
  return std::string(one.param ? "mapped" : "read");
});

TEST_P(WritableFileTest, HostWritesChangeTheFile) {
  Buffer buffer = open();
  EXPECT_EQ(buffer.reach(), (Reach{true, true, false, false}));
  Bytes expected = bytes_;
  {
    const auto view = buffer.rw_host<std::byte>();
    EXPECT_TRUE(equals(view.span(), bytes_));
    view[100] = expected[100] = std::byte{0xAB};
  }
  flush(buffer);
  EXPECT_EQ(content(), expected);
  Bytes some(2);
  read(buffer, 99, some).value();
  EXPECT_EQ(some[1], std::byte{0xAB});
}

TEST_P(WritableFileTest, CopiesChangeTheMappedBytes) {
  const Buffer buffer = open();
  const auto view = buffer.read_host<std::byte>();
  const Bytes other = test::sample(10, 77);
  const Device host = open_device("host");
  Buffer memory(host, {10}, DType::byte);
  memory.try_copy_from(other.data(), other.size()).value();
  copy(buffer.byte_view(50, 10), memory);
  EXPECT_TRUE(equals(view.span().subspan(50, 10), other));
}

TEST_P(WritableFileTest, MemoryOfTheHostIsCopiedIntoIt) {
  Buffer buffer = open();
  Bytes expected = test::sample(bytes_.size(), 78);
  ASSERT_TRUE(buffer.try_copy_from(expected.data(), expected.size()));
  flush(buffer);
  EXPECT_EQ(content(), expected);
  const Device device = open_device("sim");
  const Stream stream(device);
  EXPECT_EQ(buffer.try_copy_from(bytes_.data(), bytes_.size(), stream).failure().code(),
            ErrorCode::unsupported);
  EXPECT_EQ(buffer.try_copy_to(expected.data(), expected.size(), stream).failure().code(),
            ErrorCode::unsupported);
  EXPECT_EQ(content(), expected);
}

TEST_P(WritableFileTest, KernelsCannotUseIt) {
  const Device device = open_device("sim");
  const Stream stream(device);
  const Buffer buffer = open();
  EXPECT_EQ(buffer.try_use(stream, Access::read_write).failure().code(), ErrorCode::unsupported);
}

TEST_P(WritableFileTest, SurvivesTruncation) {
  Buffer buffer = open();
  const auto view = buffer.rw_host<std::byte>();
  set_length(folder_ / "a.bin", 0);
  view[10] = std::byte{5};
  EXPECT_EQ(view[10], std::byte{5});
  EXPECT_EQ(buffer.try_rw_host<std::byte>().failure().code(), ErrorCode::file);
}

TEST_P(WritableFileTest, NeedsAlignedElements) {
  const Failure failure =
      try_open_file(file(), {.offset_bytes = 2, .bytes = 8, .dtype = DType::f32, .writable = true})
          .failure();
  EXPECT_EQ(failure.code(), ErrorCode::misaligned);
  EXPECT_EQ(failure.number("required"), 4u);
}

TEST_P(WritableFileTest, AFileThatCannotBeWrittenIsAnError) {
  if (geteuid() == 0) GTEST_SKIP() << "root may write every file";
  const std::string path = file();
  ASSERT_EQ(chmod(path.c_str(), 0400), 0);
  const Failure failure = try_open_file(path, {.map = GetParam(), .writable = true}).failure();
  EXPECT_EQ(failure.code(), ErrorCode::file);
  EXPECT_EQ(failure.number("os_code"), std::uint64_t{EACCES});
}

TEST_P(WritableFileTest, CreatesAndExtendsFiles) {
  const std::string path = folder_ / "made";
  FileOptions options{.offset_bytes = 8, .bytes = 100, .map = GetParam(), .create = true};
  {
    Buffer made = open_file(path, options);
    EXPECT_EQ(made.size_bytes(), 100u);
    made.discard_host<std::byte>()[99] = std::byte{9};
  }
  EXPECT_EQ(open_file(path).size_bytes(), 108u);
  // A file that is long enough stays as it is.
  options.bytes = 10;
  EXPECT_EQ(open_file(path, options).size_bytes(), 10u);
  EXPECT_EQ(open_file(path).size_bytes(), 108u);
  EXPECT_EQ(open_file(path).read_host<std::byte>()[107], std::byte{9});
  options.bytes = std::nullopt;
  EXPECT_EQ(try_open_file(path, options).failure().code(), ErrorCode::invalid_argument);
  options.bytes = std::numeric_limits<std::size_t>::max();
  EXPECT_EQ(try_open_file(path, options).failure().number("os_code"), std::uint64_t{EFBIG});
  const test::FileLimit limit(1000);
  options.bytes = 5000;
  const Failure failure = try_open_file(path, options).failure();
  EXPECT_EQ(failure.code(), ErrorCode::file);
  EXPECT_EQ(failure.string("path"), path);
}

TEST_P(WritableFileTest, OnlyFilesAreFlushed) {
  EXPECT_TRUE(try_flush(open_file(file(), options())));
  EXPECT_TRUE(try_flush(open()));
  EXPECT_EQ(try_flush(Buffer()).failure().code(), ErrorCode::not_allocated);
  const Device host = open_device("host");
  EXPECT_EQ(try_flush(Buffer(host, {10}, DType::byte)).failure().code(), ErrorCode::unsupported);
}

}  // namespace
}  // namespace tern
