// Sixteen threads on one pool below a tree of budgets: own and shared streams, blocks that others
// free, mixed tags. Every block is written by whoever has it, so that one given to two shows, to
// the test and to a thread sanitizer.
//
// On the host device, whose streams are threads too. LONG_TESTS=1 runs a million operations in
// each thread.

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "support/budgets.hpp"
#include "support/thorough.hpp"
#include "support/thread.hpp"
#include "tern/backends/catalog.hpp"
#include "tern/core/bytes.hpp"
#include "tern/device/stream.hpp"
#include "tern/memory/budget_resource.hpp"
#include "tern/memory/pool_resource.hpp"

namespace tern {
namespace {

constexpr std::size_t thread_count = 16;
constexpr std::size_t tenant_count = 4;
constexpr std::size_t shared_streams = 3;

struct Held {
  Block block;
  StreamRef stream;
  std::size_t tenant = 0;
  std::uint64_t word = 0;
};

/// Where others leave blocks for a thread to free.
struct Mailbox {
  std::mutex mutex;
  std::vector<Held> blocks;  // guarded by mutex
};

class Crowd {
 public:
  Crowd(const PoolOptions& options, std::size_t limit_bytes)
      : limit_bytes_(options.limit_bytes),
        pool_(std::make_shared<PoolResource>(device_, options)),
        root_(test::limited(limit_bytes, "root")) {
    for (std::size_t i = 0; i < tenant_count; ++i) {
      budgets_.push_back(test::limited(limit_bytes / 2, "tenant", root_));
      tenants_.push_back(std::make_unique<BudgetResource>(pool_, budgets_.back()));
    }
    for (std::size_t i = 0; i < shared_streams; ++i) shared_.emplace_back(device_);
  }

  void run(std::uint64_t operations) {
    std::vector<test::Thread> threads;
    for (std::size_t i = 0; i < thread_count; ++i) {
      threads.emplace_back([this, i, operations] { work(i, operations); });
    }
    std::atomic<bool> is_over = false;
    test::Thread watcher([&] {
      // Nobody is ever above a limit, whenever one looks.
      while (!is_over.load()) {
        expect_below_limits();
        std::this_thread::yield();
      }
    });
    for (test::Thread& thread : threads) thread.join();
    is_over = true;
    watcher.join();
    end();
  }

 private:
  void expect_below_limits() {
    if (root_->charged_bytes() > root_->limit_bytes()) ++above_;
    for (const BudgetHandle& budget : budgets_) {
      if (budget->charged_bytes() > budget->limit_bytes()) ++above_;
    }
    // Blocks that the budgets admit may need more than their limits, because free memory is in
    // partly used pages.
    const PoolStatistics now = pool_->pool_statistics();
    if (limit_bytes_ != 0 && now.held_bytes > limit_bytes_) ++above_;
    if (now.limit_bytes != 0 && now.held_bytes > 2 * now.limit_bytes) ++above_;
  }

