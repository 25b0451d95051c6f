// A std::pmr resource on the heap that checks that every block is returned with the right size and
// alignment.
//
// Like many standard resources, it is not thread-safe. It records if two threads use it at the same
// time.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory_resource>
#include <new>

namespace tern::test {

class HeapResource final : public std::pmr::memory_resource {
 public:
  std::function<void()> in_allocate = {};
  std::function<void()> in_deallocate = {};
  int mistakes = 0;
  std::atomic<int> meetings = 0;

  [[nodiscard]] std::size_t live_blocks() const { return given_.size(); }

 private:
  struct Given {
    std::size_t bytes = 0, alignment = 0;
    bool operator==(const Given&) const = default;
  };
  struct Visit {
    explicit Visit(HeapResource& resource) : in(resource) {
      in.meetings += in.is_busy_.exchange(true);
    }
    ~Visit() { in.is_busy_ = false; }
    HeapResource& in;
  };

  void* do_allocate(std::size_t bytes, std::size_t alignment) override {
    const Visit visit(*this);
    if (in_allocate) in_allocate();
    // Not operator new, because under a sanitizer it cannot be made to fail.
    const std::size_t whole = (bytes + alignment - 1) / alignment * alignment;
    void* const address = whole < bytes ? nullptr : std::aligned_alloc(alignment, whole);
    if (address == nullptr) throw std::bad_alloc();
    given_[address] = {bytes, alignment};
    return address;
  }
  void do_deallocate(void* address, std::size_t bytes, std::size_t alignment) override {
    const Visit visit(*this);
    if (in_deallocate) in_deallocate();
    const auto found = given_.find(address);
    if (found == given_.end() || found->second != Given{bytes, alignment}) {
      ++mistakes;
      return;
    }
    given_.erase(found);
    std::free(address);
  }
  [[nodiscard]] bool do_is_equal(const std::pmr::memory_resource& other) const noexcept override {
    return this == &other;
  }

  std::atomic<bool> is_busy_ = false;
  std::map<void*, Given> given_;
};

/// Never destroyed.
inline HeapResource* heap_resource() {
  static HeapResource& instance = *new HeapResource;
  return &instance;
}

}  // namespace tern::test
