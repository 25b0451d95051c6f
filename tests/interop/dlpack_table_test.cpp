#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "support/ladder.hpp"
#include "support/on_device.hpp"
#include "tern/backends/catalog.hpp"
#include "tern/backends/sim.hpp"
#include "tern/buffer/foreign.hpp"
#include "tern/buffer/transfer_audit.hpp"
#include "tern/interop/dlpack.hpp"

namespace tern {
namespace {

using abi::DLManagedTensor;
using abi::DLManagedTensorVersioned;

constexpr std::array<std::int32_t, 6> numbers = {1, 2, 3, 4, 5, 6};
constexpr std::array<std::uint8_t, 6> valid_rows = {1, 0, 1, 1, 1, 1};

class DlpackTable : public test::OnDevice {
 protected:
  void TearDown() override {
    EXPECT_EQ(exported_memory().count, 0u);
    if (device.is_open()) {
      EXPECT_EQ(reclaim_exported().count, 0u);
    }
  }
  Column column(const ColumnOptions& options = {}) {
    return Column::from<std::int32_t>(device, numbers, options);
  }
  Table table(Column one, const TableOptions& options = {}) {
    return Table::make(Schema({{"n", one.type()}}), {std::move(one)}, options);
  }
  /// Columns of f32 behind each other in one storage.
  Table columns_in(const Buffer& storage, std::size_t rows, std::size_t count,
                   const TableOptions& options = {}) {
    std::vector<Field> fields;
    std::vector<Column> columns;
    for (std::size_t i = 0; i < count; ++i) {
      fields.push_back({std::string(1, static_cast<char>('a' + i)), TypeKind::f32, false});
      columns.push_back(
          Column::over(TypeKind::f32, rows, {.values = storage.slice(i * rows, rows)}));
    }
    return Table::make(Schema(fields), columns, options);
  }
  Buffer count_up(std::size_t count) {
    std::vector<float> values(count);
    std::iota(values.begin(), values.end(), 0.0f);
    Buffer made(device, Shape{count}, DType::f32);
    made.copy_from(std::span<const float>(values));
    return made;
  }
};
INSTANTIATE_TEST_SUITE_P(Devices, DlpackTable,
                         testing::Values("host", "sim", "sim?schedule=lazy", "cuda?driver=sim",
                                         "cuda:0"),
                         test::spec_name);

TEST_P(DlpackTable, AColumnIsOneDimensionOfTheRowsThatAreThere) {
  const Table some = table(column(), {.rows = 4});
  DLManagedTensorVersioned* const given = try_export_dlpack_column(some, 0).value();
  const abi::DLTensor& tensor = given->dl_tensor;
  EXPECT_EQ(tensor.ndim, 1);
  EXPECT_EQ(tensor.shape[0], 4) << "the rows, and not the room for them";
  EXPECT_EQ(tensor.strides[0], 1);
  EXPECT_EQ(tensor.byte_offset, 0u);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(tensor.data), some.column(0)->values().address());
  // Many share one table, and the table may go.
  DLManagedTensorVersioned* const again = try_export_dlpack_column(some, "n").value();
  DLManagedTensor* const older = try_export_dlpack_column_legacy(some, 0).value();
  EXPECT_EQ(again->dl_tensor.data, tensor.data);
  EXPECT_EQ(older->dl_tensor.data, tensor.data);
  EXPECT_EQ(exported_memory().count, 3u);
  again->deleter(again);
  older->deleter(older);
  EXPECT_EQ(import_dlpack(device, given).buffer(), some.column(0)->values().slice(0, 4));
}

TEST_P(DlpackTable, RowsThatOnlyTheDeviceKnowsAreAskedForOnce) {
  Buffer count(device, {1}, DType::u32);
  count.fill(std::uint32_t{5}, stream);
  const Table counted = table(column(), {.row_count = count});
  const Result<DLManagedTensorVersioned*> refused =
      try_export_dlpack_column(counted, 0, {.is_unordered = true});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.failure().code(), ErrorCode::dlpack_rejected);
  EXPECT_NE(refused.failure().text().find("rows_host()"), std::string::npos);
  const TransferCounts before = transfer_counts();
  for (int i = 0; i < 2; ++i) {
    DLManagedTensorVersioned* const given = try_export_dlpack_column(counted, 0).value();
    EXPECT_EQ(given->dl_tensor.shape[0], 5);
    given->deleter(given);
  }
  EXPECT_EQ((transfer_counts() - before).device_to_host().bytes, device.info().is_host ? 0u : 4u);
  // Known now, so nobody has to wait.
  DLManagedTensorVersioned* const given =
      try_export_dlpack_column(counted, 0, {.is_unordered = true}).value();
  given->deleter(given);
  count.fill(std::uint32_t{7}, stream);
  const Failure beyond = try_export_dlpack_column(counted, 0).failure();
  EXPECT_EQ(beyond.code(), ErrorCode::dlpack_rejected);
  EXPECT_EQ(beyond.number("rows"), 7u);
  EXPECT_EQ(beyond.number("capacity"), 6u);
  EXPECT_EQ(try_export_dlpack(counted).failure().number("rows"), 7u);
}

