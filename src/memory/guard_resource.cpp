// Guard bands, poison and quarantine. The record of a block is the note of its row in the block
// table.

#include "tern/memory/guard_resource.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <mutex>
#include <new>
#include <string_view>
#include <utility>
#include <vector>

#include "core/no_host_memory.hpp"
#include "device/device_state.hpp"
#include "memory/block_table.hpp"
#include "tern/core/bytes.hpp"
#include "tern/memory/default_resource.hpp"
#include "tern/memory/resource.hpp"

namespace tern {

/// The record of one guarded block.
struct GuardResource::Guarded {
  Block whole = {};  // the upstream's block, bands included
  Block block = {};  // the program's block inside
  Tag tag = {};
  CallSite allocated = {};
  CallSite freed = {};
  Mark mark = {};             // covers the last use, set by the free
  Guarded* next = nullptr;    // next in quarantine
  bool was_reported = false;  // a violation is reported once
};

struct GuardResource::State {
  Stream own;  // for blocks without a stream, or whose stream was destroyed
  mutable std::mutex mutex;
  // Guarded by mutex, as are the members below: the quarantine, first in, first out.
  Guarded* oldest = nullptr;
  Guarded* newest = nullptr;
  std::size_t held_bytes = 0;
  std::uint64_t hits = 0;
  std::optional<Failure> last_hit;

