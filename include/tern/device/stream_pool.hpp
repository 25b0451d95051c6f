// A StreamPool lends a bounded number of streams of one device.
//
//   StreamPool pool(device, 4);
//   StreamLease stream = pool.acquire();
//   stream->copy(destination, source, bytes);
//
// The pool creates streams on demand, keeps them, and lends them again after they are returned. If
// all streams are lent, the next request fails with ErrorCode::capacity. The pool never lends the
// default stream instead, because that would silently serialise work.
//
// A returned stream keeps its id and may still have pending work. Work of the next borrower runs
// after that work. The pool is thread-safe. Pool and leases may be destroyed in any order, because
// leases keep the streams alive.

#pragma once

#include <cstddef>
#include <memory>

#include "tern/core/call_site.hpp"
#include "tern/core/result.hpp"
#include "tern/core/visibility.hpp"
#include "tern/device/stream.hpp"

namespace tern {

struct StreamPoolState;

/// A lent stream. The destructor returns the stream to the pool. It does not wait for the work.
class TERN_EXPORT StreamLease {
 public:
  /// A lease without a stream.
  StreamLease() noexcept = default;
  StreamLease(StreamLease&& other) noexcept;
  StreamLease& operator=(StreamLease&& other) noexcept;
  ~StreamLease();

  /// Returns the stream. Do not use the reference after the lease has ended.
  [[nodiscard]] StreamRef get() const noexcept { return stream_; }
  [[nodiscard]] const StreamRef* operator->() const noexcept { return &stream_; }
  operator StreamRef() const noexcept { return stream_; }

 private:
  friend class StreamPool;
  StreamLease(std::shared_ptr<StreamPoolState> pool, StreamRef stream, std::size_t index) noexcept;
  void end() noexcept;

  std::shared_ptr<StreamPoolState> pool_;
  StreamRef stream_;
  std::size_t index_ = 0;
};

class TERN_EXPORT StreamPool {
 public:
  /// Creates a pool without streams. Capacity 0 selects TERN_STREAM_POOL, which is 16 unless set.
  /// Throws InvalidArgument for a capacity above 1024, and InvalidDevice if the device is not open.
  explicit StreamPool(const Device& device, std::size_t capacity = 0);
  // Copies refer to the same pool. There is no move constructor, because a pool that was moved from
  // would have no state.
  StreamPool(const StreamPool&) noexcept = default;
  StreamPool& operator=(const StreamPool&) noexcept = default;

  /// Lends a stream, preferably the one returned last. Creates a stream if none is available and
  /// the capacity is not reached. Fails with capacity if all streams are lent. Does not wait.
  [[nodiscard]] Result<StreamLease> try_acquire() noexcept;
  [[nodiscard]] StreamLease acquire(CallSite site = CallSite::here()) {
    return try_acquire().value(site);
  }

  /// Returns the stream of the pool with this id, whether lent or not. Fails with stream_misuse if
  /// the pool has no such stream.
  [[nodiscard]] Result<StreamRef> try_find(StreamId id) const noexcept;

  /// Returns the maximum number of streams.
  [[nodiscard]] std::size_t capacity() const noexcept;
  /// Returns the number of streams that are lent now.
  [[nodiscard]] std::size_t lent() const noexcept;

 private:
  std::shared_ptr<StreamPoolState> state_;
};

}  // namespace tern
