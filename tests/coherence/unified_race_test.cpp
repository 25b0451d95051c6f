// Who looks at a few bytes of a buffer while other threads make its copies go.

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <stop_token>
#include <thread>

#include "support/gate.hpp"
#include "support/pressed.hpp"
#include "support/temporary_folder.hpp"
#include "support/watchdog.hpp"
#include "tern/backends/catalog.hpp"
#include "tern/coherence/spill_file.hpp"
#include "tern/coherence/unified_buffer.hpp"
#include "tern/memory/direct_resource.hpp"

namespace tern::test {
namespace {

/// A device with room for one buffer.
class UnifiedRace : public Pressed {
 protected:
  UnifiedRace() : Pressed(1) {}

  /// Calls make_room() on another thread, again and again, while there is `work`.
  template <class MakeRoom, class Work>
  static void run_beside(MakeRoom make_room, Work work) {
    const std::jthread other([&](const std::stop_token& stop) {
      while (!stop.stop_requested()) make_room();
    });
    work();
  }

  /// With room for one buffer on the host, and a file for the others.
  [[nodiscard]] UnifiedOptions on_a_small_host() const {
    return {
        .device = device,
        .pinned = Pinned::never,
        .resources = {std::make_shared<BudgetResource>(
            std::make_shared<DirectResource>(open_device("host")), limited(pressed_bytes, "host"))},
        .spill = SpillFile::open(
            {.directory = folder / "", .limit_bytes = 64 * SpillFile::block_bytes})};
  }

  const TemporaryFolder folder;
  const Watchdog watchdog;
};

constexpr int rounds = 10000;

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
  const ResourceHandle host = std::make_shared<BudgetResource>(
      std::make_shared<DirectResource>(open_device("host")), limited(2 * pressed_bytes, "host"));
  UnifiedOptions small{.device = device, .pinned = Pinned::never, .resources = {resource, host}};
  small.spill =
      SpillFile::open({.directory = folder / "", .limit_bytes = 64 * SpillFile::block_bytes});
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
  std::thread evicts([&] { static_cast<void>(more.discard_host()); });
  let_come();
  std::thread stores([&] { buffer.store_host(3, -1); });
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
  const ResourceHandle host = std::make_shared<BudgetResource>(
      std::make_shared<DirectResource>(open_device("host")), limited(2 * pressed_bytes, "host"));
  UnifiedOptions small{.device = device, .pinned = Pinned::never, .resources = {resource, host}};
  small.spill =
      SpillFile::open({.directory = folder / "", .limit_bytes = 64 * SpillFile::block_bytes});
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
  std::thread evicts([&] { write_on_device(more, t, 2); });
  let_come();
  std::thread fills([&] {
    const Result<void> filled = buffer.try_fill(3, far);
    EXPECT_TRUE(filled || filled.failure().code() == ErrorCode::out_of_budget)
        << filled.failure().text();
  });
  let_come();
  gate.open();
  evicts.join();
  fills.join();
}

}  // namespace
}  // namespace tern::test
