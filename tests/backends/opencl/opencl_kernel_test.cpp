#include "backends/opencl/opencl_kernel.hpp"

#include <cstring>
#include <numeric>

#include "support/opencl_bench.hpp"
#include "support/thread.hpp"

namespace tern::opencl {
namespace {

constexpr const char* text = R"(
  __kernel void add(__global const int* in, __global int* out, int amount) {
    size_t i = get_global_id(0);
    out[i] = in[i] + amount;
  }
  typedef struct { ulong address; int amount; } Hidden;
  __kernel void add_hidden(Hidden hidden) {
    ((__global int*)hidden.address)[get_global_id(0)] += hidden.amount;
  }
  __kernel void turn(__global int* data, __local int* scratch) {
    size_t i = get_local_id(0);
    scratch[i] = data[i];
    barrier(CLK_LOCAL_MEM_FENCE);
    data[i] = scratch[get_local_size(0) - 1 - i];
  }
  __kernel void where_am_i(__global uint* out) {
    size_t i = (get_global_id(2) * get_global_size(1) + get_global_id(1)) * get_global_size(0) +
               get_global_id(0);
    out[i] = (uint)(get_group_id(0) + 10 * get_group_id(1) + 100 * get_group_id(2));
  }
)";

class OpenClKernel : public test::OpenClTest {
 protected:
  void SetUp() override {
    OpenClTest::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    if (!facts.has_compiler) GTEST_SKIP() << "has no compiler";
    open_context();
    memory = std::make_shared<Memory>(context);
    stream = Stream::make(context, false).value();
    in = take();
    out = take();
    std::vector<int> numbers(count);
    std::iota(numbers.begin(), numbers.end(), 0);
    ASSERT_TRUE(stream->copy(in, numbers.data(), count * sizeof(int)));
    ASSERT_TRUE(wait(stream->position()));
  }
  void TearDown() override {
    stream.reset();
    memory.reset();
    OpenClTest::TearDown();
  }

  int* take() {
    return static_cast<int*>(
        memory->allocate(MemoryKind::device, count * sizeof(int), 128).value());
  }
  Result<std::shared_ptr<Kernel>> try_load(const char* entry) {
    return Kernel::load(context, {.entry = entry, .text = text});
  }
  std::shared_ptr<Kernel> load(const char* entry) { return try_load(entry).value(); }
  std::vector<int> read(int* from) {
    std::vector<int> result(count);
    EXPECT_TRUE(stream->copy(result.data(), from, count * sizeof(int)));
    EXPECT_TRUE(wait(stream->position()));
    return result;
  }
  std::vector<KernelArgument> arguments() {
    return {{&in, sizeof in, in, 64, Access::read},
            {&out, sizeof out, out, 64, Access::discard},
            {&amount, sizeof amount, nullptr, 0, Access::read}};
  }

