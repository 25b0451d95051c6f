// Copies from every kind of memory to every other, on streams of every device: the chosen route,
// and all bits arrive.

#include "buffer/copy_route.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "support/copy_places.hpp"
#include "tern/backends/catalog.hpp"
#include "tern/backends/sim.hpp"
#include "tern/buffer/foreign.hpp"
#include "tern/device/stream.hpp"

namespace tern::test {
namespace {

constexpr std::byte guard{0xA5};

std::vector<CopyPlace> join(std::initializer_list<std::vector<CopyPlace>> lists) {
  std::vector<CopyPlace> all;
  for (const auto& list : lists) all.insert(all.end(), list.begin(), list.end());
  return all;
}

char letter(const Result<CopyRoute>& route) {
  if (route) return name(*route)[0];
  return route.failure().code() == ErrorCode::device_mismatch ? 'x'
         : route.failure().code() == ErrorCode::read_only     ? 'r'
                                                              : '?';
}

TEST(CopyRoute, DependsOnKindsAndDevices) {
  const Device host = open_device("host");
  const std::vector<Device> peers = sim::open_peers({}, 2);
  const std::vector<CopyPlace> places =
      join({{{"H", host, MemoryKind::host}, {"F", host, MemoryKind::file}},
            places_of(peers[0], "0"),
            places_of(peers[1], "1")});
  std::vector<Buffer> buffers;
  for (const CopyPlace& place : places) buffers.push_back(place.holding(Bytes(16)));
  // Rows are destinations, columns sources, both in the order H F D0 P0 M0 V0 D1 P1 M1 V1.
  const auto table_of = [&](const Device& device) {
    std::string table;
    for (const Buffer& to : buffers) {
      for (const Buffer& from : buffers) table += letter(try_copy_route(to, from, device));
      table += '\n';
    }
    return table;
  };
  EXPECT_EQ(table_of(host),
            "dfhdhhhdhh\n"
            "rrrrrrrrrr\n"
            "hfxxxxxxxx\n"
            "dfxdxxxdxx\n"
            "hfxxxxxxxx\n"
            "hfxxxxxxxx\n"
            "hfxxxxxxxx\n"
            "dfxdxxxdxx\n"
            "hfxxxxxxxx\n"
            "hfxxxxxxxx\n");
  EXPECT_EQ(table_of(peers[0]),
            "dfddddxdxx\n"
            "rrrrrrrrrr\n"
            "dfddddpdsp\n"
            "dfddddhdhh\n"
            "dfddddsdss\n"
            "dfddddpdsp\n"
            "xxphspxxxx\n"
            "dfddddxdxx\n"
            "xxshssxxxx\n"
            "xxphspxxxx\n");
  EXPECT_EQ(table_of(peers[1]),
            "dfxdxxdddd\n"
            "rrrrrrrrrr\n"
            "xxxxxxphsp\n"
            "dfxdxxdddd\n"
            "xxxxxxshss\n"
            "xxxxxxphsp\n"
            "dfpdspdddd\n"
            "dfhdhhdddd\n"
            "dfsdssdddd\n"
            "dfpdspdddd\n");
}

TEST(CopyRoute, NamesEveryRoute) {
  EXPECT_EQ(name(CopyRoute::direct), "direct");
  EXPECT_EQ(name(CopyRoute::handed_over), "handed_over");
  EXPECT_EQ(name(CopyRoute::peer), "peer");
  EXPECT_EQ(name(CopyRoute::staged), "staged");
  EXPECT_EQ(name(CopyRoute::from_file), "from_file");
}

TEST(CopyRoute, IsStagedBetweenDevicesOfTwoBackendsAndWithoutPeerCopies) {
  const Device sim = sim::open({});
  const Device cuda = open_device("cuda?driver=sim");
  const Buffer there(cuda, {16}, DType::byte), here(sim, {16}, DType::byte);
  EXPECT_EQ(try_copy_route(there, here, cuda).value(), CopyRoute::staged);
  EXPECT_EQ(try_copy_route(there, here, sim).value(), CopyRoute::staged);
}

TEST(CopyRoute, NamesBothDevicesForAStreamOfAThird) {
  const Device host = open_device("host"), sim = sim::open({}), other = sim::open({});
  const Buffer to(sim, {16}, DType::byte), from(host, {16}, DType::byte);
  const Result<CopyRoute> refused = try_copy_route(to, from, other);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.failure().code(), ErrorCode::device_mismatch);
  EXPECT_EQ(refused.failure().string("a"), sim.spec());
  EXPECT_EQ(refused.failure().string("b"), "host");
  EXPECT_EQ(try_copy_route(Buffer(), from, sim).failure().code(), ErrorCode::not_allocated);
  EXPECT_EQ(try_copy_route(to, Buffer(), sim).failure().code(), ErrorCode::not_allocated);
}

// --- All bits arrive

struct Group {
  std::string name;
  std::vector<std::string> specs;
};

std::vector<Group> groups() {
  std::vector<Group> all = {{"sim", {"sim:0", "sim:1"}},
                            {"sim_without_host", {"sim:0?seed=3&concurrent=off"}},
                            {"fake_cuda", {"cuda:0?driver=sim"}},
                            {"sim_and_fake_cuda", {"sim:0?seed=4", "cuda?driver=sim"}}};
  for (const BackendListing& backend : list_backends()) {
    if (backend.name != "opencl" && backend.name != "cuda") continue;
    for (const std::string& spec : backend.devices) {
      all.push_back({backend.name + std::to_string(all.size()), {spec}});
      all.push_back(
          {backend.name + "_and_sim" + std::to_string(all.size()), {spec, "sim:0?seed=5"}});
    }
    if (backend.devices.size() > 1) {
      all.push_back({backend.name + "_pair", {backend.devices[0], backend.devices[1]}});
    }
  }
  return all;
}

class CopyMatrix : public testing::TestWithParam<Group> {
 protected:
  void SetUp() override {
    devices.push_back(open_device("host"));
    for (const std::string& spec : GetParam().specs) devices.push_back(open_device(spec));
    places.push_back({"F", devices[0], MemoryKind::file});
    for (std::size_t i = 0; i < devices.size(); ++i) {
      for (CopyPlace& place : places_of(devices[i], std::to_string(i))) {
        places.push_back(std::move(place));
      }
      streams.emplace_back(devices[i]);
    }
  }
  void TearDown() override {
    for (const Device& device : devices) {
      device.synchronize();
      expect_no_findings(device);
    }
    EXPECT_EQ(reclaim_deferred().count, 0u);
  }

