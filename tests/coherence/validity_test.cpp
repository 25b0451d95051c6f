#include "tern/detail/coherence/validity.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace tern::test {
namespace {

constexpr std::array<Access, 3> all_accesses = {Access::read, Access::read_write, Access::discard};

std::string text_of(const std::vector<CopyRun>& runs) {
  std::string text;
  for (const CopyRun& run : runs) {
    text += std::to_string(run.begin) + "-" + std::to_string(run.end) + "<" +
            std::to_string(run.source) + " ";
  }
  return text;
}

std::string planned(const Validity& validity, std::size_t begin, std::size_t end, unsigned place,
                    const CopyCosts& costs = {}) {
  std::vector<CopyRun> runs;
  static_cast<void>(validity.plan(begin, end, place, costs, runs));
  return text_of(runs);
}

/// Makes a range exactly this.
void set(Validity& validity, std::size_t begin, std::size_t end, PlaceSet places) {
  ASSERT_TRUE(validity.make_room());
  validity.forget(begin, end);
  if (places.empty()) return;
  ASSERT_TRUE(validity.make_room());
  validity.apply(Access::discard, begin, end, places.first());
  for (PlaceSet rest = places; !rest.empty(); rest = rest.without(rest.first())) {
    validity.apply(Access::read, begin, end, rest.first());
  }
}

// --- Every directory of four bytes over three places

using Tiny = std::array<PlaceSet, 4>;

Tiny directory(unsigned number) {
  return {PlaceSet{number & 7}, PlaceSet{number >> 3 & 7}, PlaceSet{number >> 6 & 7},
          PlaceSet{number >> 9 & 7}};
}

void make(Validity& validity, const Tiny& tiny) {
  validity = Validity(4);
  for (std::size_t i = 0; i < 4; ++i) set(validity, i, i + 1, tiny[i]);
}

Tiny read_back(const Validity& validity) {
  Tiny tiny;
  validity.visit(0, 4, [&](std::size_t begin, std::size_t end, PlaceSet valid) {
    for (std::size_t i = begin; i < end; ++i) tiny[i] = valid;
  });
  return tiny;
}

class EveryDirectory : public testing::Test {
 protected:
  /// Calls body(validity, tiny, begin, end) for each directory and range, on a fresh one.
  template <class Body>
  void for_each(Body body) {
    Validity validity;
    for (unsigned number = 0; number < 4096; ++number) {
      const Tiny tiny = directory(number);
      for (std::size_t begin = 0; begin <= 4; ++begin) {
        for (std::size_t end = begin; end <= 4; ++end) {
          make(validity, tiny);
          body(validity, tiny, begin, end);
          if (HasFailure()) {
            ADD_FAILURE() << "directory " << number << ", range " << begin << " to " << end;
            return;
          }
        }
      }
    }
  }
};

TEST_F(EveryDirectory, IsReadBackAsItWasMade) {
  for_each([](const Validity& validity, const Tiny& tiny, std::size_t begin, std::size_t end) {
    EXPECT_EQ(read_back(validity), tiny);
    EXPECT_TRUE(validity.check(PlaceSet{7}));
    PlaceSet all{~std::uint64_t{0}}, any;
    ByteRange unwritten;
    for (std::size_t i = begin; i < end; ++i) {
      all = all & tiny[i];
      any = any | tiny[i];
      if (!tiny[i].empty()) continue;
      if (unwritten.begin == unwritten.end) unwritten = {i, i + 1};
      if (unwritten.end == i) unwritten.end = i + 1;
    }
    EXPECT_EQ(validity.valid_everywhere(begin, end), all);
    EXPECT_EQ(validity.valid_somewhere(begin, end), any);
    EXPECT_EQ(validity.first_unwritten(begin, end), unwritten);
    for (unsigned place = 0; place < 3; ++place) {
      EXPECT_EQ(validity.is_valid(begin, end, place), begin == end || all.has(place));
      EXPECT_EQ(validity.is_only(begin, end, place),
                begin == end || (all == any && all == PlaceSet::of(place)));
    }
  });
}

TEST_F(EveryDirectory, CopiesWhatIsStaleAndNothingElse) {
  for_each([](const Validity& validity, const Tiny& tiny, std::size_t begin, std::size_t end) {
    for (unsigned place = 0; place < 3; ++place) {
      std::vector<CopyRun> runs;
      EXPECT_EQ(validity.plan(begin, end, place, {}, runs), 0u);
      std::array<int, 4> copied = {};
      for (const CopyRun& run : runs) {
        for (std::size_t i = run.begin; i < run.end; ++i) {
          ++copied[i];
          EXPECT_TRUE(tiny[i].has(run.source));
        }
      }
      for (std::size_t i = 0; i < 4; ++i) {
        const bool is_stale = i >= begin && i < end && !tiny[i].empty() && !tiny[i].has(place);
        EXPECT_EQ(copied[i], is_stale ? 1 : 0);
      }
    }
  });
}

TEST_F(EveryDirectory, MergesOverGapsThatTheSourceHasAndNobodyHolds) {
  for_each([](const Validity& validity, const Tiny& tiny, std::size_t begin, std::size_t end) {
    const ByteRange held[] = {{1, 2}};
    for (unsigned place = 0; place < 3; ++place) {
      for (const bool is_held : {false, true}) {
        CopyCosts costs;
        costs.merge_below = 3;
        if (is_held) costs.leased = held;
        std::vector<CopyRun> runs;
        std::size_t gaps = validity.plan(begin, end, place, costs, runs);
        for (const CopyRun& run : runs) {
          for (std::size_t i = run.begin; i < run.end; ++i) {
            EXPECT_TRUE(tiny[i].has(run.source));
            if (!tiny[i].has(place)) continue;
            EXPECT_FALSE(is_held && i == 1) << "written under somebody";
            EXPECT_GT(gaps--, 0u);
          }
        }
        EXPECT_EQ(gaps, 0u);
      }
    }
  });
}

TEST_F(EveryDirectory, IsChangedByEveryAccessAsTheTableSays) {
  for_each([](Validity& validity, const Tiny& tiny, std::size_t begin, std::size_t end) {
    for (unsigned place = 0; place < 3; ++place) {
      for (const Access access : all_accesses) {
        make(validity, tiny);
        ASSERT_TRUE(validity.make_room());
        validity.apply(access, begin, end, place);
        Tiny expected = tiny;
        for (std::size_t i = begin; i < end; ++i) {
          if (is_write(access)) {
            expected[i] = PlaceSet::of(place);
          } else if (!tiny[i].empty()) {
            expected[i] = tiny[i].with(place);
          }
        }
        EXPECT_EQ(read_back(validity), expected);
        EXPECT_TRUE(validity.check(PlaceSet{7}));
      }
    }
  });
}

TEST_F(EveryDirectory, LosesAPlaceAndForgetsARange) {
  for_each([](Validity& validity, const Tiny& tiny, std::size_t begin, std::size_t end) {
    for (unsigned place = 0; place < 4; ++place) {
      make(validity, tiny);
      ASSERT_TRUE(validity.make_room());
      Tiny expected = tiny;
      if (place < 3) {
        validity.remove(begin, end, place);
        for (std::size_t i = begin; i < end; ++i) expected[i] = tiny[i].without(place);
      } else {
        validity.forget(begin, end);
        for (std::size_t i = begin; i < end; ++i) expected[i] = {};
      }
      EXPECT_EQ(read_back(validity), expected);
      EXPECT_TRUE(validity.check(PlaceSet{7}));
    }
  });
}

// --- Single rules

TEST(Validity, TakesTheCheapestSourceAndStaysWithItWhereThatCostsNoMore) {
  Validity validity(30);
  set(validity, 0, 10, PlaceSet{0b0010});
  set(validity, 10, 20, PlaceSet{0b0110});
  set(validity, 20, 30, PlaceSet{0b0100});
  EXPECT_EQ(planned(validity, 0, 30, 0), "0-20<1 20-30<2 ");
  CopyCosts costs;
  costs.of_source[1] = 9;
  EXPECT_EQ(planned(validity, 0, 30, 0, costs), "0-10<1 10-30<2 ");
}

TEST(Validity, MergesOnlyBelowTheLimit) {
  Validity validity(100);
  set(validity, 0, 100, PlaceSet{0b11});
  set(validity, 10, 20, PlaceSet{0b10});
  set(validity, 52, 60, PlaceSet{0b10});
  CopyCosts costs;
  costs.merge_below = 32;
  EXPECT_EQ(planned(validity, 0, 100, 0, costs), "10-20<1 52-60<1 ");
  costs.merge_below = 33;
  EXPECT_EQ(planned(validity, 0, 100, 0, costs), "10-60<1 ");
  EXPECT_EQ(planned(validity, 12, 54, 0, costs), "12-54<1 ");
  set(validity, 30, 31, PlaceSet{0b01});
  EXPECT_EQ(planned(validity, 0, 100, 0, costs), "10-20<1 52-60<1 ");
}

TEST(Validity, GrowsBeyondWhatFitsInsideAndMovesWithAllOfIt) {
  Validity validity(1000);
  for (std::size_t i = 0; i < 500; ++i) {
    ASSERT_TRUE(validity.make_room());
    validity.apply(Access::discard, 2 * i, 2 * i + 1, i % 3 == 0 ? 1 : 0);
  }
  EXPECT_EQ(validity.size(), 1000u);
  Validity moved = std::move(validity);
  EXPECT_EQ(moved.size(), 1000u);
  EXPECT_TRUE(moved.is_only(6, 7, 1));
  EXPECT_EQ(moved.first_unwritten(2, 9), (ByteRange{3, 4}));
  ASSERT_TRUE(moved.make_room());
  moved.apply(Access::discard, 0, 1000, 2);
  EXPECT_TRUE(moved.is_uniform());
  EXPECT_TRUE(moved.check(PlaceSet::of(2)));

  Validity few(10);
  few.apply(Access::discard, 2, 4, 1);
  moved = std::move(few);
  EXPECT_TRUE(moved.is_only(2, 4, 1));
  EXPECT_EQ(moved.first_unwritten(2, 10), (ByteRange{4, 10}));
}

TEST(Validity, SaysWhichPlaceIsNone) {
  Validity validity(8);
  validity.apply(Access::discard, 0, 8, 3);
  EXPECT_TRUE(validity.check(PlaceSet::of(3)));
  const Result<void> refused = validity.check(PlaceSet::of(2));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.failure().code(), ErrorCode::violation);
  EXPECT_EQ(refused.failure().string("what"), "a place is none");
}

