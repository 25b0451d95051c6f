// Records the calls about managed memory that reach the simulated CUDA driver, for tests that check
// the calls themselves. A process has one simulated driver, so these tests share it with tests that
// open "cuda?driver=sim".

#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "support/cuda_bench.hpp"
#include "tern/backends/catalog.hpp"
#include "tern/backends/sim.hpp"
#include "tern/device/device.hpp"

namespace tern::cuda {

/// The recorded calls since the last query, one line per call. Addresses are shown relative to
/// `base`. Only one driver at a time.
struct ManagedCalls {
  static inline std::vector<std::string> lines;
  static inline std::uintptr_t base = 0;
  static inline std::uint64_t total = 0;  // number of calls of any kind

  /// Makes the n-th call of a slot from now, or all calls from the n-th on, do nothing and return
  /// this.
  struct Fault {
    std::uint64_t left = 0;
    bool is_lasting = false;
    CUresult result = CUDA_SUCCESS;
  };
  static inline std::map<DriverEntry, Fault> faults;

  [[nodiscard]] static std::vector<std::string> take() { return std::exchange(lines, {}); }

  static std::string range(CUdeviceptr address, std::size_t bytes) {
    return fmt::format("[{}, {})", address - base, address - base + bytes);
  }
  static std::string text(CUmemLocation location) {
    switch (location.type) {
      case CU_MEM_LOCATION_TYPE_DEVICE:
        return fmt::format("device {}", location.id);
      case CU_MEM_LOCATION_TYPE_HOST:
        return "host";
      case CU_MEM_LOCATION_TYPE_HOST_NUMA:
        return fmt::format("numa {}", location.id);
      case CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT:
        return "numa current";
      default:
        return "nowhere";
    }
  }
  static std::string text(CUdevice device) {
    return device == device_cpu ? "cpu" : fmt::format("ordinal {}", device);
  }

  static void note(DriverEntry, CUdeviceptr address, std::size_t bytes, CUmem_advise advice,
                   CUmemLocation at) {
    lines.push_back(
        fmt::format("advise {} {} {}", static_cast<int>(advice), range(address, bytes), text(at)));
  }
  static void note(DriverEntry, CUdeviceptr address, std::size_t bytes, CUmem_advise advice,
                   CUdevice at) {
    lines.push_back(
        fmt::format("advise {} {} {}", static_cast<int>(advice), range(address, bytes), text(at)));
  }
  static void note(DriverEntry, CUdeviceptr address, std::size_t bytes, CUmemLocation to, unsigned,
                   CUstream) {
    lines.push_back(fmt::format("prefetch {} {}", range(address, bytes), text(to)));
  }
  static void note(DriverEntry, CUdeviceptr address, std::size_t bytes, CUdevice to, CUstream) {
    lines.push_back(fmt::format("prefetch {} {}", range(address, bytes), text(to)));
  }
  static void note(DriverEntry entry, CUdeviceptr* addresses, std::size_t* bytes, std::size_t count,
                   CUmemLocation* to, std::size_t* starts, std::size_t places, unsigned long long,
                   CUstream) {
    std::string line =
        entry == DriverEntry::cuMemPrefetchBatchAsync ? "prefetch batch" : "discard and prefetch";
    std::size_t place = 0;
    for (std::size_t i = 0; i < count; ++i) {
      if (place + 1 < places && starts[place + 1] == i) ++place;
      line += fmt::format(" {} {}", range(addresses[i], bytes[i]), text(to[place]));
    }
    lines.push_back(std::move(line));
  }
  static void note(DriverEntry, CUdeviceptr* addresses, std::size_t* bytes, std::size_t count,
                   unsigned long long, CUstream) {
    std::string line = "discard";
    for (std::size_t i = 0; i < count; ++i) line += " " + range(addresses[i], bytes[i]);
    lines.push_back(std::move(line));
  }

