// A grid on several ranks: each step exchanges rows with the neighbours. Needs an MPI library:
//
//   mpicxx -std=c++20 halo_exchange.cpp -ltern && mpirun -n 4 ./a.out

#include <cstddef>
#include <cstdio>
#include <exception>
#include <span>
#include <stdexcept>
#include <tern/backends/catalog.hpp>
#include <tern/coherence/unified_buffer.hpp>
#include <tern/core/error.hpp>
#include <tern/interop/mpi.hpp>
#include <vector>

namespace {

constexpr std::size_t rows = 16, columns = 64;  // of each rank

/// One step of a stencil on all rows but the first and the last.
void step(std::span<double> grid) {
  const std::vector<double> old(grid.begin(), grid.end());
  for (std::size_t at = columns; at + columns < grid.size(); ++at) {
    if (at % columns == 0 || at % columns == columns - 1) continue;
    grid[at] = 0.25 * (old[at - columns] + old[at + columns] + old[at - 1] + old[at + 1]);
  }
}

void run() {
  tern::mpi::Communicator comm;
  const auto rank = static_cast<std::size_t>(comm.rank());
  const auto ranks = static_cast<std::size_t>(comm.size());
  std::vector<double> whole((ranks * rows + 2) * columns, 0);
  for (std::size_t at = 0; at < columns; ++at) whole[at] = 100;

  tern::UnifiedBuffer<double> grid(tern::Shape{rows + 2, columns},
                                   {.device = tern::open_device("sim"), .tag = "grid"});
  const std::span<const double> mine(&whole[rank * rows * columns], (rows + 2) * columns);
  grid.copy_from(mine);
  const int before = comm.rank() - 1;  // -1, which is no_rank, on the first rank
  const int after = comm.rank() + 1 < comm.size() ? comm.rank() + 1 : tern::mpi::no_rank;
  for (int i = 0; i < 20; ++i) {
    comm.exchange_halo(grid, 1, before, after);
    {
      auto lease = grid.rw_host();  // a kernel would use rw_device
      step(lease.span());
    }
    step(whole);
  }

  const std::vector<double> found = grid.to_vector();
  bool is_equal = true;
  for (std::size_t at = columns; at < (rows + 1) * columns; ++at) is_equal &= found[at] == mine[at];
  tern::Buffer equal_everywhere(tern::open_device("host"), tern::Shape{1}, tern::DType::i32);
  equal_everywhere.fill(is_equal ? 1 : 0, equal_everywhere.device().default_stream());
  comm.allreduce(equal_everywhere, tern::mpi::Reduction::min);
  if (comm.rank() == 0) {
    std::printf("%zu ranks, 20 steps, equals the serial result: %s\n", ranks,
                equal_everywhere.item<int>() == 1 ? "yes" : "no");
  }
  if (equal_everywhere.item<int>() != 1) throw std::runtime_error("the grids differ");
}

}  // namespace

int main(int count, char** arguments) {
  MPI_Init(&count, &arguments);
  int status = 0;
  try {
    run();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    status = 1;
  }
  MPI_Finalize();
  return status;
}
