// Adopting, releasing, borrowing and registering memory of other libraries.

#include "tern/buffer/foreign.hpp"

#include <cstdint>
#include <limits>
#include <new>

#include "buffer/foreign_memory.hpp"
#include "core/no_host_memory.hpp"
#include "core/spare_records.hpp"
#include "device/device_state.hpp"
#include "tern/core/bytes.hpp"

namespace tern {
namespace {

/// Checks address and size without asking a device. Returns the number of bytes.
Result<std::size_t> check_range(const void* address, const Shape& shape, DType dtype,
                                CallSite site) noexcept {
  const Result<std::size_t> bytes = shape.try_byte_count(dtype);
  if (!bytes) return Failure(bytes.failure()).at(site);
  if (*bytes == 0) return bytes;
  if (address == nullptr) {
    return Failure(ErrorCode::invalid_argument,
                   "{bytes} of foreign memory cannot be at address null. Pass the address, or a "
                   "size of 0.",
                   site)
        .with("name", "address")
        .with("value", "null")
        .with_bytes("bytes", *bytes);
  }
  if (*bytes > max_request_bytes || *bytes > std::numeric_limits<std::uintptr_t>::max() -
                                                 reinterpret_cast<std::uintptr_t>(address)) {
    return Failure(ErrorCode::size_overflow, "{bytes} bytes at {address} exceed the address space.",
                   site)
        .with("what", "foreign memory")
        .with("bytes", *bytes)
        .with("address", reinterpret_cast<std::uintptr_t>(address), Unit::hex);
  }
  return bytes;
}

/// Returns whether the range is inside the known allocation.
bool is_inside(const PointerInfo& known, const void* address, std::size_t bytes) noexcept {
  const auto first = reinterpret_cast<std::uintptr_t>(address);
  const auto base = reinterpret_cast<std::uintptr_t>(known.base);
  return known.base != nullptr && first >= base && is_within(first - base, bytes, known.bytes);
}

/// Asks the device for the kind of the memory. `known` caches the answer for later calls.
Result<MemoryKind> find_kind(const Device& device, const void* address, std::size_t bytes,
                             PointerInfo& known, CallSite site) noexcept {
  if (bytes != 0 && is_inside(known, address, bytes)) {
    return storage_kind_of(known.kind, device.info().is_host);
  }
  const Result<PointerInfo> first = device.try_pointer_info(bytes == 0 ? nullptr : address);
  if (!first) return Failure(first.failure()).at(site);
  known = *first;
  const bool is_host = device.info().is_host;
  if (bytes == 0) return storage_kind_of(MemoryKind::device, is_host);
  if (first->base == nullptr) {
    // To this device it is host memory, but it may belong to another device.
    Result<void> here = DeviceState::check_not_elsewhere(device, address);
    if (!here) return Failure(here.failure()).at(site);
    return MemoryKind::host;
  }
  const auto begin = reinterpret_cast<std::uintptr_t>(first->base);
  const std::size_t offset = reinterpret_cast<std::uintptr_t>(address) - begin;
  if (is_within(offset, bytes, first->bytes)) return storage_kind_of(first->kind, is_host);
  // A range may span several mappings, so ask about the last byte, too.
  const Result<PointerInfo> last =
      device.try_pointer_info(static_cast<const std::byte*>(address) + (bytes - 1));
  if (!last) return Failure(last.failure()).at(site);
  if (last->base != nullptr && last->kind == first->kind) {
    return storage_kind_of(first->kind, is_host);
  }
  return Failure(ErrorCode::out_of_bounds,
                 "{bytes} bytes at {address} exceed their allocation on '{device}', which has "
                 "{there} bytes from this address. Pass a smaller size.",
                 site)
      .with("bytes", bytes)
      .with("address", reinterpret_cast<std::uintptr_t>(address), Unit::hex)
      .with("there", first->bytes - offset)
      .with("device", device.spec());
}

/// Memory of another owner, with the callback for its end. The terms are stored last, when nothing
/// can fail any more, so that a failure never calls the callback. Objects that the terms own are
/// destroyed after the callback.
class ForeignOrigin final : public StorageOrigin {
 public:
  /// Recycled per thread, because other libraries exchange memory at a high rate.
  static void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept;
  static void operator delete(void* record) noexcept;
  static void operator delete(void* record, const std::nothrow_t&) noexcept;

