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
#include "interop/arrow_shipment.hpp"
#include "interop/device_ordinal.hpp"
#include "interop/release_of_others.hpp"
#include "table/bitmap.hpp"
#include "tern/core/bytes.hpp"
#include "tern/device/event.hpp"
#include "tern/interop/arrow.hpp"
#include "tern/interop/dlpack.hpp"

namespace tern {
namespace {

Failure no_structure(CallSite site) noexcept {
  return Failure(ErrorCode::invalid_argument, "an Arrow structure is missing: '{name}' is {value}.",
                 site)
      .with("name", "out")
      .with("value", "null");
}

/// Texts have an offset even where there are none of them.
alignas(64) constexpr std::int64_t no_offset = 0;

struct Shipment;

/// One column of a shipment, whose structure points here.
struct Piece {
  ArrowArray array = {};
  std::array<const void*, 3> buffers = {};
  std::array<Storage*, 3> escaped = {};  // kept by the column
  Shipment* shipment = nullptr;
  const Column* column = nullptr;  // the shipment's, or its own; null once it was released
  Column* own = nullptr;           // of a child whose struct was released before it
};

/// What exported structures point to, in one piece of memory: this, a piece for each column, and
/// pointers to their structures. The struct and each child have a share, because children may be
/// moved out.
struct Shipment {
  std::atomic<std::size_t> shares = 0;
  std::mutex mutex;  // of the columns of pieces, once the struct or a child was released
  Event event;       // after everything else: whoever has memory may still wait for it
  void* event_slot = nullptr;
  Table table;
  Column column;
  std::size_t rows = 0;
  std::span<Piece> pieces = {};
  ArrowArray** children = nullptr;
  std::array<const void*, 1> base_buffers = {};
};

void let_go(Piece& piece, ExportBatch& batch) noexcept {
  for (Storage*& storage : piece.escaped) {
    if (storage != nullptr) batch.end(*std::exchange(storage, nullptr));
  }
}

void end(Shipment* shipment) noexcept {
  {
    ExportBatch batch;
    for (Piece& piece : shipment->pieces) let_go(piece, batch);
  }
  for (Piece& piece : shipment->pieces) delete std::exchange(piece.own, nullptr);
  std::destroy_at(shipment);
  ::operator delete(shipment);
}

struct EndShipment {
  void operator()(Shipment* shipment) const noexcept { end(shipment); }
};
using ShipmentOwner = std::unique_ptr<Shipment, EndShipment>;

/// Throws std::bad_alloc.
ShipmentOwner make_shipment(std::size_t columns) {
  static_assert(sizeof(Shipment) % alignof(Piece) == 0 && std::is_trivially_destructible_v<Piece>);
  // No more than a schema has fields, which are larger.
  std::byte* const memory = static_cast<std::byte*>(
      ::operator new(sizeof(Shipment) + columns * (sizeof(Piece) + sizeof(ArrowArray*))));
  ShipmentOwner made(::new (static_cast<void*>(memory)) Shipment);
  Piece* const pieces = reinterpret_cast<Piece*>(memory + sizeof(Shipment));
  std::uninitialized_value_construct_n(pieces, columns);
  made->pieces = {pieces, columns};
  made->children = reinterpret_cast<ArrowArray**>(pieces + columns);
  for (std::size_t i = 0; i < columns; ++i) {
    pieces[i].shipment = made.get();
    made->children[i] = &pieces[i].array;
  }
  return made;
}

void drop(Shipment* shipment, std::size_t shares = 1) noexcept {
  if (shipment->shares.fetch_sub(shares, std::memory_order_acq_rel) == shares) end(shipment);
}

void release_column(ArrowArray* self) {
  Piece* const piece = static_cast<Piece*>(self->private_data);
  Shipment* const shipment = piece->shipment;
  {
    ExportBatch batch;
    let_go(*piece, batch);
  }
  Column* own = nullptr;
  {
    const std::lock_guard lock(shipment->mutex);
    piece->column = nullptr;
    own = std::exchange(piece->own, nullptr);
  }
  delete own;
  self->release = nullptr;
  drop(shipment);
}

/// Children that were moved out keep their own columns from now on, and not those of the others.
void divide(Shipment& shipment) noexcept {
  {
    const std::lock_guard lock(shipment.mutex);
    for (Piece& piece : shipment.pieces) {
      if (piece.column == nullptr) continue;
      try {
        piece.own = new Column(*piece.column);
      } catch (const std::bad_alloc&) {
        return;  // they keep all of them
      }
      piece.column = piece.own;
    }
  }
  shipment.table = Table();
}

void release_table(ArrowArray* self) {
  Shipment* const shipment = static_cast<Shipment*>(self->private_data);
  // Shares of its own and of the children that are still there are given back at once.
  std::size_t shares = 1;
  {
    ExportBatch batch;
    for (std::int64_t i = 0; i < self->n_children; ++i) {
      ArrowArray* const child = self->children[i];
      if (child->release == nullptr) continue;
      Piece* const piece =
          child->release == release_column ? static_cast<Piece*>(child->private_data) : nullptr;
      if (piece == nullptr || piece->shipment != shipment) {
        release_of_others(*child);  // somebody put another one there
        continue;
      }
      let_go(*piece, batch);
      piece->column = nullptr;
      child->release = nullptr;
      ++shares;
    }
  }
  if (shares <= shipment->pieces.size()) divide(*shipment);
  self->release = nullptr;
  drop(shipment, shares);
}

/// Where all memory of a shipment is, in Arrow's words.
struct Whereabouts {
  ArrowDeviceType type = ARROW_DEVICE_CPU;
  std::int64_t id = -1;
  const Device* device = nullptr;  // a storage's; none where there is no memory

