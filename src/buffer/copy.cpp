// The public copy functions. copy_route.cpp chooses the route, copy_engine.cpp runs it.

#include "tern/buffer/copy.hpp"

#include <cstring>
#include <optional>

#include "buffer/copy_engine.hpp"
#include "buffer/copy_route.hpp"
#include "buffer/copy_turns.hpp"
#include "buffer/sure_wait.hpp"
#include "buffer/transfer_counts.hpp"
#include "tern/core/bytes.hpp"

namespace tern {
namespace {

/// From this size on, several threads copy faster than one.
constexpr std::size_t min_team_bytes = 4 * mib;

/// Copies host memory to host memory on the host. The ranges may overlap.
Result<void> copy_by_host(const CopyRows& rows, CallSite site) noexcept {
  Storage& to = rows.to;
  Storage& from = rows.from;
  const std::size_t to_offset = rows.to_side.offset, from_offset = rows.from_side.offset;
  HostTurn to_turn, from_turn;
  if (Result<void> taken = by_address(
          to, from, [&] { return to_turn.try_take(to, Access::discard, site); },
          [&] { return from_turn.try_take(from, Access::read, site); });
      !taken) {
    return taken;
  }
  if (Result<void> ready = from.try_wait_host(Access::read, from_offset, rows.width, site);
      !ready) {
    return ready;
  }
  if (Result<void> ready = to.try_wait_host(Access::discard, to_offset, rows.width, site); !ready) {
    return ready;
  }
  std::memmove(address_for(to, DeviceId{}) + to_offset, address_for(from, DeviceId{}) + from_offset,
               rows.width);
  to.note_written(to_offset, rows.width);
  return {};
}

/// Returns the device whose copy stream runs a copy without a stream.
const Device& runner_of(const CopyRows& rows) noexcept {
  if (rows.to.kind() == MemoryKind::file) return rows.from.device();
  if (!is_host_memory(rows.to)) return rows.to.device();
  if (!is_host_memory(rows.from)) return rows.from.device();
  return rows.to.device().info().is_host ? rows.to.device() : rows.from.device();
}

}  // namespace

Result<CopyRoute> try_copy_route(const Buffer& destination, const Buffer& source,
                                 const Device& device) noexcept {
  if (Result<void> sound = check_sides(destination, source, {}); !sound) return sound.failure();
  const std::optional<CopyPlan> plan =
      plan_copy(*destination.storage(), *source.storage(), device.id());
  if (plan) return plan->route;
  return no_copy_route(*destination.storage(), *source.storage(), device.spec(), {});
}

Result<Mark> try_copy(const Buffer& destination, const Buffer& source, StreamRef stream,
                      CallSite site) noexcept {
  if (Result<void> sound = check_sides(destination, source, site); !sound) return sound.failure();
  if (Result<void> same = check_same_size(destination, source, site); !same) return same.failure();
  if (source.size_bytes() == 0) return mark_of_nothing(stream);
  if (Result<void> usable = check_stream(stream, site); !usable) return usable.failure();
  const CopyRows rows = rows_of(destination, source);
  if (Result<void> sound = check_rows(rows, site); !sound) return sound.failure();
  if (Result<void> may = try_download(rows.to, rows.from, rows.width, stream.device_id(), site);
      !may) {
    return may.failure();
  }
  const Result<CopyRoute> queued = try_run_copy(rows, stream, FurtherStreams::fresh, site);
  if (!queued) return queued.failure();
  count_transfer(rows.to, rows.from, rows.width, *queued);
  return stream.try_mark();
}

Result<void> try_copy(const Buffer& destination, const Buffer& source, CallSite site) noexcept {
  if (Result<void> sound = check_sides(destination, source, site); !sound) return sound;
  if (Result<void> same = check_same_size(destination, source, site); !same) return same;
  if (source.size_bytes() == 0) return {};
  const CopyRows rows = rows_of(destination, source);
  if (Result<void> sound = check_rows(rows, site); !sound) return sound;
  if (rows.to.kind() == MemoryKind::file && is_host_memory(rows.from)) {
    return try_write_file(rows.to, rows.to_side.offset, rows.from, rows.from_side.offset,
                          rows.width, site);
  }
  if (is_host_memory(rows.to)) {
    if (rows.from.kind() == MemoryKind::file) {
      return try_read_file(rows.to, rows.to_side.offset, rows.from, rows.from_side.offset,
                           rows.width, site);
    }
    if (is_host_memory(rows.from) &&
        (rows.width < min_team_bytes || !runner_of(rows).info().is_host)) {
      return copy_by_host(rows, site);
    }
  }
  if (Result<void> may = try_download(rows.to, rows.from, rows.width, runner_of(rows).id(), site);
      !may) {
    return may;
  }
  const Result<StreamRef> stream = runner_of(rows).try_copy_stream();
  if (!stream) return Failure(stream.failure()).at(site);
  // The host waits for earlier uses, not the stream: other copies are queued on the stream behind
  // this one.
  if (rows.from.kind() != MemoryKind::file) {
    if (Result<void> ready = rows.from.uses().try_wait(Access::read, site); !ready) {
      return Failure(ready.failure()).at(site);
    }
  }
  if (Result<void> ready = rows.to.uses().try_wait(Access::discard, site); !ready) {
    return Failure(ready.failure()).at(site);
  }
  const Result<CopyRoute> queued = try_run_copy(rows, *stream, FurtherStreams::library, site);
  if (!queued) return queued.failure();
  // Borrowed memory may belong to the caller, so the copy must really be complete.
  if (const Result<void> done = try_wait_surely(*stream, stream->next_mark(), site); !done) {
    return Failure(done.failure()).at(site);
  }
  if (Result<void> arrived = rows.to.check_arrived(rows.to_side.offset, rows.width, site);
      !arrived) {
    return arrived;
  }
  count_transfer(rows.to, rows.from, rows.width, *queued);
  return {};
}

}  // namespace tern
