#include "tern/detail/memory/wrapping_resource.hpp"

#include <utility>

namespace tern {
namespace {

ResourceHandle checked(const char* what, ResourceHandle upstream) {
  if (upstream) return upstream;
  raise(Failure(ErrorCode::invalid_argument,
                "a {what} resource needs an upstream resource, and the pointer is null.")
            .with("name", "upstream")
            .with("what", what));
}

}  // namespace

WrappingResource::WrappingResource(const char* what, ResourceHandle upstream)
    : upstream_(checked(what, std::move(upstream))),
      name_(std::string(what) + "(" + upstream_->name() + ")") {
  set_pausable(upstream_->is_pausable());
}

Statistics WrappingResource::statistics() const noexcept {
  const Statistics below = upstream_->statistics();
  Statistics now = counters_.read();
  now.reserved_bytes = below.reserved_bytes;
  now.pending_bytes = below.pending_bytes;
  now.reuses = below.reuses;
  now.free_bytes = below.free_bytes;
  now.largest_free_bytes = below.largest_free_bytes;
  now.failed_frees = failed_frees() + below.failed_frees;
  now.failed_free_bytes = failed_free_bytes() + below.failed_free_bytes;
  return now;
}

std::size_t WrappingResource::trim(std::size_t keep_bytes) noexcept {
  retry_failed_frees();
  return upstream_->trim(keep_bytes);
}

Result<Block> WrappingResource::try_allocate(const Request& request) noexcept {
  counters_.note_request();
  if (request.bytes == 0) return Block{};
  retry_before_allocation();
  Result<Block> block = upstream_->try_allocate(request);
  if (block) {
    counters_.note_allocation(block->bytes);
  } else {
    counters_.note_refusal();
  }
  return block;
}

Result<void> WrappingResource::try_deallocate(const Block& block, StreamRef stream,
                                              const CallSite& site) noexcept {
  if (!block) return {};
  Result<void> freed = upstream_->try_deallocate(block, stream, site);
  if (freed) counters_.note_free(block.bytes);
  return freed;
}

}  // namespace tern
