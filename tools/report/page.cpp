// The report as a page: tools/report/README.md describes its data.

#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "tools/report/comparison.hpp"
#include "tools/report/page_facts.hpp"
#include "tools/report/page_parts.hpp"
#include "tools/report/trace_summary.hpp"

namespace tern::tools {
namespace {

using nlohmann::json;

/// JSON inside a script element: nothing in it may end the element.
std::string script_json(const json& facts) {
  const std::string text = facts.dump(-1, ' ', false, json::error_handler_t::replace);
  std::string safe;
  safe.reserve(text.size());
  for (const char c : text) {
    if (c == '<') {
      safe += "\\u003c";
    } else {
      safe += c;
    }
  }
  return safe;
}

std::string base64(const std::vector<std::uint8_t>& bytes) {
  constexpr std::string_view digits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    const std::size_t left = bytes.size() - i;
    const std::uint32_t word = std::uint32_t{bytes[i]} << 16 |
                               (left > 1 ? std::uint32_t{bytes[i + 1]} << 8 : 0) |
                               (left > 2 ? std::uint32_t{bytes[i + 2]} : 0);
    text += digits[word >> 18];
    text += digits[word >> 12 & 63];
    text += left > 1 ? digits[word >> 6 & 63] : '=';
    text += left > 2 ? digits[word & 63] : '=';
  }
  return text;
}

/// Collects columns of numbers and where each is.
class Columns {
 public:
  enum class Coding : std::uint8_t { plain, delta, zigzag };

  template <class Rows, class Value>
  void add(const char* name, const Rows& rows, Value value, Coding coding = Coding::plain) {
    // Larger values would not be exact in a page.
    constexpr std::uint64_t max_value = (std::uint64_t{1} << 53) - 1;
    const std::size_t offset = bytes_.size();
    std::uint64_t before = 0;
    for (const auto& row : rows) {
      const auto now = std::min<std::uint64_t>(value(row), max_value);
      switch (coding) {
        case Coding::plain:
          put(now);
          break;
        case Coding::delta:
          put(now - std::min(before, now));
          break;
        case Coding::zigzag:
          put(now >= before ? 2 * (now - before) : 2 * (before - now) - 1);
          break;
      }
      before = coding == Coding::delta ? std::max(before, now) : now;
    }
    places_[name] = {
        {"offset", offset}, {"bytes", bytes_.size() - offset}, {"count", std::size(rows)}};
  }
  [[nodiscard]] const json& places() const { return places_; }
  [[nodiscard]] std::string text() const { return base64(bytes_); }

 private:
  void put(std::uint64_t value) {
    while (value >= 128) {
      bytes_.push_back(static_cast<std::uint8_t>(value | 128));
      value >>= 7;
    }
    bytes_.push_back(static_cast<std::uint8_t>(value));
  }

