// The cost of building a large block from free pages.

#include <fmt/format.h>

#include <chrono>
#include <vector>

#include "bench/contestants.hpp"
#include "bench/measure.hpp"
#include "tern/core/bytes.hpp"

namespace tern::bench {
namespace {

using Clock = std::chrono::steady_clock;

double us_since(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

/// Moves one page at a time, without a pool: unmaps it, maps it elsewhere, and sets the access
/// rights.
double driver_us_per_page(const Device& device, std::size_t pages) {
  const std::size_t page = device.info().page_bytes;
  auto* base = static_cast<std::byte*>(device.try_reserve(2 * pages * page).value());
  std::vector<NativePages> handles;
  for (std::size_t i = 0; i < pages; ++i) {
    handles.push_back(device.try_create_pages(page).value());
    // Map only every second page, as in a pool whose free pages are scattered.
    device.try_map(base + 2 * i * page, handles[i]).value();
  }
  const Clock::time_point start = Clock::now();
  for (std::size_t i = 0; i < pages; ++i) {
    device.try_unmap(base + 2 * i * page, page).value();
    device.try_map(base + (2 * i + 1) * page, handles[i]).value();
    device.try_set_access(base + (2 * i + 1) * page, page, PageAccess::read_write).value();
  }
  const double us = us_since(start) / static_cast<double>(pages);
  for (std::size_t i = 0; i < pages; ++i) {
    device.try_unmap(base + (2 * i + 1) * page, page).value();
    device.try_release_pages(handles[i]).value();
  }
  device.try_unreserve(base, 2 * pages * page).value();
  return us;
}

void run(Context& context) {
  constexpr std::size_t block_bytes = 16 * mib;
  const Stage stage(context);
  const StreamRef stream = stage.streams[0];
  const std::size_t blocks = context.usual_or_quick<std::size_t>(128, 16);
  const std::size_t rounds = context.usual_or_quick<std::size_t>(7, 1);
  std::vector<double> per_page;
  std::uint64_t moved = 0;
  for (std::size_t round = 0; round < rounds; ++round) {
    context.step(fmt::format("round {} of {}", round + 1, rounds));
    const auto pool = make_filled_pool(stage.device, blocks * block_bytes);
    std::vector<Block> kept;
    std::vector<Block> freed;
    for (std::size_t i = 0; i < blocks; ++i) {
      (i % 2 == 0 ? kept : freed)
          .push_back(pool->allocate({.bytes = block_bytes, .stream = stream}));
    }
    for (const Block& block : freed) pool->try_deallocate(block, stream).value();
    stage.device.synchronize();
    static_cast<void>(pool->poll());
    const std::uint64_t before = pool->pool_statistics().pages_moved;
    const std::size_t large = freed.size() * block_bytes;
    const Clock::time_point start = Clock::now();
    kept.push_back(pool->allocate({.bytes = large, .stream = stream}));
    const double us = us_since(start);
    moved = pool->pool_statistics().pages_moved - before;
    if (moved > 0) per_page.push_back(us / static_cast<double>(moved));
    for (const Block& block : kept) pool->try_deallocate(block, stream).value();
    stage.device.synchronize();
  }
  if (per_page.empty()) {
    context.note("no page was moved: this pool does not hold its memory in pages.");
    return;
  }
  context.add({.name = fmt::format("a page, {} moved for {}", moved,
                                   format_bytes(blocks / 2 * block_bytes)),
               .value = median(per_page),
               .unit = "us",
               .better = Better::lower,
               .baseline_name = "unmap, map, access",
               .baseline = driver_us_per_page(stage.device, blocks * 4)});
}

const Registration registered({"pool.remap", "free pages put together for a large block", run});

}  // namespace
}  // namespace tern::bench
