#include "coherence/residents.hpp"

#include <map>
#include <utility>

#include "coherence/asked_eviction.hpp"
#include "memory/eviction_hook.hpp"

namespace tern {
namespace {

/// Never destroyed, because buffers may be destroyed after static objects.
struct Places {
  std::mutex mutex;
  std::map<Place, std::weak_ptr<Residents>> all;  // guarded by mutex
};

Places& places() {
  static Places& instance = *new Places;
  return instance;
}

}  // namespace

std::shared_ptr<Residents> Residents::of(Place place) {
  if (place.is_host()) place = Place::host();  // all NUMA nodes of the host count as one place
  Places& known = places();
  const std::lock_guard lock(known.mutex);
  if (const auto found = known.all.find(place); found != known.all.end()) {
    if (std::shared_ptr<Residents> there = found->second.lock()) return there;
  }
  // Devices are opened and closed, and their numbers are not reused, so old entries are removed.
  std::erase_if(known.all, [](const auto& one) { return one.second.expired(); });
  auto made = std::make_shared<Residents>();
  known.all[place] = made;
  eviction_hook.store(&evict_for_others);
  return made;
}

std::vector<std::shared_ptr<Residents>> Residents::all() {
  std::vector<std::shared_ptr<Residents>> found;
  Places& known = places();
  const std::lock_guard lock(known.mutex);
  for (const auto& [place, residents] : known.all) {
    if (std::shared_ptr<Residents> there = residents.lock()) found.push_back(std::move(there));
  }
  return found;
}

void Resident::enter() noexcept {
  const std::lock_guard lock(where_->mutex_);
  if (std::exchange(is_listed_, true)) return;
  touch();
  previous_ = nullptr;
  next_ = std::exchange(where_->first_, this);
  if (next_ != nullptr) next_->previous_ = this;
}

void Resident::leave() noexcept {
  const std::lock_guard lock(where_->mutex_);
  if (!std::exchange(is_listed_, false)) return;
  (previous_ != nullptr ? previous_->next_ : where_->first_) = next_;
  if (next_ != nullptr) next_->previous_ = previous_;
}

}  // namespace tern
