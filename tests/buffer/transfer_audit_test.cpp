#include "tern/buffer/transfer_audit.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "support/allocation_counter.hpp"
#include "support/copy_places.hpp"
#include "support/fake_backend.hpp"
#include "support/thread.hpp"
#include "tern/backends/catalog.hpp"
#include "tern/backends/sim.hpp"
#include "tern/buffer/array.hpp"
#include "tern/buffer/buffer.hpp"
#include "tern/buffer/copy.hpp"
#include "tern/device/stream.hpp"

namespace tern::test {
namespace {

using Mode = TransferGate::Mode;
using Direction = TransferDirection;
using Purpose = TransferPurpose;

/// Two peers, and memory of the first with a tag of the test's own.
class TransferAudit : public testing::Test {
 protected:
  void TearDown() override {
    for (const Device& one : peers) expect_no_findings(one);
  }
  [[nodiscard]] Buffer on_device(std::size_t bytes, std::size_t which = 0) const {
    Buffer made(peers[which], {bytes}, DType::byte, {.contents = Contents::zero, .tag = tag});
    made.ensure_allocated();
    return made;
  }
  [[nodiscard]] Buffer pinned(std::size_t bytes) const {
    Buffer made(device, {bytes}, DType::byte,
                {.kind = MemoryKind::pinned, .contents = Contents::zero, .tag = tag});
    made.ensure_allocated();
    return made;
  }
  /// Of this test's tag.
  [[nodiscard]] TransferCounts moved() const { return transfer_counts(tag) - before; }

