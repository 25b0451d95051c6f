// Writes that no lease knows of, found by the next access.

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "support/gate.hpp"
#include "support/unified.hpp"
#include "tern/coherence/unified_buffer.hpp"

namespace tern::test {
namespace {

class UnifiedChecks : public Unified {
 protected:
  UnifiedBuffer<int> checked(std::size_t count) const {
    UnifiedBuffer<int> buffer = make(count, {.checked = true});
    std::ranges::fill(buffer.discard_host(), 1);
    return buffer;
  }
};

TEST_F(UnifiedChecks, FindWhoWroteThroughAPointerOfALeaseThatIsClosed) {
  UnifiedBuffer<int> buffer = checked(100);
  int* kept = nullptr;
  {
    const HostLease<int> lease = buffer.rw_host();
    kept = lease.data();
  }
  const int line = __LINE__ - 3;
  EXPECT_TRUE(buffer.try_read_host());
  kept[40] = 5;
  const Failure failure = refused(buffer.try_read_host(), ErrorCode::violation);
  EXPECT_EQ(failure.number("begin"), 128u);
  EXPECT_EQ(failure.number("end"), 192u);
  EXPECT_GE(failure.number("a_line"), static_cast<std::uint64_t>(line));
  EXPECT_NE(failure.text().find("'u'"), std::string::npos) << failure.text();
  // Once: whoever knows of it may go on.
  EXPECT_EQ(buffer.read_host()[40], 5);
}

TEST_F(UnifiedChecks, FindItBeforeTheBytesGoAnywhere) {
  UnifiedBuffer<int> buffer = checked(100);
  int* const kept = buffer.rw_host().data();
  kept[0] = 5;
  refused(buffer.try_read_device(s), ErrorCode::violation);
  EXPECT_EQ(buffer.stats().moved().bytes, 0u);
  kept[0] = 6;
  std::ranges::fill(buffer.rw_host(), 2);
  kept[99] = 6;
  refused(buffer.try_prefetch(s), ErrorCode::violation);
  std::ranges::fill(buffer.rw_host(), 3);
  kept[99] = 6;
  refused(buffer.try_rw_host(), ErrorCode::violation);
  kept[1] = 7;
  refused(buffer.try_discard_host(), ErrorCode::violation);
  EXPECT_TRUE(buffer.try_discard_host());
}

TEST_F(UnifiedChecks, LetEverybodyWriteWhoSaysSo) {
  UnifiedBuffer<int> buffer = checked(1000);
  int* const kept = buffer.rw_host().data();
  kept[3] = 5;
  buffer.mark_host_dirty();
  EXPECT_EQ(buffer.read_host()[3], 5);
  buffer.store_host(4, 6);
  EXPECT_EQ(buffer.read_host()[4], 6);
  buffer.fill(7);
  EXPECT_EQ(buffer.read_host()[999], 7);
  write_on_device(buffer, s, 8);
  EXPECT_EQ(buffer.read_host()[5], 8);
  write_on_device(buffer.view(10, 10), s, 9);
  buffer.prefetch_host();
  buffer.synchronize();
  EXPECT_EQ(buffer.read_host()[19], 9);
  {
    EscapedPointer<int> escaped = buffer.escape_host();
    EXPECT_TRUE(buffer.try_read_host());
    escaped.data()[0] = 1;
    EXPECT_TRUE(buffer.try_read_host());
    escaped.data()[1] = 1;
  }
  EXPECT_EQ(buffer.read_host()[1], 1);
  buffer.resize_keep(2000);
  std::ranges::fill(buffer.view(1000, 1000).discard_host(), 2);
  EXPECT_EQ(buffer.read_host()[1999], 2);
  buffer.drop_host();
  EXPECT_EQ(buffer.read_host()[0], 1);
}

TEST_F(UnifiedChecks, LetCopiesArriveInMemoryThatCouldNotBePoisoned) {
  UnifiedBuffer<int> buffer = checked(100);
  Gate gate;
  gate.hold(s);
  buffer.prefetch(s);  // reads the host's copy until the gate opens
  write_on_device(buffer, s, 2);
  gate.open();
  buffer.prefetch_host();
  buffer.synchronize();
  EXPECT_EQ(buffer.read_host()[99], 2);
}

TEST_F(UnifiedChecks, FindWritesThroughAnEscapedPointerThatIsClosed) {
  UnifiedBuffer<int> buffer = checked(100);
  EscapedPointer<int> escaped = buffer.escape_host();
  int* const kept = escaped.data();
  kept[0] = 2;
  escaped.close();
  EXPECT_TRUE(buffer.try_read_host());
  kept[0] = 3;
  refused(buffer.try_read_host(), ErrorCode::violation);
}

TEST_F(UnifiedChecks, AreNotMadeUnasked) {
  UnifiedBuffer<int> buffer = make(100);
  std::ranges::fill(buffer.discard_host(), 1);
  buffer.rw_host().data()[0] = 1;
  int* const kept = buffer.rw_host().data();
  kept[0] = 5;
  EXPECT_TRUE(buffer.try_read_host());
}

TEST_F(UnifiedChecks, CompareCopiesThatShouldBeTheSame) {
  UnifiedBuffer<int> buffer = make(1000, {.compare = true});
  std::ranges::fill(buffer.discard_host(), 1);
  EXPECT_TRUE(buffer.try_compare());
  buffer.sync_to_device();
  EXPECT_TRUE(buffer.try_compare());
  EXPECT_TRUE(buffer.try_read_host());
  EXPECT_EQ(buffer.stats().of(TransferReason::compare).bytes, 8000u);
  int* kept = nullptr;
  {
    const DeviceLease<int> lease = buffer.rw_device(s);
    kept = lease.data();
    s.fill(kept, 1000, 2);
  }
  EXPECT_TRUE(buffer.try_read_host());
  s.fill(kept + 10, 1, 3);
  s.synchronize();
  const Failure failure = refused(buffer.try_read_host(), ErrorCode::violation);
  EXPECT_EQ(failure.number("offset"), 40u);
  EXPECT_EQ(failure.number("a"), 2u);
  EXPECT_EQ(failure.number("b"), 3u);
  EXPECT_EQ(failure.string("place_b"), devices[0].spec());
  refused(buffer.try_compare(), ErrorCode::violation);
  EXPECT_TRUE(buffer.try_rw_host());
  EXPECT_TRUE(buffer.try_compare());
}

}  // namespace
}  // namespace tern::test
