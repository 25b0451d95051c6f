// SpareRecords keeps the memory of small records that a thread has freed, for the next records of
// the thread. It saves the general allocator for records that are created and destroyed often. Each
// kind of record has one thread_local SpareRecords. A record may be freed on another thread than
// the one that created it.

#pragma once

#include <cstddef>
#include <new>
#include <utility>

namespace tern {

// Sanitizers must see every free. gcc and clang announce sanitizers in different ways.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool keeps_spare_records = false;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
inline constexpr bool keeps_spare_records = false;
#else
inline constexpr bool keeps_spare_records = true;
#endif
#else
inline constexpr bool keeps_spare_records = true;
#endif

template <std::size_t bytes, std::size_t alignment, std::size_t most>
class SpareRecords {
 public:
  constexpr SpareRecords() noexcept = default;
  SpareRecords(const SpareRecords&) = delete;
  SpareRecords& operator=(const SpareRecords&) = delete;
  ~SpareRecords() {
    while (first_ != nullptr) {
      ::operator delete(std::exchange(first_, first_->next), std::align_val_t(alignment));
    }
    count_ = max_kept;  // records freed after this destructor are not kept
  }

  /// Returns memory for one record, or null if the host has no memory.
  [[gnu::always_inline]] void* try_take() noexcept {
    if (first_ == nullptr) return ::operator new(bytes, std::align_val_t(alignment), std::nothrow);
    --count_;
    return std::exchange(first_, first_->next);
  }
  /// Keeps the memory of a record, or frees it if enough are kept.
  [[gnu::always_inline]] void give(void* record) noexcept {
    if (count_ >= max_kept) {
      ::operator delete(record, std::align_val_t(alignment));
      return;
    }
    ++count_;
    first_ = ::new (record) Record{first_};
  }

 private:
  struct Record {
    Record* next;
  };
  static_assert(bytes >= sizeof(Record) && alignment >= alignof(Record));
  static constexpr std::size_t max_kept = keeps_spare_records ? most : 0;

  Record* first_ = nullptr;
  std::size_t count_ = 0;
};

}  // namespace tern
