// Not part of the interface.
//
// The ranks of a communicator: their numbers, the ranks that have left, and headers between ranks.

#pragma once

#include <mpi.h>
#if defined(OPEN_MPI)
#include <mpi-ext.h>
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tern/core/error.hpp"
#include "tern/detail/interop/mpi_memory.hpp"
#include "tern/detail/interop/mpi_steps.hpp"
#include "tern/detail/interop/mpi_wire.hpp"
#include "tern/device/device.hpp"

namespace tern::mpi::detail {

// Tags of headers that the program does not see.
inline constexpr int goodbye_tag = 0, to_before_tag = 1, to_after_tag = 2;

/// Throws DriverError if a function of MPI has failed.
inline void check(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING + 1] = {};
  int length = 0;
  MPI_Error_string(code, text, &length);
  raise(Failure(ErrorCode::driver, "{call} returned {error}: {text}")
            .with("call", call)
            .with("error", static_cast<std::uint64_t>(code))
            .with("text", std::string_view(text, static_cast<std::size_t>(length))));
}

/// Asks the MPI library whether it accepts addresses of this device.
[[nodiscard]] inline bool mpi_accepts(const Device& device) {
  const bool is_cuda =
      device.info().backend == "cuda" && device.spec().find("driver=") == std::string_view::npos;
#if defined(MPIX_CUDA_AWARE_SUPPORT)
  return is_cuda && MPIX_Query_cuda_support() == 1;
#else
  static_cast<void>(is_cuda);
  return false;
#endif
}

/// An operation of MPI in flight, with what it may use until it is complete.
struct Operation {
  MPI_Request request = MPI_REQUEST_NULL;
  std::shared_ptr<const void> memory = {};
  bool is_complete = false;
  std::size_t bytes = 0;  // that were received

  bool test() {
    if (is_complete) return true;
    int done = 0, count = 0;
    MPI_Status status;
    check(MPI_Test(&request, &done, &status), "MPI_Test");
    if (done == 0) return false;
    check(MPI_Get_count(&status, MPI_BYTE, &count), "MPI_Get_count");
    bytes = count == MPI_UNDEFINED ? 0 : static_cast<std::size_t>(count);
    return is_complete = true;
  }
  /// Cancels a receive whose message will not be sent.
  void cancel() {
    if (is_complete) return;
    check(MPI_Cancel(&request), "MPI_Cancel");
    check(MPI_Wait(&request, MPI_STATUS_IGNORE), "MPI_Wait");
    is_complete = true;
  }
};

/// Memory that MPI may still use after the last wait. Lives as long as the process.
[[nodiscard]] inline std::vector<std::shared_ptr<const void>>& kept() {
  static auto* const all = new std::vector<std::shared_ptr<const void>>;
  return *all;
}

/// Opened memory, or the error of opening it.
struct Opened {
  Json fields = Json::Object();
  std::vector<std::shared_ptr<Bytes>> views = {};
  std::exception_ptr error = {};

  void end(bool is_good) const noexcept {
    for (const auto& view : views) view->end(is_good);
  }
};

/// Returns the failure of an exception, for other ranks.
[[nodiscard]] inline Failure failure_in(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const Error& known) {
    return known.failure();
  } catch (const std::bad_alloc&) {
    return Failure(ErrorCode::out_of_memory, "the host has too little memory.");
  } catch (const std::exception& other) {
    return Failure(ErrorCode::sync_failed, "{text}").with("text", other.what());
  } catch (...) {
    return Failure(ErrorCode::sync_failed, "an unknown exception was thrown.");
  }
}

/// Returns the header that tells another rank of an error.
[[nodiscard]] inline Json error_fields(const std::exception_ptr& error) {
  return Json::Object{{"error", fields_of(failure_in(error))}};
}

/// This rank and the others.
class Ranks {
 public:
  static constexpr int everybody = -1000;  // the peer of a collective

