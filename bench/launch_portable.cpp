// Portable kernels beside kernels that are written for one device: the time of a launch, and the
// rate of four kernels on large arrays. On the host, the other kernel is a loop that all cores
// share; on CUDA and OpenCL devices, it is written in the language of the device. A kernel of the
// host is measured in both of its forms: as the function in this program, and as its text, compiled
// for this processor by the compiler of the system.

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "bench/contestants.hpp"
#include "bench/measure.hpp"
#include "bench/stall.hpp"
#include "tern/buffer/array.hpp"
#include "tern/buffer/scalar.hpp"
#include "tern/launch/kernel.hpp"
#include "tern/launch/kernel_text.hpp"

namespace tern::bench {
namespace {

constexpr double goal_on_host = 0.9, goal_on_device = 0.95;
constexpr std::uint32_t bins = 256, block_threads = 256;

TERN_ELEMENT_KERNEL(bench_saxpy, (in<float> x, inout<float> y, float a), { y += a * x; })

TERN_KERNEL(bench_histogram, (in<uint32_t> keys, inout<uint32_t> counts), {
  const size_t i = index.x;
  if (i < size(keys)) atomic_add(counts, keys[i], 1);
})

TERN_BLOCK_KERNEL(bench_stencil, (in<float> x, out<float> y), {
  shared<float, 258> tile;
  for (auto thread : threads) {
    const size_t i = block.x * block_size.x + thread.x;
    tile[thread.x + 1] = i < size(x) ? x[i] : 0.0f;
    if (thread.x == 0) tile[0] = i > 0 ? x[i - 1] : 0.0f;
    if (thread.x + 1 == block_size.x) tile[thread.x + 2] = i + 1 < size(x) ? x[i + 1] : 0.0f;
  }
  for (auto thread : threads) {
    const size_t i = block.x * block_size.x + thread.x;
    if (i < size(x)) {
      y[i] = 0.5f * tile[thread.x + 1] + 0.25f * (tile[thread.x] + tile[thread.x + 2]);
    }
  }
})

TERN_REDUCTION(bench_sum, double, (in<float> x), 0, x, a + b)

constexpr std::string_view cuda_text = R"(
extern "C" __global__ void saxpy(const float* x, float* y, float a, unsigned long long n) {
  const unsigned long long i = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x;
  if (i < n) y[i] += a * x[i];
}
extern "C" __global__ void histogram(const unsigned* keys, unsigned* counts, unsigned long long n) {
  const unsigned long long i = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x;
  if (i < n) atomicAdd(counts + keys[i], 1u);
}
extern "C" __global__ void stencil(const float* x, float* y, unsigned long long n) {
  __shared__ float tile[258];
  const unsigned t = threadIdx.x;
  const unsigned long long i = blockIdx.x * (unsigned long long)blockDim.x + t;
  tile[t + 1] = i < n ? x[i] : 0.0f;
  if (t == 0) tile[0] = i > 0 ? x[i - 1] : 0.0f;
  if (t + 1 == blockDim.x) tile[t + 2] = i + 1 < n ? x[i + 1] : 0.0f;
  __syncthreads();
  if (i < n) y[i] = 0.5f * tile[t + 1] + 0.25f * (tile[t] + tile[t + 2]);
}
extern "C" __global__ void sum(const float* x, double* y, unsigned long long n) {
  __shared__ double part[256];
  const unsigned t = threadIdx.x;
  double mine = 0;
  for (unsigned long long i = blockIdx.x * 256ull + t; i < n; i += gridDim.x * 256ull) mine += x[i];
  part[t] = mine;
  for (unsigned half = 128; half > 0; half /= 2) {
    __syncthreads();
    if (t < half) part[t] += part[t + half];
  }
  if (t == 0) y[blockIdx.x] = part[0];
}
extern "C" __global__ void sum_parts(const double* x, double* y, unsigned n) {
  double all = 0;
  for (unsigned i = 0; i < n; ++i) all += x[i];
  y[0] = all;
})";

constexpr std::string_view opencl_text = R"(
__kernel void saxpy(__global const float* x, __global float* y, float a, ulong n) {
  const ulong i = get_global_id(0);
  if (i < n) y[i] += a * x[i];
}
__kernel void histogram(__global const uint* keys, __global uint* counts, ulong n) {
  const ulong i = get_global_id(0);
  if (i < n) atomic_add(counts + keys[i], 1u);
}
__kernel void stencil(__global const float* x, __global float* y, ulong n) {
  __local float tile[258];
  const uint t = get_local_id(0);
  const ulong i = get_global_id(0);
  tile[t + 1] = i < n ? x[i] : 0.0f;
  if (t == 0) tile[0] = i > 0 ? x[i - 1] : 0.0f;
  if (t + 1 == get_local_size(0)) tile[t + 2] = i + 1 < n ? x[i + 1] : 0.0f;
  barrier(CLK_LOCAL_MEM_FENCE);
  if (i < n) y[i] = 0.5f * tile[t + 1] + 0.25f * (tile[t] + tile[t + 2]);
}
__kernel void sum(__global const float* x, __global double* y, ulong n) {
  __local double part[256];
  const uint t = get_local_id(0);
  double mine = 0;
  for (ulong i = get_global_id(0); i < n; i += get_global_size(0)) mine += x[i];
  part[t] = mine;
  for (uint half_ = 128; half_ > 0; half_ /= 2) {
    barrier(CLK_LOCAL_MEM_FENCE);
    if (t < half_) part[t] += part[t + half_];
  }
  if (t == 0) y[get_group_id(0)] = part[0];
}
__kernel void sum_parts(__global const double* x, __global double* y, uint n) {
  double all = 0;
  for (uint i = 0; i < n; ++i) all += x[i];
  y[0] = all;
})";

