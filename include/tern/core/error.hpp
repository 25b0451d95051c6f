// Errors: try_x() returns a Failure, and x() throws an Error that carries the same Failure.
//
//   const Result<Device> device = try_open_device("cuda:0");
//   if (!device) std::puts(device.failure().text().c_str());
//
// A Failure is a code, named fields (numbers with units, short texts), a message template with
// `{field}` placeholders, and the call site. The message says what failed, with the numbers, and
// what to do. text() fills in the template on request. A Failure has a fixed size and uses no heap
// memory, so an operation can fail cheaply and even when memory is exhausted.
//
// Each code has one exception class, named after the code. The class derives from Error and from
// one standard exception, so a program can catch the class, Error, or the standard exception:
// - std::bad_alloc: OutOfMemory, and OutOfBudget, which is an OutOfMemory.
// - std::invalid_argument: wrong arguments.
// - std::runtime_error: everything else.
//
// Error does not derive from std::exception, because std::exception would then be an ambiguous
// base. Error::text() returns the message. what() returns `file:line: ` of the user's call, if
// known, and then the message.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>

#include "tern/core/call_site.hpp"
#include "tern/detail/core/visibility.hpp"

namespace tern {

/// The list of all codes, one line each: TERN_CODE(enumerator, exception class, standard base). The
/// list is a macro so that names, classes and tests are generated from it and cannot miss a code.
#define TERN_FOR_EACH_ERROR_CODE(TERN_CODE)                             \
  TERN_CODE(size_overflow, SizeOverflow, std::invalid_argument)         \
  TERN_CODE(invalid_argument, InvalidArgument, std::invalid_argument)   \
  TERN_CODE(invalid_view, InvalidView, std::invalid_argument)           \
  TERN_CODE(misaligned, Misaligned, std::invalid_argument)              \
  TERN_CODE(size_mismatch, SizeMismatch, std::invalid_argument)         \
  TERN_CODE(shape_mismatch, ShapeMismatch, std::invalid_argument)       \
  TERN_CODE(type_mismatch, TypeMismatch, std::invalid_argument)         \
  TERN_CODE(not_allocated, NotAllocated, std::runtime_error)            \
  TERN_CODE(never_written, NeverWritten, std::invalid_argument)         \
  TERN_CODE(not_host_accessible, NotHostAccessible, std::runtime_error) \
  TERN_CODE(read_only, ReadOnly, std::invalid_argument)                 \
  TERN_CODE(out_of_memory, OutOfMemory, std::bad_alloc)                 \
  TERN_CODE(out_of_budget, OutOfBudget, OutOfMemory)                    \
  TERN_CODE(use_after_free, UseAfterFree, std::runtime_error)           \
  TERN_CODE(out_of_bounds, OutOfBounds, std::invalid_argument)          \
  TERN_CODE(stream_misuse, StreamMisuse, std::runtime_error)            \
  TERN_CODE(untracked_buffer, UntrackedBuffer, std::runtime_error)      \
  TERN_CODE(download_refused, DownloadRefused, std::runtime_error)      \
  TERN_CODE(device_mismatch, DeviceMismatch, std::invalid_argument)     \
  TERN_CODE(invalid_device, InvalidDevice, std::invalid_argument)       \
  TERN_CODE(unsupported, Unsupported, std::runtime_error)               \
  TERN_CODE(sync_failed, SyncFailed, std::runtime_error)                \
  TERN_CODE(coherence_conflict, CoherenceConflict, std::runtime_error)  \
  TERN_CODE(access_conflict, AccessConflict, std::runtime_error)        \
  TERN_CODE(dlpack_rejected, DlpackRejected, std::runtime_error)        \
  TERN_CODE(arrow_rejected, ArrowRejected, std::runtime_error)          \
  TERN_CODE(capacity, CapacityReached, std::runtime_error)              \
  TERN_CODE(timeout, TimedOut, std::runtime_error)                      \
  TERN_CODE(not_found, NotFound, std::runtime_error)                    \
  TERN_CODE(after_fork, AfterFork, std::runtime_error)                  \
  TERN_CODE(after_shutdown, AfterShutdown, std::runtime_error)          \
  TERN_CODE(device_lost, DeviceLost, std::runtime_error)                \
  TERN_CODE(peer_lost, PeerLost, std::runtime_error)                    \
  TERN_CODE(file, FileError, std::runtime_error)                        \
  TERN_CODE(bad_format, BadFormat, std::runtime_error)                  \
  TERN_CODE(violation, Violation, std::runtime_error)                   \
  TERN_CODE(driver, DriverError, std::runtime_error)

/// What went wrong:
/// - `size_overflow`: a size does not fit into 64 bits. `invalid_argument`: an argument has a value
///   that is not allowed. `invalid_view`: a range is outside of its parent. `misaligned`: an
///   address or an alignment does not fit.
/// - `size_mismatch`, `shape_mismatch`, `type_mismatch`: two sizes, shapes or types must be equal
///   and are not.
/// - `not_allocated`: a handle has no memory. `never_written`: a read of bytes never written.
///   `not_host_accessible`: the host cannot use memory of this kind. `read_only`: a write to memory
///   that must not be written.
/// - `out_of_memory`: a device or the host has no memory left. `out_of_budget`: a budget has no
///   room, or an eviction could not make any.
/// - `use_after_free`: a block that was freed. `out_of_bounds`: an address or an index beyond a
///   block.
/// - `stream_misuse`: the stream has ended, or cannot do this. `device_mismatch`: stream and memory
///   of two devices. `invalid_device`: there is no such device. `unsupported`: the device cannot do
///   this.
/// - `untracked_buffer`: a strict recorder met memory whose uses it cannot track.
///   `download_refused`: a TransferGate forbids the copy to the host.
/// - `sync_failed`: bytes could not be moved to the place that needs them. `coherence_conflict`:
///   two places have newer bytes. `access_conflict`: a lease or a use forbids the access.
/// - `dlpack_rejected`, `arrow_rejected`: a structure of another library is invalid or has no
///   equivalent.
/// - `capacity`: a fixed number of objects is in use. `timeout`: a wait ended before its condition.
///   `not_found`: there is no object of this name.
/// - `after_fork`: the device was opened before a fork. `after_shutdown`: a default resource was
///   requested after shutdown().
/// - `device_lost`: the device accepts no work any more. `peer_lost`: another process of a shared
///   array has ended.
/// - `file`: a call of the file system failed. `bad_format`: a file is damaged or of another kind.
/// - `violation`: a checker or a guard found a mistake of the program. `driver`: a driver call
///   failed for another reason.
enum class ErrorCode : std::uint8_t {
#define TERN_CODE(code, name, base) code,
  TERN_FOR_EACH_ERROR_CODE(TERN_CODE)
#undef TERN_CODE
};

/// Returns the enumerator as text, such as "out_of_memory", for logs and JSON.
[[nodiscard]] TERN_EXPORT std::string_view name(ErrorCode code) noexcept;

/// The unit of a field, which decides how the field is printed: 25769803776 with Unit::bytes is
/// printed as "24.0 GiB".
enum class Unit : std::uint8_t { count, signed_count, bytes, nanoseconds, hex, text };

class TERN_EXPORT Failure {
 public:
  /// Upper bounds of the fields of a failure, and of the bytes of all its texts.
  static constexpr std::size_t max_fields = 16;
  static constexpr std::size_t max_text_bytes = 224;

