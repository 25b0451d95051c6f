#include "buffer/file_mapping.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <string>
#include <vector>

#include "support/ladder.hpp"
#include "support/temporary_folder.hpp"

namespace tern {
namespace {

using test::Bytes;

class FileMappingTest : public testing::Test {
 protected:
  ~FileMappingTest() override {
    if (file_ >= 0) close(file_);
  }

  /// Four pages of a file, mapped.
  FileMapping map(std::size_t offset = 0) {
    if (file_ < 0) {
      path_ = folder_.write("mapped", bytes_);
      file_ = open(path_.c_str(), O_RDONLY | O_CLOEXEC);
    }
    FileMapping mapping;
    EXPECT_EQ(mapping.try_map(file_, offset, bytes_.size() - offset).call, nullptr);
    return mapping;
  }
  /// Really read, each time.
  static std::byte byte_at(const FileMapping& mapping, std::size_t offset) {
    return static_cast<const volatile std::byte*>(mapping.address())[offset];
  }
  /// Reads a page beyond the end of a file that Tern knows nothing of.
  void fault_elsewhere() {
    const int file = open(path_.c_str(), O_RDONLY | O_CLOEXEC);
    void* const base = mmap(nullptr, bytes_.size(), PROT_READ, MAP_PRIVATE, file, 0);
    test::set_length(path_, 0);
    static_cast<void>(*static_cast<volatile std::byte*>(base));
  }

  const std::size_t page_ = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  const Bytes bytes_ = test::sample(4 * page_);
  test::TemporaryFolder folder_;
  std::string path_;
  int file_ = -1;
};
using FileMappingDeathTest = FileMappingTest;

TEST_F(FileMappingTest, HasTheBytesFromAnyOffsetOn) {
  for (const std::size_t offset : {std::size_t{0}, std::size_t{1}, page_, 3 * page_ + 17}) {
    const FileMapping mapping = map(offset);
    EXPECT_EQ(std::memcmp(mapping.address(), bytes_.data() + offset, bytes_.size() - offset), 0);
    EXPECT_FALSE(mapping.is_cut());
  }
}

TEST_F(FileMappingTest, ReadsZerosBeyondTheEndOfATruncatedFile) {
  const FileMapping mapping = map();
  test::set_length(path_, page_ + 10);
  EXPECT_EQ(byte_at(mapping, page_ + 9), bytes_[page_ + 9]);
  EXPECT_FALSE(mapping.is_cut());
  EXPECT_EQ(byte_at(mapping, 3 * page_), std::byte{0});
  EXPECT_TRUE(mapping.is_cut());
  EXPECT_EQ(byte_at(mapping, 2 * page_), std::byte{0});
  EXPECT_EQ(byte_at(mapping, 4 * page_ - 1), std::byte{0});
  EXPECT_EQ(byte_at(mapping, 0), bytes_[0]);
}

TEST_F(FileMappingTest, ReadsZerosAfterTruncationEvenIfTheFileGrowsAgain) {
  const FileMapping mapping = map();
  test::set_length(path_, 0);
  EXPECT_EQ(byte_at(mapping, page_), std::byte{0});
  static_cast<void>(folder_.write("mapped", Bytes(4 * page_, std::byte{1})));
  EXPECT_EQ(byte_at(mapping, 3 * page_), std::byte{0});
}

TEST_F(FileMappingTest, PreservesErrno) {
  const FileMapping mapping = map();
  test::set_length(path_, 0);
  errno = 1234;
  static_cast<void>(byte_at(mapping, 0));
  EXPECT_EQ(errno, 1234);
}

TEST_F(FileMappingTest, IdentifiesTheTruncatedMapping) {
  std::vector<FileMapping> all;
  for (int i = 0; i < 200; ++i) all.push_back(map());
  const std::string path = folder_.write("cut", bytes_);
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  FileMapping cut;
  EXPECT_EQ(cut.try_map(file, 0, bytes_.size()).call, nullptr);
  close(file);
  test::set_length(path, 0);
  EXPECT_EQ(byte_at(cut, page_), std::byte{0});
  EXPECT_TRUE(cut.is_cut());
  for (const FileMapping& other : all) {
    EXPECT_FALSE(other.is_cut());
    EXPECT_EQ(byte_at(other, page_), bytes_[page_]);
  }
  // Its place is used again, and it is nobody's any more.
  cut = FileMapping();
  EXPECT_FALSE(map().is_cut());
}

TEST_F(FileMappingTest, NamesTheFailedCall) {
  FileMapping mapping;
  const FileMapping::Refusal refused = mapping.try_map(-1, 0, page_);
  EXPECT_STREQ(refused.call, "mmap");
  EXPECT_EQ(refused.os_code, EBADF);
  EXPECT_FALSE(mapping);
}

// Each in a process of its own, in which nothing was mapped before.

TEST_F(FileMappingDeathTest, ForwardsOtherFaultsToThePreviousHandler) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(
      {
        signal(SIGBUS, [](int) { _exit(7); });
        const FileMapping mapping = map();
        fault_elsewhere();
      },
      testing::ExitedWithCode(7), "");
  EXPECT_EXIT(
      {
        struct sigaction before = {};
        before.sa_sigaction = [](int, siginfo_t* info, void*) {
          _exit(info->si_code == BUS_ADRERR ? 8 : 9);
        };
        before.sa_flags = SA_SIGINFO;
        sigaction(SIGBUS, &before, nullptr);
        const FileMapping mapping = map();
        fault_elsewhere();
      },
      testing::ExitedWithCode(8), "");
}

TEST_F(FileMappingDeathTest, OtherFaultsEndTheProcess) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(
      {
        signal(SIGBUS, SIG_DFL);
        const FileMapping mapping = map();
        fault_elsewhere();
      },
      testing::KilledBySignal(SIGBUS), "");
}

TEST_F(FileMappingDeathTest, ForwardsSentSignalsToThePreviousHandler) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(
      {
        signal(SIGBUS, SIG_DFL);
        const FileMapping mapping = map();
        ::raise(SIGBUS);
        _exit(0);
      },
      testing::KilledBySignal(SIGBUS), "");
  EXPECT_EXIT(
      {
        signal(SIGBUS, SIG_IGN);
        const FileMapping mapping = map();
        ::raise(SIGBUS);
        test::set_length(path_, 0);
        _exit(byte_at(mapping, 0) == std::byte{0} ? 3 : 4);
      },
      testing::ExitedWithCode(3), "");
}

}  // namespace
}  // namespace tern
