#include "tern/buffer/shared_array.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "buffer/share_server.hpp"
#include "support/budgets.hpp"
#include "support/forked_child.hpp"
#include "support/gate.hpp"
#include "support/ladder.hpp"
#include "support/no_descriptors.hpp"
#include "support/on_device.hpp"
#include "support/open_descriptors.hpp"
#include "support/peer_process.hpp"
#include "support/refused.hpp"
#include "support/share_memory_file.hpp"
#include "support/sharing_devices.hpp"
#include "support/simulated.hpp"
#include "support/thread.hpp"
#include "tern/backends/sim.hpp"
#include "tern/buffer/copy.hpp"
#include "tern/buffer/foreign.hpp"

namespace tern {
namespace {

using namespace std::chrono_literals;
using test::PeerProcess;

static_assert(!std::is_copy_constructible_v<SharedArray<int>>);
static_assert(std::is_nothrow_move_constructible_v<SharedArray<int>> &&
              std::is_nothrow_move_assignable_v<SharedArray<int>>);

/// Long enough for another process to answer, if it ever does.
constexpr std::chrono::milliseconds answer_limit = 60s;

using SharedNumbers = SharedArray<std::uint32_t>;

class SharedArrayOn : public test::OnDevice {
 protected:
  void SetUp() override {
    test::OnDevice::SetUp();
    if (IsSkipped()) return;
    spec = GetParam();
    // Drivers open files when memory is shared or copied for the first time.
    SharedNumbers mine = SharedNumbers::make(device, 1000);
    write(mine, 0, stream);
    expect_numbers(SharedNumbers::open(mine.handle(), device), 0);
  }
  void TearDown() override {
    if (!device.is_open()) return;
    static_cast<void>(device.try_synchronize());
    EXPECT_EQ(reclaim_deferred().count, 0u);
  }
  /// Memory is freed once its uses are known to be done.
  void free_arrays() {
    device.synchronize();
    EXPECT_EQ(reclaim_deferred().count, 0u);
  }
  static void write(SharedNumbers& array, std::uint32_t first, StreamRef on) {
    std::vector<std::uint32_t> numbers(array.size());
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      numbers[i] = first + static_cast<std::uint32_t>(i);
    }
    array.buffer().copy_from(std::span<const std::uint32_t>(numbers), on);
    on.synchronize();
  }
  static std::vector<std::uint32_t> read(const SharedNumbers& array) {
    return array.buffer().to_vector<std::uint32_t>();
  }
  static void expect_numbers(const SharedNumbers& array, std::uint32_t first) {
    const std::vector<std::uint32_t> numbers = read(array);
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      ASSERT_EQ(numbers[i], first + i) << "element " << i;
    }
  }

  std::string spec;
};
INSTANTIATE_TEST_SUITE_P(Devices, SharedArrayOn, testing::ValuesIn(test::sharing_devices()),
                         test::spec_name);

// --- In one process

TEST_P(SharedArrayOn, IsOneMemoryForAllWhoOpenIt) {
  SharedNumbers mine = SharedNumbers::make(device, 1000, {.tag = "shared"});
  EXPECT_TRUE(mine.is_exporter());
  EXPECT_TRUE(mine.has_turn());
  EXPECT_EQ(mine.size(), 1000u);
  EXPECT_EQ(mine.size_bytes(), 4000u);
  EXPECT_EQ(mine.buffer().storage()->tag(), Tag("shared"));
  SharedNumbers theirs = SharedNumbers::open(mine.handle(), device);
  EXPECT_FALSE(theirs.is_exporter());
  EXPECT_FALSE(theirs.has_turn());
  EXPECT_EQ(theirs.size(), 1000u);
  EXPECT_EQ(theirs.handle(), mine.handle());
  EXPECT_EQ(mine.importers(), 1u);
  EXPECT_EQ(theirs.importers(), 0u);

  write(mine, 5, stream);
  mine.publish(stream);
  EXPECT_FALSE(mine.has_turn());
  stream.synchronize();
  theirs.acquire(answer_limit);
  expect_numbers(theirs, 5);
  write(theirs, 70, stream);
  theirs.publish(stream);
  stream.synchronize();
  mine.acquire(answer_limit);
  EXPECT_TRUE(mine.has_turn());
  expect_numbers(mine, 70);
}

