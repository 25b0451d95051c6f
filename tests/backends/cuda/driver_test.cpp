#include "backends/cuda/driver.hpp"

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "support/cuda_bench.hpp"
#include "support/forked_child.hpp"
#include "support/no_descriptors.hpp"
#include "support/thorough.hpp"

namespace tern::cuda {
namespace {

bool says(const Driver& driver, std::string_view part) {
  return driver.absence.find(part) != std::string::npos;
}

/// A library with these symbols.
Driver load_from(std::map<std::string, void*> symbols) {
  return load_driver({[](void* context, const char* name) -> void* {
                        const auto& known = *static_cast<std::map<std::string, void*>*>(context);
                        const auto found = known.find(name);
                        return found == known.end() ? nullptr : found->second;
                      },
                      &symbols});
}

/// What the driver of this process says when one of its calls gives that result.
Driver load_with(std::string_view slot, CUresult result) {
  sim::FakeDriver fake;
  fake.fail_call(slot, 1, result);
  return load_driver(fake_library());
}

TEST(CudaDriver, IsThereWithItsVersionAndDevices) {
  sim::FakeDriver fake({.device_count = 3, .driver_version = 12040});
  const Driver driver = load_driver(fake_library());
  EXPECT_TRUE(driver.is_present()) << driver.absence;
  EXPECT_EQ(driver.version, 12040);
  EXPECT_EQ(driver.version_text(), "12.4");
  EXPECT_EQ(driver.device_count, 3);
}

TEST(CudaDriver, AsksForEveryEntryAtItsOwnVersion) {
  // The fake gives null for a shape that Tern does not declare, so a loader that asks too high
  // would miss required entries here.
  sim::FakeDriver fake;
  const Driver driver = load_driver(fake_library());
#define TERN_DRIVER_ENTRY(slot, name, version, need, parameters) \
  EXPECT_EQ(driver.table.slot, fake.table().slot) << #slot;
  TERN_FOR_EACH_DRIVER_ENTRY(TERN_DRIVER_ENTRY)
#undef TERN_DRIVER_ENTRY
}

TEST(CudaDriver, DoesWithoutEachEntryThatIsOptional) {
  for (const DriverEntryInfo& entry : driver_entries) {
    if (entry.need == Need::required) continue;
    sim::FakeDriver fake({.hidden = {std::string(entry.slot)}});
    const Driver driver = load_driver(fake_library());
    EXPECT_TRUE(driver.is_present()) << entry.slot << ": " << driver.absence;
  }
}

TEST(CudaDriver, NamesTheEntryThatIsMissingAndTheVersionItCameWith) {
  for (const DriverEntryInfo& entry : driver_entries) {
    if (entry.need == Need::optional) continue;
    // Found, and null: success alone says nothing.
    sim::FakeDriver fake({.hidden = {std::string(entry.slot)}});
    const Driver driver = load_driver(fake_library());
    EXPECT_FALSE(driver.is_present()) << entry.slot;
    EXPECT_TRUE(says(driver, std::string("lacks ") + entry.name + ", which came with version"))
        << driver.absence;
  }
  sim::FakeDriver fake({.hidden = {"cuMemAllocFromPoolAsync"}});
  EXPECT_EQ(load_driver(fake_library()).absence,
            "backend 'cuda' is not available: the driver (13.0) lacks cuMemAllocFromPoolAsync, "
            "which came with version 11.2. Update it. Open 'sim' or 'host' instead.");
}

TEST(CudaDriver, SaysThatADriverIsTooOldEvenIfItsVersionIsUnknown) {
  {
    sim::FakeDriver fake({.driver_version = 11010});
    EXPECT_TRUE(says(load_driver(fake_library()), "the driver (11.1) lacks"));
  }
  sim::FakeDriver fake({.hidden = {"cuDriverGetVersion"}});
  EXPECT_TRUE(says(load_driver(fake_library()), "the driver (of an unknown version) lacks"));
}

TEST(CudaDriver, KnowsTheStubOfTheToolkitWhicheverCallGivesItAway) {
  const auto stub = [](const char*, void**, int, std::uint64_t, CUdriverProcAddressQueryResult*) {
    return CUDA_ERROR_STUB_LIBRARY;  // and what it should fill stays as it is
  };
  cuGetProcAddress_type* const entry = stub;
  const Driver driver = load_from({{"cuGetProcAddress_v2", reinterpret_cast<void*>(entry)}});
  EXPECT_TRUE(says(driver, "the toolkit's stub")) << driver.absence;
  EXPECT_TRUE(says(load_with("cuDriverGetVersion", CUDA_ERROR_STUB_LIBRARY), "stub"));
  EXPECT_TRUE(says(load_with("cuInit", CUDA_ERROR_STUB_LIBRARY), "stub"));
}

TEST(CudaDriver, TakesTheFourArgumentsOfOlderDrivers) {
  using FourArguments = CUresult(const char*, void**, int, std::uint64_t);
  FourArguments* const older = [](const char* name, void** function, int version,
                                  std::uint64_t flags) {
    EXPECT_EQ(flags, get_proc_address_legacy_stream);
    return sim::FakeDriver::get_proc_address()(name, function, version, flags, nullptr);
  };
  sim::FakeDriver fake({.driver_version = 11030});
  const Driver driver = load_from({{"cuGetProcAddress", reinterpret_cast<void*>(older)}});
  EXPECT_TRUE(driver.is_present()) << driver.absence;
  EXPECT_EQ(driver.version_text(), "11.3");
  EXPECT_EQ(driver.table.cuStreamGetId, nullptr);
  EXPECT_NE(driver.table.cuMemAdvise_8000, nullptr);
}

TEST(CudaDriver, WantsOneWayToFindItsEntries) {
  EXPECT_TRUE(says(load_from({}),
                   "no cuGetProcAddress, which came with CUDA 11.3. Install driver 465 or newer."));
}

TEST(CudaDriver, SaysWhyItCannotBeInitialised) {
  const std::pair<CUresult, const char*> sentences[] = {
      {CUDA_ERROR_NO_DEVICE, "finds no GPU (CUDA_ERROR_NO_DEVICE, 100)"},
      {CUDA_ERROR_NOT_INITIALIZED, "forked from a process that uses CUDA"},
      {CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, "have different versions"},
      {CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE, "compatibility libcuda"},
      {CUDA_ERROR_DEVICE_UNAVAILABLE, "another process uses the GPU"},
      {CUDA_ERROR_UNKNOWN, "cuInit returned CUDA_ERROR_UNKNOWN (999)."},
  };
  for (const auto& [result, sentence] : sentences) {
    const Driver driver = load_with("cuInit", result);
    EXPECT_FALSE(driver.is_present());
    EXPECT_TRUE(says(driver, sentence)) << driver.absence;
    EXPECT_TRUE(says(driver, "Open 'sim' or 'host' instead.")) << driver.absence;
  }
}

TEST(CudaDriver, IsAbsentWithoutADevice) {
  EXPECT_TRUE(says(load_with("cuDeviceGetCount", CUDA_ERROR_UNKNOWN),
                   "cuDeviceGetCount returned CUDA_ERROR_UNKNOWN (999)."));
  // A count that is left at zero.
  EXPECT_TRUE(says(load_with("cuDeviceGetCount", CUDA_SUCCESS), "finds no GPU"));
  sim::FakeDriver fake({.device_count = 0});
  EXPECT_TRUE(says(load_driver(fake_library()), "finds no GPU"));
}

TEST(CudaDriver, IsOneOfTheProcessUnlessATestInstallsAnother) {
  const Driver* const own = &driver();
  EXPECT_TRUE(own->is_present() || says(*own, "backend 'cuda' is not available: "));
  EXPECT_EQ(&driver(), own);
  {
    sim::FakeDriver fake({.device_count = 3});
    const InstalledDriver installed(load_driver(fake_library()));
    EXPECT_EQ(driver().device_count, 3);
    EXPECT_EQ(&driver(), &driver());
  }
  EXPECT_EQ(&driver(), own);
}

TEST(CudaDriver, IsLookedForAgainIfThereWereNoDescriptorsToLoadItWith) {
  if (driver().is_present()) GTEST_SKIP() << "it is loaded already";
  if (test::is_sanitized) GTEST_SKIP() << "the sanitizer needs descriptors too";
  const std::string absence = driver().absence;
  {
    const test::NoDescriptors none;
    EXPECT_TRUE(says(driver(), "no free file descriptor")) << driver().absence;
  }
  EXPECT_EQ(driver().absence, absence);
}

TEST(CudaDriver, IsLookedForAgainInAChildOfAProcessThatHasNone) {
  const std::string absence = driver().absence;
  if (absence.empty()) GTEST_SKIP() << "this machine has a driver";
  EXPECT_EQ(test::in_a_forked_child([&] { return driver().absence == absence; }), 0);
}

TEST(CudaDriver, IsGoneInAChildOfAProcessThatUsesIt) {
  sim::FakeDriver fake;
  const InstalledDriver installed(load_driver(fake_library()));
  EXPECT_TRUE(driver().is_present());
  EXPECT_EQ(test::in_a_forked_child([] {
              return says(driver(), "this process was forked from a process that uses CUDA") &&
                     // And in its own child.
                     test::in_a_forked_child([] {
                       return says(driver(), "forked from a process that uses CUDA");
                     }) == 0;
            }),
            0);
  EXPECT_TRUE(driver().is_present());
}

TEST(CudaDriver, EndsWithTheProcess) {
  EXPECT_FALSE(has_ended());
  {
    const EndingProcess ending;
    EXPECT_TRUE(has_ended());
  }
  EXPECT_FALSE(has_ended());
}

}  // namespace
}  // namespace tern::cuda
