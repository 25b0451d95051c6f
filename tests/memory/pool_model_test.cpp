// Random programs on a pool, compared with a model after each operation: what is live and where,
// the sums, the errors. The model is a map of addresses and a few integers.
//
// The pools are small, so that every rung of the ladder is used, and the sum of what happened shows
// that it was. LONG_TESTS=1 in the environment runs ten million operations.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "memory/block_table.hpp"
#include "memory/pool/size_class.hpp"
#include "support/thorough.hpp"
#include "tern/backends/catalog.hpp"
#include "tern/backends/sim.hpp"
#include "tern/core/bytes.hpp"
#include "tern/device/stream.hpp"
#include "tern/memory/pool_resource.hpp"

namespace tern {
namespace {

enum class Ground : std::uint8_t { checked, unchecked, host };

struct ModelWorld {
  Ground ground = Ground::checked;
  sim::Policy policy = sim::Policy::lazy;
  PoolOptions options = {};
  /// Of the largest request that is usual: 2 to this.
  unsigned size_bits = 22;
  std::size_t max_limit = 16 * mib;
  std::size_t memory = 64 * mib;
  std::uint64_t operations = 0;
  std::uint64_t operations_per_look = 1;
  std::uint64_t seed = 1;
};

std::string text_of(const ModelWorld& world) {
  return fmt::format("ground {} policy {} kind {} backing {} preference {} size bits {} seed {}",
                     int(world.ground), int(world.policy), name(world.options.kind),
                     int(world.options.backing), int(world.options.preference), world.size_bits,
                     world.seed);
}

constexpr std::size_t boundaries[] = {1,
                                      255,
                                      256,
                                      257,
                                      2047,
                                      2048,
                                      2049,
                                      2304,
                                      2305,
                                      4096,
                                      64 * kib + 1,
                                      1 * mib - 256,
                                      1 * mib - 1,
                                      1 * mib,
                                      1 * mib + 1,
                                      2 * mib - 1,
                                      2 * mib,
                                      2 * mib + 1,
                                      4 * mib,
                                      16 * mib - 100,
                                      16 * mib,
                                      16 * mib + 1,
                                      64 * mib,
                                      std::size_t{1} << 31,
                                      SIZE_MAX / 2,
                                      SIZE_MAX - 255,
                                      SIZE_MAX};

class ModelProgram {
 public:
  explicit ModelProgram(const ModelWorld& world)
      : world_(world),
        random_(world.seed),
        device_(world.ground == Ground::host
                    ? open_device("host")
                    : sim::open({.seed = world.seed,
                                 .policy = world.policy,
                                 .memory_bytes = world.memory,
                                 .check = world.ground == Ground::checked})),
        pool_(device_, world.options),
        limit_(world.options.limit_bytes),
        has_pages_(world.options.kind == MemoryKind::device &&
                   world.options.backing != PoolBacking::segments) {
    for (int i = 0; i < 4; ++i) streams_.emplace_back(device_);
  }

  void run() {
    for (std::uint64_t step = 1; step <= world_.operations; ++step) {
      held_before_ = pool_.pool_statistics().held_bytes;
      operation();
      compare();
      if (step % world_.operations_per_look == 0) look();
      if (testing::Test::HasFatalFailure()) {
        ADD_FAILURE() << text_of(world_) << ", operation " << step;
        return;
      }
    }
    while (!live_.empty()) free_one();
    compare();
    device_.synchronize();
    pool_.poll();
    pool_.trim(0);
    compare();
    look();
    const PoolStatistics end = pool_.pool_statistics();
    EXPECT_EQ(end.held_bytes, 0u) << text_of(world_);
    EXPECT_EQ(pool_.statistics().live_blocks, 0u);
  }

  [[nodiscard]] PoolStatistics statistics() const { return pool_.pool_statistics(); }

 private:
  /// Who may use a block without a wait: the host, a stream, or one that has ended.
  struct Live {
    Block block;
    std::size_t requested = 0;
    StreamRef user = {};
    Mark last = {};  // of a user that has ended
  };

