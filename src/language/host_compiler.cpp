#include "language/host_compiler.hpp"

#include <dlfcn.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <spawn.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <utility>

#include "core/dynamic_linker.hpp"
#include "core/file_failure.hpp"
#include "core/file_limit_signal.hpp"
#include "tern/detail/core/config.hpp"

namespace tern::language {
namespace {

constexpr std::array<const char*, 3> default_names = {"c++", "g++", "clang++"};
constexpr std::string_view default_search_path = "/usr/local/bin:/usr/bin:/bin";

constexpr std::array options = {"-x", "c++", "-std=c++17", "-O3",
#if defined(__x86_64__) || defined(__i386__)
                                "-march=native",
#else
                                "-mcpu=native",
#endif
                                "-fPIC", "-shared",
                                // What a text computes does not depend on the compiler.
                                "-ffp-contract=off", "-fwrapv", "-fno-strict-aliasing",
                                // A kernel does not read errno. -fno-trapping-math would vectorise
                                // more, but g++ 12 then makes -0.0 of float(int(-0.5f)).
                                "-fno-math-errno",
                                // Lines for debuggers; no other code than that of the entries.
                                "-g1", "-fno-exceptions", "-fno-rtti", "-fvisibility=hidden", "-w",
                                "-pipe"};

std::string options_text() {
  std::string text;
  for (const char* option : options) text += fmt::format("{} ", option);
  return text;
}

// ------------------------------------------------------------------------------ the compiler

bool is_program(const std::string& path) noexcept {
  struct stat about = {};
  return stat(path.c_str(), &about) == 0 && S_ISREG(about.st_mode) &&
         access(path.c_str(), X_OK) == 0;
}

/// Returns the path of a program, or an empty text.
std::string find_program(std::string_view name, std::string_view search_path) {
  if (name.find('/') != name.npos) {
    std::string path(name);
    return is_program(path) ? path : "";
  }
  while (!search_path.empty()) {
    const std::size_t colon = search_path.find(':');
    const std::string_view folder = search_path.substr(0, colon);
    // Only absolute folders: the current one may be anybody's.
    if (folder.starts_with('/')) {
      std::string path = fmt::format("{}/{}", folder, name);
      if (is_program(path)) return path;
    }
    search_path.remove_prefix(colon == search_path.npos ? search_path.size() : colon + 1);
  }
  return "";
}

/// What -march=native depends on: the model and the instructions of the first processor.
std::string processor_identity() {
  std::ifstream file("/proc/cpuinfo");
  std::string facts, line;
  while (std::getline(file, line) && !line.empty()) {
    for (const std::string_view field : {"model name", "flags", "Features", "CPU part", "cpu\t"}) {
      if (line.starts_with(field)) facts += line + '\n';
    }
  }
  return facts;
}

/// Running the compiler for its version would take longer than to load a kernel from the cache.
std::string identity_of(const std::string& path) {
  std::error_code failed;
  const std::string target = std::filesystem::canonical(path, failed).string();
  struct stat about = {};
  static_cast<void>(stat(path.c_str(), &about));
  return fmt::format("{} {} {}.{}\n{}", failed ? path : target, about.st_size, about.st_mtim.tv_sec,
                     about.st_mtim.tv_nsec, processor_identity());
}

// ---------------------------------------------------------------------------------- compiling

/// A folder that only this user can enter. It is removed with its files.
class PrivateFolder {
 public:
  static Result<PrivateFolder> try_make(const std::string& parent) {
    std::string path = parent + "/tern-XXXXXX";
    if (mkdtemp(path.data()) == nullptr) return file_failure(path, "mkdtemp", errno);
    return PrivateFolder(std::move(path));
  }
  PrivateFolder(PrivateFolder&& other) noexcept : path_(std::exchange(other.path_, {})) {}
  PrivateFolder& operator=(PrivateFolder&&) = delete;
  ~PrivateFolder() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }
  [[nodiscard]] std::string operator/(const char* name) const { return path_ + '/' + name; }

 private:
  explicit PrivateFolder(std::string path) noexcept : path_(std::move(path)) {}
  std::string path_;
};

std::string folder_for_temporary_files() {
  const Result<const Config*> config = try_config();
  if (config && (*config)->temporary_folder.starts_with('/')) return (*config)->temporary_folder;
  return "/tmp";
}

Result<void> write_file(const std::string& path, std::string_view text) {
  const FileLimitSignal no_signal;
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (file < 0) return file_failure(path, "open", errno);
  int error = 0;
  while (!text.empty() && error == 0) {
    const ssize_t written = write(file, text.data(), text.size());
    if (written >= 0) {
      text.remove_prefix(static_cast<std::size_t>(written));
    } else if (errno != EINTR) {
      error = errno;
    }
  }
  close(file);
  if (error != 0) return file_failure(path, "write", error);
  return {};
}

template <class Bytes>
Bytes read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  Bytes bytes;
  std::array<char, 65536> part;
  while (file.read(part.data(), part.size()), file.gcount() > 0) {
    const auto* begin = reinterpret_cast<const typename Bytes::value_type*>(part.data());
    bytes.insert(bytes.end(), begin, begin + file.gcount());
  }
  return bytes;
}

