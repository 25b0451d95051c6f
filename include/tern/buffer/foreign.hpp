// Memory that changes hands: adopted from others, released to them, borrowed, or page-locked where
// it is.
//
// All of it is a Buffer, so its uses are ordered and checked as those of any other; is_external()
// tells that Tern did not allocate it. What kind of memory it is, the device says. Memory of
// another device is refused with device_mismatch, naming both; a null address with bytes with
// invalid_argument; sizes that do not fit with size_overflow; a range that leaves its allocation
// with out_of_bounds; elements that cannot be there with misaligned.
//
// An import states when earlier writes of the memory are complete: behind a stream or a mark, or
// now (is_complete). One that states nothing is used as if they were, but a strict LaunchRecorder
// refuses it (untracked_buffer) until somebody states it (try_state_ready) or the device was
// synchronized.
//
// What is refused has changed nothing: nothing was taken over, no callback is called, and what was
// to be given stays with the caller. Zero bytes are legal. Each x() throws what try_x() returns.
// Thread-safe.

#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>

#include "tern/buffer/buffer.hpp"
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

/// The storages whose last handle is gone but whose memory could not be freed yet.
struct KeptStorageCount {
  std::size_t storages = 0;
  std::size_t bytes = 0;
};
/// Returns how many storages are kept, and their bytes.
[[nodiscard]] TERN_EXPORT KeptStorageCount deferred_frees() noexcept;
/// Frees all kept storages whose uses are done, and returns what is still kept. Never blocks.
/// Making a storage also does this for a few of them.
TERN_EXPORT KeptStorageCount reclaim_deferred() noexcept;

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

/// The memory that is exported at the moment.
struct ExportCount {
  std::size_t exports = 0;
  std::size_t bytes = 0;  // each storage counts once, with its size at its first export
};
/// Returns the number of open exports and the bytes of their storages.
[[nodiscard]] TERN_EXPORT ExportCount exported_memory() noexcept;

/// Waits for every device with kept memory whose exports have ended, and frees that memory. Returns
/// what is still kept. Fails with the error of the wait. Kept memory keeps its device open until it
/// is freed.
TERN_EXPORT Result<KeptStorageCount> try_reclaim_exported() noexcept;
inline KeptStorageCount reclaim_exported(CallSite site = CallSite::here()) {
  return try_reclaim_exported().value(site);
}

// --- Adopt: somebody else allocated it, and Tern says when it is free

struct Adoption {
  /// Called once, when the last handle is gone and the last recorded use is done: by whichever
  /// thread notices that, under no lock. It may use Tern, and must not throw. One of the two, or
  /// none for memory that stays.
  void (*release)(void* context) = nullptr;
  void* context = nullptr;
  AnyFunction<void()> on_release = {};
  /// Who still writes it: it is ready at the mark, or when the stream has done what it has now.
  Mark ready = {};
  StreamRef stream = {};
  /// All writes are complete now. Without this, a mark or a stream, readiness is unstated.
  bool is_complete = false;
  /// It may be released before that, if nobody here has used it: the owner knows what he writes. So
  /// it is with tensors and tables of other libraries (docs/decisions/0019).
  bool owner_orders_writes = false;
  bool read_only = false;
  /// What it counts against (Budget::charge), for as long as it is Tern's.
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
/// As bytes.
[[nodiscard]] TERN_EXPORT Result<Buffer> try_adopt(const Device& device, void* address,
                                                   std::size_t bytes, Adoption&& adoption) noexcept;
[[nodiscard]] inline Buffer adopt(const Device& device, void* address, std::size_t bytes,
                                  Adoption&& adoption) {
  return try_adopt(device, address, bytes, std::move(adoption)).value();
}

// --- Release: Tern allocated it, and somebody else says when it is free

/// Memory that was a buffer's, and goes back to its resource once: when it is given back, or with
/// this object. Until then it counts where it was allocated (docs/decisions/0013). Keeps the
/// resource. Moves, does not copy; one object belongs to one thread at a time.
class TERN_EXPORT Released {
 public:
  /// Nothing.
  Released() noexcept = default;
  Released(Released&&) noexcept = default;
  Released& operator=(Released&& other) noexcept;
  ~Released();

