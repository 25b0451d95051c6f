// A Budget is a named limit on bytes, for example of a process, a tenant or a task.
//
//   BudgetHandle process = Budget::make("process", BudgetLimit::fraction_of(device));
//   BudgetHandle task = Budget::make("task", BudgetLimit::bytes(256 * mib), {.parent = process});
//   auto resource = std::make_shared<BudgetResource>(pool, task);
//
// Budgets form trees. A charge applies to a budget and to all budgets above it, or to none of them.
// At each level, check and claim are one atomic step, so a budget never exceeds its limit, whatever
// other threads do. A request that exactly reaches the limit succeeds. A request for one byte more
// fails with out_of_budget, names the level that has no room, and changes nothing.
//
// The charged bytes of a budget are the sum of three parts:
//
//   admitted     memory that exists; the part called `pending` is freed, but its stream has not
//                passed the free yet
//   provisional  memory that is being allocated right now
//   reserved     claimed by a Reservation and not drawn yet
//
// The sum is exact whenever no call is in progress. Peaks count admitted bytes only.
//
// A program cannot edit the counts directly. They follow the lifetimes of blocks (BudgetResource),
// of Reservations, and of Charges for memory that other code owns. All functions are thread-safe.
// Budgets are owned through handles, and a child keeps its parent alive. When a child is destroyed,
// its pending bytes stay charged to its parent.

#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tern/core/bytes.hpp"
#include "tern/core/call_site.hpp"
#include "tern/core/place.hpp"
#include "tern/core/result.hpp"
#include "tern/core/tag.hpp"
#include "tern/detail/core/mutex.hpp"
#include "tern/detail/core/visibility.hpp"
#include "tern/device/mark.hpp"

namespace tern {

class Budget;
class BudgetRecorder;
class Charge;
class Device;
class PendingFrees;
class Reservation;
class SharedBudget;
/// Handles keep a budget, or a joined shared budget, alive.
using BudgetHandle = std::shared_ptr<Budget>;
using SharedBudgetHandle = std::shared_ptr<SharedBudget>;

/// The limit of a budget. There is no default: a budget without a limit must say unlimited().
class TERN_EXPORT BudgetLimit {
 public:
  /// A limit of `bytes`, capped at max_request_bytes. 0 allows nothing.
  [[nodiscard]] static constexpr BudgetLimit bytes(std::size_t bytes) noexcept {
    return BudgetLimit(bytes < max_request_bytes ? bytes : max_request_bytes, {});
  }
  /// A fraction of the total memory of `device`. The budget then counts memory of that device only.
  /// Throws InvalidArgument unless 0 < fraction <= 1, and any error of querying the device.
  [[nodiscard]] static BudgetLimit fraction_of(const Device& device, double fraction = 0.8);
  /// No limit: the budget counts bytes and never refuses. A reservation needs a finite limit at
  /// this level or above.
  [[nodiscard]] static constexpr BudgetLimit unlimited() noexcept { return BudgetLimit(none, {}); }

  /// Returns false for unlimited().
  [[nodiscard]] constexpr bool is_finite() const noexcept { return bytes_ != none; }
  /// The largest number of bytes that may be charged. For unlimited(): max_request_bytes.
  [[nodiscard]] constexpr std::size_t value_bytes() const noexcept {
    return is_finite() ? bytes_ : max_request_bytes;
  }
  /// The device of fraction_of(), or no device.
  [[nodiscard]] constexpr DeviceId device() const noexcept { return device_; }

 private:
  friend class Budget;
  static constexpr std::size_t none = std::numeric_limits<std::size_t>::max();
  constexpr BudgetLimit(std::size_t bytes, DeviceId device) noexcept
      : bytes_(bytes), device_(device) {}

