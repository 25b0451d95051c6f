#include "tern/coherence/unified_buffer.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "support/copy_places.hpp"
#include "support/gate.hpp"
#include "support/thread.hpp"
#include "support/unified.hpp"
#include "tern/backends/catalog.hpp"
#include "tern/backends/sim.hpp"
#include "tern/buffer/foreign.hpp"
#include "tern/launch/kernel.hpp"
#include "tern/memory/budget_resource.hpp"
#include "tern/memory/default_resource.hpp"
#include "tern/memory/fault_resource.hpp"
#include "tern/memory/pool_resource.hpp"

namespace tern::test {
namespace {

void add(View<const int> a, View<const int> b, View<int> sum) {
  for (std::size_t i = 0; i < sum.size(); ++i) sum[i] = a[i] + b[i];
}
void shift(View<const int> from, View<int> to) {
  for (std::size_t i = 0; i < to.size(); ++i) to[i] = from[i] + 1;
}
void touch(View<int> values) {
  for (int& value : values) value = -value;
}

// --- Elements, fills, copies

TEST_F(Unified, LoadsAndStoresOneElementWithoutMovingTheRest) {
  UnifiedBuffer<int> buffer = make(1000);
  write_on_device(buffer, s, 7);
  EXPECT_EQ(buffer.load_host(3), 7);
  EXPECT_STATE(buffer, device_only);
  buffer.store_host(3, 8);
  EXPECT_STATE(buffer, device_only);
  EXPECT_EQ(buffer.load_host(3), 8);
  EXPECT_EQ(buffer.statistics().of(TransferReason::element), (CopyCount{3, 12}));
  buffer.sync_to_host();
  buffer.store_host(4, 9);
  EXPECT_STATE(buffer, synchronized);
  EXPECT_EQ(buffer.load_host(4), 9);
  EXPECT_EQ(on_device(buffer, s)[4], 9);
  EXPECT_EQ(on_device(buffer, s)[3], 8);
  EXPECT_EQ(refused(buffer.try_load_host(1000), ErrorCode::out_of_bounds).number("index"), 1000u);
  refused(buffer.try_store_host(1000, 1), ErrorCode::out_of_bounds);
  UnifiedBuffer<int> fresh = make(10);
  fresh.store_host(9, 1);
  EXPECT_EQ(name(fresh.state(9, 1)), "HOST_ONLY");
  EXPECT_EQ(name(fresh.state(0, 9)), "UNINITIALIZED");
}

TEST_F(Unified, LoadsAnElementWhoseBytesAreInTwoPlaces) {
  UnifiedBuffer<int> buffer = make(2);
  buffer.copy_from(std::vector<int>{0x01020304, 0});
  buffer.sync_to_device();
  {
    const DeviceLease<std::byte> lease = buffer.byte_view(0, 2).discard_device(s);
    s.fill(lease.data(), 2, std::byte{0x55});
  }
  buffer.byte_view(2, 1).store_host(0, std::byte{0x66});
  std::ranges::fill(buffer.byte_view(3, 1).discard_host(), std::byte{0x77});
  EXPECT_EQ(buffer.load_host(0), 0x77665555);
  buffer.store_host(0, 5);
  EXPECT_EQ(on_device(buffer, s)[0], 5);
}

TEST_F(Unified, FillsWhereTheBytesAre) {
  UnifiedBuffer<int> buffer = make(100);
  buffer.fill(3);
  EXPECT_STATE(buffer, host_only);
  write_on_device(buffer, s, 1);
  buffer.drop_host();
  EXPECT_STATE(buffer, device_only);
  buffer.fill(4, s);
  EXPECT_STATE(buffer, device_only);
  EXPECT_EQ(moved(buffer), 0u);
  EXPECT_EQ(on_device(buffer, t), std::vector<int>(100, 4));
  buffer.sync_to_host();
  buffer.slice(0, 50).fill(5);
  EXPECT_EQ(name(buffer.state(0, 50)), "DEVICE_DIRTY");
  EXPECT_EQ(buffer.load_host(49), 5);
  EXPECT_EQ(buffer.load_host(50), 4);
}

TEST_F(Unified, CopiesInWhatHasItsShapeAndNothingElse) {
  UnifiedBuffer<int> buffer(Shape{2, 3}, {.device = device});
  const std::vector<int> three = {1, 2, 3}, six = counting(6);
  EXPECT_EQ(refused(buffer.try_copy_from(three), ErrorCode::size_mismatch).number("actual"), 12u);
  refused(buffer.try_copy_from(six, Shape{6}), ErrorCode::shape_mismatch);
  EXPECT_STATE(buffer, uninitialized);
  EXPECT_TRUE(buffer.try_copy_from(six, Shape{2, 3}));
  EXPECT_EQ(buffer.to_vector(), six);
  std::vector<int> small(5);
  refused(buffer.try_copy_to(small), ErrorCode::size_mismatch);
  EXPECT_EQ(buffer.shape(), (Shape{2, 3}));
}

// --- Short names, and explicit copies

TEST_F(Unified, OfBooleansIsReadAsAVector) {
  const bool values[] = {true, false, true};
  UnifiedBuffer<bool> buffer(Shape{3}, {.device = device});
  buffer.copy_from(std::span<const bool>(values));
  EXPECT_EQ(buffer.to_vector(), (std::vector<bool>{true, false, true}));
}

TEST_F(Unified, ShortNamesAreLeases) {
  UnifiedBuffer<int> buffer = make(10);
  std::ranges::fill(buffer.host(), 3);
  EXPECT_STATE(buffer, host_only);
  { const DeviceLease<const int> lease = buffer.device(s); }
  EXPECT_STATE(buffer, synchronized);
  buffer.sync_to_device();
  EXPECT_EQ(moved(buffer), 40u);
}

TEST_F(Unified, PrefetchesWithoutALease) {
  UnifiedBuffer<int> buffer = make(100);
  buffer.copy_from(counting(100));
  buffer.slice(0, 50).prefetch(s);
  EXPECT_EQ(moved(buffer), 200u);
  buffer.prefetch(s);
  buffer.prefetch(s);
  EXPECT_EQ(moved(buffer), 400u);
  EXPECT_EQ(buffer.statistics().of(TransferReason::prefetch).bytes, 400u);
  EXPECT_STATE(buffer, synchronized);
  write_on_device(buffer, s, 1);
  buffer.prefetch_host();
  EXPECT_STATE(buffer, synchronized);
  EXPECT_EQ(buffer.read_host()[0], 1);
  EXPECT_EQ(moved(buffer), 800u);
}

// --- Dirty marks

TEST_F(Unified, TakesNoteOfWhatOthersWrote) {
  UnifiedBuffer<int> buffer = make(100);
  refused(buffer.try_mark_host_dirty(), ErrorCode::not_allocated);
  refused(buffer.try_mark_device_dirty(), ErrorCode::not_allocated);
  buffer.copy_from(counting(100));
  int* const pointer = [&] { return buffer.rw_host().data(); }();
  buffer.sync_to_device();
  pointer[5] = -5;
  buffer.mark_host_dirty();
  buffer.mark_host_dirty();
  EXPECT_STATE(buffer, host_dirty);
  EXPECT_EQ(on_device(buffer, s)[5], -5);
  pointer[6] = -6;
  buffer.slice(0, 50).mark_host_dirty();
  const Failure failure = refused(buffer.try_mark_device_dirty(), ErrorCode::coherence_conflict);
  EXPECT_EQ(failure.number("begin"), 0u);
  EXPECT_EQ(failure.number("end"), 200u);
  EXPECT_EQ(failure.string("places"), "host");
  // The other half is nobody's but the device's.
  int* const there = [&] { return buffer.slice(50, 50).rw_device(s).data(); }();
  s.fill(there, 50, 11);
  buffer.slice(50, 50).mark_device_dirty(s);
  EXPECT_EQ(buffer.read_host()[6], -6);
  EXPECT_EQ(buffer.read_host()[50], 11);
}

// --- Dropping copies and resizing

TEST_F(Unified, DropsWithoutSavingIfTold) {
  UnifiedBuffer<int> buffer = make(100);
  write_on_device(buffer, s, 1);
  buffer.drop_device(Drop::discard);
  EXPECT_STATE(buffer, uninitialized);
  EXPECT_EQ(moved(buffer), 0u);
  buffer.copy_from(counting(100));
  write_on_device(buffer.slice(0, 10), s, 2);
  buffer.drop_device();
  EXPECT_EQ(buffer.statistics().of(TransferReason::drop), (CopyCount{1, 40}));
  EXPECT_EQ(buffer.load_host(0), 2);
  EXPECT_EQ(buffer.load_host(10), 11);
  buffer.drop_device();
  EXPECT_STATE(buffer, host_only);
}

TEST_F(Unified, GivesAllMemoryBack) {
  const auto budget = Budget::make("u", BudgetLimit::unlimited());
  const ResourceHandle own = std::make_shared<BudgetResource>(default_resource(device), budget);
  UnifiedBuffer<int> buffer = make(1000, {.resources = {own}});
  write_on_device(buffer, s, 1);
  EXPECT_GE(budget->charged_bytes(), 4000u);
  buffer.invalidate();
  EXPECT_STATE(buffer, uninitialized);
  EXPECT_TRUE(buffer.has_copy(device.place()));
  buffer.free();
  EXPECT_STATE(buffer, uninitialized);
  EXPECT_FALSE(buffer.has_copy(device.place()));
  s.synchronize();
  static_cast<void>(budget->drain());
  EXPECT_EQ(budget->charged_bytes(), 0u);
  buffer.copy_from(counting(1000));
  EXPECT_EQ(on_device(buffer, s), counting(1000));
}

TEST_F(Unified, ResizesWithOrWithoutItsBytes) {
  UnifiedBuffer<int> buffer = make(100);
  buffer.copy_from(counting(100));
  buffer.sync_to_device();
  write_on_device(buffer.slice(0, 10), s, -1);
  buffer.resize_keep(150, s);
  EXPECT_EQ(buffer.size(), 150u);
  EXPECT_EQ(buffer.shape(), Shape{150});
  EXPECT_EQ(name(buffer.state(0, 10)), "DEVICE_DIRTY");
  EXPECT_EQ(name(buffer.state(10, 90)), "SYNCHRONIZED");
  EXPECT_EQ(name(buffer.state(100, 50)), "UNINITIALIZED");
  std::vector<int> expected = counting(100);
  std::fill_n(expected.begin(), 10, -1);
  EXPECT_EQ(buffer.slice(0, 100).to_vector(), expected);
  EXPECT_EQ(on_device(buffer.slice(0, 100), t), expected);
  EXPECT_EQ(buffer.statistics().of(TransferReason::resize).bytes, 400u + 360u);
  buffer.resize_keep(5);
  EXPECT_EQ(buffer.to_vector(), std::vector<int>(5, -1));
  buffer.resize_discard(20);
  EXPECT_STATE(buffer, uninitialized);
  EXPECT_FALSE(buffer.has_copy(Place::host()));
  refused(buffer.try_resize_keep(max_request_bytes), ErrorCode::size_overflow);
  EXPECT_EQ(buffer.size(), 20u);
}

// --- Memory that outlives its copy

/// The host copy as code that keeps an address after its lease has it.
struct KeptArray {
  StorageHandle storage;
  const int* data = nullptr;

