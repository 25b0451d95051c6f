// Random programs on one unified buffer with several places, on every device, compared with a plain
// array.

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <chrono>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <ostream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "support/copy_places.hpp"
#include "support/gate.hpp"
#include "support/thorough.hpp"
#include "support/thread.hpp"
#include "tern/backends/catalog.hpp"
#include "tern/backends/sim.hpp"
#include "tern/coherence/unified_buffer.hpp"

namespace tern::test {
namespace {

// --- The directory, checked by the bytes

struct Seen {
  std::uint64_t programs = 0, operations = 0, read_bytes = 0, wrong_bytes = 0;

  Seen& operator+=(const Seen& other) {
    programs += other.programs;
    operations += other.operations;
    read_bytes += other.read_bytes;
    wrong_bytes += other.wrong_bytes;
    return *this;
  }
  void print(const char* what) const {
    std::printf("counted: %s: %" PRIu64 " seeds, %" PRIu64 " operations, %" PRIu64
                " bytes read, %" PRIu64 " wrong\n",
                what, programs, operations, read_bytes, wrong_bytes);
  }
};

/// Sizes are nobody's favourites: none of them but 0 is of whole words, and some are of two pages.
constexpr std::size_t size_step = 7, max_bytes = 8192, sizes = max_bytes / size_step + 1;

/// A buffer, what each of its bytes should be, and a generator that decides what is done next. What
/// it decides depends on the seed, and on nothing that a device says.
class RandomProgram {
 public:
  RandomProgram(const std::vector<Device>& devices, std::uint64_t seed)
      : devices_(devices),
        seed_(seed),
        state_(seed * 77),
        truth_(seed * size_step % (max_bytes + size_step), nothing) {
    for (const Device& one : devices) {
      streams_.emplace_back(one);
      streams_.emplace_back(one);
    }
    // What uses the host's memory has no pages of its own to lock or to guard.
    const bool has_pages = !devices[0].can(Capability::host_access);
    const bool is_pinned = has_pages && seed % 3 == 0;
    buffer_ = UnifiedBuffer<std::uint8_t>(Shape{truth_.size()},
                                          {.device = devices[0],
                                           .pinned = is_pinned ? Pinned::required : Pinned::prefer,
                                           .coalesce_gap_bytes = seed % 2 == 0 ? 0u : 32u,
                                           .checked = seed % 5 == 0,
                                           .compare = seed % 11 == 0,
                                           .guard = has_pages && !is_pinned && seed % 7 == 0});
    seen_.programs = 1;
  }

  /// So many more. Stops at the first failure, and says where.
  void run(int steps) {
    for (int i = 0; i < steps && !testing::Test::HasFailure(); ++i) {
      try {
        step();
      } catch (const Error& error) {
        ADD_FAILURE() << error.text();
      }
      ++seen_.operations;
      if (!buffer_.check()) ADD_FAILURE() << "the directory is not sound";
      if (testing::Test::HasFailure()) {
        ADD_FAILURE() << "seed " << seed_ << ", step " << seen_.operations;
      }
    }
  }
  [[nodiscard]] const Seen& seen() const { return seen_; }
  [[nodiscard]] const UnifiedBuffer<std::uint8_t>& buffer() const { return buffer_; }

 private:
  using Byte = std::uint8_t;
  static constexpr int nothing = -1;  // of a byte that nobody wrote

  struct Part {
    std::size_t begin = 0, count = 0;
  };

