// The field a litmus program runs on: a device, and memory and kernels that are kept from run to
// run.
//
// A run sets all locations to their first values, makes the streams and events, submits the steps
// in order, lets everything finish and reads the words the program looks at. The host waits for the
// device before and after, so runs do not meet. To bring rare outcomes about, some streams can be
// kept from starting while the rest is submitted: what they are kept with is opened before any step
// that may make the host wait for them. Confined to one thread; must end before its device.

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

/// What keeps the streams of a set from starting.
struct Stall {
  enum class By : std::uint8_t { nothing, gate, fill, kernel };
  By by = By::nothing;
  std::uint32_t streams = 0;  // bit i: stream i of the program
};

/// The way to stall in one run of many: not at all, then every set of streams by every means in
/// turn.
[[nodiscard]] Stall stall_of_run(const Program& program, std::uint64_t run);

class Field {
 public:
  explicit Field(const Device& device);
  Field(const Field&) = delete;
  Field& operator=(const Field&) = delete;
  ~Field();

  /// Why the device cannot run the program, or nothing.
  [[nodiscard]] static std::optional<std::string> lacks(const Device& device,
                                                        const Program& program);
  /// Throws what the device throws.
  Outcome run(const Program& program, const Stall& stall = {});

 private:
  static constexpr std::size_t slot_bytes = 256, slots = 32, arena_bytes = slot_bytes * slots;
  static constexpr std::size_t stall_bytes = std::size_t{4} << 20, max_streams = 8;

  struct Objects;

  void place(const Program& program);
  void set_first_values(const Program& program);
  /// A fill where the device cannot do what is asked for.
  [[nodiscard]] Stall::By means_of(const Stall& stall) const;
  void hold_back(const Program& program, const Stall& stall, Objects& objects);
  void let_others_go_ahead(const Program& program, const Stall& stall, Objects& objects);
  void execute(const Program& program, const Step& step, Objects& objects);
  Outcome read(const Program& program);
  void give_back(const Program& program);

  [[nodiscard]] std::byte* at(const Words& words) const;
  [[nodiscard]] Kernels& kernels();
  /// Tells a simulated device what the host does with memory it can see.
  void announce(const Program& program, const Words& words, bool writes) const;

  Device device_;
  bool is_sim_;
  Stream setup_;
  std::byte* device_arena_ = nullptr;
  std::byte* pinned_arena_ = nullptr;   // what programs call pinned
  std::byte* image_ = nullptr;          // its second half: what goes to the device, and comes back
  std::byte* managed_arena_ = nullptr;  // made when a program wants it
  std::byte* stall_scratch_ = nullptr;
  std::vector<std::uint32_t> pageable_arena_;
  /// What is called pinned on a device that has none: its copies do not block for ordinary memory.
  std::vector<std::uint32_t> pinned_stand_in_;
  std::vector<std::uint32_t> locals_;
  std::optional<Kernels> kernels_;
  /// Where each location of the running program is; null for a block that is not allocated.
  std::vector<std::byte*> addresses_;
  /// Blocks that were allocated by the host, and slabs: released by it when the run is over.
  std::vector<bool> is_host_released_;
  std::uint64_t generation_ = 0;
};

}  // namespace tern::test::litmus
