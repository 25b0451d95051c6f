#include "backends/opencl/opencl_opener.hpp"

#include <fmt/format.h>

#include <atomic>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "backends/opencl/opencl_backend.hpp"
#include "backends/opencl/opencl_library.hpp"
#include "backends/shared_library.hpp"
#include "tern/core/process.hpp"

namespace tern::opencl {
namespace {

/// Which process began to look for OpenCL, plus one; zero before anybody has. It is written before
/// the lock is taken, so that a forked child knows without the lock that it must not take it.
std::atomic<std::uint64_t> searcher = 0;
std::atomic<const Found*> found = nullptr;

std::mutex& search_mutex() {
  static constinit std::mutex mutex;
  return mutex;
}

/// One that is kept for the sentence that it carries: there are few, and no devices in them.
const Found* without_devices(std::string why) {
  static std::map<std::string, Found>& kept = *new std::map<std::string, Found>;
  const auto [entry, is_new] = kept.try_emplace(std::move(why));
  if (is_new) entry->second.devices.absence = entry->first;
  return &entry->second;
}

/// With the lock held.
const Found* search() {
  if (const char* why = why_no_libraries()) return without_devices(why);
  auto result = std::make_unique<Found>();
  Library library = load_library(system_linker());
  result->table = library.table;
  if (!library.absence.empty()) return without_devices(std::move(library.absence));
  result->devices = find_devices(result->table);
  // Its threads may run, whatever it has found.
  found.store(result.get(), std::memory_order_release);
  return result.release();
}

std::string absence(const DeviceSpec&) {
  const Found* known = find_opencl();
  if (known == nullptr) {
    return absence_sentence(
        "this process is a fork of one that had loaded OpenCL, whose threads it does not have. "
        "Fork first, or start the child with exec");
  }
  return known->devices.absence.empty() ? std::string() : absence_sentence(known->devices.absence);
}

std::uint32_t device_count(const DeviceSpec&) {
  const Found* known = find_opencl();
  return known == nullptr ? 0 : static_cast<std::uint32_t>(known->devices.usable.size());
}

std::vector<std::string> passed_over() {
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
                   "'{spec}' cannot be opened: OpenCL devices have no option '{key}'. They take "
                   "none.")
        .with("key", spec.options.front().first)
        .with("spec", text);
  }
  const Found* known = find_opencl();
  if (known == nullptr || spec.index >= known->devices.usable.size()) {
    return Failure(ErrorCode::invalid_device, "'{spec}' cannot be opened: there is no such device.")
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
  std::uint64_t first = 0;
  if (!searcher.compare_exchange_strong(first, self) && first != self) return nullptr;
  if (const Found* known = found.load(std::memory_order_acquire)) return known;
  const std::lock_guard lock(search_mutex());
  if (const Found* known = found.load(std::memory_order_acquire)) return known;
  return search();
}

Opener opener() { return {"opencl", absence, device_count, {}, open, passed_over, is_preferred}; }

}  // namespace tern::opencl
