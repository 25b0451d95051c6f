// deallocate() counts a free that failed and keeps it. retry_failed_frees() and
// retry_with_backoff() retry such frees.

#include "tern/memory/resource.hpp"

#include <algorithm>
#include <bit>
#include <mutex>
#include <new>
#include <utility>

#include "memory/failed_free_totals.hpp"
#include "tern/core/bytes.hpp"
#include "tern/memory/default_resource.hpp"

namespace tern {

constinit FailedFreeTotals failed_free_totals;

Resource::Resource() noexcept = default;

Resource::~Resource() = default;

std::size_t Resource::trim(std::size_t) noexcept {
  retry_failed_frees();
  return 0;
}

void Resource::deallocate(const Block& block, StreamRef stream, const CallSite& site) noexcept {
  const Result<void> freed = try_deallocate(block, stream, site);
  if (freed) return;
  // Retrying cannot fix a mistake of the caller. A failure of the driver may go away, and so may
  // that of a stream that is being captured into a graph. A destroyed stream is not a mistake.
  const ErrorCode code = freed.failure().code();
  const bool is_mistake = code == ErrorCode::use_after_free || code == ErrorCode::out_of_bounds ||
                          code == ErrorCode::device_mismatch;
  {
    const std::lock_guard lock(failed_mutex_);
    free_failure_ = freed.failure();
    ++failed_frees_;
    failed_free_totals.frees.fetch_add(1);
    if (!is_mistake) {
      failed_free_bytes_ += block.bytes;
      failed_free_totals.bytes.fetch_add(block.bytes);
      try {
        failed_.push_back({block, stream, site});
        allocations_to_skip_ = skipped_allocations_ = 0;
        has_failed_.store(true, std::memory_order_relaxed);
      } catch (const std::bad_alloc&) {
        // Without memory for the record, the free is not retried: the block stays live and charged.
      }
    }
  }
  // A GuardResource reports its own violations, which have an offset.
  const bool is_reported = code == ErrorCode::violation && freed.failure().number("offset");
  if (!is_reported) report_failure(freed.failure());
}

// Takes the list out, retries without the lock, and puts the remaining frees back. Frees that fail
// in the meantime are kept, too.
std::size_t Resource::retry_failed_frees() noexcept {
  if (!has_failed_.load(std::memory_order_relaxed)) return 0;
  std::vector<FailedFree> again;
  {
    const std::lock_guard lock(failed_mutex_);
    again = std::exchange(failed_, {});
  }
  std::size_t freed = 0;
  for (FailedFree& one : again) {
    if (!try_deallocate(one.block, one.stream, one.site)) continue;
    ++freed;
    const std::lock_guard lock(failed_mutex_);
    failed_free_bytes_ -= one.block.bytes;
    failed_free_totals.bytes.fetch_sub(one.block.bytes);
    one.block = {};
  }
  std::erase_if(again, [](const FailedFree& one) { return !one.block; });
  const std::lock_guard lock(failed_mutex_);
  if (failed_.empty()) {
    failed_ = std::move(again);
  } else {
    for (const FailedFree& one : again) {
      try {
        failed_.push_back(one);
      } catch (const std::bad_alloc&) {
        break;
      }
    }
  }
  has_failed_.store(!failed_.empty(), std::memory_order_relaxed);
  return freed;
}

// Exponential backoff: skips 1, 3, 7, ... up to 1024 allocations between retries that free nothing.
void Resource::retry_with_backoff() noexcept {
  constexpr std::uint32_t max_skipped = 1024;
  {
    const std::lock_guard lock(failed_mutex_);
    if (skipped_allocations_ < allocations_to_skip_) {
      ++skipped_allocations_;
      return;
    }
    skipped_allocations_ = 0;
    allocations_to_skip_ = std::min(2 * allocations_to_skip_ + 1, max_skipped);
  }
  if (retry_failed_frees() == 0) return;
  const std::lock_guard lock(failed_mutex_);
  allocations_to_skip_ = 0;
}

std::optional<Failure> Resource::take_free_failure() noexcept {
  const std::lock_guard lock(failed_mutex_);
  return std::exchange(free_failure_, std::nullopt);
}

std::uint64_t Resource::failed_frees() const noexcept {
  const std::lock_guard lock(failed_mutex_);
  return failed_frees_;
}

std::size_t Resource::failed_free_bytes() const noexcept {
  const std::lock_guard lock(failed_mutex_);
  return failed_free_bytes_;
}

Result<void> Resource::check(const Request& request) const noexcept {
  if (request.bytes > max_request_bytes) {
    return Failure(ErrorCode::size_overflow,
                   "{requested} exceeds the largest possible allocation, {max}. Check how the size "
                   "was computed.",
                   request.site)
        .with_bytes("requested", request.bytes)
        .with_bytes("max", max_request_bytes);
  }
  if (request.alignment != 0) {
    const std::size_t max_alignment = traits().max_alignment;
    if (!std::has_single_bit(request.alignment) || request.alignment > max_alignment) {
      return Failure(ErrorCode::misaligned,
                     "an alignment of {value} is not a power of two up to {max}, the largest that "
                     "{resource} supports.",
                     request.site)
          .with("value", request.alignment)
          .with("max", max_alignment)
          .with("resource", name());
    }
  }
  if (request.stream.id() && request.stream.device_id() != device().id()) {
    return Failure(ErrorCode::device_mismatch,
                   "memory of '{a}' was requested on a stream of {b}. Use a stream of '{a}'.",
                   request.site)
        .with("a", device().spec())
        .with("b", Place::device(request.stream.device_id()).text());
  }
  return {};
}

}  // namespace tern
