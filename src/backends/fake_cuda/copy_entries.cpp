// The entries that copy and fill.

#include <algorithm>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "backends/fake_cuda/entry.hpp"
#include "tern/core/bytes.hpp"

namespace tern::sim::entries {
namespace {

bool overlap(const void* a, const void* b, std::size_t bytes) noexcept {
  const std::uintptr_t first = std::min(as_number(a), as_number(b));
  return std::max(as_number(a), as_number(b)) - first < bytes;
}

CUresult copy(const Here& here, const FakeStream& stream, void* to, const void* from,
              std::size_t bytes) {
  if (bytes == 0) return CUDA_SUCCESS;
  if (!is_range(to, bytes) || !is_range(from, bytes) || overlap(to, from, bytes)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const auto to_place = here.state.world->locate(to);
  const auto from_place = here.state.world->locate(from);
  const std::uint32_t to_device = to_place ? to_place->first : stream.device;
  const std::uint32_t from_device = from_place ? from_place->first : stream.device;
  // Either device may run the copy, so each side is checked for the device that has its memory.
  if (!may_use(here, to_device, to, bytes, true) ||
      !may_use(here, from_device, from, bytes, false)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (to_device == stream.device && from_device == stream.device) {
    return result_of(here.backend(stream).copy(here.on(stream), to, from, bytes));
  }
  const std::uint32_t peer = from_device != stream.device ? from_device : to_device;
  return result_of(here.backend(stream).copy_from_peer(here.on(stream), to,
                                                       here.state.backend(peer), from, bytes));
}

struct Rows {
  CUdeviceptr to = 0;
  std::size_t pitch_bytes = 0;
  std::size_t width = 0;
  std::size_t height = 1;
};

template <class Value>
CUresult fill(DriverEntry entry, const Rows& rows, Value value, CUstream handle) noexcept {
  return call(entry, Demand::context, [&](const Here& here) -> CUresult {
    const Working working = work_on(here, handle);
    if (!working) return working.result;
    const std::optional<std::size_t> bytes = checked_multiply(rows.width, sizeof value);
    if (!bytes || rows.to % sizeof value != 0 || rows.pitch_bytes % sizeof value != 0) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    if (*bytes == 0 || rows.height == 0) return CUDA_SUCCESS;
    if (rows.height > 1 && rows.pitch_bytes < *bytes) return CUDA_ERROR_INVALID_VALUE;
    const std::optional<std::size_t> skipped = checked_multiply(rows.pitch_bytes, rows.height - 1);
    const std::optional<std::size_t> all = skipped ? checked_add(*skipped, *bytes) : skipped;
    if (!all || !is_range(pointer(rows.to), *all)) return CUDA_ERROR_INVALID_VALUE;
    if (!may_use(here, working.stream->device, pointer(rows.to), *all, true)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    Pattern pattern;
    pattern.width_bytes = sizeof value;
    std::memcpy(pattern.bytes, &value, sizeof value);
    const bool is_one = rows.height > 1 && rows.pitch_bytes == *bytes;
    const std::size_t height = is_one ? 1 : rows.height;
    for (std::size_t row = 0; row < height; ++row) {
      const CUresult filled =
          result_of(here.backend(*working.stream)
                        .fill(here.on(*working.stream), pointer(rows.to + row * rows.pitch_bytes),
                              is_one ? *all : *bytes, pattern));
      if (filled != CUDA_SUCCESS) return filled;
    }
    return CUDA_SUCCESS;
  });
}

/// Returns the first byte of one side of a 2-D copy, or null if the description is invalid.
const void* first_of(CUmemorytype type, const void* host, CUdeviceptr device, std::size_t x,
                     std::size_t y, std::size_t pitch_bytes) {
  if (type == CU_MEMORYTYPE_ARRAY) return nullptr;
  const void* base = type == CU_MEMORYTYPE_HOST ? host : pointer(device);
  const std::optional<std::size_t> rows = checked_multiply(y, pitch_bytes);
  const std::optional<std::size_t> offset = rows ? checked_add(*rows, x) : rows;
  if (base == nullptr || !offset || !is_range(base, *offset)) return nullptr;
  return static_cast<const std::byte*>(base) + *offset;
}

/// Reads the source immediately, on the host, and queues a copy of the bytes.
CUresult copy_read_now(const Here& here, const FakeStream& stream, void* to, const void* from,
                       std::size_t bytes) {
  World& world = *here.state.world;
  if (world.locate(from)) return copy(here, stream, to, from, bytes);
  if (bytes == 0) return CUDA_SUCCESS;
  if (!is_range(from, bytes)) return CUDA_ERROR_INVALID_VALUE;
  const std::size_t index = stream.native.value - 1;
  FakeStaging read{index, 0, std::make_unique<std::byte[]>(bytes)};
  {
    const Result<Entry> entry = world.enter("a driver call", here.site);
    if (!entry) return sim::result_of(entry.failure());
    std::vector<Touch>& touches = world.scratch();
    world.add_touch(touches, TouchKind::read, from, bytes);
    const Result<void> judged =
        world.judge({.kind = RecordKind::host_access, .touches = touches, .site = here.site});
    if (!judged) return sim::result_of(judged.failure());
    std::memcpy(read.bytes.get(), from, bytes);
  }
  const CUresult result = copy(here, stream, to, read.bytes.get(), bytes);
  if (result != CUDA_SUCCESS) return result;
  const Result<Entry> entry = world.enter("a driver call", here.site);
  if (!entry) return sim::result_of(entry.failure());
  read.position = world.stream(index).submitted;
  const std::lock_guard lock(here.state.mutex);
  std::erase_if(here.state.staging, [&](const FakeStaging& old) {
    return world.stream(old.stream).passed >= old.position;
  });
  here.state.staging.push_back(std::move(read));
  return CUDA_SUCCESS;
}

struct Batch {
  CUdeviceptr* to = nullptr;
  CUdeviceptr* from = nullptr;
  std::size_t* bytes = nullptr;
  std::size_t count = 0;
  CUmemcpyAttributes* attributes = nullptr;
  std::size_t* attribute_starts = nullptr;
  std::size_t attribute_count = 0;
};

bool is_batch(const Batch& batch) noexcept {
  if (batch.to == nullptr || batch.from == nullptr || batch.bytes == nullptr ||
      batch.attributes == nullptr || batch.attribute_starts == nullptr || batch.count == 0 ||
      batch.attribute_count == 0 || batch.attribute_count > batch.count ||
      batch.attribute_starts[0] != 0) {
    return false;
  }
  for (std::size_t i = 0; i < batch.attribute_count; ++i) {
    const CUmemcpySrcAccessOrder order = batch.attributes[i].srcAccessOrder;
    if (order < CU_MEMCPY_SRC_ACCESS_ORDER_STREAM || order > CU_MEMCPY_SRC_ACCESS_ORDER_ANY) {
      return false;
    }
    if (batch.attribute_starts[i] >= batch.count) return false;
    if (i > 0 && batch.attribute_starts[i] <= batch.attribute_starts[i - 1]) return false;
  }
  return true;
}

CUresult copy_batch(DriverEntry entry, const Batch& batch, CUstream handle,
                    std::size_t* failed) noexcept {
  return call(entry, Demand::context, [&](const Here& here) -> CUresult {
    if (failed != nullptr) *failed = ~std::size_t{0};
    const std::uintptr_t number = as_number(handle);
    if (number == 0 || number == stream_legacy) return CUDA_ERROR_INVALID_VALUE;
    const Working working = work_on(here, handle);
    if (!working) return working.result;
    if (here.state.capture_of(*working.stream)) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (!is_batch(batch)) return CUDA_ERROR_INVALID_VALUE;
    std::size_t attribute = 0;
    for (std::size_t i = 0; i < batch.count; ++i) {
      const bool is_next =
          attribute + 1 < batch.attribute_count && batch.attribute_starts[attribute + 1] == i;
      if (is_next) ++attribute;
      const auto copy_one =
          batch.attributes[attribute].srcAccessOrder == CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL
              ? copy_read_now
              : copy;
      const CUresult copied = copy_one(here, *working.stream, pointer(batch.to[i]),
                                       pointer(batch.from[i]), batch.bytes[i]);
      if (copied == CUDA_SUCCESS) continue;
      if (failed != nullptr) *failed = i;
      return copied;
    }
    return CUDA_SUCCESS;
  });
}

}  // namespace

CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, std::size_t bytes, CUstream stream) {
  return call(DriverEntry::cuMemcpyAsync, Demand::context, [&](const Here& here) -> CUresult {
    const Working working = work_on(here, stream);
    if (!working) return working.result;
    return copy(here, *working.stream, pointer(to), pointer(from), bytes);
  });
}

CUresult cuMemcpyPeerAsync(CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
                           CUcontext from_context, std::size_t bytes, CUstream stream) {
  return call(DriverEntry::cuMemcpyPeerAsync, Demand::context, [&](const Here& here) -> CUresult {
    const Working working = work_on(here, stream);
    if (!working) return working.result;
    const std::optional<std::uint32_t> to_device = device_of_context(here, to_context);
    const std::optional<std::uint32_t> from_device = device_of_context(here, from_context);
    if (!to_device || !from_device) return CUDA_ERROR_INVALID_CONTEXT;
    const auto is_elsewhere = [&](CUdeviceptr address, std::uint32_t device) {
      const auto place = here.state.world->locate(pointer(address));
      return place && place->first != device;
    };
    if (is_elsewhere(to, *to_device) || is_elsewhere(from, *from_device)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    return copy(here, *working.stream, pointer(to), pointer(from), bytes);
  });
}

CUresult cuMemcpy2DAsync(const CUDA_MEMCPY2D* given, CUstream stream) {
  return call(DriverEntry::cuMemcpy2DAsync, Demand::context, [&](const Here& here) -> CUresult {
    const Working working = work_on(here, stream);
    if (!working) return working.result;
    if (given == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (given->WidthInBytes == 0 || given->Height == 0) return CUDA_SUCCESS;
    const void* from = first_of(given->srcMemoryType, given->srcHost, given->srcDevice,
                                given->srcXInBytes, given->srcY, given->srcPitch);
    const void* to = first_of(given->dstMemoryType, given->dstHost, given->dstDevice,
                              given->dstXInBytes, given->dstY, given->dstPitch);
    const auto fits = [&](std::size_t x, std::size_t pitch) {
      const std::optional<std::size_t> end = checked_add(x, given->WidthInBytes);
      return end && *end <= pitch && checked_multiply(pitch, given->Height).has_value();
    };
    if (from == nullptr || to == nullptr || !fits(given->srcXInBytes, given->srcPitch) ||
        !fits(given->dstXInBytes, given->dstPitch)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    const FakeStream& on = *working.stream;
    auto* const target = static_cast<std::byte*>(const_cast<void*>(to));
    const auto* const source = static_cast<const std::byte*>(from);
    const auto is_at_home = [&](const void* address) {
      const auto place = here.state.world->locate(address);
      return !place || place->first == on.device;
    };
    const std::size_t to_bytes = given->dstPitch * (given->Height - 1) + given->WidthInBytes;
    const std::size_t from_bytes = given->srcPitch * (given->Height - 1) + given->WidthInBytes;
    if (!is_range(to, to_bytes) || !is_range(from, from_bytes)) return CUDA_ERROR_INVALID_VALUE;
    if (is_at_home(to) && is_at_home(from)) {
      if (!may_use(here, on.device, to, to_bytes, true) ||
          !may_use(here, on.device, from, from_bytes, false)) {
        return CUDA_ERROR_INVALID_VALUE;
      }
      return result_of(
          here.backend(on).copy_2d(here.on(on), {.destination = target,
                                                 .destination_pitch_bytes = given->dstPitch,
                                                 .source = source,
                                                 .source_pitch_bytes = given->srcPitch,
                                                 .width_bytes = given->WidthInBytes,
                                                 .height = given->Height}));
    }
    for (std::size_t row = 0; row < given->Height; ++row) {
      const CUresult copied = copy(here, on, target + row * given->dstPitch,
                                   source + row * given->srcPitch, given->WidthInBytes);
      if (copied != CUDA_SUCCESS) return copied;
    }
    return CUDA_SUCCESS;
  });
}

CUresult cuMemcpyBatchAsync_12080(CUdeviceptr* to, CUdeviceptr* from, std::size_t* bytes,
                                  std::size_t count, CUmemcpyAttributes* attributes,
                                  std::size_t* attribute_starts, std::size_t attribute_count,
                                  std::size_t* failed, CUstream stream) {
  const Batch batch{to, from, bytes, count, attributes, attribute_starts, attribute_count};
  return copy_batch(DriverEntry::cuMemcpyBatchAsync_12080, batch, stream, failed);
}

CUresult cuMemcpyBatchAsync(CUdeviceptr* to, CUdeviceptr* from, std::size_t* bytes,
                            std::size_t count, CUmemcpyAttributes* attributes,
                            std::size_t* attribute_starts, std::size_t attribute_count,
                            CUstream stream) {
  const Batch batch{to, from, bytes, count, attributes, attribute_starts, attribute_count};
  return copy_batch(DriverEntry::cuMemcpyBatchAsync, batch, stream, nullptr);
}

CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, std::size_t count, CUstream stream) {
  return fill(DriverEntry::cuMemsetD8Async, {to, 0, count, 1}, value, stream);
}

CUresult cuMemsetD16Async(CUdeviceptr to, unsigned short value, std::size_t count,
                          CUstream stream) {
  return fill(DriverEntry::cuMemsetD16Async, {to, 0, count, 1}, value, stream);
}

CUresult cuMemsetD32Async(CUdeviceptr to, unsigned value, std::size_t count, CUstream stream) {
  return fill(DriverEntry::cuMemsetD32Async, {to, 0, count, 1}, value, stream);
}

CUresult cuMemsetD2D8Async(CUdeviceptr to, std::size_t pitch_bytes, unsigned char value,
                           std::size_t width, std::size_t height, CUstream stream) {
  return fill(DriverEntry::cuMemsetD2D8Async, {to, pitch_bytes, width, height}, value, stream);
}

}  // namespace tern::sim::entries
