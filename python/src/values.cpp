// Dtypes, shapes and values of elements: from Python's and NumPy's objects, and back.

#include <array>
#include <cstring>
#include <vector>

#include "support.hpp"

namespace tern::python {
namespace {

constexpr std::size_t dtype_count = static_cast<std::size_t>(DType::index) + 1;

/// NumPy's name of the dtype; null if only ml_dtypes has it.
const char* numpy_name(DType dtype) noexcept {
  switch (dtype) {
    case DType::byte:
    case DType::u8:
      return "uint8";
    case DType::boolean:
      return "bool";
    case DType::i8:
      return "int8";
    case DType::i16:
      return "int16";
    case DType::i32:
      return "int32";
    case DType::i64:
      return "int64";
    case DType::u16:
      return "uint16";
    case DType::u32:
      return "uint32";
    case DType::u64:
    case DType::index:
      return "uint64";
    case DType::f16:
      return "float16";
    case DType::f32:
      return "float32";
    case DType::f64:
      return "float64";
    case DType::complex64:
      return "complex64";
    case DType::complex128:
      return "complex128";
    case DType::void_:
    case DType::bf16:
    case DType::f8_e4m3fn:
    case DType::f8_e5m2:
      break;
  }
  return nullptr;
}

const char* ml_dtypes_name(DType dtype) noexcept {
  switch (dtype) {
    case DType::bf16:
      return "bfloat16";
    case DType::f8_e4m3fn:
      return "float8_e4m3fn";
    case DType::f8_e5m2:
      return "float8_e5m2";
    default:
      return nullptr;
  }
}

/// The NumPy dtypes, by DType. Made on first use and never freed, because the interpreter may be
/// gone when a static object is destroyed.
struct Dtypes {
  std::array<PyObject*, dtype_count> objects = {};

