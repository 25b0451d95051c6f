#include "trace/trace_format.hpp"

namespace tern::trace_format {
namespace {

constexpr std::array<std::uint32_t, 256> make_table() noexcept {
  std::array<std::uint32_t, 256> table = {};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t value = i;
    for (int bit = 0; bit < 8; ++bit) {
      value = (value & 1) != 0 ? value >> 1 ^ 0x82f6'3b78u : value >> 1;
    }
    table[i] = value;
  }
  return table;
}

constexpr std::array<std::uint32_t, 256> table = make_table();

}  // namespace

std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t before) noexcept {
  std::uint32_t crc = ~before;
  for (const std::byte byte : bytes) {
    crc = crc >> 8 ^ table[(crc ^ std::to_integer<std::uint32_t>(byte)) & 0xff];
  }
  return ~crc;
}

std::array<std::byte, chunk_header_bytes> chunk_header(
    std::uint32_t kind, std::span<const std::byte> payload) noexcept {
  std::array<std::byte, chunk_header_bytes> header = {};
  const auto put = [&](std::size_t at, std::uint32_t value) {
    for (std::size_t i = 0; i < 4; ++i) header[at + i] = static_cast<std::byte>(value >> (8 * i));
  };
  put(0, kind);
  put(4, static_cast<std::uint32_t>(payload.size()));
  // The checksum also covers kind and length, so that a damaged length cannot make other bytes look
  // like a valid payload.
  put(8, crc32c(payload, crc32c({header.data(), 8})));
  return header;
}

}  // namespace tern::trace_format
