// A SharedArray is an array that several processes of one machine use, without a copy.
//
//   auto mine = SharedArray<float>::make(device, 1024);             // in one process
//   mine.publish(stream);                                           // the elements are ready
//   std::string handle = mine.handle();                             // send it as text
//
//   auto theirs = SharedArray<float>::open(handle, device);         // in another process
//   theirs.acquire();                                               // waits for publish()
//   launch(theirs.buffer(), stream);
//   theirs.publish(stream);                                         // the exporter may acquire()
//
// The process that makes the array exports it; the others import it. Memory is shared only if it
// was made this way: it never comes from a pool, and it never moves. `host`, `sim` and CUDA devices
// can share memory (Capability::shareable_memory); all processes use the same device.
//
// Turns. The exporter has the turn first. publish() ends a turn once the stream has passed all
// earlier uses of the array; the host does not wait. acquire() waits, on the host, for the next
// turn. Each publish() of the exporter begins a round: every importer gets one turn, possibly at
// the same time as other importers, and the exporter can acquire() again when all importers that
// are open have published, at least one. Use the elements only during a turn.
//
// Ends. If a process ends, the memory stays valid for the others, and is freed when the last
// process has let go of it. acquire() then fails with peer_lost, which names the process. A handle
// is stale (not_found) after its array was destroyed. Processes of other users cannot open a
// handle. In a forked child an array of the parent fails with after_fork.
//
// An array can be moved but not copied. Use one object from one thread at a time. Each x() throws
// what try_x() returns.

#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "tern/buffer/buffer.hpp"
#include "tern/core/call_site.hpp"
#include "tern/core/dtype.hpp"
#include "tern/core/result.hpp"
#include "tern/core/tag.hpp"
#include "tern/detail/core/visibility.hpp"
#include "tern/device/device.hpp"
#include "tern/device/stream.hpp"
#include "tern/memory/budget.hpp"

namespace tern {

namespace share {
struct State;
}

struct SharedOptions {
  /// Charged with the memory, in whole pages, for as long as this process uses it. Every process
  /// charges a budget of its own.
  BudgetHandle budget = {};
  /// How long open() waits for an answer of the exporter. The default is ten seconds.
  std::optional<std::chrono::milliseconds> timeout = {};
  Tag tag = {};
  CallSite site = CallSite::here();
};

/// A shared array whose element type is known at run time.
class TERN_EXPORT SharedBuffer {
 public:
  /// No array.
  SharedBuffer() noexcept = default;
  SharedBuffer(SharedBuffer&& other) noexcept = default;
  SharedBuffer& operator=(SharedBuffer&& other) noexcept;
  /// Closes the array, after a wait for its last publish(). Buffers of the array stay valid.
  ~SharedBuffer();

  /// Makes an array; its elements are zero or unspecified. Fails with unsupported, out_of_memory,
  /// out_of_budget, size_overflow, and driver if the process cannot serve it.
  [[nodiscard]] static Result<SharedBuffer> try_make(const Device& device, std::size_t count,
                                                     DType dtype,
                                                     const SharedOptions& options = {}) noexcept;
  [[nodiscard]] static SharedBuffer make(const Device& device, std::size_t count, DType dtype,
                                         const SharedOptions& options = {}) {
    return try_make(device, count, dtype, options).value();
  }
  /// Opens an array of another process, or of this one. Each open() is an importer of its own, with
  /// its own mapping, charge and turns. Fails with bad_format for a text that is no handle or an
  /// exporter that answers wrongly, peer_lost if the exporter has ended, not_found for a stale
  /// handle, unsupported for an array of another user, device_mismatch for memory of another kind
  /// of device, capacity, timeout, and out_of_budget.
  [[nodiscard]] static Result<SharedBuffer> try_open(std::string_view handle, const Device& device,
                                                     const SharedOptions& options = {}) noexcept;
  [[nodiscard]] static SharedBuffer open(std::string_view handle, const Device& device,
                                         const SharedOptions& options = {}) {
    return try_open(handle, device, options).value();
  }

