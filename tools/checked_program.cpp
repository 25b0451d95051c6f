#include "tools/checked_program.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <utility>

#include "tern/device/event.hpp"
#include "tools/host_thread.hpp"
#include "tools/pool_program.hpp"

namespace tern::tools {
namespace {

constexpr std::size_t cell_bytes = 64;
constexpr std::size_t pinned_blocks = 2, max_blocks = 8;
constexpr std::size_t memory_bytes = std::size_t{2} << 20;
/// Memory for the maximum number of blocks: a driver uses 512 bytes for each.
constexpr std::size_t tight_bytes = (max_blocks - pinned_blocks) * 512;

struct Cell {
  Epoch writer;
  std::vector<Epoch> readers;
  bool is_written = false;
};

struct Block {
  std::byte* address = nullptr;
  std::size_t device = 0;
  bool is_pinned = false;
  Epoch begun;  // its allocation; every use is ordered after it
  std::array<Cell, 2> cells;
};

class CheckedRunner {
 public:
  explicit CheckedRunner(const CheckedProgram& program) : program_(program), random_(program.seed) {
    sim::Options options;
    constexpr std::array policies = {sim::Policy::mix,    sim::Policy::lazy,   sim::Policy::eager,
                                     sim::Policy::random, sim::Policy::skewed, sim::Policy::pct};
    options.seed = random_.next();
    omits_one_in_ = program_.omission == Omission::any ? 12 + random_.below(20) : 3;
    options.policy = policies[random_.below(policies.size())];
    options.reuse = program.reuse.value_or(one_in(3) ? sim::Reuse::friendly : sim::Reuse::hostile);
    options.mode = sim::Mode::collect;
    options.print_findings = false;  // planted races are not printed
    options.memory_bytes = memory_bytes;
    const bool has_threads = one_in(3) || program.omission == Omission::acquire;
    options.per_thread_host = has_threads;
    devices_ = sim::open_peers(options, static_cast<unsigned>(1 + random_.below(2)));
    if (one_in(2)) {
      // With little memory left, even a driver that reuses addresses as late as possible reuses
      // them.
      for (const Device& device : devices_) {
        static_cast<void>(device.allocate(MemoryKind::device, memory_bytes - tight_bytes));
      }
    }
    for (std::size_t i = 0; i < 3 + random_.below(3); ++i) {
      stream_devices_.push_back(i % devices_.size());
      streams_.emplace_back(devices_[stream_devices_.back()]);
    }
    actors_.resize(streams_.size() + 1);
    seen_done_.resize(streams_.size());
    records_.resize(streams_.size());
    if (has_threads) {
      for (std::size_t i = 0; i < 2; ++i) hosts_.push_back(std::make_unique<HostThread>());
      actors_.resize(streams_.size() + 1 + hosts_.size());
    }
    events_.reserve(max_slots);
    say("{} devices, {} streams, {} hosts{}", devices_.size(), streams_.size(), 1 + hosts_.size(),
        options.reuse == sim::Reuse::hostile ? ", hostile reuse" : ", friendly reuse");
    add_pinned();
  }

  [[nodiscard]] CheckedRun run() {
    const std::size_t steps = 20 + random_.below(60);
    for (std::size_t i = 0; i < steps && run_.verdict == Verdict::ordered; ++i) step();
    run_.devices = devices_.size();
    run_.threads = 1 + hosts_.size();
    run_.findings = sim::findings(devices_.front());  // includes those of its peer
    return std::move(run_);
  }

 private:
  static constexpr std::size_t max_slots = 4;
  static constexpr std::size_t events_before_asking = 4;  // StreamState::asked_records

  [[nodiscard]] bool one_in(std::size_t count) { return random_.below(count) == 0; }
  template <class Container>
  [[nodiscard]] auto& any_of(Container& container) {
    return container[random_.below(container.size())];
  }
  template <class... Arguments>
  void say(fmt::format_string<Arguments...> text, Arguments&&... arguments) const {
    if (!program_.is_verbose) return;
    fmt::print("  {}\n", fmt::format(text, std::forward<Arguments>(arguments)...));
  }
  /// Returns whether the program leaves this step out.
  [[nodiscard]] bool omits(Omission what) {
    if (program_.omission != what && program_.omission != Omission::any) return false;
    return one_in(omits_one_in_);
  }

