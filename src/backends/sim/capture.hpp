// A Capture is the work that streams of a simulated device submit between the begin and the end of
// a graph capture. Captures are the open captures of a device.
//
// A capture keeps the calls in the order in which the program made them. Every captured stream is a
// lane; lane 0 is the stream on which the capture began. The calls of one lane run in order. Lanes
// are ordered only by waits for records of the capture, so submitting the calls again, each lane on
// a stream of its own, gives exactly the order that was captured.
//
// Both know nothing about memory, and run nothing. Not thread-safe.

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "tern/core/call_site.hpp"
#include "tern/core/result.hpp"
#include "tern/core/tag.hpp"
#include "tern/detail/device/backend.hpp"

namespace tern::sim {

struct CapturedCall {
  // A note is not work for the device: it tells the checker about a block of a pool.
  enum class Kind : std::uint8_t { work, note, record, wait };
  Kind kind = Kind::work;
  std::size_t lane = 0;
  std::size_t record = 0;  // number of the record, for a record and a wait
  CallSite site = {};
  Tag tag = {};
  /// Submits the work, or makes the note, in the order of the stream of the submission. Null for a
  /// note that was taken back.
  std::function<Result<void>(const Submission&)> submit = {};
};

/// What a capture has captured.
struct CapturedWork {
  std::vector<CapturedCall> calls;
  std::size_t lane_count = 0;
  std::size_t record_count = 0;
};

class Capture {
 public:
  /// Begins on a stream, by its number in the simulation.
  explicit Capture(std::size_t stream) { lanes_.push_back({stream, 0, {}}); }

  /// The stream on which the capture began.
  [[nodiscard]] std::size_t origin() const noexcept { return lanes_.front().stream; }
  [[nodiscard]] std::optional<std::size_t> lane_of(std::size_t stream) const noexcept;
  [[nodiscard]] bool is_over() const noexcept { return is_over_; }
  [[nodiscard]] bool is_invalid() const noexcept { return is_invalid_; }
  /// An illegal call was made: the capture can only be ended.
  void invalidate() noexcept { is_invalid_ = true; }
  void end() noexcept { is_over_ = true; }

  void add_work(std::size_t lane, CallSite site, Tag tag,
                std::function<Result<void>(const Submission&)> submit);
  /// Returns the number of the record.
  std::size_t add_record(std::size_t lane, CallSite site);
  void add_wait(std::size_t lane, std::size_t record, CallSite site);
  /// Adds the beginning of a pool's block.
  void add_block(std::size_t lane, std::uint64_t generation, CallSite site, Tag tag,
                 std::function<Result<void>(const Submission&)> note);
  /// Adds the end of a block. Returns false if the block did not begin in the capture.
  [[nodiscard]] bool end_block(std::size_t lane, std::uint64_t generation, CallSite site,
                               std::function<Result<void>(const Submission&)> note);
  /// Removes the beginning of a block that has not ended, and returns it. The block outlives the
  /// capture, or ends outside of it, so it begins once, and not at each launch.
  [[nodiscard]] std::optional<CapturedCall> take_block(std::uint64_t generation);
  /// Does the same for all blocks, in order.
  [[nodiscard]] std::vector<CapturedCall> take_blocks();
  /// Returns the stream of a lane.
  [[nodiscard]] std::size_t stream_of(std::size_t lane) const noexcept {
    return lanes_[lane].stream;
  }
  /// Adds a lane for a stream and returns its number.
  std::size_t join(std::size_t stream);

  /// Returns whether all work is ordered before the end of lane 0.
  [[nodiscard]] bool is_joined() const noexcept;
  [[nodiscard]] CapturedWork take() noexcept;

 private:
  /// How many calls of each lane are ordered before a point. Missing entries are 0.
  using Clock = std::vector<std::size_t>;
  struct Lane {
    std::size_t stream = 0;
    std::size_t work_count = 0;
    Clock knows = {};  // of the other lanes
  };
  [[nodiscard]] static std::size_t at(const Clock& clock, std::size_t lane) noexcept {
    return lane < clock.size() ? clock[lane] : 0;
  }

  std::vector<Lane> lanes_;
  std::vector<Clock> records_;
  std::vector<CapturedCall> calls_;
  std::map<std::uint64_t, std::size_t> open_blocks_;  // the number of the call, by generation
  bool is_invalid_ = false;
  bool is_over_ = false;
};

class Captures {
 public:
  [[nodiscard]] bool empty() const noexcept { return open_.empty(); }
  [[nodiscard]] std::shared_ptr<Capture> find(std::size_t stream) const noexcept;
  void begin(std::size_t stream) { open_.push_back(std::make_shared<Capture>(stream)); }
  /// Ends a capture: its streams are not captured any more.
  void end(Capture& capture) noexcept;
  [[nodiscard]] const std::vector<std::shared_ptr<Capture>>& open() const noexcept { return open_; }

 private:
  std::vector<std::shared_ptr<Capture>> open_;
};

}  // namespace tern::sim
