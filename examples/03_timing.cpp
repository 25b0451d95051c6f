// Measures a copy with two timed events, and waits for it with a timeline that has a limit.

#include <cstdio>
#include <tern/backends/catalog.hpp>
#include <tern/core/bytes.hpp>
#include <tern/device/event.hpp>

int main() {
  const tern::Device device = tern::open_best_device();
  const tern::Stream stream(device, {.name = "copies"});
  constexpr std::size_t bytes = 16 * tern::mib;

  auto* from = static_cast<unsigned char*>(device.allocate(tern::MemoryKind::device, bytes));
  auto* to = static_cast<unsigned char*>(device.allocate(tern::MemoryKind::device, bytes));
  stream.fill(from, bytes, 7);
  stream.fill(to, bytes, 0);

  tern::Event start = tern::Event::timed(device), end = tern::Event::timed(device);
  const tern::Timeline done;
  stream.record(start);
  stream.copy(to, from, bytes);
  stream.record(end);
  done.set(stream, 1);  // reached when the device has finished, not when it was asked

  constexpr std::uint64_t ten_seconds_ns = 10'000'000'000;
  done.wait(1, ten_seconds_ns);
  const double seconds = static_cast<double>(end.elapsed_ns(start)) * 1e-9;
  std::printf("%s in %.2f ms\n", tern::format_bytes(bytes).c_str(), seconds * 1e3);

  device.release(from);
  device.release(to);
  return seconds > 0 ? 0 : 1;
}
