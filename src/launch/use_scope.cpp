// try_begin() collects the earlier uses of all storages and queues one wait per stream.

#include "tern/launch/use_scope.hpp"

#include <functional>

#include "buffer/copy_route.hpp"
#include "buffer/stream_order.hpp"
#include "core/no_host_memory.hpp"
#include "launch/captured_uses.hpp"
#include "launch/last_mark.hpp"

namespace tern {
namespace {

Failure misuse(StreamRef stream, const char* why, CallSite site) noexcept {
  return Failure(ErrorCode::stream_misuse,
                 "the uses of a scope on stream {stream} cannot change: {why}.", site)
      .with("stream", stream.id().number())
      .with("why", why);
}

}  // namespace

UseScope::~UseScope() { finish(Outcome::submitted); }

Result<std::size_t> UseScope::try_put(Storage* storage, std::size_t offset, std::size_t bytes,
                                      Access access, const CallSite& site) noexcept {
  if (phase_ != Phase::open)
    return misuse(stream_, "the uses have begun. Add uses before begin", site);
  if (!uses_.try_reserve(size() + 1)) return no_host_memory("a list of uses", site);
  const auto index = static_cast<std::uint32_t>(size());
  Use& use = uses_.emplace_back();
  use.offset = offset;
  use.bytes = bytes;
  use.site = site;
  use.first = index;
  use.access = use.merged = access;
  if (bytes == 0) return std::size_t{index};
  // Requested now, so that requests for several storages come together: a use cannot prefetch the
  // next storage while it holds the lock of the one before.
  __builtin_prefetch(storage, 1);
  __builtin_prefetch(reinterpret_cast<const std::byte*>(storage) + 64, 1);
  use.storage = storage;
  Use* const all = uses_.data();
  for (std::uint32_t i = 0; i < index; ++i) {
    if (all[i].storage != storage) continue;
    use.first = i;
    all[i].merged = merge(all[i].merged, access);
    break;
  }
  return std::size_t{index};
}

Result<std::size_t> UseScope::try_add(const StorageHandle& storage, std::size_t offset,
                                      std::size_t bytes, Access access, CallSite site) noexcept {
  const Result<std::size_t> index = try_put(storage.get(), offset, bytes, access, site);
  if (index && bytes != 0) uses_[*index].owner = storage;
  return index;
}

Result<std::size_t> UseScope::try_add_brought(Storage* storage, std::size_t offset,
                                              std::size_t bytes, Access access,
                                              CallSite site) noexcept {
  const Result<std::size_t> index = try_put(storage, offset, bytes, access, site);
  if (index) uses_[*index].is_brought = true;
  return index;
}

std::byte* UseScope::brought_address(const Use& use) const noexcept {
  return address_for(*use.storage, stream_.device_id());
}

Result<void> UseScope::check(CallSite site) noexcept {
  if (phase_ != Phase::open)
    return misuse(stream_, "the uses have already begun. Create another scope", site);
  // All memory of one resource has the same device and accessibility, so checking its first storage
  // is enough.
  const Resource* known = nullptr;
  for (const Use& use : uses_) {
    if (!use.storage) continue;
    Storage& storage = *use.storage;
    if (use.is_brought) {
      if (Result<void> sound = storage.check_use(stream_, use.access, use.offset, use.bytes,
                                                 use.site, Storage::Streams::any_device);
          !sound) {
        return sound;
      }
      continue;
    }
    const bool is_known = known != nullptr && storage.resource().get() == known;
    if (!is_known) {
      if (Result<void> able = storage.check_kernels_reach(use.access, use.site); !able) return able;
    }
    if (Result<void> sound = storage.check_use(
            stream_, use.access, use.offset, use.bytes, use.site,
            is_known ? Storage::Streams::any_device : Storage::Streams::own_device);
        !sound) {
      return sound;
    }
    known = storage.resource().get();
  }
  return {};
}

Result<void> UseScope::try_begin(CallSite site) noexcept {
  if (Result<void> sound = check(site); !sound) return sound;
  for (const Use& use : uses_) {
    if (!use.storage || use.storage->is_allocated()) continue;
    if (Result<void> there = use.storage->try_ensure(stream_, site); !there) return there;
  }
  Result<std::shared_ptr<CapturedUses>> captured = CapturedUses::try_find(stream_, site);
  if (!captured) return captured.failure();
  if (*captured) [[unlikely]] {
    if (Result<void> room = (*captured)->try_reserve(size(), site); !room) return room;
    captured_ = *std::move(captured);
    phase_ = Phase::begun;
    return {};
  }
  MarkSet waits;
  for (std::uint32_t i = 0; i < size(); ++i) {
    Use& use = uses_[i];
    if (!use.storage || use.first != i) continue;
    const Result<UseRecord::Ticket> ticket = use.storage->uses().try_begin(
        stream_, use.merged, waits, UseRecord::LockMode::if_free, site);
    if (!ticket) {
      cancel_first(i);
      return ticket.failure();
    }
    if (!ticket->has_turn()) [[unlikely]] {
      // Another thread uses the storage and may be waiting for a storage of this scope.
      cancel_first(i);
      if (Result<void> begun = try_begin_in_order(waits, site); !begun) return begun;
      break;
    }
    use.ticket = *ticket;
  }
  // Queue one wait per stream, however many storages it has used.
  for (const Mark mark : waits.all()) {
    if (Result<void> queued = order_behind(stream_, mark, site); !queued) {
      cancel_first(size());
      return queued;
    }
  }
  for (const Use& use : uses_) {
    if (!use.storage || !use.is_brought) continue;
    if (Result<void> noted =
            note_foreign_use(*use.storage, stream_, use.access, use.offset, use.bytes, use.site);
        !noted) {
      cancel_first(size());
      return noted;
    }
  }
  promise_last_mark(stream_);
  phase_ = Phase::begun;
  return {};
}

Result<void> UseScope::try_begin_in_order(MarkSet& waits, CallSite site) noexcept {
  for (Use& use : uses_) use.ticket = {};
  const std::less<Storage*> comes_before;
  Storage* last = nullptr;
  for (;;) {
    Use* next = nullptr;
    for (std::uint32_t i = 0; i < size(); ++i) {
      Use& use = uses_[i];
      if (!use.storage || use.first != i || (last && !comes_before(last, use.storage))) continue;
      if (next == nullptr || comes_before(use.storage, next->storage)) next = &use;
    }
    if (next == nullptr) return {};
    const Result<UseRecord::Ticket> ticket = next->storage->uses().try_begin(
        stream_, next->merged, waits, UseRecord::LockMode::wait, site);
    if (!ticket) {
      for (Use& use : uses_) {
        if (use.ticket.has_turn()) use.storage->uses().cancel(use.ticket);
      }
      return ticket.failure();
    }
    next->ticket = *ticket;
    last = next->storage;
  }
}

void UseScope::cancel_first(std::size_t count) noexcept {
  for (std::uint32_t i = 0; i < count; ++i) {
    Use& use = uses_[i];
    if (use.storage && use.first == i) use.storage->uses().cancel(use.ticket);
  }
}

void UseScope::reopen() noexcept {
  if (!captured_) cancel_first(size());
  captured_.reset();
  phase_ = Phase::open;
}

void UseScope::capture_uses() noexcept {
  for (Use& use : uses_) {
    if (!use.storage) continue;
    captured_->add(use.storage->share(), use.offset, use.bytes, use.access);
    // Each launch writes the bytes, so later captured work may read them.
    if (is_write(use.access)) use.storage->note_written(use.offset, use.bytes);
  }
}

void UseScope::finish(Outcome outcome) noexcept {
  if (phase_ != Phase::begun) return;
  phase_ = Phase::over;
  if (captured_) [[unlikely]] {
    if (outcome != Outcome::nothing) capture_uses();
    captured_.reset();
    for (Use& use : uses_) use.owner = {};
    return;
  }
  if (outcome == Outcome::nothing) {
    cancel_first(size());
    for (Use& use : uses_) use.owner = {};
    return;
  }
  const Mark mark = last_mark(stream_);
  for (std::uint32_t i = 0; i < size(); ++i) {
    Use& use = uses_[i];
    if (!use.storage) continue;
    if (use.first == i) use.storage->uses().end(use.ticket, stream_, mark, use.merged);
    if (outcome == Outcome::submitted && is_write(use.access)) {
      use.storage->note_written(use.offset, use.bytes);
    }
    use.owner = {};  // the next free may come before this object is destroyed
  }
}

}  // namespace tern
