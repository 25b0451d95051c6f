// MachineFacts is what `tern doctor` reads of the machine: files of the system, limits of the
// process, and what the catalog says. It judges nothing; checks.hpp does.

#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace tern::tools {

/// A limit of the process. Unset values mean that there is no limit.
struct ProcessLimit {
  std::optional<std::uint64_t> soft = {}, hard = {};
};

/// A folder that Tern writes to.
struct FolderFacts {
  std::string path = {};
  bool exists = false;
  bool is_writable = false;
  std::uint64_t total_bytes = 0, free_bytes = 0;
};

/// A device file of a driver, such as /dev/nvidia0.
struct DeviceFile {
  std::string path = {};
  bool is_usable = false;  // this user may read and write it
};

/// A backend of the catalog.
struct BackendFacts {
  std::string name = {};
  bool is_available = false;
  std::string reason = {};  // a sentence, if the backend is not available
  std::vector<std::string> devices = {};
  std::vector<std::string> unusable_devices = {};
  std::vector<std::string> failures = {};  // of devices that could not be opened
};

struct MachineFacts {
  std::vector<BackendFacts> backends = {};
  /// Version of NVIDIA's kernel module; empty if it is not loaded.
  std::string nvidia_module = {};
  std::vector<DeviceFile> nvidia_files = {};
  std::vector<DeviceFile> render_files = {};
  /// Whether each NVIDIA GPU stays initialised while no program uses it; empty if unknown.
  std::vector<bool> persistence = {};
  /// Why CUDA kernels cannot be compiled at run time; empty if they can.
  std::string nvrtc_absence = {};
  ProcessLimit locked_bytes = {};
  bool may_exceed_locked_bytes = false;  // CAP_IPC_LOCK, which root usually has
  ProcessLimit open_files = {};
  std::optional<std::uint64_t> max_mappings = {};
  /// The setting of transparent huge pages: always, madvise or never; empty if unknown.
  std::string huge_pages = {};
  FolderFacts shared_memory = {};
  /// Memory of the machine, and the part that this process may use.
  std::uint64_t machine_bytes = 0, usable_bytes = 0;
  /// Why the TERN_ variables are refused; empty if they are accepted.
  std::string configuration_failure = {};
  std::vector<std::string> unknown_variables = {};
};

/// Reads the files of the system below `root`, which is "/" but for tests.
void read_system_files(const std::filesystem::path& root, MachineFacts& facts);

/// Reads everything. Loads drivers and opens every device.
[[nodiscard]] MachineFacts read_machine();

}  // namespace tern::tools
