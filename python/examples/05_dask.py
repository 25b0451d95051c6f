"""On a Dask cluster: a matrix that is larger than the memory of the workers is transposed, and tables are summed by key."""

from __future__ import annotations

from typing import Any

import numpy as np
from dask.distributed import Client

import ternmem as tern
import ternmem.dask

side, blocks = 256, 6  # elements of a block's side, blocks of the matrix's side
block_bytes = 8 * side * side
budget_bytes = 4 * block_bytes  # of each worker; the matrix has 36 blocks


def make_block(row: int, column: int) -> tern.Buffer:
    """Return the block whose elements are their positions in the matrix."""
    rows = np.arange(row * side, (row + 1) * side)[:, None]
    block: tern.Buffer = tern.Buffer.from_numpy(rows * (side * blocks) + np.arange(column * side, (column + 1) * side))
    return block


def transpose(block: tern.Buffer) -> tern.Buffer:
    # A kernel would transpose on the device. Here the host does.
    transposed: tern.Buffer = tern.Buffer.from_numpy(block.to_numpy().T)
    return transposed


def is_right(block: tern.Buffer, row: int, column: int) -> bool:
    """Return whether the block of the transposed matrix has the right elements."""
    return bool((block.to_numpy() == make_block(column, row).to_numpy().T).all())


def transpose_matrix(client: Client) -> None:
    places = [(row, column) for row in range(blocks) for column in range(blocks)]
    matrix = {place: client.submit(make_block, *place) for place in places}
    transposed = {(row, column): client.submit(transpose, matrix[column, row]) for row, column in places}
    del matrix  # a block ends when its transposed block is ready
    assert all(client.gather([client.submit(is_right, transposed[place], *place) for place in places]))
    print(f"{len(places)} blocks of {block_bytes} bytes are transposed")
    for one in client.run(lambda dask_worker: dask_worker.metrics["ternmem"](dask_worker)).values():
        print(f"  peak {one['peak_bytes']} of {one['limit_bytes']} bytes, {one['spills']} spills")
        assert one["peak_bytes"] <= one["limit_bytes"]


parts, rows, keys = 6, 50_000, 100  # parts of the table, rows of a part, different keys


def columns(part: int) -> tuple[Any, Any]:
    random = np.random.default_rng(part)
    return random.integers(0, keys, rows), random.integers(0, 1000, rows)


def make_table(part: int) -> tern.Table:
    key, value = columns(part)
    return tern.Table({"key": tern.Column(key, "int64"), "value": tern.Column(value, "int64")})


def split(table: tern.Table) -> list[tern.Table]:
    """Sum the values of each key, and return one table for each receiver."""
    key, value = table["key"].to_numpy(), table["value"].to_numpy()
    sums = np.bincount(key, weights=value, minlength=keys).astype("int64")
    return [
        tern.Table({"key": tern.Column(mine, "int64"), "value": tern.Column(sums[mine], "int64")})
        for mine in (np.arange(receiver, keys, parts) for receiver in range(parts))
    ]


def pick(tables: list[tern.Table], receiver: int) -> tern.Table:
    return tables[receiver]


def merge(*tables: tern.Table) -> tern.Table:
    value = sum(table["value"].to_numpy() for table in tables)
    return tern.Table({"key": tern.Column(tables[0]["key"].to_numpy(), "int64"), "value": tern.Column(value, "int64")})


def group_by(client: Client) -> None:
    pieces = [client.submit(split, client.submit(make_table, part)) for part in range(parts)]
    merged = [client.submit(merge, *[client.submit(pick, piece, receiver) for piece in pieces]) for receiver in range(parts)]
    found: dict[int, int] = {}
    for table in client.gather(merged):
        found.update(zip(table["key"].to_pylist(), table["value"].to_pylist(), strict=True))
    expected = np.zeros(keys, "int64")
    for part in range(parts):
        np.add.at(expected, *columns(part))
    assert [found[key] for key in range(keys)] == expected.tolist()
    print(f"{parts * rows} rows have {len(found)} keys; the sum of key 0 is {found[0]}")


def main() -> None:
    with (
        ternmem.dask.LocalCluster(2, threads_per_worker=1, device="sim", budget_bytes=budget_bytes, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        transpose_matrix(client)
        group_by(client)


if __name__ == "__main__":
    main()
