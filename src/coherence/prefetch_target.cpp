#include "tern/coherence/prefetch_target.hpp"

#include <fmt/format.h>

#include <new>
#include <utility>

#include "coherence/hint_checks.hpp"
#include "core/no_host_memory.hpp"
#include "device/device_state.hpp"

namespace tern {
namespace {

class ManagedTarget final : public PrefetchTarget {
 public:
  explicit ManagedTarget(Buffer whole) noexcept : whole_(std::move(whole)) {}

  const void* identity() const noexcept override { return whole_.storage().get(); }
  std::size_t bytes() const noexcept override { return whole_.bytes(); }
  const Device& device() const noexcept override { return whole_.device(); }
  std::string text() const override { return fmt::format("buffer {}", whole_.id().value); }
  const Buffer* managed() const noexcept override { return &whole_; }

  Result<void> check(Place place, CallSite site) const noexcept override {
    if (Result<void> there = check_page_place(place, site); !there) return there;
    if (place.is_host()) return {};
    const DeviceVisit target(place.device_id());
    if (!target || target->info().backend == device().info().backend) return {};
    return Failure(ErrorCode::device_mismatch,
                   "managed memory of '{a}' cannot be brought to '{b}', which another backend "
                   "drives. Name a device of the same kind, or the host.",
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

}  // namespace tern
