#include "tools/rehearse/rehearsal_report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <utility>

#include "tern/core/bytes.hpp"
#include "tern/core/error.hpp"
#include "tools/report/plain_text.hpp"

namespace tern::tools {
namespace {

using Json = nlohmann::ordered_json;
using trace::DefinitionKind;
using trace::EventKind;
using trace::MemoryTrace;

#define TERN_CODE(code, name, base) +1
constexpr std::size_t error_codes = 0 TERN_FOR_EACH_ERROR_CODE(TERN_CODE);
#undef TERN_CODE

/// "1.5 GiB (tag 'activations') at src/model.cpp:88"
std::string words_of(const RefusedRequest& one) {
  return fmt::format("{} ({}) at {}", format_bytes(one.bytes), tag_words(one.tag), plain(one.site));
}

std::string sentence_of(const RefusedRequest& one) {
  std::string text = fmt::format("{} on {} failed with {}. {} were live", words_of(one),
                                 plain(one.device), plain(one.error), format_bytes(one.live_bytes));
  if (one.held_bytes > 0) text += fmt::format(", and {} were held", format_bytes(one.held_bytes));
  return text + ".";
}

/// The fields that an allocation and a refusal have in common.
RefusedRequest request_of(const MemoryTrace& trace, const trace::MemoryEvent& event) {
  const MemoryTrace::Name* device = trace.find(DefinitionKind::device, event.device);
  const MemoryTrace::Name* tag = trace.find(DefinitionKind::tag, event.tag);
  const MemoryTrace::Name* site = trace.find(DefinitionKind::site, event.site);
  RefusedRequest one;
  one.device = device != nullptr ? device->text : fmt::format("device {}", event.device);
  one.tag = tag != nullptr ? tag->text : "untagged";
  one.site = site != nullptr ? fmt::format("{}:{}", site->text, site->line) : "an unknown line";
  one.error = event.detail < error_codes ? std::string(name(static_cast<ErrorCode>(event.detail)))
                                         : fmt::format("error {}", event.detail);
  one.bytes = event.bytes;
  one.held_bytes = event.extra;
  return one;
}

Json json_of(const std::optional<RefusedRequest>& one) {
  if (!one) return nullptr;
  return {{"device", one->device},
          {"bytes", one->bytes},
          {"tag", one->tag},
          {"site", one->site},
          {"error", one->error},
          {"live_bytes", one->live_bytes},
          {"held_bytes", one->held_bytes}};
}

Json json_of(const TraceSummary& summary, const TraceSummary::Peak& peak) {
  Json tags = Json::array();
  for (const TraceSummary::Share& one : peak.tags) {
    tags.push_back({{"tag", summary.tags[one.tag]}, {"bytes", one.bytes}, {"blocks", one.blocks}});
  }
  return {{"device", summary.devices[peak.device]},
          {"live_bytes", peak.live},
          {"held_bytes", peak.held},
          {"tags", std::move(tags)}};
}

std::string size_text(std::size_t bytes) {
  return fmt::format("{} ({} MiB)", format_bytes(bytes), bytes / mib);
}

std::string text_of(const RehearsedDevice& one) {
  const std::string name = plain(one.name);
  if (!one.smallest)
    return fmt::format("  {}: not even a device with 16 TiB is large enough\n", name);
  std::string text = fmt::format("  {}: {}", name, size_text(one.smallest->smallest.device_bytes));
  if (one.refused_by_one_less) {
    text += fmt::format("; with {} less, the device refuses {}", format_bytes(device_granule_bytes),
                        words_of(*one.refused_by_one_less));
  } else {
    text += "; a smaller device cannot hold the live bytes";
  }
  if (one.smallest_with_limit) {
    const std::size_t limited = one.smallest_with_limit->smallest.device_bytes;
    if (limited < one.smallest->smallest.device_bytes) {
      text += fmt::format(". A pool with a limit needs only {}", size_text(limited));
    }
  }
  if (one.refused_requests > 0) {
    text += fmt::format(". The recording has {} refused requests, so the program may need more",
                        one.refused_requests);
  }
  return text + "\n";
}

}  // namespace

RefusedRequest refused_request(const MemoryTrace& trace, const RecordedAllocations& recorded,
                               const SizeTrial& trial) {
  const bench::TraceStep& step = recorded.trace.steps[*trial.refused_step];
  RefusedRequest one = request_of(trace, trace.events[recorded.block_events[step.block]]);
  one.device = recorded.name;
  one.bytes = step.bytes;
  one.live_bytes = trial.live_bytes;
  one.held_bytes = trial.peak_held_bytes;
  one.error = "out_of_memory";
  return one;
}

RecordedRefusals refusals_of(const MemoryTrace& trace) {
  RecordedRefusals refusals;
  std::unordered_map<std::uint32_t, std::uint64_t> live;  // by device
  for (const trace::MemoryEvent& event : trace.events) {
    if (event.kind == EventKind::budget_refuse) ++refusals.by_budgets;
    if (event.kind == EventKind::refuse && refusals.by_resources++ == 0) {
      refusals.first = request_of(trace, event);
      refusals.first->live_bytes = live[event.device];
    }
    if (refusals.first) continue;
    std::uint64_t& bytes = live[event.device];
    if (event.kind == EventKind::allocate) bytes += event.bytes;
    if (event.kind == EventKind::free) bytes -= std::min(bytes, event.bytes);
  }
  return refusals;
}

std::optional<RefusedRequest> RehearsalReport::first_refused() const {
  if (!end) {
    for (const RehearsedDevice& one : devices) {
      if (one.refused) return one.refused;
    }
    return std::nullopt;
  }
  return refusals.first;
}

bool RehearsalReport::is_success() const { return end ? end->is_success() : !first_refused(); }

std::string RehearsalReport::text() const {
  std::string text;
  const auto add = [&]<class... Args>(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(text), format, std::forward<Args>(args)...);
  };
  add("Rehearsed on simulated devices with {}", format_bytes(memory_bytes));
  if (end) add("; the program {}", end->text());
  add(".\n");
  if (recordings > 1) {
    add("  note: {} processes recorded. Shown is the process with the highest peak.\n", recordings);
  }
  text += text_report(summary);
  if (!devices.empty()) {
    add("\nSmallest device that serves these allocations with one pool, in steps of {}:\n",
        format_bytes(device_granule_bytes));
  }
  for (const RehearsedDevice& one : devices) text += text_of(one);
  for (const RehearsedDevice& one : devices) {
    if (!one.trial || !one.trial->fits()) continue;
    add("\nThe allocations of {} fit on a device with {}. The pool holds at most {}.\n",
        plain(one.name), format_bytes(memory_bytes), format_bytes(one.trial->peak_held_bytes));
  }
  if (const std::optional<RefusedRequest> first = first_refused()) {
    add("\nFirst refused request: {}\n", sentence_of(*first));
  }
  return text;
}

