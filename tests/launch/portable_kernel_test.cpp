#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include "support/simulated.hpp"
#include "tern/backends/catalog.hpp"
#include "tern/backends/sim.hpp"
#include "tern/buffer/array.hpp"
#include "tern/buffer/buffer.hpp"
#include "tern/buffer/scalar.hpp"
#include "tern/coherence/unified_buffer.hpp"
#include "tern/launch/kernel.hpp"
#include "tern/launch/kernel_text.hpp"

namespace tern::test {
namespace {

// --- Four kernels, written once

TERN_ELEMENT_KERNEL(written_saxpy, (in<float> x, inout<float> y, float a), { y += a * x; })

TERN_KERNEL(written_histogram, (in<uint32_t> keys, inout<uint32_t> counts), {
  const size_t i = index.x;
  if (i < size(keys)) atomic_add(counts, keys[i], 1);
})

TERN_BLOCK_KERNEL(written_stencil, (in<float> x, out<float> y), {
  shared<float, 258> tile;
  for (auto thread : threads) {
    const size_t i = block.x * block_size.x + thread.x;
    if (i < size(x)) tile[thread.x + 1] = x[i];
    if (thread.x == 0) tile[0] = i > 0 ? x[i - 1] : 0.0f;
    if (i + 1 == size(x) || thread.x + 1 == block_size.x) {
      tile[thread.x + 2] = i + 1 < size(x) ? x[i + 1] : 0.0f;
    }
  }
  for (auto thread : threads) {
    const size_t i = block.x * block_size.x + thread.x;
    if (i < size(x))
      y[i] = 0.25f * tile[thread.x] + 0.5f * tile[thread.x + 1] + 0.25f * tile[thread.x + 2];
  }
})

TERN_BLOCK_KERNEL(written_turns, (in<int> x, out<int> y), {
  shared<int, 64> tile;
  for (auto thread : threads) {
    const size_t i = block.x * block_size.x + thread.x;
    if (i >= size(x)) continue;  // ends the turn of this thread only
    tile[thread.x] = x[i];
  }
  for (auto thread : threads) {
    const size_t i = block.x * block_size.x + thread.x;
    if (i >= size(x)) continue;
    y[i] = tile[thread.x] + int(size(tile)) + abs(-1) + int(pow(2.0f, 3));
  }
})

TERN_REDUCTION(written_dot, double, (in<float> x, in<float> y), 0, x* y, a + b)

/// The same text without the C++ function, so that host devices compile it.
constexpr KernelText without_function(const KernelText& text) {
  KernelText plain = text;
  plain.body = plain.combine = nullptr;
  return plain;
}

class PortableKernelTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    std::string spec = GetParam();
    compiles_ = spec == "host, compiled";
    if (compiles_) spec = "host";
    device = open_device(spec);
    first = Stream(device);
    second = Stream(device);
  }
  void TearDown() override {
    EXPECT_TRUE(device.try_synchronize());
    EXPECT_EQ(poll_kernels(), 0u);
    if (device.info().backend != "sim") return;
    for (const Finding& finding : sim::findings(device)) ADD_FAILURE() << finding.text();
  }
  [[nodiscard]] Kernel load(const KernelText& text) const {
    return Kernel::from_text(device, compiles_ ? without_function(text) : text);
  }
  template <class T>
  [[nodiscard]] Array<T> array(const std::vector<T>& values) const {
    return Array<T>::from(device, values);
  }

  Device device;
  Stream first, second;

 private:
  bool compiles_ = false;
};

std::vector<std::string> portable_specs() {
  std::vector<std::string> all = {"host", "host, compiled", "sim", "sim?schedule=lazy",
                                  "cuda:0?driver=sim"};
  for (const BackendListing& backend : list_backends()) {
    if (backend.name != "opencl" && backend.name != "cuda") continue;
    all.insert(all.end(), backend.devices.begin(), backend.devices.end());
  }
  return all;
}
std::string portable_spec_name(const testing::TestParamInfo<std::string>& info) {
  std::string name = info.param;
  std::replace_if(
      name.begin(), name.end(), [](char c) { return std::isalnum(c) == 0; }, '_');
  return name;
}
INSTANTIATE_TEST_SUITE_P(Devices, PortableKernelTest, testing::ValuesIn(portable_specs()),
                         portable_spec_name);

TEST_P(PortableKernelTest, ElementKernelsRunOnceForEachElement) {
  constexpr std::size_t count = 10'007;
  std::vector<float> numbers(count);
  std::iota(numbers.begin(), numbers.end(), 0.0f);
  auto x = array(numbers);
  auto y = array(std::vector<float>(count, 1.0f));
  const Kernel saxpy = load(written_saxpy);
  EXPECT_EQ(saxpy.name(), "written_saxpy");
  saxpy.launch(first, elements(), x, y, 2.0f);
  saxpy.launch(second, elements(), y, x, 1.0f);  // waits for the first launch
  const std::vector<float> result = x.to_vector();
  for (std::size_t i = 0; i < count; ++i) {
    const auto n = static_cast<float>(i);
    ASSERT_EQ(result[i], n + (1 + 2 * n)) << i;
  }
}

