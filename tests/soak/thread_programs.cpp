// Several threads on shared storages. Each has its own streams, which end; pools are trimmed at the
// same time; budgets apply. Operations of different threads on one storage must be atomic: all
// bytes of one operation are visible, or none.

#include <algorithm>
#include <array>
#include <atomic>
#include <exception>
#include <latch>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "soak/byte_model.hpp"
#include "soak/driver.hpp"
#include "tern/backends/catalog.hpp"
#include "tern/backends/sim.hpp"
#include "tern/buffer/array.hpp"
#include "tern/buffer/buffer.hpp"
#include "tern/buffer/copy.hpp"
#include "tern/buffer/foreign.hpp"
#include "tern/coherence/unified_buffer.hpp"
#include "tern/memory/budget_resource.hpp"
#include "tern/memory/default_resource.hpp"
#include "tern/memory/pool_resource.hpp"

namespace tern::soak {
namespace {

/// Threads that begin at one moment; the first exception of one of them is thrown by join().
class Crew {
 public:
  template <class Work>
  void start(std::size_t count, Work work) {
    threads_.reserve(count);
    const auto begin = std::make_shared<std::latch>(static_cast<std::ptrdiff_t>(count));
    for (std::size_t i = 0; i < count; ++i) {
      threads_.emplace_back([this, work, begin, i] {
        begin->arrive_and_wait();
        try {
          work(i);
        } catch (...) {
          const std::lock_guard lock(mutex_);
          if (!error_) error_ = std::current_exception();
        }
      });
    }
  }
  void join() {
    threads_.clear();
    if (error_) std::rethrow_exception(error_);
  }

