// A lane: a driver stream with pinned slots that only its work uses.
//
// Its objects are created on first use and freed by close(); no other call creates or frees
// anything. The event of a slot covers the last transfer from or to the slot, so the host knows
// when it may write the slot again. Work of the lane's own stream needs no such wait. Use by one
// thread at a time.

#pragma once

#include <array>
#include <cstddef>

#include "backends/cuda/driver_table.hpp"
#include "backends/cuda/staged_copy.hpp"

namespace tern::cuda {

struct StagingSlot {
  std::byte* memory = nullptr;
  CUevent event = nullptr;
  /// The event was recorded, and the host has not seen it complete.
  bool is_pending = false;
};

class StagingLane {
 public:
  static constexpr std::size_t max_slots = 2;

  [[nodiscard]] bool is_open() const noexcept { return stream_ != nullptr; }
  [[nodiscard]] CUstream stream() const noexcept { return stream_; }
  [[nodiscard]] StagingSlot& slot(std::size_t index) noexcept { return slots_[index]; }
  [[nodiscard]] std::size_t held_bytes() const noexcept { return held_bytes_; }

  /// Creates the objects of the lane. After a failure nothing remains.
  [[nodiscard]] StagingFailure open(const DriverTable& driver, std::size_t slot_count,
                                    std::size_t slot_bytes) noexcept;
  /// Frees all objects. The work of the lane must be complete. Errors are ignored.
  void close(const DriverTable& driver) noexcept;

  /// Records the event of the slot, which covers all work of the lane so far.
  [[nodiscard]] StagingFailure record(const DriverTable& driver, StagingSlot& slot) const noexcept;
  /// Waits until the last transfer of the slot is complete.
  [[nodiscard]] StagingFailure wait(const DriverTable& driver, StagingSlot& slot) const noexcept;
  /// Returns whether all transfers are complete. Returns false if the driver cannot answer.
  [[nodiscard]] bool is_idle(const DriverTable& driver) noexcept;
  /// Call after a failure between a transfer and the record of its event.
  void set_unsettled(bool is) noexcept { is_unsettled_ = is; }
  [[nodiscard]] bool is_unsettled() const noexcept { return is_unsettled_; }
  /// Waits until the lane is idle and returns whether it is. If not, the state of the slots is
  /// unknown, and the host must not write them before settle() succeeds.
  [[nodiscard]] bool settle(const DriverTable& driver) noexcept;
  /// Like settle(), for a caller whose memory must not be used afterwards: if the driver cannot
  /// wait, queries the stream until it is idle. Returns early only if that fails, too, because then
  /// the device is lost.
  void settle_surely(const DriverTable& driver) noexcept;

 private:
  CUstream stream_ = nullptr;
  std::array<StagingSlot, max_slots> slots_ = {};
  std::byte* memory_ = nullptr;
  std::size_t held_bytes_ = 0;
  bool is_unsettled_ = false;
};

}  // namespace tern::cuda