TEST(Validity, OfNoBytesHasNothingToSay) {
  Validity validity(0);
  validity.apply(Access::discard, 0, 0, 1);
  EXPECT_EQ(planned(validity, 0, 0, 0), "");
  EXPECT_TRUE(validity.is_valid(0, 0, 5));
  EXPECT_TRUE(validity.check({}));
}

// --- The oracle: the expected value of each byte after any sequence of moves

/// The right one, a harmless variation, and the wrong ones that others have shipped.
enum class Rule {
  exact,
  merge_gaps_of_the_source,
  chunks_with_edges_fetched,
  merge_every_gap,
  chunks_without_fetching,
  one_flag_pair,
  reading_a_part_marks_the_whole,
  discarding_a_part_spoils_the_whole,
  cap_blurs_the_closest_pair,
  drop_frees_the_only_copy,
};

class Oracle {
 public:
  static constexpr std::size_t bytes = 256, gap = 32, chunk = 16, cap = 4;

  Oracle(Rule rule, unsigned places, std::uint64_t seed)
      : rule_(rule), random_(seed), memory_(places, std::vector<std::uint32_t>(bytes, 0)) {}

  void step() {
    const unsigned place = number(static_cast<unsigned>(memory_.size()));
    if (number(16) == 0) {
      drop(place);
    } else {
      // A view of a view of the whole.
      std::size_t begin = 0, end = bytes;
      for (unsigned depth = 1 + number(3); depth > 0; --depth) {
        const std::size_t from = begin + number(static_cast<unsigned>(end - begin));
        end = from + 1 + number(static_cast<unsigned>(end - from));
        begin = from;
      }
      const Access access = all_accesses[number(3)];
      open(place, begin, end, access);
      work(place, begin, end, access);
    }
    if (rule_ == Rule::cap_blurs_the_closest_pair) blur();
    if (!validity_.check(PlaceSet{(std::uint64_t{1} << memory_.size()) - 1})) ++wrong_bytes;
  }

