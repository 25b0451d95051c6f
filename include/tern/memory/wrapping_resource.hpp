// A WrappingResource stands around another and hands on what it does not change.
//
// It is the ground of the wrappers: it owns its upstream, forwards device, traits, sizes and trims,
// and counts what passes through it. Blocks are the upstream's own, unless a wrapper says
// otherwise. Frees reach the upstream through try_deallocate(), so that one that fails is on record
// where it was asked for, and only there. Thread-safe; keeps its upstream alive.

#pragma once

#include <string>

#include "tern/memory/live_counters.hpp"
#include "tern/memory/resource.hpp"

namespace tern {

class TERN_EXPORT WrappingResource : public Resource {
 public:
  /// "fault(direct)".
  [[nodiscard]] const char* name() const noexcept override { return name_.c_str(); }
  [[nodiscard]] const Device& device() const noexcept override { return upstream_->device(); }
  [[nodiscard]] ResourceTraits traits() const noexcept override { return upstream_->traits(); }
  /// What passed through here; reserved and pending bytes are the upstream's, and so are failed
  /// frees that were the upstream's own affair.
  [[nodiscard]] Statistics statistics() const noexcept override;
  [[nodiscard]] Result<Block> try_allocate(const Request& request) noexcept override;
  [[nodiscard]] std::size_t good_size(const Request& request) const noexcept override {
    return upstream_->good_size(request);
  }
  [[nodiscard]] Result<void> try_deallocate(
      const Block& block, StreamRef stream,
      const CallSite& site = CallSite::here()) noexcept override;
  std::size_t trim(std::size_t keep_bytes) noexcept override;

  [[nodiscard]] const ResourceHandle& upstream() const noexcept { return upstream_; }

 protected:
  /// Throws InvalidArgument if there is no upstream.
  WrappingResource(const char* what, ResourceHandle upstream);

  [[nodiscard]] LiveCounters& counters() noexcept { return counters_; }

 private:
  const ResourceHandle upstream_;
  const std::string name_;
  LiveCounters counters_;
};

}  // namespace tern
