// Which process is alive, robust against process ids that are used again.
//
// A ProcessIdentity is a process id and the time at which the process started, in clock ticks since
// the machine started. Two processes have the same identity only if the kernel gives out the same
// id twice within a tick of 10 ms.
//
// The facts come from /proc. In doubt a process counts as alive: whoever asks may take memory from
// a dead process. Thread-safe; nothing allocates.

#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "tern/core/result.hpp"

namespace tern {

struct ProcessIdentity {
  std::uint64_t pid = 0;
  std::uint64_t start_ticks = 0;

  friend bool operator==(const ProcessIdentity&, const ProcessIdentity&) noexcept = default;
};

/// Returns the identity of this process. Fails with `file` if /proc cannot be read, and with
/// unsupported if /proc shows another process namespace than the one of this process.
[[nodiscard]] Result<ProcessIdentity> try_this_process() noexcept;

/// Returns a number that two processes share if each sees the ids and the start times of the other:
/// a combination of their process and time namespaces. Fails with `file`.
[[nodiscard]] Result<std::uint64_t> try_process_namespaces() noexcept;

/// Returns false only if no thread of the process will ever run again: there is no such process, or
/// it is a zombie. Returns true if /proc cannot be read.
[[nodiscard]] bool is_alive(const ProcessIdentity& process) noexcept;

/// What is used of /proc/PID/stat.
struct ProcessStat {
  std::uint64_t pid = 0;
  char state = 0;
  std::uint64_t threads = 0;
  std::uint64_t start_ticks = 0;
};
/// Returns nullopt if the text is not the content of such a file. The name of the program, in
/// parentheses, may have any characters.
[[nodiscard]] std::optional<ProcessStat> parse_process_stat(std::string_view text) noexcept;

}  // namespace tern
