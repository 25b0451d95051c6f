#include "memory/address_range.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "support/budgets.hpp"
#include "support/fake_backend.hpp"
#include "support/on_device.hpp"
#include "support/refused.hpp"
#include "support/sharing_devices.hpp"
#include "tern/backends/sim.hpp"
#include "tern/core/bytes.hpp"
#include "tern/core/error.hpp"
#include "tern/memory/budget_resource.hpp"
#include "tern/memory/default_resource.hpp"
#include "tern/memory/pool_resource.hpp"
#include "tern/memory/pressure_resource.hpp"

namespace tern {
namespace {

using test::Call;
using test::refused;

static_assert(std::is_nothrow_move_constructible_v<AddressRange> &&
              std::is_nothrow_move_assignable_v<AddressRange>);

class AddressRangeOn : public test::OnDevice {
 protected:
  [[nodiscard]] AddressRange reserve(std::size_t pages, const BudgetHandle& with = {}) {
    return *AddressRange::try_reserve(device, pages * page(), {.budget = with, .tag = "range"});
  }
  [[nodiscard]] std::size_t page() const { return device.info().page_bytes; }
  void write(const AddressRange& range, std::size_t offset, std::size_t bytes, int value) {
    stream.fill(range.address() + offset, bytes, std::byte(value));
  }
  void expect_bytes(const AddressRange& range, std::size_t offset, std::size_t bytes, int value) {
    std::vector<std::byte> read(bytes);
    stream.copy(read.data(), range.address() + offset, bytes);
    stream.synchronize();
    EXPECT_TRUE(std::ranges::all_of(read, [=](std::byte b) { return b == std::byte(value); }));
  }