  explicit Ranks(MPI_Comm from) {
    // Headers have the tags of the program, or tags of the library. Answers and bytes have tags
    // that headers name. The communicators are never freed: MPI frees them together with all
    // ranks, and a rank may leave alone.
    for (MPI_Comm* const one : {&headers, &own_headers, &bodies}) {
      check(MPI_Comm_dup(from, one), "MPI_Comm_dup");
      check(MPI_Comm_set_errhandler(*one, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
    }
    check(MPI_Comm_rank(headers, &rank), "MPI_Comm_rank");
    check(MPI_Comm_size(headers, &size), "MPI_Comm_size");
    int* bound = nullptr;
    int is_set = 0;
    check(MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, static_cast<void*>(&bound), &is_set),
          "MPI_Comm_get_attr");
    last_tag = is_set != 0 ? *bound : 32767;
  }

  /// Describes and opens memory. An error is kept, so that other ranks hear of it before it is
  /// thrown.
  [[nodiscard]] Opened open(const Memory& x, Access access, StreamRef stream) const noexcept {
    Opened made;
    try {
      made.fields = x.describe();
      made.views = {x.open(access, stream, mpi_accepts(x.device()))};
    } catch (...) {
      made.error = std::current_exception();
    }
    return made;
  }

  // --- Operations of MPI. The memory lives until the operation is complete.

  [[nodiscard]] std::shared_ptr<Operation> send(MPI_Comm comm, const void* first, std::size_t bytes,
                                                int dest, int tag,
                                                std::shared_ptr<const void> memory) const {
    auto made = std::make_shared<Operation>();
    made->memory = std::move(memory);
    check(MPI_Isend(first, static_cast<int>(bytes), MPI_BYTE, dest, tag, comm, &made->request),
          "MPI_Isend");
    return made;
  }
  [[nodiscard]] std::shared_ptr<Operation> receive(void* first, std::size_t bytes, int source,
                                                   int tag,
                                                   std::shared_ptr<const void> memory) const {
    auto made = std::make_shared<Operation>();
    made->memory = std::move(memory);
    check(MPI_Irecv(first, static_cast<int>(bytes), MPI_BYTE, source, tag, bodies, &made->request),
          "MPI_Irecv");
    return made;
  }
  /// Waits for an operation. Throws NotFound if a rank that it needs has left.
  [[nodiscard]] until complete(std::shared_ptr<Operation> operation, int peer) {
    return until([this, operation = std::move(operation), peer] {
      if (operation->test()) return true;
      if (!has_left(peer) || operation->test()) return operation->is_complete;
      kept().push_back(operation);
      raise_left(peer);
    });
  }

  /// Sends a header.
  Steps<> send_text(MPI_Comm comm, Json fields, int dest, int tag) {
    const auto text = std::make_shared<const std::string>(pack(fields));
    auto sent = send(comm, text->data(), text->size(), dest, tag, text);
    until wait = complete(sent, dest);
    co_await wait;
  }

  struct Header {
    Json fields = {};
    int source = 0;
  };
  /// Receives a header.
  Steps<Header> receive_text(MPI_Comm comm, int source, int tag) {
    const auto arrival = std::make_shared<Arrival>();
    *arrival = {comm, source, tag, MPI_MESSAGE_NULL, {}};
    arrivals_.push_back(arrival);
    const Leaver leaver{this, arrival};
    until wait([this, arrival] {
      if (probe(*arrival)) return true;
      if (!has_left(arrival->source) || probe(*arrival)) {
        return arrival->message != MPI_MESSAGE_NULL;
      }
      raise_left(arrival->source);
    });
    co_await wait;
    int count = 0;
    check(MPI_Get_count(&arrival->status, MPI_BYTE, &count), "MPI_Get_count");
    std::string text(static_cast<std::size_t>(count), '\0');
    const int from = arrival->status.MPI_SOURCE;
    check(MPI_Mrecv(text.data(), count, MPI_BYTE, &arrival->message, MPI_STATUS_IGNORE),
          "MPI_Mrecv");
    co_return Header{unpack(text, from), from};
  }

  /// Tells all ranks that this rank has left the communicator.
  void leave() {
    const auto text =
        std::make_shared<const std::string>(pack(Json::Object{{"finished", finished}}));
    for (int other = 0; other < size; ++other) {
      if (other == rank) continue;
      kept().push_back(send(own_headers, text->data(), text->size(), other, goodbye_tag, text));
    }
  }

  MPI_Comm headers = MPI_COMM_NULL, own_headers = MPI_COMM_NULL, bodies = MPI_COMM_NULL;
  int rank = 0, size = 0, last_tag = 0;
  std::int64_t begun = 0, finished = 0;  // collectives

 private:
  /// A receive that waits for a header.
  struct Arrival {
    MPI_Comm comm = MPI_COMM_NULL;
    int source = 0, tag = 0;
    MPI_Message message = MPI_MESSAGE_NULL;
    MPI_Status status = {};

    [[nodiscard]] bool fits(const Arrival& other) const noexcept {
      return comm == other.comm &&
             (source == other.source || source == MPI_ANY_SOURCE ||
              other.source == MPI_ANY_SOURCE) &&
             (tag == other.tag || tag == MPI_ANY_TAG || other.tag == MPI_ANY_TAG);
    }
  };
  struct Leaver {
    Ranks* ranks;
    std::shared_ptr<Arrival> arrival;
    ~Leaver() { std::erase(ranks->arrivals_, arrival); }
  };

  /// Looks for the header. An earlier receive that fits the same headers comes first, as in MPI.
  bool probe(Arrival& arrival) {
    if (arrival.message != MPI_MESSAGE_NULL) return true;
    for (const auto& earlier : arrivals_) {
      if (earlier.get() == &arrival) break;
      if (earlier->message == MPI_MESSAGE_NULL && arrival.fits(*earlier) && !probe(*earlier)) {
        return false;
      }
    }
    int found = 0;
    check(MPI_Improbe(arrival.source, arrival.tag, arrival.comm, &found, &arrival.message,
                      &arrival.status),
          "MPI_Improbe");
    return found != 0;
  }

  void read_goodbyes() {
    for (;;) {
      int found = 0, count = 0;
      MPI_Message message = MPI_MESSAGE_NULL;
      MPI_Status status;
      check(MPI_Improbe(MPI_ANY_SOURCE, goodbye_tag, own_headers, &found, &message, &status),
            "MPI_Improbe");
      if (found == 0) return;
      check(MPI_Get_count(&status, MPI_BYTE, &count), "MPI_Get_count");
      std::string text(static_cast<std::size_t>(count), '\0');
      check(MPI_Mrecv(text.data(), count, MPI_BYTE, &message, MPI_STATUS_IGNORE), "MPI_Mrecv");
      left_[status.MPI_SOURCE] =
          member<std::int64_t>(unpack(text, status.MPI_SOURCE), "finished", status.MPI_SOURCE);
    }
  }
  /// Returns the rank that has left although a wait needs it, or -1: one rank, any rank, or all
  /// ranks of a collective.
  [[nodiscard]] int left_for(int peer) const {
    if (peer == everybody) {
      for (const auto& [other, collectives] : left_) {
        if (collectives < begun) return other;
      }
      return -1;
    }
    if (peer == MPI_ANY_SOURCE) {
      const bool is_alone = static_cast<int>(left_.size()) == size - 1 && size > 1;
      return is_alone ? left_.begin()->first : -1;
    }
    return left_.contains(peer) ? peer : -1;
  }
  [[nodiscard]] bool has_left(int peer) {
    read_goodbyes();
    return left_for(peer) >= 0;
  }
  [[noreturn]] void raise_left(int peer) const {
    const int gone = left_for(peer);
    raise(
        Failure(ErrorCode::not_found,
                "rank {waiting} waits for rank {rank}, which has left the communicator after "
                "{finished} collectives. {left} of {size} ranks have left. End this rank, or make "
                "a communicator of the other ranks.")
            .with("waiting", static_cast<std::uint64_t>(rank))
            .with("rank", static_cast<std::uint64_t>(gone))
            .with("finished", static_cast<std::uint64_t>(left_.at(gone)))
            .with("left", left_.size())
            .with("size", static_cast<std::uint64_t>(size)));
  }

  std::vector<std::shared_ptr<Arrival>> arrivals_;  // in the order of their calls
  std::map<int, std::int64_t> left_;                // and the collectives that they finished
};

}  // namespace tern::mpi::detail
