// A Budget is a named limit on bytes: of a process, a tenant, a task, a scope.
//
// Budgets form trees. Bytes are charged to a leaf and to everything above it, or to none of them:
// check and claim are one step at each level, so no instant sees a budget above its limit, whatever
// other threads do. Exactly the limit is granted, one byte more is refused with out_of_budget by
// the level that has no room, and a refusal has changed nothing.
//
// Four parts make up what is charged:
//   admitted     memory that exists; `pending` of it is freed, but its stream has yet to pass it
//   provisional  memory that is being asked for
//   reserved     claimed by a Reservation, and not drawn yet
// The sum holds whenever no call is under way. Peaks are of admitted bytes only.
//
// Nobody edits the books: they follow the life of blocks (BudgetResource), of reservations, and of
// Charge tokens for memory that others own. Thread-safe, all of it. Held by handle; a child keeps
// its parent alive, and what is pending in a child that ends is pending in its parent.

#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tern/core/bytes.hpp"
#include "tern/core/call_site.hpp"
#include "tern/core/export.hpp"
#include "tern/core/place.hpp"
#include "tern/core/result.hpp"
#include "tern/core/tag.hpp"
#include "tern/device/mark.hpp"

namespace tern {

class Budget;
class Charge;
class Device;
class PendingFrees;
class Reservation;
using BudgetHandle = std::shared_ptr<Budget>;

/// How much a budget allows. There is no default: no limit is a decision too.
class TERN_EXPORT BudgetLimit {
 public:
  /// More than max_request_bytes counts as that. 0 allows nothing.
  [[nodiscard]] static constexpr BudgetLimit bytes(std::size_t bytes) noexcept {
    return BudgetLimit(bytes < max_request_bytes ? bytes : max_request_bytes, {});
  }
  /// Of all the memory the device has, above 0 and at most 1. The budget is of that device then.
  /// Throws InvalidArgument, and what the device says when asked.
  [[nodiscard]] static BudgetLimit fraction_of(const Device& device, double fraction = 0.8);
  /// Counts and never refuses. Reservations need a limit somewhere above them.
  [[nodiscard]] static constexpr BudgetLimit unlimited() noexcept { return BudgetLimit(none, {}); }

  [[nodiscard]] constexpr bool is_finite() const noexcept { return bytes_ != none; }
  /// What is admitted at most: of no limit, all that can be counted.
  [[nodiscard]] constexpr std::size_t value_bytes() const noexcept {
    return is_finite() ? bytes_ : max_request_bytes;
  }
  [[nodiscard]] constexpr DeviceId device() const noexcept { return device_; }

 private:
  friend class Budget;
  static constexpr std::size_t none = std::numeric_limits<std::size_t>::max();
  constexpr BudgetLimit(std::size_t bytes, DeviceId device) noexcept
      : bytes_(bytes), device_(device) {}

  std::size_t bytes_;
  DeviceId device_;
};

/// How far a request at the limit may go; each policy allows what those before it do. Handlers are
/// those of a PressureResource around the BudgetResource, and unified buffers.
enum class Overflow : std::uint8_t {
  fail,   // notices frees that are done, and uses memory of the same stream again; no handler runs
  wait,   // the host waits for frees that are not done, if the request allows it; no handler runs
  evict,  // handlers may drop what can be fetched again (Pressure::reach)
  spill,  // handlers may also write elsewhere what cannot
};
[[nodiscard]] TERN_EXPORT std::string_view name(Overflow overflow) noexcept;

struct BudgetOptions {
  BudgetHandle parent = {};
  /// Whose memory it counts. None: the parent's, or that of the limit; if these have none, the
  /// budget is neutral and counts bytes of any device.
  DeviceId device = {};
  Overflow overflow = Overflow::spill;
};

/// One moment of a budget; the parts may be off by calls that are under way.
struct BudgetState {
  std::size_t limit_bytes = 0;
  std::size_t charged_bytes = 0;
  std::size_t admitted_bytes = 0;
  std::size_t pending_bytes = 0;
  std::size_t provisional_bytes = 0;
  std::size_t reserved_bytes = 0;
  std::size_t peak_bytes = 0;

