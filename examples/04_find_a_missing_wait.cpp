// A classic mistake, found without a GPU: two streams share a buffer, and nothing orders them. On
// hardware this works nearly always. The simulated device refuses it every time, at the line that
// submitted it, and says what is missing.

#include <iostream>
#include <tern/backends/sim.hpp>
#include <vector>

namespace {

void pipeline(const tern::Device& device, bool with_wait) {
  const tern::Stream produce(device, {.name = "produce"});
  const tern::Stream consume(device, {.name = "consume"});
  auto* column =
      static_cast<float*>(device.allocate(tern::MemoryKind::device, 4096, {.tag = "column"}));
  std::vector<float> result(1024);

  produce.fill(column, 1024, 1.5f);
  if (with_wait) consume.wait(produce.mark());
  consume.copy(result.data(), column, 4096);  // reads what `produce` may still be writing

  device.synchronize();
  device.release(column);
}

}  // namespace

int main() {
  const tern::Device device = tern::sim::open({.seed = 7, .policy = tern::sim::Policy::lazy});
  try {
    pipeline(device, false);
    return 1;
  } catch (const tern::Violation& violation) {
    std::cout << "caught: " << violation.what() << "\n\n";
    std::cout << tern::sim::findings(device).back().text() << "\n";
  }
  pipeline(tern::sim::open({.seed = 7}), true);
  std::cout << "with the wait: no finding\n";
}
