#include "host_memory.hpp"

#include <string>
#include <utility>

TERN_RELEASE_HANDLE(tern::python::HostMemory)

namespace tern::python {
namespace {

/// An array without bytes needs an address all the same.
std::byte nothing[16];

int get_buffer(PyObject* self, Py_buffer* view, int flags) {
  view->obj = nullptr;
  if (!nb::inst_ready(self)) {
    PyErr_SetString(PyExc_BufferError, "the memory was not initialized.");
    return -1;
  }
  auto& memory = *nb::inst_ptr<HostMemory>(self);
  if ((flags & PyBUF_WRITABLE) != 0 && memory.is_read_only) {
    PyErr_SetString(PyExc_BufferError,
                    "this memory is leased for reading only. Open an rw lease to write.");
    return -1;
  }
  const std::size_t width = size_bytes(memory.dtype);
  Py_ssize_t bytes = static_cast<Py_ssize_t>(width);
  for (const Py_ssize_t extent : memory.extents) bytes *= extent;
  view->buf = memory.address != nullptr ? memory.address : nothing;
  view->len = bytes;
  view->itemsize = static_cast<Py_ssize_t>(width);
  view->readonly = memory.is_read_only ? 1 : 0;
  view->ndim = static_cast<int>(memory.extents.size());
  // bf16 and fp8 have no format; array_over() gives such an array its dtype.
  const char* const format = format_of(memory.dtype);
  view->format = (flags & PyBUF_FORMAT) == 0 ? nullptr
                                             : const_cast<char*>(format != nullptr ? format
                                                                 : width == 1      ? "B"
                                                                                   : "H");
  view->shape = (flags & PyBUF_ND) != 0 ? memory.extents.data() : nullptr;
  view->strides = (flags & PyBUF_STRIDES) == PyBUF_STRIDES ? memory.strides.data() : nullptr;
  view->suboffsets = nullptr;
  view->internal = nullptr;
  Py_INCREF(self);
  view->obj = self;
  return 0;
}

PyType_Slot buffer_slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(get_buffer)}, {0, nullptr}};

PyObject* asarray() {
  static constinit std::atomic<PyObject**> kept = nullptr;
  return made_once(kept, [] { return nb::object(numpy().attr("asarray")).release().ptr(); });
}

}  // namespace

void add_host_memory(nb::module_& module) {
  nb::class_<HostMemory>(module, "HostMemory", nb::type_slots(buffer_slots),
                         "Memory of the host. NumPy arrays over it keep it alive.");
}

nb::object array_over(HostMemory memory) {
  const std::size_t rank = memory.shape.rank();
  memory.extents.resize(rank);
  memory.strides.resize(rank);
  Py_ssize_t stride = static_cast<Py_ssize_t>(size_bytes(memory.dtype));
  for (std::size_t i = rank; i-- > 0;) {
    memory.extents[i] = static_cast<Py_ssize_t>(memory.shape.extents()[i]);
    memory.strides[i] = stride;
    stride *= memory.extents[i];
  }
  const DType dtype = memory.dtype;
  const nb::object exporter = nb::cast(std::move(memory));
  nb::object array = nb::steal(PyObject_CallFunctionObjArgs(asarray(), exporter.ptr(), nullptr));
  if (!array.is_valid()) nb::raise_python_error();
  if (format_of(dtype) == nullptr && numpy_has(dtype))
    array = array.attr("view")(object_of_dtype(dtype));
  return array;
}

void forbid_writing(nb::handle array) { array.attr("flags").attr("writeable") = false; }

nb::object elements_of(nb::handle object, DType dtype, const Shape* shape) {
  const nb::module_ np = numpy();
  nb::object array;
  const bool is_foreign = nb::hasattr(object, "__dlpack__") && !nb::hasattr(object, "__array__");
  if (nb::hasattr(object, "__dlpack_device__") && nb::hasattr(object, "to_numpy")) {
    // A Buffer, perhaps of a device whose memory the host cannot read.
    array = object.attr("to_numpy")();
  } else if (is_foreign) {
    array = np.attr("from_dlpack")(object);
  } else {
    array = np.attr("asarray")(object);
    // Python integers have no width of their own, so those that fit are taken for any integer type.
    // NumPy makes objects of integers that fit into none.
    const bool is_plain = nb::isinstance<nb::list>(object) || nb::isinstance<nb::tuple>(object) ||
                          nb::isinstance<nb::int_>(object);
    const auto is_of = [](const nb::object& type, const std::string& kinds) {
      return kinds.find(nb::cast<std::string>(type.attr("kind"))) != std::string::npos;
    };
    if (is_plain && numpy_has(dtype) && is_of(object_of_dtype(dtype), "iu") &&
        is_of(array.attr("dtype"), "iuO")) {
      array = converted(object, dtype);
    }
  }
  if (shape != nullptr) {
    const nb::tuple wanted = tuple_of(*shape);
    if (!array.attr("shape").equal(wanted)) {
      raise(
          Failure(ErrorCode::shape_mismatch,
                  "the elements have the shape {actual}, and the buffer has {expected}. Nothing is "
                  "broadcast: reshape the elements first.")
              .with("actual", repr_of(array.attr("shape")))
              .with("expected", repr_of(wanted)),
          here());
    }
  }
  const nb::object target = object_of_dtype(dtype);
  if (!numpy_has(dtype) ||
      !nb::cast<bool>(np.attr("can_cast")(array.attr("dtype"), target, "same_kind"))) {
    raise(Failure(ErrorCode::type_mismatch,
                  "elements of {actual} cannot be copied to {expected}, because the cast is not of "
                  "the same kind. "
                  "Convert them first, with array.astype('{expected}').")
              .with("actual", nb::cast<std::string>(nb::str("{}").format(array.attr("dtype"))))
              .with("expected", nb::cast<std::string>(nb::str("{}").format(target))),
          here());
  }
  return np.attr("ascontiguousarray")(array, target).attr("reshape")(array.attr("shape"));
}

void* address_of(nb::handle array) {
  return reinterpret_cast<void*>(nb::cast<std::uintptr_t>(array.attr("ctypes").attr("data")));
}

}  // namespace tern::python