  friend bool operator==(const BudgetState&, const BudgetState&) noexcept = default;
};

/// What drain() has found.
struct Drained {
  std::size_t released_bytes = 0;
  /// Streams that could not be asked; their bytes stay pending.
  std::size_t failed_streams = 0;
};

/// The most that was admitted while a window is open, and how it is kept: a place in the list of
/// its budget.
struct PeakSlot {
  std::size_t peak_bytes = 0;
  PeakSlot* next = nullptr;
  bool is_open = false;
};

class TERN_EXPORT Budget : public std::enable_shared_from_this<Budget> {
 public:
  /// Throws InvalidArgument for an empty name, DeviceMismatch if the parent or the limit is of
  /// another device, OutOfMemory.
  [[nodiscard]] static BudgetHandle make(std::string_view name, BudgetLimit limit,
                                         const BudgetOptions& options = {});
  Budget(const Budget&) = delete;
  Budget& operator=(const Budget&) = delete;
  ~Budget();

  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  /// The names from the root on, "process/tenant/task".
  [[nodiscard]] const std::string& path() const noexcept { return path_; }
  [[nodiscard]] const BudgetHandle& parent() const noexcept { return parent_; }
  /// None: neutral.
  [[nodiscard]] DeviceId device() const noexcept { return device_; }
  [[nodiscard]] Overflow overflow() const noexcept { return overflow_; }

  [[nodiscard]] BudgetState state() const noexcept;
  [[nodiscard]] std::size_t limit_bytes() const noexcept { return limit().value_bytes(); }
  [[nodiscard]] bool has_limit() const noexcept { return limit().is_finite(); }
  [[nodiscard]] std::size_t charged_bytes() const noexcept { return charged_.load(); }
  [[nodiscard]] std::size_t used_bytes() const noexcept { return admitted_.load() & ~window_bit; }
  [[nodiscard]] std::size_t live_bytes() const noexcept;
  [[nodiscard]] std::size_t pending_bytes() const noexcept { return pending_.load(); }
  /// Of one stream, in the whole tree.
  [[nodiscard]] std::size_t pending_bytes(StreamId stream) const noexcept;
  [[nodiscard]] std::size_t provisional_bytes() const noexcept { return provisional_.load(); }
  [[nodiscard]] std::size_t reserved_bytes() const noexcept { return reserved_.load(); }
  /// Of this level; 0 where more is charged than a lowered limit allows.
  [[nodiscard]] std::size_t remaining_bytes() const noexcept;
  /// Would all levels take so much more now? Changes nothing, and promises nothing.
  [[nodiscard]] bool would_fit(std::size_t bytes) const noexcept;

  /// Admitted bytes under a tag. The sum over all tags is what is used.
  [[nodiscard]] std::size_t used_bytes(Tag tag) const noexcept;
  struct TagUse {
    Tag tag = {};
    std::size_t used_bytes = 0;
  };
  /// Those that are not 0. Throws std::bad_alloc.
  [[nodiscard]] std::vector<TagUse> used_by_tag() const;

  /// From the next request on. Below what is charged it revokes nothing, and admits nothing before
  /// enough has gone. A limit of another device is refused with DeviceMismatch.
  void set_limit(BudgetLimit limit);

  /// The most that was used since the budget was made, or since the last reset.
  [[nodiscard]] std::size_t peak_bytes() const noexcept;
  /// Begins again at what is used now. From then on an admission takes a small lock, as it does
  /// while a PeakWindow is open.
  void reset_peak() noexcept;

  /// Claims bytes here and above for requests to come. Refused with out_of_budget, and with
  /// unsupported where no level has a limit: it would promise nothing.
  [[nodiscard]] Result<Reservation> try_reserve(std::size_t bytes,
                                                CallSite site = CallSite::here()) noexcept;
  [[nodiscard]] Reservation reserve(std::size_t bytes, CallSite site = CallSite::here());
  /// Counts memory that somebody else owns, for as long as the token lives.
  [[nodiscard]] Result<Charge> try_charge(std::size_t bytes, Tag tag = {},
                                          CallSite site = CallSite::here()) noexcept;
  [[nodiscard]] Charge charge(std::size_t bytes, Tag tag = {}, CallSite site = CallSite::here());

  /// Notices which pending frees of the tree are done, and tries frees again that failed in a
  /// BudgetResource of the tree. Asks every stream at most once more than it has something done;
  /// never waits. Requests at the limit do this by themselves.
  Drained drain() noexcept;
  /// Waits for everything that is pending in the tree. Gives the first failure of a stream, whose
  /// bytes stay pending.
  Result<void> try_wait_for_pending() noexcept;

 private:
  friend class BudgetResource;
  friend class Charge;
  friend class PeakWindow;
  friend class PendingFrees;
  friend class Reservation;

  // "A window is open", in admitted_: then admissions take window_mutex_ and raise every window.
  static constexpr std::size_t window_bit = std::size_t{1} << 63;
  static constexpr std::size_t tags_per_page = 256;
  using TagPage = std::array<std::atomic<std::size_t>, tags_per_page>;

  Budget(std::string_view name, BudgetLimit limit, const BudgetOptions& options, DeviceId device);

