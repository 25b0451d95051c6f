// Lifetimes. An exported structure is the first member of an ExportState, which holds a handle of
// the memory; the structure's deleter destroys the ExportState. An imported structure becomes the
// context of an adopted storage, which calls the structure's deleter when the storage ends
// (ForeignOrigin::end in buffer/foreign.cpp). If the import fails, try_import calls it.
//
// Devices. An import compares the device that the structure names (check_place). try_adopt then
// asks the device about the address.

#include "tern/interop/dlpack.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "buffer/export_batch.hpp"
#include "buffer/foreign_memory.hpp"
#include "buffer/strided_span.hpp"
#include "core/no_host_memory.hpp"
#include "core/spare_records.hpp"
#include "interop/device_ordinal.hpp"
#include "interop/foreign_release.hpp"
#include "interop/read_only_strides.hpp"
#include "tern/buffer/foreign.hpp"
#include "tern/core/bytes.hpp"

namespace tern {
namespace {

using abi::DLDataType;
using abi::DLDevice;
using abi::DLManagedTensor;
using abi::DLManagedTensorVersioned;
using abi::DLTensor;

/// Adds the field, its value and what is accepted.
template <class Value>
Failure with_field(Failure failure, const char* field, const Value& value,
                   const char* expected) noexcept {
  failure.with("field", field).with("expected", expected);
  if constexpr (std::is_signed_v<Value>) {
    failure.with_signed("value", value);
  } else {
    failure.with("value", value);
  }
  return failure;
}

/// The failure of an import.
template <class Value>
[[gnu::cold, gnu::noinline]] Failure rejected(const char* field, const Value& value,
                                              const char* expected, CallSite site) noexcept {
  return with_field(
      Failure(ErrorCode::dlpack_rejected,
              "a DLPack tensor cannot be imported ({field}: {value}): {expected}.", site),
      field, value, expected);
}

/// The failure of an export.
template <class Value>
Failure not_exportable(const char* field, const Value& value, const char* expected,
                       CallSite site) noexcept {
  return with_field(
      Failure(ErrorCode::dlpack_rejected,
              "a DLPack tensor cannot be exported ({field}: {value}): {expected}.", site),
      field, value, expected);
}

// --- Types and devices

struct Word {
  DType dtype;
  DLDataType type;
};
constexpr Word words[] = {
    {DType::boolean, {abi::kDLBool, 8, 1}},
    {DType::i8, {abi::kDLInt, 8, 1}},
    {DType::i16, {abi::kDLInt, 16, 1}},
    {DType::i32, {abi::kDLInt, 32, 1}},
    {DType::i64, {abi::kDLInt, 64, 1}},
    {DType::u8, {abi::kDLUInt, 8, 1}},
    {DType::u16, {abi::kDLUInt, 16, 1}},
    {DType::u32, {abi::kDLUInt, 32, 1}},
    {DType::u64, {abi::kDLUInt, 64, 1}},
    {DType::f8_e4m3fn, {abi::kDLFloat8_e4m3fn, 8, 1}},
    {DType::f8_e5m2, {abi::kDLFloat8_e5m2, 8, 1}},
    {DType::f16, {abi::kDLFloat, 16, 1}},
    {DType::bf16, {abi::kDLBfloat, 16, 1}},
    {DType::f32, {abi::kDLFloat, 32, 1}},
    {DType::f64, {abi::kDLFloat, 64, 1}},
    {DType::complex64, {abi::kDLComplex, 64, 1}},
    {DType::complex128, {abi::kDLComplex, 128, 1}},
    // Several dtypes share a DLPack type. The dtype that an import returns comes first.
    {DType::byte, {abi::kDLUInt, 8, 1}},
    {DType::index, {abi::kDLInt, 64, 1}},
};

/// The same table by dtype, because every export looks up one entry.
constexpr auto types = [] {
  std::array<DLDataType, 256> made = {};
  for (const Word& word : words) made[static_cast<std::uint8_t>(word.dtype)] = word.type;
  return made;
}();
static_assert(sizeof(DType) == 1);

/// The same table by code and width in bytes. Void if there is no such type.
constexpr auto dtypes = [] {
  std::array<std::array<DType, 17>, 16> made = {};
  for (auto& row : made) row.fill(DType::void_);
  for (const Word& word : words) {
    DType& entry = made[word.type.code][word.type.bits / 8];
    if (entry == DType::void_) entry = word.dtype;
  }
  return made;
}();

/// Returns void if there is no such type.
DType find_dtype(DLDataType type) noexcept {
  const unsigned bytes = type.bits / 8u;
  if (type.lanes != 1 || type.bits % 8 != 0 || type.code >= dtypes.size() ||
      bytes >= dtypes[0].size()) {
    return DType::void_;
  }
  return dtypes[type.code][bytes];
}

DLDataType word_of(DType dtype) noexcept { return types[static_cast<std::uint8_t>(dtype)]; }

bool is_same(DLDataType a, DLDataType b) noexcept {
  return a.code == b.code && a.bits == b.bits && a.lanes == b.lanes;
}

std::string_view spec_of(const Device& device) noexcept {
  return device.is_open() ? device.spec() : std::string_view("no device");
}

bool is_backend(const Device& device, std::string_view name) noexcept {
  return device.info().backend == name;
}

// --- Export

/// A negative stride remains only in a dimension with one element, where its value has no effect.
/// Some consumers reject it all the same.
std::int64_t stride_for_others(std::int64_t stride) noexcept { return stride < 0 ? 1 : stride; }

/// Returns the address of the first element, or null if the tensor has none.
std::byte* address_for_others(const StridedBuffer& tensor) noexcept {
  if (tensor.element_count() == 0) return nullptr;
  const Buffer& hull = tensor.hull();
  return hull.storage()->first_byte() + hull.offset_bytes() + tensor.origin_bytes();
}

/// The memory that an exported structure points to, in one allocation with the structure.
struct ExportState {
  union {
    DLManagedTensorVersioned versioned;
    DLManagedTensor legacy;
  };
  StridedBuffer tensor;  // keeps the memory; returned if the structure is imported again
  bool is_exported = false;
  bool is_usual;  // has the usual rank, so the allocation is reused
  // The shape and the strides follow in memory.

