// Adopting, releasing, borrowing and registering memory of other libraries.

#include "tern/buffer/foreign.hpp"

#include <atomic>
#include <cstdint>
#include <limits>
#include <new>
#include <optional>

#include "buffer/deferred_frees.hpp"
#include "buffer/foreign_memory.hpp"
#include "core/no_host_memory.hpp"
#include "core/spare_records.hpp"
#include "device/device_state.hpp"
#include "tern/core/bytes.hpp"

namespace tern {
namespace {

/// Checks address and size without asking a device.
bool is_range(const void* address, std::size_t bytes) noexcept {
  return bytes == 0 || (address != nullptr && bytes <= max_request_bytes &&
                        bytes <= std::numeric_limits<std::uintptr_t>::max() -
                                     reinterpret_cast<std::uintptr_t>(address));
}

/// Why there is no such range.
[[gnu::cold, gnu::noinline]] Failure no_range(const void* address, std::size_t bytes,
                                              CallSite site) noexcept {
  if (address == nullptr) {
    return Failure(ErrorCode::invalid_argument,
                   "{bytes} of foreign memory cannot be at address null. Pass the address, or a "
                   "size of 0.",
                   site)
        .with("name", "address")
        .with("value", "null")
        .with_bytes("bytes", bytes);
  }
  return Failure(ErrorCode::size_overflow, "{bytes} bytes at {address} exceed the address space.",
                 site)
      .with("what", "foreign memory")
      .with("bytes", bytes)
      .with("address", reinterpret_cast<std::uintptr_t>(address), Unit::hex);
}

/// Returns whether the range is inside the known allocation.
bool is_inside(const PointerInfo& known, const void* address, std::size_t bytes) noexcept {
  const auto first = reinterpret_cast<std::uintptr_t>(address);
  const auto base = reinterpret_cast<std::uintptr_t>(known.base);
  return known.base != nullptr && first >= base && is_within(first - base, bytes, known.bytes);
}

/// The kind of memory that is not inside one allocation of the device. `first` is the device's
/// answer about its first byte.
[[gnu::noinline]] Result<MemoryKind> find_other_kind(const Device& device, const void* address,
                                                     std::size_t bytes, const PointerInfo& first,
                                                     CallSite site) noexcept {
  const bool is_host = device.info().is_host;
  if (bytes == 0) return storage_kind_of(MemoryKind::device, is_host);
  if (first.base == nullptr) {
    // To this device it is host memory, but it may belong to another device.
    Result<void> here = DeviceState::check_not_elsewhere(device, address);
    if (!here) return Failure(here.failure()).at(site);
    return MemoryKind::host;
  }
  // A range may span several mappings, so ask about the last byte, too.
  const Result<PointerInfo> last =
      device.try_pointer_info(static_cast<const std::byte*>(address) + (bytes - 1));
  if (!last) return Failure(last.failure()).at(site);
  if (last->base != nullptr && last->kind == first.kind) {
    return storage_kind_of(first.kind, is_host);
  }
  const std::size_t offset =
      reinterpret_cast<std::uintptr_t>(address) - reinterpret_cast<std::uintptr_t>(first.base);
  return Failure(ErrorCode::out_of_bounds,
                 "{bytes} bytes at {address} exceed their allocation on '{device}', which has "
                 "{there} bytes from this address. Pass a smaller size.",
                 site)
      .with("bytes", bytes)
      .with("address", reinterpret_cast<std::uintptr_t>(address), Unit::hex)
      .with("there", first.bytes - offset)
      .with("device", device.spec());
}

[[gnu::cold, gnu::noinline]] Result<MemoryKind> no_kind(const Failure& why,
                                                        CallSite site) noexcept {
  return Failure(why).at(site);
}

/// Asks the device for the kind of the memory. `known` is the answer.
Result<MemoryKind> find_kind(const Device& device, const void* address, std::size_t bytes,
                             PointerInfo& known, CallSite site) noexcept {
  const std::shared_ptr<DeviceState>& state = DeviceState::of(device);
  // Device::try_pointer_info() without its checks, or with them if they fail.
  const Result<PointerInfo> first = bytes != 0 && state && state->is_in_its_process()
                                        ? state->backend().pointer_info(address)
                                        : device.try_pointer_info(bytes == 0 ? nullptr : address);
  if (!first) return no_kind(first.failure(), site);
  known = *first;
  if (bytes != 0 && is_inside(*first, address, bytes)) {
    return storage_kind_of(first->kind, device.info().is_host);
  }
  return find_other_kind(device, address, bytes, *first, site);
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

}  // namespace

/// One owner of foreign memory, with the callback for its end, and the records of the storages over
/// its pieces, all in one allocation. When the last storage is destroyed, the owner is called. A
/// failed import of one piece never calls the callback; for several pieces see ForeignParts.
/// Objects that the terms own are destroyed after the callback.
class ForeignOrigin final : public StorageOrigin {
 public:
  /// Makes an origin with records for `max_parts` storages. They have one share each, and the
  /// caller has `own_shares`. Returns null if the host has no memory.
  static ForeignOrigin* try_make(std::size_t max_parts, std::size_t own_shares,
                                 bool is_read_only) noexcept;

