#include <unistd.h>

#include <array>
#include <cstddef>
#include <memory>
#include <mutex>
#include <new>
#include <utility>

#include "tern/memory/default_resource.hpp"
#include "tern/memory/resource.hpp"

namespace tern {
namespace {

struct Callback {
  std::mutex mutex;
  std::shared_ptr<const FailureCallback> function;  // guarded by mutex
};

/// Never destroyed, because frees may fail in destructors of static objects. In static storage,
/// because frees may fail when the host has no memory.
Callback& callback() noexcept {
  alignas(Callback) static std::byte storage[sizeof(Callback)];
  static Callback& one = *new (storage) Callback;
  return one;
}

void print(const Failure& failure) noexcept {
  constexpr std::size_t room = 1024;
  std::array<char, room> line = {"tern: "};
  constexpr std::size_t prefix = 6;
  std::size_t end = prefix + failure.render(line.data() + prefix, room - prefix - 1);
  line[end++] = '\n';
  // One write() call per line, so that lines of several threads do not mix.
  if (write(STDERR_FILENO, line.data(), end) < 0) return;
}

}  // namespace

FailureCallback set_failure_callback(FailureCallback function) {
  auto made = function ? std::make_shared<const FailureCallback>(std::move(function)) : nullptr;
  {
    const std::lock_guard lock(callback().mutex);
    callback().function.swap(made);
  }
  return made ? *made : FailureCallback();
}

void report_failure(const Failure& failure) noexcept {
  std::shared_ptr<const FailureCallback> function;
  {
    const std::lock_guard lock(callback().mutex);
    function = callback().function;
  }
  if (!function) {
    if (failure.code() == ErrorCode::violation) print(failure);
    return;
  }
  try {
    (*function)(failure);
  } catch (...) {
    // There is no caller that could handle an exception of the callback.
  }
}

}  // namespace tern
