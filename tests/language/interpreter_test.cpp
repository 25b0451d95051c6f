#include "language/interpreter.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "language/parser.hpp"

namespace tern::language {
namespace {

using Kind = Mistake::Kind;
using Mistakes = std::vector<Mistake>;

template <class T>
Argument array(std::vector<T>& elements) {
  return {.value = nullptr, .address = elements.data(), .elements = elements.size()};
}
template <class T>
Argument value(const T& of) {
  return {.value = &of, .address = nullptr, .elements = 0};
}

Interpreter interpreter(std::string_view text) { return Interpreter(try_parse(text).value()); }

/// Runs the kernel, and fails the test if the run does not begin.
Mistakes run(std::string_view text, const LaunchShape& shape,
             const std::vector<Argument>& arguments, const RunOptions& options = {}) {
  Result<Mistakes> mistakes = interpreter(text).try_run(shape, arguments, options);
  return std::move(mistakes).value();
}

/// Declares the first parameter differently than its text. The parser refuses most mistakes with
/// intents, so a text cannot have them.
Mistakes run_with_intent(Intent intent, std::string_view text, const LaunchShape& shape,
                         const std::vector<Argument>& arguments) {
  Program program = try_parse(text).value();
  program.parameters[0].intent = intent;
  return Interpreter(std::move(program)).try_run(shape, arguments).value();
}

/// "thread_race line 4 count 2; ...", so that a test compares all mistakes at once.
std::string shown(const Mistakes& mistakes) {
  std::string text;
  for (const Mistake& mistake : mistakes) {
    text += std::string(text.empty() ? "" : "; ") + std::string(name(mistake.kind)) + " line " +
            std::to_string(mistake.at.line) + " count " + std::to_string(mistake.count);
  }
  return text;
}

LaunchShape shape(std::uint64_t blocks, std::uint64_t threads) {
  return {.grid = {blocks, 1, 1}, .block = {threads, 1, 1}};
}

std::vector<float> ramp(std::size_t count) {
  std::vector<float> made(count);
  std::iota(made.begin(), made.end(), 1.0f);
  return made;
}

// --- Results of correct kernels

TEST(Interpreter, RunsAnElementKernelForEachElement) {
  std::vector<float> x = ramp(1000), y(1000, 0.25f), expected = y;
  const float a = 1.1f;
  for (std::size_t i = 0; i < 1000; ++i) expected[i] += a * x[i];
  // The last block has more threads than there are elements left.
  EXPECT_EQ(shown(run("element saxpy(in<float> x, inout<float> y, float a) { y += a * x; }",
                      shape(4, 256), {array(x), array(y), value(a)})),
            "");
  EXPECT_EQ(y, expected);
}

TEST(Interpreter, RunsAHistogramOfAtomicUpdates) {
  std::vector<std::uint32_t> keys(1000), counts(7, 1), expected(7, 1);
  for (std::uint32_t i = 0; i < keys.size(); ++i) keys[i] = i * i % 7;
  for (const std::uint32_t key : keys) ++expected[key];
  EXPECT_EQ(shown(run(R"(kernel histogram(in<uint32_t> keys, inout<uint32_t> counts) {
                           const size_t i = index.x;
                           if (i < size(keys)) atomic_add(counts, keys[i], 1);
                         })",
                      shape(8, 128), {array(keys), array(counts)})),
            "");
  EXPECT_EQ(counts, expected);
}

constexpr std::string_view stencil = R"(block stencil(in<float> x, out<float> y) {
  shared<float, 34> tile;
  for (auto thread : threads) {
    const size_t i = block.x * block_size.x + thread.x;
    tile[thread.x + 1] = i < size(x) ? x[i] : 0;
    if (thread.x == 0) tile[0] = i > 0 && i <= size(x) ? x[i - 1] : 0;
    if (thread.x == 31) tile[33] = i + 1 < size(x) ? x[i + 1] : 0;
  }
  for (auto thread : threads) {
    const size_t i = block.x * block_size.x + thread.x;
    if (i < size(y)) y[i] = 0.5f * (tile[thread.x] + tile[thread.x + 2]);
  }
})";

TEST(Interpreter, RunsAStencilInSharedMemory) {
  std::vector<float> x = ramp(100), y(100), expected(100);
  for (std::size_t i = 0; i < 100; ++i) {
    expected[i] = 0.5f * ((i > 0 ? x[i - 1] : 0) + (i < 99 ? x[i + 1] : 0));
  }
  for (const std::uint64_t seed : {0u, 1u, 2u, 3u}) {
    EXPECT_EQ(shown(run(stencil, shape(4, 32), {array(x), array(y)}, {.order_seed = seed})), "");
    EXPECT_EQ(y, expected);
  }
}

