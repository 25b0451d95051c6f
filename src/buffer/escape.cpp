// Counts exports and reclaims exported memory after a device-wide wait.

#include "tern/buffer/escape.hpp"

#include <atomic>

#include "buffer/escape_batch.hpp"
#include "buffer/kept_storages.hpp"
#include "core/no_host_memory.hpp"

namespace tern {
namespace {

constinit std::atomic<std::size_t> escapes = 0, escaped_bytes = 0;

/// Bounds the memory of a program that exports often and never waits for the device. If the wait
/// fails, for example during a graph capture, the export goes on and a later one waits.
[[gnu::cold, gnu::noinline]] void reclaim_crowd() noexcept {
  static_cast<void>(try_reclaim_escaped());
  KeptStorages::see_crowd();
}

}  // namespace

EscapeBatch::~EscapeBatch() {
  if (escapes_ != 0) escapes.fetch_add(escapes_, std::memory_order_relaxed);
  if (bytes_ != 0) escaped_bytes.fetch_add(bytes_, std::memory_order_relaxed);
}

bool EscapeBatch::try_begin(Storage& storage) noexcept {
  if (KeptStorages::is_crowded()) [[unlikely]]
    reclaim_crowd();
  const std::optional<std::size_t> bytes = storage.try_begin_escape();
  if (!bytes) return false;
  ++escapes_;
  bytes_ += *bytes;
  return true;
}

void EscapeBatch::end(Storage& storage) noexcept {
  --escapes_;
  bytes_ -= storage.end_escape();
}

Result<Escape> Escape::try_begin(const StorageHandle& storage, CallSite site) noexcept {
  if (!storage) {
    return Failure(ErrorCode::not_allocated,
                   "this buffer is none: it was made by default, moved from or released. There is "
                   "nothing to give to others.",
                   site)
        .with("id", std::uint64_t{0});
  }
  if (!EscapeBatch().try_begin(*storage)) return no_host_memory("memory for others", site);
  Escape escape;
  escape.storage_ = storage;
  return escape;
}

void Escape::end() noexcept {
  if (!storage_) return;
  EscapeBatch().end(*storage_);
  storage_ = {};
}

EscapedCount escaped_memory() noexcept {
  return {escapes.load(std::memory_order_relaxed), escaped_bytes.load(std::memory_order_relaxed)};
}

Result<KeptStorageCount> try_reclaim_escaped() noexcept {
  for (;;) {
    const Device device = KeptStorages::device_behind_strangers();
    if (device.is_open()) {
      if (Result<void> waited = device.try_synchronize();
          !waited && waited.failure().code() != ErrorCode::device_lost) {
        return waited.failure();
      }
    }
    // Freeing memory may call an owner that ends other exports, which need a wait of their own. So
    // repeat.
    const KeptStorageCount left = poll_storages();
    if (!device.is_open() && !KeptStorages::device_behind_strangers().is_open()) return left;
  }
}

}  // namespace tern
