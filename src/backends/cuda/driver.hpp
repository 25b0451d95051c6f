// The CUDA driver of this machine: found and loaded when it is first asked for, or a sentence that
// says why there is none.
//
// The library is neither linked nor needed to build Tern. Loading happens once in a process and is
// never undone; a state without a driver is a fact, not an error, and everything outside of the
// CUDA backend works in it. A forked child of a process that has loaded the driver has none: CUDA
// does not work there, and the sentence says so.
//
// At the end of the process the driver goes before most of our objects do. From then on nothing
// may call it; has_ended() says so. Thread-safe.

#pragma once

#include <string>

#include "backends/cuda/driver_table.hpp"

namespace tern::cuda {

struct Driver {
  DriverTable table = {};
  int version = 0;  // 13000 is 13.0
  int device_count = 0;
  /// Empty if the driver works and has a device.
  std::string absence = {};

  [[nodiscard]] bool is_present() const noexcept { return absence.empty(); }
  /// "13.0".
  [[nodiscard]] std::string version_text() const;
};

/// What a driver library is asked: a symbol by name, null if it has none.
struct DriverLibrary {
  void* (*symbol)(void* context, const char* name) = nullptr;
  void* context = nullptr;
};

/// Fills a table from a library, initialises the driver and counts its devices.
[[nodiscard]] Driver load_driver(const DriverLibrary& library);

/// The driver of the process, or of a test that installed one.
[[nodiscard]] const Driver& driver();

/// Puts another driver in the place of the machine's, until it ends. For tests: one at a time. A
/// forked child has none then, as with the machine's.
class InstalledDriver {
 public:
  explicit InstalledDriver(Driver driver);
  ~InstalledDriver();
  InstalledDriver(const InstalledDriver&) = delete;
  InstalledDriver& operator=(const InstalledDriver&) = delete;
};

/// Is the process ending? Then the driver must not be called any more.
[[nodiscard]] bool has_ended() noexcept;

/// While one lives, the process counts as ending. For tests: one at a time.
class EndingProcess {
 public:
  EndingProcess() noexcept;
  ~EndingProcess();
  EndingProcess(const EndingProcess&) = delete;
  EndingProcess& operator=(const EndingProcess&) = delete;
};

}  // namespace tern::cuda
