#include "interpreter_lock.hpp"

#include <pthread.h>

#include <atomic>
#include <chrono>
#include <thread>

namespace tern::python {
namespace {

std::atomic<bool> is_ending = false;
std::atomic<int> returning_threads = 0;
std::thread::id ending_thread;  // written before is_ending

/// Called when the interpreter begins to end. Lets threads pass that already ask for the lock.
void begin_end() {
  ending_thread = std::this_thread::get_id();
  is_ending = true;
  PyThreadState* const thread = PyEval_SaveThread();
  for (int i = 0; i < 1000 && returning_threads != 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  PyEval_RestoreThread(thread);
}

}  // namespace

thread_local constinit int LockReleased::depth_ = 0;

LockReleased::~LockReleased() {
  --depth_;
  ++returning_threads;
  if (is_ending && std::this_thread::get_id() != ending_thread) {
    --returning_threads;
    for (;;) std::this_thread::sleep_for(std::chrono::hours(1));
  }
  PyEval_RestoreThread(thread_);
  --returning_threads;
}

void add_interpreter_lock(nanobind::module_& module) {
  module.def("_begin_end", &begin_end);
  // A child has one thread, and the counter may include threads of the parent.
  pthread_atfork(nullptr, nullptr, [] { returning_threads = 0; });
  nanobind::module_::import_("atexit").attr("register")(module.attr("_begin_end"));
}

}  // namespace tern::python
