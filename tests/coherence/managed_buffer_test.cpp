#include "tern/coherence/managed_buffer.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <vector>

#include "support/cuda_bench.hpp"
#include "support/fake_backend.hpp"
#include "support/gate.hpp"
#include "support/managed_places.hpp"
#include "support/thread.hpp"
#include "tern/backends/sim.hpp"
#include "tern/core/bytes.hpp"
#include "tern/memory/default_resource.hpp"

namespace tern {
namespace {

using test::Gate;

/// On every device with managed memory, the GPU of this machine too where it has one.
class ManagedBufferOn : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (!device.can(Capability::managed_memory)) GTEST_SKIP() << "has no managed memory";
  }
  void TearDown() override {
    device.synchronize();
    if (test::is_simulated(device)) {
      EXPECT_TRUE(sim::findings(device).empty());
    }
  }

  Device device = open_device(GetParam());
  Stream stream{device};
};
INSTANTIATE_TEST_SUITE_P(EveryDevice, ManagedBufferOn, testing::ValuesIn(test::managed_specs()),
                         test::managed_spec_name);

// --- One pointer, and the order of its users

TEST_P(ManagedBufferOn, IsOnePointerForHostAndDevice) {
  ManagedBuffer<std::uint32_t> buffer(device, {1000});
  EXPECT_FALSE(buffer.is_allocated());
  EXPECT_EQ(buffer.size_bytes(), 4000u);
  {
    const auto host = buffer.discard_host();
    for (std::uint32_t i = 0; i < 1000; ++i) host[i] = i;
  }
  EXPECT_TRUE(buffer.is_allocated());
  {
    const auto lease = buffer.rw_device(stream);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(lease.data()), buffer.buffer().address());
    EXPECT_EQ(lease.size(), 1000u);
    stream.fill(lease.data() + 500, 500, 7u);
  }
  const auto host = buffer.read_host();
  EXPECT_EQ(host.data(), reinterpret_cast<const std::uint32_t*>(buffer.buffer().address()));
  EXPECT_EQ(host[499], 499u);
  EXPECT_EQ(host[500], 7u);
  EXPECT_EQ(host[999], 7u);
}

TEST_P(ManagedBufferOn, OrdersStreamsByTheirLeases) {
  const Stream other(device);
  ManagedBuffer<std::uint32_t> buffer(device, {64});
  buffer.buffer().ensure_allocated();
  Gate gate;
  gate.hold(stream);
  {
    const auto lease = buffer.discard_device(stream);
    stream.fill(lease.data(), 64, 1u);
  }
  std::vector<std::uint32_t> seen(64);
  {
    // Queued behind the fill, which stands at the gate.
    const auto lease = buffer.read_device(other);
    other.copy(seen.data(), lease.data(), 256);
  }
  {
    const auto lease = buffer.rw_device(stream);
    stream.fill(lease.data(), 64, 2u);
  }
  gate.open();
  EXPECT_EQ(buffer.read_host()[63], 2u);
  other.synchronize();
  EXPECT_EQ(seen, std::vector<std::uint32_t>(64, 1));
}

TEST_P(ManagedBufferOn, MakesTheHostWaitForItsOwnUsesOnly) {
  if (!device.can(Capability::concurrent_managed)) GTEST_SKIP() << "waits for the device";
  const Stream other(device);
  ManagedBuffer<std::uint32_t> buffer(device, {64}), elsewhere(device, {64});
  {
    const auto lease = elsewhere.discard_device(other);
    other.fill(lease.data(), 64, 1u);
  }
  other.synchronize();
  EXPECT_FALSE(buffer.host_waits_for_device());
  buffer.buffer().ensure_allocated();  // a driver may wait for everything when it allocates
  Gate gate;
  gate.hold(other);
  {
    const auto lease = elsewhere.rw_device(other);
    other.fill(lease.data(), 64, 2u);
  }
  {
    const auto lease = buffer.discard_device(stream);
    stream.fill(lease.data(), 64, 3u);
  }
  // The other stream stands at its gate, and nobody waits for it.
  EXPECT_EQ(buffer.read_host()[0], 3u);
  EXPECT_FALSE(other.is_idle());
  gate.open();
  EXPECT_EQ(elsewhere.read_host()[0], 2u);
}

