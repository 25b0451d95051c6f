#include "trace/order_report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <tuple>

#include "tern/core/bytes.hpp"

namespace tern {
namespace {

/// Uses a larger unit only if the number of units is whole, so that equal sizes look equal.
std::string text(std::uint64_t bytes) {
  for (const auto& [unit, name] : {std::pair{gib, "GiB"}, {mib, "MiB"}, {kib, "KiB"}}) {
    if (bytes >= unit && bytes % unit == 0) return fmt::format("{} {}", bytes / unit, name);
  }
  return fmt::format("{} B", bytes);
}

std::string text(const SpaceRange& range) {
  return fmt::format("[{}{:#x}, +{})", range.space == 0 ? "host+" : "", range.offset,
                     text(range.bytes));
}

std::string tag_text(Tag tag) {
  return tag == Tag() ? "" : fmt::format("  tag \"{}\"", tag.name());
}

std::string site_text(CallSite site) {
  if (!site.is_known()) return "";
  const std::string_view function = site.function;  // a recording has none
  return fmt::format("  {}:{}{}{}", site.file, site.line, function.empty() ? "" : " in ", function);
}

/// Returns the name of an operation in a sentence, such as `kernel "fill"` or `copy`.
std::string noun(const Note& note) {
  if (is_birth(note.touch)) return "allocation";
  if (is_death(note.touch)) return "deallocation";
  if (note.is_host) return note.touch == TouchKind::read ? "read" : "write";
  const std::string_view kind = note.operation == OperationKind::copy       ? "copy"
                                : note.operation == OperationKind::fill     ? "fill"
                                : note.operation == OperationKind::prefetch ? "prefetch"
                                : note.operation == OperationKind::kernel   ? "kernel"
                                                                            : "host function";
  return note.name.empty() ? std::string(kind) : fmt::format("{} \"{}\"", kind, note.name);
}

std::string action(const Note& note) {
  if (note.range.bytes == 0) return noun(note);
  if (is_birth(note.touch)) return fmt::format("allocate {}", text(note.range.bytes));
  if (is_death(note.touch)) return "deallocate";
  const bool reads = note.touch == TouchKind::read;
  const bool writes = note.touch == TouchKind::write;
  if (note.operation == OperationKind::copy && note.other.bytes > 0) {
    return fmt::format("{} {} to {}", noun(note), text(reads ? note.range : note.other),
                       text(reads ? note.other : note.range));
  }
  if (note.is_host) {
    return fmt::format("host {} {}",
                       reads    ? "read"
                       : writes ? "write"
                                : "read and write",
                       text(note.range.bytes));
  }
  if (note.operation == OperationKind::fill || note.operation == OperationKind::prefetch) {
    return fmt::format("{} {}", noun(note), text(note.range));
  }
  return fmt::format("{} {} {}", noun(note),
                     reads    ? "reads"
                     : writes ? "writes"
                              : "reads and writes",
                     text(note.range));
}

}  // namespace

std::string OrderReport::name(ActorId actor) const {
  const Actor* found = actors_.find(actor);
  if (found != nullptr && !found->name.empty()) return found->name;
  const bool is_host = found != nullptr && found->kind == ActorKind::host;
  return fmt::format("{}{}", is_host ? "H" : "S", actor);
}

std::string OrderReport::mark(ActorId actor, std::uint64_t sequence) const {
  const Actor* found = actors_.find(actor);
  // The number of the stream was reused for another stream since.
  if (found != nullptr && sequence > 0 && sequence <= found->begun_after) {
    return fmt::format("ended-stream-{}@{}", actor, sequence);
  }
  return fmt::format("{}@{}", name(actor), sequence);
}

std::string OrderReport::party(ActorId actor, bool is_host) const {
  return is_host ? name(actor) : fmt::format("stream {}", name(actor));
}

std::string OrderReport::line(const Note& note, std::string_view other_action) const {
  const bool is_life = is_birth(note.touch) || is_death(note.touch);
  return fmt::format("{:<5} {}{}{}", mark(note.actor, note.sequence),
                     other_action.empty() ? action(note) : other_action,
                     is_life ? tag_text(note.tag) : "", site_text(note.site));
}

std::string OrderReport::block_line(const Note& birth) const {
  const char* how = birth.range.space == 0 ? "of host memory by" : birth.is_host ? "by" : "on";
  return fmt::format("generation {}, {} {} {}{}{}", birth.reuse, text(birth.range.bytes), how,
                     mark(birth.actor, birth.sequence), tag_text(birth.tag), site_text(birth.site));
}

std::string OrderReport::what(const Note& now, const SpaceRange& range,
                              const Problem& problem) const {
  const std::string bytes = text(range);
  const std::string who = party(now.actor, now.is_host);
  const Note* before = problem.against.note.get();
  const std::string other =
      before != nullptr ? party(problem.against.actor, before->is_host) : "somebody";
  const char* done = now.touch == TouchKind::read    ? "read"
                     : now.touch == TouchKind::write ? "written"
                                                     : "read and written";
  // If the conflict is with a free, describe the last use before the free.
  const Note* use = before != nullptr && is_death(before->touch) ? problem.earlier.get() : before;
  const char* still = use == nullptr || is_birth(use->touch) ? "use"
                      : use->touch == TouchKind::read        ? "read"
                                                             : "write";
  switch (problem.code) {
    case FindingCode::missing_wait:
    case FindingCode::host_read_before_sync:
    case FindingCode::host_write_before_sync:
      return fmt::format("{} is {} by {} while {} may still {} it", bytes, done, who, other, still);
    case FindingCode::free_while_in_use:
      return fmt::format("{} is freed {} {} while {} may still {} it", bytes,
                         now.is_host ? "by" : "on", who, other, still);
    case FindingCode::reuse_before_ready:
      return fmt::format("{} was allocated to {} while {} may still {} it", bytes, who, other,
                         still);
    case FindingCode::use_before_alloc:
      return fmt::format("{} is {} by {}, which may come before its allocation on {}", bytes, done,
                         who, other);
    case FindingCode::use_after_free:
      return before != nullptr && is_birth(before->touch)
                 ? fmt::format("{} is {} by {} after it was freed and reused", bytes, done, who)
                 : fmt::format("{} is {} by {} after it was freed", bytes, done, who);
    case FindingCode::double_free:
      return fmt::format("{} is freed {} {} after it was freed", bytes, now.is_host ? "by" : "on",
                         who);
    case FindingCode::wrong_range_free:
      return fmt::format("{} is freed {} {} but is not an allocated block", bytes,
                         now.is_host ? "by" : "on", who);
    case FindingCode::live_block_reissued:
      return fmt::format("{} was allocated to {} while {} still owns it", bytes, who, other);
    case FindingCode::uninitialised_read:
      return fmt::format("{} is read by {}; nothing has written it since its allocation", bytes,
                         who);
    case FindingCode::out_of_bounds:
      return fmt::format("{} is {} by {} but belongs to no block", bytes, done, who);
    default:
      break;
  }
  return fmt::format("{} was never freed", bytes);
}

OrderReport::OrderAndFix OrderReport::missing_order(const Note& now, ActorId submitter,
                                                    const Epoch& needed) const {
  const std::string self = name(now.actor);
  const std::string goal = mark(needed.actor, needed.clock);
  std::string order =
      fmt::format("{} knows {} up to {}, needs {}", self, name(needed.actor),
                  actors_.known_if_submitted(now.actor, submitter, needed.actor), needed.clock);
  if (const Actor* own = actors_.find(now.actor); own != nullptr && own->idle_wait) {
    order += fmt::format("; {} waited for an event that was never recorded",
                         now.is_host ? self : mark(now.actor, *own->idle_wait));
  }

  const Actor* other = actors_.find(needed.actor);
  if (other != nullptr && other->kind == ActorKind::host) {
    return {order,
            fmt::format("let {} release after {} and {} acquire before {}", name(needed.actor),
                        goal, name(submitter), mark(now.actor, now.sequence))};
  }
  const std::string direct =
      now.is_host
          ? fmt::format("wait for {}{}, before the {}", goal,
                        needed.note ? fmt::format(", the {} there", noun(*needed.note)) : "",
                        noun(now))
          : fmt::format("let {} wait for {}", self, goal);
  for (ActorId id = 0; id < actors_.count(); ++id) {
    const Actor* actor = actors_.find(id);
    if (id == now.actor || id == needed.actor || actor->kind == ActorKind::host) continue;
    const auto since = actors_.learned_at(id, needed.actor, needed.clock);
    if (!since) continue;
    const std::string knower = mark(id, *since);
    order += fmt::format("; {} knows it since {}", name(id), knower);
    if (now.is_host) return {order, fmt::format("wait for {}, or {}", knower, direct)};
    if (actor->last_record >= *since) {
      const std::string recorded = mark(id, actor->last_record);
      return {
          order + fmt::format(" and recorded an event at {}", recorded),
          fmt::format("let {} wait for the event recorded at {}, or {}", self, recorded, direct)};
    }
    return {order + " and recorded nothing after that",
            fmt::format("record an event on {} after {} and let {} wait for it, or {}", name(id),
                        knower, self, direct)};
  }
  return {order + "; no other stream knows it", direct};
}

OrderReport::OrderAndFix OrderReport::dead_block(const Note& now, ActorId submitter,
                                                 const Problem& problem) const {
  const std::string here = mark(now.actor, now.sequence);
  const Note* before = problem.against.note.get();
  if (before == nullptr) return {"", "keep the block until its last use is submitted"};
  const std::string there = mark(before->actor, before->sequence);
  const bool is_ordered =
      actors_.known_if_submitted(now.actor, submitter, before->actor) >= before->sequence;
  const char* on_same = before->actor != now.actor ? ""
                        : now.is_host              ? " in the same thread"
                                                   : " on the same stream";
  const std::string order =
      is_ordered ? fmt::format("{} comes before {}{}; no wait fixes this", there, here, on_same)
                 : fmt::format("{} and {} are unordered, and no wait fixes this", there, here);
  if (is_death(now.touch)) return {order, "deallocate each block once, by the handle that owns it"};

  const Tag tag = problem.birth ? problem.birth->tag : before->tag;
  const std::string owner =
      tag == Tag() ? "the owner of the block" : fmt::format("the owner of \"{}\"", tag.name());
  const std::string until = now.is_host                              ? noun(now) + " is done"
                            : now.operation == OperationKind::kernel ? "launch is submitted"
                                                                     : noun(now) + " is submitted";
  if (is_birth(before->touch)) {
    return {order, fmt::format("keep the owner of the earlier block until the {}", until)};
  }
  return {order, fmt::format("deallocate after {}, or keep {} until the {}", here, owner, until)};
}

OrderReport::OrderAndFix OrderReport::missing_contents(const Note& now, ActorId submitter,
                                                       const SpaceRange& range) const {
  std::string order = "the order is right, the contents are missing";
  if (const NoteRef latest = memory_.latest_write_in_block(range.offset);
      latest && latest->actor != now.actor) {
    order = fmt::format("{} knows {} up to {}; {}", name(now.actor), name(latest->actor),
                        actors_.known_if_submitted(now.actor, submitter, latest->actor), order);
  }
  std::uint64_t begin = 0;
  const LiveBlock* block = memory_.block_at(range.offset, &begin);
  const bool has_tag = block != nullptr && block->note->tag != Tag();
  const std::string bytes = has_tag ? fmt::format("[{:#x}, +{}) of \"{}\"", range.offset - begin,
                                                  text(range.bytes), block->note->tag.name())
                                    : text(range);
  const std::string less = now.is_host || now.operation == OperationKind::copy
                               ? fmt::format("{} less", now.is_host ? "read" : "copy")
                           : now.name.empty()
                               ? "declare that it reads less"
                               : fmt::format("declare that \"{}\" reads less", now.name);
  return {order,
          fmt::format("write {} before {}, or {}", bytes, mark(now.actor, now.sequence), less)};
}

std::string OrderReport::fix_out_of_bounds(const Note& now) const {
  std::uint64_t begin = 0;
  const LiveBlock* block = memory_.block_at(now.range.offset, &begin);
  const std::uint64_t end = now.range.offset + now.range.bytes;
  if (block == nullptr || begin + block->bytes >= end || block->is_cut) {
    return "stay inside an allocated block";
  }
  return fmt::format("end at {:#x}, where the block ends, or allocate {} more",
                     begin + block->bytes, text(end - begin - block->bytes));
}

std::string OrderReport::fix_wrong_range(const Note& now) const {
  std::uint64_t begin = 0;
  const LiveBlock* block = memory_.block_at(now.range.offset, &begin);
  if (block == nullptr) return "deallocate only allocated blocks";
  return fmt::format("deallocate {}, the whole block",
                     text(SpaceRange{now.range.space, begin, block->bytes}));
}

OrderReport::OrderAndFix OrderReport::order_and_fix(const Note& now, ActorId submitter,
                                                    const SpaceRange& range,
                                                    const Problem& problem) const {
  switch (problem.code) {
    case FindingCode::free_while_in_use:
      // A pool block that is still allocated is not a problem of order.
      if (now.touch == TouchKind::release && problem.against.note &&
          problem.against.note->touch == TouchKind::suballocate) {
        return {"",
                fmt::format("deallocate {} before {}", text(range), mark(now.actor, now.sequence))};
      }
      [[fallthrough]];
    case FindingCode::missing_wait:
    case FindingCode::reuse_before_ready:
    case FindingCode::use_before_alloc:
    case FindingCode::host_read_before_sync:
    case FindingCode::host_write_before_sync:
      return missing_order(now, submitter, problem.against);
    case FindingCode::use_after_free:
    case FindingCode::double_free:
      return dead_block(now, submitter, problem);
    case FindingCode::wrong_range_free:
      return {"", fix_wrong_range(now)};
    case FindingCode::live_block_reissued:
      return {"", "remove a block from every free list when it is allocated"};
    case FindingCode::uninitialised_read:
      return missing_contents(now, submitter, range);
    case FindingCode::out_of_bounds:
      return {"", fix_out_of_bounds(now)};
    default:
      break;
  }
  return {};
}

Finding OrderReport::describe(const Note& now, ActorId submitter, const Problem& problem) const {
  Finding finding;
  finding.code = problem.code;
  finding.range = {now.range.space, problem.begin, problem.end - problem.begin};
  finding.site = now.site;
  finding.what = what(now, finding.range, problem);
  finding.now = line(now);

  const NoteRef latest = problem.code == FindingCode::uninitialised_read
                             ? memory_.latest_write_in_block(problem.begin)
                             : NoteRef();
  for (const NoteRef* note : {&latest, &problem.against.note, &problem.earlier}) {
    if (*note) finding.before.push_back(line(**note));
  }

  // For an out-of-bounds access, show the block in which the access began.
  const bool is_outside = problem.code == FindingCode::out_of_bounds;
  const LiveBlock* block = memory_.block_at(is_outside ? now.range.offset : problem.begin);
  if (problem.birth) {
    finding.block = block_line(*problem.birth);
  } else if (block != nullptr) {
    finding.block = block_line(*block->note);
  }
  std::tie(finding.order, finding.fix) = order_and_fix(now, submitter, finding.range, problem);
  return finding;
}

Finding OrderReport::describe_other(FindingCode code, const Note& now, std::string_view action,
                                    std::string what, std::string fix) const {
  Finding finding;
  finding.code = code;
  finding.range = now.range;
  finding.site = now.site;
  finding.what = std::move(what);
  finding.now = line(now, action);
  finding.fix = std::move(fix);
  if (now.range.bytes == 0) return finding;
  if (const LiveBlock* block = memory_.block_at(now.range.offset)) {
    finding.block = block_line(*block->note);
  }
  return finding;
}

Finding OrderReport::describe_leak(const LiveBlock& block) const {
  Finding finding;
  finding.code = FindingCode::leak;
  finding.range = block.note->range;
  finding.site = block.note->site;
  finding.what = fmt::format("{} was never freed", text(finding.range));
  finding.block = block_line(*block.note);
  finding.fix = "deallocate it before the device is shut down";
  return finding;
}

}  // namespace tern
