// Not part of the interface.
//
// The memory of one transfer: bytes that MPI can use, in order with the work of streams. Memory
// opens the memory, and Bytes returns its pieces.

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "tern/buffer/array.hpp"
#include "tern/buffer/buffer.hpp"
#include "tern/buffer/copy.hpp"
#include "tern/coherence/unified_buffer.hpp"
#include "tern/core/access.hpp"
#include "tern/core/call_site.hpp"
#include "tern/core/dtype.hpp"
#include "tern/core/error.hpp"
#include "tern/core/shape.hpp"
#include "tern/detail/coherence/raw_unified.hpp"
#include "tern/detail/interop/mpi_wire.hpp"
#include "tern/device/device.hpp"
#include "tern/device/mark.hpp"
#include "tern/device/stream.hpp"
#include "tern/launch/use_scope.hpp"

namespace tern::mpi::detail {

/// Bytes for one call of MPI, which may use them when is_ready() returns true.
struct Piece {
  void* address = nullptr;
  std::optional<Mark> mark = {};

  [[nodiscard]] bool is_ready() const { return !mark || Device::is_done(*mark); }
};

/// The memory of one transfer. fetch() returns a piece that MPI reads, and room() returns a piece
/// that MPI writes, each in slot 0 or 1. Call store() after MPI has written the piece. end() ends
/// the transfer, and later work on the memory comes after the transfer. A second call does nothing.
class Bytes {
 public:
  Bytes() = default;
  Bytes(const Bytes&) = delete;
  Bytes& operator=(const Bytes&) = delete;
  virtual ~Bytes() = default;

  [[nodiscard]] virtual bool is_staged() const noexcept { return false; }
  [[nodiscard]] virtual Piece fetch(std::size_t slot, std::size_t first, std::size_t count) = 0;
  [[nodiscard]] virtual Piece room(std::size_t slot, std::size_t first, std::size_t count) = 0;
  virtual void store(std::size_t, std::size_t, std::size_t) {}
  /// Room for the bytes [first, first + count) of each of the ranks, and the distance between two
  /// ranks there; in the memory itself, it is `stride`.
  [[nodiscard]] virtual std::pair<Piece, std::size_t> room_of_ranks(std::size_t first,
                                                                    std::size_t count,
                                                                    std::size_t stride,
                                                                    std::size_t ranks) {
    return {room(0, first, stride * (ranks - 1) + count), stride};
  }
  virtual void store_of_ranks(std::size_t, std::size_t, std::size_t, std::size_t) {}
  virtual void end(bool is_good) noexcept { static_cast<void>(is_good); }
};

/// Stands for memory without bytes, and for memory that failed during a transfer, so that the other
/// ranks can finish their calls.
class NoBytes final : public Bytes {
 public:
  explicit NoBytes(std::size_t bytes) : scratch_(std::min(bytes, piece_bytes) + 1) {}
  Piece fetch(std::size_t, std::size_t, std::size_t) override { return {scratch_.data(), {}}; }
  Piece room(std::size_t, std::size_t, std::size_t) override { return {scratch_.data(), {}}; }
  std::pair<Piece, std::size_t> room_of_ranks(std::size_t, std::size_t count, std::size_t,
                                              std::size_t ranks) override {
    scratch_.resize(std::max(scratch_.size(), count * ranks));
    return {{scratch_.data(), {}}, count};
  }

 private:
  std::vector<std::byte> scratch_;
};

/// The host or the device side of a unified buffer, under a lease.
class LeasedBytes final : public Bytes {
 public:
  LeasedBytes(const RawUnified& buffer, Access access, StreamRef device_stream)
      : is_write_(is_write(access)) {
    // An update of bytes that were never written is an error, as it is for other memory.
    if (access == Access::read_write &&
        buffer.state(0, buffer.size_bytes()) == BufferState::uninitialized) {
      raise(Failure(ErrorCode::never_written,
                    "a collective reads {bytes} of a unified buffer, but no byte of the buffer was "
                    "written. Write the buffer first.")
                .with_bytes("bytes", buffer.size_bytes()));
    }
    if (device_stream != StreamRef()) {
      lease_ = buffer.try_device(access, device_stream, LeaseWait::never(), {}).value();
      mark_ = device_stream.mark();
    } else {
      lease_ = buffer.try_host(access, LeaseWait::never(), {}).value();
    }
  }
  Piece fetch(std::size_t, std::size_t first, std::size_t) override {
    return {static_cast<std::byte*>(lease_.address()) + first, mark_};
  }
  Piece room(std::size_t slot, std::size_t first, std::size_t count) override {
    return fetch(slot, first, count);
  }
  void end(bool is_good) noexcept override {
    if (!is_good && is_write_) lease_.commit(0);
    lease_.close();
  }

