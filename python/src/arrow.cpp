// Capsules of Arrow. A consumer moves the structure out of its capsule and leaves an empty one, so
// whoever fails afterwards releases each structure once.

#include "arrow.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tern/backends/catalog.hpp"
#include "tern/interop/arrow.hpp"

namespace tern::python {
namespace {

constexpr const char *schema_name = "arrow_schema", *array_name = "arrow_array",
                     *device_array_name = "arrow_device_array";
constexpr const char *stream_name = "arrow_array_stream",
                     *device_stream_name = "arrow_device_array_stream";

[[noreturn]] void reject(const char* reason) {
  raise(Failure(ErrorCode::arrow_rejected, "{reason}").with("reason", reason), here());
}

bool is_released(const ArrowDeviceArray& structure) { return structure.array.release == nullptr; }
template <class Structure>
bool is_released(const Structure& structure) {
  return structure.release == nullptr;
}
void release_structure(ArrowDeviceArray& structure) {
  if (structure.array.release != nullptr) structure.array.release(&structure.array);
}
template <class Structure>
void release_structure(Structure& structure) {
  if (structure.release != nullptr) structure.release(&structure);
}
void forget(ArrowDeviceArray& structure) { structure.array.release = nullptr; }
template <class Structure>
void forget(Structure& structure) {
  structure.release = nullptr;
}

/// The destructor of our capsules.
template <class Structure>
void destroy(PyObject* capsule) {
  PyObject *type = nullptr, *value = nullptr, *trace = nullptr;
  PyErr_Fetch(&type, &value, &trace);
  auto* const structure =
      static_cast<Structure*>(PyCapsule_GetPointer(capsule, PyCapsule_GetName(capsule)));
  if (structure != nullptr) {
    released([&] { release_structure(*structure); });
    delete structure;
  }
  PyErr_Restore(type, value, trace);
}

template <class Structure>
nb::object capsule_of(std::unique_ptr<Structure> structure, const char* name) {
  nb::object made = nb::steal(PyCapsule_New(structure.get(), name, destroy<Structure>));
  if (!made.is_valid()) {
    release_structure(*structure);
    nb::raise_python_error();
  }
  structure.release();
  return made;
}

/// Fills a structure and returns its capsule.
template <class Structure, class Export>
nb::object exported(const char* name, Export&& fill) {
  auto structure = std::make_unique<Structure>();
  std::memset(structure.get(), 0, sizeof(Structure));
  without_gil([&] { return fill(structure.get()); }).value();
  return capsule_of(std::move(structure), name);
}

/// The structure of a capsule. Rejects capsules of another name and structures that were consumed.
template <class Structure>
Structure& structure_of(nb::handle capsule, const char* name, const char* what) {
  if (!capsule.is_valid() || PyCapsule_CheckExact(capsule.ptr()) == 0)
    reject((std::string(what) + " is not a capsule").c_str());
  if (PyCapsule_IsValid(capsule.ptr(), name) == 0)
    reject((std::string(what) + " has another name than '" + name + "'").c_str());
  auto* const structure = static_cast<Structure*>(PyCapsule_GetPointer(capsule.ptr(), name));
  if (structure == nullptr) nb::raise_python_error();
  if (is_released(*structure)) reject((std::string(what) + " was consumed before").c_str());
  return *structure;
}

/// Moves a structure out of its capsule.
template <class Structure>
Structure moved(Structure& structure) {
  Structure made = structure;
  forget(structure);
  return made;
}

/// Releases a structure that no consumer has moved out of its capsule.
template <class Structure>
struct Owned {
  Structure structure = {};
  ~Owned() { release_structure(structure); }
};

bool is_struct(const ArrowSchema& schema) {
  return schema.format != nullptr && std::string_view(schema.format) == "+s";
}

Device device_of_arrow(std::int32_t type, std::int64_t number) {
  const CallSite site = here();
  const std::string index = std::to_string(number < 0 ? 0 : number);
  const auto open = [&](const std::string& spec) {
    return without_gil([&] { return try_open_device(spec); }).value(site);
  };
  switch (type) {
    case ARROW_DEVICE_CPU:
      return open("host");
    case ARROW_DEVICE_CUDA:
    case ARROW_DEVICE_CUDA_HOST:
    case ARROW_DEVICE_CUDA_MANAGED:
      return open("cuda:" + index);
    case ARROW_DEVICE_EXT_DEV:
      return open("sim:" + index);
    default:
      reject("the array is on a device that Tern does not know");
  }
}

ArrowOptions options_of(const std::optional<std::string>& tag, bool checks_text) {
  ArrowOptions options;
  options.tag = tag_of(tag);
  options.checks_text = checks_text;
  options.site = here();
  return options;
}

/// Imports an array: a struct becomes a table, everything else a column.
template <class Array>
nb::object import_array(nb::handle pair, const char* name, nb::handle device,
                        const ArrowOptions& options) {
  if (!nb::isinstance<nb::tuple>(pair) || nb::len(pair) != 2)
    reject("the export is not a tuple of a schema and an array");
  const nb::tuple both = nb::borrow<nb::tuple>(pair);
  ArrowSchema& lent_schema = structure_of<ArrowSchema>(both[0], schema_name, "the first capsule");
  Array& lent_array = structure_of<Array>(both[1], name, "the second capsule");
  const Device on = [&] {
    if (!device.is_none()) return device_of_object(device);
    if constexpr (std::is_same_v<Array, ArrowDeviceArray>) {
      return device_of_arrow(lent_array.device_type, lent_array.device_id);
    } else {
      return device_of_arrow(ARROW_DEVICE_CPU, -1);
    }
  }();
  const bool is_table = is_struct(lent_schema);
  ArrowSchema schema = moved(lent_schema);
  Array array = moved(lent_array);
  if (is_table)
    return nb::cast(
        without_gil([&] { return try_import_arrow(on, &array, &schema, options); }).value());
  return nb::cast(
      without_gil([&] { return try_import_arrow_column(on, &array, &schema, options); }).value());
}

template <class Stream>
void check_stream(int code, Stream& stream, const char* what) {
  if (code == 0) return;
  const char* const why =
      stream.get_last_error != nullptr ? stream.get_last_error(&stream) : nullptr;
  raise(Failure(ErrorCode::arrow_rejected,
                "the stream failed in {what}, with code {number}: {reason}")
            .with("what", what)
            .with_signed("number", code)
            .with("reason", why != nullptr ? why : "it gave no reason"),
        here());
}

template <class Stream>
ArrowSchema schema_of(Stream& stream) {
  ArrowSchema schema = {};
  if (stream.get_schema == nullptr || stream.get_next == nullptr)
    reject("the stream has no callbacks");
  const int code = released([&] { return stream.get_schema(&stream, &schema); });
  check_stream(code, stream, "get_schema");
  if (schema.release == nullptr) reject("the stream gave a schema that is released");
  return schema;
}

/// A stream of arrays that are no structs: the chunks of one column.
template <class Array, class Stream>
Column import_chunks(const Device& device, Stream& stream, const ArrowOptions& options) {
  std::vector<Column> chunks;
  for (;;) {
    Owned<Array> array;
    const int code = released([&] { return stream.get_next(&stream, &array.structure); });
    check_stream(code, stream, "get_next");
    if (is_released(array.structure)) break;
    if (chunks.size() == max_arrow_children) reject("the stream has too many chunks");
    ArrowSchema schema = schema_of(stream);
    Array taken = moved(array.structure);
    chunks.push_back(without_gil([&] {
                       return try_import_arrow_column(device, &taken, &schema, options);
                     }).value());
  }
  if (chunks.size() == 1) return std::move(chunks.front());
  ColumnOptions made;
  made.site = options.site;
  if (!chunks.empty()) return without_gil([&] { return Column::try_concat(chunks, made); }).value();
  // No chunk says the type, so the schema does.
  ArrowSchema schema = schema_of(stream);
  const Field field =
      without_gil([&] { return try_import_arrow_field(&schema, options.site); }).value();
  return without_gil([&] { return Column::try_allocate(device, field.type, 0, made); }).value();
}

/// Passes the calls of a stream on, and keeps the reason of a failure, which ends with the stream.
template <class Array, class Stream>
struct Witness {
  Stream inner;
  std::string* reason;

