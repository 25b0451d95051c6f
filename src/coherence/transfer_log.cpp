#include "coherence/transfer_log.hpp"

#include <algorithm>
#include <new>

namespace tern {

void TransferLog::add(const Transfer& transfer) noexcept {
  count([&](UnifiedStatistics& counts) { counts.add(transfer); });
  try {
    if (entries_.size() < max_entries) {
      entries_.reserve(max_entries);
      entries_.push_back(transfer);
    } else {
      entries_[next_] = transfer;
    }
    next_ = (next_ + 1) % max_entries;
  } catch (const std::bad_alloc&) {
    // The transfer is counted, but not remembered.
  }
}

std::vector<Transfer> TransferLog::last() const {
  std::vector<Transfer> all(entries_);
  // In a full list, the oldest entry is the one that is replaced next.
  if (all.size() == max_entries) {
    std::rotate(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(next_), all.end());
  }
  return all;
}

}  // namespace tern
