// A ProtoMessage is a message of Protocol Buffers while it is written: a sequence of numbered
// fields.

#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace tern::tools {

class ProtoMessage {
 public:
  /// These functions append a field and return the message.
  ProtoMessage& number(std::uint32_t field, std::uint64_t value) {
    return varint(std::uint64_t{field} << 3).varint(value);
  }
  ProtoMessage& fixed64(std::uint32_t field, std::uint64_t value) {
    varint(std::uint64_t{field} << 3 | 1);
    for (int i = 0; i < 8; ++i) bytes_ += static_cast<char>(value >> (8 * i) & 0xFF);
    return *this;
  }
  ProtoMessage& text(std::uint32_t field, std::string_view value) {
    varint(std::uint64_t{field} << 3 | 2).varint(value.size());
    bytes_ += value;
    return *this;
  }
  ProtoMessage& message(std::uint32_t field, const ProtoMessage& value) {
    return text(field, value.bytes_);
  }

  [[nodiscard]] std::string_view bytes() const noexcept { return bytes_; }

 private:
  /// Seven bits per byte, the lowest first. All bytes but the last have the high bit.
  ProtoMessage& varint(std::uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes_ += static_cast<char>(value | 0x80);
    bytes_ += static_cast<char>(value);
    return *this;
  }

  std::string bytes_;
};

}  // namespace tern::tools
