#include "bench/contestants.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "tern/backends/catalog.hpp"
#include "tern/core/bytes.hpp"

namespace tern::bench {
namespace {

/// Blocks without a table behind them: a generation that says "some block" and no more.
constexpr Generation some_block(0, 1);

class PlainResource : public Resource {
 public:
  explicit PlainResource(Device device) : device_(std::move(device)) {}

  [[nodiscard]] const Device& device() const noexcept override { return device_; }
  [[nodiscard]] ResourceTraits traits() const noexcept override { return {}; }
  [[nodiscard]] Statistics statistics() const noexcept override { return {}; }
  [[nodiscard]] std::size_t good_size(const Request& request) const noexcept override {
    return request.bytes;
  }

 private:
  const Device device_;
};

class MallocResource final : public PlainResource {
 public:
  using PlainResource::PlainResource;

  [[nodiscard]] const char* name() const noexcept override { return "malloc"; }
  [[nodiscard]] Result<Block> try_allocate(const Request& request) noexcept override {
    void* address = std::malloc(request.bytes);
    if (address == nullptr) return Failure(ErrorCode::out_of_memory);
    return Block{address, request.bytes, {}, some_block};
  }
  [[nodiscard]] Result<void> try_deallocate(const Block& block, StreamRef,
                                            const CallSite&) noexcept override {
    std::free(block.address);
    return {};
  }
};

class NullResource final : public PlainResource {
 public:
  using PlainResource::PlainResource;

  [[nodiscard]] const char* name() const noexcept override { return "null"; }
  [[nodiscard]] Result<Block> try_allocate(const Request& request) noexcept override {
    return Block{this, request.bytes, {}, some_block};
  }
  [[nodiscard]] Result<void> try_deallocate(const Block&, StreamRef,
                                            const CallSite&) noexcept override {
    return {};
  }
};

}  // namespace

std::shared_ptr<PoolResource> make_pool(const Device& device, const PoolOptions& options) {
  return std::make_shared<PoolResource>(device, options);
}

ResourceHandle make_malloc(const Device& device) {
  return std::make_shared<MallocResource>(device);
}

ResourceHandle make_null(const Device& device) { return std::make_shared<NullResource>(device); }

Stage::Stage(const Context& context) : device(open_device(context.device())) {
  for (std::size_t i = 0; i < stream_count; ++i) streams.emplace_back(device);
}

Contestants contestants(const ResourceHandle& pool) {
  return {pool, make_malloc(pool->device()), make_null(pool->device())};
}

Figure compare(std::string name, const Scores& scores, std::string unit, Better better) {
  return {.name = std::move(name),
          .value = scores[0],
          .unit = std::move(unit),
          .better = better,
          .baseline_name = "malloc",
          .baseline = scores[1],
          .others = {{"null", scores[2]}}};
}

std::size_t fitting_bytes(Context& context, const Device& device, std::size_t wanted_bytes) {
  // A quick run has no business to hold gigabytes.
  const std::size_t wanted = context.usual_or_quick(wanted_bytes, std::min(wanted_bytes, gib));
  const std::size_t total = device.info().total_bytes;
  const std::size_t most = total / 4 * 3 / gib * gib;
  if (wanted <= most) return wanted;
  context.note(fmt::format("with {} of memory instead of {}: {} has {}.", format_bytes(most),
                           format_bytes(wanted), device.spec(), format_bytes(total)));
  return most;
}

std::shared_ptr<PoolResource> make_filled_pool(const Device& device, std::size_t bytes) {
  // A pool that trims itself would not stay filled.
  return make_pool(device, {.limit_bytes = bytes, .initial_bytes = bytes, .trims_itself = false});
}

}  // namespace tern::bench
