// The rules. docs/guide/reports.md has them in words; keep both the same.

#include "tools/report/findings.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <tuple>

#include "tern/core/bytes.hpp"
#include "tools/report/obstacles.hpp"
#include "tools/report/plain_text.hpp"
#include "tools/report/wait_chain.hpp"

namespace tern::tools {
namespace {

/// A line that keeps growing is a finding if it grew by this share of the peak of its device.
constexpr double min_growth_share = 0.01;
/// A pool whose streams block reuse is a finding if this share of what it holds was avoidable.
constexpr double min_avoidable_share = 0.10;
/// Evictions are a finding if they free this many times the peak of the largest device.
constexpr std::uint64_t min_eviction_turns = 2;
/// Waits for budgets are a finding if they take this share of the recording.
constexpr double min_budget_wait_share = 0.05;
/// A hostile trace may have a million refusals and growths. Each moment costs a visit of all
/// blocks.
constexpr std::size_t min_moments = 32, max_visits = 2'000'000;
/// Two findings of one kind leave room for other kinds.
constexpr std::size_t max_of_kind = 2;

bool is_at_least(std::uint64_t part, double share, std::uint64_t whole) {
  return static_cast<double>(part) >= share * static_cast<double>(whole);
}

class Rules {
 public:
  Rules(const TraceSummary& summary, Findings& findings)
      : summary_(summary), findings_(findings), peak_live_(summary.devices.size()) {
    for (const TraceSummary::Peak& peak : summary.peaks) {
      peak_live_[peak.device] = std::max(peak_live_[peak.device], peak.live);
    }
  }

  void apply() {
    judge_checker();
    judge_refusals();
    judge_growing_lines();
    judge_blocked_reuse();
    judge_evictions();
    judge_budget_waits();
    keep_worst();
  }

 private:
  // --- Words

  [[nodiscard]] const std::string& device(std::uint32_t index) const {
    return summary_.devices[index];
  }
  [[nodiscard]] const std::string& site(std::uint32_t index) const { return summary_.sites[index]; }
  [[nodiscard]] const std::string& stream(std::uint32_t index) const {
    return summary_.streams[index].name;
  }
  /// A line, or what a trace without lines says.
  [[nodiscard]] std::string line(std::uint32_t index) const {
    return index == 0 ? "an unknown line" : site(index);
  }
  [[nodiscard]] std::string tagged(std::uint32_t tag) const {
    return tag == 0 ? "without a tag" : fmt::format("tagged '{}'", summary_.tags[tag]);
  }
  static std::string blocks(std::uint64_t count) {
    return count == 1 ? "1 block" : fmt::format("{} blocks", count);
  }
  static std::string times(std::uint64_t count) {
    return count == 1 ? "" : fmt::format(" {} times", count);
  }
  Finding& add(Finding::Kind kind, std::uint64_t time, std::string text) {
    findings_.all.push_back({kind, std::move(text), time});
    return findings_.all.back();
  }
  [[nodiscard]] std::size_t max_moments() const {
    return std::max(min_moments, max_visits / std::max<std::size_t>(summary_.blocks.size(), 1));
  }

  void judge_checker() {
    if (summary_.checker_findings.empty()) return;
    const TraceSummary::CheckerFinding& first = summary_.checker_findings.front();
    const std::size_t more = summary_.checker_findings.size() - 1;
    add(Finding::Kind::unsafe, first.time,
        fmt::format("The checker reported at {}: {}{}", line(first.site), first.text,
                    more == 0 ? "" : fmt::format(" (and {} more)", more)));
  }

  // --- Refused requests

  /// Refusals of one request: the same line, tag and error.
  struct Refused {
    const TraceSummary::Refusal* worst = nullptr;  // the largest request
    std::uint64_t count = 0, least = UINT64_MAX;   // bytes of one request
  };
  static Finding::Kind kind_of(const TraceSummary::Refusal& one) {
    if (one.held == 0) return Finding::Kind::refused;
    if (one.pending >= one.bytes) return Finding::Kind::refused_pending;
    const std::uint64_t used = one.resource_live + one.pending;
    const bool is_enough = used < one.held && one.held - used >= one.bytes;
    return is_enough ? Finding::Kind::fragmented : Finding::Kind::refused;
  }

