#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <barrier>
#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include "support/ladder.hpp"
#include "support/on_device.hpp"
#include "support/thorough.hpp"
#include "support/thread.hpp"
#include "table/bitmap.hpp"
#include "tern/backends/catalog.hpp"
#include "tern/backends/sim.hpp"
#include "tern/buffer/copy.hpp"
#include "tern/buffer/foreign.hpp"
#include "tern/buffer/transfer_audit.hpp"
#include "tern/device/event.hpp"
#include "tern/interop/arrow.hpp"
#include "tern/interop/dlpack.hpp"
#include "tern/trace/finding.hpp"

namespace tern {
namespace {

constexpr std::array<std::string_view, 5> words = {"tern", "", "arctic", "ä", "z"};
constexpr std::array<std::uint8_t, 5> valid = {1, 0, 1, 1, 1};

class ArrowOut : public test::OnDevice {
 protected:
  void TearDown() override {
    EXPECT_EQ(exported_memory().count, 0u);
    if (device.is_open()) {
      EXPECT_EQ(reclaim_exported().count, 0u);
    }
  }
  Table sample(std::size_t rows = 5) {
    const std::array<std::int32_t, 5> numbers = {1, 2, 3, 4, 5};
    const std::array<bool, 5> flags = {true, false, true, true, false};
    return Table::make(
        Schema({{"n", TypeKind::i32, false}, {"b", TypeKind::boolean}, {"s", TypeKind::utf8}}),
        {Column::from<std::int32_t>(device, numbers),
         Column::from<bool>(device, flags, {.valid = valid}), Column::from_strings(device, words)},
        {.rows = rows});
  }
  static std::uintptr_t number(const void* address) {
    return reinterpret_cast<std::uintptr_t>(address);
  }
};
INSTANTIATE_TEST_SUITE_P(Devices, ArrowOut,
                         testing::Values("host", "sim", "sim?schedule=lazy", "cuda?driver=sim",
                                         "cuda:0"),
                         test::spec_name);

TEST_P(ArrowOut, GivesTheSameMemoryInTheFormOfTheStandard) {
  const Table table = sample();
  const TransferCounts before = transfer_counts();
  ArrowDeviceArray given;
  std::memset(&given, 0xCD, sizeof given);
  ASSERT_TRUE(try_export_arrow(table, &given, {.stream = stream}));
  EXPECT_EQ((transfer_counts() - before).device_to_host().copies, 0u);
  EXPECT_EQ(given.reserved[0] | given.reserved[1] | given.reserved[2], 0);
  const bool is_host = device.info().is_host;
  EXPECT_EQ(given.device_type, is_host ? 1 : device.info().backend == "sim" ? 12 : 2);
  EXPECT_EQ(given.device_id, is_host ? -1 : 0);
  EXPECT_EQ(given.sync_event == nullptr, is_host);
  const ArrowArray& root = given.array;
  EXPECT_EQ(root.length, 5);
  EXPECT_EQ(root.offset, 0);
  EXPECT_EQ(root.null_count, 0);
  EXPECT_EQ(root.n_buffers, 1);
  EXPECT_EQ(root.buffers[0], nullptr);
  ASSERT_EQ(root.n_children, 3);
  const ArrowArray &n = *root.children[0], &b = *root.children[1], &s = *root.children[2];
  EXPECT_EQ(n.n_buffers, 2);
  EXPECT_EQ(n.buffers[0], nullptr);
  EXPECT_EQ(number(n.buffers[1]), table.column("n")->values().address());
  EXPECT_EQ(b.null_count, 1);
  EXPECT_EQ(number(b.buffers[0]), table.column("b")->validity().address());
  EXPECT_EQ(number(b.buffers[1]), table.column("b")->parts().values.address());
  EXPECT_EQ(s.n_buffers, 3);
  EXPECT_EQ(number(s.buffers[1]), table.column("s")->offsets().address());
  EXPECT_EQ(number(s.buffers[2]), table.column("s")->values().address());
  EXPECT_EQ(number(n.buffers[1]) % 64, 0u);
  EXPECT_EQ(exported_memory().count, 5u);
  given.array.release(&given.array);
  EXPECT_EQ(given.array.release, nullptr);
}

TEST_P(ArrowOut, RoundTripsAsTheOriginalTable) {
  const Table table = sample();
  ArrowDeviceArray given;
  ArrowSchema schema;
  ASSERT_TRUE(try_export_arrow(table, &given, {.stream = stream}));
  ASSERT_TRUE(try_export_arrow_schema(table.schema(), &schema));
  const Table back = import_arrow(device, &given, &schema);
  EXPECT_EQ(given.array.release, nullptr);
  EXPECT_EQ(schema.release, nullptr);
  EXPECT_EQ(exported_memory().count, 0u);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(back.column(i)->parts().values, table.column(i)->parts().values);
    EXPECT_FALSE(back.column(i)->is_external());
  }
  ASSERT_TRUE(try_export_arrow(*table.column("s"), &given));
  ASSERT_TRUE(try_export_arrow_schema(*table.schema().field(2), &schema));
  const Column column = import_arrow_column(device, &given, &schema);
  EXPECT_EQ(column.parts().values, table.column("s")->parts().values);
}

TEST_P(ArrowOut, RoundTripsUnderOtherNames) {
  const Table table = sample();
  ArrowDeviceArray given;
  ArrowSchema schema;
  const Schema renamed({{"x", TypeKind::i32}, {"y", TypeKind::boolean}, {"z", TypeKind::utf8}},
                       Metadata({{"k", "v"}}));
  ASSERT_TRUE(try_export_arrow(table, &given, {.stream = stream}));
  ASSERT_TRUE(try_export_arrow_schema(renamed, &schema));
  const Table back = import_arrow(device, &given, &schema);
  EXPECT_EQ(back.schema(), renamed);
  EXPECT_EQ(back.rows(), 5u);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(back.column(i)->parts().values, table.column(i)->parts().values);
    EXPECT_FALSE(back.column(i)->is_external());
  }
  // Nulls are not renamed away.
  const Schema filled(
      {{"x", TypeKind::i32}, {"y", TypeKind::boolean, false}, {"z", TypeKind::utf8}});
  ASSERT_TRUE(try_export_arrow(table, &given, {.stream = stream}));
  ASSERT_TRUE(try_export_arrow_schema(filled, &schema));
  const Result<Table> refused = try_import_arrow(device, &given, &schema);
  EXPECT_EQ(refused.failure().code(), ErrorCode::arrow_rejected);
  EXPECT_EQ(refused.failure().string("field"), "array.children[1].null_count");
}