TEST_P(ManagedBufferOn, HasPagesOfItsOwn) {
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{5000}, 2 * mib - 1}) {
    const ManagedBuffer<std::uint8_t> small(device, {bytes});
    small.buffer().ensure_allocated();
    EXPECT_EQ(small.buffer().address() % (64 * kib), 0u) << bytes;
    EXPECT_EQ(small.buffer().storage()->bytes() % 4096, 0u) << bytes;
  }
  const ManagedBuffer<std::uint8_t> large(device, {2 * mib});
  large.buffer().ensure_allocated();
  EXPECT_EQ(large.buffer().address() % (2 * mib), 0u);
}

TEST_P(ManagedBufferOn, SharesItsMemoryWithItsViews) {
  ManagedBuffer<std::uint32_t> buffer(device, {100});
  ManagedBuffer<std::uint32_t> part = buffer.slice(10, 20);
  { std::ranges::fill(part.discard_host(), 5u); }
  EXPECT_EQ(cuda::code(buffer.try_read_host()), "never_written");
  EXPECT_EQ(buffer.slice(29, 1).read_host()[0], 5u);
  EXPECT_EQ(cuda::code(buffer.try_slice(90, 11)), "invalid_view");
  {
    const auto lease = part.slice(5, 5).rw_device(stream);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(lease.data()), buffer.buffer().address() + 60);
    stream.fill(lease.data(), lease.size(), 6u);
  }
  EXPECT_EQ(part.read_host()[4], 5u);
  EXPECT_EQ(part.read_host()[5], 6u);
}

// --- Advice as the driver reports it

TEST_P(ManagedBufferOn, TakesWhatIsAskedOfItsAdvice) {
  ManagedBuffer<std::uint8_t> buffer(device, {4 * mib});
  { std::ranges::fill(buffer.discard_host(), std::uint8_t{1}); }
  const Hints hints = buffer.hints();
  if (!device.can(Capability::advice)) {
    EXPECT_EQ(hints.apply(MigrationPolicy::prefer_host()).report().skipped,
              HintSkip::not_supported);
    return;
  }
  // What the driver says afterwards is what was asked, for each policy.
  const HintUndo to_device = hints.apply(MigrationPolicy::prefer_device(device));
  EXPECT_EQ(hints.query().preferred, device.place());
  const HintUndo to_host = hints.apply(MigrationPolicy::prefer_host());
  EXPECT_EQ(hints.query().preferred, Place::host());
  const HintUndo copies = hints.apply(MigrationPolicy::read_mostly().accessed_by(device.place()),
                                      HintRange{0, 2 * mib});
  EXPECT_TRUE(hints.query(HintRange{0, 2 * mib}).is_read_mostly);
  EXPECT_TRUE(hints.query().is_read_mostly_mixed);
  EXPECT_EQ(hints.query(HintRange{0, 2 * mib}).accessed_by, std::vector{device.place()});
  hints.prefetch(device.place(), stream, HintRange{2 * mib, 2 * mib});
  hints.prefetch(Place::host(), stream, HintRange{0, 2 * mib});
  stream.synchronize();
  EXPECT_EQ(hints.query(HintRange{2 * mib, 2 * mib}).last_prefetch, device.place());
  EXPECT_EQ(hints.query(HintRange{0, 2 * mib}).last_prefetch, Place::host());
  copies.restore();
  EXPECT_FALSE(hints.query().is_read_mostly);
  EXPECT_TRUE(hints.query().accessed_by.empty());
  to_host.restore();
  EXPECT_EQ(hints.query().preferred, device.place());
  to_device.restore();
  EXPECT_FALSE(hints.query().preferred);
  if (device.can(Capability::discard)) {
    EXPECT_TRUE(hints.discard_prefetch(device.place(), stream).is_sent());
    EXPECT_EQ(cuda::code(buffer.try_read_host()), "never_written");
    EXPECT_TRUE(hints.discard(stream).is_sent());
  }
  { std::ranges::fill(buffer.discard_host(), std::uint8_t{2}); }
  EXPECT_EQ(buffer.read_host()[4 * mib - 1], 2);
}

/// What a driver that does as it is told says is in force.
ManagedInfo in_force(const MigrationPolicy& policy) {
  ManagedInfo state;
  for (const auto& [advice, place] : policy.advice()) {
    if (advice == Advice::set_read_mostly) state.is_read_mostly = true;
    if (advice == Advice::set_preferred_location) state.preferred = place;
    if (advice == Advice::set_accessed_by) state.accessed_by.push_back(place);
  }
  return state;
}

