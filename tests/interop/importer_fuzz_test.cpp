// Runs the fuzz targets of the importers on constant inputs.

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "support/arrow_fuzz.hpp"
#include "support/dlpack_fuzz.hpp"
#include "tern/buffer/foreign.hpp"

namespace tern {
namespace {

template <class Target>
void feed(Target target) {
  const std::size_t before = reclaim_deferred().count;
  for (unsigned seed = 0; seed < 3000; ++seed) {
    std::mt19937 random(seed);
    std::vector<std::byte> bytes(random() % 400);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
    SCOPED_TRACE(seed);
    target(bytes);
  }
  EXPECT_EQ(exported_memory().count, 0u);
  EXPECT_LE(reclaim_deferred().count, before);
}

TEST(ImporterFuzz, AnyTensorIsImportedOrRejectedAndDeletedOnce) { feed(test::fuzz_dlpack); }
TEST(ImporterFuzz, AnyTableIsImportedOrRejectedAndReleasedOnce) { feed(test::fuzz_arrow); }

}  // namespace
}  // namespace tern
