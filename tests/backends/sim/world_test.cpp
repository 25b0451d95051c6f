// What the simulation detects besides the order checker: dead handles, kernels that access
// undeclared memory, the wrong device, calls from host functions, and waits that never end. The
// full texts are compared.

#include "backends/sim/world.hpp"

#include <gtest/gtest.h>

#include <array>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "backends/sim/sim_backend.hpp"
#include "device/device_state.hpp"
#include "support/thorough.hpp"
#include "support/thread.hpp"
#include "tern/backends/sim.hpp"
#include "tern/device/event.hpp"

namespace tern {
namespace {

constexpr std::size_t bytes = 4096;

constexpr CallSite at(std::uint32_t line) { return {"src/app.cpp", "run", line}; }

/// Two peers, a stream and a block of each.
struct Peers {
  explicit Peers(const sim::Options& options = {.policy = sim::Policy::lazy})
      : devices(sim::open_peers(options, 2)),
        a(devices[0], {.name = "A"}),
        b(devices[1], {.name = "B"}) {
    here = allocate(0, "here");
    there = allocate(1, "there");
    a.fill(here, bytes, std::byte{1});
    b.fill(there, bytes, std::byte{2});
    for (const Device& device : devices) device.synchronize();
  }
  [[nodiscard]] std::byte* allocate(std::size_t device, const char* tag) const {
    return static_cast<std::byte*>(
        devices[device].allocate(MemoryKind::device, bytes, {.tag = tag, .site = at(10)}));
  }
  /// The one finding there is.
  [[nodiscard]] std::string text() const {
    const std::vector<Finding> found = sim::findings(devices[0]);
    EXPECT_EQ(found.size(), 1u);
    return found.empty() ? "" : found.front().text();
  }

