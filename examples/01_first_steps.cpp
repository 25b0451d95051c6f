#include <iostream>
#include <tern/tern.hpp>
#include <vector>

int main() {
  tern::Device device = tern::open_best_device();  // or open_device("host"), "cuda:0", ...
  tern::Stream producer(device), consumer(device);

  tern::Buffer grid(device, {1000, 8}, tern::DType::f32);  // allocates nothing yet
  grid.fill(1.5f, producer);             // the first use allocates; the call returns immediately
  tern::Buffer row = grid.slice(80, 8);  // shares the bytes of grid
  row.fill(2.5f, consumer);              // Tern makes consumer wait for producer

  const std::vector<float> values = grid.to_vector<float>();  // waits for both fills only
  std::cout << device.spec() << ": " << values[79] << " " << values[80] << "\n";
  return values[80] == 2.5f ? 0 : 1;
}  // the memory is freed in stream order, after its last use
