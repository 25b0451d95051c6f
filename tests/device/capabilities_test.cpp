#include <gtest/gtest.h>

#include <set>
#include <string>

#include "tern/device/device_info.hpp"

namespace tern {
namespace {

TEST(Capabilities, BeginWithNone) {
  for (const Capability capability : all_capabilities) {
    EXPECT_FALSE(Capabilities().has(capability)) << name(capability);
  }
}

TEST(Capabilities, HaveWhatWasListedAndNothingElse) {
  const Capabilities some = {Capability::kernels, Capability::host_access};
  for (const Capability capability : all_capabilities) {
    const bool is_listed =
        capability == Capability::kernels || capability == Capability::host_access;
    EXPECT_EQ(some.has(capability), is_listed) << name(capability);
  }
}

TEST(Capabilities, LoseOneAtATime) {
  const Capabilities both = {Capability::kernels, Capability::advice};
  EXPECT_EQ(both.without(Capability::kernels), Capabilities{Capability::advice});
  EXPECT_EQ(both.without(Capability::prefetch), both);
  EXPECT_TRUE(both.has(Capability::kernels));
}

TEST(Capabilities, AreNamedAndExplainedEach) {
  std::set<std::string_view> names, meanings;
  for (const Capability capability : all_capabilities) {
    names.insert(name(capability));
    meanings.insert(meaning(capability));
  }
  EXPECT_EQ(names.size(), all_capabilities.size());
  EXPECT_EQ(meanings.size(), all_capabilities.size());
  EXPECT_EQ(name(Capability::stream_ordered_memory), "stream_ordered_memory");
  EXPECT_EQ(meaning(Capability::kernels), "launching work");
  EXPECT_EQ(name(static_cast<Capability>(200)), "unknown");
  EXPECT_EQ(meaning(static_cast<Capability>(200)), "unknown");
}

TEST(MemoryKind, HasANameForEach) {
  std::set<std::string_view> names;
  for (int kind = 0; kind <= static_cast<int>(MemoryKind::mapped); ++kind) {
    names.insert(name(static_cast<MemoryKind>(kind)));
  }
  EXPECT_EQ(names, (std::set<std::string_view>{"host", "pinned", "registered", "device", "managed",
                                               "mapped"}));
  EXPECT_EQ(name(static_cast<MemoryKind>(99)), "unknown");
}

}  // namespace
}  // namespace tern
