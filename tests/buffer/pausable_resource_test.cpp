#include "tern/buffer/pausable_resource.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "buffer/file_transfers.hpp"
#include "support/budgets.hpp"
#include "support/file_faults.hpp"
#include "support/gate.hpp"
#include "support/on_device.hpp"
#include "support/refused.hpp"
#include "support/sharing_devices.hpp"
#include "support/simulated.hpp"
#include "support/temporary_folder.hpp"
#include "support/thorough.hpp"
#include "support/thread.hpp"
#include "tern/backends/sim.hpp"
#include "tern/buffer/array.hpp"
#include "tern/buffer/copy.hpp"
#include "tern/buffer/foreign.hpp"
#include "tern/core/bytes.hpp"
#include "tern/core/error.hpp"
#include "tern/interop/dlpack.hpp"
#include "tern/launch/graph.hpp"
#include "tern/launch/kernel.hpp"
#include "tern/launch/launch_recorder.hpp"
#include "tern/memory/arena_resource.hpp"
#include "tern/memory/budget_resource.hpp"
#include "tern/memory/default_resource.hpp"
#include "tern/memory/driver_resource.hpp"
#include "tern/memory/owned_block.hpp"
#include "tern/memory/pointer_allocator.hpp"
#include "tern/memory/pool_resource.hpp"
#include "tern/memory/pressure_resource.hpp"
#include "tern/memory/tracking_resource.hpp"

// A namespace of its own, because other tests have the same names.
namespace tern::pausing_test {
namespace {

using test::refused;
using Numbers = Array<std::uint32_t>;

constexpr std::size_t page = 2 * mib;

std::vector<std::uint32_t> numbers(std::uint32_t first, std::size_t count) {
  std::vector<std::uint32_t> made(count);
  std::iota(made.begin(), made.end(), first);
  return made;
}

std::byte* bytes_of(const Block& block) { return static_cast<std::byte*>(block.address); }

Buffer buffer_of(const Numbers& array) {
  return Buffer::try_over(array.storage(), 0, Shape{array.size()}, DType::u32).value();
}

Result<void> read_of(const Numbers& array) {
  std::vector<std::uint32_t> read(array.size());
  return array.try_copy_to(read);
}

class PausableResourceOn : public test::OnDevice {
 protected:
  void SetUp() override {
    OnDevice::SetUp();
    if (IsSkipped()) return;
    resource = make({.budget = budget, .directory = folder / ""});
  }
  void TearDown() override {
    if (device.is_open() && test::is_simulated(device)) {
      device.synchronize();
      for (const Finding& finding : sim::findings(device)) ADD_FAILURE() << finding.text();
    }
  }
  [[nodiscard]] std::shared_ptr<PausableResource> make(PausableOptions options) const {
    return std::make_shared<PausableResource>(device, std::move(options));
  }
  /// An array whose elements count from `first`.
  [[nodiscard]] Numbers counting(std::uint32_t first, std::size_t count, Tag tag = "weights") {
    return Numbers::from(device, numbers(first, count), {.resource = resource, .tag = tag});
  }
  static void expect_counting(const Numbers& array, std::uint32_t first) {
    EXPECT_EQ(array.to_vector(), numbers(first, array.size()));
  }
  [[nodiscard]] PauseStatistics now() const { return resource->pause_statistics(); }