  static Witness& of(Stream* stream) { return *static_cast<Witness*>(stream->private_data); }
  int noted(int code) {
    if (code == 0 || inner.get_last_error == nullptr) return code;
    const char* const why = inner.get_last_error(&inner);
    if (why != nullptr) *reason = why;
    return code;
  }
  static int get_schema(Stream* stream, ArrowSchema* out) {
    return of(stream).noted(of(stream).inner.get_schema(&of(stream).inner, out));
  }
  static int get_next(Stream* stream, Array* out) {
    return of(stream).noted(of(stream).inner.get_next(&of(stream).inner, out));
  }
  static const char* get_last_error(Stream* stream) {
    return of(stream).reason->empty() ? nullptr : of(stream).reason->c_str();
  }
  static void end(Stream* stream) {
    const std::unique_ptr<Witness> ended(&of(stream));
    release_structure(ended->inner);
    stream->release = nullptr;
  }
};

template <class Array, class Stream>
Stream witnessed(Stream stream, std::string& reason) {
  using Own = Witness<Array, Stream>;
  Stream made = stream;
  made.private_data = new Own{stream, &reason};
  made.get_schema = Own::get_schema;
  made.get_next = Own::get_next;
  made.get_last_error = Own::get_last_error;
  made.release = Own::end;
  return made;
}

template <class Array, class Stream>
nb::object import_stream(nb::handle capsule, const char* name, nb::handle device,
                         const ArrowOptions& options) {
  Stream& lent = structure_of<Stream>(capsule, name, "the capsule");
  const Device on = [&] {
    if (!device.is_none()) return device_of_object(device);
    if constexpr (std::is_same_v<Array, ArrowDeviceArray>) {
      return device_of_arrow(lent.device_type, -1);
    } else {
      return device_of_arrow(ARROW_DEVICE_CPU, -1);
    }
  }();
  Owned<Stream> stream{moved(lent)};
  bool is_table = false;
  {
    Owned<ArrowSchema> schema{schema_of(stream.structure)};
    is_table = is_struct(schema.structure);
  }
  if (!is_table) return nb::cast(import_chunks<Array>(on, stream.structure, options));
  std::string reason;
  Stream taken = witnessed<Array>(moved(stream.structure), reason);
  Result<Table> imported = without_gil([&] { return try_import_arrow(on, &taken, options); });
  if (!imported && !reason.empty()) {
    raise(Failure(ErrorCode::arrow_rejected, "the stream failed: {reason}").with("reason", reason),
          options.site);
  }
  return nb::cast(std::move(imported).value());
}

nb::object from_arrow(nb::handle object, nb::handle device, const std::optional<std::string>& tag,
                      bool checks_text) {
  const ArrowOptions options = options_of(tag, checks_text);
  if (nb::hasattr(object, "__arrow_c_device_array__")) {
    return import_array<ArrowDeviceArray>(object.attr("__arrow_c_device_array__")(),
                                          device_array_name, device, options);
  }
  if (nb::hasattr(object, "__arrow_c_array__")) {
    return import_array<ArrowArray>(object.attr("__arrow_c_array__")(), array_name, device,
                                    options);
  }
  if (nb::hasattr(object, "__arrow_c_device_stream__")) {
    return import_stream<ArrowDeviceArray, ArrowDeviceArrayStream>(
        object.attr("__arrow_c_device_stream__")(), device_stream_name, device, options);
  }
  if (nb::hasattr(object, "__arrow_c_stream__")) {
    return import_stream<ArrowArray, ArrowArrayStream>(object.attr("__arrow_c_stream__")(),
                                                       stream_name, device, options);
  }
  raise(Failure(ErrorCode::type_mismatch,
                "{actual} is not Arrow data: it has none of __arrow_c_array__, "
                "__arrow_c_device_array__, __arrow_c_stream__ and "
                "__arrow_c_device_stream__. Pass an object of pyarrow, polars or pandas, or make a "
                "Table from a dict of columns.")
            .with("actual", type_text(object)),
        here());
}

/// The schema of the type of a column, as Arrow's arrays have no names.
nb::object schema_of(const Column& column) {
  return export_arrow_schema(Field{.name = "", .type = column.type(), .is_nullable = true});
}
nb::object schema_of(const Table& table) { return export_arrow_schema(table.schema()); }

template <class Array, class What>
nb::tuple export_array(const What& what, const char* name) {
  nb::object schema = schema_of(what);
  ArrowOptions options;
  options.site = here();
  nb::object array =
      exported<Array>(name, [&](Array* out) { return try_export_arrow(what, out, options); });
  return nb::make_tuple(schema, array);
}

}  // namespace

nb::object export_arrow_schema(const Schema& schema) {
  const CallSite site = here();
  return exported<ArrowSchema>(
      schema_name, [&](ArrowSchema* out) { return try_export_arrow_schema(schema, out, site); });
}
nb::object export_arrow_schema(const Field& field) {
  const CallSite site = here();
  return exported<ArrowSchema>(
      schema_name, [&](ArrowSchema* out) { return try_export_arrow_schema(field, out, site); });
}

nb::tuple export_arrow_array(const Table& table) {
  return export_array<ArrowArray>(table, array_name);
}
nb::tuple export_arrow_array(const Column& column) {
  return export_array<ArrowArray>(column, array_name);
}
nb::tuple export_arrow_device_array(const Table& table) {
  return export_array<ArrowDeviceArray>(table, device_array_name);
}
nb::tuple export_arrow_device_array(const Column& column) {
  return export_array<ArrowDeviceArray>(column, device_array_name);
}

nb::object export_arrow_stream(const Table& table) {
  const CallSite site = here();
  return exported<ArrowArrayStream>(stream_name, [&](ArrowArrayStream* out) {
    return try_export_arrow(std::span<const Table>(&table, 1), out, site);
  });
}
nb::object export_arrow_device_stream(const Table& table) {
  ArrowOptions options;
  options.site = here();
  return exported<ArrowDeviceArrayStream>(device_stream_name, [&](ArrowDeviceArrayStream* out) {
    return try_export_arrow(std::span<const Table>(&table, 1), out, options);
  });
}

Schema import_arrow_schema(nb::handle object) {
  if (!nb::hasattr(object, "__arrow_c_schema__")) {
    raise(Failure(ErrorCode::type_mismatch, "'{actual}' has no __arrow_c_schema__.")
              .with("actual", repr_of(object.type())),
          here());
  }
  const nb::object capsule = object.attr("__arrow_c_schema__")();
  ArrowSchema schema = moved(structure_of<ArrowSchema>(capsule, schema_name, "the capsule"));
  const CallSite site = here();
  return without_gil([&] { return try_import_arrow_schema(&schema, site); }).value();
}

void check_arrow_options(const nb::kwargs& options) {
  for (const auto& [name, value] : options) {
    if (value.is_none()) continue;
    raise(
        Failure(ErrorCode::unsupported, "the option {what} of the Arrow protocol is not supported.")
            .with("what", repr_of(name)),
        here());
  }
}

void add_arrow(nb::module_& module) {
  module.def(
      "from_arrow", &from_arrow, nb::arg("x"), nb::kw_only(), nb::arg("device") = nb::none(),
      nb::arg("tag") = nb::none(), nb::arg("checks_text") = false,
      "Import an Arrow array, table or stream of another library without a copy.\n\n"
      "Several chunks of a stream are copied together, and text views are copied into offsets.\n\n"
      "Parameters\n----------\nx : object\n"
      "    With ``__arrow_c_device_array__``, ``__arrow_c_array__``, ``__arrow_c_device_stream__`` "
      "or ``__arrow_c_stream__``.\n"
      "device : Device or str, optional\n    Where the memory is; by default as the array says.\n"
      "tag : str, optional\n    A name for reports.\n"
      "checks_text : bool\n    Check that every text is UTF-8.\n\n"
      "Returns\n-------\nTable or Column\n    A struct becomes a Table.");
}

}  // namespace tern::python
