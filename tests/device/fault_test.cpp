// Every backend call of a scenario fails once. The error is reported, a retry succeeds, and nothing
// is leaked.

#include <gtest/gtest.h>

#include "support/fake_backend.hpp"
#include "tern/core/bytes.hpp"
#include "tern/device/device.hpp"
#include "tern/device/event.hpp"
#include "tern/device/stream.hpp"

namespace tern {
namespace {

using test::FakeDevice;

/// Asks again if it is refused, and counts that.
class Persistent {
 public:
  template <class Ask>
  auto operator()(Ask ask) {
    auto result = ask();
    if (!result) {
      ++refusals_;
      EXPECT_EQ(result.failure().code(), ErrorCode::driver) << result.failure().text();
      EXPECT_EQ(result.failure().string("name"), "FAKE_FAILURE");
      result = ask();
    }
    return std::move(result).value();
  }
  [[nodiscard]] int refusals() const { return refusals_; }

 private:
  int refusals_ = 0;
};

/// One of everything. Returns how often it was refused.
int play(const Device& device) {
  Persistent persist;
  Stream first = persist([&] { return Stream::try_make(device); });
  Stream second = persist([&] { return Stream::try_make(device); });
  Event event = persist([&] { return Event::try_make(device); });
  Event start = persist([&] { return Event::try_make_timed(device); });

  auto* block = static_cast<std::byte*>(
      persist([&] { return device.try_allocate(MemoryKind::device, 1000); }));
  persist([&] { return first.try_record(start); });
  persist([&] { return first.try_fill(block, 1000, std::byte{1}); });
  const Mark mark = first.mark();
  persist([&] { return second.try_wait(mark); });
  persist([&] { return second.try_copy(block + 500, block, 500); });
  persist([&] { return second.try_record(event); });
  persist([&] { return first.try_wait(event); });
  persist([&] { return Device::try_is_done(mark); });
  persist([&] { return Device::try_wait(second.mark()); });
  persist([&] { return event.try_synchronize(); });
  persist([&] { return start.try_elapsed_ns(start); });

  void* ordered = persist([&] { return first.try_allocate(64); });
  persist([&] { return first.try_release(ordered); });

  StreamPool pool(device, 2);
  StreamLease lease = persist([&] { return pool.try_acquire(); });
  const Timeline timeline;
  persist([&] { return timeline.try_set(lease, 1); });
  persist([&] { return timeline.try_wait(1); });
  persist([&] { return lease->try_synchronize(); });

  const Mark last = second.mark();
  second = Stream();  // seals: where that fails it waits, and nobody is refused
  persist([&] { return Device::try_wait(last); });
  EXPECT_TRUE(Device::is_done(last));
  persist([&] { return first.try_is_idle(); });
  persist([&] { return device.try_synchronize(); });
  persist([&] { return device.try_release(block); });
  EXPECT_EQ(pool.lent(), 1u);
  return persist.refusals();
}

TEST(Faults, AtEachCallLoseNothingAndCanBeTriedAgain) {
  std::size_t calls = 0;
  {
    const FakeDevice calm;
    EXPECT_EQ(play(calm.device), 0);
    calls = calm.ledger->total();
  }
  ASSERT_GT(calls, 25u);
  std::size_t surfaced = 0;
  for (std::size_t index = 1; index <= calls; ++index) {
    SCOPED_TRACE("call " + std::to_string(index));
    auto fake = std::make_unique<FakeDevice>();
    const std::shared_ptr<test::Ledger> ledger = fake->ledger;
    ledger->fail_at(index);
    surfaced += static_cast<std::size_t>(play(fake->device));
    fake.reset();
    EXPECT_TRUE(ledger->has_closed());
    EXPECT_EQ(ledger->live_streams(), 0u);
    EXPECT_EQ(ledger->live_events(), 0u);
    EXPECT_EQ(ledger->violations(), 0u);
  }
  // How many there are depends on how far the streams got; some fail where nobody can be told.
  EXPECT_GE(surfaced, 20u);
}

}  // namespace
}  // namespace tern
