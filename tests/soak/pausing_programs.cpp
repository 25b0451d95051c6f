// Random programs over memory whose pages come and go: pausable arrays (kept on the host, on a disk
// or nowhere; by tag and by object), growing arrays, and unified buffers that are evicted and
// spilled, within one budget per device; with faults of devices and disks, and with device loss.
// Every byte that is read is compared.

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "buffer/file_transfers.hpp"
#include "soak/byte_model.hpp"
#include "soak/field.hpp"
#include "support/file_faults.hpp"
#include "tern/backends/catalog.hpp"
#include "tern/buffer/array.hpp"
#include "tern/buffer/buffer.hpp"
#include "tern/buffer/copy.hpp"
#include "tern/buffer/foreign.hpp"
#include "tern/buffer/growing_array.hpp"
#include "tern/buffer/pausable_resource.hpp"
#include "tern/coherence/spill_file.hpp"
#include "tern/coherence/unified_buffer.hpp"
#include "tern/core/bytes.hpp"
#include "tern/launch/kernel.hpp"
#include "tern/memory/budget_resource.hpp"
#include "tern/memory/driver_resource.hpp"

namespace tern::soak {
namespace {

/// Models count cells, so that arrays have several pages and several chunks with a checksum, while
/// models stay small. All bytes of a cell have one value. Pages and chunks end inside cells.
constexpr std::size_t cell_bytes = 5000;
constexpr std::size_t max_cells = 1000;
constexpr std::size_t max_unified_bytes = 3000;
constexpr std::array tags = {"a", "b", "c"};

std::vector<Byte> bytes_of(const std::vector<Byte>& cells) {
  std::vector<Byte> made(cells.size() * cell_bytes);
  for (std::size_t i = 0; i < made.size(); ++i) made[i] = cells[i / cell_bytes];
  return made;
}

std::string temporary_folder() { return std::filesystem::temp_directory_path().string() + "/"; }

/// Calls on files that fail now.
enum class BadDisk : std::uint8_t { none, writes, reads };
std::atomic<BadDisk> bad_disk = BadDisk::none;

bool is_bad(const FileCall& call) {
  const BadDisk now = bad_disk.load();
  return call.is_write ? now == BadDisk::writes : !call.asks_cache && now == BadDisk::reads;
}

/// The memory of one device.
struct Home {
  Device device;
  BudgetHandle all, pausing, growing;
  std::shared_ptr<PausableResource> pausable;
  ResourceHandle unified, kept;  // null: the default resource keeps paused bytes
};

struct Pausable {
  Buffer buffer;
  ByteModel model;  // of cells
  Home* home = nullptr;
  Tag tag;
  bool is_paused = false;

  [[nodiscard]] Buffer part(Range cells) const {
    return buffer.byte_view(cells.begin * cell_bytes, cells.count * cell_bytes).as<Byte>();
  }
};

struct Growing {
  GrowingArray<Byte> array;
  ByteModel model;  // of cells
  Home* home = nullptr;
  Array<Byte> shared;  // if not empty, the array cannot shrink

  [[nodiscard]] Buffer part(Range cells) const {
    return array.array()
        .buffer()
        .byte_view(cells.begin * cell_bytes, cells.count * cell_bytes)
        .as<Byte>();
  }
};

struct Unified {
  UnifiedBuffer<Byte> buffer;
  ByteModel model;  // of bytes
};

class PausingProgram {
 public:
  explicit PausingProgram(const Program& program)
      : program_(program), random_(program.seed), field_(program, random_) {
    bad_disk = BadDisk::none;
    faults_.fail(EIO, is_bad);
    is_pressed_ = random_.one_in(2);
    for (const Device& device : field_.devices()) {
      if (device.can(Capability::virtual_memory)) make_home(device);
    }
    const Device host = open_host();
    host_budget_ = Budget::make("soak host", BudgetLimit::bytes(4 * max_unified_bytes));
    host_memory_ =
        std::make_shared<BudgetResource>(std::make_shared<DirectResource>(host), host_budget_);
    if (!random_.one_in(4)) {
      spill_ = SpillFile::open(
          {.directory = temporary_folder(), .limit_bytes = 64 * SpillFile::block_bytes});
    }
  }

