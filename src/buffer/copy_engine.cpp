// Runs a copy on its route: on the caller's stream, on a stream of another device, or staged.

#include "buffer/copy_engine.hpp"

#include <algorithm>
#include <optional>
#include <utility>

#include "buffer/copy_route.hpp"
#include "buffer/copy_turns.hpp"
#include "buffer/file_copy.hpp"
#include "buffer/file_transfers.hpp"
#include "buffer/staged_transfer.hpp"
#include "buffer/stream_order.hpp"
#include "buffer/transfer_counts.hpp"
#include "tern/core/bytes.hpp"
#include "tern/memory/default_resource.hpp"
#include "trace/nvtx.hpp"

namespace tern {
namespace {

/// Overlapping ranges are moved in steps of their distance if the steps are large enough or few
/// enough. Otherwise they go through scratch memory.
constexpr std::size_t min_step_bytes = 256 * kib;
constexpr std::size_t max_small_steps = 32;
constexpr std::size_t max_scratch_bytes = 32 * mib;

/// An additional stream for a copy: the library's copy stream of a device, or a new one.
class FurtherStream {
 public:
  [[nodiscard]] static Result<FurtherStream> try_make(const Device& device,
                                                      FurtherStreams whose) noexcept {
    FurtherStream made;
    if (whose == FurtherStreams::library) {
      const Result<StreamRef> stream = device.try_copy_stream();
      if (!stream) return stream.failure();
      made.stream_ = *stream;
      return made;
    }
    Result<Stream> stream = Stream::try_make(device, {.name = "copy"});
    if (!stream) return stream.failure();
    made.own_ = *std::move(stream);
    made.stream_ = made.own_;
    return made;
  }
  [[nodiscard]] StreamRef get() const noexcept { return stream_; }

 private:
  Stream own_;
  StreamRef stream_;
};

/// Allocates the memory of both sides, without a first user: this stream is used for one copy only.
Result<void> ensure_both(const CopyRows& rows, CallSite site) noexcept {
  if (Result<void> there = rows.to.try_ensure({}, site); !there) return there;
  if (rows.from.kind() == MemoryKind::file) return {};
  return rows.from.try_ensure({}, site);
}

/// Submits a copy to one stream: try_begin(), then the pieces, then end_on(). If the object is
/// destroyed before end_on(), the submitted pieces are recorded as uses.
class Submitting {
 public:
  Submitting(Storage& to, Storage& from, StreamRef stream, bool is_peer, CallSite site) noexcept
      : to_(to), from_(from), stream_(stream), is_peer_(is_peer), site_(site) {}
  Submitting(const Submitting&) = delete;
  Submitting& operator=(const Submitting&) = delete;
  ~Submitting() {
    if (has_put_) end_on(stream_);
  }

  [[nodiscard]] Result<void> try_begin() noexcept {
    // The ranges were checked before, and written pieces are noted one by one. These uses only
    // order the copy.
    if (Result<void> begun =
            try_use_both({to_, stream_, to_use_}, {from_, stream_, from_use_}, site_);
        !begun) {
      return begun;
    }
    to_address_ = address_for(to_, stream_.device_id());
    from_address_ = address_for(from_, is_peer_ ? from_.device().id() : stream_.device_id());
    return {};
  }

  [[nodiscard]] Result<void> try_put(std::size_t to_offset, std::size_t from_offset,
                                     std::size_t bytes) noexcept {
    if (Result<void> noted = note_foreign(to_offset, from_offset, bytes); !noted) return noted;
    Result<void> queued =
        is_peer_
            ? stream_.try_copy_from_peer(to_address_ + to_offset, from_.device(),
                                         from_address_ + from_offset, bytes, site_)
            : stream_.try_copy(to_address_ + to_offset, from_address_ + from_offset, bytes, site_);
    if (!queued) return queued;
    has_put_ = true;
    to_.note_written(to_offset, bytes);
    return {};
  }

  [[nodiscard]] Result<void> try_put_slice(const CopyRows& rows, std::size_t z) noexcept {
    const std::size_t to_offset = rows.to_side.offset + z * rows.to_side.slice_bytes;
    const std::size_t from_offset = rows.from_side.offset + z * rows.from_side.slice_bytes;
    for (std::size_t y = 0; y < rows.height; ++y) {
      if (Result<void> noted = note_foreign(to_offset + y * rows.to_side.row_bytes,
                                            from_offset + y * rows.from_side.row_bytes, rows.width);
          !noted) {
        return noted;
      }
    }
    Result<void> queued = stream_.try_copy_2d(
        {to_address_ + to_offset, rows.to_side.row_bytes, from_address_ + from_offset,
         rows.from_side.row_bytes, rows.width, rows.height},
        site_);
    if (!queued) return queued;
    has_put_ = true;
    for (std::size_t y = 0; y < rows.height; ++y) {
      to_.note_written(to_offset + y * rows.to_side.row_bytes, rows.width);
    }
    return {};
  }

