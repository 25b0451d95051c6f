// C functions around Tern, for a script that uses Tern beside PyTorch and CuPy in one process.
//
// Every function returns 0, or 1 with the error in neighbour_error(). For one thread at a time,
// except neighbour_grow(), which is independent of the other functions.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tern/backends/catalog.hpp"
#include "tern/device/device.hpp"
#include "tern/device/stream.hpp"
#include "tern/memory/default_resource.hpp"
#include "tern/memory/pool_resource.hpp"

namespace {

struct Neighbour {
  tern::Device device;
  tern::ResourceHandle resource;
  std::vector<tern::Stream> streams;
  std::map<void*, tern::Block> blocks;
};

// Never ended: what others hold of it goes with the process.
Neighbour& neighbour() {
  static Neighbour& instance = *new Neighbour;
  return instance;
}

thread_local std::string last_error;

template <class Body>
int guarded(Body body) noexcept {
  try {
    body();
    return 0;
  } catch (const std::exception& error) {
    last_error = error.what();
    return 1;
  }
}

}  // namespace

extern "C" {

__attribute__((visibility("default"))) const char* neighbour_error() { return last_error.c_str(); }

__attribute__((visibility("default"))) int neighbour_open(const char* spec) {
  return guarded([&] {
    neighbour().device = tern::open_device(spec);
    neighbour().resource = tern::default_resource(neighbour().device);
  });
}

/// A stream of somebody else's by its handle, or one of ours for a null `handle`; its number is
/// written to `stream`, and the driver's handle to `native`.
__attribute__((visibility("default"))) int neighbour_stream(int is_borrowed, std::uintptr_t handle,
                                                            std::size_t* stream,
                                                            std::uintptr_t* native) {
  return guarded([&] {
    Neighbour& here = neighbour();
    here.streams.push_back(is_borrowed != 0
                               ? tern::Stream::borrow(here.device, tern::NativeStream{handle})
                               : tern::Stream(here.device));
    *stream = here.streams.size() - 1;
    *native = here.streams.back().try_native().value().value;
  });
}

__attribute__((visibility("default"))) int neighbour_allocate(std::size_t bytes, std::size_t stream,
                                                              void** address) {
  return guarded([&] {
    Neighbour& here = neighbour();
    const tern::Block block =
        here.resource->allocate({.bytes = bytes, .stream = here.streams[stream]});
    here.blocks[block.address] = block;
    *address = block.address;
  });
}

__attribute__((visibility("default"))) int neighbour_free(void* address, std::size_t stream) {
  return guarded([&] {
    Neighbour& here = neighbour();
    here.resource->deallocate(here.blocks.at(address), here.streams[stream]);
    here.blocks.erase(address);
  });
}

__attribute__((visibility("default"))) int neighbour_fill(std::size_t stream, float* to,
                                                          std::size_t count, float value) {
  return guarded([&] { neighbour().streams[stream].fill(to, count, value); });
}

__attribute__((visibility("default"))) int neighbour_copy(std::size_t stream, void* to,
                                                          const void* from, std::size_t bytes) {
  return guarded([&] { neighbour().streams[stream].copy(to, from, bytes); });
}

/// Launches `entry` of a PTX text with (address, count) on blocks of 256 threads.
__attribute__((visibility("default"))) int neighbour_launch(std::size_t stream, const char* ptx,
                                                            const char* entry, float* address,
                                                            std::uint32_t count) {
  return guarded([&] {
    Neighbour& here = neighbour();
    const std::span<const char> text(ptx, std::strlen(ptx) + 1);
    const tern::NativeKernel kernel =
        here.device.try_load_kernel({.entry = entry, .image = std::as_bytes(text)}).value();
    const tern::KernelArgument arguments[] = {
        {&address, sizeof address, address, count * sizeof(float), tern::Access::read_write},
        {&count, sizeof count}};
    here.streams[stream].launch(kernel, {.grid = {(count + 255) / 256, 1, 1}, .block = {256, 1, 1}},
                                arguments);
    here.device.unload_kernel(kernel);  // what is queued still runs
  });
}

/// Makes a pool that takes memory from the driver, uses pinned memory, and gives all of it back.
__attribute__((visibility("default"))) int neighbour_grow(std::size_t bytes) {
  return guarded([&] {
    const tern::Device device = neighbour().device;
    const tern::Stream stream(device);
    const auto pool = std::make_shared<tern::PoolResource>(device);
    const auto pinned = std::make_shared<tern::PoolResource>(
        device, tern::PoolOptions{.kind = tern::MemoryKind::pinned});
    for (const auto& resource : {pool, pinned}) {
      const tern::Block block = resource->allocate({.bytes = bytes, .stream = stream});
      resource->deallocate(block, stream);
    }
    void* plain = device.allocate(tern::MemoryKind::device, bytes);
    device.release(plain);
  });
}

__attribute__((visibility("default"))) int neighbour_synchronize(std::size_t stream) {
  return guarded([&] { neighbour().streams[stream].synchronize(); });
}

__attribute__((visibility("default"))) int neighbour_live_bytes(std::size_t* bytes) {
  return guarded([&] { *bytes = neighbour().resource->statistics().live_bytes; });
}

}  // extern "C"