  ForeignOrigin(const Memory& memory, bool is_read_only) noexcept
      : memory_(memory), is_read_only_(is_read_only) {}

  [[nodiscard]] const char* what() const noexcept override { return "foreign memory"; }
  [[nodiscard]] bool is_external() const noexcept override { return true; }
  [[nodiscard]] bool is_read_only() const noexcept override { return is_read_only_; }
  [[nodiscard]] Result<Memory> try_begin(CallSite) noexcept override { return memory_; }
  [[nodiscard]] StreamRef end_stream() const noexcept override { return loan_.stream; }

  [[nodiscard]] bool try_end() noexcept override {
    try {
      if (adoption_.release != nullptr) adoption_.release(adoption_.context);
      if (adoption_.on_release) adoption_.on_release();
    } catch (...) {
      // The callback must not throw. There is no caller to report to, and the memory is no longer
      // ours.
    }
    return true;
  }

  void give(Adoption&& adoption) noexcept { adoption_ = std::move(adoption); }
  void give(Loan&& loan) noexcept { loan_ = std::move(loan); }

 private:
  const Memory memory_;
  const bool is_read_only_;
  Adoption adoption_;
  Loan loan_;
};

thread_local SpareRecords<sizeof(ForeignOrigin), alignof(ForeignOrigin), 64> spare_records;

void* ForeignOrigin::operator new(std::size_t, const std::nothrow_t&) noexcept {
  return spare_records.try_take();
}
void ForeignOrigin::operator delete(void* record) noexcept { spare_records.give(record); }
void ForeignOrigin::operator delete(void* record, const std::nothrow_t&) noexcept {
  operator delete(record);
}

/// Host memory that is page-locked in place and unregistered at its end.
class RegisteredOrigin final : public StorageOrigin {
 public:
  RegisteredOrigin(const Device& device, void* address, std::size_t bytes,
                   bool is_read_only) noexcept
      : device_(device), address_(address), bytes_(bytes), is_read_only_(is_read_only) {}

  [[nodiscard]] const char* what() const noexcept override { return "registered host memory"; }
  [[nodiscard]] bool is_external() const noexcept override { return true; }
  [[nodiscard]] bool is_read_only() const noexcept override { return is_read_only_; }

  [[nodiscard]] Result<Memory> try_begin(CallSite site) noexcept override {
    const Result<void*> on_device = device_.try_register_host(address_, bytes_);
    if (!on_device) return Failure(on_device.failure()).at(site);
    is_registered_ = bytes_ != 0;
    return Memory{*on_device, bytes_ == 0 ? nullptr : address_, bytes_};
  }

  [[nodiscard]] bool try_end() noexcept override {
    if (!is_registered_) return true;
    const Result<void> done = device_.try_unregister_host(address_);
    if (done) return true;
    // Nothing is left to unregister in a forked child, after somebody else has unregistered the
    // memory, or on a lost device.
    const ErrorCode code = done.failure().code();
    return code == ErrorCode::after_fork || code == ErrorCode::use_after_free ||
           code == ErrorCode::device_lost;
  }