  void run() {
    if (homes_.empty()) return field_.finish();
    const std::size_t steps = 20 + random_.below(60);
    for (std::size_t i = 0; i < steps; ++i) {
      step();
      check_sizes();
      had_faults_ |= field_.may_fail();
      field_.count_step();
      had_faults_ |= field_.may_fail();
      if (random_.one_in(16)) change_disk();
    }
    end();
  }

 private:
  struct Pending {
    std::vector<Byte> seen;
    ByteModel expected;
    Mark mark;
  };

  static Device open_host() { return open_device("host"); }

  void make_home(const Device& device) {
    const std::size_t page = device.info().page_bytes;
    Home& home = *homes_.emplace_back(std::make_unique<Home>());
    home.device = device;
    const std::size_t limit = is_pressed_
                                  ? checked_round_up(3 * max_cells * cell_bytes / 2, page).value()
                                  : std::size_t{512} << 20;
    constexpr std::array overflows = {Overflow::fail, Overflow::wait, Overflow::evict,
                                      Overflow::spill};
    home.all = Budget::make("soak pages", BudgetLimit::bytes(limit),
                            {.overflow = random_.any_of(overflows)});
    home.pausing = Budget::make("pausing", BudgetLimit::unlimited(), {.parent = home.all});
    home.growing = Budget::make("growing", BudgetLimit::unlimited(), {.parent = home.all});
    PausableOptions options{.budget = home.pausing, .directory = temporary_folder()};
    if (device.can(Capability::pinned_memory) && random_.one_in(2)) {
      options.host = home.kept = std::make_shared<DirectResource>(device, MemoryKind::pinned);
    }
    options.verify = !random_.one_in(6);
    home.pausable = std::make_shared<PausableResource>(device, std::move(options));
    home.unified = std::make_shared<BudgetResource>(
        std::make_shared<DirectResource>(device),
        Budget::make("unified", BudgetLimit::bytes(4 * max_unified_bytes), {.parent = home.all}));
    program_.say("{}: {} of pages", device.spec(), limit);
  }

  // --- Failures

  [[nodiscard]] bool may_fail() const noexcept {
    return field_.may_fail() || bad_disk.load() != BadDisk::none;
  }
  /// Throws Mismatch for a failure without a reason.
  void expect(const Failure& failure, const char* what, bool is_hurt = false) {
    const bool is_budget = failure.code() == ErrorCode::out_of_budget;
    // A spill file can be full, or may be missing.
    if (bad_disk.load() != BadDisk::none || is_budget) {
      program_.say("{} fails: {}", what, failure.text());
      require(!is_budget || is_pressed_ || may_fail() || is_hurt || had_faults_ ||
                  failure.text().find("soak pages") == std::string::npos,
              "{} was refused by a budget that has enough left: {}", what, failure.text());
      return;
    }
    field_.expect_reason(failure, what, is_hurt);
  }
  void expect(ByteModel& model, Range range, const Failure& failure, const char* what) {
    expect(failure, what, model.may_fail(range));
    if (may_fail()) model.hurt(range);
  }
  void change_disk() {
    constexpr std::array all = {BadDisk::none, BadDisk::writes, BadDisk::reads};
    // What the disk does not write is known when its work is over.
    if (bad_disk.load() != BadDisk::none) settle();
    bad_disk = random_.any_of(all);
    program_.say("the disk fails: {}", static_cast<int>(bad_disk.load()));
    if (bad_disk.load() == BadDisk::none) return;
    had_faults_ = had_bad_disk_ = true;
  }
  void settle() {
    field_.drain_streams();
    check_pending();
    for (const auto& home : homes_) wait(*home);
  }

  // --- Steps

  void step() {
    switch (random_.below(24)) {
      case 0:
      case 1:
        return pausables_.size() < 6 ? add_pausable() : drop_pausable();
      case 2:
        return growings_.size() < 3 ? add_growing() : drop_growing();
      case 3:
        return unifieds_.size() < 6 ? add_unified() : drop_unified();
      case 4:
        return random_.one_in(2)   ? drop_pausable()
               : random_.one_in(2) ? drop_growing()
                                   : drop_unified();
      case 5:
      case 6:
      case 7:
        return pause();
      case 8:
      case 9:
      case 10:
        return resume();
      case 11:
        return wait(*random_.any_of(homes_));
      case 12:
        if (random_.one_in(2)) return field_.replace_stream();
        field_.drain_streams();
        return check_pending();
      case 13:
      case 14:
      case 15:
      case 16:
        if (!pausables_.empty()) use(random_.any_of(pausables_));
        return;
      case 17:
      case 18:
      case 19:
      case 20:
        if (!growings_.empty()) change(random_.any_of(growings_));
        return;
      default:
        if (!unifieds_.empty()) use(random_.any_of(unifieds_));
    }
  }

