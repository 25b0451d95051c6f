// The descriptors of a pool: made in slabs, used again, and given back when the pool ends.
//
// Whoever changes the ranges makes sure of all the descriptors it needs first, so that a host
// without memory refuses before anything has changed. Each has a place in the table of blocks for
// its life. Confined.

#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "memory/pool/descriptor.hpp"
#include "tern/core/place.hpp"
#include "tern/core/result.hpp"

namespace tern {
class Resource;
}

namespace tern::pool {

class DescriptorStore {
 public:
  /// `owner` may be null: then the descriptors have no places, and stand for no blocks.
  DescriptorStore(const Resource* owner, DeviceId device) noexcept
      : owner_(owner), device_(device) {}
  ~DescriptorStore();
  DescriptorStore(const DescriptorStore&) = delete;
  DescriptorStore& operator=(const DescriptorStore&) = delete;

  /// After this so many take() succeed.
  [[nodiscard]] Result<void> try_prepare(std::size_t count) noexcept;
  /// After try_prepare.
  [[nodiscard]] Descriptor& take() noexcept;
  void give(Descriptor& spare) noexcept;
  [[nodiscard]] std::size_t spare_count() const noexcept { return spare_count_; }
  [[nodiscard]] std::size_t used_count() const noexcept { return total_count_ - spare_count_; }
  template <class Visit>
  void for_each(Visit visit) const {
    for (const std::unique_ptr<Slab>& slab : slabs_) {
      for (const Descriptor& one : slab->descriptors) visit(one);
    }
  }
  /// Another place for a descriptor whose own has counted to the end.
  [[nodiscard]] Result<void> try_replace_place(Descriptor& descriptor) noexcept;

 private:
  static constexpr std::size_t slab_size = 128;
  struct Slab {
    Descriptor descriptors[slab_size];
  };
  [[nodiscard]] Result<void> try_grow() noexcept;

  const Resource* const owner_;
  const DeviceId device_;
  std::vector<std::unique_ptr<Slab>> slabs_;
  Descriptor* spare_ = nullptr;  // linked by next
  std::size_t spare_count_ = 0;
  std::size_t total_count_ = 0;
};

}  // namespace tern::pool
