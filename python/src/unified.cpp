// UnifiedBuffer: one array with a copy on the host and on devices. The contract of PyDotCompute,
// and the leases of Tern.

#include "unified.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <cstring>

#include "collected.hpp"
#include "exchange.hpp"
#include "interrupts.hpp"

TERN_RELEASE_HANDLE(tern::python::DeviceArray)

namespace tern::python {
namespace {

/// Waits for conflicting leases: None does not wait, a number waits for that many seconds.
LeaseWait wait_of(const std::optional<double>& seconds) {
  if (!seconds) return LeaseWait::never();
  if (!(*seconds >= 0)) {
    raise(Failure(ErrorCode::invalid_argument, "a wait of {value} seconds is negative.")
              .with_signed("value", -1),
          here());
  }
  if (*seconds > 1e9) return LeaseWait::forever();
  return LeaseWait::up_to(std::chrono::nanoseconds(static_cast<std::int64_t>(*seconds * 1e9)));
}

/// The object, if it is a UnifiedBuffer whose __init__ has run. Methods that take their object as
/// it is check it.
nb::object checked(nb::object object) {
  static_cast<void>(nb::cast<PyUnified&>(object));
  return object;
}

[[noreturn]] void raise_closed() {
  raise(Failure(ErrorCode::not_allocated, "the lease is closed. Open a new one.")
            .with("id", std::uint64_t{0}),
        here());
}

/// An open access of the host. `with` gives a NumPy array.
class PyHostLease {
 public:
  PyHostLease(nb::object buffer, Access access, const std::optional<double>& wait)
      : buffer_(checked(std::move(buffer))), access_(access) {
    const CallSite site = here();
    const LeaseWait how_long = wait_of(wait);
    const RawUnified& raw = unified().raw();
    lease_ = open_in_turns(
        wait, how_long, [&] { return is_ready(raw, access); },
        [&](LeaseWait turn) { return raw.open_host(access, turn, site); });
    check_launches(raw.device().id());
  }

  PyHostLease(PyHostLease&&) = default;
  ~PyHostLease() {
    if (lease_.is_open()) release(lease_);
  }

  [[nodiscard]] nb::object array() {
    if (array_.is_valid()) return array_;
    if (!lease_.is_open()) raise_closed();
    nb::object made = unified().host_array(lease_, access_ == Access::read);
    // Making it lets other threads run, and one of them may have closed the lease.
    if (!lease_.is_open() && unified().raw().size_bytes() > 0) raise_closed();
    if (!array_.is_valid()) array_ = std::move(made);
    return array_;
  }
  void close(bool has_failed) {
    if (!lease_.is_open()) return;
    end([&](RawLease& lease) {
      if (has_failed && access_ == Access::discard) {
        lease.commit(0);
      } else {
        lease.close();
      }
    });
  }
  void commit(std::size_t count) {
    const std::size_t width = size_bytes(unified().raw().dtype());
    end([&](RawLease& lease) {
      lease.commit(std::min(count, lease.size_bytes() / width) * width);
    });
  }
  [[nodiscard]] bool is_open() const noexcept { return lease_.is_open(); }
  [[nodiscard]] PyUnified& unified() const { return *nb::inst_ptr<PyUnified>(buffer_); }

 private:
  /// Takes the lease out of the object first, so that of several threads only one ends it.
  template <class End>
  void end(End&& end_lease) {
    RawLease lease = std::move(lease_);
    const nb::object array = std::move(array_);
    without_gil([&] { end_lease(lease); });
    // Tern does not detect later writes through the array.
    if (array.is_valid() && access_ != Access::read) forbid_writing(array);
  }

  template <class Visit>
  friend void visit_objects(const PyHostLease& self, Visit visit) {
    visit(self.buffer_);
    visit(self.array_);
  }

  nb::object buffer_;
  Access access_;
  RawLease lease_;
  nb::object array_;
};

/// An open access of a device, for work that is submitted to its stream.
class PyDeviceLease {
 public:
  PyDeviceLease(nb::object buffer, Access access, nb::handle stream,
                const std::optional<double>& wait)
      : buffer_(checked(std::move(buffer))),
        access_(access),
        stream_(stream, unified().raw().device()) {
    const CallSite site = here();
    const LeaseWait how_long = wait_of(wait);
    const RawUnified& raw = unified().raw();
    lease_ = open_in_turns(
        wait, how_long, [] { return Result<bool>(true); },
        [&](LeaseWait turn) { return raw.open_device(access, stream_.get(), turn, site); });
  }

