// Memory that is written by code that the checker cannot see. No finding may depend on such writes.

#include <gtest/gtest.h>

#include <cstdlib>
#include <span>
#include <vector>

#include "tern/backends/catalog.hpp"
#include "tern/backends/sim.hpp"
#include "tern/buffer/buffer.hpp"
#include "tern/buffer/copy.hpp"
#include "tern/memory/default_resource.hpp"

namespace tern {
namespace {

constexpr MemoryKind kinds[] = {MemoryKind::device, MemoryKind::pinned, MemoryKind::managed};

TEST(UnseenWrites, CopiesBetweenDevicesThatAreSimulatedApartAreQuiet) {
  for (const MemoryKind from : kinds) {
    for (const MemoryKind to : kinds) {
      for (int way = 0; way < 4; ++way) {
        const Device a = sim::open({.seed = 1}), b = sim::open({.seed = 2});
        const Stream on_a(a), on_b(b);
        Buffer source(a, {64}, DType::i32, {.resource = default_resource(a, from)});
        const Buffer copied(b, {64}, DType::i32, {.resource = default_resource(b, to)});
        source.fill(std::int32_t{7}, on_a);
        const auto where = [&] { return std::string(name(from)) + " to " + name(to).data(); };
        const StreamRef streams[] = {on_a, on_b, a.default_stream()};
        const bool is_done =
            way < 3 ? bool(try_copy(copied, source, streams[way])) : bool(try_copy(copied, source));
        ASSERT_TRUE(is_done) << where() << ", way " << way;
        std::vector<std::int32_t> got(64);
        ASSERT_TRUE(copied.try_copy_to(std::span(got))) << where() << ", way " << way;
        EXPECT_EQ(got, std::vector<std::int32_t>(64, 7)) << where() << ", way " << way;
        EXPECT_TRUE(sim::findings(a).empty() && sim::findings(b).empty());
      }
    }
  }
}

TEST(UnseenWrites, UnspecifiedContentsMayBeRead) {
  const Device device = sim::open({});
  const Buffer buffer(device, {64}, DType::i32, {.contents = Contents::unspecified});
  std::vector<std::int32_t> got(64);
  EXPECT_TRUE(buffer.try_copy_to(std::span(got)));
  EXPECT_TRUE(sim::findings(device).empty());
}

/// The last value that a copy of managed memory brings after the host wrote it in place.
int copied_in_place(const char* spec) {
  const Device device = open_device(spec);
  const Stream stream(device);
  auto* shared = static_cast<int*>(device.allocate(MemoryKind::managed, 1024 * sizeof(int)));
  for (int i = 0; i < 1024; ++i) shared[i] = i;
  std::vector<int> got(1024);
  stream.copy(got.data(), shared, 1024 * sizeof(int));
  stream.synchronize();
  device.release(shared);
  return got[1023];
}

TEST(UnseenWrites, TheHostMayWriteManagedMemoryInPlace) { EXPECT_EQ(copied_in_place("sim"), 1023); }

TEST(UnseenWrites, AlsoThatOfADriver) {
  // In a process of its own: the catalog would keep the driver for the other tests of this one.
  EXPECT_EXIT(std::_Exit(copied_in_place("cuda:0?driver=sim") == 1023 ? 0 : 1),
              testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace tern
