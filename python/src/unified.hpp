// The Python class UnifiedBuffer and its leases.

#pragma once

#include <atomic>
#include <optional>

#include "host_memory.hpp"
#include "support.hpp"
#include "tern/coherence/unified_buffer.hpp"

namespace tern::python {

/// Device memory that a lease or UnifiedBuffer.device hands out. It owns a share of the storage, so
/// it stays valid memory after its lease.
struct DeviceArray {
  StorageHandle storage;
  Device device;
  void* address = nullptr;
  Shape shape;
  DType dtype = DType::void_;
  bool is_read_only = false;
  /// Work on the memory is ordered after this stream; empty if nothing is pending.
  StreamRef stream = {};
  /// The offset of the first element in the storage.
  std::size_t offset_bytes = 0;
};

class PyUnified {
 public:
  PyUnified(Shape shape, DType dtype, const UnifiedOptions& options);
  explicit PyUnified(RawUnified raw) : raw_(std::move(raw)) {}

  PyUnified(PyUnified&&) = default;
  ~PyUnified();

  [[nodiscard]] const RawUnified& raw() const {
    take_host_writes();
    return raw_;
  }
  [[nodiscard]] BufferState state() const noexcept;
  [[nodiscard]] bool is_on_host_device() const noexcept { return raw_.device().info().is_host; }

  /// The writable array of the property `host`.
  [[nodiscard]] nb::object host();
  /// What the property `device` returns.
  [[nodiscard]] nb::object device();
  /// A read-only array with the newest bytes.
  [[nodiscard]] nb::object read_array();
  [[nodiscard]] nb::object host_array(const RawLease& lease, bool is_read_only) const;
  [[nodiscard]] DeviceArray device_array(const RawLease& lease, StreamRef stream,
                                         bool is_read_only) const;

  void allocate(bool host, bool device);
  void free();
  void drop(bool is_host);

 private:
  /// For checked buffers: allows what was written through the array of `host` since the property
  /// was read. Later writes need another access or a mark, or the next lease finds them.
  void take_host_writes() const;
  /// The array of the property `host`; a new one if the storage is another one than before.
  [[nodiscard]] nb::object kept_host_array(const RawLease& lease, StorageId storage);

  RawUnified raw_;
  mutable bool is_host_lent_ = false;  // through std::atomic_ref
  CallSite host_site_;                 // of the last access
  /// The host and the default device take part from the start; a drop ends that.
  bool is_host_dropped_ = false, is_device_dropped_ = false;
  nb::object host_array_;              // of the property `host`
  StorageId host_array_storage_ = {};  // which it is over
};

}  // namespace tern::python