  // --- Pausable arrays

  void add_pausable() {
    Home& home = *random_.any_of(homes_);
    Pausable made;
    made.home = &home;
    made.tag = Tag(random_.any_of(tags));
    const std::size_t cells = 1 + random_.below(random_.one_in(3) ? max_cells : 40);
    Result<Buffer> buffer = Buffer::try_make(home.device, Shape{cells * cell_bytes}, DType::u8,
                                             {.resource = home.pausable, .tag = made.tag});
    if (!buffer) return expect(buffer.failure(), "making a pausable buffer");
    made.buffer = *std::move(buffer);
    made.model = ByteModel(cells);
    program_.say("buffer {} = {} cells with tag {} on {}", made.buffer.id().value, cells,
                 made.tag.name(), home.device.spec());
    // A buffer is allocated when it is first used.
    const Range range = random_.one_in(2) ? Range{0, cells} : any_range(random_, cells);
    const Byte value = any_byte(random_);
    const Result<Mark> filled = made.part(range).try_fill(value, field_.any_stream_of(home.device));
    if (!filled) return expect(filled.failure(), "the first fill");
    made.model.write(range, value);
    pausables_.push_back(std::move(made));
  }
  void drop_pausable() {
    if (pausables_.empty()) return;
    const std::size_t number = random_.below(pausables_.size());
    program_.say("drop buffer {}", pausables_[number].buffer.id().value);
    pausables_.erase(pausables_.begin() + static_cast<std::ptrdiff_t>(number));
  }

