#include "memory/process_life.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <string>

#include "support/no_descriptors.hpp"

namespace tern {
namespace {

/// A child that waits until it is killed.
class WaitingChild {
 public:
  WaitingChild() : pid_(fork()) {
    if (pid_ != 0) return;
    alarm(20);
    for (;;) pause();
  }
  ~WaitingChild() {
    kill(pid_, SIGKILL);
    reap();
  }
  /// Kills the child and leaves it as a zombie.
  void end() {
    EXPECT_EQ(kill(pid_, SIGKILL), 0);
    siginfo_t info = {};
    EXPECT_EQ(waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOWAIT), 0);
  }
  void reap() { waitpid(pid_, nullptr, 0); }
  [[nodiscard]] ProcessIdentity identity() const {
    std::array<char, 1024> text = {};
    const int file = open(("/proc/" + std::to_string(pid_) + "/stat").c_str(), O_RDONLY);
    const ssize_t got = read(file, text.data(), text.size());
    close(file);
    const auto stat = parse_process_stat({text.data(), static_cast<std::size_t>(got)});
    return {stat.value().pid, stat.value().start_ticks};
  }

 private:
  const pid_t pid_;
};

TEST(ProcessLife, FindsThisProcessAlive) {
  const ProcessIdentity self = try_this_process().value();
  EXPECT_EQ(self.pid, static_cast<std::uint64_t>(getpid()));
  EXPECT_TRUE(is_alive(self));
}

TEST(ProcessLife, TellsAProcessFromALaterOneWithItsId) {
  ProcessIdentity earlier = try_this_process().value();
  earlier.start_ticks -= 1;
  EXPECT_FALSE(is_alive(earlier));
}

TEST(ProcessLife, CountsAZombieAsDead) {
  WaitingChild child;
  const ProcessIdentity identity = child.identity();
  EXPECT_TRUE(is_alive(identity));
  child.end();
  EXPECT_FALSE(is_alive(identity));
  child.reap();
  EXPECT_FALSE(is_alive(identity));
}

TEST(ProcessLife, CountsAStoppedProcessAsAlive) {
  WaitingChild child;
  const ProcessIdentity identity = child.identity();
  ASSERT_EQ(kill(static_cast<pid_t>(identity.pid), SIGSTOP), 0);
  siginfo_t info = {};
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(identity.pid), &info, WSTOPPED), 0);
  EXPECT_TRUE(is_alive(identity));
}

TEST(ProcessLife, NoIdIsAlive) {
  EXPECT_FALSE(is_alive({}));
  EXPECT_FALSE(is_alive({.pid = UINT64_MAX, .start_ticks = 1}));
}

TEST(ProcessLife, InDoubtAProcessIsAlive) {
  ProcessIdentity earlier = try_this_process().value();
  earlier.start_ticks -= 1;
  const test::NoDescriptors none;
  EXPECT_TRUE(is_alive(earlier));
}

TEST(ProcessLife, ParsesAnyNameOfAProgram) {
  const std::string fields = " 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 5 0 77 0 0\n";
  for (const std::string name : {"(sh)", "(a b)", "(a) Z 1 ()", "()", "(\n)", "(x) S 9 9)"}) {
    const auto stat = parse_process_stat("12 " + name + " Z" + fields);
    ASSERT_TRUE(stat) << name;
    EXPECT_EQ(stat->pid, 12u);
    EXPECT_EQ(stat->state, 'Z');
    EXPECT_EQ(stat->threads, 5u);
    EXPECT_EQ(stat->start_ticks, 77u);
  }
}

TEST(ProcessLife, RejectsOtherTexts) {
  const std::string whole = "12 (sh) S 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 5 0 77 ";
  ASSERT_TRUE(parse_process_stat(whole));
  // A text that ends in the last number is taken for complete.
  for (std::size_t length = 0; length + 4 < whole.size(); ++length) {
    EXPECT_FALSE(parse_process_stat(whole.substr(0, length))) << length;
  }
  EXPECT_FALSE(parse_process_stat("12 (sh) SS 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 5 0 77 "));
  EXPECT_FALSE(parse_process_stat("x (sh) S 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 5 0 77 "));
  EXPECT_FALSE(parse_process_stat("12 (sh) S 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 -5 0 77 "));
}

/// Ends the first thread of a child; another one goes on until the pipe is closed.
void* wait_for_pipe(void* pipe) {
  char byte = 0;
  static_cast<void>(!read(*static_cast<int*>(pipe), &byte, 1));
  _exit(0);
}

TEST(ProcessLife, AProcessLivesOnWithoutItsFirstThread) {
  std::array<int, 2> ends = {};
  ASSERT_EQ(pipe2(ends.data(), O_CLOEXEC), 0);
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    close(ends[1]);
    static int reading = ends[0];
    pthread_t other = {};
    if (pthread_create(&other, nullptr, wait_for_pipe, &reading) != 0) _exit(1);
    syscall(SYS_exit, 0);  // ends this thread only; pthread_exit() would unwind GoogleTest
  }
  close(ends[0]);
  ProcessIdentity identity;
  char state = 0;
  // Until the first thread has ended, the process is no zombie.
  for (int i = 0; i < 1'000'000 && state != 'Z'; ++i) {
    std::array<char, 1024> text = {};
    const int file = open(("/proc/" + std::to_string(child) + "/stat").c_str(), O_RDONLY);
    const ssize_t got = read(file, text.data(), text.size());
    close(file);
    const auto stat = parse_process_stat({text.data(), static_cast<std::size_t>(got)});
    ASSERT_TRUE(stat);
    identity = {stat->pid, stat->start_ticks};
    state = stat->state;
  }
  EXPECT_EQ(state, 'Z');
  EXPECT_TRUE(is_alive(identity));
  close(ends[1]);
  siginfo_t info = {};
  EXPECT_EQ(waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT), 0);
  EXPECT_FALSE(is_alive(identity));
  waitpid(child, nullptr, 0);
}

TEST(ProcessLife, NamespacesAreTheSameInOneProcess) {
  const std::uint64_t here = try_process_namespaces().value();
  EXPECT_NE(here, 0u);
  EXPECT_EQ(try_process_namespaces().value(), here);
}

}  // namespace
}  // namespace tern
