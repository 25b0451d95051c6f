// What this thread takes from the heap through operator new, counted, and refused on demand.
//
// A test that uses one of these links our replacement of operator new and delete, on malloc and
// free, so that sanitizers still see every block. Other threads are neither counted nor refused.
// Clang's thread sanitizer lets nobody replace them: there the count stays 0 and nothing is
// refused. Expectations allocate when they fail and sometimes when they do not: keep them out of
// the scope.

#pragma once

#include <cstddef>

namespace tern::test {

/// Counts from its construction on.
class AllocationCounter {
 public:
  AllocationCounter() noexcept;
  [[nodiscard]] std::size_t count() const noexcept;

 private:
  std::size_t before_;
};

/// While one lives, every operator new of this thread fails, but for the first `left`. They nest,
/// and the innermost one's `left` counts.
class HeapExhausted {
 public:
  explicit HeapExhausted(std::size_t left = 0) noexcept;
  ~HeapExhausted();
  HeapExhausted(const HeapExhausted&) = delete;
  HeapExhausted& operator=(const HeapExhausted&) = delete;

  /// False where our operator new is not the one in use; a test that needs it is skipped.
  [[nodiscard]] static bool is_possible() noexcept;

 private:
  std::size_t left_before_;
};

}  // namespace tern::test
