#include <gtest/gtest.h>

#include <set>

#include "support/fake_backend.hpp"
#include "support/gate.hpp"
#include "support/thread.hpp"
#include "tern/device/stream.hpp"

namespace tern {
namespace {

using test::Call;
using test::FakeDevice;
using test::Gate;

class StreamPoolTest : public testing::Test {
 protected:
  FakeDevice fake;
};

TEST_F(StreamPoolTest, LeasesSixteenStreamsAndFailsTheNext) {
  StreamPool pool(fake.device);
  EXPECT_EQ(pool.capacity(), 16u);
  std::vector<StreamLease> leases;
  std::set<StreamId> ids;
  for (int i = 0; i < 16; ++i) {
    leases.push_back(pool.acquire());
    ids.insert(leases.back()->id());
    EXPECT_NE(leases.back().get(), fake.device.default_stream());
  }
  EXPECT_EQ(ids.size(), 16u);
  EXPECT_EQ(pool.lent(), 16u);

  const Result<StreamLease> refused = pool.try_acquire();
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.failure().code(), ErrorCode::capacity);
  EXPECT_EQ(refused.failure().number("max"), 16u);
  EXPECT_EQ(refused.failure().string("device"), "fake:0");
  EXPECT_THROW(static_cast<void>(pool.acquire()), CapacityReached);
}

TEST_F(StreamPoolTest, LendsAReturnedStreamAgainUnderItsId) {
  StreamPool pool(fake.device, 1);
  StreamId id;
  {
    const StreamLease lease = pool.acquire();
    id = lease->id();
  }
  EXPECT_EQ(pool.lent(), 0u);
  EXPECT_EQ(pool.acquire()->id(), id);
  EXPECT_EQ(fake.ledger->count(Call::create_stream), 1u);
}

TEST_F(StreamPoolTest, MakesStreamsOnlyWhenTheyAreNeeded) {
  StreamPool pool(fake.device, 8);
  EXPECT_EQ(fake.ledger->count(Call::create_stream), 0u);
  for (int i = 0; i < 5; ++i) {
    const StreamLease one = pool.acquire();
    const StreamLease two = pool.acquire();
    EXPECT_EQ(pool.lent(), 2u);
  }
  EXPECT_EQ(fake.ledger->count(Call::create_stream), 2u);
}

TEST_F(StreamPoolTest, ContinuesBehindTheWorkOfTheLastBorrower) {
  StreamPool pool(fake.device, 1);
  Gate gate;
  gate.hold(pool.acquire());
  const StreamLease next = pool.acquire();
  EXPECT_FALSE(next->is_idle());
  gate.open();
  next->synchronize();
}

TEST_F(StreamPoolTest, FindsItsStreamsByIdLentOrNot) {
  StreamPool pool(fake.device, 2);
  StreamId id;
  {
    const StreamLease lease = pool.acquire();
    id = lease->id();
    EXPECT_EQ(*pool.try_find(id), lease.get());
  }
  EXPECT_EQ(pool.try_find(id)->id(), id);

  const Stream foreign(fake.device);
  for (const StreamId unknown : {foreign.id(), fake.device.default_stream().id(), StreamId()}) {
    const Result<StreamRef> refused = pool.try_find(unknown);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.failure().code(), ErrorCode::stream_misuse);
    EXPECT_EQ(refused.failure().number("stream"), unknown.number());
  }
}

TEST_F(StreamPoolTest, MayEndBeforeItsLeases) {
  StreamLease lease;
  {
    StreamPool pool(fake.device, 2);
    lease = pool.acquire();
    static_cast<void>(pool.acquire());
  }
  EXPECT_TRUE(lease->try_synchronize());
  EXPECT_EQ(fake.ledger->live_streams(), 2u);
  lease = StreamLease();
  EXPECT_EQ(fake.ledger->live_streams(), 0u);
}

TEST_F(StreamPoolTest, GivesBackALeaseThatIsReplacedOrMoved) {
  StreamPool pool(fake.device, 2);
  StreamLease a = pool.acquire();
  StreamLease b(std::move(a));
  EXPECT_EQ(pool.lent(), 1u);
  EXPECT_EQ(a.get(), StreamRef());
  b = pool.acquire();
  EXPECT_EQ(pool.lent(), 1u);
  StreamLease& same = b;
  b = std::move(same);
  EXPECT_EQ(pool.lent(), 1u);
  b = StreamLease();
  EXPECT_EQ(pool.lent(), 0u);
}

TEST_F(StreamPoolTest, KeepsItsDeviceOpenAndLendsNothingWhenAStreamCannotBeMade) {
  StreamPool pool(std::exchange(fake.device, Device()), 1);
  EXPECT_FALSE(fake.ledger->has_closed());
  fake.ledger->fail_next(Call::create_stream);
  const Result<StreamLease> refused = pool.try_acquire();
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.failure().code(), ErrorCode::driver);
  EXPECT_EQ(pool.lent(), 0u);
  EXPECT_TRUE(pool.try_acquire());
}

TEST_F(StreamPoolTest, RefusesAnImpossibleCapacityAndNoDevice) {
  EXPECT_EQ(StreamPool(fake.device, 1024).capacity(), 1024u);
  EXPECT_THROW(StreamPool(fake.device, 1025), InvalidArgument);
  EXPECT_THROW(StreamPool(fake.device, static_cast<std::size_t>(-1)), InvalidArgument);
  EXPECT_THROW(StreamPool(Device(), 1), InvalidDevice);
}

TEST_F(StreamPoolTest, NeverLendsOneStreamTwiceToEightThreads) {
  StreamPool pool(fake.device, 4);
  std::array<std::atomic<int>, 8> users = {};
  std::atomic<int> refusals = 0, shared = 0;
  std::vector<test::Thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      for (int k = 0; k < 500; ++k) {
        const Result<StreamLease> lease = pool.try_acquire();
        if (!lease) {
          ++refusals;
          continue;
        }
        auto& user = users[lease->get().id().number() % users.size()];
        if (user.fetch_add(1) != 0) ++shared;
        user.fetch_sub(1);
      }
    });
  }
  for (test::Thread& thread : threads) thread.join();
  EXPECT_EQ(shared, 0);
  EXPECT_EQ(pool.lent(), 0u);
  EXPECT_LE(fake.ledger->live_streams(), 4u);
}

}  // namespace
}  // namespace tern
