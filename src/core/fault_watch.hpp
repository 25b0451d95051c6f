// Watches address ranges that must not be accessed now, and explains an access to them.
//
// While a range is watched, a SIGSEGV handler checks whether a fault lies in one of the ranges and
// calls its explain function, which may write a report or make the access possible. If the access
// stays impossible, and for all other faults, the previous handler runs, and the process ends as it
// would have without Tern. Thread-safe.

#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "tern/core/call_site.hpp"

namespace tern {

/// What the handler knows about the address that was accessed.
struct Fault {
  void* address = nullptr;
  std::uint64_t offset = 0;  // from the start of the range
  std::size_t bytes = 0;     // size of the range
  const char* name = "";
  CallSite site = {};
};

/// Explains a fault. Runs in a signal handler, so it must not allocate or lock. Returns true if the
/// access can be retried.
using ExplainFault = bool (*)(const Fault& fault) noexcept;

/// Starts watching a range. `name` is cut at 31 bytes. If the host has no memory for the entry,
/// faults in the range are not explained.
void watch_faults(const void* first, std::size_t bytes, std::string_view name,
                  ExplainFault explain) noexcept;
/// Sets the call site that later reports about the range show.
void set_fault_site(const void* first, const CallSite& site) noexcept;
/// Stops watching a range.
void forget_faults(const void* first) noexcept;

}  // namespace tern
