// A fault plan says which calls fail, and how: "allocate#3=oom, copy#2+=fail, launch%2=fault".
//
//   plan     = rule {"," rule}
//   rule     = class selector "=" kind
//   selector = "#" n        the n-th call of the class
//            | "#" n "+"    that one and all after it
//            | "%" n        every n-th
//            | "~" p        each with probability p, a decimal fraction such as 0.01
//
// Every primitive that can fail belongs to one class, and a class accepts the kinds that can happen
// to its primitives. A rule with another kind is an error. Calls are counted per class from 1, so a
// loop can count the calls first and then fail each of them. World::begin() (world.cpp) calls
// next() at the start of every primitive and applies the fault. Not thread-safe.

#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "backends/sim/random.hpp"
#include "tern/core/result.hpp"
#include "tern/detail/core/visibility.hpp"

namespace tern::sim {

/// The kinds of faults.
#define TERN_FOR_EACH_FAULT_KIND(TERN_FAULT_KIND)                                     \
  TERN_FAULT_KIND(oom)        /* no memory */                                         \
  TERN_FAULT_KIND(fragmented) /* enough in total, no range of that size */            \
  TERN_FAULT_KIND(fail)       /* the driver refuses, once */                          \
  TERN_FAULT_KIND(fault)      /* queued, and fails when the stream gets there; the    \
                                 device is lost from then on */                       \
  TERN_FAULT_KIND(lost)       /* the device is lost now */                            \
  TERN_FAULT_KIND(not_ready)  /* a query says no, unless the host knows better */     \
  TERN_FAULT_KIND(slow)       /* the stream is delayed: runs when nothing else can */ \
  TERN_FAULT_KIND(refuse)     /* page-locking is not allowed */

enum class FaultKind : std::uint8_t {
#define TERN_FAULT_KIND(name) name,
  TERN_FOR_EACH_FAULT_KIND(TERN_FAULT_KIND)
#undef TERN_FAULT_KIND
};
inline constexpr std::size_t fault_kinds = 8;

/// One line per class: its name and the kinds it accepts. docs/guide/sim.md lists the primitives.
#define TERN_FOR_EACH_FAULT_CLASS(TERN_FAULT_CLASS)      \
  TERN_FAULT_CLASS(allocate, "oom fragmented fail lost") \
  TERN_FAULT_CLASS(release, "fail lost")                 \
  TERN_FAULT_CLASS(map, "oom fail lost")                 \
  TERN_FAULT_CLASS(pin, "oom fail lost refuse")          \
  TERN_FAULT_CLASS(copy, "fail fault lost slow")         \
  TERN_FAULT_CLASS(fill, "fail fault lost slow")         \
  TERN_FAULT_CLASS(launch, "fail fault lost slow")       \
  TERN_FAULT_CLASS(load, "fail lost")                    \
  TERN_FAULT_CLASS(record, "fail fault lost slow")       \
  TERN_FAULT_CLASS(wait, "fail fault lost slow")         \
  TERN_FAULT_CLASS(query, "fail lost not_ready")         \
  TERN_FAULT_CLASS(sync, "fail lost")                    \
  TERN_FAULT_CLASS(stream, "fail lost")                  \
  TERN_FAULT_CLASS(info, "fail lost")

enum class FaultClass : std::uint8_t {
#define TERN_FAULT_CLASS(name, kinds) name,
  TERN_FOR_EACH_FAULT_CLASS(TERN_FAULT_CLASS)
#undef TERN_FAULT_CLASS
};
inline constexpr std::size_t fault_classes = 14;

[[nodiscard]] std::string_view name(FaultClass fault_class) noexcept;
[[nodiscard]] std::string_view name(FaultKind kind) noexcept;
/// Returns whether the class accepts the kind.
[[nodiscard]] bool takes(FaultClass fault_class, FaultKind kind) noexcept;

class FaultPlan {
 public:
  explicit FaultPlan(std::uint64_t seed = 0) noexcept : random_(seed, Purpose::faults) {}

  /// Fails with invalid_argument, which names the rule and, if the kind is wrong, the accepted
  /// kinds.
  [[nodiscard]] TERN_EXPORT static Result<FaultPlan> try_parse(std::string_view text,
                                                               std::uint64_t seed);

  /// Counts a call. Returns how it must fail, if it must.
  [[nodiscard]] std::optional<FaultKind> next(FaultClass fault_class) noexcept;
  [[nodiscard]] std::uint64_t calls(FaultClass fault_class) const noexcept {
    return calls_[static_cast<std::size_t>(fault_class)];
  }
  /// Finds a class by its name, or by "free", an alias of "release".
  [[nodiscard]] static std::optional<FaultClass> class_of(std::string_view name) noexcept;

 private:
  struct Rule {
    FaultClass fault_class = FaultClass::allocate;
    FaultKind kind = FaultKind::fail;
    enum class Selector : std::uint8_t { nth, from, every, rate } selector = Selector::nth;
    std::uint64_t number = 0;  // for a rate: in millionths
  };
  [[nodiscard]] static Result<Rule> try_parse_rule(std::string_view text);
  [[nodiscard]] static Result<void> try_read_selector(std::string_view text, Rule& rule);

  std::vector<Rule> rules_;
  std::array<std::uint64_t, fault_classes> calls_ = {};
  Random random_;
};

}  // namespace tern::sim
