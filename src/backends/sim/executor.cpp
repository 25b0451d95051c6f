#include "backends/sim/executor.hpp"

#include <algorithm>
#include <cstring>
#include <string_view>

#include "backends/sim/random.hpp"
#include "tern/core/access.hpp"

namespace tern::sim {

std::uint64_t Executor::copy(const Operation& operation, Place here) const {
  void* const to = operation.destination;
  const void* const from = operation.source;
  const std::size_t bytes = operation.bytes;
  memories_.forget(to, bytes);
  std::uint64_t moved = memories_.migrate(to, bytes, here, true);
  if (!operation.staged.empty()) {
    move(to, operation.staged.data(), bytes);
    return moved;
  }
  moved += memories_.migrate(from, bytes, here, false);
  move(to, from, bytes);
  return moved;
}

void Executor::move(void* to, const void* from, std::size_t bytes) const {
  if (is_without_contents(to)) return;
  if (is_without_contents(from)) {
    std::memset(to, 0, bytes);
    return;
  }
  memories_.prepare(from, bytes);
  std::memcpy(memories_.reach(to), memories_.reach(from), bytes);
}

std::uint64_t Executor::copy_2d(const Copy2D& copy, Place here) const {
  std::uint64_t moved = 0;
  for (std::size_t row = 0; row < copy.height; ++row) {
    void* to = static_cast<std::byte*>(copy.destination) + row * copy.destination_pitch_bytes;
    const void* from = static_cast<const std::byte*>(copy.source) + row * copy.source_pitch_bytes;
    memories_.forget(to, copy.width_bytes);
    moved += memories_.migrate(from, copy.width_bytes, here, false);
    moved += memories_.migrate(to, copy.width_bytes, here, true);
    move(to, from, copy.width_bytes);
  }
  return moved;
}

std::uint64_t Executor::fill(const Operation& operation, Place here) const {
  memories_.forget(operation.destination, operation.bytes);
  const std::uint64_t moved = memories_.migrate(operation.destination, operation.bytes, here, true);
  if (is_without_contents(operation.destination)) return moved;
  std::byte* to = memories_.reach(operation.destination);
  const Pattern& pattern = operation.pattern;
  if (pattern.width_bytes == 1) {
    std::memset(to, std::to_integer<int>(pattern.bytes[0]), operation.bytes);
    return moved;
  }
  for (std::size_t i = 0; i < operation.bytes; i += pattern.width_bytes) {
    std::memcpy(to + i, pattern.bytes, pattern.width_bytes);
  }
  return moved;
}

std::uint64_t Executor::prepare(const KernelLaunch& launch, Place here) const {
  std::uint64_t moved = 0;
  for (const KernelArgument& argument : launch.arguments) {
    if (argument.range_address == nullptr || argument.range_bytes == 0) continue;
    moved += memories_.migrate(argument.range_address, argument.range_bytes, here,
                               is_write(argument.access));
    if (!keeps_contents_) continue;
    if (argument.access == Access::discard && launch.function.is_placeholder()) {
      memories_.forget(argument.range_address, argument.range_bytes);
    } else {
      memories_.prepare(argument.range_address, argument.range_bytes);
    }
  }
  return moved;
}

void Executor::translate(const KernelLaunch& launch) const {
  for (const KernelArgument& argument : launch.arguments) {
    if (argument.range_address == nullptr || argument.value_bytes != sizeof(void*)) continue;
    void* user = nullptr;
    std::memcpy(&user, argument.value, sizeof user);
    void* reached = memories_.reach(user);
    std::memcpy(const_cast<void*>(argument.value), &reached, sizeof reached);
  }
}

void Executor::run_placeholder(const KernelLaunch& launch) const {
  const auto text_at = [](const void* address, std::size_t bytes) {
    return std::string_view(static_cast<const char*>(address), bytes);
  };
  std::uint64_t state = mix_in(0, launch.name);
  for (const KernelArgument& argument : launch.arguments) {
    if (argument.range_address == nullptr) {
      state = mix_in(state, text_at(argument.value, argument.value_bytes));
    } else if (needs_old_bytes(argument.access)) {
      state = mix_in(state, text_at(memories_.reach(argument.range_address), argument.range_bytes));
    }
  }
  for (const KernelArgument& argument : launch.arguments) {
    if (argument.range_address == nullptr || !is_write(argument.access)) continue;
    std::byte* to = memories_.reach(argument.range_address);
    for (std::size_t i = 0; i < argument.range_bytes; i += 8) {
      const std::uint64_t word = hash(state + i);
      std::memcpy(to + i, &word, std::min<std::size_t>(8, argument.range_bytes - i));
    }
    state = mix_in(state, argument.range_bytes);
  }
}

}  // namespace tern::sim
