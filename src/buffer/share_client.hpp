// The importer's side of shared memory: a connection to the process that exports it.
//
// The connection stays open for as long as the importer uses the memory. Its end tells each side of
// the end of the other. One thread at a time may call try_acquire(); give_back() may run in a host
// function of a stream.

#pragma once

#include <cstdint>
#include <string>

#include "buffer/share_address.hpp"
#include "buffer/share_server.hpp"
#include "buffer/share_socket.hpp"
#include "tern/core/call_site.hpp"
#include "tern/core/dtype.hpp"
#include "tern/core/result.hpp"

namespace tern::share {

/// An export that was opened.
class Client {
 public:
  /// No connection.
  Client() noexcept = default;
  /// Connects to the exporter and receives the descriptor of its memory. Fails with peer_lost if
  /// the exporter has ended, not_found if the handle is stale, capacity if the export has too many
  /// importers, unsupported for an exporter of another user, bad_format if the exporter's answer is
  /// wrong, timeout, and driver.
  [[nodiscard]] static Result<Client> try_open(const Address& address, Timeout timeout,
                                               CallSite site) noexcept;

  [[nodiscard]] const Address& address() const noexcept { return address_; }
  [[nodiscard]] std::size_t bytes() const noexcept { return answer_.bytes; }
  [[nodiscard]] std::size_t elements() const noexcept { return answer_.elements; }
  [[nodiscard]] DType dtype() const noexcept { return static_cast<DType>(answer_.dtype); }
  /// The name of the exporter's backend.
  [[nodiscard]] const char* backend() const noexcept { return answer_.backend.data(); }
  /// The descriptor of the memory, until drop_memory().
  [[nodiscard]] int memory() const noexcept { return memory_.get(); }
  void drop_memory() noexcept { memory_ = Descriptor(); }

  /// Waits for the turn of the next round. Fails with timeout, and may then be called again; with
  /// peer_lost if the exporter has ended or has closed the export.
  [[nodiscard]] Result<void> try_acquire(Timeout timeout, CallSite site) noexcept;
  /// Ends the turn. Does nothing if the exporter is gone.
  void give_back() noexcept;
  /// Tells the exporter that this importer is done, so that the exporter does not take the end of
  /// the connection for a failure.
  void leave() noexcept;

 private:
  [[nodiscard]] Failure lost(CallSite site) const noexcept;

  Address address_;
  Socket socket_;
  Message answer_ = {};
  Descriptor memory_;
  bool has_asked_ = false;  // for a turn that did not come yet
  bool is_closed_ = false;  // the exporter has closed the export
};

}  // namespace tern::share
