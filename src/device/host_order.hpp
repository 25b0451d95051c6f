// How one host thread comes to know what another one has seen done, for a device that counts host
// threads apart.
//
// A mark that somebody has seen done is not asked about again: the next thread reads that from
// memory, and the device hears nothing of it. A backend that implements this is told instead.

#pragma once

#include <cstdint>

#include "tern/device/backend.hpp"

namespace tern {

class HostOrder {
 public:
  HostOrder(const HostOrder&) = delete;
  HostOrder& operator=(const HostOrder&) = delete;

  /// This thread is about to let others know that marks of the stream in that slot are done.
  virtual void note_seen_done(std::uint32_t slot) noexcept = 0;
  /// This thread relies on a mark of that stream being done, as somebody has seen before.
  virtual void note_known_done(std::uint32_t slot) noexcept = 0;
  /// A stream was to wait for such a mark, of `waiter`, which is of the same kind as this backend.
  /// Later work of it begins behind the mark, whichever thread submits that.
  virtual void note_known_done(std::uint32_t slot, Backend& waiter,
                               const Submission& submission) noexcept = 0;

 protected:
  HostOrder() = default;
  ~HostOrder() = default;
};

}  // namespace tern
