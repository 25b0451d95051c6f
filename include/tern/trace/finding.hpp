// A Finding is one error that the order checker reports: what is wrong, which earlier operation it
// conflicts with, which order is missing, and how to fix it.
//
// text() prints one labelled line per field, in a fixed order. The content of each line starts in
// column 11. Empty fields are left out. Offsets are hexadecimal and relative to their memory space,
// never addresses, so the report of a run is the same each time. A regular value type.

#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tern/core/call_site.hpp"
#include "tern/detail/core/visibility.hpp"
#include "tern/detail/trace/record.hpp"

namespace tern {

/// The list of all codes, one line each: TERN_FINDING(enumerator, number, title). docs/guide/sim.md
/// explains them in full.
/// - Order: `missing_wait` (two streams use the same bytes without an order), `free_while_in_use`,
///   `reuse_before_ready` (a pool hands memory out too early), `use_before_alloc` (a stream is not
///   ordered after the allocation), `host_read_before_sync` and `host_write_before_sync` (a stream
///   may still use the bytes), `changed_in_flight` and `freed_in_flight` (host memory that a queued
///   copy uses).
/// - Lifetime: `use_after_free`, `double_free`, `wrong_range_free`, `live_block_reissued` (handed
///   out twice), `dead_handle` (kernels or pages after their release), `leak` (never freed).
/// - Contents: `uninitialised_read` (bytes that nobody wrote), `out_of_bounds` (outside of every
///   block or array), `undeclared_access` (a kernel touches what its launch or its parameters did not
///   declare), `unwritten_output` (a portable kernel did not write all of an `out` array).
/// - Inside a portable kernel: `kernel_race` (two threads use an element without an order),
///   `kernel_arithmetic` (an operation that C does not define, such as a division by zero).
/// - Devices: `wrong_device` (memory of another device), `no_peer_access`, `managed_while_busy`
///   (the host uses managed memory while the device may run), `call_in_host_function` (a call on
///   the device that runs the function).
/// - Waits: `deadlock` and `endless_poll` (for work that can never complete), `endless_kernel` (a
///   portable kernel that does not end).
/// - `wrong_bytes`: two schedules of a race-free program end with different bytes, a defect of the
///   simulated device.
#define TERN_FOR_EACH_FINDING(TERN_FINDING)                           \
  TERN_FINDING(missing_wait, 101, "missing-wait")                     \
  TERN_FINDING(free_while_in_use, 102, "free-while-in-use")           \
  TERN_FINDING(reuse_before_ready, 103, "reuse-before-ready")         \
  TERN_FINDING(use_before_alloc, 104, "use-before-alloc")             \
  TERN_FINDING(host_read_before_sync, 105, "host-read-before-sync")   \
  TERN_FINDING(host_write_before_sync, 106, "host-write-before-sync") \
  TERN_FINDING(changed_in_flight, 107, "changed-in-flight")           \
  TERN_FINDING(freed_in_flight, 108, "freed-in-flight")               \
  TERN_FINDING(use_after_free, 201, "use-after-free")                 \
  TERN_FINDING(double_free, 202, "double-free")                       \
  TERN_FINDING(wrong_range_free, 203, "wrong-range-free")             \
  TERN_FINDING(live_block_reissued, 204, "live-block-reissued")       \
  TERN_FINDING(dead_handle, 205, "dead-handle")                       \
  TERN_FINDING(leak, 206, "leak")                                     \
  TERN_FINDING(uninitialised_read, 301, "uninitialised-read")         \
  TERN_FINDING(out_of_bounds, 302, "out-of-bounds")                   \
  TERN_FINDING(undeclared_access, 303, "undeclared-access")           \
  TERN_FINDING(unwritten_output, 305, "unwritten-output")             \
  TERN_FINDING(kernel_race, 306, "kernel-race")                       \
  TERN_FINDING(kernel_arithmetic, 307, "kernel-arithmetic")           \
  TERN_FINDING(wrong_device, 401, "wrong-device")                     \
  TERN_FINDING(no_peer_access, 402, "no-peer-access")                 \
  TERN_FINDING(managed_while_busy, 403, "managed-while-busy")         \
  TERN_FINDING(call_in_host_function, 404, "call-in-host-function")   \
  TERN_FINDING(deadlock, 501, "deadlock")                             \
  TERN_FINDING(endless_poll, 502, "endless-poll")                     \
  TERN_FINDING(endless_kernel, 503, "endless-kernel")                 \
  TERN_FINDING(wrong_bytes, 901, "wrong-bytes")

/// What is wrong. The list above explains each code.
enum class FindingCode : std::uint16_t {
#define TERN_FINDING(enumerator, number, title) enumerator = number,
  TERN_FOR_EACH_FINDING(TERN_FINDING)
#undef TERN_FINDING
};

/// Returns the code as text, such as "TERN-S103".
[[nodiscard]] TERN_EXPORT std::string code_text(FindingCode code);
/// Returns the title, such as "reuse-before-ready".
[[nodiscard]] TERN_EXPORT std::string_view title(FindingCode code) noexcept;

/// See the top of this file.
struct TERN_EXPORT Finding {
  /// Which kind of mistake it is.
  FindingCode code = FindingCode::missing_wait;
  /// The device and settings of the run, such as "sim:0  seed 0x1c9f  schedule lazy".
  std::string context;
  /// The number of the trace record that the finding is about, counted from 1.
  std::uint64_t step = 0;
  /// The bytes that are affected.
  SpaceRange range;
  /// The user's line that submitted the operation.
  CallSite site;

  /// What is wrong, as a sentence.
  std::string what;
  /// The operation that the finding is about.
  std::string now;
  /// The earlier operations that it conflicts with.
  std::vector<std::string> before;
  /// The block that contains the bytes: who allocated it, and where.
  std::string block;
  /// Which order is missing.
  std::string order;
  /// What to change.
  std::string fix;
  /// How to repeat the run.
  std::string replay;

  /// Returns the report as several lines of text. Control characters are printed as "?".
  [[nodiscard]] std::string text() const;
  /// Returns the fields as one JSON object on one line.
  [[nodiscard]] std::string json() const;
};

}  // namespace tern
