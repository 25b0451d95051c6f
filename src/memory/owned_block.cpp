#include "tern/memory/owned_block.hpp"

#include <fmt/format.h>

#include <utility>

#include "memory/block_table.hpp"
#include "tern/core/bytes.hpp"

namespace tern {
OwnedBlock::OwnedBlock(ResourceHandle resource, const Block& block, StreamRef stream) noexcept
    : resource_(std::move(resource)), block_(block), stream_(stream) {}

OwnedBlock::OwnedBlock(ResourceHandle resource, const Request& request)
    : OwnedBlock(try_allocate(std::move(resource), request).value()) {}

Result<OwnedBlock> OwnedBlock::try_allocate(ResourceHandle resource,
                                            const Request& request) noexcept {
  if (!resource) {
    return Failure(
               ErrorCode::invalid_argument,
               "a block of {requested} cannot be allocated without a resource. Pass a resource.",
               request.site)
        .with("name", "resource")
        .with_bytes("requested", request.bytes);
  }
  const Result<Block> block = resource->try_allocate(request);
  if (!block) return block.failure();
  return OwnedBlock(std::move(resource), *block, request.stream);
}

OwnedBlock OwnedBlock::adopt(ResourceHandle resource, const Block& block,
                             StreamRef stream) noexcept {
  return OwnedBlock(std::move(resource), block, stream);
}

OwnedBlock::OwnedBlock(OwnedBlock&& other) noexcept
    : resource_(std::exchange(other.resource_, nullptr)),
      block_(std::exchange(other.block_, {})),
      stream_(std::exchange(other.stream_, {})) {}

OwnedBlock& OwnedBlock::operator=(OwnedBlock&& other) noexcept {
  if (this == &other) return *this;
  end();
  resource_ = std::exchange(other.resource_, nullptr);
  block_ = std::exchange(other.block_, {});
  stream_ = std::exchange(other.stream_, {});
  return *this;
}

OwnedBlock::~OwnedBlock() { end(); }

void OwnedBlock::end() noexcept {
  if (!resource_) return;
  resource_->deallocate(block_, stream_, CallSite());  // no line of the program
  resource_ = nullptr;
  block_ = {};
  stream_ = {};
}

Result<Block> OwnedBlock::try_block() const noexcept {
  if (resource_) return block_;
  return Failure(ErrorCode::not_allocated,
                 "the OwnedBlock has no block: it was moved from, freed or default-constructed. "
                 "Use the object it was moved to, or allocate.");
}

BlockState OwnedBlock::state() const noexcept { return state_of(block_.generation); }

Result<void> OwnedBlock::try_free(CallSite site) noexcept {
  if (!resource_) return Failure(try_block().failure()).at(site);
  if (Result<void> freed = resource_->try_deallocate(block_, stream_, site); !freed) return freed;
  static_cast<void>(release());
  return {};
}

Block OwnedBlock::release() {
  const Block block = try_block().value();
  resource_ = nullptr;
  block_ = {};
  stream_ = {};
  return block;
}

std::string OwnedBlock::text() const {
  if (!resource_) return "no block";
  const Result<BlockFacts> facts = try_find_block(block_.generation);
  return fmt::format(
      "{} at {:#x} on '{}', {}, tag '{}', generation {} of place {}, {}",
      format_bytes(block_.bytes), reinterpret_cast<std::uintptr_t>(block_.address),
      resource_->device().spec(),
      stream_.id() ? fmt::format("stream '{}'", stream_.name()) : std::string("no stream"),
      facts ? facts->tag.name() : Tag{}.name(), block_.generation.count(), block_.generation.slot(),
      name(state()));
}

}  // namespace tern
