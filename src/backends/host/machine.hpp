// Facts about the machine, read from the system.

#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace tern::host {

/// Returns the processor model; never empty.
[[nodiscard]] std::string processor_name();
/// Returns the memory that this process may use: that of the machine, or the limit of its control
/// group if that is lower.
[[nodiscard]] std::size_t total_bytes() noexcept;
/// Returns the part of it that is available without swapping.
[[nodiscard]] std::size_t available_bytes() noexcept;
[[nodiscard]] std::size_t system_page_bytes() noexcept;
[[nodiscard]] bool has_numa_node(std::uint32_t node) noexcept;
/// Returns the system version, such as "Linux 6.1.0".
[[nodiscard]] std::string system_version();

}  // namespace tern::host
