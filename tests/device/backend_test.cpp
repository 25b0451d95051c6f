#include "tern/device/backend.hpp"

#include <gtest/gtest.h>

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
  Result<NativeEvent> create_event(const EventOptions&) noexcept override { return NativeEvent{3}; }
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
  expect_missing(backend.map(nullptr, {}));
  expect_missing(backend.unmap(nullptr, 64));
  expect_missing(backend.set_access(nullptr, 64, PageAccess::read));
  expect_missing(backend.copy_from_peer({}, nullptr, backend, nullptr, 64));
  expect_missing(backend.elapsed_ns({}, {}));
  expect_missing(backend.call_host({}, nullptr, nullptr));
  expect_missing(backend.prefetch({}, nullptr, 64, Place::host()));
  expect_missing(backend.advise(nullptr, 64, Advice::set_read_mostly, Place::host()));
  expect_missing(backend.load_kernel({}));
  expect_missing(backend.launch({}, {}, {}, {}));
}

TEST(Backend, HasNoPeersAndIgnoresNotesUnlessItSaysOtherwise) {
  BareBackend backend;
  const Result<bool> enabled = backend.enable_peer_access(backend);
  ASSERT_TRUE(enabled);
  EXPECT_FALSE(*enabled);
  backend.unload_kernel({});
  backend.note_suballocate({}, {});
  backend.note_subrelease({}, {});
}

}  // namespace
}  // namespace tern
