// For calls that should fail: expects the failure, and returns it for further checks.

#pragma once

#include <gtest/gtest.h>

#include "tern/core/error.hpp"
#include "tern/core/result.hpp"

namespace tern::test {

/// Returns the failure. If the call succeeded, returns a violation.
template <class T>
Failure refused(const Result<T>& result, ErrorCode code) {
  EXPECT_FALSE(result);
  if (result) return Failure(ErrorCode::violation);
  EXPECT_EQ(name(result.failure().code()), name(code)) << result.failure().text();
  return result.failure();
}

}  // namespace tern::test
