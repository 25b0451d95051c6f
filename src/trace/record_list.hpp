// A RecordList stores trace records together with copies of their names and touches.
//
// The stored records are valid until the list is cleared or destroyed. Adding records keeps earlier
// names and touches in place, but may invalidate the span that records() returned. The strings of
// call sites are not copied and must outlive the list. A list can be moved, but not copied.
// Thread-compatible.

#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "tern/detail/core/visibility.hpp"
#include "tern/detail/trace/record.hpp"

namespace tern {

class TERN_EXPORT RecordList {
 public:
  RecordList() = default;
  RecordList(RecordList&&) noexcept = default;
  RecordList& operator=(RecordList&&) noexcept = default;
  ~RecordList() = default;

  /// Appends a record and copies its name and touches. Throws std::bad_alloc.
  void add(const TraceRecord& record);
  /// Removes all records and frees their names and touches.
  void clear() noexcept;

  /// Returns all records in the order in which they were added.
  [[nodiscard]] std::span<const TraceRecord> records() const noexcept { return records_; }
  [[nodiscard]] std::size_t size() const noexcept { return records_.size(); }
  [[nodiscard]] bool empty() const noexcept { return records_.empty(); }

 private:
  std::vector<TraceRecord> records_;
  // The names and touches that the records refer to. Elements of these containers stay in place
  // when the containers grow and when the list is moved.
  std::deque<std::vector<Touch>> touches_;
  std::set<std::string, std::less<>> names_;
};

}  // namespace tern
