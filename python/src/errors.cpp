// Exceptions: each error code is a class that is both ternmem.Error and the built-in exception that
// Python programs expect.

#include <array>
#include <string>
#include <string_view>
#include <typeinfo>
#include <utility>

#include "support.hpp"

namespace tern::python {
namespace {

constexpr std::size_t code_count = 0
#define TERN_CODE(code, name, base) +1
    TERN_FOR_EACH_ERROR_CODE(TERN_CODE)
#undef TERN_CODE
    ;

PyObject* error_class = nullptr;
std::array<PyObject*, code_count> classes = {};

/// "out_of_memory" becomes "OutOfMemoryError".
std::string class_name(std::string_view code) {
  if (code == "sync_failed") return "SyncError";
  std::string made;
  bool is_first = true;
  for (const char letter : code) {
    if (letter == '_') {
      is_first = true;
    } else {
      made += is_first ? static_cast<char>(letter - 'a' + 'A') : letter;
      is_first = false;
    }
  }
  return made + "Error";
}

/// The built-in exception of a code, or null.
PyObject* builtin_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::size_overflow:
      return PyExc_OverflowError;
    case ErrorCode::invalid_argument:
    case ErrorCode::misaligned:
    case ErrorCode::size_mismatch:
    case ErrorCode::shape_mismatch:
    case ErrorCode::never_written:
    case ErrorCode::read_only:
    case ErrorCode::device_mismatch:
    case ErrorCode::invalid_device:
    case ErrorCode::bad_format:
      return PyExc_ValueError;
    case ErrorCode::invalid_view:
    case ErrorCode::out_of_bounds:
      return PyExc_IndexError;
    case ErrorCode::type_mismatch:
      return PyExc_TypeError;
    case ErrorCode::not_allocated:
    case ErrorCode::not_host_accessible:
    case ErrorCode::dlpack_rejected:
    case ErrorCode::arrow_rejected:
      return PyExc_BufferError;
    case ErrorCode::out_of_memory:
      return PyExc_MemoryError;
    case ErrorCode::unsupported:
      return PyExc_NotImplementedError;
    case ErrorCode::timeout:
      return PyExc_TimeoutError;
    case ErrorCode::not_found:
      return PyExc_LookupError;
    case ErrorCode::peer_lost:
      return PyExc_ConnectionError;
    case ErrorCode::file:
      return PyExc_OSError;
    default:
      return nullptr;
  }
}

