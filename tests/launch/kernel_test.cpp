#include "tern/launch/kernel.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <functional>
#include <iostream>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "backends/cuda/nvrtc.hpp"
#include "support/cuda_bench.hpp"
#include "support/fake_backend.hpp"
#include "support/gate.hpp"
#include "support/served_bytes.hpp"
#include "support/simulated.hpp"
#include "tern/backends/catalog.hpp"
#include "tern/backends/sim.hpp"
#include "tern/buffer/foreign.hpp"
#include "tern/launch/argument.hpp"
#include "tern/launch/use_scope.hpp"

namespace tern::test {
namespace {

using cuda::code;
using cuda::why;

// --- One kernel in every form: y = a * x + y for the first `count` elements

void saxpy(View<const float> x, View<float> y, float a, std::uint32_t count) {
  for (std::uint32_t i = 0; i < count; ++i) y[i] = a * x[i] + y[i];
}

constexpr std::string_view opencl_text = R"(
__kernel void saxpy(__global const float* x, __global float* y, float a, uint count) {
  size_t i = get_global_id(0);
  if (i < count) y[i] = a * x[i] + y[i];
}
__kernel void other(__global float* y) { y[0] = 0; }
)";

constexpr std::string_view cuda_text = R"(
extern "C" __global__ void saxpy(const float* x, float* y, float a, unsigned count) {
  unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) y[i] = a * x[i] + y[i];
}
)";

constexpr std::string_view ptx_text = R"(
.version 7.0
.target sm_52
.address_size 64

.visible .entry saxpy(.param .u64 x, .param .u64 y, .param .f32 a, .param .u32 count)
{
  .reg .pred %outside;
  .reg .f32 %a, %x, %y;
  .reg .b32 %i, %block, %threads, %count;
  .reg .b64 %from, %to, %offset;
  ld.param.u64 %from, [x];
  ld.param.u64 %to, [y];
  ld.param.f32 %a, [a];
  ld.param.u32 %count, [count];
  mov.u32 %block, %ctaid.x;
  mov.u32 %threads, %ntid.x;
  mov.u32 %i, %tid.x;
  mad.lo.u32 %i, %block, %threads, %i;
  setp.ge.u32 %outside, %i, %count;
  @%outside bra done;
  cvta.to.global.u64 %from, %from;
  cvta.to.global.u64 %to, %to;
  mul.wide.u32 %offset, %i, 4;
  add.u64 %from, %from, %offset;
  add.u64 %to, %to, %offset;
  ld.global.f32 %x, [%from];
  ld.global.f32 %y, [%to];
  fma.rn.f32 %y, %a, %x, %y;
  st.global.f32 [%to], %y;
done:
  ret;
}

.visible .entry other(.param .u64 y) { ret; }
)";

/// Of the last launch on the fake driver.
LaunchSize last_size;

std::vector<sim::FakeKernel> fake_kernels() {
  return {{"saxpy",
           [](const KernelCall& call) {
             last_size = call.size;
             const std::uint32_t count = call.argument<std::uint32_t>(3);
             saxpy({call.argument<const float*>(0), count}, {call.argument<float*>(1), count},
                   call.argument<float>(2), count);
           },
           {{8, Access::read, 3, 4}, {8, Access::read_write, 3, 4}, {4}, {4}}},
          {"other", [](const KernelCall&) {}, {{8, Access::read_write}}}};
}

/// A device, and what has to stay behind it.
struct Bed {
  explicit Bed(std::string_view spec) {
    if (spec != "fake_cuda") {
      device = open_device(spec);
      return;
    }
    sim::FakeDriverOptions options;
    options.sim.memory_bytes = 64 * mib;
    options.kernels = fake_kernels();
    fake = std::make_unique<sim::FakeDriver>(options);
    driver = cuda::load_driver(cuda::fake_library());
    device = Device(
        cuda::open_backend(
            driver, {.spec = "cuda:0?driver=sim", .ordinal = 0, .staging = cuda::no_staging()})
            .value());
  }

  [[nodiscard]] bool is_cuda() const { return device.info().backend == "cuda"; }
  [[nodiscard]] bool is_opencl() const { return device.info().backend == "opencl"; }
  [[nodiscard]] std::string image() const {
    if (!fake) return std::string(ptx_text);
    const std::string_view names[] = {"saxpy", "other"};
    return sim::FakeDriver::image(names);
  }
  [[nodiscard]] Result<Kernel> try_load(std::string_view entry = "saxpy") const {
    if (is_opencl()) return Kernel::try_from_source(device, opencl_text, entry);
    if (is_cuda()) return Kernel::try_from_image(device, image(), entry);
    return Kernel::try_from_function(device, entry, saxpy);
  }
  [[nodiscard]] Array<float> floats(std::vector<float> values) const {
    return Array<float>::from(device, values);
  }

  std::unique_ptr<sim::FakeDriver> fake;
  cuda::Driver driver;
  Device device;
};

