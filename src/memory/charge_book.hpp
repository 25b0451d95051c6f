// A ChargeBook holds the charges of the blocks of one BudgetResource.
//
// A block has at most one charge, at the slot of its generation. The charge is live while the block
// is live, claimed while a thread frees the block, and pending after the free, until the stream has
// passed the free. If a pool recycles the memory while its charge is still pending, the charge is
// revived: the memory is the same, so the budget does not change. A program that allocates and
// frees the same blocks therefore changes no counter that other threads change.
//
//   none --begin--> live --claim--> claimed --add--> pending --drain, take--> none
//                     ^                |                |
//                     +-----revive-----+-----revive-----+
//
// Pending charges are in lanes, by stream, with one lock each. Threads with streams of their own
// share no lane. A charge enters and leaves its lane under the lock of the lane. Devices are
// queried without the lock of a lane.
//
// An upstream may use the slot of a block again before the free of that block has returned. The
// charge of the earlier block is then displaced: it gets a record of its own, and the thread that
// frees the block adds that record. Nobody waits for the free, which may be waiting for the caller.
//
// The book outlives its resource while charges are pending. Thread-safe.

#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <tuple>

#include "core/fork_count.hpp"
#include "tern/core/tag.hpp"
#include "tern/detail/core/mutex.hpp"
#include "tern/device/mark.hpp"
#include "tern/memory/budget.hpp"
#include "tern/memory/resource.hpp"

namespace tern {

/// The charge of one block, or a pending charge that has lost its block.
struct alignas(64) BlockCharge {
  enum class Phase : std::uint8_t { none, live, claimed, pending };
  static constexpr unsigned phase_bits = 2, lane_bits = 6;

  /// The count of the block's generation, a lane, and the phase. The lane of a pending charge has
  /// the charge in its list. The lane of a live or claimed charge counts its bytes as live.
  struct State {
    std::uint64_t word = 0;

    constexpr State() noexcept = default;
    explicit constexpr State(std::uint64_t value) noexcept : word(value) {}
    constexpr State(std::uint64_t count, std::size_t lane, Phase phase) noexcept
        : word((count << lane_bits | lane) << phase_bits | static_cast<std::uint64_t>(phase)) {}

    [[nodiscard]] constexpr Phase phase() const noexcept {
      return static_cast<Phase>(word & ((1u << phase_bits) - 1));
    }
    [[nodiscard]] constexpr std::size_t lane() const noexcept {
      return word >> phase_bits & ((1u << lane_bits) - 1);
    }
    [[nodiscard]] constexpr std::uint64_t count() const noexcept {
      return word >> (phase_bits + lane_bits);
    }
    [[nodiscard]] constexpr State as(Phase phase) const noexcept {
      return {count(), lane(), phase};
    }
    friend constexpr bool operator==(const State&, const State&) noexcept = default;
  };

  [[nodiscard]] State state() const noexcept { return State(word.load(std::memory_order_acquire)); }
  void set(State state) noexcept { word.store(state.word, std::memory_order_release); }
  /// Like state() and set(), for callers whose accesses the lock of the lane orders, or who only
  /// compare.
  [[nodiscard]] State state_relaxed() const noexcept {
    return State(word.load(std::memory_order_relaxed));
  }
  void set_relaxed(State state) noexcept { word.store(state.word, std::memory_order_relaxed); }
  /// Changes the state unless another thread has changed it.
  [[nodiscard]] bool try_change(State from, State to,
                                std::memory_order how = std::memory_order_acq_rel) noexcept {
    return word.compare_exchange_strong(from.word, to.word, how);
  }

  std::atomic<std::uint64_t> word = 0;  // see State
  std::size_t bytes = 0;                // as are mark to newer: guarded by the lane while pending
  Tag tag = {};
  /// False for a charge that has lost its block: it is deleted when it ends.
  bool is_in_table = true;
  Mark mark = {};
  std::uint64_t order = 0;  // of the free, in the tree of budgets
  BlockCharge* older = nullptr;
  BlockCharge* newer = nullptr;
};
static_assert(sizeof(BlockCharge) == 64);

/// The charge of a block that the current thread is freeing. Null if the block has no live charge.
struct ChargeClaim {
  BlockCharge* charge = nullptr;
  BlockCharge::State state = {};
};

class PendingFrees;

class ChargeBook {
 public:
  static constexpr std::size_t lane_count = std::size_t{1} << BlockCharge::lane_bits;

  /// Throws std::bad_alloc.
  ChargeBook(Budget& budget, PendingFrees& frees);
  ~ChargeBook();
  ChargeBook(const ChargeBook&) = delete;
  ChargeBook& operator=(const ChargeBook&) = delete;

