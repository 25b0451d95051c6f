// What the programs of this folder share: the device of the command line, pools whose counters are
// printed, host memory for copies, a kernel, and one line of JSON with the counters of the library.
// tests/report/counted_test.py compares the line with the report about the program.

#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tern/backends/catalog.hpp>
#include <tern/buffer/array.hpp>
#include <tern/buffer/copy.hpp>
#include <tern/buffer/transfer_audit.hpp>
#include <tern/coherence/unified_buffer.hpp>
#include <tern/device/stream.hpp>
#include <tern/launch/kernel.hpp>
#include <tern/memory/pool_resource.hpp>
#include <tern/memory/tracking_resource.hpp>
#include <utility>
#include <vector>

namespace counted {

/// The arguments of the command line: a device, and a factor for all sizes.
struct Setting {
  tern::Device device;
  std::size_t factor = 1;

  /// Exits with status 77 if the device cannot be opened.
  static Setting of(int argc, char** argv) {
    const auto opened = tern::try_open_device(argc > 1 ? argv[1] : "sim");
    if (!opened) {
      std::fprintf(stderr, "%s\n", opened.failure().text().c_str());
      std::exit(77);
    }
    const long factor = argc > 2 ? std::atol(argv[2]) : 1;
    return {*opened, factor > 0 ? static_cast<std::size_t>(factor) : 1};
  }
};

/// A pool behind a TrackingResource, which knows the exact peak of the live bytes even if several
/// streams use the pool.
class CountedPool {
 public:
  explicit CountedPool(const tern::Device& device, tern::MemoryKind kind = tern::MemoryKind::device)
      : pool_(std::make_shared<tern::PoolResource>(device, tern::PoolOptions{.kind = kind})),
        memory_(std::make_shared<tern::TrackingResource>(pool_)) {}
  /// `wrapped` is a resource that allocates from the pool, such as a BudgetResource.
  CountedPool(std::shared_ptr<tern::PoolResource> pool, tern::ResourceHandle wrapped)
      : pool_(std::move(pool)),
        memory_(std::make_shared<tern::TrackingResource>(std::move(wrapped))) {}

  [[nodiscard]] tern::ResourceHandle memory() const { return memory_; }
  /// Returns the counters, with the device name that reports use: they list page-locked memory
  /// separately.
  [[nodiscard]] std::string json() const {
    const bool is_pinned = pool_->traits().kind == tern::MemoryKind::pinned;
    const tern::Statistics blocks = memory_->statistics();
    const tern::PoolStatistics pool = pool_->pool_statistics();
    return "{\"device\": \"" + std::string(is_pinned ? "page-locked memory of " : "") +
           std::string(pool_->device().spec()) +
           "\", \"live_bytes\": " + std::to_string(blocks.live_bytes) +
           ", \"peak_live_bytes\": " + std::to_string(blocks.peak_live_bytes) +
           ", \"held_bytes\": " + std::to_string(pool.held_bytes) +
           ", \"peak_held_bytes\": " + std::to_string(pool.peak_held_bytes) + "}";
  }

 private:
  std::shared_ptr<tern::PoolResource> pool_;
  std::shared_ptr<tern::TrackingResource> memory_;
};

inline std::string json(std::string_view name, const tern::CopyCount& count) {
  return "\"" + std::string(name) + "\": {\"copies\": " + std::to_string(count.copies) +
         ", \"bytes\": " + std::to_string(count.bytes) + "}";
}

/// Prints the counters of the pools and of all copies. `more` are further members of the object.
inline void print_counters(std::span<const CountedPool* const> pools,
                           const std::string& more = {}) {
  const tern::TransferCounts copies = tern::transfer_counts();
  std::string text = "{\"pools\": [";
  for (const CountedPool* pool : pools) {
    if (pool != pools.front()) text += ", ";
    text += pool->json();
  }
  text += "], \"copies\": {" + json("host to device", copies.host_to_device()) + ", " +
          json("device to host", copies.device_to_host()) + ", " +
          json("within a device", copies.device_to_device()) + ", " +
          json("between devices", copies.between_devices()) + "}" + more + "}";
  std::puts(text.c_str());
}

/// A pool of the device, and one of page-locked memory if the device has such memory.
class DevicePools {
 public:
  explicit DevicePools(const tern::Device& device) : memory(device), all_{&memory} {
    if (device.can(tern::Capability::pinned_memory)) {
      all_.push_back(&pinned_.emplace(device, tern::MemoryKind::pinned));
    }
  }
  DevicePools(const DevicePools&) = delete;
  DevicePools& operator=(const DevicePools&) = delete;

  /// Returns null if the device has no page-locked memory.
  [[nodiscard]] const CountedPool* pinned() const { return pinned_ ? &*pinned_ : nullptr; }
  [[nodiscard]] const std::vector<const CountedPool*>& all() const { return all_; }

  const CountedPool memory;

