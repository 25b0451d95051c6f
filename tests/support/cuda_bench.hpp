// CUDA devices on a fake driver, opened without the catalog, for the tests of the CUDA backend.

#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "backends/cuda/cuda_backend.hpp"
#include "backends/cuda/driver.hpp"
#include "support/driver_with_heap.hpp"
#include "support/fake_driver_bench.hpp"
#include "support/thread.hpp"

namespace tern::cuda {

/// Returns the library of the installed fake driver.
inline DriverLibrary fake_library() {
  return {[](void*, const char* name) -> void* {
            if (std::string_view(name) != "cuGetProcAddress_v2") return nullptr;
            return reinterpret_cast<void*>(sim::FakeDriver::get_proc_address());
          },
          nullptr};
}

inline StagingOptions no_staging() {
  StagingOptions options;
  options.ring_bytes = 0;
  return options;
}

/// Small slots, so that a few KiB are many chunks. Only the caller copies, so the order of the
/// driver calls is always the same.
inline StagingOptions small_staging() {
  StagingOptions options;
  options.slot_bytes = 64 * kib;
  options.min_chunk_bytes = 4 * kib;
  options.queue_slots = 4;
  options.queue_slot_bytes = 16 * kib;
  options.ring_bytes = 512 * kib;
  options.threads = 1;
  return options;
}

/// Returns the message of the failure, or an empty string.
template <class T>
std::string why(const Result<T>& result) {
  return result ? "" : result.failure().text();
}
template <class T>
std::string code(const Result<T>& result) {
  return result ? "success" : std::string(name(result.failure().code()));
}

inline std::vector<std::byte> numbered(std::size_t bytes, unsigned seed = 1) {
  std::vector<std::byte> made(bytes);
  for (std::size_t i = 0; i < bytes; ++i) made[i] = static_cast<std::byte>(i * 7 + i / 251 + seed);
  return made;
}

struct CudaBench {
  explicit CudaBench(const sim::FakeDriverOptions& options = sim::bench_options(),
                     const StagingOptions& staging = no_staging())
      : fake(options) {
    EXPECT_EQ(driver.absence, "");
    driver.table = with_heap(driver.table);
    for (int i = 0; i < driver.device_count; ++i) {
      Result<std::unique_ptr<Backend>> opened = open(i, staging);
      EXPECT_EQ(why(opened), "");
      backends.push_back(std::move(opened).value());
    }
  }
  ~CudaBench() {
    const auto found = sim::findings(fake.device(0));
    EXPECT_TRUE(found.empty() || is_lost) << found[0].text();
  }

  [[nodiscard]] Result<std::unique_ptr<Backend>> open(
      int ordinal, const StagingOptions& staging = no_staging()) const {
    return open_backend(driver, {.spec = "cuda:" + std::to_string(ordinal) + "?driver=sim",
                                 .ordinal = ordinal,
                                 .staging = staging});
  }

  [[nodiscard]] Backend& device(std::size_t ordinal = 0) const { return *backends.at(ordinal); }
  /// Returns the driver's handle of a stream of this device.
  static CUstream raw(NativeStream stream) { return reinterpret_cast<CUstream>(stream.value); }

  NativeStream stream(bool blocking = false, std::size_t on = 0) {
    return device(on).create_stream({.blocking = blocking}).value();
  }
  void* memory(std::size_t bytes, MemoryKind kind = MemoryKind::device, std::size_t on = 0) {
    return device(on).allocate(kind, bytes, 256, {}, {}).value();
  }
  void synchronize(std::size_t on = 0) { EXPECT_EQ(why(device(on).synchronize()), ""); }

  /// Copies through page-locked memory, which the driver copies directly.
  void write(void* to, const std::vector<std::byte>& bytes, std::size_t on = 0) {
    void* pinned = memory(bytes.size(), MemoryKind::pinned, on);
    std::memcpy(pinned, bytes.data(), bytes.size());
    EXPECT_EQ(why(device(on).copy({*own(on)}, to, pinned, bytes.size())), "");
    EXPECT_EQ(why(device(on).synchronize(*own(on))), "");
    EXPECT_EQ(why(device(on).release(pinned, {})), "");
  }
  std::vector<std::byte> read(const void* from, std::size_t bytes, std::size_t on = 0) {
    void* pinned = memory(bytes, MemoryKind::pinned, on);
    EXPECT_EQ(why(device(on).copy({*own(on)}, pinned, from, bytes)), "");
    EXPECT_EQ(why(device(on).synchronize(*own(on))), "");
    std::vector<std::byte> made(bytes);
    std::memcpy(made.data(), pinned, bytes);
    EXPECT_EQ(why(device(on).release(pinned, {})), "");
    return made;
  }
  void fill(void* at, std::size_t bytes, unsigned char value, NativeStream on) {
    Pattern pattern;
    pattern.bytes[0] = std::byte{value};
    EXPECT_EQ(why(device().fill({on}, at, bytes, pattern)), "");
  }

