#include "trace/slice.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "backends/sim/random.hpp"
#include "support/thorough.hpp"
#include "tern/core/error.hpp"
#include "tools/pool_program.hpp"
#include "trace/order_checker.hpp"

namespace tern {
namespace {

using Indices = std::vector<std::size_t>;

constexpr ActorId a = 1, b = 2, c = 3, d = 4;

/// A trace that is written down record by record.
struct Trace {
  RecordList list;

  explicit Trace(ActorId streams = 4, ActorKind kind = ActorKind::stream) {
    for (ActorId s = 1; s <= streams; ++s) {
      add({.kind = RecordKind::actor_begins,
           .actor_kind = s == 1 && kind != ActorKind::stream ? ActorKind::default_stream : kind,
           .actor = s});
    }
  }
  std::size_t add(const TraceRecord& record) {
    list.add(record);
    return list.size() - 1;
  }
  std::size_t touch(ActorId s, TouchKind kind, std::uint64_t offset, std::uint64_t bytes) {
    const Touch one{kind, {1, offset, bytes}};
    const bool is_life = kind > TouchKind::read_write;
    return add({.operation = is_life ? OperationKind::allocate : OperationKind::kernel,
                .actor = s,
                .name = "k",
                .touches = {&one, 1}});
  }
  std::size_t read(ActorId s, std::uint64_t offset, std::uint64_t bytes = 8) {
    return touch(s, TouchKind::read, offset, bytes);
  }
  std::size_t write(ActorId s, std::uint64_t offset, std::uint64_t bytes = 8) {
    return touch(s, TouchKind::write, offset, bytes);
  }
  std::size_t copy(ActorId s, std::uint64_t from, std::uint64_t to, std::uint64_t bytes = 8) {
    const Touch both[] = {{TouchKind::read, {1, from, bytes}}, {TouchKind::write, {1, to, bytes}}};
    return add({.operation = OperationKind::copy, .actor = s, .touches = both});
  }
  std::size_t record(ActorId s, std::uint64_t event) {
    return add({.kind = RecordKind::record_event, .actor = s, .event = event});
  }
  std::size_t wait(ActorId s, std::uint64_t event) {
    return add({.kind = RecordKind::wait_event, .actor = s, .event = event});
  }
  std::size_t host_wait(ActorId s, std::uint64_t sequence) {
    return add({.kind = RecordKind::host_wait_mark, .actor = s, .sequence = sequence});
  }
  [[nodiscard]] Indices slice_at(std::size_t at) const { return slice(list.records(), at); }
  /// Without the records that begin the streams.
  [[nodiscard]] Indices core_at(std::size_t at) const {
    Indices kept = slice_at(at);
    std::erase_if(
        kept, [&](std::size_t i) { return list.records()[i].kind == RecordKind::actor_begins; });
    return kept;
  }
};

/// All findings of a trace, by record.
std::map<std::size_t, Finding> findings_of(std::span<const TraceRecord> records) {
  OrderChecker checker;
  std::map<std::size_t, Finding> found;
  for (std::size_t i = 0; i < records.size(); ++i) {
    if (auto finding = checker.check(records[i], OrderChecker::OnFinding::apply)) {
      found.emplace(i, *std::move(finding));
    }
  }
  return found;
}

std::string place_of(const Finding& finding) {
  return code_text(finding.code) + " " + std::to_string(finding.range.space) + " " +
         std::to_string(finding.range.offset) + "+" + std::to_string(finding.range.bytes);
}

TEST(Slice, HasTheOperationsOnTheBytesConcernedAndNoOthers) {
  Trace trace;
  const std::size_t birth = trace.touch(a, TouchKind::allocate, 0, 64);
  trace.touch(a, TouchKind::allocate, 64, 64);
  trace.write(a, 64);
  trace.read(a, 64);
  const std::size_t write = trace.write(a, 0);
  trace.read(a, 64);
  const std::size_t at = trace.read(b, 0);
  EXPECT_EQ(trace.core_at(at), (Indices{birth, write, at}));
}

TEST(Slice, HasTheWaitsThroughWhichItsOperationsKnowOfEachOther) {
  Trace trace;
  const std::size_t birth = trace.touch(a, TouchKind::allocate, 0, 64);
  const std::size_t recorded = trace.record(a, 1);
  trace.record(a, 2);
  const std::size_t waited = trace.wait(b, 1);
  const std::size_t handed_on = trace.record(b, 3);
  trace.wait(d, 2);
  const std::size_t taken = trace.wait(c, 3);
  const std::size_t write = trace.write(b, 0);
  const std::size_t at = trace.read(c, 0);
  EXPECT_EQ(trace.core_at(at), (Indices{birth, recorded, waited, handed_on, taken, write, at}));
}

TEST(Slice, CountsTheOperationsThatAreLeftWhereTheHostWaitsForSoMany) {
  Trace trace;
  trace.touch(a, TouchKind::allocate, 0, 64);
  trace.touch(a, TouchKind::allocate, 64, 64);
  for (int i = 0; i < 5; ++i) trace.write(a, 64);
  trace.write(a, 0);   // a@8
  trace.write(a, 64);  // a@9
  trace.write(a, 8);   // a@10
  const std::size_t waited = trace.host_wait(a, 9);
  trace.read(b, 0);
  const std::size_t at = trace.read(b, 0, 16);
  const std::map<std::size_t, Finding> found = findings_of(trace.list.records());
  ASSERT_EQ(found.size(), 1u);
  ASSERT_EQ(found.begin()->first, at);
  EXPECT_EQ(found.begin()->second.range.offset, 8u);

  const Indices kept = trace.slice_at(at);
  EXPECT_TRUE(std::ranges::find(kept, waited) != kept.end());
  const RecordList some = extract(trace.list.records(), kept);
  const auto mark =
      std::ranges::find(some.records(), RecordKind::host_wait_mark, &TraceRecord::kind);
  ASSERT_TRUE(mark != some.records().end());
  // The block's birth and the first write are left of the first nine.
  EXPECT_EQ(mark->sequence, 2u);
  EXPECT_EQ(place_of(findings_of(some.records()).at(some.size() - 1)), "TERN-S101 1 8+8");
}

TEST(Slice, EndsABlockWhereItEndedSoThatTheNextIsNotGivenOutTwice) {
  Trace trace;
  trace.touch(a, TouchKind::allocate, 0, 64);
  trace.write(a, 0);
  const std::size_t death = trace.touch(a, TouchKind::release, 0, 64);
  trace.touch(a, TouchKind::allocate, 32, 64);
  trace.write(a, 32, 64);
  const std::size_t at = trace.read(b, 32, 8);
  const Indices kept = trace.slice_at(at);
  EXPECT_TRUE(std::ranges::find(kept, death) != kept.end());
  EXPECT_EQ(findings_of(extract(trace.list.records(), kept).records()).size(), 1u);
}

TEST(Slice, HasTheWorkOfADefaultStreamThatOrdersItsPartners) {
  Trace trace(3, ActorKind::blocking_stream);
  trace.touch(b, TouchKind::allocate, 0, 64);
  trace.touch(b, TouchKind::allocate, 64, 64);
  trace.touch(b, TouchKind::allocate, 128, 64);
  trace.write(b, 128, 64);
  trace.write(b, 0, 64);
  const std::size_t between = trace.write(a, 64);  // on the default stream
  trace.write(b, 8);
  trace.read(c, 0);
  const std::size_t at = trace.read(c, 0, 64);
  EXPECT_EQ(findings_of(trace.list.records()).size(), 1u);
  const Indices kept = trace.slice_at(at);
  EXPECT_TRUE(std::ranges::find(kept, between) != kept.end());
  EXPECT_LT(kept.size(), trace.list.size()) << "not simply everything";
  const auto found = findings_of(extract(trace.list.records(), kept).records());
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(place_of(found.begin()->second), "TERN-S101 1 8+8");
}

TEST(Slice, HasThePieceThatMadeTheRestOfABlockThePoolsOwn) {
  Trace trace;
  trace.touch(a, TouchKind::allocate, 0, 1024);
  trace.touch(a, TouchKind::suballocate, 512, 64);
  trace.touch(a, TouchKind::suballocate, 640, 64);
  trace.write(a, 640);
  const std::size_t at = trace.write(a, 0);
  const Indices kept = trace.core_at(at);
  EXPECT_EQ(kept.size(), 3u);
  const auto found = findings_of(extract(trace.list.records(), trace.slice_at(at)).records());
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found.begin()->second.code, FindingCode::out_of_bounds);
}

TEST(Slice, HasWhatGivesContentsToWhatItsOperationsRead) {
  Trace trace;
  trace.touch(a, TouchKind::allocate, 0, 64);
  trace.touch(a, TouchKind::allocate, 64, 64);
  trace.write(a, 64, 32);
  trace.write(a, 64, 64);
  const std::size_t contents = trace.write(a, 64, 64);
  trace.copy(a, 64, 0, 64);
  const std::size_t at = trace.read(b, 0);
  const Indices kept = trace.slice_at(at);
  EXPECT_TRUE(std::ranges::find(kept, contents) != kept.end());
  EXPECT_EQ(kept.size(), trace.list.size() - 2 - 2) << "two older writes, and two streams";
  EXPECT_EQ(findings_of(extract(trace.list.records(), kept).records()).size(), 1u);
}

TEST(Slice, HasTheCopyThatBroughtUndefinedBytes) {
  Trace trace;
  trace.touch(a, TouchKind::allocate, 0, 64);
  trace.touch(a, TouchKind::allocate, 64, 64);
  trace.write(a, 64, 16);
  trace.copy(a, 64, 0, 64);
  const std::size_t at = trace.read(a, 0, 64);
  const auto whole = findings_of(trace.list.records());
  ASSERT_EQ(whole.size(), 1u);
  const auto found = findings_of(extract(trace.list.records(), trace.slice_at(at)).records());
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(place_of(found.begin()->second), place_of(whole.begin()->second));
}

TEST(Slice, EndsWhereTheFindingEnds) {
  Trace trace;
  trace.touch(a, TouchKind::allocate, 0, 64);
  trace.write(a, 0, 64);
  trace.touch(a, TouchKind::read, 16, 48);  // what splits the bytes there
  const std::size_t other = trace.touch(a, TouchKind::allocate, 64, 64);
  const std::size_t at = trace.write(b, 0, 64);
  const Indices kept = trace.slice_at(at);
  EXPECT_TRUE(std::ranges::find(kept, other) == kept.end());
  const auto whole = findings_of(trace.list.records());
  ASSERT_EQ(place_of(whole.at(at)), "TERN-S101 1 0+16");
  const RecordList some = extract(trace.list.records(), trace.slice_at(at));
  EXPECT_EQ(place_of(findings_of(some.records()).at(some.size() - 1)), "TERN-S101 1 0+16");
}

TEST(Slice, LeavesOutAnOperationThatKnowsNothingItsSuccessorWouldNotKnow) {
  Trace trace;
  trace.touch(a, TouchKind::allocate, 0, 64);
  trace.write(a, 0);
  trace.host_wait(a, 2);
  // The first on b to know what the host knows; the read knows it anyway.
  const std::size_t other = trace.touch(b, TouchKind::allocate, 64, 64);
  trace.read(b, 0);
  const std::size_t at = trace.write(a, 0);
  ASSERT_EQ(findings_of(trace.list.records()).size(), 1u);
  const Indices kept = trace.slice_at(at);
  EXPECT_TRUE(std::ranges::find(kept, other) == kept.end());
}

TEST(Slice, ShowsALeakByItsBirth) {
  Trace trace;
  trace.touch(a, TouchKind::allocate, 0, 64);
  trace.touch(a, TouchKind::release, 0, 64);
  const std::size_t birth = trace.touch(a, TouchKind::allocate, 64, 64);
  const std::size_t at = trace.add({.kind = RecordKind::shutdown});
  EXPECT_EQ(trace.core_at(at), (Indices{birth, at}));
}

TEST(Slice, IsAboutAllItsBytesWhereNothingIsFound) {
  Trace trace;
  trace.touch(a, TouchKind::allocate, 0, 64);
  trace.touch(a, TouchKind::allocate, 64, 64);
  trace.write(a, 0);
  const std::size_t at = trace.read(a, 0);
  EXPECT_EQ(trace.core_at(at).size(), 3u);
}

TEST(Slice, RefusesARecordThatIsNotThere) {
  const Trace trace;
  EXPECT_THROW(static_cast<void>(trace.slice_at(4)), InvalidArgument);
}

TEST(Slice, KeepsTheHintOfAReport) {
  // A merge that takes over a list and records nothing: the stream that merged is the hint.
  using tools::PoolStep;
  using Kind = PoolStep::Kind;
  std::vector<PoolStep> steps = {{Kind::open, 3, 1024, 0}};
  for (std::uint32_t i = 10; i < 20; ++i) {
    steps.push_back({Kind::allocate, 1, 256, i});
    steps.push_back({Kind::free, 1, 256, i});
  }
  steps.insert(steps.end(), {{Kind::allocate, 2, 512, 1},
                             {Kind::allocate, 1, 512, 2},
                             {Kind::free, 1, 512, 2},
                             {Kind::allocate, 2, 2048, 3},
                             {Kind::allocate, 3, 512, 4}});
  RecordList list;
  const auto found = run_steps(steps, tools::Mistake::merge_without_record, &list);
  ASSERT_TRUE(found);
  const std::size_t at = found->step - 1;
  const RecordList some = extract(list.records(), slice(list.records(), at));
  EXPECT_LT(some.size(), list.size() / 2);
  const Finding again = findings_of(some.records()).at(some.size() - 1);
  EXPECT_NE(again.order.find("S2 knows it since"), std::string::npos) << again.text();
  EXPECT_NE(again.order.find("event that was never recorded"), std::string::npos) << again.text();
}

TEST(Slice, GivesTheSameFindingForPlantedMistakesAndIsSmall) {
  constexpr std::size_t per_mistake = test::is_thorough ? 300 : 60;
  std::vector<std::size_t> sizes, wholes;
  for (const tools::Mistake mistake : tools::all_mistakes) {
    std::size_t checked = 0;
    for (std::uint64_t seed = 0; checked < per_mistake; ++seed) {
      const tools::PoolProgram program{.seed = seed};
      RecordList list;
      const auto found = run_steps(program.steps_against(mistake), mistake, &list);
      if (!found) continue;
      ++checked;
      const std::size_t at = found->step - 1;
      const Indices kept = slice(list.records(), at);
      const RecordList some = extract(list.records(), kept);
      const auto again = findings_of(some.records());
      ASSERT_EQ(again.size(), 1u) << "seed " << seed;
      ASSERT_EQ(again.begin()->first, some.size() - 1) << "seed " << seed;
      ASSERT_EQ(place_of(again.begin()->second), place_of(*found)) << "seed " << seed;
      ASSERT_EQ(kept.back(), at);
      sizes.push_back(kept.size());
      wholes.push_back(at + 1);
    }
  }
  std::ranges::sort(sizes);
  std::ranges::sort(wholes);
  std::printf("slices of %zu runs: median %zu of %zu records, largest %zu\n", sizes.size(),
              sizes[sizes.size() / 2], wholes[wholes.size() / 2], sizes.back());
  EXPECT_LE(sizes[sizes.size() / 2], 30u);
}

/// A silent trace of every kind of record, and one record more with a finding, if the seed has one.
std::optional<RecordList> random_trace(std::uint64_t seed) {
  sim::Random random(seed, sim::Purpose::program);
  constexpr std::uint64_t slot_bytes = 64, slots = 12;
  constexpr ActorId thread = 7;
  RecordList list;
  OrderChecker checker;
  const auto accept = [&](const TraceRecord& record) {
    const std::optional<Finding> found = checker.check(record);
    // A finding ends the trace once it is long enough, the common kinds seldom; else its record is
    // left out.
    const bool is_common = found && found->code >= FindingCode::uninitialised_read;
    const bool ends = found && list.size() > 60 && (!is_common || random.chance(3));
    if (!found || ends) list.add(record);
    return ends;
  };
  for (ActorId s = 1; s <= 6; ++s) {
    const ActorKind kind = s == 1   ? ActorKind::default_stream
                           : s <= 3 ? ActorKind::blocking_stream
                                    : ActorKind::stream;
    accept({.kind = RecordKind::actor_begins, .actor_kind = kind, .actor = s});
  }
  accept({.kind = RecordKind::actor_begins, .actor_kind = ActorKind::host, .actor = thread});
  const Touch slab{TouchKind::allocate, {1, slots * slot_bytes, slots * slot_bytes}};
  accept({.kind = RecordKind::host_access,
          .operation = OperationKind::allocate,
          .touches = {&slab, 1}});
  std::vector<bool> is_live(2 * slots, false);

  for (int i = 0; i < 600; ++i) {
    const auto s = static_cast<ActorId>(1 + random.below(6));
    const ActorId host = random.chance(80) ? 0 : thread;
    const std::uint64_t event = 1 + random.below(4);
    const std::uint64_t dice = random.below(100);
    TraceRecord record{.actor = s, .host = host};
    std::vector<Touch> touches;
    const auto range_in = [&](std::uint64_t slot) {
      const std::uint64_t begin = random.below(4) * 16;
      return SpaceRange{1, slot * slot_bytes + begin,
                        16 * (1 + random.below((slot_bytes - begin) / 16))};
    };
    const std::uint64_t slot = random.below(2 * slots);
    if (dice < 20) {
      const bool is_piece = slot >= slots;
      const bool dies = is_live[slot];
      const TouchKind kind = is_piece ? (dies ? TouchKind::subrelease : TouchKind::suballocate)
                                      : (dies ? TouchKind::release : TouchKind::allocate);
      touches.push_back({kind, {1, slot * slot_bytes, slot_bytes}});
      record.operation = dies ? OperationKind::release : OperationKind::allocate;
    } else if (dice < 60) {
      if (!is_live[slot] && random.chance(95)) continue;
      record.operation = OperationKind::kernel;
      const std::uint64_t what = random.below(4);
      if (what == 3) {
        const std::uint64_t other = random.below(2 * slots);
        if (other == slot || !is_live[other]) continue;
        record.operation = OperationKind::copy;
        SpaceRange from = range_in(slot), to = range_in(other);
        from.bytes = to.bytes = std::min(from.bytes, to.bytes);
        touches = {{TouchKind::read, from}, {TouchKind::write, to}};
      } else {
        touches.push_back({static_cast<TouchKind>(what), range_in(slot)});
        const std::uint64_t other = random.below(2 * slots);
        if (other != slot && is_live[other]) touches.push_back({TouchKind::read, range_in(other)});
      }
      if (random.chance(10)) record.kind = RecordKind::host_access;
    } else if (dice < 74) {
      record.kind = RecordKind::record_event;
      record.event = event;
    } else if (dice < 88) {
      record.kind = RecordKind::wait_event;
      record.event = event;
    } else if (dice < 90) {
      record.kind = RecordKind::host_wait_event;
      record.event = event;
    } else if (dice < 93) {
      record.kind = RecordKind::host_wait_mark;
      record.sequence = random.below(checker.sequence(s) + 1);
    } else if (dice < 95) {
      record.kind = RecordKind::release_edge;
      record.event = 100;
    } else if (dice < 97) {
      record.kind = RecordKind::acquire_edge;
      record.event = 100;
    } else if (dice < 98) {
      record.kind = RecordKind::event_ends;
      record.event = event;
    } else {
      continue;
    }
    record.touches = touches;
    const std::size_t before = list.size();
    if (accept(record)) return list;
    if (dice >= 20 || list.size() == before) continue;
    is_live[slot] = !is_live[slot];
    // Most blocks are made known to everybody, or nothing but early uses would be found.
    if (!is_live[slot] || random.chance(20)) continue;
    accept({.kind = RecordKind::record_event, .actor = s, .event = 50});
    for (ActorId other = 1; other <= 6; ++other) {
      accept({.kind = RecordKind::wait_event, .actor = other, .event = 50});
    }
    accept({.kind = RecordKind::host_wait_event, .event = 50});
  }
  return std::nullopt;
}

TEST(Slice, GivesTheSameFindingAndNoOtherForTracesOfEveryKind) {
  constexpr std::uint64_t seeds = test::is_thorough ? 5000 : 1000;
  std::vector<std::size_t> sizes, wholes;
  std::map<std::string, int> codes;
  for (std::uint64_t seed = 0; seed < seeds; ++seed) {
    const std::optional<RecordList> list = random_trace(seed);
    if (!list) continue;
    const std::size_t at = list->size() - 1;
    const auto whole = findings_of(list->records());
    ASSERT_EQ(whole.size(), 1u) << "seed " << seed;
    const Indices kept = slice(list->records(), at);
    const RecordList some = extract(list->records(), kept);
    const auto again = findings_of(some.records());
    for (const auto& [record, finding] : again) {
      EXPECT_EQ(record, some.size() - 1) << "seed " << seed << "\n" << finding.text();
    }
    ASSERT_TRUE(again.contains(some.size() - 1)) << "seed " << seed;
    ASSERT_EQ(place_of(again.at(some.size() - 1)), place_of(whole.at(at))) << "seed " << seed;
    sizes.push_back(kept.size());
    wholes.push_back(list->size());
    ++codes[code_text(whole.at(at).code)];
  }
  std::ranges::sort(sizes);
  std::ranges::sort(wholes);
  std::printf("slices of %zu traces: median %zu of %zu records, largest %zu\n", sizes.size(),
              sizes[sizes.size() / 2], wholes[wholes.size() / 2], sizes.back());
  for (const auto& [code, count] : codes) std::printf("  %s %d\n", code.c_str(), count);
  EXPECT_GE(codes.size(), 6u);
  EXPECT_LT(sizes[sizes.size() / 2] * 2, wholes[wholes.size() / 2]);
}

}  // namespace
}  // namespace tern
