// A BudgetResource refuses any request that would take its Budget above a limit.
//
// It charges the bytes the upstream grants, not the bytes asked for, so that the budget equals the
// footprint, and before the upstream is asked. A freed block stays charged, as pending, until its
// stream has passed the free; where the upstream's frees wait for the stream, the charge ends at
// once. A failed call leaves the budget as it was: a block whose free failed is live and charged.
//
// At the limit a request first looks which frees are done, then asks the upstream for memory that
// its own stream has freed and takes over that charge, then waits for the oldest frees, if the
// budget's Overflow and the request's Wait allow it, and only then is refused. Nobody has to drain.
//
// The budget is of the upstream's device, or neutral. Blocks that the upstream has given out before
// count from the beginning, in one sum, and must be freed here. Whoever frees a block of this
// resource elsewhere leaves its charge until the resource ends, which ends all it has charged but
// what is pending. Thread-safe.

#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "tern/memory/budget.hpp"
#include "tern/memory/wrapping_resource.hpp"

namespace tern {

struct BlockCharge;

class TERN_EXPORT BudgetResource final : public WrappingResource {
 public:
  /// Keeps both alive. Several resources may share one budget. Throws InvalidArgument for null,
  /// DeviceMismatch, and OutOfBudget if what the upstream has given out does not fit.
  BudgetResource(ResourceHandle upstream, BudgetHandle budget);
  ~BudgetResource() override;

  [[nodiscard]] const BudgetHandle& budget() const noexcept { return budget_; }

  /// Pending bytes are those freed here that the budget still counts.
  [[nodiscard]] Statistics statistics() const noexcept override;
  /// Refused with out_of_budget, and with invalid_argument if it names a reservation of a budget
  /// that is neither this one nor above it.
  [[nodiscard]] Result<Block> try_allocate(const Request& request) noexcept override;
  [[nodiscard]] Result<void> try_deallocate(
      const Block& block, StreamRef stream,
      const CallSite& site = CallSite::here()) noexcept override;

 private:
  struct Shard {
    std::mutex mutex;
    std::vector<BlockCharge*> buckets;  // guarded by mutex; lists of blocks
    std::size_t count = 0;              // guarded by mutex
  };
  using Record = std::unique_ptr<BlockCharge>;

  [[nodiscard]] Result<Block> allocate_drawn(const Request& request, std::size_t bytes,
                                             Record record) noexcept;
  [[nodiscard]] Result<Block> allocate_at_limit(const Request& request, std::size_t bytes,
                                                Record record) noexcept;
  [[nodiscard]] Result<Block> allocate_claimed(const Request& request, std::size_t bytes,
                                               Record record) noexcept;
  // Nothing, or what the upstream gave of what this stream has freed.
  [[nodiscard]] Block allocate_recycled(const Request& request, std::size_t bytes,
                                        Record& record) noexcept;
  [[nodiscard]] Result<void> fit_claim(const Request& request, std::size_t claimed,
                                       std::size_t granted) noexcept;
  Block keep(const Block& block, Tag tag, Record record) noexcept;
  [[nodiscard]] Failure refuse(const Budget& level, const Request& request,
                               std::size_t bytes) const noexcept;
  [[nodiscard]] Result<void> free_inherited(const Block& block, StreamRef stream,
                                            const CallSite& site) noexcept;
  // The block is freed: its charge ends when the stream has passed that.
  void end(Record record, StreamRef stream) noexcept;

  [[nodiscard]] Shard& shard_of(Generation generation) noexcept;
  void insert(BlockCharge* record) noexcept;
  [[nodiscard]] BlockCharge* find(const Block& block, Shard& shard) noexcept;
  void erase(BlockCharge* record, Shard& shard) noexcept;

  const BudgetHandle budget_;
  const bool frees_without_waiting_;
  const bool frees_for_host_at_once_;
  std::atomic<std::size_t> pending_bytes_ = 0;
  std::mutex inherited_mutex_;
  Charge inherited_;  // guarded by inherited_mutex_; of blocks that were there before
  std::array<Shard, 16> shards_;
};

/// How far a request may go that a budget of the stack refuses: the least policy of the budgets
/// that its BudgetResources charge; spill without one, and for null.
[[nodiscard]] TERN_EXPORT Overflow overflow_of(const Resource* resource) noexcept;

}  // namespace tern
