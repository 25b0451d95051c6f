// The default resources of a device live in a DefaultSlot that the device's state owns.

#include "tern/memory/default_resource.hpp"

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <new>
#include <utility>

#include "core/no_host_memory.hpp"
#include "device/device_state.hpp"
#include "memory/default_slots.hpp"
#include "tern/detail/core/config.hpp"
#include "tern/memory/guard_resource.hpp"
#include "tern/memory/pool_resource.hpp"
#include "tern/memory/tracking_resource.hpp"

namespace tern {
namespace {

/// Makes the built-in resource: a pool, plus the wrappers that TERN_MEMORY asks for. `device` is an
/// inner handle, which does not count as a handle of the program, so the resource does not keep the
/// device open.
ResourceHandle make_default(const Device& device, MemoryKind kind) {
  // Read the configuration before the pool is made, so that nothing has to be undone if this
  // throws.
  const Config& wanted = config();
  ResourceHandle made = std::make_shared<PoolResource>(device, PoolOptions{.kind = kind});
  if (wanted.memory_guard || wanted.memory_poison) {
    made = std::make_shared<GuardResource>(std::move(made),
                                           GuardOptions{.poison = wanted.memory_poison});
  }
  if (wanted.memory_track || wanted.memory_leaks) {
    made = std::make_shared<TrackingResource>(std::move(made));
  }
  if (wanted.memory_leaks) report_leaks_at_exit();
  return made;
}

Failure shut_down(const DeviceState& state) noexcept {
  return Failure(ErrorCode::after_shutdown,
                 "{what} of '{device}' was requested after its shutdown. Shut it down after the "
                 "last use.")
      .with("what", "the default resource")
      .with("device", state.info().spec);
}

Failure not_kept(const DeviceState& state) noexcept {
  return Failure(ErrorCode::after_shutdown,
                 "{what} of '{device}' cannot be created, because every handle of the device is "
                 "destroyed. Keep a handle, or keep the resource.")
      .with("what", "the default resource")
      .with("device", state.info().spec);
}

/// Index of each kind of memory in the arrays of DefaultSlot.
constexpr std::size_t kinds = 3;
std::size_t index_of(MemoryKind kind) noexcept {
  switch (kind) {
    case MemoryKind::pinned:
      return 1;
    case MemoryKind::managed:
      return 2;
    default:
      return 0;
  }
}

/// The default resources of one device, for each kind of memory.
class DefaultSlot final : public Companion {
 public:
  explicit DefaultSlot(bool has_handles) noexcept : has_handles_(has_handles) {}

  /// The default resource for device memory, without a lock. Null if there is none yet.
  [[nodiscard]] Resource* current() const noexcept {
    return current_.load(std::memory_order_acquire);
  }

  [[nodiscard]] bool has_handles() noexcept {
    const std::lock_guard lock(mutex_);
    return has_handles_;
  }

  [[nodiscard]] Result<ResourceHandle> get(DeviceState& state, MemoryKind kind) {
    // The lock is held while the resource is made, because concurrent callers want the same one.
    const std::lock_guard lock(mutex_);
    if (is_shut_down_) return shut_down(state);
    const std::size_t index = index_of(kind);
    if (kept_[index]) return kept_[index];
    ResourceHandle built_in = built_in_[index].lock();
    if (!built_in) {
      built_in = make_default(state.inner_handle(), kind);
      built_in_[index] = built_in;
    }
    keep(index, built_in);
    return built_in;
  }

  [[nodiscard]] Result<ResourceHandle> set(DeviceState& state, ResourceHandle resource,
                                           MemoryKind kind) noexcept {
    const std::lock_guard lock(mutex_);
    if (is_shut_down_) return shut_down(state);
    if (resource && !has_handles_) return not_kept(state);
    const std::size_t index = index_of(kind);
    ResourceHandle old = kept_[index];
    keep(index, std::move(resource));
    return old;
  }

  /// Returns the resources, so that they are destroyed by the caller, without the lock.
  [[nodiscard]] std::array<ResourceHandle, kinds> shut_down_now() noexcept {
    std::array<ResourceHandle, kinds> last;
    const std::lock_guard lock(mutex_);
    is_shut_down_ = true;
    current_.store(nullptr, std::memory_order_release);
    last.swap(kept_);
    return last;
  }

