// Random programs over the places of one unified buffer, on every device there is, against an array
// that is always right.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdint>
#include <string>
#include <vector>

#include "support/copy_places.hpp"
#include "tern/backends/catalog.hpp"
#include "tern/backends/sim.hpp"
#include "tern/coherence/unified_buffer.hpp"

namespace tern::test {
namespace {

/// Gives how many bytes were read.
std::uint64_t run_program(const std::vector<Device>& devices, std::uint64_t seed, int steps) {
  std::uint64_t read = 0;
  std::vector<Stream> streams;
  for (const Device& one : devices) {
    streams.emplace_back(one);
    streams.emplace_back(one);
  }
  constexpr std::size_t size = 256;
  UnifiedBuffer<std::uint8_t> buffer(Shape{size},
                                     {.device = devices[0],
                                      .pinned = seed % 3 == 0 ? Pinned::required : Pinned::prefer,
                                      .merge_below_bytes = seed % 2 == 0 ? 0u : 32u,
                                      .checked = seed % 5 == 0,
                                      .compare = seed % 11 == 0,
                                      .guard = seed % 7 == 0});
  std::array<int, size> truth;
  truth.fill(-1);
  std::uint64_t state = seed * 77;
  const auto number = [&](std::size_t below) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return static_cast<std::size_t>(state >> 33) % below;
  };
  for (int i = 0; i < steps; ++i) {
    const std::size_t begin = number(size), count = 1 + number(size - begin);
    const bool is_written = std::all_of(truth.begin() + static_cast<std::ptrdiff_t>(begin),
                                        truth.begin() + static_cast<std::ptrdiff_t>(begin + count),
                                        [](int value) { return value >= 0; });
    const StreamRef stream = streams[number(streams.size())];
    UnifiedView<std::uint8_t> part = buffer.view(begin, count);
    const auto write = [&](std::size_t from, std::size_t to, std::uint8_t value) {
      for (std::size_t k = from; k < to; ++k) truth[begin + k] = value;
    };
    const auto value = static_cast<std::uint8_t>(number(256));
    const std::size_t middle = number(count + 1);
    switch (number(11)) {
      case 9:
      case 10: {
        // Two at once, beside each other, in any order.
        if (middle == 0 || middle == count) break;
        const StreamRef second = streams[number(streams.size())];
        DeviceLease<std::uint8_t> a = part.view(0, middle).discard_device(stream);
        DeviceLease<std::uint8_t> b = part.view(middle, count - middle).discard_device(second);
        if (number(2) == 0) stream.fill(a.data(), a.size(), value);
        second.fill(b.data(), b.size(), value);
        if (number(2) == 0) b.close();
        stream.fill(a.data(), a.size(), value);
        a.close();
        write(0, count, value);
        break;
      }
      case 0: {
        if (!is_written) break;
        const HostLease<const std::uint8_t> lease = part.read_host();
        for (std::size_t k = 0; k < count; ++k) EXPECT_EQ(lease[k], truth[begin + k]);
        read += count;
        break;
      }
      case 1: {
        const HostLease<std::uint8_t> lease = part.rw_host();
        for (std::size_t k = 0; k < count; ++k) {
          EXPECT_TRUE(truth[begin + k] < 0 || lease[k] == truth[begin + k]);
        }
        std::fill_n(lease.data(), middle, value);
        write(0, middle, value);
        for (std::size_t k = middle; k < count; ++k) {
          if (truth[begin + k] < 0) truth[begin + k] = lease[k] = 1;
        }
        break;
      }
      case 2:
        std::ranges::fill(part.discard_host(), value);
        write(0, count, value);
        break;
      case 3: {
        if (!is_written) break;
        std::vector<std::uint8_t> seen(count);
        const DeviceLease<const std::uint8_t> lease = part.read_device(stream);
        stream.copy(seen.data(), lease.data(), count);
        stream.synchronize();
        for (std::size_t k = 0; k < count; ++k) EXPECT_EQ(seen[k], truth[begin + k]);
        read += count;
        break;
      }
      case 4: {
        if (!is_written) break;
        const DeviceLease<std::uint8_t> lease = part.rw_device(stream);
        stream.fill(lease.data(), middle, value);
        write(0, middle, value);
        break;
      }
      case 5: {
        const DeviceLease<std::uint8_t> lease = part.discard_device(stream);
        stream.fill(lease.data(), count, value);
        write(0, count, value);
        break;
      }
      case 6:
        if (number(3) == 0) {
          buffer.drop_host();
        } else {
          buffer.drop_device(devices[number(devices.size())]);
        }
        break;
      case 7:
        if (is_written) part.prefetch(stream);
        break;
      default:
        part.fill(value, stream);
        write(0, count, value);
        break;
    }
    if (!buffer.check()) ADD_FAILURE() << "the directory is not sound";
    if (testing::Test::HasFailure()) {
      ADD_FAILURE() << "seed " << seed << ", step " << i;
      return read;
    }
  }
  return read;
}

TEST(UnifiedOracle, FindsNoWrongByteUnderRandomSchedules) {
  std::uint64_t read = 0;
  for (std::uint64_t seed = 1; seed <= 150 && !testing::Test::HasFailure(); ++seed) {
    const std::vector<Device> devices = sim::open_peers(
        {.seed = seed, .policy = sim::Policy::random}, static_cast<unsigned>(1 + seed % 4));
    read += run_program(devices, seed, 250);
    for (const Device& one : devices) {
      one.synchronize();
      expect_no_findings(one);
    }
  }
  EXPECT_GT(read, 100000u);
}

/// Leases of several streams that are open at the same time, and close in any order.
void run_held_leases(const std::vector<Device>& devices, std::uint64_t seed, int steps) {
  struct Held {
    std::size_t begin = 0, count = 0;
    StreamRef stream = {};
    DeviceLease<int> writing = {};
    DeviceLease<const int> reading = {};
  };
  constexpr std::size_t size = 64;
  std::vector<Stream> streams;
  for (const Device& one : devices) {
    for (int i = 0; i < 3; ++i) streams.emplace_back(one);
  }
  UnifiedBuffer<int> buffer(Shape{size}, {.device = devices[0], .checked = seed % 4 == 0});
  std::vector<int> truth(size, 0);
  buffer.copy_from(truth);
  std::vector<Held> held;
  std::uint64_t state = seed * 77;
  const auto number = [&](std::size_t below) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return static_cast<std::size_t>(state >> 33) % below;
  };
  const auto expect_truth = [&](const int* seen, std::size_t begin, std::size_t count) {
    for (std::size_t k = 0; k < count; ++k) ASSERT_EQ(seen[k], truth[begin + k]) << begin + k;
  };
  const auto write = [&](Held& one, int value) {
    one.stream.fill(one.writing.data(), one.count, value);
    std::fill_n(truth.begin() + static_cast<std::ptrdiff_t>(one.begin), one.count, value);
  };
  for (int i = 0; i < steps && !testing::Test::HasFailure(); ++i) {
    const std::size_t begin = 8 * number(8), count = std::min(8 * (1 + number(3)), size - begin);
    const StreamRef stream = streams[number(streams.size())];
    UnifiedView<int> part = buffer.view(begin, count);
    // What collides with the others is refused, and that is fine.
    switch (number(9)) {
      case 0:
      case 1:
        if (Result<DeviceLease<int>> lease = part.try_rw_device(stream)) {
          held.push_back({begin, count, stream, *std::move(lease)});
          if (number(2) == 0) write(held.back(), i);
        }
        break;
      case 2:
      case 3:
        if (Result<DeviceLease<const int>> lease = part.try_read_device(stream)) {
          held.push_back({begin, count, stream, {}, *std::move(lease)});
        }
        break;
      case 4:
        if (const Result<HostLease<const int>> lease = part.try_read_host()) {
          expect_truth(lease->data(), begin, count);
        }
        break;
      case 5:
        if (number(2) == 0) {
          static_cast<void>(buffer.try_drop_device(devices[number(devices.size())]));
        } else if (const Result<UnifiedBuffer<int>> copy = buffer.try_clone(stream)) {
          EXPECT_EQ(copy->to_vector(), truth);
        }
        break;
      default: {
        if (held.empty()) break;
        const std::size_t which = number(held.size());
        Held& one = held[which];
        if (one.writing.is_open()) {
          if (number(2) == 0) write(one, i);
          if (number(4) == 0) {
            one.reading = std::move(one.writing).downgrade();
            break;
          }
        } else {
          std::vector<int> seen(one.count);
          one.stream.copy(seen.data(), one.reading.data(), one.count * sizeof(int));
          one.stream.synchronize();
          expect_truth(seen.data(), one.begin, one.count);
        }
        held.erase(held.begin() + static_cast<std::ptrdiff_t>(which));
      }
    }
  }
  held.clear();
  EXPECT_EQ(buffer.to_vector(), truth);
  if (testing::Test::HasFailure()) ADD_FAILURE() << "seed " << seed;
}

