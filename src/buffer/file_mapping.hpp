// A FileMapping is a range of a file in the address space, which survives that the file shrinks.
//
// Reading pages that a file no longer has raises SIGBUS, which ends a process. With the first
// mapping a handler is installed, for good: a fault inside a mapping of Tern's is answered with
// pages of zeros from there to the end of the mapping, and the mapping is marked as cut. All other
// faults go to the handler that was there before. One that is installed later has to pass on what
// is not its own, as is usual.
//
// The handler takes no lock and calls nothing but mmap. Thread-safe; one object has one owner.

#pragma once

#include <cstddef>
#include <utility>

#include "tern/core/result.hpp"

namespace tern {

struct WatchedRange;

class FileMapping {
 public:
  FileMapping() noexcept = default;
  FileMapping(FileMapping&& other) noexcept
      : range_(std::exchange(other.range_, nullptr)), address_(other.address_) {}
  FileMapping& operator=(FileMapping&& other) noexcept {
    std::swap(range_, other.range_);
    std::swap(address_, other.address_);
    return *this;
  }
  ~FileMapping();

  /// Any offset, and at least one byte. Refused with the number of the error, 0 where the host has
  /// no memory for the record.
  struct Refusal {
    const char* call = nullptr;  // null: it is there
    int os_code = 0;
  };
  [[nodiscard]] Refusal try_map(int file, std::size_t offset, std::size_t bytes) noexcept;

  [[nodiscard]] explicit operator bool() const noexcept { return range_ != nullptr; }
  /// Of the byte at the offset.
  [[nodiscard]] void* address() const noexcept { return address_; }
  /// Were there reads of bytes that the file no longer has?
  [[nodiscard]] bool is_cut() const noexcept;

 private:
  WatchedRange* range_ = nullptr;
  void* address_ = nullptr;
};

}  // namespace tern