  test::TemporaryFolder folder;
  BudgetHandle budget = test::limited(64 * mib);
  std::shared_ptr<PausableResource> resource;
};
INSTANTIATE_TEST_SUITE_P(Devices, PausableResourceOn, testing::ValuesIn(test::sharing_devices()),
                         [](const auto& one) {
                           std::string name = one.param;
                           std::erase_if(name, [](char c) { return std::isalnum(c) == 0; });
                           return name;
                         });

// --- Bytes and addresses

TEST_P(PausableResourceOn, BringsTheSameBytesToTheSameAddresses) {
  const std::size_t count = 5 * mib;  // 20 MiB: several chunks, and not a whole one at the end
  for (const Keep keep : {Keep::host, Keep::disk}) {
    SCOPED_TRACE(name(keep));
    device.synchronize();
    resource->reclaim();
    Numbers array = counting(7, count);
    const std::byte* const address = array.storage()->first_byte();
    EXPECT_EQ(budget->used_bytes("weights"), 20 * mib);
    resource->pause("weights", keep);
    resource->wait();
    EXPECT_EQ(budget->charged_bytes(), 0u);
    EXPECT_EQ(now().resident_bytes, 0u);
    EXPECT_EQ(now().paused_bytes, 20 * mib);
    EXPECT_EQ(now().reserved_bytes, 20 * mib);
    EXPECT_EQ(now().host_bytes, keep == Keep::host ? 20 * mib : 0);
    EXPECT_EQ(now().disk_bytes, keep == Keep::disk ? 20 * mib : 0);
    // Another user of the pages.
    Numbers other = Numbers::zeros(device, count, {.resource = resource, .tag = "other"});
    other.fill(9, stream);

    resource->resume("weights", stream);
    EXPECT_EQ(array.storage()->first_byte(), address);
    expect_counting(array, 7);
    EXPECT_EQ(budget->used_bytes("weights"), 20 * mib);
    EXPECT_EQ(now().paused_bytes, 0u);
    EXPECT_EQ(now().host_bytes + now().disk_bytes, 0u);
  }
  EXPECT_EQ(now().total_paused_bytes, 40 * mib);
  EXPECT_EQ(now().total_resumed_bytes, 40 * mib);
  test::expect_sound(*budget);
}

TEST_P(PausableResourceOn, PausesBehindTheWorkThatUsesTheMemory) {
  Numbers array = counting(1, 1 * mib);
  Stream other(device);
  test::Gate gate;
  gate.hold(other);
  array.fill(5, other);
  const Mark mark = resource->pause("weights");
  EXPECT_EQ(resource->reclaim(), 0u);
  EXPECT_FALSE(Device::is_done(mark));
  EXPECT_EQ(now().leaving_bytes, 4 * mib);
  EXPECT_EQ(budget->used_bytes(), 4 * mib) << "the pages are still in use";
  gate.open();
  Device::wait(mark);
  EXPECT_EQ(resource->reclaim(), 4 * mib);
  EXPECT_EQ(budget->used_bytes(), 0u);
  resource->resume("weights");
  EXPECT_EQ(array.to_vector(), std::vector<std::uint32_t>(1 * mib, 5));
}

TEST_P(PausableResourceOn, TakesPagesBackThatHaveNotLeft) {
  for (const Keep keep : {Keep::host, Keep::disk}) {
    Numbers array = counting(1, 1 * mib);
    test::Gate gate;
    gate.hold(stream);
    array.fill(5, stream);
    resource->pause("weights", keep);
    resource->resume("weights");
    EXPECT_EQ(now().resident_bytes, 4 * mib);
    EXPECT_EQ(now().leaving_bytes, 0u);
    Stream other(device);
    array.fill(6, other);  // behind the copy of the pause
    gate.open();
    EXPECT_EQ(array.to_vector(), std::vector<std::uint32_t>(1 * mib, 6));
  }
}

TEST_P(PausableResourceOn, OrdersLaterUsesBehindTheCopies) {
  Numbers array = counting(1, 4 * mib);
  resource->pause(array.storage());
  resource->wait();
  resource->resume(array.storage());
  Stream other(device);
  std::vector<std::uint32_t> read(array.size());
  array.copy_to(read, other);
  other.synchronize();
  EXPECT_EQ(read, numbers(1, array.size()));
}

TEST_P(PausableResourceOn, OrdersTheStreamOfTheCallForCodeThatDeclaresNothing) {
  const Block block = resource->allocate({.bytes = page, .stream = stream, .tag = "raw"});
  stream.fill(bytes_of(block), page, std::byte{3});
  resource->pause(block);
  resource->wait();
  Stream other(device);
  resource->resume(block, other);
  std::vector<std::byte> read(page);
  other.copy(read.data(), block.address, page);
  other.synchronize();
  EXPECT_EQ(read, std::vector<std::byte>(page, std::byte{3}));
  // A stream that is not known is named.
  other.fill(bytes_of(block), page, std::byte{4});
  resource->pause(block, Keep::host, other);
  resource->wait();
  resource->resume(block, other);
  other.copy(read.data(), block.address, page);
  other.synchronize();
  EXPECT_EQ(read, std::vector<std::byte>(page, std::byte{4}));
  resource->deallocate(block, other);
}

TEST_P(PausableResourceOn, KeepsNothingIfThatIsWanted) {
  Numbers array = counting(1, 1 * mib);
  const std::byte* const address = array.storage()->first_byte();
  resource->pause("weights", Keep::nothing);
  resource->wait();
  EXPECT_EQ(now().host_bytes + now().disk_bytes, 0u);
  resource->resume("weights");
  EXPECT_EQ(array.storage()->first_byte(), address);
  refused(read_of(array), ErrorCode::never_written);
  array.fill(3, stream);
  EXPECT_EQ(array.to_vector(), std::vector<std::uint32_t>(1 * mib, 3));
  // Also if the pages had not left.
  test::Gate gate;
  gate.hold(stream);
  array.fill(4, stream);
  resource->pause("weights", Keep::nothing);
  resource->resume("weights");
  gate.open();
  refused(read_of(array), ErrorCode::never_written);
}

TEST_P(PausableResourceOn, KeepsWhichBytesWereWritten) {
  Buffer buffer(device, {2 * page}, DType::byte, {.resource = resource, .tag = "half"});
  buffer.slice(0, page).fill(std::byte{1}, stream);
  resource->pause("half");
  resource->wait();
  resource->resume("half");
  EXPECT_EQ(buffer.slice(0, page).to_vector<std::byte>(),
            std::vector<std::byte>(page, std::byte{1}));
  refused(buffer.slice(page, page).try_read_host<std::byte>(),
          reach_of(buffer.storage()->kind(), device.info().capabilities).host_reads
              ? ErrorCode::never_written
              : ErrorCode::not_host_accessible);
}

TEST_P(PausableResourceOn, KeepsEachRangeThatWasWritten) {
  for (const Keep keep : {Keep::host, Keep::disk}) {
    Buffer buffer(device, {2 * page}, DType::byte, {.resource = resource, .tag = "parts"});
    Buffer first = buffer.slice(4096, 8192), last = buffer.slice(page + 1, 100);
    first.fill(std::byte{1}, stream);
    last.fill(std::byte{2}, stream);
    resource->pause("parts", keep);
    EXPECT_LE(now().host_bytes + now().disk_bytes, keep == Keep::disk ? 2 * page : page + 101);
    resource->wait();
    resource->resume("parts");
    EXPECT_EQ(first.to_vector<std::byte>(), std::vector<std::byte>(8192, std::byte{1}));
    EXPECT_EQ(last.to_vector<std::byte>(), std::vector<std::byte>(100, std::byte{2}));
  }
}

TEST_P(PausableResourceOn, PausesByTagByObjectAndEverything) {
  Numbers a = counting(1, 1024, "a"), b = counting(2, 1024, "b"), also_a = counting(3, 1024, "a");
  resource->pause("a");
  EXPECT_EQ(now().paused_bytes, 2 * page);
  expect_counting(b, 2);
  resource->pause(b.storage());
  EXPECT_EQ(now().paused_bytes, 3 * page);
  resource->resume(also_a.storage());
  EXPECT_EQ(now().paused_bytes, 2 * page);
  expect_counting(also_a, 3);
  resource->pause(PauseTarget::everything(), Keep::disk);
  EXPECT_EQ(now().paused_bytes, 3 * page);
  resource->pause(PauseTarget::everything());  // nothing is left
  resource->resume(PauseTarget::everything());
  EXPECT_EQ(now().paused_bytes, 0u);
  resource->resume(PauseTarget::everything());
  expect_counting(a, 1);
  expect_counting(b, 2);
  expect_counting(also_a, 3);
}

/// Everything that a process holds for pausable memory.
struct HeldMemory {
  std::size_t resident = 0, reserved = 0, charged = 0;  // of the resource and its budget
  std::size_t pinned_live = 0, pinned_reserved = 0;     // of kept bytes
  std::size_t free_on_device = 0;                       // 0 if other processes use the device, too
  std::size_t descriptors = 0;

