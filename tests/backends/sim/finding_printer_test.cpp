// Every finding is printed to standard error, even if the exception is lost.

#include "backends/sim/finding_printer.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "core/memory_tool.hpp"
#include "tern/backends/catalog.hpp"
#include "tern/backends/sim.hpp"
#include "tern/core/bytes.hpp"
#include "tern/core/error.hpp"
#include "tern/device/stream.hpp"

namespace tern {
namespace {

std::size_t count_of(const std::string& text, std::string_view part) {
  std::size_t count = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) {
    ++count;
  }
  return count;
}

/// Two streams race; the exception is swallowed.
void race(const Device& device, int times = 1) {
  const Stream a(device, {.name = "A"}), b(device, {.name = "B"});
  auto* block = static_cast<std::byte*>(device.allocate(MemoryKind::device, 64));
  a.fill(block, 64, std::byte{1});
  for (int i = 0; i < times; ++i) static_cast<void>(b.try_fill(block, 64, std::byte{2}));
  device.synchronize();
  device.release(block);
}

std::string printed_by(const sim::Options& options, int times = 1) {
  testing::internal::CaptureStderr();
  race(sim::open(options), times);
  return testing::internal::GetCapturedStderr();
}

TEST(FindingPrinter, AFindingIsHeardThoughTheExceptionIsSwallowed) {
  const std::string text = printed_by({});
  EXPECT_EQ(count_of(text, "TERN-S101 missing-wait"), 1u) << text;
  EXPECT_NE(text.find("  fix     let B wait for A@1"), std::string::npos) << text;
}

TEST(FindingPrinter, ALineThatIsWrongIsReportedOnce) {
  EXPECT_EQ(count_of(printed_by({}, 10), "TERN-S101"), 1u);
  EXPECT_EQ(count_of(printed_by({.mode = sim::Mode::collect}, 10), "TERN-S101"), 1u);
}

TEST(FindingPrinter, AFindingWithoutALineIsReportedOnce) {
  constexpr std::size_t pages = 8;
  constexpr std::size_t page = 2 * mib;
  const Device device = sim::open({.memory_bytes = 64 * mib});
  auto* const base = static_cast<std::byte*>(device.try_reserve(pages * page).value());
  for (std::size_t i = 0; i < pages; ++i) {
    const NativePages handle = device.try_create_pages(page).value();
    device.try_map(base + i * page, handle).value();
  }
  device.try_set_access(base, pages * page, PageAccess::read_write).value();
  const Stream stream(device);
  device.note_suballocate(Suballocation{base, pages * page, 1}, {}, CallSite::here());
  stream.fill(base, pages * page, std::byte{1});
  testing::internal::CaptureStderr();
  for (std::size_t i = 0; i < pages; ++i)
    static_cast<void>(device.try_unmap(base + i * page, page));
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_EQ(count_of(text, "TERN-S102"), 1u) << text;
}

TEST(FindingPrinter, TestsThatPlantMistakesCanSilenceIt) {
  EXPECT_EQ(printed_by({.print_findings = false}), "");
}

/// Copies from or to a vector that is gone, or changed, when the process ends.
[[noreturn]] void exit_too_early(const char* spec, bool is_written, bool is_freed) {
  const Device device = open_device(spec);
  const Stream stream(device);
  constexpr std::size_t bytes = 4 * mib;
  auto* const block = static_cast<std::byte*>(device.allocate(MemoryKind::device, bytes));
  stream.fill(block, bytes, std::byte{1});
  stream.synchronize();
  auto host = std::make_unique<std::vector<std::byte>>(bytes);
  if (is_written) {
    stream.copy(host->data(), block, bytes);
  } else {
    stream.copy(block, host->data(), bytes);
  }
  if (is_freed) {
    host.reset();
  } else {
    host->at(5) = std::byte{9};
  }
  std::exit(0);
}

TEST(FindingPrinterDeathTest, AFindingAtExitIsHeard) {
  const char* const lazy = "sim:0?schedule=lazy";
  const testing::ExitedWithCode in_order(0);
  EXPECT_EXIT(exit_too_early(lazy, false, true), in_order, "TERN-S10[78].*exit\\(\\) detects");
  EXPECT_EXIT(exit_too_early(lazy, true, true), in_order, "TERN-S10[78].*exit\\(\\) detects");
  EXPECT_EXIT(exit_too_early(lazy, false, false), in_order, "TERN-S107.*exit\\(\\) detects");
  EXPECT_EXIT(exit_too_early("sim:0?schedule=eager", true, true), in_order,
              "TERN-S10[78].*exit\\(\\) detects");
  // A memory tool reports the write itself.
  if (memory_tool() != nullptr) return;
  EXPECT_EXIT(exit_too_early(lazy, true, false), in_order, "TERN-S107.*exit\\(\\) detects");
}

TEST(FindingPrinterDeathTest, ACopyThatWasWaitedForIsNotReportedAtExit) {
  const auto exit_later = [] {
    const Device device = open_device("sim:0?schedule=lazy");
    const Stream stream(device);
    auto* const block = static_cast<std::byte*>(device.allocate(MemoryKind::device, mib));
    auto host = std::make_unique<std::vector<std::byte>>(mib);
    stream.copy(block, host->data(), mib);
    stream.synchronize();
    host.reset();
    // In flight, but unchanged.
    static std::byte* const kept = new std::byte[mib]();
    stream.copy(block, kept, mib);
    std::exit(0);
  };
  EXPECT_EXIT(exit_later(), testing::ExitedWithCode(0), "^$");
}

TEST(FindingPrinter, AFindingInADestructorIsHeard) {
  testing::internal::CaptureStderr();
  {
    const Device device = sim::open({.policy = sim::Policy::lazy});
    const Stream a(device), b(device);
    void* slab = device.allocate(MemoryKind::device, 64);
    a.note_suballocate({slab, 64, 1}, "piece");
    // Calls that cannot fail: nothing follows that could throw.
    b.note_subrelease({slab, 64, 1});
  }
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_EQ(count_of(text, "TERN-S102"), 1u) << text;
}

TEST(FindingPrinter, ManyFindingsAreCutShort) {
  sim::FindingPrinter printer;
  testing::internal::CaptureStderr();
  for (int i = 0; i < 300; ++i) {
    Finding finding;
    finding.what = std::to_string(i);
    printer.print(finding);
  }
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_EQ(count_of(text, "TERN-S101"), 100u);
  EXPECT_EQ(count_of(text, "further findings"), 1u);
}

TEST(FindingPrinter, TheExceptionSurvivesAPendingCopyIntoADestroyedVector) {
  for (const std::size_t bytes : {std::size_t{4096}, std::size_t{16} << 20}) {
    const Device device = sim::open({.policy = sim::Policy::lazy, .print_findings = false});
    const Stream a(device, {.name = "A"}), b(device, {.name = "B"});
    auto* block = static_cast<std::byte*>(device.allocate(MemoryKind::device, bytes));
    EXPECT_THROW(
        {
          std::vector<std::byte> got(bytes);
          a.fill(block, bytes, std::byte{1});
          a.copy(got.data(), block, bytes);
          b.fill(block, bytes, std::byte{2});  // races, and unwinds past the vector
        },
        Violation);
    device.synchronize();
    EXPECT_EQ(sim::findings(device).size(), 1u);
    device.release(block);
  }
}

}  // namespace
}  // namespace tern
