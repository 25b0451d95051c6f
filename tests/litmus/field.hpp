// A Field runs litmus programs on a device. It keeps memory and kernels from run to run.
//
// A run sets all locations to their initial values, creates the streams and events, submits the
// steps in order, waits for everything, and reads the words of the outcome. The host waits for the
// device before and after, so runs do not overlap. To provoke rare outcomes, a run can stall some
// streams while the rest is submitted. The stall ends before any step that may make the host wait
// for these streams. For one thread; must be destroyed before its device.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "litmus/kernels.hpp"
#include "litmus/program.hpp"
#include "support/gate.hpp"
#include "tern/device/device.hpp"
#include "tern/device/event.hpp"
#include "tern/device/stream.hpp"

namespace tern::test::litmus {

/// How a set of streams is kept from starting.
struct Stall {
  enum class By : std::uint8_t { nothing, gate, fill, kernel };
  By by = By::nothing;
  std::uint32_t streams = 0;  // bit i: stream i of the program
};

/// Returns the stall for one of many runs: first none, then every set of streams with every kind of
/// stall in turn.
[[nodiscard]] Stall stall_of_run(const Program& program, std::uint64_t run);

class Field {
 public:
  explicit Field(const Device& device);
  Field(const Field&) = delete;
  Field& operator=(const Field&) = delete;
  ~Field();

  /// Returns why the device cannot run the program, or nullopt.
  [[nodiscard]] static std::optional<std::string> lacks(const Device& device,
                                                        const Program& program);
  /// Throws the errors of the device.
  Outcome run(const Program& program, const Stall& stall = {});

 private:
  static constexpr std::size_t slot_bytes = 256, slots = 32, arena_bytes = slot_bytes * slots;
  static constexpr std::size_t stall_bytes = std::size_t{4} << 20, max_streams = 8;

  struct Objects;

  void place(const Program& program);
  void set_first_values(const Program& program);
  /// Returns the kind of stall, or a fill if the device does not support that kind.
  [[nodiscard]] Stall::By means_of(const Stall& stall) const;
  void hold_back(const Program& program, const Stall& stall, Objects& objects);
  void let_others_go_ahead(const Program& program, const Stall& stall, Objects& objects);
  void execute(const Program& program, const Step& step, Objects& objects);
  Outcome read(const Program& program);
  void give_back(const Program& program);

  [[nodiscard]] std::byte* at(const Words& words) const;
  [[nodiscard]] Kernels& kernels();
  /// Tells a simulated device how the host uses memory that it can access.
  void announce(const Program& program, const Words& words, bool writes) const;

  Device device_;
  bool is_sim_;
  Stream setup_;
  std::byte* device_arena_ = nullptr;
  std::byte* pinned_arena_ = nullptr;  // the locations that programs call pinned
  std::byte* image_ = nullptr;  // the second half of the arena: staging for the device's memory
  std::byte* managed_arena_ = nullptr;  // allocated when a program needs it
  std::byte* stall_scratch_ = nullptr;
  std::vector<std::uint32_t> pageable_arena_;
  /// Used instead of pinned memory if the device has none. Copies of ordinary memory do not block
  /// on such a device.
  std::vector<std::uint32_t> pinned_stand_in_;
  std::vector<std::uint32_t> locals_;
  std::optional<Kernels> kernels_;
  /// The address of each location of the running program; null for a block that is not allocated.
  std::vector<std::byte*> addresses_;
  /// Blocks and slabs that the host allocated. The host frees them at the end of the run.
  std::vector<bool> is_host_released_;
  std::uint64_t generation_ = 0;
};

}  // namespace tern::test::litmus