  std::uint64_t roll(std::uint64_t sides) { return random_() % sides; }
  bool is_one_in(std::uint64_t sides) { return roll(sides) == 0; }
  [[nodiscard]] bool is_simulated() const { return world_.ground != Ground::host; }
  /// There is more memory than the pool may ever have, and there are addresses.
  [[nodiscard]] bool is_roomy() const { return world_.memory >= 4 * world_.max_limit; }
  Stream& some_stream() { return streams_[roll(streams_.size())]; }

  void operation() {
    // It fills up, and it empties.
    if (is_one_in(128)) allocating_ = 250 + 150 * roll(4);
    const std::uint64_t dice = roll(1000);
    if (dice < allocating_) {
      allocate();
    } else if (dice < 950) {
      if (!live_.empty()) free_one();
    } else if (dice < 965) {
      some_stream().synchronize();
    } else if (dice < 970) {
      device_.synchronize();
    } else if (dice < 985) {
      pool_.poll();
    } else if (dice < 988) {
      pool_.trim(roll(2) == 0 ? 0 : roll(world_.max_limit));
    } else if (dice < 992) {
      change_limit();
    } else if (dice < 996) {
      replace_stream();
    } else {
      mistake();
    }
  }

  // --- Allocating

  std::size_t some_size() {
    if (is_one_in(16)) return boundaries[roll(std::size(boundaries))];
    if (is_one_in(200)) return 0;
    if (is_one_in(12)) return world_.max_limit / 8 + roll(world_.max_limit / 2);
    return 1 + roll(std::size_t{2} << roll(world_.size_bits));
  }
  std::size_t some_alignment() {
    if (!is_one_in(12)) return 0;
    if (is_one_in(20)) return 3;
    return std::size_t{1} << roll(23);
  }

  void allocate() {
    allocate(some_request());
    // What was refused is refused again.
    if (refused_ && is_one_in(4)) allocate(*std::exchange(refused_, std::nullopt));
    refused_.reset();
  }

  Request some_request() {
    Request request{.bytes = some_size(), .alignment = some_alignment()};
    if (!is_one_in(8)) request.stream = some_stream();
    if (is_one_in(3)) request.wait = Wait::never;
    if (is_one_in(16)) request.only_recycled = true;
    request.tag = is_one_in(2) ? "one" : "other";
    return request;
  }

  void allocate(const Request& request) {
    const std::size_t granted = pool_.good_size(request);
    const Result<Block> block = pool_.try_allocate(request);
    ++requests_;
    if (!block) {
      ++refusals_;
      refused_ = request;
      check_refusal(request, granted, block.failure());
      return;
    }
    if (request.bytes == 0) {
      ASSERT_FALSE(*block);
      return;
    }
    ++allocations_;
    ASSERT_NE(request.alignment, 3u);
    ASSERT_EQ(block->bytes, granted);
    ASSERT_GE(block->bytes, request.bytes);
    const auto begin = reinterpret_cast<std::uintptr_t>(block->address);
    ASSERT_EQ(begin % std::max<std::size_t>(request.alignment, 256), 0u);
    ASSERT_EQ(block->device, device_.id());
    const BlockFacts facts = try_find_block(block->generation).value();
    ASSERT_EQ(facts.address, block->address);
    ASSERT_EQ(facts.bytes, block->bytes);
    ASSERT_EQ(facts.owner, &pool_);
    ASSERT_EQ(facts.stream, request.stream.id());
    ASSERT_EQ(facts.tag, request.tag);
    const auto after = ranges_.upper_bound(begin);
    if (after != ranges_.end()) {
      ASSERT_LE(begin + block->bytes, after->first);
    }
    if (after != ranges_.begin()) {
      ASSERT_LE(std::prev(after)->second, begin);
    }
    ranges_.emplace(begin, begin + block->bytes);
    live_bytes_ += block->bytes;
    requested_bytes_ += request.bytes;
    peak_bytes_ = std::max(peak_bytes_, live_bytes_);
    live_.push_back({*block, request.bytes, request.stream});
    use(live_.back());
  }