TEST_P(ArrowOut, ImportsATableThatTheConsumerChanged) {
  const std::array<std::int32_t, 5> numbers = {1, 2, 3, 4, 5}, others = {6, 7, 8, 9, 10};
  const Table table = Table::make(
      Schema({{"a", TypeKind::i32, false}, {"b", TypeKind::i32, false}}),
      {Column::from<std::int32_t>(device, numbers), Column::from<std::int32_t>(device, others)},
      {.rows = 3});
  const auto change = [&](auto&& how) {
    ArrowDeviceArray given;
    ArrowSchema schema;
    try_export_arrow(table, &given, {.stream = stream}).value();
    try_export_arrow_schema(table.schema(), &schema).value();
    how(given.array, schema);
    return import_arrow(device, &given, &schema);
  };
  const auto ints = [](const Table& from, std::size_t column) {
    return from.column(column)->values().to_vector<std::int32_t>();
  };
  {
    const Table turned = change([](ArrowArray& array, ArrowSchema& schema) {
      std::swap(array.children[0], array.children[1]);
      std::swap(schema.children[0], schema.children[1]);
    });
    EXPECT_EQ(turned.schema().field(0)->name, "b");
    EXPECT_EQ(ints(turned, 0), (std::vector<std::int32_t>{6, 7, 8}));
    const Table later =
        change([](ArrowArray& array, ArrowSchema&) { array.children[1]->offset = 2; });
    EXPECT_EQ(ints(later, 0), (std::vector<std::int32_t>{1, 2, 3}));
    EXPECT_EQ(ints(later, 1), (std::vector<std::int32_t>{8, 9, 10}));
    const Table named =
        change([](ArrowArray&, ArrowSchema& schema) { schema.children[0]->name = "c"; });
    EXPECT_EQ(named.schema().field(0)->name, "c");
    EXPECT_FALSE(named.column(0)->is_external());
  }
  device.synchronize();
  static_cast<void>(reclaim_deferred());
}

