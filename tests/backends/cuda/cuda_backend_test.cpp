#include "backends/cuda/cuda_backend.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "backends/cuda/driver_result.hpp"
#include "support/allocation_counter.hpp"
#include "support/cuda_bench.hpp"
#include "support/forked_child.hpp"
#include "tern/device/device.hpp"
#include "tern/device/event.hpp"
#include "tern/device/stream.hpp"

namespace tern::cuda {
namespace {

// --- What it is

TEST(CudaBackend, CountsFilesThatTheSystemHasCachedAsFreeOnAnIntegratedDevice) {
  sim::FakeDriverOptions options = sim::bench_options();
  options.cached_file_bytes = 40 * mib;
  {
    CudaBench discrete(options);
    discrete.driver.available_host_bytes = []() noexcept { return std::size_t{60 * mib}; };
    EXPECT_EQ(discrete.device().memory()->free_bytes, 24 * mib);
  }
  options.attributes = {{CU_DEVICE_ATTRIBUTE_INTEGRATED, 1}};
  CudaBench bench(options);
  bench.driver.available_host_bytes = []() noexcept { return std::size_t{60 * mib}; };
  EXPECT_EQ(bench.device().memory()->free_bytes, 60 * mib);
  bench.driver.available_host_bytes = []() noexcept { return std::size_t{1024 * mib}; };
  EXPECT_EQ(bench.device().memory()->free_bytes, 64 * mib) << "more than the device has";
  // The system reports less than the driver if a control group limits the process.
  bench.driver.available_host_bytes = []() noexcept { return std::size_t{0}; };
  EXPECT_EQ(bench.device().memory()->free_bytes, 24 * mib);
}

TEST(CudaBackend, DescribesTheDevice) {
  CudaBench bench;
  const DeviceInfo& info = bench.device(1).info();
  EXPECT_EQ(info.backend, "cuda");
  EXPECT_EQ(info.spec, "cuda:1?driver=sim");
  EXPECT_FALSE(info.name.empty());
  EXPECT_EQ(info.driver, "CUDA 13.0");
  EXPECT_EQ(info.total_bytes, 64 * mib);
  EXPECT_EQ(info.alignment, 256u);
  EXPECT_EQ(info.page_bytes, sim::page_bytes);
  EXPECT_EQ(info.compute_major, 9u);
  EXPECT_GT(info.processors, 0u);
  EXPECT_EQ(bench.device().memory()->total_bytes, 64 * mib);
  bench.fake.fail_call("cuMemGetInfo", 1, CUDA_ERROR_UNKNOWN);
  EXPECT_EQ(code(bench.device().memory()), "driver");
}

Capabilities with(std::map<CUdevice_attribute, std::optional<int>> attributes) {
  sim::FakeDriverOptions options;
  options.attributes = std::move(attributes);
  CudaBench bench(options);
  return bench.device().info().capabilities;
}

TEST(CudaBackend, DeclaresWhatTheDriverSaysOfTheDevice) {
  const Capabilities all = with({});
  for (const Capability capability :
       {Capability::pinned_memory, Capability::registered_memory, Capability::managed_memory,
        Capability::stream_ordered_memory, Capability::virtual_memory, Capability::prefetch,
        Capability::advice, Capability::concurrent_managed, Capability::kernels,
        Capability::host_functions, Capability::event_timing, Capability::peer_copies,
        Capability::borrowed_streams, Capability::shareable_memory}) {
    EXPECT_TRUE(all.has(capability)) << name(capability);
  }
  const struct {
    CUdevice_attribute attribute;
    std::vector<Capability> lost;
  } rows[] = {
      {CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED, {Capability::registered_memory}},
      {CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, {Capability::stream_ordered_memory}},
      {CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
       {Capability::virtual_memory, Capability::shareable_memory}},
      {CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
       {Capability::shareable_memory}},
      {CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS,
       {Capability::concurrent_managed, Capability::prefetch, Capability::advice,
        Capability::discard}},
      {CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY,
       {Capability::managed_memory, Capability::concurrent_managed, Capability::prefetch,
        Capability::advice, Capability::discard}},
  };
  for (const auto& row : rows) {
    // Unknown to an old driver is the same as no.
    for (const std::optional<int> value : {std::optional<int>(0), std::optional<int>()}) {
      const Capabilities fewer = with({{row.attribute, value}});
      for (const Capability capability : all_capabilities) {
        const bool is_lost = std::ranges::find(row.lost, capability) != row.lost.end();
        EXPECT_EQ(fewer.has(capability), all.has(capability) && !is_lost) << name(capability);
      }
    }
  }
}

TEST(CudaBackend, HasNoPagesWithoutVirtualMemory) {
  sim::FakeDriverOptions options = sim::bench_options();
  options.attributes[CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED] = 0;
  CudaBench bench(options);
  EXPECT_EQ(bench.device().info().page_bytes, 0u);
  EXPECT_EQ(bench.fake.calls("cuMemGetAllocationGranularity"), 0u);
  EXPECT_TRUE(bench.device().enable_peer_access(bench.device(1)).value());
}

TEST(CudaBackend, NamesTheCallThatItCannotBeOpenedWithout) {
  CudaBench bench;
  for (const char* call :
       {"cuDeviceGet", "cuDevicePrimaryCtxRetain", "cuCtxPushCurrent",
        "cuMemGetAllocationGranularity", "cuDeviceGetName", "cuDeviceTotalMem"}) {
    bench.fake.fail_call(call, 1, CUDA_ERROR_UNKNOWN);
    const auto refused = bench.open(0);
    ASSERT_EQ(code(refused), "driver") << call;
    EXPECT_EQ(refused.failure().string("call"), call);
  }
  if (!test::HeapExhausted::is_possible()) return;
  for (std::size_t left = 0; left < 200; ++left) {
    const CudaOptions options{.spec = "cuda:0", .staging = small_staging()};
    std::optional<Result<std::unique_ptr<Backend>>> opened;
    bool has_failed = false;
    {
      const test::HeapExhausted exhausted(left, test::HeapExhausted::Mode::once);
      opened.emplace(open_backend(bench.driver, options));
      has_failed = exhausted.has_failed();
    }
    if (!has_failed) return;
    if (!*opened) {
      EXPECT_EQ(code(*opened), "out_of_memory");
    }
  }
  FAIL() << "it never got enough";
}

TEST(CudaBackend, OpensWhereItsNumberCannotBeRemembered) {
  if (!test::HeapExhausted::is_possible()) GTEST_SKIP();
  CudaBench bench;
  {
    // The first may find room that is there already.
    const test::HeapExhausted exhausted;
    for (std::uint32_t i = 1; i < 100; ++i) bench.device().opened_as(DeviceId{7000 + i});
    EXPECT_TRUE(exhausted.has_failed());
  }
  void* const block = bench.memory(4096, MemoryKind::managed);
  EXPECT_EQ(code(bench.device().advise(block, 4096, Advice::set_accessed_by,
                                       Place::device(DeviceId{7099}))),
            "invalid_device");
  // Those that were remembered go, as a closed device does.
  for (std::uint32_t i = 1; i < 100; ++i) bench.device().opened_as(DeviceId{7000 + i});
}

// --- The whole contract, once

/// A program that uses every primitive and gives everything back, whatever fails on the way. What
/// it cannot give back at once it tries once more.
class Program {
 public:
  Program(const Driver& driver, sim::FakeDriver& fake) : driver_(driver), fake_(fake) {}