TEST_P(PortableKernelTest, CoresChangeEachElementOfALargeArrayOnce) {
  constexpr std::size_t count =
      100'003;  // above the size from which the cores of the host share it
  const auto ones = array(std::vector<float>(count, 1.0f));
  auto sums = Array<float>::zeros(device, count);
  load(written_saxpy).launch(first, elements(), in(ones), inout(sums), 3.0f);
  EXPECT_EQ(sums.to_vector(), std::vector<float>(count, 3.0f));
}

TEST_P(PortableKernelTest, AtomicsCountEveryElement) {
  constexpr std::size_t count = 20'000, bins = 37;
  std::vector<std::uint32_t> keys(count), expected(bins);
  for (std::size_t i = 0; i < count; ++i) {
    keys[i] = static_cast<std::uint32_t>(i * i % bins);
    ++expected[keys[i]];
  }
  const auto input = array(keys);
  auto counts = Array<std::uint32_t>::zeros(device, bins);
  load(written_histogram).launch(first, elements(count), input, counts);
  EXPECT_EQ(counts.to_vector(), expected);
}

TEST_P(PortableKernelTest, ThreadsOfABlockShareMemory) {
  for (const std::size_t count : {std::size_t{1}, std::size_t{256}, std::size_t{1000}}) {
    std::vector<float> numbers(count), expected(count);
    for (std::size_t i = 0; i < count; ++i) numbers[i] = static_cast<float>(i % 17) - 3;
    for (std::size_t i = 0; i < count; ++i) {
      const float left = i > 0 ? numbers[i - 1] : 0, right = i + 1 < count ? numbers[i + 1] : 0;
      expected[i] = 0.25f * left + 0.5f * numbers[i] + 0.25f * right;
    }
    const auto x = array(numbers);
    auto y = Array<float>::uninitialized(device, count);
    load(written_stencil).launch(first, elements(count, 256), x, y);
    EXPECT_EQ(y.to_vector(), expected) << count;
  }
}

TEST_P(PortableKernelTest, AThreadEndsItsTurnAndTheBlockGoesOn) {
  std::vector<std::int32_t> numbers(100), expected(100);
  std::iota(numbers.begin(), numbers.end(), 0);
  for (std::size_t i = 0; i < expected.size(); ++i) expected[i] = numbers[i] + 64 + 1 + 8;
  auto y = Array<std::int32_t>::uninitialized(device, numbers.size());
  load(written_turns).launch(first, 2, 64, array(numbers), y);
  EXPECT_EQ(y.to_vector(), expected);
}

/// The reduction as the language defines it.
double reduced(std::vector<double> values) {
  do {
    std::vector<double> results;
    for (std::size_t first = 0; first == 0 || first < values.size(); first += 4096) {
      std::vector<double> lanes(256, 0.0);
      for (std::size_t i = first; i < std::min(first + 4096, values.size()); ++i) {
        lanes[(i - first) % 256] += values[i];
      }
      for (std::size_t half = 128; half > 0; half /= 2) {
        for (std::size_t t = 0; t < half; ++t) lanes[t] += lanes[t + half];
      }
      results.push_back(lanes[0]);
    }
    values = std::move(results);
  } while (values.size() > 1);
  return values[0];
}