  [[nodiscard]] std::size_t number(std::size_t below) {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<std::size_t>(state_ >> 33) % below;
  }
  [[nodiscard]] Byte any_value() { return static_cast<Byte>(number(256)); }
  [[nodiscard]] StreamRef any_stream() { return streams_[number(streams_.size())]; }
  [[nodiscard]] const Device& any_device() { return devices_[number(devices_.size())]; }
  /// Of so many; not empty if there is anything.
  [[nodiscard]] Part any_part(std::size_t of) {
    if (of == 0) return {};
    const std::size_t begin = number(of);
    return {begin, 1 + number(of - begin)};
  }
  [[nodiscard]] bool is_written(Part part) const {
    return std::none_of(at(part.begin), at(part.begin + part.count),
                        [](int value) { return value == nothing; });
  }
  [[nodiscard]] std::vector<int>::const_iterator at(std::size_t index) const {
    return truth_.begin() + static_cast<std::ptrdiff_t>(index);
  }
  void write(std::size_t begin, std::size_t count, int value) {
    std::fill_n(truth_.begin() + static_cast<std::ptrdiff_t>(begin), count, value);
  }
  /// Where nobody wrote, a byte may be anything.
  void expect_right(const Byte* seen, Part part) {
    for (std::size_t k = 0; k < part.count; ++k) {
      const int right = truth_[part.begin + k];
      if (right == nothing) continue;
      ++seen_.read_bytes;
      if (seen[k] == right) continue;
      if (seen_.wrong_bytes++ == 0) {
        ADD_FAILURE() << "byte " << part.begin + k << " of " << truth_.size() << " is "
                      << int{seen[k]} << ", and should be " << right;
      }
    }
  }
  void read_on_host(Part part) {
    const HostLease<const Byte> lease = buffer_.slice(part.begin, part.count).read_host();
    expect_right(lease.data(), part);
  }
  void read_on_device(Part part, StreamRef stream) {
    std::vector<Byte> seen(part.count);
    const DeviceLease<const Byte> lease = buffer_.slice(part.begin, part.count).read_device(stream);
    stream.copy(seen.data(), lease.data(), part.count);
    stream.synchronize();
    expect_right(seen.data(), part);
  }

  void step() {
    // A view of a view of the whole.
    const Part outer = any_part(truth_.size()), inner = any_part(outer.count);
    const Part part{outer.begin + inner.begin, inner.count};
    UnifiedView<Byte> view =
        buffer_.slice(outer.begin, outer.count).slice(inner.begin, inner.count);
    const StreamRef stream = any_stream();
    const Byte value = any_value();
    const std::size_t some = number(part.count + 1);
    switch (number(15)) {
      case 0:
        if (is_written(part)) read_on_host(part);
        break;
      case 1: {
        const HostLease<Byte> lease = view.rw_host();
        expect_right(lease.data(), part);
        std::fill_n(lease.data(), some, value);
        write(part.begin, some, value);
        for (std::size_t k = some; k < part.count; ++k) {
          int& right = truth_[part.begin + k];
          if (right == nothing) right = lease[k] = 1;
        }
        break;
      }
      case 2:
        std::ranges::fill(view.discard_host(), value);
        write(part.begin, part.count, value);
        break;
      case 3:
        if (is_written(part)) read_on_device(part, stream);
        break;
      case 4: {
        if (!is_written(part)) break;
        const DeviceLease<Byte> lease = view.rw_device(stream);
        stream.fill(lease.data(), some, value);
        write(part.begin, some, value);
        break;
      }
      case 5: {
        DeviceLease<Byte> lease = view.discard_device(stream);
        stream.fill(lease.data(), part.count, value);
        write(part.begin, part.count, value);
        // Of which only the first may be kept.
        if (number(8) != 0) break;
        lease.commit(some);
        write(part.begin + some, part.count - some, nothing);
        break;
      }
      case 6:
        if (number(3) == 0) {
          buffer_.drop_host();
        } else {
          buffer_.drop_device(any_device());
        }
        break;
      case 7:
        if (!is_written(part)) break;
        if (number(4) == 0) {
          view.prefetch_host();
        } else {
          view.prefetch(stream);
        }
        break;
      case 8:
        view.fill(value, stream);
        write(part.begin, part.count, value);
        break;
      case 9:
      case 10:
        write_two_at_once(view, part, some, value);
        break;
      case 11:
        if (part.count == 0) break;
        if (number(2) == 0) {
          view.store_host(0, value);
          truth_[part.begin] = value;
        } else if (truth_[part.begin] != nothing) {
          const Byte seen = view.load_host(0);
          expect_right(&seen, {part.begin, 1});
        }
        break;
      case 12:
        if (number(4) == 0) resize();
        break;
      default:
        escape(view, part);
        break;
    }
  }

