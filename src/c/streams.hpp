// Streams of other libraries in the C API: a handle is borrowed for the length of one call.

#pragma once

#include <cstdint>

#include "device/device_state.hpp"
#include "tern/device/stream.hpp"

namespace tern::c {

/// A borrowed stream, or the default stream of a device that lends none.
class CallStream {
 public:
  /// Borrows the stream. A stream that is being captured may be impossible to borrow.
  CallStream(const Device& device, void* handle) noexcept {
    DeviceState* const state = DeviceState::of(device).get();
    const NativeStream native{reinterpret_cast<std::uintptr_t>(handle)};
    if (state->is_in_its_process() && state->info().capabilities.has(Capability::borrowed_streams))
        [[likely]] {
      loan_ = state->borrow_known(native);
      stream_ = loan_;
      if (loan_.id()) return;
    }
    borrow_slowly(device, native);
  }
  CallStream(const CallStream&) = delete;
  CallStream& operator=(const CallStream&) = delete;
  ~CallStream() {
    if (loan_.id()) DeviceState::end_loan(loan_);
  }

  /// Fails if the stream cannot be used, except because it is being captured.
  [[nodiscard]] const Result<void>& result() const noexcept { return result_; }
  /// No stream if it is being captured.
  [[nodiscard]] StreamRef get() const noexcept { return stream_; }
  [[nodiscard]] bool is_captured() const noexcept { return is_captured_; }

 private:
  void borrow_slowly(const Device& device, NativeStream handle) noexcept;

  StreamRef loan_ = {};  // to be returned
  StreamRef stream_ = {};
  Result<void> result_ = {};
  bool is_captured_ = false;
};

}  // namespace tern::c
