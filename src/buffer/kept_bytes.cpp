#include "buffer/kept_bytes.hpp"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <mutex>
#include <new>
#include <span>
#include <thread>
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

constexpr std::size_t chunk_bytes = ChunkSums::chunk_bytes;
/// What one host function sums.
constexpr std::size_t step_bytes = 32 * chunk_bytes;
/// From this size on, several threads compute checksums.
constexpr std::size_t min_team_sum_bytes = 4 * chunk_bytes;
constexpr std::size_t helpers = 3;
/// Chunks that are read from a file at once.
constexpr std::size_t slot_count = 3;

/// Calls visit(offset, chunk) for all chunks of the bytes, until a call returns false. Many chunks
/// are visited by several threads.
template <class Visit>
void for_each_chunk(std::span<const std::byte> bytes, Visit visit) noexcept {
  std::atomic<std::size_t> next = 0;
  const auto work = [&]() noexcept {
    for (;;) {
      const std::size_t offset = next.fetch_add(chunk_bytes, std::memory_order_relaxed);
      if (offset >= bytes.size()) return;
      const std::size_t part = std::min(chunk_bytes, bytes.size() - offset);
      if (!visit(offset, bytes.subspan(offset, part))) return next.store(bytes.size());
    }
  };
  std::array<std::thread, helpers> team;
  if (bytes.size() >= min_team_sum_bytes) {
    try {
      for (std::thread& one : team) one = std::thread(work);
    } catch (...) {
      // Fewer threads only take longer.
    }
  }
  work();
  for (std::thread& one : team) {
    if (one.joinable()) one.join();
  }
}

/// Returns the offset of a chunk that has changed, or the number of bytes.
std::size_t find_change(ChunkSums& sums, std::span<const std::byte> bytes) noexcept {
  std::atomic<std::size_t> changed = bytes.size();
  for_each_chunk(bytes, [&](std::size_t offset, std::span<const std::byte> chunk) {
    const bool is_same = sums.matches(offset, chunk);
    if (!is_same) changed.store(offset);
    return is_same;
  });
  return changed.load();
}

/// Computes checksums when the stream reaches it.
struct SumStep final : InFlightObject {
  SumStep(DeviceState& on, std::shared_ptr<ChunkSums> into, std::size_t first,
          std::span<const std::byte> of) noexcept
      : device(on), sums(std::move(into)), offset(first), bytes(of) {}

  static void run(void* context) {
    const std::unique_ptr<SumStep> step(static_cast<SumStep*>(context));
    {
      const std::lock_guard lock(step->mutex);
      if (!step->is_lost) {
        for_each_chunk(step->bytes, [&](std::size_t at, std::span<const std::byte> chunk) {
          step->sums->add(step->offset + at, chunk);
          return true;
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

Result<void> KeptBytes::try_save(std::byte* memory, StreamRef copies, StreamRef sums,
                                 CallSite site) noexcept {
  if (ranges_.empty()) return {};
  switch (keep_) {
    case Keep::host:
      return try_save_on_host(memory, copies, sums, site);
    case Keep::disk:
      return try_save_on_disk(memory, copies, site);
    case Keep::nothing:
      break;
  }
  return {};
}

Result<void> KeptBytes::try_save_on_host(std::byte* memory, StreamRef copies, StreamRef sums,
                                         CallSite site) noexcept {
  const std::size_t bytes = storage_->bytes();
  std::byte* const to = address_for(*storage_, copies.device_id());
  Result<StorageUse> written =
      storage_->try_use(copies, Access::discard, 0, bytes, site, Storage::Streams::any_device);
  if (!written) return written.failure();
  for (const ByteRange& range : ranges_) {
    if (Result<void> copied =
            copies.try_copy(to + range.begin, memory + range.begin, range.end - range.begin, site);
        !copied) {
      return copied;
    }
  }
  written->end();
  if (!sums_) return {};
  Result<StorageUse> read =
      storage_->try_use(sums, Access::read, 0, bytes, site, Storage::Streams::any_device);
  if (!read) return read.failure();
  DeviceState& device = *DeviceState::of(device_);
  const std::span<const std::byte> all(address_for(*storage_, DeviceId{}), bytes);
  Result<void> queued;
  for (std::size_t offset = 0; offset < bytes && queued; offset += step_bytes) {
    auto* const step = new (std::nothrow)
        SumStep(device, sums_, offset, all.subspan(offset, std::min(step_bytes, bytes - offset)));
    if (step == nullptr) {
      queued = no_host_memory("paused memory", site);
      break;
    }
    device.add_in_flight_object(*step);
    queued = sums.try_call(SumStep::run, step, site);
    if (!queued) {
      device.remove_in_flight_object(*step);
      delete step;
    }
  }
  read->end();
  sums_done_ = sums.next_mark();
  return queued;
}

Result<void> KeptBytes::try_save_on_disk(std::byte* memory, StreamRef copies,
                                         CallSite site) noexcept {
  const std::size_t bytes = storage_->bytes();
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

Result<void> KeptBytes::try_restore(std::byte* memory, StreamRef copies, CallSite site) noexcept {
  if (ranges_.empty()) return {};
  switch (keep_) {
    case Keep::host:
      return try_restore_from_host(memory, copies, site);
    case Keep::disk:
      return try_restore_from_disk(memory, copies, site);
    case Keep::nothing:
      break;
  }
  return {};
}

Result<void> KeptBytes::try_restore_from_host(std::byte* memory, StreamRef copies,
                                              CallSite site) noexcept {
  const std::size_t bytes = storage_->bytes();
  const std::byte* const from = address_for(*storage_, copies.device_id());
  Result<StorageUse> read =
      storage_->try_use(copies, Access::read, 0, bytes, site, Storage::Streams::any_device);
  if (!read) return read.failure();
  for (const ByteRange& range : ranges_) {
    if (Result<void> copied = copies.try_copy(memory + range.begin, from + range.begin,
                                              range.end - range.begin, site);
        !copied) {
      return copied;
    }
  }
  read->end();
  if (!sums_) return {};
  // While the stream copies.
  if (Result<void> summed = Device::try_wait(sums_done_, site); !summed) return summed;
  // A checker is not told of the read, because the program may not have written all bytes.
  if (Result<void> saved = storage_->uses().try_wait(Access::read, site); !saved) return saved;
  const std::size_t offset = find_change(*sums_, {address_for(*storage_, DeviceId{}), bytes});
  if (offset != bytes) return changed(offset, site);
  return {};
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
    if (sums_ && !sums_->matches(offset, {slot.transfer.memory, part}))
      return changed(offset, site);
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

}  // namespace tern
