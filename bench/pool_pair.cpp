// Allocates and frees one block repeatedly: the fast path of the pool.

#include <fmt/format.h>

#include <memory>
#include <string>
#include <utility>

#include "bench/instruction_count.hpp"
#include "bench/pair_timing.hpp"
#include "tern/core/bytes.hpp"

namespace tern::bench {
namespace {

constexpr double goal_ns = 30;

/// A pool for callers that have only the driver's handle of a stream. Every call looks up the
/// stream of the handle.
class ByHandle final : public Resource {
 public:
  ByHandle(ResourceHandle pool, NativeStream handle) : pool_(std::move(pool)), handle_(handle) {}

  [[nodiscard]] const char* name() const noexcept override { return "by handle"; }
  [[nodiscard]] const Device& device() const noexcept override { return pool_->device(); }
  [[nodiscard]] ResourceTraits traits() const noexcept override { return pool_->traits(); }
  [[nodiscard]] Statistics statistics() const noexcept override { return pool_->statistics(); }
  [[nodiscard]] std::size_t good_size(const Request& request) const noexcept override {
    return pool_->good_size(request);
  }
  [[nodiscard]] Result<Block> try_allocate(const Request& request) noexcept override {
    const Result<Stream> stream = Stream::try_borrow(device(), handle_);
    if (!stream) return stream.failure();
    Request on_it = request;
    on_it.stream = *stream;
    return pool_->try_allocate(on_it);
  }
  [[nodiscard]] Result<void> try_deallocate(const Block& block, StreamRef,
                                            const CallSite& site) noexcept override {
    const Result<Stream> stream = Stream::try_borrow(device(), handle_);
    if (!stream) return stream.failure();
    return pool_->try_deallocate(block, *stream, site);
  }

 private:
  const ResourceHandle pool_;
  const NativeStream handle_;
};

/// The same pairs, by the handle of the stream instead of the stream.
void add_by_handle(Context& context, const Stage& stage, const ResourceHandle& pool) {
  if (!stage.device.can(Capability::borrowed_streams)) return;
  const std::size_t bytes = 4 * kib;
  context.step("by handle");
  const NativeStream handle = stage.streams[0].try_native().value();
  // The caller borrows the stream for the whole time; each call borrows it once more, which is the
  // fast case.
  const Stream borrowed = Stream::borrow(stage.device, handle);
  const ResourceHandle by_handle = std::make_shared<ByHandle>(pool, handle);
  const Scores ns = pair_ns(context, {by_handle, pool}, borrowed, bytes, 7);
  context.add({.name = fmt::format("{}, by the driver's handle", format_bytes(bytes)),
               .value = ns[0],
               .unit = "ns",
               .better = Better::lower,
               .baseline_name = "by the stream",
               .baseline = ns[1]});
}

void run(Context& context) {
  const Stage stage(context);
  const std::size_t capacity = fitting_bytes(context, stage.device, 32 * gib);
  Contestants all = contestants(context, make_filled_pool(stage.device, capacity));
  if (ResourceHandle plain = make_driver_plain(context, stage.device)) {
    all.push_back(std::move(plain));
  }
  for (const std::size_t bytes : {std::size_t{256}, 4 * kib, 1 * mib, 64 * mib}) {
    const std::string size = format_bytes(bytes);
    context.step(size);
    for (const PairStyle style : {PairStyle::result, PairStyle::kept}) {
      const Scores ns = pair_ns(context, all, stage.streams[0], bytes, 7, style);
      const char* const how = style == PairStyle::kept ? ", kept in a struct" : "";
      Figure figure =
          compare(fmt::format("{}, allocate and free{}", size, how), ns, "ns", Better::lower);
      figure.goal = goal_ns;
      context.add(std::move(figure));
    }
    add_instructions(context, fmt::format("{}, allocate and free", size), [&] {
      const Result<Block> block =
          all.front()->try_allocate({.bytes = bytes, .stream = stage.streams[0]});
      if (block) static_cast<void>(all.front()->try_deallocate(*block, stage.streams[0]));
    });
  }
  add_by_handle(context, stage, all.front());
}

const Registration registered({"pool.pair", "allocate and free one block, by size", run});

}  // namespace
}  // namespace tern::bench
