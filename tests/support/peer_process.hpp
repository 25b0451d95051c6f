// Another process of a test: tests/buffer/share_peer.cpp with arguments, and pipes to it.

#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <string>
#include <vector>

namespace tern::test {

class PeerProcess {
 public:
  explicit PeerProcess(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), TERN_SHARE_PEER);
    std::vector<char*> words;
    for (std::string& argument : arguments) words.push_back(argument.data());
    words.push_back(nullptr);
    int input[2] = {-1, -1}, output[2] = {-1, -1};
    EXPECT_EQ(pipe2(input, O_CLOEXEC), 0);
    EXPECT_EQ(pipe2(output, O_CLOEXEC), 0);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, input[0], STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&actions, output[1], STDOUT_FILENO);
    EXPECT_EQ(posix_spawn(&pid_, words[0], &actions, nullptr, words.data(), environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    close(input[0]);
    close(output[1]);
    input_ = input[1];
    output_ = output[0];
  }
  ~PeerProcess() {
    kill();
    close(input_);
    close(output_);
  }
  PeerProcess(const PeerProcess&) = delete;
  PeerProcess& operator=(const PeerProcess&) = delete;

  [[nodiscard]] pid_t pid() const noexcept { return pid_; }
  /// Returns the next line that the process prints. Fails the test after a minute without one.
  [[nodiscard]] std::string line() {
    std::string text;
    for (char letter = 0;;) {
      pollfd waiting = {output_, POLLIN, 0};
      if (poll(&waiting, 1, 60'000) != 1) {
        ADD_FAILURE() << "the other process says nothing";
        return text;
      }
      if (read(output_, &letter, 1) != 1 || letter == '\n') return text;
      text += letter;
    }
  }
  /// Ends the process as a crash would.
  void kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    static_cast<void>(wait());
  }
  /// Lets a process that waits for its input go on.
  void go_on() { EXPECT_EQ(write(input_, "\n", 1), 1); }
  /// Waits for the end. Returns the exit code, or -1 if a signal ended the process.
  [[nodiscard]] int wait() {
    int status = 0;
    if (pid_ <= 0 || waitpid(pid_, &status, 0) != pid_) return -1;
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

 private:
  pid_t pid_ = -1;
  int input_ = -1;
  int output_ = -1;
};

}  // namespace tern::test
