#include "backends/sim/profile.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <string>

#include "backends/sim/random.hpp"
#include "tern/core/bytes.hpp"

namespace tern::sim {
namespace {

constexpr std::string_view valid = R"(# A device of the tests.
name = Test device   # with a comment
date = 2026-11-01
memory = 3GiB
processors = 7

launch_ns = 1
copy_ns=2
  call_ns   =	3
submit_ns = 4
slow_ns = 5
link_bytes_per_us = 6
memory_bytes_per_us = 1000000000
concurrent = off
)";

Profile parse(std::string_view text) { return try_parse_profile(text, "test.profile").value(); }

/// A file that goes when the test does.
class TemporaryFile {
 public:
  explicit TemporaryFile(std::string_view text) {
    std::ofstream(path_, std::ios::binary).write(text.data(), static_cast<long>(text.size()));
  }
  ~TemporaryFile() { std::remove(path_.c_str()); }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_ = testing::TempDir() + "tern_profile_" + std::to_string(getpid());
};

TEST(Profile, ReadsEveryKey) {
  const Profile profile = parse(valid);
  EXPECT_EQ(profile.name, "Test device");
  EXPECT_EQ(profile.date, "2026-11-01");
  EXPECT_EQ(profile.memory_bytes, 3 * gib);
  EXPECT_EQ(profile.processors, 7u);
  EXPECT_EQ(profile.launch_ns, 1u);
  EXPECT_EQ(profile.copy_ns, 2u);
  EXPECT_EQ(profile.call_ns, 3u);
  EXPECT_EQ(profile.submit_ns, 4u);
  EXPECT_EQ(profile.slow_ns, 5u);
  EXPECT_EQ(profile.link_bytes_per_us, 6u);
  EXPECT_EQ(profile.memory_bytes_per_us, 1'000'000'000u);
  EXPECT_FALSE(profile.concurrent_managed);
}

TEST(Profile, KeepsTheDefaultForWhatAFileLeavesOut) {
  EXPECT_EQ(parse(""), default_profile());
  EXPECT_EQ(parse("\n\n# nothing\n   \t\r\n"), default_profile());
  Profile expected = default_profile();
  expected.copy_ns = 9;
  EXPECT_EQ(parse("copy_ns = 9"), expected);
  EXPECT_EQ(parse("\r\ncopy_ns = 9\r\n"), expected);
}

TEST(Profile, TakesTheEndsOfEachRange) {
  for (const std::string_view line :
       {"launch_ns = 0", "launch_ns = 1000000000", "link_bytes_per_us = 1",
        "link_bytes_per_us = 1000000000", "processors = 1", "processors = 1000000", "memory = 2MiB",
        "memory = 16TiB", "date = 0001-01-01", "date = 9999-12-31", "concurrent = on", "name = x",
        "name = a = b", "name = 123456789012345678901234567890123456789012345678901234567890123"}) {
    EXPECT_TRUE(try_parse_profile(line, "f")) << line;
  }
  EXPECT_EQ(parse("name = a = b").name, "a = b");
}

TEST(Profile, RefusesWhatAKeyDoesNotTakeWithFileLineKeyValueAndWhatItTakes) {
  constexpr std::string_view latency = "0 to 1000000000 nanoseconds";
  constexpr std::string_view bandwidth = "1 to 1000000000 bytes per microsecond";
  constexpr std::string_view day = "a date such as 2026-11-01";
  struct Bad {
    std::string_view key, value, accepts;
  };
  for (const Bad& bad : {Bad{"launch_ns", "", latency},
                         {"launch_ns", "-1", latency},
                         {"launch_ns", "1000000001", latency},
                         {"copy_ns", "1 us", latency},
                         {"copy_ns", "1.5", latency},
                         {"call_ns", "18446744073709551616", latency},
                         {"submit_ns", "+1", latency},
                         {"slow_ns", "0x10", latency},
                         {"link_bytes_per_us", "0", bandwidth},
                         {"link_bytes_per_us", "1000000001", bandwidth},
                         {"memory_bytes_per_us", "0", bandwidth},
                         {"memory_bytes_per_us", "much", bandwidth},
                         {"memory", "1MiB", "2MiB to 16TiB"},
                         {"memory", "17TiB", "2MiB to 16TiB"},
                         {"memory", "", "2MiB to 16TiB"},
                         {"processors", "0", "1 to 1000000"},
                         {"processors", "1000001", "1 to 1000000"},
                         {"processors", "4294967297", "1 to 1000000"},
                         {"concurrent", "yes", "on or off"},
                         {"concurrent", "ON", "on or off"},
                         {"name", "", "1 to 63 bytes of text"},
                         {"date", "2026-13-01", day},
                         {"date", "2026-00-01", day},
                         {"date", "2026-01-32", day},
                         {"date", "2026/01/01", day},
                         {"date", "26-01-01", day},
                         {"date", "2026-1-001", day},
                         {"date", "today", day}}) {
    const std::string text =
        "# a comment\n\n" + std::string(bad.key) + " = " + std::string(bad.value) + "\n";
    const Result<Profile> refused = try_parse_profile(text, "bad.profile");
    ASSERT_FALSE(refused) << text;
    EXPECT_EQ(refused.failure().code(), ErrorCode::invalid_argument);
    EXPECT_EQ(refused.failure().string("file"), "bad.profile");
    EXPECT_EQ(refused.failure().number("line"), 3u);
    EXPECT_EQ(refused.failure().string("name"), bad.key);
    EXPECT_EQ(refused.failure().string("value"), bad.value);
    EXPECT_EQ(refused.failure().string("accepts"), bad.accepts);
  }
  const std::string long_name(64, 'x');
  EXPECT_FALSE(try_parse_profile("name = " + long_name, "f"));
  EXPECT_EQ(try_parse_profile("copy_ns = fast", "my.profile").failure().text(),
            "line 1 of profile 'my.profile' sets copy_ns to 'fast', which is not accepted. "
            "Accepted: 0 to 1000000000 nanoseconds.");
}

TEST(Profile, RefusesWhatIsNoLineOfAProfile) {
  const auto text_of = [](std::string_view text) {
    const Result<Profile> refused = try_parse_profile(text, "f");
    return refused ? std::string("taken") : refused.failure().text();
  };
  EXPECT_EQ(text_of("copy_ns = 1\ncopy_ns = 1\n"),
            "line 2 of profile 'f' sets copy_ns to '1', but an earlier line has set it. Keep one "
            "line per key.");
  EXPECT_EQ(text_of("colour = red"),
            "line 1 of profile 'f' sets 'colour' to 'red', but the key is unknown. Use a key of a "
            "profile: name, date, memory, processors, concurrent, launch_ns, copy_ns, call_ns, "
            "submit_ns, slow_ns, link_bytes_per_us, memory_bytes_per_us.");
  EXPECT_EQ(text_of("Copy_ns = 1").find("the key is unknown") == std::string::npos, false);
  EXPECT_EQ(text_of("fast please"),
            "line 1 of profile 'f' is 'fast please'. A profile consists of lines 'key = value'.");
  EXPECT_EQ(text_of("= 3"),
            "line 1 of profile 'f' is '= 3'. A profile consists of lines 'key = value'.");
  EXPECT_EQ(text_of(std::string_view("name = a\nname\0 = b", 17)),
            "line 2 of profile 'f' is not text. A profile consists of lines 'key = value'.");
  EXPECT_EQ(text_of("name = \x1b[31m"),
            "line 1 of profile 'f' is not text. A profile consists of lines 'key = value'.");
  EXPECT_EQ(text_of("name = \x7f"),
            "line 1 of profile 'f' is not text. A profile consists of lines 'key = value'.");
}

TEST(Profile, NamesTheFileHoweverLongTheLineIs) {
  const std::string line(5000, 'k');
  const Result<Profile> refused = try_parse_profile(line + " = " + line, "my.profile");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.failure().string("file"), "my.profile");
}

TEST(Profile, HasBuiltInOnesByName) {
  EXPECT_EQ(try_load_profile("").value(), default_profile());
  EXPECT_EQ(try_load_profile("h200").value(), default_profile());
  const Profile small = try_load_profile("small").value();
  EXPECT_EQ(small.memory_bytes, 256 * mib);
  EXPECT_EQ(small.processors, 8u);
  EXPECT_LT(small.link_bytes_per_us, default_profile().link_bytes_per_us);
}

TEST(Profile, ReadsAFile) {
  const TemporaryFile file(valid);
  EXPECT_EQ(try_load_profile(file.path()).value(), parse(valid));
  const TemporaryFile bad("colour = red");
  const Result<Profile> refused = try_load_profile(bad.path());
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.failure().string("name"), "colour");
}

