#include "buffer/kept_bytes.hpp"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <mutex>
#include <new>
#include <span>
#include <utility>

#include "buffer/copy_route.hpp"
#include "buffer/file_copy.hpp"
#include "buffer/file_transfers.hpp"
#include "core/file_failure.hpp"
#include "core/no_host_memory.hpp"
#include "device/device_state.hpp"
#include "tern/buffer/file.hpp"
#include "tern/core/bytes.hpp"
#include "tern/memory/default_resource.hpp"

namespace tern {
namespace {

/// What is read from a file at once.
constexpr std::size_t chunk_bytes = FileCopy::chunk_bytes;
static_assert(chunk_bytes % ChunkSums::chunk_bytes == 0);
/// Chunks that are read from a file at once.
constexpr std::size_t slot_count = 3;
/// What one host function sums. The checksums of one step are computed during the copy of the next.
constexpr std::size_t step_bytes = 128 * mib;
/// More threads than this do not read memory faster.
constexpr std::size_t max_sum_threads = 16;
/// Fewer bytes are not worth another thread.
constexpr std::size_t min_bytes_per_thread = 4 * mib;

std::size_t chunks_of(std::size_t bytes) noexcept {
  return (bytes + ChunkSums::chunk_bytes - 1) / ChunkSums::chunk_bytes;
}

std::span<const std::byte> chunk_of(std::span<const std::byte> bytes, std::size_t index) noexcept {
  const std::size_t offset = index * ChunkSums::chunk_bytes;
  return bytes.subspan(offset, std::min(ChunkSums::chunk_bytes, bytes.size() - offset));
}

/// Computes checksums when the stream reaches it.
struct SumStep final : InFlightObject {
  SumStep(DeviceState& on, std::shared_ptr<WorkerTeam> by, std::shared_ptr<ChunkSums> into,
          std::size_t first, std::span<const std::byte> of) noexcept
      : device(on), team(std::move(by)), sums(std::move(into)), offset(first), bytes(of) {}

  static void run(void* context) {
    const std::unique_ptr<SumStep> step(static_cast<SumStep*>(context));
    {
      const std::lock_guard lock(step->mutex);
      if (!step->is_lost) {
        step->team->for_each(chunks_of(step->bytes.size()), [&](std::size_t index) {
          step->sums->add(step->offset + index * ChunkSums::chunk_bytes,
                          chunk_of(step->bytes, index));
        });
      }
    }
    step->device.remove_in_flight_object(*step);
  }
  /// The memory is freed afterwards.
  void on_device_lost(const Failure&) noexcept override {
    const std::lock_guard lock(mutex);
    is_lost = true;
  }

  DeviceState& device;  // outlives the step: it deletes steps that never run
  std::shared_ptr<WorkerTeam> team;
  std::shared_ptr<ChunkSums> sums;
  std::size_t offset;
  std::span<const std::byte> bytes;
  std::mutex mutex;
  bool is_lost = false;
};

/// Memory of a range, for copies with files.
class RangeOrigin final : public StorageOrigin {
 public:
  explicit RangeOrigin(const Memory& memory) noexcept : memory_(memory) {}
  [[nodiscard]] const char* what() const noexcept override { return "paused memory"; }
  [[nodiscard]] Result<Memory> try_begin(CallSite) noexcept override { return memory_; }
  [[nodiscard]] bool try_end() noexcept override { return true; }