  // --- Actors: streams first, then hosts

  [[nodiscard]] std::size_t host_actor(std::size_t host) const { return streams_.size() + host; }
  [[nodiscard]] std::size_t any_host() { return random_.below(1 + hosts_.size()); }
  void on_host(std::size_t host, const std::function<void()>& work) {
    if (host == 0) {
      work();
    } else {
      hosts_[host - 1]->call(work);
    }
  }
  [[nodiscard]] static bool knows(const Clock& clock, const Epoch& epoch) {
    return clock[epoch.actor] >= epoch.count;
  }
  /// Records an operation of an actor; a host submits the operations of a stream.
  Epoch tick(std::size_t actor, std::size_t host) {
    Order& own = actors_[actor];
    if (actor < streams_.size()) join(own, actors_[host_actor(host)]);
    ++own.least[actor];
    ++own.most[actor];
    return {actor, own.least[actor]};
  }

  /// The library may submit to the stream, for a mark. Later work of the stream is then ordered
  /// after what the host knows.
  void may_submit(std::size_t stream, std::size_t host) {
    join(actors_[stream].most, actors_[host_actor(host)].most);
  }
  /// The library may record an event on the stream. If it lists more than a few events, it first
  /// queries the oldest, and then the host knows whether they are done.
  void may_record(std::size_t stream, std::size_t host) {
    may_submit(stream, host);
    if (++records_[stream] <= events_before_asking) return;
    join(actors_[host_actor(host)].most, actors_[stream].most);
    see_done(stream, host);
  }

  /// The host sees marks of the stream complete. A later wait for one of them may be ordered after
  /// all that this host knows.
  void see_done(std::size_t stream, std::size_t host) {
    join(seen_done_[stream], actors_[host_actor(host)].most);
  }

  /// Returns whether the actor is ordered after the epoch if this host submits.
  [[nodiscard]] Verdict ask(std::size_t actor, std::size_t host, const Epoch& epoch) const {
    if (epoch.count == 0 || epoch.actor == actor) return Verdict::ordered;
    Order order = actors_[actor];
    if (actor < streams_.size()) join(order, actors_[host_actor(host)]);
    if (knows(order.least, epoch)) return Verdict::ordered;
    return knows(order.most, epoch) ? Verdict::unknown : Verdict::race;
  }
  void note(Verdict verdict, const char* what, std::size_t actor, const Epoch& epoch) {
    if (verdict == Verdict::ordered || run_.verdict != Verdict::ordered) return;
    run_.verdict = verdict;
    run_.why = fmt::format("{} by actor {} is not behind operation {} of actor {}", what, actor,
                           epoch.count, epoch.actor);
    say("{}: {}", verdict == Verdict::race ? "race" : "no verdict", run_.why);
  }

  // --- Ordering

