// Random programs that allocate, write, read, pause, resume and free, on a few streams, compared
// with a model: the numbers of each array, and whether it is paused. Some calls of the device and
// of the disk fail. A call that fails has changed nothing.
//
// LONG_TESTS=1 in the environment runs more and longer programs.

#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "buffer/file_transfers.hpp"
#include "support/budgets.hpp"
#include "support/file_faults.hpp"
#include "support/temporary_folder.hpp"
#include "support/thorough.hpp"
#include "tern/backends/catalog.hpp"
#include "tern/backends/sim.hpp"
#include "tern/buffer/array.hpp"
#include "tern/buffer/pausable_resource.hpp"
#include "tern/core/bytes.hpp"

// A namespace of its own, because other tests have the same names.
namespace tern::pausing_model {
namespace {

using Numbers = Array<std::uint32_t>;

constexpr std::size_t page_count = 2 * mib / sizeof(std::uint32_t);
const char* const tags[] = {"a", "b", "c"};

enum class Failing : std::uint8_t { nothing, device, disk };

class PausingProgram {
 public:
  PausingProgram(const Device& device, Failing failing, std::uint64_t seed)
      : device_(device), failing_(failing), random_(seed) {
    for (int i = 0; i < 3; ++i) streams_.emplace_back(device_);
  }

  void run(int steps) {
    for (int step = 0; step < steps; ++step) {
      SCOPED_TRACE("step " + std::to_string(step));
      operation();
      compare();
      if (testing::Test::HasFailure()) return;
    }
    end_faults();
    budget_->set_limit(BudgetLimit::unlimited());
    resource_->resume(PauseTarget::everything());
    for (Held& held : held_) held.is_paused = false;
    for (Held& held : held_) read(held);
    held_.clear();
    device_.synchronize();
    resource_->wait();
    EXPECT_EQ(resource_->pause_statistics().resident_bytes, 0u);
    EXPECT_EQ(budget_->charged_bytes(), 0u);
  }

  /// What happened in a program.
  struct Counts {
    int pauses = 0, resumes = 0, refused_uses = 0, failures = 0;
  };
  [[nodiscard]] const Counts& counts() const { return counts_; }

 private:
  struct Held {
    Numbers array;
    std::vector<std::uint32_t> numbers;
    Tag tag;
    bool is_written = true;
    bool is_paused = false;
  };

  std::size_t roll(std::size_t sides) { return random_() % sides; }
  Stream& some_stream() { return streams_[roll(streams_.size())]; }
  Tag some_tag() { return tags[roll(std::size(tags))]; }

  void operation() {
    if (held_.empty()) return allocate();
    switch (roll(12)) {
      case 0:
      case 1:
        return held_.size() < 8 ? allocate() : free_one();
      case 2:
        return free_one();
      case 3:
      case 4:
        return write(held_[roll(held_.size())]);
      case 5:
      case 6:
        return read(held_[roll(held_.size())]);
      case 7:
      case 8:
        return pause();
      case 9:
      case 10:
        return resume();
      default:
        if (roll(3) == 0) device_.synchronize();
        if (roll(3) == 0) succeeded(resource_->try_wait());
        resource_->reclaim();
        begin_faults();
    }
  }

  void begin_faults() {
    if (failing_ == Failing::device) {
      sim::set_faults(device_,
                      "copy~0.05=fail,map~0.05=fail,allocate~0.05=oom,release~0.05=fail,"
                      "wait~0.02=fail,launch~0.05=fail");
    } else if (failing_ == Failing::disk) {
      faults_ = std::make_unique<test::PlannedFaults>(FileTransfers::instance());
      faults_->fail(
          EIO,
          roll(2) == 0 ? test::is_write_call
                       : +[](const FileCall& call) { return !call.is_write && !call.asks_cache; },
          1);
    }
  }
  void end_faults() {
    if (failing_ == Failing::device) sim::set_faults(device_, "");
    faults_ = nullptr;
  }
  template <class T>
  bool succeeded(const Result<T>& result) {
    if (result) return true;
    const ErrorCode code = result.failure().code();
    EXPECT_TRUE(failing_ != Failing::nothing || code == ErrorCode::out_of_budget)
        << result.failure().text();
    ++counts_.failures;
    // The next calls succeed, so that a program gets on.
    end_faults();
    return false;
  }

