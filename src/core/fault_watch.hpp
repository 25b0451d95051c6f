// Addresses that nobody should touch now, with an explanation for who does.
//
// While any are watched, a SIGSEGV handler looks whether a fault lies in one of them, and calls its
// explain function, which may write a report or make the access possible. Otherwise, and for all
// other faults, whoever handled the signal before has his turn, and the process dies of it as it
// would have. Thread-safe.

#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "tern/core/call_site.hpp"

namespace tern {

/// What the handler knows of the place that was touched.
struct Fault {
  void* address = nullptr;
  std::uint64_t offset = 0;  // from the first watched address
  std::size_t bytes = 0;     // that are watched with it
  const char* name = "";
  CallSite site = {};
};

/// In a signal handler: nothing that allocates or locks. True if the access may be tried again.
using ExplainFault = bool (*)(const Fault& fault) noexcept;

/// `name` is cut at 31 bytes. Where the host has no memory for it, nothing is explained.
void watch_faults(const void* first, std::size_t bytes, std::string_view name,
                  ExplainFault explain) noexcept;
/// The line that a report shall name from now on.
void set_fault_site(const void* first, const CallSite& site) noexcept;
void forget_faults(const void* first) noexcept;

}  // namespace tern
