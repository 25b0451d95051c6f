#include "backends/host/machine.hpp"

#include <gtest/gtest.h>

#include "tern/core/bytes.hpp"

namespace tern::host {
namespace {

TEST(Machine, HasANameAndASystem) {
  EXPECT_FALSE(processor_name().empty());
  EXPECT_EQ(processor_name().find('\n'), std::string::npos);
  EXPECT_TRUE(system_version().starts_with("Linux "));
}

TEST(Machine, HasMemory) {
  EXPECT_GE(total_bytes(), 64 * mib);
  EXPECT_GT(available_bytes(), 0u);
  EXPECT_LE(available_bytes(), total_bytes());
  EXPECT_TRUE(is_power_of_two(system_page_bytes()));
  EXPECT_GE(system_page_bytes(), 4 * kib);
}

TEST(Machine, HasNoNumaNodeItCannotHave) { EXPECT_FALSE(has_numa_node(4'000'000'000u)); }

}  // namespace
}  // namespace tern::host
