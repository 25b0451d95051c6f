// A RecordList keeps trace records, with the names and touches they borrow.
//
// The records it gives out are valid until the list is cleared or ends; adding more does not
// disturb them, but moves the span that holds them. Strings of call sites are not copied: they
// outlive the list. It moves, and does not copy. Thread-compatible.

#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "tern/core/export.hpp"
#include "tern/trace/record.hpp"

namespace tern {

class TERN_EXPORT RecordList {
 public:
  RecordList() = default;
  RecordList(RecordList&&) noexcept = default;
  RecordList& operator=(RecordList&&) noexcept = default;
  ~RecordList() = default;

  void add(const TraceRecord& record);
  void clear() noexcept;

  [[nodiscard]] std::span<const TraceRecord> records() const noexcept { return records_; }
  [[nodiscard]] std::size_t size() const noexcept { return records_.size(); }
  [[nodiscard]] bool empty() const noexcept { return records_.empty(); }

 private:
  std::vector<TraceRecord> records_;
  // What the records refer to; neither moves when it grows, or when the list moves.
  std::deque<std::vector<Touch>> touches_;
  std::set<std::string, std::less<>> names_;
};

}  // namespace tern