  Tag tag = testing::UnitTest::GetInstance()->current_test_info()->name();
  std::vector<Device> peers = sim::open_peers({}, 2);
  Device device = peers[0];
  Stream stream{device};
  TransferCounts before = transfer_counts(tag);
};

constexpr CopyCount times(std::uint64_t calls, std::uint64_t bytes) {
  return {calls, calls * bytes};
}

// --- Counting

TEST_F(TransferAudit, CountsEveryWayInAndOut) {
  const TransferCounts all = transfer_counts();
  Bytes host(5000);
  Buffer buffer = on_device(5000), staging = pinned(5000);
  buffer.try_copy_from(host.data(), 5000).value();
  copy(buffer, staging, stream);
  copy(buffer, staging);
  auto array = Array<std::byte>::from(device, host, {.tag = tag});
  array.copy_from(host, stream);
  EXPECT_EQ(moved().host_to_device(), times(5, 5000));
  stream.synchronize();

  buffer.try_copy_to(host.data(), 5000).value();
  static_cast<void>(buffer.to_vector<std::byte>());
  copy(staging, buffer, stream);
  copy(staging, buffer);
  static_cast<void>(array.to_vector());
  array.copy_to(host, stream);
  EXPECT_EQ(moved().device_to_host(), times(6, 5000));

  const Buffer twin = buffer.clone(stream);
  array.resize(100'000, stream);
  EXPECT_EQ(moved().device_to_device(), times(2, 5000));

  const Buffer far = on_device(5000, 1);
  copy(far, buffer, stream);
  EXPECT_EQ(moved().between_devices(), times(1, 5000));
  EXPECT_EQ(transfer_counts() - all, moved()) << "nothing was counted elsewhere";
  stream.synchronize();
}

TEST_F(TransferAudit, CountsPitchedCopiesAndBatchesAsTheyWereAskedFor) {
  const Buffer from = on_device(64 * 100), to = pinned(64 * 100);
  copy_pitched(to, {0, 64}, from, {0, 64}, {32, 100}, stream);
  EXPECT_EQ(moved().device_to_host(), times(1, 3200));
  const std::vector<BufferCopy> copies = {{to.byte_view(0, 100), from.byte_view(0, 100)},
                                          {to.byte_view(100, 100), from.byte_view(100, 100)}};
  copy_batch(copies, stream);
  EXPECT_EQ(moved().device_to_host(), (CopyCount{3, 3400}));
  stream.synchronize();
}

TEST_F(TransferAudit, KnowsScalarsAndMetadataByTheirSize) {
  Buffer values(device, {4097}, DType::byte, {.contents = Contents::zero, .tag = tag});
  static_cast<void>(values.slice(7, 1).item<std::byte>());
  static_cast<void>(values.byte_view(0, 16).to_vector<std::byte>());
  static_cast<void>(values.byte_view(0, 17).to_vector<std::byte>());
  static_cast<void>(values.byte_view(0, 4096).to_vector<std::byte>());
  static_cast<void>(values.to_vector<std::byte>());
  const TransferCounts counts = moved();
  EXPECT_EQ(counts.at(Direction::device_to_host, Purpose::scalar), (CopyCount{2, 17}));
  EXPECT_EQ(counts.at(Direction::device_to_host, Purpose::metadata), (CopyCount{2, 17 + 4096}));
  EXPECT_EQ(counts.at(Direction::device_to_host, Purpose::data), times(1, 4097));
  EXPECT_EQ(counts.device_to_host().copies, 5u);
}

TEST_F(TransferAudit, CountsWhatGoesThroughTheHostBothWays) {
  const Device apart = sim::open({});
  const Buffer from = on_device(5000);
  const Buffer to(apart, {5000}, DType::byte, {.tag = tag});
  copy(to, from, stream);
  EXPECT_EQ(moved().device_to_host(), times(1, 5000));
  EXPECT_EQ(moved().host_to_device(), times(1, 5000));
  EXPECT_EQ(moved().between_devices(), CopyCount());
  stream.synchronize();
  apart.synchronize();
}

TEST_F(TransferAudit, CountsAFileThatGoesToADevice) {
  const Buffer file = CopyPlace{"", device, MemoryKind::file}.holding(counted(5000));
  const Buffer there = on_device(5000), here = pinned(5000);
  copy(there, file, stream);
  copy(here, file, stream);
  EXPECT_EQ(moved().host_to_device(), times(1, 5000)) << "host memory is no device's";
  EXPECT_EQ(moved().device_to_host(), CopyCount());
  stream.synchronize();
}

TEST_F(TransferAudit, CountsNeitherNothingNorWhatStaysOnTheHost) {
  Bytes host(100);
  Buffer buffer = on_device(100);
  static_cast<void>(buffer.byte_view(0, 0).to_vector<std::byte>());
  copy(buffer.byte_view(0, 0), buffer.byte_view(9, 0), stream);
  Buffer one = pinned(100), two = pinned(100);
  copy(one, two);
  copy(one, two, stream);
  one.try_copy_from(host.data(), 100).value();
  two.try_copy_to(host.data(), 100).value();
  EXPECT_EQ(moved(), TransferCounts());
  stream.synchronize();
}

TEST_F(TransferAudit, DoesNotCountWhatFailed) {
  Bytes host(5000);
  Buffer buffer = on_device(5000), twin = on_device(5000);
  const Buffer staging = pinned(5000);
  auto array = Array<std::byte>::from(device, host, {.tag = tag});
  Buffer unwritten(device, {5000}, DType::byte, {.tag = tag});
  const Device apart = sim::open({});
  const Buffer far(apart, {5000}, DType::byte, {.tag = tag});
  before = transfer_counts(tag);
  EXPECT_FALSE(unwritten.try_copy_to(host.data(), 5000)) << "refused";
  EXPECT_FALSE(buffer.try_copy_to(host.data(), 4999));

  const std::vector<BufferCopy> copies = {{twin, buffer}};
  const std::function<bool()> attempts[] = {
      [&] { return bool(buffer.try_copy_to(host.data(), 5000)); },
      [&] { return bool(buffer.try_copy_from(host.data(), 5000)); },
      [&] { return bool(try_copy(twin, buffer, stream)); },
      [&] { return bool(try_copy(staging, buffer)); },
      [&] { return bool(try_copy(far, buffer, stream)); },
      [&] { return bool(try_copy_batch(copies, stream)); },
      [&] {
        return bool(try_copy_pitched(staging, {0, 50}, buffer, {0, 50}, {50, 100}, stream));
      },
      [&] { return bool(array.try_copy_to(host, stream)); },
      [&] { return bool(array.try_copy_from(host, stream)); },
      [&] { return bool(array.try_copy_to(host)); },
  };
  for (const auto& attempt : attempts) {
    sim::set_faults(device, "copy%1=fail");
    EXPECT_FALSE(attempt()) << &attempt - attempts;
    EXPECT_EQ(moved(), TransferCounts()) << &attempt - attempts;
  }
  sim::set_faults(device, "");
  device.synchronize();
}

TEST_F(TransferAudit, CountsNothingThatTheHostCouldNotWaitFor) {
  Bytes host(5000);
  Buffer buffer = on_device(5000);
  device.synchronize();
  before = transfer_counts(tag);
  // Waits that fail are tried in other ways, and the copy is there.
  sim::set_faults(device, "record%1=fail, sync%1=fail");
  EXPECT_TRUE(buffer.try_copy_to(host.data(), 5000));
  sim::set_faults(device, "");
  EXPECT_NE(moved(), TransferCounts());
  before = transfer_counts(tag);
  sim::set_faults(device, "sync#1=lost");
  EXPECT_FALSE(buffer.try_copy_to(host.data(), 5000));
  EXPECT_EQ(moved(), TransferCounts());
}

TEST_F(TransferAudit, CountsOnManyThreadsAndListsTheTags) {
  constexpr std::uint64_t rounds = 200;
  std::vector<test::Thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      Buffer buffer = on_device(100);
      std::array<std::byte, 100> host = {};
      for (std::uint64_t j = 0; j < rounds; ++j) {
        buffer.try_copy_from(host.data(), 100).value();
        buffer.try_copy_to(host.data(), 100).value();
      }
    });
  }
  for (test::Thread& thread : threads) thread.join();
  EXPECT_EQ(moved().host_to_device(), times(8 * rounds, 100));
  EXPECT_EQ(moved().device_to_host(), times(8 * rounds, 100));
  const std::vector<std::pair<Tag, TransferCounts>> all = transfer_counts_by_tag();
  const auto own = std::ranges::find(all, tag, &std::pair<Tag, TransferCounts>::first);
  ASSERT_NE(own, all.end());
  EXPECT_EQ(own->second, transfer_counts(tag));
  EXPECT_EQ(transfer_counts("of nobody at all"), TransferCounts());
}

