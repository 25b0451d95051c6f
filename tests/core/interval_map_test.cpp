#include "core/interval_map.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <random>
#include <string>
#include <tuple>
#include <vector>

namespace tern {
namespace {

constexpr std::uint64_t last_offset = std::numeric_limits<std::uint64_t>::max();

/// "[0,4)a [4,8)b": what the map holds.
std::string text(const IntervalMap<char>& map) {
  std::string text;
  for (const auto& [begin, interval] : map) {
    if (!text.empty()) text += ' ';
    text += "[" + std::to_string(begin) + "," + std::to_string(interval.end) + ")" + interval.value;
  }
  return text;
}

/// The same as visit() shows it; '-' is a gap.
std::string visited(const IntervalMap<char>& map, std::uint64_t begin, std::uint64_t end) {
  std::string text;
  map.visit(begin, end, [&](std::uint64_t from, std::uint64_t to, const char* value) {
    if (!text.empty()) text += ' ';
    text += "[" + std::to_string(from) + "," + std::to_string(to) + ")" +
            (value == nullptr ? '-' : *value);
    return true;
  });
  return text;
}

TEST(IntervalMap, ReplacesWhatIsUnderAnAssignment) {
  IntervalMap<char> map;
  EXPECT_TRUE(map.empty());
  map.assign(10, 20, 'a');
  EXPECT_EQ(text(map), "[10,20)a");
  map.assign(10, 20, 'b');
  EXPECT_EQ(text(map), "[10,20)b");
  map.assign(12, 14, 'c');
  EXPECT_EQ(text(map), "[10,12)b [12,14)c [14,20)b");
  map.assign(0, 13, 'd');
  EXPECT_EQ(text(map), "[0,13)d [13,14)c [14,20)b");
  map.assign(13, 30, 'e');
  EXPECT_EQ(text(map), "[0,13)d [13,30)e");
  map.assign(0, 40, 'f');
  EXPECT_EQ(text(map), "[0,40)f");
  map.clear();
  EXPECT_EQ(map.size(), 0u);
}

TEST(IntervalMap, TakesAnEmptyRangeForNothing) {
  IntervalMap<char> map;
  map.assign(5, 5, 'a');
  map.erase(5, 5);
  map.update(5, 5, [](std::uint64_t, std::uint64_t, char&) { FAIL(); });
  EXPECT_TRUE(map.empty());

  map.assign(0, 10, 'a');
  map.assign(5, 5, 'b');
  map.erase(5, 5);
  map.update(5, 5, [](std::uint64_t, std::uint64_t, char&) { FAIL(); });
  EXPECT_EQ(text(map), "[0,10)a");
  EXPECT_EQ(visited(map, 5, 5), "");
}

TEST(IntervalMap, ErasesExactlyTheBytesNamed) {
  IntervalMap<char> map;
  map.assign(0, 10, 'a');
  map.erase(4, 6);
  EXPECT_EQ(text(map), "[0,4)a [6,10)a");
  map.erase(4, 6);
  map.erase(0, 1);
  map.erase(9, 100);
  EXPECT_EQ(text(map), "[1,4)a [6,9)a");
  map.erase(0, 100);
  EXPECT_TRUE(map.empty());
}

TEST(IntervalMap, SplitsOnlyInsideAnInterval) {
  IntervalMap<char> map;
  map.assign(4, 8, 'a');
  for (const std::uint64_t offset : {0u, 3u, 4u, 8u, 9u}) map.split(offset);
  EXPECT_EQ(text(map), "[4,8)a");
  map.split(7);
  EXPECT_EQ(text(map), "[4,7)a [7,8)a");
}

TEST(IntervalMap, FindsTheIntervalThatHoldsAByte) {
  IntervalMap<char> map;
  map.assign(4, 8, 'a');
  map.assign(8, 9, 'b');
  EXPECT_EQ(map.find(3), map.end());
  EXPECT_EQ(map.find(4)->second.value, 'a');
  EXPECT_EQ(map.find(7)->second.value, 'a');
  EXPECT_EQ(map.find(8)->second.value, 'b');
  EXPECT_EQ(map.find(9), map.end());
  EXPECT_EQ(map.first_behind(0)->first, 4u);
  EXPECT_EQ(map.first_behind(9), map.end());
}

TEST(IntervalMap, VisitsIntervalsAndGapsInOrder) {
  IntervalMap<char> map;
  EXPECT_EQ(visited(map, 2, 9), "[2,9)-");
  map.assign(4, 6, 'a');
  map.assign(6, 7, 'b');
  EXPECT_EQ(visited(map, 0, 9), "[0,4)- [4,6)a [6,7)b [7,9)-");
  EXPECT_EQ(visited(map, 5, 7), "[5,6)a [6,7)b");
  EXPECT_EQ(visited(map, 5, 6), "[5,6)a");
  EXPECT_EQ(visited(map, 0, 4), "[0,4)-");
  EXPECT_EQ(visited(map, 7, 8), "[7,8)-");
}

TEST(IntervalMap, StopsAVisitOnDemand) {
  IntervalMap<char> map;
  map.assign(4, 6, 'a');
  map.assign(6, 8, 'b');
  for (int wanted = 1; wanted <= 3; ++wanted) {
    int count = 0;
    map.visit(0, 8, [&](std::uint64_t, std::uint64_t, const char*) { return ++count < wanted; });
    EXPECT_EQ(count, wanted);
  }
}

TEST(IntervalMap, HoldsTheWholeRangeOfOffsets) {
  IntervalMap<char> map;
  map.assign(0, last_offset, 'a');
  map.assign(last_offset - 1, last_offset, 'b');
  EXPECT_EQ(visited(map, last_offset - 2, last_offset),
            "[18446744073709551613,18446744073709551614)a "
            "[18446744073709551614,18446744073709551615)b");
  map.erase(0, last_offset);
  EXPECT_TRUE(map.empty());
}

TEST(IntervalMap, JoinsOnlyNeighboursThatTouch) {
  IntervalMap<char> map;
  map.assign(0, 2, 'a');
  map.assign(2, 4, 'a');
  map.assign(4, 6, 'a');
  map.assign(7, 8, 'a');
  map.assign(8, 9, 'b');
  map.join(
      [](std::uint64_t, char& left, std::uint64_t, const char& right) { return left == right; });
  EXPECT_EQ(text(map), "[0,6)a [7,8)a [8,9)b");
}

TEST(IntervalMap, LetsTheLeftValueStandForBothWhenItJoins) {
  IntervalMap<char> map;
  map.assign(0, 2, 'a');
  map.assign(2, 4, 'b');
  map.assign(4, 6, 'c');
  std::vector<std::pair<std::uint64_t, std::uint64_t>> pairs;
  map.join([&](std::uint64_t begin, char& left, std::uint64_t next, const char& right) {
    pairs.emplace_back(begin, next);
    left = right;
    return true;
  });
  EXPECT_EQ(text(map), "[0,6)c");
  EXPECT_EQ(pairs, (std::vector<std::pair<std::uint64_t, std::uint64_t>>{{0, 2}, {0, 4}}));
}

TEST(IntervalMap, ErasesTheIntervalsThatAreUseless) {
  IntervalMap<char> map;
  map.assign(0, 2, 'a');
  map.assign(2, 4, 'b');
  map.assign(4, 6, 'a');
  map.erase_if([](std::uint64_t begin, char value) { return begin > 0 && value == 'a'; });
  EXPECT_EQ(text(map), "[0,2)a [2,4)b");
}

/// The same map as one value per byte.
class ByteMap {
 public:
  static constexpr std::uint64_t size = 48;
  std::array<std::optional<int>, size> bytes = {};

