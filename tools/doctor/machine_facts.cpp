#include "tools/doctor/machine_facts.hpp"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string_view>

#include "backends/cuda/nvrtc.hpp"
#include "tern/backends/catalog.hpp"
#include "tern/detail/core/config.hpp"

namespace tern::tools {
namespace {

namespace fs = std::filesystem;

std::string text_of(const fs::path& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::optional<std::uint64_t> number_of(const fs::path& path) {
  std::istringstream text(text_of(path));
  std::uint64_t number = 0;
  if (text >> number) return number;
  return {};
}

/// "always [madvise] never": the word in brackets.
std::string chosen_word(const std::string& text) {
  const std::size_t begin = text.find('[');
  const std::size_t end = text.find(']', begin == std::string::npos ? 0 : begin);
  if (begin == std::string::npos || end == std::string::npos) return {};
  return text.substr(begin + 1, end - begin - 1);
}

constexpr unsigned cap_ipc_lock = 14;  // page-locks memory beyond the limit

/// Whether the line "CapEff:" of /proc/self/status has the bit.
bool has_capability(const std::string& status, unsigned bit) {
  constexpr std::string_view key = "CapEff:";
  const std::size_t at = status.find(key);
  if (at == std::string::npos) return false;
  return (std::strtoull(status.c_str() + at + key.size(), nullptr, 16) >> bit & 1u) != 0;
}

/// The word after "Kernel Module" or "Kernel Module for x86_64" in /proc/driver/nvidia/version.
std::string module_version(const std::string& text) {
  const std::string line = text.substr(0, text.find('\n'));
  std::istringstream words(line.substr(std::min(line.size(), line.find("Module"))));
  for (std::string word; words >> word;) {
    if (word.find_first_not_of("0123456789.") == std::string::npos) return word;
  }
  return line.empty() ? std::string() : "unknown";
}

/// The files of a folder whose names begin so and end with digits, or are named exactly so.
std::vector<DeviceFile> device_files(const fs::path& root, const fs::path& folder,
                                     std::string_view prefix,
                                     std::initializer_list<std::string_view> more = {}) {
  std::vector<DeviceFile> files;
  std::error_code ignored;
  for (fs::directory_iterator at(root / folder, ignored), end; at != end; at.increment(ignored)) {
    if (ignored) break;
    const std::string name = at->path().filename().string();
    const bool is_numbered =
        name.size() > prefix.size() && name.starts_with(prefix) &&
        name.find_first_not_of("0123456789", prefix.size()) == std::string::npos;
    if (!is_numbered && std::find(more.begin(), more.end(), name) == more.end()) continue;
    files.push_back({"/" + (folder / name).string(),
                     faccessat(AT_FDCWD, at->path().c_str(), R_OK | W_OK, AT_EACCESS) == 0});
  }
  std::sort(files.begin(), files.end(),
            [](const DeviceFile& a, const DeviceFile& b) { return a.path < b.path; });
  return files;
}

FolderFacts folder_facts(const fs::path& path, std::string shown) {
  FolderFacts facts{.path = std::move(shown)};
  std::error_code ignored;
  facts.exists = fs::is_directory(path, ignored);
  facts.is_writable =
      facts.exists && faccessat(AT_FDCWD, path.c_str(), W_OK | X_OK, AT_EACCESS) == 0;
  struct statvfs volume = {};
  if (facts.exists && statvfs(path.c_str(), &volume) == 0) {
    facts.total_bytes = std::uint64_t{volume.f_blocks} * volume.f_frsize;
    facts.free_bytes = std::uint64_t{volume.f_bavail} * volume.f_frsize;
  }
  return facts;
}

ProcessLimit limit_of(int what) {
  rlimit limit = {};
  if (getrlimit(static_cast<__rlimit_resource_t>(what), &limit) != 0) return {};
  const auto value = [](rlim_t number) {
    return number == RLIM_INFINITY ? std::optional<std::uint64_t>() : std::uint64_t{number};
  };
  return {value(limit.rlim_cur), value(limit.rlim_max)};
}

/// The persistence mode of each GPU, from NVIDIA's management library. Empty without the library.
std::vector<bool> persistence_modes() {
  void* const library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return {};
  using Begin = int (*)();
  using Count = int (*)(unsigned*);
  using Handle = int (*)(unsigned, void**);
  using Mode = int (*)(void*, int*);
  const auto begin = reinterpret_cast<Begin>(dlsym(library, "nvmlInit_v2"));
  const auto end = reinterpret_cast<Begin>(dlsym(library, "nvmlShutdown"));
  const auto count = reinterpret_cast<Count>(dlsym(library, "nvmlDeviceGetCount_v2"));
  const auto handle = reinterpret_cast<Handle>(dlsym(library, "nvmlDeviceGetHandleByIndex_v2"));
  const auto mode = reinterpret_cast<Mode>(dlsym(library, "nvmlDeviceGetPersistenceMode"));
  std::vector<bool> modes;
  if (begin && end && count && handle && mode && begin() == 0) {
    unsigned devices = 0;
    if (count(&devices) != 0) devices = 0;
    for (unsigned index = 0; index < devices; ++index) {
      void* device = nullptr;
      int is_on = 0;
      if (handle(index, &device) == 0 && mode(device, &is_on) == 0) modes.push_back(is_on != 0);
    }
    end();
  }
  dlclose(library);
  return modes;
}

std::vector<BackendFacts> backends() {
  std::vector<BackendFacts> all;
  for (const BackendListing& listing : list_backends()) {
    BackendFacts facts{listing.name, listing.is_available, listing.reason, listing.devices,
                       listing.unusable_devices};
    for (const std::string& spec : listing.devices) {
      const Result<Device> device = try_open_device(spec);
      if (!device) facts.failures.push_back(device.failure().text());
    }
    all.push_back(std::move(facts));
  }
  return all;
}

}  // namespace

void read_system_files(const fs::path& root, MachineFacts& facts) {
  facts.nvidia_module = module_version(text_of(root / "proc/driver/nvidia/version"));
  facts.nvidia_files = device_files(root, "dev", "nvidia", {"nvidiactl", "nvidia-uvm"});
  facts.render_files = device_files(root, "dev/dri", "renderD");
  facts.max_mappings = number_of(root / "proc/sys/vm/max_map_count");
  facts.huge_pages = chosen_word(text_of(root / "sys/kernel/mm/transparent_hugepage/enabled"));
  facts.may_exceed_locked_bytes = has_capability(text_of(root / "proc/self/status"), cap_ipc_lock);
  facts.shared_memory = folder_facts(root / "dev/shm", "/dev/shm");
}

MachineFacts read_machine() {
  MachineFacts facts;
  read_system_files("/", facts);
  facts.backends = backends();
  facts.persistence = persistence_modes();
  facts.nvrtc_absence = cuda::nvrtc().absence;
  facts.locked_bytes = limit_of(RLIMIT_MEMLOCK);
  facts.open_files = limit_of(RLIMIT_NOFILE);
  facts.machine_bytes = static_cast<std::uint64_t>(sysconf(_SC_PHYS_PAGES)) *
                        static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  if (const Result<Device> host = try_open_device("host"); host) {
    if (const Result<MemoryInfo> memory = host->try_memory(); memory) {
      facts.usable_bytes = memory->total_bytes;
    }
  }
  if (const Result<const Config*> config = try_config(); config) {
    facts.unknown_variables = (*config)->unknown_names;
  } else {
    facts.configuration_failure = config.failure().text();
  }
  return facts;
}

}  // namespace tern::tools
