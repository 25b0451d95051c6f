#include "memory/process_life.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>

#include "core/file_failure.hpp"

namespace tern {
namespace {

/// The beginning of /proc/PID/stat, or the errno.
struct StatFile {
  std::array<char, 1024> text;
  std::size_t length = 0;
  int code = 0;

  explicit StatFile(const char* path) noexcept {
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) {
      code = errno;
      return;
    }
    const ssize_t got = read(file, text.data(), text.size());
    if (got < 0) {
      code = errno;
    } else {
      length = static_cast<std::size_t>(got);
    }
    close(file);
  }
  [[nodiscard]] std::optional<ProcessStat> parse() const noexcept {
    return parse_process_stat({text.data(), length});
  }
};

/// Removes and returns the first word of the text.
std::string_view next_word(std::string_view& text) noexcept {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  const std::size_t end = std::min(text.find_first_of(" \n"), text.size());
  const std::string_view word = text.substr(0, end);
  text.remove_prefix(end);
  return word;
}

bool read_number(std::string_view word, std::uint64_t& into) noexcept {
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), into);
  return error == std::errc() && end == word.data() + word.size();
}

}  // namespace

std::optional<ProcessStat> parse_process_stat(std::string_view text) noexcept {
  // The fields are numbered as in proc(5): 1 is the id, 2 the name, 3 the state.
  constexpr int threads_field = 20, start_field = 22;
  ProcessStat stat;
  std::string_view rest = text;
  if (!read_number(next_word(rest), stat.pid)) return std::nullopt;
  // The name may have parentheses itself, so it ends at the last one.
  const std::size_t end = rest.rfind(')');
  if (end == std::string_view::npos) return std::nullopt;
  rest.remove_prefix(end + 1);
  const std::string_view state = next_word(rest);
  if (state.size() != 1) return std::nullopt;
  stat.state = state.front();
  for (int field = 4; field < threads_field; ++field) static_cast<void>(next_word(rest));
  if (!read_number(next_word(rest), stat.threads)) return std::nullopt;
  for (int field = threads_field + 1; field < start_field; ++field) {
    static_cast<void>(next_word(rest));
  }
  if (!read_number(next_word(rest), stat.start_ticks)) return std::nullopt;
  return stat;
}

Result<ProcessIdentity> try_this_process() noexcept {
  constexpr const char* path = "/proc/self/stat";
  const StatFile file(path);
  if (file.code != 0) return file_failure(path, "open", file.code);
  const std::optional<ProcessStat> stat = file.parse();
  if (!stat) {
    return Failure(ErrorCode::bad_format, "'{path}' has no start time of the process. Mount /proc.")
        .with("path", path);
  }
  if (stat->pid != static_cast<std::uint64_t>(getpid())) {
    return Failure(ErrorCode::unsupported,
                   "/proc calls this process {there}, and the kernel calls it {pid}: /proc belongs "
                   "to another process namespace, so other processes cannot be identified. Mount "
                   "/proc in this namespace.")
        .with("there", stat->pid)
        .with("pid", static_cast<std::uint64_t>(getpid()))
        .with("what", "identifying processes");
  }
  return ProcessIdentity{stat->pid, stat->start_ticks};
}

Result<std::uint64_t> try_process_namespaces() noexcept {
  struct stat pids = {}, times = {};
  if (stat("/proc/self/ns/pid", &pids) != 0) {
    return file_failure("/proc/self/ns/pid", "stat", errno);
  }
  // Kernels before 5.6 have one time for all.
  if (stat("/proc/self/ns/time", &times) != 0) times.st_ino = 0;
  return static_cast<std::uint64_t>(pids.st_ino) << 32 ^ static_cast<std::uint64_t>(times.st_ino);
}

bool is_alive(const ProcessIdentity& process) noexcept {
  std::array<char, 40> path = {"/proc/"};
  char* const digits = path.data() + std::strlen(path.data());
  char* const end = std::to_chars(digits, path.data() + path.size() - 8, process.pid).ptr;
  std::memcpy(end, "/stat", sizeof "/stat");
  const StatFile file(path.data());
  // ESRCH: the process ended between open() and read().
  if (file.code == ENOENT || file.code == ESRCH) return false;
  if (file.code != 0) return true;
  const std::optional<ProcessStat> stat = file.parse();
  if (!stat) return true;
  if (stat->start_ticks != process.start_ticks) return false;
  if (stat->state == 'X' || stat->state == 'x') return false;
  // The first thread of a process may end before the others. The process is then shown as a zombie
  // with more than one thread.
  return stat->state != 'Z' || stat->threads > 1;
}

}  // namespace tern
