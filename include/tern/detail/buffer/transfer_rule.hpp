// Not part of the interface.

#pragma once

#include <cstdint>

#include "tern/core/bytes.hpp"
#include "tern/core/call_site.hpp"

namespace tern {

/// A thread's rule for copies to the host. A TransferGate installs it; rules nest.
struct TransferRule {
  /// From lenient to strict. Of nested rules the strictest applies, except inside a rule of
  /// Mode::allow.
  enum class Mode : std::uint8_t { allow, count, refuse };

  Mode mode = Mode::allow;
  TransferRule* outer = nullptr;
  CallSite site = {};
  // Copies to the host under this rule and the rules inside it, up to a rule of Mode::allow.
  CopyCount violations = {};  // copies of data, counted or refused
  CopyCount small = {};       // scalars and metadata, which are always allowed
};

}  // namespace tern
