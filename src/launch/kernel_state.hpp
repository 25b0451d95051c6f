// The state that the handles of one kernel share.

#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "device/device_state.hpp"
#include "language/syntax.hpp"
#include "tern/core/call_site.hpp"
#include "tern/core/result.hpp"
#include "tern/detail/buffer/use_record.hpp"
#include "tern/detail/launch/function_kernel.hpp"
#include "tern/device/device.hpp"
#include "tern/device/operations.hpp"
#include "tern/device/stream.hpp"
#include "trace/recording.hpp"

namespace tern {

/// The shared state of the handles of a kernel. It is destroyed with the last handle, or kept,
/// without a handle of its device, until its launches are done.
struct KernelState {
  KernelState() = default;
  KernelState(const KernelState&) = delete;
  KernelState& operator=(const KernelState&) = delete;

  Device device;
  std::weak_ptr<DeviceState> device_state;
  NativeKernel native;
  std::string name;
  const std::uint32_t number = trace::new_number();  // in recordings
  KernelInfo info;
  std::vector<DeclaredParameter> declared;
  std::shared_ptr<const language::Program> program;  // of a portable kernel
  NativeKernel combine;                              // of a portable reduction
  UseRecord launches;
  // Streams with launches. They are queried when the last handle is destroyed, so later launches on
  // them add nothing.
  std::array<std::atomic<std::uint64_t>, 4> known_streams = {};
  KernelState* next = nullptr;  // in the list of waiting kernels

  /// Records a launch on the stream before it is made. Fails with out_of_memory.
  [[nodiscard]] Result<void> try_note_launch(StreamRef stream, CallSite site) noexcept {
    std::atomic<std::uint64_t>& known = known_streams[stream.id().number() % known_streams.size()];
    if (known.load(std::memory_order_relaxed) == stream.id().value()) return {};
    const Result<UseRecord::Ticket> ticket =
        launches.try_begin(stream, Access::read, site, UseRecord::LockMode::none);
    if (!ticket) return ticket.failure();
    launches.end(*ticket, stream, {}, Access::read);
    known.store(stream.id().value(), std::memory_order_relaxed);
    return {};
  }

  [[nodiscard]] bool are_launches_done() const noexcept {
    const Result<bool> done = launches.try_is_ready(Access::discard);
    // A device that is lost, or belongs to another process, needs no wait.
    return !done || *done;
  }
};

}  // namespace tern