TEST_P(SharedArrayOn, PublishesAfterAllEarlierUsesAndDoesNotWait) {
  SharedNumbers mine = SharedNumbers::make(device, 1000);
  SharedNumbers theirs = SharedNumbers::open(mine.handle(), device);
  const Stream other(device);
  test::Gate gate;
  gate.hold(other);
  // A use on another stream, which does not end before the gate opens.
  mine.buffer().fill(std::uint32_t{9}, other);
  mine.publish(stream);
  test::refused(theirs.try_acquire(0ms), ErrorCode::timeout);
  gate.open();
  stream.synchronize();
  theirs.acquire(answer_limit);
  EXPECT_EQ(read(theirs), std::vector<std::uint32_t>(1000, 9));
}

TEST_P(SharedArrayOn, TakesTurnsInOrder) {
  SharedNumbers mine = SharedNumbers::make(device, 4);
  SharedNumbers theirs = SharedNumbers::open(mine.handle(), device);
  EXPECT_EQ(test::refused(mine.try_acquire(), ErrorCode::access_conflict).number("pid"),
            static_cast<std::uint64_t>(getpid()));
  test::refused(theirs.try_publish(stream), ErrorCode::access_conflict);
  mine.publish(stream);
  test::refused(mine.try_publish(stream), ErrorCode::access_conflict);
  test::refused(mine.try_acquire(1ms), ErrorCode::timeout);
  test::refused(mine.try_acquire(std::chrono::milliseconds::min()), ErrorCode::timeout);
  theirs.acquire(std::chrono::milliseconds::max());
  test::refused(theirs.try_acquire(), ErrorCode::access_conflict);
  theirs.publish(stream);
  test::refused(theirs.try_publish(stream), ErrorCode::access_conflict);
  test::refused(theirs.try_acquire(std::chrono::milliseconds::min()), ErrorCode::timeout);
  mine.acquire(std::chrono::milliseconds::max());
  mine.publish(stream);
  stream.synchronize();
  theirs.acquire(answer_limit);
}

TEST_P(SharedArrayOn, KeepsTheTurnIfPublishFails) {
  SharedNumbers mine = SharedNumbers::make(device, 4);
  test::refused(mine.try_publish(StreamRef()), ErrorCode::stream_misuse);
  EXPECT_TRUE(mine.has_turn());
  const Device host = open_device("host?threads=1");
  const Stream foreign(host);
  test::refused(mine.try_publish(foreign), ErrorCode::device_mismatch);
  EXPECT_TRUE(mine.has_turn());
  mine.publish(stream);
}

TEST_P(SharedArrayOn, GivesEachOpenItsOwnTurnsAndCharge) {
  const BudgetHandle budget = Budget::make("importer", BudgetLimit::bytes(64 * mib));
  const std::size_t page = device.info().page_bytes;
  SharedNumbers mine = SharedNumbers::make(device, 1000);
  SharedNumbers first = SharedNumbers::open(mine.handle(), device, {.budget = budget});
  {
    SharedNumbers second = SharedNumbers::open(mine.handle(), device, {.budget = budget});
    EXPECT_EQ(mine.importers(), 2u);
    EXPECT_EQ(budget->used_bytes(), 2 * page);
    mine.publish(stream);
    stream.synchronize();
    first.acquire(answer_limit);
    second.acquire(answer_limit);
    first.publish(stream);
    stream.synchronize();
    test::refused(mine.try_acquire(1ms), ErrorCode::timeout);
  }
  // The second is closed, which is not a failure.
  mine.acquire(answer_limit);
  free_arrays();
  EXPECT_EQ(budget->used_bytes(), page);
}

