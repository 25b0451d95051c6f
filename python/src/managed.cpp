// ManagedBuffer: one array at one address, for the host and for devices, and its leases.

#include "managed.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <utility>
#include <variant>

#include "exchange.hpp"
#include "host_memory.hpp"
#include "places.hpp"
#include "tern/buffer/use.hpp"
#include "tern/coherence/hints.hpp"
#include "unified.hpp"

TERN_RELEASE_HANDLE(tern::python::PyManaged)

namespace tern::python {
namespace {

[[noreturn]] void raise_closed() {
  raise(Failure(ErrorCode::not_allocated, "the lease is closed. Open a new one.")
            .with("id", std::uint64_t{0}),
        here());
}

/// An open access of the host. `with` gives a NumPy array.
class PyManagedHostLease {
 public:
  PyManagedHostLease(const PyManaged& memory, Access access)
      : buffer_(memory.buffer()), access_(access) {
    const CallSite site = here();
    Buffer bytes = buffer_.try_byte_view(0, buffer_.size_bytes(), site).value();
    switch (access) {
      case Access::read:
        view_ = without_gil([&] { return bytes.try_read_host<std::byte>(site); }).value();
        break;
      case Access::read_write:
        view_ = without_gil([&] { return bytes.try_rw_host<std::byte>(site); }).value();
        break;
      case Access::discard:
        view_ = without_gil([&] { return bytes.try_discard_host<std::byte>(site); }).value();
        break;
    }
    check_launches(buffer_.device().id());
  }

  PyManagedHostLease(PyManagedHostLease&&) = default;
  ~PyManagedHostLease() {
    release(view_);
    release(buffer_);
  }

  [[nodiscard]] nb::object array() {
    if (!is_open()) raise_closed();
    if (!array_.is_valid()) {
      const std::byte* const address = access_ == Access::read
                                           ? std::get<HostView<const std::byte>>(view_).data()
                                           : std::get<HostView<std::byte>>(view_).data();
      array_ = array_over({buffer_.storage(), const_cast<std::byte*>(address), buffer_.shape(),
                           buffer_.dtype(), access_ == Access::read});
    }
    return array_;
  }
  void close() {
    if (!is_open()) return;
    // Of several threads only one ends the lease.
    auto view = std::exchange(view_, {});
    const nb::object array = std::move(array_);
    without_gil([&] { view = std::monostate(); });
    // The streams do not wait for later writes through the array.
    if (array.is_valid() && access_ != Access::read) forbid_writing(array);
  }
  [[nodiscard]] bool is_open() const noexcept { return view_.index() != 0; }

 private:
  Buffer buffer_;
  Access access_;
  std::variant<std::monostate, HostView<const std::byte>, HostView<std::byte>> view_;
  nb::object array_;
};

/// An open access by a stream.
class PyManagedDeviceLease {
 public:
  PyManagedDeviceLease(const PyManaged& memory, Access access, nb::handle stream)
      : buffer_(memory.buffer()), access_(access), stream_(stream, buffer_.device()) {
    const CallSite site = here();
    use_ =
        without_gil([&] { return memory.memory().try_use(stream_.get(), access, site); }).value();
    is_open_ = true;
  }
  PyManagedDeviceLease(PyManagedDeviceLease&& other) noexcept
      : buffer_(std::move(other.buffer_)),
        access_(other.access_),
        stream_(std::move(other.stream_)),
        use_(std::move(other.use_)),
        is_open_(std::exchange(other.is_open_, false)) {}
  // Work may have been submitted, so the use counts.
  ~PyManagedDeviceLease() {
    close();
    release(buffer_);
  }

  [[nodiscard]] DeviceArray array() const {
    if (!is_open_) raise_closed();
    auto* const first = static_cast<std::byte*>(use_.address());
    void* const address = buffer_.size_bytes() == 0 ? nullptr : first + buffer_.offset_bytes();
    return {buffer_.storage(), stream_.get().device(),  address,       buffer_.shape(),
            buffer_.dtype(),   access_ == Access::read, stream_.get(), buffer_.offset_bytes()};
  }
  void close() noexcept {
    if (!std::exchange(is_open_, false)) return;
    released([&] { use_.end(); });
  }
  [[nodiscard]] bool is_open() const noexcept { return is_open_; }