  /// Orders the actor after the epoch, in one of the possible ways.
  void order(std::size_t actor, std::size_t host, const Epoch& epoch) {
    if (ask(actor, host, epoch) == Verdict::ordered) return;
    if (epoch.actor >= streams_.size()) return order_hosts(actor, host, epoch.actor);
    const std::size_t source = epoch.actor;
    if (actor >= streams_.size()) return wait_on_host(actor - streams_.size(), source);
    switch (random_.below(5)) {
      case 0:
        wait_on_host(host, source);
        break;
      case 1:
      case 2:
        wait_for_event(actor, host, source);
        break;
      default:
        wait_for_mark(actor, host, source);
    }
  }
  /// Orders after another host thread: that thread releases, and this one acquires.
  void order_hosts(std::size_t actor, std::size_t host, std::size_t source) {
    const std::size_t to = actor >= streams_.size() ? actor - streams_.size() : host;
    const std::size_t from = source - streams_.size();
    const std::uint64_t tag = ++last_tag_;
    on_host(from, [&] { sim::release(devices_[0], tag); });
    if (omits(Omission::acquire)) {
      say("host {} does not acquire what host {} releases", to, from);
      return;
    }
    say("host {} acquires what host {} releases", to, from);
    on_host(to, [&] { sim::acquire(devices_[0], tag); });
    join(actors_[host_actor(to)], actors_[source]);
  }
  void wait_for_device(std::size_t host, std::size_t device) {
    say("host {} waits for device {}", host, device);
    on_host(host, [&] { devices_[device].synchronize(); });
    for (std::size_t i = 0; i < streams_.size(); ++i) {
      if (stream_devices_[i] == device) join(actors_[host_actor(host)], actors_[i]);
    }
    for (std::size_t i = 0; i < streams_.size(); ++i) {
      if (stream_devices_[i] == device) see_done(i, host);
    }
  }
  void wait_on_host(std::size_t host, std::size_t source) {
    Order& own = actors_[host_actor(host)];
    const Stream& stream = streams_[source];
    switch (random_.below(4)) {
      case 0:
        return wait_for_device(host, stream_devices_[source]);
      case 1: {
        ++run_.timeline_waits;
        if (omits(Omission::signal)) {
          say("host {} waits for s{} by a value that was set before", host, source);
          on_host(host, [&] { timeline_.wait(last_value_); });
          // It may know less than the thread that set the value, so nothing counts as certain.
          join(own.most, signalled_);
          return;
        }
        say("host {} waits for s{} by a timeline", host, source);
        const std::uint64_t value = ++last_value_;
        on_host(host, [&] { timeline_.set(stream, value); });
        tick(source, host);
        signalled_ = actors_[source].most;
        on_host(host, [&] { timeline_.wait(value); });
        break;
      }
      case 2:
        say("host {} waits for a mark of s{}", host, source);
        on_host(host, [&] { Device::wait(stream.mark()); });
        may_record(source, host);
        break;
      default:
        say("host {} waits for s{}", host, source);
        on_host(host, [&] { stream.synchronize(); });
    }
    join(own, actors_[source]);
    see_done(source, host);
  }
  void wait_for_event(std::size_t actor, std::size_t host, std::size_t source) {
    if (stream_devices_[actor] != stream_devices_[source]) {
      return wait_for_mark(actor, host, source);
    }
    const bool is_unrecorded = omits(Omission::record);
    say("s{} waits for an event of s{}{}", actor, source, is_unrecorded ? ", not recorded" : "");
    Event& event = events_.emplace_back(devices_[stream_devices_[source]]);
    on_host(host, [&] {
      if (!is_unrecorded) streams_[source].record(event);
      streams_[actor].wait(event);
    });
    if (!is_unrecorded) tick(source, host);
    tick(actor, host);
    if (!is_unrecorded) join(actors_[actor], actors_[source]);
    if (events_.size() == max_slots) events_.clear();
  }
  void wait_for_mark(std::size_t actor, std::size_t host, std::size_t source) {
    say("s{} waits for a mark of s{}", actor, source);
    on_host(host, [&] { streams_[actor].wait(streams_[source].mark()); });
    // If the mark is known to be done, there is nothing to submit.
    may_record(source, host);
    may_submit(actor, host);
    join(actors_[actor], actors_[source]);
  }

  // --- Steps

  void step() {
    const std::size_t host = any_host();
    switch (random_.below(14)) {
      case 0:
        if (blocks_.size() < max_blocks - 2) return allocate(host);
        return release(host);
      case 1:
      case 2:
      case 3:
        if (blocks_.size() == max_blocks) return release(host);
        return one_in(2) ? allocate(host) : release(host);
      case 4:
        return keep_mark(host);
      case 5:
        return use_mark(host);
      case 6:
        return use_on_host(host);
      default:
        return use(host);
    }
  }

  void add_pinned() {
    for (std::size_t i = 0; i < pinned_blocks; ++i) {
      Block block;
      block.is_pinned = true;
      block.begun = tick(host_actor(0), 0);
      block.address = static_cast<std::byte*>(
          devices_[0].allocate(MemoryKind::pinned, block.cells.size() * cell_bytes));
      blocks_.push_back(block);
    }
    // Threads are ordered after everything before their start.
    for (std::size_t i = 0; i < hosts_.size(); ++i) {
      order_hosts(host_actor(i + 1), i + 1, host_actor(0));
    }
  }