  void use(Pausable& one) {
    const Range range = any_range(random_, one.model.size());
    const Byte value = any_byte(random_);
    const StreamRef stream = field_.any_stream_of(one.home->device);
    program_.say("use buffer {} [{}, {}) {:#04x} on {}{}", one.buffer.id().value, range.begin,
                 range.end(), value, stream.name(), one.is_paused ? ", paused" : "");
    switch (random_.below(6)) {
      case 0: {
        const Result<Mark> filled = one.part(range).try_fill(value, stream);
        if (is_refused(one, range, filled, "filling")) return;
        if (filled) return one.model.write(range, value);
        return one.model.may_write(range, value);
      }
      case 1: {
        std::vector<Byte> cells(range.count);
        std::ranges::generate(cells, [&] { return any_byte(random_); });
        const std::vector<Byte> source = bytes_of(cells);
        const Result<void> copied = one.part(range).try_copy_from(source.data(), source.size());
        if (is_refused(one, range, copied, "copying to a buffer")) return;
        if (copied) return one.model.write(range, cells.data());
        return one.model.may_write(range, cells.data());
      }
      case 2:
        return read_later(one, stream);
      case 3:
        return launch(one, range, stream);
      default:
        return read(one, range);
    }
  }
  /// Returns whether a use failed because the memory is paused.
  template <class T>
  bool is_refused(Pausable& one, Range range, const Result<T>& result, const char* what) {
    if (!one.is_paused) {
      if (!result) expect(one.model, range, result.failure(), what);
      return false;
    }
    require(!result, "{} has used paused memory", what);
    const Failure& failure = result.failure();
    if (failure.code() == ErrorCode::access_conflict) {
      require(failure.string("tag") == one.tag.name(), "{} names tag {} instead of {}", what,
              failure.string("tag").value_or("-"), one.tag.name());
    } else if (failure.code() != ErrorCode::never_written || one.model.is_written(range)) {
      expect(failure, what);
    }
    return true;
  }
  void read(Pausable& one, Range range) {
    std::vector<Byte> seen(range.count * cell_bytes, destination_canary);
    const Result<void> copied = one.part(range).try_copy_to(seen.data(), seen.size());
    if (!one.is_paused && !one.model.may_be_written(range)) {
      // A failed write may have reached the memory.
      require(had_faults_ || (!copied && copied.failure().code() == ErrorCode::never_written),
              "a read of bytes that were never written does not fail with never_written");
      return;
    }
    if (is_refused(one, range, copied, "reading a buffer")) return;
    if (!copied) return field_.abandon(std::move(seen));
    see(one.model, range, seen, "in a paused buffer");
  }
  /// Compares what was read with the model.
  void see(ByteModel& model, Range range, const std::vector<Byte>& seen, const char* where) {
    std::vector<Byte> cells(range.count);
    for (std::size_t i = 0; i < range.count; ++i) {
      const Byte* const first = seen.data() + i * cell_bytes;
      cells[i] = *first;
      if (std::all_of(first, first + cell_bytes, [&](Byte byte) { return byte == *first; }))
        continue;
      const Range cell{range.begin + i, 1};
      // A copy that failed may have copied a part of it.
      require(model.may_fail(cell) || !model.may_be_written(cell),
              "the bytes of cell {} of {} differ {}", cell.begin, model.size(), where);
      model.forget(cell);
    }
    model.see(range, cells.data(), where);
  }
  void read_later(Pausable& one, StreamRef stream) {
    const Range all{0, one.model.size()};
    if (!one.model.is_written(all)) return;
    Pending later{std::vector<Byte>(all.count * cell_bytes, destination_canary), one.model, {}};
    const Result<Mark> queued =
        one.part(all).try_copy_to(later.seen.data(), later.seen.size(), stream);
    if (is_refused(one, all, queued, "queueing a copy")) return;
    if (!queued) return field_.abandon(std::move(later.seen));
    later.mark = *queued;
    pending_.push_back(std::move(later));
    if (pending_.size() > 4) check_pending();
  }
  void check_pending() {
    for (Pending& one : pending_) {
      const Result<void> done = Device::try_wait(one.mark);
      if (!done) expect(done.failure(), "waiting for a mark");
      // A mark of a device that is lost counts as done; nothing arrived then.
      if (!done || field_.may_fail()) {
        field_.keep(std::move(one.seen));
        continue;
      }
      see(one.expected, {0, one.expected.size()}, one.seen, "in a copy in stream order");
    }
    pending_.clear();
  }
  /// A kernel copies from one of the buffers or growing arrays to this buffer.
  void launch(Pausable& one, Range range, StreamRef stream) {
    const Kernel* const kernel = field_.copy_kernel(one.home->device);
    if (kernel == nullptr) return;
    Buffer from;
    const ByteModel* model = nullptr;
    bool is_from_paused = false;
    if (random_.one_in(2) && !growings_.empty()) {
      const Growing& source = random_.any_of(growings_);
      if (source.home != one.home || source.model.size() < range.count) return;
      from = source.part({0, range.count});
      model = &source.model;
    } else {
      const Pausable& source = random_.any_of(pausables_);
      if (&source == &one || source.home != one.home || source.model.size() < range.count) return;
      from = source.part({0, range.count});
      model = &source.model;
      is_from_paused = source.is_paused;
    }
    const Range source{0, range.count};
    if (!model->is_written(source)) return;
    Buffer to = one.part(range);
    const Result<Mark> launched =
        kernel->try_launch(stream, elements(range.count * cell_bytes), in(from), out(to));
    if (launched) {
      require(!one.is_paused && !is_from_paused, "a kernel uses paused memory");
      one.model.copy(range, *model, 0);
    } else if (one.is_paused || is_from_paused) {
      if (launched.failure().code() != ErrorCode::access_conflict) {
        expect(launched.failure(), "launching on paused memory", model->may_fail(source));
      }
    } else {
      expect(launched.failure(), "launching", model->may_fail(source) || one.model.may_fail(range));
      if (may_fail()) one.model.hurt(range);
    }
  }

  // --- Pausing and resuming

