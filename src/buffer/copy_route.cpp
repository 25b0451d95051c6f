// plan_copy() chooses the route of a copy. CopyEngine (copy_engine.cpp) then follows it.

#include "buffer/copy_route.hpp"

namespace tern {
namespace {

/// Memory that only streams of its own device can use, and that peer copies can reach.
bool is_device_memory(const Storage& storage) noexcept {
  return storage.kind() == MemoryKind::device || storage.kind() == MemoryKind::mapped;
}

bool are_peers(const Storage& to, const Storage& from) noexcept {
  return is_device_memory(to) && is_device_memory(from) &&
         to.device().info().backend == from.device().info().backend &&
         to.device().can(Capability::peer_copies) && from.device().can(Capability::peer_copies);
}

}  // namespace

std::string_view name(CopyRoute route) noexcept {
  switch (route) {
    case CopyRoute::direct:
      return "direct";
    case CopyRoute::handed_over:
      return "handed_over";
    case CopyRoute::peer:
      return "peer";
    case CopyRoute::staged:
      return "staged";
    case CopyRoute::from_file:
      return "from_file";
    case CopyRoute::to_file:
      return "to_file";
  }
  return "unknown";
}

Result<void> check_stream_of(const Storage& storage, StreamRef stream, CallSite site) noexcept {
  if (stream.device_id() == storage.device().id()) return {};
  return Failure(ErrorCode::device_mismatch,
                 "memory on '{a}' cannot be copied by a stream of '{b}'. Use a stream of '{a}'.",
                 site)
      .with("a", storage.device().spec())
      .with("b", stream.is_usable() ? std::string_view(stream.device().spec()) : "no device");
}

bool is_host_memory(const Storage& storage) noexcept {
  switch (storage.kind()) {
    case MemoryKind::host:
    case MemoryKind::pinned:
    case MemoryKind::registered:
      return true;
    case MemoryKind::managed:
      return storage.device().info().is_host;
    case MemoryKind::file:
    case MemoryKind::device:
    case MemoryKind::mapped:
      return false;
  }
  return false;
}

bool reaches(DeviceId device, const Storage& storage) noexcept {
  if (storage.kind() == MemoryKind::file) return false;
  return is_host_memory(storage) || storage.device().id() == device;
}

std::optional<CopyPlan> plan_copy(const Storage& to, const Storage& from,
                                  DeviceId device) noexcept {
  const DeviceId there = to.device().id(), here = from.device().id();
  const bool is_party = device == there || device == here;
  if (from.kind() == MemoryKind::file) {
    if (!reaches(device, to) && !is_party) return std::nullopt;
    return CopyPlan{CopyRoute::from_file, nullptr};
  }
  if (to.kind() == MemoryKind::file) {
    if (!reaches(device, from) && !is_party) return std::nullopt;
    return CopyPlan{CopyRoute::to_file, nullptr};
  }
  if (reaches(device, to) && reaches(device, from)) return CopyPlan{CopyRoute::direct, nullptr};
  if (!is_party) return std::nullopt;
  if (reaches(there, from)) return CopyPlan{CopyRoute::handed_over, &to.device()};
  if (reaches(here, to)) return CopyPlan{CopyRoute::handed_over, &from.device()};
  if (are_peers(to, from)) return CopyPlan{CopyRoute::peer, &to.device()};
  return CopyPlan{CopyRoute::staged, nullptr};
}

std::byte* address_for(const Storage& storage, DeviceId device) noexcept {
  const Result<StorageOrigin::Memory> memory = storage.try_memory();
  if (!memory) return nullptr;
  // Registered host memory may have a different address on its device.
  const bool is_own = storage.device().id() == device;
  void* const first = is_own ? memory->device_address : memory->host_address;
  void* const second = is_own ? memory->host_address : memory->device_address;
  return static_cast<std::byte*>(first != nullptr ? first : second);
}

Result<void> note_foreign_use(const Storage& storage, StreamRef stream, Access access,
                              std::size_t offset, std::size_t bytes, CallSite site) noexcept {
  const Device& owner = storage.device();
  if (owner.id() == stream.device_id() || !owner.info().wants_notes) return {};
  if (stream.device().info().backend == owner.info().backend) return {};
  return owner.try_note_host_access(address_for(storage, stream.device_id()) + offset, bytes,
                                    access, site);
}

}  // namespace tern
