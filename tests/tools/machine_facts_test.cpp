#include "tools/doctor/machine_facts.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace tern::tools {
namespace {

namespace fs = std::filesystem;

/// A folder with the files of a machine.
class Machine {
 public:
  Machine() {
    std::string name = (fs::temp_directory_path() / "tern_machine_XXXXXX").string();
    if (mkdtemp(name.data()) != nullptr) root_ = name;
  }
  ~Machine() {
    std::error_code ignored;
    fs::remove_all(root_, ignored);
  }
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;

  void write(const char* path, std::string_view text) {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }
  [[nodiscard]] MachineFacts read() const {
    MachineFacts facts;
    read_system_files(root_, facts);
    return facts;
  }
  [[nodiscard]] const fs::path& root() const { return root_; }

 private:
  fs::path root_;
};

TEST(MachineFacts, AnEmptyMachineHasNothing) {
  const MachineFacts facts = Machine().read();
  EXPECT_EQ(facts.nvidia_module, "");
  EXPECT_TRUE(facts.nvidia_files.empty());
  EXPECT_TRUE(facts.render_files.empty());
  EXPECT_FALSE(facts.max_mappings);
  EXPECT_EQ(facts.huge_pages, "");
  EXPECT_FALSE(facts.shared_memory.exists);
  EXPECT_FALSE(facts.may_exceed_locked_bytes);
}

TEST(MachineFacts, FilesOfTheSystemAreRead) {
  Machine machine;
  machine.write(
      "proc/driver/nvidia/version",
      "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build\n"
      "GCC version:  gcc version 12.3.0\n");
  machine.write("proc/sys/vm/max_map_count", "262144\n");
  machine.write("sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n");
  machine.write("proc/self/status", "Name:\ttern\nCapEff:\t0000000000004000\n");
  machine.write("dev/nvidia0", "");
  machine.write("dev/nvidia10", "");
  machine.write("dev/nvidiactl", "");
  machine.write("dev/nvidia-modeset", "");  // not needed to compute
  machine.write("dev/dri/renderD128", "");
  machine.write("dev/dri/card0", "");
  machine.write("dev/shm/x", "");
  const MachineFacts facts = machine.read();
  EXPECT_EQ(facts.nvidia_module, "580.65.06");
  EXPECT_EQ(facts.max_mappings, 262144u);
  EXPECT_EQ(facts.huge_pages, "never");
  EXPECT_TRUE(facts.may_exceed_locked_bytes);
  ASSERT_EQ(facts.nvidia_files.size(), 3u);
  EXPECT_EQ(facts.nvidia_files[0].path, "/dev/nvidia0");
  EXPECT_EQ(facts.nvidia_files[1].path, "/dev/nvidia10");
  EXPECT_EQ(facts.nvidia_files[2].path, "/dev/nvidiactl");
  EXPECT_TRUE(facts.nvidia_files[0].is_usable);
  ASSERT_EQ(facts.render_files.size(), 1u);
  EXPECT_EQ(facts.render_files[0].path, "/dev/dri/renderD128");
  EXPECT_TRUE(facts.shared_memory.exists);
  EXPECT_TRUE(facts.shared_memory.is_writable);
  EXPECT_GT(facts.shared_memory.total_bytes, 0u);
  EXPECT_LE(facts.shared_memory.free_bytes, facts.shared_memory.total_bytes);
}

TEST(MachineFacts, OtherFormsOfTheFilesAreUnderstood) {
  Machine machine;
  machine.write("proc/driver/nvidia/version",
                "NVRM version: NVIDIA UNIX x86_64 Kernel Module  470.82.01  Wed Oct 27\n");
  machine.write("proc/sys/vm/max_map_count", "many\n");
  machine.write("sys/kernel/mm/transparent_hugepage/enabled", "always\n");
  machine.write("proc/self/status", "CapEff:\t000001ffffffbfff\n");
  const MachineFacts facts = machine.read();
  EXPECT_EQ(facts.nvidia_module, "470.82.01");
  EXPECT_FALSE(facts.max_mappings);
  EXPECT_EQ(facts.huge_pages, "");
  EXPECT_FALSE(facts.may_exceed_locked_bytes);
  machine.write("proc/driver/nvidia/version", "something else\n");
  EXPECT_EQ(machine.read().nvidia_module, "unknown");
}

TEST(MachineFacts, AFileOfAnotherUserIsNotUsable) {
  Machine machine;
  machine.write("dev/nvidia0", "");
  machine.write("dev/shm/x", "");
  chmod(machine.root().c_str(), 0755);
  chmod((machine.root() / "dev/nvidia0").c_str(), 0);
  chmod((machine.root() / "dev/shm").c_str(), 0555);
  // Root may use every file, so it looks at them as another user.
  constexpr uid_t nobody = 65534;
  const bool is_root = geteuid() == 0;
  if (is_root) {
    ASSERT_EQ(seteuid(nobody), 0);
  }
  const MachineFacts facts = machine.read();
  if (is_root) {
    ASSERT_EQ(seteuid(0), 0);
  }
  ASSERT_EQ(facts.nvidia_files.size(), 1u);
  EXPECT_FALSE(facts.nvidia_files[0].is_usable);
  EXPECT_TRUE(facts.shared_memory.exists);
  EXPECT_FALSE(facts.shared_memory.is_writable);
}

TEST(MachineFacts, ThisMachineHasAHostAndMemory) {
  const MachineFacts facts = read_machine();
  bool has_host = false;
  for (const BackendFacts& backend : facts.backends) {
    has_host = has_host || (backend.name == "host" && backend.is_available);
    EXPECT_EQ(backend.is_available, backend.reason.empty()) << backend.name;
  }
  EXPECT_TRUE(has_host);
  EXPECT_GT(facts.machine_bytes, 0u);
  EXPECT_GT(facts.usable_bytes, 0u);
  EXPECT_LE(facts.usable_bytes, facts.machine_bytes);
}

}  // namespace
}  // namespace tern::tools
