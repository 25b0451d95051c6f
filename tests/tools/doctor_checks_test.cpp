#include <gtest/gtest.h>

#include <string>

#include "tools/doctor/checks.hpp"

namespace tern::tools {
namespace {

constexpr std::uint64_t gibibyte = std::uint64_t{1} << 30;

/// A machine with a GPU on which everything is well.
MachineFacts well() {
  MachineFacts facts;
  facts.backends = {{.name = "cuda", .is_available = true, .devices = {"cuda:0", "cuda:1"}},
                    {.name = "opencl", .is_available = true, .devices = {"opencl:0"}},
                    {.name = "host", .is_available = true, .devices = {"host"}}};
  facts.nvidia_module = "580.65.06";
  facts.nvidia_files = {{"/dev/nvidia0", true}, {"/dev/nvidiactl", true}};
  facts.render_files = {{"/dev/dri/renderD128", true}};
  facts.persistence = {true, true};
  facts.locked_bytes = {.soft = 8 * gibibyte, .hard = 8 * gibibyte};
  facts.open_files = {.soft = 4096, .hard = 4096};
  facts.max_mappings = 65530;
  facts.huge_pages = "madvise";
  facts.shared_memory = {"/dev/shm", true, true, 8 * gibibyte, 8 * gibibyte};
  facts.machine_bytes = 64 * gibibyte;
  facts.usable_bytes = 64 * gibibyte;
  return facts;
}

Check find(const MachineFacts& facts, std::string_view subject) {
  for (const Check& check : check_machine(facts)) {
    if (check.subject == subject) return check;
  }
  ADD_FAILURE() << "no check of " << subject;
  return {};
}

void expect_finding(const MachineFacts& facts, std::string_view subject, Health health,
                    std::string_view finding, std::string_view remedy) {
  const Check check = find(facts, subject);
  EXPECT_EQ(check.health, health) << check.finding;
  EXPECT_NE(check.finding.find(finding), std::string::npos) << check.finding;
  EXPECT_NE(check.remedy.find(remedy), std::string::npos) << check.remedy;
  // One planted fault is one finding.
  for (const Check& other : check_machine(facts)) {
    if (other.subject != subject) {
      EXPECT_EQ(other.health, Health::good) << other.subject;
    }
  }
}

TEST(DoctorChecks, NothingHasToBeDoneWhereAllIsWell) {
  for (const Check& check : check_machine(well())) {
    EXPECT_EQ(check.health, Health::good) << check.subject << ": " << check.finding;
    EXPECT_EQ(check.remedy, "") << check.subject;
    EXPECT_NE(check.finding, "") << check.subject;
  }
  EXPECT_NE(find(well(), "NVIDIA driver").finding.find("580.65.06, 2 devices"), std::string::npos);
}

TEST(DoctorChecks, FilesOfTheDriverThatThisUserMayNotOpen) {
  MachineFacts facts = well();
  facts.nvidia_files[0].is_usable = false;
  expect_finding(facts, "NVIDIA driver", Health::problem, "/dev/nvidia0.", "group");
}

TEST(DoctorChecks, AGpuThatCannotBeOpened) {
  MachineFacts facts = well();
  facts.backends[0].failures = {"'cuda:1' cannot be opened: the GPU is lost"};
  expect_finding(facts, "NVIDIA driver", Health::problem, "the GPU is lost.", "nvidia-smi");
}

TEST(DoctorChecks, AModuleWithoutItsLibrary) {
  MachineFacts facts = well();
  facts.backends[0] = {.name = "cuda", .reason = "no libcuda.so.1 was found."};
  facts.persistence = {};
  expect_finding(facts, "NVIDIA driver", Health::problem,
                 "module 580.65.06 is loaded, but no libcuda.so.1 was found.", "same version");
}

TEST(DoctorChecks, AMachineWithoutAGpuIsNotBroken) {
  MachineFacts facts = well();
  facts.backends[0] = {.name = "cuda", .reason = "no libcuda.so.1 was found."};
  facts.persistence = {};
  facts.nvidia_module = "";
  facts.nvidia_files = {};
  expect_finding(facts, "NVIDIA driver", Health::absent, "no libcuda.so.1 was found.", "driver");
}

TEST(DoctorChecks, PersistenceModeIsOff) {
  MachineFacts facts = well();
  facts.persistence = {true, false};
  expect_finding(facts, "persistence mode", Health::advice, "off for 1 of 2 GPUs",
                 "nvidia-smi -pm 1");
}

TEST(DoctorChecks, NoCompilerForKernels) {
  MachineFacts facts = well();
  facts.nvrtc_absence = "no run-time compiler was found";
  expect_finding(facts, "kernel compiler", Health::advice, "no run-time compiler was found.",
                 "source text");
}

TEST(DoctorChecks, OpenClIsMissingOrCannotBeUsed) {
  MachineFacts facts = well();
  facts.backends[1] = {.name = "opencl", .reason = "there is no libOpenCL.so.1."};
  expect_finding(facts, "OpenCL", Health::absent, "there is no libOpenCL.so.1.",
                 "ocl-icd-libopencl1");
  facts.render_files[0].is_usable = false;
  expect_finding(facts, "OpenCL", Health::problem, "/dev/dri/renderD128", "render");
  facts = well();
  facts.backends[1].failures = {"'opencl:0' cannot be opened"};
  expect_finding(facts, "OpenCL", Health::problem, "'opencl:0' cannot be opened.", "clinfo");
}

TEST(DoctorChecks, AnUnusedOpenClDeviceIsNamed) {
  MachineFacts facts = well();
  facts.backends[1].unusable_devices = {"'old GPU' has no shared virtual memory"};
  EXPECT_NE(find(facts, "OpenCL").finding.find("Not used: 'old GPU'"), std::string::npos);
}

TEST(DoctorChecks, ALowLimitOnLockedMemory) {
  MachineFacts facts = well();
  facts.locked_bytes = {.soft = 8u << 20, .hard = 8u << 20};
  expect_finding(facts, "locked memory", Health::advice, "8.0 MiB", "limits.conf");
  facts.locked_bytes.hard = {};
  expect_finding(facts, "locked memory", Health::advice, "8.0 MiB", "ulimit -l");
  facts.may_exceed_locked_bytes = true;
  EXPECT_EQ(find(facts, "locked memory").health, Health::good);
  facts.may_exceed_locked_bytes = false;
  facts.locked_bytes.soft = {};
  EXPECT_EQ(find(facts, "locked memory").finding, "no limit.");
}

TEST(DoctorChecks, FewOpenFiles) {
  MachineFacts facts = well();
  facts.open_files.soft = 1023;
  expect_finding(facts, "open files", Health::advice, "at most 1023", "ulimit -n");
  facts.open_files.soft = {};
  EXPECT_EQ(find(facts, "open files").health, Health::good);
}

TEST(DoctorChecks, FewMappings) {
  MachineFacts facts = well();
  facts.max_mappings = 65529;
  expect_finding(facts, "mappings", Health::advice, "65529", "vm.max_map_count");
  facts.max_mappings = {};
  EXPECT_EQ(find(facts, "mappings").health, Health::good);
}

TEST(DoctorChecks, NoHugePages) {
  MachineFacts facts = well();
  facts.huge_pages = "never";
  expect_finding(facts, "huge pages", Health::advice, "`never`", "madvise");
  facts.huge_pages = "";
  EXPECT_EQ(find(facts, "huge pages").health, Health::absent);
}

TEST(DoctorChecks, SharedMemoryIsMissingReadOnlyOrSmall) {
  MachineFacts facts = well();
  facts.shared_memory.free_bytes = 64u << 20;
  expect_finding(facts, "shared memory", Health::advice, "64.0 MiB free", "--shm-size");
  facts.shared_memory.is_writable = false;
  expect_finding(facts, "shared memory", Health::problem, "not writable", "tmpfs");
  facts.shared_memory.exists = false;
  expect_finding(facts, "shared memory", Health::problem, "does not exist", "tmpfs");
}

TEST(DoctorChecks, AControlGroupWithLittleMemory) {
  MachineFacts facts = well();
  facts.usable_bytes = 31 * gibibyte;
  expect_finding(facts, "host memory", Health::advice, "31.0 GiB of 64.0 GiB", "--memory");
}

TEST(DoctorChecks, VariablesThatAreRefusedOrUnknown) {
  MachineFacts facts = well();
  facts.unknown_variables = {"TERN_DEVIC", "TERN_X"};
  expect_finding(facts, "settings", Health::problem, "TERN_DEVIC, TERN_X are not variables of Tern",
                 "spelling");
  facts.configuration_failure = "TERN_HOST_THREADS='4x' is not accepted";
  expect_finding(facts, "settings", Health::problem, "TERN_HOST_THREADS='4x' is not accepted.",
                 "unset");
}

}  // namespace
}  // namespace tern::tools