TEST_P(SharedArrayOn, IsChargedAndRefusedByBudgets) {
  const std::size_t page = device.info().page_bytes;
  const BudgetHandle budget = Budget::make("small", BudgetLimit::bytes(page));
  const std::size_t before = test::open_descriptors();
  {
    SharedNumbers mine = SharedNumbers::make(device, 1000, {.budget = budget});
    EXPECT_EQ(budget->used_bytes(), page);
    test::refused(SharedNumbers::try_make(device, 1, {.budget = budget}), ErrorCode::out_of_budget);
    test::refused(SharedNumbers::try_open(mine.handle(), device, {.budget = budget}),
                  ErrorCode::out_of_budget);
    EXPECT_EQ(budget->used_bytes(), page);
  }
  free_arrays();
  EXPECT_EQ(budget->used_bytes(), 0u);
  EXPECT_EQ(test::open_descriptors(), before);
}

TEST_P(SharedArrayOn, StaysReadableAfterItWasClosed) {
  Buffer kept;
  std::string handle;
  {
    SharedNumbers mine = SharedNumbers::make(device, 1000);
    handle = mine.handle();
    SharedNumbers theirs = SharedNumbers::open(handle, device);
    write(mine, 3, stream);
    mine.publish(stream);
    stream.synchronize();
    theirs.acquire(answer_limit);
    mine = SharedNumbers();
    EXPECT_FALSE(mine);
    // The handle is stale, and the importer is told.
    test::refused(SharedNumbers::try_open(handle, device), ErrorCode::not_found);
    expect_numbers(theirs, 3);
    theirs.publish(stream);
    test::refused(theirs.try_acquire(), ErrorCode::peer_lost);
    kept = theirs.buffer();
  }
  EXPECT_EQ(kept.to_vector<std::uint32_t>()[999], 1002u);
  const SharedNumbers other = SharedNumbers::make(device, 1);
  test::refused(SharedNumbers::try_open(handle, device), ErrorCode::not_found);
}

TEST_P(SharedArrayOn, WaitsForItsPublishBeforeItIsClosed) {
  SharedNumbers mine = SharedNumbers::make(device, 1000);
  test::Gate gate;
  gate.hold(stream);
  mine.publish(stream);
  const Mark published = stream.mark();
  test::Thread closer([&] { mine = SharedNumbers(); });
  gate.open();
  closer.join();
  // The function that ended the turn does not run later, when the array is gone.
  EXPECT_TRUE(Device::is_done(published));
}

TEST_P(SharedArrayOn, RefusesOtherTypesAndDevices) {
  const SharedNumbers mine = SharedNumbers::make(device, 8);
  const Failure failure =
      test::refused(SharedArray<double>::try_open(mine.handle(), device), ErrorCode::type_mismatch);
  EXPECT_EQ(failure.string("actual"), "u32");
  EXPECT_EQ(failure.string("expected"), "f64");
  const Device other = open_device(device.info().backend == "host" ? "sim" : "host");
  test::refused(SharedNumbers::try_open(mine.handle(), other), ErrorCode::device_mismatch);
  test::refused(SharedBuffer::try_open("handle", device), ErrorCode::bad_format);
  EXPECT_EQ(SharedBuffer::open(mine.handle(), device).buffer().dtype(), DType::u32);
}