/// Somebody else's structure around one of ours, so that it is imported as a stranger's.
struct DisguisedTable {
  explicit DisguisedTable(const Table& table, StreamRef stream = {}) {
    try_export_arrow(table, &inner, {.stream = stream}).value();
    try_export_arrow_schema(table.schema(), &schema).value();
    outer = inner;
    outer.array.private_data = this;
    outer.array.release = [](ArrowArray* self) {
      DisguisedTable* const held = static_cast<DisguisedTable*>(self->private_data);
      held->inner.array.release(&held->inner.array);
      ++held->released;
      self->release = nullptr;
    };
  }
  ArrowDeviceArray inner = {}, outer = {};
  ArrowSchema schema = {};
  std::atomic<int> released = 0;
};

TEST_P(ArrowOut, IsImportedAsForeignWithoutACopy) {
  const Table table = sample();
  DisguisedTable other(table, stream);
  const TransferCounts before = transfer_counts();
  {
    const Table taken = import_arrow(device, &other.outer, &other.schema, {.stream = stream});
    EXPECT_EQ(other.released, 0);
    EXPECT_EQ(other.outer.array.release, nullptr);
    EXPECT_EQ(taken.schema(), table.schema());
    EXPECT_EQ(taken.rows(), 5u);
    EXPECT_TRUE(taken.column("n")->is_external());
    EXPECT_EQ(taken.column("n")->values().address(), table.column("n")->values().address());
    // On devices the first and the last offset are looked at, and nothing else.
    EXPECT_EQ((transfer_counts() - before).device_to_host().bytes, device.info().is_host ? 0u : 8u);
    EXPECT_EQ(taken.column("n")->values().to_vector<std::int32_t>(),
              (std::vector<std::int32_t>{1, 2, 3, 4, 5}));
    EXPECT_EQ(taken.column("b")->to_bools()[2], true);
    EXPECT_EQ(taken.column("b")->to_valid(), std::vector<bool>(valid.begin(), valid.end()));
    EXPECT_EQ(taken.column("b")->null_count(), 1u);
    EXPECT_EQ(taken.column("s")->to_strings()[2], "arctic");
    Buffer values = taken.column("n")->values();
    EXPECT_EQ(values.try_fill(std::int32_t{1}, stream).failure().code(), ErrorCode::read_only);
    stream.synchronize();
  }
  static_cast<void>(reclaim_deferred());
  EXPECT_EQ(other.released, 1);
}

TEST_P(ArrowOut, IsReclaimedImmediatelyAfterManyHandOvers) {
  std::array<std::unique_ptr<DisguisedTable>, 4> hands;
  Table table = sample();
  for (std::unique_ptr<DisguisedTable>& hand : hands) {
    hand = std::make_unique<DisguisedTable>(table, stream);
    table = import_arrow(device, &hand->outer, &hand->schema, {.stream = stream});
  }
  EXPECT_EQ(exported_memory().count, 4u * 5);
  // The last of them has a use that is not done when it is let go, and is done later.
  const Buffer copied(device, {5}, DType::i32);
  copy(copied, table.column(0)->values(), stream);
  table = Table();
  stream.synchronize();
  EXPECT_EQ(reclaim_exported().count, 0u);
  EXPECT_EQ(exported_memory().count, 0u);
  for (const std::unique_ptr<DisguisedTable>& hand : hands) EXPECT_EQ(hand->released, 1);
}

TEST_P(ArrowOut, SlicesAreOffsetsOfTheChildren) {
  const Table table = sample().slice(1, 3);
  DisguisedTable other(table, stream);
  EXPECT_EQ(other.inner.array.offset, 0);
  EXPECT_EQ(other.inner.array.children[0]->offset, 1);
  EXPECT_EQ(other.inner.array.children[1]->null_count, 1);
  {
    const Table taken = import_arrow(device, &other.outer, &other.schema);
    EXPECT_EQ(taken.column("n")->values().to_vector<std::int32_t>(),
              (std::vector<std::int32_t>{2, 3, 4}));
    EXPECT_EQ(taken.column("b")->to_valid(), (std::vector<bool>{false, true, true}));
    EXPECT_EQ(taken.column("s")->to_strings(), (std::vector<std::string>{"", "arctic", "ä"}));
  }
  static_cast<void>(reclaim_deferred());
  EXPECT_EQ(other.released, 1);
}

