// MPI for buffers and tables: messages, collectives and halos, in stream order.
//
//   mpi::Communicator comm;                       // after MPI_Init, on all ranks together
//   comm.allreduce(gradient);                     // waits for kernels that write `gradient`
//   mpi::Request sent = comm.isend(x, next);
//   comm.recv(y, previous);
//   sent.wait();
//
// This header needs <mpi.h>, so tern.hpp does not include this header: include it yourself, and
// link the MPI library. Calls accept buffers, arrays, unified buffers and views of these. Each call
// waits for work that was queued on its memory earlier, and later work on the memory waits for the
// call. MPI uses the memory directly if the host can use the memory, or if the MPI library accepts
// memory of the device (is_direct). Other memory travels through page-locked pieces of 4 MiB.
//
// The dtype and the shape travel before the bytes. If ranks disagree, or if one rank fails, all
// ranks of the call throw an error. A send returns only after the receiver has accepted the dtype
// and the shape, so two ranks that both send first wait forever, unless one rank uses isend() or
// irecv(). All calls throw; no call returns a Result. The Python module ternmem.mpi exchanges the
// same messages, so C++ ranks and Python ranks can be mixed.
//
// One thread at a time may use a communicator and its requests. All ranks construct a communicator
// together. Destroy the communicator before MPI_Finalize.

#pragma once

#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "tern/core/access.hpp"
#include "tern/core/error.hpp"
#include "tern/detail/interop/mpi_collectives.hpp"
#include "tern/detail/interop/mpi_memory.hpp"
#include "tern/detail/interop/mpi_messages.hpp"
#include "tern/detail/interop/mpi_ranks.hpp"
#include "tern/detail/interop/mpi_steps.hpp"
#include "tern/device/device.hpp"
#include "tern/device/device_info.hpp"
#include "tern/device/stream.hpp"
#include "tern/table/table.hpp"

namespace tern::mpi {

namespace detail {

/// What a communicator and its requests share.
struct State {
  State(MPI_Comm from, std::uint64_t timeout) : ranks(from), timeout_ns(timeout) {}
  Ranks ranks;
  Messages messages{ranks};
  Collectives collectives{ranks};
  Progress progress;
  std::uint64_t timeout_ns;
  bool is_open = true;
};

}  // namespace detail

/// How allreduce() combines elements.
enum class Reduction : std::uint8_t {
  sum,   // of the elements of all ranks
  prod,  // the product of them
  min,   // the smallest
  max,   // the largest
  band,  // bits that are set on all ranks
  bor,   // bits that are set on at least one rank
  bxor,  // bits that are set on an odd number of ranks
};

/// Receive from every rank (any_source), and with every tag (any_tag).
inline constexpr int any_source = MPI_ANY_SOURCE;
inline constexpr int any_tag = MPI_ANY_TAG;
/// The neighbour of exchange_halo() at an end of the grid.
inline constexpr int no_rank = -1;

/// A transfer in flight. The transfer advances only while the program is in a call on the
/// communicator or on one of its requests. Destroying this object does not stop the transfer. Until
/// the transfer is done, do not write memory that is sent, and do not use memory that is received.
class [[nodiscard]] Request {
 public:
  /// Constructs a request that is done.
  Request() noexcept = default;

  /// Advances all transfers of the communicator, and returns whether this transfer is complete or
  /// has failed. Does not wait.
  [[nodiscard]] bool is_done() const {
    if (!transfer_) return true;
    state_->progress.advance();
    return transfer_->is_over;
  }
  /// Waits until the transfer is complete. Throws its error. Throws TimedOut after the timeout of
  /// the communicator; the transfer is still in flight then, and wait() may be called again.
  void wait() const { wait(state_ ? state_->timeout_ns : 0); }
  /// Waits for at most `timeout_ns`, or without a limit if it is 0.
  void wait(std::uint64_t timeout_ns) const;

 private:
  friend class Communicator;
  Request(std::shared_ptr<detail::State> state, std::shared_ptr<detail::Transfer> transfer) noexcept
      : state_(std::move(state)), transfer_(std::move(transfer)) {}

