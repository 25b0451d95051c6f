#include "buffer/memory_users.hpp"

#include <pthread.h>

#include <atomic>
#include <iterator>
#include <map>
#include <mutex>
#include <new>
#include <utility>

#include "buffer/block_uses.hpp"
#include "core/no_host_memory.hpp"

namespace tern {
namespace {

/// A storage, or what is left of it.
struct Known {
  Storage* storage = nullptr;  // null once the storage ends, or has released its memory
  StorageId id = {};
  std::size_t bytes = 0;
  bool is_released = false;
};
struct PausedRange {
  std::size_t bytes = 0;
  Tag tag = {};
};

struct All {
  std::mutex mutex;
  std::multimap<const std::byte*, Known> known;    // guarded by mutex
  std::map<const std::byte*, PausedRange> paused;  // guarded by mutex; they do not overlap
  std::atomic<std::size_t> paused_count = 0;       // the size of `paused`
};

/// Never destroyed: storages may end after main().
All& all_users() noexcept {
  static All* const there = new All;
  // The forking thread holds the lock, so the child never finds it locked by a thread that does not
  // exist there.
  static const int registered =
      pthread_atfork([] { all_users().mutex.lock(); }, [] { all_users().mutex.unlock(); },
                     [] { all_users().mutex.unlock(); });
  static_cast<void>(registered);
  return *there;
}

/// Returns the paused range that contains the address, or the end. Call with the lock held.
auto find_paused(const All& users, const std::byte* address) noexcept {
  auto found = users.paused.upper_bound(address);
  if (found == users.paused.begin()) return users.paused.end();
  --found;
  return address < found->first + found->second.bytes ? found : users.paused.end();
}

Failure paused(Tag tag, CallSite site) noexcept {
  return Failure(ErrorCode::access_conflict,
                 "memory with tag '{tag}' is paused and cannot be used. Resume it first.", site)
      .with("tag", tag.name());
}

/// Returns the entry of a storage, or the end. An entry that has lost its storage keeps its id.
/// Call with the lock held.
auto find(All& users, const void* address, StorageId id) noexcept {
  auto [one, end] = users.known.equal_range(static_cast<const std::byte*>(address));
  while (one != end && one->second.id != id) ++one;
  return one != end ? one : users.known.end();
}

}  // namespace

Result<void> MemoryUsers::try_add(Storage& storage, const void* address, std::size_t bytes,
                                  CallSite site) noexcept try {
  All& users = all_users();
  const std::lock_guard lock(users.mutex);
  const auto* const first = static_cast<const std::byte*>(address);
  if (const auto range = find_paused(users, first); range != users.paused.end()) {
    return paused(range->second.tag, site);
  }
  users.known.emplace(first, Known{&storage, storage.id(), bytes});
  return {};
} catch (const std::bad_alloc&) {
  return no_host_memory("a buffer", site);
}

void MemoryUsers::begin_end(Storage& storage, const void* address) noexcept {
  All& users = all_users();
  const std::lock_guard lock(users.mutex);
  const auto one = find(users, address, storage.id());
  if (one != users.known.end()) one->second.storage = nullptr;
}

void MemoryUsers::release(Storage& storage, const void* address) noexcept {
  All& users = all_users();
  const std::lock_guard lock(users.mutex);
  const auto one = find(users, address, storage.id());
  if (one == users.known.end()) return;
  one->second.storage = nullptr;
  one->second.is_released = true;
}

void MemoryUsers::remove(Storage& storage, const void* address) noexcept {
  All& users = all_users();
  const std::lock_guard lock(users.mutex);
  const auto one = find(users, address, storage.id());
  if (one != users.known.end()) users.known.erase(one);
}

void MemoryUsers::forget(const std::byte* address, std::size_t bytes) noexcept {
  All& users = all_users();
  const std::lock_guard lock(users.mutex);
  for (auto one = users.known.lower_bound(address);
       one != users.known.end() && one->first < address + bytes;) {
    one = one->second.is_released ? users.known.erase(one) : std::next(one);
  }
}

Result<void> MemoryUsers::check_not_paused(const void* address, CallSite site) noexcept {
  All& users = all_users();
  if (users.paused_count.load() == 0) return {};
  const std::lock_guard lock(users.mutex);
  const auto range = find_paused(users, static_cast<const std::byte*>(address));
  if (range == users.paused.end()) return {};
  return paused(range->second.tag, site);
}

// --- Pauses

void MemoryUsers::Pause::swap(Pause& other) noexcept {
  std::swap(address_, other.address_);
  std::swap(users_, other.users_);
}

Result<MemoryUsers::Pause> MemoryUsers::Pause::try_begin(const std::byte* address,
                                                         std::size_t bytes, Tag tag, MarkSet& uses,
                                                         CallSite site) noexcept try {
  All& users = all_users();
  Pause made;
  std::vector<std::shared_ptr<UseRecord>> of_blocks;
  {
    const std::lock_guard lock(users.mutex);
    users.paused.emplace(address, PausedRange{bytes, tag});
    users.paused_count.store(users.paused.size());
    made.address_ = address;
  }
  // Blocks whose uses begin from now on find the range.
  if (Result<void> found = try_find_uses_in(address, bytes, of_blocks, site); !found) {
    return found.failure();
  }
  for (std::shared_ptr<UseRecord>& record : of_blocks) {
    made.users_.reserve(made.users_.size() + 1);
    const Result<UseRecord::Ticket> ticket = record->try_pause(tag, uses, site);
    if (!ticket) return ticket.failure();
    made.users_.push_back({.uses = std::move(record), .ticket = *ticket});
  }
  // With the lock held, no storage ends.
  std::unique_lock lock(users.mutex);
  for (auto one = users.known.lower_bound(address);
       one != users.known.end() && one->first < address + bytes; ++one) {
    const Known& known = one->second;
    Result<UseRecord::Ticket> ticket = UseRecord::Ticket();
    if (known.is_released) {
      ticket = Failure(ErrorCode::access_conflict,
                       "memory with tag '{tag}' cannot be paused: buffer {id} has released it to "
                       "other code. Free it first, or pause the other memory.",
                       site)
                   .with("tag", tag.name())
                   .with("id", known.id.value);
    } else if (known.storage != nullptr) {
      made.users_.reserve(made.users_.size() + 1);
      ticket = known.storage->try_pause(tag, uses, site);
    } else {
      continue;
    }
    if (!ticket) {
      const Failure why = ticket.failure();
      lock.unlock();  // the destructor of the pause takes it
      return why;
    }
    made.users_.push_back(
        {.address = one->first, .storage = known.storage, .id = known.id, .ticket = *ticket});
  }
  lock.unlock();
  return made;
} catch (const std::bad_alloc&) {
  return no_host_memory("a pause", site);
}

template <class Visit>
void MemoryUsers::Pause::for_each_storage(Visit visit) noexcept {
  for (const User& user : users_) {
    if (user.storage == nullptr) continue;
    const auto one = find(all_users(), user.address, user.id);
    if (one != all_users().known.end() && one->second.storage != nullptr) {
      visit(*user.storage, user.ticket);
    }
  }
}

Result<std::vector<ByteRange>> MemoryUsers::Pause::try_contents(std::size_t bytes,
                                                                CallSite site) noexcept try {
  constexpr std::size_t max_ranges = 64;
  Result<std::vector<ByteRange>> all = std::vector<ByteRange>{{0, bytes}};
  if (users_.size() != 1 || users_[0].address != address_) return all;
  const std::lock_guard lock(all_users().mutex);
  for_each_storage([&](Storage& storage, const UseRecord::Ticket&) {
    const Result<Block> block = storage.try_block();
    if (!block || block->bytes != bytes) return;
    all = storage.try_written_ranges(0, storage.bytes());
    if (all && all->size() > max_ranges) *all = {{all->front().begin, all->back().end}};
  });
  return all;
} catch (const std::bad_alloc&) {
  return no_host_memory("a pause", site);
}

void MemoryUsers::Pause::forget_contents() noexcept {
  const std::lock_guard lock(all_users().mutex);
  for_each_storage([](Storage& storage, const UseRecord::Ticket&) { storage.forget_contents(); });
}

void MemoryUsers::Pause::end(StreamRef stream, Mark mark, Access access) noexcept {
  if (address_ == nullptr) return;
  All& users = all_users();
  const std::lock_guard lock(users.mutex);
  users.paused.erase(std::exchange(address_, nullptr));
  users.paused_count.store(users.paused.size());
  const auto end_one = [&](UseRecord& uses, const UseRecord::Ticket& ticket) {
    if (!stream.id() && !is_write(access)) {
      uses.cancel(ticket);
    } else {
      uses.end(ticket, stream, mark, access);
    }
  };
  for_each_storage(
      [&](Storage& storage, const UseRecord::Ticket& ticket) { end_one(storage.uses(), ticket); });
  for (const User& user : users_) {
    if (user.uses) end_one(*user.uses, user.ticket);
  }
  users_.clear();
}

}  // namespace tern
