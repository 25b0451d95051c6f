// Pageable host memory for copies of unified buffers: allocated from the heap if no resource was
// named, or adopted from the caller.

#pragma once

#include <cstddef>
#include <new>
#include <utility>

#include "core/no_host_memory.hpp"
#include "tern/core/bytes.hpp"
#include "tern/detail/buffer/storage.hpp"
#include "tern/detail/core/any_function.hpp"

namespace tern {

/// Memory from the heap, aligned to 256 bytes, or to 4 KiB if it has at least 1 MiB, so that it can
/// be spilled around the page cache.
class HostHeap final : public StorageOrigin {
 public:
  explicit HostHeap(std::size_t bytes) noexcept : bytes_(bytes) {}
  ~HostHeap() override { free(); }

  [[nodiscard]] const char* what() const noexcept override { return "host memory"; }
  [[nodiscard]] Result<Memory> try_begin(CallSite site) noexcept override {
    address_ = ::operator new (bytes_, std::align_val_t{alignment_}, std::nothrow);
    if (address_ != nullptr) return Memory{address_, address_, bytes_};
    return no_host_memory(bytes_, "a copy of a unified buffer", site);
  }
  [[nodiscard]] bool try_end() noexcept override {
    free();
    return true;
  }

 private:
  void free() noexcept {
    ::operator delete (std::exchange(address_, nullptr), std::align_val_t{alignment_});
  }

  const std::size_t bytes_;
  const std::size_t alignment_ = bytes_ >= mib ? 4096 : 256;
  void* address_ = nullptr;
};

/// Host memory that belongs to the caller. Calls `release` once, when the memory is no longer used.
class AdoptedHost final : public StorageOrigin {
 public:
  AdoptedHost(void* address, std::size_t bytes, AnyFunction<void()> release) noexcept
      : address_(address), bytes_(bytes), release_(std::move(release)) {}

  [[nodiscard]] const char* what() const noexcept override { return "adopted host memory"; }
  [[nodiscard]] bool is_external() const noexcept override { return true; }
  [[nodiscard]] Result<Memory> try_begin(CallSite) noexcept override {
    return Memory{address_, address_, bytes_};
  }
  [[nodiscard]] bool try_end() noexcept override {
    try {
      if (release_) std::exchange(release_, {})();
    } catch (...) {
      // An exception of `release` is ignored, as for all adopted memory: nobody could handle it.
    }
    return true;
  }
  /// Sets the callback only after everything else has succeeded, because a failed adoption must not
  /// call it.
  void set_release(AnyFunction<void()> release) noexcept { release_ = std::move(release); }

 private:
  void* const address_;
  const std::size_t bytes_;
  AnyFunction<void()> release_;
};

}  // namespace tern
