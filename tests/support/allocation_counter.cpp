#include "support/allocation_counter.hpp"

#include <cstdlib>
#include <new>
#include <utility>

namespace tern::test {

struct HeapRefusal {
  /// Returns whether the current allocation must fail.
  static bool applies(const HeapExhausted& heap) noexcept {
    if (heap.left_ > 0) {
      --heap.left_;
      return false;
    }
    const std::size_t at = heap.beyond_++;
    switch (heap.mode_) {
      case HeapExhausted::Mode::once:
        return at == 0;
      case HeapExhausted::Mode::every_second:
        return at % 2 == 0;
      default:
        return true;
    }
  }
};

namespace {

thread_local std::size_t allocations = 0;
thread_local const HeapExhausted* exhausted = nullptr;
thread_local CallAtAllocation* caller = nullptr;

void* take(std::size_t bytes, std::size_t alignment) noexcept {
  ++allocations;
  if (caller != nullptr) caller->count();
  if (exhausted != nullptr && HeapRefusal::applies(*exhausted)) return nullptr;
  // An allocation of zero bytes needs a unique address, and aligned_alloc needs a multiple of the
  // alignment.
  if (bytes == 0) bytes = 1;
  if (alignment <= __STDCPP_DEFAULT_NEW_ALIGNMENT__) return std::malloc(bytes);
  const std::size_t rest = bytes % alignment;
  return std::aligned_alloc(alignment, rest == 0 ? bytes : bytes + (alignment - rest));
}

void* take_or_throw(std::size_t bytes, std::size_t alignment) {
  void* const address = take(bytes, alignment);
  if (address == nullptr) throw std::bad_alloc();
  return address;
}

}  // namespace

CallAtAllocation::CallAtAllocation(std::size_t left, std::function<void()> call) noexcept
    : outer_(caller), left_(left), call_(std::move(call)) {
  caller = this;
}
CallAtAllocation::~CallAtAllocation() { caller = outer_; }

void CallAtAllocation::count() noexcept {
  if (has_called_ || left_-- > 0) return;
  has_called_ = true;  // allocations of the function itself are not counted
  call_();
}

AllocationCounter::AllocationCounter() noexcept : before_(allocations) {}
std::size_t AllocationCounter::count() const noexcept { return allocations - before_; }

HeapExhausted::HeapExhausted(std::size_t left, Mode mode) noexcept
    : outer_(exhausted), mode_(mode), left_(left) {
  exhausted = this;
}
HeapExhausted::~HeapExhausted() { exhausted = outer_; }

bool HeapExhausted::has_failed() const noexcept { return beyond_ > 0; }

bool HeapExhausted::is_possible() noexcept {
  const HeapExhausted nothing_left;
  void* const address = ::operator new(1, std::nothrow);
  ::operator delete(address);
  return address == nullptr;
}

}  // namespace tern::test

// Clang's thread sanitizer has strong definitions, so ours must be weak. The address sanitizer has
// weak definitions, so ours must be strong.
#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define REPLACED __attribute__((weak))
#endif
#endif
#ifndef REPLACED
#define REPLACED
#endif

using tern::test::take;
using tern::test::take_or_throw;

REPLACED void* operator new(std::size_t n) { return take_or_throw(n, 1); }
REPLACED void* operator new[](std::size_t n) { return take_or_throw(n, 1); }
REPLACED void* operator new(std::size_t n, const std::nothrow_t&) noexcept { return take(n, 1); }
REPLACED void* operator new[](std::size_t n, const std::nothrow_t&) noexcept { return take(n, 1); }
REPLACED void* operator new(std::size_t n, std::align_val_t a) {
  return take_or_throw(n, static_cast<std::size_t>(a));
}
REPLACED void* operator new[](std::size_t n, std::align_val_t a) {
  return take_or_throw(n, static_cast<std::size_t>(a));
}
REPLACED void* operator new(std::size_t n, std::align_val_t a, const std::nothrow_t&) noexcept {
  return take(n, static_cast<std::size_t>(a));
}
REPLACED void* operator new[](std::size_t n, std::align_val_t a, const std::nothrow_t&) noexcept {
  return take(n, static_cast<std::size_t>(a));
}

REPLACED void operator delete(void* p) noexcept { std::free(p); }
REPLACED void operator delete[](void* p) noexcept { std::free(p); }
REPLACED void operator delete(void* p, std::size_t) noexcept { std::free(p); }
REPLACED void operator delete[](void* p, std::size_t) noexcept { std::free(p); }
REPLACED void operator delete(void* p, const std::nothrow_t&) noexcept { std::free(p); }
REPLACED void operator delete[](void* p, const std::nothrow_t&) noexcept { std::free(p); }
REPLACED void operator delete(void* p, std::align_val_t) noexcept { std::free(p); }
REPLACED void operator delete[](void* p, std::align_val_t) noexcept { std::free(p); }
REPLACED void operator delete(void* p, std::size_t, std::align_val_t) noexcept { std::free(p); }
REPLACED void operator delete[](void* p, std::size_t, std::align_val_t) noexcept { std::free(p); }
REPLACED void operator delete(void* p, std::align_val_t, const std::nothrow_t&) noexcept {
  std::free(p);
}
REPLACED void operator delete[](void* p, std::align_val_t, const std::nothrow_t&) noexcept {
  std::free(p);
}