class KernelTest : public testing::TestWithParam<std::string> {
 protected:
  void TearDown() override {
    EXPECT_TRUE(bed.device.try_synchronize());
    EXPECT_EQ(poll_kernels(), 0u);
    if (!is_simulated(bed.device) || bed.fake) return;
    for (const Finding& finding : sim::findings(bed.device)) ADD_FAILURE() << finding.text();
  }

  static constexpr std::uint32_t count = 1000;
  Bed bed{GetParam()};
  Device device = bed.device;
  Stream first{device}, second{device};
};

std::vector<std::string> specs() {
  std::vector<std::string> all = {"host", "sim", "sim?schedule=lazy", "fake_cuda"};
  for (const BackendListing& backend : list_backends()) {
    if (backend.name != "opencl" && backend.name != "cuda") continue;
    all.insert(all.end(), backend.devices.begin(), backend.devices.end());
  }
  return all;
}
std::string spec_name(const testing::TestParamInfo<std::string>& info) {
  std::string name = info.param;
  std::replace_if(
      name.begin(), name.end(), [](char c) { return std::isalnum(c) == 0; }, '_');
  return name;
}
INSTANTIATE_TEST_SUITE_P(Devices, KernelTest, testing::ValuesIn(specs()), spec_name);

TEST_P(KernelTest, ComputesTheSameOnEveryDevice) {
  const Kernel kernel = bed.try_load().value();
  EXPECT_EQ(kernel.name(), "saxpy");
  EXPECT_EQ(kernel.device(), device);
  std::vector<float> numbers(count);
  std::iota(numbers.begin(), numbers.end(), 0.0f);
  auto x = bed.floats(numbers);
  auto y = bed.floats(std::vector<float>(count, 1.0f));
  // Three launches on two streams, which nothing but the declarations puts in order.
  kernel.launch(first, elements(count), in(x), inout(y), 2.0f, count);
  kernel.launch(second, 4, 250, in(y), inout(x), 1.0f, count);
  kernel.launch(first, LaunchSize::for_elements(count, 64), in(x), inout(y), 1.0f, count);
  const std::vector<float> result = y.to_vector();
  for (std::uint32_t i = 0; i < count; ++i) {
    const auto n = static_cast<float>(i);
    ASSERT_EQ(result[i], 2 * n + 1 + (n + 2 * n + 1)) << i;
  }
}

TEST_P(KernelTest, TakesSlicesAndBuffers) {
  const Kernel kernel = bed.try_load().value();
  auto x = bed.floats({1, 2, 3, 4});
  auto y = bed.floats({0, 0, 0, 0});
  Buffer half = y.buffer().slice(2, 2);
  kernel.launch(first, elements(2), in(x.slice(1, 2)), inout(half), 10.0f, 2u);
  EXPECT_EQ(y.to_vector(), (std::vector<float>{0, 0, 20, 30}));
}

TEST_P(KernelTest, LaunchesNothingForZeroElements) {
  const Kernel kernel = bed.try_load().value();
  auto none = Array<float>::uninitialized(device, 0);
  auto unwritten = Array<float>::uninitialized(device, 4);
  EXPECT_EQ(why(kernel.try_launch(first, elements(0), in(none), inout(none), 1.0f, 0u)), "");
  const std::size_t uses = unwritten.storage()->uses().size();
  EXPECT_EQ(why(kernel.try_launch(first, elements(0), in(unwritten), inout(unwritten), 1.0f, 0u)),
            "");
  EXPECT_EQ(why(kernel.try_launch(first, 0, 64, in(unwritten), inout(unwritten), 1.0f, 0u)), "");
  EXPECT_EQ(unwritten.storage()->uses().size(), uses);
  EXPECT_FALSE(unwritten.storage()->check_written(0, 4, {}));
  // Elements, and arrays without any: the kernel gets no address.
  EXPECT_EQ(why(kernel.try_launch(first, elements(4), in(none), inout(none), 1.0f, 0u)), "");
}

TEST_P(KernelTest, IsUnloadedWhenItsLaunchesAreDone) {
  auto x = bed.floats({1, 2});
  auto y = bed.floats({0, 0});
  ASSERT_EQ(poll_kernels(), 0u);
  // Loaded, and launched once, before anything stands still: drivers load code when it is first
  // launched, and wait for the whole device to do so.
  std::optional<Kernel> kernel = bed.try_load().value();
  kernel->launch(first, elements(2), in(x), inout(y), 0.0f, 2u);
  first.synchronize();
  {
    Gate gate;
    gate.hold(first);
    {
      const Kernel copy = *kernel;
      EXPECT_EQ(copy, *kernel);
      copy.launch(first, elements(2), in(x), inout(y), 3.0f, 2u);
      kernel.reset();
    }
    EXPECT_EQ(poll_kernels(), 1u) << "a launch is still under way";
    if (bed.fake) {
      EXPECT_EQ(bed.fake->live().modules, 1u);
    }
    gate.open();
    first.synchronize();
  }
  EXPECT_EQ(poll_kernels(), 0u);
  if (bed.fake) {
    EXPECT_EQ(bed.fake->live().modules, 0u);
  }
  EXPECT_EQ(y.to_vector(), (std::vector<float>{3, 6}));
}

