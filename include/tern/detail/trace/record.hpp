// Not part of the interface.
//
// A TraceRecord describes one operation or event of a run as data.
//
// A record refers to actors (streams and host threads), events and ranges of memory spaces by
// number, so it has the same meaning in a file, on another machine and later. A backend writes
// records in the order of its calls. The order checker and the tools read them.
//
// A record borrows its name and its touches; they are valid during the call that receives the
// record. The strings of a call site are not copied and must outlive the receiver.

#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "tern/core/call_site.hpp"
#include "tern/core/tag.hpp"
#include "tern/detail/core/visibility.hpp"

namespace tern {

/// The number of a stream or a host thread, assigned by the writer of the trace. 0 is the first
/// host thread.
///
/// The number of an ended stream may be reused for a new stream once two conditions hold: no memory
/// remembers an operation of the old stream that no host thread has waited for, and an event
/// preserves the order that the old stream had acquired through its waits. Operations of the new
/// stream are numbered after those of the old one. The new stream starts with the order of its
/// creator.
using ActorId = std::uint32_t;

/// The maximum number of actors. A vector clock has one component per actor, so this limit bounds
/// the cost of a record. It is far above the number of streams that a device runs at a time.
inline constexpr ActorId max_actors = 4096;

/// A range of bytes in a memory space. Space 0 is host memory, and each device has a space of its
/// own. Offsets are relative to a stable base and never addresses. An empty range touches nothing.
struct SpaceRange {
  std::uint32_t space = 0;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

/// What an operation does to a range. Allocating and freeing count as accesses, so premature reuse
/// is an ordinary conflict between accesses.
enum class TouchKind : std::uint8_t {
  read,
  write,
  read_write,
  allocate,     // a driver or the host allocates a block
  release,      // that block is freed
  suballocate,  // a pool hands out a block of memory that it owns
  subrelease,   // the pool takes that block back
};

/// One range that an operation accesses.
struct Touch {
  TouchKind kind = TouchKind::read;
  SpaceRange range = {};
  /// The generation of the block, which is unique in the trace: given when the block is allocated,
  /// and later by uses that have a handle to the block. 0 if unknown.
  std::uint64_t generation = 0;
  /// The access was not declared: a bare pointer counts as a use of its whole block. For a write in
  /// a host access, `is_assumed` has another meaning: nothing is written, but the bytes count as
  /// initialized from now on, and their reader is responsible for the contents.
  bool is_assumed = false;
};

/// The kind of a record. The comments list the fields that each kind uses.
enum class RecordKind : std::uint8_t {
  actor_begins,     // `actor` is created by `host`, with `actor_kind`, `device` and `name`
  actor_ends,       // `actor` is destroyed
  operation,        // `host` submits `operation` `name` with `touches` to `actor`
  record_event,     // `host` makes `actor` record `event`
  wait_event,       // `host` makes `actor` wait for `event`
  event_ends,       // `event` is destroyed
  host_wait_mark,   // `host` waits for operation `sequence` of `actor`
  host_wait_event,  // `host` waits for `event`
  host_access,      // `host` itself accesses `touches`
  release_edge,     // `host` releases its order to `event`, which is any tag; if `actor` is not 0,
                    // only the order of the work of that stream that `host` knows to be complete
  acquire_edge,     // `host` acquires the order released to `event`
  shutdown,         // the trace ends; blocks that are still live are leaks
  lost_records,     // a gap: `sequence` records are missing, or an unknown number if 0
};

/// What an operation of a stream does.
enum class OperationKind : std::uint8_t { copy, fill, kernel, call, allocate, release, prefetch };

/// The kind of an actor. For streams, the kind decides how the stream is ordered with the default
/// stream of its device.
enum class ActorKind : std::uint8_t { host, stream, blocking_stream, default_stream };

/// One record. `kind` decides which of the other fields have a meaning.
struct TraceRecord {
  RecordKind kind = RecordKind::operation;
  OperationKind operation = OperationKind::call;
  ActorKind actor_kind = ActorKind::stream;
  ActorId actor = 0;
  ActorId host = 0;
  std::uint32_t device = 0;
  std::uint64_t event = 0;
  std::uint64_t sequence = 0;
  std::string_view name = {};
  std::span<const Touch> touches = {};
  CallSite site = {};
  Tag tag = {};
  /// The operation was requested but rejected. The checker checks such a record but never applies
  /// it.
  bool was_refused = false;
};

/// Returns true if the order checker accepts the record: its enumerators exist, its actors are
/// below max_actors, and its ranges end at 2^64 - 1 at the latest. Check records from a file before
/// use.
[[nodiscard]] TERN_EXPORT bool is_well_formed(const TraceRecord& record) noexcept;

}  // namespace tern
