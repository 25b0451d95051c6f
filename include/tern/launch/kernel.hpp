// A Kernel is code that runs on a device. It is launched with arguments that declare how the kernel
// uses them.
//
//   Kernel kernel = Kernel::from_source(gpu, text, "saxpy");
//   kernel.launch(stream, elements(n), in(x), inout(y), 2.0f);
//
// A kernel comes from a portable text (launch/kernel_text.hpp), which runs on every device; from a
// C++ function (host, sim); from text in the language of the device (OpenCL; CUDA if a run-time
// compiler is installed); or from a compiled image (CUDA). Keep the Kernel to launch it again. Launches are the same on all devices. A launch checks
// the number, types and devices of the arguments, queues the waits that the declared uses need,
// submits the kernel, and records the uses. If a launch fails, nothing was submitted and nothing is
// recorded. Everything that can be checked is checked before the first wait is queued.
//
// A Kernel is a handle: copies refer to the same kernel. A handle keeps the device open. The kernel
// is unloaded after the last handle is destroyed and all launches are done, without making the host
// wait. Several threads may launch one kernel. Each x() throws what try_x() returns.

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
#include "tern/core/result.hpp"
#include "tern/detail/core/visibility.hpp"
#include "tern/detail/launch/function_kernel.hpp"
#include "tern/detail/launch/launch_extent.hpp"
#include "tern/device/device.hpp"
#include "tern/device/mark.hpp"
#include "tern/device/operations.hpp"
#include "tern/device/stream.hpp"
#include "tern/launch/argument.hpp"
#include "tern/launch/kernel_text.hpp"

namespace tern {

struct KernelState;

/// Returns the size of a launch with one thread for each of `count` elements. If no block size is
/// given, a size that suits the kernel is used. The last block may have more threads than elements
/// are left, so pass the count to the kernel as well.
[[nodiscard]] constexpr Elements elements(std::uint64_t count,
                                          std::uint32_t block_threads = 0) noexcept {
  return {count, block_threads};
}
/// Returns the size of a launch with one thread for each element of the arguments. For portable
/// element kernels and reductions (launch/kernel_text.hpp), which know their arrays.
[[nodiscard]] constexpr Elements elements() noexcept { return {Elements::of_arguments, 0}; }

/// A handle of a loaded kernel.
class TERN_EXPORT Kernel {
 public:
  /// The largest number of arguments of a launch.
  static constexpr std::size_t max_arguments = KernelInfo::max_parameters;

  /// Creates an empty handle. Launching it fails with invalid_argument.
  Kernel() noexcept = default;

  // --- Create a kernel. Fails with unsupported if the device does not take this form, with
  // not_found if there is no such entry (the failure lists the entries that exist), and with the
  // output of the compiler if the text or image is wrong. Loading may wait for the compiler.

  /// Loads a kernel from any form that the device accepts.
  [[nodiscard]] static Result<Kernel> try_load(const Device& device, const KernelSource& source,
                                               CallSite site = CallSite::here()) noexcept;
  [[nodiscard]] static Kernel load(const Device& device, const KernelSource& source,
                                   CallSite site = CallSite::here()) {
    return try_load(device, source, site).value();
  }

  /// Makes a kernel of a function, or of a lambda without captures. One call processes the whole
  /// grid. The function takes the kernel's parameters: View<const T> for in(), View<T> for out()
  /// and inout(), and values; or it takes a KernelCall. It must not throw.
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

  /// Loads a portable kernel, on any device. Fails with invalid_argument if the text is wrong, with
  /// the line and the column, and with unsupported if a compiler is needed and missing.
  [[nodiscard]] static Result<Kernel> try_from_text(const Device& device, const KernelText& text,
                                                    CallSite site = CallSite::here()) noexcept;
  [[nodiscard]] static Kernel from_text(const Device& device, const KernelText& text,
                                        CallSite site = CallSite::here()) {
    return try_from_text(device, text, site).value();
  }

  /// Compiles the text on the device. `options` are the options of the device's compiler.
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

  /// Loads PTX or a cubin.
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

  // --- Queries

  /// Returns false for an empty handle.
  [[nodiscard]] explicit operator bool() const noexcept { return state_ != nullptr; }
  /// Returns the name for reports: the entry, or the name that from_function() got. Empty for an
  /// empty handle.
  [[nodiscard]] std::string_view name() const noexcept;
  /// Returns the device, or an empty Device for an empty handle.
  [[nodiscard]] const Device& device() const noexcept;
  /// Returns what the device knows about the kernel. For a typed function, this includes its
  /// parameters.
  [[nodiscard]] const KernelInfo& info() const noexcept;
  /// Returns whether the kernel declares what it does to its parameters, as a portable text and a
  /// typed C++ function do. Then a launch takes memory without in(), out() and inout().
  [[nodiscard]] bool declares_parameters() const noexcept;
  /// Returns the type of a value that the kernel declares as its parameter `index`. Returns nullopt
  /// for memory, and for kernels that do not declare their parameters.
  [[nodiscard]] std::optional<DType> value_type(std::size_t index) const noexcept;
  /// Returns the driver's handle, for launches that Tern does not order. Valid as long as the
  /// kernel.
  [[nodiscard]] NativeKernel native() const noexcept;
  friend bool operator==(const Kernel& a, const Kernel& b) noexcept { return a.state_ == b.state_; }

  // --- Launch

  /// Launches the kernel and returns the mark of the launch. A launch with zero elements, blocks or
  /// threads checks its arguments and does nothing else. Fails with
  /// - invalid_argument, device_mismatch, stream_misuse;
  /// - capacity or unsupported for too many arguments;
  /// - shape_mismatch, size_mismatch, type_mismatch or misaligned, if the kernel's parameters are
  ///   known;
  /// - the failures of a use of a buffer (read_only, never_written, not_allocated and others);
  /// - the failures of the driver's launch.
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
  /// Like above, with the grid and the block given as sizes along three axes.
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
  /// Like try_launch(), for arguments that are known only at run time.
  Result<Mark> try_launch_with(LaunchStream on, const LaunchExtent& extent,
                               std::span<const LaunchArgument> arguments) const noexcept;

 private:
  explicit Kernel(std::shared_ptr<KernelState> state) noexcept : state_(std::move(state)) {}

  template <class... Parameters>
  [[nodiscard]] static Result<Kernel> try_from_typed(const Device& device, std::string_view name,
                                                     void (*function)(Parameters...),
                                                     CallSite site) noexcept {
    using Typed = FunctionKernel<void (*)(Parameters...)>;
    static_assert(sizeof...(Parameters) <= max_arguments,
                  "a launch cannot have this many arguments");
    const DeclaredParameter declared[] = {Typed::template declare<Parameters>()...,
                                          DeclaredParameter{}};
    return try_declare(
        device, {.entry = name, .body = Typed::run, .context = reinterpret_cast<void*>(function)},
        std::span(declared).first(sizeof...(Parameters)), site);
  }
  /// Loads a kernel and, for a typed function, records the declared parameters.
  [[nodiscard]] static Result<Kernel> try_declare(
      const Device& device, const KernelSource& source,
      std::optional<std::span<const DeclaredParameter>> typed, CallSite site) noexcept;

  std::shared_ptr<KernelState> state_;
};

/// Unloads kernels whose handles are destroyed and whose launches are done. Returns how many
/// kernels are still waiting. Loading or destroying a kernel does this too.
TERN_EXPORT std::size_t poll_kernels() noexcept;

}  // namespace tern
