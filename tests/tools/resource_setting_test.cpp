#include "tools/replay/resource_setting.hpp"

#include <gtest/gtest.h>

#include "tern/backends/catalog.hpp"
#include "tern/core/bytes.hpp"
#include "tern/core/error.hpp"

namespace tern::tools {
namespace {

TEST(ResourceSettingTest, IsParsedFromTheTextThatItWrites) {
  for (const char* text :
       {"pool", "async", "driver", "pool:segments", "pool:pages:reuse", "pool:independence",
        "pool:thread_caches:limit=8GiB:initial=3MiB:trim=1537", "pool:trim=0"}) {
    EXPECT_EQ(try_parse_resource_settings(text).value().at(0).text(), text);
  }
  const ResourceSetting setting =
      try_parse_resource_settings("pool:reuse:limit=1.5GiB:segments").value().at(0);
  EXPECT_EQ(setting.text(), "pool:segments:reuse:limit=1536MiB");
  EXPECT_EQ(setting.pool.limit_bytes, 1536 * mib);
  EXPECT_EQ(setting.pool.preference, PoolPreference::reuse);
  EXPECT_FALSE(setting.pool.auto_trim);
}

TEST(ResourceSettingTest, AListIsSeparatedByCommas) {
  const std::vector<ResourceSetting> all =
      try_parse_resource_settings("pool,driver,pool:reuse").value();
  ASSERT_EQ(all.size(), 3u);
  EXPECT_EQ(all[1].kind, ResourceSetting::Kind::driver);
  EXPECT_EQ(all[2].text(), "pool:reuse");
}

TEST(ResourceSettingTest, OtherTextsAreRefusedWithWhatIsAccepted) {
  for (const char* text : {"", "pol", "pool:", "pool:strict", "pool:limit", "pool:limit=",
                           "pool:limit=0", "pool:limit=-1", "pool:limit=17EiB", "pool:trim=x",
                           "async:reuse", "driver:", "pool,,async", "pool:reuse:", "pool, async"}) {
    const Result<std::vector<ResourceSetting>> refused = try_parse_resource_settings(text);
    ASSERT_FALSE(refused) << text;
    EXPECT_EQ(refused.failure().code(), ErrorCode::invalid_argument);
    EXPECT_NE(refused.failure().text().find("Accepted: pool, async or driver"), std::string::npos);
  }
}

TEST(ResourceSettingTest, MakesTheResource) {
  const Device device = open_device("sim:0?check=off");
  EXPECT_STREQ(make_resource(device, {})->name(), "pool");
  EXPECT_STREQ(make_resource(device, {.kind = ResourceSetting::Kind::async})->name(), "async");
  EXPECT_STREQ(make_resource(device, {.kind = ResourceSetting::Kind::driver})->name(), "direct");
}

}  // namespace
}  // namespace tern::tools
