// Imports Arrow arrays. is_bad_leaf() checks the structure of a column, check_contents() checks
// the bytes that the host can read and counts the nulls, and try_take() makes storages over the
// buffers.

#include <algorithm>
#include <array>
#include <cstring>
#include <exception>
#include <limits>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "buffer/foreign_memory.hpp"
#include "core/no_host_memory.hpp"
#include "interop/arrow_rejected.hpp"
#include "interop/arrow_schema_parts.hpp"
#include "interop/device_ordinal.hpp"
#include "interop/exported_arrow.hpp"
#include "interop/foreign_release.hpp"
#include "table/bitmap.hpp"
#include "table/column_filler.hpp"
#include "tern/buffer/foreign.hpp"
#include "tern/core/bytes.hpp"
#include "tern/device/event.hpp"
#include "tern/interop/arrow.hpp"

namespace tern {
namespace {

// --- Ownership of the structure

/// Releases an array that was moved to the heap.
void end_array(void* context) noexcept {
  const std::unique_ptr<ArrowArray> array(static_cast<ArrowArray*>(context));
  call_release(*array);
}

/// Releases the structure at the end of the scope, unless ownership was passed on.
template <class Structure>
class Owned {
 public:
  explicit Owned(Structure* structure) noexcept : structure_(structure) {}
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  ~Owned() {
    if (structure_ != nullptr) call_release(*structure_);
  }

