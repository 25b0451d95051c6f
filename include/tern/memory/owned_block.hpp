// An OwnedBlock owns a block of any resource, and gives it back there when it ends.
//
// It keeps the resource alive, and frees in the order of its stream: work that was submitted to the
// stream before still finds the memory. It moves and does not copy; what was moved from owns
// nothing and says not_allocated. Freeing at the end is silent: what fails is counted by the
// resource. One object belongs to one thread at a time.

#pragma once

#include <string>

#include "tern/core/call_site.hpp"
#include "tern/memory/resource.hpp"

namespace tern {

class TERN_EXPORT OwnedBlock {
 public:
  /// Nothing.
  OwnedBlock() noexcept = default;
  /// Throws what try_allocate returns.
  OwnedBlock(ResourceHandle resource, const Request& request);
  /// Refused as the resource refuses; invalid_argument without a resource.
  [[nodiscard]] static Result<OwnedBlock> try_allocate(ResourceHandle resource,
                                                       const Request& request) noexcept;
  /// Takes over a block that the resource gave, to free it on the stream.
  [[nodiscard]] static OwnedBlock adopt(ResourceHandle resource, const Block& block,
                                        StreamRef stream) noexcept;

  OwnedBlock(OwnedBlock&& other) noexcept;
  OwnedBlock& operator=(OwnedBlock&& other) noexcept;
  ~OwnedBlock();

  /// Is there a block? One of no bytes is one.
  [[nodiscard]] explicit operator bool() const noexcept { return resource_ != nullptr; }
  /// Refused with not_allocated if there is none, as all of these.
  [[nodiscard]] Result<Block> try_block() const noexcept;
  [[nodiscard]] Block block(CallSite site = CallSite::here()) const {
    return try_block().value(site);
  }
  [[nodiscard]] void* address() const { return block().address; }
  [[nodiscard]] std::size_t bytes() const { return block().bytes; }
  [[nodiscard]] const ResourceHandle& resource() const noexcept { return resource_; }

  /// Whose order the free will be in.
  [[nodiscard]] StreamRef stream() const noexcept { return stream_; }
  /// What other streams still do must be waited for by this one.
  void set_stream(StreamRef stream) noexcept { stream_ = stream; }

  /// freed where there is none.
  [[nodiscard]] BlockState state() const noexcept;

  /// Frees it now. Refused: the block is still owned, and the end will try again.
  [[nodiscard]] Result<void> try_free(CallSite site = CallSite::here()) noexcept;
  /// Gives the block up without freeing it: the caller does.
  [[nodiscard]] Block release();

  /// "64.0 KiB at 0x7f0000001000 on 'sim:0', stream 'copy', tag 'weights', generation 12 of place
  /// 3, live", or "no block".
  [[nodiscard]] std::string text() const;

 private:
  OwnedBlock(ResourceHandle resource, const Block& block, StreamRef stream) noexcept;
  void end() noexcept;

  ResourceHandle resource_;
  Block block_ = {};
  StreamRef stream_ = {};
};

}  // namespace tern
