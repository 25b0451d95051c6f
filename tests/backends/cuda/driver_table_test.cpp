#include "backends/cuda/driver_table.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <utility>

namespace tern::cuda {
namespace {

TEST(CudaDriverTable, HasNothingBeforeItIsFilled) {
  const DriverTable table;
#define TERN_DRIVER_ENTRY(slot, name, version, need, parameters) EXPECT_EQ(table.slot, nullptr);
  TERN_FOR_EACH_DRIVER_ENTRY(TERN_DRIVER_ENTRY)
#undef TERN_DRIVER_ENTRY
  EXPECT_EQ(sizeof table, driver_entries.size() * sizeof(void*));
}

TEST(CudaDriverTable, NumbersTheEntriesInTheirOrder) {
  std::size_t at = 0;
#define TERN_DRIVER_ENTRY(entry, name, version, need, parameters) \
  EXPECT_EQ(static_cast<std::size_t>(DriverEntry::entry), at);    \
  EXPECT_EQ(driver_entries[at].slot, #entry);                     \
  ++at;
  TERN_FOR_EACH_DRIVER_ENTRY(TERN_DRIVER_ENTRY)
#undef TERN_DRIVER_ENTRY
  EXPECT_EQ(at, driver_entries.size());
}

TEST(CudaDriverTable, AsksForBaseNamesAtVersionsThatExist) {
  std::set<std::pair<std::string, int>> asked;
  for (const DriverEntryInfo& entry : driver_entries) {
    EXPECT_EQ(std::strncmp(entry.name, "cu", 2), 0) << entry.name;
    EXPECT_EQ(std::strchr(entry.name, '_'), nullptr) << entry.name << ": base names only";
    EXPECT_TRUE(asked.emplace(entry.name, entry.version).second) << entry.name << " twice";
    EXPECT_GE(entry.version, 2000);
    EXPECT_LE(entry.version, 13000);
    EXPECT_EQ(entry.version % 10, 0);
  }
}

TEST(CudaDriverTable, GivesTheNewestShapeOfANameThePlainSlot) {
  std::map<std::string, int> newest;
  for (const DriverEntryInfo& entry : driver_entries) {
    newest[entry.name] = std::max(newest[entry.name], entry.version);
  }
  for (const DriverEntryInfo& entry : driver_entries) {
    const std::string name = entry.name;
    EXPECT_EQ(entry.slot,
              entry.version == newest[name] ? name : name + "_" + std::to_string(entry.version));
  }
}

// An entry that came later than the oldest driver Tern takes, which is the first with
// cuGetProcAddress, cannot be required.
TEST(CudaDriverTable, NeedsNothingNewerThanDriver11_3) {
  for (const DriverEntryInfo& entry : driver_entries) {
    EXPECT_EQ(entry.need == Need::required, entry.version <= 11030) << entry.slot;
  }
}

}  // namespace
}  // namespace tern::cuda