/// Calls body(first, last) on all cores.
template <class Function>
void on_all_cores(std::size_t count, const Function& body) {
  const std::size_t cores = std::max(1u, std::thread::hardware_concurrency());
  const std::size_t each = (count + cores - 1) / cores;
  std::vector<std::thread> others;
  for (std::size_t core = 1; core < cores; ++core) {
    others.emplace_back(
        [&, core] { body(std::min(count, core * each), std::min(count, (core + 1) * each)); });
  }
  body(std::size_t{0}, std::min(count, each));
  for (std::thread& other : others) other.join();
}

/// Arrays, and the four kernels in both ways.
class Course {
 public:
  Course(const Stage& stage, std::size_t count, bool compiles_text)
      : compiles_text_(compiles_text),
        device_(stage.device),
        stream_(stage.streams[0]),
        count_(count),
        x_(Array<float>::from(device_, std::vector<float>(count, 1.0f))),
        y_(Array<float>::zeros(device_, count)),
        keys_(Array<std::uint32_t>::from(device_, some_keys(count))),
        counts_(Array<std::uint32_t>::zeros(device_, bins)),
        parts_(Array<double>::zeros(device_, sum_blocks)),
        total_(Array<double>::zeros(device_, 1)) {}

  struct Row {
    std::string name;
    std::size_t bytes;  // read and written
    Body portable, by_hand;
  };
  /// Throws if a kernel cannot be loaded.
  [[nodiscard]] std::vector<Row> rows() {
    const std::size_t floats = count_ * sizeof(float);
    return {
        {"saxpy", 3 * floats, launch(bench_saxpy, elements(), in(x_), inout(y_), 2.0f),
         saxpy_by_hand()},
        {"stencil with shared memory", 2 * floats,
         launch(bench_stencil, elements(count_, block_threads), in(x_), out(y_)),
         stencil_by_hand()},
        {"reduction", floats, launch(bench_sum, elements(), in(x_), out(total_)), sum_by_hand()},
        {"histogram with atomics", floats,
         launch(bench_histogram, elements(count_, block_threads), in(keys_), inout(counts_)),
         histogram_by_hand()},
    };
  }

 private:
  static constexpr std::uint32_t sum_blocks = 1024;

  static std::vector<std::uint32_t> some_keys(std::size_t count) {
    std::vector<std::uint32_t> keys(count);
    for (std::size_t i = 0; i < count; ++i) {
      keys[i] = static_cast<std::uint32_t>(i * 2654435761u >> 7) % bins;
    }
    return keys;
  }

  template <class... Arguments>
  Body launch(KernelText text, const LaunchExtent& extent, Arguments... arguments) {
    if (compiles_text_) text.body = text.combine = nullptr;
    const Kernel kernel = Kernel::from_text(device_, text);
    return [=, this] {
      kernel.try_launch(stream_, extent, arguments...).value();
      stream_.synchronize();
    };
  }
  template <class... Arguments>
  Body launch_own(std::string_view entry, const LaunchExtent& extent, Arguments... arguments) {
    const Kernel kernel = own(entry);
    return [=, this] {
      kernel.try_launch(stream_, extent, arguments...).value();
      stream_.synchronize();
    };
  }
  [[nodiscard]] Kernel own(std::string_view entry) const {
    const bool is_cuda = device_.info().backend == "cuda";
    return Kernel::from_source(device_, is_cuda ? cuda_text : opencl_text, entry);
  }
  [[nodiscard]] bool is_host() const { return device_.info().is_host; }