  explicit KeptArray(const UnifiedBuffer<int>& buffer) {
    const HostLease<const int> lease = buffer.read_host();
    storage = buffer.raw().storage_of(Place::host());
    data = lease.data();
  }
  [[nodiscard]] std::vector<int> elements(std::size_t count) const { return {data, data + count}; }
};

TEST_F(Unified, ACopyThatIsNotThereHasNoStorage) {
  const UnifiedBuffer<int> buffer = make(10);
  EXPECT_FALSE(buffer.raw().storage_of(Place::host()));
  EXPECT_FALSE(buffer.raw().storage_of(device.place()));
  EXPECT_FALSE(RawUnified().storage_of(Place::host()));
  const UnifiedBuffer<int> none = make(0);
  EXPECT_FALSE(none.raw().storage_of(Place::host()));
}

TEST_F(Unified, AStorageKeepsItsBytesAfterADrop) {
  UnifiedBuffer<int> buffer = make(1000);
  buffer.copy_from(counting(1000));
  const KeptArray kept(buffer);
  buffer.drop_host();
  EXPECT_FALSE(buffer.has_copy(Place::host()));
  EXPECT_EQ(kept.elements(1000), counting(1000));
  // The next access gets other memory, so writes on either side do not meet.
  EXPECT_EQ(buffer.to_vector(), counting(1000));
  buffer.fill(7);
  EXPECT_NE(buffer.raw().storage_of(Place::host()), kept.storage);
  EXPECT_EQ(kept.elements(1000), counting(1000));
}

TEST_F(Unified, AStorageKeepsItsBytesAfterAFreeAResizeAndTheEnd) {
  UnifiedBuffer<int> freed = make(1000), resized = make(1000);
  std::optional<UnifiedBuffer<int>> ended = make(1000);
  for (UnifiedBuffer<int>* one : {&freed, &resized, &*ended}) one->copy_from(counting(1000));
  const KeptArray a(freed), b(resized), c(*ended);
  freed.free();
  resized.resize_keep(5000);
  ended.reset();
  std::vector<UnifiedBuffer<int>> others;
  for (int i = 0; i < 20; ++i) others.emplace_back(make(1000)).fill(-1);
  for (const KeptArray* kept : {&a, &b, &c}) EXPECT_EQ(kept->elements(1000), counting(1000));
  EXPECT_EQ(resized.slice(0, 1000).to_vector(), counting(1000));
}

TEST_F(Unified, AStorageOfADeviceKeepsItsBytesToo) {
  UnifiedBuffer<int> buffer = make(1000);
  write_on_device(buffer, s, 7);
  StorageHandle kept = buffer.raw().storage_of(device.place());
  const void* const address = kept->first_byte();
  buffer.drop_device();
  std::vector<UnifiedBuffer<int>> others;
  for (int i = 0; i < 20; ++i) write_on_device(others.emplace_back(make(1000)), s, -1);
  std::vector<int> read(1000);
  s.copy(read.data(), address, 4000);
  s.synchronize();
  EXPECT_EQ(read, std::vector<int>(1000, 7));
  EXPECT_EQ(buffer.to_vector(), std::vector<int>(1000, 7));
}

TEST_F(Unified, KeptMemoryStaysChargedUntilItsLastHandle) {
  const auto pool = std::make_shared<PoolResource>(device);
  UnifiedBuffer<int> buffer = make(1000, {.resources = {pool}});
  write_on_device(buffer, s, 7);
  StorageHandle kept = buffer.raw().storage_of(device.place());
  buffer.drop_device();
  EXPECT_EQ(pool->statistics().live_blocks, 1u);
  kept = {};
  EXPECT_EQ(pool->statistics().live_blocks, 0u);
}

// --- Pointers that leave

TEST_F(Unified, CopiesAgainWhatAnEscapedPointerMayHaveWritten) {
  UnifiedBuffer<int> buffer = make(100);
  buffer.copy_from(counting(100));
  UntrackedLease<int> escape = buffer.slice(0, 50).export_host();
  escape.data()[3] = 33;
  EXPECT_EQ(on_device(buffer, s)[3], 33);
  escape.data()[3] = 34;
  EXPECT_EQ(on_device(buffer, s)[3], 34);
  EXPECT_EQ(buffer.statistics().of(TransferReason::untracked_write).bytes, 400u + 200u);
  EXPECT_EQ(name(buffer.state(0, 50)), "HOST_DIRTY");
  refused(buffer.try_rw_device(s), ErrorCode::access_conflict);
  refused(buffer.try_drop_host(), ErrorCode::access_conflict);
  EXPECT_EQ(buffer.read_host()[3], 34);

  escape.data()[3] = 35;
  escape.commit(3, 1);
  EXPECT_EQ(on_device(buffer, s)[3], 35);
  const std::size_t before = moved(buffer);
  EXPECT_EQ(on_device(buffer, s)[3], 35);
  EXPECT_EQ(moved(buffer), before);
  EXPECT_STATE(buffer, synchronized);
  refused(escape.try_commit(49, 2), ErrorCode::invalid_view);
  escape.close();
  EXPECT_TRUE(buffer.try_rw_device(s));
}

TEST_F(Unified, AnEscapeForReadingLetsOthersRead) {
  UnifiedBuffer<int> buffer = make(100);
  buffer.copy_from(counting(100));
  const UntrackedLease<const int> escape = buffer.export_read_device(s);
  EXPECT_EQ(on_device(buffer, t)[0], 1);
  refused(buffer.try_rw_host(), ErrorCode::access_conflict);
  refused(buffer.try_drop_device(device), ErrorCode::access_conflict);
}

TEST_F(Unified, TakesWhatWasWrittenThroughAnEscapedPointerOfADevice) {
  UnifiedBuffer<int> buffer = make(100);
  buffer.copy_from(counting(100));
  UntrackedLease<int> escape = buffer.export_device(s);
  s.fill(escape.data(), 100, 1);
  EXPECT_EQ(buffer.read_host()[7], 1);
  s.fill(escape.data(), 100, 2);
  EXPECT_EQ(buffer.read_host()[7], 2);
  s.fill(escape.data() + 10, 5, 3);
  escape.commit(10, 5, s);
  EXPECT_EQ(buffer.read_host()[10], 3);
  EXPECT_EQ(buffer.load_host(7), 2);
}

TEST_F(Unified, WritesThroughWhenALeaseCloses) {
  UnifiedBuffer<int> buffer = make(100);
  buffer.copy_from(counting(100));
  buffer.write_through(Place::host());
  write_on_device(buffer.slice(0, 10), s, 5);
  EXPECT_EQ(name(buffer.state(0, 10)), "SYNCHRONIZED");
  EXPECT_EQ(buffer.statistics().of(TransferReason::write_through).bytes, 40u);
  EXPECT_EQ(buffer.read_host()[9], 5);
  EXPECT_EQ(buffer.statistics().of(TransferReason::host_read).bytes, 0u);
  buffer.write_through(device.place());
  std::ranges::fill(buffer.slice(20, 10).rw_host(), 6);
  EXPECT_EQ(name(buffer.state(20, 10)), "SYNCHRONIZED");
  sim::set_faults(device, "copy%1=fail");
  std::ranges::fill(buffer.slice(20, 10).rw_host(), 7);
  sim::set_faults(device, "");
  EXPECT_EQ(buffer.statistics().failed_write_throughs, 1u);
  EXPECT_EQ(on_device(buffer.slice(20, 10), s), std::vector<int>(10, 7));
  buffer.write_through(std::nullopt);
  std::ranges::fill(buffer.slice(20, 10).rw_host(), 8);
  EXPECT_EQ(name(buffer.state(20, 10)), "HOST_DIRTY");
  EXPECT_THROW(buffer.write_through(devices[1].place()), InvalidDevice);
}

TEST_F(Unified, WritesThroughWhateverWrote) {
  UnifiedBuffer<int> buffer = make(100);
  buffer.write_through(Place::host());
  {
    DeviceLease<int> lease = buffer.discard_device(s);
    s.fill(lease.data(), 100, 1);
    const DeviceLease<const int> read = std::move(lease).downgrade();
    EXPECT_STATE(buffer, synchronized);
  }
  const Kernel negate = Kernel::from_function(device, "touch", touch);
  negate.launch(s, LaunchSize{}, inout(buffer));
  EXPECT_STATE(buffer, synchronized);
  EXPECT_EQ(buffer.read_host()[99], -1);
  buffer.fill(3, s);
  EXPECT_STATE(buffer, synchronized);
  EXPECT_EQ(buffer.read_host()[99], 3);
  EXPECT_EQ(buffer.statistics().of(TransferReason::write_through).bytes, 1200u);
  EXPECT_EQ(buffer.statistics().of(TransferReason::host_read).bytes, 0u);
}

TEST_F(Unified, WaitsForWhatAnEscapedPointerWritesInSharedMemory) {
  const Device host = open_device("host");
  const Stream own(host);
  UnifiedBuffer<int> buffer(Shape{100}, {.device = host});
  buffer.copy_from(counting(100));
  const UntrackedLease<int> escape = buffer.slice(0, 50).export_device(own);
  EXPECT_EQ(buffer.slice(50, 50).read_host()[0], 51);
  Gate gate;
  gate.hold(own);
  own.fill(escape.data(), 50, 2);
  test::Thread opener([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    gate.open();
  });
  EXPECT_EQ(buffer.read_host()[49], 2);
  opener.join();
}

TEST_F(Unified, ReadsBehindAnEscapedPointerOfTheSameDevice) {
  UnifiedBuffer<int> buffer = make(100);
  write_on_device(buffer, s, 1);
  EXPECT_EQ(on_device(buffer, t)[0], 1);
  const UntrackedLease<int> escape = buffer.export_device(s);
  s.fill(escape.data(), 100, 2);
  EXPECT_EQ(on_device(buffer, t)[0], 2);
}

TEST_F(Unified, ReadsBehindEveryCommitOfTheSameDevice) {
  UnifiedBuffer<int> buffer = make(100);
  write_on_device(buffer, s, 1);
  UntrackedLease<int> escape = buffer.export_device(s);
  for (int value = 2; value < 5; ++value) {
    s.fill(escape.data(), 100, value);
    escape.commit(0, 100, s);
    // What the stream read last time is not the same use.
    EXPECT_EQ(on_device(buffer, t)[99], value);
  }
}

TEST_F(Unified, CopiesNothingUnderOneWhoReads) {
  UnifiedBuffer<int> buffer = make(100);
  buffer.copy_from(counting(100));
  UntrackedLease<int> escape = buffer.export_host();
  {
    const DeviceLease<const int> lease = buffer.slice(20, 20).read_device(s);
    const Failure failure = refused(buffer.try_read_device(t), ErrorCode::access_conflict);
    EXPECT_EQ(failure.number("begin"), 80u);
    EXPECT_EQ(failure.number("end"), 160u);
    refused(buffer.try_prefetch(t), ErrorCode::access_conflict);
    EXPECT_TRUE(buffer.try_read_host());
    EXPECT_TRUE(buffer.slice(40, 60).try_read_device(t));
    escape.close();
    // It may have changed, and the lease has what was before.
    refused(buffer.try_read_device(t), ErrorCode::access_conflict);
    std::vector<int> seen(20);
    s.copy(seen.data(), lease.data(), 80);
    s.synchronize();
    EXPECT_EQ(seen, counting(20, 21));
  }
  EXPECT_EQ(on_device(buffer, t), counting(100));
}

TEST_F(Unified, ClonesWhatAnEscapedPointerOfADeviceIsWriting) {
  UnifiedBuffer<int> buffer = make(100);
  write_on_device(buffer, s, 1);
  EXPECT_EQ(on_device(buffer, t)[0], 1);
  UntrackedLease<int> escape = buffer.export_device(s);
  s.fill(escape.data(), 100, 2);
  EXPECT_EQ(buffer.clone(t).to_vector()[0], 2);
}

TEST_F(Unified, TakesNoWordOfAStreamThatHasEnded) {
  UnifiedBuffer<int> buffer = make(100);
  write_on_device(buffer, s, 1);
  const StreamRef ended = Stream(device);
  refused(buffer.try_mark_device_dirty(ended), ErrorCode::stream_misuse);
  UntrackedLease<int> escape = buffer.export_device(s);
  refused(escape.try_commit(0, 10, ended), ErrorCode::stream_misuse);
  EXPECT_TRUE(escape.try_commit(0, 10));
  escape.close();
  const Failure failure =
      refused(buffer.try_mark_device_dirty(Stream(devices[1])), ErrorCode::not_allocated);
  EXPECT_EQ(failure.string("place"), devices[1].place().text());
}

TEST_F(Unified, TakesNoNumberForASmallerOne) {
  const std::size_t wraps = std::size_t{1} << 62;  // times 4 bytes is 0
  UnifiedBuffer<int> buffer = make(100);
  buffer.copy_from(counting(100));
  EXPECT_EQ(name(buffer.state(wraps, 4)), "UNINITIALIZED");
  EXPECT_TRUE(buffer.valid_places(wraps, 4).empty());
  refused(buffer.try_slice(wraps, 4), ErrorCode::invalid_view);
  refused(buffer.try_slice(4, wraps), ErrorCode::invalid_view);
  const Failure failure = refused(buffer.try_slice(5, 1000), ErrorCode::invalid_view);
  EXPECT_EQ(failure.number("offset"), 20u);
  EXPECT_EQ(failure.number("size"), 4000u);
  EXPECT_EQ(failure.number("extent"), 400u);
  {
    UntrackedLease<int> escape = buffer.export_host();
    refused(escape.try_commit(wraps, 4), ErrorCode::invalid_view);
    refused(escape.try_commit(0, wraps), ErrorCode::invalid_view);
  }
  {
    HostLease<int> lease = buffer.discard_host();
    std::ranges::fill(lease, 1);
    lease.commit(wraps);
    EXPECT_EQ(lease.size(), 0u);
    EXPECT_EQ(lease.begin(), lease.end());
  }
  EXPECT_EQ(buffer.read_host()[99], 1);
}

TEST_F(Unified, SaysWhatWasLostWithADevice) {
  const Device doomed = sim::open({});
  const Stream own(doomed);
  UnifiedBuffer<int> buffer(Shape{100}, {.device = doomed, .tag = "rho"});
  buffer.copy_from(counting(100));
  write_on_device(buffer.slice(10, 20), own, 2);
  sim::set_faults(doomed, "fill#1=lost");
  refused(buffer.slice(10, 1).try_fill(1, own), ErrorCode::device_lost);
  for (const Failure& failure : {refused(buffer.try_read_host(), ErrorCode::sync_failed),
                                 refused(buffer.try_read_host_async(), ErrorCode::sync_failed),
                                 refused(buffer.try_flush_host(), ErrorCode::sync_failed),
                                 refused(buffer.try_drop_device(doomed), ErrorCode::sync_failed)}) {
    EXPECT_EQ(failure.number("begin"), 40u) << failure.text();
    EXPECT_EQ(failure.number("end"), 120u) << failure.text();
    EXPECT_EQ(failure.string("a"), doomed.spec()) << failure.text();
    EXPECT_NE(failure.text().find("Drop::discard"), std::string::npos) << failure.text();
    EXPECT_EQ(failure.text().find("Try again"), std::string::npos) << failure.text();
  }
  EXPECT_EQ(buffer.slice(30, 70).read_host()[0], 31);
  buffer.drop_device(Drop::discard);
  const Failure failure = refused(buffer.try_read_host(), ErrorCode::never_written);
  EXPECT_EQ(failure.number("begin"), 40u);
  EXPECT_EQ(failure.number("end"), 120u);
  std::ranges::fill(buffer.slice(10, 20).discard_host(), 3);
  EXPECT_EQ(buffer.read_host()[29], 3);
}

TEST_F(Unified, AdoptsFlushesAndReleasesTheHostsCopy) {
  std::vector<int> memory = counting(100);
  int releases = 0;
  {
    UnifiedBuffer<int> buffer =
        UnifiedBuffer<int>::adopt_host(memory, [&] { ++releases; }, {.device = device});
    EXPECT_STATE(buffer, host_only);
    EXPECT_EQ(buffer.read_host().data(), memory.data());
    write_on_device(buffer, s, 4);
    buffer.flush_host();
    EXPECT_EQ(memory, std::vector<int>(100, 4));
    EXPECT_EQ(releases, 0);
  }
  device.synchronize();
  static_cast<void>(reclaim_deferred());
  EXPECT_EQ(releases, 1);
  refused(UnifiedBuffer<int>::try_adopt_host({static_cast<int*>(nullptr), 3}, [&] { ++releases; },
                                             {.device = device}),
          ErrorCode::invalid_argument);
  EXPECT_EQ(releases, 1);

  UnifiedBuffer<int> buffer(Shape{4, 25}, {.device = device});
  write_on_device(buffer.slice(0, 50), s, 9);
  std::ranges::fill(buffer.slice(50, 50).discard_host(), 8);
  const Buffer released = std::move(buffer).release_host();
  EXPECT_EQ(released.shape(), (Shape{4, 25}));
  EXPECT_EQ(released.to_vector<int>()[49], 9);
  EXPECT_EQ(released.to_vector<int>()[50], 8);
  EXPECT_STATE(buffer, uninitialized);
}

TEST_F(Unified, ClonesWithMemoryOfItsOwn) {
  UnifiedBuffer<int> buffer = make(100);
  buffer.copy_from(counting(100));
  write_on_device(buffer.slice(0, 10), s, 3);
  UnifiedBuffer<int> clone = buffer.clone(t);
  write_on_device(buffer, s, 0);
  EXPECT_EQ(clone.load_host(0), 3);
  EXPECT_EQ(clone.load_host(10), 11);
  EXPECT_STATE(clone, device_only);
}

// --- Page-locked copies

TEST_F(Unified, PinsTheHostsCopyFrom64KiBOnWhileThereIsSuchMemory) {
  UnifiedBuffer<std::byte> small(Shape{64 * kib - 1}, {.device = device});
  UnifiedBuffer<std::byte> large(Shape{64 * kib}, {.device = device});
  small.fill(std::byte{1});
  large.fill(std::byte{1});
  EXPECT_FALSE(small.is_pinned());
  EXPECT_TRUE(large.is_pinned());
  UnifiedBuffer<std::byte> required(Shape{10}, {.device = device, .pinned = Pinned::required});
  EXPECT_FALSE(required.is_pinned());
  required.fill(std::byte{1});
  EXPECT_TRUE(required.is_pinned());
  UnifiedBuffer<std::byte> never(Shape{64 * kib}, {.device = device, .pinned = Pinned::never});
  never.fill(std::byte{1});
  EXPECT_FALSE(never.is_pinned());

  const auto budget = Budget::make("pinned", BudgetLimit::bytes(200 * kib));
  const ResourceHandle pinned =
      std::make_shared<BudgetResource>(default_resource(device, MemoryKind::pinned), budget);
  UnifiedBuffer<std::byte> first(Shape{128 * kib}, {.device = device, .resources = {pinned}});
  UnifiedBuffer<std::byte> second(Shape{128 * kib}, {.device = device, .resources = {pinned}});
  UnifiedBuffer<std::byte> third(
      Shape{128 * kib}, {.device = device, .pinned = Pinned::required, .resources = {pinned}});
  first.fill(std::byte{1});
  second.fill(std::byte{1});
  EXPECT_TRUE(first.is_pinned());
  EXPECT_FALSE(second.is_pinned());
  refused(third.try_fill(std::byte{1}), ErrorCode::out_of_budget);
  EXPECT_STATE(third, uninitialized);
}

// --- What was moved, and why

TEST_F(Unified, SaysWhatMovedAndWhoseLineItWas) {
  const UnifiedStatistics before = unified_totals();
  UnifiedBuffer<int> buffer = make(100);
  buffer.copy_from(counting(100));
  static_cast<void>(buffer.read_device(s));
  const std::uint32_t line = __LINE__ - 1;
  write_on_device(buffer.slice(10, 10), s, 1);
  static_cast<void>(buffer.rw_host());
  const std::vector<Transfer> log = buffer.transfers();
  ASSERT_EQ(log.size(), 2u);
  EXPECT_EQ(log[0].from, Place::host());
  EXPECT_EQ(log[0].to, device.place());
  EXPECT_EQ(log[0].bytes, 400u);
  EXPECT_EQ(log[0].site.line, line);
  EXPECT_EQ(name(log[0].reason), "device_read");
  EXPECT_EQ(log[1].begin, 40u);
  EXPECT_EQ(log[1].end, 80u);
  EXPECT_EQ(name(log[1].reason), "host_rw");
  EXPECT_EQ(unified_totals().moved().bytes - before.moved().bytes, 440u);
  for (int i = 0; i < 100; ++i) {
    write_on_device(buffer.slice(0, 1), s, i);
    static_cast<void>(buffer.read_host());
  }
  EXPECT_EQ(buffer.transfers().size(), 64u);
  EXPECT_EQ(buffer.transfers().back().bytes, 4u);
  EXPECT_EQ(buffer.statistics().to_host.copies, 101u);
}

TEST_F(Unified, MergesGapsThatNobodyHolds) {
  UnifiedBuffer<int> buffer = make(1000);
  buffer.copy_from(counting(1000));
  buffer.sync_to_device();
  for (const std::size_t at : {0u, 100u, 200u}) write_on_device(buffer.slice(at, 10), s, -1);
  static_cast<void>(buffer.read_host());
  EXPECT_EQ(buffer.statistics().to_host, (CopyCount{1, 840}));
  EXPECT_EQ(buffer.statistics().merged_gap_bytes, 720u);
  for (const std::size_t at : {0u, 100u, 200u}) write_on_device(buffer.slice(at, 10), s, -2);
  {
    const HostLease<const int> lease = buffer.slice(50, 10).read_host();
    static_cast<void>(buffer.slice(0, 300).read_host());
  }
  EXPECT_EQ(buffer.statistics().to_host, (CopyCount{3, 840 + 40 + 440}));
  UnifiedBuffer<int> exact = make(1000, {.coalesce_gap_bytes = 0});
  exact.copy_from(counting(1000));
  exact.sync_to_device();
  for (const std::size_t at : {0u, 100u, 200u, 350u}) write_on_device(exact.slice(at, 10), s, -1);
  EXPECT_EQ(exact.read_host()[359], -1);
  EXPECT_EQ(exact.statistics().to_host, (CopyCount{4, 160}));
  for (const std::size_t at : {0u, 100u, 200u}) write_on_device(exact.slice(at, 10), s, -2);
  sim::set_faults(device, "");
  EXPECT_EQ(exact.read_host()[209], -2);
  EXPECT_EQ(exact.read_host()[10], 11);
  EXPECT_EQ(sim::calls(device, "copy"), 1u);
}

TEST_F(Unified, WaitsForALeaseThatClosesBehindTheEndOfItsStream) {
  UnifiedBuffer<int> buffer = make(100);
  UnifiedView<int> one = buffer.slice(0, 50), other = buffer.slice(50, 50);
  for (const bool is_downgraded : {false, true}) {
    std::optional<Stream> ending(device);
    write_on_device(buffer, *ending, 1);
    DeviceLease<int> lease = one.rw_device(*ending);
    // Somebody else looks at what the stream has done so far.
    write_on_device(other, t, 2);
    ending->fill(lease.data(), lease.size(), 3);
    ending.reset();
    if (is_downgraded) {
      std::move(lease).downgrade().close();
    } else {
      lease.close();
    }
    EXPECT_EQ(on_device(one, s), std::vector<int>(50, 3));
  }
}

// --- Several places

TEST_F(Unified, HasCopiesOnSeveralDevices) {
  const Stream far(devices[1]);
  UnifiedBuffer<int> buffer = make(100);
  buffer.copy_from(counting(100));
  static_cast<void>(buffer.read_device(s));
  EXPECT_STATE(buffer, synchronized);
  static_cast<void>(buffer.slice(0, 50).read_device(far));
  EXPECT_STATE(buffer, mixed);
  EXPECT_EQ(name(buffer.state(0, 50)), "SYNCHRONIZED");
  EXPECT_EQ(name(buffer.state(50, 50)), "MIXED");
  // The peer is nearer than the host.
  EXPECT_EQ(buffer.statistics().between_devices, (CopyCount{1, 200}));
  write_on_device(buffer, far, 9);
  EXPECT_STATE(buffer, device_dirty);
  EXPECT_EQ(on_device(buffer, s)[99], 9);
  EXPECT_TRUE(buffer.is_stale_on(Place::host()));
  EXPECT_EQ(buffer.statistics().to_host.copies, 0u);
  buffer.drop_device(devices[1]);
  EXPECT_EQ(buffer.statistics().moved().copies, 3u);
  buffer.drop_device(devices[0]);
  EXPECT_STATE(buffer, host_only);
  EXPECT_EQ(buffer.load_host(50), 9);
  EXPECT_TRUE(buffer.check());
}

TEST_F(Unified, SharesOneMemoryWithTheHostDeviceAndKeepsTheOrder) {
  const Device host = open_device("host");
  const Stream own(host);
  UnifiedBuffer<int> buffer(Shape{100}, {.device = host});
  buffer.copy_from(counting(100));
  const int* const address = std::as_const(buffer).read_host().data();
  {
    const DeviceLease<int> lease = buffer.rw_device(own);
    EXPECT_EQ(lease.data(), address);
  }
  EXPECT_STATE(buffer, device_dirty);
  EXPECT_EQ(moved(buffer), 0u);
  EXPECT_EQ(buffer.statistics().elided, (CopyCount{1, 400}));
  Gate gate;
  gate.hold(own);
  write_on_device(buffer, own, 5);
  test::Thread opener([&] { gate.open(); });
  EXPECT_EQ(buffer.read_host()[99], 5);
  opener.join();
  EXPECT_EQ(buffer.statistics().elided, (CopyCount{2, 800}));
  EXPECT_STATE(buffer, synchronized);
  Gate second;
  second.hold(own);
  const Kernel negate = Kernel::from_function(host, "touch", touch);
  negate.launch(own, LaunchSize{}, inout(buffer));
  test::Thread let_go([&] { second.open(); });
  EXPECT_EQ(buffer.read_host()[99], -5);
  let_go.join();
  negate.launch(own, LaunchSize{}, inout(buffer));
  buffer.drop_host();
  EXPECT_STATE(buffer, device_only);
  EXPECT_EQ(buffer.load_host(3), 5);
  buffer.store_host(3, 6);
  EXPECT_EQ(buffer.load_host(3), 6);
  buffer.free();
  EXPECT_FALSE(buffer.has_copy(host.place()));
}

TEST_F(Unified, WhatAPlaceThatSharesTheHostsMemoryWritesIsStaleElsewhereUntilTouched) {
  const Device host = open_device("host");
  const Stream own(host);
  UnifiedBuffer<int> buffer = make(100);
  buffer.copy_from(counting(100));
  buffer.prefetch(s);
  EXPECT_FALSE(buffer.is_stale_on(device.place()));
  write_on_device(buffer.slice(0, 50), own, 9);
  EXPECT_TRUE(buffer.is_stale_on(device.place()));
  EXPECT_EQ(buffer.valid_places(0, 50), std::vector{host.place()});
  // The host has those bytes without a copy, and that brings nothing to the other one.
  const std::vector<int> seen = buffer.to_vector();
  EXPECT_EQ(seen[49], 9);
  EXPECT_EQ(seen[50], 51);
  EXPECT_EQ(moved(buffer), 400u);
  EXPECT_EQ(buffer.statistics().elided, (CopyCount{1, 200}));
  EXPECT_TRUE(buffer.is_stale_on(device.place()));
  EXPECT_EQ(buffer.valid_places(0, 50), (std::vector{Place::host(), host.place()}));
  EXPECT_EQ(on_device(buffer, s), seen);
  EXPECT_EQ(moved(buffer), 600u);
  EXPECT_FALSE(buffer.is_stale_on(device.place()));
}

TEST_F(Unified, MovesBetweenDevicesOfDifferentBackendsAndTheHostDevice) {
  const Device host = open_device("host");
  const Stream own(host), far(devices[1]);
  const Device alone = sim::open({});
  const Stream apart(alone);
  UnifiedBuffer<int> buffer = make(50000);
  buffer.copy_from(counting(50000));
  for (int turn = 0; turn < 3; ++turn) {
    for (const StreamRef stream :
         {StreamRef(own), StreamRef(s), StreamRef(apart), StreamRef(far)}) {
      const int value = 10 * turn + static_cast<int>(stream.device_id().value);
      write_on_device(buffer.slice(100, 40000), stream, value);
      EXPECT_EQ(buffer.load_host(100), value);
      EXPECT_EQ(on_device(buffer, t)[40099], value);
      EXPECT_EQ(on_device(buffer, apart)[40100], 40101);
      EXPECT_EQ(on_device(buffer, own)[99], 100);
    }
  }
  EXPECT_TRUE(buffer.check());
  buffer.synchronize();
  expect_no_findings(alone);
}

// --- Checked mode

TEST_F(Unified, SpoilsStaleAndUnwrittenBytesInCheckedMode) {
  UnifiedBuffer<int> buffer = make(100, {.checked = true});
  const int spoilt = static_cast<int>(0xCBCBCBCB);
  const int* pointer = nullptr;
  {
    const HostLease<int> lease = buffer.discard_host();
    pointer = lease.data();
    EXPECT_EQ(lease[50], spoilt);
    std::ranges::fill(lease, 1);
  }
  EXPECT_EQ(on_device(buffer, s)[0], 1);
  buffer.synchronize();
  write_on_device(buffer.slice(0, 10), s, 2);
  EXPECT_EQ(pointer[9], spoilt);
  EXPECT_EQ(pointer[10], 1);
  EXPECT_EQ(buffer.read_host()[9], 2);
  std::vector<int> there(100);
  std::ranges::fill(buffer.slice(90, 10).rw_host(), 3);
  {
    const DeviceLease<int> lease = buffer.slice(0, 10).rw_device(s);
    s.copy(there.data(), lease.data(), 400);
    s.synchronize();
  }
  EXPECT_EQ(there[89], 1);
  EXPECT_EQ(there[90], spoilt);
  EXPECT_EQ(on_device(buffer, s)[90], 3);
}

// --- Failures

TEST_F(Unified, AFullDeviceIsAnErrorAndChangesNothing) {
  const auto faulty = std::make_shared<FaultResource>(default_resource(device));
  UnifiedBuffer<int> buffer = make(100, {.resources = {faulty}});
  buffer.copy_from(counting(100));
  faulty->fail_next();
  refused(buffer.try_rw_device(s), ErrorCode::out_of_memory);
  EXPECT_STATE(buffer, host_only);
  EXPECT_FALSE(buffer.has_copy(device.place()));
  EXPECT_TRUE(buffer.try_rw_host());
  EXPECT_EQ(on_device(buffer, s), counting(100));
}

/// A program of every kind of step, which tells what each should leave.
class FaultyProgram {
 public:
  FaultyProgram(const Device& device, StreamRef s, StreamRef far)
      : device_(device), s_(s), far_(far) {}