  std::vector<std::uint8_t> bytes_;
  json places_ = json::object();
};

template <class T, class M>
auto field(M T::*member) {
  return [member](const T& row) { return static_cast<std::uint64_t>(row.*member); };
}

Columns columns_of(const TraceSummary& summary) {
  using enum Columns::Coding;
  Columns columns;
  using Block = TraceSummary::Block;
  columns.add("block_begin", summary.blocks, field(&Block::begin), delta);
  columns.add("block_life", summary.blocks, [](const Block& one) {
    return one.end == TraceSummary::never ? 0 : one.end - std::min(one.begin, one.end) + 1;
  });
  columns.add(
      "block_address", summary.blocks, [](const Block& one) { return one.address / 256; }, zigzag);
  // Most blocks are like many others.
  const auto kind_of = [](const Block& one) {
    return std::tuple(one.bytes, one.tag, one.stream, one.free_stream, one.site, one.free_site,
                      one.resource);
  };
  std::map<decltype(kind_of(summary.blocks[0])), std::size_t> known;
  std::vector<const Block*> kinds;
  columns.add("block_kind", summary.blocks, [&](const Block& one) {
    const auto [at, is_new] = known.try_emplace(kind_of(one), kinds.size());
    if (is_new) kinds.push_back(&one);
    return at->second;
  });
  const auto add_kind = [&](const char* name, auto member) {
    columns.add(name, kinds,
                [member](const Block* one) { return static_cast<std::uint64_t>(one->*member); });
  };
  add_kind("kind_bytes", &Block::bytes);
  add_kind("kind_tag", &Block::tag);
  add_kind("kind_stream", &Block::stream);
  add_kind("kind_free_stream", &Block::free_stream);
  add_kind("kind_site", &Block::site);
  add_kind("kind_free_site", &Block::free_site);
  add_kind("kind_resource", &Block::resource);
  using Hold = TraceSummary::Hold;
  using Pending = PendingMemory::Change;
  columns.add("hold_time", summary.holds, field(&Hold::time), delta);
  columns.add("hold_resource", summary.holds, field(&Hold::resource));
  columns.add("hold_bytes", summary.holds, field(&Hold::bytes));
  columns.add("pending_time", summary.pending, field(&Pending::time), delta);
  columns.add("pending_device", summary.pending, field(&Pending::device));
  columns.add("pending_bytes", summary.pending, field(&Pending::bytes));
  using Copy = TraceSummary::Copy;
  columns.add("copy_time", summary.copies, field(&Copy::time), delta);
  columns.add("copy_took", summary.copies,
              [](const Copy& one) { return one.took == 0 ? 0 : one.took + 1; });
  columns.add("copy_bytes", summary.copies, field(&Copy::bytes));
  columns.add("copy_direction", summary.copies, field(&Copy::direction));
  columns.add("copy_stream", summary.copies, field(&Copy::stream));
  columns.add("copy_site", summary.copies, field(&Copy::site));
  columns.add("copy_tag", summary.copies, field(&Copy::tag));
  using Launch = TraceSummary::Launch;
  columns.add("launch_time", summary.launches, field(&Launch::time), delta);
  columns.add("launch_stream", summary.launches, field(&Launch::stream));
  columns.add("launch_kernel", summary.launches, field(&Launch::kernel));
  columns.add("launch_site", summary.launches, field(&Launch::site));
  using Wait = TraceSummary::Wait;
  columns.add("wait_time", summary.waits, field(&Wait::time), delta);
  columns.add("wait_took", summary.waits, field(&Wait::took));
  columns.add("wait_stream", summary.waits, field(&Wait::stream));
  columns.add("wait_for", summary.waits, field(&Wait::waits_for));
  columns.add("wait_site", summary.waits, field(&Wait::site));
  using HostCall = TraceSummary::HostCall;
  columns.add("call_time", summary.host_calls, field(&HostCall::time), delta);
  columns.add("call_took", summary.host_calls, [](const HostCall& one) {
    return one.over == TraceSummary::never ? 0 : one.over - std::min(one.time, one.over) + 1;
  });
  columns.add("call_stream", summary.host_calls, field(&HostCall::stream));
  columns.add("call_site", summary.host_calls, field(&HostCall::site));
  using Range = TraceSummary::Range;
  columns.add("range_begin", summary.ranges, field(&Range::begin), delta);
  columns.add("range_took", summary.ranges, field(&Range::took));
  columns.add("range_depth", summary.ranges, field(&Range::depth));
  columns.add("range_thread", summary.ranges, field(&Range::thread));
  columns.add("range_name", summary.ranges, field(&Range::name));
  return columns;
}

/// The data of one trace: JSON and base64.
struct TraceData {
  std::string facts, columns;
};

TraceData data_of(const TraceSummary& summary) {
  const Columns columns = columns_of(summary);
  json facts = page_facts(summary);
  facts["columns"] = columns.places();
  return {script_json(facts), columns.text()};
}

/// Replaces each marker of the page by its text. Texts of a trace may contain markers, so the page
/// is cut at the markers first.
std::string fill_page(std::initializer_list<std::pair<std::string_view, std::string_view>> parts) {
  std::string page;
  std::string_view rest = page_html;
  for (const auto& [marker, text] : parts) {
    const std::size_t at = rest.find(marker);
    if (at == rest.npos) continue;
    page += rest.substr(0, at);
    page += text;
    rest.remove_prefix(at + marker.size());
  }
  return page.append(rest);
}

}  // namespace

std::string page_report(const TraceSummary& summary) {
  const TraceData data = data_of(summary);
  return fill_page({{"@STYLE@", page_css},
                    {"@FACTS@", data.facts},
                    {"@COLUMNS@", data.columns},
                    {"@BEFORE_FACTS@", "null"},
                    {"@BEFORE_COLUMNS@", ""},
                    {"@COMPARISON@", "null"},
                    {"@SCRIPT@", page_js}});
}

std::string page_report(const Comparison& comparison, const TraceSummary& before,
                        const TraceSummary& after) {
  const TraceData first = data_of(before), second = data_of(after);
  return fill_page({{"@STYLE@", page_css},
                    {"@FACTS@", second.facts},
                    {"@COLUMNS@", second.columns},
                    {"@BEFORE_FACTS@", first.facts},
                    {"@BEFORE_COLUMNS@", first.columns},
                    {"@COMPARISON@", script_json(comparison_facts(comparison))},
                    {"@SCRIPT@", page_js}});
}

}  // namespace tern::tools
