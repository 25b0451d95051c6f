// An Interpreter runs a portable kernel on memory of the host, and finds its mistakes: indexes
// outside of arrays, reads of elements that nobody wrote, races, divisions by zero and endless
// loops. The simulated device runs kernels with it.
//
//   const Interpreter interpreter(*try_parse(text));
//   const Result<std::vector<Mistake>> mistakes =
//       interpreter.try_run({.grid = {4, 1, 1}, .block = {256, 1, 1}}, arguments);
//
// Arithmetic has the bits of C++ on the host: f32 operations round to float, nothing is fused, and
// integers wrap. A mistake has a defined result (mistake.hpp) and never damages memory outside of
// the arrays. Threads run one after another, each to its end or to the end of the loop over
// threads. So a kernel without races has one result, and RunOptions::order_seed selects an order
// that shows a race in the result too.
//
// Finding races takes up to 24 bytes of memory for each element that the kernel writes, until the
// run ends. Thread safety: an Interpreter does not change, so several threads may run one.

#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "language/kernel_code.hpp"
#include "language/launch_shape.hpp"
#include "language/mistake.hpp"
#include "language/syntax.hpp"
#include "tern/core/result.hpp"

namespace tern::language {

/// A value: `value` points to it. An array: the address of its first element, and the number of
/// elements. Arrays may share memory.
struct Argument {
  const void* value = nullptr;
  void* address = nullptr;
  std::uint64_t elements = 0;
};

struct RunOptions {
  /// The order of blocks, and of threads in a block. 0 is the ascending order. Other numbers select
  /// other orders.
  std::uint64_t order_seed = 0;
  /// How many instructions a thread may take in rounds of loops. A thread that takes more is a
  /// mistake of kind endless.
  std::uint64_t max_steps = 100'000'000;
  /// Whether to look for races, and for uses of elements without a value. Without these checks a
  /// run is faster and takes no memory for stamps.
  bool checks_accesses = true;
};

class Interpreter {
 public:
  /// Upper bounds of a launch: threads of a block, and blocks. They fit into an AccessStamp.
  static constexpr std::uint64_t max_block_threads = 0xfffe;
  static constexpr std::uint64_t max_blocks = 0xfffffffe;

  /// Takes a program that try_parse() returned. Throws std::bad_alloc.
  explicit Interpreter(Program program);
  [[nodiscard]] const Program& program() const noexcept { return program_; }

  /// Runs a launch, and returns the mistakes in the order in which they were first made: one for
  /// each kind and place in the text, with the first occurrence and a count.
  ///
  /// `arguments` are those of the parameters, in order. A reduction has the results of the blocks
  /// as one more argument, and this is its first pass: block b reduces the elements from 4096 * b
  /// on. It uses shape.grid[0] and always has 256 threads per block.
  ///
  /// Fails with invalid_argument if the number of arguments is wrong, the launch is larger than the
  /// bounds above, or the results of a reduction have fewer elements than the grid has blocks; with
  /// out_of_memory if there is no memory for the bookkeeping.
  [[nodiscard]] Result<std::vector<Mistake>> try_run(const LaunchShape& shape,
                                                     std::span<const Argument> arguments,
                                                     const RunOptions& options = {}) const noexcept;

  /// Runs the second pass of a reduction: block b reduces values from 4096 * b on to results[b].
  /// Fails like try_run(), and with invalid_argument if the program is no reduction.
  [[nodiscard]] Result<std::vector<Mistake>> try_combine(
      std::uint64_t blocks, const Argument& values, const Argument& results,
      const RunOptions& options = {}) const noexcept;

 private:
  Program program_;
  KernelCode code_;
};

}  // namespace tern::language