  void judge_refusals() {
    using Key = std::tuple<Finding::Kind, std::uint32_t, std::uint32_t, std::uint32_t, std::string>;
    std::map<Key, Refused> groups;
    for (const TraceSummary::Refusal& one : summary_.refusals) {
      if (one.is_served_later) continue;
      Refused& group = groups[{kind_of(one), one.resource, one.site, one.tag, one.error}];
      if (group.worst == nullptr || one.bytes > group.worst->bytes) group.worst = &one;
      ++group.count;
      group.least = std::min(group.least, one.bytes);
    }
    std::vector<Refused> sorted;
    for (const auto& [key, group] : groups) sorted.push_back(group);
    std::ranges::stable_sort(sorted, {}, [](const Refused& one) { return one.worst->time; });
    if (sorted.size() > max_moments()) sorted.resize(max_moments());
    std::vector<Moment> moments;
    for (const Refused& one : sorted) {
      moments.push_back(
          {one.worst->time, one.worst->bytes, one.worst->resource, one.worst->stream});
    }
    const std::vector<Obstacles> obstacles = obstacles_at(summary_, moments);
    for (std::size_t i = 0; i < sorted.size(); ++i) judge_refusal(sorted[i], obstacles[i]);
  }
  void judge_refusal(const Refused& group, const Obstacles& obstacles) {
    const TraceSummary::Refusal& one = *group.worst;
    const Finding::Kind kind = kind_of(one);
    std::string text =
        fmt::format("{}: {} requested {} {} and was refused{}", device(one.device), line(one.site),
                    size_range(group.least, one.bytes), tagged(one.tag), times(group.count));
    switch (kind) {
      case Finding::Kind::refused_pending:
        text += pending_clause(one, obstacles);
        break;
      case Finding::Kind::fragmented:
        text += fragmented_clause(one, obstacles);
        break;
      default:
        text += live_clause(one);
    }
    text += limit_clause(one);
    Finding& finding = add(kind, one.time, std::move(text));
    finding.device = one.device;
    if (kind == Finding::Kind::refused_pending && !obstacles.pending.empty()) {
      finding.line = {obstacles.pending.front().tag, obstacles.pending.front().site};
    }
    if (kind == Finding::Kind::fragmented && !obstacles.between.empty()) {
      finding.line = {obstacles.between.front().tag, obstacles.between.front().site};
    }
  }
  [[nodiscard]] std::string pending_clause(const TraceSummary::Refusal& one,
                                           const Obstacles& obstacles) const {
    std::string text = fmt::format(
        " while {} of {} held were pending: freed, but their streams had not passed the free",
        format_bytes(one.pending), format_bytes(one.held));
    if (!obstacles.pending.empty()) {
      const Obstacles::Pending& most = obstacles.pending.front();
      text += fmt::format(". The largest part was freed on stream '{}': {}", stream(most.stream),
                          freed_words({most.tag, most.site}, most.free_site));
      return text + '.' + chain_clause(most.stream, one.time);
    }
    return text + '.';
  }
  [[nodiscard]] std::string fragmented_clause(const TraceSummary::Refusal& one,
                                              const Obstacles& obstacles) const {
    const std::uint64_t free = one.held - one.resource_live - one.pending;
    const std::uint64_t largest = one.largest_free != 0 ? one.largest_free : obstacles.largest_free;
    std::string text =
        fmt::format(" although {} of {} held were free: the largest free range had {}",
                    format_bytes(free), format_bytes(one.held), format_bytes(largest));
    if (!obstacles.between.empty()) {
      const TraceSummary::Share& most = obstacles.between.front();
      text += fmt::format(", and {} ({}) {}, allocated at {}, lay between free ranges",
                          blocks(most.blocks), format_bytes(most.bytes), tagged(most.tag),
                          line(most.site));
    }
    return text + '.';
  }
  [[nodiscard]] std::string live_clause(const TraceSummary::Refusal& one) const {
    std::string text = fmt::format(" ({})", one.error);
    text += one.live == 0 ? std::string(": nothing was live")
                          : fmt::format(": {} were live", format_bytes(one.live));
    if (one.held > 0) text += fmt::format(", {} held", format_bytes(one.held));
    if (!one.tags.empty()) {
      const TraceSummary::Share& most = one.tags.front();
      text += fmt::format(", most of it {} ({} in {})", tagged(most.tag), format_bytes(most.bytes),
                          blocks(most.blocks));
    }
    return text + '.';
  }

