// Compares the checker with brute force: tiny random programs, under every schedule.

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "support/checked_program.hpp"
#include "support/thorough.hpp"
#include "tools/pool_program.hpp"

namespace tern::test {
namespace {

using tools::Random;

enum class Kind : std::uint8_t { read, write, record, wait, host_read, host_write, host_wait };

struct Step {
  Kind kind;
  ActorId stream = 0;  // of host_wait: the one waited for
  std::uint64_t offset = 0, bytes = 0;
  std::uint64_t event = 0;
  std::optional<std::size_t> target = {};  // of wait and host_wait: the step it needs done
};
using Program = std::vector<Step>;

bool is_access(const Step& step) {
  return step.kind == Kind::read || step.kind == Kind::write || step.kind == Kind::host_read ||
         step.kind == Kind::host_write;
}
bool is_write(const Step& step) {
  return step.kind == Kind::write || step.kind == Kind::host_write;
}
bool is_of_host(const Step& step) { return step.kind >= Kind::host_read; }
bool do_conflict(const Step& a, const Step& b) {
  return is_access(a) && is_access(b) && (is_write(a) || is_write(b)) &&
         a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes;
}

Program make_program(Random& random) {
  const ActorId streams = static_cast<ActorId>(2 + random.below(2));
  const std::size_t size = 3 + random.below(6);
  const bool has_host = random.below(2) == 0;
  std::array<std::optional<std::size_t>, 2> records;
  Program program;
  for (std::size_t i = 0; i < size; ++i) {
    Step step{Kind::read};
    step.stream = static_cast<ActorId>(1 + random.below(streams));
    step.offset = random.below(4);
    step.bytes = 1 + random.below(4 - step.offset);
    step.event = random.below(2);
    const std::uint64_t dice = random.below(has_host ? 100 : 80);
    step.kind = dice < 20   ? Kind::read
                : dice < 45 ? Kind::write
                : dice < 62 ? Kind::record
                : dice < 80 ? Kind::wait
                : dice < 86 ? Kind::host_read
                : dice < 91 ? Kind::host_write
                            : Kind::host_wait;
    if (step.kind == Kind::record) records[step.event] = i;
    if (step.kind == Kind::wait) step.target = records[step.event];
    if (step.kind == Kind::host_wait) {
      // For a random operation of the stream, not always its last.
      std::vector<std::size_t> candidates;
      for (std::size_t k = 0; k < i; ++k) {
        if (!is_of_host(program[k]) && program[k].stream == step.stream) candidates.push_back(k);
      }
      if (!candidates.empty()) step.target = candidates[random.below(candidates.size())];
    }
    program.push_back(step);
  }
  return program;
}

/// Runs a program in every order its streams, waits and host thread allow, and remembers for each
/// two steps whether the first was ever done before the second.
class Schedules {
 public:
  explicit Schedules(const Program& program) : program_(program) { run(); }
  [[nodiscard]] bool can_precede(std::size_t a, std::size_t b) const { return before_[a][b]; }
  [[nodiscard]] std::uint64_t count() const { return count_; }

 private:
  /// The host goes through the program and submits; its own accesses and waits take place there.
  [[nodiscard]] bool is_submitted(std::size_t at) const {
    for (std::size_t k = 0; k < at; ++k) {
      if (is_of_host(program_[k]) && !is_done(k)) return false;
    }
    return true;
  }
  [[nodiscard]] bool is_done(std::size_t at) const { return (done_ >> at & 1) != 0; }
  [[nodiscard]] bool can_run(std::size_t at) const {
    const Step& step = program_[at];
    if (is_done(at) || !is_submitted(at)) return false;
    if (step.target && !is_done(*step.target)) return false;
    if (is_of_host(step)) return true;
    for (std::size_t k = 0; k < at; ++k) {
      const bool is_same = !is_of_host(program_[k]) && program_[k].stream == step.stream;
      if (is_same && !is_done(k)) return false;
    }
    return true;
  }
  void run() {
    if (order_.size() == program_.size()) {
      ++count_;
      for (std::size_t i = 0; i < order_.size(); ++i) {
        for (std::size_t k = i + 1; k < order_.size(); ++k) before_[order_[i]][order_[k]] = true;
      }
      return;
    }
    for (std::size_t at = 0; at < program_.size(); ++at) {
      if (!can_run(at)) continue;
      done_ |= 1u << at;
      order_.push_back(at);
      run();
      order_.pop_back();
      done_ &= ~(1u << at);
    }
  }

