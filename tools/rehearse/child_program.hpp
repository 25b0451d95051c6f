// Runs a program whose devices are simulated, and which records what it does with memory.

#pragma once

#include <string>
#include <vector>

#include "tern/core/result.hpp"

namespace tern::tools {

struct ChildOptions {
  std::vector<std::string> arguments;  // the program first
  std::string rehearsal;               // of TERN_REHEARSE
  std::string trace;                   // of TERN_TRACE
  /// Contents of device memory are kept, so checks that read them make sense.
  bool keeps_contents = false;
  /// Standard output is for the report alone.
  bool output_to_stderr = false;
};

/// How a program ended.
struct ChildEnd {
  int status = 0;  // its exit status, if no signal ended it
  int signal = 0;

  [[nodiscard]] bool is_success() const { return status == 0 && signal == 0; }
  /// "exited with status 3"
  [[nodiscard]] std::string text() const;
};

/// Waits until the program has ended. Ctrl-C reaches the program, which decides what to do. Fails
/// with file if the program cannot be started.
[[nodiscard]] Result<ChildEnd> try_run_child(const ChildOptions& options);

/// The environment of the program: that of this process with other TERN_ variables.
[[nodiscard]] std::vector<std::string> environment_of(const ChildOptions& options);

}  // namespace tern::tools
