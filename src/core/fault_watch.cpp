#include "core/fault_watch.hpp"

#include <signal.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <mutex>
#include <new>

#include "core/fault_handler.hpp"

namespace tern {
namespace {

/// One watched range. Holds copies of all data, because the owner of the range may be gone when the
/// handler reads it.
struct Watched {
  std::atomic<std::uintptr_t> begin = 0;  // 0: the entry is free
  std::atomic<std::uintptr_t> end = 0;
  std::atomic<ExplainFault> explain = nullptr;
  std::atomic<const char*> file = "";
  std::atomic<std::uint32_t> line = 0;
  std::array<char, 32> name = {};  // written before begin
};

/// Chunks are added and never freed, so that the handler can read them at any time without a lock.
struct Chunk {
  std::array<Watched, 64> watched;
  std::atomic<Chunk*> next = nullptr;
};
Chunk first_chunk;
std::size_t count = 0;  // guarded by the handler's lock

void on_fault(int signal, siginfo_t* info, void* context);
constinit FaultHandler handler(SIGSEGV, on_fault);

std::uintptr_t word(const void* address) noexcept {
  return reinterpret_cast<std::uintptr_t>(address);
}

/// Returns the first entry for which matches(entry) returns true, or null.
template <class Matches>
Watched* find(Matches matches) noexcept {
  for (Chunk* chunk = &first_chunk; chunk != nullptr; chunk = chunk->next.load()) {
    for (Watched& one : chunk->watched) {
      if (matches(one)) return &one;
    }
  }
  return nullptr;
}

Watched* find_free_entry() noexcept {
  if (Watched* unused = find([](Watched& one) { return one.begin == 0; })) return unused;
  auto* added = new (std::nothrow) Chunk;
  if (added == nullptr) return nullptr;
  Chunk* last = &first_chunk;
  while (last->next.load() != nullptr) last = last->next.load();
  last->next = added;
  return &added->watched.front();
}

void on_fault(int, siginfo_t* info, void* context) {
  if (!FaultHandler::is_sent(*info)) {
    // The previous handler may continue after the access and needs its errno.
    const int error = errno;
    const std::uintptr_t address = word(info->si_addr);
    const Watched* const hit =
        find([&](Watched& one) { return address >= one.begin && address < one.end; });
    const bool may_go_on =
        hit != nullptr && hit->explain.load()({.address = info->si_addr,
                                               .offset = address - hit->begin,
                                               .bytes = hit->end - hit->begin,
                                               .name = hit->name.data(),
                                               .site = {hit->file, "", hit->line}});
    errno = error;
    if (may_go_on) return;
  }
  handler.pass_on(info, context);
}

}  // namespace

void watch_faults(const void* first, std::size_t bytes, std::string_view name,
                  ExplainFault explain) noexcept {
  const std::lock_guard lock(handler);
  if (count++ == 0) handler.install();
  Watched* const room = find_free_entry();
  if (room == nullptr) return;
  room->name = {};
  name.copy(room->name.data(), room->name.size() - 1);
  room->explain = explain;
  room->file = "";
  room->line = 0;
  room->end = word(first) + bytes;
  room->begin = word(first);
}

void set_fault_site(const void* first, const CallSite& site) noexcept {
  const std::lock_guard lock(handler);
  if (Watched* const one = find([&](Watched& some) { return some.begin == word(first); })) {
    one->file = site.file;
    one->line = site.line;
  }
}

void forget_faults(const void* first) noexcept {
  const std::lock_guard lock(handler);
  if (Watched* const one = find([&](Watched& some) { return some.begin == word(first); })) {
    // Clear the end first. Until the begin is cleared too, the range is empty.
    one->end = 0;
    one->begin = 0;
  }
  if (--count == 0) handler.uninstall();
}

}  // namespace tern
