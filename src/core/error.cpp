#include "tern/core/error.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <iterator>

#include "core/text.hpp"
#include "tern/core/result.hpp"

namespace tern {
namespace {

constexpr std::string_view ellipsis = "...";

/// Returns the default message template of a code. Its placeholders are the fields that failures
/// with this code usually have; a placeholder without a field is printed as "?".
const char* default_sentence(ErrorCode code) noexcept {
  switch (code) {
    case ErrorCode::size_overflow:
      return "the size of {what} overflows 64 bits. Use a smaller size.";
    case ErrorCode::invalid_argument:
      return "'{name}' cannot be {value}: {why}.";
    case ErrorCode::invalid_view:
      return "a view of {size} at offset {offset} exceeds its parent of {extent}. Use a smaller "
             "range.";
    case ErrorCode::misaligned:
      return "address {address} is not a multiple of {required}. Use an aligned offset.";
    case ErrorCode::size_mismatch:
      return "{expected} were expected and {actual} were given. Make the two sizes equal.";
    case ErrorCode::shape_mismatch:
      return "shape {expected} was expected and {actual} was given. Make the two shapes equal.";
    case ErrorCode::type_mismatch:
      return "type {expected} was expected and {actual} was given. Ask for the stored type, or "
             "reinterpret it.";
    case ErrorCode::not_allocated:
      return "buffer {id} has no memory. Allocate or write it first.";
    case ErrorCode::never_written:
      return "{range} of buffer {id} was never written. Write it first, or create the buffer with "
             "Contents::unspecified.";
    case ErrorCode::not_host_accessible:
      return "the host cannot read {kind} memory. Copy it to the host first.";
    case ErrorCode::read_only:
      return "{what} is read-only. Copy it, and write the copy.";
    case ErrorCode::out_of_memory:
      return "{requested} could not be allocated: {free} of {total} are free. Free something, or "
             "ask for less.";
    case ErrorCode::out_of_budget:
      return "budget '{layer}' cannot hold {requested} more: {current} of {limit} in use. Free "
             "something, or raise the limit.";
    case ErrorCode::use_after_free:
      return "the block of generation {generation} was freed before. Free each block once, and "
             "keep no copy of it.";
    case ErrorCode::out_of_bounds:
      return "the address lies outside the block of generation {generation}. Use the address the "
             "allocation returned.";
    case ErrorCode::stream_misuse:
      return "the operation is not possible on stream {stream}: {why}.";
    case ErrorCode::untracked_buffer:
      return "the uses of {kind} memory cannot be tracked. Adopt it with its owner, or use a "
             "permissive recorder.";
    case ErrorCode::download_refused:
      return "{bytes} may not be copied to the host: the gate allows at most {limit}. Keep the "
             "bytes on the device.";
    case ErrorCode::device_mismatch:
      return "'{a}' and '{b}' are two devices, and the operation needs one. Use a stream and "
             "memory of the same device.";
    case ErrorCode::invalid_device:
      return "there is no device '{spec}'. `tern info` lists the devices.";
    case ErrorCode::unsupported:
      return "the device does not support {what}. `tern info --all` lists what each device can do.";
    case ErrorCode::sync_failed:
      return "the copy {direction} failed: {cause}. The buffer is unchanged.";
    case ErrorCode::coherence_conflict:
      return "{range} was written in two places: {places}. Synchronise one place before writing "
             "the other.";
    case ErrorCode::access_conflict:
      return "{range} is in use by {a} and wanted by {b}. Close the first lease before opening the "
             "second.";
    case ErrorCode::dlpack_rejected:
      return "the DLPack tensor was rejected: {reason}.";
    case ErrorCode::arrow_rejected:
      return "the Arrow array was rejected: {reason} in field '{field}'.";
    case ErrorCode::capacity:
      return "all {max} are in use. Return one, or raise the capacity.";
    case ErrorCode::timeout:
      return "the value {target} was not reached in time: it is {current}. Wait longer, or look "
             "for "
             "the work that should have signalled it.";
    case ErrorCode::not_found:
      return "there is no object with id {id}. It was released, or never existed.";
    case ErrorCode::after_fork:
      return "process {pid} was forked from the process that opened the device. Open devices after "
             "the fork, or start the child with exec.";
    case ErrorCode::after_shutdown:
      return "{what} was requested after shutdown(). Call shutdown() after the last use.";
    case ErrorCode::device_lost:
      return "device '{device}' is lost since {call} returned {name} ({code}). It accepts no more "
             "work. Continue with another device, or restart the program.";
    case ErrorCode::peer_lost:
      return "process {pid}, which shares memory with this process, has ended. Start it again, and "
             "open the memory that it then shares.";
    case ErrorCode::file:
      return "file '{path}': {call} failed: {why}.";
    case ErrorCode::bad_format:
      return "{what} cannot be read: {field} at byte {offset} is {value} and must be {bound}. The "
             "file is damaged or is not a Tern trace.";
    case ErrorCode::violation:
      return "the checker found {finding}. The report names the missing wait.";
    case ErrorCode::driver:
      return "{call} returned {name} ({code}).";
  }
  return "an unknown error.";
}

/// Appends text to a caller's buffer. After the first piece that does not fit, it drops everything
/// else.
class Writer {
 public:
  Writer(char* buffer, std::size_t capacity) noexcept : buffer_(buffer), capacity_(capacity) {}

