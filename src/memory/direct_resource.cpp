#include "tern/memory/direct_resource.hpp"

#include <algorithm>
#include <utility>

#include "memory/block_table.hpp"

namespace tern {
namespace {

Capability needed_for(MemoryKind kind) {
  switch (kind) {
    case MemoryKind::pinned:
      return Capability::pinned_memory;
    case MemoryKind::managed:
      return Capability::managed_memory;
    default:
      return Capability::host_access;
  }
}

}  // namespace

DirectResource::DirectResource(Device device, MemoryKind kind)
    : device_(std::move(device)), kind_(kind) {
  if (!device_.is_open()) {
    raise(Failure(ErrorCode::invalid_argument, "a resource needs a device, and was given none.")
              .with("name", "device"));
  }
  if (kind != MemoryKind::device && kind != MemoryKind::pinned && kind != MemoryKind::managed) {
    raise(Failure(ErrorCode::invalid_argument,
                  "{value} memory cannot be allocated. Ask for device, pinned or managed memory.")
              .with("name", "kind")
              .with("value", tern::name(kind)));
  }
  if (kind != MemoryKind::device && !device_.can(needed_for(kind))) {
    raise(Failure(ErrorCode::unsupported)
              .with("what", tern::name(kind))
              .with("device", device_.spec()));
  }
}

ResourceTraits DirectResource::traits() const noexcept {
  ResourceTraits traits;
  traits.is_device_accessible = true;
  traits.is_host_accessible = kind_ != MemoryKind::device || device_.can(Capability::host_access);
  traits.alignment = device_.info().alignment;
  traits.max_alignment = device_.info().max_alignment;
  return traits;
}

Statistics DirectResource::statistics() const noexcept {
  Statistics now = counters_.read();
  now.reserved_bytes = now.live_bytes;
  now.failed_frees = failed_frees();
  now.failed_free_bytes = failed_free_bytes();
  return now;
}

std::size_t DirectResource::good_size(const Request& request) const noexcept {
  return request.bytes;
}

Result<Block> DirectResource::try_allocate(const Request& request) noexcept {
  counters_.note_request();
  if (request.bytes == 0) return Block{};
  const auto refuse = [&](const Failure& failure) {
    counters_.note_refusal();
    return Result<Block>(failure);
  };
  if (Result<void> fits = check(request); !fits) return refuse(fits.failure());
  if (request.source == Source::recycled) {
    return refuse(Failure(ErrorCode::out_of_memory,
                          "the direct resource keeps nothing to use again, and {requested} were "
                          "asked for from what the stream has freed.",
                          request.site)
                      .with_bytes("requested", request.bytes));
  }
  const Result<void*> address = device_.try_allocate(
      kind_, request.bytes,
      {.alignment = request.alignment, .tag = request.tag, .site = request.site});
  if (!address) return refuse(address.failure());
  const Result<Generation> generation = try_begin_block(
      {*address, request.bytes, device_.id(), this, request.stream.id(), request.tag, 0});
  if (!generation) {
    // Nobody has used it, so giving it back cannot fail for a stream's sake.
    static_cast<void>(device_.try_release(*address, request.site));
    return refuse(generation.failure());
  }
  counters_.note_allocation(request.bytes);
  return Block{*address, request.bytes, device_.id(), *generation};
}

Result<void> DirectResource::try_deallocate(const Block& block, StreamRef stream,
                                            CallSite site) noexcept {
  if (!block) return {};
  const Result<BlockFacts> facts = try_claim_block(block, this);
  if (!facts) return Failure(facts.failure()).at(site);
  const auto fail = [&](const Failure& failure) {
    unclaim_block(block.generation);
    return Result<void>(Failure(failure).at(site));
  };
  // What was submitted to the stream may still use it. One that has ended is waited for as a whole.
  if (stream.id()) {
    if (stream.device_id() != device_.id()) {
      return fail(
          Failure(ErrorCode::device_mismatch,
                  "memory of '{a}' was freed on a stream of {b}. Free it on a stream of its "
                  "own device.")
              .with("a", device_.spec())
              .with("b", Place::device(stream.device_id()).text()));
    }
    const Result<Mark> mark = stream.try_mark();
    const Result<void> waited = mark ? Device::try_wait(*mark) : device_.try_synchronize();
    if (!waited && waited.failure().code() != ErrorCode::device_lost) return fail(waited.failure());
  }
  if (Result<void> released = device_.try_release(block.address, site); !released) {
    return fail(released.failure());
  }
  counters_.note_free(block.bytes);
  end_block(block.generation, Mark{});
  return {};
}

}  // namespace tern
