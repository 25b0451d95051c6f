#include "tern/table/schema.hpp"

#include <gtest/gtest.h>

#include <array>
#include <vector>

namespace tern {
namespace {

const Field symbol = {"s", TypeKind::u32, false, {{std::string(Field::type_key), "symbol"}}};

TEST(Schema, FindsFieldsByPlaceAndName) {
  const Schema schema({{"a", TypeKind::i32}, {"b", TypeKind::utf8}, {"a", TypeKind::f64}},
                      {{"origin", "test"}});
  EXPECT_EQ(schema.size(), 3u);
  EXPECT_EQ(schema.field(1)->name, "b");
  EXPECT_EQ(schema.field(3), nullptr);
  EXPECT_EQ(schema.find("a"), 0u);
  EXPECT_EQ(schema.find("c"), std::nullopt);
  EXPECT_EQ(schema.metadata().find("origin"), "test");
  EXPECT_EQ(schema.metadata().find("nothing"), std::nullopt);
  EXPECT_EQ(Schema().size(), 0u);
  EXPECT_EQ(Schema().find("a"), std::nullopt);
  EXPECT_TRUE(Schema().metadata().empty());
}

TEST(Schema, SelectsInTheOrderThatIsAskedFor) {
  const Schema schema({{"a", TypeKind::i32}, {"b", TypeKind::utf8}}, {{"k", "v"}});
  const std::array<std::size_t, 3> wanted = {1, 0, 1};
  const Schema chosen = schema.select(wanted);
  EXPECT_EQ(chosen, Schema({{"b", TypeKind::utf8}, {"a", TypeKind::i32}, {"b", TypeKind::utf8}},
                           {{"k", "v"}}));
  const std::array<std::size_t, 1> beyond = {2};
  const Failure refused = schema.try_select(beyond).failure();
  EXPECT_EQ(refused.code(), ErrorCode::out_of_bounds);
  EXPECT_EQ(refused.number("index"), 2u);
}

TEST(Schema, ComparesEverything) {
  const Schema schema({{"a", TypeKind::i32}});
  EXPECT_EQ(schema, Schema({{"a", TypeKind::i32}}));
  EXPECT_NE(schema, Schema({{"b", TypeKind::i32}}));
  EXPECT_NE(schema, Schema({{"a", TypeKind::u32}}));
  EXPECT_NE(schema, Schema({{"a", TypeKind::i32, false}}));
  EXPECT_NE(schema, Schema({{"a", TypeKind::i32, true, {{"k", "v"}}}}));
  EXPECT_NE(schema, Schema({{"a", TypeKind::i32}}, {{"k", "v"}}));
  EXPECT_NE(schema, Schema());
}

bool matches(const Field& given, const Field& wanted, SchemaMatch options = {}) {
  return bool(Schema({given}).check_match(Schema({wanted}), options));
}

TEST(Schema, MatchesByTheGridOfWhatMayChange) {
  const SchemaMatch sign = {.allows_sign_change = true};
  const SchemaMatch number = {.allows_symbol_as_number = true};
  const auto of = [](LogicalType type) { return Field{"s", std::move(type), false}; };
  // Given, wanted, and whether it goes exactly, with changes of sign, with symbols as numbers.
  struct Row {
    Field given, wanted;
    bool exact, by_sign, by_symbol;
  };
  const std::vector<Row> grid = {
      {of(TypeKind::i32), of(TypeKind::i32), true, true, true},
      {of(TypeKind::i32), of(TypeKind::u32), false, true, true},
      {of(TypeKind::u8), of(TypeKind::i8), false, true, false},
      {of(TypeKind::i64), of(TypeKind::i32), false, false, false},
      {of(TypeKind::f32), of(TypeKind::i32), false, false, false},
      {of(TypeKind::f32), of(TypeKind::f64), false, false, false},
      {of(TypeKind::boolean), of(TypeKind::u8), false, false, false},
      {of(TypeKind::date32), of(TypeKind::i32), false, false, false},
      {symbol, symbol, true, true, true},
      {symbol, of(TypeKind::u32), false, false, true},
      {of(TypeKind::i32), symbol, false, false, true},
      {symbol, of(TypeKind::f32), false, false, false},
      {of(LogicalType::timestamp(TimeUnit::second)),
       of(LogicalType::timestamp(TimeUnit::nanosecond)), false, false, false},
  };
  for (std::size_t i = 0; i < grid.size(); ++i) {
    EXPECT_EQ(matches(grid[i].given, grid[i].wanted), grid[i].exact) << i;
    EXPECT_EQ(matches(grid[i].given, grid[i].wanted, sign), grid[i].by_sign) << i;
    // Numbers that are no symbols change nothing but their sign, and that only by the other option.
    const bool has_symbol = !grid[i].given.metadata.empty() || !grid[i].wanted.metadata.empty();
    if (has_symbol || grid[i].exact) {
      EXPECT_EQ(matches(grid[i].given, grid[i].wanted, number), grid[i].by_symbol) << i;
    }
  }
}

TEST(Schema, RefusesOtherNamesNumbersAndNulls) {
  const Schema two({{"a", TypeKind::i32, false}, {"b", TypeKind::i32, false}});
  EXPECT_EQ(two.check_match(Schema({{"a", TypeKind::i32}})).failure().code(),
            ErrorCode::shape_mismatch);
  const Failure renamed =
      two.check_match(Schema({{"a", TypeKind::i32}, {"c", TypeKind::i32}})).failure();
  EXPECT_EQ(renamed.code(), ErrorCode::type_mismatch);
  EXPECT_EQ(renamed.string("field"), "b");
  EXPECT_EQ(renamed.string("wanted"), "c");
  EXPECT_TRUE(two.check_match(Schema({{"a", TypeKind::i32}, {"b", TypeKind::i32}})));
  EXPECT_FALSE(Schema({{"a", TypeKind::i32}}).check_match(Schema({{"a", TypeKind::i32, false}})));
}

}  // namespace
}  // namespace tern
