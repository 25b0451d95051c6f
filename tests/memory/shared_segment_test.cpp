#include "memory/shared_segment.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "support/file_limit.hpp"
#include "support/forked_child.hpp"
#include "support/temporary_folder.hpp"
#include "support/thorough.hpp"
#include "support/thread.hpp"
#include "tern/core/bytes.hpp"

namespace tern {
namespace {

using Segment = std::unique_ptr<SharedSegment>;

class SharedSegmentTest : public testing::Test {
 protected:
  [[nodiscard]] Result<Segment> try_join(std::string_view tenant,
                                         std::optional<std::uint64_t> limit = 1000,
                                         std::string_view name = "test") const {
    return SharedSegment::try_join({.name = name,
                                    .tenant = tenant,
                                    .limit = limit,
                                    .tenant_limit = max_request_bytes,
                                    .folder = folder / ""});
  }
  [[nodiscard]] Segment join(std::string_view tenant, std::uint64_t limit = 1000) const {
    return try_join(tenant, limit).value();
  }
  [[nodiscard]] ErrorCode join_code(std::string_view tenant, std::optional<std::uint64_t> limit,
                                    std::string_view name = "test") const {
    const Result<Segment> joined = try_join(tenant, limit, name);
    EXPECT_FALSE(joined);
    if (joined) return ErrorCode::violation;
    EXPECT_FALSE(joined.failure().text().empty());
    return joined.failure().code();
  }
  [[nodiscard]] std::string path(const std::string& name = "test") const {
    return folder / ("/tern-budget-" + std::to_string(geteuid()) + "-" + name);
  }
  /// Runs `act` on a segment that a child has joined as `tenant`, and leaves the child waiting.
  template <class Act>
  [[nodiscard]] pid_t child_that(std::string_view tenant, Act act) const {
    std::array<int, 2> ends = {};
    EXPECT_EQ(pipe2(ends.data(), O_CLOEXEC), 0);
    const pid_t child = fork();
    if (child == 0) {
      alarm(20);
      // Never left: the process is killed.
      static Segment segment;
      segment = join(tenant);
      act(*segment);
      static_cast<void>(!write(ends[1], "x", 1));
      for (;;) pause();
    }
    close(ends[1]);
    char byte = 0;
    EXPECT_EQ(read(ends[0], &byte, 1), 1);
    close(ends[0]);
    return child;
  }
  static void kill_and_reap(pid_t child) {
    EXPECT_EQ(kill(child, SIGKILL), 0);
    EXPECT_EQ(waitpid(child, nullptr, 0), child);
  }
  static std::uint32_t word_of(const SharedSegment& segment) {
    return (segment.slot() + 1) | segment.own().generation.load() << 8;
  }

