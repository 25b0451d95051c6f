// Construction, views (try_slice() and check_view() check their bounds) and access of buffers.
// Functions that move bytes are in buffer_bytes.cpp.

#include "tern/buffer/buffer.hpp"

#include <fmt/format.h>

#include <cstddef>
#include <new>

#include "tern/core/bytes.hpp"

namespace tern {
namespace {

const Device& no_device() noexcept {
  // Never destroyed and not on the heap, because device() must not fail.
  alignas(Device) static std::byte storage[sizeof(Device)];
  static const Device& none = *new (storage) Device;
  return none;
}

Failure not_inside(std::size_t offset, std::size_t size, std::size_t extent, const char* unit,
                   CallSite site) noexcept {
  return Failure(
             ErrorCode::invalid_view,
             "a view of {size} {unit} at offset {offset} exceeds its parent, which has {extent}.",
             site)
      .with("offset", offset)
      .with("size", size)
      .with("extent", extent)
      .with("unit", unit);
}

Failure nothing_to_view(CallSite site) noexcept {
  return Failure(ErrorCode::invalid_argument,
                 "elements of type void have no size, so a buffer cannot be viewed as void. Use "
                 "another type.",
                 site)
      .with("name", "dtype")
      .with("value", name(DType::void_));
}

/// Checks that an element can be at `offset`. Without memory, checks the offset alone: a storage's
/// first byte is aligned for every dtype. With memory, checks the address.
Result<void> check_aligned(const Storage& storage, std::size_t offset, DType dtype,
                           CallSite site) noexcept {
  const std::size_t needed = alignment_bytes(dtype);
  const std::size_t address = reinterpret_cast<std::uintptr_t>(storage.first_byte()) + offset;
  if (address % needed == 0) return {};
  return Failure(ErrorCode::misaligned,
                 "{dtype} needs an alignment of {required} bytes and cannot be placed at "
                 "{address}, byte {offset} of buffer {id}. Copy the bytes to an aligned address.",
                 site)
      .with("address", address, Unit::hex)
      .with("offset", offset)
      .with("required", needed)
      .with("id", storage.id().value)
      .with("dtype", name(dtype));
}

}  // namespace

Buffer::Buffer(const Device& device, Shape shape, DType dtype, const StorageOptions& options)
    : Buffer(try_make(device, std::move(shape), dtype, options).value()) {}

Result<Buffer> Buffer::try_make(const Device& device, Shape shape, DType dtype,
                                const StorageOptions& options) noexcept {
  const Result<std::size_t> bytes = shape.try_byte_count(dtype);
  if (!bytes) return Failure(bytes.failure()).at(options.site);
  Result<StorageHandle> storage = Storage::try_make(device, *bytes, options);
  if (!storage) return storage.failure();
  return Buffer(*std::move(storage), 0, *bytes, std::move(shape), dtype);
}

Result<Buffer> Buffer::try_allocate(const Device& device, Shape shape, DType dtype,
                                    const StorageOptions& options) noexcept {
  Result<Buffer> buffer = try_make(device, std::move(shape), dtype, options);
  if (!buffer) return buffer;
  if (Result<void> there = buffer->try_ensure_allocated(options.stream, options.site); !there) {
    return there.failure();
  }
  return buffer;
}

Result<Buffer> Buffer::try_over(StorageHandle storage, std::size_t offset_bytes, Shape shape,
                                DType dtype, CallSite site) noexcept {
  if (!storage) {
    return Failure(ErrorCode::invalid_argument,
                   "a buffer needs a storage, and the storage pointer is null.", site)
        .with("name", "storage")
        .with("value", "null");
  }
  const Result<std::size_t> bytes = shape.try_byte_count(dtype);
  if (!bytes) return Failure(bytes.failure()).at(site);
  if (!is_within(offset_bytes, *bytes, storage->bytes())) {
    return not_inside(offset_bytes, *bytes, storage->bytes(), "bytes", site);
  }
  if (Result<void> aligned = check_aligned(*storage, offset_bytes, dtype, site); !aligned) {
    return aligned.failure();
  }
  return Buffer(std::move(storage), offset_bytes, *bytes, std::move(shape), dtype);
}

// --- Properties

const Device& Buffer::device() const noexcept {
  return storage_ ? storage_->device() : no_device();
}

MemoryKind Buffer::kind() const noexcept { return storage_ ? storage_->kind() : MemoryKind::host; }

Reach Buffer::reach() const noexcept { return storage_ ? storage_->reach() : Reach{}; }

bool Buffer::is_pinned() const noexcept {
  return kind() == MemoryKind::pinned || kind() == MemoryKind::registered;
}

std::size_t Buffer::wasted_bytes() const noexcept {
  if (!storage_) return 0;
  const Result<Block> block = storage_->try_block();
  return block && *block ? block->bytes - storage_->bytes() : 0;
}

Result<std::uintptr_t> Buffer::try_address() const noexcept {
  if (Result<void> there = check_there({}); !there) return there.failure();
  const Result<StorageOrigin::Memory> memory = storage_->try_memory();
  if (!memory) return memory.failure();
  if (bytes_ == 0) return std::uintptr_t{0};
  const void* first =
      memory->device_address != nullptr ? memory->device_address : memory->host_address;
  return reinterpret_cast<std::uintptr_t>(first) + offset_;
}

bool operator==(const Buffer& a, const Buffer& b) noexcept {
  return a.storage_ == b.storage_ && a.offset_ == b.offset_ && a.bytes_ == b.bytes_ &&
         a.dtype_ == b.dtype_ && a.shape_ == b.shape_;
}

std::string Buffer::text() const {
  if (!storage_) return "no buffer";
  const std::string elements =
      fmt::format("{} {} at {} of buffer {}", name(dtype_), shape_.text(), offset_, id().value);
  if (kind() == MemoryKind::file) return elements + ", " + storage_->origin()->what();
  return fmt::format("{} on '{}', {} memory", elements, device().spec(), name(kind()));
}

Result<void> Buffer::check_there(CallSite site) const noexcept {
  if (storage_) return {};
  return Failure(ErrorCode::not_allocated,
                 "the buffer is empty: it was default-constructed or moved from. Create it with a "
                 "device.",
                 site)
      .with("id", std::uint64_t{0});
}

Result<void> Buffer::try_ensure_allocated(StreamRef stream, CallSite site) const noexcept {
  if (Result<void> there = check_there(site); !there) return there;
  return storage_->try_ensure(stream, site);
}

// --- Views

Result<void> Buffer::check_view(std::size_t offset_bytes, std::size_t size_bytes,
                                CallSite site) const noexcept {
  if (!is_within(offset_bytes, size_bytes, bytes_)) {
    return not_inside(offset_bytes, size_bytes, bytes_, "bytes", site);
  }
  if (dtype_ != DType::void_) return {};
  if (Result<void> there = check_there(site); !there) return there;
  return nothing_to_view(site);
}

Result<Buffer> Buffer::try_byte_view(std::size_t offset_bytes, std::size_t size_bytes,
                                     CallSite site) const& noexcept {
  if (Result<void> sound = check_view(offset_bytes, size_bytes, site); !sound) {
    return sound.failure();
  }
  return Buffer(storage_, offset_ + offset_bytes, size_bytes);
}

Result<Buffer> Buffer::try_byte_view(std::size_t offset_bytes, std::size_t size_bytes,
                                     CallSite site) && noexcept {
  if (Result<void> sound = check_view(offset_bytes, size_bytes, site); !sound) {
    return sound.failure();
  }
  offset_ += offset_bytes;
  bytes_ = size_bytes;
  shape_ = Shape::flat(size_bytes);
  dtype_ = DType::byte;
  return std::move(*this);
}

Result<Buffer> Buffer::try_slice(std::size_t first, std::size_t count,
                                 CallSite site) const noexcept {
  const std::size_t width = tern::size_bytes(dtype_);
  if (width == 0) {
    if (Result<void> there = check_there(site); !there) return there.failure();
    return nothing_to_view(site);
  }
  if (!is_within(first, count, size())) {
    return not_inside(first, count, size(), "elements", site);
  }
  return Buffer(storage_, offset_ + first * width, count * width, Shape::flat(count), dtype_);
}

Result<Buffer> Buffer::try_reshape(Shape shape, CallSite site) const noexcept {
  if (Result<void> there = check_there(site); !there) return there.failure();
  const Result<std::size_t> bytes = shape.try_byte_count(dtype_);
  if (!bytes) return Failure(bytes.failure()).at(site);
  // Compare element counts too: every shape of void has 0 bytes.
  const Result<std::size_t> wanted = shape.try_element_count();
  const Result<std::size_t> there = shape_.try_element_count();
  if (*bytes != bytes_ || !wanted || !there || *wanted != *there) {
    return Failure(ErrorCode::shape_mismatch,
                   "{actual} elements cannot be reshaped to {expected} elements. A new shape must "
                   "keep the number of elements.",
                   site)
        .with("expected", wanted ? *wanted : 0)
        .with("actual", there ? *there : 0);
  }
  return Buffer(storage_, offset_, bytes_, std::move(shape), dtype_);
}

Result<Buffer> Buffer::try_as(DType dtype, CallSite site) const noexcept try {
  if (Result<void> there = check_there(site); !there) return there.failure();
  const std::size_t width = tern::size_bytes(dtype);
  if (width == 0 || dtype_ == DType::void_) return nothing_to_view(site);
  if (bytes_ % width != 0) {
    return Failure(ErrorCode::size_mismatch,
                   "{actual} bytes are not a whole number of {dtype} elements of {expected} bytes. "
                   "View a range that is a multiple of the element size.",
                   site)
        .with("expected", width)
        .with("actual", bytes_)
        .with("dtype", name(dtype));
  }
  if (Result<void> aligned = check_aligned(*storage_, offset_, dtype, site); !aligned) {
    return aligned.failure();
  }
  if (width == tern::size_bytes(dtype_)) return Buffer(storage_, offset_, bytes_, shape_, dtype);
  return Buffer(storage_, offset_, bytes_, Shape::flat(bytes_ / width), dtype);
} catch (const Error& error) {
  return Failure(error.failure()).at(site);  // a Shape of many dimensions needs host memory
}

// --- The host

Result<void> Buffer::check_type(DType wanted, CallSite site) const noexcept {
  if (wanted == dtype_) return {};
  if (Result<void> there = check_there(site); !there) return there;
  return Failure(ErrorCode::type_mismatch,
                 "the buffer holds {actual}, and {expected} was requested. Use the stored type, or "
                 "as() to view the bytes as another type.",
                 site)
      .with("expected", name(wanted))
      .with("actual", name(dtype_));
}

Result<void> Buffer::check_item(DType wanted, CallSite site) const noexcept {
  if (Result<void> same = check_type(wanted, site); !same) return same;
  if (size() == 1) return {};
  return Failure(
             ErrorCode::size_mismatch,
             "item() reads one element, and the buffer has {actual}. Take a slice of {expected}.",
             site)
      .with("expected", std::uint64_t{1})
      .with("actual", size());
}

Result<Buffer::HostMemory> Buffer::try_host_memory(Access access, CallSite site) const noexcept
    try {
  if (Result<void> there = check_there(site); !there) return there.failure();
  if (bytes_ == 0) {
    // An access of 0 bytes still fails if the memory does not allow this access.
    if (Result<void> ready = storage_->try_wait_host(access, offset_, 0, site); !ready) {
      return ready.failure();
    }
    return HostMemory{{}, nullptr, shape_};
  }
  Result<std::uint64_t> ticket = storage_->try_begin_host_access(access, offset_, bytes_, site);
  if (!ticket) return ticket.failure();
  HostMemory memory{HostAccess(storage_, *ticket), nullptr, shape_};
  if (Result<void> ready = storage_->try_wait_host(access, offset_, bytes_, site); !ready) {
    return ready.failure();
  }
  const Result<StorageOrigin::Memory> where = storage_->try_memory();
  if (!where) return where.failure();
  memory.address = static_cast<std::byte*>(where->host_address) + offset_;
  if (is_write(access)) storage_->note_written(offset_, bytes_);
  return memory;
} catch (const Error& error) {
  return Failure(error.failure()).at(site);
}

// --- Streams

Result<StorageUse> Buffer::try_use(StreamRef stream, Access access, CallSite site) const noexcept {
  if (Result<void> there = check_there(site); !there) return there.failure();
  if (Result<void> able = storage_->check_kernels_reach(access, site); !able) {
    return able.failure();
  }
  if (bytes_ == 0) {
    // 0 bytes: check the use, but allocate nothing.
    const Result<void> sound = storage_->check_use(stream, access, offset_, 0, site);
    return sound ? Result<StorageUse>(StorageUse()) : sound.failure();
  }
  return storage_->try_use(stream, access, offset_, bytes_, site);
}

Result<void*> Buffer::try_device_ptr(StreamRef stream, Access access,
                                     CallSite site) const noexcept {
  Result<StorageUse> use = try_use(stream, access, site);
  if (!use) return use.failure();
  void* const first = use->address();
  use->end_deferred();
  if (bytes_ == 0) return nullptr;
  return static_cast<std::byte*>(first) + offset_;
}

Result<void> Buffer::try_synchronize(CallSite site) const noexcept {
  if (!storage_) return {};
  if (Result<void> done = storage_->uses().try_wait(Access::discard, site); !done) return done;
  return storage_->check_arrived(offset_, bytes_, site);
}

}  // namespace tern