  void allocate(std::size_t host) {
    const std::size_t s = random_.below(streams_.size());
    Block block;
    block.device = stream_devices_[s];
    const auto try_allocate = [&] {
      const Result<void*> memory = streams_[s].try_allocate(block.cells.size() * cell_bytes);
      if (memory) block.address = static_cast<std::byte*>(*memory);
    };
    on_host(host, try_allocate);
    if (block.address == nullptr) {
      // Freed memory is available when its stream has reached the free.
      wait_for_device(host, block.device);
      on_host(host, try_allocate);
    }
    if (block.address == nullptr) return;
    block.begun = tick(s, host);
    say("b at {} = allocate on s{}", static_cast<void*>(block.address), s);
    blocks_.push_back(block);
    const bool is_reused = std::ranges::find(freed_, block.address) != freed_.end();
    // Memory of another stream orders this block and nothing else.
    if (is_reused) ++run_.reuses;
    if (is_reused && omits(Omission::wait_after_reuse)) use(host, s);
  }

  void release(std::size_t host) {
    const std::size_t number = random_.below(blocks_.size());
    Block& block = blocks_[number];
    if (block.is_pinned) return;
    std::size_t s = random_.below(streams_.size());
    while (stream_devices_[s] != block.device) s = random_.below(streams_.size());
    if (!omits(Omission::wait_before_release)) {
      order(s, host, block.begun);
      for (const Cell& cell : block.cells) order_behind(cell, true, s, host);
    }
    say("release b at {} on s{}", static_cast<void*>(block.address), s);
    note(ask(s, host, block.begun), "the release", s, block.begun);
    for (const Cell& cell : block.cells) judge(cell, true, s, host, "the release");
    tick(s, host);
    on_host(host, [&] { streams_[s].release(block.address); });
    freed_.push_back(block.address);
    blocks_.erase(blocks_.begin() + static_cast<std::ptrdiff_t>(number));
  }

  void order_behind(const Cell& cell, bool writes, std::size_t actor, std::size_t host) {
    order(actor, host, cell.writer);
    if (!writes) return;
    for (const Epoch& reader : cell.readers) order(actor, host, reader);
  }
  void judge(const Cell& cell, bool writes, std::size_t actor, std::size_t host, const char* what) {
    note(ask(actor, host, cell.writer), what, actor, cell.writer);
    if (!writes) return;
    for (const Epoch& reader : cell.readers) {
      note(ask(actor, host, reader), what, actor, reader);
    }
  }
  static void record(Cell& cell, bool writes, const Epoch& epoch) {
    if (writes) {
      cell = {epoch, {}, true};
    } else {
      cell.readers.push_back(epoch);
    }
  }

  /// A fill, or a copy from one cell to another. `unordered`: on this stream, without a wait.
  void use(std::size_t host, std::optional<std::size_t> unordered = {}) {
    Block& block = any_of(blocks_);
    const std::size_t device = block.device;
    const auto fits_block = [&](std::size_t stream) {
      return block.is_pinned || stream_devices_[stream] == device;
    };
    std::size_t s = unordered.value_or(random_.below(streams_.size()));
    while (!fits_block(s)) s = random_.below(streams_.size());
    const std::size_t to = random_.below(block.cells.size());
    Block* source = nullptr;
    std::size_t from = 0;
    if (one_in(2)) {
      source = &any_of(blocks_);
      from = random_.below(source->cells.size());
      const bool fits = source->cells[from].is_written && source != &block &&
                        (source->is_pinned || source->device == stream_devices_[s]);
      if (!fits) source = nullptr;
    }
    const bool is_unordered = unordered || omits(Omission::wait_of_a_stream);
    if (!is_unordered) {
      order(s, host, block.begun);
      order_behind(block.cells[to], true, s, host);
      if (source != nullptr) {
        order(s, host, source->begun);
        order_behind(source->cells[from], false, s, host);
      }
    }
    std::byte* const address = block.address + to * cell_bytes;
    say("s{} {} {} by host {}{}", s, source != nullptr ? "copies to" : "fills",
        static_cast<void*>(address), host, is_unordered ? ", unordered" : "");
    note(ask(s, host, block.begun), "a use", s, block.begun);
    judge(block.cells[to], true, s, host, "a write");
    if (source != nullptr) {
      note(ask(s, host, source->begun), "a use", s, source->begun);
      judge(source->cells[from], false, s, host, "a read");
    }
    const Epoch now = tick(s, host);
    on_host(host, [&] {
      if (source != nullptr) {
        streams_[s].copy(address, source->address + from * cell_bytes, cell_bytes);
      } else {
        streams_[s].fill(reinterpret_cast<std::uint8_t*>(address), cell_bytes, 1);
      }
    });
    record(block.cells[to], true, now);
    if (source != nullptr) record(source->cells[from], false, now);
  }

