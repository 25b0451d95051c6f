#include "tools/device_program.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "tern/device/event.hpp"
#include "tools/pool_program.hpp"

namespace tern::tools {
namespace {

using Kind = DeviceStep::Kind;
using Where = DeviceStep::Where;

constexpr std::size_t streams = DeviceProgram::streams;
constexpr std::size_t cells_per_block = DeviceProgram::cells_per_block;
constexpr std::uint8_t slots = 4;
constexpr std::size_t max_blocks = 14;

enum class StreamKind : std::uint8_t { plain, blocking, by_default };
struct StreamPlace {
  std::uint8_t device;
  StreamKind kind;
};
constexpr std::array<StreamPlace, streams> places = {{{0, StreamKind::by_default},
                                                      {1, StreamKind::by_default},
                                                      {0, StreamKind::blocking},
                                                      {0, StreamKind::blocking},
                                                      {0, StreamKind::plain},
                                                      {0, StreamKind::plain},
                                                      {0, StreamKind::plain},
                                                      {1, StreamKind::plain},
                                                      {1, StreamKind::blocking}}};

bool are_partners(std::size_t a, std::size_t b) {
  const bool is_pair =
      (places[a].kind == StreamKind::by_default && places[b].kind == StreamKind::blocking) ||
      (places[a].kind == StreamKind::blocking && places[b].kind == StreamKind::by_default);
  return is_pair && places[a].device == places[b].device;
}

std::uint8_t device_of(Where where) { return where == Where::second_device ? 1 : 0; }
bool is_on_device(Where where) {
  return where == Where::first_device || where == Where::second_device;
}

// --- Generating a program

/// For each stream, the last of its operations that is known.
using Clock = std::array<std::uint64_t, streams>;

void join(Clock& to, const Clock& from) {
  for (std::size_t i = 0; i < streams; ++i) to[i] = std::max(to[i], from[i]);
}

struct Operation {
  std::size_t stream = 0;
  std::uint64_t sequence = 0;  // 0: of the host; all later submissions are ordered after it
};

struct Cell {
  Operation writer;
  std::vector<Operation> readers;
  bool is_defined = false;
};

struct Block {
  Where where;
  bool is_async = false;
  std::array<Cell, cells_per_block> cells;
};

class Maker {
 public:
  Maker(std::uint64_t seed, int operations) : random_(seed), is_restless_(seed % 2 == 1) {
    program_.seed = seed;
    program_.cell_bytes = 32 * (1 + random_.below(6)) + random_.below(8);
    for (const Where where : {Where::first_device, Where::second_device, Where::pinned,
                              Where::managed, Where::pageable, Where::pageable}) {
      add_block(where, false);
      program_.steps.push_back({.kind = Kind::allocate, .where = where, .block = newest()});
    }
    for (int i = 0; i < operations; ++i) add_operation();
  }

  [[nodiscard]] DeviceProgram take() && { return std::move(program_); }

 private:
  // --- Knowledge

  [[nodiscard]] Clock clock_if_submitted(std::size_t s) const {
    Clock clock = clocks_[s];
    join(clock, host_);
    for (std::size_t other = 0; other < streams; ++other) {
      if (are_partners(s, other)) join(clock, clocks_[other]);
    }
    return clock;
  }
  Operation submit(std::size_t s) {
    clocks_[s] = clock_if_submitted(s);
    return {s, ++clocks_[s][s]};
  }

  [[nodiscard]] std::uint8_t any_stream() {
    return static_cast<std::uint8_t>(random_.below(streams));
  }
  [[nodiscard]] std::uint8_t stream_of(std::uint8_t device) {
    std::uint8_t s = any_stream();
    while (places[s].device != device) s = any_stream();
    return s;
  }

