// A fault plan says which calls fail, and how: "allocate#3=oom, copy#2+=fail, launch%2=fault".
//
//   plan     = rule {"," rule}
//   rule     = class selector "=" kind
//   selector = "#" n        the n-th call of the class
//            | "#" n "+"    that one and all after it
//            | "%" n        every n-th
//            | "~" p        each with probability p, a decimal fraction such as 0.01
//
// Calls are counted per class from 1, so that a loop can count first and then fail each. Confined.

#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "backends/sim/random.hpp"
#include "tern/core/result.hpp"

namespace tern::sim {

#define TERN_FOR_EACH_FAULT_CLASS(TERN_FAULT_CLASS)                                         \
  TERN_FAULT_CLASS(allocate)                                                                \
  TERN_FAULT_CLASS(release)                                                                 \
  TERN_FAULT_CLASS(map) TERN_FAULT_CLASS(pin) TERN_FAULT_CLASS(copy) TERN_FAULT_CLASS(fill) \
      TERN_FAULT_CLASS(launch) TERN_FAULT_CLASS(record) TERN_FAULT_CLASS(wait)              \
          TERN_FAULT_CLASS(query) TERN_FAULT_CLASS(stream)

enum class FaultClass : std::uint8_t {
#define TERN_FAULT_CLASS(name) name,
  TERN_FOR_EACH_FAULT_CLASS(TERN_FAULT_CLASS)
#undef TERN_FAULT_CLASS
};
inline constexpr std::size_t fault_classes = 11;

enum class FaultKind : std::uint8_t {
  oom,         // no memory
  fragmented,  // enough in total, no range of that size
  fail,        // the driver refuses, once
  fault,       // the work is queued and fails later; the device is lost from then on
  lost,        // the device is lost now
  not_ready,   // a query says no
  refuse,      // page-locking is not allowed
};

class FaultPlan {
 public:
  explicit FaultPlan(std::uint64_t seed = 0) noexcept : random_(seed, Purpose::faults) {}

  /// Refused with invalid_argument, naming the rule.
  [[nodiscard]] static Result<FaultPlan> try_parse(std::string_view text, std::uint64_t seed);

  /// Counts a call; says how it must fail, if it must.
  [[nodiscard]] std::optional<FaultKind> next(FaultClass fault_class) noexcept;
  [[nodiscard]] std::uint64_t calls(FaultClass fault_class) const noexcept {
    return calls_[static_cast<std::size_t>(fault_class)];
  }
  [[nodiscard]] static std::optional<FaultClass> class_of(std::string_view name) noexcept;

 private:
  struct Rule {
    FaultClass fault_class = FaultClass::allocate;
    FaultKind kind = FaultKind::fail;
    enum class Selector : std::uint8_t { nth, from, every, rate } selector = Selector::nth;
    std::uint64_t number = 0;  // of rate: out of a million
  };
  [[nodiscard]] static Result<Rule> try_parse_rule(std::string_view text);

  std::vector<Rule> rules_;
  std::array<std::uint64_t, fault_classes> calls_ = {};
  Random random_;
};

}  // namespace tern::sim
