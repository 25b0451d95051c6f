// The report as text.

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tern/core/bytes.hpp"
#include "tools/report/findings.hpp"
#include "tools/report/held_peak.hpp"
#include "tools/report/plain_text.hpp"
#include "tools/report/trace_summary.hpp"

namespace tern::tools {
namespace {

constexpr std::size_t max_rows = 12, min_device_width = 12, max_device_width = 40;

class Text {
 public:
  explicit Text(const TraceSummary& summary) : summary_(summary), findings_(summary) {
    for (const TraceSummary::Peak& peak : summary.peaks) {
      device_width_ = std::max(device_width_, plain(summary.devices[peak.device]).size());
    }
    device_width_ = std::min(device_width_, max_device_width);
  }

  std::string write() {
    add("{}: {} events in {}", plain(summary_.title), summary_.events,
        time_text(summary_.duration));
    if (!summary_.program.empty()) {
      add(", recorded by {} (process {})", plain(summary_.program), summary_.process);
    }
    add("\n");
    for (const std::string& note : summary_.notes) add("  note: {}\n", plain(note));
    add_findings();
    const std::vector<HeldPeak> held = held_peaks(summary_);
    for (const TraceSummary::Peak& peak : summary_.peaks) add_peak(peak);
    if (!held.empty()) add("\n");
    for (const HeldPeak& peak : held) add("{}\n", plain(peak.text(summary_)));
    add_budgets();
    add_refusals();
    add_growing_lines();
    add_blocked_reuse();
    add_leaks();
    add_transfers();
    add_moves();
    add_checker_findings();
    add_waits();
    return std::move(text_);
  }

 private:
  template <class... Args>
  void add(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(text_), format, std::forward<Args>(args)...);
  }
  static double percent(std::uint64_t part, std::uint64_t whole) {
    return 100.0 * static_cast<double>(part) /
           static_cast<double>(std::max<std::uint64_t>(whole, 1));
  }

