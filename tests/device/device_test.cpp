#include "tern/device/device.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <thread>

#include "support/allocation_counter.hpp"
#include "support/fake_backend.hpp"
#include "support/forked_child.hpp"
#include "support/gate.hpp"
#include "support/thread.hpp"
#include "tern/core/bytes.hpp"
#include "tern/device/event.hpp"
#include "tern/device/stream.hpp"

namespace tern {
namespace {

using test::Call;
using test::FakeDevice;
using test::Gate;

template <class T>
void expect_code(const Result<T>& result, ErrorCode code) {
  ASSERT_FALSE(result) << "should be refused with " << name(code);
  EXPECT_EQ(name(result.failure().code()), name(code)) << result.failure().text();
}

TEST(Device, ThatIsNotOpenRefusesEverything) {
  const Device none;
  const auto refused = [](const auto& result) { expect_code(result, ErrorCode::invalid_device); };
  EXPECT_FALSE(none.is_open());
  EXPECT_FALSE(none.id());
  EXPECT_EQ(none.spec(), "");
  EXPECT_EQ(none, Device());
  for (const Capability capability : all_capabilities) EXPECT_FALSE(none.can(capability));
  refused(none.try_memory());
  refused(none.try_allocate(MemoryKind::device, 64));
  refused(none.try_allocate(MemoryKind::device, 0));
  refused(none.try_release(nullptr));
  refused(none.try_pointer_info(nullptr));
  refused(none.try_register_host(nullptr, 0));
  refused(none.try_unregister_host(nullptr));
  refused(none.try_reserve(0));
  refused(none.try_unreserve(nullptr, 0));
  refused(none.try_create_pages(0));
  refused(none.try_release_pages({}));
  refused(none.try_create_shareable_pages(0));
  refused(none.try_export_pages({}));
  refused(none.try_import_pages(0, 0));
  refused(none.try_map(nullptr, {}));
  refused(none.try_unmap(nullptr, 0));
  refused(none.try_set_access(nullptr, 0, PageAccess::read));
  refused(none.try_advise(nullptr, 0, Advice::set_read_mostly, Place::host()));
  refused(none.try_load_kernel({}));
  refused(none.try_synchronize());
  refused(none.try_enable_peer_access(none));
  refused(none.try_peer_access(none));
  refused(none.try_disable_peer_access(none));
  refused(Stream::try_make(none));
  refused(Event::try_make(none));
  none.unload_kernel({});
  EXPECT_EQ(none.default_stream(), StreamRef());
  EXPECT_THROW(static_cast<void>(none.memory()), InvalidDevice);
}

TEST(Device, CannotBeMadeOfNoBackend) {
  EXPECT_THROW(Device(std::unique_ptr<Backend>()), InvalidArgument);
}

TEST(Device, SaysOutOfMemoryWhenTheHeapIsExhaustedAndClosesTheBackend) {
  if (!test::HeapExhausted::is_possible()) GTEST_SKIP();
  const auto ledger = std::make_shared<test::Ledger>();
  std::unique_ptr<Backend> backend = test::make_fake_backend(ledger);
  bool is_refused = false;
  try {
    const test::HeapExhausted exhausted;
    const Device device(std::move(backend));
  } catch (const OutOfMemory&) {
    is_refused = true;
  }
  EXPECT_TRUE(is_refused);
  EXPECT_TRUE(ledger->has_closed());
}

TEST(Device, HasANumberOfItsOwn) {
  const FakeDevice a, b;
  EXPECT_NE(a.device.id(), b.device.id());
  EXPECT_EQ(a.device.place(), Place::device(a.device.id()));
  EXPECT_FALSE(a.device == b.device);
  const Device copy = a.device;
  EXPECT_EQ(copy, a.device);
}

TEST(Device, StaysOpenAsLongAsAnythingMadeFromIt) {
  for (int which = 0; which < 3; ++which) {
    auto fake = std::make_unique<FakeDevice>();
    const std::shared_ptr<test::Ledger> ledger = fake->ledger;
    Device copy;
    Stream stream;
    Event event;
    if (which == 0) copy = fake->device;
    if (which == 1) stream = Stream(fake->device);
    if (which == 2) event = Event(fake->device);
    fake.reset();
    EXPECT_FALSE(ledger->has_closed());
    if (which == 1) {
      EXPECT_TRUE(stream.try_synchronize());
    }
    copy = Device();
    stream = Stream();
    event = Event();
    EXPECT_TRUE(ledger->has_closed());
  }
}

TEST(Device, ReachesNoBackendForZeroBytes) {
  const FakeDevice fake;
  const Device& device = fake.device;
  const std::size_t before = fake.ledger->total();
  EXPECT_EQ(*device.try_allocate(MemoryKind::device, 0), nullptr);
  EXPECT_TRUE(device.try_release(nullptr));
  EXPECT_EQ(device.pointer_info(nullptr).kind, MemoryKind::host);
  EXPECT_EQ(*device.try_register_host(nullptr, 0), nullptr);
  EXPECT_TRUE(device.try_unregister_host(nullptr));
  EXPECT_TRUE(device.try_advise(nullptr, 0, Advice::set_read_mostly, Place::host()));
  EXPECT_TRUE(device.try_release_pages({}));
  device.unload_kernel({});
  EXPECT_EQ(fake.ledger->total(), before);
}

TEST(Device, ReachesNoBackendWithABadArgument) {
  const FakeDevice fake;
  const Device& device = fake.device;
  const std::size_t before = fake.ledger->total();
  const std::size_t too_much = max_request_bytes + 1;
  std::byte host[64];
  expect_code(device.try_allocate(MemoryKind::device, too_much), ErrorCode::size_overflow);
  expect_code(device.try_allocate(MemoryKind::device, 64, {.alignment = 3}),
              ErrorCode::invalid_argument);
  expect_code(device.try_allocate(MemoryKind::host, 64), ErrorCode::invalid_argument);
  expect_code(device.try_register_host(nullptr, 64), ErrorCode::invalid_argument);
  expect_code(device.try_register_host(host, too_much), ErrorCode::size_overflow);
  expect_code(device.try_reserve(1), ErrorCode::misaligned);
  expect_code(device.try_create_pages(max_request_bytes + 1), ErrorCode::size_overflow);
  expect_code(device.try_map(host + 1, {1}), ErrorCode::misaligned);
  expect_code(device.try_create_shareable_pages(1), ErrorCode::misaligned);
  expect_code(device.try_create_shareable_pages(max_request_bytes + 1), ErrorCode::size_overflow);
  expect_code(device.try_export_pages({}), ErrorCode::invalid_argument);
  expect_code(device.try_import_pages(-1, 2 * mib), ErrorCode::invalid_argument);
  expect_code(device.try_import_pages(0, 0), ErrorCode::invalid_argument);
  expect_code(device.try_import_pages(0, 1), ErrorCode::misaligned);
  expect_code(device.try_import_pages(0, max_request_bytes + 1), ErrorCode::size_overflow);
  expect_code(device.try_advise(nullptr, 64, Advice::set_read_mostly, Place::host()),
              ErrorCode::invalid_argument);
  expect_code(device.try_advise(host, too_much, Advice::set_read_mostly, Place::host()),
              ErrorCode::size_overflow);
  EXPECT_EQ(fake.ledger->total(), before);
}

/// A device without one capability, and what it is asked for.
struct Demand {
  Capability capability;
  std::function<Result<void>(const Device&)> ask;
};

template <class T>
Result<void> outcome(const Result<T>& result) {
  if (result) return {};
  return result.failure();
}

const Demand demands[] = {
    {Capability::pinned_memory,
     [](const Device& d) { return outcome(d.try_allocate(MemoryKind::pinned, 64)); }},
    {Capability::managed_memory,
     [](const Device& d) { return outcome(d.try_allocate(MemoryKind::managed, 64)); }},
    {Capability::registered_memory,
     [](const Device& d) { return outcome(d.try_register_host(nullptr, 64)); }},
    {Capability::registered_memory, [](const Device& d) { return d.try_unregister_host(nullptr); }},
    {Capability::virtual_memory, [](const Device& d) { return outcome(d.try_reserve(2 * mib)); }},
    {Capability::virtual_memory, [](const Device& d) { return d.try_unreserve(nullptr, 2 * mib); }},
    {Capability::virtual_memory,
     [](const Device& d) { return outcome(d.try_create_pages(2 * mib)); }},
    {Capability::virtual_memory, [](const Device& d) { return d.try_release_pages({}); }},
    {Capability::virtual_memory, [](const Device& d) { return d.try_map(nullptr, {}); }},
    {Capability::virtual_memory, [](const Device& d) { return d.try_unmap(nullptr, 2 * mib); }},
    {Capability::virtual_memory,
     [](const Device& d) { return d.try_set_access(nullptr, 2 * mib, PageAccess::read); }},
    {Capability::shareable_memory,
     [](const Device& d) { return outcome(d.try_create_shareable_pages(2 * mib)); }},
    {Capability::shareable_memory, [](const Device& d) { return outcome(d.try_export_pages({})); }},
    {Capability::shareable_memory,
     [](const Device& d) { return outcome(d.try_import_pages(0, 2 * mib)); }},
    {Capability::advice,
     [](const Device& d) { return d.try_advise(nullptr, 0, Advice::set_accessed_by, d.place()); }},
    {Capability::kernels, [](const Device& d) { return outcome(d.try_load_kernel({})); }},
    {Capability::kernels,
     [](const Device& d) { return d.default_stream().try_launch({}, {}, {}); }},
    {Capability::event_timing, [](const Device& d) { return outcome(Event::try_make_timed(d)); }},
    {Capability::stream_ordered_memory,
     [](const Device& d) { return outcome(d.default_stream().try_allocate(64)); }},
    {Capability::stream_ordered_memory,
     [](const Device& d) { return d.default_stream().try_release(nullptr); }},
    {Capability::host_functions,
     [](const Device& d) { return d.default_stream().try_call([](void*) {}, nullptr); }},
    {Capability::prefetch,
     [](const Device& d) { return d.default_stream().try_prefetch(nullptr, 0, d.place()); }},
    {Capability::prefetch,
     [](const Device& d) { return d.default_stream().try_prefetch_batch({}); }},
    {Capability::discard,
     [](const Device& d) { return d.default_stream().try_discard(nullptr, 0); }},
    {Capability::peer_copies,
     [](const Device& d) { return d.default_stream().try_copy_from_peer(nullptr, d, nullptr, 0); }},
};

TEST(Device, RefusesEachAbilityItDidNotDeclareBeforeTheBackendIsAsked) {
  for (const Demand& demand : demands) {
    const FakeDevice fake({.describe = [&](DeviceInfo& info) {
      info.capabilities = info.capabilities.without(demand.capability);
    }});
    const std::size_t before = fake.ledger->total();
    const Result<void> refused = demand.ask(fake.device);
    expect_code(refused, ErrorCode::unsupported);
    EXPECT_EQ(refused.failure().string("what"), name(demand.capability));
    EXPECT_EQ(refused.failure().string("device"), "fake:0");
    EXPECT_EQ(fake.ledger->total(), before) << name(demand.capability);
  }
}

TEST(Device, PassesOnWhatItsBackendSaysWithTheCallersLine) {
  const FakeDevice fake;
  fake.ledger->fail_next(Call::allocate);
  const CallSite here = CallSite::here();
  const Result<void*> failed = fake.device.try_allocate(MemoryKind::device, 64, {.site = here});
  expect_code(failed, ErrorCode::driver);
  EXPECT_EQ(failed.failure().site().line, here.line);
  EXPECT_EQ(failed.failure().number("code"), 7u);

  void* address = fake.device.allocate(MemoryKind::device, 64);
  fake.ledger->fail_next(Call::release);
  expect_code(fake.device.try_release(address, here), ErrorCode::driver);
  EXPECT_TRUE(fake.device.try_release(address));
}

TEST(Device, RegistersAdvisesAndPeersWhereItsBackendCan) {
  const FakeDevice fake, peer, foreign({.backend = "other"});
  std::byte host[64];
  EXPECT_EQ(*fake.device.try_register_host(host, 64), host);
  EXPECT_TRUE(fake.device.try_unregister_host(host));
  EXPECT_TRUE(fake.device.try_advise(host, 64, Advice::set_read_mostly, Place::host()));
  EXPECT_TRUE(*fake.device.try_enable_peer_access(peer.device));
  EXPECT_TRUE(*fake.device.try_enable_peer_access(fake.device));
  EXPECT_EQ(fake.ledger->count(Call::enable_peer_access), 1u);
  EXPECT_FALSE(*fake.device.try_enable_peer_access(foreign.device));
  expect_code(fake.device.try_enable_peer_access(Device()), ErrorCode::invalid_device);
}

TEST(Device, SaysWhichPeersItMayUseAndStopsWhenItIsTold) {
  const FakeDevice fake, peer, foreign({.backend = "other"});
  EXPECT_EQ(fake.device.peer_access(peer.device), PeerAccess::disabled);
  EXPECT_TRUE(fake.device.enable_peer_access(peer.device));
  EXPECT_EQ(fake.device.peer_access(peer.device), PeerAccess::enabled);
  fake.device.disable_peer_access(peer.device);
  EXPECT_EQ(fake.device.peer_access(peer.device), PeerAccess::disabled);
  EXPECT_EQ(fake.ledger->count(Call::disable_peer_access), 1u);

  EXPECT_EQ(fake.device.peer_access(fake.device), PeerAccess::enabled);
  expect_code(fake.device.try_disable_peer_access(fake.device), ErrorCode::invalid_argument);
  EXPECT_EQ(fake.device.peer_access(foreign.device), PeerAccess::unavailable);
  EXPECT_TRUE(fake.device.try_disable_peer_access(foreign.device));
  EXPECT_EQ(fake.ledger->count(Call::disable_peer_access), 1u);
  expect_code(fake.device.try_peer_access(Device()), ErrorCode::invalid_device);
  expect_code(fake.device.try_disable_peer_access(Device()), ErrorCode::invalid_device);
  fake.ledger->fail_next(Call::peer_access);
  expect_code(fake.device.try_peer_access(peer.device), ErrorCode::driver);
  fake.ledger->fail_next(Call::disable_peer_access);
  expect_code(fake.device.try_disable_peer_access(peer.device), ErrorCode::driver);
}

/// Does what() of what it throws begin with the line of the call?
template <class Call>
void expect_line(Call call, std::uint32_t line) {
  try {
    call();
    ADD_FAILURE() << "line " << line << " throws nothing";
  } catch (const std::exception& error) {
    const std::string begin = std::string(__FILE__) + ":" + std::to_string(line) + ": ";
    EXPECT_EQ(std::string(error.what()).substr(0, begin.size()), begin);
  }
}

TEST(Device, SaysOnWhichLineACallThatFailsWasMade) {
  const Device none;
  const StreamRef no_stream;
  const FakeDevice fake;
  const Event event(fake.device);
  expect_line([&] { static_cast<void>(none.memory()); }, __LINE__);
  expect_line([&] { static_cast<void>(none.pointer_info(nullptr)); }, __LINE__);
  expect_line([&] { static_cast<void>(none.allocate(MemoryKind::device, 1)); }, __LINE__);
  expect_line([&] { none.release(nullptr); }, __LINE__);
  expect_line([&] { none.synchronize(); }, __LINE__);
  expect_line([&] { static_cast<void>(none.peer_access(none)); }, __LINE__);
  expect_line([&] { static_cast<void>(none.enable_peer_access(none)); }, __LINE__);
  expect_line([&] { none.disable_peer_access(none); }, __LINE__);
  expect_line([&] { Stream stream(none); }, __LINE__);
  expect_line([&] { Event other(none); }, __LINE__);
  expect_line([&] { static_cast<void>(Stream::borrow(none, {})); }, __LINE__);
  expect_line([&] { no_stream.synchronize(); }, __LINE__);
  expect_line([&] { static_cast<void>(no_stream.mark()); }, __LINE__);
  expect_line([&] { static_cast<void>(no_stream.is_idle()); }, __LINE__);
  expect_line([&] { no_stream.copy(nullptr, nullptr, 1); }, __LINE__);
  expect_line([&] { static_cast<void>(event.elapsed_ns(event)); }, __LINE__);
}

TEST(Device, CompletesItsWorkBeforeItCloses) {
  auto fake = std::make_unique<FakeDevice>();
  std::atomic<bool> has_run = false;
  Gate gate;
  {
    const Stream stream(fake->device);
    gate.hold(stream);
    stream.call([](void* context) { *static_cast<std::atomic<bool>*>(context) = true; }, &has_run);
  }
  test::Thread closer([&] { fake.reset(); });
  gate.open();
  closer.join();
  EXPECT_TRUE(has_run);
}

TEST(Device, ClosesInAForkedChildThoughItsThreadsAreNotThere) {
  auto fake = std::make_unique<FakeDevice>(test::FakeOptions{.threads = 2});
  {
    std::vector<std::byte> bytes(4 * mib);
    const Stream stream(fake->device);
    stream.fill(bytes.data(), bytes.size(), std::byte{1});  // by a team of two
    stream.synchronize();
  }
  for (int i = 0; i < 1000; ++i) std::this_thread::yield();  // the stream's thread leaves
  const int outcome = test::in_a_forked_child([&] {
    fake.reset();
    return true;
  });
  EXPECT_EQ(outcome, 0);
}

TEST(Device, RefusesMemoryInAForkedChildUnlessItWorksThere) {
  const FakeDevice fake({.describe = [](DeviceInfo& info) {
    info.capabilities = info.capabilities.without(Capability::memory_after_fork);
  }});
  void* address = fake.device.allocate(MemoryKind::device, 64);
  const int outcome = test::in_a_forked_child([&] {
    return test::is_after_fork(fake.device.try_allocate(MemoryKind::device, 64)) &&
           test::is_after_fork(fake.device.try_release(address)) &&
           test::is_after_fork(fake.device.try_release(nullptr));
  });
  EXPECT_EQ(outcome, 0);
  fake.device.release(address);
}

TEST(Device, OfTheChildDoesNotWaitForOneOfTheParent) {
  if (!test::children_can_start_threads) GTEST_SKIP() << "needs a thread in a forked child";
  const FakeDevice parents;
  const Stream stream(parents.device);
  Event event(parents.device);
  Gate gate;
  gate.hold(stream);
  stream.record(event);
  const Mark mark = stream.mark();
  const int outcome = test::in_a_forked_child([&] {
    const FakeDevice own;
    const Stream mine(own.device);
    std::byte a[64], b[64];
    return test::is_after_fork(mine.try_wait(mark)) && test::is_after_fork(mine.try_wait(event)) &&
           test::is_after_fork(mine.try_copy_from_peer(a, parents.device, b, 64)) &&
           test::is_after_fork(own.device.try_enable_peer_access(parents.device)) &&
           bool(mine.try_fill(a, 64, std::byte{1})) && bool(mine.try_synchronize());
  });
  EXPECT_EQ(outcome, 0);
}

}  // namespace
}  // namespace tern
