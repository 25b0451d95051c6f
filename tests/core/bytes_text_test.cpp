// How byte counts are printed and read. Their arithmetic is in bytes_test.cpp.

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "tern/core/bytes.hpp"

namespace tern {
namespace {

using namespace std::string_literals;

__extension__ using Wide = unsigned __int128;

constexpr std::uint64_t largest_bytes = std::numeric_limits<std::uint64_t>::max();
const std::vector<std::string> binary_units = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
const std::vector<std::string> decimal_units = {"KB", "MB", "GB", "TB", "PB", "EB"};

/// format_bytes by the words of its contract, in arithmetic that cannot wrap.
std::string described(std::uint64_t bytes) {
  if (bytes < 1024) return std::to_string(bytes) + " B";
  std::size_t at = 0;
  Wide unit = 1024;
  while (at + 1 < binary_units.size() && bytes >= unit * 1024) unit *= 1024, ++at;
  auto tenths = static_cast<std::uint64_t>((Wide{bytes} * 20 + unit) / (2 * unit));
  if (tenths == 10240 && at + 1 < binary_units.size()) tenths = 10, ++at;
  return std::to_string(tenths / 10) + "." + std::to_string(tenths % 10) + " " + binary_units[at];
}

TEST(FormatBytes, PrintsBytesWithoutADecimal) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1), "1 B");
  EXPECT_EQ(format_bytes(512), "512 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
}

TEST(FormatBytes, BeginsEachUnitAtOne) {
  EXPECT_EQ(format_bytes(kib), "1.0 KiB");
  EXPECT_EQ(format_bytes(mib), "1.0 MiB");
  EXPECT_EQ(format_bytes(gib), "1.0 GiB");
  EXPECT_EQ(format_bytes(1024 * gib), "1.0 TiB");
  EXPECT_EQ(format_bytes(1024 * 1024 * gib), "1.0 PiB");
  EXPECT_EQ(format_bytes(1024 * 1024 * 1024 * gib), "1.0 EiB");
  EXPECT_EQ(format_bytes(24 * gib), "24.0 GiB");
}

TEST(FormatBytes, RoundsHalfUp) {
  EXPECT_EQ(format_bytes(1536), "1.5 KiB");
  EXPECT_EQ(format_bytes(1280), "1.3 KiB");  // 1.25
  EXPECT_EQ(format_bytes(1279), "1.2 KiB");
  EXPECT_EQ(format_bytes(1075), "1.0 KiB");  // 1.0498
  EXPECT_EQ(format_bytes(1076), "1.1 KiB");  // 1.0508
}

TEST(FormatBytes, TakesTheNextUnitForWhatRoundsToOneOfIt) {
  EXPECT_EQ(format_bytes(1048524), "1023.9 KiB");
  EXPECT_EQ(format_bytes(1048525), "1.0 MiB");
  EXPECT_EQ(format_bytes(mib - 1), "1.0 MiB");
  EXPECT_EQ(format_bytes(1024 * 1024 * 1024 * gib - 1), "1.0 EiB");
}

TEST(FormatBytes, HasNoUnitAboveTheLargest) { EXPECT_EQ(format_bytes(largest_bytes), "16.0 EiB"); }

TEST(FormatBytes, RoundsExactlyOnBothSidesOfEveryStepOfEveryUnit) {
  for (unsigned shift = 10; shift <= 60; shift += 10) {
    const Wide unit = Wide{1} << shift;
    // The text changes at odd multiples of a twentieth; at EiB there are 16 units, else 1024.
    for (Wide twentieths = 1; twentieths <= (shift == 60 ? 320 : 20480); ++twentieths) {
      const Wide step = (twentieths * unit + 19) / 20;
      for (const Wide bytes : {step - 1, step, step + 1}) {
        if (bytes > largest_bytes) continue;
        const auto narrow = static_cast<std::uint64_t>(bytes);
        ASSERT_EQ(format_bytes(narrow), described(narrow)) << narrow;
      }
    }
  }
}

