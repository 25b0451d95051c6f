// claim() compares with the limits, collect_as() takes what dead tenants had, try_lock_contended()
// takes the lock from a dead holder, try_join() and leave() create and delete the file.

#include "memory/shared_segment.hpp"

#include <fcntl.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <limits>
#include <thread>
#include <utility>

#include "core/file_failure.hpp"
#include "core/file_limit_signal.hpp"
#include "core/process.hpp"
#include "core/fork_count.hpp"
#include "tern/core/bytes.hpp"

namespace tern {
namespace {

/// The word of the lock is 0, or names the holder: the number of its slot plus 1, and the
/// generation of the slot. A process that joins has no slot yet and is joiner_number.
constexpr std::uint32_t number_mask = 0xff, joiner_number = 0xff;
constexpr std::uint32_t generation_mask = 0x7f'ffff;
constexpr std::uint32_t waiters_bit = 0x8000'0000;
constexpr unsigned generation_shift = 8;
static_assert(shared_slots < joiner_number);

/// A claim has the lock for some hundred nanoseconds, so waiting begins without the kernel.
constexpr int first_yields = 64;
constexpr long wait_ns = 2'000'000;
/// How long a lock is waited for whose holder was waited for in vain before.
constexpr std::uint64_t stuck_patience_ns = 20'000'000;
constexpr std::uint64_t file_patience_ns = 10'000'000'000;

std::uint32_t holder_word(std::uint32_t number, std::uint32_t generation) noexcept {
  return number | (generation & generation_mask) << generation_shift;
}

std::uint64_t now_ns() noexcept {
  return static_cast<std::uint64_t>(
      std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count());
}

/// Waits until the word is not `seen` any more, a wake, or wait_ns.
void futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t seen) noexcept {
  const timespec limit = {.tv_sec = 0, .tv_nsec = wait_ns};
  syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAIT, seen, &limit, nullptr, 0);
}

void futex_wake_one(std::atomic<std::uint32_t>& word) noexcept {
  syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAKE, 1, nullptr, nullptr, 0);
}

/// Adds, and stays at the largest number. Only a damaged segment has such sums.
std::uint64_t add_capped(std::uint64_t a, std::uint64_t b) noexcept {
  return b > std::numeric_limits<std::uint64_t>::max() - a
             ? std::numeric_limits<std::uint64_t>::max()
             : a + b;
}

using NameWords = std::array<std::atomic<std::uint64_t>, shared_name_bytes / 8>;

void store_name(NameWords& into, std::string_view name) noexcept {
  std::array<char, shared_name_bytes> bytes = {};
  std::memcpy(bytes.data(), name.data(), std::min(name.size(), bytes.size()));
  for (std::size_t i = 0; i < into.size(); ++i) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data() + 8 * i, 8);
    into[i].store(word);
  }
}

/// The name of a slot. Fixed size, because failures must not allocate.
struct SlotName {
  std::array<char, shared_name_bytes> bytes;
  std::size_t length = 0;

  explicit SlotName(const NameWords& from) noexcept {
    for (std::size_t i = 0; i < from.size(); ++i) {
      const std::uint64_t word = from[i].load();
      std::memcpy(bytes.data() + 8 * i, &word, 8);
    }
    length = static_cast<std::size_t>(std::ranges::find(bytes, '\0') - bytes.begin());
  }
  [[nodiscard]] std::string_view text() const noexcept { return {bytes.data(), length}; }
};

bool is_printable(std::string_view text) noexcept {
  return std::ranges::none_of(
      text, [](char c) { return static_cast<unsigned char>(c) < ' ' || c == '\x7f'; });
}

Result<void> check_name(std::string_view name, const char* what) noexcept {
  if (!name.empty() && name.size() <= shared_name_bytes && is_printable(name) &&
      name.find('/') == std::string_view::npos) {
    return {};
  }
  return Failure(ErrorCode::invalid_argument,
                 "'{value}' cannot be the name of a {what}: a name has 1 to {max} bytes, and "
                 "neither '/' nor control characters. Choose another name.")
      .with("name", what)
      .with("what", what)
      .with("max", shared_name_bytes)
      .with("value", name.substr(0, 100));
}

std::string path_of(std::string_view name, const std::string& folder) {
  return folder + "/tern-budget-" + std::to_string(geteuid()) + "-" + std::string(name);
}