// --- The gate

TEST_F(TransferAudit, RefusesDataBeforeAnythingIsDoneForIt) {
  const Buffer buffer = on_device(4097);
  const TransferGate gate;
  EXPECT_EQ(buffer.byte_view(0, 4096).to_vector<std::byte>().size(), 4096u) << "metadata passes";
  EXPECT_EQ(gate.violations(), CopyCount());
  EXPECT_EQ(gate.small_reads(), times(1, 4096));

  const TransferGateStatistics earlier = transfer_gate_statistics();
  sim::set_faults(device, "");
  const auto calls = [&] {
    std::uint64_t sum = 0;
    for (const char* one : {"copy", "record", "wait", "query", "sync", "stream", "allocate"}) {
      sum += sim::calls(device, one);
    }
    return sum;
  };
  std::size_t allocations = 0;
  ErrorCode code = {};
  {
    const AllocationCounter counter;
    try {
      static_cast<void>(buffer.to_vector<std::byte>({"query.cpp", "scan", 12}));
    } catch (const DownloadRefused& refused) {
      code = refused.code();
      allocations = counter.count();
      EXPECT_EQ(refused.failure().number("bytes"), 4097u);
      EXPECT_EQ(refused.failure().number("limit"), 4096u);
      EXPECT_EQ(refused.failure().string("tag"), tag.name());
      EXPECT_EQ(refused.failure().site().line, 12u);
      EXPECT_TRUE(refused.failure().number("gate_line"));
      EXPECT_NE(std::string(refused.what()).find("Keep the bytes on the device"),
                std::string::npos);
    }
  }
  EXPECT_EQ(code, ErrorCode::download_refused);
  EXPECT_EQ(allocations, 0u) << "the host made no room";
  EXPECT_EQ(calls(), 0u);
  EXPECT_EQ(gate.violations(), times(1, 4097));
  EXPECT_EQ(transfer_gate_statistics().refused - earlier.refused, times(1, 4097));
  EXPECT_EQ(transfer_gate_statistics().last.line, 12u);
}

