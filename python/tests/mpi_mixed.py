"""The ranks of Python among ranks of C++: tests/mpi/mixed.cpp does the same on the others."""

from __future__ import annotations

import numpy as np

import ternmem as tern
from ternmem import mpi

comm = mpi.Communicator(timeout=30)
sim = tern.open_device("sim")
rank, after, before = comm.rank, (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
count = (2 << 20) + 3  # three pieces of float32

x, y = tern.Buffer(count, "float32", sim).fill(rank), tern.Buffer(count, "float32", sim)
sent = comm.isend(x, after, 5)
comm.recv(y, before, 5)
sent.wait()
assert (y.to_numpy() == before).all()

comm.allreduce(x)
assert (x.to_numpy() == 6).all()
part, gathered = tern.Buffer(3, "int64", "host").fill(rank), tern.Buffer((4, 3), "int64", sim)
comm.allgather(part, gathered)
assert gathered.to_numpy().tolist() == [[0] * 3, [1] * 3, [2] * 3, [3] * 3]
for root in range(comm.size):
    part.fill(rank + 10)
    comm.bcast(part, root)
    assert part.to_numpy().tolist() == [root + 10] * 3

schema = tern.Schema([tern.Field("id", tern.LogicalType("i32"), False), tern.Field("name", tern.LogicalType("utf8"), True)], {"k": "v"})
table = tern.Table(schema, [tern.Column(np.array([1, 2, 3], "int32"), device=sim), tern.Column(["a", "é", None], device=sim)], rows=3)
for root in range(comm.size):
    there = comm.bcast_table(table if rank == root else None, root, device=sim)
    assert there["id"].to_pylist() == [1, 2, 3]
    assert there["name"].to_pylist() == ["a", "é", None]
    assert there.schema.metadata == {"k": "v"}
table_sent = comm.isend(table, after)
assert comm.recv_table(before, device="host")["name"].to_pylist() == ["a", "é", None]
table_sent.wait()


def expect_error(kind: type[Exception], what: str, body: object) -> None:
    try:
        body()  # type: ignore[operator]
    except kind as error:
        print(f"{what}: {error}")
    else:
        raise AssertionError(f"{what} raised nothing")


ten, nine = tern.Buffer(10, "float32", sim).fill(1), tern.Buffer(9, "float32", sim)
if rank == 2:
    expect_error(tern.SizeMismatchError, "a receive", lambda: comm.recv(nine, 0))
    expect_error(tern.TypeMismatchError, "a send", lambda: comm.send(tern.Buffer(9, "int32", sim).fill(1), 0))
    expect_error(tern.NeverWrittenError, "a send of nothing", lambda: comm.send(nine, 0))
other = tern.Buffer(rank // 2 + 1, "float32", sim).fill(1)
expect_error(tern.SizeMismatchError, "an all-reduce", lambda: comm.allreduce(other))

grid = tern.UnifiedBuffer((6, 4), "float64", device=sim).fill(rank)
comm.exchange_halo(grid, before=before if rank > 0 else None, after=after if after > 0 else None)
rows = grid.to_numpy()
assert rank == 0 or (rows[0] == before).all()
assert (rows[5] == (after if after > 0 else rank)).all()
comm.close()
