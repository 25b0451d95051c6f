// A Graph is work that was captured once and can be launched many times. A GraphCapture captures
// it.
//
//   GraphCapture capture(stream);                // work on the stream is captured and does not run
//   scale.launch(stream, elements(n), inout(x), 2.0f);
//   add.launch(stream, elements(n), in(x), inout(y));
//   Graph graph = capture.end();
//   graph.launch(stream);                        // runs both, after earlier uses of x and y
//
// Another stream of the device joins the capture when it waits for an Event that was recorded in
// the capture. Before the end, the first stream must wait for an Event of every stream that joined.
// While a stream is being captured (try_is_capturing()), the host cannot wait for the stream or
// query it, no other stream can wait for its marks, and it can wait for no mark. A call that breaks
// these rules fails with stream_misuse and may invalidate the capture. end() then fails. A capture
// that is destroyed without end() is discarded, and its streams can be used again.
//
// A graph uses the addresses that were captured. Launches of kernels in the capture declare their
// buffers as usual. The graph keeps these buffers and kernels alive, and each of its launches
// declares their uses: it checks the buffers, makes its stream wait for their earlier uses, and
// records the uses. For other calls of the capture (raw copies and fills of a stream), declare the
// memory with in(), out() and inout() at each launch. Keep this memory, and the contexts of host
// functions, until the last launch is done. Do not capture copies and fills of a Buffer or an
// Array: they order themselves only once, during the capture.
//
// A launch starts after all earlier work of its stream and after earlier launches of the graph. On
// a simulated device, the checker treats each launch like work that is submitted directly, and
// its reports name the lines of the captured calls.
//
// A capture may own a resource, such as a PoolResource that nothing else uses. Buffers that the
// program creates and destroys during the capture can then use its memory. The graph releases the
// resource after its last launch is done.
//
// A Graph is a handle: copies refer to the same graph. A handle keeps the device open. Destroying
// the last handle does not wait for launches, unless the graph owns a resource. Several threads may
// launch one graph. A GraphCapture belongs to one thread. Each x() throws what try_x() returns.

#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>

#include "tern/core/call_site.hpp"
#include "tern/core/result.hpp"
#include "tern/detail/core/visibility.hpp"
#include "tern/detail/launch/launch_extent.hpp"
#include "tern/device/device.hpp"
#include "tern/device/mark.hpp"
#include "tern/device/operations.hpp"
#include "tern/device/stream.hpp"
#include "tern/launch/argument.hpp"
#include "tern/memory/resource.hpp"

namespace tern {

class CapturedUses;
struct GraphState;

/// A handle of a graph.
class TERN_EXPORT Graph {
 public:
  /// Creates an empty handle. Launching it fails with invalid_argument.
  Graph() noexcept = default;

  /// Returns false for an empty handle.
  [[nodiscard]] explicit operator bool() const noexcept { return state_ != nullptr; }
  /// Returns the device, or an empty Device for an empty handle.
  [[nodiscard]] const Device& device() const noexcept;
  /// Returns the driver's handle, for launches that Tern does not order. Valid as long as the
  /// graph.
  [[nodiscard]] NativeGraph native() const noexcept;
  friend bool operator==(const Graph& a, const Graph& b) noexcept { return a.state_ == b.state_; }

  /// Launches the graph and returns the mark of the launch. The uses are in(), out() and inout() of
  /// buffers and arrays, in addition to those that were captured. Fails with
  /// - invalid_argument for an empty graph, and for a unified buffer, whose memory may move;
  /// - device_mismatch for a stream or a buffer of another device;
  /// - stream_misuse if the stream accepts no work or is being captured;
  /// - the failures of a use of a buffer (read_only, never_written, not_allocated and others);
  /// - the failures of the driver's launch.
  /// If the launch fails, nothing was submitted and nothing is recorded, except after a violation.
  template <class... Uses>
  Result<Mark> try_launch(LaunchStream on, const Uses&... uses) const noexcept {
    static_assert((std::is_same_v<Uses, LaunchArgument> && ...),
                  "a graph has no parameters: pass in(x), out(x) or inout(x) only");
    if constexpr (sizeof...(Uses) == 0) {
      return try_launch_with(on, {});
    } else {
      const LaunchArgument packed[] = {uses...};
      return try_launch_with(on, packed);
    }
  }
  template <class... Uses>
  Mark launch(LaunchStream on, const Uses&... uses) const {
    return try_launch(on, uses...).value();
  }
  /// Like try_launch(), for uses that are known only at run time.
  Result<Mark> try_launch_with(LaunchStream on,
                               std::span<const LaunchArgument> uses) const noexcept;

 private:
  friend class GraphCapture;
  explicit Graph(std::shared_ptr<GraphState> state) noexcept : state_(std::move(state)) {}

  std::shared_ptr<GraphState> state_;
};

/// A capture in progress.
class TERN_EXPORT GraphCapture {
 public:
  /// Begins to capture the stream. The graph will own `memory`, which may be null. Throws the
  /// failure that try_begin() returns.
  explicit GraphCapture(StreamRef stream, ResourceHandle memory = {},
                        CallSite site = CallSite::here());
  /// Begins to capture the stream. Fails with unsupported if the device has no graphs, and with
  /// stream_misuse if the stream accepts no work, is the default stream, or is already being
  /// captured.
  [[nodiscard]] static Result<GraphCapture> try_begin(StreamRef stream, ResourceHandle memory = {},
                                                      CallSite site = CallSite::here()) noexcept;
  GraphCapture(GraphCapture&& other) noexcept;
  GraphCapture& operator=(GraphCapture&&) = delete;
  /// Discards the captured work if the capture has not ended.
  ~GraphCapture();

  [[nodiscard]] StreamRef stream() const noexcept { return stream_; }
  /// Returns whether end() was not called yet.
  [[nodiscard]] bool is_active() const noexcept { return is_active_; }

  /// Ends the capture and returns the graph. The capture is over even if the call fails. Fails with
  /// stream_misuse if the capture has already ended, if a call has invalidated it, if work of a
  /// stream that joined is not ordered before the end of the first stream, or if the first stream
  /// was destroyed.
  [[nodiscard]] Result<Graph> try_end(CallSite site = CallSite::here()) noexcept;
  [[nodiscard]] Graph end(CallSite site = CallSite::here()) { return try_end(site).value(); }

 private:
  GraphCapture(StreamRef stream, Device device, ResourceHandle memory,
               std::shared_ptr<CapturedUses> uses) noexcept
      : stream_(stream),
        device_(std::move(device)),
        memory_(std::move(memory)),
        uses_(std::move(uses)) {}

  StreamRef stream_;
  Device device_;
  ResourceHandle memory_;
  std::shared_ptr<CapturedUses> uses_;
  bool is_active_ = true;
};

/// Destroys graphs without handles whose launches are done. Returns how many graphs are still
/// waiting. Capturing or destroying a graph does this too.
TERN_EXPORT std::size_t poll_graphs() noexcept;

}  // namespace tern
