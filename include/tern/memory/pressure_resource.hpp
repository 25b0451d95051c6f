// A PressureResource does not take "out of memory" for an answer at once: it asks others to give
// memory up, and tries again.
//
// When the upstream refuses with out_of_memory or out_of_budget, handlers run in order, each with
// the bytes needed, and the request is tried again after each that freed something; at most three
// rounds, and fewer if a round frees nothing. First come its own: frees that failed before are
// tried again, then the upstream is trimmed. The user's follow in the order they were added. If
// that was not enough and the request may wait, the device is waited for, and the request tried a
// last time. Other failures are handed on as they are, and success costs one branch.
//
// If a BudgetResource below refuses, its budget's Overflow says how far this goes: fail hands the
// refusal on, wait runs no handler, evict and spill run handlers and tell them how far they may go.
//
// Handlers are called with no lock held, by whichever thread needs memory, several at once; they
// may free to this resource and allocate from it. Requests that a handler makes are not helped in
// their turn. Thread-safe; keeps its upstream alive.

#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "tern/memory/budget.hpp"
#include "tern/memory/wrapping_resource.hpp"

namespace tern {

struct Pressure {
  std::size_t need_bytes = 0;
  DeviceId device = {};
  Tag tag = {};
  /// evict: the handler drops only what can be fetched again. spill: it may write the rest
  /// elsewhere first. Of a device that is full, spill.
  Overflow reach = Overflow::spill;
};

/// Gives the bytes it freed; must not wait for a stream. One that throws has freed nothing.
using PressureHandler = std::function<std::size_t(const Pressure&)>;

class TERN_EXPORT PressureResource final : public WrappingResource {
 public:
  static constexpr int max_rounds = 3;

  /// Throws InvalidArgument.
  explicit PressureResource(ResourceHandle upstream);

  /// Runs after those that are there. Gives a number to remove it by. Throws InvalidArgument.
  std::uint64_t add_handler(PressureHandler handler);
  /// Calls of it that are under way go on. False if there is none of that number.
  bool remove_handler(std::uint64_t number);

  /// A failure in spite of all has the last error's code, and the fields first_error, last_error,
  /// rounds and freed beside those of the sentence.
  [[nodiscard]] Result<Block> try_allocate(const Request& request) noexcept override;

  /// Requests that needed help, and those that it came in time for.
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
  /// How far the request may go that was refused with this.
  [[nodiscard]] Overflow reach_for(const Failure& refusal) const noexcept;
  [[nodiscard]] Result<Block> try_under_pressure(const Request& request,
                                                 const Failure& first) noexcept;

  const Overflow budget_reach_;  // of the budgets below, the least
  mutable std::mutex mutex_;
  std::shared_ptr<const Handlers> handlers_;  // guarded by mutex_, replaced and never changed
  std::uint64_t last_number_ = 0;             // guarded by mutex_
  std::atomic<std::uint64_t> pressed_ = 0;
  std::atomic<std::uint64_t> rescued_ = 0;
  std::atomic<std::uint64_t> thrown_ = 0;
};

}  // namespace tern
