// Messages and collectives between four ranks. mpirun starts the program on each of them, and all
// ranks run the same tests in the same order.

#include "tern/interop/mpi.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "support/gate.hpp"
#include "tern/backends/catalog.hpp"
#include "tern/backends/sim.hpp"
#include "tern/buffer/array.hpp"
#include "tern/coherence/unified_buffer.hpp"
#include "tern/core/bytes.hpp"
#include "tern/memory/budget.hpp"
#include "tern/memory/budget_resource.hpp"
#include "tern/memory/default_resource.hpp"
#include "tern/memory/driver_resource.hpp"

namespace tern {
namespace {

using mpi::Communicator;
using mpi::no_rank;
using mpi::Reduction;
using mpi::Request;

// No test may hang: each wait ends.
constexpr std::uint64_t patience_ns = 20'000'000'000;
constexpr std::size_t many = 2 * mib + 3;  // elements of f32 in three pieces, the last one short

/// Fills on the default stream, and does not wait.
template <class T>
void fill(Buffer& buffer, T value) {
  buffer.fill(value, buffer.device().default_stream());
}

class Mpi : public testing::Test {
 protected:
  [[nodiscard]] int next() const { return (comm.rank() + 1) % comm.size(); }
  [[nodiscard]] int previous() const { return (comm.rank() + comm.size() - 1) % comm.size(); }
  [[nodiscard]] float sum_of_ranks() const {
    return static_cast<float>(comm.size() * (comm.size() - 1) / 2);
  }

  /// Sends x to the next rank, and receives y from the previous one.
  template <class X, class Y>
  void go_round(const X& x, Y& y) {
    const Request sent = comm.isend(x, next());
    comm.recv(y, previous());
    sent.wait();
  }