TEST_P(ArrowOut, NoRowsHaveNoOffset) {
  const Table table = sample().slice(3, 0);
  ArrowDeviceArray given;
  ASSERT_TRUE(try_export_arrow(table, &given));
  EXPECT_EQ(given.array.length, 0);
  for (std::int64_t i = 0; i < 3; ++i) {
    EXPECT_EQ(given.array.children[i]->offset, 0);
    EXPECT_EQ(given.array.children[i]->null_count, 0);
  }
  // Others look at the first offset of texts all the same.
  EXPECT_NE(given.array.children[2]->buffers[1], nullptr);
  given.array.release(&given.array);
  if (!device.info().is_host) return;
  const Column none = Column::over(TypeKind::utf8, 0, {});
  ArrowArray plain;
  ASSERT_TRUE(try_export_arrow(none, &plain));
  EXPECT_EQ(*static_cast<const std::int32_t*>(plain.buffers[1]), 0);
  plain.release(&plain);
}

TEST_P(ArrowOut, ExportsNoUnwrittenTexts) {
  const Table room = Table::allocate(device, Schema({{"s", TypeKind::utf8, false}}), 4,
                                     {.row_count = DType::void_, .data_bytes = 16});
  const Table copy =
      Table::make(room.schema(), {Column::over(TypeKind::utf8, 0, {})}).copy_to(device, stream);
  for (const Table& table : {room, room.slice(0, 0), copy, copy.copy_to(device, stream)}) {
    ArrowDeviceArray given;
    ASSERT_TRUE(try_export_arrow(table, &given, {.stream = stream}));
    EXPECT_EQ(given.array.length, 0);
    EXPECT_EQ(given.array.children[0]->n_buffers, 3);
    given.array.release(&given.array);
    if (!device.info().is_host) continue;
    ArrowArray plain;
    ASSERT_TRUE(try_export_arrow(table, &plain));
    EXPECT_EQ(*static_cast<const std::int32_t*>(plain.children[0]->buffers[1]), 0);
    plain.release(&plain);
  }
}

TEST_P(ArrowOut, ExportsRowsThatAreWrittenThoughOthersAreNot) {
  const Table table =
      Table::allocate(device, Schema({{"n", TypeKind::i32, false}, {"s", TypeKind::utf8, false}}),
                      16, {.data_bytes = 100});
  const std::array<std::int32_t, 3> numbers = {1, 2, 3}, offsets = {0, 2, 3};
  table.column(0)->values().slice(5, 3).copy_from(std::span<const std::int32_t>(numbers));
  table.column(1)->offsets().slice(5, 3).copy_from(std::span<const std::int32_t>(offsets));
  table.column(1)->values().slice(0, 3).try_copy_from("abc", 3).value();
  const Table rows = Table::make(
      table.schema(), {table.column(0)->slice(5, 2), table.column(1)->slice(5, 2)}, {.rows = 2});
  ArrowDeviceArray given;
  const Result<void> exported = try_export_arrow(rows, &given, {.stream = stream});
  ASSERT_TRUE(exported) << exported.failure().text();
  EXPECT_EQ(given.array.children[0]->offset, 5);
  EXPECT_EQ(number(given.array.children[0]->buffers[1]), table.column(0)->values().address());
  given.array.release(&given.array);
  // Unwritten rows are not exported.
  const Table more = Table::make(
      table.schema(), {table.column(0)->slice(4, 2), table.column(1)->slice(5, 2)}, {.rows = 2});
  EXPECT_EQ(try_export_arrow(more, &given, {.stream = stream}).failure().code(),
            ErrorCode::never_written);
}

