#include "tern/backends/sim.hpp"

#include <gtest/gtest.h>
#include <signal.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "backends/sim/sim_backend.hpp"
#include "device/device_state.hpp"
#include "support/allocation_counter.hpp"
#include "tern/backends/catalog.hpp"
#include "tern/core/bytes.hpp"
#include "tern/device/event.hpp"

namespace tern {
namespace {

constexpr std::size_t bytes = 4096;

/// A device with a block that has been written, and two streams that know it.
struct Bench {
  explicit Bench(const sim::Options& options = {.policy = sim::Policy::lazy})
      : device(sim::open(options)), a(device, {.name = "A"}), b(device, {.name = "B"}) {
    block = static_cast<std::byte*>(device.allocate(MemoryKind::device, bytes, {.tag = "block"}));
    a.fill(block, bytes, std::byte{1});
    b.wait(a.mark());
  }

  /// The codes of all findings, in order.
  [[nodiscard]] std::string found() const {
    std::string codes;
    for (const Finding& finding : sim::findings(device)) {
      codes += (codes.empty() ? "" : " ") + code_text(finding.code);
    }
    return codes;
  }

  Device device;
  Stream a, b;
  std::byte* block = nullptr;
  std::vector<std::byte> host = std::vector<std::byte>(bytes);
};

TEST(Sim, RefusesACopyThatNothingOrdersAfterAWriteAndQueuesNothing) {
  Bench bench;
  bench.a.fill(bench.block, bytes, std::byte{2});
  const Result<void> copied = bench.b.try_copy(bench.host.data(), bench.block, bytes);
  ASSERT_FALSE(copied);
  EXPECT_EQ(copied.failure().code(), ErrorCode::violation);
  EXPECT_EQ(bench.found(), "TERN-S101");

  bench.b.wait(bench.a.mark());
  bench.b.copy(bench.host.data(), bench.block, bytes);
  bench.b.synchronize();
  EXPECT_EQ(bench.host[0], std::byte{2});
  EXPECT_EQ(bench.found(), "TERN-S101");
}

TEST(Sim, ThrowsAViolationThatNamesTheFindingAndTheFix) {
  Bench bench;
  bench.a.fill(bench.block, bytes, std::byte{2});
  try {
    bench.b.copy(bench.host.data(), bench.block, bytes);
    FAIL();
  } catch (const Violation& violation) {
    const std::string text = violation.what();
    EXPECT_NE(text.find("TERN-S101 missing-wait"), text.npos) << text;
    EXPECT_NE(text.find("Let B wait for A@"), text.npos) << text;
  }
}

TEST(Sim, CollectsFindingsAndRunsOnWhereItIsTold) {
  Bench bench({.policy = sim::Policy::lazy, .mode = sim::Mode::collect});
  bench.a.fill(bench.block, bytes, std::byte{2});
  bench.b.copy(bench.host.data(), bench.block, bytes);
  EXPECT_EQ(bench.found(), "TERN-S101");
  bench.device.synchronize();
}

TEST(SimDeathTest, AbortsWithTheReportWhereItIsTold) {
  EXPECT_DEATH(
      {
        Bench bench({.policy = sim::Policy::lazy, .mode = sim::Mode::abort});
        bench.a.fill(bench.block, bytes, std::byte{2});
        bench.b.copy(bench.host.data(), bench.block, bytes);
      },
      "TERN-S101 missing-wait");
}

TEST(Sim, SeesTheHostReadBeforeItHasWaited) {
  Bench bench;
  bench.a.copy(bench.host.data(), bench.block, bytes);
  EXPECT_THROW(sim::host_read(bench.device, bench.host.data(), bytes), Violation);
  EXPECT_EQ(bench.found(), "TERN-S105");
  bench.a.synchronize();
  sim::host_read(bench.device, bench.host.data(), bytes);
  EXPECT_EQ(bench.found(), "TERN-S105");
}

TEST(Sim, LetsTheHostReadAfterAMarkOrAnEventItWaitedForOrSawDone) {
  Bench bench;
  bench.a.copy(bench.host.data(), bench.block, bytes);
  Device::wait(bench.a.mark());
  sim::host_read(bench.device, bench.host.data(), bytes);

  Event event(bench.device);
  bench.a.copy(bench.host.data(), bench.block, bytes);
  bench.a.record(event);
  while (!event.is_done()) {
  }
  sim::host_read(bench.device, bench.host.data(), bytes);

  bench.a.copy(bench.host.data(), bench.block, bytes);
  while (!bench.a.is_idle()) {
  }
  sim::host_read(bench.device, bench.host.data(), bytes);
  EXPECT_EQ(bench.found(), "");
}

TEST(Sim, SeesTheHostOverwriteWhatACopyStillReads) {
  Bench bench;
  auto* pinned = static_cast<std::byte*>(bench.device.allocate(MemoryKind::pinned, bytes));
  sim::host_write(bench.device, pinned, bytes);
  bench.a.copy(bench.block, pinned, bytes);
  EXPECT_THROW(sim::host_write(bench.device, pinned, bytes), Violation);
  EXPECT_FALSE(bench.device.try_release(pinned));
  EXPECT_EQ(bench.found(), "TERN-S106 TERN-S102");
  bench.a.synchronize();
  bench.device.release(pinned);
}

TEST(Sim, SeesAReleaseWhileTheDeviceStillWorks) {
  Bench bench;
  bench.a.fill(bench.block, bytes, std::byte{2});
  EXPECT_FALSE(bench.device.try_release(bench.block));
  EXPECT_EQ(bench.found(), "TERN-S102");
  bench.a.synchronize();
  bench.device.release(bench.block);
}

TEST(Sim, SeesAUseAfterTheReleaseAndAReadOfNothing) {
  Bench bench;
  bench.device.synchronize();
  bench.device.release(bench.block);
  EXPECT_FALSE(bench.a.try_copy(bench.host.data(), bench.block, bytes));
  auto* fresh = static_cast<std::byte*>(bench.device.allocate(MemoryKind::device, bytes));
  EXPECT_FALSE(bench.a.try_copy(bench.host.data(), fresh, bytes));
  EXPECT_EQ(bench.found(), "TERN-S201 TERN-S301");
  bench.device.release(fresh);
}

TEST(Sim, GivesFreshBytesThatAreNotNumbers) {
  Bench bench({.policy = sim::Policy::lazy, .check = false});
  auto* fresh = bench.device.allocate(MemoryKind::device, bytes);
  std::vector<double> values(bytes / sizeof(double));
  bench.a.copy(values.data(), fresh, bytes);
  bench.a.synchronize();
  for (const double value : values) EXPECT_TRUE(std::isnan(value));
}

TEST(Sim, NamesAnEventThatWasNeverRecordedInTheFindingItCauses) {
  Bench bench;
  const Event event(bench.device);
  bench.a.fill(bench.block, bytes, std::byte{2});
  bench.b.wait(event);
  EXPECT_FALSE(bench.b.try_copy(bench.host.data(), bench.block, bytes));
  const std::string report = sim::findings(bench.device).back().text();
  EXPECT_NE(report.find("waited for an event that was never recorded"), report.npos) << report;
}

TEST(Sim, NamesTheBlocksThatWereNeverReleased) {
  const Bench bench;
  const std::vector<Finding> leaks = sim::leaks(bench.device);
  ASSERT_EQ(leaks.size(), 1u);
  EXPECT_EQ(leaks.front().code, FindingCode::leak);
  EXPECT_NE(leaks.front().block.find("tag \"block\""), std::string::npos);
}

TEST(Sim, JudgesTheBlocksThatAPoolCutsFromItsMemory) {
  Bench bench;
  Backend& backend = DeviceState::of(bench.device)->backend();
  const Submission on_a{bench.a.try_native().value(), {}, {}};
  const Submission on_b{bench.b.try_native().value(), {}, {}};
  const Suballocation piece{bench.block, 1024, 0};

  backend.note_suballocate(on_a, piece);
  bench.a.fill(bench.block, 1024, std::byte{1});
  // The rest of the block is the pool's own by now.
  EXPECT_FALSE(bench.a.try_fill(bench.block + 1024, 1, std::byte{1}));
  backend.note_subrelease(on_a, piece);
  // Given to another stream too early. The note cannot fail; the next call that can, does.
  backend.note_suballocate(on_b, piece);
  EXPECT_EQ(bench.found(), "TERN-S302 TERN-S103");
  const Result<void> next = bench.b.try_fill(bench.block, 1024, std::byte{2});
  ASSERT_FALSE(next);
  EXPECT_EQ(next.failure().code(), ErrorCode::violation);

  bench.b.wait(bench.a.mark());
  backend.note_suballocate(on_b, piece);
  EXPECT_TRUE(bench.b.try_fill(bench.block, 1024, std::byte{2}));
  EXPECT_EQ(bench.found(), "TERN-S302 TERN-S103");
}

TEST(Sim, GivesTheSameBytesUnderEveryPolicyAndSeedIfThereIsNoFinding) {
  const auto run = [](const sim::Options& options) {
    Bench bench(options);
    std::vector<std::byte> host(bytes);
    for (int round = 0; round < 4; ++round) {
      bench.a.wait(bench.b.mark());
      bench.a.fill(bench.block, bytes, std::byte(round));
      bench.b.wait(bench.a.mark());
      bench.b.fill(bench.block + bytes / 2, bytes / 4, std::byte(round + 100));
    }
    bench.b.copy(host.data(), bench.block, bytes);
    bench.b.synchronize();
    EXPECT_EQ(bench.found(), "");
    return host;
  };
  const std::vector<std::byte> expected = run({.policy = sim::Policy::eager});
  for (const sim::Policy policy : {sim::Policy::lazy, sim::Policy::random, sim::Policy::skewed,
                                   sim::Policy::stall_one, sim::Policy::pct, sim::Policy::mix}) {
    for (std::uint64_t seed = 0; seed < 50; ++seed) {
      ASSERT_EQ(run({.seed = seed, .policy = policy}), expected) << "seed " << seed;
    }
  }
}

TEST(Sim, KeepsARangeUsedTwiceByOneStreamFromOthersUntilItsLastReleaseIsPassed) {
  Bench bench;
  void* first = bench.a.allocate(bytes);
  bench.a.release(first);
  const std::uint64_t hold = sim::hold(bench.a);
  void* again = bench.a.allocate(bytes);
  ASSERT_EQ(again, first);
  bench.a.release(again);
  // The first release is passed, the second is not.
  sim::run_to_hold(bench.device, hold);
  void* other = bench.b.allocate(bytes);
  EXPECT_NE(other, again);
  sim::resume(bench.device, hold);
  bench.a.synchronize();
  void* later = bench.b.allocate(bytes);
  EXPECT_EQ(later, again);
  bench.b.release(other);
  bench.b.release(later);
}

TEST(Sim, RepeatsARunFromItsSeed) {
  const auto hash_of = [](std::uint64_t seed) {
    Bench bench({.seed = seed, .policy = sim::Policy::random});
    for (int i = 0; i < 20; ++i) {
      bench.a.fill(bench.block, bytes, std::byte(i));
      // Control flow that depends on timing, which depends on the seed.
      if (bench.a.is_idle()) bench.a.fill(bench.block, bytes / 2, std::byte{0});
    }
    bench.device.synchronize();
    return sim::trace_hash(bench.device);
  };
  EXPECT_EQ(hash_of(7), hash_of(7));
  EXPECT_NE(hash_of(7), hash_of(8));
  // The same on every compiler, at every level of optimisation, on every machine.
  EXPECT_EQ(hash_of(7), 0xb2fe26ef5e0d21ddu);
}

/// Virtual nanoseconds, by the built-in profile.
constexpr std::uint64_t copy_ns = 2'700, slow_ns = 1'000'000;
constexpr std::uint64_t link_ns(std::size_t n) { return n * 1000 / 55'000; }
constexpr std::uint64_t memory_ns(std::size_t n) { return n * 1000 / 2'100'000; }

/// A mebibyte that goes up, one that comes down, and one that stays.
struct Traffic {
  explicit Traffic(const sim::Options& options = {.policy = sim::Policy::lazy})
      : device(sim::open(options)) {
    for (std::byte*& block : blocks) {
      block = static_cast<std::byte*>(device.allocate(MemoryKind::device, large));
      device.default_stream().fill(block, large, std::byte{1});
    }
    device.synchronize();
    began_ns = sim::virtual_time_ns(device);
  }
  /// Until everything is done, from when the blocks were there.
  [[nodiscard]] std::uint64_t makespan_ns() const {
    device.synchronize();
    return sim::virtual_time_ns(device) - began_ns;
  }

  static constexpr std::size_t large = 1 << 20;
  Device device;
  std::byte* blocks[3] = {};
  std::vector<std::byte> up = std::vector<std::byte>(large), down = up;
  std::uint64_t began_ns = 0;
};

/// What the host needs to submit, at most, in these tests.
constexpr std::uint64_t submissions_ns = 20 * 400;

TEST(Sim, OverlapsCopiesUpAndDownWithEachOtherAndWithWork) {
  constexpr std::uint64_t copy = copy_ns + link_ns(Traffic::large);
  for (const sim::Policy policy : {sim::Policy::lazy, sim::Policy::eager, sim::Policy::random}) {
    Traffic traffic({.policy = policy});
    const Stream a(traffic.device), b(traffic.device), c(traffic.device);
    a.copy(traffic.blocks[0], traffic.up.data(), Traffic::large);
    b.copy(traffic.down.data(), traffic.blocks[1], Traffic::large);
    c.fill(traffic.blocks[2], Traffic::large, std::byte{2});
    EXPECT_GE(traffic.makespan_ns(), copy);
    EXPECT_LE(traffic.makespan_ns(), copy + submissions_ns);
  }
}

TEST(Sim, DoesCopiesOfOneDirectionOneAfterTheOther) {
  constexpr std::uint64_t copy = copy_ns + link_ns(Traffic::large);
  Traffic traffic;
  const Stream a(traffic.device), b(traffic.device);
  a.copy(traffic.blocks[0], traffic.up.data(), Traffic::large);
  b.copy(traffic.blocks[1], traffic.up.data(), Traffic::large);
  EXPECT_GE(traffic.makespan_ns(), 2 * copy);
  EXPECT_LE(traffic.makespan_ns(), 2 * copy + submissions_ns);
}

TEST(Sim, TakesAsLongForRowsAsForTheBytesInThem) {
  constexpr std::uint64_t copy = copy_ns + link_ns(Traffic::large / 2);
  Traffic traffic;
  const Stream a(traffic.device), b(traffic.device);
  // Half of each row, up and down at once.
  a.copy_2d({traffic.blocks[0], 1024, traffic.up.data(), 1024, 512, 1024});
  b.copy_2d({traffic.down.data(), 1024, traffic.blocks[1], 1024, 512, 1024});
  EXPECT_GE(traffic.makespan_ns(), copy);
  EXPECT_LE(traffic.makespan_ns(), copy + submissions_ns);
}

TEST(Sim, AddsUpWhatAStreamOrAWaitPutsInOrder) {
  constexpr std::uint64_t up = copy_ns + link_ns(Traffic::large);
  constexpr std::uint64_t within = copy_ns + memory_ns(Traffic::large);
  Traffic traffic;
  const Stream a(traffic.device), b(traffic.device), c(traffic.device);
  a.copy(traffic.blocks[0], traffic.up.data(), Traffic::large);
  b.wait(a.mark());
  b.copy(traffic.blocks[1], traffic.blocks[0], Traffic::large);
  c.wait(b.mark());
  c.copy(traffic.down.data(), traffic.blocks[1], Traffic::large);
  EXPECT_GE(traffic.makespan_ns(), up + within + up);
  EXPECT_LE(traffic.makespan_ns(), up + within + up + submissions_ns);
}

TEST(Sim, LetsTheDefaultStreamAndBlockingStreamsTakeTurnsInTimeToo) {
  constexpr std::uint64_t copy = copy_ns + link_ns(Traffic::large);
  Traffic traffic;
  const Stream blocking(traffic.device, {.blocking = true});
  blocking.copy(traffic.blocks[0], traffic.up.data(), Traffic::large);
  traffic.device.default_stream().copy(traffic.down.data(), traffic.blocks[1], Traffic::large);
  EXPECT_GE(traffic.makespan_ns(), 2 * copy);
}

TEST(Sim, GivesEachPeerEnginesOfItsOwn) {
  constexpr std::uint64_t copy = copy_ns + link_ns(Traffic::large);
  const std::vector<Device> peers =
      sim::open_peers({.policy = sim::Policy::lazy, .memory_bytes = 4 * mib}, 2);
  const std::vector<std::byte> host(Traffic::large);
  std::byte* blocks[2] = {};
  for (std::size_t i = 0; i < 2; ++i) {
    blocks[i] = static_cast<std::byte*>(peers[i].allocate(MemoryKind::device, Traffic::large));
    peers[i].default_stream().copy(blocks[i], host.data(), host.size());
  }
  for (const Device& peer : peers) peer.synchronize();
  const std::uint64_t both_ns = sim::virtual_time_ns(peers[0]);
  EXPECT_GE(both_ns, copy);
  EXPECT_LE(both_ns, copy + submissions_ns);
  // Between them bytes cross a link, and not the memory's own bandwidth.
  auto* other = static_cast<std::byte*>(peers[1].allocate(MemoryKind::device, Traffic::large));
  peers[1].default_stream().try_copy_from_peer(other, peers[0], blocks[0], Traffic::large).value();
  peers[1].synchronize();
  EXPECT_GE(sim::virtual_time_ns(peers[1]) - both_ns, copy);
}

TEST(Sim, TakesItsTimesFromTheProfile) {
  const auto makespan = [](const char* profile) {
    Traffic traffic({.policy = sim::Policy::lazy, .profile = profile});
    const Stream stream(traffic.device);
    stream.copy(traffic.blocks[0], traffic.up.data(), Traffic::large);
    return traffic.makespan_ns();
  };
  EXPECT_EQ(makespan("h200"), makespan(""));
  EXPECT_GT(makespan("small"), 4 * makespan("h200"));
}

TEST(Sim, RunsASlowStreamLastAndLate) {
  for (const sim::Policy policy : {sim::Policy::lazy, sim::Policy::eager, sim::Policy::random}) {
    Bench bench({.policy = policy});
    bench.device.synchronize();
    const std::uint64_t began_ns = sim::virtual_time_ns(bench.device);
    sim::set_faults(bench.device, "fill#1=slow");
    std::string order;
    const auto note = [](void* context) { *static_cast<std::string*>(context) += 'b'; };
    bench.a.fill(bench.block, bytes, std::byte{3});
    EXPECT_FALSE(bench.a.is_idle());
    bench.a.call([](void* context) { *static_cast<std::string*>(context) += 'a'; }, &order);
    for (int i = 0; i < 5; ++i) bench.b.call(note, &order);
    bench.b.synchronize();
    EXPECT_EQ(order, "bbbbb");
    EXPECT_LT(sim::virtual_time_ns(bench.device) - began_ns, slow_ns);
    bench.a.synchronize();
    EXPECT_EQ(order, "bbbbba");
    EXPECT_GE(sim::virtual_time_ns(bench.device) - began_ns, slow_ns);
    // The next operation of the stream is as fast as ever.
    bench.a.fill(bench.block, bytes, std::byte{4});
    bench.a.copy(bench.host.data(), bench.block, bytes);
    bench.a.synchronize();
    EXPECT_LT(sim::virtual_time_ns(bench.device) - began_ns, 2 * slow_ns);
    EXPECT_EQ(bench.host[0], std::byte{4});
  }
}

TEST(Sim, ASlowCallThatIsRefusedSlowsNothing) {
  Bench bench({.policy = sim::Policy::eager});
  bench.device.synchronize();
  bench.device.release(bench.block);
  sim::set_faults(bench.device, "fill#1=slow");
  EXPECT_FALSE(bench.a.try_fill(bench.block, bytes, std::byte{3}));
  bench.a.call([](void*) {}, nullptr);
  EXPECT_TRUE(bench.a.is_idle());
}

TEST(Sim, DoesNotCareWhereTheHeapPutsThings) {
  // Whether a second buffer lies where the first one was is chance, and nobody's business once all
  // that used the first is done.
  const auto hash_of = [](bool is_same) {
    std::vector<std::byte> first(2 * bytes), second(2 * bytes);
    Bench bench;
    bench.b.copy(first.data(), bench.block, bytes);
    bench.device.synchronize();
    std::byte* target = is_same ? first.data() + bytes / 2 : second.data();
    bench.b.copy(target, bench.block, bytes);
    bench.device.synchronize();
    EXPECT_EQ(bench.found(), "");
    return sim::trace_hash(bench.device);
  };
  EXPECT_EQ(hash_of(true), hash_of(false));
}

TEST(Sim, StillSeesABufferThatIsUsedWhileACopyIsUnderWay) {
  Bench bench;
  bench.b.copy(bench.host.data(), bench.block, bytes);
  EXPECT_FALSE(bench.a.try_copy(bench.host.data() + 100, bench.block, 100));
  EXPECT_EQ(bench.found(), "TERN-S101");
  bench.device.synchronize();
}

TEST(Sim, KeepsTimeOfItsOwn) {
  Bench bench;
  Event start = Event::timed(bench.device), end = Event::timed(bench.device);
  std::vector<std::byte> large(1 << 20);
  auto* memory = bench.device.allocate(MemoryKind::device, large.size());
  bench.a.record(start);
  bench.a.copy(memory, large.data(), large.size());
  bench.a.record(end);
  bench.a.synchronize();
  // 1 MiB at 55 GB/s, and what it takes to start a copy.
  EXPECT_EQ(end.elapsed_ns(start), 2'700u + (std::uint64_t{1} << 20) * 1000 / 55'000);
  EXPECT_GE(sim::virtual_time_ns(bench.device), end.elapsed_ns(start));
}

TEST(Sim, HoldsAStreamUntilItIsLetGo) {
  Bench bench({.policy = sim::Policy::eager});
  bench.device.synchronize();
  const std::uint64_t hold = sim::hold(bench.a);
  bench.a.fill(bench.block, bytes, std::byte{9});
  EXPECT_FALSE(bench.a.is_idle());
  sim::resume(bench.device, hold);
  EXPECT_TRUE(bench.a.is_idle());
}

TEST(Sim, KnobsWantASimulatedDevice) {
  EXPECT_THROW(static_cast<void>(sim::findings(open_device("host"))), InvalidDevice);
  EXPECT_THROW(static_cast<void>(sim::open({.faults = "nonsense"})), InvalidArgument);
  EXPECT_THROW(static_cast<void>(sim::calls(sim::open({}), "nonsense")), InvalidArgument);
  EXPECT_THROW(static_cast<void>(sim::open({.profile = "/no/such/file"})), FileError);
  EXPECT_EQ(sim::calls(sim::open({}), "free"), 0u);
}

TEST(Sim, FailsEachCallOfAPlanCleanlyAndWorksAfterwards) {
  const auto scenario = [](const Device& device) -> Result<void> {
    Result<Stream> stream = Stream::try_make(device);
    if (!stream) return stream.failure();
    const Result<void*> memory = device.try_allocate(MemoryKind::device, bytes);
    if (!memory) return memory.failure();
    std::vector<std::byte> host(bytes);
    Result<void> outcome = stream->try_fill(static_cast<std::byte*>(*memory), bytes, std::byte{1});
    if (outcome) outcome = stream->try_copy(host.data(), *memory, bytes);
    if (outcome) outcome = stream->try_synchronize();
    static_cast<void>(stream->try_synchronize());
    Result<void> released = device.try_release(*memory);
    if (!released) released = device.try_release(*memory);  // a failed release changed nothing
    if (outcome && !released) return released;
    return outcome;
  };
  for (const std::string fault_class : {"allocate", "copy", "fill", "stream", "release"}) {
    const Device device = sim::open({});
    ASSERT_TRUE(scenario(device));
    const std::uint64_t calls = sim::calls(device, fault_class);
    ASSERT_GT(calls, 0u) << fault_class;
    for (const std::string kind : {"fail", "oom"}) {
      if (kind == "oom" && fault_class != "allocate") continue;
      for (std::uint64_t call = 1; call <= calls; ++call) {
        sim::set_faults(device, fault_class + "#" + std::to_string(call) + "=" + kind);
        const bool is_release = fault_class == "release";
        EXPECT_EQ(bool(scenario(device)), is_release) << fault_class << " " << kind;
        sim::set_faults(device, "");
        EXPECT_TRUE(scenario(device)) << fault_class << " " << kind;
        EXPECT_TRUE(sim::leaks(device).empty()) << fault_class << " " << kind;
        EXPECT_TRUE(sim::findings(device).empty()) << fault_class << " " << kind;
      }
    }
  }
}

TEST(Sim, ALostDeviceFailsFastWithTheFirstCauseAndStillTakesMemoryBack) {
  Bench bench({.policy = sim::Policy::lazy});
  sim::set_faults(bench.device, "copy#1=lost");
  const Result<void> copied = bench.a.try_copy(bench.host.data(), bench.block, bytes);
  ASSERT_FALSE(copied);
  EXPECT_EQ(copied.failure().code(), ErrorCode::device_lost);
  const Result<void> later = bench.b.try_fill(bench.block, bytes, std::byte{0});
  ASSERT_FALSE(later);
  EXPECT_EQ(later.failure().string("call"), "copy");
  EXPECT_EQ(bench.device.try_synchronize().failure().code(), ErrorCode::device_lost);
  EXPECT_TRUE(bench.device.try_release(bench.block));
}

TEST(Sim, ALostDeviceTakesBackWhatItsStreamsWereUsingWithoutAFinding) {
  Bench bench({.policy = sim::Policy::lazy});
  auto* ordered = static_cast<std::byte*>(bench.a.allocate(bytes));
  bench.a.fill(ordered, bytes, std::byte{1});
  bench.b.fill(bench.block, bytes, std::byte{2});
  sim::set_faults(bench.device, "copy#1=lost");
  EXPECT_FALSE(bench.a.try_copy(bench.host.data(), ordered, bytes));
  EXPECT_TRUE(bench.a.try_release(ordered));
  EXPECT_TRUE(bench.device.try_release(bench.block));
  EXPECT_EQ(bench.found(), "");
  EXPECT_TRUE(sim::leaks(bench.device).empty());
}

TEST(Sim, ALossSpreadsToAPeerThatNeedsWhatWasNeverDone) {
  const auto lose_the_source = [](bool waits, bool copies) {
    const std::vector<Device> peers = sim::open_peers({.policy = sim::Policy::lazy}, 2);
    auto* from = static_cast<std::byte*>(peers[0].allocate(MemoryKind::device, bytes));
    auto* to = static_cast<std::byte*>(peers[1].allocate(MemoryKind::device, bytes));
    const Stream first(peers[0]), second(peers[1]);
    first.fill(from, bytes, std::byte{5});
    first.synchronize();
    sim::set_faults(peers[0], "launch#1=fault");
    first.call([](void*) {}, nullptr);
    const std::uint64_t hold = sim::hold(second);
    if (waits) second.wait(first.mark());
    if (copies) second.try_copy_from_peer(to, peers[0], from, bytes).value();
    EXPECT_FALSE(first.try_synchronize());  // the loss comes first
    sim::resume(peers[1], hold);
    const Result<void> outcome = second.try_synchronize();
    return outcome ? std::string() : std::string(*outcome.failure().string("device"));
  };
  EXPECT_EQ(lose_the_source(true, false), "sim:0");
  EXPECT_EQ(lose_the_source(false, true), "sim:0");
  EXPECT_EQ(lose_the_source(true, true), "sim:0");
  EXPECT_EQ(lose_the_source(false, false), "");
}

TEST(Sim, RefusesToWaitForADeviceThatIsSimulatedApart) {
  Bench here, elsewhere;
  elsewhere.a.fill(elsewhere.block, bytes, std::byte{2});
  const Result<void> for_mark = here.a.try_wait(elsewhere.a.mark());
  ASSERT_FALSE(for_mark);
  EXPECT_EQ(for_mark.failure().code(), ErrorCode::device_mismatch);
  Event event(elsewhere.device);
  elsewhere.a.record(event);
  const Result<void> for_event = here.b.try_wait(event);
  ASSERT_FALSE(for_event);
  EXPECT_EQ(for_event.failure().code(), ErrorCode::device_mismatch);
  EXPECT_NE(for_event.failure().text().find("of another simulation"), std::string::npos);

  here.device.synchronize();
  elsewhere.device.synchronize();
  EXPECT_EQ(here.found() + elsewhere.found(), "");
}

TEST(Sim, WhatIsSubmittedByTheCallThatMeetsALossNeverRuns) {
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    const std::vector<Device> peers =
        sim::open_peers({.seed = seed, .policy = sim::Policy::lazy, .mode = sim::Mode::collect}, 2);
    auto* from = static_cast<std::byte*>(peers[0].allocate(MemoryKind::device, bytes));
    auto* to = static_cast<std::byte*>(peers[1].allocate(MemoryKind::device, bytes));
    auto* pinned = static_cast<std::byte*>(peers[1].allocate(MemoryKind::pinned, bytes));
    std::memset(pinned, 1, bytes);
    std::vector<void*> others;
    for (int i = 0; i < 20; ++i) others.push_back(peers[1].allocate(MemoryKind::device, bytes));
    peers[0].default_stream().fill(from, bytes, std::byte{5});
    peers[0].synchronize();
    const Stream stream(peers[1]);
    const std::uint64_t hold = sim::hold(stream);
    stream.try_copy_from_peer(to, peers[0], from, bytes).value();
    sim::set_faults(peers[0], "info#1=lost");
    EXPECT_FALSE(peers[0].try_memory());
    sim::resume(peers[1], hold);
    // Of pageable memory: on the way it may wait for what the stream does before, and that fails.
    const std::vector<std::byte> pageable(bytes, std::byte{2});
    static_cast<void>(stream.try_copy(pinned, pageable.data(), bytes));
    EXPECT_FALSE(stream.try_synchronize());
    for (void* const one : others) static_cast<void>(peers[1].try_release(one));
    EXPECT_EQ(pinned[0], std::byte{1}) << "seed " << seed;
  }
}

TEST(Sim, APeerGetsNothingMoreFromALostDevice) {
  const std::vector<Device> peers = sim::open_peers({.policy = sim::Policy::lazy}, 2);
  auto* from = static_cast<std::byte*>(peers[0].allocate(MemoryKind::device, bytes));
  auto* to = static_cast<std::byte*>(peers[1].allocate(MemoryKind::device, bytes));
  peers[0].default_stream().fill(from, bytes, std::byte{5});
  peers[0].synchronize();
  sim::set_faults(peers[0], "info#1=lost");
  EXPECT_EQ(peers[0].try_memory().failure().code(), ErrorCode::device_lost);
  const StreamRef second = peers[1].default_stream();
  EXPECT_EQ(second.try_copy_from_peer(to, peers[0], from, bytes).failure().string("call"),
            "memory");
  EXPECT_TRUE(second.try_fill(to, bytes, std::byte{1}));
  peers[1].synchronize();
}

TEST(Sim, AFaultInQueuedWorkIsMetByTheStreamItWasSubmittedTo) {
  Bench bench;
  sim::set_faults(bench.device, "fill#1=fault");
  EXPECT_TRUE(bench.a.try_fill(bench.block, bytes, std::byte{2}));
  const Result<void> waited = bench.a.try_synchronize();
  ASSERT_FALSE(waited);
  EXPECT_EQ(waited.failure().string("call"), "queued work");
}

TEST(Sim, AFaultInQueuedWorkShowsWhenItIsReached) {
  Bench bench;
  sim::set_faults(bench.device, "copy#1=fault");
  EXPECT_TRUE(bench.a.try_copy(bench.host.data(), bench.block, bytes));
  EXPECT_EQ(bench.device.try_synchronize().failure().code(), ErrorCode::device_lost);
  EXPECT_FALSE(bench.b.try_fill(bench.block, bytes, std::byte{0}));
}

TEST(Sim, APlanMakesQueriesUnreadyUnlessTheHostKnowsBetter) {
  Bench bench({.policy = sim::Policy::eager});
  sim::set_faults(bench.device, "query#1=not_ready, query#3+=not_ready");
  EXPECT_FALSE(bench.a.is_idle());  // it is, and says no
  EXPECT_TRUE(bench.a.is_idle());
  EXPECT_TRUE(bench.a.is_idle());  // it has said so
  bench.a.fill(bench.block, bytes, std::byte{2});
  const Mark mark = bench.a.mark();
  EXPECT_FALSE(Device::is_done(mark));
  Device::wait(mark);
  EXPECT_TRUE(Device::is_done(mark));
  EXPECT_TRUE(bench.a.is_idle());
  bench.a.fill(bench.block, bytes, std::byte{3});
  EXPECT_FALSE(bench.a.is_idle());
  // Whatever order the host has learned of, no query denies it.
  bench.b.wait(bench.a.mark());
  bench.b.synchronize();
  EXPECT_TRUE(bench.a.is_idle());
  // What it has not learned of, a query may deny though an earlier event is known to be done.
  Event early(bench.device), late(bench.device);
  bench.a.record(early);
  early.synchronize();
  bench.a.fill(bench.block, bytes, std::byte{4});
  bench.a.record(late);
  EXPECT_TRUE(early.is_done());
  EXPECT_FALSE(late.is_done());
  EXPECT_TRUE(early.is_done());
  late.synchronize();
  EXPECT_TRUE(late.is_done());
  bench.a.fill(bench.block, bytes, std::byte{4});
  int answers = 1;
  while (!bench.a.is_idle()) ++answers;
  EXPECT_EQ(answers, 64);  // not for ever
}

TEST(Sim, AnEventThatWasSeenDoneStaysDoneWhateverThePlan) {
  Bench bench({.policy = sim::Policy::eager});
  Event event(bench.device);
  bench.a.fill(bench.block, bytes, std::byte{2});
  bench.a.record(event);
  sim::set_faults(bench.device, "query#2+=not_ready");
  EXPECT_TRUE(event.is_done());
  EXPECT_TRUE(event.is_done());
}

TEST(Sim, APlanMakesMemoryFragmentedAndPinningRefused) {
  Bench bench;
  bench.device.synchronize();
  sim::set_faults(bench.device, "allocate#1=fragmented, pin#1=refuse");
  const Result<void*> split = bench.device.try_allocate(MemoryKind::device, bytes);
  ASSERT_FALSE(split);
  EXPECT_EQ(split.failure().code(), ErrorCode::out_of_memory);
  EXPECT_GT(split.failure().number("free"), bytes);
  EXPECT_EQ(bench.device.try_allocate(MemoryKind::pinned, bytes).failure().code(),
            ErrorCode::driver);
}

TEST(Sim, AWorldWithoutMemoryForAnotherDeviceStaysAsItWas) {
  if (!test::HeapExhausted::is_possible()) GTEST_SKIP();
  const auto count_handlers = [] {
    struct sigaction current = {};
    sigaction(SIGSEGV, nullptr, &current);
    return current.sa_sigaction;
  };
  const auto before = count_handlers();
  std::size_t refusals = 0;
  for (std::size_t left = 0;; ++left) {
    sim::World world({.memory_bytes = 4 * mib}, sim::default_profile());
    const Result<std::uint32_t> refused = [&] {
      const test::HeapExhausted exhausted(left);
      return world.add_device("sim:0");
    }();
    if (refused) break;
    ++refusals;
    EXPECT_EQ(refused.failure().code(), ErrorCode::out_of_memory) << left;
    // Nobody watches memory that is gone, and the next device is the first.
    EXPECT_EQ(count_handlers(), before) << left;
    EXPECT_EQ(world.add_device("sim:0").value(), 0u) << left;
    EXPECT_EQ(world.device(0).default_stream, 0u) << left;
    EXPECT_EQ(world.stream(0).device, 0u) << left;
  }
  EXPECT_GT(refusals, 5u);
  EXPECT_EQ(count_handlers(), before);
}

TEST(Sim, PeersCopyFromEachOtherAndStrangersDoNot) {
  const std::vector<Device> peers = sim::open_peers({.policy = sim::Policy::lazy}, 2);
  auto* from = static_cast<std::byte*>(peers[0].allocate(MemoryKind::device, bytes));
  auto* to = static_cast<std::byte*>(peers[1].allocate(MemoryKind::device, bytes));
  const Stream first(peers[0]), second(peers[1]);
  first.fill(from, bytes, std::byte{5});
  second.wait(first.mark());
  ASSERT_TRUE(second.try_copy_from_peer(to, peers[0], from, bytes));
  std::vector<std::byte> host(bytes);
  second.copy(host.data(), to, bytes);
  second.synchronize();
  EXPECT_EQ(host.back(), std::byte{5});

  const Device stranger = sim::open({});
  const Result<void> refused = second.try_copy_from_peer(to, stranger, from, bytes);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.failure().code(), ErrorCode::device_mismatch);
}

TEST(Sim, CompletesWhatEndedStreamsHaveLeftWithoutTheCheckerToo) {
  for (const bool check : {true, false}) {
    const Device device = sim::open({.policy = sim::Policy::lazy, .check = check});
    std::vector<int> to(1);
    const std::vector<int> from(1, 7);
    {
      const Stream brief(device);
      brief.copy(to.data(), from.data(), sizeof(int));
    }
    device.synchronize();
    EXPECT_EQ(to[0], 7) << check;
  }
}

}  // namespace
}  // namespace tern
