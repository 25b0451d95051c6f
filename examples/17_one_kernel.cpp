// Kernels that are written once and run on every device: an element kernel, a histogram with
// atomics, a stencil with shared memory, and a reduction. The program runs them on each device that
// it finds, or on those that are named as arguments, and compares the results.

#include <cstdint>
#include <cstdio>
#include <iostream>
#include <string>
#include <string_view>
#include <tern/tern.hpp>
#include <vector>

namespace {

TERN_ELEMENT_KERNEL(saxpy, (in<float> x, inout<float> y, float a), { y += a * x; })

TERN_KERNEL(histogram, (in<uint32_t> keys, inout<uint32_t> counts), {
  const size_t i = index.x;
  if (i < size(keys)) atomic_add(counts, keys[i], 1);
})

TERN_BLOCK_KERNEL(smooth, (in<float> x, out<float> y), {
  shared<float, 258> tile;
  for (auto thread : threads) {
    const size_t i = block.x * block_size.x + thread.x;
    tile[thread.x + 1] = i < size(x) ? x[i] : 0.0f;
    if (thread.x == 0) tile[0] = i > 0 ? x[i - 1] : 0.0f;
    if (thread.x + 1 == block_size.x) tile[thread.x + 2] = i + 1 < size(x) ? x[i + 1] : 0.0f;
  }
  for (auto thread : threads) {
    const size_t i = block.x * block_size.x + thread.x;
    if (i < size(x))
      y[i] = 0.5f * tile[thread.x + 1] + 0.25f * (tile[thread.x] + tile[thread.x + 2]);
  }
})

TERN_REDUCTION(dot, double, (in<float> x, in<float> y), 0, x* y, a + b)

struct Results {
  std::vector<float> smoothed;
  std::vector<std::uint32_t> counts;
  double product = 0;
  friend bool operator==(const Results&, const Results&) = default;
};

Results run(const tern::Device& device) {
  using tern::elements, tern::Kernel;
  constexpr std::size_t count = 10'000;
  std::vector<float> numbers(count);
  std::vector<std::uint32_t> numbered(count);
  for (std::size_t i = 0; i < count; ++i) {
    numbers[i] = static_cast<float>(i % 100) * 0.1f;
    numbered[i] = static_cast<std::uint32_t>(i * i % 10);
  }
  const tern::Stream stream(device), other(device);
  const auto x = tern::Array<float>::from(device, numbers);
  const auto keys = tern::Array<std::uint32_t>::from(device, numbered);
  auto y = tern::Array<float>::zeros(device, count);
  auto smoothed = tern::Array<float>::uninitialized(device, count);
  auto counts = tern::Array<std::uint32_t>::zeros(device, 10);
  auto product = tern::Scalar<double>::make(device);

  // The kernels declare what they do to their arguments, so Tern makes `other` wait for `stream`.
  Kernel::from_text(device, saxpy).launch(stream, elements(), x, y, 2.0f);
  Kernel::from_text(device, smooth).launch(other, elements(count, 256), y, smoothed);
  Kernel::from_text(device, histogram).launch(stream, elements(count), keys, counts);
  Kernel::from_text(device, dot).launch(other, elements(), x, smoothed, product);
  return {smoothed.to_vector(), counts.to_vector(), product.get(other)};
}

}  // namespace

int main(int count, char** arguments) {
  std::vector<std::string> devices(arguments + 1, arguments + count);
  if (devices.empty()) {
    for (const tern::BackendListing& backend : tern::list_backends()) {
      if (!backend.devices.empty()) devices.push_back(backend.devices.front());
    }
  }
  const Results expected = run(tern::open_device("host"));
  int wrong = 0;
  for (const std::string& device : devices) {
    const bool is_equal = run(tern::open_device(device)) == expected;
    std::cout << device << ": " << (is_equal ? "the same results as the host" : "other results")
              << "\n";
    if (!is_equal) ++wrong;
  }
  return wrong;
}
