// Copies between pageable memory and the device: on an idle stream, after other work, and to memory
// that was never touched.

#include <fmt/format.h>
#include <sys/mman.h>

#include <cstring>
#include <stdexcept>

#include "bench/copy_stage.hpp"

namespace tern::bench {
namespace {

/// Fresh memory from the system, whose pages are not allocated yet.
class UntouchedMemory {
 public:
  explicit UntouchedMemory(std::size_t bytes) : bytes_(bytes) {
    address_ = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (address_ == MAP_FAILED) throw std::bad_alloc();
  }
  ~UntouchedMemory() { munmap(address_, bytes_); }
  UntouchedMemory(const UntouchedMemory&) = delete;
  UntouchedMemory& operator=(const UntouchedMemory&) = delete;
  [[nodiscard]] void* get() const { return address_; }

 private:
  const std::size_t bytes_;
  void* address_ = nullptr;
};

void add_untouched(const CopyStage& stage, const std::byte* device, std::size_t bytes) {
  stage.compare(
      {.name = fmt::format("{} to the host, untouched", format_bytes(bytes)),
       .bytes = bytes,
       .raw_name = "cuMemcpyAsync",
       .plain_name = "memcpy, heap memory"},
      [&] {
        const UntouchedMemory to(bytes);
        stage.stream().copy(to.get(), device, bytes);
        stage.stream().synchronize();
      },
      [&] {
        const UntouchedMemory to(bytes);
        stage.raw()->copy(to.get(), device, bytes);
        stage.raw()->synchronize();
      },
      stage.plain_copy(bytes));
}

/// Copies after a fill on the same stream. The time of the fill counts for both contestants.
void add_behind_work(const CopyStage& stage, const std::byte* device, std::byte* filled,
                     std::byte* host, std::size_t bytes) {
  auto* const bytes_of = reinterpret_cast<unsigned char*>(filled);
  const auto add = [&](const char* direction, void* to, const void* from) {
    stage.compare(
        {.name = fmt::format("{} to the {}, behind a fill", format_bytes(bytes), direction),
         .bytes = bytes,
         .raw_name = "cuMemcpyAsync",
         .plain_name = "memcpy, heap memory"},
        [&] {
          stage.stream().fill(bytes_of, bytes, 7);
          stage.stream().copy(to, from, bytes);
          stage.stream().synchronize();
        },
        [&] {
          RawDriver::check(stage.raw()->calls().cuMemsetD8Async(RawDriver::address(filled), 7,
                                                                bytes, stage.raw()->stream()),
                           "cuMemsetD8Async");
          stage.raw()->copy(to, from, bytes);
          stage.raw()->synchronize();
        },
        stage.plain_copy(bytes));
  };
  add("device", filled, host);
  add("host", host, device);
}

void run(Context& context) {
  const CopyStage stage(context);
  // On devices other than CUDA, a larger size gives no new information.
  const std::size_t usual = stage.raw() != nullptr ? gib : 64 * mib;
  const std::size_t most = context.usual_or_quick(usual, 1 * mib);
  const HeapMemory heap = heap_memory(most, 1);
  const DeviceMemory device = stage.memory(MemoryKind::device, most);
  for (const std::size_t bytes : ladder_bytes) {
    if (bytes > most) break;
    CopyFigure in = {.name = fmt::format("{} to the device", format_bytes(bytes)), .bytes = bytes};
    CopyFigure out = {.name = fmt::format("{} to the host", format_bytes(bytes)), .bytes = bytes};
    in.goal_ratio = out.goal_ratio = goal_copy_ratio;
    if (bytes == gib) {
      in.goal = goal_staged_to_device;
      in.goal_ratio = goal_staged_ratio_to_device;
      out.goal = goal_staged_to_host;
      out.goal_ratio = goal_staged_ratio_to_host;
    }
    stage.compare_copy(in, device.get(), heap.get());
    stage.compare_copy(out, heap.get(), device.get());
  }
  add_untouched(stage, device.get(), most);
  const DeviceMemory filled = stage.memory(MemoryKind::device, most);
  add_behind_work(stage, device.get(), filled.get(), heap.get(), most);
}

const Registration registered({"copy.pageable", "ordinary memory to the device and back", run});

}  // namespace
}  // namespace tern::bench
