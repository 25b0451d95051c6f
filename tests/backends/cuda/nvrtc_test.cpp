// The official header first: it has the types that ours are compared with.
#if __has_include(<nvrtc.h>)
#include <nvrtc.h>
#define TERN_HAS_NVRTC_HEADER 1
#endif

#include <gtest/gtest.h>

#include <string>
#include <type_traits>

#include "backends/cuda/nvrtc.hpp"
#include "support/cuda_bench.hpp"
#include "support/fake_nvrtc.hpp"

namespace tern::cuda {
namespace {

using test::FakeNvrtc;

class NvrtcTest : public testing::Test {
 protected:
  void SetUp() override { FakeNvrtc::state() = {}; }
  void TearDown() override { EXPECT_EQ(FakeNvrtc::state().live, 0); }

  [[nodiscard]] static Result<std::string> compile(std::uint32_t major = 9,
                                                   std::uint32_t minor = 0) {
    return try_compile(load_nvrtc(test::fake_nvrtc()),
                       {.entry = "k", .text = "text", .options = " -a\t-b "},
                       {"cuda:0", major, minor});
  }
};

TEST_F(NvrtcTest, GivesThePtxAndPassesOptionsOn) {
  const Result<std::string> made = compile();
  ASSERT_EQ(why(made), "");
  EXPECT_EQ(*made, "ptx");
  EXPECT_EQ(FakeNvrtc::state().text, "text");
  EXPECT_EQ(FakeNvrtc::state().options,
            (std::vector<std::string>{"--gpu-architecture=compute_90", "-a", "-b"}));
}

TEST_F(NvrtcTest, CompilesForTheNewestArchitectureThatBothKnow) {
  const auto architecture = [](std::uint32_t major, std::uint32_t minor) {
    EXPECT_EQ(why(compile(major, minor)), "");
    return FakeNvrtc::state().options.at(0);
  };
  EXPECT_EQ(architecture(8, 9), "--gpu-architecture=compute_80");
  EXPECT_EQ(architecture(12, 0), "--gpu-architecture=compute_90") << "newer than the compiler";
  EXPECT_EQ(architecture(5, 2), "--gpu-architecture=compute_52") << "which it will refuse itself";
  for (const char* entry : {"nvrtcGetNumSupportedArchs", "nvrtcGetSupportedArchs"}) {
    FakeNvrtc::state().failing = entry;
    FakeNvrtc::state().result = nvrtcResult(11);
    EXPECT_EQ(architecture(8, 9), "--gpu-architecture=compute_89") << entry;
  }
}

TEST_F(NvrtcTest, ShowsTheFirstErrorOfALongLog) {
  FakeNvrtc::state().failing = "nvrtcCompileProgram";
  FakeNvrtc::state().result = NVRTC_ERROR_COMPILATION;
  FakeNvrtc::state().log =
      "kernel.cu(1): warning: never mind\nkernel.cu(2): error: identifier \"x\" is undefined\n" +
      std::string(5000, 'y');
  const Result<std::string> refused = compile();
  ASSERT_EQ(code(refused), "invalid_argument");
  EXPECT_EQ(refused.failure().string("name"), "text");
  EXPECT_EQ(refused.failure().string("kernel"), "k");
  EXPECT_EQ(refused.failure().string("device"), "cuda:0");
  const std::string_view shown = refused.failure().string("value").value_or("");
  EXPECT_TRUE(shown.starts_with("kernel.cu(2): error: identifier")) << shown;
  EXPECT_LE(refused.failure().text().size(), Error::max_text_bytes);
  FakeNvrtc::state().result = NVRTC_ERROR_INVALID_OPTION;
  FakeNvrtc::state().log = "";
  const Result<std::string> options = compile();
  ASSERT_EQ(code(options), "invalid_argument");
  EXPECT_EQ(options.failure().string("name"), "options");
  EXPECT_EQ(options.failure().string("value"), "the compiler gave no reason");
}

TEST_F(NvrtcTest, NamesTheCallThatFailed) {
  for (const char* entry : {"nvrtcCreateProgram", "nvrtcCompileProgram", "nvrtcGetPTX"}) {
    FakeNvrtc::state() = {};
    FakeNvrtc::state().failing = entry;
    FakeNvrtc::state().result = nvrtcResult(11);
    const Result<std::string> refused = compile();
    ASSERT_EQ(code(refused), "driver") << entry;
    EXPECT_EQ(refused.failure().string("call"), entry);
  }
  FakeNvrtc::state() = {};
  FakeNvrtc::state().failing = "nvrtcCreateProgram";
  FakeNvrtc::state().result = NVRTC_ERROR_OUT_OF_MEMORY;
  EXPECT_EQ(code(compile()), "out_of_memory");
}

TEST_F(NvrtcTest, SaysWhatIsMissingAndWhatToInstall) {
  constexpr const char* nowhere[] = {"libtern_no_such_compiler.so", nullptr};
  const Nvrtc none = find_nvrtc(nowhere);
  EXPECT_FALSE(none.is_present());
  const Result<std::string> refused =
      try_compile(none, {.entry = "k", .text = "text"}, {"cuda:0", 9, 0});
  ASSERT_EQ(code(refused), "unsupported");
  EXPECT_NE(refused.failure().text().find("libnvrtc.so"), std::string::npos);
  EXPECT_NE(refused.failure().text().find("Install libnvrtc.so"), std::string::npos)
      << refused.failure().text();
  FakeNvrtc::state().missing = "nvrtcGetPTX";
  EXPECT_NE(load_nvrtc(test::fake_nvrtc()).absence.find("nvrtcGetPTX"), std::string::npos);
  FakeNvrtc::state() = {};
  FakeNvrtc::state().failing = "nvrtcVersion";
  FakeNvrtc::state().result = nvrtcResult(11);
  EXPECT_FALSE(load_nvrtc(test::fake_nvrtc()).is_present());
}

TEST_F(NvrtcTest, InstalledOnesTakeThePlaceOfTheMachines) {
  const Nvrtc* const machines = &nvrtc();
  {
    const InstalledNvrtc other(load_nvrtc(test::fake_nvrtc()));
    EXPECT_NE(&nvrtc(), machines);
    EXPECT_EQ(nvrtc().major, 13);
  }
  EXPECT_EQ(&nvrtc(), machines);
}

TEST(MachinesNvrtc, CompilesWhereItIsInstalled) {
  const Nvrtc& machines = nvrtc();
  if (!machines.is_present()) GTEST_SKIP() << machines.absence;
  const CompileTarget target{"cuda:0", 9, 0};
  const Result<std::string> made =
      try_compile(machines,
                  {.entry = "f",
                   .text = "extern \"C\" __global__ void f(float* p) { p[threadIdx.x] *= FACTOR; }",
                   .options = "-DFACTOR=2 --fmad=false"},
                  target);
  ASSERT_EQ(why(made), "");
  EXPECT_NE(made->find(".entry f("), std::string::npos) << *made;
  const Result<std::string> refused = try_compile(
      machines, {.entry = "f", .text = "extern \"C\" __global__ void f() { missing = 1; }"},
      target);
  ASSERT_EQ(code(refused), "invalid_argument");
  EXPECT_NE(refused.failure().text().find("missing"), std::string::npos);
  EXPECT_EQ(code(try_compile(machines, {.entry = "f", .text = "", .options = "--no-such-option"},
                             target)),
            "invalid_argument");
}

#ifdef TERN_HAS_NVRTC_HEADER
// Passed alike: the same shape, with handles and results of the same size.
template <class Ours, class Theirs>
constexpr bool is_alike = false;
template <class... A, class... B>
constexpr bool is_alike<nvrtcResult (*)(A...), ::nvrtcResult (*)(B...)> =
    sizeof...(A) == sizeof...(B) && ((sizeof(A) == sizeof(B)) && ...);
#define TERN_NVRTC_ENTRY(entry, parameters) \
  static_assert(is_alike<decltype(Nvrtc::entry), decltype(&::entry)>, #entry);
TERN_FOR_EACH_NVRTC_ENTRY(TERN_NVRTC_ENTRY)
#undef TERN_NVRTC_ENTRY
static_assert(int(NVRTC_ERROR_OUT_OF_MEMORY) == int(::NVRTC_ERROR_OUT_OF_MEMORY));
static_assert(int(NVRTC_ERROR_INVALID_OPTION) == int(::NVRTC_ERROR_INVALID_OPTION));
static_assert(int(NVRTC_ERROR_COMPILATION) == int(::NVRTC_ERROR_COMPILATION));
#endif

}  // namespace
}  // namespace tern::cuda