TEST_P(DlpackTable, RefusesWhatATensorCannotSayAndNamesTheBuffersThatCanGo) {
  const std::array<bool, 6> flags = {true, false, true, true, false, true};
  const std::array<std::string_view, 6> words = {"a", "b", "", "d", "e", "f"};
  struct Case {
    Column column;
    const char* way;
  };
  const Case cases[] = {{column({.valid = valid_rows}), "validity()"},
                        {Column::from<bool>(device, flags), "unpack()"},
                        {Column::from_strings(device, words), "offsets()"}};
  for (const Case& one : cases) {
    const Table refused = table(one.column);
    for (const Failure& failure : {try_export_dlpack_column(refused, 0).failure(),
                                   try_export_dlpack_column_legacy(refused, 0).failure(),
                                   try_export_dlpack(refused).failure()}) {
      EXPECT_EQ(failure.code(), ErrorCode::dlpack_rejected);
      EXPECT_EQ(failure.string("column"), "n");
      EXPECT_NE(failure.text().find(one.way), std::string::npos) << failure.text();
    }
  }
  // The way out for truth values: a byte for each.
  DLManagedTensorVersioned* const bytes =
      try_export_dlpack(Column::from<bool>(device, flags).unpack()).value();
  EXPECT_EQ(bytes->dl_tensor.dtype.code, abi::kDLBool);
  bytes->deleter(bytes);
  // Missing values behind the rows that are there are nobody's.
  std::array<std::uint8_t, 6> last = {1, 1, 1, 1, 1, 0};
  DLManagedTensorVersioned* const rest =
      try_export_dlpack_column(table(column({.valid = last}), {.rows = 5}), 0).value();
  EXPECT_EQ(rest->dl_tensor.shape[0], 5);
  rest->deleter(rest);
  EXPECT_EQ(try_export_dlpack_column(table(column()), 1).failure().code(),
            ErrorCode::out_of_bounds);
  EXPECT_EQ(try_export_dlpack_column(table(column()), "m").failure().code(), ErrorCode::not_found);
  EXPECT_EQ(try_export_dlpack(Table()).failure().code(), ErrorCode::dlpack_rejected);
  const Column none = Column::over(TypeKind::i32, 0, {});
  EXPECT_EQ(try_export_dlpack_column(table(none), 0).failure().code(), ErrorCode::not_allocated);
}

TEST_P(DlpackTable, ATableThatCoversItsMemoryExactlyIsOneTensor) {
  const Buffer storage = count_up(12);
  const Table whole = columns_in(storage, 4, 3);
  DLManagedTensorVersioned* const given = try_export_dlpack(whole).value();
  const abi::DLTensor& tensor = given->dl_tensor;
  EXPECT_EQ(tensor.ndim, 2);
  EXPECT_EQ(tensor.shape[0], 4);
  EXPECT_EQ(tensor.shape[1], 3);
  EXPECT_EQ(tensor.strides[0], 1);
  EXPECT_EQ(tensor.strides[1], 4);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(tensor.data), storage.address());
  EXPECT_EQ(import_dlpack(device, given).contiguous(stream).to_vector<float>(),
            (std::vector<float>{0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11}));
}

