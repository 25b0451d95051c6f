// A PausableResource allocates device memory whose pages can leave the device and come back, while
// its addresses stay.
//
//   auto weights = std::make_shared<PausableResource>(device);
//   Array<float> layer = Array<float>::zeros(device, count, {.resource = weights, .tag = "layer"});
//   weights->pause("layer");            // the bytes go to pinned memory, behind all uses so far
//   ... other memory uses the device ...
//   weights->resume("layer", stream);   // the same bytes at the same addresses
//
// Pausing does not wait. Work that was submitted before the pause still uses the memory: the copy
// of the bytes is ordered after it. The pages are freed once the copy is done, by the next call of
// this resource, reclaim(), or wait(). The budget is charged for pages only, so its charge ends
// with them.
//
// While memory is paused, every use of it that begins fails with access_conflict, which names the
// tag: leases, copies, kernels, launches of graphs, recorders and exports. Code that uses addresses
// without declaring it to Tern must not use them. A simulated device reports such uses, and pages
// that leave while they are used.
//
// Resuming is all or nothing. If the device or the budget has too little memory, or if the kept
// bytes have changed, the call fails, and everything that it was to resume stays paused. Pointers
// and captured graphs are valid again afterwards. Later uses of buffers are ordered after the
// copies; for other code, `stream` is.
//
// Each block uses whole pages (DeviceInfo::page_bytes, 2 MiB on GPUs) and costs several driver
// calls to allocate. For small blocks, put an ArenaResource around this resource. If the device is
// lost, paused bytes stay paused. Thread-safe; keeps its device open.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "tern/core/call_site.hpp"
#include "tern/core/result.hpp"
#include "tern/core/tag.hpp"
#include "tern/detail/buffer/storage.hpp"
#include "tern/detail/core/visibility.hpp"
#include "tern/device/device.hpp"
#include "tern/device/mark.hpp"
#include "tern/device/stream.hpp"
#include "tern/memory/budget.hpp"
#include "tern/memory/resource.hpp"

namespace tern {

/// Where the bytes of paused memory are.
enum class Keep : std::uint8_t {
  host,    // in pinned memory of the host
  disk,    // in a file
  nothing  // nowhere: after the resume, the memory is as if newly allocated
};
/// Returns "host", "disk" or "nothing".
[[nodiscard]] TERN_EXPORT std::string_view name(Keep keep) noexcept;

/// What a PausableResource is made with.
struct PausableOptions {
  /// The budget that is charged for pages on the device. Null charges nothing. A BudgetResource
  /// around the resource would charge paused memory, too.
  BudgetHandle budget = {};
  /// The resource of the memory for Keep::host. Null: the default resource for pinned memory.
  ResourceHandle host = {};
  /// The directory for Keep::disk. The files in it have no names.
  std::string directory = "/var/tmp";
  /// Compute checksums of kept bytes when memory is paused, and compare them when it is resumed.
  bool verify = true;
};

/// What a call pauses or resumes: the blocks with a tag, one block, or all blocks.
class TERN_EXPORT PauseTarget {
 public:
  /// The blocks that were allocated with the tag.
  PauseTarget(Tag tag) noexcept : by_(By::tag), tag_(tag) {}
  PauseTarget(const char* tag) noexcept : PauseTarget(Tag(tag)) {}
  PauseTarget(const std::string& tag) noexcept : PauseTarget(Tag(tag)) {}
  /// The block that contains the memory of the block.
  PauseTarget(const Block& block) noexcept : by_(By::address), address_(block.address) {}
  /// The block that contains the memory of a buffer or an array: its storage().
  PauseTarget(const StorageHandle& storage) noexcept
      : by_(By::address), address_(storage ? storage->first_byte() : nullptr) {}
  /// All blocks of the resource.
  [[nodiscard]] static PauseTarget everything() noexcept { return PauseTarget(); }

 private:
  friend class PausableResource;
  enum class By : std::uint8_t { tag, address, everything };
  PauseTarget() noexcept = default;