  bool operator==(const HeldMemory&) const = default;
};
void PrintTo(const HeldMemory& one, std::ostream* out) {
  *out << one.resident << " resident, " << one.reserved << " reserved, " << one.charged
       << " charged, " << one.pinned_live << " of " << one.pinned_reserved << " pinned, "
       << one.free_on_device << " free, " << one.descriptors << " descriptors";
}

TEST_P(PausableResourceOn, HoldsTheSameMemoryAfterAThousandCycles) {
  const int cycles = test::is_sanitized ? 200 : 1000;
  constexpr std::size_t count =
      300'000;  // 1.2 MB: two chunks with a checksum, and a part of a page
  Numbers array = counting(1, count);
  const ResourceHandle pinned = default_resource(device, MemoryKind::pinned);
  const bool is_alone = test::is_simulated(device) || device.spec() == "cuda:0?driver=sim";
  const auto held = [&] {
    device.synchronize();
    resource->reclaim();
    pinned->trim(SIZE_MAX);
    const auto open = std::filesystem::directory_iterator("/proc/self/fd");
    return HeldMemory{
        .resident = now().resident_bytes,
        .reserved = now().reserved_bytes,
        .charged = budget->charged_bytes(),
        .pinned_live = pinned->statistics().live_bytes,
        .pinned_reserved = pinned->statistics().reserved_bytes,
        .free_on_device = is_alone ? device.memory().free_bytes : 0,
        .descriptors = static_cast<std::size_t>(std::distance(begin(open), end(open)))};
  };
  HeldMemory first;
  for (int i = 0; i < cycles; ++i) {
    resource->pause("weights", i % 2 == 0 ? Keep::host : Keep::disk);
    resource->wait();
    ASSERT_EQ(now().resident_bytes, 0u);
    resource->resume("weights", stream);
    ASSERT_EQ(now().resident_bytes, page);
    ASSERT_EQ(now().host_bytes + now().disk_bytes, 0u);
    if (i == 9) first = held();
    if (i % 100 == 0) expect_counting(array, 1);
  }
  EXPECT_EQ(held(), first);
  EXPECT_EQ(first.resident, page);
  expect_counting(array, 1);
}

// --- Uses of paused memory

TEST_P(PausableResourceOn, RefusesEveryUseAndNamesTheTag) {
  Numbers array = counting(1, 1024);
  Numbers other = Numbers::zeros(device, 1024);
  // CUDA devices run no functions of the host.
  Result<Kernel> kernel = Kernel::try_from_function(device, "nothing", [](const KernelCall&) {});
  resource->pause("weights");
  const auto expect_paused = [&](const auto& result) {
    EXPECT_EQ(refused(result, ErrorCode::access_conflict).string("tag"), "weights");
  };
  expect_paused(array.try_fill(1, stream));
  expect_paused(array.try_kernel_view(stream, Access::read));
  std::vector<std::uint32_t> host(1024);
  expect_paused(array.try_copy_to(host));
  expect_paused(array.try_copy_to(std::span(host), stream));
  expect_paused(try_copy(buffer_of(other), buffer_of(array), stream));
  if (kernel) expect_paused(kernel->try_launch(stream, elements(1024), in(array)));
  expect_paused(Export::try_begin(array.storage()));
  expect_paused(try_export_dlpack(buffer_of(array)));
  LaunchRecorder recorder(stream);
  recorder.use(array, Access::read);
  expect_paused(recorder.try_preflight());
  if (array.storage()->reach().host_reads)
    expect_paused(buffer_of(array).try_read_host<std::uint32_t>());
  EXPECT_EQ(exported_memory().count, 0u);
  resource->resume("weights");
  expect_counting(array, 1);
  resource->pause("weights");  // the refused exports need no wait for the device
  resource->resume("weights");
}

TEST_P(PausableResourceOn, RefusesDeclaredUsesOfRawBlocks) {
  const Block known = resource->allocate({.bytes = page, .tag = "raw"});
  const Block fresh = resource->allocate({.bytes = page, .tag = "raw"});
  stream.fill(bytes_of(fresh), page, std::byte{1});
  device.synchronize();
  const auto use = [&](const Block& block) {
    LaunchRecorder recorder(stream);
    recorder.use(*resource, block, Access::discard);
    const Result<void> begun = recorder.try_preflight();
    if (begun) {
      stream.fill(bytes_of(block), page, std::byte{1});
      recorder.commit();
    }
    return begun;
  };
  ASSERT_TRUE(use(known));
  resource->pause("raw");
  for (const Block& block : {known, fresh}) {
    EXPECT_EQ(refused(use(block), ErrorCode::access_conflict).string("tag"), "raw");
  }
  EXPECT_TRUE(try_wait_for_uses(stream, known)) << "a pause has waited";
  resource->resume("raw", stream);
  EXPECT_TRUE(use(known));
  EXPECT_TRUE(use(fresh));
  for (const Block& block : {known, fresh}) {
    ASSERT_TRUE(try_wait_for_uses(stream, block));
    resource->deallocate(block, stream);
  }
}

TEST_P(PausableResourceOn, FindsUsersBehindWrappersAndArenas) {
  const auto arena = std::make_shared<ArenaResource>(std::make_shared<TrackingResource>(resource),
                                                     ArenaOptions{.bytes = page, .tag = "arena"});
  EXPECT_TRUE(arena->is_pausable());
  const Block all = arena->allocate({.bytes = page});
  stream.fill(bytes_of(all), page, std::byte{0});
  stream.synchronize();
  arena->deallocate(all, {});
  Numbers a = Numbers::from(device, numbers(1, 100), {.resource = arena});
  Numbers b = Numbers::from(device, numbers(2, 100), {.resource = arena});
  resource->pause("arena");
  resource->wait();
  EXPECT_EQ(now().resident_bytes, 0u);
  EXPECT_EQ(refused(b.try_fill(1, stream), ErrorCode::access_conflict).string("tag"), "arena");
  refused(Numbers::try_uninitialized(arena, 100), ErrorCode::access_conflict);
  resource->resume(a.storage());
  expect_counting(a, 1);
  expect_counting(b, 2);
}

TEST_P(PausableResourceOn, ServesCodeThatFreesByAddress) {
  const PointerAllocator allocator(resource);
  void* const address = allocator.allocate({.bytes = 3 * page, .stream = stream, .tag = "torch"});
  auto* const bytes = static_cast<std::byte*>(address);
  stream.fill(bytes, 3 * page, std::byte{7});
  resource->pause("torch");
  resource->wait();
  EXPECT_EQ(now().resident_bytes, 0u);
  resource->resume("torch", stream);
  std::vector<std::byte> read(3 * page);
  stream.copy(read.data(), address, read.size());
  stream.synchronize();
  EXPECT_EQ(read, std::vector<std::byte>(3 * page, std::byte{7}));
  resource->pause("torch");
  PointerAllocator::free_in_order(address);
  device.synchronize();
  resource->reclaim();
  EXPECT_EQ(now().reserved_bytes, 0u);
  EXPECT_EQ(budget->charged_bytes(), 0u);
}

TEST_P(PausableResourceOn, CapturedGraphsRunAgainAfterTheResume) {
  if (!device.can(Capability::graphs)) GTEST_SKIP() << "no graphs";
  Numbers from = counting(1, 1024), to = counting(0, 1024);
  stream.synchronize();
  GraphCapture capture(stream);
  stream.copy(to.storage()->first_byte(), from.storage()->first_byte(), 4096);
  const Graph graph = capture.end();
  resource->pause("weights");
  resource->wait();
  refused(graph.try_launch(stream, in(from), out(to)), ErrorCode::access_conflict);
  resource->resume("weights", stream);
  graph.launch(stream, in(from), out(to));
  expect_counting(to, 1);
}

// --- What cannot be paused or resumed

TEST_P(PausableResourceOn, DoesNotPauseWhatIsInUse) {
  Numbers array = counting(1, 1024);
  const auto expect_refusal = [&] {
    EXPECT_EQ(refused(resource->try_pause("weights"), ErrorCode::access_conflict).string("tag"),
              "weights");
    EXPECT_EQ(now().paused_bytes, 0u);
  };
  {
    UseScope scope(stream);
    ASSERT_TRUE(scope.try_add(array.storage(), 0, 4096, Access::read));
    ASSERT_TRUE(scope.try_begin());
    expect_refusal();
    scope.cancel();
  }
  {
    const Export given = Export::try_begin(array.storage()).value();
    expect_refusal();
  }
  if (array.storage()->kind() != MemoryKind::host) {
    expect_refusal();  // work of others may still use the memory
    device.synchronize();
  }
  if (array.storage()->reach().host_reads) {
    const auto view = buffer_of(array).read_host<std::uint32_t>();
    expect_refusal();
  }
  resource->pause("weights");
}

TEST_P(PausableResourceOn, DoesNotPauseWhatOtherCodeOwns) {
  Buffer buffer(device, {page}, DType::byte, {.resource = resource, .tag = "released"});
  buffer.fill(std::byte{1}, stream);
  {
    Released released = release(std::move(buffer), stream);
    refused(resource->try_pause("released"), ErrorCode::access_conflict);
  }
  refused(resource->try_pause("released"), ErrorCode::not_found);
}

TEST_P(PausableResourceOn, DoesNotReleasePausedMemory) {
  Buffer buffer(device, {page}, DType::byte, {.resource = resource, .tag = "buffer"});
  buffer.fill(std::byte{1}, stream);
  resource->pause("buffer");
  refused(try_release(std::move(buffer), stream), ErrorCode::access_conflict);
}

TEST_P(PausableResourceOn, PausesAllOrNothing) {
  Numbers a = counting(1, 1024, "a"), b = counting(2, 1024, "a"), c = counting(3, 1024, "a");
  {
    const Export given = Export::try_begin(c.storage()).value();
    refused(resource->try_pause("a"), ErrorCode::access_conflict);
  }
  EXPECT_EQ(now().paused_bytes, 0u);
  expect_counting(a, 1);
  expect_counting(b, 2);
  // The host has no memory for the bytes.
  const BudgetHandle small = test::limited(2 * 4096, "pinned");
  resource = make({.host = std::make_shared<BudgetResource>(
                       default_resource(device, MemoryKind::pinned), small)});
  a = counting(1, 1024, "a"), b = counting(2, 1024, "a"), c = counting(3, 1024, "a");
  device.synchronize();
  refused(resource->try_pause("a"), ErrorCode::out_of_budget);
  EXPECT_EQ(now().paused_bytes, 0u);
  EXPECT_EQ(small->live_bytes(), 0u);
  expect_counting(a, 1);
  resource->pause(a.storage());
  EXPECT_EQ(small->live_bytes(), 4096u) << "the bytes of the array, and not whole pages";
}

TEST_P(PausableResourceOn, ReportsCallsThatMakeNoSense) {
  Numbers array = counting(1, 1024);
  EXPECT_EQ(refused(resource->try_resume("weights"), ErrorCode::access_conflict).string("tag"),
            "weights");
  resource->pause("weights");
  EXPECT_EQ(refused(resource->try_pause("weights"), ErrorCode::access_conflict).string("tag"),
            "weights");
  refused(resource->try_pause(array.storage()), ErrorCode::access_conflict);
  EXPECT_EQ(refused(resource->try_pause("unknown"), ErrorCode::not_found).string("tag"), "unknown");
  refused(resource->try_resume("unknown"), ErrorCode::not_found);
  const Numbers other = Numbers::zeros(device, 16);
  refused(resource->try_pause(other.storage()), ErrorCode::not_found);
  refused(resource->try_pause(StorageHandle()), ErrorCode::not_found);
  refused(resource->try_pause(Block{}), ErrorCode::not_found);
  refused(resource->try_pause("weights", Keep::host, Stream()), ErrorCode::access_conflict);
  resource->resume("weights");
  resource->pause("weights");  // new blocks with the tag are not paused
  Numbers more = counting(5, 1024);
  expect_counting(more, 5);
  resource->pause("weights");
  EXPECT_EQ(now().paused_bytes, 2 * page);
  resource->resume("weights");
  expect_counting(array, 1);
  expect_counting(more, 5);
}

TEST_P(PausableResourceOn, RefusesStreamsThatAreBeingCaptured) {
  if (!device.can(Capability::graphs)) GTEST_SKIP() << "no graphs";
  Numbers array = counting(1, 1024);
  stream.synchronize();
  {
    GraphCapture capture(stream);
    refused(resource->try_pause("weights", Keep::host, stream), ErrorCode::stream_misuse);
    EXPECT_EQ(now().paused_bytes, 0u);
    EXPECT_TRUE(capture.is_active());
  }
  resource->pause("weights");
  {
    GraphCapture capture(stream);
    refused(resource->try_resume("weights", stream), ErrorCode::stream_misuse);
  }
  EXPECT_EQ(now().paused_bytes, page);
  resource->resume("weights", stream);
  expect_counting(array, 1);
}

TEST_P(PausableResourceOn, ResumesAllOrNothing) {
  Numbers a = counting(1, 8 * mib, "model"), b = counting(2, 4 * mib, "model");  // 48 MiB
  resource->pause("model");
  resource->wait();
  Numbers other = Numbers::zeros(device, 8 * mib, {.resource = resource, .tag = "other"});
  const Failure full = refused(resource->try_resume("model", stream), ErrorCode::out_of_budget);
  EXPECT_EQ(full.number("requested"), 48 * mib);
  EXPECT_EQ(full.number("limit"), 64 * mib);
  EXPECT_EQ(full.string("tag"), "model");
  EXPECT_NE(full.text().find("Pause or free other memory"), std::string::npos) << full.text();
  EXPECT_EQ(now().paused_bytes, 48 * mib);
  EXPECT_EQ(now().resident_bytes, 32 * mib);
  EXPECT_EQ(budget->used_bytes(), 32 * mib);
  refused(a.try_fill(1, stream), ErrorCode::access_conflict);
  // If the other memory is leaving, the resume waits for it.
  test::Gate gate;
  gate.hold(stream);
  other.fill(3, stream);
  resource->pause("other");
  gate.open();
  resource->resume("model", stream);
  expect_counting(a, 1);
  expect_counting(b, 2);
  EXPECT_EQ(now().resident_bytes, 48 * mib);
}

TEST_P(PausableResourceOn, AllocationsWaitForPagesThatLeave) {
  Numbers a = counting(1, 12 * mib);  // 48 MiB
  resource->pause("weights");
  Numbers b = Numbers::zeros(device, 8 * mib, {.resource = resource, .tag = "other"});
  refused(resource->try_allocate({.bytes = 48 * mib, .wait = Wait::never}),
          ErrorCode::out_of_budget);
  EXPECT_EQ(now().resident_bytes, 32 * mib);
  b = Numbers();
  resource->resume("weights");
  expect_counting(a, 1);
}

// --- Frees

TEST_P(PausableResourceOn, FreesPausedMemory) {
  for (const Keep keep : {Keep::host, Keep::disk, Keep::nothing}) {
    for (const bool has_left : {false, true}) {
      {
        Numbers array = counting(1, 1 * mib);
        resource->pause("weights", keep);
        if (has_left) resource->wait();
      }
      device.synchronize();
      resource->reclaim();
      EXPECT_EQ(now().reserved_bytes, 0u);
      EXPECT_EQ(now().resident_bytes, 0u);
      EXPECT_EQ(budget->charged_bytes(), 0u);
      EXPECT_EQ(resource->statistics().live_blocks, 0u);
    }
  }
  refused(resource->try_resume("weights"), ErrorCode::not_found);
}

TEST_P(PausableResourceOn, FreesInStreamOrder) {
  const Block block = resource->allocate({.bytes = page, .tag = "raw"});
  test::Gate gate;
  gate.hold(stream);
  stream.fill(bytes_of(block), page, std::byte{1});
  resource->deallocate(block, stream);
  EXPECT_EQ(now().leaving_bytes, page);
  EXPECT_EQ(budget->used_bytes(), page);
  refused(resource->try_deallocate(block, stream), ErrorCode::use_after_free);
  gate.open();
  stream.synchronize();
  EXPECT_EQ(resource->trim(0), page);
  EXPECT_EQ(budget->used_bytes(), 0u);
}

TEST_P(PausableResourceOn, FreesBlocksThatAreLeft) {
  {
    const Block block = resource->allocate({.bytes = page});
    stream.fill(bytes_of(block), page, std::byte{1});
    const Block paused = resource->allocate({.bytes = page, .tag = "paused"});
    stream.fill(bytes_of(paused), page, std::byte{1});
    resource->pause("paused", Keep::host, stream);
    resource.reset();
    EXPECT_EQ(budget->charged_bytes(), 0u);
    EXPECT_EQ(block_state(block.generation), BlockState::freed);
  }
}

// --- Disks

TEST_P(PausableResourceOn, KeepsTheMemoryInPlaceIfTheDiskFails) {
  Numbers array = counting(1, 5 * mib);
  {
    test::PlannedFaults faults(FileTransfers::instance());
    faults.fail(ENOSPC, test::is_write_call);
    resource->pause("weights", Keep::disk);
    const Failure full = refused(resource->try_wait(), ErrorCode::file);
    EXPECT_EQ(full.number("os_code"), std::uint64_t{ENOSPC});
  }
  EXPECT_EQ(now().resident_bytes, 20 * mib);
  EXPECT_EQ(now().paused_bytes, 20 * mib);
  refused(array.try_fill(1, stream), ErrorCode::access_conflict);
  refused(resource->try_wait(), ErrorCode::file);
  resource->resume("weights");
  resource->wait();
  expect_counting(array, 1);
  resource->pause("weights", Keep::disk);
  resource->wait();
  EXPECT_EQ(now().resident_bytes, 0u);
  resource->resume("weights");
  expect_counting(array, 1);
}

TEST_P(PausableResourceOn, StaysPausedIfTheDiskFailsAtTheResume) {
  Numbers a = counting(1, 5 * mib), b = counting(2, 5 * mib);
  resource->pause("weights", Keep::disk);
  resource->wait();
  {
    test::PlannedFaults faults(FileTransfers::instance());
    faults.fail(EIO, [](const FileCall& call) {
      return !call.is_write && !call.asks_cache && call.offset >= 16 * mib;
    });
    refused(resource->try_resume("weights"), ErrorCode::file);
  }
  EXPECT_EQ(now().paused_bytes, 40 * mib);
  device.synchronize();
  resource->reclaim();
  EXPECT_EQ(now().resident_bytes, 0u);
  EXPECT_EQ(budget->charged_bytes(), 0u);
  refused(a.try_fill(1, stream), ErrorCode::access_conflict);
  resource->resume("weights");
  expect_counting(a, 1);
  expect_counting(b, 2);
}

TEST_P(PausableResourceOn, PausesNothingWithoutAFile) {
  resource = make({.directory = folder / "missing"});
  Numbers array = counting(1, 1024);
  const Failure none = refused(resource->try_pause("weights", Keep::disk), ErrorCode::file);
  EXPECT_EQ(none.string("path"), folder / "missing");
  expect_counting(array, 1);
}

TEST_P(PausableResourceOn, NoticesThatKeptBytesHaveChanged) {
  // The memory of the host is the test's, so that it can be damaged.
  const ResourceHandle pinned = std::make_shared<DirectResource>(device, MemoryKind::pinned);
  const auto tracking = std::make_shared<TrackingResource>(pinned);
  for (const bool verify : {true, false}) {
    resource = make({.host = tracking, .verify = verify});
    Numbers array = counting(1, 5 * mib);
    resource->pause("weights");
    resource->wait();
    device.synchronize();
    auto* const kept = static_cast<std::byte*>(tracking->live_blocks().at(0).block.address);
    const std::size_t at = 17 * mib + 12;
    const std::byte before = std::exchange(kept[at], std::byte{0xEE});
    if (verify) {
      const Failure changed = refused(resource->try_resume("weights"), ErrorCode::bad_format);
      EXPECT_EQ(changed.number("offset"), 17 * mib);
      EXPECT_EQ(changed.string("tag"), "weights");
      EXPECT_EQ(now().paused_bytes, 20 * mib);
      device.synchronize();
      kept[at] = before;
      resource->resume("weights");
      expect_counting(array, 1);
    } else {
      resource->resume("weights");
      EXPECT_NE(array.to_vector(), numbers(1, array.size()));
    }
  }
}

TEST_P(PausableResourceOn, NoticesAChangeInAnyBlock) {
  const auto tracking = std::make_shared<TrackingResource>(
      std::make_shared<DirectResource>(device, MemoryKind::pinned));
  resource = make({.budget = budget, .host = tracking});
  const std::size_t count = 3 * mib;  // 12 MiB, so that several threads compare
  std::vector<Numbers> arrays;
  for (std::uint32_t i = 0; i < 3; ++i) arrays.push_back(counting(i, count));
  resource->pause("weights");
  resource->wait();
  device.synchronize();
  std::vector<std::byte*> kept;
  for (const auto& live : tracking->live_blocks()) kept.push_back(bytes_of(live.block));
  ASSERT_EQ(kept.size(), 3u);
  for (std::byte* const block : kept) {
    for (const std::size_t at : {std::size_t{0}, 7 * mib + 1, 12 * mib - 1}) {
      std::byte& byte = block[at];
      std::byte& later = block[12 * mib - 1];
      const std::byte before = byte, later_before = later;
      byte ^= std::byte{1};
      if (&byte != &later) later ^= std::byte{1};
      const Failure changed = refused(resource->try_resume("weights"), ErrorCode::bad_format);
      EXPECT_EQ(changed.number("offset"), at / mib * mib) << "the first change";
      EXPECT_EQ(now().paused_bytes, 36 * mib);
      EXPECT_EQ(now().host_bytes, 36 * mib);
      refused(arrays[0].try_fill(1, stream), ErrorCode::access_conflict);
      device.synchronize();
      resource->reclaim();
      EXPECT_EQ(now().resident_bytes, 0u);
      EXPECT_EQ(budget->charged_bytes(), 0u);
      byte = before;
      later = later_before;
    }
  }
  resource->resume("weights");
  for (std::uint32_t i = 0; i < 3; ++i) expect_counting(arrays[i], i);
}

TEST_P(PausableResourceOn, NoticesThatAFileHasChanged) {
  Numbers array = counting(1, 5 * mib);
  resource->pause("weights", Keep::disk);
  resource->wait();
  // The file has no name, but the process has its descriptor.
  std::string path;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code ignored;
    const std::string target = std::filesystem::read_symlink(entry.path(), ignored).string();
    if (target.find("tern-paused") != std::string::npos) path = entry.path().string();
  }
  ASSERT_FALSE(path.empty());
  const auto exchange = [&](char byte) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(9 * mib);
    const auto before = static_cast<char>(file.get());
    file.seekp(9 * mib);
    file.put(byte);
    return before;
  };
  const char before = exchange('x');
  const Failure changed = refused(resource->try_resume("weights"), ErrorCode::bad_format);
  EXPECT_EQ(changed.number("offset"), 9 * mib);
  exchange(before);
  resource->resume("weights");
  expect_counting(array, 1);
}

