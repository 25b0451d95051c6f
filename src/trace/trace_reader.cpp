// A trace that stops inside a chunk ends there without a failure (read_chunk; is_complete() is then
// false). Damage inside a complete chunk, or bytes after the end, fail with bad_format (refuse).

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <deque>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/file_failure.hpp"
#include "tern/trace/trace_check.hpp"
#include "trace/trace_format.hpp"

namespace tern {
namespace {

using namespace trace_format;

/// Tags are never freed and a process has 65,535 of them. Traces may use a sixteenth.
constexpr std::uint32_t max_new_tags = 4096;
std::atomic<std::uint32_t> new_tags = 0;

/// The position and kind of damage. It becomes a Failure once the name of the file is added.
struct Damage {
  const char* field;
  std::uint64_t offset;
  std::uint64_t value;
  const char* bound;
};

/// Decodes a payload. After the first error, every read returns 0 and the position stays.
class Decoder {
 public:
  Decoder() = default;
  Decoder(std::span<const std::byte> bytes, std::uint64_t offset) noexcept
      : bytes_(bytes), offset_(offset) {}

  [[nodiscard]] bool is_at_end() const noexcept { return at_ == bytes_.size(); }
  [[nodiscard]] std::size_t left() const noexcept { return bytes_.size() - at_; }
  [[nodiscard]] std::uint64_t offset() const noexcept { return offset_ + at_; }
  [[nodiscard]] const std::optional<Damage>& damage() const noexcept { return damage_; }

  void refuse(const char* field, std::uint64_t where, std::uint64_t value,
              const char* bound) noexcept {
    if (!damage_) damage_ = Damage{field, where, value, bound};
  }

  std::uint8_t u8(const char* field, std::uint8_t most, const char* bound) noexcept {
    if (damage_) return 0;
    const std::uint64_t where = offset();
    if (is_at_end()) {
      refuse(field, where, 0, "inside its chunk");
      return 0;
    }
    const auto value = std::to_integer<std::uint8_t>(bytes_[at_++]);
    if (value > most) refuse(field, where, value, bound);
    return value;
  }

  std::uint64_t varint(const char* field, std::uint64_t most = ~std::uint64_t{0},
                       const char* bound = "") noexcept {
    if (damage_) return 0;
    const std::uint64_t where = offset();
    std::uint64_t value = 0;
    for (unsigned shift = 0;; shift += 7) {
      if (is_at_end()) {
        refuse(field, where, value, "inside its chunk");
        return 0;
      }
      const auto byte = std::to_integer<std::uint64_t>(bytes_[at_++]);
      if (shift == 63 && byte > 1) {
        refuse(field, where, value, "below 2^64");
        return 0;
      }
      value |= (byte & 0x7f) << shift;
      if (byte >= 0x80) continue;
      if (byte == 0 && shift > 0) {
        refuse(field, where, value, "written in as few bytes as possible");
        return 0;
      }
      break;
    }
    if (value > most) {
      refuse(field, where, value, bound);
      return 0;
    }
    return value;
  }

  std::string_view string(const char* field) noexcept {
    const std::uint64_t where = offset();
    const std::uint64_t length = varint(field, max_string_bytes, "4096 bytes at most");
    if (damage_) return {};
    if (length > left()) {
      refuse(field, where, length, "inside its chunk");
      return {};
    }
    const std::string_view text(reinterpret_cast<const char*>(bytes_.data() + at_),
                                static_cast<std::size_t>(length));
    if (const std::size_t zero = text.find('\0'); zero != text.npos) {
      refuse(field, offset() + zero, 0, "text without a zero byte");
      return {};
    }
    at_ += text.size();
    return text;
  }

 private:
  std::span<const std::byte> bytes_;
  std::uint64_t offset_ = 0;
  std::size_t at_ = 0;
  std::optional<Damage> damage_;
};

/// Maximum number of findings kept for a caller that never takes them, for example if a file
/// consists of findings only.
constexpr std::size_t max_findings = 4096;

}  // namespace

struct TraceReader::State {
  std::string name = "the trace";
  int file = -1;
  bool owns_file = false;
  std::span<const std::byte> bytes = {};  // without a file: the bytes not read yet
  std::uint64_t bytes_read = 0;

