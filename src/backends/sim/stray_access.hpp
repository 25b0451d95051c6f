// A host access to memory of a simulated device, caught and attributed.
//
// While a simulated device is open a SIGSEGV handler looks whether the address lies in one of the
// reservations; if it does, it says which device and offset, and lets the process die of it as it
// would have. Any other fault goes to whoever handled it before. Thread-safe.

#pragma once

#include <cstdint>

#include "backends/sim/alias_memory.hpp"

namespace tern::sim {

void watch_reservation(const AliasMemory& memory, std::uint32_t device) noexcept;
void forget_reservation(const AliasMemory& memory) noexcept;

}  // namespace tern::sim
