// What this thread takes from the heap through operator new, counted, and refused on demand.
//
// A test that uses one of these links our replacement of operator new and delete, on malloc and
// free, so that sanitizers still see every block. Other threads are neither counted nor refused.
// Clang's thread sanitizer lets nobody replace them: there the count stays 0 and nothing is
// refused. Expectations allocate when they fail and sometimes when they do not: keep them out of
// the scope.

#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

namespace tern::test {

/// Counts from its construction on.
class AllocationCounter {
 public:
  AllocationCounter() noexcept;
  [[nodiscard]] std::size_t count() const noexcept;

 private:
  std::size_t before_;
};

/// While it lives, operator new of this thread makes a call once, behind the first `left`: so a
/// test can do something in the middle of an operation that allocates. The innermost one counts.
class CallAtAllocation {
 public:
  CallAtAllocation(std::size_t left, std::function<void()> call) noexcept;
  ~CallAtAllocation();
  CallAtAllocation(const CallAtAllocation&) = delete;
  CallAtAllocation& operator=(const CallAtAllocation&) = delete;

  [[nodiscard]] bool has_called() const noexcept { return has_called_; }
  /// Before each allocation.
  void count() noexcept;

 private:
  CallAtAllocation* const outer_;
  std::size_t left_;
  bool has_called_ = false;
  const std::function<void()> call_;
};

/// While one lives, every operator new of this thread fails, but for the first `left`; or, of those
/// behind them, the first, or every second. They nest, and the innermost one counts.
class HeapExhausted {
 public:
  enum class Mode : std::uint8_t { for_ever, once, every_second };

  explicit HeapExhausted(std::size_t left = 0, Mode mode = Mode::for_ever) noexcept;
  ~HeapExhausted();
  HeapExhausted(const HeapExhausted&) = delete;
  HeapExhausted& operator=(const HeapExhausted&) = delete;

  /// Has it refused anything?
  [[nodiscard]] bool has_failed() const noexcept;

  /// False where our operator new is not the one in use; a test that needs it is skipped.
  [[nodiscard]] static bool is_possible() noexcept;

 private:
  const HeapExhausted* const outer_;
  const Mode mode_;
  mutable std::size_t left_;
  mutable std::size_t beyond_ = 0;  // how many came behind those that were left
  friend struct HeapRefusal;
};

}  // namespace tern::test
