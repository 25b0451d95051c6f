// The parts of a memory trace file: what docs/formats/memory-trace.md describes, as structs.
//
// A memory trace records what happens to memory on every device, with times: requests, frees,
// growth, copies, launches, waits. A program writes the file through mappings, so what was recorded
// is in the file even if the process is killed.
//
// The file is a header and slabs of one size. Each slab belongs to one thread and holds events, or
// holds definitions: the texts behind the numbers in events. All integers are little endian.

#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace tern::trace {

/// What happened. The comments list the fields that a kind uses besides time, site, tag, device and
/// resource. Numbers are part of the file format: add kinds at the end.
enum class EventKind : std::uint8_t {
  none,
  allocate,       // block, address, bytes granted, extra: bytes requested, stream
  free,           // block, address, bytes, stream of the free, extra: sequence number that the
                  // stream must pass before other streams may use the memory; 0: unknown, or
                  // other streams may use the memory immediately
  refuse,         // bytes requested, extra: bytes held, block: pending bytes, address: bytes of the
                  // largest free range, detail: ErrorCode, stream
  hold,           // bytes that the resource holds now, extra: live bytes, block: pending bytes
  budget_wait,    // bytes requested, extra: nanoseconds that the thread waited, block: number of
                  // the budget, stream
  budget_refuse,  // bytes requested, extra: definition of the budget's path, block: number of the
                  // budget, stream
  copy,           // address: destination, extra: source, bytes, stream, block: its number, or 0,
                  // detail: CopyShape
  fill,           // address, bytes, stream
  launch,         // extra: definition of the kernel, stream
  use,            // address, bytes, detail: Access, stream; one per declared use, after its launch
  stream_wait,   // stream waits until the stream in `extra` has passed sequence `block`; if that is
                 // 0, until it has passed the event in `address`; if `extra` is 0, for other work
  host_wait,     // the thread waited `extra` nanoseconds for sequence `block`, event `address`, or
                 // if both are 0, all work of `stream`; for all work of the device if that is 0
  stream_begin,  // stream, extra: definition of its name, or 0, detail: StreamOrder
  move,          // a unified buffer moved bytes, detail: TransferReason
  evict,         // a unified buffer freed a copy of `bytes`
  range_begin,   // extra: definition of the name; ranges of a thread nest
  range_end,
  copy_time,    // copy number `block` ran on the device from this time on, for `extra` nanoseconds
  lease_begin,  // block: its number while it is open, address, bytes, detail: Access, stream
  lease_end,    // block: the number of the lease
  evict_blocked,   // a lease, opened at `site`, kept a copy of `bytes` from eviction
  finding,         // the checker reported something; extra: definition of its text
  done_seen,       // the host saw work complete without a wait; fields as for host_wait
  budget_use,      // block: number of the budget, bytes: used now, address: its limit, extra:
                   // definition of its path, detail: 1 if the budget is destroyed
  event_recorded,  // a device event after the work of `stream` so far; block: it covers the
                   // sequence numbers up to this one, or 0: address is an event of the program
  host_call,       // a host function was submitted to `stream`
  stream_end,      // `stream` was destroyed; its work may still run
  limit,           // a pool is about to refuse a request; bytes: its limit, detail: Backing
};
inline constexpr std::uint8_t event_kinds = static_cast<std::uint8_t>(EventKind::limit) + 1;
/// Stands for "no limit" in the events of budgets and pools.
inline constexpr std::uint64_t no_limit = ~std::uint64_t{0};

/// Returns whether this version knows the kind.
[[nodiscard]] constexpr bool is_event_kind(std::uint8_t kind) noexcept {
  return kind != 0 && kind < event_kinds;
}

enum class CopyShape : std::uint8_t {
  contiguous,
  rows,  // rows with gaps between them: the copied bytes are not one range
};

/// How a pool holds its memory.
enum class Backing : std::uint8_t {
  unknown,
  pages,     // pages that can be put together anywhere
  segments,  // contiguous allocations of the driver
};

/// How a stream is ordered with streams that it does not wait for.
enum class StreamOrder : std::uint8_t {
  independent,
  blocking,  // ordered with the default stream of its device
  borrowed,  // other libraries submit work to the stream, too
};

/// One event, as it is in the file.
struct MemoryEvent {
  std::uint64_t time_ns = 0;  // of the monotonic clock
  std::uint64_t stream = 0;   // 0: no stream, the host
  std::uint64_t block = 0;    // what it identifies depends on the kind
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;
  std::uint64_t extra = 0;
  std::uint32_t site = 0;      // a definition, 0: unknown
  std::uint32_t resource = 0;  // a definition, 0: none
  std::uint32_t device = 0;    // a definition, 0: none
  std::uint16_t tag = 0;       // a definition of a tag, 0: untagged
  EventKind kind = EventKind::none;
  std::uint8_t detail = 0;
};
static_assert(sizeof(MemoryEvent) == 64 && std::is_trivially_copyable_v<MemoryEvent>);

/// What a definition names.
enum class DefinitionKind : std::uint8_t { text, site, tag, device, resource, kernel };
inline constexpr std::size_t definition_kinds = 6;

/// The text behind a number. Each kind is numbered separately. `text_bytes` bytes follow, padded to
/// a multiple of 8.
struct Definition {
  DefinitionKind kind = DefinitionKind::text;
  std::uint8_t detail = 0;  // resource: MemoryKind
  std::uint16_t text_bytes = 0;
  std::uint32_t number = 0;
  std::uint32_t line = 0;    // site
  std::uint32_t device = 0;  // resource
};
static_assert(sizeof(Definition) == 16 && std::is_trivially_copyable_v<Definition>);
inline constexpr std::size_t max_text_bytes = 4096;

[[nodiscard]] constexpr std::size_t definition_bytes(std::size_t text_bytes) noexcept {
  return sizeof(Definition) + (text_bytes + 7) / 8 * 8;
}

enum class SlabKind : std::uint32_t { unused, events, definitions };

/// The first bytes of a slab. `used` is written after the events that it counts, so a reader never
/// sees half an event.
struct SlabHeader {
  SlabKind kind = SlabKind::unused;
  std::uint32_t thread = 0;  // counted from 1
  std::uint64_t order = 0;   // slabs of a thread are in this order
  std::uint64_t used = 0;    // events, or bytes of definitions
  std::uint64_t reserved[5] = {};
};
static_assert(sizeof(SlabHeader) == 64);

/// The first page of the file.
struct FileHeader {
  std::uint64_t magic = 0;
  std::uint32_t version = 0;
  std::uint32_t header_bytes = 0;
  std::uint32_t slab_bytes = 0;
  std::uint32_t event_bytes = 0;
  std::uint64_t start_ns = 0;       // monotonic clock when recording began
  std::uint64_t start_unix_ns = 0;  // system clock at the same moment
  std::uint32_t process = 0;
  std::uint32_t is_closed = 0;
  std::uint64_t lost_events = 0;
  char program[256] = {};
  std::uint64_t slab_count = 0;  // of a file that is closed; 0: unknown
};
inline constexpr std::uint64_t file_magic = 0x0A544D4E524554ABull;  // AB "TERNMT" LF
inline constexpr std::uint32_t file_version = 1;
inline constexpr std::size_t file_header_bytes = 4096;
inline constexpr std::size_t slab_bytes = 256 * 1024;
inline constexpr std::size_t slab_events = (slab_bytes - sizeof(SlabHeader)) / sizeof(MemoryEvent);
inline constexpr std::size_t slab_text_bytes = slab_bytes - sizeof(SlabHeader);

}  // namespace tern::trace