/// Messages in English, so that the first error can be found among them.
std::vector<std::string> compiler_environment() {
  std::vector<std::string> variables;
  for (char** line = environ; line != nullptr && *line != nullptr; ++line) {
    const std::string_view text = *line;
    if (!text.starts_with("LC_") && !text.starts_with("LANG")) variables.emplace_back(text);
  }
  variables.emplace_back("LC_ALL=C");
  return variables;
}

std::vector<char*> pointers_to(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

/// How a process ended. If the program ignores SIGCHLD, or waits for all children in another
/// thread, the system does not say; then what the compiler wrote decides.
struct Ending {
  int start_error = 0;
  std::optional<int> status;
};

Ending run(std::vector<std::string> arguments, const std::string& log) {
  std::vector<std::string> environment = compiler_environment();
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&files, 1, log.c_str(), O_WRONLY | O_CREAT | O_EXCL, 0600);
  posix_spawn_file_actions_adddup2(&files, 1, 2);
  // What the program ignores or blocks, a child would too: a compiler that ignores SIGCHLD cannot
  // wait for its own children.
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none, usual;
  sigemptyset(&none);
  sigemptyset(&usual);
  for (const int signal : {SIGCHLD, SIGPIPE, SIGINT, SIGTERM, SIGHUP, SIGXFSZ, SIGXCPU}) {
    sigaddset(&usual, signal);
  }
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &usual);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);

  Ending ending;
  pid_t child = 0;
  ending.start_error = posix_spawn(&child, arguments[0].c_str(), &files, &attributes,
                                   pointers_to(arguments).data(), pointers_to(environment).data());
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&files);
  if (ending.start_error != 0) return ending;
  int status = 0;
  pid_t ended = 0;
  do {
    ended = waitpid(child, &status, 0);
  } while (ended < 0 && errno == EINTR);
  if (ended == child) ending.status = status;
  return ending;
}

/// Returns the line of the first error, or the last line.
std::string_view first_error(std::string_view log) noexcept {
  const std::size_t last = log.find_last_not_of(" \r\n");
  if (last == log.npos) return "the compiler gave no reason";
  log = log.substr(0, last + 1);
  std::size_t at = log.find("error: ");
  if (at == log.npos) at = log.size();
  const std::size_t begin = log.rfind('\n', at == 0 ? 0 : at - 1);
  log.remove_prefix(begin == log.npos ? 0 : begin + 1);
  return log.substr(0, log.find('\n'));
}

Failure compiler_failed(const char* sentence, const HostCompiler& compiler, std::string_view kernel,
                        int code) noexcept {
  return Failure(ErrorCode::driver, sentence)
      .with("call", "posix_spawn")
      .with("code", static_cast<std::uint64_t>(code))
      .with("kernel", kernel.substr(0, 40))
      .with("compiler", compiler.path);
}

// ------------------------------------------------------------------------------------ loading

Failure load_failed(std::string_view kernel, const char* call, std::string_view why) noexcept {
  return Failure(ErrorCode::bad_format,
                 "the compiled code of kernel '{kernel}' could not be loaded ({call}): {why}")
      .with("call", call)
      .with("kernel", kernel.substr(0, 40))
      .with("why", why);
}

/// A path of an open file that no earlier call returned. A loader that has a library of this path
/// returns that library, and the number of a descriptor is used again.
std::string path_of(int file) {
  static std::atomic<std::uint32_t> loads = 0;
  std::string path = "/proc/self/fd";
  for (std::uint32_t rest = loads++, bit = 0; bit < 32; ++bit, rest >>= 1) {
    path += (rest & 1) != 0 ? "/." : "/";  // a path without a meaning of its own
  }
  return fmt::format("{}/{}", path, file);
}

}  // namespace

Result<HostCompiler> try_find_host_compiler() {
  const Result<const Config*> config = try_config();
  if (!config) return config.failure();
  return try_find_host_compiler((*config)->cxx, (*config)->search_path);
}

Result<HostCompiler> try_find_host_compiler(std::string_view wanted, std::string_view search_path) {
  if (search_path.empty()) search_path = default_search_path;
  std::string path;
  if (!wanted.empty()) {
    path = find_program(wanted, search_path);
  } else {
    for (std::size_t i = 0; i < default_names.size() && path.empty(); ++i) {
      path = find_program(default_names[i], search_path);
    }
  }
  if (!path.empty()) return HostCompiler{path, identity_of(path)};
  if (!wanted.empty()) {
    return Failure(
               ErrorCode::unsupported,
               "portable kernels need a C++ compiler on the host, and TERN_CXX='{value}' is not "
               "a program. Set TERN_CXX to the path of g++ or clang++.")
        .with("name", "TERN_CXX")
        .with("value", wanted);
  }
  return Failure(ErrorCode::unsupported,
                 "portable kernels need a C++ compiler on the host, and there is no c++, g++ or "
                 "clang++ in PATH. Install g++ or clang++, or set TERN_CXX to the path of one.")
      .with("name", "TERN_CXX");
}