  void allocate() {
    const std::size_t count = 1 + roll(2 * page_count);
    Held held{
        .array = {}, .numbers = std::vector<std::uint32_t>(count, ++value_), .tag = some_tag()};
    Result<Numbers> array =
        Numbers::try_from(device_, held.numbers, {.resource = resource_, .tag = held.tag});
    if (!succeeded(array)) return;
    held.array = *std::move(array);
    held_.push_back(std::move(held));
  }
  void free_one() {
    std::swap(held_[roll(held_.size())], held_.back());
    held_.pop_back();
  }
  bool is_refused(const Held& held, const Failure& failure) {
    if (!held.is_paused) return false;
    ++counts_.refused_uses;
    if (!held.is_written && failure.code() == ErrorCode::never_written) return true;
    EXPECT_EQ(failure.code(), ErrorCode::access_conflict) << failure.text();
    EXPECT_EQ(failure.string("tag"), held.tag.name());
    return true;
  }
  void write(Held& held) {
    const std::size_t first = held.is_written ? roll(held.numbers.size()) : 0;
    const std::size_t count = held.numbers.size() - first;
    const Result<Mark> filled = held.array.slice(first, count).try_fill(value_ + 1, some_stream());
    if (!filled) {
      if (!is_refused(held, filled.failure())) succeeded(filled);
      return;
    }
    ASSERT_FALSE(held.is_paused);
    std::fill(held.numbers.begin() + std::ptrdiff_t(first), held.numbers.end(), ++value_);
    held.is_written = true;
  }
  void read(Held& held) {
    std::vector<std::uint32_t> read(held.numbers.size());
    const Result<void> copied = held.array.try_copy_to(read);
    if (!copied) {
      if (!held.is_paused && !held.is_written) {
        EXPECT_EQ(copied.failure().code(), ErrorCode::never_written);
      } else if (!is_refused(held, copied.failure())) {
        succeeded(copied);
      }
      return;
    }
    ASSERT_FALSE(held.is_paused);
    ASSERT_TRUE(held.is_written);
    ASSERT_EQ(read, held.numbers);
  }

  /// Returns the arrays that a call means.
  std::vector<Held*> meant(const Tag* tag, const Held* one) {
    std::vector<Held*> found;
    for (Held& held : held_) {
      if (one != nullptr ? &held == one : (tag == nullptr || held.tag == *tag)) {
        found.push_back(&held);
      }
    }
    return found;
  }
  template <class Call, class Apply>
  void change(bool to_paused, Call call, Apply apply) {
    const Tag tag = some_tag();
    Held& one = held_[roll(held_.size())];
    const std::size_t by = roll(4);
    const PauseTarget what = by == 0   ? PauseTarget::everything()
                             : by == 1 ? PauseTarget(one.array.storage())
                                       : PauseTarget(tag);
    std::vector<Held*> found = meant(by < 2 ? nullptr : &tag, by == 1 ? &one : nullptr);
    const bool has_any = !found.empty();
    std::erase_if(found, [&](const Held* held) { return held->is_paused == to_paused; });
    const Result<Mark> called = call(what);
    if (found.empty()) {
      if (by == 0) {
        EXPECT_TRUE(called);
      } else {
        ASSERT_FALSE(called);
        EXPECT_EQ(called.failure().code(),
                  has_any ? ErrorCode::access_conflict : ErrorCode::not_found);
      }
      return;
    }
    if (!succeeded(called)) return;
    for (Held* const held : found) {
      held->is_paused = to_paused;
      apply(*held);
    }
  }
  void pause() {
    const bool to_disk = roll(3) == 0 || failing_ == Failing::disk;
    const Keep keep = roll(8) == 0 ? Keep::nothing : to_disk ? Keep::disk : Keep::host;
    change(
        true,
        [&](const PauseTarget& what) {
          ++counts_.pauses;
          return resource_->try_pause(what, keep,
                                      roll(2) == 0 ? StreamRef(some_stream()) : StreamRef());
        },
        [&](Held& held) { held.is_written = held.is_written && keep != Keep::nothing; });
  }
  void resume() {
    change(
        false,
        [&](const PauseTarget& what) {
          ++counts_.resumes;
          return resource_->try_resume(what, roll(2) == 0 ? StreamRef(some_stream()) : StreamRef());
        },
        [](Held&) {});
  }

