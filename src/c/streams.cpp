#include "c/streams.hpp"

namespace tern::c {

// CallStream::borrow() has found the stream if it is known and not captured.
[[gnu::noinline]] void CallStream::borrow_slowly(const Device& device,
                                                 NativeStream handle) noexcept {
  if (!device.can(Capability::borrowed_streams)) {
    if (handle.value == 0) {
      stream_ = device.default_stream();
    } else {
      result_ = Failure(ErrorCode::unsupported,
                        "device '{device}' cannot use stream {stream} of other code. Pass NULL for "
                        "its default stream.")
                    .with("what", "borrowed streams")
                    .with("device", device.spec())
                    .with("stream", handle.value, Unit::hex);
    }
    return;
  }
  DeviceState& state = *DeviceState::of(device);
  if (result_ = state.check_process(); !result_) return;
  const Result<StreamRef> borrowed = state.borrow_stream(handle, true);
  if (borrowed) {
    loan_ = *borrowed;
    const Result<bool> is_captured = loan_.try_is_capturing();
    is_captured_ = is_captured && *is_captured;
    if (!is_captured_) stream_ = loan_;
    return;
  }
  is_captured_ = borrowed.failure().code() == ErrorCode::stream_misuse &&
                 borrowed.failure().string("why").has_value();
  if (!is_captured_) result_ = borrowed.failure();
}

}  // namespace tern::c
