#include "backends/cuda/cuda_pages.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstddef>
#include <optional>
#include <string>

#include "support/allocation_counter.hpp"
#include "support/cuda_bench.hpp"
#include "support/open_descriptors.hpp"

namespace tern::cuda {
namespace {

using sim::page_bytes;

std::byte* at(void* address, std::size_t offset) {
  return static_cast<std::byte*>(address) + offset;
}

sim::LiveHandles live_pages(const sim::FakeDriver& fake) {
  sim::LiveHandles live = fake.live();
  live.contexts = live.streams = 0;
  return live;
}

/// Three pages of addresses, with the first two mapped.
struct PagesBench : CudaBench {
  PagesBench() {
    for (NativePages& handle : pages) handle = device().create_pages(page_bytes).value();
    for (std::size_t i = 0; i < 2; ++i) {
      EXPECT_EQ(why(device().map(at(base, i * page_bytes), pages[i])), "");
    }
  }
  void give_back() {
    for (std::size_t i = 0; i < 2; ++i) {
      EXPECT_EQ(why(device().unmap(at(base, i * page_bytes), page_bytes)), "");
      EXPECT_EQ(why(device().release_pages(pages[i])), "");
    }
    EXPECT_EQ(why(device().unreserve(base, 3 * page_bytes)), "");
    EXPECT_EQ(live_pages(fake), sim::LiveHandles{});
  }

