#include "backends/sim/fault_plan.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

namespace tern::sim {
namespace {

/// One character per call: "." for a good one, else the kind's first letter.
std::string run(FaultPlan& plan, FaultClass fault_class, int calls) {
  constexpr std::string_view letters = "o?flLnsr";  // oom, fragmented, fail, fault, lost, ...
  std::string text;
  for (int i = 0; i < calls; ++i) {
    const std::optional<FaultKind> kind = plan.next(fault_class);
    text += kind ? letters.at(static_cast<std::size_t>(*kind)) : '.';
  }
  return text;
}

std::string run(std::string_view rules, FaultClass fault_class, int calls, std::uint64_t seed = 0) {
  FaultPlan plan = FaultPlan::try_parse(rules, seed).value();
  return run(plan, fault_class, calls);
}

TEST(FaultPlan, TakesEveryClassSelectorAndKind) {
  for (const std::string_view plan : {"",
                                      "allocate#1=oom",
                                      "release#1=fail",
                                      "map#1=fail",
                                      "pin#1=refuse",
                                      "copy#1=fault",
                                      "fill#1=fail",
                                      "launch#1=fault",
                                      "record#1=fail",
                                      "wait#1=fail",
                                      "query#1=not_ready",
                                      "stream#1=fail",
                                      "free#1=fail",
                                      "load#1=fail",
                                      "sync#1=lost",
                                      "info#1=fail",
                                      "wait%3=slow",
                                      "allocate#3=fragmented",
                                      "copy#2+=fail",
                                      "launch%2=lost",
                                      "launch~0.01=fault",
                                      "launch~0.000001=fault",
                                      "launch~1=fault",
                                      "launch~1.0=fault",
                                      "launch~0.0=fault",
                                      "allocate#18446744073709551615=oom",
                                      "allocate#1=oom,copy#1=fail",
                                      "allocate#1=oom, copy#1=fail",
                                      " allocate#1=oom , copy#1=fail ",
                                      "copy#1=fail,copy#2=lost"}) {
    EXPECT_TRUE(FaultPlan::try_parse(plan, 0)) << plan;
  }
}

TEST(FaultPlan, RefusesWhatIsNoRuleAndNamesIt) {
  constexpr std::string_view parts = "a rule has a class, a selector and a kind";
  constexpr std::string_view counted = "calls are counted from 1";
  constexpr std::string_view fraction = "a rate is a fraction such as 0.01";
  constexpr std::string_view no_class = "the class of calls is unknown";
  constexpr std::string_view no_kind = "the kind of fault is unknown";
  constexpr std::string_view no_file = "no device call reads a file";
  constexpr std::string_view not_short =
      "only file reads can be short, and no device call reads a file";
  struct Bad {
    std::string_view plan, rule, why;
  };
  for (const Bad& bad :
       {Bad{"x", "x", parts},
        {" ", "", parts},
        {",", "", parts},
        {"allocate#1=oom,", "", parts},
        {"allocate#1=oom, ", "", parts},
        {",allocate#1=oom", "", parts},
        {"allocate#1=oom,,copy#1=fail", "", parts},
        {"allocate=oom", "allocate=oom", parts},
        {"allocate#1", "allocate#1", parts},
        {"allocate=#1", "allocate=#1", parts},
        {"#1=oom", "#1=oom", no_class},
        {"malloc#1=oom", "malloc#1=oom", no_class},
        {"Allocate#1=oom", "Allocate#1=oom", no_class},
        {"allocate #1=oom", "allocate #1=oom", no_class},
        {"allocate#1=", "allocate#1=", no_kind},
        {"allocate#1=OOM", "allocate#1=OOM", no_kind},
        {"allocate#1= oom", "allocate#1= oom", no_kind},
        {"allocate#1=oom;copy#1=fail", "allocate#1=oom;copy#1=fail", no_kind},
        {"allocate#0=oom", "allocate#0=oom", counted},
        {"allocate#=oom", "allocate#=oom", counted},
        {"allocate#+=oom", "allocate#+=oom", counted},
        {"allocate#-1=oom", "allocate#-1=oom", counted},
        {"allocate#1++=oom", "allocate#1++=oom", counted},
        {"allocate#1.5=oom", "allocate#1.5=oom", counted},
        {"allocate#18446744073709551616=oom", "allocate#18446744073709551616=oom", counted},
        {"allocate%0=oom", "allocate%0=oom", counted},
        {"allocate%2+=oom", "allocate%2+=oom", counted},
        {"copy~=fail", "copy~=fail", fraction},
        {"copy~2=fail", "copy~2=fail", fraction},
        {"copy~0=fail", "copy~0=fail", fraction},
        {"copy~0.=fail", "copy~0.=fail", fraction},
        {"copy~.5=fail", "copy~.5=fail", fraction},
        {"copy~1.1=fail", "copy~1.1=fail", fraction},
        {"copy~0.1x=fail", "copy~0.1x=fail", fraction},
        {"copy~0.0000001=fail", "copy~0.0000001=fail", fraction},
        {"allocate#1=oom,bad#1=oom", "bad#1=oom", no_class},
        {"file#1=fail", "file#1=fail", no_file},
        {"file#1=short", "file#1=short", no_file},
        {"copy#1=short", "copy#1=short", not_short},
        {"copy#1=oom", "copy#1=oom", "copy accepts fail, fault, lost and slow"},
        {"query~0.1=refuse", "query~0.1=refuse", "query accepts fail, lost and not_ready"},
        {"allocate#1=not_ready", "allocate#1=not_ready",
         "allocate accepts oom, fragmented, fail and lost"},
        {"free#1=oom", "free#1=oom", "release accepts fail and lost"},
        {"stream#1=slow", "stream#1=slow", "stream accepts fail and lost"},
        // What the class takes is said before what is wrong with the number.
        {"copy#0=oom", "copy#0=oom", "copy accepts fail, fault, lost and slow"}}) {
    const Result<FaultPlan> refused = FaultPlan::try_parse(bad.plan, 0);
    ASSERT_FALSE(refused) << bad.plan;
    EXPECT_EQ(refused.failure().code(), ErrorCode::invalid_argument);
    EXPECT_EQ(refused.failure().string("name"), "faults");
    EXPECT_EQ(refused.failure().string("value"), bad.rule) << bad.plan;
    EXPECT_EQ(refused.failure().string("why"), bad.why) << bad.plan;
  }
  EXPECT_EQ(FaultPlan::try_parse("malloc#1=oom", 0).failure().text(),
            "'malloc#1=oom' is not a rule of a fault plan: the class of calls is unknown. Write a "
            "rule such as allocate#3=oom, copy#2+=fail, launch%2=fault or query~0.01=not_ready.");
}

TEST(FaultPlan, FailsNothingWithoutRules) {
  EXPECT_EQ(run("", FaultClass::allocate, 5), ".....");
  FaultPlan plan;
  EXPECT_EQ(run(plan, FaultClass::copy, 3), "...");
  EXPECT_EQ(plan.calls(FaultClass::copy), 3u);
}

TEST(FaultPlan, FiresAsItsSelectorSays) {
  EXPECT_EQ(run("allocate#3=oom", FaultClass::allocate, 6), "..o...");
  EXPECT_EQ(run("allocate#3+=oom", FaultClass::allocate, 6), "..oooo");
  EXPECT_EQ(run("allocate#1+=oom", FaultClass::allocate, 3), "ooo");
  EXPECT_EQ(run("allocate%2=oom", FaultClass::allocate, 6), ".o.o.o");
  EXPECT_EQ(run("allocate%1=oom", FaultClass::allocate, 3), "ooo");
  EXPECT_EQ(run("allocate~1=oom", FaultClass::allocate, 3), "ooo");
  EXPECT_EQ(run("allocate~0.0=oom", FaultClass::allocate, 3), "...");
}

TEST(FaultPlan, GivesTheKindItWasTold) {
  EXPECT_EQ(run("allocate#1=oom,allocate#2=fragmented,allocate#3=fail,allocate#4=lost",
                FaultClass::allocate, 5),
            "o?fL.");
  EXPECT_EQ(run("copy#1=fail,copy#2=fault,copy#3=lost,copy#4=slow", FaultClass::copy, 5), "flLs.");
  EXPECT_EQ(run("query#1=not_ready", FaultClass::query, 2), "n.");
  EXPECT_EQ(run("pin#1=refuse", FaultClass::pin, 2), "r.");
}

TEST(FaultPlan, TakesOrRefusesEveryPairOfClassAndKindAsTheTableSays) {
  // A row per class, a column per kind: oom fragmented fail fault lost not_ready slow refuse.
  constexpr std::string_view table[fault_classes] = {
      "xxx.x...",  // allocate
      "..x.x...",  // release
      "x.x.x...",  // map
      "x.x.x..x",  // pin
      "..xxx.x.",  // copy
      "..xxx.x.",  // fill
      "..xxx.x.",  // launch
      "..x.x...",  // load
      "..xxx.x.",  // record
      "..xxx.x.",  // wait
      "..x.xx..",  // query
      "..x.x...",  // sync
      "..x.x...",  // stream
      "..x.x...",  // info
  };
  for (std::size_t row = 0; row < fault_classes; ++row) {
    for (std::size_t column = 0; column < fault_kinds; ++column) {
      const auto fault_class = static_cast<FaultClass>(row);
      const auto kind = static_cast<FaultKind>(column);
      const std::string rule = std::string(name(fault_class)) + "#1=" + std::string(name(kind));
      const bool is_taken = table[row][column] == 'x';
      EXPECT_EQ(takes(fault_class, kind), is_taken) << rule;
      const Result<FaultPlan> plan = FaultPlan::try_parse(rule, 0);
      EXPECT_EQ(bool(plan), is_taken) << rule;
      if (plan) continue;
      EXPECT_EQ(plan.failure().string("value"), rule);
      EXPECT_TRUE(plan.failure().string("why")->starts_with(name(fault_class))) << rule;
    }
  }
}

TEST(FaultPlan, ObeysTheFirstRuleThatFires) {
  EXPECT_EQ(run("copy#2=lost, copy%2=fail", FaultClass::copy, 4), ".L.f");
  EXPECT_EQ(run("copy%2=fail, copy#2=lost", FaultClass::copy, 4), ".f.f");
}

TEST(FaultPlan, CountsEachClassByItself) {
  FaultPlan plan = FaultPlan::try_parse("allocate#2=oom, copy#1=fail", 0).value();
  EXPECT_EQ(run(plan, FaultClass::allocate, 1), ".");
  EXPECT_EQ(run(plan, FaultClass::copy, 3), "f..");
  EXPECT_EQ(run(plan, FaultClass::fill, 2), "..");
  EXPECT_EQ(run(plan, FaultClass::allocate, 1), "o");
  EXPECT_EQ(plan.calls(FaultClass::allocate), 2u);
  EXPECT_EQ(plan.calls(FaultClass::copy), 3u);
  EXPECT_EQ(plan.calls(FaultClass::fill), 2u);
  EXPECT_EQ(plan.calls(FaultClass::launch), 0u);
}

TEST(FaultPlan, DrawsRatesFromTheSeed) {
  const std::string seven = run("query~0.25=not_ready", FaultClass::query, 4000, 7);
  EXPECT_EQ(seven, run("query~0.25=not_ready", FaultClass::query, 4000, 7));
  EXPECT_NE(seven, run("query~0.25=not_ready", FaultClass::query, 4000, 8));
  EXPECT_NEAR(static_cast<double>(std::ranges::count(seven, 'n')), 1000, 120);
  const std::string rare = run("query~0.001=not_ready", FaultClass::query, 20'000, 7);
  EXPECT_NEAR(static_cast<double>(std::ranges::count(rare, 'n')), 20, 15);
}

TEST(FaultPlan, KnowsItsClassesByName) {
  EXPECT_EQ(FaultPlan::class_of("allocate"), FaultClass::allocate);
  EXPECT_EQ(FaultPlan::class_of("stream"), FaultClass::stream);
  EXPECT_EQ(FaultPlan::class_of("free"), FaultClass::release);
  EXPECT_EQ(name(FaultClass::release), "release");
  for (std::size_t i = 0; i < fault_classes; ++i) {
    const auto fault_class = static_cast<FaultClass>(i);
    EXPECT_EQ(FaultPlan::class_of(name(fault_class)), fault_class);
  }
  for (const std::string_view unknown : {"", "alloc", "allocates", "file", "Copy"}) {
    EXPECT_FALSE(FaultPlan::class_of(unknown)) << unknown;
  }
}

}  // namespace
}  // namespace tern::sim
