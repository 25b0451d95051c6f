// A Kernel is code that runs on a device, launched with arguments that say what they are for.
//
// It comes from a C++ function (host, sim), from text that the device compiles (OpenCL; CUDA where
// there is a run-time compiler) or from a compiled image (CUDA). From there on all devices are
// alike: launch(stream, size, in(a), out(b), inout(c), 2.0f) checks number, types and device of the
// arguments, queues the waits that the declared uses need, submits, and leaves the uses on record.
// If anything is refused, nothing was submitted, no wait was queued for an argument that could have
// been found wrong before, and nothing is on record.
//
// A Kernel is a handle: copies are the same kernel. It keeps its device open, and is unloaded when
// the last copy is gone and its launches are done, without making the host wait. Each x() throws
// what try_x() returns. Thread-safe, as far as one object is not changed meanwhile.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>

#include "tern/buffer/view.hpp"
#include "tern/core/call_site.hpp"
#include "tern/core/export.hpp"
#include "tern/core/result.hpp"
#include "tern/device/backend.hpp"
#include "tern/device/device.hpp"
#include "tern/device/mark.hpp"
#include "tern/device/stream.hpp"
#include "tern/launch/argument.hpp"

namespace tern {

struct KernelState;

/// Along three axes; one that is left out is 1.
struct Extent3 {
  constexpr Extent3(std::uint32_t along_x, std::uint32_t along_y = 1,
                    std::uint32_t along_z = 1) noexcept
      : x(along_x), y(along_y), z(along_z) {}
  std::uint32_t x, y, z;
};

/// A thread for each of so many elements, in blocks of what suits the kernel unless one is named.
/// The last block may have threads to spare, so the kernel is told the number too.
struct Elements {
  std::uint64_t count = 0;
  std::uint32_t block_threads = 0;
};
[[nodiscard]] constexpr Elements elements(std::uint64_t count,
                                          std::uint32_t block_threads = 0) noexcept {
  return {count, block_threads};
}

/// How large a launch is, said in either way.
class LaunchExtent {
 public:
  constexpr LaunchExtent(const LaunchSize& size) noexcept : size_(size) {}
  constexpr LaunchExtent(Elements count) noexcept : elements_(count), counts_elements_(true) {}

  /// With blocks of `suitable` threads where nobody named another number. Refused as
  /// LaunchSize::try_for_elements.
  [[nodiscard]] Result<LaunchSize> try_size(std::uint32_t suitable, CallSite site) const noexcept {
    if (!counts_elements_) return size_;
    const std::uint32_t named = elements_.block_threads;
    return LaunchSize::try_for_elements(elements_.count, named != 0 ? named : suitable, site);
  }

 private:
  LaunchSize size_ = {};
  Elements elements_ = {};
  bool counts_elements_ = false;
};

/// The stream of a launch, and the line that launches.
struct LaunchStream {
  LaunchStream(StreamRef on, CallSite from = CallSite::here()) noexcept : stream(on), site(from) {}
  StreamRef stream;
  CallSite site;
};

/// A parameter of a kernel that is a C++ function.
struct DeclaredParameter {
  ArgumentType type = {};
  bool is_memory = false;
  bool is_written = false;
};

/// Calls a function whose parameters are views and values with the arguments of a launch.
template <class Function>
struct FunctionKernel;
template <class... Parameters>
struct FunctionKernel<void (*)(Parameters...)> {
  using Pointer = void (*)(Parameters...);

