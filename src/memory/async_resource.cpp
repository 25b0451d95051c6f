#include "tern/memory/async_resource.hpp"

#include <utility>

#include "memory/block_table.hpp"

namespace tern {

AsyncResource::AsyncResource(Device device) : device_(std::move(device)) {
  if (!device_.is_open()) {
    raise(Failure(ErrorCode::invalid_argument, "a resource needs a device, and was given none.")
              .with("name", "device"));
  }
  if (!device_.can(Capability::stream_ordered_memory)) {
    raise(Failure(ErrorCode::unsupported)
              .with("what", tern::name(Capability::stream_ordered_memory))
              .with("device", device_.spec()));
  }
}

ResourceTraits AsyncResource::traits() const noexcept {
  ResourceTraits traits;
  traits.is_device_accessible = true;
  traits.is_host_accessible = device_.can(Capability::host_access);
  traits.is_stream_ordered = true;
  traits.frees_without_waiting = true;
  traits.alignment = device_.info().alignment;
  traits.max_alignment = device_.info().max_alignment;
  return traits;
}

Statistics AsyncResource::statistics() const noexcept {
  Statistics now = counters_.read();
  now.failed_frees = failed_frees();
  now.failed_free_bytes = failed_free_bytes();
  return now;
}

std::size_t AsyncResource::good_size(const Request& request) const noexcept {
  return request.bytes;
}

Result<Block> AsyncResource::try_allocate(const Request& request) noexcept {
  counters_.note_request();
  if (request.bytes == 0) return Block{};
  const auto refuse = [&](const Failure& failure) {
    counters_.note_refusal();
    return Result<Block>(failure);
  };
  if (Result<void> fits = check(request); !fits) return refuse(fits.failure());
  if (request.source == Source::recycled) {
    return refuse(Failure(ErrorCode::out_of_memory,
                          "the driver's allocator does not say what it uses again, and {requested} "
                          "were asked for from what the stream has freed.",
                          request.site)
                      .with_bytes("requested", request.bytes));
  }
  const bool has_stream = bool(request.stream.id());
  const StreamRef stream = has_stream ? request.stream : device_.default_stream();
  const Result<void*> address = stream.try_allocate(
      request.bytes, {.alignment = request.alignment, .tag = request.tag, .site = request.site});
  if (!address) return refuse(address.failure());
  const auto give_back = [&](const Failure& why) {
    static_cast<void>(stream.try_release(*address, request.site));
    return refuse(why);
  };
  // The host is to use it first, so it has to be there.
  if (!has_stream) {
    if (Result<void> ready = stream.try_synchronize(); !ready) return give_back(ready.failure());
  }
  const Result<Generation> generation =
      try_begin_block({*address, request.bytes, device_.id(), this, stream.id(), request.tag, 0});
  if (!generation) return give_back(generation.failure());
  counters_.note_allocation(request.bytes);
  return Block{*address, request.bytes, device_.id(), *generation};
}

Result<void> AsyncResource::try_deallocate(const Block& block, StreamRef stream,
                                           CallSite site) noexcept {
  if (!block) return {};
  const Result<BlockFacts> facts = try_claim_block(block, this);
  if (!facts) return Failure(facts.failure()).at(site);
  const auto fail = [&](const Failure& failure) {
    unclaim_block(block.generation);
    return Result<void>(Failure(failure).at(site));
  };
  if (!stream.id()) stream = device_.default_stream();
  if (stream.device_id() != device_.id()) {
    return fail(Failure(ErrorCode::device_mismatch,
                        "memory of '{a}' was freed on a stream of {b}. Free it on a stream of its "
                        "own device.")
                    .with("a", device_.spec())
                    .with("b", Place::device(stream.device_id()).text()));
  }
  Result<Mark> mark = stream.try_mark();
  if (!mark) {
    // The stream has ended: its work is waited for, and any stream may free then.
    if (Result<void> waited = device_.try_synchronize();
        !waited && waited.failure().code() != ErrorCode::device_lost) {
      return fail(waited.failure());
    }
    stream = device_.default_stream();
  }
  if (Result<void> released = stream.try_release(block.address, site); !released) {
    return fail(released.failure());
  }
  counters_.note_free(block.bytes);
  // Marks cover what was submitted before they are taken, and the release is part of that.
  mark = stream.try_mark();
  end_block(block.generation, mark ? *mark : Mark{});
  return {};
}

}  // namespace tern
