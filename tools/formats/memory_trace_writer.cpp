#include "tools/formats/memory_trace_writer.hpp"

#include <algorithm>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace tern::tools {
namespace {

using namespace trace;

template <class T>
std::string_view bytes_of(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

class TraceWriter {
 public:
  TraceWriter(const MemoryTrace& trace, Output& out) : trace_(trace), out_(out) {}

  void write() {
    write_header();
    write_definitions();
    write_events();
  }

 private:
  void write_header() {
    FileHeader header = trace_.header;
    header.magic = file_magic;
    header.version = file_version;
    header.header_bytes = static_cast<std::uint32_t>(file_header_bytes);
    header.slab_bytes = static_cast<std::uint32_t>(slab_bytes);
    header.event_bytes = sizeof(MemoryEvent);
    header.slab_count = 0;  // not known yet
    write_padded(bytes_of(header), file_header_bytes);
  }
  void write_padded(std::string_view bytes, std::size_t length) {
    out_.write(bytes);
    out_.write(std::string(length - bytes.size(), '\0'));
  }
  void write_slab(SlabKind kind, std::uint32_t thread, std::uint64_t used,
                  std::string_view contents) {
    SlabHeader slab;
    slab.kind = kind;
    slab.thread = thread;
    slab.order = ++order_;
    slab.used = used;
    out_.write(bytes_of(slab));
    write_padded(contents, slab_bytes - sizeof slab);
  }

  void write_definitions() {
    std::string contents;
    for (std::size_t kind = 0; kind < definition_kinds; ++kind) {
      const auto& names = trace_.names(static_cast<DefinitionKind>(kind));
      // In the order of their numbers, so that equal traces are equal files.
      const std::map<std::uint32_t, MemoryTrace::Name> sorted(names.begin(), names.end());
      for (const auto& [number, name] : sorted) {
        const std::string_view text = std::string_view(name.text).substr(0, max_text_bytes);
        Definition definition;
        definition.kind = static_cast<DefinitionKind>(kind);
        definition.detail = name.detail;
        definition.text_bytes = static_cast<std::uint16_t>(text.size());
        definition.number = number;
        definition.line = name.line;
        definition.device = name.device;
        if (contents.size() + definition_bytes(text.size()) > slab_text_bytes) {
          write_slab(SlabKind::definitions, 0, contents.size(), contents);
          contents.clear();
        }
        contents += bytes_of(definition);
        contents += text;
        contents.resize((contents.size() + 7) / 8 * 8);
      }
    }
    if (!contents.empty()) write_slab(SlabKind::definitions, 0, contents.size(), contents);
  }

  void write_events() {
    std::vector<std::uint32_t> threads;  // in the order in which they appear
    std::unordered_map<std::uint32_t, std::vector<std::size_t>> events;
    for (std::size_t i = 0; i < trace_.events.size(); ++i) {
      std::vector<std::size_t>& own = events[trace_.threads[i]];
      if (own.empty()) threads.push_back(trace_.threads[i]);
      own.push_back(i);
    }
    for (const std::uint32_t thread : threads) {
      const std::vector<std::size_t>& own = events[thread];
      for (std::size_t first = 0; first < own.size(); first += slab_events) {
        const std::size_t count = std::min(slab_events, own.size() - first);
        std::string contents;
        for (std::size_t i = 0; i < count; ++i) contents += bytes_of(trace_.events[own[first + i]]);
        write_slab(SlabKind::events, thread, count, contents);
      }
    }
  }

  const MemoryTrace& trace_;
  Output& out_;
  std::uint64_t order_ = 0;
};

}  // namespace

void write_memory_trace(const MemoryTrace& trace, Output& out) { TraceWriter(trace, out).write(); }

}  // namespace tern::tools
