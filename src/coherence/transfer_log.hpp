// TransferLog counts the transfers of one unified buffer, and remembers the last 64 of them.
//
// Each count is also added to the totals of the process, which have another lock. Not synchronized:
// UnifiedCore::mutex_ guards the log.

#pragma once

#include <cstddef>
#include <mutex>
#include <vector>

#include "coherence/totals.hpp"
#include "tern/coherence/unified_statistics.hpp"

namespace tern {

class TransferLog {
 public:
  /// The number of transfers that last() returns.
  static constexpr std::size_t max_entries = 64;

  /// If the host has no memory, the transfer is counted and not remembered.
  void add(const Transfer& transfer) noexcept;
  /// Returns the last transfers, oldest first. Throws std::bad_alloc.
  [[nodiscard]] std::vector<Transfer> last() const;
  /// Calls change(statistics) for the counts of the buffer and for the totals of the process.
  template <class Change>
  void count(Change change) noexcept {
    change(statistics_);
    UnifiedTotals& totals = UnifiedTotals::instance();
    const std::lock_guard lock(totals.mutex);
    change(totals.statistics);
  }
  /// The counts of transfers, and the other counts of the buffer.
  [[nodiscard]] const UnifiedStatistics& statistics() const noexcept { return statistics_; }

 private:
  UnifiedStatistics statistics_;
  std::vector<Transfer> entries_;
  std::size_t next_ = 0;  // the entry that the next transfer replaces in a full list
};

}  // namespace tern