  std::size_t bytes_;
  DeviceId device_;
};

/// What a request may do when it reaches the limit of a budget. Each policy also allows everything
/// that the policies before it allow. Handlers are the handlers of a PressureResource around the
/// BudgetResource, and the eviction of unified buffers.
enum class Overflow : std::uint8_t {
  fail,   // checks for completed frees and reuses memory of the same stream; runs no handler
  wait,   // the host waits for pending frees if the request allows it; runs no handler
  evict,  // handlers may drop data that can be fetched again (Pressure::reach)
  spill,  // handlers may also write data elsewhere that has no other copy
};
/// Returns "fail", "wait", "evict" or "spill".
[[nodiscard]] TERN_EXPORT std::string_view name(Overflow overflow) noexcept;

/// Options of Budget::make().
struct BudgetOptions {
  /// The budget above. Null makes a root.
  BudgetHandle parent = {};
  /// The device whose memory the budget counts. If unset: the device of the limit, else the device
  /// of the parent. If there is none, the budget is neutral and counts bytes of any device.
  DeviceId device = {};
  /// What requests at the limit may do.
  Overflow overflow = Overflow::spill;
  /// A pool that serves only budgets holds at most their limits, in whole pages (BudgetResource).
  /// If false, the limit applies only to live and pending bytes: a pool may hold more.
  bool bounds_held = true;
  /// A limit for several processes (memory/shared_budget.hpp) above this root. Every byte that the
  /// root charges also counts in the shared budget. Only a root may have one.
  SharedBudgetHandle shared = {};
};

/// A node in a tree of limits.
class TERN_EXPORT Budget : public std::enable_shared_from_this<Budget> {
 public:
  /// Makes a budget. Throws InvalidArgument for an empty name, or for a shared budget on a budget
  /// with a parent; DeviceMismatch if the parent or the limit belongs to another device; AfterFork
  /// if the shared budget was joined before a fork; OutOfMemory if the host has no memory.
  [[nodiscard]] static BudgetHandle make(std::string_view name, BudgetLimit limit,
                                         const BudgetOptions& options = {});
  Budget(const Budget&) = delete;
  Budget& operator=(const Budget&) = delete;
  ~Budget();

  /// The name that make() got. Names need not be unique.
  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  /// The names from the root to this budget, such as "process/tenant/task".
  [[nodiscard]] const std::string& path() const noexcept { return path_; }
  /// The budget above, which every charge of this one also charges. Null for a root.
  [[nodiscard]] const BudgetHandle& parent() const noexcept { return parent_; }
  /// The shared budget above the root of the tree, or null.
  [[nodiscard]] const SharedBudgetHandle& shared() const noexcept { return shared_; }
  /// The device whose memory the budget counts. No device if the budget is neutral.
  [[nodiscard]] DeviceId device() const noexcept { return device_; }
  /// What requests at the limit of this budget may do (BudgetOptions::overflow).
  [[nodiscard]] Overflow overflow() const noexcept { return overflow_; }
  /// Returns whether the limit also bounds what pools hold (BudgetOptions::bounds_held).
  [[nodiscard]] bool bounds_held() const noexcept { return bounds_held_; }

