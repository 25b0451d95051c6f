#include "buffer/foreign_memory.hpp"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "device/device_state.hpp"
#include "support/allocation_counter.hpp"
#include "support/gate.hpp"
#include "support/ladder.hpp"
#include "support/simulated.hpp"
#include "support/thread.hpp"
#include "tern/backends/catalog.hpp"
#include "tern/backends/sim.hpp"

namespace tern {
namespace {

using test::Gate;
using test::HeapExhausted;

constexpr std::size_t piece_bytes = 256;

class ForeignPartsTest : public testing::TestWithParam<std::string> {
 protected:
  ~ForeignPartsTest() override {
    device_.synchronize();
    EXPECT_EQ(reclaim_deferred().count, 0u);
    device_.release(memory_);
    if (test::is_simulated(device_)) {
      EXPECT_EQ(sim::findings(device_).size(), found_before_);
    }
  }

  void* piece(std::size_t index) const { return memory_ + index * piece_bytes; }
  /// The terms of an owner that counts its calls.
  Adoption terms() {
    return {.release = [](void* context) { ++*static_cast<std::atomic<int>*>(context); },
            .context = &released_,
            .is_complete = true,
            .owner_orders_writes = true};
  }
  Result<Buffer> try_take(ForeignParts& parts, std::size_t index, DType dtype = DType::f32) {
    Buffer buffer;
    if (Result<void> taken = parts.try_adopt(piece(index), piece_bytes, dtype, buffer); !taken) {
      return taken.failure();
    }
    return buffer;
  }
  /// Adopts `count` pieces of one owner.
  std::vector<Buffer> take(std::size_t count) {
    ForeignParts parts = ForeignParts::try_begin(device_, count, terms()).value();
    std::vector<Buffer> taken;
    for (std::size_t i = 0; i < count; ++i) taken.push_back(try_take(parts, i).value());
    return taken;
  }

