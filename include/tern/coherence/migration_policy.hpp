// A MigrationPolicy says where pages of managed memory should be, and which places map them. It is
// a plain value that is made once and applied to any number of buffers with Hints::apply().
//
//   MigrationPolicy::prefer_device(gpu).accessed_by(Place::host())
//
// - none() is the driver's own policy: pages move to whichever processor touches them. It never
//   reaches a driver.
// - read_mostly() lets every reader have its own copy of a page.
// - prefer_*() names the place where pages should stay.
// - accessed_by() adds a place that keeps a mapping, so that its accesses do not fault.
//
// Drivers let read-mostly override a preferred place, and a preferred place override mappings;
// text() says so. A policy names its places itself and does not depend on the current device or
// stream. Places are checked when the policy is applied.

#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tern/core/place.hpp"
#include "tern/core/visibility.hpp"
#include "tern/device/backend.hpp"
#include "tern/device/device.hpp"

namespace tern {

/// Returns a name such as "set read-mostly" or "unset preferred location".
[[nodiscard]] TERN_EXPORT const char* name(Advice advice) noexcept;

/// One piece of advice, as the driver receives it. For advice without a place, `place` is the host
/// and has no meaning.
struct AdvicePair {
  Advice advice = Advice::set_read_mostly;
  Place place = {};

  friend constexpr bool operator==(const AdvicePair&, const AdvicePair&) noexcept = default;
};

class TERN_EXPORT MigrationPolicy {
 public:
  /// The driver's own policy: pages move to whichever processor touches them.
  MigrationPolicy() noexcept = default;
  [[nodiscard]] static MigrationPolicy none() noexcept { return {}; }
  [[nodiscard]] static MigrationPolicy read_mostly() noexcept;
  [[nodiscard]] static MigrationPolicy prefer_device(DeviceId device) noexcept;
  [[nodiscard]] static MigrationPolicy prefer_device(const Device& device) noexcept {
    return prefer_device(device.id());
  }
  [[nodiscard]] static MigrationPolicy prefer_host() noexcept;
  [[nodiscard]] static MigrationPolicy prefer_host_numa(std::uint32_t node) noexcept;
  /// Prefers the NUMA node of the thread that applies the policy.
  [[nodiscard]] static MigrationPolicy prefer_host_numa_current() noexcept;

  /// Returns this policy with one more place that keeps a mapping. Adding a place twice has no
  /// effect.
  [[nodiscard]] MigrationPolicy accessed_by(Place place) const;

  /// Returns whether the policy is the driver's own, so that applying it does nothing.
  [[nodiscard]] bool is_default() const noexcept;
  [[nodiscard]] bool is_read_mostly() const noexcept { return is_read_mostly_; }
  [[nodiscard]] std::optional<Place> preferred() const noexcept { return preferred_; }
  /// Returns the places that keep a mapping, sorted.
  [[nodiscard]] const std::vector<Place>& accessors() const noexcept { return accessors_; }
  /// Returns the advice that the driver receives, in this order. Empty for the default policy.
  [[nodiscard]] std::vector<AdvicePair> advice() const;

  /// Returns a text such as "Default" or "prefer device 2, accessed by host (overridden by prefer
  /// device 2)".
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
