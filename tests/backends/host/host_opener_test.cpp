#include "backends/host/host_opener.hpp"

#include <gtest/gtest.h>

#include "backends/host/machine.hpp"
#include "tern/backends/catalog.hpp"

namespace tern::host {
namespace {

TEST(HostOpener, IsAlwaysThereWithOneDevice) {
  const Opener host = opener();
  EXPECT_STREQ(host.name, "host");
  EXPECT_EQ(host.absence({}), "");
  EXPECT_EQ(host.device_count({}), 1u);
}

TEST(HostOpener, TakesItsOptions) {
  for (const std::string_view spec :
       {"host?pages=huge", "host?pages=HUGE", "host?pages=normal", "host?threads=1",
        "host?threads=1024", "host?threads=3&pages=normal"}) {
    const Result<std::unique_ptr<Backend>> backend = opener().open(parse_device_spec(spec));
    ASSERT_TRUE(backend) << spec;
    EXPECT_EQ((*backend)->info().spec, parse_device_spec(spec).text());
    EXPECT_EQ((*backend)->info().backend, "host");
  }
}

TEST(HostOpener, RefusesOptionsItDoesNotTakeAndSaysWhatItDoes) {
  struct Bad {
    std::string_view spec, accepts;
  };
  for (const Bad& bad : {Bad{"host?pages=big", "huge or normal"},
                         {"host?pages=huge ", "huge or normal"},
                         {"host?threads=0", "a whole number from 1 to 1024"},
                         {"host?threads=1025", "a whole number from 1 to 1024"},
                         {"host?threads=-1", "a whole number from 1 to 1024"},
                         {"host?threads=2x", "a whole number from 1 to 1024"},
                         {"host?threads=99999999999999999999", "a whole number from 1 to 1024"},
                         {"host?numa=x", "a NUMA node number of this machine"},
                         {"host?numa=1023", "a NUMA node number of this machine"},
                         {"host?numa=4000000000", "a NUMA node number of this machine"}}) {
    const auto refused = opener().open(parse_device_spec(bad.spec));
    ASSERT_FALSE(refused) << bad.spec;
    EXPECT_EQ(refused.failure().code(), ErrorCode::invalid_device);
    EXPECT_EQ(refused.failure().string("accepts"), bad.accepts) << bad.spec;
  }
  EXPECT_EQ(opener().open(parse_device_spec("host?colour=red")).failure().text(),
            "'host?colour=red' cannot be opened: the host device has no option 'colour'. Its "
            "options are pages, numa and threads.");
}

TEST(HostOpener, SaysWhatItTakesHoweverLongTheValue) {
  const std::string spec = "host?pages=" + std::string(1000, 'x');
  const auto refused = opener().open(parse_device_spec(spec));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.failure().string("accepts"), "huge or normal");
  EXPECT_EQ(refused.failure().string("key"), "pages");
}

TEST(HostOpener, BindsToANodeOfTheMachine) {
  if (!has_numa_node(0)) GTEST_SKIP() << "the system names no NUMA node";
  const auto backend = opener().open(parse_device_spec("host?numa=0"));
  ASSERT_TRUE(backend);
  const Result<void*> address = (*backend)->allocate(MemoryKind::device, 100, 64, {}, {});
  if (!address) {
    // A sandbox may forbid mbind; then it says so.
    EXPECT_EQ(address.failure().code(), ErrorCode::driver);
    EXPECT_EQ(address.failure().string("call"), "mbind");
    return;
  }
  EXPECT_TRUE((*backend)->release(*address, {}));
}

}  // namespace
}  // namespace tern::host
