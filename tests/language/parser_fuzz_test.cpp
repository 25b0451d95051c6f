// Damaged texts: whatever the parser gets, it returns a program that is consistent, or a failure
// that names the place.

#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "language/lexer.hpp"
#include "support/kernel_text_fuzz.hpp"
#include "support/thorough.hpp"

namespace tern::language {
namespace {

constexpr std::string_view seeds[] = {
    "element saxpy(in<float> x, inout<float> y, float a) { y += a * x; }",
    "kernel histogram(in<uint32_t> keys, inout<uint32_t> counts) { const size_t i = index.x;\n"
    "  if (i < size(keys)) atomic_add(counts, keys[i], 1); // one\n}",
    "block stencil(in<float> x, out<float> y) { const int n = 256; shared<float, n + 2> tile;\n"
    "  for (auto thread : threads) { const size_t i = block.x * block_size.x + thread.x;\n"
    "    if (i < size(x)) tile[thread.x + 1] = x[i]; else tile[0] = 0; }\n"
    "  for (auto thread : threads) { const size_t i = block.x * block_size.x + thread.x;\n"
    "    if (i < size(y)) y[i] = 0.5f * (tile[thread.x] + tile[thread.x + 2]); } }",
    "reduction<double> dot(in<float> x, in<float> y) { identity = 0; map = x * y; combine = a + b; "
    "}",
    "element all(in<int> k, part<uint8_t> y, double d, const bool flag) {\n"
    "  int i = 0x1f, j = -3; unsigned u = 2u; int64_t l = 1l << 40; /* text */\n"
    "  for (int n = 0; n < k && !flag; ++n) { i += n % 7; if (i > 100) break; else continue; }\n"
    "  while (i --> 0) j ^= i; do { j <<= 1; } while (j < 50);\n"
    "  y = static_cast<uint8_t>(flag ? (int)d : int(pow(d, 2.5)) | ~j & u >> 3); return; }",
};

/// Words that replace others, separated by spaces: a random byte rarely makes a text that is nearly
/// right.
constexpr std::string_view words =
    "( ) { } [ ] ; , < > = + - ++ * / % ? : . << && ! ~ == += <<= /* */ // # \n \xff 0 1 3u 1.5 "
    "0x 1e400 -1 x y a b n i d k in out inout part float int bool uint8_t double unsigned const "
    "auto shared threads thread thread.x index.x block block_size.y size size(x) sqrt( min( abs( "
    "atomic_add( if for while do else break; continue; return; static_cast< true identity map "
    "combine element kernel reduction<int>";

std::vector<std::string_view> split(std::string_view list) {
  std::vector<std::string_view> parts;
  while (!list.empty()) {
    const std::size_t end = std::min(list.find(' '), list.size());
    parts.push_back(list.substr(0, end));
    list.remove_prefix(std::min(end + 1, list.size()));
  }
  return parts;
}

class Damage {
 public:
  explicit Damage(unsigned seed) : random_(seed) {}

  std::string text() {
    std::string text(seeds[below(std::size(seeds))]);
    const std::size_t changes = 1 + below(4);
    for (std::size_t i = 0; i < changes; ++i) {
      if (below(4) == 0) {
        change_bytes(text);
      } else {
        change_token(text);
      }
    }
    return text;
  }

  std::string_view word() {
    static const std::vector<std::string_view> list = split(words);
    return list[below(list.size())];
  }

 private:
  std::size_t below(std::size_t count) { return random_() % count; }

  void change_bytes(std::string& text) {
    const std::size_t at = below(text.size() + 1);
    const std::size_t length = std::min(below(12), text.size() - at);
    switch (below(4)) {
      case 0:
        text.erase(at, length);
        break;
      case 1:
        text.insert(at, text.substr(below(text.size() + 1), below(60)));
        break;
      case 2:
        text.insert(at, 1, static_cast<char>(below(256)));
        break;
      default:
        text.resize(at);
        break;
    }
  }

  /// Replaces a token by a word or by another token of the text, or removes it.
  void change_token(std::string& text) {
    const std::vector<Token> tokens = tokens_of(text);
    const Token& changed = tokens[below(tokens.size())];
    const Token& other = tokens[below(tokens.size())];
    const std::string replacement(below(8) == 0 ? "" : below(2) == 0 ? word() : other.text);
    if (changed.text.empty()) return;
    const auto at = static_cast<std::size_t>(changed.text.data() - text.data());
    const std::size_t length = changed.text.size();
    text.replace(at, length, replacement);
  }

  std::mt19937 random_;
};

TEST(ParserFuzz, SurvivesDamagedTexts) {
  const unsigned count = test::in_full() ? 200000 : 4000;
  unsigned accepted = 0;
  for (unsigned seed = 0; seed < count; ++seed) {
    const std::string text = Damage(seed).text();
    try {
      accepted += test::fuzz_kernel_text(text) ? 1u : 0u;
    } catch (const std::exception& error) {
      FAIL() << "seed " << seed << ": " << error.what() << "\n" << text;
    }
  }
  // Otherwise the texts are too damaged to test more than the first lines of the parser.
  EXPECT_GT(accepted, count / 100);
  EXPECT_LT(accepted, count / 2);
}

TEST(ParserFuzz, SurvivesEveryBeginningOfAText) {
  for (const std::string_view seed : seeds) {
    EXPECT_TRUE(test::fuzz_kernel_text(seed)) << seed;
    for (std::size_t length = 0; length < seed.size(); ++length) {
      EXPECT_FALSE(test::fuzz_kernel_text(seed.substr(0, length))) << seed.substr(0, length);
    }
  }
}

TEST(ParserFuzz, SurvivesRandomWords) {
  Damage damage(7);
  for (int round = 0; round < 500; ++round) {
    std::string text = "block f(in<float> x, inout<float> y, int n) {";
    for (int i = 0; i < 60; ++i) text += " " + std::string(damage.word());
    test::fuzz_kernel_text(text);
  }
}

}  // namespace
}  // namespace tern::language