  /// Beside each other, in any order.
  void write_two_at_once(UnifiedView<Byte>& view, Part part, std::size_t middle, Byte value) {
    if (middle == 0 || middle == part.count) return;
    const StreamRef first = any_stream(), second = any_stream();
    DeviceLease<Byte> a = view.slice(0, middle).discard_device(first);
    DeviceLease<Byte> b = view.slice(middle, part.count - middle).discard_device(second);
    if (number(2) == 0) first.fill(a.data(), a.size(), value);
    second.fill(b.data(), b.size(), value);
    if (number(2) == 0) b.close();
    first.fill(a.data(), a.size(), value);
    a.close();
    write(part.begin, part.count, value);
  }

  void resize() {
    const std::size_t bytes = size_step * number(sizes);
    const StreamRef stream = number(2) == 0 ? any_stream() : StreamRef();
    if (number(4) == 0) {
      buffer_.resize_discard(bytes);
      truth_.clear();
    } else {
      buffer_.resize_keep(bytes, stream);
    }
    truth_.resize(bytes, nothing);
  }

  /// A pointer that leaves, through which its holder writes while others read; and what he commits.
  void escape(UnifiedView<Byte>& view, Part part) {
    const bool is_on_host = number(2) == 0;
    const StreamRef own = any_stream();
    if (number(4) == 0) {
      export_for_reading(view, part, is_on_host, own);
      return;
    }
    UntrackedLease<Byte> pointer = is_on_host ? view.export_host() : view.export_device(own);
    bool is_exact = false;
    const auto write_through_it = [&](Part some) {
      const Byte value = any_value();
      if (is_on_host) {
        // Whoever read it for others has been waited for: that is up to the holder.
        std::fill_n(pointer.data() + some.begin, some.count, value);
      } else {
        own.fill(pointer.data() + some.begin, some.count, value);
      }
      write(part.begin + some.begin, some.count, value);
      // Without a word all of it is copied again and again; from the first on only what was named.
      if (!is_exact && number(2) == 0) return;
      pointer.commit(some.begin, some.count, is_on_host ? StreamRef() : own);
      is_exact = true;
    };
    if (!is_written(part)) write_through_it({0, part.count});
    for (std::size_t turns = 1 + number(3); turns > 0; --turns) {
      if (number(4) != 0) write_through_it(any_part(part.count));
      const Part other = any_part(truth_.size());
      if (!is_written(other)) continue;
      if (number(2) == 0) {
        read_on_host(other);
      } else {
        read_on_device(other, any_stream());
      }
      if (number(2) == 0) {
        buffer_.slice(other.begin, other.count).prefetch(any_stream());
        buffer_.synchronize();
      }
      expect_refused_or_harmless(part);
    }
  }
  void export_for_reading(UnifiedView<Byte>& view, Part part, bool is_on_host, StreamRef own) {
    if (!is_written(part)) return;
    std::vector<Byte> seen(part.count);
    UntrackedLease<const Byte> pointer =
        is_on_host ? view.export_read_host() : view.export_read_device(own);
    expect_refused_or_harmless(part);
    if (is_on_host) {
      expect_right(pointer.data(), part);
    } else {
      own.copy(seen.data(), pointer.data(), part.count);
      own.synchronize();
      expect_right(seen.data(), part);
    }
  }
  /// What nobody may do to bytes whose pointer has left.
  void expect_refused_or_harmless(Part part) {
    if (part.count == 0) return;
    UnifiedView<Byte> first = buffer_.slice(part.begin, 1);
    const auto expect_conflict = [](const auto& result) {
      ASSERT_FALSE(result);
      EXPECT_EQ(name(result.failure().code()), "access_conflict") << result.failure().text();
    };
    switch (number(6)) {
      case 0:
        expect_conflict(first.try_rw_host());
        break;
      case 1:
        expect_conflict(first.try_discard_device(any_stream()));
        break;
      case 2:
        expect_conflict(buffer_.try_resize_keep(truth_.size() + size_step));
        break;
      case 3:
        expect_conflict(first.try_fill(1));
        break;
      case 4:
        // The copies of other places may go.
        if (const Result<void> dropped = buffer_.try_drop_device(any_device()); !dropped) {
          expect_conflict(dropped);
        }
        break;
      default:
        break;
    }
  }

