// Rules for tensors and tables that other libraries rely on: who waits for whom, how a structure
// describes its memory, what an import of an export returns, and late deleters.

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "support/arrow_stranger.hpp"
#include "support/fake_backend.hpp"
#include "support/forked_child.hpp"
#include "support/gate.hpp"
#include "support/ladder.hpp"
#include "support/on_device.hpp"
#include "support/thread.hpp"
#include "tern/backends/catalog.hpp"
#include "tern/backends/sim.hpp"
#include "tern/buffer/copy.hpp"
#include "tern/buffer/foreign.hpp"
#include "tern/interop/arrow.hpp"
#include "tern/interop/dlpack.hpp"
#include "tern/memory/default_resource.hpp"
#include "tern/memory/pool_resource.hpp"

namespace tern {
namespace {

using abi::DLManagedTensor;
using abi::DLManagedTensorVersioned;
using test::Call;

void call_deleter(DLManagedTensorVersioned* tensor) { tensor->deleter(tensor); }

class ExchangeRules : public test::OnDevice {
 protected:
  void TearDown() override {
    EXPECT_EQ(exported_memory().count, 0u);
    if (device.is_open()) {
      EXPECT_EQ(reclaim_exported().count, 0u);
    }
  }
  Buffer zeros(Shape shape, DType dtype, MemoryKind kind = MemoryKind::device) {
    Buffer made(device, std::move(shape), dtype, {.kind = kind, .contents = Contents::zero});
    made.ensure_allocated();
    return made;
  }
};
INSTANTIATE_TEST_SUITE_P(Devices, ExchangeRules,
                         testing::Values("host", "sim", "sim?schedule=lazy", "cuda?driver=sim",
                                         "cuda:0"),
                         test::spec_name);

// --- What a structure says

TEST_P(ExchangeRules, EveryTypeGoesOutAndComesBack) {
  std::size_t known = 0;
  for (unsigned number = 0; number < 256; ++number) {
    const DType dtype = static_cast<DType>(number);
    const Result<abi::DLDataType> word = try_dlpack_type(dtype);
    if (!word) continue;
    ++known;
    const Buffer buffer = zeros({3, 2}, dtype);
    DLManagedTensorVersioned* const given = try_export_dlpack(buffer).value();
    EXPECT_EQ(given->dl_tensor.dtype.bits, size_bytes(dtype) * 8);
    EXPECT_EQ(given->dl_tensor.dtype.lanes, 1);
    const StridedBuffer back = import_dlpack(device, given);
    EXPECT_EQ(back.dtype(), dtype);
    EXPECT_EQ(back.buffer(), buffer);
  }
  EXPECT_EQ(known, 19u);
}

TEST_P(ExchangeRules, ReadOnlyIsSaidAndNothingElseIs) {
  const Buffer buffer = zeros({4}, DType::f32);
  DLManagedTensorVersioned* const read = try_export_dlpack(buffer, {.is_read_only = true}).value();
  EXPECT_EQ(read->flags, abi::DLPACK_FLAG_BITMASK_READ_ONLY) << "nothing was copied";
  call_deleter(read);
  DLManagedTensorVersioned* const written = try_export_dlpack(buffer).value();
  EXPECT_EQ(written->flags, 0u);
  call_deleter(written);
}

TEST_P(ExchangeRules, StridesAreThoseOfSlicesTransposesAndBroadcasts) {
  const Buffer buffer = zeros({4, 6}, DType::f32);
  struct Case {
    Shape shape;
    std::array<std::int64_t, 2> strides;
    std::size_t offset;
  };
  for (const Case& one : {Case{{6, 4}, {1, 6}, 0}, Case{{2, 3}, {12, 2}, 4},
                          Case{{5, 6}, {0, 1}, 24}, Case{{4, 1}, {6, 1}, 8}}) {
    const StridedBuffer view =
        StridedBuffer::over(buffer, one.offset, DType::f32, one.shape, one.strides);
    DLManagedTensorVersioned* const given = try_export_dlpack(view).value();
    const abi::DLTensor& tensor = given->dl_tensor;
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(tensor.data), buffer.address() + one.offset);
    EXPECT_EQ(tensor.byte_offset, 0u);
    for (const std::size_t axis : {0u, 1u}) {
      EXPECT_EQ(tensor.shape[axis], static_cast<std::int64_t>(one.shape.extents()[axis]));
      EXPECT_EQ(tensor.strides[axis], one.strides[axis]);
    }
    const StridedBuffer back = import_dlpack(device, given);
    EXPECT_EQ(back.hull(), view.hull());
    EXPECT_EQ(back.strides()[0], one.strides[0]);
  }
}

TEST_P(ExchangeRules, EachKindOfMemoryHasItsDevice) {
  struct Case {
    MemoryKind kind;
    Capability needs;
    abi::DLDevice on_cuda;
  };
  for (const Case& one :
       {Case{MemoryKind::device, Capability::kernels, {abi::kDLCUDA, 0}},
        Case{MemoryKind::pinned, Capability::pinned_memory, {abi::kDLCUDAHost, 0}},
        Case{MemoryKind::managed, Capability::managed_memory, {abi::kDLCUDAManaged, 0}}}) {
    if (one.kind != MemoryKind::device && !device.can(one.needs)) continue;
    const Buffer buffer = zeros({4}, DType::f32, one.kind);
    const abi::DLDevice there = try_dlpack_device(*buffer.storage()).value();
    const std::string backend = device.info().backend;
    if (backend == "cuda") {
      EXPECT_EQ(there.device_type, one.on_cuda.device_type);
    } else {
      EXPECT_EQ(there.device_type, backend == "sim" ? abi::kDLExtDev : abi::kDLCPU);
    }
    EXPECT_EQ(there.device_id, 0);
    // And so it comes back.
    EXPECT_EQ(import_dlpack(device, try_export_dlpack(buffer).value()).buffer(), buffer);
  }
}

TEST_P(ExchangeRules, WholeBlocksOfAPoolLieAt256Bytes) {
  if (device.info().is_host) GTEST_SKIP() << "the host has its own alignment";
  const ResourceHandle pool = std::make_shared<PoolResource>(device);
  std::vector<Buffer> held;
  for (const std::size_t count : {1u, 3u, 100u, 5000u}) {
    held.push_back(Buffer::allocate(device, Shape{count}, DType::u8, {.resource = pool}));
    DLManagedTensorVersioned* const given = try_export_dlpack(held.back()).value();
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(given->dl_tensor.data) % 256, 0u);
    call_deleter(given);
  }
}

