// UnknownBlocks keeps the blocks of pools whose beginning the checker was not told, by generation.
//
// A host function or a kernel must not call its device. If one allocates from a pool all the same,
// the checker reports the call and learns nothing about the block. The end of such a block is not a
// second error. Thread-safe.

#pragma once

#include <cstdint>
#include <mutex>
#include <new>
#include <set>

namespace tern::sim {

class UnknownBlocks {
 public:
  void add(std::uint64_t generation) noexcept try {
    const std::lock_guard lock(mutex_);
    generations_.insert(generation);
  } catch (const std::bad_alloc&) {
    // The checker will report the end of the block, too.
  }
  /// Returns whether the block was unknown.
  [[nodiscard]] bool remove(std::uint64_t generation) noexcept {
    const std::lock_guard lock(mutex_);
    return generations_.erase(generation) != 0;
  }

 private:
  std::mutex mutex_;
  std::set<std::uint64_t> generations_;  // guarded by mutex_
};

}  // namespace tern::sim
