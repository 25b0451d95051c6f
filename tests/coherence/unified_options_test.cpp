#include "coherence/unified_options.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <initializer_list>
#include <memory>

#include "support/unified.hpp"
#include "tern/backends/catalog.hpp"
#include "tern/backends/sim.hpp"
#include "tern/coherence/unified_buffer.hpp"
#include "tern/memory/driver_resource.hpp"

namespace tern::test {
namespace {

struct Decided {
  bool checked = false, compare = false, guard = false;

  friend bool operator==(const Decided&, const Decided&) = default;
};

Decided decide(UnifiedOptions asked, const Config& config) {
  const Result<UnifiedOptions> made = try_decide(asked, config);
  EXPECT_TRUE(made) << made.failure().text();
  if (!made) return {};
  EXPECT_TRUE(made->checked && made->compare && made->guard);
  return {*made->checked, *made->compare, *made->guard};
}

/// The configuration with these checks on.
Config with(std::initializer_list<bool Config::*> checks) {
  Config config;
  for (bool Config::*const check : checks) config.*check = true;
  return config;
}

TEST(UnifiedOptions, AreTheConfigurationsWhereTheProgramSaysNothing) {
  const UnifiedOptions plain{.device = sim::open({})};
  EXPECT_EQ(decide(plain, {}), (Decided{}));
  EXPECT_EQ(decide(plain, with({&Config::checked})), (Decided{.checked = true}));
  EXPECT_EQ(decide(plain, with({&Config::check_poison})), (Decided{.checked = true}));
  EXPECT_EQ(decide(plain, with({&Config::check_checksum})), (Decided{.checked = true}));
  EXPECT_EQ(decide(plain, with({&Config::check_compare})), (Decided{.compare = true}));
  EXPECT_EQ(decide(plain, with({&Config::check_guard})), (Decided{.guard = true}));
}

TEST(UnifiedOptions, AreTheProgramsWhereItSaysSomething) {
  const Config everything = with({&Config::checked, &Config::check_poison, &Config::check_guard,
                                  &Config::check_checksum, &Config::check_compare});
  UnifiedOptions said{.device = sim::open({}), .checked = false, .compare = false, .guard = false};
  EXPECT_EQ(decide(said, everything), (Decided{}));
  said.checked = true;
  said.compare = said.guard = true;
  EXPECT_EQ(decide(said, {}), (Decided{true, true, true}));
}

/// What the program asks for in vain is refused, what the configuration does is left off.
Failure refuse_guard(UnifiedOptions asked, ErrorCode code) {
  EXPECT_EQ(decide(asked, with({&Config::check_guard})), (Decided{}));
  asked.guard = true;
  return refused(try_decide(asked, {}), code);
}

TEST(UnifiedOptions, GuardOnlyWhatCanBe) {
  const Device device = sim::open({}), host = open_device("host");
  EXPECT_EQ(refuse_guard({.device = host, .tag = "u"}, ErrorCode::unsupported).text(),
            "the pages of buffer 'u' cannot be guarded: 'host' accesses the host's memory "
            "directly. Turn UnifiedOptions::guard off, or use 'sim'.");
  EXPECT_EQ(refuse_guard({.device = device, .tag = "u", .pinned = Pinned::required},
                         ErrorCode::invalid_argument)
                .text(),
            "the pages of buffer 'u' cannot be guarded with Pinned::required: Tern guards only "
            "pageable memory that it allocates itself. Remove Pinned::required, or turn "
            "UnifiedOptions::guard off.");
  refuse_guard({.device = device, .resources = {{}, std::make_shared<DirectResource>(host)}},
               ErrorCode::invalid_argument);
  const UnifiedOptions named{.device = device,
                             .resources = {std::make_shared<DirectResource>(device)}};
  EXPECT_EQ(decide(named, with({&Config::check_guard})), (Decided{.guard = true}));
}

TEST(UnifiedOptions, LockNoPagesOfADeviceThatUsesTheHosts) {
  EXPECT_TRUE(try_decide({.device = open_device("host"), .pinned = Pinned::required}, {}));
  const Result<Device> opened = try_open_device("opencl:0");
  if (!opened || !opened->can(Capability::host_access)) GTEST_SKIP() << "there is none";
  const Failure no =
      refused(try_decide({.device = *opened, .tag = "u", .pinned = Pinned::required}, {}),
              ErrorCode::unsupported);
  EXPECT_EQ(no.text(),
            "buffer 'u' has no host copy to page-lock: 'opencl:0' uses the host's memory directly. "
            "Use Pinned::prefer.");
  EXPECT_TRUE(try_decide({.device = *opened}, {}));
  refuse_guard({.device = *opened}, ErrorCode::unsupported);
}

/// In a process of its own, because the configuration is read once in a process.
TEST(UnifiedOptionsDeathTest, ComeFromTheEnvironment) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        setenv("TERN_CHECK", "guard,poison", 1);
        const Device device = sim::open({});
        UnifiedBuffer<int> plain(Shape{10000}, {.device = device});
        const int poison = plain.discard_host()[0];
        UnifiedBuffer<int> told(Shape{10000}, {.device = device, .guard = false});
        static_cast<void>(told.discard_host());
        const bool is_right = plain.is_guarded() && !told.is_guarded() &&
                              static_cast<unsigned>(poison) == 0xCBCBCBCBu;
        std::_Exit(is_right ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace tern::test
