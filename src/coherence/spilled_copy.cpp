// UnifiedCore::try_spill and try_unspill (unified_spill.cpp) call this file: they wait for the uses
// of the host copy and update the directory. SpillFile (spill_file.cpp) reads and writes the disk.

#include "coherence/spilled_copy.hpp"

#include <new>

#include "core/no_host_memory.hpp"

namespace tern {
namespace {

/// Tells the checker of the device, if it has one, that the host accesses memory.
Result<void> try_note(Storage& storage, const std::byte* first, std::size_t bytes, Access access,
                      CallSite site) noexcept {
  if (!storage.device().info().wants_notes) return {};
  return storage.device().try_note_host_access(first, bytes, access, site);
}

}  // namespace

std::byte* host_bytes(Storage& storage) noexcept {
  return static_cast<std::byte*>(storage.try_memory()->host_address);
}

Result<SpilledCopy> SpilledCopy::try_write(SpillFile& file, Storage& from,
                                           std::span<const ByteRange> ranges, CallSite site) {
  SpilledCopy copy;
  copy.file_ = &file;
  copy.ranges_.assign(ranges.begin(), ranges.end());
  std::vector<SpillExtent> extents(ranges.size());
  std::vector<std::span<const std::byte>> parts;
  parts.reserve(ranges.size());
  for (const ByteRange& one : ranges) {
    parts.emplace_back(host_bytes(from) + one.begin, one.end - one.begin);
    if (Result<void> may =
            try_note(from, parts.back().data(), parts.back().size(), Access::read, site);
        !may) {
      return may.failure();
    }
  }
  if (Result<void> written = file.try_write_all(parts, extents, site); !written) {
    return written.failure();
  }
  copy.extents_ = std::move(extents);
  return copy;
}

Result<void> SpilledCopy::try_read(Storage& to, Tag tag, CallSite site) const noexcept try {
  std::vector<std::byte*> addresses;
  addresses.reserve(ranges_.size());
  const auto failed = [&](const Failure& cause, const ByteRange& range) {
    return Failure(
               cause.code(),
               "bytes {begin} to {end} of buffer '{tag}' could not be read from the spill file in "
               "'{path}': its {what} failed. The buffer is unchanged.",
               site)
        .with("begin", range.begin)
        .with("end", range.end)
        .with("error", cause.number("error").value_or(0))
        .with("tag", tag.name())
        .with("what", cause.string("what").value_or(name(cause.code())))
        .with("path", file_->directory());
  };
  for (const ByteRange& one : ranges_) {
    addresses.push_back(host_bytes(to) + one.begin);
    const Result<void> may =
        try_note(to, addresses.back(), one.end - one.begin, Access::discard, site);
    if (!may) return failed(may.failure(), one);
  }
  const Result<void> read = file_->try_read_all(extents_, addresses, site);
  if (read) return {};
  return failed(read.failure(), ranges_[read.failure().number("index").value_or(0)]);
} catch (const std::bad_alloc&) {
  return no_host_memory("reading a spill file", site);
}

void SpilledCopy::release() noexcept {
  for (const SpillExtent& one : extents_) file_->release(one);
  extents_.clear();
  ranges_.clear();
}

Transfer SpilledCopy::transfer(TransferReason reason, Place from, Place to,
                               CallSite site) const noexcept {
  Transfer moved{.from = from,
                 .to = to,
                 .begin = ranges_.front().begin,
                 .end = ranges_.back().end,
                 .runs = ranges_.size(),
                 .reason = reason,
                 .site = site};
  for (const SpillExtent& one : extents_) moved.bytes += one.bytes;
  return moved;
}

}  // namespace tern