  void compare() {
    const PauseStatistics now = resource_->pause_statistics();
    std::size_t paused = 0, live = 0;
    for (const Held& held : held_) {
      const std::size_t bytes = (held.numbers.size() + page_count - 1) / page_count * 2 * mib;
      live += bytes;
      paused += held.is_paused ? bytes : 0;
    }
    EXPECT_EQ(now.paused_bytes, paused);
    EXPECT_EQ(now.resident_bytes, budget_->used_bytes());
    EXPECT_GE(now.reserved_bytes, live) << "freed storages may wait for streams";
  }

  const Device device_;
  const Failing failing_;
  std::mt19937_64 random_;
  test::TemporaryFolder folder_;
  BudgetHandle budget_ = test::limited(24 * mib);
  std::shared_ptr<PausableResource> resource_ = std::make_shared<PausableResource>(
      device_, PausableOptions{.budget = budget_, .directory = folder_ / ""});
  std::vector<Stream> streams_;
  std::vector<Held> held_;
  std::unique_ptr<test::PlannedFaults> faults_;
  std::uint32_t value_ = 0;
  Counts counts_;
};

struct PausingCase {
  std::string name;
  bool is_sim = true;
  Failing failing = Failing::nothing;
};
void PrintTo(const PausingCase& one, std::ostream* out) { *out << one.name; }

class PausableModel : public testing::TestWithParam<PausingCase> {};
INSTANTIATE_TEST_SUITE_P(Cases, PausableModel,
                         testing::Values(PausingCase{"sim"},
                                         PausingCase{"sim_with_faults", true, Failing::device},
                                         PausingCase{"sim_with_bad_disk", true, Failing::disk},
                                         PausingCase{"host", false},
                                         PausingCase{"host_with_bad_disk", false, Failing::disk}),
                         [](const auto& one) { return one.param.name; });

TEST_P(PausableModel, HoldsForRandomPrograms) {
  const int programs = test::in_full() ? 8 : 3;
  const int steps = test::in_full() ? 400 : 120;
  PausingProgram::Counts sum;
  for (int seed = 1; seed <= programs; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const Device device = GetParam().is_sim
                              ? sim::open({.seed = std::uint64_t(seed), .memory_bytes = 64 * mib})
                              : open_device("host");
    PausingProgram program(device, GetParam().failing, std::uint64_t(seed));
    program.run(steps);
    if (GetParam().is_sim) {
      for (const Finding& finding : sim::findings(device)) ADD_FAILURE() << finding.text();
    }
    if (HasFailure()) return;
    sum.pauses += program.counts().pauses;
    sum.resumes += program.counts().resumes;
    sum.refused_uses += program.counts().refused_uses;
    sum.failures += program.counts().failures;
  }
  EXPECT_GT(sum.pauses, programs);
  EXPECT_GT(sum.resumes, programs);
  EXPECT_GT(sum.refused_uses, programs);
  if (GetParam().failing != Failing::nothing) {
    EXPECT_GT(sum.failures, 0);
  }
}

}  // namespace
}  // namespace tern::pausing_model
