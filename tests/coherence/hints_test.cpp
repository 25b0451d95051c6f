#include "tern/coherence/hints.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "support/managed_calls.hpp"
#include "tern/backends/catalog.hpp"
#include "tern/backends/sim.hpp"
#include "tern/coherence/prefetch_plan.hpp"

namespace tern {
namespace {

using cuda::ManagedCalls;
using cuda::ManagedDevices;
using Calls = std::vector<std::string>;
using Policy = MigrationPolicy;

constexpr std::size_t page = 4096;

Buffer managed(const Device& device, std::size_t bytes) {
  return Buffer(device, {bytes}, DType::u8, {.kind = MemoryKind::managed, .alignment = 64 * kib});
}

/// Through the entry points of a driver as of today, or of one that knows device numbers only.
class HintsOfDriver : public testing::TestWithParam<int> {
 protected:
  HintsOfDriver() {
    buffer.ensure_allocated();
    ManagedCalls::base = buffer.address();
    static_cast<void>(ManagedCalls::take());
  }
  [[nodiscard]] static bool has_locations() { return GetParam() >= 12020; }
  [[nodiscard]] static std::string on_device(int ordinal) {
    return (has_locations() ? "device " : "ordinal ") + std::to_string(ordinal);
  }
  [[nodiscard]] static std::string on_host() { return has_locations() ? "host" : "cpu"; }

