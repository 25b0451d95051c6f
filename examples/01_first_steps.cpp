#include <iostream>
#include <memory>
#include <tern/tern.hpp>

int main() {
  const tern::Device device = tern::open_best_device();  // or open_device("cuda:0"), "host", ...
  const tern::Stream producer(device), consumer(device);

  tern::Buffer grid(device, {1000, 8}, tern::DType::f32);  // allocates nothing yet
  grid.fill(1.5f, producer);             // the first use allocates; the call returns immediately
  tern::Buffer row = grid.slice(80, 8);  // shares the bytes of grid
  row.fill(2.5f, consumer);              // Tern makes consumer wait for producer
  const auto values = grid.to_vector<float>();  // waits for both fills only
  std::cout << values[79] << " " << values[80] << "\n";

  const auto cache = tern::Budget::make("cache", tern::BudgetLimit::bytes(4 * tern::mib));
  const auto memory = std::make_shared<tern::BudgetResource>(tern::default_resource(device), cache);
  const tern::OwnedBlock first(memory, {.bytes = 3 * tern::mib, .stream = consumer});
  const auto second = memory->try_allocate({.bytes = 2 * tern::mib, .stream = consumer});
  if (!second) std::cout << second.failure().text() << "\n";
}  // all memory is freed in stream order, after its last use
