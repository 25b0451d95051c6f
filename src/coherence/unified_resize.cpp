// The part of UnifiedCore that changes the number of bytes. Each copy gets new memory, to which its
// up-to-date bytes are copied. A failure leaves the buffer as it was.

#include <algorithm>
#include <cstring>
#include <mutex>
#include <new>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "buffer/copy_route.hpp"
#include "coherence/byte_ranges.hpp"
#include "coherence/copy_stream.hpp"
#include "coherence/unified_core.hpp"
#include "core/no_host_memory.hpp"
#include "tern/core/bytes.hpp"

namespace tern {
namespace {

/// Copies a range of a directory to another one. Returns false if the host has no memory.
bool copy_part(const Validity& from, ByteRange range, Validity& to) noexcept {
  bool has_room = true;
  from.visit(range.begin, range.end, [&](std::size_t begin, std::size_t end, PlaceSet places) {
    for (bool is_first = true; !places.empty(); is_first = false) {
      has_room &= to.make_room();
      if (!has_room) return;
      to.apply(is_first ? Access::discard : Access::read, begin, end, places.first());
      places = places.without(places.first());
    }
  });
  return has_room;
}

}  // namespace

std::vector<ByteRange> UnifiedCore::settled_on_host(ByteRange range) {
  std::vector<ByteRange> settled =
      ranges_where(range, [](PlaceSet places) { return places.has(host); });
  const std::lock_guard lock(mutex_);
  return copies_.in_flight().settled(std::move(settled));
}

Result<bool> UnifiedCore::try_copy_by_host(Storage& to, Storage& from,
                                           std::span<const ByteRange> ranges,
                                           CallSite site) noexcept {
  const Result<bool> is_free = to.uses().try_is_ready(Access::discard);
  if (!is_free || !*is_free) return false;
  for (const ByteRange& one : ranges) {
    std::byte* const target = host_bytes(to) + one.begin;
    const std::byte* const source = host_bytes(from) + one.begin;
    const std::size_t bytes = one.end - one.begin;
    Result<void> noted = from.device().try_note_host_access(source, bytes, Access::read, site);
    if (noted) {
      noted = to.device().try_note_host_access(target, bytes, Access::discard, site);
    }
    if (!noted) return noted.failure();
    std::memcpy(target, source, bytes);
  }
  return true;
}

Result<void> UnifiedCore::try_resize_memory(unsigned i, std::size_t bytes, ByteRange kept,
                                            StreamRef stream, Resized& resized, CallSite site) {
  const Memory& memory = copies_.memory(i);
  const std::vector<ByteRange> valid =
      ranges_where(kept, [&](PlaceSet places) { return !(places & memory.parts).empty(); });
  if (!memory.storage || valid.empty()) return {};
  // Bytes that only the host has must not depend on a device, so the host copies those that no
  // stream is writing.
  std::vector<ByteRange> settled;
  if (i == host) {
    const Result<bool> is_there = memory.storage->uses().try_is_ready(Access::read);
    settled = is_there && *is_there ? valid : settled_on_host(kept);
  }
  std::vector<ByteRange> by_host;
  if (i == host && is_host_memory(*memory.storage)) by_host = settled;
  Result<StorageHandle> larger =
      try_make_memory(i, bytes, by_host.empty() ? stream : StreamRef{}, site);
  if (!larger) return larger.failure();
  if (!by_host.empty()) {
    const Result<bool> copied = try_copy_by_host(**larger, *memory.storage, by_host, site);
    if (!copied) return copied.failure();
    if (!*copied) by_host.clear();
  }
  Transfer transfer{.from = copies_[i].place,
                    .to = copies_[i].place,
                    .begin = valid.front().begin,
                    .end = valid.back().end,
                    .runs = valid.size(),
                    .reason = TransferReason::resize,
                    .site = site};
  for (const ByteRange& one : valid) transfer.bytes += one.end - one.begin;
  const std::vector<ByteRange> by_stream = subtract(valid, by_host);
  if (!by_stream.empty()) {
    const Result<DeviceId> copier = try_copy_by_stream(i, *larger, by_stream, stream, site);
    if (!copier) return sync_failed(i, i, kept, copier.failure(), site);
    if (i == host) {
      // Settled bytes depend on the device that copies them. The others also depend on the devices
      // that are writing them.
      const std::vector<ByteRange> others = subtract(by_stream, settled);
      const std::uint64_t stream_uses = memory.stream_uses + 1;
      for (const ByteRange& one : subtract(by_stream, others)) {
        resized.on_stream.push_back({one, copies_.find(*copier), stream_uses});
      }
      for (const ByteRange& one : others) {
        resized.on_stream.push_back({.range = one, .stream_uses = stream_uses});
      }
    }
  }
  resized.made[i] = *std::move(larger);
  resized.moved.push_back(transfer);
  return {};
}

Result<DeviceId> UnifiedCore::try_copy_by_stream(unsigned i, const StorageHandle& to,
                                                 std::span<const ByteRange> by_stream,
                                                 StreamRef stream, CallSite site) {
  const Memory& memory = copies_.memory(i);
  std::vector<CopyRun> runs;
  for (const ByteRange& one : by_stream) runs.push_back({one.begin, one.end, i});
  const Device& device = i == host ? memory.storage->device() : copies_[i].device;
  // The host copy may be memory of a device, which other devices cannot reach.
  const bool is_own = stream.id() && reaches(stream.device_id(), *memory.storage);
  Result<CopyStream> runner = CopyStream{{}, stream};
  if (!is_own) runner = CopyStream::try_choose(device, *memory.storage, Access::read);
  Result<void> queued = runner ? try_issue(runs, to, memory.storage, runner->stream, site)
                               : Result<void>(runner.failure());
  {
    // Recorded also if a later copy fails: the old memory is being read, and stays in use.
    const std::lock_guard lock(mutex_);
    copies_.memory(i).note_stream_use(Access::read);
  }
  if (!queued) return queued.failure();
  return runner->stream.device_id();
}

Result<void> UnifiedCore::try_resize(std::size_t count, bool keep, StreamRef stream,
                                     CallSite site) noexcept try {
  const std::optional<std::size_t> bytes = checked_multiply(count, element_bytes_);
  if (!bytes || *bytes > max_request_bytes) {
    return Failure(ErrorCode::size_overflow,
                   "{count} elements of {bytes} bytes exceed the address space. Ask for fewer.",
                   site)
        .with("what", "a unified buffer")
        .with("count", count)
        .with("bytes", element_bytes_);
  }
  ScopedClaim hold;
  if (Result<void> held =
          hold.try_claim(*this, {.range = everything, .access = Access::discard, .site = site});
      !held) {
    return held;
  }
  const TransferLock mover(*this);
  if (keep) {
    if (Result<void> back = try_unspill(site); !back) return back;
  }
  const ByteRange kept{0, keep ? std::min(*bytes, this->bytes()) : 0};
  if (const StorageHandle& own = copies_.memory(host).storage;
      kept.end != 0 && own && !is_host_memory(*own)) {
    // A device copies the host's bytes. As a place it can be asked whether it is lost.
    static_cast<void>(try_place(own->device(), site));
  }
  Validity validity(*bytes);
  Resized resized;
  resized.made.resize(copies_.memories().size());
  for (unsigned i = 0; keep && i < copies_.memories().size(); ++i) {
    if (Result<void> copied = try_resize_memory(i, *bytes, kept, stream, resized, site); !copied) {
      return copied;
    }
  }
  // The new directory is built separately, so that a failure leaves the old one in place.
  const bool has_room = copy_part(copies_.directory(), kept, validity);
  if (!has_room) return no_host_memory("the directory of a unified buffer", site);
  // Each range of the new host copy is in flight or already there. If a range in flight does not
  // arrive, other places may have it; otherwise it is lost.
  InFlightBytes in_flight = copies_.in_flight().only_lost(*bytes);
  in_flight.reserve(resized.on_stream.size());
  for (const InFlightBytes::Entry& one : resized.on_stream) {
    in_flight.add(one);
    in_flight.add_sole_copy(one);
  }
  forget_spilled();
  begin_transits();
  // From here on, nothing can fail.
  const std::lock_guard lock(mutex_);
  for (unsigned i = 0; i < copies_.memories().size(); ++i) {
    Memory& memory = copies_.memory(i);
    std::swap(memory.storage, resized.made[i]);
    if (memory.storage) {
      memory.set(std::move(memory.storage));
    } else {
      memory.parts = {};
    }
  }
  copies_.reset(std::move(validity), std::move(in_flight));
  bytes_ = *bytes;
  shape_ = Shape::flat(count);
  for (const Transfer& one : resized.moved) log_.add(one);
  return {};
} catch (const std::bad_alloc&) {
  return no_host_memory("the directory of a unified buffer", site);
}

}  // namespace tern
