// The heap allocations and device calls of an exchange, and its behaviour when the heap is
// exhausted.

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/spare_records.hpp"
#include "support/allocation_counter.hpp"
#include "support/arrow_stranger.hpp"
#include "support/fake_backend.hpp"
#include "support/gate.hpp"
#include "tern/backends/catalog.hpp"
#include "tern/backends/sim.hpp"
#include "tern/buffer/foreign.hpp"
#include "tern/interop/arrow.hpp"
#include "tern/interop/dlpack.hpp"

namespace tern {
namespace {

using abi::DLManagedTensorVersioned;
using test::AllocationCounter;
using test::HeapExhausted;

/// Records that are kept for the next are made once, unless a sanitizer wants to see them all.
constexpr std::size_t per_record = keeps_spare_records ? 0 : 1;

Table wide_table(const Device& device, std::size_t columns) {
  std::vector<Field> fields;
  std::vector<Column> made;
  const std::array<std::int64_t, 4> values = {1, 2, 3, 4};
  for (std::size_t i = 0; i < columns; ++i) {
    fields.push_back({"column " + std::to_string(i), TypeKind::i64, i % 2 == 0});
    made.push_back(Column::from<std::int64_t>(device, values));
  }
  fields.push_back({"time", LogicalType::timestamp(TimeUnit::nanosecond, "Atlantic/Reykjavik"),
                    true, Metadata({{"unit", "none"}})});
  made.push_back(Column::from<std::int64_t>(
      device, values, LogicalType::timestamp(TimeUnit::nanosecond, "Atlantic/Reykjavik")));
  return Table::make(Schema(fields), made);
}

/// A tensor of somebody else's, in memory of a device.
struct ForeignTensor {
  explicit ForeignTensor(Device on, abi::DLDevice where) : device(std::move(on)) {
    address = device.allocate(MemoryKind::device, 4096);
    managed.version = {1, 3};
    managed.manager_ctx = this;
    managed.deleter = [](DLManagedTensorVersioned* self) {
      ++static_cast<ForeignTensor*>(self->manager_ctx)->deleted;
    };
    managed.dl_tensor = {address, where, 1, {abi::kDLFloat, 32, 1}, &extent, &stride, 0};
  }
  ~ForeignTensor() { device.release(address); }

