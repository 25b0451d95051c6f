// The address of shared memory: what another process needs to open it.
//
// An address names the process that exports the memory, the socket on which it answers, the number
// of the export and its secret. As text it is the handle of a SharedArray. Whoever knows the handle
// and runs as the same user can open the memory. A plain value.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "tern/core/call_site.hpp"
#include "tern/core/result.hpp"

namespace tern::share {

using Secret = std::array<std::uint8_t, 16>;

struct Address {
  std::uint32_t pid = 0;     // of the exporter
  std::uint64_t socket = 0;  // a random number in the name of its socket
  std::uint64_t id = 0;      // of the export
  Secret secret = {};

  friend bool operator==(const Address&, const Address&) noexcept = default;
};

/// Returns the address as text. Throws std::bad_alloc.
[[nodiscard]] std::string print(const Address& address);
/// Reads what print() returned. Fails with bad_format for any other text.
[[nodiscard]] Result<Address> try_parse(std::string_view text,
                                        CallSite site = CallSite::here()) noexcept;

/// Fills memory with random bytes of the system. Fails with driver.
[[nodiscard]] Result<void> try_fill_random(void* to, std::size_t bytes) noexcept;

}  // namespace tern::share
