// Writes without a lease, which the next access detects.

#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <utility>
#include <vector>

#include "support/gate.hpp"
#include "support/thread.hpp"
#include "support/unified.hpp"
#include "tern/backends/catalog.hpp"
#include "tern/backends/sim.hpp"
#include "tern/buffer/use.hpp"
#include "tern/coherence/unified_buffer.hpp"
#include "tern/launch/kernel.hpp"

namespace tern::test {
namespace {

class UnifiedChecks : public Unified {
 protected:
  UnifiedBuffer<int> checked(std::size_t count) const {
    UnifiedBuffer<int> buffer = make(count, {.checked = true});
    std::ranges::fill(buffer.discard_host(), 1);
    return buffer;
  }
};

TEST_F(UnifiedChecks, ALaterWriteWaitsForThePoisonOfADiscard) {
  UnifiedBuffer<int> buffer = make(100, {.checked = true});
  UnifiedView<int> one = buffer.slice(0, 50), other = buffer.slice(50, 50);
  write_on_device(buffer, t, 1);
  Gate gate;
  gate.hold(s);
  DeviceLease<int> lease = one.discard_device(s);
  write_on_device(other, t, 2);
  lease.abandon();
  write_on_device(one, t, 3);  // after the poison
  EXPECT_FALSE(Device::is_done(t.mark()));
  gate.open();
  EXPECT_EQ(on_device(one, s), std::vector<int>(50, 3));
  EXPECT_EQ(on_device(other, s), std::vector<int>(50, 2));
}

TEST_F(UnifiedChecks, ADiscardLeaseThatFailsPoisonsNothing) {
  int failed = 0;
  for (const char* what : {"fill", "wait", "record", "sync", "query"}) {
    for (int n = 1; n <= 4; ++n) {
      SCOPED_TRACE(std::string(what) + " " + std::to_string(n));
      UnifiedBuffer<int> buffer = make(100, {.checked = true});
      write_on_device(buffer, t, 1);
      // The directory gets several entries, and the lease has work to wait for.
      EXPECT_EQ(buffer.slice(0, 40).read_host()[0], 1);
      Gate gate;
      gate.hold(t);
      write_on_device(buffer.slice(80, 20), t, 1);
      sim::set_faults(device, std::string(what) + "#" + std::to_string(n) + "=fail");
      const Result<DeviceLease<int>> lease = buffer.slice(20, 50).try_discard_device(s);
      sim::set_faults(device, "");
      gate.open();
      if (lease) continue;
      ++failed;
      EXPECT_EQ(on_device(buffer, s), std::vector<int>(100, 1));
      EXPECT_EQ(buffer.to_vector(), std::vector<int>(100, 1));
    }
  }
  EXPECT_GT(failed, 1);
}

TEST_F(UnifiedChecks, ADiscardLeaseThatFailsBesideAnotherThreadPoisonsNothing) {
  constexpr std::size_t part = 100;
  constexpr int threads = 3, rounds = 300;
  UnifiedBuffer<int> buffer = make(part * threads, {.checked = true});
  write_on_device(buffer, s, 1);
  sim::set_faults(device, "wait~0.2=fail");
  std::atomic<int> failed = 0, wrong = 0;
  std::vector<test::Thread> all;
  for (std::size_t i = 0; i < threads; ++i) {
    all.emplace_back([&, i] {
      const Stream streams[] = {Stream(device), Stream(device)};
      UnifiedView<int> own = buffer.slice(i * part, part);
      int expected = 1;
      for (int round = 0; round < rounds; ++round) {
        const StreamRef stream = streams[round % 2];
        if (const Result<DeviceLease<int>> lease = own.try_discard_device(stream)) {
          expected = 2 + round;
          stream.fill(lease->data(), part, expected);
        } else {
          ++failed;
        }
        std::vector<int> seen(part);
        const Result<DeviceLease<const int>> lease = own.try_read_device(stream);
        if (!lease || !stream.try_copy(seen.data(), lease->data(), part * sizeof(int))) continue;
        stream.synchronize();
        if (seen != std::vector<int>(part, expected)) ++wrong;
      }
    });
  }
  for (test::Thread& one : all) one.join();
  sim::set_faults(device, "");
  EXPECT_GT(failed, 0);
  EXPECT_EQ(wrong, 0);
}

TEST_F(UnifiedChecks, FindWhoWroteThroughAPointerOfALeaseThatIsClosed) {
  UnifiedBuffer<int> buffer = checked(100);
  int* kept = nullptr;
  {
    const HostLease<int> lease = buffer.rw_host();
    kept = lease.data();
  }
  const int line = __LINE__ - 3;
  EXPECT_TRUE(buffer.try_read_host());
  kept[40] = 5;
  const Failure failure = refused(buffer.try_read_host(), ErrorCode::violation);
  EXPECT_EQ(failure.number("begin"), 128u);
  EXPECT_EQ(failure.number("end"), 192u);
  EXPECT_GE(failure.number("a_line"), static_cast<std::uint64_t>(line));
  EXPECT_NE(failure.text().find("'u'"), std::string::npos) << failure.text();
  // Once: whoever knows of it may go on.
  EXPECT_EQ(buffer.read_host()[40], 5);
}

TEST_F(UnifiedChecks, FindItWhenADirectoryIsMadeSmaller) {
  constexpr std::size_t pieces = 2100, piece = 16;  // as large as what is sealed
  UnifiedBuffer<int> buffer = make(2 * piece * pieces, {.coalesce_gap_bytes = 0, .checked = true});
  int* kept = nullptr;
  {
    const HostLease<int> lease = buffer.discard_host();
    std::ranges::fill(lease, 1);
    kept = lease.data();
  }
  buffer.prefetch(s);
  std::size_t found = 0;
  for (std::size_t i = 0; i < pieces; ++i) {
    if (i == 1000) kept[2 * piece * 10] = 5;
    const Result<HostLease<int>> lease = buffer.slice(2 * piece * i, piece).try_discard_host();
    if (lease) {
      std::ranges::fill(*lease, 2);
    } else {
      EXPECT_EQ(lease.failure().code(), ErrorCode::violation) << lease.failure().text();
      EXPECT_EQ(lease.failure().number("begin"), 2 * piece * 10 * sizeof(int));
      ++found;
    }
  }
  EXPECT_EQ(found, 1u);
}

TEST_F(UnifiedChecks, FindItBeforeTheBytesGoAnywhere) {
  UnifiedBuffer<int> buffer = checked(100);
  int* const kept = buffer.rw_host().data();
  kept[0] = 5;
  refused(buffer.try_read_device(s), ErrorCode::violation);
  EXPECT_EQ(buffer.statistics().moved().bytes, 0u);
  kept[0] = 6;
  std::ranges::fill(buffer.rw_host(), 2);
  kept[99] = 6;
  refused(buffer.try_prefetch(s), ErrorCode::violation);
  std::ranges::fill(buffer.rw_host(), 3);
  kept[99] = 6;
  refused(buffer.try_rw_host(), ErrorCode::violation);
  kept[1] = 7;
  refused(buffer.try_discard_host(), ErrorCode::violation);
  EXPECT_TRUE(buffer.try_discard_host());
}

TEST_F(UnifiedChecks, FindItWhateverTheNextAccessIs) {
  UnifiedBuffer<int> buffer = checked(100);
  buffer.sync_to_device();
  int* const kept = buffer.rw_host().data();
  const auto write = [&] {
    std::ranges::fill(buffer.rw_host(), 1);
    buffer.sync_to_device();
    kept[3] = 9;
  };
  write();
  refused(buffer.try_load_host(3), ErrorCode::violation);
  write();
  refused(buffer.try_store_host(4, 2), ErrorCode::violation);
  write();
  refused(buffer.try_fill(2, s), ErrorCode::violation);
  write();
  const Kernel kernel = Kernel::from_function(device, "look", [](View<const int>) {});
  refused(kernel.try_launch(s, LaunchSize{}, in(buffer)), ErrorCode::violation);
  EXPECT_TRUE(kernel.try_launch(s, LaunchSize{}, in(buffer)));
}

TEST_F(UnifiedChecks, FindItInMemoryThatCannotBeGuarded) {
  std::vector<int> mine(100, 1);
  UnifiedBuffer<int> buffer =
      UnifiedBuffer<int>::adopt_host(mine, {}, {.device = device, .checked = true, .guard = true});
  std::ranges::fill(buffer.discard_host(), 1);
  EXPECT_FALSE(buffer.is_guarded());
  mine[3] = 9;
  refused(buffer.try_read_host(), ErrorCode::violation);
}

TEST_F(UnifiedChecks, LetADeviceWriteWhatItShares) {
  const Device host = open_device("host");
  const Stream own(host);
  UnifiedBuffer<int> buffer(Shape{100}, {.device = host, .checked = true});
  std::ranges::fill(buffer.discard_host(), 1);
  write_on_device(buffer, own, 2);
  buffer.drop_device();
  EXPECT_EQ(buffer.read_host()[99], 2);
}

TEST_F(UnifiedChecks, SpoilWhatALaunchOrAFillMadeStale) {
  UnifiedBuffer<int> buffer = checked(100);
  const auto* const kept = reinterpret_cast<const unsigned char*>(buffer.rw_host().data());
  const Kernel kernel = Kernel::from_function(device, "clear", [](View<int> values) {
    for (int& value : values) value = 0;
  });
  buffer.sync_to_device();
  kernel.launch(s, LaunchSize{}, inout(buffer));
  EXPECT_EQ(kept[399], 0xCB);
  buffer.sync_to_host();
  EXPECT_EQ(kept[399], 0);
  buffer.fill(1, s);
  EXPECT_EQ(kept[399], 0xCB);
  buffer.sync_to_host();
  {
    const DeviceLease<const int> lease = buffer.rw_device(s).downgrade();
    EXPECT_EQ(kept[399], 0xCB);
  }
  EXPECT_EQ(buffer.load_host(99), 1);
}

TEST_F(UnifiedChecks, LetEverybodyWriteWhoSaysSo) {
  UnifiedBuffer<int> buffer = checked(1000);
  int* const kept = buffer.rw_host().data();
  kept[3] = 5;
  buffer.mark_host_dirty();
  EXPECT_EQ(buffer.read_host()[3], 5);
  buffer.store_host(4, 6);
  EXPECT_EQ(buffer.read_host()[4], 6);
  buffer.fill(7);
  EXPECT_EQ(buffer.read_host()[999], 7);
  write_on_device(buffer, s, 8);
  EXPECT_EQ(buffer.read_host()[5], 8);
  write_on_device(buffer.slice(10, 10), s, 9);
  buffer.prefetch_host();
  buffer.synchronize();
  EXPECT_EQ(buffer.read_host()[19], 9);
  {
    UntrackedLease<int> escaped = buffer.export_host();
    EXPECT_TRUE(buffer.try_read_host());
    escaped.data()[0] = 1;
    EXPECT_TRUE(buffer.try_read_host());
    escaped.data()[1] = 1;
  }
  EXPECT_EQ(buffer.read_host()[1], 1);
  buffer.resize_keep(2000);
  std::ranges::fill(buffer.slice(1000, 1000).discard_host(), 2);
  EXPECT_EQ(buffer.read_host()[1999], 2);
  buffer.drop_host();
  EXPECT_EQ(buffer.read_host()[0], 1);
}

TEST_F(UnifiedChecks, LetCopiesArriveInMemoryThatCouldNotBePoisoned) {
  UnifiedBuffer<int> buffer = checked(100);
  Gate gate;
  gate.hold(s);
  buffer.prefetch(s);  // reads the host's copy until the gate opens
  write_on_device(buffer, s, 2);
  gate.open();
  buffer.prefetch_host();
  buffer.synchronize();
  EXPECT_EQ(buffer.read_host()[99], 2);
}

TEST_F(UnifiedChecks, FindWritesThroughAnEscapedPointerThatIsClosed) {
  UnifiedBuffer<int> buffer = checked(100);
  UntrackedLease<int> escaped = buffer.export_host();
  int* const kept = escaped.data();
  kept[0] = 2;
  escaped.close();
  EXPECT_TRUE(buffer.try_read_host());
  kept[0] = 3;
  refused(buffer.try_read_host(), ErrorCode::violation);
}

TEST_F(UnifiedChecks, SpoilNothingThatSomebodyReads) {
  UnifiedBuffer<int> buffer = checked(100);
  UntrackedLease<int> escaped = buffer.export_device(s);
  const HostLease<const int> lease = buffer.read_host();
  EXPECT_EQ(lease[99], 1);
  buffer.synchronize();
  escaped.close();
  EXPECT_EQ(lease[99], 1);
}

TEST_F(UnifiedChecks, AreNotMadeUnasked) {
  UnifiedBuffer<int> buffer = make(100);
  std::ranges::fill(buffer.discard_host(), 1);
  buffer.rw_host().data()[0] = 1;
  int* const kept = buffer.rw_host().data();
  kept[0] = 5;
  EXPECT_TRUE(buffer.try_read_host());
}

TEST_F(UnifiedChecks, CompareCopiesThatShouldBeTheSame) {
  UnifiedBuffer<int> buffer = make(1000, {.compare = true});
  std::ranges::fill(buffer.discard_host(), 1);
  EXPECT_TRUE(buffer.try_compare());
  buffer.sync_to_device();
  EXPECT_TRUE(buffer.try_compare());
  EXPECT_TRUE(buffer.try_read_host());
  EXPECT_EQ(buffer.statistics().of(TransferReason::compare).bytes, 8000u);
  int* kept = nullptr;
  {
    const DeviceLease<int> lease = buffer.rw_device(s);
    kept = lease.data();
    s.fill(kept, 1000, 2);
  }
  EXPECT_TRUE(buffer.try_read_host());
  s.fill(kept + 10, 1, 3);
  s.synchronize();
  const Failure failure = refused(buffer.try_read_host(), ErrorCode::violation);
  EXPECT_EQ(failure.number("offset"), 40u);
  EXPECT_EQ(failure.number("a"), 2u);
  EXPECT_EQ(failure.number("b"), 3u);
  EXPECT_EQ(failure.string("place_b"), devices[0].spec());
  refused(buffer.try_compare(), ErrorCode::violation);
  EXPECT_TRUE(buffer.try_rw_host());
  EXPECT_TRUE(buffer.try_compare());
}

// --- Pages

class UnifiedGuard : public testing::Test {
 protected:
  UnifiedGuard() { testing::FLAGS_gtest_death_test_style = "threadsafe"; }