TEST(ParseBytes, ReadsNumbersAndEveryUnitInAnyCase) {
  const std::vector<std::pair<std::string, std::uint64_t>> accepted = {
      {"0", 0},
      {"4096", 4096},
      {"007", 7},
      {"512MiB", 512 * mib},
      {"512mib", 512 * mib},
      {"512MIB", 512 * mib},
      {"1B", 1},
      {"1b", 1},
      {"1KB", 1000},
      {"1kb", 1000},
      {"1KiB", 1024},
      {"1.5KiB", 1536},
      {"1.5GB", 1500000000},
      {"0.5KiB", 512},
      {"0.25KiB", 256},
      {"1.0", 1},
      {"1.000B", 1},
      {"0.0B", 0},
      {"0.001KB", 1},
      {"1.50KiB", 1536},
      {"0.0009765625KiB", 1},
      {"18446744073709551615", largest_bytes},
      {"18446744073709551615B", largest_bytes},
      {"15EiB", 15ull << 60},
      {"18EB", 18'000'000'000'000'000'000ull},
      {"15.5EiB", (15ull << 60) + (1ull << 59)},
      {"18.446744073709551615EB", largest_bytes},
  };
  for (const auto& [text, bytes] : accepted) {
    const Result<std::uint64_t> parsed = try_parse_bytes(text);
    ASSERT_TRUE(parsed) << parsed.failure().text();
    EXPECT_EQ(*parsed, bytes) << text;
    EXPECT_EQ(parse_bytes(text), bytes);
  }
}

TEST(ParseBytes, KnowsTheDecimalAndTheBinaryUnits) {
  std::uint64_t thousands = 1;
  std::uint64_t kibis = 1;
  for (std::size_t i = 0; i < binary_units.size(); ++i) {
    thousands *= 1000;
    kibis *= 1024;
    EXPECT_EQ(parse_bytes("1" + decimal_units[i]), thousands);
    EXPECT_EQ(parse_bytes("3" + binary_units[i]), 3 * kibis);
  }
}

TEST(ParseBytes, RefusesWhatIsNotExactlyANumberAndAUnit) {
  const std::vector<std::string> refused = {
      "",
      " ",
      "-1",
      "+1",
      " 1",
      "1 ",
      "1 MiB",
      "1\t",
      "1\n",
      "MiB",
      "1.",
      "1.MiB",
      ".5",
      ".5KiB",
      ".",
      "1..5",
      "1.5.5KiB",
      "1.-5KiB",
      "1e3",
      "0x10",
      "1,000",
      "1'000",
      "1_000",
      "1M",
      "1K",
      "1Ki",
      "1iB",
      "1KiBs",
      "1KiB ",
      "1KiBB",
      "1BKi",
      "1ZiB",
      "1ZB",
      "1bit",
      "nan",
      "inf",
      "1\0"s,
      "\0001"s,
      "1KiB\0"s,
      "1\0KiB"s,
      "1Ki\0B"s,
      "1.\0005KiB"s,
      "1\xc2\xa0MiB",
      "\xef\xbc\x91",
      "1\xe2\x84\xaa"
      "B",
      "1\xff",
      "\xd9\xa1",
  };
  for (const std::string& text : refused) {
    const Result<std::uint64_t> parsed = try_parse_bytes(text);
    ASSERT_FALSE(parsed) << "'" << text << "' was read as " << *parsed;
    EXPECT_EQ(parsed.failure().code(), ErrorCode::invalid_argument) << text;
    EXPECT_EQ(parsed.failure().string("value"), text);
    EXPECT_THROW(static_cast<void>(parse_bytes(text)), InvalidArgument);
  }
}

TEST(ParseBytes, SaysWhyItRefuses) {
  EXPECT_EQ(try_parse_bytes("MiB").failure().text(),
            "'MiB' is not a number of bytes: it does not begin with a digit. Write a size such as "
            "4096, 512MiB or 1.5GB.");
  EXPECT_EQ(try_parse_bytes("1.").failure().string("why"), "no digit follows the decimal point");
  EXPECT_EQ(try_parse_bytes("0.3B").failure().string("why"), "it is not a whole number of bytes");
  EXPECT_EQ(try_parse_bytes("1M").failure().string("why"),
            "the text after the number is not a unit");
  EXPECT_EQ(try_parse_bytes("16EiB").failure().text(),
            "'16EiB' exceeds a 64-bit byte count. Use less than 16 EiB.");
}