  // The transfer uses the state, so the state is destroyed last.
  std::shared_ptr<detail::State> state_;
  std::shared_ptr<detail::Transfer> transfer_;
};

/// A group of ranks that exchange memory. See the top of this file.
class Communicator {
 public:
  /// Constructs a communicator with all ranks of `comm`. Its messages do not mix with messages on
  /// `comm`. Waits that last longer than `timeout_ns` throw TimedOut; with 0, waits have no limit.
  /// Throws StreamMisuse before MPI_Init and after MPI_Finalize.
  explicit Communicator(MPI_Comm comm = MPI_COMM_WORLD, std::uint64_t timeout_ns = 0) {
    if (!is_running()) {
      raise(Failure(ErrorCode::stream_misuse,
                    "a communicator needs MPI, and MPI is not running. Construct the communicator "
                    "after MPI_Init and before MPI_Finalize."));
    }
    state_ = std::make_shared<detail::State>(comm, timeout_ns);
  }
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
  /// Leaves the communicator. Transfers in flight keep their memory until the process ends.
  ~Communicator() {
    try {
      leave();
    } catch (...) {  // NOLINT: a destructor must not throw
    }
  }

  /// The number of this rank, from 0, and the number of ranks: size().
  [[nodiscard]] int rank() const noexcept { return state_->ranks.rank; }
  [[nodiscard]] int size() const noexcept { return state_->ranks.size; }
  /// Returns whether MPI uses memory of this device without a copy on the host. For a CUDA device,
  /// calls MPIX_Query_cuda_support() of the MPI library.
  [[nodiscard]] static bool is_direct(const Device& device) {
    return device.can(Capability::host_access) || detail::mpi_accepts(device);
  }

  // --- Messages. Calls throw OutOfBounds for a rank or a tag that does not exist. `stream` is the
  // stream that uses the memory; by default the default stream of the device.

  /// Sends memory or a table, and waits until the memory may be used again. isend() returns a
  /// request to wait for instead.
  void send(const detail::Memory& x, int dest, int tag = 0, StreamRef stream = {}) {
    isend(x, dest, tag, stream).wait();
  }
  void send(const Table& table, int dest, int tag = 0) { isend(table, dest, tag).wait(); }
  Request isend(const detail::Memory& x, int dest, int tag = 0, StreamRef stream = {}) {
    check_message("dest", dest, tag);
    detail::State& state = open_state();
    return start(state.messages.send(state.ranks.headers, state.ranks.open(x, Access::read, stream),
                                     dest, tag),
                 "a send to rank " + std::to_string(dest));
  }
  /// Copies the rows of the table, and sends the copy with its schema and its nulls.
  Request isend(const Table& table, int dest, int tag = 0) {
    check_message("dest", dest, tag);
    return start(open_state().messages.send_table(table, dest, tag),
                 "a send of a table to rank " + std::to_string(dest));
  }
  /// Receives into memory of the same dtype and shape as the sent memory.
  void recv(const detail::Memory& x, int source = any_source, int tag = any_tag,
            StreamRef stream = {}) {
    irecv(x, source, tag, stream).wait();
  }
  Request irecv(const detail::Memory& x, int source = any_source, int tag = any_tag,
                StreamRef stream = {}) {
    check_message("source", source, tag);
    detail::State& state = open_state();
    return start(state.messages.receive(state.ranks.headers,
                                        state.ranks.open(x, Access::discard, stream), source, tag),
                 "a receive from " + text_of(source));
  }
  /// Receives a table into new memory of a device.
  [[nodiscard]] Table recv_table(const Device& device, int source = any_source, int tag = any_tag) {
    check_message("source", source, tag);
    const auto table = std::make_shared<Table>();
    start(open_state().messages.receive_table(table, device, source, tag),
          "a receive of a table from " + text_of(source))
        .wait();
    return *table;
  }
  /// Exchanges rows with the neighbours of a grid that is split along its first dimension. The
  /// first and the last `width` rows are copies of rows of the neighbours. Each rank sends the
  /// `width` rows next to these copies, and receives into the copies. Throws InvalidArgument, also
  /// on the neighbours, if there are fewer than `3 * width` rows.
  void exchange_halo(const detail::Memory& grid, std::size_t width, int before, int after,
                     StreamRef stream = {}) {
    iexchange_halo(grid, width, before, after, stream).wait();
  }
  /// Begins the exchange, and returns a request to wait for.
  Request iexchange_halo(const detail::Memory& grid, std::size_t width, int before, int after,
                         StreamRef stream = {}) {
    if (before != no_rank) check_rank("before", before);
    if (after != no_rank) check_rank("after", after);
    return start(open_state().messages.exchange(grid, width, before, after, stream),
                 "a halo exchange");
  }