 private:
  Structure* structure_;
};

// --- Checks of the structure, before memory is read

/// A column as described by its structure.
struct Leaf {
  ArrowWhere where;
  const LogicalType* type = nullptr;
  DType dtype = DType::void_;  // of the values
  bool is_nullable = true;
  bool is_view = false;
  const void* const* buffers = nullptr;
  std::size_t buffer_count = 0;
  std::size_t first = 0;  // index of the first value in the buffers
  std::size_t rows = 0;
  std::optional<std::size_t> null_count = {};  // as stated, until the host has counted
  // Sizes in bytes of the bitmap, the values and the offsets.
  std::size_t bitmap = 0, values = 0, offsets = 0;
};

/// An upper bound for lengths and offsets: no address space is larger.
constexpr std::int64_t max_bytes = std::int64_t{1} << 56;

/// The rows of a struct that each child must cover.
struct Window {
  std::size_t first = 0, rows = 0;
};

// The functions that follow return whether there is a flaw.

bool is_bad_window(const ArrowArray& array, ArrowFlaw& flaw) noexcept {
  if (array.release == nullptr) {
    return flaw.set("release", "null", "the structure was released or moved from");
  }
  if (array.length < 0) return flaw.set("length", array.length, "a length must not be negative");
  if (array.offset < 0) return flaw.set("offset", array.offset, "an offset must not be negative");
  if (array.length > max_bytes) {
    return flaw.set("length", array.length, "the length exceeds the address space");
  }
  if (array.offset > max_bytes - array.length) {
    return flaw.set("offset", array.offset, "offset plus length exceeds the address space");
  }
  if (array.null_count < -1 || array.null_count > array.length) {
    return flaw.set("null_count", array.null_count, "it must be -1, or from 0 to the length");
  }
  if (array.dictionary != nullptr) {
    return flaw.set("dictionary", "set", "dictionaries are not supported. Decode them first");
  }
  return false;
}

/// The rows of an array, if its window is not bad.
Window window_of(const ArrowArray& array) noexcept {
  return {static_cast<std::size_t>(array.offset), static_cast<std::size_t>(array.length)};
}

bool are_bad_buffers(const ArrowArray& array, std::int64_t expected, bool has_more,
                     ArrowFlaw& flaw) noexcept {
  constexpr std::int64_t most = std::int64_t{1} << 20;
  if (has_more ? array.n_buffers < expected || array.n_buffers > most
               : array.n_buffers != expected) {
    return flaw.set(
        "n_buffers", array.n_buffers,
        "a struct has 1 buffer, a number column 2, a text column 3, a text view column 3 or more");
  }
  if (array.buffers == nullptr)
    return flaw.set("buffers", "null", "the list of buffers must not be null");
  return false;
}

/// Whether values have no address, exceed the address space, or are not aligned.
bool is_bad_address(const char* field, const void* address, std::size_t bytes,
                    std::size_t alignment, ArrowFlaw& flaw) noexcept {
  if (bytes == 0) return false;
  if (address == nullptr) return flaw.set(field, "null", "a buffer with values needs an address");
  const std::uintptr_t first = reinterpret_cast<std::uintptr_t>(address);
  if (bytes > static_cast<std::size_t>(max_bytes) || !checked_add(first, bytes)) {
    return flaw.set(field, bytes, "the bytes exceed the address space");
  }
  // A power of two.
  if ((first & (alignment - 1)) != 0) {
    return flaw.set(field, first & (alignment - 1),
                    "values must be aligned to their width. Copy them to aligned memory");
  }
  return false;
}

/// Reads a column. `parent` is the rows of the struct, or null.
bool is_bad_leaf(const ArrowArray& array, const Field& field, bool is_view, const Window* parent,
                 Leaf& leaf, ArrowFlaw& flaw) noexcept {
  if (is_bad_window(array, flaw)) return true;
  if (array.n_children != 0)
    return flaw.set("n_children", array.n_children, "this type has no children");
  const LogicalType& type = field.type;
  if (are_bad_buffers(array, is_view || type.is_variable() ? 3 : 2, is_view, flaw)) return true;
  leaf.type = &type;
  leaf.dtype = type.dtype();
  leaf.is_nullable = field.is_nullable;
  leaf.is_view = is_view;
  leaf.buffers = array.buffers;
  leaf.buffer_count = static_cast<std::size_t>(array.n_buffers);
  const Window own = window_of(array);
  leaf.first = own.first;
  leaf.rows = own.rows;
  if (array.null_count >= 0) leaf.null_count = static_cast<std::size_t>(array.null_count);
  if (array.null_count > 0) {
    if (array.buffers[0] == nullptr) {
      return flaw.set("buffers[0]", "null", "the column has nulls, so it needs a bitmap");
    }
    if (!field.is_nullable) {
      return flaw.set("null_count", array.null_count,
                      "the schema declares the column as not nullable");
    }
  }
  if (array.buffers[0] == nullptr) leaf.null_count = 0;
  if (parent != nullptr) {
    if (!is_within(parent->first, parent->rows, own.rows)) {
      return flaw.set("length", array.length, "it must cover the rows of the struct");
    }
    if (parent->rows != own.rows && leaf.null_count != 0u) leaf.null_count = {};
    leaf.first += parent->first;
    leaf.rows = parent->rows;
  }
  const std::size_t end = leaf.first + leaf.rows;
  const bool is_empty = leaf.rows == 0;
  if (array.buffers[0] != nullptr) leaf.bitmap = is_empty ? 0 : bitmap_bytes(end);
  std::optional<std::size_t> bytes;
  std::size_t alignment = 4;
  if (is_view) {
    bytes = checked_multiply(end, 16);
  } else if (type.is_variable()) {
    bytes = checked_multiply(end + 1, size_bytes(type.offset_dtype()));
    alignment = alignment_bytes(type.offset_dtype());
  } else {
    bytes = type.is_bits() ? bitmap_bytes(end) : checked_multiply(end, size_bytes(leaf.dtype));
    alignment = alignment_bytes(leaf.dtype);
  }
  if (!bytes) return flaw.set("length", array.length, "its size in bytes overflows 64 bits");
  if (is_bad_address("buffers[0]", array.buffers[0], leaf.bitmap, 1, flaw)) return true;
  if (is_empty) return false;
  (type.is_variable() && !is_view ? leaf.offsets : leaf.values) = *bytes;
  return is_bad_address("buffers[1]", array.buffers[1], *bytes, alignment, flaw);
}

// --- Checks of the contents that the host can read

template <class Offset>
Result<std::size_t> try_last_offset(const Leaf& leaf, const void* raw, CallSite site) noexcept {
  const std::byte* const offsets = static_cast<const std::byte*>(raw);
  Offset before = 0;
  for (std::size_t i = leaf.first; i <= leaf.first + leaf.rows; ++i) {
    Offset at;
    std::memcpy(&at, offsets + i * sizeof at, sizeof at);
    if (at < before) {
      return arrow_rejected(leaf.where, "buffers[1][i]", static_cast<std::int64_t>(at),
                            "offsets must not be negative and must not decrease", site);
    }
    before = at;
  }
  return static_cast<std::size_t>(before);
}

bool is_utf8(std::string_view text) noexcept {
  for (std::size_t i = 0; i < text.size();) {
    const unsigned lead = static_cast<unsigned char>(text[i]);
    const std::size_t length = lead < 0x80   ? 1
                               : lead < 0xC2 ? 0
                               : lead < 0xE0 ? 2
                               : lead < 0xF0 ? 3
                               : lead < 0xF5 ? 4
                                             : 0;
    if (length == 0 || length > text.size() - i) return false;
    for (std::size_t k = 1; k < length; ++k) {
      if ((static_cast<unsigned char>(text[i + k]) & 0xC0) != 0x80) return false;
    }
    const unsigned second = length > 1 ? static_cast<unsigned char>(text[i + 1]) : 0;
    // Overlong forms, surrogates, and code points above U+10FFFF.
    if ((lead == 0xE0 && second < 0xA0) || (lead == 0xED && second > 0x9F) ||
        (lead == 0xF0 && second < 0x90) || (lead == 0xF4 && second > 0x8F)) {
      return false;
    }
    i += length;
  }
  return true;
}

template <class Offset>
Result<void> check_texts(const Leaf& leaf, CallSite site) noexcept {
  const std::byte* const offsets = static_cast<const std::byte*>(leaf.buffers[1]);
  const char* const data = static_cast<const char*>(leaf.buffers[2]);
  for (std::size_t i = leaf.first; i < leaf.first + leaf.rows; ++i) {
    if (leaf.bitmap != 0 && !bit_at(static_cast<const std::byte*>(leaf.buffers[0]), i)) continue;
    Offset bounds[2];
    std::memcpy(bounds, offsets + i * sizeof(Offset), sizeof bounds);
    if (bounds[0] == bounds[1]) continue;
    if (!is_utf8({data + bounds[0], static_cast<std::size_t>(bounds[1] - bounds[0])})) {
      return arrow_rejected(leaf.where, "buffers[2] at row", i - leaf.first, "texts must be UTF-8",
                            site);
    }
  }
  return {};
}

/// Returns the texts of a text view column.
Result<std::vector<std::string_view>> try_views(const Leaf& leaf, CallSite site) {
  const std::size_t variadic = leaf.buffer_count - 3;
  const auto* const sizes = static_cast<const std::byte*>(leaf.buffers[leaf.buffer_count - 1]);
  if (variadic != 0 && sizes == nullptr) {
    return arrow_rejected(leaf.where, "buffers[n - 1]", "null",
                          "this buffer holds the sizes of the other buffers and must be present",
                          site);
  }
  std::vector<std::string_view> texts(leaf.rows);
  for (std::size_t i = 0; i < leaf.rows; ++i) {
    const std::size_t row = leaf.first + i;
    const bool is_there =
        leaf.bitmap == 0 || bit_at(static_cast<const std::byte*>(leaf.buffers[0]), row);
    if (!is_there) continue;
    const std::byte* const view = static_cast<const std::byte*>(leaf.buffers[1]) + row * 16;
    std::int32_t words[4];
    std::memcpy(words, view, sizeof words);
    const std::int32_t length = words[0], index = words[2], offset = words[3];
    if (length < 0) {
      return arrow_rejected(leaf.where, "buffers[1][i].length", length, "it must not be negative",
                            site);
    }
    if (length <= 12) {
      texts[i] = {reinterpret_cast<const char*>(view + 4), static_cast<std::size_t>(length)};
      continue;
    }
    if (index < 0 || static_cast<std::size_t>(index) >= variadic) {
      return arrow_rejected(leaf.where, "buffers[1][i].buffer_index", index,
                            "the index exceeds the number of buffers", site);
    }
    std::int64_t size;
    std::memcpy(&size, sizes + static_cast<std::size_t>(index) * sizeof size, sizeof size);
    if (size < 0) {
      return arrow_rejected(leaf.where, "buffers[n - 1][i]", size, "a size must not be negative",
                            site);
    }
    if (offset < 0 || !is_within(static_cast<std::size_t>(offset), static_cast<std::size_t>(length),
                                 static_cast<std::size_t>(size))) {
      return arrow_rejected(leaf.where, "buffers[1][i].offset", offset,
                            "the text exceeds its buffer", site);
    }
    const void* const data = leaf.buffers[2 + static_cast<std::size_t>(index)];
    if (data == nullptr) {
      return arrow_rejected(leaf.where, "buffers[2 + i]", "null",
                            "a buffer with texts needs an address", site);
    }
    texts[i] = {static_cast<const char*>(data) + offset, static_cast<std::size_t>(length)};
  }
  return texts;
}

// --- Storages

/// State that all columns of an import share.
struct Arrival {
  const Device& device;
  bool is_readable;  // whether the host can read the buffers in place
  const ArrowOptions& options;
};

/// Copies the texts of a text view column into a new column with offsets.
Result<Column> try_convert_views(const Leaf& leaf, const Arrival& arrival) noexcept try {
  const CallSite site = arrival.options.site;
  if (!arrival.is_readable) {
    return arrow_rejected(leaf.where, "format", "v", "text views are supported on the host only",
                          site);
  }
  const Result<std::vector<std::string_view>> texts = try_views(leaf, site);
  if (!texts) return texts.failure();
  std::vector<std::uint8_t> valid;
  if (leaf.bitmap != 0) {
    valid.resize(leaf.rows);
    unpack_bits(static_cast<const std::byte*>(leaf.buffers[0]), leaf.first, valid);
  }
  if (arrival.options.checks_text && leaf.type->is_text()) {
    for (std::size_t i = 0; i < texts->size(); ++i) {
      if (!is_utf8((*texts)[i])) {
        return arrow_rejected(leaf.where, "buffers at row", i, "texts must be UTF-8", site);
      }
    }
  }
  return Column::try_from_strings(
      arrival.device, *texts, *leaf.type,
      {.valid = valid, .storage = {.tag = arrival.options.tag}, .site = site});
} catch (const std::bad_alloc&) {
  return no_host_memory("an Arrow array", arrival.options.site);
}

/// Returns the number of text bytes: the last offset.
Result<std::size_t> try_data_bytes(const Leaf& leaf, const Arrival& arrival,
                                   const Buffer& offsets) noexcept {
  const CallSite site = arrival.options.site;
  const bool is_wide = leaf.type->offset_dtype() == DType::i64;
  if (leaf.rows == 0) return std::size_t{0};
  if (arrival.is_readable) {
    return is_wide ? try_last_offset<std::int64_t>(leaf, leaf.buffers[1], site)
                   : try_last_offset<std::int32_t>(leaf, leaf.buffers[1], site);
  }
  std::int64_t ends[2] = {0, 0};
  for (const std::size_t which : {0u, 1u}) {
    const Result<Buffer> one = offsets.try_slice(leaf.first + which * leaf.rows, 1, site);
    if (!one) return one.failure();
    if (is_wide) {
      const Result<std::int64_t> value = one->try_item<std::int64_t>(site);
      if (!value) return value.failure();
      ends[which] = *value;
    } else {
      const Result<std::int32_t> value = one->try_item<std::int32_t>(site);
      if (!value) return value.failure();
      ends[which] = *value;
    }
  }
  if (ends[0] < 0 || ends[1] < ends[0]) {
    return arrow_rejected(leaf.where, "buffers[1][i]", ends[ends[0] < 0 ? 0 : 1],
                          "offsets must not be negative and must not decrease", site);
  }
  return static_cast<std::size_t>(ends[1]);
}

std::size_t nulls_in(const void* bits, std::size_t first, std::size_t rows) noexcept {
  return rows - count_bits(static_cast<const std::byte*>(bits), first, rows);
}

/// Checks the contents of a column before storages are made. Counts the nulls itself if the host
/// can read the bitmap.
Result<void> check_contents(Leaf& leaf, const Arrival& arrival) noexcept {
  if (!arrival.is_readable) return {};
  const CallSite site = arrival.options.site;
  if (leaf.bitmap != 0) {
    leaf.null_count = nulls_in(leaf.buffers[0], leaf.first, leaf.rows);
    if (leaf.null_count == 0u) leaf.bitmap = 0;
    if (!leaf.is_nullable && leaf.null_count != 0u) {
      return arrow_rejected(leaf.where, "buffers[0]", *leaf.null_count,
                            "the schema declares the column as not nullable", site);
    }
  }
  if (leaf.type->is_variable() && !leaf.is_view) {
    const Result<std::size_t> bytes = try_data_bytes(leaf, arrival, {});
    if (!bytes) return bytes.failure();
    if (ArrowFlaw flaw; is_bad_address("buffers[2]", leaf.buffers[2], *bytes, 1, flaw)) {
      return arrow_rejected(leaf.where, flaw, site);
    }
    if (arrival.options.checks_text && leaf.type->is_text()) {
      return leaf.type->offset_dtype() == DType::i64 ? check_texts<std::int64_t>(leaf, site)
                                                     : check_texts<std::int32_t>(leaf, site);
    }
  }
  return {};
}

/// The bitmap of a struct. The rows of a table cannot be null, so every bit must be set.
struct RootBitmap {
  const void* bits = nullptr;  // null: there is no bitmap to check
  Window rows = {};
  std::int64_t said = 0;
};

Result<void> check_root(const RootBitmap& root, const Arrival& arrival) noexcept {
  if (root.bits == nullptr || root.rows.rows == 0) return {};
  const CallSite site = arrival.options.site;
  if (!arrival.is_readable) {
    // The host cannot count, so the structure must state that there are no nulls. A positive count
    // was rejected before.
    if (root.said == 0) return {};
    return arrow_rejected({"array"}, "null_count", root.said,
                          "the number of null rows is unknown, and the host cannot read the "
                          "bitmap. State a count of 0",
                          site);
  }
  const std::size_t nulls = nulls_in(root.bits, root.rows.first, root.rows.rows);
  if (nulls == 0) return {};
  return arrow_rejected({"array"}, "buffers[0]", nulls,
                        "a row of a table cannot be null; only its values can", site);
}

/// A column without values has no memory, but it has a device.
Result<Column> try_nothing(const Device& device, const LogicalType& type,
                           const ArrowOptions& options) {
  Result<Buffer> none = Buffer::try_make(device, Shape::flat(0), type.dtype(),
                                         {.tag = options.tag, .site = options.site});
  if (!none) return none.failure();
  return Column::try_over(type, 0, {.values = *std::move(none)}, options.site);
}

/// Returns an upper bound for the buffers of a column that are adopted.
std::size_t max_parts_of(const Leaf& leaf) noexcept {
  if (leaf.rows == 0 || leaf.is_view) return 0;
  return std::size_t{1} + (leaf.bitmap != 0) + (leaf.offsets != 0);
}

Result<void> try_adopt_part(ForeignParts& memory, const void* address, std::size_t bytes,
                            DType dtype, Buffer& buffer) noexcept {
  if (bytes == 0) return {};
  return memory.try_adopt(const_cast<void*>(address), bytes, dtype, buffer);
}

/// Makes the column of a leaf in `column`, which is default-constructed.
Result<void> try_take(const Leaf& leaf, const Arrival& arrival, ForeignParts& memory,
                      Column& column) noexcept try {
  if (leaf.rows == 0 || leaf.is_view) {
    Result<Column> made = leaf.rows == 0 ? try_nothing(arrival.device, *leaf.type, arrival.options)
                                         : try_convert_views(leaf, arrival);
    if (!made) return made.failure();
    column = *std::move(made);
    return {};
  }
  const CallSite site = arrival.options.site;
  ColumnFiller filler(column);
  ColumnParts& parts = filler.parts();
  parts.first = leaf.first;
  parts.null_count = leaf.null_count;
  if (parts.null_count != 0u) {
    if (Result<void> adopted =
            try_adopt_part(memory, leaf.buffers[0], leaf.bitmap, DType::byte, parts.validity);
        !adopted) {
      return adopted;
    }
  }
  std::size_t bytes = leaf.values;
  const void* values = leaf.buffers[1];
  if (leaf.type->is_variable()) {
    if (Result<void> adopted = try_adopt_part(memory, leaf.buffers[1], leaf.offsets,
                                              leaf.type->offset_dtype(), parts.offsets);
        !adopted) {
      return adopted;
    }
    const Result<std::size_t> data = try_data_bytes(leaf, arrival, parts.offsets);
    if (!data) return data.failure();
    bytes = *data;
    values = leaf.buffers[2];
    if (ArrowFlaw flaw; is_bad_address("buffers[2]", values, bytes, 1, flaw)) {
      return arrow_rejected(leaf.where, flaw, site);
    }
  }
  if (Result<void> adopted = try_adopt_part(memory, values, bytes, leaf.dtype, parts.values);
      !adopted) {
    return adopted;
  }
  return filler.try_finish(*leaf.type, leaf.rows, site);
} catch (const std::bad_alloc&) {
  return no_host_memory("an Arrow array",
                        arrival.options.site);  // the copy of the time zone failed
}

// --- Devices

/// The device of a structure's memory, and its event.
struct Origin {
  bool is_device_array = false;
  std::int64_t id = -1;
  ArrowDeviceType type = ARROW_DEVICE_CPU;
  void* event = nullptr;
};

Result<void> check_place(const Origin& origin, const Device& device, CallSite site,
                         const char* root = "device_array") noexcept {
  const ArrowWhere where = {root};
  const auto elsewhere = [&](const char* what) {
    return Failure(ErrorCode::device_mismatch,
                   "an Arrow array on {b} (device {type}, {ordinal}) is not memory of '{a}'. "
                   "Import it with its own device.",
                   site)
        .with("a", device.is_open() ? device.spec() : std::string_view("no device"))
        .with("b", what)
        .with_signed("type", origin.type)
        .with_signed("ordinal", origin.id);
  };
  if (!device.is_open()) return elsewhere("some device");
  const bool is_cuda = device.info().backend == "cuda";
  switch (origin.type) {
    case ARROW_DEVICE_CPU:
      if (origin.id != -1 && origin.id != 0) {
        return arrow_rejected(where, "device_id", origin.id, "the host must be device (1, -1)",
                              site);
      }
      if (origin.event != nullptr) {
        return arrow_rejected(where, "sync_event", "set", "a host array must not have an event",
                              site);
      }
      return device.info().is_host ? Result<void>() : Result<void>(elsewhere("the host"));
    case ARROW_DEVICE_CUDA:
    case ARROW_DEVICE_CUDA_HOST:
    case ARROW_DEVICE_CUDA_MANAGED:
    case ARROW_DEVICE_EXT_DEV:
      if (origin.id < 0) {
        return arrow_rejected(where, "device_id", origin.id, "device numbers start at 0", site);
      }
      if (origin.id > std::numeric_limits<std::int32_t>::max()) {
        return arrow_rejected(where, "device_id", origin.id, "a device number must be below 2^31",
                              site);
      }
      if (origin.type == ARROW_DEVICE_EXT_DEV
              ? device.info().backend == "sim" && device_ordinal(device) == origin.id
              : is_cuda &&
                    (device_ordinal(device) == origin.id || origin.type != ARROW_DEVICE_CUDA)) {
        return {};
      }
      return elsewhere(origin.type == ARROW_DEVICE_EXT_DEV ? "an extension device"
                                                           : "a CUDA device");
    default:
      return arrow_rejected(
          where, "device_type", origin.type,
          "supported types: 1 (host), 2 (CUDA), 3 (pinned), 12 (simulated), 13 (managed)", site);
  }
}

/// Waits for the event of a structure: on the stream if there is one, else on the host.
Result<Mark> try_ready(const Origin& origin, const Device& device,
                       const ArrowOptions& options) noexcept {
  if (origin.event == nullptr) return Mark();
  NativeEvent native;
  std::memcpy(&native.value, origin.event, sizeof native.value);
  const Result<Event> event = Event::try_borrow(device, native);
  if (!event) return event.failure();
  if (!options.stream.id()) {
    const Result<void> done = event->try_synchronize();
    return done ? Result<Mark>(Mark()) : Result<Mark>(done.failure());
  }
  if (options.stream.device_id() != device.id()) {
    return Failure(
               ErrorCode::device_mismatch,
               "a stream of device {b} cannot wait for an array of '{a}'. Use a stream of '{a}'.",
               options.site)
        .with("a", device.spec())
        .with("b", options.stream.device_id().value);
  }
  if (Result<void> queued = options.stream.try_wait(*event, options.site); !queued) {
    return queued.failure();
  }
  return options.stream.try_mark();
}

/// Returns whether the host can read the buffers in place.
bool is_readable(const Origin& origin) noexcept {
  return origin.type == ARROW_DEVICE_CPU || origin.type == ARROW_DEVICE_CUDA_HOST ||
         origin.type == ARROW_DEVICE_CUDA_MANAGED;
}

// --- Arrays and device arrays

/// Moves the array to its columns, which share it, and makes the columns over its buffers.
Result<void> try_columns(const Device& device, ArrowArray* array, const Origin& origin,
                         const RootBitmap& root, std::span<Leaf> leaves,
                         const ArrowOptions& options, std::vector<Column>& columns) noexcept try {
  columns.reserve(leaves.size());
  const Result<Mark> ready = try_ready(origin, device, options);
  if (!ready) return ready.failure();
  bool can_read = is_readable(origin);
  if (can_read && *ready) {
    // The host reads the contents now, so the event must be complete now.
    if (Result<void> done = Device::try_wait(*ready); !done) return done.failure();
  }
  const Arrival arrival = {device, can_read, options};
  if (Result<void> fine = check_root(root, arrival); !fine) return fine.failure();
  std::size_t max_parts = 0;
  for (Leaf& leaf : leaves) {
    if (Result<void> fine = check_contents(leaf, arrival); !fine) return fine.failure();
    max_parts += max_parts_of(leaf);
  }
  std::unique_ptr<ArrowArray> moved(new ArrowArray(*array));
  Result<ForeignParts> memory =
      ForeignParts::try_begin(device, max_parts,
                              {.release = [](void* context) { end_array(context); },
                               .context = moved.get(),
                               .ready = *ready,
                               // Without an event the structure says that it is complete.
                               .is_complete = !*ready,
                               .owner_orders_writes = true,
                               .read_only = true,
                               .tag = options.tag,
                               .site = options.site});
  if (!memory) return memory.failure();
  static_cast<void>(moved.release());
  array->release = nullptr;
  for (const Leaf& leaf : leaves) {
    if (Result<void> taken = try_take(leaf, arrival, *memory, columns.emplace_back()); !taken) {
      return taken.failure();
    }
  }
  return {};
} catch (const std::bad_alloc&) {
  return no_host_memory("an Arrow array", options.site);
}

/// Returns whether the columns have the types of the schema. Names are ignored.
bool is_renamed(const Table& ours, const ArrowArray& array, const ArrowFields& fields) noexcept {
  if (ours.arity() != fields.schema.size()) return false;
  for (std::size_t i = 0; i < ours.arity(); ++i) {
    const Field& field = fields.schema.fields()[i];
    if (ours.columns()[i].type() != field.type || (i < fields.views.size() && fields.views[i]) ||
        (!field.is_nullable && array.children[i]->null_count != 0)) {
      return false;
    }
  }
  return true;
}

Result<Table> try_table(const Device& device, ArrowArray* array, const ArrowFields& fields,
                        const Origin& origin, const ArrowOptions& options) noexcept try {
  const CallSite site = options.site;
  const ArrowWhere root = {"array"};
  ArrowFlaw flaw;
  if (is_bad_window(*array, flaw)) return arrow_rejected(root, flaw, site);
  const Window window = window_of(*array);
  if (Result<void> here = check_place(origin, device, site); !here) return here.failure();
  if (const Table* const ours = exported_table(*array)) {
    const bool is_here = !ours->device().is_open() || ours->device() == device;
    const bool is_same = ours->schema() == fields.schema;
    if (is_here && (is_same || is_renamed(*ours, *array, fields))) {
      if (is_same && ours->rows() == static_cast<std::uint64_t>(array->length)) return *ours;
      // Field names differ, or the row count was written since the export: use the exported
      // columns.
      std::vector<Column> columns;
      for (const Column& column : ours->columns()) {
        columns.push_back(column.try_slice(0, window.rows, site).value());
      }
      return Table::try_make(fields.schema, std::move(columns),
                             {.rows = window.rows, .site = site});
    }
  }
  const std::int64_t arity = static_cast<std::int64_t>(fields.schema.size());
  if (array->n_children != arity) {
    return arrow_rejected(root, "n_children", array->n_children,
                          "it must equal the number of fields of the schema", site);
  }
  if (are_bad_buffers(*array, 1, false, flaw)) return arrow_rejected(root, flaw, site);
  if (arity != 0 && array->children == nullptr) {
    return arrow_rejected(root, "children", "null", "a struct with fields needs children", site);
  }
  if (array->null_count > 0) {
    return arrow_rejected(root, "null_count", array->null_count,
                          "a row of a table cannot be null; only its values can", site);
  }
  const std::span<const Field> schema_fields = fields.schema.fields();
  std::vector<Leaf> leaves;
  leaves.reserve(schema_fields.size());
  for (std::int64_t i = 0; i < arity; ++i) {
    const ArrowArray* const child = array->children[i];
    if (child == nullptr) {
      return arrow_rejected(root, "children[i]", "null", "every field needs a child", site);
    }
    const std::size_t index = static_cast<std::size_t>(i);
    const bool is_view = index < fields.views.size() && fields.views[index];
    Leaf& leaf = leaves.emplace_back();
    leaf.where = {"array", i};
    if (is_bad_leaf(*child, schema_fields[index], is_view, &window, leaf, flaw)) {
      return arrow_rejected(leaf.where, flaw, site);
    }
  }
  RootBitmap bitmap = {array->buffers[0], window, array->null_count};
  const bool has_bitmap = bitmap.bits != nullptr && window.rows != 0;
  if (is_bad_address("buffers[0]", bitmap.bits,
                     has_bitmap ? bitmap_bytes(window.first + window.rows) : 0, 1, flaw)) {
    return arrow_rejected(root, flaw, site);
  }
  if (arity == 0) {
    // A length that no column covers is rejected before its bitmap is read.
    if (bitmap.bits != nullptr && array->null_count < 0 && window.rows != 0) {
      return arrow_rejected(root, "null_count", array->null_count,
                            "a struct without fields must have no null rows", site);
    }
    bitmap.bits = nullptr;
  }
  std::vector<Column> columns;
  if (Result<void> made = try_columns(device, array, origin, bitmap, leaves, options, columns);
      !made) {
    return made.failure();
  }
  return Table::try_make(fields.schema, std::move(columns), {.rows = window.rows, .site = site});
} catch (const std::bad_alloc&) {
  return no_host_memory("an Arrow array", options.site);
}

Result<Column> try_column(const Device& device, ArrowArray* array, const ArrowField& field,
                          const Origin& origin, const ArrowOptions& options) noexcept {
  const CallSite site = options.site;
  Leaf leaf;
  if (ArrowFlaw flaw; is_bad_leaf(*array, field.field, field.is_view, nullptr, leaf, flaw)) {
    return arrow_rejected(leaf.where, flaw, site);
  }
  if (Result<void> here = check_place(origin, device, site); !here) return here.failure();
  if (const ExportedColumn ours = exported_column(*array); ours.column) {
    const bool is_here = !ours.column->device().is_open() || ours.column->device() == device;
    if (is_here && ours.column->type() == field.field.type) {
      return ours.column->try_slice(0, ours.rows, site);
    }
  }
  std::vector<Column> columns;
  if (Result<void> made = try_columns(device, array, origin, {}, {&leaf, 1}, options, columns);
      !made) {
    return made.failure();
  }
  return std::move(columns.front());
}

Result<Table> try_import(const Device& device, ArrowArray* array, ArrowSchema* schema,
                         const Origin& origin, const ArrowOptions& options) noexcept {
  const Owned<ArrowSchema> owned_schema(schema);
  const Owned<ArrowArray> owned(array);
  if (array == nullptr) return no_structure("array", options.site);
  const Result<ArrowFields> fields = try_read_arrow_schema(schema, options.site);
  if (!fields) return fields.failure();
  return try_table(device, array, *fields, origin, options);
}

Result<Column> try_import_column(const Device& device, ArrowArray* array, ArrowSchema* schema,
                                 const Origin& origin, const ArrowOptions& options) noexcept {
  const Owned<ArrowSchema> owned_schema(schema);
  const Owned<ArrowArray> owned(array);
  if (array == nullptr) return no_structure("array", options.site);
  const Result<ArrowField> field = try_read_arrow_field(schema, options.site);
  if (!field) return field.failure();
  return try_column(device, array, *field, origin, options);
}

Origin origin_of(const ArrowDeviceArray* array) noexcept {
  if (array == nullptr) return {};
  return {true, array->device_id, array->device_type, array->sync_event};
}

// --- Streams

ArrowArray& array_of(ArrowArray& chunk) noexcept { return chunk; }
ArrowArray& array_of(ArrowDeviceArray& chunk) noexcept { return chunk.array; }

/// Checks, before the first chunk is requested, that chunks of the stream can be memory of the
/// device.
Result<void> check_chunks(const ArrowArrayStream&, const Device&, CallSite) noexcept { return {}; }
Result<void> check_chunks(const ArrowDeviceArrayStream& stream, const Device& device,
                          CallSite site) noexcept {
  Origin any = {true, -1, stream.device_type, nullptr};
  if (device.is_open() && stream.device_type != ARROW_DEVICE_CPU) any.id = device_ordinal(device);
  return check_place(any, device, site, "stream");
}

Result<Origin> try_origin(const ArrowArrayStream&, const ArrowArray&, CallSite) noexcept {
  return Origin{};
}
Result<Origin> try_origin(const ArrowDeviceArrayStream& stream, const ArrowDeviceArray& chunk,
                          CallSite site) noexcept {
  if (chunk.device_type == stream.device_type) return origin_of(&chunk);
  return arrow_rejected({"device_array"}, "device_type", chunk.device_type,
                        "a chunk must have the device type of its stream", site);
}

Failure callback_threw(const char* field, CallSite site) noexcept {
  return arrow_rejected({"stream"}, field, "an exception",
                        "a callback must return 0 or an errno value and must not throw", site);
}

/// Calls a callback of a stream. The callback is a C function and must not throw. If it throws
/// nevertheless, the import fails.
template <class Callback, class... Arguments>
Result<int> try_call(Callback* callback, const char* field, CallSite site,
                     Arguments*... arguments) noexcept try {
  return callback(arguments...);
} catch (const std::bad_alloc&) {
  return no_host_memory("an Arrow array", site);
} catch (const std::exception& exception) {
  const char* const text = exception.what();
  return callback_threw(field, site).with("said", std::string_view(text, strnlen(text, 120)));
} catch (...) {
  return callback_threw(field, site);
}

/// Reads all chunks of a stream.
template <class Chunk, class Stream>
Result<Table> try_import_stream(const Device& device, Stream* stream,
                                const ArrowOptions& options) noexcept try {
  const CallSite site = options.site;
  const ArrowWhere where = {"stream"};
  if (stream == nullptr) return no_structure("stream", site);
  if (stream->release == nullptr) {
    return arrow_rejected(where, "release", "null", "the structure was released or moved from",
                          site);
  }
  const Owned<Stream> owned(stream);
  if (stream->get_schema == nullptr) {
    return arrow_rejected(where, "get_schema", "null", "the stream must have get_schema", site);
  }
  if (stream->get_next == nullptr) {
    return arrow_rejected(where, "get_next", "null", "the stream must have get_next", site);
  }
  if (Result<void> here = check_chunks(*stream, device, site); !here) return here.failure();
  const auto failed = [&](const char* field, int code) {
    const char* text = nullptr;
    try {
      if (stream->get_last_error != nullptr) text = stream->get_last_error(stream);
    } catch (...) {
      // The text is optional. The code is reported without it.
    }
    Failure failure =
        arrow_rejected(where, field, code, "a callback must return 0 or an errno value", site);
    if (text != nullptr) failure.with("said", std::string_view(text, strnlen(text, 120)));
    return failure;
  };
  ArrowSchema schema = {};
  const Result<int> described = try_call(stream->get_schema, "get_schema", site, stream, &schema);
  if (!described) return described.failure();
  if (*described != 0) return failed("get_schema", *described);
  const Owned<ArrowSchema> owned_schema(&schema);
  const Result<ArrowFields> fields = try_read_arrow_schema(&schema, site);
  if (!fields) return fields.failure();
  std::vector<Table> chunks;
  for (;;) {
    Chunk chunk = {};
    const Result<int> got = try_call(stream->get_next, "get_next", site, stream, &chunk);
    if (!got) return got.failure();
    if (*got != 0) return failed("get_next", *got);
    ArrowArray& array = array_of(chunk);
    if (array.release == nullptr) break;
    const Owned<ArrowArray> owned_array(&array);
    if (chunks.size() == max_arrow_children) {
      return arrow_rejected(where, "get_next", chunks.size(),
                            "the stream exceeds the limit on chunks", site);
    }
    const Result<Origin> origin = try_origin(*stream, chunk, site);
    if (!origin) return origin.failure();
    Result<Table> table = try_table(device, &array, *fields, *origin, options);
    if (!table) return table;
    chunks.push_back(*std::move(table));
  }
  if (chunks.size() == 1) return std::move(chunks.front());
  if (!chunks.empty()) return Table::try_concat(chunks, site);
  std::vector<Column> columns;
  for (const Field& field : fields->schema.fields()) {
    Result<Column> column = try_nothing(device, field.type, options);
    if (!column) return column.failure();
    columns.push_back(*std::move(column));
  }
  return Table::try_make(fields->schema, std::move(columns), {.rows = 0, .site = site});
} catch (const std::bad_alloc&) {
  return no_host_memory("an Arrow array", options.site);
}

}  // namespace

Result<Table> try_import_arrow(const Device& device, ArrowArray* array, ArrowSchema* schema,
                               const ArrowOptions& options) noexcept {
  return try_import(device, array, schema, {}, options);
}

Result<Table> try_import_arrow(const Device& device, ArrowDeviceArray* array, ArrowSchema* schema,
                               const ArrowOptions& options) noexcept {
  return try_import(device, array != nullptr ? &array->array : nullptr, schema, origin_of(array),
                    options);
}

Result<Column> try_import_arrow_column(const Device& device, ArrowArray* array, ArrowSchema* schema,
                                       const ArrowOptions& options) noexcept {
  return try_import_column(device, array, schema, {}, options);
}

Result<Column> try_import_arrow_column(const Device& device, ArrowDeviceArray* array,
                                       ArrowSchema* schema, const ArrowOptions& options) noexcept {
  return try_import_column(device, array != nullptr ? &array->array : nullptr, schema,
                           origin_of(array), options);
}

Result<Table> try_import_arrow(const Device& device, ArrowArrayStream* stream,
                               const ArrowOptions& options) noexcept {
  return try_import_stream<ArrowArray>(device, stream, options);
}

Result<Table> try_import_arrow(const Device& device, ArrowDeviceArrayStream* stream,
                               const ArrowOptions& options) noexcept {
  return try_import_stream<ArrowDeviceArray>(device, stream, options);
}

}  // namespace tern
