// A SharedBudget is one limit on bytes for several processes of a user on one machine.
//
//   SharedBudgetHandle gpu = SharedBudget::join(
//       "gpu0", {.tenant = "trainer", .limit = BudgetLimit::bytes(64 * gib)});
//   BudgetHandle root = Budget::make("process", BudgetLimit::unlimited(), {.shared = gpu});
//
// Each process joins as a tenant. Every byte that the process charges to a root Budget with this
// handle also counts in the shared budget. Check and claim are one atomic step, so the tenants
// together never exceed the limit, and no tenant exceeds its own limit, with any number of threads
// and processes. A request that exactly reaches the limit succeeds. Peaks are exact and count
// charged bytes.
//
// When the process of a tenant ends in any way, also by SIGKILL, its charges end too: a request
// that does not fit collects the bytes of dead tenants before it fails.
//
// The counters are in a file in /dev/shm, which only this user can open. The first join creates the
// file, and the last tenant that leaves deletes the file. A tenant leaves when its last handle is
// released; budgets keep the handle. If all tenants were killed, the file stays until the next
// join, which sets the limit again and resets the peak.
//
// In a forked child, the handles of the parent claim nothing and release nothing. The child must
// join as a tenant of its own. All functions are thread-safe.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tern/core/call_site.hpp"
#include "tern/core/result.hpp"
#include "tern/detail/core/mutex.hpp"
#include "tern/detail/core/visibility.hpp"
#include "tern/memory/budget.hpp"

namespace tern {

class SharedSegment;

/// Options of SharedBudget::join().
struct SharedBudgetOptions {
  /// The name of this tenant, which no other living tenant has. 1 to 64 bytes.
  std::string_view tenant = {};
  /// The limit of all tenants together. Ignored if a living process has already joined. Without
  /// this limit, join() fails with not_found instead of creating the shared budget.
  std::optional<BudgetLimit> limit = {};
  /// The limit of this tenant.
  BudgetLimit tenant_limit = BudgetLimit::unlimited();
};

/// One tenant at one moment.
struct SharedTenant {
  std::string name = {};          // with which it joined
  std::uint64_t pid = 0;          // of its process
  bool is_alive = true;           // whether its process still runs
  std::size_t charged_bytes = 0;  // by all budgets of the tenant
  std::size_t peak_bytes = 0;     // the largest charged_bytes since the tenant joined
  /// The limit of the tenant; max_request_bytes if there is none.
  std::size_t limit_bytes = 0;
  /// Bytes that the tenant was asked to give back and has not answered yet.
  std::size_t asked_bytes = 0;
  /// The number of requests that the tenant has answered.
  std::uint64_t answers = 0;
  /// The bytes of copies of unified buffers that the tenant evicted for these requests.
  std::size_t evicted_bytes = 0;
  /// The unused bytes that the tenant's pools returned to the driver for these requests.
  std::size_t trimmed_bytes = 0;
};

/// A shared budget at one moment. Calls in progress may make the parts differ from each other.
struct SharedBudgetState {
  std::string name = {};          // the name that tenants join
  std::size_t limit_bytes = 0;    // max_request_bytes if there is none
  std::size_t charged_bytes = 0;  // by all tenants
  std::size_t peak_bytes = 0;     // the largest charged_bytes so far
  std::vector<SharedTenant> tenants = {};
};

/// What a tenant gave back because other tenants asked for memory.
struct SharedAnswer {
  std::size_t asked_bytes = 0;    // what other tenants asked for
  std::size_t evicted_bytes = 0;  // copies of unified buffers that were evicted
  std::size_t trimmed_bytes = 0;  // unused memory that pools returned to the driver
};

/// A tenant's handle to a shared budget.
class TERN_EXPORT SharedBudget {
 public:
  /// Joins the shared budget as a tenant. Fails with invalid_argument for an invalid name or the
  /// name of another tenant; with capacity if there are already 128 tenants; with bad_format if the
  /// file is damaged or from another version of Tern; with unsupported if the other tenants are in
  /// another process namespace; and with not_found, file, timeout or out_of_memory.
  [[nodiscard]] static Result<SharedBudgetHandle> try_join(
      std::string_view name, const SharedBudgetOptions& options,
      CallSite site = CallSite::here()) noexcept;
  [[nodiscard]] static SharedBudgetHandle join(std::string_view name,
                                               const SharedBudgetOptions& options,
                                               CallSite site = CallSite::here());
  /// Reads a shared budget without joining it. Fails like try_join().
  [[nodiscard]] static Result<SharedBudgetState> try_inspect(
      std::string_view name, CallSite site = CallSite::here()) noexcept;
  [[nodiscard]] static SharedBudgetState inspect(std::string_view name,
                                                 CallSite site = CallSite::here());
  SharedBudget(const SharedBudget&) = delete;
  SharedBudget& operator=(const SharedBudget&) = delete;
  ~SharedBudget();

