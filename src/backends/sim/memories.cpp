#include "backends/sim/memories.hpp"

namespace tern::sim {

std::optional<std::pair<std::uint32_t, std::uint64_t>> Memories::locate(
    const void* address) const noexcept {
  for (std::uint32_t i = 0; i < devices_.size(); ++i) {
    if (const auto offset = devices_[i]->memory->offset_of(address)) return std::pair(i, *offset);
  }
  return std::nullopt;
}

std::byte* Memories::reach(const void* address) const noexcept {
  if (const auto place = locate(address)) return of_device(place->first).alias_of(place->second);
  return static_cast<std::byte*>(const_cast<void*>(address));
}

void Memories::prepare(const void* address, std::size_t bytes) const {
  if (const auto place = locate(address)) of_device(place->first).prepare(place->second, bytes);
}

void Memories::forget(const void* address, std::size_t bytes) const {
  if (const auto place = locate(address)) of_device(place->first).forget(place->second, bytes);
}

std::uint64_t Memories::migrate(const void* address, std::size_t bytes, Place who,
                                bool writes) const {
  if (managed_.empty()) return 0;
  const auto offset = host_.managed_offset(address);
  return offset ? managed_.touch(*offset, bytes, who, writes) : 0;
}

void Memories::close_all() const {
  for (const std::unique_ptr<SimDevice>& device : devices_) {
    AliasMemory& memory = *device->memory;
    memory.close_pages(0, memory.bytes() + memory.window_bytes());
  }
}

}  // namespace tern::sim
