// A KernelRun is one run of a kernel by the Interpreter: the registers, the arrays, the accesses so
// far, and the mistakes found. It exists for one launch and one thread uses it.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "language/access_table.hpp"
#include "language/interpreter.hpp"
#include "language/kernel_code.hpp"
#include "language/launch_shape.hpp"
#include "language/mistake.hpp"
#include "language/syntax.hpp"

namespace tern::language {

class KernelRun {
 public:
  /// The caller has checked the shape and the number of arguments. `arguments` is empty for the
  /// second pass of a reduction, whose code uses no parameters. The program and the code must
  /// outlive the run. Functions of this class throw std::bad_alloc.
  KernelRun(const Program& program, const KernelCode& code, const LaunchShape& shape,
            std::span<const Argument> arguments, const RunOptions& options);

  /// Runs a kernel that is no reduction.
  void run_body();
  /// Runs the two passes of a reduction. Each block writes one of the results.
  void run_map(std::uint64_t elements, std::byte* results);
  void run_combine(const std::byte* values, std::uint64_t count, std::byte* results);

  /// Returns the mistakes, in the order of their first occurrence.
  [[nodiscard]] std::vector<Mistake> take_mistakes() { return std::move(mistakes_); }

 private:
  struct Array {
    std::byte* address = nullptr;
    std::uint64_t elements = 0;
    AccessTable::Stamps stamps;
    bool is_input = false;
    bool begins_unwritten = false;  // its bytes are no input: `out`, `part` and shared
  };
  struct Noted {
    Mistake::Kind kind{};
    std::uint32_t place = 0;
    std::uint64_t index = 0;
    Position3 thread{}, block{};
    bool operator==(const Noted&) const = default;
  };

  void bind(std::size_t array, std::span<const Argument> arguments);

  // Blocks and threads (kernel_run.cpp). A block is run by its number in the order of this run.
  void set_coordinate(Coordinate coordinate, const Position3& value);
  [[nodiscard]] std::uint64_t seed_of_phase() const;
  void restore_values();
  void begin_block(std::uint64_t number);
  void begin_thread(std::uint64_t thread);
  void run_thread(std::uint64_t thread);
  void begin_whole_block();
  /// Runs a loop over threads. Code of the whole block is ordered with the loop, before and after.
  void run_threads(std::uint32_t begin, std::uint32_t place);

  [[nodiscard]] std::uint64_t evaluate(std::uint32_t begin);
  [[nodiscard]] std::uint64_t combined(std::uint64_t left, std::uint64_t right);
  /// value_at(lane, i) is the value of element i, which this lane reduces.
  void reduce_blocks(
      std::uint64_t count, std::byte* results,
      const std::function<std::uint64_t(std::uint64_t lane, std::uint64_t i)>& value_at);

  // Instructions (kernel_instructions.cpp). `r` is registers_.data(), which the compiler then keeps
  // in a register of the machine.
  using Registers = std::uint64_t*;
  /// Runs instructions up to `end`, or until the run stops.
  void execute(std::uint32_t begin);
  template <class T, class F>
  void division(Registers r, const Instruction& i, F function);
  template <class T>
  std::uint64_t shift_count(Registers r, const Instruction& i);
  template <class From>
  void integer_of(Registers r, const Instruction& i);
  template <class To, class From>
  void integer_of(Registers r, const Instruction& i, From from);
  /// T is the type in memory: std::uint8_t for booleans.
  template <class T>
  void load(Registers r, const Instruction& i);
  template <class T>
  void store(Registers r, const Instruction& i);
  template <class T>
  void atomic(Registers r, const Instruction& i);

  // Mistakes (kernel_run.cpp).

  /// Counts the mistake. Returns it if it is the first of its kind and place, with what is known of
  /// all kinds, else null. note_access() also knows the array of the access.
  Mistake* note(Mistake::Kind kind, std::uint32_t place);
  Mistake* note_access(Mistake::Kind kind, const Instruction& i, std::uint64_t index);
  void note_race(const Instruction& i, std::uint64_t index, AccessStamp earlier);
  /// Notes a mistake if a write is not allowed.
  [[nodiscard]] bool may_write(const Array& array, const Instruction& i, std::uint64_t index) {
    if (index < array.elements && !array.is_input) [[likely]]
      return true;
    note_access(
        index < array.elements ? Mistake::Kind::write_to_input : Mistake::Kind::out_of_range, i,
        index);
    return false;
  }
  void check_written(const Array& array, const Instruction& i, std::uint64_t index);
  void stop_as_endless(std::uint32_t place, std::uint64_t steps);
  void find_unwritten_outputs();
  Mistake& add_mistake(Mistake::Kind kind);
  [[nodiscard]] Position3 block_of(std::uint32_t phase) const;

  const Program& program_;
  const KernelCode& code_;
  const LaunchShape shape_;
  const RunOptions options_;
  const std::uint64_t threads_, blocks_;
  const LaunchOrder block_order_;
  std::vector<std::uint64_t> registers_;
  std::vector<std::uint64_t> values_;  // of KernelCode::values
  std::vector<Array> arrays_;          // of KernelCode::arrays
  std::vector<std::unique_ptr<std::byte[]>> shared_memory_;
  AccessTable table_;
  std::vector<std::uint32_t> block_begins_;  // the first phase of each block that has run
  Position3 block_{}, thread_{};
  bool is_whole_block_ = false;
  bool is_stopped_ = false;
  std::vector<Mistake> mistakes_;
  std::unordered_map<std::uint64_t, std::size_t> noted_;  // kind and place: index of the mistake
  Noted last_update_;
};

}  // namespace tern::language