  void* base = device().reserve(3 * page_bytes).value();
  NativePages pages[2];
};

TEST(CudaPages, AreMappedUsedAndUnmapped) {
  PagesBench bench;
  EXPECT_EQ(bench.device().info().page_bytes, page_bytes);
  ASSERT_EQ(why(bench.device().set_access(bench.base, 2 * page_bytes, PageAccess::read_write)), "");
  // Across the seam.
  bench.write(at(bench.base, page_bytes - 500), numbered(1000));
  ASSERT_EQ(why(bench.device().set_access(bench.base, 2 * page_bytes, PageAccess::read)), "");
  EXPECT_EQ(bench.read(at(bench.base, page_bytes - 500), 1000), numbered(1000));
  ASSERT_EQ(why(bench.device().set_access(bench.base, page_bytes, PageAccess::none)), "");
  const PointerInfo info = bench.device().pointer_info(at(bench.base, page_bytes + 5)).value();
  EXPECT_EQ(info.kind, MemoryKind::mapped);
  EXPECT_EQ(info.base, at(bench.base, page_bytes));
  EXPECT_EQ(info.bytes, page_bytes);
  EXPECT_EQ(bench.device().pointer_info(at(bench.base, 2 * page_bytes))->kind, MemoryKind::host);
  bench.give_back();
  EXPECT_EQ(bench.device().pointer_info(bench.base)->kind, MemoryKind::host);
}

TEST(CudaPages, AreNotMappedOverOthersOrOutsideOfAReservation) {
  PagesBench bench;
  const NativePages more = bench.device().create_pages(2 * page_bytes).value();
  bench.fake.clear_failures();
  const auto refused = [&](const Result<void>& result, const char* reason) {
    EXPECT_EQ(code(result), "invalid_argument");
    EXPECT_NE(why(result).find(reason), std::string::npos) << why(result);
  };
  refused(bench.device().map(at(bench.base, page_bytes), more), "already has mapped pages");
  refused(bench.device().map(bench.base, more), "already has mapped pages");
  refused(bench.device().map(at(bench.base, 2 * page_bytes), more), "not entirely reserved");
  refused(bench.device().map(at(bench.base, 3 * page_bytes), more), "not entirely reserved");
  refused(bench.device().map(reinterpret_cast<void*>(page_bytes), more), "not entirely reserved");
  refused(bench.device().unmap(bench.base, 2 * page_bytes), "not one whole mapping");
  refused(bench.device().unmap(at(bench.base, 2 * page_bytes), page_bytes), "not one whole");
  refused(bench.device().unreserve(bench.base, 3 * page_bytes), "has pages mapped");
  refused(bench.device().unreserve(bench.base, page_bytes), "not a whole reservation");
  refused(bench.device().unreserve(at(bench.base, page_bytes), page_bytes), "not a whole");
  const PageAccess access = PageAccess::read_write;
  refused(bench.device().set_access(bench.base, 3 * page_bytes, access),
          "not covered by whole mappings");
  refused(bench.device().set_access(at(bench.base, 1), page_bytes, access),
          "not covered by whole mappings");
  refused(bench.device().set_access(bench.base, page_bytes / 2, access),
          "not covered by whole mappings");
  for (const char* call : {"cuMemMap", "cuMemUnmap", "cuMemAddressFree", "cuMemSetAccess"}) {
    EXPECT_EQ(bench.fake.calls(call), 0u) << call;
  }
  // In the middle of a mapping of two pages.
  void* const other = bench.device().reserve(2 * page_bytes).value();
  ASSERT_EQ(why(bench.device().map(other, more)), "");
  refused(bench.device().map(at(other, page_bytes), bench.pages[0]), "already has mapped pages");
  EXPECT_EQ(why(bench.device().unmap(other, 2 * page_bytes)), "");
  EXPECT_EQ(why(bench.device().unreserve(other, 2 * page_bytes)), "");
  EXPECT_EQ(why(bench.device().release_pages(more)), "");
  bench.give_back();
}

TEST(CudaPages, AreKnownByNumbersThatAreNeverUsedAgain) {
  CudaBench bench;
  void* const base = bench.device().reserve(page_bytes).value();
  const NativePages first = bench.device().create_pages(page_bytes).value();
  ASSERT_EQ(why(bench.device().release_pages(first)), "");
  const NativePages second = bench.device().create_pages(page_bytes).value();
  EXPECT_NE(first.value, second.value);
  EXPECT_EQ(code(bench.device().map(base, first)), "use_after_free");
  EXPECT_EQ(code(bench.device().release_pages(first)), "use_after_free");
  EXPECT_EQ(why(bench.device().release_pages(second)), "");
  EXPECT_EQ(why(bench.device().unreserve(base, page_bytes)), "");
  EXPECT_EQ(code(bench.device().unreserve(base, page_bytes)), "invalid_argument");
}

TEST(CudaPages, StayWhereTheyAreIfTheDriverFails) {
  PagesBench bench;
  ASSERT_EQ(why(bench.device().set_access(bench.base, 2 * page_bytes, PageAccess::read_write)), "");
  const auto failing = [&](const char* call, auto body) {
    for (const char* one : {call, "cuCtxPushCurrent"}) {
      bench.fake.fail_call(one, 1, CUDA_ERROR_UNKNOWN);
      EXPECT_EQ(code(body()), "driver") << one;
    }
  };
  failing("cuMemUnmap", [&] { return bench.device().unmap(bench.base, page_bytes); });
  failing("cuMemRelease", [&] { return bench.device().release_pages(bench.pages[0]); });
  failing("cuMemSetAccess",
          [&] { return bench.device().set_access(bench.base, page_bytes, PageAccess::none); });
  failing("cuMemCreate", [&] { return bench.device().create_pages(page_bytes); });
  failing("cuMemAddressReserve", [&] { return bench.device().reserve(page_bytes); });
  EXPECT_EQ(bench.device().pointer_info(bench.base)->kind, MemoryKind::mapped);
  bench.write(bench.base, numbered(100));
  void* const empty = bench.device().reserve(page_bytes).value();
  failing("cuMemMap", [&] { return bench.device().map(empty, bench.pages[0]); });
  EXPECT_EQ(bench.device().pointer_info(empty)->kind, MemoryKind::host);
  failing("cuMemAddressFree", [&] { return bench.device().unreserve(empty, page_bytes); });
  EXPECT_EQ(why(bench.device().unreserve(empty, page_bytes)), "");
  bench.give_back();
}

TEST(CudaPages, CallMoreThanThereIsOutOfMemory) {
  CudaBench bench;
  bench.fake.fail_call("cuMemAddressReserve", 1, CUDA_ERROR_INVALID_VALUE);
  const Result<void*> addresses = bench.device().reserve(page_bytes);
  ASSERT_EQ(code(addresses), "out_of_memory");
  EXPECT_EQ(addresses.failure().number("requested"), page_bytes);
  const Result<NativePages> pages = bench.device().create_pages(66 * mib);
  ASSERT_EQ(code(pages), "out_of_memory");
  EXPECT_EQ(pages.failure().string("call"), "cuMemCreate");
  EXPECT_EQ(pages.failure().number("requested"), 66 * mib);
}

CUmemAccess_flags granted(const CudaBench& bench, const void* address, int device) {
  return bench.fake.access(address, static_cast<std::size_t>(device));
}

TEST(CudaPages, LetAPeerInNowAndLater) {
  PagesBench bench;
  ASSERT_EQ(why(bench.device().set_access(bench.base, page_bytes, PageAccess::read)), "");
  EXPECT_EQ(granted(bench, bench.base, 1), 0u);
  const Result<bool> enabled = bench.device(1).enable_peer_access(bench.device());
  ASSERT_EQ(why(enabled), "");
  EXPECT_TRUE(*enabled);
  // As the device itself: what may be read, and what nobody may use.
  EXPECT_EQ(granted(bench, bench.base, 1), 1u);
  EXPECT_EQ(granted(bench, at(bench.base, page_bytes), 1), 0u);
  ASSERT_EQ(why(bench.device().set_access(bench.base, 2 * page_bytes, PageAccess::read_write)), "");
  for (const int device : {0, 1}) {
    EXPECT_EQ(granted(bench, bench.base, device), 3u);
    EXPECT_EQ(granted(bench, at(bench.base, page_bytes), device), 3u);
  }
  // A second time changes nothing.
  bench.fake.clear_failures();
  EXPECT_TRUE(bench.device(1).enable_peer_access(bench.device()).value());
  EXPECT_EQ(bench.fake.calls("cuMemSetAccess"), 0u);
  bench.give_back();
}

TEST(CudaPages, LetAPeerInWhollyOrNotAtAll) {
  PagesBench bench;
  ASSERT_EQ(why(bench.device().set_access(bench.base, 2 * page_bytes, PageAccess::read)), "");
  bench.fake.fail_call("cuMemSetAccess", 2, CUDA_ERROR_UNKNOWN);
  EXPECT_EQ(code(bench.device(1).enable_peer_access(bench.device())), "driver");
  EXPECT_EQ(granted(bench, bench.base, 1), 0u);
  EXPECT_TRUE(bench.device(1).enable_peer_access(bench.device()).value());
  EXPECT_EQ(granted(bench, bench.base, 1), 1u);
  // And what is set later is set for both or for neither.
  bench.fake.clear_failures();
  ASSERT_EQ(why(bench.device().set_access(bench.base, page_bytes, PageAccess::read_write)), "");
  EXPECT_EQ(bench.fake.calls("cuMemSetAccess"), 1u);
  bench.give_back();
}

TEST(CudaPages, AreGivenBackIfTheyCannotBeRemembered) {
  if (!test::HeapExhausted::is_possible()) GTEST_SKIP();
  PagesBench bench;
  const NativePages more = bench.device().create_pages(page_bytes).value();
  const sim::LiveHandles before = live_pages(bench.fake);
  Backend& device = bench.device();
  const auto refused = [&](const char* what, auto make) {
    std::optional<Failure> failure;
    {
      const test::HeapExhausted exhausted;
      if (const auto made = make(); !made) failure = made.failure();
    }
    ASSERT_TRUE(failure) << what;
    EXPECT_EQ(failure->code(), ErrorCode::out_of_memory);
    EXPECT_NE(failure->text().find("for the record of pages"), std::string::npos)
        << failure->text();
    EXPECT_EQ(live_pages(bench.fake), before) << what;
  };
  const auto set_access = [&] {
    return device.set_access(bench.base, 2 * page_bytes, PageAccess::read);
  };
  refused("set_access", set_access);
  EXPECT_EQ(why(set_access()), "");
  refused("reserve", [&] { return device.reserve(page_bytes); });
  refused("create_pages", [&] { return device.create_pages(page_bytes); });
  refused("map", [&] { return device.map(at(bench.base, 2 * page_bytes), more); });
  refused("enable_peer_access", [&] { return bench.device(1).enable_peer_access(device); });
  EXPECT_TRUE(bench.device(1).enable_peer_access(device).value());
  EXPECT_EQ(why(device.release_pages(more)), "");
  bench.give_back();
}

TEST(CudaPages, AreSharedThroughADescriptor) {
  CudaBench bench;
  const std::size_t before = test::open_descriptors();
  Backend& device = bench.device();
  void* base = device.reserve(2 * page_bytes).value();
  const NativePages mine = device.create_shareable_pages(page_bytes).value();
  const int descriptor = device.export_pages(mine).value();
  EXPECT_NE(fcntl(descriptor, F_GETFD) & FD_CLOEXEC, 0);
  const NativePages theirs = device.import_pages(descriptor, page_bytes).value();
  close(descriptor);
  ASSERT_EQ(why(device.map(base, mine)), "");
  ASSERT_EQ(why(device.map(at(base, page_bytes), theirs)), "");
  ASSERT_EQ(why(device.set_access(base, 2 * page_bytes, PageAccess::read_write)), "");
  bench.write(at(base, 500), numbered(1000));
  EXPECT_EQ(bench.read(at(base, page_bytes + 500), 1000), numbered(1000));
  for (const NativePages pages : {mine, theirs}) EXPECT_EQ(why(device.release_pages(pages)), "");
  EXPECT_EQ(code(device.export_pages(mine)), "use_after_free");
  for (const std::size_t offset : {std::size_t{0}, page_bytes}) {
    EXPECT_EQ(why(device.unmap(at(base, offset), page_bytes)), "");
  }
  EXPECT_EQ(why(device.unreserve(base, 2 * page_bytes)), "");
  EXPECT_EQ(live_pages(bench.fake), sim::LiveHandles{});
  EXPECT_EQ(test::open_descriptors(), before);
}

TEST(CudaPages, AreSharedOnlyIfTheyWereMadeForIt) {
  CudaBench bench;
  Backend& device = bench.device();
  const NativePages plain = device.create_pages(page_bytes).value();
  EXPECT_EQ(code(device.export_pages(plain)), "invalid_argument");
  EXPECT_EQ(bench.fake.calls("cuMemExportToShareableHandle"), 0u);
  EXPECT_EQ(why(device.release_pages(plain)), "");

  const NativePages shared = device.create_shareable_pages(page_bytes).value();
  const int descriptor = device.export_pages(shared).value();
  const auto refused = device.import_pages(STDIN_FILENO, page_bytes);
  ASSERT_EQ(code(refused), "bad_format");
  EXPECT_EQ(refused.failure().string("call"), "cuMemImportFromShareableHandle");
  // The driver knows the size, and tells when the pages are mapped.
  const NativePages lie = device.import_pages(descriptor, 2 * page_bytes).value();
  void* base = device.reserve(2 * page_bytes).value();
  EXPECT_FALSE(device.map(base, lie));
  bench.fake.fail_call("cuMemCreate", 1, CUDA_ERROR_UNKNOWN);
  EXPECT_EQ(code(device.create_shareable_pages(page_bytes)), "driver");
  bench.fake.fail_call("cuMemExportToShareableHandle", 1, CUDA_ERROR_UNKNOWN);
  EXPECT_EQ(code(device.export_pages(shared)), "driver");
  bench.fake.fail_call("cuMemImportFromShareableHandle", 1, CUDA_ERROR_UNKNOWN);
  EXPECT_EQ(code(device.import_pages(descriptor, page_bytes)), "driver");
  for (const NativePages pages : {shared, lie}) EXPECT_EQ(why(device.release_pages(pages)), "");
  EXPECT_EQ(why(device.unreserve(base, 2 * page_bytes)), "");
  EXPECT_EQ(live_pages(bench.fake), sim::LiveHandles{});
  close(descriptor);
}

}  // namespace
}  // namespace tern::cuda
