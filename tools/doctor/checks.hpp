// The checks of `tern doctor`: each looks at some facts of the machine and says what is well, what
// could be better, and what is broken, with what to do.

#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tools/doctor/machine_facts.hpp"

namespace tern::tools {

enum class Health : std::uint8_t {
  good,
  absent,   // an optional part that this machine lacks
  advice,   // works, but a setting limits it
  problem,  // something that is there cannot be used
};

[[nodiscard]] std::string_view name(Health health);

/// The outcome of one check.
struct Check {
  std::string subject = {};
  Health health = Health::good;
  std::string finding = {};  // one sentence with the numbers
  std::string remedy = {};   // what to do; empty if nothing has to be done
};

/// Runs all checks, in the order in which `tern doctor` prints them.
[[nodiscard]] std::vector<Check> check_machine(const MachineFacts& facts);

}  // namespace tern::tools