  /// Calls `change(home, target)` for a tag, an object or everything, and returns the buffers whose
  /// state it has changed.
  template <class Change>
  std::vector<Pausable*> change_some(bool to_paused, const char* what, Change call) {
    if (pausables_.empty()) return {};
    Pausable& one = random_.any_of(pausables_);
    const std::size_t by = random_.below(4);
    PauseTarget target = PauseTarget::everything();
    if (by == 1) target = PauseTarget(one.buffer.storage());
    if (by >= 2) target = PauseTarget(one.tag);
    program_.say("{} {} on {}", what,
                 by == 0   ? "everything"
                 : by == 1 ? fmt::format("buffer {}", one.buffer.id().value)
                           : std::string(one.tag.name()),
                 one.home->device.spec());
    std::vector<Pausable*> meant;
    for (Pausable& each : pausables_) {
      const bool is_meant = by == 0 || (by == 1 ? &each == &one : each.tag == one.tag);
      if (is_meant && each.home == one.home && each.is_paused != to_paused) meant.push_back(&each);
    }
    const Result<Mark> changed = call(*one.home, target);
    if (changed) {
      require(!meant.empty() || by == 0 || had_faults_, "{} succeeds without memory to {}", what,
              what);
      for (Pausable* const each : meant) each->is_paused = to_paused;
      return meant;
    }
    const bool is_nothing = meant.empty() && changed.failure().code() == ErrorCode::access_conflict;
    if (!is_nothing) expect(changed.failure(), what);
    return {};
  }
  void pause() {
    constexpr std::array keeps = {Keep::host, Keep::host, Keep::host,
                                  Keep::disk, Keep::disk, Keep::nothing};
    const Keep keep = random_.any_of(keeps);
    const StreamRef after = random_.one_in(2) ? field_.any_stream() : StreamRef();
    const std::vector<Pausable*> paused =
        change_some(true, "pause", [&](Home& home, const PauseTarget& target) {
          return home.pausable->try_pause(target, keep, after);
        });
    if (keep != Keep::nothing) return;
    for (Pausable* const one : paused) one->model.forget({0, one->model.size()});
  }
  void resume() {
    change_some(false, "resume", [&](Home& home, const PauseTarget& target) {
      const StreamRef stream = random_.one_in(2) ? field_.any_stream_of(home.device) : StreamRef();
      return home.pausable->try_resume(target, stream);
    });
  }
  void wait(Home& home) {
    program_.say("wait for the pages of {}", home.device.spec());
    if (random_.one_in(3)) home.pausable->reclaim();
    const Result<void> waited = home.pausable->try_wait();
    if (waited) return;
    // Bytes that a bad disk did not take keep their pages until they are resumed.
    if (had_bad_disk_ && waited.failure().code() == ErrorCode::file) return;
    expect(waited.failure(), "waiting for pages that leave");
  }

  // --- Growing arrays

  void add_growing() {
    Home& home = *random_.any_of(homes_);
    GrowingOptions options;
    options.reserved_bytes = max_cells * cell_bytes;
    options.budget = home.growing;
    Result<GrowingArray<Byte>> made = GrowingArray<Byte>::try_make(home.device, options);
    if (!made) return expect(made.failure(), "making a growing array");
    program_.say("a growing array on {}", home.device.spec());
    growings_.push_back({*std::move(made), ByteModel(), &home, {}});
  }
  void drop_growing() {
    if (growings_.empty()) return;
    const std::size_t number = random_.below(growings_.size());
    program_.say("drop growing array {}", number);
    // The slice keeps the memory.
    if (random_.one_in(2)) slices_.push_back(std::move(growings_[number].shared));
    growings_.erase(growings_.begin() + static_cast<std::ptrdiff_t>(number));
  }

