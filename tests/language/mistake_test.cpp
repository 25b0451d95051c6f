#include "language/mistake.hpp"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace tern::language {
namespace {

using Kind = Mistake::Kind;

Mistake made(Kind kind) {
  Mistake mistake;
  mistake.kind = kind;
  mistake.kernel = "blur";
  mistake.at = {4, 9};
  mistake.who = {.block = {3, 0, 0}, .thread = {255, 1, 2}};
  mistake.name = "x";
  mistake.is_array = true;
  mistake.index = 1024;
  mistake.elements = 1;
  return mistake;
}

TEST(Mistake, NamesTheThreadAndTheElement) {
  EXPECT_EQ(
      made(Kind::out_of_range).what(),
      "kernel 'blur', line 4, column 9: thread (255,1,2) of block (3,0,0) reads x[1024], but x "
      "has 1 element");
}

TEST(Mistake, NamesABlockForCodeOfTheWholeBlock) {
  Mistake mistake = made(Kind::read_of_output);
  mistake.who.is_whole_block = true;
  EXPECT_EQ(
      mistake.what(),
      "kernel 'blur', line 4, column 9: block (3,0,0) reads x[1024], which the launch has not "
      "written");
}

TEST(Mistake, NamesBothThreadsOfARace) {
  Mistake mistake = made(Kind::block_race);
  mistake.access = AccessKind::update;
  mistake.other = {5, 3};
  mistake.other_who = {.block = {1, 0, 0}, .thread = {7, 0, 0}};
  mistake.other_access = AccessKind::atomic;
  mistake.other_name = "y";
  EXPECT_EQ(mistake.what(),
            "kernel 'blur', line 4, column 9: thread (255,1,2) of block (3,0,0) updates x[1024], "
            "which thread (7,0,0) of block (1,0,0) updates atomically as y in line 5, column 3");
  mistake.kind = Kind::thread_race;
  mistake.other_name = "x";
  EXPECT_NE(
      mistake.what().find("which thread (7,0,0) of the same block updates atomically in line 5"),
      std::string::npos);
  mistake.other_who.is_whole_block = true;
  EXPECT_NE(mistake.what().find("which the code of the whole block updates"), std::string::npos);
}

TEST(Mistake, AdvisesByTheFormOfTheKernel) {
  Mistake mistake = made(Kind::thread_race);
  mistake.form = Form::block;
  EXPECT_NE(mistake.fix().find("End the loop over threads"), std::string::npos);
  mistake.form = Form::thread;
  EXPECT_EQ(mistake.fix().find("End the loop over threads"), std::string::npos);

  mistake.kind = Kind::out_of_range;
  EXPECT_NE(mistake.fix().find("size(x)"), std::string::npos);
  mistake.is_shared = true;
  EXPECT_NE(mistake.fix().find("Declare x with more elements"), std::string::npos);
}

TEST(Mistake, HasItsOwnNameAndTextsForEveryKind) {
  std::set<std::string> names, texts;
  for (auto i = 0; i <= static_cast<int>(Kind::unwritten_output); ++i) {
    const Mistake mistake = made(static_cast<Kind>(i));
    names.insert(std::string(name(mistake.kind)));
    texts.insert(mistake.what());
    EXPECT_TRUE(mistake.what().starts_with("kernel 'blur', line 4, column 9: "));
    EXPECT_TRUE(mistake.fix().ends_with('.')) << mistake.fix();
  }
  EXPECT_EQ(names.size(), 11u);
  EXPECT_EQ(names.count(""), 0u);
  EXPECT_EQ(texts.size(), 11u);
}

}  // namespace
}  // namespace tern::language