  std::string writer, context, replay;  // what the writer stored about itself and the run
  std::vector<std::byte> payload;
  Decoder decoder;                  // for the chunk of records being read
  std::deque<std::string> strings;  // elements never move; numbered from 1
  std::unordered_map<std::uint64_t, Tag> tags;
  std::vector<Touch> touches;
  std::vector<Finding> findings;  // not taken yet
  std::uint64_t records = 0;
  std::uint64_t tags_left_out = 0;
  bool is_at_end = false;
  bool is_complete = false;
  std::optional<Failure> failure;

  State() = default;
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() {
    if (owns_file) ::close(file);
  }

  Failure refuse(const char* field, std::uint64_t offset, std::uint64_t value, const char* bound) {
    failure = Failure(ErrorCode::bad_format)
                  .with("field", field)
                  .with("offset", offset)
                  .with("value", value)
                  .with("bound", bound)
                  .with("what", name);
    return *failure;
  }
  Failure refuse(const Damage& damage) {
    return refuse(damage.field, damage.offset, damage.value, damage.bound);
  }

  /// Reads up to the size of the buffer and returns the number of bytes read.
  Result<std::size_t> fill(std::span<std::byte> out) {
    std::size_t done = 0;
    if (file < 0) {
      done = std::min(out.size(), bytes.size());
      std::copy_n(bytes.begin(), done, out.begin());
      bytes = bytes.subspan(done);
    }
    while (file >= 0 && done < out.size()) {
      const ssize_t got = ::read(file, out.data() + done, out.size() - done);
      if (got == 0) break;
      if (got > 0) {
        done += static_cast<std::size_t>(got);
      } else if (errno != EINTR) {
        return keep_failure("read", errno);
      }
    }
    bytes_read += done;
    return done;
  }

  Failure keep_failure(const char* call, int code) {
    failure = file_failure(name, call, code);
    return *failure;
  }

  Result<void> read_file_header() {
    std::array<std::byte, file_header_bytes> header = {};
    const Result<std::size_t> got = fill(header);
    if (!got) return got.failure();
    for (std::size_t i = 0; i < magic.size(); ++i) {
      const auto byte = std::to_integer<std::uint8_t>(header[i]);
      if (i >= *got || byte != magic[i]) {
        return refuse("the mark of a trace", i, byte, "AB 54 45 52 4E 54 52 0A");
      }
    }
    if (*got < header.size()) {
      return refuse("the length of the file", 0, *got, "16 bytes at least");
    }
    const std::uint32_t its_version = get_u32(header.data() + 8);
    if (its_version == 0) return refuse("the version", 8, 0, "1 at least");
    if (its_version > version) {
      failure = Failure(ErrorCode::unsupported,
                        "{what} is a trace of format {value}, and this version of Tern reads "
                        "formats up to {max}. Read it with the version that wrote it.")
                    .with("value", its_version)
                    .with("max", version)
                    .with("what", name);
      return *failure;
    }
    const std::uint32_t reserved = get_u32(header.data() + 12);
    if (reserved != 0) return refuse("the reserved word", 12, reserved, "0");
    return {};
  }