  // --- Collectives. All ranks call them in the same order. They run one after the other.

  /// Copies the memory of the rank `root` to the memory of all ranks.
  void bcast(const detail::Memory& x, int root = 0, StreamRef stream = {}) {
    ibcast(x, root, stream).wait();
  }
  /// Begins the broadcast, and returns a request to wait for.
  Request ibcast(const detail::Memory& x, int root = 0, StreamRef stream = {}) {
    check_rank("root", root);
    detail::State& state = open_state();
    const Access access = root == rank() ? Access::read : Access::discard;
    return collect(state.collectives.broadcast(state.ranks.open(x, access, stream), root),
                   "a broadcast from rank " + std::to_string(root));
  }
  /// Copies a table of the rank `root` to new memory of all other ranks, on `device`. The other
  /// ranks pass an empty table. Returns the table.
  [[nodiscard]] Table bcast_table(const Table& table, int root, const Device& device) {
    check_rank("root", root);
    const auto made = std::make_shared<Table>(table);
    collect(open_state().collectives.broadcast_table(made, root, device),
            "a broadcast of a table from rank " + std::to_string(root))
        .wait();
    return *made;
  }
  /// Combines the elements of all ranks in place: each rank gets the results. Throws Unsupported
  /// for dtypes that MPI cannot combine.
  void allreduce(const detail::Memory& x, Reduction how = Reduction::sum, StreamRef stream = {}) {
    iallreduce(x, how, stream).wait();
  }
  /// Begins the combination, and returns a request to wait for.
  Request iallreduce(const detail::Memory& x, Reduction how = Reduction::sum,
                     StreamRef stream = {}) {
    detail::State& state = open_state();
    return collect(
        state.collectives.reduce(state.ranks.open(x, Access::read_write, stream), combination(how)),
        "an all-reduce");
  }
  /// Collects the memory `x` of all ranks in `out`, in the order of the ranks. `out` has the dtype
  /// of `x`, and `size()` times its elements.
  void allgather(const detail::Memory& x, const detail::Memory& out, StreamRef stream = {}) {
    iallgather(x, out, stream).wait();
  }
  /// Begins the collection, and returns a request to wait for.
  Request iallgather(const detail::Memory& x, const detail::Memory& out, StreamRef stream = {}) {
    detail::State& state = open_state();
    return collect(state.collectives.gather(state.ranks.open(x, Access::read, stream),
                                            state.ranks.open(out, Access::discard, stream)),
                   "an all-gather");
  }

  /// Leaves the communicator. Ranks that wait for this rank throw NotFound. Throws StreamMisuse if
  /// transfers are in flight, but leaves nevertheless.
  void close() {
    const std::size_t in_flight = state_->progress.count();
    if (leave() && in_flight > 0) {
      raise(
          Failure(ErrorCode::stream_misuse,
                  "rank {rank} leaves with {in_flight} transfers in flight. Wait for each request "
                  "first.")
              .with("rank", static_cast<std::uint64_t>(rank()))
              .with("in_flight", in_flight));
    }
  }

