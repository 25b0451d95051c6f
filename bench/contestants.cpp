#include "bench/contestants.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <map>
#include <mutex>
#include <utility>

#include "bench/raw_driver.hpp"
#include "tern/backends/catalog.hpp"
#include "tern/core/bytes.hpp"

namespace tern::bench {
namespace {

/// The generation of blocks that are in no block table. It only means "some block".
constexpr Generation some_block(0, 1);

class PlainResource : public Resource {
 public:
  explicit PlainResource(Device device) : device_(std::move(device)) {}

  [[nodiscard]] const Device& device() const noexcept override { return device_; }
  [[nodiscard]] ResourceTraits traits() const noexcept override { return {}; }
  [[nodiscard]] Statistics statistics() const noexcept override { return {}; }
  [[nodiscard]] std::size_t good_size(const Request& request) const noexcept override {
    return request.bytes;
  }

 private:
  const Device device_;
};

class MallocResource final : public PlainResource {
 public:
  using PlainResource::PlainResource;

  [[nodiscard]] const char* name() const noexcept override { return "malloc"; }
  [[nodiscard]] Result<Block> try_allocate(const Request& request) noexcept override {
    void* address = std::malloc(request.bytes);
    if (address == nullptr) return Failure(ErrorCode::out_of_memory);
    return Block{address, request.bytes, {}, some_block};
  }
  [[nodiscard]] Result<void> try_deallocate(const Block& block, StreamRef,
                                            const CallSite&) noexcept override {
    std::free(block.address);
    return {};
  }
};

class NullResource final : public PlainResource {
 public:
  using PlainResource::PlainResource;

  [[nodiscard]] const char* name() const noexcept override { return "null"; }
  [[nodiscard]] Result<Block> try_allocate(const Request& request) noexcept override {
    return Block{this, request.bytes, {}, some_block};
  }
  [[nodiscard]] Result<void> try_deallocate(const Block&, StreamRef,
                                            const CallSite&) noexcept override {
    return {};
  }
};

/// The driver's allocators.
class DriverResource : public PlainResource {
 public:
  DriverResource(const Device& device, std::unique_ptr<RawDriver> raw)
      : PlainResource(device), raw_(std::move(raw)) {}

 protected:
  [[nodiscard]] const RawDriver& raw() const noexcept { return *raw_; }
  [[nodiscard]] static Result<Block> block_or_failure(cuda::CUresult result,
                                                      cuda::CUdeviceptr address,
                                                      std::size_t bytes) noexcept {
    if (result != cuda::CUDA_SUCCESS) return Failure(ErrorCode::out_of_memory);
    return Block{reinterpret_cast<void*>(address), bytes, {}, some_block};
  }
  [[nodiscard]] static Result<void> done_or_failure(cuda::CUresult result) noexcept {
    if (result != cuda::CUDA_SUCCESS) return Failure(ErrorCode::driver);
    return {};
  }

 private:
  const std::unique_ptr<RawDriver> raw_;
};

class DriverPlainResource final : public DriverResource {
 public:
  using DriverResource::DriverResource;

  [[nodiscard]] const char* name() const noexcept override { return "cuMemAlloc"; }
  [[nodiscard]] Result<Block> try_allocate(const Request& request) noexcept override {
    cuda::CUdeviceptr address = 0;
    const cuda::CUresult result = raw().calls().cuMemAlloc(&address, request.bytes);
    return block_or_failure(result, address, request.bytes);
  }
  [[nodiscard]] Result<void> try_deallocate(const Block& block, StreamRef,
                                            const CallSite&) noexcept override {
    return done_or_failure(raw().calls().cuMemFree(RawDriver::address(block.address)));
  }
};

class DriverPoolResource final : public DriverResource {
 public:
  DriverPoolResource(const Device& device, std::unique_ptr<RawDriver> given)
      : DriverResource(device, std::move(given)), number_(++made) {
    const cuda::DriverTable& calls = raw().calls();
    RawDriver::check(raw().pool_calls().cuDeviceGetDefaultMemPool(&pool_, raw().device()),
                     "cuDeviceGetDefaultMemPool");
    // By default, the pool returns all freed memory to the system whenever the host waits.
    std::uint64_t all = ~std::uint64_t{0};
    RawDriver::check(
        calls.cuMemPoolSetAttribute(pool_, cuda::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &all),
        "cuMemPoolSetAttribute");
  }
  ~DriverPoolResource() override {
    const cuda::DriverTable& calls = raw().calls();
    for (const auto& [id, stream] : streams_) {
      static_cast<void>(calls.cuStreamSynchronize(stream));
      static_cast<void>(calls.cuStreamDestroy(stream));
    }
    std::uint64_t none = 0;
    static_cast<void>(
        calls.cuMemPoolSetAttribute(pool_, cuda::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &none));
    static_cast<void>(raw().pool_calls().cuMemPoolTrimTo(pool_, 0));
  }

