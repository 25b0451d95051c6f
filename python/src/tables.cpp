// Tables, columns and schemas.

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "arrow.hpp"
#include "host_memory.hpp"
#include "places.hpp"
#include "tern/table/table.hpp"

TERN_RELEASE_HANDLE(tern::Column)
TERN_RELEASE_HANDLE(tern::Table)

namespace tern::python {
namespace {

// --- Types

TimeUnit unit_of(const std::string& text) {
  for (const TimeUnit unit :
       {TimeUnit::second, TimeUnit::millisecond, TimeUnit::microsecond, TimeUnit::nanosecond}) {
    if (name(unit) == text) return unit;
  }
  raise(Failure(ErrorCode::invalid_argument,
                "'{value}' is not a unit of time. Use 's', 'ms', 'us' or 'ns'.")
            .with("name", "unit")
            .with("value", text),
        here());
}

std::optional<TypeKind> kind_of(std::string_view text) {
#define TERN_TYPE_KIND(enumerator, kind_name) \
  if (text == kind_name) return TypeKind::enumerator;
  TERN_FOR_EACH_TYPE_KIND(TERN_TYPE_KIND)
#undef TERN_TYPE_KIND
  return {};
}

/// A type is a LogicalType, the name of a kind, or anything that NumPy has a dtype for.
LogicalType type_of_object(nb::handle object) {
  if (nb::isinstance<LogicalType>(object)) return nb::cast<const LogicalType&>(object);
  if (nb::isinstance<nb::str>(object)) {
    if (const auto kind = kind_of(nb::cast<std::string>(object))) return *kind;
  }
  const nb::object dtype = [&] {
    try {
      return nb::object(numpy().attr("dtype")(object));
    } catch (nb::python_error& error) {
      return nb::object();
    }
  }();
  if (dtype.is_valid()) {
    const std::string kind = nb::cast<std::string>(dtype.attr("kind"));
    if (kind == "M" || kind == "m") {
      const nb::object data = numpy().attr("datetime_data")(dtype);
      const std::string unit = nb::cast<std::string>(nb::object(data[0]));
      if (unit == "D" && kind == "M") return TypeKind::date32;
      if (nb::cast<int>(nb::object(data[1])) != 1)
        refuse_type("a unit of time with a multiple, such as 10ms, is not supported");
      return kind == "M" ? LogicalType::timestamp(unit_of(unit))
                         : LogicalType::duration(unit_of(unit));
    }
  }
  return LogicalType::try_of(dtype_of_object(object), here()).value();
}

std::string numpy_time(const LogicalType& type) {
  const char* const letter = type.kind() == TypeKind::timestamp ? "M8[" : "m8[";
  return letter + std::string(name(type.unit())) + "]";
}

bool is_time_of_numpy(const LogicalType& type) {
  return type.kind() == TypeKind::timestamp || type.kind() == TypeKind::duration;
}

/// The text as UTF-8. Raises ValueError for lone surrogates.
std::string utf8_of(nb::handle text) {
  Py_ssize_t bytes = 0;
  const char* const first = PyUnicode_AsUTF8AndSize(text.ptr(), &bytes);
  if (first != nullptr) return {first, static_cast<std::size_t>(bytes)};
  PyErr_Clear();
  raise(Failure(ErrorCode::invalid_argument, "the text {value} has no UTF-8 form.")
            .with("name", "text")
            .with("value", nb::cast<std::string>(nb::steal<nb::str>(PyObject_ASCII(text.ptr())))),
        here());
}

Metadata metadata_of(nb::handle object) {
  std::vector<Metadata::Pair> pairs;
  if (object.is_none()) return Metadata(pairs);
  if (!nb::isinstance<nb::dict>(object)) refuse_type("metadata is a dict of strings");
  for (const auto& [key, value] : nb::borrow<nb::dict>(object)) {
    if (!nb::isinstance<nb::str>(key) || !nb::isinstance<nb::str>(value))
      refuse_type("metadata is a dict of strings");
    pairs.emplace_back(utf8_of(key), utf8_of(value));
  }
  return Metadata(std::move(pairs));
}

nb::dict dict_of(const Metadata& metadata) {
  nb::dict made;
  for (const auto& [key, value] : metadata.pairs()) made[text_of(key)] = text_of(value);
  return made;
}

Schema schema_of_object(nb::handle object) {
  if (nb::isinstance<Schema>(object)) return nb::cast<const Schema&>(object);
  if (nb::hasattr(object, "__arrow_c_schema__")) return import_arrow_schema(object);
  std::vector<Field> fields;
  for (const nb::handle one : nb::iter(object)) {
    if (nb::isinstance<Field>(one)) {
      fields.push_back(nb::cast<const Field&>(one));
      continue;
    }
    if (!nb::isinstance<nb::tuple>(one) || nb::len(one) != 2 ||
        !nb::isinstance<nb::str>(nb::object(one[0]))) {
      refuse_type("a schema is a list of Field objects or of tuples (name, type)");
    }
    fields.push_back(
        {.name = utf8_of(nb::object(one[0])), .type = type_of_object(nb::object(one[1]))});
  }
  return Schema(std::move(fields));
}

void add_schema(nb::module_& module) {
  nb::class_<LogicalType>(module, "LogicalType",
                          "What the values of a column mean: numbers, booleans, times or texts.\n\n"
                          "Parameters\n----------\n"
                          "kind : str or dtype-like\n    A name such as ``'i32'``, ``'bool'``, "
                          "``'utf8'`` or ``'date32'``, or a dtype of NumPy.")
      .def(
          "__init__",
          [](LogicalType* self, nb::handle kind) { new (self) LogicalType(type_of_object(kind)); },
          nb::arg("kind"))
      .def_static(
          "time", [](const std::string& unit) { return LogicalType::time(unit_of(unit)); },
          nb::arg("unit"), "Return the type of a time of day. The unit is 's', 'ms', 'us' or 'ns'.")
      .def_static(
          "timestamp",
          [](const std::string& unit, const std::string& zone) {
            return LogicalType::timestamp(unit_of(unit), zone);
          },
          nb::arg("unit"), nb::arg("zone") = "",
          "Return the type of a time since 1970, in UTC if a zone is given.")
      .def_static(
          "duration", [](const std::string& unit) { return LogicalType::duration(unit_of(unit)); },
          nb::arg("unit"), "Return the type of a duration.")
      .def_prop_ro(
          "kind", [](const LogicalType& self) { return std::string(name(self.kind())); },
          "The name of the kind.")
      .def_prop_ro(
          "unit", [](const LogicalType& self) { return std::string(name(self.unit())); },
          "The unit of time.")
      .def_prop_ro(
          "zone", [](const LogicalType& self) { return text_of(self.zone()); },
          "The time zone, or an empty text.")
      .def_prop_ro("is_variable", &LogicalType::is_variable,
                   "Whether values have different lengths.")
      .def_prop_ro(
          "dtype", [](const LogicalType& self) { return object_of_dtype(self.dtype()); },
          "The dtype of the elements in memory.")
      .def("__eq__",
           [](const LogicalType& self, nb::handle other) {
             return nb::isinstance<LogicalType>(other) &&
                    self == nb::cast<const LogicalType&>(other);
           })
      .def("__hash__",
           [](const LogicalType& self) { return std::hash<std::string>()(self.text()); })
      .def("__str__", [](const LogicalType& self) { return message_of(self.text()); })
      .def("__repr__", [](const LogicalType& self) {
        return nb::str("LogicalType('{}')").format(message_of(self.text()));
      });
  nb::class_<Field>(
      module, "Field",
      "One field of a schema.\n\n"
      "Parameters\n----------\nname : str\ntype : LogicalType, str or dtype-like\nnullable : bool\n"
      "metadata : dict of str, optional")
      .def(
          "__init__",
          [](Field* self, const std::string& name, nb::handle type, bool nullable,
             nb::handle metadata) {
            new (self) Field{name, type_of_object(type), nullable, metadata_of(metadata)};
          },
          nb::arg("name"), nb::arg("type"), nb::arg("nullable") = true,
          nb::arg("metadata") = nb::none())
      .def_prop_ro(
          "name", [](const Field& self) { return text_of(self.name); }, "The name.")
      .def_prop_ro(
          "type", [](const Field& self) { return self.type; }, "The type of the values.")
      .def_prop_ro(
          "nullable", [](const Field& self) { return self.is_nullable; },
          "Whether values may be missing.")
      .def_prop_ro(
          "metadata", [](const Field& self) { return dict_of(self.metadata); },
          "The metadata, as a new dict.")
      .def(
          "__arrow_c_schema__", [](const Field& self) { return export_arrow_schema(self); },
          "Export the field to another library.")
      .def("__eq__",
           [](const Field& self, nb::handle other) {
             return nb::isinstance<Field>(other) && self == nb::cast<const Field&>(other);
           })
      .def("__repr__", [](const Field& self) {
        return nb::str("Field({!r}, '{}', nullable={})")
            .format(text_of(self.name), message_of(self.type.text()), self.is_nullable);
      });
  nb::class_<Schema>(
      module, "Schema",
      "The fields of a table in order.\n\n"
      "Parameters\n----------\n"
      "fields : list of Field, list of (name, type), or an object with ``__arrow_c_schema__``\n"
      "metadata : dict of str, optional")
      .def(
          "__init__",
          [](Schema* self, nb::handle fields, nb::handle metadata) {
            const Schema made = schema_of_object(fields);
            const Metadata more = metadata_of(metadata);
            new (self) Schema({made.fields().begin(), made.fields().end()},
                              metadata.is_none() ? made.metadata() : more);
          },
          nb::arg("fields"), nb::arg("metadata") = nb::none())
      .def_prop_ro(
          "fields",
          [](const Schema& self) {
            return std::vector<Field>(self.fields().begin(), self.fields().end());
          },
          "The fields.")
      .def_prop_ro(
          "names",
          [](const Schema& self) {
            nb::list made;
            for (const Field& field : self.fields()) made.append(text_of(field.name));
            return made;
          },
          "The names of the fields.")
      .def_prop_ro(
          "metadata", [](const Schema& self) { return dict_of(self.metadata()); },
          "The metadata, as a new dict.")
      .def("__len__", &Schema::size)
      .def(
          "check_match",
          [](const Schema& self, nb::handle wanted, bool allows_sign_change,
             bool allows_symbol_as_number) {
            self.check_match(schema_of_object(wanted),
                             {allows_sign_change, allows_symbol_as_number}, here())
                .value();
          },
          nb::arg("wanted"), nb::kw_only(), nb::arg("allows_sign_change") = false,
          nb::arg("allows_symbol_as_number") = false,
          "Raise an error that names the field, unless data of this schema can be used as data of "
          "the schema ``wanted``.")
      .def(
          "__arrow_c_schema__", [](const Schema& self) { return export_arrow_schema(self); },
          "Export the schema to another library.")
      .def("__eq__",
           [](const Schema& self, nb::handle other) {
             return nb::isinstance<Schema>(other) && self == nb::cast<const Schema&>(other);
           })
      .def("__repr__", [](const Schema& self) {
        return nb::str("Schema({})")
            .format(
                nb::repr(nb::cast(std::vector<Field>(self.fields().begin(), self.fields().end()))));
      });
}

// --- Columns

/// One byte for each value, or nothing if all values are present.
std::vector<std::uint8_t> valid_of(nb::handle valid) {
  if (valid.is_none()) return {};
  const nb::object array = numpy().attr("ascontiguousarray")(valid);
  if (nb::cast<std::string>(array.attr("dtype").attr("kind")) != "b" ||
      nb::cast<int>(array.attr("ndim")) != 1) {
    raise(Failure(ErrorCode::type_mismatch,
                  "valid is a one-dimensional array of bool, and not {actual}.")
              .with("actual", repr_of(array.attr("dtype"))),
          here());
  }
  const auto* const first = static_cast<const std::uint8_t*>(address_of(array));
  return {first, first + nb::len(array)};
}

Column column_of_strings(nb::handle values, const Device& device, LogicalType type,
                         ColumnOptions options) {
  std::vector<std::string> kept;
  std::vector<std::uint8_t> valid;
  bool has_nulls = false;
  for (const nb::handle one : nb::iter(values)) {
    valid.push_back(one.is_none() ? 0 : 1);
    if (one.is_none()) {
      has_nulls = true;
      kept.emplace_back();
    } else if (nb::isinstance<nb::bytes>(one)) {
      const nb::bytes bytes = nb::borrow<nb::bytes>(one);
      kept.emplace_back(bytes.c_str(), bytes.size());
    } else if (nb::isinstance<nb::str>(one)) {
      kept.push_back(utf8_of(one));
    } else {
      raise(Failure(ErrorCode::type_mismatch,
                    "a column of texts has no value {actual}. Pass str, bytes or None.")
                .with("actual", repr_of(one)),
            here());
    }
  }
  if (has_nulls) {
    if (!options.valid.empty())
      refuse_value("pass either values that are None or the argument valid, and not both");
    options.valid = valid;
  }
  const std::vector<std::string_view> views(kept.begin(), kept.end());
  return without_gil(
             [&] { return Column::try_from_strings(device, views, std::move(type), options); })
      .value();
}

/// Values of a list with None and without texts. The first value that is there replaces None, so
/// that NumPy finds the type of the others; `valid` says which values are there.
nb::object without_none(nb::handle values, std::vector<std::uint8_t>& valid) {
  nb::object filler = nb::int_(0);
  for (const nb::handle one : nb::iter(values)) {
    if (one.is_none()) continue;
    filler = nb::borrow(one);
    break;
  }
  nb::list kept;
  for (const nb::handle one : nb::iter(values)) {
    valid.push_back(one.is_none() ? 0 : 1);
    kept.append(one.is_none() ? filler : nb::borrow(one));
  }
  return numpy().attr("asarray")(kept);
}

/// Returns whether this is a list such as [] or [None, None]. NumPy cannot know the type of its
/// elements.
bool is_list_without_values(nb::handle values) {
  if (nb::hasattr(values, "dtype")) return false;
  for (const nb::handle one : nb::iter(values)) {
    if (!one.is_none()) return false;
  }
  return true;
}

bool has_texts(nb::handle values) {
  bool has_values = false;
  for (const nb::handle one : nb::iter(values)) {
    if (nb::isinstance<nb::str>(one) || nb::isinstance<nb::bytes>(one)) return true;
    has_values = has_values || !one.is_none();
  }
  return !has_values;  // nothing but None: a column of texts that are missing
}

/// Copies values in. Lists of str, bytes and None become texts; everything else goes through NumPy.
Column make_column(nb::handle values, nb::handle type, nb::handle device, nb::handle valid,
                   const std::optional<std::string>& tag) {
  const Device on = device_of_object(device);
  const std::vector<std::uint8_t> present = valid_of(valid);
  ColumnOptions options;
  options.valid = present;
  options.storage.tag = tag_of(tag);
  options.site = here();
  std::optional<LogicalType> wanted;
  if (!type.is_none()) wanted = type_of_object(type);
  if (wanted && wanted->is_variable()) return column_of_strings(values, on, *wanted, options);
  nb::object array = numpy().attr("asarray")(values);
  if (nb::cast<int>(array.attr("ndim")) != 1) {
    raise(Failure(ErrorCode::shape_mismatch,
                  "a column is one-dimensional, and the values have the shape {actual}.")
              .with("actual", repr_of(array.attr("shape"))),
          here());
  }
  const auto element_type = [](const LogicalType& one) {
    return one.is_bits() ? DType::boolean : one.dtype();
  };
  std::vector<std::uint8_t> numbers;
  if (wanted && is_list_without_values(values)) {
    if (nb::len(values) > 0 && !present.empty())
      refuse_value("pass either values that are None or the argument valid, and not both");
    numbers.assign(nb::len(values), 0);
    if (!numbers.empty()) options.valid = numbers;
    array = numpy().attr("zeros")(numbers.size(), object_of_dtype(element_type(*wanted)));
  }
  std::string kind = nb::cast<std::string>(array.attr("dtype").attr("kind"));
  if (kind == "O" && !has_texts(values)) {
    array = without_none(values, numbers);
    kind = nb::cast<std::string>(array.attr("dtype").attr("kind"));
    if (std::ranges::find(numbers, 0) != numbers.end()) {
      if (!present.empty())
        refuse_value("pass either values that are None or the argument valid, and not both");
      options.valid = numbers;
    }
  }
  if (!wanted && (kind == "O" || kind == "U" || kind == "S")) {
    // NumPy turns the numbers of a list with texts into texts, so the list itself is read.
    const bool is_array = nb::hasattr(values, "dtype");
    return column_of_strings(is_array && kind != "O" ? nb::object(array.attr("tolist")())
                                                     : nb::object(nb::borrow(values)),
                             on, kind == "S" ? TypeKind::binary : TypeKind::utf8, options);
  }
  if (!wanted) wanted = type_of_object(array.attr("dtype"));
  std::vector<std::uint8_t> times;
  if (kind == "M" || kind == "m") {
    // NaT is a missing value.
    if (nb::bool_(numpy().attr("isnat")(array).attr("any")())) {
      if (!present.empty())
        refuse_value("pass either values that are NaT or the argument valid, and not both");
      times = valid_of(numpy().attr("logical_not")(numpy().attr("isnat")(array)));
      options.valid = times;
    }
    if (wanted->kind() == TypeKind::date32)
      array = array.attr("astype")("M8[D]").attr("view")("i8").attr("astype")("i4");
    if (is_time_of_numpy(*wanted))
      array = array.attr("astype")(numpy_time(*wanted)).attr("view")("i8");
  }
  const DType dtype = element_type(*wanted);
  const nb::object elements = elements_of(array, dtype, nullptr);
  const void* const address = address_of(elements);
  const std::size_t count = nb::len(elements);
  return without_gil([&] { return Column::try_from(on, address, count, dtype, *wanted, options); })
      .value();
}

/// A buffer of a column, or None if the column has no such buffer.
nb::object buffer_or_none(const Buffer& buffer) { return buffer ? nb::cast(buffer) : nb::none(); }

nb::object valid_array(const Column& self) {
  const CallSite site = here();
  const std::vector<bool> bits = without_gil([&] { return self.to_valid(site); });
  nb::object array = numpy().attr("ones")(self.capacity(), "bool");
  auto* const first = static_cast<std::uint8_t*>(address_of(array));
  for (std::size_t i = 0; i < bits.size() && i < self.capacity(); ++i) first[i] = bits[i] ? 1 : 0;
  return array;
}

nb::object column_to_numpy(const Column& self) {
  const CallSite site = here();
  const LogicalType& type = self.type();
  if (type.is_variable()) {
    raise(Failure(ErrorCode::type_mismatch,
                  "a column of the type {actual} has no NumPy array. Use to_pylist().")
              .with("actual", type.text()),
          site);
  }
  const std::size_t count = self.capacity();
  if (count == 0)
    return numpy().attr("empty")(
        0, type.is_bits() ? nb::object(nb::str("bool")) : object_of_dtype(type.dtype()));
  const Buffer values =
      type.is_bits() ? without_gil([&] { return self.try_unpack(site); }).value() : self.values();
  nb::object array = numpy().attr("empty")(count, object_of_dtype(values.dtype()));
  void* const address = address_of(array);
  without_gil([&] { return values.try_copy_to(address, values.size_bytes(), site); }).value();
  if (type.is_bits()) return array.attr("astype")("bool");
  if (is_time_of_numpy(type)) return array.attr("view")(numpy_time(type));
  return array;
}

nb::list column_to_list(const Column& self) {
  const CallSite site = here();
  nb::list made;
  const nb::object valid = self.is_nullable() ? valid_array(self) : nb::none();
  const auto* const present =
      valid.is_none() ? nullptr : static_cast<const std::uint8_t*>(address_of(valid));
  if (!self.type().is_variable()) {
    nb::object values = column_to_numpy(self).attr("tolist")();
    std::size_t i = 0;
    for (const nb::handle one : nb::iter(values))
      made.append(present != nullptr && present[i++] == 0 ? nb::none()
                                                          : nb::object(nb::borrow(one)));
    return made;
  }
  const std::vector<std::string> texts = without_gil([&] { return self.to_strings(site); });
  for (std::size_t i = 0; i < texts.size(); ++i) {
    if (present != nullptr && present[i] == 0) {
      made.append(nb::none());
    } else if (self.type().is_text()) {
      made.append(text_of(texts[i]));
    } else {
      made.append(nb::bytes(texts[i].data(), texts[i].size()));
    }
  }
  return made;
}

nb::object device_or_none(const Device& device) {
  return device.is_open() ? nb::cast(device) : nb::none();
}

void add_column(nb::module_& module) {
  nb::class_<Column>(
      module, "Column",
      "Values of one type in memory of one device. Values may be missing.\n\n"
      "Parameters\n----------\n"
      "values : array-like or list\n    Numbers, booleans, times, or str, bytes and None. They are "
      "copied to the device.\n"
      "type : LogicalType, str or dtype-like, optional\n    By default the type of the values.\n"
      "device : Device or str, optional\n"
      "valid : array-like of bool, optional\n    False for each value that is missing.\n"
      "tag : str, optional\n    A name for reports.")
      .def(nb::new_(&make_column), nb::arg("values"), nb::arg("type") = nb::none(),
           nb::arg("device") = nb::none(), nb::kw_only(), nb::arg("valid") = nb::none(),
           nb::arg("tag") = nb::none())
      .def(
          "__array__",
          [](const Column&, nb::handle, nb::handle) -> nb::object {
            refuse_type(
                "NumPy cannot use a Column, because values may be missing. Use to_numpy() and "
                "valid()");
          },
          nb::arg("dtype") = nb::none(), nb::arg("copy") = nb::none())
      .def_static(
          "allocate",
          [](nb::handle type, nb::handle capacity, nb::handle device, bool nullable,
             nb::handle data_bytes) {
            ColumnOptions options;
            options.is_nullable = nullable;
            options.data_bytes = size_of_object(data_bytes, "data_bytes");
            options.site = here();
            const Device on = device_of_object(device);
            const LogicalType of = type_of_object(type);
            const std::size_t count = size_of_object(capacity, "capacity");
            return without_gil([&] { return Column::try_allocate(on, of, count, options); })
                .value();
          },
          nb::arg("type"), nb::arg("capacity"), nb::arg("device") = nb::none(), nb::kw_only(),
          nb::arg("nullable") = false, nb::arg("data_bytes") = 0,
          "Allocate a column of ``capacity`` values, to be written by kernels.")
      .def_static(
          "over",
          [](nb::handle type, nb::handle capacity, const Buffer& values,
             const std::optional<Buffer>& validity, const std::optional<Buffer>& offsets,
             nb::handle first, std::optional<std::size_t> null_count) {
            ColumnParts parts;
            parts.values = values;
            if (validity) parts.validity = *validity;
            if (offsets) parts.offsets = *offsets;
            parts.first = size_of_object(first, "first");
            parts.null_count = null_count;
            return Column::try_over(type_of_object(type), size_of_object(capacity, "capacity"),
                                    std::move(parts), here())
                .value();
          },
          nb::arg("type"), nb::arg("capacity"), nb::arg("values"), nb::kw_only(),
          nb::arg("validity") = nb::none(), nb::arg("offsets") = nb::none(), nb::arg("first") = 0,
          nb::arg("null_count") = nb::none(),
          "Make a column over existing buffers. Copies nothing.")
      .def_static(
          "pack",
          [](const Buffer& booleans) {
            ColumnOptions options;
            options.site = here();
            return without_gil([&] { return Column::try_pack(booleans, options); }).value();
          },
          nb::arg("booleans"), "Convert booleans of one byte each to a column of bits.")
      .def_prop_ro(
          "type", [](const Column& self) { return self.type(); }, "The type of the values.")
      .def_prop_ro("capacity", &Column::capacity,
                   "The number of values that the column has room for.")
      .def("__len__", &Column::capacity)
      .def_prop_ro(
          "device", [](const Column& self) { return device_or_none(self.device()); },
          "The device; None for a column without bytes.")
      .def_prop_ro("is_nullable", &Column::is_nullable, "Whether there is a validity bitmap.")
      .def_prop_ro("is_external", &Column::is_external, "Whether another library owns the memory.")
      .def_prop_ro("null_count", &Column::null_count,
                   "The number of missing values; None if they were not counted.")
      .def(
          "count_nulls",
          [](const Column& self, nb::handle rows) {
            const std::size_t count =
                rows.is_none() ? self.capacity() : size_of_object(rows, "rows");
            const CallSite site = here();
            return without_gil([&] { return self.try_count_nulls(count, site); }).value();
          },
          nb::arg("rows") = nb::none(),
          "Return how many of the first rows are missing. Reads the bitmap if that is not known.")
      .def_prop_ro(
          "values", [](const Column& self) { return buffer_or_none(self.values()); },
          "The values as a Buffer, for kernels; bits for booleans, bytes for texts.")
      .def_prop_ro(
          "validity", [](Column& self) { return buffer_or_none(self.validity()); },
          "The validity bitmap, or None if no value is missing. A program may write it; the column "
          "then counts its nulls again.")
      .def_prop_ro(
          "offsets", [](const Column& self) { return buffer_or_none(self.offsets()); },
          "The offsets of texts, or None.")
      .def_prop_ro(
          "nbytes", [](const Column& self) { return self.try_bytes().value(here()); },
          "The bytes of all buffers at full capacity.")
      .def(
          "slice",
          [](const Column& self, nb::handle first, nb::handle count) {
            return self
                .try_slice(size_of_object(first, "first"), size_of_object(count, "count"), here())
                .value();
          },
          nb::arg("first"), nb::arg("count"),
          "Return values [first, first + count) in the same memory.")
      .def(
          "unpack",
          [](const Column& self) {
            const CallSite site = here();
            return without_gil([&] { return self.try_unpack(site); }).value();
          },
          "Convert a column of bits to a Buffer with one byte for each value.")
      .def(
          "copy_to",
          [](const Column& self, nb::handle device, nb::handle stream) {
            const Device on = device_of_object(device);
            const std::optional<StreamArgument> queue =
                stream.is_none() ? std::optional<StreamArgument>()
                                 : std::optional<StreamArgument>(std::in_place, stream, on);
            ColumnOptions options;
            options.site = here();
            return without_gil([&] {
                     return self.try_copy_to(on, self.capacity(),
                                             queue ? queue->get() : StreamRef(), options);
                   })
                .value();
          },
          nb::arg("device"), nb::arg("stream") = nb::none(),
          "Copy the column to new memory on a device. Without a stream the host waits.")
      .def("valid", &valid_array, "Return an array of bool, False for each value that is missing.")
      .def("to_numpy", &column_to_numpy,
           "Return an independent NumPy array. Elements of missing values are unspecified.")
      .def("to_pylist", &column_to_list,
           "Return a list of Python values, with None for missing ones.")
      .def(
          "__arrow_c_schema__",
          [](const Column& self) {
            return export_arrow_schema(Field{.name = "", .type = self.type(), .is_nullable = true});
          },
          "Export the type to another library.")
      .def(
          "__arrow_c_array__",
          [](const Column& self, nb::handle) { return export_arrow_array(self); },
          nb::arg("requested_schema") = nb::none(),
          "Export the values to another library. Raises ArrowRejectedError for memory that the "
          "host cannot read.")
      .def(
          "__arrow_c_device_array__",
          [](const Column& self, nb::handle, const nb::kwargs& options) {
            check_arrow_options(options);
            return export_arrow_device_array(self);
          },
          nb::arg("requested_schema") = nb::none(), nb::arg("kwargs"),
          "Export the values to another library, in memory of any device.")
      .def("__repr__", [](const Column& self) {
        return nb::str("Column({}, capacity={})")
            .format(message_of(self.type().text()), self.capacity());
      });
}

// --- Tables

Table make_table(nb::handle schema, nb::handle columns, std::optional<std::uint64_t> rows,
                 const std::optional<Buffer>& row_count) {
  TableOptions options;
  options.rows = rows;
  if (row_count) options.row_count = *row_count;
  options.site = here();
  std::vector<Column> all;
  if (columns.is_none()) {
    // A dict of columns names its fields itself.
    if (!nb::isinstance<nb::dict>(schema))
      refuse_type("a table is made of a schema and columns, or of a dict of columns");
    std::vector<Field> fields;
    for (const auto& [key, value] : nb::borrow<nb::dict>(schema)) {
      if (!nb::isinstance<nb::str>(key)) refuse_type("the names of columns are strings");
      all.push_back(nb::isinstance<Column>(value)
                        ? nb::cast<const Column&>(value)
                        : make_column(value, nb::none(), nb::none(), nb::none(), {}));
      fields.push_back({.name = utf8_of(key), .type = all.back().type()});
    }
    return Table::try_make(Schema(std::move(fields)), std::move(all), options).value();
  }
  for (const nb::handle one : nb::iter(columns)) {
    if (!nb::isinstance<Column>(one))
      refuse_type("columns must be Column objects. Make one with Column(array)");
    all.push_back(nb::cast<const Column&>(one));
  }
  return Table::try_make(schema_of_object(schema), std::move(all), options).value();
}

Column column_at(const Table& self, nb::handle key) {
  if (nb::isinstance<nb::str>(key)) {
    const std::string name = utf8_of(key);
    if (std::optional<Column> found = self.column(std::string_view(name))) return *std::move(found);
    raise(Failure(ErrorCode::not_found, "the table has no column '{name}'.")
              .with("name", name)
              .with("what", "column"),
          here());
  }
  Py_ssize_t index = PyNumber_AsSsize_t(key.ptr(), PyExc_IndexError);
  if (index == -1 && PyErr_Occurred() != nullptr) nb::raise_python_error();
  if (index < 0) index += static_cast<Py_ssize_t>(self.arity());
  if (index >= 0) {
    if (std::optional<Column> found = self.column(static_cast<std::size_t>(index)))
      return *std::move(found);
  }
  raise(
      Failure(ErrorCode::out_of_bounds, "there is no column {index} in a table of {count} columns.")
          .with_signed("index", nb::cast<std::int64_t>(key))
          .with("count", self.arity())
          .with("generation", std::uint64_t{0}),
      here());
}

Table select(const Table& self, nb::handle wanted) {
  const CallSite site = here();
  std::vector<std::string> names;
  std::vector<std::size_t> indices;
  for (const nb::handle one : nb::iter(wanted)) {
    if (nb::isinstance<nb::str>(one)) {
      names.push_back(utf8_of(one));
    } else {
      indices.push_back(size_of_object(one, "the index of a column"));
    }
  }
  if (!names.empty() && !indices.empty())
    refuse_type("select columns by names or by indices, and not by both");
  if (names.empty()) return self.try_select(indices, site).value();
  const std::vector<std::string_view> views(names.begin(), names.end());
  return self.try_select(views, site).value();
}

void add_table(nb::module_& module) {
  nb::class_<Table>(module, "Table",
                    "Columns of equal length on one device, with a schema and a row count.\n\n"
                    "Parameters\n----------\n"
                    "schema : Schema, list of fields, or dict\n    A dict of names and columns "
                    "needs no second argument.\n"
                    "columns : list of Column, optional\n"
                    "rows : int, optional\n    The row count; by default all rows are filled.\n"
                    "row_count : Buffer, optional\n    The row count in device memory: one uint32 "
                    "or uint64 that kernels write.")
      .def(nb::new_(&make_table), nb::arg("schema"), nb::arg("columns") = nb::none(), nb::kw_only(),
           nb::arg("rows") = nb::none(), nb::arg("row_count") = nb::none())
      .def_static(
          "allocate",
          [](nb::handle schema, nb::handle capacity, nb::handle device, nb::handle data_bytes) {
            ColumnOptions options;
            options.data_bytes = size_of_object(data_bytes, "data_bytes");
            options.site = here();
            const Device on = device_of_object(device);
            const Schema of = schema_of_object(schema);
            const std::size_t count = size_of_object(capacity, "capacity");
            return without_gil([&] { return Table::try_allocate(on, of, count, options); }).value();
          },
          nb::arg("schema"), nb::arg("capacity"), nb::arg("device") = nb::none(), nb::kw_only(),
          nb::arg("data_bytes") = 0,
          "Allocate a table, to be written by kernels. The row count is on the device.")
      .def_static(
          "concat",
          [](const std::vector<Table>& tables) {
            const CallSite site = here();
            return without_gil([&] { return Table::try_concat(tables, site); }).value();
          },
          nb::arg("tables"),
          "Return the rows of several tables one after the other, in new memory.")
      .def_prop_ro(
          "schema", [](const Table& self) { return self.schema(); }, "The schema.")
      .def_prop_ro(
          "columns",
          [](const Table& self) {
            return std::vector<Column>(self.columns().begin(), self.columns().end());
          },
          "The columns.")
      .def_prop_ro(
          "names",
          [](const Table& self) {
            nb::list made;
            for (const Field& field : self.schema().fields()) made.append(text_of(field.name));
            return made;
          },
          "The names of the columns.")
      .def("column", &column_at, nb::arg("key"), "Return a column by its index or name.")
      .def("__getitem__", &column_at)
      .def_prop_ro(
          "device", [](const Table& self) { return device_or_none(self.device()); },
          "The device; None if no column has a byte.")
      .def_prop_ro("arity", &Table::arity, "The number of columns.")
      .def_prop_ro("capacity", &Table::capacity,
                   "The number of rows that the columns have room for.")
      .def_prop_ro(
          "nbytes", [](const Table& self) { return self.try_estimated_bytes().value(here()); },
          "The bytes of all columns at full capacity.")
      .def_prop_ro("rows", &Table::rows,
                   "The row count if the host knows it, else None. Never waits.")
      .def(
          "rows_host",
          [](const Table& self) {
            const CallSite site = here();
            return without_gil([&] { return self.try_rows_host(site); }).value();
          },
          "Return the row count. Waits for the kernel that writes it, if the host does not know "
          "it.")
      .def("__len__",
           [](const Table& self) {
             const CallSite site = here();
             return without_gil([&] { return self.try_rows_host(site); }).value();
           })
      .def_prop_ro(
          "row_count", [](const Table& self) { return buffer_or_none(self.row_count()); },
          "The integer that kernels read and write, or None if only the host has the count.")
      .def(
          "set_rows",
          [](Table& self, nb::handle rows, nb::handle stream) {
            const std::size_t count = size_of_object(rows, "rows");
            const CallSite site = here();
            const std::optional<StreamArgument> queue =
                stream.is_none() && !self.device().is_open()
                    ? std::optional<StreamArgument>()
                    : std::optional<StreamArgument>(std::in_place, stream, self.device());
            without_gil([&] {
              return self.try_set_rows(count, queue ? queue->get() : StreamRef(), site);
            }).value();
          },
          nb::arg("rows"), nb::arg("stream") = nb::none(), "Set the row count, in stream order.")
      .def("select", &select, nb::arg("columns"),
           "Return a table of these columns, by names or by indices, in the same memory.")
      .def(
          "slice",
          [](const Table& self, nb::handle first, nb::handle count) {
            const std::size_t from = size_of_object(first, "first"),
                              many = size_of_object(count, "count");
            const CallSite site = here();
            return without_gil([&] { return self.try_slice(from, many, site); }).value();
          },
          nb::arg("first"), nb::arg("count"),
          "Return rows [first, first + count) in the same memory.")
      .def(
          "copy_to",
          [](const Table& self, nb::handle device, nb::handle stream) {
            const Device on = device_of_object(device);
            const CallSite site = here();
            const std::optional<StreamArgument> queue =
                stream.is_none() ? std::optional<StreamArgument>()
                                 : std::optional<StreamArgument>(std::in_place, stream, on);
            return without_gil([&] {
                     return self.try_copy_to(on, queue ? queue->get() : StreamRef(), site);
                   })
                .value();
          },
          nb::arg("device"), nb::arg("stream") = nb::none(),
          "Copy the table to new memory on a device. Without a stream the host waits.")
      .def(
          "__arrow_c_schema__",
          [](const Table& self) { return export_arrow_schema(self.schema()); },
          "Export the schema to another library.")
      .def(
          "__arrow_c_array__",
          [](const Table& self, nb::handle) { return export_arrow_array(self); },
          nb::arg("requested_schema") = nb::none(),
          "Export the rows to another library. Raises ArrowRejectedError for memory that the host "
          "cannot read.")
      .def(
          "__arrow_c_device_array__",
          [](const Table& self, nb::handle, const nb::kwargs& options) {
            check_arrow_options(options);
            return export_arrow_device_array(self);
          },
          nb::arg("requested_schema") = nb::none(), nb::arg("kwargs"),
          "Export the rows to another library, in memory of any device.")
      .def(
          "__arrow_c_stream__",
          [](const Table& self, nb::handle) { return export_arrow_stream(self); },
          nb::arg("requested_schema") = nb::none(),
          "Export the rows to another library as a stream of one chunk.")
      .def(
          "__arrow_c_device_stream__",
          [](const Table& self, nb::handle, const nb::kwargs& options) {
            check_arrow_options(options);
            return export_arrow_device_stream(self);
          },
          nb::arg("requested_schema") = nb::none(), nb::arg("kwargs"),
          "Export the rows as a stream of one chunk, in memory of any device.")
      .def("__repr__", [](const Table& self) {
        const std::optional<std::uint64_t> rows = self.rows();
        return nb::str("Table(columns={}, rows={}, capacity={})")
            .format(self.arity(),
                    rows ? nb::object(nb::int_(*rows)) : nb::object(nb::str("unknown")),
                    self.capacity());
      });
}

}  // namespace

void add_tables(nb::module_& module) {
  add_schema(module);
  add_column(module);
  add_table(module);
  add_arrow(module);
}

}  // namespace tern::python