  [[nodiscard]] BudgetLimit limit() const noexcept { return BudgetLimit(limit_.load(), {}); }
  [[nodiscard]] bool claim_here(std::size_t bytes) noexcept;
  // The level without room, or null: claimed at every level up to `end`, and provisional.
  [[nodiscard]] const Budget* claim(std::size_t bytes, const Budget* end = nullptr) noexcept;
  void unclaim(std::size_t bytes, const Budget* end = nullptr) noexcept;
  // As claim, after a look at what is done. What a check must do before it refuses.
  [[nodiscard]] const Budget* claim_or_drain(std::size_t bytes,
                                             const Budget* end = nullptr) noexcept;
  void admit(std::size_t bytes, Tag tag) noexcept;  // what was provisional
  void release(std::size_t bytes, Tag tag) noexcept;
  void retag(std::size_t bytes, Tag from, Tag to) noexcept;
  void add_pending(std::size_t bytes) noexcept;
  void remove_pending(std::size_t bytes) noexcept;
  // A place to count the tag at every level, so that admitting cannot fail.
  [[nodiscard]] Result<void> prepare(Tag tag) noexcept;
  [[nodiscard]] bool prepare_here(Tag tag) noexcept;
  [[nodiscard]] std::atomic<std::size_t>& tag_total(Tag tag) noexcept;

  void admit_here(std::size_t bytes) noexcept;
  void open(PeakSlot& slot) noexcept;
  void close(PeakSlot& slot) noexcept;
  [[nodiscard]] std::size_t peak_of(const PeakSlot& slot) const noexcept;
  [[nodiscard]] bool is_under(const Budget* ancestor) const noexcept;
  // Whether so much would fit if nothing were pending here.
  [[nodiscard]] bool fits_after_pending(std::size_t bytes) const noexcept;
  [[nodiscard]] Failure refusal(std::size_t requested, std::size_t would_grant, Tag tag,
                                std::string_view device, CallSite site) const noexcept;

  const std::string name_;
  const BudgetHandle parent_;
  const std::string path_;
  const DeviceId device_;
  const Overflow overflow_;
  const std::shared_ptr<PendingFrees> frees_;  // one for the tree

  // charged_ rises before its parts and falls after them, so they are never above the limit.
  std::atomic<std::size_t> limit_;  // BudgetLimit::none for none
  std::atomic<std::size_t> charged_ = 0;
  std::atomic<std::size_t> admitted_ = 0;
  std::atomic<std::size_t> pending_ = 0;
  std::atomic<std::size_t> provisional_ = 0;
  std::atomic<std::size_t> reserved_ = 0;
  std::atomic<std::size_t> lifetime_peak_ = 0;

  mutable std::mutex window_mutex_;
  PeakSlot* windows_ = nullptr;  // guarded by window_mutex_
  PeakSlot since_reset_;         // guarded by window_mutex_
  std::atomic<bool> was_reset_ = false;

  std::array<std::atomic<TagPage*>, 65'536 / tags_per_page> tag_pages_ = {};
};

/// The most a budget had admitted since the window was opened, beginning with what it had then. Any
/// number may be open, nested or not. While one is, admissions to the budget take a small lock.
/// Thread-safe.
class TERN_EXPORT PeakWindow {
 public:
  explicit PeakWindow(BudgetHandle budget);
  PeakWindow(const PeakWindow&) = delete;
  PeakWindow& operator=(const PeakWindow&) = delete;
  ~PeakWindow();

  [[nodiscard]] std::size_t peak_bytes() const noexcept { return budget_->peak_of(slot_); }

 private:
  const BudgetHandle budget_;
  PeakSlot slot_;
};

/// Bytes claimed before they are needed. Requests that name it (Request::reservation) are paid from
/// it, and pay back if they fail; the rest is released when it ends. Move-only. Requests may draw
/// from several threads; moving or ending it must not race with them.
class TERN_EXPORT Reservation {
 public:
  /// Of nothing.
  Reservation() noexcept = default;
  Reservation(Reservation&& other) noexcept;
  Reservation& operator=(Reservation&& other) noexcept;
  ~Reservation();

  /// Not drawn yet.
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_.load(); }
  [[nodiscard]] const BudgetHandle& budget() const noexcept { return budget_; }

 private:
  friend class Budget;
  friend class BudgetResource;
  Reservation(BudgetHandle budget, std::size_t bytes) noexcept;
  // From reserved to provisional, at the budget's level and above; false if there is too little.
  [[nodiscard]] bool draw(std::size_t bytes) noexcept;
  void put_back(std::size_t bytes) noexcept;
  void end() noexcept;

  BudgetHandle budget_;
  std::atomic<std::size_t> bytes_ = 0;
};

/// Says that memory owned by somebody else counts: admitted while this lives. Move-only; one value
/// is for one thread at a time.
class TERN_EXPORT Charge {
 public:
  /// Of nothing.
  Charge() noexcept = default;
  Charge(Charge&& other) noexcept;
  Charge& operator=(Charge&& other) noexcept;
  ~Charge();

  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }
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