  /// The limit of this budget, without those above it; max_request_bytes for unlimited().
  [[nodiscard]] std::size_t limit_bytes() const noexcept { return limit().value_bytes(); }
  /// Returns false for unlimited(). A budget above may still have a limit.
  [[nodiscard]] bool has_limit() const noexcept { return limit().is_finite(); }
  /// Admitted, provisional and reserved bytes together.
  [[nodiscard]] std::size_t charged_bytes() const noexcept { return charged_.load(); }
  /// Admitted bytes, including pending ones.
  [[nodiscard]] std::size_t used_bytes() const noexcept { return admitted_.load() & ~window_bit; }
  /// Admitted bytes that are not pending.
  [[nodiscard]] std::size_t live_bytes() const noexcept;
  /// Bytes that are freed but still charged, because their stream has not passed the free.
  [[nodiscard]] std::size_t pending_bytes() const noexcept;
  /// Pending bytes of one stream, summed over the whole tree.
  [[nodiscard]] std::size_t pending_bytes(StreamId stream) const noexcept;
  /// Bytes of allocations in progress.
  [[nodiscard]] std::size_t provisional_bytes() const noexcept { return provisional_.load(); }
  /// Bytes of reservations that are not drawn yet.
  [[nodiscard]] std::size_t reserved_bytes() const noexcept { return reserved_.load(); }
  /// The bytes that this level can still charge. 0 if a lowered limit is below the charged bytes.
  /// Budgets above may have less. For a root with a shared budget: what both have left.
  [[nodiscard]] std::size_t remaining_bytes() const noexcept;
  /// Returns whether `bytes` more would fit at every level now. Claims nothing, so a later request
  /// may still fail.
  [[nodiscard]] bool would_fit(std::size_t bytes) const noexcept;

  /// Admitted bytes with this tag. The sum over all tags is used_bytes().
  [[nodiscard]] std::size_t used_bytes(Tag tag) const noexcept;
  /// Returns the tags with more than 0 admitted bytes, each with its bytes. Throws std::bad_alloc.
  [[nodiscard]] std::vector<std::pair<Tag, std::size_t>> used_by_tag() const;

  /// Sets the limit for later requests. A limit below the charged bytes revokes nothing; requests
  /// fail until enough bytes are freed. Pools that the limit bounds return their free memory above
  /// it to the driver. Throws DeviceMismatch for a limit of another device.
  void set_limit(BudgetLimit limit);

  /// The high-water mark of used_bytes() since the budget was made or since the last reset_peak().
  [[nodiscard]] std::size_t peak_bytes() const noexcept;
  /// Restarts the high-water mark at the bytes in use now. From the first call on, every admission
  /// takes a short lock, as it does while a PeakWindow is open.
  void reset_peak() noexcept;

  /// Claims bytes at this level and above for later requests. Before it fails, the call drains
  /// completed frees. Fails with out_of_budget, or with unsupported if neither this budget nor one
  /// above has a limit: then a reservation would guarantee nothing.
  [[nodiscard]] Result<Reservation> try_reserve(std::size_t bytes,
                                                CallSite site = CallSite::here()) noexcept;
  [[nodiscard]] Reservation reserve(std::size_t bytes, CallSite site = CallSite::here());
  /// Charges memory that other code owns, for as long as the returned Charge lives. Drains
  /// completed frees before it fails. Fails with out_of_budget, or with out_of_memory if the host
  /// has no memory.
  [[nodiscard]] Result<Charge> try_charge(std::size_t bytes, Tag tag = {},
                                          CallSite site = CallSite::here()) noexcept;
  [[nodiscard]] Charge charge(std::size_t bytes, Tag tag = {}, CallSite site = CallSite::here());

  /// Checks which pending frees of the tree have completed and ends their charges. Also retries
  /// failed frees of the BudgetResources in the tree. Queries each stream a few times; never waits.
  /// Requests at the limit call drain() themselves. Returns the bytes that are no longer charged.
  /// If the query of a stream fails, its bytes stay pending, and failed_queries() counts the
  /// failure.
  std::size_t drain() noexcept;
  /// How many queries of streams have failed so far, in the whole tree.
  [[nodiscard]] std::uint64_t failed_queries() const noexcept;
  /// Waits for everything that is pending in the tree. If a stream cannot be waited for, its bytes
  /// stay pending, and the first such failure is returned at the end. The work of a lost device
  /// counts as completed.
  Result<void> try_wait_for_pending() noexcept;

 private:
  friend class BudgetResource;
  friend class Charge;
  friend class ChargeBook;
  friend class PeakWindow;
  friend class PendingFrees;
  friend class Reservation;
  friend class SharedBudget;

