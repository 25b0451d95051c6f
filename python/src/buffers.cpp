// Buffer: an array of elements in memory of one device.

#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <utility>

#include "exchange.hpp"
#include "host_memory.hpp"
#include "interrupts.hpp"
#include "tern/buffer/buffer.hpp"
#include "tern/buffer/copy.hpp"
#include "tern/buffer/strided_buffer.hpp"

TERN_RELEASE_HANDLE(tern::Buffer)
TERN_RELEASE_HANDLE(tern::StridedBuffer)

namespace tern::python {
namespace {

Contents contents_of(const std::string& text) {
  if (text == "uninitialized") return Contents::uninitialized;
  if (text == "zero") return Contents::zero;
  if (text == "unspecified") return Contents::unspecified;
  refuse_choice("contents", text, "'uninitialized', 'zero' or 'unspecified'");
}

Buffer make(nb::handle shape, nb::handle dtype, nb::handle device, const std::string& kind,
            const std::string& contents, const std::optional<std::string>& tag,
            const std::optional<ResourceHandle>& resource) {
  StorageOptions options;
  options.kind = memory_kind_of(kind);
  options.contents = contents_of(contents);
  options.tag = tag_of(tag);
  options.site = here();
  if (resource) options.resource = *resource;
  const Device on = resource && device.is_none() ? (*resource)->device() : device_of_object(device);
  const DType element = dtype.is_none() ? DType::f32 : dtype_of_object(dtype);
  const Shape extents = shape_of_object(shape);
  return without_gil([&] { return Buffer::try_make(on, extents, element, options); }).value();
}

nb::object copy_from(nb::object target, nb::handle object, nb::handle stream) {
  Buffer& self = nb::cast<Buffer&>(target);
  const CallSite site = here();
  if (nb::isinstance<Buffer>(object)) {
    const Buffer& source = nb::cast<const Buffer&>(object);
    // A file has no device, so the stream is of the other side.
    const bool is_to_file = self.kind() == MemoryKind::file;
    const StreamArgument on(stream, is_to_file ? source.device() : self.device());
    without_gil([&] { return try_copy(self, source, on.get(), site); }).value();
    return target;
  }
  const nb::object elements = elements_of(object, self.dtype(), &self.shape());
  const void* const address = address_of(elements);
  // The host waits, because the elements may be freed before a stream has read them.
  call_when_ready([&] { return is_ready(self.storage(), Access::discard); },
                  [&] { return self.try_copy_from(address, self.size_bytes(), site); })
      .value();
  return target;
}

nb::object to_numpy(const Buffer& self) {
  nb::object array = numpy().attr("empty")(tuple_of(self.shape()), object_of_dtype(self.dtype()));
  void* const address = address_of(array);
  const CallSite site = here();
  call_when_ready([&] { return is_ready(self.storage(), Access::read); },
                  [&] { return self.try_copy_to(address, self.size_bytes(), site); })
      .value();
  check_launches(self.device().id());
  return array;
}

/// An independent buffer with the same elements, or without elements if there is no memory yet.
Buffer copied(const Buffer& self) {
  const CallSite site = here();
  if (self.is_allocated() || self.size_bytes() == 0) {
    return without_gil([&] { return self.try_clone(self.device().default_stream(), site); })
        .value();
  }
  StorageOptions options;
  const bool is_special = self.kind() == MemoryKind::pinned || self.kind() == MemoryKind::managed;
  options.kind = is_special ? self.kind() : MemoryKind::device;
  options.site = site;
  return without_gil(
             [&] { return Buffer::try_make(self.device(), self.shape(), self.dtype(), options); })
      .value();
}

/// A NumPy array over the memory, if the host can use it. Waits for work that uses it.
nb::object array_of(const Buffer& self, bool is_read_only) {
  const CallSite site = here();
  const Access access = is_read_only ? Access::read : Access::read_write;
  call_when_ready([&] { return is_ready(self.storage(), access); }, [] { return true; });
  void* address = nullptr;
  if (is_read_only) {
    const auto view =
        without_gil([&] { return self.try_byte_view(0, self.size_bytes(), site); }).value();
    const auto access =
        without_gil([&] { return view.as<std::byte>().try_read_host<std::byte>(site); }).value();
    address = const_cast<std::byte*>(access.data());
  } else {
    auto view = without_gil([&] { return self.try_byte_view(0, self.size_bytes(), site); })
                    .value()
                    .as<std::byte>();
    const auto access = without_gil([&] { return view.try_rw_host<std::byte>(site); }).value();
    address = access.data();
  }
  check_launches(self.device().id());
  return array_over({self.storage(), address, self.shape(), self.dtype(), is_read_only});
}

/// The part of a buffer that an index or a slice of step 1 of the first dimension selects.
Buffer part_of(const Buffer& self, nb::handle key) {
  const CallSite site = here();
  if (self.shape().rank() == 0) refuse_index("a 0-d buffer has no parts: use item()");
  const std::size_t rows = self.shape().extents()[0];
  const std::size_t row_bytes = rows == 0 ? 0 : self.size_bytes() / rows;
  std::vector<std::size_t> extents(self.shape().extents().begin(), self.shape().extents().end());
  Py_ssize_t first = 0, count = 1;
  if (PySlice_Check(key.ptr()) != 0) {
    Py_ssize_t last = 0, step = 0;
    if (PySlice_Unpack(key.ptr(), &first, &last, &step) != 0) nb::raise_python_error();
    count = PySlice_AdjustIndices(static_cast<Py_ssize_t>(rows), &first, &last, step);
    if (step != 1) {
      raise(Failure(ErrorCode::unsupported,
                    "a Buffer has no strides, so a slice needs step 1. Copy the elements with "
                    "to_numpy() first.")
                .with("what", "a slice with a step"),
            site);
    }
    extents[0] = static_cast<std::size_t>(count);
  } else {
    first = PyIndex_Check(key.ptr()) == 0 ? -1 : PyNumber_AsSsize_t(key.ptr(), PyExc_IndexError);
    const bool is_other_type =
        PyIndex_Check(key.ptr()) == 0 || PyErr_ExceptionMatches(PyExc_TypeError) != 0;
    if (is_other_type) {
      PyErr_Clear();
      raise(Failure(ErrorCode::type_mismatch,
                    "a Buffer takes one integer or one slice as an index, and not {actual}. Copy "
                    "the elements with to_numpy() first.")
                .with("actual", type_text(key)),
            site);
    }
    if (first == -1 && PyErr_Occurred() != nullptr) nb::raise_python_error();
    if (first < 0) first += static_cast<Py_ssize_t>(rows);
    if (first < 0 || static_cast<std::size_t>(first) >= rows) {
      raise(Failure(ErrorCode::out_of_bounds, "there is no row {index} in a buffer of {count}.")
                .with_signed("index", nb::cast<std::int64_t>(key))
                .with("count", rows)
                .with("generation", std::uint64_t{0}),
            site);
    }
    extents.erase(extents.begin());
  }
  const std::size_t row = row_bytes / size_bytes(self.dtype());
  const Buffer flat = self.try_reshape(Shape::flat(self.size()), site).value();
  return flat
      .try_slice(static_cast<std::size_t>(first) * row, static_cast<std::size_t>(count) * row, site)
      .value()
      .try_reshape(Shape(extents), site)
      .value();
}

int get_buffer(PyObject* self, Py_buffer* view, int flags) {
  view->obj = nullptr;
  if (!nb::inst_ready(self)) {
    PyErr_SetString(PyExc_BufferError, "the Buffer was not initialized.");
    return -1;
  }
  try {
    const nb::object array = array_of(*nb::inst_ptr<Buffer>(self), (flags & PyBUF_WRITABLE) == 0);
    return PyObject_GetBuffer(array.ptr(), view, flags);
  } catch (nb::python_error& error) {
    error.restore();
  } catch (const Error& error) {
    raise_in_python(error);
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_BufferError, error.what());
  }
  return -1;
}

PyType_Slot buffer_slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(get_buffer)}, {0, nullptr}};