  [[nodiscard]] const char* what() const noexcept override { return "foreign memory"; }
  [[nodiscard]] bool is_external() const noexcept override { return true; }
  [[nodiscard]] bool is_read_only() const noexcept override { return is_read_only_; }
  [[nodiscard]] StreamRef end_stream() const noexcept override { return stream_; }
  // A part has its memory from the start and ends with drop_part().
  [[nodiscard]] Result<Memory> try_begin(CallSite) noexcept override { return Memory(); }
  [[nodiscard]] bool try_end() noexcept override { return true; }
  void drop_part() noexcept override { drop(1); }

  void give(Adoption&& adoption) noexcept {
    release_ = adoption.release;
    context_ = adoption.context;
    if (adoption.on_release) on_release_ = std::move(adoption.on_release);
    if (adoption.charge.budget()) charge_.emplace(std::move(adoption.charge));
  }
  void give(void (*release)(void*), void* context) noexcept {
    release_ = release;
    context_ = context;
  }
  void give(Loan&& loan) noexcept {
    lender_ = std::move(loan.owner);
    stream_ = loan.stream;
  }

  /// Returns the memory of a storage.
  [[nodiscard]] void* record(std::size_t index) noexcept;
  /// Drops shares. The last one calls the owner and frees the origin.
  void drop(std::size_t shares) noexcept {
    // The holder of all remaining shares is the only one to know the origin.
    if (shares_.load(std::memory_order_acquire) == shares ||
        shares_.fetch_sub(shares, std::memory_order_acq_rel) == shares) {
      end();
    }
  }

 private:
  ForeignOrigin(std::size_t shares, bool is_recycled, bool is_read_only) noexcept
      : shares_(shares), is_recycled_(is_recycled), is_read_only_(is_read_only) {}
  void end() noexcept;

