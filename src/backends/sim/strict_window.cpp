#include "backends/sim/strict_window.hpp"

#include <algorithm>
#include <span>

#include "tern/core/access.hpp"

namespace tern::sim {

StrictWindow::StrictWindow(const Memories& memories, const KernelLaunch& launch)
    : memories_(memories), launch_(launch), recorder_(&memories) {
  const std::uint64_t page = AliasMemory::page_bytes();
  IntervalMap<bool> writable;  // declared as writable, to the byte
  for (const bool for_writing : {false, true}) {
    for (const KernelArgument& argument : launch.arguments) {
      if (argument.range_bytes == 0 || is_write(argument.access) != for_writing) continue;
      const auto place = memories_.locate(argument.range_address);
      if (!place) continue;
      const std::uint64_t begin = std::uint64_t{place->first} << offset_bits | place->second;
      const std::uint64_t end = begin + argument.range_bytes;
      pages_.assign(begin / page * page, (end + page - 1) / page * page, for_writing);
      if (for_writing) writable.assign(begin, end, true);
    }
  }
  for (const auto& [begin, interval] : pages_) {
    AliasMemory& memory = memories_.of_device(device_of(begin));
    memory.prepare(offset_of(begin), interval.end - begin);
    memory.open_pages(offset_of(begin), interval.end - begin, interval.value);
    if (!interval.value) continue;
    writable.visit(begin, interval.end, [&](std::uint64_t from, std::uint64_t to, const bool* is) {
      const std::byte* bytes = memory.alias_of(offset_of(from));
      if (is == nullptr) neighbours_.emplace_back(from, std::vector(bytes, bytes + (to - from)));
      return true;
    });
  }
}

bool StrictWindow::is_declared(std::uint32_t device, std::uint64_t offset) const noexcept {
  return std::ranges::any_of(launch_.arguments, [&](const KernelArgument& argument) {
    if (argument.range_bytes == 0) return false;
    const auto place = memories_.locate(argument.range_address);
    return place && place->first == device && offset >= place->second &&
           offset - place->second < argument.range_bytes;
  });
}

std::vector<StrictWindow::Undeclared> StrictWindow::close() {
  const std::uint64_t page = AliasMemory::page_bytes();
  for (const auto& [begin, interval] : pages_) {
    memories_.of_device(device_of(begin)).close_pages(offset_of(begin), interval.end - begin);
  }
  if (recorder_.has_more()) memories_.close_all();
  std::vector<Undeclared> found;
  for (const TouchRecorder::Touched& one : recorder_.touched()) {
    const auto place = memories_.locate(one.address);
    if (!place) continue;
    memories_.of_device(place->first).close_pages(place->second / page * page, page);
    // The bytes of an argument can be read, so the access to a declared byte was a write.
    const bool is_declared_for_read = is_declared(place->first, place->second);
    found.push_back({place->first, place->second, is_declared_for_read, is_declared_for_read,
                     one.is_by_other_thread});
  }
  for (const auto& [at, before] : neighbours_) {
    const std::byte* now = memories_.of_device(device_of(at)).alias_of(offset_of(at));
    const auto first = std::ranges::mismatch(before, std::span(now, before.size())).in1;
    if (first == before.end()) continue;
    const std::uint64_t written = at + static_cast<std::uint64_t>(first - before.begin());
    found.push_back({device_of(written), offset_of(written), true,
                     is_declared(device_of(written), offset_of(written)), false});
  }
  return found;
}

}  // namespace tern::sim
