#include "backends/fake_cuda/recycled_handles.hpp"

#include <gtest/gtest.h>

namespace tern::sim {
namespace {

TEST(RecycledHandles, GivesTheLastHandleOutAgainAtOnce) {
  RecycledHandles<int> handles(0x1000);
  const std::uintptr_t first = handles.add(std::make_shared<int>(1));
  const std::uintptr_t second = handles.add(std::make_shared<int>(2));
  EXPECT_NE(first, second);
  EXPECT_EQ(*handles.remove(first), 1);
  EXPECT_EQ(handles.find(first), nullptr);
  EXPECT_EQ(handles.size(), 1u);
  EXPECT_EQ(handles.add(std::make_shared<int>(3)), first);
  EXPECT_EQ(*handles.find(first), 3);
  EXPECT_EQ(*handles.find(second), 2);
}

TEST(RecycledHandles, KnowsNoOtherNumbers) {
  RecycledHandles<int> handles(0x1000);
  const std::uintptr_t handle = handles.add(std::make_shared<int>(1));
  for (const std::uintptr_t other : {std::uintptr_t{0}, std::uintptr_t{0xfff}, handle + 1,
                                     handle + RecycledHandles<int>::stride}) {
    EXPECT_EQ(handles.find(other), nullptr) << other;
    EXPECT_EQ(handles.remove(other), nullptr) << other;
  }
  EXPECT_EQ(*handles.remove(handle), 1);
  EXPECT_EQ(handles.remove(handle), nullptr);
  EXPECT_EQ(handles.size(), 0u);
}

TEST(RecycledHandles, KeepsAliveWhatIsLookedUp) {
  RecycledHandles<int> handles(0x1000);
  const std::uintptr_t handle = handles.add(std::make_shared<int>(1));
  const std::shared_ptr<int> found = handles.find(handle);
  handles.remove(handle);
  EXPECT_EQ(*found, 1);
}

TEST(RecycledHandles, RemovesAllThatAreGone) {
  RecycledHandles<int> handles(0x1000);
  const std::uintptr_t odd = handles.add(std::make_shared<int>(1));
  const std::uintptr_t even = handles.add(std::make_shared<int>(2));
  handles.remove_if([](int value) { return value % 2 == 1; });
  EXPECT_EQ(handles.find(odd), nullptr);
  EXPECT_EQ(*handles.find(even), 2);
  EXPECT_EQ(handles.add(std::make_shared<int>(3)), odd);
}

}  // namespace
}  // namespace tern::sim