/// The shape of reshape(). An extent of -1 is what the other extents leave.
Shape new_shape_of(const Buffer& self, nb::handle object) {
  if (PyIndex_Check(object.ptr()) == 0 && PySequence_Check(object.ptr()) == 0)
    return shape_of_object(object);
  const nb::list wanted = PyIndex_Check(object.ptr()) != 0 ? nb::list(nb::make_tuple(object))
                                                           : nb::list(nb::borrow(object));
  nb::list others;
  std::optional<std::size_t> open;
  for (std::size_t i = 0; i < nb::len(wanted); ++i) {
    const nb::object extent = wanted[i];
    if (!open && PyLong_Check(extent.ptr()) && extent.equal(nb::int_(-1))) {
      open = i;
    } else {
      others.append(extent);
    }
  }
  if (!open) return shape_of_object(wanted);
  const std::size_t known = shape_of_object(others).element_count();
  if (known == 0 || self.size() % known != 0) {
    raise(Failure(ErrorCode::shape_mismatch,
                  "{size} elements cannot have the shape {shape}: the other extents have {known} "
                  "elements.")
              .with("size", self.size())
              .with("shape", repr_of(wanted))
              .with("known", known),
          here());
  }
  wanted[*open] = nb::int_(self.size() / known);
  return shape_of_object(wanted);
}

