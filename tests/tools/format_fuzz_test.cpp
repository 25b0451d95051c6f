// Readers and writers of other formats on random input: nothing crashes, and everything ends.

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "support/random_memory_trace.hpp"
#include "support/snapshot_fuzz.hpp"

namespace tern::tools {
namespace {

TEST(FormatFuzz, AnyBytesAreASnapshotOrRefused) {
  for (unsigned seed = 0; seed < 1000; ++seed) {
    std::mt19937 random(seed);
    std::vector<std::byte> bytes(random() % 2000);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
    SCOPED_TRACE(seed);
    test::fuzz_snapshot(bytes);
  }
}

TEST(FormatFuzz, DamagedSnapshotsAreReadOrRefused) {
  const trace::MemoryTrace trace = test::RandomMemoryTrace(7, 60).trace();
  const std::string whole =
      test::written_bytes([&](Output& out) { write_pytorch_snapshot(trace, out); });
  for (unsigned seed = 0; seed < 1500; ++seed) {
    std::mt19937 random(seed);
    std::string bytes = whole;
    for (unsigned i = 0; i <= seed % 4; ++i) {
      bytes[random() % bytes.size()] = static_cast<char>(random());
    }
    SCOPED_TRACE(seed);
    test::read_as_snapshot(bytes);
  }
  for (std::size_t length = 0; length < whole.size(); length += 7) {
    EXPECT_FALSE(try_parse_pytorch_snapshot(std::string_view(whole).substr(0, length))) << length;
  }
}

TEST(FormatFuzz, AnyEventsAreWrittenInEveryFormat) {
  for (unsigned seed = 0; seed < 500; ++seed) {
    std::mt19937_64 random(seed);
    trace::MemoryTrace trace;
    trace.header.start_ns = seed % 5 == 0 ? random() : 0;
    trace.header.start_unix_ns = seed % 7 == 0 ? random() : 0;
    for (unsigned i = 0; i < 40; ++i) {
      // Few blocks and addresses meet; any bits do not.
      std::uint64_t words[8];
      for (std::uint64_t& word : words) word = random() % 4 == 0 ? random() : random() % 8;
      trace::MemoryEvent event;
      static_assert(sizeof words == sizeof event);
      std::memcpy(static_cast<void*>(&event), words, sizeof event);
      event.kind = static_cast<trace::EventKind>(random() % (trace::event_kinds - 1) + 1);
      trace.events.push_back(event);
      trace.threads.push_back(static_cast<std::uint32_t>(random() % 3));
    }
    trace.sort();
    SCOPED_TRACE(seed);
    test::write_in_every_format(trace);
  }
}

}  // namespace
}  // namespace tern::tools