  /// A sanitizer's handler would end the process in its own way.
  static void forget_handlers() { signal(SIGSEGV, SIG_DFL); }
  struct Guarded {
    Device device = sim::open({});
    Stream stream{device};
    UnifiedBuffer<int> buffer{Shape{10000}, {.device = device, .tag = "grain", .guard = true}};
    volatile int* first = nullptr;

    Guarded() {
      HostLease<int> lease = buffer.discard_host();
      std::ranges::fill(lease, 1);
      first = lease.data();
    }
  };
};

const testing::KilledBySignal by_fault(SIGSEGV);

TEST_F(UnifiedGuard, EndsWhoWritesWithoutALease) {
  EXPECT_EXIT(
      {
        forget_handlers();
        Guarded guarded;
        guarded.first[5000] = 2;
      },
      by_fault,
      "unified buffer 'grain': the host touched byte 20000 of its copy without a lease.\n"
      "  the last lease was opened at .*unified_checks_test.cpp:[0-9]+\n"
      "  open one");
  EXPECT_EXIT(
      {
        forget_handlers();
        Guarded guarded;
        const auto lease = guarded.buffer.read_host();
        guarded.first[0] = lease[0];
      },
      by_fault, "touched byte 0 ");
}

TEST_F(UnifiedGuard, EndsWhoReadsWhatIsStale) {
  EXPECT_EXIT(
      {
        forget_handlers();
        Guarded guarded;
        static_cast<void>(guarded.first[0]);  // up to date, so reading is harmless
        static_cast<void>(guarded.buffer.rw_device(guarded.stream));
        static_cast<void>(guarded.first[0]);
      },
      by_fault, "touched byte 0 ");
}

TEST_F(UnifiedGuard, EndsWhoWritesOutsideOfTheRangeOfHisLease) {
  EXPECT_EXIT(
      {
        forget_handlers();
        Guarded guarded;
        const auto lease = guarded.buffer.slice(0, 10).rw_host();
        lease[9] = 2;
        guarded.first[9999] = 2;
      },
      by_fault, "touched byte 39996 ");
}

TEST_F(UnifiedGuard, LetsEverybodyElseDoHisWork) {
  Guarded guarded;
  UnifiedBuffer<int>& buffer = guarded.buffer;
  const Stream& s = guarded.stream;
  EXPECT_TRUE(buffer.is_guarded());
  EXPECT_FALSE(buffer.is_pinned());
  std::ranges::fill(buffer.slice(5, 100).rw_host(), 2);
  EXPECT_EQ(on_device(buffer, s)[104], 2);
  write_on_device(buffer.slice(50, 8000), s, 3);
  EXPECT_EQ(buffer.load_host(0), 1);
  EXPECT_EQ(buffer.load_host(8049), 3);
  buffer.store_host(1, 4);
  EXPECT_EQ(buffer.read_host()[1], 4);
  buffer.prefetch_host();
  buffer.slice(9000, 10).fill(5, s);
  EXPECT_EQ(buffer.read_host_async().get()[9009], 5);
  {
    UntrackedLease<int> escaped = buffer.export_host();
    EXPECT_EQ(on_device(buffer, s)[9009], 5);
    escaped.data()[3] = 6;
  }
  EXPECT_EQ(on_device(buffer, s)[3], 6);
  {
    const HostLease<const int> lease = buffer.rw_host().downgrade();
    EXPECT_EQ(lease[3], 6);
  }
  UnifiedBuffer<int> copy = buffer.clone(s);
  EXPECT_EQ(copy.read_host()[3], 6);
  buffer.resize_keep(20000, s);
  EXPECT_EQ(buffer.slice(0, 10).read_host()[3], 6);
  buffer.drop_device();
  EXPECT_EQ(buffer.load_host(9009), 5);
  std::ranges::fill(buffer.slice(10000, 10000).discard_host(), 0);
  Buffer released = std::move(buffer).release_host();
  released.rw_host<int>()[0] = 7;
}

TEST_F(UnifiedGuard, LetsThreadsWorkBesideEachOther) {
  const Device device = sim::open({});
  UnifiedBuffer<int> buffer(Shape{4096}, {.device = device, .checked = true, .guard = true});
  std::ranges::fill(buffer.discard_host(), 0);
  const auto work = [&](std::size_t first) {
    UnifiedView<int> part = buffer.slice(first, 1024);
    const Stream own(device);
    for (int i = 1; i < 100; i += 2) {
      write_on_device(part, own, i);
      for (int& value : part.rw_host()) value += 1;
      EXPECT_EQ(std::ranges::count(part.read_host(), i + 1), 1024);
      part.store_host(3, i);
      EXPECT_EQ(part.load_host(3), i);
    }
  };
  std::vector<test::Thread> threads;
  for (std::size_t i = 0; i < 4; ++i) threads.emplace_back(work, 1024 * i);
  for (test::Thread& one : threads) one.join();
  EXPECT_TRUE(buffer.is_guarded());
}

TEST_F(UnifiedGuard, LeavesMemoryAloneThatIsNotItsOwn) {
  const Device device = sim::open({});
  refused(UnifiedBuffer<int>::try_make(
              Shape{10000}, {.device = device, .pinned = Pinned::required, .guard = true}),
          ErrorCode::invalid_argument);
  std::vector<int> mine(100, 1);
  UnifiedBuffer<int> adopted =
      UnifiedBuffer<int>::adopt_host(mine, {}, {.device = device, .guard = true});
  static_cast<void>(adopted.rw_host());
  EXPECT_FALSE(adopted.is_guarded());
  mine[0] = 2;
  UnifiedBuffer<int> empty(Shape{0}, {.device = device, .guard = true});
  EXPECT_TRUE(empty.try_discard_host());
  EXPECT_TRUE(std::move(empty).try_release_host());
}

}  // namespace
}  // namespace tern::test