TEST_P(PortableKernelTest, ReductionsHaveTheSameBitsOnEveryDevice) {
  const Kernel dot = load(written_dot);
  for (const std::size_t count : std::initializer_list<std::size_t>{1, 255, 4096, 4097, 100'003}) {
    std::vector<float> x(count), y(count);
    std::vector<double> products(count);
    for (std::size_t i = 0; i < count; ++i) {
      x[i] = 1.0f / static_cast<float>(i + 1);
      y[i] = static_cast<float>(i % 101) - 49.7f;
      products[i] = static_cast<double>(x[i] * y[i]);
    }
    auto result = Scalar<double>::make(device);
    dot.launch(first, elements(), array(x), array(y), result);
    EXPECT_EQ(result.get(first), reduced(products)) << count;
  }
}

TEST_P(PortableKernelTest, AReductionOfNothingIsItsIdentity) {
  auto result = Scalar<double>::make(device);
  const auto x = Array<float>::zeros(device, 0);
  load(written_dot).launch(first, elements(), x, x, result);
  EXPECT_EQ(result.get(first), 0.0);
}

TEST_P(PortableKernelTest, TakesSlicesAndBuffers) {
  auto x = array<float>({1, 2, 3, 4});
  Buffer y(device, {4}, DType::f32);
  y.fill(0.0f, first);
  Buffer half = y.slice(2, 2);
  load(written_saxpy).launch(first, elements(), x.slice(1, 2), half, 10.0f);
  EXPECT_EQ(y.to_vector<float>(), (std::vector<float>{0, 0, 20, 30}));
}

TEST_P(PortableKernelTest, MovesUnifiedBuffersToItsDevice) {
  UnifiedBuffer<float> y(Shape{1000}, {.device = device});
  y.fill(3.0f);
  const auto x = array(std::vector<float>(1000, 1.0f));
  load(written_saxpy).launch(first, elements(), x, y, 2.0f);
  EXPECT_EQ(y.to_vector(), std::vector<float>(1000, 5.0f));
}

TEST_P(PortableKernelTest, RefusesArraysOfDifferentSizes) {
  const auto x = array(std::vector<float>(10, 1.0f));
  auto y = array(std::vector<float>(9, 1.0f));
  const Result<Mark> launched = load(written_saxpy).try_launch(first, elements(), x, y, 2.0f);
  ASSERT_FALSE(launched);
  EXPECT_EQ(launched.failure().code(), ErrorCode::size_mismatch);
  EXPECT_EQ(launched.failure().text(),
            "argument 1 of kernel 'written_saxpy' has 9 elements, and the first array has 10. Pass "
            "arrays or slices of equal size.");
}

TEST_P(PortableKernelTest, RefusesAWrongType) {
  const auto x = array(std::vector<double>(10, 1.0));
  auto y = array(std::vector<float>(10, 1.0f));
  const Result<Mark> launched = load(written_saxpy).try_launch(first, elements(), x, y, 2.0f);
  ASSERT_FALSE(launched);
  EXPECT_EQ(launched.failure().code(), ErrorCode::type_mismatch);
}

TEST_P(PortableKernelTest, RefusesAnotherDeclarationThanThatOfTheText) {
  const auto x = array(std::vector<float>(10, 1.0f));
  auto y = array(std::vector<float>(10, 1.0f));
  const Kernel saxpy = load(written_saxpy);
  const Result<Mark> launched = saxpy.try_launch(first, elements(), x, out(y), 2.0f);
  ASSERT_FALSE(launched);
  EXPECT_EQ(launched.failure().text(),
            "argument 1 of kernel 'written_saxpy' is declared out(), and the text of the kernel "
            "declares inout(). Pass the memory without a declaration.");
  EXPECT_TRUE(saxpy.try_launch(first, elements(), in(x), inout(y), 2.0f));
}

TEST_P(PortableKernelTest, RefusesASizeThatIsNotThatOfTheArrays) {
  auto x = array(std::vector<float>(10, 1.0f));
  const Kernel saxpy = load(written_saxpy);
  const Result<Mark> launched = saxpy.try_launch(first, elements(9), x, x, 2.0f);
  ASSERT_FALSE(launched);
  EXPECT_EQ(launched.failure().code(), ErrorCode::size_mismatch);
  EXPECT_TRUE(saxpy.try_launch(first, elements(10), x, x, 2.0f));
}

TEST_P(PortableKernelTest, TakesABooleanOnlyForABoolean) {
  constexpr KernelText text{.text =
                                "element choose(inout<float> x, bool is_on) { if (is_on) x = 1; }"};
  auto x = array<float>({0, 0});
  const Result<Mark> launched = load(text).try_launch(first, elements(), x, std::uint8_t{2});
  ASSERT_FALSE(launched);
  EXPECT_EQ(launched.failure().code(), ErrorCode::type_mismatch);
  load(text).launch(first, elements(), x, true);
  EXPECT_EQ(x.to_vector(), (std::vector<float>{1, 1}));
}

TEST_P(PortableKernelTest, OnlyKernelsOfElementsKnowTheirSize) {
  auto keys = array(std::vector<std::uint32_t>(10, 1));
  const Result<Mark> launched = load(written_histogram).try_launch(first, elements(), keys, keys);
  ASSERT_FALSE(launched);
  EXPECT_EQ(launched.failure().code(), ErrorCode::invalid_argument);
}

TEST_P(PortableKernelTest, AWrongTextNamesTheLineAndTheWord) {
  const KernelText text{.text = "element twice(in<float> x) {\n  x *= 2;\n}"};
  const Result<Kernel> kernel = Kernel::try_from_text(device, text);
  ASSERT_FALSE(kernel);
  EXPECT_EQ(kernel.failure().code(), ErrorCode::invalid_argument);
  const std::string why = kernel.failure().text();
  EXPECT_NE(why.find("line 2"), why.npos) << why;
  EXPECT_NE(why.find("'x'"), why.npos) << why;
}

TEST_P(PortableKernelTest, AGridHasThreeAxes) {
  constexpr KernelText text{.text = R"(
    kernel positions(out<uint32_t> to) {
      const size_t width = grid_size.x * block_size.x;
      const size_t height = grid_size.y * block_size.y;
      to[(index.z * height + index.y) * width + index.x] =
          uint32_t(thread.x + 10 * thread.y + 100 * thread.z + 1000 * block.x + 10000 * block.y +
                   100000 * block.z);
    })"};
  auto to = Array<std::uint32_t>::uninitialized(device, 6 * 4 * 4);
  load(text).launch(first, {3, 2, 2}, {2, 2, 2}, to);
  const std::vector<std::uint32_t> values = to.to_vector();
  for (std::uint32_t z = 0; z < 4; ++z) {
    for (std::uint32_t y = 0; y < 4; ++y) {
      for (std::uint32_t x = 0; x < 6; ++x) {
        ASSERT_EQ(values[(z * 4 + y) * 6 + x], x % 2 + 10 * (y % 2) + 100 * (z % 2) +
                                                   1000 * (x / 2) + 10000 * (y / 2) +
                                                   100000 * (z / 2));
      }
    }
  }
}

TEST_P(PortableKernelTest, AnArrayThatIsWrittenInPartNeedsNoOldBytes) {
  constexpr KernelText text{.text = R"(
    kernel write_even(part<int> to) {
      if (index.x % 2 == 0 && index.x < size(to)) to[index.x] = int(index.x);
    })"};
  auto to = Array<std::int32_t>::uninitialized(device, 10);
  load(text).launch(first, elements(10), to);
  EXPECT_EQ(to.slice(8, 1).to_vector(), std::vector<std::int32_t>{8});
  auto kept = array(std::vector<std::int32_t>{7, 7, 7});
  load(text).launch(first, elements(3), kept);
  EXPECT_EQ(kept.to_vector(), (std::vector<std::int32_t>{0, 7, 2}));
}

// --- What the simulated device finds

std::vector<Finding> findings_of(const KernelText& text, LaunchExtent extent) {
  const Device device = sim::open({.print_findings = false});
  const Stream stream(device);
  auto x = Array<float>::from(device, std::vector<float>(1000, 1.0f));
  auto y = Array<float>::from(device, std::vector<float>(1000, 1.0f));
  const Kernel kernel = Kernel::from_text(device, text);
  static_cast<void>(kernel.try_launch(stream, extent, x, y));
  static_cast<void>(stream.try_synchronize());
  return sim::findings(device);
}

TERN_KERNEL(reads_past_the_end, (in<float> x, inout<float> y), {
  const size_t i = index.x;
  y[i < size(y) ? i : 0] += x[i + 1];
})
constexpr std::uint32_t line_of_the_read = __LINE__ - 2;

TEST(SimulatedPortableKernel, FindsAnIndexPastTheEndWithItsLineInTheFile) {
  const std::vector<Finding> findings = findings_of(reads_past_the_end, elements(1000, 250));
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].code, FindingCode::out_of_bounds);
  const std::string line = "line " + std::to_string(line_of_the_read) + ",";
  EXPECT_NE(findings[0].what.find(line), std::string::npos) << findings[0].what;
  EXPECT_NE(findings[0].what.find("x[1000]"), std::string::npos) << findings[0].what;
}