  void on_last_handle() noexcept override {
    std::array<ResourceHandle, kinds> last;
    const std::lock_guard lock(mutex_);
    has_handles_ = false;
    current_.store(nullptr, std::memory_order_release);
    last.swap(kept_);
  }

 private:
  /// Call with the lock held. No resource is destroyed here: the caller owns a handle to the old
  /// one.
  void keep(std::size_t index, ResourceHandle resource) noexcept {
    if (!has_handles_) return;
    if (index == 0) current_.store(resource.get(), std::memory_order_release);
    kept_[index] = std::move(resource);
  }

  std::atomic<Resource*> current_ = nullptr;  // kept_[0], readable without the lock
  std::mutex mutex_;
  // Guarded by mutex_, as are the members below. All null once the program has no handles.
  std::array<ResourceHandle, kinds> kept_;
  // The built-in resources made last. They may be alive because memory keeps them.
  std::array<std::weak_ptr<Resource>, kinds> built_in_;
  bool has_handles_;
  bool is_shut_down_ = false;
};

DefaultSlot* find_slot(const DeviceState& state) noexcept {
  return static_cast<DefaultSlot*>(state.companion());
}

Result<DefaultSlot*> slot_of(const Device& device) {
  const std::shared_ptr<DeviceState>& state = DeviceState::of(device);
  if (!state) {
    return Failure(
               ErrorCode::invalid_device,
               "{what} needs an open device, and the Device is empty. Open one with open_device().")
        .with("spec", "")
        .with("what", "a default resource");
  }
  // Check before taking a lock: in a forked child, a lock may be held by a thread that does not
  // exist.
  if (Result<void> usable = state->check_process(); !usable) return usable.failure();
  if (DefaultSlot* const slot = find_slot(*state)) return slot;
  return static_cast<DefaultSlot*>(&state->make_companion<DefaultSlot>());
}

}  // namespace

Result<ResourceHandle> try_default_resource(const Device& device, MemoryKind kind) noexcept try {
  const Result<DefaultSlot*> slot = slot_of(device);
  if (!slot) return slot.failure();
  if (kind != MemoryKind::device && kind != MemoryKind::pinned && kind != MemoryKind::managed) {
    return Failure(ErrorCode::invalid_argument,
                   "there is no default resource for {value} memory. Use device, pinned or managed "
                   "memory.")
        .with("name", "kind")
        .with("value", name(kind));
  }
  return (*slot)->get(*DeviceState::of(device), kind);
} catch (const Error& error) {
  return error.failure();
} catch (const std::bad_alloc&) {
  return no_host_memory("a default resource");
}

// The fast path is two loads: the slot of the device, and its current resource.
Resource& default_resource_ref(const Device& device) {
  if (const std::shared_ptr<DeviceState>& state = DeviceState::of(device)) {
    const DefaultSlot* const slot = find_slot(*state);
    if (Resource* const current = slot == nullptr ? nullptr : slot->current()) return *current;
  }
  const ResourceHandle made = default_resource(device);
  const DeviceState& state = *DeviceState::of(device);
  if (!find_slot(state)->has_handles()) raise(not_kept(state));
  return *made;
}

ResourceHandle set_default_resource(const Device& device, ResourceHandle resource,
                                    MemoryKind kind) try {
  if (device.is_open() && resource && resource->device() != device) {
    raise(Failure(ErrorCode::device_mismatch,
                  "a resource of '{a}' cannot be the default of '{b}'. Use a resource of '{b}'.")
              .with("a", resource->device().spec())
              .with("b", device.spec()));
  }
  DefaultSlot* const slot = slot_of(device).value();
  if (resource) kind = resource->traits().kind;
  return slot->set(*DeviceState::of(device), std::move(resource), kind).value();
} catch (const Error&) {
  throw;
} catch (const std::bad_alloc&) {
  raise(no_host_memory("a default resource"));
}

ResourceHandle shutdown_default_resource(const Device& device) try {
  return slot_of(device).value()->shut_down_now()[0];
} catch (const Error&) {
  throw;
} catch (const std::bad_alloc&) {
  raise(no_host_memory("a default resource"));
}

std::vector<ResourceHandle> end_default_resources(const Device& device) {
  std::vector<ResourceHandle> all;
  all.reserve(kinds);
  for (ResourceHandle& one : slot_of(device).value()->shut_down_now()) {
    if (one) all.push_back(std::move(one));
  }
  return all;
}

}  // namespace tern
