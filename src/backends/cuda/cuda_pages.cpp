#include "backends/cuda/cuda_pages.hpp"

#include <fcntl.h>

#include <algorithm>
#include <iterator>
#include <new>

#include "backends/page_failures.hpp"
#include "core/no_host_memory.hpp"

namespace tern::cuda {
namespace {

std::uintptr_t number(const void* address) noexcept {
  return reinterpret_cast<std::uintptr_t>(address);
}

Failure wrong_range(const char* sentence, const void* address, std::size_t bytes) noexcept {
  return Failure(ErrorCode::invalid_argument, sentence)
      .with("name", "address")
      .with("value", number(address), Unit::hex)
      .with_bytes("bytes", bytes);
}

Failure unknown_pages() noexcept {
  return Failure(ErrorCode::use_after_free,
                 "the pages were released, or were created on another device. Keep the handle "
                 "until the pages are mapped for the last time.");
}

CUmemAllocationProp properties_of(
    const Context& context, CUmemAllocationHandleType type = CU_MEM_HANDLE_TYPE_NONE) noexcept {
  CUmemAllocationProp properties;
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.requestedHandleTypes = type;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, context.device()};
  return properties;
}

CUmemAccess_flags flags_of(PageAccess access) noexcept {
  switch (access) {
    case PageAccess::none:
      return CU_MEM_ACCESS_FLAGS_PROT_NONE;
    case PageAccess::read:
      return CU_MEM_ACCESS_FLAGS_PROT_READ;
    case PageAccess::read_write:
      break;
  }
  return CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
}

}  // namespace

Result<std::size_t> CudaPages::granularity(Context& context) {
  if (context.attribute(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) == 0) {
    return std::size_t{0};
  }
  const ContextScope scope(context);
  if (!scope) return scope.failure();
  const CUmemAllocationProp properties = properties_of(context);
  std::size_t bytes = 0;
  if (Result<void> asked = context.check(context.cu().cuMemGetAllocationGranularity(
                                             &bytes, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM),
                                         "cuMemGetAllocationGranularity");
      !asked) {
    return asked.failure();
  }
  return bytes;
}

Result<void*> CudaPages::reserve(std::size_t bytes) {
  const ContextScope scope(context_);
  if (!scope) return scope.failure();
  const std::lock_guard lock(mutex_);
  CUdeviceptr address = 0;
  const CUresult result = context_.cu().cuMemAddressReserve(&address, bytes, page_bytes_, 0, 0);
  // The driver returns "invalid value" for a size beyond the address space; report it as a lack of
  // memory.
  if (result == CUDA_ERROR_INVALID_VALUE || result == CUDA_ERROR_OUT_OF_MEMORY) {
    return Failure(ErrorCode::out_of_memory,
                   "'{device}' could not reserve {requested} of addresses ({call} returned {name}, "
                   "{code}). Reserve less.")
        .with_bytes("requested", bytes)
        .with("call", "cuMemAddressReserve")
        .with("name", name_of(result))
        .with("code", static_cast<std::uint64_t>(result))
        .with("device", context_.spec());
  }
  if (Result<void> made = context_.check(result, "cuMemAddressReserve", bytes); !made) {
    return made.failure();
  }
  try {
    reservations_.emplace(address, bytes);
  } catch (const std::bad_alloc&) {
    static_cast<void>(context_.cu().cuMemAddressFree(address, bytes));
    return no_host_memory("the record of pages of the device");
  }
  return reinterpret_cast<void*>(static_cast<std::uintptr_t>(address));
}

template <class Call>
Result<void> CudaPages::give(Call call) {
  const ContextScope scope(context_);
  Result<void> given;
  if (!scope) {
    given = scope.failure();
  } else {
    given = call();
  }
  if (!given && context_.can_call()) return given;
  return {};
}

Result<void> CudaPages::unreserve(void* address, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  const auto found = reservations_.find(number(address));
  if (found == reservations_.end() || found->second != bytes) {
    return wrong_range(
        "{bytes} at {value} are not a whole reservation. Release exactly the range that reserve "
        "returned, once.",
        address, bytes);
  }
  if (!is_free(number(address), bytes)) {
    return wrong_range("the reservation of {bytes} at {value} has pages mapped. Unmap them first.",
                       address, bytes);
  }
  if (Result<void> given = give([&] {
        return context_.check(context_.cu().cuMemAddressFree(number(address), bytes),
                              "cuMemAddressFree");
      });
      !given) {
    return given;
  }
  reservations_.erase(found);
  return {};
}

Result<NativePages> CudaPages::create(std::size_t bytes) {
  return create_as(CU_MEM_HANDLE_TYPE_NONE, bytes);
}

Result<NativePages> CudaPages::create_shareable(std::size_t bytes) {
  return create_as(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, bytes);
}