  std::uint64_t wrong_bytes = 0, read_bytes = 0, copies = 0, moved_bytes = 0;

 private:
  [[nodiscard]] unsigned number(unsigned below) { return static_cast<unsigned>(random_() % below); }

  void copy(const CopyRun& run, unsigned place) {
    ++copies;
    moved_bytes += run.end - run.begin;
    std::copy(memory_[run.source].begin() + static_cast<std::ptrdiff_t>(run.begin),
              memory_[run.source].begin() + static_cast<std::ptrdiff_t>(run.end),
              memory_[place].begin() + static_cast<std::ptrdiff_t>(run.begin));
  }

  void fetch(unsigned place, std::size_t begin, std::size_t end) {
    CopyCosts costs;
    if (rule_ == Rule::merge_gaps_of_the_source) costs.merge_below = gap + 1;
    runs_.clear();
    static_cast<void>(validity_.plan(begin, end, place, costs, runs_));
    if (rule_ == Rule::merge_every_gap) {
      std::vector<CopyRun> merged;
      for (const CopyRun& run : runs_) {
        if (!merged.empty() && merged.back().source == run.source &&
            run.begin - merged.back().end <= gap) {
          merged.back().end = run.end;
        } else {
          merged.push_back(run);
        }
      }
      runs_ = std::move(merged);
    }
    for (const CopyRun& run : runs_) copy(run, place);
    static_cast<void>(validity_.make_room());
    if (rule_ == Rule::one_flag_pair || rule_ == Rule::reading_a_part_marks_the_whole) {
      validity_.apply(Access::read, 0, bytes, place);
    } else {
      validity_.apply(Access::read, begin, end, place);
    }
  }

