#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "support/copy_places.hpp"
#include "support/gate.hpp"
#include "support/ladder.hpp"
#include "tern/buffer/buffer.hpp"
#include "tern/memory/default_resource.hpp"

namespace tern::test {
namespace {

class BufferBytes : public Ladder {
 protected:
  void TearDown() override {
    Ladder::TearDown();
    expect_no_findings(device);
  }
};
TERN_CLIMB(BufferBytes);

TEST_P(BufferBytes, AreCopiedInAndOutOfTheViewOnly) {
  for (const CopyPlace& place : places_of(device, "")) {
    Buffer whole = place.holding(Bytes(48, std::byte{7}));
    Buffer view = whole.byte_view(3, 40);
    const Bytes in = counted(40);
    view.try_copy_from(in.data(), 40).value();
    EXPECT_TRUE(bytes_of(view) == in) << place.name;
    Bytes expected(48, std::byte{7});
    std::copy(in.begin(), in.end(), expected.begin() + 3);
    EXPECT_TRUE(bytes_of(whole) == expected) << place.name;
  }
}

TEST_P(BufferBytes, MustMatchTheSizeOfTheView) {
  Buffer view = Buffer(device, {48}, DType::byte).byte_view(0, 40);
  Bytes memory(48);
  for (const std::size_t bytes : {0u, 39u, 41u}) {
    for (const Result<void>& refused :
         {view.try_copy_from(memory.data(), bytes), view.try_copy_to(memory.data(), bytes)}) {
      ASSERT_FALSE(refused);
      EXPECT_EQ(refused.failure().code(), ErrorCode::size_mismatch);
      EXPECT_EQ(refused.failure().number("expected"), 40u);
      EXPECT_EQ(refused.failure().number("actual"), bytes);
    }
  }
  expect_refused(view.try_copy_from(nullptr, 40), ErrorCode::invalid_argument);
  expect_refused(view.try_copy_to(memory.data(), 40), ErrorCode::never_written);
  EXPECT_FALSE(view.is_allocated());
  view.try_copy_from(memory.data(), 40).value();
  expect_refused(view.try_copy_to(nullptr, 40), ErrorCode::invalid_argument);
}

TEST_P(BufferBytes, AreCopiedInStreamOrder) {
  for (const CopyPlace& place : places_of(device, "")) {
    Buffer whole = place.holding(Bytes(48, std::byte{7}));
    Buffer view = whole.byte_view(3, 40);
    const Stream own(view.device());
    const Bytes in = counted(40);
    Bytes out(40);
    view.try_copy_from(in.data(), 40, own).value();
    const Mark copied = view.try_copy_to(out.data(), 40, own).value();
    Device::try_wait(copied).value();
    EXPECT_TRUE(out == in) << place.name;
    EXPECT_EQ(bytes_of(whole)[2], std::byte{7}) << place.name;
    EXPECT_EQ(bytes_of(whole)[43], std::byte{7}) << place.name;
  }
}

TEST_P(BufferBytes, CopiedInStreamOrderMustMatchTheSizeOfTheView) {
  Buffer view = Buffer(device, {48}, DType::byte).byte_view(0, 40);
  Bytes memory(48);
  for (const std::size_t bytes : {0u, 39u, 41u}) {
    expect_refused(view.try_copy_from(memory.data(), bytes, stream), ErrorCode::size_mismatch);
    expect_refused(view.try_copy_to(memory.data(), bytes, stream), ErrorCode::size_mismatch);
  }
  expect_refused(view.try_copy_from(nullptr, 40, stream), ErrorCode::invalid_argument);
  expect_refused(view.try_copy_to(memory.data(), 40, stream), ErrorCode::never_written);
  EXPECT_FALSE(view.is_allocated());
  std::vector<float> others(10);
  Buffer typed(device, {10}, DType::i32);
  expect_refused(typed.try_copy_from(std::span<const float>(others), stream),
                 ErrorCode::type_mismatch);
  EXPECT_EQ(Buffer(device, {0}, DType::byte).try_copy_to(nullptr, 0, stream).value().stream,
            stream.id());
}

TEST_P(BufferBytes, OfBooleansAreCopiedToAVector) {
  const bool values[] = {true, false, true, true};
  Buffer buffer(device, {4}, DType::boolean);
  buffer.copy_from(std::span<const bool>(values), stream);
  EXPECT_EQ(buffer.to_vector<bool>(), (std::vector<bool>{true, false, true, true}));
}

TEST_P(BufferBytes, AreFilledWithPatternsOfEveryWidth) {
  for (const CopyPlace& place : places_of(device, "")) {
    for (std::size_t width = 1; width <= 16; ++width) {
      Pattern pattern;
      pattern.width_bytes = width;
      const Bytes bytes = counted(width, static_cast<unsigned>(width));
      std::memcpy(pattern.bytes, bytes.data(), width);
      const Buffer whole = place.holding(Bytes(width * 11 + 2));
      Buffer view = whole.byte_view(1, width * 11);
      ASSERT_TRUE(view.try_fill_bytes(pattern, stream)) << place.name;
      Bytes expected(width * 11 + 2);
      for (std::size_t i = 0; i < width * 11; ++i) expected[1 + i] = bytes[i % width];
      EXPECT_TRUE(bytes_of(whole) == expected) << place.name << " " << width;
    }
  }
}

TEST_P(BufferBytes, AreClonedToMemoryOfTheSameKindAndResource) {
  for (const CopyPlace& place : places_of(device, "")) {
    const Bytes in = counted(1001);
    const Buffer buffer = place.holding(in).as<std::int8_t>();
    const Buffer clone = buffer.slice(1, 1000).reshape({10, 100}).clone(stream);
    EXPECT_NE(clone.id(), buffer.id());
    EXPECT_EQ(clone.shape(), Shape({10, 100}));
    EXPECT_EQ(clone.dtype(), DType::i8);
    EXPECT_TRUE(bytes_of(clone) == Bytes(in.begin() + 1, in.end())) << place.name;
    if (buffer.storage()->resource()) {
      EXPECT_EQ(clone.storage()->resource(), buffer.storage()->resource());
      EXPECT_EQ(clone.kind(), buffer.kind());
    }
  }
}

class BufferBytesRules : public testing::Test {
 protected:
  Device device = sim::open({});
  Stream stream{device};
};

TEST_F(BufferBytesRules, OfNoBufferAreRefused) {
  Buffer none;
  std::byte one{};
  EXPECT_EQ(none.try_copy_to(&one, 0).failure().code(), ErrorCode::not_allocated);
  EXPECT_EQ(none.try_copy_from(&one, 0).failure().code(), ErrorCode::not_allocated);
  EXPECT_EQ(none.try_clone(stream).failure().code(), ErrorCode::not_allocated);
  EXPECT_EQ(none.try_fill_bytes({}, stream).failure().code(), ErrorCode::not_allocated);
}

TEST_F(BufferBytesRules, AreNotCopiedByAStreamOfAnotherDeviceOrAFileByAStream) {
  const Device other = sim::open({});
  Buffer buffer(device, {8}, DType::byte);
  Bytes memory(8);
  const Result<Mark> foreign = buffer.try_copy_from(memory.data(), 8, Stream(other));
  expect_refused(foreign, ErrorCode::device_mismatch);
  EXPECT_EQ(foreign.failure().string("a"), device.spec());
  auto file = std::make_shared<ServedFile>();
  file->bytes = counted(8);
  const Device host = open_device("host");
  Buffer served = open_served(host, file);
  expect_refused(served.try_copy_to(memory.data(), 8, Stream(host)), ErrorCode::unsupported);
  expect_refused(served.try_copy_from(memory.data(), 8, Stream(host)), ErrorCode::read_only);
}

TEST_F(BufferBytesRules, OfAFileAreReadAndNeverWritten) {
  auto file = std::make_shared<ServedFile>();
  file->bytes = counted(100);
  Buffer buffer = open_served(open_device("host"), file);
  EXPECT_TRUE(bytes_of(buffer.byte_view(7, 50)) ==
              Bytes(file->bytes.begin() + 7, file->bytes.begin() + 57));
  EXPECT_FALSE(file->was_mapped);
  EXPECT_EQ(buffer.try_copy_from(file->bytes.data(), 100).failure().code(), ErrorCode::read_only);
  EXPECT_EQ(buffer.try_fill_bytes({}, stream).failure().code(), ErrorCode::read_only);
  EXPECT_EQ(buffer.try_clone(stream).failure().code(), ErrorCode::unsupported);
}

TEST_F(BufferBytesRules, AreNotFilledByPatternsThatDoNotFit) {
  Buffer buffer(device, {9}, DType::byte);
  for (const std::size_t width : {0u, 17u}) {
    Pattern pattern;
    pattern.width_bytes = width;
    EXPECT_EQ(buffer.try_fill_bytes(pattern, stream).failure().code(), ErrorCode::invalid_argument);
  }
  Pattern two;
  two.width_bytes = 2;
  const Result<Mark> refused = buffer.try_fill_bytes(two, stream);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.failure().number("expected"), 2u);
  EXPECT_EQ(refused.failure().number("actual"), 9u);
  const Stream other(open_device("host"));
  EXPECT_EQ(buffer.try_fill_bytes({}, other).failure().code(), ErrorCode::device_mismatch);
  EXPECT_FALSE(buffer.is_allocated());
}

TEST_F(BufferBytesRules, AreNotWrittenByAFillOrCopyThatFailed) {
  Buffer buffer(device, {64}, DType::byte);
  buffer.ensure_allocated();
  sim::set_faults(device, "fill#1=fail, copy#1=fail");
  EXPECT_FALSE(buffer.try_fill_bytes({}, stream));
  const Bytes in(64);
  EXPECT_FALSE(buffer.try_copy_from(in.data(), 64));
  EXPECT_EQ(buffer.storage()->uses().size(), 0u);
  EXPECT_FALSE(buffer.storage()->check_written(0, 1, {}));
  EXPECT_TRUE(buffer.try_fill_bytes({}, stream));
  EXPECT_TRUE(buffer.try_copy_from(in.data(), 64));
}

TEST_F(BufferBytesRules, OfSizeZeroMakeNoCall) {
  sim::set_faults(device, "");
  Buffer buffer(device, {3, 0}, DType::f32);
  EXPECT_TRUE(buffer.try_copy_to(nullptr, 0));
  EXPECT_TRUE(buffer.try_copy_from(nullptr, 0));
  EXPECT_TRUE(buffer.try_fill(1.0f, stream));
  EXPECT_TRUE(buffer.try_clone(stream));
  EXPECT_TRUE(buffer.try_clone(StreamRef()));
  for (const char* one : {"copy", "fill", "allocate", "map", "stream"}) {
    EXPECT_EQ(sim::calls(device, one), 0u) << one;
  }
}

TEST_F(BufferBytesRules, AreCopiedOutWithoutWaitingForOtherStreams) {
  Buffer ready(device, {64}, DType::byte), busy(device, {64}, DType::byte);
  const Bytes in = counted(64);
  ready.try_copy_from(in.data(), 64).value();
  Gate gate;
  gate.hold(stream);
  busy.try_fill_bytes({}, stream).value();
  EXPECT_TRUE(bytes_of(ready) == in);
  gate.open();
  EXPECT_TRUE(bytes_of(busy) == Bytes(64));
}

TEST_F(BufferBytesRules, AreClonedWithTheirTagAndAlignment) {
  Buffer buffer(device, {64}, DType::byte, {.alignment = 4096, .tag = Tag("weights")});
  buffer.try_fill_bytes({}, stream).value();
  const Buffer clone = buffer.clone(stream);
  EXPECT_EQ(clone.storage()->tag(), Tag("weights"));
  EXPECT_EQ(clone.address() % 4096, 0u);
  EXPECT_EQ(Buffer(device, {8}, DType::byte).try_clone(stream).failure().code(),
            ErrorCode::never_written);
}

}  // namespace
}  // namespace tern::test