Result<NativePages> CudaPages::create_as(CUmemAllocationHandleType type, std::size_t bytes) {
  const ContextScope scope(context_);
  if (!scope) return scope.failure();
  const std::lock_guard lock(mutex_);
  const CUmemAllocationProp properties = properties_of(context_, type);
  CUmemGenericAllocationHandle handle = 0;
  if (Result<void> made = context_.check(context_.cu().cuMemCreate(&handle, bytes, &properties, 0),
                                         "cuMemCreate", bytes);
      !made) {
    return made.failure();
  }
  return add({handle, bytes, type != CU_MEM_HANDLE_TYPE_NONE});
}

Result<NativePages> CudaPages::add(const Pages& pages) {
  try {
    pages_.emplace(last_number_ + 1, pages);
  } catch (const std::bad_alloc&) {
    static_cast<void>(context_.cu().cuMemRelease(pages.handle));
    return no_host_memory("the record of pages of the device");
  }
  return NativePages{++last_number_};
}

Result<int> CudaPages::export_file(NativePages pages) {
  const ContextScope scope(context_);
  if (!scope) return scope.failure();
  const std::lock_guard lock(mutex_);
  const auto found = pages_.find(pages.value);
  if (found == pages_.end()) return unknown_pages();
  if (!found->second.is_shareable) return not_shareable(pages.value);
  int descriptor = -1;
  if (Result<void> done = context_.check(
          context_.cu().cuMemExportToShareableHandle(&descriptor, found->second.handle,
                                                     CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
          "cuMemExportToShareableHandle");
      !done) {
    return done.failure();
  }
  // The descriptor must not survive an exec: whoever has it can map the memory.
  static_cast<void>(fcntl(descriptor, F_SETFD, FD_CLOEXEC));
  return descriptor;
}

Result<NativePages> CudaPages::import_file(int descriptor, std::size_t bytes) {
  const ContextScope scope(context_);
  if (!scope) return scope.failure();
  const std::lock_guard lock(mutex_);
  CUmemGenericAllocationHandle handle = 0;
  // The driver takes the descriptor in the place of a pointer.
  const CUresult result = context_.cu().cuMemImportFromShareableHandle(
      &handle, reinterpret_cast<void*>(static_cast<std::intptr_t>(descriptor)),
      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  if (result == CUDA_ERROR_INVALID_VALUE || result == CUDA_ERROR_INVALID_HANDLE) {
    return Failure(ErrorCode::bad_format,
                   "'{device}' cannot import the descriptor for {bytes} of shared memory ({call} "
                   "returned {name}, {code}). Pass a descriptor that a CUDA device exported.")
        .with("what", "shared memory")
        .with("field", "descriptor")
        .with_bytes("bytes", bytes)
        .with("call", "cuMemImportFromShareableHandle")
        .with("name", name_of(result))
        .with("code", static_cast<std::uint64_t>(result))
        .with("device", context_.spec());
  }
  if (Result<void> done = context_.check(result, "cuMemImportFromShareableHandle"); !done) {
    return done.failure();
  }
  return add({handle, bytes, true});
}

Result<void> CudaPages::release(NativePages pages) {
  const std::lock_guard lock(mutex_);
  const auto found = pages_.find(pages.value);
  if (found == pages_.end()) return unknown_pages();
  if (Result<void> given = give([&] {
        return context_.check(context_.cu().cuMemRelease(found->second.handle), "cuMemRelease");
      });
      !given) {
    return given;
  }
  pages_.erase(found);
  return {};
}

bool CudaPages::is_reserved(std::uintptr_t address, std::size_t bytes) const noexcept {
  auto next = reservations_.upper_bound(address);
  if (next == reservations_.begin()) return false;
  --next;
  const std::uintptr_t offset = address - next->first;
  return offset < next->second && bytes <= next->second - offset;
}

bool CudaPages::is_free(std::uintptr_t address, std::size_t bytes) const noexcept {
  const auto next = mappings_.lower_bound(address);
  if (next != mappings_.end() && next->first - address < bytes) return false;
  if (next == mappings_.begin()) return true;
  const auto& [begin, mapping] = *std::prev(next);
  return address - begin >= mapping.bytes;
}

Result<void> CudaPages::map(void* address, NativePages pages) {
  const ContextScope scope(context_);
  if (!scope) return scope.failure();
  const std::lock_guard lock(mutex_);
  const auto found = pages_.find(pages.value);
  if (found == pages_.end()) return unknown_pages();
  const std::size_t bytes = found->second.bytes;
  if (!is_reserved(number(address), bytes)) {
    return wrong_range(
        "pages of {bytes} cannot be mapped at {value}: the range is not entirely reserved. Reserve "
        "addresses first.",
        address, bytes);
  }
  if (!is_free(number(address), bytes)) {
    return wrong_range(
        "pages of {bytes} cannot be mapped at {value}: the range already has mapped pages. Unmap "
        "them first.",
        address, bytes);
  }
  try {
    const auto added = mappings_.emplace(number(address), Mapping{bytes, PageAccess::none}).first;
    Result<void> done =
        context_.check(context_.cu().cuMemMap(number(address), bytes, 0, found->second.handle, 0),
                       "cuMemMap", bytes);
    if (!done) mappings_.erase(added);
    return done;
  } catch (const std::bad_alloc&) {
    return no_host_memory("the record of pages of the device");
  }
}

Result<void> CudaPages::unmap(void* address, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  const auto found = mappings_.find(number(address));
  if (found == mappings_.end() || found->second.bytes != bytes) {
    return wrong_range(
        "{bytes} at {value} are not one whole mapping. Unmap exactly the range that was mapped.",
        address, bytes);
  }
  if (Result<void> given = give([&] {
        return context_.check(context_.cu().cuMemUnmap(number(address), bytes), "cuMemUnmap");
      });
      !given) {
    return given;
  }
  mappings_.erase(found);
  return {};
}

Result<void> CudaPages::grant(std::uintptr_t address, std::size_t bytes, PageAccess access,
                              std::span<CUmemAccessDesc> to) {
  for (CUmemAccessDesc& one : to) one.flags = flags_of(access);
  // One call, so that the access of all mappings is set or none.
  return context_.check(context_.cu().cuMemSetAccess(address, bytes, to.data(), to.size()),
                        "cuMemSetAccess");
}

Result<void> CudaPages::set_access(void* address, std::size_t bytes, PageAccess access) {
  const ContextScope scope(context_);
  if (!scope) return scope.failure();
  const std::lock_guard lock(mutex_);
  // The range must consist of whole, adjacent mappings.
  const std::uintptr_t end = number(address) + bytes;
  const auto first = mappings_.find(number(address));
  std::uintptr_t covered = number(address);
  auto last = first;
  while (last != mappings_.end() && last->first == covered && covered < end) {
    covered += last->second.bytes;
    ++last;
  }
  if (covered != end) {
    return wrong_range(
        "access to {bytes} at {value} cannot be set: the range is not covered by whole mappings. "
        "Map it first.",
        address, bytes);
  }
  try {
    if (users_.empty()) users_.push_back({{CU_MEM_LOCATION_TYPE_DEVICE, context_.device()}});
  } catch (const std::bad_alloc&) {
    return no_host_memory("the record of pages of the device");
  }
  if (Result<void> done = grant(number(address), bytes, access, users_); !done) return done;
  for (auto mapping = first; mapping != last; ++mapping) mapping->second.access = access;
  return {};
}

std::optional<PointerInfo> CudaPages::find(const void* address) {
  const std::lock_guard lock(mutex_);
  auto next = mappings_.upper_bound(number(address));
  if (next == mappings_.begin()) return std::nullopt;
  --next;
  if (number(address) - next->first >= next->second.bytes) return std::nullopt;
  return PointerInfo{MemoryKind::mapped, reinterpret_cast<void*>(next->first), next->second.bytes};
}

Result<void> CudaPages::let_in(CUdevice peer) {
  const ContextScope scope(context_);
  if (!scope) return scope.failure();
  if (page_bytes_ == 0) return {};
  const std::lock_guard lock(mutex_);
  const auto is_peer = [&](const CUmemAccessDesc& one) { return one.location.id == peer; };
  if (std::ranges::any_of(users_, is_peer)) return {};
  try {
    if (users_.empty()) users_.push_back({{CU_MEM_LOCATION_TYPE_DEVICE, context_.device()}});
    users_.push_back({{CU_MEM_LOCATION_TYPE_DEVICE, peer}});
  } catch (const std::bad_alloc&) {
    return no_host_memory("the record of pages of the device");
  }
  const std::span<CUmemAccessDesc> newest(&users_.back(), 1);
  for (auto mapping = mappings_.begin(); mapping != mappings_.end(); ++mapping) {
    const auto& [address, mapped] = *mapping;
    if (mapped.access == PageAccess::none) continue;
    Result<void> done = grant(address, mapped.bytes, mapped.access, newest);
    if (done) continue;
    // All pages or none.
    for (auto undone = mappings_.begin(); undone != mapping; ++undone) {
      static_cast<void>(grant(undone->first, undone->second.bytes, PageAccess::none, newest));
    }
    users_.pop_back();
    return done;
  }
  return {};
}

Result<void> CudaPages::shut_out(CUdevice peer) {
  const ContextScope scope(context_);
  if (!scope) return scope.failure();
  const std::lock_guard lock(mutex_);
  const auto is_peer = [&](const CUmemAccessDesc& one) { return one.location.id == peer; };
  const auto found = std::ranges::find_if(users_, is_peer);
  if (found == users_.end()) return {};
  const std::span<CUmemAccessDesc> one(&*found, 1);
  for (auto mapping = mappings_.begin(); mapping != mappings_.end(); ++mapping) {
    const auto& [address, mapped] = *mapping;
    if (mapped.access == PageAccess::none) continue;
    Result<void> done = grant(address, mapped.bytes, PageAccess::none, one);
    if (done) continue;
    for (auto undone = mappings_.begin(); undone != mapping; ++undone) {
      static_cast<void>(grant(undone->first, undone->second.bytes, undone->second.access, one));
    }
    return done;
  }
  users_.erase(found);
  return {};
}

}  // namespace tern::cuda
