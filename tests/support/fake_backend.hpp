// A FakeBackend is the host device with a ledger: it counts what it is asked, fails on demand,
// declares what the test wants it to have, and notes what breaks the contract: a handle used after
// its end, an event recorded anew or destroyed while a host waits for it.
//
// The ledger outlives the device, so that a test can see that everything made was also destroyed.
// Thread-safe.

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

/// One line per primitive of the contract that is counted.
// clang-format off
#define TERN_FOR_EACH_CALL(TERN_CALL) \
  TERN_CALL(memory) TERN_CALL(synchronize) TERN_CALL(allocate) \
  TERN_CALL(release) TERN_CALL(pointer_info) TERN_CALL(allocate_async) \
  TERN_CALL(release_async) TERN_CALL(register_host) TERN_CALL(unregister_host) \
  TERN_CALL(reserve) TERN_CALL(unreserve) TERN_CALL(create_pages) \
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

  /// How often the device was asked for this, failures included.
  [[nodiscard]] std::size_t count(Call call) const;
  /// How often it was asked for anything that can fail.
  [[nodiscard]] std::size_t total() const;
  /// Made and not yet destroyed.
  [[nodiscard]] std::size_t live_streams() const;
  [[nodiscard]] std::size_t live_events() const;
  [[nodiscard]] std::size_t live_kernels() const;
  /// Ranges of host memory that are registered.
  [[nodiscard]] std::size_t live_registrations() const;

  /// The index-th call from now, of any kind and counted from 1, fails once.
  void fail_at(std::size_t index);
  /// The next `times` calls of this kind fail.
  void fail_next(Call call, std::size_t times = 1);
  /// How many calls were made to fail so far.
  [[nodiscard]] std::size_t failures() const;
  /// How often the contract was broken.
  [[nodiscard]] std::size_t violations() const;
  /// Has the backend been destroyed?
  [[nodiscard]] bool has_closed() const;

  /// Runs the function once, behind the next successful call of this kind and before it returns.
  void run_after(Call call, std::function<void()> function);

  /// Returns when a call of this kind has been made `times` times.
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
  std::size_t total_ = 0, fail_at_ = 0, failures_ = 0, violations_ = 0, registrations_ = 0;
  bool has_closed_ = false;
  std::set<std::uintptr_t> streams_, events_, kernels_;
  std::multiset<std::uintptr_t> waited_for_;  // events that hosts are waiting for
};

struct FakeOptions {
  std::string backend = "fake";
  std::string spec = "fake:0";
  /// Threads of one copy or fill.
  std::size_t threads = 1;
  /// What the device says is free; nothing: what the host has.
  std::optional<std::size_t> free_bytes = {};
  /// How far from its own address the device finds memory that was registered.
  std::ptrdiff_t registered_offset = 0;
  /// Changes what the device says of itself. It has every capability otherwise.
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
