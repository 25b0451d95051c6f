// An OwnedBlock owns a block of any resource and frees it in its destructor.
//
//   OwnedBlock block(resource, {.bytes = 1 * mib, .stream = stream});
//
// An OwnedBlock keeps the resource alive. The free is stream-ordered: work submitted to stream()
// before the free may still use the memory. An OwnedBlock can be moved but not copied. A moved-from
// OwnedBlock owns nothing; its accessors fail with not_allocated. A free that fails in the
// destructor is not reported to the caller; the resource counts it and tries again. Not
// thread-safe: use one object from one thread at a time.

#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "tern/core/call_site.hpp"
#include "tern/core/place.hpp"
#include "tern/core/result.hpp"
#include "tern/core/tag.hpp"
#include "tern/detail/core/visibility.hpp"
#include "tern/device/mark.hpp"
#include "tern/memory/resource.hpp"

namespace tern {

/// The owner of one block.
class TERN_EXPORT OwnedBlock {
 public:
  /// Constructs an OwnedBlock without a block.
  OwnedBlock() noexcept = default;
  /// Allocates a block. Throws what try_allocate() returns.
  OwnedBlock(ResourceHandle resource, const Request& request);
  /// Allocates a block. Fails with the error of the resource, or with invalid_argument if
  /// `resource` is null.
  [[nodiscard]] static Result<OwnedBlock> try_allocate(ResourceHandle resource,
                                                       const Request& request) noexcept;
  /// Takes ownership of a block that `resource` has allocated. The block will be freed on `stream`.
  [[nodiscard]] static OwnedBlock adopt(ResourceHandle resource, const Block& block,
                                        StreamRef stream) noexcept;

  OwnedBlock(OwnedBlock&& other) noexcept;
  OwnedBlock& operator=(OwnedBlock&& other) noexcept;
  /// Frees the block, if there is one.
  ~OwnedBlock();

  /// Returns true if there is a block. A block of 0 bytes counts.
  [[nodiscard]] explicit operator bool() const noexcept { return resource_ != nullptr; }
  /// Returns the block. Fails with not_allocated if there is none, as the following accessors do.
  [[nodiscard]] Result<Block> try_block() const noexcept;
  [[nodiscard]] Block block(CallSite site = CallSite::here()) const {
    return try_block().value(site);
  }
  /// Return the first byte and the granted bytes. Throw NotAllocated if there is no block.
  [[nodiscard]] void* address() const { return block().address; }
  [[nodiscard]] std::size_t bytes() const { return block().bytes; }
  /// The resource that will free the block. Null if there is no block.
  [[nodiscard]] const ResourceHandle& resource() const noexcept { return resource_; }

  /// The stream on which the block will be freed.
  [[nodiscard]] StreamRef stream() const noexcept { return stream_; }
  /// Sets the stream on which the block will be freed. If other streams still use the memory, the
  /// caller must make this stream wait for them before the free.
  void set_stream(StreamRef stream) noexcept { stream_ = stream; }

  /// Returns the state of the block, or BlockState::freed if there is none.
  [[nodiscard]] BlockState state() const noexcept;

  /// Frees the block now. If the free fails, the OwnedBlock still owns the block and the destructor
  /// tries again. Fails with not_allocated if there is no block.
  [[nodiscard]] Result<void> try_free(CallSite site = CallSite::here()) noexcept;
  /// Returns the block and gives up ownership without freeing it; the caller must free it. Throws
  /// NotAllocated if there is no block.
  [[nodiscard]] Block release();

  /// Returns a description such as "64.0 KiB at 0x7f0000001000 on 'sim:0', stream 'copy', tag
  /// 'weights', generation 12 of place 3, live", or "no block".
  [[nodiscard]] std::string text() const;

 private:
  OwnedBlock(ResourceHandle resource, const Block& block, StreamRef stream) noexcept;
  void end() noexcept;

  ResourceHandle resource_;
  Block block_ = {};
  StreamRef stream_ = {};
};

// Looks up what the library knows about a block, given its generation.
//
//   if (block_state(block.generation) == BlockState::live) { ... }
//   Tag tag = try_block_info(block.generation).value().tag;
//
// A block goes through up to four states: live; retired, while its stream may still use the memory;
// quarantined, while a GuardResource keeps it; freed. All functions are thread-safe and take no
// lock.

/// The facts about one block.
struct BlockInfo {
  /// The first byte, and the granted bytes.
  void* address = nullptr;
  std::size_t bytes = 0;
  /// The largest power of two that divides the address. May be larger than the requested alignment.
  std::size_t alignment = 0;
  DeviceId device = {};
  /// The resource that allocated the block: the bottom of a stack of wrappers, or a GuardResource.
  /// The pointer is valid while the resource lives.
  const Resource* resource = nullptr;
  /// The stream of the request, which uses the block first. After the free: the stream of the free,
  /// which used the block last.
  StreamId stream = {};
  Tag tag = {};
  BlockState state = BlockState::freed;
};

/// Returns "live", "retired", "quarantined" or "freed".
[[nodiscard]] TERN_EXPORT std::string_view name(BlockState state) noexcept;
/// Returns the state of the block, or `freed` for a generation that was never issued. For a retired
/// block, the call queries the device whether the stream has passed the free. Does not wait.
[[nodiscard]] TERN_EXPORT BlockState block_state(Generation generation) noexcept;
/// Returns the facts about the block. Fails with use_after_free if the slot now belongs to a newer
/// block or the generation was never issued.
[[nodiscard]] TERN_EXPORT Result<BlockInfo> try_block_info(Generation generation) noexcept;

}  // namespace tern