TEST_P(KernelTest, RefusesArgumentsThatAreNotItsParameters) {
  const Kernel kernel = bed.try_load().value();
  auto x = bed.floats({1, 2});
  auto y = bed.floats({1, 2});
  const std::size_t uses = y.storage()->uses().size();
  const Result<Mark> few = kernel.try_launch(first, elements(2), in(x), inout(y), 1.0f);
  if (kernel.info().parameter_count) {
    ASSERT_EQ(code(few), "shape_mismatch");
    EXPECT_EQ(few.failure().number("expected"), 4u);
    EXPECT_EQ(few.failure().number("actual"), 3u);
    EXPECT_EQ(few.failure().string("kernel"), "saxpy");
    EXPECT_GT(few.failure().site().line, 0u);
    EXPECT_NE(std::string_view(few.failure().site().file).find("kernel_test"),
              std::string_view::npos);
  } else {
    ADD_FAILURE() << "every device here knows the number";
  }
  // A double for a float: where only the size is known, that is what is wrong.
  const Result<Mark> wide = kernel.try_launch(first, elements(2), in(x), inout(y), 1.0, 2u);
  const bool is_typed = !bed.is_cuda() && !bed.is_opencl();
  ASSERT_EQ(code(wide), is_typed ? "type_mismatch" : "size_mismatch");
  EXPECT_EQ(wide.failure().number("index"), 2u);
  if (is_typed) {
    EXPECT_EQ(wide.failure().string("expected"), "f32");
    EXPECT_EQ(wide.failure().string("actual"), "f64");
  } else {
    EXPECT_EQ(wide.failure().number("expected"), 4u);
    EXPECT_EQ(wide.failure().number("actual"), 8u);
  }
  // A value for memory, of the same size. CUDA does not know which is which.
  if (!bed.is_cuda()) {
    const Result<Mark> bare =
        kernel.try_launch(first, elements(2), std::uint64_t{4096}, inout(y), 1.0f, 2u);
    ASSERT_EQ(code(bare), "type_mismatch");
    EXPECT_EQ(bare.failure().number("index"), 0u);
  }
  EXPECT_EQ(y.storage()->uses().size(), uses);
}

TEST_P(KernelTest, RefusesBuffersAndStreamsOfAnotherDevice) {
  const Kernel kernel = bed.try_load().value();
  const Device other = open_device("host?threads=1");
  auto x = bed.floats({1, 2});
  auto far = Array<float>::from(other, std::vector<float>{1, 2});
  const Result<Mark> refused = kernel.try_launch(first, elements(2), in(x), inout(far), 1.0f, 2u);
  ASSERT_EQ(code(refused), "device_mismatch");
  EXPECT_EQ(refused.failure().string("a"), other.spec());
  EXPECT_EQ(refused.failure().string("b"), device.spec());
  EXPECT_EQ(refused.failure().string("kernel"), "saxpy");
  EXPECT_EQ(refused.failure().number("id"), far.id().value);
  const Stream elsewhere(other);
  const Result<Mark> wrong = kernel.try_launch(elsewhere, elements(2), in(x), inout(x), 1.0f, 2u);
  ASSERT_EQ(code(wrong), "device_mismatch");
  EXPECT_EQ(wrong.failure().string("a"), device.spec());
  EXPECT_EQ(wrong.failure().string("b"), other.spec());
  EXPECT_EQ(wrong.failure().number("id"), std::nullopt) << "it is the stream that is wrong";
}

TEST_P(KernelTest, NamesTheKernelsThatExist) {
  if (!bed.is_cuda() && !bed.is_opencl()) GTEST_SKIP() << "a function is its own name";
  const Result<Kernel> refused = bed.try_load("nothing");
  ASSERT_EQ(code(refused), "not_found");
  EXPECT_EQ(refused.failure().string("id"), "nothing");
  const std::string names(refused.failure().string("names").value_or(""));
  EXPECT_NE(names.find("'saxpy'"), std::string::npos) << names;
  EXPECT_NE(names.find("'other'"), std::string::npos) << names;
}

TEST_P(KernelTest, ShowsWhatTheCompilerSaysAndNotAllOfIt) {
  std::string text = bed.is_cuda() ? std::string(cuda_text) : std::string(opencl_text);
  for (int i = 0; i < 200; ++i) text += "\nno_such_type_" + std::to_string(i) + " broken;";
  const Result<Kernel> refused = Kernel::try_from_source(device, text, "saxpy");
  if (bed.is_opencl()) {
    ASSERT_EQ(code(refused), "invalid_argument");
  } else if (bed.is_cuda()) {
    if (!cuda::nvrtc().is_present()) {
      ASSERT_EQ(code(refused), "unsupported");
      return;
    }
    ASSERT_EQ(code(refused), "invalid_argument");
  } else {
    GTEST_SKIP() << "does not compile";
  }
  EXPECT_EQ(refused.failure().string("name"), "text");
  EXPECT_NE(refused.failure().text().find("no_such_type_0"), std::string::npos)
      << refused.failure().text();
  EXPECT_LE(refused.failure().text().size(), Error::max_text_bytes);
}

