#include "core/process.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

namespace tern {
namespace {

/// What `check` says in a forked child of this process; -1 if the child did not end by itself.
template <class Check>
int in_a_child(Check check) {
  const pid_t child = fork();
  if (child == 0) _exit(check() ? 0 : 1);
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status)) return -1;
  return WEXITSTATUS(status);
}

bool is_refused_with_own_pid(std::uint64_t generation) {
  const Result<void> checked = check_not_forked(generation);
  return !checked && checked.failure().code() == ErrorCode::after_fork &&
         checked.failure().number("pid") == static_cast<std::uint64_t>(getpid()) &&
         checked.failure().text().starts_with("process " + std::to_string(getpid()) +
                                              " was forked");
}

TEST(ProcessGeneration, StaysTheSameInOneProcess) {
  const std::uint64_t generation = process_generation();
  EXPECT_EQ(process_generation(), generation);
  EXPECT_TRUE(check_not_forked(generation));
}

TEST(ProcessGeneration, IsOneMoreInAForkedChild) {
  const std::uint64_t generation = process_generation();
  EXPECT_EQ(in_a_child([=] { return process_generation() == generation + 1; }), 0);
  EXPECT_EQ(process_generation(), generation);
}

TEST(ProcessGeneration, IsTwoMoreInAGrandchild) {
  const std::uint64_t generation = process_generation();
  EXPECT_EQ(in_a_child([=] {
              return in_a_child([=] { return process_generation() == generation + 2; }) == 0;
            }),
            0);
}

TEST(CheckNotForked, RefusesTheParentsGenerationInAChildAndNamesItsPid) {
  const std::uint64_t generation = process_generation();
  EXPECT_EQ(in_a_child([=] { return is_refused_with_own_pid(generation); }), 0);
  EXPECT_TRUE(check_not_forked(generation));
}

TEST(CheckNotForked, AcceptsWhatTheChildOpenedItself) {
  const std::uint64_t generation = process_generation();
  EXPECT_EQ(in_a_child([=] {
              return static_cast<bool>(check_not_forked(process_generation())) &&
                     is_refused_with_own_pid(generation);
            }),
            0);
}

TEST(CheckNotForked, RefusesBothAncestorsInAGrandchild) {
  const std::uint64_t generation = process_generation();
  EXPECT_EQ(in_a_child([=] {
              return in_a_child([=] {
                       return is_refused_with_own_pid(generation) &&
                              is_refused_with_own_pid(generation + 1);
                     }) == 0;
            }),
            0);
}

}  // namespace
}  // namespace tern
