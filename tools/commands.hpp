// The subcommands of `tern`. main.cpp parses their options. Each returns an exit status: 0 success,
// 1 a check failed, 2 wrong usage or configuration.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tern::tools {

struct InfoOptions {
  bool json = false;
};
int run_info(const InfoOptions& options);

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
  std::string page;  // empty: text to standard output
};
int run_report(const ReportOptions& options);

struct ConvertOptions {
  std::string input;
  std::string output;
  std::string format;  // empty: the suffix of the output decides
};
int run_convert(const ConvertOptions& options);

struct TourOptions {
  std::string device;
};
int run_tour(const TourOptions& options);

}  // namespace tern::tools
