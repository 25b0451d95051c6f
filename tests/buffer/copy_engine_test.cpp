// Overlapping ranges, and a failure of every driver call on every route.

#include "buffer/copy_engine.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <optional>
#include <string>

#include "support/copy_places.hpp"
#include "support/ladder.hpp"
#include "tern/backends/sim.hpp"
#include "tern/buffer/foreign.hpp"
#include "tern/device/stream.hpp"
#include "tern/memory/default_resource.hpp"
#include "tern/memory/driver_resource.hpp"

namespace tern::test {
namespace {

// --- Overlap

class Overlap : public Ladder {
 protected:
  void TearDown() override {
    Ladder::TearDown();
    expect_no_findings(device);
  }
};
TERN_CLIMB(Overlap);

TEST_P(Overlap, CopiesAsIfTheSourceWereCopiedFirst) {
  for (const CopyPlace& place : places_of(device, "")) {
    const Bytes in = counted(10'000);
    for (const std::size_t distance : {0u, 1u, 7u, 311u, 2'000u, 4'999u, 5'000u}) {
      for (const bool is_forward : {false, true}) {
        for (const bool is_awaited : {false, true}) {
          const std::size_t to = is_forward ? distance : 0, from = is_forward ? 0 : distance;
          Bytes expected = in;
          std::memmove(expected.data() + to, expected.data() + from, 5'000);
          const Buffer buffer = place.holding(in);
          if (is_awaited) {
            copy(buffer.byte_view(to, 5'000), buffer.byte_view(from, 5'000));
          } else {
            copy(buffer.byte_view(to, 5'000), buffer.byte_view(from, 5'000), stream);
          }
          EXPECT_TRUE(bytes_of(buffer) == expected)
              << place.name << " by " << distance << (is_forward ? " forward" : " back");
        }
      }
    }
  }
}

TEST(OverlapSteps, NeedNoScratchMemoryIfLargeOrFew) {
  const Device device = sim::open({});
  const Stream stream(device);
  const auto resource = std::make_shared<DirectResource>(device);
  Buffer buffer(device, {2 * mib}, DType::byte, {.resource = resource});
  const Bytes in = counted(2 * mib);
  buffer.try_copy_from(in.data(), in.size()).value();
  copy(buffer.byte_view(256 * kib, mib), buffer.byte_view(0, mib), stream);
  copy(buffer.byte_view(0, 310), buffer.byte_view(10, 310), stream);
  EXPECT_EQ(resource->statistics().requests, 1u);
  copy(buffer.byte_view(0, 320), buffer.byte_view(10, 320), stream);
  EXPECT_EQ(resource->statistics().requests, 2u);
  stream.synchronize();
  EXPECT_EQ(resource->statistics().live_blocks, 1u);
}

// --- Faults

struct Scenario {
  std::string name;
  MemoryKind to = MemoryKind::device;
  unsigned to_device = 0;
  MemoryKind from = MemoryKind::device;
  unsigned from_device = 0;
  unsigned stream_device = 0;
  std::size_t bytes = 5000;
  /// How many bytes further on in the source itself; unset: another buffer.
  std::optional<std::size_t> shift = {};
  bool is_awaited = false;
  bool is_pitched = false;
  bool is_batch = false;
};

std::vector<Scenario> scenarios() {
  using enum MemoryKind;
  constexpr std::size_t chunks = 2 * 4 * mib + 1;
  return {
      {"direct", device, 0, device, 0, 0},
      {"direct_to_pinned", pinned, 0, device, 0, 0},
      {"direct_awaited", device, 0, managed, 0, 0, 5000, {}, true},
      {"peer", device, 1, device, 0, 1},
      {"peer_on_the_sources_stream", device, 1, device, 0, 0},
      {"peer_awaited", device, 1, device, 0, 0, 5000, {}, true},
      {"handed_over", device, 1, pinned, 0, 0},
      {"handed_over_back", pinned, 0, device, 1, 0},
      {"staged", device, 1, managed, 0, 1, chunks},
      {"staged_on_the_sources_stream", device, 1, managed, 0, 0, chunks},
      {"staged_awaited", managed, 1, device, 0, 0, chunks, {}, true},
      {"file_to_device", device, 0, file, 0, 0, chunks},
      {"file_to_device_awaited", device, 0, file, 0, 0, 5000, {}, true},
      {"file_to_pinned", pinned, 0, file, 0, 0},
      {"overlap_in_steps", device, 0, device, 0, 0, 5000, 2000},
      {"overlap_with_scratch", device, 0, device, 0, 0, 5000, 1},
      {"pitched", device, 0, device, 0, 0, 5000, {}, false, true},
      {"pitched_staged", device, 1, managed, 0, 1, 5000, {}, false, true},
      {"pitched_peer", device, 1, device, 0, 0, 5000, {}, false, true},
      {"batch", device, 0, pinned, 0, 0, 5000, {}, false, false, true},
  };
}

/// One world, and the copy of a scenario in it.
struct Rig {
  explicit Rig(const Scenario& given) : scenario(given) {
    const std::size_t bytes = scenario.bytes + scenario.shift.value_or(0);
    in = counted(bytes);
    const Device file_device = open_device("host");
    from =
        CopyPlace{"", scenario.from == MemoryKind::file ? file_device : peers[scenario.from_device],
                  scenario.from}
            .holding(in);
    if (scenario.shift) {
      to = from->byte_view(*scenario.shift, scenario.bytes);
      from = from->byte_view(0, scenario.bytes);
    } else {
      to = CopyPlace{"", peers[scenario.to_device], scenario.to}.make(scenario.bytes);
    }
    for (const Device& device : peers) device.synchronize();
    sim::set_faults(peers[0], "");
  }

  [[nodiscard]] Result<void> act() const {
    const StreamRef stream = streams[scenario.stream_device];
    const auto without_mark = [](const Result<Mark>& mark) {
      return mark ? Result<void>() : Result<void>(mark.failure());
    };
    if (scenario.is_pitched) {
      return without_mark(try_copy_pitched(*to, {0, 100}, *from, {0, 100}, {100, 50}, stream));
    }
    if (scenario.is_batch) {
      const BufferCopy both[] = {{to->byte_view(0, 2000), from->byte_view(0, 2000)},
                                 {to->byte_view(2000, 3000), from->byte_view(2000, 3000)}};
      return without_mark(try_copy_batch(both, stream));
    }
    return scenario.is_awaited ? try_copy(*to, *from) : without_mark(try_copy(*to, *from, stream));
  }
  [[nodiscard]] bool has_arrived() const {
    return bytes_of(*to) ==
           Bytes(in.begin(), in.begin() + static_cast<std::ptrdiff_t>(scenario.bytes));
  }
  /// Everything goes back.
  void end() {
    to.reset();
    from.reset();
    for (const Device& device : peers) {
      ASSERT_TRUE(device.try_synchronize());
      expect_no_findings(device);
    }
    reclaim_deferred();
    EXPECT_EQ(deferred_frees().count, 0u);
    for (const Device& device : peers) {
      for (const MemoryKind kind : {MemoryKind::device, MemoryKind::pinned, MemoryKind::managed}) {
        const ResourceHandle resource = default_resource(device, kind);
        resource->retry_failed_frees();
        EXPECT_EQ(resource->statistics().live_bytes, 0u) << name(kind);
      }
    }
  }

  const Scenario& scenario;
  std::vector<Device> peers = sim::open_peers({.memory_bytes = 256 * mib}, 2);
  std::vector<Stream> streams = [this] {
    std::vector<Stream> made;
    for (const Device& device : peers) made.emplace_back(device);
    return made;
  }();
  Bytes in;
  std::optional<Buffer> to, from;
};

class CopyFaults : public testing::TestWithParam<Scenario> {};
INSTANTIATE_TEST_SUITE_P(EveryRoute, CopyFaults, testing::ValuesIn(scenarios()),
                         [](const auto& scenario) { return scenario.param.name; });

TEST_P(CopyFaults, AnyFailedCallLeaksNothingAndTheRetrySucceeds) {
  // How many calls of each class there are to fail.
  std::vector<std::pair<std::string, std::uint64_t>> classes;
  {
    Rig rig(GetParam());
    ASSERT_TRUE(rig.act());
    for (const char* one : {"copy", "wait", "record", "stream", "allocate", "pin", "map", "sync",
                            "query", "release"}) {
      classes.emplace_back(one, sim::calls(rig.peers[0], one));
    }
    EXPECT_TRUE(rig.has_arrived());
    rig.end();
  }
  unsigned refused = 0;
  for (const auto& [one, calls] : classes) {
    for (std::uint64_t i = 1; i <= calls; ++i) {
      const std::string plan = one + "#" + std::to_string(i) + "=fail";
      SCOPED_TRACE(plan);
      Rig rig(GetParam());
      const std::size_t uses_before = rig.from->storage()->uses().size();
      sim::set_faults(rig.peers[0], plan);
      const Result<void> acted = rig.act();
      const bool was_submitted = sim::calls(rig.peers[0], "copy") > (one == "copy");
      sim::set_faults(rig.peers[0], "");
      if (!acted) {
        ++refused;
        EXPECT_EQ(acted.failure().code(), ErrorCode::driver) << acted.failure().text();
        if (!was_submitted && !GetParam().is_batch && !GetParam().shift) {
          EXPECT_EQ(rig.from->storage()->uses().size(), uses_before);
          EXPECT_FALSE(rig.to->storage()->check_written(0, 1, {}));
        }
        const Result<void> again = rig.act();
        ASSERT_TRUE(again) << again.failure().text();
      }
      // Bytes that were moved onto others are gone where that failed.
      EXPECT_TRUE(rig.has_arrived() || (GetParam().shift && !acted));
      rig.end();
    }
  }
  // The pool of page-locked memory asks once more by itself, and nothing else is called for that.
  if (GetParam().name == "file_to_pinned") return;
  EXPECT_GT(refused, 0u);
}

}  // namespace
}  // namespace tern::test
