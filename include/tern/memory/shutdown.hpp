// shutdown() ends the library's own use of memory and reports what the program has not freed.
//
//   ShutdownReport report = tern::shutdown();
//   if (!report.is_clean()) std::puts(report.text().c_str());
//
// shutdown() waits for every open device, retries failed frees and trims the default resources. It
// returns the blocks that are still live, the frees that failed and the bytes that were pending.
// After shutdown(), asking for a default resource fails with AfterShutdown. Devices, streams and
// the program's own resources stay usable, so the program can still free its blocks.
//
// shutdown() may be called more than once and from several threads. One call runs at a time, and
// each call returns the blocks that are live at its end. A device that is lost or cannot be waited
// for is listed in the report, and the shutdown of the other devices goes on. In a forked child
// shutdown() does nothing and returns an empty report.

#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tern/core/call_site.hpp"
#include "tern/core/error.hpp"
#include "tern/core/tag.hpp"
#include "tern/core/visibility.hpp"

namespace tern {

/// The result of shutdown().
struct ShutdownReport {
  /// Live blocks that share a device, a tag and an allocating source line.
  struct Leak {
    std::string device;
    Tag tag = {};
    /// The line that allocated the blocks. Known only for blocks of default resources, and only if
    /// TERN_MEMORY contains "track"; check CallSite::is_known().
    CallSite site = {};
    std::size_t bytes = 0;
    std::size_t blocks = 0;
  };
  /// Live blocks, grouped; the largest group first.
  std::vector<Leak> leaks;
  /// The number of frees that failed without a caller to tell, and the bytes that are still live
  /// because of such failures.
  std::uint64_t failed_frees = 0;
  std::size_t failed_free_bytes = 0;
  /// Bytes that default resources had pending when shutdown() began: freed, but their stream had
  /// not passed the free.
  std::size_t pending_bytes = 0;
  /// One failure for each device that could not be waited for.
  std::vector<Failure> unfinished;

  /// Returns true if nothing is live, no failed free is outstanding and every device was waited
  /// for.
  [[nodiscard]] bool is_clean() const noexcept {
    return leaks.empty() && failed_free_bytes == 0 && unfinished.empty();
  }
  /// Returns one line per fact, or "nothing was left behind".
  [[nodiscard]] std::string text() const;
};

/// Shuts the library down and returns the report. Waits for every open device. Throws
/// std::bad_alloc.
TERN_EXPORT ShutdownReport shutdown();

}  // namespace tern
