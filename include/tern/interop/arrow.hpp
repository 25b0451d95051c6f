// Arrow: zero-copy exchange of tables and columns with other libraries, through Arrow's C Data, C
// Device, C Stream and C Device Stream interfaces.
//
// An export fills a structure of the caller. The consumer calls its release once, on any thread.
// Children may be moved out and outlive the parent. Until the release the memory stays in place
// (Export). Device memory is exported with an event that is recorded after its last writers;
// waiting for the event is sufficient.
//
// An import always takes ownership of the structure. Its buffers become external storages, ready
// after the event of the structure. The structure is released once: after the last recorded use of
// all its buffers, or immediately if it is rejected. A table that Tern exported itself is imported
// as the original table.
//
// Every field is checked before memory is allocated for it. An invalid field fails with
// arrow_rejected, which names the path of the field, its value and what is accepted. Pointers
// cannot be checked. Types that tables do not have (dictionaries, lists, decimals, ...) are
// rejected. Text views are converted to offsets on the host, by a copy; nothing else is converted.
// Imported memory is never written.
//
// Devices: (1, -1) host, (2, i) CUDA device i, (3, i) and (13, i) its pinned and managed memory,
// (12, i) simulated device i. Thread-safe.

#pragma once

#include <span>
#include <string>

#include "tern/core/call_site.hpp"
#include "tern/core/result.hpp"
#include "tern/core/tag.hpp"
#include "tern/detail/core/visibility.hpp"
#include "tern/detail/interop/arrow_abi.h"
#include "tern/device/device.hpp"
#include "tern/device/stream.hpp"
#include "tern/table/schema.hpp"
#include "tern/table/table.hpp"

namespace tern {

/// Options of exports and imports.
struct ArrowOptions {
  /// Export: the stream that waits for the writers and records the event. The stream that wrote
  /// last is best. A stream of another device fails with device_mismatch. If empty, the library
  /// uses its own. Import: a stream of the device that waits for the event of the structure. Our
  /// uses are ordered after it, and the host waits only if it has to read offsets. If empty, the
  /// host waits.
  StreamRef stream = {};
  /// Import: checks that every text is UTF-8. Only for memory that the host can read.
  bool checks_text = false;
  /// Import: the tag of the buffers.
  Tag tag = {};
  CallSite site = CallSite::here();
};

// --- Export. `out` is always written; after a failure it is a released structure.

/// Exports a table as a struct array. If the row count is on the device, the host reads it
/// (Table::try_rows_host); unknown null counts are counted. An ArrowArray needs memory that the
/// host can read (else arrow_rejected, which says what to do), and the host waits for its writers.
/// Fails with invalid_view if the row count exceeds the capacity, with never_written, and like
/// allocations and waits.
[[nodiscard]] TERN_EXPORT Result<void> try_export_arrow(const Table& table, ArrowArray* out,
                                                        const ArrowOptions& options = {}) noexcept;
[[nodiscard]] TERN_EXPORT Result<void> try_export_arrow(const Table& table, ArrowDeviceArray* out,
                                                        const ArrowOptions& options = {}) noexcept;
/// Exports all values of a column.
[[nodiscard]] TERN_EXPORT Result<void> try_export_arrow(const Column& column, ArrowArray* out,
                                                        const ArrowOptions& options = {}) noexcept;
[[nodiscard]] TERN_EXPORT Result<void> try_export_arrow(const Column& column, ArrowDeviceArray* out,
                                                        const ArrowOptions& options = {}) noexcept;
/// Exports tables of one schema as a stream. The stream owns the tables and exports each one when
/// the consumer requests it. Fails like Schema::check_match, and with invalid_argument for an empty
/// list.
[[nodiscard]] TERN_EXPORT Result<void> try_export_arrow(std::span<const Table> tables,
                                                        ArrowArrayStream* out,
                                                        CallSite site = CallSite::here()) noexcept;
/// Like the overload above, for memory of any device: each chunk has its own event. All chunks must
/// have one device type (else arrow_rejected). If options.stream has ended when a chunk is
/// requested, or belongs to another device than the chunk, the library uses its own stream.
[[nodiscard]] TERN_EXPORT Result<void> try_export_arrow(std::span<const Table> tables,
                                                        ArrowDeviceArrayStream* out,
                                                        const ArrowOptions& options = {}) noexcept;

// --- Import. Takes ownership of the array and the schema in any case, and releases each once.

/// Maximum number of columns, metadata pairs and chunks of an import.
inline constexpr std::size_t max_arrow_children = std::size_t{1} << 20;

/// Imports a struct array without null rows as a table in memory of `device`; memory of another
/// device fails with device_mismatch, which names both. If the host can read the memory, all
/// offsets are checked and nulls are counted. Otherwise the first and last offset are checked, and
/// the null count of the structure is used. Fails with arrow_rejected, and like an adoption
/// (foreign.hpp).
[[nodiscard]] TERN_EXPORT Result<Table> try_import_arrow(const Device& device, ArrowArray* array,
                                                         ArrowSchema* schema,
                                                         const ArrowOptions& options = {}) noexcept;
[[nodiscard]] TERN_EXPORT Result<Table> try_import_arrow(const Device& device,
                                                         ArrowDeviceArray* array,
                                                         ArrowSchema* schema,
                                                         const ArrowOptions& options = {}) noexcept;
/// Imports an array of any supported type except a struct.
[[nodiscard]] TERN_EXPORT Result<Column> try_import_arrow_column(
    const Device& device, ArrowArray* array, ArrowSchema* schema,
    const ArrowOptions& options = {}) noexcept;
[[nodiscard]] TERN_EXPORT Result<Column> try_import_arrow_column(
    const Device& device, ArrowDeviceArray* array, ArrowSchema* schema,
    const ArrowOptions& options = {}) noexcept;
/// Imports all chunks of a stream and releases it. A single chunk is not copied; several chunks are
/// concatenated by a copy. If a callback of the stream throws, the import fails with
/// arrow_rejected, or with out_of_memory for std::bad_alloc.
[[nodiscard]] TERN_EXPORT Result<Table> try_import_arrow(const Device& device,
                                                         ArrowArrayStream* stream,
                                                         const ArrowOptions& options = {}) noexcept;
/// Imports chunks in memory of `device`, each after its event. A chunk of another device type than
/// the stream's is rejected.
[[nodiscard]] TERN_EXPORT Result<Table> try_import_arrow(const Device& device,
                                                         ArrowDeviceArrayStream* stream,
                                                         const ArrowOptions& options = {}) noexcept;

/// These functions throw what the try_ functions return.
template <class What, class Structure>
void export_arrow(const What& what, Structure* out, const ArrowOptions& options = {}) {
  try_export_arrow(what, out, options).value();
}
template <class Array>
[[nodiscard]] Table import_arrow(const Device& device, Array* array, ArrowSchema* schema,
                                 const ArrowOptions& options = {}) {
  return try_import_arrow(device, array, schema, options).value();
}
template <class Array>
[[nodiscard]] Column import_arrow_column(const Device& device, Array* array, ArrowSchema* schema,
                                         const ArrowOptions& options = {}) {
  return try_import_arrow_column(device, array, schema, options).value();
}

// Schemas and fields in Arrow's C Data interface: format, name, flags and metadata.
//
// Metadata is passed through unchanged. A type that tables do not have fails with arrow_rejected,
// which names the path of the field, its value and what is accepted. An import always releases the
// structure once, even if it fails. Thread-safe.

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