  const Program& program_;
  std::uint32_t done_ = 0;
  std::vector<std::size_t> order_;
  std::array<std::array<bool, 8>, 8> before_ = {};
  std::uint64_t count_ = 0;
};

/// The first step that can collide with an earlier one.
std::optional<std::size_t> first_race(const Program& program, const Schedules& schedules) {
  for (std::size_t b = 0; b < program.size(); ++b) {
    for (std::size_t a = 0; a < b; ++a) {
      if (do_conflict(program[a], program[b]) && schedules.can_precede(a, b) &&
          schedules.can_precede(b, a)) {
        return b;
      }
    }
  }
  return std::nullopt;
}

/// The first step the checker objects to.
std::optional<std::size_t> first_finding(const Program& program) {
  CheckedProgram p;
  std::vector<std::uint64_t> sequences;
  for (int stream = 0; stream < 3; ++stream) p.stream();
  EXPECT_FALSE(p.host_allocate(device(0, 4)));
  EXPECT_FALSE(p.host_write(device(0, 4)));
  for (std::size_t i = 0; i < program.size(); ++i) {
    const Step& step = program[i];
    const SpaceRange range = device(step.offset, step.bytes);
    Found found;
    switch (step.kind) {
      case Kind::read:
        found = p.read(step.stream, range);
        break;
      case Kind::write:
        found = p.write(step.stream, range);
        break;
      case Kind::record:
        p.record(step.stream, step.event);
        break;
      case Kind::wait:
        p.wait(step.stream, step.event);
        break;
      case Kind::host_read:
        found = p.host_read(range);
        break;
      case Kind::host_write:
        found = p.host_write(range);
        break;
      case Kind::host_wait:
        if (step.target) p.host_wait(step.stream, sequences[*step.target]);
    }
    sequences.push_back(is_of_host(step) ? 0 : p.checker.sequence(step.stream));
    if (found) return i;
  }
  return std::nullopt;
}

std::string text(const Program& program) {
  constexpr const char* names[] = {"read",      "write",      "record",   "wait",
                                   "host_read", "host_write", "host_wait"};
  std::ostringstream text;
  for (std::size_t i = 0; i < program.size(); ++i) {
    const Step& step = program[i];
    text << i << ": " << names[static_cast<int>(step.kind)] << " S" << step.stream << " ["
         << step.offset << ", +" << step.bytes << ") event " << step.event;
    if (step.target) text << " target " << *step.target;
    text << "\n";
  }
  return text.str();
}

TEST(Exactness, TheCheckerObjectsWhereSomeScheduleGoesWrongAndNowhereElse) {
  constexpr std::uint64_t programs = is_thorough ? 60'000 : 20'000;
  std::uint64_t racy = 0;
  std::uint64_t schedules_run = 0;
  for (std::uint64_t seed = 0; seed < programs; ++seed) {
    Random random(seed);
    const Program program = make_program(random);
    const Schedules schedules(program);
    const std::optional<std::size_t> race = first_race(program, schedules);
    ASSERT_GT(schedules.count(), 0u) << "seed " << seed << "\n" << text(program);
    ASSERT_EQ(first_finding(program), race) << "seed " << seed << "\n" << text(program);
    if (race) ++racy;
    schedules_run += schedules.count();
  }
  std::printf("exact on %llu programs, %llu of them with a race, %llu schedules\n",
              static_cast<unsigned long long>(programs), static_cast<unsigned long long>(racy),
              static_cast<unsigned long long>(schedules_run));
  EXPECT_GT(racy, programs / 5);
  EXPECT_LT(racy, programs * 4 / 5);
}

}  // namespace
}  // namespace tern::test