TEST(Interpreter, RunsAReductionOfSeveralBlocksInTheOrderOfAllDevices) {
  std::vector<float> x = ramp(10'000), results(3), total(1);
  for (float& one : x) one = std::sin(one);
  const Interpreter sum = interpreter(
      "reduction<float> sum(in<float> x, float scale) { identity = 0; map = x * scale; combine = "
      "a + b; }");
  const float scale = 0.3f;
  const std::vector<Argument> arguments{array(x), value(scale), array(results)};
  EXPECT_EQ(shown(sum.try_run(shape(3, 1), arguments).value()), "");
  EXPECT_EQ(shown(sum.try_combine(1, array(results), array(total)).value()), "");

  const auto reduced = [](const std::vector<float>& of, std::size_t block) {
    std::vector<float> lanes(256, 0);
    for (std::size_t i = block * 4096; i < std::min<std::size_t>(of.size(), (block + 1) * 4096);
         ++i) {
      lanes[i % 256] += of[i];
    }
    for (std::size_t half = 128; half > 0; half /= 2) {
      for (std::size_t lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
    }
    return lanes[0];
  };
  std::vector<float> scaled(x.size()), expected;
  std::transform(x.begin(), x.end(), scaled.begin(), [&](float one) { return one * scale; });
  for (std::size_t block = 0; block < 3; ++block) expected.push_back(reduced(scaled, block));
  EXPECT_EQ(results, expected);
  EXPECT_EQ(total[0], reduced(expected, 0));
}

TEST(Interpreter, RunsAReductionInABlockOfThreads) {
  std::vector<double> x(512, 0.1), sums(2);
  EXPECT_EQ(shown(run(R"(block sum(in<double> x, out<double> sums) {
                           shared<double, 256> lanes;
                           for (auto thread : threads) {
                             lanes[thread.x] = x[block.x * block_size.x + thread.x];
                           }
                           for (unsigned near = 128; near > 0; near /= 2) {
                             for (auto thread : threads) {
                               if (thread.x >= near) continue;
                               lanes[thread.x] += lanes[thread.x + near];
                             }
                           }
                           for (auto thread : threads) {
                             if (thread.x != 0) continue;
                             sums[block.x] = lanes[0];
                           }
                         })",
                      shape(2, 256), {array(x), array(sums)})),
            "");
  double pairwise = 0.1;
  for (int i = 0; i < 8; ++i) pairwise += pairwise;
  EXPECT_EQ(sums, (std::vector<double>{pairwise, pairwise}));
}

TEST(Interpreter, KnowsAllCoordinatesOfAThread) {
  constexpr std::string_view text = R"(kernel where(out<size_t> y) {
    const size_t t = thread.x + block_size.x * (thread.y + block_size.y * thread.z);
    const size_t b = block.x + grid_size.x * (block.y + grid_size.y * block.z);
    const size_t i = b * block_size.x * block_size.y * block_size.z + t;
    y[i] = index.x + 100 * index.y + 10000 * index.z;
  })";
  const LaunchShape launch{.grid = {2, 3, 2}, .block = {3, 2, 2}};
  std::vector<std::uint64_t> y(2 * 3 * 2 * 3 * 2 * 2), expected;
  for (std::uint64_t b = 0; b < 12; ++b) {
    for (std::uint64_t t = 0; t < 12; ++t) {
      expected.push_back((b % 2 * 3 + t % 3) + 100 * (b / 2 % 3 * 2 + t / 3 % 2) +
                         10000 * (b / 6 * 2 + t / 6));
    }
  }
  for (const std::uint64_t seed : {0u, 7u}) {
    std::fill(y.begin(), y.end(), 0);
    EXPECT_EQ(shown(run(text, launch, {array(y)}, {.order_seed = seed})), "");
    EXPECT_EQ(y, expected);
  }
}

TEST(Interpreter, RunsEveryStatementAsCppDoes) {
  std::vector<std::int32_t> y(8);
  EXPECT_EQ(shown(run(R"(kernel statements(out<int> y) {
                           int sum = 0;
                           for (int i = 0, n = 10; i < n; ++i) {
                             if (i == 3) continue;
                             if (i == 7) break;
                             sum += i;
                           }
                           y[0] = sum;
                           int k = 5;
                           while (k > 2) k--;
                           y[1] = k;
                           do { k *= 3; } while (k < 50);
                           y[2] = k;
                           int i = 4;
                           y[3] = i++ * 10;
                           y[4] = ++i;
                           size_t at = 5;
                           y[at++] = at == 5 && (k = 9) == 9 || (k = 11) > 0 ? 1 : 2;
                           y[6] = k;
                           y[7] = 1;
                           y[7] <<= 3;
                           y[7]++;
                           if (k > 0) return;
                           y[7] = 0;
                         })",
                      shape(1, 1), {array(y)})),
            "");
  EXPECT_EQ(y, (std::vector<std::int32_t>{0 + 1 + 2 + 4 + 5 + 6, 2, 54, 40, 6, 1, 9, 9}));
}

TEST(Interpreter, ReadsOperandsBeforeItWritesTheTarget) {
  std::vector<std::int64_t> x{4}, y(6);
  std::vector<std::uint8_t> flags{2};
  EXPECT_EQ(shown(run(R"(kernel order(inout<int64_t> x, in<bool> flags, out<int64_t> y) {
                           size_t at = 0;
                           y[at++] = at;
                           y[at] = x[0]++;
                           int64_t w = 1;
                           w <<= 40;
                           y[2] = w;
                           bool p = false;
                           const bool q = index.x == 0;
                           p = q && p;
                           y[3] = p;
                           p = !q || p;
                           y[4] = p;
                           y[5] = flags[0];
                         })",
                      shape(1, 1), {array(x), array(flags), array(y)})),
            "");
  // Every byte that is not 0 is true.
  EXPECT_EQ(y, (std::vector<std::int64_t>{0, 4, std::int64_t{1} << 40, 0, 0, 1}));
  EXPECT_EQ(x[0], 5);
}