  void work(std::size_t self, std::uint64_t operations) {
    std::mt19937_64 random(self + 1);
    const Stream own(device_);
    const Tag tags[] = {"weights", "sort.tmp", "columns"};
    std::vector<Held> held;
    for (std::uint64_t step = 0; step < operations; ++step) {
      const std::uint64_t dice = random() % 100;
      if (dice < 45 && held.size() < 64) {
        const std::size_t tenant = random() % tenant_count;
        Request request{.bytes = 8 + random() % (std::size_t{1} << (3 + random() % 17))};
        if (dice < 20) {
          request.stream = own;
        } else if (dice < 43) {
          request.stream = shared_[random() % shared_streams];
        }
        request.tag = tags[random() % 3];
        // Whoever never waits is refused now and then; whoever waits holds others up.
        if (random() % 8 != 0) request.wait = Wait::never;
        const Result<Block> block = tenants_[tenant]->try_allocate(request);
        if (!block) {
          ++refused_;
          continue;
        }
        Held one{*block, request.stream, tenant, random()};
        *static_cast<std::uint64_t*>(block->address) = one.word;
        held.push_back(one);
      } else if (dice < 90) {
        if (held.empty()) continue;
        std::swap(held[random() % held.size()], held.back());
        const Held one = held.back();
        held.pop_back();
        // A stream of one's own ends with its thread: what others free must not be on it.
        const bool is_own = one.stream == StreamRef(own);
        if (!is_own && random() % 3 == 0) {
          Mailbox& other = mailboxes_[random() % thread_count];
          const std::lock_guard lock(other.mutex);
          other.blocks.push_back(one);
        } else {
          free(one, is_own || random() % 2 == 0 ? one.stream : StreamRef(own));
        }
      } else if (dice < 97) {
        std::vector<Held> mine;
        {
          const std::lock_guard lock(mailboxes_[self].mutex);
          mine.swap(mailboxes_[self].blocks);
        }
        for (const Held& one : mine) free(one, one.stream.id() ? one.stream : StreamRef(own));
      } else if (dice < 99) {
        pool_->poll();
      } else if (random() % 16 == 0) {
        pool_->trim(random() % (8 * mib));
      }
    }
    // Whether they meet a limit on the way depends on how fast they are; here each of them does.
    for (const std::size_t tenant : {std::size_t{0}, tenant_count - 1}) {
      for (int i = 0; i < 256; ++i) {  // far above every limit
        const Request request{.bytes = 256 * kib, .stream = own, .wait = Wait::never};
        const Result<Block> block = tenants_[tenant]->try_allocate(request);
        if (!block) {
          ++refused_;
          break;
        }
        Held one{*block, request.stream, tenant, random()};
        *static_cast<std::uint64_t*>(block->address) = one.word;
        held.push_back(one);
      }
    }
    for (const Held& one : held) free(one, one.stream);
  }

  void free(const Held& one, StreamRef stream) {
    if (*static_cast<std::uint64_t*>(one.block.address) != one.word) ++overwritten_;
    *static_cast<std::uint64_t*>(one.block.address) = 0;
    if (!tenants_[one.tenant]->try_deallocate(one.block, stream)) ++failed_;
  }

  void end() {
    for (Mailbox& mailbox : mailboxes_) {
      for (const Held& one : mailbox.blocks) free(one, one.stream);
    }
    EXPECT_EQ(overwritten_.load(), 0u);
    EXPECT_EQ(failed_.load(), 0u);
    EXPECT_EQ(above_.load(), 0u);
    EXPECT_GE(refused_.load(), thread_count);
    device_.synchronize();
    for (const BudgetHandle& budget : budgets_) {
      budget->drain();
      EXPECT_EQ(budget->used_bytes(), 0u);
      EXPECT_EQ(budget->charged_bytes(), 0u);
      EXPECT_EQ(budget->pending_bytes(), 0u);
      EXPECT_LE(budget->peak_bytes(), budget->limit_bytes());
      EXPECT_TRUE(budget->used_by_tag().empty());
      test::expect_sound(*budget);
    }
    EXPECT_EQ(root_->used_bytes(), 0u);
    EXPECT_EQ(root_->charged_bytes(), 0u);
    EXPECT_GT(root_->peak_bytes(), 0u);
    EXPECT_LE(root_->peak_bytes(), root_->limit_bytes());
    for (const auto& tenant : tenants_) EXPECT_EQ(tenant->statistics().live_blocks, 0u);
    pool_->poll();
    pool_->trim(0);
    const PoolStatistics now = pool_->pool_statistics();
    EXPECT_EQ(now.live_bytes, 0u);
    EXPECT_EQ(now.requested_bytes, 0u);
    EXPECT_EQ(now.in_flight_bytes, 0u);
    EXPECT_EQ(now.cached_bytes, 0u);
    EXPECT_EQ(now.held_bytes, 0u);
    EXPECT_TRUE(pool_->check_invariants());
  }

