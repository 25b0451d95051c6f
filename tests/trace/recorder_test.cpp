// Recordings: what is written is read again, whatever happens to the threads, the process and the
// disk.

#include "tern/trace/recorder.hpp"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <latch>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "support/thread.hpp"
#include "tern/core/bytes.hpp"
#include "tern/core/error.hpp"
#include "trace/memory_trace.hpp"
#include "trace/recording.hpp"

namespace tern::trace {
namespace {

class Recorder : public testing::Test {
 protected:
  Recorder() {
    const auto* test = testing::UnitTest::GetInstance()->current_test_info();
    folder_ = std::filesystem::temp_directory_path() /
              (std::string("tern_recorder_") + test->name() + "_" + std::to_string(getpid()));
    std::filesystem::create_directories(folder_);
  }
  ~Recorder() override {
    stop();
    std::filesystem::remove_all(folder_);
  }
  [[nodiscard]] std::string path(const char* name = "run.trace") const {
    return (folder_ / name).string();
  }
  [[nodiscard]] MemoryTrace read(const char* name = "run.trace") const {
    return MemoryTrace::try_read(path(name)).value();
  }

 private:
  std::filesystem::path folder_;
};

void put(std::uint64_t block) { record(EventKind::free, {.block = block, .bytes = 256}); }

TEST_F(Recorder, ReadsWhatWasWritten) {
  start(path());
  const CallSite site = CallSite::here();
  record(EventKind::allocate, {.stream = 3,
                               .block = 7,
                               .address = 0x1000,
                               .bytes = 512,
                               .extra = 500,
                               .site = site,
                               .tag = "weights",
                               .device = {1, "cuda:0"},
                               .resource = {4, "pool"}});
  record(EventKind::launch, {.device = {1, "cuda:0"}, .kernel = {9, "gemm"}});
  stop();
  put(99);  // after the end
  const MemoryTrace trace = read();
  ASSERT_EQ(trace.events.size(), 2u);
  EXPECT_EQ(trace.header.is_closed, 1u);
  EXPECT_EQ(trace.header.lost_events, 0u);
  EXPECT_EQ(trace.header.process, static_cast<std::uint32_t>(getpid()));
  const MemoryEvent& first = trace.events[0];
  EXPECT_EQ(first.kind, EventKind::allocate);
  EXPECT_EQ(first.stream, 3u);
  EXPECT_EQ(first.block, 7u);
  EXPECT_EQ(first.address, 0x1000u);
  EXPECT_EQ(first.bytes, 512u);
  EXPECT_EQ(first.extra, 500u);
  EXPECT_GE(first.time_ns, trace.header.start_ns);
  EXPECT_LE(first.time_ns, now_ns());
  EXPECT_EQ(trace.find(DefinitionKind::tag, first.tag)->text, "weights");
  EXPECT_EQ(trace.find(DefinitionKind::device, first.device)->text, "cuda:0");
  EXPECT_EQ(trace.find(DefinitionKind::resource, first.resource)->text, "pool");
  EXPECT_EQ(trace.find(DefinitionKind::resource, first.resource)->device, first.device);
  EXPECT_EQ(trace.find(DefinitionKind::site, first.site)->text, site.file);
  EXPECT_EQ(trace.find(DefinitionKind::site, first.site)->line, site.line);
  EXPECT_EQ(trace.find(DefinitionKind::kernel, 9)->text, "gemm");
  EXPECT_EQ(trace.events[1].extra, 9u);
  EXPECT_EQ(trace.find(DefinitionKind::tag, 65000), nullptr);
}

TEST_F(Recorder, DefinesALineOnceForAllThreads) {
  start(path());
  const CallSite site = CallSite::here();
  for (int i = 0; i < 4; ++i) {
    test::Thread([&] { record(EventKind::free, {.site = site}); }).join();
  }
  stop();
  const MemoryTrace trace = read();
  ASSERT_EQ(trace.events.size(), 4u);
  for (const MemoryEvent& one : trace.events) EXPECT_EQ(one.site, trace.events[0].site);
}

TEST_F(Recorder, ClosesItsFileAndReturnsTheMemoryOfARing) {
  const auto open_files = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
  };
  const auto before = open_files();
  for (int i = 0; i < 20; ++i) {
    start(path());
    put(1);
    stop();
  }
  EXPECT_EQ(open_files(), before);
  EXPECT_EQ(read().events.size(), 1u) << "the file of the last recording";
}

TEST_F(Recorder, TheFileHasNoSlabThatNobodyClaimed) {
  start(path());
  put(1);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // slabs are prepared meanwhile
  stop();
  // The first slab may be in preparation when the thread needs one, and is then left out.
  EXPECT_LE(std::filesystem::file_size(path()), file_header_bytes + 2 * slab_bytes);
}

TEST_F(Recorder, TheClockOfEventsFollowsTheMonotonicClock) {
  using Clock = std::chrono::steady_clock;
  const auto monotonic_ns = [] {
    return static_cast<std::uint64_t>(
        std::chrono::nanoseconds(Clock::now().time_since_epoch()).count());
  };
  constexpr std::uint64_t slack_ns = 5'000'000;
  const auto end = Clock::now() + std::chrono::milliseconds(50);
  std::uint64_t last = 0;
  while (Clock::now() < end) {
    const std::uint64_t before = monotonic_ns(), now = now_ns(), after = monotonic_ns();
    ASSERT_GE(now + slack_ns, before);
    ASSERT_LE(now, after + slack_ns);
    ASSERT_GE(now, last);
    last = now;
  }
}

TEST_F(Recorder, AThreadMayRecordWhileTheFileIsReplaced) {
  std::atomic<bool> is_over = false;
  test::Thread recording([&] {
    while (!is_over) put(1);
  });
  bool is_started = true;
  for (int i = 0; is_started && i < 200; ++i) {
    is_started = bool(try_start(path()));
    put(2);
    stop();
  }
  is_over = true;
  EXPECT_TRUE(is_started);
}

TEST_F(Recorder, RecordsNothingWithoutAStart) {
  EXPECT_FALSE(is_recording());
  put(1);
  EXPECT_FALSE(lost_events());
  stop();  // does nothing
}

TEST_F(Recorder, KeepsAllEventsOfAllThreads) {
  constexpr int threads = 8, events = 20'000;
  start(path());
  {
    std::latch begin(threads);
    std::vector<test::Thread> running;
    for (int i = 0; i < threads; ++i) {
      running.emplace_back([&, i] {
        begin.arrive_and_wait();
        for (int k = 0; k < events; ++k) {
          record(EventKind::free, {.block = static_cast<std::uint64_t>(k),
                                   .bytes = static_cast<std::uint64_t>(i),
                                   .site = CallSite::here(),
                                   .tag = Tag(std::to_string(k % 50))});
        }
      });
    }
  }
  stop();
  const MemoryTrace trace = read();
  EXPECT_EQ(trace.header.lost_events, 0u);
  ASSERT_EQ(trace.events.size(), std::size_t{threads} * events);
  std::map<std::uint64_t, std::uint64_t> next;
  std::map<std::uint64_t, std::uint32_t> thread_of;
  std::uint64_t before = 0;
  for (std::size_t i = 0; i < trace.events.size(); ++i) {
    const MemoryEvent& one = trace.events[i];
    ASSERT_EQ(one.block, next[one.bytes]++) << "the events of a thread stay in their order";
    ASSERT_GE(one.time_ns, before);
    before = one.time_ns;
    ASSERT_EQ(thread_of.try_emplace(one.bytes, trace.threads[i]).first->second, trace.threads[i]);
    ASSERT_EQ(trace.find(DefinitionKind::tag, one.tag)->text, std::to_string(one.block % 50));
  }
}

TEST_F(Recorder, ARingKeepsTheLatestEvents) {
  start_ring(1 * mib);
  constexpr std::uint64_t events = 100'000;
  for (std::uint64_t i = 0; i < events; ++i) put(i);
  dump(path());
  const MemoryTrace trace = read();
  ASSERT_GT(trace.events.size(), 8000u);
  EXPECT_LT(trace.events.size(), 17'000u);
  EXPECT_EQ(trace.events.back().block, events - 1);
  EXPECT_EQ(trace.events.front().block, events - trace.events.size()) << "no gap between them";
  EXPECT_EQ(trace.header.lost_events, events - trace.events.size());
  put(events);  // recording goes on
  dump(path("again.trace"));
  EXPECT_EQ(read("again.trace").events.back().block, events);
}

TEST_F(Recorder, ARingKeepsTheSlabOfAThreadThatIsIdle) {
  start_ring(1 * mib);
  put(7'777'777);
  test::Thread([] {
    for (std::uint64_t i = 0; i < 100'000; ++i) put(i);
  }).join();
  dump(path());
  const MemoryTrace trace = read();
  EXPECT_EQ(std::ranges::count(trace.events, 7'777'777u, &MemoryEvent::block), 1);
}

TEST_F(Recorder, ARingIsWrittenWhileThreadsRecord) {
  start_ring(2 * mib);
  std::atomic<bool> is_over = false;
  {
    std::vector<test::Thread> running;
    for (int i = 0; i < 3; ++i) {
      running.emplace_back([&, i] {
        for (std::uint64_t k = 1; !is_over.load(std::memory_order_relaxed); ++k) {
          // A torn event would have other values.
          record(EventKind::copy, {.stream = k,
                                   .block = k,
                                   .address = k,
                                   .bytes = k,
                                   .extra = k,
                                   .tag = Tag(std::to_string(i))});
        }
      });
    }
    for (int round = 0; round < 20; ++round) {
      dump(path());
      const MemoryTrace trace = read();
      for (const MemoryEvent& one : trace.events) {
        ASSERT_EQ(one.kind, EventKind::copy);
        ASSERT_TRUE(one.stream == one.block && one.block == one.address &&
                    one.address == one.bytes && one.bytes == one.extra);
        ASSERT_NE(trace.find(DefinitionKind::tag, one.tag), nullptr);
      }
    }
    is_over = true;
  }
}

TEST_F(Recorder, ReadsTheTraceOfAProcessThatWasKilled) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    start(path());
    for (std::uint64_t i = 0; i < 5000; ++i) put(i);
    ::raise(SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  const MemoryTrace trace = read();
  EXPECT_EQ(trace.header.is_closed, 0u);
  ASSERT_EQ(trace.events.size(), 5000u);
  EXPECT_EQ(trace.events.back().block, 4999u);
}

TEST_F(Recorder, AForkedChildRecordsNothingUntilItStarts) {
  start(path());
  put(1);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    put(2);
    const bool is_silent = !lost_events();
    const bool can_start = bool(try_start(path("child.trace")));
    put(3);
    stop();
    std::_Exit(is_silent && can_start ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  put(4);
  stop();
  const MemoryTrace own = read();
  ASSERT_EQ(own.events.size(), 2u);
  EXPECT_EQ(own.events[1].block, 4u);
  const MemoryTrace childs = read("child.trace");
  ASSERT_EQ(childs.events.size(), 1u);
  EXPECT_EQ(childs.events[0].block, 3u);
}

TEST_F(Recorder, CountsWhatAFullDiskLoses) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    // Room for the header, one slab of definitions and one of events.
    const rlimit limit = {file_header_bytes + 2 * slab_bytes, RLIM_INFINITY};
    setrlimit(RLIMIT_FSIZE, &limit);
    start(path());
    for (std::uint64_t i = 0; i < 3 * slab_events; ++i) {
      record(EventKind::free, {.block = i, .tag = "tag"});
    }
    const bool is_counted = lost_events() >= 2 * slab_events;
    stop();
    std::_Exit(is_counted ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "the program goes on";
  const MemoryTrace trace = read();
  EXPECT_EQ(trace.events.size(), slab_events);
  EXPECT_EQ(trace.events.size() + trace.header.lost_events, 3 * slab_events);
}

TEST_F(Recorder, AFileThatWasCutIsKnownByItsLength) {
  start(path());
  for (std::uint64_t i = 0; i < 3 * slab_events; ++i) put(i);
  stop();
  EXPECT_FALSE(read().is_cut);
  const std::uintmax_t bytes = std::filesystem::file_size(path());
  for (const std::uintmax_t length :
       {bytes - 1, bytes - slab_bytes, file_header_bytes + slab_bytes, file_header_bytes}) {
    std::filesystem::resize_file(path(), length);
    EXPECT_TRUE(read().is_cut) << length;
  }
}

TEST_F(Recorder, LosesNothingBecauseOfAnEarlierRecording) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const rlimit small = {file_header_bytes + slab_bytes, RLIM_INFINITY};
    const rlimit large = {RLIM_INFINITY, RLIM_INFINITY};
    setrlimit(RLIMIT_FSIZE, &small);
    start(path("full.trace"));
    for (std::uint64_t i = 0; i < slab_events + 10; ++i) put(i);
    const bool is_full = lost_events() > 0;
    stop();
    setrlimit(RLIMIT_FSIZE, &large);
    start(path());
    put(1);
    const bool is_recorded = lost_events() == 0;
    stop();
    _exit(is_full && is_recorded ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(read().events.size(), 1u);
}

TEST_F(Recorder, TheFileHasNoGapAfterTheDiskWasFull) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const rlimit small = {file_header_bytes + slab_bytes, RLIM_INFINITY};
    const rlimit large = {RLIM_INFINITY, RLIM_INFINITY};
    setrlimit(RLIMIT_FSIZE, &small);
    start(path());
    for (std::uint64_t i = 0; i < 10 * slab_events; ++i) put(i);
    setrlimit(RLIMIT_FSIZE, &large);
    for (std::uint64_t i = 0; i < 2 * slab_events; ++i) put(i);
    stop();
    std::_Exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT_GT(read().events.size(), slab_events);
  EXPECT_LE(std::filesystem::file_size(path()), file_header_bytes + 4 * slab_bytes);
}

TEST_F(Recorder, IsFollowedWhileItIsWritten) {
  start(path());
  TraceFollower follower = TraceFollower::try_open(path()).value();
  MemoryTrace trace;
  std::uint64_t recorded = 0;
  for (const std::uint64_t more : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{10},
                                   slab_events, 2 * slab_events + 3, std::uint64_t{1}}) {
    for (std::uint64_t i = 0; i < more; ++i) {
      record(EventKind::free, {.block = ++recorded, .tag = "tag " + std::to_string(more)});
    }
    test::Thread([&] { put(++recorded); }).join();
    follower.try_read_new(trace).value();
    ASSERT_EQ(trace.events.size(), recorded);
  }
  EXPECT_EQ(trace.header.is_closed, 0u);
  stop();
  follower.try_read_new(trace).value();
  EXPECT_EQ(trace.header.is_closed, 1u);
  ASSERT_EQ(trace.events.size(), recorded) << "nothing is read twice";
  trace.sort();
  for (std::uint64_t i = 0; i < recorded; ++i) ASSERT_EQ(trace.events[i].block, i + 1);
  EXPECT_EQ(trace.find(DefinitionKind::tag, Tag("tag 10").number())->text, "tag 10");
}

TEST_F(Recorder, RefusesASecondRecording) {
  start(path());
  const Result<void> again = try_start(path("second.trace"));
  ASSERT_FALSE(again);
  EXPECT_EQ(again.failure().code(), ErrorCode::invalid_argument);
  EXPECT_FALSE(try_start_ring(4 * mib));
  EXPECT_FALSE(try_dump(path("dump.trace"))) << "there is no ring";
  EXPECT_FALSE(std::filesystem::exists(path("second.trace")));
  stop();
  start(path("second.trace"));
}

TEST_F(Recorder, RefusesThePathOfAnotherProcess) {
  int ready[2], go[2];
  ASSERT_EQ(pipe(ready) | pipe(go), 0);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  char byte = 0;
  if (child == 0) {
    start(path());
    put(1);
    if (::write(ready[1], &byte, 1) != 1 || ::read(go[0], &byte, 1) != 1) std::_Exit(1);
    stop();
    std::_Exit(0);
  }
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  const Result<void> started = try_start(path());
  EXPECT_FALSE(started);
  EXPECT_EQ(MemoryTrace::try_read(path())->events.size(), 1u) << "the file was not touched";
  EXPECT_TRUE(try_start(path("%p.trace")));
  EXPECT_TRUE(std::filesystem::exists(path((std::to_string(getpid()) + ".trace").c_str())));
  ASSERT_EQ(::write(go[1], &byte, 1), 1);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
}

TEST_F(Recorder, ReportsAPathThatCannotBeWritten) {
  const Result<void> started = try_start(path("no/such/folder/run.trace"));
  ASSERT_FALSE(started);
  EXPECT_EQ(started.failure().code(), ErrorCode::file);
  EXPECT_THROW(start(path("no/such/folder/run.trace")), FileError);
  EXPECT_FALSE(is_recording());
  EXPECT_THROW(start_ring(1000), InvalidArgument);
  start_ring(1 * mib);
  EXPECT_THROW(dump(path("no/such/folder/run.trace")), FileError);
}

TEST_F(Recorder, SkipsKindsThatItDoesNotKnow) {
  start(path());
  for (unsigned kind = 0; kind < 256; ++kind) record(static_cast<EventKind>(kind), {});
  stop();
  const MemoryTrace trace = read();
  std::size_t known = 0;
  for (unsigned kind = 0; kind < 256; ++kind) {
    if (is_event_kind(static_cast<std::uint8_t>(kind))) ++known;
  }
  EXPECT_EQ(trace.events.size(), known);
  EXPECT_FALSE(is_event_kind(0));
  EXPECT_FALSE(is_event_kind(event_kinds));
  for (const MemoryEvent& event : trace.events) {
    EXPECT_TRUE(is_event_kind(static_cast<std::uint8_t>(event.kind)));
  }
}

TEST_F(Recorder, LooksATextUpOncePerRecording) {
  TextCache cache;
  for (const char* name : {"first.trace", "second.trace"}) {
    start(path(name));
    // Other numbers in each recording.
    record(EventKind::finding, {.text = name});
    if (name[0] == 's') record(EventKind::finding, {.text = "another"});
    for (int i = 0; i < 2; ++i) record(EventKind::finding, {.text = "known", .text_cache = &cache});
    stop();
    const MemoryTrace trace = read(name);
    for (std::size_t i = trace.events.size() - 2; i < trace.events.size(); ++i) {
      const auto number = static_cast<std::uint32_t>(trace.events[i].extra);
      ASSERT_NE(trace.find(DefinitionKind::text, number), nullptr);
      EXPECT_EQ(trace.find(DefinitionKind::text, number)->text, "known");
    }
  }
}

TEST_F(Recorder, RangesNest) {
  start(path());
  {
    const Range outer("step 1");
    const Range inner("forward");
    put(1);
  }
  stop();
  const MemoryTrace trace = read();
  ASSERT_EQ(trace.events.size(), 5u);
  EXPECT_EQ(trace.events[0].kind, EventKind::range_begin);
  EXPECT_EQ(
      trace.find(DefinitionKind::text, static_cast<std::uint32_t>(trace.events[1].extra))->text,
      "forward");
  EXPECT_EQ(trace.events[3].kind, EventKind::range_end);
  EXPECT_EQ(trace.events[4].kind, EventKind::range_end);
}

TEST_F(Recorder, CutsLongTextsBetweenCharacters) {
  start(path());
  std::string text(max_text_bytes - 1, 'a');
  record(EventKind::range_begin, {.text = text + "\u00e9"});
  stop();
  EXPECT_EQ(read().find(DefinitionKind::text, 1)->text, text);
}

class Listener final : public RecordingListener {
 public:
  Listener() { start_listening(); }
  ~Listener() override { stop_listening(); }
  void recording_changed(bool is_on) noexcept override { changes.push_back(is_on); }
  std::vector<bool> changes;
};

TEST_F(Recorder, ListenersHearOfEveryChange) {
  Listener first;
  start(path());
  Listener second;
  stop();
  EXPECT_EQ(first.changes, (std::vector<bool>{false, true, false}));
  EXPECT_EQ(second.changes, (std::vector<bool>{true, false}));
}

/// Returns the bytes of a trace with events of several kinds.
std::vector<char> sample(const std::string& path) {
  start(path);
  for (std::uint64_t i = 0; i < 200; ++i) {
    record(EventKind::allocate, {.block = i,
                                 .bytes = 100,
                                 .site = CallSite::here(),
                                 .tag = Tag(std::to_string(i % 7)),
                                 .device = {1, "sim"},
                                 .resource = {2, "pool"},
                                 .text = i % 3 == 0 ? "a text" : ""});
  }
  stop();
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void write_file(const std::string& path, const std::vector<char>& bytes) {
  std::ofstream(path, std::ios::binary)
      .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

TEST_F(Recorder, ReadsDamagedFilesWithoutHarm) {
  const std::vector<char> good = sample(path("good.trace"));
  std::minstd_rand random(7);
  for (int round = 0; round < 400; ++round) {
    std::vector<char> bad = good;
    for (unsigned k = 0; k <= random() % 4; ++k) {
      // Most of the file is unused, so aim at headers and the beginnings of slabs.
      const std::size_t slab = file_header_bytes + random() % 2 * slab_bytes;
      const std::size_t at = random() % 4 == 0 ? random() % 400 : slab + random() % 4096;
      bad[at] = static_cast<char>(random());
    }
    if (random() % 4 == 0) bad.resize(random() % bad.size());
    write_file(path("bad.trace"), bad);
    const Result<MemoryTrace> trace = MemoryTrace::try_read(path("bad.trace"));
    if (trace) {
      EXPECT_LE(trace->events.size(), 2 * slab_events);
    }
  }
  EXPECT_EQ(MemoryTrace::try_read(path("none")).failure().code(), ErrorCode::file);
  write_file(path("bad.trace"), {'h', 'i'});
  EXPECT_EQ(MemoryTrace::try_read(path("bad.trace")).failure().code(), ErrorCode::invalid_argument);
}

}  // namespace
}  // namespace tern::trace
