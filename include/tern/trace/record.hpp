// A TraceRecord is one thing that happened, or was asked for, as data.
//
// Records speak of actors (streams and host threads), events, and ranges of memory spaces, all by
// number, so that they mean the same in a file, on another machine and a year later. A backend
// writes them in the order of its calls; the order checker and the tools read them. Names and
// touches are borrowed for the duration of the call that takes the record; the strings of a call
// site are not copied and outlive whoever took it.

#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "tern/core/call_site.hpp"
#include "tern/core/export.hpp"
#include "tern/core/tag.hpp"

namespace tern {

/// A stream or a host thread, numbered by whoever writes the trace; 0 is the first host thread. The
/// number of a stream that ended may be given to another once no memory remembers an operation of
/// it that a host thread has not waited for, and what it waited for was kept by an event: the new
/// owner counts on, and knows what its creator knows.
using ActorId = std::uint32_t;

/// A clock has a component for every actor, so their number bounds what one record can cost. It is
/// far above the streams a device runs at a time.
inline constexpr ActorId max_actors = 4096;

/// Bytes of a memory space. Space 0 is host memory; every device has one of its own. Offsets are
/// relative to something stable, never addresses. A range of no bytes is touched by nobody.
struct SpaceRange {
  std::uint32_t space = 0;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

/// What an operation does to a range. Life and death are accesses too: that is what makes reuse too
/// early an ordinary conflict.
enum class TouchKind : std::uint8_t {
  read,
  write,
  read_write,
  allocate,     // a block of a driver or of the host begins
  release,      // and ends
  suballocate,  // a block that a pool cuts from memory it owns begins
  subrelease,   // and ends
};

struct Touch {
  TouchKind kind = TouchKind::read;
  SpaceRange range = {};
  /// Which block this is, of all that ever were: said when it begins, and later by whoever uses it
  /// through a handle. 0 where nobody says.
  std::uint64_t generation = 0;
  /// Nobody declared it: a bare pointer counts as using its whole block. Of a write in a host
  /// access: nobody writes, and the contents are their reader's affair from now on.
  bool is_assumed = false;
};

enum class RecordKind : std::uint8_t {
  actor_begins,     // actor, host = its creator, name = its name
  actor_ends,       // actor
  operation,        // actor does name with touches, submitted by host
  record_event,     // event on actor, by host
  wait_event,       // actor for event, by host
  event_ends,       // event
  host_wait_mark,   // host for actor up to sequence
  host_wait_event,  // host for event
  host_access,      // host touches
  release_edge,     // host gives what it knows to event (a tag of any kind)
  acquire_edge,     // host takes what event knows
  shutdown,         // nothing follows; what is live leaks
  lost_records,     // a gap: as many records as sequence says are missing here, 0 if nobody counted
};

enum class OperationKind : std::uint8_t { copy, fill, kernel, call, allocate, release, prefetch };

/// How a stream is ordered with the default stream of its device.
enum class ActorKind : std::uint8_t { host, stream, blocking_stream, default_stream };

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
  /// It was asked for and did not happen: the checker judges it and never applies it.
  bool was_refused = false;
};

/// May the record be given to the order checker? Its enumerators exist, its actors are below
/// max_actors, and its ranges end at 2^64 - 1 at the latest. Records from a file are asked first.
[[nodiscard]] TERN_EXPORT bool is_well_formed(const TraceRecord& record) noexcept;

}  // namespace tern