TEST_P(ArrowOut, NoRowsAreOnTheDeviceOfTheTable) {
  // A filter that nothing passed, and a table without room: who looks for them on the device finds
  // them there.
  Table filtered = Table::allocate(device, Schema({{"n", TypeKind::i32, false}}), 100);
  filtered.set_rows(0, stream);
  const std::vector<std::int32_t> nothing;
  const Table none = Table::make(Schema({{"n", TypeKind::i32, false}}),
                                 {Column::from<std::int32_t>(device, nothing)});
  const bool is_host = device.info().is_host;
  const int type = is_host ? 1 : device.info().backend == "sim" ? 12 : 2;
  for (const Table& table : {filtered, none}) {
    ArrowDeviceArray given;
    ArrowSchema schema;
    ASSERT_TRUE(try_export_arrow(table, &given, {.stream = stream}));
    EXPECT_EQ(given.device_type, type);
    EXPECT_EQ(given.device_id, is_host ? -1 : 0);
    EXPECT_EQ(given.sync_event, nullptr);
    ASSERT_TRUE(try_export_arrow_schema(table.schema(), &schema));
    EXPECT_EQ(import_arrow(device, &given, &schema).rows_host(), 0u);

    ASSERT_TRUE(try_export_arrow(table.column(0)->slice(0, 0), &given));
    EXPECT_EQ(given.device_type, type);
    given.array.release(&given.array);

    // Also after they were a stranger's.
    DisguisedTable other(table, stream);
    const Table taken = import_arrow(device, &other.outer, &other.schema);
    EXPECT_EQ(taken.device(), device);
    ASSERT_TRUE(try_export_arrow(taken, &given));
    EXPECT_EQ(given.device_type, type);
    given.array.release(&given.array);
    abi::DLManagedTensorVersioned* const tensor = try_export_dlpack_column(taken, 0).value();
    EXPECT_EQ(tensor->dl_tensor.shape[0], 0);
    tensor->deleter(tensor);

    ArrowDeviceArrayStream chunks;
    ASSERT_TRUE(try_export_arrow({&table, 1}, &chunks));
    EXPECT_EQ(chunks.device_type, type);
    EXPECT_EQ(try_import_arrow(device, &chunks).value().rows_host(), 0u);
  }
}

TEST_P(ArrowOut, ExportsOnlyExistingRows) {
  const Table table = sample(2);
  ArrowDeviceArray given;
  ASSERT_TRUE(try_export_arrow(table, &given));
  EXPECT_EQ(given.array.length, 2);
  EXPECT_EQ(given.array.children[1]->length, 2);
  EXPECT_EQ(given.array.children[1]->null_count, 1);
  given.array.release(&given.array);
  // A count that only the device knows is asked for.
  Buffer count(device, {1}, DType::u32);
  count.fill(std::uint32_t{3}, stream);
  const Table counted = Table::make(
      table.schema(), {table.columns().begin(), table.columns().end()}, {.row_count = count});
  ASSERT_TRUE(try_export_arrow(counted, &given));
  EXPECT_EQ(given.array.length, 3);
  given.array.release(&given.array);
  count.fill(std::uint32_t{6}, stream);
  EXPECT_EQ(try_export_arrow(counted, &given).failure().code(), ErrorCode::invalid_view);
  EXPECT_EQ(given.array.release, nullptr);
}

TEST_P(ArrowOut, EveryTypeGoesOutEmptyAndFull) {
  std::vector<Field> fields;
  std::vector<Column> columns;
  for (unsigned kind = 0; kind <= static_cast<unsigned>(TypeKind::large_binary); ++kind) {
    const LogicalType type(static_cast<TypeKind>(kind));
    fields.push_back({std::string(name(type.kind())), type});
    if (type.is_variable()) {
      columns.push_back(Column::from_strings(device, words, type, {.valid = valid}));
    } else if (type.is_bits()) {
      columns.push_back(Column::from<std::uint8_t>(device, valid, type, {.valid = valid}));
    } else {
      const std::array<std::uint64_t, 5> raw = {1, 2, 3, 4, 5};
      columns.push_back(
          Column::try_from(device, raw.data(), 5, type.dtype(), type, {.valid = valid}).value());
    }
  }
  const Table table = Table::make(Schema(fields), columns);
  for (const std::size_t rows : {5u, 0u}) {
    DisguisedTable other(table.slice(0, rows), stream);
    {
      const Table taken = import_arrow(device, &other.outer, &other.schema);
      EXPECT_EQ(taken.schema(), table.schema());
      EXPECT_EQ(taken.rows(), rows);
      for (std::size_t i = 0; i < columns.size() && rows != 0; ++i) {
        EXPECT_EQ(taken.column(i)->null_count(), 1u);
        EXPECT_EQ(taken.column(i)->try_bytes().value(), table.column(i)->try_bytes().value());
      }
    }
    static_cast<void>(reclaim_deferred());
    EXPECT_EQ(other.released, 1);
  }
}

