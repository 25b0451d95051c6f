#include <gtest/gtest.h>

#include <array>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include "support/allocation_counter.hpp"
#include "support/ladder.hpp"
#include "support/on_device.hpp"
#include "table/bitmap.hpp"
#include "tern/backends/catalog.hpp"
#include "tern/buffer/transfer_audit.hpp"
#include "tern/launch/kernel.hpp"
#include "tern/table/table.hpp"

namespace tern {
namespace {

using Strings = std::vector<std::string>;
constexpr std::array<std::string_view, 4> words = {"tern", "", "pole to pole", "ä"};

class ColumnOn : public test::OnDevice {
 protected:
  Column numbers(std::size_t count, ColumnOptions options = {}) {
    std::vector<std::int32_t> values(count);
    std::iota(values.begin(), values.end(), 0);
    return Column::from<std::int32_t>(device, values, options);
  }
};
INSTANTIATE_TEST_SUITE_P(Devices, ColumnOn, testing::Values("host", "sim", "cuda?driver=sim"),
                         test::spec_name);

TEST_P(ColumnOn, HoldsNumbersAndTimes) {
  const Column column = numbers(5);
  EXPECT_EQ(column.type(), LogicalType(TypeKind::i32));
  EXPECT_EQ(column.capacity(), 5u);
  EXPECT_EQ(column.null_count(), 0u);
  EXPECT_FALSE(column.is_nullable());
  EXPECT_FALSE(column.is_external());
  EXPECT_EQ(column.device(), device);
  EXPECT_EQ(column.try_bytes().value(), 20u);
  EXPECT_EQ(column.values().to_vector<std::int32_t>(), (std::vector<std::int32_t>{0, 1, 2, 3, 4}));
  const std::array<std::int64_t, 2> ticks = {7, 8};
  const Column times = Column::from<std::int64_t>(
      device, ticks, LogicalType::timestamp(TimeUnit::nanosecond, "UTC"));
  EXPECT_EQ(times.type().zone(), "UTC");
  EXPECT_EQ(times.values().to_vector<std::int64_t>()[1], 8);
  EXPECT_THROW(static_cast<void>(Column::from<std::int64_t>(device, ticks, TypeKind::date32)),
               TypeMismatch);
}

TEST_P(ColumnOn, ASliceCopiesNoElementsBeforeIt) {
  const Column whole = Column::allocate(device, TypeKind::i32, 16);
  const std::array<std::int32_t, 5> values = {1, 2, 3, 4, 5};
  whole.values().slice(5, 5).copy_from(std::span<const std::int32_t>(values));
  const Column part = whole.slice(5, 5);
  const Column copy = part.try_copy_to(device, 5, StreamRef{}).value();
  EXPECT_EQ(copy.values().to_vector<std::int32_t>(), (std::vector<std::int32_t>{1, 2, 3, 4, 5}));
  // A copy can be copied again.
  const Column again = copy.slice(1, 3).try_copy_to(device, 3, StreamRef{}).value();
  EXPECT_EQ(again.values().to_vector<std::int32_t>(), (std::vector<std::int32_t>{2, 3, 4}));
}

TEST_P(ColumnOn, KnowsExactlyWhatIsMissing) {
  const std::array<std::uint8_t, 5> valid = {1, 0, 1, 1, 0};
  const Column column = numbers(5, {.valid = valid});
  EXPECT_EQ(column.null_count(), 2u);
  EXPECT_EQ(column.to_valid(), (std::vector<bool>{true, false, true, true, false}));
  EXPECT_EQ(column.try_bytes().value(), 21u);
  // Of a part nobody has counted, and then somebody does.
  const Column part = column.slice(1, 3);
  EXPECT_EQ(part.null_count(), std::nullopt);
  EXPECT_EQ(part.try_count_nulls(3).value(), 1u);
  EXPECT_EQ(part.try_count_nulls(1).value(), 1u);
  EXPECT_EQ(part.try_count_nulls(0).value(), 0u);
  EXPECT_EQ(part.to_valid(), (std::vector<bool>{false, true, true}));
  EXPECT_EQ(part.values().to_vector<std::int32_t>(), (std::vector<std::int32_t>{1, 2, 3}));
  const std::array<std::uint8_t, 4> few = {1, 1, 1, 1};
  EXPECT_THROW(static_cast<void>(numbers(5, {.valid = few})), SizeMismatch);
}

TEST_P(ColumnOn, AKernelWritesTheValidityBitmap) {
  const Result<Kernel> clear = Kernel::try_from_function(
      device, "clear", [](View<std::byte> bits) { bits[0] &= std::byte{0b00011}; });
  if (!clear) GTEST_SKIP() << clear.failure().text();
  const std::array<std::uint8_t, 5> valid = {1, 0, 1, 1, 0};
  Column column = numbers(5, {.valid = valid});
  clear->launch(stream, elements(1), inout(column.validity()));
  EXPECT_EQ(column.null_count(), std::nullopt);
  EXPECT_EQ(column.try_count_nulls(5).value(), 4u);
  EXPECT_EQ(column.to_valid(), (std::vector<bool>{true, false, false, false, false}));
  Column whole = numbers(5);
  EXPECT_FALSE(whole.validity());
  EXPECT_EQ(whole.null_count(), 0u);
}

TEST_P(ColumnOn, KeepsTruthValuesAsBits) {
  std::array<bool, 11> flags = {true, false, true};
  flags[10] = true;
  const Column column = Column::from<bool>(device, flags);
  EXPECT_EQ(column.parts().values.size_bytes(), 2u);
  EXPECT_EQ(column.to_bools(), std::vector<bool>(flags.begin(), flags.end()));
  const Column part = column.slice(2, 9);
  EXPECT_EQ(part.to_bools(), std::vector<bool>(flags.begin() + 2, flags.end()));
  const Buffer bytes = part.unpack();
  EXPECT_EQ(bytes.dtype(), DType::boolean);
  EXPECT_EQ(bytes.device(), device);
  const std::vector<std::uint8_t> unpacked = bytes.as(DType::u8).to_vector<std::uint8_t>();
  EXPECT_EQ(unpacked, (std::vector<std::uint8_t>{1, 0, 0, 0, 0, 0, 0, 0, 1}));
  EXPECT_EQ(Column::pack(bytes).to_bools(), part.to_bools());
  EXPECT_THROW(static_cast<void>(numbers(3).unpack()), TypeMismatch);
  EXPECT_THROW(static_cast<void>(Column::pack(numbers(3).values())), TypeMismatch);
}

TEST_P(ColumnOn, HoldsTexts) {
  for (const TypeKind kind : {TypeKind::utf8, TypeKind::large_utf8, TypeKind::binary}) {
    const Column column = Column::from_strings(device, words, kind);
    EXPECT_EQ(column.to_strings(), (Strings{"tern", "", "pole to pole", "ä"}));
    EXPECT_EQ(column.slice(2, 1).to_strings(), (Strings{"pole to pole"}));
    EXPECT_EQ(column.slice(2, 0).to_strings(), Strings());
    EXPECT_EQ(column.offsets().size(), 5u);
    EXPECT_EQ(column.slice(1, 2).offsets().size(), 3u);
  }
  EXPECT_THROW(static_cast<void>(Column::from_strings(device, words, TypeKind::i32)), TypeMismatch);
}

TEST_P(ColumnOn, RefusesBuffersThatCannotBeItsPartsByName) {
  const Buffer four(device, {4}, DType::i32);
  const auto code = [&](LogicalType type, std::size_t capacity, ColumnParts parts) {
    const Result<Column> made = Column::try_over(std::move(type), capacity, std::move(parts));
    return made ? std::string() : std::string(made.failure().string("part").value_or("?"));
  };
  EXPECT_EQ(code(TypeKind::i32, 4, {.values = four}), "");
  EXPECT_EQ(code(TypeKind::i32, 5, {.values = four}), "values");
  EXPECT_EQ(code(TypeKind::i32, 4, {.values = four, .first = 1}), "values");
  EXPECT_EQ(code(TypeKind::f32, 4, {.values = four}), "values");
  EXPECT_EQ(code(TypeKind::f32, 4, {.values = four.as(DType::byte)}), "");
  EXPECT_EQ(code(TypeKind::boolean, 128, {.values = four}), "");
  EXPECT_EQ(code(TypeKind::boolean, 129, {.values = four}), "values");
  const Buffer bits(device, {1}, DType::byte);
  EXPECT_EQ(code(TypeKind::i16, 8, {.values = four.as(DType::byte), .validity = bits}), "");
  EXPECT_EQ(
      code(TypeKind::i8, 9, {.values = four.as(DType::byte), .validity = bits, .null_count = 1}),
      "validity");
  EXPECT_EQ(code(TypeKind::utf8, 3, {.values = bits, .offsets = four}), "");
  EXPECT_EQ(code(TypeKind::utf8, 4, {.values = bits, .offsets = four}), "offsets");
  EXPECT_EQ(code(TypeKind::large_utf8, 1, {.values = bits, .offsets = four}), "offsets");
  EXPECT_EQ(code(TypeKind::utf8, 1, {.values = bits}), "offsets");
  EXPECT_EQ(code(TypeKind::utf8, 0, {}), "");
  const auto fails = [&](std::size_t capacity, ColumnParts parts) {
    return Column::try_over(TypeKind::i32, capacity, std::move(parts)).failure().code();
  };
  EXPECT_EQ(fails(4, {.values = four, .offsets = four}), ErrorCode::invalid_argument);
  EXPECT_EQ(fails(4, {.values = four, .null_count = 1}), ErrorCode::invalid_argument);
  EXPECT_EQ(fails(~std::size_t{0}, {.values = four}), ErrorCode::size_overflow);
  EXPECT_EQ(fails(4, {.values = four, .first = ~std::size_t{0}}), ErrorCode::size_overflow);
  EXPECT_EQ(fails(~std::size_t{0} / 4, {.values = four}), ErrorCode::size_overflow);
  const Device other = open_device(GetParam() == "sim" ? "host" : "sim");
  EXPECT_EQ(fails(4, {.values = four, .validity = Buffer(other, {1}, DType::byte)}),
            ErrorCode::device_mismatch);
  EXPECT_EQ(numbers(3).try_slice(2, 2).failure().code(), ErrorCode::invalid_view);
  EXPECT_EQ(numbers(3).try_slice(~std::size_t{0}, 2).failure().code(), ErrorCode::invalid_view);
}

TEST_P(ColumnOn, AllocatesRoomToBeWritten) {
  Column column = Column::allocate(device, TypeKind::f64, 100, {.is_nullable = true});
  EXPECT_EQ(column.capacity(), 100u);
  EXPECT_EQ(column.null_count(), std::nullopt);
  EXPECT_EQ(column.try_count_nulls(100).value(), 0u);
  EXPECT_THROW(static_cast<void>(column.values().to_vector<double>()), NeverWritten);
  EXPECT_THROW(static_cast<void>(Column::allocate(device, TypeKind::i64, ~std::size_t{0} / 4)),
               SizeOverflow);
  const Column texts = Column::allocate(device, TypeKind::utf8, 3, {.data_bytes = 50});
  EXPECT_EQ(texts.parts().values.size_bytes(), 50u);
  EXPECT_EQ(texts.parts().offsets.size_bytes(), 16u);
}

TEST_P(ColumnOn, CopiesToAnotherDeviceFromTheMiddleOfAByte) {
  const Device host = open_device("host");
  const std::array<std::uint8_t, 20> valid = {1, 1, 0, 1, 0, 1, 1, 1, 0, 1,
                                              1, 1, 0, 1, 1, 1, 1, 0, 0, 1};
  const std::array<bool, 20> flags = {true, false, false, true, true,  true, false, true,
                                      true, false, true,  true, false, true, true};
  const Column all[] = {numbers(20, {.valid = valid}),
                        Column::from<bool>(device, flags, {.valid = valid})};
  for (const Column& column : all) {
    for (const std::size_t first : {0u, 3u, 8u, 11u}) {
      const Column part = column.slice(first, 8);
      const Column copy = part.try_copy_to(host, 5, {}).value();
      EXPECT_EQ(copy.capacity(), 8u);
      EXPECT_EQ(copy.device(), host);
      const Column rows = copy.slice(0, 5), expected = part.slice(0, 5);
      EXPECT_EQ(rows.to_valid(), expected.to_valid()) << first;
      if (column.type().is_bits()) {
        EXPECT_EQ(rows.to_bools(), expected.to_bools()) << first;
      } else {
        EXPECT_EQ(rows.values().to_vector<std::int32_t>(),
                  expected.values().to_vector<std::int32_t>())
            << first;
      }
    }
  }
  const Column texts = Column::from_strings(device, words);
  const Column copy = texts.slice(1, 3).try_copy_to(device, 3, stream).value();
  EXPECT_EQ(copy.to_strings(), (Strings{"", "pole to pole", "ä"}));
  EXPECT_NE(copy.parts().values.id(), texts.parts().values.id());
}

TEST_P(ColumnOn, PutsColumnsBehindEachOther) {
  const std::array<std::uint8_t, 3> valid = {0, 1, 1};
  const Column with = numbers(3, {.valid = valid}), without = numbers(5);
  const Column parts[] = {without.slice(1, 3), with, without.slice(4, 1), with.slice(0, 0)};
  const Column all = Column::try_concat(parts).value();
  EXPECT_EQ(all.values().to_vector<std::int32_t>(),
            (std::vector<std::int32_t>{1, 2, 3, 0, 1, 2, 4}));
  EXPECT_EQ(all.null_count(), 1u);
  EXPECT_EQ(all.to_valid(), (std::vector<bool>{true, true, true, false, true, true, true}));

  const std::array<bool, 3> flags = {true, false, true};
  const Column bits = Column::from<bool>(device, flags);
  const Column more[] = {bits, bits.slice(1, 2), bits, bits};
  EXPECT_EQ(
      Column::try_concat(more).value().to_bools(),
      (std::vector<bool>{true, false, true, false, true, true, false, true, true, false, true}));

  const Column texts = Column::from_strings(device, words);
  const Column lines[] = {texts.slice(2, 2), texts};
  EXPECT_EQ(Column::try_concat(lines).value().to_strings(),
            (Strings{"pole to pole", "ä", "tern", "", "pole to pole", "ä"}));
  const Column mixed[] = {texts, bits};
  EXPECT_EQ(Column::try_concat(mixed).failure().code(), ErrorCode::type_mismatch);
  EXPECT_EQ(Column::try_concat({}).failure().code(), ErrorCode::invalid_argument);
}

TEST_P(ColumnOn, AZoneWhoseNameFindsNoMemoryIsRefused) {
  if (!test::HeapExhausted::is_possible()) GTEST_SKIP() << "operator new cannot be refused here";
  if (device.info().backend != "host") GTEST_SKIP() << "the device itself needs memory";
  const std::array<std::int64_t, 3> ticks = {1, 2, 3};
  const Column column = Column::from<std::int64_t>(
      device, ticks, LogicalType::timestamp(TimeUnit::second, "America/Argentina/Buenos_Aires"));
  for (std::size_t left = 0;; ++left) {
    ErrorCode sliced = ErrorCode::violation, copied = ErrorCode::violation;
    bool has_failed = false;
    {
      const test::HeapExhausted exhausted(left);
      if (const Result<Column> part = column.try_slice(0, 2); !part) {
        sliced = part.failure().code();
      }
      if (const Result<Column> copy = column.try_copy_to(device, 3, {}); !copy) {
        copied = copy.failure().code();
      }
      has_failed = exhausted.has_failed();
    }
    if (!has_failed) {
      EXPECT_EQ(sliced, ErrorCode::violation);
      EXPECT_EQ(copied, ErrorCode::violation);
      break;
    }
    EXPECT_EQ(copied, ErrorCode::out_of_memory);
    if (left == 0) {
      EXPECT_EQ(sliced, ErrorCode::out_of_memory);
    }
    ASSERT_LT(left, 100u);
  }
}

TEST_P(ColumnOn, NothingIsAColumnToo) {
  const Column none;
  EXPECT_EQ(none.capacity(), 0u);
  EXPECT_FALSE(none.device().is_open());
  EXPECT_EQ(none.values().size_bytes(), 0u);
  EXPECT_TRUE(none.to_valid().empty());
  EXPECT_EQ(Column::from_strings(device, {}).to_strings(), Strings());
  EXPECT_EQ(numbers(0).try_copy_to(device, 0, {}).value().capacity(), 0u);
}

TEST_P(ColumnOn, NoTextsAreCopiedWhoeverWroteThem) {
  // A copy of one without buffers, and of one with room that nobody has used.
  const Column none = Column::over(TypeKind::utf8, 0, {});
  const Column copy = none.try_copy_to(device, 0, stream).value();
  EXPECT_EQ(copy.try_copy_to(device, 0, stream).value().to_strings(), std::vector<std::string>());
  const Column room = Column::allocate(device, TypeKind::large_utf8, 4, {.data_bytes = 16});
  EXPECT_EQ(room.try_copy_to(device, 0, stream).value().capacity(), 4u);
  EXPECT_EQ(room.slice(2, 0).try_copy_to(device, 0, stream).value().capacity(), 0u);
  EXPECT_EQ(room.try_copy_to(device, 1, stream).failure().code(), ErrorCode::never_written);
}

TEST_P(ColumnOn, ValidityIsCopiedAsFarAsItIsWritten) {
  Buffer values(device, Shape{32}, DType::i32);
  values.fill(std::int32_t{1}, stream);
  Buffer validity(device, Shape{4}, DType::byte);
  for (const std::size_t at : {1u, 3u}) {
    Buffer part = validity.slice(at, 1);
    part.fill(std::byte{0xA5}, stream);
  }
  const Column column = Column::over(TypeKind::i32, 32, {.values = values, .validity = validity});
  const Column part = column.slice(8, 24);
  const Column copy = part.try_copy_to(device, 8, stream).value();
  const std::vector<bool> bits = {true, false, true, false, false, true, false, true};
  EXPECT_EQ(copy.slice(0, 8).to_valid(), bits);
  EXPECT_EQ(copy.slice(16, 8).to_valid(), bits);
  EXPECT_THROW(static_cast<void>(copy.slice(8, 8).to_valid()), Error) << "never written";
  EXPECT_EQ(column.try_copy_to(device, 8, stream).failure().code(), ErrorCode::never_written);
  EXPECT_EQ(part.try_copy_to(device, 9, stream).failure().code(), ErrorCode::never_written);
}

TEST_P(ColumnOn, ConcatenatesColumnsOfSeveralDevices) {
  const Device elsewhere = open_device("sim");
  const std::array<std::int32_t, 3> values = {1, 2, 3};
  const std::array<std::string_view, 2> pair = {"one", "two"};
  const std::array integers = {Column::from<std::int32_t>(elsewhere, values),
                               Column::from<std::int32_t>(device, values)};
  const Column all = Column::try_concat(integers).value();
  EXPECT_EQ(all.device(), elsewhere);
  EXPECT_EQ(all.values().to_vector<std::int32_t>(), (std::vector<std::int32_t>{1, 2, 3, 1, 2, 3}));
  const std::array texts = {Column::from_strings(device, pair),
                            Column::from_strings(elsewhere, pair)};
  EXPECT_EQ(Column::try_concat(texts).value().to_strings(), (Strings{"one", "two", "one", "two"}));
}

TEST_P(ColumnOn, WhatWasMovedFromHasNoValues) {
  const std::array<std::int32_t, 3> values = {1, 2, 3};
  const std::array<std::uint8_t, 3> there = {1, 0, 1};
  Column first = Column::from<std::int32_t>(device, values, {.valid = there}).slice(1, 2);
  Column second = std::move(first);
  Column third;
  third = std::move(second);
  for (const Column* moved : {&first, &second}) {
    EXPECT_EQ(moved->capacity(), 0u);
    EXPECT_EQ(moved->parts().first, 0u);
    EXPECT_FALSE(moved->values());
    EXPECT_TRUE(moved->to_valid().empty());
    EXPECT_EQ(moved->try_bytes().value(), 0u);
  }
  EXPECT_EQ(third.values().to_vector<std::int32_t>(), (std::vector<std::int32_t>{2, 3}));
  EXPECT_EQ(Column::try_concat(std::array{first, third}).value().capacity(), 2u);
  Column& itself = third;
  third = std::move(itself);
  EXPECT_EQ(third.capacity(), 2u);
}

TEST_P(ColumnOn, OffsetsThatLieAreNotBelieved) {
  const Column texts = Column::from_strings(device, words);
  for (const std::array<std::int32_t, 3>& wrong :
       {std::array<std::int32_t, 3>{0, 5, 2}, {-1, 2, 3}, {0, 2, 1000}}) {
    Buffer offsets(device, {3}, DType::i32);
    offsets.copy_from(std::span<const std::int32_t>(wrong));
    const Column column =
        Column::over(TypeKind::utf8, 2, {.values = texts.parts().values, .offsets = offsets});
    EXPECT_THROW(static_cast<void>(column.to_strings()), InvalidView);
    EXPECT_EQ(Column::try_concat({&column, 1}).failure().code(), ErrorCode::invalid_view);
  }
}

}  // namespace
}  // namespace tern
