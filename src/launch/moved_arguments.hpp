// The arguments of one launch whose memory must be moved to its device first, all or none.
//
// Overlapping arguments are combined byte by byte, so reading and discarding the same byte counts
// as reading and writing it. Not thread-safe.

#pragma once

#include <span>
#include <vector>

#include "tern/core/call_site.hpp"
#include "tern/core/result.hpp"
#include "tern/detail/launch/launch_memory.hpp"
#include "tern/device/stream.hpp"
#include "tern/launch/argument.hpp"

namespace tern {

class MovedArguments {
 public:
  MovedArguments() noexcept = default;
  MovedArguments(const MovedArguments&) = delete;
  MovedArguments& operator=(const MovedArguments&) = delete;
  /// Without finish(), nothing was submitted.
  ~MovedArguments() { finish(false); }

  [[nodiscard]] static bool are_among(std::span<const LaunchArgument> arguments) noexcept;

  [[nodiscard]] Result<void> try_acquire(std::span<const LaunchArgument> arguments,
                                         StreamRef stream, CallSite site) noexcept;
  /// Returns the arguments with storages on the stream's device.
  [[nodiscard]] std::span<const LaunchArgument> plain() const noexcept { return plain_; }
  void finish(bool is_submitted) noexcept;

 private:
  struct Group {
    LaunchMemory* memory = nullptr;
    std::vector<LaunchPart> parts;
    StorageHandle storage;
    bool is_new = false;
    bool is_claimed = false;
  };

  /// Allocates all missing memory together. Throws std::bad_alloc.
  [[nodiscard]] Result<void> try_make_room(CallSite site);

  std::vector<Group> groups_;
  std::vector<LaunchArgument> plain_;
  StreamRef stream_ = {};
};

}  // namespace tern
