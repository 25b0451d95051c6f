// The ranks of C++ among ranks of Python: python/tests/mpi_mixed.py does the same on the others.
// Ends with 0 if all of its checks hold.

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "tern/backends/catalog.hpp"
#include "tern/coherence/unified_buffer.hpp"
#include "tern/core/bytes.hpp"
#include "tern/interop/mpi.hpp"

namespace {

using namespace tern;

void check(bool holds, const char* what) {
  if (!holds) throw std::runtime_error(std::string("wrong: ") + what);
}

/// Expects an error of this type from the body.
template <class Expected, class Body>
void expect_error(const char* what, Body body) {
  try {
    body();
  } catch (const Expected& error) {
    std::printf("%s: %s\n", what, error.text());
    return;
  }
  check(false, what);
}

void run() {
  mpi::Communicator comm(MPI_COMM_WORLD, 30'000'000'000);
  const Device sim = open_device("sim"), host = open_device("host");
  const int next = (comm.rank() + 1) % comm.size();
  const int previous = (comm.rank() + comm.size() - 1) % comm.size();
  const std::size_t count = 2 * mib + 3;  // three pieces of f32

  Buffer x(sim, Shape{count}, DType::f32), y(sim, Shape{count}, DType::f32);
  x.fill(static_cast<float>(comm.rank()), sim.default_stream());
  const mpi::Request sent = comm.isend(x, next, 5);
  comm.recv(y, previous, 5);
  sent.wait();
  check(y.to_vector<float>() == std::vector<float>(count, static_cast<float>(previous)), "a ring");

  comm.allreduce(x);
  check(x.to_vector<float>() == std::vector<float>(count, 6.0f), "an all-reduce");
  Buffer part(host, Shape{3}, DType::i64), all(sim, Shape{4, 3}, DType::i64);
  part.fill(std::int64_t{comm.rank()}, host.default_stream());
  comm.allgather(part, all);
  check(all.to_vector<std::int64_t>() ==
            std::vector<std::int64_t>{0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3},
        "an all-gather");
  for (int root = 0; root < comm.size(); ++root) {
    part.fill(std::int64_t{comm.rank() + 10}, host.default_stream());
    comm.bcast(part, root);
    check(part.to_vector<std::int64_t>()[2] == root + 10, "a broadcast");
  }

  const std::vector<std::int32_t> ids = {1, 2, 3};
  const std::array<std::string_view, 3> names = {"a", "\xC3\xA9", ""};
  const std::array<std::uint8_t, 3> valid = {1, 1, 0};
  const Schema schema({{"id", TypeKind::i32, false, {}}, {"name", TypeKind::utf8, true, {}}},
                      {{"k", "v"}});
  const Table table =
      Table::make(schema,
                  {Column::from<std::int32_t>(sim, ids),
                   Column::from_strings(sim, names, TypeKind::utf8, {.valid = valid})},
                  {.rows = 3});
  for (int root = 0; root < comm.size(); ++root) {
    const Table there = comm.bcast_table(comm.rank() == root ? table : Table(), root, sim);
    check(there.schema() == schema && there.rows_host() == 3, "the schema of a table");
    check(there.columns()[0].values().to_vector<std::int32_t>() == ids, "the numbers of a table");
    check(there.columns()[1].try_count_nulls(3).value() == 1, "the nulls of a table");
  }
  const mpi::Request table_sent = comm.isend(table, next);
  check(comm.recv_table(host, previous).rows_host() == 3, "a table in a message");
  table_sent.wait();

  // Rank 0 and 1 are C++, 2 and 3 are Python. Both sides of a message throw, in both directions.
  Buffer ten(sim, Shape{10}, DType::f32), nine(sim, Shape{9}, DType::f32);
  ten.fill(1.0f, sim.default_stream());
  if (comm.rank() == 0) {
    expect_error<SizeMismatch>("a send", [&] { comm.send(ten, 2); });
    expect_error<TypeMismatch>("a receive", [&] { comm.recv(nine, 2); });
    expect_error<NeverWritten>("a receive of nothing", [&] { comm.recv(nine, 2); });
  }
  expect_error<SizeMismatch>("an all-reduce", [&] {
    Buffer other(sim, Shape{static_cast<std::size_t>(comm.rank()) / 2 + 1}, DType::f32);
    other.fill(1.0f, sim.default_stream());
    comm.allreduce(other);
  });

  UnifiedBuffer<double> grid(Shape{6, 4}, {.device = sim});
  grid.fill(comm.rank(), sim.default_stream());
  comm.exchange_halo(grid, 1, comm.rank() - 1, next == 0 ? mpi::no_rank : next);
  const std::vector<double> rows = grid.to_vector();
  check(comm.rank() == 0 || rows[0] == previous, "the halo before");
  check(rows[4] == comm.rank() && rows[23] == (next == 0 ? comm.rank() : next), "the halo after");
}

}  // namespace

int main(int count, char** arguments) {
  MPI_Init(&count, &arguments);
  int status = 0;
  try {
    run();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "C++: %s\n", error.what());
    status = 1;
  }
  MPI_Finalize();
  return status;
}
