#include "memory/memory_events.hpp"

#include "trace/recording.hpp"

namespace tern {
namespace {

trace::EventFacts facts_of(const RecordedResource& one) noexcept {
  return {.device = {one.device.id().value, one.device.spec()},
          .resource = {one.number, one.name, static_cast<std::uint8_t>(one.kind)}};
}

}  // namespace

void record_allocation(const RecordedResource& from, const Block& block, const Request& request,
                       StreamId stream) noexcept {
  trace::EventFacts facts = facts_of(from);
  facts.stream = stream.value();
  facts.block = block.generation.value();
  facts.address = reinterpret_cast<std::uintptr_t>(block.address);
  facts.bytes = block.bytes;
  facts.extra = request.bytes;
  facts.site = request.site;
  facts.tag = request.tag;
  trace::record(trace::EventKind::allocate, facts);
}

void record_free(const RecordedResource& to, const Block& block, Tag tag, Mark mark,
                 const CallSite& site, std::uint64_t time_ns) noexcept {
  trace::EventFacts facts = facts_of(to);
  facts.stream = mark.stream.value();
  facts.extra = mark.sequence;
  facts.block = block.generation.value();
  facts.address = reinterpret_cast<std::uintptr_t>(block.address);
  facts.bytes = block.bytes;
  facts.site = site;
  facts.tag = tag;
  facts.time_ns = time_ns;
  trace::record(trace::EventKind::free, facts);
}

void record_refusal(const RecordedResource& by, const Request& request, std::size_t held_bytes,
                    const Failure& why, std::optional<RecordedLimit> limit) noexcept {
  // A request for recycled memory is a question of a budget, which has other ways to serve it.
  if (request.only_recycled) return;
  if (limit) {
    trace::EventFacts facts = facts_of(by);
    facts.bytes = limit->bytes != 0 ? limit->bytes : trace::no_limit;
    facts.detail = static_cast<std::uint8_t>(limit->backing);
    trace::record(trace::EventKind::limit, facts);
  }
  trace::EventFacts facts = facts_of(by);
  facts.stream = request.stream.id().value();
  facts.bytes = request.bytes;
  facts.extra = held_bytes;
  facts.detail = static_cast<std::uint8_t>(why.code());
  facts.block = why.number("in_flight").value_or(0);
  facts.address = why.number("largest_now").value_or(0);
  facts.site = request.site;
  facts.tag = request.tag;
  trace::record(trace::EventKind::refuse, facts);
  trace::dump_after_failure();
}

void record_held(const RecordedResource& by, std::size_t held_bytes, std::size_t live_bytes,
                 std::size_t pending_bytes) noexcept {
  trace::EventFacts facts = facts_of(by);
  facts.bytes = held_bytes;
  facts.extra = live_bytes;
  facts.block = pending_bytes;
  trace::record(trace::EventKind::hold, facts);
}

}  // namespace tern