TEST_P(DlpackTable, ATableIsNeverCutAndNeverPadded) {
  const Buffer storage = count_up(13);
  const Buffer fits = storage.slice(0, 12);
  const auto refused = [&](const Table& part, const char* column) {
    const Result<DLManagedTensorVersioned*> given = try_export_dlpack(part);
    ASSERT_FALSE(given);
    EXPECT_EQ(given.failure().code(), ErrorCode::dlpack_rejected);
    EXPECT_EQ(given.failure().string("column"), column) << given.failure().text();
  };
  refused(columns_in(fits, 4, 3), "c");                  // one element is left
  refused(columns_in(storage.slice(1, 12), 4, 3), "a");  // and here before it
  const Buffer exact = count_up(12);
  refused(columns_in(exact, 4, 2), "b");               // a third of it is left
  refused(columns_in(exact, 4, 3, {.rows = 3}), "a");  // not all of them are rows
  const Table whole = columns_in(exact, 4, 3);
  const std::size_t turned[] = {1, 0, 2};
  refused(whole.select(turned), "b");
  refused(whole.slice(0, 2), "b");
  refused(Table::make(Schema({{"a", TypeKind::f32}, {"b", TypeKind::f32}}),
                      {*whole.column(0), Column::over(TypeKind::f32, 4, {.values = count_up(4)})}),
          "b");
  refused(Table::make(
              Schema({{"a", TypeKind::f32}, {"b", TypeKind::i32}}),
              {*whole.column(0),
               Column::over(TypeKind::i32, 4, {.values = exact.as<std::int32_t>().slice(4, 4)})}),
          "b");
}

// --- What others give

/// A tensor of somebody else's on the host, who counts how often he is let go.
struct Stranger {
  explicit Stranger(std::int64_t count = 6, abi::DLDataType type = {abi::kDLInt, 32, 1})
      : shape{count, 1} {
    managed.version = {1, 3};
    managed.manager_ctx = legacy.manager_ctx = this;
    managed.deleter = [](DLManagedTensorVersioned* self) {
      ++static_cast<Stranger*>(self->manager_ctx)->deleted;
    };
    legacy.deleter = [](DLManagedTensor* self) {
      ++static_cast<Stranger*>(self->manager_ctx)->deleted;
    };
    managed.dl_tensor = {values.data(), {abi::kDLCPU, 0}, 1, type, shape.data(), strides.data(), 0};
    legacy.dl_tensor = managed.dl_tensor;
  }
  Stranger(const Stranger&) = delete;
  Stranger& operator=(const Stranger&) = delete;

  alignas(64) std::array<std::int64_t, 16> values = {1, 2, 3};
  std::array<std::int64_t, 2> shape, strides = {1, 1};
  std::atomic<int> deleted = 0;
  DLManagedTensorVersioned managed = {};
  DLManagedTensor legacy = {};
};

class DlpackColumns : public testing::Test {
 protected:
  ErrorCode refusal(Stranger& stranger, const DlpackOptions& options = {}) {
    const Result<Column> taken = try_import_dlpack_column(host, &stranger.managed, options);
    EXPECT_FALSE(taken);
    EXPECT_EQ(stranger.deleted, 1);
    return taken.failure().code();
  }
  Device host = open_device("host");
};

TEST_F(DlpackColumns, ATensorOfOneDimensionIsAColumnWhereItIs) {
  Stranger one, two;
  {
    const Column taken = try_import_dlpack_column(host, &one.managed).value();
    EXPECT_EQ(taken.type(), LogicalType(TypeKind::i32));
    EXPECT_EQ(taken.capacity(), 6u);
    EXPECT_EQ(taken.null_count(), 0u);
    EXPECT_TRUE(taken.is_external());
    EXPECT_EQ(taken.values().address(), reinterpret_cast<std::uintptr_t>(one.values.data()));
    EXPECT_EQ(one.deleted, 0);
  }
  EXPECT_EQ(one.deleted, 1);
  {
    const Column taken = try_import_dlpack_column(host, &two.legacy).value();
    EXPECT_TRUE(taken.values().storage()->is_read_only());
  }
  EXPECT_EQ(two.deleted, 1);
  Stranger empty(0);
  EXPECT_EQ(try_import_dlpack_column(host, &empty.managed).value().capacity(), 0u);
}

TEST_F(DlpackColumns, OtherShapesAreTensorsAndNoColumns) {
  Stranger flat(3);
  flat.managed.dl_tensor.ndim = 2;
  EXPECT_EQ(refusal(flat), ErrorCode::dlpack_rejected);
  Stranger scalar;
  scalar.managed.dl_tensor.ndim = 0;
  EXPECT_EQ(refusal(scalar), ErrorCode::dlpack_rejected);
  for (const std::int64_t stride : {2, 0, -1}) {
    Stranger apart(3);
    apart.strides[0] = stride;
    if (stride < 0) apart.managed.dl_tensor.data = &apart.values[8];
    EXPECT_EQ(refusal(apart), ErrorCode::dlpack_rejected) << stride;
  }
  Stranger shifted(3);
  shifted.managed.dl_tensor.byte_offset = 1;
  EXPECT_EQ(refusal(shifted), ErrorCode::misaligned);
  Stranger truth(3, {abi::kDLBool, 8, 1});
  EXPECT_EQ(refusal(truth), ErrorCode::dlpack_rejected);
  Stranger brain(3, {abi::kDLBfloat, 16, 1});
  EXPECT_EQ(refusal(brain), ErrorCode::type_mismatch);
  Stranger elsewhere(3);
  elsewhere.managed.dl_tensor.device = {abi::kDLCUDA, 0};
  EXPECT_EQ(refusal(elsewhere), ErrorCode::device_mismatch);
  Stranger lengthy(3);
  EXPECT_EQ(refusal(lengthy, {.rows = 4}), ErrorCode::size_mismatch);
}

