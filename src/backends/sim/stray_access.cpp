#include "backends/sim/stray_access.hpp"

#include <fmt/format.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <mutex>
#include <new>
#include <utility>

namespace tern::sim {
namespace {

/// Copied from the memory, which may be gone by the time a handler looks.
struct Watched {
  std::atomic<std::uintptr_t> begin = 0;  // 0: nothing is watched here
  std::atomic<std::uintptr_t> end = 0;
  std::array<char, 32> device = {};  // written before begin
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
thread_local TouchRecorder* recorder = nullptr;

std::uintptr_t begin_of(const AliasMemory& memory) noexcept {
  return reinterpret_cast<std::uintptr_t>(memory.address_of(0));
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

/// Null if the host has no memory: then the device is not watched, and works otherwise.
Watched* find_room() noexcept {
  if (Watched* unused = find([](Watched& one) { return one.begin == 0; })) return unused;
  auto* added = new (std::nothrow) Chunk;
  if (added == nullptr) return nullptr;
  Chunk* last = &first_chunk;
  while (last->next.load() != nullptr) last = last->next.load();
  last->next = added;
  return &added->watched.front();
}

void report(const char* device, std::uint64_t offset) noexcept {
  std::array<char, 400> text;
  const auto written = fmt::format_to_n(
      text.data(), text.size(),
      "TERN-S304 stray-host-access                     {}\n"
      "  what    the host touched [{:#x}] of {}, which only the device can reach\n"
      "  fix     copy the bytes to host memory with a stream, and wait for the copy\n",
      device, offset, device);
  const std::size_t bytes = written.size < text.size() ? written.size : text.size();
  static_cast<void>(!write(STDERR_FILENO, text.data(), bytes));
}

void on_fault(int signal, siginfo_t* info, void* context) {
  // A signal that somebody sent carries no address.
  const bool is_sent = info->si_code <= 0;
  if (!is_sent) {
    // Whoever handled this before may go on behind the access, and would miss its errno.
    const int error = errno;
    const auto address = reinterpret_cast<std::uintptr_t>(info->si_addr);
    if (const Watched* hit =
            find([&](Watched& one) { return address >= one.begin && address < one.end; })) {
      if (recorder != nullptr && recorder->note(info->si_addr)) {
        errno = error;
        return;
      }
      report(hit->device.data(), address - hit->begin);
    }
    errno = error;
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

void watch_reservation(const AliasMemory& memory, std::string_view device) noexcept {
  const std::lock_guard lock(mutex);
  if (count++ == 0) install();
  Watched* const room = find_room();
  if (room == nullptr) return;
  const std::uintptr_t begin = begin_of(memory);
  room->device = {};
  device.copy(room->device.data(), room->device.size() - 1);
  room->end = begin + memory.bytes() + memory.window_bytes();
  room->begin = begin;
}

void forget_reservation(const AliasMemory& memory) noexcept {
  const std::lock_guard lock(mutex);
  const std::uintptr_t begin = begin_of(memory);
  if (Watched* const one = find([&](Watched& candidate) { return candidate.begin == begin; })) {
    // The end first: until the begin is gone too, nothing lies between them.
    one->end = 0;
    one->begin = 0;
  }
  if (--count == 0) uninstall();
}

TouchRecorder::TouchRecorder() noexcept : outer_(std::exchange(recorder, this)) {}
TouchRecorder::~TouchRecorder() { recorder = outer_; }

bool TouchRecorder::note(void* address) noexcept {
  if (count_ == most) return false;
  const std::uintptr_t page = AliasMemory::page_bytes();
  const std::uintptr_t at = reinterpret_cast<std::uintptr_t>(address) / page * page;
  if (mprotect(reinterpret_cast<void*>(at), page, PROT_READ | PROT_WRITE) != 0) return false;
  touched_[count_++] = address;
  return true;
}

}  // namespace tern::sim
