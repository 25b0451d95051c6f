// Unified buffers whose host memory is limited too, with a spill file.

#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "buffer/file_transfers.hpp"
#include "support/file_faults.hpp"
#include "support/gate.hpp"
#include "support/pressed.hpp"
#include "support/spilled_bytes.hpp"
#include "support/temporary_folder.hpp"
#include "tern/coherence/spill_file.hpp"
#include "tern/coherence/unified_buffer.hpp"

namespace tern::test {
namespace {

class Spill : public Pressed {
 protected:
  [[nodiscard]] UnifiedBuffer<int> make_spilling(const char* tag = "u",
                                                 std::size_t buffers = 1) const {
    return UnifiedBuffer<int>(Shape{buffers * pressed_ints},
                              {.device = device,
                               .tag = tag,
                               .pinned = Pinned::never,
                               .resources = {resource, host_resource},
                               .spill = file});
  }
  /// On the host alone.
  [[nodiscard]] UnifiedBuffer<int> on_host(int first, const char* tag = "u") const {
    UnifiedBuffer<int> made = make_spilling(tag);
    made.copy_from(counting(pressed_ints, first));
    return made;
  }
  void expect_nothing_left() const {
    device.synchronize();
    EXPECT_TRUE(budget->try_wait_for_pending());
    EXPECT_TRUE(host_budget->try_wait_for_pending());
    EXPECT_EQ(budget->used_bytes(), 0u);
    EXPECT_EQ(host_budget->used_bytes(), 0u);
    EXPECT_EQ(file->statistics().used_bytes, 0u);
  }

