#include "memory/pool/descriptor_store.hpp"

#include <algorithm>
#include <new>
#include <utility>

#include "core/no_host_memory.hpp"
#include "memory/block_table.hpp"

namespace tern::pool {

DescriptorStore::~DescriptorStore() {
  if (owner_ == nullptr) return;
  for (const std::unique_ptr<Slab>& slab : slabs_) {
    for (const Descriptor& one : slab->descriptors) {
      if (one.place != nullptr) drop_place(one.slot);
    }
  }
}

Result<void> DescriptorStore::try_prepare(std::size_t count) noexcept {
  while (spare_count_ < count) {
    if (Result<void> grown = try_grow(); !grown) return grown;
  }
  return {};
}

// Adds one slab. Each descriptor gets a place in the block table, unless the store has no owner.
Result<void> DescriptorStore::try_grow() noexcept {
  try {
    auto slab = std::make_unique<Slab>();
    if (slabs_.size() == slabs_.capacity())
      slabs_.reserve(std::max<std::size_t>(8, 2 * slabs_.size()));
    if (owner_ != nullptr) {
      for (Descriptor& one : slab->descriptors) {
        const Result<std::uint32_t> slot =
            try_keep_place(owner_, device_, reinterpret_cast<std::uintptr_t>(&one));
        if (!slot) {
          for (const Descriptor& kept : slab->descriptors) {
            if (kept.place != nullptr) drop_place(kept.slot);
          }
          return slot.failure();
        }
        one.slot = *slot;
        one.place = find_place(*slot);
      }
    }
    for (Descriptor& one : slab->descriptors) give(one);
    total_count_ += slab_size;
    slabs_.push_back(std::move(slab));
    return {};
  } catch (const std::bad_alloc&) {
    return no_host_memory(sizeof(Slab), "the records of a pool");
  }
}

Descriptor& DescriptorStore::take() noexcept {
  Descriptor& one = *spare_;
  spare_ = one.next;
  --spare_count_;
  one.next = nullptr;
  one.state = State::held;
  return one;
}

void DescriptorStore::give(Descriptor& spare) noexcept {
  spare.before = spare.after = spare.previous = spare.older = spare.newer = nullptr;
  spare.lane = nullptr;
  spare.alias = nullptr;
  spare.state = State::spare;
  spare.next = std::exchange(spare_, &spare);
  ++spare_count_;
}

Result<void> DescriptorStore::try_replace_place(Descriptor& descriptor) noexcept {
  const Result<std::uint32_t> slot =
      try_keep_place(owner_, device_, reinterpret_cast<std::uintptr_t>(&descriptor));
  if (!slot) return slot.failure();
  BlockPlace* const place = find_place(*slot);
  place->address.store(descriptor.place->address.load());
  place->bytes.store(descriptor.place->bytes.load());
  drop_place(descriptor.slot);
  descriptor.slot = *slot;
  descriptor.place = place;
  return {};
}

}  // namespace tern::pool
