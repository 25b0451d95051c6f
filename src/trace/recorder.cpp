// Recordings: the definitions of what events name, the log of each thread, and starting and
// stopping them.

#include "tern/trace/recorder.hpp"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/fork_count.hpp"
#include "core/no_host_memory.hpp"
#include "core/process.hpp"
#include "core/text.hpp"
#include "tern/core/bytes.hpp"
#include "tern/detail/core/config.hpp"
#include "tern/detail/core/mutex.hpp"
#include "trace/nvtx.hpp"
#include "trace/recording.hpp"
#include "trace/slabs.hpp"

namespace tern::trace {
namespace {

constexpr std::size_t min_ring_bytes = 1 * mib;
/// After a slab could not be claimed, this many events are lost before the next attempt.
constexpr std::uint32_t events_between_attempts = 4096;

std::string with_process_id(const std::string& path) {
  std::string expanded = path;
  const std::string number = std::to_string(getpid());
  for (std::size_t at = 0; (at = expanded.find("%p", at)) != expanded.npos; at += number.size()) {
    expanded.replace(at, 2, number);
  }
  return expanded;
}

}  // namespace

/// One recording. Never destroyed, because threads may be writing to it when it stops.
class Recording {
 public:
  Recording(std::unique_ptr<SlabStore> slabs, Recording* older) noexcept
      : process(process_generation()),
        number_(older != nullptr ? older->number_ + 1 : 1),
        slabs_(std::move(slabs)),
        older_(older) {}

  const std::uint64_t process;

  [[nodiscard]] SlabStore& slabs() noexcept { return *slabs_; }
  [[nodiscard]] std::uint32_t next_thread() noexcept {
    return threads_.fetch_add(1, std::memory_order_relaxed) + 1;
  }

  /// Defines a tag, device, resource or kernel unless its number is 0 or defined.
  void define(DefinitionKind kind, const Named& named, std::uint32_t device = 0) noexcept {
    if (!is_defined(kind, named.number)) define_now(kind, named, device);
  }
  [[nodiscard]] bool is_defined(DefinitionKind kind, std::uint32_t number) const noexcept {
    return number == 0 || numbers_[static_cast<std::size_t>(kind)].has(number);
  }
  /// Returns the number of a text, or 0 if it cannot be defined.
  [[nodiscard]] std::uint32_t text(std::string_view text) noexcept try {
    const std::lock_guard lock(mutex_);
    const auto [at, is_new] = texts_.try_emplace(std::string(text), last_text_ + 1);
    if (!is_new) return at->second;
    if (append({DefinitionKind::text, 0, 0, last_text_ + 1, 0, 0}, text)) return ++last_text_;
    texts_.erase(at);
    return 0;
  } catch (const std::bad_alloc&) {
    return 0;
  }
  /// Like text(), but takes no lock if the cache has the number.
  [[nodiscard]] std::uint32_t text(std::string_view text, TextCache& cache) noexcept {
    const std::uint64_t known = cache.known_.load(std::memory_order_relaxed);
    if (known >> 32 == number_) return static_cast<std::uint32_t>(known);
    const std::uint32_t number = this->text(text);
    if (number != 0) {
      cache.known_.store(std::uint64_t{number_} << 32 | number, std::memory_order_relaxed);
    }
    return number;
  }
  [[nodiscard]] std::uint32_t site(const CallSite& site) noexcept try {
    const std::lock_guard lock(mutex_);
    const auto [at, is_new] = sites_.try_emplace({site.file, site.line}, last_site_ + 1);
    if (!is_new) return at->second;
    if (append({DefinitionKind::site, 0, 0, last_site_ + 1, site.line, 0}, site.file)) {
      return ++last_site_;
    }
    sites_.erase(at);
    return 0;
  } catch (const std::bad_alloc&) {
    return 0;
  }

  /// Call with the lock of all recordings held.
  static void notify_listeners(bool is_on) noexcept;
  static void add(RecordingListener& listener) noexcept;
  static void remove(RecordingListener& listener) noexcept;

 private:
  /// Numbers below 65,536 that were defined.
  class Numbers {
   public:
    [[nodiscard]] bool has(std::uint32_t number) const noexcept {
      return number >= bits ||
             (words_[number / 64].load(std::memory_order_acquire) >> (number % 64) & 1) != 0;
    }
    void add(std::uint32_t number) noexcept {
      words_[number / 64].fetch_or(std::uint64_t{1} << number % 64, std::memory_order_release);
    }

   private:
    static constexpr std::uint32_t bits = 65536;
    std::array<std::atomic<std::uint64_t>, bits / 64> words_ = {};
  };

