#include "tern/detail/core/config.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "tern/core/bytes.hpp"

namespace tern {
namespace {

using Environment = std::vector<EnvironmentEntry>;

Result<Config> parse(const Environment& environment) { return try_parse_config(environment); }

/// What one bad value is refused with, after checking the fields every refusal has.
Failure refusal(std::string_view name, std::string_view value) {
  const Result<Config> config = parse({{name, value}});
  EXPECT_FALSE(config) << name << "='" << value << "' was accepted";
  const Failure failure = config ? Failure(ErrorCode::driver) : config.failure();
  EXPECT_EQ(failure.code(), ErrorCode::invalid_argument);
  EXPECT_EQ(failure.string("name"), name);
  EXPECT_EQ(failure.string("value"), value);
  EXPECT_FALSE(failure.string("accepts").value_or("").empty());
  return failure;
}

TEST(Config, HasDefaultsForWhatIsUnset) {
  const Config config = *parse({});
  EXPECT_EQ(config.device, "");
  EXPECT_TRUE(config.require.empty());
  EXPECT_EQ(config.host_threads, 0u);
  EXPECT_EQ(config.stream_pool_capacity, 16u);
  EXPECT_EQ(config.staging_threads, std::nullopt);
  EXPECT_EQ(config.staging_bytes, std::nullopt);
  EXPECT_TRUE(config.unknown_names.empty());
}

TEST(Config, ReadsEveryVariable) {
  const Config config = *parse({{"TERN_DEVICE", "sim:0?seed=7"},
                                {"TERN_REQUIRE", "cuda,opencl"},
                                {"TERN_HOST_THREADS", "8"},
                                {"TERN_STREAM_POOL", "32"},
                                {"TERN_STAGING_THREADS", "4"},
                                {"TERN_STAGING_BYTES", "64MiB"}});
  EXPECT_EQ(config.device, "sim:0?seed=7");
  EXPECT_EQ(config.require, (std::vector<std::string>{"cuda", "opencl"}));
  EXPECT_EQ(config.host_threads, 8u);
  EXPECT_EQ(config.stream_pool_capacity, 32u);
  EXPECT_EQ(config.staging_threads, 4u);
  EXPECT_EQ(config.staging_bytes, 64 * mib);
}

TEST(Config, ReadsCountsFromTheSmallestToTheLargest) {
  EXPECT_EQ(parse({{"TERN_HOST_THREADS", "1"}})->host_threads, 1u);
  EXPECT_EQ(parse({{"TERN_HOST_THREADS", "1024"}})->host_threads, 1024u);
  EXPECT_EQ(parse({{"TERN_STREAM_POOL", "1"}})->stream_pool_capacity, 1u);
  EXPECT_EQ(parse({{"TERN_STREAM_POOL", "1024"}})->stream_pool_capacity, 1024u);
  EXPECT_EQ(parse({{"TERN_STREAM_POOL", "007"}})->stream_pool_capacity, 7u);
  EXPECT_EQ(parse({{"TERN_STAGING_THREADS", "0"}})->staging_threads, 0u);
  EXPECT_EQ(parse({{"TERN_STAGING_THREADS", "64"}})->staging_threads, 64u);
}

TEST(Config, ReadsASizeAsPeopleWriteIt) {
  EXPECT_EQ(parse({{"TERN_STAGING_BYTES", "0"}})->staging_bytes, 0u);
  EXPECT_EQ(parse({{"TERN_STAGING_BYTES", "1.5KiB"}})->staging_bytes, 1536u);
  for (const char* value : {"", "-1", "64 MiB", "64M", "64MiB,", "9223372036854775808", "16EiB"}) {
    refusal("TERN_STAGING_BYTES", value);
  }
  EXPECT_EQ(
      refusal("TERN_STAGING_BYTES", "much").text(),
      "TERN_STAGING_BYTES='much' is not accepted. Set it to a size such as 64MiB, or unset it.");
}

TEST(Config, RefusesAStagingTeamThatIsNotANumberUpTo64) {
  for (const char* value : {"", "65", "-1", "+1", "4x", "1e1", " 4"}) {
    refusal("TERN_STAGING_THREADS", value);
  }
  EXPECT_EQ(refusal("TERN_STAGING_THREADS", "65").text(),
            "TERN_STAGING_THREADS='65' is not accepted. Set it to a whole number from 0 to 64, or "
            "unset it.");
}

TEST(Config, RefusesACountThatIsNotExactlyANumberInRange) {
  for (const char* name : {"TERN_HOST_THREADS", "TERN_STREAM_POOL"}) {
    for (const char* value : {"", "0", "00", "1025", "-1", "+1", " 1", "1 ", "8x", "8 threads",
                              "8.0", "1e2", "0x8", "eight", "8,8", "18446744073709551616",
                              "18446744073709551617", "99999999999999999999999999", "\xd9\xa1"}) {
      refusal(name, value);
    }
  }
  refusal("TERN_HOST_THREADS", std::string_view("8\0", 2));
}

TEST(Config, NamesVariableAndValueAndWhatWouldBeAccepted) {
  EXPECT_EQ(refusal("TERN_HOST_THREADS", "8 threads").text(),
            "TERN_HOST_THREADS='8 threads' is not accepted. Set it to a whole number from 1 to "
            "1024, or unset it.");
  EXPECT_EQ(refusal("TERN_STREAM_POOL", "0").text(),
            "TERN_STREAM_POOL='0' is not accepted. Set it to a whole number from 1 to 1024, or "
            "unset it.");
  EXPECT_EQ(refusal("TERN_DEVICE", "").text(),
            "TERN_DEVICE='' is not accepted. Set it to a device spec, such as host or cuda:1, or "
            "unset it.");
  EXPECT_EQ(refusal("TERN_REQUIRE", "cuda, sim").text(),
            "TERN_REQUIRE='cuda, sim' is not accepted. Set it to backend names in lower case, "
            "separated by commas without spaces, or unset it.");
}

TEST(Config, SaysWhatWouldBeAcceptedHoweverLongTheValueIs) {
  const std::string value(1000, 'A');
  const Result<Config> config = parse({{"TERN_REQUIRE", value}});
  ASSERT_FALSE(config);
  EXPECT_TRUE(config.failure().string("value")->ends_with("AAA..."));
  EXPECT_EQ(config.failure().string("accepts"),
            "backend names in lower case, separated by commas without spaces");
}

TEST(Config, ReadsBackendNamesBetweenCommas) {
  EXPECT_EQ(parse({{"TERN_REQUIRE", "cuda"}})->require, std::vector<std::string>{"cuda"});
  EXPECT_EQ(parse({{"TERN_REQUIRE", "a_0,z9,x"}})->require,
            (std::vector<std::string>{"a_0", "z9", "x"}));
}

TEST(Config, RefusesBackendNamesThatAreEmptyOrHaveOtherCharacters) {
  for (const char* value : {"", ",", "cuda,", ",cuda", "cuda,,sim", "cuda, sim", " cuda", "cuda ",
                            "CUDA", "cuda:0", "cuda;sim", "cud\xc3\xa9", "cuda\n"}) {
    refusal("TERN_REQUIRE", value);
  }
}

TEST(Config, KeepsTheNamesItDoesNotKnow) {
  const Config config = *parse({{"TERN_HOST_THREAD", "8"},
                                {"TERN_DEVICE", "host"},
                                {"TERN_", ""},
                                {"TERN_device", "x"},
                                {"TERN_DEVICES", "x"}});
  EXPECT_EQ(config.unknown_names,
            (std::vector<std::string>{"TERN_HOST_THREAD", "TERN_", "TERN_device", "TERN_DEVICES"}));
  EXPECT_EQ(config.device, "host");
  EXPECT_EQ(config.host_threads, 0u);
}

TEST(Config, IgnoresOtherPeoplesNames) {
  const Config config = *parse({{"PATH", "/bin"},
                                {"TERN", "1"},
                                {"tern_device", "x"},
                                {"XTERN_DEVICE", "x"},
                                {"", ""},
                                {"TERNARY", "x"}});
  EXPECT_TRUE(config.unknown_names.empty());
  EXPECT_EQ(config.device, "");
}

TEST(Config, RefusesOneBadValueAmongGoodOnes) {
  EXPECT_FALSE(parse({{"TERN_DEVICE", "host"}, {"TERN_HOST_THREADS", "x"}, {"TERN_X", ""}}));
}

TEST(Config, ListsEachVariableWithAnEffectiveValue) {
  const Config config = *parse({{"TERN_DEVICE", "cuda:1"},
                                {"TERN_REHEARSE", "sim?memory=1GiB"},
                                {"TERN_REQUIRE", "cuda,sim"},
                                {"TERN_HOST_THREADS", "8"},
                                {"TERN_STREAM_POOL", "32"},
                                {"TERN_STAGING_THREADS", "4"},
                                {"TERN_STAGING_BYTES", "64MiB"},
                                {"TERN_CHECKED", "1"},
                                {"TERN_CHECK", "compare,poison"},
                                {"TERN_MEMORY", "track,guard"},
                                {"TERN_TRACE", "ring:64MiB"},
                                {"TERN_CXX", "g++-13"},
                                {"TERN_CACHE_DIR", "/var/kernels"},
                                {"TERN_CACHE_LIMIT", "1KiB"},
                                {"TERN_SIM_SEED", "0x7"},
                                {"TERN_SIM_SCHEDULE", "pct:3"},
                                {"TERN_SIM_REUSE", "friendly"},
                                {"TERN_SIM_MODE", "collect"},
                                {"TERN_SIM_REPORT", "quiet"},
                                {"TERN_SIM_PROFILE", "small"},
                                {"TERN_SIM_FAULTS", "copy#1=fail"},
                                {"TERN_SIM_TRACE", "run.trace"}});
  const std::vector<std::string> values = {
      "cuda:1",  "sim?memory=1GiB", "cuda,sim",    "8",           "32",       "4",     "67108864",
      "1",       "poison,compare",  "guard,track", "ring:64MiB",  "g++-13",   "/var/kernels", "1024", "0x7", "pct:3", "friendly",
      "collect", "quiet",           "small",       "copy#1=fail", "run.trace"};
  ASSERT_EQ(config_variables().size(), values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    const ConfigVariable& variable = config_variables()[i];
    EXPECT_EQ(effective_value(config, variable.name), values[i]) << variable.name;
    EXPECT_TRUE(variable.name.starts_with("TERN_"));
    EXPECT_FALSE(variable.accepts.empty()) << variable.name;
    EXPECT_FALSE(variable.purpose.empty()) << variable.name;
    EXPECT_TRUE(parse({{variable.name, values[i]}})->unknown_names.empty()) << variable.name;
  }
}

TEST(Config, ReadsTheWordsOfChecks) {
  const Config none = parse({}).value();
  EXPECT_FALSE(none.check_poison || none.check_guard || none.check_checksum || none.check_compare);
  const Config some = parse({{"TERN_CHECK", "guard,checksum"}}).value();
  EXPECT_TRUE(!some.check_poison && some.check_guard && some.check_checksum && !some.check_compare);
  const Config all = parse({{"TERN_CHECK", "compare,checksum,guard,poison"}}).value();
  EXPECT_TRUE(all.check_poison && all.check_guard && all.check_checksum && all.check_compare);
  for (const char* value : {"", "1", "poisn", "poison,", ",poison", "poison, guard", "Poison",
                            "poison;guard", "poison,,guard", "poison guard"}) {
    refusal("TERN_CHECK", value);
  }
  EXPECT_EQ(refusal("TERN_CHECK", "poisn").text(),
            "TERN_CHECK='poisn' is not accepted. Set it to some of the words poison, guard, "
            "checksum and compare, separated by commas without spaces, or unset it.");
}

TEST(Config, ReadsTheWordsOfMemoryChecks) {
  const Config none = parse({}).value();
  EXPECT_FALSE(none.memory_guard || none.memory_poison || none.memory_track);
  const Config some = parse({{"TERN_MEMORY", "poison,track"}}).value();
  EXPECT_TRUE(!some.memory_guard && some.memory_poison && some.memory_track && !some.memory_leaks);
  EXPECT_TRUE(parse({{"TERN_MEMORY", "leaks"}}).value().memory_leaks);
  for (const char* value : {"", "1", "guards", "guard,", "guard, poison", "Guard"}) {
    refusal("TERN_MEMORY", value);
  }
}

TEST(Config, KeepsCompiledKernelsInTheCacheFolderOfTheUser) {
  EXPECT_EQ(cache_folder(*parse({})), "");
  EXPECT_EQ(cache_folder(*parse({{"HOME", "/home/u"}})), "/home/u/.cache/tern");
  EXPECT_EQ(cache_folder(*parse({{"HOME", "/home/u"}, {"XDG_CACHE_HOME", "/c"}})), "/c/tern");
  EXPECT_EQ(cache_folder(*parse({{"HOME", "/home/u"}, {"XDG_CACHE_HOME", "c"}})),
            "/home/u/.cache/tern");
  EXPECT_EQ(cache_folder(*parse({{"HOME", "/home/u"}, {"TERN_CACHE_DIR", "/k"}})), "/k");
}

TEST(Config, TurnsTheCacheOffOnRequest) {
  for (const char* value : {"", "off"}) {
    const Config config = *parse({{"HOME", "/home/u"}, {"TERN_CACHE_DIR", value}});
    EXPECT_EQ(cache_folder(config), "") << value;
    EXPECT_EQ(effective_value(config, "TERN_CACHE_DIR"), "off");
  }
  EXPECT_EQ(refusal("TERN_CACHE_DIR", "kernels").text(),
            "TERN_CACHE_DIR='kernels' is not accepted. Set it to the absolute path of a folder, or "
            "to off, or unset it.");
  EXPECT_EQ(parse({{"TERN_CACHE_LIMIT", "0"}})->cache_limit_bytes, 0u);
  EXPECT_EQ(parse({})->cache_limit_bytes, 256 * mib);
  for (const char* value : {"", "-1", "lots"}) refusal("TERN_CACHE_LIMIT", value);
}

TEST(Config, ReadsTheCompilerAndWhereProgramsAre) {
  const Config config =
      *parse({{"TERN_CXX", "g++-13"}, {"PATH", "/bin:/usr/bin"}, {"TMPDIR", "/scratch"}});
  EXPECT_EQ(config.cxx, "g++-13");
  EXPECT_EQ(config.search_path, "/bin:/usr/bin");
  EXPECT_EQ(config.temporary_folder, "/scratch");
  refusal("TERN_CXX", "");
}

TEST(Config, RefusesAVariableOfTheSimulatedDeviceThatIsEmpty) {
  for (const char* name : {"TERN_SIM_SEED", "TERN_SIM_SCHEDULE", "TERN_SIM_REUSE", "TERN_SIM_MODE",
                           "TERN_SIM_REPORT", "TERN_SIM_PROFILE", "TERN_SIM_FAULTS"}) {
    refusal(name, "");
  }
  EXPECT_EQ(
      refusal("TERN_SIM_SEED", "").text(),
      "TERN_SIM_SEED='' is not accepted. Set it to a number such as 7 or 0x1c9f, or unset it.");
}

TEST(Config, HasEffectiveValuesForTheDefaults) {
  const Config config;
  EXPECT_EQ(effective_value(config, "TERN_DEVICE"), "");
  EXPECT_EQ(effective_value(config, "TERN_REQUIRE"), "");
  EXPECT_EQ(effective_value(config, "TERN_HOST_THREADS"), "one per core");
  EXPECT_EQ(effective_value(config, "TERN_STREAM_POOL"), "16");
  EXPECT_EQ(effective_value(config, "TERN_STAGING_THREADS"), "the device's choice");
  EXPECT_EQ(effective_value(config, "TERN_STAGING_BYTES"), "the device's choice");
  EXPECT_EQ(effective_value(config, "TERN_UNKNOWN"), "");
}

/// Each in a process of its own, because the configuration is read once in a process.
class ConfigDeathTest : public testing::Test {
 protected:
  ConfigDeathTest() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }

  static void set(const char* name, const char* value) { setenv(name, value, 1); }
  static void clear() {
    for (const ConfigVariable& variable : config_variables()) unsetenv(variable.name.data());
  }
};

TEST_F(ConfigDeathTest, ReadsTheEnvironmentOnce) {
  EXPECT_EXIT(
      {
        clear();
        set("TERN_HOST_THREADS", "3");
        set("TERN_HOST_TREADS", "3");
        const bool read = config().host_threads == 3 && !config().unknown_names.empty();
        set("TERN_HOST_THREADS", "4");
        const bool kept = config().host_threads == 3 && *try_config() == &config();
        std::_Exit(read && kept ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
}

TEST_F(ConfigDeathTest, RefusesABadEnvironmentOnEveryCall) {
  EXPECT_EXIT(
      {
        clear();
        set("TERN_STREAM_POOL", "16 streams");
        bool refused = !try_config();
        unsetenv("TERN_STREAM_POOL");
        refused = refused && try_config().failure().string("value") == "16 streams";
        try {
          static_cast<void>(config());
          refused = false;
        } catch (const InvalidArgument& error) {
          refused = refused && error.failure().string("name") == "TERN_STREAM_POOL";
        }
        std::_Exit(refused ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace tern
