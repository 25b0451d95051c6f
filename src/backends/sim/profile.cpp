#include "backends/sim/profile.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <iterator>
#include <limits>

#include "core/text.hpp"
#include "tern/core/bytes.hpp"

namespace tern::sim {
namespace {

constexpr std::size_t max_file_bytes = 64 * kib;
constexpr std::size_t max_name_bytes = 63;
/// One second: far above the duration of any call, and sums do not overflow.
constexpr std::uint64_t max_ns = 1'000'000'000;
/// One petabyte per second. 0 is not accepted, because it is a divisor.
constexpr std::uint64_t max_bytes_per_us = 1'000'000'000;
constexpr std::uint64_t max_processors = 1'000'000;

bool read_number(std::string_view text, std::uint64_t least, std::uint64_t most,
                 std::uint64_t& number) noexcept {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) return false;
  if (value < least || value > most) return false;
  number = value;
  return true;
}

bool read_latency(std::string_view text, std::uint64_t& latency_ns) noexcept {
  return read_number(text, 0, max_ns, latency_ns);
}

bool read_bandwidth(std::string_view text, std::uint64_t& bytes_per_us) noexcept {
  return read_number(text, 1, max_bytes_per_us, bytes_per_us);
}

bool read_name(Profile& profile, std::string_view text) {
  if (text.size() > max_name_bytes) return false;
  profile.name = text;
  return true;
}

bool read_date(Profile& profile, std::string_view text) {
  std::uint64_t year = 0, month = 0, day = 0;
  if (text.size() != 10 || text[4] != '-' || text[7] != '-') return false;
  if (!read_number(text.substr(0, 4), 1, 9999, year) ||
      !read_number(text.substr(5, 2), 1, 12, month) ||
      !read_number(text.substr(8, 2), 1, 31, day)) {
    return false;
  }
  profile.date = text;
  return true;
}

bool read_memory(Profile& profile, std::string_view text) {
  const Result<std::uint64_t> bytes = try_parse_bytes(text);
  if (!bytes || *bytes < min_memory_bytes || *bytes > max_memory_bytes) return false;
  profile.memory_bytes = static_cast<std::size_t>(*bytes);
  return true;
}

bool read_processors(Profile& profile, std::string_view text) {
  std::uint64_t count = 0;
  if (!read_number(text, 1, max_processors, count)) return false;
  profile.processors = static_cast<std::uint32_t>(count);
  return true;
}

bool read_concurrent(Profile& profile, std::string_view text) {
  if (text != "on" && text != "off") return false;
  profile.concurrent_managed = text == "on";
  return true;
}

template <std::uint64_t Profile::*member>
bool read_latency_of(Profile& profile, std::string_view text) {
  return read_latency(text, profile.*member);
}

template <std::uint64_t Profile::*member>
bool read_bandwidth_of(Profile& profile, std::string_view text) {
  return read_bandwidth(text, profile.*member);
}

constexpr const char* latency = "0 to 1000000000 nanoseconds";
constexpr const char* bandwidth = "1 to 1000000000 bytes per microsecond";

struct Key {
  std::string_view name;
  const char* accepts;
  bool (*read)(Profile& profile, std::string_view text);
};
constexpr Key keys[] = {
    {"name", "1 to 63 bytes of text", read_name},
    {"date", "a date such as 2026-11-01", read_date},
    {"memory", "2MiB to 16TiB", read_memory},
    {"processors", "1 to 1000000", read_processors},
    {"launch_ns", latency, read_latency_of<&Profile::launch_ns>},
    {"copy_ns", latency, read_latency_of<&Profile::copy_ns>},
    {"call_ns", latency, read_latency_of<&Profile::call_ns>},
    {"submit_ns", latency, read_latency_of<&Profile::submit_ns>},
    {"slow_ns", latency, read_latency_of<&Profile::slow_ns>},
    {"link_bytes_per_us", bandwidth, read_bandwidth_of<&Profile::link_bytes_per_us>},
    {"memory_bytes_per_us", bandwidth, read_bandwidth_of<&Profile::memory_bytes_per_us>},
    {"concurrent", "on or off", read_concurrent},
};

/// The position of an error. Texts of any length are the last fields and share the space that is
/// left.
struct Position {
  std::string_view file;
  std::uint64_t line = 0;