  Communicator comm{MPI_COMM_WORLD, patience_ns};
  const float mine = static_cast<float>(comm.rank());
  const float theirs = static_cast<float>(previous());
};

/// A device of each kind: host memory, simulated memory, the CUDA backend on a simulated driver.
class MpiOn : public Mpi, public testing::WithParamInterface<const char*> {
 protected:
  Device device = open_device(GetParam());
};
INSTANTIATE_TEST_SUITE_P(Devices, MpiOn, testing::Values("host", "sim", "cuda:0?driver=sim"),
                         [](const auto& made) {
                           return std::string(std::string_view(made.param).substr(0, 4));
                         });

// --- Messages

TEST_P(MpiOn, BuffersGoRoundARingInOrderWithStreams) {
  const Stream produce(device), consume(device);
  for (const std::size_t count : {std::size_t{0}, std::size_t{1}, many}) {
    Buffer x(device, Shape{count}, DType::f32), y(device, Shape{count}, DType::f32);
    x.fill(mine, produce);
    go_round(x, y);
    x.fill(-1.0f, consume);  // after the send
    Buffer z(device, Shape{count}, DType::f32);
    if (count > 0) copy(z, y, consume);  // after the receive
    EXPECT_EQ(y.to_vector<float>(), std::vector<float>(count, theirs));
    if (count == 0) continue;
    EXPECT_EQ(z.to_vector<float>(), std::vector<float>(count, theirs));
  }
}

TEST_P(MpiOn, ArraysViewsAndUnifiedBuffersTravel) {
  const Stream stream(device);
  const auto x = Array<std::int16_t>::zeros(device, 1000, {.stream = stream});
  UnifiedBuffer<std::int16_t> y(Shape{1000}, {.device = device});
  go_round(x, y);
  EXPECT_EQ(y.to_vector(), std::vector<std::int16_t>(1000, 0));

  UnifiedBuffer<float> from(Shape{10, 100}, {.device = device});
  from.fill(mine, stream);  // only the device has the values
  Buffer to(device, Shape{10, 100}, DType::f32);
  go_round(from, to);
  EXPECT_EQ(to.to_vector<float>(), std::vector<float>(1000, theirs));

  Buffer part(device, Shape{100}, DType::f32);
  fill(part, -1.0f);
  auto view = part.slice(10, 20);
  auto row = from.slice(100, 20);
  go_round(row, view);
  std::vector<float> expected(100, -1.0f);
  std::fill(expected.begin() + 10, expected.begin() + 30, theirs);
  EXPECT_EQ(part.to_vector<float>(), expected);
}

TEST_P(MpiOn, TablesTravelWithNullsAndTexts) {
  const std::vector<std::int64_t> ids = {comm.rank(), 1, 2, 3, 4};
  const std::array<std::string_view, 5> names = {"a", "", "\xC3\xA9t\xC3\xA9", "", "bcd"};
  const std::array<std::uint8_t, 5> valid = {1, 0, 1, 1, 1};
  const Schema schema(
      {{"id", TypeKind::i64, false, {}}, {"name", TypeKind::utf8, true, {{"k", "v"}}}},
      {{"made", "here"}});
  const Table table =
      Table::make(schema,
                  {Column::from<std::int64_t>(device, ids),
                   Column::from_strings(device, names, TypeKind::utf8, {.valid = valid})},
                  {.rows = 5});
  const Request sent = comm.isend(table.slice(0, 4), next(), 3);
  const Table there = comm.recv_table(device, previous(), 3);
  sent.wait();
  EXPECT_EQ(there.schema(), schema);
  EXPECT_EQ(there.rows_host(), 4u);
  EXPECT_EQ(there.columns()[0].values().to_vector<std::int64_t>(),
            (std::vector<std::int64_t>{previous(), 1, 2, 3}));
  EXPECT_EQ(there.columns()[1].try_count_nulls(4).value(), 1u);

  const Table everywhere = comm.bcast_table(comm.rank() == 2 ? table : Table(), 2, device);
  EXPECT_EQ(everywhere.rows_host(), 5u);
  EXPECT_EQ(everywhere.columns()[0].values().to_vector<std::int64_t>()[0], 2);
}

TEST_P(MpiOn, TransfersWaitForWorkThatIsStillInFlight) {
  Buffer x(device, Shape{1000}, DType::f32), sum(device, Shape{1000}, DType::f32);
  fill(x, 0.0f);
  fill(sum, 0.0f);
  device.synchronize();
  if (comm.rank() == 0) {
    const Stream stream(device);
    test::Gate gate;
    gate.hold(stream);
    x.fill(7.0f, stream);
    sum.fill(9.0f, stream);
    const Request sent = comm.isend(x, 1, 0, stream);
    const Request reduced = comm.iallreduce(sum, Reduction::sum, stream);
    for (int polls = 0; polls < 3000; ++polls) {
      if (sent.is_done() || reduced.is_done()) break;
      std::this_thread::yield();
    }
    EXPECT_FALSE(sent.is_done());
    EXPECT_FALSE(reduced.is_done());
    gate.open();
    sent.wait();
    reduced.wait();
  } else {
    if (comm.rank() == 1) {
      comm.recv(x, 0);
      EXPECT_EQ(x.to_vector<float>(), std::vector<float>(1000, 7.0f));
    }
    comm.allreduce(sum);
  }
  EXPECT_EQ(sum.to_vector<float>(), std::vector<float>(1000, 9.0f));
}

TEST_P(MpiOn, WorkOnMemoryInFlightIsAMistakeThatHangsNobody) {
  Buffer x(device, Shape{1000}, DType::f32), y(device, Shape{1000}, DType::f32);
  fill(x, 1.0f);
  const Request first = comm.isend(x, next(), 1), second = comm.isend(x, next(), 2);
  fill(x, 1.0f);
  comm.recv(y, previous(), 1);
  comm.recv(y, previous(), 2);
  first.wait();
  second.wait();
  EXPECT_EQ(y.to_vector<float>(), std::vector<float>(1000, 1.0f));
}

TEST_F(Mpi, AReceiveTakesMessagesFromAnyRankInTheOrderOfCalls) {
  const Device host = open_device("host");
  Buffer x(host, Shape{1}, DType::f32);
  fill(x, mine);
  const Request sent = comm.isend(x, 0, comm.rank());
  float sum = 0;
  for (int i = 0; comm.rank() == 0 && i < comm.size(); ++i) {
    Buffer y(host, Shape{1}, DType::f32);
    comm.recv(y);
    sum += y.item<float>();
  }
  sent.wait();
  EXPECT_EQ(sum, comm.rank() == 0 ? sum_of_ranks() : 0);
}

// --- Collectives

TEST_P(MpiOn, AllReduceCombinesTheElementsOfAllRanks) {
  Buffer x(device, Shape{many}, DType::f32);
  fill(x, mine);
  comm.allreduce(x);
  EXPECT_EQ(x.to_vector<float>(), std::vector<float>(many, sum_of_ranks()));
  UnifiedBuffer<double> y(Shape{10}, {.device = device});
  y.fill(comm.rank() + 1.0, device.default_stream());
  comm.allreduce(y, Reduction::prod);
  EXPECT_EQ(y.to_vector(), std::vector<double>(10, 24.0));
  Buffer bits(device, Shape{5}, DType::u8);
  const std::vector<std::uint8_t> mask(5, static_cast<std::uint8_t>(1 << comm.rank()));
  bits.copy_from(std::span<const std::uint8_t>(mask));
  const Request request = comm.iallreduce(bits, Reduction::bor);
  while (!request.is_done()) {
  }
  EXPECT_EQ(bits.to_vector<std::uint8_t>(), std::vector<std::uint8_t>(5, 15));
}

TEST_P(MpiOn, BroadcastsAndGathersMoveTheBytesOfAllPieces) {
  Buffer x(device, Shape{many}, DType::f32);
  if (comm.rank() == 3) fill(x, 7.0f);
  comm.bcast(x, 3);
  EXPECT_EQ(x.to_vector<float>(), std::vector<float>(many, 7.0f));

  const std::size_t count = 600'001;  // more than one piece for each rank
  Buffer part(device, Shape{count}, DType::f32), all(device, Shape{4, count}, DType::f32);
  fill(part, mine);
  comm.allgather(part, all);
  const std::vector<float> found = all.to_vector<float>();
  for (std::size_t rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(found[rank * count], static_cast<float>(rank));
    EXPECT_EQ(found[(rank + 1) * count - 1], static_cast<float>(rank));
  }
}

// --- Halos

constexpr std::size_t rows = 16, columns = 33;

std::vector<float> grid_at_first() {
  std::vector<float> made(4 * rows * columns + 2 * columns);
  for (std::size_t i = 0; i < made.size(); ++i) made[i] = static_cast<float>(i * i % 1013) / 7;
  return made;
}

/// One step of a stencil on rows [1, count + 1).
void step(std::span<float> grid, std::size_t count) {
  const std::vector<float> old(grid.begin(), grid.end());
  for (std::size_t row = 1; row <= count; ++row) {
    for (std::size_t column = 1; column + 1 < columns; ++column) {
      const std::size_t at = row * columns + column;
      grid[at] = 0.25f * (old[at - columns] + old[at + columns] + old[at - 1] + old[at + 1]);
    }
  }
}

TEST_P(MpiOn, AStencilOnFourRanksEqualsTheSerialOneBitForBit) {
  std::vector<float> whole = grid_at_first();
  const std::size_t first = static_cast<std::size_t>(comm.rank()) * rows * columns;
  const std::vector<float> begin(
      whole.begin() + static_cast<std::ptrdiff_t>(first),
      whole.begin() + static_cast<std::ptrdiff_t>(first + (rows + 2) * columns));
  const int before = comm.rank() - 1;  // -1 is no_rank
  const int after = comm.rank() + 1 < comm.size() ? comm.rank() + 1 : no_rank;

  UnifiedBuffer<float> grid(Shape{rows + 2, columns}, {.device = device});
  grid.copy_from(begin);
  Buffer other(device, Shape{rows + 2, columns}, DType::f32);
  other.copy_from(std::span<const float>(begin));
  for (int round = 0; round < 10; ++round) {
    comm.exchange_halo(grid, 1, before, after);
    {
      auto lease = grid.rw_host();
      step(lease.span(), rows);
    }
    grid.sync_to_device();
    comm.exchange_halo(other, 1, before, after);
    std::vector<float> mine_now = other.to_vector<float>();
    step(mine_now, rows);
    other.copy_from(std::span<const float>(mine_now));
    step(whole, 4 * rows);
  }
  const auto own = [&](const std::vector<float>& of, std::size_t at) {
    const auto from = of.begin() + static_cast<std::ptrdiff_t>(at + columns);
    return std::vector<float>(from, from + rows * columns);
  };
  EXPECT_EQ(own(grid.to_vector(), 0), own(whole, first));
  EXPECT_EQ(own(other.to_vector<float>(), 0), own(whole, first));
}

TEST_F(Mpi, AGridWithTooFewRowsIsAnErrorOnBothSides) {
  const Device host = open_device("host");
  Buffer grid(host, Shape{comm.rank() == 1 ? std::size_t{5} : std::size_t{6}, 4}, DType::f32);
  fill(grid, 1.0f);
  const int neighbour = comm.rank() ^ 1;
  const bool is_first = neighbour > comm.rank();
  const auto exchange = [&] {
    comm.exchange_halo(grid, 2, is_first ? no_rank : neighbour, is_first ? neighbour : no_rank);
  };
  if (comm.rank() < 2) {
    EXPECT_THROW(exchange(), InvalidArgument);
  } else {
    exchange();
  }
}

// --- Ranks that disagree

/// Sends `x` from rank 0 to rank 1, which receives into `y`. Returns the error.
template <class X, class Y>
std::optional<Failure> fail_to_send(Communicator& comm, const X& x, const Y& y) {
  try {
    if (comm.rank() == 0) comm.send(x, 1);
    if (comm.rank() == 1) comm.recv(y, 0);
  } catch (const Error& error) {
    return error.failure();
  }
  return {};
}

TEST_P(MpiOn, MemoryThatDiffersIsAnErrorOnBothSides) {
  Buffer ten(device, Shape{10}, DType::f32), table(device, Shape{2, 5}, DType::f32);
  Buffer nine(device, Shape{9}, DType::f32), other(device, Shape{10}, DType::i32);
  fill(ten, 1.0f);
  const std::pair<Buffer, ErrorCode> cases[] = {{table, ErrorCode::shape_mismatch},
                                                {nine, ErrorCode::size_mismatch},
                                                {other, ErrorCode::type_mismatch}};
  for (const auto& [to, code] : cases) {
    const std::optional<Failure> failure = fail_to_send(comm, ten, to);
    if (comm.rank() > 1) continue;
    ASSERT_TRUE(failure);
    EXPECT_EQ(failure->code(), code);
    EXPECT_EQ(failure->number("sent_bytes"), 40u);
    EXPECT_EQ(failure->number("expected_bytes"), to.size_bytes());
    EXPECT_NE(failure->text().find("rank 0 sends float32 [10], 40 B, and rank 1 receives into"),
              std::string::npos)
        << failure->text();
  }
  // The old contents of a buffer stay. A lease that overwrites a unified buffer has ended them.
  nine.fill(4.0f, device.default_stream());
  UnifiedBuffer<float> unified(Shape{9}, {.device = device});
  unified.fill(5.0f, device.default_stream());
  fail_to_send(comm, ten, nine);
  fail_to_send(comm, ten, unified);
  EXPECT_EQ(nine.to_vector<float>(), std::vector<float>(9, 4.0f));
  if (comm.rank() == 1) {
    EXPECT_THROW(static_cast<void>(unified.to_vector()), NeverWritten);
  } else {
    EXPECT_EQ(unified.to_vector(), std::vector<float>(9, 5.0f));
  }
  // The ranks go on.
  EXPECT_FALSE(fail_to_send(comm, ten, ten.reshape(Shape{10})));
}

TEST_P(MpiOn, AnErrorOfOneRankIsThrownOnBoth) {
  Buffer unwritten(device, Shape{10}, DType::f32), to(device, Shape{10}, DType::f32);
  std::optional<Failure> failure = fail_to_send(comm, unwritten, to);
  if (comm.rank() < 2) {
    ASSERT_TRUE(failure);
    EXPECT_EQ(failure->code(), ErrorCode::never_written);
  }
  EXPECT_THROW(static_cast<void>(to.to_vector<float>()), NeverWritten);

  UnifiedBuffer<float> leased(Shape{10}, {.device = device});
  leased.fill(1.0f, device.default_stream());
  fill(to, 1.0f);
  {
    auto lease = leased.rw_host();
    failure = fail_to_send(comm, to, leased);
  }
  if (comm.rank() < 2) {
    ASSERT_TRUE(failure);
    EXPECT_EQ(failure->code(), ErrorCode::access_conflict);
  }
  EXPECT_FALSE(fail_to_send(comm, to, leased));
}

TEST_P(MpiOn, CollectivesThatDifferAreAnErrorOnAllRanks) {
  Buffer x(device, Shape{comm.rank() == 2 ? std::size_t{9} : std::size_t{10}}, DType::f32);
  fill(x, 1.0f);
  EXPECT_THROW(comm.allreduce(x), SizeMismatch);
  EXPECT_THROW(comm.bcast(x, 0), SizeMismatch);
  const Buffer same = x.slice(0, 9);
  const auto text_of_invalid = [](auto call) {
    try {
      call();
    } catch (const InvalidArgument& error) {
      return std::string(error.what());
    }
    return std::string("nothing was thrown");
  };
  const std::string roots =
      text_of_invalid([&] { comm.bcast(same, comm.rank() == 1 ? 1 : 0); });
  EXPECT_NE(roots.find("with root 0, and rank 1 calls bcast"), roots.npos) << roots;
  EXPECT_NE(roots.find("with root 1."), roots.npos) << roots;
  const std::string operations = text_of_invalid(
      [&] { comm.allreduce(same, comm.rank() == 3 ? Reduction::min : Reduction::max); });
  EXPECT_NE(operations.find("'max', and rank 3 calls allreduce"), operations.npos) << operations;
  EXPECT_NE(operations.find("'min'."), operations.npos) << operations;
  EXPECT_THROW(comm.allreduce(same, Reduction::band), Unsupported);
  EXPECT_THROW(comm.allgather(same, x), SizeMismatch);
  Buffer unwritten(device, Shape{9}, DType::f32);
  EXPECT_THROW(comm.allreduce(comm.rank() == 0 ? unwritten : same), NeverWritten);
  const auto mixed = [&] {
    if (comm.rank() == 0) {
      comm.bcast(same);
    } else {
      comm.allreduce(same);
    }
  };
  EXPECT_THROW(mixed(), InvalidArgument);
  comm.allreduce(same);
  EXPECT_EQ(same.to_vector<float>(), std::vector<float>(9, 4.0f));
}

TEST_F(Mpi, ARankWithTooLittleStagingMemoryFailsOnBothAndKeepsNothing) {
  const Device device = sim::open({.seed = 3});
  const auto budget = Budget::make("staging", BudgetLimit::bytes(1 * mib));
  const auto pinned = std::make_shared<DirectResource>(device, MemoryKind::pinned);
  set_default_resource(device, std::make_shared<BudgetResource>(pinned, budget),
                       MemoryKind::pinned);
  Buffer large(device, Shape{2 * mib}, DType::u8),
      host(open_device("host"), Shape{2 * mib}, DType::u8);
  fill(host, std::uint8_t{1});
  const std::optional<Failure> failure = fail_to_send(comm, host, large);
  if (comm.rank() < 2) {
    ASSERT_TRUE(failure);
    EXPECT_EQ(failure->code(), ErrorCode::out_of_budget) << failure->text();
  }
  EXPECT_EQ(budget->used_bytes(), 0u);
  Buffer small(device, Shape{1000}, DType::u8);
  EXPECT_FALSE(fail_to_send(comm, host.slice(0, 1000), small));
  device.synchronize();
  EXPECT_EQ(budget->live_bytes(), 0u);
}

TEST_F(Mpi, AWaitEndsAfterItsTimeout) {
  const Device host = open_device("host");
  Buffer x(host, Shape{10}, DType::f32);
  fill(x, 1.0f);
  if (comm.rank() == 0) {
    const Request request = comm.isend(x, 1);
    EXPECT_THROW(request.wait(50'000'000), TimedOut);
    Buffer go(host, Shape{1}, DType::u8);
    fill(go, std::uint8_t{1});
    const Request told = comm.isend(go, 1, 7);
    request.wait();
    told.wait();
  } else if (comm.rank() == 1) {
    Buffer go(host, Shape{1}, DType::u8);
    comm.recv(go, 0, 7);  // rank 0 has had its timeout
    comm.recv(x, 0, 0);
  }
}

TEST_F(Mpi, ATransferGoesOnWithoutItsRequest) {
  const Device host = open_device("host");
  Buffer x(host, Shape{10}, DType::f32), y(host, Shape{10}, DType::f32);
  fill(x, mine);
  static_cast<void>(comm.isend(x, next()));
  comm.recv(y, previous());
  EXPECT_EQ(y.to_vector<float>()[0], theirs);
  Buffer all(host, Shape{1}, DType::i32);
  fill(all, 1);
  comm.allreduce(all);  // lets the sends of all ranks end
}

TEST_F(Mpi, RanksThatWaitForOneThatHasLeftAreTold) {
  Buffer x(open_device("host"), Shape{10}, DType::f32);
  fill(x, 1.0f);
  if (comm.rank() == 0) {
    comm.close();
    EXPECT_THROW(comm.allreduce(x), InvalidArgument);
    return;
  }
  EXPECT_THROW(comm.allreduce(x), NotFound);
  EXPECT_THROW(comm.recv(x, 0), NotFound);
  EXPECT_THROW(comm.send(x, 0), NotFound);
}

TEST_F(Mpi, RanksAndTagsThatDoNotExistAreRefused) {
  Buffer x(open_device("host"), Shape{10}, DType::f32);
  EXPECT_THROW(comm.send(x, 4), OutOfBounds);
  EXPECT_THROW(comm.recv(x, -3), OutOfBounds);
  EXPECT_THROW(comm.send(x, 0, -1), OutOfBounds);
  EXPECT_THROW(comm.bcast(x, 4), OutOfBounds);
  EXPECT_THROW(comm.exchange_halo(x, 1, 9, no_rank), OutOfBounds);
  EXPECT_THROW(comm.allreduce(Buffer()), NotAllocated);
}

TEST_F(Mpi, MemoryOfTheHostIsUsedWhereItIs) {
  EXPECT_TRUE(Communicator::is_direct(open_device("host")));
  EXPECT_FALSE(Communicator::is_direct(open_device("sim")));
  EXPECT_FALSE(Communicator::is_direct(open_device("cuda:0?driver=sim")));
}

}  // namespace
}  // namespace tern

int main(int count, char** arguments) {
  testing::InitGoogleTest(&count, arguments);
  MPI_Init(&count, &arguments);
  const int result = RUN_ALL_TESTS();
  MPI_Finalize();
  return result;
}