  void append(std::string_view text) noexcept {
    const std::size_t room = capacity_ - used_;
    const std::string_view part = text.substr(0, utf8_prefix_bytes(text, room));
    // Append nothing after a cut: a short piece that still fits would hide that another one is
    // missing.
    if (part.size() < text.size()) capacity_ = used_ + part.size();
    // memcpy must not get a null pointer even for zero bytes, and an empty view may have one.
    if (!part.empty()) std::memcpy(buffer_ + used_, part.data(), part.size());
    used_ += part.size();
  }

  void append(const Failure::Field& field) noexcept {
    char number[32];
    std::size_t length = 0;
    switch (field.unit) {
      case Unit::text:
        return append(field.text);
      case Unit::bytes:
        length = format_bytes_to(number, sizeof number, field.number);
        break;
      case Unit::count:
        length = fmt::format_to_n(number, sizeof number, "{}", field.number).size;
        break;
      case Unit::signed_count:
        length =
            fmt::format_to_n(number, sizeof number, "{}", static_cast<std::int64_t>(field.number))
                .size;
        break;
      case Unit::nanoseconds:
        length = fmt::format_to_n(number, sizeof number, "{} ns", field.number).size;
        break;
      case Unit::hex:
        length = fmt::format_to_n(number, sizeof number, "{:#x}", field.number).size;
        break;
    }
    append(std::string_view(number, length));
  }

  [[nodiscard]] std::size_t used() const noexcept { return used_; }