  Dtypes() {
    const nb::object make = numpy().attr("dtype");
    for (std::size_t i = 0; i < dtype_count; ++i) {
      const char* const name = numpy_name(static_cast<DType>(i));
      if (name != nullptr) objects[i] = make(nb::str(name)).release().ptr();
    }
    const nb::object more = nb::steal(PyImport_ImportModule("ml_dtypes"));
    if (!more.is_valid()) {
      PyErr_Clear();
      return;
    }
    for (std::size_t i = 0; i < dtype_count; ++i) {
      const char* const name = ml_dtypes_name(static_cast<DType>(i));
      if (name != nullptr) objects[i] = make(more.attr(name)).release().ptr();
    }
  }
};

Dtypes& dtypes() {
  static constinit std::atomic<Dtypes*> kept = nullptr;
  return made_once(kept, [] { return Dtypes(); });
}

[[noreturn]] void refuse_dtype(nb::handle object, const char* why) {
  raise(Failure(
            ErrorCode::type_mismatch,
            "{actual} is not an element type of Tern: {why}. Use bool, an integer of 8 to 64 bits, "
            "float16, bfloat16, float8, float32, float64, complex64 or complex128.")
            .with("actual", repr_of(object))
            .with("why", why),
        here());
}

[[noreturn]] void refuse_shape(nb::handle object) {
  PyErr_Clear();
  const bool is_array = nb::hasattr(object, "__array__") || nb::hasattr(object, "__dlpack__") ||
                        PySequence_Check(object.ptr()) != 0;
  raise(Failure(ErrorCode::type_mismatch,
                "a shape is an integer or a sequence of integers, and not {actual}.{advice}")
            .with("actual", type_text(object))
            .with("advice",
                  is_array ? " To copy an array, call Buffer.from_numpy(array) or copy_from(array)."
                           : ""),
        here());
}

}  // namespace

std::string escaped_utf8_of(nb::handle text) {
  const nb::object bytes =
      nb::steal(PyUnicode_AsEncodedString(text.ptr(), "utf-8", "backslashreplace"));
  if (!bytes.is_valid()) nb::raise_python_error();
  return {PyBytes_AsString(bytes.ptr()), static_cast<std::size_t>(PyBytes_Size(bytes.ptr()))};
}

namespace {

nb::str decoded(std::string_view bytes, const char* wrong_bytes) {
  nb::object made = nb::steal(
      PyUnicode_DecodeUTF8(bytes.data(), static_cast<Py_ssize_t>(bytes.size()), wrong_bytes));
  if (!made.is_valid()) nb::raise_python_error();
  return nb::borrow<nb::str>(made);
}

}  // namespace

nb::str text_of(std::string_view bytes) { return decoded(bytes, "surrogateescape"); }
nb::str message_of(std::string_view bytes) { return decoded(bytes, "backslashreplace"); }

std::string repr_of(nb::handle object) { return escaped_utf8_of(nb::repr(object)); }

nb::module_ numpy() { return nb::module_::import_("numpy"); }

nb::object object_of_dtype(DType dtype) {
  PyObject* const known = dtypes().objects[static_cast<std::size_t>(dtype)];
  if (known != nullptr) return nb::borrow(known);
  const std::string_view text = name(dtype);
  return nb::str(text.data(), text.size());
}

bool numpy_has(DType dtype) { return dtypes().objects[static_cast<std::size_t>(dtype)] != nullptr; }

DType dtype_of_object(nb::handle object) {
  const Dtypes& known = dtypes();
  for (std::size_t i = 0; i < dtype_count; ++i) {
    if (known.objects[i] == object.ptr() && object.ptr() != nullptr) {
      // uint8 and uint64 have two Tern types each; elements are numbers here.
      return i == static_cast<std::size_t>(DType::byte)    ? DType::u8
             : i == static_cast<std::size_t>(DType::index) ? DType::u64
                                                           : static_cast<DType>(i);
    }
  }
  nb::object dtype;
  try {
    dtype = numpy().attr("dtype")(object);
  } catch (nb::python_error& error) {
    error.restore();
    PyErr_Clear();
    // NumPy comes first, because its 'i8' has eight bytes and that of Tern has eight bits.
    if (nb::isinstance<nb::str>(object)) {
      const Result<DType> parsed = try_parse_dtype(escaped_utf8_of(object));
      if (parsed && *parsed != DType::void_) return *parsed;
    }
    refuse_dtype(object, "NumPy does not know it either");
  }
  for (std::size_t i = 0; i < dtype_count; ++i) {
    if (known.objects[i] == nullptr || i == static_cast<std::size_t>(DType::byte) ||
        i == static_cast<std::size_t>(DType::index)) {
      continue;
    }
    if (nb::handle(known.objects[i]).equal(dtype)) return static_cast<DType>(i);
  }
  if (!dtype.attr("names").is_none()) refuse_dtype(object, "it is structured");
  if (!nb::cast<bool>(dtype.attr("isnative"))) refuse_dtype(object, "its byte order is foreign");
  refuse_dtype(object, "it has no equivalent");
}

const char* format_of(DType dtype) noexcept {
  switch (dtype) {
    case DType::boolean:
      return "?";
    case DType::i8:
      return "b";
    case DType::i16:
      return "h";
    case DType::i32:
      return "i";
    case DType::i64:
      return "q";
    case DType::byte:
    case DType::u8:
      return "B";
    case DType::u16:
      return "H";
    case DType::u32:
      return "I";
    case DType::u64:
    case DType::index:
      return "Q";
    case DType::f16:
      return "e";
    case DType::f32:
      return "f";
    case DType::f64:
      return "d";
    case DType::complex64:
      return "Zf";
    case DType::complex128:
      return "Zd";
    case DType::void_:
    case DType::bf16:
    case DType::f8_e4m3fn:
    case DType::f8_e5m2:
      break;
  }
  return nullptr;
}

nb::object converted(nb::handle value, DType dtype) {
  try {
    return numpy().attr("asarray")(value, object_of_dtype(dtype));
  } catch (nb::python_error& error) {
    const bool is_overflow = error.matches(PyExc_OverflowError);
    if (!is_overflow && !error.matches(PyExc_ValueError) && !error.matches(PyExc_TypeError)) throw;
    raise(Failure(is_overflow                      ? ErrorCode::size_overflow
                  : error.matches(PyExc_TypeError) ? ErrorCode::type_mismatch
                                                   : ErrorCode::invalid_argument,
                  "{value} cannot be converted to {dtype}: {why}.")
              .with("value", repr_of(value))
              .with("dtype", repr_of(object_of_dtype(dtype)))
              .with("why", nb::cast<std::string>(nb::str("{}").format(error.value()))),
          here());
  }
}

Pattern pattern_of(nb::handle value, DType dtype) {
  Pattern pattern;
  pattern.width_bytes = size_bytes(dtype);
  if (!numpy_has(dtype)) {
    raise(Failure(ErrorCode::type_mismatch,
                  "NumPy has no type {actual}, so a value cannot be converted. Install ml_dtypes, "
                  "or fill a view of "
                  "unsigned integers of the same size.")
              .with("actual", repr_of(object_of_dtype(dtype))),
          here());
  }
  const nb::object array = converted(value, dtype);
  if (nb::cast<std::size_t>(array.attr("size")) != 1) {
    raise(
        Failure(
            ErrorCode::shape_mismatch,
            "a fill takes one value, and {actual} values were given. Use copy_from() for an array.")
            .with("actual", nb::cast<std::uint64_t>(array.attr("size"))),
        here());
  }
  const nb::object bytes = array.attr("tobytes")();
  std::memcpy(pattern.bytes, PyBytes_AsString(bytes.ptr()), pattern.width_bytes);
  return pattern;
}

nb::object index_of(nb::handle object, const char* text) {
  if (PyIndex_Check(object.ptr()) == 0) refuse_type(text);
  nb::object index = nb::steal(PyNumber_Index(object.ptr()));
  if (!index.is_valid()) nb::raise_python_error();
  return index;
}

Shape shape_of_object(nb::handle object) {
  std::vector<std::int64_t> extents;
  const auto add = [&](nb::handle one) {
    const nb::object index = nb::steal(PyNumber_Index(one.ptr()));
    if (!index.is_valid()) {
      if (PyErr_ExceptionMatches(PyExc_TypeError) != 0) refuse_shape(object);
      nb::raise_python_error();
    }
    const long long extent = PyLong_AsLongLong(index.ptr());
    if (extent == -1 && PyErr_Occurred() != nullptr) {
      PyErr_Clear();
      raise(Failure(ErrorCode::size_overflow).with("what", "an extent of the shape"), here());
    }
    extents.push_back(extent);
  };
  if (PyIndex_Check(object.ptr()) != 0) {
    add(object);
  } else if (!nb::hasattr(object, "__iter__") && PySequence_Check(object.ptr()) == 0) {
    refuse_shape(object);
  } else {
    const nb::object all = nb::steal(PyObject_GetIter(object.ptr()));
    if (!all.is_valid()) nb::raise_python_error();
    for (const nb::handle one : nb::iter(all)) add(one);
  }
  return Shape::try_from(extents).value(here());
}

MemoryKind memory_kind_of(const std::string& text) {
  for (const MemoryKind kind : {MemoryKind::device, MemoryKind::pinned, MemoryKind::managed}) {
    if (name(kind) == text) return kind;
  }
  refuse_choice("kind", text, "'device', 'pinned' or 'managed'");
}

nb::tuple tuple_of(const Shape& shape) {
  nb::object made = nb::steal(PyTuple_New(static_cast<Py_ssize_t>(shape.rank())));
  if (!made.is_valid()) nb::raise_python_error();
  for (std::size_t i = 0; i < shape.rank(); ++i) {
    if (PyTuple_SetItem(made.ptr(), static_cast<Py_ssize_t>(i),
                        PyLong_FromSize_t(shape.extents()[i])) != 0) {
      nb::raise_python_error();
    }
  }
  return nb::borrow<nb::tuple>(made);
}

}  // namespace tern::python