  std::vector<Device> devices;
  Stream a, b;
  std::byte* here = nullptr;
  std::byte* there = nullptr;
};

template <class T>
KernelArgument ranged(T*& address, std::size_t size, Access access) {
  return {&address, sizeof address, address, size, access};
}

sim::World& world_of(const Device& device) {
  return *sim::world_of(DeviceState::of(device)->backend());
}

// --- Places

TEST(SimWorld, S401AStreamWorksOnMemoryOfAnotherDevice) {
  Peers p;
  const Result<void> filled = p.a.try_fill(p.there, bytes, std::byte{3}, at(20));
  ASSERT_FALSE(filled);
  EXPECT_EQ(filled.failure().code(), ErrorCode::violation);
  EXPECT_EQ(
      p.text(),
      R"(TERN-S401 wrong-device                          2 devices  seed 0x0  schedule lazy  step 13
  what    a stream of sim:0 uses memory of sim:1
  now     A@2   fill [0x0, +4 KiB)  src/app.cpp:20 in run
  block   generation 1, 4 KiB by H0@2  tag "there"  src/app.cpp:10 in run
  fix     use a stream of sim:1, or copy_from_peer between the two
  replay  TERN_SIM_SEED=0x0 TERN_SIM_SCHEDULE=lazy
)");
  EXPECT_FALSE(p.a.try_copy(p.here, p.there, bytes));
  EXPECT_FALSE(p.a.try_copy_2d({p.here, 64, p.there, 64, 64, 2}));
  EXPECT_TRUE(p.a.try_copy_from_peer(p.here, p.devices[1], p.there, bytes));
  p.devices[0].synchronize();
  EXPECT_EQ(sim::findings(p.devices[0]).size(), 3u);
}

TEST(SimWorld, S401IsCollectedAndTheWorkDone) {
  Peers p({.policy = sim::Policy::lazy, .mode = sim::Mode::collect});
  EXPECT_TRUE(p.a.try_fill(p.there, bytes, std::byte{3}));
  p.devices[0].synchronize();
  std::byte got{};
  p.b.copy(&got, p.there, 1);
  p.b.synchronize();
  EXPECT_EQ(got, std::byte{3});
  EXPECT_EQ(sim::findings(p.devices[0]).size(), 1u);
}

TEST(SimWorld, S402AKernelUsesMemoryOfAPeerWithoutAccess) {
  Peers p;
  const NativeKernel kernel = p.devices[0].try_load_kernel({.entry = "sum"}).value();
  const KernelArgument arguments[] = {ranged(p.here, bytes, Access::read_write),
                                      ranged(p.there, bytes, Access::read)};
  ASSERT_FALSE(p.a.try_launch(kernel, {}, arguments, at(30)));
  EXPECT_EQ(
      p.text(),
      R"(TERN-S402 no-peer-access                        2 devices  seed 0x0  schedule lazy  step 13
  what    kernel "sum" on sim:0 uses memory of sim:1 without peer access
  now     A@2   kernel "sum" reads [0x0, +4 KiB)  src/app.cpp:30 in run
  block   generation 1, 4 KiB by H0@2  tag "there"  src/app.cpp:10 in run
  fix     call enable_peer_access on sim:0 with sim:1 first, or copy the bytes
  replay  TERN_SIM_SEED=0x0 TERN_SIM_SCHEDULE=lazy
)");
  EXPECT_EQ(p.devices[0].peer_access(p.devices[1]), PeerAccess::disabled);
  EXPECT_TRUE(p.devices[0].try_enable_peer_access(p.devices[1]).value());
  EXPECT_EQ(p.devices[0].peer_access(p.devices[1]), PeerAccess::enabled);
  EXPECT_EQ(p.devices[1].peer_access(p.devices[0]), PeerAccess::disabled);
  EXPECT_TRUE(p.a.try_launch(kernel, {}, arguments));
  // Access goes one way.
  const NativeKernel back = p.devices[1].try_load_kernel({.entry = "sum"}).value();
  p.devices[0].synchronize();
  EXPECT_FALSE(p.b.try_launch(back, {}, arguments));
  // And ends when it is taken back.
  p.devices[0].disable_peer_access(p.devices[1]);
  EXPECT_EQ(p.devices[0].peer_access(p.devices[1]), PeerAccess::disabled);
  EXPECT_FALSE(p.a.try_launch(kernel, {}, arguments));
  p.devices[1].unload_kernel(back);
  p.devices[0].unload_kernel(kernel);
}

TEST(SimWorld, S403TheHostTouchesManagedMemoryWhileADeviceWithoutConcurrencyWorks) {
  const Device device = sim::open({.policy = sim::Policy::lazy, .concurrent_managed = false});
  const Stream a(device, {.name = "A"});
  auto* managed = static_cast<std::byte*>(
      device.allocate(MemoryKind::managed, bytes, {.tag = "shared", .site = at(10)}));
  auto* other = static_cast<std::byte*>(device.allocate(MemoryKind::device, bytes));
  sim::host_write(device, managed, bytes);
  a.fill(other, bytes, std::byte{1});  // it does not even touch what the host does
  EXPECT_THROW(sim::host_read(device, managed + 16, 16, at(40)), Violation);
  ASSERT_EQ(sim::findings(device).size(), 1u);
  EXPECT_EQ(
      sim::findings(device).front().text(),
      R"(TERN-S403 managed-while-busy                    sim:0  seed 0x0  schedule lazy  step 7
  what    the host accesses managed memory while A@1 may still run, and sim:0 cannot share managed memory with the host while it works
  now     H0@4  host read 16 B  src/app.cpp:40 in run
  block   generation 1, 4 KiB of host memory by H0@1  tag "shared"  src/app.cpp:10 in run
  fix     wait for A@1, or for the whole device, before the access
  replay  TERN_SIM_SEED=0x0 TERN_SIM_SCHEDULE=lazy
)");
  device.synchronize();
  sim::host_read(device, managed, bytes);
  EXPECT_EQ(sim::findings(device).size(), 1u);
}

TEST(SimWorld, ManagedMemoryIsTheHostsAtAnyTimeWithConcurrency) {
  const Device device = sim::open({.policy = sim::Policy::lazy});
  const Stream a(device);
  void* managed = device.allocate(MemoryKind::managed, bytes);
  void* other = device.allocate(MemoryKind::device, bytes);
  sim::host_write(device, managed, bytes);
  a.fill(static_cast<std::byte*>(other), bytes, std::byte{1});
  sim::host_read(device, managed, bytes);
  EXPECT_TRUE(sim::findings(device).empty());
}

// --- Calls from inside

TEST(SimWorld, S404AHostFunctionCallsTheDevice) {
  const Device device = sim::open({.policy = sim::Policy::lazy});
  const Stream a(device, {.name = "A"});
  struct Inside {
    const Device& device;
    const Stream& stream;
    std::vector<ErrorCode> codes = {};
  } inside{device, a};
  a.call(
      [](void* context) {
        auto& self = *static_cast<Inside*>(context);
        std::byte from{}, to{};
        const auto note = [&](const auto& result) {
          self.codes.push_back(result ? ErrorCode::timeout : result.failure().code());
        };
        note(self.stream.try_copy(&to, &from, 1, at(51)));
        note(self.stream.try_synchronize());
        note(self.device.try_allocate(MemoryKind::device, 64));
        note(self.device.try_memory());
      },
      &inside, at(50));
  a.synchronize();
  EXPECT_EQ(inside.codes.size(), 4u);
  for (const ErrorCode code : inside.codes) EXPECT_EQ(name(code), name(ErrorCode::violation));
  ASSERT_FALSE(sim::findings(device).empty());
  EXPECT_EQ(
      sim::findings(device).front().text(),
      R"(TERN-S404 call-in-host-function                 sim:0  seed 0x0  schedule lazy  step 3
  what    a host function calls copy() on the device that runs it
  now     A@1   host function  src/app.cpp:50 in run
  fix     make the call on the host, after waiting for the stream
  replay  TERN_SIM_SEED=0x0 TERN_SIM_SCHEDULE=lazy
)");
  EXPECT_EQ(sim::findings(device).front().site.line, 51u);
  EXPECT_TRUE(a.try_call([](void*) {}, nullptr));  // it works as before
  EXPECT_TRUE(a.try_synchronize());
}

TEST(SimWorld, OptionsThatMakeNoSenseAreRefused) {
  EXPECT_THROW(static_cast<void>(sim::open({.memory_bytes = 0})), InvalidArgument);
  EXPECT_THROW(static_cast<void>(sim::open({.memory_bytes = 1000})), InvalidArgument);
  EXPECT_THROW(static_cast<void>(sim::open({.memory_bytes = ~std::size_t{0}})), InvalidArgument);
  EXPECT_THROW(static_cast<void>(sim::open({.policy = sim::Policy(77)})), InvalidArgument);
  EXPECT_THROW(static_cast<void>(sim::open({.pct_depth = 9})), InvalidArgument);
  EXPECT_THROW(static_cast<void>(sim::open({.mode = sim::Mode(77)})), InvalidArgument);
  EXPECT_THROW(static_cast<void>(sim::open_peers({}, 0)), InvalidArgument);
  EXPECT_THROW(static_cast<void>(sim::open_peers({}, 1000)), InvalidArgument);
  EXPECT_THROW(sim::for_every_schedule({.memory_bytes = 0}, 1, [](const Device&) {}),
               InvalidArgument);
  const Device device = sim::open({});
  EXPECT_THROW(sim::host_read(device, nullptr, 4), InvalidArgument);
  EXPECT_NO_THROW(sim::host_read(device, nullptr, 0));
}

TEST(SimWorld, PagesThatAreNeverReleasedLeak) {
  const Device device = sim::open({});
  const NativePages pages = device.try_create_pages(2 * device.info().page_bytes).value();
  ASSERT_EQ(sim::leaks(device).size(), 1u);
  EXPECT_EQ(sim::leaks(device).front().what, "4 MiB of pages were never released");
  ASSERT_TRUE(device.try_release_pages(pages));
  EXPECT_TRUE(sim::leaks(device).empty());
}

TEST(SimWorld, S404AKernelCallsTheDevice) {
  const Device device = sim::open({.policy = sim::Policy::eager});
  const Stream a(device, {.name = "A"});
  Device handed = device;
  const NativeKernel kernel = device
                                  .try_load_kernel({.entry = "recursive",
                                                    .body =
                                                        [](const KernelCall& call) {
                                                          auto& self =
                                                              *static_cast<Device*>(call.context);
                                                          static_cast<void>(self.try_synchronize());
                                                        },
                                                    .context = &handed})
                                  .value();
  a.launch(kernel, {}, {});
  ASSERT_EQ(sim::findings(device).size(), 1u);
  EXPECT_EQ(sim::findings(device).front().what,
            "a kernel calls synchronize() on the device that runs it");
}

// --- Dead handles

TEST(SimWorld, S205AKernelIsLaunchedAfterItWasUnloaded) {
  const Device device = sim::open({.policy = sim::Policy::lazy});
  const Stream a(device, {.name = "A"});
  const NativeKernel kernel = device.try_load_kernel({.entry = "gone"}).value();
  device.unload_kernel(kernel);
  const Result<void> launched = a.try_launch(kernel, {}, {}, at(60));
  ASSERT_FALSE(launched);
  EXPECT_EQ(launched.failure().code(), ErrorCode::use_after_free);
  ASSERT_EQ(sim::findings(device).size(), 1u);
  EXPECT_EQ(
      sim::findings(device).front().text(),
      R"(TERN-S205 dead-handle                           sim:0  seed 0x0  schedule lazy  step 3
  what    kernel 1 is launched after it was unloaded
  now     A@1   launch  src/app.cpp:60 in run
  fix     keep it loaded until its last launch is submitted
  replay  TERN_SIM_SEED=0x0 TERN_SIM_SCHEDULE=lazy
)");
}

TEST(SimWorld, S205PagesAreMappedAfterTheyWereReleased) {
  const Device device = sim::open({.policy = sim::Policy::lazy});
  const std::size_t page = device.info().page_bytes;
  void* reserved = device.try_reserve(page).value();
  const NativePages pages = device.try_create_pages(page).value();
  ASSERT_TRUE(device.try_release_pages(pages));
  EXPECT_EQ(device.try_map(reserved, pages).failure().code(), ErrorCode::use_after_free);
  EXPECT_EQ(device.try_release_pages(pages).failure().code(), ErrorCode::use_after_free);
  const std::vector<Finding> found = sim::findings(device);
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(code_text(found[0].code), "TERN-S205");
  EXPECT_EQ(found[0].now, "H0@1  map");
  EXPECT_EQ(found[1].now, "H0@1  release_pages");
  ASSERT_TRUE(device.try_unreserve(reserved, page));
}

// --- Frees that free nothing

TEST(SimWorld, S202MemoryIsFreedTwice) {
  const Device device = sim::open({.policy = sim::Policy::lazy});
  void* block = device.allocate(MemoryKind::device, bytes, {.tag = "column", .site = at(10)});
  device.release(block, at(11));
  const Result<void> again = device.try_release(block, at(12));
  ASSERT_FALSE(again);
  EXPECT_EQ(again.failure().code(), ErrorCode::use_after_free);
  ASSERT_EQ(sim::findings(device).size(), 1u);
  EXPECT_EQ(
      sim::findings(device).front().text(),
      R"(TERN-S202 double-free                           sim:0  seed 0x0  schedule lazy  step 4
  what    [0x0, +4 KiB) is freed by H0 after it was freed
  now     H0@3  deallocate  src/app.cpp:12 in run
  before  H0@2  deallocate  src/app.cpp:11 in run
          H0@1  allocate 4 KiB  tag "column"  src/app.cpp:10 in run
  block   generation 1, 4 KiB by H0@1  tag "column"  src/app.cpp:10 in run
  order   H0@2 comes before H0@3 in the same thread; no wait fixes this
  fix     deallocate each block once, by the handle that owns it
  replay  TERN_SIM_SEED=0x0 TERN_SIM_SCHEDULE=lazy
)");
}

TEST(SimWorld, S202AndS203AreFoundForEveryWayToFree) {
  const Device device = sim::open({.policy = sim::Policy::lazy});
  const Stream a(device);
  void* ordered = a.allocate(bytes);
  a.release(ordered);
  EXPECT_FALSE(a.try_release(ordered));
  auto* inside = static_cast<std::byte*>(device.allocate(MemoryKind::device, bytes));
  EXPECT_FALSE(device.try_release(inside + 16));
  void* pinned = device.allocate(MemoryKind::pinned, bytes);
  device.release(pinned);
  EXPECT_FALSE(device.try_release(pinned));
  std::string codes;
  for (const Finding& finding : sim::findings(device)) codes += code_text(finding.code) + " ";
  EXPECT_EQ(codes, "TERN-S202 TERN-S203 TERN-S202 ");
  EXPECT_TRUE(device.try_release(inside));
}

// --- Pools of users

TEST(SimWorld, APoolOfOnesOwnIsChecked) {
  const Device device = sim::open({.policy = sim::Policy::lazy});
  const Stream a(device, {.name = "A"}), b(device, {.name = "B"});
  auto* slab = static_cast<std::byte*>(device.allocate(MemoryKind::device, 64 * 1024));
  const Suballocation piece{slab, bytes, 1};
  a.note_suballocate(piece, "x");
  a.fill(slab, bytes, std::byte{1});
  a.note_subrelease(piece);
  b.note_suballocate({slab, bytes, 2});  // nobody has waited for A
  EXPECT_FALSE(b.try_fill(slab, bytes, std::byte{2}));
  EXPECT_EQ(code_text(sim::findings(device).front().code), "TERN-S103");
}

// --- Kernels and what they declare

struct Strict : testing::Test {
  [[nodiscard]] std::byte* allocate(const char* tag, std::size_t size) const {
    auto* block = static_cast<std::byte*>(
        device.allocate(MemoryKind::device, size, {.tag = tag, .site = at(10)}));
    a.fill(block, size, std::byte{1});
    return block;
  }
  /// Runs the body with `input` and `output` declared; it finds `weights` by itself.
  Result<void> run(KernelBody body) {
    const NativeKernel kernel =
        device.try_load_kernel({.entry = "scale", .body = body, .context = this}).value();
    const KernelArgument arguments[] = {ranged(input, bytes, Access::read),
                                        ranged(output, 100, Access::read_write)};
    a.launch(kernel, {}, arguments, at(70));
    Result<void> waited = a.try_synchronize();
    device.unload_kernel(kernel);
    return waited;
  }
  [[nodiscard]] std::vector<Finding> found() const { return sim::findings(device); }
  [[nodiscard]] std::byte read(const std::byte* source) const {
    std::byte value{};
    a.copy(&value, source, 1);
    a.synchronize();
    return value;
  }