Failure damaged(std::string_view name, const char* why) noexcept {
  return Failure(ErrorCode::bad_format,
                 "'{path}' cannot be the file of shared budget '{shared}': {why}. End the tenants, "
                 "and delete the file.")
      .with("shared", name)
      .with("why", why);
}

ProcessIdentity process_of(const SharedSlot& slot) noexcept {
  return {slot.pid.load(), slot.start_ticks.load()};
}

}  // namespace

SharedSegment::SharedSegment(std::string path) noexcept
    : path_(std::move(path)), process_(process_generation()) {}

SharedSegment::~SharedSegment() {
  // A forked child has inherited the memory, and not the slot.
  if (has_entered_ && is_same_process(process_)) leave();
  if (header_ != nullptr) munmap(header_, shared_segment_bytes);
  if (file_ >= 0) close(file_);
}

// --- The file

Result<std::unique_ptr<SharedSegment>> SharedSegment::try_join(const JoinOptions& options) {
  if (Result<void> checked = check_name(options.name, "shared budget"); !checked) {
    return checked.failure();
  }
  if (Result<void> checked = check_name(options.tenant, "tenant"); !checked) {
    return checked.failure();
  }
  std::unique_ptr<SharedSegment> segment(
      new SharedSegment(path_of(options.name, options.folder)));
  if (Result<void> opened = segment->try_open(options.name, options.limit.has_value()); !opened) {
    return opened.failure();
  }
  Result<void> entered = segment->try_begin_or_check(options);
  if (entered) entered = segment->try_enter(options);
  segment->unlock_file();
  if (!entered) return entered.failure();
  return segment;
}

