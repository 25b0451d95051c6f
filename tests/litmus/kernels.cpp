#include "litmus/kernels.hpp"

#include <atomic>
#include <span>
#include <string_view>

namespace tern::test::litmus {
namespace {

using Word = std::uint32_t;

// Relaxed accesses, because programs with races run on real threads too.
void store_word(const KernelCall& call) {
  std::atomic_ref(*call.argument<Word*>(0))
      .store(call.argument<Word>(1), std::memory_order_relaxed);
}
void move_word(const KernelCall& call) {
  const Word word = std::atomic_ref(*call.argument<Word*>(1)).load(std::memory_order_relaxed);
  std::atomic_ref(*call.argument<Word*>(0)).store(word, std::memory_order_relaxed);
}
void add_word(const KernelCall& call) {
  const std::atomic_ref to(*call.argument<Word*>(0));
  to.store(to.load(std::memory_order_relaxed) + call.argument<Word>(1), std::memory_order_relaxed);
}
void turn_word(const KernelCall& call) {
  const std::atomic_ref to(*call.argument<Word*>(0));
  for (Word i = 0; i < call.argument<Word>(1); ++i) to.store(i, std::memory_order_relaxed);
}

constexpr std::string_view opencl_text = R"(
__kernel void litmus_store(__global volatile uint* to, uint value) { *to = value; }
__kernel void litmus_move(__global volatile uint* to, __global volatile uint* from) { *to = *from; }
__kernel void litmus_add(__global volatile uint* to, uint value) { *to = *to + value; }
__kernel void litmus_turn(__global volatile uint* to, uint turns) {
  for (uint i = 0; i < turns; ++i) *to = i;
}
)";

constexpr std::string_view ptx_text = R"(
.version 7.0
.target sm_52
.address_size 64

.visible .entry litmus_store(.param .u64 to, .param .u32 value)
{
  .reg .b64 %to;
  .reg .b32 %word;
  ld.param.u64 %to, [to];
  cvta.to.global.u64 %to, %to;
  ld.param.u32 %word, [value];
  st.volatile.global.u32 [%to], %word;
  ret;
}

.visible .entry litmus_move(.param .u64 to, .param .u64 from)
{
  .reg .b64 %to, %from;
  .reg .b32 %word;
  ld.param.u64 %to, [to];
  cvta.to.global.u64 %to, %to;
  ld.param.u64 %from, [from];
  cvta.to.global.u64 %from, %from;
  ld.volatile.global.u32 %word, [%from];
  st.volatile.global.u32 [%to], %word;
  ret;
}

.visible .entry litmus_add(.param .u64 to, .param .u32 value)
{
  .reg .b64 %to;
  .reg .b32 %word, %more;
  ld.param.u64 %to, [to];
  cvta.to.global.u64 %to, %to;
  ld.param.u32 %more, [value];
  ld.volatile.global.u32 %word, [%to];
  add.u32 %word, %word, %more;
  st.volatile.global.u32 [%to], %word;
  ret;
}

.visible .entry litmus_turn(.param .u64 to, .param .u32 turns)
{
  .reg .b64 %to;
  .reg .b32 %i, %turns;
  .reg .pred %goes_on;
  ld.param.u64 %to, [to];
  cvta.to.global.u64 %to, %to;
  ld.param.u32 %turns, [turns];
  mov.u32 %i, 0;
again:
  st.volatile.global.u32 [%to], %i;
  add.u32 %i, %i, 1;
  setp.lt.u32 %goes_on, %i, %turns;
  @%goes_on bra again;
  ret;
}
)";

/// Only what the backend runs: one that can compile text might try the text of another.
NativeKernel load(const Device& device, std::string_view entry, KernelBody body) {
  KernelSource source{.entry = entry};
  if (device.info().backend == "opencl") {
    source.text = opencl_text;
  } else if (device.info().backend == "cuda") {
    // With the zero at its end, which the driver looks for.
    source.image = std::as_bytes(std::span(ptx_text.data(), ptx_text.size() + 1));
  } else {
    source.body = body;
  }
  return device.try_load_kernel(source).value();
}

KernelArgument address(void* const& at, Access access) {
  return {&at, sizeof at, at, sizeof(Word), access};
}

}  // namespace

Kernels::Kernels(const Device& device, StreamRef stream, void* scratch) : device_(device) {
  kernels_[storing] = load(device, "litmus_store", store_word);
  kernels_[moving] = load(device, "litmus_move", move_word);
  kernels_[adding] = load(device, "litmus_add", add_word);
  kernels_[turning] = load(device, "litmus_turn", turn_word);
  if (device.info().backend == "sim") return;  // where each launch is a choice of schedules
  auto* words = static_cast<Word*>(scratch);
  store(stream, words, 0);
  move(stream, words + 1, words);
  add(stream, words, 1);
  keep_busy(stream, words, 1);
  stream.synchronize();
}

Kernels::~Kernels() {
  for (const NativeKernel kernel : kernels_) device_.unload_kernel(kernel);
}

void Kernels::store(StreamRef stream, void* to, std::uint32_t value) const {
  const KernelArgument arguments[] = {address(to, Access::discard), {&value, sizeof value}};
  stream.launch(kernels_[storing], {}, arguments);
}

void Kernels::move(StreamRef stream, void* to, const void* from) const {
  void* const source = const_cast<void*>(from);
  const KernelArgument arguments[] = {address(to, Access::discard), address(source, Access::read)};
  stream.launch(kernels_[moving], {}, arguments);
}

void Kernels::add(StreamRef stream, void* to, std::uint32_t value) const {
  const KernelArgument arguments[] = {address(to, Access::read_write), {&value, sizeof value}};
  stream.launch(kernels_[adding], {}, arguments);
}

void Kernels::keep_busy(StreamRef stream, void* scratch, std::uint32_t turns) const {
  const KernelArgument arguments[] = {address(scratch, Access::discard), {&turns, sizeof turns}};
  stream.launch(kernels_[turning], {}, arguments);
}

}  // namespace tern::test::litmus
