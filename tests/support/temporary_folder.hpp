// A folder that is deleted at the end of the test, and functions to create files in it.

#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>

namespace tern::test {

class TemporaryFolder {
 public:
  TemporaryFolder() {
    path_ = testing::TempDir() + "tern-XXXXXX";
    EXPECT_NE(mkdtemp(path_.data()), nullptr);
    EXPECT_EQ(chmod(path_.c_str(), 0755), 0);  // for tests that change their user
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  [[nodiscard]] std::string operator/(const std::string& name) const { return path_ + "/" + name; }

  /// Creates or replaces a file with these bytes at the offset. The bytes before the offset are
  /// zero.
  std::string write(const std::string& name, std::span<const std::byte> bytes,
                    std::size_t offset = 0) const {
    std::string path = *this / name;
    const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    EXPECT_GE(file, 0);
    EXPECT_EQ(pwrite(file, bytes.data(), bytes.size(), static_cast<off_t>(offset)),
              static_cast<ssize_t>(bytes.size()));
    EXPECT_EQ(close(file), 0);
    return path;
  }

 private:
  std::string path_;
};

/// Truncates a file, or extends it with zeros.
inline void set_length(const std::string& path, std::size_t bytes) {
  EXPECT_EQ(truncate(path.c_str(), static_cast<off_t>(bytes)), 0);
}

}  // namespace tern::test
