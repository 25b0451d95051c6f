// The states of a block: resident; leaving, while a copy still reads its pages; gone. pause() moves
// it to leaving, reclaim() to gone, resume() back to resident.

#include "tern/buffer/pausable_resource.hpp"

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "buffer/kept_bytes.hpp"
#include "buffer/memory_users.hpp"
#include "buffer/stream_order.hpp"
#include "core/no_host_memory.hpp"
#include "core/worker_team.hpp"
#include "device/captures.hpp"
#include "device/device_state.hpp"
#include "memory/address_range.hpp"
#include "memory/block_table.hpp"
#include "memory/memory_events.hpp"
#include "tern/core/bytes.hpp"
#include "tern/detail/memory/live_counters.hpp"
#include "trace/recording.hpp"

namespace tern {
namespace {

/// Returns whether no work before the mark uses memory any more.
bool is_over(Mark mark) noexcept {
  const Result<bool> done = Device::try_is_done(mark);
  if (done) return *done;
  return done.failure().code() == ErrorCode::device_lost ||
         done.failure().code() == ErrorCode::after_fork;
}

bool is_full(const Failure& failure) noexcept {
  return failure.code() == ErrorCode::out_of_memory || failure.code() == ErrorCode::out_of_budget;
}

}  // namespace

std::string_view name(Keep keep) noexcept {
  switch (keep) {
    case Keep::host:
      return "host";
    case Keep::disk:
      return "disk";
    case Keep::nothing:
      break;
  }
  return "nothing";
}

struct PausableResource::State {
  enum class Phase : std::uint8_t { resident, leaving, gone };

  struct Held {
    Block block = {};
    Tag tag = {};
    StreamId stream = {};  // of the allocation
    AddressRange range;
    Phase phase = Phase::resident;
    KeptBytes kept;                // of a paused block
    MemoryUsers::Pause pause;      // of a paused block
    Mark left = {};                // after it, the pages of a leaving block can be freed
    std::optional<Failure> stuck;  // why they cannot

    /// A thread pauses or resumes the block, without the lock. Only this thread uses the members
    /// above; a free by another thread is done by this thread.
    bool is_busy = false;
    bool is_freed = false;
    Mark freed = {};

    [[nodiscard]] std::byte* address() const noexcept { return range.address(); }
    [[nodiscard]] std::size_t bytes() const noexcept { return block.bytes; }
  };
  using HeldBlocks = std::vector<Held*>;

  /// The blocks of one call. The destructor makes them available to others again.
  class Selection {
   public:
    Selection(State& state, HeldBlocks&& blocks) noexcept
        : state_(&state), blocks_(std::move(blocks)) {}
    Selection(Selection&& other) noexcept
        : state_(std::exchange(other.state_, nullptr)), blocks_(std::move(other.blocks_)) {}
    Selection& operator=(Selection&&) = delete;
    ~Selection() {
      if (state_ != nullptr) state_->end_operation(blocks_);
    }
    [[nodiscard]] const HeldBlocks& all() const noexcept { return blocks_; }

   private:
    State* state_;
    HeldBlocks blocks_;
  };

  State(const Resource* self, Device on, PausableOptions given)
      : owner(self), device(std::move(on)), options(std::move(given)) {}

  // --- Blocks

  [[nodiscard]] RecordedResource recorded() const noexcept {
    return {device, "pausable", number, MemoryKind::device};
  }
  [[nodiscard]] Result<AddressRange> try_make_range(std::size_t bytes,
                                                    const Request& request) noexcept;
  /// Frees an unused range. If the driver refuses, reclaim() tries again.
  void end_later(AddressRange range) noexcept;
  [[nodiscard]] Result<Block> try_begin(const Request& request) noexcept;
  [[nodiscard]] Result<void> try_free(const Block& block, Mark last, CallSite site) noexcept;
  /// Takes the pages of a freed block away, and moves the block out of the list. The caller
  /// destroys the block without the lock. Fails if the host has no memory. Call with the lock held.
  [[nodiscard]] Result<std::unique_ptr<Held>> try_take(Held& held, Mark last,
                                                       CallSite site) noexcept;

