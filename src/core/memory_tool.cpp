#include "core/memory_tool.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <new>

#if __has_include(<valgrind/memcheck.h>)
// Valgrind's macros use C casts and comparisons.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wold-style-cast"
#include <valgrind/memcheck.h>
#define TERN_HAS_VALGRIND 1
#else
#define TERN_HAS_VALGRIND 0
#endif

/// Defined in programs that run under AddressSanitizer, whether or not this file is instrumented.
extern "C" {
[[gnu::weak]] void __asan_poison_memory_region(const volatile void* begin, std::size_t bytes);
[[gnu::weak]] void __asan_unpoison_memory_region(const volatile void* begin, std::size_t bytes);
[[gnu::weak]] void* __asan_region_is_poisoned(void* begin, std::size_t bytes);
[[gnu::weak]] void __asan_get_shadow_mapping(std::size_t* scale, std::size_t* offset);
[[gnu::weak]] void __asan_report_error(void* pc, void* bp, void* sp, void* address, int is_write,
                                       std::size_t bytes);
}

namespace tern {
namespace {

class AddressSanitizer final : public MemoryTool {
 public:
  AddressSanitizer() noexcept {
    if (__asan_get_shadow_mapping != nullptr) __asan_get_shadow_mapping(&scale_, &offset_);
  }

  void poison(const void* address, std::size_t bytes) noexcept override {
    __asan_poison_memory_region(address, bytes);
  }
  void unpoison(const void* address, std::size_t bytes) noexcept override {
    __asan_unpoison_memory_region(address, bytes);
  }
  bool is_accessible(const void* address, std::size_t bytes) const noexcept override {
    return __asan_region_is_poisoned(const_cast<void*>(address), bytes) == nullptr;
  }

  void report(const void* address, std::size_t bytes, bool is_written) noexcept override {
    void* const first =
        __asan_region_is_poisoned(const_cast<void*>(address), bytes);  // null: unpoisoned meanwhile
    if (first == nullptr || __asan_report_error == nullptr) return;
    void* const frame = __builtin_frame_address(0);
    __asan_report_error(__builtin_return_address(0), frame, frame, first, is_written ? 1 : 0, 1);
  }

  // Reads the shadow bytes of AddressSanitizer, because its interface does not tell freed memory
  // from poisoned memory. The shadow is not ordinary memory, hence no_sanitize_address.
  [[gnu::no_sanitize_address]] bool is_freed(const void* address,
                                             std::size_t bytes) const noexcept override {
    constexpr unsigned char heap_freed = 0xfd, frame_ended = 0xf5, scope_ended = 0xf8;
    if (scale_ == 0 || bytes == 0) return false;
    const auto shadow_of = [this](std::uintptr_t at) {
      return reinterpret_cast<const volatile unsigned char*>((at >> scale_) + offset_);
    };
    const auto first = reinterpret_cast<std::uintptr_t>(address);
    const volatile unsigned char* const last = shadow_of(first + bytes - 1);
    for (const volatile unsigned char* at = shadow_of(first); at <= last; ++at) {
      const unsigned char state = *at;
      if (state == heap_freed || state == frame_ended || state == scope_ended) return true;
    }
    return false;
  }

 private:
  std::size_t scale_ = 0, offset_ = 0;
};

#if TERN_HAS_VALGRIND
class Valgrind final : public MemoryTool {
 public:
  void poison(const void* address, std::size_t bytes) noexcept override {
    static_cast<void>(VALGRIND_MAKE_MEM_NOACCESS(address, bytes));
  }
  // Marks the memory as initialised too: Valgrind does not see the writes of drivers and devices.
  void unpoison(const void* address, std::size_t bytes) noexcept override {
    static_cast<void>(VALGRIND_MAKE_MEM_DEFINED(address, bytes));
  }
  bool is_accessible(const void* address, std::size_t bytes) const noexcept override {
    constexpr unsigned not_addressable = 3;
    std::array<unsigned char, 4096> bits;
    const auto* at = static_cast<const unsigned char*>(address);
    while (bytes > 0) {
      const std::size_t now = std::min(bytes, bits.size());
      if (VALGRIND_GET_VBITS(at, bits.data(), now) == not_addressable) return false;
      at += now;
      bytes -= now;
    }
    return true;
  }
  // Valgrind sees the accesses of drivers itself.
  void report(const void*, std::size_t, bool) noexcept override {}
  // Valgrind does not tell freed memory from memory made inaccessible.
  bool is_freed(const void*, std::size_t) const noexcept override { return false; }
};
#endif

MemoryTool* find_tool() noexcept {
  // Never destroyed: memory is poisoned and unpoisoned until the process ends.
  if (__asan_poison_memory_region != nullptr && __asan_unpoison_memory_region != nullptr &&
      __asan_region_is_poisoned != nullptr) {
    alignas(AddressSanitizer) static std::byte storage[sizeof(AddressSanitizer)];
    return ::new (storage) AddressSanitizer;
  }
#if TERN_HAS_VALGRIND
  if (RUNNING_ON_VALGRIND != 0) {
    alignas(Valgrind) static std::byte storage[sizeof(Valgrind)];
    return ::new (storage) Valgrind;
  }
#endif
  return nullptr;
}

std::atomic<MemoryTool*>& current() noexcept {
  static std::atomic<MemoryTool*> tool = find_tool();
  return tool;
}

}  // namespace

MemoryTool* memory_tool() noexcept { return current().load(std::memory_order_acquire); }

ScopedMemoryTool::ScopedMemoryTool(MemoryTool* tool) noexcept : before_(current().exchange(tool)) {}
ScopedMemoryTool::~ScopedMemoryTool() { current().store(before_); }

}  // namespace tern

#if TERN_HAS_VALGRIND
#pragma GCC diagnostic pop
#endif