  /// The name of the shared budget, equal for all tenants, and the name of this tenant.
  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  [[nodiscard]] const std::string& tenant() const noexcept { return tenant_; }
  /// The limit of all tenants together; max_request_bytes if there is none.
  [[nodiscard]] std::size_t limit_bytes() const noexcept;
  /// The limit of this tenant; max_request_bytes if there is none.
  [[nodiscard]] std::size_t tenant_limit_bytes() const noexcept;
  /// What all tenants together have charged, including dead ones that nobody has collected yet.
  [[nodiscard]] std::size_t charged_bytes() const noexcept;
  /// What this tenant has charged.
  [[nodiscard]] std::size_t tenant_charged_bytes() const noexcept;
  /// The bytes that this tenant can still charge.
  [[nodiscard]] std::size_t remaining_bytes() const noexcept;
  /// Looks up all tenants and whether they are alive. Throws std::bad_alloc.
  [[nodiscard]] SharedBudgetState state() const;

  /// Sets the limit of all tenants together. Later requests cannot exceed the limit. If the tenants
  /// have charged more already, they keep their memory. The limit bounds the pools of this process
  /// at once, and the pools of another process when that process next answers a request. Throws
  /// TimedOut if a stopped process blocks the shared budget, and AfterFork.
  void set_limit(BudgetLimit limit);
  /// Sets the limit of one tenant. Also throws NotFound if there is no such tenant.
  void set_tenant_limit(std::string_view tenant, BudgetLimit limit);

  /// Releases the bytes that dead tenants had charged. Returns the number of bytes. Requests that
  /// do not fit call collect() themselves.
  std::size_t collect() noexcept;

  /// Asks a tenant to give back bytes. The tenant answers in its next allocation that its pool
  /// cannot recycle, or in answer_requests(). state() shows the answer. Throws NotFound and
  /// AfterFork.
  void ask(std::string_view tenant, std::size_t bytes);
  /// Answers the requests of other tenants to this tenant. Evicts copies of unified buffers until
  /// enough bytes are evicted or no copy can be evicted, waits for the pending frees, and returns
  /// all unused memory of the pools to the driver. Affects only the budgets with this handle, and
  /// the pools and copies that charge these budgets. The Overflow of the budgets decides which
  /// copies may be evicted, and whether the call may wait. An answer within an allocation evicts no
  /// dirty copy and does not wait.
  SharedAnswer answer_requests() noexcept;
  /// Returns whether a request of another tenant waits for an answer.
  [[nodiscard]] bool is_asked() const noexcept;

 private:
  friend class Budget;

  SharedBudget(std::string_view name, std::string_view tenant,
               std::unique_ptr<SharedSegment> segment);
  /// Adds a root, whose memory answer() can free. Throws AfterFork and std::bad_alloc.
  void attach(const BudgetHandle& root);
  [[nodiscard]] std::vector<BudgetHandle> roots();
  /// Updates the bounds of the pools of this process after a change of a limit.
  void bound_pools();
  /// Claims bytes for this tenant. Before it fails, the call collects dead tenants.
  [[nodiscard]] bool claim(std::size_t bytes) noexcept;
  void release(std::size_t bytes) noexcept;
  SharedAnswer answer(Overflow reach, bool may_wait) noexcept;
  /// Explains why a claim has just failed. `root` is the path of the budget.
  [[nodiscard]] Failure refusal(std::string_view root, std::size_t requested,
                                std::size_t would_grant) const noexcept;
  [[nodiscard]] bool is_forked() const noexcept;

  const std::string name_, tenant_;
  const std::uint64_t process_;
  const std::unique_ptr<SharedSegment> segment_;
  Mutex mutex_;
  std::vector<std::weak_ptr<Budget>> roots_;  // guarded by mutex_
};

}  // namespace tern
