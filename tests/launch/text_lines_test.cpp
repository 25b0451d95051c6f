#include "launch/text_lines.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <string>
#include <string_view>

#include "support/temporary_folder.hpp"
#include "tern/launch/kernel_text.hpp"

namespace tern::test {
namespace {

TERN_ELEMENT_KERNEL(spread_out,
                    (in<float> x,  // the first line after the name
                     inout<float> y),
                    {
                      /* a comment
                         of two lines */
                      y += x;
                      y *= 2;
                    })
constexpr std::uint32_t line_after_spread_out = __LINE__;

TERN_REDUCTION(spread_sum, double, (in<float> x),
               0,
               x,
               a + b)
constexpr std::uint32_t line_after_spread_sum = __LINE__;

/// Returns the line of the first occurrence.
std::uint32_t line_of(const std::string& text, std::string_view word) {
  const std::size_t at = text.find(word);
  if (at == text.npos) return 0;
  const auto breaks = std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(at), '\n');
  return static_cast<std::uint32_t>(breaks) + 1;
}

std::string without_blanks(std::string text) {
  std::erase_if(text, [](char c) { return c == ' ' || c == '\n'; });
  return text;
}

TEST(TextLines, AreThoseOfTheFile) {
  const std::string text = with_lines_of_file(spread_out);
  EXPECT_EQ(line_of(text, "y += x"), line_after_spread_out - 3);
  EXPECT_EQ(line_of(text, "y *= 2"), line_after_spread_out - 2);
  EXPECT_EQ(without_blanks(text), without_blanks(std::string(spread_out.text)));
}

TEST(TextLines, OfAReductionAreThoseOfItsParts) {
  const std::string text = with_lines_of_file(spread_sum);
  EXPECT_EQ(line_of(text, "a + b"), line_after_spread_sum - 1);
  EXPECT_EQ(without_blanks(text), without_blanks(std::string(spread_sum.text)));
}

TEST(TextLines, OfATextWithoutAFileStayAsTheyAre) {
  const KernelText text{.text = "element twice(inout<float> x) {\n  x *= 2;\n}"};
  EXPECT_EQ(with_lines_of_file(text), text.text);
}

TEST(TextLines, StayAsTheyAreIfTheFileIsMissing) {
  KernelText text = spread_out;
  text.file = "/nonexistent/kernels.cpp";
  EXPECT_EQ(with_lines_of_file(text), text.text);
}

TEST(TextLines, StayAsTheyAreIfTheFileHasChanged) {
  const TemporaryFolder folder;
  const std::string path = folder / "kernels.cpp";
  for (const std::string_view content :
       {"", "TERN_ELEMENT_KERNEL(", "TERN_ELEMENT_KERNEL(another, (in<float> x), { x; })",
        "int main() {}\n", "TERN_ELEMENT_KERNEL(spread_out", "TERN_ELEMENT_KERNEL(spread_out /*"}) {
    std::ofstream(path) << content;
    KernelText text = spread_out;
    text.file = path;
    text.line = 1;
    EXPECT_EQ(without_blanks(with_lines_of_file(text)), without_blanks(std::string(text.text)))
        << content;
  }
}

}  // namespace
}  // namespace tern::test
