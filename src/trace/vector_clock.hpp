// A VectorClock holds, for each actor, the last operation of that actor that the owner of the clock
// is ordered after.

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace tern {

class VectorClock {
 public:
  [[nodiscard]] std::uint64_t at(std::size_t actor) const noexcept {
    return actor < known_.size() ? known_[actor] : 0;
  }

  void set(std::size_t actor, std::uint64_t sequence) {
    if (actor >= known_.size()) known_.resize(actor + 1, 0);
    known_[actor] = sequence;
  }

  /// Takes the component-wise maximum. Returns true if a component rose.
  bool join(const VectorClock& other) {
    if (other.known_.size() > known_.size()) known_.resize(other.known_.size(), 0);
    bool has_risen = false;
    for (std::size_t i = 0; i < other.known_.size(); ++i) {
      has_risen = has_risen || other.known_[i] > known_[i];
      known_[i] = std::max(known_[i], other.known_[i]);
    }
    return has_risen;
  }

  /// Returns the number of components stored.
  [[nodiscard]] std::size_t size() const noexcept { return known_.size(); }

 private:
  std::vector<std::uint64_t> known_;
};

}  // namespace tern