  const Device device_ = open_device(GetParam());
  const std::size_t found_before_ = test::is_simulated(device_) ? sim::findings(device_).size() : 0;
  std::byte* const memory_ =
      static_cast<std::byte*>(device_.allocate(MemoryKind::device, 64 * piece_bytes));
  const Stream stream_{device_};
  std::atomic<int> released_ = 0;
};

INSTANTIATE_TEST_SUITE_P(Devices, ForeignPartsTest,
                         testing::Values("host", "sim", "cuda?driver=sim"), test::spec_name);

TEST_P(ForeignPartsTest, ReleasesTheOwnerOnceAfterTheLastPiece) {
  for (const std::size_t last : {0u, 3u, 7u}) {
    released_ = 0;
    std::vector<Buffer> pieces = take(8);
    EXPECT_EQ(pieces[last].address(), reinterpret_cast<std::uintptr_t>(piece(last)));
    EXPECT_TRUE(pieces[last].is_external());
    std::optional<Buffer> kept = pieces[last].slice(1, 4);
    pieces.clear();
    EXPECT_EQ(released_, 0) << last;
    // The records of all pieces are one allocation, which the last one keeps.
    EXPECT_EQ(kept->device(), device_);
    EXPECT_EQ(kept->address(), reinterpret_cast<std::uintptr_t>(piece(last)) + 4);
    kept.reset();
    EXPECT_EQ(released_, 1) << last;
  }
}

TEST_P(ForeignPartsTest, EachPieceIsItsOwnStorage) {
  const std::vector<Buffer> pieces = take(3);
  EXPECT_NE(pieces[0].id(), pieces[1].id());
  EXPECT_EQ(pieces[1].storage()->bytes(), piece_bytes);
  EXPECT_EQ(pieces[1].storage()->shares(), 1u);
  // A use of one piece is not a use of another one.
  Gate gate;
  gate.hold(stream_);
  static_cast<void>(pieces[1].device_ptr(stream_, Access::read));
  EXPECT_EQ(pieces[1].storage()->uses().size(), 1u);
  EXPECT_EQ(pieces[2].storage()->uses().size(), 0u);
  gate.open();
}

TEST_P(ForeignPartsTest, ReleasesTheOwnerBehindTheUsesOfEveryPiece) {
  std::vector<Buffer> pieces = take(4);
  Gate gate;
  gate.hold(stream_);
  static_cast<void>(pieces[2].device_ptr(stream_, Access::read));
  pieces.clear();
  EXPECT_EQ(released_, 0);
  EXPECT_EQ(deferred_frees().count, 1u) << "only the piece that is in use is kept";
  EXPECT_EQ(deferred_frees().bytes, piece_bytes);
  gate.open();
  stream_.synchronize();
  EXPECT_EQ(reclaim_deferred().count, 0u);
  EXPECT_EQ(released_, 1);
}

TEST_P(ForeignPartsTest, ReleasesTheOwnerIfFewerPiecesAreAdoptedThanAnnounced) {
  std::optional<Buffer> kept;
  {
    ForeignParts parts = ForeignParts::try_begin(device_, 5, terms()).value();
    kept = try_take(parts, 0).value();
    kept = try_take(parts, 1).value();
    EXPECT_EQ(released_, 0);
  }
  EXPECT_EQ(released_, 0);
  kept.reset();
  EXPECT_EQ(released_, 1);
  { const ForeignParts none = ForeignParts::try_begin(device_, 3, terms()).value(); }
  EXPECT_EQ(released_, 2);
  { const ForeignParts none = ForeignParts::try_begin(device_, 0, terms()).value(); }
  EXPECT_EQ(released_, 3);
}

TEST_P(ForeignPartsTest, HoldsTheOwnerWhilePiecesAreStillToCome) {
  ForeignParts parts = ForeignParts::try_begin(device_, 2, terms()).value();
  static_cast<void>(try_take(parts, 0).value());
  static_cast<void>(try_take(parts, 1).value());
  EXPECT_EQ(released_, 0) << "no piece is left, but the adoption has not ended";
  const ForeignParts moved = std::move(parts);
  EXPECT_EQ(released_, 0);
}

TEST_P(ForeignPartsTest, ChecksEveryPiece) {
  {
    ForeignParts parts = ForeignParts::try_begin(device_, 4, terms()).value();
    EXPECT_TRUE(try_take(parts, 0));
    Buffer none;
    EXPECT_EQ(parts.try_adopt(nullptr, 8, DType::byte, none).failure().code(),
              ErrorCode::invalid_argument);
    EXPECT_EQ(
        parts.try_adopt(piece(0), ~std::size_t{0} / 2 + 2, DType::byte, none).failure().code(),
        ErrorCode::size_overflow);
    EXPECT_EQ(parts.try_adopt(static_cast<std::byte*>(piece(1)) + 2, 8, DType::f32, none)
                  .failure()
                  .code(),
              ErrorCode::misaligned);
    EXPECT_EQ(parts.try_adopt(piece(1), std::size_t{1} << 40, DType::byte, none).failure().code(),
              ErrorCode::out_of_bounds);
    EXPECT_FALSE(none);
    EXPECT_TRUE(try_take(parts, 1));
    EXPECT_EQ(released_, 0);
  }
  EXPECT_EQ(released_, 1);
}

TEST_P(ForeignPartsTest, SurvivesACallbackThatThrows) {
  ForeignParts parts = ForeignParts::try_begin(device_, 2,
                                               {.on_release =
                                                    [this] {
                                                      ++released_;
                                                      throw std::runtime_error("from the owner");
                                                    },
                                                .is_complete = true})
                           .value();
  static_cast<void>(try_take(parts, 0).value());
  { const ForeignParts ended = std::move(parts); }
  EXPECT_EQ(released_, 1);
}

TEST_P(ForeignPartsTest, LetsTheOwnerAdoptAndEndOtherPieces) {
  std::vector<Buffer> others = take(2);
  {
    ForeignParts parts = ForeignParts::try_begin(device_, 1,
                                                 {.on_release =
                                                      [&] {
                                                        others.clear();
                                                        others = take(3);
                                                      },
                                                  .is_complete = true})
                             .value();
    static_cast<void>(try_take(parts, 0).value());
  }
  EXPECT_EQ(released_, 1);
  EXPECT_EQ(others.size(), 3u);
}

TEST_P(ForeignPartsTest, ThreadsDropThePiecesOfOneOwner) {
  constexpr std::size_t count = 16;
  for (int round = 0; round < 200; ++round) {
    released_ = 0;
    std::vector<Buffer> mine = take(count);
    std::vector<Buffer> theirs(std::make_move_iterator(mine.begin() + count / 2),
                               std::make_move_iterator(mine.end()));
    mine.resize(count / 2);
    std::atomic<int> ready = 0;
    const auto drop = [&ready](std::vector<Buffer>& pieces) {
      ++ready;
      while (ready != 2) std::this_thread::yield();
      while (!pieces.empty()) pieces.pop_back();
    };
    test::Thread other([&] { drop(theirs); });
    drop(mine);
    other.join();
    ASSERT_EQ(released_, 1);
  }
}

TEST(ForeignPartsCost, NeedsOneAllocationForAllPieces) {
  if (!HeapExhausted::is_possible()) GTEST_SKIP() << "allocations cannot be counted here";
  const Device host = open_device("host");
  std::array<std::byte, 64> memory = {};
  std::array<Buffer, 64> pieces;
  const auto go = [&] {
    ForeignParts parts =
        ForeignParts::try_begin(host, pieces.size(), {.is_complete = true}).value();
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      parts.try_adopt(&memory[i], 1, DType::byte, pieces[i]).value();
    }
    pieces = {};
  };
  go();
  const test::AllocationCounter counter;
  go();
  EXPECT_EQ(counter.count(), 1u);
}

TEST(ForeignPartsDevice, IsOpenUntilTheOwnerIsReleased) {
  std::array<std::byte, 2> memory = {};
  std::vector<Buffer> pieces(2);
  DeviceId id;
  bool was_open = false;
  {
    // From here on, only the pieces have handles of the device.
    const Device device = sim::open({.seed = 3});
    id = device.id();
    ForeignParts parts = ForeignParts::try_begin(
                             device, 2,
                             {.on_release = [&was_open, id] { was_open = bool(DeviceScope(id)); },
                              .is_complete = true})
                             .value();
    for (std::size_t i = 0; i < 2; ++i) {
      parts.try_adopt(&memory[i], 1, DType::byte, pieces[i]).value();
    }
  }
  pieces.pop_back();
  EXPECT_TRUE(DeviceScope(id));
  EXPECT_FALSE(was_open);
  pieces.clear();
  EXPECT_TRUE(was_open);
  EXPECT_FALSE(DeviceScope(id));
}

}  // namespace
}  // namespace tern