  template <class Tensor>
  ExportState(const Tensor& given, bool is_usual_size)
      : versioned(), tensor(given), is_usual(is_usual_size) {}
  ~ExportState() {
    if (is_exported) ExportBatch().end(*tensor.hull().storage());
  }
  ExportState(const ExportState&) = delete;
  ExportState& operator=(const ExportState&) = delete;
  std::int64_t* numbers() noexcept { return reinterpret_cast<std::int64_t*>(this + 1); }
};

constexpr std::size_t export_state_bytes(std::size_t rank) noexcept {
  return sizeof(ExportState) + 2 * rank * sizeof(std::int64_t);
}
constexpr std::size_t max_extent = std::numeric_limits<std::int64_t>::max();
constexpr std::size_t usual_rank = 4;
constexpr std::align_val_t export_state_alignment{alignof(ExportState)};
thread_local SpareRecords<export_state_bytes(usual_rank), alignof(ExportState), 16>
    spare_export_states;

void free_export_state(void* memory, bool is_usual) noexcept {
  if (is_usual) {
    spare_export_states.give(memory);
  } else {
    ::operator delete(memory, export_state_alignment);
  }
}

void end(ExportState* state) noexcept {
  const bool is_usual = state->is_usual;
  std::destroy_at(state);
  free_export_state(state, is_usual);
}

/// Returns null if the host has no memory.
template <class Tensor>
ExportState* make_export_state(const Tensor& tensor) noexcept {
  const std::size_t rank = tensor.shape().rank();
  const bool is_usual = rank <= usual_rank;
  void* const memory =
      is_usual ? spare_export_states.try_take()
               : ::operator new(export_state_bytes(rank), export_state_alignment, std::nothrow);
  if (memory == nullptr) return nullptr;
  try {
    return ::new (memory) ExportState(tensor, is_usual);
  } catch (const std::bad_alloc&) {
    free_export_state(memory, is_usual);
    return nullptr;
  }
}

struct EndExport {
  void operator()(ExportState* state) const noexcept { end(state); }
};

void delete_versioned(DLManagedTensorVersioned* self) {
  if (self != nullptr) end(static_cast<ExportState*>(self->manager_ctx));
}
void delete_legacy(DLManagedTensor* self) {
  if (self != nullptr) end(static_cast<ExportState*>(self->manager_ctx));
}

Result<void> order(Storage& storage, const DlpackOptions& options) noexcept {
  if (options.is_unordered) return {};
  const Access access = options.is_read_only ? Access::read : Access::read_write;
  if (!options.stream.id()) {
    const Result<void> done = storage.uses().try_wait(access, options.site);
    return done ? done : Result<void>(Failure(done.failure()).at(options.site));
  }
  if (options.stream.device_id() != storage.device().id()) {
    return Failure(ErrorCode::device_mismatch,
                   "buffer {id} on '{a}' cannot be exported for a stream of device {b}. Use a "
                   "stream of '{a}'.",
                   options.site)
        .with("id", storage.id().value)
        .with("a", storage.device().spec())
        .with("b", options.stream.device_id().value);
  }
  // The consumer's later uses of the stream are unknown; the Export covers them.
  return storage.uses().try_order(options.stream, access, options.site);
}

Failure no_buffer(CallSite site) noexcept {
  return Failure(ErrorCode::not_allocated,
                 "the buffer is empty: it was default-constructed, moved from or released. Export "
                 "a buffer that has memory.",
                 site)
      .with("id", std::uint64_t{0});
}

Result<void> check_strides(const StridedBuffer& tensor, CallSite site) noexcept {
  const std::span<const std::size_t> extents = tensor.shape().extents();
  for (std::size_t i = 0; i < extents.size(); ++i) {
    if (tensor.strides()[i] < 0 && extents[i] > 1) {
      return not_exportable(
          "strides[i]", tensor.strides()[i],
          "other libraries do not support negative strides. Export contiguous(stream)", site);
    }
  }
  return {};
}

/// Checks the tensor and prepares its memory for the export.
Result<void> try_prepare(const StridedBuffer& tensor, const DlpackOptions& options) noexcept {
  const CallSite site = options.site;
  const Buffer& hull = tensor.hull();
  Storage& storage = *hull.storage();
  if (storage.is_read_only() && !options.is_read_only) {
    return Failure(ErrorCode::read_only,
                   "{what} is read-only, and the consumer of an export could write it. Export it "
                   "with is_read_only, or export a copy.",
                   site)
        .with("what", storage.origin()->what());
  }
  if (Result<void> fine = check_strides(tensor, site); !fine) return fine;
  if (hull.size_bytes() == 0) return {};
  if (options.is_read_only) {
    if (Result<void> written = storage.check_written(hull.offset_bytes(), hull.size_bytes(), site);
        !written) {
      return written;
    }
  }
  return storage.is_allocated() ? Result<void>() : storage.try_ensure(options.stream, site);
}

/// The common part of versioned and unversioned exports.
template <class Tensor>
Result<ExportState*> try_make_export(const Tensor& given, const DlpackOptions& options) noexcept {
  const CallSite site = options.site;
  if (!given) return no_buffer(site);
  const Result<DLDataType> type = try_dlpack_type(given.dtype(), site);
  if (!type) return type.failure();
  std::unique_ptr<ExportState, EndExport> made(make_export_state(given));
  if (!made) return no_host_memory("a DLPack tensor", site);
  const StridedBuffer& tensor = made->tensor;
  const Buffer& hull = tensor.hull();
  Storage& storage = *hull.storage();
  const Result<DLDevice> device = try_dlpack_device(storage, site);
  if (!device) return device.failure();
  if (Result<void> prepared = try_prepare(tensor, options); !prepared) return prepared.failure();
  if (Result<void> begun = ExportBatch().try_begin(storage, site); !begun) return begun.failure();
  made->is_exported = true;
  if (hull.size_bytes() != 0) {
    if (Result<void> ordered = order(storage, options); !ordered) return ordered.failure();
    // From now on the consumer may write the memory without Tern's knowledge.
    if (!options.is_read_only) storage.note_written(hull.offset_bytes(), hull.size_bytes());
  }
  const std::span<const std::size_t> extents = tensor.shape().extents();
  const std::size_t rank = extents.size();
  std::int64_t* const shape = made->numbers();
  std::int64_t* const strides = shape + rank;
  for (std::size_t i = 0; i < rank; ++i) {
    // A tensor has no more elements than bytes, which fit, but one extent of an empty shape may be
    // arbitrary.
    if (extents[i] > max_extent) {
      return not_exportable("shape[i]", extents[i], "an extent must be below 2^63", site);
    }
    shape[i] = static_cast<std::int64_t>(extents[i]);
    strides[i] = stride_for_others(tensor.strides()[i]);
  }
  DLTensor& filled = made->versioned.dl_tensor;
  filled.data = address_for_others(tensor);
  filled.device = *device;
  filled.ndim = static_cast<std::int32_t>(rank);
  filled.dtype = *type;
  filled.shape = shape;
  filled.strides = strides;
  return made.release();
}

DLManagedTensorVersioned* with_version(ExportState* state, const DlpackOptions& options) noexcept {
  DLManagedTensorVersioned& made = state->versioned;
  made.version = dlpack_version;
  made.manager_ctx = state;
  made.deleter = delete_versioned;
  made.flags = options.is_read_only ? abi::DLPACK_FLAG_BITMASK_READ_ONLY : 0;
  return &made;
}

// --- Import

/// The fields of a structure, each read once.
struct Offer {
  DLTensor tensor = {};
  std::uint64_t flags = 0;
  bool is_read_only = false;
};

/// Not initialised: the arrays are larger than almost every tensor needs.
struct Numbers {
  Shape shape;
  std::array<std::int64_t, Shape::max_rank> strides;

