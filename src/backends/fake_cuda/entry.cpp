#include "backends/fake_cuda/entry.hpp"

#include "tern/backends/sim.hpp"
#include "tern/core/bytes.hpp"

namespace tern::sim::entries {

Working work_on(const Here& here, CUstream handle) {
  Working working{here.state.find_stream(handle, here.device)};
  if (!working.stream) return {nullptr, CUDA_ERROR_INVALID_HANDLE};
  const FakeStream& stream = *working.stream;
  if (stream.is_legacy && here.state.has_blocking_capture(stream.device)) {
    working.result = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  } else if (const std::optional<FakeCapture> capture = here.state.capture_of(stream)) {
    working.result = capture->is_invalid ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
                     : capture->is_real  ? CUDA_SUCCESS
                                         : CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  return working;
}

std::shared_ptr<FakeStream> stream_of(const Here& here, CUstream handle) {
  return here.state.find_stream(handle, here.device);
}

bool may_use(const Here& here, std::uint32_t device, const void* address, std::size_t bytes,
             bool writes) {
  const CUmemAccess_flags needed =
      writes ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_READ;
  const std::uintptr_t first = as_number(address);
  const std::lock_guard lock(here.state.mutex);
  auto mapping = here.state.mappings.upper_bound(first);
  if (mapping != here.state.mappings.begin()) --mapping;
  for (; mapping != here.state.mappings.end() && mapping->first < first + bytes; ++mapping) {
    if (mapping->first + mapping->second.bytes <= first) continue;
    const auto granted = mapping->second.access.find(static_cast<int>(device));
    if (granted == mapping->second.access.end() || (granted->second & needed) != needed) {
      return false;
    }
  }
  return true;
}

bool is_range(const void* address, std::size_t bytes) noexcept {
  return address != nullptr && bytes <= max_request_bytes &&
         as_number(address) <= ~std::uintptr_t{0} - bytes;
}

CUresult allocate(const Here& here, MemoryKind kind, std::size_t bytes, void** address) {
  if (!here.state.may_disturb()) return disturbs_capture;
  if (address == nullptr || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  if (bytes > max_request_bytes) return CUDA_ERROR_OUT_OF_MEMORY;
  // The smallest distance between two blocks of the driver.
  constexpr std::size_t alignment = 512;
  const Result<void*> made = here.backend().allocate(kind, bytes, alignment, here.site, {});
  if (!made) return sim::result_of(made.failure());
  *address = *made;
  if (kind == MemoryKind::device) return CUDA_SUCCESS;
  // The host writes pinned memory without a driver call, so all of it counts as written.
  if (kind == MemoryKind::pinned) {
    host_write(here.state.devices[here.device], *made, bytes, here.site);
  }
  const std::lock_guard lock(here.state.mutex);
  here.state.host_blocks[as_number(*made)] = {here.device, bytes};
  return CUDA_SUCCESS;
}

void forget_pooled(const Here& here, std::uintptr_t base) {
  const auto found = here.state.pool_blocks.find(base);
  if (found == here.state.pool_blocks.end()) return;
  const auto [pool, bytes] = found->second;
  here.state.pools[pool].used_bytes -= bytes;
  here.state.pool_blocks.erase(found);
}

}  // namespace tern::sim::entries
