"""A grid on several ranks: each step exchanges rows with the neighbours. Run it with mpirun -n 4, or alone."""

from __future__ import annotations

import numpy as np

import ternmem as tern


def step(grid: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> None:
    grid[1:-1, 1:-1] = 0.25 * (grid[:-2, 1:-1] + grid[2:, 1:-1] + grid[1:-1, :-2] + grid[1:-1, 2:])


def main() -> None:
    try:
        from ternmem import mpi
    except ImportError as error:
        print(f"not run: {error}")
        return
    rows, steps = 16, 20
    with mpi.Communicator() as comm:
        whole = np.zeros((comm.size * rows + 2, 64))
        whole[0] = 100
        first = comm.rank * rows
        grid = tern.UnifiedBuffer((rows + 2, 64), "float64", device=tern.best_device(), tag="grid")
        grid.copy_from(whole[first : first + rows + 2])
        before = comm.rank - 1 if comm.rank > 0 else None
        after = comm.rank + 1 if comm.rank + 1 < comm.size else None
        for _ in range(steps):
            comm.exchange_halo(grid, before=before, after=after)
            with grid.rw_host() as array:  # a kernel would use rw_device
                step(array)
            step(whole)
        is_equal = np.array_equal(grid.to_numpy()[1:-1], whole[first + 1 : first + rows + 1])
        equal_everywhere = tern.Buffer(1, "int32", "host").fill(int(is_equal))
        comm.allreduce(equal_everywhere, "min")
        if comm.rank == 0:
            print(f"{comm.size} ranks, {steps} steps, equals the serial result: {bool(equal_everywhere.item())}")


if __name__ == "__main__":
    main()