TEST(Interpreter, ComputesIntegersWithTheConversionsOfC) {
  const std::int32_t a = -7;
  const std::uint32_t b = 3;
  const std::int8_t c = -100;
  const std::uint64_t d = 0x123456789abcdef0u;
  std::vector<std::int64_t> y(17);
  EXPECT_EQ(shown(run(R"(kernel integers(out<int64_t> y, int a, unsigned b, int8_t c, uint64_t d) {
                           y[0] = a / 2; y[1] = a % 2; y[2] = a + b; y[3] = a < b;
                           y[4] = c - 100; y[5] = int8_t(c - 100); y[6] = c * c;
                           y[7] = d >> 60; y[8] = a >> 1; y[9] = uint32_t(d); y[10] = int(d);
                           y[11] = ~b; y[12] = -b; y[13] = a ^ 5; y[14] = abs(a);
                           int8_t e = c; e += 200; y[15] = e; uint16_t f = 65535; ++f; y[16] = f;
                         })",
                      shape(1, 1), {array(y), value(a), value(b), value(c), value(d)})),
            "");
  auto e = static_cast<std::int8_t>(c + 200);
  EXPECT_EQ(y, (std::vector<std::int64_t>{-3, -1, 4294967292, 0, -200, 56, 10000, 1, -4, 0x9abcdef0,
                                          static_cast<std::int32_t>(0x9abcdef0u), 4294967292,
                                          4294967293, -7 ^ 5, 7, e, 0}));
}

TEST(Interpreter, WrapsIntegersThatOverflow) {
  const std::int32_t least = std::numeric_limits<std::int32_t>::min();
  std::vector<std::int32_t> y(6);
  EXPECT_EQ(shown(run(R"(kernel wrap(out<int> y, int a) {
                           const int b = a + 1;
                           y[0] = a - 1; y[1] = -a; y[2] = a / (b - a - 2); y[3] = a % (b - a - 2);
                           y[4] = b * b; y[5] = abs(a);
                         })",
                      shape(1, 1), {array(y), value(least)})),
            "");
  EXPECT_EQ(y, (std::vector<std::int32_t>{2147483647, least, least, 0, 1, least}));
}

TEST(Interpreter, RoundsEachFloatOperation) {
  // Fused or in double, a * a - b has other bits.
  const float a = 1.0000001f, b = 1.0000002f;
  const double d = 1.0000001;
  std::vector<float> y(8);
  EXPECT_EQ(shown(run(R"(kernel floats(out<float> y, float a, float b, double d) {
                           y[0] = a * a - b; y[1] = a / 3; y[2] = a + d; y[3] = rsqrt(b);
                           y[4] = pow(a, 2.5f); y[5] = fma(a, a, -b); y[6] = min(a, b) + max(a, b);
                           y[7] = fmod(-5.5f, 2.0f) + round(2.5f) + floor(-0.5f) + fabs(-1.0f);
                         })",
                      shape(1, 1), {array(y), value(a), value(b), value(d)})),
            "");
  volatile float product = a * a;
  EXPECT_EQ(y,
            (std::vector<float>{product - b, a / 3, static_cast<float>(static_cast<double>(a) + d),
                                1.0f / std::sqrt(b), std::pow(a, 2.5f), std::fma(a, a, -b), a + b,
                                -1.5f + 3.0f - 1.0f + 1.0f}));
}

TEST(Interpreter, ReadsAndWritesElementsOfEveryType) {
  std::vector<std::uint8_t> flags{0, 1, 1};  // std::vector<bool> has no bytes
  std::vector<std::int8_t> a{-1, 2, 3};
  std::vector<std::uint16_t> b{65535, 1, 2};
  std::vector<std::int64_t> c{-5000000000, 1, 2};
  std::vector<double> y(3);
  EXPECT_EQ(shown(run(R"(element all(inout<bool> flags, inout<int8_t> a, inout<uint16_t> b,
                                     inout<int64_t> c, out<double> y) {
                           y = flags ? double(a) + b + c : 0.5;
                           flags = !flags; a -= 127; b++; c *= 2;
                         })",
                      shape(1, 4), {array(flags), array(a), array(b), array(c), array(y)})),
            "");
  EXPECT_EQ(flags, (std::vector<std::uint8_t>{1, 0, 0}));
  EXPECT_EQ(a, (std::vector<std::int8_t>{-128, -125, -124}));
  EXPECT_EQ(b, (std::vector<std::uint16_t>{0, 2, 3}));
  EXPECT_EQ(c, (std::vector<std::int64_t>{-10000000000, 2, 4}));
  EXPECT_EQ(y, (std::vector<double>{0.5, 4, 7}));
}

TEST(Interpreter, AtomicFunctionsReturnTheOldValue) {
  std::vector<std::int32_t> x{5, 5, 5, 5, 5, 5};
  std::vector<std::int32_t> old(6);
  EXPECT_EQ(shown(run(R"(kernel atomics(inout<int> x, out<int> old) {
                           old[0] = atomic_add(x, 0, -7);
                           old[1] = atomic_min(x, 1, 3);
                           old[2] = atomic_max(x, 2, 3);
                           old[3] = atomic_exchange(x, 3, 9);
                           old[4] = atomic_compare_exchange(x, 4, 5, 8);
                           old[5] = atomic_compare_exchange(x, 5, 4, 8);
                         })",
                      shape(1, 1), {array(x), array(old)})),
            "");
  EXPECT_EQ(x, (std::vector<std::int32_t>{-2, 3, 5, 9, 8, 5}));
  EXPECT_EQ(old, (std::vector<std::int32_t>{5, 5, 5, 5, 5, 5}));
}

