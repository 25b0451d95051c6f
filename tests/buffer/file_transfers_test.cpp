#include "buffer/file_transfers.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "support/file_faults.hpp"
#include "support/file_limit.hpp"
#include "support/forked_child.hpp"
#include "support/ladder.hpp"
#include "support/temporary_folder.hpp"
#include "support/thread.hpp"
#include "support/thread_famine.hpp"
#include "tern/core/bytes.hpp"

namespace tern {
namespace {

using test::Bytes;
using Driver = FileTransfers::Driver;

/// Memory that begins at a multiple of 4 KiB.
struct AlignedBytes {
  explicit AlignedBytes(std::size_t bytes)
      : size(bytes), data(new (std::align_val_t(4096)) std::byte[bytes]) {}
  std::size_t size;
  struct Free {
    void operator()(std::byte* memory) const { operator delete[](memory, std::align_val_t(4096)); }
  };
  std::unique_ptr<std::byte[], Free> data;
};

/// Accepts null for 0 bytes, which memcmp() does not.
bool is_same(const std::byte* a, const std::byte* b, std::size_t bytes) {
  return bytes == 0 || std::memcmp(a, b, bytes) == 0;
}

/// An open file.
struct OpenedFile {
  explicit OpenedFile(const std::string& path,
                      TransferFile::Direct direct = TransferFile::Direct::if_possible)
      : number(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600)),
        file(number, path, direct, true) {}
  OpenedFile(const OpenedFile&) = delete;
  OpenedFile& operator=(const OpenedFile&) = delete;
  ~OpenedFile() { close(number); }
  int number;
  TransferFile file;
};

class FileTransfersTest : public testing::TestWithParam<Driver> {
 protected:
  void SetUp() override {
    if (transfers_.driver() != GetParam()) GTEST_SKIP() << "io_uring is not available";
  }
  Result<void> run(TransferFile& file, bool is_write, std::byte* memory, std::size_t offset,
                   std::size_t bytes) {
    FileTransfer transfer{
        .file = &file, .memory = memory, .offset = offset, .bytes = bytes, .is_write = is_write};
    transfers_.submit(transfer);
    transfers_.wait(transfer);
    return transfer.result(CallSite::here());
  }
  Result<void> write(TransferFile& file, const std::byte* memory, std::size_t offset,
                     std::size_t bytes) {
    return run(file, true, const_cast<std::byte*>(memory), offset, bytes);
  }
  Result<void> read(TransferFile& file, std::byte* memory, std::size_t offset, std::size_t bytes) {
    return run(file, false, memory, offset, bytes);
  }

