#include "backends/cuda/driver.hpp"

#include <fmt/format.h>
#include <pthread.h>

#include <atomic>
#include <cstdlib>
#include <list>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "backends/cuda/driver_result.hpp"
#include "backends/shared_library.hpp"

namespace tern::cuda {
namespace {

constexpr const char* way_out = "Open 'sim' or 'host' instead.";

std::string version_text_of(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

Driver absent(const std::string& why) {
  Driver driver;
  driver.absence = fmt::format("backend 'cuda' is not available: {} {}", why, way_out);
  return driver;
}

/// Looks up entry points. Drivers since 11.3 have a function for it, whose signature changed in
/// 12.0.
class Entries {
 public:
  explicit Entries(const DriverLibrary& library) : library_(library) {
    get_ = reinterpret_cast<cuGetProcAddress_type*>(symbol("cuGetProcAddress_v2"));
    if (get_ == nullptr) {
      get_11030_ = reinterpret_cast<cuGetProcAddress_11030_type*>(symbol("cuGetProcAddress"));
    }
  }

  /// Returns the entry point with the signature of that version, or null. Only the pointer tells
  /// whether it exists: the driver returns success even if it finds nothing.
  [[nodiscard]] void* find(const char* name, int version) {
    void* found = nullptr;
    if (get_ != nullptr) {
      CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
      note(get_(name, &found, version, get_proc_address_legacy_stream, &status));
      return found;
    }
    if (get_11030_ != nullptr) {
      note(get_11030_(name, &found, version, get_proc_address_legacy_stream));
      return found;
    }
    return nullptr;
  }

  [[nodiscard]] bool is_stub() const noexcept { return is_stub_; }
  [[nodiscard]] bool can_ask() const noexcept { return get_ != nullptr || get_11030_ != nullptr; }

 private:
  using cuGetProcAddress_11030_type = CUresult(const char* name, void** function, int version,
                                               std::uint64_t flags);

  [[nodiscard]] void* symbol(const char* name) const {
    return library_.symbol(library_.context, name);
  }
  void note(CUresult result) noexcept { is_stub_ = is_stub_ || result == CUDA_ERROR_STUB_LIBRARY; }

  DriverLibrary library_;
  cuGetProcAddress_type* get_ = nullptr;
  cuGetProcAddress_11030_type* get_11030_ = nullptr;
  bool is_stub_ = false;
};

/// Returns the first required entry that is missing.
const DriverEntryInfo* fill(DriverTable& table, Entries& entries) {
  const DriverEntryInfo* missing = nullptr;
#define TERN_DRIVER_ENTRY(slot, name, version, need, parameters)                     \
  table.slot = reinterpret_cast<slot##_type*>(entries.find(#name, version));         \
  if (table.slot == nullptr && Need::need == Need::required && missing == nullptr) { \
    missing = &driver_entries[static_cast<std::size_t>(DriverEntry::slot)];          \
  }
  TERN_FOR_EACH_DRIVER_ENTRY(TERN_DRIVER_ENTRY)
#undef TERN_DRIVER_ENTRY
  return missing;
}

std::string stub_sentence() {
  return "the libcuda on the library path is the toolkit's stub, which is for linking only. Put "
         "the driver's libcuda before it.";
}

/// Returns why cuInit failed, in words for the common cases.
std::string why_no_init(CUresult result) {
  switch (result) {
    case CUDA_ERROR_STUB_LIBRARY:
      return stub_sentence();
    case CUDA_ERROR_NO_DEVICE:
      return "the driver finds no GPU (CUDA_ERROR_NO_DEVICE, 100). CUDA_VISIBLE_DEVICES may hide "
             "it.";
    case CUDA_ERROR_NOT_INITIALIZED:
      return "the driver could not be initialised (CUDA_ERROR_NOT_INITIALIZED, 3), which happens "
             "in a process forked from a process that uses CUDA.";
    case CUDA_ERROR_SYSTEM_DRIVER_MISMATCH:
      return "the kernel module and libcuda have different versions "
             "(CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, 803). Restart after updating the driver.";
    case CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE:
      return "the GPU does not support the compatibility libcuda on the library path "
             "(CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE, 804). Remove it from the library path.";
    case CUDA_ERROR_DEVICE_UNAVAILABLE:
      return "another process uses the GPU exclusively (CUDA_ERROR_DEVICE_UNAVAILABLE, 46).";
    default:
      return fmt::format("cuInit returned {} ({}).", name_of(result), static_cast<int>(result));
  }
}

// --- The driver of the process

std::atomic<bool> is_ending = false;

struct Loaded {
  std::mutex mutex;
  std::atomic<const Driver*> driver = nullptr;
  std::atomic<bool> has_begun = false;
  bool parent_has_driver = false;   // set before other threads see this object
  const Loaded* parents = nullptr;  // likewise; kept, because its driver is referenced for ever
  std::map<std::string, Driver> absences;  // guarded by mutex; by reason

  /// Returns an absent driver. The next caller tries again. Call with the mutex held.
  [[nodiscard]] const Driver& without(const std::string& why) {
    const auto [entry, is_new] = absences.try_emplace(why);
    if (is_new) entry->second = absent(why);
    return entry->second;
  }

  /// Returns whether CUDA was initialised, or may be about to be.
  [[nodiscard]] bool is_used() const noexcept {
    if (parent_has_driver) return true;
    const Driver* known = driver.load(std::memory_order_acquire);
    return known != nullptr ? known->is_present() : has_begun.load();
  }
};

std::atomic<Loaded*> current = nullptr;
std::atomic<const Driver*> installed = nullptr;

Loaded& loaded() {
  // As in the catalog, a forked child starts anew, without the parent's lock, which a thread of the
  // parent may hold. The child must only know whether CUDA was initialised.
  static const int registered = [] {
    current.store(new Loaded);
    return pthread_atfork(nullptr, nullptr, [] {
      auto* fresh = new Loaded;
      fresh->parents = current.load();
      fresh->parent_has_driver = fresh->parents->is_used();
      if (const Driver* other = installed.load()) {
        fresh->parent_has_driver = fresh->parent_has_driver || other->is_present();
        installed.store(nullptr);
      }
      current.store(fresh);
    });
  }();
  static_cast<void>(registered);
  return *current.load();
}

void* open_library() {
  for (const char* name : {"libcuda.so.1", "libcuda.so", "/usr/lib/wsl/lib/libcuda.so.1"}) {
    if (void* library = open_shared_library(name)) return library;
  }
  return nullptr;
}

Driver load_from_machine(void* library) {
  Driver driver = load_driver({find_symbol, library});
  // Registered after cuInit has registered the driver's own hook, so it runs before that hook.
  if (driver.is_present()) std::atexit([] { is_ending.store(true, std::memory_order_release); });
  return driver;
}

}  // namespace

std::string Driver::version_text() const { return version_text_of(version); }

Driver load_driver(const DriverLibrary& library) {
  Driver driver;
  Entries entries(library);
  if (!entries.can_ask()) {
    return absent(
        "the driver has no cuGetProcAddress, which came with CUDA 11.3. Install driver 465 or "
        "newer.");
  }
  const DriverEntryInfo* missing = fill(driver.table, entries);
  if (entries.is_stub()) return absent(stub_sentence());
  if (driver.table.cuDriverGetVersion != nullptr) {
    // A stub leaves the version unchanged.
    if (driver.table.cuDriverGetVersion(&driver.version) == CUDA_ERROR_STUB_LIBRARY) {
      return absent(stub_sentence());
    }
  }
  if (missing != nullptr) {
    return absent(fmt::format("the driver ({}) lacks {}, which came with version {}. Update it.",
                              driver.version == 0 ? "of an unknown version" : driver.version_text(),
                              missing->name, version_text_of(missing->version)));
  }
  if (const CUresult result = driver.table.cuInit(0); result != CUDA_SUCCESS) {
    return absent(why_no_init(result));
  }
  if (const CUresult result = driver.table.cuDeviceGetCount(&driver.device_count);
      result != CUDA_SUCCESS) {
    return absent(fmt::format("cuDeviceGetCount returned {} ({}).", name_of(result),
                              static_cast<int>(result)));
  }
  if (driver.device_count < 1) return absent(why_no_init(CUDA_ERROR_NO_DEVICE));
  return driver;
}

const Driver& driver() {
  if (const Driver* other = installed.load(std::memory_order_acquire)) return *other;
  Loaded& process = loaded();
  if (const Driver* known = process.driver.load(std::memory_order_acquire)) return *known;
  const std::lock_guard lock(process.mutex);
  if (const Driver* known = process.driver.load(std::memory_order_acquire)) return *known;
  if (process.parent_has_driver) {
    return process.without(
        "this process was forked from a process that uses CUDA, which the driver does not support. "
        "Open devices after the fork, or start the child with exec.");
  }
  if (const char* why = why_no_libraries()) return process.without(fmt::format("{}.", why));
  process.has_begun.store(true);
  void* const library = open_library();
  if (library == nullptr) {
    process.has_begun.store(false);
    return process.without("no libcuda.so.1 was found, so there is no NVIDIA driver.");
  }
  // Never destroyed, like the devices that call it.
  const auto* made = new Driver(load_from_machine(library));
  process.driver.store(made, std::memory_order_release);
  return *made;
}

InstalledDriver::InstalledDriver(Driver driver) {
  static_cast<void>(loaded());  // also handles forked children
  // Never freed: an open device may refer to it for ever.
  static std::list<Driver>& kept = *new std::list<Driver>;
  installed.store(&kept.emplace_back(std::move(driver)), std::memory_order_release);
}
InstalledDriver::~InstalledDriver() { installed.store(nullptr, std::memory_order_release); }

bool has_ended() noexcept { return is_ending.load(std::memory_order_acquire); }

EndingProcess::EndingProcess() noexcept { is_ending.store(true, std::memory_order_release); }
EndingProcess::~EndingProcess() { is_ending.store(false, std::memory_order_release); }

}  // namespace tern::cuda