  void change(Growing& one) {
    const std::size_t before = one.model.size();
    const StreamRef stream = field_.any_stream_of(one.home->device);
    const std::size_t choice = random_.below(12);
    program_.say("change {} of a growing array of {} cells on {}{}", choice, before, stream.name(),
                 one.shared.empty() ? "" : ", shared");
    switch (choice) {
      case 0:
      case 1:
      case 2:
        append(one, stream);
        break;
      case 3:
        append_buffer(one, stream);
        break;
      case 4:
      case 5:
        resize(one, random_.below(max_cells + max_cells / 8), stream);
        break;
      case 6:
        resize(one, 0, {});
        break;
      case 7:
        shrink(one, stream);
        break;
      case 8: {
        const std::size_t cells = random_.below(max_cells + 1);
        const Result<void> reserved = one.array.try_reserve(cells * cell_bytes, stream);
        if (!reserved) return expect(reserved.failure(), "reserving");
        require(one.array.capacity() >= cells * cell_bytes, "reserve() has made too little room");
        break;
      }
      case 9:
        if (!one.shared.empty()) {
          one.shared = {};
        } else if (before > 0) {
          const Range range = any_range(random_, before);
          one.shared = one.array.slice(range.begin * cell_bytes, range.count * cell_bytes);
        }
        break;
      case 10:
        fill(one, stream);
        break;
      default:
        read(one);
    }
    require(one.array.size() == one.model.size() * cell_bytes,
            "a growing array has {} bytes, and should have {}", one.array.size(),
            one.model.size() * cell_bytes);
  }
  /// Returns whether elements could not be added because the addresses are used up.
  bool is_beyond_end(const Growing& one, std::size_t cells, const Failure& failure) const {
    return failure.code() == ErrorCode::capacity && cells * cell_bytes > one.array.max_size();
  }
  void added(Growing& one, std::size_t count, const Failure* failure, const Byte* cells) {
    const std::size_t before = one.model.size();
    if (failure != nullptr) {
      if (!is_beyond_end(one, before + count, *failure)) expect(*failure, "adding elements");
      return;
    }
    one.model.resize(before + count);
    if (cells != nullptr) one.model.write({before, count}, cells);
  }
  void append(Growing& one, StreamRef stream) {
    std::vector<Byte> cells(1 + random_.below(random_.one_in(4) ? max_cells / 2 : 30));
    std::ranges::generate(cells, [&] { return any_byte(random_); });
    std::vector<Byte> source = bytes_of(cells);
    if (random_.one_in(2)) {
      const Result<void> done = one.array.try_append(std::span<const Byte>(source));
      added(one, cells.size(), done ? nullptr : &done.failure(), cells.data());
      std::ranges::fill(source, source_garbage);
    } else {
      const Result<Mark> done = one.array.try_append(std::span<const Byte>(source), stream);
      added(one, cells.size(), done ? nullptr : &done.failure(), cells.data());
      if (!done) std::ranges::fill(source, source_garbage);
      field_.keep(std::move(source));
    }
  }
  void append_buffer(Growing& one, StreamRef stream) {
    if (growings_.empty()) return;
    Growing& from = random_.any_of(growings_);
    if (from.model.size() == 0) return;
    const Range range = any_range(random_, from.model.size());
    if (!from.model.is_written(range)) return;
    ByteModel source(range.count);
    source.copy({0, range.count}, from.model, range.begin);
    const bool is_hurt = from.model.may_fail(range);
    const Array<Byte> part = from.array.slice(range.begin * cell_bytes, range.count * cell_bytes);
    const Result<Mark> done = one.array.try_append(part, stream);
    const std::size_t before = one.model.size();
    if (done) {
      one.model.resize(before + range.count);
      one.model.copy({before, range.count}, source, 0);
    } else if (!is_beyond_end(one, before + range.count, done.failure())) {
      expect(done.failure(), "appending an array", is_hurt);
    }
  }
  void resize(Growing& one, std::size_t cells, StreamRef stream) {
    const std::size_t before = one.model.size();
    const bool is_clear = cells == 0;
    const Result<void> done =
        is_clear ? one.array.try_clear() : one.array.try_resize(cells * cell_bytes, stream);
    if (cells >= before)
      return added(one, cells - before, done ? nullptr : &done.failure(), nullptr);
    if (done) {
      require(one.shared.empty(), "elements that are shared were removed");
      return one.model.resize(cells);
    }
    if (!one.shared.empty() && done.failure().code() == ErrorCode::access_conflict) return;
    expect(done.failure(), "removing elements");
  }
  void shrink(Growing& one, StreamRef stream) {
    const Result<void> done = one.array.try_shrink_to_fit(stream);
    if (random_.one_in(2)) one.array.reclaim();
    if (done) return;
    if (!one.shared.empty() && done.failure().code() == ErrorCode::access_conflict) return;
    expect(done.failure(), "shrinking");
  }
  void fill(Growing& one, StreamRef stream) {
    if (one.model.size() == 0) return;
    const Range range = any_range(random_, one.model.size());
    const Byte value = any_byte(random_);
    const Result<Mark> filled = one.part(range).try_fill(value, stream);
    if (filled) return one.model.write(range, value);
    expect(one.model, range, filled.failure(), "filling a growing array");
    one.model.may_write(range, value);
  }
  void read(Growing& one) {
    if (one.model.size() == 0) return;
    const Range range = any_range(random_, one.model.size());
    std::vector<Byte> seen(range.count * cell_bytes, destination_canary);
    const Result<void> copied = one.part(range).try_copy_to(seen.data(), seen.size());
    if (!one.model.may_be_written(range)) {
      require(had_faults_ || (!copied && copied.failure().code() == ErrorCode::never_written),
              "a read of new elements does not fail with never_written");
      return;
    }
    if (!copied) {
      expect(one.model, range, copied.failure(), "reading a growing array");
      return field_.abandon(std::move(seen));
    }
    see(one.model, range, seen, "in a growing array");
  }

