// A FaultHandler installs Tern's handler for a signal that a bad memory access raises, in front of
// the handler that was there before.
//
// The entry function decides whether the fault is one of Tern's. It passes every other fault on, to
// the previous handler or to the system, so that the process ends with the same signal and core
// file as without Tern. Code that changes the data of the entry function locks the handler. A fork
// waits for the lock, so the lock is free in the child.
//
// There is one object per signal, with static storage. Thread-safe. Only pass_on() and is_sent()
// may be called in the entry function.

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

  /// Installs the handler, once. Requires the lock. If other code has installed a handler on top
  /// since then, this function changes nothing: that handler passes faults on to Tern's, and
  /// installing Tern's handler again would make the two call each other forever. Returns false with
  /// errno if the system fails.
  bool install() noexcept;
  /// Restores the previous handler. Requires the lock. If other code has installed a handler on
  /// top, Tern's handler stays, because restoring the previous one would remove the other code's
  /// handler.
  void uninstall() noexcept;

  /// Passes a fault that is not Tern's on to the previous handler. Call it in the entry function.
  void pass_on(siginfo_t* info, void* context) noexcept;

  /// Returns true if the signal was sent by a process, not raised by an access. It has no address
  /// then.
  [[nodiscard]] static bool is_sent(const siginfo_t& info) noexcept { return info.si_code <= 0; }

 private:
  static void lock_all() noexcept;
  static void unlock_all() noexcept;
  void call_before(siginfo_t* info, void* context) noexcept;

  const int signal_;
  const Entry entry_;
  std::mutex mutex_;
  bool is_installed_ = false;           // guarded by mutex_
  struct sigaction before_ = {};        // written under mutex_ before the handler is installed
  std::atomic<bool> is_spent_ = false;  // the previous handler had SA_RESETHAND and was called
  std::atomic<bool> is_listed_ = false;
  FaultHandler* next_ = nullptr;  // the list of handlers that a fork locks
};

}  // namespace tern