  static constexpr bool is_noted(DriverEntry entry) {
    return entry == DriverEntry::cuMemAdvise_8000 || entry == DriverEntry::cuMemAdvise ||
           entry == DriverEntry::cuMemPrefetchAsync_8000 ||
           entry == DriverEntry::cuMemPrefetchAsync ||
           entry == DriverEntry::cuMemPrefetchBatchAsync ||
           entry == DriverEntry::cuMemDiscardBatchAsync ||
           entry == DriverEntry::cuMemDiscardAndPrefetchBatchAsync;
  }
  template <class Function, DriverEntry entry>
  struct Wrapped;
  template <class... Arguments, DriverEntry entry>
  struct Wrapped<CUresult(Arguments...), entry> {
    static inline CUresult (*real)(Arguments...) = nullptr;
    static CUresult call(Arguments... arguments) {
      ++total;
      if constexpr (is_noted(entry)) note(entry, arguments...);
      if (const auto fault = faults.find(entry); fault != faults.end()) {
        Fault& one = fault->second;
        if (one.left > 0) --one.left;
        if (one.left == 0) {
          const CUresult result = one.result;
          if (!one.is_lasting) faults.erase(fault);
          return result;
        }
      }
      return real(arguments...);
    }
    static auto* wrap(CUresult (*function)(Arguments...)) {
      real = function;
      return function == nullptr ? nullptr : &call;
    }
  };

  /// Returns the table of a driver of this version, with recording.
  static DriverTable listen(DriverTable table, int version) {
#define TERN_DRIVER_ENTRY(slot, name, since, need, parameters) \
  if (since > version) table.slot = nullptr;                   \
  table.slot = Wrapped<slot##_type, DriverEntry::slot>::wrap(table.slot);
    TERN_FOR_EACH_DRIVER_ENTRY(TERN_DRIVER_ENTRY)
#undef TERN_DRIVER_ENTRY
    lines.clear();
    faults.clear();
    base = 0;
    return table;
  }
  static void fail(std::string_view slot, std::uint64_t n, bool is_lasting = false) {
    const auto found = std::ranges::find(driver_entries, slot, &DriverEntryInfo::slot);
    EXPECT_NE(found, driver_entries.end());
    faults[static_cast<DriverEntry>(found - driver_entries.begin())] = {n, is_lasting,
                                                                        CUDA_ERROR_UNKNOWN};
  }
};

struct ManagedDevices {
  explicit ManagedDevices(int version = 13000) : driver(load_driver(fake_library())) {
    EXPECT_EQ(driver.absence, "");
    driver.version = version;
    driver.table = ManagedCalls::listen(driver.table, version);
    for (int i = 0; i < driver.device_count; ++i) {
      devices.emplace_back(open_backend(driver, {.spec = fmt::format("cuda:{}?driver=sim", i),
                                                 .ordinal = i,
                                                 .staging = no_staging()})
                               .value());
    }
  }
  ~ManagedDevices() { EXPECT_EQ(sim::findings(simulated).size(), findings); }
  ManagedDevices(const ManagedDevices&) = delete;
  ManagedDevices& operator=(const ManagedDevices&) = delete;

  /// Makes the context of a device current on this thread while it lives, as other libraries do.
  class Elsewhere {
   public:
    Elsewhere(const ManagedDevices& bench, int ordinal) : cu_(bench.driver.table) {
      CUcontext context = nullptr;
      EXPECT_EQ(cu_.cuDevicePrimaryCtxRetain(&context, ordinal), CUDA_SUCCESS);
      EXPECT_EQ(cu_.cuCtxPushCurrent(context), CUDA_SUCCESS);
    }
    ~Elsewhere() { EXPECT_EQ(cu_.cuCtxPopCurrent(nullptr), CUDA_SUCCESS); }
    Elsewhere(const Elsewhere&) = delete;
    Elsewhere& operator=(const Elsewhere&) = delete;

   private:
    const DriverTable& cu_;
  };

  const Device simulated = open_device("cuda?driver=sim");
  const std::size_t findings = sim::findings(simulated).size();
  Driver driver;
  std::vector<Device> devices;  // two devices
};

}  // namespace tern::cuda