const char* doc_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::size_overflow:
      return "A size in bytes does not fit into 64 bits.";
    case ErrorCode::invalid_argument:
      return "An argument has a value that the call does not allow.";
    case ErrorCode::invalid_view:
      return "A part lies outside of its buffer.";
    case ErrorCode::misaligned:
      return "An address or an offset is not aligned for the element type.";
    case ErrorCode::size_mismatch:
      return "Two sizes differ that must be equal.";
    case ErrorCode::shape_mismatch:
      return "Two shapes differ that must be equal.";
    case ErrorCode::type_mismatch:
      return "An argument has a type or a dtype that the call does not accept.";
    case ErrorCode::not_allocated:
      return "The object has no memory, or its lease is closed.";
    case ErrorCode::never_written:
      return "A read of elements that were never written.";
    case ErrorCode::not_host_accessible:
      return "The host cannot use this memory. Copy it with to_numpy().";
    case ErrorCode::read_only:
      return "A write to memory that must not be written.";
    case ErrorCode::out_of_memory:
      return "The device or the host has too little free memory.";
    case ErrorCode::out_of_budget:
      return "A request does not fit into a Budget.";
    case ErrorCode::use_after_free:
      return "Memory is used that was freed before.";
    case ErrorCode::out_of_bounds:
      return "An index is outside of its range.";
    case ErrorCode::stream_misuse:
      return "A stream, a mark or an event is used in a way that the driver does not allow, such "
             "as after close().";
    case ErrorCode::untracked_buffer:
      return "Tern cannot track the use of this memory.";
    case ErrorCode::download_refused:
      return "A TransferGate refuses a copy from a device to the host.";
    case ErrorCode::device_mismatch:
      return "Objects of two devices are used together.";
    case ErrorCode::invalid_device:
      return "A device does not exist, or its backend is not available.";
    case ErrorCode::unsupported:
      return "The device or this build does not support the operation.";
    case ErrorCode::sync_failed:
      return "A copy between the host and a device failed.";
    case ErrorCode::coherence_conflict:
      return "The host and the device have both written the same bytes.";
    case ErrorCode::access_conflict:
      return "Another lease of the same bytes is open. Close it first.";
    case ErrorCode::dlpack_rejected:
      return "A tensor cannot be exchanged with DLPack.";
    case ErrorCode::arrow_rejected:
      return "Data cannot be exchanged with Arrow.";
    case ErrorCode::capacity:
      return "A fixed capacity is exhausted.";
    case ErrorCode::timeout:
      return "A wait took longer than its limit.";
    case ErrorCode::not_found:
      return "A name does not exist, such as that of a column or a kernel.";
    case ErrorCode::after_fork:
      return "A device that was opened before a fork is used in the child.";
    case ErrorCode::after_shutdown:
      return "Tern is used after its shutdown.";
    case ErrorCode::device_lost:
      return "The device failed and cannot be used any more.";
    case ErrorCode::peer_lost:
      return "The other process of a SharedArray has ended, or has closed the array.";
    case ErrorCode::file:
      return "An operation on a file failed.";
    case ErrorCode::bad_format:
      return "A file or a text does not have the expected format.";
    case ErrorCode::violation:
      return "A checker found an error, such as a missing wait. The message is the report.";
    case ErrorCode::driver:
      return "A call of the driver failed.";
  }
  return "";
}

/// Messages of the library name C++ options. Python has these options under other names.
std::string python_text(std::string text) {
  constexpr std::pair<std::string_view, std::string_view> words[] = {
      {"Contents::zero", "contents='zero'"},
      {"Contents::unspecified", "contents='unspecified'"},
      {"sim::open()", "sim.open()"},
      {"sim::findings()", "sim.findings()"},
      {"Mode::allow", "mode='allow'"},
      {"ensure_allocated()", "allocate()"},
      {"Drop::discard", "free()"},
      {"Access::discard", "a discard lease"},
      {"Access::read_write", "an rw lease"},
      {"UnifiedOptions::device", "the argument device"},
      {"HintOptions::strict", "the argument strict"},
      {"PausableOptions::directory", "the argument directory"},
      {"allocate(MemoryKind::managed)", "kind='managed'"},
      {"MemoryKind::managed", "kind='managed'"},
      {"MemoryKind::device", "kind='device'"},
      {"Pinned::prefer", "pinned='prefer'"},
      {"Pinned::required", "pinned=True"},
      {"Device::place()", "a Device"},
      {"Device::can", "Device.capabilities"},
      {"Column::pack", "Column.pack"},
      {"`tern info` lists", "Device.capabilities lists"},
      {"`tern info --all` lists", "Device.capabilities lists"},
      {"Set the body of the kernel.", "Use Kernel.from_function()."},
      {"Set the text of the kernel.", "Use Kernel.from_source()."},
      {"Export an ArrowDeviceArray, or a copy on the host.", "Copy the data to the host first."}};
  for (const auto& [cpp, python] : words) {
    for (std::size_t at = text.find(cpp); at != std::string::npos;
         at = text.find(cpp, at + python.size())) {
      text.replace(at, cpp.size(), python);
    }
  }
  return text;
}

nb::object object_of(const Failure::Field& field) {
  switch (field.unit) {
    case Unit::text:
      return message_of(field.text);
    case Unit::signed_count:
      return nb::int_(static_cast<std::int64_t>(field.number));
    default:
      return nb::int_(field.number);
  }
}

}  // namespace