  By by_ = By::everything;
  Tag tag_ = {};
  const void* address_ = nullptr;
};

/// The sizes of a PausableResource at one moment, and its totals.
struct PauseStatistics {
  /// The addresses of all blocks.
  std::size_t reserved_bytes = 0;
  /// Pages that use memory of the device. The budget is charged for them.
  std::size_t resident_bytes = 0;
  /// Resident pages that are freed once the work before them is done.
  std::size_t leaving_bytes = 0;
  /// The blocks that are paused.
  std::size_t paused_bytes = 0;
  /// Bytes of paused blocks in host memory and in files.
  std::size_t host_bytes = 0;
  std::size_t disk_bytes = 0;
  /// Bytes that were paused and resumed so far.
  std::uint64_t total_paused_bytes = 0;
  std::uint64_t total_resumed_bytes = 0;
};

class TERN_EXPORT PausableResource final : public Resource {
 public:
  /// Throws InvalidDevice if the device is not open, Unsupported if it lacks
  /// Capability::virtual_memory, and DeviceMismatch for a budget of another device.
  explicit PausableResource(Device device, PausableOptions options = {});
  /// Frees everything. Waits for pages that are leaving, and for the device if blocks are left.
  ~PausableResource() override;

  [[nodiscard]] const char* name() const noexcept override { return "pausable"; }
  [[nodiscard]] const Device& device() const noexcept override;
  [[nodiscard]] ResourceTraits traits() const noexcept override;
  /// live_bytes includes paused blocks; reserved_bytes are the resident pages.
  [[nodiscard]] Statistics statistics() const noexcept override;
  /// Returns the sizes at this moment, and the totals.
  [[nodiscard]] PauseStatistics pause_statistics() const noexcept;

  /// Allocates a block of whole pages. If the device or the budget has too little memory, waits for
  /// pages that are leaving, unless the request has Wait::never.
  [[nodiscard]] Result<Block> try_allocate(const Request& request) noexcept override;
  [[nodiscard]] std::size_t good_size(const Request& request) const noexcept override;
  /// Frees a block, paused or not.
  [[nodiscard]] Result<void> try_deallocate(
      const Block& block, StreamRef stream,
      const CallSite& site = CallSite::here()) noexcept override;
  /// Retries failed frees, and calls reclaim().
  std::size_t trim(std::size_t keep_bytes) noexcept override;

  /// Pauses memory: copies its bytes behind all uses so far, and behind the work of `after`, then
  /// frees its pages. Returns the mark of the copy. Name `after` if work uses the memory without
  /// declaring it; the stream of the allocation is included.
  ///
  /// Fails with access_conflict if the memory is leased, exported, released to other code, or
  /// paused already; with not_found if there is no such block; with stream_misuse if a stream that
  /// used the memory is being captured; and with out_of_memory, out_of_budget and file if the bytes
  /// cannot be kept. A call that fails pauses nothing. If the disk fails later, the memory stays
  /// paused, its pages stay in place, and wait() returns the cause; resume() succeeds.
  Result<Mark> try_pause(const PauseTarget& what, Keep keep = Keep::host, StreamRef after = {},
                         CallSite site = CallSite::here()) noexcept;
  Mark pause(const PauseTarget& what, Keep keep = Keep::host, StreamRef after = {},
             CallSite site = CallSite::here()) {
    return try_pause(what, keep, after, site).value();
  }
  /// Resumes memory: maps pages at its addresses and copies the bytes back. Later work of `stream`
  /// is ordered after the copies. Returns their mark. Waits for pages of other blocks that are
  /// leaving, if it needs their memory; for the checksums of the kept bytes; and for the disk.
  ///
  /// Fails with access_conflict if the memory is not paused, with not_found if there is no such
  /// block, with out_of_memory and out_of_budget if the pages do not fit, with bad_format if the
  /// kept bytes have changed, and with file. A call that fails resumes nothing.
  Result<Mark> try_resume(const PauseTarget& what, StreamRef stream = {},
                          CallSite site = CallSite::here()) noexcept;
  Mark resume(const PauseTarget& what, StreamRef stream = {}, CallSite site = CallSite::here()) {
    return try_resume(what, stream, site).value();
  }

  /// Frees pages that are leaving and whose work is done. Returns the number of freed bytes. Never
  /// waits. Suits as a handler of a PressureResource.
  std::size_t reclaim() noexcept;
  /// Waits until the pages of all paused blocks are freed. Fails with file if bytes could not be
  /// written to the disk.
  Result<void> try_wait(CallSite site = CallSite::here()) noexcept;
  void wait(CallSite site = CallSite::here()) { try_wait(site).value(); }

 private:
  struct State;
  const std::unique_ptr<State> state_;
};

}  // namespace tern