  /// Reads the next chunk and returns its kind. Returns nullopt where the trace stops.
  Result<std::optional<std::uint32_t>> read_chunk() {
    const std::uint64_t begin = bytes_read;
    std::array<std::byte, chunk_header_bytes> header = {};
    Result<std::size_t> got = fill(header);
    if (!got) return got.failure();
    if (*got < header.size()) return std::optional<std::uint32_t>();
    const std::uint32_t kind = get_u32(header.data());
    const std::uint32_t length = get_u32(header.data() + 4);
    if (length > max_chunk_bytes) {
      return refuse("the length of a chunk", begin + 4, length, "1048576 bytes at most");
    }
    if (file < 0 && length > bytes.size()) return std::optional<std::uint32_t>();
    payload.resize(length);
    got = fill(payload);
    if (!got) return got.failure();
    if (*got < length) return std::optional<std::uint32_t>();
    const std::uint32_t stored = get_u32(header.data() + 8);
    if (stored != get_u32(chunk_header(kind, payload).data() + 8)) {
      return refuse("the checksum of a chunk", begin + 8, stored, "the checksum of its bytes");
    }
    const bool is_known = kind == chunk_about || kind == chunk_records || kind == chunk_end;
    if (!is_known && (kind & skippable) == 0) {
      return refuse("the kind of a chunk", begin, kind, "1, 2, 3, or from 2147483648 on");
    }
    return std::optional(kind);
  }

  [[nodiscard]] Decoder payload_decoder() const noexcept {
    return Decoder(payload, bytes_read - payload.size());
  }

  Result<void> read_about() {
    const std::uint64_t begin = bytes_read;
    const Result<std::optional<std::uint32_t>> kind = read_chunk();
    if (!kind) return kind.failure();
    // If the chunk is missing, the writer died before its first chunk and recorded nothing.
    if (!kind->has_value()) {
      is_at_end = true;
      return {};
    }
    if (**kind != chunk_about) return refuse("the kind of the first chunk", begin, **kind, "1");
    Decoder in = payload_decoder();
    writer = in.string("the writer's name");
    context = in.string("the context");
    replay = in.string("the replay line");
    if (!in.damage() && !in.is_at_end()) {
      in.refuse("the rest of a chunk", in.offset(), in.left(), "no bytes");
    }
    if (in.damage()) return refuse(*in.damage());
    return {};
  }

  /// Moves to the next chunk of records. Returns false at the end of the trace.
  Result<bool> next_chunk() {
    for (;;) {
      const std::uint64_t begin = bytes_read;
      const Result<std::optional<std::uint32_t>> kind = read_chunk();
      if (!kind) return kind.failure();
      if (!kind->has_value()) return false;
      if (**kind == chunk_about) {
        return refuse("the kind of a later chunk", begin, **kind, "2, 3, or from 2147483648 on");
      }
      if (**kind == chunk_end) return read_end();
      if (**kind == chunk_finding) {
        if (const Result<void> read = read_finding(); !read) return read.failure();
      }
      if (**kind != chunk_records) continue;
      decoder = payload_decoder();
      if (!decoder.is_at_end()) return true;
    }
  }

