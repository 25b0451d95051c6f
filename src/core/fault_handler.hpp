// A FaultHandler is our handler of a signal that a bad access raises, in front of whoever handled
// it before.
//
// Its entry looks whether the fault is one of ours, and passes all others on: to the handler that
// was there, or to the system, so that the process ends with the signal and the core it would have
// had. Who keeps books for the entry locks the handler to change them. The lock is whole in a
// forked child, whichever thread of the parent had it: a fork waits for it.
//
// One for each signal, with static storage. Thread-safe; pass_on() may be called in the entry.

#pragma once

#include <signal.h>

#include <atomic>
#include <mutex>

namespace tern {

class FaultHandler {
 public:
  using Entry = void (*)(int signal, siginfo_t* info, void* context);

  constexpr FaultHandler(int signal, Entry entry) noexcept : signal_(signal), entry_(entry) {}
  FaultHandler(const FaultHandler&) = delete;
  FaultHandler& operator=(const FaultHandler&) = delete;
  ~FaultHandler() = default;

  void lock() noexcept;
  void unlock() noexcept { mutex_.unlock(); }

  /// With the lock held. Once: where somebody has put a handler over ours since, theirs passes
  /// faults on to ours, and putting ours over theirs would make the two call each other. False if
  /// the system refuses, with errno.
  bool install() noexcept;
  /// With the lock held. Ours stays where somebody has put a handler over it: taking it out would
  /// take out theirs.
  void uninstall() noexcept;

  /// In the entry, if the fault is not ours: whoever handled the signal before has his turn.
  void pass_on(siginfo_t* info, void* context) noexcept;

  /// Somebody sent the signal: it carries no address.
  [[nodiscard]] static bool is_sent(const siginfo_t& info) noexcept { return info.si_code <= 0; }

 private:
  static void lock_all() noexcept;
  static void unlock_all() noexcept;
  void call_before(siginfo_t* info, void* context) noexcept;

  const int signal_;
  const Entry entry_;
  std::mutex mutex_;
  bool is_installed_ = false;           // guarded by mutex_
  struct sigaction before_ = {};        // written under mutex_, before ours is installed
  std::atomic<bool> is_spent_ = false;  // that one was to be called once, and was
  std::atomic<bool> is_listed_ = false;
  FaultHandler* next_ = nullptr;  // those that a fork locks
};

}  // namespace tern
