// Every fault plan: a program that uses all functions of the contract runs once for each of its
// calls and each kind of fault of that call. The program fails with exactly that error or computes
// the right bytes. It leaks nothing, and the device works as before. A lost device reports why it
// is lost, and its memory can still be freed.

#include <gtest/gtest.h>
#include <unistd.h>

#include <functional>
#include <map>
#include <set>

#include "backends/sim/fault_plan.hpp"
#include "backends/sim/sim_backend.hpp"
#include "device/device_state.hpp"
#include "support/ladder.hpp"
#include "tern/backends/sim.hpp"
#include "tern/device/event.hpp"
#include "tern/device/stream.hpp"

namespace tern::test {
namespace {

using sim::FaultClass;
using sim::FaultKind;

constexpr std::size_t bytes = 4096;
constexpr std::size_t page = 2 * mib;
constexpr std::size_t memory_bytes = 8 * mib;

/// What must outlive a program that fails: two peers, the host memory that queued work still uses,
/// and whatever could not be given back.
struct Ground {
  explicit Ground(const sim::Options& options)
      : peers(sim::open_peers(options, 2)), device(peers[0]), peer(peers[1]) {}

  /// Tries, and tries again: a failure has changed nothing. What still fails waits until the faults
  /// are over.
  void give_back(std::function<Result<void>()> give) {
    for (int i = 0; i < 2 && !must_wait; ++i) {
      const Result<void> given = give();
      if (given) return;
      refusals.push_back(given.failure());
    }
    must_wait = true;  // what comes later may depend on this having gone
    left.push_back(std::move(give));
  }

  /// Without faults everything that was left must go.
  void clean_up() {
    for (const Device& each : peers) static_cast<void>(each.try_synchronize());
    for (const auto& give : left) {
      const Result<void> given = give();
      EXPECT_TRUE(given) << given.failure().text();
    }
    left.clear();
    must_wait = false;
  }

  std::vector<Device> peers;
  const Device& device;
  const Device& peer;
  Bytes source = sample(bytes), result = Bytes(bytes);
  int called = 0;
  bool must_wait = false;
  std::vector<std::function<Result<void>()>> left;
  std::vector<Failure> refusals;
};

/// Waits for everything before what was made earlier goes: memory in use must not be given back.
class Settled {
 public:
  explicit Settled(Ground& ground) : ground_(ground) {}
  Settled(const Settled&) = delete;
  Settled& operator=(const Settled&) = delete;
  ~Settled() {
    for (const Device& device : ground_.peers) {
      Result<void> waited = device.try_synchronize();
      if (!waited) waited = device.try_synchronize();
      // Of a lost device nothing uses memory any more.
      if (!waited && waited.failure().code() != ErrorCode::device_lost) ground_.must_wait = true;
    }
  }

 private:
  Ground& ground_;
};

/// Calls a function at the end of its scope.
class Finally {
 public:
  Finally(Ground& ground, std::function<Result<void>()> give)
      : ground_(ground), give_(std::move(give)) {}
  Finally(const Finally&) = delete;
  Finally& operator=(const Finally&) = delete;
  ~Finally() {
    if (give_) ground_.give_back(std::move(give_));
  }
  void do_now() {
    give_().value();
    give_ = nullptr;
  }

