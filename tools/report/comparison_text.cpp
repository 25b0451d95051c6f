// A comparison as text.

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <vector>

#include "tern/core/bytes.hpp"
#include "tools/report/comparison.hpp"
#include "tools/report/plain_text.hpp"

namespace tern::tools {
namespace {

constexpr std::size_t max_rows = 12, min_device_width = 12, max_device_width = 40;

std::string value_text(std::uint64_t value, Comparison::Unit unit) {
  switch (unit) {
    case Comparison::Unit::bytes:
      return format_bytes(value);
    case Comparison::Unit::nanoseconds:
      return time_text(value);
    case Comparison::Unit::count:
      break;
  }
  return fmt::format("{}", value);
}

/// The difference with its sign, such as "+1.5 GiB", or "same".
std::string difference_text(const Comparison::Pair& pair, Comparison::Unit unit) {
  if (pair.is_same()) return "same";
  return (pair.after > pair.before ? "+" : "-") + value_text(pair.distance(), unit);
}

class Text {
 public:
  explicit Text(const Comparison& comparison) : comparison_(comparison) {
    for (const Comparison::Device& one : comparison.devices) {
      device_width_ = std::max(device_width_, plain(one.name).size());
    }
    device_width_ = std::min(device_width_, max_device_width);
  }

  std::string write() {
    add("{} before, {} after\n\n", plain(comparison_.title_before), plain(comparison_.title_after));
    for (const Comparison::Device& one : comparison_.devices) add("{}\n", plain(one.text));
    add("\n  {:<28} {:>12} {:>12} {:>12}\n", "", "before", "after", "difference");
    for (const Comparison::Device& one : comparison_.devices) {
      const std::string name = plain(one.name);
      add_figure(name + ", peak live", Comparison::Unit::bytes, one.live);
      add_figure(name + ", peak held", Comparison::Unit::bytes, one.held);
    }
    for (const Comparison::Figure& one : comparison_.figures) {
      // A figure that is 0 in both traces says nothing.
      if (one.value.before + one.value.after > 0) add_figure(one.name, one.unit, one.value);
    }
    for (const Comparison::Transfers& one : comparison_.transfers) {
      add_figure("copied " + one.direction, Comparison::Unit::bytes, one.bytes);
      add_figure("  in copies", Comparison::Unit::count, one.calls);
    }
    add_rows("Live at the peaks, by tag", comparison_.tags);
    add_rows("Live at the peaks, by line", comparison_.lines);
    add_rows("Not freed when the recording ended, more than before", comparison_.new_leaks);
    return std::move(text_);
  }

 private:
  template <class... Args>
  void add(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(text_), format, std::forward<Args>(args)...);
  }
  void add_figure(const std::string& name, Comparison::Unit unit, const Comparison::Pair& pair) {
    add("  {:<28} {:>12} {:>12} {:>12}\n", name, value_text(pair.before, unit),
        value_text(pair.after, unit), difference_text(pair, unit));
  }
  void add_rows(const char* what, const std::vector<Comparison::Row>& rows) {
    if (rows.empty()) {
      add("\n{}: no difference.\n", what);
      return;
    }
    add("\n{}:\n  {:>11} {:>10} {:>10} {:>12}  {:<{}} {:<20} {}\n", what, "difference", "before",
        "after", "allocations", "device", device_width_, "tag",
        rows.front().site.empty() ? "" : "allocated at");
    const std::size_t shown = std::min(rows.size(), max_rows);
    for (std::size_t i = 0; i < shown; ++i) add_row(rows[i]);
    if (shown < rows.size()) add("  ... and {} more rows\n", rows.size() - shown);
  }
  void add_row(const Comparison::Row& one) {
    constexpr auto bytes = Comparison::Unit::bytes, count = Comparison::Unit::count;
    add("  {:>11} {:>10} {:>10} {:>12}  {:<{}} {:<20} {}", difference_text(one.bytes, bytes),
        format_bytes(one.bytes.before), format_bytes(one.bytes.after),
        difference_text(one.allocations, count), plain(one.device), device_width_, plain(one.tag),
        plain(one.site));
    if (!one.site_before.empty()) add(", before {}", plain(one.site_before));
    add("\n");
  }

  const Comparison& comparison_;
  std::size_t device_width_ = min_device_width;
  std::string text_;
};

}  // namespace

std::string text_report(const Comparison& comparison) { return Text(comparison).write(); }

}  // namespace tern::tools
