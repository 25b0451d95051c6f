// TransferLog counts the transfers of one unified buffer, and remembers the last 64 of them.
//
// Each transfer is also added to the totals of the process, which have a lock of their own. Not
// synchronized: UnifiedCore::mutex_ guards it.

#pragma once

#include <cstddef>
#include <vector>

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
  /// The counts of transfers, and the other counts of the buffer.
  [[nodiscard]] const UnifiedStatistics& statistics() const noexcept { return statistics_; }
  [[nodiscard]] UnifiedStatistics& statistics() noexcept { return statistics_; }

 private:
  UnifiedStatistics statistics_;
  std::vector<Transfer> entries_;
  std::size_t next_ = 0;  // the entry that the next transfer replaces in a full list
};

}  // namespace tern
