// The operands of calls on devices and streams: native handles, options, ranges to copy or
// prefetch, patterns, kernels and their arguments. All types here are plain values.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "tern/core/access.hpp"
#include "tern/core/call_site.hpp"
#include "tern/core/place.hpp"
#include "tern/core/result.hpp"
#include "tern/detail/core/visibility.hpp"
#include "tern/detail/device/operands.hpp"

namespace tern {

namespace language {
struct Program;
}  // namespace language

// Handles of the backend, as opaque words. 0 means none.

/// A stream. `value` is the handle of the driver or the backend.
struct NativeStream {
  std::uintptr_t value = 0;
};
/// An event, with `value` as above.
struct NativeEvent {
  std::uintptr_t value = 0;
};
/// A loaded kernel, with `value` as above.
struct NativeKernel {
  std::uintptr_t value = 0;
};
/// Pages of memory without an address, with `value` as above.
struct NativePages {
  std::uintptr_t value = 0;
};
/// An instantiated graph, with `value` as above.
struct NativeGraph {
  std::uintptr_t value = 0;
};

/// Options of a new stream.
struct StreamOptions {
  /// The stream is ordered with the default stream of the device, like a blocking stream of CUDA.
  bool blocking = false;
  /// Streams with lower values run first, if the device has priorities. Ignored otherwise.
  int priority = 0;
  /// The name for reports. Copied, and cut at 31 bytes.
  std::string_view name = {};
};

/// A copy of `height` rows of `width_bytes` from `source` to `destination`. The rows start
/// `source_pitch_bytes` and `destination_pitch_bytes` apart. The width is at most either pitch.
struct Copy2D {
  void* destination = nullptr;
  std::size_t destination_pitch_bytes = 0;
  const void* source = nullptr;
  std::size_t source_pitch_bytes = 0;
  std::size_t width_bytes = 0;
  std::size_t height = 0;
};

/// One copy of a batch: `bytes` from `source` to `destination`.
struct CopyRange {
  void* destination = nullptr;
  const void* source = nullptr;
  std::size_t bytes = 0;
};

/// Access rights of a device to mapped pages.
enum class PageAccess : std::uint8_t { none, read, read_write };

/// Hints for managed memory, as in CUDA's cuMemAdvise.
enum class Advice : std::uint8_t {
  set_read_mostly,           // every reader may have its own copy of a page
  unset_read_mostly,         // a page has one copy
  set_preferred_location,    // pages should stay in a place
  unset_preferred_location,  // pages move to whoever touches them
  set_accessed_by,           // a place keeps a mapping, so that its accesses do not fault
  unset_accessed_by,         // the place may fault
};

/// A function that a stream calls once, in stream order. It must not call the device and must not
/// throw.
using HostFunction = void (*)(void* context);

/// The `grid` of a launch in blocks, a `block` in threads, and `shared_bytes` of dynamic shared
/// memory per block.
struct LaunchSize {
  std::uint32_t grid[3] = {1, 1, 1};
  std::uint32_t block[3] = {1, 1, 1};
  std::uint32_t shared_bytes = 0;

  /// The block size to use if nothing better is known.
  static constexpr std::uint32_t usual_block = 256;

  /// Returns a one-dimensional size with one thread per element. The last block may have unused
  /// threads. Zero elements need zero blocks, and launching them does nothing. Fails with
  /// size_overflow above 2^31 - 1 blocks, and with invalid_argument if `block_threads` is 0.
  [[nodiscard]] TERN_EXPORT static Result<LaunchSize> try_for_elements(
      std::uint64_t count, std::uint32_t block_threads = usual_block,
      CallSite site = CallSite::here()) noexcept;
  [[nodiscard]] static LaunchSize for_elements(std::uint64_t count,
                                               std::uint32_t block_threads = usual_block,
                                               CallSite site = CallSite::here()) {
    return try_for_elements(count, block_threads, site).value();
  }
};

/// One argument of a launch: `value_bytes` at `value`, passed by value. If they are an address,
/// also the range that the kernel accesses there (`range_bytes` at `range_address`), and the
/// `access`.
struct KernelArgument {
  const void* value = nullptr;
  std::size_t value_bytes = 0;
  void* range_address = nullptr;
  std::size_t range_bytes = 0;
  Access access = Access::read;
};

/// The launch as a kernel written in C++ sees it. One call runs the whole grid, unless the source of
/// the kernel sets `splits`. Then each call runs some of the blocks, and several threads call.
struct KernelCall {
  LaunchSize size = {};  // of the launch
  std::span<const KernelArgument> arguments = {};
  void* context = nullptr;  // KernelSource::context
  std::uint64_t first_block = 0;  // blocks are numbered along x, then y, then z
  std::uint64_t block_count = 0;

  /// Returns the value of an argument. Neither the index nor the type is checked.
  template <class T>
  [[nodiscard]] const T& argument(std::size_t index) const noexcept {
    return *static_cast<const T*>(arguments[index].value);
  }
};
/// A kernel written in C++. It must not call the device and must not throw.
using KernelBody = void (*)(const KernelCall& call);

/// The source of a kernel: a C++ function (host, sim), a compiled image (cuda), or source text
/// (opencl, and cuda with a run-time compiler), or a portable text, which every backend takes.
struct KernelSource {
  std::string_view entry = {};  // the name of the function in the image or the text; for reports
  KernelBody body = nullptr;    // the C++ function
  void* context = nullptr;      // passed to the body; must outlive the kernel
  std::span<const std::byte> image = {};
  std::string_view text = {};
  /// Compiler options for the text, separated by blanks.
  std::string_view options = {};
  /// The parsed portable text. A host device runs `body` if there is one, and compiles the text
  /// otherwise. All other devices translate the text.
  std::shared_ptr<const language::Program> program = {};
  bool is_combine = false;  // loads the second pass of a reduction
  bool splits = false;      // the body runs the blocks that the call names
};

}  // namespace tern
