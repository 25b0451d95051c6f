// Begins and ends many exports together, of storages that the caller keeps alive. A table has
// hundreds of storages and one handle that keeps all of them. The global counters are updated once,
// in the destructor.

#pragma once

#include <cstddef>

#include "tern/detail/buffer/storage.hpp"

namespace tern {

/// For one thread and one scope.
class ExportBatch {
 public:
  ExportBatch() noexcept = default;
  ExportBatch(const ExportBatch&) = delete;
  ExportBatch& operator=(const ExportBatch&) = delete;
  ~ExportBatch();

  /// Begins an export. The caller must end the export, in this or a later batch. Fails with
  /// out_of_memory (of the host), and with access_conflict if the memory is paused.
  [[nodiscard]] Result<void> try_begin(Storage& storage, CallSite site) noexcept;
  /// Ends an export.
  void end(Storage& storage) noexcept;

 private:
  // Differences to the global counters. They may wrap below 0 if exports of other batches end here.
  std::size_t exports_ = 0, bytes_ = 0;
};

}  // namespace tern