  std::atomic<std::size_t> shares_;
  const bool is_recycled_;
  const bool is_read_only_;
  void (*release_)(void* context) = nullptr;
  void* context_ = nullptr;
  AnyFunction<void()> on_release_;
  std::optional<Charge> charge_;
  std::shared_ptr<void> lender_;
  StreamRef stream_ = {};
};

namespace {

constexpr std::align_val_t record_alignment{alignof(Storage)};
constexpr std::size_t first_record =
    (sizeof(ForeignOrigin) + alignof(Storage) - 1) / alignof(Storage) * alignof(Storage);
/// Origins of one storage are recycled per thread, because other libraries exchange tensors at a
/// high rate.
thread_local SpareRecords<first_record + sizeof(Storage), alignof(Storage), 64> spare_records;

}  // namespace

ForeignOrigin* ForeignOrigin::try_make(std::size_t max_parts, std::size_t own_shares,
                                       bool is_read_only) noexcept {
  const bool is_recycled = max_parts <= 1;
  void* const memory = is_recycled ? spare_records.try_take()
                                   : ::operator new(first_record + max_parts * sizeof(Storage),
                                                    record_alignment, std::nothrow);
  if (memory == nullptr) return nullptr;
  return ::new (memory) ForeignOrigin(max_parts + own_shares, is_recycled, is_read_only);
}

void* ForeignOrigin::record(std::size_t index) noexcept {
  return reinterpret_cast<std::byte*>(this) + first_record + index * sizeof(Storage);
}

void ForeignOrigin::end() noexcept {
  try {
    if (release_ != nullptr) release_(context_);
    if (on_release_) on_release_();
  } catch (...) {
    // The callback must not throw. There is no caller to report to, and the memory is no longer
    // ours.
  }
  const bool is_recycled = is_recycled_;
  this->~ForeignOrigin();
  if (is_recycled) {
    spare_records.give(this);
  } else {
    ::operator delete(static_cast<void*>(this), record_alignment);
  }
}

namespace {

/// Returns whether the host can read memory of a kind.
bool is_host_readable(MemoryKind kind, const Device& device) noexcept {
  return kind == MemoryKind::host || reach_of(kind, device.info().capabilities).host_reads;
}

StorageOrigin::Memory memory_at(void* address, std::size_t bytes, bool host_reads) noexcept {
  if (bytes == 0) return {};
  return {address, host_reads ? address : nullptr, bytes};
}

/// Checks the memory and makes a storage. Sets `origin`, to which the caller gives the terms when
/// nothing can fail any more.
template <class Terms>
Result<void> try_take(const Device& device, void* address, std::size_t bytes,
                      const Earlier& earlier, const Terms& terms, ForeignOrigin*& origin,
                      StorageHandle& storage) noexcept {
  if (!is_range(address, bytes)) return no_range(address, bytes, terms.site);
  PointerInfo known;
  const Result<MemoryKind> kind = find_kind(device, address, bytes, known, terms.site);
  if (!kind) return kind.failure();
  if (DeferredFrees::has_any()) DeferredFrees::poll_some();
  origin = ForeignOrigin::try_make(1, 0, terms.read_only);
  if (origin == nullptr) return no_host_memory("foreign memory", terms.site);
  bool owner_orders_writes = false;
  if constexpr (requires { terms.owner_orders_writes; }) {
    owner_orders_writes = terms.owner_orders_writes;
  }
  storage =
      Storage::make_part(origin->record(0),
                         {.device = device,
                          .origin = *origin,
                          .memory = memory_at(address, bytes, is_host_readable(*kind, device)),
                          .kind = *kind,
                          .stream = earlier.stream,
                          .ready = earlier.mark,
                          .owner_orders_writes = owner_orders_writes},
                         {.tag = terms.tag, .checked = terms.checked, .site = terms.site});
  if (!earlier.is_stated && !terms.is_complete) storage->leave_readiness_unstated();
  return {};
}

/// Makes a buffer of elements, and stores `terms` only after everything has succeeded.
template <class Terms>
Result<Buffer> try_take(const Device& device, void* address, Shape shape, DType dtype,
                        const Earlier& earlier, Terms&& terms) noexcept {
  const Result<std::size_t> bytes = shape.try_byte_count(dtype);
  if (!bytes) return Failure(bytes.failure()).at(terms.site);
  ForeignOrigin* origin = nullptr;
  StorageHandle storage;
  if (Result<void> taken = try_take(device, address, *bytes, earlier, terms, origin, storage);
      !taken) {
    return taken.failure();
  }
  Result<Buffer> buffer =
      Buffer::try_over(std::move(storage), 0, std::move(shape), dtype, terms.site);
  if (buffer) origin->give(std::forward<Terms>(terms));
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

namespace {

/// Checks the terms of an adoption. Returns the last earlier use of the memory.
Result<Earlier> try_earlier(const Adoption& adoption) noexcept {
  const CallSite site = adoption.site;
  if (adoption.release != nullptr && adoption.on_release) {
    return Failure(ErrorCode::invalid_argument,
                   "'{name}' cannot be {value} together with 'release', because memory is released "
                   "once. Set one of them.",
                   site)
        .with("name", "on_release")
        .with("value", "set");
  }
  if (!adoption.ready) return earlier_work_of(adoption.stream, site);
  if (adoption.stream.id() && adoption.ready.stream != adoption.stream.id()) {
    return Failure(ErrorCode::invalid_argument,
                   "a mark of stream {value} does not order another stream. Pass the mark without "
                   "a stream.",
                   site)
        .with("name", "ready")
        .with("value", adoption.ready.stream.number());
  }
  const StreamRef stream = DeviceState::find_stream(adoption.ready.stream);
  return Earlier{stream, stream.id() ? adoption.ready : Mark(), true};
}

}  // namespace

Result<Buffer> try_adopt(const Device& device, void* address, Shape shape, DType dtype,
                         Adoption&& adoption) noexcept {
  const Result<Earlier> earlier = try_earlier(adoption);
  if (!earlier) return earlier.failure();
  return try_take(device, address, std::move(shape), dtype, *earlier, std::move(adoption));
}

Result<Buffer> try_adopt(const Device& device, void* address, std::size_t bytes,
                         Adoption&& adoption) noexcept {
  return try_adopt(device, address, Shape::flat(bytes), DType::byte, std::move(adoption));
}

// --- Adopt in parts

Result<ForeignParts> ForeignParts::try_begin(const Device& device, std::size_t max_parts,
                                             Adoption&& adoption) noexcept {
  const Result<Earlier> earlier = try_earlier(adoption);
  if (!earlier) return earlier.failure();
  if (DeferredFrees::has_any()) DeferredFrees::poll_some();
  ForeignOrigin* const origin = ForeignOrigin::try_make(max_parts, 1, adoption.read_only);
  if (origin == nullptr) return no_host_memory("foreign memory", adoption.site);
  ForeignParts parts;
  parts.device_ = &device;
  parts.origin_ = origin;
  parts.shares_ = max_parts + 1;
  parts.stream_ = earlier->stream;
  parts.ready_ = earlier->mark;
  parts.is_unstated_ = !earlier->is_stated && !adoption.is_complete;
  parts.owner_orders_writes_ = adoption.owner_orders_writes;
  parts.options_.tag = adoption.tag;
  parts.options_.checked = adoption.checked;
  parts.options_.site = adoption.site;
  origin->give(std::move(adoption));
  return parts;
}

Result<StridedBuffer> ForeignParts::try_adopt_dense(const Device& device, void* address,
                                                    std::size_t bytes, const TensorTerms& terms,
                                                    Shape&& shape, Shape&& strides,
                                                    std::size_t count, DType dtype) noexcept {
  Earlier earlier = {terms.stream, terms.stream.next_mark(), bool(terms.stream.id())};
  if (terms.stream.id() && !earlier.mark)
    return earlier_work_of(terms.stream, terms.site).failure();
  ForeignOrigin* origin = nullptr;
  StorageHandle storage;
  if (Result<void> taken = try_take(device, address, bytes, earlier, terms, origin, storage);
      !taken) {
    return taken.failure();
  }
  origin->give(terms.release, terms.context);
  return StridedBuffer(Buffer(std::move(storage), 0, bytes, Shape::flat(bytes), DType::byte), 0,
                       std::move(shape), std::move(strides), count, dtype, true);
}

ForeignParts::~ForeignParts() {
  if (origin_ != nullptr) origin_->drop(shares_);
}

Result<void> ForeignParts::try_adopt(void* address, std::size_t bytes, DType dtype,
                                     Buffer& buffer) noexcept {
  const CallSite site = options_.site;
  if (!is_range(address, bytes)) return no_range(address, bytes, site);
  if (bytes == 0 || !is_inside(known_, address, bytes)) {
    const Result<MemoryKind> kind = find_kind(*device_, address, bytes, known_, site);
    if (!kind) return kind.failure();
    kind_ = *kind;
    host_reads_ = is_host_readable(*kind, *device_);
  }
  StorageHandle storage = Storage::make_part(origin_->record(--shares_ - 1),
                                             {.device = *device_,
                                              .origin = *origin_,
                                              .memory = memory_at(address, bytes, host_reads_),
                                              .kind = kind_,
                                              .stream = stream_,
                                              .ready = ready_,
                                              .owner_orders_writes = owner_orders_writes_},
                                             options_);
  if (is_unstated_) storage->leave_readiness_unstated();
  const std::size_t count = bytes / size_bytes(dtype);
  if (reinterpret_cast<std::uintptr_t>(address) % alignment_bytes(dtype) == 0) [[likely]] {
    // Constructed in place, because assigning a Buffer costs as much as the checks.
    buffer.~Buffer();
    ::new (static_cast<void*>(&buffer))
        Buffer(std::move(storage), 0, count * size_bytes(dtype), Shape::flat(count), dtype);
    return {};
  }
  Result<Buffer> made = Buffer::try_over(std::move(storage), 0, Shape::flat(count), dtype, site);
  if (!made) return made.failure();
  buffer = *std::move(made);
  return {};
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
  return try_take(device, address, std::move(shape), dtype, *now, std::move(loan));
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
  const Result<std::size_t> bytes = shape.try_byte_count(dtype);
  if (!bytes) return Failure(bytes.failure()).at(options.site);
  if (!is_range(address, *bytes)) return no_range(address, *bytes, options.site);
  std::unique_ptr<StorageOrigin> origin(
      new (std::nothrow) RegisteredOrigin(device, address, *bytes, options.read_only));
  if (!origin) return no_host_memory("registered memory", options.site);
  Result<StorageHandle> storage =
      Storage::try_make(device, *bytes, MemoryKind::registered, std::move(origin),
                        {.tag = options.tag, .checked = options.checked, .site = options.site});
  if (!storage) return storage.failure();
  if (Result<void> there = (*storage)->try_ensure({}, options.site); !there) {
    return there.failure();
  }
  return Buffer::try_over(*std::move(storage), 0, std::move(shape), dtype, options.site);
}

}  // namespace tern