  /// Adds waits until `s` is ordered after the operation.
  void order(std::uint8_t s, const Operation& needed) {
    const auto knows = [&] {
      return clock_if_submitted(s)[needed.stream] >= needed.sequence || needed.stream == s;
    };
    if (needed.sequence == 0 || knows()) return;
    DeviceStep step{.kind = Kind::wait_stream, .stream = s};
    for (std::uint8_t slot = 0; slot < slots; ++slot) {
      const bool uses_event = events_[slot][needed.stream] >= needed.sequence;
      const bool uses_mark = marks_[slot][needed.stream] >= needed.sequence;
      if ((!uses_event && !uses_mark) || random_.below(4) == 0) continue;
      step.kind = uses_event ? Kind::wait_event : Kind::wait_mark;
      step.slot = slot;
      join(clocks_[s], uses_event ? events_[slot] : marks_[slot]);
      submit(s);
      program_.steps.push_back(step);
      return;
    }
    if (random_.below(8) == 0) return order_host(needed);
    // Wait for any stream that knows the operation, not only for the one that did it.
    step.other = static_cast<std::uint8_t>(needed.stream);
    for (std::uint8_t other = 0; other < streams; ++other) {
      const bool knows_too = clocks_[other][needed.stream] >= needed.sequence;
      if (other != s && knows_too && random_.below(2) == 0) step.other = other;
    }
    const Clock known = clocks_[step.other];
    submit(step.other);  // the event of the mark
    submit(s);
    join(clocks_[s], known);
    program_.steps.push_back(step);
  }

  void order_host(const Operation& needed) {
    if (needed.sequence == 0 || host_[needed.stream] >= needed.sequence) return;
    const std::uint64_t dice = random_.below(10);
    const auto other = static_cast<std::uint8_t>(needed.stream);
    const Kind kind = dice < 6 ? Kind::host_waits : dice < 9 ? Kind::host_drains : Kind::host_stops;
    program_.steps.push_back({.kind = kind, .other = other});
    for (std::uint8_t s = 0; s < streams; ++s) {
      const bool stops = kind == Kind::host_stops && places[s].device == places[other].device;
      if (s == other || stops) join(host_, clocks_[s]);
    }
  }

  template <class Order>
  void order_all(const Cell& cell, bool writes, Order order_one) {
    order_one(cell.writer);
    if (!writes) return;
    for (const Operation& reader : std::vector(cell.readers)) order_one(reader);
  }

  // --- Blocks

  void add_block(Where where, bool is_async) {
    blocks_.emplace(++last_block_, Block{where, is_async, {}});
  }
  [[nodiscard]] std::uint16_t newest() const { return last_block_; }

  [[nodiscard]] std::optional<std::uint16_t> any_block(auto suits) {
    std::vector<std::uint16_t> suitable;
    for (const auto& [number, block] : blocks_) {
      if (suits(block)) suitable.push_back(number);
    }
    if (suitable.empty()) return std::nullopt;
    return suitable[random_.below(suitable.size())];
  }

  static bool is_defined(const Block& block, std::size_t cell, std::size_t cells) {
    return std::all_of(block.cells.begin() + static_cast<std::ptrdiff_t>(cell),
                       block.cells.begin() + static_cast<std::ptrdiff_t>(cell + cells),
                       [](const Cell& one) { return one.is_defined; });
  }

  void choose_range(DeviceStep& step) {
    step.cell = static_cast<std::uint16_t>(random_.below(cells_per_block));
    step.cells = static_cast<std::uint16_t>(1 + random_.below(cells_per_block - step.cell));
  }

  // --- Operations

  void add_operation() {
    // Every other program mostly allocates and frees.
    if (is_restless_ && random_.below(2) == 0) {
      return random_.below(2) == 0 ? add_begin() : add_end();
    }
    const std::uint64_t dice = random_.below(100);
    if (dice < 14) return add_begin();
    if (dice < 26) return add_end();
    if (dice < 38) return add_fill();
    if (dice < 58) return add_copy(random_.below(8) == 0 ? Kind::copy_rows : Kind::copy);
    if (dice < 74) return add_copy(random_.below(2) == 0 ? Kind::no_body : Kind::body);
    if (dice < 84) return add_host_access();
    const std::uint8_t s = any_stream();
    const auto slot = static_cast<std::uint8_t>(random_.below(slots));
    if (dice < 90) {
      program_.steps.push_back({.kind = Kind::record, .stream = s, .slot = slot});
      submit(s);
      events_[slot] = clocks_[s];
    } else if (dice < 95) {
      program_.steps.push_back({.kind = Kind::mark, .stream = s, .slot = slot});
      marks_[slot] = clocks_[s];
    } else if (dice < 98) {
      program_.steps.push_back({.kind = Kind::ask, .stream = s});
    } else {
      const auto block = any_block([](const Block& one) { return one.where == Where::managed; });
      program_.steps.push_back({.kind = Kind::prefetch, .stream = s, .block = *block});
      submit(s);
    }
  }