  void use_on_host(std::size_t host) {
    Block& block = blocks_[random_.below(pinned_blocks)];
    Cell& cell = any_of(block.cells);
    const bool writes = !cell.is_written || one_in(2);
    const std::size_t actor = host_actor(host);
    const bool is_unordered = omits(Omission::wait_of_the_host);
    if (!is_unordered) {
      order(actor, host, block.begun);
      order_behind(cell, writes, actor, host);
    }
    std::byte* const address =
        block.address + static_cast<std::size_t>(&cell - block.cells.data()) * cell_bytes;
    say("host {} {} {}{}", host, writes ? "writes" : "reads", static_cast<void*>(address),
        is_unordered ? ", unordered" : "");
    note(ask(actor, host, block.begun), "a use", actor, block.begun);
    judge(cell, writes, actor, host, writes ? "a write" : "a read");
    const Epoch now = tick(actor, host);
    on_host(host, [&] {
      if (writes) {
        sim::host_write(devices_[0], address, cell_bytes);
      } else {
        sim::host_read(devices_[0], address, cell_bytes);
      }
    });
    record(cell, writes, now);
  }

  /// Keeps a mark that is waited for later. It covers at least the work submitted now, and at most
  /// the work submitted then.
  void keep_mark(std::size_t host) {
    const std::size_t s = random_.below(streams_.size());
    Mark mark;
    on_host(host, [&] { mark = streams_[s].mark(); });
    marks_.push_back({s, mark, actors_[s].least});
    if (marks_.size() > max_slots) marks_.erase(marks_.begin());
    say("keep a mark of s{}", s);
  }
  void use_mark(std::size_t host) {
    if (marks_.empty()) return;
    const Kept& kept = any_of(marks_);
    const std::size_t s = random_.below(streams_.size());
    say("s{} waits for the mark of s{} that was kept", s, kept.stream);
    on_host(host, [&] { streams_[s].wait(kept.mark); });
    may_record(kept.stream, host);
    may_submit(s, host);
    if (s == kept.stream) return;
    join(actors_[s].least, kept.least);
    // The thread that records the event may know more.
    join(actors_[s].most, actors_[kept.stream].most);
    join(actors_[s].most, seen_done_[kept.stream]);
  }

  struct Kept {
    std::size_t stream = 0;
    Mark mark;
    Clock least = {};
  };

  const CheckedProgram& program_;
  Random random_;
  std::vector<Device> devices_;
  std::vector<Stream> streams_;
  std::vector<std::size_t> stream_devices_;
  std::vector<std::unique_ptr<HostThread>> hosts_;
  std::vector<Event> events_;
  std::vector<Order> actors_;
  std::vector<std::size_t> records_;  // by stream: events that the library may have recorded
  // By stream: upper bound of what hosts knew when they saw its marks complete.
  std::vector<Clock> seen_done_;
  std::vector<Block> blocks_;  // the first two are pinned
  std::vector<Kept> marks_;
  Timeline timeline_;
  std::uint64_t last_tag_ = 100, last_value_ = 0;
  Clock signalled_ = {};  // upper bound of what the last value of the timeline covers
  std::size_t omits_one_in_ = 1;
  std::vector<std::byte*> freed_;
  CheckedRun run_;
};

}  // namespace

CheckedRun CheckedProgram::run() const { return CheckedRunner(*this).run(); }

}  // namespace tern::tools
