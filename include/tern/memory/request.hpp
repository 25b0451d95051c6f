// A Request is what somebody wants of a resource, with all that reports need to know.

#pragma once

#include <cstddef>
#include <cstdint>

#include "tern/core/call_site.hpp"
#include "tern/core/tag.hpp"
#include "tern/device/stream.hpp"

namespace tern {

class Reservation;

/// Which memory will do.
enum class Source : std::uint8_t {
  any,
  recycled,  // only what the request's stream has freed itself: it can be given without a wait
};

/// May the host wait for a stream so that the request succeeds?
enum class Wait : std::uint8_t { forever, never };

struct Request {
  /// None is legal: the block is empty, and nothing is charged.
  std::size_t bytes = 0;
  /// A power of two; 0: whatever the resource gives.
  std::size_t alignment = 0;
  /// Who uses it first. No stream: the host does, and the block is ready when the call returns.
  StreamRef stream = {};
  Tag tag = {};
  CallSite site = CallSite::here();
  Source source = Source::any;
  Wait wait = Wait::forever;
  /// Bytes claimed before (Budget::try_reserve), from which this request is paid.
  Reservation* reservation = nullptr;
};

}  // namespace tern
