#include "trace/trace_format.hpp"

#include <gtest/gtest.h>

#include <string_view>

namespace tern::trace_format {
namespace {

std::uint32_t crc(std::string_view text) { return crc32c(std::as_bytes(std::span(text))); }

TEST(TraceFormat, HasTheChecksumTheSpecificationNames) {
  EXPECT_EQ(crc(""), 0u);
  EXPECT_EQ(crc("123456789"), 0xe306'9283u) << "the check value of CRC-32C";
  EXPECT_EQ(crc32c(std::vector<std::byte>(32)), 0x8a91'36aau) << "32 zeros, as RFC 3720 has it";
  EXPECT_EQ(crc32c(std::as_bytes(std::span(std::string_view("56789"))), crc("1234")),
            crc("123456789"));
}

TEST(TraceFormat, WritesNumbersInAsFewBytesAsTheyTake) {
  const auto length = [](std::uint64_t value) {
    std::vector<std::byte> out;
    put_varint(out, value);
    return out.size();
  };
  EXPECT_EQ(length(0), 1u);
  EXPECT_EQ(length(127), 1u);
  EXPECT_EQ(length(128), 2u);
  EXPECT_EQ(length(1 << 14), 3u);
  EXPECT_EQ(length(~std::uint64_t{0}), 10u);
  std::vector<std::byte> out;
  put_varint(out, 300);
  EXPECT_EQ(out, (std::vector{std::byte{0xac}, std::byte{0x02}}));
}

TEST(TraceFormat, HasLittleEndianChunkHeadersWithAChecksumOfAllOfIt) {
  const std::byte payload[] = {std::byte{5}, std::byte{6}};
  const auto header = chunk_header(0x8000'0102, payload);
  EXPECT_EQ(get_u32(header.data()), 0x8000'0102u);
  EXPECT_EQ(header[0], std::byte{0x02});
  EXPECT_EQ(header[3], std::byte{0x80});
  EXPECT_EQ(get_u32(&header[4]), 2u);
  EXPECT_NE(get_u32(&header[8]), get_u32(&chunk_header(0x8000'0103, payload)[8]));
  EXPECT_NE(get_u32(&header[8]), get_u32(&chunk_header(0x8000'0102, {payload, 1})[8]));
}

}  // namespace
}  // namespace tern::trace_format
