// Accesses to a few bytes of a buffer while other threads drop or evict its copies.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <memory>
#include <random>
#include <stop_token>
#include <thread>
#include <utility>
#include <vector>

#include "support/allocation_counter.hpp"
#include "support/gate.hpp"
#include "support/pressed.hpp"
#include "support/temporary_folder.hpp"
#include "support/thorough.hpp"
#include "support/thread.hpp"
#include "support/watchdog.hpp"
#include "tern/backends/catalog.hpp"
#include "tern/coherence/spill_file.hpp"
#include "tern/coherence/unified_buffer.hpp"
#include "tern/memory/driver_resource.hpp"
#include "tern/trace/finding.hpp"

namespace tern::test {
namespace {

/// A device with room for one buffer.
class UnifiedRace : public Pressed {
 protected:
  UnifiedRace() : Pressed(1) {}

  /// Calls make_room() on another thread, again and again, while there is `work`.
  template <class MakeRoom, class Work>
  static void run_beside(MakeRoom make_room, Work work) {
    const test::Thread other([&](const std::stop_token& stop) {
      while (!stop.stop_requested()) make_room();
    });
    work();
  }

  /// With room for so many buffers on the host, and a file for the others.
  [[nodiscard]] UnifiedOptions on_a_small_host(std::size_t buffers = 1) const {
    return {.device = device,
            .pinned = Pinned::never,
            .resources = {std::make_shared<BudgetResource>(
                std::make_shared<DirectResource>(open_device("host")),
                limited(buffers * pressed_bytes, "host"))},
            .spill = SpillFile::open(
                {.directory = folder / "", .limit_bytes = 64 * SpillFile::block_bytes})};
  }

