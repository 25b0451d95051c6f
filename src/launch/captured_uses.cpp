#include "launch/captured_uses.hpp"

#include <algorithm>
#include <atomic>
#include <new>
#include <utility>

#include "core/no_host_memory.hpp"

namespace tern {
namespace {

struct OpenCapture {
  StreamId origin;
  std::shared_ptr<CapturedUses> uses;
};

struct OpenCaptures {
  std::mutex mutex;
  std::vector<OpenCapture> all;  // guarded by mutex
  /// The size, so that a launch without captures takes no lock.
  std::atomic<std::size_t> count = 0;
};

OpenCaptures& captures() {
  static OpenCaptures open;
  return open;
}

}  // namespace

Result<std::shared_ptr<CapturedUses>> CapturedUses::try_find(StreamRef stream,
                                                             CallSite site) noexcept {
  OpenCaptures& open = captures();
  if (open.count.load(std::memory_order_relaxed) == 0) return std::shared_ptr<CapturedUses>();
  std::size_t of_device = 0;
  std::shared_ptr<CapturedUses> found;
  {
    const std::lock_guard lock(open.mutex);
    for (const OpenCapture& one : open.all) {
      if (one.origin == stream.id()) return one.uses;
      if (one.origin.device() != stream.device_id()) continue;
      ++of_device;
      found = one.uses;
    }
  }
  if (of_device == 0) return std::shared_ptr<CapturedUses>();
  const Result<bool> is_captured = stream.try_is_capturing();
  if (!is_captured) return Failure(is_captured.failure()).at(site);
  if (!*is_captured) return std::shared_ptr<CapturedUses>();
  if (of_device == 1) return found;
  return Failure(ErrorCode::stream_misuse,
                 "the uses of work on stream {stream} cannot be captured: {why}. Launch the kernel "
                 "on the stream on which its capture began, or end the other captures first.",
                 site)
      .with("stream", stream.id().number())
      .with("why", "the device has several open captures");
}

Result<std::shared_ptr<CapturedUses>> CapturedUses::try_open(StreamRef stream,
                                                             CallSite site) noexcept try {
  auto uses = std::make_shared<CapturedUses>();
  OpenCaptures& open = captures();
  const std::lock_guard lock(open.mutex);
  open.all.push_back({stream.id(), uses});
  open.count.store(open.all.size(), std::memory_order_relaxed);
  return uses;
} catch (const std::bad_alloc&) {
  return no_host_memory(sizeof(CapturedUses), "a capture", site);
}

void CapturedUses::close(const std::shared_ptr<CapturedUses>& uses) noexcept {
  OpenCaptures& open = captures();
  const std::lock_guard lock(open.mutex);
  std::erase_if(open.all, [&](const OpenCapture& one) { return one.uses == uses; });
  open.count.store(open.all.size(), std::memory_order_relaxed);
}

Result<void> CapturedUses::try_reserve(std::size_t count, CallSite site) noexcept try {
  const std::lock_guard lock(mutex_);
  const std::size_t needed = uses_.size() + count;
  if (needed > uses_.capacity()) uses_.reserve(2 * needed);
  return {};
} catch (const std::bad_alloc&) {
  return no_host_memory("the uses of a graph", site);
}

void CapturedUses::add(StorageHandle storage, std::size_t offset, std::size_t bytes,
                       Access access) noexcept {
  const std::lock_guard lock(mutex_);
  const auto same = std::ranges::find_if(uses_, [&](const CapturedUse& use) {
    return use.storage == storage && use.offset == offset && use.bytes == bytes;
  });
  if (same != uses_.end()) {
    // As in a UseScope: reading and discarding is reading and writing.
    same->access = merge(same->access, access);
  } else {
    uses_.push_back({std::move(storage), offset, bytes, access});
  }
}

Result<void> CapturedUses::try_keep(std::shared_ptr<KernelState> kernel, CallSite site) noexcept
    try {
  const std::lock_guard lock(mutex_);
  if (std::ranges::find(kernels_, kernel) == kernels_.end()) kernels_.push_back(std::move(kernel));
  return {};
} catch (const std::bad_alloc&) {
  return no_host_memory("the kernels of a graph", site);
}

}  // namespace tern
