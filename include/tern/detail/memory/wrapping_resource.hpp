// Not part of the interface.
//
// A WrappingResource is the base class of resources that wrap another resource, their upstream.
//
// It owns the upstream, forwards device(), traits(), good_size() and trim(), and counts the calls
// that pass through. Blocks are the upstream's blocks unless a derived class says otherwise. Frees
// go to the upstream's try_deallocate(), not deallocate(), so a failed free is recorded once: in
// the resource on which deallocate() was called. Thread-safe. Keeps its upstream alive.

#pragma once

#include <string>

#include "tern/detail/memory/live_counters.hpp"
#include "tern/memory/resource.hpp"

namespace tern {

/// Forwards everything to its upstream. Derived classes override what they change.
class TERN_EXPORT WrappingResource : public Resource {
 public:
  /// The name of the wrapper with the upstream's name in parentheses, such as "fault(direct)".
  [[nodiscard]] const char* name() const noexcept override { return name_.c_str(); }
  [[nodiscard]] const Device& device() const noexcept override { return upstream_->device(); }
  [[nodiscard]] ResourceTraits traits() const noexcept override { return upstream_->traits(); }
  /// Returns the counts of calls and live bytes of this wrapper. Reserved, pending and free bytes
  /// and reuses are the upstream's. Failed frees are the sum of this wrapper's and the upstream's.
  [[nodiscard]] Statistics statistics() const noexcept override;
  /// Allocates from the upstream and fails as the upstream does. Retries earlier failed frees
  /// first.
  [[nodiscard]] Result<Block> try_allocate(const Request& request) noexcept override;
  [[nodiscard]] std::size_t good_size(const Request& request) const noexcept override {
    return upstream_->good_size(request);
  }
  /// Frees the block in the upstream and fails as the upstream does.
  [[nodiscard]] Result<void> try_deallocate(
      const Block& block, StreamRef stream,
      const CallSite& site = CallSite::here()) noexcept override;
  /// Retries failed frees, then trims the upstream.
  std::size_t trim(std::size_t keep_bytes) noexcept override;

  [[nodiscard]] const ResourceHandle& upstream() const noexcept { return upstream_; }

 protected:
  /// `what` is the first part of name(). Throws InvalidArgument if `upstream` is null.
  WrappingResource(const char* what, ResourceHandle upstream);

  [[nodiscard]] LiveCounters& counters() noexcept { return counters_; }

 private:
  const ResourceHandle upstream_;
  const std::string name_;
  LiveCounters counters_;
};

}  // namespace tern
