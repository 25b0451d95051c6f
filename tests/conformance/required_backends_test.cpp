#include <gtest/gtest.h>

#include <algorithm>

#include "tern/backends/catalog.hpp"
#include "tern/detail/core/config.hpp"

namespace tern {
namespace {

TEST(RequiredBackends, AreAvailable) {
  const std::vector<BackendListing> backends = list_backends();
  for (const std::string& required : config().require) {
    const auto found = std::ranges::find(backends, required, &BackendListing::name);
    ASSERT_NE(found, backends.end())
        << "TERN_REQUIRE names '" << required << "', which is no backend.";
    EXPECT_TRUE(found->is_available) << "TERN_REQUIRE: " << found->reason;
  }
}

}  // namespace
}  // namespace tern