  [[nodiscard]] explicit operator bool() const noexcept { return state_ != nullptr; }
  /// The elements as a flat buffer, for kernels, copies and host accesses.
  [[nodiscard]] Buffer buffer() const noexcept { return buffer_; }
  [[nodiscard]] std::size_t size() const noexcept { return buffer_.size(); }
  [[nodiscard]] std::size_t size_bytes() const noexcept { return buffer_.size_bytes(); }
  /// The text with which other processes of this user open the array. It contains a secret. Throws
  /// std::bad_alloc. Empty for no array.
  [[nodiscard]] std::string handle() const;
  /// Returns true in the process that made the array.
  [[nodiscard]] bool is_exporter() const noexcept;
  /// Returns true between acquire() and publish(), and for a new array of the exporter.
  [[nodiscard]] bool has_turn() const noexcept;
  /// Returns the number of importers now. 0 for an importer.
  [[nodiscard]] std::size_t importers() const noexcept;

  /// Ends the turn after all earlier uses of the array, in the order of the stream. Fails with
  /// access_conflict if this array does not have the turn, with stream_misuse during a graph
  /// capture, and like uses of buffers; the turn is kept then.
  Result<void> try_publish(StreamRef stream, CallSite site = CallSite::here()) noexcept;
  void publish(StreamRef stream, CallSite site = CallSite::here()) {
    try_publish(stream, site).value();
  }
  /// Waits for the next turn. Work that is submitted afterwards, to any stream, comes after the
  /// work of the others. Fails with peer_lost if the other side has ended: for an exporter once per
  /// importer that ended during its turn, and the exporter has the turn then. Fails with timeout,
  /// which changes nothing, and with access_conflict if this array has the turn.
  Result<void> try_acquire(std::optional<std::chrono::milliseconds> timeout = {},
                           CallSite site = CallSite::here()) noexcept;
  void acquire(std::optional<std::chrono::milliseconds> timeout = {},
               CallSite site = CallSite::here()) {
    try_acquire(timeout, site).value();
  }

 protected:
  SharedBuffer(std::shared_ptr<share::State> state, Buffer buffer) noexcept;

 private:
  void close() noexcept;

  std::shared_ptr<share::State> state_;  // nobody else has it
  Buffer buffer_;
};

/// A shared array of T. See the top of this file.
template <HasDType T>
class SharedArray : public SharedBuffer {
 public:
  using value_type = T;

  SharedArray() noexcept = default;

  [[nodiscard]] static Result<SharedArray> try_make(const Device& device, std::size_t count,
                                                    const SharedOptions& options = {}) noexcept {
    return wrap(SharedBuffer::try_make(device, count, dtype_of<T>(), options));
  }
  [[nodiscard]] static SharedArray make(const Device& device, std::size_t count,
                                        const SharedOptions& options = {}) {
    return try_make(device, count, options).value();
  }
  /// Also fails with type_mismatch if the array has elements of another type.
  [[nodiscard]] static Result<SharedArray> try_open(std::string_view handle, const Device& device,
                                                    const SharedOptions& options = {}) noexcept {
    Result<SharedBuffer> opened = SharedBuffer::try_open(handle, device, options);
    if (opened && opened->buffer().dtype() != dtype_of<T>()) {
      return Failure(
                 ErrorCode::type_mismatch,
                 "the shared array has elements of type {actual}, not {expected}. Open it with the "
                 "type with which it was made.",
                 options.site)
          .with("actual", name(opened->buffer().dtype()))
          .with("expected", name(dtype_of<T>()));
    }
    return wrap(std::move(opened));
  }
  [[nodiscard]] static SharedArray open(std::string_view handle, const Device& device,
                                        const SharedOptions& options = {}) {
    return try_open(handle, device, options).value();
  }

 private:
  explicit SharedArray(SharedBuffer&& buffer) noexcept : SharedBuffer(std::move(buffer)) {}
  [[nodiscard]] static Result<SharedArray> wrap(Result<SharedBuffer>&& made) noexcept {
    if (!made) return made.failure();
    return SharedArray(*std::move(made));
  }
};

}  // namespace tern