  test::TemporaryFolder folder_;
  FileTransfers transfers_{GetParam()};
};

INSTANTIATE_TEST_SUITE_P(Drivers, FileTransfersTest,
                         testing::Values(Driver::io_uring, Driver::threads), [](const auto& one) {
                           return std::string(one.param == Driver::io_uring ? "io_uring"
                                                                            : "threads");
                         });

TEST_P(FileTransfersTest, TransfersRangesOfAnySizeAndAlignment) {
  for (const TransferFile::Direct direct :
       {TransferFile::Direct::never, TransferFile::Direct::if_possible}) {
    for (const std::size_t bytes :
         {std::size_t{0}, std::size_t{1}, std::size_t{4095}, mib, 3 * mib + 4097}) {
      for (const std::size_t offset : {0u, 5000u}) {
        for (const std::size_t lead : {std::size_t{1}, offset % 4096}) {
          OpenedFile opened(folder_.write("a", test::sample(offset + bytes, 9)), direct);
          const Bytes sample = test::sample(lead + bytes, 3);
          AlignedBytes memory(sample.size() + 1);
          std::copy(sample.begin(), sample.end(), memory.data.get());
          ASSERT_TRUE(write(opened.file, memory.data.get() + lead, offset, bytes));
          Bytes plain(offset + bytes + 1);
          ASSERT_EQ(pread(opened.number, plain.data(), plain.size(), 0), ssize_t(offset + bytes));
          EXPECT_TRUE(is_same(plain.data(), test::sample(offset + bytes, 9).data(), offset));
          EXPECT_TRUE(is_same(plain.data() + offset, sample.data() + lead, bytes));
          AlignedBytes back(sample.size() + 1);
          back.data[lead + bytes] = std::byte{7};
          ASSERT_TRUE(read(opened.file, back.data.get() + lead, offset, bytes));
          EXPECT_TRUE(is_same(back.data.get() + lead, sample.data() + lead, bytes));
          EXPECT_EQ(back.data[lead + bytes], std::byte{7});
        }
      }
    }
  }
}

TEST_P(FileTransfersTest, ReturnsBeforeTheTransferIsDone) {
  OpenedFile opened(folder_.write("a", test::sample(100)));
  test::PlannedFaults faults(transfers_);
  faults.hold();
  Bytes memory(100);
  FileTransfer transfer{.file = &opened.file, .memory = memory.data(), .bytes = 100};
  transfers_.submit(transfer);
  EXPECT_FALSE(transfers_.is_done(transfer));
  faults.release();
  transfers_.wait(transfer);
  EXPECT_TRUE(transfers_.is_done(transfer));
  EXPECT_EQ(memory, test::sample(100));
}

TEST_P(FileTransfersTest, ContinuesShortCallsAndInterruptedCalls) {
  OpenedFile opened(folder_ / "a");
  test::PlannedFaults faults(transfers_);
  faults.fail(EINTR, test::any_call, 5);
  faults.shorten(70'001, test::any_call);
  const Bytes sample = test::sample(2 * mib);
  ASSERT_TRUE(write(opened.file, sample.data(), 3, sample.size()));
  Bytes back(sample.size());
  ASSERT_TRUE(read(opened.file, back.data(), 3, back.size()));
  EXPECT_EQ(back, sample);
  EXPECT_GE(faults.calls().size(), 5u + 2 * (2 * mib / 70'001));
}

TEST_P(FileTransfersTest, AFailedTransferNamesTheFileTheOffsetAndTheBytes) {
  for (const int error : {ENOSPC, EIO}) {
    const std::string path = folder_.write("a", test::sample(4 * mib));
    OpenedFile opened(path, TransferFile::Direct::never);
    const Bytes sample = test::sample(3 * mib);
    Bytes to(3 * mib);
    test::PlannedFaults faults(transfers_);
    faults.fail(error, [](const FileCall& call) { return call.offset == 100 + 2 * mib; });
    for (const bool is_write : {true, false}) {
      const Result<void> done = is_write ? write(opened.file, sample.data(), 100, sample.size())
                                         : read(opened.file, to.data(), 100, to.size());
      const Failure failure = done.failure();
      EXPECT_EQ(failure.code(), ErrorCode::file);
      EXPECT_EQ(failure.string("path"), path);
      EXPECT_EQ(failure.string("call"), is_write ? "pwrite" : "pread");
      EXPECT_EQ(failure.number("os_code"), std::uint64_t(error));
      EXPECT_EQ(failure.number("offset"), 100u);
      EXPECT_EQ(failure.number("failed_offset"), 100 + 2 * mib);
      EXPECT_EQ(failure.number("requested"), 3 * mib);
      EXPECT_NE(failure.text().find(path), std::string::npos);
    }
  }
}

TEST_P(FileTransfersTest, OtherTransfersGoOnAfterAFailure) {
  OpenedFile bad(folder_ / "bad"), good(folder_ / "good");
  test::PlannedFaults faults(transfers_);
  faults.fail(ENOSPC, [](const FileCall& call) { return call.offset >= gib; });
  Bytes sample = test::sample(5 * mib);
  FileTransfer failing{.file = &bad.file,
                       .memory = sample.data(),
                       .offset = gib,
                       .bytes = sample.size(),
                       .is_write = true};
  FileTransfer other{
      .file = &good.file, .memory = sample.data(), .bytes = sample.size(), .is_write = true};
  transfers_.submit(failing);
  transfers_.submit(other);
  transfers_.wait(failing);
  transfers_.wait(other);
  EXPECT_EQ(failing.error, ENOSPC);
  EXPECT_TRUE(other.result({}));
  Bytes back(sample.size());
  ASSERT_TRUE(read(good.file, back.data(), 0, back.size()));
  EXPECT_EQ(back, sample);
}

TEST_P(FileTransfersTest, AFileThatEndsEarlyIsAnError) {
  const std::string path = folder_.write("a", test::sample(3 * mib));
  OpenedFile opened(path);
  test::set_length(path, mib + 10);
  AlignedBytes memory(3 * mib);
  const Failure failure = read(opened.file, memory.data.get(), 0, 3 * mib).failure();
  EXPECT_EQ(failure.code(), ErrorCode::file);
  EXPECT_EQ(failure.string("why"), "the file is too short");
  EXPECT_EQ(failure.number("wanted"), 3 * mib);
  EXPECT_GE(failure.number("there"), mib + 10);
  EXPECT_TRUE(read(opened.file, memory.data.get(), 0, mib + 10));
}

TEST_P(FileTransfersTest, LargeAlignedTransfersBypassThePageCache) {
  OpenedFile opened(folder_ / "a");
  if (!opened.file.is_direct()) GTEST_SKIP() << "the file system has no direct access";
  AlignedBytes memory(4 * mib);
  std::memset(memory.data.get(), 5, memory.size);
  test::PlannedFaults faults(transfers_);
  ASSERT_TRUE(write(opened.file, memory.data.get() + 100, 100, 3 * mib));
  EXPECT_EQ(faults.count(test::is_direct_call), 3u);
  // The two ends are not aligned.
  EXPECT_EQ(faults.calls().size(), 5u);
  // The page cache does not have the bytes, so the reads bypass it too.
  test::PlannedFaults again(transfers_);
  ASSERT_TRUE(read(opened.file, memory.data.get() + 4096, 4096, 2 * mib));
  EXPECT_GE(again.count(test::asks_cache_call), 1u);
  EXPECT_EQ(again.count(test::is_direct_call), 2u);
}

TEST_P(FileTransfersTest, ReadsWhatThePageCacheHas) {
  OpenedFile opened(folder_.write("a", test::sample(2 * mib)));
  if (!opened.file.is_direct()) GTEST_SKIP() << "the file system has no direct access";
  AlignedBytes memory(2 * mib);
  test::PlannedFaults faults(transfers_);
  ASSERT_TRUE(read(opened.file, memory.data.get(), 0, 2 * mib));
  constexpr long cachestat = 451;
  if (syscall(cachestat, -1, nullptr, nullptr, 0) != 0 && errno != EBADF && errno != EFAULT) {
    GTEST_SKIP() << "the kernel does not tell what is cached";
  }
  EXPECT_EQ(faults.count(test::asks_cache_call), 2u);
  EXPECT_EQ(faults.count(test::is_direct_call), 0u);
}

TEST_P(FileTransfersTest, UsesThePageCacheIfTheFileSystemRefusesDirectAccess) {
  for (const int error : {EINVAL, EOPNOTSUPP}) {
    OpenedFile opened(folder_ / std::to_string(error));
    test::PlannedFaults faults(transfers_);
    faults.fail(error, [](const FileCall& call) { return call.is_direct || call.asks_cache; });
    AlignedBytes memory(2 * mib), back(2 * mib);
    const Bytes sample = test::sample(2 * mib);
    std::memcpy(memory.data.get(), sample.data(), sample.size());
    ASSERT_TRUE(write(opened.file, memory.data.get(), 0, 2 * mib));
    EXPECT_FALSE(opened.file.is_direct() && faults.count(test::is_direct_call) != 0);
    ASSERT_TRUE(read(opened.file, back.data.get(), 0, 2 * mib));
    EXPECT_EQ(std::memcmp(back.data.get(), sample.data(), sample.size()), 0);
  }
}

TEST_P(FileTransfersTest, AFileSystemWithoutDirectAccessIsUsed) {
  // Reads of this one are never direct, and its size is not known before.
  if (access("/dev/shm", W_OK) != 0) GTEST_SKIP() << "there is no file system in memory";
  const std::string path = "/dev/shm/tern-" + std::to_string(getpid()) + "-" +
                           std::to_string(static_cast<int>(GetParam()));
  OpenedFile opened(path);
  unlink(path.c_str());
  AlignedBytes memory(2 * mib);
  const Bytes sample = test::sample(2 * mib);
  std::memcpy(memory.data.get(), sample.data(), sample.size());
  ASSERT_TRUE(write(opened.file, memory.data.get(), 0, 2 * mib));
  std::memset(memory.data.get(), 0, 2 * mib);
  ASSERT_TRUE(read(opened.file, memory.data.get(), 0, 2 * mib));
  EXPECT_EQ(std::memcmp(memory.data.get(), sample.data(), sample.size()), 0);
}

TEST_P(FileTransfersTest, TheFileSizeLimitIsAnErrorAndNoSignal) {
  OpenedFile opened(folder_ / "a", TransferFile::Direct::never);
  const Bytes sample = test::sample(2 * mib);
  const test::FileLimit limit(mib);
  const Failure failure = write(opened.file, sample.data(), 0, sample.size()).failure();
  EXPECT_EQ(failure.number("os_code"), std::uint64_t{EFBIG});
  EXPECT_EQ(failure.number("failed_offset"), mib);
}

TEST_P(FileTransfersTest, ADoneFunctionMaySubmitTheNextTransfer) {
  OpenedFile opened(folder_.write("a", test::sample(100)));
  struct Chain {
    FileTransfers& transfers;
    std::atomic<int> done = 0;
    static void next(FileTransfer& transfer) noexcept {
      auto& chain = *static_cast<Chain*>(transfer.context);
      const int done = chain.done + 1;
      if (done < 50) {
        chain.done = done;
        transfer.offset = static_cast<std::size_t>(done);
        ++transfer.memory;
        chain.transfers.submit(transfer);
      } else {
        chain.done = done;
        chain.done.notify_all();
      }
    }
  } chain{transfers_};
  Bytes memory(50);
  FileTransfer transfer{.file = &opened.file,
                        .memory = memory.data(),
                        .bytes = 1,
                        .on_done = Chain::next,
                        .context = &chain};
  transfers_.submit(transfer);
  for (int done = 0; (done = chain.done) < 50;) chain.done.wait(done);
  EXPECT_TRUE(std::equal(memory.begin(), memory.end(), test::sample(100).begin()));
}

TEST_P(FileTransfersTest, IsSafeToUseFromSeveralThreads) {
  OpenedFile opened(folder_.write("a", {}));
  {
    std::vector<test::Thread> threads;
    for (unsigned number = 0; number < 4; ++number) {
      threads.emplace_back([&, number] {
        for (unsigned i = 0; i < 20; ++i) {
          const Bytes sample = test::sample(30'000 + i, 100 * number + i);
          const std::size_t offset = (20 * number + i) * 30'100;
          EXPECT_TRUE(write(opened.file, sample.data(), offset, sample.size()));
          Bytes back(sample.size());
          EXPECT_TRUE(read(opened.file, back.data(), offset, back.size()));
          EXPECT_EQ(back, sample);
        }
      });
    }
  }
}

TEST_P(FileTransfersTest, TheDestructorWaitsForTransfers) {
  OpenedFile opened(folder_ / "a");
  Bytes sample = test::sample(40 * mib);
  FileTransfer transfer{
      .file = &opened.file, .memory = sample.data(), .bytes = sample.size(), .is_write = true};
  {
    FileTransfers own(GetParam());
    own.submit(transfer);
  }
  EXPECT_TRUE(transfer.progress.is_done);
  Bytes back(sample.size());
  ASSERT_TRUE(read(opened.file, back.data(), 0, back.size()));
  EXPECT_EQ(back, sample);
}

TEST_P(FileTransfersTest, WorksWithoutAThread) {
  OpenedFile opened(folder_ / "a");
  const Bytes sample = test::sample(2 * mib);
  Bytes back(sample.size());
  const test::ThreadFamine famine;
  FileTransfers own(GetParam());
  FileTransfer write{.file = &opened.file,
                     .memory = const_cast<std::byte*>(sample.data()),
                     .bytes = sample.size(),
                     .is_write = true};
  own.submit(write);
  EXPECT_TRUE(own.is_done(write));
  EXPECT_EQ(own.driver(), Driver::threads);
  FileTransfer read{.file = &opened.file, .memory = back.data(), .bytes = back.size()};
  own.submit(read);
  own.wait(read);
  EXPECT_EQ(back, sample);
}

TEST(FileTransfersInstance, AForkedChildHasItsOwn) {
  if (!test::children_can_start_threads || !test::children_can_allocate) {
    GTEST_SKIP() << "a forked child cannot start threads under this sanitizer";
  }
  const test::TemporaryFolder folder;
  OpenedFile opened(folder.write("a", test::sample(100)));
  const auto reads = [&] {
    Bytes memory(100);
    FileTransfer transfer{.file = &opened.file, .memory = memory.data(), .bytes = 100};
    FileTransfers::instance().submit(transfer);
    FileTransfers::instance().wait(transfer);
    return transfer.error == 0 && memory == test::sample(100);
  };
  EXPECT_TRUE(reads());
  EXPECT_EQ(test::in_a_forked_child(reads), 0);
  EXPECT_TRUE(reads());
}

/// Makes io_uring fail in this process, as the filters of containers do.
bool refuse_io_uring(unsigned call) {
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog filter = {4, program};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

TEST(FileTransfersInstance, UsesThreadsIfIoUringIsRefused) {
  if (!test::children_can_start_threads || !test::children_can_allocate) {
    GTEST_SKIP() << "a forked child cannot start threads under this sanitizer";
  }
  const test::TemporaryFolder folder;
  OpenedFile opened(folder.write("a", test::sample(100)));
  for (const unsigned call : {unsigned{__NR_io_uring_setup}, unsigned{__NR_io_uring_enter}}) {
    EXPECT_EQ(test::in_a_forked_child([&] {
                if (!refuse_io_uring(call)) return false;
                FileTransfers transfers;
                Bytes memory(100);
                FileTransfer transfer{.file = &opened.file, .memory = memory.data(), .bytes = 100};
                transfers.submit(transfer);
                transfers.wait(transfer);
                return transfers.driver() == Driver::threads && transfer.error == 0 &&
                       memory == test::sample(100);
              }),
              0);
  }
}

TEST(FileTransfersInstance, CompletesTransfersIfIoUringIsRefusedLater) {
  if (!test::children_can_start_threads || !test::children_can_allocate) {
    GTEST_SKIP() << "a forked child cannot start threads under this sanitizer";
  }
  const test::TemporaryFolder folder;
  OpenedFile opened(folder.write("a", test::sample(3 * mib)));
  EXPECT_EQ(test::in_a_forked_child([&] {
              FileTransfers transfers;
              static_cast<void>(transfers.driver());
              // For all threads of the process.
              sock_filter program[] = {
                  BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
                  BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_io_uring_enter, 0, 1),
                  BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
                  BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
              };
              const sock_fprog filter = {4, program};
              if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return false;
              if (syscall(__NR_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC,
                          &filter) != 0) {
                return false;
              }
              for (int round = 0; round < 3; ++round) {
                Bytes memory(3 * mib);
                FileTransfer transfer{
                    .file = &opened.file, .memory = memory.data(), .bytes = memory.size()};
                transfers.submit(transfer);
                transfers.wait(transfer);
                if (transfer.error != 0 || memory != test::sample(3 * mib)) return false;
              }
              return transfers.driver() == Driver::threads;
            }),
            0);
}

}  // namespace
}  // namespace tern
