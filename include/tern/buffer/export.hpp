// An Export keeps memory alive that was exported to code that Tern cannot observe, such as a tensor
// or a table of another library.
//
//   Export given = Export::try_begin(buffer.storage()).value();
//   // ... the other library uses the memory on any stream ...
//   given.end();
//
// The other code may use the memory on streams that Tern does not know, and it may release the
// memory before those streams are done. Therefore, while an Export lives, its storage stays alive,
// charged and at its address. After the last Export has ended, device memory is freed only after a
// wait for all work that the device had at that time. Any of these waits will do:
//
// - a Device::synchronize() that happens anyway;
// - try_reclaim_exported();
// - an allocation that would otherwise fail for lack of memory;
// - a new Export, when a thousand storages are kept;
// - the end of the last handle to the device.
//
// Until then the storage is one of the kept storages (deferred_frees()). Memory that was never
// exported costs nothing extra, and pageable host memory is freed without such a wait.
//
// An Export can be moved but not copied. It may end on any thread and never throws. Ending it takes
// no lock that Tern holds while it calls foreign code, so foreign code may end it.

#pragma once

#include <cstddef>
#include <utility>

#include "tern/buffer/storage.hpp"
#include "tern/core/call_site.hpp"
#include "tern/core/result.hpp"
#include "tern/core/visibility.hpp"
#include "tern/device/device.hpp"

namespace tern {

/// One export of a storage.
class TERN_EXPORT Export {
 public:
  /// Constructs an Export that exports nothing.
  Export() noexcept = default;
  Export(Export&&) noexcept = default;
  Export& operator=(Export&& other) noexcept {
    end();
    storage_ = std::move(other.storage_);
    return *this;
  }
  ~Export() { end(); }

  /// Begins an export. Fails with not_allocated for no storage, or with out_of_memory if the host
  /// has no memory.
  [[nodiscard]] static Result<Export> try_begin(const StorageHandle& storage,
                                                CallSite site = CallSite::here()) noexcept;

  [[nodiscard]] const StorageHandle& storage() const noexcept { return storage_; }
  /// Ends the export: the other code has released the memory. Does nothing the second time.
  void end() noexcept;

 private:
  StorageHandle storage_;
};

/// The memory that is exported at the moment.
struct ExportCount {
  std::size_t exports = 0;
  std::size_t bytes = 0;  // each storage counts once, with its size at its first export
};
/// Returns the number of open exports and the bytes of their storages.
[[nodiscard]] TERN_EXPORT ExportCount exported_memory() noexcept;

/// Waits for every device with kept memory whose exports have ended, and frees that memory. Returns
/// what is still kept. Fails with the error of the wait. Kept memory keeps its device open until it
/// is freed.
TERN_EXPORT Result<DeferredFreeCount> try_reclaim_exported() noexcept;
inline DeferredFreeCount reclaim_exported(CallSite site = CallSite::here()) {
  return try_reclaim_exported().value(site);
}

}  // namespace tern
