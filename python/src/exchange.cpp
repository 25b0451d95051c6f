// Exchange with other libraries: DLPack both ways, and the CUDA Array Interface.
//
// The rules are those of the array API standard. A capsule is renamed before anything that can
// fail, so that its memory is released once.

#include "exchange.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <cstdint>
#include <optional>

#include "devices.hpp"
#include "tern/backends/catalog.hpp"
#include "tern/buffer/copy.hpp"
#include "tern/interop/cuda_array_interface.hpp"
#include "tern/interop/dlpack.hpp"

namespace tern::python {
namespace {

constexpr std::uint64_t flag_is_copied = 2;
constexpr int dl_cpu = 1, dl_cuda = 2, dl_cuda_host = 3, dl_ext = 12, dl_cuda_managed = 13;
constexpr const char *versioned_name = "dltensor_versioned",
                     *used_versioned_name = "used_dltensor_versioned";
constexpr const char *legacy_name = "dltensor", *used_legacy_name = "used_dltensor";

PyObject* copy_required_error = nullptr;

[[noreturn]] void reject(const char* reason) {
  raise(Failure(ErrorCode::dlpack_rejected, "{reason}").with("reason", reason), here());
}

[[noreturn]] void require_copy(const char* reason) {
  PyErr_SetString(copy_required_error, reason);
  nb::raise_python_error();
}

template <class Managed>
void release_unused(PyObject* capsule, const char* name) {
  if (PyCapsule_IsValid(capsule, name) == 0) return;  // consumed
  PyObject *type = nullptr, *value = nullptr, *trace = nullptr;
  PyErr_Fetch(&type, &value, &trace);
  auto* const managed = static_cast<Managed*>(PyCapsule_GetPointer(capsule, name));
  if (managed != nullptr && managed->deleter != nullptr) managed->deleter(managed);
  PyErr_Restore(type, value, trace);
}

void release_versioned(PyObject* capsule) {
  release_unused<abi::DLManagedTensorVersioned>(capsule, versioned_name);
}
void release_legacy(PyObject* capsule) {
  release_unused<abi::DLManagedTensor>(capsule, legacy_name);
}

bool wants_version(nb::handle max_version) {
  if (max_version.is_none()) return false;
  if (!nb::isinstance<nb::tuple>(max_version) || PyTuple_Size(max_version.ptr()) != 2) {
    refuse_value("max_version is a tuple of two integers");
  }
  const nb::object major = max_version[0], minor = max_version[1];
  if (!PyLong_Check(major.ptr()) || !PyLong_Check(minor.ptr())) {
    refuse_value("max_version is a tuple of two integers");
  }
  return nb::cast<std::int64_t>(major) >= 1;
}

std::optional<bool> copy_of(nb::handle copy) {
  if (copy.is_none()) return {};
  if (!PyBool_Check(copy.ptr())) refuse_value("copy is True, False or None");
  return copy.is(Py_True);
}

/// The consumer's stream: a reference, or a request not to order anything.
struct Consumer {
  std::optional<PyStream> borrowed;
  StreamRef stream;
  bool is_unordered = false;
};

Consumer consumer_of(nb::handle stream, const abi::DLDevice& device, const Device& tern_device) {
  Consumer made;
  if (!stream.is_none() && (!PyLong_Check(stream.ptr()) || PyBool_Check(stream.ptr()))) {
    refuse_value("stream is None or an integer");
  }
  int overflow = 0;
  const long long number =
      stream.is_none() ? 0 : PyLong_AsLongLongAndOverflow(stream.ptr(), &overflow);
  if (overflow != 0 || number < -1)
    refuse_value("stream is None, -1, 1, 2 or a handle of the driver");
  if (number == -1 && !stream.is_none()) {
    made.is_unordered = device.device_type != dl_cpu;
    return made;
  }
  switch (static_cast<int>(device.device_type)) {
    case dl_cpu:
    case dl_cuda_host:
      if (!stream.is_none()) refuse_value("memory of the host has no streams: pass stream=None");
      return made;  // the host waits
    case dl_cuda_managed:
      if (stream.is_none()) return made;
      break;
    default:
      if (stream.is_none()) {
        made.stream = tern_device.default_stream();
        return made;
      }
  }
  if (number == 0)
    refuse_value(
        "stream 0 is ambiguous: pass 1 for the legacy default stream, or 2 for the per-thread one");
  if (number == 1) {
    made.stream = tern_device.default_stream();
    return made;
  }
  made.borrowed.emplace(stream, tern_device);
  made.stream = made.borrowed->get();
  return made;
}

Buffer copy_on_device(const Buffer& buffer, StreamRef stream) {
  const CallSite site = here();
  const StreamRef on = stream.id() ? stream : buffer.device().default_stream();
  Buffer made = without_gil([&] { return buffer.try_clone(on, site); }).value();
  return made;
}

Buffer copy_to_host(const Buffer& buffer) {
  const CallSite site = here();
  const Device host = try_open_device("host").value(site);
  Buffer made = Buffer::try_allocate(host, buffer.shape(), buffer.dtype(),
                                     {.contents = Contents::unspecified, .site = site})
                    .value();
  void* const address = reinterpret_cast<void*>(made.try_address().value(site));
  without_gil([&] { return buffer.try_copy_to(address, buffer.size_bytes(), site); }).value();
  return made;
}

/// Renames the capsule and returns the structure. Fails if the capsule is used.
template <class Managed>
Managed* take(nb::handle capsule, const char* name, const char* used_name) {
  auto* const managed = static_cast<Managed*>(PyCapsule_GetPointer(capsule.ptr(), name));
  if (managed == nullptr) nb::raise_python_error();
  if (PyCapsule_SetName(capsule.ptr(), used_name) != 0) nb::raise_python_error();
  if (PyCapsule_SetDestructor(capsule.ptr(), nullptr) != 0) nb::raise_python_error();
  return managed;
}

nb::object call_dlpack(nb::handle producer, int device_type) {
  const nb::object method = producer.attr("__dlpack__");
  const nb::tuple version = nb::make_tuple(1, 3);
  const bool has_stream = device_type == dl_cuda || device_type == dl_cuda_managed;
  try {
    return has_stream ? method(nb::arg("stream") = 1, nb::arg("max_version") = version)
                      : method(nb::arg("max_version") = version);
  } catch (nb::python_error& error) {
    if (!error.matches(PyExc_TypeError)) throw;
  }
  // A producer of an older standard.
  return has_stream ? method(nb::arg("stream") = 1) : method();
}

Device device_of_dlpack(int type, int number) {
  const CallSite site = here();
  switch (type) {
    case dl_cpu:
      return try_open_device("host").value(site);
    case dl_cuda:
      return try_open_device("cuda:" + std::to_string(number)).value(site);
    case dl_cuda_host:
    case dl_cuda_managed:
      return try_open_device("cuda:0").value(site);
    case dl_ext:
      return try_open_device("sim:" + std::to_string(number)).value(site);
    default:
      reject("the tensor is on a device that Tern does not know");
  }
}

nb::object from_dlpack(nb::handle producer, nb::handle device, nb::handle copy) {
  const std::optional<bool> must_copy = copy_of(copy);
  if (!nb::hasattr(producer, "__dlpack__") || !nb::hasattr(producer, "__dlpack_device__")) {
    raise(Failure(ErrorCode::type_mismatch,
                  "{actual} has no __dlpack__ and __dlpack_device__. Use from_arrow(x) for Arrow "
                  "data and x.device for a "
                  "UnifiedBuffer, or copy the elements with Buffer.from_numpy(x).")
              .with("actual", type_text(producer)),
          here());
  }
  const nb::object place = producer.attr("__dlpack_device__")();
  constexpr const char* wrong_place = "__dlpack_device__() did not return two integers";
  if (PySequence_Check(place.ptr()) == 0) refuse_type(wrong_place);
  if (nb::len(place) != 2) refuse_value(wrong_place);
  const int type = nb::cast<int>(index_of(nb::object(place[0]), wrong_place));
  const int number = nb::cast<int>(index_of(nb::object(place[1]), wrong_place));
  const Device source = nb::isinstance<Device>(device) && type != dl_cpu
                            ? nb::cast<Device>(device)
                            : device_of_dlpack(type, number);
  const nb::object capsule = call_dlpack(producer, type);
  if (PyCapsule_CheckExact(capsule.ptr()) == 0)
    refuse_type("__dlpack__() did not return a capsule");
  const CallSite site = here();
  DlpackOptions options;
  options.site = site;
  if (type == dl_cuda || type == dl_cuda_managed || type == dl_ext) {
    options.stream = source.default_stream();
  } else {
    options.is_complete = true;
  }
  Result<StridedBuffer> imported = [&] {
    const char* const name = PyCapsule_GetName(capsule.ptr());
    if (name != nullptr && std::string_view(name) == versioned_name) {
      auto* const tensor =
          take<abi::DLManagedTensorVersioned>(capsule, versioned_name, used_versioned_name);
      return without_gil([&] { return try_import_dlpack(source, tensor, options); });
    }
    if (name != nullptr && std::string_view(name) == legacy_name) {
      auto* const tensor = take<abi::DLManagedTensor>(capsule, legacy_name, used_legacy_name);
      return without_gil([&] { return try_import_dlpack(source, tensor, options); });
    }
    reject("the capsule was consumed before, or is no DLPack capsule");
  }();
  StridedBuffer tensor = std::move(imported).value();
  if (must_copy.value_or(false)) {
    Buffer contiguous =
        without_gil([&] { return tensor.try_contiguous(source.default_stream(), site); }).value();
    return nb::cast(copy_on_device(contiguous, source.default_stream()));
  }
  if (tensor.is_contiguous()) return nb::cast(tensor.try_buffer(site).value());
  return nb::cast(std::move(tensor));
}

}  // namespace

nb::tuple dlpack_device(const Buffer& buffer) {
  const abi::DLDevice device = try_dlpack_device(*buffer.storage(), here()).value();
  return nb::make_tuple(static_cast<int>(device.device_type), device.device_id);
}

nb::object export_dlpack(const Exported& exported, nb::handle stream, nb::handle max_version,
                         nb::handle dl_device, nb::handle copy) {
  const CallSite site = here();
  const bool has_version = wants_version(max_version);
  const std::optional<bool> must_copy = copy_of(copy);
  Buffer buffer = exported.buffer;
  abi::DLDevice own = try_dlpack_device(*buffer.storage(), site).value();
  std::optional<abi::DLDevice> retagged;
  bool to_host = false;
  if (!dl_device.is_none()) {
    if (!nb::isinstance<nb::tuple>(dl_device) || PyTuple_Size(dl_device.ptr()) != 2) {
      refuse_value("dl_device is a tuple of two integers");
    }
    const int type =
        nb::cast<int>(index_of(nb::object(dl_device[0]), "dl_device is a tuple of two integers"));
    const int number =
        nb::cast<int>(index_of(nb::object(dl_device[1]), "dl_device is a tuple of two integers"));
    const int from = static_cast<int>(own.device_type);
    if (type == from && number == own.device_id) {
      // its own
    } else if (type == dl_cpu && number == 0 && (from == dl_cuda_managed || from == dl_cuda_host)) {
      retagged = abi::DLDevice{dl_cpu, 0};
    } else if (type == dl_cuda && from == dl_cuda_managed) {
      retagged = abi::DLDevice{dl_cuda, number};
    } else if (type == dl_cpu && number == 0) {
      if (must_copy && !*must_copy)
        require_copy("the memory is on a device, and copy=False forbids the copy to the host");
      to_host = true;
    } else {
      reject("the tensor cannot be exported to that device");
    }
  }
  DlpackOptions options;
  options.site = site;
  options.is_read_only = exported.is_read_only;
  bool is_copied = false;
  std::optional<Consumer> consumer;
  if (to_host) {
    if (exported.is_ordered_by_stream && exported.after.id()) {
      without_gil([&] { return exported.after.try_synchronize(site); }).value(site);
    }
    buffer = copy_to_host(buffer);
    options.is_read_only = false;
    is_copied = true;
    own = {dl_cpu, 0};
  } else {
    consumer.emplace(consumer_of(stream, retagged.value_or(own), buffer.device()));
    if (must_copy.value_or(false)) {
      buffer = copy_on_device(buffer, consumer->stream);
      options.is_read_only = false;
      is_copied = true;
    }
    options.stream = consumer->stream;
    options.is_unordered = consumer->is_unordered;
    if (exported.is_ordered_by_stream && !is_copied) {
      options.is_unordered = true;
      if (!consumer->is_unordered && exported.after.id()) {
        const Mark mark = exported.after.try_mark().value(site);
        if (consumer->stream.id()) {
          without_gil([&] { return consumer->stream.try_wait(mark, site); }).value();
        } else {
          without_gil([&] { return Device::try_wait(mark, site); }).value(site);
        }
      }
    }
  }
  if (has_version) {
    abi::DLManagedTensorVersioned* const tensor =
        without_gil([&] { return try_export_dlpack(buffer, options); }).value();
    if (is_copied) tensor->flags |= flag_is_copied;
    if (retagged) tensor->dl_tensor.device = *retagged;
    nb::object capsule = nb::steal(PyCapsule_New(tensor, versioned_name, release_versioned));
    if (!capsule.is_valid()) {
      tensor->deleter(tensor);
      nb::raise_python_error();
    }
    return capsule;
  }
  if (options.is_read_only)
    reject("read-only memory needs a versioned structure: pass max_version=(1, 0), or copy=True");
  abi::DLManagedTensor* const tensor =
      without_gil([&] { return try_export_dlpack_legacy(StridedBuffer(buffer), options); }).value();
  if (retagged) tensor->dl_tensor.device = *retagged;
  nb::object capsule = nb::steal(PyCapsule_New(tensor, legacy_name, release_legacy));
  if (!capsule.is_valid()) {
    tensor->deleter(tensor);
    nb::raise_python_error();
  }
  return capsule;
}

nb::dict cuda_array_interface(const Exported& exported) {
  const Buffer& buffer = exported.buffer;
  if (!buffer.device().spec().starts_with("cuda")) {
    throw nb::attribute_error("only memory of CUDA devices has __cuda_array_interface__");
  }
  const CallSite site = here();
  const Result<std::string> type = try_typestr(buffer.dtype(), site);
  if (!type) throw nb::attribute_error("the dtype has no type string");
  if (!exported.is_ordered_by_stream) {
    // The stream waits for all pending writes, and the consumer for the stream.
    const Access access = exported.is_read_only ? Access::read : Access::read_write;
    without_gil([&] { return buffer.try_device_ptr(exported.after, access, site); }).value();
  }
  nb::dict made;
  made["shape"] = tuple_of(buffer.shape());
  made["typestr"] = nb::str(type->c_str());
  const std::uintptr_t address = buffer.size_bytes() == 0 ? 0 : buffer.try_address().value(site);
  made["data"] = nb::make_tuple(address, exported.is_read_only);
  made["version"] = 3;
  made["strides"] = nb::none();
  made["stream"] = nb::none();
  if (exported.after.id()) {
    const std::uintptr_t handle =
        released([&] { return exported.after.try_native(); }).value(site).value;
    made["stream"] = handle == 0 ? std::uintptr_t{1} : handle;
  }
  return made;
}

void add_exchange(nb::module_& module) {
  const nb::object rejected = module.attr("DlpackRejectedError");
  const nb::object bases = nb::make_tuple(rejected, nb::handle(PyExc_ValueError));
  copy_required_error = PyErr_NewExceptionWithDoc(
      "ternmem.CopyRequiredError", "An exchange needs a copy, and ``copy=False`` forbids it.",
      bases.ptr(), nullptr);
  if (copy_required_error == nullptr) nb::raise_python_error();
  module.attr("CopyRequiredError") = nb::handle(copy_required_error);
  module.def("from_dlpack", &from_dlpack, nb::arg("x"), nb::kw_only(),
             nb::arg("device") = nb::none(), nb::arg("copy") = nb::none(),
             "Import a tensor of another library without a copy.\n\n"
             "Parameters\n----------\n"
             "x : object\n    With ``__dlpack__`` and ``__dlpack_device__``, such as an array of "
             "NumPy, CuPy, JAX or torch.\n"
             "device : Device, optional\n    The device that owns the memory. By default the device "
             "with the number that the tensor names.\n"
             "copy : bool, optional\n    True always copies. False raises CopyRequiredError if a "
             "copy is needed.\n\n"
             "Returns\n-------\n"
             "Buffer or StridedBuffer\n    A StridedBuffer if the elements are not adjacent.");
}

}  // namespace tern::python
