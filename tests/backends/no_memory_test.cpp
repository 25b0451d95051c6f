#include "backends/no_memory.hpp"

#include <gtest/gtest.h>

namespace tern {
namespace {

TEST(NoMemory, SaysWhatItWasForAndHowMuch) {
  const Failure failure = no_memory_for("a stream", 64);
  EXPECT_EQ(failure.code(), ErrorCode::out_of_memory);
  EXPECT_EQ(failure.number("requested"), 64u);
  EXPECT_EQ(failure.text(), "the host could not allocate 64 B for a stream. Free host memory.");
}

}  // namespace
}  // namespace tern
