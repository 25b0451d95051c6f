// A TrackingResource knows every live block: who asked for it, where, and how much it is.
//
// It is the outermost of a stack: it sees what the program asked for, and refuses a bad free before
// anything below hears of it. Per tag it knows what is live and what was at most; the tags' bytes
// add up to the total in every report, whatever other threads do. Reports are data, and text.
//
// Its books are host memory, taken before the upstream is asked: where there is none, the request
// is refused with out_of_memory and nothing has happened. Requests for nothing are counted only.
// Thread-safe; keeps its upstream alive.

#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tern/memory/wrapping_resource.hpp"

namespace tern {

struct TrackingOptions {
  /// Checks that a block the upstream grants overlaps no block that is live here. If it does, the
  /// failure callback gets a violation that names both ranges, the new block goes back, and the
  /// request is refused with the same violation. One ordered map more.
  bool check_overlap = false;
  /// Ends the process with the report at the first overlap, for a debugger or a core file.
  bool abort_on_overlap = false;
};

/// One live block.
struct LiveBlock {
  Block block = {};
  std::size_t requested_bytes = 0;
  Tag tag = {};
  CallSite site = {};
  StreamId stream = {};
  /// Counts the blocks in the order they were given.
  std::uint64_t order = 0;
};

/// What is live by one tag.
struct TagTotal {
  Tag tag = {};
  std::size_t live_bytes = 0;
  std::size_t live_blocks = 0;
  std::size_t peak_live_bytes = 0;
  std::uint64_t allocations = 0;
};

/// Everything live that one line of the program asked for with one tag.
struct Holder {
  Tag tag = {};
  CallSite site = {};
  std::size_t bytes = 0;
  std::size_t blocks = 0;
  /// The order of its oldest block.
  std::uint64_t oldest = 0;
};

/// How often each size was given, as it was asked for: bucket 0 has sizes up to 16, bucket i those
/// up to 16 << i, and the last everything above.
struct SizeHistogram {
  static constexpr std::size_t bucket_count = 32;
  std::array<std::uint64_t, bucket_count> counts = {};

  /// The largest size of a bucket; SIZE_MAX for the last.
  [[nodiscard]] static constexpr std::size_t bound_bytes(std::size_t bucket) noexcept {
    return bucket + 1 < bucket_count ? std::size_t{16} << bucket : SIZE_MAX;
  }
  [[nodiscard]] static std::size_t bucket_of(std::size_t bytes) noexcept;
  [[nodiscard]] std::uint64_t total() const noexcept;
  /// No more than so many of a hundred are larger than this: the bound of a bucket. 0 if empty.
  [[nodiscard]] std::size_t percentile_bytes(double percent) const noexcept;
};

class TERN_EXPORT TrackingResource final : public WrappingResource {
 public:
  /// Throws InvalidArgument, OutOfMemory.
  explicit TrackingResource(ResourceHandle upstream, const TrackingOptions& options = {});
  ~TrackingResource() override;

  [[nodiscard]] Result<Block> try_allocate(const Request& request) noexcept override;
  /// Mistakes are refused here; the upstream does not hear of them.
  [[nodiscard]] Result<void> try_deallocate(
      const Block& block, StreamRef stream,
      const CallSite& site = CallSite::here()) noexcept override;

  /// Oldest first. All reports throw OutOfMemory if the host has no room for them.
  [[nodiscard]] std::vector<LiveBlock> live_blocks() const;
  /// Of tags that were ever used, the largest first; of one moment.
  [[nodiscard]] std::vector<TagTotal> tag_totals() const;
  /// The largest first, at most so many.
  [[nodiscard]] std::vector<Holder> top_holders(std::size_t most = SIZE_MAX) const;
  [[nodiscard]] SizeHistogram histogram() const noexcept;

  /// What is live, by tag and call site; "no live blocks" if that is nothing. At the end of a
  /// program that is its leaks.
  [[nodiscard]] std::string leak_report() const;
  /// Statistics, tags and percentiles.
  [[nodiscard]] std::string text() const;

 private:
  struct Books;
  const bool abort_on_overlap_;
  const std::unique_ptr<Books> books_;
};

/// Counts the requests that a resource is asked for while it lives: refused ones and those for
/// nothing too, of all threads. `EXPECT_EQ(window.requests(), 0u)` is "no allocation here".
class RequestWindow {
 public:
  /// The resource must outlive the window.
  explicit RequestWindow(const Resource& resource) noexcept
      : resource_(resource), before_(resource.statistics().requests) {}
  [[nodiscard]] std::uint64_t requests() const noexcept {
    return resource_.statistics().requests - before_;
  }

 private:
  const Resource& resource_;
  const std::uint64_t before_;
};

}  // namespace tern
