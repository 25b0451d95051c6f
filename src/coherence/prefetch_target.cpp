#include "tern/detail/coherence/prefetch_target.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <new>
#include <utility>

#include "coherence/hint_checks.hpp"
#include "core/no_host_memory.hpp"
#include "device/device_state.hpp"
#include "tern/detail/coherence/raw_unified.hpp"

namespace tern {
namespace {

/// Managed memory, which the driver moves by pages.
class ManagedTarget final : public PrefetchTarget {
 public:
  explicit ManagedTarget(Buffer whole) noexcept : whole_(std::move(whole)) {}

  const void* identity() const noexcept override { return whole_.storage().get(); }
  std::size_t bytes() const noexcept override { return whole_.size_bytes(); }
  const Device& device() const noexcept override { return whole_.device(); }
  std::string text() const override { return fmt::format("buffer {}", whole_.id().value); }
  const Buffer* managed() const noexcept override { return &whole_; }

  Result<void> check(Place place, CallSite site) const noexcept override {
    if (Result<void> there = check_page_place(place, site); !there) return there;
    if (place.is_host()) return {};
    const DeviceScope target(place.device_id());
    if (!target || target->info().backend == device().info().backend) return {};
    return Failure(ErrorCode::device_mismatch,
                   "managed memory of '{a}' cannot be prefetched to '{b}', a device of another "
                   "backend. Choose a device of the same backend, or the host.",
                   site)
        .with("a", device().spec())
        .with("b", target->info().spec);
  }

  Result<HintReport> try_prefetch(HintRange range, Place place, StreamRef stream,
                                  HintOptions options, CallSite site) const noexcept override {
    const Result<Hints> hints = Hints::try_make(whole_, options, site);
    if (!hints) return hints.failure();
    return hints->try_prefetch(place, stream, range, site);
  }

 private:
  const Buffer whole_;
};

/// A unified buffer, whose bytes move by copies.
class UnifiedTarget final : public PrefetchTarget {
 public:
  explicit UnifiedTarget(RawUnified whole) noexcept : whole_(std::move(whole)) {}

  const void* identity() const noexcept override { return whole_.launch_memory(); }
  std::size_t bytes() const noexcept override { return whole_.size_bytes(); }
  const Device& device() const noexcept override { return whole_.device(); }
  std::string text() const override {
    return fmt::format("unified buffer '{}'", whole_.tag().name());
  }

  Result<void> check(Place place, CallSite site) const noexcept override {
    if (place.is_host() || DeviceScope(place.device_id())) return {};
    return Failure(ErrorCode::invalid_device,
                   "{spec} is not open, so no bytes can be copied to it. Open the device first.",
                   site)
        .with("spec", place.text());
  }

  Result<HintReport> try_prefetch(HintRange range, Place place, StreamRef stream, HintOptions,
                                  CallSite site) const noexcept override {
    // The buffer may have been resized to a smaller size.
    const Result<RawUnified> part = whole_.try_slice(range.offset_bytes, range.bytes, site);
    if (!part) return part.failure();
    const UnifiedStatistics before = whole_.statistics();
    if (Result<void> queued = part->try_prefetch_to(place, stream, site); !queued) {
      return queued.failure();
    }
    // Includes prefetches of the same buffer by other threads meanwhile, so the number is exact
    // only if one plan runs at a time.
    const UnifiedStatistics after = whole_.statistics();
    const std::uint64_t brought =
        after.of(TransferReason::prefetch).bytes - before.of(TransferReason::prefetch).bytes;
    const std::uint64_t elided = after.elided.bytes - before.elided.bytes;
    const std::size_t moved = brought - std::min(brought, elided);
    return HintReport{.skipped = moved == 0 ? HintSkip::already_there : HintSkip::none,
                      .range = {range.offset_bytes, range.bytes},
                      .moved_bytes = moved};
  }

 private:
  const RawUnified whole_;
};

}  // namespace

PrefetchTarget::~PrefetchTarget() = default;

Result<std::shared_ptr<const PrefetchTarget>> try_managed_target(const Buffer& buffer,
                                                                 CallSite site) noexcept try {
  if (Result<void> managed = check_managed(buffer, site); !managed) return managed.failure();
  Result<Buffer> whole = Buffer::try_over(
      buffer.storage(), 0, Shape::flat(buffer.storage()->bytes()), DType::byte, site);
  if (!whole) return whole.failure();
  return std::shared_ptr<const PrefetchTarget>(std::make_shared<ManagedTarget>(*std::move(whole)));
} catch (const std::bad_alloc&) {
  return no_host_memory("a prefetch plan", site);
}

Result<std::shared_ptr<const PrefetchTarget>> try_unified_target(const RawUnified& view,
                                                                 CallSite site) noexcept try {
  if (!view) {
    return Failure(ErrorCode::not_allocated,
                   "the unified buffer to prefetch is empty: it is default-constructed or was "
                   "moved from. Make one first.",
                   site)
        .with("id", std::uint64_t{0});
  }
  return std::shared_ptr<const PrefetchTarget>(
      std::make_shared<UnifiedTarget>(view.whole_buffer()));
} catch (const std::bad_alloc&) {
  return no_host_memory("a prefetch plan", site);
}

}  // namespace tern
