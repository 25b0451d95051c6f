#include "coherence/hint_checks.hpp"

#include <unistd.h>

#include "device/device_state.hpp"
#include "tern/core/bytes.hpp"

namespace tern {

Result<void> check_managed(const Buffer& buffer, CallSite site) noexcept {
  if (buffer && buffer.kind() == MemoryKind::managed) return {};
  return Failure(ErrorCode::invalid_argument,
                 "hints apply to managed memory only, and not to {value} memory. Make the buffer "
                 "with MemoryKind::managed, or use a ManagedBuffer.",
                 site)
      .with("name", "buffer")
      .with("value", buffer ? name(buffer.kind()) : "no");
}

Result<void> check_page_place(Place place, CallSite site) noexcept {
  if (place.is_host()) return {};
  if (place.kind() == Place::Kind::device && DeviceScope(place.device_id())) return {};
  return Failure(ErrorCode::invalid_device,
                 "pages of managed memory cannot be at {spec} {number}: no such device is open. "
                 "Name the host, a NUMA node of it, or Device::place().",
                 site)
      .with("spec", place.kind() == Place::Kind::device ? "device" : "file")
      .with("number", place.index());
}

Result<void> check_hint_range(HintRange range, std::size_t extent, CallSite site) noexcept {
  if (is_within(range.offset_bytes, range.bytes, extent)) return {};
  return Failure(ErrorCode::invalid_view,
                 "a hint on {size} bytes at offset {offset} exceeds its memory, which has "
                 "{extent}. Choose a range inside the memory.",
                 site)
      .with("offset", range.offset_bytes)
      .with("size", range.bytes)
      .with("extent", extent);
}

Result<HintSkip> check_able(const Device& device, Capability capability, HintOptions options,
                            CallSite site) noexcept {
  const bool is_concurrent = device.can(Capability::concurrent_managed);
  if (is_concurrent && device.can(capability)) return HintSkip::none;
  const Capability lacking = is_concurrent ? capability : Capability::concurrent_managed;
  if (!options.strict) return is_concurrent ? HintSkip::not_supported : HintSkip::not_concurrent;
  return Failure(ErrorCode::unsupported,
                 "'{device}' lacks {what}, so the hint would have no effect. Turn "
                 "HintOptions::strict off to skip such hints.",
                 site)
      .with("what", name(lacking))
      .with("device", device.spec());
}

std::size_t hint_page_bytes() noexcept {
  static const auto bytes = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  return bytes;
}

}  // namespace tern
