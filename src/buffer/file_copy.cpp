// The host functions of a copy with a file, and their submission.

#include "buffer/file_copy.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <utility>

#include "buffer/arrival.hpp"
#include "buffer/chunk_sums.hpp"
#include "buffer/copy_route.hpp"
#include "buffer/copy_turns.hpp"
#include "buffer/file_transfers.hpp"
#include "buffer/stream_order.hpp"
#include "core/no_host_memory.hpp"
#include "device/device_state.hpp"
#include "tern/core/bytes.hpp"
#include "tern/memory/default_resource.hpp"

namespace tern {
namespace {

constexpr std::size_t file_alignment = FileTransfers::direct_alignment;
constexpr std::size_t slot_bytes = FileCopy::chunk_bytes + file_alignment;

/// Goes through the rows of a copy in pieces of at most one chunk.
class Pieces {
 public:
  struct Piece {
    std::size_t file_offset = 0;  // in the storage of the file
    std::size_t memory_offset = 0;
    std::size_t bytes = 0;
  };

  Pieces(const CopyRows& rows, bool is_write, std::size_t max_bytes) noexcept
      : file_(is_write ? rows.to_side : rows.from_side),
        memory_(is_write ? rows.from_side : rows.to_side),
        width_(rows.width),
        height_(rows.height),
        depth_(rows.depth),
        max_bytes_(max_bytes) {}

  [[nodiscard]] std::size_t count() const noexcept {
    return (width_ + max_bytes_ - 1) / max_bytes_ * height_ * depth_;
  }
  [[nodiscard]] Piece next() noexcept {
    const auto at = [this](const CopyRows::Side& side) {
      return side.offset + z_ * side.slice_bytes + y_ * side.row_bytes + x_;
    };
    const Piece piece{at(file_), at(memory_), std::min(max_bytes_, width_ - x_)};
    x_ += piece.bytes;
    if (x_ == width_) {
      x_ = 0;
      if (++y_ == height_) {
        y_ = 0;
        ++z_;
      }
    }
    return piece;
  }

 private:
  CopyRows::Side file_, memory_;
  std::size_t width_, height_, depth_, max_bytes_;
  std::size_t x_ = 0, y_ = 0, z_ = 0;
};

/// Page-aligned host memory for chunks, if the device has no page-locked memory.
class AlignedMemory final : public StorageOrigin {
 public:
  explicit AlignedMemory(std::size_t bytes) noexcept
      : bytes_(bytes),
        memory_(new (std::align_val_t(file_alignment), std::nothrow) std::byte[bytes]) {}

  [[nodiscard]] const char* what() const noexcept override { return "memory of the host"; }
  [[nodiscard]] Result<Memory> try_begin(CallSite site) noexcept override {
    if (memory_) return Memory{nullptr, memory_.get(), bytes_};
    return no_host_memory(bytes_, "a copy with a file", site);
  }
  [[nodiscard]] bool try_end() noexcept override {
    memory_.reset();
    return true;
  }

 private:
  struct Free {
    void operator()(std::byte* memory) const noexcept {
      ::operator delete[](memory, std::align_val_t(file_alignment));
    }
  };
  const std::size_t bytes_;
  std::unique_ptr<std::byte[], Free> memory_;
};

/// What the host functions of one copy share. It ends with the last reference: of the submitting
/// thread, and of each queued host function.
class Work final : public InFlightObject {
 public:
  Work(const CopyRows& rows, bool is_write, std::size_t max_bytes, StorageOrigin::FileRange file,
       StreamRef stream, FileCopy::Reports reports, std::shared_ptr<Arrival> arrival,
       std::shared_ptr<ChunkSums> sums, CallSite site) noexcept
      : pieces_(rows, is_write, max_bytes),
        count_(pieces_.count()),
        is_write_(is_write),
        file_(file),
        stream_(stream),
        reports_(reports),
        arrival_(std::move(arrival)),
        sums_(std::move(sums)),
        site_(site) {}
  ~Work() override {
    while (waited_ < issued_) wait_next();
  }

  /// The chunks. Call one of these before the first step.
  void use_slots(std::byte* slots, std::size_t count) noexcept {
    slots_ = slots;
    slot_count_ = count;
  }
  void use_memory(std::byte* memory) noexcept { memory_ = memory; }