  /// A source from an odd place to another, and nothing beside it.
  template <class Copy>
  void expect_arrives(const CopyPlace& to, const CopyPlace& from, const Bytes& in, Copy copy) {
    Bytes around(in.size() + 8, guard);
    Buffer destination = to.holding(around);
    std::copy(in.begin(), in.end(), around.begin() + 3);
    Bytes shifted(in.size() + 5);
    std::copy(in.begin(), in.end(), shifted.begin() + 5);
    const Buffer source = from.holding(shifted);
    copy(destination.byte_view(3, in.size()), source.byte_view(5, in.size()));
    EXPECT_TRUE(bytes_of(destination) == around) << from.name << " to " << to.name;
  }

  std::vector<Device> devices;
  std::vector<CopyPlace> places;
  std::vector<Stream> streams;
};

INSTANTIATE_TEST_SUITE_P(EveryGroup, CopyMatrix, testing::ValuesIn(groups()),
                         [](const auto& group) { return group.param.name; });

TEST_P(CopyMatrix, CopiesEveryBitOnEveryPossibleStream) {
  const Bytes in = every_pair_of_bytes();
  std::size_t copied = 0;
  for (const CopyPlace& to : places) {
    if (to.kind == MemoryKind::file) continue;
    for (const CopyPlace& from : places) {
      for (const Stream& stream : streams) {
        if (!try_copy_route(to.make(1), from.holding(Bytes(1)), stream.device())) continue;
        ++copied;
        expect_arrives(to, from, in, [&](const Buffer& destination, const Buffer& source) {
          const Result<Mark> mark = try_copy(destination, source, stream);
          ASSERT_TRUE(mark) << from.name << " to " << to.name << " on " << stream.device().spec()
                            << ": " << mark.failure().text();
          EXPECT_EQ(mark->stream, stream.id());
          Device::wait(*mark);
        });
      }
    }
  }
  EXPECT_GE(copied, places.size() * (places.size() - 1));
}

TEST_P(CopyMatrix, CopiesEveryBitBlocking) {
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{63}, 64 * kib + 1}) {
    const Bytes in = counted(bytes);
    for (const CopyPlace& to : places) {
      if (to.kind == MemoryKind::file) continue;
      for (const CopyPlace& from : places) {
        expect_arrives(to, from, in, [&](const Buffer& destination, const Buffer& source) {
          const Result<void> done = try_copy(destination, source);
          ASSERT_TRUE(done) << from.name << " to " << to.name << ": " << done.failure().text();
        });
      }
    }
  }
}

TEST_P(CopyMatrix, RejectsFilesAsDestination) {
  for (const CopyPlace& from : places) {
    const Buffer file = places[0].holding(Bytes(16)), source = from.holding(Bytes(16));
    EXPECT_EQ(try_copy(file, source).failure().code(), ErrorCode::read_only);
    EXPECT_EQ(try_copy(file, source, streams[0]).failure().code(), ErrorCode::read_only);
  }
}

TEST_P(CopyMatrix, FillsAndClonesEveryWritableKind) {
  for (const CopyPlace& place : places) {
    if (place.kind == MemoryKind::file) continue;
    const Stream stream(place.device);
    Buffer buffer = place.make(9 * 8);
    const Result<Mark> mark = buffer.as<double>().try_fill(-2.5, stream);
    ASSERT_TRUE(mark) << place.name << ": " << mark.failure().text();
    const Result<Buffer> clone = buffer.as<double>().try_clone(stream);
    ASSERT_TRUE(clone) << place.name << ": " << clone.failure().text();
    EXPECT_EQ(clone->to_vector<double>(), std::vector<double>(9, -2.5)) << place.name;
    EXPECT_NE(clone->id(), buffer.id());
  }
}

}  // namespace
}  // namespace tern::test