 private:
  [[nodiscard]] static bool is_running() {
    int is_begun = 0, is_over = 0;
    MPI_Initialized(&is_begun);
    MPI_Finalized(&is_over);
    return is_begun != 0 && is_over == 0;
  }
  /// Returns true if this call has left, and false if an earlier call had left already.
  bool leave() {
    if (!std::exchange(state_->is_open, false)) return false;
    // MPI may still use the memory of transfers in flight.
    if (state_->progress.count() > 0) detail::kept().push_back(state_);
    if (is_running()) state_->ranks.leave();
    return true;
  }
  [[nodiscard]] detail::State& open_state() const {
    if (!state_->is_open) {
      raise(Failure(ErrorCode::invalid_argument,
                    "rank {rank} has closed this communicator. Make a new one on all ranks.")
                .with("rank", static_cast<std::uint64_t>(rank())));
    }
    return *state_;
  }
  void check_rank(const char* name, int which) const {
    if (which >= 0 && which < size()) return;
    raise(Failure(ErrorCode::out_of_bounds,
                  "{name} is {rank}, and the communicator has {size} ranks. Use 0 to {last}.")
              .with("name", name)
              .with_signed("rank", which)
              .with("size", static_cast<std::uint64_t>(size()))
              .with("last", static_cast<std::uint64_t>(size() - 1)));
  }
  void check_message(const char* name, int which, int tag) const {
    const bool is_receive = name == std::string_view("source");
    if (!is_receive || which != any_source) check_rank(name, which);
    if ((is_receive && tag == any_tag) || (tag >= 0 && tag <= state_->ranks.last_tag)) return;
    raise(Failure(ErrorCode::out_of_bounds, "tag is {tag}. Use 0 to {last_tag}.")
              .with_signed("tag", tag)
              .with("last_tag", static_cast<std::uint64_t>(state_->ranks.last_tag)));
  }
  [[nodiscard]] static std::string text_of(int source) {
    return source == any_source ? "any rank" : "rank " + std::to_string(source);
  }
  [[nodiscard]] static detail::Combination combination(Reduction how) {
    switch (how) {
      case Reduction::sum:
        return {"sum", MPI_SUM};
      case Reduction::prod:
        return {"prod", MPI_PROD};
      case Reduction::min:
        return {"min", MPI_MIN, true, false};
      case Reduction::max:
        return {"max", MPI_MAX, true, false};
      case Reduction::band:
        return {"band", MPI_BAND, false, false};
      case Reduction::bor:
        return {"bor", MPI_BOR, false, false};
      case Reduction::bxor:
        break;
    }
    return {"bxor", MPI_BXOR, false, false};
  }
  Request start(detail::Steps<> steps, std::string what, bool is_collective = false) {
    auto transfer = std::make_shared<detail::Transfer>(std::move(steps), std::move(what));
    state_->progress.add(transfer, is_collective);
    state_->progress.advance();
    return Request(state_, std::move(transfer));
  }
  Request collect(detail::Steps<> steps, std::string what) {
    return start(state_->collectives.counted(std::move(steps)), std::move(what), true);
  }

  std::shared_ptr<detail::State> state_;
};

inline void Request::wait(std::uint64_t timeout_ns) const {
  using Clock = std::chrono::steady_clock;
  constexpr int polls_without_pause = 2000;
  constexpr std::chrono::nanoseconds first_pause{20'000}, longest_pause{1'000'000};
  const Clock::time_point begin = Clock::now();
  std::chrono::nanoseconds pause = first_pause;
  for (int polls = 0; !is_done(); ++polls) {
    const auto waited = static_cast<std::uint64_t>((Clock::now() - begin).count());
    if (timeout_ns > 0 && waited > timeout_ns) {
      raise(Failure(ErrorCode::timeout,
                    "{what}, on rank {rank} of {size}, has waited for {waited}, and the limit is "
                    "{limit}. The transfer is still in flight. Wait again, or end the program.")
                .with("what", transfer_->what)
                .with("rank", static_cast<std::uint64_t>(state_->ranks.rank))
                .with("size", static_cast<std::uint64_t>(state_->ranks.size))
                .with("waited", waited, Unit::nanoseconds)
                .with("limit", timeout_ns, Unit::nanoseconds));
    }
    if (polls < polls_without_pause) {
      // Ranks may share a core.
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(pause);
      pause = std::min(2 * pause, longest_pause);
    }
  }
  if (transfer_) transfer_->steps.take();
}

}  // namespace tern::mpi