/// Fills a part with one value, or copies an array of the same shape to it.
void set_part(const Buffer& self, nb::handle key, nb::handle value) {
  const nb::object part = nb::cast(part_of(self, key));
  const bool is_array =
      nb::isinstance<Buffer>(value) || nb::cast<std::size_t>(numpy().attr("ndim")(value)) > 0;
  part.attr(is_array ? "copy_from" : "fill")(value);
}

nb::object from_numpy(nb::handle object, nb::handle device, nb::handle tag) {
  const nb::object array = numpy().attr("asarray")(object);
  const nb::object made =
      nb::type<Buffer>()(array.attr("shape"), array.attr("dtype"), device, nb::arg("tag") = tag);
  return copy_from(made, array, nb::none());
}

}  // namespace

void add_buffers(nb::module_& module) {
  nb::class_<Buffer>(
      module, "Buffer", nb::type_slots(buffer_slots),
      "An array of elements in memory of one device. Memory is allocated on first use.\n\n"
      "Parameters\n----------\n"
      "shape : int or sequence of int\n"
      "dtype : dtype-like, default float32\n"
      "device : Device or str, optional\n"
      "    By default that of the resource, or else the current device.\n"
      "kind : {'device', 'pinned', 'managed'}\n"
      "    Device memory, page-locked host memory, or memory that migrates between host and "
      "device.\n"
      "contents : {'uninitialized', 'zero', 'unspecified'}\n"
      "    A read of uninitialized elements raises NeverWrittenError. Unspecified elements may be "
      "read.\n"
      "tag : str, optional\n"
      "    A name for reports.\n"
      "resource : Resource, optional\n"
      "    Where the memory comes from; by default the default resource of the device.")
      .def(nb::new_(&make), nb::arg("shape"), nb::arg("dtype") = nb::none(),
           nb::arg("device") = nb::none(), nb::kw_only(), nb::arg("kind") = "device",
           nb::arg("contents") = "uninitialized", nb::arg("tag") = nb::none(),
           nb::arg("resource") = nb::none())
      .def_static("from_numpy", &from_numpy, nb::arg("array"), nb::arg("device") = nb::none(),
                  nb::kw_only(), nb::arg("tag") = nb::none(),
                  "Make a buffer with the shape, the dtype and the elements of an array.\n\n"
                  "Parameters\n----------\n"
                  "array : array-like\n"
                  "device : Device or str, optional\n    By default the current device.\n"
                  "tag : str, optional\n    A name for reports.\n\n"
                  "Returns\n-------\nBuffer")
      .def_prop_ro(
          "shape", [](const Buffer& self) { return tuple_of(self.shape()); }, "The extents.")
      .def_prop_ro(
          "dtype", [](const Buffer& self) { return object_of_dtype(self.dtype()); },
          "The type of an element: a NumPy dtype, or a name if NumPy has no such type.")
      .def_prop_ro(
          "size", [](const Buffer& self) { return self.size(); }, "The number of elements.")
      .def_prop_ro(
          "numel", [](const Buffer& self) { return self.size(); }, "The number of elements.")
      .def_prop_ro(
          "ndim", [](const Buffer& self) { return self.shape().rank(); },
          "The number of dimensions.")
      .def_prop_ro(
          "nbytes", [](const Buffer& self) { return self.size_bytes(); }, "The number of bytes.")
      .def_prop_ro(
          "device", [](const Buffer& self) { return self.device(); }, "The device of the memory.")
      .def_prop_ro(
          "kind", [](const Buffer& self) { return std::string(name(self.kind())); },
          "The kind of memory: ``'device'``, ``'pinned'``, ``'managed'``, ``'host'`` or "
          "``'file'``.")
      .def_prop_ro("is_pinned", &Buffer::is_pinned,
                   "Whether the memory is page-locked host memory.")
      .def_prop_ro("is_external", &Buffer::is_external, "Whether another library owns the memory.")
      .def_prop_ro("is_allocated", &Buffer::is_allocated,
                   "Whether the buffer has memory; the first use allocates it.")
      .def_prop_ro(
          "ptr", [](const Buffer& self) { return self.try_address().value(here()); },
          "The address of the first element.")
      .def(
          "allocate",
          [](nb::object self, nb::handle stream) {
            const Buffer& buffer = nb::cast<const Buffer&>(self);
            const StreamArgument on(stream, buffer.device());
            const CallSite site = here();
            without_gil([&] { return buffer.try_ensure_allocated(on.get(), site); }).value();
            return self;
          },
          nb::arg("stream") = nb::none(), "Allocate the memory now. Returns the buffer.")
      .def("copy_from", &copy_from, nb::arg("source"), nb::arg("stream") = nb::none(),
           "Copy all elements of an array or a Buffer into this buffer. Returns the buffer.\n\n"
           "A copy from a Buffer is queued on the stream; from an array the host waits.")
      .def("to_numpy", &to_numpy, "Return an independent NumPy array with the elements.")
      .def(
          "numpy", [](const Buffer& self) { return array_of(self, false); },
          "Return a NumPy array over the same memory. Raises BufferError for memory that the host "
          "cannot use.")
      .def(
          "__array__",
          [](const Buffer& self, nb::handle dtype, nb::handle copy) {
            if (!self.reach().host_reads) {
              raise(Failure(
                        ErrorCode::not_host_accessible,
                        "NumPy cannot use memory of '{device}'. Copy the elements with to_numpy().")
                        .with("device", self.device().spec())
                        .with("kind", name(self.kind())),
                    here());
            }
            nb::object array = array_of(self, true);
            if (dtype.is_none() && !copy.is(Py_True)) return array;
            return nb::object(numpy().attr("array")(array, dtype, nb::arg("copy") = copy));
          },
          nb::arg("dtype") = nb::none(), nb::arg("copy") = nb::none())
      .def(
          "fill",
          [](nb::object self, nb::handle value, nb::handle stream) {
            Buffer& buffer = nb::cast<Buffer&>(self);
            const Pattern pattern = pattern_of(value, buffer.dtype());
            const StreamArgument on(stream, buffer.device());
            const CallSite site = here();
            static_cast<void>(without_gil([&] {
                                return buffer.try_fill_bytes(pattern, on.get(), site);
                              }).value());
            return self;
          },
          nb::arg("value"), nb::arg("stream") = nb::none(),
          "Set every element to one value, in stream order. Returns the buffer.")
      .def(
          "clone",
          [](const Buffer& self, nb::handle stream) {
            const StreamArgument on(stream, self.device());
            const CallSite site = here();
            return without_gil([&] { return self.try_clone(on.get(), site); }).value();
          },
          nb::arg("stream") = nb::none(), "Return a Buffer with a copy of the elements.")
      .def(
          "reshape",
          [](const Buffer& self, const nb::args& shape) {
            return self
                .try_reshape(new_shape_of(self, shape.size() == 1 ? nb::handle(shape[0])
                                                                  : nb::handle(shape)),
                             here())
                .value();
          },
          nb::arg("shape"), nb::sig("def reshape(self, *shape: object) -> Buffer"),
          "Return the same memory with another shape: integers or one sequence of them. One extent "
          "may be -1.")
      .def(
          "view",
          [](const Buffer& self, nb::handle dtype) {
            return self.try_as(dtype_of_object(dtype), here()).value();
          },
          nb::arg("dtype"), "Return the same memory with another dtype.")
      .def("__getitem__", &part_of, nb::arg("key").none())
      .def("__setitem__", &set_part, nb::arg("key").none(), nb::arg("value"))
      .def("__len__",
           [](const Buffer& self) {
             if (self.shape().rank() == 0) refuse_type("a 0-d buffer has no length");
             return self.shape().extents()[0];
           })
      .def(
          "item", [](const Buffer& self) { return to_numpy(self).attr("item")(); },
          "Return the only element.")
      .def(
          "synchronize",
          [](const Buffer& self) {
            const CallSite site = here();
            call_when_ready([&] { return is_ready(self.storage(), Access::discard); },
                            [&] { return self.try_synchronize(site); })
                .value(site);
            check_launches(self.device().id());
          },
          "Wait until no stream uses the memory. Ctrl-C ends the wait.")
      .def(
          "__dlpack__",
          [](const Buffer& self, nb::handle stream, nb::handle max_version, nb::handle dl_device,
             nb::handle copy) {
            return export_dlpack({self, self.storage() && self.storage()->is_read_only()}, stream,
                                 max_version, dl_device, copy);
          },
          nb::kw_only(), nb::arg("stream") = nb::none(), nb::arg("max_version") = nb::none(),
          nb::arg("dl_device") = nb::none(), nb::arg("copy") = nb::none())
      .def("__dlpack_device__", [](const Buffer& self) { return dlpack_device(self); })
      .def_prop_ro("__cuda_array_interface__",
                   [](const Buffer& self) {
                     const StreamRef stream = self.device().default_stream();
                     return cuda_array_interface(
                         {self, self.storage() && self.storage()->is_read_only(), stream, false});
                   })
      .def(
          "__reduce_ex__",
          [](nb::handle self, nb::handle) {
            return nb::module_::import_("ternmem._pickling").attr("reduce_buffer")(self);
          },
          nb::arg("protocol"))
      .def("__copy__", &copied)
      .def(
          "__deepcopy__", [](const Buffer& self, nb::handle) { return copied(self); },
          nb::arg("memo"))
      .def("__repr__", [](const Buffer& self) {
        return nb::str("Buffer(shape={}, dtype={}, device='{}', kind='{}', nbytes={})")
            .format(tuple_of(self.shape()), object_of_dtype(self.dtype()),
                    std::string(self.device().spec()), std::string(name(self.kind())),
                    self.size_bytes());
      });
  nb::class_<StridedBuffer>(module, "StridedBuffer",
                            "Elements of another library that are not adjacent in memory.\n\n"
                            "from_dlpack() makes it. contiguous() copies the elements to a Buffer.")
      .def_prop_ro(
          "shape", [](const StridedBuffer& self) { return tuple_of(self.shape()); }, "The extents.")
      .def_prop_ro(
          "strides",
          [](const StridedBuffer& self) {
            return std::vector<std::int64_t>(self.strides().begin(), self.strides().end());
          },
          "The strides, in elements.")
      .def_prop_ro(
          "dtype", [](const StridedBuffer& self) { return object_of_dtype(self.dtype()); },
          "The type of an element.")
      .def_prop_ro("is_contiguous", &StridedBuffer::is_contiguous,
                   "Whether the elements are adjacent, in row-major order.")
      .def(
          "__array__",
          [](const StridedBuffer&, nb::handle, nb::handle) -> nb::object {
            refuse_type("NumPy cannot use a StridedBuffer. Call contiguous() first");
          },
          nb::arg("dtype") = nb::none(), nb::arg("copy") = nb::none())
      .def("__repr__",
           [](const StridedBuffer& self) {
             return nb::str("StridedBuffer(shape={}, strides={}, dtype={}, device='{}')")
                 .format(tuple_of(self.shape()),
                         std::vector<std::int64_t>(self.strides().begin(), self.strides().end()),
                         object_of_dtype(self.dtype()), std::string(self.hull().device().spec()));
           })
      .def(
          "contiguous",
          [](const StridedBuffer& self, nb::handle stream) {
            const StreamArgument on(stream, self.hull().device());
            const CallSite site = here();
            return without_gil([&] { return self.try_contiguous(on.get(), site); }).value();
          },
          nb::arg("stream") = nb::none(), "Return a Buffer with the elements in row-major order.");
}

}  // namespace tern::python