  Body saxpy_by_hand() {
    if (!is_host()) {
      return launch_own("saxpy", elements(count_, block_threads), in(x_), inout(y_), 2.0f,
                        std::uint64_t{count_});
    }
    const auto* const x = reinterpret_cast<const float*>(x_.address());
    auto* const y = reinterpret_cast<float*>(y_.address());
    return [=, this] {
      on_all_cores(count_, [=](std::size_t first, std::size_t last) {
        for (std::size_t i = first; i < last; ++i) y[i] += 2.0f * x[i];
      });
    };
  }
  Body stencil_by_hand() {
    if (!is_host()) {
      return launch_own("stencil", elements(count_, block_threads), in(x_), out(y_),
                        std::uint64_t{count_});
    }
    const auto* const x = reinterpret_cast<const float*>(x_.address());
    auto* const y = reinterpret_cast<float*>(y_.address());
    return [=, this] {
      const std::size_t count = count_;
      on_all_cores(count, [=](std::size_t first, std::size_t last) {
        for (std::size_t i = first; i < last; ++i) {
          const float left = i > 0 ? x[i - 1] : 0.0f, right = i + 1 < count ? x[i + 1] : 0.0f;
          y[i] = 0.5f * x[i] + 0.25f * (left + right);
        }
      });
    };
  }
  Body sum_by_hand() {
    if (!is_host()) {
      const Kernel first = own("sum"), second = own("sum_parts");
      return [=, this] {
        first
            .try_launch(stream_, LaunchSize{{sum_blocks, 1, 1}, {256, 1, 1}}, in(x_), out(parts_),
                        std::uint64_t{count_})
            .value();
        second.try_launch(stream_, LaunchSize{}, in(parts_), out(total_), sum_blocks).value();
        stream_.synchronize();
      };
    }
    const auto* const x = reinterpret_cast<const float*>(x_.address());
    auto* const total = reinterpret_cast<double*>(total_.address());
    return [=, this] {
      total[0] = 0;
      on_all_cores(count_, [=](std::size_t first, std::size_t last) {
        double part = 0;
        for (std::size_t i = first; i < last; ++i) part += static_cast<double>(x[i]);
        std::atomic_ref(total[0]).fetch_add(part);
      });
    };
  }
  Body histogram_by_hand() {
    if (!is_host()) {
      return launch_own("histogram", elements(count_, block_threads), in(keys_), inout(counts_),
                        std::uint64_t{count_});
    }
    const auto* const keys = reinterpret_cast<const std::uint32_t*>(keys_.address());
    auto* const counts = reinterpret_cast<std::uint32_t*>(counts_.address());
    return [=, this] {
      on_all_cores(count_, [=](std::size_t first, std::size_t last) {
        for (std::size_t i = first; i < last; ++i) {
          std::atomic_ref(counts[keys[i]]).fetch_add(1, std::memory_order_relaxed);
        }
      });
    };
  }

  const bool compiles_text_;
  const Device device_;
  const StreamRef stream_;
  const std::size_t count_;
  Array<float> x_, y_;
  Array<std::uint32_t> keys_, counts_;
  Array<double> parts_, total_;
};

/// Returns the median time of each body, which submits launches; the wait for their end is not
/// counted. On the host, the stream is blocked until the body returns: otherwise, the thread that
/// runs the kernels would sleep and wake up at random, and change the time.
std::vector<double> submission_seconds(const Stage& stage, const std::vector<Body>& bodies,
                                       double seconds) {
  using Clock = std::chrono::steady_clock;
  const auto elapsed = [](Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
  };
  constexpr std::size_t min_rounds = 5;
  std::vector<std::vector<double>> times(bodies.size());
  const Clock::time_point begun = Clock::now();
  for (std::size_t round = 0; round < min_rounds || elapsed(begun) < seconds; ++round) {
    for (std::size_t i = 0; i < bodies.size(); ++i) {
      std::optional<Stall> stall;
      if (stage.device.info().is_host) stall.emplace(std::span(stage.streams).first(1));
      const Clock::time_point start = Clock::now();
      bodies[i]();
      times[i].push_back(elapsed(start));
      stall.reset();
      stage.streams[0].synchronize();
    }
  }
  std::vector<double> medians;
  for (std::vector<double>& measured : times) medians.push_back(median(std::move(measured)));
  return medians;
}

