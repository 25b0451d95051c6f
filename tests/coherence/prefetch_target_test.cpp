#include "tern/detail/coherence/prefetch_target.hpp"

#include <gtest/gtest.h>

#include "support/cuda_bench.hpp"
#include "tern/backends/catalog.hpp"
#include "tern/backends/sim.hpp"

namespace tern {
namespace {

TEST(PrefetchTarget, IsAllOfTheStorageOfAManagedBuffer) {
  const std::vector<Device> devices = sim::open_peers({}, 2);
  const Buffer buffer(devices[0], {4096}, DType::u8, {.kind = MemoryKind::managed});
  const auto whole = try_managed_target(buffer).value();
  const auto part = try_managed_target(buffer.byte_view(100, 50)).value();
  EXPECT_EQ(whole->identity(), part->identity());
  EXPECT_EQ(part->bytes(), 4096u);
  EXPECT_EQ(part->device(), devices[0]);
  EXPECT_EQ(part->text(), "buffer " + std::to_string(buffer.id().value));
  EXPECT_EQ(part->managed()->size_bytes(), 4096u);
  EXPECT_TRUE(whole->check(Place::host(), {}));
  EXPECT_TRUE(whole->check(devices[1].place(), {}));
  EXPECT_EQ(cuda::code(whole->check(Place::device(DeviceId{99999}), {})), "invalid_device");
  const Device host = open_device("host");
  EXPECT_EQ(cuda::code(whole->check(host.place(), {})), "device_mismatch");
  const Stream stream(devices[0]);
  EXPECT_TRUE(whole->try_prefetch({0, 64}, devices[1].place(), stream, {}, {})->is_sent());
  stream.synchronize();
  EXPECT_EQ(cuda::code(try_managed_target(Buffer(devices[0], {64}, DType::u8))),
            "invalid_argument");
}

}  // namespace
}  // namespace tern
