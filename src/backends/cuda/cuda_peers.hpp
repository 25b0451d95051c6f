// The peer devices whose memory the kernels of this device may access.
//
// The driver does not report which access is enabled, so this class records it. Access that other
// code in the process enabled stays enabled when Tern disables its own. Thread-safe.

#pragma once

#include <map>
#include <mutex>

#include "backends/cuda/context.hpp"
#include "backends/cuda/cuda_pages.hpp"
#include "tern/core/result.hpp"
#include "tern/device/device_info.hpp"

namespace tern::cuda {

class CudaPeers {
 public:
  explicit CudaPeers(Context& context) : context_(context) {}

  /// Access to another opening of the same device always exists. `pages` are the pages of the peer.
  [[nodiscard]] Result<bool> enable(Context& peer, CudaPages& pages);
  [[nodiscard]] Result<PeerAccess> access_to(Context& peer);
  [[nodiscard]] Result<void> disable(Context& peer, CudaPages& pages);

 private:
  // Call in a scope of context_.
  [[nodiscard]] Result<bool> can_access(Context& peer);
  // Call with mutex_ held and outside of a scope. For memory that is not mapped page by page.
  [[nodiscard]] Result<void> disable_plain(Context& peer);

  Context& context_;
  std::mutex mutex_;
  std::map<CUdevice, bool> enabled_;  // guarded by mutex_; true: enabled by us, so disabled by us
};

}  // namespace tern::cuda
