// The Failure of core/error. The codes and the exceptions are in error_test.cpp.

#include <gtest/gtest.h>

#include <string>

#include "support/allocation_counter.hpp"
#include "tern/core/error.hpp"

namespace tern {
namespace {

using namespace std::string_literals;

constexpr ErrorCode code = ErrorCode::driver;

/// The first `capacity` bytes of the text, as render() leaves them in a buffer.
std::string rendered(const Failure& failure, std::size_t capacity) {
  std::string buffer(capacity + 1, '#');
  const std::size_t length = failure.render(buffer.data(), capacity);
  EXPECT_EQ(buffer[capacity], '#') << "written past the end";
  EXPECT_TRUE(capacity == 0 || buffer[length] == '\0');
  return buffer.substr(0, length);
}

TEST(Failure, KeepsTheNumbersAsFields) {
  const Failure failure = Failure(code).with("code", 2).with_bytes("free", 11).with_signed("x", -3);
  EXPECT_EQ(failure.code(), code);
  EXPECT_EQ(failure.number("code"), 2u);
  EXPECT_EQ(failure.number("free"), 11u);
  EXPECT_EQ(failure.number("x"), static_cast<std::uint64_t>(-3));
  EXPECT_EQ(failure.number("nothing"), std::nullopt);
}

TEST(Failure, KeepsACopyOfTheTexts) {
  std::string text = "libcuda.so.1";
  const Failure failure = Failure(code).with("library", text).with("empty", "");
  text.assign(text.size(), '#');
  EXPECT_EQ(failure.string("library"), "libcuda.so.1");
  EXPECT_EQ(failure.string("empty"), "");
  EXPECT_EQ(failure.string("nothing"), std::nullopt);
}

TEST(Failure, GivesNumbersAndTextsOnlyAsWhatTheyAre) {
  const Failure failure = Failure(code).with("number", 1).with("text", "one");
  EXPECT_EQ(failure.string("number"), std::nullopt);
  EXPECT_EQ(failure.number("text"), std::nullopt);
}

TEST(Failure, ReadsANullTextAsAnEmptyOne) {
  const char* const null = nullptr;
  EXPECT_EQ(Failure(code).with("name", null).string("name"), "");
}

TEST(Failure, ListsItsFieldsInTheOrderTheyWereAdded) {
  const Failure failure = Failure(code).with("a", "x").with_bytes("b", 5).with("c", "yz");
  ASSERT_EQ(failure.field_count(), 3u);
  EXPECT_EQ(failure.field(0).name, "a");
  EXPECT_EQ(failure.field(0).unit, Unit::text);
  EXPECT_EQ(failure.field(0).text, "x");
  EXPECT_EQ(failure.field(1).name, "b");
  EXPECT_EQ(failure.field(1).unit, Unit::bytes);
  EXPECT_EQ(failure.field(1).number, 5u);
  EXPECT_EQ(failure.field(2).text, "yz");
  EXPECT_EQ(failure.field(3).name, "") << "past the last there is an empty one";
}

TEST(Failure, PrintsEachNumberInItsUnit) {
  const Failure failure = Failure(code, "{a} {b} {c} {d} {e} {f}")
                              .with("a", ~std::uint64_t{0})
                              .with_bytes("b", 25769803776)
                              .with_signed("c", std::numeric_limits<std::int64_t>::min())
                              .with("d", 250, Unit::nanoseconds)
                              .with("e", 0xfeedface, Unit::hex)
                              .with("f", "text");
  EXPECT_EQ(failure.text(),
            "18446744073709551615 24.0 GiB -9223372036854775808 250 ns 0xfeedface text");
}

TEST(Failure, PrintsAQuestionMarkForAFieldItDoesNotHave) {
  EXPECT_EQ(Failure(code, "{a} of {} and {b}.").with("b", 1).text(), "? of ? and 1.");
}

TEST(Failure, PrintsABraceThatIsNotClosed) {
  EXPECT_EQ(Failure(code, "{a} and {b").with("a", 1).text(), "1 and {b");
  EXPECT_EQ(Failure(code, "{").text(), "{");
  EXPECT_EQ(Failure(code, "} {a}").with("a", 1).text(), "} 1");
  EXPECT_EQ(Failure(code, "").text(), "");
}

TEST(Failure, FillsNoPlaceholderThatStandsInAFieldsText) {
  EXPECT_EQ(Failure(code, "'{a}'").with("a", "{b}").with("b", 1).text(), "'{b}'");
}

TEST(Failure, PrintsTheFirstOfTwoFieldsOfOneName) {
  const Failure failure = Failure(code, "{a} {a}").with("a", 1).with("a", 2);
  EXPECT_EQ(failure.text(), "1 1");
  EXPECT_EQ(failure.number("a"), 1u);
}

TEST(Failure, KeepsSixteenFieldsAndDropsTheSeventeenth) {
  Failure failure(code, "{0} {f} {g}");
  const char* names[] = {"0", "1", "2", "3", "4", "5", "6", "7",
                         "8", "9", "a", "b", "c", "d", "e", "f"};
  for (std::size_t i = 0; i < std::size(names); ++i) failure.with(names[i], i);
  failure.with("g", 16).with("g", "sixteen");
  EXPECT_EQ(failure.field_count(), Failure::max_fields);
  EXPECT_EQ(failure.number("f"), 15u);
  EXPECT_EQ(failure.number("g"), std::nullopt);
  EXPECT_EQ(failure.string("g"), std::nullopt);
  EXPECT_EQ(failure.text(), "0 15 ?");
}

TEST(Failure, KeepsATextThatFillsAllItsRoom) {
  const std::string whole(Failure::max_text_bytes, 'a');
  EXPECT_EQ(Failure(code).with("a", whole).string("a"), whole);
  EXPECT_EQ(Failure(code).with("a", whole + "a").string("a"),
            whole.substr(0, whole.size() - 3) + "...");
}

TEST(Failure, CutsATextBetweenTwoCharacters) {
  std::string euros;
  for (int i = 0; i < 100; ++i) euros += "\xe2\x82\xac";
  for (const std::string& before : {""s, "a"s, "aa"s}) {
    const std::string text = before + euros;
    const std::size_t beside_dots = Failure::max_text_bytes - 3;
    const std::size_t whole = beside_dots - (beside_dots - before.size()) % 3;
    EXPECT_EQ(Failure(code).with("a", text).string("a"), text.substr(0, whole) + "...");
  }
}

TEST(Failure, SharesItsRoomAmongTheTextsAndMarksEachThatIsCut) {
  const std::string all_but_sixty(Failure::max_text_bytes - 60, 'a');
  const Failure failure = Failure(code)
                              .with("a", all_but_sixty)
                              .with("b", std::string(100, 'b'))
                              .with("c", "c")
                              .with("d", std::string(1000, 'd'))
                              .with("e", "");
  EXPECT_EQ(failure.string("a"), all_but_sixty);
  EXPECT_EQ(failure.string("b"), std::string(57, 'b') + "...");
  EXPECT_EQ(failure.string("c"), "...");
  EXPECT_EQ(failure.string("d"), "...");
  EXPECT_EQ(failure.string("e"), "");
}

TEST(Failure, MarksACutTextHoweverLittleRoomIsLeft) {
  for (std::size_t room = 0; room <= 5; ++room) {
    const std::string first(Failure::max_text_bytes - room, 'a');
    const Failure failure =
        Failure(code).with("a", first).with("b", "bbbbbbbb").with("c", "cccc").with("d", "dddd");
    EXPECT_EQ(failure.string("a"), first);
    EXPECT_EQ(failure.string("b"), std::string(room > 3 ? room - 3 : 0, 'b') + "...") << room;
    EXPECT_EQ(failure.string("c"), "...");
    EXPECT_EQ(failure.string("d"), "...");
  }
}

TEST(Failure, RendersIntoTheSmallestBuffers) {
  const Failure failure = Failure(code, "ab{n}").with("n", 12);
  EXPECT_EQ(failure.render(nullptr, 0), 0u);
  EXPECT_EQ(rendered(failure, 0), "");
  EXPECT_EQ(rendered(failure, 1), "");
  EXPECT_EQ(rendered(failure, 2), "a");
  EXPECT_EQ(rendered(failure, 4), "ab1");
  EXPECT_EQ(rendered(failure, 5), "ab12");
  EXPECT_EQ(rendered(failure, 100), "ab12");
}

TEST(Failure, RendersAPrefixOfItsTextIntoABufferOfAnySize) {
  const Failure failure = Failure(code, "\xe2\x82\xac{a}x{b}y").with("a", "\xc3\xa9").with("b", 1);
  const std::string whole = failure.text();
  EXPECT_EQ(whole, "\xe2\x82\xac\xc3\xa9x1y");
  // Capacities count the closing zero; the first two characters take three and two bytes.
  const std::size_t lengths[] = {0, 0, 0, 0, 3, 3, 5, 6, 7, 8, 8};
  for (std::size_t capacity = 0; capacity < std::size(lengths); ++capacity) {
    EXPECT_EQ(rendered(failure, capacity), whole.substr(0, lengths[capacity])) << capacity;
  }
}

TEST(Failure, TakesNothingFromTheHeapNorDoesItsRendering) {
  char buffer[128];
  const std::string long_text(1000, 'a');
  const test::AllocationCounter counter;
  Failure failure(ErrorCode::out_of_budget);
  failure.with("layer", long_text).with_bytes("requested", 512).with_signed("limit", -1);
  failure.with("current", 1, Unit::hex).with("peak", 2, Unit::nanoseconds);
  const Failure copy = failure;
  const std::size_t length = copy.render(buffer, sizeof buffer);
  EXPECT_EQ(counter.count(), 0u);
  EXPECT_EQ(length, 127u);
}

}  // namespace
}  // namespace tern
