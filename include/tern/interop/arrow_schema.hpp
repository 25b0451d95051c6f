// Schemas and fields in Arrow's C form: what a structure's format, name, flags and metadata say.
//
// Metadata goes through byte for byte. What a table has no type for is refused with arrow_rejected,
// with the path of the field, its value and what may be there; a structure that is imported is
// released once, taken or not. Thread-safe.

#pragma once

#include <string>

#include "tern/core/call_site.hpp"
#include "tern/core/result.hpp"
#include "tern/core/visibility.hpp"
#include "tern/interop/arrow_abi.h"
#include "tern/table/schema.hpp"

namespace tern {

/// "l", "tsu:Europe/Berlin", "U".
[[nodiscard]] TERN_EXPORT std::string arrow_format(const LogicalType& type);
/// Refused with arrow_rejected. Views of texts ("vu", "vz") come as what they are copied into.
[[nodiscard]] TERN_EXPORT Result<LogicalType> try_arrow_type(
    const char* format, CallSite site = CallSite::here()) noexcept;

/// A struct with the fields as children, or one field. The caller's structure is filled, or left
/// released. Refused with invalid_argument for null, out_of_memory.
[[nodiscard]] TERN_EXPORT Result<void> try_export_arrow_schema(
    const Schema& schema, ArrowSchema* out, CallSite site = CallSite::here()) noexcept;
[[nodiscard]] TERN_EXPORT Result<void> try_export_arrow_schema(
    const Field& field, ArrowSchema* out, CallSite site = CallSite::here()) noexcept;

/// Of a struct.
[[nodiscard]] TERN_EXPORT Result<Schema> try_import_arrow_schema(
    ArrowSchema* schema, CallSite site = CallSite::here()) noexcept;
/// Of anything else.
[[nodiscard]] TERN_EXPORT Result<Field> try_import_arrow_field(
    ArrowSchema* schema, CallSite site = CallSite::here()) noexcept;

}  // namespace tern