  /// Runs until a step fails, and then that step again; gives whether one did.
  bool run() {
    buffer_ =
        UnifiedBuffer<int>(Shape{300}, {.device = device_, .tag = "f", .coalesce_gap_bytes = 0});
    bool has_failed = false;
    const auto step = [&](auto what) {
      const std::string before = picture();
      Result<void> done = what();
      if (!done) {
        has_failed = true;
        EXPECT_EQ(picture(), before) << done.failure().text();
        EXPECT_TRUE(buffer_.check());
        sim::set_faults(device_, "");
        done = what();
      }
      EXPECT_TRUE(done) << done.failure().text();
    };
    const std::vector<int> numbers = counting(300);
    step([&] { return buffer_.try_copy_from(numbers); });
    step([&] { return done(buffer_.try_rw_device(s_)); });
    step([&] { return buffer_.slice(0, 100).try_fill(5, s_); });
    step([&] { return done(buffer_.slice(0, 10).try_read_host()); });
    step([&] { return done(buffer_.slice(50, 10).try_rw_host()); });
    step([&] { return done(buffer_.slice(250, 10).try_rw_host()); });
    step([&] { return done(buffer_.try_read_device(s_)); });
    step([&] { return buffer_.try_store_host(7, 77); });
    step([&] {
      const Result<int> value = buffer_.try_load_host(7);
      return value ? Result<void>() : Result<void>(value.failure());
    });
    step([&] { return buffer_.try_resize_keep(400, s_); });
    step([&] { return done(buffer_.slice(300, 100).try_discard_device(s_)); });
    step([&] { return buffer_.slice(300, 100).try_fill(6, s_); });
    step([&] { return done(buffer_.slice(0, 350).try_rw_device(far_)); });
    step([&] { return buffer_.try_store_host(8, 88); });
    step([&] { return done(buffer_.slice(5, 10).try_rw_device(s_)); });
    step([&] {
      const Result<UnifiedBuffer<int>> clone = buffer_.try_clone(far_);
      return clone ? Result<void>() : Result<void>(clone.failure());
    });
    step([&] { return done(buffer_.try_read_host_async()); });
    step([&] { return buffer_.try_drop_host(); });
    step([&] { return buffer_.try_drop_device(device_); });
    step([&] { return buffer_.try_flush_host(); });
    step([&] { return buffer_.try_sync_to_device(); });
    std::vector<int> expected = counting(400);
    std::fill_n(expected.begin(), 100, 5);
    std::fill_n(expected.begin() + 300, 100, 6);
    expected[7] = 77;
    expected[8] = 88;
    EXPECT_EQ(buffer_.to_vector(), expected);
    buffer_ = {};
    return has_failed;
  }