  void check_refusal(const Request& request, std::size_t granted, const Failure& failure) {
    if (request.bytes > max_request_bytes) {
      ASSERT_EQ(failure.code(), ErrorCode::size_overflow);
      return;
    }
    if (request.alignment == 3) {
      ASSERT_EQ(failure.code(), ErrorCode::misaligned);
      return;
    }
    ASSERT_EQ(failure.code(), ErrorCode::out_of_memory) << failure.text();
    if (request.only_recycled || request.wait == Wait::never) return;
    // Above the limit with what is live alone.
    if (limit_ != 0 && (live_bytes_ > limit_ || granted > limit_ - live_bytes_)) return;
    // Everything that waiting gives was there, and it was not enough.
    const Fragmentation pieces = pool_.fragmentation();
    if (request.alignment <= 256) {
      ASSERT_LT(pieces.largest_now, granted) << failure.text();
    }
    // Without a limit the device refuses, and where it has few addresses pages find none.
    if (!is_roomy()) return;
    const std::size_t held = pool_.pool_statistics().held_bytes;
    if (has_pages_) {
      const std::size_t held_pages = held / pool::page_bytes, max_pages = limit_ / pool::page_bytes;
      const std::size_t room = max_pages > held_pages ? max_pages - held_pages : 0;
      const std::size_t need = (granted + pool::page_bytes - 1) / pool::page_bytes;
      ASSERT_LT(held_pages - touched_pages() + room, need) << failure.text();
      ASSERT_EQ(pieces.free_page_bytes, (held_pages - touched_pages()) * pool::page_bytes);
    } else if (request.alignment <= 256) {
      ASSERT_LT(limit_ > held ? limit_ - held : 0, granted) << failure.text();
    }
  }

  [[nodiscard]] std::size_t touched_pages() const {
    std::size_t count = 0;
    std::uintptr_t behind = 0;  // the last page that was counted, and all before it
    for (const auto& [begin, end] : ranges_) {
      const std::uintptr_t first = std::max(begin / pool::page_bytes, behind);
      const std::uintptr_t last = (end + pool::page_bytes - 1) / pool::page_bytes;
      if (last > first) count += last - first;
      behind = std::max(behind, last);
    }
    return count;
  }

  /// So that the checker has something to judge.
  void use(const Live& one) {
    auto* const bytes = static_cast<std::byte*>(one.block.address);
    if (world_.ground == Ground::checked) {
      const bool host_has_it = world_.options.kind != MemoryKind::device;
      if (host_has_it) sim::host_write(device_, bytes, 64);
      if (one.user.id() && one.user.is_usable()) {
        const std::size_t most = is_one_in(16) ? 64 * kib : 256;
        one.user.fill(bytes, std::min(one.block.bytes, most), std::byte{7});
        one.user.fill(bytes + one.block.bytes - 8, 8, std::byte{8});
      }
    } else if (one.user.id() && one.user.is_usable() && is_one_in(32)) {
      one.user.fill(bytes, 8, std::byte{7});
    }
  }

  // --- Freeing

  void free_one() {
    std::swap(live_[roll(live_.size())], live_.back());
    Live one = live_.back();
    live_.pop_back();
    const bool has_ended = one.user.id() && !one.user.is_usable();
    const std::uint64_t dice = roll(16);
    StreamRef by = one.user;
    if (dice < 2) {
      // On another stream, which waits for the one that had it.
      by = some_stream();
      if (has_ended) {
        by.wait(one.last);
      } else if (one.user.id()) {
        by.wait(one.user.mark());
      }
      one.user = by;
      if (world_.options.kind == MemoryKind::device) use(one);
    } else if (dice == 2) {
      // By the host, which waits.
      if (has_ended) {
        Device::wait(one.last);
      } else if (one.user.id()) {
        one.user.synchronize();
      }
      by = {};
    }
    const Result<void> freed = pool_.try_deallocate(one.block, by);
    ASSERT_TRUE(freed) << freed.failure().text();
    ++frees_;
    forget(one);
    if (is_one_in(64)) {
      const Result<void> twice = pool_.try_deallocate(one.block, by);
      ASSERT_FALSE(twice);
      ASSERT_EQ(twice.failure().code(), ErrorCode::use_after_free);
    }
  }

  void forget(const Live& one) {
    ASSERT_EQ(ranges_.erase(reinterpret_cast<std::uintptr_t>(one.block.address)), 1u);
    live_bytes_ -= one.block.bytes;
    requested_bytes_ -= one.requested;
  }