  [[nodiscard]] Result<void> try_put_all(const CopyRows& rows) noexcept {
    if (rows.is_one_range() || is_peer_) {
      return rows.for_each_row([&](std::size_t to_offset, std::size_t from_offset) {
        return try_put(to_offset, from_offset, rows.width);
      });
    }
    for (std::size_t z = 0; z < rows.depth; ++z) {
      if (Result<void> queued = try_put_slice(rows, z); !queued) return queued;
    }
    return {};
  }

  /// Ends both uses on `carrier`, which is ordered after the copy.
  void end_on(StreamRef carrier) noexcept {
    from_use_.end_on(carrier);
    to_use_.end_on(carrier);
    has_put_ = false;
  }

 private:
  [[nodiscard]] Result<void> note_foreign(std::size_t to_offset, std::size_t from_offset,
                                          std::size_t bytes) noexcept {
    if (Result<void> noted =
            note_foreign_use(to_, stream_, Access::discard, to_offset, bytes, site_);
        !noted) {
      return noted;
    }
    return note_foreign_use(from_, stream_, Access::read, from_offset, bytes, site_);
  }

  Storage& to_;
  Storage& from_;
  const StreamRef stream_;
  const bool is_peer_;
  const CallSite site_;
  StorageUse to_use_, from_use_;
  std::byte* to_address_ = nullptr;
  const std::byte* from_address_ = nullptr;
  bool has_put_ = false;
};

// Runs the whole copy on one stream.
Result<void> run_on(const CopyRows& rows, StreamRef stream, bool is_peer, CallSite site) noexcept {
  Submitting copy(rows.to, rows.from, stream, is_peer, site);
  if (Result<void> begun = copy.try_begin(); !begun) return begun;
  if (Result<void> queued = copy.try_put_all(rows); !queued) return queued;
  copy.end_on(stream);
  return {};
}

/// Runs the copy on a stream of another device: ordered after the caller's stream, and the caller's
/// stream is ordered after the copy.
Result<void> run_elsewhere(const CopyRows& rows, StreamRef stream, const Device& runner,
                           bool is_peer, FurtherStreams further, CallSite site) noexcept {
  if (Result<void> there = ensure_both(rows, site); !there) return there;
  const Result<FurtherStream> other = FurtherStream::try_make(runner, further);
  if (!other) return Failure(other.failure()).at(site);
  if (Result<void> behind = order_behind(other->get(), stream.next_mark(), site); !behind) {
    return behind;
  }
  Submitting copy(rows.to, rows.from, other->get(), is_peer, site);
  if (Result<void> begun = copy.try_begin(); !begun) return begun;
  if (Result<void> queued = copy.try_put_all(rows); !queued) return queued;
  if (Result<void> behind = order_behind(stream, other->get().next_mark(), site); !behind) {
    return behind;
  }
  copy.end_on(stream);
  return {};
}

// Runs the copy through host memory, with one stream per side as needed.
Result<void> run_staged(const CopyRows& rows, StreamRef stream, StagedTransfer::Between between,
                        FurtherStreams further, CallSite site) noexcept {
  const bool is_file = rows.from.kind() == MemoryKind::file;
  StreamRef writer = stream, reader = is_file ? StreamRef{} : stream;
  FurtherStream other_writer, other_reader;
  const auto take = [&](const Device& device, FurtherStream& other,
                        StreamRef& used) -> Result<void> {
    Result<FurtherStream> made = FurtherStream::try_make(device, further);
    if (!made) return Failure(made.failure()).at(site);
    other = *std::move(made);
    used = other.get();
    return {};
  };
  if (!reaches(stream.device_id(), rows.to)) {
    if (Result<void> taken = take(rows.to.device(), other_writer, writer); !taken) return taken;
    // A file is read by the host, so the writer itself must be ordered after the caller's stream.
    if (is_file) {
      if (Result<void> behind = order_behind(writer, stream.next_mark(), site); !behind) {
        return behind;
      }
    }
  }
  if (!is_file && !reaches(stream.device_id(), rows.from)) {
    if (Result<void> taken = take(rows.from.device(), other_reader, reader); !taken) return taken;
  }
  if (Result<void> there = ensure_both(rows, site); !there) return there;
  StagedTransfer transfer(rows.to, writer, rows.from, reader, site, between);
  if (Result<void> begun = transfer.try_begin(rows.width, rows.bytes()); !begun) return begun;
  if (Result<void> added =
          rows.for_each_row([&](std::size_t to_offset, std::size_t from_offset) noexcept {
            return transfer.try_add(to_offset, from_offset, rows.width);
          });
      !added) {
    return added;
  }
  return transfer.try_finish(stream);
}

/// Runs a copy with a file in the background. Returns nothing if that is not possible: the file can
/// only be read by the host, or the device has no host functions.
std::optional<Result<void>> run_with_file(const CopyRows& rows, StreamRef stream,
                                          FurtherStreams further, CallSite site) noexcept {
  Storage& memory = rows.to.kind() == MemoryKind::file ? rows.from : rows.to;
  if (!FileCopy::is_possible(rows, stream)) return std::nullopt;
  StreamRef runner = stream;
  FurtherStream other;
  if (!reaches(stream.device_id(), memory)) {
    if (Result<void> there = memory.try_ensure({}, site); !there) return there;
    Result<FurtherStream> made = FurtherStream::try_make(memory.device(), further);
    if (!made) return Result<void>(Failure(made.failure()).at(site));
    other = *std::move(made);
    runner = other.get();
    if (!FileCopy::is_possible(rows, runner)) return std::nullopt;
    if (Result<void> behind = order_behind(runner, stream.next_mark(), site); !behind) {
      return behind;
    }
  }
  // The library's own streams are synchronized by others, too.
  const FileCopy::Reports reports = further == FurtherStreams::fresh
                                        ? FileCopy::Reports::on_stream
                                        : FileCopy::Reports::on_bytes_only;
  return FileCopy::try_run(rows, stream, runner, reports, site);
}

/// Moves bytes within one storage. The result is as if the source had been copied aside first.
class MoveWithin {
 public:
  MoveWithin(Storage& storage, StreamRef stream, CallSite site) noexcept
      : storage_(storage), stream_(stream), site_(site) {}

