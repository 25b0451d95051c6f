#include "tern/interop/cuda_array_interface.hpp"

#include <algorithm>
#include <new>
#include <type_traits>
#include <utility>

#include "buffer/strided_span.hpp"
#include "core/no_host_memory.hpp"
#include "interop/read_only_strides.hpp"
#include "tern/buffer/foreign.hpp"
#include "tern/core/bytes.hpp"

namespace tern {
namespace {

struct Word {
  DType dtype;
  std::string_view typestr;
};
constexpr Word words[] = {
    {DType::boolean, "|b1"},
    {DType::i8, "|i1"},
    {DType::i16, "<i2"},
    {DType::i32, "<i4"},
    {DType::i64, "<i8"},
    {DType::u8, "|u1"},
    {DType::u16, "<u2"},
    {DType::u32, "<u4"},
    {DType::u64, "<u8"},
    {DType::f16, "<f2"},
    {DType::f32, "<f4"},
    {DType::f64, "<f8"},
    {DType::complex64, "<c8"},
    {DType::complex128, "<c16"},
    // Aliases: these types are imported as one of the types above.
    {DType::byte, "|u1"},
    {DType::index, "<i8"},
    {DType::i8, "<i1"},
    {DType::u8, "<u1"},
    {DType::boolean, "<b1"},
};

template <class Value>
Failure rejected(const char* key, const Value& value, const char* expected,
                 CallSite site) noexcept {
  Failure failure(ErrorCode::invalid_argument,
                  "a CUDA array cannot be imported ({name}: {value}): {expected}.", site);
  failure.with("name", key);
  if constexpr (std::is_integral_v<Value>) {
    failure.with_signed("value", static_cast<std::int64_t>(value));
  } else {
    failure.with("value", std::string_view(value).substr(0, 40));
  }
  failure.with("expected", expected);
  return failure;
}

Result<void> check_cuda(const Device& device, CallSite site) noexcept {
  if (device.is_open() && device.info().backend == "cuda") return {};
  return Failure(
             ErrorCode::unsupported,
             "'{device}' is not a CUDA device, so its memory cannot be a CUDA array. Use DLPack.",
             site)
      .with("device", device.is_open() ? device.spec() : std::string_view("no device"));
}

/// Returns the value that denotes a stream in a description.
Result<std::uintptr_t> try_stream_number(StreamRef stream) noexcept {
  const Result<NativeStream> native = stream.try_native();
  if (!native) return native.failure();
  if (native->value <= CudaArrayInterface::legacy_stream) return CudaArrayInterface::legacy_stream;
  // Real handles are even addresses. An odd value is the backend's own handle of a per-thread
  // stream.
  return native->value % 2 != 0 ? CudaArrayInterface::per_thread_stream : native->value;
}

/// Returns a stream that waits for all pending writes; empty if nothing is pending.
Result<std::optional<std::uintptr_t>> try_join(Storage& storage, Access access,
                                               const CudaArrayOptions& options) noexcept {
  const Result<bool> is_ready = storage.uses().try_is_ready(access);
  if (!is_ready) return is_ready.failure();
  if (*is_ready) return std::optional<std::uintptr_t>();
  StreamRef stream = options.stream;
  if (!stream.id()) {
    const Result<StreamRef> own = storage.device().try_copy_stream();
    if (!own) return own.failure();
    stream = *own;
  }
  const Result<UseRecord::Ticket> ticket = storage.uses().try_begin(stream, access, options.site);
  if (!ticket) return ticket.failure();
  // The consumer's later uses of the stream are unknown; the Export covers them.
  storage.uses().cancel(*ticket);
  const Result<std::uintptr_t> number = try_stream_number(stream);
  if (!number) return number.failure();
  return std::optional<std::uintptr_t>(*number);
}

}  // namespace

Result<std::string> try_typestr(DType dtype, CallSite site) noexcept try {
  for (const Word& word : words) {
    if (word.dtype == dtype) return std::string(word.typestr);
  }
  return Failure(ErrorCode::unsupported,
                 "the CUDA Array Interface has no type for {value} elements. Use DLPack.", site)
      .with("value", name(dtype));
} catch (const std::bad_alloc&) {
  return no_host_memory("a CUDA array", site);
}

Result<DType> try_dtype_of_typestr(std::string_view typestr, CallSite site) noexcept {
  for (const Word& word : words) {
    if (word.typestr == typestr) return word.dtype;
  }
  return rejected(
      "typestr", typestr,
      "supported types: numbers, complex numbers and booleans in the byte order of this machine",
      site);
}

Result<CudaArrayExport> try_export_cuda_array(const StridedBuffer& array,
                                              const CudaArrayOptions& options) noexcept try {
  const CallSite site = options.site;
  if (!array) {
    return Failure(ErrorCode::not_allocated,
                   "the buffer is empty: it was default-constructed, moved from or released. "
                   "Export a buffer that has memory.",
                   site)
        .with("id", std::uint64_t{0});
  }
  const Buffer& hull = array.hull();
  Storage& storage = *hull.storage();
  if (Result<void> fits = check_cuda(storage.device(), site); !fits) return fits.failure();
  if (options.stream.id() && options.stream.device_id() != storage.device().id()) {
    return Failure(ErrorCode::device_mismatch,
                   "buffer {id} on '{a}' cannot be exported for a stream of device {b}. Use a "
                   "stream of '{a}'.",
                   site)
        .with("id", storage.id().value)
        .with("a", storage.device().spec())
        .with("b", options.stream.device_id().value);
  }
  if (storage.is_read_only() && !options.is_read_only) {
    return Failure(ErrorCode::read_only,
                   "{what} is read-only, and the consumer of an export could write it. Export it "
                   "with is_read_only, or export a copy.",
                   site)
        .with("what", storage.origin()->what());
  }
  Result<std::string> typestr = try_typestr(array.dtype(), site);
  if (!typestr) return typestr.failure();
  CudaArrayExport made;
  CudaArrayInterface& description = made.description;
  description.typestr = *std::move(typestr);
  description.is_read_only = options.is_read_only;
  for (const std::size_t extent : array.shape().extents()) {
    description.shape.push_back(static_cast<std::int64_t>(extent));
  }
  if (!array.is_contiguous()) {
    const std::int64_t width = static_cast<std::int64_t>(size_bytes(array.dtype()));
    description.strides.emplace();
    // Cannot overflow: all elements are in existing memory.
    for (const std::int64_t stride : array.strides()) {
      description.strides->push_back(stride * width);
    }
  }
  if (array.element_count() == 0) return made;
  if (options.is_read_only) {
    if (Result<void> written = storage.check_written(hull.offset_bytes(), hull.size_bytes(), site);
        !written) {
      return written.failure();
    }
  }
  if (Result<void> there = storage.try_ensure(options.stream, site); !there) {
    return there.failure();
  }
  Result<Export> escape = Export::try_begin(hull.storage(), site);
  if (!escape) return escape.failure();
  made.hold = *std::move(escape);
  const Access access = options.is_read_only ? Access::read : Access::read_write;
  const Result<std::optional<std::uintptr_t>> stream = try_join(storage, access, options);
  if (!stream) return stream.failure();
  description.stream = *stream;
  // From now on the consumer may write the memory without Tern's knowledge.
  if (!options.is_read_only) storage.note_written(hull.offset_bytes(), hull.size_bytes());
  description.data = reinterpret_cast<std::uintptr_t>(storage.first_byte()) + hull.offset_bytes() +
                     array.origin_bytes();
  return made;
} catch (const std::bad_alloc&) {
  return no_host_memory("a CUDA array", options.site);
}

Result<StridedBuffer> try_import_cuda_array(const Device& device,
                                            const CudaArrayInterface& description,
                                            const CudaArrayOptions& options) noexcept try {
  const CallSite site = options.site;
  if (Result<void> fits = check_cuda(device, site); !fits) return fits.failure();
  if (description.version < 0 || description.version > 3) {
    return rejected("version", description.version, "the supported versions are 0 to 3", site);
  }
  if (description.has_mask) {
    return Failure(ErrorCode::unsupported,
                   "a CUDA array with a mask cannot be imported. Import the values and the mask as "
                   "two arrays.",
                   site);
  }
  const Result<DType> dtype = try_dtype_of_typestr(description.typestr, site);
  if (!dtype) return dtype.failure();
  const std::size_t rank = description.shape.size();
  if (rank > Shape::max_rank) {
    return rejected("shape", rank, "an array has at most 64 dimensions", site);
  }
  for (const std::int64_t extent : description.shape) {
    if (extent < 0) return rejected("shape", extent, "an extent must not be negative", site);
  }
  Result<Shape> shape = Shape::try_from(description.shape);
  if (!shape) return Failure(shape.failure()).at(site);
  const Result<std::size_t> bytes = shape->try_byte_count(*dtype);
  if (!bytes || *bytes > max_request_bytes) {
    return rejected("shape", "too large", "its size in bytes overflows 64 bits", site);
  }
  std::vector<std::int64_t> strides(rank);
  if (description.strides) {
    if (description.strides->size() != rank) {
      return rejected("strides", description.strides->size(),
                      "it must have one entry per dimension", site);
    }
    const std::int64_t width = static_cast<std::int64_t>(size_bytes(*dtype));
    for (std::size_t i = 0; i < rank; ++i) {
      const std::int64_t stride = (*description.strides)[i];
      if (stride % width != 0) {
        return rejected("strides", stride, "a stride must be a multiple of the element size", site);
      }
      strides[i] = stride / width;
    }
  } else {
    const Result<Shape> dense = shape->try_strides();
    if (!dense)
      return rejected("shape", "too large", "its number of elements overflows 64 bits", site);
    std::ranges::transform(dense->extents(), strides.begin(),
                           [](std::size_t stride) { return static_cast<std::int64_t>(stride); });
  }
  const Result<StridedSpan> reach = try_strided_span(*shape, strides, *dtype, site);
  if (!reach || reach->before + reach->behind > max_request_bytes) {
    return rejected("strides", "too large", "the strides overflow 64 bits", site);
  }
  const bool is_empty = *bytes == 0;
  if (!is_empty) {
    if (description.data == 0) {
      return rejected("data", "null", "an array with elements needs an address", site);
    }
    if (description.data < reach->before || !checked_add(description.data, reach->behind)) {
      return rejected("data", "too large", "the elements exceed the address space", site);
    }
  }
  if (description.stream == std::uintptr_t{0}) {
    return rejected("stream", 0, "use 1 or 2 for the default streams, or a stream handle", site);
  }
  /// Kept alive with the memory: its owner, and the producer's stream.
  struct Kept {
    std::shared_ptr<void> owner;
    Stream stream;
  };
  auto kept = std::make_shared<Kept>();
  kept->owner = options.owner;
  StreamRef producer = options.stream;
  if (description.stream && !is_empty) {
    Result<Stream> theirs = Stream::try_borrow(device, NativeStream{*description.stream});
    if (!theirs) return Failure(theirs.failure()).at(site);
    kept->stream = *std::move(theirs);
    producer = kept->stream;
  }
  Result<Buffer> adopted = try_adopt(
      device, is_empty ? nullptr : reinterpret_cast<void*>(description.data - reach->before),
      is_empty ? 0 : reach->before + reach->behind,
      {.on_release = [kept] {},
       .stream = producer,
       .is_complete = options.is_complete || description.version >= 3,
       .read_only = description.is_read_only || is_for_reading(*shape, strides),
       .tag = options.tag,
       .site = site});
  if (!adopted) return adopted.failure();
  return StridedBuffer::try_over(*adopted, is_empty ? 0 : reach->before, *dtype, *std::move(shape),
                                 strides, site);
} catch (const std::bad_alloc&) {
  return no_host_memory("a CUDA array", options.site);
}

}  // namespace tern
