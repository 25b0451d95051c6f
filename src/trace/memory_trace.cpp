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
  Result<TraceFollower> file = TraceFollower::try_open(path);
  if (!file) return file.failure();
  MemoryTrace trace;
  if (Result<void> read = file->try_read_new(trace); !read) return read.failure();
  trace.is_cut = file->is_cut(trace.header);
  trace.sort();
  return trace;
}

Result<TraceFollower> TraceFollower::try_open(const std::string& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return file_failure(path, "open", errno);
  TraceFollower follower(file, path);
  FileHeader header;
  if (Result<void> read = follower.try_read_header(header); !read) return read.failure();
  if (header.magic != file_magic)
    return not_a_trace(path, "it does not begin with the bytes of one");
  if (header.version != file_version) {
    return not_a_trace(path, "it has another version than this program reads");
  }
  if (header.header_bytes != file_header_bytes || header.slab_bytes != slab_bytes ||
      header.event_bytes != sizeof(MemoryEvent)) {
    return not_a_trace(path, "the sizes in its header are wrong");
  }
  return follower;
}

TraceFollower::TraceFollower(TraceFollower&& other) noexcept
    : file_(std::exchange(other.file_, -1)),
      path_(std::move(other.path_)),
      open_(std::move(other.open_)),
      next_(other.next_),
      part_(std::move(other.part_)) {}

TraceFollower::~TraceFollower() {
  if (file_ >= 0) ::close(file_);
}

ssize_t TraceFollower::read(void* to, std::size_t bytes, std::uint64_t offset) const noexcept {
  std::size_t got = 0;
  while (got < bytes) {
    const ssize_t now = ::pread(file_, static_cast<std::byte*>(to) + got, bytes - got,
                                static_cast<off_t>(offset + got));
    if (now < 0 && errno == EINTR) continue;
    if (now < 0) return -1;
    if (now == 0) break;
    got += static_cast<std::size_t>(now);
  }
  return static_cast<ssize_t>(got);
}

Result<void> TraceFollower::try_read_header(FileHeader& header) const {
  const ssize_t got = read(&header, sizeof header, 0);
  if (got < 0) return file_failure(path_, "read", errno);
  if (static_cast<std::size_t>(got) < sizeof header) {
    return not_a_trace(path_, "it is shorter than the header of one");
  }
  header.program[sizeof header.program - 1] = '\0';
  return {};
}

bool TraceFollower::is_cut(const FileHeader& header) const noexcept {
  struct stat now = {};
  if (header.is_closed == 0 || fstat(file_, &now) != 0) return false;
  const std::uint64_t bytes = static_cast<std::uint64_t>(now.st_size) - file_header_bytes;
  return static_cast<std::uint64_t>(now.st_size) < file_header_bytes || bytes % slab_bytes != 0 ||
         bytes / slab_bytes < header.slab_count;
}

Result<void> TraceFollower::try_read_new(MemoryTrace& trace) {
  if (Result<void> read = try_read_header(trace.header); !read) return read;
  for (;; ++next_) {
    OpenSlab slab{next_};
    bool is_full = false;
    const Result<bool> is_there = try_read_slab(slab, trace, is_full);
    if (!is_there) return is_there.failure();
    if (!*is_there) break;
    if (!is_full) open_.push_back(slab);
  }
  std::vector<OpenSlab> still_open;
  for (OpenSlab& slab : open_) {
    bool is_full = false;
    if (Result<bool> read = try_read_slab(slab, trace, is_full); !read) return read.failure();
    if (!is_full) still_open.push_back(slab);
  }
  open_ = std::move(still_open);
  return {};
}

Result<bool> TraceFollower::try_read_slab(OpenSlab& slab, MemoryTrace& trace, bool& is_full) {
  const std::uint64_t offset = file_header_bytes + slab.number * slab_bytes;
  SlabHeader header;
  const ssize_t got = read(&header, sizeof header, offset);
  if (got < 0) return file_failure(path_, "read", errno);
  if (static_cast<std::size_t>(got) < sizeof header) return false;
  if (header.kind == SlabKind::unused || header.used == slab.seen) return true;
  // A file that was cut in the middle of a slab continues with zeros.
  part_.assign(slab_bytes - sizeof header, std::byte{});
  if (read(part_.data(), part_.size(), offset + sizeof header) < 0) {
    return file_failure(path_, "read", errno);
  }
  switch (header.kind) {
    case SlabKind::unused:
      break;
    case SlabKind::events:
      slab.seen = trace.add_events(part_.data(), header, slab.seen);
      is_full = header.used >= slab_events;
      break;
    case SlabKind::definitions:
      slab.seen = trace.add_definitions(part_.data(), header, slab.seen);
      break;
    default:
      ++trace.damaged_slabs;
      is_full = true;
  }
  return true;
}

std::uint64_t MemoryTrace::add_events(const std::byte* contents, const SlabHeader& slab,
                                      std::uint64_t seen) {
  if (slab.used > slab_events) {
    ++damaged_slabs;
    return slab.used;
  }
  for (std::uint64_t i = seen; i < slab.used; ++i) {
    MemoryEvent event;
    std::memcpy(&event, contents + i * sizeof event, sizeof event);
    // A file that was cut in the middle of a slab has zeros there.
    if (!is_event_kind(static_cast<std::uint8_t>(event.kind))) continue;
    events.push_back(event);
    threads.push_back(slab.thread);
  }
  return slab.used;
}

std::uint64_t MemoryTrace::add_definitions(const std::byte* contents, const SlabHeader& slab,
                                           std::uint64_t seen) {
  if (slab.used > slab_text_bytes) {
    ++damaged_slabs;
    return slab.used;
  }
  for (std::uint64_t at = seen; at + sizeof(Definition) <= slab.used;) {
    Definition definition;
    std::memcpy(&definition, contents + at, sizeof definition);
    const std::size_t need = definition_bytes(definition.text_bytes);
    if (static_cast<std::size_t>(definition.kind) >= definition_kinds ||
        definition.text_bytes > max_text_bytes || need > slab.used - at) {
      ++damaged_slabs;
      return slab.used;
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
  return slab.used;
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