  void add_findings() {
    if (findings_.all.empty()) {
      add("\nNothing stands out.\n");
      return;
    }
    add("\nWhat stands out:\n");
    for (const Finding& one : findings_.all) {
      add("  - {}\n    What to do: {}\n", plain(one.text), advice(one.kind));
    }
  }
  void add_peak(const TraceSummary::Peak& peak) {
    add("\n{}\n", plain(peak.text));
    add("  {:>6} {:>10} {:>8}  {:<20} {}\n", "share", "bytes", "blocks", "tag", "allocated at");
    const std::size_t shown = std::min(peak.sites.size(), max_rows);
    for (std::size_t i = 0; i < shown; ++i) {
      const TraceSummary::Share& one = peak.sites[i];
      add("  {:>4.0f} % {:>10} {:>8}  {:<20} {}\n", percent(one.bytes, peak.live),
          format_bytes(one.bytes), one.blocks, plain(summary_.tags[one.tag]),
          plain(summary_.sites[one.site]));
    }
    if (shown < peak.sites.size()) add("  ... and {} more lines\n", peak.sites.size() - shown);
  }
  void add_budgets() {
    if (summary_.budgets.empty()) return;
    add("\nBudgets at their highest use:\n  {:>10} {:>10} {:>6} {:>10} {:>8} {:>8}  {}\n", "used",
        "limit", "share", "at", "waits", "refused", "budget");
    const std::size_t shown = std::min(summary_.budgets.size(), max_rows);
    for (std::size_t i = 0; i < shown; ++i) {
      const TraceSummary::Budget& one = summary_.budgets[i];
      add("  {:>10} {:>10} {:>6} {:>10} {:>8} {:>8}  {}", format_bytes(one.highest),
          limit_text(one.limit), share_text(one.highest, one.limit), time_text(one.time), one.waits,
          one.refused, plain(one.path));
      if (one.count > 1) add(" ({} budgets)", one.count);
      add("\n");
    }
    if (shown < summary_.budgets.size())
      add("  ... and {} more budgets\n", summary_.budgets.size() - shown);
  }
  /// Requests of one line that were refused for the same reason are one row: a program that evicts
  /// or waits makes many.
  struct RefusalRow {
    const TraceSummary::Refusal* first = nullptr;
    std::size_t times = 0;
    std::uint64_t least = 0, most = 0;  // bytes of one request
  };
  void add_refusals() {
    if (summary_.refusals.empty()) {
      add("\nNo request was refused.\n");
      return;
    }
    std::map<std::tuple<std::uint32_t, std::uint32_t, std::uint32_t, std::string, bool>, RefusalRow>
        rows;
    std::vector<const RefusalRow*> order;
    for (const TraceSummary::Refusal& one : summary_.refusals) {
      const auto [at, is_new] =
          rows.try_emplace({one.device, one.tag, one.site, one.error, one.is_served_later},
                           RefusalRow{&one, 0, one.bytes, one.bytes});
      ++at->second.times;
      at->second.least = std::min(at->second.least, one.bytes);
      at->second.most = std::max(at->second.most, one.bytes);
      if (is_new) order.push_back(&at->second);
    }
    add("\nRequests that were refused:\n");
    if (summary_.refused > summary_.refusals.size()) {
      add("  ({} were refused; these are the first {}.)\n", summary_.refused,
          summary_.refusals.size());
    }
    const std::size_t shown = std::min(order.size(), max_rows);
    for (std::size_t i = 0; i < shown; ++i) add_refusal(*order[i]);
    if (shown < order.size()) add("  ... and {} more rows\n", order.size() - shown);
  }
  void add_refusal(const RefusalRow& row) {
    const TraceSummary::Refusal& one = *row.first;
    add("  {:>9}  {} ({}) on {} at {}: {}", time_text(one.time), size_range(row.least, row.most),
        tag_words(summary_.tags[one.tag]), plain(summary_.devices[one.device]),
        plain(summary_.sites[one.site]), plain(one.error));
    if (row.times > 1) add(", {} times", row.times);
    add("; {} were live", format_bytes(one.live));
    if (one.held > 0) add(" of {} held", format_bytes(one.held));
    if (one.limit > 0) add(", limit {}", limit_text(one.limit));
    add_largest_tags(one);
    if (one.largest_free > 0) add(", largest free range {}", format_bytes(one.largest_free));
    if (one.pending > 0) add(", {} pending", format_bytes(one.pending));
    if (one.is_served_later) add(", served later");
    add("\n");
  }
  void add_largest_tags(const TraceSummary::Refusal& one) {
    const std::size_t shown = std::min<std::size_t>(one.tags.size(), 3);
    for (std::size_t k = 0; k < shown; ++k) {
      add("{} {} '{}'", k == 0 ? " (largest tags:" : ",", format_bytes(one.tags[k].bytes),
          plain(summary_.tags[one.tags[k].tag]));
    }
    if (shown > 0) add(")");
  }
  void add_growing_lines() {
    if (findings_.growing.empty()) return;
    add("\nLines whose live memory kept growing:\n  {:>10} {:>10} {:>8}  {:<{}} {:<20} {}\n",
        "at first", "at last", "blocks", "device", device_width_, "tag", "allocated at");
    const std::size_t shown = std::min(findings_.growing.size(), max_rows);
    for (std::size_t i = 0; i < shown; ++i) {
      const LineGrowth& one = findings_.growing[i];
      add("  {:>10} {:>10} {:>8}  {:<{}} {:<20} {}\n", format_bytes(one.first_bytes),
          format_bytes(one.bytes), one.blocks, plain(summary_.devices[one.device]), device_width_,
          plain(summary_.tags[one.tag]), plain(summary_.sites[one.site]));
    }
    if (shown < findings_.growing.size())
      add("  ... and {} more lines\n", findings_.growing.size() - shown);
  }
  void add_blocked_reuse() {
    if (findings_.blocked.empty()) return;
    add("\nPools that grew while freed memory waited for a stream:\n"
        "  {:>10} {:>8} {:>10}  {:<16} {:<28} {}\n",
        "grew by", "times", "pending", "stream", "allocated at", "requested at");
    const std::size_t shown = std::min(findings_.blocked.size(), max_rows);
    for (std::size_t i = 0; i < shown; ++i) {
      const BlockedReuse& one = findings_.blocked[i];
      add("  {:>10} {:>8} {:>10}  {:<16} {:<28} {}\n", format_bytes(one.grown), one.times,
          format_bytes(one.pending), plain(summary_.streams[one.stream].name),
          plain(summary_.sites[one.freed.site]), plain(summary_.sites[one.site]));
    }
    if (shown < findings_.blocked.size())
      add("  ... and {} more rows\n", findings_.blocked.size() - shown);
  }
  void add_leaks() {
    if (summary_.leaks.empty()) {
      add("\nEvery block of the recording was freed.\n");
      return;
    }
    add("\nNot freed when the recording ended:\n  {:>10} {:>8}  {:<{}} {:<20} {}\n", "bytes",
        "blocks", "device", device_width_, "tag", "allocated at");
    const std::size_t shown = std::min(summary_.leaks.size(), max_rows);
    for (std::size_t i = 0; i < shown; ++i) {
      const TraceSummary::Leak& one = summary_.leaks[i];
      add("  {:>10} {:>8}  {:<{}} {:<20} {}\n", format_bytes(one.bytes), one.blocks,
          plain(summary_.devices[one.device]), device_width_, plain(summary_.tags[one.tag]),
          plain(summary_.sites[one.site]));
    }
    if (shown < summary_.leaks.size())
      add("  ... and {} more lines\n", summary_.leaks.size() - shown);
  }
  void add_transfers() {
    bool has_any = false;
    for (std::size_t i = 0; i < TraceSummary::directions; ++i) {
      const TraceSummary::Transfers& one = summary_.transfers[i];
      if (one.calls == 0) continue;
      if (!has_any) add("\nCopies:\n");
      has_any = true;
      add("  {:<16} {:>10} in {}", name(static_cast<TraceSummary::Direction>(i)),
          format_bytes(one.bytes), count_text(one.calls, "copy", "copies"));
      if (one.busy != 0) {
        // Bytes per nanosecond are gigabytes per second.
        add(", {:.1f} GB/s on the device",
            static_cast<double>(one.timed_bytes) / static_cast<double>(one.busy));
      }
      add("\n");
    }
  }
  void add_moves() {
    if (!summary_.moves.empty()) add("\nUnified buffers moved:\n");
    for (const TraceSummary::Moves& one : summary_.moves) {
      add("  {:<16} {:>10} in {}\n", one.reason, format_bytes(one.bytes),
          count_text(one.calls, "move"));
    }
    if (summary_.evictions.calls > 0) {
      add("  {} ({}) {} evicted.\n", count_text(summary_.evictions.calls, "copy", "copies"),
          format_bytes(summary_.evictions.sum), summary_.evictions.calls == 1 ? "was" : "were");
    }
    constexpr std::size_t max_kept = 10;
    if (!summary_.kept_copies.empty()) add("\nLeases that kept copies from eviction:\n");
    for (std::size_t i = 0; i < std::min(summary_.kept_copies.size(), max_kept); ++i) {
      const TraceSummary::KeptCopy& one = summary_.kept_copies[i];
      add("  {:>7} times, {} of {}, opened at {}\n", one.times, format_bytes(one.bytes),
          plain(summary_.tags[one.tag]), plain(summary_.sites[one.site]));
    }
  }
  void add_checker_findings() {
    if (!summary_.checker_findings.empty()) add("\nFindings of the checker:\n");
    for (const TraceSummary::CheckerFinding& one : summary_.checker_findings) {
      add("  {}, {}: {}\n", time_text(one.time), plain(summary_.sites[one.site]), plain(one.text));
    }
  }
  void add_waits() {
    if (summary_.budget_waits.calls > 0) {
      add("\nRequests waited for their budget {} times, {} in total.\n",
          summary_.budget_waits.calls, time_text(summary_.budget_waits.sum));
    }
    if (summary_.wait_sums.empty()) return;
    add("\nWho waited for whom:\n  {:>10} {:>8}  {:<16} {:<16} {}\n", "time", "times", "waiter",
        "waited for", "mostly at");
    const std::size_t shown = std::min(summary_.wait_sums.size(), max_rows);
    for (std::size_t i = 0; i < shown; ++i) {
      const TraceSummary::WaitSum& one = summary_.wait_sums[i];
      add("  {:>10} {:>8}  {:<16} {:<16} {}\n", one.stream == 0 ? time_text(one.took) : "",
          one.calls, plain(summary_.streams[one.stream].name),
          one.waits_for == 0 ? "all streams" : plain(summary_.streams[one.waits_for].name),
          plain(summary_.sites[one.site]));
    }
    if (shown < summary_.wait_sums.size())
      add("  ... and {} more pairs\n", summary_.wait_sums.size() - shown);
  }

  const TraceSummary& summary_;
  const Findings findings_;
  std::size_t device_width_ = min_device_width;
  std::string text_;
};

}  // namespace

std::string text_report(const TraceSummary& summary) { return Text(summary).write(); }

}  // namespace tern::tools