  PyDeviceLease(PyDeviceLease&&) = default;
  ~PyDeviceLease() {
    if (lease_.is_open()) release(lease_);
  }

  [[nodiscard]] DeviceArray array() const {
    DeviceArray made = unified().device_array(lease_, stream_.get(), access_ == Access::read);
    if (!lease_.is_open() && unified().raw().size_bytes() > 0)
      raise_closed();  // by another thread meanwhile
    return made;
  }
  void close(bool has_failed) {
    if (!lease_.is_open()) return;
    // Of several threads only one ends the lease.
    RawLease lease = std::move(lease_);
    without_gil([&] {
      if (has_failed && access_ == Access::discard) {
        lease.commit(0);
      } else {
        lease.close();
      }
    });
  }
  [[nodiscard]] bool is_open() const noexcept { return lease_.is_open(); }
  [[nodiscard]] PyUnified& unified() const { return *nb::inst_ptr<PyUnified>(buffer_); }

 private:
  template <class Visit>
  friend void visit_objects(const PyDeviceLease& self, Visit visit) {
    visit(self.buffer_);
    visit(self.stream_.owner());
  }

  nb::object buffer_;
  Access access_;
  StreamArgument stream_;
  RawLease lease_;
};

Pinned pinned_of(nb::handle value) {
  if (value.is(Py_True)) return Pinned::required;
  if (value.is(Py_False)) return Pinned::never;
  if (nb::isinstance<nb::str>(value) && nb::cast<std::string>(value) == "prefer")
    return Pinned::prefer;
  refuse_choice("pinned", nb::str(value).c_str(), "True, False or 'prefer'");
}

UnifiedOptions options_of(nb::handle device, nb::handle pinned,
                          const std::optional<std::string>& tag, std::optional<bool> checked) {
  UnifiedOptions options;
  options.device = device_of_object(device);
  options.pinned = pinned_of(pinned);
  // Without a driver there is nothing that could page-lock memory.
  if (options.device.info().is_host) options.pinned = Pinned::never;
  options.tag = tag_of(tag);
  options.checked = checked;
  options.site = here();
  return options;
}

void copy_from(const PyUnified& self, nb::handle object) {
  const RawUnified& raw = self.raw();
  const Shape shape = released([&] { return raw.shape(); });
  const nb::object elements = elements_of(object, raw.dtype(), &shape);
  const void* const address = address_of(elements);
  const CallSite site = here();
  without_gil([&] { return raw.try_copy_from(address, raw.size_bytes(), site); }).value();
}

nb::object to_numpy(const PyUnified& self) {
  const RawUnified& raw = self.raw();
  nb::object array = numpy().attr("empty")(tuple_of(released([&] { return raw.shape(); })),
                                           object_of_dtype(raw.dtype()));
  void* const address = address_of(array);
  const CallSite site = here();
  call_when_ready([&] { return is_ready(raw, Access::read); },
                  [&] { return raw.try_copy_to(address, raw.size_bytes(), site); })
      .value();
  check_launches(raw.device().id());
  return array;
}

void copy_to(PyUnified& self, nb::handle target) {
  numpy().attr("copyto")(target, self.read_array(), nb::arg("casting") = "same_kind");
}

nb::object asarray(PyUnified& self, nb::handle dtype, nb::handle copy) {
  const bool must_copy = copy.is(Py_True);
  nb::object array = must_copy ? to_numpy(self) : self.read_array();
  if (dtype.is_none()) return array;
  const nb::object wanted = numpy().attr("dtype")(dtype);
  if (array.attr("dtype").equal(wanted)) return array;
  if (copy.is(Py_False)) refuse_value("another dtype needs a copy, and copy=False forbids it");
  return array.attr("astype")(wanted);
}

nb::dict statistics_of(const UnifiedStatistics& statistics) {
  nb::dict made;
  const auto add = [&](const char* name, const CopyCount& count) {
    nb::dict one;
    one["copies"] = count.copies;
    one["bytes"] = count.bytes;
    made[name] = one;
  };
  add("to_host", statistics.to_host);
  add("to_device", statistics.to_device);
  add("between_devices", statistics.between_devices);
  add("to_file", statistics.to_file);
  add("from_file", statistics.from_file);
  add("elided", statistics.elided);
  add("moved", statistics.moved());
  add("evicted", statistics.evicted);
  made["host_waits"] = statistics.host_waits;
  return made;
}

nb::list transfers_of(const PyUnified& self) {
  nb::list made;
  const std::vector<Transfer> transfers = released([&] { return self.raw().transfers(); });
  for (const Transfer& one : transfers) {
    nb::dict entry;
    entry["from"] = one.from.text();
    entry["to"] = one.to.text();
    entry["bytes"] = one.bytes;
    entry["reason"] = nb::str(name(one.reason).data(), name(one.reason).size());
    entry["site"] = one.site.is_known()
                        ? nb::object(nb::str("{}:{}").format(one.site.file, one.site.line))
                        : nb::none();
    made.append(entry);
  }
  return made;
}

Exported exported_of(const DeviceArray& self) {
  return {Buffer::try_over(self.storage, self.offset_bytes, self.shape, self.dtype, here()).value(),
          self.is_read_only, self.stream, true};
}

using Unified = nb::class_<PyUnified>;

template <Access access>
void add_leases(Unified& type, const char* host_name, const char* device_name, const char* what) {
  const std::string wait =
      "wait : float, optional\n    Seconds to wait until a conflicting lease closes. By default "
      "the call raises at once.\n\n";
  const std::string host_doc =
      std::string("Open a lease of the host copy. ") + what + "\n\nParameters\n----------\n" +
      wait + "Returns\n-------\nHostLease\n    In a ``with`` statement, a NumPy array.";
  const std::string device_doc =
      std::string("Open a lease of the device copy. ") + what + "\n\nParameters\n----------\n" +
      "stream : Stream, optional\n    The stream of the work; by default the default stream of the "
      "device.\n" +
      wait + "Returns\n-------\nDeviceLease\n    In a ``with`` statement, a DeviceArray.";
  type.def(
      host_name,
      [](nb::object self, std::optional<double> wait) {
        return PyHostLease(std::move(self), access, wait);
      },
      nb::arg("wait") = nb::none(), host_doc.c_str());
  type.def(
      device_name,
      [](nb::object self, nb::handle stream, std::optional<double> wait) {
        return PyDeviceLease(std::move(self), access, stream, wait);
      },
      nb::arg("stream") = nb::none(), nb::arg("wait") = nb::none(), device_doc.c_str());
}

nb::str lease_text(const char* kind, bool is_open, const RawUnified& raw) {
  return nb::str("{}({}, shape={}, dtype={}, device='{}')")
      .format(kind, is_open ? "open" : "closed", tuple_of(raw.shape()),
              object_of_dtype(raw.dtype()), std::string(raw.device().spec()));
}

void add_lease_classes(nb::module_& module) {
  nb::class_<PyHostLease>(module, "HostLease", nb::type_slots(Collected<PyHostLease>::slots),
                          "An open access of the host to a UnifiedBuffer. A ``with`` statement "
                          "returns a NumPy array.\n\n"
                          "The end of the lease makes the array read-only. Its memory stays valid.")
      .def_prop_ro("array", &PyHostLease::array, "The NumPy array of the lease.")
      .def_prop_ro("is_open", &PyHostLease::is_open, "Whether the lease is open.")
      .def("__repr__",
           [](const PyHostLease& self) {
             return lease_text("HostLease", self.is_open(), self.unified().raw());
           })
      .def(
          "close", [](PyHostLease& self) { self.close(false); }, "Close the lease.")
      .def("commit", &PyHostLease::commit, nb::arg("count"),
           "Close a discard lease of which only the first ``count`` elements were written.")
      .def(
          "__array__",
          [](PyHostLease& self, nb::handle dtype, nb::handle copy) {
            return numpy().attr("array")(self.array(), dtype, nb::arg("copy") = copy);
          },
          nb::arg("dtype") = nb::none(), nb::arg("copy") = nb::none())
      .def("__enter__", &PyHostLease::array)
      .def(
          "__exit__",
          [](PyHostLease& self, nb::handle type, nb::handle, nb::handle) {
            self.close(!type.is_none());
          },
          nb::arg("type") = nb::none(), nb::arg("value") = nb::none(),
          nb::arg("traceback") = nb::none());
  nb::class_<PyDeviceLease>(
      module, "DeviceLease", nb::type_slots(Collected<PyDeviceLease>::slots),
      "An open access of a device to a UnifiedBuffer. A ``with`` statement returns a "
      "DeviceArray.\n\n"
      "Work that is submitted to the stream of the lease while it is open may use the memory.")
      .def_prop_ro("array", &PyDeviceLease::array,
                   nb::for_getter(nb::sig("def array(self) -> DeviceArray")),
                   "The device memory of the lease.")
      .def_prop_ro("is_open", &PyDeviceLease::is_open, "Whether the lease is open.")
      .def("__repr__",
           [](const PyDeviceLease& self) {
             return lease_text("DeviceLease", self.is_open(), self.unified().raw());
           })
      .def(
          "close", [](PyDeviceLease& self) { self.close(false); },
          "Close the lease. Does not wait for the work.")
      .def("__enter__", &PyDeviceLease::array)
      .def(
          "__exit__",
          [](PyDeviceLease& self, nb::handle type, nb::handle, nb::handle) {
            self.close(!type.is_none());
          },
          nb::arg("type") = nb::none(), nb::arg("value") = nb::none(),
          nb::arg("traceback") = nb::none());
}

}  // namespace

PyUnified::PyUnified(Shape shape, DType dtype, const UnifiedOptions& options)
    : raw_(without_gil([&] {
             return RawUnified::try_make(std::move(shape), dtype, size_bytes(dtype), options);
           }).value()) {}

PyUnified::~PyUnified() { release(raw_); }

BufferState PyUnified::state() const noexcept {
  const BufferState state = released([&] { return raw_.state(0, raw_.size_bytes()); });
  // The other side takes part although it has no copy yet.
  if (state == BufferState::host_only && !is_device_dropped_) return BufferState::host_dirty;
  if (state == BufferState::device_only && !is_host_dropped_) return BufferState::device_dirty;
  return state;
}

nb::object PyUnified::host_array(const RawLease& lease, bool is_read_only) const {
  const auto [storage, shape] =
      released([&] { return std::pair(raw_.storage_of(Place::host()), raw_.shape()); });
  return array_over({storage, lease.address(), shape, raw_.dtype(), is_read_only});
}

DeviceArray PyUnified::device_array(const RawLease& lease, StreamRef stream,
                                    bool is_read_only) const {
  if (!lease.is_open() && raw_.size_bytes() > 0) {
    raise(Failure(ErrorCode::not_allocated, "the lease is closed. Open a new one.")
              .with("id", std::uint64_t{0}),
          here());
  }
  const Device device = stream.device();
  const auto [storage, shape] =
      released([&] { return std::pair(raw_.storage_of(device.place()), raw_.shape()); });
  return {storage, device, lease.address(), shape, raw_.dtype(), is_read_only, stream};
}

void PyUnified::take_host_writes() const {
  const std::atomic_ref is_lent(is_host_lent_);
  if (!is_lent.load(std::memory_order_relaxed) || !is_lent.exchange(false)) return;
  const auto seal = [this] {
    // Another lease may be open, or the host copy may be gone.
    if (!raw_.try_mark_dirty(Place::host(), {}, host_site_)) return;
    try {
      raw_.open_host(Access::read_write, LeaseWait::never(), host_site_).close();
    } catch (const Error&) {
    }
  };
  LockReleased::is_active() ? seal() : released(seal);
}

nb::object PyUnified::host() {
  take_host_writes();
  const CallSite site = here();
  RawLease lease =
      call_when_ready([&] { return is_ready(raw_, Access::read_write); },
                      [&] { return raw_.open_host(Access::read_write, LeaseWait::never(), site); });
  is_host_dropped_ = false;
  const StorageHandle storage = released([&] { return raw_.storage_of(Place::host()); });
  const StorageId id = storage ? storage->id() : StorageId{};
  nb::object array = kept_host_array(lease, id);
  released([&] { lease.close(); });
  host_site_ = site;
  if (raw_.is_checked()) std::atomic_ref<bool>(is_host_lent_).store(true);
  return array;
}

nb::object PyUnified::kept_host_array(const RawLease& lease, StorageId storage) {
  if (host_array_.is_valid() && storage == host_array_storage_) return host_array_;
  nb::object made = host_array(lease, false);
  // Making it lets other threads run, which may have made one too.
  if (host_array_.is_valid() && storage == host_array_storage_) return host_array_;
  nb::object former = std::exchange(host_array_, made);
  host_array_storage_ = storage;
  return made;
}

nb::object PyUnified::device() {
  take_host_writes();
  const CallSite site = here();
  if (is_on_host_device()) {
    // The same array as `host`, without marking the host dirty.
    if (state() != BufferState::uninitialized) {
      without_gil([&] { return raw_.try_sync_to_device(site); }).value();
    }
    if (host_array_.is_valid()) return host_array_;
    if (state() == BufferState::uninitialized) return host();
    RawLease lease =
        without_gil([&] { return raw_.open_host(Access::read, LeaseWait::never(), site); });
    const StorageHandle storage = released([&] { return raw_.storage_of(Place::host()); });
    nb::object array = kept_host_array(lease, storage ? storage->id() : StorageId{});
    released([&] { lease.close(); });
    return array;
  }
  is_device_dropped_ = false;
  if (state() == BufferState::uninitialized) {
    allocate(false, true);
  } else {
    if (raw_.is_checked()) {
      // A lease checks the host copy even if there is nothing to copy.
      without_gil([&] {
        raw_.open_device(Access::read, raw_.device().default_stream(), LeaseWait::never(), site)
            .close();
      });
    }
    without_gil([&] { return raw_.try_sync_to_device(site); }).value();
  }
  const StorageHandle storage = released([&] { return raw_.storage_of(raw_.device().place()); });
  void* const address = storage ? storage->first_byte() : nullptr;
  return nb::cast(
      DeviceArray{storage, raw_.device(), address, raw_.shape(), raw_.dtype(), false, {}});
}

nb::object PyUnified::read_array() {
  take_host_writes();
  const CallSite site = here();
  RawLease lease =
      call_when_ready([&] { return is_ready(raw_, Access::read); },
                      [&] { return raw_.open_host(Access::read, LeaseWait::never(), site); });
  check_launches(raw_.device().id());
  nb::object array = host_array(lease, true);
  released([&] { lease.close(); });
  return array;
}

void PyUnified::allocate(bool host, bool device) {
  take_host_writes();
  const CallSite site = here();
  const bool is_written =
      released([&] { return raw_.state(0, raw_.size_bytes()); }) != BufferState::uninitialized;
  const Access access = is_written ? Access::read : Access::discard;
  if (host && !released([&] { return raw_.has_copy(Place::host()); })) {
    RawLease lease = without_gil([&] { return raw_.open_host(access, LeaseWait::never(), site); });
    released([&] { is_written ? lease.close() : lease.commit(0); });
    is_host_dropped_ = false;
  }
  if (device && !released([&] { return raw_.has_copy(raw_.device().place()); })) {
    const StreamRef stream = raw_.device().default_stream();
    RawLease lease =
        without_gil([&] { return raw_.open_device(access, stream, LeaseWait::never(), site); });
    released([&] { is_written ? lease.close() : lease.commit(0); });
    is_device_dropped_ = false;
  }
}

void PyUnified::free() {
  const CallSite site = here();
  without_gil([&] { return raw_.try_free(site); }).value();
  // The end of the array lets other threads run, so the member is empty before.
  const nb::object former = std::move(host_array_);
  host_array_storage_ = {};
  is_host_dropped_ = is_device_dropped_ = false;
}

void PyUnified::drop(bool is_host) {
  take_host_writes();
  const CallSite site = here();
  const Place place = is_host ? Place::host() : raw_.device().place();
  without_gil([&] { return raw_.try_drop(place, Drop::write_back, site); }).value();
  (is_host ? is_host_dropped_ : is_device_dropped_) = true;
  const nb::object former = is_host ? std::move(host_array_) : nb::object();
}

void add_unified(nb::module_& module) {
  add_host_memory(module);
  add_lease_classes(module);
  Unified type(
      module, "UnifiedBuffer",
      "An array that can have a copy on the host and on a device. Tern copies bytes only when an\n"
      "access needs them, and knows which copy is up to date.\n\n"
      "Parameters\n----------\n"
      "shape : int or sequence of int\n"
      "dtype : dtype-like, default float32\n"
      "pinned : bool or 'prefer', default False\n"
      "    Whether the host copy is page-locked.\n"
      "device : Device or str, optional\n"
      "    The device of the second copy; by default the current device.\n"
      "tag : str, optional\n"
      "    A name for reports.");
  type.def(
      "__init__",
      [](PyUnified* self, nb::handle shape, nb::handle dtype, nb::handle pinned, nb::handle device,
         const std::optional<std::string>& tag, std::optional<bool> checked) {
        const DType element = dtype.is_none() ? DType::f32 : dtype_of_object(dtype);
        new (self)
            PyUnified(shape_of_object(shape), element, options_of(device, pinned, tag, checked));
      },
      nb::arg("shape"), nb::arg("dtype") = nb::none(), nb::kw_only(),
      nb::arg("pinned") = nb::bool_(false), nb::arg("device") = nb::none(),
      nb::arg("tag") = nb::none(), nb::arg("checked") = nb::none());
  // --- Queries: they move nothing.
  type.def_prop_ro(
      "shape",
      [](const PyUnified& self) { return tuple_of(released([&] { return self.raw().shape(); })); },
      "The extents.");
  type.def_prop_ro(
      "dtype", [](const PyUnified& self) { return object_of_dtype(self.raw().dtype()); },
      "The type of an element.");
  type.def_prop_ro(
      "nbytes", [](const PyUnified& self) { return self.raw().size_bytes(); },
      "The number of bytes of one copy.");
  type.def_prop_ro(
      "size",
      [](const PyUnified& self) {
        return self.raw().size_bytes() / size_bytes(self.raw().dtype());
      },
      "The number of elements.");
  type.def_prop_ro(
      "ndim", [](const PyUnified& self) { return self.raw().shape().rank(); },
      "The number of dimensions.");
  type.def_prop_ro("_state", [](const PyUnified& self) { return static_cast<int>(self.state()); });
  type.def_prop_ro(
      "default_device", [](const PyUnified& self) { return self.raw().device(); },
      "The device of the second copy.");
  type.def_prop_ro(
      "tag", [](const PyUnified& self) { return std::string(self.raw().tag().name()); },
      "The name for reports.");
  type.def_prop_ro(
      "is_pinned",
      [](const PyUnified& self) { return released([&] { return self.raw().is_pinned(); }); },
      "Whether the host copy is page-locked; False before there is one.");
  type.def_prop_ro(
      "is_allocated",
      [](const PyUnified& self) {
        return released([&] {
          return self.raw().has_copy(Place::host()) ||
                 self.raw().has_copy(self.raw().device().place());
        });
      },
      "Whether the host or the device has a copy.");
  type.def_prop_ro(
      "statistics",
      [](const PyUnified& self) {
        return statistics_of(released([&] { return self.raw().statistics(); }));
      },
      "What the buffer has copied so far: ``{'copies', 'bytes'}`` by direction. ``'moved'`` is the "
      "sum.");
  type.def_prop_ro("transfers", &transfers_of, "The latest 64 transfers, oldest first.");
  type.def(
      "valid_places",
      [](const PyUnified& self) {
        std::vector<std::string> made;
        const std::vector<Place> places =
            released([&] { return self.raw().valid_places(0, self.raw().size_bytes()); });
        for (const Place place : places) made.push_back(place.text());
        return made;
      },
      "Return the places in which every element is up to date.");
  type.def("__len__", [](const PyUnified& self) {
    const Shape shape = self.raw().shape();
    if (shape.rank() == 0) refuse_type("a 0-d buffer has no length");
    return shape.extents()[0];
  });
  // --- The two sides
  type.def_prop_ro(
      "host", &PyUnified::host,
      "A writable NumPy array over the host copy. Downloads newer bytes of the device.\n\n"
      "NumPy cannot report writes, so reading this property marks the host copy as written.");
  type.def_prop_ro("device", &PyUnified::device,
                   "A DeviceArray over the device copy, or a NumPy array if the device is the "
                   "host. Uploads newer bytes of the host.\n\n"
                   "Call mark_device_dirty() after work has written to it.");
  type.def("__array__", &asarray, nb::arg("dtype") = nb::none(), nb::arg("copy") = nb::none());
  type.def("__getitem__", [](PyUnified& self, nb::handle key) {
    return nb::steal(PyObject_GetItem(self.read_array().ptr(), key.ptr()));
  });
  type.def("__setitem__", [](nb::object self, nb::handle key, nb::handle value) {
    PyHostLease lease(self, Access::read_write, {});
    const nb::object array = lease.array();
    const bool has_failed = PyObject_SetItem(array.ptr(), key.ptr(), value.ptr()) != 0;
    nb::error_scope* kept = has_failed ? new nb::error_scope : nullptr;
    lease.close(false);
    delete kept;
    if (has_failed) nb::raise_python_error();
  });
  add_leases<Access::read>(type, "read_host", "read_device", "The program reads the elements.");
  add_leases<Access::read_write>(type, "rw_host", "rw_device",
                                 "The program reads and writes the elements.");
  add_leases<Access::discard>(type, "discard_host", "discard_device",
                              "The program overwrites all elements, so nothing is copied in.");
  // --- Verbs
  type.def(
      "allocate",
      [](nb::object self, bool host, bool device) {
        nb::cast<PyUnified&>(self).allocate(host, device);
        return self;
      },
      nb::arg("host") = true, nb::arg("device") = true,
      "Allocate memory for the copies now. Returns the buffer.");
  type.def("free", &PyUnified::free,
           "Free all copies. Arrays that are still in use keep their memory.");
  type.def(
      "drop_host", [](PyUnified& self) { self.drop(true); },
      "Free the host copy; newer bytes go to the device first.");
  type.def(
      "drop_device", [](PyUnified& self) { self.drop(false); },
      "Free the device copy; newer bytes go to the host first.");
  type.def(
      "sync_to_device",
      [](const PyUnified& self) {
        const CallSite site = here();
        without_gil([&] { return self.raw().try_sync_to_device(site); }).value();
      },
      "Bring the device copy up to date. Copies nothing if it is.");
  type.def(
      "sync_to_host",
      [](const PyUnified& self) {
        const CallSite site = here();
        call_when_ready(
            [&] { return is_ready(self.raw(), Access::read); },
            [&] {
              static_cast<void>(self.raw().open_host(Access::read, LeaseWait::never(), site));
              return true;
            });
        check_launches(self.raw().device().id());
      },
      "Bring the host copy up to date, and wait for it. Copies nothing if it is.");
  type.def(
      "mark_host_dirty",
      [](const PyUnified& self) {
        const CallSite site = here();
        without_gil([&] { return self.raw().try_mark_dirty(Place::host(), {}, site); }).value();
      },
      "Mark the host copy as written. For writes through an array that the program has kept.");
  type.def(
      "mark_device_dirty",
      [](const PyUnified& self, nb::handle stream) {
        const CallSite site = here();
        const StreamArgument on(stream, self.raw().device());
        const Place place = Place::device(on.get().device_id());
        without_gil([&] { return self.raw().try_mark_dirty(place, on.get(), site); }).value();
      },
      nb::arg("stream") = nb::none(), "Mark the device copy as written by work on the stream.");
  type.def(
      "fill",
      [](nb::object self, nb::handle value, nb::handle stream) {
        const RawUnified& raw = nb::cast<PyUnified&>(self).raw();
        const Pattern pattern = pattern_of(value, raw.dtype());
        const CallSite site = here();
        const std::optional<StreamArgument> on =
            stream.is_none() ? std::optional<StreamArgument>()
                             : std::optional<StreamArgument>(std::in_place, stream, raw.device());
        const StreamRef where = on ? on->get() : StreamRef();
        without_gil([&] { return raw.try_fill(pattern, where, site); }).value();
        return self;
      },
      nb::arg("value"), nb::arg("stream") = nb::none(),
      "Set every element to one value. Returns the buffer.\n\n"
      "With a stream, writes the device copy. Without one, writes the copy that is up to date.");
  type.def("copy_from", &copy_from, nb::arg("array"),
           "Copy an array of the same shape into the buffer. Casts of the same kind, as in NumPy, "
           "are allowed.");
  type.def("copy_to", &copy_to, nb::arg("array"), "Copy all elements into a NumPy array.");
  type.def("to_numpy", &to_numpy, "Return an independent NumPy array with the newest bytes.");
  type.def(
      "prefetch",
      [](const PyUnified& self, nb::handle stream) {
        const CallSite site = here();
        const StreamArgument on(stream, self.raw().device());
        without_gil([&] { return self.raw().try_prefetch(on.get(), site); }).value();
      },
      nb::arg("stream") = nb::none(), "Queue the copies that a read on this stream would need.");
  type.def(
      "prefetch_host",
      [](const PyUnified& self) {
        const CallSite site = here();
        without_gil([&] { return self.raw().try_prefetch_host(site); }).value();
      },
      "Queue the copies that a read of the host would need.");
  type.def(
      "wait",
      [](const PyUnified& self) {
        const CallSite site = here();
        call_when_ready([&] { return is_unused(self.raw()); },
                        [&] { return self.raw().try_synchronize(site); })
            .value();
        check_launches(self.raw().device().id());
      },
      "Wait until no stream uses memory of the buffer. Ctrl-C ends the wait.");
  type.def(
      "compare",
      [](const PyUnified& self) {
        const CallSite site = here();
        without_gil([&] { return self.raw().try_compare(site); }).value();
      },
      "Compare all copies that should be equal. Raises ViolationError if one differs.");
  nb::class_<DeviceArray>(module, "DeviceArray",
                          "Device memory of a lease or of a UnifiedBuffer, for other libraries.\n\n"
                          "Pass it to ``cupy.from_dlpack``, ``torch.from_dlpack`` or "
                          "``cupy.asarray``, or pass ``ptr`` to a kernel.")
      .def_prop_ro(
          "shape", [](const DeviceArray& self) { return tuple_of(self.shape); }, "The extents.")
      .def_prop_ro(
          "dtype", [](const DeviceArray& self) { return object_of_dtype(self.dtype); },
          "The type of an element.")
      .def_prop_ro(
          "device", [](const DeviceArray& self) { return self.device; },
          "The device of the memory.")
      .def_prop_ro(
          "ptr",
          [](const DeviceArray& self) { return reinterpret_cast<std::uintptr_t>(self.address); },
          "The address of the first element.")
      .def_prop_ro(
          "nbytes", [](const DeviceArray& self) { return self.shape.byte_count(self.dtype); },
          "The number of bytes.")
      .def_prop_ro(
          "size", [](const DeviceArray& self) { return self.shape.element_count(); },
          "The number of elements.")
      .def_prop_ro(
          "is_read_only", [](const DeviceArray& self) { return self.is_read_only; },
          "Whether the lease is a read lease. Work must not write the memory then.")
      .def(
          "__array__",
          [](nb::handle self, nb::handle dtype, nb::handle copy) {
            // Without this method NumPy would make a 0-d array of objects, silently.
            const DeviceArray& array = nb::cast<const DeviceArray&>(self);
            if (!exported_of(array).buffer.reach().host_reads) {
              raise(Failure(ErrorCode::not_host_accessible,
                            "NumPy cannot use memory of '{device}'. Copy the elements with "
                            "to_numpy() of the buffer, or with "
                            "np.from_dlpack(array, device='cpu').")
                        .with("device", array.device.spec())
                        .with("kind", "device"),
                    here());
            }
            const nb::object taken = numpy().attr("from_dlpack")(self);
            return nb::object(numpy().attr("array")(taken, dtype, nb::arg("copy") = copy));
          },
          nb::arg("dtype") = nb::none(), nb::arg("copy") = nb::none())
      .def(
          "__dlpack__",
          [](const DeviceArray& self, nb::handle stream, nb::handle max_version,
             nb::handle dl_device, nb::handle copy) {
            return export_dlpack(exported_of(self), stream, max_version, dl_device, copy);
          },
          nb::kw_only(), nb::arg("stream") = nb::none(), nb::arg("max_version") = nb::none(),
          nb::arg("dl_device") = nb::none(), nb::arg("copy") = nb::none())
      .def("__dlpack_device__",
           [](const DeviceArray& self) { return dlpack_device(exported_of(self).buffer); })
      .def_prop_ro("__cuda_array_interface__",
                   [](const DeviceArray& self) { return cuda_array_interface(exported_of(self)); })
      .def("__repr__", [](const DeviceArray& self) {
        return nb::str("DeviceArray(shape={}, dtype={}, device='{}', nbytes={})")
            .format(tuple_of(self.shape), object_of_dtype(self.dtype),
                    std::string(self.device.spec()), self.shape.byte_count(self.dtype));
      });
  module.def(
      "unified_totals", [] { return statistics_of(unified_totals()); },
      "Return what all unified buffers of the process have copied.");
}

}  // namespace tern::python