  /// Why the pool did not grow.
  static std::string limit_clause(const TraceSummary::Refusal& one) {
    if (one.limit == 0) return "";
    const std::uint64_t room = one.limit - std::min(one.limit, one.held);
    std::string text;
    if (one.limit == trace::no_limit) {
      text = " The pool has no limit, but the driver rejected more memory.";
    } else if (room >= one.bytes) {
      text = fmt::format(" The pool has a limit of {}, but the driver rejected more memory.",
                         format_bytes(one.limit));
    } else if (room == 0) {
      text = fmt::format(" The pool could not grow because of its limit of {}.",
                         format_bytes(one.limit));
    } else {
      text = fmt::format(" The pool could grow by {} only, because of its limit of {}.",
                         format_bytes(room), format_bytes(one.limit));
    }
    if (one.backing == trace::Backing::segments) {
      text += " It holds segments, which it can return to the driver only as a whole.";
    }
    return text;
  }

  // --- Lines that keep growing

  void judge_growing_lines() {
    findings_.growing = line_growth(summary_);
    // Without a repetition, a program may just have built up what it needs. Then only memory that
    // was never freed is a leak, and a recording that was not stopped does not know.
    std::erase_if(findings_.growing, [&](const LineGrowth& one) {
      return !one.is_in_loop && (!summary_.is_complete || one.kept_blocks < one.blocks);
    });
    for (const LineGrowth& one : findings_.growing) {
      if (!is_at_least(one.growth(), min_growth_share, peak_live_[one.device])) continue;
      const Finding::Line grown{one.tag, one.site};
      const auto known = std::ranges::find_if(findings_.all, [&](const Finding& other) {
        return other.kind == Finding::Kind::fragmented && other.device == one.device &&
               other.line == grown;
      });
      if (known != findings_.all.end()) {
        known->text +=
            fmt::format(" The memory {} keeps growing: {}.", tagged(one.tag), growth_words(one));
        continue;
      }
      Finding& finding =
          add(Finding::Kind::keeps_growing, one.time,
              fmt::format("{}: memory {} that {} allocates keeps growing: {}.", device(one.device),
                          tagged(one.tag), line(one.site), growth_words(one)));
      finding.device = one.device;
      finding.line = grown;
    }
  }
  [[nodiscard]] static std::string growth_words(const LineGrowth& one) {
    std::string text = fmt::format("from {} in {} at {} to {} in {}", format_bytes(one.first_bytes),
                                   blocks(one.first_blocks), time_text(one.first_time),
                                   format_bytes(one.bytes), blocks(one.blocks));
    if (one.kept_blocks == 0) {
      text += fmt::format(", and was freed only at the end, at {}", time_text(one.freed_time));
    } else if (one.kept_blocks == one.blocks) {
      text += ", and none of it was freed";
    } else {
      text += fmt::format(", and {} {} not freed", blocks(one.kept_blocks),
                          one.kept_blocks == 1 ? "was" : "were");
    }
    return text;
  }

  // --- Streams that block reuse