  void mistake() {
    if (live_.empty()) return;
    Block wrong = live_[roll(live_.size())].block;
    ErrorCode expected = ErrorCode::use_after_free;
    switch (roll(5)) {
      case 0:
        wrong.address = static_cast<std::byte*>(wrong.address) + 1;
        expected = ErrorCode::out_of_bounds;
        break;
      case 1:
        wrong.bytes += 256;
        break;
      case 2:
        wrong.generation = Generation(wrong.generation.slot(), wrong.generation.count() + 1);
        break;
      case 3:
        wrong.generation = Generation((1u << Generation::slot_bits) - 1, 1);
        break;
      default:
        wrong.device = DeviceId{wrong.device.value + 1};
        expected = ErrorCode::device_mismatch;
    }
    const Result<void> refused = pool_.try_deallocate(wrong, some_stream());
    ASSERT_FALSE(refused);
    ASSERT_EQ(refused.failure().code(), expected) << refused.failure().text();
  }

  // --- Everything else

  void change_limit() {
    limit_ = 2 * mib + roll(world_.max_limit);
    if (is_one_in(4) && is_simulated() && !is_roomy()) limit_ = 0;
    if (is_one_in(2)) limit_ = world_.options.limit_bytes;
    pool_.set_limit(limit_);
  }

  void replace_stream() {
    Stream& stream = some_stream();
    const StreamId ended = stream.id();
    const Mark last = stream.mark();
    stream = Stream();
    for (Live& one : live_) {
      if (one.user.id() == ended) one.last = last;
    }
    stream = Stream(device_);
  }

  void compare() {
    const Statistics all = pool_.statistics();
    ASSERT_EQ(all.live_bytes, live_bytes_);
    ASSERT_EQ(all.live_blocks, live_.size());
    ASSERT_EQ(all.requests, requests_);
    ASSERT_EQ(all.refusals, refusals_);
    ASSERT_EQ(all.frees, frees_);
    ASSERT_GE(all.peak_live_bytes, peak_bytes_);
    const PoolStatistics now = pool_.pool_statistics();
    ASSERT_EQ(now.live_bytes, live_bytes_);
    ASSERT_EQ(now.requested_bytes, requested_bytes_);
    ASSERT_EQ(now.live_bytes + now.cached_bytes + now.in_flight_bytes + now.available_bytes +
                  now.unmapped_bytes,
              now.held_bytes);
    ASSERT_EQ(all.pending_bytes, now.in_flight_bytes);
    ASSERT_EQ(all.reserved_bytes, now.held_bytes);
    ASSERT_EQ(now.limit_bytes, limit_);
    if (limit_ != 0) {
      ASSERT_LE(now.held_bytes, std::max(limit_, held_before_));
    }
    ASSERT_GE(now.peak_held_bytes, now.held_bytes);
    ASSERT_LE(all.peak_live_bytes, now.peak_held_bytes);
    ASSERT_EQ(now.cache_hits + now.own_in_flight_hits + now.available_hits + now.steals +
                  now.grown_hits + now.remapped_hits,
              allocations_);
    ASSERT_EQ(now.pages_created - now.pages_released,
              has_pages_ ? now.held_bytes / pool::page_bytes : 0);
  }

  void look() {
    ASSERT_TRUE(pool_.check_invariants());
    if (world_.ground != Ground::checked) return;
    if (const std::vector<Finding> found = sim::findings(device_); !found.empty()) {
      FAIL() << found.front().text();
    }
  }

