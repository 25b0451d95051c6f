// Allocates and frees page-locked memory: the segments of a pool, and the staging ring.

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "bench/copy_stage.hpp"

namespace tern::bench {
namespace {

/// At most 40 % of the driver's time.
constexpr double goal_ratio = 2.5;

using Clock = std::chrono::steady_clock;

double milliseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

void touch(std::byte* memory, std::size_t bytes, std::size_t thread_count) {
  std::vector<std::jthread> threads;
  const std::size_t share = bytes / thread_count;
  for (std::size_t i = 0; i < thread_count; ++i) {
    threads.emplace_back([=] { std::memset(memory + i * share, 0, share); });
  }
}

/// The other way to page-locked memory: map it, touch it with several threads, register it. Shows
/// what each step costs, because the registration alone may cost as much as cuMemHostAlloc.
void add_registration(Context& context, const RawDriver& raw, std::size_t bytes, bool is_huge) {
  constexpr std::size_t rounds = 3;
  const std::size_t threads = std::min<std::size_t>(std::thread::hardware_concurrency(), 16);
  std::array<std::vector<double>, 3> steps;
  for (std::size_t round = 0; round < rounds; ++round) {
    Clock::time_point start = Clock::now();
    void* const mapped =
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) throw std::bad_alloc();
    if (is_huge) madvise(mapped, bytes, MADV_HUGEPAGE);
    touch(static_cast<std::byte*>(mapped), bytes, threads);
    steps[0].push_back(milliseconds_since(start));
    start = Clock::now();
    RawDriver::check(raw.calls().cuMemHostRegister(mapped, bytes, cuda::host_register_portable),
                     "cuMemHostRegister");
    steps[1].push_back(milliseconds_since(start));
    start = Clock::now();
    RawDriver::check(raw.calls().cuMemHostUnregister(mapped), "cuMemHostUnregister");
    munmap(mapped, bytes);
    steps[2].push_back(milliseconds_since(start));
  }
  const char* const pages = is_huge ? "huge pages" : "pages of 4 KiB";
  const std::array<std::string, 3> names = {
      fmt::format("{}, {}: touched by {} threads", format_bytes(bytes), pages, threads),
      fmt::format("{}, {}: registered", format_bytes(bytes), pages),
      fmt::format("{}, {}: unregistered and unmapped", format_bytes(bytes), pages)};
  for (std::size_t i = 0; i < names.size(); ++i) {
    context.add({.name = names[i],
                 .value = median(std::move(steps[i])),
                 .unit = "ms",
                 .better = Better::lower});
  }
}

void run(Context& context) {
  const CopyStage stage(context);
  for (const std::size_t bytes : {2 * mib, 512 * mib}) {
    if (context.is_quick() && bytes > 2 * mib) break;
    context.step(format_bytes(bytes));
    const RawDriver* raw = stage.raw();
    const std::vector<double> seconds = median_seconds(
        {[&] { stage.device().release(stage.device().allocate(MemoryKind::pinned, bytes)); },
         [&] {
           if (raw == nullptr) {
             const HeapMemory touched = heap_memory(bytes, 1);
             // The volatile read keeps the compiler from removing the allocation.
             static_cast<void>(*static_cast<volatile std::byte*>(touched.get()));
             return;
           }
           void* memory = nullptr;
           RawDriver::check(raw->calls().cuMemHostAlloc(&memory, bytes, cuda::host_alloc_portable),
                            "cuMemHostAlloc");
           RawDriver::check(raw->calls().cuMemFreeHost(memory), "cuMemFreeHost");
         }},
        context.seconds_per_figure());
    Figure figure = {
        .name = fmt::format("{} allocated and released", format_bytes(bytes)),
        .value = seconds[0] * 1e3,
        .unit = "ms",
        .better = Better::lower,
        .baseline_name = raw != nullptr ? "cuMemHostAlloc" : "malloc, all pages written",
        .baseline = seconds[1] * 1e3};
    if (raw != nullptr && bytes == 512 * mib) figure.goal_ratio = goal_ratio;
    context.add(std::move(figure));
    if (raw == nullptr || context.is_quick() || bytes < 512 * mib) continue;
    for (const bool is_huge : {false, true}) add_registration(context, *raw, bytes, is_huge);
  }
}

const Registration registered({"copy.slab", "page-locked memory made and given back", run});

}  // namespace
}  // namespace tern::bench