/// The time of a launch of one block, without the wait for its end.
void add_launch_time(Context& context, const Stage& stage) {
  constexpr std::size_t rounds = 500, count = 64;
  const std::size_t launches = context.usual_or_quick<std::size_t>(rounds, 5);
  const StreamRef stream = stage.streams[0];
  auto x = Array<float>::zeros(stage.device, count), y = Array<float>::zeros(stage.device, count);
  const Kernel portable = Kernel::from_text(stage.device, bench_saxpy);
  const bool is_cuda = stage.device.info().backend == "cuda";
  const Kernel own =
      stage.device.info().is_host
          ? Kernel::from_function(stage.device, "saxpy",
                                  [](View<const float> from, View<float> to, float a) {
                                    for (std::size_t i = 0; i < to.size(); ++i)
                                      to[i] += a * from[i];
                                  })
          : Kernel::from_source(stage.device, is_cuda ? cuda_text : opencl_text, "saxpy");
  const auto launch_own = [&] {
    if (stage.device.info().is_host) {
      own.try_launch(stream, elements(count), in(x), inout(y), 2.0f).value();
    } else {
      own.try_launch(stream, elements(count, block_threads), in(x), inout(y), 2.0f,
                     std::uint64_t{count})
          .value();
    }
  };
  context.step("launches");
  const std::vector<double> seconds =
      submission_seconds(stage,
                         {[&] {
                            for (std::size_t i = 0; i < launches; ++i) {
                              portable.try_launch(stream, elements(), x, y, 2.0f).value();
                            }
                          },
                          [&] {
                            for (std::size_t i = 0; i < launches; ++i) launch_own();
                          }},
                         2 * context.seconds_per_figure());
  context.add({.name = "saxpy of 64 elements, a launch",
               .value = seconds[0] * 1e9 / static_cast<double>(launches),
               .unit = "ns",
               .better = Better::lower,
               .baseline_name = "by hand",
               .baseline = seconds[1] * 1e9 / static_cast<double>(launches),
               .goal_ratio = goal_on_device});
}

void add_rates(Context& context, const Stage& stage, std::size_t count, bool compiles_text) {
  const bool is_host = stage.device.info().is_host;
  const char* const form = compiles_text ? ", compiled text" : is_host ? ", function" : "";
  Course course(stage, count, compiles_text);
  for (const Course::Row& row : course.rows()) {
    context.step(row.name + form);
    const std::vector<double> seconds =
        median_seconds({row.portable, row.by_hand}, context.seconds_per_figure());
    const auto rate = [&](double of) { return static_cast<double>(row.bytes) / of / 1e9; };
    context.add({.name = row.name + form + ", " + format_bytes(count * sizeof(float)),
                 .value = rate(seconds[0]),
                 .unit = "GB/s",
                 .baseline_name = "by hand",
                 .baseline = rate(seconds[1]),
                 .goal_ratio = is_host ? goal_on_host : goal_on_device});
  }
}

void run(Context& context) {
  const Stage stage(context);
  const DeviceInfo& info = stage.device.info();
  if (!info.capabilities.has(Capability::kernels) || info.backend == "sim") {
    context.note(
        "simulated devices interpret portable kernels, and devices without kernels run "
        "none.");
    return;
  }
  const Result<Kernel> probe = Kernel::try_from_text(stage.device, bench_saxpy);
  if (!probe) {
    context.note(probe.failure().text());
    return;
  }
  add_launch_time(context, stage);
  const std::size_t usual = info.is_host || info.backend == "opencl" ? 16 * mib : 64 * mib;
  const std::size_t count = context.usual_or_quick<std::size_t>(usual, 10'000);
  add_rates(context, stage, count, false);
  if (!info.is_host) return;
  KernelText without_function = bench_saxpy;
  without_function.body = nullptr;
  if (Kernel::try_from_text(stage.device, without_function)) {
    add_rates(context, stage, count, true);
  } else {
    context.note("there is no compiler for the texts of kernels on the host.");
  }
}

const Registration registered({"launch.portable", "portable kernels beside those by hand", run});

}  // namespace
}  // namespace tern::bench
