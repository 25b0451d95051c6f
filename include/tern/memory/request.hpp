// A Request describes one allocation: size, alignment, stream, and labels for reports.
//
//   resource->allocate({.bytes = 1 * mib, .stream = stream, .tag = Tag("weights")});

#pragma once

#include <cstddef>
#include <cstdint>

#include "tern/core/call_site.hpp"
#include "tern/core/tag.hpp"
#include "tern/device/stream.hpp"

namespace tern {

class Reservation;

/// Restricts the memory that may serve a request.
enum class Source : std::uint8_t {
  any,       // no restriction
  recycled,  // only memory that the request's stream freed itself, which needs no wait
};

/// Whether the host may wait for streams in order to serve the request.
enum class Wait : std::uint8_t { forever, never };

/// The arguments of Resource::try_allocate().
struct Request {
  /// The size in bytes. A request for 0 bytes succeeds with an empty block and is not charged.
  std::size_t bytes = 0;
  /// The alignment in bytes, a power of two. 0 means the default alignment of the resource.
  std::size_t alignment = 0;
  /// The stream that uses the block first. Without a stream the host uses the block first, and the
  /// block is ready when the call returns.
  StreamRef stream = {};
  Tag tag = {};
  CallSite site = CallSite::here();
  Source source = Source::any;
  Wait wait = Wait::forever;
  /// Bytes reserved earlier with Budget::try_reserve(). The request draws its charge from them
  /// instead of claiming new bytes. Null means no reservation.
  Reservation* reservation = nullptr;
};

}  // namespace tern
