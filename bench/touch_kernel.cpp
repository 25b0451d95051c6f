#include "bench/touch_kernel.hpp"

#include <chrono>
#include <cstdint>
#include <string_view>

namespace tern::bench {
namespace {

/// A kernel that adds one to every word. The terminating zero is part of the image.
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

/// The same kernel in OpenCL C.
constexpr std::string_view touch_text = R"(
__kernel void tern_touch(__global uint* words, ulong count) {
  for (ulong i = get_global_id(0); i < count; i += get_global_size(0)) words[i] += 1;
}
)";

void touch(const KernelCall& call) {
  auto* const words = call.argument<std::uint32_t*>(0);
  for (std::uint64_t i = 0; i < call.argument<std::uint64_t>(1); ++i) ++words[i];
}

}  // namespace

TouchKernel::TouchKernel(const CopyStage& stage) : device_(stage.device()) {
  const auto* image = reinterpret_cast<const std::byte*>(touch_ptx.data());
  KernelSource source = {.entry = "tern_touch", .body = touch, .text = touch_text};
  if (device_.info().backend == "cuda") {
    // A simulated driver cannot run the image of a real one.
    if (stage.raw() == nullptr) return;
    source = {.entry = "tern_touch", .image = {image, touch_ptx.size() + 1}};
  }
  kernel_ = device_.try_load_kernel(source).value();
}

TouchKernel::~TouchKernel() {
  if (kernel_) device_.unload_kernel(*kernel_);
}

void TouchKernel::launch(StreamRef stream, std::byte* memory, std::size_t bytes) const {
  if (!kernel_) {
    stream.fill(reinterpret_cast<unsigned char*>(memory), bytes, 1);
    return;
  }
  const std::uint64_t count = bytes / sizeof(std::uint32_t);
  const KernelArgument arguments[] = {{&memory, sizeof memory, memory, bytes, Access::read_write},
                                      {&count, sizeof count}};
  stream.launch(*kernel_, {.grid = {1024, 1, 1}, .block = {256, 1, 1}}, arguments);
}

double seconds_of(const Body& body) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point start = Clock::now();
  body();
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace tern::bench
