#include "coherence/asked_eviction.hpp"

#include <algorithm>
#include <memory>
#include <new>
#include <optional>
#include <vector>

#include "coherence/eviction_request.hpp"
#include "coherence/residents.hpp"
#include "coherence/unified_core.hpp"
#include "tern/memory/budget_resource.hpp"

namespace tern {
namespace {

/// Returns the highest kind of copies that the policy allows to evict.
std::optional<Eviction> most_for(Overflow reach) noexcept {
  if (reach < Overflow::evict) return std::nullopt;
  return reach == Overflow::evict ? Eviction::clean : Eviction::dirty;
}

}  // namespace

std::size_t evict_for_others(const Budget& budget, std::size_t bytes, Overflow reach) noexcept try {
  // The lists outlive the candidates, which hold their buffers.
  const std::vector<std::shared_ptr<Residents>> places = Residents::all();
  RetainedCandidates found;
  for (const std::shared_ptr<Residents>& place : places) {
    place->visit([&](const Resident& one) {
      const UnifiedCore::Evictability now = one.owner()->evictability(one.memory());
      if (!now.can_go || now.bytes == 0 || !is_charged_to(now.resource, budget)) return;
      const std::optional<Eviction> most = most_for(std::min(reach, overflow_of(now.resource)));
      if (!most || now.kind > *most) return;
      found.add({now.kind, one.last_use(), now.bytes, one.owner(), one.memory()});
    });
  }
  sort_by_eviction_order(found.all);
  std::size_t evicted = 0;
  for (const Candidate& one : found.all) {
    if (evicted >= bytes) break;
    // The kind at most: a copy that has become dirty since was used, and stays.
    const Result<std::size_t> gone = one.owner->try_evict(one.memory, one.kind, {}, {});
    if (gone) evicted += *gone;
  }
  return evicted;
} catch (const std::bad_alloc&) {
  return 0;
}

}  // namespace tern
