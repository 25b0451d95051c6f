#include "bench/copy_stage.hpp"

#include <cstring>
#include <utility>
#include <vector>

#include "tern/backends/catalog.hpp"

namespace tern::bench {

CopyStage::CopyStage(Context& context)
    : context_(context),
      device_(open_device(context.device())),
      stream_(device_),
      raw_(RawDriver::make(context, device_)) {}

DeviceMemory CopyStage::memory(MemoryKind kind, std::size_t bytes) const {
  DeviceMemory made(static_cast<std::byte*>(device_.allocate(kind, bytes)),
                    ReleaseDeleter{device_});
  stream_.fill(reinterpret_cast<unsigned char*>(made.get()), bytes, 1);
  stream_.synchronize();
  return made;
}

void CopyStage::compare(const CopyFigure& figure, const Body& ours, const Body& raw,
                        const Body& plain) const {
  context_.step(figure.name);
  const std::vector<double> seconds =
      median_seconds({ours, raw_ ? raw : plain}, context_.seconds_per_figure());
  const auto rate = [&](std::size_t i) {
    return static_cast<double>(figure.bytes) / seconds[i] / 1e9;
  };
  Figure added = {.name = figure.name,
                  .value = rate(0),
                  .unit = "GB/s",
                  .baseline_name = raw_ ? figure.raw_name : figure.plain_name,
                  .baseline = rate(1)};
  if (raw_) {
    added.goal_ratio = figure.goal_ratio;
    added.goal = figure.goal;
  }
  context_.add(std::move(added));
}

void CopyStage::compare_copy(const CopyFigure& figure, void* to, const void* from) const {
  CopyFigure named = figure;
  named.raw_name = "cuMemcpyAsync";
  named.plain_name = "memcpy, heap memory";
  compare(
      named,
      [&] {
        stream_.copy(to, from, figure.bytes);
        stream_.synchronize();
      },
      [&] {
        raw_->copy(to, from, figure.bytes);
        raw_->synchronize();
      },
      plain_copy(figure.bytes));
}

Body CopyStage::plain_copy(std::size_t bytes) const {
  if (raw_) return {};
  const std::shared_ptr<std::byte> to = heap_memory(bytes, 1), from = heap_memory(bytes, 2);
  return [=] { std::memcpy(to.get(), from.get(), bytes); };
}

Body CopyStage::plain_fill(std::size_t bytes) const {
  if (raw_) return {};
  const std::shared_ptr<std::byte> to = heap_memory(bytes, 1);
  return [=] { std::memset(to.get(), 7, bytes); };
}

}  // namespace tern::bench