 private:
  char* buffer_;
  std::size_t capacity_;
  std::size_t used_ = 0;
};

/// Writes "file:line: ", at most Error::max_site_bytes, and returns the length. Writes nothing if
/// the site is unknown.
std::size_t write_site(char* buffer, const CallSite& site) noexcept {
  if (!site.is_known()) return 0;
  constexpr std::size_t line_bytes = std::size(":4294967295: ") - 1;
  constexpr std::size_t path_bytes = Error::max_site_bytes - line_bytes;
  std::string_view path = site.file == nullptr ? "" : site.file;
  Writer out(buffer, Error::max_site_bytes);
  if (path.size() > path_bytes) {
    path.remove_prefix(path.size() - (path_bytes - ellipsis.size()));
    // Do not start in the middle of a UTF-8 character.
    while (!path.empty() && (static_cast<unsigned char>(path.front()) & 0xc0) == 0x80) {
      path.remove_prefix(1);
    }
    out.append(ellipsis);
  }
  out.append(path);
  out.append(":");
  out.append(Failure::Field{"", Unit::count, site.line, ""});
  out.append(": ");
  return out.used();
}

}  // namespace

std::string_view name(ErrorCode code) noexcept {
  switch (code) {
#define TERN_CODE(code, name, base) \
  case ErrorCode::code:             \
    return #code;
    TERN_FOR_EACH_ERROR_CODE(TERN_CODE)
#undef TERN_CODE
  }
  return "unknown";
}

Failure::Failure(ErrorCode code, const char* sentence, CallSite site) noexcept
    : sentence_(sentence != nullptr ? sentence : default_sentence(code)),
      site_(site),
      code_(code) {}

Failure& Failure::with(const char* name, std::uint64_t value, Unit unit) noexcept {
  // A field above the limit is dropped. The message and the first sixteen fields remain.
  if (count_ == max_fields) return *this;
  names_[count_] = name;
  values_[count_] = value;
  units_[count_] = unit;
  ++count_;
  return *this;
}

Failure& Failure::with_bytes(const char* name, std::uint64_t value) noexcept {
  return with(name, value, Unit::bytes);
}

Failure& Failure::with_signed(const char* name, std::int64_t value) noexcept {
  return with(name, static_cast<std::uint64_t>(value), Unit::signed_count);
}

Failure& Failure::with(const char* name, std::string_view text) noexcept {
  if (count_ == max_fields) return *this;
  const std::size_t offset = text_bytes_;
  const std::size_t room = max_text_bytes - offset;
  std::size_t length = text.size();
  if (length <= room) {
    std::copy_n(text.data(), length, text_ + offset);
  } else {
    const std::size_t kept =
        room > ellipsis.size() ? utf8_prefix_bytes(text, room - ellipsis.size()) : 0;
    std::copy_n(text.data(), kept, text_ + offset);
    std::copy_n(ellipsis.data(), ellipsis.size(), text_ + offset + kept);
    length = kept + ellipsis.size();
  }
  // The "..." of a text without space is stored past max_text_bytes, where only another "..." can
  // overwrite it.
  text_bytes_ = static_cast<std::uint16_t>(std::min(offset + length, max_text_bytes));
  return with(name, (static_cast<std::uint64_t>(offset) << 32) | length, Unit::text);
}

Failure& Failure::at(CallSite site) noexcept {
  site_ = site;
  return *this;
}

Failure::Field Failure::field(std::size_t index) const noexcept {
  if (index >= count_) return {"", Unit::count, 0, ""};
  const std::uint64_t value = values_[index];
  if (units_[index] != Unit::text) return {names_[index], units_[index], value, ""};
  return {names_[index], Unit::text, 0,
          std::string_view(text_ + (value >> 32), static_cast<std::size_t>(value & 0xffffffffu))};
}

std::optional<std::uint64_t> Failure::number(std::string_view name) const noexcept {
  for (std::size_t i = 0; i < count_; ++i) {
    if (name == names_[i] && units_[i] != Unit::text) return values_[i];
  }
  return std::nullopt;
}

std::optional<std::string_view> Failure::string(std::string_view name) const noexcept {
  for (std::size_t i = 0; i < count_; ++i) {
    if (name == names_[i] && units_[i] == Unit::text) return field(i).text;
  }
  return std::nullopt;
}

std::size_t Failure::render(char* buffer, std::size_t capacity) const noexcept {
  if (capacity == 0) return 0;
  Writer out(buffer, capacity - 1);
  std::string_view rest = sentence_;
  while (!rest.empty()) {
    const std::size_t open = rest.find('{');
    const std::size_t close = open == rest.npos ? rest.npos : rest.find('}', open);
    out.append(rest.substr(0, close == rest.npos ? rest.size() : open));
    if (close == rest.npos) break;
    const std::string_view wanted = rest.substr(open + 1, close - open - 1);
    rest.remove_prefix(close + 1);

    std::size_t index = 0;
    while (index < count_ && wanted != names_[index]) ++index;
    if (index < count_) {
      out.append(field(index));
    } else {
      out.append("?");
    }
  }
  buffer[out.used()] = '\0';
  return out.used();
}

std::string Failure::text() const {
  std::array<char, Error::max_text_bytes> buffer;
  return std::string(buffer.data(), render(buffer.data(), buffer.size()));
}

Error::Error(const Failure& failure) noexcept : failure_(failure) {
  site_bytes_ = static_cast<std::uint16_t>(write_site(text_.data(), failure_.site()));
  failure_.render(text_.data() + site_bytes_, max_text_bytes);
}

Error::~Error() = default;

void raise(const Failure& failure) {
  switch (failure.code()) {
#define TERN_CODE(code, name, base) \
  case ErrorCode::code:             \
    throw name(failure);
    TERN_FOR_EACH_ERROR_CODE(TERN_CODE)
#undef TERN_CODE
  }
  throw DriverError(failure);
}

void raise(const Failure& failure, CallSite site) {
  raise(failure.site().is_known() ? failure : Failure(failure).at(site));
}

void raise_no_failure() {
  raise(Failure(ErrorCode::invalid_argument,
                "a successful result has no failure. Check the result before calling failure()."));
}

}  // namespace tern
