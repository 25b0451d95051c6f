#include "tools/top/live_memory.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <tuple>

#include "tern/core/bytes.hpp"
#include "tern/device/device_info.hpp"
#include "tern/device/mark.hpp"
#include "tools/report/plain_text.hpp"
#include "tools/report/trace_summary.hpp"

namespace tern::tools {

using trace::DefinitionKind;
using trace::EventKind;
using trace::MemoryEvent;
using trace::MemoryTrace;

void LiveMemory::add(const MemoryEvent& event, const MemoryTrace& names) {
  ++events_;
  const auto place = [&] {
    const MemoryTrace::Name* const name = names.find(DefinitionKind::resource, event.resource);
    return Place(event.device,
                 name != nullptr && name->detail == static_cast<std::uint8_t>(MemoryKind::pinned));
  };
  last_time_ = std::max(last_time_, event.time_ns);
  switch (event.kind) {
    case EventKind::allocate:
      return allocate(event, place());
    case EventKind::free:
      return free(event);
    case EventKind::refuse:
    case EventKind::budget_refuse:
      ++refusals_;
      return;
    case EventKind::hold: {
      // The first event decides on the place: the definition of the resource may be read later.
      HeldBy& held = held_.try_emplace(event.resource, HeldBy{place()}).first->second;
      places_[held.place].held += event.bytes - std::exchange(held.bytes, event.bytes);
      return;
    }
    case EventKind::stream_begin:
      stream_names_[event.stream] = static_cast<std::uint32_t>(event.extra);
      return;
    case EventKind::budget_use:
      return note_budget(event);
    default:
      return;
  }
}

std::uint32_t LiveMemory::name_of_stream(std::uint64_t stream) const {
  const auto at = stream_names_.find(stream);
  return at == stream_names_.end() ? 0 : at->second;
}

void LiveMemory::allocate(const MemoryEvent& event, Place place) {
  if (early_frees_.erase(event.block) != 0) return;
  const Block block = {event.bytes, event.stream, place, event.tag};
  const auto [at, is_new] = blocks_.try_emplace(event.block, block);
  if (is_new) count(block, true);
}

void LiveMemory::free(const MemoryEvent& event) {
  const auto at = blocks_.find(event.block);
  if (at == blocks_.end()) {
    // Blocks from before the recording have no allocation, so their numbers stay in the set.
    early_frees_.insert(event.block);
    return;
  }
  count(at->second, false);
  blocks_.erase(at);
}

void LiveMemory::note_budget(const MemoryEvent& event) {
  if (ended_budgets_.contains(event.block)) return;
  if (event.detail != 0) {
    ended_budgets_.insert(event.block);
    budgets_.erase(event.block);
    return;
  }
  const Budget now = {event.bytes, event.address, static_cast<std::uint32_t>(event.extra),
                      event.time_ns};
  Budget& known = budgets_.try_emplace(event.block, now).first->second;
  if (known.time <= now.time) known = now;
}

void LiveMemory::count(const Block& block, bool is_allocated) {
  const auto change = [&](Sum& sum) {
    sum.bytes += is_allocated ? block.bytes : 0 - block.bytes;
    sum.blocks += is_allocated ? 1 : std::uint64_t{0} - 1;
  };
  Held& held = places_[block.place];
  change(held.live);
  held.peak = std::max(held.peak, held.live.bytes);
  change(tags_[{block.place, block.tag}]);
  change(streams_[{block.place, block.stream}]);
}

namespace {

constexpr std::size_t max_rows = 15;

class LiveText {
 public:
  LiveText(const LiveMemory& memory, const MemoryTrace& names) : memory_(memory), names_(names) {}

