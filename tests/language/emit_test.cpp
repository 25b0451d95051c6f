// The texts of the three dialects. The CUDA dialect is compiled if NVRTC is there. What kernels
// compute is tested in emit_host_test.cpp, and on devices with the backends.

#include "language/emit.hpp"

#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "backends/cuda/nvrtc.hpp"
#include "language/parser.hpp"

namespace tern::language {
namespace {

Program parse(std::string_view text, std::string_view entry = {}) {
  return try_parse(text, entry).value();
}

/// How often a text has a part.
std::size_t count_of(std::string_view text, std::string_view part) {
  std::size_t count = 0;
  for (std::size_t at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++count;
  return count;
}

constexpr std::string_view block_text = R"(block shift(inout<int> x) {
  shared<int, 64> tile;
  for (auto thread : threads) tile[thread.x] = x[thread.x];
  for (auto thread : threads) {
    if (thread.x > 60) continue;
    x[thread.x] = tile[thread.x + 1];
  }
})";

TEST(Emit, PutsABarrierAfterEachLoopOverThreadsButTheLast) {
  const Program program = parse(block_text);
  EXPECT_EQ(count_of(emit(program, Dialect::opencl), "barrier("), 1u);
  EXPECT_EQ(count_of(emit(program, Dialect::cuda), "__syncthreads()"), 1u);
  EXPECT_EQ(count_of(emit(program, Dialect::cpp), "barrier"), 0u);
}

TEST(Emit, PutsABarrierBetweenAReadOfTheBlockAndTheNextLoop) {
  // After each loop but the last, and before the loops that follow a read.
  const auto barriers = [](std::string_view statements) {
    const std::string text =
        "block read(inout<int> x) { shared<int, 64> tile; for (auto thread : "
        "threads) tile[thread.x] = x[thread.x]; " +
        std::string(statements) + "}";
    return count_of(emit(parse(text), Dialect::cuda), "__syncthreads()");
  };
  const std::string loop = "for (auto thread : threads) tile[thread.x] = 1;";
  EXPECT_EQ(barriers("int n = 4;" + loop), 1u);
  EXPECT_EQ(barriers("int n = tile[3];" + loop), 2u);
  EXPECT_EQ(barriers("int n = 4; n = x[3];" + loop), 2u);
  EXPECT_EQ(barriers("if (tile[0] > 0) { " + loop + "}"), 2u);
  EXPECT_EQ(barriers("int n = 4; if (n > 0) { n = tile[0]; } " + loop), 2u);
  EXPECT_EQ(barriers("int n = tile[0];" + loop + loop), 3u);
  EXPECT_EQ(barriers("int n = 4; if (n > 0) { n = tile[0]; } else { " + loop + " }"), 1u);
  // The condition may come after the loop over threads of the round before.
  EXPECT_EQ(barriers("while (tile[0] > 0) { " + loop + "}"), 3u);
  EXPECT_EQ(barriers("for (int k = 0; k < 4; ++k) { " + loop + "}"), 2u);
  EXPECT_EQ(barriers("int n = 1; do { " + loop + " n = tile[1]; } while (n > 3);"), 3u);
}

TEST(Emit, NamesTheLinesOfTheUser) {
  for (const Dialect dialect : {Dialect::opencl, Dialect::cuda, Dialect::cpp}) {
    const std::string text = emit(parse(block_text), dialect);
    EXPECT_NE(text.find("#line 6 \"kernel shift\"\n"), text.npos) << text;
    const std::size_t at = text.find("#line 6 \"kernel shift\"\n");
    const std::size_t next = text.find('\n', at) + 1;
    EXPECT_NE(text.substr(next, text.find('\n', next) - next).find("tile"), std::string::npos);
  }
}

TEST(Emit, EnablesTheExtensionsThatOpenClNeeds) {
  const auto opencl = [](std::string_view text) { return emit(parse(text), Dialect::opencl); };
  const std::string plain = opencl("element f(inout<float> x) { x *= 2; }");
  EXPECT_TRUE(plain.starts_with("#pragma OPENCL FP_CONTRACT OFF\n"));
  EXPECT_EQ(plain.find("EXTENSION"), plain.npos);
  EXPECT_NE(opencl("element f(inout<double> x) { x *= 2; }").find("cl_khr_fp64"), plain.npos);
  EXPECT_NE(opencl("kernel f(inout<int64_t> x) { atomic_max(x, 0, 2); }")
                .find("cl_khr_int64_extended_atomics"),
            plain.npos);
  EXPECT_EQ(opencl("kernel f(inout<int> x) { atomic_max(x, 0, 2); }").find("int64_"), plain.npos);
}

TEST(Emit, GivesArgumentsTheTypesThatOpenClImplementationsReport) {
  const std::string text = emit(
      parse("kernel f(in<uint8_t> x, out<int64_t> y, bool a, size_t b) { y[0] = x[0] + a + b; }"),
      Dialect::opencl);
  EXPECT_NE(text.find("f_kernel(__global const uchar* x_0, ulong x_0_size, __global long* y_1, "
                      "ulong y_1_size, uchar a_2, ulong b_3)"),
            text.npos)
      << text;
}

TEST(Emit, UsesTheAmountOfAShiftThatEveryDeviceUses) {
  const auto has = [](std::string_view statement, std::string_view part) {
    const std::string text =
        "element f(inout<int> x, inout<int64_t> y, int n) { " + std::string(statement) + " }";
    const std::string made = emit(parse(text), Dialect::cuda);
    return made.find(part) != made.npos;
  };
  EXPECT_TRUE(has("x = x << n;", " << (n_2 & 31);"));
  EXPECT_TRUE(has("y = y >> (n + 1);", " >> (n_2 + 1 & 63);"));
  EXPECT_TRUE(has("y >>= n;", " >>= ((tern_i64)n_2 & 63);"));
  EXPECT_TRUE(has("x = x << 31;", " << 31;"));
}

TEST(Emit, NestsNoParenthesesForALongSum) {
  std::string text = "element f(inout<int> x) { x = 0";
  for (int i = 0; i < 400; ++i) text += " + x";
  const std::string made = emit(parse(text + "; }"), Dialect::opencl);
  EXPECT_EQ(made.find("(("), made.npos);
}

TEST(Emit, WritesCudaThatNvrtcCompiles) {
  const cuda::Nvrtc& nvrtc = cuda::nvrtc();
  if (!nvrtc.is_present()) GTEST_SKIP() << nvrtc.absence;
  constexpr std::string_view texts[] = {
      block_text,
      "element expf(in<float> x, inout<double> y, bool b) { y += b ? exp(x) : rsqrt(x); y++; }",
      "reduction<float> dot(in<float> x, in<bool> y) { identity = 0; map = y ? x : 0; combine = "
      "max(a, b) + abs(a); }",
      "kernel atoms(inout<int64_t> x, inout<float> y, inout<uint32_t> z, int n) { atomic_add(x, 0, "
      "n); atomic_min(x, 0, n); atomic_exchange(x, 0, n); atomic_compare_exchange(x, 0, n, 2); "
      "atomic_add(y, 0, 1); atomic_max(z, 0, 3); z[1] <<= n; x[2] = -9223372036854775807 - 1; }",
  };
  for (const std::string_view text : texts) {
    const Program program = parse(text);
    const std::string entry = entry_name(program), cuda_text = emit(program, Dialect::cuda);
    const Result<std::string> ptx =
        cuda::try_compile(nvrtc, {.entry = entry, .text = cuda_text, .options = "--fmad=false"},
                          {.device = "cuda:0", .compute_major = 8, .compute_minor = 0});
    ASSERT_TRUE(ptx) << ptx.failure().text() << "\n" << cuda_text;
    EXPECT_NE(ptx->find(entry), ptx->npos);
  }
}

}  // namespace
}  // namespace tern::language
