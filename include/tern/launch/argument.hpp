// A LaunchArgument is one argument of a kernel: memory together with what the kernel does to it, or
// a value.
//
//   kernel.launch(stream, elements(n), in(a), out(b), inout(c), 2.0f);
//
// in(x) is read. out(x) is overwritten completely and not read. inout(x) is both, or is overwritten
// in part. The kernel receives the address of the first byte. A kernel that declares its parameters
// (a KernelText, or a C++ function with views) also takes `a`, `b` and `c`. Any other argument is a
// value and is passed as its bytes. A bare pointer is rejected at compile time, because Tern could
// not order the streams that use its memory.
//
// An argument refers to the buffer or value that it was made of and owns nothing. Make it in the
// launch expression. It belongs to one thread.

#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "tern/buffer/array.hpp"
#include "tern/buffer/buffer.hpp"
#include "tern/buffer/growing_array.hpp"
#include "tern/buffer/scalar.hpp"
#include "tern/buffer/view.hpp"
#include "tern/core/access.hpp"
#include "tern/core/dtype.hpp"
#include "tern/detail/buffer/storage.hpp"
#include "tern/detail/core/visibility.hpp"
#include "tern/detail/launch/launch_memory.hpp"

namespace tern {

/// True for View<T>.
template <class T>
inline constexpr bool is_view = false;
template <class T>
inline constexpr bool is_view<View<T>> = true;

/// One argument. Usually made by in(), out(), inout(), or implicitly from a value.
class LaunchArgument {
 public:
  /// Refers to `value`, which must live as long as the argument.
  template <class T>
  [[nodiscard]] static LaunchArgument of_value(const T& value) noexcept {
    static_assert(std::is_trivially_copyable_v<T>, "values are passed as bytes");
    static_assert(!std::is_pointer_v<T> && !std::is_null_pointer_v<T> && !std::is_array_v<T>,
                  "memory is passed as in(x), out(x) or inout(x)");
    static_assert(!is_view<T>,
                  "the launch makes the view: pass in(array), out(array) or inout(array)");
    LaunchArgument made;
    made.value_ = &value;
    made.type_ = ArgumentType::of<T>();
    return made;
  }
  /// Refers to memory of a buffer or an array, which stays where it is.
  [[nodiscard]] static LaunchArgument of_memory(const Buffer& buffer, Access access) noexcept {
    return LaunchArgument(buffer.storage().get(), buffer.offset_bytes(), buffer.size_bytes(),
                          access,
                          {static_cast<std::uint32_t>(size_bytes(buffer.dtype())), buffer.dtype()});
  }
  template <class T>
  [[nodiscard]] static LaunchArgument of_memory(const Array<T>& array, Access access) noexcept {
    if (array.empty()) {
      // A default-constructed or moved-from array has no storage, and is not an empty array.
      return LaunchArgument(nullptr, 0, 0, access, ArgumentType::of<T>(), bool(array.storage()));
    }
    // If the memory was released, there is no offset to compute. The launch reports the error.
    const auto first = reinterpret_cast<std::uintptr_t>(array.storage()->first_byte());
    return LaunchArgument(array.storage().get(), first == 0 ? 0 : array.address() - first,
                          array.size_bytes(), access, ArgumentType::of<T>());
  }

  /// Refers to the elements that a growing array has now, and to the value of a scalar.
  template <class T>
  [[nodiscard]] static LaunchArgument of_memory(const GrowingArray<T>& array,
                                                Access access) noexcept {
    return LaunchArgument(array.empty() ? nullptr : array.storage().get(), 0, array.size_bytes(),
                          access, ArgumentType::of<T>(), array.empty() && array.storage());
  }
  template <class T>
  [[nodiscard]] static LaunchArgument of_memory(const Scalar<T>& scalar, Access access) noexcept {
    return of_memory(scalar.array(), access);
  }

  /// Refers to memory that the launch copies to its device, such as a unified buffer.
  [[nodiscard]] static LaunchArgument of_movable(LaunchMemory* memory, std::size_t offset,
                                                 std::size_t bytes, Access access,
                                                 ArgumentType type) noexcept {
    LaunchArgument made(nullptr, offset, bytes, access, type, memory != nullptr && bytes == 0);
    made.movable_ = bytes == 0 ? nullptr : memory;
    return made;
  }

