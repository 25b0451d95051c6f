// PendingFrees holds the charges of freed blocks that their streams have not passed yet: one queue
// per stream, shared by a tree of budgets.
//
// A BlockCharge is allocated together with its block and moves here when the block is freed, so
// freeing never allocates. Streams are distributed over buckets with one lock each, so threads with
// streams of their own rarely contend. Devices are queried without a lock. A charge is released
// exactly once, because it is unlinked under the lock. Thread-safe.

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
#include "tern/memory/budget.hpp"
#include "tern/memory/resource.hpp"

namespace tern {

class BudgetResource;

/// The charge of one block, from its allocation until its free has completed.
struct BlockCharge {
  Block block = {};
  std::size_t bytes = 0;
  Tag tag = {};
  Budget* budget = nullptr;
  /// The pending counter of the BudgetResource, which also identifies the resource. Null once the
  /// resource is destroyed.
  std::atomic<std::size_t>* resource_pending = nullptr;
  bool is_being_freed = false;
  Mark mark = {};
  std::uint64_t order = 0;  // sequence number of the free in the tree
  /// Link in the resource's table while the block is live, and in the stream's queue after the
  /// free.
  BlockCharge* next = nullptr;
  /// Used only in the first charge of a queue.
  BlockCharge* last = nullptr;
  BlockCharge* next_queue = nullptr;
};

class PendingFrees {
 public:
  PendingFrees() noexcept = default;
  PendingFrees(const PendingFrees&) = delete;
  PendingFrees& operator=(const PendingFrees&) = delete;
  ~PendingFrees();

  /// Takes ownership of the record. Its bytes are pending until its mark is done.
  void add(BlockCharge* record) noexcept;
  /// Releases the charges whose marks are done, and returns their bytes. Never waits.
  std::size_t drain() noexcept;
  /// How many queries of drain() have failed so far.
  [[nodiscard]] std::uint64_t failed_queries() const noexcept {
    return failed_queries_.load(std::memory_order_relaxed);
  }
  /// Returns the pending bytes of a stream.
  [[nodiscard]] std::size_t bytes(StreamId stream) const noexcept;

  struct Oldest {
    Mark mark = {};
    std::uint64_t order = 0;
  };
  /// Returns the oldest free with a number above `after` that is charged to `budget` or below it. A
  /// null budget means any.
  [[nodiscard]] std::optional<Oldest> oldest(const Budget* budget,
                                             std::uint64_t after) const noexcept;

  /// Removes up to `bytes` pending bytes of one stream and resource, oldest first, and returns them
  /// as a list. They are no longer pending but still charged. If the last record is larger than
  /// needed, it is split; the new record is `spare`, which is then set to null.
  struct Taken {
    BlockCharge* first = nullptr;
    std::size_t bytes = 0;
  };
  [[nodiscard]] Taken take(StreamId stream, const std::atomic<std::size_t>* resource,
                           std::size_t bytes, BlockCharge*& spare) noexcept;
  /// Makes taken bytes pending again.
  void put_back(const Taken& taken) noexcept;

  /// Registers a resource whose failed frees drain() retries, until forget() returns. Throws
  /// std::bad_alloc.
  void add(BudgetResource* resource);
  void forget(BudgetResource* resource) noexcept;
  void retry_failed_frees() noexcept;

  /// Moves the pending charges of a destroyed budget to its parent.
  void forget(const Budget* budget) noexcept;
  /// Detaches the pending charges of a destroyed resource from its counter.
  void forget(const std::atomic<std::size_t>* resource) noexcept;

 private:
  static constexpr std::size_t bucket_count = 64;

  struct alignas(64) Bucket {
    mutable std::mutex mutex;
    BlockCharge* queues = nullptr;  // guarded by mutex; a list of queues
    std::uint64_t frees = 0;        // guarded by mutex
  };

  [[nodiscard]] Bucket& bucket_of(StreamId stream) noexcept;
  /// Leaves frees with a number above `last_order` for another call, so that draining ends.
  std::size_t drain(Bucket& bucket, std::uint64_t last_order) noexcept;
  /// Calls function(record) for all records, one bucket at a time, under the bucket's lock.
  template <class Function>
  void for_each(Function function) const noexcept;

  // Call with the lock of the bucket held.
  [[nodiscard]] static BlockCharge** queue_of(Bucket& bucket, StreamId stream) noexcept;
  static void insert(Bucket& bucket, BlockCharge* record) noexcept;
  static void unlink(BlockCharge** queue, BlockCharge* before, BlockCharge* record) noexcept;
  [[nodiscard]] static std::optional<Mark> next_mark(const Bucket& bucket, StreamId after) noexcept;
  static std::size_t release_until(Bucket& bucket, Mark mark, std::uint64_t last_order) noexcept;

  std::array<Bucket, bucket_count> buckets_;
  std::atomic<std::uint64_t> orders_ = 0;

  struct Registered {
    BudgetResource* resource = nullptr;
    std::size_t users = 0;  // threads that are retrying its frees
  };
  std::mutex resources_mutex_;
  std::condition_variable user_left_;
  std::vector<Registered> resources_;  // guarded by resources_mutex_
  std::atomic<std::uint64_t> failed_queries_ = 0;
};

}  // namespace tern