 private:
  template <class Lease>
  static Result<void> done(const Result<Lease>& lease) {
    return lease ? Result<void>() : Result<void>(lease.failure());
  }
  [[nodiscard]] std::string picture() const {
    std::string text = std::to_string(buffer_.size());
    buffer_.for_each_interval([&](std::size_t begin, std::size_t end, auto places) {
      text += " " + std::to_string(begin) + "-" + std::to_string(end);
      for (const Place& place : places) text += ":" + place.text();
    });
    return text;
  }

  const Device device_;
  const StreamRef s_, far_;
  UnifiedBuffer<int> buffer_;
};

TEST(UnifiedFaults, AFaultAtEachCallLeavesTheStateAndTheRetryIsRight) {
  unsigned failed = 0;
  for (const std::string what : {"allocate", "copy", "fill", "record", "wait"}) {
    for (unsigned nth = 1;; ++nth) {
      const std::vector<Device> devices = sim::open_peers({}, 2);
      const Device& device = devices[0];
      {
        const Stream s(device), far(devices[1]);
        const std::size_t before = device.memory().free_bytes;
        sim::set_faults(device,
                        what + "#" + std::to_string(nth) + (what == "allocate" ? "=oom" : "=fail"));
        const bool has_failed = FaultyProgram(device, s, far).run();
        sim::set_faults(device, "");
        device.synchronize();
        devices[1].synchronize();
        static_cast<void>(reclaim_deferred());
        default_resource(device)->trim(0);
        default_resource(devices[1])->trim(0);
        EXPECT_EQ(deferred_frees().count, 0u);
        EXPECT_EQ(device.memory().free_bytes, before) << what << nth;
        expect_no_findings(device);
        failed += has_failed ? 1 : 0;
        if (!has_failed || testing::Test::HasFailure()) break;
      }
    }
  }
  EXPECT_GT(failed, 30u);
}

TEST_F(Unified, NamesDirectionAndCauseOfACopyThatFailed) {
  UnifiedBuffer<int> buffer = make(100);
  buffer.copy_from(counting(100));
  sim::set_faults(device, "copy#1=fail");
  const Failure up = refused(buffer.try_read_device(s), ErrorCode::sync_failed);
  EXPECT_EQ(up.string("direction"), "to the device");
  EXPECT_EQ(up.string("a"), "host");
  EXPECT_TRUE(up.string("cause").has_value());
  EXPECT_EQ(up.number("end"), 400u);
  EXPECT_FALSE(buffer.is_stale_on(Place::host()));
  write_on_device(buffer, s, 1);
  sim::set_faults(device, "copy#1=fail");
  EXPECT_EQ(refused(buffer.try_read_host(), ErrorCode::sync_failed).string("direction"),
            "to the host");
  EXPECT_EQ(buffer.read_host()[0], 1);
}

// --- Launches

TEST_F(Unified, IsAnArgumentOfKernels) {
  const Kernel kernel = Kernel::from_function(device, "add", add);
  UnifiedBuffer<int> a = make(100), b = make(100), sum = make(100);
  a.copy_from(counting(100));
  b.copy_from(counting(100, 1000));
  const std::uint64_t before = a.statistics().moved().copies;
  kernel.launch(s, LaunchSize{}, in(a), in(b), out(sum));
  EXPECT_EQ(a.statistics().moved().copies - before, 1u);
  EXPECT_EQ(sum.statistics().moved().copies, 0u);
  EXPECT_STATE(a, synchronized);
  EXPECT_STATE(sum, device_only);
  EXPECT_EQ(sum.read_host()[99], 100 + 1099);
  // Beside arrays and buffers, and again without a copy.
  const Array<int> ones = Array<int>::from(device, std::vector<int>(100, 1));
  kernel.launch(t, LaunchSize{}, in(sum), in(ones), out(b));
  EXPECT_EQ(b.load_host(0), 1002);
  EXPECT_EQ(a.statistics().moved().copies, 1u);
  const Kernel negate = Kernel::from_function(device, "touch", touch);
  negate.launch(s, LaunchSize{}, inout(b.slice(0, 10)));
  EXPECT_EQ(b.load_host(0), -1002);
  EXPECT_EQ(b.load_host(10), 1002 + 20);
  UnifiedBuffer<int> none = make(0);
  negate.launch(s, LaunchSize{}, inout(none));
}

TEST_F(Unified, IsAnArgumentOfKernelsOfTheHostDevice) {
  const Device host = open_device("host");
  const Stream own(host);
  const Kernel negate = Kernel::from_function(host, "touch", touch);
  const Kernel sum = Kernel::from_function(host, "add", add);
  // On the heap, and page-locked.
  for (const std::size_t count : {std::size_t{100}, std::size_t{40000}}) {
    UnifiedBuffer<int> buffer = make(count);
    buffer.copy_from(counting(count));
    EXPECT_EQ(buffer.is_pinned(), count == 40000);
    const int* const address = buffer.read_host().data();
    negate.launch(own, LaunchSize{}, inout(buffer));
    EXPECT_EQ(moved(buffer), 0u);
    EXPECT_EQ(buffer.read_host().data(), address);
    EXPECT_EQ(buffer.read_host()[99], -100);
    // It comes from a device behind its work, and goes to one behind the kernel.
    write_on_device(buffer, s, 5);
    negate.launch(own, LaunchSize{}, inout(buffer));
    EXPECT_EQ(moved(buffer), 4 * count);
    EXPECT_EQ(on_device(buffer, t), std::vector<int>(count, -5));
    {
      Gate gate;
      gate.hold(own);
      negate.launch(own, LaunchSize{}, inout(buffer));
      test::Thread opener([&] { gate.open(); });
      EXPECT_EQ(buffer.read_host()[count - 1], 5);
      opener.join();
    }
    // Beside what is the host device's own, and with two of them.
    const Array<int> ones = Array<int>::from(host, std::vector<int>(count, 1));
    UnifiedBuffer<int> more = make(count);
    sum.launch(own, LaunchSize{}, in(buffer), in(ones), out(more));
    EXPECT_EQ(on_device(more, s), std::vector<int>(count, 6));
    EXPECT_TRUE(buffer.check());
    EXPECT_TRUE(more.check());
  }
  // What stays where it is has to be the kernel's.
  const Array<int> far = Array<int>::from(device, std::vector<int>(100, 1));
  UnifiedBuffer<int> a = make(100), b = make(100);
  a.copy_from(counting(100));
  refused(sum.try_launch(own, LaunchSize{}, in(a), in(far), out(b)), ErrorCode::device_mismatch);
  EXPECT_STATE(b, uninitialized);
}

TEST_F(Unified, MergesArgumentsThatOverlapByteByByte) {
  const Kernel kernel = Kernel::from_function(device, "shift", shift);
  UnifiedBuffer<int> buffer = make(100);
  std::ranges::fill(buffer.slice(0, 60).discard_host(), 5);
  // [0, 40) is read, [40, 60) both, [60, 80) written, and the rest is nobody's.
  kernel.launch(s, LaunchSize{}, in(buffer.slice(0, 60)), out(buffer.slice(40, 40)));
  EXPECT_EQ(buffer.statistics().to_device.bytes, 240u);
  EXPECT_EQ(name(buffer.state(0, 40)), "SYNCHRONIZED");
  EXPECT_EQ(name(buffer.state(40, 40)), "DEVICE_DIRTY");
  EXPECT_EQ(name(buffer.state(80, 20)), "UNINITIALIZED");
  EXPECT_EQ(buffer.load_host(79), 6);
  EXPECT_EQ(buffer.load_host(39), 5);
}

TEST_F(Unified, ALaunchTakesAllOfItsArgumentsOrNone) {
  const auto faulty = std::make_shared<FaultResource>(default_resource(device));
  const Kernel kernel = Kernel::from_function(device, "add", add);
  UnifiedBuffer<int> a = make(100), b = make(100, {.resources = {faulty}}), sum = make(100);
  a.copy_from(counting(100));
  b.copy_from(counting(100));
  const auto launch = [&] { return kernel.try_launch(s, LaunchSize{}, in(a), in(b), out(sum)); };
  const auto expect_untouched = [&] {
    EXPECT_STATE(a, host_only);
    EXPECT_STATE(b, host_only);
    EXPECT_STATE(sum, uninitialized);
    EXPECT_FALSE(a.has_copy(device.place()));
    EXPECT_FALSE(sum.has_copy(device.place()));
    EXPECT_TRUE(a.try_rw_host());
    EXPECT_TRUE(sum.try_slice(0, 1));
    EXPECT_EQ(a.statistics().moved().copies, 0u);
  };
  faulty->fail_next();
  refused(launch(), ErrorCode::out_of_memory);
  expect_untouched();
  {
    const HostLease<int> held = sum.slice(0, 1).discard_host();
    refused(launch(), ErrorCode::access_conflict);
  }
  sum.free();
  expect_untouched();
  refused(kernel.try_launch(s, LaunchSize{}, in(a), in(sum), out(b)), ErrorCode::never_written);
  expect_untouched();
  refused(kernel.try_launch(s, LaunchSize{}, in(a), in(b)), ErrorCode::shape_mismatch);
  UnifiedBuffer<float> wrong(Shape{100}, {.device = device});
  refused(kernel.try_launch(s, LaunchSize{}, in(a), in(b), out(wrong)), ErrorCode::type_mismatch);
  refused(kernel.try_launch(s, LaunchSize{}, in(a), in(UnifiedBuffer<int>()), out(sum)),
          ErrorCode::not_allocated);
  expect_untouched();
  sim::set_faults(device, "launch#1=fail");
  EXPECT_FALSE(launch());
  // The copies were made, and are true; nothing was written, and nothing is held.
  EXPECT_STATE(sum, uninitialized);
  EXPECT_TRUE(a.try_rw_host());
  EXPECT_TRUE(launch());
  EXPECT_EQ(sum.read_host()[9], 20);
}

}  // namespace
}  // namespace tern::test