  template <class P>
  static constexpr DeclaredParameter declare() noexcept {
    using T = std::remove_cvref_t<P>;
    static_assert(std::is_trivially_copyable_v<T> && !std::is_pointer_v<T>,
                  "a kernel has views and values for parameters");
    static_assert(alignof(T) <= alignof(std::max_align_t),
                  "a value is kept where any scalar can be");
    if constexpr (is_view<T>) {
      using Element = std::remove_reference_t<decltype(*std::declval<T>().data())>;
      return {ArgumentType::of<std::remove_const_t<Element>>(), true, !std::is_const_v<Element>};
    } else {
      return {ArgumentType::of<T>(), false, false};
    }
  }
  template <class P>
  static std::remove_cvref_t<P> read(const KernelCall& call, std::size_t index) noexcept {
    using T = std::remove_cvref_t<P>;
    if constexpr (is_view<T>) {
      using Data = decltype(std::declval<T>().data());
      return T(call.argument<Data>(index),
               call.arguments[index].range_bytes / sizeof(typename T::value_type));
    } else {
      return call.argument<T>(index);
    }
  }
  static void run(const KernelCall& call) {
    [&]<std::size_t... index>(std::index_sequence<index...>) {
      reinterpret_cast<Pointer>(call.context)(read<Parameters>(call, index)...);
    }
    (std::index_sequence_for<Parameters...>());
  }
};
template <class... Parameters>
struct FunctionKernel<void (*)(Parameters...) noexcept> : FunctionKernel<void (*)(Parameters...)> {
};

class TERN_EXPORT Kernel {
 public:
  static constexpr std::size_t max_arguments = KernelInfo::max_parameters;

  /// None: a launch is refused with invalid_argument.
  Kernel() noexcept = default;

  // --- Making one. Refused with unsupported where the device does not take that form, with
  // not_found (and the names that exist) for an entry that is not there, and with what the
  // compiler said for text or an image that is not right.

  /// From what the device takes, by its own rules.
  [[nodiscard]] static Result<Kernel> try_load(const Device& device, const KernelSource& source,
                                               CallSite site = CallSite::here()) noexcept;
  [[nodiscard]] static Kernel load(const Device& device, const KernelSource& source,
                                   CallSite site = CallSite::here()) {
    return try_load(device, source, site).value();
  }

  /// A function, or a lambda without captures, which does the whole grid in one call: with the
  /// kernel's parameters, View<const T> for in(), View<T> for out() and inout(), and values; or
  /// with a KernelCall. It must not throw.
  template <class Function>
  [[nodiscard]] static Result<Kernel> try_from_function(
      const Device& device, std::string_view name, Function function,
      CallSite site = CallSite::here()) noexcept requires requires {
    +function;
  }
  {
    const auto pointer = +function;
    if constexpr (std::is_convertible_v<decltype(pointer), KernelBody>) {
      return try_load(device, {.entry = name, .body = pointer}, site);
    } else {
      return try_from_typed(device, name, pointer, site);
    }
  }
  template <class Function>
  [[nodiscard]] static Kernel from_function(const Device& device, std::string_view name,
                                            Function function, CallSite site = CallSite::here()) {
    return try_from_function(device, name, function, site).value();
  }

  /// Compiled by the device; the options are its compiler's.
  [[nodiscard]] static Result<Kernel> try_from_source(const Device& device, std::string_view text,
                                                      std::string_view entry,
                                                      std::string_view options = {},
                                                      CallSite site = CallSite::here()) noexcept {
    return try_load(device, {.entry = entry, .text = text, .options = options}, site);
  }
  [[nodiscard]] static Kernel from_source(const Device& device, std::string_view text,
                                          std::string_view entry, std::string_view options = {},
                                          CallSite site = CallSite::here()) {
    return try_from_source(device, text, entry, options, site).value();
  }

  /// PTX or a cubin.
  [[nodiscard]] static Result<Kernel> try_from_image(const Device& device,
                                                     std::span<const std::byte> image,
                                                     std::string_view entry,
                                                     CallSite site = CallSite::here()) noexcept {
    return try_load(device, {.entry = entry, .image = image}, site);
  }
  [[nodiscard]] static Result<Kernel> try_from_image(const Device& device, std::string_view ptx,
                                                     std::string_view entry,
                                                     CallSite site = CallSite::here()) noexcept {
    return try_from_image(device, std::as_bytes(std::span(ptx.data(), ptx.size())), entry, site);
  }
  template <class Image>
  [[nodiscard]] static Kernel from_image(const Device& device, const Image& image,
                                         std::string_view entry, CallSite site = CallSite::here()) {
    return try_from_image(device, image, entry, site).value();
  }

