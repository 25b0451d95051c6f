#include "backends/opencl/opencl_opener.hpp"

#include <fmt/format.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "backends/opencl/opencl_backend.hpp"
#include "backends/opencl/opencl_library.hpp"
#include "backends/shared_library.hpp"
#include "core/process.hpp"

namespace tern::opencl {
namespace {

/// The generation, plus one, of the process that has loaded OpenCL or is loading it; 0 if there is
/// none. A search that loads nothing resets it to 0, so that a forked child may search too.
std::atomic<std::uint64_t> searcher = 0;
std::atomic<const Found*> found = nullptr;

/// Serializes the search within a process. The lock belongs to a process and not to a thread: a
/// child that was forked while its parent held it takes it over.
class SearchLock {
 public:
  explicit SearchLock(std::uint64_t self) noexcept {
    for (;;) {
      std::uint64_t holder = 0;
      if (holder_.compare_exchange_strong(holder, self, std::memory_order_acquire)) return;
      if (holder != self) {
        if (holder_.compare_exchange_strong(holder, self, std::memory_order_acquire)) return;
      } else {
        holder_.wait(holder, std::memory_order_relaxed);
      }
    }
  }
  SearchLock(const SearchLock&) = delete;
  SearchLock& operator=(const SearchLock&) = delete;
  ~SearchLock() {
    holder_.store(0, std::memory_order_release);
    holder_.notify_all();
  }

 private:
  static inline constinit std::atomic<std::uint64_t> holder_ = 0;
};

/// Returns whether a parent process has loaded OpenCL or was loading it, with threads that this
/// process does not have.
bool belongs_to_parent_process(std::uint64_t self) noexcept {
  const std::uint64_t known = searcher.load(std::memory_order_acquire);
  return known != 0 && known != self;
}

/// Kept for its error sentence only; such results are rare and have no devices.
const Found* without_devices(std::string why) {
  static std::map<std::string, Found>& kept = *new std::map<std::string, Found>;
  const auto [entry, is_new] = kept.try_emplace(std::move(why));
  if (is_new) entry->second.devices.absence = entry->first;
  return &entry->second;
}

/// Call with the lock held.
const Found* search() {
  if (const char* why = why_no_libraries()) return without_devices(why);
  auto result = std::make_unique<Found>();
  Library library = load_library(system_linker());
  result->table = library.table;
  if (!library.absence.empty()) return without_devices(std::move(library.absence));
  result->devices = find_devices(result->table);
  // The driver may have started threads, even if it found no device.
  found.store(result.get(), std::memory_order_release);
  return result.release();
}

std::string absence(const DeviceSpec&) {
  const Found* known = find_opencl();
  if (known == nullptr) {
    return absence_sentence(
        found.load(std::memory_order_acquire) != nullptr
            ? "this process was forked after its parent had loaded OpenCL, whose threads do not "
              "exist in the child. Fork first, or start the child with exec"
            : "this process was forked while another thread was loading OpenCL, and that thread "
              "does not exist in the child. Fork first, or start the child with exec");
  }
  return known->devices.absence.empty() ? std::string() : absence_sentence(known->devices.absence);
}

std::uint32_t device_count(const DeviceSpec&) {
  const Found* known = find_opencl();
  return known == nullptr ? 0 : static_cast<std::uint32_t>(known->devices.usable.size());
}

std::vector<std::string> unusable_devices() {
  const Found* known = find_opencl();
  return known == nullptr ? std::vector<std::string>() : known->devices.lacking;
}

bool is_preferred(std::uint32_t index) {
  const Found* known = find_opencl();
  return known != nullptr && known->devices.usable[index].is_accelerator();
}

Result<std::unique_ptr<Backend>> open(const DeviceSpec& spec) {
  const std::string text = spec.text();
  if (!spec.options.empty()) {
    return Failure(ErrorCode::invalid_device,
                   "'{spec}' cannot be opened: OpenCL devices have no options, and '{key}' is set. "
                   "Remove it.")
        .with("key", spec.options.front().first)
        .with("spec", text);
  }
  const Found* known = find_opencl();
  if (known == nullptr || spec.index >= known->devices.usable.size()) {
    return Failure(ErrorCode::invalid_device,
                   "'{spec}' cannot be opened: the backend has no device with this number. Run "
                   "`tern info` for the devices.")
        .with("spec", text);
  }
  return open_backend(known->table, known->devices.usable[spec.index], text);
}

}  // namespace

std::string absence_sentence(const std::string& why) {
  return fmt::format("backend 'opencl' is not available: {}, or open 'sim' or 'host'.", why);
}

const Found* find_opencl() {
  const std::uint64_t self = process_generation() + 1;
  if (belongs_to_parent_process(self)) return nullptr;
  if (const Found* known = found.load(std::memory_order_acquire)) return known;
  const SearchLock lock(self);
  if (const Found* known = found.load(std::memory_order_acquire)) return known;
  // From here on a forked child must not search, because the library may be half loaded.
  searcher.store(self, std::memory_order_release);
  const Found* const result = search();
  if (found.load(std::memory_order_relaxed) == nullptr) {
    searcher.store(0, std::memory_order_release);
  }
  return result;
}

Opener opener() {
  return {"opencl", absence, device_count, {}, open, unusable_devices, is_preferred};
}

}  // namespace tern::opencl
