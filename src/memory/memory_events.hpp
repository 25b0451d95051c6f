// The events that resources record (tern/trace/recorder.hpp).
//
// Only resources that get memory from a driver record, so a block that passes through wrappers is
// recorded once. Call these functions if trace::is_recording().

#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "tern/core/error.hpp"
#include "tern/memory/resource.hpp"
#include "trace/memory_event.hpp"

namespace tern {

/// A resource as events name it. `number` is from trace::new_number().
struct RecordedResource {
  const Device& device;
  const char* name;
  std::uint32_t number;
  MemoryKind kind;
};

/// `stream` is the stream of the request. It is empty if every stream may use the memory
/// immediately.
void record_allocation(const RecordedResource& from, const Block& block, const Request& request,
                       StreamId stream) noexcept;
/// Call before another thread can allocate the memory, so that its event has a later time.
/// Once its stream has passed the mark, other streams may use the memory without a wait. If the
/// resource does not know this point, the mark has no sequence number.
void record_free(const RecordedResource& to, const Block& block, Tag tag, Mark mark,
                 const CallSite& site, std::uint64_t time_ns = 0) noexcept;
/// Why a pool could not grow for a request.
struct RecordedLimit {
  std::size_t bytes = 0;  // 0: none
  trace::Backing backing = trace::Backing::unknown;
};
void record_refusal(const RecordedResource& by, const Request& request, std::size_t held_bytes,
                    const Failure& why, std::optional<RecordedLimit> limit = {}) noexcept;
void record_held(const RecordedResource& by, std::size_t held_bytes, std::size_t live_bytes,
                 std::size_t pending_bytes) noexcept;

}  // namespace tern
