#include "tern/table/table.hpp"

#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <time.h>

#include <array>
#include <atomic>
#include <barrier>
#include <chrono>
#include <limits>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "support/ladder.hpp"
#include "support/on_device.hpp"
#include "support/thread.hpp"
#include "table/bitmap.hpp"
#include "tern/backends/catalog.hpp"
#include "tern/backends/sim.hpp"
#include "tern/buffer/transfer_audit.hpp"
#include "tern/launch/kernel.hpp"

namespace tern {
namespace {

constexpr std::array<std::string_view, 8> letters = {"a", "b", "c", "d", "e", "f", "g", "h"};

class TableOn : public test::OnDevice {
 protected:
  Column numbers(std::size_t count) {
    std::vector<std::int32_t> values(count);
    std::iota(values.begin(), values.end(), 0);
    return Column::from<std::int32_t>(device, values);
  }
  /// Eight rows: a number and a text.
  Table table(TableOptions options = {}) {
    return Table::make(Schema({{"n", TypeKind::i32}, {"s", TypeKind::utf8}}),
                       {numbers(8), Column::from_strings(device, letters)}, options);
  }
  template <class T>
  Buffer cell(T rows) {
    Buffer made(device, {1}, dtype_of<T>());
    made.copy_from(std::span<const T>(&rows, 1));
    return made;
  }
};
INSTANTIATE_TEST_SUITE_P(Devices, TableOn, testing::Values("host", "sim", "cuda?driver=sim"),
                         test::spec_name);

TEST_P(TableOn, IsASchemaAndItsColumns) {
  const Table made = table();
  EXPECT_EQ(made.arity(), 2u);
  EXPECT_EQ(made.capacity(), 8u);
  EXPECT_EQ(made.rows(), 8u);
  EXPECT_EQ(made.device(), device);
  EXPECT_EQ(made.column(0)->capacity(), 8u);
  EXPECT_EQ(made.column("s")->to_strings()[7], "h");
  EXPECT_FALSE(made.column(9));
  EXPECT_FALSE(made.column("t"));
  // 8 numbers, 9 offsets, 8 letters.
  EXPECT_EQ(made.estimated_bytes(), 8u * 4 + 9 * 4 + 8);
  EXPECT_FALSE(made.row_count());
  const Table none;
  EXPECT_EQ(none.arity(), 0u);
  EXPECT_EQ(none.rows(), 0u);
  EXPECT_EQ(none.rows_host(), 0u);
  EXPECT_FALSE(none.device().is_open());
}

TEST_P(TableOn, RefusesWhatDoesNotFitByField) {
  const Schema three({{"a", TypeKind::i32}, {"b", TypeKind::i32}, {"c", TypeKind::i32, false}});
  const auto refused = [&](std::vector<Column> columns, TableOptions options = {}) {
    return Table::try_make(three, std::move(columns), options).failure();
  };
  EXPECT_EQ(refused({numbers(8), numbers(8)}).code(), ErrorCode::shape_mismatch);
  const Failure shorter = refused({numbers(8), numbers(7), numbers(8)});
  EXPECT_EQ(shorter.code(), ErrorCode::size_mismatch);
  EXPECT_EQ(shorter.string("field"), "b");
  EXPECT_EQ(shorter.number("actual"), 7u);
  const Failure other = refused({numbers(8), numbers(8), Column::from_strings(device, letters)});
  EXPECT_EQ(other.code(), ErrorCode::type_mismatch);
  EXPECT_EQ(other.string("field"), "c");
  const Device elsewhere = open_device(GetParam() == "sim" ? "host" : "sim");
  const Failure far =
      refused({numbers(8), numbers(8).try_copy_to(elsewhere, 8, {}).value(), numbers(8)});
  EXPECT_EQ(far.code(), ErrorCode::device_mismatch);
  EXPECT_EQ(far.string("field"), "b");
  const std::array<std::int32_t, 8> values = {};
  const std::array<std::uint8_t, 8> valid = {1, 1, 1, 1, 0, 1, 1, 1};
  const Failure missing = refused(
      {numbers(8), numbers(8), Column::from<std::int32_t>(device, values, {.valid = valid})});
  EXPECT_EQ(missing.code(), ErrorCode::type_mismatch);
  EXPECT_EQ(missing.string("field"), "c");
  const std::vector<Column> fine = {numbers(8), numbers(8), numbers(8)};
  EXPECT_EQ(refused(fine, {.rows = 9}).code(), ErrorCode::invalid_view);
  EXPECT_EQ(refused(fine, {.row_count = Buffer(device, {1}, DType::i32)}).code(),
            ErrorCode::type_mismatch);
  EXPECT_EQ(refused(fine, {.row_count = Buffer(device, {2}, DType::u32)}).code(),
            ErrorCode::size_mismatch);
  EXPECT_EQ(refused(fine, {.row_count = Buffer(elsewhere, {1}, DType::u32)}).code(),
            ErrorCode::device_mismatch);
}

TEST_P(TableOn, ReadsTheCountOfRowsOnceUntilItIsWritten) {
  const Buffer count = cell<std::uint32_t>(5);
  Table made = table({.row_count = count});
  EXPECT_EQ(made.rows(), std::nullopt);
  const TransferCounts before = transfer_counts();
  const auto moved = [&] { return (transfer_counts() - before).device_to_host().bytes; };
  EXPECT_EQ(made.rows_host(), 5u);
  EXPECT_EQ(made.rows_host(), 5u);
  EXPECT_EQ(made.rows(), 5u);
  EXPECT_EQ(moved(), device.info().is_host ? 0u : 4u);
  // By any way of writing it, and by way of any handle.
  Buffer handle = count;
  handle.fill(std::uint32_t{7}, stream);
  EXPECT_EQ(made.rows(), std::nullopt);
  EXPECT_EQ(made.rows_host(), 7u);
  EXPECT_EQ(moved(), device.info().is_host ? 0u : 8u);
  const std::uint32_t three = 3;
  handle.copy_from(std::span<const std::uint32_t>(&three, 1));
  EXPECT_EQ(made.rows(), std::nullopt);
  EXPECT_EQ(made.rows_host(), 3u);
  static_cast<void>(handle.device_ptr(stream, Access::read));
  EXPECT_EQ(made.rows(), 3u);
  static_cast<void>(handle.device_ptr(stream, Access::read_write));
  EXPECT_EQ(made.rows(), std::nullopt);
  EXPECT_EQ(made.rows_host(), 3u);
  made.set_rows(2, stream);
  EXPECT_EQ(made.rows(), 2u);
  EXPECT_EQ(count.item<std::uint32_t>(), 2u);
  EXPECT_EQ(made.try_set_rows(1).failure().code(), ErrorCode::stream_misuse);
  EXPECT_EQ(made.rows(), 2u);
}

TEST_P(TableOn, TextsAreCopiedAsFarAsTheyAreWritten) {
  Table some =
      Table::allocate(device, Schema({{"t", TypeKind::utf8, false}}), 4, {.data_bytes = 100});
  const Column texts = *some.column(0);
  const std::array<std::int32_t, 3> offsets = {0, 2, 3};
  texts.offsets().slice(0, 3).copy_from(std::span<const std::int32_t>(offsets));
  texts.values().slice(0, 3).try_copy_from("abc", 3).value();
  some.set_rows(2, stream);
  stream.synchronize();
  const Table copy = some.try_copy_to(device).value();
  EXPECT_EQ(copy.slice(0, 2).column(0)->to_strings(), (std::vector<std::string>{"ab", "c"}));
  const Table part = some.slice(1, 1).try_copy_to(device).value();
  EXPECT_EQ(part.slice(0, 1).column(0)->to_strings(), (std::vector<std::string>{"c"}));
}

/// What a signal does to a thread: it stops until another thread has ended its call, or for a
/// moment if the other one needs a lock of the stopped thread.
enum class Turn { runs, is_stopped, other_has_ended };
std::atomic<Turn> turn_of_caller;
void stop_for_a_turn(int) {
  turn_of_caller = Turn::is_stopped;
  const timespec moment = {.tv_sec = 0, .tv_nsec = 1000};
  for (int i = 0; i < 20 && turn_of_caller != Turn::other_has_ended; ++i) {
    nanosleep(&moment, nullptr);
  }
}

TEST_P(TableOn, ThreadsThatSetTheCountLeaveNoWrongOne) {
  Table made = table({.row_count = cell<std::uint64_t>(5)});
  struct sigaction stop = {}, before = {};
  stop.sa_handler = stop_for_a_turn;
  ASSERT_EQ(sigaction(SIGUSR1, &stop, &before), 0);
  constexpr int rounds = 150;
  std::barrier round_edge(3);
  pthread_t stopped = {};
  test::Thread caller([&] {
    Table own = made;
    const Stream own_stream(device);
    stopped = pthread_self();
    for (int round = 0; round < rounds; ++round) {
      round_edge.arrive_and_wait();
      while (turn_of_caller == Turn::runs) own.set_rows(1, own_stream);
      round_edge.arrive_and_wait();
    }
  });
  test::Thread other([&] {
    Table own = made;
    const Stream own_stream(device);
    for (int round = 0; round < rounds; ++round) {
      round_edge.arrive_and_wait();
      while (turn_of_caller == Turn::runs) std::this_thread::yield();
      own.set_rows(2, own_stream);
      turn_of_caller = Turn::other_has_ended;
      round_edge.arrive_and_wait();
    }
  });
  int wrong = 0;
  for (int round = 0; round < rounds; ++round) {
    turn_of_caller = Turn::runs;
    round_edge.arrive_and_wait();
    std::this_thread::sleep_for(std::chrono::microseconds(round % 50));
    pthread_kill(stopped, SIGUSR1);
    round_edge.arrive_and_wait();
    const std::uint64_t written = made.row_count().item<std::uint64_t>();
    if (made.rows().value_or(written) != written) ++wrong;
  }
  caller.join();
  other.join();
  sigaction(SIGUSR1, &before, nullptr);
  EXPECT_EQ(wrong, 0);
}

TEST_P(TableOn, ACountIsNeverCutToTheBitsThatADeviceHas) {
  constexpr std::uint64_t more = (std::uint64_t{1} << 32) + 5;
  Buffer narrow(device, {1}, DType::u32);
  narrow.fill(std::uint32_t{7}, stream);
  const Result<Table> refused = Table::try_make(Schema(), {}, {.rows = more, .row_count = narrow});
  EXPECT_EQ(refused.failure().code(), ErrorCode::invalid_view);
  EXPECT_EQ(refused.failure().number("rows"), more);
  EXPECT_EQ(narrow.item<std::uint32_t>(), 7u);
  const Buffer wide(device, {1}, DType::u64);
  Table made = Table::make(Schema(), {}, {.rows = more, .row_count = wide});
  made.set_rows(more - 1, stream);
  EXPECT_EQ(made.rows(), more - 1);
  EXPECT_EQ(wide.item<std::uint64_t>(), more - 1);
  // Room for more than it can count is no mistake, only more rows are.
  const Buffer bits(device, {bitmap_bytes(more)}, DType::byte);
  Table roomy = Table::make(Schema({{"b", TypeKind::boolean, false}}),
                            {Column::over(TypeKind::boolean, more, {.values = bits})},
                            {.rows = 1, .row_count = narrow});
  EXPECT_EQ(roomy.try_set_rows(more, stream).failure().code(), ErrorCode::invalid_view);
  EXPECT_EQ(roomy.rows(), 1u);
  roomy.set_rows(more - 6, stream);
  EXPECT_EQ(narrow.item<std::uint32_t>(), 0xFFFFFFFFu);
}

TEST_P(TableOn, AKernelWritesTheCountOfRows) {
  const Result<Kernel> filter = Kernel::try_from_function(
      device, "filter",
      [](View<const std::int32_t> from, View<std::int32_t> to, View<std::uint64_t> rows) {
        rows[0] = 0;
        for (const std::int32_t value : from) {
          if (value % 3 == 0) to[rows[0]++] = value;
        }
      });
  if (!filter) GTEST_SKIP() << filter.failure().text();
  const Table in_table = table();
  Table filtered = Table::allocate(device, Schema({{"n", TypeKind::i32, false}}), 8);
  EXPECT_EQ(filtered.rows(), std::nullopt);
  EXPECT_EQ(filtered.try_rows_host().failure().code(), ErrorCode::never_written);
  filter->launch(stream, elements(1), in(in_table.column(0)->values()),
                 out(filtered.column(0)->values()), out(filtered.row_count()));
  EXPECT_EQ(filtered.rows(), std::nullopt);
  EXPECT_EQ(filtered.rows_host(), 3u);
  EXPECT_EQ(filtered.slice(0, 3).column(0)->values().to_vector<std::int32_t>(),
            (std::vector<std::int32_t>{0, 3, 6}));
}

TEST_P(TableOn, MoreRowsThanRoomAreRefusedAndNotRemembered) {
  Buffer count = cell<std::uint64_t>(9);
  Table made = table({.row_count = count});
  const Failure refused = made.try_rows_host().failure();
  EXPECT_EQ(refused.code(), ErrorCode::invalid_view);
  EXPECT_EQ(refused.number("rows"), 9u);
  EXPECT_EQ(refused.number("capacity"), 8u);
  EXPECT_EQ(made.rows(), std::nullopt);
  EXPECT_EQ(made.try_slice(0, 1).failure().code(), ErrorCode::invalid_view);
  EXPECT_EQ(Table::try_concat({&made, 1}).failure().code(), ErrorCode::invalid_view);
  EXPECT_EQ(made.try_set_rows(9, stream).failure().code(), ErrorCode::invalid_view);
  count.fill(std::uint64_t{8}, stream);
  EXPECT_EQ(made.rows_host(), 8u);
}

TEST_P(TableOn, TheLargestCountIsACountLikeAnyOther) {
  constexpr std::uint32_t largest = std::numeric_limits<std::uint32_t>::max();
  // Bits of one byte repeated would do; nobody looks at them.
  const Table made =
      Table::make(Schema(), {}, {.rows = largest, .row_count = cell<std::uint32_t>(largest)});
  EXPECT_EQ(made.capacity(), largest);
  EXPECT_EQ(made.rows(), largest);
  Buffer handle = made.row_count();
  handle.fill(largest, stream);
  EXPECT_EQ(made.rows(), std::nullopt);
  EXPECT_EQ(made.rows_host(), largest);
}

TEST_P(TableOn, RowsTogetherDoNotWrap) {
  const Table half = Table::make(Schema(), {}, {.rows = ~std::uint64_t{0} / 2 + 1});
  const Table both[] = {half, half};
  EXPECT_EQ(Table::try_concat(both).failure().code(), ErrorCode::size_overflow);
}

TEST_P(TableOn, RoomAndRowsAreDifferent) {
  Table made =
      Table::allocate(device, Schema({{"n", TypeKind::i32}}), 8, {.row_count = DType::void_});
  EXPECT_EQ(made.capacity(), 8u);
  EXPECT_EQ(made.rows(), 0u);
  EXPECT_EQ(made.estimated_bytes(), 8u * 4 + 1);
  made.set_rows(3);
  EXPECT_EQ(made.rows_host(), 3u);
  EXPECT_EQ(made.try_slice(0, 4).failure().code(), ErrorCode::invalid_view);
}

TEST_P(TableOn, SelectsSlicesAndJoins) {
  const Table made = table();
  const std::array<std::string_view, 2> turned = {"s", "n"};
  const Table selected = made.select(turned);
  EXPECT_EQ(selected.schema().field(0)->name, "s");
  EXPECT_EQ(selected.rows(), 8u);
  const std::array<std::string_view, 1> wrong = {"x"};
  EXPECT_EQ(made.try_select(wrong).failure().code(), ErrorCode::not_found);
  const std::array<std::size_t, 1> beyond = {2};
  EXPECT_EQ(made.try_select(beyond).failure().code(), ErrorCode::out_of_bounds);
  const Table middle = made.slice(2, 3);
  EXPECT_EQ(middle.capacity(), 3u);
  EXPECT_EQ(middle.rows(), 3u);
  EXPECT_EQ(middle.column("n")->values().to_vector<std::int32_t>(),
            (std::vector<std::int32_t>{2, 3, 4}));
  EXPECT_EQ(middle.column("n")->values().id(), made.column("n")->values().id());
  EXPECT_EQ(made.try_slice(7, 2).failure().code(), ErrorCode::invalid_view);
  const Table parts[] = {middle, table({.row_count = cell<std::uint32_t>(1)}), middle};
  const Table all = Table::concat(parts);
  EXPECT_EQ(all.rows(), 7u);
  EXPECT_EQ(all.column("n")->values().to_vector<std::int32_t>(),
            (std::vector<std::int32_t>{2, 3, 4, 0, 2, 3, 4}));
  EXPECT_EQ(all.column("s")->to_strings(),
            (std::vector<std::string>{"c", "d", "e", "a", "c", "d", "e"}));
  const Table odd[] = {made, selected};
  EXPECT_EQ(Table::try_concat(odd).failure().code(), ErrorCode::type_mismatch);
  EXPECT_EQ(Table::try_concat({}).failure().code(), ErrorCode::invalid_argument);
  // A table that was selected has the same rows as the one it is of.
  Table shared = table({.row_count = cell<std::uint32_t>(4)});
  const Table of_it = shared.select(turned);
  EXPECT_EQ(shared.rows_host(), 4u);
  EXPECT_EQ(of_it.rows(), 4u);
}

TEST_P(TableOn, GoesToAnotherDeviceAndBack) {
  const Device host = open_device("host");
  const Table there = table({.row_count = cell<std::uint32_t>(5)});
  // The host does not know, and does not ask.
  const Table copy = there.copy_to(host, stream);
  EXPECT_EQ(there.rows(), std::nullopt);
  EXPECT_EQ(copy.rows(), std::nullopt);
  EXPECT_EQ(copy.capacity(), 8u);
  EXPECT_EQ(copy.device(), host);
  EXPECT_EQ(copy.rows_host(), 5u);
  const Table back = copy.copy_to(device);
  EXPECT_EQ(back.rows(), 5u);
  EXPECT_EQ(back.row_count().item<std::uint32_t>(), 5u);
  EXPECT_EQ(back.slice(0, 5).column("s")->to_strings(),
            (std::vector<std::string>{"a", "b", "c", "d", "e"}));
  EXPECT_EQ(back.slice(1, 4).copy_to(host).column("n")->values().to_vector<std::int32_t>(),
            (std::vector<std::int32_t>{1, 2, 3, 4}));
  // Rows that are known to be all there are: the rest need not have been written.
  Table half = Table::allocate(device, Schema({{"n", TypeKind::i32, false}}), 8);
  Buffer front = half.column(0)->values().slice(0, 4);
  front.fill(std::int32_t{6}, stream);
  half.set_rows(4, stream);
  EXPECT_EQ(half.copy_to(host, stream).slice(0, 4).column(0)->values().to_vector<std::int32_t>(),
            std::vector<std::int32_t>(4, 6));
}

TEST_P(TableOn, ACopyKeepsTheValidityOfRowsThatAreFilledLater) {
  constexpr std::size_t later = 90;
  Table made = Table::allocate(device, Schema({{"n", TypeKind::i32}}), 100);
  Buffer front = made.column(0)->values().slice(0, 4);
  front.fill(std::int32_t{6}, stream);
  for (const std::size_t rows : {4u, 0u}) {
    made.set_rows(rows, stream);
    Table copy = made.copy_to(device, stream);
    Buffer more = copy.column(0)->values().slice(0, later);
    more.fill(std::int32_t{7}, stream);
    copy.set_rows(later, stream);
    EXPECT_EQ(copy.slice(0, later).column(0)->to_valid(), std::vector<bool>(later, true)) << rows;
  }
}

}  // namespace
}  // namespace tern
