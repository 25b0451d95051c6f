#include "coherence/host_access_checks.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <optional>
#include <utility>

#include "coherence/guarded_heap.hpp"
#include "coherence/host_heap.hpp"
#include "tern/backends/catalog.hpp"

namespace tern::test {
namespace {

constexpr unsigned host = CopySet::host;
constexpr std::size_t bytes = 256;
constexpr CallSite access_site{"file.cpp", "f", 7};

/// A host copy of 256 bytes, all of them up to date and at rest.
class HostAccessChecksTest : public testing::Test {
 protected:
  void set_memory(std::unique_ptr<StorageOrigin> origin) {
    Result<StorageHandle> made = Storage::try_make(
        device, bytes, MemoryKind::host, std::move(origin),
        {.contents = Contents::unspecified, .tag = {}, .checked = false, .site = access_site});
    ASSERT_TRUE(made && (*made)->try_ensure({}, access_site));
    CopySet::Memory& memory = copies.memory(host);
    memory.set(*std::move(made));
    memory.parts = PlaceSet::of(host);
    memory.is_read_clear = memory.is_write_clear = true;
    std::memset(memory.address, 1, bytes);
    ASSERT_TRUE(copies.make_room());
    copies.directory().apply(Access::discard, 0, bytes, host);
  }
  std::uint32_t open(ByteRange range, Access access) {
    return leases.open({.range = range, .access = access, .place = host}, access_site);
  }
  /// Closes a lease, and computes checksums if its bytes are stable.
  bool close(std::uint32_t slot) {
    const std::optional<HostAccessChecks::Sealing> sealing =
        HostAccessChecks::plan_seal(copies, leases, slot);
    if (sealing) checks.seal(*sealing);
    leases.release(slot);
    return sealing.has_value();
  }
  std::optional<HostSeal::Broken> broken() {
    return checks.take_broken(HostAccessChecks::sealed(copies), {0, bytes});
  }

  const Device device = open_device("sim");
  CopySet copies{bytes};
  LeaseTable leases;
  HostAccessChecks checks;
};

TEST_F(HostAccessChecksTest, FindsAWriteWithoutALeaseOnce) {
  set_memory(std::make_unique<HostHeap>(bytes));
  EXPECT_TRUE(close(open({0, bytes}, Access::read_write)));
  EXPECT_FALSE(broken());
  copies.memory(host).address[70] = std::byte{2};
  const std::optional<HostSeal::Broken> found = broken();
  ASSERT_TRUE(found);
  EXPECT_EQ(found->range, (ByteRange{64, 128}));
  EXPECT_EQ(found->sealed_at.line, access_site.line);
  EXPECT_FALSE(broken());
}

TEST_F(HostAccessChecksTest, ForgottenBytesMayBeWritten) {
  set_memory(std::make_unique<HostHeap>(bytes));
  EXPECT_TRUE(close(open({0, bytes}, Access::read)));
  checks.forget({70, 71});
  copies.memory(host).address[70] = std::byte{2};
  EXPECT_FALSE(broken());
}

TEST_F(HostAccessChecksTest, BytesThatAreNotStableGetNoChecksum) {
  set_memory(std::make_unique<HostHeap>(bytes));
  const std::uint32_t writer = open({0, 10}, Access::read_write);
  EXPECT_FALSE(close(open({0, bytes}, Access::read)));  // another lease may write them
  EXPECT_TRUE(close(writer));
  copies.memory(host).is_read_clear = false;
  EXPECT_FALSE(close(open({0, bytes}, Access::read)));  // a stream may write them
}

TEST_F(HostAccessChecksTest, MemoryThatADeviceSharesIsNotChecked) {
  set_memory(std::make_unique<HostHeap>(bytes));
  EXPECT_TRUE(close(open({0, bytes}, Access::read)));
  copies.memory(host).parts = PlaceSet::of(host).with(1);
  EXPECT_FALSE(HostAccessChecks::sealed(copies).storage);
  copies.memory(host).address[70] = std::byte{2};
  EXPECT_FALSE(broken());
  EXPECT_FALSE(close(open({0, bytes}, Access::read)));
}

TEST_F(HostAccessChecksTest, OnlyGuardedMemoryHasProtectedPages) {
  set_memory(std::make_unique<HostHeap>(bytes));
  EXPECT_FALSE(HostAccessChecks::has_guarded_pages(copies));
  HostAccessChecks::open_pages(copies);
  checks.close_pages(copies, leases);
  copies.memory(host).address[0] = std::byte{2};
}

TEST_F(HostAccessChecksTest, ALeaseOpensItsPages) {
  set_memory(std::make_unique<GuardedHeap>(bytes, Tag()));
  ASSERT_TRUE(HostAccessChecks::has_guarded_pages(copies));
  const std::uint32_t slot = open({0, bytes}, Access::read_write);
  checks.set_last_lease(access_site);
  checks.close_pages(copies, leases);
  copies.memory(host).address[0] = std::byte{2};  // the lease allows it
  leases.release(slot);
  checks.close_pages(copies, leases);
  EXPECT_EQ(copies.memory(host).address[0], std::byte{2});  // the host may read
  HostAccessChecks::open_pages(copies);
  copies.memory(host).address[0] = std::byte{3};
}

}  // namespace
}  // namespace tern::test
