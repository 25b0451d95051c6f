// The frees of a tree of budgets that their streams have yet to pass: one queue per stream.
//
// A record is made with its block, before the block is, and moves here when the block is freed, so
// that freeing needs no memory. Streams are spread over buckets with a lock each, so that threads
// with streams of their own do not meet. Devices are asked without a lock, and about a stream when
// it has freed some more; a record leaves once, because it is unlinked under the lock. Thread-safe.

#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

#include "tern/core/tag.hpp"
#include "tern/device/mark.hpp"
#include "tern/memory/block.hpp"
#include "tern/memory/budget.hpp"

namespace tern {

class BudgetResource;

/// What a block has been charged, from its allocation until its free is done.
struct BlockCharge {
  Block block = {};
  std::size_t bytes = 0;
  Tag tag = {};
  Budget* budget = nullptr;
  /// The count of the resource it is from, which is also who that is; null once that is gone.
  std::atomic<std::size_t>* resource_pending = nullptr;
  bool is_being_freed = false;
  Mark mark = {};
  std::uint64_t order = 0;  // of all frees of the tree
  /// In the resource's table, and later in the queue of its stream.
  BlockCharge* next = nullptr;
  /// Of the first in a queue only.
  BlockCharge* last = nullptr;
  BlockCharge* next_queue = nullptr;
};

class PendingFrees {
 public:
  PendingFrees() noexcept = default;
  PendingFrees(const PendingFrees&) = delete;
  PendingFrees& operator=(const PendingFrees&) = delete;
  ~PendingFrees();

  /// Takes the record, whose bytes are pending from now on, until its mark is done.
  void add(BlockCharge* record) noexcept;
  Drained drain() noexcept;
  [[nodiscard]] std::size_t bytes(StreamId stream) const noexcept;

  struct Oldest {
    Mark mark = {};
    std::uint64_t order = 0;
  };
  /// The first free under the budget after that order.
  [[nodiscard]] std::optional<Oldest> oldest(const Budget* budget,
                                             std::uint64_t after) const noexcept;

  /// Up to so many bytes of one stream and resource, oldest first, as a list: not pending any more,
  /// and still charged. The last may be cut in two, for which `spare` is used and set to null.
  struct Taken {
    BlockCharge* first = nullptr;
    std::size_t bytes = 0;
  };
  [[nodiscard]] Taken take(StreamId stream, const std::atomic<std::size_t>* resource,
                           std::size_t bytes, BlockCharge*& spare) noexcept;
  void put_back(const Taken& taken) noexcept;

  /// A resource that charges to the tree, and whose failed frees drain() tries again; until
  /// forget() has returned. Throws std::bad_alloc.
  void add(BudgetResource* resource);
  void forget(BudgetResource* resource) noexcept;
  void retry_failed_frees() noexcept;

  /// What is pending in a budget that ends is pending in its parent.
  void forget(const Budget* budget) noexcept;
  void forget(const std::atomic<std::size_t>* resource) noexcept;

 private:
  static constexpr std::size_t bucket_count = 64;

  struct alignas(64) Bucket {
    mutable std::mutex mutex;
    BlockCharge* queues = nullptr;  // guarded by mutex; a list of them
    std::uint64_t frees = 0;        // guarded by mutex
  };

  [[nodiscard]] Bucket& bucket_of(StreamId stream) noexcept;
  /// Frees that came after that order are left for another time.
  void drain(Bucket& bucket, std::uint64_t last_order, Drained& result) noexcept;
  /// One bucket after the other, each under its lock.
  template <class Function>
  void for_each(Function function) const noexcept;

  // All with the lock of the bucket held.
  [[nodiscard]] static BlockCharge** queue_of(Bucket& bucket, StreamId stream) noexcept;
  static void insert(Bucket& bucket, BlockCharge* record) noexcept;
  static void unlink(BlockCharge** queue, BlockCharge* before, BlockCharge* record) noexcept;
  [[nodiscard]] static std::optional<Mark> next_mark(const Bucket& bucket, StreamId after) noexcept;
  static std::size_t release_until(Bucket& bucket, Mark mark, std::uint64_t last_order) noexcept;

  std::array<Bucket, bucket_count> buckets_;
  std::atomic<std::uint64_t> orders_ = 0;

  struct Registered {
    BudgetResource* resource = nullptr;
    std::size_t users = 0;  // threads that try its frees again
  };
  std::mutex resources_mutex_;
  std::condition_variable user_left_;
  std::vector<Registered> resources_;  // guarded by resources_mutex_
};

}  // namespace tern
