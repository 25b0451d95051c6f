#include "tern/core/tag.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <latch>
#include <string>
#include <vector>

#include "support/allocation_counter.hpp"
#include "support/thread.hpp"

namespace tern {
namespace {

/// Runs `check` in a process of its own that has interned nothing yet.
#define EXPECT_IN_A_FRESH_PROCESS(check)          \
  GTEST_FLAG_SET(death_test_style, "threadsafe"); \
  EXPECT_EXIT(std::_Exit((check)() ? 0 : 1), testing::ExitedWithCode(0), "")

TEST(Tag, IsUntaggedWithoutAName) {
  EXPECT_EQ(Tag().name(), "untagged");
  EXPECT_EQ(Tag().number(), 0u);
  EXPECT_EQ(Tag(""), Tag());
  EXPECT_EQ(Tag(std::string_view()), Tag());
  EXPECT_EQ(Tag(static_cast<const char*>(nullptr)), Tag());
  EXPECT_EQ(Tag("untagged"), Tag());
  EXPECT_NE(Tag("untagged "), Tag());
}

TEST(Tag, IsEqualForEqualNamesOnly) {
  const Tag weights = "weights";
  EXPECT_EQ(weights, Tag(std::string("weights")));
  EXPECT_NE(weights, Tag("Weights"));
  EXPECT_NE(weights, Tag("weight"));
  EXPECT_EQ(weights.name(), "weights");
  EXPECT_NE(weights.number(), 0u);
}

TEST(Tag, KeepsItsNameWhenTheCallersTextIsGone) {
  std::string text = "short-lived";
  const Tag tag{std::string_view(text)};
  const std::string_view name = tag.name();
  text.assign(text.size(), '#');
  EXPECT_EQ(name, "short-lived");
  EXPECT_EQ(tag.name().data(), name.data());
}

TEST(Tag, TakesAnyBytesAsAName) {
  const std::string zero("a\0b", 3);
  EXPECT_EQ(Tag(std::string_view(zero)).name(), zero);
  EXPECT_NE(Tag(std::string_view(zero)), Tag("a"));
}

TEST(Tag, CutsALongNameBetweenTwoCharacters) {
  const std::string whole(Tag::max_name_bytes, 'a');
  EXPECT_EQ(Tag(std::string_view(whole)).name(), whole);
  EXPECT_EQ(Tag(std::string_view(whole + "b")).name(), whole);
  EXPECT_EQ(Tag(std::string_view(whole + "b")), Tag(std::string_view(whole + "c")));

  const std::string before(Tag::max_name_bytes - 1, 'a');
  EXPECT_EQ(Tag(std::string_view(before + "\xc3\xa9")).name(), before);
}

TEST(Tag, IsTheSameFromEveryThread) {
  constexpr std::size_t thread_count = 8;
  constexpr std::size_t name_count = 500;  // more than one chunk of names
  std::vector<std::vector<Tag>> tags(thread_count, std::vector<Tag>(name_count));
  std::atomic<std::size_t> wrong_names = 0;
  std::latch all_started(thread_count);
  std::vector<test::Thread> threads;
  for (std::size_t t = 0; t < thread_count; ++t) {
    threads.emplace_back([&, t] {
      all_started.arrive_and_wait();
      for (std::size_t i = 0; i < name_count; ++i) {
        // Each begins elsewhere, so that each is the first for some of the names.
        const std::size_t at = (i + t * name_count / thread_count) % name_count;
        const std::string name = "shared " + std::to_string(at);
        tags[t][at] = Tag(std::string_view(name));
        if (tags[t][at].name() != name) ++wrong_names;
      }
    });
  }
  for (test::Thread& thread : threads) thread.join();
  EXPECT_EQ(wrong_names, 0u);
  for (std::size_t t = 1; t < thread_count; ++t) EXPECT_EQ(tags[t], tags[0]) << "thread " << t;
}

TEST(Tag, IsUntaggedAndCountedWhenTheHeapIsExhausted) {
  if (!test::HeapExhausted::is_possible()) GTEST_SKIP();
  static int round = 0;  // so that the name is new when the test is repeated
  const std::string fresh = "never interned " + std::to_string(++round);
  const std::uint64_t before = tags_refused();
  const Tag known = "known before";
  const auto [tag, again] = [&] {
    const test::HeapExhausted nothing_left;
    return std::pair(Tag(std::string_view(fresh)), Tag("known before"));
  }();
  EXPECT_EQ(tag, Tag());
  EXPECT_EQ(again, known);
  EXPECT_EQ(tags_refused(), before + 1);
  EXPECT_EQ(Tag(std::string_view(fresh)).name(), fresh) << "with memory again";
}

TEST(TagDeathTest, IsCountedWhenTheHeapIsExhaustedAtItsFirstUse) {
  if (!test::HeapExhausted::is_possible()) GTEST_SKIP();
  EXPECT_IN_A_FRESH_PROCESS([] {
    const test::HeapExhausted nothing_left;
    return Tag("first") == Tag() && tags_refused() == 1;
  });
}

TEST(TagDeathTest, TakesAllItsNumbersAndCountsTheNamesItRefuses) {
  EXPECT_IN_A_FRESH_PROCESS([] {
    std::string name;
    for (std::uint32_t i = 1; i <= 65'535; ++i) {
      name = std::to_string(i);
      if (const Tag tag{std::string_view(name)}; tag.number() != i || tag.name() != name) {
        return false;
      }
    }
    return tags_refused() == 0 && Tag("one too many") == Tag() && Tag("another") == Tag() &&
           tags_refused() == 2 && Tag("1").number() == 1 && Tag("65535").number() == 65'535 &&
           Tag("256").name() == "256" && tags_refused() == 2;
  });
}

/// A child that cannot get the lock of the names would wait for ever; its alarm ends it.
bool a_child_can_intern() {
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    _exit(Tag("of the child").number() != 0 ? 0 : 1);
  }
  int status = 0;
  return child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) &&
         WEXITSTATUS(status) == 0;
}

TEST(TagDeathTest, WorksInAChildForkedWhileAnotherThreadInterns) {
  EXPECT_IN_A_FRESH_PROCESS([] {
    std::atomic<bool> done = false;
    const std::string name(Tag::max_name_bytes, 'a');
    static_cast<void>(Tag(std::string_view(name)));  // the first use makes the table
    test::Thread busy([&] {
      while (!done) static_cast<void>(Tag(std::string_view(name)));
    });
    bool all_well = true;
    for (int i = 0; i < 100 && all_well; ++i) all_well = a_child_can_intern();
    done = true;
    busy.join();
    return all_well;
  });
}

}  // namespace
}  // namespace tern