  [[gnu::noinline, gnu::cold]] void define_now(DefinitionKind kind, const Named& named,
                                               std::uint32_t device) noexcept {
    Numbers& defined = numbers_[static_cast<std::size_t>(kind)];
    const std::lock_guard lock(mutex_);
    if (defined.has(named.number)) return;
    if (append({kind, named.detail, 0, named.number, 0, device}, named.text)) {
      defined.add(named.number);
    }
  }
  /// Writes a definition. Call with mutex_ held.
  bool append(Definition definition, std::string_view text) noexcept {
    text = text.substr(0, utf8_prefix_bytes(text, max_text_bytes));
    definition.text_bytes = static_cast<std::uint16_t>(text.size());
    const std::size_t need = definition_bytes(text.size());
    if (!texts_slab_ || texts_used_ + need > slab_text_bytes) {
      if (definitions_to_lose_ > 0) {
        --definitions_to_lose_;
        return false;
      }
      const std::optional<Slab> claimed = slabs_->claim(SlabKind::definitions, 0);
      if (!claimed) {
        definitions_to_lose_ = events_between_attempts;
        return false;
      }
      if (texts_slab_) slabs_->release(*texts_slab_);
      texts_slab_ = claimed;
      texts_used_ = 0;
    }
    std::byte* const to = texts_slab_->contents() + texts_used_;
    std::memcpy(to, &definition, sizeof definition);
    std::memcpy(to + sizeof definition, text.data(), text.size());
    texts_used_ += need;
    texts_slab_->used().store(texts_used_, std::memory_order_release);
    return true;
  }

  const std::uint32_t number_;  // of the recordings of this process, from 1
  const std::unique_ptr<SlabStore> slabs_;
  [[maybe_unused]] Recording* const older_;
  std::atomic<std::uint32_t> threads_ = 0;
  std::array<Numbers, definition_kinds> numbers_ = {};
  Mutex mutex_;
  std::unordered_map<std::string, std::uint32_t> texts_;  // guarded by mutex_, as are those below
  std::map<std::pair<const char*, std::uint32_t>, std::uint32_t> sites_;
  std::uint32_t last_text_ = 0, last_site_ = 0, definitions_to_lose_ = 0;
  std::optional<Slab> texts_slab_;
  std::size_t texts_used_ = 0;
};

namespace {

/// Held while a recording starts or stops, and while the list of listeners changes.
constinit Mutex recordings_mutex;
constinit RecordingListener* first_listener = nullptr;  // guarded by recordings_mutex

/// Locks recordings_mutex. The forking thread locks it before the fork, so the child can unlock it.
class RecordingsLock {
 public:
  RecordingsLock() noexcept {
    static const int installed =
        pthread_atfork([] { recordings_mutex.lock(); }, [] { recordings_mutex.unlock(); },
                       [] { recordings_mutex.unlock(); });
    static_cast<void>(installed);
    recordings_mutex.lock();
  }
  ~RecordingsLock() { recordings_mutex.unlock(); }
  RecordingsLock(const RecordingsLock&) = delete;
  RecordingsLock& operator=(const RecordingsLock&) = delete;
};

/// What a thread keeps between events.
class ThreadLog {
 public:
  ~ThreadLog() { leave(); }

  /// Makes the log write to this recording.
  void join(Recording& recording) noexcept {
    leave();
    recording_ = &recording;
    thread_ = recording.next_thread();
    sites_ = {};
    // A claim fails if the recording before ends meanwhile.
    events_to_lose_ = 0;
  }
  [[nodiscard]] bool is_of(const Recording& recording) const noexcept {
    return recording_ == &recording;
  }
  void put(const MemoryEvent& event) noexcept {
    if (!slab_ || used_ == slab_events) {
      if (!try_next_slab()) return recording_->slabs().note_lost(1);
    }
    slab_->put(used_++, event);
  }
  [[nodiscard]] std::uint32_t site(const CallSite& site) noexcept {
    if (!site.is_known()) return 0;
    const std::size_t at =
        (reinterpret_cast<std::uintptr_t>(site.file) / 16 + site.line * 31) % sites_.size();
    KnownSite& known = sites_[at];
    if (known.file != site.file || known.line != site.line) {
      known = {site.file, site.line, recording_->site(site)};
    }
    return known.number;
  }

 private:
  struct KnownSite {
    const char* file = nullptr;
    std::uint32_t line = 0;
    std::uint32_t number = 0;
  };

  void leave() noexcept {
    // In a forked child the slab may be in use by the parent; unmapping a copy is harmless, and a
    // ring is the child's own.
    if (recording_ != nullptr && slab_) recording_->slabs().release(*slab_);
    slab_.reset();
    recording_ = nullptr;
  }
  bool try_next_slab() noexcept {
    if (events_to_lose_ > 0) {
      --events_to_lose_;
      return false;
    }
    const std::optional<Slab> next = recording_->slabs().claim(SlabKind::events, thread_);
    if (!next) {
      events_to_lose_ = events_between_attempts;
      return false;
    }
    if (slab_) recording_->slabs().release(*slab_);
    slab_ = next;
    used_ = 0;
    return true;
  }