TEST_P(ExchangeRules, NothingMissingHasNoBitmapAndAllMissingHasOne) {
  const std::array<std::int32_t, 5> numbers = {1, 2, 3, 4, 5};
  const std::array<std::uint8_t, 5> all = {1, 1, 1, 1, 1}, none = {};
  for (const bool is_there : {true, false}) {
    const Column column =
        Column::from<std::int32_t>(device, numbers, {.valid = is_there ? all : none});
    ArrowDeviceArray given;
    ASSERT_TRUE(try_export_arrow(column, &given));
    EXPECT_EQ(given.array.null_count, is_there ? 0 : 5);
    EXPECT_EQ(given.array.buffers[0] == nullptr, is_there);
    // Bits behind the last value are zero, for those who count bytes.
    std::byte bits{0xFF};
    column.validity().byte_view(0, 1).try_copy_to(&bits, 1).value();
    EXPECT_EQ(bits, is_there ? std::byte{0x1F} : std::byte{0});
    given.array.release(&given.array);
  }
}

// --- Who waits for whom

TEST_P(ExchangeRules, TheHostMayReadWhatWasHandedOverWithoutAStream) {
  for (const MemoryKind kind : {MemoryKind::pinned, MemoryKind::managed}) {
    if (!device.can(kind == MemoryKind::pinned ? Capability::pinned_memory
                                               : Capability::managed_memory)) {
      continue;
    }
    if (device.info().backend == "sim" && kind == MemoryKind::managed) continue;
    Buffer buffer(device, Shape{1000}, DType::f32, {.kind = kind});
    buffer.fill(1.0f, stream);
    buffer.fill(2.0f, stream);
    DLManagedTensorVersioned* const given = try_export_dlpack(buffer).value();
    EXPECT_TRUE(buffer.storage()->uses().try_is_ready(Access::read_write).value());
    EXPECT_EQ(buffer.read_host<float>()[999], 2.0f);
    call_deleter(given);
  }
}

class ExchangeOrder : public testing::Test {
 protected:
  /// How often the device is asked for something while a tensor is exported.
  std::size_t asked(Call call, const DlpackOptions& options) {
    const std::size_t before = fake.ledger->count(call);
    call_deleter(try_export_dlpack(buffer, options).value());
    return fake.ledger->count(call) - before;
  }
  void write() { buffer.fill(1.0f, one); }
  void SetUp() override {
    buffer = Buffer(fake.device, Shape{64}, DType::f32);
    write();
  }
  void TearDown() override {
    buffer = {};
    reclaim_exported();
  }

  test::FakeDevice fake{{.backend = "sim", .spec = "sim:0", .describe = [](DeviceInfo& info) {
                           info.is_host = false;
                         }}};
  Stream one{fake.device}, two{fake.device};
  Buffer buffer;
};

