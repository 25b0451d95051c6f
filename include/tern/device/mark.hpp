// A Mark is a point in the work of a stream: "everything submitted to it so far".
//
// It is two integers and costs no driver call: the device is asked, and an event recorded, only
// when another stream or the host has to wait for the mark. So the answer may come late: it covers
// what was submitted between the mark and the first question about it too. A mark stays meaningful
// when its stream and even its device are gone: it is done, because their destruction completed or
// sealed the work.

#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <string_view>  // std::hash, for less than <functional>

#include "tern/core/place.hpp"

namespace tern {

/// Names a stream, once: unique in the process and never used again. Number 0 of a device is its
/// default stream.
class StreamId {
 public:
  static constexpr unsigned device_bits = 24, slot_bits = 12, number_bits = 28;

  constexpr StreamId() noexcept = default;
  constexpr StreamId(DeviceId device, std::uint32_t slot, std::uint32_t number) noexcept
      : value_((static_cast<std::uint64_t>(device.value) << (slot_bits + number_bits)) |
               (static_cast<std::uint64_t>(slot) << number_bits) | number) {}

  /// What value() gave.
  [[nodiscard]] static constexpr StreamId from(std::uint64_t value) noexcept {
    StreamId id;
    id.value_ = value;
    return id;
  }

  [[nodiscard]] constexpr DeviceId device() const noexcept {
    return DeviceId{static_cast<std::uint32_t>(value_ >> (slot_bits + number_bits))};
  }
  /// Counts the streams of the device in the order they were made: what people read.
  [[nodiscard]] constexpr std::uint32_t number() const noexcept {
    return static_cast<std::uint32_t>(value_ & ((std::uint64_t{1} << number_bits) - 1));
  }
  /// Where the device keeps the stream's state.
  [[nodiscard]] constexpr std::uint32_t slot() const noexcept {
    return static_cast<std::uint32_t>((value_ >> number_bits) & ((1u << slot_bits) - 1));
  }
  [[nodiscard]] constexpr std::uint64_t value() const noexcept { return value_; }
  [[nodiscard]] explicit constexpr operator bool() const noexcept { return value_ != 0; }

  friend constexpr bool operator==(const StreamId&, const StreamId&) noexcept = default;
  friend constexpr auto operator<=>(const StreamId&, const StreamId&) noexcept = default;

 private:
  std::uint64_t value_ = 0;
};

struct Mark {
  StreamId stream;
  std::uint64_t sequence = 0;

  /// A default mark names no work and is done.
  [[nodiscard]] explicit constexpr operator bool() const noexcept { return bool(stream); }
  friend constexpr bool operator==(const Mark&, const Mark&) noexcept = default;
};

}  // namespace tern

template <>
struct std::hash<tern::StreamId> {
  std::size_t operator()(tern::StreamId id) const noexcept {
    return std::hash<std::uint64_t>{}(id.value());
  }
};