  // --- Unified buffers

  void add_unified() {
    Home& home = *random_.any_of(homes_);
    const std::size_t bytes = 1 + random_.below(max_unified_bytes);
    UnifiedOptions options;
    options.device = home.device;
    options.pinned = Pinned::never;
    options.resources = {host_memory_};
    for (const auto& one : homes_) options.resources.push_back(one->unified);
    options.spill = spill_;
    Result<UnifiedBuffer<Byte>> made = UnifiedBuffer<Byte>::try_make(Shape{bytes}, options);
    if (!made) return expect(made.failure(), "making a unified buffer");
    program_.say("a unified buffer of {} bytes", bytes);
    unifieds_.push_back({*std::move(made), ByteModel(bytes)});
    write(unifieds_.back(), {0, bytes});
  }
  void drop_unified() {
    if (unifieds_.empty()) return;
    const std::size_t number = random_.below(unifieds_.size());
    program_.say("drop unified buffer {}", number);
    unifieds_.erase(unifieds_.begin() + static_cast<std::ptrdiff_t>(number));
  }
  void use(Unified& one) {
    const Range range = any_range(random_, one.model.size());
    const StreamRef stream = field_.any_stream_of(random_.any_of(homes_)->device);
    program_.say("use a unified buffer of {} bytes [{}, {}) on {}", one.model.size(), range.begin,
                 range.end(), stream.name());
    switch (random_.below(6)) {
      case 0:
        return write(one, range);
      case 1: {
        const Byte value = any_byte(random_);
        UnifiedView<Byte> view = one.buffer.slice(range.begin, range.count);
        const Result<void> filled = view.try_fill(value, stream);
        if (filled) return one.model.write(range, value);
        expect(one.model, range, filled.failure(), "filling a unified buffer");
        return one.model.may_write(range, value);
      }
      case 2: {
        if (!one.model.may_be_written(range)) return;
        const Result<void> done = one.buffer.slice(range.begin, range.count).try_prefetch(stream);
        if (!done) expect(one.model, range, done.failure(), "prefetching");
        return;
      }
      case 3: {
        const Range all{0, one.model.size()};
        const Result<void> gone = one.buffer.try_drop_device(stream.device());
        if (!gone) expect(one.model, all, gone.failure(), "dropping a copy");
        return;
      }
      default:
        return read(one, range);
    }
  }
  void write(Unified& one, Range range) {
    std::vector<Byte> source(range.count);
    std::ranges::generate(source, [&] { return any_byte(random_); });
    UnifiedView<Byte> view = one.buffer.slice(range.begin, range.count);
    const Result<void> copied = view.try_copy_from(source);
    if (copied) return one.model.write(range, source.data());
    expect(one.model, range, copied.failure(), "copying to a unified buffer");
    one.model.may_write(range, source.data());
  }
  void read(Unified& one, Range range) {
    if (!one.model.may_be_written(range)) return;
    std::vector<Byte> seen(range.count, destination_canary);
    const Result<void> copied = one.buffer.slice(range.begin, range.count).try_copy_to(seen);
    if (copied) return one.model.see(range, seen.data(), "in a unified buffer");
    expect(one.model, range, copied.failure(), "reading a unified buffer");
    field_.abandon(std::move(seen));
  }

  // --- Checks

