// Counts the instructions that a function executes, and the atomic ones among them, by stepping
// through it: exact, whatever the function calls and wherever the atomics come from.
//
// A child process traces the calling thread for as long as that takes, a few microseconds for each
// instruction. Loads, stores and barriers are not atomics here, only what reads, changes and writes
// memory in one step.

#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace tern::bench {

struct InstructionCount {
  std::uint64_t instructions = 0;
  std::uint64_t atomics = 0;
  /// Why nothing was counted; empty if it was. The function has run all the same.
  std::string refusal = {};
};

/// Not from two threads at a time. The function must not throw.
[[nodiscard]] InstructionCount count_instructions(const std::function<void()>& function);

/// Does the instruction read, change and write memory in one step? `code` has what an instruction
/// takes at most, 16 bytes. Of the machine this was built for.
[[nodiscard]] bool is_atomic_instruction(const unsigned char* code) noexcept;

}  // namespace tern::bench