TEST(Interpreter, GivesEachThreadItsOwnCopyOfAValue) {
  const std::int32_t n = 10;
  std::vector<std::int32_t> y(4);
  EXPECT_EQ(shown(run("kernel own(out<int> y, int n) { n += int(index.x); y[index.x] = n; }",
                      shape(2, 2), {array(y), value(n)})),
            "");
  EXPECT_EQ(y, (std::vector<std::int32_t>{10, 11, 12, 13}));
}

TEST(Interpreter, GivesEachBlockItsOwnCopyOfAValue) {
  const std::int32_t n = 10;
  std::vector<std::int32_t> y(4);
  EXPECT_EQ(shown(run(R"(block own(out<int> y, int n) {
                           ++n;
                           for (auto thread : threads) y[2 * block.x + thread.x] = n;
                         })",
                      shape(2, 2), {array(y), value(n)})),
            "");
  EXPECT_EQ(y, (std::vector<std::int32_t>{11, 11, 11, 11}));
}

// --- Indexes

TEST(Interpreter, FindsAnIndexPastTheEnd) {
  std::vector<float> x = ramp(1000), y(1024, -1.0f);
  const Mistakes mistakes = run(R"(kernel blur(in<float> x, out<float> y) {
  const size_t i = index.x;
  y[i] = x[i];
})",
                                shape(4, 256), {array(x), array(y)});
  ASSERT_EQ(shown(mistakes), "out_of_range line 3 count 24");
  EXPECT_EQ(
      mistakes[0].what(),
      "kernel 'blur', line 3, column 10: thread (232,0,0) of block (3,0,0) reads x[1000], but "
      "x has 1000 elements");
  EXPECT_EQ(mistakes[0].fix(), "Compare the index with size(x) before the access.");
  EXPECT_EQ(y[999], 1000.0f);
  EXPECT_EQ(y[1000], 0.0f);  // what a read outside returns
}

TEST(Interpreter, DoesNotWriteOutsideOfAnArray) {
  std::vector<std::int32_t> memory{1, 2, 3, 4};
  const Argument middle{.value = nullptr, .address = &memory[1], .elements = 2};
  const Mistakes mistakes = run(R"(kernel f(inout<int> y) {
  int i = -1;
  y[i] = 7;
  y[2] += 7;
  atomic_add(y, 2, 7);
})",
                                shape(1, 1), {middle});
  EXPECT_EQ(
      shown(mistakes),
      "out_of_range line 3 count 1; out_of_range line 4 count 1; out_of_range line 5 count 1");
  EXPECT_NE(mistakes[0].what().find("writes y[-1], but y has 2 elements"), std::string::npos);
  EXPECT_NE(mistakes[1].what().find("updates y[2]"), std::string::npos);
  EXPECT_EQ(memory, (std::vector<std::int32_t>{1, 2, 3, 4}));
}

TEST(Interpreter, ShowsIndexesWithAndWithoutSigns) {
  std::vector<std::int32_t> y(1);
  const Mistakes mistakes =
      run("kernel f(inout<int> y) { y[index.x - 1] = 0; y[int(index.x) - 1] = 0; }", shape(1, 1),
          {array(y)});
  ASSERT_EQ(mistakes.size(), 2u);
  EXPECT_NE(mistakes[0].what().find("y[18446744073709551615]"), std::string::npos);
  EXPECT_NE(mistakes[1].what().find("y[-1]"), std::string::npos);
}

TEST(Interpreter, ReturnsZeroFromAnAtomicUpdateOutsideOfAnArray) {
  std::vector<std::int32_t> x{7}, y(2, -1);
  EXPECT_EQ(shown(run("kernel f(inout<int> x, out<int> y) { for (size_t i = 0; i < 2; ++i) y[i] = "
                      "atomic_add(x, i, 1); }",
                      shape(1, 1), {array(x), array(y)})),
            "out_of_range line 1 count 1");
  EXPECT_EQ(y, (std::vector<std::int32_t>{7, 0}));
}

TEST(Interpreter, FindsAnIndexOutsideOfASharedArray) {
  std::vector<float> y(8);
  const Mistakes mistakes = run(R"(block f(out<float> y) {
  shared<float, 8> tile;
  for (auto thread : threads) {
    tile[thread.x + 1] = 1;
    y[thread.x] = 2;
  }
})",
                                shape(1, 8), {array(y)});
  ASSERT_EQ(shown(mistakes), "out_of_range line 4 count 1");
  EXPECT_NE(mistakes[0].what().find("writes tile[8], but tile has 8 elements"), std::string::npos);
  EXPECT_TRUE(mistakes[0].is_shared);
}

TEST(Interpreter, FindsAShorterArrayOfAnElementKernel) {
  std::vector<float> x = ramp(10), y(8);
  const Mistakes mistakes =
      run("element f(in<float> x, out<float> y) { y = x; }", shape(1, 16), {array(x), array(y)});
  EXPECT_EQ(shown(mistakes), "out_of_range line 1 count 2");
  EXPECT_EQ(mistakes[0].fix(), "Pass an array for y that is as long as the first one.");
}