TEST_F(ExchangeOrder, TheStreamThatWroteItNeedsNoEvent) {
  EXPECT_EQ(asked(Call::record, {.stream = one}), 0u);
  EXPECT_EQ(asked(Call::wait, {.stream = one}), 0u);
}

TEST_F(ExchangeOrder, AnotherStreamWaitsOnceAndTheHostDoesNot) {
  const std::size_t hosts = fake.ledger->count(Call::synchronize_event) +
                            fake.ledger->count(Call::synchronize_stream) +
                            fake.ledger->count(Call::synchronize);
  const std::size_t records = fake.ledger->count(Call::record);
  EXPECT_EQ(asked(Call::wait, {.stream = two}), 1u);
  EXPECT_EQ(fake.ledger->count(Call::record), records + 1);
  EXPECT_EQ(fake.ledger->count(Call::synchronize_event) +
                fake.ledger->count(Call::synchronize_stream) +
                fake.ledger->count(Call::synchronize),
            hosts);
}

TEST_F(ExchangeOrder, AnUnorderedExportAsksTheDeviceForNothing) {
  const std::size_t before = fake.ledger->total();
  call_deleter(try_export_dlpack(buffer, {.stream = two, .is_unordered = true}).value());
  call_deleter(try_export_dlpack(buffer, {.is_unordered = true}).value());
  EXPECT_EQ(fake.ledger->total(), before);
}

TEST_F(ExchangeOrder, ATableAsksTheDeviceForItsEventAndNothingElse) {
  std::vector<Field> fields;
  std::vector<Column> columns;
  for (const char* name : {"a", "b", "c"}) {
    Column column = Column::allocate(fake.device, TypeKind::f32, 64);
    Buffer values = column.values();
    values.fill(1.0f, one);
    fields.push_back({name, TypeKind::f32, false});
    columns.push_back(std::move(column));
  }
  const Table table = Table::make(Schema(fields), std::move(columns));
  ArrowDeviceArray array;
  const auto go = [&] {
    ASSERT_TRUE(try_export_arrow(table, &array, {.stream = one}));
    array.array.release(&array.array);
  };
  go();
  const std::size_t total = fake.ledger->total(), records = fake.ledger->count(Call::record);
  const std::size_t events = fake.ledger->live_events();
  for (int i = 0; i < 10; ++i) go();
  EXPECT_EQ(fake.ledger->count(Call::record), records + 10);
  EXPECT_EQ(fake.ledger->total(), total + 10) << "no copy, no memory, no wait of the host";
  EXPECT_EQ(fake.ledger->live_events(), events) << "given back with the table, and used again";
  EXPECT_EQ(fake.ledger->violations(), 0u);
}

// --- What memory is

/// A tensor of ours in the hands of somebody who lets it go by a way of his own.
struct Wrapped {
  explicit Wrapped(DLManagedTensorVersioned* tensor) : managed(*tensor), inner(tensor) {
    managed.manager_ctx = this;
    managed.deleter = [](DLManagedTensorVersioned* self) {
      call_deleter(static_cast<Wrapped*>(self->manager_ctx)->inner);
    };
  }
  DLManagedTensorVersioned managed;
  DLManagedTensorVersioned* inner;
};

TEST_P(ExchangeRules, IdentityIsKnownInEveryCase) {
  const std::array<std::int32_t, 3> numbers = {1, 2, 3};
  const Column owned = Column::from<std::int32_t>(device, numbers);
  const Buffer values = owned.values();
  const auto is_ours = [&](const Buffer& buffer) {
    EXPECT_FALSE(buffer.is_external());
    EXPECT_EQ(buffer.id(), values.id());
    EXPECT_EQ(buffer.storage()->try_block().value().address,
              values.storage()->try_block().value().address);
  };
  const auto is_theirs = [&](const Buffer& buffer) {
    EXPECT_TRUE(buffer.is_external());
    EXPECT_NE(buffer.id(), values.id());
    EXPECT_EQ(buffer.address(), values.address());
    EXPECT_FALSE(buffer.storage()->try_block().value()) << "no resource gave it";
  };
  is_ours(values);
  is_ours(import_dlpack(device, try_export_dlpack(values).value()).buffer());
  ArrowDeviceArray array;
  ArrowSchema schema;
  const Field field = {"n", TypeKind::i32};
  ASSERT_TRUE(try_export_arrow(owned, &array));
  ASSERT_TRUE(try_export_arrow_schema(field, &schema));
  is_ours(import_arrow_column(device, &array, &schema).values());
  Wrapped wrapped(try_export_dlpack(values).value());
  is_theirs(import_dlpack(device, &wrapped.managed).buffer());
  ASSERT_TRUE(try_export_arrow(owned, &array));
  ASSERT_TRUE(try_export_arrow_schema(field, &schema));
  ArrowDeviceArray other = array;
  other.array.private_data = &array;
  other.array.release = [](ArrowArray* self) {
    ArrowArray& inner = static_cast<ArrowDeviceArray*>(self->private_data)->array;
    inner.release(&inner);
    self->release = nullptr;
  };
  is_theirs(import_arrow_column(device, &other, &schema).values());
  device.synchronize();
  static_cast<void>(reclaim_deferred());
  // What is exported once more keeps the one that it came from.
  Wrapped again(try_export_dlpack(values).value());
  DLManagedTensorVersioned* const third =
      try_export_dlpack(import_dlpack(device, &again.managed)).value();
  EXPECT_EQ(exported_memory().count, 2u);
  call_deleter(third);
  device.synchronize();
  static_cast<void>(reclaim_deferred());
}

