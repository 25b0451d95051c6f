#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <functional>
#include <limits>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "support/arrow_stranger.hpp"
#include "support/gate.hpp"
#include "support/thread.hpp"
#include "tern/backends/catalog.hpp"
#include "tern/backends/sim.hpp"
#include "tern/buffer/array.hpp"
#include "tern/buffer/foreign.hpp"
#include "tern/device/event.hpp"
#include "tern/interop/arrow.hpp"
#include "tern/launch/launch_recorder.hpp"

namespace tern {
namespace {

using test::ArrowStranger;

constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max(),
                       least = std::numeric_limits<std::int64_t>::min();

class ArrowIn : public testing::Test {
 protected:
  Device host = open_device("host");
};

// --- What others give

TEST_F(ArrowIn, ImportsATableWithoutACopy) {
  ArrowStranger stranger;
  {
    const Table taken = import_arrow(host, &stranger.array, &stranger.schema);
    EXPECT_EQ(stranger.array.release, nullptr);
    EXPECT_EQ(stranger.schema_released, 1);
    EXPECT_EQ(stranger.array_released, 0);
    EXPECT_EQ(taken.rows(), 10u);
    EXPECT_EQ(taken.schema(),
              Schema({{"n", TypeKind::i32}, {"s", TypeKind::utf8}, {"b", TypeKind::boolean}}));
    EXPECT_EQ(taken.column("n")->values().address(),
              reinterpret_cast<std::uintptr_t>(stranger.numbers.data()));
    EXPECT_TRUE(taken.column("n")->is_external());
    EXPECT_EQ(taken.column("s")->to_strings()[9], "j");
    EXPECT_EQ(taken.column("b")->null_count(), 2u);
    EXPECT_FALSE(taken.column("b")->to_valid()[3]);
    EXPECT_TRUE(taken.column("b")->to_bools()[9]);
    // One column keeps all of it.
    const Column kept = *taken.column("s");
    EXPECT_EQ(stranger.array_released, 0);
  }
  EXPECT_EQ(stranger.array_released, 1);
}

TEST_F(ArrowIn, ReleasesAnArrayOnceAfterTheLastBufferOfAnyColumn) {
  for (const char* name : {"n", "s", "b"}) {
    ArrowStranger stranger;
    std::optional<Column> kept = import_arrow(host, &stranger.array, &stranger.schema).column(name);
    EXPECT_EQ(stranger.array_released, 0) << name;
    // One buffer of the column keeps the array as well as all of them.
    std::optional<Buffer> buffer = kept->parts().values;
    kept.reset();
    EXPECT_EQ(stranger.array_released, 0) << name;
    EXPECT_TRUE(buffer->is_external());
    EXPECT_EQ(buffer->as<std::byte>().to_vector<std::byte>().size(), buffer->size_bytes());
    buffer.reset();
    EXPECT_EQ(stranger.array_released, 1) << name;
  }
}

TEST_F(ArrowIn, ThreadsMayDropTheColumnsOfOneTable) {
  for (int round = 0; round < 200; ++round) {
    ArrowStranger stranger;
    std::optional<Table> table = import_arrow(host, &stranger.array, &stranger.schema);
    std::optional<Column> texts = table->column("s"), bits = table->column("b");
    table.reset();
    std::atomic<int> ready = 0;
    const auto drop = [&ready](std::optional<Column>& column) {
      ++ready;
      while (ready != 2) std::this_thread::yield();
      column.reset();
    };
    test::Thread other([&] { drop(texts); });
    drop(bits);
    other.join();
    ASSERT_EQ(stranger.array_released, 1);
  }
}

TEST_F(ArrowIn, AcceptsWhatTheStandardAllows) {
  const auto take = [&](ArrowStranger& stranger) {
    return import_arrow(host, &stranger.array, &stranger.schema);
  };
  ArrowStranger counted;
  counted.columns[2].null_count = -1;
  EXPECT_EQ(take(counted).column(2)->null_count(), 2u);
  ArrowStranger longer;
  longer.columns[0].length = 12;
  longer.array.length = 4;
  longer.array.offset = 3;
  longer.columns[1].offset = 1;
  const Table window = take(longer);
  EXPECT_EQ(window.column(0)->values().to_vector<std::int32_t>(),
            (std::vector<std::int32_t>{3, 4, 5, 6}));
  EXPECT_EQ(window.column(1)->to_strings()[0], "e");
  EXPECT_EQ(window.column(2)->null_count(), 1u);
  ArrowStranger valid;
  valid.array.buffers = reinterpret_cast<const void**>(&valid.buffers[2][1]);
  const std::uint16_t ones = 0xFFFF;
  valid.buffers[2][1] = &ones;
  valid.array.null_count = -1;
  EXPECT_EQ(take(valid).rows(), 10u);
  ArrowStranger empty;
  empty.array.length = 0;
  for (std::size_t i = 0; i < 3; ++i) {
    empty.columns[i].length = empty.columns[i].null_count = 0;
    empty.buffers[i] = {};
  }
  EXPECT_EQ(take(empty).rows(), 0u);
  EXPECT_EQ(empty.array_released, 1);
  ArrowStranger unnamed;
  unnamed.fields[0].name = nullptr;
  EXPECT_EQ(take(unnamed).schema().field(0)->name, "");
  ArrowStranger late;  // the first text does not begin with the data
  for (std::int32_t& offset : late.offsets) offset += 3;
  EXPECT_EQ(take(late).column(1)->to_strings()[0], "d");
  ArrowStranger garbage;
  ArrowDeviceArray device_array = garbage.on_host();
  std::memset(device_array.reserved, 0xCD, sizeof device_array.reserved);
  EXPECT_EQ(import_arrow(host, &device_array, &garbage.schema).rows(), 10u);
  ArrowStranger none;
  none.array.n_children = none.schema.n_children = 0;
  none.array.children = nullptr;
  none.schema.children = nullptr;
  EXPECT_EQ(take(none).rows(), 10u);
  EXPECT_EQ(none.array_released, 1);
}

TEST_F(ArrowIn, TextsAreLookedAtWhenThatIsAskedFor) {
  for (const char* wrong : {"\xFF", "\xC0\x80", "\xE0\x80\x80", "\xED\xA0\x80", "\xF5\x80\x80\x80",
                            "\xC3", "\xF0\x80\x80\x80", "\x80"}) {
    ArrowStranger stranger;
    const std::size_t length = std::strlen(wrong);
    std::memcpy(stranger.letters.data(), wrong, length);
    stranger.array.length = 1;
    stranger.offsets[1] = static_cast<std::int32_t>(length);
    for (std::size_t i = 2; i < 16; ++i) stranger.offsets[i] = stranger.offsets[1];
    const Result<Table> refused =
        try_import_arrow(host, &stranger.array, &stranger.schema, {.checks_text = true});
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.failure().string("field"), "array.children[1].buffers[2] at row");
    EXPECT_EQ(stranger.array_released, 1);
    ArrowStranger same;
    std::memcpy(same.letters.data(), wrong, length);
    EXPECT_TRUE(try_import_arrow(host, &same.array, &same.schema));
  }
  ArrowStranger fine;
  std::memcpy(fine.letters.data(), "\xC3\xA4\xF0\x9F\x90\xA6", 6);
  fine.offsets = {0, 2, 6, 6, 6, 6, 6, 6, 6, 6, 6};
  EXPECT_TRUE(try_import_arrow(host, &fine.array, &fine.schema, {.checks_text = true}));
}

/// Ten texts as views: short ones in place, a long one in a buffer.
struct Views : ArrowStranger {
  struct View {
    std::int32_t length, prefix, index, offset;
  };
  Views() {
    fields[1].format = "vu";
    columns[1].n_buffers = 4;
    columns[1].buffers = view_buffers.data();
    for (View& view : views) view = {1, 'x', 0, 0};
    views[3] = {20, 0, 0, 5};
    view_buffers = {nullptr, views.data(), text.data(), sizes.data()};
  }
  /// Two are missing, which the schema rules out; how many is said may be anything.
  void deny_nulls(std::int64_t said) {
    columns[1].null_count = said;
    view_buffers[0] = validity.data();
    fields[1].flags = 0;
  }
  std::array<View, 10> views;
  std::string text = "..... pole to pole, and back";
  std::array<std::int64_t, 1> sizes = {28};
  std::array<const void*, 4> view_buffers;
};

TEST_F(ArrowIn, ViewsOfTextsAreCopiedIntoOffsets) {
  Views stranger;
  const Table taken = import_arrow(host, &stranger.array, &stranger.schema);
  EXPECT_EQ(taken.column(1)->type(), LogicalType(TypeKind::large_utf8));
  EXPECT_EQ(taken.column(1)->to_strings()[0], "x");
  EXPECT_EQ(taken.column(1)->to_strings()[3], " pole to pole, and b");
  EXPECT_FALSE(taken.column(1)->is_external());
}

// --- What nobody should give

struct Hostile {
  std::string what;
  std::function<void(ArrowStranger&)> spoil;
  ErrorCode code = ErrorCode::arrow_rejected;
};

std::vector<Hostile> hostile_tables() {
  std::vector<Hostile> all;
  const auto add = [&](std::string what, std::function<void(ArrowStranger&)> spoil) {
    all.push_back({std::move(what), std::move(spoil)});
  };
  using S = ArrowStranger;
  static const std::string megabyte(1 << 20, 'x');
  static std::array<char, 64> memory = {};
  static ArrowSchema some_schema = {};
  static ArrowArray some_array = {};
  const std::vector<const char*> formats = {
      "",     "n",    "d:",   "d:10,2", "d:-1,x", "w:-1", "w:4",  "w:",   "w:abc",
      "+l",   "+L",   "+w:3", "+w:",    "+w:abc", "+vl",  "+vL",  "+m",   "+ud:0",
      "+us:", "+r",   "+",    "tiM",    "tiD",    "tin",  "tt",   "tts:", "td",
      "tdX",  "tsX:", "ts",   "tss",    "tDx",    "t",    "x",    "ii",   " i",
      "i ",   "v",    "vx",   "vuu",    "+s",     "I4",   "\x01", "\xFF", megabyte.c_str()};
  for (std::size_t c = 0; c < 3; ++c) {
    const std::string of = "column " + std::to_string(c) + ": ";
    for (const char* format : formats) {
      add(of + "format '" + std::string(format).substr(0, 10) + "'",
          [=](S& s) { s.fields[c].format = format; });
    }
    add(of + "format null", [=](S& s) { s.fields[c].format = nullptr; });
    add(of + "schema released", [=](S& s) { s.fields[c].release = nullptr; });
    add(of + "schema null", [=](S& s) { s.field_pointers[c] = nullptr; });
    add(of + "schema is the struct", [=](S& s) { s.field_pointers[c] = &s.schema; });
    add(of + "schema dictionary", [=](S& s) { s.fields[c].dictionary = &some_schema; });
    for (const std::int64_t count : {std::int64_t{1}, std::int64_t{-1}, std::int64_t{1} << 40}) {
      add(of + "schema children", [=](S& s) { s.fields[c].n_children = count; });
      add(of + "children", [=](S& s) { s.columns[c].n_children = count; });
    }
    for (const std::int32_t count :
         {-1, std::numeric_limits<std::int32_t>::min(), std::numeric_limits<std::int32_t>::max()}) {
      add(of + "metadata count", [=](S& s) {
        std::memcpy(memory.data(), &count, 4);
        s.fields[c].metadata = memory.data();
      });
      add(of + "metadata length", [=](S& s) {
        const std::int32_t one = 1;
        std::memcpy(memory.data(), &one, 4);
        std::memcpy(memory.data() + 4, &count, 4);
        s.fields[c].metadata = memory.data();
      });
    }
    for (const std::int64_t length : {std::int64_t{-1}, least, std::int64_t{0}, std::int64_t{1},
                                      std::int64_t{5}, std::int64_t{9}}) {
      add(of + "length", [=](S& s) { s.columns[c].length = length; });
    }
    for (const std::int64_t offset : {std::int64_t{-1}, least, most, most - 5}) {
      add(of + "offset", [=](S& s) { s.columns[c].offset = offset; });
    }
    for (const std::int64_t count : {std::int64_t{-2}, least, std::int64_t{11}, most}) {
      add(of + "null_count", [=](S& s) { s.columns[c].null_count = count; });
    }
    add(of + "nulls without a bitmap", [=](S& s) {
      s.columns[c].null_count = 1;
      s.buffers[c][0] = nullptr;
    });
    add(of + "nulls where none may be", [=](S& s) {
      s.columns[c].null_count = 1;
      s.buffers[c][0] = s.validity.data();
      s.fields[c].flags = 0;
    });
    add(of + "uncounted nulls where none may be", [=](S& s) {
      s.columns[c].null_count = -1;
      s.buffers[c][0] = s.validity.data();
      s.fields[c].flags = 0;
    });
    add(of + "denied nulls where none may be", [=](S& s) {
      s.columns[c].null_count = 0;
      s.buffers[c][0] = s.validity.data();
      s.fields[c].flags = 0;
    });
    add(of + "bitmap at the end of all addresses", [=](S& s) {
      s.columns[c].null_count = 1;
      s.buffers[c][0] = reinterpret_cast<const void*>(~std::uintptr_t{0});
    });
    const std::int64_t right = c == 1 ? 3 : 2;
    for (const std::int64_t count :
         {std::int64_t{0}, std::int64_t{1}, std::int64_t{2}, std::int64_t{3}, std::int64_t{4},
          std::int64_t{-1}, least, std::int64_t{1} << 40, most}) {
      if (count == right) continue;
      add(of + "n_buffers", [=](S& s) { s.columns[c].n_buffers = count; });
    }
    add(of + "buffers null", [=](S& s) { s.columns[c].buffers = nullptr; });
    add(of + "values null", [=](S& s) { s.buffers[c][1] = nullptr; });
    add(of + "released", [=](S& s) { s.columns[c].release = nullptr; });
    add(of + "null", [=](S& s) { s.column_pointers[c] = nullptr; });
    add(of + "is the struct", [=](S& s) { s.column_pointers[c] = &s.array; });
    add(of + "dictionary", [=](S& s) { s.columns[c].dictionary = &some_array; });
    if (c != 2) {
      for (const std::size_t shift : {1u, 2u, 3u}) {
        add(of + "misaligned",
            [=](S& s) { s.buffers[c][1] = static_cast<const char*>(s.buffers[c][1]) + shift; });
      }
      add(of + "at the end of all addresses",
          [=](S& s) { s.buffers[c][1] = reinterpret_cast<const void*>(~std::uintptr_t{0} - 3); });
    }
  }
  // Schema and array that do not belong together.
  for (const char* format : {"u", "U", "z", "Z"}) {
    add("numbers as texts", [=](S& s) { s.fields[0].format = format; });
    add("truth values as texts", [=](S& s) { s.fields[2].format = format; });
  }
  for (const char* format : {"i", "l", "b", "g", "tdD", "tsn:UTC"}) {
    add("texts as numbers", [=](S& s) { s.fields[1].format = format; });
  }
  for (std::size_t at = 0; at <= 10; ++at) {
    add("offset negative", [=](S& s) { s.offsets[at] = -1; });
    add("offset very negative",
        [=](S& s) { s.offsets[at] = std::numeric_limits<std::int32_t>::min(); });
    if (at < 10) {
      add("offset decreases", [=](S& s) { s.offsets[at] = 11; });
    }
  }
  add("no bytes for texts", [](S& s) { s.buffers[1][2] = nullptr; });
  add("texts at the end of all addresses",
      [](S& s) { s.buffers[1][2] = reinterpret_cast<const void*>(~std::uintptr_t{0} - 3); });
  // The struct itself.
  for (const char* format : formats) {
    if (std::string_view(format) == "+s") continue;
    add("format '" + std::string(format).substr(0, 10) + "'",
        [=](S& s) { s.schema.format = format; });
  }
  add("format of a number", [](S& s) { s.schema.format = "i"; });
  add("format null", [](S& s) { s.schema.format = nullptr; });
  add("schema dictionary", [](S& s) { s.schema.dictionary = &some_schema; });
  add("dictionary", [](S& s) { s.array.dictionary = &some_array; });
  add("schema children null", [](S& s) { s.schema.children = nullptr; });
  add("children null", [](S& s) { s.array.children = nullptr; });
  for (const std::int64_t count : {std::int64_t{-1}, std::int64_t{0}, std::int64_t{1},
                                   std::int64_t{2}, std::int64_t{1} << 40, most, least}) {
    add("schema n_children", [=](S& s) { s.schema.n_children = count; });
    add("n_children", [=](S& s) { s.array.n_children = count; });
  }
  for (const std::int64_t length : {std::int64_t{-1}, least, std::int64_t{11}, most}) {
    add("length", [=](S& s) { s.array.length = length; });
  }
  for (const std::int64_t offset : {std::int64_t{-1}, least, std::int64_t{1}, most}) {
    add("offset", [=](S& s) { s.array.offset = offset; });
  }
  for (const std::int64_t count : {std::int64_t{-2}, least, std::int64_t{1}, std::int64_t{11}}) {
    add("null_count", [=](S& s) { s.array.null_count = count; });
  }
  add("rows that are null", [](S& s) {
    s.array.null_count = -1;
    s.no_buffer[0] = s.validity.data();
  });
  add("rows that are null and said not to be", [](S& s) { s.no_buffer[0] = s.validity.data(); });
  for (const std::int64_t count : {std::int64_t{0}, std::int64_t{-1}}) {
    add("bitmap at the end of all addresses", [=](S& s) {
      s.array.null_count = count;
      s.no_buffer[0] = reinterpret_cast<const void*>(~std::uintptr_t{0});
    });
  }
  for (const std::int64_t count :
       {std::int64_t{0}, std::int64_t{2}, std::int64_t{-1}, std::int64_t{1} << 40}) {
    add("n_buffers", [=](S& s) { s.array.n_buffers = count; });
  }
  add("buffers null", [](S& s) { s.array.buffers = nullptr; });
  for (const std::int32_t count : {-1, std::numeric_limits<std::int32_t>::max()}) {
    add("metadata count", [=](S& s) {
      std::memcpy(memory.data(), &count, 4);
      s.schema.metadata = memory.data();
    });
  }
  return all;
}

TEST_F(ArrowIn, RejectsEveryHostileTableByFieldAndReleasesItOnce) {
  std::size_t refused = 0;
  const std::size_t before = reclaim_deferred().count;
  for (const Hostile& hostile : hostile_tables()) {
    for (const bool is_device_array : {false, true}) {
      ArrowStranger stranger;
      hostile.spoil(stranger);
      ArrowDeviceArray on_host = stranger.on_host();
      const Result<Table> taken = is_device_array
                                      ? try_import_arrow(host, &on_host, &stranger.schema)
                                      : try_import_arrow(host, &stranger.array, &stranger.schema);
      ASSERT_FALSE(taken) << hostile.what;
      EXPECT_EQ(taken.failure().code(), hostile.code)
          << hostile.what << ": " << taken.failure().text();
      EXPECT_TRUE(taken.failure().string("field")) << hostile.what;
      EXPECT_EQ(stranger.array_released, 1) << hostile.what;
      EXPECT_EQ(stranger.schema_released, 1) << hostile.what;
      ++refused;
    }
  }
  EXPECT_LE(reclaim_deferred().count, before);
  RecordProperty("refused", static_cast<int>(refused));
  std::printf("%zu hostile tables refused\n", refused);
  EXPECT_GE(refused, 500u);
}

TEST_F(ArrowIn, CountsNullsInsteadOfBelievingWhatIsSaid) {
  for (const std::int64_t said : {-1, 0, 1, 2, 9}) {
    SCOPED_TRACE(said);
    ArrowStranger stranger;
    stranger.columns[2].null_count = said;
    const Table taken = import_arrow(host, &stranger.array, &stranger.schema);
    EXPECT_EQ(taken.column(2)->null_count(), 2u);
    EXPECT_FALSE(taken.column(2)->to_valid()[3]);
    ArrowArray again;
    export_arrow(taken, &again);
    EXPECT_EQ(again.children[2]->null_count, 2);
    again.release(&again);

    ArrowStranger alone;
    alone.columns[2].null_count = said;
    EXPECT_EQ(import_arrow_column(host, &alone.columns[2], &alone.fields[2]).null_count(), 2u);
  }
}

/// Without fields only the length says how many rows there are.
struct NoFields : ArrowStranger {
  explicit NoFields(std::int64_t length, std::int64_t null_count, bool has_bitmap) {
    schema.n_children = array.n_children = 0;
    array.length = length;
    array.null_count = null_count;
    if (has_bitmap) no_buffer[0] = validity.data();
  }
};

TEST_F(ArrowIn, ReadsNoBitmapWhoseLengthNobodyVouchesFor) {
  for (const std::int64_t length : {std::int64_t{1} << 40, std::int64_t{1} << 62, most}) {
    NoFields stranger(length, -1, true);
    const Result<Table> taken = try_import_arrow(host, &stranger.array, &stranger.schema);
    ASSERT_FALSE(taken) << length;
    EXPECT_EQ(taken.failure().code(), ErrorCode::arrow_rejected);
    EXPECT_EQ(stranger.array_released, 1);
  }
  NoFields counted(7, 0, false);
  EXPECT_EQ(import_arrow(host, &counted.array, &counted.schema).rows(), 7u);
  NoFields without_bitmap(7, -1, false);
  EXPECT_EQ(import_arrow(host, &without_bitmap.array, &without_bitmap.schema).rows(), 7u);
}

TEST_F(ArrowIn, RefusesLengthsThatNoMemoryHas) {
  for (const std::int64_t length : {std::int64_t{1} << 57, std::int64_t{1} << 62, most - 1, most}) {
    SCOPED_TRACE(length);
    for (const std::int64_t offset : {std::int64_t{0}, length}) {
      NoFields stranger(length - offset, 0, false);
      stranger.array.offset = offset;
      const Result<Table> taken = try_import_arrow(host, &stranger.array, &stranger.schema);
      ASSERT_FALSE(taken);
      EXPECT_EQ(taken.failure().code(), ErrorCode::arrow_rejected);
    }
    for (const std::size_t c : {0u, 1u, 2u}) {
      ArrowStranger stranger;
      stranger.columns[c].length = length;
      stranger.columns[c].null_count = 0;
      stranger.buffers[c][0] = nullptr;
      const Result<Column> taken =
          try_import_arrow_column(host, &stranger.columns[c], &stranger.fields[c]);
      ASSERT_FALSE(taken) << c;
      EXPECT_EQ(taken.failure().code(), ErrorCode::arrow_rejected);
    }
  }
}

TEST_F(ArrowIn, RefusesTextsThatNoMemoryHas) {
  for (const std::int64_t last : {most, most - 8, std::int64_t{1} << 62, std::int64_t{1} << 57}) {
    for (const char* format : {"U", "Z"}) {
      ArrowStranger stranger;
      stranger.fields[1].format = format;
      std::array<std::int64_t, 16> offsets = {};
      offsets[10] = last;
      stranger.buffers[1][1] = offsets.data();
      const Result<Table> taken = try_import_arrow(host, &stranger.array, &stranger.schema);
      ASSERT_FALSE(taken) << last;
      EXPECT_EQ(taken.failure().code(), ErrorCode::arrow_rejected);
      EXPECT_EQ(stranger.array_released, 1);
    }
  }
}

TEST_F(ArrowIn, ACallbackThatThrowsCountsAsCalled) {
  const auto make_throw = [](ArrowStranger& stranger) {
    stranger.array.release = [](ArrowArray* self) {
      ++static_cast<ArrowStranger*>(self->private_data)->array_released;
      self->release = nullptr;
      throw 1;
    };
    stranger.schema.release = [](ArrowSchema* self) {
      ++static_cast<ArrowStranger*>(self->private_data)->schema_released;
      self->release = nullptr;
      throw 1;
    };
  };
  ArrowStranger taken;
  make_throw(taken);
  EXPECT_EQ(import_arrow(host, &taken.array, &taken.schema).rows(), 10u);
  static_cast<void>(reclaim_deferred());
  EXPECT_EQ(taken.array_released, 1);
  EXPECT_EQ(taken.schema_released, 1);
  ArrowStranger refused;
  make_throw(refused);
  refused.columns[0].length = -1;
  EXPECT_FALSE(try_import_arrow(host, &refused.array, &refused.schema));
  EXPECT_EQ(refused.array_released, 1);
  EXPECT_EQ(refused.schema_released, 1);
}

TEST_F(ArrowIn, NamesThePathOfTheFieldAndWhatIsThere) {
  ArrowStranger stranger;
  stranger.columns[1].n_buffers = 7;
  const Failure refused = try_import_arrow(host, &stranger.array, &stranger.schema).failure();
  EXPECT_EQ(refused.string("field"), "array.children[1].n_buffers");
  EXPECT_EQ(refused.number("value"), 7u);
  EXPECT_NE(refused.text().find("array.children[1].n_buffers: 7"), std::string::npos);
}

TEST_F(ArrowIn, WhatWasReleasedIsNotReleasedAgain) {
  ArrowStranger no_array;
  no_array.array.release = nullptr;
  EXPECT_EQ(try_import_arrow(host, &no_array.array, &no_array.schema).failure().string("field"),
            "array.release");
  EXPECT_EQ(no_array.schema_released, 1);
  EXPECT_EQ(no_array.array_released, 0);
  ArrowStranger no_schema;
  no_schema.schema.release = nullptr;
  EXPECT_EQ(try_import_arrow(host, &no_schema.array, &no_schema.schema).failure().string("field"),
            "schema.release");
  EXPECT_EQ(no_schema.array_released, 1);
  EXPECT_EQ(no_schema.schema_released, 0);
  ArrowStranger twice;
  static_cast<void>(import_arrow(host, &twice.array, &twice.schema));
  EXPECT_FALSE(try_import_arrow(host, &twice.array, &twice.schema));
  EXPECT_EQ(twice.array_released, 1);
  ArrowStranger half;
  EXPECT_EQ(
      try_import_arrow(host, static_cast<ArrowArray*>(nullptr), &half.schema).failure().code(),
      ErrorCode::invalid_argument);
  EXPECT_EQ(half.schema_released, 1);
  EXPECT_EQ(try_import_arrow(host, &half.array, nullptr).failure().code(),
            ErrorCode::invalid_argument);
  EXPECT_EQ(half.array_released, 1);
}

TEST_F(ArrowIn, RefusesMemoryOfDevicesThatAreNotMeant) {
  struct Place {
    ArrowDeviceType type;
    std::int64_t id;
    bool has_event;
    ErrorCode code;
  };
  constexpr ErrorCode rejected = ErrorCode::arrow_rejected, mismatch = ErrorCode::device_mismatch;
  std::vector<Place> places = {{1, 1, false, rejected},    {1, -2, false, rejected},
                               {1, most, false, rejected}, {1, -1, true, rejected},
                               {2, 0, false, mismatch},    {3, 0, false, mismatch},
                               {12, 0, true, mismatch},    {13, 5, false, mismatch}};
  for (const ArrowDeviceType type :
       {0, -1, 4, 5, 6, 7, 8, 9, 10, 11, 14, 15, 16, 17, 99, 1 << 30}) {
    places.push_back({type, 0, false, rejected});
  }
  for (const ArrowDeviceType type : {2, 3, 12, 13}) {
    for (const std::int64_t id : {std::int64_t{-1}, least, most, std::int64_t{1} << 40}) {
      places.push_back({type, id, false, rejected});
    }
  }
  for (const Place& place : places) {
    ArrowStranger stranger;
    ArrowDeviceArray array = stranger.on_host();
    array.device_type = place.type;
    array.device_id = place.id;
    std::uintptr_t event = 1;
    if (place.has_event) array.sync_event = &event;
    const Result<Table> taken = try_import_arrow(host, &array, &stranger.schema);
    ASSERT_FALSE(taken) << place.type << " " << place.id;
    EXPECT_EQ(taken.failure().code(), place.code) << place.type << " " << place.id;
    EXPECT_EQ(stranger.array_released, 1);
    EXPECT_EQ(stranger.schema_released, 1);
    if (place.id > std::int64_t{1} << 31 && place.type != 1) {
      EXPECT_EQ(taken.failure().string("expected"), "a device number must be below 2^31");
    }
  }
  ArrowStranger stranger;
  EXPECT_EQ(
      try_import_arrow(open_device("sim"), &stranger.array, &stranger.schema).failure().code(),
      ErrorCode::device_mismatch);
}

TEST_F(ArrowIn, RefusesHostileViews) {
  const std::vector<std::pair<std::string, std::function<void(Views&)>>> all = {
      {"length negative", [](Views& v) { v.views[2].length = -1; }},
      {"index negative", [](Views& v) { v.views[3].index = -1; }},
      {"index beyond", [](Views& v) { v.views[3].index = 1; }},
      {"offset negative", [](Views& v) { v.views[3].offset = -1; }},
      {"offset beyond", [](Views& v) { v.views[3].offset = 9; }},
      {"length beyond", [](Views& v) { v.views[3].length = 1 << 30; }},
      {"size negative", [](Views& v) { v.sizes[0] = -1; }},
      {"size too small", [](Views& v) { v.sizes[0] = 24; }},
      {"sizes null", [](Views& v) { v.view_buffers[3] = nullptr; }},
      {"data null", [](Views& v) { v.view_buffers[2] = nullptr; }},
      {"views null", [](Views& v) { v.view_buffers[1] = nullptr; }},
      {"no buffers for texts", [](Views& v) { v.columns[1].n_buffers = 3; }},
      {"two buffers", [](Views& v) { v.columns[1].n_buffers = 2; }},
      {"too many buffers", [](Views& v) { v.columns[1].n_buffers = std::int64_t{1} << 40; }},
      {"bad text", [](Views& v) { v.views[0].prefix = 0xFF; }},
      {"nulls where none may be", [](Views& v) { v.deny_nulls(2); }},
      {"uncounted nulls where none may be", [](Views& v) { v.deny_nulls(-1); }},
      {"denied nulls where none may be", [](Views& v) { v.deny_nulls(0); }},
  };
  for (const auto& hostile : all) {
    Views stranger;
    hostile.second(stranger);
    const Result<Table> taken =
        try_import_arrow(host, &stranger.array, &stranger.schema, {.checks_text = true});
    ASSERT_FALSE(taken) << hostile.first;
    EXPECT_EQ(taken.failure().code(), ErrorCode::arrow_rejected) << hostile.first;
    EXPECT_EQ(stranger.array_released, 1) << hostile.first;
  }
}

TEST_F(ArrowIn, ColumnsAreCheckedTheSame) {
  ArrowStranger stranger;
  ArrowArray column = stranger.columns[1];
  ArrowSchema field = stranger.fields[1];
  EXPECT_EQ(import_arrow_column(host, &column, &field).to_strings()[3], "d");
  EXPECT_EQ(column.release, nullptr);
  EXPECT_EQ(field.release, nullptr);
  column = stranger.columns[1];
  field = stranger.fields[0];
  EXPECT_EQ(try_import_arrow_column(host, &column, &field).failure().string("field"),
            "array.n_buffers");
  EXPECT_EQ(column.release, nullptr);
  EXPECT_EQ(
      try_import_arrow_column(host, &stranger.array, &stranger.schema).failure().string("field"),
      "schema.format");
  EXPECT_EQ(stranger.array_released, 1);
}

// --- Streams of others

struct ChunkSource {
  explicit ChunkSource(int chunks) : left(chunks) {
    stream.get_schema = [](ArrowArrayStream* self, ArrowSchema* out) {
      ChunkSource& source = *static_cast<ChunkSource*>(self->private_data);
      if (source.schema_error != 0) return source.schema_error;
      *out = source.stranger.schema;
      return 0;
    };
    stream.get_next = [](ArrowArrayStream* self, ArrowArray* out) {
      ChunkSource& source = *static_cast<ChunkSource*>(self->private_data);
      if (source.left == source.fails_at) return 5;
      *out = source.stranger.array;
      if (source.left-- == 0) out->release = nullptr;
      return 0;
    };
    stream.get_last_error = [](ArrowArrayStream*) { return "the disk is on fire"; };
    stream.release = [](ArrowArrayStream* self) {
      ++static_cast<ChunkSource*>(self->private_data)->released;
      self->release = nullptr;
    };
    stream.private_data = this;
  }
  ArrowStranger stranger;
  ArrowArrayStream stream = {};
  int left = 0, fails_at = -1, schema_error = 0, released = 0;
};

TEST_F(ArrowIn, AStreamIsReadToItsEnd) {
  for (const int chunks : {0, 1, 3}) {
    ChunkSource source(chunks);
    {
      const Table all = try_import_arrow(host, &source.stream).value();
      EXPECT_EQ(source.released, 1);
      EXPECT_EQ(all.rows(), 10u * static_cast<unsigned>(chunks));
      EXPECT_EQ(all.schema().field(1)->name, "s");
      if (chunks == 3) {
        EXPECT_EQ(all.column(1)->to_strings()[19], "j");
        EXPECT_EQ(all.column(2)->null_count(), 6u);
      }
    }
    EXPECT_EQ(source.stranger.array_released, chunks);
    EXPECT_EQ(source.stranger.schema_released, 1);
  }
}

TEST_F(ArrowIn, AStreamWhoseCallbacksThrowFailsAndIsReleased) {
  ChunkSource schema(2);
  schema.stream.get_schema = [](ArrowArrayStream*, ArrowSchema*) -> int {
    throw std::runtime_error("the disk is on fire");
  };
  const Failure no_schema = try_import_arrow(host, &schema.stream).failure();
  EXPECT_EQ(no_schema.code(), ErrorCode::arrow_rejected);
  EXPECT_EQ(no_schema.text(),
            "an Arrow structure cannot be imported (stream.get_schema: an exception): a callback "
            "must return 0 or an errno value and must not throw.");
  EXPECT_EQ(no_schema.string("said"), "the disk is on fire");
  EXPECT_EQ(schema.released, 1);
  ChunkSource next(3);
  next.stream.get_next = [](ArrowArrayStream* self, ArrowArray* out) {
    ChunkSource& source = *static_cast<ChunkSource*>(self->private_data);
    if (source.left == 1) throw 1;
    *out = source.stranger.array;
    --source.left;
    return 0;
  };
  const Failure no_chunk = try_import_arrow(host, &next.stream).failure();
  EXPECT_EQ(no_chunk.code(), ErrorCode::arrow_rejected);
  EXPECT_EQ(no_chunk.string("field"), "stream.get_next");
  EXPECT_EQ(next.released, 1);
  EXPECT_EQ(next.stranger.array_released, 2);
  EXPECT_EQ(next.stranger.schema_released, 1);
  ChunkSource no_memory(1);
  no_memory.stream.get_next = [](ArrowArrayStream*, ArrowArray*) -> int { throw std::bad_alloc(); };
  EXPECT_EQ(try_import_arrow(host, &no_memory.stream).failure().code(), ErrorCode::out_of_memory);
  EXPECT_EQ(no_memory.released, 1);
  // The error text is optional: without it, the code of the callback is reported all the same.
  ChunkSource text(1);
  text.schema_error = 12;
  text.stream.get_last_error = [](ArrowArrayStream*) -> const char* { throw 1; };
  text.stream.release = [](ArrowArrayStream* self) {
    ++static_cast<ChunkSource*>(self->private_data)->released;
    self->release = nullptr;
    throw 1;
  };
  const Failure no_text = try_import_arrow(host, &text.stream).failure();
  EXPECT_EQ(no_text.number("value"), 12u);
  EXPECT_EQ(text.released, 1);
}

TEST_F(ArrowIn, AFailedStreamIsReleased) {
  ChunkSource schema(2);
  schema.schema_error = 12;
  const Failure no_schema = try_import_arrow(host, &schema.stream).failure();
  EXPECT_EQ(no_schema.string("field"), "stream.get_schema");
  EXPECT_EQ(no_schema.number("value"), 12u);
  EXPECT_EQ(no_schema.string("said"), "the disk is on fire");
  EXPECT_EQ(schema.released, 1);
  EXPECT_EQ(schema.stranger.schema_released, 0);
  ChunkSource next(3);
  next.fails_at = 1;
  next.stream.get_last_error = nullptr;
  EXPECT_EQ(try_import_arrow(host, &next.stream).failure().string("field"), "stream.get_next");
  EXPECT_EQ(next.released, 1);
  EXPECT_EQ(next.stranger.array_released, 2);
  EXPECT_EQ(next.stranger.schema_released, 1);
  ChunkSource hostile(2);
  hostile.stranger.columns[0].length = -4;
  EXPECT_EQ(try_import_arrow(host, &hostile.stream).failure().string("field"),
            "array.children[0].length");
  EXPECT_EQ(hostile.stranger.array_released, 1);
  ChunkSource no_release(1);
  no_release.stranger.schema.release = nullptr;
  EXPECT_EQ(try_import_arrow(host, &no_release.stream).failure().string("field"), "schema.release");
  test::expect_callbacks_needed<ChunkSource>(
      [&](ArrowArrayStream* stream) { return try_import_arrow(host, stream); },
      [](const ChunkSource&) {});
  EXPECT_EQ(try_import_arrow(host, static_cast<ArrowArrayStream*>(nullptr)).failure().code(),
            ErrorCode::invalid_argument);
}

// --- Order on devices

/// Numbers in memory of a simulated device that somebody else has.
struct DeviceNumbers {
  explicit DeviceNumbers(const Device& on) : device(on), event(on) {
    address = device.allocate(MemoryKind::device, 400);
    buffers = {nullptr, address};
    array.array.length = 100;
    array.array.n_buffers = 2;
    array.array.buffers = buffers.data();
    array.array.private_data = this;
    array.array.release = [](ArrowArray* self) {
      ++static_cast<DeviceNumbers*>(self->private_data)->released;
      self->release = nullptr;
    };
    array.device_type = ARROW_DEVICE_EXT_DEV;
    slot = event.native().value;
    array.sync_event = &slot;
    schema.format = "i";
    schema.release = [](ArrowSchema* self) { self->release = nullptr; };
  }
  ~DeviceNumbers() { device.release(address); }

