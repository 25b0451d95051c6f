// Foreign memory: memory that Tern adopts from other code, releases to it, borrows from it, or
// page-locks in place.
//
// All of it is a Buffer, so its uses are ordered and checked like those of any other buffer.
// is_external() returns true for memory that Tern did not allocate. The device determines the kind
// of the memory. Memory of another device fails with device_mismatch, which names both devices; a
// null address with bytes fails with invalid_argument, an overflowing size with size_overflow, a
// range that exceeds its allocation with out_of_bounds, and unaligned elements with misaligned.
//
// An import states when earlier writes of the memory are complete: after a stream or a mark, or
// already (is_complete). If it states nothing, the memory is used as if it were complete, but a
// strict LaunchRecorder rejects it (untracked_buffer) until try_state_ready() is called or the
// device was synchronized.
//
// A call that fails changes nothing: it takes no ownership and calls no callback, and the caller
// keeps its objects. Zero bytes are legal. Each x() throws what try_x() returns. Thread-safe.

#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>

#include "tern/buffer/buffer.hpp"
#include "tern/core/bytes.hpp"
#include "tern/core/call_site.hpp"
#include "tern/core/dtype.hpp"
#include "tern/core/result.hpp"
#include "tern/core/shape.hpp"
#include "tern/core/tag.hpp"
#include "tern/detail/buffer/storage.hpp"
#include "tern/detail/core/any_function.hpp"
#include "tern/detail/core/visibility.hpp"
#include "tern/device/device.hpp"
#include "tern/device/mark.hpp"
#include "tern/device/stream.hpp"
#include "tern/memory/budget.hpp"
#include "tern/memory/owned_block.hpp"

namespace tern {

/// Returns the number of storages whose last handle is gone but whose memory could not be freed
/// yet, and their bytes.
[[nodiscard]] TERN_EXPORT MemoryCount deferred_frees() noexcept;
/// Frees all kept storages whose uses are done, and returns what is still kept. Never blocks.
/// Making a storage also does this for a few of them.
TERN_EXPORT MemoryCount reclaim_deferred() noexcept;

// An Export keeps memory alive that was exported to code that Tern cannot observe, such as a tensor
// or a table of another library.
//
//   Export given = Export::try_begin(buffer.storage()).value();
//   // ... the other library uses the memory on any stream ...
//   given.end();
//
// The other code may use the memory on streams that Tern does not know, and it may release the
// memory before those streams are done. Therefore, while an Export lives, its storage stays alive,
// charged and at its address. After the last Export has ended, device memory is freed only after a
// wait for all work that the device had at that time. Any of these waits will do:
//
// - a Device::synchronize() that happens anyway;
// - try_reclaim_exported();
// - an allocation that would otherwise fail for lack of memory;
// - a new Export, when a thousand storages are kept;
// - the end of the last handle to the device.
//
// Until then the storage is one of the kept storages (deferred_frees()). Memory that was never
// exported costs nothing extra, and pageable host memory is freed without such a wait.
//
// An Export can be moved but not copied. It may end on any thread and never throws. Ending it takes
// no lock that Tern holds while it calls foreign code, so foreign code may end it.

/// One export of a storage.
class TERN_EXPORT Export {
 public:
  /// Constructs an Export that exports nothing.
  Export() noexcept = default;
  Export(Export&&) noexcept = default;
  Export& operator=(Export&& other) noexcept {
    end();
    storage_ = std::move(other.storage_);
    return *this;
  }
  ~Export() { end(); }

  /// Begins an export. Fails with not_allocated for no storage, or with out_of_memory if the host
  /// has no memory.
  [[nodiscard]] static Result<Export> try_begin(const StorageHandle& storage,
                                                CallSite site = CallSite::here()) noexcept;

  [[nodiscard]] const StorageHandle& storage() const noexcept { return storage_; }
  /// Ends the export: the other code has released the memory. Does nothing the second time.
  void end() noexcept;

