#include "tern/launch/launch_recorder.hpp"

#include <algorithm>
#include <atomic>
#include <functional>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include "buffer/block_uses.hpp"
#include "buffer/memory_users.hpp"
#include "core/no_host_memory.hpp"
#include "device/captures.hpp"
#include "launch/last_mark.hpp"
#include "memory/block_table.hpp"

namespace tern {
namespace {

struct Counters {
  std::mutex mutex;
  LaunchStatistics statistics;
};
constinit Counters counters;

Failure misuse(StreamRef stream, const char* why, CallSite site) noexcept {
  return Failure(ErrorCode::stream_misuse, "a launch on stream {stream} cannot be recorded: {why}.",
                 site)
      .with("stream", stream.id().number())
      .with("why", why);
}

Failure untracked(void* address, std::size_t bytes, CallSite site) noexcept {
  return Failure(ErrorCode::untracked_buffer,
                 "the uses of {bytes} at {address} cannot be tracked: its resource does not track "
                 "uses. Use memory of a resource that does, or a permissive recorder.",
                 site)
      .with("kind", "untracked")
      .with("address", reinterpret_cast<std::uintptr_t>(address), Unit::hex)
      .with_bytes("bytes", bytes);
}

Failure external(void* address, std::size_t bytes, CallSite site) noexcept {
  return Failure(ErrorCode::untracked_buffer,
                 "the uses of {bytes} at {address} cannot be tracked: this is external memory. "
                 "Adopt or borrow it as a buffer, or use a permissive recorder.",
                 site)
      .with("kind", "external")
      .with("address", reinterpret_cast<std::uintptr_t>(address), Unit::hex)
      .with_bytes("bytes", bytes);
}

Failure unstated(std::size_t argument, const Storage& storage, CallSite site) noexcept {
  return Failure(ErrorCode::untracked_buffer,
                 "argument {argument} of a launch, buffer {buffer} of {bytes}, is imported memory, "
                 "and it is unknown when its earlier writes complete. Import it with their stream "
                 "or with is_complete, call state_ready(), synchronize '{device}', or use a "
                 "permissive recorder.",
                 site)
      .with("kind", "unstated")
      .with("argument", argument)
      .with("buffer", storage.id().value)
      .with_bytes("bytes", storage.bytes())
      .with("device", storage.device().spec());
}

/// Checks that the block is live and matches its description.
Result<void> check_live(const Block& block, CallSite site) noexcept {
  const BlockPlace* const place = find_place(block.generation.slot());
  if (block.generation && place != nullptr && place->is_live(block.generation.count()) &&
      place->address.load(std::memory_order_relaxed) == block.address &&
      place->bytes.load(std::memory_order_relaxed) == block.bytes &&
      place->device.load(std::memory_order_relaxed) == block.device) {
    return {};
  }
  return why_not_live(block, place).at(site);
}

}  // namespace

LaunchRecorder::LaunchRecorder(StreamRef stream, RecorderOptions options) noexcept
    : scope_(stream), options_(std::move(options)) {}

LaunchRecorder::~LaunchRecorder() {
  if (phase_ != Phase::preflighted) return;
  finish_raw(true);
  scope_.finish(UseScope::Outcome::unknown);
  const std::lock_guard lock(counters.mutex);
  ++counters.statistics.dropped;
  counters.statistics.last_dropped = preflight_site_;
}

Result<void> LaunchRecorder::make_place(CallSite site) noexcept {
  if (phase_ != Phase::declaring) {
    return misuse(stream(), "preflight was called. Declare all uses before preflight", site);
  }
  try {
    if (places_.size() == places_.capacity()) places_.reserve(2 * places_.size() + 8);
  } catch (const std::bad_alloc&) {
    return no_host_memory("a launch recorder", site);
  }
  return {};
}

Result<std::size_t> LaunchRecorder::put(Result<std::size_t> index) noexcept {
  if (!index) return index;
  // Cannot fail: the capacity was reserved.
  places_.push_back({true, static_cast<std::uint32_t>(*index)});
  return places_.size() - 1;
}

Result<void> LaunchRecorder::check_resource(const StorageHandle& storage,
                                            CallSite site) const noexcept {
  if (!options_.resource || !storage || storage->resource() == options_.resource) return {};
  return Failure(ErrorCode::invalid_argument,
                 "buffer {value} is not memory of '{resource}', the resource of the recorder. Use "
                 "another recorder.",
                 site)
      .with("name", "buffer")
      .with("value", storage->id().value)
      .with("resource", options_.resource->name());
}

Result<std::size_t> LaunchRecorder::put_raw(RawUse use) noexcept {
  if (Result<void> open = make_place(use.site); !open) return open.failure();
  use.first = static_cast<std::uint32_t>(raw_.size());
  use.merged = use.access;
  for (std::uint32_t i = 0; i < raw_.size() && !use.is_external; ++i) {
    // Compare the whole identity: an address alone may belong to an earlier block.
    if (raw_[i].block == use.block && !raw_[i].is_external) {
      use.first = i;
      break;
    }
  }
  try {
    raw_.push_back(use);
  } catch (const std::bad_alloc&) {
    return no_host_memory("a launch recorder", use.site);
  }
  raw_[use.first].merged = merge(raw_[use.first].merged, use.access);
  places_.push_back({false, static_cast<std::uint32_t>(raw_.size() - 1)});
  return places_.size() - 1;
}

Result<std::size_t> LaunchRecorder::try_use(const Resource& resource, const Block& block,
                                            Access access, CallSite site) noexcept {
  if (options_.resource && options_.resource.get() != &resource) {
    return Failure(ErrorCode::invalid_argument,
                   "a block of '{value}' is not memory of '{resource}', the resource of the "
                   "recorder. Use another recorder.",
                   site)
        .with("name", "block")
        .with("value", resource.name())
        .with("resource", options_.resource->name());
  }
  return put_raw(
      {.block = block, .access = access, .is_tracked = resource.traits().tracks_use, .site = site});
}

Result<std::size_t> LaunchRecorder::try_use_external(void* address, std::size_t bytes,
                                                     Access access, CallSite site) noexcept {
  if (options_.resource) {
    return Failure(ErrorCode::invalid_argument,
                   "external memory at {value} is not memory of '{resource}', the resource of the "
                   "recorder. Use another recorder.",
                   site)
        .with("name", "address")
        .with("value", reinterpret_cast<std::uintptr_t>(address), Unit::hex)
        .with("resource", options_.resource->name());
  }
  return put_raw({.block = {.address = address, .bytes = bytes},
                  .access = access,
                  .is_external = true,
                  .site = site});
}

Result<void> LaunchRecorder::check_raw(const RawUse& use) const noexcept {
  if (use.block.bytes == 0) return {};
  if (!use.is_tracked) {
    if (options_.permissive) return {};
    return use.is_external ? external(use.block.address, use.block.bytes, use.site)
                           : untracked(use.block.address, use.block.bytes, use.site);
  }
  if (Result<void> live = check_live(use.block, use.site); !live) return live;
  if (use.block.device == stream().device_id()) return {};
  return Failure(ErrorCode::device_mismatch,
                 "a block on '{a}' cannot be used by a stream of '{b}'. Copy it to '{b}', or use a "
                 "stream of '{a}'.",
                 use.site)
      .with("a", tern::Place::device(use.block.device).text())
      .with("b", tern::Place::device(stream().device_id()).text());
}

Result<void> LaunchRecorder::check_readiness() const noexcept {
  if (options_.permissive) return {};
  for (std::size_t i = 0; i < places_.size(); ++i) {
    if (!places_[i].is_in_scope) continue;
    const UseScope::Use& use = scope_.uses_[places_[i].index];
    if (use.storage == nullptr || use.storage->is_readiness_known()) continue;
    return unstated(i, *use.storage, use.site);
  }
  return {};
}

Result<void> LaunchRecorder::try_begin_raw(CallSite site) noexcept try {
  std::vector<std::pair<std::shared_ptr<UseRecord>, RawUse*>> all;
  for (std::uint32_t i = 0; i < raw_.size(); ++i) {
    RawUse& use = raw_[i];
    if (!use.is_tracked || use.first != i || use.block.bytes == 0) continue;
    Result<std::shared_ptr<UseRecord>> uses = try_uses_of(use.block, site);
    if (!uses) return uses.failure();
    all.emplace_back(*std::move(uses), &use);
  }
  // By address, and after the buffers, so that recorders of two threads do not deadlock.
  std::ranges::sort(all, std::less<UseRecord*>(), [](const auto& one) { return one.first.get(); });
  for (auto& [uses, use] : all) {
    const Result<UseRecord::Ticket> ticket = uses->try_begin(stream(), use->merged, site);
    if (!ticket) return ticket.failure();
    use->uses = std::move(uses);
    use->ticket = *ticket;
    // After the use has begun, so that either this check or a pause that begins now notices.
    if (Result<void> there = MemoryUsers::check_not_paused(use->block.address, site); !there) {
      return there;
    }
  }
  return {};
} catch (const std::bad_alloc&) {
  return no_host_memory("a launch recorder", site);
}

void LaunchRecorder::finish_raw(bool is_submitted) noexcept {
  const Mark mark = is_submitted && !raw_.empty() ? last_mark(stream()) : Mark{};
  for (RawUse& use : raw_) {
    if (!use.uses) continue;
    if (is_submitted) {
      use.uses->end(use.ticket, stream(), mark, use.merged);
    } else {
      use.uses->cancel(use.ticket);
    }
    use.uses = nullptr;
  }
}

Result<void> LaunchRecorder::try_preflight(CallSite site) noexcept {
  if (phase_ != Phase::declaring) return misuse(stream(), "preflight was already called", site);
  for (const RawUse& use : raw_) {
    if (Result<void> sound = check_raw(use); !sound) return sound;
    // The stream returns the error message.
    if (!stream().is_usable()) return Failure(stream().try_native().failure()).at(site);
  }
  // Code that launches without Tern may also capture without Tern.
  if (!places_.empty()) {
    if (Result<void> free = check_not_captured(stream(), site); !free) return free;
  }
  if (Result<void> ready = check_readiness(); !ready) return ready;
  if (Result<void> begun = scope_.try_begin(site); !begun) return begun;
  if (Result<void> begun = try_begin_raw(site); !begun) {
    finish_raw(false);
    scope_.reopen();
    return begun;
  }
  for (const RawUse& use : raw_) skipped_ += !use.is_tracked && use.block.bytes != 0 ? 1 : 0;
  preflight_site_ = site;
  phase_ = Phase::preflighted;
  if (skipped_ == 0) return {};
  const std::lock_guard lock(counters.mutex);
  counters.statistics.skipped += skipped_;
  return {};
}

void* LaunchRecorder::pointer(std::size_t index) const noexcept {
  if (phase_ != Phase::preflighted || index >= places_.size()) return nullptr;
  const Place& place = places_[index];
  return place.is_in_scope ? scope_.pointer(place.index) : raw_[place.index].block.address;
}

Result<void> LaunchRecorder::try_commit(CallSite site) noexcept {
  if (phase_ == Phase::declaring && places_.empty()) {
    // Without uses there is nothing to check or record.
    phase_ = Phase::over;
    return {};
  }
  if (phase_ == Phase::declaring) {
    return misuse(stream(), "commit must follow preflight and the launch", site);
  }
  if (phase_ == Phase::over) return misuse(stream(), "it was already committed or cancelled", site);
  phase_ = Phase::over;
  scope_.end();
  Result<void> result;
  for (const RawUse& use : raw_) {
    if (!use.uses) continue;
    if (Result<void> live = check_live(use.block, site); !live && result) result = live;
  }
  finish_raw(true);
  return result;
}

void LaunchRecorder::cancel() noexcept {
  if (phase_ == Phase::preflighted) {
    finish_raw(false);
    scope_.cancel();
  }
  phase_ = Phase::over;
}

Result<void> try_wait_for_uses(StreamRef stream, const Block& block, CallSite site) noexcept {
  const std::shared_ptr<UseRecord> uses = find_uses_of(block);
  // A pause has waited for all uses.
  if (!uses || uses->is_paused()) return {};
  // The block is freed next, so wait for readers and writers.
  const Result<UseRecord::Ticket> ticket = uses->try_begin(stream, Access::discard, site);
  if (!ticket) return ticket.failure();
  uses->cancel(*ticket);
  return {};
}

LaunchStatistics launch_statistics() noexcept {
  const std::lock_guard lock(counters.mutex);
  return counters.statistics;
}

}  // namespace tern
