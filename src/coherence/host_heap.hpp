// Pageable memory of the host for a copy of a unified buffer, where no resource was named for it.

#pragma once

#include <cstddef>
#include <functional>
#include <new>
#include <utility>

#include "tern/buffer/storage.hpp"

namespace tern {

class HostHeap final : public StorageOrigin {
 public:
  explicit HostHeap(std::size_t bytes) noexcept : bytes_(bytes) {}
  ~HostHeap() override { free(); }

  [[nodiscard]] const char* what() const noexcept override { return "host memory"; }
  [[nodiscard]] Result<Memory> try_begin(CallSite site) noexcept override {
    address_ = ::operator new (bytes_, std::align_val_t{alignment}, std::nothrow);
    if (address_ != nullptr) return Memory{address_, address_, bytes_};
    return Failure(ErrorCode::out_of_memory,
                   "the host could not allocate {requested} for a copy of a unified buffer. Free "
                   "host memory.",
                   site)
        .with_bytes("requested", bytes_);
  }
  [[nodiscard]] bool try_end() noexcept override {
    free();
    return true;
  }

 private:
  static constexpr std::size_t alignment = 256;
  void free() noexcept {
    ::operator delete (std::exchange(address_, nullptr), std::align_val_t{alignment});
  }

  const std::size_t bytes_;
  void* address_ = nullptr;
};

/// Memory of the host that somebody else has, and takes back.
class AdoptedHost final : public StorageOrigin {
 public:
  AdoptedHost(void* address, std::size_t bytes, std::function<void()> release) noexcept
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
      // As of all adopted memory: it was told not to, and there is nobody to tell.
    }
    return true;
  }
  /// Before anybody else knows of it: what is refused has taken nothing over.
  void set_release(std::function<void()> release) noexcept { release_ = std::move(release); }

 private:
  void* const address_;
  const std::size_t bytes_;
  std::function<void()> release_;
};

}  // namespace tern
