#include "interrupts.hpp"

#include <condition_variable>
#include <memory>
#include <mutex>
#include <system_error>
#include <utility>

namespace tern::python {
namespace {

/// Python runs signal handlers in its main thread only. Written when the module is imported.
unsigned long main_thread = 0;

bool is_main_thread() { return main_thread == PyThread_get_thread_ident(); }

/// A wait of another thread.
class WaitBeside {
 public:
  /// Starts a thread that makes the call. Returns null if there is no thread to be had.
  template <class Call>
  static std::shared_ptr<WaitBeside> start(Call call) {
    auto made = std::make_shared<WaitBeside>();
    try {
      // The thread is not joined: a wait that a signal ended goes on alone.
      std::thread([made, call = std::move(call)] {
        Result<void> result = call();
        const std::lock_guard lock(made->mutex_);
        made->result_ = std::move(result);
        made->is_over_ = true;
        made->changed_.notify_all();
      }).detach();
    } catch (const std::system_error&) {
      return nullptr;
    }
    return made;
  }

  [[nodiscard]] bool is_over_in_turn() {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, turn, [&] { return is_over_; });
  }
  /// Only after the wait is over.
  [[nodiscard]] Result<void>& result() { return result_; }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_over_ = false;
  Result<void> result_;
};

struct StorageWait {
  StorageId storage;
  Access access = Access::read;
  std::shared_ptr<WaitBeside> wait;
};
thread_local StorageWait current_wait;

}  // namespace

Result<bool> is_ready_beside(const StorageHandle& storage, Access access) {
  if (!is_main_thread() || is_in_kernel) return true;
  if (current_wait.wait == nullptr || current_wait.storage != storage->id() ||
      current_wait.access != access) {
    const Result<bool> ready = storage->uses().try_is_ready(access);
    if (!ready || *ready) return ready;
    current_wait = {storage->id(), access, WaitBeside::start([storage, access] {
                      return storage->uses().try_wait(access);
                    })};
  }
  if (current_wait.wait != nullptr && !current_wait.wait->is_over_in_turn()) return false;
  current_wait.wait.reset();
  return true;
}

void wait_for_device(const Device& device) {
  const CallSite site = here();
  // The device refuses a wait inside of a kernel; a wait beside it would last for ever.
  if (is_main_thread() && !is_in_kernel) {
    // No call asks whether a device is idle.
    if (const auto wait =
            WaitBeside::start([device, site] { return device.try_synchronize(site); })) {
      while (!without_gil([&] { return wait->is_over_in_turn(); })) check_signals();
      if (!wait->result()) wait->result().value(site);
    }
  }
  // A checker with a clock for each thread has to see that this thread waited.
  without_gil([&] { return device.try_synchronize(site); }).value(site);
}

void add_interrupts() {
  main_thread = nb::cast<unsigned long>(
      nb::module_::import_("threading").attr("main_thread")().attr("ident"));
}

}  // namespace tern::python
