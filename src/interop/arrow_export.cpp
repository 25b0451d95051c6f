// Exports tables and columns as Arrow structures. try_pack_table() gets the row count from
// Table::try_rows_host(), which reads it from the device if the host does not know it.

#include <array>
#include <atomic>
#include <cerrno>
#include <memory>
#include <mutex>
#include <new>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "buffer/export_batch.hpp"
#include "core/no_host_memory.hpp"
#include "device/device_state.hpp"
#include "interop/arrow_rejected.hpp"
#include "interop/device_ordinal.hpp"
#include "interop/exported_arrow.hpp"
#include "interop/foreign_release.hpp"
#include "table/bitmap.hpp"
#include "tern/core/bytes.hpp"
#include "tern/device/event.hpp"
#include "tern/interop/arrow.hpp"
#include "tern/interop/dlpack.hpp"

namespace tern {
namespace {

Failure no_structure(CallSite site) noexcept {
  return Failure(ErrorCode::invalid_argument,
                 "the pointer to an Arrow structure is missing: '{name}' is {value}.", site)
      .with("name", "out")
      .with("value", "null");
}

/// A text column has one offset even if it has no values.
alignas(64) constexpr std::int64_t no_offset = 0;

struct ExportState;

/// One exported column. Its Arrow structure points to this object.
struct Piece {
  ArrowArray array = {};
  std::array<const void*, 3> buffers = {};
  std::array<Storage*, 3> exported = {};  // exported storages, kept alive by the column
  ExportState* state = nullptr;
  const Column* column = nullptr;  // of the state, or `own`; null after the release
  Column* own = nullptr;           // for a child that outlives its struct
};

/// The memory that exported structures point to, in one allocation: this object, a Piece per
/// column, and the child pointers. It is reference-counted by the struct and each child, because a
/// consumer may move children out.
struct ExportState {
  std::atomic<std::size_t> shares = 0;
  std::mutex mutex;  // guards the columns of pieces after the first release
  Event event;       // destroyed last: a holder of the memory may still wait for it
  void* event_slot = nullptr;
  Table table;
  Column column;
  std::size_t rows = 0;
  std::span<Piece> pieces = {};
  ArrowArray** children = nullptr;
  std::array<const void*, 1> base_buffers = {};
};

void release(Piece& piece, ExportBatch& batch) noexcept {
  for (Storage*& storage : piece.exported) {
    if (storage != nullptr) batch.end(*std::exchange(storage, nullptr));
  }
}

void end(ExportState* state) noexcept {
  {
    ExportBatch batch;
    for (Piece& piece : state->pieces) release(piece, batch);
  }
  for (Piece& piece : state->pieces) delete std::exchange(piece.own, nullptr);
  std::destroy_at(state);
  ::operator delete(state);
}

struct EndExport {
  void operator()(ExportState* state) const noexcept { end(state); }
};
using ExportStateOwner = std::unique_ptr<ExportState, EndExport>;

/// Throws std::bad_alloc.
ExportStateOwner make_export_state(std::size_t columns) {
  static_assert(sizeof(ExportState) % alignof(Piece) == 0 &&
                std::is_trivially_destructible_v<Piece>);
  // Cannot overflow: a schema has at most this many fields, and fields are larger.
  std::byte* const memory = static_cast<std::byte*>(
      ::operator new(sizeof(ExportState) + columns * (sizeof(Piece) + sizeof(ArrowArray*))));
  ExportStateOwner made(::new (static_cast<void*>(memory)) ExportState);
  Piece* const pieces = reinterpret_cast<Piece*>(memory + sizeof(ExportState));
  std::uninitialized_value_construct_n(pieces, columns);
  made->pieces = {pieces, columns};
  made->children = reinterpret_cast<ArrowArray**>(pieces + columns);
  for (std::size_t i = 0; i < columns; ++i) {
    pieces[i].state = made.get();
    made->children[i] = &pieces[i].array;
  }
  return made;
}

void drop(ExportState* state, std::size_t shares = 1) noexcept {
  if (state->shares.fetch_sub(shares, std::memory_order_acq_rel) == shares) end(state);
}

void release_column(ArrowArray* self) {
  Piece* const piece = static_cast<Piece*>(self->private_data);
  ExportState* const state = piece->state;
  {
    ExportBatch batch;
    release(*piece, batch);
  }
  Column* own = nullptr;
  {
    const std::lock_guard lock(state->mutex);
    piece->column = nullptr;
    own = std::exchange(piece->own, nullptr);
  }
  delete own;
  self->release = nullptr;
  drop(state);
}

/// Gives each child that was moved out its own copy of its column, so that the other columns can be
/// freed.
void divide(ExportState& state) noexcept {
  {
    const std::lock_guard lock(state.mutex);
    for (Piece& piece : state.pieces) {
      if (piece.column == nullptr) continue;
      try {
        piece.own = new Column(*piece.column);
      } catch (const std::bad_alloc&) {
        return;  // out of memory: the children keep all columns alive
      }
      piece.column = piece.own;
    }
  }
  state.table = Table();
}

void release_table(ArrowArray* self) {
  ExportState* const state = static_cast<ExportState*>(self->private_data);
  // Drops the references of the struct and of the children that were not moved out in one step.
  std::size_t shares = 1;
  {
    ExportBatch batch;
    for (std::int64_t i = 0; i < self->n_children; ++i) {
      ArrowArray* const child = self->children[i];
      if (child->release == nullptr) continue;
      Piece* const piece =
          child->release == release_column ? static_cast<Piece*>(child->private_data) : nullptr;
      if (piece == nullptr || piece->state != state) {
        call_release(*child);  // the consumer has put another structure here
        continue;
      }
      release(*piece, batch);
      piece->column = nullptr;
      child->release = nullptr;
      ++shares;
    }
  }
  if (shares <= state->pieces.size()) divide(*state);
  self->release = nullptr;
  drop(state, shares);
}

/// The Arrow device of all memory of an export.
struct DeviceLocation {
  ArrowDeviceType type = ARROW_DEVICE_CPU;
  std::int64_t id = -1;
  const Device* device = nullptr;  // the device of a storage; null if there is no memory