  void check_sizes() {
    for (const auto& home : homes_) {
      const PauseStatistics now = home->pausable->pause_statistics();
      require(now.resident_bytes == home->pausing->used_bytes(),
              "the resource holds {} bytes of pages, and its budget has {}", now.resident_bytes,
              home->pausing->used_bytes());
      if (had_faults_) continue;
      std::size_t paused = 0, live = 0;
      for (const Pausable& one : pausables_) {
        if (one.home != home.get()) continue;
        const std::size_t bytes = home->pausable->good_size({.bytes = one.buffer.size_bytes()});
        live += bytes;
        paused += one.is_paused ? bytes : 0;
      }
      require(now.paused_bytes == paused, "{} bytes are paused, and should be {}", now.paused_bytes,
              paused);
      require(now.reserved_bytes >= live, "{} bytes of addresses are reserved for {}",
              now.reserved_bytes, live);
    }
  }

  void end() {
    field_.clear_faults();
    settle();
    bad_disk = BadDisk::none;
    program_.say("the end: resume and read everything");
    is_pressed_ = false;
    for (const auto& home : homes_) {
      home->all->set_limit(BudgetLimit::unlimited());
      const Result<Mark> resumed =
          home->pausable->try_resume(PauseTarget::everything(), home->device.default_stream());
      if (!resumed) {
        expect(resumed.failure(), "the last resume");
        continue;
      }
      for (Pausable& one : pausables_) {
        if (one.home == home.get()) one.is_paused = false;
      }
    }
    for (Pausable& one : pausables_) {
      for (const Range& range : one.model.written_runs()) read(one, range);
    }
    for (Growing& one : growings_) {
      for (const Range& range : one.model.written_runs()) {
        std::vector<Byte> seen(range.count * cell_bytes, destination_canary);
        const Result<void> copied = one.part(range).try_copy_to(seen.data(), seen.size());
        if (copied) {
          see(one.model, range, seen, "in a growing array at the end");
        } else {
          expect(one.model, range, copied.failure(), "the last read of a growing array");
        }
      }
    }
    for (Unified& one : unifieds_) {
      for (const Range& range : one.model.written_runs()) read(one, range);
      const Result<void> sound = one.buffer.check();
      require(bool(sound), "an invariant is broken: {}", sound ? "" : sound.failure().text());
    }
    pausables_.clear();
    growings_.clear();
    slices_.clear();
    unifieds_.clear();
    settle();
    static_cast<void>(reclaim_deferred());
    for (const auto& home : homes_) check_nothing_left(*home);
    require(host_budget_->used_bytes() == 0, "{} bytes stay charged for host copies",
            host_budget_->used_bytes());
    require(!spill_ || spill_->statistics().used_bytes == 0, "the spill file still has {} bytes",
            spill_ ? spill_->statistics().used_bytes : 0);
    host_memory_ = {};
    spill_ = {};
    homes_.clear();
    field_.finish();
  }
  void check_nothing_left(Home& home) {
    home.pausable->trim(0);
    if (const Result<void> done = home.all->try_wait_for_pending(); !done) {
      expect(done.failure(), "waiting for frees");
    }
    const PauseStatistics now = home.pausable->pause_statistics();
    require(now.reserved_bytes == 0 && now.resident_bytes == 0,
            "{} bytes of addresses and {} bytes of pages are left", now.reserved_bytes,
            now.resident_bytes);
    require(home.all->charged_bytes() == 0, "{} bytes of pages stay charged",
            home.all->charged_bytes());
    if (home.kept) {
      home.kept->trim(0);
      require(home.kept->failed_free_bytes() == 0, "{} bytes of the host cannot be freed",
              home.kept->failed_free_bytes());
    }
    require(deferred_frees().count == 0, "{} storages are kept", deferred_frees().count);
    require(home.pausable.use_count() == 1, "{} owners of a resource are left",
            home.pausable.use_count() - 1);
  }

  const Program& program_;
  Random random_;
  Field field_;
  test::PlannedFaults faults_{FileTransfers::instance()};
  bool is_pressed_ = false, had_faults_ = false, had_bad_disk_ = false;
  std::vector<std::unique_ptr<Home>> homes_;
  BudgetHandle host_budget_;
  ResourceHandle host_memory_;
  std::shared_ptr<SpillFile> spill_;
  std::vector<Pausable> pausables_;
  std::vector<Growing> growings_;
  std::vector<Array<Byte>> slices_;  // of growing arrays that are gone
  std::vector<Unified> unifieds_;
  std::vector<Pending> pending_;
};

}  // namespace

void run_pausing(const Program& program) { PausingProgram(program).run(); }

}  // namespace tern::soak