TEST(Profile, SaysWhyAFileCannotBeRead) {
  const auto why = [](const std::string& path) {
    const Result<Profile> refused = try_load_profile(path);
    if (refused) return std::string("read");
    EXPECT_EQ(refused.failure().code(), ErrorCode::file);
    EXPECT_EQ(refused.failure().string("path"), path);
    return std::string(*refused.failure().string("why"));
  };
  EXPECT_EQ(why("/no/such/file"), "No such file or directory");
  EXPECT_EQ(why("H200"), "No such file or directory");
  EXPECT_EQ(why(testing::TempDir()), "it is not a regular file");
  EXPECT_EQ(why("/dev/null"), "it is not a regular file");
  EXPECT_EQ(why(std::string("small\0", 6)), "the name contains a zero byte");
  EXPECT_EQ(try_load_profile("/no/such/file").failure().text(),
            "profile '/no/such/file' cannot be read: No such file or directory. Use a text file of "
            "at most 64 KiB, or the built-in profile h200 or small.");
  const std::string pipe = testing::TempDir() + "tern_pipe_" + std::to_string(getpid());
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_EQ(why(pipe), "it is not a regular file");
  std::remove(pipe.c_str());
}

TEST(Profile, TakesAFileOf64KiBAndNoLargerOne) {
  const std::string largest(64 * kib, '\n');
  const TemporaryFile file(largest);
  EXPECT_EQ(try_load_profile(file.path()).value(), default_profile());
  const TemporaryFile larger(largest + "\n");
  const Result<Profile> refused = try_load_profile(larger.path());
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.failure().string("why"), "it is larger than 64 KiB");
}

