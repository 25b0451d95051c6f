#include "tern/coherence/spill_file.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "buffer/file_transfers.hpp"
#include "support/copy_places.hpp"
#include "support/file_faults.hpp"
#include "support/forked_child.hpp"
#include "support/spilled_bytes.hpp"
#include "support/temporary_folder.hpp"
#include "support/thread.hpp"
#include "support/unified.hpp"

namespace tern::test {
namespace {

constexpr std::size_t block = SpillFile::block_bytes;

class SpillFileTest : public testing::Test {
 protected:
  [[nodiscard]] SpillHandle open(std::size_t limit_bytes = 16 * block) const {
    return SpillFile::open({.directory = folder / "", .limit_bytes = limit_bytes});
  }
  static Bytes read(SpillFile& file, const SpillExtent& extent) {
    Bytes bytes(extent.bytes);
    EXPECT_TRUE(file.try_read(extent, bytes.data(), {}));
    return bytes;
  }

  TemporaryFolder folder;
};

TEST_F(SpillFileTest, GivesBackWhatItWasGiven) {
  const SpillHandle file = open();
  std::vector<SpillExtent> extents;
  for (const std::size_t bytes : {1u, 31u, 32u, 4095u, 4096u, 4097u, 0u}) {
    extents.push_back(file->try_write(counted(bytes, unsigned(bytes)), {}).value());
  }
  for (const SpillExtent& one : extents) {
    EXPECT_EQ(read(*file, one), counted(one.bytes, unsigned(one.bytes)));
  }
  EXPECT_EQ(file->statistics().used_bytes, 7 * block);
  for (const SpillExtent& one : extents) file->release(one);
  EXPECT_EQ(file->statistics().used_bytes, 0u);
  EXPECT_EQ(file->statistics().peak_bytes, 7 * block);
  EXPECT_EQ(file->statistics().read_bytes, 1u + 31 + 32 + 4095 + 4096 + 4097);
}

TEST_F(SpillFileTest, AForkedChildDoesNotChangeTheFileOfItsParent) {
  const SpillHandle file = open();
  const Bytes sample = counted(5000, 3);
  const SpillExtent extent = file->try_write(sample, {}).value();
  EXPECT_EQ(in_a_forked_child([&] {
              Bytes back(extent.bytes);
              const bool is_read = bool(file->try_read(extent, back.data(), {})) && back == sample;
              const bool is_refused = is_after_fork(file->try_write(counted(100), {}));
              file->release(extent);
              return is_read && is_refused;
            }),
            0);
  EXPECT_EQ(file->statistics().used_bytes, 2 * block);
  EXPECT_EQ(read(*file, extent), sample);
}

TEST_F(SpillFileTest, HasNoNameAndIsItsOwnersAlone) {
  const SpillHandle file = open();
  EXPECT_TRUE(file->try_write(counted(10), {}));
  EXPECT_TRUE(std::filesystem::is_empty(folder / ""));
  struct stat facts = {};
  ASSERT_EQ(stat(spill_path(folder / "").c_str(), &facts), 0);
  EXPECT_EQ(facts.st_mode & 0777, 0600u);
  EXPECT_EQ(facts.st_nlink, 0u);
}

TEST_F(SpillFileTest, ClaimsTheDiskBeforeItWritesAndGivesItBack) {
  const SpillHandle file = open();
  const SpillExtent extent = file->try_write(counted(3 * block), {}).value();
  struct stat facts = {};
  const std::string path = spill_path(folder / "");
  ASSERT_EQ(stat(path.c_str(), &facts), 0);
  EXPECT_EQ(facts.st_size, off_t{3 * block});
  EXPECT_GE(facts.st_blocks * 512, off_t{3 * block});
  file->release(extent);
  ASSERT_EQ(stat(path.c_str(), &facts), 0);
  EXPECT_EQ(facts.st_size, 0);
  EXPECT_EQ(file->statistics().file_bytes, 0u);
}

TEST_F(SpillFileTest, UsesAgainWhatWasReleased) {
  const SpillHandle file = open(6 * block);
  std::vector<SpillExtent> all;
  for (unsigned i = 0; i < 6; ++i) all.push_back(file->try_write(counted(block, i), {}).value());
  // Out of order, so that neighbours on both sides come together.
  for (const int i : {1, 3, 2}) file->release(all[static_cast<std::size_t>(i)]);
  const SpillExtent three = file->try_write(counted(3 * block, 99), {}).value();
  EXPECT_EQ(three.offset, all[1].offset);
  EXPECT_EQ(file->statistics().file_bytes, 6 * block);
  EXPECT_EQ(read(*file, all[0]), counted(block, 0));
  EXPECT_EQ(read(*file, all[4]), counted(block, 4));
  EXPECT_EQ(read(*file, three), counted(3 * block, 99));
  // A part of a gap.
  file->release(three);
  const SpillExtent one = file->try_write(counted(block, 7), {}).value();
  const SpillExtent two = file->try_write(counted(2 * block, 8), {}).value();
  EXPECT_EQ(read(*file, one), counted(block, 7));
  EXPECT_EQ(read(*file, two), counted(2 * block, 8));
  EXPECT_EQ(file->statistics().used_bytes, 6 * block);
}

TEST_F(SpillFileTest, HoldsNoMoreThanItsLimit) {
  const SpillHandle file = open(2 * block);
  EXPECT_TRUE(file->try_write(counted(block + 1), {}));
  const Failure refusal = refused(file->try_write(counted(1), {}), ErrorCode::out_of_budget);
  EXPECT_EQ(refusal.number("current"), 2 * block);
  EXPECT_EQ(refusal.number("limit"), 2 * block);
  EXPECT_EQ(refusal.string("path"), folder / "");
  EXPECT_EQ(file->statistics().failed_writes, 1u);
}

TEST_F(SpillFileTest, RefusesADirectoryItCannotUse) {
  EXPECT_EQ(refused(SpillFile::try_open({.directory = folder / "none", .limit_bytes = 1}),
                    ErrorCode::file)
                .string("path"),
            folder / "none");
  refused(SpillFile::try_open({.directory = folder / ""}), ErrorCode::invalid_argument);
}

TEST_F(SpillFileTest, ADiskThatIsFullTakesNothing) {
  const SpillHandle file = open(1024 * block);
  const SpillExtent before = file->try_write(counted(block), {}).value();
  {
    const SmallFiles full(2 * block);
    const Failure refusal = refused(file->try_write(counted(4 * block), {}), ErrorCode::file);
    EXPECT_EQ(refusal.string("cause"), "disk full");
    EXPECT_EQ(refusal.string("what"), "posix_fallocate");
    EXPECT_EQ(refusal.number("bytes"), 4 * block);
  }
  EXPECT_EQ(file->statistics().used_bytes, block);
  EXPECT_EQ(read(*file, before), counted(block));
  EXPECT_TRUE(file->try_write(counted(4 * block), {}));
}

TEST_F(SpillFileTest, ADiskThatFailsWhileItIsWrittenTakesNothing) {
  const SpillHandle file = open();
  const SpillExtent gap = file->try_write(counted(4 * block), {}).value();
  const SpillExtent behind = file->try_write(counted(block), {}).value();
  file->release(gap);
  {
    // What is claimed already is not claimed again, and cannot be written.
    const SmallFiles full(block);
    EXPECT_EQ(refused(file->try_write(counted(2 * block), {}), ErrorCode::file).string("what"),
              "pwrite");
  }
  EXPECT_EQ(file->statistics().used_bytes, block);
  EXPECT_EQ(read(*file, behind), counted(block));
  const SpillExtent again = file->try_write(counted(4 * block, 3), {}).value();
  EXPECT_EQ(again.offset, gap.offset);
  EXPECT_EQ(read(*file, again), counted(4 * block, 3));
}

TEST_F(SpillFileTest, WhatReadsBackWrongIsAnError) {
  const SpillHandle file = open();
  // Every byte counts: of the words, and of those behind the last of them.
  for (const std::size_t at : {0u, 31u, 32u, 95u, 99u}) {
    const SpillExtent extent = file->try_write(counted(100), {}).value();
    change_spilled_byte(folder / "", extent.offset + at);
    Bytes bytes(100);
    const Failure refusal = refused(file->try_read(extent, bytes.data(), {}), ErrorCode::file);
    EXPECT_EQ(refusal.string("what"), "checksum") << at;
    change_spilled_byte(folder / "", extent.offset + at);
    EXPECT_EQ(read(*file, extent), counted(100));
    file->release(extent);
  }
  const SpillExtent extent = file->try_write(counted(100), {}).value();
  set_length(spill_path(folder / ""), 50);
  Bytes bytes(100);
  EXPECT_EQ(refused(file->try_read(extent, bytes.data(), {}), ErrorCode::file).string("what"),
            "pread");
  EXPECT_EQ(file->statistics().failed_reads, 6u);
}

TEST_F(SpillFileTest, WritesAndReadsManyRangesAtOnce) {
  const SpillHandle file = open(1024 * mib);
  std::vector<Bytes> sources;
  for (unsigned i = 0; i < 30; ++i) sources.push_back(counted(i * 1000, i));
  sources.push_back(counted(9 * mib + 5, 99));
  const std::vector<std::span<const std::byte>> ranges(sources.begin(), sources.end());
  std::vector<SpillExtent> extents(ranges.size());
  ASSERT_TRUE(file->try_write_all(ranges, extents, {}));
  std::vector<Bytes> back;
  std::vector<std::byte*> to;
  for (const Bytes& one : sources) to.push_back(back.emplace_back(one.size()).data());
  ASSERT_TRUE(file->try_read_all(extents, to, {}));
  EXPECT_EQ(back, sources);
  // Each byte of each part counts.
  const SpillExtent& large = extents.back();
  for (const std::size_t at : {std::size_t{3}, 5 * mib, 9 * mib + 4}) {
    change_spilled_byte(folder / "", large.offset + at);
    const Failure refusal = refused(file->try_read_all(extents, to, {}), ErrorCode::file);
    EXPECT_EQ(refusal.string("what"), "checksum");
    EXPECT_EQ(refusal.number("index"), 30u);
    change_spilled_byte(folder / "", large.offset + at);
  }
  EXPECT_TRUE(file->try_read_all(extents, to, {}));
  for (const SpillExtent& one : extents) file->release(one);
  EXPECT_EQ(file->statistics().used_bytes, 0u);
}

TEST_F(SpillFileTest, ARangeThatFailsReleasesTheOthers) {
  const SpillHandle file = open();
  const SpillExtent before = file->try_write(counted(100), {}).value();
  const Bytes bytes = counted(block);
  const std::vector<std::span<const std::byte>> ranges(4, bytes);
  std::vector<SpillExtent> extents(4);
  {
    PlannedFaults faults(FileTransfers::instance());
    faults.fail(ENOSPC, [](const FileCall& call) { return call.offset == 3 * block; });
    const Failure refusal = refused(file->try_write_all(ranges, extents, {}), ErrorCode::file);
    EXPECT_EQ(refusal.string("cause"), "disk full");
    EXPECT_EQ(refusal.number("error"), std::uint64_t{ENOSPC});
    EXPECT_EQ(refusal.number("offset"), 3 * block);
    EXPECT_EQ(refusal.number("bytes"), block);
  }
  EXPECT_EQ(file->statistics().used_bytes, block);
  EXPECT_EQ(file->statistics().failed_writes, 1u);
  EXPECT_EQ(read(*file, before), counted(100));
  // A limit that is reached in the middle releases the ranges before it.
  const std::vector<std::span<const std::byte>> many(20, bytes);
  extents.resize(20);
  refused(file->try_write_all(many, extents, {}), ErrorCode::out_of_budget);
  EXPECT_EQ(file->statistics().used_bytes, block);
}

TEST_F(SpillFileTest, AnExtentThatFailsOnceCanBeReadAgain) {
  const SpillHandle file = open();
  std::vector<SpillExtent> extents;
  for (unsigned i = 0; i < 3; ++i) extents.push_back(file->try_write(counted(100, i), {}).value());
  std::vector<Bytes> back(3, Bytes(100));
  const std::vector<std::byte*> to{back[0].data(), back[1].data(), back[2].data()};
  PlannedFaults faults(FileTransfers::instance());
  faults.fail(
      EIO, [](const FileCall& call) { return call.offset == block; }, 1);
  const Failure refusal = refused(file->try_read_all(extents, to, {}), ErrorCode::file);
  EXPECT_EQ(refusal.string("what"), "pread");
  EXPECT_EQ(refusal.number("error"), std::uint64_t{EIO});
  EXPECT_EQ(refusal.number("offset"), block);
  EXPECT_EQ(refusal.number("index"), 1u);
  EXPECT_TRUE(file->try_read_all(extents, to, {}));
  for (unsigned i = 0; i < 3; ++i) EXPECT_EQ(back[i], counted(100, i));
  EXPECT_EQ(file->statistics().failed_reads, 1u);
}

TEST_F(SpillFileTest, IsSafeToUseFromSeveralThreads) {
  const SpillHandle file = open(1024 * block);
  std::vector<test::Thread> threads;
  for (unsigned thread = 0; thread < 3; ++thread) {
    threads.emplace_back([&, thread] {
      for (unsigned i = 0; i < 50; ++i) {
        const Bytes bytes = counted(1 + i * 301, thread * 1000 + i);
        const SpillExtent extent = file->try_write(bytes, {}).value();
        EXPECT_EQ(read(*file, extent), bytes);
        file->release(extent);
      }
    });
  }
  for (test::Thread& one : threads) one.join();
  EXPECT_EQ(file->statistics().used_bytes, 0u);
}

}  // namespace
}  // namespace tern::test
