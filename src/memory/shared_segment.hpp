// A SharedSegment is the memory of a shared budget: a file of fixed size in /dev/shm that the
// processes of one user map. SharedBudget is the interface for programs.
//
// Layout: a SharedHeader and shared_slots SharedSlots, one per tenant. The segment has no pointers
// and no total. These invariants hold at every instruction, so a process can be killed anywhere:
//
//   1. The charge of a tenant is one counter in its slot, `charged`. The total is the sum of the
//      counters of all slots in use. Nothing else has to agree with it.
//   2. `charged` grows only under the lock, by an amount for which the sum had room. Releasing
//      subtracts from the own counter, without the lock. So the sum never exceeds the limit, and
//      under the lock it only falls.
//   3. The lock protects nothing that has to be repaired: a claim changes the slot in one atomic
//      addition, at its end. So the lock of a dead holder is simply taken over. The lock names its
//      holder: slot and generation.
//   4. A slot is in use from the store of its state on, which is the last store of a join. A slot is
//      freed only by its owner, or under the lock after its owner has died: first `charged`, then
//      the state. Both stores may be repeated.
//   5. The file is created, joined and deleted under its flock(), which the kernel drops when the
//      holder dies. `magic` is stored last, so a segment without it was never finished.
//
// Everything read from the segment is checked before it is used as an index or a length, so a
// damaged segment leads to wrong numbers at worst. All functions are thread-safe.

#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "memory/process_life.hpp"
#include "tern/core/result.hpp"

namespace tern {

inline constexpr std::size_t shared_slots = 128;
inline constexpr std::size_t shared_name_bytes = 64;  // the longest name of a tenant

struct alignas(128) SharedSlot {
  enum State : std::uint32_t { free = 0, used = 1 };

  std::atomic<std::uint64_t> charged;
  std::atomic<std::uint64_t> peak;   // written under the lock
  std::atomic<std::uint64_t> limit;  // max_request_bytes: none
  std::atomic<std::uint64_t> asked;  // bytes of requests to shrink that are not answered yet
  std::atomic<std::uint32_t> state;
  std::atomic<std::uint32_t> generation;  // counts the tenants of this slot
  std::atomic<std::uint64_t> answers, evicted, trimmed;
  // Written by a join, while the slot is free.
  alignas(128) std::atomic<std::uint64_t> pid;
  std::atomic<std::uint64_t> start_ticks;
  std::array<std::atomic<std::uint64_t>, shared_name_bytes / 8> name;  // padded with zeros
};

struct alignas(128) SharedHeader {
  static constexpr std::uint64_t expected_magic = 0x5445'524e'4255'4447;  // "TERNBUDG"
  static constexpr std::uint32_t expected_version = 1;

  std::atomic<std::uint64_t> magic;
  std::uint32_t version;
  std::uint32_t slot_count;
  std::uint64_t size_bytes;
  std::uint64_t namespaces;  // try_process_namespaces() of the creator
  // The process that creates, joins or leaves, while it has the flock().
  std::atomic<std::uint64_t> joiner_pid, joiner_start_ticks;
  std::atomic<std::uint32_t> joins;
  // Changed by every claim.
  alignas(128) std::atomic<std::uint32_t> lock;
  std::atomic<std::uint32_t> slot_end;  // slots from here on were never used
  std::atomic<std::uint64_t> limit;     // max_request_bytes: none
  std::atomic<std::uint64_t> peak;
  std::atomic<std::uint64_t> claims;
};

static_assert(std::atomic<std::uint64_t>::is_always_lock_free);
inline constexpr std::size_t shared_segment_bytes =
    sizeof(SharedHeader) + shared_slots * sizeof(SharedSlot);

/// A copy of one slot.
struct SharedRow {
  unsigned slot = 0;
  std::uint32_t generation = 0;
  ProcessIdentity process = {};
  std::string name = {};
  std::uint64_t charged = 0, peak = 0, limit = 0, asked = 0, answers = 0, evicted = 0, trimmed = 0;
};

/// The result of a claim.
enum class SharedClaim : std::uint8_t { granted, over_limit, over_tenant_limit, timed_out };

class SharedSegment {
 public:
  /// The folder of all segments, except in tests.
  static constexpr const char* usual_folder = "/dev/shm";
  /// How long a claim waits for the lock while its holder is alive.
  static constexpr std::uint64_t usual_patience_ns = 1'000'000'000;

  struct JoinOptions {
    std::string_view name = {};    // of the budget
    std::string_view tenant = {};  // a name that no living tenant has
    std::optional<std::uint64_t> limit = {};  // empty: the segment must exist
    std::uint64_t tenant_limit = 0;
    std::string folder = usual_folder;
  };
  /// Opens or creates the segment and enters the tenant. Collects dead tenants first; if nobody is
  /// alive, the limit and the peak start anew. Throws std::bad_alloc.
  [[nodiscard]] static Result<std::unique_ptr<SharedSegment>> try_join(const JoinOptions& options);
  /// Maps an existing segment to read it. Only rows(), charged(), limit() and peak() may be called.
  [[nodiscard]] static Result<std::unique_ptr<SharedSegment>> try_inspect(
      std::string_view name, const std::string& folder = usual_folder);
  SharedSegment(const SharedSegment&) = delete;
  SharedSegment& operator=(const SharedSegment&) = delete;
  /// Leaves the segment, and deletes the file if no living tenant is left. In a forked child, only
  /// unmaps the memory.
  ~SharedSegment();

