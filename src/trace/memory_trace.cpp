#include "trace/memory_trace.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <numeric>
#include <string_view>

#include "core/file_failure.hpp"

namespace tern::trace {
namespace {

/// Closes a file at the end of the scope.
class File {
 public:
  explicit File(const std::string& path) : number_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {}
  ~File() {
    if (number_ >= 0) ::close(number_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  [[nodiscard]] bool is_open() const noexcept { return number_ >= 0; }
  /// Reads as much as there is, up to `bytes`. Returns -1 on an error.
  [[nodiscard]] ssize_t read(std::byte* to, std::size_t bytes) const noexcept {
    std::size_t got = 0;
    while (got < bytes) {
      const ssize_t now = ::read(number_, to + got, bytes - got);
      if (now < 0 && errno == EINTR) continue;
      if (now < 0) return -1;
      if (now == 0) break;
      got += static_cast<std::size_t>(now);
    }
    return static_cast<ssize_t>(got);
  }

 private:
  const int number_;
};

Failure not_a_trace(const std::string& path, const char* why) noexcept {
  return Failure(ErrorCode::invalid_argument, "'{value}' is not a memory trace: {why}.")
      .with("name", "path")
      .with("why", why)
      .with("value", path);
}

}  // namespace

const MemoryTrace::Name* MemoryTrace::find(DefinitionKind kind,
                                           std::uint32_t number) const noexcept {
  const auto& names = names_[static_cast<std::size_t>(kind)];
  const auto at = names.find(number);
  return at == names.end() ? nullptr : &at->second;
}

Result<MemoryTrace> MemoryTrace::try_read(const std::string& path) {
  const File file(path);
  if (!file.is_open()) return file_failure(path, "open", errno);
  std::vector<std::byte> part(slab_bytes);
  const ssize_t first = file.read(part.data(), file_header_bytes);
  if (first < 0) return file_failure(path, "read", errno);
  MemoryTrace trace;
  if (static_cast<std::size_t>(first) < sizeof trace.header) {
    return not_a_trace(path, "it is shorter than the header of one");
  }
  std::memcpy(&trace.header, part.data(), sizeof trace.header);
  const FileHeader& header = trace.header;
  if (header.magic != file_magic)
    return not_a_trace(path, "it does not begin with the bytes of one");
  if (header.version != file_version) {
    return not_a_trace(path, "it has another version than this program reads");
  }
  if (header.header_bytes != file_header_bytes || header.slab_bytes != slab_bytes ||
      header.event_bytes != sizeof(MemoryEvent)) {
    return not_a_trace(path, "the sizes in its header are wrong");
  }
  trace.header.program[sizeof header.program - 1] = '\0';
  for (;;) {
    std::ranges::fill(part, std::byte{});
    const ssize_t got = file.read(part.data(), slab_bytes);
    if (got < 0) return file_failure(path, "read", errno);
    if (static_cast<std::size_t>(got) < sizeof(SlabHeader)) break;
    SlabHeader slab;
    std::memcpy(&slab, part.data(), sizeof slab);
    switch (slab.kind) {
      case SlabKind::unused:
        break;
      case SlabKind::events:
        trace.add_events(part.data() + sizeof slab, slab);
        break;
      case SlabKind::definitions:
        trace.add_definitions(part.data() + sizeof slab, slab);
        break;
      default:
        ++trace.damaged_slabs;
    }
  }
  trace.sort();
  return trace;
}

void MemoryTrace::add_events(const std::byte* contents, const SlabHeader& slab) {
  if (slab.used > slab_events) {
    ++damaged_slabs;
    return;
  }
  for (std::uint64_t i = 0; i < slab.used; ++i) {
    MemoryEvent event;
    std::memcpy(&event, contents + i * sizeof event, sizeof event);
    // A file that was cut in the middle of a slab has zeros there.
    const auto kind = static_cast<std::uint8_t>(event.kind);
    if (kind == 0 || kind >= event_kinds) continue;
    events.push_back(event);
    threads.push_back(slab.thread);
  }
}

void MemoryTrace::add_definitions(const std::byte* contents, const SlabHeader& slab) {
  if (slab.used > slab_text_bytes) {
    ++damaged_slabs;
    return;
  }
  for (std::uint64_t at = 0; at + sizeof(Definition) <= slab.used;) {
    Definition definition;
    std::memcpy(&definition, contents + at, sizeof definition);
    const std::size_t need = definition_bytes(definition.text_bytes);
    if (static_cast<std::size_t>(definition.kind) >= definition_kinds ||
        definition.text_bytes > max_text_bytes || need > slab.used - at) {
      ++damaged_slabs;
      return;
    }
    Name name;
    name.text.assign(reinterpret_cast<const char*>(contents) + at + sizeof definition,
                     definition.text_bytes);
    name.line = definition.line;
    name.device = definition.device;
    name.detail = definition.detail;
    define(definition.kind, definition.number, std::move(name));
    at += need;
  }
}

void MemoryTrace::define(DefinitionKind kind, std::uint32_t number, Name name) {
  names_[static_cast<std::size_t>(kind)].try_emplace(number, std::move(name));
}

// Slabs of a thread are in the file in the order in which it claimed them, except in a ring.
void MemoryTrace::sort() {
  if (std::ranges::is_sorted(events, {}, &MemoryEvent::time_ns)) return;
  std::vector<std::uint64_t> order(events.size());
  std::iota(order.begin(), order.end(), std::uint64_t{0});
  std::ranges::stable_sort(order, {}, [this](std::uint64_t i) { return events[i].time_ns; });
  std::vector<MemoryEvent> sorted_events;
  std::vector<std::uint32_t> sorted_threads;
  sorted_events.reserve(events.size());
  sorted_threads.reserve(events.size());
  for (const std::uint64_t i : order) {
    sorted_events.push_back(events[i]);
    sorted_threads.push_back(threads[i]);
  }
  events = std::move(sorted_events);
  threads = std::move(sorted_threads);
}

}  // namespace tern::trace