  const ModelWorld world_;
  std::mt19937_64 random_;
  const Device device_;
  PoolResource pool_;
  std::vector<Stream> streams_;
  std::vector<Live> live_;
  std::map<std::uintptr_t, std::uintptr_t> ranges_;
  std::size_t limit_;
  const bool has_pages_;
  std::size_t live_bytes_ = 0, requested_bytes_ = 0, peak_bytes_ = 0, held_before_ = 0;
  std::optional<Request> refused_;
  std::uint64_t allocating_ = 480;  // of 1000 operations
  std::uint64_t requests_ = 0, refusals_ = 0, frees_ = 0, allocations_ = 0;
};

/// What a run of several programs did, by name, so that what did not happen is named.
class Sums {
 public:
  void add(const PoolStatistics& one) {
    const auto count = [this](const char* name, std::uint64_t value) { sums_[name] += value; };
    count("cache_hits", one.cache_hits);
    count("own_in_flight_hits", one.own_in_flight_hits);
    count("available_hits", one.available_hits);
    count("steals", one.steals);
    count("grown_hits", one.grown_hits);
    count("remapped_hits", one.remapped_hits);
    count("polls", one.polls);
    count("seals", one.seals);
    count("host_waits", one.host_waits);
    count("grows", one.grows);
    count("pages_created", one.pages_created);
    count("pages_moved", one.pages_moved);
    count("pages_released", one.pages_released);
    count("trims", one.trims);
    count("known_refusals", one.known_refusals);
    count("page_calls", one.page_calls);
  }
  void expect_all() const {
    for (const auto& [name, sum] : sums_) {
      EXPECT_GT(sum, 0u) << name;
      testing::Test::RecordProperty(name, std::to_string(sum));
    }
  }

 private:
  std::map<std::string, std::uint64_t> sums_;
};

/// Every kind of pool on every schedule, small and large.
std::vector<ModelWorld> every_world(Ground ground) {
  const std::vector<PoolOptions> pools = {
      {.backing = PoolBacking::pages},
      {.backing = PoolBacking::pages, .preference = PoolPreference::reuse},
      {.backing = PoolBacking::pages, .thread_caches = true},
      {.backing = PoolBacking::segments},
      {.kind = MemoryKind::pinned, .thread_caches = true},
      {.kind = MemoryKind::managed, .preference = PoolPreference::independence}};
  std::vector<sim::Policy> policies = {sim::Policy::lazy, sim::Policy::eager, sim::Policy::random,
                                       sim::Policy::stall_one};
  if (ground == Ground::host) policies = {sim::Policy::mix};
  std::vector<ModelWorld> all;
  for (const sim::Policy policy : policies) {
    for (const PoolOptions& pool : pools) {
      if (ground == Ground::host && pool.kind == MemoryKind::managed) continue;
      for (const bool is_large : {false, true}) {
        ModelWorld world{.ground = ground, .policy = policy, .options = pool};
        world.size_bits = is_large ? 25 : 21;
        world.max_limit = is_large ? 96 * mib : 12 * mib;
        // Where the device has no more than the limit it is the device that refuses.
        world.memory = (is_large ? 128 * mib : 16 * mib) * (all.size() % 3 == 0 ? 1 : 4);
        world.options.limit_bytes = is_large ? 80 * mib : 10 * mib;
        if (all.size() % 4 == 0) world.options.initial_bytes = 6 * mib;
        world.seed = all.size() + 1;
        all.push_back(world);
      }
    }
  }
  return all;
}

void run_all(Ground ground, std::uint64_t operations, std::uint64_t operations_per_look) {
  Sums sums;
  std::vector<ModelWorld> worlds = every_world(ground);
  for (ModelWorld& world : worlds) {
    world.operations = operations / worlds.size();
    world.operations_per_look = operations_per_look;
    ModelProgram program(world);
    program.run();
    sums.add(program.statistics());
    if (testing::Test::HasFailure()) return;
  }
  // On the host it depends on how fast threads are.
  if (ground != Ground::host) sums.expect_all();
}

TEST(PoolModel, AgreesWithThePoolUnderTheChecker) {
  run_all(Ground::checked, test::in_full() ? 500'000 : 100'000, 1);
}

TEST(PoolModel, AgreesWithThePoolInLongPrograms) {
  run_all(Ground::checked, test::in_full() ? 1'000'000 : 150'000, 1024);
}

TEST(PoolModel, AgreesWithThePoolWithoutTheChecker) {
  run_all(Ground::unchecked, test::in_full() ? 8'500'000 : 1'000'000, 1024);
}

TEST(PoolModel, AgreesWithThePoolOnTheHost) {
  run_all(Ground::host, test::in_full() ? 100'000 : 30'000, 64);
}

}  // namespace
}  // namespace tern