  [[nodiscard]] bool is_known() const noexcept { return device != nullptr; }
};

Failure no_word(const Storage& storage, CallSite site) noexcept {
  return Failure(ErrorCode::arrow_rejected,
                 "Arrow has no word for {value} memory of '{device}'. Copy it to the host first.",
                 site)
      .with("field", "device")
      .with("value", name(storage.kind()))
      .with("device", storage.device().spec());
}

Result<Whereabouts> try_name(const Storage& storage, CallSite site) noexcept {
  const Result<abi::DLDevice> word = try_dlpack_device(storage, site);
  if (!word) return no_word(storage, site);
  const bool is_host = word->device_type == ARROW_DEVICE_CPU;
  return Whereabouts{word->device_type, is_host ? -1 : device_ordinal(storage.device()),
                     &storage.device()};
}

/// Where memory of columns would be, of which none goes out: an array without rows is of its device
/// all the same, and who looks for it there takes no other. Nowhere if they have no buffers.
Whereabouts find_empty(std::span<const Column> columns) noexcept {
  for (const Column& column : columns) {
    const ColumnParts& parts = column.parts();
    for (const Buffer* part : {&parts.values, &parts.validity, &parts.offsets}) {
      if (!*part) continue;
      if (const Result<Whereabouts> named = try_name(*part->storage(), {}); named) return *named;
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
  /// `standing`: a stream that was named long before, and may have ended since, or end meanwhile,
  /// by its owner in another thread.
  Packer(bool is_for_host, const ArrowExport& options, StreamRef standing = {}) noexcept
      : is_for_host_(is_for_host), options_(options), standing_(standing) {}

  [[nodiscard]] Result<void> try_pack(Piece& piece, std::size_t rows, const Column& column) {
    const ColumnParts& parts = column.parts();
    const LogicalType& type = column.type();
    const Result<std::size_t> nulls = column.try_count_nulls(rows, options_.site);
    if (!nulls) return nulls.failure();
    // Without rows there are no values before the first either, for which others want addresses.
    const std::size_t first = rows == 0 ? 0 : parts.first, end = first + rows;
    Result<void> added =
        *nulls == 0 ? Result<void>() : try_add(piece, 0, parts.validity, bitmap_bytes(end));
    std::int64_t buffers = 2;
    if (added && type.is_variable()) {
      buffers = 3;
      const std::size_t width = size_bytes(type.offset_dtype());
      // Of no texts nobody need have written where they begin.
      if (rows != 0 || has_first_offset(parts.offsets, width)) {
        added = try_add(piece, 1, parts.offsets, (end + 1) * width);
      }
      if (added) added = try_add(piece, 2, parts.values, rows == 0 ? 0 : parts.values.size_bytes());
      if (is_for_host_ && piece.buffers[1] == nullptr) piece.buffers[1] = &no_offset;
    } else if (added) {
      const std::size_t bytes = type.is_bits() ? bitmap_bytes(end) : end * size_bytes(type.dtype());
      added = try_add(piece, 1, parts.values, rows == 0 ? 0 : bytes);
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

  /// All writers are behind it: the event, or the host.
  [[nodiscard]] Result<void> try_order(Shipment& shipment) noexcept {
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
      // One of another device is not even looked at: that may be closed.
      const StreamStay stay(standing_.device_id() == where_.device->id() ? standing_ : StreamRef{});
      StreamRef stream = stay ? standing_ : options_.stream;
      if (!stream.id()) {
        const Result<StreamRef> own = where_.device->try_copy_stream();
        if (!own) return own.failure();
        stream = *own;
      }
      for (const Mark mark : waits_.all()) {
        if (mark.stream == stream.id()) continue;
        Result<void> queued = stream.try_wait(mark, options_.site);
        // Marks of other backends are the host's to wait for, while no stream stays for it.
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
    shipment.event = *std::move(event);
    shipment.event_slot = reinterpret_cast<void*>(shipment.event.native().value);
    return {};
  }

  [[nodiscard]] const Whereabouts& where() const noexcept { return where_; }

 private:
  [[nodiscard]] Result<void> try_place(const Storage& storage) {
    const CallSite site = options_.site;
    // Most are where the one before them was, and the words for that are found only once.
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
                     "{value} memory of '{device}' has no address for the host. Export an "
                     "ArrowDeviceArray, or a copy on the host.",
                     site)
          .with("field", "device")
          .with("value", name(storage.kind()))
          .with("device", storage.device().spec());
    }
    const Result<Whereabouts> named = try_name(storage, site);
    if (!named) return named.failure();
    if (!where_.is_known()) {
      where_ = *named;
      if (where_.type != ARROW_DEVICE_CPU && options_.stream.id() &&
          options_.stream.device_id() != storage.device().id()) {
        return Failure(ErrorCode::device_mismatch,
                       "memory of '{a}' cannot be ordered by a stream of device {b}. Name a stream "
                       "of its own device.",
                       site)
            .with("a", storage.device().spec())
            .with("b", options_.stream.device_id().value);
      }
      return {};
    }
    if (where_.type == named->type && where_.id == named->id) return {};
    return Failure(ErrorCode::arrow_rejected,
                   "one array has memory of device ({a}, {a_id}) and of ({b}, {b_id}). Copy its "
                   "columns to one of them.",
                   site)
        .with("field", "device")
        .with("value", name(storage.kind()))
        .with_signed("a", where_.type)
        .with_signed("a_id", where_.id)
        .with_signed("b", named->type)
        .with_signed("b_id", named->id);
  }

  [[nodiscard]] Result<void> try_add(Piece& piece, std::size_t index, const Buffer& buffer,
                                     std::size_t bytes) {
    if (bytes == 0 || buffer.size_bytes() == 0) return {};
    Storage& storage = *buffer.storage();
    const CallSite site = options_.site;
    if (Result<void> placed = try_place(storage); !placed) return placed;
    if (Result<void> written = storage.check_written(buffer.offset_bytes(), bytes, site);
        !written) {
      return written;
    }
    if (!storage.is_allocated()) {
      if (Result<void> there = storage.try_ensure(options_.stream, site); !there) return there;
    }
    if (!batch_.try_begin(storage)) return no_host_memory("an Arrow array", site);
    piece.escaped[index] = &storage;
    const std::byte* first = storage.first_byte();
    // The writers are waited for once, for all columns.
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
  const ArrowExport& options_;
  const StreamRef standing_;
  Whereabouts where_;
  StorageKind last_kind_ = StorageKind::file;  // once a place is known
  MarkSet waits_;
  ExportBatch batch_;
};

/// A shipment, with the structure of its root.
struct Packed {
  ArrowArray array = {};
  Whereabouts where = {};
  void** event = nullptr;
};

Result<Packed> try_pack_table(const Table& table, bool is_for_host, const ArrowExport& options,
                              StreamRef standing = {}) noexcept try {
  const Result<std::uint64_t> rows = table.try_rows_host(options.site);
  if (!rows) return rows.failure();
  if (*rows > max_request_bytes) {
    return Failure(ErrorCode::size_overflow,
                   "Arrow counts rows in 63 bits, and a table has {rows}. Export parts of it.",
                   options.site)
        .with("rows", *rows);
  }
  ShipmentOwner shipment = make_shipment(table.arity());
  shipment->table = table;
  shipment->rows = static_cast<std::size_t>(*rows);
  Packer packer(is_for_host, options, standing);
  for (std::size_t i = 0; i < table.arity(); ++i) {
    const Column& column = shipment->table.columns()[i];
    if (Result<void> packed = packer.try_pack(shipment->pieces[i], shipment->rows, column);
        !packed) {
      return Failure(packed.failure()).with("column", table.schema().fields()[i].name);
    }
  }
  if (Result<void> ordered = packer.try_order(*shipment); !ordered) return ordered.failure();
  shipment->shares = 1 + table.arity();
  Packed packed;
  packed.where = packer.where().is_known() ? packer.where() : find_empty(shipment->table.columns());
  packed.event = shipment->event_slot != nullptr ? &shipment->event_slot : nullptr;
  ArrowArray& array = packed.array;
  array.length = static_cast<std::int64_t>(shipment->rows);
  array.n_buffers = 1;
  array.buffers = shipment->base_buffers.data();
  array.n_children = static_cast<std::int64_t>(table.arity());
  array.children = shipment->children;
  array.release = release_table;
  array.private_data = shipment.release();
  return packed;
} catch (const std::bad_alloc&) {
  return no_host_memory("an Arrow array", options.site);
}

Result<Packed> try_pack_column(const Column& column, bool is_for_host,
                               const ArrowExport& options) noexcept try {
  ShipmentOwner shipment = make_shipment(1);
  shipment->column = column;
  shipment->rows = column.capacity();
  Piece& piece = shipment->pieces[0];
  Packer packer(is_for_host, options);
  if (Result<void> packed = packer.try_pack(piece, shipment->rows, shipment->column); !packed) {
    return packed.failure();
  }
  if (Result<void> ordered = packer.try_order(*shipment); !ordered) return ordered.failure();
  shipment->shares = 1;
  Packed packed;
  packed.where = packer.where().is_known() ? packer.where() : find_empty({&shipment->column, 1});
  packed.event = shipment->event_slot != nullptr ? &shipment->event_slot : nullptr;
  packed.array = piece.array;
  static_cast<void>(shipment.release());
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

// --- Streams: of arrays, and of arrays with a device

struct Chunks {
  std::vector<Table> tables;
  std::size_t next = 0;
  ArrowExport options = {};
  ArrowDeviceType type = ARROW_DEVICE_CPU;  // of all of them
  std::int64_t id = -1;                     // of those without memory
  std::string error;
};

template <class Stream>
Chunks& chunks_of(Stream* stream) noexcept {
  return *static_cast<Chunks*>(stream->private_data);
}

/// What errno says the failure is.
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
  // The stream was named long before the other side asks. It is one of some device, and a later
  // table may be of another of its kind.
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
  // The first one stays, for its schema.
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

/// Where the memory of a table is. Nowhere if there is none.
Result<Whereabouts> try_find(const Table& table, CallSite site) noexcept {
  for (const Column& column : table.columns()) {
    const ColumnParts& parts = column.parts();
    for (const Buffer* part : {&parts.values, &parts.validity, &parts.offsets}) {
      if (*part && part->size_bytes() != 0) return try_name(*part->storage(), site);
    }
  }
  return Whereabouts{};
}

Result<void> try_make_stream(std::span<const Table> tables, Chunks& chunks,
                             const ArrowExport& options) {
  const CallSite site = options.site;
  if (tables.empty()) {
    return Failure(ErrorCode::invalid_argument,
                   "'{name}' of a stream are {value}. Give at least one, for its schema.", site)
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
  const Shipment& shipment = *static_cast<const Shipment*>(array.private_data);
  if (array.length != static_cast<std::int64_t>(shipment.rows) || array.offset != 0 ||
      array.n_children != static_cast<std::int64_t>(shipment.pieces.size()) ||
      array.children != shipment.children) {
    return nullptr;
  }
  for (std::size_t i = 0; i < shipment.pieces.size(); ++i) {
    const Piece& piece = shipment.pieces[i];
    // One that was moved out has no column here to look at.
    if (shipment.children[i] != &piece.array || piece.array.release != release_column) {
      return nullptr;
    }
    const std::size_t first = shipment.rows == 0 ? 0 : piece.column->parts().first;
    if (piece.array.private_data != &piece || piece.array.length != array.length ||
        piece.array.offset != static_cast<std::int64_t>(first) ||
        piece.array.buffers != piece.buffers.data()) {
      return nullptr;
    }
  }
  return &shipment.table;
}

ExportedColumn exported_column(const ArrowArray& array) noexcept {
  if (array.release != release_column) return {};
  const Piece& piece = *static_cast<const Piece*>(array.private_data);
  if (!is_untouched(piece, array)) return {};
  try {
    const std::lock_guard lock(piece.shipment->mutex);
    return {*piece.column, static_cast<std::size_t>(array.length)};
  } catch (const std::bad_alloc&) {
    return {};
  }
}

Result<void> try_export_arrow(const Table& table, ArrowArray* out,
                              const ArrowExport& options) noexcept {
  if (out == nullptr) return no_structure(options.site);
  *out = {};
  return put(try_pack_table(table, true, options), *out);
}

Result<void> try_export_arrow(const Table& table, ArrowDeviceArray* out,
                              const ArrowExport& options) noexcept {
  if (out == nullptr) return no_structure(options.site);
  *out = {};
  return put(try_pack_table(table, false, options), *out);
}

Result<void> try_export_arrow(const Column& column, ArrowArray* out,
                              const ArrowExport& options) noexcept {
  if (out == nullptr) return no_structure(options.site);
  *out = {};
  return put(try_pack_column(column, true, options), *out);
}

Result<void> try_export_arrow(const Column& column, ArrowDeviceArray* out,
                              const ArrowExport& options) noexcept {
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
                              const ArrowExport& options) noexcept try {
  const CallSite site = options.site;
  if (out == nullptr) return no_structure(site);
  *out = {};
  auto chunks = std::make_unique<Chunks>();
  if (Result<void> made = try_make_stream(tables, *chunks, options); !made) return made;
  bool is_known = false;
  for (const Table& table : chunks->tables) {
    const Result<Whereabouts> there = try_find(table, site);
    if (!there) return there.failure();
    if (!there->is_known()) continue;
    if (!std::exchange(is_known, true)) {
      chunks->type = there->type;
      chunks->id = there->id;
    }
    if (there->type == chunks->type) continue;
    return Failure(ErrorCode::arrow_rejected,
                   "one stream has memory of device type {a} and of {b}. Copy its tables to one of "
                   "them, or give several streams.",
                   site)
        .with("field", "device_type")
        .with_signed("a", chunks->type)
        .with_signed("b", there->type);
  }
  for (const Table& table : chunks->tables) {
    if (is_known) break;
    const Whereabouts there = find_empty(table.columns());
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
