// A Finding is what the order checker has to say about one operation: what is wrong, what it
// collides with, which order is missing, and what would repair it.
//
// The labels of its text stand in a fixed order and their contents in column 11; a label without
// content is left out. Offsets are hexadecimal and relative to their memory space, never addresses,
// so a report reads the same on every run. A regular value type.

#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tern/core/export.hpp"
#include "tern/trace/record.hpp"

namespace tern {

/// One line per code: TERN_FINDING(enumerator, number, title).
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
  TERN_FINDING(wrong_device, 401, "wrong-device")                     \
  TERN_FINDING(no_peer_access, 402, "no-peer-access")                 \
  TERN_FINDING(managed_while_busy, 403, "managed-while-busy")         \
  TERN_FINDING(call_in_host_function, 404, "call-in-host-function")   \
  TERN_FINDING(deadlock, 501, "deadlock")                             \
  TERN_FINDING(endless_poll, 502, "endless-poll")                     \
  TERN_FINDING(wrong_bytes, 901, "wrong-bytes")

enum class FindingCode : std::uint16_t {
#define TERN_FINDING(enumerator, number, title) enumerator = number,
  TERN_FOR_EACH_FINDING(TERN_FINDING)
#undef TERN_FINDING
};

/// "TERN-S103".
[[nodiscard]] TERN_EXPORT std::string code_text(FindingCode code);
/// "reuse-before-ready".
[[nodiscard]] TERN_EXPORT std::string_view title(FindingCode code) noexcept;

struct TERN_EXPORT Finding {
  FindingCode code = FindingCode::missing_wait;
  /// Where the check ran, and with which settings: "sim:0  seed 0x1c9f  schedule lazy".
  std::string context;
  /// Which record of the trace this is about, from 1.
  std::uint64_t step = 0;
  SpaceRange range;
  CallSite site;

  std::string what;
  std::string now;
  std::vector<std::string> before;
  std::string block;
  std::string order;
  std::string fix;
  std::string replay;

  [[nodiscard]] std::string text() const;
  /// The same fields as one JSON object on one line.
  [[nodiscard]] std::string json() const;
};

}  // namespace tern
