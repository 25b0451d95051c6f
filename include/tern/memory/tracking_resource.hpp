// A TrackingResource records every live block: its tag, the line that allocated it, and its size.
//
//   auto tracked = std::make_shared<TrackingResource>(pool);
//   std::puts(tracked->leak_report().c_str());
//
// Put it outermost in a stack of wrappers: it then sees the program's own requests, and rejects a
// bad free before any resource below sees it. For each tag it keeps the live bytes and their
// high-water mark. In every report the bytes of the tags add up to the total, even while other
// threads allocate. Reports are available as data and as text.
//
// Bookkeeping uses host memory, which is allocated before the upstream is called. If there is none,
// the request fails with out_of_memory and changes nothing. Requests for 0 bytes are only counted.
// Thread-safe. Keeps its upstream alive.

#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tern/core/tag.hpp"
#include "tern/detail/core/visibility.hpp"
#include "tern/detail/memory/wrapping_resource.hpp"
#include "tern/device/device_info.hpp"
#include "tern/memory/resource.hpp"

namespace tern {

/// Options of a TrackingResource.
struct TrackingOptions {
  /// Check that no block from the upstream overlaps a live block. On an overlap, the failure
  /// callback gets a violation that names both ranges, the new block is freed, and the request
  /// fails with the same violation. Costs an update of an ordered map per call.
  bool check_overlap = false;
  /// Abort the process after the report of the first overlap, for a debugger or a core file.
  /// Implies check_overlap.
  bool abort_on_overlap = false;
};

/// One live block.
struct LiveBlock {
  Block block = {};                 // with the granted bytes
  std::size_t requested_bytes = 0;  // before rounding
  Tag tag = {};
  CallSite site = {};    // the line that allocated it
  StreamId stream = {};  // of the request
  /// Sequence number of the allocation.
  std::uint64_t order = 0;
};

/// The blocks of one tag.
struct TagTotal {
  Tag tag = {};
  std::size_t live_bytes = 0;  // granted and not freed
  std::size_t live_blocks = 0;
  std::size_t peak_live_bytes = 0;  // the high-water mark of live_bytes
  std::uint64_t allocations = 0;    // that succeeded, so far
};

/// Counts allocations by requested size. Bucket 0 counts sizes up to 16 bytes, bucket i sizes up to
/// 16 << i, and the last bucket all larger sizes.
struct SizeHistogram {
  static constexpr std::size_t bucket_count = 32;  // the number of buckets
  std::array<std::uint64_t, bucket_count> counts = {};

  /// The upper bound of a bucket; SIZE_MAX for the last.
  [[nodiscard]] static constexpr std::size_t bound_bytes(std::size_t bucket) noexcept {
    return bucket + 1 < bucket_count ? std::size_t{16} << bucket : SIZE_MAX;
  }
  /// Returns the bucket that counts this size.
  [[nodiscard]] static std::size_t bucket_of(std::size_t bytes) noexcept;
  /// Returns the number of allocations in all buckets.
  [[nodiscard]] std::uint64_t total() const noexcept;
  /// Returns the bound of the smallest bucket such that at least `percent` percent of the
  /// allocations are in this bucket or below. Returns 0 if there were none.
  [[nodiscard]] std::size_t percentile_bytes(double percent) const noexcept;
};

/// Records every live block of its upstream.
class TERN_EXPORT TrackingResource final : public WrappingResource {
 public:
  /// Throws InvalidArgument if `upstream` is null, and std::bad_alloc.
  explicit TrackingResource(ResourceHandle upstream, const TrackingOptions& options = {});
  ~TrackingResource() override;

  /// Allocates from the upstream and records the block.
  [[nodiscard]] Result<Block> try_allocate(const Request& request) noexcept override;
  /// Frees a recorded block. Rejects mistakes (use_after_free, device_mismatch, out_of_bounds)
  /// without calling the upstream.
  [[nodiscard]] Result<void> try_deallocate(
      const Block& block, StreamRef stream,
      const CallSite& site = CallSite::here()) noexcept override;

  /// Returns the live blocks, oldest first. All reports throw std::bad_alloc if the host has no
  /// memory.
  [[nodiscard]] std::vector<LiveBlock> live_blocks() const;
  /// Returns one consistent snapshot of all tags that were ever used, sorted by live bytes, largest
  /// first.
  [[nodiscard]] std::vector<TagTotal> tag_totals() const;
  /// Returns at most `most` holders, sorted by live bytes, largest first.
  [[nodiscard]] std::vector<Holder> top_holders(std::size_t max_holders = SIZE_MAX) const;
  /// Returns the counts of requested sizes since the resource was made.
  [[nodiscard]] SizeHistogram histogram() const noexcept;

  /// Returns the live blocks by tag and call site, or "no live blocks". At the end of a program
  /// these are its leaks.
  [[nodiscard]] std::string leak_report() const;
  /// Returns statistics, tags and size percentiles as text.
  [[nodiscard]] std::string text() const;

 private:
  struct Books;
  const bool abort_on_overlap_;
  const std::unique_ptr<Books> books_;
};

/// Counts the requests to a resource during its own lifetime, of all threads, including failed
/// requests and those for 0 bytes. `EXPECT_EQ(window.requests(), 0u)` asserts that nothing was
/// allocated.
class RequestWindow {
 public:
  /// Starts counting. The resource must outlive the window.
  explicit RequestWindow(const Resource& resource) noexcept
      : resource_(resource), before_(resource.statistics().requests) {}
  /// The number of requests since construction.
  [[nodiscard]] std::uint64_t requests() const noexcept {
    return resource_.statistics().requests - before_;
  }

 private:
  const Resource& resource_;
  const std::uint64_t before_;
};

// A MemoryReport summarizes the memory use of a resource and the activity of its device.
//
//   std::puts(memory_report(*resource).text().c_str());
//
// The report has live and peak bytes, hit rate, fragmentation, pending bytes, live bytes per tag,
// and the device's events, waits and launches. The bytes per tag always add up to `tagged_bytes`,
// even while other threads allocate, because the total is computed as their sum. Making a report
// visits every live block of the process, so it is slow if there are many.

/// A snapshot of one resource and its device.
struct MemoryReport {
  std::string resource;  // Resource::name()
  std::string device;    // the device's spec, such as "cuda:0"
  Statistics statistics = {};
  DeviceActivity activity = {};
  /// Live blocks of the resource by tag, largest first, and the sum of their bytes. The report does
  /// not know the peaks and the numbers of allocations, so these are 0.
  std::vector<TagTotal> tags;
  std::size_t tagged_bytes = 0;

  /// Returns the report as several lines of text. Throws std::bad_alloc.
  [[nodiscard]] std::string text() const;
};

/// Returns a report on `resource`. For a stack of wrappers, the tags are those of the blocks that
/// the program holds: the blocks of the outermost GuardResource if there is one, else the blocks of
/// the resource at the bottom. Throws std::bad_alloc.
[[nodiscard]] TERN_EXPORT MemoryReport memory_report(const Resource& resource);

}  // namespace tern