TEST(UnifiedOracle, FindsNoWrongByteUnderLeasesThatAreHeld) {
  for (std::uint64_t seed = 1; seed <= 400 && !testing::Test::HasFailure(); ++seed) {
    const std::vector<Device> devices =
        sim::open_peers({.seed = seed}, static_cast<unsigned>(1 + seed % 2));
    run_held_leases(devices, seed, 120);
    for (const Device& one : devices) {
      one.synchronize();
      expect_no_findings(one);
    }
  }
}

// --- The same programs elsewhere

struct Field {
  std::string name;
  std::vector<std::string> specs;
};

class UnifiedOnDevices : public testing::TestWithParam<Field> {
 protected:
  void SetUp() override {
    for (const std::string& spec : GetParam().specs) devices.push_back(open_device(spec));
  }
  std::vector<Device> devices;
};

std::vector<Field> fields() {
  std::vector<Field> all = {
      {"host", {"host"}},
      {"sim", {"sim:0?seed=21"}},
      {"sim_peers_and_host", {"sim:0?seed=22", "sim:1?seed=22", "host"}},
      {"fake_cuda", {"cuda:0?driver=sim"}},
      {"fake_cuda_peers_and_sim", {"cuda:0?driver=sim", "cuda:1?driver=sim", "sim:0?seed=23"}}};
  for (const BackendListing& backend : list_backends()) {
    if (backend.name != "opencl" && backend.name != "cuda") continue;
    for (const std::string& spec : backend.devices) {
      std::string name = spec;
      std::ranges::replace_if(
          name, [](char c) { return std::isalnum(c) == 0; }, '_');
      all.push_back({name, {spec}});
      all.push_back({name + "_and_sim", {spec, "sim:0?seed=24"}});
    }
  }
  return all;
}