TEST_F(TransferAudit, RefusesArraysBeforeTheHostMakesRoom) {
  const auto array = Array<float>::zeros(device, 5000, {.tag = tag});
  const TransferGate gate;
  std::size_t allocations = 0;
  {
    const AllocationCounter counter;
    try {
      static_cast<void>(array.to_vector());
    } catch (const DownloadRefused&) {
      allocations = counter.count();
    }
  }
  EXPECT_EQ(allocations, 0u);
  EXPECT_EQ(gate.violations(), times(1, 20'000));
}

TEST_F(TransferAudit, RefusesEveryWayOutAndNoWayIn) {
  Bytes host(5000);
  Buffer buffer = on_device(5000), twin = on_device(5000), staging = pinned(5000);
  auto array = Array<std::byte>::from(device, host, {.tag = tag});
  const FakeDevice apart({.describe = [](DeviceInfo& info) { info.is_host = false; }});
  const Buffer far(apart.device, {5000}, DType::byte, {.tag = tag});
  const Device unknown = sim::open({});
  const Buffer farther(unknown, {5000}, DType::byte, {.tag = tag});
  const std::vector<BufferCopy> small = {
      {staging.byte_view(0, 4000), buffer.byte_view(0, 4000)},
      {staging.byte_view(4000, 1000), buffer.byte_view(4000, 1000)}};
  before = transfer_counts(tag);
  sim::set_faults(device, "");
  const auto code = [](const auto& result) {
    return result ? ErrorCode{} : result.failure().code();
  };
  const std::function<ErrorCode()> ways_out[] = {
      [&] { return code(buffer.try_copy_to(host.data(), 5000)); },
      [&] { return code(try_copy(staging, buffer, stream)); },
      [&] { return code(try_copy(staging, buffer)); },
      [&] {
        return code(try_copy_pitched(staging, {0, 50}, buffer, {0, 50}, {50, 100}, stream));
      },
      [&] { return code(try_copy_batch(small, stream)); },
      [&] { return code(array.try_copy_to(host)); },
      [&] { return code(array.try_copy_to(host, stream)); },
      [&] { return code(try_copy(far, buffer, stream)); },
      [&] { return code(try_copy(far, buffer)); },
      [&] { return code(try_copy(farther, buffer, stream)); },
      [&] {
        try {
          static_cast<void>(array.to_vector());
        } catch (const Error& error) {
          return error.code();
        }
        return ErrorCode{};
      },
  };
  const TransferGate gate;
  std::uint64_t refused = 0;
  for (const auto& way : ways_out) {
    EXPECT_EQ(way(), ErrorCode::download_refused) << &way - ways_out;
    EXPECT_EQ(gate.violations(), times(++refused, 5000)) << &way - ways_out;
  }
  EXPECT_EQ(moved(), TransferCounts());
  EXPECT_FALSE(far.is_allocated());
  EXPECT_EQ(sim::calls(device, "copy"), 0u);

  EXPECT_TRUE(buffer.try_copy_from(host.data(), 5000));
  EXPECT_TRUE(try_copy(buffer, staging, stream));
  EXPECT_TRUE(try_copy(twin, buffer, stream));
  EXPECT_TRUE(try_copy(pinned(5000), staging, stream)) << "never left the host";
  EXPECT_TRUE(try_copy(on_device(5000, 1), buffer, stream)) << "a peer";
  EXPECT_EQ(staging.to_vector<std::byte>().size(), 5000u) << "on the host already";
  EXPECT_EQ(gate.violations().copies, refused);
  stream.synchronize();
}

TEST_F(TransferAudit, LetsScalarsPassAndCountsThem) {
  const auto array = Array<int>::zeros(device, 100, {.tag = tag});
  const TransferGate gate;
  for (std::size_t i = 0; i < 10; ++i) EXPECT_EQ(array.buffer().slice(i, 1).item<int>(), 0);
  static_cast<void>(array.slice(0, 0).to_vector());
  EXPECT_EQ(gate.small_reads(), times(10, 4)) << "no elements are no read";
  EXPECT_EQ(gate.violations(), CopyCount());
}

TEST_F(TransferAudit, OnlyCountsWhereItIsTold) {
  const Buffer buffer = on_device(5000);
  const TransferGateStatistics earlier = transfer_gate_statistics();
  const TransferGate gate(Mode::count);
  EXPECT_EQ(buffer.to_vector<std::byte>().size(), 5000u);
  EXPECT_EQ(gate.violations(), times(1, 5000));
  EXPECT_EQ(moved().device_to_host(), times(1, 5000));
  EXPECT_EQ(transfer_gate_statistics().counted - earlier.counted, times(1, 5000));
  EXPECT_EQ(transfer_gate_statistics().refused, earlier.refused);
}

TEST_F(TransferAudit, NestsAndTheStrictestHoldsUpToAnException) {
  const Buffer buffer = on_device(5000);
  const auto reads = [&] {
    Bytes host(5000);
    return bool(buffer.try_copy_to(host.data(), 5000));
  };
  const TransferGate outer;
  {
    const TransferGate inner(Mode::count);
    EXPECT_FALSE(reads()) << "the outer one is stricter";
    EXPECT_EQ(inner.violations().copies, 1u);
    const TransferGate meant(Mode::allow);
    EXPECT_TRUE(reads());
    EXPECT_EQ(moved().at(Direction::device_to_host, Purpose::result), times(1, 5000));
    {
      const TransferGate again;
      EXPECT_FALSE(reads());
      EXPECT_EQ(again.violations().copies, 1u);
    }
    EXPECT_TRUE(reads());
    EXPECT_EQ(meant.violations(), CopyCount());
  }
  EXPECT_EQ(outer.violations().copies, 1u) << "what an exception has inside is not its affair";
  EXPECT_FALSE(reads());
  EXPECT_EQ(outer.violations().copies, 2u);
}

TEST_F(TransferAudit, IsOneThreadsOwnAndEndsWithItsScope) {
  const Buffer buffer = on_device(5000);
  Bytes host(5000);
  {
    const TransferGate gate;
    test::Thread([&] { EXPECT_TRUE(buffer.try_copy_to(host.data(), 5000)); }).join();
    EXPECT_FALSE(buffer.try_copy_to(host.data(), 5000));
  }
  EXPECT_TRUE(buffer.try_copy_to(host.data(), 5000));
}

TEST(TransferAuditOnTheHost, HasNothingToCount) {
  const Device host = open_device("host");
  const Tag tag = "on the host";
  const auto array = Array<float>::zeros(host, 5000, {.tag = tag});
  const TransferGate gate;
  EXPECT_EQ(array.to_vector().size(), 5000u);
  EXPECT_EQ(transfer_counts(tag), TransferCounts());
}

}  // namespace
}  // namespace tern::test
