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

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "tern/core/result.hpp"
#include "trace/memory_event.hpp"

namespace tern::trace {

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
  void add_events(const std::byte* contents, const SlabHeader& slab);
  void add_definitions(const std::byte* contents, const SlabHeader& slab);

  std::unordered_map<std::uint32_t, Name> names_[definition_kinds];
};

}  // namespace tern::trace