  [[nodiscard]] Failure refuse(const char* sentence, std::string_view key, std::string_view value,
                               const char* accepts) const noexcept {
    // A long line must not displace the name of the file.
    constexpr std::size_t max_key_bytes = 24, max_value_bytes = 32;
    return Failure(ErrorCode::invalid_argument, sentence)
        .with("line", line)
        .with("accepts", accepts)
        .with("name", key.substr(0, utf8_prefix_bytes(key, max_key_bytes)))
        .with("value", value.substr(0, utf8_prefix_bytes(value, max_value_bytes)))
        .with("file", file);
  }
};

std::string_view trimmed(std::string_view text) noexcept {
  constexpr std::string_view blanks = " \t\r";
  const std::size_t first = text.find_first_not_of(blanks);
  if (first == text.npos) return {};
  return text.substr(first, text.find_last_not_of(blanks) - first + 1);
}

bool is_text(char c) noexcept {
  const auto byte = static_cast<unsigned char>(c);
  return byte >= 0x20 ? byte != 0x7f : c == '\n' || c == '\t' || c == '\r';
}

Failure not_a_file(std::string_view path, const char* why) noexcept {
  return Failure(ErrorCode::file,
                 "profile '{path}' cannot be read: {why}. Use a text file of at most 64 KiB, or "
                 "the built-in profile h200 or small.")
      .with("why", why)
      .with("path", path);
}

/// Closes the file descriptor.
class OpenFile {
 public:
  explicit OpenFile(const char* path) noexcept
      // Without O_NONBLOCK, opening a pipe without a writer would block for ever.
      : descriptor_(::open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {}
  ~OpenFile() {
    if (descriptor_ >= 0) close(descriptor_);
  }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;
  [[nodiscard]] int get() const noexcept { return descriptor_; }

 private:
  int descriptor_;
};

Result<std::string> try_read_text(std::string_view path) {
  const OpenFile file(std::string(path).c_str());
  if (file.get() < 0) return not_a_file(path, std::strerror(errno));
  struct stat facts = {};
  if (fstat(file.get(), &facts) != 0) return not_a_file(path, std::strerror(errno));
  if (!S_ISREG(facts.st_mode)) return not_a_file(path, "it is not a regular file");
  // Reads one byte more than is accepted, because files grow and some report a size of 0.
  std::string text(max_file_bytes + 1, '\0');
  std::size_t bytes = 0;
  while (bytes < text.size()) {
    const ssize_t got = read(file.get(), text.data() + bytes, text.size() - bytes);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return not_a_file(path, std::strerror(errno));
    if (got == 0) break;
    bytes += static_cast<std::size_t>(got);
  }
  if (bytes > max_file_bytes) return not_a_file(path, "it is larger than 64 KiB");
  text.resize(bytes);
  return text;
}

}  // namespace

Profile default_profile() {
  Profile profile;
#if defined(__SANITIZE_THREAD__)
  profile.memory_bytes = 256 * mib;  // the shadow of the sanitizer leaves few addresses
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
  profile.memory_bytes = 256 * mib;  // the shadow of the sanitizer leaves few addresses
#endif
#endif
  if (profile.memory_bytes == 0) profile.memory_bytes = std::size_t{141} << 30;
  return profile;
}

Result<Profile> try_parse_profile(std::string_view text, std::string_view file) {
  Profile profile = default_profile();
  bool is_set[std::size(keys)] = {};
  Position at{file, 0};
  while (!text.empty()) {
    ++at.line;
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view whole = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (!std::ranges::all_of(whole, is_text)) {
      return at.refuse(
          "line {line} of profile '{file}' is not text. A profile consists of {accepts}.", "", "",
          "lines 'key = value'");
    }
    const std::string_view line = trimmed(whole.substr(0, whole.find('#')));
    if (line.empty()) continue;

    const std::size_t equals = line.find('=');
    const std::string_view name = trimmed(line.substr(0, equals));
    if (equals == line.npos || name.empty()) {
      return at.refuse(
          "line {line} of profile '{file}' is '{value}'. A profile consists of {accepts}.", "",
          line, "lines 'key = value'");
    }
    const std::string_view value = trimmed(line.substr(equals + 1));
    const auto* key = std::ranges::find(keys, name, &Key::name);
    if (key == std::end(keys)) {
      return at.refuse(
          "line {line} of profile '{file}' sets '{name}' to '{value}', but the key is unknown. Use "
          "{accepts}: name, date, memory, processors, concurrent, launch_ns, copy_ns, call_ns, "
          "submit_ns, slow_ns, link_bytes_per_us, memory_bytes_per_us.",
          name, value, "a key of a profile");
    }
    bool& has_been_set = is_set[key - std::begin(keys)];
    if (has_been_set) {
      return at.refuse(
          "line {line} of profile '{file}' sets {name} to '{value}', but an earlier line has set "
          "it. Keep {accepts}.",
          name, value, "one line per key");
    }
    if (value.empty() || !key->read(profile, value)) {
      return at.refuse(
          "line {line} of profile '{file}' sets {name} to '{value}', which is not accepted. "
          "Accepted: {accepts}.",
          name, value, key->accepts);
    }
    has_been_set = true;
  }
  return profile;
}

Result<Profile> try_load_profile(std::string_view name_or_path) {
  if (name_or_path.empty() || name_or_path == "h200") return default_profile();
  if (name_or_path == "small") {
    // Small enough for every test machine, with a link slow enough that an unnecessary copy shows.
    return Profile{.name = "small simulated device",
                   .memory_bytes = 256 * mib,
                   .processors = 8,
                   .link_bytes_per_us = 10'000,
                   .memory_bytes_per_us = 200'000};
  }
  if (name_or_path.find('\0') != name_or_path.npos) {
    return not_a_file(name_or_path, "the name contains a zero byte");
  }
  const Result<std::string> text = try_read_text(name_or_path);
  if (!text) return text.failure();
  return try_parse_profile(*text, name_or_path);
}

}  // namespace tern::sim
