// Arrow: tables and columns handed to other libraries and taken from them, without a copy, through
// Arrow's C Data, C Device, C Stream and C Device Stream interfaces.
//
// Export fills a structure of the caller's, whose release the other side calls once, on any thread;
// children may be moved out and outlive it. Until then the memory stays where it is (Export).
// Memory of a device goes with an event that is recorded behind its last writers: whoever waits for
// it waits for enough. Import takes a structure over whatever comes: its buffers become external
// storages, ready behind its event, and it is released once, behind the last recorded use of all of
// them, or at once if it is refused. A table that Tern exported itself comes back as what it was.
//
// Everything in a structure is checked before any memory is made of it: what is wrong is
// arrow_rejected, with the path of the field, its value and what may be there. Pointers cannot be
// checked. Types that tables do not have (dictionaries, lists, decimals, ...) are refused; views of
// texts are copied into offsets, on the host; nothing else is converted. Imported memory is never
// written.
//
// Devices are (1, -1) for memory of the host, (2, i) for CUDA device i, (3, i) and (13, i) for its
// pinned and managed memory, (12, i) for simulated devices. Thread-safe.

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

// --- To others. A structure is written in any case: one that is refused is a released one.

struct ArrowExport {
  /// Where waits for the writers are queued and the event is recorded: best the stream that wrote
  /// last, of the memory's device (device_mismatch). None: one of the library's own.
  StreamRef stream = {};
  CallSite site = CallSite::here();
};

/// A struct of as many rows as there are; the host asks where only the device knows
/// (Table::try_rows_host), and counts nulls that nobody counted. The C Data form is for memory the
/// host can read (arrow_rejected names the way out elsewhere), and the host waits for its writers.
/// Refused with invalid_view for a count beyond the capacity, never_written, as allocations and
/// waits are.
[[nodiscard]] TERN_EXPORT Result<void> try_export_arrow(const Table& table, ArrowArray* out,
                                                        const ArrowExport& options = {}) noexcept;
[[nodiscard]] TERN_EXPORT Result<void> try_export_arrow(const Table& table, ArrowDeviceArray* out,
                                                        const ArrowExport& options = {}) noexcept;
/// All values of a column.
[[nodiscard]] TERN_EXPORT Result<void> try_export_arrow(const Column& column, ArrowArray* out,
                                                        const ArrowExport& options = {}) noexcept;
[[nodiscard]] TERN_EXPORT Result<void> try_export_arrow(const Column& column, ArrowDeviceArray* out,
                                                        const ArrowExport& options = {}) noexcept;
/// Tables of one schema, one after the other: each is exported when it is asked for, and is the
/// stream's until then. Refused as Schema::check_match, and with invalid_argument for none.
[[nodiscard]] TERN_EXPORT Result<void> try_export_arrow(std::span<const Table> tables,
                                                        ArrowArrayStream* out,
                                                        CallSite site = CallSite::here()) noexcept;
/// The same for memory of any device: each chunk goes with an event of its own. All of them are of
/// one device type (arrow_rejected). A stream that is named and has ended when a chunk is asked
/// for, or is of another device than that chunk, makes way for one of the library's own.
[[nodiscard]] TERN_EXPORT Result<void> try_export_arrow(std::span<const Table> tables,
                                                        ArrowDeviceArrayStream* out,
                                                        const ArrowExport& options = {}) noexcept;

// --- From others. Array and schema are taken in any case, and released once each.

struct ArrowImport {
  /// A stream of the device, which waits for the event of the structure: our uses come behind that,
  /// and the host waits only where it has to look at offsets. None: the host waits.
  StreamRef stream = {};
  /// Every text is looked at, to see that it is UTF-8; of memory the host can read.
  bool checks_text = false;
  Tag tag = {};
  CallSite site = CallSite::here();
};

/// Most columns, metadata pairs and chunks that are believed in.
inline constexpr std::size_t max_arrow_children = std::size_t{1} << 20;

/// A struct without nulls, as a table of its rows in memory of `device` (device_mismatch, naming
/// both). Offsets are all looked at where the host can read them, else the first and the last; so
/// are bitmaps, whose nulls are counted there, and elsewhere are as many as the structure says.
/// Refused with arrow_rejected, and as adoption is.
[[nodiscard]] TERN_EXPORT Result<Table> try_import_arrow(const Device& device, ArrowArray* array,
                                                         ArrowSchema* schema,
                                                         const ArrowImport& options = {}) noexcept;
[[nodiscard]] TERN_EXPORT Result<Table> try_import_arrow(const Device& device,
                                                         ArrowDeviceArray* array,
                                                         ArrowSchema* schema,
                                                         const ArrowImport& options = {}) noexcept;
/// Anything but a struct.
[[nodiscard]] TERN_EXPORT Result<Column> try_import_arrow_column(
    const Device& device, ArrowArray* array, ArrowSchema* schema,
    const ArrowImport& options = {}) noexcept;
[[nodiscard]] TERN_EXPORT Result<Column> try_import_arrow_column(
    const Device& device, ArrowDeviceArray* array, ArrowSchema* schema,
    const ArrowImport& options = {}) noexcept;
/// All chunks of a stream, which is released. One chunk stays where it is; several are put together
/// by a copy.
[[nodiscard]] TERN_EXPORT Result<Table> try_import_arrow(const Device& device,
                                                         ArrowArrayStream* stream,
                                                         const ArrowImport& options = {}) noexcept;
/// Chunks in memory of `device`, each behind its event. One of another device type than the
/// stream's is refused.
[[nodiscard]] TERN_EXPORT Result<Table> try_import_arrow(const Device& device,
                                                         ArrowDeviceArrayStream* stream,
                                                         const ArrowImport& options = {}) noexcept;

/// The same, throwing.
template <class What, class Structure>
void export_arrow(const What& what, Structure* out, const ArrowExport& options = {}) {
  try_export_arrow(what, out, options).value();
}
template <class Array>
[[nodiscard]] Table import_arrow(const Device& device, Array* array, ArrowSchema* schema,
                                 const ArrowImport& options = {}) {
  return try_import_arrow(device, array, schema, options).value();
}
template <class Array>
[[nodiscard]] Column import_arrow_column(const Device& device, Array* array, ArrowSchema* schema,
                                         const ArrowImport& options = {}) {
  return try_import_arrow_column(device, array, schema, options).value();
}

// Schemas and fields in Arrow's C form: what a structure's format, name, flags and metadata say.
//
// Metadata goes through byte for byte. What a table has no type for is refused with arrow_rejected,
// with the path of the field, its value and what may be there; a structure that is imported is
// released once, taken or not. Thread-safe.

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
