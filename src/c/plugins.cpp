#include "c/plugins.hpp"

#include <array>
#include <atomic>
#include <mutex>
#include <thread>
#include <utility>

#include "c/arenas.hpp"
#include "c/failures.hpp"
#include "c/handles.hpp"
#include "core/process.hpp"
#include "core/thread_number.hpp"
#include "tern/core/tag.hpp"

namespace tern::c {
namespace {

constexpr std::size_t library_count = TERN_OTHER + 1;
constexpr std::array<const char*, library_count> library_names = {"torch", "cupy", "numba",
                                                                  "other"};

/// The resource of one library on one device. Threads that allocate count themselves while they
/// read it, each in a line of the cache that few others use, so that set() knows when nobody reads
/// the old one.
class PluginSlot {
 public:
  class Reading {
   public:
    explicit Reading(PluginSlot& slot) noexcept
        : count_(slot.readers_[this_thread() % slot.readers_.size()].count) {
      count_.fetch_add(1);
      resource_ = slot.resource_.load();
    }
    Reading(const Reading&) = delete;
    Reading& operator=(const Reading&) = delete;
    ~Reading() { count_.fetch_sub(1, std::memory_order_release); }
    [[nodiscard]] const std::shared_ptr<const tern_resource>* get() const noexcept {
      return resource_;
    }

   private:
    std::atomic<std::uint32_t>& count_;
    const std::shared_ptr<const tern_resource>* resource_;
  };

  void set(std::unique_ptr<std::shared_ptr<const tern_resource>> resource) {
    const std::lock_guard lock(mutex_);
    const std::unique_ptr<const std::shared_ptr<const tern_resource>> old(
        resource_.exchange(resource.release()));
    for (Readers& one : readers_) {
      // Threads of the parent process are not there to leave.
      while (one.count.load() != 0 && process_ == process_generation()) std::this_thread::yield();
    }
  }

 private:
  struct alignas(64) Readers {
    std::atomic<std::uint32_t> count = 0;
  };
  std::atomic<const std::shared_ptr<const tern_resource>*> resource_ = nullptr;
  std::array<Readers, 16> readers_;
  std::mutex mutex_;
  const std::uint64_t process_ = process_generation();
};

/// Never destroyed: other libraries free memory after main().
PluginSlot& slot_of(tern_library library, int ordinal) {
  using Slots = std::array<std::array<PluginSlot, max_ordinals>, library_count>;
  static auto* const all = new Slots;
  return (*all)[static_cast<std::size_t>(library)][static_cast<std::size_t>(ordinal)];
}

Result<void> check_library(tern_library library) noexcept {
  if (static_cast<std::size_t>(library) < library_count) return {};
  return Failure(ErrorCode::invalid_argument,
                 "{value} is not a library. Use a constant of tern_library.")
      .with_signed("value", library);
}

}  // namespace

tern_status fail_no_plugin(tern_library library, int ordinal) noexcept {
  return fail(Failure(ErrorCode::invalid_device,
                      "library '{library}' has no resource for CUDA device {ordinal}. Set one with "
                      "tern_set_plugin().")
                  .with("library", library_names[static_cast<std::size_t>(library)])
                  .with_signed("ordinal", ordinal));
}

Result<void> check_ordinal(int ordinal) noexcept {
  if (ordinal >= 0 && ordinal < max_ordinals) return {};
  return Failure(ErrorCode::invalid_device,
                 "{ordinal} is not the ordinal of a device. Use 0 to {max}.")
      .with_signed("ordinal", ordinal)
      .with("max", max_ordinals - 1);
}

std::shared_ptr<const tern_resource> plugin_of(tern_library library, int ordinal) {
  const PluginSlot::Reading reading(slot_of(library, ordinal));
  return reading.get() == nullptr ? nullptr : *reading.get();
}

tern_status allocate_for(tern_library library, int ordinal, std::size_t bytes, void* handle,
                         void** address) noexcept {
  if (const Result<void> valid = check_ordinal(ordinal); !valid) return fail(valid.failure());
  const PluginSlot::Reading reading(slot_of(library, ordinal));
  if (reading.get() == nullptr) return fail_no_plugin(library, ordinal);
  const tern_resource& resource = **reading.get();
  const Request request{.bytes = bytes, .tag = resource.tag};
  const std::shared_ptr<PointerOwner> arena = open_arena_for(ordinal, handle);
  const Result<void*> made =
      allocate_on(arena == nullptr ? *resource.owner : *arena, request, handle);
  if (!made) return fail_request(made.failure(), *resource.resource);
  *address = *made;
  return TERN_OK;
}

}  // namespace tern::c

using namespace tern;
using namespace tern::c;

tern_status tern_set_plugin(tern_library library, int ordinal, const tern_resource* resource) {
  if (const Result<void> valid = check_library(library); !valid) return fail(valid.failure());
  if (const Result<void> valid = check_ordinal(ordinal); !valid) return fail(valid.failure());
  return guarded([&]() -> tern_status {
    std::unique_ptr<std::shared_ptr<const tern_resource>> made;
    if (resource != nullptr) {
      auto copy = std::make_shared<tern_resource>(*resource);
      if (copy->tag == Tag()) copy->tag = Tag(library_names[static_cast<std::size_t>(library)]);
      made = std::make_unique<std::shared_ptr<const tern_resource>>(std::move(copy));
    }
    slot_of(library, ordinal).set(std::move(made));
    return TERN_OK;
  });
}

tern_status tern_get_plugin(tern_library library, int ordinal, tern_resource** resource) {
  if (const Result<void> valid = check_library(library); !valid) return fail(valid.failure());
  if (const Result<void> valid = check_ordinal(ordinal); !valid) return fail(valid.failure());
  if (resource == nullptr) return fail_null("resource");
  return guarded([&]() -> tern_status {
    const std::shared_ptr<const tern_resource> found = plugin_of(library, ordinal);
    if (found == nullptr) return fail_no_plugin(library, ordinal);
    *resource = new tern_resource(*found);
    return TERN_OK;
  });
}

tern_status tern_plugin_allocate(tern_library library, int ordinal, size_t bytes, void* stream,
                                 void** address) {
  if (const Result<void> valid = check_library(library); !valid) return fail(valid.failure());
  if (address == nullptr) return fail_null("address");
  return allocate_for(library, ordinal, bytes, stream, address);
}

void* tern_cupy_malloc(void* stream, size_t bytes, int ordinal) {
  void* address = nullptr;
  static_cast<void>(allocate_for(TERN_CUPY, ordinal, bytes, stream, &address));
  return address;
}

void tern_cupy_free(void*, void* address, int) {
  const Result<void> freed = free_in_order(address, CallSite::here());
  if (!freed) static_cast<void>(fail(freed.failure()));
}
