#include "trace/trace_writer.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>
#include <new>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/file_failure.hpp"
#include "core/file_limit_signal.hpp"
#include "core/no_host_memory.hpp"
#include "core/process.hpp"
#include "core/text.hpp"
#include "tern/core/version.hpp"
#include "trace/trace_format.hpp"

namespace tern {
namespace {

using namespace trace_format;

/// Size at which a chunk is written: small, so that a dying process loses little, and large enough
/// that the cost of the write call is negligible.
constexpr std::size_t usual_chunk_bytes = 16 << 10;
/// Maximum size of the gap record and the end of the trace, which are always written.
constexpr std::size_t reserve_bytes = 128;

struct StringHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view text) const noexcept {
    return std::hash<std::string_view>()(text);
  }
};

}  // namespace

struct TraceWriter::State {
  std::string path;
  int file = -1;  // -1 for a writer to memory
  std::uint64_t generation = process_generation();
  std::uint64_t limit_bytes = 0;
  std::vector<std::byte> kept;   // for a writer to memory: the flushed bytes
  std::vector<std::byte> chunk;  // collected, not yet flushed
  std::unordered_map<std::string, std::uint32_t, StringHash, std::equal_to<>> strings;
  // Strings of call sites, by address, because they are not copied.
  std::unordered_map<const char*, std::uint32_t> site_strings;
  std::uint64_t written_bytes = 0;
  std::uint64_t records = 0;
  std::uint64_t lost = 0;
  std::uint64_t lost_unsaid = 0;  // those of `lost` that no gap record covers yet
  bool is_full = false;
  bool is_closed = false;
  std::optional<Failure> failure;

  State() = default;
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() {
    if (file >= 0) ::close(file);
  }

  [[nodiscard]] bool is_silent() const noexcept { return generation != process_generation(); }

  /// Writes bytes. Throws std::bad_alloc for memory; for a file, stores the error in `failure`.
  void put(std::span<const std::byte> bytes) {
    if (file < 0) {
      kept.insert(kept.end(), bytes.begin(), bytes.end());
    } else {
      const FileLimitSignal blocked;
      for (std::span<const std::byte> rest = bytes; !rest.empty() && !failure;) {
        const ssize_t done = ::write(file, rest.data(), rest.size());
        if (done >= 0) {
          rest = rest.subspan(static_cast<std::size_t>(done));
        } else if (errno != EINTR) {
          failure = file_failure(path, "write", errno);
        }
      }
    }
    written_bytes += bytes.size();
  }

  void put_chunk(std::uint32_t kind, std::span<const std::byte> payload) {
    const auto header = chunk_header(kind, payload);
    // Build header and payload in one vector. A write to memory then happens completely or not at
    // all, and a write to a file is one call.
    std::vector<std::byte> whole;
    whole.reserve(header.size() + payload.size());
    whole.insert(whole.end(), header.begin(), header.end());
    whole.insert(whole.end(), payload.begin(), payload.end());
    put(whole);
  }

  void begin(const Options& options) {
    limit_bytes = options.limit_bytes;
    std::vector<std::byte> header;
    for (const std::uint8_t byte : magic) put_u8(header, byte);
    put_u32(header, version);
    put_u32(header, 0);
    put(header);
    std::vector<std::byte> about;
    for (const std::string_view text :
         {std::string_view("tern " TERN_VERSION), std::string_view(options.context),
          std::string_view(options.replay)}) {
      put_string(about, text);
    }
    put_chunk(chunk_about, about);
    chunk.reserve(usual_chunk_bytes + 4096);
  }

  static void put_string(std::vector<std::byte>& out, std::string_view text) {
    text = text.substr(0, utf8_prefix_bytes(text, max_string_bytes));
    put_varint(out, text.size());
    // Readers return strings as C strings, which end at the first zero.
    for (const char c : text) put_u8(out, static_cast<std::uint8_t>(c == '\0' ? '?' : c));
  }

  /// Returns the number of a string, and defines the string in the chunk if it is new. If this
  /// throws, neither the chunk nor the table has changed.
  std::uint32_t number_of(std::string_view text) {
    if (text.empty()) return 0;
    text = text.substr(0, utf8_prefix_bytes(text, max_string_bytes));
    if (const auto found = strings.find(text); found != strings.end()) return found->second;
    // Above this number, further strings are dropped. Only names generated at run time reach it.
    if (text.empty() || strings.size() == max_strings) return 0;
    const std::size_t before = chunk.size();
    try {
      put_u8(chunk, entry_string);
      put_string(chunk, text);
      return strings.emplace(std::string(text), static_cast<std::uint32_t>(strings.size() + 1))
          .first->second;
    } catch (...) {
      chunk.resize(before);
      throw;
    }
  }