TEST_P(ManagedBufferOn, HasTheAdviceOfEveryPolicyInForce) {
  if (!device.can(Capability::advice)) GTEST_SKIP() << "takes no advice";
  using Policy = MigrationPolicy;
  const Place here = device.place(), host = Place::host();
  ManagedBuffer<std::uint8_t> buffer(device, {4 * mib});
  { std::ranges::fill(buffer.discard_host(), std::uint8_t{1}); }
  const Hints hints = buffer.hints();
  const auto expect_in_force = [&](const Policy& policy) {
    ManagedInfo expected = in_force(policy);
    ManagedInfo found = hints.query();
    EXPECT_EQ(found.is_read_mostly, expected.is_read_mostly);
    // And it may take a preference for a NUMA node without naming it.
    const bool is_node = expected.preferred && expected.preferred->kind() == Place::Kind::host_numa;
    if (!test::is_simulated(device) && is_node && !found.preferred) {
      expected.preferred = std::nullopt;
    }
    EXPECT_EQ(found.preferred, expected.preferred);
    std::ranges::sort(found.accessed_by);
    // A real driver may list devices only.
    if (!test::is_simulated(device) && !std::ranges::count(found.accessed_by, host)) {
      std::erase(expected.accessed_by, host);
    }
    EXPECT_EQ(found.accessed_by, expected.accessed_by);
    EXPECT_FALSE(found.is_read_mostly_mixed || found.is_preferred_mixed ||
                 found.is_accessed_by_mixed);
  };
  for (const Policy& policy :
       {Policy::none(), Policy::read_mostly(), Policy::prefer_device(device), Policy::prefer_host(),
        Policy::prefer_host_numa(0), Policy::none().accessed_by(here),
        Policy::none().accessed_by(host), Policy::read_mostly().accessed_by(here),
        Policy::prefer_device(device).accessed_by(host), Policy::prefer_host().accessed_by(here),
        Policy::prefer_host_numa(0).accessed_by(here),
        Policy::prefer_host().accessed_by(host).accessed_by(here)}) {
    SCOPED_TRACE(policy.text());
    const Result<HintUndo> undo = hints.try_apply(policy);
    if (!undo) {
      // Drivers before CUDA 12.2 have no word for a NUMA node.
      EXPECT_EQ(cuda::code(undo), "unsupported");
      EXPECT_TRUE(policy.preferred() == Place::host_numa(0)) << undo.failure().text();
      expect_in_force(Policy::none());
      continue;
    }
    EXPECT_EQ(undo->report().is_sent(), !policy.is_default());
    expect_in_force(policy);
    undo->restore();
    expect_in_force(Policy::none());
  }
  EXPECT_EQ(buffer.read_host()[4 * mib - 1], 1);
}

// --- Errors and sharing

TEST(ManagedBuffer, MayBeNothing) {
  const auto fake = std::make_shared<test::FakeDevice>();
  const Stream stream(fake->device);
  const std::size_t before = fake->ledger->total();
  ManagedBuffer<int> none, empty(fake->device, {0});
  EXPECT_EQ(none.size(), 0u);
  EXPECT_FALSE(none.host_waits_for_device());
  EXPECT_TRUE(empty.discard_host().empty());
  EXPECT_TRUE(empty.read_host().empty());
  EXPECT_EQ(cuda::code(none.try_read_host()), "not_allocated");
  EXPECT_EQ(cuda::code(none.try_rw_device(stream)), "not_allocated");
  EXPECT_EQ(cuda::code(none.try_slice(0, 1)), "not_allocated");
  EXPECT_EQ(fake->ledger->total(), before);
}

TEST(ManagedBuffer, NeedsADeviceWithManagedMemory) {
  const test::FakeDevice fake({.describe = [](DeviceInfo& info) {
    info.capabilities = info.capabilities.without(Capability::managed_memory);
  }});
  const auto refused = ManagedBuffer<float>::try_make(fake.device, {16});
  ASSERT_EQ(cuda::code(refused), "unsupported");
  EXPECT_EQ(refused.failure().string("what"), "managed_memory");
  EXPECT_EQ(refused.failure().string("device"), "fake:0");
  EXPECT_EQ(refused.failure().text(),
            "'fake:0' has no managed memory. Use a UnifiedBuffer, which has a copy in each place.");
  EXPECT_THROW(ManagedBuffer<float>(fake.device, {16}), Unsupported);
  EXPECT_EQ(cuda::code(ManagedBuffer<float>::try_make(Device(), {16})), "invalid_device");
}