  /// Creates a failure. `sentence` is the message template; null selects the default template of
  /// the code. The template and all field names below must have static storage.
  explicit Failure(ErrorCode code, const char* sentence = nullptr, CallSite site = {}) noexcept;

  /// with(), with_bytes() and with_signed() add a number. A failure has at most max_fields fields;
  /// further fields are dropped.
  Failure& with(const char* name, std::uint64_t value, Unit unit = Unit::count) noexcept;
  Failure& with_bytes(const char* name, std::uint64_t value) noexcept;
  Failure& with_signed(const char* name, std::int64_t value) noexcept;
  /// Adds a text. The failure copies the text. All texts of a failure share max_text_bytes; a text
  /// that does not fit is cut at a character boundary and ends in "...".
  Failure& with(const char* name, std::string_view text) noexcept;
  Failure& with(const char* name, const char* text) noexcept {
    return with(name, std::string_view(text == nullptr ? "" : text));
  }
  /// Replaces the call site.
  Failure& at(CallSite site) noexcept;

  /// What went wrong, and the line of the call. site() is empty if the call is not known.
  [[nodiscard]] ErrorCode code() const noexcept { return code_; }
  [[nodiscard]] CallSite site() const noexcept { return site_; }

  /// number() and string() return the value of the field with this name. number() returns nullopt
  /// for a text field, string() for a number, and both if there is no such field. The returned text
  /// points into this failure.
  [[nodiscard]] std::optional<std::uint64_t> number(std::string_view name) const noexcept;
  [[nodiscard]] std::optional<std::string_view> string(std::string_view name) const noexcept;

