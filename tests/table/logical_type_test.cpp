#include <gtest/gtest.h>

#include <set>
#include <string>

#include "tern/table/schema.hpp"

namespace tern {
namespace {

TEST(LogicalType, EveryKindHasANameAndALayout) {
  std::set<std::string_view> names;
#define TERN_TYPE_KIND(enumerator, text) names.insert(name(TypeKind::enumerator));
  TERN_FOR_EACH_TYPE_KIND(TERN_TYPE_KIND)
#undef TERN_TYPE_KIND
  EXPECT_EQ(names.size(), 21u);
  EXPECT_EQ(names.count("unknown"), 0u);
  EXPECT_EQ(LogicalType(TypeKind::boolean).width_bits(), 1u);
  EXPECT_EQ(LogicalType(TypeKind::boolean).dtype(), DType::byte);
  EXPECT_EQ(LogicalType(TypeKind::date32).dtype(), DType::i32);
  EXPECT_EQ(LogicalType(TypeKind::date64).dtype(), DType::i64);
  EXPECT_EQ(LogicalType(TypeKind::f16).width_bits(), 16u);
  EXPECT_EQ(LogicalType(TypeKind::utf8).width_bits(), 0u);
  EXPECT_EQ(LogicalType(TypeKind::utf8).offset_dtype(), DType::i32);
  EXPECT_EQ(LogicalType(TypeKind::large_binary).offset_dtype(), DType::i64);
  EXPECT_EQ(LogicalType(TypeKind::i64).offset_dtype(), DType::void_);
}

TEST(LogicalType, TimesOfADayAreAsWideAsTheirUnitNeeds) {
  EXPECT_EQ(LogicalType::time(TimeUnit::second).dtype(), DType::i32);
  EXPECT_EQ(LogicalType::time(TimeUnit::millisecond).dtype(), DType::i32);
  EXPECT_EQ(LogicalType::time(TimeUnit::microsecond).dtype(), DType::i64);
  EXPECT_EQ(LogicalType::time(TimeUnit::nanosecond).dtype(), DType::i64);
  EXPECT_EQ(LogicalType::duration(TimeUnit::second).dtype(), DType::i64);
}

TEST(LogicalType, UnitsAndZonesMakeADifference) {
  const LogicalType berlin = LogicalType::timestamp(TimeUnit::microsecond, "Europe/Berlin");
  EXPECT_EQ(berlin.text(), "timestamp[us, Europe/Berlin]");
  EXPECT_NE(berlin, LogicalType::timestamp(TimeUnit::microsecond));
  EXPECT_NE(berlin, LogicalType::timestamp(TimeUnit::nanosecond, "Europe/Berlin"));
  EXPECT_EQ(berlin, LogicalType::timestamp(TimeUnit::microsecond, "Europe/Berlin"));
  EXPECT_EQ(LogicalType(TypeKind::f32).text(), "f32");
}

TEST(LogicalType, NumbersHaveOneAndOtherElementsHaveNone) {
  EXPECT_EQ(LogicalType::try_of(DType::u16).value(), LogicalType(TypeKind::u16));
  EXPECT_EQ(LogicalType::try_of(DType::boolean).value(), LogicalType(TypeKind::boolean));
  EXPECT_EQ(LogicalType::try_of(DType::complex64).failure().code(), ErrorCode::type_mismatch);
  EXPECT_EQ(LogicalType::try_of(DType::void_).failure().code(), ErrorCode::type_mismatch);
}

}  // namespace
}  // namespace tern
