// HostOrder tells a backend that one host thread relies on what another thread has seen done. It is
// for devices that treat host threads as separate actors (the simulated device with
// per_thread_host).
//
// Once a thread has seen a mark done, Tern stores that fact, and other threads read it from memory
// without asking the device. A backend that checks the order of host threads would miss this order.
// If the backend also derives from HostOrder, DeviceState calls these functions. They are called
// from any thread.

#pragma once

#include <cstdint>

#include "tern/detail/device/backend.hpp"

namespace tern {

class HostOrder {
 public:
  HostOrder(const HostOrder&) = delete;
  HostOrder& operator=(const HostOrder&) = delete;

  /// Called when a stream of the device gets the slot, before it gets work.
  virtual void note_stream(std::uint32_t slot, NativeStream stream) noexcept = 0;
  /// Called before this thread publishes that marks of the stream in `slot` are done. Passes on
  /// only what the work of that stream is ordered after, as far as this thread has seen it done.
  virtual void note_seen_done(std::uint32_t slot) noexcept = 0;
  /// Called when this thread relies on a mark of that stream that was seen done before.
  virtual void note_known_done(std::uint32_t slot) noexcept = 0;
  /// Called instead of queuing a wait for such a mark on a stream of `waiter`, a device of the same
  /// backend. Later work of that stream is ordered after the mark, whichever thread submits it.
  virtual void note_known_done(std::uint32_t slot, Backend& waiter,
                               const Submission& submission) noexcept = 0;
  /// Called before this thread lets other threads continue that wait for `tag`, which is unique
  /// among Tern's own primitives, and after this thread has waited for it. They never wait for the
  /// device, because a host function may wait for the tag.
  virtual void note_released(std::uint64_t tag) noexcept = 0;
  virtual void note_acquired(std::uint64_t tag) noexcept = 0;

 protected:
  HostOrder() = default;
  ~HostOrder() = default;
};

}  // namespace tern