  Device device = sim::open({.policy = sim::Policy::lazy, .strict_kernels = true});
  Stream a{device, {.name = "A"}};
  std::byte* input = allocate("input", bytes);
  std::byte* output = allocate("output", bytes);
  std::byte* weights = allocate("weights", 64 * 1024);
  std::byte* many = allocate("many", 1'000 * 4096);
  std::byte* other_block = nullptr;
};

TEST_F(Strict, KernelsThatKeepToWhatTheyDeclaredAreQuiet) {
  const Result<void> waited = run([](const KernelCall& call) {
    const auto* in = call.argument<std::byte*>(0);
    auto* out = call.argument<std::byte*>(1);
    for (int i = 0; i < 100; ++i) out[i] = std::byte(std::to_integer<int>(in[i]) + 4);
  });
  EXPECT_TRUE(waited);
  EXPECT_TRUE(found().empty());
  EXPECT_EQ(read(output + 99), std::byte{5});
  EXPECT_EQ(read(output + 100), std::byte{1});
}

TEST_F(Strict, S303AKernelTouchesWhatItDidNotDeclare) {
  const Result<void> waited = run([](const KernelCall& call) {
    auto& self = *static_cast<Strict*>(call.context);
    *call.argument<std::byte*>(1) = self.weights[0x2010];
  });
  // Whoever waits for the kernel hears of it; then everything goes on.
  ASSERT_FALSE(waited);
  EXPECT_EQ(waited.failure().code(), ErrorCode::violation);
  ASSERT_EQ(found().size(), 1u);
  EXPECT_EQ(
      found().front().text(),
      R"(TERN-S303 undeclared-access                     sim:0  seed 0x0  schedule lazy  step 11
  what    kernel "scale" touched "weights", which it did not declare
  now     A@5   kernel "scale" touched [0x4010, +1 B)  src/app.cpp:70 in run
  block   generation 1, 64 KiB by H0@3  tag "weights"  src/app.cpp:10 in run
  fix     declare the range as an argument of the launch, or do not access it
  replay  TERN_SIM_SEED=0x0 TERN_SIM_SCHEDULE=lazy
)");
  EXPECT_TRUE(a.try_fill(output, 8, std::byte{0}));
  EXPECT_EQ(read(output + 8), std::byte{1});
}

TEST_F(Strict, S303AKernelWritesWhatItDeclaredToRead) {
  EXPECT_FALSE(run([](const KernelCall& call) { call.argument<std::byte*>(0)[7] = std::byte{9}; }));
  ASSERT_EQ(found().size(), 1u);
  EXPECT_EQ(found().front().what,
            "kernel \"scale\" wrote to \"input\", which it declared for reading only");
  EXPECT_EQ(found().front().fix,
            "declare the range for writing too, as inout() does, or do not write to it");
}

TEST_F(Strict, S303AThreadOfAKernelTouchesWhatTheKernelDidNotDeclare) {
  const Result<void> waited = run([](const KernelCall& call) {
    auto& self = *static_cast<Strict*>(call.context);
    test::Thread([&] {
      for (std::size_t i = 0; i < 100; ++i) call.argument<std::byte*>(1)[i] = std::byte{3};
      self.weights[0x2010] = std::byte{7};
    }).join();
  });
  EXPECT_FALSE(waited);
  ASSERT_EQ(found().size(), 1u);
  EXPECT_EQ(found().front().code, FindingCode::undeclared_access);
  EXPECT_EQ(found().front().what,
            "a thread touched \"weights\" while kernel \"scale\" ran, which the kernel did not "
            "declare");
  EXPECT_EQ(read(weights + 0x2010), std::byte{7});
  EXPECT_DEATH(static_cast<volatile std::byte*>(weights)[0x2010] = std::byte{0}, "TERN-S304");
}

TEST_F(Strict, S304AThreadTouchesMemoryOfAnotherSimulationWhileAKernelRuns) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  const Device other = sim::open({.seed = 5});
  other_block = static_cast<std::byte*>(other.allocate(MemoryKind::device, 64));
  EXPECT_DEATH(static_cast<void>(run([](const KernelCall& call) {
                 auto& self = *static_cast<Strict*>(call.context);
                 test::Thread([&] { self.other_block[0] = std::byte{7}; }).join();
               })),
               "TERN-S304");
  other.release(other_block);
}

TEST_F(Strict, S303AKernelWritesBesideWhatItDeclaredOnTheSamePage) {
  EXPECT_FALSE(
      run([](const KernelCall& call) { call.argument<std::byte*>(1)[100] = std::byte{9}; }));
  ASSERT_EQ(found().size(), 1u);
  EXPECT_EQ(found().front().what, "kernel \"scale\" wrote to \"output\", which it did not declare");
  EXPECT_EQ(found().front().range.offset, 0x1064u);
}

TEST_F(Strict, S303ClosesThePagesAgain) {
  EXPECT_FALSE(run([](const KernelCall& call) {
    auto& self = *static_cast<Strict*>(call.context);
    self.weights[0] = self.weights[8192];
  }));
  EXPECT_EQ(found().size(), 2u);
  EXPECT_DEATH(static_cast<volatile std::byte*>(weights)[0] = std::byte{0}, "TERN-S304");
  EXPECT_DEATH(static_cast<volatile std::byte*>(output)[0] = std::byte{0}, "TERN-S304");
  EXPECT_DEATH(std::printf("%d", std::to_integer<int>(weights[8192])), "TERN-S304");
}

TEST_F(Strict, S303IsSaidByTheWaitThoughTheKernelRanBefore) {
  // On an eager schedule it has run before anybody waits.
  const Device eager =
      sim::open({.policy = sim::Policy::eager, .print_findings = false, .strict_kernels = true});
  const Stream stream(eager);
  auto* block = static_cast<std::byte*>(eager.allocate(MemoryKind::device, bytes));
  const NativeKernel kernel =
      eager
          .try_load_kernel({.entry = "past",
                            .body =
                                [](const KernelCall& call) {
                                  auto& past = call.argument<std::byte*>(0)[100];
                                  past = std::byte(std::to_integer<int>(past) + 1);
                                }})
          .value();
  const auto launch = [&] {
    const KernelArgument arguments[] = {ranged(block, 100, Access::discard)};
    stream.launch(kernel, {}, arguments);
  };
  launch();
  EXPECT_THROW(stream.synchronize(), Violation);
  EXPECT_TRUE(stream.try_synchronize());
  launch();
  EXPECT_THROW(eager.synchronize(), Violation);
}

TEST_F(Strict, S303OfMorePagesThanAreNamedIsStillThat) {
  EXPECT_FALSE(run([](const KernelCall& call) {
    auto& self = *static_cast<Strict*>(call.context);
    for (std::size_t at = 0; at < 1'000 * 4096; at += 4096) self.many[at] = std::byte{7};
  }));
  EXPECT_EQ(found().size(), 16u);
  for (const Finding& one : found()) EXPECT_EQ(one.code, FindingCode::undeclared_access);
  // What it wrote is written, and everything is closed again.
  EXPECT_EQ(read(many + 999 * 4096), std::byte{7});
  EXPECT_DEATH(static_cast<volatile std::byte*>(many)[500 * 4096] = std::byte{0}, "TERN-S304");
  EXPECT_DEATH(static_cast<volatile std::byte*>(weights)[0] = std::byte{0}, "TERN-S304");
}

TEST_F(Strict, S303AnAddressWithoutARangeIsRefused) {
  const NativeKernel kernel = device.try_load_kernel({.entry = "bare"}).value();
  const KernelArgument bare[] = {{.value = &weights, .value_bytes = sizeof weights}};
  ASSERT_FALSE(a.try_launch(kernel, {}, bare, at(80)));
  ASSERT_EQ(found().size(), 1u);
  EXPECT_EQ(found().front().what, "kernel \"bare\" has an address argument without a range");
  EXPECT_EQ(found().front().now,
            "A@5   kernel \"bare\" reads and writes [0x2000, +64 KiB)  src/app.cpp:80 in run");
}

TEST_F(Strict, MappedPagesAreWatchedToo) {
  const std::size_t page = device.info().page_bytes;
  auto* mapped = static_cast<std::byte*>(device.try_reserve(page).value());
  const NativePages pages = device.try_create_pages(page).value();
  ASSERT_TRUE(device.try_map(mapped, pages));
  ASSERT_TRUE(device.try_set_access(mapped, page, PageAccess::read_write));
  a.fill(mapped, page, std::byte{4});
  const NativeKernel kernel =
      device
          .try_load_kernel({.entry = "add",
                            .body =
                                [](const KernelCall& call) {
                                  auto* to = call.argument<std::byte*>(0);
                                  to[1] = std::byte(std::to_integer<int>(to[0]) + 1);
                                }})
          .value();
  const KernelArgument arguments[] = {ranged(mapped, page, Access::read_write)};
  a.launch(kernel, {}, arguments);
  EXPECT_EQ(read(mapped + 1), std::byte{5});
  EXPECT_TRUE(found().empty());
}

TEST(SimWorld, ABareAddressCountsAsUsingItsWholeBlock) {
  const Device device = sim::open({.policy = sim::Policy::lazy});
  const Stream a(device, {.name = "A"}), b(device, {.name = "B"});
  auto* block = static_cast<std::byte*>(device.allocate(MemoryKind::device, bytes));
  const NativeKernel kernel =
      device
          .try_load_kernel(
              {.entry = "bare",
               .body =
                   [](const KernelCall& call) { call.argument<std::byte*>(0)[0] = std::byte{7}; }})
          .value();
  // Not yet written: what is only assumed is no reason to complain of that.
  std::byte* middle = block + 100;
  const KernelArgument bare[] = {{.value = &middle, .value_bytes = sizeof middle}};
  ASSERT_TRUE(a.try_launch(kernel, {}, bare));
  const Result<void> filled = b.try_fill(block + 4000, 8, std::byte{1});
  ASSERT_FALSE(filled);
  EXPECT_EQ(code_text(sim::findings(device).front().code), "TERN-S101");
  device.synchronize();
  std::byte got{};
  a.copy(&got, middle, 1);
  a.synchronize();
  EXPECT_EQ(got, std::byte{7});
}

// --- Waits that never end

TEST(SimWorld, S501AWaitForAStreamThatIsHeldForEver) {
  const Device device = sim::open({.policy = sim::Policy::lazy});
  sim::set_patience(device, 20);
  const Stream a(device, {.name = "A"}), b(device, {.name = "B"});
  static_cast<void>(sim::hold(a));
  a.call([](void*) {}, nullptr);
  Event event(device);
  a.record(event);
  b.wait(event);
  b.call([](void*) {}, nullptr);
  const Result<void> waited = b.try_synchronize();
  ASSERT_FALSE(waited);
  EXPECT_EQ(waited.failure().code(), ErrorCode::violation);
  ASSERT_EQ(sim::findings(device).size(), 1u);
  EXPECT_EQ(
      sim::findings(device).front().text(),
      R"(TERN-S501 deadlock                              sim:0  seed 0x0  schedule lazy  step 8
  what    the host waits for B@2, and no stream can make progress
  now     H0@1  synchronize waits for B@2
  before  B@1   waits for A@2
          A@0   is held, and no thread resumes it
  fix     resume the held stream before the wait, or in another thread
  replay  TERN_SIM_SEED=0x0 TERN_SIM_SCHEDULE=lazy
)");
}

TEST(SimWorld, S501NamesWhatTheDefaultStreamWaitsFor) {
  const Device device = sim::open({.policy = sim::Policy::lazy});
  sim::set_patience(device, 0);
  const Stream blocking(device, {.blocking = true, .name = "A"});
  static_cast<void>(sim::hold(blocking));
  for (int i = 0; i < 3; ++i) blocking.call([](void*) {}, nullptr);
  device.default_stream().call([](void*) {}, nullptr);
  EXPECT_FALSE(device.default_stream().try_synchronize());
  ASSERT_EQ(sim::findings(device).size(), 1u);
  const std::vector<std::string> before = sim::findings(device).front().before;
  ASSERT_EQ(before.size(), 2u);
  EXPECT_TRUE(before[0].ends_with("waits for A@3")) << before[0];
}

TEST(SimWorld, AWaitGoesOnWhenAnotherThreadLetsTheStreamGo) {
  const Device device = sim::open({.policy = sim::Policy::lazy});
  const Stream a(device);
  const std::uint64_t hold = sim::hold(a);
  test::Thread other([&] { sim::resume(device, hold); });
  EXPECT_TRUE(a.try_synchronize());
  other.join();
  EXPECT_TRUE(sim::findings(device).empty());
}

TEST(SimWorld, S502APollThatNothingCanEnd) {
  const Device device = sim::open({.policy = sim::Policy::lazy});
  sim::set_patience(device, 0);
  const Stream a(device, {.name = "A"});
  static_cast<void>(sim::hold(a));
  a.call([](void*) {}, nullptr);
  Result<bool> idle = false;
  int polls = 0;
  for (; idle && !*idle; ++polls) idle = a.try_is_idle();
  EXPECT_EQ(polls, 65'536);
  EXPECT_EQ(idle.failure().code(), ErrorCode::violation);
  ASSERT_EQ(sim::findings(device).size(), 1u);
  EXPECT_EQ(
      sim::findings(device).front().text(),
      R"(TERN-S502 endless-poll                          sim:0  seed 0x0  schedule lazy  step 4
  what    the host has polled 65536 times whether A@1 is done, and no stream can make progress
  now     H0@1  polls A@1
  before  A@0   is held, and no thread resumes it
  fix     resume the held stream before polling, or in another thread
  replay  TERN_SIM_SEED=0x0 TERN_SIM_SCHEDULE=lazy
)");
}

TEST(SimWorld, PollingALongChainOfWorkIsNotEndless) {
  const Device device = sim::open({.policy = sim::Policy::lazy});
  const Stream a(device), b(device);
  for (int i = 0; i < 3000; ++i) a.call([](void*) {}, nullptr);
  b.wait(a.mark());
  while (!b.is_idle()) continue;
  EXPECT_TRUE(sim::findings(device).empty());
}

// --- Threads

TEST(SimWorld, ThreadsAreOneHostUnlessTheyShouldBeSeveral) {
  for (const bool per_thread : {false, true}) {
    const Device device = sim::open({.policy = sim::Policy::lazy, .per_thread_host = per_thread});
    auto* pinned = static_cast<std::byte*>(device.allocate(MemoryKind::pinned, bytes));
    sim::host_write(device, pinned, bytes);
    bool is_refused = false;
    test::Thread([&] {
      try {
        sim::host_read(device, pinned, bytes, at(90));
      } catch (const Violation&) {
        is_refused = true;
      }
    }).join();
    EXPECT_EQ(is_refused, per_thread);
    if (!per_thread) continue;
    const Finding finding = sim::findings(device).front();
    EXPECT_EQ(code_text(finding.code), "TERN-S105");
    EXPECT_EQ(finding.now, "H2@1  host read 4 KiB  src/app.cpp:90 in run");
    EXPECT_EQ(finding.fix, "let H0 release after H0@2 and H2 acquire before H2@1");
  }
}

TEST(SimWorld, ReleaseAndAcquireOrderThreads) {
  const Device device = sim::open({.policy = sim::Policy::lazy, .per_thread_host = true});
  auto* pinned = static_cast<std::byte*>(device.allocate(MemoryKind::pinned, bytes));
  sim::host_write(device, pinned, bytes);
  sim::release(device, 7);
  test::Thread([&] {
    sim::acquire(device, 7);
    sim::host_write(device, pinned, bytes);
    sim::release(device, 8);
  }).join();
  EXPECT_THROW(sim::host_read(device, pinned, bytes), Violation);
  sim::acquire(device, 8);
  sim::host_read(device, pinned, bytes);
  EXPECT_EQ(sim::findings(device).size(), 1u);
}

// Whoever waits for a mark comes behind it, also where the library need not ask the device because
// another thread has seen the mark done.
TEST(SimWorld, AMarkThatAnotherThreadHasSeenDoneOrdersWhoWaitsForIt) {
  const Device device = sim::open({.policy = sim::Policy::lazy, .per_thread_host = true});
  auto* pinned = static_cast<std::byte*>(device.allocate(MemoryKind::pinned, bytes));
  const Stream writer(device), reader(device);
  const auto write_and_wait_elsewhere = [&] {
    writer.fill(pinned, bytes, std::byte{1});
    const Mark mark = writer.mark();
    test::Thread([&] { writer.synchronize(); }).join();
    return mark;
  };
  reader.wait(write_and_wait_elsewhere());
  EXPECT_TRUE(reader.try_fill(pinned, bytes, std::byte{2})) << "a stream waits for the mark";
  writer.wait(reader.mark());
  reader.wait(write_and_wait_elsewhere());
  test::Thread([&] {
    EXPECT_TRUE(reader.try_fill(pinned + 1, 1, std::byte{2})) << "another thread submits";
  }).join();
  writer.wait(reader.mark());
  Device::wait(write_and_wait_elsewhere());
  EXPECT_NO_THROW(sim::host_read(device, pinned, bytes)) << "the host waits for the mark";
  EXPECT_TRUE(Device::is_done(write_and_wait_elsewhere()));
  EXPECT_NO_THROW(sim::host_read(device, pinned, bytes)) << "the host asks about the mark";
  EXPECT_TRUE(sim::findings(device).empty());
}

TEST(SimWorld, WhatAnotherThreadHasSeenDoneOrdersNobodyWhoDoesNotAsk) {
  const Device device = sim::open({.policy = sim::Policy::lazy, .per_thread_host = true});
  auto* pinned = static_cast<std::byte*>(device.allocate(MemoryKind::pinned, bytes));
  const Stream writer(device), other(device), reader(device);
  other.fill(pinned, 1, std::byte{1});
  const Mark mark = other.mark();
  writer.fill(pinned + 1, bytes - 1, std::byte{1});
  test::Thread([&] { other.synchronize(); }).join();
  EXPECT_FALSE(reader.try_fill(pinned, 1, std::byte{2})) << "nobody waited here";
  reader.wait(mark);
  EXPECT_TRUE(reader.try_fill(pinned, 1, std::byte{2}));
  EXPECT_FALSE(reader.try_fill(pinned + 1, bytes - 1, std::byte{2}))
      << "the mark of another stream";
}

TEST(SimWorld, AMarkThatAnotherThreadHasSeenDoneOrdersOnlyWhatTheMarkFollows) {
  const Device device = sim::open({.policy = sim::Policy::lazy, .per_thread_host = true});
  auto* block = static_cast<std::byte*>(device.allocate(MemoryKind::device, bytes));
  const Stream marked(device), other(device), reader(device);
  marked.fill(block, 1, std::byte{1});
  const Mark mark = marked.mark();
  sim::release(device, 1);
  other.fill(block + 1, 1, std::byte{1});
  device.synchronize();
  test::Thread([&] {
    sim::acquire(device, 1);
    Device::wait(mark);
    EXPECT_TRUE(reader.try_fill(block, 1, std::byte{2}));
    EXPECT_FALSE(reader.try_fill(block + 1, 1, std::byte{2}))
        << "no thread has waited for this stream";
  }).join();
}

TEST(SimWorld, ATimelineOrdersTheThreadThatWaitsAfterTheThreadThatSetsIt) {
  const Device device = sim::open({.policy = sim::Policy::lazy, .per_thread_host = true});
  auto* pinned = static_cast<std::byte*>(device.allocate(MemoryKind::pinned, bytes));
  Timeline timeline;
  sim::host_write(device, pinned, bytes);
  timeline.set(1);
  sim::host_write(device, pinned, 1);
  test::Thread([&] {
    timeline.wait(1);
    EXPECT_NO_THROW(sim::host_read(device, pinned + 1, bytes - 1));
    EXPECT_THROW(sim::host_read(device, pinned, 1), Violation) << "after the timeline was set";
  }).join();
}

TEST(SimWorld, AHostFunctionMayWaitForATimelineThatAnotherThreadSets) {
  const Device device = sim::open({.policy = sim::Policy::lazy, .per_thread_host = true});
  const Stream stream(device);
  Timeline begun, timeline;
  auto both = std::pair(&begun, &timeline);
  stream.call(
      [](void* context) {
        const auto& [first, second] = *static_cast<std::pair<Timeline*, Timeline*>*>(context);
        first->set(1);
        second->wait(1);
      },
      &both);
  test::Thread setter([&] {
    begun.wait(1);
    timeline.set(1);
  });
  stream.synchronize();
  setter.join();
}

TEST(SimWorld, AMarkOfAnEndedStreamOrdersWhoWaitsForIt) {
  const Device device = sim::open({.policy = sim::Policy::lazy, .per_thread_host = true});
  auto* block = static_cast<std::byte*>(device.allocate(MemoryKind::device, bytes));
  const Stream reader(device);
  std::optional<Stream> before(device), ended(device);
  before->fill(block, 1, std::byte{1});
  ended->wait(before->mark());
  const Mark mark = ended->mark();
  before.reset();
  ended.reset();
  // Streams that may reuse the numbers of the ended ones.
  const Stream next(device), last(device);
  last.fill(block + 8, 1, std::byte{1});
  test::Thread([&] { device.synchronize(); }).join();
  reader.wait(mark);
  EXPECT_TRUE(reader.try_fill(block, 1, std::byte{2}));
}

TEST(SimWorld, AReportRepeatsTheSettingsThatAreNotTheUsualOnes) {
  const auto replay = [](const sim::Options& options) {
    const Device device = sim::open(options);
    const NativeKernel kernel = device.try_load_kernel({.entry = "k"}).value();
    device.unload_kernel(kernel);
    EXPECT_FALSE(device.default_stream().try_launch(kernel, {}, {}));
    return sim::findings(device).front().replay;
  };
  EXPECT_EQ(replay({.seed = 7, .profile = "h200"}), "TERN_SIM_SEED=0x7");
  EXPECT_EQ(replay({.seed = 7,
                    .policy = sim::Policy::pct,
                    .pct_depth = 4,
                    .reuse = sim::Reuse::friendly,
                    .profile = "small",
                    .faults = "copy#9=fail, fill#9=fail"}),
            "TERN_SIM_SEED=0x7 TERN_SIM_SCHEDULE=pct:4 TERN_SIM_REUSE=friendly "
            "TERN_SIM_PROFILE='small' TERN_SIM_FAULTS='copy#9=fail, fill#9=fail'");
}

TEST(SimWorld, AReportSaysWhenSeveralThreadsCalled) {
  const Device device = sim::open({.policy = sim::Policy::lazy});
  test::Thread([&] { static_cast<void>(device.memory()); }).join();
  const NativeKernel kernel = device.try_load_kernel({.entry = "k"}).value();
  device.unload_kernel(kernel);
  const Stream a(device);
  EXPECT_FALSE(a.try_launch(kernel, {}, {}));
  EXPECT_EQ(sim::findings(device).front().replay,
            "TERN_SIM_SEED=0x0 TERN_SIM_SCHEDULE=lazy  (several threads made calls: the schedule "
            "may differ)");
}

// --- What drivers may do

TEST(SimWorld, NobodyMayRelyOnWhatADriverDoesBesides) {
  std::vector<std::byte> host(bytes);  // outlives the copy that nobody waits for
  const Device device = sim::open({.policy = sim::Policy::lazy});
  const Stream a(device);
  auto* block = static_cast<std::byte*>(device.allocate(MemoryKind::device, bytes));
  a.fill(block, bytes, std::byte{1});
  EXPECT_FALSE(device.try_release(block));
  a.copy(host.data(), block, bytes);
  EXPECT_THROW(sim::host_read(device, host.data(), bytes), Violation);
}

TEST(SimWorld, UnlessItIsCredited) {
  const Device device = sim::open({.policy = sim::Policy::lazy, .implicit_sync = true});
  const Stream a(device);
  auto* block = static_cast<std::byte*>(device.allocate(MemoryKind::device, bytes));
  a.fill(block, bytes, std::byte{1});
  std::vector<std::byte> host(bytes);
  a.copy(host.data(), block, bytes);
  sim::host_read(device, host.data(), bytes);
  EXPECT_EQ(host[9], std::byte{1});
  a.fill(block, bytes, std::byte{1});
  EXPECT_TRUE(device.try_release(block));
}

TEST(SimWorld, APageableCopyMayBlockOrStageOrComeLater) {
  // The mistake is to change the source at once. What arrives tells which way the driver took.
  std::set<int> seen;
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    const Device device = sim::open({.seed = seed, .policy = sim::Policy::lazy, .check = false});
    const Stream a(device);
    auto* block = static_cast<std::byte*>(device.allocate(MemoryKind::device, 1));
    std::byte source{1};
    a.copy(block, &source, 1);
    const bool is_done = a.is_idle();
    source = std::byte{2};
    std::byte got{};
    a.copy(&got, block, 1);
    a.synchronize();
    seen.insert(std::to_integer<int>(got) + (is_done ? 10 : 0));
    device.release(block);
  }
  EXPECT_EQ(seen, (std::set<int>{11, 1, 2}));  // blocked, staged, read later
}

// --- Every schedule

TEST(SimWorld, EveryScheduleOfASmallProgramIsRun) {
  std::set<std::string> orders;
  const sim::Exploration done = sim::for_every_schedule({}, 10'000, [&](const Device& device) {
    struct Note {
      std::string* order;
      char letter;
    };
    std::string order;
    std::array<Note, 3> notes{{{&order, 'a'}, {&order, 'b'}, {&order, 'c'}}};
    const auto add = [](void* context) {
      const auto* note = static_cast<Note*>(context);
      *note->order += note->letter;
    };
    const Stream first(device), second(device);
    first.call(add, &notes[0]);
    first.call(add, &notes[1]);
    second.call(add, &notes[2]);
    device.synchronize();
    orders.insert(order);
  });
  EXPECT_TRUE(done.is_complete);
  EXPECT_GT(done.runs, 3u);
  EXPECT_EQ(orders, (std::set<std::string>{"abc", "acb", "cab"}));
}

TEST(SimWorld, EveryLazyScheduleHasAllOrdersOnce) {
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    std::multiset<std::string> orders;
    const auto body = [&](const Device& device) {
      std::string order;
      const auto add_a = [](void* context) { *static_cast<std::string*>(context) += 'a'; };
      const auto add_b = [](void* context) { *static_cast<std::string*>(context) += 'b'; };
      const Stream first(device), second(device);
      first.call(add_a, &order);
      first.call(add_a, &order);
      second.call(add_b, &order);
      device.synchronize();
      orders.insert(order);
    };
    const sim::Exploration lazy =
        sim::for_every_schedule({.seed = seed, .policy = sim::Policy::lazy}, 100, body);
    EXPECT_TRUE(lazy.is_complete);
    EXPECT_EQ(orders, (std::multiset<std::string>{"aab", "aba", "baa"}));
    // A seed that would draw lazy from the mix leaves nothing out.
    EXPECT_GT(sim::for_every_schedule({.seed = seed}, 100, body).runs, 3u);
  }
}

TEST(SimWorld, EveryScheduleEndsEarlyOrWithAComplaint) {
  const auto body = [](const Device& device) {
    const Stream a(device), b(device);
    for (int i = 0; i < 10; ++i) {
      a.call([](void*) {}, nullptr);
      b.call([](void*) {}, nullptr);
    }
    device.synchronize();
  };
  const sim::Exploration cut = sim::for_every_schedule({}, 5, body);
  EXPECT_EQ(cut.runs, 5u);
  EXPECT_FALSE(cut.is_complete);

  int run = 0;
  EXPECT_THROW(sim::for_every_schedule({}, 100,
                                       [&](const Device& device) {
                                         const Stream a(device), b(device);
                                         if (run++ % 2 == 0) b.call([](void*) {}, nullptr);
                                         a.call([](void*) {}, nullptr);
                                         device.synchronize();
                                       }),
               InvalidArgument);
}

// --- Managed memory

TEST(SimWorld, ManagedMemoryIsWhereItWasLastUsed) {
  const std::vector<Device> devices = sim::open_peers({.policy = sim::Policy::lazy}, 2);
  const Stream a(devices[0]), b(devices[1]);
  auto* managed = static_cast<std::byte*>(devices[0].allocate(MemoryKind::managed, 2 * bytes));
  EXPECT_FALSE(sim::residence(devices[0], managed));
  sim::host_write(devices[0], managed, 2 * bytes);
  EXPECT_EQ(sim::residence(devices[0], managed), Place::host());
  a.fill(managed, bytes, std::byte{1});
  EXPECT_EQ(sim::residence(devices[0], managed), Place::host());  // not yet run
  a.synchronize();
  EXPECT_EQ(sim::residence(devices[0], managed), devices[0].place());
  EXPECT_EQ(sim::residence(devices[0], managed + bytes), Place::host());
  EXPECT_EQ(sim::migrated_bytes(devices[0]), bytes);

  ASSERT_TRUE(b.try_prefetch(managed, 2 * bytes, devices[1].place()));
  b.synchronize();
  EXPECT_EQ(sim::residence(devices[1], managed), devices[1].place());
  EXPECT_EQ(sim::migrated_bytes(devices[0]), 3 * bytes);
  const ManagedInfo info = devices[0].try_managed_info(managed, 2 * bytes).value();
  EXPECT_EQ(info.last_prefetch, devices[1].place());

  devices[0].release(managed);
  EXPECT_THROW(static_cast<void>(sim::residence(devices[0], managed)), InvalidArgument);
}

TEST(SimWorld, ManagedMemoryThatMovesTakesTime) {
  const auto time_of = [](bool is_moved) {
    const Device device = sim::open({.policy = sim::Policy::lazy});
    const Stream a(device);
    auto* managed = static_cast<std::byte*>(device.allocate(MemoryKind::managed, 1 << 20));
    if (is_moved) sim::host_write(device, managed, 1 << 20);
    a.fill(managed, 1 << 20, std::byte{1});
    a.synchronize();
    return sim::virtual_time_ns(device);
  };
  EXPECT_EQ(time_of(true) - time_of(false), (std::uint64_t{1} << 20) * 1000 / 55'000);
}

// --- Many streams

TEST(SimWorld, StreamsMayComeAndGoForEver) {
  const Device device = sim::open({.policy = sim::Policy::lazy});
  auto* block = static_cast<std::byte*>(device.allocate(MemoryKind::device, bytes));
  for (int i = 0; i < 10'000; ++i) {
    const Stream brief(device);
    ASSERT_TRUE(brief.try_fill(block, bytes, std::byte(i))) << i;
    ASSERT_TRUE(brief.try_synchronize()) << i;
  }
  const Stream last(device);
  std::byte got{};
  last.copy(&got, block, 1);
  last.synchronize();
  EXPECT_EQ(got, std::byte(9'999 & 0xFF));
  EXPECT_TRUE(sim::findings(device).empty());
}

TEST(SimWorld, NumbersComeBackThoughNobodyWaits) {
  const Device device = sim::open({.policy = sim::Policy::lazy});
  const Stream stays(device);
  const int rounds = test::is_sanitized ? 20'000 : 100'000;
  for (int i = 0; i < rounds; ++i) {
    Result<Stream> brief = Stream::try_make(device);
    ASSERT_TRUE(brief) << i << ": " << brief.failure().text();
    ASSERT_TRUE(brief->try_call([](void*) {}, nullptr)) << i;
    stays.wait(brief->mark());
  }
  EXPECT_TRUE(sim::findings(device).empty());
}

TEST(SimWorld, NumbersComeBackFromStreamsThatAllocateAndFree) {
  for (const sim::Reuse reuse : {sim::Reuse::hostile, sim::Reuse::friendly}) {
    const Device device = sim::open({.policy = sim::Policy::lazy, .reuse = reuse});
    for (int i = 0; i < 20'000; ++i) {
      Result<Stream> request = Stream::try_make(device);
      ASSERT_TRUE(request) << i << ": " << request.failure().text();
      auto* block = static_cast<std::byte*>(request->allocate(bytes));
      request->fill(block, bytes, std::byte(i));
      request->release(block);
    }
    EXPECT_TRUE(sim::findings(device).empty());
  }
}

TEST(SimWorld, ThereAreNumbersForSoManyStreamsAtATime) {
  const Device device = sim::open({.policy = sim::Policy::lazy});
  std::vector<Stream> streams;
  Result<void> outcome;
  while (outcome && streams.size() <= max_actors) {
    Result<Stream> made = Stream::try_make(device);
    outcome = made ? Result<void>() : Result<void>(made.failure());
    if (made) streams.push_back(*std::move(made));
  }
  ASSERT_FALSE(outcome);
  EXPECT_EQ(outcome.failure().code(), ErrorCode::capacity);
  EXPECT_EQ(outcome.failure().number("max"), max_actors);
  streams.pop_back();
  EXPECT_TRUE(Stream::try_make(device));
}

TEST(SimWorld, TheOwnerOfANumberKnowsNothingOfTheLastOne) {
  // The first stream writes and ends; nothing orders the next with it or with what it waited for.
  const Device device = sim::open({.policy = sim::Policy::lazy});
  world_of(device).reuse_numbers_from(1);
  auto* block = static_cast<std::byte*>(device.allocate(MemoryKind::device, bytes));
  auto* other = static_cast<std::byte*>(device.allocate(MemoryKind::device, bytes));
  const Stream writer(device, {.name = "writer"});
  writer.fill(other, bytes, std::byte{1});
  {
    const Stream first(device, {.name = "first"});
    first.wait(writer.mark());
    first.fill(block, bytes, std::byte{1});
  }
  {
    const Stream second(device, {.name = "second"});
    EXPECT_FALSE(second.try_fill(block, bytes, std::byte{2})) << "first was not waited for";
    EXPECT_FALSE(second.try_fill(other, bytes, std::byte{2})) << "writer was not waited for";
  }
  for (int i = 0; i < 3; ++i) {
    const Stream brief(device);
    brief.wait(writer.mark());
  }
  const Stream third(device, {.name = "third"});
  EXPECT_FALSE(third.try_fill(other, bytes, std::byte{2})) << "only ended streams waited for it";
  third.wait(writer.mark());
  EXPECT_TRUE(third.try_fill(other, bytes, std::byte{2}));
}

TEST(SimWorld, WhatEndedStreamsWaitedForIsKnownToWhomTheyComeBefore) {
  const std::vector<Device> devices = sim::open_peers({.policy = sim::Policy::lazy}, 2);
  world_of(devices[0]).reuse_numbers_from(1);
  auto* block = static_cast<std::byte*>(devices[1].allocate(MemoryKind::device, bytes));
  const Stream writer(devices[1], {.name = "writer"});
  for (const bool by_default : {true, false}) {
    writer.fill(block, bytes, std::byte{1});
    // The number of the first is used again by the others, which do not wait.
    for (int i = 0; i < 3; ++i) {
      const Stream brief(devices[0], {.blocking = by_default});
      if (i == 0) brief.wait(writer.mark());
    }
    const Stream owns_the_number(devices[0]);
    owns_the_number.call([](void*) {}, nullptr);
    const Stream waits(devices[1], {.name = "waits"});
    if (by_default) {
      // The default stream comes after every blocking stream, also after those that have ended.
      const StreamRef default_stream = devices[0].default_stream();
      default_stream.call([](void*) {}, nullptr);
      waits.wait(default_stream.mark());
    } else {
      // And so does the host, when it waits for the device.
      devices[0].synchronize();
    }
    EXPECT_TRUE(waits.try_fill(block, bytes, std::byte{2})) << by_default;
    writer.wait(waits.mark());
  }
  EXPECT_TRUE(sim::findings(devices[0]).empty());
}

TEST(SimWorld, ANumberOfALostStreamIsNotGivenToAPeer) {
  const std::vector<Device> devices = sim::open_peers({.policy = sim::Policy::lazy}, 2);
  {
    const Stream undone(devices[0]);
    undone.call([](void*) {}, nullptr);
    sim::set_faults(devices[0], "info#1=lost");
    EXPECT_FALSE(devices[0].try_memory());
  }
  const Stream stays(devices[1]);
  for (ActorId i = 0; i < max_actors; ++i) {
    const Stream brief(devices[1]);
    brief.call([](void*) {}, nullptr);
    stays.wait(brief.mark());
    ASSERT_TRUE(stays.try_synchronize()) << i;
  }
}

}  // namespace
}  // namespace tern