  std::uint32_t number_of_site(const char* text) {
    if (text == nullptr) return 0;
    if (const auto found = site_strings.find(text); found != site_strings.end()) {
      return found->second;
    }
    const std::uint32_t number = number_of(text);
    site_strings.emplace(text, number);
    return number;
  }

  void put_record(const TraceRecord& record) {
    const std::uint32_t name = number_of(record.name);
    const std::uint32_t file_name = number_of_site(record.site.file);
    const std::uint32_t function = number_of_site(record.site.function);
    const std::uint32_t tag = record.tag == Tag() ? 0 : number_of(record.tag.name());
    const std::size_t before = chunk.size();
    try {
      put_u8(chunk, entry_record);
      put_u8(chunk, static_cast<std::uint8_t>(record.kind));
      put_u8(chunk, static_cast<std::uint8_t>(record.operation));
      put_u8(chunk, static_cast<std::uint8_t>(record.actor_kind));
      put_u8(chunk, record.was_refused ? flag_refused : std::uint8_t{0});
      for (const std::uint64_t value :
           {std::uint64_t{record.actor}, std::uint64_t{record.host}, std::uint64_t{record.device},
            record.event, record.sequence, std::uint64_t{name}, std::uint64_t{file_name},
            std::uint64_t{function}, std::uint64_t{record.site.line}, std::uint64_t{tag},
            static_cast<std::uint64_t>(record.touches.size())}) {
        put_varint(chunk, value);
      }
      for (const Touch& touch : record.touches) {
        put_u8(chunk, static_cast<std::uint8_t>(static_cast<std::uint8_t>(touch.kind) |
                                                (touch.is_assumed ? touch_assumed : 0)));
        put_varint(chunk, touch.range.space);
        put_varint(chunk, touch.range.offset);
        put_varint(chunk, touch.range.bytes);
        put_varint(chunk, touch.generation);
      }
    } catch (...) {
      chunk.resize(before);
      throw;
    }
    ++records;
  }

  /// Returns an upper bound for the size of the record and of the strings that it may define.
  [[nodiscard]] static std::size_t max_bytes(const TraceRecord& record) noexcept {
    const auto length = [](const char* text) { return text == nullptr ? 0 : std::strlen(text); };
    const std::size_t texts = record.name.size() + length(record.site.file) +
                              length(record.site.function) + record.tag.name().size();
    return 256 + texts + record.touches.size() * 48;
  }

  [[nodiscard]] bool has_room_for(const TraceRecord& record) const noexcept {
    const std::uint64_t used = written_bytes + chunk.size() + chunk_header_bytes + reserve_bytes;
    return used <= limit_bytes && max_bytes(record) <= limit_bytes - used;
  }

  void write_lost_records() {
    if (lost_unsaid == 0) return;
    put_record({.kind = RecordKind::lost_records, .sequence = lost_unsaid});
    lost_unsaid = 0;
  }

  void flush_chunk() {
    if (chunk.empty() || failure) return;
    put_chunk(chunk_records, chunk);
    chunk.clear();
  }

  void lose_one() noexcept {
    ++lost;
    ++lost_unsaid;
  }

  /// Runs an action that may allocate. Returns false if there is no memory; the trace continues and
  /// records the loss.
  template <class Action>
  bool attempt(Action action) noexcept {
    try {
      action();
      return true;
    } catch (const std::bad_alloc&) {
      return false;
    }
  }

  [[nodiscard]] Result<void> status() const noexcept {
    if (failure) return Failure(*failure).with("lost", lost);
    if (lost == 0) return {};
    return Failure(ErrorCode::capacity,
                   "{lost} records are missing in the trace, which marks the gaps, because its "
                   "limit is {limit}. Raise the limit, or trace a shorter run.")
        .with("lost", lost)
        .with_bytes("limit", limit_bytes)
        .with("max", limit_bytes);
  }
};

TraceWriter::TraceWriter(std::unique_ptr<State> state) noexcept : state_(std::move(state)) {}
TraceWriter::TraceWriter(TraceWriter&&) noexcept = default;
TraceWriter& TraceWriter::operator=(TraceWriter&& other) noexcept {
  if (state_) static_cast<void>(close());
  state_ = std::move(other.state_);
  return *this;
}
TraceWriter::~TraceWriter() {
  if (state_) static_cast<void>(close());
}

