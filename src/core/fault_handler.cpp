#include "core/fault_handler.hpp"

#include <pthread.h>

namespace tern {
namespace {

/// Guards the list of handlers. Held during a fork, so that the list does not change meanwhile.
constinit std::mutex list_mutex;
FaultHandler* first = nullptr;  // guarded by list_mutex

}  // namespace

void FaultHandler::lock_all() noexcept {
  list_mutex.lock();
  for (FaultHandler* one = first; one != nullptr; one = one->next_) one->mutex_.lock();
}

void FaultHandler::unlock_all() noexcept {
  for (FaultHandler* one = first; one != nullptr; one = one->next_) one->mutex_.unlock();
  list_mutex.unlock();
}

void FaultHandler::lock() noexcept {
  if (!is_listed_.load(std::memory_order_acquire)) {
    // If registration fails for lack of memory, a child may inherit the lock in a locked state.
    static const int registered = pthread_atfork(lock_all, unlock_all, unlock_all);
    static_cast<void>(registered);
    const std::lock_guard lock(list_mutex);
    if (!is_listed_.load(std::memory_order_relaxed)) {
      next_ = first;
      first = this;
      is_listed_.store(true, std::memory_order_release);
    }
  }
  mutex_.lock();
}

bool FaultHandler::install() noexcept {
  if (is_installed_) return true;
  struct sigaction ours = {};
  ours.sa_sigaction = entry_;
  ours.sa_flags = SA_SIGINFO | SA_ONSTACK;
  is_spent_.store(false, std::memory_order_relaxed);
  is_installed_ =
      ::sigaction(signal_, nullptr, &before_) == 0 && ::sigaction(signal_, &ours, nullptr) == 0;
  return is_installed_;
}

void FaultHandler::uninstall() noexcept {
  struct sigaction current = {};
  if (!is_installed_ || ::sigaction(signal_, nullptr, &current) != 0) return;
  if ((current.sa_flags & SA_SIGINFO) == 0 || current.sa_sigaction != entry_) return;
  const struct sigaction none = {};
  const bool is_spent = is_spent_.load(std::memory_order_relaxed);
  is_installed_ = ::sigaction(signal_, is_spent ? &none : &before_, nullptr) != 0;
}

void FaultHandler::call_before(siginfo_t* info, void* context) noexcept {
  // Block the signals that the system would have blocked for the previous handler. The return from
  // Tern's handler restores the mask.
  ::pthread_sigmask(SIG_BLOCK, &before_.sa_mask, nullptr);
  if ((before_.sa_flags & SA_NODEFER) != 0 && sigismember(&before_.sa_mask, signal_) == 0) {
    sigset_t own;
    sigemptyset(&own);
    sigaddset(&own, signal_);
    ::pthread_sigmask(SIG_UNBLOCK, &own, nullptr);
  }
  if ((before_.sa_flags & SA_SIGINFO) != 0) {
    before_.sa_sigaction(signal_, info, context);
  } else {
    before_.sa_handler(signal_);
  }
}

void FaultHandler::pass_on(siginfo_t* info, void* context) noexcept {
  const bool is_once = (static_cast<unsigned>(before_.sa_flags) & unsigned{SA_RESETHAND}) != 0;
  const bool is_function = (before_.sa_flags & SA_SIGINFO) != 0 ||
                           (before_.sa_handler != SIG_DFL && before_.sa_handler != SIG_IGN);
  // A handler with SA_RESETHAND is called once. After that the default action applies, and such a
  // handler often relies on it.
  if (is_function && !(is_once && is_spent_.exchange(true))) {
    call_before(info, context);
  } else if (is_function || !is_sent(*info) || before_.sa_handler == SIG_DFL) {
    // Return with the default action in place: the access faults again, and the process ends with
    // the signal and the core file that it would have had. A signal that was sent must be sent
    // again.
    const struct sigaction none = {};
    ::sigaction(signal_, is_function ? &none : &before_, nullptr);
    if (is_sent(*info)) ::raise(signal_);
  }
}

}  // namespace tern
