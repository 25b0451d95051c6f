#include "tern/core/dtype.hpp"

#include <gtest/gtest.h>

#include <complex>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

namespace mine {
struct Half {
  std::uint16_t bits;
};
struct Nothing {};
/// As libraries have their own.
template <class T>
struct Complex {
  using value_type = T;
  [[nodiscard]] T real() const { return parts[0]; }
  [[nodiscard]] T imag() const { return parts[1]; }
  T parts[2];
};
struct Quaternion : Complex<float> {
  float rest[2];
};
}  // namespace mine

template <>
struct tern::DTypeOf<mine::Half> {
  static constexpr DType value = DType::f16;
};

namespace tern {
namespace {

constexpr DType dtypes[] = {
#define TERN_DTYPE(enumerator, name, bytes) DType::enumerator,
    TERN_FOR_EACH_DTYPE(TERN_DTYPE)
#undef TERN_DTYPE
};

TEST(DType, HasTheWidthItsNameSays) {
  EXPECT_EQ(size_bytes(DType::void_), 0u);
  for (const DType one :
       {DType::byte, DType::boolean, DType::i8, DType::u8, DType::f8_e4m3fn, DType::f8_e5m2}) {
    EXPECT_EQ(size_bytes(one), 1u) << name(one);
  }
  for (const DType two : {DType::i16, DType::u16, DType::f16, DType::bf16}) {
    EXPECT_EQ(size_bytes(two), 2u) << name(two);
  }
  for (const DType four : {DType::i32, DType::u32, DType::f32}) {
    EXPECT_EQ(size_bytes(four), 4u) << name(four);
  }
  for (const DType eight : {DType::i64, DType::u64, DType::f64, DType::complex64, DType::index}) {
    EXPECT_EQ(size_bytes(eight), 8u) << name(eight);
  }
  EXPECT_EQ(size_bytes(DType::complex128), 16u);
  EXPECT_EQ(std::size(dtypes), 20u) << "a new type: give it a line above";
}

TEST(DType, IsAlignedLikeItsWidestScalar) {
  for (const DType dtype : dtypes) {
    const std::size_t alignment = alignment_bytes(dtype);
    EXPECT_GE(alignment, 1u);
    EXPECT_EQ(size_bytes(dtype) % alignment, 0u) << name(dtype);
  }
  EXPECT_EQ(alignment_bytes(DType::void_), 1u);
  EXPECT_EQ(alignment_bytes(DType::f64), 8u);
  EXPECT_EQ(alignment_bytes(DType::complex64), alignof(float));
  EXPECT_EQ(alignment_bytes(DType::complex128), alignof(double));
}

TEST(DType, IsReadBackFromItsName) {
  std::set<std::string_view> names;
  for (const DType dtype : dtypes) {
    names.insert(name(dtype));
    const Result<DType> parsed = try_parse_dtype(name(dtype));
    ASSERT_TRUE(parsed) << name(dtype);
    EXPECT_EQ(*parsed, dtype);
  }
  EXPECT_EQ(names.size(), std::size(dtypes));
  EXPECT_EQ(name(DType::boolean), "bool");
  EXPECT_EQ(name(DType::void_), "void");
}

TEST(DType, IsReadFromNumPysName) {
  const std::vector<std::pair<const char*, DType>> aliases = {
      {"int8", DType::i8},
      {"int16", DType::i16},
      {"int32", DType::i32},
      {"int64", DType::i64},
      {"uint8", DType::u8},
      {"uint16", DType::u16},
      {"uint32", DType::u32},
      {"uint64", DType::u64},
      {"float16", DType::f16},
      {"bfloat16", DType::bf16},
      {"float32", DType::f32},
      {"float64", DType::f64},
      {"half", DType::f16},
      {"double", DType::f64},
      {"complex64", DType::complex64},
      {"complex128", DType::complex128},
      {"float8_e4m3fn", DType::f8_e4m3fn},
      {"float8_e5m2", DType::f8_e5m2},
      {"bool", DType::boolean},
  };
  for (const auto& [text, dtype] : aliases) {
    const Result<DType> parsed = try_parse_dtype(text);
    ASSERT_TRUE(parsed) << text;
    EXPECT_EQ(*parsed, dtype) << text;
  }
}

TEST(DType, IsRefusedUnlessTheNameIsExact) {
  using namespace std::string_literals;
  for (const std::string& text :
       {""s, "F32"s, "f32 "s, " f32"s, "f3"s, "f322"s, "float"s, "f32\0"s, "void_"s, "boolean"s,
        "int"s, "complex"s, std::string(500, 'f')}) {
    const Result<DType> parsed = try_parse_dtype(text);
    ASSERT_FALSE(parsed) << text;
    EXPECT_EQ(parsed.failure().code(), ErrorCode::invalid_argument);
    EXPECT_EQ(parsed.failure().string("name"), "dtype");
  }
  const Failure failure = try_parse_dtype("f31").failure();
  EXPECT_EQ(failure.string("value"), "f31");
  EXPECT_EQ(failure.text(),
            "'f31' is not a dtype. Use a name such as f32, i64, bf16, bool or float32.");
}

TEST(DType, OfACppTypeGoesByWidthAndSign) {
  static_assert(dtype_of<std::byte>() == DType::byte);
  static_assert(dtype_of<bool>() == DType::boolean);
  static_assert(dtype_of<signed char>() == DType::i8);
  static_assert(dtype_of<unsigned char>() == DType::u8);
  static_assert(dtype_of<short>() == DType::i16);
  static_assert(dtype_of<unsigned short>() == DType::u16);
  static_assert(dtype_of<int>() == DType::i32);
  static_assert(dtype_of<unsigned>() == DType::u32);
  static_assert(dtype_of<long>() == DType::i64);
  static_assert(dtype_of<long long>() == DType::i64);
  static_assert(dtype_of<unsigned long>() == DType::u64);
  static_assert(dtype_of<unsigned long long>() == DType::u64);
  static_assert(dtype_of<std::size_t>() == DType::u64);
  static_assert(dtype_of<float>() == DType::f32);
  static_assert(dtype_of<double>() == DType::f64);
  static_assert(dtype_of<std::complex<float>>() == DType::complex64);
  static_assert(dtype_of<std::complex<double>>() == DType::complex128);
  static_assert(dtype_of<const mine::Complex<float>>() == DType::complex64);
  static_assert(dtype_of<mine::Complex<double>>() == DType::complex128);
}

TEST(DType, OfACppTypeIgnoresConstAndVolatile) {
  static_assert(dtype_of<const float>() == DType::f32);
  static_assert(dtype_of<volatile int>() == DType::i32);
  static_assert(dtype_of<const bool>() == DType::boolean);
  static_assert(HasDType<const float> && HasDType<const bool> && HasDType<const volatile int>);
  static_assert(!HasDType<const char> && !HasDType<const volatile wchar_t>);
}

TEST(DType, IsNotThereForTextLongDoublesPointersOrStructures) {
  static_assert(!HasDType<char> && !HasDType<wchar_t> && !HasDType<char8_t>);
  static_assert(!HasDType<char16_t> && !HasDType<char32_t>);
  static_assert(!HasDType<long double> && !HasDType<std::complex<long double>>);
  static_assert(!HasDType<mine::Complex<int>> && !HasDType<mine::Quaternion>);
  static_assert(!HasDType<int*> && !HasDType<void*> && !HasDType<void> && !HasDType<int&>);
  static_assert(!HasDType<int[2]> && !HasDType<mine::Nothing> && !HasDType<DType>);
}

TEST(DType, IsGivenToATypeOfTheUsersBySpecialising) {
  static_assert(HasDType<mine::Half> && HasDType<const mine::Half>);
  static_assert(dtype_of<mine::Half>() == DType::f16);
  static_assert(dtype_of<const mine::Half>() == DType::f16);
}

TEST(DType, IsOneByteAndAnUnknownOneHasNoSize) {
  static_assert(sizeof(DType) == 1);
  EXPECT_EQ(size_bytes(static_cast<DType>(200)), 0u);
  EXPECT_EQ(name(static_cast<DType>(200)), "unknown");
}

}  // namespace
}  // namespace tern