TEST_P(KernelTest, CompilesTextWithOptions) {
  if (!bed.is_opencl() && (!bed.is_cuda() || bed.fake)) GTEST_SKIP() << "does not compile";
  if (bed.is_cuda() && !cuda::nvrtc().is_present()) GTEST_SKIP() << cuda::nvrtc().absence;
  std::string text(bed.is_cuda() ? cuda_text : opencl_text);
  text.replace(text.find("y[i] = a"), 8, "y[i] = TIMES * a");
  auto x = bed.floats({1, 2});
  auto y = bed.floats({0, 0});
  const Kernel kernel = Kernel::from_source(device, text, "saxpy", "-DTIMES=10");
  kernel.launch(first, elements(2), in(x), inout(y), 2.0f, 2u);
  EXPECT_EQ(y.to_vector(), (std::vector<float>{20, 40}));
}

// --- What is the same everywhere, on the simulated device

class SimKernelTest : public testing::Test {
 protected:
  void TearDown() override {
    for (const Finding& finding : sim::findings(device)) ADD_FAILURE() << finding.text();
  }
  [[nodiscard]] Array<float> floats(std::vector<float> values) const {
    return Array<float>::from(device, values);
  }
  /// Waits queued since the last plan of faults was set.
  [[nodiscard]] std::uint64_t waits() const { return sim::calls(device, "wait"); }

  Device device = sim::open({.seed = 7, .policy = sim::Policy::lazy});
  Stream first{device}, second{device};
  Kernel kernel = Kernel::from_function(device, "saxpy", saxpy);
};

TEST_F(SimKernelTest, TakesFunctionsInSeveralForms) {
  auto y = floats({1, 2});
  const Kernel lambda = Kernel::from_function(device, "twice", [](View<float> values) noexcept {
    for (float& value : values) value *= 2;
  });
  const Kernel body = Kernel::from_function(device, "half", [](const KernelCall& call) {
    for (std::size_t i = 0; i < call.arguments[0].range_bytes / 4; ++i) {
      call.argument<float*>(0)[i] /= 2;
    }
  });
  const Kernel none = Kernel::from_function(device, "none", [] {});
  EXPECT_EQ(lambda.info().parameter_count, 1u);
  EXPECT_EQ(body.info().parameter_count, std::nullopt);
  EXPECT_EQ(none.info().parameter_count, 0u);
  lambda.launch(first, elements(2), inout(y));
  lambda.launch(second, elements(2), inout(y));
  body.launch(first, elements(2), inout(y));
  none.launch(first, 1, 1);
  EXPECT_EQ(y.to_vector(), (std::vector<float>{2, 4}));
}

TEST(KernelLaunches, AreCounted) {
  const Device device = sim::open({});
  const Stream stream(device);
  const Kernel kernel = Kernel::from_function(device, "nothing", [](View<float>) {});
  Array<float> array = Array<float>::zeros(device, 4);
  const std::uint64_t before = device.activity().launches;
  for (int i = 0; i < 3; ++i) kernel.launch(stream, elements(4), inout(array));
  EXPECT_EQ(device.activity().launches, before + 3);
}

TEST_F(SimKernelTest, WaitsForWhatItsDeclarationsNeedAndNothingElse) {
  auto x = floats({1, 2});
  auto y = floats({0, 0});
  device.synchronize();
  const auto run = [&](const Stream& stream) {
    sim::set_faults(device, "");
    kernel.launch(stream, elements(2), in(x), inout(y), 1.0f, 2u);
    return waits();
  };
  EXPECT_EQ(run(first), 0u);
  EXPECT_EQ(run(first), 0u) << "one stream is in order by itself";
  EXPECT_EQ(run(second), 1u) << "for the writer of y, and not for the reader of x";
  const Kernel reads = Kernel::from_function(device, "reads", [](View<const float>) {});
  sim::set_faults(device, "");
  reads.launch(first, elements(2), in(x));
  EXPECT_EQ(waits(), 0u) << "two readers do not wait for each other";
}

TEST_F(SimKernelTest, ReportsARawLaunchThatIsNotDeclared) {
  auto x = floats({1, 2});
  auto y = floats({0, 0});
  kernel.launch(first, elements(2), in(x), inout(y), 1.0f, 2u);
  // The same launch past the declarations, on another stream.
  const auto from = x.address(), to = y.address();
  const float a = 1;
  const std::uint32_t two = 2;
  const KernelArgument raw[] = {{&from, 8, reinterpret_cast<void*>(from), 8, Access::read},
                                {&to, 8, reinterpret_cast<void*>(to), 8, Access::read_write},
                                {&a, 4},
                                {&two, 4}};
  const Result<void> refused = second.try_launch(kernel.native(), LaunchSize::for_elements(2), raw);
  ASSERT_EQ(code(refused), "violation");
  ASSERT_EQ(sim::findings(device).size(), 1u);
  EXPECT_EQ(sim::findings(device)[0].code, FindingCode::missing_wait);
  device = sim::open({});  // the finding was wanted
}