 private:
  StorageHandle storage_;
};

/// Returns the number of open exports and the bytes of their storages. Each storage counts its
/// bytes once, with its size at its first export.
[[nodiscard]] TERN_EXPORT MemoryCount exported_memory() noexcept;

/// Waits for every device with kept memory whose exports have ended, and frees that memory. Returns
/// what is still kept. Fails with the error of the wait. Kept memory keeps its device open until it
/// is freed.
TERN_EXPORT Result<MemoryCount> try_reclaim_exported() noexcept;
inline MemoryCount reclaim_exported(CallSite site = CallSite::here()) {
  return try_reclaim_exported().value(site);
}

// --- Adopt: other code allocated the memory, and Tern decides when it is freed

/// Who releases adopted memory, and when the memory is ready.
struct Adoption {
  /// Called once, when the last handle is destroyed and the last recorded use is done, by the
  /// thread that notices it and with no lock held. It may call Tern and must not throw. Set
  /// `release` or `on_release`, or neither for memory that is never freed.
  void (*release)(void* context) = nullptr;
  void* context = nullptr;
  AnyFunction<void()> on_release = {};
  /// The memory is ready at this mark, or after the current work of this stream.
  Mark ready = {};
  StreamRef stream = {};
  /// States that all writes are complete. Without this flag, a mark or a stream, readiness is
  /// unstated.
  bool is_complete = false;
  /// If Tern never used the memory, it may be released before the owner's writes are complete: the
  /// owner orders them itself. Set for tensors and tables of other libraries (docs/decisions/0019).
  bool owner_orders_writes = false;
  bool read_only = false;
  /// The charge against a budget (Budget::charge), held for as long as Tern owns the memory.
  Charge charge = {};
  Tag tag = {};
  std::optional<bool> checked = {};
  CallSite site = CallSite::here();
};

[[nodiscard]] TERN_EXPORT Result<Buffer> try_adopt(const Device& device, void* address, Shape shape,
                                                   DType dtype, Adoption&& adoption) noexcept;
[[nodiscard]] inline Buffer adopt(const Device& device, void* address, Shape shape, DType dtype,
                                  Adoption&& adoption) {
  return try_adopt(device, address, std::move(shape), dtype, std::move(adoption)).value();
}
/// Adopts untyped bytes.
[[nodiscard]] TERN_EXPORT Result<Buffer> try_adopt(const Device& device, void* address,
                                                   std::size_t bytes, Adoption&& adoption) noexcept;
[[nodiscard]] inline Buffer adopt(const Device& device, void* address, std::size_t bytes,
                                  Adoption&& adoption) {
  return try_adopt(device, address, bytes, std::move(adoption)).value();
}

// --- Release: Tern allocated the memory, and other code decides when it is freed

/// The memory of a released buffer. It is returned to its resource once: by give_back() or by the
/// destructor. Until then it stays charged (docs/decisions/0013). Keeps the resource alive.
/// Movable, not copyable; one object belongs to one thread at a time.
class TERN_EXPORT Released {
 public:
  /// An empty object.
  Released() noexcept = default;
  Released(Released&&) noexcept = default;
  Released& operator=(Released&& other) noexcept;
  ~Released();

  [[nodiscard]] explicit operator bool() const noexcept { return bool(block_); }
  /// The address and size of the buffer. Null and 0 after give_back().
  [[nodiscard]] void* address() const noexcept { return block_ ? address_ : nullptr; }
  [[nodiscard]] std::size_t bytes() const noexcept { return block_ ? bytes_ : 0; }
  /// The kind of the memory and its device, also after give_back().
  [[nodiscard]] MemoryKind kind() const noexcept { return kind_; }
  [[nodiscard]] const Device& device() const noexcept { return device_; }

  /// Returns the memory to its resource, in the order of the stream. Without a stream the memory
  /// must not be in use. Fails like the resource (device_mismatch for a stream of another device),
  /// and with not_allocated the second time; after a failure the object still holds the memory. The
  /// destructor does the same on the stream that was passed to release().
  Result<void> try_give_back(StreamRef stream, CallSite site = CallSite::here()) noexcept;
  void give_back(StreamRef stream, CallSite site = CallSite::here()) {
    try_give_back(stream, site).value();
  }

 private:
  friend TERN_EXPORT Result<Released> try_release(Buffer&&, StreamRef, CallSite) noexcept;
  void end() noexcept;

