// Memory that others own: borrowed with the order of their stream, adopted with a callback, and
// given away. The simulated device would report a wait that is missing.

#include <cstdio>
#include <memory>
#include <tern/backends/catalog.hpp>
#include <tern/buffer/foreign.hpp>
#include <utility>

namespace {

constexpr std::size_t bytes = 4096;

/// What a framework would do: fill memory of its own on its own stream.
void produce(void* memory, const tern::Stream& theirs) {
  theirs.fill(static_cast<std::byte*>(memory), bytes, std::byte{1});
}

/// What our program does: change a buffer in place.
void use(const tern::Buffer& buffer, const tern::Stream& ours) {
  tern::StorageUse use = buffer.try_use(ours, tern::Access::read_write).value();
  ours.fill(static_cast<std::byte*>(use.address()), buffer.size_bytes(), std::byte{2});
  use.end();
}

}  // namespace

int main() {
  const tern::Device device = tern::open_device("sim");
  const tern::Stream ours(device), theirs(device);

  // Borrowed: our work waits for theirs, and theirs for ours. The owner may let go at once.
  std::shared_ptr<void> tensor(device.allocate(tern::MemoryKind::device, bytes),
                               [device](void* memory) {
                                 std::puts("borrowed: the owner frees it"), device.release(memory);
                               });
  void* const memory = tensor.get();
  produce(memory, theirs);
  use(tern::borrow(device, memory, bytes, {.owner = std::move(tensor), .stream = theirs}), ours);
  device.synchronize();
  tern::reclaim_deferred();

  // Adopted: it is ours until the callback.
  void* const block = device.allocate(tern::MemoryKind::device, bytes);
  produce(block, theirs);
  const auto give_back = [&] { std::puts("adopted: we free it"), device.release(block); };
  use(tern::adopt(device, block, bytes, {.on_release = give_back, .stream = theirs}), ours);
  device.synchronize();
  tern::reclaim_deferred();

  // Released: somebody else frees it, on a stream of their choice.
  tern::Buffer result(device, tern::Shape{bytes}, tern::DType::byte);
  use(result, ours);
  tern::Released given = tern::release(std::move(result), theirs);
  produce(given.address(), theirs);
  given.give_back(theirs);
  std::puts("released: they gave it back");
}
