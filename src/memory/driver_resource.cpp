#include "tern/memory/driver_resource.hpp"

#include <utility>

#include "device/device_state.hpp"
#include "memory/block_table.hpp"
#include "memory/memory_events.hpp"
#include "trace/recording.hpp"

namespace tern {

DriverResource::DriverResource(Device device, Order order, const char* not_recycled)
    : device_(std::move(device)),
      order_(order),
      not_recycled_(not_recycled),
      number_(trace::new_number()) {
  if (!device_.is_open()) {
    raise(Failure(ErrorCode::invalid_argument,
                  "a resource needs an open device, and the Device is empty.")
              .with("name", "device"));
  }
}

ResourceTraits DriverResource::traits() const noexcept {
  ResourceTraits traits;
  traits.is_device_accessible = true;
  traits.is_host_accessible = device_.can(Capability::host_access);
  traits.is_stream_ordered = order_ == Order::stream;
  traits.frees_without_waiting = order_ == Order::stream;
  traits.alignment = device_.info().alignment;
  traits.max_alignment = device_.info().max_alignment;
  return traits;
}

Statistics DriverResource::statistics() const noexcept {
  Statistics now = counters_.read();
  // What a driver with the order of streams keeps for later is its own secret.
  if (order_ == Order::host) now.reserved_bytes = now.live_bytes;
  now.failed_frees = failed_frees();
  now.failed_free_bytes = failed_free_bytes();
  return now;
}

StreamRef DriverResource::ordered_by(StreamRef stream) const noexcept {
  return order_ == Order::stream && !stream.id() ? device_.default_stream() : stream;
}

Result<void> DriverResource::wait_for(StreamRef stream) const noexcept {
  if (!stream.id()) return {};
  Mark mark;
  if (const StreamPin stay(stream); stay) mark = stream.next_mark();
  // One that has ended is waited for as a whole.
  const Result<void> waited = mark ? Device::try_wait(mark) : device_.try_synchronize();
  if (!waited && waited.failure().code() != ErrorCode::device_lost) return waited;
  return {};
}

Result<Block> DriverResource::try_allocate(const Request& request) noexcept {
  counters_.note_request();
  if (request.bytes == 0) return Block{};
  retry_before_allocation();
  Result<Block> block = begin(request);
  if (block) {
    counters_.note_allocation(block->bytes);
    if (trace::is_recording()) {
      const bool is_ordered = order_ == Order::stream;
      record_allocation(recorded(), *block, request,
                        is_ordered ? ordered_by(request.stream).id() : StreamId());
    }
  } else {
    counters_.note_refusal();
    if (trace::is_recording()) {
      record_refusal(recorded(), request, counters_.read().live_bytes, block.failure());
    }
  }
  return block;
}

RecordedResource DriverResource::recorded() const noexcept {
  return {device_, name(), number_, traits().kind};
}

Result<Block> DriverResource::begin(const Request& request) noexcept {
  if (Result<void> fits = check(request); !fits) return fits.failure();
  if (request.only_recycled) {
    return Failure(ErrorCode::out_of_memory, not_recycled_, request.site)
        .with_bytes("requested", request.bytes);
  }
  const StreamRef stream = ordered_by(request.stream);
  const Result<void*> address = take(request, stream);
  if (!address) return address.failure();
  const Result<Generation> generation = try_begin_block(
      {*address, request.bytes, device_.id(), this, stream.id(), request.tag, request.alignment});
  if (!generation) {
    put_back({*address, request.bytes, request.alignment}, stream, request.site);
    return generation.failure();
  }
  return Block{*address, request.bytes, device_.id(), *generation};
}

Result<void> DriverResource::try_deallocate(const Block& block, StreamRef stream,
                                            const CallSite& site) noexcept {
  if (!block) return {};
  const Result<BlockFacts> facts = try_claim_block(block, this);
  if (!facts) return Failure(facts.failure()).at(site);
  const auto fail = [&](const Failure& failure) {
    unclaim_block(block.generation);
    return Result<void>(Failure(failure).at(site));
  };
  stream = ordered_by(stream);
  const bool is_recorded = trace::is_recording();
  const std::uint64_t begun_ns = is_recorded ? trace::now_ns() : 0;
  if (stream.id() && stream.device_id() != device_.id()) {
    return fail(
        Failure(ErrorCode::device_mismatch,
                "memory of '{a}' was freed on a stream of {b}. Free it on a stream of '{a}'.")
            .with("a", device_.spec())
            .with("b", Place::device(stream.device_id()).text()));
  }
  const Result<Mark> gone = give({block.address, block.bytes, facts->note}, stream, site);
  if (!gone) return fail(gone.failure());
  counters_.note_free(block.bytes);
  if (is_recorded) {
    record_free(recorded(), block, facts->tag, {stream.id(), 0}, site, begun_ns);
  }
  end_block(block.generation, *gone);
  return {};
}

}  // namespace tern
