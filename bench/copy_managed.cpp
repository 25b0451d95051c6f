// Managed memory that the host has written and a kernel reads: brought ahead of its use, or page by
// page when the kernel gets there.

#include <fmt/format.h>

#include <chrono>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string_view>

#include "bench/copy_stage.hpp"

namespace tern::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double goal_ratio_of_demand = 5, goal_ratio_of_raw = 0.95;

/// Adds one to every word. The zero behind it belongs to the image.
constexpr std::string_view touch_ptx = R"(
.version 6.0
.target sm_60
.address_size 64
.visible .entry tern_touch(.param .u64 words, .param .u64 count)
{
  .reg .pred %p<2>;
  .reg .b32 %r<6>;
  .reg .b64 %rd<9>;
  ld.param.u64 %rd8, [words];
  ld.param.u64 %rd2, [count];
  cvta.to.global.u64 %rd1, %rd8;
  mov.u32 %r1, %ctaid.x;
  mov.u32 %r2, %ntid.x;
  mov.u32 %r3, %tid.x;
  mul.wide.u32 %rd3, %r1, %r2;
  cvt.u64.u32 %rd4, %r3;
  add.u64 %rd3, %rd3, %rd4;
  mov.u32 %r4, %nctaid.x;
  mul.wide.u32 %rd5, %r4, %r2;
again:
  setp.ge.u64 %p1, %rd3, %rd2;
  @%p1 bra done;
  shl.b64 %rd6, %rd3, 2;
  add.u64 %rd7, %rd1, %rd6;
  ld.global.u32 %r5, [%rd7];
  add.u32 %r5, %r5, 1;
  st.global.u32 [%rd7], %r5;
  add.u64 %rd3, %rd3, %rd5;
  bra again;
done:
  ret;
}
)";

void touch(const KernelCall& call) {
  auto* const words = call.argument<std::uint32_t*>(0);
  for (std::uint64_t i = 0; i < call.argument<std::uint64_t>(1); ++i) ++words[i];
}

class TouchKernel {
 public:
  explicit TouchKernel(const CopyStage& stage) : device_(stage.device()) {
    const auto* image = reinterpret_cast<const std::byte*>(touch_ptx.data());
    KernelSource source = {.entry = "tern_touch", .body = touch};
    if (device_.info().backend == "cuda") {
      // A simulated driver runs no image of a real one.
      if (stage.raw() == nullptr) return;
      source = {.entry = "tern_touch", .image = {image, touch_ptx.size() + 1}};
    }
    kernel_ = device_.try_load_kernel(source).value();
  }
  ~TouchKernel() {
    if (kernel_) device_.unload_kernel(*kernel_);
  }
  TouchKernel(const TouchKernel&) = delete;
  TouchKernel& operator=(const TouchKernel&) = delete;

  /// Uses all of the memory on the device: by the kernel, or by a fill where there is none.
  void launch(StreamRef stream, std::byte* memory, std::size_t bytes) const {
    if (!kernel_) {
      stream.fill(reinterpret_cast<unsigned char*>(memory), bytes, 1);
      return;
    }
    const std::uint64_t count = bytes / sizeof(std::uint32_t);
    const KernelArgument arguments[] = {{&memory, sizeof memory, memory, bytes, Access::read_write},
                                        {&count, sizeof count}};
    stream.launch(*kernel_, {.grid = {1024, 1, 1}, .block = {256, 1, 1}}, arguments);
  }

 private:
  const Device device_;
  std::optional<NativeKernel> kernel_;
};

double seconds_of(const Body& body) {
  const Clock::time_point start = Clock::now();
  body();
  return std::chrono::duration<double>(Clock::now() - start).count();
}

void raw_prefetch(const RawDriver& raw, const std::byte* memory, std::size_t bytes) {
  const cuda::DriverTable& calls = raw.calls();
  const cuda::CUresult result =
      calls.cuMemPrefetchAsync != nullptr
          ? calls.cuMemPrefetchAsync(RawDriver::address(memory), bytes,
                                     {cuda::CU_MEM_LOCATION_TYPE_DEVICE, raw.device()}, 0,
                                     raw.stream())
          : calls.cuMemPrefetchAsync_8000(RawDriver::address(memory), bytes, raw.device(),
                                          raw.stream());
  RawDriver::check(result, "cuMemPrefetchAsync");
  raw.synchronize();
}

void run(Context& context) {
  const CopyStage stage(context);
  const StreamRef stream = stage.stream();
  // More than a card has free of it can hang the card, so this stays small.
  const std::size_t bytes = context.usual_or_quick(256 * mib, 1 * mib);
  const std::size_t rounds = context.usual_or_quick<std::size_t>(7, 2);
  const DeviceMemory memory = stage.memory(MemoryKind::managed, bytes);
  const TouchKernel kernel(stage);
  const auto touch_on_device = [&] {
    kernel.launch(stream, memory.get(), bytes);
    stream.synchronize();
  };
  const auto touch_on_host = [&] { std::memset(memory.get(), 1, bytes); };
  const auto prefetch = [&] {
    stream.try_prefetch(memory.get(), bytes, stage.device().place()).value();
    stream.synchronize();
  };

  // The first launch of a kernel loads it, and the first touch makes the pages.
  touch_on_host();
  touch_on_device();
  std::vector<double> demand, ahead, resident, raw;
  for (std::size_t round = 0; round < rounds; ++round) {
    context.step(fmt::format("round {} of {}", round + 1, rounds));
    touch_on_host();
    demand.push_back(seconds_of(touch_on_device));
    touch_on_host();
    ahead.push_back(seconds_of(prefetch));
    resident.push_back(seconds_of(touch_on_device));
    if (stage.raw() == nullptr) continue;
    touch_on_host();
    raw.push_back(seconds_of([&] { raw_prefetch(*stage.raw(), memory.get(), bytes); }));
  }
  const auto rate = [&](const std::vector<double>& times) {
    return static_cast<double>(bytes) / median(times) / 1e9;
  };
  const std::string size = format_bytes(bytes);
  Figure beside_demand = {.name = fmt::format("{}, prefetch", size),
                          .value = rate(ahead),
                          .unit = "GB/s",
                          .baseline_name = "a kernel that faults",
                          .baseline = rate(demand),
                          .others = {{"a kernel on resident pages", rate(resident)}}};
  if (stage.raw() != nullptr) beside_demand.goal_ratio = goal_ratio_of_demand;
  context.add(std::move(beside_demand));
  if (stage.raw() == nullptr) return;
  context.add({.name = fmt::format("{}, prefetch", size),
               .value = rate(ahead),
               .unit = "GB/s",
               .baseline_name = "cuMemPrefetchAsync",
               .baseline = rate(raw),
               .goal_ratio = goal_ratio_of_raw});
}

const Registration registered({"copy.managed", "managed memory by prefetch and by page faults",
                               run});

}  // namespace
}  // namespace tern::bench