  /// A pool grew while memory was pending.
  struct Growth {
    const TraceSummary::Hold* hold = nullptr;
    std::uint64_t bytes = 0;
  };
  /// The growths with the most pending memory, by time.
  [[nodiscard]] std::vector<Growth> growths_with_pending() {
    std::vector<std::uint64_t> held(summary_.resources.size());
    std::vector<Growth> found;
    for (const TraceSummary::Hold& hold : summary_.holds) {
      const std::uint64_t before = std::exchange(held[hold.resource], hold.bytes);
      if (hold.bytes <= before || hold.pending == 0 || hold.requested == 0) continue;
      found.push_back({&hold, hold.bytes - before});
    }
    std::ranges::stable_sort(found, std::ranges::greater(),
                             [](const Growth& one) { return one.hold->pending; });
    has_all_growths_ = found.size() <= max_moments();
    if (!has_all_growths_) found.resize(max_moments());
    std::ranges::stable_sort(found, {}, [](const Growth& one) { return one.hold->time; });
    return found;
  }
  void judge_blocked_reuse() {
    const std::vector<Growth> growths = growths_with_pending();
    std::vector<Moment> moments;
    for (const Growth& one : growths) {
      moments.push_back(
          {one.hold->time, one.hold->requested, one.hold->resource, one.hold->stream});
    }
    const std::vector<Obstacles> obstacles = obstacles_at(summary_, moments);
    std::map<std::tuple<std::uint32_t, std::uint32_t, std::uint32_t>, BlockedReuse> rows;
    for (std::size_t i = 0; i < growths.size(); ++i) {
      if (obstacles[i].pending.empty()) continue;
      const TraceSummary::Hold& hold = *growths[i].hold;
      const Obstacles::Pending& most = obstacles[i].pending.front();
      BlockedReuse& row = rows[{hold.resource, most.stream, hold.site}];
      ++row.times;
      row.grown += growths[i].bytes;
      if (most.bytes > row.pending) {
        row.pending = most.bytes;
        row.time = hold.time;
        row.held = hold.bytes;
        row.tag = hold.tag;
        row.freed = {most.tag, most.site};
        row.free_site = most.free_site;
      }
      row.resource = hold.resource;
      row.site = hold.site;
      row.stream = most.stream;
    }
    for (const auto& [key, row] : rows) findings_.blocked.push_back(row);
    std::ranges::stable_sort(findings_.blocked, std::ranges::greater(), &BlockedReuse::avoidable);
    name_blocking_streams();
  }
  void name_blocking_streams() {
    for (const BlockedReuse& one : findings_.blocked) {
      const TraceSummary::Resource& pool = summary_.resources[one.resource];
      // If not all growths are known, the pool grew by more than the row says.
      const std::uint64_t avoidable = has_all_growths_ ? one.avoidable() : one.pending;
      if (!is_at_least(avoidable, min_avoidable_share, pool.peak_held)) continue;
      std::string text = fmt::format(
          "{}: memory freed on stream '{}' could not be reused because '{}' was still behind. At "
          "{}, {} of {} held were pending on it: {}. For requests at {}, the pool grew {}.",
          device(pool.device), stream(one.stream), stream(one.stream), time_text(one.time),
          format_bytes(one.pending), format_bytes(one.held), freed_words(one.freed, one.free_site),
          line(one.site), growth_of_pool(one));
      text += chain_clause(one.stream, one.time);
      Finding& finding = add(Finding::Kind::blocked_reuse, one.time, std::move(text));
      finding.device = pool.device;
      finding.line = one.freed;
    }
  }
  [[nodiscard]] std::string growth_of_pool(const BlockedReuse& one) const {
    if (one.times == 1) return "by " + format_bytes(one.grown);
    return fmt::format("{}{} times, by {} in total", has_all_growths_ ? "" : "at least ", one.times,
                       format_bytes(one.grown));
  }
  /// Where freed memory came from. Frees by a destructor have no line.
  [[nodiscard]] std::string freed_words(const Finding::Line& freed, std::uint32_t free_site) const {
    std::string text =
        fmt::format("mostly memory {}, allocated at {}", tagged(freed.tag), line(freed.site));
    if (free_site != 0) text += fmt::format(" and freed at {}", line(free_site));
    return text;
  }
  /// What the stream was waiting for, as a sentence.
  [[nodiscard]] std::string chain_clause(std::uint32_t behind, std::uint64_t time) const {
    const WaitChain chain = wait_chain(summary_, behind, time);
    std::string text;
    for (const WaitChain::Link& one : chain.links) {
      text +=
          fmt::format("{} '{}' was waiting for '{}' at {}{}", text.empty() ? "" : ", and",
                      stream(one.stream), stream(one.waits_for), line(one.site),
                      one.times == 1 ? "" : fmt::format(" ({} times in the recording)", one.times));
    }
    if (chain.call != nullptr) {
      text += fmt::format("{} '{}' had to call a host function, submitted at {}",
                          text.empty() ? "" : ", and", stream(chain.call->stream),
                          line(chain.call->site));
    }
    return text.empty() ? text : text + '.';
  }

  // --- Unified buffers and budgets