TEST_P(ArrowOut, AChildThatWasMovedOutKeepsItsMemoryAndNoMore) {
  ArrowDeviceArray given;
  ASSERT_TRUE(try_export_arrow(sample(), &given));
  ArrowArray child = *given.array.children[2];
  given.array.children[2]->release = nullptr;
  ArrowArray moved;
  std::memcpy(&moved, &given.array, sizeof moved);
  std::memset(&given, 0xCD, sizeof given);
  EXPECT_EQ(exported_memory().count, 5u);
  test::Thread([&] { moved.release(&moved); }).join();
  EXPECT_EQ(moved.release, nullptr);
  EXPECT_EQ(exported_memory().count, 2u);
  EXPECT_EQ(child.length, 5);
  EXPECT_NE(child.buffers[2], nullptr);
  child.release(&child);
  EXPECT_EQ(child.release, nullptr);
}

TEST(ArrowMoved, AChildThatWasMovedOutDoesNotKeepTheOthers) {
  const Device host = open_device("host");
  std::array<std::array<std::int32_t, 4>, 3> memory = {};
  std::array<int, 3> gone = {};
  const auto ship = [&](ArrowArray& out) {
    gone = {};
    std::vector<Column> columns;
    for (std::size_t i = 0; i < 3; ++i) {
      Buffer values = adopt(host, memory[i].data(), Shape{4}, DType::i32,
                            {.on_release = [&gone, i] { ++gone[i]; }});
      columns.push_back(Column::over(TypeKind::i32, 4, {.values = std::move(values)}));
    }
    export_arrow(Table::make(Schema({{"a", TypeKind::i32, false},
                                     {"b", TypeKind::i32, false},
                                     {"c", TypeKind::i32, false}}),
                             std::move(columns)),
                 &out);
  };
  const auto move_out = [](ArrowArray& from, std::size_t child) {
    const ArrowArray moved = *from.children[child];
    from.children[child]->release = nullptr;
    return moved;
  };
  ArrowArray out;
  ship(out);
  ArrowArray a = move_out(out, 0), b = move_out(out, 1);
  out.release(&out);
  EXPECT_EQ(gone, (std::array{0, 0, 1}));
  a.release(&a);
  EXPECT_EQ(gone, (std::array{1, 0, 1}));
  // It still is what it was, and comes back as that.
  {
    ArrowSchema schema;
    ASSERT_TRUE(try_export_arrow_schema(Field{"b", TypeKind::i32, false}, &schema));
    const Column back = try_import_arrow_column(host, &b, &schema).value();
    EXPECT_EQ(back.values().address(), reinterpret_cast<std::uintptr_t>(memory[1].data()));
    EXPECT_EQ(b.release, nullptr);
    EXPECT_EQ(gone, (std::array{1, 0, 1}));
  }
  EXPECT_EQ(gone, (std::array{1, 1, 1}));
  // A struct that has lost a child comes back as nothing.
  {
    ArrowSchema schema;
    ship(out);
    ASSERT_TRUE(try_export_arrow_schema(Schema({{"a", TypeKind::i32, false},
                                                {"b", TypeKind::i32, false},
                                                {"c", TypeKind::i32, false}}),
                                        &schema));
    a = move_out(out, 0);
    a.release(&a);
    const Result<Table> lost = try_import_arrow(host, &out, &schema);
    EXPECT_EQ(lost.failure().string("field"), "array.children[0].release");
    EXPECT_EQ(gone, (std::array{1, 1, 1}));
  }
  // The child first, and both at once.
  ship(out);
  a = move_out(out, 0);
  a.release(&a);
  out.release(&out);
  EXPECT_EQ(gone, (std::array{1, 1, 1}));
  for (int i = 0; i < 200; ++i) {
    ship(out);
    a = move_out(out, 0), b = move_out(out, 2);
    test::Thread other([&] { a.release(&a); });
    test::Thread another([&] { b.release(&b); });
    out.release(&out);
    other.join();
    another.join();
    ASSERT_EQ(gone, (std::array{1, 1, 1}));
  }
  EXPECT_EQ(exported_memory().count, 0u);
}

TEST_P(ArrowOut, TheEventAloneIsEnoughToWaitFor) {
  if (device.info().is_host) GTEST_SKIP() << "the host has no events";
  const Stream writer(device), reader(device);
  Column column = Column::allocate(device, TypeKind::i32, 1000);
  Buffer values = column.values();
  values.fill(std::int32_t{7}, writer);
  ArrowDeviceArray given;
  ASSERT_TRUE(try_export_arrow(column, &given));
  ASSERT_NE(given.sync_event, nullptr);
  // As a consumer does it, who knows nothing of Tern.
  NativeEvent native;
  std::memcpy(&native.value, given.sync_event, sizeof native.value);
  reader.wait(Event::try_borrow(device, native).value());
  std::vector<std::int32_t> seen(1000);
  reader.copy(seen.data(), given.array.buffers[1], seen.size() * 4);
  reader.synchronize();
  EXPECT_EQ(seen, std::vector<std::int32_t>(1000, 7));
  given.array.release(&given.array);
}