  // --- Blocks

  /// Prepares the charge of a block that the upstream has just allocated, for begin(). If the slot
  /// still has the charge of an earlier block, that charge gets a record of its own. Never waits.
  /// Returns null if the host has no memory.
  [[nodiscard]] BlockCharge* try_open(const Block& block) noexcept;
  /// Notes a live block whose bytes were admitted.
  void begin(BlockCharge& charge, const Block& block, Tag tag, StreamId stream) noexcept;
  /// If the charge of this very memory is still pending, revives it for the block. Returns false
  /// if not, if more than the limit is charged, or if the host has no memory for the counter of
  /// another tag. The block must come from Resource::recycle(): then a block whose count is the
  /// next one has the same memory.
  [[nodiscard]] bool try_revive(const Block& block, Tag tag) noexcept;

  /// Claims the charge of a live block, so that no other thread frees the block.
  [[nodiscard]] ChargeClaim claim(const Block& block) noexcept;
  /// Returns whether a thread has claimed the charge of the block.
  [[nodiscard]] bool is_being_freed(const Block& block) const noexcept;
  /// The free failed: the charge is live again.
  static void unclaim(ChargeClaim claim) noexcept;
  /// The upstream has freed the block: the charge is pending until the mark is done. May drain.
  void add(ChargeClaim claim, std::size_t bytes, Mark mark) noexcept;
  /// The upstream has freed the block and no stream uses it: the charge ends. Works in a forked
  /// child.
  void end(ChargeClaim claim, std::size_t bytes, Tag tag) noexcept;

  /// Returns a record for add_pending(), or null if the host has no memory.
  [[nodiscard]] static std::unique_ptr<BlockCharge> try_make_record() noexcept;
  /// Adds a pending charge that belongs to no block of the book.
  void add_pending(std::unique_ptr<BlockCharge> record, std::size_t bytes, Tag tag,
                   Mark mark) noexcept;

  // --- Pending charges

  /// Returns whether a charge of the stream may be pending.
  [[nodiscard]] bool may_have_pending(StreamId stream) const noexcept {
    return lanes_[lane_of(stream)].pending_count.load(std::memory_order_relaxed) != 0;
  }
  [[nodiscard]] std::size_t pending_bytes() const noexcept;
  [[nodiscard]] std::size_t pending_bytes(StreamId stream) const noexcept;
  /// Ends the charges whose marks are done, except those of frees after `last_order`. Returns their
  /// bytes. Never waits.
  std::size_t drain(std::uint64_t last_order) noexcept;
  /// A pending charge, in the order in which requests wait for them: by the order of the frees, and
  /// then in any fixed order.
  struct Oldest {
    std::uint64_t order = 0;
    const ChargeBook* book = nullptr;
    Mark mark = {};

    friend bool operator<(const Oldest& a, const Oldest& b) noexcept {
      const auto key = [](const Oldest& one) {
        return std::tuple(one.order, reinterpret_cast<std::uintptr_t>(one.book), one.mark.stream,
                          one.mark.sequence);
      };
      return key(a) < key(b);
    }
  };
  /// Returns the oldest pending charge after `after`.
  [[nodiscard]] std::optional<Oldest> oldest(const Oldest& after) const noexcept;

  /// Pending charges that were taken out of a lane: no longer pending, but still charged. End a
  /// Taken with put_back() or discard().
  struct Taken {
    BlockCharge* first = nullptr;  // linked by `newer`
    std::size_t bytes = 0;
  };
  /// Takes up to `bytes` of one stream, oldest first. Takes nothing if the host has no memory.
  [[nodiscard]] Taken take(StreamId stream, std::size_t bytes) noexcept;
  /// Makes the charges pending again, in their old order.
  void put_back(const Taken& taken) noexcept;
  /// Forgets the charges. Their bytes stay charged.
  static void discard(const Taken& taken) noexcept;

  // --- The resource and the budget

  /// Returns whether the book charges this very budget.
  [[nodiscard]] bool has_budget(const Budget* budget) const noexcept {
    return budget_.load(std::memory_order_relaxed) == budget;
  }
  /// Returns whether the charges count against the budget.
  [[nodiscard]] bool is_under(const Budget* budget) const noexcept;
  /// The budget is destroyed; pending charges belong to the one above.
  void set_budget(Budget* budget) noexcept { budget_.store(budget, std::memory_order_relaxed); }
  /// Returns true in a forked child, where a lock may be held by a thread that does not exist. Only
  /// functions that say so work there.
  [[nodiscard]] bool is_forked() const noexcept { return !is_same_process(process_); }
  /// The resource is destroyed: ends the charges of live blocks.
  void detach() noexcept;