  [[nodiscard]] bool is_known() const noexcept { return device != nullptr; }
};

Failure no_device_type(const Storage& storage, CallSite site) noexcept {
  return Failure(ErrorCode::arrow_rejected,
                 "Arrow has no device type for {value} memory of '{device}'. Copy the memory to "
                 "the host first.",
                 site)
      .with("field", "device")
      .with("value", name(storage.kind()))
      .with("device", storage.device().spec());
}

Result<DeviceLocation> try_name(const Storage& storage, CallSite site) noexcept {
  const Result<abi::DLDevice> word = try_dlpack_device(storage, site);
  if (!word) return no_device_type(storage, site);
  const bool is_host = word->device_type == ARROW_DEVICE_CPU;
  return DeviceLocation{word->device_type, is_host ? -1 : device_ordinal(storage.device()),
                        &storage.device()};
}

/// Returns the device of a table without rows: its columns' device, because a consumer looks for an
/// empty array on that device too. No device if the columns have no buffers.
DeviceLocation find_empty(std::span<const Column> columns) noexcept {
  for (const Column& column : columns) {
    const ColumnParts& parts = column.parts();
    for (const Buffer* part : {&parts.values, &parts.validity, &parts.offsets}) {
      if (!*part) continue;
      if (const Result<DeviceLocation> named = try_name(*part->storage(), {}); named) return *named;
    }
  }
  return {};
}

bool has_first_offset(const Buffer& offsets, std::size_t width) noexcept {
  if (!offsets || offsets.size_bytes() == 0) return false;
  return static_cast<bool>(offsets.storage()->check_written(offsets.offset_bytes(), width, {}));
}

class Packer {
 public:
  /// `standing`: the stream was passed long ago, to an exported stream of tables. Its owner may
  /// have ended it, or may end it during the export in another thread.
  Packer(bool is_for_host, const ArrowOptions& options, StreamRef standing = {}) noexcept
      : is_for_host_(is_for_host), options_(options), standing_(standing) {}