TEST_P(ArrowOut, RejectsUnsupportedTables) {
  ArrowDeviceArray given;
  ArrowArray plain;
  const Column unwritten = Column::allocate(device, TypeKind::i32, 4);
  EXPECT_EQ(try_export_arrow(unwritten, &given).failure().code(), ErrorCode::never_written);
  EXPECT_EQ(given.array.release, nullptr);
  EXPECT_EQ(try_export_arrow(sample(), static_cast<ArrowArray*>(nullptr)).failure().code(),
            ErrorCode::invalid_argument);
  const Table endless = Table::make(Schema(), {}, {.rows = ~std::uint64_t{0}});
  EXPECT_EQ(try_export_arrow(endless, &plain).failure().code(), ErrorCode::size_overflow);
  const Table table = sample();
  const Result<void> as_host = try_export_arrow(table, &plain);
  if (device.info().is_host) {
    ASSERT_TRUE(as_host);
    plain.release(&plain);
    return;
  }
  EXPECT_EQ(as_host.failure().code(), ErrorCode::arrow_rejected);
  EXPECT_EQ(plain.release, nullptr);
  const Device other = open_device("sim");
  const Stream theirs(other);
  if (device != other) {
    EXPECT_EQ(try_export_arrow(table, &given, {.stream = theirs}).failure().code(),
              ErrorCode::device_mismatch);
  }
}

TEST_P(ArrowOut, PinnedMemoryHasAnAddressForTheHost) {
  if (!device.can(Capability::pinned_memory)) GTEST_SKIP() << "no pinned memory";
  const std::array<std::int32_t, 3> numbers = {1, 2, 3};
  const Column column =
      Column::from<std::int32_t>(device, numbers, {.storage = {.kind = MemoryKind::pinned}});
  ArrowArray plain;
  ASSERT_TRUE(try_export_arrow(column, &plain));
  EXPECT_EQ(static_cast<const std::int32_t*>(plain.buffers[1])[2], 3);
  plain.release(&plain);
  if (device.info().is_host || device.info().backend == "sim") return;
  ArrowDeviceArray given;
  ASSERT_TRUE(try_export_arrow(column, &given));
  EXPECT_EQ(given.device_type, ARROW_DEVICE_CUDA_HOST);
  EXPECT_EQ(given.device_id, 0);
  EXPECT_NE(given.sync_event, nullptr);
  given.array.release(&given.array);
  // One array, one kind of memory.
  const Table mixed = Table::make(Schema({{"a", TypeKind::i32}, {"b", TypeKind::i32}}),
                                  {column, Column::from<std::int32_t>(device, numbers)});
  EXPECT_EQ(try_export_arrow(mixed, &given).failure().code(), ErrorCode::arrow_rejected);
}

TEST(ArrowStreamOut, GivesChunksAndThenTheEndAgainAndAgain) {
  const Device host = open_device("host");
  const std::array<std::int32_t, 3> numbers = {1, 2, 3};
  const Table one =
      Table::make(Schema({{"n", TypeKind::i32}}), {Column::from<std::int32_t>(host, numbers)});
  const Table chunks[] = {one, one.slice(1, 1), one.slice(0, 0)};
  ArrowArrayStream stream;
  ASSERT_TRUE(try_export_arrow(chunks, &stream));
  ArrowSchema schema;
  ASSERT_EQ(stream.get_schema(&stream, &schema), 0);
  EXPECT_EQ(try_import_arrow_schema(&schema).value(), one.schema());
  ArrowArray kept;
  ASSERT_EQ(stream.get_next(&stream, &kept), 0);
  ArrowArray next;
  for (const std::int64_t length : {1, 0}) {
    ASSERT_EQ(stream.get_next(&stream, &next), 0);
    EXPECT_EQ(next.length, length);
    next.release(&next);
  }
  for (int i = 0; i < 3; ++i) {
    std::memset(&next, 0xCD, sizeof next);
    ASSERT_EQ(stream.get_next(&stream, &next), 0);
    EXPECT_EQ(next.release, nullptr);
  }
  EXPECT_EQ(stream.get_last_error(&stream), nullptr);
  stream.release(&stream);
  EXPECT_EQ(stream.release, nullptr);
  // Chunks outlive their stream.
  EXPECT_EQ(static_cast<const std::int32_t*>(kept.children[0]->buffers[1])[2], 3);
  kept.release(&kept);
  // And a whole one comes back together.
  ASSERT_TRUE(try_export_arrow(chunks, &stream));
  const Table all = try_import_arrow(host, &stream).value();
  EXPECT_EQ(stream.release, nullptr);
  EXPECT_EQ(all.column(0)->values().to_vector<std::int32_t>(),
            (std::vector<std::int32_t>{1, 2, 3, 2}));
  EXPECT_EQ(exported_memory().count, 0u);
  EXPECT_EQ(try_export_arrow(std::span<const Table>(), &stream).failure().code(),
            ErrorCode::invalid_argument);
}

