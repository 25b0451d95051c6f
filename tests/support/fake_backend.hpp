// A FakeBackend is the host device with a ledger. It counts its calls, fails on request, and
// declares the capabilities that the test wants. It also counts violations of the contract: a
// handle that is used after its end, or an event that is recorded again or destroyed while a host
// thread waits for it.
//
// The ledger outlives the device, so a test can check that all objects were destroyed. Thread-safe.

#pragma once

#include <array>
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>

#include "tern/detail/device/backend.hpp"
#include "tern/device/device.hpp"
#include "tern/device/device_info.hpp"

namespace tern::test {

/// One entry per counted function of the contract.
// clang-format off
#define TERN_FOR_EACH_CALL(TERN_CALL) \
  TERN_CALL(memory) TERN_CALL(synchronize) TERN_CALL(allocate) \
  TERN_CALL(release) TERN_CALL(pointer_info) TERN_CALL(allocate_async) \
  TERN_CALL(release_async) TERN_CALL(register_host) TERN_CALL(unregister_host) \
  TERN_CALL(reserve) TERN_CALL(unreserve) TERN_CALL(create_pages) \
  TERN_CALL(create_shareable_pages) TERN_CALL(export_pages) TERN_CALL(import_pages) \
  TERN_CALL(release_pages) TERN_CALL(map) TERN_CALL(unmap) \
  TERN_CALL(set_access) TERN_CALL(copy) TERN_CALL(copy_2d) \
  TERN_CALL(fill) TERN_CALL(copy_from_peer) TERN_CALL(enable_peer_access) \
  TERN_CALL(peer_access) TERN_CALL(disable_peer_access) TERN_CALL(create_stream) \
  TERN_CALL(query_stream) TERN_CALL(synchronize_stream) TERN_CALL(create_event) \
  TERN_CALL(record) TERN_CALL(wait) TERN_CALL(query_event) \
  TERN_CALL(synchronize_event) TERN_CALL(elapsed_ns) TERN_CALL(call_host) \
  TERN_CALL(prefetch) TERN_CALL(advise) TERN_CALL(load_kernel) \
  TERN_CALL(launch) TERN_CALL(note_subrelease)
// clang-format on

enum class Call : std::uint8_t {
#define TERN_CALL(name) name,
  TERN_FOR_EACH_CALL(TERN_CALL)
#undef TERN_CALL
};

class Ledger {
 public:
#define TERN_CALL(name) +1
  static constexpr std::size_t kinds = 0 TERN_FOR_EACH_CALL(TERN_CALL);
#undef TERN_CALL

  /// Returns how often the function was called, including failed calls.
  [[nodiscard]] std::size_t count(Call call) const;
  /// Returns the number of calls of all functions that can fail.
  [[nodiscard]] std::size_t total() const;
  /// The number of objects that were created and not destroyed.
  [[nodiscard]] std::size_t live_streams() const;
  [[nodiscard]] std::size_t live_events() const;
  [[nodiscard]] std::size_t live_kernels() const;
  /// The number of registered ranges of host memory.
  [[nodiscard]] std::size_t live_registrations() const;

  /// The index-th call from now fails, once. Calls of all functions count, from 1.
  void fail_at(std::size_t index);
  /// The next `times` calls of this function fail.
  void fail_next(Call call, std::size_t times = 1);
  /// Returns how many calls were made to fail so far.
  [[nodiscard]] std::size_t failures() const;
  /// Returns the number of violations of the contract.
  [[nodiscard]] std::size_t violations() const;
  /// Returns the number of copies whose stream was known to be idle.
  [[nodiscard]] std::size_t idle_copies() const;
  /// Returns whether the backend was destroyed.
  [[nodiscard]] bool has_closed() const;

  /// Runs the function once, at the end of the next successful call of this kind, before it
  /// returns.
  void run_after(Call call, std::function<void()> function);

  /// Waits until a function was called `times` times.
  void wait_for(Call call, std::size_t times) const;

 private:
  friend class FakeBackend;

  [[nodiscard]] std::optional<Failure> enter(Call call);
  void leave(Call call);
  void expect(bool holds);

  mutable std::mutex mutex_;
  mutable std::condition_variable entered_;
  std::array<std::size_t, kinds> counts_ = {};
  std::array<std::size_t, kinds> to_fail_ = {};
  std::array<std::function<void()>, kinds> after_ = {};
  std::size_t total_ = 0, fail_at_ = 0, failures_ = 0, violations_ = 0, registrations_ = 0,
              idle_copies_ = 0;
  bool has_closed_ = false;
  std::set<std::uintptr_t> streams_, events_, kernels_;
  std::multiset<std::uintptr_t> waited_for_;  // events that host threads wait for
};

struct FakeOptions {
  std::string backend = "fake";
  std::string spec = "fake:0";
  /// Number of threads of one copy or fill.
  std::size_t threads = 1;
  /// The free memory that the device reports. If unset, the free memory of the host.
  std::optional<std::size_t> free_bytes = {};
  /// The difference between the device's address and the host's address of registered memory.
  std::ptrdiff_t registered_offset = 0;
  /// Changes the properties of the device. By default it has every capability.
  std::function<void(DeviceInfo&)> describe = {};
};

[[nodiscard]] std::unique_ptr<Backend> make_fake_backend(std::shared_ptr<Ledger> ledger,
                                                         const FakeOptions& options = {});

/// A device and its ledger.
struct FakeDevice {
  explicit FakeDevice(const FakeOptions& options = {})
      : device(make_fake_backend(ledger, options)) {}

  std::shared_ptr<Ledger> ledger = std::make_shared<Ledger>();
  Device device;
};

}  // namespace tern::test