TEST(SimulatedPortableKernel, FindsARaceOfBlocks) {
  constexpr KernelText text{.text = R"(
    kernel sum(in<float> x, inout<float> y) {
      if (index.x < size(x)) y[0] += x[index.x];
    })"};
  const std::vector<Finding> findings = findings_of(text, elements(1000, 250));
  ASSERT_FALSE(findings.empty());
  EXPECT_EQ(findings[0].code, FindingCode::kernel_race);
  EXPECT_NE(findings[0].what.find("line 3"), std::string::npos) << findings[0].what;
}

TEST(SimulatedPortableKernel, FindsThreadsThatDoNotWaitForEachOther) {
  constexpr KernelText text{.text = R"(
    block turn(in<float> x, inout<float> y) {
      shared<float, 250> tile;
      for (auto thread : threads) {
        const size_t i = block.x * block_size.x + thread.x;
        tile[thread.x] = x[i];
        y[i] = tile[block_size.x - 1 - thread.x];
      }
    })"};
  const std::vector<Finding> findings = findings_of(text, elements(1000, 250));
  ASSERT_FALSE(findings.empty());
  const auto race = std::ranges::find(findings, FindingCode::kernel_race, &Finding::code);
  ASSERT_NE(race, findings.end()) << findings[0].text();
  EXPECT_NE(race->what.find("line 7"), std::string::npos) << race->what;
}

}  // namespace
}  // namespace tern::test