TEST(ManagedBuffer, RefusesOtherMemoryAndSizesThatCannotBe) {
  const Device device = sim::open({});
  constexpr std::size_t most = std::numeric_limits<std::size_t>::max();
  EXPECT_EQ(cuda::code(ManagedBuffer<std::uint8_t>::try_make(device, {most})), "size_overflow");
  EXPECT_EQ(cuda::code(ManagedBuffer<float>::try_make(device, {most})), "size_overflow");
  const ResourceHandle plain = try_default_resource(device, MemoryKind::device).value();
  const auto refused = ManagedBuffer<float>::try_make(device, {16}, {.resource = plain});
  ASSERT_EQ(cuda::code(refused), "invalid_argument");
  EXPECT_EQ(refused.failure().string("value"), "device");
}

TEST(ManagedBuffer, MakesTheHostWaitForADeviceThatCannotShare) {
  sim::Options options;
  options.policy = sim::Policy::lazy;
  options.concurrent_managed = false;
  const Device device = sim::open(options);
  const Stream stream(device), other(device);
  ManagedBuffer<std::uint32_t> buffer(device, {64});
  EXPECT_TRUE(buffer.host_waits_for_device());
  void* const plain = device.allocate(MemoryKind::device, 256);
  {
    const auto lease = buffer.discard_device(stream);
    stream.fill(lease.data(), 64, 3u);
  }
  other.fill(static_cast<std::uint32_t*>(plain), 64, 1u);
  // Any work of the device that is left would be found.
  EXPECT_EQ(buffer.read_host()[0], 3u);
  other.fill(static_cast<std::uint32_t*>(plain), 64, 2u);
  { buffer.rw_host()[0] = 4; }
  other.fill(static_cast<std::uint32_t*>(plain), 64, 3u);
  { std::ranges::fill(buffer.discard_host(), 5u); }
  EXPECT_TRUE(sim::findings(device).empty());
  EXPECT_TRUE(other.is_idle());
  device.release(plain);
}

TEST(ManagedBuffer, IsUsedByEveryDeviceThatSharesIt) {
  const std::vector<Device> devices = sim::open_peers({}, 2);
  const Stream first(devices[0]), second(devices[1]);
  ManagedBuffer<std::uint32_t> buffer(devices[0], {64});
  {
    const auto lease = buffer.discard_device(second);
    second.fill(lease.data(), 64, 3u);
  }
  std::vector<std::uint32_t> seen(64);
  {
    const auto lease = buffer.read_device(first);
    first.copy(seen.data(), lease.data(), 256);
  }
  first.synchronize();
  EXPECT_EQ(seen[0], 3u);
  const test::FakeDevice fake;
  const Stream foreign(fake.device);
  EXPECT_EQ(cuda::code(buffer.try_read_device(foreign)), "device_mismatch");
  EXPECT_EQ(cuda::code(buffer.try_read_device(StreamRef())), "device_mismatch");
  EXPECT_TRUE(sim::findings(devices[0]).empty());
}

TEST(ManagedDeviceLease, CoversWhatIsSubmittedWhileItIsOpen) {
  const Device device = sim::open({});
  const Stream stream(device);
  ManagedBuffer<std::uint32_t> buffer(device, {64});
  static_assert(!std::is_copy_constructible_v<ManagedDeviceLease<int>>);
  static_assert(std::is_nothrow_move_constructible_v<ManagedDeviceLease<int>>);
  auto lease = buffer.discard_device(stream);
  EXPECT_EQ(lease.stream(), StreamRef(stream));
  stream.fill(lease.data(), 64, 1u);
  ManagedDeviceLease<std::uint32_t> moved = std::move(lease);
  EXPECT_EQ(lease.data(), nullptr);  // NOLINT: what it is then is promised
  EXPECT_EQ(cuda::code(buffer.try_read_host()), "never_written");
  test::Thread([&] { moved.close(); }).join();
  EXPECT_EQ(moved.data(), nullptr);
  moved.close();
  EXPECT_EQ(buffer.read_host()[5], 1u);
  // One that is replaced is closed.
  ManagedBuffer<std::uint32_t> other(device, {64});
  moved = other.discard_device(stream);
  stream.fill(moved.data(), 64, 2u);
  moved = ManagedDeviceLease<std::uint32_t>();
  EXPECT_EQ(other.read_host()[5], 2u);
  EXPECT_TRUE(sim::findings(device).empty());
}

}  // namespace
}  // namespace tern
