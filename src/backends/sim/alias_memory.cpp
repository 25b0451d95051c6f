#include "backends/sim/alias_memory.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <new>
#include <utility>
#include <vector>

#include "backends/memory_file.hpp"
#include "backends/sim/random.hpp"

namespace tern::sim {
namespace {

Failure cannot(const char* call, std::size_t bytes) noexcept {
  return Failure(
             ErrorCode::out_of_memory,
             "the simulated device could not reserve {requested} of addresses: {call} failed with "
             "error {code}. Open the device with less memory, for example sim?memory=1GiB.")
      .with_bytes("requested", bytes)
      .with("call", call)
      .with("code", static_cast<std::uint64_t>(errno));
}

/// Eight bytes that are NaN as one double and as two floats. Freed ones are negative.
std::uint64_t pattern_word(std::uint64_t key, std::uint64_t index, bool is_freed) noexcept {
  const std::uint64_t noise = hash(key + index * 0x9e3779b97f4a7c15u);
  const std::uint64_t quiet = 0x7fff'0001'7fc0'0001u;
  const std::uint64_t free_bits = 0x0000'fffe'003f'fffeu;
  const std::uint64_t sign = is_freed ? 0x8000'0000'8000'0000u : 0;
  return quiet | (noise & free_bits) | sign;
}

/// The largest alignment of a device: an aligned offset is then an aligned address.
constexpr std::size_t base_alignment = std::size_t{256} << 20;

}  // namespace

void* reserve_aligned(std::size_t bytes) noexcept {
  constexpr int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void* raw = mmap(nullptr, bytes + base_alignment, PROT_NONE, flags, -1, 0);
  if (raw == MAP_FAILED) return raw;
  const auto start = reinterpret_cast<std::uintptr_t>(raw);
  const std::uintptr_t aligned = (start + base_alignment - 1) / base_alignment * base_alignment;
  if (aligned > start) munmap(raw, aligned - start);
  const std::size_t tail = start + base_alignment - aligned;
  if (tail > 0) munmap(reinterpret_cast<void*>(aligned + bytes), tail);
  return reinterpret_cast<void*>(aligned);
}

Result<std::unique_ptr<AliasMemory>> AliasMemory::try_make(std::size_t bytes,
                                                           std::size_t window_bytes,
                                                           std::uint64_t seed) noexcept {
  const std::size_t all = bytes + window_bytes;
  const Result<int> made_file = try_make_memory_file("tern-sim");
  if (!made_file) return made_file.failure();
  const int file = *made_file;
  if (Result<void> sized = try_resize_memory_file(file, bytes); !sized) {
    close(file);
    return sized.failure();
  }
  constexpr int anonymous = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void* users = reserve_aligned(all);
  void* alias = mmap(nullptr, all, PROT_NONE, anonymous, -1, 0);
  const bool is_reserved = users != MAP_FAILED && alias != MAP_FAILED;
  constexpr int shared = MAP_SHARED | MAP_NORESERVE | MAP_FIXED;
  const bool is_mapped = is_reserved &&
                         mmap(users, bytes, PROT_NONE, shared, file, 0) != MAP_FAILED &&
                         mmap(alias, bytes, PROT_READ | PROT_WRITE, shared, file, 0) != MAP_FAILED;
  if (!is_mapped) {
    const Failure failure = cannot("mmap", all);
    if (users != MAP_FAILED) munmap(users, all);
    if (alias != MAP_FAILED) munmap(alias, all);
    close(file);
    return failure;
  }
  auto* made =
      new (std::nothrow) AliasMemory(file, static_cast<std::byte*>(users),
                                     static_cast<std::byte*>(alias), bytes, window_bytes, seed);
  if (made == nullptr) {
    munmap(users, all);
    munmap(alias, all);
    close(file);
    return cannot("new", sizeof(AliasMemory));
  }
  return std::unique_ptr<AliasMemory>(made);
}

AliasMemory::AliasMemory(int file, std::byte* users, std::byte* alias, std::size_t bytes,
                         std::size_t window_bytes, std::uint64_t seed) noexcept
    : file_(file),
      users_(users),
      alias_(alias),
      bytes_(bytes),
      window_bytes_(window_bytes),
      seed_(Random(seed, Purpose::fill).next()) {}

AliasMemory::~AliasMemory() {
  munmap(users_, bytes_ + window_bytes_);
  munmap(alias_, bytes_ + window_bytes_);
  close(file_);
}

std::uint64_t AliasMemory::key_of(std::uint64_t generation) const noexcept {
  return hash(seed_ + hash(generation));
}

std::optional<std::uint64_t> AliasMemory::offset_of(const void* address) const noexcept {
  const auto number = reinterpret_cast<std::uintptr_t>(address);
  const auto base = reinterpret_cast<std::uintptr_t>(users_);
  if (number < base || number - base >= bytes_ + window_bytes_) return std::nullopt;
  return number - base;
}

template <class Body>
void AliasMemory::for_each_piece(std::uint64_t offset, std::uint64_t bytes, Body body) const {
  if (offset < bytes_) return body(offset, bytes);
  const std::uint64_t end = offset + bytes;
  auto it = mapped_.upper_bound(offset);
  if (it != mapped_.begin()) --it;
  for (; it != mapped_.end() && it->first < end; ++it) {
    const std::uint64_t first = std::max(offset, it->first);
    const std::uint64_t last = std::min(end, it->first + it->second.second);
    if (first < last) body(it->second.first + (first - it->first), last - first);
  }
}

void AliasMemory::set_fresh(std::uint64_t offset, std::uint64_t bytes, std::uint64_t generation) {
  for_each_piece(offset, bytes, [&](std::uint64_t at, std::uint64_t length) {
    pending_.assign(at, at + length, {key_of(generation), false, at});
  });
}

void AliasMemory::set_freed(std::uint64_t offset, std::uint64_t bytes, std::uint64_t generation) {
  for_each_piece(offset, bytes, [&](std::uint64_t at, std::uint64_t length) {
    pending_.assign(at, at + length, {key_of(generation), true, at});
  });
}

void AliasMemory::write_pattern(std::uint64_t begin, std::uint64_t end, const Pattern& pattern) {
  std::uint64_t index = (begin - pattern.base) / 8;
  const auto write_part = [&](std::uint64_t inside, std::uint64_t count) {
    const std::uint64_t word = pattern_word(pattern.key, index++, pattern.is_freed);
    std::memcpy(alias_ + begin, reinterpret_cast<const char*>(&word) + inside, count);
    begin += count;
  };
  // Almost all ranges consist of whole words, and a copy of known size is one store.
  if (const std::uint64_t inside = (begin - pattern.base) % 8; inside != 0) {
    write_part(inside, std::min(8 - inside, end - begin));
  }
  for (; end - begin >= 8; begin += 8) {
    const std::uint64_t word = pattern_word(pattern.key, index++, pattern.is_freed);
    std::memcpy(alias_ + begin, &word, 8);
  }
  if (begin < end) write_part(0, end - begin);
}

void AliasMemory::prepare(std::uint64_t offset, std::uint64_t bytes) {
  if (pending_.empty()) return;
  for_each_piece(offset, bytes, [&](std::uint64_t at, std::uint64_t length) {
    bool is_pending = false;
    pending_.visit(at, at + length,
                   [&](std::uint64_t begin, std::uint64_t end, const Pattern* pattern) {
                     if (pattern == nullptr) return true;
                     is_pending = true;
                     write_pattern(begin, end, *pattern);
                     return true;
                   });
    if (is_pending) pending_.erase(at, at + length);
  });
}

void AliasMemory::forget(std::uint64_t offset, std::uint64_t bytes) {
  if (pending_.empty()) return;
  for_each_piece(offset, bytes,
                 [&](std::uint64_t at, std::uint64_t length) { pending_.erase(at, at + length); });
}

std::size_t AliasMemory::page_bytes() noexcept {
  static const auto bytes = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

void AliasMemory::open_pages(std::uint64_t offset, std::uint64_t bytes, bool for_writing) noexcept {
  mprotect(users_ + offset, bytes, for_writing ? PROT_READ | PROT_WRITE : PROT_READ);
}

void AliasMemory::close_pages(std::uint64_t offset, std::uint64_t bytes) noexcept {
  mprotect(users_ + offset, bytes, PROT_NONE);
}

Result<void> AliasMemory::map(std::uint64_t window_offset, std::uint64_t memory_offset,
                              std::size_t bytes) noexcept {
  try {
    mapped_.emplace(window_offset, std::pair(memory_offset, bytes));
  } catch (const std::bad_alloc&) {
    return cannot("new", 64);
  }
  return map_at(window_offset, file_, memory_offset, bytes);
}

Result<void> AliasMemory::map_file(std::uint64_t window_offset, int file,
                                   std::size_t bytes) noexcept {
  return map_at(window_offset, file, 0, bytes);
}

Result<void> AliasMemory::map_at(std::uint64_t window_offset, int file, std::uint64_t file_offset,
                                 std::size_t bytes) noexcept {
  // Both mappings or neither: a strict kernel works on users' addresses.
  constexpr int flags = MAP_SHARED | MAP_NORESERVE | MAP_FIXED;
  const auto at = static_cast<off_t>(file_offset);
  if (mmap(alias_ + window_offset, bytes, PROT_READ | PROT_WRITE, flags, file, at) == MAP_FAILED ||
      mmap(users_ + window_offset, bytes, PROT_NONE, flags, file, at) == MAP_FAILED) {
    const Failure failure = cannot("mmap", bytes);
    static_cast<void>(unmap(window_offset, bytes));
    return failure;
  }
  return {};
}

Result<void> AliasMemory::unmap(std::uint64_t window_offset, std::size_t bytes) noexcept {
  constexpr int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
  if (mmap(alias_ + window_offset, bytes, PROT_NONE, flags, -1, 0) == MAP_FAILED ||
      mmap(users_ + window_offset, bytes, PROT_NONE, flags, -1, 0) == MAP_FAILED) {
    return cannot("mmap", bytes);
  }
  mapped_.erase(window_offset);
  return {};
}

}  // namespace tern::sim
