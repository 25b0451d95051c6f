#include "memory/pool/alias_store.hpp"

#include <algorithm>
#include <new>

#include "core/no_host_memory.hpp"

namespace tern::pool {

AliasStore::~AliasStore() {
  // A call may fail once and succeed when it is repeated.
  constexpr int max_attempts = 3;
  for_each([this](Alias& one) {
    for (int attempt = 0; attempt < max_attempts; ++attempt) {
      if (pages_.try_unmap_again(one.offset, one.all_homes(), one.unmapped_pages)) return;
    }
  });
}

Result<Alias*> AliasStore::try_make(std::span<const PageStore::Run> homes) noexcept {
  if (!aliases_) {
    aliases_.reset(new (std::nothrow) std::array<Alias, max_aliases>);
    if (!aliases_) return no_host_memory(sizeof *aliases_, "the records of pages");
  }
  Alias* entry = nullptr;
  for (Alias& one : *aliases_) {
    if (one.offset == 0) {
      entry = &one;
      break;
    }
    if (!one.is_idle()) continue;
    if (entry == nullptr || one.last_use < entry->last_use) entry = &one;
  }
  if (entry == nullptr) return Failure(ErrorCode::capacity);
  if (entry->offset != 0) {
    if (Result<void> dropped = try_drop(*entry); !dropped) return dropped.failure();
  }
  const Result<std::uint64_t> offset = pages_.try_map_again(homes);
  if (!offset) return offset.failure();
  *entry = Alias{.offset = *offset,
                 .pages = PageStore::count_pages(homes),
                 .home_count = homes.size(),
                 .last_use = ++clock_};
  std::ranges::copy(homes, entry->homes.begin());
  ++count_;
  credit_ -= cost_of_alias;
  return entry;
}

void AliasStore::note_reuse(Alias& alias) noexcept {
  alias.last_use = ++clock_;
  credit_ = std::min(credit_ + 1, first_credit);
}

Result<void> AliasStore::try_drop(Alias& alias) noexcept {
  if (Result<void> gone =
          pages_.try_unmap_again(alias.offset, alias.all_homes(), alias.unmapped_pages);
      !gone) {
    return gone;
  }
  alias = {};
  --count_;
  return {};
}

Result<void> AliasStore::try_drop_idle() noexcept {
  Result<void> result = pages_.try_unmap_remnants();
  for_each([&](Alias& one) {
    if (result && one.is_idle()) result = try_drop(one);
  });
  return result;
}

}  // namespace tern::pool