  void add_begin() {
    if (blocks_.size() >= max_blocks) return;
    // A range that its stream has just freed is reused first.
    const std::uint8_t s = random_.below(2) == 0 ? last_ended_ : any_stream();
    const Where where = places[s].device == 0 ? Where::first_device : Where::second_device;
    add_block(where, true);
    program_.steps.push_back({.kind = Kind::begin, .where = where, .stream = s, .block = newest()});
    const Operation birth = submit(s);
    for (Cell& cell : blocks_.at(newest()).cells) cell.writer = birth;
    if (random_.below(4) == 0) return;
    add_use({.kind = Kind::fill,
             .stream = s,
             .block = newest(),
             .cells = cells_per_block,
             .value = static_cast<std::uint8_t>(random_.below(256))});
  }

  void add_end() {
    const auto number = any_block([](const Block& block) { return block.is_async; });
    if (!number) return;
    const Block& block = blocks_.at(*number);
    const std::uint8_t s = stream_of(device_of(block.where));
    for (const Cell& cell : block.cells) {
      order_all(cell, true, [&](const Operation& one) { order(s, one); });
    }
    program_.steps.push_back({.kind = Kind::end, .stream = s, .block = *number});
    submit(s);
    last_ended_ = s;
    blocks_.erase(*number);
  }

  void add_fill() {
    const auto number = any_block([](const Block&) { return true; });
    DeviceStep step{.kind = Kind::fill, .block = *number};
    step.value = static_cast<std::uint8_t>(random_.below(256));
    const Where where = blocks_.at(*number).where;
    step.stream = is_on_device(where) ? stream_of(device_of(where)) : any_stream();
    choose_range(step);
    add_use(step);
  }

  void add_copy(Kind kind) {
    DeviceStep step{.kind = kind};
    choose_range(step);
    step.value = static_cast<std::uint8_t>(random_.below(256));
    step.source_cell = static_cast<std::uint16_t>(random_.below(cells_per_block - step.cells + 1u));
    const auto source = any_block(
        [&](const Block& block) { return is_defined(block, step.source_cell, step.cells); });
    if (!source) return;
    step.source = *source;
    const Where from = blocks_.at(*source).where;
    const bool crosses = kind == Kind::copy;
    const auto number = any_block([&](const Block& block) {
      const bool is_same = &block == &blocks_.at(*source);
      const bool is_far = is_on_device(from) && is_on_device(block.where) && from != block.where;
      return !is_same && (crosses || !is_far);
    });
    if (!number) return;
    step.block = *number;
    const Where to = blocks_.at(*number).where;
    step.stream = is_on_device(to)     ? stream_of(device_of(to))
                  : is_on_device(from) ? stream_of(device_of(from))
                                       : any_stream();
    add_use(step);
  }

  void add_use(const DeviceStep& step) {
    Block& to = blocks_.at(step.block);
    const bool reads = step.kind != Kind::fill;
    for (std::size_t i = 0; i < step.cells; ++i) {
      const auto order_one = [&](const Operation& one) { order(step.stream, one); };
      if (reads) order_all(blocks_.at(step.source).cells[step.source_cell + i], false, order_one);
      order_all(to.cells[step.cell + i], true, order_one);
    }
    program_.steps.push_back(step);
    const Operation self = submit(step.stream);
    for (std::size_t i = 0; i < step.cells; ++i) {
      if (reads) blocks_.at(step.source).cells[step.source_cell + i].readers.push_back(self);
      to.cells[step.cell + i] = {self, {}, true};
    }
  }

