// A StreamPool lends streams of one device, a bounded number of them.
//
// Streams are made when first needed, kept, and lent again when they come back. When all are out,
// the next request is refused with ErrorCode::capacity: the pool never hands out the default stream
// instead, which would serialise work behind the caller's back. A stream that comes back keeps its
// id and may still be busy; its next borrower continues behind that work. Thread-safe; leases keep
// what they need alive, so pool and leases may end in any order.

#pragma once

#include <cstddef>
#include <memory>

#include "tern/core/call_site.hpp"
#include "tern/core/export.hpp"
#include "tern/core/result.hpp"
#include "tern/device/stream.hpp"

namespace tern {

struct StreamPoolState;

/// A stream out on loan; gives it back when it ends.
class TERN_EXPORT StreamLease {
 public:
  StreamLease() noexcept = default;
  StreamLease(StreamLease&& other) noexcept;
  StreamLease& operator=(StreamLease&& other) noexcept;
  ~StreamLease();

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
  /// Capacity 0 means TERN_STREAM_POOL, which is 16 unless set. Throws InvalidArgument above 1024.
  explicit StreamPool(const Device& device, std::size_t capacity = 0);
  // Copies only, which are the same pool: one that was moved from would be none.
  StreamPool(const StreamPool&) noexcept = default;
  StreamPool& operator=(const StreamPool&) noexcept = default;

  [[nodiscard]] Result<StreamLease> try_acquire() noexcept;
  [[nodiscard]] StreamLease acquire(CallSite site = CallSite::here()) {
    return try_acquire().value(site);
  }

  /// The pool's stream of that id, lent or not; stream_misuse if it has none.
  [[nodiscard]] Result<StreamRef> try_find(StreamId id) const noexcept;

  [[nodiscard]] std::size_t capacity() const noexcept;
  /// Streams lent out now.
  [[nodiscard]] std::size_t lent() const noexcept;

 private:
  std::shared_ptr<StreamPoolState> state_;
};

}  // namespace tern
