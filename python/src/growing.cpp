// GrowingArray and Scalar: an array at whose end elements are added, and one value of a device.

#include "growing.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <utility>

#include "arrays.hpp"
#include "host_memory.hpp"
#include "places.hpp"
#include "tern/buffer/growing_array.hpp"

TERN_RELEASE_HANDLE(tern::python::PyGrowing)
TERN_RELEASE_HANDLE(tern::python::PyScalar)

namespace tern::python {
namespace {

// --- GrowingArray

PyGrowing make(nb::handle dtype, nb::handle device, const std::optional<std::size_t>& reserved,
               const std::shared_ptr<Budget>& budget, const std::optional<std::string>& tag) {
  const DType element = dtype.is_none() ? DType::f32 : dtype_of_object(dtype);
  const Device on = device_of_object(device);
  GrowingOptions options;
  options.reserved_bytes = reserved.value_or(0);
  options.budget = budget;
  options.tag = tag_of(tag);
  options.site = here();
  RawGrowing raw =
      without_gil([&] { return RawGrowing::try_make(on, size_bytes(element), options); }).value();
  return {std::move(raw), element, on};
}

void check_dtype(const PyGrowing& self, DType actual) {
  if (actual == self.dtype()) return;
  raise(Failure(ErrorCode::type_mismatch,
                "elements of type {actual} cannot be added to a growing array of {expected}. "
                "Convert them first.")
            .with("expected", name(self.dtype()))
            .with("actual", name(actual)),
        here());
}

void append(const PyGrowing& self, nb::handle values, nb::handle stream) {
  const CallSite site = here();
  std::optional<Buffer> memory;
  if (nb::isinstance<Buffer>(values)) memory = nb::cast<const Buffer&>(values);
  if (nb::isinstance<PyArray>(values)) memory = nb::cast<const PyArray&>(values).buffer();
  if (nb::isinstance<PyGrowing>(values)) memory = nb::cast<const PyGrowing&>(values).buffer();
  if (memory) {
    check_dtype(self, memory->dtype());
    const StreamArgument on(stream, self.device());
    const Result<Mark> added =
        self.with([&](RawGrowing& array) { return array.try_append(*memory, on.get(), site); });
    release(*memory);
    static_cast<void>(added.value());
    return;
  }
  const nb::object elements = elements_of(values, self.dtype(), nullptr);
  const void* const address = address_of(elements);
  const std::size_t count = nb::cast<std::size_t>(elements.attr("size"));
  static_cast<void>(
      self.with([&](RawGrowing& array) { return array.try_append(address, count, {}, site); })
          .value());
}

void push_back(const PyGrowing& self, nb::handle value, nb::handle stream) {
  const Pattern element = pattern_of(value, self.dtype());
  const StreamArgument on(stream, self.device());
  const CallSite site = here();
  static_cast<void>(self.with([&](RawGrowing& array) {
                          return array.try_push_back(element.bytes, on.get(), site);
                        })
                        .value());
}

GrowingStatistics statistics_of(const PyGrowing& self) {
  return self.with([](RawGrowing& array) { return array.statistics(); });
}

PyArray part_of(const PyGrowing& self, nb::handle first, nb::handle count) {
  const std::size_t from = size_of_object(first, "first"), many = size_of_object(count, "count");
  RawArray raw = self.all().try_slice(from, many, self.width(), here()).value();
  return {std::move(raw), self.dtype(), self.device()};
}

void add_growing_array(nb::module_& module) {
  nb::class_<PyGrowing>(
      module, "GrowingArray",
      "An array at whose end elements are added, and whose addresses never change.\n\n"
      "Reserves addresses, and backs them with pages as it grows, so growing copies nothing. "
      "Elements can be removed only while no Array, Buffer or other handle shares the memory.\n\n"
      "Parameters\n----------\n"
      "dtype : dtype-like, default float32\n"
      "device : Device or str, optional\n    By default the current device.\n"
      "reserved_bytes : int, optional\n"
      "    The size that the array cannot exceed. By default the memory of the device.\n"
      "budget : Budget, optional\n    Charged for pages, not for addresses.\n"
      "tag : str, optional\n    A name for reports.")
      .def(nb::new_(&make), nb::arg("dtype") = nb::none(), nb::arg("device") = nb::none(),
           nb::kw_only(), nb::arg("reserved_bytes") = nb::none(), nb::arg("budget") = nb::none(),
           nb::arg("tag") = nb::none())
      .def("append", &append, nb::arg("values"), nb::arg("stream") = nb::none(),
           "Add copies of elements.\n\n"
           "Elements of a Buffer, an Array or a GrowingArray are copied in stream order. Elements "
           "of the host are copied before the call returns.")
      .def("push_back", &push_back, nb::arg("value"), nb::arg("stream") = nb::none(),
           "Add one element, in stream order.")
      .def(
          "resize",
          [](const PyGrowing& self, nb::handle count, nb::handle stream) {
            const std::size_t many = size_of_object(count, "count");
            const StreamArgument on(stream, self.device());
            const CallSite site = here();
            self.with([&](RawGrowing& array) { return array.try_resize(many, on.get(), site); })
                .value();
          },
          nb::arg("count"), nb::arg("stream") = nb::none(),
          "Change the number of elements. New elements have no value. Removing elements keeps the "
          "memory.")
      .def(
          "reserve",
          [](const PyGrowing& self, nb::handle count, nb::handle stream) {
            const std::size_t many = size_of_object(count, "count");
            const StreamArgument on(stream, self.device());
            const CallSite site = here();
            self.with([&](RawGrowing& array) { return array.try_reserve(many, on.get(), site); })
                .value();
          },
          nb::arg("count"), nb::arg("stream") = nb::none(),
          "Provide memory for at least so many elements. Does not change the size.")
      .def(
          "clear",
          [](const PyGrowing& self) {
            const CallSite site = here();
            self.with([&](RawGrowing& array) { return array.try_resize(0, {}, site); }).value();
          },
          "Remove all elements and keep the memory.")
      .def(
          "shrink_to_fit",
          [](const PyGrowing& self, nb::handle stream) {
            const StreamArgument on(stream, self.device());
            const CallSite site = here();
            self.with([&](RawGrowing& array) { return array.try_shrink_to_fit(on.get(), site); })
                .value();
          },
          nb::arg("stream") = nb::none(),
          "Free the memory behind the elements, once the streams that used it are done. The host "
          "does not wait.")
      .def(
          "reclaim",
          [](const PyGrowing& self) {
            return self.with([](RawGrowing& array) { return array.reclaim(); });
          },
          "Free pending pages whose last users are done. Returns the bytes.")
      .def("slice", &part_of, nb::arg("first"), nb::arg("count"),
           "Return elements [first, first + count) in the same memory.")
      .def_prop_ro(
          "array",
          [](const PyGrowing& self) { return PyArray(self.all(), self.dtype(), self.device()); },
          "The elements of now as an Array in the same memory.")
      .def_prop_ro(
          "buffer", [](const PyGrowing& self) { return self.buffer(); },
          "The elements of now as a Buffer in the same memory.")
      .def(
          "to_numpy",
          [](const PyGrowing& self) { return nb::cast(self.buffer()).attr("to_numpy")(); },
          "Return an independent NumPy array with the elements.")
      .def_prop_ro(
          "shape",
          [](const PyGrowing& self) {
            return nb::make_tuple(statistics_of(self).size_bytes / self.width());
          },
          "The number of elements, as a tuple.")
      .def_prop_ro(
          "dtype", [](const PyGrowing& self) { return object_of_dtype(self.dtype()); },
          "The type of an element.")
      .def_prop_ro(
          "size",
          [](const PyGrowing& self) { return statistics_of(self).size_bytes / self.width(); },
          "The number of elements.")
      .def_prop_ro(
          "nbytes", [](const PyGrowing& self) { return statistics_of(self).size_bytes; },
          "The number of bytes.")
      .def_prop_ro(
          "capacity",
          [](const PyGrowing& self) {
            return self.with([](RawGrowing& array) { return array.capacity_bytes(); }) /
                   self.width();
          },
          "The number of elements for which there is memory.")
      .def_prop_ro(
          "max_size",
          [](const PyGrowing& self) {
            return self.with([](RawGrowing& array) { return array.max_bytes(); }) / self.width();
          },
          "The number of elements that the array can have at most.")
      .def_prop_ro(
          "resident_bytes",
          [](const PyGrowing& self) { return statistics_of(self).resident_bytes; },
          "The memory that the array holds, which a budget is charged.")
      .def_prop_ro(
          "pending_bytes", [](const PyGrowing& self) { return statistics_of(self).pending_bytes; },
          "The part of resident_bytes that is freed once its last users are done.")
      .def_prop_ro(
          "reserved_bytes",
          [](const PyGrowing& self) { return statistics_of(self).reserved_bytes; },
          "The addresses, which take no memory.")
      .def_prop_ro(
          "moved_bytes", [](const PyGrowing& self) { return statistics_of(self).moved.bytes; },
          "The bytes that were copied to new memory: 0 on devices with virtual memory.")
      .def_prop_ro(
          "device", [](const PyGrowing& self) { return self.device(); }, "The device.")
      .def_prop_ro(
          "ptr",
          [](const PyGrowing& self) {
            return reinterpret_cast<std::uintptr_t>(self.all().address());
          },
          "The address of the first element; 0 without elements.")
      .def("__len__",
           [](const PyGrowing& self) { return statistics_of(self).size_bytes / self.width(); })
      .def("__repr__", [](const PyGrowing& self) {
        return nb::str("GrowingArray(size={}, dtype={}, device='{}')")
            .format(statistics_of(self).size_bytes / self.width(), object_of_dtype(self.dtype()),
                    std::string(self.device().spec()));
      });
}

// --- Scalar

void set(const PyScalar& self, nb::handle value, nb::handle stream) {
  const Pattern element = pattern_of(value, self.dtype());
  const StreamArgument on(stream, self.device());
  const CallSite site = here();
  ArrayHandle raw(self.value());
  static_cast<void>(without_gil([&] {
                      return raw->try_put(element.bytes, raw->size_bytes(), on.get(), site);
                    }).value());
}

PyScalar make_scalar(nb::handle value, nb::handle dtype, nb::handle device, nb::handle stream,
                     const std::optional<std::string>& tag) {
  const DType element = dtype.is_none() ? DType::f32 : dtype_of_object(dtype);
  const Device on = device_of_object(device);
  StorageOptions options;
  options.tag = tag_of(tag);
  options.site = here();
  RawArray raw = without_gil([&] {
                   return RawArray::try_allocate(on, 1, size_bytes(element), options);
                 }).value();
  PyScalar made(std::move(raw), element, on);
  if (!value.is_none()) set(made, value, stream);
  return made;
}

nb::object get(const PyScalar& self, nb::handle stream) {
  nb::object array = numpy().attr("empty")(1, object_of_dtype(self.dtype()));
  void* const address = address_of(array);
  const StreamArgument on(stream, self.device());
  const CallSite site = here();
  ArrayHandle raw(self.value());
  without_gil([&] { return raw->try_get(address, raw->size_bytes(), on.get(), site); }).value();
  return array.attr("item")();
}

void add_scalar(nb::module_& module) {
  nb::class_<PyScalar>(module, "Scalar",
                       "One value in memory of a device, which streams set and get in their "
                       "order.\n\n"
                       "Parameters\n----------\n"
                       "value : number, optional\n    By default the scalar has no value.\n"
                       "dtype : dtype-like, default float32\n"
                       "device : Device or str, optional\n    By default the current device.\n"
                       "stream : Stream, optional\n    Sets the value.\n"
                       "tag : str, optional\n    A name for reports.")
      .def(nb::new_(&make_scalar), nb::arg("value") = nb::none(), nb::arg("dtype") = nb::none(),
           nb::arg("device") = nb::none(), nb::arg("stream") = nb::none(), nb::kw_only(),
           nb::arg("tag") = nb::none())
      .def("set", &set, nb::arg("value"), nb::arg("stream") = nb::none(),
           "Set the value, in stream order. The host does not wait.")
      .def("get", &get, nb::arg("stream") = nb::none(),
           "Return the value that earlier work of the stream leaves, as a Python number. Waits for "
           "that work.\n\n"
           "Raises NeverWrittenError before the first set().")
      .def_prop_ro(
          "array",
          [](const PyScalar& self) { return PyArray(self.value(), self.dtype(), self.device()); },
          "The value as an Array of one element in the same memory.")
      .def_prop_ro(
          "dtype", [](const PyScalar& self) { return object_of_dtype(self.dtype()); },
          "The type of the value.")
      .def_prop_ro(
          "device", [](const PyScalar& self) { return self.device(); }, "The device.")
      .def("__repr__", [](const PyScalar& self) {
        return nb::str("Scalar(dtype={}, device='{}')")
            .format(object_of_dtype(self.dtype()), std::string(self.device().spec()));
      });
}

}  // namespace

void add_growing(nb::module_& module) {
  add_growing_array(module);
  add_scalar(module);
}

}  // namespace tern::python
