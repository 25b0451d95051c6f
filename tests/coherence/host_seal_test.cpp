#include "coherence/host_seal.hpp"

#include <gtest/gtest.h>

#include <array>
#include <optional>

namespace tern {
namespace {

class HostSealTest : public testing::Test {
 protected:
  void seal(ByteRange range) { seals.set(id, bytes.data(), bytes.size(), range, CallSite::here()); }
  std::optional<HostSeal::Broken> broken(ByteRange range = {0, 200}) {
    return seals.take_broken(id, bytes.data(), range);
  }

  const StorageId id{7};
  std::array<std::byte, 200> bytes = {};
  HostSeal seals;
};

TEST_F(HostSealTest, TellsOnceWhatHasChanged) {
  EXPECT_FALSE(broken());
  seal({0, 200});
  EXPECT_FALSE(broken());
  bytes[130] = std::byte{1};
  bytes[199] = std::byte{1};
  const std::optional<HostSeal::Broken> found = broken();
  ASSERT_TRUE(found);
  EXPECT_EQ(found->range, (ByteRange{128, 200}));
  EXPECT_NE(found->sealed_at.line, 0u);
  EXPECT_FALSE(broken());
}

TEST_F(HostSealTest, TellsOneRunAfterTheOther) {
  seal({0, 200});
  bytes[0] = bytes[190] = std::byte{1};
  EXPECT_EQ(broken()->range, (ByteRange{0, 64}));
  EXPECT_EQ(broken()->range, (ByteRange{128, 192}));
  EXPECT_FALSE(broken());
}

TEST_F(HostSealTest, KnowsOnlyPartsThatWereWhollyInside) {
  seal({1, 191});
  bytes[63] = bytes[192] = std::byte{1};
  EXPECT_FALSE(broken());
  bytes[64] = std::byte{1};
  EXPECT_TRUE(broken());
}

TEST_F(HostSealTest, LooksAtPartsThatTouchTheRange) {
  seal({0, 200});
  bytes[0] = std::byte{1};
  EXPECT_FALSE(broken({64, 200}));
  EXPECT_FALSE(broken({10, 10}));
  EXPECT_TRUE(broken({63, 64}));
}

TEST_F(HostSealTest, ForgetsPartsOfWhichSomeMayBeWritten) {
  seal({0, 200});
  seals.forget({70, 71});
  seals.forget({500, 600});
  bytes[64] = bytes[127] = std::byte{1};
  EXPECT_FALSE(broken());
  bytes[63] = std::byte{1};
  EXPECT_TRUE(broken());
}

TEST_F(HostSealTest, KnowsNothingOfOtherMemory) {
  seal({0, 200});
  bytes[0] = std::byte{1};
  EXPECT_FALSE(seals.take_broken(StorageId{8}, bytes.data(), {0, 200}));
  seals.set(StorageId{8}, bytes.data(), bytes.size(), {0, 64}, CallSite::here());
  EXPECT_FALSE(broken());
  EXPECT_FALSE(seals.take_broken(StorageId{8}, bytes.data(), {0, 200}));
}

TEST_F(HostSealTest, TellsSwappedWordsApart) {
  bytes[0] = std::byte{1};
  bytes[8] = std::byte{2};
  seal({0, 200});
  std::swap(bytes[0], bytes[8]);
  EXPECT_TRUE(broken());
}

}  // namespace
}  // namespace tern
