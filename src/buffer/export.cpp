// Counts exports and reclaims exported memory after a device-wide wait.

#include <atomic>
#include <optional>

#include "buffer/deferred_frees.hpp"
#include "buffer/export_batch.hpp"
#include "core/no_host_memory.hpp"
#include "tern/buffer/foreign.hpp"

namespace tern {
namespace {

constinit std::atomic<std::size_t> exports = 0, exported_bytes = 0;

/// Bounds the memory of a program that exports often and never waits for the device. If the wait
/// fails, for example during a graph capture, the export goes on and a later one waits.
[[gnu::cold, gnu::noinline]] void reclaim_above_threshold() noexcept {
  static_cast<void>(try_reclaim_exported());
  DeferredFrees::reset_reclaim_threshold();
}

}  // namespace

ExportBatch::~ExportBatch() {
  if (exports_ != 0) exports.fetch_add(exports_, std::memory_order_relaxed);
  if (bytes_ != 0) exported_bytes.fetch_add(bytes_, std::memory_order_relaxed);
}

Result<void> ExportBatch::try_begin(Storage& storage, CallSite site) noexcept {
  if (DeferredFrees::should_reclaim()) [[unlikely]]
    reclaim_above_threshold();
  const bool may_be_paused = storage.resource() && storage.resource()->is_pausable();
  if (may_be_paused) {
    if (Result<void> there = storage.uses().check_not_paused(site); !there) return there;
  }
  const std::optional<std::size_t> bytes = storage.try_begin_export();
  if (!bytes) return no_host_memory("memory for others", site);
  ++exports_;
  bytes_ += *bytes;
  if (!may_be_paused) return {};
  // Again after the export has begun: either this check or a pause that begins now notices.
  Result<void> there = storage.uses().check_not_paused(site);
  if (!there) end(storage);
  return there;
}

void ExportBatch::end(Storage& storage) noexcept {
  --exports_;
  bytes_ -= storage.end_export();
}

Result<Export> Export::try_begin(const StorageHandle& storage, CallSite site) noexcept {
  if (!storage) {
    return Failure(ErrorCode::not_allocated,
                   "the buffer is empty: it was default-constructed, moved from or released. "
                   "Export a buffer that has memory.",
                   site)
        .with("id", std::uint64_t{0});
  }
  if (Result<void> begun = ExportBatch().try_begin(*storage, site); !begun) return begun.failure();
  Export made;
  made.storage_ = storage;
  return made;
}

void Export::end() noexcept {
  if (!storage_) return;
  ExportBatch().end(*storage_);
  storage_ = {};
}

MemoryCount exported_memory() noexcept {
  return {exports.load(std::memory_order_relaxed), exported_bytes.load(std::memory_order_relaxed)};
}

Result<MemoryCount> try_reclaim_exported() noexcept {
  for (;;) {
    const Device device = DeferredFrees::device_of_exported();
    if (device.is_open()) {
      if (Result<void> waited = device.try_synchronize();
          !waited && waited.failure().code() != ErrorCode::device_lost) {
        return waited.failure();
      }
    }
    // Freeing memory may call an owner that ends other exports, which need a wait of their own. So
    // repeat.
    const MemoryCount left = reclaim_deferred();
    if (!device.is_open() && !DeferredFrees::device_of_exported().is_open()) return left;
  }
}

}  // namespace tern