  std::vector<std::unique_ptr<std::byte[]>> kept;  // guarded by mutex; a stream may still write
  void keep(std::unique_ptr<std::byte[]> memory) noexcept {
    try {
      const std::lock_guard lock(mutex);
      kept.push_back(std::move(memory));
    } catch (const std::bad_alloc&) {
      // Leak the memory: freeing it while a stream may still write to it would be worse.
      static_cast<void>(memory.release());
    }
  }
};

namespace {

/// Attempts to wait for a stream before memory that it may write is leaked.
constexpr int max_attempts = 3;
constexpr std::size_t look_bytes = 64 * kib;

std::string_view file_name(CallSite site) noexcept {
  const std::string_view path = site.file;
  return path.substr(path.find_last_of('/') + 1);
}

std::byte* bytes_of(const Block& block) noexcept { return static_cast<std::byte*>(block.address); }

}  // namespace

GuardResource::GuardResource(ResourceHandle upstream, const GuardOptions& options)
    : WrappingResource("guard", std::move(upstream)),
      options_(options),
      state_(std::make_unique<State>()) {
  state_->own = Stream(device(), {.name = "guard"});
}

GuardResource::~GuardResource() {
  while (evict(true) != 0) {
  }
  // Blocks whose stream could not be waited for get another chance after a device-wide wait.
  for (int attempt = 0; attempt < max_attempts && state_->oldest != nullptr; ++attempt) {
    static_cast<void>(device().try_synchronize());
    while (evict(true) != 0) {
    }
  }
  if (!state_->kept.empty()) static_cast<void>(device().try_synchronize());
  // An unknown stream may still write the remaining blocks, so they stay allocated.
  while (state_->oldest != nullptr) {
    delete std::exchange(state_->oldest, state_->oldest->next);
  }
}

ResourceTraits GuardResource::traits() const noexcept {
  ResourceTraits traits = WrappingResource::traits();
  traits.frees_for_host_at_once = false;
  return traits;
}

std::size_t GuardResource::good_size(const Request& request) const noexcept {
  return request.bytes;
}

Result<void> GuardResource::check_device(StreamRef stream) const noexcept {
  if (!stream.id() || stream.device_id() == device().id()) return {};
  return Failure(ErrorCode::device_mismatch,
                 "memory of '{a}' was freed on a stream of {b}. Free it on a stream of '{a}'.")
      .with("a", device().spec())
      .with("b", Place::device(stream.device_id()).text());
}

Result<StreamRef> GuardResource::usable(StreamRef stream) noexcept {
  if (Result<void> fits = check_device(stream); !fits) return fits.failure();
  if (stream.try_mark()) return stream;
  return behind(stream);
}

Result<StreamRef> GuardResource::behind(StreamRef stream) noexcept {
  if (Result<void> fits = check_device(stream); !fits) return fits.failure();
  Mark mark;
  if (const StreamPin stay(stream); stay) mark = stream.next_mark();
  if (mark || stream.id()) {
    // A destroyed stream has no mark to wait for; wait for the whole device.
    const Result<void> waited = mark ? state_->own.try_wait(mark) : device().try_synchronize();
    if (!waited) return waited.failure();
  }
  return StreamRef(state_->own);
}

Failure GuardResource::hit(const Guarded& guarded, std::int64_t offset, CallSite site,
                           const char* sentence) noexcept {
  std::array<char, 80> allocated = {}, freed = {};
  fmt::format_to_n(allocated.data(), allocated.size() - 1, "{}:{}", file_name(guarded.allocated),
                   guarded.allocated.line);
  fmt::format_to_n(freed.data(), freed.size() - 1, "{}:{}", file_name(site), site.line);
  const Failure failure =
      Failure(ErrorCode::violation, sentence, site)
          .with("address", reinterpret_cast<std::uintptr_t>(guarded.block.address), Unit::hex)
          .with_bytes("bytes", guarded.block.bytes)
          .with_signed("offset", offset)
          .with("generation", guarded.block.generation.count())
          .with("allocated", allocated.data())
          .with("freed", freed.data())
          .with("tag", guarded.tag.name());
  {
    const std::lock_guard lock(state_->mutex);
    ++state_->hits;
    state_->last_hit = failure;
  }
  report_failure(failure);
  return failure;
}

// Fills both bands and, with poison, the block. Three fills on the stream, no wait.
Result<void> GuardResource::write_bands(const Guarded& guarded, StreamRef stream,
                                        const CallSite& site) noexcept {
  std::byte* const begin = bytes_of(guarded.block);
  const std::size_t bytes = guarded.block.bytes;
  if (Result<void> done = stream.try_fill(begin - band_bytes, band_bytes, band_byte, site); !done) {
    return done;
  }
  if (Result<void> done = stream.try_fill(begin + bytes, band_bytes, band_byte, site); !done) {
    return done;
  }
  if (!options_.poison) return {};
  return stream.try_fill(begin, bytes, poison_byte, site);
}

/// Waits for the stream, then returns the index of the first byte that is not `expected`, if any.
Result<std::optional<std::size_t>> GuardResource::first_other(const std::byte* begin,
                                                              std::size_t bytes, std::byte expected,
                                                              StreamRef stream,
                                                              const CallSite& site) noexcept {
  std::unique_ptr<std::byte[]> copy;
  if (!traits().is_host_accessible) {
    copy.reset(new (std::nothrow) std::byte[std::min(bytes, look_bytes)]);
    if (!copy) {
      return no_host_memory(std::min(bytes, look_bytes), "the check of a guarded block", site);
    }
  }
  // `copy` must not be freed while the stream may still write to it, even if the driver reports
  // errors.
  const auto give_up = [&](const Failure& why) -> Result<std::optional<std::size_t>> {
    for (int attempt = 0; copy && attempt < max_attempts; ++attempt) {
      const Result<void> done = DeviceState::wait_for_stream(stream, site);
      if (done || done.failure().code() == ErrorCode::device_lost) return why;
    }
    if (copy) state_->keep(std::move(copy));
    return why;
  };
  for (std::size_t at = 0; at < bytes; at += look_bytes) {
    const std::size_t size = std::min(bytes - at, look_bytes);
    const std::byte* seen = begin + at;
    if (copy) {
      if (Result<void> copied = stream.try_copy(copy.get(), seen, size, site); !copied) {
        return give_up(copied.failure());
      }
      seen = copy.get();
    }
    if (copy || at == 0) {
      const Result<Mark> mark = stream.try_mark();
      if (!mark) return give_up(mark.failure());
      if (Result<void> waited = Device::try_wait(*mark); !waited) return give_up(waited.failure());
    }
    const std::byte* bad =
        std::find_if(seen, seen + size, [&](std::byte b) { return b != expected; });
    if (bad != seen + size) return std::optional(at + static_cast<std::size_t>(bad - seen));
  }
  return std::optional<std::size_t>();
}

// Checks the front band, then the back band. Offsets in the error are relative to the block.
Result<void> GuardResource::look(const Guarded& guarded, StreamRef stream,
                                 const CallSite& site) noexcept {
  constexpr const char* sentence =
      "a write went outside the block of {bytes} at {address} with tag '{tag}': the first bad byte "
      "is at offset {offset}. The block was allocated at {allocated} and checked at {freed}. Find "
      "the code that writes beyond the block.";
  const std::byte* const begin = bytes_of(guarded.block);
  const Result<std::optional<std::size_t>> before =
      first_other(begin - band_bytes, band_bytes, band_byte, stream, site);
  if (!before) return before.failure();
  if (*before) {
    return hit(guarded, static_cast<std::int64_t>(**before) - std::int64_t{band_bytes}, site,
               sentence);
  }
  const Result<std::optional<std::size_t>> after =
      first_other(begin + guarded.block.bytes, band_bytes, band_byte, stream, site);
  if (!after) return after.failure();
  if (*after) {
    return hit(guarded, static_cast<std::int64_t>(guarded.block.bytes + **after), site, sentence);
  }
  return {};
}

Result<Block> GuardResource::try_allocate(const Request& request) noexcept {
  counters().note_request();
  if (request.bytes == 0) return Block{};
  retry_before_allocation();
  const auto refuse = [&](const Failure& failure) {
    counters().note_refusal();
    return Result<Block>(failure);
  };
  if (Result<void> fits = check(request); !fits) return refuse(fits.failure());
  // The front band is at least as large as the alignment, so that the block stays aligned.
  const std::size_t front = std::max({band_bytes, request.alignment, traits().alignment});
  const std::optional<std::size_t> all = checked_add(request.bytes, front + band_bytes);
  std::unique_ptr<Guarded> guarded(new (std::nothrow) Guarded);
  if (!guarded) {
    return refuse(no_host_memory(sizeof(Guarded), "the record of a block", request.site));
  }
  if (!all || *all > max_request_bytes) {
    return refuse(Failure(ErrorCode::out_of_memory,
                          "{requested} plus {bands} of guard bands exceed the largest possible "
                          "size. Ask for less, or do without the guard.",
                          request.site)
                      .with_bytes("requested", request.bytes)
                      .with_bytes("bands", front + band_bytes));
  }
  const Result<StreamRef> stream = usable(request.stream);
  if (!stream) return refuse(Failure(stream.failure()).at(request.site));
  Request larger = request;
  larger.bytes = *all;
  const Result<Block> whole = upstream()->try_allocate(larger);
  if (!whole) return refuse(whole.failure());
  guarded->whole = *whole;
  guarded->block = {bytes_of(*whole) + front, request.bytes, whole->device, {}};
  guarded->tag = request.tag;
  guarded->allocated = request.site;

  Result<void> ready = write_bands(*guarded, *stream, request.site);
  // The host uses the block first, so the fills must be complete. The same holds before the block
  // is freed after a failure.
  if (!ready || !request.stream.id()) {
    if (Result<void> waited = DeviceState::wait_for_stream(*stream, request.site); ready)
      ready = waited;
  }
  const Result<Generation> generation =
      !ready ? Result<Generation>(ready.failure())
             : try_begin_block({guarded->block.address, request.bytes, whole->device, this,
                                request.stream.id(), request.tag,
                                reinterpret_cast<std::uintptr_t>(guarded.get())});
  if (!generation) {
    upstream()->deallocate(*whole, request.stream, request.site);
    return refuse(generation.failure());
  }
  guarded->block.generation = *generation;
  counters().note_allocation(request.bytes);
  return guarded.release()->block;
}

Result<void> GuardResource::try_check(const Block& block, StreamRef stream,
                                      const CallSite& site) noexcept {
  if (!block) return {};
  // Claim the block, so that no other thread frees it during the check.
  const Result<BlockFacts> facts = try_claim_block(block, this);
  if (!facts) return Failure(facts.failure()).at(site);
  const auto* guarded = reinterpret_cast<const Guarded*>(facts->note);
  const Result<StreamRef> on = usable(stream);
  const Result<void> whole = on ? look(*guarded, *on, site) : Result<void>(on.failure());
  unclaim_block(block.generation);
  return whole;
}

Result<void> GuardResource::try_deallocate(const Block& block, StreamRef stream,
                                           const CallSite& site) noexcept {
  if (!block) return {};
  const Result<BlockFacts> facts = try_claim_block(block, this);
  if (!facts) return Failure(facts.failure()).at(site);
  auto* const guarded = reinterpret_cast<Guarded*>(facts->note);
  const auto fail = [&](const Failure& failure) {
    unclaim_block(block.generation);
    return Result<void>(Failure(failure).at(site));
  };
  const Result<StreamRef> on = behind(stream);
  if (!on && on.failure().code() != ErrorCode::device_lost) return fail(on.failure());
  if (on && !guarded->was_reported) {
    if (Result<void> whole = look(*guarded, *on, site); !whole) {
      // Only a damaged band has an offset. After any other failure, such as a violation found by a
      // checker, the next free checks the bands again.
      guarded->was_reported = whole.failure().number("offset").has_value();
      if (whole.failure().code() != ErrorCode::device_lost) return fail(whole.failure());
    }
  }
  StreamRef last = stream;
  Mark mark;
  {
    // Poison in the order of the freeing stream, so that later writes of that stream are detected.
    const StreamPin stay(stream);
    if (on && !stay) last = *on;
    if (on && options_.poison) {
      if (Result<void> done = last.try_fill(bytes_of(block), block.bytes, poison_byte, site);
          !done && done.failure().code() != ErrorCode::device_lost) {
        return fail(done.failure());
      }
    }
    mark = last.next_mark();
  }
  if (options_.quarantine_bytes == 0 || guarded->whole.bytes > options_.quarantine_bytes) {
    if (Result<void> freed = upstream()->try_deallocate(guarded->whole, last, site); !freed) {
      return fail(freed.failure());
    }
    counters().note_free(block.bytes);
    end_block(block.generation, mark);
    delete guarded;
    return {};
  }
  guarded->mark = mark;
  guarded->freed = site;
  counters().note_free(block.bytes);
  quarantine_block(block.generation);
  {
    const std::lock_guard lock(state_->mutex);
    (state_->newest == nullptr ? state_->oldest : state_->newest->next) = guarded;
    state_->newest = guarded;
    state_->held_bytes += guarded->whole.bytes;
  }
  while (quarantined_bytes() > options_.quarantine_bytes && evict(true) != 0) {
  }
  return {};
}

// Without `may_wait`, frees the oldest block only if its mark is done, and does not check its
// contents, because the check would wait.
std::size_t GuardResource::evict(bool may_wait) noexcept {
  std::unique_ptr<Guarded> oldest;
  Mark mark;
  if (!may_wait) {
    {
      const std::lock_guard lock(state_->mutex);
      if (state_->oldest == nullptr) return 0;
      mark = state_->oldest->mark;
    }
    const Result<bool> is_done = Device::try_is_done(mark);
    if (!is_done || !*is_done) return 0;
  }
  {
    const std::lock_guard lock(state_->mutex);
    // Another thread has taken the oldest block. The caller will try the next one.
    if (state_->oldest == nullptr || (!may_wait && state_->oldest->mark != mark)) return 0;
    oldest.reset(state_->oldest);
    state_->oldest = oldest->next;
    if (state_->oldest == nullptr) state_->newest = nullptr;
    state_->held_bytes -= oldest->whole.bytes;
  }
  if (may_wait) {
    if (const Result<void> waited = Device::try_wait(oldest->mark);
        !waited && waited.failure().code() != ErrorCode::device_lost &&
        waited.failure().code() != ErrorCode::after_fork) {
      // The stream may still write the block. Put the block back and try again later.
      const std::lock_guard lock(state_->mutex);
      state_->held_bytes += oldest->whole.bytes;
      oldest->next = state_->oldest;
      if (state_->newest == nullptr) state_->newest = oldest.get();
      state_->oldest = oldest.release();
      return 0;
    }
    // The host has waited for the last use, so the guard's own stream may read the block.
    if (!oldest->was_reported) static_cast<void>(look(*oldest, state_->own, oldest->freed));
    if (options_.poison) {
      const Result<std::optional<std::size_t>> late = first_other(
          bytes_of(oldest->block), oldest->block.bytes, poison_byte, state_->own, oldest->freed);
      if (late && *late) {
        static_cast<void>(
            hit(*oldest, static_cast<std::int64_t>(**late), oldest->freed,
                "a write went into the block of {bytes} at {address} with tag '{tag}' after its "
                "free: the first bad byte is at offset {offset}. The block was allocated at "
                "{allocated} and freed at {freed}. Find the code that still uses it."));
      }
    }
  }
  const std::size_t bytes = oldest->whole.bytes;
  // If the free fails, the upstream counts and retries it. No stream is needed, because nothing
  // uses the block any more.
  upstream()->deallocate(oldest->whole, {}, oldest->freed);
  end_block(oldest->block.generation, Mark{});
  return bytes;
}

std::size_t GuardResource::trim(std::size_t keep_bytes) noexcept {
  retry_failed_frees();
  std::size_t given = 0;
  while (quarantined_bytes() > keep_bytes) {
    const std::size_t bytes = evict(false);
    if (bytes == 0) break;
    given += bytes;
  }
  return given + upstream()->trim(keep_bytes);
}

std::size_t GuardResource::quarantined_bytes() const noexcept {
  const std::lock_guard lock(state_->mutex);
  return state_->held_bytes;
}

std::uint64_t GuardResource::hits() const noexcept {
  const std::lock_guard lock(state_->mutex);
  return state_->hits;
}

std::optional<Failure> GuardResource::take_hit() noexcept {
  const std::lock_guard lock(state_->mutex);
  return std::exchange(state_->last_hit, std::nullopt);
}

}  // namespace tern
