#include "tern/detail/trace/record.hpp"

#include <algorithm>
#include <limits>

namespace tern {
namespace {

bool is_well_formed(const Touch& touch) noexcept {
  return touch.kind <= TouchKind::subrelease &&
         touch.range.bytes <= std::numeric_limits<std::uint64_t>::max() - touch.range.offset;
}

}  // namespace

bool is_well_formed(const TraceRecord& record) noexcept {
  return record.kind <= RecordKind::lost_records && record.operation <= OperationKind::prefetch &&
         record.actor_kind <= ActorKind::default_stream && record.actor < max_actors &&
         record.host < max_actors && std::ranges::all_of(record.touches, [](const Touch& touch) {
           return is_well_formed(touch);
         });
}

}  // namespace tern
