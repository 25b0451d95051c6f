// The subcommands of `tern`. main.cpp parses their options. Each returns an exit status: 0 success,
// 1 a check failed, 2 wrong usage or configuration.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tern::tools {

struct InfoOptions {
  bool all = false;
  bool json = false;
};
int run_info(const InfoOptions& options);

struct DoctorOptions {
  bool json = false;
};
/// Returns 1 if a check found a problem. Advice is none.
int run_doctor(const DoctorOptions& options);

struct BenchOptions {
  std::string filter;
  bool json = false;
  bool list = false;
  bool check = false;
  bool quick = false;
  double seconds = 0.5;
  std::string device = "host";
};
int run_bench(const BenchOptions& options);

struct CheckOptions {
  bool self_test = false;
  std::uint64_t programs = 100'000;
  std::uint64_t device_programs = 2000;
  std::uint64_t seeds = 1000;
  std::string show;  // "M1": prints the shortest program for that mistake, and its report
  std::vector<std::string> files = {};
  bool json = false;
  bool trusted = false;
};
int run_check(const CheckOptions& options);
/// Checks traces. Returns 1 if one has findings, 2 if one cannot be read to its end.
int run_check_files(const CheckOptions& options);

struct ReportOptions {
  std::string file;
  std::string after;  // a second recording, which the first is compared with; empty: none
  std::string page;   // empty: text to standard output
  bool json = false;  // to standard output
};
int run_report(const ReportOptions& options);

struct ConvertOptions {
  std::string input;
  std::string output;
  std::string format;  // empty: the suffix of the output decides
};
int run_convert(const ConvertOptions& options);

struct TopOptions {
  std::string process;  // or a file
  std::string shared;   // the name of a shared budget, instead of a process
  bool once = false;
  double seconds = 1;
};
int run_top(const TopOptions& options);

struct ReplayOptions {
  std::string file;
  std::string sample;  // a generated trace instead of a file
  std::string device;  // empty: cuda:0 or, without it, a simulated device
  std::string memory;  // --of; empty: the device memory with the highest peak
  std::string resources = "pool,async,driver";
  unsigned passes = 3;
  bool recommend = true;
  bool json = false;
};
int run_replay(const ReplayOptions& options);

struct RehearseOptions {
  std::string file;                       // a recording, or
  std::vector<std::string> program = {};  // a program and its arguments
  std::string memory = "141GiB";
  unsigned devices = 1;
  std::string trace;  // keep the recording of the program here
  bool keep_contents = false;
  bool json = false;
};
/// Returns 1 if the program failed, or if a request of the recording is refused.
int run_rehearse(const RehearseOptions& options);

struct TourOptions {
  std::string device;
};
int run_tour(const TourOptions& options);

}  // namespace tern::tools
