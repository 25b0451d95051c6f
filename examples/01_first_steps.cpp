#include <iostream>
#include <tern/backends/catalog.hpp>
#include <tern/buffer/buffer.hpp>
#include <tern/device/stream.hpp>
#include <vector>

int main() {
  tern::Device device = tern::open_best_device();  // or open_device("host"), "cuda:0", ...
  tern::Stream producer(device), consumer(device);

  tern::Buffer grid(device, {1000, 8}, tern::DType::f32);  // no memory yet
  grid.fill(1.5f, producer);             // the first use brings it; returns at once
  tern::Buffer row = grid.slice(80, 8);  // the same bytes, and the same identity
  row.fill(2.5f, consumer);              // behind the other fill: the streams are put in order

  const std::vector<float> values = grid.to_vector<float>();  // waits for both, and nothing else
  std::cout << device.spec() << ": " << values[79] << " " << values[80] << "\n";
  return values[80] == 2.5f ? 0 : 1;
}  // the memory goes back, behind whatever still uses it