  const test::TemporaryFolder folder;
};

TEST_F(SharedSegmentTest, GrantsExactlyTheLimit) {
  const Segment a = join("a"), b = join("b");
  EXPECT_EQ(a->claim(600), SharedClaim::granted);
  EXPECT_EQ(b->claim(401), SharedClaim::over_limit);
  EXPECT_EQ(b->claim(400), SharedClaim::granted);
  EXPECT_EQ(a->claim(1), SharedClaim::over_limit);
  EXPECT_EQ(a->charged(), 1000u);
  EXPECT_EQ(b->peak(), 1000u);
  a->release(600);
  EXPECT_EQ(b->claim(max_request_bytes - 400), SharedClaim::over_limit);
  EXPECT_EQ(b->claim(UINT64_MAX), SharedClaim::over_tenant_limit);
  EXPECT_EQ(b->claim(600), SharedClaim::granted);
  EXPECT_EQ(a->own().peak.load(), 600u);
  EXPECT_EQ(b->own().peak.load(), 1000u);
}

TEST_F(SharedSegmentTest, GrantsExactlyTheLimitOfATenant) {
  const Segment a = join("a"), b = join("b");
  ASSERT_TRUE(a->try_set_limit(a->rows().at(1), 300));
  EXPECT_EQ(b->claim(301), SharedClaim::over_tenant_limit);
  EXPECT_EQ(b->claim(300), SharedClaim::granted);
  EXPECT_EQ(b->claim(1), SharedClaim::over_tenant_limit);
  EXPECT_EQ(b->claim(0), SharedClaim::granted);
  ASSERT_TRUE(a->try_set_limit(a->rows().at(1), 100));
  EXPECT_EQ(b->claim(0), SharedClaim::over_tenant_limit);
  EXPECT_EQ(a->claim(700), SharedClaim::granted);
}

TEST_F(SharedSegmentTest, FollowsItsLimit) {
  const Segment a = join("a");
  EXPECT_EQ(a->claim(800), SharedClaim::granted);
  ASSERT_TRUE(a->try_set_limit(500));
  EXPECT_EQ(a->claim(0), SharedClaim::over_limit);
  a->release(400);
  EXPECT_EQ(a->claim(101), SharedClaim::over_limit);
  EXPECT_EQ(a->claim(100), SharedClaim::granted);
  ASSERT_TRUE(a->try_set_limit(max_request_bytes));
  EXPECT_EQ(a->claim(max_request_bytes - 500), SharedClaim::granted);
  EXPECT_EQ(a->claim(1), SharedClaim::over_tenant_limit);
}

TEST_F(SharedSegmentTest, KeepsTheLimitOfTheFirstTenant) {
  const Segment a = join("a", 1000), b = join("b", 5000), c = try_join("c", {}).value();
  EXPECT_EQ(b->limit(), 1000u);
  EXPECT_EQ(c->limit(), 1000u);
}

TEST_F(SharedSegmentTest, IsAFileOfThisUserUntilTheLastTenantLeaves) {
  Segment a = join("a"), b = join("b");
  struct stat now = {};
  ASSERT_EQ(stat(path().c_str(), &now), 0);
  EXPECT_EQ(now.st_mode & 0777, 0600u);
  EXPECT_EQ(now.st_size, static_cast<off_t>(shared_segment_bytes));
  a.reset();
  EXPECT_TRUE(std::filesystem::exists(path()));
  b.reset();
  EXPECT_FALSE(std::filesystem::exists(path()));
  EXPECT_EQ(join_code("a", {}), ErrorCode::not_found);
}

TEST_F(SharedSegmentTest, RejectsNamesThatAreNoFileNames) {
  for (const std::string& name : {std::string(), std::string("a/b"), std::string("a\nb"),
                                  std::string("a\0b", 3), std::string(65, 'a')}) {
    EXPECT_EQ(join_code("a", 1000, name), ErrorCode::invalid_argument) << name;
    EXPECT_EQ(join_code(name, 1000), ErrorCode::invalid_argument) << name;
    EXPECT_FALSE(SharedSegment::try_inspect(name, folder / ""));
  }
  const std::string longest(64, 'a');
  const Segment joined = try_join(longest, 1000, longest).value();
  EXPECT_EQ(joined->rows().at(0).name, longest);
}

TEST_F(SharedSegmentTest, RejectsANameThatALivingTenantHas) {
  Segment a = join("a");
  const Result<Segment> other = try_join("a");
  ASSERT_FALSE(other);
  EXPECT_EQ(other.failure().code(), ErrorCode::invalid_argument);
  EXPECT_EQ(other.failure().number("pid"), static_cast<std::uint64_t>(getpid()));
  const Segment b = join("b");
  a.reset();
  EXPECT_EQ(join("a")->slot(), 0u);
}

TEST_F(SharedSegmentTest, RejectsMoreTenantsThanItHasPlaces) {
  std::vector<Segment> all;
  for (std::size_t i = 0; i < shared_slots; ++i) all.push_back(join("t" + std::to_string(i)));
  const Result<Segment> other = try_join("other");
  ASSERT_FALSE(other);
  EXPECT_EQ(other.failure().code(), ErrorCode::capacity);
  EXPECT_EQ(other.failure().number("max"), shared_slots);
  EXPECT_EQ(all.back()->claim(1000), SharedClaim::granted);
  EXPECT_EQ(all.front()->claim(1), SharedClaim::over_limit);
  all.back().reset();
  EXPECT_TRUE(try_join("other"));
}

TEST_F(SharedSegmentTest, RejectsDamagedContents) {
  struct Damage {
    const char* what;
    std::function<void(SharedSegment&)> act;
  };
  const std::vector<Damage> all = {
      {"magic", [](SharedSegment& s) { s.header().magic = 1; }},
      {"version", [](SharedSegment& s) { s.header().version = 2; }},
      {"slots", [](SharedSegment& s) { s.header().slot_count = 3; }},
      {"size", [](SharedSegment& s) { s.header().size_bytes = 3; }},
      {"slot_end", [](SharedSegment& s) { s.header().slot_end = shared_slots + 1; }},
      {"limit", [](SharedSegment& s) { s.header().limit = UINT64_MAX; }},
      {"state", [](SharedSegment& s) { s.slots()[7].state = 2; }},
      {"no process", [](SharedSegment& s) { s.slots()[7].state = SharedSlot::used; }},
      {"pid", [](SharedSegment& s) { s.own().pid = 0; }},
      {"no name", [](SharedSegment& s) { s.own().name[0] = 0; }},
      {"name", [](SharedSegment& s) { s.own().name[0] = 0x0a41; }},
      {"charged", [](SharedSegment& s) { s.own().charged = UINT64_MAX; }},
      {"tenant limit", [](SharedSegment& s) { s.own().limit = UINT64_MAX; }},
  };
  for (const Damage& one : all) {
    {
      const Segment a = join("a");
      one.act(*a);
      const Result<Segment> joined = try_join("b");
      ASSERT_FALSE(joined) << one.what;
      EXPECT_EQ(joined.failure().code(), ErrorCode::bad_format) << one.what;
      EXPECT_NE(joined.failure().text().find("test"), std::string::npos);
      EXPECT_FALSE(SharedSegment::try_inspect("test", folder / "")) << one.what;
    }
    unlink(path().c_str());
  }
}

TEST_F(SharedSegmentTest, RejectsFilesThatAreNoSegments) {
  const std::string name = path().substr(path().find("tern-budget"));
  const std::vector<std::byte> zeros(shared_segment_bytes);
  folder.write(name, std::vector<std::byte>(10));
  chmod(path().c_str(), 0600);
  EXPECT_EQ(join_code("a", 1000), ErrorCode::bad_format);  // another length
  folder.write(name, zeros);
  chmod(path().c_str(), 0644);
  EXPECT_EQ(join_code("a", 1000), ErrorCode::bad_format);  // others may open it
  std::filesystem::remove(path());
  std::filesystem::create_symlink("/dev/null", path());
  EXPECT_EQ(join_code("a", 1000), ErrorCode::file);
  std::filesystem::remove(path());
  std::filesystem::create_directory(path());
  EXPECT_EQ(join_code("a", 1000), ErrorCode::file);
}

TEST_F(SharedSegmentTest, BeginsAnewWhatWasNeverFinished) {
  folder.write(path().substr(path().find("tern-budget")),
               std::vector<std::byte>(shared_segment_bytes));
  chmod(path().c_str(), 0600);
  EXPECT_EQ(join_code("a", {}), ErrorCode::bad_format);
  EXPECT_FALSE(SharedSegment::try_inspect("test", folder / ""));
  const Segment a = join("a", 77);
  EXPECT_EQ(a->limit(), 77u);
}

TEST_F(SharedSegmentTest, RejectsAnotherNamespace) {
  const Segment a = join("a");
  a->header().namespaces += 1;
  EXPECT_EQ(join_code("b", 1000), ErrorCode::unsupported);
}

TEST_F(SharedSegmentTest, RejectsTheFileOfAnotherUser) {
  if (geteuid() != 0) return;  // only root can give files away
  folder.write(path().substr(path().find("tern-budget")),
               std::vector<std::byte>(shared_segment_bytes));
  chmod(path().c_str(), 0600);
  ASSERT_EQ(chown(path().c_str(), 65534, 65534), 0);
  const Result<Segment> joined = try_join("a");
  ASSERT_FALSE(joined);
  EXPECT_EQ(joined.failure().code(), ErrorCode::file);
  EXPECT_EQ(joined.failure().number("owner"), 65534u);
}

TEST_F(SharedSegmentTest, LeavesNoFileIfThereIsNoMemory) {
  {
    const test::FileLimit small(4096);
    const Result<Segment> joined = try_join("a");
    ASSERT_FALSE(joined);
    EXPECT_EQ(joined.failure().code(), ErrorCode::file);
    EXPECT_EQ(joined.failure().number("os_code"), static_cast<std::uint64_t>(EFBIG));
  }
  EXPECT_FALSE(std::filesystem::exists(path()));
  EXPECT_TRUE(try_join("a"));
}

TEST_F(SharedSegmentTest, SaysThatSharedMemoryIsFull) {
  if (!test::children_can_allocate) return;
  if (geteuid() != 0) return;  // only root can mount
  EXPECT_EQ(test::in_a_forked_child([&] {
              const std::string full = folder / "full";
              if (unshare(CLONE_NEWNS) != 0) return true;  // a container that allows no mounts
              if (mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return true;
              std::filesystem::create_directory(full);
              if (mount("none", full.c_str(), "tmpfs", 0, "size=8k") != 0) return true;
              const Result<Segment> joined = SharedSegment::try_join(
                  {.name = "test", .tenant = "a", .limit = 1000, .folder = full});
              return !joined && joined.failure().code() == ErrorCode::file &&
                     joined.failure().number("os_code") == static_cast<std::uint64_t>(ENOSPC) &&
                     joined.failure().number("requested") == shared_segment_bytes;
            }),
            0);
}

TEST_F(SharedSegmentTest, CollectsADeadTenantOnce) {
  if (!test::children_can_allocate) return;
  const Segment a = join("a"), b = join("b");
  const pid_t child =
      child_that("c", [](SharedSegment& s) { static_cast<void>(s.claim(400)); });
  EXPECT_EQ(a->collect(), 0u);
  EXPECT_EQ(a->charged(), 400u);
  EXPECT_EQ(a->rows().size(), 3u);
  kill_and_reap(child);
  EXPECT_EQ(a->charged(), 400u);
  EXPECT_EQ(a->collect(), 400u);
  EXPECT_EQ(b->collect(), 0u);
  EXPECT_EQ(b->charged(), 0u);
  EXPECT_EQ(a->rows().size(), 2u);
}

TEST_F(SharedSegmentTest, EachByteOfADeadTenantIsCollectedOnce) {
  if (!test::children_can_allocate) return;
  const int rounds = test::in_full() ? 200 : 20;
  const Segment a = join("a"), b = join("b");
  for (int i = 0; i < rounds; ++i) {
    const pid_t child =
        child_that("c", [](SharedSegment& s) { static_cast<void>(s.claim(400)); });
    kill_and_reap(child);
    std::uint64_t from_a = 0, from_b = 0;
    {
      const test::Thread other([&] { from_b = b->collect(); });
      from_a = a->collect();
    }
    EXPECT_EQ(from_a + from_b, 400u);
  }
}

TEST_F(SharedSegmentTest, ANewTenantGetsThePlaceAndTheNameOfADeadOne) {
  if (!test::children_can_allocate) return;
  const Segment a = join("a");
  const pid_t child = child_that("b", [](SharedSegment& s) {
    static_cast<void>(s.claim(400));
    s.own().asked.store(7);
  });
  kill_and_reap(child);
  const Segment b = join("b");
  EXPECT_EQ(b->slot(), 1u);
  EXPECT_EQ(a->charged(), 0u);
  EXPECT_EQ(b->own().peak.load(), 0u);
  EXPECT_EQ(b->own().asked.load(), 0u);
}

TEST_F(SharedSegmentTest, BeginsAnewIfAllTenantsWereKilled) {
  if (!test::children_can_allocate) return;
  const pid_t child =
      child_that("a", [](SharedSegment& s) { static_cast<void>(s.claim(400)); });
  kill_and_reap(child);
  EXPECT_TRUE(std::filesystem::exists(path()));
  EXPECT_EQ(join_code("a", {}), ErrorCode::not_found);
  const Segment a = join("a", 5000);
  EXPECT_EQ(a->limit(), 5000u);
  EXPECT_EQ(a->charged(), 0u);
  EXPECT_EQ(a->peak(), 0u);
}

TEST_F(SharedSegmentTest, DeletesTheFileIfOnlyDeadTenantsAreLeft) {
  if (!test::children_can_allocate) return;
  Segment a = join("a");
  kill_and_reap(child_that("b", [](SharedSegment& s) { static_cast<void>(s.claim(400)); }));
  a.reset();
  EXPECT_FALSE(std::filesystem::exists(path()));
}

TEST_F(SharedSegmentTest, TakesTheLockFromADeadHolder) {
  if (!test::children_can_allocate) return;
  const Segment a = join("a");
  const pid_t child = child_that("b", [](SharedSegment& s) {
    // Killed after it has added its bytes, and before it has raised the peak.
    s.header().lock.store(word_of(s));
    s.own().charged.fetch_add(300);
  });
  kill_and_reap(child);
  EXPECT_EQ(a->claim(100), SharedClaim::granted);
  EXPECT_EQ(a->peak(), 400u);
  EXPECT_EQ(a->claim(601), SharedClaim::over_limit);
  EXPECT_EQ(a->collect(), 300u);
  EXPECT_EQ(a->charged(), 100u);
  EXPECT_EQ(a->peak(), 400u);
}

TEST_F(SharedSegmentTest, RepairsThePeakOfADeadHolder) {
  if (!test::children_can_allocate) return;
  const Segment a = join("a");
  kill_and_reap(child_that("b", [](SharedSegment& s) {
    s.header().lock.store(word_of(s));
    s.own().charged.fetch_add(300);
  }));
  EXPECT_EQ(a->collect(), 300u);
  EXPECT_EQ(a->charged(), 0u);
  EXPECT_EQ(a->peak(), 300u);
}

// A debugger kills the child after each number of instructions of a claim and a release.
TEST_F(SharedSegmentTest, ATenantMayBeKilledAtAnyInstruction) {
  if (!test::children_can_allocate) return;
  constexpr int max_steps = 4000;
  const int stride = test::in_full() ? 1 : 7;
  const Segment a = join("a");
  bool is_through = false;
  std::uint64_t found = 0;
  for (int steps = 0; !is_through && steps < max_steps; steps += stride) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(20);
      static const Segment own = join("b");
      if (ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) _exit(9);
      ::raise(SIGSTOP);
      static_cast<void>(own->claim(100));
      own->release(100);
      ::raise(SIGSTOP);
      _exit(0);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    if (WIFEXITED(status)) return;  // a container that allows no debuggers
    for (int i = 0; i < steps && !is_through; ++i) {
      ASSERT_EQ(ptrace(PTRACE_SINGLESTEP, child, nullptr, nullptr), 0);
      ASSERT_EQ(waitpid(child, &status, 0), child);
      ASSERT_TRUE(WIFSTOPPED(status));
      is_through = WSTOPSIG(status) == SIGSTOP;
    }
    kill_and_reap(child);
    const std::uint64_t left = a->charged();
    ASSERT_TRUE(left == 0 || left == 100) << "after " << steps << " instructions";
    found += left;
    ASSERT_EQ(a->claim(1000 - left), SharedClaim::granted);
    ASSERT_EQ(a->claim(1), SharedClaim::over_limit);
    a->release(1000 - left);
    ASSERT_EQ(a->collect(), left);
    ASSERT_EQ(a->charged(), 0u);
    ASSERT_EQ(a->rows().size(), 1u);
  }
  // A single step clears the monitor of a load-exclusive loop, so some processors never leave it.
  EXPECT_TRUE(!is_through || found > 0);
}

TEST_F(SharedSegmentTest, DoesNotTakeTheLockFromALivingHolder) {
  if (!test::children_can_allocate) return;
  const Segment a = join("a");
  a->set_patience_ns(1'000'000);
  const pid_t child =
      child_that("b", [](SharedSegment& s) { s.header().lock.store(word_of(s)); });
  EXPECT_EQ(a->claim(100), SharedClaim::timed_out);
  EXPECT_EQ(a->lock_holder().value().pid, static_cast<std::uint64_t>(child));
  EXPECT_FALSE(a->try_set_limit(1));
  EXPECT_EQ(a->limit(), 1000u);
  a->release(0);
  kill_and_reap(child);
  EXPECT_EQ(a->claim(100), SharedClaim::granted);
  EXPECT_FALSE(a->lock_holder());
}

TEST_F(SharedSegmentTest, TakesTheLockFromAHolderThatNeverWas) {
  const Segment a = join("a");
  const std::uint32_t other_generation = word_of(*a) + (1u << 8);
  for (const std::uint32_t word :
       {other_generation, 200u, 0xffu | 77u << 8, 2u, 0x8000'0000u | 200u}) {
    a->header().lock.store(word);
    EXPECT_EQ(a->claim(1), SharedClaim::granted) << word;
  }
  EXPECT_EQ(a->charged(), 5u);
}

TEST_F(SharedSegmentTest, AForkedChildDoesNotLeaveForItsParent) {
  if (!test::children_can_allocate) return;
  Segment a = join("a");
  EXPECT_EQ(a->claim(100), SharedClaim::granted);
  EXPECT_EQ(test::in_a_forked_child([&] {
              a.reset();
              return true;
            }),
            0);
  EXPECT_TRUE(std::filesystem::exists(path()));
  EXPECT_EQ(a->charged(), 100u);
  EXPECT_EQ(a->rows().size(), 1u);
}

TEST_F(SharedSegmentTest, AForkedChildJoinsForItself) {
  if (!test::children_can_allocate) return;
  const Segment a = join("a");
  EXPECT_EQ(a->claim(900), SharedClaim::granted);
  EXPECT_EQ(test::in_a_forked_child([&] {
              static const Segment own = join("b");  // never left: the child ends with _exit()
              return own->claim(101) == SharedClaim::over_limit &&
                     own->claim(100) == SharedClaim::granted && own->charged() == 1000;
            }),
            0);
  EXPECT_EQ(a->claim(100), SharedClaim::over_limit);  // the child has not left
  EXPECT_EQ(a->collect(), 100u);
  EXPECT_EQ(a->claim(100), SharedClaim::granted);
}

TEST_F(SharedSegmentTest, CanBeReadWithoutJoining) {
  EXPECT_EQ(SharedSegment::try_inspect("test", folder / "").failure().code(),
            ErrorCode::not_found);
  const Segment a = join("a");
  EXPECT_EQ(a->claim(100), SharedClaim::granted);
  {
    const Segment reader = SharedSegment::try_inspect("test", folder / "").value();
    EXPECT_EQ(reader->charged(), 100u);
    ASSERT_EQ(reader->rows().size(), 1u);
    EXPECT_EQ(reader->rows()[0].name, "a");
    EXPECT_EQ(reader->rows()[0].process.pid, static_cast<std::uint64_t>(getpid()));
  }
  EXPECT_TRUE(std::filesystem::exists(path()));
}

TEST_F(SharedSegmentTest, JoinsWhileOthersLeave) {
  const int rounds = test::races(200);
  const auto run = [&](const char* tenant) {
    for (int i = 0; i < rounds; ++i) {
      const Segment joined = join(tenant);
      EXPECT_EQ(joined->claim(500), SharedClaim::granted);
      joined->release(500);
      // The file with the name is the one that was joined.
      const Segment there = SharedSegment::try_inspect("test", folder / "").value();
      const std::vector<SharedRow> rows = there->rows();
      EXPECT_NE(std::ranges::find(rows, tenant, &SharedRow::name), rows.end());
    }
  };
  {
    const test::Thread a(run, "a"), b(run, "b");
  }
  EXPECT_FALSE(std::filesystem::exists(path()));
}

TEST_F(SharedSegmentTest, ThreadsNeverExceedTheLimit) {
  const int rounds = test::races(20'000);
  const Segment a = join("a", 5), b = join("b", 5);
  std::atomic<int> running = 4;
  const auto run = [&](SharedSegment* own, std::uint64_t bytes) {
    for (int i = 0; i < rounds; ++i) {
      if (own->claim(bytes) != SharedClaim::granted) continue;
      EXPECT_LE(own->charged(), 5u);
      own->release(bytes);
    }
    --running;
  };
  {
    const test::Thread first(run, a.get(), 1), second(run, a.get(), 2), third(run, b.get(), 3),
        fourth(run, b.get(), 4);
    while (running != 0) {
      EXPECT_LE(a->charged(), 5u);
      EXPECT_LE(a->peak(), 5u);
    }
  }
  EXPECT_EQ(a->charged(), 0u);
  EXPECT_GE(a->peak(), b->own().peak.load());
  EXPECT_LE(a->own().peak.load(), 3u);
  EXPECT_EQ(b->claim(5), SharedClaim::granted);
}

}  // namespace
}  // namespace tern
