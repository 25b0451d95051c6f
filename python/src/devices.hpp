// The Python classes of streams, and waits that signals can interrupt.

#pragma once

#include <algorithm>
#include <chrono>
#include <thread>

#include "support.hpp"

namespace tern::python {

/// A stream: our own, a borrowed one, or the default stream of a device.
class PyStream {
 public:
  /// The default stream.
  explicit PyStream(const Device& device);
  /// A new stream.
  PyStream(const Device& device, const StreamOptions& options);
  /// A stream of another library.
  PyStream(nb::handle object, const Device& device);

  PyStream(PyStream&&) = default;
  PyStream& operator=(PyStream&&) = default;

  [[nodiscard]] StreamRef get() const noexcept { return ref_; }
  [[nodiscard]] const Device& device() const noexcept { return device_; }
  /// A share of the stream for the time of a call. Raises StreamMisuseError if the stream was
  /// closed.
  [[nodiscard]] StreamShare share() const;
  void close() noexcept;
  template <class Visit>
  friend void visit_objects(const PyStream& self, Visit visit) {
    visit(self.owner_);
  }

 private:
  Device device_;
  StreamShare owned_;
  nb::object owner_;  // of a borrowed stream
  StreamRef ref_;
  bool is_closed_ = false;
};

/// Waits for at most 50 ms. Returns whether the mark is done.
[[nodiscard]] Result<bool> wait_for_a_while(Mark mark) noexcept;

}  // namespace tern::python