 private:
  const Device device_;
  void* const address_;
  const std::size_t bytes_;
  const bool is_read_only_;
  bool is_registered_ = false;
};

/// The last earlier use of the memory.
struct Earlier {
  StreamRef stream = {};
  Mark mark = {};
  bool is_stated = false;
};

/// Makes a buffer with memory over an origin and records the earlier use.
template <class Terms>
Result<Buffer> try_make(const Device& device, std::size_t bytes, MemoryKind kind,
                        std::unique_ptr<StorageOrigin> origin, Shape shape, DType dtype,
                        const Earlier& earlier, const Terms& terms) noexcept {
  Result<StorageHandle> storage =
      Storage::try_make(device, bytes, kind, std::move(origin),
                        {.tag = terms.tag, .checked = terms.checked, .site = terms.site});
  if (!storage) return storage.failure();
  if (Result<void> there = (*storage)->try_ensure({}, terms.site); !there) return there.failure();
  if (Result<void> noted =
          (*storage)->uses().try_note(earlier.stream, earlier.mark, Access::discard);
      !noted) {
    return Failure(noted.failure()).at(terms.site);
  }
  if constexpr (requires { terms.owner_orders_writes; }) {
    if (terms.owner_orders_writes) (*storage)->leave_uses_to_owner();
  }
  return Buffer::try_over(*std::move(storage), 0, std::move(shape), dtype, terms.site);
}

/// Checks the memory, makes the buffer, and stores `terms` only after everything has succeeded.
template <class Terms>
Result<Buffer> try_take(const Device& device, void* address, Shape shape, DType dtype,
                        const Earlier& earlier, Terms&& terms, PointerInfo& known) noexcept {
  const Result<std::size_t> bytes = check_range(address, shape, dtype, terms.site);
  if (!bytes) return bytes.failure();
  const Result<MemoryKind> kind = find_kind(device, address, *bytes, known, terms.site);
  if (!kind) return kind.failure();
  StorageOrigin::Memory memory;
  if (*bytes != 0) {
    const bool host_reads = reach_of(*kind, device.info().capabilities).host_reads;
    memory = {address, host_reads ? address : nullptr, *bytes};
  }
  std::unique_ptr<ForeignOrigin> origin(new (std::nothrow) ForeignOrigin(memory, terms.read_only));
  if (!origin) return no_host_memory("foreign memory", terms.site);
  ForeignOrigin& taken = *origin;
  Result<Buffer> buffer =
      try_make(device, *bytes, *kind, std::move(origin), std::move(shape), dtype, earlier, terms);
  if (!buffer) return buffer;
  if (!earlier.is_stated && !terms.is_complete) buffer->storage()->leave_readiness_unstated();
  taken.give(std::forward<Terms>(terms));
  return buffer;
}

/// Returns the current end of the stream's work. Fails if the stream was destroyed or never
/// existed.
Result<Earlier> earlier_work_of(StreamRef stream, CallSite site) noexcept {
  if (!stream.id()) return Earlier{};
  const Result<Mark> mark = stream.try_next_mark();
  if (!mark) return Failure(mark.failure()).at(site);
  return Earlier{stream, *mark, true};
}

}  // namespace

// --- Adopt

Result<Buffer> try_adopt(const Device& device, void* address, Shape shape, DType dtype,
                         Adoption&& adoption) noexcept {
  PointerInfo known;
  return try_adopt(device, address, std::move(shape), dtype, std::move(adoption), known);
}

Result<Buffer> try_adopt(const Device& device, void* address, Shape shape, DType dtype,
                         Adoption&& adoption, PointerInfo& known) noexcept {
  const CallSite site = adoption.site;
  if (adoption.release != nullptr && adoption.on_release) {
    return Failure(ErrorCode::invalid_argument,
                   "'{name}' cannot be {value} together with 'release', because memory is released "
                   "once. Set one of them.",
                   site)
        .with("name", "on_release")
        .with("value", "set");
  }
  if (adoption.ready && adoption.stream.id() && adoption.ready.stream != adoption.stream.id()) {
    return Failure(ErrorCode::invalid_argument,
                   "a mark of stream {value} does not order another stream. Pass the mark without "
                   "a stream.",
                   site)
        .with("name", "ready")
        .with("value", adoption.ready.stream.number());
  }
  Earlier earlier = {adoption.stream, adoption.ready, true};
  if (adoption.ready) {
    earlier.stream = DeviceState::find_stream(adoption.ready.stream);
    if (!earlier.stream.id()) earlier.mark = {};
  } else {
    const Result<Earlier> now = earlier_work_of(adoption.stream, site);
    if (!now) return now.failure();
    earlier = *now;
  }
  return try_take(device, address, std::move(shape), dtype, earlier, std::move(adoption), known);
}

Result<Buffer> try_adopt(const Device& device, void* address, std::size_t bytes,
                         Adoption&& adoption) noexcept {
  return try_adopt(device, address, Shape{bytes}, DType::byte, std::move(adoption));
}

// --- Release

Result<Released> try_release(Buffer&& buffer, StreamRef stream, CallSite site) noexcept {
  if (!buffer) {
    return Failure(ErrorCode::not_allocated,
                   "the buffer is empty: it was default-constructed, moved from or released. "
                   "Release a buffer that has memory.",
                   site)
        .with("id", std::uint64_t{0});
  }
  Storage& storage = *buffer.storage();
  if (stream.id() && stream.device_id() != storage.device().id()) {
    return Failure(ErrorCode::device_mismatch,
                   "buffer {id} on '{a}' cannot be released to a stream of device {b}. Use a "
                   "stream of its own device.",
                   site)
        .with("id", storage.id().value)
        .with("a", storage.device().spec())
        .with("b", stream.device_id().value);
  }
  if (const Result<Earlier> now = earlier_work_of(stream, site); !now) return now.failure();
  const Result<Block> block = storage.try_release_block(stream, site);
  if (!block) return block.failure();
  Released released;
  released.block_ = OwnedBlock::adopt(storage.resource(), *block, stream);
  released.bytes_ = buffer.size_bytes();
  if (released.bytes_ != 0) {
    released.address_ = static_cast<std::byte*>(block->address) + buffer.offset_bytes();
  }
  released.device_ = storage.device();
  released.kind_ = storage.kind();
  released.mark_ = stream.next_mark();
  buffer = Buffer();
  return released;
}

Released& Released::operator=(Released&& other) noexcept {
  if (this == &other) return *this;
  end();
  block_ = std::move(other.block_);
  address_ = other.address_;
  bytes_ = other.bytes_;
  device_ = std::move(other.device_);
  kind_ = other.kind_;
  mark_ = other.mark_;
  return *this;
}

Released::~Released() { end(); }

void Released::end() noexcept {
  if (!block_ || block_.stream().is_usable() || !mark_) return;
  // The stream was destroyed and its work may not be done. Free on the default stream, after a
  // wait.
  const StreamRef stream = device_.default_stream();
  if (stream.try_wait(mark_)) block_.set_stream(stream);
}

Result<void> Released::try_give_back(StreamRef stream, CallSite site) noexcept {
  const StreamRef before = block_.stream();
  block_.set_stream(stream);
  Result<void> given = block_.try_free(site);
  if (!given) block_.set_stream(before);
  return given;
}

// --- Borrow

Result<Buffer> try_borrow(const Device& device, void* address, Shape shape, DType dtype,
                          Loan&& loan) noexcept {
  if (loan.stream.id() && loan.stream.device_id() != device.id()) {
    return Failure(ErrorCode::device_mismatch,
                   "memory of '{a}' cannot be borrowed in the order of a stream of device {b}. Use "
                   "a stream of the same device.",
                   loan.site)
        .with("a", device.spec())
        .with("b", loan.stream.device_id().value);
  }
  const Result<Earlier> now = earlier_work_of(loan.stream, loan.site);
  if (!now) return now.failure();
  PointerInfo known;
  return try_take(device, address, std::move(shape), dtype, *now, std::move(loan), known);
}

Result<Buffer> try_borrow(const Device& device, void* address, std::size_t bytes,
                          Loan&& loan) noexcept {
  return try_borrow(device, address, Shape{bytes}, DType::byte, std::move(loan));
}

// --- Readiness

Result<void> try_state_ready(const Buffer& buffer, StreamRef producer, CallSite site) noexcept {
  if (!buffer) {
    return Failure(ErrorCode::not_allocated,
                   "state_ready() was called on a default-constructed buffer, which has no memory.",
                   site)
        .with("id", std::uint64_t{0});
  }
  const Result<Earlier> now = earlier_work_of(producer, site);
  if (!now) return now.failure();
  Storage& storage = *buffer.storage();
  if (Result<void> noted = storage.uses().try_note(now->stream, now->mark, Access::discard);
      !noted) {
    return Failure(noted.failure()).at(site);
  }
  storage.note_readiness_stated();
  return {};
}

// --- Register

Result<Buffer> try_register_host(const Device& device, void* address, Shape shape, DType dtype,
                                 const RegisterOptions& options) noexcept {
  const Result<std::size_t> bytes = check_range(address, shape, dtype, options.site);
  if (!bytes) return bytes.failure();
  std::unique_ptr<StorageOrigin> origin(
      new (std::nothrow) RegisteredOrigin(device, address, *bytes, options.read_only));
  if (!origin) return no_host_memory("registered memory", options.site);
  return try_make(device, *bytes, MemoryKind::registered, std::move(origin), std::move(shape),
                  dtype, {}, options);
}

}  // namespace tern