  void judge_evictions() {
    const std::uint64_t peak =
        peak_live_.empty() ? 0 : *std::max_element(peak_live_.begin(), peak_live_.end());
    if (summary_.evictions.sum == 0 || summary_.evictions.sum < min_eviction_turns * peak) return;
    const TraceSummary::LineCount& most = summary_.evicted_lines.front();
    add(Finding::Kind::evicted_again, summary_.duration,
        fmt::format(
            "Unified buffers evicted {} ({}), {:.1f} times the highest peak of a device ({}). "
            "Most made room for requests at {} (buffers {}, {}).",
            count_text(summary_.evictions.calls, "copy", "copies"),
            format_bytes(summary_.evictions.sum),
            static_cast<double>(summary_.evictions.sum) /
                static_cast<double>(std::max<std::uint64_t>(peak, 1)),
            format_bytes(peak), line(most.site), tagged(most.tag), format_bytes(most.sum)));
  }
  void judge_budget_waits() {
    const TraceSummary::Count& waits = summary_.budget_waits;
    if (waits.sum == 0 || !is_at_least(waits.sum, min_budget_wait_share, summary_.duration)) return;
    const TraceSummary::LineCount& most = summary_.budget_wait_lines.front();
    add(Finding::Kind::budget_wait, summary_.duration,
        fmt::format("Requests waited for their budget{}, for {} of a recording of {}: the longest "
                    "waits were "
                    "at {} ({}, {}).",
                    times(waits.calls), time_text(waits.sum), time_text(summary_.duration),
                    line(most.site), tagged(most.tag), time_text(most.sum)));
  }

  // --- Order

  /// Kinds in the order of the enum, at most two of each; then the others, up to the maximum.
  void keep_worst() {
    std::vector<Finding>& all = findings_.all;
    std::ranges::stable_sort(all, {}, &Finding::kind);
    std::vector<Finding> kept, rest;
    std::size_t of_kind[Finding::kinds] = {};
    for (Finding& one : all) {
      const bool is_kept = of_kind[static_cast<std::size_t>(one.kind)]++ < max_of_kind;
      (is_kept ? kept : rest).push_back(std::move(one));
    }
    std::ranges::move(rest, std::back_inserter(kept));
    if (kept.size() > Findings::max_findings) kept.resize(Findings::max_findings);
    all = std::move(kept);
  }

  const TraceSummary& summary_;
  Findings& findings_;
  std::vector<std::uint64_t> peak_live_;  // by device
  bool has_all_growths_ = true;           // not only those with the most pending memory
};

}  // namespace

std::string_view name(Finding::Kind kind) noexcept {
  switch (kind) {
    case Finding::Kind::unsafe:
      return "unsafe";
    case Finding::Kind::refused_pending:
      return "refused while memory was pending";
    case Finding::Kind::fragmented:
      return "fragmented";
    case Finding::Kind::refused:
      return "refused";
    case Finding::Kind::keeps_growing:
      return "keeps growing";
    case Finding::Kind::blocked_reuse:
      return "blocked reuse";
    case Finding::Kind::evicted_again:
      return "evicted again and again";
    case Finding::Kind::budget_wait:
      break;
  }
  return "waited for a budget";
}

std::string_view advice(Finding::Kind kind) noexcept {
  switch (kind) {
    case Finding::Kind::unsafe:
      return "See \"Findings of the checker\" below.";
    case Finding::Kind::refused_pending:
      return "Wait for the stream, or allow the request to wait.";
    case Finding::Kind::fragmented:
      return "Allocate long-lived blocks first, or from a separate pool.";
    case Finding::Kind::refused:
      return "Look at what was live at that time.";
    case Finding::Kind::keeps_growing:
      return "Free the blocks, or bound the container that keeps them.";
    case Finding::Kind::blocked_reuse:
      return "Let the stream wait for less, free on the stream that allocates, or use "
             "PoolPreference::reuse.";
    case Finding::Kind::evicted_again:
      return "Work on one part of the data at a time, or raise the budget.";
    case Finding::Kind::budget_wait:
      break;
  }
  return "Raise the budget, or free earlier.";
}

Findings::Findings(const TraceSummary& summary) { Rules(summary, *this).apply(); }

}  // namespace tern::tools