 private:
  std::optional<CountedPool> pinned_;
  std::vector<const CountedPool*> all_;
};

/// Writes one element, and doubles the written part with each copy. A simple loop takes seconds if
/// it is compiled without optimization.
inline void fill(std::span<float> all, float value) {
  if (!all.empty()) all[0] = value;
  for (std::size_t done = 1; done < all.size();) {
    const std::size_t next = std::min(done, all.size() - done);
    std::memcpy(&all[done], all.data(), next * sizeof(float));
    done += next;
  }
}

/// An array on the host, in page-locked memory if the device supports it, else in pageable memory.
class HostArray {
 public:
  /// If `pinned` is null, the memory is pageable.
  HostArray(const CountedPool* pinned, const tern::Device& device, std::size_t count,
            tern::Tag tag) {
    if (pinned == nullptr) {
      pageable_.resize(count);
    } else {
      pinned_ = tern::Buffer::allocate(device, tern::Shape::flat(count), tern::DType::f32,
                                       {.resource = pinned->memory(), .tag = tag});
    }
  }
  void fill(float value) {
    if (!pinned_) return counted::fill(pageable_, value);
    const auto all = pinned_.discard_host<float>();
    counted::fill({all.data(), all.size()}, value);
  }
  /// Waits for the stream and returns the last element.
  [[nodiscard]] float last(const tern::StreamRef stream) const {
    stream.synchronize();
    return pinned_ ? pinned_.read_host<float>()[pinned_.size() - 1] : pageable_.back();
  }
  void upload(tern::Array<float>& to, tern::StreamRef stream,
              tern::CallSite site = tern::CallSite::here()) const {
    if (pinned_) {
      tern::copy(to.buffer(), pinned_, stream, site);
    } else {
      to.copy_from(std::span<const float>(pageable_), stream, site);
    }
  }
  void download(const tern::Array<float>& from, tern::StreamRef stream,
                tern::CallSite site = tern::CallSite::here()) {
    if (pinned_) {
      tern::copy(pinned_, from.buffer(), stream, site);
    } else {
      from.copy_to(std::span<float>(pageable_), stream, site);
    }
  }

 private:
  tern::Buffer pinned_;
  std::vector<float> pageable_;
};

/// Adds a multiple of one array to another. A simulated CUDA driver cannot run the PTX kernel. On
/// this driver, the destination is filled instead.
class AddScaled {
 public:
  explicit AddScaled(const tern::Device& device) {
    tern::KernelSource source = {.entry = "add_scaled", .body = run, .text = opencl_text};
    if (device.info().backend == "cuda") {
      // The terminating zero is part of the image.
      source = {.entry = "add_scaled",
                .image = std::as_bytes(std::span(ptx_text.data(), ptx_text.size() + 1))};
    }
    tern::Result<tern::Kernel> loaded = tern::Kernel::try_load(device, source);
    if (loaded) {
      kernel_ = *std::move(loaded);
    } else if (device.spec().find("driver=sim") == device.spec().npos) {
      std::fprintf(stderr, "%s\n", loaded.failure().text().c_str());
      std::exit(1);
    }
  }
  void operator()(tern::StreamRef stream, tern::Array<float>& to, const tern::Array<float>& from,
                  float factor) const {
    if (!kernel_) {
      to.buffer().fill(factor, stream);
      return;
    }
    kernel_.launch(stream, tern::elements(to.size()), tern::inout(to), tern::in(from), factor,
                   std::uint64_t{to.size()});
  }
  /// Returns an empty kernel on a simulated CUDA driver.
  [[nodiscard]] const tern::Kernel& kernel() const { return kernel_; }

 private:
  static void run(const tern::KernelCall& call) {
    auto* const to = call.argument<float*>(0);
    const auto* const from = call.argument<const float*>(1);
    const auto factor = call.argument<float>(2);
    for (std::uint64_t i = 0; i < call.argument<std::uint64_t>(3); ++i) to[i] += factor * from[i];
  }
  static constexpr std::string_view opencl_text = R"(
__kernel void add_scaled(__global float* to, __global const float* from, float factor, ulong count) {
  for (ulong i = get_global_id(0); i < count; i += get_global_size(0)) to[i] += factor * from[i];
}
)";
  static constexpr std::string_view ptx_text = R"(
.version 6.0
.target sm_60
.address_size 64
.visible .entry add_scaled(.param .u64 to, .param .u64 from, .param .f32 factor, .param .u64 count)
{
  .reg .pred %is_over;
  .reg .f32 %factor, %value, %added;
  .reg .b32 %block, %width, %thread, %blocks;
  .reg .b64 %to, %from, %count, %at, %step, %first, %offset, %place, %source;
  ld.param.u64 %to, [to];
  ld.param.u64 %from, [from];
  ld.param.f32 %factor, [factor];
  ld.param.u64 %count, [count];
  cvta.to.global.u64 %to, %to;
  cvta.to.global.u64 %from, %from;
  mov.u32 %block, %ctaid.x;
  mov.u32 %width, %ntid.x;
  mov.u32 %thread, %tid.x;
  mov.u32 %blocks, %nctaid.x;
  mul.wide.u32 %at, %block, %width;
  cvt.u64.u32 %first, %thread;
  add.u64 %at, %at, %first;
  mul.wide.u32 %step, %blocks, %width;
again:
  setp.ge.u64 %is_over, %at, %count;
  @%is_over bra done;
  shl.b64 %offset, %at, 2;
  add.u64 %place, %to, %offset;
  add.u64 %source, %from, %offset;
  ld.global.f32 %value, [%place];
  ld.global.f32 %added, [%source];
  fma.rn.f32 %value, %added, %factor, %value;
  st.global.f32 [%place], %value;
  add.u64 %at, %at, %step;
  bra again;
done:
  ret;
}
)";

  tern::Kernel kernel_;
};

}  // namespace counted
