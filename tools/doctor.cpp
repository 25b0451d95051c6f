// `tern doctor`: checks the drivers, permissions and limits of this machine.

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tools/commands.hpp"
#include "tools/doctor/checks.hpp"
#include "tools/terminal.hpp"

namespace tern::tools {
namespace {

using Json = nlohmann::ordered_json;

std::string painted(Health health, const std::string& text) {
  switch (health) {
    case Health::good:
      return green(text);
    case Health::absent:
      return dim(text);
    case Health::advice:
      return yellow(text);
    case Health::problem:
      return red(text);
  }
  return text;
}

void print(const std::vector<Check>& checks) {
  constexpr std::size_t indent = 27;
  const std::size_t columns = terminal_columns();
  for (const Check& check : checks) {
    fmt::print("{} {:<18}{}\n", painted(check.health, fmt::format("{:<8}", name(check.health))),
               check.subject, wrapped(check.finding, indent, columns));
    if (!check.remedy.empty()) {
      fmt::print("{:{}}{}\n", "", indent, bold(wrapped(check.remedy, indent, columns)));
    }
  }
  const auto number = [&](Health health) {
    return std::count_if(checks.begin(), checks.end(),
                         [&](const Check& check) { return check.health == health; });
  };
  fmt::print("\n{} checks: {} problems, {} with advice\n", checks.size(), number(Health::problem),
             number(Health::advice));
}

void print_json(const std::vector<Check>& checks) {
  Json json = Json::array();
  for (const Check& check : checks) {
    Json row = {
        {"subject", check.subject}, {"health", name(check.health)}, {"finding", check.finding}};
    if (!check.remedy.empty()) row["remedy"] = check.remedy;
    json.push_back(std::move(row));
  }
  fmt::print("{}\n", json.dump(2, ' ', false, Json::error_handler_t::replace));
}

}  // namespace

int run_doctor(const DoctorOptions& options) {
  const std::vector<Check> checks = check_machine(read_machine());
  options.json ? print_json(checks) : print(checks);
  return std::any_of(checks.begin(), checks.end(),
                     [](const Check& check) { return check.health == Health::problem; })
             ? 1
             : 0;
}

}  // namespace tern::tools
