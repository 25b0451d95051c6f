// Counts the allocations of this thread through operator new, and makes them fail on request.
//
// A test that uses this header links a replacement of operator new and delete. The replacement uses
// malloc and free, so sanitizers still see every block. Allocations of other threads neither count
// nor fail. Under Clang's thread sanitizer, operator new cannot be replaced: the count stays 0 and
// nothing fails. GoogleTest's expectations may allocate, so keep them out of the counted scope.

#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

namespace tern::test {

/// Counts the allocations since its construction.
class AllocationCounter {
 public:
  AllocationCounter() noexcept;
  [[nodiscard]] std::size_t count() const noexcept;

 private:
  std::size_t before_;
};

/// While this object lives, the allocation after the first `left` calls a function, once. So a test
/// can do something in the middle of an operation that allocates. If several objects are alive, the
/// innermost one counts.
class CallAtAllocation {
 public:
  CallAtAllocation(std::size_t left, std::function<void()> call) noexcept;
  ~CallAtAllocation();
  CallAtAllocation(const CallAtAllocation&) = delete;
  CallAtAllocation& operator=(const CallAtAllocation&) = delete;

  [[nodiscard]] bool has_called() const noexcept { return has_called_; }
  /// Called before each allocation.
  void count() noexcept;

 private:
  CallAtAllocation* const outer_;
  std::size_t left_;
  bool has_called_ = false;
  const std::function<void()> call_;
};

/// While this object lives, allocations of this thread fail after the first `left`: all of them,
/// only the first, or every second one, beginning with the first. If several objects are alive, the
/// innermost one counts.
class HeapExhausted {
 public:
  enum class Mode : std::uint8_t { for_ever, once, every_second };

  explicit HeapExhausted(std::size_t left = 0, Mode mode = Mode::for_ever) noexcept;
  ~HeapExhausted();
  HeapExhausted(const HeapExhausted&) = delete;
  HeapExhausted& operator=(const HeapExhausted&) = delete;

  /// Returns whether an allocation has failed.
  [[nodiscard]] bool has_failed() const noexcept;

  /// Returns false if the replaced operator new is not in use. A test that needs it is then
  /// skipped.
  [[nodiscard]] static bool is_possible() noexcept;

 private:
  const HeapExhausted* const outer_;
  const Mode mode_;
  mutable std::size_t left_;
  mutable std::size_t beyond_ = 0;  // allocations after the first `left`
  friend struct HeapRefusal;
};

}  // namespace tern::test
