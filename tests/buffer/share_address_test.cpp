#include "buffer/share_address.hpp"

#include <gtest/gtest.h>

#include "support/refused.hpp"

namespace tern::share {
namespace {

Address sample_address() {
  Address address = {.pid = 1234, .socket = 0xfedc'ba98'7654'3210, .id = 17};
  for (std::size_t i = 0; i < address.secret.size(); ++i) {
    address.secret[i] = static_cast<std::uint8_t>(250 + i);
  }
  return address;
}

TEST(ShareAddress, IsReadAsItWasPrinted) {
  const std::string text = print(sample_address());
  EXPECT_EQ(text, "tern-share-1:1234:fedcba9876543210:17:fafbfcfdfeff00010203040506070809");
  const Result<Address> read = try_parse(text);
  ASSERT_TRUE(read) << read.failure().text();
  EXPECT_EQ(*read, sample_address());
}

TEST(ShareAddress, RefusesEveryOtherText) {
  const std::string right = print(sample_address());
  const std::string secret = right.substr(right.rfind(':') + 1);
  for (const std::string& text :
       {std::string(), std::string("tern-share-1"), right + ":", right + "0", " " + right,
        right.substr(0, right.size() - 1), "tern-share-2" + right.substr(12),
        "tern-share-1:0:1:1:" + secret, "tern-share-1:-1:1:1:" + secret,
        "tern-share-1:99999999999:1:1:" + secret, "tern-share-1:1:xyz:1:" + secret,
        "tern-share-1:1:1::" + secret, "tern-share-1:1:1:1:" + std::string(32, 'g'),
        "tern-share-1:1:1:1: " + secret.substr(1), std::string(100'000, ':')}) {
    const Failure failure = test::refused(try_parse(text), ErrorCode::bad_format);
    EXPECT_EQ(failure.string("field"), "handle");
  }
}

TEST(ShareAddress, HasSecretsThatDiffer) {
  Secret a = {}, b = {};
  ASSERT_TRUE(try_fill_random(a.data(), a.size()));
  ASSERT_TRUE(try_fill_random(b.data(), b.size()));
  EXPECT_NE(a, Secret());
  EXPECT_NE(a, b);
}

}  // namespace
}  // namespace tern::share