// --- Devices

TEST(PausableResource, NeedsVirtualMemory) {
  EXPECT_THROW(PausableResource{Device()}, InvalidDevice);
  const Result<Device> opencl = try_open_device("opencl:0");
  if (opencl) {
    EXPECT_THROW(PausableResource{*opencl}, Unsupported);
  }
  const Device one = sim::open({}), other = sim::open({});
  const BudgetHandle budget = Budget::make("b", BudgetLimit::bytes(1), {.device = other.id()});
  EXPECT_THROW((PausableResource{one, {.budget = budget}}), DeviceMismatch);
}

class PausableResourceOnSim : public testing::Test {
 protected:
  [[nodiscard]] FindingCode found() const {
    const std::vector<Finding> findings = sim::findings(device);
    EXPECT_EQ(findings.size(), 1u);
    return findings.empty() ? FindingCode::wrong_bytes : findings.back().code;
  }
  Device device =
      sim::open({.policy = sim::Policy::lazy, .print_findings = false, .memory_bytes = 256 * mib});
  Stream stream{device}, other{device};
  std::shared_ptr<PausableResource> resource = std::make_shared<PausableResource>(device);
};

/// Pages unmapped under running kernels.
TEST_F(PausableResourceOnSim, ReportsPagesThatLeaveWhileUndeclaredWorkUsesThem) {
  const Block block = resource->allocate({.bytes = page, .stream = stream, .tag = "raw"});
  stream.fill(bytes_of(block), page, std::byte{1});
  other.wait(stream.mark());
  other.fill(bytes_of(block), page, std::byte{2});  // the resource does not know this stream
  refused(resource->try_pause(block), ErrorCode::violation);
  EXPECT_EQ(found(), FindingCode::missing_wait);
  EXPECT_EQ(resource->pause_statistics().paused_bytes, 0u);
}

