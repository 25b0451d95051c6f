#include "coherence/host_seal.hpp"

#include <algorithm>
#include <cstring>
#include <new>

namespace tern {
namespace {

/// Never returns 0, which stands for an unknown hash.
std::uint64_t hash_of(const std::byte* first, std::size_t bytes) noexcept {
  constexpr std::uint64_t prime = 0x9E37'79B9'7F4A'7C15;
  std::uint64_t hash = prime ^ bytes;
  for (std::size_t at = 0; at < bytes; at += sizeof(std::uint64_t)) {
    std::uint64_t word = 0;
    std::memcpy(&word, first + at, std::min(sizeof word, bytes - at));
    hash = (hash ^ word) * prime;
    hash ^= hash >> 29;
  }
  return hash != 0 ? hash : 1;
}

}  // namespace

ByteRange HostSeal::part(std::size_t index) const noexcept {
  return {index * part_bytes, std::min((index + 1) * part_bytes, bytes_)};
}

void HostSeal::set(StorageId memory, const std::byte* first, std::size_t bytes, ByteRange range,
                   const CallSite& site) noexcept {
  const std::lock_guard lock(mutex_);
  if (memory != memory_ || bytes != bytes_) {
    try {
      hashes_.assign((bytes + part_bytes - 1) / part_bytes, 0);
    } catch (const std::bad_alloc&) {
      hashes_.clear();
      memory_ = {};
      return;
    }
    memory_ = memory;
    bytes_ = bytes;
  }
  site_ = site;
  std::size_t index = (range.begin + part_bytes - 1) / part_bytes;
  for (; index < hashes_.size() && part(index).end <= range.end; ++index) {
    const auto [begin, end] = part(index);
    hashes_[index] = hash_of(first + begin, end - begin);
  }
}

void HostSeal::forget(ByteRange range) noexcept {
  if (range.begin >= range.end) return;
  const std::lock_guard lock(mutex_);
  const std::size_t behind = std::min((range.end + part_bytes - 1) / part_bytes, hashes_.size());
  for (std::size_t index = range.begin / part_bytes; index < behind; ++index) hashes_[index] = 0;
}

std::optional<HostSeal::Broken> HostSeal::take_broken(StorageId memory, const std::byte* first,
                                                      ByteRange range) noexcept {
  const std::lock_guard lock(mutex_);
  if (memory != memory_ || range.begin >= range.end) return std::nullopt;
  const std::size_t behind = std::min((range.end + part_bytes - 1) / part_bytes, hashes_.size());
  std::optional<Broken> broken;
  for (std::size_t index = range.begin / part_bytes; index < behind; ++index) {
    const auto [begin, end] = part(index);
    const bool is_broken =
        hashes_[index] != 0 && hashes_[index] != hash_of(first + begin, end - begin);
    if (!is_broken && broken) break;
    if (!is_broken) continue;
    hashes_[index] = 0;
    if (!broken) broken = Broken{{begin, end}, site_};
    broken->range.end = end;
  }
  return broken;
}

}  // namespace tern
