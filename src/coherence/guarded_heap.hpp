// A GuardedHeap is pageable host memory for a copy of a unified buffer. The buffer decides which
// pages the host may read and write; all other accesses fault.
//
// Protection applies to whole pages of the operating system. Bytes that share a page with
// accessible bytes are accessible too, so a wrong access to a few bytes may go unnoticed, but an
// allowed access never faults. A fault prints a report with the name of the buffer and the last
// lease. Not thread-safe: the buffer locks.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tern/buffer/storage_options.hpp"
#include "tern/core/tag.hpp"
#include "tern/detail/buffer/storage.hpp"

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

  /// Makes all pages accessible.
  void open() noexcept;
  /// Begins new rules, in which no page is accessible. allow() adds access for a range, and close()
  /// applies the rules. `last_lease` appears in the report of a fault.
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
  std::vector<Allowed> now_, wanted_;  // for each page: the protection in force, and the new one
};

}  // namespace tern