TEST_F(PausableResourceOnSim, ReportsUndeclaredWorkOnThePagesThatLeave) {
  const Block block = resource->allocate({.bytes = page, .stream = stream, .tag = "raw"});
  stream.fill(bytes_of(block), page, std::byte{1});
  resource->pause(block, Keep::nothing);
  other.wait(stream.mark());
  other.fill(bytes_of(block), page, std::byte{2});
  static_cast<void>(resource->try_wait());
  EXPECT_EQ(found(), FindingCode::free_while_in_use);
}

TEST_F(PausableResourceOnSim, ReportsUndeclaredUsesOfPausedMemory) {
  const Block block = resource->allocate({.bytes = page, .stream = stream, .tag = "raw"});
  stream.fill(bytes_of(block), page, std::byte{1});
  resource->pause(block);
  resource->wait();
  refused(stream.try_fill(bytes_of(block), page, std::byte{2}), ErrorCode::violation);
  EXPECT_EQ(found(), FindingCode::use_after_free);
}

TEST_F(PausableResourceOnSim, ReportsReadsOfMemoryThatCameBackWithoutItsBytes) {
  const Block block = resource->allocate({.bytes = page, .stream = stream, .tag = "raw"});
  stream.fill(bytes_of(block), page, std::byte{1});
  resource->pause(block, Keep::nothing);
  resource->wait();
  resource->resume(block, stream);
  std::vector<std::byte> read(page);
  refused(stream.try_copy(read.data(), block.address, page), ErrorCode::violation);
  EXPECT_EQ(found(), FindingCode::uninitialised_read);
}