  /// The first failure, if there was one. With a slot that always fails it may lose things.
  std::optional<Failure> run(const std::string& hopeless = {}) {
    if (!hopeless.empty()) fake_.fail_calls_from(hopeless, 1, CUDA_ERROR_UNKNOWN);
    std::optional<Failure> failure = steps();
    if (!hopeless.empty()) {
      // What was queued and cannot be waited for runs now, while the memory it wants is there.
      fake_.clear_failures();
      drain();
      fake_.fail_calls_from(hopeless, 1, CUDA_ERROR_UNKNOWN);
    }
    // A lost device runs nothing more. Here it is the driver that plays lost, so what it has
    // queued for it is run now, while the memory it wants is there.
    if (failure && failure->code() == ErrorCode::device_lost) drain();
    while (!undo_.empty()) {
      const Undo undo = std::move(undo_.back());
      undo_.pop_back();
      Result<void> undone = undo.body();
      if (undone) continue;
      if (!failure) failure = undone.failure();
      if (!undo.is_release && undone.failure().code() == ErrorCode::device_lost) {
        drain();
        continue;
      }
      EXPECT_NE(code(undone), "device_lost") << "giving back is bookkeeping then";
      if (hopeless.empty()) {
        EXPECT_EQ(why(undo.body()), "") << "twice";
      }
    }
    if (failure && failure->code() == ErrorCode::device_lost && a_ && b_) {
      EXPECT_TRUE(code(a_->memory()) == "device_lost" || code(b_->memory()) == "device_lost");
    }
    a_ = nullptr;
    b_ = nullptr;
    return failure;
  }

