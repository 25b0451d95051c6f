// The functions that PyTorch calls: torch.cuda.MemPool and torch.cuda.CUDAPluggableAllocator.
//
// PyTorch passes a stream to each free, but it is the stream of the allocation, whose handle may be
// gone. So frees are in the order of the allocation, and record_stream() adds other streams.

#include <functional>
#include <stdexcept>
#include <string>
#include <utility>

#include "c/arenas.hpp"
#include "c/failures.hpp"
#include "c/handles.hpp"
#include "c/plugins.hpp"
#include "tern/core/bytes.hpp"
#include "tern/detail/memory/wrapping_resource.hpp"
#include "tern/memory/arena_resource.hpp"
#include "tern/memory/budget_resource.hpp"
#include "tern/memory/default_resource.hpp"
#include "tern/memory/pool_resource.hpp"

using namespace tern;
using namespace tern::c;

namespace {

/// The types of PyTorch's functions, as far as calls depend on them.
using TorchPoolId = std::pair<unsigned long long, unsigned long long>;
using TorchFilter = std::function<bool(void*)>;

/// PyTorch cannot be told of a failure here.
void report(const Result<void>& result) noexcept {
  if (!result) {
    static_cast<void>(fail(result.failure()));
    report_failure(result.failure());
  }
}

/// Sets the limit of the outermost budget of a stack of wrappers, or of the pool below them.
Result<void> set_limit(Resource* resource, const BudgetLimit& limit) {
  for (Resource* one = resource; one != nullptr;) {
    if (const auto* const limited = dynamic_cast<BudgetResource*>(one)) {
      limited->budget()->set_limit(limit);
      return {};
    }
    if (auto* const pool = dynamic_cast<PoolResource*>(one)) {
      pool->set_limit(limit.value_bytes());
      return {};
    }
    const auto* const wrapping = dynamic_cast<WrappingResource*>(one);
    one = wrapping != nullptr ? wrapping->upstream().get() : nullptr;
  }
  return Failure(ErrorCode::unsupported,
                 "resource '{resource}' has no limit that can be set. Put a budget around it.")
      .with("what", "setting a limit")
      .with("resource", resource->name());
}

}  // namespace

void* tern_torch_malloc(size_t bytes, int ordinal, void* stream) {
  void* address = nullptr;
  static_cast<void>(allocate_for(TERN_TORCH, ordinal, bytes, stream, &address));
  return address;
}

void* tern_torch_malloc_or_throw(size_t bytes, int ordinal, void* stream) {
  void* const made = tern_torch_malloc(bytes, ordinal, stream);
  if (made != nullptr || bytes == 0) return made;
  const tern_status status = tern_last_status();
  const bool is_full = status == TERN_OUT_OF_MEMORY || status == TERN_OUT_OF_BUDGET;
  throw std::runtime_error((is_full ? "CUDA out of memory. " : "") +
                           std::string(tern_last_error()));
}

void tern_torch_free(void* address, size_t, int, void*) {
  report(free_in_order(address, CallSite::here()));
}

void tern_torch_record_stream(void* address, void* stream) {
  static_cast<void>(tern_record_use(address, stream));
}

void* tern_torch_base(void* address, size_t* bytes) {
  const Result<Block> block = PointerAllocator::try_find(address);
  if (bytes != nullptr) *bytes = block ? block->bytes : 0;
  if (!block) static_cast<void>(fail(block.failure()));
  return address;
}

void tern_torch_empty_cache(void) {
  for (int ordinal = 0; ordinal < max_ordinals; ++ordinal) {
    if (const auto resource = plugin_of(TERN_TORCH, ordinal)) {
      // As PyTorch's own allocator does: frees that have no event yet are complete then. During a
      // capture the wait fails, and what is known to be free is returned.
      static_cast<void>(resource->resource->device().try_synchronize());
      resource->owner->poll(SIZE_MAX);
      ArenaResource::free_abandoned();
      resource->resource->trim(0);
    }
  }
}

tern_status tern_torch_set_fraction(double fraction, int ordinal) {
  return guarded([&]() -> tern_status {
    if (const Result<void> valid = check_ordinal(ordinal); !valid) return fail(valid.failure());
    const auto resource = plugin_of(TERN_TORCH, ordinal);
    if (resource == nullptr) return fail_no_plugin(TERN_TORCH, ordinal);
    const BudgetLimit limit = BudgetLimit::fraction_of(resource->resource->device(), fraction);
    return finish(set_limit(resource->resource.get(), limit));
  });
}

extern "C" {

TERN_C_API void tern_torch_begin_pool(int ordinal, TorchPoolId id, TorchFilter filter) {
  check_ordinal(ordinal).value();
  const auto resource = plugin_of(TERN_TORCH, ordinal);
  if (resource == nullptr) {
    static_cast<void>(fail_no_plugin(TERN_TORCH, ordinal));
    throw std::runtime_error(tern_last_error());
  }
  begin_arena(ordinal, {id.first, id.second}, std::move(filter), resource->resource);
}

TERN_C_API void tern_torch_end_pool(int ordinal, TorchPoolId id) {
  if (check_ordinal(ordinal)) report(end_arena(ordinal, {id.first, id.second}));
}

TERN_C_API void tern_torch_release_pool(int ordinal, TorchPoolId id) {
  if (check_ordinal(ordinal)) report(release_arena(ordinal, {id.first, id.second}));
}
}