 private:
  const Memory memory_;
};

/// Creates a file without a name, and allocates its disk space.
Result<StorageHandle> try_make_file(const std::string& directory, std::size_t bytes, Tag tag,
                                    CallSite site) {
  std::string path = directory + "/tern-paused-XXXXXX";
  const int created = ::mkostemp(path.data(), O_CLOEXEC);
  if (created < 0) {
    return Failure(ErrorCode::file,
                   "a file for paused memory cannot be created in '{path}': {call} failed "
                   "({os_code}). Set PausableOptions::directory to a writable directory.",
                   site)
        .with("call", "mkostemp")
        .with("os_code", static_cast<std::uint64_t>(errno))
        .with("path", directory);
  }
  ::close(created);
  Result<Buffer> file = try_open_file(
      path, {.bytes = bytes, .create = true, .tag = tag, .checked = false, .site = site});
  // The open file stays.
  ::unlink(path.c_str());
  if (!file) return file.failure();
  return file->storage();
}

}  // namespace

Result<KeptBytes> KeptBytes::try_make(const Device& device, std::vector<ByteRange> ranges,
                                      const Options& options, Tag tag, CallSite site) noexcept try {
  KeptBytes made;
  made.device_ = device;
  made.keep_ = options.keep;
  made.tag_ = tag;
  if (options.keep == Keep::nothing || ranges.empty()) return made;
  const std::size_t bytes = ranges.back().end;
  made.ranges_ = std::move(ranges);
  if (options.verify && device.can(Capability::host_functions)) {
    made.sums_ = std::make_shared<ChunkSums>(bytes);
  }
  if (options.keep == Keep::disk) {
    Result<StorageHandle> file = try_make_file(options.directory, bytes, tag, site);
    if (!file) return file.failure();
    made.storage_ = *std::move(file);
    return made;
  }
  ResourceHandle resource = options.host;
  if (!resource) {
    Result<ResourceHandle> pinned = try_default_resource(device, MemoryKind::pinned);
    if (!pinned) return Failure(pinned.failure()).at(site);
    resource = *std::move(pinned);
  }
  Result<StorageHandle> memory = Storage::try_allocate(
      resource, bytes,
      {.contents = Contents::unspecified, .tag = tag, .checked = false, .site = site});
  if (!memory) return memory.failure();
  made.storage_ = *std::move(memory);
  if (is_host_memory(*made.storage_)) return made;
  return Failure(ErrorCode::invalid_argument,
                 "resource '{value}' cannot keep paused bytes, because its memory is not memory of "
                 "the host. Pass a resource of pinned memory.",
                 site)
      .with("name", "host")
      .with("value", resource->name());
} catch (const std::bad_alloc&) {
  return no_host_memory("paused memory", site);
}

Failure KeptBytes::changed(std::size_t offset, CallSite site) const noexcept {
  return Failure(ErrorCode::bad_format,
                 "the kept bytes of memory with tag '{tag}' have changed near offset {offset}, so "
                 "the memory stays paused. Look for code that writes past its own memory, or for a "
                 "defect of the disk.",
                 site)
      .with("tag", tag_.name())
      .with("offset", offset);
}

// --- Saving

std::size_t KeptBytes::sum_threads(std::size_t bytes) noexcept {
  return std::clamp<std::size_t>(bytes / min_bytes_per_thread, 1,
                                 std::min(usable_cores(), max_sum_threads));
}

Result<void> KeptBytes::try_save(std::byte* memory, StreamRef copies, StreamRef sums,
                                 const std::shared_ptr<WorkerTeam>& team, CallSite site) noexcept {
  if (ranges_.empty()) return {};
  switch (keep_) {
    case Keep::host:
      return try_save_on_host(memory, copies, sums, team, site);
    case Keep::disk:
      return try_save_on_disk(memory, copies, site);
    case Keep::nothing:
      break;
  }
  return {};
}

Result<void> KeptBytes::try_save_on_host(std::byte* memory, StreamRef copies, StreamRef sums,
                                         const std::shared_ptr<WorkerTeam>& team,
                                         CallSite site) noexcept {
  const std::size_t bytes = storage_->bytes();
  std::byte* const to = address_for(*storage_, copies.device_id());
  Result<StorageUse> written =
      storage_->try_use(copies, Access::discard, 0, bytes, site, Storage::Streams::any_device);
  if (!written) return written.failure();
  const std::size_t step = sums_ ? step_bytes : bytes;
  Result<void> queued;
  std::size_t summed = 0;
  for (std::size_t offset = 0; offset < bytes && queued; offset += step) {
    const ByteRange part{offset, std::min(offset + step, bytes)};
    queued = for_each_common_range(part, [&](const ByteRange& range) {
      return copies.try_copy(to + range.begin, memory + range.begin, range.end - range.begin, site);
    });
    if (queued && sums_) queued = try_queue_sums(part, copies, sums, team, site);
    if (queued) summed = part.end;
  }
  written->end();
  if (!sums_ || summed == 0) return queued;
  sums_done_ = sums.next_mark();
  // The storage must not be freed before the checksums are computed. This use waits for all copies,
  // so it comes behind the steps.
  Result<StorageUse> read =
      storage_->try_use(sums, Access::read, 0, bytes, site, Storage::Streams::any_device);
  if (read) {
    read->end();
    return queued;
  }
  static_cast<void>(Device::try_wait(sums_done_));
  return read.failure();
}

Result<void> KeptBytes::try_queue_sums(const ByteRange& part, StreamRef copies, StreamRef sums,
                                       const std::shared_ptr<WorkerTeam>& team,
                                       CallSite site) noexcept {
  const Result<Mark> copied = copies.try_mark();
  if (!copied) return copied.failure();
  if (Result<void> ordered = sums.try_wait(*copied, site); !ordered) return ordered;
  DeviceState& device = *DeviceState::of(device_);
  auto* const step = new (std::nothrow)
      SumStep(device, team, sums_, part.begin,
              {address_for(*storage_, DeviceId{}) + part.begin, part.end - part.begin});
  if (step == nullptr) return no_host_memory("paused memory", site);
  device.add_in_flight_object(*step);
  Result<void> queued = sums.try_call(SumStep::run, step, site);
  if (!queued) {
    device.remove_in_flight_object(*step);
    delete step;
  }
  return queued;
}

Result<void> KeptBytes::try_save_on_disk(std::byte* memory, StreamRef copies,
                                         CallSite site) noexcept {
  const std::size_t bytes = storage_->bytes();
  // The file has the gaps between the ranges, too, and their bytes were never written.
  std::size_t end = 0;
  for (const ByteRange& range : ranges_) {
    if (range.begin != end) {
      Result<void> filled = copies.try_fill(memory + end, range.begin - end, std::byte{0}, site);
      if (!filled) return filled;
    }
    end = range.end;
  }
  const MemoryKind kind = storage_kind_of(MemoryKind::mapped, device_.info().is_host);
  const bool host_reads = reach_of(kind, device_.info().capabilities).host_reads;
  std::unique_ptr<StorageOrigin> origin(new (std::nothrow) RangeOrigin(
      {.device_address = memory, .host_address = host_reads ? memory : nullptr, .bytes = bytes}));
  if (!origin) return no_host_memory("paused memory", site);
  const Result<StorageHandle> range =
      Storage::try_make(device_, bytes, kind, std::move(origin), {.checked = false, .site = site});
  if (!range) return range.failure();
  if (Result<void> there = (*range)->try_ensure({}, site); !there) return there;
  const CopyRows rows{
      .to = *storage_, .to_side = {}, .from = **range, .from_side = {}, .width = bytes};
  return FileCopy::try_run(rows, copies, copies, FileCopy::Reports::on_bytes_only, site, sums_);
}

Result<void> KeptBytes::check_saved(CallSite site) const noexcept {
  if (keep_ != Keep::disk || !storage_) return {};
  return storage_->check_arrived(0, storage_->bytes(), site);
}

// --- Restoring

Result<void> KeptBytes::try_restore(std::byte* memory, const ByteRange& part, StreamRef copies,
                                    CallSite site) noexcept {
  if (ranges_.empty()) return {};
  switch (keep_) {
    case Keep::host:
      return try_restore_from_host(memory, part, copies, site);
    case Keep::disk:
      return part.begin == 0 ? try_restore_from_disk(memory, copies, site) : Result<void>();
    case Keep::nothing:
      break;
  }
  return {};
}

Result<void> KeptBytes::try_restore_from_host(std::byte* memory, const ByteRange& part,
                                              StreamRef copies, CallSite site) noexcept {
  const ByteRange kept{part.begin, std::min(part.end, storage_->bytes())};
  if (kept.begin >= kept.end) return {};
  const std::byte* const from = address_for(*storage_, copies.device_id());
  Result<StorageUse> read = storage_->try_use(
      copies, Access::read, kept.begin, kept.end - kept.begin, site, Storage::Streams::any_device);
  if (!read) return read.failure();
  Result<void> queued = for_each_common_range(kept, [&](const ByteRange& range) {
    return copies.try_copy(memory + range.begin, from + range.begin, range.end - range.begin, site);
  });
  read->end();
  return queued;
}

Result<void> KeptBytes::try_restore_from_disk(std::byte* memory, StreamRef copies,
                                              CallSite site) noexcept {
  const std::size_t bytes = storage_->bytes();
  const Result<StorageOrigin::FileRange> file = storage_->origin()->try_file(0, bytes, site);
  if (!file) return file.failure();
  const Result<ResourceHandle> pinned = try_default_resource(device_, MemoryKind::pinned);
  if (!pinned) return Failure(pinned.failure()).at(site);

  struct Slot {
    StorageHandle memory;
    FileTransfer transfer;
    bool is_reading = false;
  };
  // A transfer that has begun uses its slot until it ends.
  struct Slots : std::array<Slot, slot_count> {
    ~Slots() {
      for (Slot& slot : *this) {
        if (slot.is_reading) FileTransfers::instance().wait(slot.transfer);
      }
    }
  } slots;
  const std::size_t chunks = (bytes + chunk_bytes - 1) / chunk_bytes;
  const auto part_of = [&](std::size_t chunk) {
    return std::min(chunk_bytes, bytes - chunk * chunk_bytes);
  };
  const auto begin = [&](std::size_t chunk) -> Result<void> {
    Slot& slot = slots[chunk % slot_count];
    if (!slot.memory) {
      Result<StorageHandle> made =
          Storage::try_allocate(*pinned, part_of(chunk),
                                {.contents = Contents::unspecified,
                                 .alignment = std::min(FileTransfers::direct_alignment,
                                                       (*pinned)->traits().max_alignment),
                                 .checked = false,
                                 .site = site});
      if (!made) return made.failure();
      slot.memory = *std::move(made);
    }
    // Waits until the stream has copied the chunk before.
    if (Result<void> free = slot.memory->try_wait_host(Access::discard, 0, part_of(chunk), site);
        !free) {
      return free;
    }
    slot.transfer = {.file = file->file,
                     .memory = address_for(*slot.memory, DeviceId{}),
                     .offset = file->offset + chunk * chunk_bytes,
                     .bytes = part_of(chunk)};
    slot.is_reading = true;
    FileTransfers::instance().submit(slot.transfer);
    return {};
  };
  const auto end = [&](std::size_t chunk) -> Result<void> {
    Slot& slot = slots[chunk % slot_count];
    FileTransfers::instance().wait(slot.transfer);
    slot.is_reading = false;
    if (Result<void> done = slot.transfer.result(site); !done) return done;
    const std::size_t part = part_of(chunk), offset = chunk * chunk_bytes;
    if (sums_) {
      const std::size_t change = sums_->find_change(offset, {slot.transfer.memory, part});
      if (change != offset + part) return changed(change, site);
    }
    Result<StorageUse> use =
        slot.memory->try_use(copies, Access::read, 0, part, site, Storage::Streams::any_device);
    if (!use) return use.failure();
    if (Result<void> copied = copies.try_copy(
            memory + offset, address_for(*slot.memory, copies.device_id()), part, site);
        !copied) {
      return copied;
    }
    use->end();
    return {};
  };
  for (std::size_t chunk = 0; chunk < std::min(chunks, slot_count); ++chunk) {
    if (Result<void> begun = begin(chunk); !begun) return begun;
  }
  for (std::size_t chunk = 0; chunk < chunks; ++chunk) {
    if (Result<void> ended = end(chunk); !ended) return ended;
    if (chunk + slot_count < chunks) {
      if (Result<void> begun = begin(chunk + slot_count); !begun) return begun;
    }
  }
  return {};
}

// --- Checking

KeptBytesCheck::KeptBytesCheck(std::vector<KeptBytes*> of) : all_(std::move(of)) {
  std::erase_if(all_, [](const KeptBytes* kept) {
    return kept->keep_ != Keep::host || !kept->sums_ || kept->bytes() == 0;
  });
  std::size_t bytes = 0;
  ends_.reserve(all_.size());
  for (const KeptBytes* const kept : all_) {
    bytes += kept->bytes();
    chunks_ += chunks_of(kept->bytes());
    ends_.push_back(chunks_);
  }
  changed_ = chunks_;
  if (chunks_ != 0) team_.emplace(KeptBytes::sum_threads(bytes));
}

bool KeptBytesCheck::is_ready() const noexcept {
  return std::ranges::all_of(all_,
                             [](const KeptBytes* kept) { return kept->sums_->is_complete(); });
}

Result<void> KeptBytesCheck::try_start(CallSite site) noexcept {
  for (KeptBytes* const kept : all_) {
    if (Result<void> summed = Device::try_wait(kept->sums_done_, site); !summed) return summed;
    // A checker is not told of the read, because the program may not have written all bytes.
    if (Result<void> saved = kept->storage_->uses().try_wait(Access::read, site); !saved) {
      return saved;
    }
  }
  if (team_) loop_.emplace(*team_, chunks_, Compare{this});
  return {};
}

void KeptBytesCheck::compare(std::size_t index) noexcept {
  // After a change, the chunks before it are still compared, so that the first change is reported.
  if (index >= changed_.load(std::memory_order_relaxed)) return;
  const auto at = static_cast<std::size_t>(std::ranges::upper_bound(ends_, index) - ends_.begin());
  KeptBytes& kept = *all_[at];
  const std::size_t first = at == 0 ? 0 : ends_[at - 1];
  const std::span<const std::byte> bytes(address_for(*kept.storage_, DeviceId{}), kept.bytes());
  const std::size_t offset = (index - first) * ChunkSums::chunk_bytes;
  const std::span<const std::byte> chunk = chunk_of(bytes, index - first);
  if (kept.sums_->find_change(offset, chunk) == offset + chunk.size()) return;
  std::size_t known = changed_.load();
  while (index < known && !changed_.compare_exchange_weak(known, index)) {
  }
}

Result<void> KeptBytesCheck::try_finish(CallSite site) noexcept {
  if (!loop_) return {};
  loop_->finish();
  const std::size_t index = changed_.load();
  if (index == chunks_) return {};
  const auto at = static_cast<std::size_t>(std::ranges::upper_bound(ends_, index) - ends_.begin());
  const std::size_t first = at == 0 ? 0 : ends_[at - 1];
  return all_[at]->changed((index - first) * ChunkSums::chunk_bytes, site);
}

}  // namespace tern
