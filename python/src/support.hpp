// What the binding files share: call sites, errors, dtypes, shapes and streams as arguments.

#pragma once

#include <nanobind/nanobind.h>

#include <atomic>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include "interpreter_lock.hpp"
#include "launches.hpp"
#include "tern/core/call_site.hpp"
#include "tern/core/dtype.hpp"
#include "tern/core/error.hpp"
#include "tern/core/result.hpp"
#include "tern/core/shape.hpp"
#include "tern/core/tag.hpp"
#include "tern/device/device.hpp"
#include "tern/device/stream.hpp"
#include "tern/memory/resource.hpp"

namespace tern::python {

namespace nb = nanobind;

/// Each file adds its classes and functions to the module.
void add_errors(nb::module_& module);
void add_devices(nb::module_& module);
void add_resources(nb::module_& module);
void add_buffers(nb::module_& module);
void add_unified(nb::module_& module);
void add_exchange(nb::module_& module);
void add_simulation(nb::module_& module);
void add_managed(nb::module_& module);
void add_hints(nb::module_& module);
void add_kernels(nb::module_& module);
void add_tables(nb::module_& module);
void add_audit(nb::module_& module);
void add_arrays(nb::module_& module);
void add_files(nb::module_& module);
void add_growing(nb::module_& module);
void add_pausing(nb::module_& module);
void add_recorder(nb::module_& module);
void add_trace(nb::module_& module);
void add_shared(nb::module_& module);
void add_c_api(nb::module_& module);

/// Returns the line of Python code that called into the module. Frames of the package itself are
/// skipped. The strings of the result are never freed; a process has one copy of each.
[[nodiscard]] CallSite here() noexcept;

/// Sets the Python exception of the error. The fields of the failure become attributes.
void raise_in_python(const Error& error);

/// Raises an error that is both ternmem.Error and TypeError, ValueError or IndexError.
[[noreturn]] void refuse_type(const char* text);
[[noreturn]] void refuse_value(const char* text);
[[noreturn]] void refuse_index(const char* text);
/// Raises a ValueError for an option that is none of the allowed words.
[[noreturn]] void refuse_choice(const char* option, std::string_view given, const char* allowed);
/// The name of the type of an object, for messages.
[[nodiscard]] std::string type_text(nb::handle object);

/// Runs the body without the global interpreter lock, and raises nothing. For queries and
/// destructors: a kernel that is a Python function runs inside of locks of the library and waits
/// for the interpreter lock, so no thread may wait for a lock of the library while it holds that of
/// Python.
template <class Body>
auto released(Body&& body) {
  const LockReleased lock;
  return body();
}

/// Runs the body without the global interpreter lock. The body must not touch Python objects.
/// Raises the exception of a Python kernel that this thread has launched and that failed in the
/// meantime.
template <class Body>
auto without_gil(Body&& body) {
  if (is_in_host_kernel) [[unlikely]]
    refuse_in_kernel();
  if constexpr (std::is_void_v<decltype(body())>) {
    {
      const LockReleased released;
      body();
    }
    check_launches();
  } else {
    std::optional<decltype(body())> result;
    {
      const LockReleased released;
      result.emplace(body());
    }
    try {
      check_launches();
    } catch (...) {
      // The result may own memory, whose release waits for locks of the library.
      const LockReleased released;
      result.reset();
      throw;
    }
    return *std::move(result);
  }
}

/// Releases a handle: without the interpreter lock, and not inside of a kernel. The handle has no
/// Python objects in it.
template <class Handle>
void release(Handle& handle) noexcept {
  if (is_in_kernel) {
    keep_handle(std::make_shared<Handle>(std::move(handle)));
  } else {
    released([&] { const Handle ended(std::move(handle)); });
  }
}

/// Objects of this type are destroyed by release(). Use it before the type is bound.
#define TERN_RELEASE_HANDLE(Type)                                           \
  template <>                                                               \
  inline void nanobind::detail::wrap_destruct<Type>(void* value) noexcept { \
    tern::python::release(*static_cast<Type*>(value));                      \
    std::destroy_at(static_cast<Type*>(value));                             \
  }

/// Returns an object that is made once and never freed. Unlike the initialization of a static
/// variable, making it may release the interpreter lock: threads that meet here do not wait for
/// each other, and the object of the first one that is done stays.
template <class Made, class Make>
Made& made_once(std::atomic<Made*>& kept, Make&& make) {
  if (Made* const known = kept.load(std::memory_order_acquire)) return *known;
  auto* const fresh = new Made(make());
  Made* other = nullptr;
  if (kept.compare_exchange_strong(other, fresh, std::memory_order_acq_rel)) return *fresh;
  return *other;
}

// --- Arguments

/// Returns the dtype that a NumPy dtype, a scalar type or a name means. Raises TypeError for
/// structured types, foreign byte orders and types that Tern does not have.
[[nodiscard]] DType dtype_of_object(nb::handle object);
/// Returns the NumPy dtype. NumPy knows bf16 and fp8 only if ml_dtypes is installed; without it,
/// returns the name.
[[nodiscard]] nb::object object_of_dtype(DType dtype);
/// Returns whether NumPy has the dtype.
[[nodiscard]] bool numpy_has(DType dtype);
/// Returns the element format of the buffer protocol, or null if it has none.
[[nodiscard]] const char* format_of(DType dtype) noexcept;
/// Returns the value as an array of the dtype, as NumPy converts it.
[[nodiscard]] nb::object converted(nb::handle value, DType dtype);
/// Returns one element of the dtype, converted from a Python number as NumPy converts it.
[[nodiscard]] Pattern pattern_of(nb::handle value, DType dtype);

/// Returns the text as UTF-8. Lone surrogates, which have no UTF-8 form, are escaped.
[[nodiscard]] std::string escaped_utf8_of(nb::handle text);
/// Returns the repr() of an object, for messages.
[[nodiscard]] std::string repr_of(nb::handle object);
/// Both return a text. Bytes that are not UTF-8 become surrogates, or escapes that can be printed.
[[nodiscard]] nb::str text_of(std::string_view bytes);
[[nodiscard]] nb::str message_of(std::string_view bytes);
/// Returns the integer that an object with __index__ means. Raises TypeError with the text for
/// other objects.
[[nodiscard]] nb::object index_of(nb::handle object, const char* text);

/// Returns the shape that an int or a sequence of ints means. Raises ValueError for negative
/// extents and TypeError for other objects.
[[nodiscard]] Shape shape_of_object(nb::handle object);
[[nodiscard]] nb::tuple tuple_of(const Shape& shape);

/// Returns the kind of memory with this name. Raises ValueError for other texts.
[[nodiscard]] MemoryKind memory_kind_of(const std::string& text);

/// None means no tag.
[[nodiscard]] Tag tag_of(const std::optional<std::string>& text);

/// Returns the device that a Device, a spec or None means. None means the current device
/// (set_device).
[[nodiscard]] Device device_of_object(nb::handle object);

/// A share of a stream. The stream ends with its last share, so no thread ends it while a call of
/// another thread uses it. Shares are made and dropped with the interpreter lock; the last one
/// releases it while the stream ends.
class StreamShare {
 public:
  StreamShare() = default;
  explicit StreamShare(Stream stream) : stream_(std::make_shared<Stream>(std::move(stream))) {}
  StreamShare(const StreamShare&) = default;
  StreamShare(StreamShare&&) = default;
  StreamShare& operator=(StreamShare other) noexcept {
    stream_.swap(other.stream_);
    return *this;
  }
  ~StreamShare() {
    if (stream_.use_count() == 1) release(stream_);
  }
  [[nodiscard]] explicit operator bool() const noexcept { return stream_ != nullptr; }
  [[nodiscard]] StreamRef get() const noexcept { return *stream_; }

 private:
  std::shared_ptr<Stream> stream_;
};

/// A stream argument: a Stream, None, the driver's handle, or an object with __cuda_stream__. A
/// handle is borrowed for the lifetime of this object.
class StreamArgument {
 public:
  /// None means the default stream of the device.
  StreamArgument(nb::handle object, const Device& device);
  [[nodiscard]] StreamRef get() const noexcept { return ref_; }
  /// The object that the caller passed.
  [[nodiscard]] const nb::object& owner() const noexcept { return owner_; }

 private:
  StreamShare share_;
  nb::object owner_;
  StreamRef ref_;
};

/// The module numpy, imported once.
[[nodiscard]] nb::module_ numpy();

}  // namespace tern::python