  Device device;
  void* address = nullptr;
  std::int64_t extent = 16, stride = 1;
  std::atomic<int> deleted = 0;
  DLManagedTensorVersioned managed = {};
};

/// What was let go before counts for nobody here.
class ExchangeCost : public testing::Test {
 protected:
  void SetUp() override { reclaim_exported(); }
  void TearDown() override { EXPECT_EQ(reclaim_exported().count, 0u); }
};

TEST_F(ExchangeCost, ATensorOfOursComesBackWithoutTheHeapAndTheDriver) {
  const test::FakeDevice fake({.backend = "sim", .spec = "sim:0", .describe = [](DeviceInfo& info) {
                                 info.is_host = false;
                               }});
  const Stream stream(fake.device);
  const Buffer buffer = Buffer::allocate(fake.device, Shape{2, 3}, DType::f32,
                                         {.contents = Contents::zero, .stream = stream});
  const auto go = [&] {
    DLManagedTensorVersioned* const given = try_export_dlpack(buffer, {.stream = stream}).value();
    return try_import_dlpack(fake.device, given, {.stream = stream}).value().element_count();
  };
  EXPECT_EQ(go(), 6u);
  const std::size_t asked = fake.ledger->total();
  const AllocationCounter counter;
  static_cast<void>(go());
  const std::size_t taken = counter.count();
  EXPECT_LE(taken, per_record);
  EXPECT_EQ(fake.ledger->total(), asked);
}

TEST_F(ExchangeCost, AForeignTensorReusesRecords) {
  const Device host = open_device("host");
  ForeignTensor tensor(host, {abi::kDLCPU, 0});
  const auto go = [&] { return bool(try_import_dlpack(host, &tensor.managed)); };
  EXPECT_TRUE(go());
  const AllocationCounter counter;
  static_cast<void>(go());
  const std::size_t taken = counter.count();
  EXPECT_LE(taken, 3 * per_record);
  EXPECT_EQ(tensor.deleted, 2);
}

TEST_F(ExchangeCost, ATableIsOnePieceOfMemoryAndItsSchemaAnother) {
  const Device host = open_device("host");
  const Table table = wide_table(host, 50);
  ArrowDeviceArray array;
  ArrowSchema schema;
  const auto go = [&] {
    try_export_arrow(table, &array).value();
    try_export_arrow_schema(table.schema(), &schema).value();
  };
  go();
  array.array.release(&array.array);
  schema.release(&schema);
  const AllocationCounter counter;
  go();
  const std::size_t taken = counter.count();
  if (HeapExhausted::is_possible()) {
    EXPECT_EQ(taken, 2u);
  }
  EXPECT_EQ(exported_memory().count, 51u);
  const AllocationCounter back;
  const Table same = import_arrow(host, &array, &schema);
  EXPECT_EQ(back.count(), 0u);
  EXPECT_EQ(same.column(7)->parts().values, table.column(7)->parts().values);
  EXPECT_EQ(exported_memory().count, 0u);
}

TEST_F(ExchangeCost, AForeignTableOfAnyWidthNeedsTheSameAllocations) {
  if (!HeapExhausted::is_possible()) GTEST_SKIP() << "allocations cannot be counted here";
  const Device host = open_device("host");
  const auto count = [&](std::size_t columns) {
    const Table table = wide_table(host, columns);
    ArrowDeviceArray array;
    try_export_arrow(table, &array).value();
    ArrowSchema schema;
    try_export_arrow_schema(table.schema(), &schema).value();
    // Somebody else's, so that the import does not find the original columns.
    ArrowDeviceArray foreign = array;
    foreign.array.release = [](ArrowArray* self) { self->release = nullptr; };
    const AllocationCounter counter;
    const Table taken = import_arrow(host, &foreign, &schema);
    const std::size_t made = counter.count();
    EXPECT_EQ(taken.column(columns - 1)->parts().values.address(),
              table.column(columns - 1)->parts().values.address());
    array.array.release(&array.array);
    return made;
  };
  const std::size_t few = count(2);
  EXPECT_EQ(count(200), few);
  // The array, its storages, the leaves, the columns, the table, its row count, and the zone of the
  // time column.
  EXPECT_LE(few, 7u);
}

TEST_F(ExchangeCost, ADeviceIsAskedOnceForAllBuffersOfOneAllocation) {
  const test::FakeDevice fake({.describe = [](DeviceInfo& info) { info.is_host = true; }});
  std::byte* const memory =
      static_cast<std::byte*>(fake.device.allocate(MemoryKind::device, std::size_t{1} << 16));
  test::ArrowStranger stranger;
  // Everything the stranger has, in one allocation of the device.
  const auto move = [&](std::size_t at, const void* from, std::size_t bytes) {
    return std::memcpy(memory + at, from, bytes);
  };
  stranger.buffers[0][1] = move(0, stranger.numbers.data(), sizeof stranger.numbers);
  stranger.buffers[1][1] = move(1024, stranger.offsets.data(), sizeof stranger.offsets);
  stranger.buffers[1][2] = move(2048, stranger.letters.data(), sizeof stranger.letters);
  stranger.buffers[2][0] = move(3072, stranger.validity.data(), sizeof stranger.validity);
  stranger.buffers[2][1] = move(4096, stranger.flags.data(), sizeof stranger.flags);
  const std::size_t asked = fake.ledger->count(test::Call::pointer_info);
  const Table taken = import_arrow(fake.device, &stranger.array, &stranger.schema);
  EXPECT_EQ(taken.column(1)->to_strings()[2], "c");
  EXPECT_EQ(fake.ledger->count(test::Call::pointer_info), asked + 1);
  fake.device.release(memory);
}

TEST_F(ExchangeCost, NumbersThatWereChangedAreJudgedAnew) {
  const Device host = open_device("host");
  const Buffer buffer =
      Buffer::allocate(host, Shape{4, 6}, DType::f32, {.contents = Contents::zero});
  const auto changed = [&](std::int64_t extent, std::int64_t stride) {
    DLManagedTensorVersioned* const given = try_export_dlpack(buffer).value();
    given->dl_tensor.shape[0] = extent;
    given->dl_tensor.strides[0] = stride;
    return try_import_dlpack(host, given);
  };
  EXPECT_EQ(changed(4, 6).value().shape(), (Shape{4, 6}));
  EXPECT_EQ(changed(2, 12).value().strides()[0], 12);
  EXPECT_EQ(changed(5, 6).failure().code(), ErrorCode::dlpack_rejected);
  EXPECT_EQ(changed(4, 7).failure().code(), ErrorCode::dlpack_rejected);
  EXPECT_EQ(changed(-1, 6).failure().code(), ErrorCode::dlpack_rejected);
  DLManagedTensorVersioned* const dense = try_export_dlpack(buffer).value();
  dense->dl_tensor.strides = nullptr;
  EXPECT_TRUE(try_import_dlpack(host, dense).value().is_contiguous());
  EXPECT_EQ(exported_memory().count, 0u);
  EXPECT_EQ(buffer.storage()->shares(), 1u);
}

TEST_F(ExchangeCost, AnOwnerIsNotMadeToWaitForHisOwnWrites) {
  const Device device = sim::open({.seed = 5});
  const Stream theirs(device), ours(device);
  ForeignTensor tensor(device, {abi::kDLExtDev, 0});
  test::Gate gate;
  gate.hold(theirs);
  theirs.fill(static_cast<float*>(tensor.address), 16, 1.0f);
  {
    const StridedBuffer taken = import_dlpack(device, &tensor.managed, {.stream = theirs});
    EXPECT_EQ(tensor.deleted, 0);
  }
  EXPECT_EQ(tensor.deleted, 1) << "nobody here has used it";
  EXPECT_EQ(deferred_frees().count, 0u);
  {
    const Buffer taken = import_dlpack(device, &tensor.managed, {.stream = theirs}).buffer();
    static_cast<void>(taken.device_ptr(ours, Access::read));
  }
  EXPECT_EQ(tensor.deleted, 1) << "a use of ours is behind their writes";
  gate.open();
  ours.synchronize();
  static_cast<void>(reclaim_deferred());
  EXPECT_EQ(tensor.deleted, 2);
  theirs.synchronize();
  EXPECT_TRUE(sim::findings(device).empty());
}

// --- Without a heap

using ExchangeWithoutHeap = ExchangeCost;

/// Runs the program with each allocation refused in turn, and those behind it too, until nothing is
/// refused any more. It says whether all went well.
template <class Program>
void run_starving(const Program& program) {
  if (!HeapExhausted::is_possible()) GTEST_SKIP() << "operator new cannot be refused here";
  for (const HeapExhausted::Mode mode :
       {HeapExhausted::Mode::for_ever, HeapExhausted::Mode::once}) {
    std::size_t refused = 0;
    for (std::size_t left = 0;; ++left) {
      bool has_failed = false;
      const bool is_done = program([&](const auto& part) {
        const HeapExhausted exhausted(left, mode);
        part();
        has_failed = exhausted.has_failed();
      });
      EXPECT_EQ(exported_memory().count, 0u);
      EXPECT_EQ(exported_memory().bytes, 0u);
      EXPECT_EQ(reclaim_deferred().count, 0u);
      if (!has_failed) {
        EXPECT_TRUE(is_done);
        break;
      }
      ++refused;
      ASSERT_LT(left, 500u);
    }
    EXPECT_GT(refused, 0u);
  }
}

TEST_F(ExchangeWithoutHeap, TensorsAreImportedOrDeleted) {
  const Device host = open_device("host");
  // More dimensions than there is room for without the heap.
  const Buffer buffer =
      Buffer::allocate(host, Shape{1, 2, 1, 3, 1, 2}, DType::f32, {.contents = Contents::zero});
  run_starving([&](const auto& starve) {
    bool is_back = false, is_taken = false;
    ForeignTensor stranger(host, {abi::kDLCPU, 0});
    std::array<std::int64_t, 6> extents = {1, 2, 1, 3, 1, 2}, strides = {12, 6, 6, 2, 2, 1};
    stranger.managed.dl_tensor.ndim = 6;
    stranger.managed.dl_tensor.shape = extents.data();
    stranger.managed.dl_tensor.strides = strides.data();
    starve([&] {
      const Result<DLManagedTensorVersioned*> given = try_export_dlpack(buffer);
      is_back = given && try_import_dlpack(host, *given);
      is_taken = bool(try_import_dlpack(host, &stranger.managed));
    });
    EXPECT_EQ(stranger.deleted, 1);
    EXPECT_EQ(buffer.storage()->shares(), 1u);
    return is_back && is_taken;
  });
}

TEST_F(ExchangeWithoutHeap, TablesAreImportedOrReleased) {
  const Device host = open_device("host");
  const Table table = wide_table(host, 3);
  run_starving([&](const auto& starve) {
    test::ArrowStranger stranger;
    stranger.fields[0].format = "tss:Atlantic/Reykjavik";
    stranger.array.length = 5;  // of which there are that many
    bool is_back = false, is_taken = false;
    starve([&] {
      ArrowDeviceArray array;
      ArrowSchema schema;
      if (try_export_arrow(table, &array)) {
        if (try_export_arrow_schema(table.schema(), &schema)) {
          is_back = bool(try_import_arrow(host, &array, &schema));
        } else {
          array.array.release(&array.array);
        }
      }
      is_taken = bool(try_import_arrow(host, &stranger.array, &stranger.schema));
    });
    EXPECT_EQ(stranger.array_released, 1);
    EXPECT_EQ(stranger.schema_released, 1);
    return is_back && is_taken;
  });
}

TEST_F(ExchangeWithoutHeap, StreamsOfTablesAreImportedOrReleased) {
  const Device host = open_device("host");
  const Table table = wide_table(host, 2);
  const Table chunks[] = {table, table.slice(1, 2)};
  const StorageHandle storage = table.columns()[0].parts().values.storage();
  const std::uint32_t shares = storage->shares();
  run_starving([&](const auto& starve) {
    bool is_back = false, is_plain_back = false;
    starve([&] {
      ArrowDeviceArrayStream stream;
      is_back = try_export_arrow(chunks, &stream) && try_import_arrow(host, &stream);
      ArrowArrayStream plain;
      is_plain_back = try_export_arrow(chunks, &plain) && try_import_arrow(host, &plain);
    });
    EXPECT_EQ(storage->shares(), shares);
    return is_back && is_plain_back;
  });
}

TEST_F(ExchangeWithoutHeap, ColumnsAreExportedAndImportedOrDeleted) {
  const Device host = open_device("host");
  const Table table = wide_table(host, 2);
  const std::size_t chosen[] = {0, 1};
  const Table numbers = table.select(chosen);
  run_starving([&](const auto& starve) {
    ForeignTensor one(host, {abi::kDLCPU, 0}), two(host, {abi::kDLCPU, 0});
    for (ForeignTensor* each : {&one, &two}) {
      each->managed.dl_tensor.dtype = {abi::kDLInt, 64, 1};
    }
    DLManagedTensorVersioned* const tensors[] = {&one.managed, &two.managed};
    bool is_given = false, is_taken = false;
    starve([&] {
      const Result<DLManagedTensorVersioned*> given = try_export_dlpack_column(numbers, 0);
      is_given = given && try_import_dlpack_column(host, *given);
      is_taken = bool(try_import_dlpack_table(host, numbers.schema(), tensors));
    });
    EXPECT_EQ(one.deleted, 1);
    EXPECT_EQ(two.deleted, 1);
    return is_given && is_taken;
  });
}

}  // namespace
}  // namespace tern
