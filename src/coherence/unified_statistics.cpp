#include "tern/coherence/unified_statistics.hpp"

#include "coherence/totals.hpp"

namespace tern {
namespace {

void count(CopyCount& total, const Transfer& transfer) noexcept {
  total.copies += transfer.runs;
  total.bytes += transfer.bytes;
}

}  // namespace

std::string_view name(TransferReason reason) noexcept {
  switch (reason) {
#define TERN_REASON(enumerator)    \
  case TransferReason::enumerator: \
    return #enumerator;
    TERN_FOR_EACH_TRANSFER_REASON(TERN_REASON)
#undef TERN_REASON
  }
  return "unknown";
}

void UnifiedStatistics::add(const Transfer& transfer) noexcept {
  count(by_reason[static_cast<std::size_t>(transfer.reason)], transfer);
  if (transfer.is_elided) {
    count(elided, transfer);
  } else if (transfer.to == Place::file()) {
    count(to_file, transfer);
  } else if (transfer.from == Place::file()) {
    count(from_file, transfer);
  } else if (transfer.to.is_host()) {
    count(to_host, transfer);
  } else {
    count(transfer.from.is_host() ? to_device : between_devices, transfer);
  }
}

UnifiedStatistics unified_totals() noexcept { return UnifiedTotals::instance().now(); }

}  // namespace tern