// --- Elements without a value

TEST(Interpreter, FindsReadsOfOutputThatNobodyWrote) {
  std::vector<float> y(8);
  constexpr std::string_view text = R"(block f(out<float> y) {
  for (auto thread : threads) if (thread.x % 2 == 0) y[thread.x] = 1;
  for (auto thread : threads) {
    const float old = y[thread.x];
    y[thread.x] = old + 1;
  }
})";
  const Mistakes mistakes = run(text, shape(1, 8), {array(y)});
  ASSERT_EQ(shown(mistakes), "read_of_output line 4 count 4");
  EXPECT_NE(mistakes[0].what().find("thread (1,0,0) of block (0,0,0) reads y[1], which the launch "
                                    "has not written"),
            std::string::npos);
}

TEST(Interpreter, FindsAtomicUpdatesOfOutputThatNobodyWrote) {
  std::vector<std::int32_t> y(1);
  EXPECT_EQ(shown(run_with_intent(Intent::part, "kernel f(inout<int> y) { atomic_add(y, 0, 1); }",
                                  shape(2, 4), {array(y)})),
            "read_of_output line 1 count 1");
}

TEST(Interpreter, DoesNotWriteToInput) {
  std::vector<std::int32_t> x{1, 2};
  const Mistakes mistakes = run_with_intent(
      Intent::in, "kernel f(inout<int> x) { x[0] = 5; x[1] += 5; atomic_add(x, 0, 5); }",
      shape(1, 1), {array(x)});
  EXPECT_EQ(shown(mistakes),
            "write_to_input line 1 count 1; write_to_input line 1 count 1; write_to_input line 1 "
            "count 1");
  EXPECT_EQ(x, (std::vector<std::int32_t>{1, 2}));
}

TEST(Interpreter, FindsReadsOfSharedElementsThatTheBlockDidNotWrite) {
  std::vector<float> y(8);
  const Mistakes mistakes = run(R"(block f(out<float> y) {
  shared<float, 4> tile;
  for (auto thread : threads) if (block.x == 0 || thread.x < 3) tile[thread.x] = 1;
  for (auto thread : threads) y[4 * block.x + thread.x] = tile[thread.x];
})",
                                shape(2, 4), {array(y)});
  // The value of block 0 is in the same memory, but a block does not see it.
  ASSERT_EQ(shown(mistakes), "uninitialised_read line 4 count 1");
  EXPECT_EQ(mistakes[0].index, 3u);
  EXPECT_EQ(mistakes[0].who.block[0], 1u);
}

TEST(Interpreter, FindsAVariableWithoutAValue) {
  std::vector<float> y(4);
  const Mistakes mistakes = run(R"(kernel f(out<float> y) {
  float s;
  if (index.x > 0) s = 1;
  y[index.x] = s;
})",
                                shape(2, 2), {array(y)});
  ASSERT_EQ(shown(mistakes), "uninitialised_read line 4 count 1");
  EXPECT_NE(mistakes[0].what().find("reads s, which has no value"), std::string::npos);
}

TEST(Interpreter, FindsOutputThatTheLaunchDidNotWrite) {
  std::vector<float> y(10), z(10);
  const Mistakes mistakes = run(R"(kernel f(out<float> y, part<float> z) {
  if (index.x != 3) y[index.x] = 1;
  z[index.x] = 1;
})",
                                shape(2, 4), {array(y), array(z)});
  ASSERT_EQ(shown(mistakes), "unwritten_output line 1 count 1");
  EXPECT_EQ(mistakes[0].what(),
            "kernel 'f', line 1, column 10: the launch did not write 3 of 10 elements of the 'out' "
            "array y, "
            "the first one y[3]");
}

TEST(Interpreter, FindsOutputThatTheTextNeverWrites) {
  std::vector<float> y(2);
  EXPECT_EQ(
      shown(run_with_intent(Intent::out, "kernel f(inout<float> y) { float s = 1; s += y[0]; }",
                            shape(1, 1), {array(y)})),
      "read_of_output line 1 count 1; unwritten_output line 1 count 1");
}

// --- Races

TEST(Interpreter, FindsAMissingEndOfALoopOverThreads) {
  std::vector<float> x = ramp(8), y(8);
  const Mistakes mistakes = run(R"(block f(in<float> x, out<float> y) {
  shared<float, 8> tile;
  for (auto thread : threads) {
    tile[thread.x] = x[thread.x];
    y[thread.x] = tile[7 - thread.x];
  }
})",
                                shape(1, 8), {array(x), array(y)});
  ASSERT_EQ(
      shown(mistakes),
      "uninitialised_read line 5 count 4; thread_race line 4 count 4; thread_race line 5 count 4");
  EXPECT_EQ(mistakes[1].what(),
            "kernel 'f', line 4, column 5: thread (4,0,0) of block (0,0,0) writes tile[4], which "
            "thread (3,0,0) of the same block reads in line 5, column 19");
  EXPECT_EQ(
      mistakes[1].fix(),
      "End the loop over threads between the two accesses, or use atomic functions for both.");
}

