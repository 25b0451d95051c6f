#include "interop/blocks_by_address.hpp"

namespace tern {
namespace {

/// Never destroyed, because adapters may be static objects.
struct AllBlocks {
  std::mutex mutex;
  std::unordered_map<const Resource*, std::weak_ptr<BlocksByAddress>> by_resource;  // with mutex
};

AllBlocks& all_blocks() {
  static AllBlocks& instance = *new AllBlocks;
  return instance;
}

}  // namespace

std::shared_ptr<BlocksByAddress> BlocksByAddress::of(const Resource* resource) {
  AllBlocks& all = all_blocks();
  const std::lock_guard lock(all.mutex);
  std::weak_ptr<BlocksByAddress>& known = all.by_resource[resource];
  std::shared_ptr<BlocksByAddress> blocks = known.lock();
  if (!blocks) {
    blocks = std::make_shared<BlocksByAddress>(resource);
    known = blocks;
  }
  return blocks;
}

BlocksByAddress::~BlocksByAddress() {
  AllBlocks& all = all_blocks();
  const std::lock_guard lock(all.mutex);
  const auto found = all.by_resource.find(resource_);
  // Another thread may have added an entry meanwhile.
  if (found != all.by_resource.end() && found->second.expired()) all.by_resource.erase(found);
}

}  // namespace tern
