// The CUDA driver of this machine, loaded on first use, or a sentence that says why there is none.
//
// Tern neither links the library nor needs it to build. The driver is loaded once per process and
// never unloaded. A missing driver is not an error, and everything outside of the CUDA backend
// works without it. In a forked child of a process that has loaded the driver, the driver is
// absent, because CUDA does not work there.
//
// At the end of the process the driver shuts down before most of our objects are destroyed.
// has_ended() then returns true, and nothing may call the driver. Thread-safe.

#pragma once

#include <cstddef>
#include <string>

#include "backends/cuda/driver_table.hpp"
#include "backends/host/machine.hpp"

namespace tern::cuda {

struct Driver {
  DriverTable table = {};
  int version = 0;  // 13000 is 13.0
  int device_count = 0;
  /// Returns the host's available memory, which an integrated device shares.
  std::size_t (*available_host_bytes)() noexcept = host::available_bytes;
  /// True for the fake driver, whose images are portable texts instead of PTX.
  bool takes_portable_texts = false;
  /// Empty if the driver works and has a device.
  std::string absence = {};

  [[nodiscard]] bool is_present() const noexcept { return absence.empty(); }
  /// Returns the version, such as "13.0".
  [[nodiscard]] std::string version_text() const;
};

/// Looks up a symbol of a driver library by name; null if there is none.
struct DriverLibrary {
  void* (*symbol)(void* context, const char* name) = nullptr;
  void* context = nullptr;
};

/// Fills a table from a library, initialises the driver and counts its devices.
[[nodiscard]] Driver load_driver(const DriverLibrary& library);

/// Returns the driver of the process, or the one that a test installed.
[[nodiscard]] const Driver& driver();

/// Replaces the driver of the machine during its lifetime. For tests, one at a time. A forked child
/// has no driver then, as usual.
class InstalledDriver {
 public:
  explicit InstalledDriver(Driver driver);
  ~InstalledDriver();
  InstalledDriver(const InstalledDriver&) = delete;
  InstalledDriver& operator=(const InstalledDriver&) = delete;
};

/// Returns whether the process is ending, so that the driver must not be called.
[[nodiscard]] bool has_ended() noexcept;

/// During its lifetime the process counts as ending. For tests, one at a time.
class EndingProcess {
 public:
  EndingProcess() noexcept;
  ~EndingProcess();
  EndingProcess(const EndingProcess&) = delete;
  EndingProcess& operator=(const EndingProcess&) = delete;
};

}  // namespace tern::cuda
