#include "backends/cuda/cuda_peers.hpp"

#include <new>

#include "core/no_host_memory.hpp"

namespace tern::cuda {

Result<bool> CudaPeers::can_access(Context& peer) {
  int can = 0;
  if (Result<void> asked = context_.check(
          context_.cu().cuDeviceCanAccessPeer(&can, context_.device(), peer.device()),
          "cuDeviceCanAccessPeer");
      !asked) {
    return asked.failure();
  }
  return can != 0;
}

Result<bool> CudaPeers::enable(Context& peer, CudaPages& pages) {
  if (peer.device() == context_.device()) return true;
  const std::lock_guard lock(mutex_);
  bool is_new = false;
  {
    const ContextScope scope(context_);
    if (!scope) return scope.failure();
    const Result<bool> can = can_access(peer);
    if (!can || !*can) return can;
    const CUresult enabled = context_.cu().cuCtxEnablePeerAccess(peer.handle(), 0);
    is_new = enabled != CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
    if (is_new) {
      if (Result<void> done = context_.check(enabled, "cuCtxEnablePeerAccess"); !done) {
        return done.failure();
      }
    }
  }
  // This enables plain memory. Access to mapped pages is set per page, in the context of the peer.
  if (Result<void> done = pages.let_in(context_.device()); !done) {
    if (is_new) static_cast<void>(disable_plain(peer));
    return done.failure();
  }
  try {
    const auto known = enabled_.try_emplace(peer.device(), false).first;
    known->second = known->second || is_new;
  } catch (const std::bad_alloc&) {
    static_cast<void>(pages.shut_out(context_.device()));
    if (is_new) static_cast<void>(disable_plain(peer));
    return no_host_memory("a peer");
  }
  return true;
}

Result<void> CudaPeers::disable_plain(Context& peer) {
  const ContextScope scope(context_);
  if (!scope) return scope.failure();
  const CUresult disabled = context_.cu().cuCtxDisablePeerAccess(peer.handle());
  if (disabled == CUDA_ERROR_PEER_ACCESS_NOT_ENABLED) return {};
  return context_.check(disabled, "cuCtxDisablePeerAccess");
}

Result<PeerAccess> CudaPeers::access_to(Context& peer) {
  if (peer.device() == context_.device()) return PeerAccess::enabled;
  const ContextScope scope(context_);
  if (!scope) return scope.failure();
  const Result<bool> can = can_access(peer);
  if (!can) return can.failure();
  if (!*can) return PeerAccess::unavailable;
  const std::lock_guard lock(mutex_);
  return enabled_.contains(peer.device()) ? PeerAccess::enabled : PeerAccess::disabled;
}

Result<void> CudaPeers::disable(Context& peer, CudaPages& pages) {
  if (const ContextScope scope(context_); !scope) return scope.failure();
  const std::lock_guard lock(mutex_);
  const auto found = enabled_.find(peer.device());
  if (found == enabled_.end()) return {};
  if (Result<void> done = pages.shut_out(context_.device()); !done) return done;
  if (found->second) {
    if (Result<void> done = disable_plain(peer); !done) {
      static_cast<void>(pages.let_in(context_.device()));
      return done;
    }
  }
  enabled_.erase(found);
  return {};
}

}  // namespace tern::cuda