TEST_F(SimKernelTest, QueuesNothingIfAnyArgumentIsWrong) {
  auto x = floats({1, 2}), y = floats({0, 0});
  auto fresh = Array<float>::uninitialized(device, 2);
  const Kernel three =
      Kernel::from_function(device, "three", [](View<float>, View<float>, View<const float>) {});
  kernel.launch(first, elements(2), in(x), inout(y), 1.0f, 2u);
  sim::set_faults(device, "");
  const std::size_t uses = y.storage()->uses().size();
  const Result<Mark> refused = three.try_launch(second, elements(2), inout(x), inout(y), in(fresh));
  ASSERT_EQ(code(refused), "never_written");
  EXPECT_EQ(refused.failure().number("id"), fresh.id().value);
  EXPECT_EQ(waits(), 0u);
  EXPECT_EQ(y.storage()->uses().size(), uses);
  // Written all over, it may be read.
  three.launch(second, elements(2), inout(x), out(fresh), in(y));
  EXPECT_EQ(why(three.try_launch(second, elements(2), inout(x), inout(y), in(fresh))), "");
}

TEST_F(SimKernelTest, RefusesToWriteWhatIsOnlyRead) {
  auto x = floats({1, 2});
  alignas(256) static float lent[64] = {};
  const Device host = open_device("host");
  Buffer borrowed = borrow(host, lent, {64}, DType::f32, {.read_only = true});
  const Kernel on_host = Kernel::from_function(host, "saxpy", saxpy);
  const Stream stream(host);
  const Result<Mark> refused =
      on_host.try_launch(stream, elements(2), in(borrowed), inout(borrowed), 1.0f, 2u);
  ASSERT_EQ(code(refused), "read_only");
  EXPECT_TRUE(refused.failure().string("what"));
  EXPECT_EQ(refused.failure().string("kernel"), "saxpy");
  // A file is not for kernels at all, and that is what is said of reading it.
  auto file = std::make_shared<ServedFile>();
  file->bytes.resize(64);
  Buffer served = open_served(host, file);
  auto y = Array<float>::from(host, std::vector<float>{1, 2});
  const Result<Mark> unread =
      on_host.try_launch(stream, elements(2), in(served), inout(y), 1.0f, 2u);
  ASSERT_EQ(code(unread), "unsupported");
  EXPECT_EQ(unread.failure().string("what"), "file") << "found before memory is asked for";
  EXPECT_EQ(code(on_host.try_launch(stream, elements(2), in(y), inout(served), 1.0f, 2u)),
            "read_only");
}

TEST_F(SimKernelTest, RefusesBuffersThatAreGone) {
  auto x = floats({1, 2});
  Buffer none;
  const Result<Mark> empty = kernel.try_launch(first, elements(2), in(x), inout(none), 1.0f, 2u);
  ASSERT_EQ(code(empty), "not_allocated") << "it has no type that could be wrong";
  const Kernel bytes = Kernel::from_function(device, "raw", [](const KernelCall&) {});
  EXPECT_EQ(code(bytes.try_launch(first, elements(2), inout(none))), "not_allocated");
  // One that was moved from still has its type.
  Buffer moved = floats({1, 2}).buffer();
  const Buffer taken = std::move(moved);
  EXPECT_EQ(code(kernel.try_launch(first, elements(2), in(x), inout(moved), 1.0f, 2u)),
            "not_allocated");
  // One whose block was given to somebody else.
  Buffer given(device, {2}, DType::f32);
  given.fill(1.0f, first);
  const StorageHandle& storage = given.storage();
  const ResourceHandle resource = storage->resource();
  const Block block = storage->try_release_block(first, {}).value();
  kernel.launch(first, elements(2), in(x), inout(x), 1.0f, 2u);
  sim::set_faults(device, "");
  const Result<Mark> stale = kernel.try_launch(second, elements(2), in(x), inout(given), 1.0f, 2u);
  ASSERT_EQ(code(stale), "not_allocated");
  EXPECT_EQ(stale.failure().number("id"), given.id().value);
  EXPECT_EQ(waits(), 0u) << "before anything is queued";
  resource->deallocate(block, first);
}

TEST_F(SimKernelTest, RefusesArraysThatAreNoneAndTakesEmptyOnes) {
  auto x = floats({1, 2}), y = floats({1, 2}), empty = floats({});
  const auto taken = std::move(x);
  EXPECT_EQ(code(kernel.try_launch(first, elements(2), in(x), inout(y), 1.0f, 0u)),
            "not_allocated");
  EXPECT_EQ(code(kernel.try_launch(first, elements(2), in(Array<float>()), inout(y), 1.0f, 0u)),
            "not_allocated");
  EXPECT_EQ(why(kernel.try_launch(first, elements(2), in(empty), inout(y), 1.0f, 0u)), "");
  UseScope scope(first);
  scope.add(x, Access::read);
  scope.begin();
  EXPECT_EQ(scope.pointer(0), nullptr);
}