  void begin(DeviceState& device) noexcept {
    device_ = &device;
    device.add_in_flight_object(*this);
  }
  /// Queues the next host function.
  [[nodiscard]] Result<void> try_queue(StreamRef runner) noexcept {
    references_.fetch_add(1, std::memory_order_relaxed);
    Result<void> queued = runner.try_call(run, this, site_);
    if (!queued) release();
    return queued;
  }
  /// Ends the transfers: the program frees the memory of lost work, and no transfer may use it
  /// then.
  void on_device_lost(const Failure& why) noexcept override {
    const std::lock_guard lock(mutex_);
    is_lost_ = true;
    for (std::size_t i = 0; i < std::min(issued_, transfers_.size()); ++i) {
      FileTransfers::instance().wait(transfers_[i]);
    }
    if (!std::exchange(has_outcome_, true)) arrival_->set(Failure(why).at(site_));
  }
  void release() noexcept {
    if (references_.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
    while (waited_ < issued_) wait_next();
    {
      const std::lock_guard lock(mutex_);
      if (!std::exchange(has_outcome_, true)) arrival_->set(failure_);
    }
    if (failure_ && reports_ == FileCopy::Reports::on_stream) {
      DeviceState::state_of(stream_)->report_late(stream_.id(), *failure_);
    }
    device_->remove_in_flight_object(*this);
    delete this;
  }

 private:
  static void run(void* context) {
    Work& work = *static_cast<Work*>(context);
    work.step();
    work.release();
  }

  /// A host function: before the copy of piece `step_` from its chunk, or after the copy to it.
  void step() noexcept {
    const std::size_t now = step_++;
    if (slots_ == nullptr) {
      for (std::size_t i = 0; i < count_; ++i) issue();
    } else if (is_write_) {
      issue();
      // The next copy overwrites the chunk of the oldest piece.
      if (now + 1 >= slot_count_) wait_next();
    } else {
      // The stream has copied the last chunk, so it can be read into again.
      for (std::size_t ahead = now == 0 ? std::min(slot_count_, count_) : 1; ahead > 0; --ahead) {
        if (taken_ < count_) issue();
      }
      wait_next();
    }
    if (slots_ == nullptr || now + 1 == count_) {
      while (waited_ < issued_) wait_next();
    }
  }

  /// Starts the transfer of the next piece, unless an earlier one failed.
  void issue() noexcept {
    ++taken_;
    const std::lock_guard lock(mutex_);
    if (failure_ || is_lost_) return;
    const Pieces::Piece piece = pieces_.next();
    if (issued_ - waited_ == transfers_.size()) wait_next();
    const std::size_t offset = file_.offset + piece.file_offset;
    FileTransfer& transfer = transfers_[issued_ % transfers_.size()];
    transfer = {.file = file_.file,
                .memory = slots_ != nullptr ? slots_ + (taken_ - 1) % slot_count_ * slot_bytes +
                                                  offset % file_alignment
                                            : memory_ + piece.memory_offset,
                .offset = offset,
                .bytes = piece.bytes,
                .is_write = is_write_};
    if (sums_) sums_->add(piece.file_offset, {transfer.memory, transfer.bytes});
    ++issued_;
    FileTransfers::instance().submit(transfer);
  }

  /// Waits for the oldest transfer, if there is one.
  void wait_next() noexcept {
    if (waited_ == issued_) return;
    FileTransfer& transfer = transfers_[waited_++ % transfers_.size()];
    FileTransfers::instance().wait(transfer);
    if (const Result<void> done = transfer.result(site_); !done && !failure_) {
      failure_ = done.failure();
    }
  }

  std::mutex mutex_;          // guards the next two, and the change of issued_ and transfers_
  bool is_lost_ = false;      // the device was lost, so no transfer may begin
  bool has_outcome_ = false;  // arrival_ has it
  // Host functions of one stream run one after the other.
  Pieces pieces_;
  const std::size_t count_;
  const bool is_write_;
  const StorageOrigin::FileRange file_;
  const StreamRef stream_;
  const FileCopy::Reports reports_;
  const std::shared_ptr<Arrival> arrival_;
  const std::shared_ptr<ChunkSums> sums_;
  const CallSite site_;
  DeviceState* device_ = nullptr;  // outlives the object
  std::byte* slots_ = nullptr;
  std::byte* memory_ = nullptr;
  std::size_t slot_count_ = 0;
  std::size_t step_ = 0, taken_ = 0, issued_ = 0, waited_ = 0;
  std::array<FileTransfer, FileCopy::chunks> transfers_ = {};
  std::optional<Failure> failure_;
  std::atomic<std::size_t> references_ = 1;
};

struct ReleaseWork {
  void operator()(Work* work) const noexcept { work->release(); }
};

/// A use of the storage of a file, whose bytes need not be in memory.
class FileUse {
 public:
  FileUse() noexcept = default;
  FileUse(const FileUse&) = delete;
  FileUse& operator=(const FileUse&) = delete;
  ~FileUse() {
    if (storage_ != nullptr) storage_->uses().cancel(ticket_);
  }
  [[nodiscard]] Result<void> try_begin(Storage& storage, StreamRef stream, Access access,
                                       CallSite site) noexcept {
    const Result<UseRecord::Ticket> ticket = storage.uses().try_begin(stream, access, site);
    if (!ticket) return ticket.failure();
    storage_ = &storage;
    ticket_ = *ticket;
    access_ = access;
    return {};
  }
  void end_on(StreamRef stream) noexcept {
    std::exchange(storage_, nullptr)->uses().end(ticket_, stream, stream.next_mark(), access_);
  }