  // --- Claiming. Not in a forked child.

  [[nodiscard]] SharedClaim claim(std::uint64_t bytes) noexcept;
  /// Never waits.
  void release(std::uint64_t bytes) noexcept { own().charged.fetch_sub(bytes); }
  /// Frees the slots of dead processes and returns the bytes that they had charged. Each byte is
  /// returned once, whoever collects at the same time.
  std::uint64_t collect() noexcept;
  /// Sets the limit of all tenants together. No claim is granted above it once the call returns.
  /// Returns false if the lock could not be had in time.
  [[nodiscard]] bool try_set_limit(std::uint64_t bytes) noexcept;
  /// Sets the limit of one tenant.
  [[nodiscard]] bool try_set_limit(const SharedRow& tenant, std::uint64_t bytes) noexcept;
  /// Adds bytes to what the tenant is asked for.
  void ask(const SharedRow& tenant, std::uint64_t bytes) noexcept;

  // --- Reading

  /// The sum of all tenants, never more than was charged at one moment.
  [[nodiscard]] std::uint64_t charged() const noexcept;
  [[nodiscard]] std::uint64_t limit() const noexcept { return header().limit.load(); }
  [[nodiscard]] std::uint64_t peak() const noexcept { return header().peak.load(); }
  [[nodiscard]] SharedSlot& own() noexcept { return slots()[slot_]; }
  [[nodiscard]] const SharedSlot& own() const noexcept { return slots()[slot_]; }
  /// The tenants, in the order of their slots. Throws std::bad_alloc.
  [[nodiscard]] std::vector<SharedRow> rows() const;
  /// The process that has the lock now, if any.
  [[nodiscard]] std::optional<ProcessIdentity> lock_holder() const noexcept;

  void set_patience_ns(std::uint64_t patience_ns) noexcept { patience_ns_.store(patience_ns); }
  [[nodiscard]] SharedHeader& header() const noexcept { return *header_; }
  [[nodiscard]] SharedSlot* slots() const noexcept {
    return reinterpret_cast<SharedSlot*>(header_ + 1);
  }
  [[nodiscard]] const std::string& path() const noexcept { return path_; }
  [[nodiscard]] unsigned slot() const noexcept { return slot_; }

 private:
  explicit SharedSegment(std::string path) noexcept;

  /// Opens the file and waits for its flock().
  [[nodiscard]] Result<void> try_open(std::string_view name, bool may_create) noexcept;
  [[nodiscard]] Result<void> try_check_file(std::string_view name) const noexcept;
  /// Gives a new file its size.
  [[nodiscard]] Result<void> try_extend(std::string_view name) const noexcept;
  [[nodiscard]] Result<void> try_map(bool may_write) noexcept;
  [[nodiscard]] Result<void> try_check_content(std::string_view name) const noexcept;
  /// Writes the header of a new segment.
  void begin(std::uint64_t limit, std::uint64_t namespaces) noexcept;
  [[nodiscard]] Result<void> try_begin_or_check(const JoinOptions& options) noexcept;
  [[nodiscard]] Result<void> try_enter(const JoinOptions& options) noexcept;
  void occupy(unsigned slot, const JoinOptions& options, ProcessIdentity process) noexcept;
  [[nodiscard]] bool try_lock_file() const noexcept;
  void unlock_file() const noexcept;
  /// Deletes the file, if it still has this name.
  void unlink_file() const noexcept;
  [[nodiscard]] bool has_tenant(bool must_live) const noexcept;
  void leave() noexcept;

  [[nodiscard]] unsigned slot_end() const noexcept;
  [[nodiscard]] std::uint64_t sum() const noexcept;
  [[nodiscard]] bool is_holder_alive(std::uint32_t word) const noexcept;
  std::uint64_t collect_as(std::uint32_t holder) noexcept;
  void raise_peak(std::uint64_t total) noexcept;
  [[nodiscard]] std::uint32_t own_holder() const noexcept;
  [[nodiscard]] bool try_lock(std::uint32_t holder) noexcept;
  [[nodiscard]] bool try_lock_contended(std::uint32_t holder) noexcept;
  void unlock() noexcept;

  const std::string path_;
  const std::uint64_t process_;
  int file_ = -1;
  SharedHeader* header_ = nullptr;
  bool has_entered_ = false;
  unsigned slot_ = 0;
  std::uint32_t generation_ = 0;
  std::atomic<std::uint64_t> patience_ns_ = usual_patience_ns;
  std::atomic<std::uint32_t> stuck_word_ = 0;  // the last holder that was waited for in vain
};

}  // namespace tern
