// Finds the block of a resource by its address, for the allocators that other libraries call: they
// free by address. All adapters of one resource share one BlocksByAddress, so equal adapters find
// each other's blocks.

#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>

#include "tern/memory/resource.hpp"

namespace tern {

class BlocksByAddress {
 public:
  explicit BlocksByAddress(const Resource* resource) noexcept : resource_(resource) {}
  BlocksByAddress(const BlocksByAddress&) = delete;
  BlocksByAddress& operator=(const BlocksByAddress&) = delete;
  ~BlocksByAddress();

  /// Throws std::bad_alloc.
  [[nodiscard]] static std::shared_ptr<BlocksByAddress> of(const Resource* resource);

  /// Throws std::bad_alloc and changes nothing then.
  void add(const Block& block, std::size_t asked_bytes) {
    Shard& shard = shard_of(block.address);
    const std::lock_guard lock(shard.mutex);
    shard.by_address.emplace(block.address, Entry{block, asked_bytes});
  }

  /// Removes a block and returns it. Returns nothing, and counts a mistaken free, if there is no
  /// block of this size at the address. Allocates nothing.
  [[nodiscard]] std::optional<Block> take(void* address, std::size_t asked_bytes) noexcept {
    Shard& shard = shard_of(address);
    const std::lock_guard lock(shard.mutex);
    const auto found = shard.by_address.find(address);
    if (found == shard.by_address.end() || found->second.asked_bytes != asked_bytes) {
      note_mistaken_free();
      return std::nullopt;
    }
    const Block block = found->second.block;
    shard.by_address.erase(found);
    return block;
  }

  void note_mistaken_free() noexcept { mistaken_frees_.fetch_add(1, std::memory_order_relaxed); }
  [[nodiscard]] std::uint64_t mistaken_frees() const noexcept {
    return mistaken_frees_.load(std::memory_order_relaxed);
  }

 private:
  struct Entry {
    Block block;
    std::size_t asked_bytes;
  };
  struct Shard {
    std::mutex mutex;
    std::unordered_map<void*, Entry> by_address;  // guarded by mutex
  };
  /// Drops the low bits, which alignment makes zero, and spreads neighbours over the shards.
  [[nodiscard]] Shard& shard_of(const void* address) noexcept {
    const auto number = reinterpret_cast<std::uintptr_t>(address);
    return shards_[(number >> 6 ^ number >> 12) % shards_.size()];
  }

  const Resource* const resource_;
  std::array<Shard, 16> shards_;
  std::atomic<std::uint64_t> mistaken_frees_ = 0;
};

}  // namespace tern
