#include "backends/memory_file.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>

#include "tern/core/bytes.hpp"

namespace tern {
namespace {

/// Lowers a limit of this process until it ends.
class LoweredFileLimit {
 public:
  explicit LoweredFileLimit(rlim_t bytes) {
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit lowered{bytes, before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &lowered);
  }
  ~LoweredFileLimit() { setrlimit(RLIMIT_FSIZE, &before_); }

 private:
  rlimit before_ = {};
};

TEST(MemoryFile, HasTheLengthItIsGiven) {
  const Result<int> file = try_make_memory_file("test");
  ASSERT_TRUE(file);
  ASSERT_TRUE(try_resize_memory_file(*file, 100 * gib));
  struct stat facts = {};
  ASSERT_EQ(fstat(*file, &facts), 0);
  EXPECT_EQ(static_cast<std::size_t>(facts.st_size), 100 * gib);
  EXPECT_EQ(facts.st_blocks, 0);
  close(*file);
}

TEST(MemoryFile, RefusesALengthAboveTheLimitInsteadOfDyingOfIt) {
  const LoweredFileLimit limit(1 * mib);
  const Result<int> file = try_make_memory_file("test");
  ASSERT_TRUE(file);
  const Result<void> resized = try_resize_memory_file(*file, 2 * mib);
  ASSERT_FALSE(resized);
  EXPECT_EQ(resized.failure().code(), ErrorCode::out_of_memory);
  EXPECT_EQ(resized.failure().number("limit"), 1 * mib);
  EXPECT_TRUE(try_resize_memory_file(*file, 1 * mib));
  close(*file);
}

TEST(MemoryFile, SaysWhichCallFailed) {
  const Result<void> resized = try_resize_memory_file(-1, 1);
  ASSERT_FALSE(resized);
  EXPECT_EQ(resized.failure().string("call"), "ftruncate");
}

TEST(ShareableFile, HasItsMemoryFromTheBeginningAndKeepsItsSize) {
  const Result<int> file = try_make_shareable_file("test", 4 * mib);
  ASSERT_TRUE(file);
  struct stat facts = {};
  ASSERT_EQ(fstat(*file, &facts), 0);
  EXPECT_EQ(static_cast<std::size_t>(facts.st_blocks) * 512, 4 * mib);
  EXPECT_NE(ftruncate(*file, 0), 0);
  EXPECT_NE(ftruncate(*file, 8 * mib), 0);
  EXPECT_NE(fcntl(*file, F_GETFD) & FD_CLOEXEC, 0);
  EXPECT_TRUE(check_shareable_file(*file, 4 * mib));

  const Result<int> copy = try_duplicate(*file);
  ASSERT_TRUE(copy);
  close(*file);
  EXPECT_TRUE(check_shareable_file(*copy, 4 * mib));
  EXPECT_NE(fcntl(*copy, F_GETFD) & FD_CLOEXEC, 0);
  close(*copy);
}

TEST(ShareableFile, IsNotMadeAboveTheLimitOfFiles) {
  const LoweredFileLimit limit(1 * mib);
  const Result<int> refused = try_make_shareable_file("test", 2 * mib);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.failure().code(), ErrorCode::out_of_memory);
}

TEST(ShareableFile, IsNotMadeIfTheMachineHasTooLittleMemory) {
  // More than any machine has: the system would kill processes instead of refusing it.
  const Result<int> refused = try_make_shareable_file("test", std::size_t{1} << 50);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.failure().code(), ErrorCode::out_of_memory);
  EXPECT_EQ(refused.failure().number("requested"), std::size_t{1} << 50);
  EXPECT_LT(refused.failure().number("free"), std::size_t{1} << 50);
}

TEST(ShareableFile, IsToldFromOtherDescriptors) {
  const auto refuse = [](int file, std::size_t bytes, const char* why) {
    const Result<void> checked = check_shareable_file(file, bytes);
    ASSERT_FALSE(checked) << why;
    EXPECT_EQ(checked.failure().code(), ErrorCode::bad_format);
    EXPECT_NE(checked.failure().text().find(why), std::string::npos) << checked.failure().text();
  };
  int ends[2] = {-1, -1};
  ASSERT_EQ(pipe(ends), 0);
  refuse(ends[0], 4096, "is not a memory file");
  refuse(-1, 4096, "is not a memory file");
  close(ends[0]);
  close(ends[1]);
  const int plain = try_make_memory_file("test").value();
  ASSERT_TRUE(try_resize_memory_file(plain, 4096));
  refuse(plain, 4096, "has no seal");
  close(plain);
  const int file = try_make_shareable_file("test", 8192).value();
  refuse(file, 4096, "has 8.0 KiB");
  refuse(file, 16384, "has 8.0 KiB");
  close(file);
}

}  // namespace
}  // namespace tern