TEST_F(PausableResourceOnSim, ReportsUsesThatDoNotWaitForTheCopies) {
  const Block block = resource->allocate({.bytes = page, .stream = stream, .tag = "raw"});
  stream.fill(bytes_of(block), page, std::byte{1});
  resource->pause(block);
  resource->wait();
  resource->resume(block, stream);
  refused(other.try_fill(bytes_of(block), page, std::byte{2}), ErrorCode::violation);
  EXPECT_EQ(found(), FindingCode::missing_wait);
}

TEST_F(PausableResourceOnSim, StaysPausedWithoutMemoryOfTheDevice) {
  Numbers a = Numbers::from(device, numbers(1, 32 * mib), {.resource = resource, .tag = "a"});
  resource->pause("a");
  resource->wait();
  const Block other_block = DirectResource(device).allocate({.bytes = 150 * mib});
  const Failure full = refused(resource->try_resume("a"), ErrorCode::out_of_memory);
  EXPECT_EQ(full.number("requested"), 128 * mib);
  EXPECT_EQ(full.string("tag"), "a");
  EXPECT_EQ(resource->pause_statistics().resident_bytes, 0u);
  device.release(other_block.address);
  resource->resume("a");
  EXPECT_EQ(a.to_vector(), numbers(1, 32 * mib));
}