  // The peak of an open PeakWindow, and its link in the list of the budget's windows.
  struct PeakSlot {
    std::size_t peak_bytes = 0;
    PeakSlot* next = nullptr;
    bool is_open = false;
  };

  // Set in admitted_ while a window is open. Admissions then take window_mutex_ and update every
  // window.
  static constexpr std::size_t window_bit = std::size_t{1} << 63;
  static constexpr std::size_t tags_per_page = 256;
  using TagPage = std::array<std::atomic<std::size_t>, tags_per_page>;

  Budget(std::string_view name, BudgetLimit limit, const BudgetOptions& options, DeviceId device);

  [[nodiscard]] BudgetLimit limit() const noexcept { return BudgetLimit(limit_.load(), {}); }
  // Returns whether this is the level that a shared budget counts.
  [[nodiscard]] bool has_shared_above() const noexcept {
    return shared_ != nullptr && parent_ == nullptr;
  }
  [[nodiscard]] bool claim_here(std::size_t bytes) noexcept;
  // Undoes claim_here().
  void unclaim_here(std::size_t bytes) noexcept;
  // Shrinks if another tenant of the shared budget has asked for it.
  void answer_requests() const noexcept;
  // Returns the unused memory of all pools in the tree to the driver. Returns the bytes.
  std::size_t trim_pools() noexcept;
  // Claims bytes, as provisional, at every level from this one up to but excluding `end`. Returns
  // null on success, else the level that has no room; then nothing is claimed.
  [[nodiscard]] const Budget* claim(std::size_t bytes, const Budget* end = nullptr) noexcept;
  void unclaim(std::size_t bytes, const Budget* end = nullptr) noexcept;
  // Like claim(), but if that fails, drains completed frees and claims again. A check must do this
  // before it refuses.
  [[nodiscard]] const Budget* claim_or_drain(std::size_t bytes,
                                             const Budget* end = nullptr) noexcept;
  /// Turns provisional bytes into admitted ones.
  void admit(std::size_t bytes, Tag tag) noexcept;
  void release(std::size_t bytes, Tag tag) noexcept;
  // Like release(), but the caller calls record_use() afterwards, once for several charges.
  void release_unrecorded(std::size_t bytes, Tag tag) noexcept;
  // While a recording is on, records the bytes in use at this level and above.
  void record_use() const noexcept;
  void retag(std::size_t bytes, Tag from, Tag to) noexcept;
  // Makes a counter for the tag at every level, so that admitting cannot fail later.
  [[nodiscard]] Result<void> prepare(Tag tag) noexcept;
  [[nodiscard]] bool prepare_here(Tag tag) noexcept;
  [[nodiscard]] std::atomic<std::size_t>& tag_total(Tag tag) noexcept;

  // Returns the bytes in use after the admission.
  std::size_t admit_here(std::size_t bytes) noexcept;
  void open(PeakSlot& slot) noexcept;
  void close(PeakSlot& slot) noexcept;
  [[nodiscard]] std::size_t peak_of(const PeakSlot& slot) const noexcept;
  [[nodiscard]] bool is_under(const Budget* ancestor) const noexcept;
  // Returns whether `bytes` would fit at this level if nothing were pending.
  [[nodiscard]] bool fits_after_pending(std::size_t bytes) const noexcept;
  [[nodiscard]] Failure refusal(std::size_t requested, std::size_t would_grant, Tag tag,
                                std::string_view device, CallSite site) const noexcept;

  const std::string name_;
  const BudgetHandle parent_;
  const SharedBudgetHandle shared_;  // the same in the whole tree
  const std::string path_;
  const DeviceId device_;
  const Overflow overflow_;
  const bool bounds_held_;
  const std::shared_ptr<PendingFrees> frees_;  // shared by the whole tree

