#include "tern/core/tag.hpp"

#include <pthread.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <mutex>
#include <new>
#include <string>
#include <unordered_map>

#include "core/text.hpp"

namespace tern {
namespace {

constexpr std::string_view untagged = "untagged";
constexpr std::size_t max_tags = 65'536;
constexpr std::size_t chunk_tags = 256;

/// The names by number. Chunks are added when needed and never move, so a reader needs no lock: it
/// has a number, and the number was published after the name.
struct Names {
  std::array<std::atomic<std::string_view*>, max_tags / chunk_tags> chunks = {};
  std::mutex mutex;
  std::unordered_map<std::string_view, std::uint16_t> numbers;  // guarded by mutex
  std::size_t count = 1;                                        // guarded by mutex
  std::atomic<std::uint64_t> refused = 0;
};

Names& names() noexcept;

/// Creates the table. fork() waits for its lock, so that a child never inherits the lock from a
/// thread that does not exist there.
Names& make_names() noexcept {
  // Never destroyed, because exit handlers and detached threads read tags. In static storage and
  // not on the heap, because counting names that were rejected for lack of memory must not need
  // memory.
  alignas(Names) static std::byte storage[sizeof(Names)];
  Names& made = *new (storage) Names;
  constexpr auto unlock = [] { names().mutex.unlock(); };
  pthread_atfork([] { names().mutex.lock(); }, unlock, unlock);
  return made;
}

Names& names() noexcept {
  static Names& instance = make_names();
  return instance;
}

/// Returns the number of the name, and adds the name if it is new. Throws std::bad_alloc if there
/// is no memory or no number left; the table is then unchanged.
std::uint16_t intern(std::string_view name) {
  Names& all = names();
  const std::lock_guard lock(all.mutex);
  if (const auto found = all.numbers.find(name); found != all.numbers.end()) return found->second;
  if (all.count == max_tags) throw std::bad_alloc();

  std::atomic<std::string_view*>& chunk = all.chunks[all.count / chunk_tags];
  if (chunk.load(std::memory_order_relaxed) == nullptr) {
    chunk.store(new std::string_view[chunk_tags], std::memory_order_release);
  }
  // With a terminating zero, for the C API.
  char* copy = new char[name.size() + 1];
  std::memcpy(copy, name.data(), name.size());
  copy[name.size()] = '\0';
  const std::string_view kept(copy, name.size());
  const auto number = static_cast<std::uint16_t>(all.count);
  try {
    all.numbers.emplace(kept, number);
  } catch (...) {
    delete[] copy;
    throw;
  }
  chunk.load(std::memory_order_relaxed)[number % chunk_tags] = kept;
  ++all.count;
  return number;
}

}  // namespace

Tag::Tag(std::string_view name) noexcept {
  name = name.substr(0, utf8_prefix_bytes(name, max_name_bytes));
  if (name.empty() || name == untagged) return;
  try {
    number_ = intern(name);
  } catch (...) {
    names().refused.fetch_add(1, std::memory_order_relaxed);
  }
}

std::optional<Tag> Tag::find(std::string_view name) noexcept {
  name = name.substr(0, utf8_prefix_bytes(name, max_name_bytes));
  Tag tag;
  if (name.empty() || name == untagged) return tag;
  Names& all = names();
  const std::lock_guard lock(all.mutex);
  const auto found = all.numbers.find(name);
  if (found == all.numbers.end()) return std::nullopt;
  tag.number_ = found->second;
  return tag;
}

std::string_view Tag::name() const noexcept {
  if (number_ == 0) return untagged;
  return names().chunks[number_ / chunk_tags].load(std::memory_order_acquire)[number_ % chunk_tags];
}

std::uint64_t tags_refused() noexcept { return names().refused.load(std::memory_order_relaxed); }

}  // namespace tern
