// Facts about the machine this process runs on, read from the system.

#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace tern::host {

/// The processor's model; never empty.
[[nodiscard]] std::string processor_name();
/// Cores this process may run on.
[[nodiscard]] std::size_t usable_cores() noexcept;
/// Memory this process may have: the machine's, or the limit of its control group if that is lower.
[[nodiscard]] std::size_t total_bytes() noexcept;
/// What of it could be had now without swapping.
[[nodiscard]] std::size_t available_bytes() noexcept;
[[nodiscard]] std::size_t system_page_bytes() noexcept;
[[nodiscard]] bool has_numa_node(std::uint32_t node) noexcept;
/// "Linux 6.1.0".
[[nodiscard]] std::string system_version();

}  // namespace tern::host