 private:
#define TERN_STEP(call) \
  if (const auto result = (call); !result) return result.failure()

  void drain() {
    for (int i = 0; i < driver_.device_count; ++i) {
      EXPECT_EQ(why(fake_.device(static_cast<std::size_t>(i)).try_synchronize()), "");
    }
  }

  struct Undo {
    std::function<Result<void>()> body;
    bool is_release = true;
  };
  void later(std::function<Result<void>()> release) { undo_.push_back({std::move(release)}); }
  /// Before what follows is given back, nothing uses it.
  void wait_later(Backend& device) {
    undo_.push_back({[&device] { return device.synchronize(); }, false});
  }

  std::optional<Failure> steps() {
    for (int i = 0; i < 2; ++i) {
      auto opened = open_backend(driver_, {.spec = "cuda:" + std::to_string(i) + "?driver=sim",
                                           .ordinal = i,
                                           .staging = small_staging()});
      if (!opened) return opened.failure();
      (i == 0 ? a_ : b_) = std::move(opened).value();
      (i == 0 ? *a_ : *b_).opened_as(DeviceId{8001 + static_cast<std::uint32_t>(i)});
    }
    TERN_STEP(a_->memory());
    const auto stream = a_->create_stream({});
    TERN_STEP(stream);
    stream_ = *stream;
    later([this] {
      a_->destroy_stream(stream_);
      return Result<void>{};
    });
    const auto events = {&start_, &end_};
    for (NativeEvent* event : events) {
      const auto made = a_->create_event(true);
      TERN_STEP(made);
      *event = *made;
      later([this, event] {
        a_->destroy_event(*event);
        return Result<void>{};
      });
    }
    TERN_STEP(a_->record({stream_}, start_));
    TERN_STEP(a_->wait({stream_}, start_));
    return memory();
  }

  std::optional<Failure> memory() {
    const std::pair<MemoryKind, void**> blocks[] = {{MemoryKind::device, &plain_},
                                                    {MemoryKind::pinned, &pinned_},
                                                    {MemoryKind::managed, &managed_}};
    for (const auto& [kind, block] : blocks) {
      const auto made = a_->allocate(kind, bytes, 256, {}, {});
      TERN_STEP(made);
      *block = *made;
      later([this, address = *made] { return a_->release(address, {}); });
    }
    const auto there = b_->allocate(MemoryKind::device, bytes, 256, {}, {});
    TERN_STEP(there);
    there_ = *there;
    later([this] { return b_->release(there_, {}); });
    TERN_STEP(a_->register_host(host_.data(), host_.size()));
    later([this] { return a_->unregister_host(host_.data()); });
    TERN_STEP(a_->pointer_info(&pageable_));
    const auto pooled = a_->allocate_async({stream_}, bytes, 256);
    TERN_STEP(pooled);
    pooled_ = *pooled;
    later([this] { return a_->release_async({stream_}, pooled_); });
    wait_later(*a_);
    wait_later(*b_);
    return pages();
  }

  std::optional<Failure> pages() {
    const auto base = a_->reserve(sim::page_bytes);
    TERN_STEP(base);
    base_ = *base;
    later([this] { return a_->unreserve(base_, sim::page_bytes); });
    const auto made = a_->create_pages(sim::page_bytes);
    TERN_STEP(made);
    pages_ = *made;
    later([this] { return a_->release_pages(pages_); });
    TERN_STEP(a_->map(base_, pages_));
    later([this] { return a_->unmap(base_, sim::page_bytes); });
    wait_later(*a_);
    TERN_STEP(a_->set_access(base_, sim::page_bytes, PageAccess::read_write));
    TERN_STEP(b_->peer_access(*a_));
    TERN_STEP(b_->enable_peer_access(*a_));
    // For the next program, which may fail at the same call: no memory is given back by it.
    undo_.push_back({[this] { return b_->disable_peer_access(*a_); }, false});
    return copies();
  }

  static Pattern pattern(std::size_t width) {
    Pattern made;
    made.width_bytes = width;
    for (std::size_t i = 0; i < width; ++i) made.bytes[i] = static_cast<std::byte>(i + 1);
    return made;
  }