 private:
  Ground& ground_;
  std::function<Result<void>()> give_;
};

std::byte* allocate(const Device& device, MemoryKind kind) {
  return static_cast<std::byte*>(device.allocate(kind, bytes));
}

std::function<Result<void>()> releasing(Device device, void* address) {
  return [device = std::move(device), address] { return device.try_release(address); };
}

void expect_result(Ground& ground, const Bytes& expected) {
  sim::host_read(ground.device, ground.result.data(), bytes);
  EXPECT_TRUE(ground.result == expected);
}

// --- The rungs

void climb_memory(Ground& ground) {
  const Device& device = ground.device;
  EXPECT_EQ(device.memory().total_bytes, memory_bytes);
  std::byte* block = allocate(device, MemoryKind::device);
  const Finally free_block(ground, releasing(device, block));
  EXPECT_EQ(device.pointer_info(block).bytes, bytes);
  std::byte* pinned = allocate(device, MemoryKind::pinned);
  const Finally free_pinned(ground, releasing(device, pinned));
  std::byte* managed = allocate(device, MemoryKind::managed);
  const Finally free_managed(ground, releasing(device, managed));
  const Stream stream(device);
  const Settled settled(ground);

  stream.copy(block, ground.source.data(), bytes);
  stream.copy(pinned, block, bytes);
  stream.copy_2d({managed, 64, pinned, 64, 64, bytes / 64});
  device.try_advise(managed, bytes, Advice::set_preferred_location, device.place()).value();
  EXPECT_EQ(device.try_managed_info(managed, bytes).value().preferred, device.place());
  stream.try_prefetch(managed, bytes, device.place()).value();
  stream.discard(managed + bytes / 2, bytes / 2);
  stream.fill(managed + bytes / 2, bytes / 2, std::byte{7});
  stream.copy(ground.result.data(), managed, bytes);
  stream.synchronize();
  Bytes expected = ground.source;
  std::fill(expected.begin() + bytes / 2, expected.end(), std::byte{7});
  expect_result(ground, expected);
}

void climb_order(Ground& ground) {
  const Device& device = ground.device;
  std::byte* block = allocate(device, MemoryKind::device);
  const Finally free_block(ground, releasing(device, block));
  Stream first(device), second(device), blocking(device, {.blocking = true});
  Event event(device), start = Event::timed(device), end = Event::timed(device);
  const Settled settled(ground);

  first.record(start);
  first.fill(block, bytes, std::byte{1});
  first.record(event);
  second.wait(event);
  second.fill(block, bytes / 2, std::byte{2});
  blocking.wait(second.mark());
  blocking.fill(block, bytes / 4, std::byte{3});
  device.default_stream().copy(ground.result.data(), block, bytes);
  const Mark mark = device.default_stream().mark();
  while (!Device::is_done(mark)) {
  }
  Device::wait(mark);
  Bytes expected(bytes, std::byte{1});
  std::fill(expected.begin(), expected.begin() + bytes / 2, std::byte{2});
  std::fill(expected.begin(), expected.begin() + bytes / 4, std::byte{3});
  device.default_stream().synchronize();
  expect_result(ground, expected);

  first.record(end);
  end.synchronize();
  while (!event.is_done()) {
  }
  EXPECT_GT(end.elapsed_ns(start), 0u);
  while (!second.is_idle()) {
  }
  // Ends with a mark that has no record yet, and so is sealed.
  first.fill(block, bytes, std::byte{4});
  const Mark last = first.mark();
  first = Stream();
  Device::wait(last);
  device.synchronize();
}

void climb_stream_memory(Ground& ground) {
  const Device device = ground.device;
  const Stream stream(device);
  {
    // What was allocated in stream order may be given back by the host.
    auto* block = static_cast<std::byte*>(stream.allocate(bytes));
    const Finally free_block(ground, releasing(device, block));
    const Settled settled(ground);
    stream.copy(block, ground.source.data(), bytes);
    stream.copy(ground.result.data(), block, bytes);
    stream.synchronize();
    expect_result(ground, ground.source);
  }
  for (int round = 0; round < 2; ++round) {
    auto* block = static_cast<std::byte*>(stream.allocate(bytes));
    // Nothing is queued behind the release, so it may be tried again at any time.
    Finally free_block(ground, [device, block, ref = StreamRef(stream)] {
      const Result<void> released = ref.try_release(block);
      if (released || released.failure().code() != ErrorCode::stream_misuse) return released;
      return device.try_release(block);
    });
    stream.fill(block, bytes, std::byte{5});
    free_block.do_now();
  }
  stream.synchronize();
}

void climb_pages(Ground& ground) {
  const Device device = ground.device;
  auto* range = static_cast<std::byte*>(device.try_reserve(2 * page).value());
  const Finally unreserve(ground, [=] { return device.try_unreserve(range, 2 * page); });
  const NativePages pages = device.try_create_pages(page).value();
  Finally release_pages(ground, [=] { return device.try_release_pages(pages); });
  const Stream stream(device);

  device.try_map(range, pages).value();
  {
    Finally unmap(ground, [=] { return device.try_unmap(range, page); });
    const Settled settled(ground);
    device.try_set_access(range, page, PageAccess::read_write).value();
    stream.copy(range + 512, ground.source.data(), bytes);
    stream.synchronize();
    unmap.do_now();
  }
  device.try_map(range + page, pages).value();
  {
    const Finally unmap(ground, [=] { return device.try_unmap(range + page, page); });
    const Settled settled(ground);
    device.try_set_access(range + page, page, PageAccess::read_write).value();
    stream.copy(ground.result.data(), range + page + 512, bytes);
    stream.synchronize();
    expect_result(ground, ground.source);
  }
  release_pages.do_now();
}

void climb_shared_pages(Ground& ground) {
  const Device device = ground.device;
  const NativePages mine = device.try_create_shareable_pages(page).value();
  Finally release_mine(ground, [=] { return device.try_release_pages(mine); });
  const int descriptor = device.try_export_pages(mine).value();
  const Result<NativePages> theirs = device.try_import_pages(descriptor, page);
  close(descriptor);
  Finally release_theirs(
      ground, [pages = theirs.value(), device] { return device.try_release_pages(pages); });
  release_theirs.do_now();
  release_mine.do_now();
}

void add_one(const KernelCall& call) {
  auto* at = call.argument<unsigned char*>(0);
  for (std::size_t i = 0; i < bytes; ++i) at[i] = static_cast<unsigned char>(at[i] + 1);
}

void climb_work(Ground& ground) {
  const Device& device = ground.device;
  void* block = allocate(device, MemoryKind::device);
  const Finally free_block(ground, releasing(device, block));
  const NativeKernel kernel = device.try_load_kernel({.entry = "add_one", .body = add_one}).value();
  const Finally unload(ground, [=] {
    device.unload_kernel(kernel);
    return Result<void>();
  });
  StreamPool pool(device, 1);
  StreamLease lease = pool.try_acquire().value();
  const Settled settled(ground);

  lease->copy(block, ground.source.data(), bytes);
  const KernelArgument argument{&block, sizeof block, block, bytes, Access::read_write};
  lease->launch(kernel, {}, std::span(&argument, 1));
  lease->copy(ground.result.data(), block, bytes);
  ground.called = 0;
  lease->call([](void* called) { ++*static_cast<int*>(called); }, &ground.called);
  const Timeline timeline;
  timeline.try_set(lease, 1).value();
  lease->synchronize();
  EXPECT_EQ(timeline.value(), 1u);
  EXPECT_EQ(ground.called, 1);
  Bytes expected = ground.source;
  for (std::byte& byte : expected) byte = static_cast<std::byte>(std::to_integer<int>(byte) + 1);
  expect_result(ground, expected);
}

void climb_to_the_peer(Ground& ground) {
  EXPECT_TRUE(ground.device.try_enable_peer_access(ground.peer).value());
  std::byte* from = allocate(ground.peer, MemoryKind::device);
  const Finally free_from(ground, releasing(ground.peer, from));
  std::byte* to = allocate(ground.device, MemoryKind::device);
  const Finally free_to(ground, releasing(ground.device, to));
  const Stream there(ground.peer), here(ground.device);
  const Settled settled(ground);
  there.copy(from, ground.source.data(), bytes);
  here.wait(there.mark());
  here.try_copy_from_peer(to, ground.peer, from, bytes).value();
  here.copy(ground.result.data(), to, bytes);
  here.synchronize();
  expect_result(ground, ground.source);
}

void climb(Ground& ground) {
  std::ranges::fill(ground.result, std::byte{0});
  sim::host_write(ground.device, ground.result.data(), bytes);
  climb_memory(ground);
  climb_order(ground);
  climb_stream_memory(ground);
  climb_pages(ground);
  climb_shared_pages(ground);
  climb_work(ground);
  climb_to_the_peer(ground);
  // What was queued and not waited for shows here.
  for (const Device& device : ground.peers) device.synchronize();
}

// --- What must hold

/// Each class with the calls of the contract that belong to it, as docs/guide/sim.md has them.
const std::map<FaultClass, std::set<std::string>>& calls_of_class() {
  static const std::map<FaultClass, std::set<std::string>> calls = {
      {FaultClass::allocate,
       {"allocate", "allocate_async", "create_pages", "create_shareable_pages"}},
      {FaultClass::release, {"release", "release_async", "release_pages", "unmap", "unreserve"}},
      {FaultClass::map, {"reserve", "map", "set_access", "export_pages", "import_pages"}},
      {FaultClass::pin, {"allocate"}},
      {FaultClass::copy, {"copy", "copy_2d", "copy_from_peer", "prefetch", "discard"}},
      {FaultClass::fill, {"fill"}},
      {FaultClass::launch, {"launch", "call_host"}},
      {FaultClass::load, {"load_kernel"}},
      {FaultClass::record, {"record"}},
      {FaultClass::wait, {"wait"}},
      {FaultClass::query, {"query"}},
      {FaultClass::sync, {"synchronize"}},
      {FaultClass::stream, {"create_stream", "create_event"}},
      {FaultClass::info,
       {"memory", "pointer_info", "elapsed_ns", "enable_peer_access", "advise", "managed_info"}}};
  return calls;
}

/// Faults that the library itself, or the program's own clean-up, may take without a word.
bool may_be_survived(FaultClass fault_class, FaultKind kind) {
  return kind == FaultKind::slow || kind == FaultKind::not_ready ||
         fault_class == FaultClass::release || fault_class == FaultClass::record ||
         fault_class == FaultClass::query || fault_class == FaultClass::sync;
}

class FaultPlans : public testing::Test {
 protected:
  sim::World& world(const Ground& ground) {
    return *sim::world_of(DeviceState::of(ground.device)->backend());
  }

