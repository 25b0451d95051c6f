#include "tern/interop/pmr.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <exception>
#include <new>
#include <optional>
#include <unordered_map>
#include <utility>

#include "core/no_host_memory.hpp"

namespace tern {

/// Maps addresses to blocks, for all adapters of one resource.
class PmrBlocks {
 public:
  explicit PmrBlocks(const Resource* resource) noexcept : resource_(resource) {}
  PmrBlocks(const PmrBlocks&) = delete;
  PmrBlocks& operator=(const PmrBlocks&) = delete;
  ~PmrBlocks();

  [[nodiscard]] static std::shared_ptr<PmrBlocks> of(const Resource* resource);

  /// Throws std::bad_alloc and changes nothing then.
  void add(const Block& block, std::size_t asked_bytes) {
    Shard& shard = shard_of(block.address);
    const std::lock_guard lock(shard.mutex);
    shard.by_address.emplace(block.address, Entry{block, asked_bytes});
  }

  /// Returns nothing if there is no block of this size at the address. Allocates nothing.
  [[nodiscard]] std::optional<Block> take(void* address, std::size_t asked_bytes) noexcept {
    Shard& shard = shard_of(address);
    const std::lock_guard lock(shard.mutex);
    const auto found = shard.by_address.find(address);
    if (found == shard.by_address.end() || found->second.asked_bytes != asked_bytes) {
      mistaken_frees_.fetch_add(1, std::memory_order_relaxed);
      return std::nullopt;
    }
    const Block block = found->second.block;
    shard.by_address.erase(found);
    return block;
  }

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

namespace {

/// By resource, so that equal adapters find each other's blocks. Never destroyed, because adapters
/// may be static objects.
struct AllBlocks {
  std::mutex mutex;
  std::unordered_map<const Resource*, std::weak_ptr<PmrBlocks>> by_resource;  // guarded by mutex
};

AllBlocks& all_blocks() {
  static AllBlocks& instance = *new AllBlocks;
  return instance;
}

ResourceHandle checked(ResourceHandle resource) {
  if (!resource) {
    raise(Failure(ErrorCode::invalid_argument,
                  "a std::pmr adapter needs a resource, and the pointer is null.")
              .with("name", "resource"));
  }
  if (!resource->traits().is_host_accessible) {
    raise(Failure(ErrorCode::unsupported,
                  "containers cannot use memory of '{device}' ({resource}): {what} is missing. Use "
                  "pinned, managed or host memory.")
              .with("what", name(Capability::host_access))
              .with("resource", resource->name())
              .with("device", resource->device().spec()));
  }
  return resource;
}

std::shared_ptr<PmrBlocks> blocks_of(const Resource* resource) try {
  return PmrBlocks::of(resource);
} catch (const std::bad_alloc&) {
  raise(no_host_memory("a std::pmr adapter"));
}

}  // namespace

std::shared_ptr<PmrBlocks> PmrBlocks::of(const Resource* resource) {
  AllBlocks& all = all_blocks();
  const std::lock_guard lock(all.mutex);
  std::weak_ptr<PmrBlocks>& known = all.by_resource[resource];
  std::shared_ptr<PmrBlocks> blocks = known.lock();
  if (!blocks) {
    blocks = std::make_shared<PmrBlocks>(resource);
    known = blocks;
  }
  return blocks;
}

PmrBlocks::~PmrBlocks() {
  AllBlocks& all = all_blocks();
  const std::lock_guard lock(all.mutex);
  const auto found = all.by_resource.find(resource_);
  // Another thread may have added an entry meanwhile.
  if (found != all.by_resource.end() && found->second.expired()) all.by_resource.erase(found);
}

// --- PmrAdapter

PmrAdapter::PmrAdapter(ResourceHandle resource, Tag tag, CallSite site)
    : resource_(checked(std::move(resource))),
      blocks_(blocks_of(resource_.get())),
      tag_(tag),
      site_(site) {}

PmrAdapter::~PmrAdapter() = default;

std::uint64_t PmrAdapter::mistaken_frees() const noexcept { return blocks_->mistaken_frees(); }

void* PmrAdapter::do_allocate(std::size_t bytes, std::size_t alignment) {
  const Block block = resource_->allocate({.bytes = std::max<std::size_t>(bytes, 1),
                                           .alignment = alignment,
                                           .tag = tag_,
                                           .site = site_});
  try {
    blocks_->add(block, bytes);
  } catch (const std::bad_alloc&) {
    resource_->deallocate(block, {}, site_);
    raise(no_host_memory("the record of a block", site_).with_bytes("requested", bytes));
  }
  return block.address;
}

void PmrAdapter::do_deallocate(void* address, std::size_t bytes, std::size_t) {
  // Remove the entry first: after the free, another thread may get the address.
  const std::optional<Block> block = blocks_->take(address, bytes);
  if (block) resource_->deallocate(*block, {}, site_);
}

bool PmrAdapter::do_is_equal(const std::pmr::memory_resource& other) const noexcept {
  const auto* const adapter = dynamic_cast<const PmrAdapter*>(&other);
  return adapter != nullptr && adapter->resource_ == resource_;
}

// --- PmrUpstream

PmrUpstream::PmrUpstream(Device device, std::pmr::memory_resource* upstream)
    : DriverResource(std::move(device), Order::host,
                     "the pmr resource has no freed memory to reuse, and a request for {requested} "
                     "allows only memory that its stream has freed."),
      upstream_(upstream) {
  if (upstream == nullptr) {
    raise(Failure(ErrorCode::invalid_argument,
                  "a pmr resource needs a std::pmr::memory_resource, and the pointer is null.")
              .with("name", "upstream"));
  }
  if (!this->device().can(Capability::host_access)) {
    raise(Failure(ErrorCode::unsupported,
                  "device '{device}' does not use host memory: {what} is missing. Use the host "
                  "device for a pmr resource.")
              .with("what", tern::name(Capability::host_access))
              .with("device", this->device().spec()));
  }
}

std::size_t PmrUpstream::alignment_for(std::size_t requested) const noexcept {
  return std::max(requested, device().info().alignment);
}

Result<void*> PmrUpstream::take(const Request& request, StreamRef) noexcept try {
  const std::lock_guard lock(mutex_);
  return upstream_->allocate(request.bytes, alignment_for(request.alignment));
} catch (const Error& error) {
  return Failure(error.failure()).at(request.site);
} catch (const std::bad_alloc&) {
  return Failure(ErrorCode::out_of_memory,
                 "a std::pmr::memory_resource could not allocate {requested}. Free host memory, or "
                 "raise its limit.",
                 request.site)
      .with_bytes("requested", request.bytes);
} catch (const std::exception& exception) {
  return Failure(ErrorCode::driver,
                 "a std::pmr::memory_resource threw on a request for {requested}: {what}.",
                 request.site)
      .with_bytes("requested", request.bytes)
      .with("what", exception.what());
} catch (...) {
  return Failure(
             ErrorCode::driver,
             "a std::pmr::memory_resource threw an unknown exception on a request for {requested}.",
             request.site)
      .with_bytes("requested", request.bytes);
}

void PmrUpstream::put_back(const Piece& piece, StreamRef, const CallSite&) noexcept {
  const std::lock_guard lock(mutex_);
  upstream_->deallocate(piece.address, piece.bytes, alignment_for(piece.alignment));
}

Result<Mark> PmrUpstream::give(const Piece& piece, StreamRef stream,
                               const CallSite& site) noexcept {
  if (Result<void> waited = wait_for(stream); !waited) return waited.failure();
  put_back(piece, stream, site);
  return Mark{};
}

}  // namespace tern
