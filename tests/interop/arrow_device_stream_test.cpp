// Streams of tables, exported and imported, in memory of any device.

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "support/arrow_stranger.hpp"
#include "support/gate.hpp"
#include "support/ladder.hpp"
#include "support/on_device.hpp"
#include "tern/backends/catalog.hpp"
#include "tern/backends/sim.hpp"
#include "tern/buffer/foreign.hpp"
#include "tern/device/event.hpp"
#include "tern/interop/arrow.hpp"

namespace tern {
namespace {

class ArrowDeviceStream : public test::OnDevice {
 protected:
  void TearDown() override {
    EXPECT_EQ(exported_memory().count, 0u);
    if (device.is_open()) {
      EXPECT_EQ(reclaim_exported().count, 0u);
    }
  }
  static Schema schema() { return Schema({{"n", TypeKind::i32, false}, {"s", TypeKind::utf8}}); }
  static Table numbers_on(const Device& on) {
    const std::array<std::int32_t, 3> numbers = {1, 2, 3};
    const std::array<std::string_view, 3> words = {"one", "", "three"};
    return Table::make(schema(),
                       {Column::from<std::int32_t>(on, numbers), Column::from_strings(on, words)});
  }
  static Table nothing() {
    return Table::make(schema(),
                       {Column::over(TypeKind::i32, 0, {}), Column::over(TypeKind::utf8, 0, {})});
  }
  [[nodiscard]] bool is_host() const { return device.info().is_host; }
  [[nodiscard]] std::int32_t type() const {
    if (is_host()) return ARROW_DEVICE_CPU;
    return device.info().backend == "sim" ? ARROW_DEVICE_EXT_DEV : ARROW_DEVICE_CUDA;
  }
};
INSTANTIATE_TEST_SUITE_P(Devices, ArrowDeviceStream,
                         testing::Values("host", "sim", "sim?schedule=lazy", "cuda?driver=sim",
                                         "cuda:0"),
                         test::spec_name);

TEST_P(ArrowDeviceStream, GivesEachChunkWithItsEventAndThenTheEnd) {
  const Table one = numbers_on(device);
  const Table chunks[] = {one, one.slice(1, 2), nothing()};
  ArrowDeviceArrayStream given;
  std::memset(&given, 0xCD, sizeof given);
  ASSERT_TRUE(try_export_arrow(chunks, &given, {.stream = stream}));
  EXPECT_EQ(given.device_type, type());
  ArrowSchema form;
  ASSERT_EQ(given.get_schema(&given, &form), 0);
  EXPECT_EQ(try_import_arrow_schema(&form).value(), schema());
  std::array<ArrowDeviceArray, 3> arrays;
  std::memset(arrays.data(), 0xCD, sizeof arrays);
  for (std::size_t i = 0; i < 3; ++i) {
    ASSERT_EQ(given.get_next(&given, &arrays[i]), 0);
    EXPECT_EQ(arrays[i].array.length, i == 0 ? 3 : i == 1 ? 2 : 0);
    EXPECT_EQ(arrays[i].device_type, type()) << "also of what has no memory";
    EXPECT_EQ(arrays[i].device_id, is_host() ? -1 : 0);
    EXPECT_EQ(arrays[i].sync_event == nullptr, is_host() || i == 2);
    EXPECT_EQ(arrays[i].reserved[0] | arrays[i].reserved[1] | arrays[i].reserved[2], 0);
  }
  for (int i = 0; i < 2; ++i) {
    ArrowDeviceArray end;
    std::memset(&end, 0xCD, sizeof end);
    ASSERT_EQ(given.get_next(&given, &end), 0);
    EXPECT_EQ(end.array.release, nullptr);
  }
  EXPECT_EQ(given.get_last_error(&given), nullptr);
  given.release(&given);
  EXPECT_EQ(given.release, nullptr);
  // Chunks outlive their stream, and each other.
  arrays[0].array.release(&arrays[0].array);
  EXPECT_EQ(arrays[1].array.children[0]->offset, 1);
  EXPECT_NE(arrays[1].array.children[0]->buffers[1], nullptr);
  for (const std::size_t i : {1u, 2u}) arrays[i].array.release(&arrays[i].array);
}

TEST_P(ArrowDeviceStream, EachEventIsBehindTheWritersOfItsChunk) {
  if (is_host()) GTEST_SKIP() << "the host has no events";
  const Stream writer(device), reader(device);
  const Schema numbers({{"n", TypeKind::i32, false}});
  std::vector<Table> chunks;
  for (const std::int32_t value : {7, 8}) {
    Column column = Column::allocate(device, TypeKind::i32, 100);
    Buffer values = column.values();
    values.fill(value, writer);
    chunks.push_back(Table::make(numbers, {column}));
  }
  ArrowDeviceArrayStream given;
  ASSERT_TRUE(try_export_arrow(chunks, &given));
  for (const std::int32_t value : {7, 8}) {
    ArrowDeviceArray array;
    ASSERT_EQ(given.get_next(&given, &array), 0);
    // As a consumer does it, who knows nothing of Tern.
    NativeEvent native;
    std::memcpy(&native.value, array.sync_event, sizeof native.value);
    reader.wait(Event::try_borrow(device, native).value());
    std::vector<std::int32_t> seen(100);
    reader.copy(seen.data(), array.array.children[0]->buffers[1], 400);
    reader.synchronize();
    EXPECT_EQ(seen, std::vector<std::int32_t>(100, value));
    array.array.release(&array.array);
  }
  given.release(&given);
}

TEST_P(ArrowDeviceStream, ReplacesAnEndedStream) {
  const Table one = numbers_on(device);
  ArrowDeviceArrayStream given;
  {
    const Stream brief(device);
    ASSERT_TRUE(try_export_arrow({&one, 1}, &given, {.stream = brief}));
  }
  ArrowDeviceArray array;
  ASSERT_EQ(given.get_next(&given, &array), 0) << given.get_last_error(&given);
  array.array.release(&array.array);
  given.release(&given);
}

TEST_P(ArrowDeviceStream, ReleasesChunksThatWereNotRequested) {
  Table one = numbers_on(device);
  const StorageHandle storage = one.columns()[0].parts().values.storage();
  ArrowDeviceArrayStream given;
  {
    const Table chunks[] = {one, one};
    ASSERT_TRUE(try_export_arrow(chunks, &given));
  }
  one = Table();
  EXPECT_EQ(storage->shares(), 2u) << "the stream's, and the one here";
  given.release(&given);
  EXPECT_EQ(storage->shares(), 1u);
  EXPECT_EQ(exported_memory().count, 0u);
}

TEST_P(ArrowDeviceStream, SaysWhyAChunkCannotBe) {
  const Table unwritten = Table::make(Schema({{"n", TypeKind::i32, false}}),
                                      {Column::allocate(device, TypeKind::i32, 4)});
  ArrowDeviceArrayStream given;
  ASSERT_TRUE(try_export_arrow({&unwritten, 1}, &given));
  ArrowDeviceArray array;
  for (int i = 0; i < 2; ++i) {
    EXPECT_NE(given.get_next(&given, &array), 0);
    EXPECT_EQ(array.array.release, nullptr);
    EXPECT_NE(std::string(given.get_last_error(&given)).find("never written"), std::string::npos);
  }
  given.release(&given);
  const Device other = open_device(is_host() ? "sim" : "host");
  const Table mixed[] = {numbers_on(device), nothing(), numbers_on(other)};
  const Result<void> refused = try_export_arrow(mixed, &given);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.failure().code(), ErrorCode::arrow_rejected);
  EXPECT_EQ(refused.failure().string("field"), "device_type");
  EXPECT_EQ(given.release, nullptr);
  EXPECT_EQ(try_export_arrow(std::span<const Table>(), &given).failure().code(),
            ErrorCode::invalid_argument);
  EXPECT_EQ(try_export_arrow(mixed, static_cast<ArrowDeviceArrayStream*>(nullptr)).failure().code(),
            ErrorCode::invalid_argument);
}

/// Somebody else's stream around one of ours, so that its chunks are imported as a stranger's.
struct Disguised {
  struct Chunk {
    Disguised* stream;
    ArrowArray inner;
  };
  Disguised(std::span<const Table> tables, StreamRef order) {
    try_export_arrow(tables, &inner, {.stream = order}).value();
    outer.device_type = inner.device_type;
    outer.private_data = this;
    outer.get_schema = [](ArrowDeviceArrayStream* self, ArrowSchema* out) {
      return of(self).inner.get_schema(&of(self).inner, out);
    };
    outer.get_next = [](ArrowDeviceArrayStream* self, ArrowDeviceArray* out) {
      const int code = of(self).inner.get_next(&of(self).inner, out);
      if (code != 0 || out->array.release == nullptr) return code;
      out->array.private_data = new Chunk{&of(self), out->array};
      out->array.release = [](ArrowArray* array) {
        Chunk* const chunk = static_cast<Chunk*>(array->private_data);
        chunk->inner.release(&chunk->inner);
        ++chunk->stream->chunks_released;
        delete chunk;
        array->release = nullptr;
      };
      return 0;
    };
    outer.release = [](ArrowDeviceArrayStream* self) {
      of(self).inner.release(&of(self).inner);
      ++of(self).released;
      self->release = nullptr;
    };
  }
  static Disguised& of(ArrowDeviceArrayStream* self) {
    return *static_cast<Disguised*>(self->private_data);
  }
  ArrowDeviceArrayStream inner = {}, outer = {};
  int released = 0;
  std::atomic<int> chunks_released = 0;
};

TEST_P(ArrowDeviceStream, ImportsAllChunksAndReleasesEach) {
  const Table one = numbers_on(device);
  const Table chunks[] = {one, one.slice(1, 2), nothing()};
  for (const bool names_stream : {true, false}) {
    for (const std::size_t count : {1u, 2u, 3u}) {
      Disguised other(std::span<const Table>(chunks).first(count), stream);
      {
        const Table taken =
            try_import_arrow(device, &other.outer,
                             {.stream = names_stream ? StreamRef(stream) : StreamRef()})
                .value();
        EXPECT_EQ(other.released, 1);
        EXPECT_EQ(taken.rows(), count == 1 ? 3u : 5u);
        EXPECT_EQ(taken.column(0)->is_external(), count == 1) << "several are put together";
        EXPECT_EQ(taken.column(1)->to_strings()[2], "three");
        const std::vector<std::int32_t> numbers =
            taken.column(0)->values().to_vector<std::int32_t>();
        EXPECT_EQ(numbers.back(), 3);
        stream.synchronize();
      }
      static_cast<void>(reclaim_deferred());
      EXPECT_EQ(other.chunks_released, static_cast<int>(count));
    }
  }
  // Our own comes back as what it was.
  ArrowDeviceArrayStream given;
  ASSERT_TRUE(try_export_arrow({&one, 1}, &given, {.stream = stream}));
  const Table back = try_import_arrow(device, &given).value();
  EXPECT_EQ(given.release, nullptr);
  EXPECT_EQ(back.column(0)->parts().values, one.column(0)->parts().values);
}

TEST(ArrowDeviceStreamOrder, AChunkIsUsedBehindItsEventAndTheHostDoesNotWait) {
  const Device device = sim::open({.seed = 3});
  const Stream producer(device), consumer(device);
  Column column = Column::allocate(device, TypeKind::i32, 100);
  const Table table = Table::make(Schema({{"n", TypeKind::i32, false}}), {column});
  test::Gate gate;
  gate.hold(producer);
  Buffer values = column.values();
  values.fill(std::int32_t{9}, producer);
  Disguised other({&table, 1}, {});
  Table taken = try_import_arrow(device, &other.outer, {.stream = consumer}).value();
  std::vector<std::int32_t> seen(100);
  {
    const void* const address = taken.column(0)->values().device_ptr(consumer, Access::read);
    consumer.copy(seen.data(), address, 400);
  }
  taken = {};
  static_cast<void>(reclaim_deferred());
  EXPECT_EQ(other.chunks_released, 0) << "a use of ours is behind the gate";
  gate.open();
  consumer.synchronize();
  static_cast<void>(reclaim_deferred());
  EXPECT_EQ(other.chunks_released, 1);
  EXPECT_EQ(seen, std::vector<std::int32_t>(100, 9));
  EXPECT_TRUE(sim::findings(device).empty());
  reclaim_exported();
}

// --- What nobody should give

/// Chunks of a stranger on the host.
struct Source {
  explicit Source(int chunks) : left(chunks) {
    stream.device_type = ARROW_DEVICE_CPU;
    stream.private_data = this;
    stream.get_schema = [](ArrowDeviceArrayStream* self, ArrowSchema* out) {
      Source& source = of(self);
      if (source.schema_error != 0) return source.schema_error;
      *out = source.stranger.schema;
      return 0;
    };
    stream.get_next = [](ArrowDeviceArrayStream* self, ArrowDeviceArray* out) {
      Source& source = of(self);
      if (source.left == source.fails_at) return 5;
      std::memset(out, 0xCD, sizeof *out);  // what is reserved is whatever it is
      out->array = source.stranger.array;
      out->device_type = source.chunk_type;
      out->device_id = source.chunk_id;
      out->sync_event = source.event;
      if (source.left-- == 0) out->array.release = nullptr;
      return 0;
    };
    stream.get_last_error = [](ArrowDeviceArrayStream*) { return "the disk is on fire"; };
    stream.release = [](ArrowDeviceArrayStream* self) {
      ++of(self).released;
      self->release = nullptr;
    };
  }
  static Source& of(ArrowDeviceArrayStream* self) {
    return *static_cast<Source*>(self->private_data);
  }
  test::ArrowStranger stranger;
  ArrowDeviceArrayStream stream = {};
  int left = 0, fails_at = -1, schema_error = 0, released = 0;
  std::int32_t chunk_type = ARROW_DEVICE_CPU;
  std::int64_t chunk_id = -1;
  void* event = nullptr;
};

class ArrowDeviceStreamIn : public testing::Test {
 protected:
  Failure refusal(Source& source) {
    const Result<Table> taken = try_import_arrow(host, &source.stream);
    EXPECT_FALSE(taken);
    EXPECT_EQ(source.released, 1);
    return taken.failure();
  }
  Device host = open_device("host");
};

TEST_F(ArrowDeviceStreamIn, IsReadToItsEnd) {
  for (const int chunks : {0, 1, 3}) {
    for (const std::int64_t id : {-1, 0}) {
      Source source(chunks);
      source.chunk_id = id;
      {
        const Table all = try_import_arrow(host, &source.stream).value();
        EXPECT_EQ(source.released, 1);
        EXPECT_EQ(all.rows(), 10u * static_cast<unsigned>(chunks));
      }
      EXPECT_EQ(source.stranger.array_released, chunks);
      EXPECT_EQ(source.stranger.schema_released, 1);
    }
  }
}

TEST_F(ArrowDeviceStreamIn, AStreamWhoseCallbackThrowsFailsAndIsReleased) {
  Source next(3);
  next.stream.get_next = [](ArrowDeviceArrayStream*, ArrowDeviceArray*) -> int { throw 1; };
  const Failure failure = refusal(next);
  EXPECT_EQ(failure.code(), ErrorCode::arrow_rejected);
  EXPECT_EQ(failure.string("field"), "stream.get_next");
  EXPECT_EQ(next.stranger.schema_released, 1);
}

TEST_F(ArrowDeviceStreamIn, AFailedStreamIsReleasedWithItsChunks) {
  Source schema(2);
  schema.schema_error = 12;
  const Failure no_schema = refusal(schema);
  EXPECT_EQ(no_schema.string("field"), "stream.get_schema");
  EXPECT_EQ(no_schema.number("value"), 12u);
  EXPECT_EQ(no_schema.string("said"), "the disk is on fire");
  Source next(3);
  next.fails_at = 1;
  next.stream.get_last_error = nullptr;
  EXPECT_EQ(refusal(next).string("field"), "stream.get_next");
  EXPECT_EQ(next.stranger.array_released, 2);
  EXPECT_EQ(next.stranger.schema_released, 1);
  Source hostile(2);
  hostile.stranger.columns[0].length = -4;
  EXPECT_EQ(refusal(hostile).string("field"), "array.children[0].length");
  EXPECT_EQ(hostile.stranger.array_released, 1);
  test::expect_callbacks_needed<Source>(
      [&](ArrowDeviceArrayStream* stream) { return try_import_arrow(host, stream); },
      [](const Source& null) { EXPECT_EQ(null.stranger.schema_released, 0); });
  EXPECT_EQ(try_import_arrow(host, static_cast<ArrowDeviceArrayStream*>(nullptr)).failure().code(),
            ErrorCode::invalid_argument);
}

TEST_F(ArrowDeviceStreamIn, DevicesAreThoseOfTheStreamAndOfTheImport) {
  for (const std::int32_t type : {0, -1, 4, 7, 8, 10, 16, 99}) {
    Source unknown(1);
    unknown.stream.device_type = unknown.chunk_type = type;
    const Failure failure = refusal(unknown);
    EXPECT_EQ(failure.code(), ErrorCode::arrow_rejected);
    EXPECT_EQ(failure.string("field"), "stream.device_type");
    EXPECT_EQ(unknown.stranger.schema_released, 0) << "it was not asked for anything";
  }
  for (const std::int32_t type : {2, 3, 12, 13}) {
    Source elsewhere(1);
    elsewhere.stream.device_type = elsewhere.chunk_type = type;
    EXPECT_EQ(refusal(elsewhere).code(), ErrorCode::device_mismatch);
  }
  Source other(1);
  other.chunk_type = ARROW_DEVICE_EXT_DEV;
  EXPECT_EQ(refusal(other).string("field"), "device_array.device_type");
  EXPECT_EQ(other.stranger.array_released, 1);
  EXPECT_EQ(other.stranger.schema_released, 1);
  Source numbered(1);
  numbered.chunk_id = 5;
  EXPECT_EQ(refusal(numbered).string("field"), "device_array.device_id");
  EXPECT_EQ(numbered.stranger.array_released, 1);
  Source eventful(1);
  eventful.event = &eventful;
  EXPECT_EQ(refusal(eventful).string("field"), "device_array.sync_event");
  EXPECT_EQ(eventful.stranger.array_released, 1);
  Source nowhere(1);
  EXPECT_EQ(try_import_arrow(Device(), &nowhere.stream).failure().code(),
            ErrorCode::device_mismatch);
  EXPECT_EQ(nowhere.released, 1);
}

}  // namespace
}  // namespace tern
