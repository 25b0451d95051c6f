// Not part of the interface.
//
// LaunchMemory is the interface between a launch and memory that moves to the launch's device.
// Unified buffers implement it.
//
// A launch calls five steps. It completes each step for all of its arguments before the next step:
// 1. try_claim: claims the bytes, so that no conflicting access can begin.
// 2. try_missing and try_make_room: makes room for all memory that is missing on the device. If the
//    arguments cannot fit together, the launch fails before anything is evicted.
// 3. try_make_ready: allocates that memory.
// 4. try_bring: copies stale bytes to the device, in stream order.
// 5. finish: says whether the kernel was submitted.
//
// If a step fails, the launch undoes the earlier steps: nothing stays claimed, and the contents are
// as they were. A launch with several such memories claims them in the order of number(), so that
// two launches cannot deadlock.
//
// A launch uses the memory only during its call, and the caller keeps the memory alive that long.
// All functions may be called from any thread.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "tern/core/access.hpp"
#include "tern/core/call_site.hpp"
#include "tern/core/dtype.hpp"
#include "tern/core/result.hpp"
#include "tern/detail/buffer/storage.hpp"
#include "tern/detail/core/visibility.hpp"
#include "tern/device/stream.hpp"
#include "tern/memory/resource.hpp"

namespace tern {

/// The type of an element or a value: its size, and its dtype if it has one.
struct ArgumentType {
  std::uint32_t bytes = 0;
  DType dtype = DType::void_;

  template <class T>
  [[nodiscard]] static constexpr ArgumentType of() noexcept {
    if constexpr (HasDType<T>) {
      return {sizeof(T), dtype_of<T>()};
    } else {
      return {sizeof(T), DType::void_};
    }
  }
};

/// Bytes [begin, end) that one launch uses in one way. The parts of one launch do not overlap.
struct LaunchPart {
  std::size_t begin = 0, end = 0;
  Access access = Access::read;
  /// Set by try_claim(), for the implementation's own use.
  std::uint32_t claim = 0;
  /// An argument reads these bytes, so they must have been written.
  bool is_input = false;
};

class TERN_EXPORT LaunchMemory {
 public:
  LaunchMemory() noexcept = default;
  LaunchMemory(const LaunchMemory&) = delete;
  LaunchMemory& operator=(const LaunchMemory&) = delete;

  /// Returns a number that is unique in the process.
  [[nodiscard]] virtual std::uint64_t number() const noexcept = 0;
  /// Claims all parts or none. Fails with access_conflict, never_written, invalid_view.
  [[nodiscard]] virtual Result<void> try_claim(std::span<LaunchPart> parts, StreamRef stream,
                                               CallSite site) noexcept = 0;
  /// The memory that has to be allocated on the stream's device, and the resource that would
  /// provide it.
  struct Missing {
    ResourceHandle from = {};
    std::size_t bytes = 0;
  };
  /// Returns what is missing; zero bytes if nothing is. Fails if the device has no default
  /// resource.
  [[nodiscard]] virtual Result<Missing> try_missing(StreamRef stream, CallSite site) noexcept = 0;
  /// Frees room for `bytes` bytes from the resource of this memory: its own bytes, and those of
  /// other arguments of the launch. Evicts if necessary. If the bytes cannot fit, fails with
  /// out_of_budget and evicts nothing.
  [[nodiscard]] virtual Result<void> try_make_room(std::size_t bytes, StreamRef stream,
                                                   CallSite site) noexcept = 0;
  /// Returns the storage on the stream's device, and allocates it if necessary. Sets `is_new` if
  /// the device had none.
  [[nodiscard]] virtual Result<StorageHandle> try_make_ready(StreamRef stream, bool& is_new,
                                                             CallSite site) noexcept = 0;
  /// Copies the stale bytes of the parts to the stream's device, in stream order.
  [[nodiscard]] virtual Result<void> try_bring(std::span<const LaunchPart> parts, StreamRef stream,
                                               CallSite site) noexcept = 0;
  /// Ends the claim. If the kernel was not submitted, a new storage without up-to-date bytes is
  /// freed.
  virtual void finish(std::span<const LaunchPart> parts, StreamRef stream, bool is_submitted,
                      bool was_new) noexcept = 0;

 protected:
  ~LaunchMemory() = default;
};

}  // namespace tern
