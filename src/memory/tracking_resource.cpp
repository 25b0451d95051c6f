// The table of live blocks: 16 shards by generation, with per-tag counters beside them.

#include "tern/memory/tracking_resource.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <map>
#include <mutex>
#include <new>
#include <numeric>
#include <utility>

#include "tern/core/bytes.hpp"
#include "tern/memory/default_resource.hpp"
#include "tern/memory/resource.hpp"

namespace tern {
namespace {

struct Entry {
  LiveBlock live;
  Entry* next = nullptr;
  bool is_leaving = false;  // being freed; still live until the free has succeeded
};

/// A hash table by generation. Nodes are allocated by the caller. If the table cannot grow, lookups
/// get slower, but an insertion never fails.
class Shard {
 public:
  Shard() : buckets_(first_buckets) {}
  ~Shard() {
    for (Entry* entry : buckets_) {
      while (entry != nullptr) delete std::exchange(entry, entry->next);
    }
  }
  Shard(const Shard&) = delete;
  Shard& operator=(const Shard&) = delete;

  mutable std::mutex mutex;

  // Call with the mutex locked.
  void insert(Entry* entry) noexcept {
    if (size_ >= buckets_.size()) grow();
    Entry*& head = bucket(entry->live.block.generation);
    entry->next = std::exchange(head, entry);
    ++size_;
  }
  [[nodiscard]] Entry* find(Generation generation) noexcept {
    Entry* entry = bucket(generation);
    while (entry != nullptr && entry->live.block.generation != generation) entry = entry->next;
    return entry;
  }
  [[nodiscard]] std::unique_ptr<Entry> take(Entry* entry) noexcept {
    Entry** link = &bucket(entry->live.block.generation);
    while (*link != entry) link = &(*link)->next;
    *link = entry->next;
    --size_;
    return std::unique_ptr<Entry>(entry);
  }
  template <class Visit>
  void each(const Visit& visit) const {
    for (const Entry* entry : buckets_) {
      for (; entry != nullptr; entry = entry->next) visit(entry->live);
    }
  }

 private:
  static constexpr std::size_t first_buckets = 64;

  [[nodiscard]] Entry*& bucket(Generation generation) noexcept {
    // The low four bits of a slot select the shard; the bits above them select the bucket.
    return buckets_[(generation.slot() >> 4) & (buckets_.size() - 1)];
  }
  void grow() noexcept {
    std::vector<Entry*> old;
    try {
      old.resize(buckets_.size() * 2);
    } catch (const std::bad_alloc&) {
      return;
    }
    old.swap(buckets_);
    for (Entry* entry : old) {
      while (entry != nullptr) {
        Entry* const next = entry->next;
        Entry*& head = bucket(entry->live.block.generation);
        entry->next = std::exchange(head, entry);
        entry = next;
      }
    }
  }

  std::vector<Entry*> buckets_;
  std::size_t size_ = 0;
};

constexpr std::size_t shard_count = 16;

/// Changed only with the block's shard locked, so a thread that has locked all shards sees a
/// consistent snapshot.
struct TagCounters {
  std::atomic<std::size_t> bytes = 0;
  std::atomic<std::size_t> blocks = 0;
  std::atomic<std::size_t> peak = 0;
  std::atomic<std::uint64_t> allocations = 0;
  std::atomic<Tag> tag = {};
};

constexpr std::size_t tags_per_page = 256;
using TagPage = std::array<TagCounters, tags_per_page>;

struct LiveRange {
  std::size_t bytes = 0;
  Tag tag = {};
};
using RangeMap = std::map<std::uintptr_t, LiveRange>;

std::uintptr_t begin_of(const Block& block) noexcept {
  return reinterpret_cast<std::uintptr_t>(block.address);
}

Failure no_room(const Request& request) noexcept {
  return Failure(ErrorCode::out_of_memory,
                 "{requested} were not allocated, because the host has no memory to track the "
                 "block. Free host memory, or do without the tracking resource.",
                 request.site)
      .with_bytes("requested", request.bytes);
}

Failure not_live(const Block& block) noexcept {
  return Failure(ErrorCode::use_after_free,
                 "the block at {address} (generation {generation}) was freed before, or is not a "
                 "block of this resource. Free each block once, to the resource that allocated it.")
      .with("address", begin_of(block), Unit::hex)
      .with("generation", block.generation.count());
}

/// Checks that `block`, as passed to a free, matches the recorded block.
Result<void> check_against(const LiveBlock& known, const Block& block) noexcept {
  if (known.block.device != block.device) {
    return Failure(ErrorCode::device_mismatch,
                   "the block at {address} is on {a} and was freed as a block on {b}. Free it to "
                   "the resource that allocated it.")
        .with("address", begin_of(block), Unit::hex)
        .with("a", Place::device(known.block.device).text())
        .with("b", Place::device(block.device).text());
  }
  const std::uintptr_t offset = begin_of(block) - begin_of(known.block);
  if (offset != 0 && offset < known.block.bytes) {
    return Failure(ErrorCode::out_of_bounds,
                   "the address {address} is {offset} inside a block of {bytes} with tag '{tag}'. "
                   "Free the block by the address that allocate returned.")
        .with("address", begin_of(block), Unit::hex)
        .with_bytes("offset", offset)
        .with_bytes("bytes", known.block.bytes)
        .with("tag", known.tag.name());
  }
  if (offset != 0 || known.block.bytes != block.bytes) return not_live(block);
  return {};
}

bool is_same_line(const Holder& a, const Holder& b) noexcept {
  // Compare texts, not pointers: a header that is compiled twice has two copies of its strings.
  return a.tag == b.tag && a.site.line == b.site.line &&
         std::strcmp(a.site.file, b.site.file) == 0 &&
         std::strcmp(a.site.function, b.site.function) == 0;
}

std::string count_of_blocks(std::size_t blocks) {
  return blocks == 1 ? "1 block" : fmt::format("{} blocks", blocks);
}

}  // namespace

struct TrackingResource::Books {
  std::array<Shard, shard_count> shards;
  std::array<std::atomic<TagPage*>, 65'536 / tags_per_page> tag_pages = {};
  std::array<std::atomic<std::uint64_t>, SizeHistogram::bucket_count> sizes = {};
  std::atomic<std::uint64_t> order = 0;
  const bool has_ranges;
  std::mutex ranges_mutex;
  RangeMap ranges;  // guarded by ranges_mutex