TEST(ArrowStreamOut, SaysWhyAChunkCannotBe) {
  const Device sim = open_device("sim");
  const std::array<std::int32_t, 3> numbers = {1, 2, 3};
  const Table table =
      Table::make(Schema({{"n", TypeKind::i32}}), {Column::from<std::int32_t>(sim, numbers)});
  ArrowArrayStream stream;
  ASSERT_TRUE(try_export_arrow({&table, 1}, &stream));
  ArrowArray next;
  EXPECT_NE(stream.get_next(&stream, &next), 0);
  ASSERT_NE(stream.get_last_error(&stream), nullptr);
  EXPECT_NE(std::string(stream.get_last_error(&stream)).find("the host cannot access"),
            std::string::npos);
  stream.release(&stream);
}

TEST(ArrowStreamOut, TheStreamItWasMadeForMayEndWhileAChunkIsAskedFor) {
  const Device device = sim::open({});
  const std::array<std::int32_t, 3> numbers = {1, 2, 3};
  const Table one =
      Table::make(Schema({{"n", TypeKind::i32}}), {Column::from<std::int32_t>(device, numbers)});
  const std::vector<Table> chunks(8, one);
  const int rounds = test::races(5'000);
  const Stream writer(device);
  Stream named;
  std::barrier<> both(2);
  test::Thread ends([&] {
    for (int i = 0; i < rounds; ++i) {
      both.arrive_and_wait();
      // A little later each time, to meet every moment.
      for (int j = 0; j < i % 64; ++j) static_cast<void>(writer.next_mark());
      named = Stream();
      both.arrive_and_wait();
    }
  });
  std::string error;
  for (int i = 0; i < rounds; ++i) {
    named = Stream(device);
    Buffer values = one.column(0)->values();
    values.fill(std::int32_t{i}, writer);
    ArrowDeviceArrayStream stream;
    export_arrow(std::span<const Table>(chunks), &stream, {.stream = named});
    both.arrive_and_wait();
    for (std::size_t j = 0; j < chunks.size(); ++j) {
      ArrowDeviceArray next;
      if (stream.get_next(&stream, &next) == 0) {
        next.array.release(&next.array);
      } else {
        error = stream.get_last_error(&stream);
      }
    }
    stream.release(&stream);
    both.arrive_and_wait();
  }
  ends.join();
  EXPECT_EQ(error, "");
  const std::vector<Finding> findings = sim::findings(device);
  EXPECT_TRUE(findings.empty()) << findings.size() << ", first " << findings.front().text();
}

TEST(ArrowStreamOut, TheDeviceOfTheStreamItWasMadeForMayBeClosed) {
  const Device device = sim::open({});
  const std::array<std::int32_t, 3> numbers = {1, 2, 3};
  const Table one =
      Table::make(Schema({{"n", TypeKind::i32}}), {Column::from<std::int32_t>(device, numbers)});
  ArrowDeviceArrayStream stream;
  {
    const Device other = sim::open({});
    const Stream named(other);
    export_arrow(std::span<const Table>(&one, 1), &stream, {.stream = named});
  }
  ArrowDeviceArray next;
  ASSERT_EQ(stream.get_next(&stream, &next), 0);
  EXPECT_NE(next.sync_event, nullptr);
  next.array.release(&next.array);
  stream.release(&stream);
}

}  // namespace
}  // namespace tern
