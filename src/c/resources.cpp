// Devices, resources, budgets and their figures in the C API.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "c/failures.hpp"
#include "c/handles.hpp"
#include "memory/block_table.hpp"
#include "tern/backends/catalog.hpp"
#include "tern/c/handle.hpp"
#include "tern/core/bytes.hpp"
#include "tern/memory/arena_resource.hpp"
#include "tern/memory/budget_resource.hpp"
#include "tern/memory/default_resource.hpp"
#include "tern/memory/owned_block.hpp"
#include "tern/memory/pool_resource.hpp"

namespace tern::c {
namespace {

Result<MemoryKind> kind_of(tern_memory_kind kind) noexcept {
  switch (kind) {
    case TERN_DEVICE_MEMORY:
      return MemoryKind::device;
    case TERN_PINNED_MEMORY:
      return MemoryKind::pinned;
    case TERN_MANAGED_MEMORY:
      return MemoryKind::managed;
  }
  return Failure(ErrorCode::invalid_argument,
                 "{value} is not a kind of memory. Use a constant of tern_memory_kind.")
      .with_signed("value", kind);
}

BudgetLimit limit_of(std::size_t bytes) noexcept {
  return bytes == SIZE_MAX ? BudgetLimit::unlimited() : BudgetLimit::bytes(bytes);
}

/// Returns the pool at the bottom of a stack of wrappers, or null.
const PoolResource* pool_below(const Resource* resource) noexcept {
  while (const auto* wrapping = dynamic_cast<const WrappingResource*>(resource)) {
    resource = wrapping->upstream().get();
  }
  return dynamic_cast<const PoolResource*>(resource);
}

}  // namespace
}  // namespace tern::c

using namespace tern;
using namespace tern::c;

tern_status tern_open_device(const char* spec, tern_device** device) {
  if (spec == nullptr) return fail_null("spec");
  if (device == nullptr) return fail_null("device");
  return guarded([&]() -> tern_status {
    Result<Device> opened = try_open_device(spec);
    if (!opened) return fail(opened.failure());
    *device = new tern_device{std::move(*opened)};
    return TERN_OK;
  });
}

void tern_release_device(tern_device* device) { delete device; }

tern_status tern_device_memory(const tern_device* device, size_t* free_bytes, size_t* total_bytes) {
  if (device == nullptr) return fail_null("device");
  const Result<MemoryInfo> info = device->device.try_memory();
  if (!info) return fail(info.failure());
  if (free_bytes != nullptr) *free_bytes = info->free_bytes;
  if (total_bytes != nullptr) *total_bytes = info->total_bytes;
  return TERN_OK;
}

tern_status tern_synchronize(const tern_device* device) {
  if (device == nullptr) return fail_null("device");
  return finish(device->device.try_synchronize());
}

tern_status tern_make_pool(const tern_device* device, const tern_pool_options* options,
                           tern_resource** pool) {
  if (device == nullptr) return fail_null("device");
  if (pool == nullptr) return fail_null("pool");
  return guarded([&]() -> tern_status {
    PoolOptions wanted;
    if (options != nullptr) {
      if (options->struct_bytes < sizeof(std::size_t)) {
        return fail_struct("options", options->struct_bytes);
      }
      // A caller that was compiled with a smaller structure leaves the other fields at 0.
      tern_pool_options given = {};
      std::memcpy(&given, options, std::min(options->struct_bytes, sizeof given));
      const Result<MemoryKind> kind = kind_of(given.kind);
      if (!kind) return fail(kind.failure());
      wanted = {
          .kind = *kind, .limit_bytes = given.limit_bytes, .initial_bytes = given.initial_bytes};
    }
    *pool = make_c_handle(std::make_shared<PoolResource>(device->device, wanted));
    return TERN_OK;
  });
}

tern_status tern_default_resource(const tern_device* device, tern_memory_kind kind,
                                  tern_resource** resource) {
  if (device == nullptr) return fail_null("device");
  if (resource == nullptr) return fail_null("resource");
  return guarded([&]() -> tern_status {
    const Result<MemoryKind> wanted = kind_of(kind);
    if (!wanted) return fail(wanted.failure());
    Result<ResourceHandle> found = try_default_resource(device->device, *wanted);
    if (!found) return fail(found.failure());
    *resource = make_c_handle(std::move(*found));
    return TERN_OK;
  });
}

tern_status tern_make_budget(const char* name, size_t limit_bytes, const tern_budget* parent,
                             tern_budget** budget) {
  if (name == nullptr) return fail_null("name");
  if (budget == nullptr) return fail_null("budget");
  return guarded([&]() -> tern_status {
    BudgetOptions options;
    if (parent != nullptr) options.parent = parent->budget;
    *budget = new tern_budget{Budget::make(name, limit_of(limit_bytes), options)};
    return TERN_OK;
  });
}

tern_status tern_set_budget_limit(const tern_budget* budget, size_t limit_bytes) {
  if (budget == nullptr) return fail_null("budget");
  return guarded([&]() -> tern_status {
    budget->budget->set_limit(limit_of(limit_bytes));
    return TERN_OK;
  });
}

void tern_release_budget(tern_budget* budget) { delete budget; }

