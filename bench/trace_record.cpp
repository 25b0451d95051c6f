// The cost of recording events: alone, as part of a pool's pair, and with many threads.

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "bench/contestants.hpp"
#include "bench/measure.hpp"
#include "tern/core/bytes.hpp"
#include "tern/trace/recorder.hpp"
#include "trace/recording.hpp"

namespace tern::bench {
namespace {

constexpr double goal_event_ns = 60;
constexpr std::size_t ring_bytes = 16 * mib;

/// A file of a recording, deleted at the end.
class RecordedFile {
 public:
  RecordedFile()
      : path_(
            (std::filesystem::temp_directory_path() / fmt::format("tern_bench_{}.trace", getpid()))
                .string()) {}
  ~RecordedFile() { std::filesystem::remove(path_); }
  RecordedFile(const RecordedFile&) = delete;
  RecordedFile& operator=(const RecordedFile&) = delete;
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  const std::string path_;
};

void record_one(const Stage& stage) {
  static const Tag tag = "bench.trace";
  trace::record(trace::EventKind::free, {.block = 1,
                                         .bytes = 4096,
                                         .site = CallSite::here(),
                                         .tag = tag,
                                         .device = {stage.device.id().value, stage.device.spec()},
                                         .resource = {1, "pool"}});
}

/// Events per second of all threads together, in millions.
double record_by_threads(const Stage& stage, std::size_t threads, std::size_t events) {
  const double seconds = median_seconds({[&] {
                                          std::vector<std::jthread> running;
                                          for (std::size_t i = 0; i < threads; ++i) {
                                            running.emplace_back([&] {
                                              for (std::size_t k = 0; k < events; ++k)
                                                record_one(stage);
                                            });
                                          }
                                        }},
                                        0)[0];
  return static_cast<double>(threads * events) / seconds / 1e6;
}

void run(Context& context) {
  const Stage stage(context);
  const std::size_t rounds = context.usual_or_quick<std::size_t>(20'000, 10);
  const auto pool = make_filled_pool(stage.device, fitting_bytes(context, stage.device, 64 * mib));
  const auto events = [&] {
    for (std::size_t i = 0; i < rounds; ++i) record_one(stage);
  };
  const auto pairs = [&] {
    for (std::size_t i = 0; i < rounds; ++i) {
      const Block block =
          pool->try_allocate({.bytes = 4 * kib, .stream = stage.streams[0]}).value();
      pool->try_deallocate(block, stage.streams[0]).value();
    }
  };
  // A file grows by 64 bytes per event, so it is measured for a short time.
  const double seconds = std::min(context.seconds_per_figure(), 0.2);
  const auto measure = [&](const auto& body) { return median_ns(body, rounds, seconds); };
  const auto add = [&](std::string name, double ns, std::optional<double> baseline,
                       std::optional<double> goal) {
    context.add({.name = std::move(name),
                 .value = ns,
                 .unit = "ns",
                 .better = Better::lower,
                 .baseline_name = baseline ? "not recorded" : "",
                 .baseline = baseline,
                 .goal = goal});
  };
  context.step("without a recording");
  const double off_ns = measure(pairs);
  const RecordedFile file;
  trace::start(file.path());
  context.step("into a file");
  add("an event, into a file", measure(events), std::nullopt, goal_event_ns);
  add("a pair of the pool, into a file", measure(pairs), off_ns, std::nullopt);
  trace::stop();
  trace::start_ring(ring_bytes);
  context.step("into a ring");
  add("an event, into a ring", measure(events), std::nullopt, goal_event_ns);
  add("a pair of the pool, into a ring", measure(pairs), off_ns, std::nullopt);
  const std::size_t processors = std::max(1U, std::thread::hardware_concurrency());
  for (const std::size_t threads : {std::size_t{1}, processors}) {
    context.step(fmt::format("{} threads", threads));
    context.add({.name = fmt::format("events of {} thread{}, into a ring", threads,
                                     threads == 1 ? "" : "s"),
                 .value = record_by_threads(stage, threads, rounds * 10),
                 .unit = "M/s"});
    if (processors == 1) break;
  }
  trace::stop();
  context.step("after the recording");
  add("a pair of the pool, after the recording", measure(pairs), off_ns, std::nullopt);
}

const Registration registered({"trace.record", "what recording an event costs", run});

}  // namespace
}  // namespace tern::bench