  ManagedDevices bench{GetParam()};
  Buffer buffer = managed(bench.devices[0], 8 * page);
  Hints hints{buffer};
  Stream stream{bench.devices[0]};
};
INSTANTIATE_TEST_SUITE_P(EveryShape, HintsOfDriver, testing::Values(13000, 12010));

// --- Driver calls

TEST_P(HintsOfDriver, ReachItWithCodeRangeAndPlaceOfAllSix) {
  const Place second = bench.devices[1].place();
  EXPECT_TRUE(hints.set_read_mostly().is_sent());
  EXPECT_TRUE(hints.unset_read_mostly(HintRange{page, page}).is_sent());
  EXPECT_TRUE(hints.set_preferred_location(second, HintRange{0, 2 * page}).is_sent());
  EXPECT_TRUE(hints.set_preferred_location(Place::host()).is_sent());
  EXPECT_TRUE(hints.unset_preferred_location().is_sent());
  EXPECT_TRUE(hints.set_accessed_by(second, HintRange{3 * page, page}).is_sent());
  EXPECT_TRUE(hints.set_accessed_by(Place::host()).is_sent());
  EXPECT_TRUE(hints.unset_accessed_by(second).is_sent());
  // Where a place means nothing it is that of the memory.
  EXPECT_EQ(ManagedCalls::take(),
            (Calls{"advise 1 [0, 32768) " + on_device(0), "advise 2 [4096, 8192) " + on_device(0),
                   "advise 3 [0, 8192) " + on_device(1), "advise 3 [0, 32768) " + on_host(),
                   "advise 4 [0, 32768) " + on_device(0), "advise 5 [12288, 16384) " + on_device(1),
                   "advise 5 [0, 32768) " + on_host(), "advise 6 [0, 32768) " + on_device(1)}));
}

TEST_P(HintsOfDriver, AreOfThePartThatAViewIs) {
  const Hints part(buffer.byte_view(2 * page, 4 * page));
  part.set_read_mostly();
  part.set_read_mostly(HintRange{page, page});
  part.prefetch(Place::host(), stream, HintRange{page, 2 * page});
  EXPECT_EQ(ManagedCalls::take(), (Calls{"advise 1 [8192, 24576) " + on_device(0),
                                         "advise 1 [12288, 16384) " + on_device(0),
                                         "prefetch [12288, 20480) " + on_host()}));
}

TEST_P(HintsOfDriver, SendPagesToAnyPlaceOnAnyStream) {
  EXPECT_TRUE(hints.prefetch(bench.devices[0].place(), stream).is_sent());
  EXPECT_TRUE(hints.prefetch(Place::host(), stream, HintRange{page, 100}).is_sent());
  const Stream elsewhere(bench.devices[1]);
  EXPECT_TRUE(hints.prefetch(bench.devices[1].place(), elsewhere).is_sent());
  EXPECT_EQ(ManagedCalls::take(),
            (Calls{"prefetch [0, 32768) " + on_device(0), "prefetch [4096, 4196) " + on_host(),
                   "prefetch [0, 32768) " + on_device(1)}));
  elsewhere.synchronize();
  stream.synchronize();
}

TEST_P(HintsOfDriver, KnowNumaNodesOnlySince12_2) {
  for (const Place node : {Place::host_numa(0), Place::host_numa_current()}) {
    const std::string name = node == Place::host_numa(0) ? "numa 0" : "numa current";
    const auto advised =
        hints.try_apply(node == Place::host_numa(0) ? Policy::prefer_host_numa(0)
                                                    : Policy::prefer_host_numa_current());
    const auto sent = hints.try_prefetch(node, stream);
    if (has_locations()) {
      EXPECT_EQ(cuda::why(advised), "");
      EXPECT_EQ(cuda::why(sent), "");
      EXPECT_EQ(hints.query().preferred, node);
      EXPECT_EQ(ManagedCalls::take(),
                (Calls{"advise 3 [0, 32768) " + name, "prefetch [0, 32768) " + name}));
    } else {
      EXPECT_EQ(cuda::code(advised), "unsupported");
      EXPECT_EQ(cuda::code(sent), "unsupported");
      EXPECT_EQ(ManagedCalls::take(), Calls{});
    }
    // Mappings are a device's or the host's.
    EXPECT_EQ(cuda::code(hints.try_advise({Advice::set_accessed_by, node})), "invalid_device");
  }
}

// --- Policies

TEST_P(HintsOfDriver, ApplyThePolicyWhateverIsCurrent) {
  const cuda::ManagedDevices::Elsewhere elsewhere(bench, 0);
  EXPECT_TRUE(hints.apply(Policy::prefer_device(bench.devices[1])).report().is_sent());
  EXPECT_EQ(ManagedCalls::take(), (Calls{"advise 3 [0, 32768) " + on_device(1)}));
  EXPECT_EQ(hints.query().preferred, bench.devices[1].place());
  EXPECT_TRUE(hints.apply(Policy::prefer_host()).report().is_sent());
  EXPECT_EQ(ManagedCalls::take(), (Calls{"advise 3 [0, 32768) " + on_host()}));
  EXPECT_EQ(hints.query().preferred, Place::host());
  EXPECT_TRUE(
      hints.apply(Policy::read_mostly().accessed_by(bench.devices[1].place()), HintRange{0, page})
          .report()
          .is_sent());
  EXPECT_EQ(ManagedCalls::take(),
            (Calls{"advise 1 [0, 4096) " + on_device(0), "advise 5 [0, 4096) " + on_device(1)}));
}

TEST_P(HintsOfDriver, NeverReachItWithTheDefaultPolicy) {
  const std::uint64_t before = ManagedCalls::total;
  const HintUndo undo = hints.apply(Policy::none());
  EXPECT_EQ(undo.report().skipped, HintSkip::default_policy);
  EXPECT_EQ(hints.apply_at(Policy::none(), Place::device(DeviceId{99})).report().skipped,
            HintSkip::default_policy);
  undo.restore();
  const Hints fresh(managed(bench.devices[0], page));
  EXPECT_FALSE(fresh.apply(Policy::none()).report().is_sent());
  EXPECT_FALSE(fresh.buffer().is_allocated());
  EXPECT_EQ(ManagedCalls::total, before);
}

TEST_P(HintsOfDriver, RefuseAPlaceThatContradictsThePolicy) {
  const Policy second = Policy::prefer_device(bench.devices[1]);
  const auto refused = hints.try_apply_at(second, bench.devices[0].place());
  ASSERT_EQ(cuda::code(refused), "device_mismatch");
  EXPECT_EQ(refused.failure().number("a_number"), bench.devices[1].id().value);
  EXPECT_EQ(refused.failure().number("b_number"), bench.devices[0].id().value);
  EXPECT_EQ(cuda::code(hints.try_apply_at(second, Place::host())), "device_mismatch");
  EXPECT_EQ(cuda::code(hints.try_apply_at(Policy::prefer_host(), bench.devices[1].place())),
            "device_mismatch");
  EXPECT_EQ(ManagedCalls::take(), Calls{});
  EXPECT_TRUE(hints.apply_at(second, bench.devices[1].place()).report().is_sent());
  EXPECT_TRUE(hints.apply_at(Policy::prefer_host(), Place::host()).report().is_sent());
  EXPECT_TRUE(hints.apply_at(Policy::read_mostly(), Place::host()).report().is_sent());
}

// --- Rejected and skipped hints

TEST_P(HintsOfDriver, RefuseDevicesThatAreNotThere) {
  for (const Place place :
       {Place::device(DeviceId{99999}), Place::device(DeviceId{}),
        Place::device(DeviceId{static_cast<std::uint32_t>(-1)}), Place::file()}) {
    EXPECT_EQ(cuda::code(hints.try_prefetch(place, stream)), "invalid_device");
    EXPECT_EQ(cuda::code(hints.try_advise({Advice::set_preferred_location, place})),
              "invalid_device");
    EXPECT_EQ(cuda::code(hints.try_discard_prefetch(place, stream)), "invalid_device");
  }
  EXPECT_EQ(cuda::code(hints.try_apply(Policy::prefer_device(DeviceId{99999}))), "invalid_device");
  EXPECT_EQ(ManagedCalls::take(), Calls{});
}

TEST_P(HintsOfDriver, RefuseRangesThatLeaveTheMemory) {
  const Hints small(buffer.byte_view(0, 4096));
  constexpr std::size_t most = std::numeric_limits<std::size_t>::max();
  for (const HintRange range :
       {HintRange{4000, 200}, HintRange{most, 1}, HintRange{1, most}, HintRange{4097, 0}}) {
    const auto refused = small.try_prefetch(Place::host(), stream, range);
    ASSERT_EQ(cuda::code(refused), "invalid_view");
    EXPECT_EQ(refused.failure().number("offset"), range.offset_bytes);
    EXPECT_EQ(refused.failure().number("size"), range.bytes);
    EXPECT_EQ(refused.failure().number("extent"), 4096u);
    EXPECT_EQ(cuda::code(small.try_advise({Advice::set_read_mostly, {}}, range)), "invalid_view");
    EXPECT_EQ(cuda::code(small.try_apply(Policy::read_mostly(), range)), "invalid_view");
    EXPECT_EQ(cuda::code(small.try_query(range)), "invalid_view");
    EXPECT_EQ(cuda::code(small.try_discard(stream, range)), "invalid_view");
    EXPECT_EQ(cuda::code(small.try_effective_range(range)), "invalid_view");
  }
  EXPECT_EQ(ManagedCalls::take(), Calls{});
}

TEST_P(HintsOfDriver, RefuseStreamsThatTakeNoWork) {
  buffer.fill<std::uint8_t>(1, stream);
  StreamRef ended;
  {
    const Stream brief(bench.devices[0]);
    ended = brief;
  }
  for (const StreamRef none : {StreamRef(), ended}) {
    EXPECT_EQ(cuda::code(hints.try_prefetch(Place::host(), none)), "stream_misuse");
    EXPECT_FALSE(hints.try_discard(none));
    EXPECT_EQ(cuda::code(PrefetchPlan().add(buffer, Place::host()).try_execute(none)),
              "stream_misuse");
  }
  EXPECT_EQ(ManagedCalls::take(), Calls{});
  EXPECT_EQ(buffer.read_host<std::uint8_t>()[0], 1);
}

TEST_P(HintsOfDriver, SkipWhatHasNoBytes) {
  const std::uint64_t before = ManagedCalls::total;
  const HintRange none{0, 0}, end{8 * page, 0};
  for (const HintRange range : {none, end}) {
    EXPECT_EQ(hints.prefetch(Place::host(), stream, range).skipped, HintSkip::zero_bytes);
    EXPECT_EQ(hints.discard(stream, range).skipped, HintSkip::zero_bytes);
    EXPECT_EQ(hints.set_read_mostly(range).skipped, HintSkip::zero_bytes);
    EXPECT_EQ(hints.apply(Policy::prefer_host(), range).report().skipped, HintSkip::zero_bytes);
    EXPECT_FALSE(hints.query(range).preferred);
  }
  const Hints empty(managed(bench.devices[0], 0));
  EXPECT_EQ(empty.prefetch(Place::host(), stream).skipped, HintSkip::zero_bytes);
  EXPECT_EQ(ManagedCalls::total, before);
}

// --- Hints in force and their history

TEST_P(HintsOfDriver, RestoreWhatWasThereLevelByLevel) {
  const Place first = bench.devices[0].place(), second = bench.devices[1].place();
  hints.set_preferred_location(Place::host(), HintRange{0, 4 * page});
  hints.set_accessed_by(second, HintRange{2 * page, 2 * page});
  const auto preferred = [&](std::size_t at) {
    return hints.query(HintRange{at * page, page}).preferred;
  };
  const auto accessors = [&](std::size_t at) {
    return hints.query(HintRange{at * page, page}).accessed_by;
  };
  EXPECT_TRUE(hints.query().is_preferred_mixed);
  EXPECT_TRUE(hints.query().is_accessed_by_mixed);
  EXPECT_FALSE(hints.query().is_read_mostly_mixed);

  const HintUndo outer = hints.apply(Policy::prefer_device(bench.devices[0]).accessed_by(second));
  EXPECT_FALSE(hints.query().is_preferred_mixed);
  EXPECT_EQ(hints.query().accessed_by, std::vector<Place>{second});
  const HintUndo inner = hints.apply(Policy::prefer_device(bench.devices[1]).accessed_by(first),
                                     HintRange{page, 5 * page});
  EXPECT_EQ(preferred(0), first);
  EXPECT_EQ(preferred(1), second);
  EXPECT_EQ(accessors(1), (std::vector<Place>{first, second}));

  inner.restore();
  EXPECT_EQ(hints.query().preferred, first);
  EXPECT_FALSE(hints.query().is_preferred_mixed);
  EXPECT_EQ(hints.query().accessed_by, std::vector<Place>{second});
  EXPECT_FALSE(hints.query().is_accessed_by_mixed);
  outer.restore();
  for (std::size_t i = 0; i < 8; ++i) {
    EXPECT_EQ(preferred(i), i < 4 ? std::optional(Place::host()) : std::nullopt) << i;
    EXPECT_EQ(accessors(i), i == 2 || i == 3 ? std::vector{second} : std::vector<Place>{}) << i;
  }
  const HintUndo copies = hints.apply(Policy::read_mostly());
  EXPECT_TRUE(hints.query().is_read_mostly);
  copies.restore();
  EXPECT_FALSE(hints.query().is_read_mostly);
}

TEST_P(HintsOfDriver, LeaveNothingOfAPolicyThatIsRefusedHalfway) {
  hints.set_preferred_location(Place::host());
  ManagedCalls::fail(has_locations() ? "cuMemAdvise" : "cuMemAdvise_8000", 2);
  const auto refused =
      hints.try_apply(Policy::prefer_device(bench.devices[1]).accessed_by(Place::host()));
  EXPECT_EQ(cuda::code(refused), "driver");
  EXPECT_EQ(hints.query().preferred, Place::host());
  EXPECT_TRUE(hints.query().accessed_by.empty());
}

TEST_P(HintsOfDriver, TellWhereTheMemoryWasLastSent) {
  EXPECT_FALSE(hints.query().last_prefetch);
  hints.prefetch(bench.devices[0].place(), stream);
  stream.synchronize();
  EXPECT_EQ(hints.query().last_prefetch, bench.devices[0].place());
  hints.prefetch(Place::host(), stream, HintRange{0, 2 * page});
  stream.synchronize();
  EXPECT_TRUE(hints.query().is_last_prefetch_mixed);
  EXPECT_EQ(hints.query(HintRange{0, 2 * page}).last_prefetch, Place::host());
}

TEST_P(HintsOfDriver, GiveBytesUp) {
  buffer.fill<std::uint8_t>(7, stream);
  const bool can_discard = has_locations();
  EXPECT_EQ(hints.discard(stream, HintRange{0, page}).is_sent(), can_discard);
  // Elsewhere at least the pages go where they are needed.
  EXPECT_TRUE(
      hints.discard_prefetch(bench.devices[0].place(), stream, HintRange{page, page}).is_sent());
  EXPECT_EQ(ManagedCalls::take(),
            can_discard ? (Calls{"discard [0, 4096)", "discard and prefetch [4096, 8192) device 0"})
                        : (Calls{"prefetch [4096, 8192) ordinal 0"}));
  // Nobody reads them before they are written again, and the others are what they were.
  const auto refused = buffer.try_read_host<std::uint8_t>();
  ASSERT_EQ(cuda::code(refused), "never_written");
  EXPECT_EQ(refused.failure().number("begin"), 0u);
  EXPECT_EQ(refused.failure().number("end"), 2 * page);
  EXPECT_EQ(buffer.byte_view(2 * page, 6 * page).as<std::uint8_t>().read_host<std::uint8_t>()[5],
            7);
  buffer.fill<std::uint8_t>(8, stream);
  EXPECT_EQ(buffer.read_host<std::uint8_t>()[0], 8);
  const Hints strict(buffer, {.strict = true});
  EXPECT_EQ(cuda::code(strict.try_discard(stream)), can_discard ? "success" : "unsupported");
}

// --- Kinds of memory

TEST_P(HintsOfDriver, HoldTheMemoryTheyAreAbout) {
  buffer = Buffer();
  EXPECT_TRUE(hints.set_read_mostly().is_sent());
  EXPECT_TRUE(hints.query().is_read_mostly);
  const HintUndo undo = hints.apply(Policy::prefer_host());
  hints = Hints(managed(bench.devices[0], page));
  undo.restore();
  EXPECT_EQ(ManagedCalls::take().back(), "advise 4 [0, 32768) " + on_device(0));
}

TEST_P(HintsOfDriver, GoWithTheMemory) {
  hints.set_read_mostly();
  hints.set_preferred_location(Place::host(), HintRange{0, page});
  hints.set_accessed_by(bench.devices[1].place(), HintRange{page, page});
  hints.unset_accessed_by(Place::host());
  static_cast<void>(ManagedCalls::take());
  const std::uintptr_t address = buffer.address();
  buffer = Buffer();
  EXPECT_EQ(ManagedCalls::take(), Calls{});
  hints = Hints(managed(bench.devices[0], 0));
  // All of it, whatever part was told.
  EXPECT_EQ(ManagedCalls::take(),
            (Calls{"advise 2 [0, 32768) " + on_device(0), "advise 4 [0, 32768) " + on_device(0),
                   "advise 6 [0, 32768) " + on_device(1)}));
  // Whoever has the pages next finds nothing of it.
  const Hints next(managed(bench.devices[0], 8 * page));
  EXPECT_FALSE(next.query().is_read_mostly);
  EXPECT_EQ(next.buffer().address(), address);
}

TEST(Hints, AreForManagedMemoryOnly) {
  ManagedDevices bench;
  const Device& device = bench.devices[0];
  for (const MemoryKind kind : {MemoryKind::device, MemoryKind::pinned}) {
    const auto refused = Hints::try_make(Buffer(device, {64}, DType::u8, {.kind = kind}));
    ASSERT_EQ(cuda::code(refused), "invalid_argument");
    EXPECT_EQ(refused.failure().string("value"), name(kind));
  }
  EXPECT_EQ(cuda::code(Hints::try_make(Buffer())), "invalid_argument");
  EXPECT_THROW(Hints(Buffer(device, {64}, DType::u8)), InvalidArgument);
}

TEST(Hints, TakeMemoryOfOthersWithItsOwner) {
  ManagedDevices bench;
  const Device& device = bench.devices[0];
  void* const block = device.allocate(MemoryKind::managed, 2 * page);
  ManagedCalls::base = reinterpret_cast<std::uintptr_t>(block);
  EXPECT_EQ(cuda::code(Hints::try_over(device, block, 2 * page, nullptr)), "invalid_argument");
  bool is_kept = true;
  {
    const Hints hints = Hints::over(device, block, 2 * page,
                                    std::shared_ptr<void>(block, [&](void*) { is_kept = false; }));
    EXPECT_TRUE(hints.set_read_mostly().is_sent());
    EXPECT_EQ(ManagedCalls::take(), (Calls{"advise 1 [0, 8192) device 0"}));
    EXPECT_TRUE(is_kept);
  }
  EXPECT_FALSE(is_kept);
  // A device's own memory, page-locked memory and what nobody knows do not answer as managed.
  const auto owner = std::make_shared<int>(1);
  void* const plain = device.allocate(MemoryKind::device, page);
  std::vector<std::byte> unknown(64);
  EXPECT_EQ(cuda::code(Hints::try_over(device, plain, page, owner)), "invalid_argument");
  EXPECT_EQ(cuda::code(Hints::try_over(device, unknown.data(), 64, owner)), "invalid_argument");
  device.release(plain);
  device.release(block);
}

// --- Unsupported hints, and page alignment

TEST(Hints, SayWhichNeighboursSharePages) {
  ManagedDevices bench;
  const Hints hints(managed(bench.devices[0], 8 * page));
  EXPECT_EQ(hints.effective_range(), (HintRange{0, 8 * page, 0, 0}));
  EXPECT_EQ(hints.effective_range(HintRange{page, page}), (HintRange{page, page, 0, 0}));
  const HintRange inside{100, page, 100, page - 100};
  EXPECT_EQ(hints.effective_range(HintRange{100, page}), inside);
  EXPECT_EQ(hints.set_read_mostly(HintRange{100, page}).range, inside);
  EXPECT_EQ(hints.apply(Policy::prefer_host(), HintRange{100, page}).report().range, inside);
  const Stream stream(bench.devices[0]);
  EXPECT_EQ(hints.prefetch(Place::host(), stream, HintRange{100, page}).range, inside);
  EXPECT_EQ(hints.discard(stream, HintRange{100, page}).range, inside);
  EXPECT_EQ(hints.effective_range(HintRange{7, 0}), (HintRange{7, 0, 0, 0}));
}

TEST(Hints, AreSkippedWhereTheDeviceWouldNotHaveThem) {
  sim::Options options;
  options.concurrent_managed = false;
  const Device device = sim::open(options);
  const Stream stream(device);
  const Buffer buffer = managed(device, page);
  const Hints lenient(buffer), strict(buffer, {.strict = true});
  EXPECT_EQ(lenient.set_read_mostly().skipped, HintSkip::not_concurrent);
  EXPECT_EQ(lenient.prefetch(device.place(), stream).skipped, HintSkip::not_concurrent);
  EXPECT_EQ(lenient.apply(Policy::prefer_host()).report().skipped, HintSkip::not_concurrent);
  EXPECT_FALSE(buffer.is_allocated());
  for (const auto& refused :
       {cuda::code(strict.try_advise({Advice::set_read_mostly, {}})),
        cuda::code(strict.try_prefetch(device.place(), stream)),
        cuda::code(strict.try_apply(Policy::prefer_host())), cuda::code(strict.try_discard(stream)),
        cuda::code(lenient.try_query())}) {
    EXPECT_EQ(refused, "unsupported");
  }
  EXPECT_EQ(strict.try_prefetch(device.place(), stream).failure().string("what"),
            "concurrent_managed");
  EXPECT_EQ(lenient.try_query().failure().string("what"), "concurrent_managed");
  // The host device has pages to bring, and no advice to take.
  const Device host = open_device("host");
  const Hints on_host(managed(host, page));
  EXPECT_EQ(on_host.set_read_mostly().skipped, HintSkip::not_supported);
  EXPECT_EQ(on_host.try_query().failure().text(),
            "'host' lacks advice, so it received no hints on the memory and has none to return. "
            "Query only devices with the capability (Device::can).");
  EXPECT_TRUE(on_host.prefetch(Place::host(), host.default_stream()).is_sent());
  host.synchronize();
}

TEST(Hints, NameEveryReason) {
  EXPECT_STREQ(name(HintSkip::none), "sent");
  for (const HintSkip skip : {HintSkip::zero_bytes, HintSkip::default_policy,
                              HintSkip::not_concurrent, HintSkip::not_supported}) {
    EXPECT_TRUE(std::string(name(skip)).starts_with("skipped: "));
  }
}

TEST(Hints, MovePagesWhereTheyAreNeeded) {
  const Device device = sim::open({});
  const Stream stream(device);
  const Buffer buffer = managed(device, 4 * page);
  Buffer writable = buffer;
  { writable.discard_host<std::uint8_t>()[0] = 3; }
  const Hints hints(buffer);
  const auto home = [&] {
    return sim::residence(device, reinterpret_cast<const void*>(buffer.address()));
  };
  EXPECT_EQ(home(), Place::host());
  hints.prefetch(device.place(), stream);
  stream.synchronize();
  EXPECT_EQ(home(), device.place());
  const std::uint64_t moved = sim::migrated_bytes(device);
  EXPECT_EQ(moved, 4 * page);
  hints.discard_prefetch(Place::host(), stream);
  stream.synchronize();
  EXPECT_EQ(sim::migrated_bytes(device), moved);
  EXPECT_EQ(home(), Place::host());
  EXPECT_TRUE(sim::findings(device).empty());
}

}  // namespace
}  // namespace tern
