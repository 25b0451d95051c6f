// Waits that Ctrl-C can end. The library's own waits block, so the module waits in short turns
// first and lets Python run its signal handlers between them. A handler that raises ends the wait;
// the work that was submitted goes on.

#pragma once

#include <algorithm>
#include <chrono>
#include <optional>
#include <string_view>
#include <thread>

#include "support.hpp"
#include "tern/coherence/unified_buffer.hpp"
#include "tern/detail/buffer/storage.hpp"

namespace tern::python {

inline constexpr std::chrono::milliseconds turn(50);

/// Lets Python run its signal handlers. Raises what a handler raised.
inline void check_signals() {
  if (PyErr_CheckSignals() != 0) nb::raise_python_error();
}

/// Polls for one turn. Returns whether `is_ready` returned true or failed.
template <class IsReady>
bool is_ready_in_turn(IsReady& is_ready) {
  using Clock = std::chrono::steady_clock;
  Clock::time_point end;  // read after the first query, because most calls need one query only
  for (std::chrono::microseconds pause(5);;
       pause = std::min(pause * 2, std::chrono::microseconds(1000))) {
    const Result<bool> ready = is_ready();
    if (!ready || *ready) return true;
    const Clock::time_point now = Clock::now();
    if (end == Clock::time_point()) end = now + turn;
    if (now >= end) return false;
    std::this_thread::sleep_for(pause);
  }
}

/// Waits until `is_ready` returns true or fails, and then calls `call`, which reports the failure.
/// Both run without the interpreter lock, which is released once if nothing has to wait.
template <class IsReady, class Call>
auto call_when_ready(IsReady is_ready, Call call) {
  std::optional<decltype(call())> made;
  const auto one_turn = [&] {
    if (is_ready_in_turn(is_ready)) made.emplace(call());
    return made.has_value();
  };
  while (!without_gil(one_turn)) check_signals();
  return std::move(*made);
}

/// Like is_ready(), for simulated devices. Their schedules answer hundreds of queries with no on
/// purpose, so another thread waits, and this one looks for a turn whether it is done.
[[nodiscard]] Result<bool> is_ready_beside(const StorageHandle& storage, Access access);

/// Whether the host may access the storage in this way.
inline Result<bool> is_ready(const StorageHandle& storage, Access access) noexcept {
  if (!storage || storage->uses().size() == 0) return true;
  const std::string_view spec = storage->device().spec();
  const bool is_simulated =
      spec.starts_with("sim") || spec.find("driver=sim") != std::string_view::npos;
  return is_simulated ? is_ready_beside(storage, access) : storage->uses().try_is_ready(access);
}
/// Whether the host may access its copy in this way. Writes of the device count only if the host
/// needs their bytes.
inline Result<bool> is_ready(const RawUnified& buffer, Access access) noexcept {
  const Result<bool> host = is_ready(buffer.storage_of(Place::host()), access);
  if (!host || !*host || access == Access::discard || buffer.device().info().is_host) return host;
  const StorageHandle storage = buffer.storage_of(buffer.device().place());
  if (!storage || storage->uses().size() == 0) return true;
  const BufferState state = buffer.state(0, buffer.size_bytes());
  const bool is_host_stale = state == BufferState::device_only ||
                             state == BufferState::device_dirty || state == BufferState::mixed;
  return is_host_stale ? is_ready(storage, Access::read) : Result<bool>(true);
}
/// Whether no stream uses any copy of the buffer.
inline Result<bool> is_unused(const RawUnified& buffer) noexcept {
  const Result<bool> host = is_ready(buffer.storage_of(Place::host()), Access::discard);
  if (!host || !*host || buffer.device().info().is_host) return host;
  return is_ready(buffer.storage_of(buffer.device().place()), Access::discard);
}

/// Looks which thread handles signals.
void add_interrupts();

/// Waits for all work of the device. Raises the error of the wait.
void wait_for_device(const Device& device);

/// Opens a lease when `is_ready` returns true. Waits for other leases in turns; `open` takes the
/// LeaseWait of one turn.
template <class IsReady, class Open>
RawLease open_in_turns(const std::optional<double>& seconds, LeaseWait whole, IsReady is_ready,
                       Open open) {
  using Clock = std::chrono::steady_clock;
  if (!seconds || *seconds <= std::chrono::duration<double>(turn).count()) {
    return call_when_ready(is_ready, [&] { return open(whole); });
  }
  const std::chrono::duration<double> patience(std::min(*seconds, 1e9));
  const Clock::time_point end =
      Clock::now() + std::chrono::duration_cast<Clock::duration>(patience);
  for (;;) {
    Clock::time_point begin;
    try {
      return call_when_ready(is_ready, [&] {
        begin = Clock::now();
        return open(LeaseWait::up_to(std::chrono::nanoseconds(turn)));
      });
    } catch (const Error&) {
      // A failure before the end of the turn is one that no wait changes.
      if (Clock::now() - begin < turn || Clock::now() >= end) throw;
    }
    check_signals();
  }
}

}  // namespace tern::python
