// A HostSeal remembers what memory of the host had when its last lease was closed, to find who
// writes it without one.
//
// It keeps a hash for each 64 bytes, which is an eighth of the memory: for checked buffers only. A
// part that somebody may write is forgotten first; what is not known is not compared. Thread-safe.

#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

#include "tern/buffer/storage.hpp"
#include "tern/core/call_site.hpp"

namespace tern {

class HostSeal {
 public:
  static constexpr std::size_t part_bytes = 64;

  /// From now on nobody may write what lies wholly inside of the range, of so many bytes at
  /// `first`. Other memory than before has no seals yet. Without room for them there are none.
  void set(StorageId memory, const std::byte* first, std::size_t bytes, ByteRange range,
           const CallSite& site) noexcept;
  /// Somebody may write some of it.
  void forget(ByteRange range) noexcept;

  struct Broken {
    ByteRange range = {};
    CallSite sealed_at = {};
  };
  /// The first run of parts touching the range that are not what they were; they are forgotten, so
  /// that one mistake is told once.
  [[nodiscard]] std::optional<Broken> take_broken(StorageId memory, const std::byte* first,
                                                  ByteRange range) noexcept;

 private:
  [[nodiscard]] ByteRange part(std::size_t index) const noexcept;

  std::mutex mutex_;
  StorageId memory_ = {};
  std::size_t bytes_ = 0;
  std::vector<std::uint64_t> hashes_;  // 0: not known
  CallSite site_ = {};
};

}  // namespace tern
