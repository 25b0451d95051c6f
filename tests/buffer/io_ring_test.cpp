#include "buffer/io_ring.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <string>

#include "support/ladder.hpp"
#include "support/temporary_folder.hpp"

namespace tern {
namespace {

class IoRingTest : public testing::Test {
 protected:
  void SetUp() override {
    if (const int error = ring_.open(); error != 0) GTEST_SKIP() << "io_uring: error " << error;
  }

  test::TemporaryFolder folder_;
  IoRing ring_;
};

TEST_F(IoRingTest, ReadsAndWritesManyRanges) {
  const test::Bytes bytes = test::sample(IoRing::entries * 100);
  const std::string path = folder_.write("a", {});
  const int file = open(path.c_str(), O_RDWR | O_CLOEXEC);
  test::Bytes read(bytes.size());
  for (const bool is_write : {true, false}) {
    test::Bytes source = bytes;
    std::byte* const memory = is_write ? source.data() : read.data();
    std::array<int, IoRing::entries> seen = {};
    for (unsigned i = 0; i < IoRing::entries; ++i) {
      ring_.put({.is_write = is_write,
                 .file = file,
                 .memory = memory + i * 100,
                 .bytes = 100,
                 .offset = i * 100,
                 .number = i});
    }
    for (unsigned done = 0; done < IoRing::entries;) {
      ASSERT_EQ(ring_.enter(1), 0);
      ring_.reap([&](std::uint64_t number, long result) {
        EXPECT_EQ(result, 100);
        ++seen[number];
        ++done;
      });
    }
    for (const int times : seen) EXPECT_EQ(times, 1);
  }
  EXPECT_EQ(read, bytes);
  close(file);
}

TEST_F(IoRingTest, ReportsTheErrorOfARequest) {
  std::byte one = {};
  const std::uint32_t position =
      ring_.put({.file = 1 << 20, .memory = &one, .bytes = 1, .number = 3});
  EXPECT_FALSE(ring_.is_submitted(position));
  ASSERT_EQ(ring_.enter(1), 0);
  EXPECT_TRUE(ring_.is_submitted(position));
  int outcomes = 0;
  ring_.reap([&](std::uint64_t number, long result) {
    EXPECT_EQ(number, 3u);
    EXPECT_EQ(result, -EBADF);
    ++outcomes;
  });
  EXPECT_EQ(outcomes, 1);
}

TEST_F(IoRingTest, CanBeOpenedAgain) {
  ring_.close();
  EXPECT_FALSE(ring_.is_open());
  EXPECT_EQ(ring_.open(), 0);
  EXPECT_TRUE(ring_.is_open());
}

}  // namespace
}  // namespace tern