 private:
  RawLease lease_;
  std::optional<Mark> mark_;
  bool is_write_;
};

/// A buffer in memory that MPI can use. The stream waits for earlier work, and MPI waits for the
/// stream. The end of the transfer is recorded as a use of the stream. No lease is open in between:
/// a program that writes the memory too early gets wrong bytes instead of waiting for itself.
class RecordedBytes final : public Bytes {
 public:
  RecordedBytes(const Buffer& buffer, Access access, StreamRef stream)
      : buffer_(buffer), access_(access), stream_(stream) {
    UseScope scope(stream);
    scope.add(buffer, access);
    // A use that updates also reads, so that bytes that were never written are an error.
    if (access == Access::read_write) scope.add(buffer, Access::read);
    scope.begin();
    first_ = static_cast<std::byte*>(scope.pointer(0));
    mark_ = stream.mark();
    scope.cancel();
  }
  Piece fetch(std::size_t, std::size_t first, std::size_t) override {
    return {first_ + first, mark_};
  }
  Piece room(std::size_t slot, std::size_t first, std::size_t count) override {
    return fetch(slot, first, count);
  }
  void end(bool is_good) noexcept override {
    if (!is_good || std::exchange(has_ended_, true)) return;
    UseScope scope(stream_);
    // If the device is lost, nothing is recorded, and the bytes do not count as written.
    if (scope.try_add(buffer_, access_) && scope.try_begin()) scope.end();
  }

 private:
  Buffer buffer_;
  Access access_;
  StreamRef stream_;
  std::byte* first_ = nullptr;
  Mark mark_;
  bool has_ended_ = false;
};

/// Memory that only its device can use. Pieces of page-locked memory carry the bytes, in stream
/// order.
class StagedBytes final : public Bytes {
 public:
  StagedBytes(const Buffer& buffer, Access access, StreamRef stream)
      : buffer_(buffer.byte_view(0, buffer.size_bytes())), stream_(stream) {
    const std::size_t longest = std::min(buffer.size_bytes(), piece_bytes);
    for (std::size_t slot = 0; slot < (buffer.size_bytes() > longest ? 2u : 1u); ++slot) {
      lanes_.push_back(make_lane(longest, stream.device()));
    }
    marks_.resize(lanes_.size());
    if (access == Access::discard) {
      buffer_.ensure_allocated(stream);
    } else {
      // Bytes that were never written are an error now, before any header travels.
      load(0, 0, longest);
    }
  }
  [[nodiscard]] bool is_staged() const noexcept override { return true; }
  Piece fetch(std::size_t slot, std::size_t first, std::size_t count) override {
    if (loaded_ != Loaded{slot, first, count}) load(slot, first, count);
    loaded_ = {};
    return piece(slot);
  }
  Piece room(std::size_t slot, std::size_t, std::size_t) override { return piece(slot); }
  void store(std::size_t slot, std::size_t first, std::size_t count) override {
    const Buffer target = buffer_.byte_view(first, count);
    marks_[slot] = copy(target, lanes_[slot].byte_view(0, count), stream_);
  }
  std::pair<Piece, std::size_t> room_of_ranks(std::size_t, std::size_t count, std::size_t,
                                              std::size_t) override {
    return {piece(0), count};
  }
  void store_of_ranks(std::size_t first, std::size_t count, std::size_t stride,
                      std::size_t ranks) override {
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      const Buffer target = buffer_.byte_view(first + rank * stride, count);
      marks_[0] = copy(target, lanes_[0].byte_view(rank * count, count), stream_);
    }
  }

 private:
  struct Loaded {
    std::size_t slot = 0, first = 0, count = 0;
    friend bool operator==(const Loaded&, const Loaded&) = default;
  };