tern_status tern_make_budget_resource(const tern_resource* upstream, const tern_budget* budget,
                                      tern_resource** resource) {
  if (upstream == nullptr) return fail_null("upstream");
  if (budget == nullptr) return fail_null("budget");
  if (resource == nullptr) return fail_null("resource");
  return guarded([&]() -> tern_status {
    *resource = make_c_handle(std::make_shared<BudgetResource>(upstream->resource, budget->budget));
    return TERN_OK;
  });
}

tern_status tern_set_tag(tern_resource* resource, const char* tag) {
  if (resource == nullptr) return fail_null("resource");
  if (tag == nullptr) return fail_null("tag");
  return guarded([&]() -> tern_status {
    resource->tag = Tag(tag);
    return TERN_OK;
  });
}

void tern_release_resource(tern_resource* resource) { delete resource; }

tern_status tern_get_statistics(const tern_resource* resource, tern_statistics* statistics) {
  if (resource == nullptr) return fail_null("resource");
  const auto* const limited = dynamic_cast<const BudgetResource*>(resource->resource.get());
  if (limited != nullptr) limited->budget()->drain();
  Statistics now = resource->resource->statistics();
  const PointerOwner::Delayed delayed = resource->owner->delayed();
  now.live_bytes -= std::min(now.live_bytes, delayed.bytes);
  now.live_blocks -= std::min(now.live_blocks, delayed.blocks);
  now.pending_bytes += delayed.bytes;
  tern_statistics made = {.struct_bytes = sizeof(tern_statistics),
                          .live_bytes = now.live_bytes,
                          .live_blocks = now.live_blocks,
                          .peak_live_bytes = now.peak_live_bytes,
                          .pending_bytes = now.pending_bytes,
                          .held_bytes = now.reserved_bytes,
                          .peak_held_bytes = 0,
                          .limit_bytes = 0,
                          .allocations = now.requests - now.refusals,
                          .frees = now.frees,
                          .refusals = now.refusals,
                          .driver_calls = 0};
  if (const PoolResource* const pool = pool_below(resource->resource.get())) {
    const PoolStatistics held = pool->pool_statistics();
    made.held_bytes = held.held_bytes;
    made.peak_held_bytes = held.peak_held_bytes;
    made.limit_bytes = held.limit_bytes;
    made.driver_calls = held.driver_calls();
  }
  if (limited != nullptr) made.peak_live_bytes = limited->budget()->peak_bytes();
  return copy_out(made, statistics, "statistics");
}

tern_status tern_reset_peak(tern_resource* resource) {
  if (resource == nullptr) return fail_null("resource");
  const auto* const limited = dynamic_cast<const BudgetResource*>(resource->resource.get());
  if (limited == nullptr) {
    return fail(Failure(ErrorCode::unsupported,
                        "resource '{resource}' has a peak that cannot be reset. Put a budget "
                        "around it, which may be unlimited.")
                    .with("what", "resetting a peak")
                    .with("resource", resource->resource->name()));
  }
  limited->budget()->drain();
  limited->budget()->reset_peak();
  return TERN_OK;
}

tern_status tern_get_budget_statistics(const tern_budget* budget,
                                       tern_budget_statistics* statistics) {
  if (budget == nullptr) return fail_null("budget");
  const Budget& now = *budget->budget;
  const tern_budget_statistics made = {
      .struct_bytes = sizeof(tern_budget_statistics),
      .limit_bytes = now.has_limit() ? now.limit_bytes() : SIZE_MAX,
      .used_bytes = now.used_bytes(),
      .pending_bytes = now.pending_bytes(),
      .peak_bytes = now.peak_bytes()};
  return copy_out(made, statistics, "statistics");
}

tern_status tern_trim(tern_resource* resource, size_t keep_bytes, size_t* released_bytes) {
  if (resource == nullptr) return fail_null("resource");
  resource->owner->poll(SIZE_MAX);
  ArenaResource::free_abandoned();
  const std::size_t released = resource->resource->trim(keep_bytes);
  if (const auto* limited = dynamic_cast<const BudgetResource*>(resource->resource.get())) {
    limited->budget()->drain();
  }
  if (released_bytes != nullptr) *released_bytes = released;
  return TERN_OK;
}

tern_status tern_snapshot(const tern_device* device, tern_block* blocks, size_t capacity,
                          size_t* count) {
  if (device == nullptr) return fail_null("device");
  if (count == nullptr) return fail_null("count");
  if (blocks == nullptr && capacity != 0) return fail_null("blocks");
  const std::size_t stride = capacity == 0 ? sizeof(tern_block) : blocks->struct_bytes;
  if (stride < sizeof(std::size_t)) return fail_struct("blocks", stride);
  const DeviceId id = device->device.id();
  std::size_t found = 0;
  for_each_live_block([&](Generation generation) {
    const Result<BlockInfo> info = try_block_info(generation);
    if (!info || info->device != id || info->state != BlockState::live) return;
    if (found < capacity) {
      const tern_block one = {.struct_bytes = sizeof(tern_block),
                              .address = info->address,
                              .bytes = info->bytes,
                              .tag = tag_text(info->tag),
                              .device = device->device.spec().data()};
      // The caller's blocks may be of an older header and have fewer fields, or of a newer one.
      char* const to = reinterpret_cast<char*>(blocks) + found * stride;
      std::memcpy(to, &one, std::min(stride, sizeof one));
      std::memcpy(to, &stride, sizeof stride);
    }
    ++found;
  });
  *count = found;
  return TERN_OK;
}
