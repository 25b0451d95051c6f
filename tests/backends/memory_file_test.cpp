#include "backends/memory_file.hpp"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

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

}  // namespace
}  // namespace tern
