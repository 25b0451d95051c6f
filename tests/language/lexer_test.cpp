#include "language/lexer.hpp"

#include <gtest/gtest.h>

#include <string>

#include "language/names.hpp"

namespace tern::language {
namespace {

std::string joined(std::string_view text) {
  std::string made;
  for (const Token& token : tokens_of(text)) {
    if (token.kind == Token::Kind::bad) made += "bad:";
    made += std::string(token.text) + " ";
  }
  return made;
}

TEST(Lexer, SplitsATextIntoTokens) {
  EXPECT_EQ(joined("y+=a*x;"), "y += a * x ;  ");
  EXPECT_EQ(joined("i<<=1>>2>=3"), "i <<= 1 >> 2 >= 3  ");
  EXPECT_EQ(joined("a+++b"), "a ++ + b  ");
  EXPECT_EQ(joined("in<float>x"), "in < float > x  ");
  EXPECT_EQ(joined(""), " ");
  EXPECT_EQ(joined("thread.x"), "thread . x  ");
}

TEST(Lexer, SkipsSpacesAndComments) {
  EXPECT_EQ(joined("a // b\n c /* d\n */ e\t\r\n f"), "a c e f  ");
  EXPECT_EQ(joined("a /* \xc3\xa9 */ b"), "a b  ");
  EXPECT_EQ(joined("a // without an end"), "a  ");
  EXPECT_EQ(joined("a/**/b/***/c"), "a b c  ");
  EXPECT_EQ(joined("a /*/ b */ c"), "a c  ");
}

TEST(Lexer, CountsLinesAndColumns) {
  const std::vector<Token> tokens = tokens_of("a\n  b /* \n */ c");
  ASSERT_EQ(tokens.size(), 4u);
  EXPECT_EQ(tokens[0].at.line, 1u);
  EXPECT_EQ(tokens[0].at.column, 1u);
  EXPECT_EQ(tokens[1].at.line, 2u);
  EXPECT_EQ(tokens[1].at.column, 3u);
  EXPECT_EQ(tokens[2].at.line, 3u);
  EXPECT_EQ(tokens[2].at.column, 5u);
  EXPECT_EQ(tokens[3].kind, Token::Kind::end);
}

TEST(Lexer, StopsAtWhatIsNoToken) {
  EXPECT_EQ(joined("a @ b"), "a bad:@  ");
  EXPECT_EQ(joined("a /* b"), "a bad:/*  ");
  EXPECT_EQ(joined("#define"), "bad:#  ");
  EXPECT_EQ(joined("\xc3\xa9"), "bad:\xc3  ");
  EXPECT_EQ(joined(std::string_view("a\0b", 3)), std::string("a bad:\0  ", 9));
  EXPECT_EQ(joined(std::string(129, 'n')), "bad:" + std::string(129, 'n') + "  ");
  EXPECT_EQ(joined(std::string(128, 'n')), std::string(128, 'n') + "  ");
}

void expect_integer(std::string_view text, Scalar type, std::uint64_t value) {
  const Number number = number_of(text);
  ASSERT_EQ(number.problem, nullptr) << text;
  EXPECT_EQ(type_text(number.type), type_text(type)) << text;
  EXPECT_EQ(number.integer, value) << text;
}

TEST(Lexer, ReadsIntegersAsC) {
  expect_integer("0", Scalar::i32, 0);
  expect_integer("2147483647", Scalar::i32, 2147483647);
  expect_integer("2147483648", Scalar::i64, 2147483648);
  expect_integer("0x7fffffff", Scalar::i32, 0x7fffffff);
  expect_integer("0x80000000", Scalar::u32, 0x80000000);
  expect_integer("0XFFFFFFFFF", Scalar::i64, 0xFFFFFFFFF);
  expect_integer("0xffffffffffffffff", Scalar::u64, 0xffffffffffffffff);
  expect_integer("017", Scalar::i32, 15);
  expect_integer("0b101", Scalar::i32, 5);
  expect_integer("1u", Scalar::u32, 1);
  expect_integer("4294967296u", Scalar::u64, 4294967296);
  expect_integer("1l", Scalar::i64, 1);
  expect_integer("1LL", Scalar::i64, 1);
  expect_integer("1ul", Scalar::u64, 1);
  expect_integer("1LLU", Scalar::u64, 1);
  expect_integer("18446744073709551615u", Scalar::u64, 18446744073709551615u);
}

TEST(Lexer, ReadsRealNumbersExactly) {
  const auto expect_real = [](std::string_view text, Scalar type, double value) {
    const Number number = number_of(text);
    ASSERT_EQ(number.problem, nullptr) << text;
    EXPECT_EQ(type_text(number.type), type_text(type)) << text;
    EXPECT_EQ(number.real, value) << text;
  };
  expect_real("0.1", Scalar::f64, 0.1);
  expect_real("0.1f", Scalar::f32, static_cast<double>(0.1f));
  expect_real("1e-3F", Scalar::f32, static_cast<double>(1e-3f));
  expect_real("5.", Scalar::f64, 5);
  expect_real(".5", Scalar::f64, 0.5);
  expect_real("1e300", Scalar::f64, 1e300);
  expect_real("0x1.8p3", Scalar::f64, 12);
  expect_real("0x1p-3f", Scalar::f32, 0.125);
  // The nearest float, and not the float that is nearest to the nearest double.
  expect_real("1.00000017881393432617187499f", Scalar::f32,
              static_cast<double>(1.00000017881393432617187499f));
}

TEST(Lexer, RefusesWrongNumbers) {
  for (const std::string_view text : {"08",
                                      "1x",
                                      "0x",
                                      "0xg",
                                      "0b2",
                                      "1ulu",
                                      "1lL",
                                      "1f",
                                      "1.5q",
                                      "1e",
                                      "1e+",
                                      "1..2",
                                      "0x1.8",
                                      "0x1p",
                                      "1.5l",
                                      "18446744073709551616",
                                      "9223372036854775808",
                                      "1e400",
                                      "1e39f",
                                      "0x10000000000000000",
                                      "9223372036854775808l",
                                      "1e-400"}) {
    EXPECT_NE(number_of(text).problem, nullptr) << text;
  }
}

}  // namespace
}  // namespace tern::language