  [[nodiscard]] explicit operator bool() const noexcept { return bool(block_); }
  /// Of the buffer's first byte, and how many there are. Null and 0 when it was given back.
  [[nodiscard]] void* address() const noexcept { return block_ ? address_ : nullptr; }
  [[nodiscard]] std::size_t bytes() const noexcept { return block_ ? bytes_ : 0; }
  [[nodiscard]] StorageKind kind() const noexcept { return kind_; }
  [[nodiscard]] const Device& device() const noexcept { return device_; }

  /// Behind what the stream has now; without one the memory must be in no use. Refused as the
  /// resource refuses (device_mismatch for a stream of another device, not_allocated the second
  /// time), and then it is still held. The end of this object does the same on the stream that was
  /// named with the release.
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
  StorageKind kind_ = StorageKind::host;
  Mark mark_ = {};  // behind all uses of the buffer
};

/// Gives the memory of a buffer away, without a copy; the buffer is none then. It must be the only
/// handle (access_conflict), of memory that a resource gave (unsupported). The stream's later work
/// comes behind all uses, and the host waits for nothing; without a stream it waits for them. What
/// was exported and let go (Export) is refused with a stream until the device was waited for
/// (access_conflict).
[[nodiscard]] TERN_EXPORT Result<Released> try_release(Buffer&& buffer, StreamRef stream,
                                                       CallSite site = CallSite::here()) noexcept;
[[nodiscard]] inline Released release(Buffer&& buffer, StreamRef stream,
                                      CallSite site = CallSite::here()) {
  return try_release(std::move(buffer), stream, site).value();
}

// --- Borrow: it stays somebody else's

struct Loan {
  /// Kept until our uses are done.
  std::shared_ptr<void> owner = {};
  /// Their stream, of the same device: our uses begin behind what it has now, and its later work
  /// comes behind our uses when the last handle is gone. The devices do the waiting. None: they do
  /// not use it before the owner is let go.
  StreamRef stream = {};
  /// All their writes are complete now. Without this or a stream, readiness is unstated.
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
/// As bytes.
[[nodiscard]] TERN_EXPORT Result<Buffer> try_borrow(const Device& device, void* address,
                                                    std::size_t bytes, Loan&& loan) noexcept;
[[nodiscard]] inline Buffer borrow(const Device& device, void* address, std::size_t bytes,
                                   Loan&& loan) {
  return try_borrow(device, address, bytes, std::move(loan)).value();
}

// --- Readiness of what was imported

/// States when earlier writes of imported memory are complete, for an import that did not: our
/// later uses come behind what `producer` has now. Without a stream they are complete now. Refused
/// with not_allocated for a default-constructed buffer, as marks are, and with out_of_memory.
[[nodiscard]] TERN_EXPORT Result<void> try_state_ready(const Buffer& buffer, StreamRef producer,
                                                       CallSite site = CallSite::here()) noexcept;
inline void state_ready(const Buffer& buffer, StreamRef producer,
                        CallSite site = CallSite::here()) {
  try_state_ready(buffer, producer, site).value();
}

// --- Register: memory of the host, page-locked where it is

struct RegisterOptions {
  bool read_only = false;
  Tag tag = {};
  std::optional<bool> checked = {};
  CallSite site = CallSite::here();
};

/// So that the device can use it, at an address of its own if need be. It is unregistered when the
/// last handle is gone and the uses are done, and never freed: it must exist until then. (Whoever
/// wants to be sure calls Buffer::synchronize before the last handle goes.) Refused with
/// unsupported where the device cannot, and as its driver refuses: it is registered already.
[[nodiscard]] TERN_EXPORT Result<Buffer> try_register_host(
    const Device& device, void* address, Shape shape, DType dtype,
    const RegisterOptions& options = {}) noexcept;
template <HasDType T, std::size_t extent>
[[nodiscard]] Result<Buffer> try_register_host(const Device& device, std::span<T, extent> memory,
                                               const RegisterOptions& options = {}) noexcept {
  static_assert(!std::is_const_v<T>, "the device must be able to write what it is given");
  return try_register_host(device, memory.data(), Shape{memory.size()}, dtype_of<T>(), options);
}
template <HasDType T, std::size_t extent>
[[nodiscard]] Buffer register_host(const Device& device, std::span<T, extent> memory,
                                   const RegisterOptions& options = {}) {
  return try_register_host(device, memory, options).value();
}

}  // namespace tern
