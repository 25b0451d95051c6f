#include "core/fault_watch.hpp"

#include <signal.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <mutex>
#include <new>

namespace tern {
namespace {

/// A copy of everything, because what is watched may be gone by the time a handler looks.
struct Watched {
  std::atomic<std::uintptr_t> begin = 0;  // 0: nothing is watched here
  std::atomic<std::uintptr_t> end = 0;
  std::atomic<ExplainFault> explain = nullptr;
  std::atomic<const char*> file = "";
  std::atomic<std::uint32_t> line = 0;
  std::array<char, 32> name = {};  // written before begin
};

/// Chunks are added and never freed, so that the handler can read them at any moment.
struct Chunk {
  std::array<Watched, 64> watched;
  std::atomic<Chunk*> next = nullptr;
};
Chunk first_chunk;
std::mutex mutex;
std::size_t count = 0;                 // guarded by mutex
bool is_installed = false;             // guarded by mutex
struct sigaction handler_before = {};  // written under mutex, as ours is installed

std::uintptr_t word(const void* address) noexcept {
  return reinterpret_cast<std::uintptr_t>(address);
}

/// The first place for which matches(place) holds; null if there is none.
template <class Matches>
Watched* find(Matches matches) noexcept {
  for (Chunk* chunk = &first_chunk; chunk != nullptr; chunk = chunk->next.load()) {
    for (Watched& one : chunk->watched) {
      if (matches(one)) return &one;
    }
  }
  return nullptr;
}

Watched* find_room() noexcept {
  if (Watched* unused = find([](Watched& one) { return one.begin == 0; })) return unused;
  auto* added = new (std::nothrow) Chunk;
  if (added == nullptr) return nullptr;
  Chunk* last = &first_chunk;
  while (last->next.load() != nullptr) last = last->next.load();
  last->next = added;
  return &added->watched.front();
}

void on_fault(int signal, siginfo_t* info, void* context) {
  // A signal that somebody sent carries no address.
  const bool is_sent = info->si_code <= 0;
  if (!is_sent) {
    // Whoever handled this before may go on behind the access, and would miss its errno.
    const int error = errno;
    const std::uintptr_t address = word(info->si_addr);
    const Watched* const hit =
        find([&](Watched& one) { return address >= one.begin && address < one.end; });
    const bool may_go_on =
        hit != nullptr && hit->explain.load()({.address = info->si_addr,
                                               .offset = address - hit->begin,
                                               .name = hit->name.data(),
                                               .site = {hit->file, "", hit->line}});
    errno = error;
    if (may_go_on) return;
  }
  if ((handler_before.sa_flags & SA_SIGINFO) != 0) {
    handler_before.sa_sigaction(signal, info, context);
  } else if (handler_before.sa_handler != SIG_DFL && handler_before.sa_handler != SIG_IGN) {
    handler_before.sa_handler(signal);
  } else if (!is_sent || handler_before.sa_handler == SIG_DFL) {
    // Return with the default in place: the access faults again, and the process ends with the
    // signal and the core it would have had. A signal that was sent has to be sent again.
    sigaction(SIGSEGV, &handler_before, nullptr);
    if (is_sent) ::raise(signal);
  }
}

void install() noexcept {
  if (is_installed) return;
  struct sigaction ours = {};
  ours.sa_sigaction = on_fault;
  ours.sa_flags = SA_SIGINFO | SA_ONSTACK;
  is_installed = sigaction(SIGSEGV, &ours, &handler_before) == 0;
}

/// A handler installed after ours may pass faults on to it. It stays then, and so do we: taking
/// ours out would take out theirs, and putting ours back in later would make the two call each
/// other.
void uninstall() noexcept {
  struct sigaction current = {};
  if (!is_installed || sigaction(SIGSEGV, nullptr, &current) != 0) return;
  if ((current.sa_flags & SA_SIGINFO) == 0 || current.sa_sigaction != on_fault) return;
  is_installed = sigaction(SIGSEGV, &handler_before, nullptr) != 0;
}

}  // namespace

void watch_faults(const void* first, std::size_t bytes, std::string_view name,
                  ExplainFault explain) noexcept {
  const std::lock_guard lock(mutex);
  if (count++ == 0) install();
  Watched* const room = find_room();
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
  const std::lock_guard lock(mutex);
  if (Watched* const one = find([&](Watched& some) { return some.begin == word(first); })) {
    one->file = site.file;
    one->line = site.line;
  }
}

void forget_faults(const void* first) noexcept {
  const std::lock_guard lock(mutex);
  if (Watched* const one = find([&](Watched& some) { return some.begin == word(first); })) {
    // The end first: until the begin is gone too, nothing lies between them.
    one->end = 0;
    one->begin = 0;
  }
  if (--count == 0) uninstall();
}

}  // namespace tern
