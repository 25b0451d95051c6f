// A FileMapping maps a range of a file and survives truncation of the file.
//
// Reading a page that the file no longer has raises SIGBUS, which normally ends the process. The
// first mapping installs a SIGBUS handler for the life of the process. On a fault inside one of
// Tern's mappings, the handler maps zero pages from the faulting page to the end of the mapping and
// marks the mapping as cut. All other faults go to the previous handler. A handler that is
// installed later must forward foreign faults, as is usual.
//
// The handler takes no lock and calls only mmap. Thread-safe; one object has one owner.

#pragma once

#include <cstddef>
#include <cstdint>
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

  /// The error of try_map(): the failed call and its errno. os_code is 0 if the host has no memory
  /// for the bookkeeping.
  struct Refusal {
    const char* call = nullptr;  // null on success
    int os_code = 0;
  };
  /// Whether writes to the memory change the file. If not, the memory cannot be written.
  enum class Writes : std::uint8_t { none, to_file };
  /// Maps at least one byte from any offset.
  [[nodiscard]] Refusal try_map(int file, std::size_t offset, std::size_t bytes,
                                Writes writes = Writes::none) noexcept;
  /// Writes changes of the memory to the disk. Returns 0 or an error number.
  [[nodiscard]] int sync() const noexcept;

  [[nodiscard]] explicit operator bool() const noexcept { return range_ != nullptr; }
  /// The address of the first byte of the range.
  [[nodiscard]] void* address() const noexcept { return address_; }
  /// Returns whether bytes were read that the file no longer has.
  [[nodiscard]] bool is_cut() const noexcept;

 private:
  WatchedRange* range_ = nullptr;
  void* address_ = nullptr;
};

}  // namespace tern
