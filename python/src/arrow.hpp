// Arrow's PyCapsule interface for tables, columns and schemas.

#pragma once

#include "support.hpp"
#include "tern/table/schema.hpp"
#include "tern/table/table.hpp"

namespace tern::python {

/// Implements __arrow_c_schema__.
[[nodiscard]] nb::object export_arrow_schema(const Schema& schema);
[[nodiscard]] nb::object export_arrow_schema(const Field& field);
/// Implements __arrow_c_array__ and __arrow_c_device_array__. They return (schema, array).
[[nodiscard]] nb::tuple export_arrow_array(const Table& table);
[[nodiscard]] nb::tuple export_arrow_array(const Column& column);
[[nodiscard]] nb::tuple export_arrow_device_array(const Table& table);
[[nodiscard]] nb::tuple export_arrow_device_array(const Column& column);
/// Implements __arrow_c_stream__ and __arrow_c_device_stream__.
[[nodiscard]] nb::object export_arrow_stream(const Table& table);
[[nodiscard]] nb::object export_arrow_device_stream(const Table& table);

/// Imports the schema of any object with __arrow_c_schema__.
[[nodiscard]] Schema import_arrow_schema(nb::handle object);

/// Raises NotImplementedError for an option of the protocol that is not None.
void check_arrow_options(const nb::kwargs& options);

void add_arrow(nb::module_& module);

}  // namespace tern::python
