#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "tern/detail/core/config.hpp"
#include "tern/device/stream.hpp"

namespace tern {

struct StreamPoolState {
  Device device;
  std::size_t capacity = 0;
  std::mutex mutex;
  std::vector<Stream> streams;      // guarded by mutex; reserved, so elements never move
  std::vector<std::size_t> unused;  // guarded by mutex; indices of streams, last returned last
};

namespace {

constexpr std::size_t max_capacity = 1024;

}  // namespace

StreamLease::StreamLease(std::shared_ptr<StreamPoolState> pool, StreamRef stream,
                         std::size_t index) noexcept
    : pool_(std::move(pool)), stream_(stream), index_(index) {}

StreamLease::StreamLease(StreamLease&& other) noexcept
    : pool_(std::move(other.pool_)),
      stream_(std::exchange(other.stream_, StreamRef())),
      index_(other.index_) {}

StreamLease& StreamLease::operator=(StreamLease&& other) noexcept {
  if (this == &other) return *this;
  end();
  pool_ = std::move(other.pool_);
  stream_ = std::exchange(other.stream_, StreamRef());
  index_ = other.index_;
  return *this;
}

StreamLease::~StreamLease() { end(); }

void StreamLease::end() noexcept {
  if (!pool_) return;
  {
    const std::lock_guard lock(pool_->mutex);
    pool_->unused.push_back(index_);  // within the reserved capacity, so it cannot throw
  }
  stream_ = StreamRef();
  pool_.reset();
}

StreamPool::StreamPool(const Device& device, std::size_t capacity)
    : state_(std::make_shared<StreamPoolState>()) {
  if (capacity == 0) capacity = config().stream_pool_capacity;
  if (capacity > max_capacity) {
    raise(Failure(ErrorCode::invalid_argument,
                  "a stream pool of {value} streams exceeds the limit of {max}. Use fewer streams.")
              .with("name", "capacity")
              .with("value", capacity)
              .with("max", max_capacity));
  }
  if (!device.is_open()) {
    raise(Failure(ErrorCode::invalid_device,
                  "a stream pool needs an open device, and the Device is empty. Open one with "
                  "open_device().")
              .with("spec", ""));
  }
  state_->device = device;
  state_->capacity = capacity;
  state_->streams.reserve(capacity);
  state_->unused.reserve(capacity);
}

Result<StreamLease> StreamPool::try_acquire() noexcept {
  const std::lock_guard lock(state_->mutex);
  if (state_->unused.empty()) {
    if (state_->streams.size() == state_->capacity) {
      return Failure(ErrorCode::capacity,
                     "all {max} streams of the pool of '{device}' are leased. Return one, or "
                     "create a larger pool.")
          .with("max", state_->capacity)
          .with("device", state_->device.spec());
    }
    Result<Stream> stream = Stream::try_make(state_->device);
    if (!stream) return stream.failure();
    state_->streams.push_back(*std::move(stream));
    state_->unused.push_back(state_->streams.size() - 1);
  }
  const std::size_t index = state_->unused.back();
  state_->unused.pop_back();
  return StreamLease(state_, state_->streams[index], index);
}

Result<StreamRef> StreamPool::try_find(StreamId id) const noexcept {
  const std::lock_guard lock(state_->mutex);
  for (const Stream& stream : state_->streams) {
    if (stream.id() == id) return StreamRef(stream);
  }
  return Failure(ErrorCode::stream_misuse, "stream {stream} does not belong to the pool: {why}.")
      .with("stream", id.number())
      .with("why", "the pool has no stream with this id. Use the ids of its leases");
}

std::size_t StreamPool::capacity() const noexcept { return state_->capacity; }

std::size_t StreamPool::lent() const noexcept {
  const std::lock_guard lock(state_->mutex);
  return state_->streams.size() - state_->unused.size();
}

}  // namespace tern