 private:
  Storage* storage_ = nullptr;
  UseRecord::Ticket ticket_ = {};
  Access access_ = Access::read;
};

Result<StorageHandle> try_make_slots(const Device& device, std::size_t bytes,
                                     CallSite site) noexcept {
  const StorageOptions options{.contents = Contents::unspecified,
                               .alignment = file_alignment,
                               .checked = false,
                               .site = site};
  if (device.can(Capability::pinned_memory)) {
    if (const Result<ResourceHandle> resource = try_default_resource(device, MemoryKind::pinned)) {
      // Pinned memory is scarce and only faster. Without it, other memory will do.
      Result<StorageHandle> slots = Storage::try_allocate(*resource, bytes, options);
      if (slots) return slots;
    }
  }
  std::unique_ptr<StorageOrigin> heap(new (std::nothrow) AlignedMemory(bytes));
  if (!heap) return no_host_memory("a copy with a file", site);
  Result<StorageHandle> slots =
      Storage::try_make(device, bytes, MemoryKind::host, std::move(heap), options);
  if (!slots) return slots;
  if (Result<void> there = (*slots)->try_ensure({}, site); !there) return there.failure();
  return slots;
}

/// Submits one copy. Its members are what the submission uses.
class FileCopySubmission {
 public:
  FileCopySubmission(const CopyRows& rows, StreamRef stream, StreamRef runner,
                     CallSite site) noexcept
      : rows_(rows),
        stream_(stream),
        runner_(runner),
        site_(site),
        is_write_(rows.to.kind() == MemoryKind::file),
        storage_(is_write_ ? rows.to : rows.from),
        memory_(is_write_ ? rows.from : rows.to) {}

  [[nodiscard]] Result<void> try_run(FileCopy::Reports reports,
                                     std::shared_ptr<ChunkSums> sums) noexcept;

 private:
  [[nodiscard]] Result<void> try_begin_uses() noexcept;
  [[nodiscard]] Result<void> try_submit_slots(Work& work, Pieces pieces, std::byte* slots,
                                              std::size_t slot_count) noexcept;
  /// Host memory that the file system can use directly.
  [[nodiscard]] bool is_memory_direct() const noexcept {
    return is_host_memory(memory_) && !runner_.device().info().wants_notes &&
           !memory_.device().info().wants_notes;
  }
  void note_written() noexcept {
    static_cast<void>(rows_.for_each_row([this](std::size_t to_offset, std::size_t) noexcept {
      rows_.to.note_written(to_offset, rows_.width);
      return Result<void>();
    }));
  }

