#include "core/no_host_memory.hpp"

#include <gtest/gtest.h>

namespace tern {
namespace {

TEST(NoHostMemory, SaysWhatTheMemoryWasFor) {
  const Failure failure = no_host_memory("a list of uses");
  EXPECT_EQ(failure.code(), ErrorCode::out_of_memory);
  EXPECT_EQ(failure.string("what"), "a list of uses");
  EXPECT_EQ(failure.text(),
            "the host could not allocate memory for a list of uses. Free host memory.");
}

TEST(NoHostMemory, SaysHowMuchIfThatIsKnown) {
  const Failure failure = no_host_memory(64, "a stream");
  EXPECT_EQ(failure.code(), ErrorCode::out_of_memory);
  EXPECT_EQ(failure.number("requested"), 64u);
  EXPECT_EQ(failure.text(), "the host could not allocate 64 B for a stream. Free host memory.");
}

TEST(NoHostMemory, NamesTheCallSite) {
  const CallSite site = CallSite::here();
  EXPECT_EQ(no_host_memory("a shape", site).site().line, site.line);
  EXPECT_EQ(no_host_memory(8, "a shape", site).site().line, site.line);
}

}  // namespace
}  // namespace tern
