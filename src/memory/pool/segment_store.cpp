#include "memory/pool/segment_store.hpp"

#include <algorithm>
#include <new>

namespace tern::pool {

SegmentStore::~SegmentStore() {
  for (const Segment& segment : segments_) {
    poisoning_.unpoison(segment.address, segment.bytes);
    static_cast<void>(device_.try_release(segment.address));
  }
}

Result<std::uint64_t> SegmentStore::try_add(std::size_t bytes, std::size_t alignment) noexcept {
  try {
    if (segments_.size() == segments_.capacity()) {
      segments_.reserve(std::max<std::size_t>(16, 2 * segments_.size()));
    }
  } catch (const std::bad_alloc&) {
    return Failure(
        ErrorCode::out_of_memory,
        "the host could not allocate memory for the records of a segment. Free host memory.");
  }
  ++driver_calls_;
  const Result<void*> address = device_.try_allocate(kind_, bytes, {.alignment = alignment});
  if (!address) return address.failure();
  segments_.push_back({*address, bytes});
  held_bytes_ += bytes;
  return reinterpret_cast<std::uintptr_t>(*address) / granule_bytes;
}

Result<void> SegmentStore::try_release(std::uint64_t offset) noexcept {
  const auto found = std::ranges::find(segments_, reinterpret_cast<void*>(offset * granule_bytes),
                                       &Segment::address);
  ++driver_calls_;
  poisoning_.unpoison(found->address, found->bytes);
  if (Result<void> released = device_.try_release(found->address); !released) return released;
  held_bytes_ -= found->bytes;
  *found = segments_.back();
  segments_.pop_back();
  return {};
}

}  // namespace tern::pool
