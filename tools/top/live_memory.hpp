// LiveMemory computes the live memory of a running program from the events of its recording.
//
// Events may arrive a little out of order, because each thread records into slabs of its own: a
// free may come before its allocation, and a budget's older use after its newer one.

#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "trace/memory_trace.hpp"

namespace tern::tools {

class LiveMemory {
 public:
  struct Sum {
    std::uint64_t bytes = 0, blocks = 0;
  };
  /// The memory of a device, or the page-locked memory of the host that was allocated for it.
  struct Place {
    std::uint32_t device = 0;
    bool is_page_locked = false;

    Place(std::uint32_t number, bool page_locked = false) noexcept
        : device(number), is_page_locked(page_locked) {}
    friend auto operator<=>(const Place&, const Place&) = default;
  };
  struct Held {
    Sum live;
    std::uint64_t peak = 0, held = 0;
  };
  struct Budget {
    std::uint64_t used = 0, limit = 0;
    std::uint32_t path = 0;  // the definition of a text
    std::uint64_t time = 0;  // of the latest event
  };

  /// `names` has the definitions of the recording.
  void add(const trace::MemoryEvent& event, const trace::MemoryTrace& names);

  [[nodiscard]] std::uint64_t events() const noexcept { return events_; }
  [[nodiscard]] std::uint64_t refusals() const noexcept { return refusals_; }
  [[nodiscard]] std::uint64_t last_time() const noexcept { return last_time_; }
  [[nodiscard]] const std::map<Place, Held>& places() const noexcept { return places_; }
  /// By place, and tag or stream.
  using Sums = std::map<std::pair<Place, std::uint64_t>, Sum>;
  [[nodiscard]] const Sums& tags() const noexcept { return tags_; }
  /// By the stream of the allocation; 0 is the host.
  [[nodiscard]] const Sums& streams() const noexcept { return streams_; }
  /// Budgets that exist, by number.
  [[nodiscard]] const std::map<std::uint64_t, Budget>& budgets() const noexcept { return budgets_; }
  /// The definition of a text, or 0.
  [[nodiscard]] std::uint32_t name_of_stream(std::uint64_t stream) const;

 private:
  struct Block {
    std::uint64_t bytes = 0, stream = 0;
    Place place = 0;
    std::uint16_t tag = 0;
  };

  void allocate(const trace::MemoryEvent& event, Place place);
  void free(const trace::MemoryEvent& event);
  void note_budget(const trace::MemoryEvent& event);
  void count(const Block& block, bool is_allocated);

  std::unordered_map<std::uint64_t, Block> blocks_;
  std::unordered_set<std::uint64_t> early_frees_;  // blocks whose allocation has not arrived
  std::map<Place, Held> places_;
  struct HeldBy {
    Place place = 0;
    std::uint64_t bytes = 0;
  };
  std::unordered_map<std::uint32_t, HeldBy> held_;  // by resource
  Sums tags_, streams_;
  std::map<std::uint64_t, Budget> budgets_;
  std::unordered_set<std::uint64_t> ended_budgets_;
  std::unordered_map<std::uint64_t, std::uint32_t> stream_names_;
  std::uint64_t events_ = 0, refusals_ = 0, last_time_ = 0;
};

/// Writes the state as a table for people. `names` has the definitions of the recording.
[[nodiscard]] std::string live_text(const LiveMemory& memory, const trace::MemoryTrace& names);

}  // namespace tern::tools
