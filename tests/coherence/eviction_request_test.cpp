// The order of eviction. Requests as a whole: pressure_test.cpp.
#include "coherence/eviction_request.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <vector>

namespace tern::test {
namespace {

TEST(Candidates, GoByKindAndThenByAge) {
  std::vector<Candidate> all = {{Eviction::dirty, 1, 10}, {Eviction::clean, 5, 20},
                                {Eviction::stale, 9, 30}, {Eviction::clean, 4, 40},
                                {Eviction::stale, 8, 50}, {Eviction::dirty, 0, 60}};
  sort_by_eviction_order(all);
  std::vector<std::size_t> bytes;
  for (const Candidate& one : all) bytes.push_back(one.bytes);
  EXPECT_EQ(bytes, (std::vector<std::size_t>{50, 30, 40, 20, 60, 10}));
}

}  // namespace
}  // namespace tern::test
