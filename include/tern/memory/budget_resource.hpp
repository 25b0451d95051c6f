// A BudgetResource fails every request that would push its Budget above a limit.
//
//   auto limited = std::make_shared<BudgetResource>(pool, Budget::make("task", limit));
//
// Charging: the resource charges the size that the upstream grants, not the requested size, so the
// budget equals the footprint. It charges before it calls the upstream. A freed block stays
// charged, as pending, until its stream has passed the free. If the upstream's frees wait for the
// stream, the charge ends with the free. A failed call leaves the budget unchanged: a block whose
// free failed is still live and charged.
//
// At the limit, a request takes these steps and stops at the first success:
//
//   1. It checks which pending frees have completed.
//   2. It asks the upstream for memory that the request's own stream has freed, and takes over the
//      charge of that memory.
//   3. It waits for the oldest pending frees, if the budget's Overflow and the request's Wait
//      allow it.
//   4. It fails with out_of_budget.
//
// The program never has to call Budget::drain().
//
// The budget must be neutral or belong to the upstream's device. Blocks that the upstream had live
// before the wrapper was made are charged as one sum, and must be freed through this resource. If a
// block of this resource is freed elsewhere, its charge stays until its place in the block table is
// used again or the resource is destroyed. The destructor ends all charges of the resource except
// pending ones. Thread-safe.
//
// Over a pool, the limits also bound what the pool holds from the driver, if every request to the
// pool comes through a BudgetResource: the pool holds at most the limits of the budgets directly
// above it, in whole 2 MiB pages or 64 MiB segments. It holds more only if a block that its budget
// admits would not fit otherwise, because the free memory is in partly used pages. If budgets of
// several trees share the pool, their limits add up; within a tree, a limit above also applies to
// the sum of those below. A request that reaches the pool past the budgets ends this until the last
// BudgetResource of the pool is destroyed. BudgetOptions::bounds_held turns it off.
//
// If the upstream is a pool and recycles memory whose charge is still pending, the charge becomes
// the charge of the new block, and no counter that other threads use changes.

#pragma once

#include <memory>

#include "tern/detail/core/mutex.hpp"
#include "tern/detail/memory/wrapping_resource.hpp"
#include "tern/memory/budget.hpp"

namespace tern {

struct BlockCharge;
class ChargeBook;
struct ChargeClaim;
class PendingFrees;
class PoolResource;

/// Charges every block of its upstream to a budget.
class TERN_EXPORT BudgetResource final : public WrappingResource {
 public:
  /// Wraps `upstream`. Keeps the upstream and the budget alive. Several resources may share one
  /// budget. Throws InvalidArgument if either is null, DeviceMismatch if the budget belongs to
  /// another device, OutOfBudget if the upstream's live bytes do not fit, and OutOfMemory if the
  /// host has no memory.
  BudgetResource(ResourceHandle upstream, BudgetHandle budget);
  ~BudgetResource() override;

  [[nodiscard]] const BudgetHandle& budget() const noexcept { return budget_; }

  /// Pending bytes are bytes that were freed through this resource and are still charged.
  /// peak_live_bytes is exact while only one stream is used. With several streams it may be too
  /// high, but never above the peak of the budget.
  [[nodiscard]] Statistics statistics() const noexcept override;
  /// Allocates a block. Fails with out_of_budget; with invalid_argument if the request names a
  /// reservation of a budget that is neither this one nor above it; or with the upstream's error.
  /// May wait, see above.
  [[nodiscard]] Result<Block> try_allocate(const Request& request) noexcept override;
  /// Frees the block in the upstream. Fails as the upstream does, or with use_after_free if another
  /// thread is freeing the block at the moment.
  [[nodiscard]] Result<void> try_deallocate(
      const Block& block, StreamRef stream,
      const CallSite& site = CallSite::here()) noexcept override;

 private:
  friend class PendingFrees;

  [[nodiscard]] bool recycle(const Request& request, Block& into) noexcept override;
  void allocate_slow(const Request& request, Result<Block>& block) noexcept;
  [[nodiscard]] Result<Block> allocate_drawn(const Request& request, std::size_t bytes) noexcept;
  [[nodiscard]] Result<Block> allocate_at_limit(const Request& request, std::size_t bytes) noexcept;
  [[nodiscard]] Result<Block> allocate_claimed(const Request& request, std::size_t bytes) noexcept;
  // Tries step 2 above. Returns an empty block if the stream's freed memory does not suffice.
  [[nodiscard]] Block allocate_recycled(const Request& request, std::size_t bytes) noexcept;
  // Charges a block that the upstream has recycled and whose charge had ended. Returns false if
  // there is no room; then the block is freed again.
  [[nodiscard]] bool charge_recycled(const Block& block, const Request& request) noexcept;
  [[nodiscard]] Result<void> fit_claim(const Request& request, std::size_t claimed,
                                       std::size_t granted) noexcept;
  // Prepares the charge of an allocated block. Fails if the host has no memory for it.
  [[nodiscard]] Result<BlockCharge*> try_make_charge(const Block& block,
                                                     const Request& request) noexcept;
  [[nodiscard]] Failure refuse(const Budget& level, const Request& request,
                               std::size_t bytes) const noexcept;
  [[nodiscard]] Result<void> free_claimed(ChargeClaim claim, const Block& block, StreamRef stream,
                                          const CallSite& site) noexcept;
  [[nodiscard]] Result<void> free_unclaimed(const Block& block, StreamRef stream,
                                            const CallSite& site) noexcept;
  [[nodiscard]] Result<void> free_inherited(const Block& block, StreamRef stream,
                                            const CallSite& site) noexcept;
  // The mark that ends the charge of a block that was just freed on the stream. No mark if the
  // charge ends with the free.
  [[nodiscard]] Mark mark_of_free(StreamRef stream) const noexcept;
  [[nodiscard]] Mark mark_of_other_free(StreamRef stream) const noexcept;

  const BudgetHandle budget_;
  const bool frees_without_waiting_;
  const bool frees_for_host_at_once_;
  PoolResource* const pool_;  // the pool that the budget bounds, or null; kept by upstream()
  Mutex inherited_mutex_;
  Charge inherited_;  // guarded by inherited_mutex_; charge of blocks that existed before
  std::shared_ptr<ChargeBook> book_;
};

/// Returns the strictest Overflow policy among the budgets of a stack of wrappers. Returns
/// Overflow::spill if the stack has no BudgetResource, or for null.
[[nodiscard]] TERN_EXPORT Overflow overflow_of(const Resource* resource) noexcept;

}  // namespace tern