  std::optional<Failure> copies() {
    for (const std::size_t width : {1u, 2u, 4u, 3u}) {
      TERN_STEP(a_->fill({stream_}, plain_, 300, pattern(width)));
    }
    TERN_STEP(a_->fill({stream_}, plain_, bytes, pattern(1)));
    TERN_STEP(a_->fill({stream_}, base_, 6000, pattern(4)));
    TERN_STEP(a_->copy({stream_}, pooled_, plain_, bytes));
    TERN_STEP(a_->copy({stream_}, pinned_, pooled_, bytes));
    TERN_STEP(a_->copy({stream_}, host_.data(), plain_, host_.size()));
    // Pageable: behind what is queued, then on an idle stream.
    TERN_STEP(a_->copy({stream_}, pageable_.data(), plain_, bytes));
    TERN_STEP(a_->copy({stream_}, more_.data(), host_.data(), host_.size()));
    TERN_STEP(a_->synchronize(stream_));
    TERN_STEP(a_->copy({stream_}, plain_, pageable_.data(), bytes));
    TERN_STEP(a_->copy_2d({stream_}, {plain_, 100, pooled_, 200, 90, 10}));
    const CopyRange ranges[] = {{pooled_, plain_, 100},
                                {static_cast<std::byte*>(pooled_) + 200, plain_, 100}};
    TERN_STEP(a_->copy_batch({stream_}, ranges));
    TERN_STEP(b_->fill({b_->default_stream()}, there_, bytes, pattern(1)));
    TERN_STEP(b_->synchronize());
    TERN_STEP(a_->copy_from_peer({stream_}, plain_, *b_, there_, bytes));
    return managed();
  }

  std::optional<Failure> managed() {
    TERN_STEP(a_->advise(managed_, bytes, Advice::set_accessed_by, Place::device(DeviceId{8001})));
    TERN_STEP(a_->fill({stream_}, managed_, bytes, pattern(1)));
    TERN_STEP(a_->prefetch({stream_}, managed_, bytes, Place::host()));
    TERN_STEP(a_->managed_info(managed_, bytes));
    return kernels();
  }

  std::optional<Failure> kernels() {
    const std::string_view names[] = {"add_one"};
    const std::string image = sim::FakeDriver::image(names);
    const auto kernel = a_->load_kernel(
        {.entry = "add_one", .image = std::as_bytes(std::span(image.data(), image.size() + 1))});
    TERN_STEP(kernel);
    kernel_ = *kernel;
    later([this] {
      a_->unload_kernel(kernel_);
      return Result<void>{};
    });
    wait_later(*a_);
    const std::uint32_t count = 16;
    const KernelArgument arguments[] = {{&plain_, sizeof plain_}, {&count, sizeof count}};
    TERN_STEP(a_->launch({stream_}, kernel_, {{1, 1, 1}, {16, 1, 1}}, arguments));
    TERN_STEP(a_->call_host(
        {stream_}, [](void* done) { *static_cast<bool*>(done) = true; }, &has_run_));
    return ends();
  }

  std::optional<Failure> ends() {
    TERN_STEP(a_->record({stream_}, end_));
    TERN_STEP(a_->query(end_));
    TERN_STEP(a_->query(stream_));
    TERN_STEP(a_->synchronize(end_));
    TERN_STEP(a_->elapsed_ns(start_, end_));
    TERN_STEP(a_->synchronize());
    EXPECT_TRUE(has_run_);
    EXPECT_TRUE(more_ == std::vector<std::byte>(more_.size(), std::byte{1}));
    EXPECT_TRUE(pageable_ == std::vector<std::byte>(bytes, std::byte{1}));
    EXPECT_EQ(static_cast<const std::byte*>(pinned_)[bytes - 1], std::byte{1});
    TERN_STEP(a_->copy({stream_}, pinned_, plain_, 4));
    TERN_STEP(a_->synchronize(stream_));
    std::uint32_t first = 0;
    std::memcpy(&first, pinned_, 4);
    EXPECT_EQ(first, 0x01010102u);
    const CUstream foreign = reinterpret_cast<CUstream>(stream_.value);
    const auto borrowed = a_->borrow_stream({reinterpret_cast<std::uintptr_t>(foreign)});
    TERN_STEP(borrowed);
    a_->destroy_stream(borrowed->native);
    return std::nullopt;
  }
#undef TERN_STEP

  static constexpr std::size_t bytes = 300'000;