  [[nodiscard]] Result<void> try_pack(Piece& piece, std::size_t rows, const Column& column) {
    const ColumnParts& parts = column.parts();
    const LogicalType& type = column.type();
    const Result<std::size_t> nulls = column.try_count_nulls(rows, options_.site);
    if (!nulls) return nulls.failure();
    // Without rows no value is exported, so no address is needed.
    const std::size_t first = rows == 0 ? 0 : parts.first, end = first + rows;
    Result<void> added = *nulls == 0
                             ? Result<void>()
                             : try_add(piece, 0, parts.validity, first / 8, bitmap_bytes(end));
    std::int64_t buffers = 2;
    if (added && type.is_variable()) {
      buffers = 3;
      const std::size_t width = size_bytes(type.offset_dtype());
      // A column without texts needs no written offsets.
      if (rows != 0 || has_first_offset(parts.offsets, width)) {
        added = try_add(piece, 1, parts.offsets, first * width, (end + 1) * width);
      }
      if (added) {
        added = try_add(piece, 2, parts.values, 0, rows == 0 ? 0 : parts.values.size_bytes(),
                        Part::texts);
      }
      if (is_for_host_ && piece.buffers[1] == nullptr) piece.buffers[1] = &no_offset;
    } else if (added) {
      const std::size_t width = type.is_bits() ? 0 : size_bytes(type.dtype());
      const std::size_t begin = type.is_bits() ? first / 8 : first * width;
      const std::size_t bytes = type.is_bits() ? bitmap_bytes(end) : end * width;
      added = try_add(piece, 1, parts.values, begin, rows == 0 ? begin : bytes);
    }
    if (!added) return added;
    piece.column = &column;
    ArrowArray& array = piece.array;
    array.length = static_cast<std::int64_t>(rows);
    array.null_count = static_cast<std::int64_t>(*nulls);
    array.offset = static_cast<std::int64_t>(first);
    array.n_buffers = buffers;
    array.buffers = piece.buffers.data();
    array.release = release_column;
    array.private_data = &piece;
    return {};
  }

  /// Makes the event, or the host, wait for all writers.
  [[nodiscard]] Result<void> try_order(ExportState& state) noexcept {
    if (!where_.is_known()) return {};
    if (where_.type == ARROW_DEVICE_CPU) {
      for (const Mark mark : waits_.all()) {
        if (Result<void> done = Device::try_wait(mark); !done) return done;
      }
      return {};
    }
    Result<Event> event = Event::try_make(*where_.device);
    if (!event) return event.failure();
    MarkSet others;
    {
      // A stream of another device may belong to a closed device, so it is not used.
      const StreamPin stay(standing_.device_id() == where_.device->id() ? standing_ : StreamRef{});
      StreamRef stream = stay ? standing_ : options_.stream;
      if (!stream.id()) {
        const Result<StreamRef> own = where_.device->try_copy_stream();
        if (!own) return own.failure();
        stream = *own;
      }
      for (const Mark mark : waits_.all()) {
        if (mark.stream == stream.id()) continue;
        Result<void> queued = stream.try_wait(mark, options_.site);
        // The host waits for marks of other backends, outside the pin of the stream.
        if (!queued && queued.failure().code() == ErrorCode::device_mismatch) {
          queued = others.try_add(mark) ? Result<void>()
                                        : no_host_memory("an Arrow array", options_.site);
        }
        if (!queued) return queued;
      }
      if (Result<void> recorded = stream.try_record(*event, options_.site); !recorded) {
        return recorded;
      }
    }
    for (const Mark mark : others.all()) {
      if (Result<void> done = Device::try_wait(mark); !done) return done;
    }
    state.event = *std::move(event);
    state.event_slot = reinterpret_cast<void*>(state.event.native().value);
    return {};
  }

  [[nodiscard]] const DeviceLocation& where() const noexcept { return where_; }

