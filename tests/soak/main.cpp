// tern_soak: runs random programs of one driver, one seed after the other. It reports differences
// from the model, with the command that repeats the run.
//
// The last line of its output begins with `result`. scripts/soak reads this line.

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

#include "soak/driver.hpp"
#include "tern/backends/catalog.hpp"

namespace tern::soak {
namespace {

constexpr std::array all_drivers = {
    Driver{"buffers", "buffers, arrays and files against a model of every byte", run_buffers},
    Driver{"unified", "unified buffers in several places against a model of every byte",
           run_unified},
    Driver{"checker", "the checker against a vector-clock oracle", run_checker},
    Driver{"exchange", "DLPack and Arrow out and back, and hostile imports", run_exchange},
    Driver{"threads", "several threads on shared storages, pools and budgets", run_threads},
    Driver{"server", "a stream, pool memory, unified buffers and exports per request", run_server},
    Driver{"pausing", "paused, growing and spilled memory against a model of every byte",
           run_pausing},
};

struct Footprint {
  std::size_t resident_kib = 0, mappings = 0, descriptors = 0;

  static Footprint now() {
    Footprint found;
    std::ifstream statm("/proc/self/statm");
    std::size_t all = 0, resident = 0;
    statm >> all >> resident;
    found.resident_kib = resident * static_cast<std::size_t>(sysconf(_SC_PAGESIZE)) / 1024;
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) ++found.mappings;
    for ([[maybe_unused]] const auto& entry :
         std::filesystem::directory_iterator("/proc/self/fd")) {
      ++found.descriptors;
    }
    return found;
  }
};

struct Settings {
  const Driver* driver = nullptr;
  Program program;
  std::uint64_t programs = 1;  // 0: until the time is over
  double seconds = 0;          // 0: until the programs have run
  double program_seconds = 120;
  std::uint64_t max_findings = 20;
  std::string seed_file;
};

// A program that crashes, or does not end, is named by these.
const char* current_driver = "";
const char* current_device = "";
std::atomic<std::uint64_t> current_seed = 0;

void print_replay() {
  // From a signal handler: no allocation.
  std::array<char, 256> text;
  const int length = std::snprintf(
      text.data(), text.size(),
      "finding: %s seed %llu\n  replay: tern_soak %s --seed %llu --device '%s'\n", current_driver,
      static_cast<unsigned long long>(current_seed.load()), current_driver,
      static_cast<unsigned long long>(current_seed.load()), current_device);
  if (length > 0) {
    [[maybe_unused]] const auto written =
        write(STDERR_FILENO, text.data(), std::min(text.size(), static_cast<std::size_t>(length)));
  }
}

extern "C" void on_crash(int number) {
  print_replay();
  std::signal(number, SIG_DFL);
  std::raise(number);
}

/// Ends the process if one program takes too long: what hangs cannot be stopped otherwise.
class Watch {
 public:
  explicit Watch(double seconds) : thread_([this, seconds] { run(seconds); }) {}
  ~Watch() {
    {
      const std::lock_guard lock(mutex_);
      is_over_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

 private:
  void run(double seconds) {
    std::unique_lock lock(mutex_);
    std::uint64_t seen = current_seed;
    auto since = std::chrono::steady_clock::now();
    while (!changed_.wait_for(lock, std::chrono::seconds(1), [this] { return is_over_; })) {
      const auto now = std::chrono::steady_clock::now();
      if (current_seed != seen) {
        seen = current_seed;
        since = now;
      } else if (std::chrono::duration<double>(now - since).count() > seconds) {
        std::fputs("the program hangs\n", stderr);
        std::abort();
      }
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_over_ = false;  // guarded by mutex_
  std::thread thread_;
};

class Seeds {
 public:
  explicit Seeds(const std::string& path)
      : file_(path.empty() ? nullptr : std::fopen(path.c_str(), "w")) {
    if (!path.empty() && file_ == nullptr) throw std::runtime_error("cannot write " + path);
  }
  ~Seeds() {
    if (file_ != nullptr) std::fclose(file_);
  }
  Seeds(const Seeds&) = delete;
  Seeds& operator=(const Seeds&) = delete;

  void note(std::uint64_t seed) {
    current_seed = seed;
    if (file_ == nullptr) return;
    std::rewind(file_);
    fmt::print(file_, "{:<20}\n", seed);
    std::fflush(file_);
  }

 private:
  std::FILE* file_;
};

bool run_one(const Settings& settings, std::uint64_t seed) {
  Program program = settings.program;
  program.seed = seed;
  std::string text;
  try {
    settings.driver->run(program);
    return true;
  } catch (const std::exception& error) {
    text = error.what();
  }
  fmt::print("finding: {} seed {}: {}\n  replay: tern_soak {} --seed {} --device '{}'\n",
             settings.driver->name, seed, text, settings.driver->name, seed, program.device);
  std::fflush(stdout);
  return false;
}

int run(const Settings& settings) {
  using Clock = std::chrono::steady_clock;
  current_driver = settings.driver->name;
  current_device = settings.program.device.c_str();
  for (const int number : {SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL, SIGTERM}) {
    std::signal(number, on_crash);
  }
  Seeds seeds(settings.seed_file);
  const std::uint64_t first = settings.program.seed;
  const auto began = Clock::now();
  const auto spent = [&] { return std::chrono::duration<double>(Clock::now() - began).count(); };
  std::uint64_t run = 0, findings = 0;
  Footprint half;
  bool is_second_half = false;
  double next_line = 20;
  const Watch watch(settings.program_seconds);
  while ((settings.programs == 0 || run < settings.programs) &&
         (settings.seconds == 0 || spent() < settings.seconds)) {
    seeds.note(first + run);
    if (!run_one(settings, first + run)) ++findings;
    ++run;
    const bool is_late =
        settings.seconds != 0 ? spent() > settings.seconds / 2 : run > settings.programs / 2;
    if (is_late && !is_second_half) {
      half = Footprint::now();
      is_second_half = true;
    }
    if (spent() > next_line) {
      fmt::print("{:.0f} s: {} {} programs, {} findings\n", spent(), settings.driver->name, run,
                 findings);
      std::fflush(stdout);
      next_line += 20;
    }
    if (findings == settings.max_findings) break;
  }
  const Footprint end = Footprint::now();
  if (!is_second_half) half = end;
  fmt::print(
      "result driver={} programs={} first={} last={} findings={} resident_half={} resident_end={} "
      "mappings_half={} mappings_end={} descriptors_half={} descriptors_end={}\n",
      settings.driver->name, run, first, first + run - 1, findings, half.resident_kib,
      end.resident_kib, half.mappings, end.mappings, half.descriptors, end.descriptors);
  return findings == 0 ? 0 : 1;
}

constexpr std::string_view usage =
    "usage: tern_soak DRIVER [--seed N] [--programs N | --seconds S] [--device SPEC]\n"
    "                 [--verbose] [--max-findings N] [--program-seconds S] [--seed-file FILE]\n"
    "       tern_soak --list | --can-open SPEC\n"
    "\n"
    "Runs one random program, the one of the seed, unless told how many or how long.\n";

int main_of(int count, char** values) {
  Settings settings;
  settings.program.seed = 1;
  bool has_programs = false;
  const auto value_of = [&](int& i) -> std::string {
    if (i + 1 == count) throw std::runtime_error(fmt::format("{} needs a value", values[i]));
    return values[++i];
  };
  for (int i = 1; i < count; ++i) {
    const std::string_view word = values[i];
    if (word == "--list") {
      for (const Driver& one : all_drivers) fmt::print("{:10} {}\n", one.name, one.what);
      return 0;
    }
    if (word == "--can-open") return try_open_device(value_of(i)) ? 0 : 1;
    if (word == "--help") {
      fmt::print("{}", usage);
      return 0;
    }
    if (word == "--seed") {
      settings.program.seed = std::stoull(value_of(i));
    } else if (word == "--programs") {
      settings.programs = std::stoull(value_of(i));
      has_programs = true;
    } else if (word == "--seconds") {
      settings.seconds = std::stod(value_of(i));
      if (!has_programs) settings.programs = 0;
    } else if (word == "--device") {
      settings.program.device = value_of(i);
    } else if (word == "--max-findings") {
      settings.max_findings = std::stoull(value_of(i));
    } else if (word == "--seed-file") {
      settings.seed_file = value_of(i);
    } else if (word == "--program-seconds") {
      settings.program_seconds = std::stod(value_of(i));
    } else if (word == "--verbose") {
      settings.program.is_verbose = true;
    } else if (const auto found = std::ranges::find(all_drivers, word, &Driver::name);
               found != all_drivers.end() && settings.driver == nullptr) {
      settings.driver = &*found;
    } else {
      throw std::runtime_error(fmt::format("there is no option or driver '{}'", word));
    }
  }
  if (settings.driver == nullptr) throw std::runtime_error("name a driver; see --list");
  return run(settings);
}

}  // namespace
}  // namespace tern::soak

int main(int count, char** values) {
  try {
    return tern::soak::main_of(count, values);
  } catch (const std::exception& error) {
    fmt::print(stderr, "tern_soak: {}\n{}", error.what(), tern::soak::usage);
    return 2;
  }
}