TEST(ParseBytes, RefusesPartsOfAByteHoweverSmall) {
  for (const char* text : {"0.3B", "0.5", "0.5B", "1.1KiB", "0.0001KB", "1.0000000000000000001EB",
                           "0.000000000000000000000000000001EiB", "0.00048828125KiB"}) {
    const Result<std::uint64_t> parsed = try_parse_bytes(text);
    ASSERT_FALSE(parsed) << text << " was read as " << *parsed;
    EXPECT_EQ(parsed.failure().code(), ErrorCode::invalid_argument) << text;
  }
}

TEST(ParseBytes, IsExactToTheLastOfManyDigits) {
  EXPECT_EQ(parse_bytes("0.000000000931322574615478515625GiB"), 1u);  // 2^-30, 30 digits
  EXPECT_EQ(parse_bytes("1.000000000931322574615478515625GiB"), gib + 1);
  EXPECT_FALSE(try_parse_bytes("0.000000000931322574615478515624GiB"));
  EXPECT_FALSE(try_parse_bytes("0.000000000931322574615478515626GiB"));
  EXPECT_EQ(parse_bytes("1." + std::string(100'000, '0') + "KiB"), kib);
  EXPECT_FALSE(try_parse_bytes("1." + std::string(100'000, '0') + "1KiB"));
}

TEST(ParseBytes, RefusesMoreThanSixtyFourBitsHold) {
  for (const std::string& text :
       {"18446744073709551616"s, "18446744073709551620"s, "99999999999999999999"s, "16EiB"s,
        "16.0EiB"s, "18014398509481984KiB"s, "19EB"s, "18.446744073709551616EB"s,
        "18446744073709551615KiB"s, "18446744073709551615.5KiB"s, std::string(10'000, '9'),
        std::string(10'000, '9') + "EiB"}) {
    const Result<std::uint64_t> parsed = try_parse_bytes(text);
    ASSERT_FALSE(parsed) << text.substr(0, 40) << " was read as " << *parsed;
    EXPECT_EQ(parsed.failure().code(), ErrorCode::size_overflow) << text.substr(0, 40);
    EXPECT_THROW(static_cast<void>(parse_bytes(text)), SizeOverflow);
  }
}

TEST(ParseBytes, TakesTextsOfAnyLength) {
  EXPECT_EQ(parse_bytes(std::string(100'000, '0') + "7KiB"), 7 * kib);
  const Result<std::uint64_t> parsed = try_parse_bytes("1" + std::string(100'000, 'x'));
  ASSERT_FALSE(parsed);
  EXPECT_TRUE(parsed.failure().string("value")->ends_with("xxx..."));
  EXPECT_EQ(parsed.failure().string("why"), "the text after the number is not a unit");
}

/// `bytes` in units of 2^shift, with every decimal it takes to be exact.
std::string printed_exactly(std::uint64_t bytes, unsigned shift) {
  std::string text = std::to_string(bytes >> shift);
  const std::uint64_t mask = (std::uint64_t{1} << shift) - 1;
  std::uint64_t rest = bytes & mask;
  if (rest != 0) text += '.';
  while (rest != 0) {
    const Wide tens = Wide{rest} * 10;
    text += static_cast<char>('0' + static_cast<int>(tens >> shift));
    rest = static_cast<std::uint64_t>(tens) & mask;
  }
  return text + binary_units[shift / 10 - 1];
}

TEST(ParseBytes, ReadsBackWhateverIsPrintedExactly) {
  constexpr std::uint64_t seed = 7;
  std::mt19937_64 random(seed);
  for (int round = 0; round < 2000; ++round) {
    const std::uint64_t bytes = random() >> (random() % 64);
    EXPECT_EQ(parse_bytes(std::to_string(bytes)), bytes) << "seed " << seed << ", " << round;
    for (unsigned shift = 10; shift <= 60; shift += 10) {
      const std::string text = printed_exactly(bytes, shift);
      ASSERT_EQ(parse_bytes(text), bytes) << text << ", seed " << seed << ", round " << round;
    }
  }
  for (const std::uint64_t bytes :
       {std::uint64_t{0}, std::uint64_t{1}, largest_bytes - 1, largest_bytes}) {
    for (unsigned shift = 10; shift <= 60; shift += 10) {
      EXPECT_EQ(parse_bytes(printed_exactly(bytes, shift)), bytes);
    }
  }
}

}  // namespace
}  // namespace tern