TEST_F(SimKernelTest, KnowsTheTypesOfAFunction) {
  auto x = floats({1, 2});
  auto ints = Array<int>::from(device, std::vector<int>{1, 2});
  Result<Mark> refused = kernel.try_launch(first, elements(2), in(ints), inout(x), 1.0f, 2u);
  ASSERT_EQ(code(refused), "type_mismatch");
  EXPECT_EQ(refused.failure().number("index"), 0u);
  EXPECT_EQ(refused.failure().string("expected"), "f32");
  EXPECT_EQ(refused.failure().string("actual"), "i32");
  // A whole number is no float; the sign of one makes no difference.
  EXPECT_EQ(code(kernel.try_launch(first, elements(2), in(x), inout(x), 1, 2u)), "type_mismatch");
  EXPECT_EQ(why(kernel.try_launch(first, elements(2), in(x), inout(x), 1.0f, 2)), "");
  // Bytes are of any type.
  Buffer bytes = x.buffer().as<std::byte>();
  EXPECT_EQ(why(kernel.try_launch(first, elements(2), in(bytes), inout(bytes), 1.0f, 2u)), "");
  refused = kernel.try_launch(first, elements(2), in(x), in(x), 1.0f, 2u);
  ASSERT_EQ(code(refused), "invalid_argument");
  EXPECT_EQ(refused.failure().number("index"), 1u);
  EXPECT_EQ(code(kernel.try_launch(first, elements(2), out(x), inout(x), 1.0f, 2u)),
            "invalid_argument");
  // Types of one's own are known by their width.
  struct Pair {
    float a, b;
  };
  const Kernel pairs = Kernel::from_function(device, "pairs", [](View<const Pair>, Pair) {});
  const auto made = Array<Pair>::from(device, std::vector<Pair>{{1, 2}});
  EXPECT_EQ(why(pairs.try_launch(first, elements(1), in(made), Pair{1, 2})), "");
  EXPECT_EQ(code(pairs.try_launch(first, elements(1), in(x), Pair{1, 2})), "type_mismatch");
  EXPECT_EQ(code(pairs.try_launch(first, elements(1), in(made), 1.0f)), "type_mismatch");
}

TEST_F(SimKernelTest, RefusesBytesThatAreNoElements) {
  const Kernel twice = Kernel::from_function(device, "twice", [](View<float> values) {
    for (float& value : values) value *= 2;
  });
  auto x = floats({1, 2, 3, 4});
  const Buffer bytes = x.buffer().as<std::byte>();
  Result<Mark> refused = twice.try_launch(first, elements(2), inout(bytes.byte_view(1, 8)));
  ASSERT_EQ(code(refused), "misaligned");
  EXPECT_EQ(refused.failure().number("index"), 0u);
  EXPECT_EQ(refused.failure().number("required"), 4u);
  EXPECT_EQ(code(twice.try_launch(first, elements(2), inout(bytes.byte_view(4, 7)))),
            "size_mismatch");
  EXPECT_EQ(why(twice.try_launch(first, elements(2), inout(bytes.byte_view(4, 8)))), "");
  EXPECT_EQ(why(twice.try_launch(first, elements(2), inout(bytes.byte_view(1, 0)))), "");
  EXPECT_EQ(x.to_vector(), (std::vector<float>{1, 4, 6, 4}));
}

TEST_F(SimKernelTest, RefusesTooManyArguments) {
  const Kernel any = Kernel::from_function(device, "any", [](const KernelCall&) {});
  const float value = 1;
  std::vector<LaunchArgument> many(64, LaunchArgument::of_value(value));
  EXPECT_EQ(why(any.try_launch_with(first, elements(1), many)), "");
  many.push_back(LaunchArgument::of_value(value));
  const Result<Mark> refused = any.try_launch_with(first, elements(1), many);
  ASSERT_EQ(code(refused), "capacity");
  EXPECT_EQ(refused.failure().number("max"), 64u);
  EXPECT_EQ(refused.failure().number("count"), 65u);
}

TEST_F(SimKernelTest, RefusesNoKernelAndNoStream) {
  auto x = floats({1, 2});
  const Result<Mark> none = Kernel().try_launch(first, elements(2), inout(x));
  ASSERT_EQ(code(none), "invalid_argument");
  EXPECT_EQ(none.failure().string("name"), "kernel");
  EXPECT_FALSE(Kernel());
  EXPECT_EQ(Kernel().name(), "");
  EXPECT_FALSE(Kernel().device().is_open());
  EXPECT_EQ(Kernel().native().value, 0u);
  EXPECT_EQ(code(kernel.try_launch(StreamRef(), elements(2), in(x), inout(x), 1.0f, 2u)),
            "stream_misuse");
  EXPECT_EQ(code(Kernel::try_from_function(Device(), "saxpy", saxpy)), "invalid_device");
  EXPECT_EQ(
      code(kernel.try_launch(first, elements(std::uint64_t{1} << 60), in(x), inout(x), 1.0f, 2u)),
      "size_overflow");
}

