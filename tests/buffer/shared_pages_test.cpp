#include "buffer/shared_pages.hpp"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "support/ladder.hpp"
#include "support/on_device.hpp"
#include "support/open_descriptors.hpp"
#include "support/refused.hpp"
#include "support/share_memory_file.hpp"
#include "support/sharing_devices.hpp"
#include "support/simulated.hpp"
#include "tern/backends/sim.hpp"

namespace tern::share {
namespace {

class SharedPagesOn : public test::OnDevice {
 protected:
  void SetUp() override {
    test::OnDevice::SetUp();
    if (IsSkipped()) return;
    // Drivers open files when memory is shared for the first time.
    Descriptor exported;
    const SharedPages mine = SharedPages::try_create(device, page(), exported).value();
    static_cast<void>(SharedPages::try_import(device, exported.get(), page()).value());
    EXPECT_FALSE(SharedPages::try_import(device, STDIN_FILENO, page()));
  }
  [[nodiscard]] std::size_t page() const { return device.info().page_bytes; }
  void write(void* to, const test::Bytes& bytes) {
    stream.copy(to, bytes.data(), bytes.size());
    stream.synchronize();
  }
  test::Bytes read(const void* from, std::size_t bytes) {
    test::Bytes result(bytes);
    stream.copy(result.data(), from, bytes);
    stream.synchronize();
    return result;
  }
};
INSTANTIATE_TEST_SUITE_P(Devices, SharedPagesOn, testing::ValuesIn(test::sharing_devices()),
                         test::spec_name);

TEST_P(SharedPagesOn, AreTheSameMemoryAtTwoAddresses) {
  Descriptor exported;
  SharedPages mine = SharedPages::try_create(device, 2 * page(), exported).value();
  SharedPages theirs = SharedPages::try_import(device, exported.get(), 2 * page()).value();
  EXPECT_NE(mine.address(), theirs.address());
  write(static_cast<std::byte*>(mine.address()) + page() - 50, test::sample(100));
  EXPECT_EQ(read(static_cast<std::byte*>(theirs.address()) + page() - 50, 100), test::sample(100));
  write(static_cast<std::byte*>(theirs.address()) + page() - 50, test::sample(100, 7));
  EXPECT_EQ(read(static_cast<std::byte*>(mine.address()) + page() - 50, 100), test::sample(100, 7));
}

TEST_P(SharedPagesOn, LiveUntilTheLastMappingAndDescriptorIsGone) {
  Descriptor exported;
  {
    SharedPages first = SharedPages::try_create(device, page(), exported).value();
    write(first.address(), test::sample(100));
    EXPECT_TRUE(first.try_unmap());
    EXPECT_EQ(first.address(), nullptr);
    EXPECT_TRUE(first.try_unmap());
  }
  SharedPages again = SharedPages::try_import(device, exported.get(), page()).value();
  exported = Descriptor();
  EXPECT_EQ(read(again.address(), 100), test::sample(100));
}

TEST_P(SharedPagesOn, LeakNoDescriptor) {
  const auto share = [&] {
    Descriptor exported;
    const SharedPages mine = SharedPages::try_create(device, page(), exported).value();
    const SharedPages theirs = SharedPages::try_import(device, exported.get(), page()).value();
    EXPECT_FALSE(SharedPages::try_import(device, exported.get(), 2 * page()));
  };
  share();
  const std::size_t before = test::open_descriptors();
  for (int i = 0; i < 10; ++i) share();
  EXPECT_EQ(test::open_descriptors(), before);
}

TEST_P(SharedPagesOn, AreNotMadeFromOtherFiles) {
  const std::size_t before = test::open_descriptors();
  EXPECT_FALSE(SharedPages::try_import(device, STDIN_FILENO, page()));
  {
    const Descriptor unsealed = test::share_memory_file(page(), false);
    EXPECT_FALSE(SharedPages::try_import(device, unsealed.get(), page()));
    const Descriptor small = test::share_memory_file(page() / 2);
    EXPECT_FALSE(SharedPages::try_import(device, small.get(), page()));
  }
  EXPECT_FALSE(SharedPages::try_import(device, 1 << 20, page()));
  EXPECT_EQ(test::open_descriptors(), before);
}

TEST_P(SharedPagesOn, HaveWholePages) {
  EXPECT_EQ(SharedPages::try_page_bytes(device, 0, {}).value(), page());
  EXPECT_EQ(SharedPages::try_page_bytes(device, 1, {}).value(), page());
  EXPECT_EQ(SharedPages::try_page_bytes(device, page(), {}).value(), page());
  EXPECT_EQ(SharedPages::try_page_bytes(device, page() + 1, {}).value(), 2 * page());
  test::refused(SharedPages::try_page_bytes(device, ~std::size_t{0}, {}), ErrorCode::size_overflow);
}

TEST(SharedPagesChecks, NeedADeviceThatCanShare) {
  test::refused(SharedPages::try_page_bytes(Device(), 1, {}), ErrorCode::invalid_device);
  const Device device = sim::open({.keeps_contents = false});
  const Failure failure =
      test::refused(SharedPages::try_page_bytes(device, 1, {}), ErrorCode::unsupported);
  EXPECT_EQ(failure.string("what"), "shareable_memory");
  EXPECT_EQ(failure.string("device"), device.spec());
}

TEST(SharedPagesFaults, LeaveNothingBehind) {
  const Device device = sim::open({.memory_bytes = 8 * mib});
  const std::size_t page = device.info().page_bytes;
  const std::size_t before = test::open_descriptors();
  for (const char* fault :
       {"allocate#1=oom", "map#1=fail", "map#2=fail", "map#3=fail", "release#1=fail,map#3=fail"}) {
    sim::set_faults(device, fault);
    Descriptor exported;
    EXPECT_FALSE(SharedPages::try_create(device, page, exported)) << fault;
  }
  sim::set_faults(device, "");
  {
    // All of the memory is still there, and not more.
    Descriptor exported;
    const SharedPages all = SharedPages::try_create(device, 4 * page, exported).value();
    Descriptor more;
    test::refused(SharedPages::try_create(device, page, more), ErrorCode::out_of_memory);
    // Imports need addresses only.
    EXPECT_TRUE(SharedPages::try_import(device, exported.get(), 4 * page));
  }
  EXPECT_EQ(test::open_descriptors(), before);
}

}  // namespace
}  // namespace tern::share
