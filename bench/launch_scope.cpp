// What the declaration of its buffers adds to a launch: on one stream, where it should cost a few
// comparisons, and on two streams, compared with a wait that the program queues itself.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "bench/contestants.hpp"
#include "bench/measure.hpp"
#include "tern/buffer/buffer.hpp"
#include "tern/launch/kernel.hpp"
#include "tern/launch/launch_recorder.hpp"
#include "tern/launch/use_scope.hpp"

namespace tern::bench {
namespace {

constexpr double goal_one_ns = 150, goal_eight_ns = 600;
constexpr std::size_t max_buffers = 8;

void do_nothing(const KernelCall&) {}

/// A kernel that takes a number of addresses and does nothing.
class IdleKernel {
 public:
  IdleKernel(const Device& device, std::size_t addresses) {
    const std::string entry = fmt::format("bench_idle_{}", addresses);
    std::string text;
    KernelSource source{.entry = entry};
    const std::string& backend = device.info().backend;
    if (backend == "cuda") {
      text = ".version 7.0\n.target sm_52\n.address_size 64\n.visible .entry " + entry + "(";
      for (std::size_t i = 0; i < addresses; ++i) {
        text += fmt::format("{}.param .u64 p{}", i == 0 ? "" : ", ", i);
      }
      text += ") { ret; }\n";
      // Includes the terminating zero, which the driver needs.
      source.image = std::as_bytes(std::span(text.c_str(), text.size() + 1));
    } else if (backend == "opencl") {
      text = "__kernel void " + entry + "(";
      for (std::size_t i = 0; i < addresses; ++i) {
        text += fmt::format("{}__global uint* p{}", i == 0 ? "" : ", ", i);
      }
      text += ") {}\n";
      source.text = text;
    } else {
      source.body = do_nothing;
    }
    const Result<Kernel> loaded = Kernel::try_load(device, source);
    if (loaded) kernel_ = *loaded;
  }

  /// False if a fake driver cannot load this image.
  [[nodiscard]] explicit operator bool() const { return bool(kernel_); }
  [[nodiscard]] const Kernel& kernel() const { return kernel_; }
  void launch(StreamRef stream, std::span<void* const> addresses) const {
    std::array<KernelArgument, max_buffers> arguments;
    for (std::size_t i = 0; i < addresses.size(); ++i) {
      arguments[i] = {&addresses[i], sizeof(void*), addresses[i], 256, Access::read_write};
    }
    stream.try_launch(kernel_.native(), {}, {arguments.data(), addresses.size()}).value();
  }

