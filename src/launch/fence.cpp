#include "tern/launch/fence.hpp"

#include "device/captures.hpp"
#include "tern/device/mark.hpp"

namespace tern {
namespace {

/// Orders later work of one stream after all current work of the other.
Result<void> put_behind(StreamRef later, StreamRef earlier, CallSite site) noexcept {
  // Check both streams before changing either, even if there is nothing to wait for.
  if (Result<void> free = check_not_captured(earlier, site); !free) return free;
  if (Result<void> free = check_not_captured(later, site); !free) return free;
  // A mark of the current work and not the next mark: other code submits to the stream without
  // Tern's knowledge.
  const Result<Mark> mark = earlier.try_mark();
  if (!mark) return Failure(mark.failure()).at(site);
  return later.try_wait(*mark, site);
}

Result<Stream> try_borrow_beside(StreamRef ours, NativeStream theirs, CallSite site) noexcept {
  if (!ours.is_usable()) return Failure(ours.try_native().failure()).at(site);
  Result<Stream> borrowed = Stream::try_borrow(ours.device(), theirs);
  if (!borrowed) return Failure(borrowed.failure()).at(site);
  return borrowed;
}

}  // namespace

Result<void> try_fence_to(StreamRef theirs, StreamRef ours, CallSite site) noexcept {
  return put_behind(theirs, ours, site);
}

Result<void> try_fence_from(StreamRef theirs, StreamRef ours, CallSite site) noexcept {
  return put_behind(ours, theirs, site);
}

Result<void> try_fence_to(NativeStream theirs, StreamRef ours, CallSite site) noexcept {
  const Result<Stream> borrowed = try_borrow_beside(ours, theirs, site);
  if (!borrowed) return borrowed.failure();
  return put_behind(*borrowed, ours, site);
}

Result<void> try_fence_from(NativeStream theirs, StreamRef ours, CallSite site) noexcept {
  const Result<Stream> borrowed = try_borrow_beside(ours, theirs, site);
  if (!borrowed) return borrowed.failure();
  return put_behind(ours, *borrowed, site);
}

}  // namespace tern