  [[nodiscard]] Result<void> try_run(std::size_t to, std::size_t from, std::size_t bytes) noexcept {
    const std::size_t distance = to > from ? to - from : from - to;
    if (distance == 0) return {};
    std::size_t step = distance;
    if (distance < min_step_bytes && bytes / distance >= max_small_steps) {
      step = std::min(bytes, max_scratch_bytes);
      if (Result<void> taken = try_take_scratch(step); !taken) return taken;
    }
    // Start at the end that the destination moves away from, so that no byte is overwritten before
    // it is read.
    for (std::size_t done = 0; done < bytes;) {
      const std::size_t now = std::min(step, bytes - done);
      const std::size_t at = to < from ? done : bytes - done - now;
      if (Result<void> moved = try_move(to + at, from + at, now); !moved) return moved;
      done += now;
    }
    return {};
  }

 private:
  [[nodiscard]] Result<void> try_take_scratch(std::size_t bytes) noexcept {
    ResourceHandle resource = storage_.resource();
    if (!resource) {
      const MemoryKind kind =
          storage_.kind() == MemoryKind::managed ? MemoryKind::managed
          : is_host_memory(storage_) && storage_.device().can(Capability::pinned_memory)
              ? MemoryKind::pinned
              : MemoryKind::device;
      Result<ResourceHandle> own = try_default_resource(storage_.device(), kind);
      if (!own) return Failure(own.failure()).at(site_);
      resource = *std::move(own);
    }
    const bool is_own = stream_.device_id() == resource->device().id();
    Result<StorageHandle> scratch = Storage::try_allocate(resource, bytes,
                                                          {.contents = Contents::unspecified,
                                                           .stream = is_own ? stream_ : StreamRef{},
                                                           .tag = storage_.tag(),
                                                           .checked = false,
                                                           .site = site_});
    if (!scratch) return scratch.failure();
    scratch_ = *std::move(scratch);
    return {};
  }

  [[nodiscard]] Result<void> try_move(std::size_t to, std::size_t from,
                                      std::size_t bytes) noexcept {
    if (!scratch_) return try_copy(storage_, to, storage_, from, bytes);
    if (Result<void> aside = try_copy(*scratch_, 0, storage_, from, bytes); !aside) return aside;
    return try_copy(storage_, to, *scratch_, 0, bytes);
  }
  [[nodiscard]] Result<void> try_copy(Storage& to, std::size_t to_offset, Storage& from,
                                      std::size_t from_offset, std::size_t bytes) noexcept {
    Submitting copy(to, from, stream_, false, site_);
    if (Result<void> begun = copy.try_begin(); !begun) return begun;
    return copy.try_put(to_offset, from_offset, bytes);
  }

