// `tern top PID`: shows what a running program holds, from its recording. `tern top --shared NAME`
// shows the tenants of a shared budget.

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <thread>

#include "tern/core/error.hpp"
#include "tools/commands.hpp"
#include "tools/top/live_memory.hpp"
#include "tools/top/shared_tenants.hpp"
#include "trace/memory_trace.hpp"

namespace tern::tools {
namespace {

using trace::MemoryTrace;
using trace::TraceFollower;

bool is_number(const std::string& text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
}

/// Returns the files that the process maps shared and writable, as recordings are. Returns nothing,
/// and the errno in `code`, if the maps of the process cannot be read.
std::optional<std::set<std::string>> shared_files_of(const std::string& process, int& code) {
  std::ifstream maps("/proc/" + process + "/maps");
  std::set<std::string> files;
  std::string line;
  while (std::getline(maps, line)) {
    std::istringstream fields(line);
    std::string range, access, offset, device, node, path;
    fields >> range >> access >> offset >> device >> node;
    std::getline(fields >> std::ws, path);
    if (access == "rw-s" && path.starts_with('/')) files.insert(path);
  }
  code = errno;
  if (!maps.eof()) return std::nullopt;
  return files;
}

/// Returns the recording that a process writes, or prints why there is none.
std::optional<std::string> recording_of(const std::string& process) {
  if (!std::filesystem::exists("/proc/" + process)) {
    fmt::print(stderr, "tern top: there is no process {}.\n", process);
    return std::nullopt;
  }
  int code = 0;
  const std::optional<std::set<std::string>> files = shared_files_of(process, code);
  if (!files) {
    fmt::print(stderr,
               "tern top: process {} cannot be inspected: {}. Run tern top as the user of the "
               "process.\n",
               process, std::strerror(code));
    return std::nullopt;
  }
  for (const std::string& path : *files) {
    if (TraceFollower::try_open(path)) return path;
  }
  fmt::print(
      stderr,
      "tern top: process {} does not record to a file. Start it with TERN_TRACE=run.trace, or "
      "call trace::start(\"run.trace\") in the program.\n",
      process);
  return std::nullopt;
}

/// Returns whether the tables are updated until the command is stopped.
bool is_live(const TopOptions& options) { return !options.once && isatty(STDOUT_FILENO) != 0; }

/// Clears the screen, and writes from its upper left corner.
void clear_screen() { fmt::print("\033[2J\033[H"); }

void wait_for_next(const TopOptions& options) {
  std::fflush(stdout);
  std::this_thread::sleep_for(std::chrono::duration<double>(options.seconds));
}

int run_shared_top(const TopOptions& options) {
  for (bool is_first = true;; is_first = false) {
    const Result<SharedBudgetState> state = SharedBudget::try_inspect(options.shared);
    if (!state) {
      fmt::print(stderr, "tern top: {}\n", state.failure().text());
      // The last tenant has left.
      return !is_first && state.failure().code() == ErrorCode::not_found ? 0 : 2;
    }
    if (is_live(options)) clear_screen();
    fmt::print("{}", shared_text(*state));
    if (!is_live(options)) return 0;
    wait_for_next(options);
  }
}

}  // namespace

int run_top(const TopOptions& options) {
  if (!options.shared.empty()) return run_shared_top(options);
  if (options.process.empty()) {
    fmt::print(stderr,
               "tern top: what to show is missing. Give a process id, the path of a recording, or "
               "--shared with the name of a shared budget.\n");
    return 2;
  }
  std::string path = options.process;
  // A number is a process id. A file whose name is a number needs its folder: ./123
  if (is_number(options.process)) {
    const std::optional<std::string> found = recording_of(options.process);
    if (!found) return 2;
    path = *found;
  }
  Result<TraceFollower> file = TraceFollower::try_open(path);
  if (!file) {
    fmt::print(stderr, "tern top: {}\n", file.failure().text());
    return 2;
  }
  LiveMemory memory;
  MemoryTrace recorded;
  for (;;) {
    if (Result<void> read = file->try_read_new(recorded); !read) {
      fmt::print(stderr, "tern top: {}\n", read.failure().text());
      return 2;
    }
    recorded.sort();
    for (const trace::MemoryEvent& event : recorded.events) memory.add(event, recorded);
    recorded.events.clear();
    recorded.threads.clear();
    if (is_live(options)) clear_screen();
    fmt::print("{}", live_text(memory, recorded));
    if (!is_live(options) || recorded.header.is_closed != 0) return 0;
    wait_for_next(options);
  }
}

}  // namespace tern::tools
