#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "device/device_state.hpp"
#include "memory/block_table.hpp"
#include "memory/default_slots.hpp"
#include "memory/failed_free_totals.hpp"
#include "tern/core/bytes.hpp"
#include "tern/memory/default_resource.hpp"
#include "tern/memory/tracking_resource.hpp"

namespace tern {
namespace {

using Sites = std::map<Generation, CallSite>;

/// Collects the call sites of live blocks from the TrackingResources of a stack.
void add_sites(const Resource* resource, Sites& sites) {
  while (const auto* wrapping = dynamic_cast<const WrappingResource*>(resource)) {
    if (const auto* tracking = dynamic_cast<const TrackingResource*>(wrapping)) {
      for (const LiveBlock& one : tracking->live_blocks()) {
        sites.emplace(one.block.generation, one.site);
      }
    }
    resource = wrapping->upstream().get();
  }
}

struct Live {
  std::uintptr_t begin = 0;
  std::uintptr_t end = 0;
  Holder leak = {};
};

bool is_same_line(const Holder& a, const Holder& b) noexcept {
  return a.device == b.device && a.tag == b.tag && a.site.line == b.site.line &&
         std::string_view(a.site.file) == b.site.file;
}

void add_to(std::vector<Holder>& leaks, const Holder& leak) {
  const auto same =
      std::ranges::find_if(leaks, [&](const Holder& one) { return is_same_line(one, leak); });
  if (same == leaks.end()) {
    leaks.push_back(leak);
  } else {
    same->bytes += leak.bytes;
    ++same->blocks;
  }
}

// Visits every live block of the given devices and groups them by device, tag and line.
std::vector<Holder> find_leaks(const std::vector<Device>& devices, const Sites& sites) {
  std::vector<Live> live;
  for_each_live_block([&](Generation generation) {
    const Result<BlockFacts> facts = try_find_block(generation);
    if (!facts) return;
    const auto device = std::ranges::find(devices, facts->device, &Device::id);
    if (device == devices.end()) return;
    const auto site = sites.find(generation);
    const auto begin = reinterpret_cast<std::uintptr_t>(facts->address);
    live.push_back({begin,
                    begin + facts->bytes,
                    {std::string(device->spec()), facts->tag,
                     site == sites.end() ? CallSite{} : site->second, facts->bytes, 1, 0}});
  });
  // A guarded block lies inside a block of the guard's upstream. Report only the inner one, which
  // the program owns: sort so that an inner block follows its outer block.
  std::ranges::sort(live, [](const Live& a, const Live& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end > b.end;
  });
  std::vector<Holder> leaks;
  for (std::size_t i = 0; i < live.size(); ++i) {
    const bool has_inner = i + 1 < live.size() && live[i + 1].end <= live[i].end &&
                           live[i + 1].leak.device == live[i].leak.device;
    if (!has_inner) add_to(leaks, live[i].leak);
  }
  std::ranges::stable_sort(leaks,
                           [](const Holder& a, const Holder& b) { return a.bytes > b.bytes; });
  return leaks;
}

/// Returns the live blocks, one line for each device, tag and call site.
std::string leak_table(const std::vector<Holder>& leaks) {
  std::string text = fmt::format("{:>12} {:>7}  {:<16} {:<20} {}\n", "never freed", "blocks",
                                 "device", "tag", "allocated at");
  for (const Holder& one : leaks) {
    text += fmt::format("{:>12} {:>7}  {:<16} {:<20} {}\n", format_bytes(one.bytes), one.blocks,
                        one.device, one.tag.name(),
                        one.site.is_known() ? fmt::format("{}:{}", one.site.file, one.site.line)
                                            : "unknown; TERN_MEMORY=track records it");
  }
  return text;
}

void print_leaks() noexcept try {
  const ShutdownReport report = shutdown();
  if (!report.is_clean()) std::fputs((report.text() + "\n").c_str(), stderr);
} catch (const std::exception&) {
  // Without memory for the table, nothing is printed.
}

}  // namespace

std::string ShutdownReport::text() const {
  std::string text = leaks.empty() ? "" : leak_table(leaks);
  if (failed_frees != 0) {
    text += fmt::format("{} frees failed; {} are live because of that\n", failed_frees,
                        format_bytes(failed_free_bytes));
  }
  if (pending_bytes != 0) {
    text += fmt::format("{} were pending when shutdown began\n", format_bytes(pending_bytes));
  }
  for (const Failure& one : unfinished) text += fmt::format("wait failed: {}\n", one.text());
  if (text.empty()) return "no leaks";
  text.pop_back();
  return text;
}

void report_leaks_at_exit() {
  // A handler that is registered after a device was opened runs before the driver shuts down.
  static const bool is_registered = std::atexit(print_leaks) == 0;
  static_cast<void>(is_registered);
}

ShutdownReport shutdown() {
  static std::mutex& one_at_a_time = *new std::mutex;
  // In a forked child, the mutex may have been held by another thread of the parent.
  static const std::uint64_t process = process_generation();
  if (!is_same_process(process)) return {};
  const std::lock_guard lock(one_at_a_time);
  ShutdownReport report;
  std::vector<Device> devices = DeviceState::open_handles();
  std::erase_if(devices,
                [](const Device& one) { return !DeviceState::of(one)->is_in_its_process(); });
  // Blocks must not outlive their resource, so a resource with live blocks is kept until a later
  // call.
  static std::vector<ResourceHandle>& ended = *new std::vector<ResourceHandle>;
  Sites sites;
  for (const Device& device : devices) {
    const std::vector<ResourceHandle> defaults = end_default_resources(device);
    for (const ResourceHandle& one : defaults) {
      report.pending_bytes += one->statistics().pending_bytes;
    }
    if (const Result<void> waited = device.try_synchronize(); !waited) {
      report.unfinished.push_back(waited.failure());
    }
    ended.insert(ended.end(), defaults.begin(), defaults.end());
  }
  for (const ResourceHandle& one : ended) {
    one->trim(0);
    add_sites(one.get(), sites);
  }
  std::erase_if(ended,
                [](const ResourceHandle& one) { return one->statistics().live_blocks == 0; });
  report.leaks = find_leaks(devices, sites);
  report.failed_frees = failed_free_totals.frees.load();
  report.failed_free_bytes = failed_free_totals.bytes.load();
  return report;
}

}  // namespace tern