  [[nodiscard]] bool equals(const IntervalMap<int>& map) const {
    std::uint64_t seen = 0;
    bool is_equal = true;
    map.visit(0, size, [&](std::uint64_t from, std::uint64_t to, const int* value) {
      is_equal = is_equal && from == seen && from < to;
      for (std::uint64_t at = from; at < to; ++at) {
        is_equal = is_equal && bytes[at] == (value == nullptr ? std::optional<int>() : *value);
      }
      seen = to;
      return true;
    });
    std::uint64_t end = 0;
    for (const auto& [begin, interval] : map) {
      is_equal = is_equal && begin >= end && begin < interval.end;
      end = interval.end;
    }
    return is_equal && seen == size;
  }
};

TEST(IntervalMap, AgreesWithAnArrayOfBytesUnderRandomOperations) {
  for (unsigned seed = 0; seed < 300; ++seed) {
    std::mt19937 random(seed);
    const auto below = [&](std::uint64_t bound) { return random() % bound; };
    IntervalMap<int> map;
    ByteMap bytes;
    for (int step = 0; step < 200; ++step) {
      const std::uint64_t begin = below(ByteMap::size + 1);
      const std::uint64_t end = begin + below(ByteMap::size + 1 - begin);
      const int value = static_cast<int>(below(3));
      switch (below(6)) {
        case 0:
          map.split(begin);
          break;
        case 1:
          map.erase(begin, end);
          for (std::uint64_t at = begin; at < end; ++at) bytes.bytes[at].reset();
          break;
        case 2:
          map.update(begin, end, [&](std::uint64_t from, std::uint64_t to, int& changed) {
            EXPECT_TRUE(begin <= from && from < to && to <= end) << "seed " << seed;
            changed += 3;
          });
          for (std::uint64_t at = begin; at < end; ++at) {
            if (bytes.bytes[at]) *bytes.bytes[at] += 3;
          }
          break;
        case 3: {
          map.join([](std::uint64_t, int& a, std::uint64_t, const int& b) { return a == b; });
          std::size_t runs = 0;
          for (std::uint64_t at = 0; at < ByteMap::size; ++at) {
            const bool begins = at == 0 || bytes.bytes[at - 1] != bytes.bytes[at];
            if (bytes.bytes[at] && begins) ++runs;
          }
          EXPECT_EQ(map.size(), runs) << "seed " << seed;
          break;
        }
        default:
          map.assign(begin, end, value);
          for (std::uint64_t at = begin; at < end; ++at) bytes.bytes[at] = value;
      }
      ASSERT_TRUE(bytes.equals(map)) << "seed " << seed << " step " << step;
      const auto found = map.find(begin);
      const bool is_held = begin < ByteMap::size && bytes.bytes[begin].has_value();
      ASSERT_EQ(found != map.end(), is_held) << "seed " << seed << " step " << step;
    }
  }
}

}  // namespace
}  // namespace tern