  [[nodiscard]] static Buffer make_lane(std::size_t bytes, const Device& device) {
    StorageOptions options{.kind = MemoryKind::pinned, .contents = Contents::unspecified};
    options.tag = Tag("mpi");
    Result<Buffer> lane = Buffer::try_allocate(device, Shape::flat(bytes), DType::byte, options);
    return std::move(lane).value();
  }
  void load(std::size_t slot, std::size_t first, std::size_t count) {
    const Buffer source = buffer_.byte_view(first, count);
    marks_[slot] = copy(lanes_[slot].byte_view(0, count), source, stream_);
    loaded_ = {slot, first, count};
  }
  [[nodiscard]] Piece piece(std::size_t slot) const {
    return {reinterpret_cast<void*>(lanes_[slot].address()), marks_[slot]};
  }

  Buffer buffer_;
  StreamRef stream_;
  std::vector<Buffer> lanes_;
  std::vector<std::optional<Mark>> marks_;
  Loaded loaded_ = {};  // the piece that is in its lane already; no bytes: none
};

/// A buffer, an array, or a unified buffer or a view of one. Shares ownership of the memory.
class Memory {
 public:
  Memory(const Buffer& buffer) : of_(buffer), dtype_(buffer.dtype()), shape_(buffer.shape()) {}
  template <class T>
  Memory(const Array<T>& array) : Memory(array.buffer()) {}
  template <class T>
  Memory(const UnifiedView<T>& view) : Memory(view, Shape::flat(view.size())) {}
  template <class T>
  Memory(const UnifiedBuffer<T>& buffer) : Memory(buffer, buffer.shape()) {}

  [[nodiscard]] std::size_t size_bytes() const noexcept {
    const auto* buffer = std::get_if<Buffer>(&of_);
    return buffer != nullptr ? buffer->size_bytes() : std::get<RawUnified>(of_).size_bytes();
  }
  [[nodiscard]] Json describe() const { return detail::describe(dtype_, shape_, size_bytes()); }
  [[nodiscard]] const Shape& shape() const noexcept { return shape_; }
  [[nodiscard]] const Device& device() const noexcept {
    const auto* buffer = std::get_if<Buffer>(&of_);
    return buffer != nullptr ? buffer->device() : std::get<RawUnified>(of_).device();
  }

  /// Returns some rows: elements [first, first + count) of the first dimension.
  [[nodiscard]] Memory rows(std::size_t first, std::size_t count) const {
    std::vector<std::size_t> extents(shape_.extents().begin(), shape_.extents().end());
    const std::size_t row_bytes = size_bytes() / extents[0];
    extents[0] = count;
    Memory made = *this;
    made.shape_ = Shape(extents);
    if (const auto* buffer = std::get_if<Buffer>(&of_)) {
      made.of_ = buffer->byte_view(first * row_bytes, count * row_bytes);
    } else {
      made.of_ =
          std::get<RawUnified>(of_).try_slice(first * row_bytes, count * row_bytes, {}).value();
    }
    return made;
  }

  /// Opens the memory. `is_direct` says that MPI can use memory of its device. Throws what a use of
  /// the memory throws.
  [[nodiscard]] std::shared_ptr<Bytes> open(Access access, StreamRef stream, bool is_direct) const {
    if (const auto* buffer = std::get_if<Buffer>(&of_); buffer != nullptr && !*buffer) {
      raise(Failure(ErrorCode::not_allocated,
                    "MPI cannot use an empty Buffer handle. Pass a buffer with a device."));
    }
    if (size_bytes() == 0) return std::make_shared<NoBytes>(0);
    const StreamRef on = stream == StreamRef() ? device().default_stream() : stream;
    if (const auto* raw = std::get_if<RawUnified>(&of_)) {
      return std::make_shared<LeasedBytes>(*raw, access, is_direct ? on : StreamRef());
    }
    const auto& buffer = std::get<Buffer>(of_);
    if (is_direct || buffer.kind() != MemoryKind::device ||
        buffer.device().can(Capability::host_access)) {
      return std::make_shared<RecordedBytes>(buffer, access, on);
    }
    return std::make_shared<StagedBytes>(buffer, access, on);
  }

 private:
  template <class T>
  Memory(const UnifiedView<T>& view, Shape shape)
      : of_(view.raw()), dtype_(UnifiedView<T>::dtype()), shape_(std::move(shape)) {
    // Elements without a dtype travel as bytes.
    if (tern::size_bytes(dtype_) != sizeof(T)) shape_ = Shape::flat(view.size_bytes());
  }

  std::variant<Buffer, RawUnified> of_;
  DType dtype_;
  Shape shape_;
};

}  // namespace tern::mpi::detail
