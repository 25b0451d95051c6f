// A MigrationPolicy says where pages of managed memory should be, and who maps them: a plain value
// that is made once and applied to any number of buffers (Hints::apply).
//
//   MigrationPolicy::prefer_device(gpu).accessed_by(Place::host())
//
// Without one the driver moves pages to whoever touches them; that is none(), which never reaches a
// driver. read_mostly() lets every reader have a copy. prefer_*() names a home. accessed_by() on
// any of them keeps a place's mapping, so that it need not fault. Drivers let read-mostly override
// a preferred place, and that override mappings, which text() says. A policy carries its places:
// whichever device or stream is current plays no part. It is checked where it is applied.

#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tern/core/export.hpp"
#include "tern/core/place.hpp"
#include "tern/device/backend.hpp"
#include "tern/device/device.hpp"

namespace tern {

/// "set read-mostly", "unset preferred location", ...
[[nodiscard]] TERN_EXPORT const char* name(Advice advice) noexcept;

/// One advice as the driver is told it. The place of read-mostly means nothing and is the host.
struct AdvicePair {
  Advice advice = Advice::set_read_mostly;
  Place place = {};

  friend constexpr bool operator==(const AdvicePair&, const AdvicePair&) noexcept = default;
};

class TERN_EXPORT MigrationPolicy {
 public:
  /// The driver's own: pages go to whoever touches them.
  MigrationPolicy() noexcept = default;
  [[nodiscard]] static MigrationPolicy none() noexcept { return {}; }
  [[nodiscard]] static MigrationPolicy read_mostly() noexcept;
  [[nodiscard]] static MigrationPolicy prefer_device(DeviceId device) noexcept;
  [[nodiscard]] static MigrationPolicy prefer_device(const Device& device) noexcept {
    return prefer_device(device.id());
  }
  [[nodiscard]] static MigrationPolicy prefer_host() noexcept;
  [[nodiscard]] static MigrationPolicy prefer_host_numa(std::uint32_t node) noexcept;
  /// The node of whoever applies it.
  [[nodiscard]] static MigrationPolicy prefer_host_numa_current() noexcept;

  /// The same, and the place keeps a mapping. Twice is once.
  [[nodiscard]] MigrationPolicy accessed_by(Place place) const;

  [[nodiscard]] bool is_default() const noexcept;
  [[nodiscard]] bool is_read_mostly() const noexcept { return is_read_mostly_; }
  [[nodiscard]] std::optional<Place> preferred() const noexcept { return preferred_; }
  /// In the order of places.
  [[nodiscard]] const std::vector<Place>& accessors() const noexcept { return accessors_; }
  /// What the driver is told, in this order; nothing for the default.
  [[nodiscard]] std::vector<AdvicePair> advice() const;

  /// "Default"; "prefer device 2, accessed by host (overridden by prefer device 2)".
  [[nodiscard]] std::string text() const;

  friend bool operator==(const MigrationPolicy&, const MigrationPolicy&) noexcept = default;

 private:
  bool is_read_mostly_ = false;
  std::optional<Place> preferred_ = {};
  std::vector<Place> accessors_ = {};
};

}  // namespace tern

template <>
struct std::hash<tern::MigrationPolicy> {
  TERN_EXPORT std::size_t operator()(const tern::MigrationPolicy& policy) const noexcept;
};
