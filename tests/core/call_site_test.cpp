#include "tern/core/call_site.hpp"

#include <gtest/gtest.h>

#include <string_view>
#include <type_traits>

#include "tern/core/error.hpp"

namespace tern {
namespace {

CallSite asked_from(CallSite site = CallSite::here()) { return site; }
CallSite asked_through_another(CallSite site = CallSite::here()) { return asked_from(site); }

TEST(CallSite, IsTheLineOfTheCallerAndNotOfTheCalled) {
  const CallSite site = asked_from();
  EXPECT_EQ(site.line, static_cast<std::uint32_t>(__LINE__ - 1));
  EXPECT_TRUE(std::string_view(site.file).ends_with("call_site_test.cpp")) << site.file;
  EXPECT_STREQ(site.function, "TestBody");
  EXPECT_TRUE(site.is_known());
}

TEST(CallSite, KeepsTheUsersLineWhenItIsPassedOn) {
  const CallSite site = asked_through_another();
  EXPECT_EQ(site.line, static_cast<std::uint32_t>(__LINE__ - 1));
}

TEST(CallSite, OfAFailureIsUnknownUntilTheCallersIsGiven) {
  EXPECT_FALSE(Failure(ErrorCode::capacity).site().is_known());
  const Failure moved = Failure(ErrorCode::capacity).at({"user.cpp", "main", 7});
  EXPECT_STREQ(moved.site().file, "user.cpp");
  EXPECT_STREQ(moved.site().function, "main");
  EXPECT_EQ(moved.site().line, 7u);
}

TEST(CallSite, IsUnknownUntilItIsFilled) {
  constexpr CallSite nowhere;
  static_assert(!nowhere.is_known());
  EXPECT_STREQ(nowhere.file, "");
  EXPECT_STREQ(nowhere.function, "");
}

TEST(CallSite, IsThreePlainWords) {
  static_assert(std::is_trivially_copyable_v<CallSite>);
  EXPECT_LE(sizeof(CallSite), 3 * sizeof(void*));
}

}  // namespace
}  // namespace tern
