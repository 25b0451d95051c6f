// The options of a unified buffer, of its leases and of its copies. All types here are plain
// values.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <type_traits>
#include <vector>

#include "tern/core/call_site.hpp"
#include "tern/core/tag.hpp"
#include "tern/device/device.hpp"
#include "tern/memory/resource.hpp"

namespace tern {

class SpillFile;

/// How long an access waits if it conflicts with an open lease, or if there is no memory for its
/// copy because other threads hold that memory.
class LeaseWait {
 public:
  /// Does not wait. The access fails immediately, with access_conflict or with the failure of the
  /// allocation.
  [[nodiscard]] static constexpr LeaseWait never() noexcept { return LeaseWait(0); }
  /// Waits for at most `time`, and then fails. An access that conflicts with a lease of its own
  /// thread fails immediately, because no other thread could close that lease.
  /// `time` is a duration of <chrono> that converts to nanoseconds without a loss, such as
  /// std::chrono::milliseconds.
  template <class Duration>
  [[nodiscard]] static constexpr LeaseWait up_to(Duration time) noexcept {
    using Period = typename Duration::period;
    static_assert(std::is_integral_v<typename Duration::rep> && 1'000'000'000 % Period::den == 0,
                  "give the time in nanoseconds or in a multiple of them");
    constexpr std::int64_t unit = Period::num * (1'000'000'000 / Period::den);
    return LeaseWait(time.count() < 0 ? 0 : time.count() * unit);
  }
  /// Waits until the access succeeds or can no longer succeed.
  [[nodiscard]] static constexpr LeaseWait forever() noexcept { return LeaseWait(-1); }

  /// is_never() and is_forever() return whether never() or forever() made this. up_to() with 0 or
  /// less is never().
  [[nodiscard]] constexpr bool is_never() const noexcept { return nanoseconds_ == 0; }
  [[nodiscard]] constexpr bool is_forever() const noexcept { return nanoseconds_ < 0; }
  /// Returns the time that up_to() was given.
  [[nodiscard]] constexpr std::int64_t nanoseconds() const noexcept { return nanoseconds_; }

 private:
  constexpr explicit LeaseWait(std::int64_t nanoseconds) noexcept : nanoseconds_(nanoseconds) {}
  std::int64_t nanoseconds_;
};

/// Whether the host copy is page-locked.
enum class Pinned : std::uint8_t {
  /// Page-locked from 64 KiB upwards if such memory can be allocated, else pageable.
  prefer,
  /// Page-locked, or the access fails as the allocation did. On the host device, where nothing is
  /// copied, the memory is pageable unless UnifiedOptions::resources has a resource of pinned
  /// memory. Any other device that uses the host's memory directly has no copy that could be
  /// page-locked; for such a device, creating the buffer fails with unsupported.
  required,
  never,
};

/// What happens to bytes that only the dropped copy has: `write_back` copies them to another place
/// first, `discard` forgets them.
enum class Drop : std::uint8_t { write_back, discard };

/// What a unified buffer is made with: its device, where its copies are allocated, and its checks.
struct UnifiedOptions {
  /// The device that is used where no stream is named. Other devices join when one of their streams
  /// first accesses the buffer.
  Device device = {};
  Tag tag = {};
  Pinned pinned = Pinned::prefer;
  /// Resources for the copies. A copy comes from the first resource of the list that provides the
  /// kind of memory it needs: device memory of the right device, pinned memory, or host memory
  /// (which a resource of the host device provides too). Without such a resource, a copy comes from
  /// the default resource of its device; pageable host memory comes from the heap.
  std::vector<ResourceHandle> resources = {};
  /// Where the host copy is written when its memory is evicted and no other place has its bytes.
  /// Without a spill file, such a host copy is never evicted.
  std::shared_ptr<SpillFile> spill = {};
  /// Two pieces that are copied together are coalesced if the gap between them is smaller than
  /// this. The bytes of the gap must be up to date at the source, and no lease may be open on them.
  std::size_t coalesce_gap_bytes = 128 * 1024;
  /// Writes 0xCB into bytes that are stale, never written, or about to be overwritten, so that a
  /// wrong read is visible. Also detects writes of the host without a lease: the next access to
  /// such bytes fails with violation. If unset, the check is on with TERN_CHECKED=1, or if
  /// TERN_CHECK has the word poison or checksum.
  std::optional<bool> checked = {};
  /// Compares all copies that should be equal before every read lease, to find writes on a device
  /// without a lease. The read fails with violation. Every read costs a copy.
  std::optional<bool> compare = {};
  /// Protects pages of the host copy: stale pages cannot be read, and pages without a write lease
  /// cannot be written. A forbidden access stops the program with a report. Up-to-date pages can be
  /// read without a lease. Every call that moves bytes waits until the copies are done. Only
  /// pageable memory that Tern allocates can be protected. Creating the buffer fails with
  /// invalid_argument for Pinned::required or a resource of host memory, and with unsupported for a
  /// device that shares the host's memory; TERN_CHECK leaves such buffers unguarded instead.
  /// Adopted memory is not protected.
  std::optional<bool> guard = {};
  CallSite site = CallSite::here();
};

}  // namespace tern
