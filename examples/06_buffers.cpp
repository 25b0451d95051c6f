// A buffer and its views: memory that comes with the first use, is shared by every view, puts the
// streams that use it in order, and refuses what cannot be right.

#include <cstdio>
#include <tern/backends/catalog.hpp>
#include <tern/buffer/array.hpp>
#include <tern/buffer/buffer.hpp>
#include <tern/buffer/copy.hpp>
#include <tern/device/stream.hpp>
#include <vector>

int main() {
  const tern::Device device = tern::open_device("sim");
  const tern::Stream producer(device), consumer(device);

  // Nothing is allocated yet: a buffer is a description until somebody uses it.
  tern::Buffer grid(device, {4, 8}, tern::DType::i32, {.tag = "grid"});
  std::printf("made:     %s, %s\n", grid.text().c_str(),
              grid.is_allocated() ? "allocated" : "no memory yet");

  grid.fill(1, producer);
  tern::Buffer row = grid.slice(8, 8);                    // the second row: the same bytes
  row.fill(2, consumer);                                  // waits for the producer by itself
  const std::vector<int> values = grid.to_vector<int>();  // waits for both
  std::printf("values:   %d %d %d\n", values[0], values[8], values[16]);

  // A typed array is the same thing with the type in C++, and costs nothing beyond its memory.
  const std::vector<int> counts = {3, 1, 2};
  auto array = tern::Array<int>::from(device, counts);
  const tern::View<int> view =
      array.kernel_view(producer, tern::Access::read_write);  // for kernels
  producer.fill(view.data(), 1, 30);
  std::printf("array:    %d %d %d\n", array.to_vector()[0], array.to_vector()[1],
              array.to_vector()[2]);

  for (const tern::Result<tern::Buffer>& wrong :
       {grid.try_byte_view(120, 16), row.try_as(tern::DType::f64),
        grid.byte_view(2, 8).try_as(tern::DType::i32)}) {
    if (!wrong) std::printf("refused:  %s\n", wrong.failure().text().c_str());
  }
  const tern::Buffer fresh(device, {16}, tern::DType::u8);
  const tern::Result<void> unread = tern::try_copy(row.as<std::uint8_t>().slice(0, 16), fresh);
  if (unread) return 1;
  std::printf("refused:  %s\n", unread.failure().text().c_str());
}
