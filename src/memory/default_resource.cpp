#include "tern/memory/default_resource.hpp"

#include <atomic>
#include <memory>
#include <mutex>
#include <new>
#include <utility>

#include "device/device_state.hpp"
#include "tern/memory/pool_resource.hpp"

namespace tern {
namespace {

/// The built-in one. The handle is an inner one: whatever is made here keeps it, and no other.
ResourceHandle make_default(const Device& device) {
  return std::make_shared<PoolResource>(device);
}

Failure shut_down(const DeviceState& state) noexcept {
  return Failure(ErrorCode::after_shutdown,
                 "{what} of '{device}' was asked for after it was shut down. Shut it down when "
                 "nothing uses it any more.")
      .with("what", "the default resource")
      .with("device", state.info().spec);
}

Failure not_kept(const DeviceState& state) noexcept {
  return Failure(ErrorCode::after_shutdown,
                 "{what} of '{device}' has nobody to stay for: every handle of the device is gone. "
                 "Keep one, or ask for the resource and hold it.")
      .with("what", "the default resource")
      .with("device", state.info().spec);
}

Failure no_host_memory() noexcept {
  return Failure(ErrorCode::out_of_memory,
                 "the host could not allocate what {what} needs. Free host memory.")
      .with("what", "a default resource");
}

class DefaultSlot final : public Companion {
 public:
  explicit DefaultSlot(bool has_handles) noexcept : has_handles_(has_handles) {}

  [[nodiscard]] Resource* current() const noexcept {
    return current_.load(std::memory_order_acquire);
  }

  [[nodiscard]] bool has_handles() noexcept {
    const std::lock_guard lock(mutex_);
    return has_handles_;
  }

  [[nodiscard]] Result<ResourceHandle> get(DeviceState& state) {
    // Held while one is made: those who come meanwhile want the same one.
    const std::lock_guard lock(mutex_);
    if (is_shut_down_) return shut_down(state);
    if (kept_) return kept_;
    ResourceHandle built_in = built_in_.lock();
    if (!built_in) {
      built_in = make_default(state.inner_handle());
      built_in_ = built_in;
    }
    keep(built_in);
    return built_in;
  }

  [[nodiscard]] Result<ResourceHandle> set(DeviceState& state, ResourceHandle resource) noexcept {
    const std::lock_guard lock(mutex_);
    if (is_shut_down_) return shut_down(state);
    if (resource && !has_handles_) return not_kept(state);
    ResourceHandle old = kept_;
    keep(std::move(resource));
    return old;
  }

  [[nodiscard]] ResourceHandle shut_down_now() noexcept {
    const std::lock_guard lock(mutex_);
    is_shut_down_ = true;
    ResourceHandle old = kept_;
    keep(nullptr);
    return old;
  }

  void let_go() noexcept override {
    // It ends after the lock is given up: what a resource does at its end is its own affair.
    ResourceHandle last;
    const std::lock_guard lock(mutex_);
    has_handles_ = false;
    last.swap(kept_);
    current_.store(nullptr, std::memory_order_release);
  }

 private:
  /// With the lock held. Nobody's share ends here: the caller has one of the old resource.
  void keep(ResourceHandle resource) noexcept {
    if (!has_handles_) return;
    current_.store(resource.get(), std::memory_order_release);
    kept_ = std::move(resource);
  }

  std::atomic<Resource*> current_ = nullptr;  // what is kept, for those who take no lock
  std::mutex mutex_;
  ResourceHandle kept_;               // guarded by mutex_, as all of these; null without handles
  std::weak_ptr<Resource> built_in_;  // the last that was made, which may be held by others
  bool has_handles_;
  bool is_shut_down_ = false;
};

DefaultSlot* find_slot(const DeviceState& state) noexcept {
  return static_cast<DefaultSlot*>(state.companion());
}

Result<DefaultSlot*> slot_of(const Device& device) {
  const std::shared_ptr<DeviceState>& state = DeviceState::of(device);
  if (!state) {
    return Failure(ErrorCode::invalid_device,
                   "{what} was asked of no device. Open one with open_device().")
        .with("spec", "")
        .with("what", "a default resource");
  }
  // Before any lock: in a forked child it may be held by a thread that does not exist there.
  if (Result<void> usable = state->check_process(); !usable) return usable.failure();
  if (DefaultSlot* const slot = find_slot(*state)) return slot;
  return static_cast<DefaultSlot*>(&state->make_companion<DefaultSlot>());
}

}  // namespace

Result<ResourceHandle> try_default_resource(const Device& device) noexcept try {
  const Result<DefaultSlot*> slot = slot_of(device);
  if (!slot) return slot.failure();
  return (*slot)->get(*DeviceState::of(device));
} catch (const Error& error) {
  return error.failure();
} catch (const std::bad_alloc&) {
  return no_host_memory();
}

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

ResourceHandle set_default_resource(const Device& device, ResourceHandle resource) try {
  if (device.is_open() && resource && resource->device() != device) {
    raise(Failure(ErrorCode::device_mismatch,
                  "a resource of '{a}' cannot be the default of '{b}'. Make one on that device.")
              .with("a", resource->device().spec())
              .with("b", device.spec()));
  }
  DefaultSlot* const slot = slot_of(device).value();
  return slot->set(*DeviceState::of(device), std::move(resource)).value();
} catch (const Error&) {
  throw;
} catch (const std::bad_alloc&) {
  raise(no_host_memory());
}

ResourceHandle shutdown_default_resource(const Device& device) try {
  return slot_of(device).value()->shut_down_now();
} catch (const Error&) {
  throw;
} catch (const std::bad_alloc&) {
  raise(no_host_memory());
}

}  // namespace tern
