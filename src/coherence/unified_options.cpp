#include "coherence/unified_options.hpp"

#include <algorithm>

namespace tern {
namespace {

bool gives_host_memory(const ResourceHandle& resource) noexcept {
  if (!resource) return false;
  const MemoryKind kind = resource->traits().kind;
  return kind == MemoryKind::host ||
         (kind == MemoryKind::device && resource->device().info().is_host);
}

/// Fails if the pages of the host copy cannot be protected.
Result<void> try_guard(const UnifiedOptions& asked) noexcept {
  const Device& device = asked.device;
  if (device.info().is_host || device.can(Capability::host_access)) {
    return Failure(ErrorCode::unsupported,
                   "the pages of buffer '{tag}' cannot be guarded: '{device}' accesses the host's "
                   "memory directly. Turn UnifiedOptions::guard off, or use 'sim'.",
                   asked.site)
        .with("what", "guard")
        .with("device", device.spec())
        .with("tag", asked.tag.name());
  }
  const bool is_pinned = asked.pinned == Pinned::required;
  if (is_pinned || std::ranges::any_of(asked.resources, gives_host_memory)) {
    return Failure(ErrorCode::invalid_argument,
                   "the pages of buffer '{tag}' cannot be guarded with {value}: Tern guards only "
                   "pageable memory that it allocates itself. Remove {value}, or turn "
                   "UnifiedOptions::{name} off.",
                   asked.site)
        .with("name", "guard")
        .with("value", is_pinned ? "Pinned::required" : "a resource of host memory")
        .with("tag", asked.tag.name());
  }
  return {};
}

}  // namespace

Result<UnifiedOptions> try_decide(const UnifiedOptions& asked, const Config& config) {
  const Device& device = asked.device;
  if (asked.pinned == Pinned::required && !device.info().is_host &&
      device.can(Capability::host_access)) {
    return Failure(ErrorCode::unsupported,
                   "buffer '{tag}' has no host copy to page-lock: '{device}' uses the host's "
                   "memory directly. Use Pinned::prefer.",
                   asked.site)
        .with("what", "Pinned::required")
        .with("device", device.spec())
        .with("tag", asked.tag.name());
  }
  UnifiedOptions decided = asked;
  if (!asked.checked) {
    decided.checked = config.checked || config.check_poison || config.check_checksum;
  }
  if (!asked.compare) decided.compare = config.check_compare;
  const bool wants_guard = asked.guard.value_or(config.check_guard);
  decided.guard = wants_guard;
  if (wants_guard) {
    if (Result<void> can = try_guard(asked); !can) {
      if (asked.guard) return can.failure();
      decided.guard = false;
    }
  }
  return decided;
}

}  // namespace tern
