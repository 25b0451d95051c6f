// A Mark is a point in the work of a stream: everything submitted to the stream so far.
//
//   Mark copied = copy_stream.mark();
//   compute_stream.wait(copied);   // later work of compute_stream starts after the copy
//
// A mark is two integers and needs no driver call. The device records an event only when another
// stream or the host has to wait for the mark, or asks whether it is done. Because the event may be
// recorded late, it may also cover work that was submitted between the mark and the first question
// about the mark. Device::try_record_mark() records the event early.
//
// A mark stays valid after its stream and its device are destroyed. Destroying a stream records a
// last event for its pending marks, and destroying a device completes its work, so such a mark is
// either covered by that event or done.

#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <string_view>  // declares std::hash; smaller than <functional>

#include "tern/core/place.hpp"

namespace tern {

/// The id of a stream, unique in the process and never reused. Number 0 of a device is its default
/// stream.
class StreamId {
 public:
  /// Widths of the three parts of value(), in bits: device_bits, slot_bits and number_bits.
  static constexpr unsigned device_bits = 24, slot_bits = 12, number_bits = 28;

  constexpr StreamId() noexcept = default;
  constexpr StreamId(DeviceId device, std::uint32_t slot, std::uint32_t number) noexcept
      : value_((static_cast<std::uint64_t>(device.value) << (slot_bits + number_bits)) |
               (static_cast<std::uint64_t>(slot) << number_bits) | number) {}

  /// Returns the id with the given value(), as stored earlier.
  [[nodiscard]] static constexpr StreamId from(std::uint64_t value) noexcept {
    StreamId id;
    id.value_ = value;
    return id;
  }

  /// Returns the device of the stream.
  [[nodiscard]] constexpr DeviceId device() const noexcept {
    return DeviceId{static_cast<std::uint32_t>(value_ >> (slot_bits + number_bits))};
  }
  /// Returns the number of the stream: streams of a device are numbered in the order of creation.
  /// Reports show this number.
  [[nodiscard]] constexpr std::uint32_t number() const noexcept {
    return static_cast<std::uint32_t>(value_ & ((std::uint64_t{1} << number_bits) - 1));
  }
  /// Returns the slot in which the device keeps the state of the stream. Slots are reused.
  [[nodiscard]] constexpr std::uint32_t slot() const noexcept {
    return static_cast<std::uint32_t>((value_ >> number_bits) & ((1u << slot_bits) - 1));
  }
  /// Returns the whole id as one integer.
  [[nodiscard]] constexpr std::uint64_t value() const noexcept { return value_; }
  [[nodiscard]] explicit constexpr operator bool() const noexcept { return value_ != 0; }

  friend constexpr bool operator==(const StreamId&, const StreamId&) noexcept = default;
  friend constexpr auto operator<=>(const StreamId&, const StreamId&) noexcept = default;

 private:
  std::uint64_t value_ = 0;
};

/// A `stream` and the `sequence` number of a point in its work. The default mark names no stream
/// and counts as done.
struct Mark {
  StreamId stream;
  std::uint64_t sequence = 0;

  /// Returns false for the default mark.
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