  const CopyRows& rows_;
  const StreamRef stream_, runner_;
  const CallSite site_;
  const bool is_write_;
  Storage &storage_, &memory_;  // of the file, and the other side
  FileUse file_use_;
  StorageUse memory_use_;
};

Result<void> FileCopySubmission::try_begin_uses() noexcept {
  // The ranges were checked before. These uses only order the copy.
  const auto begin_file = [&] {
    return file_use_.try_begin(storage_, runner_, is_write_ ? Access::read_write : Access::read,
                               site_);
  };
  const auto begin_memory = [&]() -> Result<void> {
    Result<StorageUse> use = memory_.try_use(runner_, is_write_ ? Access::read : Access::discard, 0,
                                             0, site_, Storage::Streams::any_device);
    if (!use) return use.failure();
    memory_use_ = *std::move(use);
    return {};
  };
  return by_address(
      rows_.to, rows_.from,
      [&]() -> Result<void> { return is_write_ ? begin_file() : begin_memory(); },
      [&]() -> Result<void> { return is_write_ ? begin_memory() : begin_file(); });
}

Result<void> FileCopySubmission::try_submit_slots(Work& work, Pieces pieces, std::byte* slots,
                                                  std::size_t slot_count) noexcept {
  const Result<StorageOrigin::FileRange> file = storage_.origin()->try_file(0, 0, site_);
  if (!file) return file.failure();
  std::byte* const memory = address_for(memory_, runner_.device_id());
  for (std::size_t i = 0, count = pieces.count(); i < count; ++i) {
    const Pieces::Piece piece = pieces.next();
    std::byte* const slot =
        slots + i % slot_count * slot_bytes + (file->offset + piece.file_offset) % file_alignment;
    if (Result<void> noted =
            note_foreign_use(memory_, runner_, is_write_ ? Access::read : Access::discard,
                             piece.memory_offset, piece.bytes, site_);
        !noted) {
      return noted;
    }
    std::byte* const there = memory + piece.memory_offset;
    if (!is_write_) {
      if (Result<void> queued = work.try_queue(runner_); !queued) return queued;
      if (Result<void> queued = runner_.try_copy(there, slot, piece.bytes, site_); !queued) {
        return queued;
      }
      memory_.note_written(piece.memory_offset, piece.bytes);
      continue;
    }
    if (Result<void> queued = runner_.try_copy(slot, there, piece.bytes, site_); !queued) {
      return queued;
    }
    if (Result<void> queued = work.try_queue(runner_); !queued) return queued;
  }
  return {};
}

Result<void> FileCopySubmission::try_run(FileCopy::Reports reports,
                                         std::shared_ptr<ChunkSums> sums) noexcept {
  const Result<bool> is_captured = runner_.try_is_capturing();
  if (!is_captured) return is_captured.failure();
  if (*is_captured) {
    return Failure(ErrorCode::stream_misuse,
                   "{what} cannot be copied by a stream that is being captured into a graph. Copy "
                   "it before the capture.",
                   site_)
        .with("what", storage_.origin()->what());
  }
  const CopyRows::Side& side = is_write_ ? rows_.to_side : rows_.from_side;
  const Result<StorageOrigin::FileRange> file =
      storage_.origin()->try_file(side.offset, is_write_ ? 0 : rows_.extent(side), site_);
  if (!file) return file.failure();
  const bool is_direct = is_memory_direct();
  const Pieces pieces(rows_, is_write_, is_direct ? rows_.width : FileCopy::chunk_bytes);
  const std::size_t slot_count = std::min(FileCopy::chunks, pieces.count());
  StorageHandle slots;
  if (!is_direct) {
    const std::size_t last_bytes =
        slot_count == 1 ? std::min(rows_.width, FileCopy::chunk_bytes) + file_alignment
                        : slot_bytes;
    Result<StorageHandle> made =
        try_make_slots(runner_.device(), (slot_count - 1) * slot_bytes + last_bytes, site_);
    if (!made) return made.failure();
    slots = *std::move(made);
  }
  std::shared_ptr<Arrival> arrival;
  try {
    arrival = std::make_shared<Arrival>();
  } catch (const std::bad_alloc&) {
    return no_host_memory("a copy with a file", site_);
  }
  std::unique_ptr<Work, ReleaseWork> work(
      new (std::nothrow) Work(rows_, is_write_, is_direct ? rows_.width : FileCopy::chunk_bytes,
                              *file, stream_, reports, arrival, std::move(sums), site_));
  if (!work) return no_host_memory("a copy with a file", site_);
  work->begin(*DeviceState::of(runner_.device()));
  if (Result<void> begun = try_begin_uses(); !begun) return begun;

  Result<void> queued;
  StorageUse slots_use;
  if (is_direct) {
    work->use_memory(address_for(memory_, DeviceId{}));
    queued = work->try_queue(runner_);
    if (queued && !is_write_) note_written();
  } else {
    std::byte* const first = address_for(*slots, DeviceId{});
    // A checker must know that the host wrote the chunks.
    if (Result<void> free = slots->try_wait_host(Access::discard, 0, slots->bytes(), site_);
        !free) {
      return free;
    }
    Result<StorageUse> use = slots->try_use(runner_, Access::discard, 0, slots->bytes(), site_);
    if (!use) return use.failure();
    slots_use = *std::move(use);
    work->use_slots(first, slot_count);
    queued = try_submit_slots(*work, pieces, address_for(*slots, runner_.device_id()), slot_count);
    slots_use.end();
  }
  if (queued && stream_ != runner_) queued = order_behind(stream_, runner_.next_mark(), site_);
  DeviceState::of(runner_.device())->note_if_lost(queued);
  // If the submission failed in the middle, what was submitted runs.
  const StreamRef carrier = queued ? stream_ : runner_;
  file_use_.end_on(carrier);
  memory_use_.end_on(carrier);
  if (is_write_) note_written();
  static_cast<void>(rows_.for_each_row([&](std::size_t to_offset, std::size_t) noexcept {
    rows_.to.expect(to_offset, rows_.width, arrival);
    return Result<void>();
  }));
  return queued;
}

}  // namespace

bool FileCopy::is_possible(const CopyRows& rows, StreamRef runner) noexcept {
  Storage& storage = rows.to.kind() == MemoryKind::file ? rows.to : rows.from;
  return runner.device().can(Capability::host_functions) &&
         bool(storage.origin()->try_file(0, 0, {}));
}

Result<void> FileCopy::try_run(const CopyRows& rows, StreamRef stream, StreamRef runner,
                               Reports reports, CallSite site,
                               std::shared_ptr<ChunkSums> sums) noexcept {
  return FileCopySubmission(rows, stream, runner, site).try_run(reports, std::move(sums));
}

}  // namespace tern