  Recording* recording_ = nullptr;
  std::uint32_t thread_ = 0;
  std::optional<Slab> slab_;
  std::uint64_t used_ = 0;
  std::uint32_t events_to_lose_ = 0;
  std::array<KnownSite, 256> sites_ = {};
};

/// Null before the first event of the thread. Events that a destructor of another thread_local
/// object causes after the log has ended are lost.
constinit thread_local ThreadLog* thread_log = nullptr;
constinit thread_local bool has_thread_ended = false;

struct ThreadLogOwner {
  std::unique_ptr<ThreadLog> log;
  ~ThreadLogOwner() {
    thread_log = nullptr;
    has_thread_ended = true;
  }
};

[[gnu::noinline, gnu::cold]] ThreadLog* make_thread_log() noexcept {
  if (has_thread_ended) return nullptr;
  static thread_local ThreadLogOwner owner;
  owner.log.reset(new (std::nothrow) ThreadLog);
  thread_log = owner.log.get();
  return thread_log;
}

Failure already_recording() noexcept {
  return Failure(ErrorCode::invalid_argument,
                 "this process is recording already. Call trace::stop() first.")
      .with("name", "recording");
}

/// The recording of this process, not of the process that it was forked from.
Recording* own_recording() noexcept {
  Recording* const recording = current_recording.load(std::memory_order_acquire);
  return recording != nullptr && is_same_process(recording->process) ? recording : nullptr;
}

/// Call with recordings_mutex held.
Result<void> begin(Result<std::unique_ptr<SlabStore>> slabs) {
  if (!slabs) return slabs.failure();
  // A list of all recordings, so that a leak checker finds those that have ended.
  static constinit Recording* newest = nullptr;
  auto* const made = new Recording(*std::move(slabs), newest);
  newest = made;
  current_recording.store(made, std::memory_order_release);
  Recording::notify_listeners(true);
  return {};
}

}  // namespace

void Recording::notify_listeners(bool is_on) noexcept {
  for (RecordingListener* one = first_listener; one != nullptr; one = one->next_) {
    one->recording_changed(is_on);
  }
}

void Recording::add(RecordingListener& listener) noexcept {
  const RecordingsLock lock;
  listener.next_ = first_listener;
  if (first_listener != nullptr) first_listener->previous_ = &listener;
  first_listener = &listener;
  listener.recording_changed(is_recording());
}

void Recording::remove(RecordingListener& listener) noexcept {
  const RecordingsLock lock;
  (listener.previous_ != nullptr ? listener.previous_->next_ : first_listener) = listener.next_;
  if (listener.next_ != nullptr) listener.next_->previous_ = listener.previous_;
}

void RecordingListener::start_listening() noexcept { Recording::add(*this); }
void RecordingListener::stop_listening() noexcept { Recording::remove(*this); }

std::uint32_t new_number() noexcept {
  static constinit std::atomic<std::uint32_t> last = 0;
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

void record(EventKind kind, const EventFacts& facts) noexcept {
  Recording* const recording = own_recording();
  if (recording == nullptr) return;
  ThreadLog* const log = thread_log != nullptr ? thread_log : make_thread_log();
  if (log == nullptr) return recording->slabs().note_lost(1);
  if (!log->is_of(*recording)) log->join(*recording);
  if (!recording->is_defined(DefinitionKind::tag, facts.tag.number())) {
    recording->define(DefinitionKind::tag, {facts.tag.number(), facts.tag.name()});
  }
  recording->define(DefinitionKind::device, facts.device);
  recording->define(DefinitionKind::resource, facts.resource, facts.device.number);
  recording->define(DefinitionKind::kernel, facts.kernel);
  MemoryEvent event;
  event.time_ns = facts.time_ns != 0 ? facts.time_ns : now_ns();
  event.stream = facts.stream;
  event.block = facts.block;
  event.address = facts.address;
  event.bytes = facts.bytes;
  event.extra = facts.extra;
  if (!facts.text.empty()) {
    event.extra = facts.text_cache != nullptr ? recording->text(facts.text, *facts.text_cache)
                                              : recording->text(facts.text);
  }
  if (facts.kernel.number != 0) event.extra = facts.kernel.number;
  event.site = log->site(facts.site);
  event.resource = facts.resource.number;
  event.device = facts.device.number;
  event.tag = facts.tag.number();
  event.kind = kind;
  event.detail = facts.detail;
  log->put(event);
}

Result<void> try_start(const std::string& path) noexcept try {
  const RecordingsLock lock;
  if (own_recording() != nullptr) return already_recording();
  return begin(try_open_slabs(with_process_id(path)));
} catch (const std::bad_alloc&) {
  return no_host_memory("a recording");
}

void start(const std::string& path, CallSite site) { try_start(path).value(site); }

Result<void> try_start_ring(std::size_t bytes) noexcept try {
  if (bytes < min_ring_bytes) {
    return Failure(ErrorCode::invalid_argument,
                   "a ring of {value} is too small for a recording. Give it at least {min}.")
        .with("name", "bytes")
        .with_bytes("value", bytes)
        .with_bytes("min", min_ring_bytes);
  }
  const RecordingsLock lock;
  if (own_recording() != nullptr) return already_recording();
  return begin(try_make_ring(bytes));
} catch (const std::bad_alloc&) {
  return no_host_memory(bytes, "the ring of a recording");
}

void start_ring(std::size_t bytes, CallSite site) { try_start_ring(bytes).value(site); }

Result<void> try_dump(const std::string& path) noexcept try {
  const RecordingsLock lock;
  Recording* const recording = own_recording();
  if (recording == nullptr || !recording->slabs().is_ring()) {
    return Failure(ErrorCode::invalid_argument,
                   "there is no ring to write to '{value}'. Call trace::start_ring() first.")
        .with("name", "path")
        .with("value", path);
  }
  return recording->slabs().try_dump(with_process_id(path));
} catch (const std::bad_alloc&) {
  return no_host_memory(slab_bytes, "a copy of the ring");
}

void dump(const std::string& path, CallSite site) { try_dump(path).value(site); }

void stop() noexcept {
  const RecordingsLock lock;
  Recording* const recording = own_recording();
  if (recording == nullptr) return;
  current_recording.store(nullptr, std::memory_order_release);
  Recording::notify_listeners(false);
  recording->slabs().close();
}

namespace {

/// The file that a ring is written to after a failure. Empty without TERN_TRACE=ring:...
std::string& failure_path() {
  static std::string& path = *new std::string;
  return path;
}

void start_as_configured(const std::string& setting) {
  constexpr std::string_view ring = "ring:", usual_path = "tern-%p.trace";
  if (!setting.starts_with(ring)) {
    Result<void> started = try_start(setting);
    // Another process of the same program, such as a worker, has the path.
    if (!started && started.failure().code() == ErrorCode::invalid_argument) {
      started = try_start(setting + ".%p");
    }
    return started.value();
  }
  const std::string rest = setting.substr(ring.size());
  const std::size_t colon = rest.find(':');
  const Result<std::uint64_t> bytes = try_parse_bytes(rest.substr(0, colon));
  if (!bytes) {
    raise(
        Failure(ErrorCode::invalid_argument,
                "{name}='{value}' is not accepted: a ring needs a size. Set it to ring:64MiB, for "
                "example.")
            .with("name", "TERN_TRACE")
            .with("value", setting));
  }
  // Before the ring, because other threads read the path once there is one.
  failure_path() = colon == rest.npos ? usual_path : rest.substr(colon + 1);
  start_ring(*bytes);
}

}  // namespace

void start_from_environment() {
  static const bool is_done = [] {
    // config() reports an invalid configuration to its next caller. A recording of the program is
    // left alone.
    const Result<const Config*> known = try_config();
    if (!known || (*known)->trace.empty() || own_recording() != nullptr) return true;
    start_as_configured((*known)->trace);
    std::atexit(stop);
    return true;
  }();
  static_cast<void>(is_done);
}

void dump_after_failure() noexcept {
  constexpr std::uint64_t max_pause_ns = 60'000'000'000;
  static constinit std::atomic<std::uint64_t> next_ns = 0, pause_ns = 1'000'000'000;
  Recording* const recording = own_recording();
  if (recording == nullptr || !recording->slabs().is_ring() || failure_path().empty()) return;
  std::uint64_t due = next_ns.load(std::memory_order_relaxed);
  const std::uint64_t now = now_ns();
  if (now < due) return;
  const std::uint64_t pause = pause_ns.load(std::memory_order_relaxed);
  if (!next_ns.compare_exchange_strong(due, now + pause)) return;  // another thread writes
  pause_ns.store(std::min(2 * pause, max_pause_ns), std::memory_order_relaxed);
  static_cast<void>(try_dump(failure_path()));
}

std::optional<std::uint64_t> lost_events() noexcept {
  Recording* const recording = own_recording();
  if (recording == nullptr) return std::nullopt;
  return recording->slabs().lost();
}

Range::Range(const std::string& name, CallSite site) noexcept : is_recorded_(is_recording()) {
  if (is_recorded_) record(EventKind::range_begin, {.site = site, .text = name});
  push_profiler_range(name.c_str());
}

Range::~Range() {
  pop_profiler_range();
  if (is_recorded_) record(EventKind::range_end, {});
}

}  // namespace tern::trace