  void open(unsigned place, std::size_t begin, std::size_t end, Access access) {
    if (needs_old_bytes(access)) fetch(place, begin, end);
    if (!is_write(access)) return;
    std::size_t from = begin, to = end;
    if (rule_ == Rule::chunks_with_edges_fetched || rule_ == Rule::chunks_without_fetching) {
      from = begin / chunk * chunk;
      to = (end + chunk - 1) / chunk * chunk;
      if (rule_ == Rule::chunks_with_edges_fetched) {
        fetch(place, from, begin);
        fetch(place, end, to);
      }
    }
    if (rule_ == Rule::one_flag_pair) from = 0, to = bytes;
    static_cast<void>(validity_.make_room());
    validity_.apply(access, from, to, place);
    if (rule_ == Rule::discarding_a_part_spoils_the_whole && access == Access::discard) {
      for (unsigned other = 0; other < memory_.size(); ++other) {
        if (other == place) continue;
        static_cast<void>(validity_.make_room());
        validity_.remove(0, bytes, other);
      }
    }
  }

  void work(unsigned place, std::size_t begin, std::size_t end, Access access) {
    for (std::size_t i = begin; i < end; ++i) {
      if (needs_old_bytes(access) && truth_[i] != 0) {
        ++read_bytes;
        if (memory_[place][i] != truth_[i]) ++wrong_bytes;
      }
      if (access == Access::discard || (access == Access::read_write && number(2) == 0)) {
        memory_[place][i] = truth_[i] = ++version_;
      }
    }
  }

