// The report as a page: tools/report/README.md describes its data.

#include <array>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "tools/report/page_parts.hpp"
#include "tools/report/story.hpp"

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

json shares_of(const std::vector<Story::Share>& shares, bool has_sites) {
  json all = json::array();
  for (const Story::Share& one : shares) {
    json share = {{"tag", one.tag}, {"bytes", one.bytes}, {"blocks", one.blocks}};
    if (has_sites) share["site"] = one.site;
    all.push_back(std::move(share));
  }
  return all;
}

json facts_of(const Story& story) {
  json facts = {{"title", story.title},       {"program", story.program},
                {"process", story.process},   {"started", story.started},
                {"duration", story.duration}, {"events", story.events},
                {"lost", story.lost},         {"is_complete", story.is_complete},
                {"notes", story.notes},       {"tags", story.tags},
                {"sites", story.sites},       {"kernels", story.kernels}};
  const auto list = [&](const char* name) -> json& { return facts[name] = json::array(); };
  json& devices = list("devices");
  for (const std::string& one : story.devices) devices.push_back({{"name", one}});
  json& resources = list("resources");
  for (const Story::Resource& one : story.resources) {
    resources.push_back({{"name", one.name}, {"device", one.device}});
  }
  json& streams = list("streams");
  for (const Story::Stream& one : story.streams) {
    streams.push_back({{"name", one.name}, {"device", one.device}});
  }
  json& peaks = list("peaks");
  for (const Story::Peak& one : story.peaks) {
    peaks.push_back({{"device", one.device},
                     {"time", one.time},
                     {"live", one.live},
                     {"held", one.held},
                     {"tags", shares_of(one.tags, false)},
                     {"sites", shares_of(one.sites, true)},
                     {"text", one.text}});
  }
  json& refusals = list("refusals");
  for (const Story::Refusal& one : story.refusals) {
    refusals.push_back({{"time", one.time},
                        {"device", one.device},
                        {"resource", one.resource},
                        {"bytes", one.bytes},
                        {"held", one.held},
                        {"live", one.live},
                        {"tag", one.tag},
                        {"site", one.site},
                        {"stream", one.stream},
                        {"error", one.error},
                        {"tags", shares_of(one.tags, false)}});
  }
  json& leaks = list("leaks");
  for (const Story::Leak& one : story.leaks) {
    leaks.push_back({{"device", one.device},
                     {"tag", one.tag},
                     {"site", one.site},
                     {"bytes", one.bytes},
                     {"blocks", one.blocks}});
  }
  json& transfers = list("transfers");
  for (std::size_t i = 0; i < Story::directions; ++i) {
    const Story::Transfers& one = story.transfers[i];
    if (one.calls == 0) continue;
    transfers.push_back({{"direction", name(static_cast<Story::Direction>(i))},
                         {"calls", one.calls},
                         {"bytes", one.bytes},
                         {"busy", one.busy}});
  }
  return facts;
}

template <class T, class M>
auto field(M T::*member) {
  return [member](const T& row) { return static_cast<std::uint64_t>(row.*member); };
}

Columns columns_of(const Story& story) {
  using enum Columns::Coding;
  Columns columns;
  using Block = Story::Block;
  columns.add("block_begin", story.blocks, field(&Block::begin), delta);
  columns.add("block_life", story.blocks, [](const Block& one) {
    return one.end == Story::never ? 0 : one.end - std::min(one.begin, one.end) + 1;
  });
  columns.add(
      "block_address", story.blocks, [](const Block& one) { return one.address / 256; }, zigzag);
  // Most blocks are like many others.
  const auto kind_of = [](const Block& one) {
    return std::tuple(one.bytes, one.tag, one.stream, one.free_stream, one.site, one.free_site,
                      one.resource);
  };
  std::map<decltype(kind_of(story.blocks[0])), std::size_t> known;
  std::vector<const Block*> kinds;
  columns.add("block_kind", story.blocks, [&](const Block& one) {
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
  using Hold = Story::Hold;
  columns.add("hold_time", story.holds, field(&Hold::time), delta);
  columns.add("hold_resource", story.holds, field(&Hold::resource));
  columns.add("hold_bytes", story.holds, field(&Hold::bytes));
  using Copy = Story::Copy;
  columns.add("copy_time", story.copies, field(&Copy::time), delta);
  columns.add("copy_took", story.copies,
              [](const Copy& one) { return one.took == 0 ? 0 : one.took + 1; });
  columns.add("copy_bytes", story.copies, field(&Copy::bytes));
  columns.add("copy_direction", story.copies, field(&Copy::direction));
  columns.add("copy_stream", story.copies, field(&Copy::stream));
  columns.add("copy_site", story.copies, field(&Copy::site));
  columns.add("copy_tag", story.copies, field(&Copy::tag));
  using Launch = Story::Launch;
  columns.add("launch_time", story.launches, field(&Launch::time), delta);
  columns.add("launch_stream", story.launches, field(&Launch::stream));
  columns.add("launch_kernel", story.launches, field(&Launch::kernel));
  columns.add("launch_site", story.launches, field(&Launch::site));
  using Wait = Story::Wait;
  columns.add("wait_time", story.waits, field(&Wait::time), delta);
  columns.add("wait_took", story.waits, field(&Wait::took));
  columns.add("wait_stream", story.waits, field(&Wait::stream));
  columns.add("wait_for", story.waits, field(&Wait::waits_for));
  columns.add("wait_site", story.waits, field(&Wait::site));
  using Range = Story::Range;
  columns.add("range_begin", story.ranges, field(&Range::begin), delta);
  columns.add("range_took", story.ranges, field(&Range::took));
  columns.add("range_depth", story.ranges, field(&Range::depth));
  columns.add("range_thread", story.ranges, field(&Range::thread));
  columns.add("range_name", story.ranges, field(&Range::name));
  return columns;
}

void replace_first(std::string& text, std::string_view marker, std::string_view by) {
  const std::size_t at = text.find(marker);
  if (at != text.npos) text.replace(at, marker.size(), by);
}

}  // namespace

std::string page_report(const Story& story) {
  const Columns columns = columns_of(story);
  json facts = facts_of(story);
  facts["columns"] = columns.places();
  std::string page(page_html);
  // The facts last: a text of the trace may be a marker. Base64 has no @.
  replace_first(page, "@STYLE@", page_css);
  replace_first(page, "@SCRIPT@", page_js);
  replace_first(page, "@COLUMNS@", columns.text());
  replace_first(page, "@FACTS@", script_json(facts));
  return page;
}

}  // namespace tern::tools
