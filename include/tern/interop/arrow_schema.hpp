// Schemas and fields in Arrow's C Data interface: format, name, flags and metadata.
//
// Metadata is passed through unchanged. A type that tables do not have fails with arrow_rejected,
// which names the path of the field, its value and what is accepted. An import always releases the
// structure once, even if it fails. Thread-safe.

#pragma once

#include <string>

#include "tern/core/call_site.hpp"
#include "tern/core/result.hpp"
#include "tern/core/visibility.hpp"
#include "tern/interop/arrow_abi.h"
#include "tern/table/schema.hpp"

namespace tern {

/// Returns the Arrow format, such as "l", "tsu:Europe/Berlin" or "U".
[[nodiscard]] TERN_EXPORT std::string arrow_format(const LogicalType& type);
/// Parses an Arrow format. Fails with arrow_rejected. Text views ("vu", "vz") return the type that
/// they are converted to.
[[nodiscard]] TERN_EXPORT Result<LogicalType> try_arrow_type(
    const char* format, CallSite site = CallSite::here()) noexcept;

/// Exports a struct with the fields as children, or one field, into the caller's structure. After a
/// failure the structure is released. Fails with invalid_argument for null and with out_of_memory.
[[nodiscard]] TERN_EXPORT Result<void> try_export_arrow_schema(
    const Schema& schema, ArrowSchema* out, CallSite site = CallSite::here()) noexcept;
[[nodiscard]] TERN_EXPORT Result<void> try_export_arrow_schema(
    const Field& field, ArrowSchema* out, CallSite site = CallSite::here()) noexcept;

/// Imports the fields of a struct.
[[nodiscard]] TERN_EXPORT Result<Schema> try_import_arrow_schema(
    ArrowSchema* schema, CallSite site = CallSite::here()) noexcept;
/// Imports a single field that is not a struct.
[[nodiscard]] TERN_EXPORT Result<Field> try_import_arrow_field(
    ArrowSchema* schema, CallSite site = CallSite::here()) noexcept;

}  // namespace tern
