// A PressureResource reacts to an out-of-memory failure: it asks handlers to free memory and
// retries.
//
//   auto resource = std::make_shared<PressureResource>(pool);
//   resource->add_handler([&](const Pressure& p) { return cache.evict(p.need_bytes); });
//
// When the upstream fails with out_of_memory or out_of_budget, the resource runs up to three
// rounds. A round stops as soon as the request succeeds, and a round that frees nothing is the last
// one. In each round the resource takes these steps and retries the request after every step that
// freed something:
//
//   1. It retries frees that failed before.
//   2. It trims the upstream.
//   3. It calls the program's handlers in the order in which they were added.
//
// If the rounds do not help and the request may wait, the resource waits for the device and tries a
// last time. Other failures are returned unchanged. A request that succeeds at once costs one
// branch more.
//
// If a BudgetResource below fails the request, the budget's Overflow decides: `fail` returns the
// failure, `wait` runs no handler, `evict` and `spill` run handlers and tell them how far to go.
//
// Handlers run on the thread that needs memory, with no lock held. Several threads may run them at
// the same time. A handler may free to this resource and allocate from it, but its own requests run
// no handlers. Thread-safe. Keeps its upstream alive.

#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "tern/detail/core/any_function.hpp"
#include "tern/detail/core/mutex.hpp"
#include "tern/detail/memory/wrapping_resource.hpp"
#include "tern/memory/budget.hpp"

namespace tern {

/// The argument of a handler.
struct Pressure {
  /// The size that the request needs, as granted.
  std::size_t need_bytes = 0;
  DeviceId device = {};
  Tag tag = {};
  /// `evict`: the handler may only drop data that can be fetched again. `spill`: the handler may
  /// also write data elsewhere and then drop it. If the device is full, rather than a budget,
  /// always `spill`.
  Overflow reach = Overflow::spill;
};

/// Frees memory and returns the number of bytes freed. Must not wait for a stream. A handler that
/// throws counts as having freed nothing.
using PressureHandler = AnyFunction<std::size_t(const Pressure&)>;

/// Retries failed requests after asking handlers for memory.
class TERN_EXPORT PressureResource final : public WrappingResource {
 public:
  /// Upper bound on the rounds per request.
  static constexpr int max_rounds = 3;

  /// Throws InvalidArgument if `upstream` is null.
  explicit PressureResource(ResourceHandle upstream);

  /// Adds a handler behind the existing ones. Returns a number for remove_handler(). Throws
  /// InvalidArgument for an empty function, and std::bad_alloc.
  std::uint64_t add_handler(PressureHandler handler);
  /// Removes a handler. Calls of the handler that are in progress finish. Returns false if there is
  /// no handler with this number.
  bool remove_handler(std::uint64_t number);

  /// Allocates a block, under pressure if needed. If everything fails, the error has the code of
  /// the last failure and, besides the fields of its message, first_error, last_error, rounds and
  /// freed.
  [[nodiscard]] Result<Block> try_allocate(const Request& request) noexcept override;

  /// Counts of requests that ran under pressure, of those that then succeeded
  /// (rescued_requests()), and of exceptions from handlers (thrown_by_handlers()).
  [[nodiscard]] std::uint64_t pressed_requests() const noexcept { return pressed_.load(); }
  [[nodiscard]] std::uint64_t rescued_requests() const noexcept { return rescued_.load(); }
  [[nodiscard]] std::uint64_t thrown_by_handlers() const noexcept { return thrown_.load(); }

 private:
  struct Numbered {
    std::uint64_t number = 0;
    PressureHandler handler = {};
  };
  using Handlers = std::vector<Numbered>;

  [[nodiscard]] std::shared_ptr<const Handlers> handlers() const noexcept;
  /// Returns how far handlers may go after this failure.
  [[nodiscard]] Overflow reach_for(const Failure& refusal) const noexcept;
  [[nodiscard]] Result<Block> try_under_pressure(const Request& request,
                                                 const Failure& first) noexcept;

  const Overflow budget_reach_;  // strictest policy of the budgets below
  mutable Mutex mutex_;
  std::shared_ptr<const Handlers> handlers_;  // guarded by mutex_; copied on write
  std::uint64_t last_number_ = 0;             // guarded by mutex_
  std::atomic<std::uint64_t> pressed_ = 0;
  std::atomic<std::uint64_t> rescued_ = 0;
  std::atomic<std::uint64_t> thrown_ = 0;
};

}  // namespace tern
