#include "memory/address_map.hpp"

#include <sys/mman.h>

namespace tern {
namespace {

/// Returns the node below `link`, which is created if it does not exist. Returns null if the host
/// has no memory. A mapping costs memory only for the pages whose entries are used: the blocks of a
/// large pool begin in a few of them.
template <class Node>
Node* made(std::atomic<Node*>& link) noexcept {
  if (Node* const known = link.load(std::memory_order_acquire)) return known;
  void* const zeros = mmap(nullptr, sizeof(Node), PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (zeros == MAP_FAILED) return nullptr;
  // Not constructed, because that would write to every page: zero is the value of a new entry.
  Node* const node = static_cast<Node*>(zeros);
  Node* other = nullptr;
  if (link.compare_exchange_strong(other, node, std::memory_order_acq_rel)) return node;
  munmap(zeros, sizeof(Node));
  return other;
}

}  // namespace

constinit std::atomic<AddressMap::Node*> AddressMap::top_[top_fan_out] = {};

bool AddressMap::try_put_new(const void* address, AddressEntry entry) noexcept {
  const std::uint64_t unit = reinterpret_cast<std::uintptr_t>(address) >> unit_shift;
  if (reinterpret_cast<std::uintptr_t>(address) % unit_bytes != 0 ||
      unit >> (2 * level_bits + top_bits) != 0) {
    return false;
  }
  Node* const node = made(top_[unit >> (2 * level_bits)]);
  if (node == nullptr) return false;
  Leaf* const leaf = made(node->leaves[unit >> level_bits & (fan_out - 1)]);
  if (leaf == nullptr) return false;
  leaf->words[unit & (fan_out - 1)].store(entry.word_, std::memory_order_release);
  return true;
}

}  // namespace tern