TEST_F(DlpackColumns, WhatMayChangeIsWhatASchemaSays) {
  struct Case {
    abi::DLDataType given;
    Field wanted;
    bool is_exact, is_allowed;
  };
  const Field symbol = {"x", TypeKind::u32, true, Metadata({{"tern.type", "symbol"}})};
  const Case cases[] = {
      {{abi::kDLInt, 32, 1}, {"x", TypeKind::i32}, true, true},
      {{abi::kDLInt, 32, 1}, {"x", TypeKind::u32}, false, true},
      {{abi::kDLUInt, 64, 1}, {"x", TypeKind::i64}, false, true},
      {{abi::kDLUInt, 32, 1}, symbol, false, true},
      {{abi::kDLInt, 32, 1}, symbol, false, true},
      {{abi::kDLInt, 32, 1}, {"x", TypeKind::i64}, false, false},
      {{abi::kDLInt, 32, 1}, {"x", TypeKind::f32}, false, false},
      {{abi::kDLFloat, 32, 1}, {"x", TypeKind::i32}, false, false},
      {{abi::kDLFloat, 64, 1}, {"x", TypeKind::f32}, false, false},
      {{abi::kDLInt, 64, 1}, {"x", LogicalType::timestamp(TimeUnit::second)}, false, false}};
  for (const Case& one : cases) {
    for (const bool is_lenient : {false, true}) {
      Stranger stranger(3, one.given);
      {
        const Result<Column> taken = try_import_dlpack_column(
            host, &stranger.managed,
            {.field = one.wanted,
             .match = {.allows_sign_change = is_lenient, .allows_symbol_as_number = is_lenient}});
        EXPECT_EQ(bool(taken), is_lenient ? one.is_allowed : one.is_exact)
            << one.wanted.type.text();
        if (taken) {
          EXPECT_EQ(taken->type(), one.wanted.type);
        } else {
          EXPECT_EQ(taken.failure().code(), ErrorCode::type_mismatch);
        }
      }
      EXPECT_EQ(stranger.deleted, 1);
    }
  }
}

TEST_F(DlpackColumns, ATableIsATensorForEachField) {
  const Schema schema({{"a", TypeKind::i32}, {"b", TypeKind::f64, false}});
  {
    Stranger one(3), two(3, {abi::kDLFloat, 64, 1});
    DLManagedTensorVersioned* const tensors[] = {&one.managed, &two.managed};
    {
      const Table taken = try_import_dlpack_table(host, schema, tensors).value();
      EXPECT_EQ(taken.rows(), 3u);
      EXPECT_EQ(taken.schema(), schema);
      EXPECT_EQ(one.deleted + two.deleted, 0);
    }
    EXPECT_EQ(one.deleted, 1);
    EXPECT_EQ(two.deleted, 1);
  }
  // Whichever is wrong, all are let go, once each.
  const auto refused = [&](std::int64_t first, std::int64_t second, std::size_t count) {
    Stranger one(first), two(second, {abi::kDLFloat, 64, 1}), three(3);
    DLManagedTensorVersioned* const tensors[] = {&one.managed, &two.managed, &three.managed};
    const Result<Table> taken =
        try_import_dlpack_table(host, schema, std::span(tensors).first(count));
    EXPECT_FALSE(taken);
    EXPECT_EQ(one.deleted, 1);
    EXPECT_EQ(two.deleted, count > 1 ? 1 : 0);
    EXPECT_EQ(three.deleted, count > 2 ? 1 : 0);
    return taken.failure().code();
  };
  EXPECT_EQ(refused(3, 4, 2), ErrorCode::size_mismatch);
  EXPECT_EQ(refused(-3, 3, 2), ErrorCode::dlpack_rejected);
  EXPECT_EQ(refused(3, 3, 1), ErrorCode::shape_mismatch);
  EXPECT_EQ(refused(3, 3, 3), ErrorCode::shape_mismatch);
}

}  // namespace
}  // namespace tern