/// Taken with numbers in range, or refused with a sentence.
void expect_sense(const std::string& text, std::uint64_t seed) {
  const Result<Profile> profile = try_parse_profile(text, "fuzz");
  if (!profile) {
    ASSERT_EQ(profile.failure().code(), ErrorCode::invalid_argument) << seed;
    ASSERT_EQ(profile.failure().text().rfind("line ", 0), 0u) << seed;
    ASSERT_TRUE(profile.failure().text().ends_with(".")) << seed;
    return;
  }
  ASSERT_GE(profile->memory_bytes, min_memory_bytes) << seed;
  ASSERT_LE(profile->memory_bytes, max_memory_bytes) << seed;
  ASSERT_GE(profile->link_bytes_per_us, 1u) << seed;
  ASSERT_GE(profile->memory_bytes_per_us, 1u) << seed;
  ASSERT_GE(profile->processors, 1u) << seed;
  for (const std::uint64_t ns : {profile->launch_ns, profile->copy_ns, profile->call_ns,
                                 profile->submit_ns, profile->slow_ns}) {
    ASSERT_LE(ns, 1'000'000'000u) << seed;
  }
  ASSERT_FALSE(profile->name.empty()) << seed;
  ASSERT_LE(profile->name.size(), 63u) << seed;
}

TEST(Profile, OfRandomBytesIsReadOrRefusedWithASentence) {
  for (std::uint64_t seed = 0; seed < 5000; ++seed) {
    Random random(seed, Purpose::program);
    std::string text(random.below(300), '\0');
    for (char& c : text) c = static_cast<char>(random.below(256));
    expect_sense(text, seed);
  }
}

TEST(Profile, OfMutatedTextIsReadOrRefusedWithASentence) {
  int taken = 0, refused = 0;
  for (std::uint64_t seed = 0; seed < 20'000; ++seed) {
    Random random(seed, Purpose::program);
    std::string text(valid);
    for (std::uint64_t i = 1 + random.below(4); i > 0; --i) {
      const std::size_t at = random.below(text.size());
      const std::size_t length = 1 + random.below(std::min<std::size_t>(20, text.size() - at));
      switch (random.below(4)) {
        case 0:
          text[at] = static_cast<char>(random.below(256));
          break;
        case 1:
          text.erase(at, length);
          break;
        case 2:
          text.insert(at, text.substr(at, length));
          break;
        default:
          text[at] = "0123456789=#\n -"[random.below(15)];
          break;
      }
      if (text.empty()) text = "\n";
    }
    expect_sense(text, seed);
    ++(try_parse_profile(text, "fuzz") ? taken : refused);
  }
  EXPECT_GT(taken, 1000);
  EXPECT_GT(refused, 1000);
}

}  // namespace
}  // namespace tern::sim
