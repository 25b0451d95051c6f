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
// The process that makes the array is the exporter, and the processes that open the array are
// importers. Only memory that was made as a shared array can be shared: the memory never comes from
// a pool, and never moves. `host`, `sim` and CUDA devices can share memory
// (Capability::shareable_memory). All processes use the same device.
//
// Turns. The exporter has the first turn. publish() ends a turn once the stream has passed all
// earlier uses of the array; the host does not wait. acquire() waits, on the host, for the next
// turn. Each publish() of the exporter begins a round, in which every importer gets one turn,
// possibly at the same time as other importers. acquire() of the exporter waits until at least one
// importer has published and no open importer still has to publish. Use the elements only during a
// turn.
//
// End of a process. The memory stays valid for the other processes, and is freed when the last
// process has ended or released it. acquire() fails with peer_lost, which names the ended process.
// After the exporter has destroyed its array, the handle is stale (not_found). Processes of other
// users cannot open a handle. In a forked child, calls on an array of the parent fail with
// after_fork.
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

/// Options of making and opening a shared array.
struct SharedOptions {
  /// Charged with the memory, in whole pages, until this process has destroyed the array and all
  /// buffers of the array. Each process charges its own budget.
  BudgetHandle budget = {};
  /// The time that open() waits for an answer of the exporter. The default is ten seconds.
  std::optional<std::chrono::milliseconds> timeout = {};
  Tag tag = {};
  CallSite site = CallSite::here();
};

/// A shared array whose element type is known at run time.
class TERN_EXPORT SharedBuffer {
 public:
  /// Constructs an empty handle, without an array.
  SharedBuffer() noexcept = default;
  SharedBuffer(SharedBuffer&& other) noexcept = default;
  SharedBuffer& operator=(SharedBuffer&& other) noexcept;
  /// Waits for the last publish(), and then closes the array. Buffers of the array stay valid.
  ~SharedBuffer();

  /// Makes an array with unspecified elements. Fails with unsupported, out_of_memory,
  /// out_of_budget, size_overflow, and with driver if the process cannot start the server thread or
  /// open its socket.
  [[nodiscard]] static Result<SharedBuffer> try_make(const Device& device, std::size_t count,
                                                     DType dtype,
                                                     const SharedOptions& options = {}) noexcept;
  [[nodiscard]] static SharedBuffer make(const Device& device, std::size_t count, DType dtype,
                                         const SharedOptions& options = {}) {
    return try_make(device, count, dtype, options).value();
  }
  /// Opens an array of another process, or of this process. Each call makes a separate importer,
  /// with its own mapping, charge and turns. Fails with bad_format for a text that is not a handle
  /// or an exporter that sends a wrong answer, peer_lost if the exporter has ended, not_found for a
  /// stale handle, unsupported for an array of another user, device_mismatch for memory of another
  /// kind of device, capacity, timeout, and out_of_budget.
  [[nodiscard]] static Result<SharedBuffer> try_open(std::string_view handle, const Device& device,
                                                     const SharedOptions& options = {}) noexcept;
  [[nodiscard]] static SharedBuffer open(std::string_view handle, const Device& device,
                                         const SharedOptions& options = {}) {
    return try_open(handle, device, options).value();
  }

  [[nodiscard]] explicit operator bool() const noexcept { return state_ != nullptr; }
  /// The elements as a flat buffer, for kernels, copies and host accesses.
  [[nodiscard]] Buffer buffer() const noexcept { return buffer_; }
  /// size() is the number of elements and size_bytes() that of their bytes. 0 without an array.
  [[nodiscard]] std::size_t size() const noexcept { return buffer_.size(); }
  [[nodiscard]] std::size_t size_bytes() const noexcept { return buffer_.size_bytes(); }
  /// The text with which other processes of this user open the array. It contains a secret. Throws
  /// std::bad_alloc. Returns an empty string without an array.
  [[nodiscard]] std::string handle() const;
  /// Returns true in the process that made the array.
  [[nodiscard]] bool is_exporter() const noexcept;
  /// Returns true between acquire() and publish(), and for a new array of the exporter.
  [[nodiscard]] bool has_turn() const noexcept;
  /// Returns the number of open importers; 0 for an importer.
  [[nodiscard]] std::size_t importers() const noexcept;

  /// Ends the turn after all earlier uses of the array, in the order of the stream. Fails with
  /// access_conflict if this array does not have the turn, with stream_misuse during a graph
  /// capture, and with the errors of a use of a buffer. If the call fails, the turn continues.
  Result<void> try_publish(StreamRef stream, CallSite site = CallSite::here()) noexcept;
  void publish(StreamRef stream, CallSite site = CallSite::here()) {
    try_publish(stream, site).value();
  }
  /// Waits for the next turn. Work that is submitted afterwards, to any stream, comes after the
  /// work of the previous turns. Fails with peer_lost if the exporter has ended or has closed the
  /// array. On the exporter, fails once with peer_lost if an importer ended during its turn, or if
  /// the last importer ended between its turns; the exporter then has the turn. Fails with timeout,
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

  std::shared_ptr<share::State> state_;  // not shared with other objects
  Buffer buffer_;
};

/// A shared array with elements of type T. See the top of this file.
template <HasDType T>
class SharedArray : public SharedBuffer {
 public:
  using value_type = T;

  SharedArray() noexcept = default;

  /// Makes an array of `count` elements, as SharedBuffer::try_make() does.
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