  const std::vector<Device> devices_;
  const std::uint64_t seed_;
  std::uint64_t state_;
  std::vector<int> truth_;
  std::vector<Stream> streams_;
  UnifiedBuffer<Byte> buffer_;
  Seen seen_;
};

Seen run_program(const std::vector<Device>& devices, std::uint64_t seed, int steps) {
  RandomProgram program(devices, seed);
  program.run(steps);
  return program.seen();
}

/// Of every size, if there is the time for it.
std::uint64_t oracle_seeds() { return in_full() && !is_sanitized ? sizes : 100; }

TEST(UnifiedOracle, FindsNoWrongByteUnderRandomSchedules) {
  Seen seen;
  const std::uint64_t seeds = oracle_seeds();
  for (std::uint64_t i = 0; i < seeds && !testing::Test::HasFailure(); ++i) {
    // As far apart as they can be, where they are not all.
    const std::uint64_t seed = 1 + i * sizes / seeds;
    const std::vector<Device> devices = sim::open_peers(
        {.seed = seed, .policy = sim::Policy::random}, static_cast<unsigned>(1 + i % 4));
    seen += run_program(devices, seed, 400);
    for (const Device& one : devices) {
      one.synchronize();
      expect_no_findings(one);
    }
  }
  seen.print("unified buffer against the oracle");
  EXPECT_GE(seen.operations, 400 * seeds);
  EXPECT_GT(seen.read_bytes, 10'000 * seeds);
  EXPECT_EQ(seen.wrong_bytes, 0u);
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
    UnifiedView<int> part = buffer.slice(begin, count);
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

  friend std::ostream& operator<<(std::ostream& out, const Field& field) {
    return out << field.name;
  }
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

TEST_P(UnifiedOnDevices, AreClonedByStreamsOfOtherDevices) {
  devices.push_back(open_device("host"));
  for (const Device& home : devices) {
    UnifiedBuffer<int> buffer({16}, {.device = home});
    for (const Device& writer : devices) {
      for (const Device& cloner : devices) {
        SCOPED_TRACE(testing::Message()
                     << home.spec() << " " << writer.spec() << " " << cloner.spec());
        buffer.fill(static_cast<int>(cloner.id().value), writer.default_stream());
        const Result<UnifiedBuffer<int>> same = buffer.try_clone(cloner.default_stream());
        ASSERT_TRUE(same) << same.failure().text();
        EXPECT_EQ(same->to_vector(), std::vector<int>(16, static_cast<int>(cloner.id().value)));
      }
    }
  }
}

TEST_P(UnifiedOnDevices, RandomProgramsFindNoWrongByte) {
  Seen seen;
  for (std::uint64_t seed = 1; seed <= 6 && !HasFailure(); ++seed) {
    seen += run_program(devices, seed * 37, 120);
    run_held_leases(devices, seed, 120);
  }
  EXPECT_GT(seen.read_bytes, 20'000u);
  for (const Device& one : devices) {
    one.synchronize();
    expect_no_findings(one);
  }
}

// --- Waits of the host, for devices that cannot observe host accesses

/// With the device's copy dropped, the host's is the only one, and a write of it goes the shortest
/// way there is.
void see_the_host_wait(const std::vector<Device>& devices, bool drops) {
  constexpr std::size_t count = 1000, bytes = count * sizeof(int);
  for (const Device& device : devices) {
    SCOPED_TRACE(device.spec());
    const Stream s(device);
    // Of page-locked memory, which copies read when they run; what is shared is read as it is.
    const Pinned pinned = device.can(Capability::host_access) ? Pinned::prefer : Pinned::required;
    UnifiedBuffer<int> buffer(Shape{count}, {.device = device, .pinned = pinned});
    int* const uploaded = static_cast<int*>(device.allocate(MemoryKind::device, bytes));
    // Once before, since a driver that allocates may wait for whatever is held.
    std::ranges::fill(buffer.discard_host(), 1);
    buffer.sync_to_device();
    std::ranges::fill(buffer.discard_host(), 2);
    Gate gate;
    gate.hold(s);
    {
      const DeviceLease<const int> lease = buffer.read_device(s);
      s.copy(uploaded, lease.data(), bytes);
    }
    if (drops) buffer.drop_device();
    // Whoever reads beside it waits for nobody; that is no reason for a writer not to.
    EXPECT_EQ(buffer.read_host()[0], 2);
    std::atomic<bool> is_open = false;
    test::Thread opener([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      is_open = true;
      gate.open();
    });
    {
      const HostLease<int> lease = buffer.rw_host();
      EXPECT_TRUE(is_open) << "while the copy that reads it is held";
      std::ranges::fill(lease, 3);
    }
    opener.join();
    std::vector<int> seen(count);
    s.copy(seen.data(), uploaded, bytes);
    s.synchronize();
    EXPECT_EQ(seen, std::vector<int>(count, 2));
    device.release(uploaded);
  }
}

TEST_P(UnifiedOnDevices, AHostWriteWaitsForWhoStillReadsTheHostsCopy) {
  see_the_host_wait(devices, false);
}

TEST_P(UnifiedOnDevices, AHostWriteWaitsForWhoStillReadsTheOnlyCopy) {
  see_the_host_wait(devices, true);
}

// --- Resizing

TEST_P(UnifiedOnDevices, KeepsItsBytesWhoeversStreamResizesIt) {
  for (const Device& home : devices) {
    for (const Device& other : devices) {
      SCOPED_TRACE(std::string(home.spec()) + " by " + std::string(other.spec()));
      const Stream s(home), t(other);
      UnifiedBuffer<int> buffer(Shape{100}, {.device = home});
      std::ranges::fill(buffer.discard_host(), 4);
      { const DeviceLease<const int> lease = buffer.read_device(s); }
      buffer.resize_keep(300, t);
      EXPECT_EQ(buffer.slice(0, 100).to_vector(), std::vector<int>(100, 4));
      EXPECT_EQ(buffer.state(100, 200), BufferState::uninitialized);
    }
  }
}

// --- The same log everywhere

/// Where there is a copy on the device that is not the host's.
bool has_memory_of_its_own(const Device& device) {
  return !device.info().is_host && !device.can(Capability::host_access);
}

std::string text(const CopyCount& count) {
  return std::to_string(count.copies) + " of " + std::to_string(count.bytes);
}

/// What moved, whether or not it had to be copied.
template <class T>
std::string log_of(const UnifiedBuffer<T>& buffer) {
  std::string log;
  for (const Transfer& one : buffer.transfers()) {
    log += std::string(name(one.reason)) + (one.from.is_host() ? " from host" : " from device") +
           (one.to.is_host() ? " to host " : " to device ") + std::to_string(one.begin) + "+" +
           std::to_string(one.bytes) + " in " + std::to_string(one.runs) + "\n";
  }
  const UnifiedStatistics counts = buffer.statistics();
  for (std::size_t i = 0; i < transfer_reasons; ++i) {
    const auto reason = static_cast<TransferReason>(i);
    log += std::string(name(reason)) + " " + text(counts.of(reason)) + "\n";
  }
  return log + std::string(name(buffer.state())) + "\n";
}

/// What had to be copied.
std::string counts_of(const UnifiedStatistics& counts) {
  return "to host " + text(counts.to_host) + ", to device " + text(counts.to_device) +
         ", between devices " + text(counts.between_devices) + ", elided " + text(counts.elided) +
         ", gaps " + std::to_string(counts.merged_gap_bytes) + ", waits " +
         std::to_string(counts.host_waits) + "\n";
}

struct FixedProgram {
  std::string log;
  UnifiedStatistics counts;
};

FixedProgram run_fixed_program(const Device& device) {
  const Stream s(device);
  UnifiedBuffer<int> buffer(Shape{40000}, {.device = device, .coalesce_gap_bytes = 0});
  std::ranges::fill(buffer.discard_host(), 1);
  static_cast<void>(buffer.read_device(s));
  {
    const DeviceLease<int> lease = buffer.slice(100, 200).rw_device(s);
    s.fill(lease.data(), lease.size(), 2);
  }
  EXPECT_EQ(buffer.read_host()[299], 2);
  std::ranges::fill(buffer.slice(0, 150).rw_host(), 3);
  std::ranges::fill(buffer.slice(500, 50).rw_host(), 3);
  buffer.sync_to_device();
  buffer.slice(1000, 10).fill(4, s);
  EXPECT_EQ(buffer.load_host(0), 3);
  buffer.drop_device();
  EXPECT_EQ(buffer.load_host(1009), 4);
  EXPECT_EQ(buffer.load_host(299), 2);
  return {log_of(buffer), buffer.statistics()};
}

TEST_P(UnifiedOnDevices, TheSameProgramHasTheSameLog) {
  const FixedProgram expected = run_fixed_program(sim::open({}));
  EXPECT_NE(expected.log.find("drop from device to host 4000+40 in 1\n"), std::string::npos);
  EXPECT_NE(expected.log.find("prefetch from host to device 0+800 in 2\n"), std::string::npos)
      << expected.log;
  for (const Device& one : devices) {
    const FixedProgram here = run_fixed_program(one);
    EXPECT_EQ(here.log, expected.log) << one.spec();
    if (has_memory_of_its_own(one)) {
      EXPECT_EQ(counts_of(here.counts), counts_of(expected.counts)) << one.spec();
    } else {
      EXPECT_EQ(here.counts.elided.bytes, expected.counts.moved().bytes) << one.spec();
    }
  }
}

constexpr int random_logs = 20;

/// Of random programs, looked at before the buffer forgets the first of its transfers.
struct RandomLogs {
  std::vector<std::string> looks;
  CopyCount moved;
};

RandomLogs run_random_programs(const Device& device) {
  RandomLogs logs;
  for (std::uint64_t seed = 1; seed <= random_logs && !testing::Test::HasFailure(); ++seed) {
    RandomProgram program({device}, seed * 41);
    for (int i = 0; i < 25; ++i) {
      program.run(8);
      logs.looks.push_back("seed " + std::to_string(seed) + "\n" + log_of(program.buffer()) +
                           counts_of(program.buffer().statistics()));
    }
    const CopyCount moved = program.buffer().statistics().moved();
    logs.moved.copies += moved.copies;
    logs.moved.bytes += moved.bytes;
  }
  device.synchronize();
  return logs;
}

/// Each device with memory of its own, alone.
class UnifiedOnDevice : public UnifiedOnDevices {};

TEST_P(UnifiedOnDevice, RandomProgramsHaveTheSameLog) {
  const Device& device = devices[0];
  if (!has_memory_of_its_own(device)) GTEST_SKIP() << "shares the memory of the host";
  const RandomLogs expected = run_random_programs(sim::open({}));
  const RandomLogs here = run_random_programs(device);
  ASSERT_EQ(here.looks.size(), expected.looks.size());
  const auto [at, other] = std::ranges::mismatch(here.looks, expected.looks);
  if (at != here.looks.end()) ADD_FAILURE() << *at << "should be: " << *other;
  std::printf("counted: %s: the log of sim in %d programs, %" PRIu64 " copies of %" PRIu64
              " bytes\n",
              std::string(device.spec()).c_str(), random_logs, here.moved.copies, here.moved.bytes);
}

std::vector<Field> lone_fields() {
  std::vector<Field> lone = fields();
  std::erase_if(lone, [](const Field& one) { return one.specs.size() > 1 || one.name == "host"; });
  return lone;
}

constexpr auto name_of_field = [](const testing::TestParamInfo<Field>& one) {
  return one.param.name;
};
INSTANTIATE_TEST_SUITE_P(Devices, UnifiedOnDevices, testing::ValuesIn(fields()), name_of_field);
INSTANTIATE_TEST_SUITE_P(Devices, UnifiedOnDevice, testing::ValuesIn(lone_fields()), name_of_field);

}  // namespace
}  // namespace tern::test
