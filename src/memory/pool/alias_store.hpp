// An Alias maps whole free handles of a pool a second time, side by side, so that they can serve a
// large request that no contiguous free range can serve.
//
// The handles stay mapped where they were, at their home. While a block uses the alias, the homes
// are held; after the block's last use is done, the homes are free again, and the alias stays
// mapped. If the same handles are free when a later request of this size comes, that request costs
// no driver call. So a program that repeats its steps soon makes no driver calls. If handles were
// moved instead, it would move the same handles back and forth.
//
// Making an alias costs more than growing. A credit limits how many are made: it rises each time an
// alias is reused, so a program that does not reuse its aliases soon makes no more of them.
//
// Handles must not be unmapped or released while an alias maps them: drop the aliases first. Not
// thread-safe: the pool holds its growth lock. Only the end of a use is noted under the lock of the
// ranges alone (Alias::set_idle).

#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "memory/pool/descriptor.hpp"
#include "memory/pool/page_store.hpp"
#include "tern/core/result.hpp"

namespace tern::pool {

struct Alias {
  static constexpr std::size_t max_homes = 16;
  using Held = std::array<Descriptor*, max_homes>;

  std::uint64_t offset = 0;  // of the second addresses, in granules; 0 if the alias does not exist
  std::uint64_t pages = 0;
  std::array<PageStore::Run, max_homes> homes = {};
  std::size_t home_count = 0;
  /// The block that uses the alias, and the ranges of the homes. Null while the alias is idle. It
  /// is set with both locks held, and reset by set_idle() with the lock of the ranges held.
  Descriptor* block = nullptr;
  Held held = {};
  /// Pages that are unmapped already, because an unmap failed midway. The next one goes on there.
  std::uint64_t unmapped_pages = 0;
  std::uint64_t last_use = 0;

  /// A thread that holds the growth lock sees that the homes are free again if this returns true.
  [[nodiscard]] bool is_idle() noexcept {
    return std::atomic_ref(block).load(std::memory_order_acquire) == nullptr;
  }
  void set_idle() noexcept { std::atomic_ref(block).store(nullptr, std::memory_order_release); }
  [[nodiscard]] std::span<const PageStore::Run> all_homes() const noexcept {
    return std::span(homes).first(home_count);
  }
};

class AliasStore {
 public:
  static constexpr std::size_t max_aliases = 64;

  explicit AliasStore(PageStore& pages) noexcept : pages_(pages) {}
  /// Removes all aliases; errors of the driver are ignored.
  ~AliasStore();
  AliasStore(const AliasStore&) = delete;
  AliasStore& operator=(const AliasStore&) = delete;

  /// Returns whether the credit allows another alias.
  [[nodiscard]] bool may_make() const noexcept { return credit_ >= cost_of_alias; }
  /// Maps the homes side by side. If there are max_aliases, removes the idle one that was used
  /// least recently. Fails if none is idle, or with the failure of the driver; then nothing is
  /// mapped.
  [[nodiscard]] Result<Alias*> try_make(std::span<const PageStore::Run> homes) noexcept;
  /// Notes that another block begins to use the alias.
  void note_reuse(Alias& alias) noexcept;
  /// Removes all idle aliases. Stops at the first failure of the driver.
  [[nodiscard]] Result<void> try_drop_idle() noexcept;

  [[nodiscard]] std::size_t count() const noexcept { return count_; }
  template <class Visit>
  void for_each(Visit visit) noexcept {
    if (!aliases_) return;
    for (Alias& one : *aliases_) {
      if (one.offset != 0) visit(one);
    }
  }

 private:
  /// An alias may be made for every fourth reuse of one, and 64 before any reuse.
  static constexpr std::uint64_t cost_of_alias = 4, first_credit = 64 * cost_of_alias;

  [[nodiscard]] Result<void> try_drop(Alias& alias) noexcept;

  PageStore& pages_;
  std::unique_ptr<std::array<Alias, max_aliases>> aliases_;  // allocated with the first alias
  std::size_t count_ = 0;
  std::uint64_t credit_ = first_credit;
  std::uint64_t clock_ = 0;
};

}  // namespace tern::pool