  static constexpr std::size_t count = 16;
  std::shared_ptr<Memory> memory;
  std::unique_ptr<Stream> stream;
  int* in = nullptr;
  int* out = nullptr;
  int amount = 100;
};

TEST_F(OpenClKernel, RunsOverTheWholeGrid) {
  const auto kernel = load("add");
  ASSERT_TRUE(
      kernel->launch(*stream, *memory, {.grid = {4, 1, 1}, .block = {4, 1, 1}}, arguments()));
  const std::vector<int> result = read(out);
  for (std::size_t i = 0; i < count; ++i) EXPECT_EQ(result[i], static_cast<int>(i) + 100);
}

TEST_F(OpenClKernel, HasBlocksAndGridsOfThreeDimensions) {
  const auto kernel = load("where_am_i");
  const KernelArgument argument{&out, sizeof out, out, 64, Access::discard};
  ASSERT_TRUE(kernel->launch(*stream, *memory, {.grid = {2, 2, 2}, .block = {2, 1, 1}},
                             std::span(&argument, 1)));
  EXPECT_EQ(read(out),
            (std::vector<int>{0, 0, 1, 1, 10, 10, 11, 11, 100, 100, 101, 101, 110, 110, 111, 111}));
}

TEST_F(OpenClKernel, TakesAddressesInsideABlockAndNull) {
  const auto kernel = load("add");
  int* inside = out + 8;
  std::vector<KernelArgument> some = arguments();
  some[1].value = &inside;
  ASSERT_TRUE(kernel->launch(*stream, *memory, {.grid = {8, 1, 1}}, some));
  EXPECT_EQ(read(out)[15], 107);
  int* null = nullptr;
  some[0].value = some[1].value = &null;
  some[0].range_address = some[1].range_address = nullptr;
  // A kernel that follows null would crash, so this one is only queued by its arguments.
  fail("clEnqueueNDRangeKernel", result::invalid_value);
  EXPECT_EQ(kernel->launch(*stream, *memory, {}, some).failure().string("call"),
            "clEnqueueNDRangeKernel");
}

TEST_F(OpenClKernel, MayUseMemoryThatItsArgumentsHide) {
  const auto kernel = load("add_hidden");
  struct Hidden {
    std::uint64_t address;
    std::int32_t amount;
  } hidden = {reinterpret_cast<std::uintptr_t>(in), 5};
  const KernelArgument argument{&hidden, sizeof hidden, in, 64, Access::read_write};
  ASSERT_TRUE(kernel->launch(*stream, *memory, {.grid = {count, 1, 1}}, std::span(&argument, 1)));
  EXPECT_EQ(read(in)[3], 8);

  for (const char* entry :
       {"clCreateKernel", "clSetKernelExecInfo", "clSetKernelArg", "clEnqueueNDRangeKernel"}) {
    fail(entry, result::out_of_host_memory);
    const Result<void> refused = kernel->launch(*stream, *memory, {}, std::span(&argument, 1));
    ASSERT_FALSE(refused) << entry;
    EXPECT_EQ(refused.failure().string("call"), entry);
  }
}

TEST_F(OpenClKernel, HasSharedMemoryAsItsLastParameter) {
  const auto kernel = load("turn");
  const KernelArgument argument{&in, sizeof in, in, 64, Access::read_write};
  const std::span one(&argument, 1);
  ASSERT_TRUE(kernel->launch(*stream, *memory, {.block = {count, 1, 1}, .shared_bytes = 64}, one));
  EXPECT_EQ(read(in)[0], 15);
  EXPECT_EQ(kernel->launch(*stream, *memory, {.block = {count, 1, 1}}, one).failure().code(),
            ErrorCode::invalid_argument);
  EXPECT_EQ(load("add")
                ->launch(*stream, *memory, {.shared_bytes = 64}, arguments())
                .failure()
                .number("value"),
            64u);
}

TEST_F(OpenClKernel, RefusesArgumentsThatItDoesNotDeclare) {
  const auto kernel = load("add");
  std::vector<KernelArgument> some = arguments();
  const Result<void> few = kernel->launch(*stream, *memory, {}, std::span(some).first(2));
  ASSERT_FALSE(few);
  EXPECT_EQ(few.failure().text(),
            "kernel 'add' has 3 parameters and was launched with 2 arguments.");

  some[0].value_bytes = 4;
  EXPECT_EQ(kernel->launch(*stream, *memory, {}, some).failure().code(),
            ErrorCode::invalid_argument);
  some = arguments();
  int on_the_stack = 0;
  int* foreign = &on_the_stack;
  some[1].value = &foreign;
  EXPECT_EQ(kernel->launch(*stream, *memory, {}, some).failure().number("index"), 1u);
  some = arguments();
  some[2].value_bytes = 8;  // it is an int
  EXPECT_EQ(kernel->launch(*stream, *memory, {}, some).failure().string("call"), "clSetKernelArg");
}

TEST_F(OpenClKernel, RefusesMemoryThatIsGone) {
  const auto kernel = load("add");
  ASSERT_TRUE(memory->release(out));
  EXPECT_EQ(kernel->launch(*stream, *memory, {}, arguments()).failure().code(),
            ErrorCode::invalid_argument);
}

TEST_F(OpenClKernel, NeedsText) {
  const Result<std::shared_ptr<Kernel>> refused = Kernel::load(context, {.entry = "add"});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.failure().code(), ErrorCode::unsupported);
}

TEST_F(OpenClKernel, ThatDoesNotCompileShowsTheFirstError) {
  const std::string wrong = "__kernel void f(__global int* p) { p[0] = missing_name; }\n" +
                            std::string(2000, ' ') + "also wrong";
  const Result<std::shared_ptr<Kernel>> refused =
      Kernel::load(context, {.entry = "f", .text = wrong});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.failure().code(), ErrorCode::invalid_argument);
  EXPECT_EQ(refused.failure().string("name"), "text");
  EXPECT_EQ(refused.failure().string("result"), "CL_BUILD_PROGRAM_FAILURE");
  const std::string sentence = refused.failure().text();
  EXPECT_NE(sentence.find("missing_name"), std::string::npos) << sentence;
  EXPECT_LT(sentence.size(), 500u);
}

