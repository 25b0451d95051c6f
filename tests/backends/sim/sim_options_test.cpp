#include "backends/sim/sim_options.hpp"

#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "tern/core/bytes.hpp"

namespace tern::sim {
namespace {

Options set(std::string_view key, std::string_view value) {
  Options options;
  try_set_option(options, key, value).value();
  return options;
}

TEST(SimOptions, TakeASeedInEitherBase) {
  EXPECT_EQ(set("seed", "7").seed, 7u);
  EXPECT_EQ(set("seed", "0").seed, 0u);
  EXPECT_EQ(set("seed", "0x1c9f").seed, 0x1c9fu);
  EXPECT_EQ(set("seed", "0X1C9F").seed, 0x1c9fu);
  EXPECT_EQ(set("seed", "18446744073709551615").seed, ~std::uint64_t{0});
}

TEST(SimOptions, TakeEverySchedule) {
  EXPECT_EQ(set("schedule", "mix").policy, Policy::mix);
  EXPECT_EQ(set("schedule", "lazy").policy, Policy::lazy);
  EXPECT_EQ(set("schedule", "eager").policy, Policy::eager);
  EXPECT_EQ(set("schedule", "random").policy, Policy::random);
  EXPECT_EQ(set("schedule", "skewed").policy, Policy::skewed);
  EXPECT_EQ(set("schedule", "stall-one").policy, Policy::stall_one);
  EXPECT_EQ(set("schedule", "PCT").policy, Policy::pct);
  EXPECT_EQ(set("schedule", "pct").pct_depth, 3u);
  for (unsigned depth = 2; depth <= 5; ++depth) {
    const Options options = set("schedule", "pct:" + std::to_string(depth));
    EXPECT_EQ(options.policy, Policy::pct);
    EXPECT_EQ(options.pct_depth, depth);
  }
}

TEST(SimOptions, GiveAPlainPctItsUsualDepthAgain) {
  Options options = set("schedule", "pct:5");
  ASSERT_TRUE(try_set_option(options, "schedule", "pct"));
  EXPECT_EQ(options.pct_depth, 3u);
}

TEST(SimOptions, TakeTheOtherKeys) {
  EXPECT_EQ(set("reuse", "friendly").reuse, Reuse::friendly);
  EXPECT_EQ(set("reuse", "Hostile").reuse, Reuse::hostile);
  EXPECT_EQ(set("mode", "throw").mode, Mode::raise);
  EXPECT_EQ(set("mode", "collect").mode, Mode::collect);
  EXPECT_EQ(set("mode", "abort").mode, Mode::abort);
  EXPECT_FALSE(set("report", "quiet").print_findings);
  EXPECT_TRUE(set("report", "print").print_findings);
  EXPECT_EQ(set("memory", "2MiB").memory_bytes, 2 * mib);
  EXPECT_EQ(set("memory", "16TiB").memory_bytes, std::size_t{1} << 44);
  EXPECT_EQ(set("memory", "3145728").memory_bytes, 3 * mib);
  EXPECT_TRUE(set("backing", "memory").keeps_contents);
  EXPECT_FALSE(set("backing", "None").keeps_contents);
  EXPECT_TRUE(set("check", "on").check);
  EXPECT_FALSE(set("check", "off").check);
  EXPECT_FALSE(set("check", "0").check);
  EXPECT_EQ(set("concurrent", "off").concurrent_managed, false);
  EXPECT_EQ(set("concurrent", "1").concurrent_managed, true);
  EXPECT_EQ(Options().concurrent_managed, std::nullopt);
  EXPECT_FALSE(set("float64", "off").float64);
  EXPECT_TRUE(Options().float64);
  EXPECT_EQ(set("profile", "small").profile, "small");
  EXPECT_EQ(set("faults", "allocate#3=oom, copy%2=fail").faults, "allocate#3=oom, copy%2=fail");
  EXPECT_EQ(set("faults", "").faults, "");
}

TEST(SimOptions, RefuseOtherValuesAndSayWhatTheyTake) {
  constexpr std::string_view number = "a number below 2^64, such as 7 or 0x1c9f";
  constexpr std::string_view schedule =
      "mix, lazy, eager, random, skewed, stall-one, pct or pct:2 to pct:5";
  constexpr std::string_view keys =
      "the keys seed, schedule, reuse, mode, report, profile, memory, backing, check, concurrent, "
      "float64, strict_kernels, per_thread_host, implicit_sync, faults and trace";
  struct Bad {
    std::string_view key, value, accepts;
  };
  for (const Bad& bad : {Bad{"seed", "", number},
                         {"seed", "x", number},
                         {"seed", "-1", number},
                         {"seed", "0x", number},
                         {"seed", "1c9f", number},
                         {"seed", "7 ", number},
                         {"seed", "0x0x7", number},
                         {"seed", "18446744073709551616", number},
                         {"seed", "99999999999999999999", number},
                         {"seed", "0x10000000000000000", number},
                         {"seed", "abc", number},
                         {"seed", "+7", number},
                         {"seed", "0x-7", number},
                         {"schedule", "", schedule},
                         {"schedule", "fifo", schedule},
                         {"schedule", "stall_one", schedule},
                         {"schedule", "pct:1", schedule},
                         {"schedule", "pct:6", schedule},
                         {"schedule", "pct:", schedule},
                         {"schedule", "pct:33", schedule},
                         {"schedule", "lazy:3", schedule},
                         {"reuse", "nice", "hostile or friendly"},
                         {"mode", "raise", "throw, collect or abort"},
                         {"memory", "2097151", "2MiB to 16TiB"},
                         {"memory", "17592186044417", "2MiB to 16TiB"},
                         {"memory", "0", "2MiB to 16TiB"},
                         {"memory", "much", "2MiB to 16TiB"},
                         {"memory", "-4MiB", "2MiB to 16TiB"},
                         {"backing", "file", "memory or none"},
                         {"check", "yes", "on or off"},
                         {"concurrent", "", "on or off"},
                         {"colour", "red", keys},
                         {"Seed", "7", keys},
                         {"", "", keys}}) {
    Options options;
    options.pct_depth = 4;
    const Result<void> refused = try_set_option(options, bad.key, bad.value);
    ASSERT_FALSE(refused) << bad.key << "=" << bad.value;
    EXPECT_EQ(refused.failure().code(), ErrorCode::invalid_argument);
    EXPECT_EQ(refused.failure().string("name"), bad.key);
    EXPECT_EQ(refused.failure().string("value"), bad.value);
    EXPECT_EQ(refused.failure().string("accepts"), bad.accepts) << bad.key << "=" << bad.value;
    // What was there stays.
    EXPECT_EQ(options.seed, 0u);
    EXPECT_EQ(options.policy, Policy::mix);
    EXPECT_EQ(options.pct_depth, 4u);
    EXPECT_FALSE(options.memory_bytes);
  }
  Options options;
  EXPECT_EQ(try_set_option(options, "reuse", "nice").failure().text(),
            "the simulated device does not accept reuse='nice'. Accepted: hostile or friendly.");
  EXPECT_EQ(try_set_option(options, "faults", "copy#0=fail").failure().string("why"),
            "calls are counted from 1");
  EXPECT_EQ(options.faults, "");
}

TEST(SimOptions, AreReadFromASpec) {
  const Options options =
      try_read_options(parse_device_spec("sim:0?seed=0x1c9f&schedule=pct:4&reuse=friendly&"
                                         "mode=collect&memory=1GiB&check=off&concurrent=off&"
                                         "faults=allocate#3=oom,copy%2=fail"))
          .value();
  EXPECT_EQ(options.seed, 0x1c9fu);
  EXPECT_EQ(options.policy, Policy::pct);
  EXPECT_EQ(options.pct_depth, 4u);
  EXPECT_EQ(options.reuse, Reuse::friendly);
  EXPECT_EQ(options.mode, Mode::collect);
  EXPECT_EQ(options.memory_bytes, 1 * gib);
  EXPECT_FALSE(options.check);
  EXPECT_EQ(options.concurrent_managed, false);
  EXPECT_EQ(options.faults, "allocate#3=oom,copy%2=fail");
}

TEST(SimOptions, AreReadFromTheEnvironmentBelowTheSpec) {
  Config config;
  config.sim_seed = "0x7";
  config.sim_schedule = "lazy";
  config.sim_reuse = "friendly";
  config.sim_mode = "collect";
  config.sim_profile = "small";
  config.sim_faults = "copy#1=fail";
  const Options options = try_read_options(parse_device_spec("sim?schedule=eager"), config).value();
  EXPECT_EQ(options.seed, 7u);
  EXPECT_EQ(options.policy, Policy::eager);
  EXPECT_EQ(options.reuse, Reuse::friendly);
  EXPECT_EQ(options.mode, Mode::collect);
  EXPECT_EQ(options.profile, "small");
  EXPECT_EQ(options.faults, "copy#1=fail");
}

TEST(SimOptions, OfABadEnvironmentAreRefusedWithTheVariable) {
  for (const char* seed : {"abc", "-1", "99999999999999999999", " 7"}) {
    Config config;
    config.sim_seed = seed;
    const auto refused = try_read_options(parse_device_spec("sim"), config);
    ASSERT_FALSE(refused) << seed;
    EXPECT_EQ(refused.failure().code(), ErrorCode::invalid_argument);
    EXPECT_EQ(
        refused.failure().text(),
        std::string(
            "TERN_SIM_SEED has an invalid value: the simulated device does not accept seed='") +
            seed + "'. Accepted: a number below 2^64, such as 7 or 0x1c9f.");
  }
  Config config;
  config.sim_profile = "/no/such/file";
  const auto refused = try_read_options(parse_device_spec("sim"), config);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.failure().code(), ErrorCode::file);
  EXPECT_EQ(refused.failure().string("variable"), "TERN_SIM_PROFILE");
}

TEST(SimOptions, HaveOneCanonicalTextHoweverTheyAreSpelt) {
  const auto text = [](std::string_view spec) {
    return canonical_text(try_read_options(parse_device_spec(spec), Config()).value());
  };
  EXPECT_EQ(text("sim?seed=7"), text("sim?seed=0x7"));
  EXPECT_EQ(text("sim?seed=7"), text("sim?seed=007"));
  EXPECT_EQ(text("sim:0?memory=4MiB"), text("sim:1?memory=4194304"));
  EXPECT_EQ(text("sim?schedule=pct"), text("sim?schedule=PCT:3"));
  EXPECT_EQ(text("sim?check=off"), text("sim?check=0"));
  EXPECT_EQ(text("sim"), text("sim?seed=0&schedule=mix&reuse=hostile&mode=throw&check=on"));
  const std::string_view others[] = {"sim",
                                     "sim?seed=1",
                                     "sim?schedule=lazy",
                                     "sim?schedule=pct:4",
                                     "sim?schedule=pct",
                                     "sim?reuse=friendly",
                                     "sim?mode=collect",
                                     "sim?memory=4MiB",
                                     "sim?check=off",
                                     "sim?concurrent=off",
                                     "sim?concurrent=on",
                                     "sim?float64=off",
                                     "sim?profile=small",
                                     "sim?faults=copy#1=fail"};
  for (const std::string_view& a : others) {
    for (const std::string_view& b : others) EXPECT_EQ(text(a) == text(b), &a == &b) << a << b;
  }
}

TEST(SimOptions, OfABadSpecAreRefusedWithTheReason) {
  const auto refused = try_read_options(parse_device_spec("sim:1?reuse=nice"));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.failure().code(), ErrorCode::invalid_device);
  EXPECT_EQ(refused.failure().string("spec"), "sim:1?reuse=nice");
  EXPECT_EQ(refused.failure().text(),
            "'sim:1?reuse=nice' cannot be opened: the simulated device does not accept "
            "reuse='nice'. Accepted: hostile or friendly.");
}

TEST(SimOptions, OfALongSpecAreRefusedWithTheReasonToo) {
  const std::string spec = "sim?reuse=" + std::string(1000, 'x');
  const auto refused = try_read_options(parse_device_spec(spec));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.failure().code(), ErrorCode::invalid_device);
  EXPECT_NE(refused.failure().text().find("does not accept reuse="), std::string::npos)
      << refused.failure().text();
}

}  // namespace
}  // namespace tern::sim