  // --- What it is

  [[nodiscard]] explicit operator bool() const noexcept { return state_ != nullptr; }
  [[nodiscard]] std::string_view name() const noexcept;
  /// No device for no kernel.
  [[nodiscard]] const Device& device() const noexcept;
  /// What the device knows of it; of a typed function, its parameters too.
  [[nodiscard]] const KernelInfo& info() const noexcept;
  /// For launches that nobody keeps in order. Valid as long as the kernel.
  [[nodiscard]] NativeKernel native() const noexcept;
  friend bool operator==(const Kernel& a, const Kernel& b) noexcept { return a.state_ == b.state_; }

  // --- Launching

  /// The mark stands for the launch. Zero elements, blocks or threads are a launch of nothing: the
  /// arguments are checked, and none is used. Refused with invalid_argument, device_mismatch,
  /// stream_misuse; with capacity and unsupported for too many arguments; with shape_mismatch,
  /// size_mismatch, type_mismatch, misaligned where the kernel's parameters are known; with what a
  /// use of a buffer is refused with (read_only, never_written, not_allocated, ...); as launches
  /// are.
  template <class... Arguments>
  Result<Mark> try_launch(LaunchStream on, const LaunchExtent& extent,
                          const Arguments&... arguments) const noexcept {
    static_assert(sizeof...(Arguments) <= max_arguments,
                  "pass a struct, or several buffers as one");
    if constexpr (sizeof...(Arguments) == 0) {
      return try_launch_with(on, extent, {});
    } else {
      const LaunchArgument packed[] = {as_argument(arguments)...};
      return try_launch_with(on, extent, packed);
    }
  }
  template <class... Arguments>
  Mark launch(LaunchStream on, const LaunchExtent& extent, const Arguments&... arguments) const {
    return try_launch(on, extent, arguments...).value();
  }
  template <class... Arguments>
  Result<Mark> try_launch(LaunchStream on, Extent3 grid, Extent3 block,
                          const Arguments&... arguments) const noexcept {
    return try_launch(on, LaunchSize{{grid.x, grid.y, grid.z}, {block.x, block.y, block.z}},
                      arguments...);
  }
  template <class... Arguments>
  Mark launch(LaunchStream on, Extent3 grid, Extent3 block, const Arguments&... arguments) const {
    return try_launch(on, grid, block, arguments...).value();
  }
  /// The same for arguments that are known at run time.
  Result<Mark> try_launch_with(LaunchStream on, const LaunchExtent& extent,
                               std::span<const LaunchArgument> arguments) const noexcept;

 private:
  explicit Kernel(std::shared_ptr<KernelState> state) noexcept : state_(std::move(state)) {}

  template <class... Parameters>
  [[nodiscard]] static Result<Kernel> try_from_typed(const Device& device, std::string_view name,
                                                     void (*function)(Parameters...),
                                                     CallSite site) noexcept {
    using Typed = FunctionKernel<void (*)(Parameters...)>;
    static_assert(sizeof...(Parameters) <= max_arguments, "a launch cannot have as many arguments");
    const DeclaredParameter declared[] = {Typed::template declare<Parameters>()...,
                                          DeclaredParameter{}};
    return try_declare(
        device, {.entry = name, .body = Typed::run, .context = reinterpret_cast<void*>(function)},
        std::span(declared).first(sizeof...(Parameters)), site);
  }
  [[nodiscard]] static Result<Kernel> try_declare(
      const Device& device, const KernelSource& source,
      std::optional<std::span<const DeclaredParameter>> typed, CallSite site) noexcept;

  std::shared_ptr<KernelState> state_;
};

/// Unloads kernels whose handles are gone and whose launches are done; gives how many still wait.
/// Loading a kernel and dropping one do it too.
TERN_EXPORT std::size_t poll_kernels() noexcept;

}  // namespace tern
