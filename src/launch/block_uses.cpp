#include "launch/block_uses.hpp"

#include <algorithm>
#include <mutex>
#include <new>
#include <unordered_map>

#include "core/no_host_memory.hpp"
#include "memory/block_table.hpp"

namespace tern {
namespace {

struct UseTable {
  std::mutex mutex;
  std::unordered_map<std::uint64_t, std::shared_ptr<UseRecord>> records;  // by generation
  std::size_t sweep_at = 64;  // guarded by mutex, like the records

  /// Call with the mutex held.
  void sweep() noexcept {
    std::erase_if(records, [](const auto& entry) {
      const std::uint64_t value = entry.first;
      const Generation generation(
          static_cast<std::uint32_t>(value & ((std::uint64_t{1} << Generation::slot_bits) - 1)),
          value >> Generation::slot_bits);
      return state_of(generation) != BlockState::live;
    });
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
  std::shared_ptr<UseRecord>& record = all.records[block.generation.value()];
  if (!record) record = std::make_shared<UseRecord>();
  return record;
} catch (const std::bad_alloc&) {
  return no_host_memory("the record of a block's uses", site);
}

std::shared_ptr<UseRecord> find_uses_of(const Block& block) noexcept {
  UseTable& all = use_table();
  const std::lock_guard lock(all.mutex);
  const auto found = all.records.find(block.generation.value());
  return found == all.records.end() ? nullptr : found->second;
}

std::size_t block_use_records() noexcept {
  UseTable& all = use_table();
  const std::lock_guard lock(all.mutex);
  return all.records.size();
}

}  // namespace tern