TEST_P(SharedArrayOn, RefusesImpossibleSizes) {
  test::refused(SharedNumbers::try_make(device, ~std::size_t{0} / 4), ErrorCode::size_overflow);
  test::refused(SharedNumbers::try_make(device, ~std::size_t{0}), ErrorCode::size_overflow);
  test::refused(SharedBuffer::try_make(device, 1, DType::void_), ErrorCode::invalid_argument);
  const Result<SharedNumbers> large = SharedNumbers::try_make(device, std::size_t{1} << 44);
  ASSERT_FALSE(large);
  // A CUDA driver may call it an invalid value.
  if (spec != "cuda:0") test::refused(large, ErrorCode::out_of_memory);
  SharedNumbers none = SharedNumbers::make(device, 0);
  EXPECT_EQ(none.size(), 0u);
  EXPECT_EQ(SharedNumbers::open(none.handle(), device).size(), 0u);
  none.publish(stream);
  SharedBuffer empty;
  EXPECT_FALSE(empty);
  EXPECT_EQ(empty.handle(), "");
  test::refused(empty.try_publish(stream), ErrorCode::not_allocated);
  test::refused(empty.try_acquire(), ErrorCode::not_allocated);
}

TEST_P(SharedArrayOn, LeaksNothingWithoutDescriptors) {
  static_cast<void>(SharedNumbers::make(device, 8));
  SharedNumbers mine = SharedNumbers::make(device, 8);
  const std::size_t before = test::open_descriptors();
  {
    const test::NoDescriptors none;
    EXPECT_FALSE(SharedNumbers::try_make(device, 8));
    EXPECT_FALSE(SharedNumbers::try_open(mine.handle(), device));
  }
  static_cast<void>(SharedNumbers::open(mine.handle(), device));
  while (mine.importers() != 0) std::this_thread::yield();
  EXPECT_EQ(test::open_descriptors(), before);
}

TEST_P(SharedArrayOn, IsNotUsedByAForkedChild) {
  SharedNumbers mine = SharedNumbers::make(device, 8);
  SharedNumbers theirs = SharedNumbers::open(mine.handle(), device);
  EXPECT_EQ(test::in_a_forked_child([&] {
              const bool is_refused = test::is_after_fork(mine.try_publish(stream)) &&
                                      test::is_after_fork(theirs.try_acquire());
              // Ending them in the child is not felt by the parent.
              if (test::children_can_allocate) {
                mine = SharedNumbers();
                theirs = SharedNumbers();
              }
              return is_refused;
            }),
            0);
  mine.publish(stream);
  stream.synchronize();
  theirs.acquire(answer_limit);
}

TEST_P(SharedArrayOn, RefusesAnExporterThatLiesAboutItsMemory) {
  const std::size_t page = device.info().page_bytes;
  const std::shared_ptr<share::Server> server = share::Server::try_get().value();
  const share::ExportTerms lie = {.bytes = 2 * page,
                                  .elements = 2 * page / 4,
                                  .dtype = DType::u32,
                                  .backend = device.info().backend};
  // The connections of earlier importers end by and by.
  const auto open_lie = [&](share::Descriptor memory) {
    const share::Address address = server->try_add(std::move(memory), lie).value();
    EXPECT_FALSE(SharedNumbers::try_open(share::print(address), device));
    server->remove(address.id);
  };
  open_lie(test::share_memory_file(page));
  open_lie(test::share_memory_file(2 * page, false));
  open_lie(share::Descriptor(dup(STDIN_FILENO)));
  const SharedNumbers mine = SharedNumbers::make(device, 8);
  EXPECT_TRUE(SharedNumbers::try_open(mine.handle(), device));
}

TEST(SharedArrayChecks, NeedsADeviceThatCanShare) {
  const Device device = sim::open({.keeps_contents = false});
  test::refused(SharedNumbers::try_make(device, 8), ErrorCode::unsupported);
  test::refused(SharedNumbers::try_make(Device(), 8), ErrorCode::invalid_device);
  const SharedNumbers mine = SharedNumbers::make(open_device("host"), 8);
  test::refused(SharedNumbers::try_open(mine.handle(), device), ErrorCode::unsupported);
  EXPECT_EQ(mine.importers(), 0u);
}