  const Device device_ = open_device("host");
  const std::size_t limit_bytes_;
  const std::shared_ptr<PoolResource> pool_;
  const BudgetHandle root_;
  std::vector<BudgetHandle> budgets_;
  std::vector<std::unique_ptr<BudgetResource>> tenants_;
  std::vector<Stream> shared_;
  Mailbox mailboxes_[thread_count];
  std::atomic<std::uint64_t> overwritten_ = 0, failed_ = 0, above_ = 0, refused_ = 0;
};

std::uint64_t operations() {
  if (test::in_full()) return 1'000'000;
  return test::is_sanitized ? 2000 : 20'000;
}

TEST(PoolThreads, AccountCorrectlyOnPages) {
  Crowd({.limit_bytes = 24 * mib, .backing = PoolBacking::pages}, 16 * mib).run(operations());
}

TEST(PoolThreads, AccountCorrectlyOnSegments) {
  Crowd({.backing = PoolBacking::segments, .thread_caches = true}, 16 * mib).run(operations() / 2);
}

TEST(PoolThreads, AccountCorrectlyOnPinnedMemory) {
  Crowd({.kind = MemoryKind::pinned, .preference = PoolPreference::reuse}, 8 * mib)
      .run(operations() / 2);
}

/// Two threads free each block, each on its own stream, for so many rounds or 40 seconds: where other
/// programs use the processors, threads that wait for each other need a multiple of the time.
void race_to_free(PoolResource& pool, StreamRef home, std::array<StreamRef, 2> by, int rounds) {
  Block block;
  std::atomic<int> freed = 0;
  std::atomic<int> wrong = 0;
  std::atomic<int> arrivals = 0;
  std::atomic<int> last = rounds - 1;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(40);
  // Both threads spin, so that they go on at the same time. A thread that sleeps wakes too late.
  const auto meet = [&arrivals](int meetings) {
    ++arrivals;
    for (int spins = 1; arrivals < 2 * meetings; ++spins) {
      if (spins % 256 == 0) std::this_thread::yield();  // the other one may need this processor
    }
  };
  const auto race = [&](std::size_t self) {
    for (int round = 0; round <= last; ++round) {
      if (self == 0) {
        if (round % 1024 == 0 && std::chrono::steady_clock::now() > deadline) last = round;
        block = pool.allocate({.bytes = 1000, .stream = home});
        freed = 0;
      }
      meet(2 * round + 1);
      const Result<void> outcome = pool.try_deallocate(block, by[self]);
      if (outcome) {
        ++freed;
      } else if (outcome.failure().code() != ErrorCode::use_after_free) {
        ++wrong;
      }
      meet(2 * round + 2);
      if (self == 0 && freed != 1) ++wrong;
    }
  };
  test::Thread other(race, 1);
  race(0);
  other.join();
  EXPECT_EQ(wrong.load(), 0);
  EXPECT_EQ(pool.statistics().live_blocks, 0u);
  EXPECT_EQ(pool.statistics().frees, std::uint64_t(last + 1));
  EXPECT_TRUE(pool.check_invariants());
}

TEST(PoolThreads, FreeABlockOnceIfTwoTry) {
  const Device device = open_device("host");
  const Stream home(device), first(device), second(device);
  const int rounds = test::in_full() ? 2'000'000 : test::is_sanitized ? 1000 : 200'000;
  for (const std::array<StreamRef, 2> by :
       {std::array<StreamRef, 2>{home, home}, std::array<StreamRef, 2>{home, first},
        std::array<StreamRef, 2>{first, second}, std::array<StreamRef, 2>{StreamRef(), second}}) {
    PoolResource pool(device);
    // Holds the locks of the caches most of the time, so that both threads wait for the same one.
    std::atomic<bool> is_over = false;
    test::Thread holder([&] {
      while (!is_over) static_cast<void>(pool.statistics());
    });
    race_to_free(pool, home, by, rounds);
    is_over = true;
    holder.join();
  }
}

}  // namespace
}  // namespace tern
