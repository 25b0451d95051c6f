#include "tern/detail/device/backend.hpp"

#include <gtest/gtest.h>

#include "tern/device/device_info.hpp"
#include "tern/device/operations.hpp"

namespace tern {
namespace {

/// A backend with the least that must be implemented.
class BareBackend final : public Backend {
 public:
  BareBackend() {
    info_.backend = "bare";
    info_.spec = "bare:0";
  }
  const DeviceInfo& info() const noexcept override { return info_; }
  Result<MemoryInfo> memory() noexcept override { return MemoryInfo{}; }
  Result<void> synchronize() noexcept override { return {}; }
  Result<void*> allocate(MemoryKind, std::size_t, std::size_t, CallSite, Tag) noexcept override {
    return nullptr;
  }
  Result<void> release(void*, CallSite) noexcept override { return {}; }
  Result<PointerInfo> pointer_info(const void*) noexcept override { return PointerInfo{}; }
  Result<void> copy(const Submission&, void*, const void*, std::size_t) noexcept override {
    return {};
  }
  Result<void> copy_2d(const Submission&, const Copy2D&) noexcept override { return {}; }
  Result<void> fill(const Submission&, void*, std::size_t, const Pattern&) noexcept override {
    return {};
  }
  NativeStream default_stream() noexcept override { return {1}; }
  Result<NativeStream> create_stream(const StreamOptions&) noexcept override {
    return NativeStream{2};
  }
  void destroy_stream(NativeStream) noexcept override {}
  Result<bool> query(NativeStream) noexcept override { return true; }
  Result<void> synchronize(NativeStream) noexcept override { return {}; }
  Result<NativeEvent> create_event(bool) noexcept override { return NativeEvent{3}; }
  void destroy_event(NativeEvent) noexcept override {}
  Result<void> record(const Submission&, NativeEvent) noexcept override { return {}; }
  Result<void> wait(const Submission&, NativeEvent) noexcept override { return {}; }
  Result<bool> query(NativeEvent) noexcept override { return true; }
  Result<void> synchronize(NativeEvent) noexcept override { return {}; }

 private:
  DeviceInfo info_;
};

template <class T>
void expect_missing(const Result<T>& result) {
  ASSERT_FALSE(result);
  EXPECT_EQ(result.failure().code(), ErrorCode::unsupported);
  EXPECT_EQ(result.failure().string("device"), "bare:0");
  EXPECT_FALSE(result.failure().string("what")->empty());
}

TEST(Backend, RefusesEveryOptionalPrimitiveItDoesNotImplement) {
  BareBackend backend;
  expect_missing(backend.allocate_async({}, 64, 64));
  expect_missing(backend.release_async({}, nullptr));
  expect_missing(backend.register_host(nullptr, 64));
  expect_missing(backend.unregister_host(nullptr));
  expect_missing(backend.reserve(64));
  expect_missing(backend.unreserve(nullptr, 64));
  expect_missing(backend.create_pages(64));
  expect_missing(backend.release_pages({}));
  expect_missing(backend.create_shareable_pages(64));
  expect_missing(backend.export_pages({}));
  expect_missing(backend.import_pages(0, 64));
  expect_missing(backend.map(nullptr, {}));
  expect_missing(backend.unmap(nullptr, 64));
  expect_missing(backend.set_access(nullptr, 64, PageAccess::read));
  expect_missing(backend.copy_from_peer({}, nullptr, backend, nullptr, 64));
  expect_missing(backend.elapsed_ns({}, {}));
  expect_missing(backend.call_host({}, nullptr, nullptr));
  expect_missing(backend.prefetch({}, nullptr, 64, Place::host()));
  const PrefetchRange range[] = {{nullptr, 64, Place::host()}};
  std::size_t submitted = 7;
  expect_missing(backend.prefetch_batch({}, range, submitted));
  EXPECT_EQ(submitted, 0u);
  expect_missing(backend.discard({}, nullptr, 64, std::nullopt));
  expect_missing(backend.advise(nullptr, 64, Advice::set_read_mostly, Place::host()));
  expect_missing(backend.load_kernel({}));
  expect_missing(backend.launch({}, {}, {}, {}));
}

TEST(LaunchSize, HasAThreadForEachElement) {
  const auto blocks = [](std::uint64_t count, std::uint32_t threads) {
    const LaunchSize size = LaunchSize::for_elements(count, threads);
    EXPECT_EQ(size.block[0], threads);
    EXPECT_EQ(size.grid[1] * size.grid[2] * size.block[1] * size.block[2], 1u);
    return size.grid[0];
  };
  EXPECT_EQ(blocks(0, 64), 0u);
  EXPECT_EQ(blocks(1, 64), 1u);
  EXPECT_EQ(blocks(64, 64), 1u);
  EXPECT_EQ(blocks(65, 64), 2u);
  EXPECT_EQ(blocks(0x7FFF'FFFFull * 1024, 1024), 0x7FFF'FFFFu);
  EXPECT_EQ(LaunchSize::for_elements(1000).grid[0], 4u);
  const Result<LaunchSize> large = LaunchSize::try_for_elements(0x7FFF'FFFFull * 1024 + 1, 1024);
  ASSERT_FALSE(large);
  EXPECT_EQ(large.failure().code(), ErrorCode::size_overflow);
  EXPECT_EQ(large.failure().number("blocks"), 0x8000'0000u);
  EXPECT_EQ(LaunchSize::try_for_elements(~0ull, 1).failure().code(), ErrorCode::size_overflow);
  const Result<LaunchSize> none = LaunchSize::try_for_elements(5, 0);
  ASSERT_FALSE(none);
  EXPECT_EQ(none.failure().code(), ErrorCode::invalid_argument);
  EXPECT_EQ(none.failure().string("name"), "block_threads");
}

TEST(Backend, CallsAFunctionWithNothingMadeCurrent) {
  BareBackend backend;
  int calls = 0;
  EXPECT_TRUE(backend.call_current([](void* count) { ++*static_cast<int*>(count); }, &calls));
  EXPECT_EQ(calls, 1);
}

TEST(Backend, HasNoPeersAndIgnoresNotesUnlessItSaysOtherwise) {
  BareBackend backend;
  const Result<bool> enabled = backend.enable_peer_access(backend);
  ASSERT_TRUE(enabled);
  EXPECT_FALSE(*enabled);
  backend.unload_kernel({});
  const Result<KernelInfo> info = backend.kernel_info({});
  ASSERT_TRUE(info);
  EXPECT_EQ(info->parameter_count, std::nullopt);
  EXPECT_EQ(info->block_threads, 0u);
  backend.note_suballocate({}, {});
  backend.note_subrelease({}, {});
}

}  // namespace
}  // namespace tern
