#include "coherence/transfer_log.hpp"

#include <algorithm>
#include <new>

#include "trace/recording.hpp"

namespace tern {

void TransferLog::add(const Transfer& transfer) noexcept {
  count([&](UnifiedStatistics& counts) { counts.add(transfer); });
  if (trace::is_recording() && !transfer.is_elided) {
    trace::record(trace::EventKind::move, {.bytes = transfer.bytes,
                                           .site = transfer.site,
                                           .detail = static_cast<std::uint8_t>(transfer.reason)});
  }
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
