#include "language/names.hpp"

#include <gtest/gtest.h>

#include <string>

namespace tern::language {
namespace {

constexpr Scalar all_types[] = {Scalar::boolean, Scalar::i8,  Scalar::u8,  Scalar::i16,
                                Scalar::u16,     Scalar::i32, Scalar::u32, Scalar::i64,
                                Scalar::u64,     Scalar::f32, Scalar::f64};

/// Calls `use` with the C++ type of each Scalar and with the Scalar.
template <class Use>
void for_each_type(Use use) {
  use(bool(), Scalar::boolean);
  use(std::int8_t(), Scalar::i8);
  use(std::uint8_t(), Scalar::u8);
  use(std::int16_t(), Scalar::i16);
  use(std::uint16_t(), Scalar::u16);
  use(int(), Scalar::i32);
  use(unsigned(), Scalar::u32);
  use(std::int64_t(), Scalar::i64);
  use(std::uint64_t(), Scalar::u64);
  use(float(), Scalar::f32);
  use(double(), Scalar::f64);
}

TEST(Names, FindsEachTypeByItsText) {
  for (const Scalar type : all_types) EXPECT_EQ(find_type(type_text(type)), type);
  EXPECT_EQ(find_type("int32_t"), Scalar::i32);
  EXPECT_EQ(find_type("uint32_t"), Scalar::u32);
  EXPECT_EQ(find_type("size_t"), Scalar::u64);
  EXPECT_EQ(find_type("long"), std::nullopt);
  EXPECT_EQ(find_type(""), std::nullopt);
}

// The compiler of this test is the reference for the rules of C.
TEST(Names, HasTheTypesOfTheCompiler) {
  for_each_type([](auto left, Scalar left_type) {
    using Left = decltype(left);
    EXPECT_EQ(bytes_of(left_type), sizeof left);
    EXPECT_EQ(is_real(left_type), std::is_floating_point_v<Left>);
    EXPECT_EQ(is_integer(left_type), std::is_integral_v<Left>);
    EXPECT_EQ(is_signed(left_type), std::is_integral_v<Left> && std::is_signed_v<Left>);
    for_each_type([&](auto promoted_value, Scalar type) {
      EXPECT_EQ(promoted(left_type) == type,
                (std::is_same_v<decltype(promoted_value), decltype(+left)>))
          << type_text(left_type);
    });
    for_each_type([&](auto right, Scalar right_type) {
      for_each_type([&](auto common, Scalar type) {
        EXPECT_EQ(common_type(left_type, right_type) == type,
                  (std::is_same_v<decltype(common), decltype(left + right)>))
            << type_text(left_type) << " + " << type_text(right_type);
      });
    });
  });
}

TEST(Names, FindsEachWordByItsText) {
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(find_form(text(static_cast<Form>(i))), static_cast<Form>(i));
  }
  for (int i = 1; i < 5; ++i) {
    EXPECT_EQ(find_intent(text(static_cast<Intent>(i))), static_cast<Intent>(i));
  }
  for (int i = 0; i <= static_cast<int>(Function::max); ++i) {
    const auto function = static_cast<Function>(i);
    EXPECT_EQ(find_function(text(function)), function);
    EXPECT_TRUE(is_own_word(text(function)));
  }
  for (int i = 0; i <= static_cast<int>(Atomic::compare_exchange); ++i) {
    EXPECT_EQ(find_atomic(text(static_cast<Atomic>(i))), static_cast<Atomic>(i));
  }
  for (int i = 0; i <= static_cast<int>(Coordinate::grid_size); ++i) {
    EXPECT_EQ(find_coordinate(text(static_cast<Coordinate>(i))), static_cast<Coordinate>(i));
  }
  EXPECT_EQ(text(Intent::value), "");
  EXPECT_EQ(text(Coordinate::grid_size), "grid_size");
  EXPECT_EQ(text(Operator::not_equal), "!=");
  EXPECT_EQ(text(Operator::logical_not), "!");
  EXPECT_EQ(find_intent(""), std::nullopt);
}

TEST(Names, AreInTheOrderOfTheEnumerators) {
  const auto joined = [](auto first, auto last) {
    std::string list;
    for (int i = static_cast<int>(first); i <= static_cast<int>(last); ++i) {
      list += " " + std::string(text(static_cast<decltype(first)>(i)));
    }
    return list;
  };
  EXPECT_EQ(joined(Form::element, Form::reduction), " element kernel block reduction");
  EXPECT_EQ(joined(Intent::in, Intent::part), " in out inout part");
  EXPECT_EQ(joined(Function::sqrt, Function::round),
            " sqrt rsqrt fabs exp exp2 log log2 sin cos tan tanh floor ceil round");
  EXPECT_EQ(joined(Function::pow, Function::max), " pow fmod fma abs min max");
  EXPECT_EQ(joined(Atomic::add, Atomic::compare_exchange),
            " atomic_add atomic_min atomic_max atomic_exchange atomic_compare_exchange");
  EXPECT_EQ(joined(Coordinate::index, Coordinate::grid_size),
            " index thread block block_size grid_size");
  EXPECT_EQ(joined(Operator::add, Operator::logical_not),
            " + - * / % << >> & | ^ < <= > >= == != && || - ~ !");
}

TEST(Names, KnowsTheKeywordsOfOtherLanguages) {
  for (const std::string_view word :
       {"alignas", "while", "xor_eq", "restrict", "uint", "float4", "uchar16", "image2d_t",
        "threadIdx", "dim3", "NULL", "local", "template", "EOF", "write_only", "warpSize"}) {
    EXPECT_TRUE(is_foreign_keyword(word)) << word;
  }
  for (const std::string_view word : {"x", "width", "float5", "floating", "count", "whil", ""}) {
    EXPECT_FALSE(is_foreign_keyword(word)) << word;
  }
}

TEST(Names, SuggestsTheNearestName) {
  const auto nearest = [](std::string_view word) {
    NearestName name(word);
    name.consider("width");
    name.consider_own_words();
    return std::string(name.name());
  };
  EXPECT_EQ(nearest("widht"), "width");
  EXPECT_EQ(nearest("sqr"), "sqrt");
  EXPECT_EQ(nearest("atomic_ad"), "atomic_add");
  EXPECT_EQ(nearest("uint32t"), "uint32_t");
  EXPECT_EQ(nearest("blocksize"), "block_size");
  EXPECT_EQ(nearest("banana"), "");
  EXPECT_EQ(nearest("mx"), "") << "short names are near to everything";
  EXPECT_EQ(nearest(std::string(60, 'a')), "");
}

TEST(Names, KnowsTheEquivalentsOfOtherLanguages) {
  EXPECT_EQ(equivalent_of("uint"), "unsigned");
  EXPECT_EQ(equivalent_of("ulong"), "size_t");
  EXPECT_EQ(equivalent_of("blockDim"), "block_size.x");
  EXPECT_EQ(equivalent_of("cosf"), "cos");
  EXPECT_EQ(equivalent_of("atomicCAS"), "atomic_compare_exchange");
  EXPECT_EQ(equivalent_of("banana"), "");
}

}  // namespace
}  // namespace tern::language
