#include "coherence/copy_stream.hpp"

#include <gtest/gtest.h>

#include "tern/backends/catalog.hpp"
#include "tern/backends/sim.hpp"

namespace tern::test {
namespace {

StorageHandle make_storage(const Device& device) {
  StorageHandle storage = Storage::try_make(device, 64, {}).value();
  EXPECT_TRUE(storage->try_ensure({}, CallSite::here()));
  return storage;
}

TEST(CopyStream, IsTheCopyStreamOfTheDeviceIfNothingHasToBeWaitedFor) {
  const Device device = open_device("sim");
  const StorageHandle storage = make_storage(device);
  ASSERT_TRUE(storage->uses().try_wait(Access::discard));
  const Result<CopyStream> chosen = CopyStream::try_choose(device, *storage, Access::read);
  ASSERT_TRUE(chosen);
  EXPECT_EQ(chosen->stream.id(), device.try_copy_stream()->id());
  EXPECT_FALSE(is_lost(device));
}

}  // namespace
}  // namespace tern::test
