// Pickles of data are read; everything else is refused with a sentence.

#include "tools/formats/pickle.hpp"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "support/written_bytes.hpp"
#include "tools/formats/pickle_writer.hpp"

namespace tern::tools {
namespace {

using namespace std::string_literals;
using Kind = Pickle::Kind;

/// Pickles are kept: a Pickle refers to the bytes.
Result<Pickle> read(const std::string& bytes) {
  static std::vector<std::string> kept;
  kept.reserve(100'000);
  kept.push_back(bytes);
  return Pickle::try_read(kept.back());
}

std::string failure_of(const std::string& bytes) {
  const Result<Pickle> pickle = read(bytes);
  if (pickle) return "";
  EXPECT_EQ(pickle.failure().code(), ErrorCode::bad_format);
  return pickle.failure().text();
}

TEST(PickleOpcodes, AreReadInEveryProtocol) {
  // What pickle.dumps({"a": [1, -2, 300, 70000, 2**40, -(2**40), None, True, False, 1.5], "b":
  // ("x", b"y"), "c": ()}, protocol) returns.
  const std::string protocol2 =
      "\x80\x02}q\x00(X\x01\x00\x00\x00"s
      "aq\x01]q\x02(K\x01J\xfe\xff\xff\xffM,\x01Jp\x11\x01\x00\x8a\x06\x00\x00\x00\x00\x00\x01"s
      "\x8a\x06\x00\x00\x00\x00\x00\xffN\x88\x89G?\xf8\x00\x00\x00\x00\x00\x00"s
      "eX\x01\x00\x00\x00"s
      "bq\x03X\x01\x00\x00\x00xq\x04U\x01y\x86q\x05X\x01\x00\x00\x00"s
      "cq\x06)u."s;
  const std::string protocol4 =
      "\x80\x04\x95\x4a\x00\x00\x00\x00\x00\x00\x00}\x94(\x8c\x01"s
      "a\x94]\x94(K\x01J\xfe\xff\xff\xffM,\x01Jp\x11\x01\x00\x8a\x06\x00\x00\x00\x00\x00\x01"s
      "\x8a\x06\x00\x00\x00\x00\x00\xffN\x88\x89G?\xf8\x00\x00\x00\x00\x00\x00"s
      "e\x8c\x01"s
      "b\x94\x8c\x01x\x94"s
      "C\x01y\x94\x86\x94\x8c\x01"s
      "c\x94)u."s;
  for (const std::string& bytes : {protocol2, protocol4}) {
    ASSERT_TRUE(Pickle::is_pickle(bytes));
    const Result<Pickle> read_back = read(bytes);
    ASSERT_TRUE(read_back) << read_back.failure().text();
    const Pickle& pickle = *read_back;
    ASSERT_EQ(pickle.kind(pickle.root()), Kind::dict);
    const auto dict = pickle.items(pickle.root());
    ASSERT_EQ(dict.size(), 6u);
    EXPECT_EQ(pickle.text(dict[0]), "a");
    const auto list = pickle.items(dict[1]);
    ASSERT_EQ(list.size(), 10u);
    EXPECT_EQ(pickle.number(list[0]), 1u);
    EXPECT_EQ(pickle.number(list[1]), std::nullopt);
    EXPECT_EQ(pickle.number(list[2]), 300u);
    EXPECT_EQ(pickle.number(list[3]), 70'000u);
    EXPECT_EQ(pickle.number(list[4]), 1ULL << 40);
    EXPECT_EQ(pickle.number(list[5]), std::nullopt);
    EXPECT_EQ(pickle.kind(list[6]), Kind::none);
    EXPECT_EQ(pickle.kind(list[7]), Kind::boolean);
    EXPECT_EQ(pickle.kind(list[9]), Kind::real);
    EXPECT_EQ(pickle.kind(dict[3]), Kind::tuple);
    EXPECT_EQ(pickle.text(pickle.items(dict[3])[1]), "y");
    EXPECT_TRUE(pickle.items(dict[5]).empty());
  }
}

TEST(PickleOpcodes, NumbersHave64Bits) {
  const auto number = [](const std::string& digits) {
    const Result<Pickle> pickle =
        read("\x80\x02\x8a"s + static_cast<char>(digits.size()) + digits + ".");
    return std::pair(pickle->kind(pickle->root()), pickle->number(pickle->root()));
  };
  using Found = std::pair<Kind, std::optional<std::uint64_t>>;
  EXPECT_EQ(number(""), Found(Kind::integer, 0));
  EXPECT_EQ(number("\xff\x00"s), Found(Kind::integer, 255));
  EXPECT_EQ(number("\xff"s), Found(Kind::integer, std::nullopt));
  EXPECT_EQ(number(std::string(8, '\xff') + '\0'), Found(Kind::integer, UINT64_MAX));
  EXPECT_EQ(number(std::string(8, '\0') + '\1'), Found(Kind::huge_integer, std::nullopt));
  EXPECT_EQ(number(std::string(8, '\0') + '\xff'), Found(Kind::huge_integer, std::nullopt));
  EXPECT_EQ(number(std::string(7, '\0') + "\x80\xff"), Found(Kind::integer, std::nullopt));
  EXPECT_EQ(number(std::string(200, '\x7f')), Found(Kind::huge_integer, std::nullopt));
}

TEST(PickleOpcodes, OldFormsOfListsAndDicts) {
  // MARK 1 2 LIST; MARK 'k' 5 DICT; a value that is popped; a copy of a value; TUPLE of a mark.
  const Result<Pickle> pickle = read(
      "\x80\x02(K\x01K\x02l(U\x01kK\x05"s
      "dK\x07"
      "0(K\x01K\x02"
      "1K\x09"
      "2(tt."s);
  ASSERT_FALSE(pickle) << "TUPLE without a mark";
  const Result<Pickle> good = read(
      "\x80\x02((K\x01K\x02l(U\x01kK\x05"s
      "dK\x07"
      "0(K\x01K\x02"
      "1K\x09"
      "2(tt."s);
  ASSERT_TRUE(good) << good.failure().text();
  const auto items = good->items(good->root());
  ASSERT_EQ(items.size(), 5u);
  EXPECT_EQ(good->items(items[0]).size(), 2u);
  EXPECT_EQ(good->number(good->items(items[1])[1]), 5u);
  EXPECT_EQ(items[2], items[3]);
  EXPECT_EQ(good->kind(items[4]), Kind::tuple);
}

TEST(PickleOpcodes, ThoseThatMakeObjectsAreRefusedByName) {
  const std::pair<std::string, const char*> cases[] = {{"cos\nsystem\n", "GLOBAL"},
                                                       {"\x93", "STACK_GLOBAL"},
                                                       {"R", "REDUCE"},
                                                       {"b", "BUILD"},
                                                       {"ios\nsystem\n", "INST"},
                                                       {"o", "OBJ"},
                                                       {"\x81", "NEWOBJ"},
                                                       {"\x92", "NEWOBJ_EX"},
                                                       {"P1\n", "PERSID"},
                                                       {"Q", "BINPERSID"},
                                                       {"\x82\x01", "EXT1"},
                                                       {"\x83\x01\x01", "EXT2"},
                                                       {"\x84\x01\x01\x01\x01", "EXT4"},
                                                       {"\x97", "NEXT_BUFFER"},
                                                       {"\x98", "READONLY_BUFFER"},
                                                       {"\x8f", "EMPTY_SET"},
                                                       {"\x90", "ADDITEMS"},
                                                       {"\x91", "FROZENSET"},
                                                       {"I1\n", "INT"},
                                                       {"L1L\n", "LONG"},
                                                       {"F1\n", "FLOAT"},
                                                       {"S'a'\n", "STRING"},
                                                       {"Va\n", "UNICODE"},
                                                       {"g0\n", "GET"},
                                                       {"p0\n", "PUT"}};
  for (const auto& [opcode, name] : cases) {
    const std::string text = failure_of("\x80\x04NN"s + opcode + ".");
    EXPECT_NE(text.find("contains the pickle opcode "s + name + " at byte 4,"), text.npos) << text;
  }
}

TEST(BadPickles, AreFailuresWithTheByte) {
  const std::pair<std::string, const char*> cases[] = {
      {"", "unexpected end of the file at byte 0"},
      {"\x80", "unexpected end of the file at byte 0"},
      {"\x80\x02", "unexpected end of the file at byte 2"},
      {"\x80\x06N.", "an unknown pickle protocol at byte 0"},
      {"\x80\x02.", "no value on the stack at byte 2"},
      {"\x80\x02\xffN.", "an unknown opcode at byte 2"},
      {"\x80\x02X\xff\xff\xff\xff.", "unexpected end of the file at byte 2"},
      {"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\xff.", "unexpected end of the file at byte 2"},
      {"\x80\x04\x96\xff\xff\xff\xff\xff\xff\xff\x7f.", "unexpected end of the file at byte 2"},
      {"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\xffN.", "unexpected end of the file at byte 2"},
      {"\x80\x02\x8b\xff\xff\xff\xff.", "unexpected end of the file at byte 2"},
      {"\x80\x02Nh\x05.", "a reference to an empty memo entry at byte 3"},
      {"\x80\x02Nq\x05h\x02.", "a reference to an empty memo entry at byte 5"},
      {"\x80\x02Nr\xff\xff\xff\x7f.", "a memo index larger than the file at byte 3"},
      {"\x80\x02q\x01.", "no value on the stack at byte 2"},
      {"\x80\x02Nu.", "no mark on the stack at byte 3"},
      {"\x80\x02N(NNu.", "no list or dict on the stack at byte 6"},
      {"\x80\x02](NNu.", "no list or dict on the stack at byte 6"},
      {"\x80\x02}(NNe.", "no list or dict on the stack at byte 6"},
      {"\x80\x02}(Nu.", "a dict key without a value at byte 5"},
      {"\x80\x02(Nd.", "a dict key without a value at byte 4"},
      {"\x80\x02N(a.", "no value on the stack at byte 4"},
      {"\x80\x02](Na.", "no value on the stack at byte 5"},
      {"\x80\x02Na.", "no value on the stack at byte 3"},
      {"\x80\x02N\x86.", "no value on the stack at byte 3"},
      {"\x80\x02(Ns.", "no value on the stack at byte 4"},
      {"\x80\x02"
       "0.",
       "no value on the stack at byte 2"},
  };
  for (const auto& [bytes, sentence] : cases) {
    // Literals end at a zero byte, but none of these has one.
    const std::string text = failure_of(bytes);
    EXPECT_NE(text.find(sentence), text.npos) << testing::PrintToString(bytes) << ": " << text;
  }
}

TEST(BadPickles, EveryTruncationIsAFailure) {
  const std::string whole =
      "\x80\x04}\x94(\x8c\x01k\x94]\x94(K\x01\x8a\x05\x00\x00\x00\x00\x01\x47?\xf8\x00\x00\x00\x00"
      "\x00\x00X\x02\x00\x00\x00hieu."s;
  ASSERT_EQ(failure_of(whole), "");
  for (std::size_t length = 0; length < whole.size(); ++length) {
    EXPECT_NE(failure_of(whole.substr(0, length)), "") << length;
  }
}

TEST(HostilePickles, TakeMemoryInProportionToTheirSize) {
  // A list of ten lists, each of which is a list of ten lists, and so on: 10^1000 members.
  std::string laughs = "\x80\x02]q\x00"s;
  for (int level = 1; level < 200; ++level) {
    laughs += "]q"s + static_cast<char>(level) + "(";
    for (int i = 0; i < 10; ++i) laughs += "h"s + static_cast<char>(level - 1);
    laughs += "e";
  }
  const Result<Pickle> pickle = read(laughs + ".");
  ASSERT_TRUE(pickle);
  EXPECT_EQ(pickle->items(pickle->root()).size(), 10u);
  // A list that contains itself.
  const Result<Pickle> cycle = read(
      "\x80\x02]q\x00h\x00"
      "a."s);
  ASSERT_TRUE(cycle);
  EXPECT_EQ(cycle->items(cycle->root())[0], cycle->root());
  // A million lists in lists, a million open marks.
  std::string deep = "\x80\x02" + std::string(1'000'000, ']') + std::string(999'999, 'a') + ".";
  EXPECT_TRUE(read(deep));
  EXPECT_NE(failure_of("\x80\x02" + std::string(1'000'000, '(') + "."), "");
}

TEST(PickleWriting, GivesBackWhatWasWritten) {
  const std::vector<std::uint64_t> numbers = {0,          255,        256,        65'535,
                                              65'536,     INT32_MAX,  0x80000000, UINT32_MAX,
                                              1ULL << 39, 1ULL << 40, INT64_MAX,  UINT64_MAX};
  const std::string bytes = test::written_bytes([&](Output& out) {
    PickleWriter writer(out);
    writer.begin_dict();
    writer.text("numbers");
    writer.begin_list();
    for (const std::uint64_t number : numbers) writer.number(number);
    writer.end();
    const std::uint32_t kept = writer.keep();
    writer.text("again");
    writer.repeat(kept);
    writer.text("many");
    writer.begin_list();
    // More texts than one byte can number, and more members than one mark has.
    for (int i = 0; i < 2500; ++i) writer.text("text " + std::to_string(i % 1000));
    writer.end();
    writer.text("pair");
    writer.pair(1, 2);
    writer.text("bytes \xff\xc3");
    writer.boolean(true);
    writer.end();
    writer.finish();
  });
  const Result<Pickle> pickle = read(bytes);
  ASSERT_TRUE(pickle) << pickle.failure().text();
  const auto items = pickle->items(pickle->root());
  ASSERT_EQ(items.size(), 10u);
  const auto read_numbers = pickle->items(items[1]);
  ASSERT_EQ(read_numbers.size(), numbers.size());
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    EXPECT_EQ(pickle->number(read_numbers[i]), numbers[i]);
  }
  EXPECT_EQ(items[3], items[1]);
  const auto many = pickle->items(items[5]);
  ASSERT_EQ(many.size(), 2500u);
  for (std::size_t i = 0; i < many.size(); ++i) {
    ASSERT_EQ(pickle->text(many[i]), "text " + std::to_string(i % 1000));
  }
  EXPECT_EQ(pickle->number(pickle->items(items[7])[1]), 2u);
  EXPECT_EQ(pickle->text(items[8]), "bytes \uFFFD\uFFFD");
}

TEST(PickleWriting, PutsFewValuesBehindAMark) {
  const std::string bytes = test::written_bytes([&](Output& out) {
    PickleWriter writer(out);
    writer.begin_list();
    for (int i = 0; i < 5000; ++i) writer.number(7);
    writer.end();
    writer.finish();
  });
  std::string thousand;
  for (int i = 0; i < 1000; ++i) thousand += "K\x07";
  EXPECT_NE(bytes.find(thousand + "e(" + thousand), bytes.npos);
  EXPECT_EQ(bytes.find(thousand + "K\x07"), bytes.npos);
}

}  // namespace
}  // namespace tern::tools
