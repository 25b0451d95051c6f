// Queues of pending charges. In each queue, records are sorted by the number of their free.

#include "memory/pending_frees.hpp"

#include <algorithm>
#include <functional>
#include <utility>

#include "tern/device/device.hpp"
#include "tern/memory/budget_resource.hpp"

namespace tern {
namespace {

/// Frees between automatic drains, so that the queues stay short even if no request reaches a
/// limit. Every 64th free of a bucket drains that bucket, every 4096th free of the tree drains all,
/// because other streams may be idle.
constexpr std::uint64_t frees_per_drain = 64, frees_per_full_drain = 4096;

/// Work of a lost device, or of the parent process after a fork, will never use memory again.
bool is_over(const Failure& failure) {
  return failure.code() == ErrorCode::device_lost || failure.code() == ErrorCode::after_fork;
}

}  // namespace

PendingFrees::~PendingFrees() {
  for (Bucket& bucket : buckets_) {
    BlockCharge* queue = bucket.queues;
    while (queue != nullptr) {
      BlockCharge* const next_queue = queue->next_queue;
      while (queue != nullptr) delete std::exchange(queue, queue->next);
      queue = next_queue;
    }
  }
}

PendingFrees::Bucket& PendingFrees::bucket_of(StreamId stream) noexcept {
  return buckets_[std::hash<StreamId>{}(stream) % bucket_count];
}

BlockCharge** PendingFrees::queue_of(Bucket& bucket, StreamId stream) noexcept {
  BlockCharge** queue = &bucket.queues;
  while (*queue != nullptr && (*queue)->mark.stream != stream) queue = &(*queue)->next_queue;
  return queue;
}

// Inserts by the number of the free. New frees go to the end; put_back() may insert anywhere. The
// first record of a queue also stores the queue's last record and the link to the next queue.
void PendingFrees::insert(Bucket& bucket, BlockCharge* record) noexcept {
  BlockCharge** const queue = queue_of(bucket, record->mark.stream);
  BlockCharge* const first = *queue;
  record->next = nullptr;
  if (first == nullptr) {
    record->last = record;
    record->next_queue = nullptr;
    *queue = record;
  } else if (record->order >= first->last->order) {
    first->last->next = record;
    first->last = record;
  } else if (record->order <= first->order) {
    record->next = first;
    record->last = first->last;
    record->next_queue = first->next_queue;
    *queue = record;
  } else {
    BlockCharge* before = first;
    while (before->next->order < record->order) before = before->next;
    record->next = std::exchange(before->next, record);
  }
}

void PendingFrees::unlink(BlockCharge** queue, BlockCharge* before, BlockCharge* record) noexcept {
  BlockCharge* const first = *queue;
  if (before != nullptr) {
    before->next = record->next;
    if (first->last == record) first->last = before;
  } else if (record->next == nullptr) {
    *queue = record->next_queue;
  } else {
    record->next->last = record->last;
    record->next->next_queue = record->next_queue;
    *queue = record->next;
  }
  record->next = nullptr;
}

template <class Function>
void PendingFrees::for_each(Function function) const noexcept {
  for (const Bucket& bucket : buckets_) {
    const std::lock_guard lock(bucket.mutex);
    for (BlockCharge* queue = bucket.queues; queue != nullptr; queue = queue->next_queue) {
      for (BlockCharge* record = queue; record != nullptr; record = record->next) function(*record);
    }
  }
}

void PendingFrees::add(BlockCharge* record) noexcept {
  Bucket& bucket = bucket_of(record->mark.stream);
  bool is_time_to_drain = false;
  std::uint64_t order = 0;
  {
    const std::lock_guard lock(bucket.mutex);
    order = record->order = orders_.fetch_add(1, std::memory_order_relaxed) + 1;
    record->budget->add_pending(record->bytes);
    if (record->resource_pending != nullptr) *record->resource_pending += record->bytes;
    insert(bucket, record);
    is_time_to_drain = ++bucket.frees % frees_per_drain == 0;
  }
  if (order % frees_per_full_drain == 0) {
    drain();
  } else if (is_time_to_drain) {
    drain(bucket, order);
  }
}

// Returns the oldest mark of the stream with the smallest id above `after`. Iterating by id is safe
// while other threads add and remove queues.
std::optional<Mark> PendingFrees::next_mark(const Bucket& bucket, StreamId after) noexcept {
  std::optional<Mark> least;
  for (BlockCharge* queue = bucket.queues; queue != nullptr; queue = queue->next_queue) {
    const StreamId stream = queue->mark.stream;
    if (stream > after && (!least || stream < least->stream)) least = queue->mark;
  }
  return least;
}

// Ends the charges of one stream up to the mark. Returns the bytes. Call with the bucket locked.
std::size_t PendingFrees::release_until(Bucket& bucket, Mark mark,
                                        std::uint64_t last_order) noexcept {
  BlockCharge** const queue = queue_of(bucket, mark.stream);
  std::size_t released = 0;
  while (*queue != nullptr && (*queue)->mark.stream == mark.stream &&
         (*queue)->mark.sequence <= mark.sequence && (*queue)->order <= last_order) {
    BlockCharge* const record = *queue;
    unlink(queue, nullptr, record);
    if (record->resource_pending != nullptr) *record->resource_pending -= record->bytes;
    record->budget->remove_pending(record->bytes);
    record->budget->release(record->bytes, record->tag);
    released += record->bytes;
    delete record;
  }
  return released;
}

// Queries the oldest mark of each stream. As long as a query releases bytes, the same stream is
// queried again; then the next one.
std::size_t PendingFrees::drain(Bucket& bucket, std::uint64_t last_order) noexcept {
  std::size_t all = 0;
  StreamId seen;
  for (;;) {
    std::optional<Mark> mark;
    {
      const std::lock_guard lock(bucket.mutex);
      mark = next_mark(bucket, seen);
    }
    if (!mark) return all;
    const Result<bool> is_done = Device::try_is_done(*mark);
    std::size_t released = 0;
    if (is_done ? *is_done : is_over(is_done.failure())) {
      const std::lock_guard lock(bucket.mutex);
      released = release_until(bucket, *mark, last_order);
    } else if (!is_done) {
      failed_queries_.fetch_add(1, std::memory_order_relaxed);
    }
    all += released;
    if (released == 0) seen = mark->stream;
  }
}

std::size_t PendingFrees::drain() noexcept {
  std::size_t released = 0;
  // Frees that arrive during this call are left for the next one; otherwise it might never end.
  const std::uint64_t last_order = orders_.load(std::memory_order_relaxed);
  for (Bucket& bucket : buckets_) released += drain(bucket, last_order);
  return released;
}

std::size_t PendingFrees::bytes(StreamId stream) const noexcept {
  std::size_t sum = 0;
  for_each([&](const BlockCharge& record) {
    if (record.mark.stream == stream) sum += record.bytes;
  });
  return sum;
}

std::optional<PendingFrees::Oldest> PendingFrees::oldest(const Budget* budget,
                                                         std::uint64_t after) const noexcept {
  std::optional<Oldest> first;
  for_each([&](const BlockCharge& record) {
    if (record.order <= after || (first && record.order >= first->order)) return;
    if (record.budget->is_under(budget)) first = Oldest{record.mark, record.order};
  });
  return first;
}

// Skips records of other resources, because only the same upstream can reuse the memory.
PendingFrees::Taken PendingFrees::take(StreamId stream, const std::atomic<std::size_t>* resource,
                                       std::size_t bytes, BlockCharge*& spare) noexcept {
  Bucket& bucket = bucket_of(stream);
  const std::lock_guard lock(bucket.mutex);
  Taken taken;
  BlockCharge** const queue = queue_of(bucket, stream);
  BlockCharge* before = nullptr;
  BlockCharge* record = *queue;
  while (record != nullptr && taken.bytes < bytes) {
    BlockCharge* const next = record->next;
    if (record->resource_pending != resource) {
      before = record;
      record = next;
      continue;
    }
    const std::size_t part = std::min(record->bytes, bytes - taken.bytes);
    if (part < record->bytes) {
      *spare = *record;
      spare->bytes = part;
      record->bytes -= part;
      record = std::exchange(spare, nullptr);
    } else {
      unlink(queue, before, record);
    }
    record->budget->remove_pending(part);
    *record->resource_pending -= part;
    taken.bytes += part;
    record->next = std::exchange(taken.first, record);
    record = next;
  }
  return taken;
}

void PendingFrees::put_back(const Taken& taken) noexcept {
  if (taken.first == nullptr) return;
  // All taken records belong to one stream, and so to one bucket.
  Bucket& bucket = bucket_of(taken.first->mark.stream);
  const std::lock_guard lock(bucket.mutex);
  for (BlockCharge* record = taken.first; record != nullptr;) {
    BlockCharge* const next = record->next;
    record->budget->add_pending(record->bytes);
    *record->resource_pending += record->bytes;
    insert(bucket, record);
    record = next;
  }
}

void PendingFrees::add(BudgetResource* resource) {
  const std::lock_guard lock(resources_mutex_);
  resources_.push_back({resource});
}

void PendingFrees::forget(BudgetResource* resource) noexcept {
  std::unique_lock lock(resources_mutex_);
  const auto find = [&] { return std::ranges::find(resources_, resource, &Registered::resource); };
  user_left_.wait(lock, [&] { return find()->users == 0; });
  resources_.erase(find());
}

void PendingFrees::retry_failed_frees() noexcept {
  std::unique_lock lock(resources_mutex_);
  for (std::size_t i = 0; i < resources_.size(); ++i) {
    BudgetResource* const resource = resources_[i].resource;
    if (!resource->has_failed_frees()) continue;
    // The driver is called without the lock. The user count keeps this resource in the list
    // meanwhile; other entries may change.
    ++resources_[i].users;
    lock.unlock();
    resource->retry_failed_frees();
    lock.lock();
    --std::ranges::find(resources_, resource, &Registered::resource)->users;
    user_left_.notify_all();
  }
}

void PendingFrees::forget(const Budget* budget) noexcept {
  for_each([&](BlockCharge& record) {
    if (record.budget == budget) record.budget = budget->parent_.get();
  });
}

void PendingFrees::forget(const std::atomic<std::size_t>* resource) noexcept {
  for_each([&](BlockCharge& record) {
    if (record.resource_pending == resource) record.resource_pending = nullptr;
  });
}

}  // namespace tern
