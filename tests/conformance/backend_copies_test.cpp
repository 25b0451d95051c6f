// Copies in and out, in one and two dimensions.

#include <limits>

#include "support/ladder.hpp"

namespace tern::test {
namespace {

constexpr std::byte guard{0xA5};

class Copies : public Ladder {
 protected:
  /// A picture of `rows` lines of `pitch` bytes, on the device.
  Copy2D picture(void* destination, const void* source) const {
    return {destination, 16, source, 24, 10, 4};
  }
};
TERN_CLIMB(Copies);

TEST_P(Copies, InAndOutAtEverySizeThatMatters) {
  for (const std::size_t bytes :
       {std::size_t{1}, std::size_t{63}, std::size_t{64}, std::size_t{65}, 4 * kib - 1, 4 * kib,
        4 * kib + 1, mib - 1, mib, mib + 1, 8 * mib + 13}) {
    const Block block(device, bytes + 128);
    write(block.get(), Bytes(bytes + 128, guard));
    const Bytes in = sample(bytes);
    write(block.get() + 64, in);

    Bytes expected(bytes + 128, guard);
    std::copy(in.begin(), in.end(), expected.begin() + 64);
    EXPECT_TRUE(read(block.get(), bytes + 128) == expected) << bytes;
  }
}

TEST_P(Copies, BetweenTwoBlocksOfTheDeviceAtOddAddresses) {
  const Block from(device, 3 * mib);
  const Block to(device, 3 * mib);
  write(from.get(), sample(3 * mib));
  write(to.get(), Bytes(3 * mib, guard));
  stream.copy(to.get() + 3, from.get() + 7, 2 * mib + 1);
  const Bytes out = read(to.get(), 3 * mib);
  const Bytes in = sample(3 * mib);
  EXPECT_TRUE(std::equal(out.begin() + 3, out.begin() + 3 + 2 * mib + 1, in.begin() + 7));
  EXPECT_EQ(out[2], guard);
  EXPECT_EQ(out[3 + 2 * mib + 1], guard);
}

TEST_P(Copies, ManyRangesAtOnce) {
  // More than fit one call of a driver, to and from the host, of several sizes and none.
  constexpr std::size_t count = 700, stride = 256;
  const Block block(device, count * stride);
  const Bytes in = sample(count * stride);
  Bytes out(count * stride);
  std::vector<CopyRange> there, back;
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t bytes = i % 9 == 0 ? 0 : 1 + i % stride;
    there.push_back({block.get() + i * stride, in.data() + i * stride, bytes});
    back.push_back({out.data() + i * stride, block.get() + i * stride, bytes});
  }
  stream.copy_batch(there);
  stream.copy_batch(back);
  stream.synchronize();
  for (std::size_t i = 0; i < count; ++i) {
    ASSERT_EQ(std::memcmp(back[i].destination, there[i].source, back[i].bytes), 0) << i;
  }
}

TEST_P(Copies, NothingForZeroBytesWhateverTheAddresses) {
  EXPECT_TRUE(stream.try_copy(nullptr, nullptr, 0));
  EXPECT_TRUE(stream.try_copy_2d({}));
  EXPECT_TRUE(stream.try_copy_2d({nullptr, 0, nullptr, 0, 0, 5}));
  EXPECT_TRUE(stream.try_copy_2d({nullptr, 0, nullptr, 0, 5, 0}));
}

TEST_P(Copies, NothingFromOrToNull) {
  const Block block(device, 64);
  for (const auto& refused :
       {stream.try_copy(nullptr, block.get(), 64), stream.try_copy(block.get(), nullptr, 64)}) {
    expect_refused(refused, ErrorCode::invalid_argument);
    EXPECT_EQ(refused.failure().string("value"), "null");
  }
}

TEST_P(Copies, NothingThatOverlaps) {
  const Block block(device, 300);
  for (const std::ptrdiff_t distance : {0, 1, 99, -1, -99}) {
    expect_refused(stream.try_copy(block.get() + 100 + distance, block.get() + 100, 100),
                   ErrorCode::invalid_argument);
  }
  EXPECT_TRUE(stream.try_copy(block.get() + 200, block.get() + 100, 100));
  EXPECT_TRUE(stream.try_copy(block.get(), block.get() + 100, 100));
  stream.synchronize();
}

TEST_P(Copies, NothingThatRunsPastTheEndOfMemory) {
  const Block block(device, 64);
  Bytes host(64);
  for (const std::size_t bytes : {std::numeric_limits<std::size_t>::max(), max_request_bytes + 1,
                                  static_cast<std::size_t>(-1)}) {
    const Result<void> refused = stream.try_copy(block.get(), host.data(), bytes);
    expect_refused(refused, ErrorCode::size_overflow);
    EXPECT_EQ(refused.failure().number("bytes"), bytes);
  }
}

TEST_P(Copies, RowsBetweenPitchesAndNothingBesideThem) {
  const Block from(device, 4 * 24);
  const Block to(device, 4 * 16);
  const Bytes in = sample(4 * 24);
  write(from.get(), in);
  write(to.get(), Bytes(4 * 16, guard));
  stream.copy_2d(picture(to.get(), from.get()));
  const Bytes out = read(to.get(), 4 * 16);
  for (std::size_t row = 0; row < 4; ++row) {
    for (std::size_t column = 0; column < 16; ++column) {
      EXPECT_EQ(out[row * 16 + column], column < 10 ? in[row * 24 + column] : guard);
    }
  }
}

TEST_P(Copies, LargePicturesOfManyAndOfFewRows) {
  for (const auto& [height, width] :
       {std::pair<std::size_t, std::size_t>{1000, 3001}, {1, 3 * mib}, {7, 300'001}}) {
    const std::size_t pitch = width + 5;
    const Block from(device, pitch * height);
    const Block to(device, width * height);
    const Bytes in = sample(pitch * height);
    write(from.get(), in);
    stream.copy_2d({to.get(), width, from.get(), pitch, width, height});
    const Bytes out = read(to.get(), width * height);
    for (std::size_t row = 0; row < height; ++row) {
      const auto line = out.begin() + static_cast<std::ptrdiff_t>(row * width);
      ASSERT_TRUE(std::equal(line, line + static_cast<std::ptrdiff_t>(width),
                             in.begin() + static_cast<std::ptrdiff_t>(row * pitch)))
          << row << " of " << height;
    }
  }
}

TEST_P(Copies, NoRowsThatEachBadParameterWouldSpoil) {
  const Block from(device, 4 * 24);
  const Block to(device, 4 * 16);
  const auto refuse = [&](auto change, ErrorCode code) {
    Copy2D copy = picture(to.get(), from.get());
    change(copy);
    expect_refused(stream.try_copy_2d(copy), code);
  };
  refuse([](Copy2D& c) { c.destination_pitch_bytes = 9; }, ErrorCode::invalid_argument);
  refuse([](Copy2D& c) { c.source_pitch_bytes = 9; }, ErrorCode::invalid_argument);
  refuse([](Copy2D& c) { c.destination = nullptr; }, ErrorCode::invalid_argument);
  refuse([](Copy2D& c) { c.source = nullptr; }, ErrorCode::invalid_argument);
  refuse([](Copy2D& c) { c.width_bytes = 17; }, ErrorCode::invalid_argument);
  refuse([](Copy2D& c) { c.destination = const_cast<void*>(c.source); },
         ErrorCode::invalid_argument);
  refuse([](Copy2D& c) { c.height = std::numeric_limits<std::size_t>::max(); },
         ErrorCode::size_overflow);
  refuse([](Copy2D& c) { c.height = std::numeric_limits<std::size_t>::max() / 20; },
         ErrorCode::size_overflow);
  refuse([](Copy2D& c) { c.source_pitch_bytes = std::numeric_limits<std::size_t>::max(); },
         ErrorCode::size_overflow);
  Copy2D tight = picture(to.get(), from.get());
  tight.destination_pitch_bytes = tight.source_pitch_bytes = tight.width_bytes;
  EXPECT_TRUE(stream.try_copy_2d(tight));
  stream.synchronize();
}

TEST_P(Copies, FromAPeerOnlyIfItCan) {
  const Block from(device, 64), to(device, 64);
  write(from.get(), sample(64));
  const Result<void> copied = stream.try_copy_from_peer(to.get(), device, from.get(), 64);
  if (!can(Capability::peer_copies)) {
    expect_unsupported(copied, Capability::peer_copies, device);
    return;
  }
  ASSERT_TRUE(copied);
  EXPECT_EQ(read(to.get(), 64), sample(64));
}

}  // namespace
}  // namespace tern::test