  TemporaryFolder folder;
  const Device host_device = open_device("host");
  const BudgetHandle host_budget = limited(3 * pressed_bytes, "host");
  const ResourceHandle host_resource =
      std::make_shared<BudgetResource>(std::make_shared<DirectResource>(host_device), host_budget);
  const SpillHandle file =
      SpillFile::open({.directory = folder / "", .limit_bytes = 64 * SpillFile::block_bytes});
};

TEST_F(Spill, TheHostsCopyGoesToTheFileAndComesBack) {
  std::vector<UnifiedBuffer<int>> all;
  for (int i = 0; i < 8; ++i) all.push_back(on_host(i));
  EXPECT_EQ(host_budget->used_bytes(), 3 * pressed_bytes);
  EXPECT_EQ(file->statistics().used_bytes, 5 * SpillFile::block_bytes);
  EXPECT_EQ(since().spilled_bytes, 5 * pressed_bytes);
  EXPECT_EQ(since().on_host(Eviction::dirty), (CopyCount{5, 5 * pressed_bytes}));
  // It stands in for the copy.
  EXPECT_STATE(all[0], host_only);
  EXPECT_TRUE(all[0].check());
  EXPECT_FALSE(all[0].is_stale_on(Place::host()));
  for (int i = 0; i < 8; ++i) {
    UnifiedBuffer<int>& one = all[static_cast<std::size_t>(i)];
    EXPECT_EQ(one.to_vector(), counting(pressed_ints, i));
    EXPECT_TRUE(one.check());
  }
  EXPECT_EQ(all[0].statistics().of(TransferReason::spill).bytes, 2 * pressed_bytes);
  EXPECT_EQ(all[0].statistics().of(TransferReason::unspill).bytes, pressed_bytes);
  EXPECT_EQ(all[0].statistics().to_file.bytes, 2 * pressed_bytes);
  EXPECT_EQ(all[0].statistics().from_file.bytes, pressed_bytes);
  EXPECT_EQ(moved(all[0]), 0u);
  all.clear();
  expect_nothing_left();
}

TEST_F(Spill, ADeviceReadsWhatIsInTheFile) {
  std::vector<UnifiedBuffer<int>> all;
  for (int i = 0; i < 8; ++i) all.push_back(on_host(i));
  for (int i = 0; i < 8; ++i) {
    EXPECT_EQ(on_device(all[static_cast<std::size_t>(i)], s), counting(pressed_ints, i));
  }
  // What a device has too need not be written again.
  EXPECT_GE(since().on_host(Eviction::clean).copies, 1u);
}

TEST_F(Spill, DirtyCopiesOfADeviceReachTheFileThroughTheHost) {
  std::vector<UnifiedBuffer<int>> all;
  for (int i = 0; i < 12; ++i) {
    all.push_back(make_spilling());
    write_on_device(all.back(), s, i);
  }
  EXPECT_GE(since().spilled_bytes, 6 * pressed_bytes);
  EXPECT_GE(since().written_back_bytes, 9 * pressed_bytes);
  for (int i = 0; i < 12; ++i) {
    EXPECT_EQ(all[static_cast<std::size_t>(i)].to_vector(), std::vector<int>(pressed_ints, i));
  }
  all.clear();
  expect_nothing_left();
}

TEST_F(Spill, OnlyWhatTheHostAloneHasIsWritten) {
  UnifiedBuffer<int> buffer = on_host(1);
  write_on_device(buffer.slice(64, 128), s, 9);               // newer on the device
  { const auto lease = buffer.slice(0, 32).read_device(s); }  // in both
  const UnifiedBuffer<int> a = on_host(1), b = on_host(2), c = on_host(3);
  EXPECT_EQ(since().spilled_bytes, (32u + 64) * sizeof(int));
  EXPECT_EQ(buffer.statistics().of(TransferReason::spill).copies, 2u);
  EXPECT_TRUE(buffer.check());
  std::vector<int> expected = counting(pressed_ints);
  std::fill(expected.begin() + 64, expected.begin() + 192, 9);
  EXPECT_EQ(on_device(buffer, s), expected);
  EXPECT_EQ(buffer.to_vector(), expected);
}

TEST_F(Spill, EveryOperationFindsWhatIsInTheFile) {
  std::vector<UnifiedBuffer<int>> fillers;
  const auto spilled = [&](UnifiedBuffer<int>& buffer) {
    buffer = on_host(1);
    fillers.clear();
    for (int i = 0; i < 3; ++i) fillers.push_back(on_host(i));
    EXPECT_EQ(buffer.statistics().of(TransferReason::spill).copies, 1u);
    EXPECT_EQ(buffer.statistics().from_file.copies, 0u);
  };
  UnifiedBuffer<int> buffer;
  spilled(buffer);
  EXPECT_EQ(buffer.load_host(4), 5);
  spilled(buffer);
  buffer.store_host(4, 50);
  EXPECT_EQ(buffer.load_host(4), 50);
  spilled(buffer);
  {
    const HostLease<int> lease = buffer.slice(2, 2).rw_host();
    EXPECT_EQ(lease[0], 3);
    lease[1] = 40;
  }
  EXPECT_EQ(buffer.load_host(3), 40);
  spilled(buffer);
  std::ranges::fill(buffer.slice(0, 2).discard_host(), 7);
  EXPECT_EQ(buffer.load_host(1), 7);
  EXPECT_EQ(buffer.load_host(2), 3);
  spilled(buffer);
  write_on_device(buffer.slice(0, 2), s, 8);
  EXPECT_EQ(buffer.load_host(1), 8);
  EXPECT_EQ(buffer.load_host(2), 3);
  spilled(buffer);
  buffer.fill(6);
  EXPECT_EQ(buffer.to_vector(), std::vector<int>(pressed_ints, 6));
  spilled(buffer);
  buffer.prefetch_host();
  EXPECT_EQ(buffer.load_host(9), 10);
  spilled(buffer);
  EXPECT_EQ(buffer.clone(s).load_host(9), 10);
  spilled(buffer);
  buffer.resize_keep(20, s);
  EXPECT_EQ(buffer.to_vector(), counting(20));
  spilled(buffer);
  buffer.resize_discard(20);
  EXPECT_STATE(buffer, uninitialized);
  spilled(buffer);
  buffer.drop_host();
  EXPECT_STATE(buffer, device_only);
  EXPECT_EQ(buffer.load_host(9), 10);
  spilled(buffer);
  buffer.drop_host(Drop::discard);
  EXPECT_STATE(buffer, uninitialized);
  spilled(buffer);
  refused(buffer.try_mark_host_dirty(), ErrorCode::not_allocated);
  buffer.invalidate();
  EXPECT_STATE(buffer, uninitialized);
  EXPECT_TRUE(buffer.check());
  spilled(buffer);
  {
    const Buffer released = std::move(buffer).release_host();
    EXPECT_EQ(released.read_host<int>()[8], 9);
  }
  fillers.clear();
  buffer = {};
  expect_nothing_left();
}

TEST_F(Spill, WhatIsOverwrittenElsewhereLeavesTheFile) {
  UnifiedBuffer<int> buffer = on_host(1);
  const UnifiedBuffer<int> a = on_host(1), b = on_host(2), c = on_host(3);
  EXPECT_EQ(file->statistics().used_bytes, SpillFile::block_bytes);
  write_on_device(buffer, s, 5);
  EXPECT_EQ(file->statistics().used_bytes, 0u);
  EXPECT_EQ(since().unspilled_bytes, 0u);
  EXPECT_STATE(buffer, device_only);
  EXPECT_EQ(buffer.load_host(0), 5);
}

TEST_F(Spill, WithoutAFileTheLastCopyStays) {
  const UnifiedOptions no_file{.device = device,
                               .tag = "stays",
                               .pinned = Pinned::never,
                               .resources = {resource, host_resource}};
  std::vector<UnifiedBuffer<int>> all;
  for (int i = 0; i < 3; ++i) {
    all.emplace_back(Shape{pressed_ints}, no_file);
    all.back().copy_from(counting(pressed_ints, i));
  }
  UnifiedBuffer<int> more(Shape{pressed_ints}, no_file);
  const Failure refusal = refused(more.try_discard_host(), ErrorCode::out_of_budget);
  EXPECT_EQ(refusal.number("evictable"), 0u);
  EXPECT_EQ(refusal.string("by_tag"), "stays 3.0 KiB");
  for (int i = 0; i < 3; ++i) EXPECT_EQ(all[static_cast<std::size_t>(i)].load_host(0), i);
}

TEST_F(Spill, AdoptedMemoryOfTheHostStays) {
  std::vector<int> mine = counting(pressed_ints);
  UnifiedBuffer<int> adopted =
      UnifiedBuffer<int>::adopt_host(mine, {}, {.device = device, .tag = "adopted", .spill = file});
  const std::vector<TagResidency> all = residency_by_tag(Place::host());
  const auto found = std::ranges::find(all, Tag("adopted"), &TagResidency::tag);
  ASSERT_NE(found, all.end());
  EXPECT_EQ(found->kept_bytes, pressed_bytes);
  const UnifiedBuffer<int> a = on_host(1), b = on_host(2), c = on_host(3), d = on_host(4);
  EXPECT_EQ(std::as_const(adopted).read_host().data(), mine.data());
}

TEST_F(Spill, AFullDiskLeavesEverythingWhereItIs) {
  std::vector<UnifiedBuffer<int>> all;
  for (int i = 0; i < 3; ++i) all.push_back(on_host(i));
  UnifiedBuffer<int> more = make_spilling("more");
  {
    const SmallFiles full(0);
    const Failure refusal = refused(more.try_discard_host(), ErrorCode::out_of_budget);
    EXPECT_EQ(refusal.string("eviction_error"), "disk full");
    EXPECT_EQ(refusal.number("eviction_code"), static_cast<std::uint64_t>(ErrorCode::file));
    EXPECT_EQ(refusal.number("freed"), 0u);
    EXPECT_NE(refusal.text().find("could not be written back: disk full"), std::string::npos)
        << refusal.text();
  }
  EXPECT_EQ(since().failed_evictions, 3u);
  EXPECT_EQ(file->statistics().used_bytes, 0u);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(all[static_cast<std::size_t>(i)].to_vector(), counting(pressed_ints, i));
    EXPECT_EQ(all[static_cast<std::size_t>(i)].statistics().from_file.bytes, 0u);
  }
  more.copy_from(counting(pressed_ints));
}

TEST_F(Spill, AFullDiskIsAReasonWhyADeviceIsFull) {
  std::vector<UnifiedBuffer<int>> all;
  for (int i = 0; i < 6; ++i) {
    all.push_back(make_spilling("data"));
    write_on_device(all.back(), s, i);
  }
  UnifiedBuffer<int> more = make_spilling("more");
  {
    const SmallFiles full(0);
    const Failure refusal = refused(more.try_discard_device(s), ErrorCode::out_of_budget);
    EXPECT_EQ(refusal.string("eviction_error"), "disk full");
    EXPECT_EQ(refusal.string("device"), device.spec());
  }
  for (int i = 0; i < 6; ++i) EXPECT_EQ(all[static_cast<std::size_t>(i)].load_host(7), i);
  write_on_device(more, s, 1);
}

TEST_F(Spill, WhatDoesNotReadBackFailsTheAccess) {
  UnifiedBuffer<int> buffer = on_host(1, "rho");
  std::vector<UnifiedBuffer<int>> others;
  for (int i = 0; i < 3; ++i) others.push_back(on_host(i));
  change_spilled_byte(folder / "", 100);
  for (int i = 0; i < 2; ++i) {
    const Failure refusal = refused(buffer.try_read_host(), ErrorCode::file);
    EXPECT_EQ(refusal.string("what"), "checksum");
    EXPECT_EQ(refusal.string("tag"), "rho");
    EXPECT_EQ(refusal.number("begin"), 0u);
    EXPECT_EQ(refusal.number("end"), pressed_bytes);
  }
  refused(buffer.try_read_device(s), ErrorCode::file);
  refused(buffer.try_load_host(3), ErrorCode::file);
  EXPECT_TRUE(buffer.check());
  change_spilled_byte(folder / "", 100);
  EXPECT_EQ(buffer.to_vector(), counting(pressed_ints));
}

TEST_F(Spill, ADiskThatFailsOnceWhileItIsReadLosesNothing) {
  UnifiedBuffer<int> buffer = on_host(1, "rho"), other = on_host(2, "other");
  std::vector<UnifiedBuffer<int>> more;
  for (int i = 0; i < 3; ++i) more.push_back(on_host(i));
  PlannedFaults faults(FileTransfers::instance());
  faults.fail(EIO, is_read_call, 1);
  const Failure refusal = refused(buffer.try_read_host(), ErrorCode::file);
  EXPECT_EQ(refusal.string("what"), "pread");
  EXPECT_EQ(refusal.number("error"), std::uint64_t{EIO});
  EXPECT_EQ(refusal.string("tag"), "rho");
  EXPECT_EQ(other.to_vector(), counting(pressed_ints, 2));
  EXPECT_EQ(buffer.to_vector(), counting(pressed_ints, 1));
}

TEST_F(Spill, ADiskThatFillsWhileItIsWrittenLosesNothing) {
  std::vector<UnifiedBuffer<int>> all;
  for (int i = 0; i < 3; ++i) all.push_back(on_host(i));
  UnifiedBuffer<int> more = make_spilling("more");
  {
    PlannedFaults faults(FileTransfers::instance());
    faults.fail(ENOSPC, is_write_call);
    const Failure refusal = refused(more.try_discard_host(), ErrorCode::out_of_budget);
    EXPECT_EQ(refusal.string("eviction_error"), "disk full");
  }
  EXPECT_EQ(file->statistics().used_bytes, 0u);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(all[static_cast<std::size_t>(i)].to_vector(), counting(pressed_ints, i));
  }
  more.copy_from(counting(pressed_ints));
  EXPECT_EQ(all[0].to_vector(), counting(pressed_ints, 0));
}

TEST_F(Spill, WaitsForWhatIsStillOnItsWayToTheHost) {
  Gate gate;
  gate.hold(s);
  std::vector<UnifiedBuffer<int>> all;
  for (int i = 0; i < 3; ++i) {
    all.push_back(make_spilling());
    write_on_device(all.back(), s, i);
  }
  // Written home behind the gate, and nobody waits.
  for (int i = 3; i < 6; ++i) {
    all.push_back(make_spilling());
    write_on_device(all.back(), t, i);
  }
  EXPECT_EQ(since().spilled_bytes, 0u);
  gate.open();
  for (int i = 6; i < 9; ++i) {
    all.push_back(make_spilling());
    write_on_device(all.back(), t, i);
  }
  EXPECT_GE(since().spilled_bytes, 3 * pressed_bytes);
  for (int i = 0; i < 9; ++i) EXPECT_EQ(all[static_cast<std::size_t>(i)].load_host(3), i);
}

}  // namespace
}  // namespace tern::test
