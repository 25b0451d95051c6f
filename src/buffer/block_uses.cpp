#include "buffer/block_uses.hpp"

#include <algorithm>
#include <mutex>
#include <new>
#include <unordered_map>

#include "core/no_host_memory.hpp"
#include "memory/block_table.hpp"

namespace tern {
namespace {

bool is_live(std::uint64_t value) noexcept {
  const Generation generation(
      static_cast<std::uint32_t>(value & ((std::uint64_t{1} << Generation::slot_bits) - 1)),
      value >> Generation::slot_bits);
  return state_of(generation) == BlockState::live;
}

struct UseTable {
  std::mutex mutex;
  struct OfBlock {
    std::shared_ptr<UseRecord> uses;
    const std::byte* address = nullptr;
    std::size_t bytes = 0;
  };
  std::unordered_map<std::uint64_t, OfBlock> records;  // by generation
  std::size_t sweep_at = 64;                           // guarded by mutex, like the records

  /// Call with the mutex held.
  void sweep() noexcept {
    std::erase_if(records, [](const auto& entry) { return !is_live(entry.first); });
    sweep_at = std::max<std::size_t>(64, 2 * records.size());
  }
};

/// Never destroyed: static objects may use recorders at the end of the process.
UseTable& use_table() noexcept {
  static UseTable* const there = new UseTable;
  return *there;
}

}  // namespace

Result<std::shared_ptr<UseRecord>> try_uses_of(const Block& block, CallSite site) noexcept try {
  UseTable& all = use_table();
  const std::lock_guard lock(all.mutex);
  if (all.records.size() >= all.sweep_at) all.sweep();
  UseTable::OfBlock& record = all.records[block.generation.value()];
  if (!record.uses) {
    record = {std::make_shared<UseRecord>(), static_cast<const std::byte*>(block.address),
              block.bytes};
  }
  return record.uses;
} catch (const std::bad_alloc&) {
  return no_host_memory("the record of a block's uses", site);
}

std::shared_ptr<UseRecord> find_uses_of(const Block& block) noexcept {
  UseTable& all = use_table();
  const std::lock_guard lock(all.mutex);
  const auto found = all.records.find(block.generation.value());
  return found == all.records.end() ? nullptr : found->second.uses;
}

Result<void> try_find_uses_in(const std::byte* address, std::size_t bytes,
                              std::vector<std::shared_ptr<UseRecord>>& found,
                              CallSite site) noexcept try {
  UseTable& all = use_table();
  const std::lock_guard lock(all.mutex);
  for (const auto& [value, block] : all.records) {
    const bool overlaps =
        block.uses && block.address < address + bytes && address < block.address + block.bytes;
    if (overlaps && is_live(value)) found.push_back(block.uses);
  }
  return {};
} catch (const std::bad_alloc&) {
  return no_host_memory("the record of a block's uses", site);
}

std::size_t block_use_records() noexcept {
  UseTable& all = use_table();
  const std::lock_guard lock(all.mutex);
  return all.records.size();
}

}  // namespace tern