  Result<void> read_finding() {
    Decoder in = payload_decoder();
    Finding finding;
    const std::uint64_t where = in.offset();
    const std::uint64_t code = in.varint("the code of a finding");
    finding.code = static_cast<FindingCode>(code);
    if (code > 0xffff || title(finding.code) == "unknown") {
      in.refuse("the code of a finding", where, code, "a known code");
    }
    finding.step = in.varint("the step of a finding");
    finding.range.space =
        static_cast<std::uint32_t>(in.varint("the space of a finding", 0xffff'ffff, "below 2^32"));
    finding.range.offset = in.varint("the offset of a finding");
    finding.range.bytes = in.varint("the bytes of a finding");
    for (std::string* text :
         {&finding.what, &finding.now, &finding.block, &finding.order, &finding.fix}) {
      *text = in.string("a line of a finding");
    }
    const std::uint64_t lines = in.varint("the lines of a finding", max_lines, "64 at most");
    for (std::uint64_t i = 0; i < lines && !in.damage(); ++i) {
      finding.before.emplace_back(in.string("a line of a finding"));
    }
    if (!in.is_at_end()) in.refuse("the rest of a chunk", in.offset(), in.left(), "no bytes");
    if (in.damage()) return refuse(*in.damage());
    if (findings.size() < max_findings) findings.push_back(std::move(finding));
    return {};
  }

  Result<bool> read_end() {
    Decoder in = payload_decoder();
    std::uint64_t where = in.offset();
    const std::uint64_t record_total = in.varint("the number of records");
    if (record_total != records) {
      in.refuse("the number of records", where, record_total, "the number read before");
    }
    where = in.offset();
    const std::uint64_t string_total = in.varint("the number of strings");
    if (string_total != strings.size()) {
      in.refuse("the number of strings", where, string_total, "the number read before");
    }
    if (!in.is_at_end()) in.refuse("the rest of a chunk", in.offset(), in.left(), "no bytes");
    if (in.damage()) return refuse(*in.damage());
    const std::uint64_t end = bytes_read;
    std::array<std::byte, 1> more = {};
    const Result<std::size_t> got = fill(more);
    if (!got) return got.failure();
    if (*got != 0) return refuse("what follows the end", end, 1, "nothing");
    is_complete = true;
    return false;
  }

  void read_string() {
    const std::uint64_t where = decoder.offset();
    const std::string_view text = decoder.string("a string");
    if (decoder.damage()) return;
    if (text.empty()) return decoder.refuse("the length of a string", where, 0, "1 at least");
    if (strings.size() == max_strings) {
      return decoder.refuse("the number of a string", where, strings.size() + 1, "262144 at most");
    }
    strings.emplace_back(text);
  }

  /// Returns a string by its number, or "" for 0.
  const std::string& string_at(const char* field) {
    static const std::string none;
    const std::uint64_t number =
        decoder.varint(field, strings.size(), "a string that was defined before");
    return number == 0 ? none : strings[static_cast<std::size_t>(number - 1)];
  }

  Tag read_tag() {
    const std::uint64_t number =
        decoder.varint("a tag", strings.size(), "a string that was defined before");
    if (number == 0 || decoder.damage()) return {};
    const auto [at, is_new] = tags.try_emplace(number);
    if (is_new) {
      const std::string& text = strings[static_cast<std::size_t>(number - 1)];
      if (const std::optional<Tag> known = Tag::find(text)) {
        at->second = *known;
      } else if (new_tags.fetch_add(1, std::memory_order_relaxed) < max_new_tags) {
        at->second = Tag(text);
      } else {
        new_tags.fetch_sub(1, std::memory_order_relaxed);
      }
    }
    if (at->second == Tag()) ++tags_left_out;
    return at->second;
  }

  void read_touch() {
    Touch touch;
    const std::uint64_t where = decoder.offset();
    const std::uint8_t kind = decoder.u8("the kind of a touch", 0xff, "");
    if ((kind & ~touch_assumed) > static_cast<std::uint8_t>(TouchKind::subrelease)) {
      decoder.refuse("the kind of a touch", where, kind, "0 to 6, and 128 more if it is assumed");
    }
    touch.kind = static_cast<TouchKind>(kind & 0x7f);
    touch.is_assumed = (kind & touch_assumed) != 0;
    touch.range.space = static_cast<std::uint32_t>(
        decoder.varint("a memory space", std::numeric_limits<std::uint32_t>::max(), "below 2^32"));
    touch.range.offset = decoder.varint("the offset of a touch");
    touch.range.bytes = decoder.varint("the bytes of a touch", ~touch.range.offset,
                                       "small enough that the range ends below 2^64");
    touch.generation = decoder.varint("a generation");
    touches.push_back(touch);
  }

  void read_record(TraceRecord& record) {
    record.kind = static_cast<RecordKind>(decoder.u8(
        "the kind of a record", static_cast<std::uint8_t>(RecordKind::lost_records), "0 to 12"));
    record.operation = static_cast<OperationKind>(decoder.u8(
        "the kind of an operation", static_cast<std::uint8_t>(OperationKind::prefetch), "0 to 6"));
    record.actor_kind = static_cast<ActorKind>(decoder.u8(
        "the kind of an actor", static_cast<std::uint8_t>(ActorKind::default_stream), "0 to 3"));
    record.was_refused = decoder.u8("the flags of a record", flag_refused, "0 or 1") != 0;
    record.actor = static_cast<ActorId>(decoder.varint("an actor", max_actors - 1, "below 4096"));
    record.host = static_cast<ActorId>(decoder.varint("a host", max_actors - 1, "below 4096"));
    record.device = static_cast<std::uint32_t>(
        decoder.varint("a device", std::numeric_limits<std::uint32_t>::max(), "below 2^32"));
    record.event = decoder.varint("an event");
    record.sequence = decoder.varint("a sequence");
    record.name = string_at("a name");
    record.site.file = string_at("a file").c_str();
    record.site.function = string_at("a function").c_str();
    record.site.line = static_cast<std::uint32_t>(
        decoder.varint("a line", std::numeric_limits<std::uint32_t>::max(), "below 2^32"));
    record.tag = read_tag();
    const std::uint64_t where = decoder.offset();
    const std::uint64_t count =
        decoder.varint("the number of touches", max_touches, "4096 at most");
    if (count > decoder.left() / min_touch_bytes) {
      decoder.refuse("the number of touches", where, count, "at most what its chunk can hold");
    }
    touches.clear();
    for (std::uint64_t i = 0; i < count && !decoder.damage(); ++i) read_touch();
    record.touches = touches;
  }

  Result<bool> next(TraceRecord& record) {
    if (failure) return *failure;
    while (!is_at_end) {
      if (decoder.is_at_end()) {
        const Result<bool> more = next_chunk();
        if (!more) return more.failure();
        is_at_end = !*more;
        continue;
      }
      const std::uint64_t where = decoder.offset();
      const std::uint8_t entry = decoder.u8("the kind of an entry", 0xff, "");
      if (entry == entry_record) {
        read_record(record);
      } else if (entry == entry_string) {
        read_string();
      } else {
        decoder.refuse("the kind of an entry", where, entry, "1 or 2");
      }
      if (decoder.damage()) return refuse(*decoder.damage());
      if (entry != entry_record) continue;
      ++records;
      return true;
    }
    return false;
  }

  static Result<TraceReader> start(std::unique_ptr<State> state) {
    if (Result<void> read = state->read_file_header(); !read) return read.failure();
    if (Result<void> read = state->read_about(); !read) return read.failure();
    return TraceReader(std::move(state));
  }
};

TraceReader::TraceReader(std::unique_ptr<State> state) noexcept : state_(std::move(state)) {}
TraceReader::TraceReader(TraceReader&&) noexcept = default;
TraceReader& TraceReader::operator=(TraceReader&&) noexcept = default;
TraceReader::~TraceReader() = default;

Result<TraceReader> TraceReader::try_open(const std::string& path) {
  auto state = std::make_unique<State>();
  state->name = path;
  state->file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (state->file < 0) return state->keep_failure("open", errno);
  state->owns_file = true;
  return State::start(std::move(state));
}

Result<TraceReader> TraceReader::try_read_descriptor(int descriptor, std::string name) {
  auto state = std::make_unique<State>();
  state->name = std::move(name);
  state->file = descriptor;
  return State::start(std::move(state));
}

Result<TraceReader> TraceReader::try_read_bytes(std::span<const std::byte> bytes) {
  auto state = std::make_unique<State>();
  state->bytes = bytes;
  return State::start(std::move(state));
}

const std::string& TraceReader::writer() const noexcept { return state_->writer; }
const std::string& TraceReader::context() const noexcept { return state_->context; }
const std::string& TraceReader::replay() const noexcept { return state_->replay; }
Result<bool> TraceReader::try_next(TraceRecord& record) { return state_->next(record); }
std::vector<Finding> TraceReader::take_findings() { return std::exchange(state_->findings, {}); }
bool TraceReader::is_complete() const noexcept { return state_->is_complete; }
std::uint64_t TraceReader::record_count() const noexcept { return state_->records; }
std::uint64_t TraceReader::bytes_read() const noexcept { return state_->bytes_read; }
std::uint64_t TraceReader::tags_left_out() const noexcept { return state_->tags_left_out; }

}  // namespace tern