  void drop(unsigned place) {
    const unsigned other = (place + 1) % static_cast<unsigned>(memory_.size());
    if (rule_ != Rule::drop_frees_the_only_copy) {
      // What only this place has goes to the next one.
      std::vector<ByteRange> alone;
      validity_.visit(0, bytes, [&](std::size_t begin, std::size_t end, PlaceSet valid) {
        if (valid == PlaceSet::of(place)) alone.push_back({begin, end});
      });
      for (const ByteRange& one : alone) fetch(other, one.begin, one.end);
    }
    validity_.remove(0, bytes, place);
    std::ranges::fill(memory_[place], 0xCBCBCBCB);
    if (rule_ == Rule::drop_frees_the_only_copy) {
      // The next one is what there is.
      for (std::size_t i = 0; i < bytes; ++i) {
        if (truth_[i] == 0 || validity_.first_unwritten(i, i + 1) == ByteRange{}) continue;
        set(validity_, i, i + 1, PlaceSet::of(other));
      }
    }
  }

  void blur() {
    while (validity_.size() > cap) {
      std::size_t from = 0, to = bytes, before = 0;
      validity_.visit(0, bytes, [&](std::size_t begin, std::size_t end, PlaceSet) {
        if (begin > 0 && end - begin < to - from) from = begin, to = end;
      });
      before = from - 1;
      set(validity_, from, to, validity_.valid_everywhere(before, from));
    }
  }

  const Rule rule_;
  std::mt19937_64 random_;
  Validity validity_{bytes};
  std::vector<std::vector<std::uint32_t>> memory_;
  std::array<std::uint32_t, bytes> truth_ = {};
  std::uint32_t version_ = 0;
  std::vector<CopyRun> runs_;
};

struct Total {
  std::uint64_t wrong_bytes = 0, read_bytes = 0, copies = 0, moved_bytes = 0;
};

Total run(Rule rule, unsigned seeds, unsigned steps) {
  Total total;
  for (unsigned seed = 0; seed < seeds; ++seed) {
    Oracle oracle(rule, 2 + seed % 4, seed);
    for (unsigned i = 0; i < steps; ++i) oracle.step();
    total.wrong_bytes += oracle.wrong_bytes;
    total.read_bytes += oracle.read_bytes;
    total.copies += oracle.copies;
    total.moved_bytes += oracle.moved_bytes;
  }
  return total;
}

TEST(ValidityOracle, FindsNoWrongByteInAThousandRuns) {
  const Total exact = run(Rule::exact, 1000, 400);
  EXPECT_EQ(exact.wrong_bytes, 0u);
  EXPECT_GT(exact.read_bytes, 5'000'000u);
  const Total merged = run(Rule::merge_gaps_of_the_source, 1000, 400);
  EXPECT_EQ(merged.wrong_bytes, 0u);
  EXPECT_LT(merged.copies, exact.copies);
  EXPECT_GT(merged.moved_bytes, exact.moved_bytes);
  EXPECT_EQ(run(Rule::chunks_with_edges_fetched, 100, 400).wrong_bytes, 0u);
}

TEST(ValidityOracle, FindsEveryWrongRule) {
  for (const Rule rule :
       {Rule::merge_every_gap, Rule::chunks_without_fetching, Rule::one_flag_pair,
        Rule::reading_a_part_marks_the_whole, Rule::discarding_a_part_spoils_the_whole,
        Rule::cap_blurs_the_closest_pair, Rule::drop_frees_the_only_copy}) {
    EXPECT_GT(run(rule, 4, 400).wrong_bytes, 0u) << static_cast<int>(rule);
  }
}

}  // namespace
}  // namespace tern::test