  /// Returns the number of elements if there are any, they are adjacent and in row-major order, and
  /// their number fits in 64 bits. Returns 0 otherwise.
  [[nodiscard]] std::size_t count_dense() const noexcept {
    const std::span<const std::size_t> extents = shape.extents();
    std::size_t count = 1;
    for (std::size_t i = extents.size(); i-- > 0;) {
      if (extents[i] == 1) continue;
      // A negative stride becomes larger than any number of elements in memory.
      if (static_cast<std::size_t>(strides[i]) != count) return 0;
      if (__builtin_mul_overflow(count, extents[i], &count)) return 0;
    }
    return count;
  }

  Numbers() noexcept {}
};

Result<void> check_place(const DLTensor& tensor, const Device& device, CallSite site) noexcept {
  const std::int32_t type = tensor.device.device_type, id = tensor.device.device_id;
  const auto elsewhere = [&](const char* what) {
    return Failure(ErrorCode::device_mismatch,
                   "a DLPack tensor on {b} (device {type}, {ordinal}) is not memory of '{a}'. "
                   "Import it with its own device.",
                   site)
        .with("a", spec_of(device))
        .with("b", what)
        .with_signed("type", type)
        .with_signed("ordinal", id);
  };
  switch (type) {
    case abi::kDLCPU:
      if (id != 0) return rejected("device_id", id, "the host must be device (1, 0)", site);
      return device.info().is_host ? Result<void>() : Result<void>(elsewhere("the host"));
    case abi::kDLCUDA:
      if (id < 0) return rejected("device_id", id, "device numbers start at 0", site);
      return is_backend(device, "cuda") && device_ordinal(device) == id
                 ? Result<void>()
                 : Result<void>(elsewhere("a CUDA device"));
    case abi::kDLCUDAHost:
    case abi::kDLCUDAManaged:
      // The device number has no meaning for this memory, and libraries write different values.
      return is_backend(device, "cuda") ? Result<void>()
                                        : Result<void>(elsewhere("memory of the CUDA driver"));
    case abi::kDLExtDev:
      if (id < 0) return rejected("device_id", id, "device numbers start at 0", site);
      return is_backend(device, "sim") && device_ordinal(device) == id
                 ? Result<void>()
                 : Result<void>(elsewhere("an extension device"));
    default:
      return rejected(
          "device_type", type,
          "supported types: 1 (host), 2 (CUDA), 3 (pinned), 12 (simulated), 13 (managed)", site);
  }
}

/// Copies more than four extents, which need heap memory.
[[gnu::noinline]] Result<void> try_copy_many(std::span<const std::size_t> from, Shape& to,
                                             CallSite site) noexcept try {
  to = Shape(from);
  return {};
} catch (const std::bad_alloc&) {
  return no_host_memory("a DLPack tensor", site);
}

/// Copies extents, or strides as their bits.
inline Result<void> try_copy(std::span<const std::size_t> from, Shape& to, CallSite site) noexcept {
  if (from.size() > Shape::inline_rank) return try_copy_many(from, to, site);
  to = Shape(from);
  return {};
}

/// Sets the strides of dense elements.
[[gnu::noinline]] Result<void> try_make_dense(const Shape& shape, std::span<std::int64_t> strides,
                                              CallSite site) noexcept {
  const Result<Shape> dense = shape.try_strides();
  if (!dense)
    return rejected("shape", shape.rank(), "its number of elements overflows 64 bits", site);
  for (std::size_t i = 0; i < shape.rank(); ++i) {
    strides[i] = static_cast<std::int64_t>(dense->extents()[i]);
  }
  return {};
}

/// Copies shape and strides once and checks the copies.
[[gnu::always_inline]] inline Result<void> try_read(const DLTensor& tensor, Numbers& numbers,
                                                    CallSite site) noexcept {
  if (tensor.ndim < 0 || tensor.ndim > static_cast<std::int32_t>(Shape::max_rank)) {
    return rejected("ndim", tensor.ndim, "it must be 0 to 64", site);
  }
  const std::size_t rank = static_cast<std::size_t>(tensor.ndim);
  if (rank != 0 && tensor.shape == nullptr) {
    return rejected("shape", "null", "a tensor with dimensions needs a shape", site);
  }
  const bool has_strides = tensor.strides != nullptr;
  std::array<std::size_t, Shape::max_rank> extents;
  for (std::size_t i = 0; i < rank; ++i) {
    std::int64_t extent;
    std::memcpy(&extent, tensor.shape + i, sizeof extent);
    if (extent < 0) return rejected("shape[i]", extent, "an extent must not be negative", site);
    extents[i] = static_cast<std::size_t>(extent);
    if (has_strides) std::memcpy(&numbers.strides[i], tensor.strides + i, sizeof(std::int64_t));
  }
  if (Result<void> copied = try_copy({extents.data(), rank}, numbers.shape, site); !copied) {
    return copied;
  }
  return has_strides || rank == 0 ? Result<void>()
                                  : try_make_dense(numbers.shape, numbers.strides, site);
}

std::optional<std::size_t> try_bytes(const Shape& shape, DType dtype) noexcept {
  const Result<std::size_t> bytes = shape.try_byte_count(dtype);
  return bytes ? std::optional(*bytes) : std::nullopt;
}

/// How to end the structure when it is no longer needed.
struct Owner {
  void (*release)(void* structure) = nullptr;
  void* structure = nullptr;
};

/// On success, the storage of the tensor owns the structure. On failure, `owner` is empty if a
/// storage has already ended the structure.
Result<StridedBuffer> try_take(const Device& device, const Offer& offer, Owner& owner,
                               const DlpackOptions& options) noexcept {
  const CallSite site = options.site;
  const DLTensor& tensor = offer.tensor;
  const DType dtype = find_dtype(tensor.dtype);
  if (dtype == DType::void_) return try_dtype_of(tensor.dtype, site).failure();
  if (Result<void> here = check_place(tensor, device, site); !here) return here.failure();
  Numbers numbers;
  if (Result<void> read = try_read(tensor, numbers, site); !read) return read.failure();
  const std::size_t rank = numbers.shape.rank();
  const std::span<const std::int64_t> strides(numbers.strides.data(), rank);
  const std::size_t dense = numbers.count_dense();
  const std::optional<std::size_t> bytes =
      dense != 0 ? checked_multiply(dense, size_bytes(dtype)) : try_bytes(numbers.shape, dtype);
  if (!bytes || *bytes > max_request_bytes) {
    return rejected("shape", "too large", "its size in bytes overflows 64 bits", site);
  }
  StridedSpan reach = {0, *bytes};
  bool is_read_only = offer.is_read_only;
  if (dense == 0) {
    const Result<StridedSpan> strided = try_strided_span(numbers.shape, strides, dtype, site);
    // Neither sum overflows, and their sum does not either.
    if (!strided || strided->before + strided->behind > max_request_bytes) {
      return rejected("strides", "too large", "the strides overflow 64 bits", site);
    }
    reach = *strided;
    is_read_only = is_read_only || is_for_reading(numbers.shape, strides);
  }
  // Adds foreign numbers as integers, because pointer arithmetic could overflow unnoticed.
  const std::uintptr_t data = reinterpret_cast<std::uintptr_t>(tensor.data);
  const std::optional<std::size_t> first = checked_add(data, tensor.byte_offset);
  const bool is_empty = *bytes == 0;
  if (!is_empty) {
    if (tensor.data == nullptr) {
      return rejected("data", "null", "a tensor with elements needs an address", site);
    }
    if (!first || *first < reach.before || !checked_add(*first, reach.behind)) {
      return rejected("byte_offset", tensor.byte_offset, "the elements exceed the address space",
                      site);
    }
  }
  const bool is_complete = options.is_complete || tensor.device.device_type == abi::kDLCPU;
  if (dense != 0) {
    // Before the adoption, because the copy may fail.
    Shape bits;
    const std::span<const std::size_t> as_bits(reinterpret_cast<const std::size_t*>(strides.data()),
                                               rank);
    if (Result<void> copied = try_copy(as_bits, bits, site); !copied) return copied.failure();
    return ForeignParts::try_adopt_dense(device, reinterpret_cast<void*>(*first), *bytes,
                                         {.release = owner.release,
                                          .context = owner.structure,
                                          .stream = options.stream,
                                          .is_complete = is_complete,
                                          .read_only = is_read_only,
                                          .tag = options.tag,
                                          .site = site},
                                         std::move(numbers.shape), std::move(bits), dense, dtype);
  }
  Result<Buffer> adopted =
      try_adopt(device, is_empty ? nullptr : reinterpret_cast<void*>(*first - reach.before),
                is_empty ? 0 : reach.before + reach.behind,
                {.release = owner.release,
                 .context = owner.structure,
                 .stream = options.stream,
                 .is_complete = is_complete,
                 .owner_orders_writes = true,
                 .read_only = is_read_only,
                 .tag = options.tag,
                 .site = site});
  if (!adopted) return adopted.failure();
  owner = {};  // now owned by the storage
  return StridedBuffer::try_over(*std::move(adopted), is_empty ? 0 : reach.before, dtype,
                                 std::move(numbers.shape), strides, site);
}

/// Returns whether the structure is exactly as exported.
bool is_untouched(const StridedBuffer& ours, const DLTensor& tensor) noexcept {
  const std::span<const std::size_t> extents = ours.shape().extents();
  if (tensor.ndim != static_cast<std::int32_t>(extents.size())) return false;
  bool is_kept = tensor.data == address_for_others(ours) && tensor.byte_offset == 0 &&
                 is_same(tensor.dtype, word_of(ours.dtype()));
  if (tensor.ndim == 0) return is_kept;
  if (tensor.shape == nullptr || tensor.strides == nullptr) return false;
  for (std::size_t i = 0; i < extents.size(); ++i) {
    is_kept &= tensor.shape[i] == static_cast<std::int64_t>(extents[i]) &&
               tensor.strides[i] == stride_for_others(ours.strides()[i]);
  }
  return is_kept;
}

/// Imports a tensor that Tern exported and that the consumer changed, for example to a view.
Result<StridedBuffer> try_changed(const StridedBuffer& ours, const DLTensor& tensor,
                                  CallSite site) noexcept {
  // If several dtypes share the DLPack type, use the exported one.
  const Result<DType> dtype = is_same(tensor.dtype, word_of(ours.dtype()))
                                  ? ours.dtype()
                                  : try_dtype_of(tensor.dtype, site);
  if (!dtype) return dtype.failure();
  Numbers numbers;
  if (Result<void> read = try_read(tensor, numbers, site); !read) return read.failure();
  const std::span<const std::int64_t> strides(numbers.strides.data(), numbers.shape.rank());
  const Result<std::size_t> count = numbers.shape.try_element_count();
  if (!count)
    return rejected("shape", "too large", "its number of elements overflows 64 bits", site);
  const Buffer& hull = ours.hull();
  std::size_t offset = 0;
  // The address of a tensor without elements may be arbitrary.
  if (*count != 0) {
    const std::uintptr_t begin =
        reinterpret_cast<std::uintptr_t>(hull.storage()->first_byte()) + hull.offset_bytes();
    const std::optional<std::size_t> first =
        checked_add(reinterpret_cast<std::uintptr_t>(tensor.data), tensor.byte_offset);
    if (tensor.data == nullptr || !first || *first < begin || *first - begin >= hull.size_bytes()) {
      return rejected("data + byte_offset", first.value_or(tensor.byte_offset),
                      "the address is outside of the exported memory", site);
    }
    offset = *first - begin;
  }
  Result<StridedBuffer> changed =
      StridedBuffer::try_over(hull, offset, *dtype, std::move(numbers.shape), strides, site);
  if (changed || changed.failure().code() == ErrorCode::out_of_memory) return changed;
  return changed.failure().code() == ErrorCode::misaligned
             ? rejected("data + byte_offset", offset, "the elements are not aligned to their width",
                        site)
             : rejected("shape and strides", "too large", "the elements exceed the exported memory",
                        site);
}

/// Imports a tensor that Tern exported. Returns no tensor if the structure is read-only: the
/// original storage is writable, so the tensor is treated like a foreign one.
Result<std::optional<StridedBuffer>> try_return(ExportState& state, const Offer& offer,
                                                const Device& device,
                                                const DlpackOptions& options) noexcept {
  const CallSite site = options.site;
  const DLTensor& tensor = offer.tensor;
  Storage& storage = *state.tensor.hull().storage();
  if (storage.device() != device) {
    if (storage.device().spec() == spec_of(device)) {
      return Failure(ErrorCode::device_mismatch,
                     "a DLPack tensor is memory of another opening of '{a}'. Import it with a "
                     "handle of the device that exported it.",
                     site)
          .with("a", spec_of(device))
          .with("b", storage.device().spec());
    }
    return Failure(ErrorCode::device_mismatch,
                   "a DLPack tensor on '{b}' is not memory of '{a}'. Import it with '{b}'.", site)
        .with("a", spec_of(device))
        .with("b", storage.device().spec());
  }
  if (options.stream.id()) {
    const Result<Mark> now = options.stream.try_next_mark();
    if (!now) return Failure(now.failure()).at(site);
    if (Result<void> noted = storage.uses().try_note(options.stream, *now, Access::discard);
        !noted) {
      return Failure(noted.failure()).at(site);
    }
  }
  const bool is_said = (offer.flags & abi::DLPACK_FLAG_BITMASK_READ_ONLY) != 0;
  if (is_untouched(state.tensor, tensor)) {
    if (is_said && !storage.is_read_only()) return std::optional<StridedBuffer>();
    ExportBatch().end(storage);
    state.is_exported = false;
    return std::optional(std::move(state.tensor));
  }
  Result<StridedBuffer> changed = try_changed(state.tensor, tensor, site);
  if (!changed) return changed.failure();
  if (!storage.is_read_only() &&
      (is_said || is_for_reading(changed->shape(), changed->strides()))) {
    return std::optional<StridedBuffer>();
  }
  return std::optional(*std::move(changed));
}

Failure no_tensor(CallSite site) noexcept {
  return Failure(ErrorCode::invalid_argument,
                 "the pointer to a DLPack tensor is missing: '{name}' is {value}.", site)
      .with("name", "tensor")
      .with("value", "null");
}

template <class Managed>
void release(void* structure) {
  call_deleter(*static_cast<Managed*>(structure));
}

/// Ends the structure exactly once, whether the import succeeds or fails.
template <class Managed>
Result<StridedBuffer> try_import_foreign(const Device& device, Managed* managed, const Offer& offer,
                                         const DlpackOptions& options) noexcept {
  Owner owner = {&release<Managed>, managed};
  Result<StridedBuffer> taken = try_take(device, offer, owner, options);
  if (!taken && owner.release != nullptr) owner.release(owner.structure);
  return taken;
}

/// Imports a structure with the deleter of Tern's exports.
template <class Managed>
[[gnu::noinline]] Result<StridedBuffer> try_import_ours(const Device& device, Managed* managed,
                                                        Offer& offer, void (*ours)(Managed*),
                                                        const DlpackOptions& options) noexcept {
  ExportState& state = *static_cast<ExportState*>(managed->manager_ctx);
  Result<std::optional<StridedBuffer>> back = try_return(state, offer, device, options);
  if (!back || *back) {
    ours(managed);
    return back ? Result<StridedBuffer>(**std::move(back)) : back.failure();
  }
  offer.is_read_only = true;
  return try_import_foreign(device, managed, offer, options);
}

template <class Managed>
Result<StridedBuffer> try_import(const Device& device, Managed* managed, Offer& offer,
                                 void (*ours)(Managed*), const DlpackOptions& options) noexcept {
  if (managed->deleter == ours) return try_import_ours(device, managed, offer, ours, options);
  return try_import_foreign(device, managed, offer, options);
}

}  // namespace

Result<DLDataType> try_dlpack_type(DType dtype, CallSite site) noexcept {
  const DLDataType type = word_of(dtype);
  if (type.lanes != 0) return type;
  return Failure(ErrorCode::dlpack_rejected,
                 "DLPack has no type for {value} elements. Use another type.", site)
      .with("field", "dtype")
      .with("value", name(dtype));
}

Result<DType> try_dtype_of(DLDataType type, CallSite site) noexcept {
  if (const DType found = find_dtype(type); found != DType::void_) return found;
  if (type.lanes != 1) {
    return rejected("dtype.lanes", type.lanes, "vector elements are not supported: it must be 1",
                    site);
  }
  const auto has_code = [&](const Word& word) { return word.type.code == type.code; };
  if (std::ranges::any_of(words, has_code)) {
    return rejected("dtype.bits", type.bits, "no type with this code has this width", site);
  }
  return rejected("dtype.code", type.code,
                  "supported codes: 0 to 2, 4 to 6, and the 8-bit floats 10 and 12", site);
}

Result<DLDevice> try_dlpack_device(const Storage& storage, CallSite site) noexcept {
  const Device& device = storage.device();
  const MemoryKind kind = storage.kind();
  if (kind == MemoryKind::host) return DLDevice{abi::kDLCPU, 0};
  if (is_backend(device, "cuda")) {
    switch (kind) {
      case MemoryKind::pinned:
      case MemoryKind::registered:
        return DLDevice{abi::kDLCUDAHost, 0};
      case MemoryKind::managed:
        return DLDevice{abi::kDLCUDAManaged, 0};
      case MemoryKind::device:
      case MemoryKind::mapped:
        return DLDevice{abi::kDLCUDA, device_ordinal(device)};
      default:
        break;
    }
  } else if (is_backend(device, "sim") && kind != MemoryKind::file) {
    return DLDevice{abi::kDLExtDev, device_ordinal(device)};
  } else if (device.is_open() && device.info().is_host && kind != MemoryKind::file) {
    return DLDevice{abi::kDLCPU, 0};
  }
  return Failure(ErrorCode::dlpack_rejected,
                 "DLPack has no device type for {value} memory of '{device}'. Copy the memory to "
                 "the host first.",
                 site)
      .with("field", "device")
      .with("value", name(kind))
      .with("device", spec_of(device));
}

Result<DLManagedTensorVersioned*> try_export_dlpack(const StridedBuffer& tensor,
                                                    const DlpackOptions& options) noexcept {
  const Result<ExportState*> shipped = try_make_export(tensor, options);
  if (!shipped) return shipped.failure();
  return with_version(*shipped, options);
}

Result<DLManagedTensorVersioned*> try_export_dlpack(const Buffer& tensor,
                                                    const DlpackOptions& options) noexcept {
  const Result<ExportState*> shipped = try_make_export(tensor, options);
  if (!shipped) return shipped.failure();
  return with_version(*shipped, options);
}

Result<DLManagedTensor*> try_export_dlpack_legacy(const StridedBuffer& tensor,
                                                  const DlpackOptions& options) noexcept {
  if (options.is_read_only) {
    return Failure(ErrorCode::dlpack_rejected,
                   "an unversioned DLPack tensor cannot express {value}. Export a versioned "
                   "tensor, or a writable copy.",
                   options.site)
        .with("field", "flags")
        .with("value", "read-only");
  }
  const Result<ExportState*> shipped = try_make_export(tensor, options);
  if (!shipped) return shipped.failure();
  const DLTensor filled = (*shipped)->versioned.dl_tensor;
  DLManagedTensor* const made = ::new (&(*shipped)->legacy) DLManagedTensor;
  made->dl_tensor = filled;
  made->manager_ctx = *shipped;
  made->deleter = delete_legacy;
  return made;
}

Result<StridedBuffer> try_import_dlpack(const Device& device, DLManagedTensorVersioned* tensor,
                                        const DlpackOptions& options) noexcept {
  if (tensor == nullptr) return no_tensor(options.site);
  if (tensor->version.major != dlpack_version.major) {
    // The fields after the flags have another layout than in version 1.
    const std::uint32_t major = tensor->version.major;
    call_deleter(*tensor);
    return rejected("version.major", major, "the supported version is 1", options.site);
  }
  Offer offer = {tensor->dl_tensor, tensor->flags,
                 (tensor->flags & abi::DLPACK_FLAG_BITMASK_READ_ONLY) != 0};
  return try_import(device, tensor, offer, delete_versioned, options);
}

Result<StridedBuffer> try_import_dlpack(const Device& device, DLManagedTensor* tensor,
                                        const DlpackOptions& options) noexcept {
  if (tensor == nullptr) return no_tensor(options.site);
  Offer offer = {tensor->dl_tensor, 0, !options.legacy_is_writable};
  return try_import(device, tensor, offer, delete_legacy, options);
}

}  // namespace tern