TEST(SharedArrayChecks, RetriesAMappingThatCannotEndYet) {
  const Device device = sim::open({.memory_bytes = 8 * mib});
  { const SharedNumbers mine = SharedNumbers::make(device, 8); }
  sim::set_faults(device, "release#2=fail");  // the first is that of the handle
  { const SharedNumbers mine = SharedNumbers::make(device, 8); }
  EXPECT_EQ(deferred_frees().count, 1u);
  EXPECT_EQ(reclaim_deferred().count, 0u);
  sim::set_faults(device, "");
  EXPECT_TRUE(SharedNumbers::try_make(device, 8 * mib / 4));
}

// --- Between two processes

TEST_P(SharedArrayOn, GoesToAnotherProcessAndBackAThousandTimes) {
  constexpr std::uint32_t rounds = 1000;
  SharedNumbers mine = SharedNumbers::make(device, 250);
  PeerProcess peer({"pong", spec, mine.handle(), std::to_string(rounds)});
  for (std::uint32_t round = 0; round < rounds; ++round) {
    write(mine, 2 * round, stream);
    mine.publish(stream);
    mine.acquire(answer_limit);
    expect_numbers(mine, 2 * round + 1);
    if (HasFailure()) break;
  }
  EXPECT_EQ(peer.wait(), 0) << peer.line();
}

TEST_P(SharedArrayOn, SurvivesTheExporter) {
  const std::size_t before = test::open_descriptors();
  {
    PeerProcess peer({"serve", spec});
    SharedNumbers theirs = SharedNumbers::open(peer.line(), device);
    const std::string handle = theirs.handle();
    peer.go_on();
    EXPECT_EQ(peer.line(), "published");
    theirs.acquire(answer_limit);
    EXPECT_EQ(read(theirs), std::vector<std::uint32_t>(1000, 1));
    const pid_t pid = peer.pid();
    peer.kill();
    // The memory is still there, for reading and for writing.
    EXPECT_EQ(read(theirs), std::vector<std::uint32_t>(1000, 1));
    write(theirs, 5, stream);
    expect_numbers(theirs, 5);
    theirs.publish(stream);
    const Failure lost = test::refused(theirs.try_acquire(answer_limit), ErrorCode::peer_lost);
    EXPECT_EQ(lost.number("pid"), static_cast<std::uint64_t>(pid));
    EXPECT_NE(lost.text().find("has ended"), std::string::npos) << lost.text();
    const Failure stale =
        test::refused(SharedNumbers::try_open(handle, device), ErrorCode::peer_lost);
    EXPECT_EQ(stale.number("pid"), static_cast<std::uint64_t>(pid));
  }
  free_arrays();
  EXPECT_EQ(test::open_descriptors(), before);
}

TEST_P(SharedArrayOn, LearnsOfTheEndOfAnImporterDuringItsTurn) {
  SharedNumbers mine = SharedNumbers::make(device, 1000);
  const std::size_t before = test::open_descriptors();
  {
    PeerProcess peer({"hold", spec, mine.handle()});
    write(mine, 1, stream);
    mine.publish(stream);
    stream.synchronize();
    EXPECT_EQ(peer.line(), "acquired");
    test::refused(mine.try_acquire(1ms), ErrorCode::timeout);
    const pid_t pid = peer.pid();
    peer.kill();
    const Failure lost = test::refused(mine.try_acquire(answer_limit), ErrorCode::peer_lost);
    EXPECT_EQ(lost.number("pid"), static_cast<std::uint64_t>(pid));
  }
  EXPECT_EQ(test::open_descriptors(), before);
  // The exporter has the turn, and goes on with the next importer.
  EXPECT_TRUE(mine.has_turn());
  PeerProcess next({"pong", spec, mine.handle(), "1"});
  write(mine, 0, stream);
  mine.publish(stream);
  mine.acquire(answer_limit);
  expect_numbers(mine, 1);
  EXPECT_EQ(next.wait(), 0) << next.line();
}

}  // namespace
}  // namespace tern