  BudgetHandle budget = test::limited(1 * gib);
};
INSTANTIATE_TEST_SUITE_P(Devices, AddressRangeOn, testing::ValuesIn(test::sharing_devices()),
                         [](const auto& one) {
                           std::string name = one.param;
                           std::erase_if(name, [](char c) { return std::isalnum(c) == 0; });
                           return name;
                         });

TEST_P(AddressRangeOn, KeepsItsBytesAndItsAddressesWhileItGrows) {
  AddressRange range = reserve(8);
  const std::byte* const address = range.address();
  EXPECT_EQ(range.reserved_bytes(), 8 * page());
  EXPECT_EQ(range.backed_bytes(), 0u);
  for (std::size_t pages = 1; pages <= 8; ++pages) {
    ASSERT_TRUE(range.try_back(pages * page() - 1));
    EXPECT_EQ(range.backed_bytes(), pages * page());
    write(range, (pages - 1) * page(), page(), static_cast<int>(pages));
  }
  for (std::size_t i = 0; i < 8; ++i) expect_bytes(range, i * page(), page(), int(i) + 1);
  EXPECT_EQ(range.address(), address);
  EXPECT_EQ(range.pending_bytes(), 0u);
}

TEST_P(AddressRangeOn, ChargesPagesAndNotAddresses) {
  {
    AddressRange range = reserve(8, budget);
    EXPECT_EQ(budget->charged_bytes(), 0u);
    ASSERT_TRUE(range.try_back(1));
    EXPECT_EQ(budget->used_bytes(), page());
    ASSERT_TRUE(range.try_back(page() + 1));
    ASSERT_TRUE(range.try_back(2 * page()));
    EXPECT_EQ(budget->used_bytes("range"), 2 * page());
    EXPECT_EQ(range.resident_bytes(), 2 * page());
    ASSERT_TRUE(range.try_unback(page(), {}));
    EXPECT_EQ(budget->used_bytes(), page());
    test::expect_sound(*budget);
  }
  EXPECT_EQ(budget->charged_bytes(), 0u);
}

TEST_P(AddressRangeOn, CreatesPagesAheadWhereTheyFit) {
  AddressRange range = reserve(8, budget);
  ASSERT_TRUE(range.try_back(1, 3 * page()));
  EXPECT_EQ(range.backed_bytes(), 3 * page());
  ASSERT_TRUE(range.try_back(3 * page() + 1, 100 * page()));  // to the end, and not past it
  EXPECT_EQ(range.backed_bytes(), 8 * page());

  const BudgetHandle tight = test::limited(2 * page());
  AddressRange other = reserve(8, tight);
  ASSERT_TRUE(other.try_back(page() + 1, 4 * page()));
  EXPECT_EQ(other.backed_bytes(), 2 * page());
  EXPECT_EQ(tight->used_bytes(), 2 * page());
}

TEST_P(AddressRangeOn, CreatesFewerPagesAheadNearTheLimit) {
  // One page at a time would be one driver call and one mapping per page.
  const BudgetHandle tight = test::limited(9 * page());
  AddressRange range = reserve(64, tight);
  ASSERT_TRUE(range.try_back(1, 16 * page()));
  EXPECT_EQ(range.backed_bytes(), 8 * page());
  ASSERT_TRUE(range.try_back(8 * page() + 1, 16 * page()));
  EXPECT_EQ(range.backed_bytes(), 9 * page());
}

TEST_P(AddressRangeOn, GrowsNotAtAllIfTheBudgetRefuses) {
  const BudgetHandle tight = test::limited(3 * page());
  AddressRange range = reserve(200, tight);
  ASSERT_TRUE(range.try_back(2 * page()));
  const Failure no = refused(range.try_back(4 * page()), ErrorCode::out_of_budget);
  EXPECT_EQ(no.number("limit"), 3 * page());
  // More than one piece: the refusal states all of it.
  const Failure more = refused(range.try_back(150 * page()), ErrorCode::out_of_budget);
  EXPECT_EQ(more.number("requested"), 148 * page());
  EXPECT_EQ(range.backed_bytes(), 2 * page());
  EXPECT_EQ(tight->charged_bytes(), 2 * page());
  EXPECT_TRUE(range.try_back(3 * page()));
}

TEST_P(AddressRangeOn, IsNotLargerThanItsReservation) {
  AddressRange range = reserve(2);
  const Failure no = refused(range.try_back(2 * page() + 1), ErrorCode::capacity);
  EXPECT_EQ(no.number("requested"), 2 * page() + 1);
  EXPECT_EQ(no.number("reserved"), 2 * page());
  EXPECT_NE(no.text().find("Reserve more addresses"), std::string::npos);
  EXPECT_EQ(range.resident_bytes(), 0u);
  refused(range.try_back(std::numeric_limits<std::size_t>::max()), ErrorCode::capacity);
  EXPECT_TRUE(range.try_back(2 * page()));
}

TEST_P(AddressRangeOn, ReservesNothingForZeroBytes) {
  AddressRange range = reserve(0, budget);
  EXPECT_EQ(range.address(), nullptr);
  EXPECT_TRUE(range.try_back(0));
  EXPECT_TRUE(range.try_unback(0, {}));
  refused(range.try_back(1), ErrorCode::capacity);
  refused(AddressRange::try_reserve(device, std::numeric_limits<std::size_t>::max()),
          ErrorCode::size_overflow);
}

TEST_P(AddressRangeOn, LeavesAMovedFromRangeEmpty) {
  AddressRange range = reserve(4, budget);
  ASSERT_TRUE(range.try_back(page()));
  AddressRange other = std::move(range);
  EXPECT_EQ(range.reserved_bytes(), 0u);  // NOLINT: a moved-from range is empty
  EXPECT_EQ(range.resident_bytes(), 0u);
  refused(range.try_back(1), ErrorCode::capacity);
  EXPECT_EQ(other.backed_bytes(), page());
  other = AddressRange();
  EXPECT_EQ(budget->charged_bytes(), 0u);
}

TEST_P(AddressRangeOn, FreesOnlyWholePieces) {
  AddressRange range = reserve(8);
  ASSERT_TRUE(range.try_back(2 * page()));
  ASSERT_TRUE(range.try_back(5 * page()));
  write(range, 0, 5 * page(), 7);
  const Mark used = stream.mark();
  stream.synchronize();
  ASSERT_TRUE(range.try_unback(2 * page() + 1, {{used}}));  // inside the second piece
  EXPECT_EQ(range.backed_bytes(), 5 * page());
  ASSERT_TRUE(range.try_unback(2 * page(), {{used}}));
  EXPECT_EQ(range.backed_bytes(), 2 * page());
  EXPECT_EQ(range.resident_bytes(), 2 * page());
  expect_bytes(range, 0, 2 * page(), 7);
  ASSERT_TRUE(range.try_back(3 * page()));
  write(range, 2 * page(), page(), 8);
  expect_bytes(range, 2 * page(), page(), 8);
}

TEST(AddressRange, TrimsTheDefaultPoolBeforeItGivesUp) {
  const Device small = sim::open({.memory_bytes = 64 * mib});
  const ResourceHandle pool = default_resource(small);
  pool->deallocate(pool->allocate({.bytes = 48 * mib}), {});
  EXPECT_GE(pool->statistics().reserved_bytes, 48 * mib);
  AddressRange range = *AddressRange::try_reserve(small, 64 * mib);
  EXPECT_TRUE(range.try_back(60 * mib));
  EXPECT_EQ(pool->statistics().reserved_bytes, 0u);
  refused(range.try_back(64 * mib + 1), ErrorCode::capacity);
  AddressRange more = *AddressRange::try_reserve(small, 64 * mib);
  refused(more.try_back(8 * mib), ErrorCode::out_of_memory);
  EXPECT_EQ(more.resident_bytes(), 0u);
}

TEST(AddressRange, CallsThePressureHandlersOfTheDefaultResource) {
  const Device small = sim::open({.memory_bytes = 64 * mib});
  const auto pressed = std::make_shared<PressureResource>(std::make_shared<PoolResource>(small));
  Block cache = pressed->allocate({.bytes = 48 * mib});
  pressed->add_handler([&](const Pressure& pressure) {
    EXPECT_GE(pressure.need_bytes, 32 * mib);
    pressed->deallocate(std::exchange(cache, {}), {});
    return 48 * mib;
  });
  set_default_resource(small, pressed);
  AddressRange range = *AddressRange::try_reserve(small, 64 * mib);
  EXPECT_TRUE(range.try_back(32 * mib));
  EXPECT_FALSE(cache);
  EXPECT_EQ(pressed->statistics().live_bytes, 0u);
  set_default_resource(small, nullptr);
}

class AddressRangeOnSim : public testing::Test {
 protected:
  Device device =
      sim::open({.policy = sim::Policy::lazy, .print_findings = false, .memory_bytes = 256 * mib});
  const std::size_t page = device.info().page_bytes;
  Stream stream{device}, other{device};
  BudgetHandle budget = test::limited(64 * mib);
  AddressRange range = *AddressRange::try_reserve(device, 64 * mib, {.budget = budget});
};

TEST_F(AddressRangeOnSim, KeepsPagesUntilTheirUsersAreDone) {
  ASSERT_TRUE(range.try_back(page));
  ASSERT_TRUE(range.try_back(2 * page));
  stream.fill(range.address() + page, page, std::byte{1});
  ASSERT_TRUE(range.try_unback(page, {{stream.mark()}}));
  EXPECT_EQ(range.backed_bytes(), page);
  EXPECT_EQ(range.pending_bytes(), page);
  EXPECT_EQ(budget->used_bytes(), 2 * page);
  EXPECT_EQ(range.reclaim(), 0u);
  stream.synchronize();
  EXPECT_EQ(range.reclaim(), page);
  EXPECT_EQ(budget->used_bytes(), page);
  EXPECT_TRUE(sim::findings(device).empty());
}

TEST_F(AddressRangeOnSim, WaitsForTheLatestMarkOfEachStream) {
  for (int i = 1; i <= 3; ++i) ASSERT_TRUE(range.try_back(std::size_t(i) * page));
  stream.fill(range.address(), 3 * page, std::byte{1});
  const Mark early = stream.mark();
  stream.synchronize();
  EXPECT_TRUE(Device::is_done(early));
  stream.fill(range.address() + page, page, std::byte{2});
  ASSERT_TRUE(range.try_unback(2 * page, {{stream.mark()}}));
  ASSERT_TRUE(range.try_unback(page, {{early}}));
  EXPECT_EQ(range.pending_bytes(), 2 * page);
  other.fill(range.address(), page, std::byte{3});
  ASSERT_TRUE(range.try_unback(0, {{other.mark()}}));
  stream.synchronize();
  EXPECT_EQ(range.reclaim(), 0u);
  other.synchronize();
  EXPECT_EQ(range.reclaim(), 3 * page);
  EXPECT_TRUE(sim::findings(device).empty());
}

TEST_F(AddressRangeOnSim, TakesPendingPagesBackWithoutTheDriver) {
  ASSERT_TRUE(range.try_back(page));
  ASSERT_TRUE(range.try_back(2 * page));
  stream.fill(range.address(), 2 * page, std::byte{1});
  ASSERT_TRUE(range.try_unback(0, {{stream.mark()}}));
  EXPECT_EQ(range.backed_bytes(), 0u);
  ASSERT_TRUE(range.try_back(page + 1));
  EXPECT_EQ(range.backed_bytes(), 2 * page);
  EXPECT_EQ(budget->used_bytes(), 2 * page);
  stream.fill(range.address(), 2 * page, std::byte{2});
  EXPECT_EQ(range.reclaim(), 0u);
  stream.synchronize();
  EXPECT_EQ(range.reclaim(), 0u);
  EXPECT_EQ(range.backed_bytes(), 2 * page);
  EXPECT_TRUE(sim::findings(device).empty());
}

TEST_F(AddressRangeOnSim, KeepsTheOtherPendingPagesWaiting) {
  ASSERT_TRUE(range.try_back(page));
  ASSERT_TRUE(range.try_back(2 * page));
  stream.fill(range.address(), 2 * page, std::byte{1});
  ASSERT_TRUE(range.try_unback(0, {{stream.mark()}}));
  ASSERT_TRUE(range.try_back(page));
  EXPECT_EQ(range.reclaim(), 0u);
  EXPECT_TRUE(sim::findings(device).empty());
  stream.synchronize();
  EXPECT_EQ(range.reclaim(), page);
  EXPECT_EQ(range.backed_bytes(), page);
}

TEST_F(AddressRangeOnSim, KeepsPendingPagesPendingIfItCannotGrow) {
  ASSERT_TRUE(range.try_back(page));
  ASSERT_TRUE(range.try_back(2 * page));
  stream.fill(range.address(), 2 * page, std::byte{1});
  ASSERT_TRUE(range.try_unback(page, {{stream.mark()}}));
  const Charge others = budget->charge(60 * mib);
  refused(range.try_back(3 * page), ErrorCode::out_of_budget);
  EXPECT_EQ(range.backed_bytes(), page);
  EXPECT_EQ(range.pending_bytes(), page);
  EXPECT_EQ(range.reclaim(), 0u);
  stream.synchronize();
  EXPECT_EQ(range.reclaim(), page);
  EXPECT_TRUE(sim::findings(device).empty());
}

TEST_F(AddressRangeOnSim, EndsAfterTheUsesOfPendingPages) {
  ASSERT_TRUE(range.try_back(2 * page));
  stream.fill(range.address(), 2 * page, std::byte{1});
  ASSERT_TRUE(range.try_unback(0, {{stream.mark()}}));
  EXPECT_FALSE(range.try_end());
  EXPECT_FALSE(stream.is_idle());
  range = AddressRange();
  EXPECT_TRUE(stream.is_idle());
  EXPECT_EQ(budget->charged_bytes(), 0u);
  EXPECT_TRUE(sim::findings(device).empty());
}

TEST_F(AddressRangeOnSim, ReportsTheUseOfPagesThatWereShrunkAway) {
  ASSERT_TRUE(range.try_back(page));
  ASSERT_TRUE(range.try_back(2 * page));
  stream.fill(range.address(), 2 * page, std::byte{1});
  const Mark used = stream.mark();
  stream.synchronize();
  ASSERT_TRUE(range.try_unback(page, {{used}}));
  stream.fill(range.address(), page, std::byte{2});
  EXPECT_TRUE(sim::findings(device).empty());
  refused(stream.try_fill(range.address() + page, 16, std::byte{2}), ErrorCode::violation);
  ASSERT_EQ(sim::findings(device).size(), 1u);
  EXPECT_EQ(sim::findings(device)[0].code, FindingCode::use_after_free)
      << sim::findings(device)[0].text();
}

/// Whoever forgets a user frees its pages too early.
TEST_F(AddressRangeOnSim, ReportsPagesThatAreFreedWithoutTheMarkOfAUser) {
  ASSERT_TRUE(range.try_back(page));
  stream.fill(range.address(), page, std::byte{1});
  ASSERT_TRUE(range.try_unback(0, {}));
  ASSERT_FALSE(sim::findings(device).empty());
  EXPECT_EQ(sim::findings(device)[0].code, FindingCode::free_while_in_use);
}

// --- Faults

TEST_F(AddressRangeOnSim, WaitsForPendingFreesOfItsBudgetIfItMay) {
  for (const Overflow overflow : {Overflow::fail, Overflow::wait}) {
    const BudgetHandle tight = test::limited(8 * page, "tight", {}, overflow);
    BudgetResource resource(std::make_shared<PoolResource>(device), tight);
    const Block block = resource.allocate({.bytes = 6 * page, .stream = stream});
    stream.fill(static_cast<std::byte*>(block.address), block.bytes, std::byte{1});
    resource.deallocate(block, stream);
    AddressRange grown = *AddressRange::try_reserve(device, 8 * page, {.budget = tight});
    EXPECT_EQ(bool(grown.try_back(4 * page)), overflow == Overflow::wait);
    EXPECT_EQ(grown.resident_bytes(), overflow == Overflow::wait ? 4 * page : 0);
    stream.synchronize();
  }
  EXPECT_TRUE(sim::findings(device).empty());
}

class AddressRangeFaults : public testing::Test {
 protected:
  [[nodiscard]] AddressRange reserve(std::size_t pages) {
    return *AddressRange::try_reserve(fake.device, pages * page, {.budget = budget});
  }
  [[nodiscard]] std::size_t count(Call call) const { return fake.ledger->count(call); }

