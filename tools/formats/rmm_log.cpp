#include "tools/formats/rmm_log.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <fstream>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "core/file_failure.hpp"
#include "tern/device/device_info.hpp"

namespace tern::tools {
namespace {

using trace::DefinitionKind;
using trace::EventKind;
using trace::MemoryEvent;
using trace::MemoryTrace;

constexpr std::string_view header = "Thread,Time,Action,Pointer,Size,Stream";
constexpr std::uint64_t second_ns = 1'000'000'000, day_ns = 86'400 * second_ns;
constexpr std::uint32_t device = 1, resource = 1;

/// Reads a number that fills the whole text. Addresses may begin with 0x.
std::optional<std::uint64_t> number_of(std::string_view text, int base = 10) {
  if (base == 16 && text.starts_with("0x")) text.remove_prefix(2);
  // A null pointer of some libraries.
  if (text == "(nil)") return 0;
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

/// Reads "13:36:25.466713", a time of the day. Some versions write a colon before the fraction.
std::optional<std::uint64_t> time_of(std::string_view text) {
  if (text.size() < 8 || text[2] != ':' || text[5] != ':') return std::nullopt;
  const auto hours = number_of(text.substr(0, 2)), minutes = number_of(text.substr(3, 2)),
             seconds = number_of(text.substr(6, 2));
  if (!hours || !minutes || !seconds || *hours > 23 || *minutes > 59 || *seconds > 60) {
    return std::nullopt;
  }
  std::uint64_t fraction = 0;
  if (text.size() > 9) {
    const std::string_view digits = text.substr(9);
    const auto value = number_of(digits);
    if ((text[8] != '.' && text[8] != ':') || !value || digits.size() > 9) return std::nullopt;
    fraction = *value;
    for (std::size_t i = digits.size(); i < 9; ++i) fraction *= 10;
  }
  return (*hours * 3600 + *minutes * 60 + *seconds) * second_ns + fraction;
}

std::optional<std::array<std::string_view, 6>> columns_of(std::string_view line) {
  std::array<std::string_view, 6> columns;
  for (std::size_t i = 0; i < columns.size(); ++i) {
    const std::size_t comma = line.find(',');
    if ((comma == line.npos) != (i + 1 == columns.size())) return std::nullopt;
    columns[i] = line.substr(0, comma);
    line.remove_prefix(comma == line.npos ? line.size() : comma + 1);
  }
  return columns;
}

/// Turns lines into events.
class Reader {
 public:
  /// Returns false if the line is not valid.
  bool add(std::string_view line) {
    const auto columns = columns_of(line);
    if (!columns) return false;
    const auto& [thread, time_text, action, pointer, size, stream] = *columns;
    const auto number = number_of(thread), address = number_of(pointer, 16),
               bytes = number_of(size), on = number_of(stream, 16);
    const auto time = time_of(time_text);
    if (!number || !time || !address || !bytes || !on) return false;
    MemoryEvent event;
    // The clock of a log passes midnight at most once.
    if (*time + day_ns / 2 < last_time_) days_ = 1;
    last_time_ = *time;
    event.time_ns = *time + days_ * day_ns;
    event.address = *address;
    event.bytes = *bytes;
    event.stream = *on;
    event.device = device;
    event.resource = resource;
    if (action == "allocate") {
      event.kind = EventKind::allocate;
      event.extra = *bytes;
      event.block = live_[*address] = ++last_block_;
    } else if (action == "free") {
      event.kind = EventKind::free;
      event.block = live_.contains(*address) ? live_[*address] : ++last_block_;
      live_.erase(*address);
    } else if (action == "allocate failure") {
      event.kind = EventKind::refuse;
      event.detail = static_cast<std::uint8_t>(ErrorCode::out_of_memory);
    } else {
      return false;
    }
    trace_.events.push_back(event);
    trace_.threads.push_back(thread_of(*number));
    return true;
  }
  MemoryTrace finish() {
    trace_.sort();
    // Lines of one microsecond keep their order in a file, where each thread has its own events.
    std::uint64_t next = 0;
    for (MemoryEvent& event : trace_.events) {
      event.time_ns = std::max(event.time_ns, next);
      next = event.time_ns + 1;
    }
    trace_.header.is_closed = 1;
    if (!trace_.events.empty()) {
      // A log has the time of the day, and no day.
      trace_.header.start_ns = trace_.header.start_unix_ns = trace_.events.front().time_ns;
    }
    trace_.define(DefinitionKind::device, device, {"device", 0, 0, 0});
    trace_.define(DefinitionKind::resource, resource,
                  {"RMM", 0, device, static_cast<std::uint8_t>(MemoryKind::device)});
    return std::move(trace_);
  }

 private:
  /// A file of Tern has 256 KiB for each thread, and a log may name another one in each line.
  std::uint32_t thread_of(std::uint64_t number) {
    constexpr std::size_t max_threads = 1000;
    const auto thread = static_cast<std::uint32_t>(number);
    if (threads_.size() < max_threads) threads_.insert(thread);
    return threads_.contains(thread) ? thread : 0;
  }

  MemoryTrace trace_;
  std::unordered_map<std::uint64_t, std::uint64_t> live_;  // blocks by address
  std::unordered_set<std::uint32_t> threads_;
  std::uint64_t last_block_ = 0, last_time_ = 0, days_ = 0;
};

/// Removes the end of a line from Windows.
std::string_view trimmed(std::string_view line) {
  if (line.ends_with('\r')) line.remove_suffix(1);
  return line;
}

}  // namespace

bool is_rmm_log(std::string_view beginning) noexcept { return beginning.starts_with(header); }

Result<MemoryTrace> try_read_rmm_log(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return file_failure(path, "open", errno);
  Reader reader;
  std::string line;
  std::getline(file, line);  // the header
  for (std::uint64_t number = 2; std::getline(file, line); ++number) {
    const std::string_view text = trimmed(line);
    if (text.empty() || reader.add(text)) continue;
    return Failure(
               ErrorCode::invalid_argument,
               "line {line} of '{value}' is not a valid line of an RMM log. Expected: a thread, "
               "a time such as 13:36:25.466713, an action (allocate, free or allocate failure), "
               "an address, a size and a stream, separated by commas.")
        .with("name", "path")
        .with("line", number)
        .with("value", path);
  }
  return reader.finish();
}

}  // namespace tern::tools