  void expect_exact(const Failure& failure, FaultClass fault_class, FaultKind kind) {
    const std::string text = failure.text();
    const std::string call(failure.string("call").value_or(""));
    EXPECT_TRUE(failure.string("device").value_or("").starts_with("sim:")) << text;
    if (kind != FaultKind::fault) {
      EXPECT_TRUE(calls_of_class().at(fault_class).contains(call)) << text;
      seen[fault_class].insert(call);
    }
    switch (kind) {
      case FaultKind::oom:
      case FaultKind::fragmented:
        EXPECT_EQ(failure.code(), ErrorCode::out_of_memory) << text;
        EXPECT_TRUE(failure.number("requested") == bytes || failure.number("requested") == page ||
                    failure.number("requested") == 2 * page)
            << text;
        EXPECT_EQ(failure.number("total"), memory_bytes) << text;
        EXPECT_EQ(failure.number("free") == 0u, kind == FaultKind::oom) << text;
        return;
      case FaultKind::fail:
      case FaultKind::refuse:
        EXPECT_EQ(failure.code(), ErrorCode::driver) << text;
        EXPECT_EQ(failure.number("code"), 1u) << text;
        EXPECT_EQ(failure.string("name"),
                  kind == FaultKind::fail ? "injected failure" : "operation not permitted");
        return;
      case FaultKind::fault:
        EXPECT_EQ(failure.code(), ErrorCode::device_lost) << text;
        EXPECT_EQ(call, "queued work") << text;
        EXPECT_EQ(failure.number("code"), 719u) << text;
        return;
      case FaultKind::lost:
        EXPECT_EQ(failure.code(), ErrorCode::device_lost) << text;
        EXPECT_EQ(failure.string("name"), "injected loss") << text;
        EXPECT_EQ(failure.number("code"), 700u) << text;
        return;
      case FaultKind::slow:
      case FaultKind::not_ready:
        ADD_FAILURE() << "is no error: " << text;
    }
  }