  void add_host_access() {
    const bool writes = random_.below(2) == 0;
    DeviceStep step{.kind = writes ? Kind::host_write : Kind::host_read};
    choose_range(step);
    step.value = static_cast<std::uint8_t>(random_.below(256));
    const auto number = any_block([&](const Block& block) {
      return !is_on_device(block.where) && (writes || is_defined(block, step.cell, step.cells));
    });
    if (!number) return;
    step.block = *number;
    Block& block = blocks_.at(*number);
    for (std::size_t i = 0; i < step.cells; ++i) {
      order_all(block.cells[step.cell + i], writes, [&](const Operation& one) { order_host(one); });
    }
    program_.steps.push_back(step);
    for (std::size_t i = 0; writes && i < step.cells; ++i) {
      block.cells[step.cell + i] = {{}, {}, true};
    }
  }

  Random random_;
  const bool is_restless_;
  DeviceProgram program_;
  std::map<std::uint16_t, Block> blocks_;
  std::uint16_t last_block_ = 0;
  std::uint8_t last_ended_ = 0;  // a stream
  std::array<Clock, streams> clocks_ = {};
  Clock host_ = {};
  std::array<Clock, slots> events_ = {}, marks_ = {};
};

// --- Running a program

std::uint64_t mix(std::uint64_t state, std::uint64_t value) {
  state = (state ^ value) * 0x9e3779b97f4a7c15u;
  return state ^ (state >> 29);
}

void scale(const KernelCall& call) {
  auto* to = call.argument<unsigned char*>(0);
  const auto* from = call.argument<const unsigned char*>(1);
  const auto value = call.argument<std::uint8_t>(2);
  for (std::size_t i = 0; i < call.arguments[0].range_bytes; ++i) {
    to[i] = static_cast<unsigned char>(from[i] * 3u + value + i);
  }
}

class Runner {
 public:
  Runner(const DeviceProgram& program, const sim::Options& options)
      : program_(program), devices_(sim::open_peers(options, 2)) {
    for (std::size_t i = 0; i < streams; ++i) {
      const Device& device = devices_[places[i].device];
      if (places[i].kind == StreamKind::by_default) {
        streams_.push_back(device.default_stream());
      } else {
        owned_.emplace_back(device,
                            StreamOptions{.blocking = places[i].kind == StreamKind::blocking});
        streams_.push_back(owned_.back());
      }
    }
    for (const Device& device : devices_) {
      stand_ins_.push_back(device.try_load_kernel({.entry = "mix"}).value());
      bodies_.push_back(device.try_load_kernel({.entry = "scale", .body = scale}).value());
      for (std::uint8_t i = 0; i < slots; ++i) events_.emplace_back(device);
    }
  }

  [[nodiscard]] DeviceRun run() {
    for (const DeviceStep& step : program_.steps) do_step(step);
    for (const Device& device : devices_) device.synchronize();
    hash_all();
    return {hash_, sim::trace_hash(devices_.front()), sim::findings(devices_.front())};
  }

 private:
  struct Memory {
    Where where;
    std::byte* address = nullptr;
    std::unique_ptr<std::byte[]> pageable = {};
    std::array<bool, cells_per_block> is_written = {};
  };

  [[nodiscard]] std::size_t block_bytes() const { return program_.cell_bytes * cells_per_block; }
  [[nodiscard]] const Device& device(const DeviceStep& step) const {
    return devices_[places[step.stream].device];
  }

  void do_step(const DeviceStep& step) {
    const StreamRef stream = streams_[step.stream];
    switch (step.kind) {
      case Kind::allocate:
        return allocate(step);
      case Kind::begin:
        memory_[step.block] = {step.where, static_cast<std::byte*>(stream.allocate(block_bytes()))};
        return;
      case Kind::end:
        stream.release(memory_.at(step.block).address);
        memory_.erase(step.block);
        return;
      case Kind::record:
        stream.record(event_of(step));
        last_event_[step.slot] = &event_of(step);
        return;
      case Kind::mark:
        marks_[step.slot] = stream.mark();
        return;
      case Kind::wait_stream:
        return stream.wait(streams_[step.other].mark());
      case Kind::wait_event:
        return stream.wait(*last_event_[step.slot]);
      case Kind::wait_mark:
        return stream.wait(marks_[step.slot]);
      case Kind::host_waits:
        return Device::wait(streams_[step.other].mark());
      case Kind::host_drains:
        return streams_[step.other].synchronize();
      case Kind::host_stops:
        return devices_[places[step.other].device].synchronize();
      case Kind::ask:
        static_cast<void>(stream.is_idle());
        return;
      case Kind::prefetch:
        return stream
            .try_prefetch(memory_.at(step.block).address, block_bytes(), device(step).place())
            .value();
      default:
        return use(step, stream);
    }
  }