  OwnedBlock block_;
  void* address_ = nullptr;
  std::size_t bytes_ = 0;
  Device device_;
  MemoryKind kind_ = MemoryKind::host;
  Mark mark_ = {};  // after all uses of the buffer
};

/// Releases the memory of a buffer without a copy. The buffer is empty afterwards. Call it on the
/// last handle (else access_conflict), and for memory that a resource allocated (else unsupported).
/// Later work of the stream is ordered after all uses, and the host does not wait. Without a
/// stream, the host waits for the uses. Exported memory (Export) fails with access_conflict until
/// the device was synchronized.
[[nodiscard]] TERN_EXPORT Result<Released> try_release(Buffer&& buffer, StreamRef stream,
                                                       CallSite site = CallSite::here()) noexcept;
[[nodiscard]] inline Released release(Buffer&& buffer, StreamRef stream,
                                      CallSite site = CallSite::here()) {
  return try_release(std::move(buffer), stream, site).value();
}

// --- Borrow: other code keeps the ownership

/// Who owns borrowed memory, and when the memory is ready.
struct Loan {
  /// Kept alive until all recorded uses are done.
  std::shared_ptr<void> owner = {};
  /// The owner's stream, of the same device. Our uses are ordered after its current work, and its
  /// later work is ordered after our uses when the last handle is destroyed. The host does not
  /// wait. If empty, the owner must not use the memory before `owner` is released.
  StreamRef stream = {};
  /// States that all writes of the owner are complete. Without this flag or a stream, readiness is
  /// unstated.
  bool is_complete = false;
  bool read_only = false;
  Tag tag = {};
  std::optional<bool> checked = {};
  CallSite site = CallSite::here();
};

[[nodiscard]] TERN_EXPORT Result<Buffer> try_borrow(const Device& device, void* address,
                                                    Shape shape, DType dtype, Loan&& loan) noexcept;
[[nodiscard]] inline Buffer borrow(const Device& device, void* address, Shape shape, DType dtype,
                                   Loan&& loan) {
  return try_borrow(device, address, std::move(shape), dtype, std::move(loan)).value();
}
/// Borrows untyped bytes.
[[nodiscard]] TERN_EXPORT Result<Buffer> try_borrow(const Device& device, void* address,
                                                    std::size_t bytes, Loan&& loan) noexcept;
[[nodiscard]] inline Buffer borrow(const Device& device, void* address, std::size_t bytes,
                                   Loan&& loan) {
  return try_borrow(device, address, bytes, std::move(loan)).value();
}

// --- Readiness of imported memory

/// States when earlier writes of imported memory are complete, if the import did not: our later
/// uses are ordered after the current work of `producer`. Without a stream, the writes are
/// complete. Fails with not_allocated for a default-constructed buffer, with out_of_memory, and
/// like marks.
[[nodiscard]] TERN_EXPORT Result<void> try_state_ready(const Buffer& buffer, StreamRef producer,
                                                       CallSite site = CallSite::here()) noexcept;
inline void state_ready(const Buffer& buffer, StreamRef producer,
                        CallSite site = CallSite::here()) {
  try_state_ready(buffer, producer, site).value();
}

// --- Register: host memory, page-locked in place

/// Options of try_register_host().
struct RegisterOptions {
  /// Kernels and copies must not write the memory; writes fail with read_only.
  bool read_only = false;
  /// The tag of the buffer in reports and audits.
  Tag tag = {};
  /// Whether the buffer checks host accesses, as StorageOptions::checked.
  std::optional<bool> checked = {};
  /// The line that reports name.
  CallSite site = CallSite::here();
};

/// Page-locks host memory, so that the device can access it, if necessary at another address. The
/// memory is unregistered when the last handle is destroyed and all uses are done. It is never
/// freed and must exist until then; call Buffer::synchronize before destroying the last handle to
/// be sure. Fails with unsupported if the device cannot register memory, and like the driver, for
/// example for memory that is already registered.
[[nodiscard]] TERN_EXPORT Result<Buffer> try_register_host(
    const Device& device, void* address, Shape shape, DType dtype,
    const RegisterOptions& options = {}) noexcept;
template <HasDType T, std::size_t extent>
[[nodiscard]] Result<Buffer> try_register_host(const Device& device, std::span<T, extent> memory,
                                               const RegisterOptions& options = {}) noexcept {
  static_assert(!std::is_const_v<T>, "the device may write the memory");
  return try_register_host(device, memory.data(), Shape{memory.size()}, dtype_of<T>(), options);
}
template <HasDType T, std::size_t extent>
[[nodiscard]] Buffer register_host(const Device& device, std::span<T, extent> memory,
                                   const RegisterOptions& options = {}) {
  return try_register_host(device, memory, options).value();
}

}  // namespace tern
