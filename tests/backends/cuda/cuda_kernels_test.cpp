#include "backends/cuda/cuda_kernels.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "backends/cuda/nvrtc.hpp"
#include "support/allocation_counter.hpp"
#include "support/cuda_bench.hpp"
#include "support/fake_nvrtc.hpp"

namespace tern::cuda {
namespace {

/// A source whose image does not end in a zero.
struct Source {
  explicit Source(std::string_view kernel, std::string_view entry = {}) : name(kernel) {
    const std::string_view names[] = {name};
    const std::string text = sim::FakeDriver::image(names);
    image.resize(text.size());
    std::memcpy(image.data(), text.data(), text.size());
    source.entry = entry.empty() ? std::string_view(name) : entry;
    source.image = image;
  }
  std::string name;
  std::vector<std::byte> image;
  KernelSource source;
};

template <class T>
KernelArgument argument(const T& value) {
  return {&value, sizeof value};
}

TEST(CudaKernels, RunWithTheirArguments) {
  CudaBench bench;
  const Source source("add_one");
  const NativeKernel kernel = bench.device().load_kernel(source.source).value();
  auto* values = static_cast<std::uint32_t*>(bench.memory(64));
  bench.write(values, std::vector<std::byte>(64, std::byte{0}));
  const std::uint32_t count = 16;
  const NativeStream stream = bench.stream();
  const KernelArgument arguments[] = {argument(values), argument(count)};
  EXPECT_EQ(why(bench.device().launch({stream}, kernel, {{1, 1, 1}, {16, 1, 1}}, arguments)), "");
  EXPECT_EQ(why(bench.device().synchronize(stream)), "");
  std::uint32_t first = 0;
  std::memcpy(&first, bench.read(values, 4).data(), 4);
  EXPECT_EQ(first, 1u);
  bench.device().unload_kernel(kernel);
  EXPECT_EQ(bench.fake.live().modules, 0u);
}

TEST(CudaKernels, TakeMoreArgumentsThanUsualToo) {
  std::vector<sim::KernelParameter> parameters(100, sim::KernelParameter{4});
  sim::FakeDriverOptions options = sim::bench_options();
  static std::uint64_t sum;
  sum = 0;
  options.kernels = {{"many",
                      [](const KernelCall& call) {
                        for (std::size_t i = 0; i < 100; ++i) {
                          sum += call.argument<std::uint32_t>(i);
                        }
                      },
                      parameters}};
  CudaBench bench(options);
  const Source source("many");
  const NativeKernel kernel = bench.device().load_kernel(source.source).value();
  std::vector<std::uint32_t> values(100);
  std::vector<KernelArgument> arguments;
  for (std::uint32_t i = 0; i < 100; ++i) {
    values[i] = i;
    arguments.push_back(argument(values[i]));
  }
  const NativeStream stream = bench.stream();
  EXPECT_EQ(why(bench.device().launch({stream}, kernel, {}, arguments)), "");
  EXPECT_EQ(why(bench.device().synchronize(stream)), "");
  EXPECT_EQ(sum, 4950u);
  if (test::HeapExhausted::is_possible()) {
    std::optional<Result<void>> refused;
    {
      const test::HeapExhausted exhausted;
      refused = bench.device().launch({stream}, kernel, {}, arguments);
    }
    ASSERT_EQ(code(*refused), "out_of_memory");
    EXPECT_EQ(refused->failure().number("requested"), 100 * sizeof(void*));
  }
  bench.device().unload_kernel(kernel);
}

TEST(CudaKernels, ShowTheCompilersReasonForAnImageThatIsNone) {
  CudaBench bench;
  const std::string text = "no image";
  const auto load = [&](std::string_view image) {
    return bench.device().load_kernel(
        {.entry = "k", .image = std::as_bytes(std::span(image.data(), image.size()))});
  };
  const Result<NativeKernel> refused = load(text);
  ASSERT_EQ(code(refused), "invalid_argument");
  EXPECT_EQ(refused.failure().string("value"), "fake driver: this is no image of mine");
  EXPECT_EQ(refused.failure().string("kernel"), "k");
  EXPECT_EQ(refused.failure().string("result"), "CUDA_ERROR_INVALID_IMAGE");
  EXPECT_EQ(refused.failure().number("code"), 200u);
  // One that says nothing.
  for (const CUresult result : {CUDA_ERROR_INVALID_PTX, CUDA_ERROR_UNSUPPORTED_PTX_VERSION,
                                CUDA_ERROR_NO_BINARY_FOR_GPU, CUDA_ERROR_JIT_COMPILER_NOT_FOUND}) {
    bench.fake.fail_call("cuModuleLoadDataEx", 1, result);
    const Result<NativeKernel> silent = load(text);
    ASSERT_EQ(code(silent), "invalid_argument");
    EXPECT_EQ(silent.failure().string("value"), "the compiler gave no reason");
  }
  bench.fake.fail_call("cuModuleLoadDataEx", 1, CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(code(load(text)), "out_of_memory");
  EXPECT_EQ(bench.fake.live().modules, 0u);
}

TEST(CudaKernels, AreNotMadeFromFunctionsOfTheHost) {
  CudaBench bench;
  const Result<NativeKernel> refused =
      bench.device().load_kernel({.entry = "k", .body = [](const KernelCall&) {}});
  ASSERT_EQ(code(refused), "unsupported");
  EXPECT_EQ(refused.failure().string("kernel"), "k");
}

TEST(CudaKernels, AreFoundByTheirNameInTheImage) {
  CudaBench bench;
  const Source source("add_one", "add_two");
  const Result<NativeKernel> refused = bench.device().load_kernel(source.source);
  ASSERT_EQ(code(refused), "not_found");
  EXPECT_EQ(refused.failure().string("id"), "add_two");
  EXPECT_EQ(refused.failure().string("names"), "'add_one'");
  // What was loaded for it is unloaded again.
  EXPECT_EQ(bench.fake.live().modules, 0u);
  const Source good("add_one");
  bench.fake.fail_call("cuModuleGetFunction", 1, CUDA_ERROR_UNKNOWN);
  EXPECT_EQ(code(bench.device().load_kernel(good.source)), "driver");
  EXPECT_EQ(bench.fake.live().modules, 0u);
}

TEST(CudaKernels, AreNamedFromTheTextWhereTheDriverIsTooOldToNameThem) {
  sim::FakeDriverOptions options = sim::bench_options();
  options.driver_version = 12000;
  // A line of an image is a name here, so that one can read like PTX.
  const std::string_view names[] = {".visible .entry one(.param .u64 p)", ".entry\ttwo_2$",
                                    ".entry", ".entryless three"};
  for (const std::string_view name : names) {
    options.kernels.push_back({std::string(name), [](const KernelCall&) {}, {}});
  }
  CudaBench bench(options);
  const std::string image = sim::FakeDriver::image(names);
  const Result<NativeKernel> refused = bench.device().load_kernel(
      {.entry = "nothing", .image = std::as_bytes(std::span(image.data(), image.size()))});
  ASSERT_EQ(code(refused), "not_found");
  EXPECT_EQ(refused.failure().string("names"), "'one', 'two_2$'");
  const Source source("add_one", "nothing");
  EXPECT_EQ(bench.device().load_kernel(source.source).failure().string("names"),
            "none could be listed");
}

TEST(CudaKernels, AreNotFoundAlsoWhereTheirNamesAreNotTold) {
  CudaBench bench;
  const Source source("add_one", "nothing");
  for (const char* slot :
       {"cuModuleGetFunctionCount", "cuModuleEnumerateFunctions", "cuFuncGetName"}) {
    bench.fake.fail_call(slot, 1, CUDA_ERROR_UNKNOWN);
    const Result<NativeKernel> refused = bench.device().load_kernel(source.source);
    ASSERT_EQ(code(refused), "not_found") << slot;
    EXPECT_EQ(refused.failure().string("names"), "none could be listed") << slot;
    bench.fake.clear_failures();
  }
}

TEST(CudaKernels, KnowTheirParametersAndWhatFillsTheDevice) {
  CudaBench bench;
  const Source source("sum");
  const NativeKernel kernel = bench.device().load_kernel(source.source).value();
  const KernelInfo info = bench.device().kernel_info(kernel).value();
  EXPECT_EQ(info.parameter_count, 3u);
  EXPECT_EQ(info.parameters[0].value_bytes, 8u);
  EXPECT_EQ(info.parameters[2].value_bytes, 4u);
  EXPECT_EQ(info.parameters[2].kind, KernelInfo::Kind::unknown);
  EXPECT_EQ(info.block_threads, 256u);
  // What the driver does not tell is not known.
  bench.fake.fail_call("cuFuncGetParamInfo", 1, CUDA_ERROR_NOT_SUPPORTED);
  bench.fake.fail_call("cuOccupancyMaxPotentialBlockSize", 1, CUDA_ERROR_NOT_SUPPORTED);
  const KernelInfo less = bench.device().kernel_info(kernel).value();
  EXPECT_EQ(less.parameter_count, std::nullopt);
  EXPECT_EQ(less.block_threads, 0u);
  bench.device().unload_kernel(kernel);
  EXPECT_EQ(code(bench.device().kernel_info(kernel)), "use_after_free");
}

TEST(CudaKernels, SayThatTheDeviceIsLostWhenAsked) {
  for (const char* slot : {"cuFuncGetParamInfo", "cuOccupancyMaxPotentialBlockSize"}) {
    CudaBench bench;
    bench.is_lost = true;
    const Source source("sum");
    const NativeKernel kernel = bench.device().load_kernel(source.source).value();
    bench.fake.fail_call(slot, 1, CUDA_ERROR_ILLEGAL_ADDRESS);
    EXPECT_EQ(code(bench.device().kernel_info(kernel)), "device_lost") << slot;
    EXPECT_EQ(code(bench.device().kernel_info(kernel)), "device_lost") << slot;
  }
}

TEST(CudaKernels, OfAnOldDriverHaveUnknownParameters) {
  sim::FakeDriverOptions options = sim::bench_options();
  options.driver_version = 12000;
  CudaBench bench(options);
  const Source source("sum");
  const NativeKernel kernel = bench.device().load_kernel(source.source).value();
  const KernelInfo info = bench.device().kernel_info(kernel).value();
  EXPECT_EQ(info.parameter_count, std::nullopt);
  EXPECT_EQ(info.block_threads, 256u);
  bench.device().unload_kernel(kernel);
}

TEST(CudaKernels, AreCompiledFromTextWhereThereIsACompiler) {
  CudaBench bench;
  test::FakeNvrtc::state() = {};
  const InstalledNvrtc compiler(load_nvrtc(test::fake_nvrtc()));
  const std::string_view names[] = {"add_one"};
  test::FakeNvrtc::state().ptx = sim::FakeDriver::image(names);
  const NativeKernel kernel =
      bench.device()
          .load_kernel({.entry = "add_one", .text = "some text", .options = "-a  -b"})
          .value();
  EXPECT_EQ(test::FakeNvrtc::state().text, "some text");
  EXPECT_EQ(test::FakeNvrtc::state().options,
            (std::vector<std::string>{"--gpu-architecture=compute_90", "-a", "-b"}));
  EXPECT_EQ(test::FakeNvrtc::state().live, 0);
  bench.device().unload_kernel(kernel);
}

TEST(CudaKernels, SayWhatToInstallWhereThereIsNoCompiler) {
  CudaBench bench;
  constexpr const char* nowhere[] = {"libtern_no_such_compiler.so", nullptr};
  const InstalledNvrtc none(find_nvrtc(nowhere));
  const Result<NativeKernel> refused =
      bench.device().load_kernel({.entry = "add_one", .text = "some text"});
  ASSERT_EQ(code(refused), "unsupported");
  EXPECT_NE(refused.failure().text().find("Install libnvrtc.so"), std::string::npos)
      << refused.failure().text();
}

TEST(CudaKernels, AreNotLaunchedAfterTheyWereUnloaded) {
  CudaBench bench;
  const Source source("bare");
  const NativeKernel kernel = bench.device().load_kernel(source.source).value();
  bench.device().unload_kernel(kernel);
  const NativeKernel next = bench.device().load_kernel(source.source).value();
  EXPECT_NE(kernel.value, next.value);
  const NativeStream stream = bench.stream();
  bench.fake.clear_failures();
  EXPECT_EQ(code(bench.device().launch({stream}, kernel, {}, {})), "use_after_free");
  EXPECT_EQ(bench.fake.calls("cuLaunchKernel"), 0u);
  bench.device().unload_kernel(kernel);
  bench.device().unload_kernel(next);
}

TEST(CudaKernels, NameTheLaunchThatFailed) {
  CudaBench bench;
  const Source source("add_one");
  const NativeKernel kernel = bench.device().load_kernel(source.source).value();
  const NativeStream stream = bench.stream();
  void* memory = nullptr;
  const std::uint32_t count = 0;
  const KernelArgument arguments[] = {argument(memory), argument(count)};
  // Too many threads.
  const Result<void> refused =
      bench.device().launch({stream}, kernel, {{1, 1, 1}, {2000, 1, 1}}, arguments);
  ASSERT_EQ(code(refused), "driver");
  EXPECT_EQ(refused.failure().string("call"), "cuLaunchKernel");
  EXPECT_EQ(why(bench.device().launch({stream}, kernel, {}, arguments)), "");
  EXPECT_EQ(why(bench.device().synchronize(stream)), "");
  bench.device().unload_kernel(kernel);
}

TEST(CudaKernels, AreUnloadedWithTheDevice) {
  CudaBench bench;
  const Source source("bare");
  EXPECT_EQ(why(bench.device().load_kernel(source.source)), "");
  EXPECT_EQ(bench.fake.live().modules, 1u);
  bench.backends.clear();
  EXPECT_EQ(bench.fake.live().modules, 0u);
}

TEST(CudaKernels, LoseNoModuleWhenTheHeapIsExhausted) {
  if (!test::HeapExhausted::is_possible()) GTEST_SKIP();
  CudaBench bench;
  const Source source("bare");
  bool is_refused = false;
  for (std::size_t left = 0; left < 200; ++left) {
    bool has_failed = false;
    std::optional<Result<NativeKernel>> made;
    {
      const test::HeapExhausted exhausted(left, test::HeapExhausted::Mode::once);
      made.emplace(bench.device().load_kernel(source.source));
      has_failed = exhausted.has_failed();
    }
    if (*made) {
      bench.device().unload_kernel(**made);
    } else {
      EXPECT_EQ(code(*made), "out_of_memory");
      is_refused |= made->failure().string("what") == "a kernel";
    }
    EXPECT_EQ(bench.fake.live().modules, 0u);
    if (!has_failed) break;
  }
  EXPECT_TRUE(is_refused);
}

}  // namespace
}  // namespace tern::cuda
