#include <gtest/gtest.h>

#include <unordered_set>
#include <vector>

#include "tern/coherence/hints.hpp"

namespace tern {
namespace {

using Policy = MigrationPolicy;

const std::vector<Policy> different = {
    Policy::none(),
    Policy::read_mostly(),
    Policy::prefer_device(DeviceId{1}),
    Policy::prefer_device(DeviceId{2}),
    Policy::prefer_host(),
    Policy::prefer_host_numa(0),
    Policy::prefer_host_numa(1),
    Policy::prefer_host_numa_current(),
    Policy::none().accessed_by(Place::host()),
    Policy::none().accessed_by(Place::device(DeviceId{2})),
    Policy::read_mostly().accessed_by(Place::host()),
    Policy::prefer_device(DeviceId{2}).accessed_by(Place::host()),
    Policy::prefer_device(DeviceId{2})
        .accessed_by(Place::host())
        .accessed_by(Place::device(DeviceId{1})),
};

// --- Policies are values

TEST(MigrationPolicy, EqualsOnlyItself) {
  std::unordered_set<std::size_t> hashes;
  for (std::size_t i = 0; i < different.size(); ++i) {
    for (std::size_t j = 0; j < different.size(); ++j) {
      EXPECT_EQ(different[i] == different[j], i == j) << i << " " << j;
    }
    hashes.insert(std::hash<Policy>{}(different[i]));
    EXPECT_EQ(different[i].is_default(), i == 0) << i;
  }
  EXPECT_EQ(hashes.size(), different.size());
}

TEST(MigrationPolicy, MeansTheSameHoweverItsAccessorsWereNamed) {
  const Place host = Place::host(), device = Place::device(DeviceId{1});
  const Policy one = Policy::prefer_host().accessed_by(device).accessed_by(host);
  const Policy other =
      Policy::prefer_host().accessed_by(host).accessed_by(device).accessed_by(host);
  EXPECT_EQ(one, other);
  EXPECT_EQ(std::hash<Policy>{}(one), std::hash<Policy>{}(other));
  EXPECT_EQ(one.accessors(), (std::vector<Place>{host, device}));
}

TEST(MigrationPolicy, SaysWhatItIsAndWhatIsOverridden) {
  EXPECT_EQ(Policy::none().text(), "Default");
  EXPECT_EQ(Policy::read_mostly().text(), "read-mostly");
  EXPECT_EQ(Policy::prefer_device(DeviceId{2}).text(), "prefer device 2");
  EXPECT_EQ(Policy::prefer_host().text(), "prefer host");
  EXPECT_EQ(Policy::prefer_host_numa(1).text(), "prefer host numa 1");
  EXPECT_EQ(Policy::prefer_host_numa_current().text(), "prefer host numa current");
  EXPECT_EQ(Policy::none().accessed_by(Place::host()).text(), "accessed by host");
  EXPECT_EQ(Policy::read_mostly().accessed_by(Place::host()).text(),
            "read-mostly, accessed by host (overridden by read-mostly)");
  EXPECT_EQ(Policy::prefer_device(DeviceId{2}).accessed_by(Place::host()).text(),
            "prefer device 2, accessed by host (overridden by prefer device 2)");
}

// --- Advice of a policy

TEST(MigrationPolicy, AdvisesInPairsOfWhatAndWhere) {
  using Pairs = std::vector<std::pair<Advice, Place>>;
  const Place second = Place::device(DeviceId{2});
  EXPECT_EQ(Policy::none().advice(), Pairs{});
  EXPECT_EQ(Policy::read_mostly().advice(), (Pairs{{Advice::set_read_mostly, Place::host()}}));
  EXPECT_EQ(Policy::prefer_device(DeviceId{2}).advice(),
            (Pairs{{Advice::set_preferred_location, second}}));
  EXPECT_EQ(Policy::prefer_host().advice(),
            (Pairs{{Advice::set_preferred_location, Place::host()}}));
  EXPECT_EQ(Policy::prefer_host_numa(3).advice(),
            (Pairs{{Advice::set_preferred_location, Place::host_numa(3)}}));
  EXPECT_EQ(Policy::prefer_host().accessed_by(second).accessed_by(Place::host()).advice(),
            (Pairs{{Advice::set_preferred_location, Place::host()},
                   {Advice::set_accessed_by, Place::host()},
                   {Advice::set_accessed_by, second}}));
}

TEST(MigrationPolicy, NamesEveryAdvice) {
  EXPECT_STREQ(name(Advice::set_read_mostly), "set read-mostly");
  EXPECT_STREQ(name(Advice::unset_read_mostly), "unset read-mostly");
  EXPECT_STREQ(name(Advice::set_preferred_location), "set preferred location");
  EXPECT_STREQ(name(Advice::unset_preferred_location), "unset preferred location");
  EXPECT_STREQ(name(Advice::set_accessed_by), "set accessed by");
  EXPECT_STREQ(name(Advice::unset_accessed_by), "unset accessed by");
}

}  // namespace
}  // namespace tern