  /// One field, for logs and bindings. field(index) returns fields in the order in which they were
  /// added, and an empty field for an index from field_count() on. The texts point into the
  /// failure.
  struct Field {
    std::string_view name;  // the placeholder that it fills
    Unit unit;              // how `number` is printed
    std::uint64_t number;   // for signed_count: the bits of an int64_t
    std::string_view text;  // empty unless unit is Unit::text
  };
  /// Number of fields, at most max_fields.
  [[nodiscard]] std::size_t field_count() const noexcept { return count_; }
  [[nodiscard]] Field field(std::size_t index) const noexcept;

  /// Writes the message with its placeholders filled in. Writes at most `capacity` bytes, including
  /// the terminating zero, cuts at a character boundary, and returns the length without the zero. A
  /// placeholder without a field is printed as "?". Allocates nothing.
  std::size_t render(char* buffer, std::size_t capacity) const noexcept;
  /// Returns the message as a string. Throws std::bad_alloc.
  [[nodiscard]] std::string text() const;

 private:
  // The value of a text field is `offset << 32 | length`, an index into text_. The last three bytes
  // of text_ hold the "..." of a text for which no space was left.
  std::uint64_t values_[max_fields];
  const char* names_[max_fields];
  Unit units_[max_fields];
  char text_[max_text_bytes + 3];
  const char* sentence_;
  CallSite site_;
  std::uint16_t text_bytes_ = 0;
  std::uint8_t count_ = 0;
  ErrorCode code_;
};

static_assert(std::is_trivially_copyable_v<Failure>, "a failure must copy without heap memory");
static_assert(sizeof(Failure) <= 544, "every Result is this large");

/// The base class of every exception that Tern throws. The object holds its message, so catching
/// and printing it allocates nothing.
class TERN_EXPORT Error {
 public:
  /// Upper bounds of the message and of the "file:line: " before it, in bytes. Longer ones are cut.
  static constexpr std::size_t max_text_bytes = 640;
  static constexpr std::size_t max_site_bytes = 192;

  virtual ~Error();

  /// What went wrong, and the numbers as fields: failure().
  [[nodiscard]] ErrorCode code() const noexcept { return failure_.code(); }
  [[nodiscard]] const Failure& failure() const noexcept { return failure_; }
  /// Returns the message without the call site.
  [[nodiscard]] const char* text() const noexcept { return text_.data() + site_bytes_; }

 protected:
  explicit Error(const Failure& failure) noexcept;
  Error(const Error&) = default;
  Error& operator=(const Error&) = default;

  /// Returns "file:line: " of the call, if known, and then the message. what() of every exception
  /// class returns this text. If the path is too long, its end is kept.
  [[nodiscard]] const char* site_and_text() const noexcept { return text_.data(); }

 private:
  Failure failure_;
  std::uint16_t site_bytes_ = 0;
  // The text is stored in the exception and not on the heap: copying an exception must not throw,
  // and OutOfMemory must work when nothing can be allocated.
  std::array<char, max_site_bytes + max_text_bytes> text_;
};

namespace detail {

/// The common part of the exception classes: an Error that is also a `Base`.
template <class Base>
class TERN_EXPORT ErrorAnd : public Base, public Error {
 public:
  [[nodiscard]] const char* what() const noexcept override { return site_and_text(); }

 protected:
  explicit ErrorAnd(const Failure& failure) : Base(""), Error(failure) {}
};

template <>
class TERN_EXPORT ErrorAnd<std::bad_alloc> : public std::bad_alloc, public Error {
 public:
  [[nodiscard]] const char* what() const noexcept override { return site_and_text(); }

 protected:
  explicit ErrorAnd(const Failure& failure) noexcept : Error(failure) {}
};

template <class Base>
requires std::is_base_of_v<Error, Base>
class TERN_EXPORT ErrorAnd<Base> : public Base {
 protected:
  using Base::Base;
};

}  // namespace detail

// These are classes and not aliases of a template, because the C++ runtime prints the class name of
// an uncaught exception.
#define TERN_CODE(code, name, base)                                            \
  class TERN_EXPORT name : public detail::ErrorAnd<base> {                     \
   public:                                                                     \
    explicit name(const Failure& failure) : detail::ErrorAnd<base>(failure) {} \
  };
TERN_FOR_EACH_ERROR_CODE(TERN_CODE)
#undef TERN_CODE

/// Throws the exception class that belongs to the code of the failure.
[[noreturn]] TERN_EXPORT void raise(const Failure& failure);
/// Like raise(failure). If the failure has no call site, the exception gets `site`.
[[noreturn]] TERN_EXPORT void raise(const Failure& failure, CallSite site);

}  // namespace tern