/// Each call of the driver fails in turn: pausing and resuming either succeed or change nothing.
TEST_F(PausableResourceOnSim, SurvivesFailuresOfTheDriver) {
  Numbers a = Numbers::from(device, numbers(1, 1 * mib), {.resource = resource, .tag = "a"});
  Numbers b = Numbers::from(device, numbers(2, 1 * mib), {.resource = resource, .tag = "a"});
  for (const std::string rule :
       {"allocate", "map", "release", "copy", "wait", "record", "launch"}) {
    for (int i = 1; i <= 8; ++i) {
      sim::set_faults(device, rule + "#" + std::to_string(i) + "=fail");
      bool is_paused = bool(resource->try_pause("a"));
      static_cast<void>(resource->try_wait());
      if (is_paused) is_paused = !resource->try_resume("a", stream);
      sim::set_faults(device, "");
      if (is_paused) {
        EXPECT_EQ(resource->pause_statistics().paused_bytes, 8 * mib) << rule << i;
        resource->resume("a", stream);
      }
      ASSERT_EQ(a.to_vector(), numbers(1, 1 * mib)) << rule << i;
      ASSERT_EQ(b.to_vector(), numbers(2, 1 * mib)) << rule << i;
      EXPECT_EQ(resource->pause_statistics().resident_bytes, 8 * mib) << rule << i;
    }
  }
  EXPECT_TRUE(sim::findings(device).empty());
}