  /// Counts a request that began no block: an empty or a failed one. A forked child counts nothing.
  void note_request(StreamId stream, bool is_refused) noexcept;
  /// The counts of requests and frees, live and pending bytes. The peak is the sum of the peaks of
  /// the lanes.
  [[nodiscard]] Statistics statistics() const noexcept;

 private:
  struct alignas(128) Lane {
    mutable SpinLock lock;
    std::atomic<std::uint32_t> pending_count = 0;  // written with the lock held
    // Guarded by lock, as is all that follows. The list is sorted by the order of the frees.
    BlockCharge* oldest = nullptr;
    BlockCharge* newest = nullptr;
    std::size_t pending_bytes = 0;
    std::uint32_t drain_at;          // count of pending charges that starts a drain
    std::uint32_t kept;              // charges that such a drain leaves
    std::uint32_t most_pending = 0;  // since the last drain
    std::uint32_t drains = 0;
    std::uint64_t other_requests = 0, refusals = 0, allocations = 0, frees = 0;
    std::size_t live_bytes = 0, peak_live_bytes = 0;  // of the blocks that are live in this lane

    Lane() noexcept;
    void set_pending_count(std::uint32_t count) noexcept {
      pending_count.store(count, std::memory_order_relaxed);
    }
    [[nodiscard]] std::uint32_t count() const noexcept {
      return pending_count.load(std::memory_order_relaxed);
    }
    /// Inserts the charge before `at`. Null: at the end.
    void insert(BlockCharge& charge, BlockCharge* at) noexcept {
      BlockCharge* const before = at != nullptr ? at->older : newest;
      charge.older = before;
      charge.newer = at;
      (before != nullptr ? before->newer : oldest) = &charge;
      (at != nullptr ? at->older : newest) = &charge;
      pending_bytes += charge.bytes;
      set_pending_count(count() + 1);
    }
    void unlink(BlockCharge& charge) noexcept {
      (charge.older != nullptr ? charge.older->newer : oldest) = charge.newer;
      (charge.newer != nullptr ? charge.newer->older : newest) = charge.older;
      pending_bytes -= charge.bytes;
      set_pending_count(count() - 1);
    }
    void note_begin(std::size_t bytes) noexcept {
      ++allocations;
      live_bytes += bytes;
      if (live_bytes > peak_live_bytes) peak_live_bytes = live_bytes;
    }
    void note_end(std::size_t bytes) noexcept {
      ++frees;
      live_bytes -= bytes;
    }
  };

  static constexpr unsigned leaf_bits = 8, middle_bits = 9;
  static constexpr unsigned root_bits = Generation::slot_bits - leaf_bits - middle_bits;
  using Leaf = std::array<BlockCharge, std::size_t{1} << leaf_bits>;
  using Middle = std::array<std::atomic<Leaf*>, std::size_t{1} << middle_bits>;
  using Root = std::array<std::atomic<Middle*>, std::size_t{1} << root_bits>;

