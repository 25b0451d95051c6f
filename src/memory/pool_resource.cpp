// Argument checks in front of pool::Pool.

#include "tern/memory/pool_resource.hpp"

#include <cstdint>
#include <utility>

#include "memory/pool/pool.hpp"
#include "tern/core/bytes.hpp"

namespace tern {
namespace {

Capability needed_for(MemoryKind kind) noexcept {
  return kind == MemoryKind::pinned ? Capability::pinned_memory : Capability::managed_memory;
}

// Checks the options before the pool is made.
const Device& checked(const Device& device, const PoolOptions& options) {
  if (!device.is_open()) {
    raise(Failure(ErrorCode::invalid_argument,
                  "a pool needs an open device, and the Device is empty.")
              .with("name", "device"));
  }
  const MemoryKind kind = options.kind;
  if (kind != MemoryKind::device && kind != MemoryKind::pinned && kind != MemoryKind::managed) {
    raise(Failure(
              ErrorCode::invalid_argument,
              "a pool cannot hold {value} memory. Create it with device, pinned or managed memory.")
              .with("name", "kind")
              .with("value", name(kind)));
  }
  if (kind != MemoryKind::device && !device.can(needed_for(kind))) {
    raise(Failure(ErrorCode::unsupported).with("what", name(kind)).with("device", device.spec()));
  }
  if (options.initial_bytes > max_request_bytes) {
    raise(Failure(ErrorCode::invalid_argument,
                  "a pool cannot have an initial size of {value}, which exceeds the largest "
                  "possible size. Use a smaller initial size.")
              .with("name", "initial_bytes")
              .with_bytes("value", options.initial_bytes));
  }
  if (options.limit_bytes != 0 && options.initial_bytes > options.limit_bytes) {
    raise(Failure(ErrorCode::invalid_argument,
                  "the initial size of a pool, {initial}, is above its limit of {limit}. Raise the "
                  "limit, or lower the initial size.")
              .with("name", "initial_bytes")
              .with_bytes("initial", options.initial_bytes)
              .with_bytes("limit", options.limit_bytes));
  }
  return device;
}

}  // namespace

PoolResource::PoolResource(Device device, const PoolOptions& options)
    : pool_(std::make_unique<pool::Pool>(*this, checked(device, options), options)) {
  if (options.initial_bytes > 0) pool_->try_hold(options.initial_bytes).value();
}

PoolResource::~PoolResource() = default;

const Device& PoolResource::device() const noexcept { return pool_->device(); }

ResourceTraits PoolResource::traits() const noexcept {
  ResourceTraits traits;
  traits.kind = pool_->kind();
  traits.is_device_accessible = true;
  traits.is_host_accessible =
      pool_->kind() != MemoryKind::device || device().can(Capability::host_access);
  traits.is_stream_ordered = true;
  traits.frees_without_waiting = true;
  traits.frees_for_host_at_once = true;
  traits.alignment = pool::granule_bytes;
  traits.max_alignment = device().info().max_alignment;
  return traits;
}

Statistics PoolResource::statistics() const noexcept {
  if (pool_->is_forked()) return {};
  Statistics now = pool_->statistics();
  now.failed_frees = failed_frees();
  now.failed_free_bytes = failed_free_bytes();
  return now;
}

PoolStatistics PoolResource::pool_statistics() const noexcept { return pool_->pool_statistics(); }
Fragmentation PoolResource::fragmentation() const noexcept { return pool_->fragmentation(); }

std::size_t PoolResource::good_size(const Request& request) const noexcept {
  if (request.bytes == 0 || request.bytes > SIZE_MAX / 2) return request.bytes;
  return pool::granted_bytes(request.bytes);
}

// A call that returns its result in memory makes the compiler add a stack guard. try_allocate() and
// try_deallocate() have nothing on the stack that needs one.
__attribute__((no_stack_protector)) Result<Block> PoolResource::try_allocate(
    const Request& request) noexcept {
  pool::Pool& pool = *pool_;
  const pool::Pool::Hit hit = pool.try_hit(request);
  if (hit.range != nullptr) return pool.result_of(*hit.range);
  return allocate_slow(request, hit.is_miss);
}

bool PoolResource::recycle(const Request& request, Block& into) noexcept {
  const pool::Pool::Hit hit = pool_->try_hit(request);
  if (hit.range == nullptr) return false;
  pool_->write_block(*hit.range, into);
  return true;
}

// A separate function, so that the fast path needs no stack space for failures.
[[gnu::noinline]] Result<Block> PoolResource::allocate_slow(const Request& request,
                                                            bool is_miss) noexcept {
  if (request.bytes == 0) {
    pool_->note_empty_request();
    return Block{};
  }
  retry_before_allocation();
  const Result<void> fits = check(request);
  Result<Block> block =
      fits ? pool_->try_allocate(request, is_miss) : Result<Block>(fits.failure());
  if (block) return block;
  pool_->note_refusal(request, block.failure());
  return Failure(block.failure()).at(request.site);
}

__attribute__((no_stack_protector)) Result<void> PoolResource::try_deallocate(
    const Block& block, StreamRef stream, const CallSite& site) noexcept {
  if (!block) return {};
  return pool_->try_free(block, stream, site);
}

std::size_t PoolResource::trim(std::size_t keep_bytes) noexcept {
  retry_failed_frees();
  return pool_->trim(keep_bytes);
}
std::size_t PoolResource::poll() noexcept { return pool_->poll(SIZE_MAX); }
void PoolResource::set_limit(std::size_t limit_bytes) noexcept { pool_->set_limit(limit_bytes); }
void PoolResource::add_budget(const Budget& budget) { pool_->add_budget(budget); }
void PoolResource::remove_budget(const Budget& budget) noexcept { pool_->remove_budget(budget); }
void PoolResource::update_bound() noexcept { pool_->update_bound(); }
bool PoolResource::check_invariants() const noexcept { return pool_->check_invariants(); }

}  // namespace tern
