// PendingFrees knows the books of all BudgetResources of a tree of budgets, and so all charges of
// freed blocks that their streams have not passed yet.
//
// A book leaves the list when its resource is destroyed and nothing of it is pending. Thread-safe.

#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <vector>

#include "core/fork_count.hpp"
#include "core/process.hpp"
#include "memory/charge_book.hpp"
#include "tern/device/mark.hpp"
#include "tern/memory/budget.hpp"

namespace tern {

class BudgetResource;

class PendingFrees {
 public:
  PendingFrees() noexcept = default;
  PendingFrees(const PendingFrees&) = delete;
  PendingFrees& operator=(const PendingFrees&) = delete;

  /// Makes the book of a resource, and retries failed frees of the resource in drain() until
  /// forget() returns. Throws std::bad_alloc.
  [[nodiscard]] std::shared_ptr<ChargeBook> make_book(Budget& budget, BudgetResource& resource);
  /// The resource is destroyed. Its pending charges stay with the budget.
  void forget(const BudgetResource& resource) noexcept;
  /// The budget is destroyed. Its pending charges belong to its parent.
  void forget(const Budget& budget) noexcept;

  /// Ends the charges whose marks are done, and returns their bytes. Never waits.
  std::size_t drain() noexcept;
  void retry_failed_frees() noexcept;
  /// A limit of the tree has changed: tells the pools below.
  void bound_pools() noexcept;
  /// Returns the unused memory of the pools below to the driver. Returns the bytes.
  std::size_t trim_pools() noexcept;
  /// Returns the pending bytes that are charged to the budget or below it.
  [[nodiscard]] std::size_t bytes(const Budget& budget) const noexcept;
  /// Returns the pending bytes of a stream.
  [[nodiscard]] std::size_t bytes(StreamId stream) const noexcept;
  /// Returns the oldest pending charge after `after` that is charged to `budget` or below it. A
  /// null budget means any.
  [[nodiscard]] std::optional<ChargeBook::Oldest> oldest(
      const Budget* budget, const ChargeBook::Oldest& after) const noexcept;

  /// The order of a free now. Frees between two calls of next_order() have the same order, because
  /// a counter that every free changes would be contended.
  [[nodiscard]] std::uint64_t order() const noexcept {
    return orders_.load(std::memory_order_relaxed);
  }
  /// Begins a new order and returns the last one.
  std::uint64_t next_order() noexcept { return orders_.fetch_add(1, std::memory_order_relaxed); }

  /// How many queries of streams have failed so far.
  [[nodiscard]] std::uint64_t failed_queries() const noexcept {
    return failed_queries_.load(std::memory_order_relaxed);
  }
  void note_failed_query() noexcept { failed_queries_.fetch_add(1, std::memory_order_relaxed); }

 private:
  struct Entry {
    std::shared_ptr<ChargeBook> book;
    BudgetResource* resource = nullptr;  // null once it is destroyed
    std::size_t users = 0;               // threads that are in visit() with it
  };
  /// Calls `visit` with every resource for which `is_due` returns true. The lock is not held during
  /// `visit`, which may call the driver.
  template <class IsDue, class Visit>
  void visit_resources(IsDue is_due, Visit visit) noexcept;
  /// Drops the books of destroyed resources of which nothing is pending.
  void drop_empty() noexcept;

  /// In a forked child, a thread that does not exist may hold the locks, and nothing is pending: no
  /// stream of the parent uses the memory of the child.
  [[nodiscard]] bool is_forked() const noexcept { return !is_same_process(process_); }

  const std::uint64_t process_ = process_generation();
  mutable std::shared_mutex mutex_;
  std::condition_variable_any user_left_;
  std::vector<Entry> entries_;  // guarded by mutex_
  std::atomic<std::size_t> detached_books_ = 0;
  std::atomic<std::uint64_t> orders_ = 1;
  std::atomic<std::uint64_t> failed_queries_ = 0;
};

}  // namespace tern