 private:
  Buffer buffer_;
  Access access_;
  StreamArgument stream_;
  StorageUse use_;
  bool is_open_ = false;
};

PyManaged make(nb::handle shape, nb::handle dtype, nb::handle device,
               const std::optional<std::string>& tag, const std::optional<ResourceHandle>& resource,
               std::optional<bool> checked) {
  StorageOptions options;
  options.tag = tag_of(tag);
  options.checked = checked;
  options.site = here();
  if (resource) options.resource = *resource;
  const Device on = resource && device.is_none() ? (*resource)->device() : device_of_object(device);
  const DType element = dtype.is_none() ? DType::f32 : dtype_of_object(dtype);
  const Shape extents = shape_of_object(shape);
  return PyManaged(
      without_gil([&] { return ManagedMemory::try_make(on, extents, element, options); }).value());
}

/// A read-only array with the bytes of now.
nb::object read_array(const PyManaged& self) {
  PyManagedHostLease lease(self, Access::read);
  return lease.array();
}

nb::object to_numpy(const PyManaged& self) {
  const Buffer& buffer = self.buffer();
  nb::object array =
      numpy().attr("empty")(tuple_of(buffer.shape()), object_of_dtype(buffer.dtype()));
  void* const address = address_of(array);
  const CallSite site = here();
  without_gil([&] { return buffer.try_copy_to(address, buffer.size_bytes(), site); }).value();
  check_launches(buffer.device().id());
  return array;
}

void copy_from(const PyManaged& self, nb::handle object) {
  Buffer buffer = self.buffer();
  const nb::object elements = elements_of(object, buffer.dtype(), &buffer.shape());
  const void* const address = address_of(elements);
  const CallSite site = here();
  without_gil([&] { return buffer.try_copy_from(address, buffer.size_bytes(), site); }).value();
}

void set_item(const PyManaged& self, nb::handle key, nb::handle value) {
  PyManagedHostLease lease(self, Access::read_write);
  if (PyObject_SetItem(lease.array().ptr(), key.ptr(), value.ptr()) != 0) {
    nb::python_error kept;
    lease.close();
    throw kept;
  }
  lease.close();
}

nb::object asarray(const PyManaged& self, nb::handle dtype, nb::handle copy) {
  nb::object array = copy.is(Py_True) ? to_numpy(self) : read_array(self);
  if (dtype.is_none()) return array;
  const nb::object wanted = numpy().attr("dtype")(dtype);
  if (array.attr("dtype").equal(wanted)) return array;
  if (copy.is(Py_False)) refuse_value("another dtype needs a copy, and copy=False forbids it");
  return array.attr("astype")(wanted);
}

/// An independent buffer with the same elements; without elements if none were written.
PyManaged clone(const PyManaged& self) {
  const Buffer& source = self.buffer();
  const CallSite site = here();
  StorageOptions options;
  options.site = site;
  ManagedMemory made =
      without_gil([&] {
        return ManagedMemory::try_make(source.device(), source.shape(), source.dtype(), options);
      }).value();
  // Without written elements there is nothing to copy.
  if (!source.storage()->check_written(source.offset_bytes(), source.size_bytes(), site))
    return PyManaged(std::move(made));
  Buffer target = made.buffer();
  nb::object array = to_numpy(self);
  const void* const address = address_of(array);
  without_gil([&] { return target.try_copy_from(address, target.size_bytes(), site); }).value();
  return PyManaged(std::move(made));
}

template <class Lease>
void add_lease(nb::module_& module, const char* name, const char* doc) {
  nb::class_<Lease>(module, name, doc)
      .def_prop_ro("array", &Lease::array,
                   "The array of the lease. Raises NotAllocatedError if the lease is closed.")
      .def_prop_ro("is_open", &Lease::is_open, "Whether the lease is open.")
      .def(
          "close", [](Lease& self) { self.close(); },
          "Close the lease. A second call does nothing.")
      .def("__enter__", &Lease::array)
      .def(
          "__exit__", [](Lease& self, nb::handle, nb::handle, nb::handle) { self.close(); },
          nb::arg("type").none() = nb::none(), nb::arg("value").none() = nb::none(),
          nb::arg("traceback").none() = nb::none());
}

}  // namespace

Buffer managed_of_object(nb::handle object) {
  if (nb::isinstance<PyManaged>(object)) return nb::cast<const PyManaged&>(object).buffer();
  if (nb::isinstance<Buffer>(object)) return nb::cast<const Buffer&>(object);
  raise(Failure(ErrorCode::type_mismatch,
                "'{actual}' is not managed memory. Pass a ManagedBuffer, or a Buffer of the kind "
                "'managed'.")
            .with("actual", repr_of(object.type())),
        here());
}

void add_managed(nb::module_& module) {
  add_lease<PyManagedHostLease>(
      module, "ManagedHostLease",
      "An open access of the host to a ManagedBuffer. A ``with`` statement returns a NumPy "
      "array.\n\n"
      "The end of the lease makes the array read-only. Its memory stays valid.");
  add_lease<PyManagedDeviceLease>(
      module, "ManagedDeviceLease",
      "An open access of a stream to a ManagedBuffer. A ``with`` statement returns a "
      "DeviceArray.\n\n"
      "Work that is submitted to the stream while the lease is open may use the memory. Closing\n"
      "the lease does not wait for that work; later uses do.");
  nb::class_<PyManaged> type(
      module, "ManagedBuffer",
      "An array at one address, for the host and for devices. The driver moves its pages to the\n"
      "processor that touches them.\n\n"
      "Leases order the uses and copy nothing. Memory is allocated on first use.\n\n"
      "Parameters\n----------\n"
      "shape : int or sequence of int\n"
      "dtype : dtype-like, default float32\n"
      "device : Device or str, optional\n"
      "    By default the current device. Raises UnsupportedError if the device has no managed "
      "memory.\n"
      "tag : str, optional\n"
      "    A name for reports.\n"
      "resource : Resource, optional\n"
      "    Where the memory comes from: a resource of managed memory.\n"
      "checked : bool, optional\n"
      "    Whether conflicting host leases raise AccessConflictError; by default as TERN_CHECKED "
      "says.");
  type.def(nb::new_(&make), nb::arg("shape"), nb::arg("dtype") = nb::none(),
           nb::arg("device") = nb::none(), nb::kw_only(), nb::arg("tag") = nb::none(),
           nb::arg("resource") = nb::none(), nb::arg("checked") = nb::none());
  type.def_prop_ro(
      "shape", [](const PyManaged& self) { return tuple_of(self.buffer().shape()); },
      "The number of elements along each axis.");
  type.def_prop_ro(
      "dtype", [](const PyManaged& self) { return object_of_dtype(self.buffer().dtype()); },
      "The type of an element.");
  type.def_prop_ro(
      "size", [](const PyManaged& self) { return self.buffer().size(); },
      "The number of elements.");
  type.def_prop_ro(
      "ndim", [](const PyManaged& self) { return self.buffer().shape().rank(); },
      "The number of axes.");
  type.def_prop_ro(
      "nbytes", [](const PyManaged& self) { return self.buffer().size_bytes(); },
      "The number of bytes.");
  type.def_prop_ro(
      "device", [](const PyManaged& self) { return self.buffer().device(); }, "The device.");
  type.def_prop_ro(
      "is_allocated", [](const PyManaged& self) { return self.buffer().is_allocated(); },
      "Whether there is memory yet.");
  type.def_prop_ro(
      "host_waits_for_device",
      [](const PyManaged& self) { return self.memory().host_waits_for_device(); },
      "Whether a host lease waits for all work of the device, and not only for uses of this "
      "buffer.");
  type.def_prop_ro(
      "buffer", [](const PyManaged& self) { return self.buffer(); },
      "The same memory as a Buffer, for copies, kernels and exchange.");
  type.def("__len__", [](const PyManaged& self) {
    if (self.buffer().shape().rank() == 0) refuse_type("a 0-d buffer has no length");
    return self.buffer().shape().extents()[0];
  });
  type.def(
      "slice",
      [](const PyManaged& self, nb::handle first, nb::handle count) {
        return PyManaged(
            self.memory()
                .try_slice(size_of_object(first, "first"), size_of_object(count, "count"), here())
                .value());
      },
      nb::arg("first"), nb::arg("count"),
      "Return elements [first, first + count) of the same memory.\n\n"
      "Parameters\n----------\nfirst : int\ncount : int\n\n"
      "Returns\n-------\nManagedBuffer\n    One-dimensional.");
  type.def(
      "hints",
      [](const PyManaged& self, bool strict) {
        return Hints::try_make(self.buffer(), {.strict = strict}, here()).value();
      },
      nb::kw_only(), nb::arg("strict") = false,
      "Return an object that tells the driver how the memory will be used.\n\n"
      "Parameters\n----------\nstrict : bool\n    Raise UnsupportedError for a hint that the "
      "device does not support, instead of skipping it.\n\n"
      "Returns\n-------\nHints");
  const auto host = [&](const char* name, auto access, const char* doc) {
    type.def(
        name, [access](const PyManaged& self) { return PyManagedHostLease(self, access); }, doc);
  };
  host("read_host", Access::read,
       "Open a lease of the host for reading. Waits for the writes of "
       "streams.\n\nReturns\n-------\nManagedHostLease");
  host("rw_host", Access::read_write,
       "Open a lease of the host for reading and writing. Waits for the uses of "
       "streams.\n\nReturns\n-------\nManagedHostLease");
  host("discard_host", Access::discard,
       "Open a lease of the host that overwrites all "
       "elements.\n\nReturns\n-------\nManagedHostLease");
  const auto device = [&](const char* name, auto access, const char* doc) {
    type.def(
        name,
        [access](const PyManaged& self, nb::handle stream) {
          return PyManagedDeviceLease(self, access, stream);
        },
        nb::arg("stream") = nb::none(), doc);
  };
  device("read_device", Access::read,
         "Open a lease for work on a stream that reads.\n\nParameters\n----------\nstream : "
         "Stream, optional\n    By default the default stream of the "
         "device.\n\nReturns\n-------\nManagedDeviceLease");
  device("rw_device", Access::read_write,
         "Open a lease for work on a stream that reads and "
         "writes.\n\nParameters\n----------\nstream : Stream, optional\n    By default the default "
         "stream of the device.\n\nReturns\n-------\nManagedDeviceLease");
  device("discard_device", Access::discard,
         "Open a lease for work on a stream that overwrites all "
         "elements.\n\nParameters\n----------\nstream : Stream, optional\n    By default the "
         "default stream of the device.\n\nReturns\n-------\nManagedDeviceLease");
  type.def(
      "fill",
      [](nb::object self, nb::handle value, nb::handle stream) {
        Buffer buffer = nb::cast<const PyManaged&>(self).buffer();
        const Pattern pattern = pattern_of(value, buffer.dtype());
        const StreamArgument on(stream, buffer.device());
        const CallSite site = here();
        static_cast<void>(
            without_gil([&] { return buffer.try_fill_bytes(pattern, on.get(), site); }).value());
        return self;
      },
      nb::arg("value"), nb::arg("stream") = nb::none(),
      nb::sig("def fill(self, value: object, stream: object | None = None) -> ManagedBuffer"),
      "Set every element, in stream order. Returns the buffer.");
  type.def("copy_from", &copy_from, nb::arg("array"),
           "Copy elements of the same shape in; NumPy's same-kind casts are allowed.");
  type.def("to_numpy", &to_numpy, "Return an independent NumPy array with the elements.");
  type.def(
      "synchronize",
      [](const PyManaged& self) {
        without_gil([&] { return self.buffer().try_synchronize(); }).value(here());
        check_launches(self.buffer().device().id());
      },
      "Wait until no stream uses the memory.");
  type.def("__array__", &asarray, nb::arg("dtype") = nb::none(), nb::arg("copy") = nb::none());
  type.def("__getitem__", [](const PyManaged& self, nb::handle key) {
    nb::object item = nb::steal(PyObject_GetItem(read_array(self).ptr(), key.ptr()));
    if (!item.is_valid()) nb::raise_python_error();
    return item;
  });
  type.def("__setitem__", &set_item);
  type.def(
      "__dlpack__",
      [](const PyManaged& self, nb::handle stream, nb::handle max_version, nb::handle dl_device,
         nb::handle copy) {
        return export_dlpack({self.buffer(), false}, stream, max_version, dl_device, copy);
      },
      nb::kw_only(), nb::arg("stream") = nb::none(), nb::arg("max_version") = nb::none(),
      nb::arg("dl_device") = nb::none(), nb::arg("copy") = nb::none());
  type.def("__dlpack_device__", [](const PyManaged& self) { return dlpack_device(self.buffer()); });
  type.def_prop_ro("__cuda_array_interface__", [](const PyManaged& self) {
    return cuda_array_interface(
        {self.buffer(), false, self.buffer().device().default_stream(), false});
  });
  type.def(
      "__reduce_ex__",
      [](nb::handle self, nb::handle) {
        return nb::module_::import_("ternmem._pickling").attr("reduce_managed")(self);
      },
      nb::arg("protocol"));
  type.def("__copy__", &clone);
  type.def(
      "__deepcopy__", [](const PyManaged& self, nb::handle) { return clone(self); },
      nb::arg("memo"));
  type.def("__repr__", [](const PyManaged& self) {
    return nb::str("ManagedBuffer(shape={}, dtype={}, device='{}')")
        .format(tuple_of(self.buffer().shape()), object_of_dtype(self.buffer().dtype()),
                std::string(self.buffer().device().spec()));
  });
}

}  // namespace tern::python