 private:
  Kernel kernel_;
};

struct Course {
  const IdleKernel& kernel;
  std::vector<Buffer> buffers;
  std::vector<void*> addresses;
};

void launch_tracked(const Course& course, StreamRef stream) {
  UseScope scope(stream);
  std::array<void*, max_buffers> addresses;
  for (const Buffer& buffer : course.buffers) {
    static_cast<void>(scope.try_add_borrowed(buffer, Access::read_write).value());
  }
  scope.try_begin().value();
  for (std::size_t i = 0; i < course.buffers.size(); ++i) addresses[i] = scope.pointer(i);
  course.kernel.launch(stream, {addresses.data(), course.buffers.size()});
  scope.end();
}

void launch_recorded(const Course& course, StreamRef stream) {
  LaunchRecorder recorder(stream);
  std::array<void*, max_buffers> addresses;
  for (const Buffer& buffer : course.buffers) recorder.use(buffer, Access::read_write);
  recorder.preflight();
  for (std::size_t i = 0; i < course.buffers.size(); ++i) addresses[i] = recorder.pointer(i);
  course.kernel.launch(stream, {addresses.data(), course.buffers.size()});
  recorder.commit();
}

void launch_kernel(const Course& course, StreamRef stream) {
  const std::vector<Buffer>& b = course.buffers;
  const Kernel& kernel = course.kernel.kernel();
  const auto use = [&](std::size_t i) {
    return LaunchArgument::of_memory(b[i], Access::read_write);
  };
  if (b.size() == 1) {
    kernel.try_launch(stream, LaunchSize{}, use(0)).value();
  } else {
    kernel
        .try_launch(stream, LaunchSize{}, use(0), use(1), use(2), use(3), use(4), use(5), use(6),
                    use(7))
        .value();
  }
}

void add_one_stream(Context& context, const Course& course, StreamRef stream, double goal_ns) {
  const std::size_t rounds = context.usual_or_quick<std::size_t>(500, 5);
  const std::size_t count = course.buffers.size();
  // On the host device, a launch may have to wake a thread, which takes longer than everything
  // else.
  const bool is_host = stream.device().info().is_host;
  const std::string buffers = fmt::format("{} buffer{}", count, count == 1 ? "" : "s");
  context.step(buffers);
  const auto repeat = [&](const auto& launch) {
    return [&, launch] {
      for (std::size_t i = 0; i < rounds; ++i) launch();
      stream.synchronize();
    };
  };
  const std::vector<double> seconds =
      median_seconds({repeat([&] { course.kernel.launch(stream, course.addresses); }),
                      repeat([&] { launch_tracked(course, stream); }),
                      repeat([&] { launch_kernel(course, stream); }),
                      repeat([&] { launch_recorded(course, stream); })},
                     context.seconds_per_figure());
  const double scope_ns = median_ns(
      [&] {
        for (std::size_t i = 0; i < rounds; ++i) {
          UseScope scope(stream);
          for (const Buffer& buffer : course.buffers) {
            static_cast<void>(scope.try_add_borrowed(buffer, Access::read_write).value());
          }
          scope.try_begin().value();
          scope.end();
        }
      },
      rounds, context.seconds_per_figure());
  const double each = 1e9 / static_cast<double>(rounds);
  context.add({.name = buffers + ", a scope without a launch",
               .value = scope_ns,
               .unit = "ns",
               .better = Better::lower,
               .goal = goal_ns});
  context.add({.name = buffers + ", added to a launch by a scope",
               .value = std::max(0.0, seconds[1] - seconds[0]) * each,
               .unit = "ns",
               .better = Better::lower,
               .goal = is_host ? std::nullopt : std::optional(goal_ns)});
  context.add(
      {.name = buffers + ", launched with a scope",
       .value = seconds[1] * each,
       .unit = "ns",
       .better = Better::lower,
       .baseline_name = "launched without",
       .baseline = seconds[0] * each,
       .others = {{"by a Kernel", seconds[2] * each}, {"with a recorder", seconds[3] * each}}});
}

void add_two_streams(Context& context, const Course& course, StreamRef a, StreamRef b) {
  const std::size_t rounds = context.usual_or_quick<std::size_t>(500, 5);
  const std::size_t count = course.buffers.size();
  const std::string name =
      fmt::format("{} buffer{}, two streams in turns", count, count == 1 ? "" : "s");
  context.step(name);
  const std::vector<double> seconds =
      median_seconds({[&] {
                        for (std::size_t i = 0; i < rounds; ++i) {
                          launch_tracked(course, i % 2 == 0 ? a : b);
                        }
                        a.synchronize();
                        b.synchronize();
                      },
                      [&] {
                        for (std::size_t i = 0; i < rounds; ++i) {
                          const StreamRef one = i % 2 == 0 ? a : b, other = i % 2 == 0 ? b : a;
                          one.wait(other.mark());
                          course.kernel.launch(one, course.addresses);
                        }
                        a.synchronize();
                        b.synchronize();
                      }},
                     context.seconds_per_figure());
  const double each = 1e9 / static_cast<double>(rounds);
  context.add({.name = name,
               .value = seconds[0] * each,
               .unit = "ns",
               .better = Better::lower,
               .baseline_name = "one wait by hand",
               .baseline = seconds[1] * each});
}

void run(Context& context) {
  const Stage stage(context);
  if (!stage.device.info().capabilities.has(Capability::kernels)) {
    context.note("the device launches no kernels.");
    return;
  }
  for (const std::size_t count : {std::size_t{1}, max_buffers}) {
    const IdleKernel kernel(stage.device, count);
    if (!kernel) {
      context.note("the device could not load the kernel.");
      return;
    }
    Course course{kernel, {}, {}};
    for (std::size_t i = 0; i < count; ++i) {
      course.buffers.push_back(
          Buffer::allocate(stage.device, Shape{64}, DType::f32, {.contents = Contents::zero}));
      course.addresses.push_back(reinterpret_cast<void*>(course.buffers.back().address()));
    }
    stage.device.synchronize();  // launches without a scope wait for nothing
    add_one_stream(context, course, stage.streams[0], count == 1 ? goal_one_ns : goal_eight_ns);
    add_two_streams(context, course, stage.streams[0], stage.streams[1]);
    stage.device.synchronize();
  }
}

const Registration registered({"launch.scope", "what declaring its buffers adds to a launch", run});

}  // namespace
}  // namespace tern::bench
