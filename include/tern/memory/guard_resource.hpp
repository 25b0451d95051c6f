// A GuardResource finds writes beyond a block, and uses of one that was freed.
//
// Each block stands between two bands of 256 bytes of a known pattern, and is filled with 0xDD when
// it is given and again when it is freed. Everything is written on the block's stream, in its order
// (without a stream: on a stream of the guard's own, and waited for). The bands are looked at when
// the block is freed, and on demand. A free therefore waits for the stream.
//
// A write beyond the block is an error, violation, that names the block, its tag, both call sites
// and the first bad byte. The free that found it is refused once, so that the block can be looked
// at; freeing it again succeeds. Freed blocks can be held back, oldest first out, up to a number of
// bytes; what was written into one meanwhile is found when it leaves. Each violation goes to the
// failure callback (failure_callback.hpp), which prints it to standard error if the program has set
// none, and to take_hit(). TERN_MEMORY=guard or =poison puts a guard around default resources.
//
// Blocks are exactly as large as was asked for, so that the first byte beyond is guarded: bands are
// bytes of the upstream's. Thread-safe; keeps its upstream alive.

#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "tern/memory/wrapping_resource.hpp"

namespace tern {

struct GuardOptions {
  /// Freed blocks are held back up to so many bytes, with their bands; 0: none is.
  std::size_t quarantine_bytes = 0;
  /// Fill blocks when they are given and when they are freed.
  bool poison = true;
};

class TERN_EXPORT GuardResource final : public WrappingResource {
 public:
  static constexpr std::size_t band_bytes = 256;
  static constexpr std::byte poison_byte{0xDD};
  static constexpr std::byte band_byte{0xFB};

  /// Throws InvalidArgument, and what making a stream does.
  explicit GuardResource(ResourceHandle upstream, const GuardOptions& options = {});
  /// Gives back what is in quarantine.
  ~GuardResource() override;

  /// What was asked for.
  [[nodiscard]] std::size_t good_size(const Request& request) const noexcept override;
  /// As the upstream's; but what the host frees is poisoned first, on a stream.
  [[nodiscard]] ResourceTraits traits() const noexcept override;
  [[nodiscard]] Result<Block> try_allocate(const Request& request) noexcept override;
  [[nodiscard]] Result<void> try_deallocate(
      const Block& block, StreamRef stream,
      const CallSite& site = CallSite::here()) noexcept override;
  /// Gives back from quarantine, oldest first, what its streams have passed, until no more than
  /// `keep_bytes` are held; then trims the upstream.
  std::size_t trim(std::size_t keep_bytes) noexcept override;

  /// Are the bands of a live block whole, after the work of the stream so far? Waits for it.
  /// Refused with violation, and use_after_free.
  [[nodiscard]] Result<void> try_check(const Block& block, StreamRef stream,
                                       const CallSite& site = CallSite::here()) noexcept;

  [[nodiscard]] std::size_t quarantined_bytes() const noexcept;
  /// How often something was found, and the last of it since this was last asked.
  [[nodiscard]] std::uint64_t hits() const noexcept;
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
  /// The stream itself; if it is none or has ended, the guard's own.
  [[nodiscard]] Result<StreamRef> usable(StreamRef stream) noexcept;
  /// The guard's own stream, behind all that the stream has: its owner may end it meanwhile.
  [[nodiscard]] Result<StreamRef> behind(StreamRef stream) noexcept;
  [[nodiscard]] Failure hit(const Guarded& guarded, std::int64_t offset, CallSite site,
                            const char* sentence) noexcept;
  /// Takes the oldest out of quarantine and gives its bytes back; 0 if there is none that may go.
  std::size_t evict(bool may_wait) noexcept;

  const GuardOptions options_;
  const std::unique_ptr<State> state_;
};

}  // namespace tern