  const Driver& driver_;
  sim::FakeDriver& fake_;
  std::unique_ptr<Backend> a_, b_;
  std::vector<Undo> undo_;
  NativeStream stream_;
  NativeEvent start_, end_;
  NativePages pages_;
  NativeKernel kernel_;
  void *plain_ = nullptr, *pinned_ = nullptr, *managed_ = nullptr, *pooled_ = nullptr,
       *there_ = nullptr, *base_ = nullptr;
  std::vector<std::byte> host_ = std::vector<std::byte>(10'000);
  std::vector<std::byte> pageable_ = std::vector<std::byte>(bytes);
  std::vector<std::byte> more_ = std::vector<std::byte>(10'000);
  bool has_run_ = false;
};

sim::LiveHandles live(const sim::FakeDriver& fake) {
  sim::LiveHandles handles = fake.live();
  handles.contexts = 0;  // which are never given back
  return handles;
}

std::string text_of(const std::optional<Failure>& failure) {
  return failure ? failure->text() : "";
}

/// How often the program calls each entry of the driver.
std::vector<std::pair<std::string, std::uint64_t>> calls_of_program() {
  sim::FakeDriver fake(sim::bench_options());
  const Driver driver = load_driver(fake_library());
  fake.clear_failures();
  EXPECT_EQ(text_of(Program(driver, fake).run()), "");
  std::vector<std::pair<std::string, std::uint64_t>> calls;
  for (const DriverEntryInfo& entry : driver_entries) {
    const std::string slot(entry.slot);
    if (fake.calls(slot) != 0) calls.emplace_back(slot, fake.calls(slot));
  }
  return calls;
}

TEST(CudaBackend, DoesAllOfTheContractWithEveryDriver) {
  for (const int version : {13000, 12080, 12070, 12010, 11080, 11030}) {
    sim::FakeDriverOptions options = sim::bench_options();
    options.driver_version = version;
    sim::FakeDriver fake(options);
    const Driver driver = load_driver(fake_library());
    EXPECT_EQ(text_of(Program(driver, fake).run()), "") << version;
    EXPECT_EQ(live(fake), sim::LiveHandles{}) << version;
    EXPECT_TRUE(sim::leaks(fake.device(0)).empty()) << version;
    EXPECT_TRUE(sim::findings(fake.device(0)).empty()) << version;
  }
}

TEST(CudaBackend, DoesAllOfTheContractWithoutEachOptionalEntry) {
  for (const DriverEntryInfo& entry : driver_entries) {
    if (entry.need == Need::required) continue;
    sim::FakeDriverOptions options = sim::bench_options();
    options.hidden = {std::string(entry.slot)};
    sim::FakeDriver fake(options);
    const Driver driver = load_driver(fake_library());
    EXPECT_EQ(text_of(Program(driver, fake).run()), "") << entry.slot;
    EXPECT_EQ(live(fake), sim::LiveHandles{}) << entry.slot;
  }
}

TEST(CudaBackend, LosesNothingWhenAnyCallOfTheDriverFails) {
  // What ends a thing for good, or makes the context current for it, can only be tried once.
  const std::set<std::string> last_chances = {"cuStreamDestroy",  "cuEventDestroy",
                                              "cuModuleUnload",   "cuMemFreeHost",
                                              "cuMemPoolDestroy", "cuCtxPushCurrent"};
  std::uint64_t points = 0, reported = 0;
  for (const auto& [slot, calls] : calls_of_program()) {
    for (const CUresult result : {CUDA_ERROR_UNKNOWN, CUDA_ERROR_OUT_OF_MEMORY}) {
      sim::FakeDriver fake(sim::bench_options());
      const Driver driver = load_driver(fake_library());
      for (std::uint64_t n = 1; n <= calls; ++n) {
        SCOPED_TRACE(slot + " #" + std::to_string(n) + " = " + name_of(result));
        ++points;
        const sim::LiveHandles before = live(fake);
        const std::size_t leaks_before = sim::leaks(fake.device(0)).size();
        fake.clear_failures();
        fake.fail_call(slot, n, result);
        const std::optional<Failure> failure = Program(driver, fake).run();
        if (failure) {
          ++reported;
          const bool is_memory = result == CUDA_ERROR_OUT_OF_MEMORY;
          EXPECT_EQ(failure->code(), is_memory ? ErrorCode::out_of_memory : ErrorCode::driver)
              << failure->text();
        }
        fake.clear_failures();
        if (!last_chances.contains(slot)) {
          EXPECT_EQ(live(fake), before);
          EXPECT_EQ(sim::leaks(fake.device(0)).size(), leaks_before);
        }
        // Nothing stays behind that a later program would stumble over.
        CUcontext now = nullptr;
        EXPECT_EQ(fake.table().cuCtxGetCurrent(&now), CUDA_SUCCESS);
        if (now != nullptr) {
          EXPECT_EQ(fake.table().cuCtxPopCurrent(nullptr), CUDA_SUCCESS);
        }
        EXPECT_EQ(now != nullptr, slot == "cuCtxPopCurrent");
      }
      fake.clear_failures();
      EXPECT_EQ(text_of(Program(driver, fake).run()), "") << slot;
      EXPECT_TRUE(sim::findings(fake.device(0)).empty()) << slot;
    }
  }
  RecordProperty("points", std::to_string(points));
  RecordProperty("reported", std::to_string(reported));
  EXPECT_GT(points, 500u);
  EXPECT_GT(reported, points / 4);
}

TEST(CudaBackend, ComesToAnEndWithADriverThatAlwaysFails) {
  for (const auto& [slot, calls] : calls_of_program()) {
    SCOPED_TRACE(slot);
    sim::FakeDriver fake(sim::bench_options());
    const Driver driver = load_driver(fake_library());
    if (const std::optional<Failure> failure = Program(driver, fake).run(slot)) {
      EXPECT_EQ(failure->code(), ErrorCode::driver) << failure->text();
    }
  }
}

TEST(CudaBackend, EndsQuietlyWhicheverCallFindsTheDeviceLost) {
  std::uint64_t points = 0, lost = 0;
  for (const auto& [slot, calls] : calls_of_program()) {
    for (std::uint64_t n = 1; n <= calls; ++n) {
      SCOPED_TRACE(slot + " #" + std::to_string(n));
      ++points;
      sim::FakeDriver fake(sim::bench_options());
      const Driver driver = load_driver(fake_library());
      fake.clear_failures();
      fake.fail_call(slot, n, CUDA_ERROR_ILLEGAL_ADDRESS);
      const std::optional<Failure> failure = Program(driver, fake).run();
      if (!failure) continue;
      ++lost;
      EXPECT_EQ(failure->code(), ErrorCode::device_lost) << failure->text();
      EXPECT_EQ(failure->number("code"), 700u);
    }
  }
  RecordProperty("points", std::to_string(points));
  RecordProperty("lost", std::to_string(lost));
  EXPECT_GT(lost, points / 4);
}

// --- Lost, and at the end

/// Things of every kind, and all that can be done with them.
struct Belongings {
  explicit Belongings(CudaBench& bench) : bench_(bench), device_(bench.device()) {
    for (const MemoryKind kind : {MemoryKind::device, MemoryKind::pinned, MemoryKind::managed}) {
      blocks.push_back(bench.memory(4096, kind));
    }
    EXPECT_EQ(why(device_.register_host(host.data(), host.size())), "");
    pooled = device_.allocate_async({stream}, 4096, 256).value();
    EXPECT_EQ(why(device_.map(base, pages)), "");
    EXPECT_EQ(why(device_.set_access(base, sim::page_bytes, PageAccess::read_write)), "");
    const std::string_view names[] = {"bare"};
    const std::string image = sim::FakeDriver::image(names);
    source = {.entry = "bare"};
    text.assign(reinterpret_cast<const std::byte*>(image.data()),
                reinterpret_cast<const std::byte*>(image.data()) + image.size());
    source.image = text;
    kernel = device_.load_kernel(source).value();
    EXPECT_EQ(why(device_.record({stream}, event)), "");
    bench.synchronize();
  }

  /// What each primitive that does not give something back says.
  std::vector<std::pair<std::string, std::optional<Failure>>> use() {
    std::vector<std::pair<std::string, std::optional<Failure>>> answers;
    const auto add = [&](const char* what, const auto& result) {
      answers.emplace_back(what, result ? std::nullopt : std::optional(result.failure()));
    };
    int ordinary = 0;
    const CopyRange ranges[] = {{blocks[0], pooled, 8}, {blocks[2], pooled, 8}};
    add("memory", device_.memory());
    add("synchronize", device_.synchronize());
    add("allocate", device_.allocate(MemoryKind::device, 100, 256, {}, {}));
    add("pointer_info", device_.pointer_info(&ordinary));
    add("allocate_async", device_.allocate_async({stream}, 100, 256));
    add("register_host", device_.register_host(&ordinary, sizeof ordinary));
    add("reserve", device_.reserve(sim::page_bytes));
    add("create_pages", device_.create_pages(sim::page_bytes));
    add("map", device_.map(base, pages));
    add("set_access", device_.set_access(base, sim::page_bytes, PageAccess::read));
    add("copy", device_.copy({stream}, blocks[0], pooled, 8));
    add("copy_2d", device_.copy_2d({stream}, {blocks[0], 16, pooled, 16, 8, 2}));
    add("copy_batch", device_.copy_batch({stream}, ranges));
    add("fill", device_.fill({stream}, blocks[0], 8, {}));
    add("copy_from_peer", device_.copy_from_peer({stream}, blocks[0], bench_.device(1), pooled, 8));
    add("enable_peer_access", device_.enable_peer_access(bench_.device(1)));
    add("peer_access", device_.peer_access(bench_.device(1)));
    add("disable_peer_access", device_.disable_peer_access(bench_.device(1)));
    add("create_stream", device_.create_stream({}));
    add("borrow_stream", device_.borrow_stream(stream));
    add("query stream", device_.query(stream));
    add("synchronize stream", device_.synchronize(stream));
    add("create_event", device_.create_event(false));
    add("record", device_.record({stream}, event));
    add("wait", device_.wait({stream}, event));
    add("query event", device_.query(event));
    add("synchronize event", device_.synchronize(event));
    add("elapsed_ns", device_.elapsed_ns(event, event));
    add("call_host", device_.call_host(
                         {stream}, [](void*) {}, nullptr));
    add("prefetch", device_.prefetch({stream}, blocks[2], 8, Place::host()));
    add("advise", device_.advise(blocks[2], 8, Advice::set_read_mostly, {}));
    add("managed_info", device_.managed_info(blocks[2], 8));
    add("load_kernel", device_.load_kernel(source));
    const std::uint64_t value = 0;
    const KernelArgument arguments[] = {{&value, sizeof value}};
    add("launch", device_.launch({stream}, kernel, {}, arguments));
    return answers;
  }

  void give_back() {
    for (void* block : blocks) EXPECT_EQ(why(device_.release(block, {})), "");
    EXPECT_EQ(why(device_.release_async({stream}, pooled)), "");
    EXPECT_EQ(why(device_.unregister_host(host.data())), "");
    EXPECT_EQ(why(device_.unmap(base, sim::page_bytes)), "");
    EXPECT_EQ(why(device_.release_pages(pages)), "");
    EXPECT_EQ(why(device_.unreserve(base, sim::page_bytes)), "");
    device_.unload_kernel(kernel);
    device_.destroy_event(event);
    device_.destroy_stream(stream);
    // The books are still kept.
    EXPECT_EQ(code(device_.release(blocks[0], {})), "use_after_free");
    EXPECT_EQ(code(device_.release_pages(pages)), "use_after_free");
  }

 private:
  CudaBench& bench_;
  Backend& device_;

 public:
  std::vector<void*> blocks;
  std::vector<std::byte> host = std::vector<std::byte>(10'000);
  std::vector<std::byte> text;
  void* base = device_.reserve(sim::page_bytes).value();
  NativePages pages = device_.create_pages(sim::page_bytes).value();
  NativeStream stream = device_.create_stream({}).value();
  NativeEvent event = device_.create_event(true).value();
  void* pooled = nullptr;
  KernelSource source;
  NativeKernel kernel;
};

TEST(CudaBackend, FailsFastWithTheFirstCauseWhenTheDeviceIsLost) {
  CudaBench bench(sim::bench_options(), small_staging());
  Belongings things(bench);
  // Seen by a call that has nothing to do with it.
  bench.fake.fail_call("cuMemGetInfo", 1, CUDA_ERROR_LAUNCH_FAILED);
  EXPECT_EQ(code(bench.device().memory()), "device_lost");
  const std::uint64_t calls = bench.fake.total_calls();
  for (const auto& [what, failure] : things.use()) {
    ASSERT_TRUE(failure) << what;
    EXPECT_EQ(failure->code(), ErrorCode::device_lost) << what << ": " << failure->text();
    EXPECT_EQ(failure->string("call"), "cuMemGetInfo") << what;
    EXPECT_EQ(failure->number("code"), 719u) << what;
  }
  things.give_back();
  bench.backends[0] = nullptr;
  EXPECT_EQ(bench.fake.total_calls(), calls);
  // The other device knows nothing of it.
  EXPECT_EQ(why(bench.device(1).memory()), "");
}

TEST(CudaBackend, CallsNoDriverWhileTheProcessEnds) {
  CudaBench bench(sim::bench_options(), small_staging());
  Belongings things(bench);
  const std::vector<std::byte> pageable = numbered(300'000);
  void* const memory = bench.memory(pageable.size());
  EXPECT_EQ(why(bench.device().copy({things.stream}, memory, pageable.data(), pageable.size())),
            "");
  bench.synchronize();
  {
    const EndingProcess ending;
    const std::uint64_t calls = bench.fake.total_calls();
    for (const auto& [what, failure] : things.use()) {
      ASSERT_TRUE(failure) << what;
      EXPECT_EQ(failure->code(), ErrorCode::after_shutdown) << what;
    }
    things.give_back();
    bench.backends.clear();
    EXPECT_EQ(bench.fake.total_calls(), calls);
  }
}

TEST(CudaBackend, IsLostWhenSomebodyResetsItsDevice) {
  CudaBench bench;
  bench.is_lost = true;
  void* const block = bench.memory(1000);
  bench.fake.reset(0);
  EXPECT_EQ(code(bench.device().memory()), "device_lost");
  EXPECT_EQ(why(bench.device().release(block, {})), "");
  EXPECT_EQ(why(bench.device(1).memory()), "");
}

TEST(CudaBackend, IsLostWhenAKernelGoesAstray) {
  PeerBench bench(true);
  bench.is_lost = true;
  int nowhere = 0;
  EXPECT_EQ(code(bench.add_one(0, &nowhere)), "device_lost");
  EXPECT_EQ(code(bench.device().synchronize()), "device_lost");
}

TEST(CudaBackend, CallsAFunctionWithItsDeviceCurrent) {
  CudaBench bench;
  struct Call {
    const DriverTable& cu;
    CUcontext current = nullptr;
  };
  const CudaBench::Elsewhere elsewhere(bench, 1);
  CUcontext before = nullptr, after = nullptr;
  EXPECT_EQ(bench.cu.cuCtxGetCurrent(&before), CUDA_SUCCESS);
  Call call{bench.cu};
  const HostFunction look = [](void* context) {
    auto& seen = *static_cast<Call*>(context);
    EXPECT_EQ(seen.cu.cuCtxGetCurrent(&seen.current), CUDA_SUCCESS);
  };
  EXPECT_EQ(why(bench.device().call_current(look, &call)), "");
  CUcontext expected = nullptr;
  EXPECT_EQ(bench.cu.cuDevicePrimaryCtxRetain(&expected, 0), CUDA_SUCCESS);
  EXPECT_EQ(call.current, expected);
  EXPECT_EQ(bench.cu.cuCtxGetCurrent(&after), CUDA_SUCCESS);
  EXPECT_EQ(after, before);

  bench.fake.fail_calls_from("cuCtxPushCurrent", 1, CUDA_ERROR_UNKNOWN);
  call.current = nullptr;
  EXPECT_EQ(code(bench.device().call_current(look, &call)), "driver");
  EXPECT_EQ(call.current, nullptr) << "the function is not called";
  bench.fake.clear_failures();
}

TEST(CudaBackend, LeavesTheContextOfTheThreadAsItWas) {
  CudaBench bench;
  Belongings things(bench);
  CUcontext now = nullptr;
  EXPECT_EQ(bench.cu.cuCtxGetCurrent(&now), CUDA_SUCCESS);
  EXPECT_EQ(now, nullptr);
  const CudaBench::Elsewhere elsewhere(bench, 1);
  CUcontext other = nullptr;
  EXPECT_EQ(bench.cu.cuCtxGetCurrent(&other), CUDA_SUCCESS);
  static_cast<void>(things.use());
  things.give_back();
  bench.backends.clear();
  EXPECT_EQ(bench.cu.cuCtxGetCurrent(&now), CUDA_SUCCESS);
  EXPECT_EQ(now, other);
}

TEST(CudaBackend, IsQuietInAForkedChild) {
  CudaBench bench(sim::bench_options(), small_staging());
  std::optional<Device> device(std::in_place, std::move(bench.backends[0]));
  std::optional<Stream> stream(std::in_place, *device);
  std::optional<Event> event(std::in_place, *device);
  void* const block = device->allocate(MemoryKind::device, 1000);
  stream->fill(static_cast<std::byte*>(block), 1000, std::byte{1});
  stream->record(*event);
  EXPECT_EQ(test::in_a_forked_child([&] {
              const std::uint64_t calls = bench.fake.total_calls();
              const bool is_refused =
                  test::is_after_fork(device->try_allocate(MemoryKind::device, 10)) &&
                  test::is_after_fork(device->try_memory()) &&
                  test::is_after_fork(stream->try_synchronize()) &&
                  test::is_after_fork(device->try_synchronize());
              event.reset();
              stream.reset();
              device.reset();
              return is_refused && bench.fake.total_calls() == calls;
            }),
            0);
  device->synchronize();
  device->release(block);
}

}  // namespace
}  // namespace tern::cuda
