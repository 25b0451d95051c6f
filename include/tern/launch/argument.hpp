// A LaunchArgument is one argument of a kernel: memory with what the kernel does there, or a value.
//
// in(x) is read, out(x) is written all over without being read, inout(x) is both. What the kernel
// gets is the address of the first byte. Anything else is a value and goes in as its bytes; a bare
// address does not, because nobody could keep the streams that use it in order.
//
// An argument looks at what it was made of, a value as well as a buffer, for the length of the
// call: make it where it is passed. Not thread-safe, and nothing to share.

#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "tern/buffer/array.hpp"
#include "tern/buffer/buffer.hpp"
#include "tern/buffer/storage.hpp"
#include "tern/buffer/view.hpp"
#include "tern/core/access.hpp"
#include "tern/core/dtype.hpp"
#include "tern/core/export.hpp"
#include "tern/launch/launch_memory.hpp"

namespace tern {

/// What is known of an element or a value: its width, and its dtype if it has one.
struct ArgumentType {
  std::uint32_t bytes = 0;
  DType dtype = DType::void_;

  template <class T>
  [[nodiscard]] static constexpr ArgumentType of() noexcept {
    if constexpr (HasDType<T>) {
      return {sizeof(T), dtype_of<T>()};
    } else {
      return {sizeof(T), DType::void_};
    }
  }
};

template <class T>
inline constexpr bool is_view = false;
template <class T>
inline constexpr bool is_view<View<T>> = true;

class LaunchArgument {
 public:
  /// The value must stay as long as the argument.
  template <class T>
  [[nodiscard]] static LaunchArgument of_value(const T& value) noexcept {
    static_assert(std::is_trivially_copyable_v<T>, "values are passed as bytes");
    static_assert(!std::is_pointer_v<T> && !std::is_null_pointer_v<T> && !std::is_array_v<T>,
                  "memory is passed as in(x), out(x) or inout(x)");
    static_assert(!is_view<T>, "a view is made for the kernel: pass in(array) and so on");
    LaunchArgument made;
    made.value_ = &value;
    made.type_ = ArgumentType::of<T>();
    return made;
  }
  [[nodiscard]] static LaunchArgument of_memory(const Buffer& buffer, Access access) noexcept {
    return LaunchArgument(buffer.storage().get(), buffer.offset_bytes(), buffer.bytes(), access,
                          {static_cast<std::uint32_t>(size_bytes(buffer.dtype())), buffer.dtype()});
  }
  template <class T>
  [[nodiscard]] static LaunchArgument of_memory(const Array<T>& array, Access access) noexcept {
    if (array.empty()) {
      // One that was made by default or moved from is none.
      return LaunchArgument(nullptr, 0, 0, access, ArgumentType::of<T>(), bool(array.storage()));
    }
    // Without memory any more there is no offset in it, and the launch will say so.
    const auto first = reinterpret_cast<std::uintptr_t>(array.storage()->first_byte());
    return LaunchArgument(array.storage().get(), first == 0 ? 0 : array.address() - first,
                          array.bytes(), access, ArgumentType::of<T>());
  }

  /// Memory that comes to the launch's device.
  [[nodiscard]] static LaunchArgument of_movable(LaunchMemory* memory, std::size_t offset,
                                                 std::size_t bytes, Access access,
                                                 ArgumentType type) noexcept {
    LaunchArgument made(nullptr, offset, bytes, access, type, memory != nullptr && bytes == 0);
    made.movable_ = bytes == 0 ? nullptr : memory;
    return made;
  }

  [[nodiscard]] bool is_memory() const noexcept { return value_ == nullptr; }
  /// Of the value, or of an element.
  [[nodiscard]] ArgumentType type() const noexcept { return type_; }
  [[nodiscard]] Access access() const noexcept { return access_; }
  [[nodiscard]] const void* value() const noexcept { return value_; }
  /// None for an empty array, and for a buffer that is none.
  [[nodiscard]] Storage* storage() const noexcept { return storage_; }
  [[nodiscard]] std::size_t offset_bytes() const noexcept { return offset_; }
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }
  /// Null for memory that stays where it is.
  [[nodiscard]] LaunchMemory* movable() const noexcept { return movable_; }
  /// The same argument, now that its memory is there.
  [[nodiscard]] LaunchArgument on(Storage* storage) const noexcept {
    LaunchArgument made(storage, offset_, bytes_, access_, type_);
    made.is_brought_ = true;
    return made;
  }
  /// Did its memory come to the launch? Then the launch reaches it, whose ever it is.
  [[nodiscard]] bool is_brought() const noexcept { return is_brought_; }
  /// An array of no elements, which needs no storage.
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
};

/// The kernel reads it.
[[nodiscard]] inline LaunchArgument in(const Buffer& buffer) noexcept {
  return LaunchArgument::of_memory(buffer, Access::read);
}
template <class T>
[[nodiscard]] LaunchArgument in(const Array<T>& array) noexcept {
  return LaunchArgument::of_memory(array, Access::read);
}

/// The kernel writes all of it, and reads nothing of it. What may be written is no constant, so
/// that a `const Array` is refused by the compiler.
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

/// The kernel reads it and writes it, or writes only some of it.
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

/// What launches make of what they are given.
[[nodiscard]] inline const LaunchArgument& as_argument(const LaunchArgument& argument) noexcept {
  return argument;
}
template <class T>
[[nodiscard]] LaunchArgument as_argument(const T& value) noexcept {
  return LaunchArgument::of_value(value);
}

}  // namespace tern