  Storage& storage_;
  const StreamRef stream_;
  const CallSite site_;
  StorageHandle scratch_;
};

bool overlap_in_one(const CopyRows& rows) noexcept {
  return &rows.to == &rows.from &&
         rows.to_side.offset < rows.from_side.offset + rows.extent(rows.from_side) &&
         rows.from_side.offset < rows.to_side.offset + rows.extent(rows.to_side);
}

}  // namespace

Result<void> check_sides(const Buffer& destination, const Buffer& source, CallSite site) noexcept {
  const bool has_destination = bool(destination);
  if (!has_destination || !source) {
    return Failure(ErrorCode::not_allocated,
                   "the {name} of a copy is an empty buffer: it was default-constructed or moved "
                   "from. Create it with a device.",
                   site)
        .with("id", std::uint64_t{0})
        .with("name", has_destination ? "source" : "destination");
  }
  if (!destination.storage()->is_read_only()) return {};
  return Failure(ErrorCode::read_only, "{what} is read-only. Copy to writable memory.", site)
      .with("what", destination.storage()->origin()->what());
}

Result<void> check_same_size(const Buffer& destination, const Buffer& source,
                             CallSite site) noexcept {
  if (destination.size_bytes() == source.size_bytes()) return {};
  return Failure(ErrorCode::size_mismatch,
                 "{actual} bytes cannot be copied to a buffer of {expected} bytes. Use views of "
                 "the same size.",
                 site)
      .with("expected", destination.size_bytes())
      .with("actual", source.size_bytes());
}

CopyRows rows_of(const Buffer& destination, const Buffer& source) noexcept {
  return {*destination.storage(),
          {destination.offset_bytes(), 0, 0},
          *source.storage(),
          {source.offset_bytes(), 0, 0},
          source.size_bytes()};
}

Result<void> check_stream(StreamRef stream, CallSite site) noexcept {
  if (stream.is_usable()) return {};
  return Failure(stream.try_native().failure()).at(site);
}

Result<void> check_rows(const CopyRows& rows, CallSite site) noexcept {
  // Gaps between rows need not be written, so check row by row only if the whole extent is not
  // written.
  const Result<void> all =
      rows.from.check_written(rows.from_side.offset, rows.extent(rows.from_side), site);
  if (!all) {
    Result<void> written = rows.for_each_row([&](std::size_t, std::size_t from_offset) noexcept {
      return rows.from.check_written(from_offset, rows.width, site);
    });
    if (!written) return written;
  }
  if (!rows.to.is_checked() && !rows.from.is_checked()) return {};
  const auto check = [&](Storage& side, Access access, std::size_t offset) -> Result<void> {
    const Result<std::uint64_t> ticket =
        side.try_begin_host_access(access, offset, rows.width, site);
    if (!ticket) return ticket.failure();
    side.end_host_access(*ticket);
    return {};
  };
  return rows.for_each_row([&](std::size_t to_offset, std::size_t from_offset) noexcept {
    if (Result<void> free = check(rows.to, Access::discard, to_offset); !free) return free;
    return check(rows.from, Access::read, from_offset);
  });
}

Failure no_copy_route(const Storage& to, const Storage& from, std::string_view device,
                      CallSite site) noexcept {
  return Failure(ErrorCode::device_mismatch,
                 "a stream of '{device}' cannot copy from '{b}' to '{a}'. Use a stream of '{a}' or "
                 "'{b}'.",
                 site)
      .with("a", to.device().spec())
      .with("b", from.device().spec())
      .with("device", device);
}

Result<void> try_read_file(Storage& to, std::size_t to_offset, Storage& from,
                           std::size_t from_offset, std::size_t bytes, CallSite site) noexcept {
  Result<std::uint64_t> ticket = to.try_begin_host_access(Access::discard, to_offset, bytes, site);
  if (!ticket) return ticket.failure();
  HostTurn to_turn, from_turn;
  Result<void> read = by_address(
      to, from, [&] { return to_turn.try_take(to, Access::discard, site); },
      [&] { return from_turn.try_take(from, Access::read, site); });
  if (read) read = to.try_wait_host(Access::discard, to_offset, bytes, site);
  if (read) read = from.check_arrived(from_offset, bytes, site);
  if (read) {
    read =
        from.origin()->try_read(from_offset, bytes, address_for(to, DeviceId{}) + to_offset, site);
  }
  if (read) to.note_written(to_offset, bytes);
  to.end_host_access(*ticket);
  return read;
}

Result<void> try_write_file(Storage& to, std::size_t to_offset, Storage& from,
                            std::size_t from_offset, std::size_t bytes, CallSite site) noexcept {
  const Result<StorageOrigin::FileRange> file = to.origin()->try_file(to_offset, 0, site);
  if (!file) return file.failure();
  Result<std::uint64_t> ticket = from.try_begin_host_access(Access::read, from_offset, bytes, site);
  if (!ticket) return ticket.failure();
  HostTurn to_turn, from_turn;
  Result<void> ready = by_address(
      to, from, [&] { return to_turn.try_take(to, Access::discard, site); },
      [&] { return from_turn.try_take(from, Access::read, site); });
  if (ready) ready = from.try_wait_host(Access::read, from_offset, bytes, site);
  if (ready) {
    FileTransfer transfer{.file = file->file,
                          .memory = address_for(from, DeviceId{}) + from_offset,
                          .offset = file->offset + to_offset,
                          .bytes = bytes,
                          .is_write = true};
    FileTransfers::instance().submit(transfer);
    FileTransfers::instance().wait(transfer);
    ready = transfer.result(site);
    if (ready) to.note_written(to_offset, bytes);
  }
  from.end_host_access(*ticket);
  return ready;
}

Result<CopyRoute> try_run_copy(const CopyRows& rows, StreamRef stream, FurtherStreams further,
                               CallSite site) noexcept {
  using Between = StagedTransfer::Between;
  const auto by = [](CopyRoute route, const Result<void>& run) {
    return run ? Result<CopyRoute>(route) : Result<CopyRoute>(run.failure());
  };
  if (rows.to.kind() == MemoryKind::file && rows.from.kind() == MemoryKind::file) {
    return Failure(ErrorCode::unsupported,
                   "{source} cannot be copied to {destination} directly. Copy to memory first, and "
                   "from there to the file.",
                   site)
        .with("source", rows.from.origin()->what())
        .with("destination", rows.to.origin()->what());
  }
  const std::optional<CopyPlan> plan = plan_copy(rows.to, rows.from, stream.device_id());
  if (!plan) return no_copy_route(rows.to, rows.from, stream.device().spec(), site);
  const trace::TagRange range_of_tag(rows.to.tag() != Tag() ? rows.to.tag() : rows.from.tag());
  const bool is_own = plan->runner != nullptr && plan->runner->id() == stream.device_id();
  switch (plan->route) {
    case CopyRoute::direct:
      if (!overlap_in_one(rows)) return by(plan->route, run_on(rows, stream, false, site));
      return by(plan->route, MoveWithin(rows.to, stream, site)
                                 .try_run(rows.to_side.offset, rows.from_side.offset, rows.width));
    case CopyRoute::handed_over:
      return by(plan->route, run_elsewhere(rows, stream, *plan->runner, false, further, site));
    case CopyRoute::peer: {
      const Result<void> copied =
          is_own ? run_on(rows, stream, true, site)
                 : run_elsewhere(rows, stream, *plan->runner, true, further, site);
      // Two simulated devices in separate worlds have one backend but cannot copy to each other.
      if (copied || copied.failure().code() != ErrorCode::device_mismatch) {
        return by(plan->route, copied);
      }
      if (Result<void> may = try_download(rows.from.tag(), rows.bytes(), site); !may) {
        return may.failure();
      }
      return by(CopyRoute::staged, run_staged(rows, stream, Between::pageable, further, site));
    }
    case CopyRoute::staged:
      break;
    case CopyRoute::to_file:
      if (const std::optional<Result<void>> run = run_with_file(rows, stream, further, site)) {
        return by(plan->route, *run);
      }
      return Failure(ErrorCode::unsupported,
                     "a stream of '{device}' cannot write {what}. Copy to host memory, and from "
                     "there to the file without a stream.",
                     site)
          .with("what", rows.to.origin()->what())
          .with("device", stream.device().spec());
    case CopyRoute::from_file:
      if (const std::optional<Result<void>> run = run_with_file(rows, stream, further, site)) {
        return by(plan->route, *run);
      }
      if (!is_host_memory(rows.to)) break;
      return by(plan->route, rows.for_each_row([&](std::size_t to_offset,
                                                   std::size_t from_offset) noexcept {
        return try_read_file(rows.to, to_offset, rows.from, from_offset, rows.width, site);
      }));
  }
  return by(plan->route, run_staged(rows, stream, Between::pinned, further, site));
}

}  // namespace tern