  void allocate(const DeviceStep& step) {
    Memory memory{step.where};
    if (step.where == Where::pageable) {
      memory.pageable = std::make_unique<std::byte[]>(block_bytes());
      memory.address = memory.pageable.get();
    } else {
      const MemoryKind kind = step.where == Where::pinned    ? MemoryKind::pinned
                              : step.where == Where::managed ? MemoryKind::managed
                                                             : MemoryKind::device;
      const Device& owner = devices_[device_of(step.where)];
      memory.address = static_cast<std::byte*>(owner.allocate(kind, block_bytes()));
    }
    memory_[step.block] = std::move(memory);
  }

  void use(const DeviceStep& step, StreamRef stream) {
    Memory& memory = memory_.at(step.block);
    std::byte* to = memory.address + step.cell * program_.cell_bytes;
    const std::size_t bytes = step.cells * program_.cell_bytes;
    if (step.kind != Kind::host_read) {
      for (std::size_t i = 0; i < step.cells; ++i) memory.is_written[step.cell + i] = true;
    }
    if (step.kind == Kind::fill) {
      return stream.fill(to, bytes, std::byte{step.value});
    }
    if (step.kind == Kind::host_write) {
      sim::host_write(devices_.front(), to, bytes);
      std::memset(to, step.value, bytes);
      return;
    }
    if (step.kind == Kind::host_read) {
      sim::host_read(devices_.front(), to, bytes);
      return add_to_hash(to, bytes);
    }
    const Memory& source = memory_.at(step.source);
    std::byte* from = source.address + step.source_cell * program_.cell_bytes;
    if (step.kind == Kind::copy) {
      const bool is_far =
          is_on_device(source.where) && device_of(source.where) != places[step.stream].device;
      if (!is_far) return stream.copy(to, from, bytes);
      const Device& peer = devices_[device_of(source.where)];
      return stream.try_copy_from_peer(to, peer, from, bytes).value();
    }
    if (step.kind == Kind::copy_rows) {
      return stream.copy_2d({.destination = to,
                             .destination_pitch_bytes = program_.cell_bytes,
                             .source = from,
                             .source_pitch_bytes = program_.cell_bytes,
                             .width_bytes = program_.cell_bytes,
                             .height = step.cells});
    }
    launch(step, stream, to, from, bytes);
  }

  void launch(const DeviceStep& step, StreamRef stream, std::byte* to, std::byte* from,
              std::size_t bytes) {
    const std::array arguments = {
        KernelArgument{&to, sizeof to, to, bytes, Access::discard},
        KernelArgument{&from, sizeof from, from, bytes, Access::read},
        KernelArgument{&step.value, sizeof step.value, nullptr, 0, Access::read}};
    const std::vector<NativeKernel>& kernels = step.kind == Kind::body ? bodies_ : stand_ins_;
    stream.launch(kernels[places[step.stream].device], {}, arguments);
  }

  [[nodiscard]] Event& event_of(const DeviceStep& step) {
    return events_[std::size_t{places[step.stream].device} * slots + step.slot];
  }

  void add_to_hash(const std::byte* bytes, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
      hash_ = mix(hash_, std::to_integer<std::uint64_t>(bytes[i]));
    }
  }

  void hash_all() {
    std::vector<std::byte> host(program_.cell_bytes);
    for (const auto& [number, memory] : memory_) {
      for (std::size_t cell = 0; cell < cells_per_block; ++cell) {
        if (!memory.is_written[cell]) continue;
        const std::byte* from = memory.address + cell * program_.cell_bytes;
        if (is_on_device(memory.where)) {
          const StreamRef stream = devices_[device_of(memory.where)].default_stream();
          stream.copy(host.data(), from, host.size());
          stream.synchronize();
        } else {
          sim::host_read(devices_.front(), from, host.size());
          std::memcpy(host.data(), from, host.size());
        }
        hash_ = mix(hash_, number * cells_per_block + cell);
        add_to_hash(host.data(), host.size());
      }
    }
  }

