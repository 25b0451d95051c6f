#include "trace/record_list.hpp"

namespace tern {

void RecordList::add(const TraceRecord& record) {
  TraceRecord kept = record;
  if (!record.name.empty()) {
    const auto found = names_.find(record.name);
    kept.name = found != names_.end() ? *found : *names_.emplace(record.name).first;
  }
  if (!record.touches.empty()) {
    kept.touches = touches_.emplace_back(record.touches.begin(), record.touches.end());
  }
  records_.push_back(kept);
}

void RecordList::clear() noexcept {
  records_.clear();
  touches_.clear();
  names_.clear();
}

}  // namespace tern