 private:
  std::mutex mutex_;
  std::exception_ptr error_;  // guarded by mutex_
  std::vector<std::jthread> threads_;
};

class ThreadProgram {
 public:
  explicit ThreadProgram(const Program& program)
      : program_(program), random_(program.seed), device_(open(program, random_)) {
    budget_ = Budget::make("threads", BudgetLimit::bytes(std::size_t{64} << 20));
    PoolOptions options;
    options.thread_caches = random_.one_in(2);
    pool_ = std::make_shared<PoolResource>(device_, options);
    resource_ = std::make_shared<BudgetResource>(pool_, budget_);
    for (std::size_t i = 0; i < 1 + random_.below(2); ++i) {
      const std::size_t bytes = 64 + random_.below(random_.one_in(4) ? 200'000 : 4000);
      StorageOptions storage;
      if (random_.one_in(2)) storage.resource = resource_;
      shared_.emplace_back(device_, Shape{bytes}, DType::u8, storage);
      shared_.back().fill(Byte{1}, device_.default_stream());
      unified_.emplace_back(Shape{bytes},
                            UnifiedOptions{.device = device_, .resources = {resource_}});
      unified_.back().fill(Byte{1});
    }
    device_.synchronize();
  }

  void run() {
    const std::size_t threads = 2 + random_.below(2), rounds = 20 + random_.below(20);
    uses_pool_mostly_ = random_.one_in(3);
    program_.say("{} threads, {} rounds, {} storages{}", threads, rounds, shared_.size(),
                 uses_pool_mostly_ ? ", mostly the pool" : "");
    Crew crew;
    crew.start(threads, [&](std::size_t self) {
      if (uses_pool_mostly_) {
        self == 0 ? trim_often() : allocate_often(self);
      } else {
        work(self, rounds);
      }
    });
    crew.join();
    device_.synchronize();
    for (const Buffer& one : shared_) expect_uniform(one.to_vector<Byte>(), "at the end");
    for (const UnifiedBuffer<Byte>& one : unified_) expect_uniform(one.to_vector(), "at the end");
    shared_.clear();
    unified_.clear();
    device_.synchronize();
    static_cast<void>(reclaim_deferred());
    budget_->drain();
    require(budget_->charged_bytes() == 0, "{} bytes stay charged", budget_->charged_bytes());
    pool_->trim(0);
    require(pool_->check_invariants(), "the books of the pool are wrong");
    check_default_pools();
    if (device_.info().backend == "sim") {
      for (const Finding& found : sim::findings(device_)) {
        throw Mismatch("the checker reports a correct program: " + found.text());
      }
    }
  }

 private:
  /// Nothing of the program is left in them. What they keep for their streams grows with the sizes
  /// and streams that were used, up to its bound: it is given back, so that each program begins
  /// with empty pools and what is left over at the end is not hidden by it.
  void check_default_pools() const {
    device_.synchronize();
    for (const MemoryKind kind : {MemoryKind::device, MemoryKind::pinned, MemoryKind::managed}) {
      const Result<ResourceHandle> memory = try_default_resource(device_, kind);
      if (!memory) continue;
      (*memory)->trim(0);
      const Statistics left = (*memory)->statistics();
      require(left.live_bytes == 0 && left.reserved_bytes == 0,
              "the default pool of {} holds {} bytes after everything was dropped: {} live, {} "
              "pending",
              name(kind), left.reserved_bytes, left.live_bytes, left.pending_bytes);
    }
  }

  static Device open(const Program& program, Random& random) {
    if (program.device != "sim") return open_device(program.device);
    sim::Options options;
    options.seed = random.bits();
    options.mode = sim::Mode::collect;
    options.memory_bytes = std::size_t{256} << 20;
    constexpr std::array policies = {sim::Policy::mix, sim::Policy::lazy, sim::Policy::eager,
                                     sim::Policy::random};
    options.policy = random.any_of(policies);
    options.reuse = random.one_in(2) ? sim::Reuse::friendly : sim::Reuse::hostile;
    return sim::open(options);
  }

  void work(std::size_t self, std::size_t rounds) {
    Random random(program_.seed * 31 + self);
    Stream stream(device_);
    // Handles of its own: threads share the bytes, not the objects.
    std::vector<Buffer> shared = shared_;
    std::vector<UnifiedView<Byte>> unified(unified_.begin(), unified_.end());
    for (std::size_t i = 0; i < rounds; ++i) {
      Buffer& buffer = random.any_of(shared);
      const Byte value = any_byte(random);
      switch (random.below(10)) {
        case 0:
        case 1:
          buffer.fill(value, stream);
          break;
        case 2:
          expect_uniform(buffer.to_vector<Byte>(), "in a copy");
          break;
        case 3: {
          const std::vector<Byte> source(buffer.size_bytes(), value);
          buffer.copy_from(std::span(source));
          break;
        }
        case 4: {
          const Buffer copy = buffer.clone(stream);
          expect_uniform(copy.to_vector<Byte>(), "in a clone");
          break;
        }
        case 5:
          use_pool(random, stream, value);
          break;
        case 6:
          pool_->trim(random.one_in(4) ? std::size_t{4} << 20 : 0);
          if (random.one_in(2)) budget_->drain();
          break;
        case 7:
          stream = Stream(device_);
          break;
        case 8:
          use_unified(random.any_of(unified), random, stream, value);
          break;
        default:
          if (random.one_in(2)) stream.synchronize();
          static_cast<void>(reclaim_deferred());
      }
    }
  }

  /// Blocks of the pool itself, without arrays around them, beside a thread that trims.
  void allocate_often(std::size_t self) {
    Random random(program_.seed * 31 + self);
    const Stream stream(device_);
    std::vector<Block> held;
    for (int i = 0; i < 400; ++i) {
      if (held.size() < 8 && !random.one_in(3)) {
        const std::size_t bytes = 1 + random.below(random.one_in(8) ? 3 << 20 : 30'000);
        held.push_back(pool_->allocate({.bytes = bytes, .stream = stream}));
        if (random.one_in(4)) stream.fill(static_cast<Byte*>(held.back().address), 1, Byte{1});
      } else if (!held.empty()) {
        std::swap(random.any_of(held), held.back());
        pool_->deallocate(held.back(), stream);
        held.pop_back();
        if (random.one_in(4)) stream.synchronize();
      }
    }
    for (const Block& one : held) pool_->deallocate(one, stream);
  }
  void trim_often() {
    for (int i = 0; i < 100; ++i) {
      pool_->trim(0);
      std::this_thread::yield();
    }
  }

  void use_pool(Random& random, StreamRef stream, Byte value) {
    for (std::size_t i = 0; i < 1 + random.below(6); ++i) {
      // Large ones take whole pages, which trim() gives back.
      const std::size_t bytes = random.one_in(3) ? (std::size_t{1} << 20) + random.below(3 << 20)
                                                 : 1 + random.below(60'000);
      Array<Byte> own = Array<Byte>::uninitialized(resource_, bytes, {.stream = stream});
      if (random.one_in(4)) continue;
      Array<Byte> part = own.slice(0, std::min<std::size_t>(bytes, 1000));
      part.fill(value, stream);
      if (!random.one_in(3)) continue;
      const std::vector<Byte> seen = part.to_vector();
      require(std::ranges::all_of(seen, [&](Byte one) { return one == value; }),
              "a block of one thread has bytes of another");
    }
  }

  /// Leases of other threads may be open: then it is refused, and that is fine.
  void use_unified(UnifiedView<Byte>& view, Random& random, StreamRef stream, Byte value) {
    const LeaseWait wait = random.one_in(2) ? LeaseWait::forever() : LeaseWait::never();
    switch (random.below(4)) {
      case 0:
        if (Result<DeviceLease<Byte>> lease = view.try_discard_device(stream, wait)) {
          stream.fill(lease->data(), lease->size(), value);
        } else {
          expect_conflict(lease.failure());
        }
        break;
      case 1:
        if (Result<HostLease<Byte>> lease = view.try_discard_host(wait)) {
          std::ranges::fill(*lease, value);
        } else {
          expect_conflict(lease.failure());
        }
        break;
      default:
        if (Result<HostLease<const Byte>> lease = view.try_read_host(wait)) {
          expect_uniform(std::vector<Byte>(lease->begin(), lease->end()), "in a host lease");
        } else {
          expect_conflict(lease.failure());
        }
    }
  }
  static void expect_conflict(const Failure& failure) {
    require(failure.code() == ErrorCode::access_conflict, "a lease is refused: {}", failure.text());
  }

  static void expect_uniform(const std::vector<Byte>& seen, const char* where) {
    const auto other = std::ranges::find_if(seen, [&](Byte one) { return one != seen[0]; });
    require(other == seen.end(),
            "bytes of two operations are mixed {}: {:#04x} at 0, {:#04x} at {}", where, seen[0],
            other == seen.end() ? seen[0] : *other, other - seen.begin());
  }

  const Program& program_;
  Random random_;
  const Device device_;
  BudgetHandle budget_;
  std::shared_ptr<PoolResource> pool_;
  ResourceHandle resource_;
  bool uses_pool_mostly_ = false;
  std::vector<Buffer> shared_;
  std::vector<UnifiedBuffer<Byte>> unified_;
};

}  // namespace

void run_threads(const Program& program) { ThreadProgram(program).run(); }

}  // namespace tern::soak
