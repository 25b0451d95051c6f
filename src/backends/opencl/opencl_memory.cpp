#include "backends/opencl/opencl_memory.hpp"

#include <algorithm>
#include <new>
#include <utility>

namespace tern::opencl {
namespace {

std::uintptr_t number(const void* address) noexcept {
  return reinterpret_cast<std::uintptr_t>(address);
}

}  // namespace

Memory::~Memory() {
  for (const auto& [address, block] : blocks_) give(block);
}

Failure Memory::out_of_memory(std::size_t bytes) const noexcept {
  return Failure(ErrorCode::out_of_memory,
                 "'{device}' could not allocate {requested}: {free} of {total} are free, and one "
                 "block can have at most {largest}. Free something, or ask for less.")
      .with_bytes("requested", bytes)
      .with_bytes("free", free_bytes())
      .with_bytes("total", context_->facts().total_bytes)
      .with_bytes("largest", context_->facts().largest_block_bytes)
      .with("device", context_->spec());
}

Failure Memory::not_live(const void* address) const noexcept {
  return Failure(ErrorCode::use_after_free,
                 "{address} is not the address of a live allocation of '{device}'. The block was "
                 "freed before, or has another owner. Free each block once, by the address that "
                 "allocate returned.")
      .with("address", number(address), Unit::hex)
      .with("device", context_->spec());
}

bool Memory::charge(std::size_t bytes) noexcept {
  const std::lock_guard lock(mutex_);
  // Without this check, a driver that overcommits memory would fail later, at the first access,
  // with a signal.
  if (bytes > context_->facts().total_bytes - used_bytes_) return false;
  used_bytes_ += bytes;
  return true;
}

void Memory::discharge(std::size_t bytes) noexcept {
  const std::lock_guard lock(mutex_);
  used_bytes_ -= bytes;
}

void Memory::give(const Block& block) noexcept {
  context_->table().clSVMFree(context_->handle(), block.start);
}

Result<void*> Memory::allocate(MemoryKind kind, std::size_t bytes,
                               std::size_t wanted_alignment) noexcept {
  if (Result<void> alive = context_->check_alive(); !alive) return alive.failure();
  // Implementations need not align above the size of a type, and some fail if they are asked to.
  const std::size_t slack = wanted_alignment > alignment ? wanted_alignment - alignment : 0;
  const std::optional<std::size_t> granted = checked_add(bytes, slack);
  if (!granted || *granted > context_->facts().largest_block_bytes || !charge(*granted)) {
    return out_of_memory(bytes);
  }
  const cl_bitfield flags =
      mem_read_write | (context_->facts().is_fine_grained() ? mem_svm_fine_grain_buffer : 0);
  void* start = context_->table().clSVMAlloc(context_->handle(), flags, *granted, 0);
  if (start == nullptr) {
    discharge(*granted);
    return out_of_memory(bytes);
  }
  const std::uintptr_t aligned =
      (number(start) + wanted_alignment - 1) & ~(std::uintptr_t{wanted_alignment} - 1);
  const Block block{bytes, *granted, start, kind, false};
  try {
    const std::lock_guard lock(mutex_);
    blocks_.emplace(aligned, block);
  } catch (const std::bad_alloc&) {
    give(block);
    discharge(*granted);
    return out_of_memory(bytes);
  }
  return reinterpret_cast<void*>(aligned);
}

Result<void> Memory::begin_release(void* address) noexcept {
  const std::lock_guard lock(mutex_);
  const auto found = blocks_.find(number(address));
  if (found == blocks_.end() || found->second.is_releasing) return not_live(address);
  found->second.is_releasing = true;
  return {};
}

void Memory::finish_release(void* address) noexcept {
  std::map<std::uintptr_t, Block>::node_type node;
  {
    const std::lock_guard lock(mutex_);
    if (context_->is_lost()) {
      // Work that was queued before the loss may still run, so the memory is kept until the queues
      // end.
      const auto found = blocks_.find(number(address));
      if (found == blocks_.end()) return;
      used_bytes_ -= std::exchange(found->second.granted_bytes, 0);
      return;
    }
    node = blocks_.extract(number(address));
  }
  if (node.empty()) return;
  // Outside the lock, because freeing a large block takes long. The bytes count as used until then.
  give(node.mapped());
  discharge(node.mapped().granted_bytes);
}

void Memory::cancel_release(void* address) noexcept {
  const std::lock_guard lock(mutex_);
  const auto found = blocks_.find(number(address));
  if (found != blocks_.end()) found->second.is_releasing = false;
}

Result<void> Memory::release(void* address) noexcept {
  if (Result<void> begun = begin_release(address); !begun) return begun;
  finish_release(address);
  return {};
}

std::optional<PointerInfo> Memory::find(const void* address) const noexcept {
  const std::lock_guard lock(mutex_);
  auto next = blocks_.upper_bound(number(address));
  if (next == blocks_.begin()) return std::nullopt;
  const auto& [base, block] = *--next;
  if (number(address) - base >= block.bytes || block.is_releasing) return std::nullopt;
  return PointerInfo{block.kind, reinterpret_cast<void*>(base), block.bytes};
}

std::size_t Memory::free_bytes() const noexcept {
  const std::lock_guard lock(mutex_);
  return context_->facts().total_bytes - used_bytes_;
}

std::size_t Memory::live_blocks() const noexcept {
  const std::lock_guard lock(mutex_);
  return blocks_.size();
}

}  // namespace tern::opencl