  /// Returns false for a value.
  [[nodiscard]] bool is_memory() const noexcept { return value_ == nullptr; }
  /// Returns the same memory with the access that the kernel declares, for kernels that do.
  [[nodiscard]] LaunchArgument with_declared_access() const noexcept {
    LaunchArgument made = *this;
    made.is_undeclared_ = true;
    return made;
  }
  /// Returns the same memory with this access.
  [[nodiscard]] LaunchArgument with_access(Access access) const noexcept {
    LaunchArgument made = *this;
    made.access_ = access;
    made.is_undeclared_ = false;
    return made;
  }
  /// Returns whether the kernel has to declare the access.
  [[nodiscard]] bool is_undeclared() const noexcept { return is_undeclared_; }
  /// Returns the type of the value, or of an element of the memory.
  [[nodiscard]] ArgumentType type() const noexcept { return type_; }
  /// Returns what the kernel does to the memory. Has no meaning for a value.
  [[nodiscard]] Access access() const noexcept { return access_; }
  /// Returns the value, or null for memory.
  [[nodiscard]] const void* value() const noexcept { return value_; }
  /// Returns null for a value, an empty array, an empty buffer handle, and for movable() memory.
  [[nodiscard]] Storage* storage() const noexcept { return storage_; }
  /// Returns the first byte and the number of bytes that the kernel uses.
  [[nodiscard]] std::size_t offset_bytes() const noexcept { return offset_; }
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }
  /// Returns null for memory that stays where it is.
  [[nodiscard]] LaunchMemory* movable() const noexcept { return movable_; }
  /// Returns the same argument with the storage that the launch has prepared on its device.
  [[nodiscard]] LaunchArgument on(Storage* storage) const noexcept {
    LaunchArgument made(storage, offset_, bytes_, access_, type_);
    made.is_brought_ = true;
    return made;
  }
  /// Returns whether on() made this argument. If so, the launch can reach the storage, whichever
  /// device it belongs to.
  [[nodiscard]] bool is_brought() const noexcept { return is_brought_; }
  /// Returns whether this is an array without elements, which needs no storage.
  [[nodiscard]] bool is_empty_array() const noexcept { return is_empty_array_; }

 private:
  LaunchArgument() noexcept = default;
  LaunchArgument(Storage* storage, std::size_t offset, std::size_t bytes, Access access,
                 ArgumentType type, bool is_empty_array = false) noexcept
      : storage_(storage),
        offset_(offset),
        bytes_(bytes),
        type_(type),
        access_(access),
        is_empty_array_(is_empty_array) {}

  const void* value_ = nullptr;
  Storage* storage_ = nullptr;
  LaunchMemory* movable_ = nullptr;
  std::size_t offset_ = 0, bytes_ = 0;
  ArgumentType type_;
  Access access_ = Access::read;
  bool is_empty_array_ = false;
  bool is_brought_ = false;
  bool is_undeclared_ = false;
};

/// The kernel reads the memory.
[[nodiscard]] inline LaunchArgument in(const Buffer& buffer) noexcept {
  return LaunchArgument::of_memory(buffer, Access::read);
}
template <class T>
[[nodiscard]] LaunchArgument in(const Array<T>& array) noexcept {
  return LaunchArgument::of_memory(array, Access::read);
}

template <class T>
[[nodiscard]] LaunchArgument in(const GrowingArray<T>& array) noexcept {
  return LaunchArgument::of_memory(array, Access::read);
}
template <class T>
[[nodiscard]] LaunchArgument in(const Scalar<T>& scalar) noexcept {
  return LaunchArgument::of_memory(scalar, Access::read);
}

/// The kernel overwrites all of the memory and reads none of it. The parameter is not const, so
/// passing a `const Array` does not compile.
[[nodiscard]] inline LaunchArgument out(Buffer& buffer) noexcept {
  return LaunchArgument::of_memory(buffer, Access::discard);
}
[[nodiscard]] inline LaunchArgument out(Buffer&& buffer) noexcept { return out(buffer); }
template <class T>
[[nodiscard]] LaunchArgument out(Array<T>& array) noexcept {
  return LaunchArgument::of_memory(array, Access::discard);
}
template <class T>
[[nodiscard]] LaunchArgument out(Array<T>&& array) noexcept {
  return out(array);
}
template <class T>
[[nodiscard]] LaunchArgument out(GrowingArray<T>& array) noexcept {
  return LaunchArgument::of_memory(array, Access::discard);
}
template <class T>
[[nodiscard]] LaunchArgument out(Scalar<T>& scalar) noexcept {
  return LaunchArgument::of_memory(scalar, Access::discard);
}

/// The kernel reads and writes the memory, or writes only a part of it.
[[nodiscard]] inline LaunchArgument inout(Buffer& buffer) noexcept {
  return LaunchArgument::of_memory(buffer, Access::read_write);
}
[[nodiscard]] inline LaunchArgument inout(Buffer&& buffer) noexcept { return inout(buffer); }
template <class T>
[[nodiscard]] LaunchArgument inout(Array<T>& array) noexcept {
  return LaunchArgument::of_memory(array, Access::read_write);
}
template <class T>
[[nodiscard]] LaunchArgument inout(Array<T>&& array) noexcept {
  return inout(array);
}
template <class T>
[[nodiscard]] LaunchArgument inout(GrowingArray<T>& array) noexcept {
  return LaunchArgument::of_memory(array, Access::read_write);
}
template <class T>
[[nodiscard]] LaunchArgument inout(Scalar<T>& scalar) noexcept {
  return LaunchArgument::of_memory(scalar, Access::read_write);
}

/// Converts the arguments of a launch. A LaunchArgument stays as it is. Memory without in(), out()
/// or inout() has the access that the kernel declares. Everything else is a value.
[[nodiscard]] inline const LaunchArgument& as_argument(const LaunchArgument& argument) noexcept {
  return argument;
}
template <class T>
[[nodiscard]] LaunchArgument as_argument(const T& value) noexcept {
  if constexpr (requires { in(value); }) {
    return in(value).with_declared_access();
  } else {
    return LaunchArgument::of_value(value);
  }
}

}  // namespace tern
