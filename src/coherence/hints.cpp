// Sends hints to the driver. check_able() in hint_checks.cpp decides whether a hint is sent,
// skipped (the device lacks concurrent_managed or the capability) or, with HintOptions::strict,
// refused.

#include "tern/coherence/hints.hpp"

#include <algorithm>
#include <new>
#include <utility>

#include "coherence/hint_checks.hpp"
#include "core/no_host_memory.hpp"
#include "tern/buffer/foreign.hpp"
#include "tern/core/bytes.hpp"

namespace tern {
namespace {

bool has_place(Advice advice) noexcept {
  return advice == Advice::set_preferred_location || advice == Advice::set_accessed_by ||
         advice == Advice::unset_accessed_by;
}

bool is_accessed_by(Advice advice) noexcept {
  return advice == Advice::set_accessed_by || advice == Advice::unset_accessed_by;
}

Result<void> check_advice(std::pair<Advice, Place> advice, CallSite site) noexcept {
  if (!has_place(advice.first)) return {};
  if (is_accessed_by(advice.first) && advice.second.is_host() && advice.second != Place::host()) {
    return Failure(ErrorCode::invalid_device,
                   "drivers keep mappings for devices and the host, not for a NUMA node ({spec} "
                   "{number}). Pass the host instead.",
                   site)
        .with("spec", "host numa")
        .with("number", advice.second.index());
  }
  return check_page_place(advice.second, site);
}

/// Returns the advice that restores the setting from before `told`.
std::pair<Advice, Place> opposite_of(std::pair<Advice, Place> told,
                                     const ManagedInfo& before) noexcept {
  switch (told.first) {
    case Advice::set_read_mostly:
    case Advice::unset_read_mostly:
      return {before.is_read_mostly ? Advice::set_read_mostly : Advice::unset_read_mostly, {}};
    case Advice::set_preferred_location:
    case Advice::unset_preferred_location:
      if (before.preferred) return {Advice::set_preferred_location, *before.preferred};
      return {Advice::unset_preferred_location, {}};
    case Advice::set_accessed_by:
    case Advice::unset_accessed_by:
      break;
  }
  return {before.is_accessed_by(told.second) ? Advice::set_accessed_by : Advice::unset_accessed_by,
          told.second};
}

/// Adds the setting of one part to that of the whole range.
template <class T>
void join(T& whole, bool& is_mixed, const T& part, bool is_first) {
  if (is_first) {
    whole = part;
  } else if (whole != part) {
    is_mixed = true;
  }
}

}  // namespace

const char* name(HintSkip skip) noexcept {
  switch (skip) {
    case HintSkip::none:
      return "sent";
    case HintSkip::zero_bytes:
      return "skipped: there are no bytes";
    case HintSkip::default_policy:
      return "skipped: the policy is the driver's own";
    case HintSkip::not_concurrent:
      return "skipped: host and device cannot use managed memory at the same time";
    case HintSkip::not_supported:
      return "skipped: the device takes no such hints";
    case HintSkip::already_there:
      return "skipped: all of it is there";
  }
  return "unknown";
}

Hints::Hints(Buffer buffer, HintOptions options, std::nullptr_t) noexcept
    : buffer_(std::move(buffer)), options_(options) {}

Hints::Hints(Buffer buffer, HintOptions options, CallSite site)
    : Hints(try_make(std::move(buffer), options, site).value()) {}

Result<Hints> Hints::try_make(Buffer buffer, HintOptions options, CallSite site) noexcept {
  if (Result<void> managed = check_managed(buffer, site); !managed) return managed.failure();
  return Hints(std::move(buffer), options, nullptr);
}

Result<Hints> Hints::try_over(const Device& device, void* address, std::size_t bytes,
                              std::shared_ptr<void> owner, HintOptions options,
                              CallSite site) noexcept {
  if (!owner) {
    return Failure(ErrorCode::invalid_argument,
                   "hints on borrowed memory need an owner that keeps the memory alive. Pass the "
                   "owner.",
                   site)
        .with("name", "owner")
        .with("value", "null");
  }
  Result<Buffer> borrowed =
      try_borrow(device, address, bytes, {.owner = std::move(owner), .site = site});
  if (!borrowed) return borrowed.failure();
  return try_make(*std::move(borrowed), options, site);
}

// --- Ranges

Result<HintRange> Hints::try_resolve(std::optional<HintRange> range, CallSite site) const noexcept {
  if (!range) return HintRange{0, buffer_.size_bytes()};
  if (Result<void> inside = check_hint_range(*range, buffer_.size_bytes(), site); !inside) {
    return inside.failure();
  }
  return *range;
}

Result<HintRange> Hints::try_effective_range(std::optional<HintRange> asked,
                                             CallSite site) const noexcept {
  const Result<HintRange> range = try_resolve(asked, site);
  if (!range) return range.failure();
  HintRange effective{range->offset_bytes, range->bytes, 0, 0};
  if (range->bytes == 0) return effective;
  if (Result<void> there = buffer_.try_ensure_allocated({}, site); !there) return there.failure();
  const Result<std::uintptr_t> address = buffer_.try_address();
  if (!address) return Failure(address.failure()).at(site);
  const std::size_t page = hint_page_bytes();
  effective.before_bytes = (*address + range->offset_bytes) % page;
  const std::size_t end = (*address + range->offset_bytes + range->bytes) % page;
  effective.after_bytes = end == 0 ? 0 : page - end;
  return effective;
}

Result<void> Hints::try_note_edges(HintRange range, CallSite site) const noexcept {
  const Result<HintRange> effective = try_effective_range(range, site);
  if (!effective) return effective.failure();
  const std::size_t begin = buffer_.offset_bytes() + range.offset_bytes;
  // Memory before the storage belongs to another storage, which has its own record.
  const std::size_t before = std::min(effective->before_bytes, begin);
  return buffer_.storage()->try_note_edges(
      {begin - before, begin + range.bytes + effective->after_bytes});
}

Result<std::vector<Hints::Part>> Hints::try_parts(HintRange range, CallSite site) const noexcept
    try {
  if (Result<void> there = buffer_.try_ensure_allocated({}, site); !there) return there.failure();
  const std::size_t first = buffer_.offset_bytes() + range.offset_bytes;
  Result<std::vector<std::size_t>> edges =
      buffer_.storage()->try_edges({first, first + range.bytes});
  if (!edges) return Failure(edges.failure()).at(site);
  edges->push_back(first + range.bytes);
  std::byte* const base = buffer_.storage()->first_byte();
  std::vector<Part> parts;
  std::size_t begin = first;
  for (const std::size_t end : *edges) {
    Result<ManagedInfo> info = buffer_.device().try_managed_info(base + begin, end - begin);
    if (!info) return Failure(info.failure()).at(site);
    parts.push_back({{begin - buffer_.offset_bytes(), end - begin}, *std::move(info)});
    begin = end;
  }
  return parts;
} catch (const std::bad_alloc&) {
  return no_host_memory("a query of hints", site);
}

// --- Advice

Result<void> Hints::try_tell(std::pair<Advice, Place> advice, HintRange range,
                             CallSite site) const noexcept {
  if (Result<void> noted = try_note_edges(range, site); !noted) return noted;
  if (Result<void> noted = buffer_.storage()->try_note_advice(advice.first, advice.second);
      !noted) {
    return noted;
  }
  const Result<void> told = buffer_.device().try_advise(
      buffer_.storage()->first_byte() + buffer_.offset_bytes() + range.offset_bytes, range.bytes,
      advice.first, advice.second);
  if (!told) return Failure(told.failure()).at(site);
  return {};
}

Result<HintReport> Hints::try_report(HintRange range, Capability wanted,
                                     CallSite site) const noexcept {
  HintReport report{HintSkip::zero_bytes, {range.offset_bytes, range.bytes, 0, 0}};
  if (range.bytes == 0) return report;
  const Result<HintSkip> able = check_able(buffer_.device(), wanted, options_, site);
  if (!able) return able.failure();
  report.skipped = *able;
  if (!report.is_sent()) return report;
  const Result<HintRange> effective = try_effective_range(range, site);
  if (!effective) return effective.failure();
  report.range = *effective;
  return report;
}

Result<HintReport> Hints::try_advise(std::pair<Advice, Place> advice,
                                     std::optional<HintRange> asked, CallSite site) const noexcept {
  const Result<HintRange> range = try_resolve(asked, site);
  if (!range) return range.failure();
  if (Result<void> sound = check_advice(advice, site); !sound) return sound.failure();
  Result<HintReport> report = try_report(*range, Capability::advice, site);
  if (!report || !report->is_sent()) return report;
  if (Result<void> told = try_tell(advice, *range, site); !told) return told.failure();
  return report;
}

Result<HintUndo> Hints::try_apply(const MigrationPolicy& policy, std::optional<HintRange> asked,
                                  CallSite site) const noexcept try {
  const Result<HintRange> range = try_resolve(asked, site);
  if (!range) return range.failure();
  const std::vector<std::pair<Advice, Place>> advice = policy.advice();
  HintReport report{HintSkip::none, {range->offset_bytes, range->bytes, 0, 0}};
  if (advice.empty()) {
    report.skipped = HintSkip::default_policy;
    return HintUndo(*this, {}, {}, report);
  }
  for (const std::pair<Advice, Place>& one : advice) {
    if (Result<void> sound = check_advice(one, site); !sound) return sound.failure();
  }
  const Result<HintSkip> able = check_able(buffer_.device(), Capability::advice, options_, site);
  if (!able) return able.failure();
  report.skipped = range->bytes == 0 ? HintSkip::zero_bytes : *able;
  if (!report.is_sent()) return HintUndo(*this, {}, {}, report);
  const Result<HintRange> effective = try_effective_range(*range, site);
  if (!effective) return effective.failure();
  report.range = *effective;
  Result<std::vector<Part>> before = try_parts(*range, site);
  if (!before) return before.failure();
  HintUndo undo(*this, {}, *std::move(before), report);
  undo.told_.reserve(advice.size());
  for (const std::pair<Advice, Place>& one : advice) {
    if (Result<void> told = try_tell(one, *range, site); !told) {
      // Takes back what was applied, as far as the driver allows. The first failure is returned.
      static_cast<void>(undo.try_restore(site));
      return told.failure();
    }
    undo.told_.push_back(one);
  }
  return undo;
} catch (const std::bad_alloc&) {
  return no_host_memory("a migration policy", site);
}

HintUndo Hints::apply(const MigrationPolicy& policy, std::optional<HintRange> range,
                      CallSite site) const {
  return try_apply(policy, range, site).value();
}

Result<HintUndo> Hints::try_apply_at(const MigrationPolicy& policy, Place place,
                                     std::optional<HintRange> range, CallSite site) const noexcept {
  if (policy.preferred() && *policy.preferred() != place) {
    const auto kind = [](Place one) { return one.is_host() ? "host" : "device"; };
    return Failure(ErrorCode::device_mismatch,
                   "the policy prefers {a} {a_number}, but the call names {b} {b_number}. Pass the "
                   "policy's place, or none.",
                   site)
        .with("a", kind(*policy.preferred()))
        .with("a_number", policy.preferred()->index())
        .with("b", kind(place))
        .with("b_number", place.index());
  }
  return try_apply(policy, range, site);
}

HintUndo Hints::apply_at(const MigrationPolicy& policy, Place place, std::optional<HintRange> range,
                         CallSite site) const {
  return try_apply_at(policy, place, range, site).value();
}

Result<ManagedInfo> Hints::try_query(std::optional<HintRange> asked, CallSite site) const noexcept
    try {
  const Result<HintRange> range = try_resolve(asked, site);
  if (!range) return range.failure();
  ManagedInfo state;
  if (range->bytes == 0) return state;
  const Device& device = buffer_.device();
  const bool is_concurrent = device.can(Capability::concurrent_managed);
  if (!is_concurrent || !device.can(Capability::advice)) {
    return Failure(ErrorCode::unsupported,
                   "'{device}' lacks {what}, so it received no hints on the memory and has none to "
                   "return. Query only devices with the capability (Device::can).",
                   site)
        .with("what", name(is_concurrent ? Capability::advice : Capability::concurrent_managed))
        .with("device", device.spec());
  }
  const Result<std::vector<Part>> parts = try_parts(*range, site);
  if (!parts) return parts.failure();
  bool is_first = true;
  for (const Part& part : *parts) {
    std::vector<Place> accessors = part.info.accessed_by;
    std::ranges::sort(accessors);
    join(state.is_read_mostly, state.is_read_mostly_mixed, part.info.is_read_mostly, is_first);
    join(state.preferred, state.is_preferred_mixed, part.info.preferred, is_first);
    join(state.accessed_by, state.is_accessed_by_mixed, accessors, is_first);
    join(state.last_prefetch, state.is_last_prefetch_mixed, part.info.last_prefetch, is_first);
    is_first = false;
  }
  return state;
} catch (const std::bad_alloc&) {
  return no_host_memory("a query of hints", site);
}

// --- In stream order

Result<HintReport> Hints::try_prefetch(Place place, StreamRef stream,
                                       std::optional<HintRange> asked,
                                       CallSite site) const noexcept {
  const Result<HintRange> range = try_resolve(asked, site);
  if (!range) return range.failure();
  if (Result<void> sound = check_page_place(place, site); !sound) return sound.failure();
  Result<HintReport> report = try_report(*range, Capability::prefetch, site);
  if (!report || !report->is_sent()) return report;
  if (Result<void> noted = try_note_edges(*range, site); !noted) return noted.failure();
  // Ordered like a read, but does not require that the bytes were written.
  UseRecord& uses = buffer_.storage()->uses();
  const Result<UseRecord::Ticket> ticket = uses.try_begin(stream, Access::read, site);
  if (!ticket) return ticket.failure();
  const Result<void> sent = stream.try_prefetch(
      buffer_.storage()->first_byte() + buffer_.offset_bytes() + range->offset_bytes, range->bytes,
      place, site);
  if (!sent) {
    uses.cancel(*ticket);
    return sent.failure();
  }
  uses.end(*ticket, stream, stream.next_mark(), Access::read);
  return report;
}

Result<HintReport> Hints::try_give_up(std::optional<Place> place, StreamRef stream,
                                      std::optional<HintRange> asked,
                                      CallSite site) const noexcept {
  const Result<HintRange> range = try_resolve(asked, site);
  if (!range) return range.failure();
  if (place) {
    if (Result<void> sound = check_page_place(*place, site); !sound) return sound.failure();
  }
  const Result<HintReport> report = try_report(*range, Capability::discard, site);
  if (!report || range->bytes == 0) return report;
  const std::size_t offset = buffer_.offset_bytes() + range->offset_bytes;
  // Ordered like a write: after all earlier uses, and before all later ones.
  Result<StorageUse> use =
      buffer_.storage()->try_use(stream, Access::discard, offset, range->bytes, site);
  if (!use) return use.failure();
  if (report->is_sent()) {
    if (Result<void> noted = try_note_edges(*range, site); !noted) return noted.failure();
    const Result<void> sent =
        stream.try_discard(buffer_.storage()->first_byte() + offset, range->bytes, place, site);
    if (!sent) return sent.failure();
  }
  use->end();
  buffer_.storage()->note_unwritten(offset, range->bytes);
  if (report->is_sent() || !place) return report;
  return try_prefetch(*place, stream, *range, site);
}

Result<HintReport> Hints::try_discard(StreamRef stream, std::optional<HintRange> range,
                                      CallSite site) const noexcept {
  return try_give_up(std::nullopt, stream, range, site);
}

Result<HintReport> Hints::try_discard_prefetch(Place place, StreamRef stream,
                                               std::optional<HintRange> range,
                                               CallSite site) const noexcept {
  return try_give_up(place, stream, range, site);
}

// --- Undo

HintUndo::HintUndo(Hints hints, std::vector<std::pair<Advice, Place>> told,
                   std::vector<Hints::Part> before, HintReport report) noexcept
    : hints_(std::move(hints)),
      told_(std::move(told)),
      before_(std::move(before)),
      report_(report) {}

Result<void> HintUndo::try_restore(CallSite site) const noexcept {
  Result<void> first;
  for (const Hints::Part& part : before_) {
    for (const std::pair<Advice, Place>& told : told_) {
      const Result<void> restored = hints_.try_tell(opposite_of(told, part.info), part.range, site);
      if (!restored && first) first = restored;
    }
  }
  return first;
}

}  // namespace tern
