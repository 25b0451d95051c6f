// A GuardResource detects writes beyond a block and writes to a freed block.
//
// Each block is placed between two guard bands of 256 bytes with a known pattern. With `poison`,
// the block is filled with 0xDD when it is allocated and again when it is freed. All of this is
// written on the block's stream, in stream order. A request without a stream uses a stream of the
// guard and waits for the writes. The guard checks the bands when the block is freed, and in
// try_check(). Every free therefore waits for the stream.
//
// A write beyond the block is a `violation`. The error names the block, its tag, both call sites
// and the first bad byte. The free that finds the violation fails once, so that the program can
// inspect the block; freeing the block again succeeds.
//
// Freed blocks can be kept in quarantine, up to quarantine_bytes. When a block leaves the
// quarantine, oldest first, the guard checks its bands and, with `poison`, its contents for writes
// after the free. Only trim() frees blocks from quarantine unchecked, because trim() must not wait.
//
// Every violation goes to the failure callback (default_resource.hpp), which by default prints it
// to standard error, and to take_hit(). TERN_MEMORY=guard or =poison puts a guard around the
// default resources.
//
// Blocks are granted exactly the requested size, so that the first byte behind a block is guarded.
// The bands are extra memory of the upstream. Thread-safe. Keeps its upstream alive.

#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "tern/detail/memory/wrapping_resource.hpp"

namespace tern {

/// Options of a GuardResource.
struct GuardOptions {
  /// Upper bound on the bytes in quarantine, guard bands included. 0 turns the quarantine off.
  std::size_t quarantine_bytes = 0;
  /// Fill blocks with poison_byte when they are allocated and when they are freed.
  bool poison = true;
};

/// Wraps every block of its upstream in guard bands.
class TERN_EXPORT GuardResource final : public WrappingResource {
 public:
  static constexpr std::size_t band_bytes = 256;  // of each of the two bands
  static constexpr std::byte poison_byte{0xDD};   // fills blocks with GuardOptions::poison
  static constexpr std::byte band_byte{0xFB};     // fills the bands

  /// Throws InvalidArgument if `upstream` is null, and any error of creating a stream.
  explicit GuardResource(ResourceHandle upstream, const GuardOptions& options = {});
  /// Frees the blocks in quarantine and waits for their streams. A block whose stream cannot be
  /// waited for stays allocated, because the stream may still write to it.
  ~GuardResource() override;

  /// Returns the requested size.
  [[nodiscard]] std::size_t good_size(const Request& request) const noexcept override;
  /// Returns the upstream's traits without frees_for_host_at_once: a block that the host frees is
  /// first poisoned on a stream.
  [[nodiscard]] ResourceTraits traits() const noexcept override;
  /// Allocates a block with guard bands. Fails as the upstream does, with out_of_memory if the size
  /// plus bands is too large, or if the bands cannot be written. Waits if the request has no
  /// stream.
  [[nodiscard]] Result<Block> try_allocate(const Request& request) noexcept override;
  /// Waits for the stream, checks the bands and frees the block or puts it into quarantine. Fails
  /// with violation the first time a write beyond the block is found.
  [[nodiscard]] Result<void> try_deallocate(
      const Block& block, StreamRef stream,
      const CallSite& site = CallSite::here()) noexcept override;
  /// Frees blocks from quarantine, oldest first, until at most `keep_bytes` are left or the next
  /// block's stream has not passed the free. Does not check these blocks. Then trims the upstream.
  /// Returns the number of bytes freed. Never waits for a stream.
  std::size_t trim(std::size_t keep_bytes) noexcept override;

  /// Checks the bands of a live block after the work that the stream has now. Waits for that work.
  /// Fails with violation, or with use_after_free if the block is not live.
  [[nodiscard]] Result<void> try_check(const Block& block, StreamRef stream,
                                       const CallSite& site = CallSite::here()) noexcept;

  /// Bytes in quarantine, guard bands included.
  [[nodiscard]] std::size_t quarantined_bytes() const noexcept;
  /// The number of violations found so far.
  [[nodiscard]] std::uint64_t hits() const noexcept;
  /// Returns the latest violation and clears it. Returns nothing if there was none since the last
  /// call.
  [[nodiscard]] std::optional<Failure> take_hit() noexcept;

 private:
  struct Guarded;
  struct State;
  [[nodiscard]] Result<void> write_bands(const Guarded& guarded, StreamRef stream,
                                         const CallSite& site) noexcept;
  [[nodiscard]] Result<void> look(const Guarded& guarded, StreamRef stream,
                                  const CallSite& site) noexcept;
  [[nodiscard]] Result<std::optional<std::size_t>> first_other(const std::byte* begin,
                                                               std::size_t bytes,
                                                               std::byte expected, StreamRef stream,
                                                               const CallSite& site) noexcept;
  [[nodiscard]] Result<void> check_device(StreamRef stream) const noexcept;
  /// Returns `stream` if it accepts work, else the guard's own stream, ordered after `stream`.
  [[nodiscard]] Result<StreamRef> usable(StreamRef stream) noexcept;
  /// Returns the guard's own stream, ordered after all work of `stream`. Frees use it because the
  /// owner of `stream` may destroy `stream` in the meantime.
  [[nodiscard]] Result<StreamRef> behind(StreamRef stream) noexcept;
  [[nodiscard]] Failure hit(const Guarded& guarded, std::int64_t offset, CallSite site,
                            const char* sentence) noexcept;
  /// Removes the oldest block from quarantine, checks it and frees it. Returns its bytes, or 0 if
  /// the quarantine is empty or the block cannot leave yet.
  std::size_t evict(bool may_wait) noexcept;

  const GuardOptions options_;
  const std::unique_ptr<State> state_;
};

}  // namespace tern
