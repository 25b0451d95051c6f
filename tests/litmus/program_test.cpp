// Parsing of programs. A program that contradicts itself is rejected with its line.

#include "litmus/program.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <stdexcept>
#include <utility>

#include "litmus/field.hpp"

namespace tern::test::litmus {
namespace {

using testing::HasSubstr;

std::string page(const std::string& lines) {
  return "## Some\n\n### one\n\nIt says\nthis.\n\n```litmus\n" + lines + "```\n";
}

std::string complaint_about(const std::string& text) {
  try {
    static_cast<void>(parse_programs(text));
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "none";
}

const std::string rest = "sees x\nrace-free\nallowed 1\n";

TEST(LitmusProgram, IsReadAsItIsWritten) {
  const Program program =
      parse_programs(
          page("device x=3 t[4]\npinned p\nevent e\nblocking P\nA fill t[1:3] 7 width 3\n"
               "P wait e (spare)\nA copy t[0] -> x  # a remark\nhost sync A\nsees p t[2:4]\n"
               "racy TERN-S101\nallowed 1 * 0x10\nforbidden 0 0 0\n"))
          .front();
  EXPECT_EQ(program.name, "one");
  EXPECT_EQ(program.says, "It says this.");
  ASSERT_EQ(program.locations.size(), 3u);
  EXPECT_EQ(program.locations[0].initial, 3u);
  EXPECT_EQ(program.locations[1].words, 4u);
  ASSERT_EQ(program.streams.size(), 2u);
  EXPECT_TRUE(program.streams[0].is_blocking);
  EXPECT_FALSE(program.streams[1].is_blocking);
  ASSERT_EQ(program.steps.size(), 4u);
  EXPECT_EQ(program.steps[0].to.first, 1u);
  EXPECT_EQ(program.steps[0].to.count, 2u);
  EXPECT_EQ(program.steps[0].width_bytes, 3u);
  EXPECT_TRUE(program.steps[1].is_spare);
  EXPECT_EQ(program.steps[2].verb, Verb::copy);
  EXPECT_EQ(program.steps[3].verb, Verb::sync_stream);
  EXPECT_EQ(program.finding, "TERN-S101");
  EXPECT_EQ(text_of(program.allowed.front()), "1 * 16");
  EXPECT_TRUE(matches(program.allowed.front(), {1, 12345, 16}));
  EXPECT_FALSE(matches(program.allowed.front(), {1, 12345, 17}));
  EXPECT_FALSE(matches(program.allowed.front(), {1, 12345}));
}

TEST(LitmusProgram, IsRefusedWithItsLine) {
  EXPECT_EQ(complaint_about(page("device x\nA fill x 1\n" + rest)), "none");
  EXPECT_EQ(complaint_about(page("device x\nA fill y 1\n" + rest)),
            "line 10, program 'one': there is no location 'y'");
  for (const auto& [lines, complaint] : std::vector<std::pair<std::string, std::string>>{
           {"device x x\nA fill x 1\n" + rest, "declares 'x' twice"},
           {"device x\nA fill x one\n" + rest, "'one' is no number"},
           {"device x\nA fill x[1] 1\n" + rest, "outside its location"},
           {"device x\nA fill x\n" + rest, "ends too early"},
           {"device x\nA polish x 1\n" + rest, "is no verb"},
           {"device x\nalice fill x 1\n" + rest, "is no stream"},
           {"device x\nA wait e\n" + rest, "there is no event 'e'"},
           {"device x\nA fill x 1 (spare)\n" + rest, "can be spare"},
           {"device x\nblock b\nA allocate b\n" + rest, "does not release"},
           {"device x\nA call x = 1\n" + rest, "a host function that of the host"},
           {"device x t[2]\nA copy t -> x\n" + rest, "differ in size"},
           {"device x\nA fill x 1\nsees x\nallowed 1\n", "neither 'race-free' nor 'racy'"},
           {"device x\nA fill x 1\nsees x\nrace-free\n", "allows no outcome"},
           {"device x\nA fill x 1\nsees x\nrace-free\nallowed 1 2\n", "sees 1 words"},
           {"device x\nA fill x 1\nsees x\nrace-free\nallowed 1\nallowed 2\n", "has one outcome"},
           {"device x\nA fill x 1\n" + rest + "forbidden 1\n", "names an outcome twice"},
       }) {
    EXPECT_THAT(complaint_about(page(lines)), HasSubstr(complaint)) << lines;
  }
  EXPECT_THAT(complaint_about("### one\nSays.\n```litmus\n"), HasSubstr("has no end"));
  EXPECT_THAT(complaint_about(page("device x\nA fill x 1\n" + rest) +
                              page("device x\nA fill x 1\n" + rest)),
              HasSubstr("has the name of another"));
}

TEST(LitmusProgram, ThereAreManyAndTheyAreOfAllKinds) {
  const std::vector<Program>& programs = all_programs();
  EXPECT_GE(programs.size(), 150u);
  EXPECT_GE(std::ranges::count_if(programs, &Program::uses_kernels), 15);
  for (unsigned verb = 0; verb <= static_cast<unsigned>(Verb::destroy_event); ++verb) {
    EXPECT_TRUE(std::ranges::any_of(
        programs, [verb](const Program& program) { return program.has(static_cast<Verb>(verb)); }))
        << "no program has verb " << verb;
  }
}

TEST(LitmusProgram, IsStalledInEveryWayOverItsRuns) {
  const Program program =
      parse_programs(page("device x\nA fill x 1\nB fill x 1\nsees x\nracy TERN-S101\nallowed 1\n"))
          .front();
  EXPECT_EQ(stall_of_run(program, 0).by, Stall::By::nothing);
  std::set<std::pair<Stall::By, std::uint32_t>> ways;
  for (std::uint64_t run = 1; run <= 9; ++run) {
    const Stall stall = stall_of_run(program, run);
    ways.emplace(stall.by, stall.streams);
  }
  EXPECT_EQ(ways.size(), 9u);
}

}  // namespace
}  // namespace tern::test::litmus