  const TemporaryFolder folder;
  const Watchdog watchdog;
};

const int rounds = races(10'000);

TEST_F(UnifiedRace, ElementsOfACopyThatGoesHome) {
  UnifiedBuffer<int> buffer = dirty(0), more = pressed("more");
  run_beside(
      [&] {
        const Result<DeviceLease<int>> lease = more.try_discard_device(t);
        if (lease) t.fill(lease->data(), lease->size(), 1);
      },
      [&] {
        for (int i = 1; i <= rounds; ++i) {
          // Refused while the other thread has the room.
          static_cast<void>(buffer.try_rw_device(s));
          buffer.store_host(3, i);
          ASSERT_EQ(buffer.load_host(3), i);
        }
      });
}

TEST_F(UnifiedRace, ElementsOfACopyThatGoesToAFile) {
  const UnifiedOptions small = on_a_small_host();
  UnifiedBuffer<int> buffer(Shape{pressed_ints}, small), more(Shape{pressed_ints}, small);
  buffer.copy_from(counting(pressed_ints));
  run_beside([&] { static_cast<void>(more.try_discard_host()); },
             [&] {
               for (int i = 1; i <= rounds; ++i) {
                 if (!buffer.try_store_host(3, i)) continue;
                 const Result<int> got = buffer.try_load_host(3);
                 ASSERT_TRUE(!got || *got == i) << *got << " instead of " << i;
               }
             });
}

TEST_F(UnifiedRace, ADirectoryThatIsCheckedWhileTheCopyGoesToAFile) {
  const UnifiedOptions small = on_a_small_host();
  UnifiedBuffer<int> buffer(Shape{pressed_ints}, small), more(Shape{pressed_ints}, small);
  buffer.copy_from(counting(pressed_ints));
  run_beside(
      [&] {
        static_cast<void>(more.try_discard_host());
        static_cast<void>(buffer.try_rw_host());
      },
      [&] {
        for (int i = 0; i < 10 * rounds; ++i) ASSERT_TRUE(buffer.check());
      });
}

TEST_F(UnifiedRace, AnElementThatIsStoredWhileTheCopyGoesToAFile) {
  UnifiedOptions small = on_a_small_host(2);
  small.resources.push_back(resource);
  UnifiedBuffer<int> buffer(Shape{pressed_ints}, small), last(Shape{pressed_ints}, small),
      more(Shape{pressed_ints}, small);
  buffer.copy_from(counting(pressed_ints));
  last.copy_from(counting(pressed_ints));
  // Its last reader has not come yet, so it goes when the gate opens.
  Gate gate;
  gate.hold(s);
  buffer.prefetch(s);
  buffer.drop_device();
  // Both come to where they wait for it. (Should they not, nothing is shown.)
  const auto let_come = [] { std::this_thread::sleep_for(std::chrono::milliseconds(20)); };
  test::Thread evicts([&] { static_cast<void>(more.discard_host()); });
  let_come();
  test::Thread stores([&] { buffer.store_host(3, -1); });
  let_come();
  gate.open();
  evicts.join();
  stores.join();
  EXPECT_EQ(buffer.load_host(3), -1);
}

TEST_F(UnifiedRace, ComparedCopiesThatGo) {
  UnifiedOptions compared = options();
  compared.compare = true;
  UnifiedBuffer<int> buffer(Shape{pressed_ints}, compared), more = pressed("more");
  buffer.copy_from(counting(pressed_ints));
  more.copy_from(counting(pressed_ints));
  run_beside([&] { static_cast<void>(more.try_prefetch(t)); },
             [&] {
               for (int i = 1; i <= rounds; ++i) {
                 static_cast<void>(buffer.try_prefetch(s));
                 ASSERT_EQ(buffer.read_host()[3], 4);
               }
             });
}

TEST_F(UnifiedRace, AFillByAStreamOfAnotherDeviceWhileTheCopyGoes) {
  UnifiedOptions small = on_a_small_host(2);
  small.resources.push_back(resource);
  small.checked = true;
  UnifiedBuffer<int> other(Shape{pressed_ints}, small), last(Shape{pressed_ints}, small),
      buffer(Shape{pressed_ints}, small), more(Shape{pressed_ints}, small);
  other.copy_from(counting(pressed_ints));
  last.copy_from(counting(pressed_ints));
  write_on_device(buffer, s, 1);
  // It goes home when the first has gone to the file, and that waits for the gate.
  const Stream far(devices[1]), held(devices[1]);
  Gate gate;
  gate.hold(held);
  other.prefetch(held);
  other.drop_device(devices[1]);
  const auto let_come = [] { std::this_thread::sleep_for(std::chrono::milliseconds(20)); };
  test::Thread evicts([&] { write_on_device(more, t, 2); });
  let_come();
  test::Thread fills([&] {
    const Result<void> filled = buffer.try_fill(3, far);
    EXPECT_TRUE(filled || filled.failure().code() == ErrorCode::out_of_budget)
        << filled.failure().text();
  });
  let_come();
  gate.open();
  evicts.join();
  fills.join();
}

TEST_F(UnifiedRace, AFileThatIsComparedWhileItIsDropped) {
  const UnifiedOptions small = on_a_small_host();
  UnifiedBuffer<int> buffer(Shape{pressed_ints}, small), more(Shape{pressed_ints}, small);
  run_beside(
      [&] {
        static_cast<void>(buffer.try_compare());
        std::this_thread::yield();
      },
      [&] {
        for (int i = 1; i <= rounds / 10; ++i) {
          while (!buffer.try_copy_from(std::vector<int>(pressed_ints, i))) {
          }
          while (!more.try_discard_host()) {
          }
          if (buffer.try_drop_host(Drop::discard)) continue;
          // Somebody compares it: it is still there.
          ASSERT_TRUE(buffer.check()) << i;
          ASSERT_EQ(buffer.load_host(3), i);
        }
      });
}

TEST_F(UnifiedRace, ADirtyMarkOfAStreamThatEnds) {
  // Every call that moves bytes of a guarded buffer waits for them, and others for it.
  UnifiedBuffer<int> buffer = make(64 * pressed_ints, {.guard = true});
  buffer.copy_from(counting(buffer.size()));
  const std::size_t half = buffer.size() / 2;
  UnifiedView<int> front = buffer.slice(0, half), back = buffer.slice(half, half);
  write_on_device(front, s, 3);
  int* const there = const_cast<int*>(back.read_device(t).data());
  Gate first, second;
  first.hold(s);
  static_cast<void>(front.rw_device(s));
  Stream writer(device);
  second.hold(writer);
  writer.fill(there, half, 9);
  const auto let_come = [] { std::this_thread::sleep_for(std::chrono::milliseconds(20)); };
  test::Thread moves([&] { front.prefetch_host(); });
  let_come();
  test::Thread marks([&, stream = StreamRef(writer)] { back.mark_device_dirty(stream); });
  let_come();
  writer = Stream();
  first.open();
  moves.join();
  marks.join();
  const test::Thread opens([&] {
    let_come();
    second.open();
  });
  EXPECT_EQ(back.read_host()[7], 9);
}

TEST_F(UnifiedRace, NobodyHasWhatIsEscapedMeanwhile) {
  UnifiedBuffer<int> buffer = make(pressed_ints);
  buffer.copy_from(counting(pressed_ints));
  run_beside([&] { static_cast<void>(buffer.try_prefetch(t)); },
             [&] {
               for (int had = 0; had < rounds;) {
                 const Result<UntrackedLease<int>> escape = buffer.try_export_host();
                 if (!escape) continue;
                 ++had;
                 // What its holder writes, and when, nobody knows.
                 ASSERT_EQ(buffer.valid_places(), std::vector<Place>{Place::host()});
               }
             });
}

TEST_F(UnifiedRace, ReadersOfWhatIsEscapedTakeTurns) {
  UnifiedBuffer<int> buffer = make(pressed_ints);
  write_on_device(buffer, s, 7);
  const UntrackedLease<int> escape = buffer.export_device(s);
  const auto read = [&] {
    const Result<HostLease<const int>> lease = std::as_const(buffer).try_read_host();
    if (lease) {
      EXPECT_EQ((*lease)[3], 7);
    } else {
      EXPECT_EQ(lease.failure().code(), ErrorCode::access_conflict) << lease.failure().text();
    }
  };
  run_beside(read, [&] {
    for (int i = 0; i < rounds && !HasFailure(); ++i) read();
  });
}

/// Buffers of one thread, of which each has one value throughout, and streams that come and go.
class RandomUser {
 public:
  RandomUser(const UnifiedOptions& options, unsigned seed) : options_(options), random_(seed) {
    for (Stream& stream : streams_) stream = Stream(options.device);
    for (Known& known : buffers_) begin(known);
  }

  /// Refusals for want of room are part of it, since another thread has some.
  void step() {
    Known& known = buffers_[random_() % buffers_.size()];
    Stream& stream = streams_[random_() % streams_.size()];
    const int value = static_cast<int>(random_() % 1000);
    switch (random_() % 8) {
      case 0:
        write(known, stream, value, known.buffer.try_discard_device(stream));
        break;
      case 1:
        write(known, stream, value, known.buffer.try_rw_device(stream));
        break;
      case 2:
        check(known, known.buffer.try_read_host());
        break;
      case 3:
        expect_room(known.buffer.try_prefetch(stream));
        break;
      case 4:
        expect_room(known.buffer.try_drop_device(options_.device));
        break;
      case 5:
        if (const Result<UnifiedBuffer<int>> copy = known.buffer.try_clone(stream)) {
          check(known, copy->try_read_host());
        } else {
          expect_room(copy);
        }
        break;
      case 6:
        begin(known);
        break;
      default:
        stream = Stream();
        stream = Stream(options_.device);
    }
  }

 private:
  struct Known {
    UnifiedBuffer<int> buffer;
    int value = 0;
  };

  void begin(Known& known) {
    known = {UnifiedBuffer<int>(Shape{pressed_ints}, options_)};
    std::ranges::fill(known.buffer.discard_host(), known.value);
  }
  template <class T>
  static void expect_room(const Result<T>& result) {
    if (result) return;
    const ErrorCode code = result.failure().code();
    EXPECT_TRUE(code == ErrorCode::out_of_budget || code == ErrorCode::out_of_memory)
        << result.failure().text();
  }
  static void write(Known& known, StreamRef stream, int value, Result<DeviceLease<int>> lease) {
    expect_room(lease);
    if (!lease) return;
    const Result<void> filled = stream.try_fill(lease->data(), lease->size(), value);
    EXPECT_TRUE(filled) << filled.failure().text();
    known.value = value;
  }
  static void check(const Known& known, Result<HostLease<const int>> lease) {
    expect_room(lease);
    if (!lease) return;
    EXPECT_EQ(std::ranges::count(*lease, known.value), std::ssize(*lease));
  }

  UnifiedOptions options_;
  std::mt19937 random_;
  std::array<Stream, 3> streams_;
  std::array<Known, 4> buffers_;
};

TEST_F(UnifiedRace, StreamsThatEndWhileOthersMakeRoom) {
  const ResourceHandle some = std::make_shared<BudgetResource>(pool, limited(5 * pressed_bytes));
  UnifiedOptions users = options();
  users.resources = {some};
  RandomUser one(users, 1), two(users, 2);
  // Findings would come in every round from then on.
  const auto run = [](RandomUser& user) {
    for (int i = 0; i < rounds && !HasFailure(); ++i) user.step();
  };
  test::Thread other([&] { run(two); });
  run(one);
  other.join();
  const std::vector<Finding> findings = sim::findings(device);
  EXPECT_TRUE(findings.empty()) << findings.size() << ", first " << findings.front().text();
}

/// Two threads that resize a buffer at the same time as this one uses it.
class UnifiedResizeRace : public UnifiedRace {
 protected:
  template <class Work>
  void run_beside_resizes(UnifiedBuffer<int>& buffer, Work work) {
    const auto resize = [&](std::size_t count) {
      return [&buffer, count](const std::stop_token& stop) {
        while (!stop.stop_requested()) {
          static_cast<void>(buffer.try_resize_discard(count));
          static_cast<void>(buffer.try_fill(7));
          std::this_thread::yield();  // who has a lease meanwhile keeps it
          static_cast<void>(buffer.try_resize_discard(0));
        }
      };
    };
    const test::Thread one(resize(pressed_ints)), other(resize(2 * pressed_ints));
    work();
  }
};

TEST_F(UnifiedResizeRace, NobodyResizesWhatIsLeased) {
  UnifiedBuffer<int> buffer = make(0);
  run_beside_resizes(buffer, [&] {
    for (int had = 0; had < rounds / 5;) {
      const std::size_t count = buffer.size();
      const Result<UnifiedView<int>> last = buffer.try_slice(
          count - std::min<std::size_t>(count, 8), std::min<std::size_t>(count, 8));
      if (!last) continue;
      const Result<HostLease<int>> lease = UnifiedView<int>(*last).try_discard_host();
      if (!lease || lease->empty()) continue;
      ++had;
      const std::size_t leased = buffer.size();
      for (int k = 0; k < 3; ++k) std::this_thread::yield();
      ASSERT_EQ(buffer.size(), leased);
    }
  });
}

TEST_F(UnifiedResizeRace, AnEmptyBufferIsNotResizedInTheMiddleOfAClone) {
  if (!HeapExhausted::is_possible()) GTEST_SKIP() << "operator new is not ours";
  bool was_refused = false;
  // Another thread resizes it at each allocation that a clone makes.
  for (std::size_t at = 0;; ++at) {
    UnifiedBuffer<int> buffer = make(0);
    const auto resize = [&] {
      Thread([&] {
        const Result<void> resized = buffer.try_resize_discard(10);
        was_refused |= !resized && resized.failure().code() == ErrorCode::access_conflict;
        if (resized) static_cast<void>(buffer.try_fill(7));
      }).join();
    };
    bool is_over = false;
    std::size_t size = 0;
    bool is_sound = false;
    {
      const CallAtAllocation call(at, resize);
      const Result<UnifiedBuffer<int>> same = buffer.try_clone(s);
      is_over = !call.has_called();
      is_sound = same && same->check();
      size = same ? same->size() : 0;
    }
    ASSERT_TRUE(is_sound) << at;
    ASSERT_EQ(size, buffer.size()) << at;
    if (is_over) break;
  }
  EXPECT_TRUE(was_refused);
}

TEST_F(UnifiedResizeRace, ACloneIsOfOneSize) {
  UnifiedBuffer<int> buffer = make(0);
  run_beside_resizes(buffer, [&] {
    for (int had = 0; had < rounds / 5;) {
      const Result<UnifiedBuffer<int>> same = buffer.try_clone(s);
      if (!same) {
        ASSERT_EQ(same.failure().code(), ErrorCode::access_conflict) << same.failure().text();
        continue;
      }
      ASSERT_TRUE(same->check());
      const Result<HostLease<const int>> all = same->try_read_host();
      if (!all) {
        ASSERT_EQ(all.failure().code(), ErrorCode::never_written) << all.failure().text();
        continue;
      }
      ASSERT_EQ(std::ranges::count(*all, 7), std::ssize(*all));
      ++had;
    }
  });
}

}  // namespace
}  // namespace tern::test