TEST_F(OpenClKernel, ThatIsNotInTheTextIsNotFound) {
  const Result<std::shared_ptr<Kernel>> refused = try_load("subtract");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.failure().code(), ErrorCode::not_found);
  EXPECT_NE(refused.failure().text().find("'subtract'"), std::string::npos);
  const std::string_view names = refused.failure().string("names").value_or("");
  EXPECT_NE(names.find("'add'"), names.npos) << names;
  EXPECT_NE(names.find("'turn'"), names.npos) << names;
  // Where they cannot be listed, it is not found all the same.
  for (int after = 0; after < 2; ++after) {
    fail("clGetProgramInfo", result::out_of_resources, after);
    const Result<std::shared_ptr<Kernel>> silent = try_load("subtract");
    ASSERT_FALSE(silent);
    EXPECT_EQ(silent.failure().code(), ErrorCode::not_found);
    EXPECT_EQ(silent.failure().string("names"), "none could be listed");
  }
}

TEST_F(OpenClKernel, KnowsItsParameters) {
  const KernelInfo add = load("add")->info();
  EXPECT_EQ(add.parameter_count, 3u);
  EXPECT_EQ(add.parameters[0].kind, KernelInfo::Kind::address);
  EXPECT_EQ(add.parameters[0].value_bytes, 8u);
  EXPECT_EQ(add.parameters[2].kind, KernelInfo::Kind::value);
  EXPECT_EQ(add.parameters[2].value_bytes, 4u);
  const KernelInfo hidden = load("add_hidden")->info();
  EXPECT_EQ(hidden.parameter_count, 1u);
  EXPECT_EQ(hidden.parameters[0].value_bytes, 0u) << "a type of the program's own";
  EXPECT_EQ(load("turn")->info().parameter_count, 1u) << "local memory is no argument";
  // What is not told is not known.
  const auto kernel = load("add");
  fail("clGetKernelArgInfo", result::kernel_arg_info_not_available);
  EXPECT_EQ(kernel->info().parameters[2].value_bytes, 0u);
}

TEST_F(OpenClKernel, IsCompiledWithOptions) {
  constexpr const char* scaled =
      "__kernel void f(__global int* p) { p[get_global_id(0)] = FACTOR; }";
  const auto made =
      Kernel::load(context, {.entry = "f", .text = scaled, .options = "-DFACTOR=7"}).value();
  const KernelArgument argument{&out, sizeof out, out, 64, Access::discard};
  ASSERT_TRUE(made->launch(*stream, *memory, {.grid = {count, 1, 1}}, {&argument, 1}));
  EXPECT_EQ(read(out)[3], 7);
  fail("clBuildProgram", result::invalid_build_options);
  const Result<std::shared_ptr<Kernel>> refused =
      Kernel::load(context, {.entry = "f", .text = scaled, .options = "-no-such-option"});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.failure().code(), ErrorCode::invalid_argument);
  EXPECT_EQ(refused.failure().string("name"), "options");
  EXPECT_EQ(refused.failure().string("value"), "-no-such-option");
}

TEST_F(OpenClKernel, IsNotLoadedIfAnyCallIsRefused) {
  for (const char* entry : {"clCreateProgramWithSource", "clBuildProgram", "clCreateKernel",
                            "clGetKernelInfo", "clGetKernelArgInfo"}) {
    fail(entry, result::out_of_host_memory);
    const Result<std::shared_ptr<Kernel>> refused = try_load("add");
    ASSERT_FALSE(refused) << entry;
    EXPECT_EQ(refused.failure().code(), ErrorCode::out_of_memory);
    EXPECT_EQ(refused.failure().string("call"), entry);
    EXPECT_EQ(test::live_handles<cl_program>, 0) << entry;
    EXPECT_EQ(test::live_handles<cl_kernel>, 0) << entry;
  }
  EXPECT_TRUE(try_load("add"));
}

TEST_F(OpenClKernel, KeepsTheArgumentsOfTwoThreadsApart) {
  const auto kernel = load("add");
  std::array<int*, 2> outs = {out, take()};
  std::array<std::unique_ptr<Stream>, 2> streams = {Stream::make(context, false).value(),
                                                    Stream::make(context, false).value()};
  std::vector<test::Thread> threads;
  std::array<std::vector<int>, 2> results;
  for (std::size_t t = 0; t < 2; ++t) {
    threads.emplace_back([&, t] {
      for (int round = 0; round < 50; ++round) {
        const int mine = static_cast<int>(t) * 1000 + round;
        const KernelArgument some[] = {{&in, sizeof in, in, 64, Access::read},
                                       {&outs[t], sizeof outs[t], outs[t], 64, Access::discard},
                                       {&mine, sizeof mine, nullptr, 0, Access::read}};
        ASSERT_TRUE(kernel->launch(*streams[t], *memory, {.grid = {count, 1, 1}}, some));
        int last = 0;
        ASSERT_TRUE(streams[t]->copy(&last, outs[t] + 15, sizeof last));
        ASSERT_TRUE(wait(streams[t]->position()));
        ASSERT_EQ(last, 15 + mine);
      }
    });
  }
  for (test::Thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace tern::opencl