  // --- Pages

  /// Frees pages whose work is done. Call with the lock held.
  std::size_t reclaim() noexcept;
  /// Waits for all pages that leave. Returns whether there were any.
  bool wait_for_leaving() noexcept;
  [[nodiscard]] std::vector<Mark> marks_of_leaving() const;

  // --- Pausing and resuming

  [[nodiscard]] Result<void> try_make_streams(CallSite site) noexcept;
  enum class Wanted : std::uint8_t { resident, paused };
  [[nodiscard]] Result<Selection> try_select(const PauseTarget& what, Wanted wanted,
                                             CallSite site) noexcept;
  void end_operation(const HeldBlocks& blocks) noexcept;

  [[nodiscard]] Result<Mark> try_pause(const HeldBlocks& blocks, Keep keep, StreamRef after,
                                       CallSite site) noexcept;
  [[nodiscard]] Result<void> try_submit_saves(const HeldBlocks& blocks, const MarkSet& uses,
                                              CallSite site) noexcept;
  [[nodiscard]] Result<Mark> try_resume(const HeldBlocks& blocks, StreamRef stream,
                                        CallSite site) noexcept;
  /// Maps pages for the blocks and submits copies to them. After a failure, some pages are mapped,
  /// and some copies were submitted.
  [[nodiscard]] Result<void> try_bring_back(std::span<Held* const> blocks, CallSite site) noexcept;
  [[nodiscard]] Result<void> try_back(std::span<Held* const> blocks, CallSite site) noexcept;
  /// Returns whether budget and device have memory for all blocks now.
  [[nodiscard]] bool is_room_for(std::span<Held* const> blocks) const noexcept;
  /// Frees the pages of blocks that could not be resumed, once the copies to them are done.
  void unback(std::span<Held* const> blocks, Mark last) noexcept;
  [[nodiscard]] Failure too_little_memory(const Failure& why, std::span<Held* const> blocks,
                                          CallSite site) const noexcept;

  const Resource* const owner;
  const Device device;
  const PausableOptions options;
  const std::uint32_t number = trace::new_number();
  LiveCounters counters;

