#include "python_kernel.hpp"

#include <algorithm>
#include <atomic>
#include <list>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "host_memory.hpp"
#include "launches.hpp"
#include "owner.hpp"

namespace tern::python {
namespace {

/// The number of this thread. Numbers are not reused, as the ids of the system are.
std::uint64_t this_thread() {
  static constinit std::atomic<std::uint64_t> count = 0;
  thread_local const std::uint64_t number = ++count;
  return number;
}

struct Kept {
  std::uint64_t thread = 0;
  DeviceId device;
  StreamId stream;
  PyObject* exception = nullptr;  // owned
};

std::mutex kept_mutex;
std::list<Kept>& kept() {
  static auto& list = *new std::list<Kept>;  // never destroyed: Python may be gone
  return list;
}
std::vector<std::shared_ptr<void>>& kept_handles() {
  static auto& list = *new std::vector<std::shared_ptr<void>>;
  return list;
}

/// The thread that launches, by launch. The simulated device runs kernels on any thread.
struct Launcher {
  std::uint64_t thread = this_thread();
};

void keep_exception(const FunctionLaunch& launch, std::uint64_t thread, const std::string& kernel,
                    nb::python_error& error) {
  nb::object exception = nb::borrow(error.value());
  try {
    const std::string where = launch.site.is_known()
                                  ? std::string(", launched at ") + launch.site.file + ":" +
                                        std::to_string(launch.site.line)
                                  : "";
    exception.attr("add_note")(nb::str(("raised by the kernel '" + kernel + "'" + where).c_str()));
  } catch (nb::python_error&) {
    // An exception that takes no notes is raised without one.
  }
  const std::lock_guard lock(kept_mutex);
  kept().push_back({thread, launch.device, launch.stream, exception.release().ptr()});
  kept_things.fetch_add(1);
}

nb::object array_of(const FunctionArgument& argument, void* address,
                    const std::shared_ptr<LaunchedMemory>& memory) {
  return array_over({.storage = {},
                     .address = address,
                     .shape = argument.shape,
                     .dtype = argument.dtype,
                     .is_read_only = argument.access == Access::read,
                     .owner = memory});
}

}  // namespace

std::atomic<int> kept_things = 0;
thread_local bool is_in_kernel = false;
thread_local bool is_in_host_kernel = false;

void refuse_in_kernel() {
  raise(Failure(ErrorCode::stream_misuse,
                "a kernel function called Tern. Its stream runs nothing else meanwhile, so a wait "
                "would never end. Use "
                "only the arrays that the function gets."),
        here());
}

void keep_handle(std::shared_ptr<void> handle) noexcept try {
  const std::lock_guard lock(kept_mutex);
  kept_handles().push_back(std::move(handle));
  kept_things.fetch_add(1);
} catch (const std::bad_alloc&) {
  // Without memory for the list the handle ends here. The device then reports the call.
}

void settle_launches(DeviceId device, StreamId stream) {
  released([] {
    std::vector<std::shared_ptr<void>> ended;
    const std::lock_guard lock(kept_mutex);
    ended.swap(kept_handles());
    kept_things.fetch_sub(static_cast<int>(ended.size()));
  });
  PyObject* raised = nullptr;
  {
    const std::lock_guard lock(kept_mutex);
    const auto found = std::ranges::find_if(kept(), [&](const Kept& one) {
      return one.thread == this_thread() || (device && one.device == device) ||
             (stream && one.stream == stream);
    });
    if (found == kept().end()) return;
    raised = found->exception;
    kept().erase(found);
    kept_things.fetch_sub(1);
  }
  const nb::object exception = nb::steal(raised);
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(raised)), raised);
  nb::raise_python_error();
}

void end_launches() {
  for (;;) {
    PyObject* unraised = nullptr;
    released([&] {
      std::vector<std::shared_ptr<void>> ended;
      const std::lock_guard lock(kept_mutex);
      ended.swap(kept_handles());
      if (kept().empty()) return;
      unraised = kept().front().exception;
      kept().pop_front();
    });
    if (unraised == nullptr) return;
    PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(unraised)), unraised);
    Py_DECREF(unraised);
    PyErr_WriteUnraisable(nullptr);
  }
}

struct PythonKernel::Pending {
  struct Entry {
    std::unique_ptr<FunctionLaunch> launch;
    std::shared_ptr<PythonKernel> kernel;  // lives until its launches have run
    Launcher launcher;
  };

  std::mutex mutex;
  std::uint64_t next = 0;
  std::unordered_map<std::uint64_t, Entry> entries;
};

PythonKernel::PythonKernel(nb::object function, std::string name)
    : function_(std::move(function)),
      name_(std::move(name)),
      pending_(std::make_unique<Pending>()) {}

PythonKernel::~PythonKernel() = default;

std::uint64_t PythonKernel::add(std::unique_ptr<FunctionLaunch> launch) {
  const std::lock_guard lock(pending_->mutex);
  const std::uint64_t number = pending_->next++;
  pending_->entries.emplace(number, Pending::Entry{std::move(launch), shared_from_this(), {}});
  return number;
}

void PythonKernel::drop(std::uint64_t number) {
  Pending::Entry dropped;
  const std::lock_guard lock(pending_->mutex);
  const auto found = pending_->entries.find(number);
  if (found == pending_->entries.end()) return;
  dropped = std::move(found->second);
  pending_->entries.erase(found);
}

void PythonKernel::run(const KernelCall& call) {
  const InterpreterEntry entry;
  // After the end of Python the launch stays in the list, which is never read again.
  if (!entry) return;
  auto* const self = static_cast<PythonKernel*>(call.context);
  const auto number = call.argument<std::uint64_t>(call.arguments.size() - 1);
  Pending::Entry mine;
  {
    const std::lock_guard lock(self->pending_->mutex);
    const auto found = self->pending_->entries.find(number);
    if (found == self->pending_->entries.end()) return;
    mine = std::move(found->second);
    self->pending_->entries.erase(found);
  }
  // The thread may already have a pending exception.
  const nb::error_scope other;
  const bool was_in_kernel = std::exchange(is_in_kernel, true);
  const FunctionLaunch& launch = *mine.launch;
  const bool was_in_host_kernel = std::exchange(is_in_host_kernel, launch.is_on_host);
  std::vector<nb::object> arrays;
  try {
    nb::list arguments;
    std::size_t memory = 0;
    for (const FunctionArgument& argument : launch.arguments) {
      if (!argument.is_memory) {
        arguments.append(argument.value);
        continue;
      }
      arrays.push_back(array_of(argument, call.argument<void*>(memory++), launch.memory));
      arguments.append(arrays.back());
    }
    self->function_(*nb::tuple(arguments));
  } catch (nb::python_error& error) {
    keep_exception(launch, mine.launcher.thread, self->name_, error);
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
    nb::python_error made;
    keep_exception(launch, mine.launcher.thread, self->name_, made);
  }
  // An array that the function has kept is memory that later kernels write.
  for (const nb::object& array : arrays) {
    try {
      forbid_writing(array);
    } catch (nb::python_error&) {
    }
  }
  arrays.clear();
  // The launching thread may give it the storages of the launch later, so it must not end here.
  keep_handle(std::move(mine.launch->memory));
  mine = {};
  is_in_kernel = was_in_kernel;
  is_in_host_kernel = was_in_host_kernel;
}

}  // namespace tern::python
