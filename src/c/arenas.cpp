#include "c/arenas.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include "c/failures.hpp"
#include "c/handles.hpp"
#include "c/plugins.hpp"
#include "device/device_state.hpp"
#include "tern/memory/arena_resource.hpp"

namespace tern::c {
namespace {

/// No graph of PyTorch has this id.
constexpr tern_arena_id rehearsal_id = {UINT64_MAX, UINT64_MAX};

struct Arena {
  tern_arena_id id = {};
  std::shared_ptr<PointerOwner> owner;
  std::size_t uses = 0;
};
struct Opening {
  tern_arena_id id = {};
  std::shared_ptr<PointerOwner> owner;
  std::shared_ptr<const StreamFilter> filter;  // null accepts every stream
};
struct OfDevice {
  std::mutex mutex;
  std::vector<Arena> arenas;       // guarded by mutex
  std::vector<Opening> openings;   // guarded by mutex; the newest is last
  std::size_t reserved_bytes = 0;  // guarded by mutex; for the next arena
  std::atomic<bool> has_openings = false;
};

/// Never destroyed: other libraries free memory after main().
OfDevice& of_device(int ordinal) {
  static auto* const all = new std::array<OfDevice, max_ordinals>;
  return (*all)[static_cast<std::size_t>(ordinal)];
}

bool is_same(tern_arena_id a, tern_arena_id b) noexcept {
  return a.first == b.first && a.second == b.second;
}

auto find(std::vector<Arena>& arenas, tern_arena_id id) noexcept {
  return std::find_if(arenas.begin(), arenas.end(),
                      [id](const Arena& one) { return is_same(one.id, id); });
}

Failure unknown(int ordinal, tern_arena_id id) noexcept {
  return Failure(ErrorCode::invalid_argument,
                 "device {ordinal} has no arena {first}, {second}. Begin it first.")
      .with_signed("ordinal", ordinal)
      .with("first", id.first)
      .with("second", id.second);
}

Result<void> begin(int ordinal, tern_arena_id id, StreamFilter filter,
                   const ResourceHandle& upstream, const ArenaOptions& options) {
  OfDevice& device = of_device(ordinal);
  if (Result<void> usable = DeviceState::of(upstream->device())->check_process(); !usable) {
    return usable;
  }
  std::shared_ptr<const StreamFilter> shared;
  if (filter) shared = std::make_shared<const StreamFilter>(std::move(filter));
  ArenaOptions wanted = options;
  wanted.tag = Tag("graph");
  bool is_known = false;
  {
    const std::lock_guard lock(device.mutex);
    is_known = find(device.arenas, id) != device.arenas.end();
    if (!is_known && !wanted.rehearse) wanted.bytes = std::exchange(device.reserved_bytes, 0);
  }
  // Made without the lock, because the upstream may wait or call handlers.
  std::shared_ptr<PointerOwner> made;
  if (!is_known) made = PointerOwner::of(std::make_shared<ArenaResource>(upstream, wanted));
  const std::lock_guard lock(device.mutex);
  device.openings.reserve(device.openings.size() + 1);
  device.arenas.reserve(device.arenas.size() + 1);
  auto found = find(device.arenas, id);
  if (found == device.arenas.end()) {
    if (made == nullptr) return unknown(ordinal, id);  // another thread has released it meanwhile
    device.arenas.push_back({id, std::move(made), 0});
    found = std::prev(device.arenas.end());
  }
  ++found->uses;
  device.openings.push_back({id, found->owner, std::move(shared)});
  device.has_openings.store(true, std::memory_order_release);
  return {};
}

}  // namespace

void begin_arena(int ordinal, tern_arena_id id, StreamFilter filter,
                 const ResourceHandle& upstream) {
  begin(ordinal, id, std::move(filter), upstream, {}).value();
}

Result<void> end_arena(int ordinal, tern_arena_id id) noexcept {
  OfDevice& device = of_device(ordinal);
  Opening ended;  // destroyed without the lock: the filter is code of others
  const std::lock_guard lock(device.mutex);
  const auto found = std::find_if(device.openings.rbegin(), device.openings.rend(),
                                  [id](const Opening& one) { return is_same(one.id, id); });
  if (found == device.openings.rend()) return unknown(ordinal, id);
  ended = std::move(*found);
  device.openings.erase(std::next(found).base());
  device.has_openings.store(!device.openings.empty(), std::memory_order_release);
  return {};
}

Result<void> release_arena(int ordinal, tern_arena_id id) noexcept {
  OfDevice& device = of_device(ordinal);
  std::shared_ptr<PointerOwner> last;  // destroyed without the lock: it waits for the device
  std::vector<Opening> ended;
  const std::lock_guard lock(device.mutex);
  const auto found = find(device.arenas, id);
  if (found == device.arenas.end()) return unknown(ordinal, id);
  if (--found->uses != 0) return {};
  const auto kept =
      std::stable_partition(device.openings.begin(), device.openings.end(),
                            [id](const Opening& one) { return !is_same(one.id, id); });
  for (auto one = kept; one != device.openings.end(); ++one) ended.push_back(std::move(*one));
  device.openings.erase(kept, device.openings.end());
  device.has_openings.store(!device.openings.empty(), std::memory_order_release);
  last = std::move(found->owner);
  device.arenas.erase(found);
  return {};
}

std::shared_ptr<PointerOwner> open_arena_for(int ordinal, void* handle) noexcept {
  OfDevice& device = of_device(ordinal);
  if (!device.has_openings.load(std::memory_order_acquire)) [[likely]]
    return nullptr;
  // Filters run without the lock: they are code of others.
  std::vector<Opening> openings;
  try {
    const std::lock_guard lock(device.mutex);
    openings = device.openings;
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
  for (auto one = openings.rbegin(); one != openings.rend(); ++one) {
    if (one->filter == nullptr || (*one->filter)(handle)) return std::move(one->owner);
  }
  return nullptr;
}

}  // namespace tern::c

using namespace tern;
using namespace tern::c;

tern_status tern_begin_arena(int ordinal, tern_arena_id id, tern_stream_filter filter,
                             void* context) {
  if (const Result<void> valid = check_ordinal(ordinal); !valid) return fail(valid.failure());
  if (is_same(id, rehearsal_id)) {
    return fail(Failure(ErrorCode::invalid_argument,
                        "the arena id {first}, {second} is reserved for rehearsals. Use another.")
                    .with("first", id.first)
                    .with("second", id.second));
  }
  return guarded([&]() -> tern_status {
    const std::shared_ptr<const tern_resource> upstream = plugin_of(TERN_TORCH, ordinal);
    if (upstream == nullptr) return fail_no_plugin(TERN_TORCH, ordinal);
    StreamFilter accepts;
    if (filter != nullptr) {
      accepts = [filter, context](void* stream) { return filter(context, stream) != 0; };
    }
    begin_arena(ordinal, id, std::move(accepts), upstream->resource);
    return TERN_OK;
  });
}

tern_status tern_end_arena(int ordinal, tern_arena_id id) {
  if (const Result<void> valid = check_ordinal(ordinal); !valid) return fail(valid.failure());
  return finish(end_arena(ordinal, id));
}

tern_status tern_release_arena(int ordinal, tern_arena_id id) {
  if (const Result<void> valid = check_ordinal(ordinal); !valid) return fail(valid.failure());
  return finish(release_arena(ordinal, id));
}

tern_status tern_get_arena(int ordinal, tern_arena_id id, size_t* held_bytes,
                           size_t* needed_bytes) {
  if (const Result<void> valid = check_ordinal(ordinal); !valid) return fail(valid.failure());
  OfDevice& device = of_device(ordinal);
  const std::lock_guard lock(device.mutex);
  const auto found = find(device.arenas, id);
  if (found == device.arenas.end()) return fail(unknown(ordinal, id));
  if (held_bytes != nullptr) *held_bytes = found->owner->arena()->held_bytes();
  if (needed_bytes != nullptr) *needed_bytes = found->owner->arena()->needed_bytes();
  return TERN_OK;
}

tern_status tern_reserve_arena(int ordinal, size_t bytes) {
  if (const Result<void> valid = check_ordinal(ordinal); !valid) return fail(valid.failure());
  OfDevice& device = of_device(ordinal);
  const std::lock_guard lock(device.mutex);
  device.reserved_bytes = bytes;
  return TERN_OK;
}

tern_status tern_begin_rehearsal(int ordinal) {
  if (const Result<void> valid = check_ordinal(ordinal); !valid) return fail(valid.failure());
  return guarded([&]() -> tern_status {
    const std::shared_ptr<const tern_resource> upstream = plugin_of(TERN_TORCH, ordinal);
    if (upstream == nullptr) return fail_no_plugin(TERN_TORCH, ordinal);
    return finish(begin(ordinal, rehearsal_id, {}, upstream->resource, {.rehearse = true}));
  });
}

tern_status tern_end_rehearsal(int ordinal, size_t* needed_bytes) {
  const tern_status found = tern_get_arena(ordinal, rehearsal_id, nullptr, needed_bytes);
  if (found != TERN_OK) return found;
  const Result<void> ended = end_arena(ordinal, rehearsal_id);
  if (!ended) return fail(ended.failure());
  return finish(release_arena(ordinal, rehearsal_id));
}