void raise_in_python(const Error& error) {
  const Failure& failure = error.failure();
  PyObject* const type = classes[static_cast<std::size_t>(failure.code())];
  const nb::object made = nb::borrow(type)(message_of(python_text(std::string(error.text()))));
  for (std::size_t i = 0; i < failure.field_count(); ++i) {
    const Failure::Field field = failure.field(i);
    const std::string name(field.name);
    // A field must not hide what every exception has.
    if (!nb::hasattr(nb::handle(type), name.c_str()))
      nb::setattr(made, name.c_str(), object_of(field));
  }
  const std::string_view code = name(failure.code());
  nb::setattr(made, "code", nb::str(code.data(), code.size()));
  const CallSite site = failure.site();
  if (site.is_known()) {
    nb::setattr(made, "site",
                nb::str((std::string(site.file) + ":" + std::to_string(site.line)).c_str()));
  }
  PyErr_SetObject(type, made.ptr());
}

void refuse_type(const char* text) {
  raise(Failure(ErrorCode::type_mismatch, "{what}.").with("what", text), here());
}
void refuse_value(const char* text) {
  raise(Failure(ErrorCode::invalid_argument, "{what}.").with("what", text), here());
}
void refuse_index(const char* text) {
  raise(Failure(ErrorCode::out_of_bounds, "{what}.").with("what", text), here());
}

void refuse_choice(const char* option, std::string_view given, const char* allowed) {
  raise(Failure(ErrorCode::invalid_argument, "{option} is '{given}'. Use {allowed}.")
            .with("option", option)
            .with("given", given)
            .with("allowed", allowed),
        here());
}

std::string type_text(nb::handle object) { return nb::str(object.type().attr("__name__")).c_str(); }

void add_errors(nb::module_& module) {
  error_class = PyErr_NewExceptionWithDoc(
      "ternmem.Error",
      "The base class of every exception that Tern raises.\n\n"
      "``code`` is the name of the error, such as ``out_of_memory``; ``site`` is the Python line "
      "of\n"
      "the call, if known. The numbers of the message are attributes too.",
      PyExc_RuntimeError, nullptr);
  module.attr("Error") = nb::handle(error_class);
  nb::setattr(nb::handle(error_class), "code", nb::str(""));
  nb::setattr(nb::handle(error_class), "site", nb::none());
  const auto add = [&](ErrorCode code, std::string_view code_name) {
    const std::string short_name = class_name(code_name);
    const std::string full_name = "ternmem." + short_name;
    PyObject* builtin = builtin_of(code);
    nb::object bases;
    if (code == ErrorCode::out_of_budget) {
      bases =
          nb::make_tuple(nb::handle(classes[static_cast<std::size_t>(ErrorCode::out_of_memory)]));
    } else if (builtin != nullptr) {
      bases = nb::make_tuple(nb::handle(error_class), nb::handle(builtin));
    } else {
      bases = nb::make_tuple(nb::handle(error_class));
    }
    PyObject* const made =
        PyErr_NewExceptionWithDoc(full_name.c_str(), doc_of(code), bases.ptr(), nullptr);
    if (made == nullptr) nb::raise_python_error();
    classes[static_cast<std::size_t>(code)] = made;
    module.attr(short_name.c_str()) = nb::handle(made);
  };
#define TERN_CODE(code, name, base) add(ErrorCode::code, #code);
  TERN_FOR_EACH_ERROR_CODE(TERN_CODE)
#undef TERN_CODE
  nb::register_exception_translator([](const std::exception_ptr& thrown, void*) {
    try {
      std::rethrow_exception(thrown);
    } catch (const Error& error) {
      raise_in_python(error);
    } catch (const std::bad_cast&) {
      // An object of another library is not what its protocol says.
      PyErr_SetString(classes[static_cast<std::size_t>(ErrorCode::type_mismatch)],
                      "an object of another library returned a value of an unexpected type.");
    }
  });
}

}  // namespace tern::python