  /// The books, read behind the back of a device that may be lost.
  void expect_nothing_left(Ground& ground) {
    EXPECT_EQ(sim::leaks(ground.device).size(), 0u);
    for (const Finding& finding : sim::findings(ground.device)) ADD_FAILURE() << finding.text();
    for (std::uint32_t i = 0; i < 2; ++i) {
      const sim::SimDevice& device = world(ground).device(i);
      EXPECT_EQ(device.allocator->free_bytes(), memory_bytes);
      EXPECT_EQ(device.pages->window().free_bytes(), device.pages->window().total_bytes());
      EXPECT_TRUE(device.blocks.empty());
      EXPECT_TRUE(device.pending.empty());
      EXPECT_TRUE(device.pages->is_empty());
    }
  }

  /// Every call says what the first cause was, and counts as none.
  void expect_lost(const Device& device, const Failure& cause) {
    const auto says_so = [&](const auto& result) {
      ASSERT_FALSE(result);
      EXPECT_EQ(result.failure().text(), cause.text());
    };
    std::byte a[64] = {}, b[64] = {};
    const StreamRef stream = device.default_stream();
    says_so(device.try_memory());
    says_so(device.try_synchronize());
    says_so(device.try_allocate(MemoryKind::device, 64));
    says_so(device.try_allocate(MemoryKind::pinned, 64));
    says_so(device.try_pointer_info(a));
    says_so(device.try_reserve(page));
    says_so(device.try_create_pages(page));
    says_so(device.try_create_shareable_pages(page));
    says_so(device.try_export_pages({1}));
    says_so(device.try_import_pages(0, page));
    says_so(device.try_load_kernel({.entry = "x"}));
    says_so(device.try_enable_peer_access(sim::open({.memory_bytes = 2 * mib})));
    says_so(Stream::try_make(device));
    says_so(Event::try_make_timed(device));
    says_so(stream.try_copy(a, b, 64));
    says_so(stream.try_copy_2d({a, 8, b, 8, 8, 8}));
    says_so(stream.try_fill(a, 64, std::byte{1}));
    says_so(stream.try_allocate(64));
    says_so(stream.try_call([](void*) {}, nullptr));
    says_so(stream.try_wait(Event()));
    says_so(stream.try_is_idle());
    says_so(stream.try_synchronize());
  }

