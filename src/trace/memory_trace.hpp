// A MemoryTrace is what a recording wrote: its events in the order of time, and the texts behind
// their numbers.
//
//   const MemoryTrace trace = MemoryTrace::try_read("run.trace").value();
//   for (const MemoryEvent& event : trace.events) ...
//
// A trace of a program that was killed is read up to its last event. A file may be damaged or made
// to harm its reader: every number is checked, reading needs memory in proportion to the size of
// the file, and a text is at most max_text_bytes long and may contain any bytes.

#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tern/core/result.hpp"
#include "trace/memory_event.hpp"

namespace tern::trace {

class TraceFollower;

class MemoryTrace {
 public:
  /// What a definition says.
  struct Name {
    std::string text;
    std::uint32_t line = 0;    // site
    std::uint32_t device = 0;  // resource
    std::uint8_t detail = 0;   // resource: MemoryKind
  };

  /// Fails with file if the file cannot be read, and with invalid_argument if it is no memory trace
  /// or of a later version.
  [[nodiscard]] static Result<MemoryTrace> try_read(const std::string& path);

  FileHeader header = {};
  /// Sorted by time. Events of one thread with the same time stay in their order.
  std::vector<MemoryEvent> events = {};
  /// The thread of each event.
  std::vector<std::uint32_t> threads = {};
  /// The end of a file that was closed is missing: events and names are missing.
  bool is_cut = false;
  /// Slabs that make no sense and were skipped.
  std::uint64_t damaged_slabs = 0;
  /// Sentences about what a reader of another format could not read. They are not in a file.
  std::vector<std::string> notes = {};

  /// Names a number, unless it has a name. For readers of other formats.
  void define(DefinitionKind kind, std::uint32_t number, Name name);
  /// Sorts the events by time. For readers of other formats; try_read() has sorted them.
  void sort();

  /// Returns null for a number that was not defined.
  [[nodiscard]] const Name* find(DefinitionKind kind, std::uint32_t number) const noexcept;
  /// Returns the names of a kind by their numbers. For writers.
  [[nodiscard]] const std::unordered_map<std::uint32_t, Name>& names(
      DefinitionKind kind) const noexcept {
    return names_[static_cast<std::size_t>(kind)];
  }

 private:
  friend class TraceFollower;
  /// Both add what a slab holds after the first `seen` events or bytes, and return what they have
  /// seen then.
  std::uint64_t add_events(const std::byte* contents, const SlabHeader& slab, std::uint64_t seen);
  std::uint64_t add_definitions(const std::byte* contents, const SlabHeader& slab,
                                std::uint64_t seen);

  std::unordered_map<std::uint32_t, Name> names_[definition_kinds];
};

/// Reads a trace piece by piece, while a program records it.
class TraceFollower {
 public:
  /// Fails like MemoryTrace::try_read().
  [[nodiscard]] static Result<TraceFollower> try_open(const std::string& path);
  TraceFollower(TraceFollower&& other) noexcept;
  TraceFollower& operator=(TraceFollower&&) = delete;
  ~TraceFollower();

  /// Adds what was recorded since the last call to the trace, whose events are then not sorted.
  /// An event may be added before an older one of another thread. Fails with file.
  [[nodiscard]] Result<void> try_read_new(MemoryTrace& trace);

 private:
  /// A slab that may grow, and how many of its events or bytes were read.
  struct OpenSlab {
    std::uint64_t number = 0, seen = 0;
  };

  friend class MemoryTrace;
  /// Returns whether the file is shorter than it was when it was closed.
  [[nodiscard]] bool is_cut(const FileHeader& header) const noexcept;
  TraceFollower(int file, std::string path) noexcept : file_(file), path_(std::move(path)) {}
  [[nodiscard]] Result<void> try_read_header(FileHeader& header) const;
  /// Reads as much as there is, up to `bytes`. Returns -1 on an error.
  [[nodiscard]] ssize_t read(void* to, std::size_t bytes, std::uint64_t offset) const noexcept;
  /// Adds what is new in a slab. Returns whether the slab exists; `is_full` says whether it is
  /// complete.
  [[nodiscard]] Result<bool> try_read_slab(OpenSlab& slab, MemoryTrace& trace, bool& is_full);

  int file_;
  std::string path_;
  std::vector<OpenSlab> open_ = {};
  std::uint64_t next_ = 0;  // the first slab that was not there yet
  std::vector<std::byte> part_ = {};
};

}  // namespace tern::trace
