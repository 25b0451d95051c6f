// shutdown() ends the library's own use of memory, and reports what the program left behind.
//
// It waits for every open device, tries failed frees again, gives back what the default resources
// hold, and returns the blocks that are still live, the frees that failed and the work that was
// pending. From then on default resources are refused with AfterShutdown; devices, streams and
// resources of the program's own stay usable, so that what is live can still be freed.
//
// May be called again, and from several threads: one call runs at a time, and each returns what is
// live when it ends. A device that is lost or cannot be waited for is named, and the rest goes on.
// In a forked child there is nothing to shut down.

#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tern/core/call_site.hpp"
#include "tern/core/error.hpp"
#include "tern/core/export.hpp"
#include "tern/core/tag.hpp"

namespace tern {

struct ShutdownReport {
  /// Live blocks of one device with one tag, from one line.
  struct Leak {
    std::string device;
    Tag tag = {};
    /// Known for blocks of default resources if TERN_MEMORY has the word track; else not
    /// (CallSite::is_known).
    CallSite site = {};
    std::size_t bytes = 0;
    std::size_t blocks = 0;
  };
  /// The largest first.
  std::vector<Leak> leaks;
  /// Frees that failed silently so far, and the bytes that are still live because of it.
  std::uint64_t failed_frees = 0;
  std::size_t failed_free_bytes = 0;
  /// Freed to default resources, and not passed by its stream when shutdown() began.
  std::size_t pending_bytes = 0;
  /// Devices that could not be waited for, and why.
  std::vector<Failure> unfinished;

  [[nodiscard]] bool is_clean() const noexcept {
    return leaks.empty() && failed_free_bytes == 0 && unfinished.empty();
  }
  /// One line for each fact, or "nothing was left behind".
  [[nodiscard]] std::string text() const;
};

/// Throws std::bad_alloc.
TERN_EXPORT ShutdownReport shutdown();

}  // namespace tern
