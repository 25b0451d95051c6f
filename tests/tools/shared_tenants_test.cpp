#include "tools/top/shared_tenants.hpp"

#include <gtest/gtest.h>

#include "tern/core/bytes.hpp"

namespace tern::tools {
namespace {

TEST(SharedTenants, ShowsEachTenantTheLargestFirst) {
  const SharedBudgetState state = {
      .name = "gpu0",
      .limit_bytes = 4 * gib,
      .charged_bytes = 3 * gib + 512 * mib,
      .peak_bytes = 4 * gib,
      .tenants = {{.name = "server",
                   .pid = 41,
                   .is_alive = false,
                   .charged_bytes = 512 * mib,
                   .peak_bytes = gib,
                   .limit_bytes = 2 * gib},
                  {.name = "tra\niner",
                   .pid = 7,
                   .charged_bytes = 3 * gib,
                   .peak_bytes = 3 * gib,
                   .limit_bytes = max_request_bytes,
                   .asked_bytes = mib,
                   .answers = 1,
                   .evicted_bytes = 2 * mib,
                   .trimmed_bytes = 4 * mib}}};
  EXPECT_EQ(shared_text(state),
            "shared budget gpu0: 3.5 GiB of 4.0 GiB in use, peak 4.0 GiB, 2 tenants\n\n"
            "tenant                 process     charged        peak       limit       asked     "
            "evicted     trimmed  state\n"
            "tra iner                     7     3.0 GiB     3.0 GiB        none     1.0 MiB     "
            "2.0 MiB     4.0 MiB  alive\n"
            "server                      41   512.0 MiB     1.0 GiB     2.0 GiB                 "
            "                     dead\n");
}

TEST(SharedTenants, ShowsABudgetWithoutTenants) {
  EXPECT_EQ(shared_text({.name = "a", .limit_bytes = max_request_bytes}),
            "shared budget a: 0 B in use, peak 0 B, 0 tenants\n");
}

}  // namespace
}  // namespace tern::tools
