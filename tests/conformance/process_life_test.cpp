// The beginning and the end of a process: static buffers that outlive main(), and a forked child,
// which has the memory of its parent but not its threads and drivers.

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "support/forked_child.hpp"
#include "tern/backends/catalog.hpp"
#include "tern/buffer/array.hpp"
#include "tern/buffer/buffer.hpp"
#include "tern/coherence/unified_buffer.hpp"
#include "tern/device/stream.hpp"
#include "tern/memory/default_resource.hpp"

namespace tern::test {
namespace {

class ProcessLifeDeathTest : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Devices, ProcessLifeDeathTest,
                         testing::Values("host", "sim", "opencl", "cuda?driver=sim"),
                         [](const auto& param) {
                           const std::string spec = param.param;
                           return spec.substr(0, spec.find('?'));
                         });

/// What a program has that keeps its state in variables of namespace scope.
struct Everything {
  explicit Everything(const char* spec)
      : device(open_device(spec)),
        stream(device),
        buffer(device, Shape{1000}, DType::f32),
        array(Array<int>::uninitialized(device, 1000, {.stream = stream})),
        unified(Shape{1000}, {.device = device}) {
    buffer.fill(1.0f, stream);
    array.fill(2, stream);
    unified.fill(3);
  }

  Device device;
  Stream stream;
  Buffer buffer;
  Array<int> array;
  UnifiedBuffer<int> unified;
};

TEST_P(ProcessLifeDeathTest, StaticBuffersEndBehindMainWithWorkUnderWay) {
  if (!try_open_device(GetParam())) GTEST_SKIP() << "there is no " << GetParam();
  // In a process that begins anew, because the devices of this one are no use to a fork.
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        static Everything everything(GetParam());
        std::exit(0);
      },
      testing::ExitedWithCode(0), "^$");
}

TEST_P(ProcessLifeDeathTest, BuffersThatNobodyEndsAreLeftToTheSystem) {
  if (!try_open_device(GetParam())) GTEST_SKIP() << "there is no " << GetParam();
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        static auto& everything = *new Everything(GetParam());
        static_cast<void>(everything);
        std::exit(0);
      },
      testing::ExitedWithCode(0), "^$");
}

TEST(ForkedChild, UsesMemoryOfTheHostWhoseWorkWasWaitedFor) {
  if (!children_can_allocate) GTEST_SKIP() << "a forked child cannot allocate here";
  Everything made("host");
  made.stream.synchronize();
  made.device.synchronize();
  EXPECT_EQ(in_a_forked_child([&] {
              Everything& e = made;
              // Read and written where it is.
              if (e.buffer.read_host<float>()[999] != 1.0f) return false;
              e.buffer.rw_host<float>()[7] = 5.0f;
              if (e.buffer.read_host<float>()[7] != 5.0f) return false;
              if (e.unified.read_host()[999] != 3) return false;
              e.unified.rw_host()[7] = 6;
              if (e.unified.load_host(7) != 6) return false;
              e.unified.store_host(8, 9);
              return e.unified.read_host()[8] == 9;
            }),
            0);
  EXPECT_EQ(made.buffer.read_host<float>()[7], 5.0f) << "pages of a pool are shared";
  EXPECT_EQ(made.unified.read_host()[7], 6);
}

TEST(ForkedChild, CopiesBlockingWithoutAStream) {
  if (!children_can_allocate) GTEST_SKIP() << "a forked child cannot allocate here";
  Everything made("host");
  made.device.synchronize();
  EXPECT_EQ(in_a_forked_child([&] {
              const std::vector<float> floats = made.buffer.to_vector<float>();
              const std::vector<int> ints = made.array.to_vector();
              return floats == std::vector<float>(1000, 1.0f) &&
                     ints == std::vector<int>(1000, 2) &&
                     made.unified.to_vector() == std::vector<int>(1000, 3);
            }),
            0);
}

TEST(ForkedChild, IsRefusedWhateverNeedsAThreadOfTheParent) {
  if (!children_can_allocate) GTEST_SKIP() << "a forked child cannot allocate here";
  Everything made("host");
  made.device.synchronize();
  EXPECT_EQ(in_a_forked_child([&] {
              return is_after_fork(made.buffer.try_fill(2.0f, made.stream)) &&
                     is_after_fork(Stream::try_make(made.device)) &&
                     is_after_fork(made.stream.try_synchronize()) &&
                     is_after_fork(made.device.try_synchronize()) &&
                     is_after_fork(try_default_resource(made.device));
            }),
            0);
}

TEST(ForkedChild, EndsWhatItHasOfItsParentAndOpensItsOwn) {
  if (!children_can_allocate || !children_can_start_threads) GTEST_SKIP();
  auto made = std::make_unique<Everything>("host");
  EXPECT_EQ(in_a_forked_child([&] {
              made.reset();  // with work under way
              Everything own("host");
              own.stream.synchronize();
              return own.buffer.read_host<float>()[999] == 1.0f && own.unified.read_host()[0] == 3;
            }),
            0);
  made->stream.synchronize();
  EXPECT_EQ(made->buffer.read_host<float>()[999], 1.0f);
}

}  // namespace
}  // namespace tern::test
