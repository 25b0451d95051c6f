// OrderReport turns a Problem of the order checker into a Finding.
//
// All text of findings is built here, and nothing here changes the state of the checker. Actors
// have the names that the user gave them; unnamed streams are S1, S2 and so on. "A@18" is operation
// 18 of actor A. The report refers to the actors and the shadow that it is given; create one per
// report.

#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "tern/trace/finding.hpp"
#include "trace/actors.hpp"
#include "trace/note.hpp"
#include "trace/shadow.hpp"

namespace tern {

class OrderReport {
 public:
  OrderReport(const Actors& actors, const Shadow& memory) : actors_(actors), memory_(memory) {}

  /// Describes a problem with the touch `now`, which host thread `submitter` submitted. The caller
  /// fills in context, step and replay.
  [[nodiscard]] Finding describe(const Note& now, ActorId submitter, const Problem& problem) const;
  /// Describes a problem that other code has found. `action` says what the operation does, if the
  /// note does not.
  [[nodiscard]] Finding describe_other(FindingCode code, const Note& now, std::string_view action,
                                       std::string what, std::string fix) const;
  /// Describes a block that was never freed.
  [[nodiscard]] Finding describe_leak(const LiveBlock& block) const;
  /// Returns an operation as text, such as "A@18".
  [[nodiscard]] std::string mark(ActorId actor, std::uint64_t sequence) const;

 private:
  using OrderAndFix = std::pair<std::string, std::string>;

  [[nodiscard]] std::string what(const Note& now, const SpaceRange& range,
                                 const Problem& problem) const;
  [[nodiscard]] OrderAndFix missing_order(const Note& now, ActorId submitter,
                                          const Epoch& needed) const;
  [[nodiscard]] OrderAndFix order_and_fix(const Note& now, ActorId submitter,
                                          const SpaceRange& range, const Problem& problem) const;
  [[nodiscard]] OrderAndFix dead_block(const Note& now, ActorId submitter,
                                       const Problem& problem) const;
  [[nodiscard]] OrderAndFix missing_contents(const Note& now, ActorId submitter,
                                             const SpaceRange& range) const;
  [[nodiscard]] std::string fix_out_of_bounds(const Note& now) const;
  [[nodiscard]] std::string fix_wrong_range(const Note& now) const;

  [[nodiscard]] std::string name(ActorId actor) const;
  [[nodiscard]] std::string party(ActorId actor, bool is_host) const;
  [[nodiscard]] std::string line(const Note& note, std::string_view action = {}) const;
  [[nodiscard]] std::string block_line(const Note& birth) const;

  const Actors& actors_;
  const Shadow& memory_;
};

}  // namespace tern
