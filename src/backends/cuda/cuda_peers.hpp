// The devices whose memory kernels of this one may use.
//
// The driver knows who was let in and does not tell, so it is written down here. Access that
// somebody else in the process enabled stays when it is disabled here. Thread-safe.

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

  /// Of another opening of the same device: always there. `pages` are the peer's own.
  [[nodiscard]] Result<bool> enable(Context& peer, CudaPages& pages);
  [[nodiscard]] Result<PeerAccess> access_to(Context& peer);
  [[nodiscard]] Result<void> disable(Context& peer, CudaPages& pages);

 private:
  // In a scope of context_.
  [[nodiscard]] Result<bool> can_access(Context& peer);
  // With mutex_ held, in no scope: for memory that is not mapped page by page.
  [[nodiscard]] Result<void> disable_plain(Context& peer);

  Context& context_;
  std::mutex mutex_;
  std::map<CUdevice, bool> enabled_;  // guarded by mutex_; true: by us, and ours to disable
};

}  // namespace tern::cuda