  std::string text() {
    const trace::FileHeader& header = names_.header;
    const std::uint64_t passed =
        memory_.last_time() - std::min(memory_.last_time(), header.start_ns);
    add("{} (process {}): {} in {}, {} refused{}\n", plain(header.program), header.process,
        count_text(memory_.events(), "event"), time_text(passed),
        count_text(memory_.refusals(), "request"),
        header.is_closed != 0 ? ", recording stopped" : "");
    if (header.lost_events != 0) {
      add("note: {} events could not be recorded, so the sums may be wrong.\n", header.lost_events);
    }
    add("\n{:<24} {:>12} {:>12} {:>12} {:>10}\n", "device", "live", "peak", "held", "blocks");
    for (const auto& [place, one] : memory_.places()) {
      add("{:<24} {:>12} {:>12} {:>12} {:>10}\n", name_of(place), format_bytes(one.live.bytes),
          format_bytes(one.peak), one.held != 0 ? format_bytes(one.held) : "", one.live.blocks);
    }
    add_table("tag", memory_.tags(), [&](std::uint64_t number) {
      return number == 0 ? std::string("untagged")
                         : name_of(DefinitionKind::tag, static_cast<std::uint32_t>(number));
    });
    add_budgets();
    add_table("stream", memory_.streams(), [&](std::uint64_t number) {
      const std::uint32_t name = memory_.name_of_stream(number);
      if (name != 0) return name_of(DefinitionKind::text, name);
      if (number == 0) return std::string("host");
      const std::uint64_t counted = number & ((std::uint64_t{1} << StreamId::number_bits) - 1);
      return counted == 0 ? std::string("default stream") : fmt::format("stream {}", counted);
    });
    return std::move(text_);
  }

 private:
  template <class... T>
  void add(fmt::format_string<T...> format, T&&... values) {
    fmt::format_to(std::back_inserter(text_), format, std::forward<T>(values)...);
  }
  [[nodiscard]] std::string name_of(DefinitionKind kind, std::uint32_t number) const {
    const MemoryTrace::Name* const name = names_.find(kind, number);
    return name != nullptr ? plain(name->text) : fmt::format("number {}", number);
  }
  [[nodiscard]] std::string name_of(LiveMemory::Place place) const {
    const std::string name = name_of(DefinitionKind::device, place.device);
    return place.is_page_locked ? name + ", page-locked" : name;
  }
  /// The largest use first. A budget uses at least what the budgets below it use, so it comes
  /// before them.
  void add_budgets() {
    struct Row {
      std::string path;
      LiveMemory::Budget budget;
    };
    std::vector<Row> rows;
    for (const auto& [number, one] : memory_.budgets()) {
      rows.push_back({name_of(DefinitionKind::text, one.path), one});
    }
    if (rows.empty()) return;
    std::ranges::stable_sort(rows, [](const Row& a, const Row& b) {
      return std::tie(b.budget.used, a.path) < std::tie(a.budget.used, b.path);
    });
    add("\n{:<24} {:>12} {:>12} {:>10}\n", "budget", "used", "limit", "share");
    for (std::size_t i = 0; i < std::min(rows.size(), max_rows); ++i) {
      const LiveMemory::Budget& one = rows[i].budget;
      add("{:<24} {:>12} {:>12} {:>10}\n", rows[i].path, format_bytes(one.used),
          limit_text(one.limit), share_text(one.used, one.limit));
    }
    if (rows.size() > max_rows) add("... and {} more\n", rows.size() - max_rows);
  }
  template <class Name>
  void add_table(const char* what, const LiveMemory::Sums& sums, Name name) {
    struct Row {
      LiveMemory::Place place;
      std::uint64_t number;
      LiveMemory::Sum sum;
    };
    std::vector<Row> rows;
    for (const auto& [key, sum] : sums) {
      if (sum.blocks != 0) rows.push_back({key.first, key.second, sum});
    }
    std::ranges::stable_sort(rows, std::ranges::greater(),
                             [](const Row& row) { return row.sum.bytes; });
    if (rows.empty()) return;
    add("\n{:<24} {:>12} {:>10}  {}\n", what, "live", "blocks", "device");
    for (std::size_t i = 0; i < std::min(rows.size(), max_rows); ++i) {
      add("{:<24} {:>12} {:>10}  {}\n", name(rows[i].number), format_bytes(rows[i].sum.bytes),
          rows[i].sum.blocks, name_of(rows[i].place));
    }
    if (rows.size() > max_rows) add("... and {} more\n", rows.size() - max_rows);
  }

  const LiveMemory& memory_;
  const MemoryTrace& names_;
  std::string text_;
};

}  // namespace

std::string live_text(const LiveMemory& memory, const MemoryTrace& names) {
  return LiveText(memory, names).text();
}

}  // namespace tern::tools
