#include "tools/doctor/checks.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "tern/core/bytes.hpp"

namespace tern::tools {
namespace {

constexpr std::uint64_t mebibyte = std::uint64_t{1} << 20;
constexpr std::uint64_t gibibyte = std::uint64_t{1} << 30;

const BackendFacts* find(const MachineFacts& facts, std::string_view backend) {
  for (const BackendFacts& one : facts.backends) {
    if (one.name == backend) return &one;
  }
  return nullptr;
}

std::string sentence(std::string text) {
  if (!text.empty() && text.back() != '.') text += '.';
  return text;
}

std::vector<std::string> unusable(const std::vector<DeviceFile>& files) {
  std::vector<std::string> paths;
  for (const DeviceFile& file : files) {
    if (!file.is_usable) paths.push_back(file.path);
  }
  return paths;
}

Check check_cuda(const MachineFacts& facts) {
  Check check{.subject = "NVIDIA driver"};
  const BackendFacts* const cuda = find(facts, "cuda");
  const bool is_available = cuda != nullptr && cuda->is_available;
  if (const auto paths = unusable(facts.nvidia_files); !paths.empty()) {
    return {check.subject, Health::problem,
            fmt::format("this user may not read and write {}.", fmt::join(paths, ", ")),
            "Add the user to the group that owns the files (`ls -l /dev/nvidia*`), or start the "
            "container with access to the GPU (`--gpus all`)."};
  }
  if (is_available) {
    std::vector<std::string> faults = cuda->unusable_devices;
    faults.insert(faults.end(), cuda->failures.begin(), cuda->failures.end());
    if (!faults.empty()) {
      return {check.subject, Health::problem, sentence(fmt::format("{}", fmt::join(faults, "; "))),
              "Run `nvidia-smi`. If it fails too, reset the GPU or reboot."};
    }
    check.finding = fmt::format("version {}, {} device{}.",
                                facts.nvidia_module.empty() ? "unknown" : facts.nvidia_module,
                                cuda->devices.size(), cuda->devices.size() == 1 ? "" : "s");
    return check;
  }
  const std::string reason = cuda != nullptr ? cuda->reason : "this build has no backend 'cuda'.";
  if (!facts.nvidia_module.empty()) {
    return {check.subject, Health::problem,
            fmt::format("the kernel module {} is loaded, but {}", facts.nvidia_module, reason),
            "Install libcuda.so.1 of the same version. In a container, let the container runtime "
            "mount it (`--gpus all`, NVIDIA_DRIVER_CAPABILITIES=compute,utility)."};
  }
  return {check.subject, Health::absent, reason,
          "To use an NVIDIA GPU, install its driver. Without one, `sim` and `host` work."};
}

Check check_persistence(const MachineFacts& facts) {
  Check check{.subject = "persistence mode"};
  const auto off = std::count(facts.persistence.begin(), facts.persistence.end(), false);
  if (off == 0) {
    check.finding = "on for every GPU.";
    return check;
  }
  return {
      check.subject, Health::advice,
      fmt::format("off for {} of {} GPUs: the driver initialises the GPU again for each program, "
                  "which takes about a second.",
                  off, facts.persistence.size()),
      "Run `nvidia-smi -pm 1` as root, or start nvidia-persistenced."};
}

Check check_nvrtc(const MachineFacts& facts) {
  if (facts.nvrtc_absence.empty()) return {"kernel compiler", Health::good, "NVRTC is installed."};
  return {"kernel compiler", Health::advice, sentence(facts.nvrtc_absence),
          "Only needed for CUDA kernels that are given as source text."};
}

Check check_opencl(const MachineFacts& facts) {
  Check check{.subject = "OpenCL"};
  const BackendFacts* const opencl = find(facts, "opencl");
  if (opencl != nullptr && opencl->is_available) {
    if (!opencl->failures.empty()) {
      return {check.subject, Health::problem,
              sentence(fmt::format("{}", fmt::join(opencl->failures, "; "))),
              "Run `clinfo`. If it fails too, install the OpenCL driver again."};
    }
    check.finding =
        fmt::format("{} device{}.", opencl->devices.size(), opencl->devices.size() == 1 ? "" : "s");
    for (const std::string& device : opencl->unusable_devices) {
      check.finding += fmt::format(" Not used: {}.", device);
    }
    return check;
  }
  if (const auto paths = unusable(facts.render_files); !paths.empty()) {
    return {check.subject, Health::problem,
            fmt::format("this user may not read and write {}.", fmt::join(paths, ", ")),
            "Add the user to the group `render` (`usermod -aG render USER`) and log in again."};
  }
  return {check.subject, Health::absent,
          opencl != nullptr ? opencl->reason : "this build has no backend 'opencl'.",
          "For OpenCL devices, install ocl-icd-libopencl1 and the driver of the device. PoCL "
          "(pocl-opencl-icd) runs OpenCL on the CPU."};
}

Check check_locked_memory(const MachineFacts& facts) {
  Check check{.subject = "locked memory"};
  if (!facts.locked_bytes.soft) {
    check.finding = "no limit.";
    return check;
  }
  if (facts.may_exceed_locked_bytes) {
    check.finding = "this user may exceed the limit.";
    return check;
  }
  const std::uint64_t limit = *facts.locked_bytes.soft;
  check.finding = fmt::format("the process may page-lock {}.", format_bytes(limit));
  if (limit >= gibibyte) return check;
  check.health = Health::advice;
  check.finding +=
      " Pinned memory of the host device and memory that a network library registers count.";
  const bool may_raise = !facts.locked_bytes.hard || *facts.locked_bytes.hard > limit;
  check.remedy = may_raise
                     ? "Run `ulimit -l hard` (or `unlimited`) before the program."
                     : "Set `memlock unlimited` for the user in /etc/security/limits.conf, or "
                       "start the container with `--ulimit memlock=-1`.";
  return check;
}

Check check_open_files(const MachineFacts& facts) {
  Check check{.subject = "open files"};
  if (!facts.open_files.soft) {
    check.finding = "no limit.";
    return check;
  }
  const std::uint64_t limit = *facts.open_files.soft;
  check.finding = fmt::format("at most {}.", limit);
  if (limit >= 1024) return check;
  check.health = Health::advice;
  check.finding += " Spill files and memory shared with other processes need descriptors.";
  check.remedy = "Run `ulimit -n 65536` before the program.";
  return check;
}

Check check_mappings(const MachineFacts& facts) {
  Check check{.subject = "mappings"};
  if (!facts.max_mappings) {
    check.finding = "the limit cannot be read.";
    return check;
  }
  check.finding = fmt::format("at most {} per process (vm.max_map_count).", *facts.max_mappings);
  if (*facts.max_mappings >= 65530) return check;
  check.health = Health::advice;
  check.finding += " Pools on `host` and `sim` map pages one by one.";
  check.remedy = "Run `sysctl vm.max_map_count=262144` as root.";
  return check;
}

Check check_huge_pages(const MachineFacts& facts) {
  Check check{.subject = "huge pages"};
  if (facts.huge_pages == "always" || facts.huge_pages == "madvise") {
    check.finding = fmt::format("transparent huge pages are set to `{}`.", facts.huge_pages);
    return check;
  }
  if (facts.huge_pages.empty()) {
    return {check.subject, Health::absent, "this kernel has no transparent huge pages.", ""};
  }
  return {check.subject, Health::advice,
          fmt::format("transparent huge pages are set to `{}`, so large blocks of host memory use "
                      "small pages.",
                      facts.huge_pages),
          "Write `madvise` to /sys/kernel/mm/transparent_hugepage/enabled as root."};
}

Check check_shared_memory(const MachineFacts& facts) {
  const FolderFacts& folder = facts.shared_memory;
  constexpr const char* used_for =
      "Shared budgets keep their counters there, and libraries such as NCCL their messages.";
  constexpr const char* remedy =
      "Mount a tmpfs at /dev/shm, or start the container with `--shm-size=1g`.";
  Check check{.subject = "shared memory"};
  if (!folder.exists || !folder.is_writable) {
    return {
        check.subject, Health::problem,
        fmt::format("{} {}. {}", folder.path,
                    folder.exists ? "is not writable by this user" : "does not exist", used_for),
        remedy};
  }
  check.finding = fmt::format("{} has {} free of {}.", folder.path, format_bytes(folder.free_bytes),
                              format_bytes(folder.total_bytes));
  if (folder.free_bytes >= 128 * mebibyte) return check;
  return {check.subject, Health::advice, fmt::format("{} {}", check.finding, used_for), remedy};
}

Check check_memory(const MachineFacts& facts) {
  Check check{.subject = "host memory"};
  if (facts.usable_bytes != 0 && facts.usable_bytes < facts.machine_bytes / 2) {
    return {check.subject, Health::advice,
            fmt::format("the control group allows {} of {}.", format_bytes(facts.usable_bytes),
                        format_bytes(facts.machine_bytes)),
            "Tern reports the lower number as total memory. Raise the limit of the container "
            "(`--memory`) if programs need more."};
  }
  check.finding = fmt::format("{} may be used.", format_bytes(facts.usable_bytes));
  return check;
}

Check check_configuration(const MachineFacts& facts) {
  if (!facts.configuration_failure.empty()) {
    return {"settings", Health::problem, sentence(facts.configuration_failure),
            "Correct or unset the variable. `tern info --all` lists what each one accepts."};
  }
  if (!facts.unknown_variables.empty()) {
    return {"settings", Health::problem,
            fmt::format(
                "{} {} of Tern.", fmt::join(facts.unknown_variables, ", "),
                facts.unknown_variables.size() == 1 ? "is not a variable" : "are not variables"),
            "Check the spelling. `tern info --all` lists the variables."};
  }
  return {"settings", Health::good, "every TERN_ variable is accepted."};
}

}  // namespace

std::string_view name(Health health) {
  switch (health) {
    case Health::good:
      return "ok";
    case Health::absent:
      return "absent";
    case Health::advice:
      return "advice";
    case Health::problem:
      return "problem";
  }
  return "unknown";
}

std::vector<Check> check_machine(const MachineFacts& facts) {
  std::vector<Check> checks = {check_cuda(facts)};
  const BackendFacts* const cuda = find(facts, "cuda");
  if (!facts.persistence.empty()) checks.push_back(check_persistence(facts));
  if (cuda != nullptr && cuda->is_available) checks.push_back(check_nvrtc(facts));
  checks.push_back(check_opencl(facts));
  checks.push_back(check_memory(facts));
  checks.push_back(check_locked_memory(facts));
  checks.push_back(check_huge_pages(facts));
  checks.push_back(check_mappings(facts));
  checks.push_back(check_open_files(facts));
  checks.push_back(check_shared_memory(facts));
  checks.push_back(check_configuration(facts));
  return checks;
}

}  // namespace tern::tools