TEST_P(UnifiedOnDevices, RandomProgramsFindNoWrongByte) {
  std::uint64_t read = 0;
  for (std::uint64_t seed = 1; seed <= 6 && !HasFailure(); ++seed) {
    read += run_program(devices, seed, 120);
    run_held_leases(devices, seed, 120);
  }
  EXPECT_GT(read, 2000u);
  for (const Device& one : devices) {
    one.synchronize();
    expect_no_findings(one);
  }
}

/// What moved, whether or not it had to be copied.
std::string logical_log(const Device& device) {
  const Stream s(device);
  UnifiedBuffer<int> buffer(Shape{40000}, {.device = device, .merge_below_bytes = 0});
  std::ranges::fill(buffer.discard_host(), 1);
  static_cast<void>(buffer.read_device(s));
  {
    const DeviceLease<int> lease = buffer.view(100, 200).rw_device(s);
    s.fill(lease.data(), lease.size(), 2);
  }
  EXPECT_EQ(buffer.read_host()[299], 2);
  std::ranges::fill(buffer.view(0, 150).rw_host(), 3);
  buffer.sync_to_device();
  buffer.view(1000, 10).fill(4, s);
  EXPECT_EQ(buffer.load_host(0), 3);
  buffer.drop_device();
  EXPECT_EQ(buffer.load_host(1009), 4);
  EXPECT_EQ(buffer.load_host(299), 2);
  std::string text;
  for (const Transfer& one : buffer.transfers()) {
    text += std::string(name(one.reason)) + (one.to.is_host() ? " to host " : " to device ") +
            std::to_string(one.begin) + "+" + std::to_string(one.bytes) + "\n";
  }
  return text + std::string(name(buffer.state()));
}

TEST_P(UnifiedOnDevices, TheSameProgramHasTheSameLog) {
  const std::string expected = logical_log(sim::open({}));
  EXPECT_NE(expected.find("drop to host 4000+40"), std::string::npos) << expected;
  for (const Device& one : devices) EXPECT_EQ(logical_log(one), expected) << one.spec();
}

INSTANTIATE_TEST_SUITE_P(Devices, UnifiedOnDevices, testing::ValuesIn(fields()),
                         [](const auto& one) { return one.param.name; });

}  // namespace
}  // namespace tern::test
