#include "owner.hpp"

#include <atomic>
#include <chrono>
#include <thread>
#include <utility>

namespace tern::python {
namespace {

std::atomic<bool> is_ending = false;
std::atomic<int> entries = 0;

}  // namespace

InterpreterEntry::InterpreterEntry() noexcept {
  entries.fetch_add(1);
  if (is_ending.load()) {
    entries.fetch_sub(1);
    return;
  }
  lock_.emplace();
}

InterpreterEntry::~InterpreterEntry() {
  if (!lock_) return;
  lock_.reset();
  entries.fetch_sub(1);
}

std::shared_ptr<void> shared_owner(nb::object object) {
  PyObject* const owned = object.release().ptr();
  return std::shared_ptr<void>(owned, [](void* released) {
    if (const InterpreterEntry entry; entry) Py_DECREF(static_cast<PyObject*>(released));
  });
}

void add_owner(nb::module_&) {
  nb::module_::import_("atexit").attr("register")(nb::cpp_function([] {
    is_ending.store(true);
    released([] {
      while (entries.load() > 0) std::this_thread::sleep_for(std::chrono::microseconds(100));
    });
  }));
}

}  // namespace tern::python