 private:
  [[nodiscard]] Result<void> try_place(const Storage& storage) {
    const CallSite site = options_.site;
    // Most storages are on the same device as the one before, so the lookup is cached.
    if (where_.is_known() && storage.kind() == last_kind_ && storage.device() == *where_.device) {
      return {};
    }
    last_kind_ = storage.kind();
    if (is_for_host_) {
      if (storage.reach().host_reads) {
        where_ = {ARROW_DEVICE_CPU, -1, &storage.device()};
        return {};
      }
      return Failure(ErrorCode::arrow_rejected,
                     "the host cannot access {value} memory of '{device}'. Export an "
                     "ArrowDeviceArray, or a copy on the host.",
                     site)
          .with("field", "device")
          .with("value", name(storage.kind()))
          .with("device", storage.device().spec());
    }
    const Result<DeviceLocation> named = try_name(storage, site);
    if (!named) return named.failure();
    if (!where_.is_known()) {
      where_ = *named;
      if (where_.type != ARROW_DEVICE_CPU && options_.stream.id() &&
          options_.stream.device_id() != storage.device().id()) {
        return Failure(ErrorCode::device_mismatch,
                       "memory of '{a}' cannot be ordered by a stream of device {b}. Use a stream "
                       "of '{a}'.",
                       site)
            .with("a", storage.device().spec())
            .with("b", options_.stream.device_id().value);
      }
      return {};
    }
    if (where_.type == named->type && where_.id == named->id) return {};
    return Failure(ErrorCode::arrow_rejected,
                   "one array has memory of device ({a}, {a_id}) and of device ({b}, {b_id}). Copy "
                   "its columns to one device.",
                   site)
        .with("field", "device")
        .with("value", name(storage.kind()))
        .with_signed("a", where_.type)
        .with_signed("a_id", where_.id)
        .with_signed("b", named->type)
        .with_signed("b_id", named->id);
  }

  /// Texts need not be written in full: the offsets say which bytes the consumer reads.
  enum class Part : std::uint8_t { whole, texts };
  /// Adds a buffer of which the consumer reads the bytes from `begin` to `end`. Bytes before them
  /// may never have been written.
  [[nodiscard]] Result<void> try_add(Piece& piece, std::size_t index, const Buffer& buffer,
                                     std::size_t begin, std::size_t end, Part part = Part::whole) {
    if (end == begin || buffer.size_bytes() == 0) return {};
    Storage& storage = *buffer.storage();
    const CallSite site = options_.site;
    if (Result<void> placed = try_place(storage); !placed) return placed;
    if (part == Part::whole) {
      Result<void> written =
          storage.check_written(buffer.offset_bytes() + begin, end - begin, site);
      if (!written) return written;
    }
    if (!storage.is_allocated()) {
      if (Result<void> there = storage.try_ensure(options_.stream, site); !there) return there;
    }
    if (Result<void> begun = batch_.try_begin(storage, site); !begun) return begun;
    piece.exported[index] = &storage;
    const std::byte* first = storage.first_byte();
    // The host waits once for the writers of all columns.
    if (!storage.uses().try_collect(Access::read, waits_)) {
      return no_host_memory("an Arrow array", site);
    }
    if (where_.type == ARROW_DEVICE_CPU) {
      const Result<StorageOrigin::Memory> memory = storage.try_memory();
      if (memory && memory->host_address != nullptr) {
        first = static_cast<const std::byte*>(memory->host_address);
      }
    }
    piece.buffers[index] = first + buffer.offset_bytes();
    return {};
  }