  [[nodiscard]] static std::size_t lane_of(StreamId stream) noexcept {
    return stream.slot() % lane_count;
  }
  /// Returns the charge of the slot, or null if the slot never had one.
  [[nodiscard]] BlockCharge* find(
      Generation generation, std::memory_order order = std::memory_order_acquire) const noexcept;
  /// Like find(), but makes the charge. Returns null if the host has no memory.
  [[nodiscard]] BlockCharge* find_or_make(Generation generation) noexcept;
  /// Adds a charge to a lane whose lock is held.
  void push(std::size_t index, BlockCharge& charge, Mark mark) noexcept;
  /// Calls visit(lane) for every lane that has ever had a pending charge. A tree of budgets may
  /// have many books, and most of them use few lanes.
  template <class Self, class Visit>
  static void for_each_used_lane(Self& self, Visit visit) {
    std::uint64_t used = self.used_lanes_.load(std::memory_order_acquire);
    for (; used != 0; used &= used - 1) {
      visit(self.lanes_[static_cast<std::size_t>(std::countr_zero(used))]);
    }
  }
  void note_end(std::size_t lane, std::size_t bytes) noexcept;
  /// Displaces a claimed charge into the record, which begins a list of its own. Returns false if
  /// the state has changed.
  [[nodiscard]] bool displace(BlockCharge& charge, BlockCharge::State state,
                              std::unique_ptr<BlockCharge>& record) noexcept;
  /// Returns the displaced charge of the claim, or null. Null in a forked child.
  [[nodiscard]] std::unique_ptr<BlockCharge> take_displaced(ChargeClaim claim) noexcept;
  void add_displaced(ChargeClaim claim, Mark mark) noexcept;
  /// Drains a lane that has too many charges.
  void drain_due(Lane& lane) noexcept;
  /// Ends charges whose marks are done, except the newest `kept` ones and those after `last_order`.
  std::size_t drain(Lane& lane, std::uint64_t last_order, std::size_t kept) noexcept;
  /// Returns up to which mark the stream has passed its frees, or an empty mark. `first` and `last`
  /// are the oldest and the newest mark of one stream.
  [[nodiscard]] Mark find_last_done(Mark first, Mark last) noexcept;
  /// Ends the pending charges of one stream up to the mark. Call with the lane locked. Does not
  /// record the use of the budget.
  std::size_t end_until(Lane& lane, Mark mark, std::uint64_t last_order, std::size_t kept) noexcept;
  void release(std::size_t bytes, Tag tag) noexcept;
  /// While a recording is on, records the use of the budget.
  void record_use() const noexcept;
  /// Returns whether the limit of a level was lowered below what is charged. Then requests fail.
  [[nodiscard]] bool is_above_limit() const noexcept {
    const Budget* level = budget_.load(std::memory_order_relaxed);
    while (level != nullptr && level->charged_.load(std::memory_order_relaxed) <=
                                   level->limit_.load(std::memory_order_relaxed)) {
      level = level->parent_.get();
    }
    return level != nullptr;
  }
  [[nodiscard]] bool revive_slow(BlockCharge& charge, const Block& block, Tag tag) noexcept;

  std::atomic<Budget*> budget_;
  PendingFrees& frees_;
  const std::uint64_t process_;
  std::unique_ptr<Root> root_;
  std::atomic<std::uint64_t> used_lanes_ = 0;  // one bit per lane
  std::array<Lane, lane_count> lanes_;
  Mutex displaced_mutex_;
  // Records of displaced charges, linked by `newer`: `older` is the charge, `order` its state.
  BlockCharge* displaced_ = nullptr;  // guarded by displaced_mutex_
  std::atomic<std::uint32_t> displaced_count_ = 0;
};

// --- The fast path

inline BlockCharge* ChargeBook::find(Generation generation,
                                     std::memory_order order) const noexcept {
  const std::uint32_t slot = generation.slot();
  Middle* const middle = (*root_)[slot >> (leaf_bits + middle_bits)].load(order);
  if (middle == nullptr) return nullptr;
  Leaf* const leaf = (*middle)[slot >> leaf_bits & ((1u << middle_bits) - 1)].load(order);
  return leaf == nullptr ? nullptr : &(*leaf)[slot & ((1u << leaf_bits) - 1)];
}

// Relaxed is enough: a block with a charge was allocated after its part of the table was made, and
// its allocation is ordered before its free.
inline ChargeClaim ChargeBook::claim(const Block& block) noexcept {
  using Phase = BlockCharge::Phase;
  BlockCharge* const charge = find(block.generation, std::memory_order_relaxed);
  if (charge == nullptr) return {};
  const BlockCharge::State state = charge->state_relaxed();
  if (state.count() != block.generation.count() || state.phase() != Phase::live) return {};
  const BlockCharge::State claimed = state.as(Phase::claimed);
  if (!charge->try_change(state, claimed, std::memory_order_relaxed)) return {};
  return {charge, claimed};
}

// The common case of reviving: the charge is pending and keeps its tag.
inline bool ChargeBook::try_revive(const Block& block, Tag tag) noexcept {
  using State = BlockCharge::State;
  using Phase = BlockCharge::Phase;
  BlockCharge* const charge = find(block.generation);
  if (charge == nullptr) return false;
  const State state = charge->state_relaxed();
  const State former(block.generation.count() - 1, state.lane(), Phase::pending);
  if (is_above_limit()) [[unlikely]]
    return false;
  if (state != former || charge->tag != tag) [[unlikely]]
    return revive_slow(*charge, block, tag);
  Lane& lane = lanes_[state.lane()];
  lane.lock.lock();
  const bool is_same = charge->state_relaxed() == state && charge->bytes == block.bytes;
  if (is_same) {
    lane.unlink(*charge);
    charge->set_relaxed({block.generation.count(), state.lane(), Phase::live});
    lane.note_begin(block.bytes);
  }
  lane.lock.unlock();
  return is_same ? true : revive_slow(*charge, block, tag);
}

}  // namespace tern
