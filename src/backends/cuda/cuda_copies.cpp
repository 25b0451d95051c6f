#include "backends/cuda/cuda_copies.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <new>
#include <utility>
#include <vector>

#include "backends/cuda/staging.hpp"
#include "core/memory_tool.hpp"
#include "core/no_host_memory.hpp"
#include "tern/core/bytes.hpp"

namespace tern::cuda {
namespace {

std::uintptr_t number(const void* address) noexcept {
  return reinterpret_cast<std::uintptr_t>(address);
}

/// On an idle stream, smaller copies from pageable memory are left to the driver, which copies
/// small amounts to the device as fast as staging does. The threads copy to pageable memory from
/// 256 KiB on.
constexpr std::size_t min_staged_to_device_bytes = 8 * mib, min_threads_to_host_bytes = 256 * kib;

/// Returns the shortest equivalent pattern. Most 8-byte fill values are zero.
Pattern shortest(const Pattern& pattern) noexcept {
  for (std::size_t width = 1; width < pattern.width_bytes; ++width) {
    if (pattern.width_bytes % width != 0) continue;
    if (std::equal(pattern.bytes + width, pattern.bytes + pattern.width_bytes, pattern.bytes)) {
      Pattern shorter = pattern;
      shorter.width_bytes = width;
      return shorter;
    }
  }
  return pattern;
}

/// The host side of a copy. The bytes between rows do not belong to the copy, so they are not
/// poisoned.
HostSpan span_of(const void* address, std::size_t pitch_bytes, const Copy2D& copy,
                 HostSpan::Use use) noexcept {
  const bool is_dense = copy.height == 1 || pitch_bytes == copy.width_bytes;
  if (use == HostSpan::Use::awaited && !is_dense) use = HostSpan::Use::written;
  return {address, pitch_bytes * (copy.height - 1) + copy.width_bytes, use};
}

template <class Word>
Word word_of(const Pattern& pattern) noexcept {
  Word word = 0;
  std::memcpy(&word, pattern.bytes, sizeof word);
  return word;
}

}  // namespace

CudaCopies::CudaCopies(Context& context, std::unique_ptr<Staging> staging)
    : context_(context), staging_(std::move(staging)) {}
CudaCopies::~CudaCopies() {
  const ContextScope scope(context_);
  if (!scope) {
    // The driver may be calling one of these functions now and can no longer be queried, so they
    // are leaked.
    static constinit std::mutex mutex;
    static std::list<HostCopy>& kept = *new std::list<HostCopy>;
    const std::lock_guard lock(mutex);
    kept.splice(kept.end(), host_copies_);
  }
  if (!staging_) return;
  if (!scope) staging_->abandon();
  staging_.reset();
}

CudaCopies::Known CudaCopies::look_up(const void* address, LookUp what) noexcept {
  unsigned type = 0;
  CUdeviceptr base = 0;
  std::size_t bytes = 0;
  CUpointer_attribute attributes[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                      CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
                                      CU_POINTER_ATTRIBUTE_RANGE_SIZE};
  void* data[] = {&type, &base, &bytes};
  const unsigned count = what == LookUp::kind ? 1 : 3;
  // For ordinary host memory the call succeeds and returns zeros. If the query fails, the memory is
  // not treated as pageable, and the copy reports the error.
  const CUresult result =
      context_.cu().cuPointerGetAttributes(count, attributes, data, number(address));
  if (result != CUDA_SUCCESS) return {};
  return {type == 0 || type == CU_MEMORYTYPE_HOST, type == 0, base, bytes};
}

bool CudaCopies::is_capturing(CUstream stream) noexcept {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  return context_.cu().cuStreamIsCapturing(stream, &status) == CUDA_SUCCESS &&
         status != CU_STREAM_CAPTURE_STATUS_NONE;
}

Result<void> CudaCopies::copy_by_driver(CUstream stream, void* destination, const void* source,
                                        std::size_t bytes) noexcept {
  return context_.check(
      context_.cu().cuMemcpyAsync(number(destination), number(source), bytes, stream),
      "cuMemcpyAsync", bytes);
}

bool CudaCopies::is_idle(const CopyStream& stream) noexcept {
  if (stream.is_idle) return true;
  const DriverTable& cu = context_.cu();
  unsigned flags = CU_STREAM_DEFAULT;
  // The legacy stream and blocking streams are ordered with each other, which a query does not
  // show.
  if (cu.cuStreamGetFlags(stream.handle, &flags) != CUDA_SUCCESS) return false;
  return (flags & CU_STREAM_NON_BLOCKING) != 0 && cu.cuStreamQuery(stream.handle) == CUDA_SUCCESS;
}

void CudaCopies::run_host_copy(void* context) {
  auto& job = *static_cast<HostCopy*>(context);
  const Copy2D& copy = job.copy;
  auto* to = static_cast<std::byte*>(copy.destination);
  const auto* from = static_cast<const std::byte*>(copy.source);
  spans_run(job.spans);
  for (std::size_t row = 0; row < copy.height; ++row) {
    std::memcpy(to + row * copy.destination_pitch_bytes, from + row * copy.source_pitch_bytes,
                copy.width_bytes);
  }
  spans_ended(job.spans);
  job.is_done.store(true, std::memory_order_release);
}

Result<void> CudaCopies::copy_by_host(const CopyStream& stream, const Copy2D& copy,
                                      bool is_to_pageable) noexcept {
  try {
    const std::lock_guard lock(host_copies_mutex_);
    std::erase_if(host_copies_,
                  [](const HostCopy& job) { return job.is_done.load(std::memory_order_acquire); });
    HostCopy& job = host_copies_.emplace_back();
    job.copy = copy;
    if (memory_tool() != nullptr) {
      // Page-locked memory is shared with the device, whose kernels may write it before.
      const HostSpan spans[] = {
          span_of(copy.destination, copy.destination_pitch_bytes, copy,
                  is_to_pageable ? HostSpan::Use::awaited : HostSpan::Use::written),
          span_of(copy.source, copy.source_pitch_bytes, copy, HostSpan::Use::read)};
      job.spans = spans_submitted({&context_, stream.site}, spans);
    }
    Result<void> queued = context_.check(
        context_.cu().cuLaunchHostFunc(stream.handle, run_host_copy, &job), "cuLaunchHostFunc");
    if (!queued) {
      spans_ended(job.spans);
      host_copies_.pop_back();
    }
    return queued;
  } catch (const std::bad_alloc&) {
    return no_host_memory(sizeof(HostCopy), "a copy");
  }
}

Result<void> CudaCopies::stage(const CopyStream& stream, const Copy2D& copy, bool is_to_device,
                               bool& is_staged) noexcept {
  is_staged = false;
  if (!staging_) return {};
  const std::size_t bytes = copy.width_bytes * copy.height;
  const bool is_now = is_idle(stream);
  if (is_now && is_to_device && bytes < min_staged_to_device_bytes) return {};
  StagedCopy staged =
      is_to_device ? StagedCopy::to_device(number(copy.destination), copy.source, copy.width_bytes)
                   : StagedCopy::to_host(copy.destination, number(copy.source), copy.width_bytes);
  staged.height = copy.height;
  staged.host_pitch_bytes = is_to_device ? copy.source_pitch_bytes : copy.destination_pitch_bytes;
  staged.device_pitch_bytes = is_to_device ? copy.destination_pitch_bytes : copy.source_pitch_bytes;
  if (!is_now && memory_tool() != nullptr) {
    const HostSpan span =
        is_to_device
            ? span_of(copy.source, copy.source_pitch_bytes, copy, HostSpan::Use::read)
            : span_of(copy.destination, copy.destination_pitch_bytes, copy, HostSpan::Use::awaited);
    staged.spans = spans_submitted({&context_, stream.site}, {&span, 1});
  }
  const bool is_small = !is_to_device && bytes < min_threads_to_host_bytes;
  const StagingResult result = !is_now    ? staging_->enqueue(staged, stream.handle)
                               : is_small ? staging_->copy_small_to_host(staged)
                                          : staging_->copy_now(staged, stream.handle);
  is_staged = result.kind != StagingResult::Kind::unavailable;
  if (!result.is_staged()) spans_ended(staged.spans);
  if (result.kind != StagingResult::Kind::failed) return {};
  return context_.check(result.failure.result, result.failure.call, bytes);
}

Result<void> CudaCopies::copy(const CopyStream& stream, void* destination, const void* source,
                              std::size_t bytes) noexcept {
  const Known from = look_up(source);
  // The driver makes this copy, whatever the destination is.
  if (from.is_pageable && stream.is_idle && bytes < min_staged_to_device_bytes) {
    return copy_by_driver(stream.handle, destination, source, bytes);
  }
  const Known to = look_up(destination);
  if ((from.is_host && to.is_host) || from.is_pageable || to.is_pageable) {
    return copy_from_or_to_host(stream, {destination, bytes, source, bytes, bytes, 1}, from, to);
  }
  return copy_by_driver(stream.handle, destination, source, bytes);
}

Result<void> CudaCopies::copy_from_or_to_host(const CopyStream& stream, const Copy2D& copy,
                                              const Known& from, const Known& to) noexcept {
  // A graph runs the copy on every launch, which the routes below cannot do.
  if (stream.is_idle || !is_capturing(stream.handle)) {
    if (from.is_host && to.is_host) {
      if (!is_idle(stream)) return copy_by_host(stream, copy, to.is_pageable);
    } else {
      bool is_staged = false;
      Result<void> staged = stage(stream, copy, from.is_pageable, is_staged);
      if (is_staged) return staged;
    }
  }
  if (copy.height == 1) {
    return copy_by_driver(stream.handle, copy.destination, copy.source, copy.width_bytes);
  }
  return copy_2d_by_driver(stream.handle, copy, from.is_pageable, to.is_pageable);
}

Result<void> CudaCopies::copy_2d_by_driver(CUstream stream, const Copy2D& copy,
                                           bool is_from_pageable, bool is_to_pageable) noexcept {
  CUDA_MEMCPY2D how;
  if (is_from_pageable) {
    how.srcMemoryType = CU_MEMORYTYPE_HOST;
    how.srcHost = copy.source;
  } else {
    how.srcMemoryType = CU_MEMORYTYPE_UNIFIED;
    how.srcDevice = number(copy.source);
  }
  how.srcPitch = copy.source_pitch_bytes;
  if (is_to_pageable) {
    how.dstMemoryType = CU_MEMORYTYPE_HOST;
    how.dstHost = copy.destination;
  } else {
    how.dstMemoryType = CU_MEMORYTYPE_UNIFIED;
    how.dstDevice = number(copy.destination);
  }
  how.dstPitch = copy.destination_pitch_bytes;
  how.WidthInBytes = copy.width_bytes;
  how.Height = copy.height;
  return context_.check(context_.cu().cuMemcpy2DAsync(&how, stream), "cuMemcpy2DAsync");
}

Result<void> CudaCopies::copy_2d(const CopyStream& stream, const Copy2D& copy) noexcept {
  // One row, or rows without gaps, are a plain copy.
  if (copy.height == 1 || (copy.source_pitch_bytes == copy.width_bytes &&
                           copy.destination_pitch_bytes == copy.width_bytes)) {
    return this->copy(stream, copy.destination, copy.source, copy.width_bytes * copy.height);
  }
  const Known from = look_up(copy.source), to = look_up(copy.destination);
  if ((from.is_host && to.is_host) || from.is_pageable || to.is_pageable) {
    return copy_from_or_to_host(stream, copy, from, to);
  }
  return copy_2d_by_driver(stream.handle, copy, false, false);
}

Result<void> CudaCopies::batch_by_driver(CUstream stream,
                                         std::span<const CopyRange> copies) noexcept {
  const DriverTable& cu = context_.cu();
  // In pieces that fit on the stack.
  constexpr std::size_t most = 512;
  std::array<CUdeviceptr, most> to, from;
  std::array<std::size_t, most> bytes;
  for (std::size_t done = 0; done < copies.size();) {
    const std::size_t count = std::min(most, copies.size() - done);
    for (std::size_t i = 0; i < count; ++i) {
      to[i] = number(copies[done + i].destination);
      from[i] = number(copies[done + i].source);
      bytes[i] = copies[done + i].bytes;
    }
    CUmemcpyAttributes how;
    how.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
    std::size_t first = 0;
    std::size_t failed = 0;
    const CUresult result =
        cu.cuMemcpyBatchAsync != nullptr
            ? cu.cuMemcpyBatchAsync(to.data(), from.data(), bytes.data(), count, &how, &first, 1,
                                    stream)
            : cu.cuMemcpyBatchAsync_12080(to.data(), from.data(), bytes.data(), count, &how, &first,
                                          1, &failed, stream);
    if (Result<void> queued = context_.check(result, "cuMemcpyBatchAsync"); !queued) return queued;
    done += count;
  }
  return {};
}

Result<void> CudaCopies::copy_batch(const CopyStream& stream,
                                    std::span<const CopyRange> copies) noexcept {
  const DriverTable& cu = context_.cu();
  const bool has_batch = cu.cuMemcpyBatchAsync != nullptr || cu.cuMemcpyBatchAsync_12080 != nullptr;
  // Not on the legacy stream, where the driver rejects batches, and never into a graph, which
  // silently dropped such copies.
  bool is_plain = has_batch && copies.size() > 1 && number(stream.handle) != stream_legacy &&
                  !is_capturing(stream.handle);
  Known from, to;
  for (const CopyRange& one : copies) {
    if (!is_plain) break;
    if (!from.holds(number(one.source), one.bytes)) {
      from = look_up(one.source, LookUp::range);
    }
    if (!to.holds(number(one.destination), one.bytes)) {
      to = look_up(one.destination, LookUp::range);
    }
    is_plain = !from.is_pageable && !to.is_pageable && !(from.is_host && to.is_host);
  }
  if (is_plain) return batch_by_driver(stream.handle, copies);
  for (const CopyRange& one : copies) {
    if (Result<void> queued = copy(stream, one.destination, one.source, one.bytes); !queued) {
      return queued;
    }
  }
  return {};
}

Result<void> CudaCopies::copy_from_peer(CUstream stream, void* destination, Context& peer,
                                        const void* source, std::size_t bytes) noexcept {
  return context_.check(
      context_.cu().cuMemcpyPeerAsync(number(destination), context_.handle(), number(source),
                                      peer.handle(), bytes, stream),
      "cuMemcpyPeerAsync", bytes);
}

Result<void> CudaCopies::fill_words(CUstream stream, std::uintptr_t address, std::size_t bytes,
                                    const Pattern& pattern) noexcept {
  const DriverTable& cu = context_.cu();
  switch (pattern.width_bytes) {
    case 1:
      return context_.check(
          cu.cuMemsetD8Async(address, word_of<unsigned char>(pattern), bytes, stream),
          "cuMemsetD8Async");
    case 2:
      return context_.check(
          cu.cuMemsetD16Async(address, word_of<unsigned short>(pattern), bytes / 2, stream),
          "cuMemsetD16Async");
    default:
      return context_.check(
          cu.cuMemsetD32Async(address, word_of<unsigned>(pattern), bytes / 4, stream),
          "cuMemsetD32Async");
  }
}

Result<void> CudaCopies::fill(CUstream stream, void* destination, std::size_t bytes,
                              const Pattern& given) noexcept {
  const Pattern pattern = shortest(given);
  const std::size_t width = pattern.width_bytes;
  const std::uintptr_t address = number(destination);
  if (look_up(destination).is_pageable) {
    return Failure(ErrorCode::invalid_argument,
                   "'{device}' cannot fill {bytes} at {value}, because this is pageable host "
                   "memory. Fill the range on the host, or register it first.")
        .with("name", "destination")
        .with("value", address, Unit::hex)
        .with_bytes("bytes", bytes)
        .with("device", context_.spec());
  }
  if ((width == 1 || width == 2 || width == 4) && address % width == 0) {
    return fill_words(stream, address, bytes, pattern);
  }
  // For other widths, write one element byte by byte and then double it with copies.
  const DriverTable& cu = context_.cu();
  std::size_t done = std::min(bytes, 4 * kib / width * width);
  for (std::size_t i = 0; i < width; ++i) {
    if (Result<void> queued = context_.check(
            cu.cuMemsetD2D8Async(address + i, width, static_cast<unsigned char>(pattern.bytes[i]),
                                 1, done / width, stream),
            "cuMemsetD2D8Async");
        !queued) {
      return queued;
    }
  }
  while (done < bytes) {
    const std::size_t more = std::min(done, bytes - done);
    if (Result<void> queued = context_.check(
            cu.cuMemcpyAsync(address + done, address, more, stream), "cuMemcpyAsync");
        !queued) {
      return queued;
    }
    done += more;
  }
  return {};
}

}  // namespace tern::cuda
