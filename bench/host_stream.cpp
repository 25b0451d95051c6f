// The cost of submitting work to a host stream, of marks, and of waits.

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "bench/case.hpp"
#include "bench/measure.hpp"
#include "tern/backends/catalog.hpp"
#include "tern/device/event.hpp"
#include "tern/device/stream.hpp"

namespace tern::bench {
namespace {

constexpr std::size_t batch = 10'000;

void do_nothing(void*) {}

/// The queue that most programs write themselves: functions in a deque, a mutex and a condition
/// variable.
class PlainQueue {
 public:
  PlainQueue() : thread_([this] { work(); }) {}
  ~PlainQueue() {
    submit(nullptr);
    thread_.join();
  }

  void submit(std::function<void()> function) {
    {
      const std::lock_guard lock(mutex_);
      queue_.push_back(std::move(function));
      ++submitted_;
    }
    changed_.notify_all();
  }

  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return done_ == submitted_; });
  }

 private:
  void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return !queue_.empty(); });
      const std::function<void()> function = std::move(queue_.front());
      queue_.pop_front();
      if (!function) return;
      lock.unlock();
      function();
      lock.lock();
      ++done_;
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> queue_;
  std::size_t submitted_ = 0, done_ = 0;
  std::thread thread_;
};

void run(Context& context) {
  const Device device = open_device("host");
  const Stream first(device);
  const Stream second(device);
  PlainQueue plain;
  const double seconds = context.seconds_per_figure();
  const auto add = [&](std::string name, double ns) {
    context.add({.name = std::move(name), .value = ns, .unit = "ns", .better = Better::lower});
  };

  context.step("submit");
  const std::vector<double> submitted = median_seconds({[&] {
                                                          for (std::size_t i = 0; i < batch; ++i)
                                                            plain.submit([] {});
                                                          plain.wait();
                                                        },
                                                        [&] {
                                                          for (std::size_t i = 0; i < batch; ++i)
                                                            first.call(do_nothing, nullptr);
                                                          first.synchronize();
                                                        }},
                                                       seconds);
  context.add({.name = "submit and run an empty function",
               .value = submitted[1] * 1e9 / batch,
               .unit = "ns",
               .better = Better::lower,
               .baseline_name = "deque, mutex, condition variable",
               .baseline = submitted[0] * 1e9 / batch});

  context.step("round trip");
  const std::vector<double> round_trip = median_seconds({[&] {
                                                           plain.submit([] {});
                                                           plain.wait();
                                                         },
                                                         [&] {
                                                           first.call(do_nothing, nullptr);
                                                           first.synchronize();
                                                         }},
                                                        seconds);
  context.add({.name = "submit one function and wait for it",
               .value = round_trip[1] * 1e9,
               .unit = "ns",
               .better = Better::lower,
               .baseline_name = "deque, mutex, condition variable",
               .baseline = round_trip[0] * 1e9});

  context.step("events");
  Event event(device);
  const auto repeat = [&](auto body) {
    return median_ns(
        [&] {
          for (std::size_t i = 0; i < batch; ++i) body();
        },
        batch, seconds);
  };
  add("take a mark", repeat([&] { static_cast<void>(first.mark()); }));
  add("record an event", repeat([&] { first.record(event); }));
  add("ask a passed event", repeat([&] { static_cast<void>(event.is_done()); }));
  add("make and end an event", repeat([&] { const Event made(device); }));
  const Mark passed = first.mark();
  Device::wait(passed);
  add("wait for a passed mark on another stream", repeat([&] { second.wait(passed); }));
  add("record here, wait there, run there", median_ns(
                                                [&] {
                                                  for (std::size_t i = 0; i < batch; ++i) {
                                                    first.call(do_nothing, nullptr);
                                                    second.wait(first.mark());
                                                    second.call(do_nothing, nullptr);
                                                  }
                                                  second.synchronize();
                                                },
                                                batch, seconds));
}

const Registration registered({"host.stream", "cost of submitting, marking and waiting", run});

}  // namespace
}  // namespace tern::bench