std::string RehearsalReport::json() const {
  Json json = {{"memory_bytes", memory_bytes}, {"granule_bytes", device_granule_bytes}};
  if (end) json["program"] = {{"status", end->status}, {"signal", end->signal}};
  json["peaks"] = Json::array();
  for (const TraceSummary::Peak& peak : summary.peaks)
    json["peaks"].push_back(json_of(summary, peak));
  json["devices"] = Json::array();
  for (const RehearsedDevice& one : devices) {
    Json entry = {{"device", one.name}, {"refused_requests", one.refused_requests}};
    if (one.smallest) {
      entry["smallest_bytes"] = one.smallest->smallest.device_bytes;
      entry["refused_by_one_granule_less"] = json_of(one.refused_by_one_less);
    }
    if (one.smallest_with_limit) {
      entry["smallest_bytes_with_limit"] = one.smallest_with_limit->smallest.device_bytes;
    }
    if (one.trial) entry["held_bytes"] = one.trial->peak_held_bytes;
    json["devices"].push_back(std::move(entry));
  }
  json["refusals"] = refusals.by_resources;
  json["first_refused"] = json_of(first_refused());
  json["budgets"] = {{"refusals", refusals.by_budgets},
                     {"waits", summary.budget_waits.calls},
                     {"waited_ns", summary.budget_waits.sum}};
  json["transfers"] = Json::object();
  for (std::size_t i = 0; i < TraceSummary::directions; ++i) {
    const TraceSummary::Transfers& one = summary.transfers[i];
    json["transfers"][std::string(name(static_cast<TraceSummary::Direction>(i)))] = {
        {"calls", one.calls}, {"bytes", one.bytes}};
  }
  json["moves"] = Json::object();
  for (const TraceSummary::Moves& one : summary.moves) {
    json["moves"][one.reason] = {{"calls", one.calls}, {"bytes", one.bytes}};
  }
  json["evictions"] = {{"calls", summary.evictions.calls}, {"bytes", summary.evictions.sum}};
  json["notes"] = summary.notes;
  // A recording may contain any bytes.
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace tern::tools
