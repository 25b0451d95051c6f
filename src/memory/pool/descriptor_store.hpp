// The DescriptorStore owns the descriptors of a pool: allocated in slabs, reused, freed with the
// pool.
//
// Code that changes ranges first calls try_prepare() for all descriptors it may need, so a shortage
// of host memory is reported before anything has changed. Each descriptor keeps one place in the
// block table for its life. Not thread-safe: the pool holds its lock.

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
  /// If `owner` is null, the descriptors have no places and cannot describe blocks.
  DescriptorStore(const Resource* owner, DeviceId device) noexcept
      : owner_(owner), device_(device) {}
  ~DescriptorStore();
  DescriptorStore(const DescriptorStore&) = delete;
  DescriptorStore& operator=(const DescriptorStore&) = delete;

  /// Makes sure that the next `count` calls of take() succeed. Fails with out_of_memory or
  /// capacity.
  [[nodiscard]] Result<void> try_prepare(std::size_t count) noexcept;
  /// Returns a descriptor in state held. Call try_prepare() first.
  [[nodiscard]] Descriptor& take() noexcept;
  /// Puts an unused descriptor back into the store.
  void give(Descriptor& spare) noexcept;
  [[nodiscard]] std::size_t spare_count() const noexcept { return spare_count_; }
  [[nodiscard]] std::size_t used_count() const noexcept { return total_count_ - spare_count_; }
  template <class Visit>
  void for_each(Visit visit) const {
    for (const std::unique_ptr<Slab>& slab : slabs_) {
      for (const Descriptor& one : slab->descriptors) visit(one);
    }
  }
  /// Gives the descriptor a new place, because its place has reached the last count.
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
