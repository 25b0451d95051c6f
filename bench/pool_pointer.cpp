// Pairs through the C API, by a caller that has only the driver's handle of a stream and frees by
// the address alone, as a plug-in of another library does.

#include <fmt/format.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "bench/contestants.hpp"
#include "bench/measure.hpp"
#include "bench/slot_threads.hpp"
#include "tern/c/handle.hpp"
#include "tern/c/tern.h"
#include "tern/core/bytes.hpp"
#include "tern/memory/budget_resource.hpp"
#include "tern/memory/pointer_allocator.hpp"

namespace tern::bench {
namespace {

constexpr std::size_t block_bytes = 4 * kib, rounds = 256;
constexpr double goal_ns = 150;

struct Handle {
  explicit Handle(const ResourceHandle& resource) : handle(make_c_handle(resource)) {}
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  ~Handle() { tern_release_resource(handle); }
  tern_resource* handle;
};

void run(Context& context) {
  const Stage stage(context);
  const ResourceHandle pool =
      make_filled_pool(stage.device, fitting_bytes(context, stage.device, gib));
  const bool lends = stage.device.can(Capability::borrowed_streams);
  const StreamRef stream = lends ? StreamRef(stage.streams[0]) : stage.device.default_stream();
  void* const native = lends ? reinterpret_cast<void*>(stream.try_native().value().value) : nullptr;
  const auto limited =
      std::make_shared<BudgetResource>(pool, Budget::make("bench", BudgetLimit::unlimited()));
  const Handle bare(pool), charged(limited);
  const PointerAllocator allocator(pool);
  const auto time = [&](const auto& pair) {
    return median_ns(
        [&] {
          for (std::size_t i = 0; i < rounds; ++i) pair();
        },
        rounds, context.seconds_per_figure());
  };
  context.step("the pool");
  const double own = time([&] {
    const Block block = pool->try_allocate({.bytes = block_bytes, .stream = stream}).value();
    pool->try_deallocate(block, stream).value();
  });
  const auto add = [&](std::string name, const auto& pair, std::optional<double> goal) {
    context.step(name);
    Figure figure{.name = std::move(name),
                  .value = time(pair),
                  .unit = "ns",
                  .better = Better::lower,
                  .baseline_name = "pool, by block",
                  .baseline = own};
    figure.goal = goal;
    context.add(std::move(figure));
  };
  add(
      "free by address",
      [&] {
        PointerAllocator::try_free(
            allocator.try_allocate({.bytes = block_bytes, .stream = stream}).value(), stream)
            .value();
      },
      std::nullopt);
  const auto with = [&](const Handle& from, bool in_order) {
    return [&from, in_order, native] {
      void* address = nullptr;
      tern_allocate(from.handle, block_bytes, 0, native, &address);
      if (in_order) {
        tern_free_in_order(address);
      } else {
        tern_free(address, native);
      }
    };
  };
  add("C API, both with the handle", with(bare, false), std::nullopt);
  add("C API, free in order", with(bare, true), goal_ns);
  add("C API under a budget", with(charged, true), goal_ns);
  tern_set_plugin(TERN_OTHER, 63, charged.handle);
  add(
      "plug-in under a budget",
      [native] {
        void* address = nullptr;
        tern_plugin_allocate(TERN_OTHER, 63, block_bytes, native, &address);
        tern_free_in_order(address);
      },
      goal_ns);
  tern_set_plugin(TERN_OTHER, 63, nullptr);
}

const Registration registered({"pool.pointer", "pairs through the C API, freed by address", run});

}  // namespace
}  // namespace tern::bench
