// The address map finds the entry of a block by the address of the block. One per process.
//
// Libraries that free memory pass an address only, so each free is one lookup. The map is a tree of
// three levels with one entry for each 256 bytes of address space. A lookup is three loads. Adding
// or taking an entry is one atomic operation on the entry itself; no call takes a lock. Nodes are
// created on first use and are never destroyed, because memory may be freed after main() has ended.
// Thread-safe.

#pragma once

#include <atomic>
#include <cstdint>

namespace tern {

/// What the map stores about one block, in one word. The default is the entry of no block.
class AddressEntry {
 public:
  static constexpr unsigned slot_bits = 28, owner_bits = 16;

  constexpr AddressEntry() noexcept = default;
  /// `slot` is the slot of the block in the block table; `owner` is the number of the
  /// PointerAllocator that allocated the block.
  constexpr AddressEntry(std::uint32_t slot, std::uint32_t owner) noexcept
      : word_(is_set | std::uint64_t{owner} << slot_bits | slot) {}

  [[nodiscard]] constexpr explicit operator bool() const noexcept { return word_ != 0; }
  [[nodiscard]] constexpr std::uint32_t slot() const noexcept {
    return static_cast<std::uint32_t>(word_ & ((std::uint64_t{1} << slot_bits) - 1));
  }
  [[nodiscard]] constexpr std::uint32_t owner() const noexcept {
    return static_cast<std::uint32_t>(word_ >> slot_bits & ((std::uint64_t{1} << owner_bits) - 1));
  }
  /// Other streams than the one of the allocation have used the block.
  [[nodiscard]] constexpr bool has_other_uses() const noexcept { return (word_ & other_uses) != 0; }

  /// Compares everything but has_other_uses().
  [[nodiscard]] constexpr bool is_same_block(AddressEntry other) const noexcept {
    return ((word_ ^ other.word_) & ~other_uses) == 0;
  }
  friend constexpr bool operator==(AddressEntry, AddressEntry) noexcept = default;

 private:
  friend class AddressMap;
  static constexpr std::uint64_t is_set = std::uint64_t{1} << 63;
  static constexpr std::uint64_t other_uses = std::uint64_t{1} << 62;
  constexpr explicit AddressEntry(std::uint64_t word) noexcept : word_(word) {}

  std::uint64_t word_ = 0;
};

class AddressMap {
 public:
  /// Blocks of resources begin at multiples of this.
  static constexpr std::uint64_t unit_bytes = 256;

  /// Stores the entry of the block that begins at `address`. Returns false if the address is not a
  /// multiple of unit_bytes, if it is beyond the address space of a process, or if the host has no
  /// memory for a node; then nothing changed.
  [[nodiscard]] static bool try_put(const void* address, AddressEntry entry) noexcept {
    std::atomic<std::uint64_t>* const word = find(address);
    if (word != nullptr) [[likely]] {
      word->store(entry.word_, std::memory_order_release);
      return true;
    }
    return try_put_new(address, entry);
  }
  /// Removes the entry and returns it. Of several threads that take one entry, one gets it; the
  /// others get no entry.
  [[nodiscard]] static AddressEntry take(const void* address) noexcept {
    std::atomic<std::uint64_t>* const word = find(address);
    if (word == nullptr || word->load(std::memory_order_relaxed) == 0) return {};
    return AddressEntry(word->exchange(0, std::memory_order_acq_rel));
  }
  /// Puts back an entry that the caller has taken, unless the address has another one by now.
  static void restore(const void* address, AddressEntry entry) noexcept {
    std::uint64_t none = 0;
    if (std::atomic<std::uint64_t>* const word = find(address)) {
      word->compare_exchange_strong(none, entry.word_, std::memory_order_acq_rel);
    }
  }
  /// Returns the entry, which another thread may take at the same time.
  [[nodiscard]] static AddressEntry get(const void* address) noexcept {
    std::atomic<std::uint64_t>* const word = find(address);
    return word == nullptr ? AddressEntry() : AddressEntry(word->load(std::memory_order_acquire));
  }
  /// Sets has_other_uses(). Returns false if the entry has changed.
  [[nodiscard]] static bool set_other_uses(const void* address, AddressEntry entry) noexcept {
    std::atomic<std::uint64_t>* const word = find(address);
    return word != nullptr &&
           word->compare_exchange_strong(entry.word_, entry.word_ | AddressEntry::other_uses,
                                         std::memory_order_acq_rel);
  }

 private:
  // 48 bits of address: 8 within a unit, 13 select the word of a leaf, which covers 2 MiB, 13 the
  // leaf, and 14 the node above.
  static constexpr unsigned unit_shift = 8, level_bits = 13, top_bits = 14;
  static constexpr std::uint64_t fan_out = std::uint64_t{1} << level_bits;
  static constexpr std::uint64_t top_fan_out = std::uint64_t{1} << top_bits;
  struct Leaf;
  struct Node;

  [[nodiscard]] static std::atomic<std::uint64_t>* find(const void* address) noexcept;
  [[nodiscard]] static bool try_put_new(const void* address, AddressEntry entry) noexcept;

  static std::atomic<Node*> top_[top_fan_out];
};

struct AddressMap::Leaf {
  std::atomic<std::uint64_t> words[fan_out];
};
struct AddressMap::Node {
  std::atomic<Leaf*> leaves[fan_out];
};

inline std::atomic<std::uint64_t>* AddressMap::find(const void* address) noexcept {
  const std::uint64_t unit = reinterpret_cast<std::uintptr_t>(address) >> unit_shift;
  if (reinterpret_cast<std::uintptr_t>(address) % unit_bytes != 0 ||
      unit >> (2 * level_bits + top_bits) != 0) {
    return nullptr;
  }
  const Node* const node = top_[unit >> (2 * level_bits)].load(std::memory_order_acquire);
  if (node == nullptr) return nullptr;
  Leaf* const leaf =
      node->leaves[unit >> level_bits & (fan_out - 1)].load(std::memory_order_acquire);
  return leaf == nullptr ? nullptr : &leaf->words[unit & (fan_out - 1)];
}

}  // namespace tern
