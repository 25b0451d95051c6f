// One array on the host and on a device: bytes move when an access needs them, and only those it
// needs. The log at the end says what moved, and whose line it was.

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <span>
#include <string_view>
#include <tern/backends/catalog.hpp>
#include <tern/coherence/unified_buffer.hpp>
#include <tern/device/stream.hpp>
#include <tern/launch/kernel.hpp>

namespace {

TERN_KERNEL(smooth, (in<float> from, out<float> to), {
  const size_t i = index.x;
  if (i < size(to)) to[i] = (from[i] + from[i + 1]) / 2;
})

void print(const char* when, const tern::UnifiedBuffer<float>& buffer) {
  const std::string_view state = name(buffer.state());
  std::printf("%-28s %.*s\n", when, static_cast<int>(state.size()), state.data());
}

}  // namespace

int main(int argc, char** argv) {
  const tern::Device device = tern::open_device(argc > 1 ? argv[1] : "sim");
  const tern::Stream stream(device);
  constexpr std::size_t count = 1000;
  tern::UnifiedBuffer<float> heat(tern::Shape{count}, {.device = device, .tag = "heat"});
  tern::UnifiedBuffer<float> next(tern::Shape{count - 1}, {.device = device, .tag = "next"});
  print("made, and nothing allocated", heat);

  std::ranges::fill(heat.discard_host(), 1.0f);
  heat.slice(500, 1).rw_host()[0] = 3.0f;
  print("written by the host", heat);

  const auto kernel = tern::Kernel::from_text(device, smooth);
  kernel.launch(stream, tern::elements(count - 1), heat, next);
  print("read by a kernel", heat);
  print("  and what it wrote", next);

  // Sixteen elements come back, and no more.
  const float middle = next.slice(492, 16).read_host()[8];
  std::printf("the middle is %.1f\n", static_cast<double>(middle));
  print("a part read by the host", next);

  // Two writers of the same bytes are refused, with both lines.
  {
    const auto held = next.rw_host();
    const auto second = next.try_rw_device(stream);
    if (second) return 1;
    std::printf("refused: %s\n", second.failure().text().c_str());
  }
  for (const tern::UnifiedBuffer<float>* buffer : {&heat, &next}) {
    for (const tern::Transfer& one : buffer->transfers()) {
      std::printf("%zu bytes, %.*s to %s, line %u\n", one.bytes,
                  static_cast<int>(name(one.reason).size()), name(one.reason).data(),
                  one.to.is_host() ? "the host" : "the device", one.site.line);
    }
  }
  return middle == 2.0f ? 0 : 1;
}
