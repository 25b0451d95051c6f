// Batches of copies: check that no copy conflicts with another, then submit them together.

#include <algorithm>
#include <functional>
#include <new>
#include <optional>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "buffer/copy_engine.hpp"
#include "buffer/copy_route.hpp"
#include "buffer/transfer_counts.hpp"
#include "core/no_host_memory.hpp"
#include "tern/buffer/copy.hpp"

namespace tern {
namespace {

constexpr Storage::Streams any_device = Storage::Streams::any_device;

Failure of(const Failure& failure, std::size_t index) noexcept {
  return Failure(failure).with("index", index);
}

/// A byte range that one copy reads or writes.
struct Touched {
  StorageId storage;
  std::size_t begin = 0, end = 0;
  bool is_write = false;
  std::size_t index = 0;
};

bool overlaps(const CopyRows& rows) noexcept {
  return &rows.to == &rows.from && rows.to_side.offset < rows.from_side.offset + rows.width &&
         rows.from_side.offset < rows.to_side.offset + rows.width;
}

/// A copy of more than 0 bytes, with its index in the caller's list.
struct Numbered {
  CopyRows rows;
  std::size_t index = 0;
};

/// Checks that no copy writes bytes that another copy touches. Throws std::bad_alloc.
Result<void> check_apart(const std::vector<Numbered>& all, CallSite site) {
  std::vector<Touched> touched;
  touched.reserve(2 * all.size());
  for (const auto& [rows, index] : all) {
    const std::size_t to = rows.to_side.offset, from = rows.from_side.offset;
    if (overlaps(rows)) {
      // A copy may overlap itself. For the other copies it is one written range.
      touched.push_back(
          {rows.to.id(), std::min(to, from), std::max(to, from) + rows.width, true, index});
      continue;
    }
    touched.push_back({rows.to.id(), to, to + rows.width, true, index});
    touched.push_back({rows.from.id(), from, from + rows.width, false, index});
  }
  std::ranges::sort(touched, [](const Touched& a, const Touched& b) {
    return std::tie(a.storage, a.begin) < std::tie(b.storage, b.begin);
  });
  // Of the earlier ranges, the one that ends last, among all and among the written ones.
  const Touched* any = nullptr;
  const Touched* written = nullptr;
  for (const Touched& one : touched) {
    if (any != nullptr && any->storage != one.storage) any = written = nullptr;
    const Touched* const before = one.is_write ? any : written;
    if (before != nullptr && one.begin < before->end) {
      return Failure(ErrorCode::invalid_argument,
                     "copies {first} and {index} of a batch are unordered, and both use bytes "
                     "{begin} to {end} of buffer {value}, which one of them writes. Submit the "
                     "copies one after the other.",
                     site)
          .with("name", "copies")
          .with("value", one.storage.value)
          .with("first", std::min(before->index, one.index))
          .with("index", std::max(before->index, one.index))
          .with("begin", one.begin)
          .with("end", std::min(one.end, before->end));
    }
    if (any == nullptr || one.end > any->end) any = &one;
    if (one.is_write && (written == nullptr || one.end > written->end)) written = &one;
  }
  return {};
}

/// Submits all copies at once. Throws std::bad_alloc.
Result<void> submit_all(const std::vector<Numbered>& all, StreamRef stream, CallSite site) {
  // Begin one use per storage, in the order of addresses, so that batches of two threads cannot
  // deadlock.
  struct Used {
    Storage* storage = nullptr;
    Access access = Access::read;
    std::size_t index = 0;  // index of the first copy that uses the storage
    StorageUse use = {};
  };
  std::vector<Used> uses;
  uses.reserve(2 * all.size());
  for (const auto& [rows, index] : all) {
    uses.push_back({&rows.to, Access::discard, index, {}});
    uses.push_back({&rows.from, Access::read, index, {}});
  }
  std::ranges::stable_sort(uses, std::less<Storage*>(), &Used::storage);
  std::size_t distinct = 0;
  for (std::size_t i = 1; i < uses.size(); ++i) {
    Used& last = uses[distinct];
    if (uses[i].storage == last.storage) {
      if (is_write(uses[i].access)) last.access = Access::discard;
    } else if (++distinct != i) {
      uses[distinct] = std::move(uses[i]);
    }
  }
  uses.resize(distinct + 1);
  for (Used& one : uses) {
    Result<StorageUse> use = one.storage->try_use(stream, one.access, 0, 0, site, any_device);
    if (!use) return of(use.failure(), one.index);
    one.use = *std::move(use);
  }
  std::vector<CopyRange> ranges;
  ranges.reserve(all.size());
  const DeviceId device = stream.device_id();
  for (std::size_t i = 0; i < all.size(); ++i) {
    const auto& [rows, index] = all[i];
    const std::size_t to = rows.to_side.offset, from = rows.from_side.offset;
    for (const auto& [side, access, offset] :
         {std::tuple{&rows.to, Access::discard, to}, std::tuple{&rows.from, Access::read, from}}) {
      if (Result<void> noted = note_foreign_use(*side, stream, access, offset, rows.width, site);
          !noted) {
        return of(noted.failure(), index);
      }
    }
    ranges.push_back(
        {address_for(rows.to, device) + to, address_for(rows.from, device) + from, rows.width});
  }
  Result<void> queued = stream.try_copy_batch(ranges, site);
  if (!queued) {
    // Some copies may have been submitted. Record all as uses, and none as written.
    for (const auto& [rows, index] : all) {
      static_cast<void>(rows.to.uses().try_note(stream, stream.next_mark(), Access::discard));
      static_cast<void>(rows.from.uses().try_note(stream, stream.next_mark(), Access::read));
    }
    return queued;
  }
  for (Used& one : uses) one.use.end();
  for (const auto& [rows, index] : all) {
    rows.to.note_written(rows.to_side.offset, rows.width);
    count_transfer(rows.to, rows.from, rows.width, CopyRoute::direct);
  }
  return {};
}

/// Asks the TransferGate once for the sum of the batch: many small copies together are not small.
Result<void> try_download(const std::vector<Numbered>& all, DeviceId device,
                          CallSite site) noexcept {
  if (transfer_rule() == nullptr) return {};
  std::size_t bytes = 0;
  Tag tag;
  for (const auto& [rows, index] : all) {
    const std::size_t more = download_bytes(rows.to, rows.from, rows.width, device);
    if (more != 0 && bytes == 0) tag = rows.from.tag();
    bytes += more;
  }
  return try_download(tag, bytes, site);
}

}  // namespace

Result<Mark> try_copy_batch(std::span<const BufferCopy> copies, StreamRef stream,
                            CallSite site) noexcept try {
  std::vector<Numbered> all;
  all.reserve(copies.size());
  for (std::size_t i = 0; i < copies.size(); ++i) {
    const auto& [destination, source] = copies[i];
    if (Result<void> sound = check_sides(destination, source, site); !sound) {
      return of(sound.failure(), i);
    }
    if (Result<void> same = check_same_size(destination, source, site); !same) {
      return of(same.failure(), i);
    }
    if (source.size_bytes() == 0) continue;
    all.push_back({rows_of(destination, source), i});
  }
  if (all.empty()) return mark_of_nothing(stream);
  if (Result<void> usable = check_stream(stream, site); !usable) return usable.failure();
  bool are_all_direct = true;
  for (const auto& [rows, index] : all) {
    const std::optional<CopyPlan> plan = plan_copy(rows.to, rows.from, stream.device_id());
    if (!plan) return of(no_copy_route(rows.to, rows.from, stream.device().spec(), site), index);
    if (Result<void> sound = check_rows(rows, site); !sound) return of(sound.failure(), index);
    are_all_direct &= plan->route == CopyRoute::direct && !overlaps(rows);
  }
  if (Result<void> apart = check_apart(all, site); !apart) return apart.failure();
  if (Result<void> may = try_download(all, stream.device_id(), site); !may) return may.failure();
  if (are_all_direct) {
    if (Result<void> queued = submit_all(all, stream, site); !queued) return queued.failure();
    return stream.try_mark();
  }
  for (const auto& [rows, index] : all) {
    const Result<CopyRoute> queued = try_run_copy(rows, stream, FurtherStreams::fresh, site);
    if (!queued) return of(queued.failure(), index);
    count_transfer(rows.to, rows.from, rows.width, *queued);
  }
  return stream.try_mark();
} catch (const std::bad_alloc&) {
  return no_host_memory("a batch of copies", site);
}

}  // namespace tern
