#include "tools/rehearse/child_program.hpp"

#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <string_view>

#include "tern/core/error.hpp"

namespace tern::tools {
namespace {

/// Ignores a signal until the end of the scope.
class IgnoredSignal {
 public:
  explicit IgnoredSignal(int signal) : signal_(signal) {
    struct sigaction ignore = {};
    ignore.sa_handler = SIG_IGN;
    sigaction(signal_, &ignore, &before_);
  }
  ~IgnoredSignal() { sigaction(signal_, &before_, nullptr); }
  IgnoredSignal(const IgnoredSignal&) = delete;
  IgnoredSignal& operator=(const IgnoredSignal&) = delete;

 private:
  const int signal_;
  struct sigaction before_ = {};
};

std::vector<char*> pointers_to(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

/// `sentence` has the fields path and why. The path is added last, because it can be long.
Failure program_failure(const char* sentence, const std::string& path, const char* call, int code) {
  char buffer[128] = "";
  return Failure(ErrorCode::file, sentence)
      .with("call", call)
      .with("os_code", static_cast<std::uint64_t>(code))
      .with("why", strerror_r(code, buffer, sizeof buffer))
      .with("path", path);
}

/// Returns the error of posix_spawnp().
int spawn(const ChildOptions& options, pid_t& child) {
  std::vector<std::string> arguments = options.arguments;
  std::vector<std::string> environment = environment_of(options);
  sigset_t usual;
  sigemptyset(&usual);
  sigaddset(&usual, SIGINT);
  sigaddset(&usual, SIGQUIT);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setsigdefault(&attributes, &usual);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  if (options.output_to_stderr) {
    posix_spawn_file_actions_adddup2(&actions, STDERR_FILENO, STDOUT_FILENO);
  }
  const int error = posix_spawnp(&child, arguments.front().c_str(), &actions, &attributes,
                                 pointers_to(arguments).data(), pointers_to(environment).data());
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  return error;
}

}  // namespace

std::vector<std::string> environment_of(const ChildOptions& options) {
  std::vector<std::string> all = {"TERN_REHEARSE=" + options.rehearsal,
                                  "TERN_TRACE=" + options.trace};
  // The trace of the order checker needs the checker, which is off. The others compare contents.
  std::vector<std::string_view> dropped = {"TERN_REHEARSE", "TERN_TRACE", "TERN_SIM_TRACE"};
  if (!options.keeps_contents) {
    dropped.insert(dropped.end(), {"TERN_MEMORY", "TERN_CHECK", "TERN_CHECKED"});
  }
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    if (std::ranges::find(dropped, text.substr(0, text.find('='))) == dropped.end()) {
      all.emplace_back(text);
    }
  }
  return all;
}

std::string ChildEnd::text() const {
  if (signal == 0) return fmt::format("exited with status {}", status);
  return fmt::format("was killed by signal {} ({})", signal, strsignal(signal));
}

Result<ChildEnd> try_run_child(const ChildOptions& options) {
  const IgnoredSignal interrupt(SIGINT), quit(SIGQUIT);
  pid_t child = 0;
  if (const int error = spawn(options, child); error != 0) {
    return program_failure(
        "program '{path}' could not be started: {why}. Check the path of the program.",
        options.arguments.front(), "start", error);
  }
  int status = 0;
  while (waitpid(child, &status, 0) < 0) {
    if (errno == EINTR) continue;
    return program_failure("waiting for program '{path}' failed: {why}.", options.arguments.front(),
                           "wait", errno);
  }
  ChildEnd end;
  if (WIFSIGNALED(status)) {
    end.signal = WTERMSIG(status);
  } else {
    end.status = WEXITSTATUS(status);
  }
  return end;
}

}  // namespace tern::tools