TEST_F(SimKernelTest, LeavesNoUseWhenACallOfALaunchFails) {
  const auto round = [&](std::string_view plan,
                         std::vector<std::pair<std::string, std::uint64_t>>* counted) {
    auto x = floats({1, 2}), y = floats({0, 0});
    kernel.launch(first, elements(2), in(y), inout(x), 1.0f, 2u);
    Buffer z(device, {2}, DType::f32);
    const Kernel copy = Kernel::from_function(
        device, "copy", [](View<const float> from, View<float> to, View<float> more) {
          for (std::size_t i = 0; i < from.size(); ++i) more[i] = to[i] = from[i];
        });
    const std::size_t x_uses = x.storage()->uses().size(), y_uses = y.storage()->uses().size();
    sim::set_faults(device, plan);
    const Result<Mark> launched = copy.try_launch(second, elements(2), in(x), out(z), inout(y));
    if (counted != nullptr) {
      for (const char* one :
           {"allocate", "release", "launch", "record", "wait", "query", "stream", "info", "sync"}) {
        counted->emplace_back(one, sim::calls(device, one));
      }
    }
    sim::set_faults(device, "");
    if (!launched) {
      EXPECT_EQ(x.storage()->uses().size(), x_uses);
      EXPECT_EQ(y.storage()->uses().size(), y_uses);
      EXPECT_FALSE(z.storage()->check_written(0, 8, {}));
      EXPECT_EQ(why(copy.try_launch(second, elements(2), in(x), out(z), inout(y))), "");
    }
    EXPECT_EQ(z.to_vector<float>(), (std::vector<float>{1, 2}));
    EXPECT_EQ(y.to_vector(), (std::vector<float>{1, 2}));
    return !launched;
  };
  std::vector<std::pair<std::string, std::uint64_t>> classes;
  EXPECT_FALSE(round("", &classes));
  unsigned refused = 0, tried = 0;
  for (const auto& [one, calls] : classes) {
    for (std::uint64_t i = 1; i <= calls; ++i, ++tried) {
      const std::string plan = one + "#" + std::to_string(i) + "=fail";
      SCOPED_TRACE(plan);
      if (round(plan, nullptr)) ++refused;
    }
  }
  EXPECT_GT(tried, 1u);
  EXPECT_GT(refused, 1u);
  std::cout << refused << " of " << tried << " failing calls refused the launch\n";
  device.synchronize();
  EXPECT_EQ(poll_kernels(), 0u);
}

TEST_F(SimKernelTest, IsNotLoadedWhenLoadingFails) {
  sim::set_faults(device, "load#1=fail");
  EXPECT_EQ(code(Kernel::try_from_function(device, "saxpy", saxpy)), "driver");
  EXPECT_EQ(why(Kernel::try_from_function(device, "saxpy", saxpy)), "");
}

TEST(KernelOnHost, IsAFunction) {
  const Device host = open_device("host");
  const Result<Kernel> refused = Kernel::try_from_source(host, "text", "k");
  ASSERT_EQ(code(refused), "unsupported");
  EXPECT_EQ(refused.failure().string("kernel"), "k");
  EXPECT_EQ(code(Kernel::try_from_image(host, "image", "k")), "unsupported");
}

TEST(KernelOnFake, RespectsTheArgumentsThatTheDeviceTakes) {
  const FakeDevice fake({.describe = [](DeviceInfo& info) { info.max_kernel_arguments = 2; }});
  const Device& device = fake.device;
  const Kernel any = Kernel::from_function(device, "any", [](const KernelCall&) {});
  const Stream stream(device);
  EXPECT_EQ(why(any.try_launch(stream, elements(1), 1, 2)), "");
  const Stream other(device);
  Gate gate;
  gate.hold(other);
  Buffer busy(device, {4}, DType::i32);
  busy.fill(1, other);
  const std::size_t waits = fake.ledger->count(Call::wait);
  const Result<Mark> refused = any.try_launch(stream, elements(1), inout(busy), 2, 3);
  ASSERT_EQ(code(refused), "unsupported");
  EXPECT_EQ(refused.failure().number("max"), 2u);
  EXPECT_EQ(fake.ledger->count(Call::launch), 1u);
  EXPECT_EQ(fake.ledger->count(Call::wait), waits) << "and nothing waits for the buffer";
  EXPECT_EQ(why(any.try_launch(stream, elements(1), inout(busy), 2)), "");
  EXPECT_EQ(fake.ledger->count(Call::wait), waits + 1);
}