  // charged_ is raised before its parts and lowered after them, so the parts never add up to more
  // than the limit.
  std::atomic<std::size_t> limit_;  // BudgetLimit::none if there is no limit
  std::atomic<std::size_t> charged_ = 0;
  std::atomic<std::size_t> admitted_ = 0;
  std::atomic<std::size_t> provisional_ = 0;
  std::atomic<std::size_t> reserved_ = 0;
  std::atomic<std::size_t> lifetime_peak_ = 0;

  mutable Mutex window_mutex_;
  PeakSlot* windows_ = nullptr;  // guarded by window_mutex_
  PeakSlot since_reset_;         // guarded by window_mutex_
  std::atomic<bool> was_reset_ = false;

  std::array<std::atomic<TagPage*>, 65'536 / tags_per_page> tag_pages_ = {};
  std::unique_ptr<BudgetRecorder> recorder_;
};

/// Measures the high-water mark of a budget's admitted bytes from the window's construction on. The
/// bytes in use at construction count. Any number of windows may be open, nested or not. While a
/// window is open, admissions to the budget take a short lock. Thread-safe.
class TERN_EXPORT PeakWindow {
 public:
  /// Opens the window. Throws InvalidArgument if `budget` is null.
  explicit PeakWindow(BudgetHandle budget);
  PeakWindow(const PeakWindow&) = delete;
  PeakWindow& operator=(const PeakWindow&) = delete;
  ~PeakWindow();

  /// The high-water mark so far.
  [[nodiscard]] std::size_t peak_bytes() const noexcept { return budget_->peak_of(slot_); }

 private:
  const BudgetHandle budget_;
  Budget::PeakSlot slot_;
};

/// Bytes that are claimed before they are needed.
///
///   Reservation reserved = budget->reserve(64 * mib);
///   Block block = resource->allocate({.bytes = 1 * mib, .reservation = &reserved});
///
/// A request that names the reservation (Request::reservation) draws its bytes from it and returns
/// them if it fails. The destructor releases the bytes that were not drawn. A Reservation can be
/// moved but not copied. Requests of several threads may draw at the same time. Moving or
/// destroying the reservation must not race with them.
class TERN_EXPORT Reservation {
 public:
  /// Constructs a reservation of 0 bytes without a budget.
  Reservation() noexcept = default;
  Reservation(Reservation&& other) noexcept;
  Reservation& operator=(Reservation&& other) noexcept;
  ~Reservation();

  /// The bytes that are not drawn yet.
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_.load(); }
  [[nodiscard]] const BudgetHandle& budget() const noexcept { return budget_; }

 private:
  friend class Budget;
  friend class BudgetResource;
  Reservation(BudgetHandle budget, std::size_t bytes) noexcept;
  // Turns reserved bytes into provisional ones at the level of budget() and above. Returns false if
  // fewer than `bytes` are left.
  [[nodiscard]] bool draw(std::size_t bytes) noexcept;
  void put_back(std::size_t bytes) noexcept;
  void end() noexcept;

  BudgetHandle budget_;
  std::atomic<std::size_t> bytes_ = 0;
};

/// Charges memory that other code owns to a budget: the bytes are admitted while the Charge lives.
/// A Charge can be moved but not copied. Use one object from one thread at a time.
class TERN_EXPORT Charge {
 public:
  /// Constructs a charge of 0 bytes without a budget.
  Charge() noexcept = default;
  Charge(Charge&& other) noexcept;
  Charge& operator=(Charge&& other) noexcept;
  ~Charge();

  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }
  /// The tag under which the bytes count, and the budget; null if there is none.
  [[nodiscard]] Tag tag() const noexcept { return tag_; }
  [[nodiscard]] const BudgetHandle& budget() const noexcept { return budget_; }

 private:
  friend class Budget;
  friend class BudgetResource;
  Charge(BudgetHandle budget, std::size_t bytes, Tag tag) noexcept;
  void end() noexcept;

  BudgetHandle budget_;
  std::size_t bytes_ = 0;
  Tag tag_ = {};
};

}  // namespace tern