  // --- Other libraries in the process

  /// Makes the context of a device current on this thread while it lives, as other libraries do.
  class Elsewhere {
   public:
    explicit Elsewhere(const CudaBench& bench, int ordinal = 0) : cu_(bench.cu) {
      CUcontext context = nullptr;
      EXPECT_EQ(cu_.cuDevicePrimaryCtxRetain(&context, ordinal), CUDA_SUCCESS);
      EXPECT_EQ(cu_.cuCtxPushCurrent(context), CUDA_SUCCESS);
    }
    ~Elsewhere() { EXPECT_EQ(cu_.cuCtxPopCurrent(nullptr), CUDA_SUCCESS); }
    Elsewhere(const Elsewhere&) = delete;
    Elsewhere& operator=(const Elsewhere&) = delete;

   private:
    const DriverTable& cu_;
  };

  CUstream foreign_stream(unsigned flags = CU_STREAM_NON_BLOCKING, int ordinal = 0) {
    const Elsewhere elsewhere(*this, ordinal);
    CUstream made = nullptr;
    EXPECT_EQ(cu.cuStreamCreateWithPriority(&made, flags, 0), CUDA_SUCCESS);
    return made;
  }
  void end_foreign(CUstream stream) {
    const Elsewhere elsewhere(*this);
    EXPECT_EQ(cu.cuStreamDestroy(stream), CUDA_SUCCESS);
  }
  /// Begins the capture on another thread, which then ends.
  void capture(CUstream stream, CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL) {
    test::Thread([&] { fake.begin_capture(stream, mode); }).join();
  }
  /// Returns whether the capture is still valid.
  [[nodiscard]] bool is_capturing(CUstream stream) const {
    const Elsewhere elsewhere(*this);
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    EXPECT_EQ(cu.cuStreamIsCapturing(stream, &status), CUDA_SUCCESS);
    return status == CU_STREAM_CAPTURE_STATUS_ACTIVE;
  }

  sim::FakeDriver fake;
  Driver driver = load_driver(fake_library());
  const DriverTable& cu = driver.table;
  std::vector<std::unique_ptr<Backend>> backends;
  bool is_lost = false;  // set by tests that lose the device: then findings are expected

 private:
  /// Returns the stream for write() and read() on a device.
  std::unique_ptr<NativeStream>& own(std::size_t on) {
    own_.resize(backends.size());
    if (!own_[on]) own_[on] = std::make_unique<NativeStream>(stream(false, on));
    return own_[on];
  }
  std::vector<std::unique_ptr<NativeStream>> own_;
};

/// Two devices, with or without access to each other's memory.
struct PeerBench : CudaBench {
  explicit PeerBench(bool has_access) : CudaBench(with_access(has_access)) {}
  static sim::FakeDriverOptions with_access(bool has_access) {
    sim::FakeDriverOptions options = sim::bench_options();
    options.has_peer_access = has_access;
    return options;
  }
  /// Runs add_one on a device and returns the result of the launch.
  Result<void> add_one(std::size_t on, void* values) {
    const std::string_view names[] = {"add_one"};
    const std::string image = sim::FakeDriver::image(names);
    const NativeKernel kernel =
        device(on)
            .load_kernel({.entry = "add_one",
                          .image = std::as_bytes(std::span(image.data(), image.size() + 1))})
            .value();
    const NativeStream stream_of_it = stream(false, on);
    const std::uint32_t count = 4;
    const KernelArgument arguments[] = {{&values, sizeof values}, {&count, sizeof count}};
    Result<void> launched = device(on).launch({stream_of_it}, kernel, {}, arguments);
    if (launched) launched = device(on).synchronize(stream_of_it);
    device(on).unload_kernel(kernel);
    return launched;
  }
};

}  // namespace tern::cuda
