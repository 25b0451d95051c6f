// A lane: a stream of the driver's with pinned slots that only its work uses.
//
// What it holds is made on first use and given back by close(); in between no call makes or frees
// anything. A slot's event stands for the last transfer from or to it, so the host knows when it
// may write the slot again; work of the lane's own stream needs no such knowledge. One thread at a
// time.

#pragma once

#include <array>
#include <cstddef>

#include "backends/cuda/driver_table.hpp"
#include "backends/cuda/staged_copy.hpp"

namespace tern::cuda {

struct StagingSlot {
  std::byte* memory = nullptr;
  CUevent event = nullptr;
  /// The event has been recorded, and the host has not seen it complete.
  bool is_pending = false;
};

class StagingLane {
 public:
  static constexpr std::size_t max_slots = 2;

  [[nodiscard]] bool is_open() const noexcept { return stream_ != nullptr; }
  [[nodiscard]] CUstream stream() const noexcept { return stream_; }
  [[nodiscard]] StagingSlot& slot(std::size_t index) noexcept { return slots_[index]; }
  [[nodiscard]] std::size_t held_bytes() const noexcept { return held_bytes_; }

  /// Makes what the lane needs; nothing remains of it after a failure.
  [[nodiscard]] StagingFailure open(const DriverTable& driver, std::size_t slot_count,
                                    std::size_t slot_bytes) noexcept;
  /// Gives all of it back. The lane's work is complete. Failures are of no use here.
  void close(const DriverTable& driver) noexcept;

  /// The slot's event stands for all work of the lane so far.
  [[nodiscard]] StagingFailure record(const DriverTable& driver, StagingSlot& slot) const noexcept;
  /// Returns when the slot's last transfer is complete.
  [[nodiscard]] StagingFailure wait(const DriverTable& driver, StagingSlot& slot) const noexcept;
  /// Whether all transfers are complete. What the driver cannot answer is not.
  [[nodiscard]] bool is_idle(const DriverTable& driver) noexcept;
  /// A call has failed between a transfer and the record that tells when it ends.
  void set_unsettled(bool is) noexcept { is_unsettled_ = is; }
  [[nodiscard]] bool is_unsettled() const noexcept { return is_unsettled_; }
  /// Returns when nothing of the lane is under way, and says whether that is so. If not, the host
  /// knows nothing of the slots, and must not write them before another settle() succeeds.
  [[nodiscard]] bool settle(const DriverTable& driver) noexcept;

 private:
  CUstream stream_ = nullptr;
  std::array<StagingSlot, max_slots> slots_ = {};
  std::byte* memory_ = nullptr;
  std::size_t held_bytes_ = 0;
  bool is_unsettled_ = false;
};

}  // namespace tern::cuda