// --- Late deleters

TEST(ExchangeLate, ADeleterMayBeCalledAfterAllHandlesAreDestroyed) {
  DLManagedTensorVersioned* given = nullptr;
  {
    const Device device = sim::open({});
    const Buffer buffer = Buffer::allocate(device, Shape{1000}, DType::f32);
    given = try_export_dlpack(buffer).value();
    // The default resource says what is out, and leaves it.
    const ResourceHandle last = shutdown_default_resource(device);
    ASSERT_NE(last, nullptr);
    EXPECT_GE(last->statistics().live_bytes, 4000u);
  }
  EXPECT_EQ(exported_memory().bytes, 4000u);
  EXPECT_EQ(given->dl_tensor.shape[0], 1000);
  test::Thread([given] { call_deleter(given); }).join();
  EXPECT_EQ(exported_memory().bytes, 0u);
  EXPECT_EQ(reclaim_exported().count, 0u);
}

TEST_P(ExchangeRules, ADeleterInAForkedChildWorks) {
  const Buffer buffer = zeros({1000}, DType::f32);
  DLManagedTensorVersioned* const given = try_export_dlpack(buffer).value();
  ArrowDeviceArray array;
  ASSERT_TRUE(try_export_arrow(Column::over(TypeKind::f32, 1000, {.values = buffer}), &array));
  EXPECT_EQ(test::in_a_forked_child([&] {
              call_deleter(given);
              array.array.release(&array.array);
              return exported_memory().count == 0;
            }),
            0);
  EXPECT_EQ(exported_memory().count, 2u) << "here nobody has let go";
  array.array.release(&array.array);
  call_deleter(given);
}

// --- What comes in

TEST(ExchangeHostile, ReadsNothingAfterTheFlagsOfAnotherVersion) {
  const Device host = open_device("host");
  const std::size_t page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  void* const mapped =
      mmap(nullptr, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(mapped, MAP_FAILED);
  std::byte* const pages = static_cast<std::byte*>(mapped);
  ASSERT_EQ(mprotect(pages + page, page, PROT_NONE), 0);
  static int deleted;
  for (const std::uint32_t major : {0u, 2u, ~0u}) {
    deleted = 0;
    // Whatever is behind the flags is in no memory at all.
    std::byte* const at = pages + page - offsetof(DLManagedTensorVersioned, dl_tensor);
    const abi::DLPackVersion version = {major, 0};
    void (*const deleter)(DLManagedTensorVersioned*) = [](DLManagedTensorVersioned*) { ++deleted; };
    std::memcpy(at, &version, sizeof version);
    std::memcpy(at + offsetof(DLManagedTensorVersioned, deleter), &deleter, sizeof deleter);
    const Result<StridedBuffer> taken =
        try_import_dlpack(host, reinterpret_cast<DLManagedTensorVersioned*>(at));
    ASSERT_FALSE(taken);
    EXPECT_EQ(taken.failure().code(), ErrorCode::dlpack_rejected);
    EXPECT_EQ(taken.failure().number("value"), major);
    EXPECT_EQ(deleted, 1);
  }
  munmap(mapped, 2 * page);
}

TEST(ExchangeHostile, NegativeStridesAreReadOnly) {
  const Device host = open_device("host");
  std::array<float, 8> values = {0, 1, 2, 3, 4, 5, 6, 7};
  std::int64_t extent = 4, stride = -2;
  DLManagedTensorVersioned managed = {};
  managed.version = {1, 3};
  managed.dl_tensor = {&values[6], {abi::kDLCPU, 0}, 1, {abi::kDLFloat, 32, 1},
                       &extent,    &stride,          0};
  const StridedBuffer taken = import_dlpack(host, &managed);
  EXPECT_TRUE(taken.hull().storage()->is_read_only());
  const Stream stream(host);
  EXPECT_EQ(taken.contiguous(stream).to_vector<float>(), (std::vector<float>{6, 4, 2, 0}));
}

}  // namespace
}  // namespace tern
