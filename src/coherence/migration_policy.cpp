// MigrationPolicy (tern/coherence/hints.hpp): the advice a policy consists of, and the names of
// advice. Applied by Hints, in hints.cpp.

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "tern/coherence/hints.hpp"

namespace tern {

const char* name(Advice advice) noexcept {
  switch (advice) {
    case Advice::set_read_mostly:
      return "set read-mostly";
    case Advice::unset_read_mostly:
      return "unset read-mostly";
    case Advice::set_preferred_location:
      return "set preferred location";
    case Advice::unset_preferred_location:
      return "unset preferred location";
    case Advice::set_accessed_by:
      return "set accessed by";
    case Advice::unset_accessed_by:
      return "unset accessed by";
  }
  return "unknown";
}

MigrationPolicy MigrationPolicy::read_mostly() noexcept {
  MigrationPolicy policy;
  policy.is_read_mostly_ = true;
  return policy;
}

MigrationPolicy MigrationPolicy::prefer_device(DeviceId device) noexcept {
  MigrationPolicy policy;
  policy.preferred_ = Place::device(device);
  return policy;
}

MigrationPolicy MigrationPolicy::prefer_host() noexcept {
  MigrationPolicy policy;
  policy.preferred_ = Place::host();
  return policy;
}

MigrationPolicy MigrationPolicy::prefer_host_numa(std::uint32_t node) noexcept {
  MigrationPolicy policy;
  policy.preferred_ = Place::host_numa(node);
  return policy;
}

MigrationPolicy MigrationPolicy::prefer_host_numa_current() noexcept {
  MigrationPolicy policy;
  policy.preferred_ = Place::host_numa_current();
  return policy;
}

MigrationPolicy MigrationPolicy::accessed_by(Place place) const {
  MigrationPolicy policy = *this;
  const auto at = std::ranges::lower_bound(policy.accessors_, place);
  // Sorted, so that two policies with the same places are equal.
  if (at == policy.accessors_.end() || *at != place) policy.accessors_.insert(at, place);
  return policy;
}

bool MigrationPolicy::is_default() const noexcept { return *this == MigrationPolicy(); }

std::vector<std::pair<Advice, Place>> MigrationPolicy::advice() const {
  std::vector<std::pair<Advice, Place>> pairs;
  if (is_read_mostly_) pairs.push_back({Advice::set_read_mostly, Place::host()});
  if (preferred_) pairs.push_back({Advice::set_preferred_location, *preferred_});
  for (const Place place : accessors_) pairs.push_back({Advice::set_accessed_by, place});
  return pairs;
}

std::string MigrationPolicy::text() const {
  if (is_default()) return "Default";
  std::string text;
  const auto add = [&text](std::string_view part) {
    if (!text.empty()) text += ", ";
    text += part;
  };
  if (is_read_mostly_) add("read-mostly");
  if (preferred_) add(fmt::format("prefer {}", preferred_->text()));
  for (const Place place : accessors_) add(fmt::format("accessed by {}", place.text()));
  if (accessors_.empty()) return text;
  if (is_read_mostly_) return text + " (overridden by read-mostly)";
  if (preferred_) return text + fmt::format(" (overridden by prefer {})", preferred_->text());
  return text;
}

bool operator==(const MigrationPolicy& a, const MigrationPolicy& b) noexcept {
  return a.is_read_mostly_ == b.is_read_mostly_ && a.preferred_ == b.preferred_ &&
         a.accessors_ == b.accessors_;
}

}  // namespace tern

std::size_t std::hash<tern::MigrationPolicy>::operator()(
    const tern::MigrationPolicy& policy) const noexcept {
  const auto mix = [](std::size_t seed, std::size_t value) {
    // Places are small numbers, so each value is mixed into all bits before the next one is added.
    std::uint64_t mixed = (seed + value + 1) * 0x9E3779B97F4A7C15u;
    mixed = (mixed ^ (mixed >> 32)) * 0xD6E8FEB86659FD93u;
    return static_cast<std::size_t>(mixed ^ (mixed >> 32));
  };
  std::size_t seed = mix(0, policy.is_read_mostly() ? 1 : 0);
  seed = mix(seed, policy.preferred() ? std::hash<tern::Place>{}(*policy.preferred()) + 1 : 0);
  for (const tern::Place place : policy.accessors())
    seed = mix(seed, std::hash<tern::Place>{}(place));
  return seed;
}