  explicit Books(bool check_overlap) : has_ranges(check_overlap) {}
  ~Books() {
    for (std::atomic<TagPage*>& page : tag_pages) delete page.load();
  }
  Books(const Books&) = delete;
  Books& operator=(const Books&) = delete;

  [[nodiscard]] Shard& shard_of(Generation generation) noexcept {
    return shards[generation.slot() % shard_count];
  }
  /// Returns the counters of a tag and makes them if needed. Throws std::bad_alloc.
  [[nodiscard]] TagCounters& counters_of(Tag tag) {
    std::atomic<TagPage*>& place = tag_pages[tag.number() / tags_per_page];
    TagPage* page = place.load(std::memory_order_acquire);
    if (page == nullptr) {
      auto made = std::make_unique<TagPage>();
      if (place.compare_exchange_strong(page, made.get())) page = made.release();
    }
    return (*page)[tag.number() % tags_per_page];
  }
  /// Locks all shards, for a consistent snapshot.
  [[nodiscard]] std::array<std::unique_lock<std::mutex>, shard_count> lock_all() const {
    std::array<std::unique_lock<std::mutex>, shard_count> locks;
    for (std::size_t i = 0; i < shard_count; ++i) locks[i] = std::unique_lock(shards[i].mutex);
    return locks;
  }
  /// Records the range, or fails with a violation that names the live range it overlaps.
  [[nodiscard]] Result<void> try_list(RangeMap::node_type& node, CallSite site) noexcept;
};

// Two candidates can overlap a new range: the next range by address and the previous one.
Result<void> TrackingResource::Books::try_list(RangeMap::node_type& node, CallSite site) noexcept {
  const std::uintptr_t begin = node.key();
  const std::size_t bytes = node.mapped().bytes;
  const std::lock_guard lock(ranges_mutex);
  auto other = ranges.lower_bound(begin);
  const bool hits_next = other != ranges.end() && other->first - begin < bytes;
  if (!hits_next && other != ranges.begin()) {
    --other;
    if (begin - other->first >= other->second.bytes) other = ranges.end();
  } else if (!hits_next) {
    other = ranges.end();
  }
  if (other == ranges.end()) {
    ranges.insert(std::move(node));
    return {};
  }
  return Failure(ErrorCode::violation,
                 "the upstream returned [{address}, {end}) with tag '{tag}', which overlaps the "
                 "live block [{other_address}, {other_end}) with tag '{other_tag}'. The upstream "
                 "is defective. The new block was freed to it.",
                 site)
      .with("address", begin, Unit::hex)
      .with("end", begin + bytes, Unit::hex)
      .with_bytes("bytes", bytes)
      .with("other_address", other->first, Unit::hex)
      .with("other_end", other->first + other->second.bytes, Unit::hex)
      .with_bytes("other_bytes", other->second.bytes)
      .with("tag", node.mapped().tag.name())
      .with("other_tag", other->second.tag.name());
}

TrackingResource::TrackingResource(ResourceHandle upstream, const TrackingOptions& options)
    : WrappingResource("tracking", std::move(upstream)),
      abort_on_overlap_(options.abort_on_overlap),
      books_(std::make_unique<Books>(options.check_overlap || options.abort_on_overlap)) {}

TrackingResource::~TrackingResource() = default;

// All host memory is allocated before the upstream is called: the entry, the counters of the tag,
// and the node of the range map.
Result<Block> TrackingResource::try_allocate(const Request& request) noexcept {
  counters().note_request();
  if (request.bytes == 0) return Block{};
  retry_before_allocation();
  std::unique_ptr<Entry> entry;
  TagCounters* of_tag = nullptr;
  RangeMap::node_type range;
  try {
    entry = std::make_unique<Entry>();
    of_tag = &books_->counters_of(request.tag);
    if (books_->has_ranges) {
      RangeMap made;
      made.emplace(0, LiveRange{0, request.tag});
      range = made.extract(made.begin());
    }
  } catch (const std::bad_alloc&) {
    counters().note_refusal();
    return no_room(request);
  }

  const Result<Block> block = upstream()->try_allocate(request);
  if (!block) {
    counters().note_refusal();
    return block;
  }
  if (books_->has_ranges) {
    range.key() = begin_of(*block);
    range.mapped().bytes = block->bytes;
    if (Result<void> listed = books_->try_list(range, request.site); !listed) {
      counters().note_refusal();
      report_failure(listed.failure());
      if (abort_on_overlap_) std::abort();
      upstream()->deallocate(*block, request.stream, request.site);
      return listed.failure();
    }
  }
  entry->live = {*block,       request.bytes,       request.tag,
                 request.site, request.stream.id(), books_->order.fetch_add(1) + 1};
  books_->sizes[SizeHistogram::bucket_of(request.bytes)].fetch_add(1, std::memory_order_relaxed);
  Shard& shard = books_->shard_of(block->generation);
  const std::lock_guard lock(shard.mutex);
  shard.insert(entry.release());
  counters().note_allocation(block->bytes);
  of_tag->tag.store(request.tag, std::memory_order_relaxed);
  of_tag->allocations.fetch_add(1, std::memory_order_relaxed);
  of_tag->blocks.fetch_add(1, std::memory_order_relaxed);
  const std::size_t live = of_tag->bytes.fetch_add(block->bytes) + block->bytes;
  std::size_t peak = of_tag->peak.load();
  while (peak < live && !of_tag->peak.compare_exchange_weak(peak, live)) {
  }
  return block;
}

Result<void> TrackingResource::try_deallocate(const Block& block, StreamRef stream,
                                              const CallSite& site) noexcept {
  if (!block) return {};
  Shard& shard = books_->shard_of(block.generation);
  Entry* entry = nullptr;
  {
    const std::lock_guard lock(shard.mutex);
    entry = shard.find(block.generation);
    if (entry == nullptr || entry->is_leaving) return Failure(not_live(block)).at(site);
    if (Result<void> fits = check_against(entry->live, block); !fits) {
      return Failure(fits.failure()).at(site);
    }
    entry->is_leaving = true;
  }
  // Remove the range before the free: the upstream may grant it to another thread before the free
  // returns.
  RangeMap::node_type range;
  if (books_->has_ranges) {
    const std::lock_guard lock(books_->ranges_mutex);
    range = books_->ranges.extract(begin_of(block));
  }
  Result<void> freed = upstream()->try_deallocate(block, stream, site);
  if (!freed) {
    if (range) {
      const std::lock_guard lock(books_->ranges_mutex);
      books_->ranges.insert(std::move(range));
    }
    const std::lock_guard lock(shard.mutex);
    entry->is_leaving = false;
    return freed;
  }
  const std::lock_guard lock(shard.mutex);
  const std::unique_ptr<Entry> gone = shard.take(entry);
  counters().note_free(block.bytes);
  // Cannot throw: the counters were made when the block was allocated.
  TagCounters& of_tag = books_->counters_of(gone->live.tag);
  of_tag.blocks.fetch_sub(1, std::memory_order_relaxed);
  of_tag.bytes.fetch_sub(block.bytes);
  return freed;
}

std::vector<LiveBlock> TrackingResource::live_blocks() const {
  std::vector<LiveBlock> all;
  {
    const auto locks = books_->lock_all();
    for (const Shard& shard : books_->shards) {
      shard.each([&](const LiveBlock& one) { all.push_back(one); });
    }
  }
  std::sort(all.begin(), all.end(),
            [](const LiveBlock& a, const LiveBlock& b) { return a.order < b.order; });
  return all;
}

std::vector<TagTotal> TrackingResource::tag_totals() const {
  std::vector<TagTotal> all;
  const auto locks = books_->lock_all();
  for (const std::atomic<TagPage*>& place : books_->tag_pages) {
    const TagPage* page = place.load(std::memory_order_acquire);
    if (page == nullptr) continue;
    for (const TagCounters& of_tag : *page) {
      if (of_tag.allocations.load() == 0) continue;
      all.push_back({of_tag.tag.load(), of_tag.bytes.load(), of_tag.blocks.load(),
                     of_tag.peak.load(), of_tag.allocations.load()});
    }
  }
  std::stable_sort(all.begin(), all.end(), [](const TagTotal& a, const TagTotal& b) {
    return a.live_bytes > b.live_bytes;
  });
  return all;
}

// Groups the live blocks by tag and line, then sorts the groups by size.
std::vector<Holder> TrackingResource::top_holders(std::size_t most) const {
  std::vector<Holder> lines;
  for (const LiveBlock& one : live_blocks()) {
    lines.push_back(
        {std::string(device().spec()), one.tag, one.site, one.block.bytes, 1, one.order});
  }
  // Group equal lines; within a group the oldest block comes first.
  std::stable_sort(lines.begin(), lines.end(), [](const Holder& a, const Holder& b) {
    if (a.tag != b.tag) return a.tag.number() < b.tag.number();
    if (a.site.line != b.site.line) return a.site.line < b.site.line;
    const int files = std::strcmp(a.site.file, b.site.file);
    return files != 0 ? files < 0 : std::strcmp(a.site.function, b.site.function) < 0;
  });
  std::vector<Holder> holders;
  for (const Holder& line : lines) {
    if (holders.empty() || !is_same_line(holders.back(), line)) {
      holders.push_back(line);
    } else {
      holders.back().bytes += line.bytes;
      holders.back().blocks += 1;
    }
  }
  std::sort(holders.begin(), holders.end(), [](const Holder& a, const Holder& b) {
    return a.bytes != b.bytes ? a.bytes > b.bytes : a.oldest < b.oldest;
  });
  if (holders.size() > most) holders.resize(most);
  return holders;
}

SizeHistogram TrackingResource::histogram() const noexcept {
  SizeHistogram now;
  for (std::size_t i = 0; i < now.counts.size(); ++i) now.counts[i] = books_->sizes[i].load();
  return now;
}

std::string TrackingResource::leak_report() const {
  const std::vector<Holder> holders = top_holders();
  if (holders.empty()) return "no live blocks";
  std::size_t bytes = 0, blocks = 0;
  std::string lines;
  for (const Holder& one : holders) {
    bytes += one.bytes;
    blocks += one.blocks;
    lines += fmt::format("\n  {} in {}, tag '{}', {}:{} ({})", format_bytes(one.bytes),
                         count_of_blocks(one.blocks), one.tag.name(), one.site.file, one.site.line,
                         one.site.function);
  }
  return fmt::format("{} live in {} of '{}':{}", format_bytes(bytes), count_of_blocks(blocks),
                     name(), lines);
}

std::string TrackingResource::text() const {
  const Statistics now = statistics();
  const SizeHistogram sizes = histogram();
  std::string text =
      fmt::format("{} live in {} of '{}', {} at most; {} requests, {} refused, {} freed",
                  format_bytes(now.live_bytes), count_of_blocks(now.live_blocks), name(),
                  format_bytes(now.peak_live_bytes), now.requests, now.refusals, now.frees);
  if (sizes.total() != 0) {
    text += fmt::format("\n  half of the sizes up to {}, 99 of 100 up to {}",
                        format_bytes(sizes.percentile_bytes(50)),
                        format_bytes(sizes.percentile_bytes(99)));
  }
  for (const TagTotal& one : tag_totals()) {
    text += fmt::format("\n  tag '{}': {} in {}, {} at most", one.tag.name(),
                        format_bytes(one.live_bytes), count_of_blocks(one.live_blocks),
                        format_bytes(one.peak_live_bytes));
  }
  return text;
}

std::size_t SizeHistogram::bucket_of(std::size_t bytes) noexcept {
  if (bytes <= 16) return 0;
  return std::min(static_cast<std::size_t>(std::bit_width(bytes - 1)) - 4, bucket_count - 1);
}

std::uint64_t SizeHistogram::total() const noexcept {
  return std::accumulate(counts.begin(), counts.end(), std::uint64_t{0});
}

std::size_t SizeHistogram::percentile_bytes(double percent) const noexcept {
  const std::uint64_t all = total();
  if (all == 0) return 0;
  // Nearest rank: the smallest bucket with at least this many allocations at or below it.
  const double wanted = std::ceil(static_cast<double>(all) * std::clamp(percent, 0.0, 100.0) / 100);
  const auto rank = std::max<std::uint64_t>(static_cast<std::uint64_t>(wanted), 1);
  std::uint64_t seen = 0;
  for (std::size_t i = 0; i < bucket_count; ++i) {
    seen += counts[i];
    if (seen >= rank) return bound_bytes(i);
  }
  return SIZE_MAX;
}

}  // namespace tern
