// The launches that recordings have.

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <vector>

#include "support/temporary_folder.hpp"
#include "tern/backends/sim.hpp"
#include "tern/buffer/array.hpp"
#include "tern/device/stream.hpp"
#include "tern/launch/kernel.hpp"
#include "tern/trace/recorder.hpp"
#include "trace/event_clock.hpp"
#include "trace/memory_trace.hpp"

namespace tern {
namespace {

using trace::EventKind;
using trace::MemoryEvent;

constinit std::atomic<std::uint64_t> run_ns = 0;

void note_time(View<float> values) {
  run_ns = trace::now_ns();
  values[0] = 1;
}

// Another thread may use the mark of a launch as soon as there is one. What it records must have a
// later time than the launch.
TEST(RecordedLaunch, HasATimeBeforeItRuns) {
  const test::TemporaryFolder folder;
  const std::string path = folder / "run.trace";
  const Device device = sim::open({.seed = 1, .policy = sim::Policy::eager});
  const Stream stream(device);
  const Kernel kernel = Kernel::from_function(device, "note_time", note_time);
  auto values = Array<float>::uninitialized(device, 16);
  trace::start(path);
  kernel.launch(stream, elements(16), out(values));
  stream.synchronize();
  trace::stop();
  int launches = 0, uses = 0;
  for (const MemoryEvent& one : trace::MemoryTrace::try_read(path).value().events) {
    if (one.kind != EventKind::launch && one.kind != EventKind::use) continue;
    ++(one.kind == EventKind::launch ? launches : uses);
    EXPECT_LE(one.time_ns, run_ns.load());
  }
  EXPECT_EQ(launches, 1);
  EXPECT_EQ(uses, 1);
}

}  // namespace
}  // namespace tern
