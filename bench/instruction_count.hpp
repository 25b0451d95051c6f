// Counts the instructions that a function executes, and the atomic instructions among them, by
// single-stepping. The count is exact and includes all called functions.
//
// A child process traces the calling thread. Each instruction takes a few microseconds. An atomic
// instruction is one that reads, modifies and writes memory in one step; plain loads, stores and
// barriers do not count.

#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "bench/case.hpp"

namespace tern::bench {

struct InstructionCount {
  std::uint64_t instructions = 0;
  std::uint64_t atomics = 0;
  /// Why nothing was counted, or empty. The function runs in either case.
  std::string refusal = {};
};

/// Call from one thread at a time. The function must not throw.
[[nodiscard]] InstructionCount count_instructions(const std::function<void()>& function);

/// Adds the figure "NAME, instructions", or nothing where instructions cannot be counted.
void add_instructions(Context& context, const std::string& name,
                      const std::function<void()>& function);

/// Returns whether the instruction reads, modifies and writes memory in one step. `code` has 16
/// bytes, the maximum length of an instruction. Knows the instructions of the machine that it was
/// compiled for.
[[nodiscard]] bool is_atomic_instruction(const unsigned char* code) noexcept;

}  // namespace tern::bench