  /// One plan on fresh devices. `index` is that of the call that must fail, 0 if none must.
  void run(const sim::Options& options, const std::string& plan, FaultClass fault_class,
           FaultKind kind, std::uint64_t index) {
    SCOPED_TRACE(plan + " with seed " + std::to_string(options.seed));
    ++cases;
    Ground ground(options);
    sim::set_faults(ground.device, plan);
    std::optional<Failure> failure;
    try {
      climb(ground);
    } catch (const Error& error) {
      failure = error.failure();
    }
    EXPECT_GE(sim::calls(ground.device, name(fault_class)), index) << "never got there";
    if (failure) {
      expect_exact(*failure, fault_class, kind);
    } else if (index > 0) {
      EXPECT_TRUE(may_be_survived(fault_class, kind)) << "nobody was told";
    }
    for (const Failure& refusal : ground.refusals) expect_exact(refusal, fault_class, kind);
    bool is_lost = false;
    sim::set_faults(ground.device, "");
    ground.clean_up();
    for (std::uint32_t i = 0; i < 2; ++i) {
      if (const auto& loss = world(ground).device(i).loss) {
        is_lost = true;
        expect_exact(*loss, fault_class, kind);
        expect_lost(ground.peers[i], *loss);
      }
    }
    const bool should_be_lost = kind == FaultKind::lost || kind == FaultKind::fault;
    if (failure) {
      EXPECT_EQ(is_lost, should_be_lost);
    }
    expect_nothing_left(ground);
    if (is_lost) {
      Ground other(options);
      climb(other);
      expect_nothing_left(other);
    } else {
      EXPECT_NO_THROW(climb(ground));
      ground.clean_up();
      expect_nothing_left(ground);
    }
  }

  std::size_t cases = 0;
  std::map<FaultClass, std::set<std::string>> seen;
};

/// Every policy, and both ways to reuse memory.
std::vector<sim::Options> worlds() {
  std::vector<sim::Options> options;
  for (const sim::Policy policy : {sim::Policy::lazy, sim::Policy::eager, sim::Policy::random,
                                   sim::Policy::skewed, sim::Policy::stall_one, sim::Policy::pct}) {
    const bool is_odd = options.size() % 2 == 1;
    options.push_back({.seed = options.size(),
                       .policy = policy,
                       .reuse = is_odd ? sim::Reuse::friendly : sim::Reuse::hostile,
                       .memory_bytes = memory_bytes});
  }
  return options;
}

TEST_F(FaultPlans, EachCallFailedInEachWayFailsCleanlyAndTheDeviceWorksAfterwards) {
  for (const sim::Options& options : worlds()) {
    Ground calm(options);
    climb(calm);
    std::array<std::uint64_t, sim::fault_classes> calls_made = {};
    for (std::size_t c = 0; c < sim::fault_classes; ++c) {
      calls_made[c] = sim::calls(calm.device, name(static_cast<FaultClass>(c)));
    }
    calm.clean_up();
    expect_nothing_left(calm);
    for (std::size_t c = 0; c < sim::fault_classes && !HasFailure(); ++c) {
      const auto fault_class = static_cast<FaultClass>(c);
      const std::uint64_t calls = calls_made[c];
      ASSERT_GT(calls, 0u) << name(fault_class) << " has no call in the program";
      for (std::size_t k = 0; k < sim::fault_kinds; ++k) {
        const auto kind = static_cast<FaultKind>(k);
        if (!takes(fault_class, kind)) continue;
        const auto rule = [&](const std::string& selector) {
          return std::string(name(fault_class)) + selector + "=" + std::string(name(kind));
        };
        for (std::uint64_t index = 1; index <= calls && !HasFailure(); ++index) {
          run(options, rule("#" + std::to_string(index)), fault_class, kind, index);
        }
        run(options, rule("#" + std::to_string((calls + 1) / 2) + "+"), fault_class, kind, 1);
        run(options, rule("#1+"), fault_class, kind, 1);
        run(options, rule("%2"), fault_class, kind, 0);
        run(options, rule("~0.3"), fault_class, kind, 0);
      }
    }
  }
  EXPECT_EQ(seen, calls_of_class()) << "some call was never seen to fail";
  RecordProperty("cases", static_cast<int>(cases));
  std::cout << cases << " cases of class, kind and call\n";
  EXPECT_GT(cases, 1000u);
}

}  // namespace
}  // namespace tern::test
