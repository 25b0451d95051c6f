#include "memory/pending_frees.hpp"

#include <algorithm>
#include <functional>
#include <utility>

#include "tern/device/device.hpp"

namespace tern {
namespace {

/// Where nobody asks for long, so that the list of frees stays short without a limit, too.
constexpr std::uint64_t frees_per_drain = 64;

/// The work of a device that is lost, or was the parent process's, will never use memory again.
bool is_over(const Failure& failure) {
  return failure.code() == ErrorCode::device_lost || failure.code() == ErrorCode::after_fork;
}

}  // namespace

PendingFrees::~PendingFrees() {
  for (BlockCharge* queue : buckets_) {
    while (queue != nullptr) {
      BlockCharge* const next_queue = queue->next_queue;
      while (queue != nullptr) delete std::exchange(queue, queue->next);
      queue = next_queue;
    }
  }
}

BlockCharge** PendingFrees::queue_of(StreamId stream) noexcept {
  BlockCharge** queue = &buckets_[std::hash<StreamId>{}(stream) % bucket_count];
  while (*queue != nullptr && (*queue)->mark.stream != stream) queue = &(*queue)->next_queue;
  return queue;
}

void PendingFrees::insert(BlockCharge* record) noexcept {
  BlockCharge** const queue = queue_of(record->mark.stream);
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
  for (BlockCharge* queue : buckets_) {
    for (; queue != nullptr; queue = queue->next_queue) {
      for (BlockCharge* record = queue; record != nullptr; record = record->next) function(*record);
    }
  }
}

void PendingFrees::add(BlockCharge* record) noexcept {
  bool is_time_to_drain = false;
  {
    const std::lock_guard lock(mutex_);
    record->order = ++orders_;
    record->budget->add_pending(record->bytes);
    if (record->resource_pending != nullptr) *record->resource_pending += record->bytes;
    insert(record);
    is_time_to_drain = orders_ % frees_per_drain == 0;
  }
  if (is_time_to_drain) drain();
}

std::optional<Mark> PendingFrees::next_mark(std::size_t bucket, StreamId after) const noexcept {
  std::optional<Mark> least;
  for (BlockCharge* queue = buckets_[bucket]; queue != nullptr; queue = queue->next_queue) {
    const StreamId stream = queue->mark.stream;
    if (stream > after && (!least || stream < least->stream)) least = queue->mark;
  }
  return least;
}

std::size_t PendingFrees::release_until(Mark mark, std::uint64_t last_order) noexcept {
  BlockCharge** const queue = queue_of(mark.stream);
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

Drained PendingFrees::drain() noexcept {
  Drained result;
  // Frees that come while this runs are left for the next time, or it might never end.
  std::uint64_t last_order = 0;
  {
    const std::lock_guard lock(mutex_);
    last_order = orders_;
  }
  std::size_t bucket = 0;
  StreamId seen;
  for (;;) {
    std::optional<Mark> mark;
    {
      const std::lock_guard lock(mutex_);
      while (bucket < bucket_count && !(mark = next_mark(bucket, seen))) {
        ++bucket;
        seen = {};
      }
    }
    if (!mark) return result;
    const Result<bool> is_done = Device::try_is_done(*mark);
    std::size_t released = 0;
    if (is_done ? *is_done : is_over(is_done.failure())) {
      const std::lock_guard lock(mutex_);
      released = release_until(*mark, last_order);
    } else if (!is_done) {
      ++result.failed_streams;
    }
    result.released_bytes += released;
    if (released == 0) seen = mark->stream;
  }
}

std::size_t PendingFrees::bytes(StreamId stream) const noexcept {
  const std::lock_guard lock(mutex_);
  std::size_t sum = 0;
  for_each([&](const BlockCharge& record) {
    if (record.mark.stream == stream) sum += record.bytes;
  });
  return sum;
}

std::optional<PendingFrees::Oldest> PendingFrees::oldest(const Budget* budget,
                                                         std::uint64_t after) const noexcept {
  const std::lock_guard lock(mutex_);
  std::optional<Oldest> first;
  for_each([&](const BlockCharge& record) {
    if (record.order <= after || (first && record.order >= first->order)) return;
    if (record.budget->is_under(budget)) first = Oldest{record.mark, record.order};
  });
  return first;
}

PendingFrees::Taken PendingFrees::take(StreamId stream, const std::atomic<std::size_t>* resource,
                                       std::size_t bytes, BlockCharge*& spare) noexcept {
  const std::lock_guard lock(mutex_);
  Taken taken;
  BlockCharge** const queue = queue_of(stream);
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
  const std::lock_guard lock(mutex_);
  for (BlockCharge* record = taken.first; record != nullptr;) {
    BlockCharge* const next = record->next;
    record->budget->add_pending(record->bytes);
    *record->resource_pending += record->bytes;
    insert(record);
    record = next;
  }
}

void PendingFrees::forget(const Budget* budget) noexcept {
  const std::lock_guard lock(mutex_);
  for_each([&](BlockCharge& record) {
    if (record.budget == budget) record.budget = budget->parent_.get();
  });
}

void PendingFrees::forget(const std::atomic<std::size_t>* resource) noexcept {
  const std::lock_guard lock(mutex_);
  for_each([&](BlockCharge& record) {
    if (record.resource_pending == resource) record.resource_pending = nullptr;
  });
}

}  // namespace tern
