// Output files appear as a whole or not at all.

#include "tools/formats/output_file.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "support/file_limit.hpp"
#include "support/temporary_folder.hpp"

namespace tern::tools {
namespace {

std::string contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::size_t files_beside(const std::string& path) {
  const std::filesystem::directory_iterator files(std::filesystem::path(path).parent_path());
  return static_cast<std::size_t>(std::distance(begin(files), end(files)));
}

TEST(OutputFiles, AppearWhenTheyAreComplete) {
  const test::TemporaryFolder folder;
  const std::string path = folder / "out";
  OutputFile out(path);
  ASSERT_TRUE(out.try_open());
  out.write("hello ");
  out.write("world");
  EXPECT_FALSE(std::filesystem::exists(path));
  ASSERT_TRUE(out.try_commit());
  EXPECT_EQ(contents(path), "hello world");
  EXPECT_EQ(out.size_bytes(), 11u);
  EXPECT_EQ(files_beside(path), 1u);
}

TEST(OutputFiles, LeaveTheOldFileIfTheyAreNotCommitted) {
  const test::TemporaryFolder folder;
  const std::string path = folder / "out";
  std::ofstream(path) << "old";
  {
    OutputFile out(path);
    ASSERT_TRUE(out.try_open());
    out.write(std::string(5'000'000, 'x'));
  }
  EXPECT_EQ(contents(path), "old");
  EXPECT_EQ(files_beside(path), 1u);
}

TEST(OutputFiles, AFullDiskIsAFailureAndLeavesTheOldFile) {
  const test::TemporaryFolder folder;
  const std::string path = folder / "out";
  std::ofstream(path) << "old";
  {
    const test::FileLimit limit(1'500'000);
    OutputFile out(path);
    ASSERT_TRUE(out.try_open());
    for (int i = 0; i < 50; ++i) out.write(std::string(100'000, 'x'));
    const Result<void> committed = out.try_commit();
    ASSERT_FALSE(committed);
    EXPECT_EQ(committed.failure().code(), ErrorCode::file);
    EXPECT_EQ(committed.failure().string("call"), "write");
  }
  EXPECT_EQ(contents(path), "old");
  EXPECT_EQ(files_beside(path), 1u);
}

TEST(OutputFiles, DoNotReplaceWhatIsNoRegularFile) {
  const test::TemporaryFolder folder;
  const std::string pipe = folder / "pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  for (const std::string& path : {std::string("/dev/null"), pipe, folder / ""}) {
    OutputFile out(path);
    const Result<void> opened = out.try_open();
    ASSERT_FALSE(opened) << path;
    EXPECT_NE(opened.failure().text().find("Write to a regular file"), std::string::npos);
  }
  OutputFile out(folder / "no/folder");
  EXPECT_FALSE(out.try_open());
}

}  // namespace
}  // namespace tern::tools
