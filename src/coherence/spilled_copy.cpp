// UnifiedCore::try_spill and try_unspill (unified_spill.cpp) call this file: they wait for the uses
// of the host copy and update the directory. SpillFile (spill_file.cpp) reads and writes the disk.

#include "coherence/spilled_copy.hpp"

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
  copy.parts_.reserve(ranges.size());
  for (const ByteRange& one : ranges) {
    const std::span<const std::byte> part(host_bytes(from) + one.begin, one.end - one.begin);
    if (Result<void> may = try_note(from, part.data(), part.size(), Access::read, site); !may) {
      return may.failure();
    }
    const Result<SpillExtent> extent = file.try_write(part, site);
    if (!extent) return extent.failure();
    copy.parts_.push_back({one, *extent});
  }
  return copy;
}

Result<void> SpilledCopy::try_read(Storage& to, Tag tag, CallSite site) const noexcept {
  for (const Part& one : parts_) {
    std::byte* const first = host_bytes(to) + one.range.begin;
    Result<void> read = try_note(to, first, one.extent.bytes, Access::discard, site);
    if (read) read = file_->try_read(one.extent, first, site);
    if (read) continue;
    const Failure& cause = read.failure();
    return Failure(
               cause.code(),
               "bytes {begin} to {end} of buffer '{tag}' could not be read from the spill file in "
               "'{path}': its {what} failed. The buffer is unchanged.",
               site)
        .with("begin", one.range.begin)
        .with("end", one.range.end)
        .with("error", cause.number("error").value_or(0))
        .with("tag", tag.name())
        .with("what", cause.string("what").value_or(name(cause.code())))
        .with("path", file_->directory());
  }
  return {};
}

void SpilledCopy::release() noexcept {
  for (const Part& one : parts_) file_->release(one.extent);
  parts_.clear();
}

Transfer SpilledCopy::transfer(TransferReason reason, Place from, Place to,
                               CallSite site) const noexcept {
  Transfer moved{.from = from,
                 .to = to,
                 .begin = parts_.front().range.begin,
                 .end = parts_.back().range.end,
                 .runs = parts_.size(),
                 .reason = reason,
                 .site = site};
  for (const Part& one : parts_) moved.bytes += one.extent.bytes;
  return moved;
}

}  // namespace tern
