#include "language/mistake.hpp"

#include <fmt/format.h>

namespace tern::language {
namespace {

using Kind = Mistake::Kind;

std::string triple(const std::array<std::uint64_t, 3>& of) {
  return fmt::format("({},{},{})", of[0], of[1], of[2]);
}
std::string text(const ThreadId& who) {
  if (who.is_whole_block) return fmt::format("block {}", triple(who.block));
  return fmt::format("thread {} of block {}", triple(who.thread), triple(who.block));
}
std::string text(Position at) { return fmt::format("line {}, column {}", at.line, at.column); }

std::string_view verb(AccessKind kind) {
  switch (kind) {
    case AccessKind::read:
      return "reads";
    case AccessKind::write:
      return "writes";
    case AccessKind::update:
      return "updates";
    case AccessKind::atomic:
      return "updates atomically";
  }
  return "";
}

std::string element(const Mistake& mistake) {
  if (mistake.is_negative) {
    return fmt::format("{}[{}]", mistake.name, static_cast<std::int64_t>(mistake.index));
  }
  return fmt::format("{}[{}]", mistake.name, mistake.index);
}
std::string counted(std::uint64_t count) {
  return count == 1 ? "1 element" : fmt::format("{} elements", count);
}

std::string race(const Mistake& mistake) {
  const std::string other =
      mistake.kind == Kind::block_race ? text(mistake.other_who)
      : mistake.other_who.is_whole_block
          ? "the code of the whole block"
          : fmt::format("thread {} of the same block", triple(mistake.other_who.thread));
  const std::string alias =
      mistake.other_name == mistake.name ? "" : fmt::format(" as {}", mistake.other_name);
  return fmt::format("{} {}, which {} {}{} in {}", verb(mistake.access), element(mistake), other,
                     verb(mistake.other_access), alias, text(mistake.other));
}

std::string done(const Mistake& mistake) {
  switch (mistake.kind) {
    case Kind::out_of_range:
      return fmt::format("{} {}, but {} has {}", verb(mistake.access), element(mistake),
                         mistake.name, counted(mistake.elements));
    case Kind::uninitialised_read:
      if (!mistake.is_array) return fmt::format("reads {}, which has no value", mistake.name);
      return fmt::format("{} {}, which no thread of the block has written", verb(mistake.access),
                         element(mistake));
    case Kind::read_of_output:
      return fmt::format("{} {}, which the launch has not written", verb(mistake.access),
                         element(mistake));
    case Kind::write_to_input:
      return fmt::format("{} {}, but {} is an 'in' array", verb(mistake.access), element(mistake),
                         mistake.name);
    case Kind::thread_race:
    case Kind::block_race:
      return race(mistake);
    case Kind::divide_by_zero:
      return "divides by zero";
    case Kind::shift_too_far:
      return fmt::format("shifts a value of type {} by {}", mistake.type, mistake.value);
    case Kind::conversion:
      return fmt::format("converts {} to {}, which has no such value", mistake.value, mistake.type);
    case Kind::endless:
      return fmt::format("has taken {} steps and is still in this loop", mistake.steps);
    case Kind::unwritten_output:
      break;
  }
  return "";
}

}  // namespace

std::string Mistake::what() const {
  const std::string begin = fmt::format("kernel '{}', {}: ", kernel, text(at));
  if (kind != Kind::unwritten_output) return fmt::format("{}{} {}", begin, text(who), done(*this));
  return fmt::format("{}the launch did not write {} of {} of the 'out' array {}, the first one {}",
                     begin, missing, counted(elements), name, element(*this));
}

std::string Mistake::fix() const {
  switch (kind) {
    case Kind::out_of_range:
      if (is_shared) return fmt::format("Declare {} with more elements, or limit the index.", name);
      if (form == Form::element || form == Form::reduction) {
        return fmt::format("Pass an array for {} that is as long as the first one.", name);
      }
      return fmt::format("Compare the index with size({}) before the access.", name);
    case Kind::uninitialised_read:
      if (!is_array) return fmt::format("Give {} a value where it is declared.", name);
      return fmt::format(
          "Write all elements of {} that the block reads, in a loop over threads before this one.",
          name);
    case Kind::read_of_output:
      return fmt::format("Declare {} as 'inout' if the kernel needs the old values.", name);
    case Kind::write_to_input:
      return fmt::format("Declare {} as 'inout', 'out' or 'part'.", name);
    case Kind::thread_race:
      if (form == Form::block) {
        return "End the loop over threads between the two accesses, or use atomic functions for "
               "both.";
      }
      return "Let one thread use the element, or use atomic functions for both accesses.";
    case Kind::block_race:
      return "Blocks run in no order. Let one block use the element, use atomic functions for both "
             "accesses, or launch two kernels.";
    case Kind::divide_by_zero:
      return "Compare the divisor with 0 before the division.";
    case Kind::shift_too_far:
      return "Limit the count to the number of bits of the type minus 1.";
    case Kind::conversion:
      return "Limit the number to the range of the type before the conversion.";
    case Kind::endless:
      return "Check the condition of the loop, or allow more steps.";
    case Kind::unwritten_output:
      return fmt::format(
          "Write every element of {}, or declare {} as 'part' (writes some elements, reads none) "
          "or "
          "as 'inout'.",
          name, name);
  }
  return "";
}

std::string_view name(Mistake::Kind kind) noexcept {
  switch (kind) {
    case Kind::out_of_range:
      return "out_of_range";
    case Kind::uninitialised_read:
      return "uninitialised_read";
    case Kind::read_of_output:
      return "read_of_output";
    case Kind::write_to_input:
      return "write_to_input";
    case Kind::thread_race:
      return "thread_race";
    case Kind::block_race:
      return "block_race";
    case Kind::divide_by_zero:
      return "divide_by_zero";
    case Kind::shift_too_far:
      return "shift_too_far";
    case Kind::conversion:
      return "conversion";
    case Kind::endless:
      return "endless";
    case Kind::unwritten_output:
      return "unwritten_output";
  }
  return "";
}

}  // namespace tern::language