TEST_F(PausableResourceOnSim, FreesPagesLaterIfTheDriverRefuses) {
  const std::size_t free = device.memory().free_bytes;
  // The pages of an allocation are mapped, but cannot be opened for access and cannot be freed.
  sim::set_faults(device, "map#3=fail,release#1+=fail");
  refused(resource->try_allocate({.bytes = page}), ErrorCode::driver);
  EXPECT_EQ(resource->pause_statistics().resident_bytes, page);
  sim::set_faults(device, "");
  EXPECT_EQ(resource->reclaim(), page);
  EXPECT_EQ(resource->pause_statistics().resident_bytes, 0u);
  EXPECT_EQ(device.memory().free_bytes, free);
}

TEST_F(PausableResourceOnSim, BringsBackBlocksOfSeveralPieces) {
  device = sim::open({.policy = sim::Policy::lazy, .print_findings = false});
  resource = std::make_shared<PausableResource>(device);
  stream = Stream(device);
  // The pages of 256 MiB are created at once.
  const std::size_t piece = 256 * mib / sizeof(std::uint32_t), count = piece + 1 * mib;
  Numbers array = Numbers::zeros(device, count, {.resource = resource, .tag = "large"});
  array.slice(piece - 10, 20).fill(1, stream);
  array.slice(piece + 100, count - piece - 100).fill(2, stream);
  resource->pause("large");
  resource->wait();
  EXPECT_EQ(resource->pause_statistics().resident_bytes, 0u);
  resource->resume("large", stream);
  std::vector<std::uint32_t> expected(count);
  std::fill_n(expected.begin() + (piece - 10), 20, 1);
  std::fill(expected.begin() + (piece + 100), expected.end(), 2);
  EXPECT_TRUE(array.to_vector() == expected);
  EXPECT_TRUE(sim::findings(device).empty());
}

TEST_F(PausableResourceOnSim, KeepsPausedMemoryIfTheDeviceIsLost) {
  std::optional<Numbers> a =
      Numbers::from(device, numbers(1, 1 * mib), {.resource = resource, .tag = "a"});
  std::optional<Numbers> b =
      Numbers::from(device, numbers(1, 1 * mib), {.resource = resource, .tag = "b"});
  resource->pause("a");
  resource->wait();
  resource->pause("b", Keep::disk);
  sim::set_faults(device, "sync#1+=lost,query#1+=lost");
  static_cast<void>(device.try_synchronize());
  refused(resource->try_resume("a", stream), ErrorCode::device_lost);
  refused(resource->try_pause("b"), ErrorCode::access_conflict);
  EXPECT_EQ(resource->pause_statistics().paused_bytes, 8 * mib);
  a.reset();
  b.reset();
  resource->reclaim();
  EXPECT_EQ(resource->pause_statistics().reserved_bytes, 0u);
}

TEST_F(PausableResourceOnSim, AHandlerCanPauseOtherMemory) {
  Numbers model = Numbers::from(device, numbers(1, 24 * mib), {.resource = resource, .tag = "a"});
  const auto pressed = std::make_shared<PressureResource>(std::make_shared<PoolResource>(device));
  pressed->add_handler([&](const Pressure&) {
    resource->pause("a");
    resource->wait();
    return std::size_t{96 * mib};
  });
  // 200 MiB do not fit beside the model.
  Numbers large = Numbers::zeros(device, 50 * mib, {.resource = pressed});
  EXPECT_EQ(resource->pause_statistics().resident_bytes, 0u);
  large = Numbers();
  device.synchronize();
  pressed->trim(0);
  resource->resume("a");
  EXPECT_EQ(model.to_vector(), numbers(1, 24 * mib));
}

// --- Threads

TEST(PausableResourceThreads, PauseFreeAndUseAtTheSameTime) {
  const Device device = open_device("host");
  const auto resource = std::make_shared<PausableResource>(device);
  std::vector<test::Thread> threads;
  for (std::uint32_t id = 0; id < 3; ++id) {
    threads.emplace_back([&, id] {
      const Stream stream(device);
      for (std::uint32_t i = 0; i < 60; ++i) {
        const Tag tag = i % 2 == 0 ? Tag("even") : Tag("odd");
        Result<Numbers> array =
            Numbers::try_from(device, numbers(i + id, 1024), {.resource = resource, .tag = tag});
        if (!array) {
          ASSERT_EQ(array.failure().code(), ErrorCode::access_conflict) << array.failure().text();
          continue;
        }
        for (;;) {
          std::vector<std::uint32_t> read(1024);
          const Result<void> copied = array->try_copy_to(read);
          if (copied) {
            ASSERT_EQ(read, numbers(i + id, 1024));
            break;
          }
          ASSERT_EQ(copied.failure().code(), ErrorCode::access_conflict) << copied.failure().text();
          static_cast<void>(resource->try_resume(array->storage(), stream));
        }
      }
    });
  }
  threads.emplace_back([&] {
    for (int i = 0; i < 200; ++i) {
      static_cast<void>(resource->try_pause(i % 2 == 0 ? "even" : "odd"));
      if (i % 3 == 0) static_cast<void>(resource->try_wait());
      static_cast<void>(resource->try_resume(i % 2 == 0 ? "even" : "odd"));
    }
  });
  threads.clear();
  resource->wait();
  resource->reclaim();
  EXPECT_EQ(resource->pause_statistics().reserved_bytes, 0u);
}

}  // namespace
}  // namespace tern::pausing_test