Result<TraceWriter> TraceWriter::try_open(const std::string& path, const Options& options) {
  auto state = std::make_unique<State>();
  state->path = path;
  state->file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
  if (state->file < 0) return file_failure(path, "open", errno);
  // Truncate only after taking the lock: two writers would destroy each other's trace.
  if (::flock(state->file, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    return Failure(ErrorCode::capacity,
                   "another trace is already being written to file '{path}'. Use another file.")
        .with("max", 1)
        .with("path", path);
  }
  // A pipe or a terminal has no length, and ftruncate fails with EINVAL.
  if (::ftruncate(state->file, 0) != 0 && errno != EINVAL) {
    return file_failure(path, "ftruncate", errno);
  }
  state->begin(options);
  if (state->failure) return *state->failure;
  return TraceWriter(std::move(state));
}

TraceWriter TraceWriter::to_memory(const Options& options) {
  auto state = std::make_unique<State>();
  state->begin(options);
  return TraceWriter(std::move(state));
}

void TraceWriter::write(const TraceRecord& record) noexcept {
  State& state = *state_;
  if (state.is_silent()) return;
  const bool is_writable = !state.is_closed && !state.failure && !state.is_full;
  if (!is_writable || record.touches.size() > max_touches) return state.lose_one();
  if (!state.has_room_for(record)) {
    // After the first record that does not fit, drop all further records, so that there is one gap
    // and not hundreds.
    state.is_full = true;
    return state.lose_one();
  }
  if (!state.attempt([&] {
        state.write_lost_records();
        state.put_record(record);
      })) {
    return state.lose_one();
  }
  // If there is no memory to flush, the next record tries again.
  if (state.chunk.size() >= usual_chunk_bytes) {
    static_cast<void>(state.attempt([&] { state.flush_chunk(); }));
    // A reader rejects chunks above max_chunk_bytes.
    if (state.chunk.size() > max_chunk_bytes / 2) state.is_full = true;
  }
}

void TraceWriter::write_finding(const Finding& finding) noexcept {
  State& state = *state_;
  if (state.is_silent() || state.is_closed || state.failure || state.is_full) return;
  static_cast<void>(state.attempt([&] {
    std::vector<std::byte> payload;
    put_varint(payload, static_cast<std::uint64_t>(finding.code));
    for (const std::uint64_t value : {finding.step, std::uint64_t{finding.range.space},
                                      finding.range.offset, finding.range.bytes}) {
      put_varint(payload, value);
    }
    for (const std::string* text :
         {&finding.what, &finding.now, &finding.block, &finding.order, &finding.fix}) {
      State::put_string(payload, *text);
    }
    const std::size_t lines = std::min(finding.before.size(), max_lines);
    put_varint(payload, lines);
    for (std::size_t i = 0; i < lines; ++i) State::put_string(payload, finding.before[i]);
    const std::uint64_t used = state.written_bytes + state.chunk.size() + 2 * chunk_header_bytes +
                               reserve_bytes + payload.size();
    if (used > state.limit_bytes) return;
    // Flush first, so that the finding follows the records written before it.
    state.flush_chunk();
    if (!state.failure) state.put_chunk(chunk_finding, payload);
  }));
}

Result<void> TraceWriter::flush() noexcept {
  State& state = *state_;
  if (!state.is_silent() && !state.is_closed && !state.attempt([&] { state.flush_chunk(); })) {
    return no_host_memory("a trace");
  }
  return state.status();
}

Result<void> TraceWriter::close() noexcept {
  State& state = *state_;
  if (state.is_closed || state.is_silent()) return state.status();
  const bool is_ended = state.attempt([&] {
    state.write_lost_records();
    state.flush_chunk();
    if (state.failure) return;
    std::vector<std::byte> end;
    put_varint(end, state.records);
    put_varint(end, state.strings.size());
    state.put_chunk(chunk_end, end);
  });
  if (!is_ended && !state.failure) state.failure = no_host_memory("a trace");
  state.is_closed = true;
  if (state.file >= 0) {
    // Some file systems report a full disk only at close.
    if (::close(std::exchange(state.file, -1)) != 0 && !state.failure) {
      state.failure = file_failure(state.path, "close", errno);
    }
  }
  return state.status();
}

Result<void> TraceWriter::status() const noexcept { return state_->status(); }
std::uint64_t TraceWriter::record_count() const noexcept { return state_->records; }
std::uint64_t TraceWriter::lost_count() const noexcept { return state_->lost; }
std::span<const std::byte> TraceWriter::bytes() const noexcept { return state_->kept; }

}  // namespace tern
