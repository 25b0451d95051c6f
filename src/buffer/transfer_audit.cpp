#include "tern/buffer/transfer_audit.hpp"

#include <algorithm>
#include <array>

#include "buffer/transfer_counts.hpp"

namespace tern {

TransferCounts transfer_counts() noexcept { return transfer_counts_of_all(); }
TransferCounts transfer_counts(Tag tag) noexcept { return transfer_counts_of(tag); }

std::vector<std::pair<Tag, TransferCounts>> transfer_counts_by_tag() {
  std::array<Tag, max_counted_tags> tags;
  const std::size_t count = list_counted_tags(tags);
  std::vector<std::pair<Tag, TransferCounts>> all;
  all.reserve(count);
  for (std::size_t i = 0; i < count; ++i) all.push_back({tags[i], transfer_counts_of(tags[i])});
  return all;
}

TransferCounts transfer_counts_of_other_tags() noexcept { return transfer_counts_of_others(); }

TransferGateStatistics transfer_gate_statistics() noexcept {
  const TransferViolations all = transfer_violations();
  return {all.refused, all.counted, all.last};
}

TransferGate::TransferGate(Mode mode, CallSite site) noexcept {
  rule_.outer = transfer_rule();
  rule_.site = site;
  rule_.mode = mode;
  if (rule_.outer != nullptr && mode != Mode::allow) {
    rule_.mode = std::max(mode, rule_.outer->mode);
  }
  put_rule(&rule_);
}

TransferGate::~TransferGate() { put_rule(rule_.outer); }

}  // namespace tern