TEST(Interpreter, FindsRacesBetweenBlocks) {
  std::vector<std::int32_t> x(2, 0);
  const Mistakes mistakes = run(R"(kernel f(inout<int> x) {
  if (block.x == 0) x[1] = 4;
  if (block.x == 2) x[0] = x[1];
})",
                                shape(3, 1), {array(x)});
  ASSERT_EQ(shown(mistakes), "block_race line 3 count 1");
  EXPECT_EQ(
      mistakes[0].what(),
      "kernel 'f', line 3, column 28: thread (0,0,0) of block (2,0,0) reads x[1], which thread "
      "(0,0,0) of block (0,0,0) writes in line 2, column 21");
}

TEST(Interpreter, NamesTheBlocksOfARaceInEveryOrder) {
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    std::vector<std::int32_t> x(1, 0);
    const Mistakes mistakes = run("kernel f(inout<int> x) { if (block.x % 5 == 1) x[0] = 1; }",
                                  shape(9, 1), {array(x)}, {.order_seed = seed});
    ASSERT_EQ(shown(mistakes), "block_race line 1 count 1");
    // Blocks 1 and 6 write.
    EXPECT_EQ(mistakes[0].who.block[0] + mistakes[0].other_who.block[0], 7u);
  }
}

TEST(Interpreter, FindsAWriteAfterReadsOfAnotherBlock) {
  // Block 1 reads x[0] too, and after it writes x[0]: the read of block 0 is still known.
  std::vector<std::int32_t> x(4, 0);
  const Mistakes mistakes = run(R"(kernel f(inout<int> x) {
  int seen = x[0];
  if (block.x == 1) x[0] = seen;
})",
                                shape(2, 1), {array(x)});
  ASSERT_EQ(shown(mistakes), "block_race line 3 count 1");
  EXPECT_EQ(mistakes[0].other.line, 2u);
  EXPECT_EQ(mistakes[0].other_who.block[0], 0u);
}

TEST(Interpreter, CallsTwoWritesOfOneValueARace) {
  std::vector<std::int32_t> x(1, 0);
  const Mistakes mistakes = run("kernel f(inout<int> x) { x[0] = 1; }", shape(1, 3), {array(x)});
  EXPECT_EQ(shown(mistakes), "thread_race line 1 count 2");
}

TEST(Interpreter, OrdersAtomicUpdatesWithEachOtherOnly) {
  std::vector<std::int32_t> x(1, 0), y(4);
  EXPECT_EQ(shown(run("kernel f(inout<int> x) { atomic_add(x, 0, 1); }", shape(2, 2), {array(x)})),
            "");
  EXPECT_EQ(x[0], 4);
  EXPECT_EQ(shown(run(R"(kernel f(inout<int> x, out<int> y) {
  atomic_add(x, 0, 1);
  y[index.x] = x[0];
})",
                      shape(1, 4), {array(x), array(y)})),
            "thread_race line 2 count 3; thread_race line 3 count 3");
}

TEST(Interpreter, CountsAPlainUpdateOfSeveralThreadsOncePerThread) {
  std::vector<std::int32_t> x(1, 0);
  const Mistakes mistakes = run("kernel f(inout<int> x) { x[0] += 1; }", shape(1, 4), {array(x)});
  ASSERT_EQ(shown(mistakes), "thread_race line 1 count 3");
  EXPECT_NE(mistakes[0].what().find("updates x[0], which thread (0,0,0) of the same block updates"),
            std::string::npos);
}

TEST(Interpreter, OrdersTheLoopsOverThreadsOfABlock) {
  std::vector<std::int32_t> x(4, 1), y(1);
  EXPECT_EQ(shown(run(R"(block f(inout<int> x, out<int> y) {
  for (auto thread : threads) x[thread.x] += 1;
  for (auto thread : threads) x[(thread.x + 1) % 4] += 1;
  int sum = 0;
  for (int i = 0; i < 4; ++i) sum += x[i];
  for (auto thread : threads) x[thread.x] = sum;
  for (auto thread : threads) if (thread.x == 0) y[0] = x[3];
})",
                      shape(1, 4), {array(x), array(y)})),
            "");
  EXPECT_EQ(y[0], 12);
}

TEST(Interpreter, FindsARaceOfAWholeBlockWithAnotherBlock) {
  std::vector<std::int32_t> x(2, 1);
  const Mistakes mistakes = run(R"(block f(inout<int> x) {
  const int other = x[1 - block.x];
  for (auto thread : threads) if (thread.x == 0) x[block.x] = other;
})",
                                shape(2, 2), {array(x)});
  ASSERT_EQ(shown(mistakes), "block_race line 2 count 1; block_race line 3 count 1");
  EXPECT_NE(mistakes[0].what().find(": block (1,0,0) reads x[0], which thread (0,0,0) of block "
                                    "(0,0,0) writes"),
            std::string::npos);
  EXPECT_NE(mistakes[1].what().find("which block (0,0,0) reads"), std::string::npos);
}

TEST(Interpreter, FindsRacesThroughTwoNamesOfOneArray) {
  std::vector<std::uint32_t> memory(9, 1);
  const Argument front{.value = nullptr, .address = &memory[0], .elements = 8};
  const Argument back{.value = nullptr, .address = &memory[1], .elements = 8};
  const Mistakes mistakes =
      run("element f(in<uint32_t> x, out<uint32_t> y) {\n  y = x;\n}", shape(1, 8), {front, back});
  ASSERT_EQ(shown(mistakes), "thread_race line 2 count 7");
  EXPECT_NE(mistakes[0].what().find("thread (1,0,0) of block (0,0,0) reads x[1], which thread "
                                    "(0,0,0) of the same block writes as y in line 2"),
            std::string::npos);
  // In place: each thread reads and writes its own element.
  EXPECT_EQ(shown(run("element f(in<uint32_t> x, out<uint32_t> y) { y = x; }", shape(1, 8),
                      {front, front})),
            "");
}

