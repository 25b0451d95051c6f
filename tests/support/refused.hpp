// For calls that should be refused: says so where they are not, and gives the failure to look at.

#pragma once

#include <gtest/gtest.h>

#include "tern/core/error.hpp"
#include "tern/core/result.hpp"

namespace tern::test {

/// The failure; violation where there is none.
template <class T>
Failure refused(const Result<T>& result, ErrorCode code) {
  EXPECT_FALSE(result);
  if (result) return Failure(ErrorCode::violation);
  EXPECT_EQ(name(result.failure().code()), name(code)) << result.failure().text();
  return result.failure();
}

}  // namespace tern::test
