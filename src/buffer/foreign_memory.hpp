// Adopts many pieces of memory of one owner, such as the buffers of a table.
//
// All storages over the pieces share one allocation and one owner. The owner is called once, after
// the last storage is destroyed. Each piece is its own storage: it has its own range, uses and
// lifetime, and it is checked like any adopted memory.

#pragma once

#include <cstddef>
#include <optional>
#include <utility>

#include "tern/buffer/foreign.hpp"
#include "tern/buffer/storage_options.hpp"
#include "tern/buffer/strided_buffer.hpp"
#include "tern/device/device_info.hpp"

namespace tern {

class ForeignOrigin;

/// The terms of an Adoption that tensors need.
struct TensorTerms {
  void (*release)(void* context) = nullptr;
  void* context = nullptr;
  StreamRef stream = {};
  bool is_complete = false;
  bool read_only = false;
  Tag tag = {};
  CallSite site = {};
  static constexpr bool owner_orders_writes = true;
  static constexpr std::optional<bool> checked = {};
};

/// The pieces of one owner. The owner is not called while this object exists. One thread uses it.
class ForeignParts {
 public:
  /// Begins the adoption of up to `max_parts` pieces. `device` must outlive the object. On success,
  /// the terms belong to the pieces, even if a later piece fails: the owner is called when this
  /// object and all pieces are destroyed. Fails as the public try_adopt() does.
  [[nodiscard]] static Result<ForeignParts> try_begin(const Device& device, std::size_t max_parts,
                                                      Adoption&& adoption) noexcept;
  ForeignParts(ForeignParts&& other) noexcept
      : device_(other.device_),
        origin_(std::exchange(other.origin_, nullptr)),
        shares_(other.shares_),
        stream_(other.stream_),
        ready_(other.ready_),
        is_unstated_(other.is_unstated_),
        owner_orders_writes_(other.owner_orders_writes_),
        options_(other.options_),
        known_(other.known_),
        kind_(other.kind_),
        host_reads_(other.host_reads_) {}
  ForeignParts& operator=(const ForeignParts&) = delete;
  ~ForeignParts();

  /// Adopts the next piece and sets `buffer`. Call it at most `max_parts` times. Fails as the
  /// public try_adopt() does. Asks the device once for neighbouring pieces of one allocation.
  [[nodiscard]] Result<void> try_adopt(void* address, std::size_t bytes, DType dtype,
                                       Buffer& buffer) noexcept;

  /// Adopts a tensor of another library, whose elements are dense. The caller has checked that they
  /// have `bytes` bytes and that there is one stride per dimension. The owner orders its own
  /// writes. Fails as the public try_adopt() does. Makes fewer copies than adopting and describing.
  [[nodiscard]] static Result<StridedBuffer> try_adopt_dense(
      const Device& device, void* address, std::size_t bytes, const TensorTerms& terms,
      Shape&& shape, Shape&& strides, std::size_t count, DType dtype) noexcept;

 private:
  ForeignParts() = default;

  const Device* device_ = nullptr;
  ForeignOrigin* origin_ = nullptr;
  std::size_t shares_ = 0;  // of this object and of the pieces that are not adopted yet
  StreamRef stream_ = {};
  Mark ready_ = {};
  bool is_unstated_ = false;
  bool owner_orders_writes_ = false;
  StorageOptions options_ = {};
  // The device's answer about the previous piece, and what follows from it.
  PointerInfo known_ = {};
  MemoryKind kind_ = MemoryKind::host;
  bool host_reads_ = false;
};

}  // namespace tern