TEST(Interpreter, FindsRacesOfElementsOfDifferentSizes) {
  std::vector<std::uint64_t> memory(4, 1);
  const Argument words{.value = nullptr, .address = memory.data(), .elements = 4};
  const Argument bytes{
      .value = nullptr, .address = reinterpret_cast<std::byte*>(memory.data()) + 8, .elements = 3};
  const Mistakes mistakes = run(R"(kernel f(inout<uint64_t> x, inout<uint8_t> y) {
  if (index.x == 0) x[1] = 5;
  if (index.x == 1) y[2] = 5;
  if (index.x == 2) x[0] = 5;
})",
                                shape(1, 3), {words, bytes});
  ASSERT_EQ(shown(mistakes), "thread_race line 3 count 1");
  EXPECT_EQ(mistakes[0].other.line, 2u);
}

TEST(Interpreter, ShowsARaceInTheResultOfAnotherOrder) {
  std::vector<std::int32_t> of_blocks, of_threads;
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    std::vector<std::int32_t> x(2, 0);
    run("kernel f(inout<int> x) { x[0] = int(index.x); }", shape(4, 4), {array(x)},
        {.order_seed = seed});
    run("kernel f(inout<int> x) { x[1] = int(index.x); }", shape(1, 16), {array(x)},
        {.order_seed = seed});
    of_blocks.push_back(x[0]);
    of_threads.push_back(x[1]);
  }
  for (const std::vector<std::int32_t>& results : {of_blocks, of_threads}) {
    EXPECT_EQ(results[0], 15);
    EXPECT_NE(std::count(results.begin(), results.end(), 15), 8);
  }
}

// --- Arithmetic

TEST(Interpreter, FindsDivisionsByZero) {
  const std::int32_t a = 6;
  std::vector<std::int32_t> y(3, -1);
  std::vector<float> z(3, -1);
  const Mistakes mistakes = run(R"(kernel f(inout<int> y, inout<float> z, int a) {
  y[index.x] = a / int(index.x);
  if (index.x == 0) y[0] += a % int(index.x);
  z[index.x] = a / float(index.x);
})",
                                shape(1, 3), {array(y), array(z), value(a)});
  ASSERT_EQ(shown(mistakes), "divide_by_zero line 2 count 1; divide_by_zero line 3 count 1");
  EXPECT_EQ(y, (std::vector<std::int32_t>{0, 6, 3}));
  EXPECT_EQ(z[0], std::numeric_limits<float>::infinity());
}

TEST(Interpreter, FindsShiftsByTooMuch) {
  const std::int32_t a = -1;
  std::vector<std::uint32_t> y(1);
  const Mistakes mistakes = run(R"(kernel f(out<uint32_t> y, int a) {
  y[0] = 1u << a;
  y[0] >>= 32u + a;
  y[0] += uint32_t(1ull << (33 + a));
})",
                                shape(1, 1), {array(y), value(a)});
  ASSERT_EQ(shown(mistakes), "shift_too_far line 2 count 1");
  EXPECT_NE(mistakes[0].what().find("shifts a value of type unsigned by -1"), std::string::npos)
      << mistakes[0].what();
  EXPECT_EQ(y[0], 1u);
}

TEST(Interpreter, FindsConversionsToIntegersThatDoNotHaveTheValue) {
  const float big = 3e9f, nan = std::numeric_limits<float>::quiet_NaN();
  const double negative = -0.5;
  std::vector<std::int32_t> y(3);
  const Mistakes mistakes = run(R"(kernel f(out<int> y, float big, double negative, float nan) {
  y[0] = int(big);
  y[1] = int(nan);
  y[2] = unsigned(big) > 0 ? int(unsigned(negative)) : 1;
})",
                                shape(1, 1), {array(y), value(big), value(negative), value(nan)});
  ASSERT_EQ(shown(mistakes), "conversion line 2 count 1; conversion line 3 count 1");
  EXPECT_NE(mistakes[0].what().find("converts 3000000000 to int, which has no such value"),
            std::string::npos)
      << mistakes[0].what();
  EXPECT_EQ(y, (std::vector<std::int32_t>{2147483647, 0, 0}));
}

TEST(Interpreter, ConvertsTheLargestAndTheSmallestValuesOfAType) {
  const double above = 2147483648.0, below = -2147483649.0, edge = -2147483648.9;
  std::vector<std::int32_t> y(3);
  const Mistakes mistakes = run(R"(kernel f(out<int> y, double above, double below, double edge) {
  y[0] = int(above);
  y[1] = int(below);
  y[2] = int(edge);
})",
                                shape(1, 1), {array(y), value(above), value(below), value(edge)});
  EXPECT_EQ(shown(mistakes), "conversion line 2 count 1; conversion line 3 count 1");
  constexpr std::int32_t least = std::numeric_limits<std::int32_t>::min();
  EXPECT_EQ(y, (std::vector<std::int32_t>{2147483647, least, least}));
}