Result<std::vector<std::byte>> try_compile_for_host(const HostCompiler& compiler,
                                                    std::string_view kernel,
                                                    std::string_view text) {
  // The environment, which the caller of a setuid program controls, can make a compiler run other
  // programs.
  if (getauxval(AT_SECURE) != 0) {
    return Failure(ErrorCode::unsupported,
                   "kernel '{kernel}' was not compiled: a setuid program starts no compiler. Use "
                   "another device, or provide the kernel as a C++ function.")
        .with("kernel", kernel.substr(0, 40));
  }
  Result<PrivateFolder> folder = PrivateFolder::try_make(folder_for_temporary_files());
  if (!folder) return folder.failure();
  const std::string source = *folder / "kernel.cpp", object = *folder / "kernel.so";
  const std::string log = *folder / "log";
  if (Result<void> written = write_file(source, text); !written) return written.failure();

  std::vector<std::string> arguments = {compiler.path};
  arguments.insert(arguments.end(), options.begin(), options.end());
  arguments.insert(arguments.end(), {"-o", object, source, "-lm"});
  const Ending ending = run(std::move(arguments), log);
  if (ending.start_error != 0) {
    return compiler_failed(
        "kernel '{kernel}' was not compiled: the compiler '{compiler}' did not start (error "
        "{code}). Set TERN_CXX to another compiler.",
        compiler, kernel, ending.start_error);
  }
  if (ending.status && WIFSIGNALED(*ending.status)) {
    return compiler_failed(
        "kernel '{kernel}' was not compiled: signal {code} ended the compiler '{compiler}'. Free "
        "memory, or set TERN_CXX to another compiler.",
        compiler, kernel, WTERMSIG(*ending.status));
  }
  std::vector<std::byte> code;
  if (!ending.status || WEXITSTATUS(*ending.status) == 0) {
    code = read_file<std::vector<std::byte>>(object);
  }
  if (!code.empty()) return code;
  const std::string messages = read_file<std::string>(log);
  return Failure(ErrorCode::invalid_argument,
                 "the text of kernel '{kernel}' could not be compiled for the host: {value}")
      .with("name", "text")
      .with("kernel", kernel.substr(0, 40))
      .with("value", first_error(messages));
}

HostCode::HostCode(void* library)
    : library_(library, [](void* handle) {
        if (handle != nullptr) dlclose(handle);
      }) {}

void* HostCode::find(const char* name) const noexcept {
  return library_ == nullptr ? nullptr : dlsym(library_.get(), name);
}

Result<HostCode> try_load_host_code(std::string_view kernel, std::span<const std::byte> object) {
  // A statically linked program would load a second copy of the C library.
  static const bool is_dynamic = has_dynamic_linker();
  if (!is_dynamic) {
    return Failure(ErrorCode::unsupported,
                   "kernel '{kernel}' cannot be loaded into a statically linked program (-static). "
                   "Link the program dynamically, or provide the kernel as a C++ function.")
        .with("kernel", kernel.substr(0, 40));
  }
  const int file = memfd_create("tern-kernel", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (file < 0) return load_failed(kernel, "memfd_create", std::strerror(errno));
  struct Close {
    int file;
    ~Close() { close(file); }
  } const close_at_end{file};
  const FileLimitSignal no_signal;
  while (!object.empty()) {
    const ssize_t written = write(file, object.data(), object.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return load_failed(kernel, "write", std::strerror(errno));
    object = object.subspan(static_cast<std::size_t>(written));
  }
  if (fcntl(file, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return load_failed(kernel, "fcntl", std::strerror(errno));
  }
  void* const library = dlopen(path_of(file).c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* why = dlerror();
    return load_failed(kernel, "dlopen", why == nullptr ? "" : why);
  }
  return HostCode(library);
}

CodeKey host_code_key(const HostCompiler& compiler, std::string_view text) {
  static const std::string all_options = options_text();
  return {.kind = "host",
          .text = text,
          .options = all_options,
          .device = "host",
          .compiler = compiler.identity};
}

Result<HostCode> try_host_code(std::string_view kernel, std::string_view text,
                               const CodeCache& cache) {
  const Result<HostCompiler> compiler = try_find_host_compiler();
  if (!compiler) return compiler.failure();
  const CodeKey key = host_code_key(*compiler, text);
  if (const auto found = cache.find(key)) {
    // If the code does not load, for example with another C library, it is compiled again.
    if (Result<HostCode> loaded = try_load_host_code(kernel, *found)) return loaded;
  }
  const Result<std::vector<std::byte>> compiled = try_compile_for_host(*compiler, kernel, text);
  if (!compiled) return compiled.failure();
  Result<HostCode> loaded = try_load_host_code(kernel, *compiled);
  if (loaded) cache.store(key, *compiled);
  return loaded;
}

}  // namespace tern::language