  const DeviceProgram& program_;
  // Declared before the devices: their queues may still hold copies to it when a run ends early.
  std::map<std::uint16_t, Memory> memory_;
  std::vector<Device> devices_;
  std::deque<Stream> owned_;
  std::vector<StreamRef> streams_;
  std::vector<NativeKernel> stand_ins_, bodies_;
  std::vector<Event> events_;
  std::array<const Event*, slots> last_event_ = {};
  std::array<Mark, slots> marks_ = {};
  std::uint64_t hash_ = 0;
};

std::string describe(const sim::Options& options, const char* policy) {
  return fmt::format("schedule {}, seed {:#x}, reuse {}", policy, options.seed,
                     options.reuse == sim::Reuse::hostile ? "hostile" : "friendly");
}

}  // namespace

DeviceProgram DeviceProgram::make(std::uint64_t seed, int operations) {
  return Maker(seed, operations).take();
}

DeviceProgram DeviceProgram::without(std::size_t step) const {
  DeviceProgram fewer = *this;
  fewer.steps.erase(fewer.steps.begin() + static_cast<std::ptrdiff_t>(step));
  return fewer;
}

DeviceRun DeviceProgram::run(sim::Options options) const {
  options.mode = sim::Mode::collect;
  options.print_findings = false;  // the self-test prints the findings itself
  options.memory_bytes = std::size_t{4} << 20;
  return Runner(*this, options).run();
}

std::vector<Finding> compare_runs(const DeviceProgram& program, const NamedPolicy& policy,
                                  std::uint64_t first_seed, std::uint64_t seeds,
                                  std::uint64_t expected) {
  std::vector<Finding> found;
  for (std::uint64_t seed = first_seed; seed < first_seed + seeds; ++seed) {
    sim::Options options{.seed = seed, .policy = policy.policy, .pct_depth = policy.pct_depth};
    options.reuse = seed % 2 == 0 ? sim::Reuse::hostile : sim::Reuse::friendly;
    DeviceRun run = program.run(options);
    if (!run.findings.empty()) {
      found.push_back(std::move(run.findings.front()));
    } else if (run.bytes_hash != expected) {
      Finding wrong;
      wrong.code = FindingCode::wrong_bytes;
      wrong.context = fmt::format("program {:#x}", program.seed);
      wrong.step = program.steps.size();
      wrong.what = fmt::format("the same program ends with other bytes: {:016x} and {:016x}",
                               expected, run.bytes_hash);
      wrong.now = describe(options, policy.name);
      wrong.before.push_back(describe({}, "eager"));
      wrong.order = "the checker found nothing, so every schedule should end alike";
      wrong.fix = "this is a defect of the simulated device: report it with this text";
      found.push_back(std::move(wrong));
    }
  }
  return found;
}

DroppedWaits drop_waits(const DeviceProgram& program, std::uint64_t seeds) {
  DroppedWaits result;
  const sim::Options eager{.policy = sim::Policy::eager, .check = false};
  const std::uint64_t expected = program.run(eager).bytes_hash;
  for (std::size_t i = 0; i < program.steps.size(); ++i) {
    if (!program.steps[i].is_wait()) continue;
    const DeviceProgram racy = program.without(i);
    // With the lazy policy, because the answer to an idle query is order too.
    const bool is_found = !racy.run({.policy = sim::Policy::lazy}).findings.empty();
    ++result.waits;
    result.found += is_found ? 1 : 0;
    bool is_shown = false;
    for (const NamedPolicy& one : all_policies) {
      for (std::uint64_t seed = 0; seed < seeds && !is_shown; ++seed) {
        sim::Options options{
            .seed = seed, .policy = one.policy, .pct_depth = one.pct_depth, .check = false};
        if (racy.run(options).bytes_hash == expected) continue;
        is_shown = true;
        ++result.shown;
        if (one.policy == sim::Policy::eager) ++result.shown_by_eager;
        options.check = true;
        if (racy.run(options).findings.empty()) ++result.missed;
      }
    }
  }
  return result;
}

}  // namespace tern::tools
