#include <gtest/gtest.h>

#include <array>
#include <span>
#include <vector>

#include "tern/backends/catalog.hpp"
#include "tern/buffer/buffer.hpp"
#include "tern/buffer/use.hpp"

namespace tern {
namespace {

TEST(HostView, IsASpanOfTheBuffersElements) {
  Buffer buffer(open_device("host"), {3}, DType::i32);
  HostView<int> view = buffer.discard_host<int>();
  view[0] = 1;
  view[1] = view[2] = 2;
  const std::span<int> span = view;
  const std::span<const int> read_only = view;
  EXPECT_EQ(span.data(), read_only.data());
  EXPECT_EQ(std::vector<int>(view.begin(), view.end()), (std::vector<int>{1, 2, 2}));
  static_assert(!std::is_copy_constructible_v<HostView<int>>);
}

TEST(HostView, KeepsTheBytesAfterTheBufferIsDestroyed) {
  HostView<int> view;
  {
    Buffer buffer(open_device("host"), {1}, DType::i32);
    view = buffer.discard_host<int>();
  }
  view[0] = 7;
  EXPECT_EQ(view[0], 7);
}

TEST(HostView, MovingTransfersTheAccess) {
  Buffer buffer(open_device("host"), {1}, DType::i32, {.checked = true});
  {
    HostView<int> first = buffer.discard_host<int>();
    const HostView<int> second = std::move(first);
    first = {};
    EXPECT_FALSE(buffer.try_rw_host<int>()) << "the second has it";
  }
  EXPECT_TRUE(buffer.try_rw_host<int>());
}

TEST(HostView, CountsIndicesInRowMajorOrder) {
  const std::array<std::size_t, 3> indices = {1, 2, 3};
  EXPECT_EQ(element_offset(Shape{2, 3, 4}, indices), 23u);
  EXPECT_EQ(element_offset(Shape{}, {}), 0u);
  EXPECT_THROW(static_cast<void>(element_offset(Shape{2, 3}, indices)), ShapeMismatch);
  EXPECT_THROW(static_cast<void>(element_offset(Shape{2, 3, 3}, indices)), OutOfBounds);
}

}  // namespace
}  // namespace tern