  [[nodiscard]] const char* name() const noexcept override { return "cuMemAllocAsync"; }
  [[nodiscard]] Result<Block> try_allocate(const Request& request) noexcept override {
    cuda::CUdeviceptr address = 0;
    const cuda::CUstream stream = stream_of(request.stream);
    if (stream == nullptr) return Failure(ErrorCode::driver);
    const cuda::CUresult result =
        raw().pool_calls().cuMemAllocAsync(&address, request.bytes, stream);
    return block_or_failure(result, address, request.bytes);
  }
  [[nodiscard]] Result<void> try_deallocate(const Block& block, StreamRef stream,
                                            const CallSite&) noexcept override {
    return done_or_failure(
        raw().calls().cuMemFreeAsync(RawDriver::address(block.address), stream_of(stream)));
  }

 private:
  /// Returns the driver stream that represents a stream of Tern, or null if it cannot be created.
  /// Each thread caches the last few, because a lock and a search would count as the driver's time.
  [[nodiscard]] cuda::CUstream stream_of(const StreamRef& stream) noexcept try {
    struct Known {
      std::uint64_t resource = 0;
      StreamId id;
      cuda::CUstream stream = nullptr;
    };
    static thread_local std::array<Known, 64> known;
    Known& here = known[stream.id().number() % known.size()];
    if (here.resource == number_ && here.id == stream.id()) return here.stream;
    const std::lock_guard lock(mutex_);
    raw().enter();
    cuda::CUstream& made_for = streams_[stream.id()];
    if (made_for == nullptr) {
      RawDriver::check(
          raw().calls().cuStreamCreateWithPriority(&made_for, cuda::CU_STREAM_NON_BLOCKING, 0),
          "cuStreamCreateWithPriority");
    }
    here = {number_, stream.id(), made_for};
    return made_for;
  } catch (const std::exception&) {
    return nullptr;
  }

  inline static std::atomic<std::uint64_t> made = 0;

  const std::uint64_t number_;  // of this resource, unique in the process
  cuda::CUmemoryPool pool_ = nullptr;
  std::mutex mutex_;
  std::map<StreamId, cuda::CUstream> streams_;  // guarded by mutex_
};

template <class Made>
ResourceHandle make_driver_resource(Context& context, const Device& device) {
  std::unique_ptr<RawDriver> raw = RawDriver::make(context, device);
  if (!raw) return nullptr;
  return std::make_shared<Made>(device, std::move(raw));
}

}  // namespace

std::shared_ptr<PoolResource> make_pool(const Device& device, const PoolOptions& options) {
  return std::make_shared<PoolResource>(device, options);
}

ResourceHandle make_malloc(const Device& device) {
  return std::make_shared<MallocResource>(device);
}

ResourceHandle make_null(const Device& device) { return std::make_shared<NullResource>(device); }

ResourceHandle make_driver_pool(Context& context, const Device& device) {
  return make_driver_resource<DriverPoolResource>(context, device);
}

ResourceHandle make_driver_plain(Context& context, const Device& device) {
  return make_driver_resource<DriverPlainResource>(context, device);
}

Stage::Stage(const Context& context) : device(open_device(context.device())) {
  for (std::size_t i = 0; i < stream_count; ++i) streams.emplace_back(device);
}

Contestants contestants(Context& context, const ResourceHandle& pool) {
  const Device& device = pool->device();
  Contestants all = {pool, make_malloc(device), make_null(device)};
  if (ResourceHandle driver = make_driver_pool(context, device)) all.push_back(std::move(driver));
  return all;
}

Figure compare(std::string name, const Scores& scores, std::string unit, Better better) {
  constexpr const char* others[] = {"null", "cuMemAllocAsync", "cuMemAlloc"};
  Figure figure = {.name = std::move(name),
                   .value = scores[0],
                   .unit = std::move(unit),
                   .better = better,
                   .baseline_name = "malloc",
                   .baseline = scores[1]};
  for (std::size_t i = 2; i < scores.size(); ++i) {
    figure.others.push_back({others[i - 2], scores[i]});
  }
  return figure;
}

std::size_t fitting_bytes(Context& context, const Device& device, std::size_t wanted_bytes) {
  // A quick run must not hold gigabytes.
  const std::size_t wanted = context.usual_or_quick(wanted_bytes, std::min(wanted_bytes, gib));
  const std::size_t total = device.info().total_bytes;
  const std::size_t most = total / 4 * 3 / gib * gib;
  if (wanted <= most) return wanted;
  context.note(fmt::format("with {} of memory instead of {}: {} has {}.", format_bytes(most),
                           format_bytes(wanted), device.spec(), format_bytes(total)));
  return most;
}

std::shared_ptr<PoolResource> make_filled_pool(const Device& device, std::size_t bytes) {
  // Without auto_trim, which would return memory to the driver.
  return make_pool(device, {.limit_bytes = bytes, .initial_bytes = bytes, .auto_trim = false});
}

}  // namespace tern::bench