  const bool is_for_host_;
  const ArrowOptions& options_;
  const StreamRef standing_;
  DeviceLocation where_;
  MemoryKind last_kind_ = MemoryKind::file;  // valid if a location is known
  MarkSet waits_;
  ExportBatch batch_;
};

/// Adds the root structure to an export state.
struct Packed {
  ArrowArray array = {};
  DeviceLocation where = {};
  void** event = nullptr;
};

Result<Packed> try_pack_table(const Table& table, bool is_for_host, const ArrowOptions& options,
                              StreamRef standing = {}) noexcept try {
  const Result<std::uint64_t> rows = table.try_rows_host(options.site);
  if (!rows) return rows.failure();
  if (*rows > max_request_bytes) {
    return Failure(ErrorCode::size_overflow,
                   "a table has {rows} rows, and Arrow counts rows in 63 bits. Export parts of it.",
                   options.site)
        .with("rows", *rows);
  }
  ExportStateOwner state = make_export_state(table.arity());
  state->table = table;
  state->rows = static_cast<std::size_t>(*rows);
  Packer packer(is_for_host, options, standing);
  const std::span<const Column> columns = state->table.columns();
  for (std::size_t i = 0; i < columns.size(); ++i) {
    if (Result<void> packed = packer.try_pack(state->pieces[i], state->rows, columns[i]); !packed) {
      return Failure(packed.failure()).with("column", table.schema().fields()[i].name);
    }
  }
  if (Result<void> ordered = packer.try_order(*state); !ordered) return ordered.failure();
  state->shares = 1 + table.arity();
  Packed packed;
  packed.where = packer.where().is_known() ? packer.where() : find_empty(state->table.columns());
  packed.event = state->event_slot != nullptr ? &state->event_slot : nullptr;
  ArrowArray& array = packed.array;
  array.length = static_cast<std::int64_t>(state->rows);
  array.n_buffers = 1;
  array.buffers = state->base_buffers.data();
  array.n_children = static_cast<std::int64_t>(table.arity());
  array.children = state->children;
  array.release = release_table;
  array.private_data = state.release();
  return packed;
} catch (const std::bad_alloc&) {
  return no_host_memory("an Arrow array", options.site);
}

Result<Packed> try_pack_column(const Column& column, bool is_for_host,
                               const ArrowOptions& options) noexcept try {
  ExportStateOwner state = make_export_state(1);
  state->column = column;
  state->rows = column.capacity();
  Piece& piece = state->pieces[0];
  Packer packer(is_for_host, options);
  if (Result<void> packed = packer.try_pack(piece, state->rows, state->column); !packed) {
    return packed.failure();
  }
  if (Result<void> ordered = packer.try_order(*state); !ordered) return ordered.failure();
  state->shares = 1;
  Packed packed;
  packed.where = packer.where().is_known() ? packer.where() : find_empty({&state->column, 1});
  packed.event = state->event_slot != nullptr ? &state->event_slot : nullptr;
  packed.array = piece.array;
  static_cast<void>(state.release());
  return packed;
} catch (const std::bad_alloc&) {
  return no_host_memory("an Arrow array", options.site);
}

Result<void> put(const Result<Packed>& packed, ArrowArray& out) noexcept {
  if (!packed) return packed.failure();
  out = packed->array;
  return {};
}

Result<void> put(const Result<Packed>& packed, ArrowDeviceArray& out) noexcept {
  if (!packed) return packed.failure();
  out.array = packed->array;
  out.device_id = packed->where.id;
  out.device_type = packed->where.type;
  out.sync_event = packed->event;
  return {};
}

// --- Exported streams of arrays and of device arrays

struct Chunks {
  std::vector<Table> tables;
  std::size_t next = 0;
  ArrowOptions options = {};
  ArrowDeviceType type = ARROW_DEVICE_CPU;  // the same for all tables
  std::int64_t id = -1;                     // for tables without memory
  std::string error;
};

template <class Stream>
Chunks& chunks_of(Stream* stream) noexcept {
  return *static_cast<Chunks*>(stream->private_data);
}

/// Returns the errno value for a failure.
int fail(Chunks& chunks, const Failure& failure) noexcept try {
  chunks.error = failure.text();
  return failure.code() == ErrorCode::out_of_memory ? ENOMEM : EIO;
} catch (const std::bad_alloc&) {
  return ENOMEM;
}

template <class Stream>
int get_schema(Stream* stream, ArrowSchema* out) {
  Chunks& chunks = chunks_of(stream);
  const Result<void> made = try_export_arrow_schema(chunks.tables.front().schema(), out);
  return made ? 0 : fail(chunks, made.failure());
}

Result<void> try_next(Chunks& chunks, ArrowArray* out) noexcept {
  return try_export_arrow(chunks.tables[chunks.next], out, chunks.options);
}
Result<void> try_next(Chunks& chunks, ArrowDeviceArray* out) noexcept {
  const CallSite site = chunks.options.site;
  if (out == nullptr) return no_structure(site);
  *out = {};
  // The stream was passed when the export was made. Its device may not be the device of this table.
  Result<void> made =
      put(try_pack_table(chunks.tables[chunks.next], false, {.site = site}, chunks.options.stream),
          *out);
  if (made && out->sync_event == nullptr) {
    out->device_type = chunks.type;
    out->device_id = chunks.id;
  }
  return made;
}

template <class Stream, class Array>
int get_next(Stream* stream, Array* out) {
  Chunks& chunks = chunks_of(stream);
  if (chunks.next == chunks.tables.size()) {
    *out = {};
    return 0;
  }
  if (const Result<void> made = try_next(chunks, out); !made) return fail(chunks, made.failure());
  // The first table is kept for its schema.
  if (chunks.next != 0) chunks.tables[chunks.next] = Table();
  ++chunks.next;
  return 0;
}

template <class Stream>
const char* get_last_error(Stream* stream) {
  const std::string& error = chunks_of(stream).error;
  return error.empty() ? nullptr : error.c_str();
}

template <class Stream>
void release_stream(Stream* stream) {
  delete &chunks_of(stream);
  stream->release = nullptr;
}

/// Returns the location of a table's memory, or none if it has no memory.
Result<DeviceLocation> try_find(const Table& table, CallSite site) noexcept {
  for (const Column& column : table.columns()) {
    const ColumnParts& parts = column.parts();
    for (const Buffer* part : {&parts.values, &parts.validity, &parts.offsets}) {
      if (*part && part->size_bytes() != 0) return try_name(*part->storage(), site);
    }
  }
  return DeviceLocation{};
}

Result<void> try_make_stream(std::span<const Table> tables, Chunks& chunks,
                             const ArrowOptions& options) {
  const CallSite site = options.site;
  if (tables.empty()) {
    return Failure(ErrorCode::invalid_argument,
                   "'{name}' of a stream are {value}. Pass at least one, because the schema comes "
                   "from it.",
                   site)
        .with("name", "tables")
        .with("value", std::uint64_t{0});
  }
  for (const Table& table : tables) {
    if (Result<void> same = table.schema().check_match(tables[0].schema(), {}, site); !same) {
      return same;
    }
  }
  chunks.tables.assign(tables.begin(), tables.end());
  chunks.options = options;
  return {};
}

template <class Stream>
void fill(Stream& out, std::unique_ptr<Chunks> chunks) noexcept {
  out.get_schema = get_schema<Stream>;
  out.get_next = get_next;
  out.get_last_error = get_last_error<Stream>;
  out.release = release_stream<Stream>;
  out.private_data = chunks.release();
}

bool is_untouched(const Piece& piece, const ArrowArray& array) noexcept {
  const ArrowArray& ours = piece.array;
  return array.length == ours.length && array.offset == ours.offset &&
         array.null_count == ours.null_count && array.n_buffers == ours.n_buffers &&
         array.buffers == ours.buffers && array.n_children == 0 && array.dictionary == nullptr;
}

}  // namespace

const Table* exported_table(const ArrowArray& array) noexcept {
  if (array.release != release_table) return nullptr;
  const ExportState& state = *static_cast<const ExportState*>(array.private_data);
  if (array.length != static_cast<std::int64_t>(state.rows) || array.offset != 0 ||
      array.n_children != static_cast<std::int64_t>(state.pieces.size()) ||
      array.children != state.children) {
    return nullptr;
  }
  for (std::size_t i = 0; i < state.pieces.size(); ++i) {
    const Piece& piece = state.pieces[i];
    // A child that was moved out no longer refers to a column of this state.
    if (state.children[i] != &piece.array || piece.array.release != release_column) {
      return nullptr;
    }
    const std::size_t first = state.rows == 0 ? 0 : piece.column->parts().first;
    if (piece.array.private_data != &piece || piece.array.length != array.length ||
        piece.array.offset != static_cast<std::int64_t>(first) ||
        piece.array.buffers != piece.buffers.data()) {
      return nullptr;
    }
  }
  return &state.table;
}

ExportedColumn exported_column(const ArrowArray& array) noexcept {
  if (array.release != release_column) return {};
  const Piece& piece = *static_cast<const Piece*>(array.private_data);
  if (!is_untouched(piece, array)) return {};
  try {
    const std::lock_guard lock(piece.state->mutex);
    return {*piece.column, static_cast<std::size_t>(array.length)};
  } catch (const std::bad_alloc&) {
    return {};
  }
}

Result<void> try_export_arrow(const Table& table, ArrowArray* out,
                              const ArrowOptions& options) noexcept {
  if (out == nullptr) return no_structure(options.site);
  *out = {};
  return put(try_pack_table(table, true, options), *out);
}

Result<void> try_export_arrow(const Table& table, ArrowDeviceArray* out,
                              const ArrowOptions& options) noexcept {
  if (out == nullptr) return no_structure(options.site);
  *out = {};
  return put(try_pack_table(table, false, options), *out);
}

Result<void> try_export_arrow(const Column& column, ArrowArray* out,
                              const ArrowOptions& options) noexcept {
  if (out == nullptr) return no_structure(options.site);
  *out = {};
  return put(try_pack_column(column, true, options), *out);
}

Result<void> try_export_arrow(const Column& column, ArrowDeviceArray* out,
                              const ArrowOptions& options) noexcept {
  if (out == nullptr) return no_structure(options.site);
  *out = {};
  return put(try_pack_column(column, false, options), *out);
}

Result<void> try_export_arrow(std::span<const Table> tables, ArrowArrayStream* out,
                              CallSite site) noexcept try {
  if (out == nullptr) return no_structure(site);
  *out = {};
  auto chunks = std::make_unique<Chunks>();
  if (Result<void> made = try_make_stream(tables, *chunks, {.site = site}); !made) return made;
  fill(*out, std::move(chunks));
  return {};
} catch (const std::bad_alloc&) {
  return no_host_memory("an Arrow array", site);
}

Result<void> try_export_arrow(std::span<const Table> tables, ArrowDeviceArrayStream* out,
                              const ArrowOptions& options) noexcept try {
  const CallSite site = options.site;
  if (out == nullptr) return no_structure(site);
  *out = {};
  auto chunks = std::make_unique<Chunks>();
  if (Result<void> made = try_make_stream(tables, *chunks, options); !made) return made;
  bool is_known = false;
  for (const Table& table : chunks->tables) {
    const Result<DeviceLocation> there = try_find(table, site);
    if (!there) return there.failure();
    if (!there->is_known()) continue;
    if (!std::exchange(is_known, true)) {
      chunks->type = there->type;
      chunks->id = there->id;
    }
    if (there->type == chunks->type) continue;
    return Failure(ErrorCode::arrow_rejected,
                   "one stream has memory of device type {a} and of device type {b}. Copy its "
                   "tables to one device, or export several streams.",
                   site)
        .with("field", "device_type")
        .with_signed("a", chunks->type)
        .with_signed("b", there->type);
  }
  for (const Table& table : chunks->tables) {
    if (is_known) break;
    const DeviceLocation there = find_empty(table.columns());
    is_known = there.is_known();
    chunks->type = there.type;
    chunks->id = there.id;
  }
  out->device_type = chunks->type;
  fill(*out, std::move(chunks));
  return {};
} catch (const std::bad_alloc&) {
  return no_host_memory("an Arrow array", options.site);
}

}  // namespace tern