  mutable std::mutex mutex;  // guards the members below, except what a busy block has
  std::map<std::uint64_t, std::unique_ptr<Held>> blocks;  // by generation
  std::vector<AddressRange> dying;                        // of freed blocks
  bool may_reclaim = false;                               // a paused block may have pages
  std::uint64_t total_paused_bytes = 0, total_resumed_bytes = 0;
  Stream copies, sums;
};

// --- Blocks

Result<AddressRange> PausableResource::State::try_make_range(std::size_t bytes,
                                                             const Request& request) noexcept {
  Result<AddressRange> range = AddressRange::try_reserve(
      device, bytes, {.budget = options.budget, .tag = request.tag}, request.site);
  if (!range) return range;
  Result<void> backed = range->try_back(bytes, 0, request.site);
  if (!backed && is_full(backed.failure()) && request.wait == Wait::forever && wait_for_leaving()) {
    backed = range->try_back(bytes, 0, request.site);
  }
  if (backed) return range;
  end_later(*std::move(range));
  return backed.failure();
}

void PausableResource::State::end_later(AddressRange range) noexcept {
  if (range.try_end()) return;
  try {
    const std::lock_guard lock(mutex);
    // With room for the blocks, too, see try_begin().
    dying.reserve(dying.size() + blocks.size() + 1);
    dying.push_back(std::move(range));
  } catch (const std::bad_alloc&) {
    // The destructor of the range makes the last attempts.
  }
}

Result<Block> PausableResource::State::try_begin(const Request& request) noexcept try {
  if (request.only_recycled) {
    return Failure(ErrorCode::out_of_memory,
                   "the pausable resource has no freed memory to reuse, and a request for "
                   "{requested} allows only memory that its stream has freed.",
                   request.site)
        .with_bytes("requested", request.bytes);
  }
  auto held = std::make_unique<Held>();
  const std::size_t bytes =
      checked_round_up(request.bytes, device.info().page_bytes).value_or(request.bytes);
  if (bytes > max_request_bytes) {
    return Failure(ErrorCode::out_of_memory,
                   "'{device}' has no {requested} of addresses. Request less memory.", request.site)
        .with_bytes("requested", request.bytes)
        .with("device", device.spec());
  }
  // Requested now, so that the stream does not end without a mark.
  static_cast<void>(request.stream.next_mark());
  Result<AddressRange> range = try_make_range(bytes, request);
  if (!range) return range.failure();
  const Result<Generation> generation = try_begin_block({.address = range->address(),
                                                         .bytes = bytes,
                                                         .device = device.id(),
                                                         .owner = owner,
                                                         .stream = request.stream.id(),
                                                         .tag = request.tag});
  if (!generation) {
    end_later(*std::move(range));
    return generation.failure();
  }
  held->block = {range->address(), bytes, device.id(), *generation};
  held->tag = request.tag;
  held->stream = request.stream.id();
  held->range = *std::move(range);
  const Block block = held->block;
  try {
    const std::lock_guard lock(mutex);
    dying.reserve(dying.size() + blocks.size() + 1);  // so that a free allocates nothing
    blocks.emplace(generation->value(), std::move(held));
  } catch (const std::bad_alloc&) {
    end_block(*generation, Mark{});
    throw;
  }
  return block;
} catch (const std::bad_alloc&) {
  return no_host_memory("the record of a block", request.site);
}

Result<std::unique_ptr<PausableResource::State::Held>> PausableResource::State::try_take(
    Held& held, Mark last, CallSite site) noexcept {
  // A mark without a stream is done.
  const Mark marks[] = {last, held.left};
  if (Result<void> gone = held.range.try_unback(0, marks, site); !gone) return gone.failure();
  dying.push_back(std::move(held.range));  // has room, see try_begin()
  const auto node = blocks.extract(held.block.generation.value());
  return std::move(node.mapped());
}

Result<void> PausableResource::State::try_free(const Block& block, Mark last,
                                               CallSite site) noexcept {
  std::unique_ptr<Held> ended;  // destroyed without the lock: what it kept is memory of others
  const std::lock_guard lock(mutex);
  Held& held = *blocks.find(block.generation.value())->second;
  if (held.is_busy) {
    held.is_freed = true;
    held.freed = last;
    return {};
  }
  Result<std::unique_ptr<Held>> taken = try_take(held, last, site);
  if (!taken) return taken.failure();
  ended = *std::move(taken);
  reclaim();
  return {};
}

// --- Pages

std::size_t PausableResource::State::reclaim() noexcept {
  std::size_t freed = 0;
  const auto free_from = [&freed](AddressRange& range, auto&& free) {
    const std::size_t before = range.resident_bytes();
    free(range);
    freed += before - range.resident_bytes();
  };
  if (may_reclaim) {
    may_reclaim = false;
    for (auto& [generation, one] : blocks) {
      static_cast<void>(generation);
      Held& held = *one;
      if (held.phase == Phase::resident || held.is_busy || held.stuck) continue;
      if (held.phase == Phase::leaving && is_over(held.left)) {
        if (const Result<void> saved = held.kept.check_saved({}); !saved) {
          held.stuck = saved.failure();
          continue;
        }
        held.phase = Phase::gone;
      }
      if (held.phase == Phase::gone) {
        // Without marks, the call cannot fail.
        free_from(held.range,
                  [](AddressRange& range) { static_cast<void>(range.try_unback(0, {})); });
      }
      may_reclaim = may_reclaim || held.range.resident_bytes() != 0;
    }
  }
  std::erase_if(dying, [&](AddressRange& range) {
    bool is_ended = false;
    free_from(range, [&](AddressRange& one) { is_ended = one.try_end(); });
    return is_ended;
  });
  return freed;
}

std::vector<Mark> PausableResource::State::marks_of_leaving() const {
  std::vector<Mark> marks;
  const std::lock_guard lock(mutex);
  for (const auto& [generation, held] : blocks) {
    static_cast<void>(generation);
    if (held->is_busy || held->phase == Phase::resident || held->stuck) continue;
    if (held->phase == Phase::leaving) marks.push_back(held->left);
    marks.insert(marks.end(), held->range.waits().begin(), held->range.waits().end());
  }
  for (const AddressRange& range : dying) {
    marks.insert(marks.end(), range.waits().begin(), range.waits().end());
  }
  return marks;
}

bool PausableResource::State::wait_for_leaving() noexcept try {
  const std::vector<Mark> marks = marks_of_leaving();
  for (const Mark mark : marks) static_cast<void>(Device::try_wait(mark));
  const std::lock_guard lock(mutex);
  reclaim();
  return !marks.empty();
} catch (const std::bad_alloc&) {
  return false;
}

// --- Selecting

Result<void> PausableResource::State::try_make_streams(CallSite site) noexcept {
  const std::lock_guard lock(mutex);
  for (Stream* const stream : {&copies, &sums}) {
    if (stream->is_usable()) continue;
    Result<Stream> made = Stream::try_make(device, {.name = "pause"});
    if (!made) return Failure(made.failure()).at(site);
    *stream = *std::move(made);
  }
  return {};
}

Result<PausableResource::State::Selection> PausableResource::State::try_select(
    const PauseTarget& what, Wanted wanted, CallSite site) noexcept try {
  const std::lock_guard lock(mutex);
  HeldBlocks selected;
  const Held* other = nullptr;
  for (const auto& [generation, one] : blocks) {
    static_cast<void>(generation);
    Held& held = *one;
    const auto* const address = static_cast<const std::byte*>(what.address_);
    const bool is_meant = what.by_ == PauseTarget::By::everything ||
                          (what.by_ == PauseTarget::By::tag && held.tag == what.tag_) ||
                          (what.by_ == PauseTarget::By::address && address >= held.address() &&
                           address < held.address() + held.bytes());
    if (!is_meant || held.is_freed) continue;
    if (held.is_busy) {
      return Failure(ErrorCode::access_conflict,
                     "another thread is pausing or resuming memory with tag '{tag}'. Call again "
                     "after it has returned.",
                     site)
          .with("tag", held.tag.name());
    }
    if ((held.phase == Phase::resident) == (wanted == Wanted::resident)) {
      selected.push_back(&held);
    } else {
      other = &held;
    }
  }
  if (selected.empty() && what.by_ != PauseTarget::By::everything) {
    if (other != nullptr) {
      return Failure(ErrorCode::access_conflict,
                     wanted == Wanted::resident
                         ? "memory with tag '{tag}' is paused already. Resume it first."
                         : "memory with tag '{tag}' is not paused. Pause it first.",
                     site)
          .with("tag", other->tag.name());
    }
    if (what.by_ == PauseTarget::By::tag) {
      return Failure(ErrorCode::not_found,
                     "the pausable resource of '{device}' has no memory with tag '{tag}'. Allocate "
                     "the memory from it, with this tag.",
                     site)
          .with("what", "memory")
          .with("tag", what.tag_.name())
          .with("device", device.spec());
    }
    return Failure(ErrorCode::not_found,
                   "the pausable resource of '{device}' has no memory at {address}. Pass live "
                   "memory that was allocated from it.",
                   site)
        .with("what", "memory")
        .with("address", reinterpret_cast<std::uintptr_t>(what.address_), Unit::hex)
        .with("device", device.spec());
  }
  for (Held* const held : selected) held->is_busy = true;
  return Selection(*this, std::move(selected));
} catch (const std::bad_alloc&) {
  return no_host_memory("a list of blocks", site);
}

void PausableResource::State::end_operation(const HeldBlocks& selected) noexcept {
  for (Held* const held : selected) {
    std::unique_ptr<Held> ended;  // destroyed without the lock
    const std::lock_guard lock(mutex);
    held->is_busy = false;
    may_reclaim = true;
    if (!held->is_freed) continue;
    Result<std::unique_ptr<Held>> taken = try_take(*held, held->freed, {});
    if (!taken) {
      // Without memory for the marks, the host waits for them.
      static_cast<void>(Device::try_wait(held->freed));
      static_cast<void>(Device::try_wait(held->left));
      held->left = {};
      taken = try_take(*held, {}, {});
    }
    if (taken) ended = *std::move(taken);
  }
}

// --- Pausing

Result<Mark> PausableResource::State::try_pause(const HeldBlocks& selected, Keep keep,
                                                StreamRef after, CallSite site) noexcept {
  const auto undo = [&](Mark last) {
    for (Held* const held : selected) {
      // What was submitted reads the memory.
      held->pause.end(last ? StreamRef(copies) : StreamRef(), last, Access::read);
      held->kept = {};
    }
  };
  MarkSet uses;
  Result<void> begun;
  for (Held* const held : selected) {
    Result<MemoryUsers::Pause> pause =
        MemoryUsers::Pause::try_begin(held->address(), held->bytes(), held->tag, uses, site);
    Result<std::vector<ByteRange>> contents =
        pause ? pause->try_contents(held->bytes(), site) : pause.failure();
    Result<KeptBytes> kept =
        contents ? KeptBytes::try_make(device, *std::move(contents),
                                       {keep, options.host, options.directory, options.verify},
                                       held->tag, site)
                 : contents.failure();
    if (!kept) {
      begun = kept.failure();
      break;
    }
    held->pause = *std::move(pause);
    held->kept = *std::move(kept);
    // Code that declares no uses is expected on the stream of the allocation.
    if (held->stream && !uses.try_add(device.next_mark(held->stream))) {
      begun = no_host_memory("a list of uses", site);
      break;
    }
  }
  if (begun && after.id() && !uses.try_add(after.next_mark())) {
    begun = no_host_memory("a list of uses", site);
  }
  if (!begun) {
    undo({});
    return begun.failure();
  }
  Result<void> submitted = try_submit_saves(selected, uses, site);
  const Result<Mark> mark = submitted ? copies.try_mark() : Result<Mark>(submitted.failure());
  if (!mark) {
    undo(copies.next_mark());
    return Failure(mark.failure()).at(site);
  }
  const std::lock_guard lock(mutex);
  may_reclaim = true;
  for (Held* const held : selected) {
    held->phase = Phase::leaving;
    held->left = *mark;
    held->stuck.reset();
    total_paused_bytes += held->bytes();
  }
  return *mark;
}

Result<void> PausableResource::State::try_submit_saves(const HeldBlocks& selected,
                                                       const MarkSet& uses, CallSite site) noexcept
    try {
  for (const Mark mark : uses.all()) {
    if (Result<void> queued = order_behind(copies, mark, site); !queued) return queued;
  }
  std::size_t bytes = 0;
  for (const Held* const held : selected) bytes += held->kept.bytes();
  // Its threads start with the first checksums and end with the last ones.
  const auto team = std::make_shared<WorkerTeam>(KeptBytes::sum_threads(bytes));
  for (Held* const held : selected) {
    if (Result<void> saved = held->kept.try_save(held->address(), copies, sums, team, site);
        !saved) {
      return saved;
    }
  }
  return {};
} catch (const std::bad_alloc&) {
  return no_host_memory("checksums of paused memory", site);
}

// --- Resuming

Failure PausableResource::State::too_little_memory(const Failure& why,
                                                   std::span<Held* const> selected,
                                                   CallSite site) const noexcept {
  if (!is_full(why)) return Failure(why).at(site);
  std::size_t bytes = 0;
  for (const Held* const held : selected) bytes += held->bytes();
  char cause[Failure::max_text_bytes];
  why.render(cause, sizeof cause);
  Failure failure(
      why.code(),
      "{requested} of memory with tag '{tag}' cannot be resumed and stays paused. Pause "
      "or free other memory, or raise the budget: {cause}",
      site);
  failure.with_bytes("requested", bytes);
  for (const char* const field : {"limit", "current", "free", "total"}) {
    if (const auto bytes_of = why.number(field)) failure.with_bytes(field, *bytes_of);
  }
  return failure.with("tag", selected.front()->tag.name()).with("cause", cause);
}

bool PausableResource::State::is_room_for(std::span<Held* const> selected) const noexcept {
  std::size_t bytes = 0;
  for (const Held* const held : selected) bytes += held->bytes();
  if (options.budget && !options.budget->would_fit(bytes)) return false;
  const Result<MemoryInfo> memory = device.try_memory();
  return memory && memory->free_bytes >= bytes;
}

Result<void> PausableResource::State::try_back(std::span<Held* const> selected,
                                               CallSite site) noexcept {
  Result<void> backed;
  bool may_wait = true;
  for (std::size_t i = 0; i < selected.size();) {
    Held& held = *selected[i];
    if (held.phase == Phase::gone) backed = held.range.try_back(held.bytes(), 0, site);
    if (backed) {
      ++i;
      continue;
    }
    if (is_full(backed.failure()) && std::exchange(may_wait, false) && wait_for_leaving()) {
      backed = {};
      continue;
    }
    return too_little_memory(backed.failure(), selected, site);
  }
  return {};
}

Result<void> PausableResource::State::try_bring_back(std::span<Held* const> selected,
                                                     CallSite site) noexcept {
  // If the memory may be too little, nothing is copied before all pages are there.
  if (!is_room_for(selected)) {
    if (Result<void> backed = try_back(selected, site); !backed) return backed;
  }
  for (Held* const held : selected) {
    if (held->phase != Phase::gone) continue;
    // A file is read in one go. Otherwise, the pages of one piece are created while the bytes of
    // the piece before it are copied.
    const std::size_t bytes = held->bytes();
    const std::size_t step =
        held->kept.keep() == Keep::host ? AddressRange::max_piece_bytes : bytes;
    for (std::size_t begin = 0; begin < bytes; begin += step) {
      const ByteRange part{begin, std::min(begin + step, bytes)};
      if (Result<void> backed = held->range.try_back(part.end, 0, site); !backed) {
        return too_little_memory(backed.failure(), selected, site);
      }
      if (Result<void> restored = held->kept.try_restore(held->address(), part, copies, site);
          !restored) {
        return restored;
      }
    }
  }
  return {};
}

void PausableResource::State::unback(std::span<Held* const> selected, Mark last) noexcept {
  for (Held* const held : selected) {
    if (held->phase != Phase::gone) continue;
    const Mark marks[] = {last};
    if (held->range.try_unback(0, marks)) continue;
    static_cast<void>(Device::try_wait(last));
    static_cast<void>(held->range.try_unback(0, {}));
  }
}

Result<Mark> PausableResource::State::try_resume(const HeldBlocks& selected, StreamRef stream,
                                                 CallSite site) noexcept try {
  std::vector<KeptBytes*> kept;
  for (Held* const held : selected) {
    if (held->phase == Phase::gone) kept.push_back(&held->kept);
  }
  // Bytes are checked while they are copied. If they have changed, the pages are freed again.
  KeptBytesCheck check(std::move(kept));
  const bool is_early = check.is_ready();
  Result<void> restored;
  if (is_early) restored = check.try_start(site);
  if (restored) restored = try_bring_back(selected, site);
  if (restored && !is_early) restored = check.try_start(site);
  if (restored) restored = check.try_finish(site);
  // The copies of the pauses are on the same stream, so the mark covers them, too.
  const Result<Mark> mark = restored ? copies.try_mark() : Result<Mark>(restored.failure());
  Result<void> ordered = mark ? Result<void>() : Result<void>(mark.failure());
  if (ordered && stream.id()) ordered = stream.try_wait(*mark, site);
  if (!ordered) {
    unback(selected, copies.next_mark());
    return Failure(ordered.failure()).at(site);
  }
  const std::lock_guard lock(mutex);
  for (Held* const held : selected) {
    if (held->kept.keep() == Keep::nothing) held->pause.forget_contents();
    held->pause.end(copies, *mark, Access::discard);
    held->kept = {};
    held->phase = Phase::resident;
    held->stuck.reset();
    held->left = *mark;  // a free waits for the copies
    total_resumed_bytes += held->bytes();
  }
  return *mark;
} catch (const std::bad_alloc&) {
  return no_host_memory("a list of blocks", site);
}

// --- The resource

PausableResource::PausableResource(Device device, PausableOptions options)
    : state_(std::make_unique<State>(this, std::move(device), std::move(options))) {
  // Checks the device and the budget.
  AddressRange::try_reserve(state_->device, 0, {.budget = state_->options.budget}).value();
  set_pausable(true);
}

PausableResource::~PausableResource() {
  State& state = *state_;
  if (state.blocks.empty()) return;
  // Unknown streams may use the blocks that are left.
  static_cast<void>(state.device.try_synchronize());
  for (const auto& [generation, held] : state.blocks) {
    static_cast<void>(generation);
    MemoryUsers::forget(held->address(), held->bytes());
    // Later frees of these blocks fail.
    end_block(held->block.generation, Mark{});
  }
}

const Device& PausableResource::device() const noexcept { return state_->device; }

ResourceTraits PausableResource::traits() const noexcept {
  ResourceTraits traits;
  traits.is_device_accessible = true;
  traits.is_host_accessible = device().can(Capability::host_access);
  traits.frees_without_waiting = true;
  traits.frees_for_host_at_once = true;
  traits.alignment = device().info().page_bytes;
  traits.max_alignment = device().info().page_bytes;
  return traits;
}

PauseStatistics PausableResource::pause_statistics() const noexcept {
  const State& state = *state_;
  PauseStatistics now;
  const std::lock_guard lock(state.mutex);
  for (const auto& [generation, held] : state.blocks) {
    static_cast<void>(generation);
    now.reserved_bytes += held->bytes();
    now.resident_bytes += held->range.resident_bytes();
    if (held->phase == State::Phase::resident) continue;
    now.paused_bytes += held->bytes();
    if (held->phase == State::Phase::leaving) now.leaving_bytes += held->range.resident_bytes();
    if (held->kept.keep() == Keep::host) now.host_bytes += held->kept.bytes();
    if (held->kept.keep() == Keep::disk) now.disk_bytes += held->kept.bytes();
  }
  for (const AddressRange& range : state.dying) {
    now.resident_bytes += range.resident_bytes();
    now.leaving_bytes += range.resident_bytes();
  }
  now.total_paused_bytes = state.total_paused_bytes;
  now.total_resumed_bytes = state.total_resumed_bytes;
  return now;
}

Statistics PausableResource::statistics() const noexcept {
  Statistics now = state_->counters.read();
  const PauseStatistics sizes = pause_statistics();
  now.reserved_bytes = sizes.resident_bytes;
  now.pending_bytes = sizes.leaving_bytes;
  now.failed_frees = failed_frees();
  now.failed_free_bytes = failed_free_bytes();
  return now;
}

std::size_t PausableResource::good_size(const Request& request) const noexcept {
  return checked_round_up(request.bytes, device().info().page_bytes).value_or(request.bytes);
}

Result<Block> PausableResource::try_allocate(const Request& request) noexcept {
  State& state = *state_;
  state.counters.note_request();
  if (request.bytes == 0) return Block{};
  retry_before_allocation();
  reclaim();
  const Result<void> fits = check(request);
  const Result<Block> block = fits ? state.try_begin(request) : Result<Block>(fits.failure());
  if (!block) {
    state.counters.note_refusal();
    if (trace::is_recording()) {
      record_refusal(state.recorded(), request, state.counters.read().live_bytes, block.failure());
    }
    return Failure(block.failure()).at(request.site);
  }
  state.counters.note_allocation(block->bytes);
  if (trace::is_recording()) record_allocation(state.recorded(), *block, request, StreamId());
  return block;
}

Result<void> PausableResource::try_deallocate(const Block& block, StreamRef stream,
                                              const CallSite& site) noexcept {
  if (!block) return {};
  State& state = *state_;
  const Result<BlockFacts> facts = try_claim_block(block, this);
  if (!facts) return Failure(facts.failure()).at(site);
  const auto fail = [&](const Failure& failure) {
    unclaim_block(block.generation);
    return Result<void>(Failure(failure).at(site));
  };
  if (stream.id() && stream.device_id() != state.device.id()) {
    return fail(
        Failure(ErrorCode::device_mismatch,
                "memory of '{a}' was freed on a stream of {b}. Free it on a stream of '{a}'.")
            .with("a", state.device.spec())
            .with("b", Place::device(stream.device_id()).text()));
  }
  Mark last;
  if (const StreamPin stay(stream); stay) {
    last = stream.next_mark();
  } else if (stream.id()) {
    // No mark covers the last work of a stream that has ended.
    const Result<void> waited = state.device.try_synchronize();
    if (!waited && waited.failure().code() != ErrorCode::device_lost) return fail(waited.failure());
  }
  MemoryUsers::forget(static_cast<const std::byte*>(block.address), block.bytes);
  if (Result<void> freed = state.try_free(block, last, site); !freed) return fail(freed.failure());
  state.counters.note_free(block.bytes);
  if (trace::is_recording()) record_free(state.recorded(), block, facts->tag, last, site);
  end_block(block.generation, last);
  return {};
}

std::size_t PausableResource::trim(std::size_t) noexcept {
  retry_failed_frees();
  return reclaim();
}

std::size_t PausableResource::reclaim() noexcept {
  State& state = *state_;
  const std::lock_guard lock(state.mutex);
  return state.reclaim();
}

Result<Mark> PausableResource::try_pause(const PauseTarget& what, Keep keep, StreamRef after,
                                         CallSite site) noexcept {
  State& state = *state_;
  if (after.id()) {
    if (Result<void> usable = check_not_captured(after, site); !usable) return usable.failure();
  }
  if (Result<void> made = state.try_make_streams(site); !made) return made.failure();
  Result<Mark> mark = Mark{};
  {
    const Result<State::Selection> selected = state.try_select(what, State::Wanted::resident, site);
    if (!selected) return selected.failure();
    if (selected->all().empty()) return mark;
    mark = state.try_pause(selected->all(), keep, after, site);
  }
  reclaim();
  return mark;
}

Result<Mark> PausableResource::try_resume(const PauseTarget& what, StreamRef stream,
                                          CallSite site) noexcept {
  State& state = *state_;
  if (stream.id()) {
    if (Result<void> usable = check_not_captured(stream, site); !usable) return usable.failure();
  }
  if (Result<void> made = state.try_make_streams(site); !made) return made.failure();
  Result<Mark> mark = Mark{};
  {
    const Result<State::Selection> selected = state.try_select(what, State::Wanted::paused, site);
    if (!selected) return selected.failure();
    if (selected->all().empty()) return mark;
    mark = state.try_resume(selected->all(), stream, site);
  }
  reclaim();
  return mark;
}

Result<void> PausableResource::try_wait(CallSite site) noexcept try {
  State& state = *state_;
  Result<void> first;
  for (const Mark mark : state.marks_of_leaving()) {
    const Result<void> waited = Device::try_wait(mark, site);
    if (!waited && first) first = Failure(waited.failure()).at(site);
  }
  const std::lock_guard lock(state.mutex);
  state.reclaim();
  for (const auto& [generation, held] : state.blocks) {
    static_cast<void>(generation);
    if (held->stuck && first) first = Failure(*held->stuck).at(site);
  }
  return first;
} catch (const std::bad_alloc&) {
  return no_host_memory("a wait for paused memory", site);
}

}  // namespace tern