TEST(KernelOnFake, TakesAsManyBuffersAsTheDeviceAndNotOneMore) {
  const FakeDevice fake({.describe = [](DeviceInfo& info) { info.max_kernel_arguments = 8; }});
  const Kernel any = Kernel::from_function(fake.device, "any", [](const KernelCall&) {});
  const Stream stream(fake.device);
  Buffer one(fake.device, {4}, DType::i32, {.contents = Contents::zero});
  const auto use = [&] { return in(one); };
  EXPECT_EQ(why(any.try_launch(stream, elements(4), use(), use(), use(), use(), use(), use(), use(),
                               use())),
            "");
  const Result<Mark> refused = any.try_launch(stream, elements(4), use(), use(), use(), use(),
                                              use(), use(), use(), use(), use());
  ASSERT_EQ(code(refused), "unsupported");
  EXPECT_EQ(refused.failure().number("count"), 9u);
  EXPECT_EQ(refused.failure().number("max"), 8u);
  EXPECT_EQ(fake.ledger->count(Call::launch), 1u);
}

TEST(KernelOnFake, EndsWithItsDevice) {
  const auto ledger = std::make_shared<Ledger>();
  {
    const Device device(make_fake_backend(ledger));
    Kernel kernel = Kernel::from_function(device, "any", [](const KernelCall&) {});
    EXPECT_EQ(ledger->live_kernels(), 1u);
    kernel = Kernel();
    EXPECT_EQ(ledger->live_kernels(), 0u) << "never launched, and gone at once";
  }
  EXPECT_TRUE(ledger->has_closed());
  {
    Kernel kernel =
        Kernel::from_function(Device(make_fake_backend(ledger)), "any", [](const KernelCall&) {});
    EXPECT_TRUE(kernel.device().is_open()) << "it keeps the device";
  }
  // A kernel that waits for its launches does not keep it.
  Gate gate;
  const auto other = std::make_shared<Ledger>();
  {
    const Device device(make_fake_backend(other));
    const Stream stream(device);
    gate.hold(stream);
    Kernel::from_function(device, "any", [](const KernelCall&) {}).launch(stream, 1, 1);
    EXPECT_EQ(poll_kernels(), 1u);
    gate.open();
  }
  EXPECT_TRUE(other->has_closed());
  EXPECT_EQ(poll_kernels(), 0u);
}

TEST(KernelOnFakeCuda, LeavesNoUseWhenACallOfTheDriverFails) {
  Bed bed("fake_cuda");
  const Stream first(bed.device), second(bed.device);
  const Kernel kernel = bed.try_load().value();
  const auto round = [&](const std::function<void()>& plan) {
    auto x = bed.floats({1, 2}), y = bed.floats({1, 2});
    kernel.launch(first, elements(2), in(y), inout(x), 1.0f, 2u);
    const std::size_t x_uses = x.storage()->uses().size(), y_uses = y.storage()->uses().size();
    bed.fake->clear_failures();
    plan();
    const Result<Mark> launched = kernel.try_launch(second, elements(2), in(x), inout(y), 1.0f, 2u);
    if (!launched) {
      EXPECT_EQ(x.storage()->uses().size(), x_uses);
      EXPECT_EQ(y.storage()->uses().size(), y_uses);
      bed.fake->clear_failures();
      EXPECT_EQ(why(kernel.try_launch(second, elements(2), in(x), inout(y), 1.0f, 2u)), "");
    }
    std::vector<std::pair<std::string, std::uint64_t>> calls;
    for (const cuda::DriverEntryInfo& entry : cuda::driver_entries) {
      calls.emplace_back(entry.slot, bed.fake->calls(entry.slot));
    }
    bed.fake->clear_failures();
    EXPECT_EQ(y.to_vector(), (std::vector<float>{3, 6}));
    return std::pair(!launched, calls);
  };
  unsigned refused = 0, tried = 0;
  for (const auto& counted : round([] {}).second) {
    const std::string& slot = counted.first;
    for (std::uint64_t i = 1; i <= counted.second; ++i, ++tried) {
      SCOPED_TRACE(slot + " " + std::to_string(i));
      if (round([&] { bed.fake->fail_call(slot, i, cuda::CUDA_ERROR_INVALID_VALUE); }).first)
        ++refused;
    }
  }
  std::cout << refused << " of " << tried << " failing driver calls refused the launch\n";
  EXPECT_GT(refused, 1u);
}

TEST(KernelOnFakeCuda, HasTheBlocksThatTheDriverSuggests) {
  Bed bed("fake_cuda");
  const Kernel kernel = bed.try_load().value();
  EXPECT_EQ(kernel.info().block_threads, 256u);
  EXPECT_EQ(kernel.info().parameter_count, 4u);
  EXPECT_EQ(kernel.info().parameters[2].value_bytes, 4u);
  const auto size_of = [&](const LaunchExtent& extent) {
    auto x = bed.floats(std::vector<float>(1000, 1.0f));
    const Stream stream(bed.device);
    kernel.launch(stream, extent, in(x), inout(x), 1.0f, 1000u);
    stream.synchronize();
    return std::pair(last_size.grid[0], last_size.block[0]);
  };
  EXPECT_EQ(size_of(elements(1000)), std::pair(4u, 256u));
  EXPECT_EQ(size_of(elements(1000, 100)), std::pair(10u, 100u));
}

}  // namespace
}  // namespace tern::test
