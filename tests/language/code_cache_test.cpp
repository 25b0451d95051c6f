#include "language/code_cache.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "support/temporary_folder.hpp"
#include "support/thread.hpp"

namespace tern::language {
namespace {

using Bytes = std::vector<std::byte>;
namespace files = std::filesystem;

constexpr std::uint64_t large = 1 << 20;
constexpr CodeKey key = {.kind = "host",
                         .text = "element f(inout<float> x) { x *= 2; }",
                         .options = "-O3",
                         .device = "host:0",
                         .compiler = "c++ 1.0"};

Bytes code_of(std::size_t bytes, unsigned seed = 1) {
  Bytes code(bytes);
  for (std::size_t i = 0; i < bytes; ++i) code[i] = static_cast<std::byte>(i * 7 + seed);
  return code;
}

CodeKey with_text(std::string_view text) {
  CodeKey other = key;
  other.text = text;
  return other;
}

class CodeCacheTest : public testing::Test {
 protected:
  [[nodiscard]] std::string path(const CodeKey& of = key) const {
    return folder / CodeCache::file_name(of);
  }
  [[nodiscard]] std::string contents() const {
    std::ifstream file(path(), std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  void replace(const std::string& bytes) const {
    std::ofstream file(path(), std::ios::binary | std::ios::trunc);
    file << bytes;
  }
  void expect_removed_as_missing() const {
    EXPECT_EQ(cache.find(key), std::nullopt);
    EXPECT_FALSE(files::exists(files::symlink_status(path())));
  }
  /// Sets the time of the last use.
  static void use_at(const std::string& entry, std::int64_t seconds) {
    const timespec times[2] = {{seconds, 0}, {seconds, 0}};
    EXPECT_EQ(utimensat(AT_FDCWD, entry.c_str(), times, 0), 0);
  }

  test::TemporaryFolder outer;
  struct Folder {
    std::string path;
    std::string operator/(const std::string& name) const { return path + "/" + name; }
  } folder{outer / "a/b/cache"};
  CodeCache cache{folder.path, large};
};

TEST_F(CodeCacheTest, FindsWhatWasStored) {
  EXPECT_EQ(cache.find(key), std::nullopt);
  for (const std::size_t bytes : {0u, 1u, 31u, 32u, 5000u}) {
    cache.store(key, code_of(bytes));
    EXPECT_EQ(cache.find(key), code_of(bytes)) << bytes;
  }
  EXPECT_EQ(CodeCache(folder.path, large).find(key), code_of(5000));
}

TEST_F(CodeCacheTest, DependsOnEveryPartOfTheKey) {
  cache.store(key, code_of(10));
  CodeKey other = key;
  other.kind = "ptx";
  EXPECT_EQ(cache.find(other), std::nullopt);
  other = key;
  other.options = "-O2";
  EXPECT_EQ(cache.find(other), std::nullopt);
  other = key;
  other.device = "host:1";
  EXPECT_EQ(cache.find(other), std::nullopt);
  other = key;
  other.compiler = "c++ 1.1";
  EXPECT_EQ(cache.find(other), std::nullopt);
  EXPECT_EQ(cache.find(with_text("")), std::nullopt);
  // A text that moves from one part to the next makes another key.
  const CodeKey ab = {.kind = "a", .text = "", .options = "b", .device = "", .compiler = ""};
  const CodeKey a_b = {.kind = "ab", .text = "", .options = "", .device = "", .compiler = ""};
  cache.store(ab, code_of(3));
  EXPECT_EQ(cache.find(a_b), std::nullopt);
  EXPECT_EQ(cache.find(key), code_of(10));
}

TEST_F(CodeCacheTest, KeepsAFolderAndEntriesThatOnlyTheUserCanEnter) {
  const mode_t before = umask(0);
  cache.store(key, code_of(10));
  umask(before);
  for (const std::string& made : {folder.path, outer / "a/b", path()}) {
    EXPECT_EQ(files::status(made).permissions() & files::perms(077), files::perms::none) << made;
  }
}

TEST_F(CodeCacheTest, FindsNoEntryWithADamagedByte) {
  cache.store(key, code_of(100));
  const std::string good = contents();
  for (std::size_t i = 0; i < good.size(); ++i) {
    std::string damaged = good;
    damaged[i] = static_cast<char>(damaged[i] ^ (1 << (i % 8)));
    replace(damaged);
    ASSERT_EQ(cache.find(key), std::nullopt) << "byte " << i << " of " << good.size();
    ASSERT_FALSE(files::exists(path())) << i;
  }
  replace(good);
  EXPECT_EQ(cache.find(key), code_of(100));
}

TEST_F(CodeCacheTest, FindsNoEntryOfAnotherLength) {
  cache.store(key, code_of(100));
  const std::string good = contents();
  for (std::size_t length = 0; length < good.size(); ++length) {
    replace(good.substr(0, length));
    ASSERT_EQ(cache.find(key), std::nullopt) << length;
  }
  replace(good + "x");
  expect_removed_as_missing();
}

TEST_F(CodeCacheTest, FindsNoEntryOfAnotherKey) {
  // As if both texts had one hash.
  cache.store(key, code_of(100));
  cache.store(with_text("element f(inout<float> x) { x *= 3; }"), code_of(100, 2));
  files::rename(path(with_text("element f(inout<float> x) { x *= 3; }")), path());
  expect_removed_as_missing();
}

TEST_F(CodeCacheTest, FindsNoEntryThatOthersCanWrite) {
  for (const mode_t mode : {0620u, 0602u, 0666u}) {
    cache.store(key, code_of(100));
    ASSERT_EQ(chmod(path().c_str(), mode), 0);
    expect_removed_as_missing();
  }
  cache.store(key, code_of(100));
  ASSERT_EQ(chmod(path().c_str(), 0644), 0);
  EXPECT_EQ(cache.find(key), code_of(100));
}

TEST_F(CodeCacheTest, FindsNoEntryOfAnotherUser) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can give a file to another user";
  cache.store(key, code_of(100));
  ASSERT_EQ(chown(path().c_str(), 12345, 12345), 0);
  expect_removed_as_missing();
}

TEST_F(CodeCacheTest, FindsNothingBehindLinksAndPipes) {
  cache.store(key, code_of(100));
  const std::string elsewhere = outer / "elsewhere";
  files::rename(path(), elsewhere);
  files::create_symlink(elsewhere, path());
  expect_removed_as_missing();
  EXPECT_TRUE(files::exists(elsewhere));
  ASSERT_EQ(mkfifo(path().c_str(), 0600), 0);
  expect_removed_as_missing();
  // A folder cannot be removed like an entry. It is no reason to wait or to fail.
  files::create_directory(path());
  EXPECT_EQ(cache.find(key), std::nullopt);
}

TEST_F(CodeCacheTest, IsOffInAFolderThatOthersCanWrite) {
  cache.store(key, code_of(100));
  ASSERT_EQ(chmod(folder.path.c_str(), 0770), 0);
  EXPECT_EQ(cache.find(key), std::nullopt);
  cache.store(with_text("other"), code_of(100));
  EXPECT_FALSE(files::exists(path(with_text("other"))));
  EXPECT_TRUE(files::exists(path()));
  ASSERT_EQ(chmod(folder.path.c_str(), 0755), 0);
  EXPECT_EQ(cache.find(key), code_of(100));
}

TEST_F(CodeCacheTest, IsOffWithoutAUsableFolder) {
  const CodeCache off("", large);
  off.store(key, code_of(10));
  EXPECT_EQ(off.find(key), std::nullopt);
  outer.write("file", {});
  const CodeCache no_folder(outer / "file/cache", large);
  no_folder.store(key, code_of(10));
  EXPECT_EQ(no_folder.find(key), std::nullopt);
}

TEST_F(CodeCacheTest, RemovesTheLeastRecentlyUsedEntries) {
  const CodeKey keys[] = {with_text("first"), with_text("second"), with_text("third")};
  const CodeCache roomy(folder.path, large);
  for (std::size_t i = 0; i < 3; ++i) {
    roomy.store(keys[i], code_of(1000));
    use_at(path(keys[i]), 1000 + static_cast<std::int64_t>(i));
  }
  // A use now: the second is the oldest.
  EXPECT_TRUE(roomy.find(keys[0]));
  const std::uint64_t entry_bytes = files::file_size(path(keys[2]));
  const CodeCache full(folder.path, 3 * entry_bytes + entry_bytes / 2);
  full.store(with_text("fourth"), code_of(1000));
  EXPECT_TRUE(files::exists(path(keys[0])));
  EXPECT_FALSE(files::exists(path(keys[1])));
  EXPECT_TRUE(files::exists(path(keys[2])));
  EXPECT_TRUE(files::exists(path(with_text("fourth"))));
}

TEST_F(CodeCacheTest, KeepsTheNewEntryEvenIfOthersSeemNewer) {
  cache.store(key, code_of(1000));
  use_at(path(), 4'000'000'000);
  const CodeCache full(folder.path, files::file_size(path()) + 100);
  full.store(with_text("new"), code_of(1000));
  EXPECT_FALSE(files::exists(path()));
  EXPECT_EQ(full.find(with_text("new")), code_of(1000));
}

TEST_F(CodeCacheTest, KeepsNoEntryAboveTheLimit) {
  const CodeCache small(folder.path, 500);
  small.store(with_text("small"), code_of(10));
  small.store(key, code_of(1000));
  EXPECT_EQ(small.find(key), std::nullopt);
  EXPECT_EQ(small.find(with_text("small")), code_of(10));
}

TEST_F(CodeCacheTest, RemovesWhatEndedProcessesLeftUnfinished) {
  cache.store(key, code_of(10));
  const std::string stale = folder / "storing-1-1", fresh = folder / "storing-1-2";
  const std::string foreign = folder / "notes.txt";
  for (const std::string& file : {stale, fresh, foreign}) std::ofstream(file) << "text";
  use_at(stale, 1000);
  use_at(foreign, 1000);
  cache.store(key, code_of(10));
  EXPECT_FALSE(files::exists(stale));
  EXPECT_TRUE(files::exists(fresh));
  EXPECT_TRUE(files::exists(foreign));
}

/// Stores and finds one key again and again. Returns whether each entry that was found is whole.
bool share(const CodeCache& cache, unsigned seed) {
  bool is_whole = true;
  for (int i = 0; i < 200; ++i) {
    cache.store(key, code_of(20'000, seed));
    const auto found = cache.find(key);
    is_whole = is_whole && found && found->size() == 20'000 &&
               *found == code_of(20'000, std::to_integer<unsigned>(found->front()));
  }
  return is_whole;
}

TEST_F(CodeCacheTest, IsSharedByProcesses) {
  const pid_t child = fork();
  if (child == 0) _exit(share(cache, 1) ? 0 : 1);
  EXPECT_TRUE(share(cache, 2));
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(std::distance(files::directory_iterator(folder.path), {}), 1);
}

TEST_F(CodeCacheTest, IsSharedByThreads) {
  {
    const test::Thread other([this] { EXPECT_TRUE(share(cache, 1)); });
    EXPECT_TRUE(share(cache, 2));
  }
  EXPECT_EQ(std::distance(files::directory_iterator(folder.path), {}), 1);
}

}  // namespace
}  // namespace tern::language