  test::FakeDevice fake;
  const std::size_t page = fake.device.info().page_bytes;
  BudgetHandle budget = test::limited(1 * gib);
};

TEST_F(AddressRangeFaults, ChangeNothingWhereverTheyStrike) {
  for (std::size_t at = 1;; ++at) {
    AddressRange range = reserve(400);
    ASSERT_TRUE(range.try_back(2 * page));
    std::memset(range.address(), 1, 2 * page);
    const std::size_t failures = fake.ledger->failures();
    fake.ledger->fail_at(at);
    // Several pieces: the first ones have to be undone.
    const Result<void> grown = range.try_back(300 * page);
    const bool has_failed = fake.ledger->failures() != failures;
    fake.ledger->fail_at(0);
    if (!grown) {
      EXPECT_EQ(range.backed_bytes(), 2 * page) << at;
      EXPECT_EQ(range.resident_bytes(), 2 * page) << at;
    }
    EXPECT_EQ(budget->used_bytes(), range.resident_bytes()) << at;
    test::expect_sound(*budget);
    ASSERT_TRUE(range.try_back(300 * page)) << at;
    std::memset(range.address() + 2 * page, 2, page);
    EXPECT_EQ(range.address()[0], std::byte{1});
    range = AddressRange();
    EXPECT_EQ(budget->charged_bytes(), 0u) << at;
    if (!has_failed) {
      EXPECT_GT(at, 8u);
      break;
    }
  }
  EXPECT_EQ(count(Call::reserve), count(Call::unreserve));
}

TEST_F(AddressRangeFaults, KeepPagesChargedUntilTheDriverTakesThem) {
  AddressRange range = reserve(4);
  ASSERT_TRUE(range.try_back(page));
  fake.ledger->fail_next(Call::unmap, 2);
  ASSERT_TRUE(range.try_unback(0, {}));
  EXPECT_EQ(range.pending_bytes(), page);
  EXPECT_EQ(budget->used_bytes(), page);
  EXPECT_EQ(range.reclaim(), 0u);
  EXPECT_EQ(range.reclaim(), page);
  EXPECT_EQ(budget->used_bytes(), 0u);
}

TEST_F(AddressRangeFaults, DuringTheUndoLeaveAPieceThatIsUsedNext) {
  AddressRange range = reserve(4);
  fake.ledger->fail_next(Call::set_access);
  fake.ledger->fail_next(Call::unmap, 2);
  EXPECT_FALSE(range.try_back(page));
  EXPECT_EQ(range.backed_bytes(), 0u);
  EXPECT_EQ(range.pending_bytes(), page);
  EXPECT_EQ(budget->used_bytes(), page);
  const std::size_t created = count(Call::create_pages);
  ASSERT_TRUE(range.try_back(page));
  EXPECT_EQ(count(Call::create_pages), created);
  EXPECT_EQ(budget->used_bytes(), page);
  std::memset(range.address(), 1, page);
}

TEST_F(AddressRangeFaults, OfAHandleAreRetriedWithThePages) {
  AddressRange range = reserve(4);
  fake.ledger->fail_next(Call::release_pages);
  ASSERT_TRUE(range.try_back(page));
  std::memset(range.address(), 1, page);
  ASSERT_TRUE(range.try_unback(0, {}));
  EXPECT_EQ(range.resident_bytes(), 0u);
  EXPECT_EQ(count(Call::release_pages), 2u);
}

TEST_F(AddressRangeFaults, OfTheEndAreRetried) {
  AddressRange range = reserve(4);
  ASSERT_TRUE(range.try_back(page));
  fake.ledger->fail_next(Call::unmap);
  EXPECT_FALSE(range.try_end());
  fake.ledger->fail_next(Call::unreserve);
  EXPECT_FALSE(range.try_end());
  EXPECT_EQ(budget->charged_bytes(), 0u);
  EXPECT_TRUE(range.try_end());
  EXPECT_TRUE(range.try_end());
  EXPECT_EQ(count(Call::unreserve), 2u);
}

TEST(AddressRange, NeedsVirtualMemory) {
  const test::FakeDevice fake({.describe = [](DeviceInfo& info) {
    info.capabilities = info.capabilities.without(Capability::virtual_memory);
  }});
  const Failure no =
      refused(AddressRange::try_reserve(fake.device, 1 * mib), ErrorCode::unsupported);
  EXPECT_EQ(no.string("device"), "fake:0");
  refused(AddressRange::try_reserve(Device(), 1 * mib), ErrorCode::invalid_device);
}

TEST(AddressRange, RefusesABudgetOfAnotherDevice) {
  const Device one = sim::open({}), two = sim::open({});
  const BudgetHandle budget =
      Budget::make("other", BudgetLimit::bytes(1 * mib), {.device = two.id()});
  refused(AddressRange::try_reserve(one, 1 * mib, {.budget = budget}), ErrorCode::device_mismatch);
}

}  // namespace
}  // namespace tern