TEST(Interpreter, ComparesANaNAsStdMinAndMaxDo) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> y(4);
  EXPECT_EQ(shown(run(R"(kernel f(out<float> y, float nan) {
  y[0] = min(1.0f, nan);
  y[1] = max(1.0f, nan);
  y[2] = min(nan, 1.0f);
  y[3] = max(nan, 1.0f);
})",
                      shape(1, 1), {array(y), value(nan)})),
            "");
  EXPECT_EQ(y[0], 1.0f);
  EXPECT_EQ(y[1], 1.0f);
  EXPECT_TRUE(std::isnan(y[2]));
  EXPECT_TRUE(std::isnan(y[3]));
}

// --- The launch

TEST(Interpreter, StopsAnEndlessLoop) {
  std::vector<std::int32_t> y(4, 0);
  const Mistakes mistakes = run(R"(kernel f(out<int> y) {
  y[index.x] = 1;
  int i = 0;
  while (index.x == 2) i = 1 - i;
})",
                                shape(4, 1), {array(y)}, {.max_steps = 1000});
  ASSERT_EQ(shown(mistakes), "endless line 4 count 1");
  EXPECT_EQ(mistakes[0].who.block[0], 2u);
  EXPECT_EQ(mistakes[0].steps, 1000u);
  EXPECT_EQ(y, (std::vector<std::int32_t>{1, 1, 1, 0}));
}

TEST(Interpreter, StopsAnEndlessLoopOfABlock) {
  std::vector<std::int32_t> y(1, 0);
  EXPECT_EQ(
      shown(run("block f(inout<int> y) { for (;;) { for (auto thread : threads) y[0] = 1; } }",
                shape(1, 1), {array(y)}, {.max_steps = 1000})),
      "endless line 1 count 1");
}

TEST(Interpreter, StopsABlockWithAnEndlessThread) {
  std::vector<std::int32_t> y(1, 0);
  EXPECT_EQ(shown(run(R"(block f(inout<int> y) {
  for (;;) {
    for (auto thread : threads) {
      while (y[0] == 0) continue;
    }
  }
})",
                      shape(2, 1), {array(y)}, {.max_steps = 1000})),
            "endless line 4 count 1");
}

TEST(Interpreter, CountsStepsForEachThread) {
  std::vector<std::int32_t> y(100, 0);
  EXPECT_EQ(shown(run("element f(inout<int> y) { for (int i = 0; i < 100; ++i) y += i; }",
                      shape(1, 100), {array(y)}, {.max_steps = 1000})),
            "");
}

TEST(Interpreter, RefusesArgumentsThatDoNotFit) {
  const Interpreter f = interpreter("element f(inout<int> y) { y = 1; }");
  std::vector<std::int32_t> y(1);
  const std::vector<Argument> two{array(y), array(y)}, one{array(y)};
  EXPECT_EQ(f.try_run(shape(1, 1), two).failure().text(),
            "kernel 'f' has 1 arguments, and the launch passes 2. Pass one for each parameter.");
  EXPECT_EQ(f.try_run(shape(1, 0), one).failure().code(), ErrorCode::invalid_argument);
  EXPECT_EQ(f.try_run(shape(1, 65535), one).failure().code(), ErrorCode::invalid_argument);
  EXPECT_EQ(f.try_run(shape(1ull << 32, 1), one).failure().code(), ErrorCode::invalid_argument);
  EXPECT_EQ(f.try_combine(1, array(y), array(y)).failure().code(), ErrorCode::invalid_argument);

  const Interpreter sum =
      interpreter("reduction<int> sum(in<int> y) { identity = 0; map = y; combine = a + b; }");
  EXPECT_EQ(sum.try_run(shape(2, 1), two).failure().number("blocks"), 2u);
  EXPECT_TRUE(sum.try_run(shape(1, 1), two));
  EXPECT_EQ(sum.try_combine(2, array(y), array(y)).failure().number("blocks"), 2u);
}

TEST(Interpreter, RunsWithoutChecksOfAccesses) {
  std::vector<std::int32_t> x(1, 0);
  EXPECT_EQ(shown(run("kernel f(out<int> x) { x[0] += 1; x[1] = 0; }", shape(1, 3), {array(x)},
                      {.checks_accesses = false})),
            "out_of_range line 1 count 3");
  EXPECT_EQ(x[0], 3);
}

TEST(Interpreter, RunsBlocksWithoutChecksOfAccesses) {
  std::vector<std::int32_t> y(4);
  EXPECT_EQ(shown(run(R"(block f(out<int> y) {
  shared<int, 4> tile;
  for (auto thread : threads) y[thread.x] = tile[0] + 1;
  for (auto thread : threads) tile[0] = 5;
})",
                      shape(1, 4), {array(y)}, {.checks_accesses = false})),
            "");
}

TEST(Interpreter, RunsOnEmptyArrays) {
  std::vector<float> none;
  EXPECT_EQ(shown(run("element f(in<float> x, out<float> y) { y = x; }", shape(1, 4),
                      {array(none), array(none)})),
            "");
  std::vector<double> results{5};
  EXPECT_EQ(
      shown(run("reduction<double> f(in<float> x) { identity = 1; map = x; combine = a * b; }",
                shape(1, 256), {array(none), array(results)})),
      "");
  EXPECT_EQ(results[0], 1.0);
}

}  // namespace
}  // namespace tern::language
