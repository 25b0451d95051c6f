// Array: elements in memory of a device that are allocated at once and can grow.

#include "arrays.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <utility>

#include "exchange.hpp"
#include "host_memory.hpp"
#include "places.hpp"

TERN_RELEASE_HANDLE(tern::python::PyArray)

namespace tern::python {
namespace {

PyArray allocate(std::size_t count, DType dtype, nb::handle device,
                 const std::optional<std::string>& tag,
                 const std::optional<ResourceHandle>& resource, Contents contents) {
  StorageOptions options;
  options.tag = tag_of(tag);
  options.contents = contents;
  options.site = here();
  if (resource) options.resource = *resource;
  const Device on = resource && device.is_none() ? (*resource)->device() : device_of_object(device);
  RawArray raw = without_gil([&] {
                   return RawArray::try_allocate(on, count, size_bytes(dtype), options);
                 }).value();
  return {std::move(raw), dtype, on};
}

void copy_from(PyArray& self, nb::handle object) {
  ArrayHandle raw = self.raw();
  const Shape shape = Shape::flat(raw->size_bytes() / self.width());
  const nb::object elements = elements_of(object, self.dtype(), &shape);
  const void* const address = address_of(elements);
  const CallSite site = here();
  without_gil([&] { return raw->try_write(address, raw->size_bytes(), {}, site); }).value();
}

PyArray make(nb::handle values, nb::handle dtype, nb::handle device,
             const std::optional<std::string>& tag, const std::optional<ResourceHandle>& resource) {
  const nb::object array = numpy().attr("asarray")(values);
  if (nb::cast<int>(array.attr("ndim")) != 1) {
    raise(Failure(ErrorCode::shape_mismatch,
                  "an Array has one axis, and the values have the shape {actual}. Use a Buffer for "
                  "other shapes.")
              .with("actual", repr_of(array.attr("shape"))),
          here());
  }
  const DType element =
      dtype_of_object(dtype.is_none() ? nb::object(array.attr("dtype")) : nb::borrow(dtype));
  const nb::object elements = elements_of(array, element, nullptr);
  PyArray made =
      allocate(nb::len(elements), element, device, tag, resource, Contents::uninitialized);
  copy_from(made, elements);
  return made;
}

nb::object to_numpy(const PyArray& self) {
  const CallSite site = here();
  // A gate refuses before memory for the copy is allocated.
  ArrayHandle raw = self.raw();
  released([&] { return raw->check_download(site); }).value();
  nb::object array =
      numpy().attr("empty")(raw->size_bytes() / self.width(), object_of_dtype(self.dtype()));
  void* const address = address_of(array);
  static_cast<void>(
      without_gil([&] { return raw->try_read(address, raw->size_bytes(), {}, site); }).value());
  check_launches(self.device().id());
  return array;
}

PyArray part_of(const PyArray& self, nb::handle first, nb::handle count) {
  const std::size_t from = size_of_object(first, "first"), many = size_of_object(count, "count");
  RawArray raw = self.raw()->try_slice(from, many, self.width(), here()).value();
  return {std::move(raw), self.dtype(), self.device()};
}

}  // namespace

void add_arrays(nb::module_& module) {
  nb::class_<PyArray>(module, "Array",
                      "Elements in memory of a device, along one axis. Memory is allocated at "
                      "once, and can grow.\n\n"
                      "Copies of the handle and slices share the memory. A Buffer has any shape; "
                      "an Array can be resized.\n\n"
                      "Parameters\n----------\n"
                      "values : array-like\n    One axis. The elements are copied to the device.\n"
                      "dtype : dtype-like, optional\n    By default that of the values.\n"
                      "device : Device or str, optional\n"
                      "tag : str, optional\n    A name for reports.\n"
                      "resource : Resource, optional\n    Where the memory comes from.")
      .def(nb::new_(&make), nb::arg("values"), nb::arg("dtype") = nb::none(),
           nb::arg("device") = nb::none(), nb::kw_only(), nb::arg("tag") = nb::none(),
           nb::arg("resource") = nb::none())
      .def_static(
          "uninitialized",
          [](nb::handle count, nb::handle dtype, nb::handle device,
             const std::optional<std::string>& tag, const std::optional<ResourceHandle>& resource) {
            const DType element = dtype.is_none() ? DType::f32 : dtype_of_object(dtype);
            return allocate(size_of_object(count, "count"), element, device, tag, resource,
                            Contents::uninitialized);
          },
          nb::arg("count"), nb::arg("dtype") = nb::none(), nb::arg("device") = nb::none(),
          nb::kw_only(), nb::arg("tag") = nb::none(), nb::arg("resource") = nb::none(),
          "Allocate elements without a value. Reading one before it is written raises "
          "NeverWrittenError.")
      .def_static(
          "zeros",
          [](nb::handle count, nb::handle dtype, nb::handle device,
             const std::optional<std::string>& tag, const std::optional<ResourceHandle>& resource) {
            const DType element = dtype.is_none() ? DType::f32 : dtype_of_object(dtype);
            return allocate(size_of_object(count, "count"), element, device, tag, resource,
                            Contents::zero);
          },
          nb::arg("count"), nb::arg("dtype") = nb::none(), nb::arg("device") = nb::none(),
          nb::kw_only(), nb::arg("tag") = nb::none(), nb::arg("resource") = nb::none(),
          "Allocate elements whose bytes are all 0.")
      .def_prop_ro(
          "shape", [](const PyArray& self) { return nb::make_tuple(self.size()); },
          "The number of elements, as a tuple.")
      .def_prop_ro(
          "dtype", [](const PyArray& self) { return object_of_dtype(self.dtype()); },
          "The type of an element.")
      .def_prop_ro("size", &PyArray::size, "The number of elements.")
      .def_prop_ro("numel", &PyArray::size, "The number of elements.")
      .def_prop_ro(
          "nbytes", [](const PyArray& self) { return self.raw()->size_bytes(); },
          "The number of bytes.")
      .def_prop_ro(
          "capacity",
          [](const PyArray& self) { return self.raw()->capacity_bytes() / self.width(); },
          "The number of elements up to which resize() can grow the array in place.")
      .def_prop_ro(
          "device", [](const PyArray& self) { return self.device(); }, "The device.")
      .def_prop_ro(
          "ptr",
          [](const PyArray& self) {
            return reinterpret_cast<std::uintptr_t>(self.raw()->address());
          },
          "The address of the first element.")
      .def_prop_ro(
          "buffer", [](const PyArray& self) { return self.buffer(); },
          "The elements as a Buffer in the same memory.")
      .def("__len__", &PyArray::size)
      .def("slice", &part_of, nb::arg("first"), nb::arg("count"),
           "Return elements [first, first + count) in the same memory.")
      .def(
          "resize",
          [](PyArray& self, nb::handle count, nb::handle stream) {
            const std::size_t many = size_of_object(count, "count");
            const StreamArgument on(stream, self.device());
            const CallSite site = here();
            const Result<void> resized = self.resize(
                [&](RawArray& raw) { return raw.try_resize(many, self.width(), on.get(), site); });
            check_launches();
            resized.value();
          },
          nb::arg("count"), nb::arg("stream") = nb::none(),
          "Change the number of elements, in stream order. Existing elements keep their values; "
          "new ones have none.\n\n"
          "Grows in place if the memory is large enough and no other handle uses it. Otherwise "
          "other handles keep the old memory.")
      .def(
          "fill",
          [](nb::object self, nb::handle value, nb::handle stream) {
            PyArray& array = nb::cast<PyArray&>(self);
            const Pattern pattern = pattern_of(value, array.dtype());
            const StreamArgument on(stream, array.device());
            const CallSite site = here();
            ArrayHandle raw = array.raw();
            static_cast<void>(
                without_gil([&] { return raw->try_fill(pattern, on.get(), site); }).value());
            return self;
          },
          nb::arg("value"), nb::arg("stream") = nb::none(),
          nb::sig("def fill(self, value: object, stream: object | None = None) -> Array"),
          "Set every element, in stream order. Returns the array.")
      .def("copy_from", &copy_from, nb::arg("values"),
           "Copy elements of the same number in; NumPy's same-kind casts are allowed.")
      .def("to_numpy", &to_numpy, "Return an independent NumPy array with the elements.")
      .def(
          "__array__",
          [](const PyArray& self, nb::handle dtype, nb::handle copy) {
            return nb::cast(self.buffer()).attr("__array__")(dtype, copy);
          },
          nb::arg("dtype") = nb::none(), nb::arg("copy") = nb::none())
      .def(
          "__dlpack__",
          [](const PyArray& self, nb::handle stream, nb::handle max_version, nb::handle dl_device,
             nb::handle copy) {
            return export_dlpack({self.buffer(), false}, stream, max_version, dl_device, copy);
          },
          nb::kw_only(), nb::arg("stream") = nb::none(), nb::arg("max_version") = nb::none(),
          nb::arg("dl_device") = nb::none(), nb::arg("copy") = nb::none())
      .def("__dlpack_device__", [](const PyArray& self) { return dlpack_device(self.buffer()); })
      .def("__repr__", [](const PyArray& self) {
        return nb::str("Array(size={}, dtype={}, device='{}')")
            .format(self.size(), object_of_dtype(self.dtype()), std::string(self.device().spec()));
      });
}

}  // namespace tern::python
