// A HostSeal keeps checksums of the host copy while no lease is open, to detect writes of the host
// without a lease.
//
// It keeps a hash for every 64 bytes, which takes an eighth of the memory. It is used for checked
// buffers only. Parts that may be written are forgotten first, and unknown parts are not compared.
// All functions may be called from any thread.

#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

#include "tern/buffer/storage_options.hpp"
#include "tern/core/call_site.hpp"
#include "tern/detail/buffer/byte_range.hpp"

namespace tern {

class HostSeal {
 public:
  static constexpr std::size_t part_bytes = 64;

  /// Computes the hashes of all parts that lie completely in `range`. `first` is the address of the
  /// memory and `bytes` its size. If the memory is not the one of the last call, all earlier hashes
  /// are forgotten. If the host has no memory for the hashes, nothing is kept.
  void set(StorageId memory, const std::byte* first, std::size_t bytes, ByteRange range,
           const CallSite& site) noexcept;
  /// Forgets the hashes of a range that may be written.
  void forget(ByteRange range) noexcept;

  /// Parts that were written without a lease.
  struct Broken {
    ByteRange range = {};
    CallSite sealed_at = {};
  };
  /// Returns the first run of parts touching the range whose hash has changed, and forgets their
  /// hashes, so that one write is reported once.
  [[nodiscard]] std::optional<Broken> take_broken(StorageId memory, const std::byte* first,
                                                  ByteRange range) noexcept;

 private:
  [[nodiscard]] ByteRange part(std::size_t index) const noexcept;

  std::mutex mutex_;
  StorageId memory_ = {};
  std::size_t bytes_ = 0;
  std::vector<std::uint64_t> hashes_;  // 0: unknown
  /// Where the last lease that set hashes was opened.
  CallSite site_ = {};
};

}  // namespace tern
