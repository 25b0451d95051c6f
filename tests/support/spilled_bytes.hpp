// Access to a spill file, which has no name, and a simulated full disk.

#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstddef>
#include <filesystem>
#include <string>

#include "support/file_limit.hpp"

namespace tern::test {

/// Returns a path to the spill file that this process has open in a directory.
inline std::string spill_path(const std::string& directory) {
  const std::string folder = std::filesystem::weakly_canonical(directory).string();
  for (const auto& one : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const std::string target = std::filesystem::read_symlink(one.path(), gone).string();
    std::string parent = target.substr(0, target.find_last_of('/'));
    if (folder.back() == '/') parent += '/';
    if (!gone && parent == folder && target.ends_with("(deleted)")) return one.path().string();
  }
  ADD_FAILURE() << "there is no spill file in " << directory;
  return {};
}

/// Inverts a byte of the spill file. A second call restores it.
inline void change_spilled_byte(const std::string& directory, std::size_t offset) {
  const int file = open(spill_path(directory).c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_GE(file, 0);
  unsigned char byte = 0;
  EXPECT_EQ(pread(file, &byte, 1, static_cast<off_t>(offset)), 1);
  byte ^= 0x40;
  EXPECT_EQ(pwrite(file, &byte, 1, static_cast<off_t>(offset)), 1);
  EXPECT_EQ(close(file), 0);
}

/// While it lives, no file of the process can grow beyond the limit, as on a full disk.
using SmallFiles = FileLimit;

}  // namespace tern::test
