// Pageable memory of the host for a copy of a unified buffer, whose pages the host may touch only
// while it has a lease of them.
//
// Pages are the operating system's: what shares one with bytes that may be touched may be touched
// too, so a mistake of a few bytes can go unseen, and what is allowed never fails. A fault is
// explained with the buffer's name and the last lease. Not thread-safe: the buffer's lock is.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tern/buffer/storage.hpp"
#include "tern/core/tag.hpp"

namespace tern {

class GuardedHeap final : public StorageOrigin {
 public:
  enum class Allowed : std::uint8_t { nothing, reading, everything };

  GuardedHeap(std::size_t bytes, Tag tag) noexcept : bytes_(bytes), tag_(tag) {}
  ~GuardedHeap() override { free(); }

  [[nodiscard]] const char* what() const noexcept override { return "guarded host memory"; }
  [[nodiscard]] Result<Memory> try_begin(CallSite site) noexcept override;
  [[nodiscard]] bool try_end() noexcept override {
    free();
    return true;
  }

  /// Everything may be touched again.
  void open() noexcept;
  /// Nothing may be, until allow() says so and close() makes it true.
  void begin_rules() noexcept;
  void allow(ByteRange range, Allowed allowed) noexcept;
  void close(const CallSite& last_lease) noexcept;

  [[nodiscard]] static std::size_t page_bytes() noexcept;

 private:
  void free() noexcept;
  [[nodiscard]] std::size_t page_count() const noexcept;

  const std::size_t bytes_;
  const Tag tag_;
  std::byte* address_ = nullptr;
  std::vector<Allowed> now_, wanted_;  // for each page
};

}  // namespace tern