Result<std::unique_ptr<SharedSegment>> SharedSegment::try_inspect(std::string_view name,
                                                                  const std::string& folder) {
  if (Result<void> checked = check_name(name, "shared budget"); !checked) return checked.failure();
  std::unique_ptr<SharedSegment> segment(new SharedSegment(path_of(name, folder)));
  segment->file_ = open(segment->path_.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  const int code = errno;
  if (segment->file_ < 0 && code == ENOENT) {
    return Failure(ErrorCode::not_found,
                   "there is no shared budget '{shared}' of this user: '{path}' does not exist. "
                   "Check the name, or join it with a limit.")
        .with("shared", name)
        .with("path", segment->path_);
  }
  if (segment->file_ < 0) return file_failure(segment->path_, "open", code);
  Result<void> read = segment->try_check_file(name);
  if (read) read = segment->try_map(false);
  if (read && segment->header().magic.load() == 0) {
    read = damaged(name, "the process that created it ended early").with("path", segment->path_);
  }
  if (read) read = segment->try_check_content(name);
  if (!read) return read.failure();
  return segment;
}

Result<void> SharedSegment::try_open(std::string_view name, bool may_create) noexcept {
  const int flags = O_RDWR | O_CLOEXEC | O_NOFOLLOW | (may_create ? O_CREAT : 0);
  for (;;) {
    file_ = open(path_.c_str(), flags, 0600);
    const int code = errno;
    if (file_ < 0 && code == ENOENT && !may_create) {
      return Failure(ErrorCode::not_found,
                     "there is no shared budget '{shared}' of this user. Join it with a limit to "
                     "create it.")
          .with("shared", name)
          .with("path", path_);
    }
    if (file_ < 0) return file_failure(path_, "open", code);
    struct stat now = {};
    if (fstat(file_, &now) != 0) return file_failure(path_, "fstat", errno);
    if (now.st_uid != geteuid()) {
      return Failure(ErrorCode::file,
                     "'{path}' belongs to user {owner}, and this process runs as user {user}, so "
                     "the file cannot be shared budget '{shared}'. Have the owner delete the file, "
                     "or choose another name.")
          .with("shared", name)
          .with("owner", now.st_uid)
          .with("user", geteuid())
          .with("path", path_);
    }
    if (!try_lock_file()) {
      return Failure(ErrorCode::timeout,
                     "another process has been joining or leaving shared budget '{shared}' for "
                     "{timeout}. Continue the process if it is stopped, or end it. The process has "
                     "the file '{path}' open.")
          .with("shared", name)
          .with("timeout", file_patience_ns, Unit::nanoseconds)
          .with("path", path_);
    }
    if (fstat(file_, &now) != 0) return file_failure(path_, "fstat", errno);
    if (now.st_nlink != 0) return {};
    // The last tenant has deleted the file before this process had the lock.
    close(std::exchange(file_, -1));
  }
}

Result<void> SharedSegment::try_check_file(std::string_view name) const noexcept {
  struct stat now = {};
  if (fstat(file_, &now) != 0) return file_failure(path_, "fstat", errno);
  const char* why = nullptr;
  if (!S_ISREG(now.st_mode)) why = "it is not a regular file";
  if (now.st_uid != geteuid()) why = "it belongs to another user";
  if ((now.st_mode & 077) != 0) why = "other users can open it";
  if (now.st_size != static_cast<off_t>(shared_segment_bytes)) why = "it has the wrong size";
  if (why == nullptr) return {};
  return damaged(name, why).with("path", path_);
}

Result<void> SharedSegment::try_extend(std::string_view name) const noexcept {
  const FileLimitSignal blocked;
  // posix_fallocate() fails where a write to the mapped memory would end the process.
  int code = EINTR;
  while (code == EINTR) {
    code = posix_fallocate(file_, 0, static_cast<off_t>(shared_segment_bytes));
  }
  if (code == 0) return {};
  unlink_file();
  if (code != ENOSPC) return file_failure(path_, "posix_fallocate", code);
  return Failure(ErrorCode::file,
                 "shared budget '{shared}' needs {requested} of shared memory, and none is left "
                 "for '{path}'. Delete files in /dev/shm, or give it more memory.")
      .with("shared", name)
      .with_bytes("requested", shared_segment_bytes)
      .with("os_code", static_cast<std::uint64_t>(code))
      .with("path", path_);
}

Result<void> SharedSegment::try_map(bool may_write) noexcept {
  const int protection = may_write ? PROT_READ | PROT_WRITE : PROT_READ;
  void* const memory = mmap(nullptr, shared_segment_bytes, protection, MAP_SHARED, file_, 0);
  if (memory == MAP_FAILED) return file_failure(path_, "mmap", errno);
  header_ = static_cast<SharedHeader*>(memory);
  return {};
}

Result<void> SharedSegment::try_check_content(std::string_view name) const noexcept {
  const SharedHeader& now = header();
  if (now.magic.load() != SharedHeader::expected_magic) {
    return damaged(name, "its first bytes are wrong").with("path", path_);
  }
  if (now.version != SharedHeader::expected_version) {
    return Failure(ErrorCode::bad_format,
                   "shared budget '{shared}' was created by another version of Tern: its layout is "
                   "{version}, and this version reads layout {expected}. Use one version in all "
                   "processes, or another name.")
        .with("shared", name)
        .with("version", now.version)
        .with("expected", SharedHeader::expected_version)
        .with("path", path_);
  }
  const char* why = nullptr;
  if (now.slot_count != shared_slots || now.size_bytes != shared_segment_bytes) {
    why = "its header has wrong sizes";
  }
  if (now.slot_end.load() > shared_slots) why = "it has too many tenants";
  if (now.limit.load() > max_request_bytes) why = "its limit is too large";
  for (std::size_t i = 0; i < shared_slots; ++i) {
    const SharedSlot& slot = slots()[i];
    const std::uint32_t state = slot.state.load();
    if (state > SharedSlot::used) why = "a tenant has an unknown state";
    if (state != SharedSlot::used) continue;
    const SlotName tenant(slot.name);
    if (i >= now.slot_end.load() || slot.pid.load() == 0) why = "a tenant has no process";
    if (tenant.length == 0 || !is_printable(tenant.text())) why = "a tenant has no name";
    if (slot.charged.load() > max_request_bytes || slot.limit.load() > max_request_bytes) {
      why = "the bytes of a tenant exceed any memory";
    }
  }
  if (why == nullptr) return {};
  return damaged(name, why).with("path", path_);
}

void SharedSegment::begin(std::uint64_t limit, std::uint64_t namespaces) noexcept {
  std::memset(static_cast<void*>(header_), 0, shared_segment_bytes);
  header_->version = SharedHeader::expected_version;
  header_->slot_count = shared_slots;
  header_->size_bytes = shared_segment_bytes;
  header_->namespaces = namespaces;
  header_->limit.store(limit);
  header_->magic.store(SharedHeader::expected_magic);
}

Result<void> SharedSegment::try_begin_or_check(const JoinOptions& options) noexcept {
  const Result<std::uint64_t> namespaces = try_process_namespaces();
  if (!namespaces) return namespaces.failure();
  struct stat now = {};
  if (fstat(file_, &now) != 0) return file_failure(path_, "fstat", errno);
  if (now.st_size == 0) {
    if (Result<void> extended = try_extend(options.name); !extended) return extended;
  }
  if (Result<void> checked = try_check_file(options.name); !checked) return checked;
  if (Result<void> mapped = try_map(true); !mapped) return mapped;
  if (header().magic.load() == 0 && options.limit) {
    begin(*options.limit, *namespaces);
    return {};
  }
  if (Result<void> checked = try_check_content(options.name); !checked) return checked;
  if (header().namespaces == *namespaces) return {};
  return Failure(ErrorCode::unsupported,
                 "shared budget '{shared}' belongs to processes of another namespace (container), "
                 "whose ends this process cannot see. Run all tenants in one process and time "
                 "namespace, or use another name.")
      .with("shared", options.name)
      .with("what", "a shared budget across process namespaces")
      .with("path", path_);
}

bool SharedSegment::try_lock_file() const noexcept {
  const std::uint64_t end_ns = now_ns() + file_patience_ns;
  while (flock(file_, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) return false;
    if (now_ns() > end_ns) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

// A forked child may have a copy of the descriptor, and the lock belongs to both until one of them
// unlocks it.
void SharedSegment::unlock_file() const noexcept { flock(file_, LOCK_UN); }

void SharedSegment::unlink_file() const noexcept {
  struct stat own = {}, there = {};
  if (fstat(file_, &own) != 0 || lstat(path_.c_str(), &there) != 0) return;
  if (own.st_ino == there.st_ino && own.st_dev == there.st_dev) unlink(path_.c_str());
}

// --- Joining and leaving

Result<void> SharedSegment::try_enter(const JoinOptions& options) noexcept {
  const Result<ProcessIdentity> process = try_this_process();
  if (!process) return process.failure();
  header_->joiner_pid.store(process->pid);
  header_->joiner_start_ticks.store(process->start_ticks);
  const std::uint32_t joins = header_->joins.fetch_add(1) + 1;
  static_cast<void>(collect_as(holder_word(joiner_number, joins)));
  if (!has_tenant(false)) {
    if (!options.limit) {
      return Failure(ErrorCode::not_found,
                     "shared budget '{shared}' has no living tenant. Join it with a limit to "
                     "create it again.")
          .with("shared", options.name)
          .with("path", path_);
    }
    header_->limit.store(*options.limit);
    header_->peak.store(0);
  }
  unsigned free = 0;
  const auto is_used = [&](unsigned i) { return slots()[i].state.load() == SharedSlot::used; };
  for (unsigned i = 0; i < slot_end(); ++i) {
    if (!is_used(i) || SlotName(slots()[i].name).text() != options.tenant) continue;
    return Failure(ErrorCode::invalid_argument,
                   "shared budget '{shared}' has a tenant '{value}' already, in process {pid}. "
                   "Choose another name for this tenant.")
        .with("name", "tenant")
        .with("shared", options.name)
        .with("value", options.tenant)
        .with("pid", slots()[i].pid.load());
  }
  while (free < shared_slots && is_used(free)) ++free;
  if (free == shared_slots) {
    return Failure(ErrorCode::capacity,
                   "shared budget '{shared}' already has the maximum of {max} tenants. End a "
                   "tenant, or let several parts of a program share one tenant.")
        .with("shared", options.name)
        .with("max", shared_slots);
  }
  occupy(free, options, *process);
  return {};
}

void SharedSegment::occupy(unsigned slot, const JoinOptions& options,
                           ProcessIdentity process) noexcept {
  SharedSlot& own = slots()[slot];
  for (std::atomic<std::uint64_t>* one :
       {&own.charged, &own.peak, &own.asked, &own.answers, &own.evicted, &own.trimmed}) {
    one->store(0);
  }
  own.limit.store(options.tenant_limit);
  own.pid.store(process.pid);
  own.start_ticks.store(process.start_ticks);
  store_name(own.name, options.tenant);
  generation_ = own.generation.fetch_add(1) + 1;
  slot_ = slot;
  header_->slot_end.store(std::max(slot_end(), slot + 1));
  own.state.store(SharedSlot::used);
  has_entered_ = true;
}

bool SharedSegment::has_tenant(bool must_live) const noexcept {
  for (unsigned i = 0; i < slot_end(); ++i) {
    const SharedSlot& slot = slots()[i];
    if (slot.state.load() != SharedSlot::used) continue;
    if (!must_live || is_alive(process_of(slot))) return true;
  }
  return false;
}

void SharedSegment::leave() noexcept {
  const bool is_locked = try_lock_file();
  own().charged.store(0);
  own().state.store(SharedSlot::free);
  if (!is_locked) return;
  if (!has_tenant(true)) unlink_file();
  unlock_file();
}

// --- The lock

std::uint32_t SharedSegment::own_holder() const noexcept {
  return holder_word(slot_ + 1, generation_);
}

bool SharedSegment::is_holder_alive(std::uint32_t word) const noexcept {
  const std::uint32_t number = word & number_mask;
  const std::uint32_t generation = word >> generation_shift & generation_mask;
  if (number == joiner_number) {
    return (header_->joins.load() & generation_mask) == generation &&
           is_alive({header_->joiner_pid.load(), header_->joiner_start_ticks.load()});
  }
  if (number == 0 || number > shared_slots) return false;
  const SharedSlot& slot = slots()[number - 1];
  return (slot.generation.load() & generation_mask) == generation && is_alive(process_of(slot));
}

bool SharedSegment::try_lock(std::uint32_t holder) noexcept {
  std::uint32_t none = 0;
  return header_->lock.compare_exchange_strong(none, holder) || try_lock_contended(holder);
}

[[gnu::noinline]] bool SharedSegment::try_lock_contended(std::uint32_t holder) noexcept {
  std::atomic<std::uint32_t>& lock = header_->lock;
  for (int i = 0; i < first_yields; ++i) {
    std::uint32_t none = 0;
    if (lock.compare_exchange_strong(none, holder)) return true;
    sched_yield();
  }
  // From here on the word has the bit, so that whoever unlocks wakes the next one.
  const std::uint32_t waiting = holder | waiters_bit;
  const std::uint64_t begun_ns = now_ns();
  for (;;) {
    std::uint32_t word = lock.load();
    if (word == 0) {
      if (lock.compare_exchange_strong(word, waiting)) break;
      continue;
    }
    if ((word & waiters_bit) == 0 && !lock.compare_exchange_strong(word, word | waiters_bit)) {
      continue;
    }
    word |= waiters_bit;
    futex_wait(lock, word);
    if (lock.load() != word) continue;
    if (!is_holder_alive(word)) {
      if (!lock.compare_exchange_strong(word, waiting)) continue;
      // The dead holder may have added its bytes, and not yet raised the peak.
      raise_peak(sum());
      break;
    }
    const bool was_stuck = stuck_word_.load(std::memory_order_relaxed) == word;
    if (now_ns() - begun_ns < (was_stuck ? stuck_patience_ns : patience_ns_.load())) continue;
    stuck_word_.store(word, std::memory_order_relaxed);
    return false;
  }
  stuck_word_.store(0, std::memory_order_relaxed);
  return true;
}

void SharedSegment::unlock() noexcept {
  if ((header_->lock.exchange(0) & waiters_bit) != 0) futex_wake_one(header_->lock);
}

std::optional<ProcessIdentity> SharedSegment::lock_holder() const noexcept {
  const std::uint32_t word = header_->lock.load();
  const std::uint32_t number = word & number_mask;
  if (number == joiner_number) {
    return ProcessIdentity{header_->joiner_pid.load(), header_->joiner_start_ticks.load()};
  }
  if (number == 0 || number > shared_slots) return std::nullopt;
  return process_of(slots()[number - 1]);
}

// --- Claiming

unsigned SharedSegment::slot_end() const noexcept {
  return std::min(header_->slot_end.load(), static_cast<std::uint32_t>(shared_slots));
}

std::uint64_t SharedSegment::sum() const noexcept {
  std::uint64_t total = 0;
  for (unsigned i = 0; i < slot_end(); ++i) {
    // A free slot has no bytes. While its state changes, either answer is right.
    if (slots()[i].state.load() == SharedSlot::used) {
      total = add_capped(total, slots()[i].charged.load());
    }
  }
  return total;
}

void SharedSegment::raise_peak(std::uint64_t total) noexcept {
  if (header_->peak.load() < total) header_->peak.store(total);
}

SharedClaim SharedSegment::claim(std::uint64_t bytes) noexcept {
  if (!try_lock(own_holder())) return SharedClaim::timed_out;
  std::uint64_t total = sum();
  const std::uint64_t limit = header_->limit.load();
  const std::uint64_t charged = own().charged.load(), own_limit = own().limit.load();
  SharedClaim result = SharedClaim::granted;
  if (charged > own_limit || bytes > own_limit - charged) {
    result = SharedClaim::over_tenant_limit;
  } else if (total > limit || bytes > limit - total) {
    result = SharedClaim::over_limit;
  } else {
    if (header_->peak.load() < total + bytes) {
      // Releases do not take the lock, so counters may have fallen while they were added up. They
      // only fall, so a sum that is found twice was the sum at one moment.
      for (std::uint64_t again = sum(); again != total; again = sum()) total = again;
    }
    // A reader that finds the same number twice has seen no claim come in between.
    header_->claims.fetch_add(1);
    const std::uint64_t reached = own().charged.fetch_add(bytes) + bytes;
    if (own().peak.load() < reached) own().peak.store(reached);
    raise_peak(total + bytes);
  }
  unlock();
  return result;
}

std::uint64_t SharedSegment::charged() const noexcept {
  constexpr int max_attempts = 1000;
  for (int i = 0;; ++i) {
    // Between two claims the counters only fall, so a sum taken there is not above the one at its
    // beginning. A sum during claims could count bytes twice that one tenant releases and another
    // one claims.
    const std::uint64_t claims = header_->claims.load();
    const std::uint64_t total = sum();
    if (header_->claims.load() == claims || i == max_attempts) return total;
  }
}

std::uint64_t SharedSegment::collect() noexcept { return collect_as(own_holder()); }

std::uint64_t SharedSegment::collect_as(std::uint32_t holder) noexcept {
  // Files are read without the lock. A slot that has changed since is left alone: its generation is
  // another one.
  std::array<std::uint32_t, shared_slots> dead_generations = {};
  bool has_dead = false;
  for (unsigned i = 0; i < slot_end(); ++i) {
    const SharedSlot& slot = slots()[i];
    const std::uint32_t generation = slot.generation.load();
    if (slot.state.load() != SharedSlot::used || (has_entered_ && i == slot_)) continue;
    if (is_alive(process_of(slot)) || slot.generation.load() != generation) continue;
    dead_generations[i] = generation;
    has_dead = true;
  }
  if (!has_dead || !try_lock(holder)) return 0;
  std::uint64_t freed = 0;
  for (unsigned i = 0; i < slot_end(); ++i) {
    SharedSlot& slot = slots()[i];
    if (dead_generations[i] == 0 || slot.generation.load() != dead_generations[i]) continue;
    if (slot.state.load() != SharedSlot::used) continue;
    freed = add_capped(freed, slot.charged.exchange(0));
    slot.state.store(SharedSlot::free);
  }
  unlock();
  return freed;
}

bool SharedSegment::try_set_limit(std::uint64_t bytes) noexcept {
  if (!try_lock(own_holder())) return false;
  header_->limit.store(bytes);
  unlock();
  return true;
}

bool SharedSegment::try_set_limit(const SharedRow& tenant, std::uint64_t bytes) noexcept {
  if (!try_lock(own_holder())) return false;
  SharedSlot& slot = slots()[tenant.slot];
  if (slot.generation.load() == tenant.generation) slot.limit.store(bytes);
  unlock();
  return true;
}

void SharedSegment::ask(const SharedRow& tenant, std::uint64_t bytes) noexcept {
  std::atomic<std::uint64_t>& asked = slots()[tenant.slot].asked;
  std::uint64_t before = asked.load();
  while (!asked.compare_exchange_weak(before, add_capped(before, bytes))) {
  }
}

// --- Reading

std::vector<SharedRow> SharedSegment::rows() const {
  std::vector<SharedRow> all;
  for (unsigned i = 0; i < slot_end(); ++i) {
    const SharedSlot& slot = slots()[i];
    const std::uint32_t generation = slot.generation.load();
    if (slot.state.load() != SharedSlot::used) continue;
    SharedRow row = {.slot = i,
                     .generation = generation,
                     .process = process_of(slot),
                     .name = std::string(SlotName(slot.name).text()),
                     .charged = slot.charged.load(),
                     .peak = slot.peak.load(),
                     .limit = slot.limit.load(),
                     .asked = slot.asked.load(),
                     .answers = slot.answers.load(),
                     .evicted = slot.evicted.load(),
                     .trimmed = slot.trimmed.load()};
    // Another tenant may have got the slot meanwhile.
    if (slot.generation.load() == generation && slot.state.load() == SharedSlot::used) {
      all.push_back(std::move(row));
    }
  }
  return all;
}

}  // namespace tern
