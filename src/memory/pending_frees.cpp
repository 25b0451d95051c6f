#include "memory/pending_frees.hpp"

#include <algorithm>
#include <utility>

#include "tern/memory/budget_resource.hpp"
#include "tern/memory/pool_resource.hpp"

namespace tern {

std::shared_ptr<ChargeBook> PendingFrees::make_book(Budget& budget, BudgetResource& resource) {
  auto book = std::make_shared<ChargeBook>(budget, *this);
  const std::lock_guard lock(mutex_);
  entries_.push_back({book, &resource});
  return book;
}

void PendingFrees::forget(const BudgetResource& resource) noexcept {
  std::unique_lock lock(mutex_);
  const auto find = [&] { return std::ranges::find(entries_, &resource, &Entry::resource); };
  user_left_.wait(lock, [&] { return find()->users == 0; });
  find()->book->detach();
  find()->resource = nullptr;
  detached_books_.fetch_add(1, std::memory_order_relaxed);
  drop_empty();
}

void PendingFrees::forget(const Budget& budget) noexcept {
  const std::lock_guard lock(mutex_);
  for (const Entry& entry : entries_) {
    if (entry.book->has_budget(&budget)) entry.book->set_budget(budget.parent().get());
  }
}

void PendingFrees::drop_empty() noexcept {
  const std::size_t dropped = std::erase_if(entries_, [](const Entry& entry) {
    return entry.resource == nullptr && entry.book->pending_bytes() == 0;
  });
  detached_books_.fetch_sub(dropped, std::memory_order_relaxed);
}

std::size_t PendingFrees::drain() noexcept {
  if (is_forked()) return 0;
  std::size_t ended = 0;
  // Frees that arrive during this call are left for the next one; otherwise it might never end.
  const std::uint64_t last = next_order();
  {
    // Shared, and held while devices are queried: the budget of a book must not be destroyed before
    // the book has released its charges. Only making and destroying budgets and BudgetResources of
    // the tree waits for this.
    const std::shared_lock lock(mutex_);
    for (const Entry& entry : entries_) ended += entry.book->drain(last);
  }
  if (ended > 0 && detached_books_.load(std::memory_order_relaxed) > 0) {
    const std::lock_guard lock(mutex_);
    drop_empty();
  }
  return ended;
}

template <class IsDue, class Visit>
void PendingFrees::visit_resources(IsDue is_due, Visit visit) noexcept {
  const auto is_entry_due = [&](const Entry& entry) {
    return entry.resource != nullptr && is_due(*entry.resource);
  };
  {
    const std::shared_lock lock(mutex_);
    if (std::ranges::none_of(entries_, is_entry_due)) return;
  }
  std::unique_lock lock(mutex_);
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    if (!is_entry_due(entries_[i])) continue;
    // The user count keeps this resource in the list meanwhile; other entries may change.
    BudgetResource* const resource = entries_[i].resource;
    ++entries_[i].users;
    lock.unlock();
    visit(*resource);
    lock.lock();
    --std::ranges::find(entries_, resource, &Entry::resource)->users;
    user_left_.notify_all();
  }
}

void PendingFrees::retry_failed_frees() noexcept {
  visit_resources([](const BudgetResource& one) { return one.has_failed_frees(); },
                  [](BudgetResource& one) { one.retry_failed_frees(); });
}

void PendingFrees::bound_pools() noexcept {
  if (is_forked()) return;
  visit_resources([](const BudgetResource& one) { return one.pool_ != nullptr; },
                  [](const BudgetResource& one) { one.pool_->update_bound(); });
}

std::size_t PendingFrees::trim_pools() noexcept {
  std::size_t trimmed = 0;
  if (is_forked()) return trimmed;
  visit_resources([](const BudgetResource& one) { return one.pool_ != nullptr; },
                  [&](const BudgetResource& one) { trimmed += one.pool_->trim(0); });
  return trimmed;
}

std::size_t PendingFrees::bytes(const Budget& budget) const noexcept {
  if (is_forked()) return 0;
  std::size_t sum = 0;
  const std::shared_lock lock(mutex_);
  for (const Entry& entry : entries_) {
    if (entry.book->is_under(&budget)) sum += entry.book->pending_bytes();
  }
  return sum;
}

std::size_t PendingFrees::bytes(StreamId stream) const noexcept {
  if (is_forked()) return 0;
  std::size_t sum = 0;
  const std::shared_lock lock(mutex_);
  for (const Entry& entry : entries_) sum += entry.book->pending_bytes(stream);
  return sum;
}

std::optional<ChargeBook::Oldest> PendingFrees::oldest(
    const Budget* budget, const ChargeBook::Oldest& after) const noexcept {
  std::optional<ChargeBook::Oldest> first;
  if (is_forked()) return first;
  const std::shared_lock lock(mutex_);
  for (const Entry& entry : entries_) {
    if (budget != nullptr && !entry.book->is_under(budget)) continue;
    const std::optional<ChargeBook::Oldest> one = entry.book->oldest(after);
    if (one && (!first || *one < *first)) first = one;
  }
  return first;
}

}  // namespace tern
