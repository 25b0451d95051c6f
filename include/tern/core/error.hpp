// Errors: a Failure is the value that a refused operation returns, an Error what it throws.
//
// A Failure is fixed in size and owns no heap memory, so refusing costs a few stores even when
// memory is exhausted. It carries a code, named fields (numbers with units, short texts) and a
// sentence with `{field}` placeholders; text() puts them together only when somebody asks. The
// sentence says what could not be done, the numbers, and what to do.
//
// Each code has one exception class, named after it, that is both an Error and exactly one
// standard exception: std::bad_alloc for OutOfMemory and OutOfBudget (which is an OutOfMemory),
// std::invalid_argument for wrong arguments, std::runtime_error for the rest. Error does not derive
// from std::exception, which would make that base ambiguous: catch by any of the three. text() is
// the sentence, and what() puts `file:line: ` of the call before it where that is known.

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
#include "tern/core/export.hpp"

namespace tern {

/// One line per code: TERN_CODE(enumerator, exception class, its base besides Error). The list is a
/// macro so that names, classes and tests can walk it and never miss one.
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
  TERN_CODE(file, FileError, std::runtime_error)                        \
  TERN_CODE(bad_format, BadFormat, std::runtime_error)                  \
  TERN_CODE(violation, Violation, std::runtime_error)                   \
  TERN_CODE(driver, DriverError, std::runtime_error)

enum class ErrorCode : std::uint8_t {
#define TERN_CODE(code, name, base) code,
  TERN_FOR_EACH_ERROR_CODE(TERN_CODE)
#undef TERN_CODE
};

/// "size_overflow", "out_of_memory", ...: the enumerator as text, for logs and JSON.
[[nodiscard]] TERN_EXPORT std::string_view name(ErrorCode code) noexcept;

/// What a field's value is, and so how it reads: 25769803776 as bytes is "24.0 GiB".
enum class Unit : std::uint8_t { count, signed_count, bytes, nanoseconds, hex, text };

class TERN_EXPORT Failure {
 public:
  static constexpr std::size_t max_fields = 16;
  static constexpr std::size_t max_text_bytes = 224;

  /// `sentence` must have static storage; null means the code's own sentence. So must all field
  /// names below.
  explicit Failure(ErrorCode code, const char* sentence = nullptr, CallSite site = {}) noexcept;

  Failure& with(const char* name, std::uint64_t value, Unit unit = Unit::count) noexcept;
  Failure& with_bytes(const char* name, std::uint64_t value) noexcept;
  Failure& with_signed(const char* name, std::int64_t value) noexcept;
  /// Copies the text; all texts of a failure share max_text_bytes, and what does not fit is cut at
  /// a character boundary and ends in "...".
  Failure& with(const char* name, std::string_view text) noexcept;
  Failure& with(const char* name, const char* text) noexcept {
    return with(name, std::string_view(text == nullptr ? "" : text));
  }
  Failure& at(CallSite site) noexcept;

  [[nodiscard]] ErrorCode code() const noexcept { return code_; }
  [[nodiscard]] CallSite site() const noexcept { return site_; }

  /// The field's value; nothing if there is no such field or if it is of the other kind.
  [[nodiscard]] std::optional<std::uint64_t> number(std::string_view name) const noexcept;
  [[nodiscard]] std::optional<std::string_view> string(std::string_view name) const noexcept;

  /// Fields in the order they were added, for logs and bindings.
  struct Field {
    std::string_view name;
    Unit unit;
    std::uint64_t number;   // signed_count: the bits of an int64_t
    std::string_view text;  // Unit::text only
  };
  [[nodiscard]] std::size_t field_count() const noexcept { return count_; }
  [[nodiscard]] Field field(std::size_t index) const noexcept;

  /// The sentence with its placeholders filled. Writes at most `capacity` bytes including the
  /// closing zero, cut at a character boundary, and returns the length written.
  std::size_t render(char* buffer, std::size_t capacity) const noexcept;
  [[nodiscard]] std::string text() const;

 private:
  // Field texts live in text_; their value holds offset << 32 | length. The last bytes are for the
  // "..." of a text that found no room at all.
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

static_assert(std::is_trivially_copyable_v<Failure>, "a refusal must cost no heap and no thought");
static_assert(sizeof(Failure) <= 544, "every Result is this large");

/// The interface of everything Tern throws.
class TERN_EXPORT Error {
 public:
  static constexpr std::size_t max_text_bytes = 640;
  static constexpr std::size_t max_site_bytes = 192;

  virtual ~Error();

  [[nodiscard]] ErrorCode code() const noexcept { return failure_.code(); }
  [[nodiscard]] const Failure& failure() const noexcept { return failure_; }
  /// The sentence.
  [[nodiscard]] const char* text() const noexcept { return text_.data() + site_bytes_; }

 protected:
  explicit Error(const Failure& failure) noexcept;
  Error(const Error&) = default;
  Error& operator=(const Error&) = default;

  /// "file:line: " of the call if it is known, and the sentence: what() of each exception. Of a
  /// path that is too long, the end is kept.
  [[nodiscard]] const char* site_and_text() const noexcept { return text_.data(); }

 private:
  Failure failure_;
  std::uint16_t site_bytes_ = 0;
  // Inside the exception rather than on the heap: copying must not throw, and bad_alloc must work
  // when nothing can be allocated.
  std::array<char, max_site_bytes + max_text_bytes> text_;
};

/// What the exception classes share: an Error that is also a `Base`.
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

// Classes rather than other names of a template: the runtime prints the name of an exception that
// nobody caught.
#define TERN_CODE(code, name, base)                                    \
  class TERN_EXPORT name : public ErrorAnd<base> {                     \
   public:                                                             \
    explicit name(const Failure& failure) : ErrorAnd<base>(failure) {} \
  };
TERN_FOR_EACH_ERROR_CODE(TERN_CODE)
#undef TERN_CODE

/// Throws the exception class of the failure's code.
[[noreturn]] TERN_EXPORT void raise(const Failure& failure);
/// The same, at `site` if the failure does not know its own.
[[noreturn]] TERN_EXPORT void raise(const Failure& failure, CallSite site);

}  // namespace tern
