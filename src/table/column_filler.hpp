// Makes a column in place, for importers that make many columns: a Column is large, and moving it
// costs more than its checks.

#pragma once

#include <cstddef>

#include "tern/table/table.hpp"

namespace tern {

class ColumnFiller {
 public:
  /// `column` must be default-constructed.
  explicit ColumnFiller(Column& column) noexcept : column_(column) {}

  /// The buffers, to be set before try_finish().
  [[nodiscard]] ColumnParts& parts() noexcept { return column_.parts_; }
  /// Checks everything that Column::try_over() checks and fails as it does. After a failure, the
  /// column must be destroyed. Throws std::bad_alloc if there is no memory for the type.
  [[nodiscard]] Result<void> try_finish(const LogicalType& type, std::size_t capacity,
                                        CallSite site) {
    column_.type_ = type;
    return column_.try_fill(capacity, site);
  }

 private:
  Column& column_;
};

}  // namespace tern
