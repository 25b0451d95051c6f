// Writes to a block of a pool after giving it back: a mistake, for a tool to find.
//
//   stale_block segments|pages

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>
#include <span>

#include "tern/backends/catalog.hpp"
#include "tern/device/stream.hpp"
#include "tern/memory/pool_resource.hpp"

namespace {

constexpr char store_one[] = R"(
.version 7.0
.target sm_52
.address_size 64
.visible .entry store_one(.param .u64 to)
{
  .reg .b64 %to;
  .reg .b32 %one;
  ld.param.u64 %to, [to];
  cvta.to.global.u64 %to, %to;
  mov.u32 %one, 1;
  st.global.u32 [%to], %one;
  ret;
}
)";

void store(const tern::Device& device, const tern::Stream& stream, void* to) {
  const tern::NativeKernel kernel =
      device
          .try_load_kernel({.entry = "store_one",
                            .image = std::as_bytes(std::span(store_one, sizeof store_one))})
          .value();
  const tern::KernelArgument argument{&to, sizeof to, to, 4, tern::Access::discard};
  stream.launch(kernel, {}, std::span(&argument, 1));
  stream.synchronize();
}

}  // namespace

int main(int count, char** arguments) try {
  const bool is_paged = count == 2 && std::strcmp(arguments[1], "pages") == 0;
  const tern::Device device = tern::open_device("cuda:0");
  const tern::Stream stream(device);
  tern::PoolOptions options;
  options.backing = is_paged ? tern::PoolBacking::pages : tern::PoolBacking::segments;
  const auto pool = std::make_shared<tern::PoolResource>(device, options);
  const tern::Block kept = pool->allocate({.bytes = 4096, .stream = stream});
  const tern::Block stale = pool->allocate({.bytes = 4096, .stream = stream});
  store(device, stream, kept.address);
  std::puts("a live block was written");
  pool->deallocate(stale, stream);
  store(device, stream, stale.address);
  std::puts("a stale block was written");
  pool->deallocate(kept, stream);
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 2;
}