  Device device;
  Event event;
  std::uintptr_t slot = 0;
  void* address = nullptr;
  std::array<const void*, 2> buffers = {};
  ArrowDeviceArray array = {};
  ArrowSchema schema = {};
  std::atomic<int> released = 0;
};

TEST(ArrowInOrder, UsesComeBehindTheEvent) {
  for (const bool names_stream : {true, false}) {
    const Device device = sim::open({.seed = 3, .policy = sim::Policy::lazy});
    DeviceNumbers theirs(device);
    const Stream producer(device), consumer(device), reader(device);
    producer.fill(static_cast<std::int32_t*>(theirs.address), 100, 9);
    producer.record(theirs.event);
    Column taken =
        import_arrow_column(device, &theirs.array, &theirs.schema,
                            {.stream = names_stream ? StreamRef(consumer) : StreamRef()});
    // On a third stream, which knows of neither.
    auto copy = Array<std::int32_t>::uninitialized(device, 100);
    {
      LaunchRecorder recorder(reader);
      recorder.use(taken.values(), Access::read);
      recorder.use(copy, Access::discard);
      recorder.preflight();
      reader.copy(recorder.pointer(1), recorder.pointer(0), 400);
      recorder.commit();
    }
    EXPECT_EQ(copy.to_vector(), std::vector<std::int32_t>(100, 9));
    taken = {};
    device.synchronize();
    static_cast<void>(reclaim_deferred());
    EXPECT_EQ(theirs.released, 1);
  }
}

TEST(ArrowInOrder, NullRowsOfADeviceMustBeCounted) {
  const Device device = sim::open({});
  for (const std::int64_t said : {-1, 0}) {
    DeviceNumbers theirs(device);
    theirs.array.sync_event = nullptr;
    ArrowArray* column = &theirs.array.array;
    const void* bitmap = theirs.address;
    ArrowDeviceArray given = {};
    given.device_type = ARROW_DEVICE_EXT_DEV;
    given.array.length = 100;
    given.array.null_count = said;
    given.array.n_buffers = 1;
    given.array.buffers = &bitmap;
    given.array.n_children = 1;
    given.array.children = &column;
    given.array.release = [](ArrowArray* self) { self->release = nullptr; };
    ArrowSchema* field = &theirs.schema;
    ArrowSchema schema = {};
    schema.format = "+s";
    schema.n_children = 1;
    schema.children = &field;
    schema.release = [](ArrowSchema* self) { self->release = nullptr; };
    const Result<Table> taken = try_import_arrow(device, &given, &schema);
    ASSERT_EQ(static_cast<bool>(taken), said == 0);
    if (taken) continue;
    EXPECT_EQ(taken.failure().text(),
              "an Arrow structure cannot be imported (array.null_count: -1): the number of null "
              "rows is unknown, and the host cannot read the bitmap. State a count of 0.");
  }
}

TEST(ArrowInOrder, WithoutAnEventTheStructureSaysThatItIsComplete) {
  const Device device = sim::open({});
  DeviceNumbers theirs(device);
  theirs.array.sync_event = nullptr;
  const Stream reader(device);
  {
    const Column taken = import_arrow_column(device, &theirs.array, &theirs.schema);
    LaunchRecorder recorder(reader);
    recorder.use(taken.values(), Access::read);
    EXPECT_TRUE(recorder.try_preflight());
    recorder.cancel();
  }
  device.synchronize();
  static_cast<void>(reclaim_deferred());
  EXPECT_EQ(theirs.released, 1);
}

TEST(ArrowInOrder, ReleaseComesBehindTheLastRecordedUse) {
  const Device device = sim::open({.seed = 3});
  DeviceNumbers theirs(device);
  const Stream producer(device), reader(device);
  producer.fill(static_cast<std::int32_t*>(theirs.address), 100, 9);
  producer.record(theirs.event);
  Column taken = import_arrow_column(device, &theirs.array, &theirs.schema);
  test::Gate gate;
  gate.hold(reader);
  static_cast<void>(taken.values().device_ptr(reader, Access::read));
  taken = {};
  static_cast<void>(reclaim_deferred());
  EXPECT_EQ(theirs.released, 0);
  gate.open();
  reader.synchronize();
  static_cast<void>(reclaim_deferred());
  EXPECT_EQ(theirs.released, 1);
}

TEST(ArrowInOrder, AStreamOfAnotherDeviceCannotWait) {
  const Device device = sim::open({.seed = 3}), other = sim::open({.seed = 4});
  DeviceNumbers theirs(device);
  const Stream stream(other);
  EXPECT_EQ(try_import_arrow_column(device, &theirs.array, &theirs.schema, {.stream = stream})
                .failure()
                .code(),
            ErrorCode::device_mismatch);
  EXPECT_EQ(theirs.released, 1);
}

}  // namespace
}  // namespace tern
