"""A program for four ranks, which test_mpi.py starts. Each function is one case and raises if it fails.

Rank 0 prints one line of JSON for each case, with the errors of all ranks.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import io
import json
import pathlib
import runpy
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import numpy as np
from mpi4py import MPI

import ternmem as tern
from ternmem import _mpi_memory, mpi

SPECS = ("host", "sim:0", "cuda:0?driver=sim", *(spec for spec in tern.devices() if spec.startswith("cuda:0")))
KINDS = (tern.Buffer, tern.UnifiedBuffer, tern.ManagedBuffer)
# Short pieces make the tests quick. LONG is three pieces, and a last one that is shorter.
PIECE_BYTES = _mpi_memory.PIECE_BYTES = 64 << 10
LONG = 3 * PIECE_BYTES // 8 + 5
TABLE_ROWS = 50

comm: mpi.Communicator
cases: dict[str, Callable[[], None]] = {}


def case(function: Callable[[], None]) -> Callable[[], None]:
    cases[function.__name__] = function
    return function


@contextlib.contextmanager
def raises(kind: type[tern.Error], *parts: str) -> Iterator[list[Any]]:
    """Require this very class, a code, and a message with all the parts."""
    caught: list[Any] = []
    try:
        yield caught
    except tern.Error as error:
        caught.append(error)
        assert type(error) is kind, f"{type(error).__name__} and not {kind.__name__}: {error}"
        assert error.code, error
        for part in parts:
            assert part in str(error), f"{part!r} is not in {error}"
    else:
        raise AssertionError(f"{kind.__name__} was not raised")


def memories(shape: Any, dtype: str = "float64") -> Iterator[Any]:
    for spec in SPECS:
        for kind in KINDS:
            yield kind(shape, dtype, device=tern.open_device(spec))


@case
def messages_go_round_a_ring() -> None:
    before, after = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    for x in memories(1000):
        x.fill(comm.rank)
        for hop in range(1, comm.size + 1):
            request = comm.isend(x, after, tag=hop)
            y = type(x)(x.shape, x.dtype, device=x.default_device if isinstance(x, tern.UnifiedBuffer) else x.device)
            assert comm.recv(y, before, tag=hop) is y
            assert request.wait() is x
            x = y
            assert (x.to_numpy() == (comm.rank - hop) % comm.size).all()
        assert (x.to_numpy() == comm.rank).all()


@case
def long_messages_travel_in_pieces() -> None:
    elements = np.arange(LONG, dtype="float64")
    for x in memories(LONG):
        if comm.rank == 0:
            x.copy_from(elements)
            comm.send(x, 1)
        elif comm.rank == 1:
            comm.recv(x, 0)
            assert (x.to_numpy() == elements).all()


@case
def transfers_follow_the_work_of_streams() -> None:
    for spec in SPECS:
        device = tern.open_device(spec)
        with tern.Stream(device, "produce") as produce, tern.Stream(device, "consume") as consume:
            x = tern.Buffer(1000, "int32", device)
            if comm.rank == 0:
                for value in range(20):
                    x.fill(value, produce)
                comm.send(x, 1, stream=consume)
                x.fill(99, consume)
            elif comm.rank == 1:
                x.fill(7, produce)
                comm.recv(x, 0, stream=consume)
                y = x.clone(produce)
                assert (y.to_numpy() == 19).all()


def answered(request: mpi.Request) -> None:
    """Let a receive go on until it has answered the header, without the bytes."""
    while comm._ranks.arrivals:
        assert not request.is_done


@case
def a_send_waits_for_work_that_is_held() -> None:
    device = tern.sim.open(mode="raise", print_findings=False)
    stream = tern.Stream(device, "held")
    x = tern.Buffer(10, "int32", device)
    if comm.rank == 0:
        hold = tern.sim.hold(stream)
        x.fill(5, stream)
        request = comm.isend(x, 1)
        MPI.COMM_WORLD.recv(source=1)
        for _ in range(100):
            assert not request.is_done  # the receiver is ready, and the bytes are not
        tern.sim.resume(device, hold)
        request.wait()
    elif comm.rank == 1:
        request = comm.irecv(x, 0)
        answered(request)
        MPI.COMM_WORLD.send(None, 0)
        request.wait()
        assert (x.to_numpy() == 5).all()
    stream.close()


@case
def a_piece_keeps_its_bytes_until_mpi_has_sent_them() -> None:
    # While the receiver makes no call, MPI cannot finish the first pieces. A call of MPI to wait would let it.
    folder = MPI.COMM_WORLD.bcast(tempfile.mkdtemp() if comm.rank == 0 else None)
    tried = pathlib.Path(folder) / "tried"
    elements = np.arange(LONG, dtype="float64")
    if comm.rank == 0:
        request = comm.isend(tern.Buffer.from_numpy(elements, "sim:0"), 1)
        MPI.COMM_WORLD.recv(source=1)
        for _ in range(200):
            assert not request.is_done
        tried.touch()
        request.wait()
    elif comm.rank == 1:
        x = tern.Buffer(LONG, "float64", "sim:0")
        request = comm.irecv(x, 0)
        answered(request)
        MPI.COMM_WORLD.send(None, 0)
        while not tried.exists():
            pass
        request.wait()
        assert (x.to_numpy() == elements).all()
    MPI.COMM_WORLD.Barrier()
    if comm.rank == 0:
        shutil.rmtree(folder)


@case
def arrays_and_parts_of_buffers_travel() -> None:
    for spec in SPECS:
        device = tern.open_device(spec)
        if comm.rank == 0:
            comm.send(tern.Array(np.arange(5.0), device=device), 1)
            comm.send(tern.Buffer.from_numpy(np.arange(12.0).reshape(4, 3), device)[1:3], 1)
            comm.send(tern.Buffer((0, 3), device=device), 1)
        elif comm.rank == 1:
            array = tern.Array.zeros(5, "float64", device=device)
            comm.recv(array)
            assert (array.to_numpy() == np.arange(5.0)).all()
            grid = tern.Buffer((4, 3), "float64", device, contents="zero")
            comm.recv(grid[2:4], mpi.ANY_SOURCE, mpi.ANY_TAG)
            assert (grid.to_numpy()[2:] == np.arange(3.0, 9.0).reshape(2, 3)).all() and not grid.to_numpy()[:2].any()
            comm.recv(tern.Buffer((0, 3), device=device), 0)


@case
def sums_of_all_ranks_are_exact() -> None:
    rows = np.random.default_rng(1).integers(-1000, 1000, (comm.size, 1000))
    for dtype in ("int64", "float32", "complex128"):
        for x in memories(1000, dtype):
            x.copy_from(rows[comm.rank].astype(dtype))
            assert comm.allreduce(x) is x
            assert (x.to_numpy() == rows.sum(0)).all()
    for op, combined in (("min", rows.min(0)), ("max", rows.max(0)), ("bxor", np.bitwise_xor.reduce(rows))):
        x = tern.Buffer.from_numpy(rows[comm.rank], "sim:0")
        assert (comm.allreduce(x, op).to_numpy() == combined).all()
    x = tern.Buffer(LONG, "float64", "sim:0").fill(comm.rank)
    assert (comm.allreduce(x).to_numpy() == 6).all()


@case
def memory_of_one_rank_reaches_all() -> None:
    for x in memories(LONG):
        if comm.rank == 2:
            x.fill(8)
        assert (comm.bcast(x, 2).to_numpy() == 8).all()


@case
def memory_of_all_ranks_is_gathered() -> None:
    for size in (3, LONG):
        for spec in SPECS:
            x = tern.Buffer(size, "float64", spec).fill(comm.rank)
            out = tern.Buffer((comm.size, size), "float64", spec)
            assert comm.allgather(x, out) is out
            assert (out.to_numpy() == np.arange(comm.size)[:, None]).all()


def step(grid: Any) -> Any:
    """One step of a five-point stencil. The order of the additions is fixed, so the bits are too."""
    inner = 0.2 * (grid[1:-1, 1:-1] + grid[:-2, 1:-1] + grid[2:, 1:-1] + grid[1:-1, :-2] + grid[1:-1, 2:])
    after = grid.copy()
    after[1:-1, 1:-1] = inner
    return after


@case
def a_stencil_equals_the_serial_one_bit_for_bit() -> None:
    rows, steps = 8, 12
    whole = np.random.default_rng(2).random((comm.size * rows + 2, 33))
    first = comm.rank * rows
    before = comm.rank - 1 if comm.rank > 0 else None
    after = comm.rank + 1 if comm.rank + 1 < comm.size else None
    grids = list(memories((rows + 2, 33)))
    for grid in grids:
        grid.copy_from(whole[first : first + rows + 2])
    for _ in range(steps):
        for grid in grids:
            if isinstance(grid, tern.UnifiedBuffer):
                # Only the device copy is up to date, as after a kernel.
                grid.sync_to_device()
                grid.drop_host()
            # The rows of the neighbours must come from them, and not from the copy at the start.
            comm.exchange_halo(grid, before=before, after=after)
            grid.copy_from(step(grid.to_numpy()))
        whole = step(whole)
    for grid in grids:
        assert (grid.to_numpy()[1:-1] == whole[first + 1 : first + rows + 1]).all()


@case
def the_example_equals_the_serial_result() -> None:
    example = pathlib.Path(__file__).resolve().parent.parent / "examples" / "06_halo_exchange.py"
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        runpy.run_path(str(example), run_name="__main__")
    wanted = "4 ranks, 20 steps, equals the serial result: True\n" if comm.rank == 0 else ""
    assert printed.getvalue() == wanted, printed.getvalue()


@case
def halos_of_several_rows_go_round() -> None:
    before, after = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    for grid in memories((6, 5), "int32"):
        grid.fill(comm.rank)
        request = comm.iexchange_halo(grid, 2, before=before, after=after)
        assert request.wait() is grid
        assert grid.to_numpy()[:, 0].tolist() == [before] * 2 + [comm.rank] * 2 + [after] * 2


@case
def only_the_edges_of_a_device_copy_travel() -> None:
    device = tern.open_device("sim:0")
    grid = tern.UnifiedBuffer((1000, 100), "float64", device=device).fill(comm.rank)
    grid.sync_to_device()
    grid.drop_host()
    moved = grid.statistics["moved"]["bytes"]
    comm.exchange_halo(grid, before=(comm.rank - 1) % comm.size, after=(comm.rank + 1) % comm.size)
    assert grid.statistics["moved"]["bytes"] == moved
    assert grid.state is tern.BufferState.DEVICE_ONLY


@case
def both_ranks_hear_that_dtypes_and_shapes_differ() -> None:
    there = {
        tern.TypeMismatchError: ("float32", (4, 6), "float64", (4, 6)),
        tern.SizeMismatchError: ("float32", (4, 6), "float32", (4, 5)),
        tern.ShapeMismatchError: ("float32", (4, 6), "float32", (6, 4)),
    }
    for spec in SPECS:
        for kind, (sent, sent_shape, expected, shape) in there.items():
            text = (f"{sent} {sent_shape}, {4 * 24} B", f"{expected} {shape}", "rank 0 sends", "rank 1 receives")
            if comm.rank == 0:
                with raises(kind, *text) as caught:
                    comm.send(tern.Buffer(sent_shape, sent, spec).fill(1), 1)
                assert caught[0].sent_bytes == 96 and caught[0].dest == 1
            elif comm.rank == 1:
                x = tern.Buffer(shape, expected, spec, contents="zero")
                with raises(kind, *text) as caught:
                    comm.recv(x, 0)
                assert caught[0].sent_bytes == 96 and caught[0].expected_bytes == x.nbytes
                assert not x.to_numpy().any()


@case
def both_ranks_hear_that_one_of_them_failed() -> None:
    device = tern.open_device("sim:0")
    small = tern.BudgetResource(tern.Pool(device), tern.Budget("small", 1 << 20, overflow="fail"))
    if comm.rank == 0:
        with raises(tern.NeverWrittenError):
            comm.send(tern.Buffer(4, "float32", device), 1)
        with raises(tern.NeverWrittenError):
            comm.send(tern.UnifiedBuffer(4, "float32", device=device), 1)
        with raises(tern.TypeMismatchError, "'ndarray'"):
            comm.send(np.ones(3), 1)
        with raises(tern.OutOfBudgetError, "rank 1 could not receive", "1.0 MiB") as caught:
            comm.send(tern.Buffer(1 << 20, "float32", device).fill(1), 1)
        assert caught[0].limit == 1 << 20 and caught[0].rank == 1
        with raises(tern.AccessConflictError, "rank 1 could not receive"):
            comm.send(tern.Buffer(4, "float32", device).fill(1), 1)
    elif comm.rank == 1:
        for _ in range(2):
            with raises(tern.NeverWrittenError, "rank 0 could not send"):
                comm.recv(tern.Buffer(4, "float32", device), 0)
        with raises(tern.TypeMismatchError, "rank 0 could not send"):
            comm.recv(tern.Buffer(4, "float32", device), 0)
        with raises(tern.OutOfBudgetError, "1.0 MiB"):
            comm.recv(tern.Buffer(1 << 20, "float32", device, resource=small), 0)
        x = tern.UnifiedBuffer(4, "float32", device=device).fill(3)
        with x.read_host(), raises(tern.AccessConflictError):
            comm.recv(x, 0)
        assert (x.to_numpy() == 3).all()


@case
def a_copy_that_fails_half_way_stops_both_ranks() -> None:
    if comm.rank == 0:
        device = tern.sim.open(faults="copy#3=fail", print_findings=False)
        x = tern.Buffer(LONG, "float64", device).fill(1)
        with raises(tern.DriverError):
            comm.send(x, 1)
    elif comm.rank == 1:
        x = tern.Buffer(LONG, "float64", "sim:0")
        with raises(tern.SyncError, "rank 0 stopped a send", "after 128.0 KiB of 192.0 KiB"):
            comm.recv(x, 0)


@case
def all_ranks_hear_that_a_copy_of_a_collective_failed() -> None:
    # On the last rank, the third copy of each new device fails: that is in the second piece.
    def on(device: tern.Device) -> tern.Buffer:
        return tern.Buffer(LONG, "float64", device).fill(comm.rank)

    last = comm.rank == comm.size - 1
    for collective in ("allreduce", "allgather", "bcast"):
        device = tern.sim.open(faults="copy#3=fail" if last else "", print_findings=False)
        x = on(device)
        with raises(tern.DriverError, "" if last else "rank 3 could not take part"):
            if collective == "allreduce":
                comm.allreduce(x)
            elif collective == "allgather":
                comm.allgather(x, tern.Buffer((comm.size, LONG), "float64", device))
            else:
                comm.bcast(x, 3)
    ones = tern.Buffer(4, "float32", "sim:0").fill(1)
    assert (comm.allreduce(ones).to_numpy() == 4).all()


@case
def all_ranks_hear_that_a_collective_differs() -> None:
    last = comm.rank == comm.size - 1
    for spec in SPECS:
        x = tern.Buffer(4, "float64" if last else "float32", spec).fill(1)
        with raises(tern.TypeMismatchError, "rank 0 has 'float32'", "rank 3 has 'float64'"):
            comm.allreduce(x)
        x = tern.Buffer(5 if last else 4, "float32", spec).fill(1)
        with raises(tern.SizeMismatchError, "[4]", "[5]") as caught:
            comm.bcast(x)
        assert caught[0].expected_bytes == 16 and caught[0].actual_bytes == 20
        x = tern.Buffer(4, "float32", spec).fill(1)
        with raises(tern.InvalidArgumentError, "root"):
            comm.bcast(x, 1 if last else 0)
        with raises(tern.InvalidArgumentError, "'sum'", "'max'"):
            comm.allreduce(x, "max" if last else "sum")
        with raises(tern.InvalidArgumentError, "bcast", "allreduce"):
            comm.bcast(x) if last else comm.allreduce(x)
        with raises(tern.SizeMismatchError, "4 times the elements"):
            comm.allgather(x, tern.Buffer((4, 3 if last else 4), "float32", spec))
        with raises(tern.NeverWrittenError, "" if last else "rank 3 could not take part"):
            comm.allreduce(tern.Buffer(4, "float32", spec) if last else x)
        with raises(tern.UnsupportedError, "float16"):
            comm.allreduce(tern.Buffer(4, "float16", spec).fill(1))
        with raises(tern.InvalidArgumentError, "3 rows"):
            comm.exchange_halo(tern.Buffer((2, 4), "float32", spec).fill(1), before=(comm.rank - 1) % 4, after=(comm.rank + 1) % 4)
        assert (comm.allreduce(x).to_numpy() == 4).all()


@case
def requests_keep_their_memory_leased() -> None:
    device = tern.open_device("sim:0")
    x = tern.UnifiedBuffer(1000, "float32", device=device)
    if comm.rank == 0:
        request = comm.irecv(x, 1, tag=3)
        assert not request.is_done and "in flight" in repr(request)
        with raises(tern.AccessConflictError):
            x.read_host()
        MPI.COMM_WORLD.send(None, 1)
        assert request.wait() is x and request.is_done
        with x.read_host() as array:
            assert (array == 4).all()
    elif comm.rank == 1:
        MPI.COMM_WORLD.recv(source=0)
        comm.send(x.fill(4), 0, tag=3)


@case
def requests_complete_in_any_order() -> None:
    device = tern.open_device("cuda:0?driver=sim")
    other = comm.rank ^ 1
    sent = [tern.Buffer(1000, "int32", device).fill(100 * comm.rank + tag) for tag in range(4)]
    received = [tern.Buffer(1000, "int32", device) for _ in range(4)]
    sums = [tern.Buffer(1000, "int32", device).fill(comm.rank * factor) for factor in (1, 10)]
    requests = [comm.irecv(y, other, tag) for tag, y in enumerate(received)]
    requests += [comm.isend(x, other, tag) for tag, x in reversed([*enumerate(sent)])]
    reductions = [comm.iallreduce(x) for x in sums]
    for request in reversed(requests + reductions):
        request.wait()
    for tag, y in enumerate(received):
        assert (y.to_numpy() == 100 * other + tag).all()
    assert (sums[0].to_numpy() == 6).all() and (sums[1].to_numpy() == 60).all()


@case
def messages_with_one_tag_keep_their_order() -> None:
    x = [tern.Buffer(10, "int32", "sim:0").fill(value) for value in range(5)]
    if comm.rank == 0:
        for request in reversed([comm.isend(one, 1) for one in x]):
            request.wait()
    elif comm.rank == 1:
        y = [tern.Buffer(10, "int32", "sim:0") for _ in range(5)]
        for request in reversed([comm.irecv(one, 0) for one in y]):
            request.wait()
        assert [one.to_numpy()[0] for one in y] == [0, 1, 2, 3, 4]


@case
def an_event_loop_awaits_requests() -> None:
    async def program() -> None:
        x, y = tern.Buffer(10, "int32", "sim:0").fill(comm.rank), tern.Buffer(10, "int32", "sim:0")
        _, got = await asyncio.gather(wait(comm.isend(x, comm.rank ^ 1)), wait(comm.irecv(y, comm.rank ^ 1)))
        assert (got.to_numpy() == comm.rank ^ 1).all()

    async def wait(request: mpi.Request) -> Any:
        return await request

    asyncio.run(program())


@case
def a_wait_with_a_limit_ends() -> None:
    if comm.rank == 0:
        x = tern.Buffer(10, "int32", "sim:0")
        with raises(tern.TimeoutError, "a receive from rank 1 with tag 9", "the limit is 0.1 s") as caught:
            comm.irecv(x, 1, 9).wait(timeout=0.1)
        MPI.COMM_WORLD.send(None, 1)
        caught[0].request.wait()
        assert (x.to_numpy() == 1).all()
    elif comm.rank == 1:
        MPI.COMM_WORLD.recv(source=0)
        comm.send(tern.Buffer(10, "int32", "sim:0").fill(1), 0, 9)


def table_on(spec: str) -> tern.Table:
    numbers = np.arange(TABLE_ROWS)
    texts = [None if i % 7 == 0 else "tern" * (i % 5) for i in range(TABLE_ROWS)]
    columns = {
        "id": tern.Column(numbers.astype("int32"), device=spec),
        "mass": tern.Column(numbers / 7, device=spec, valid=numbers % 3 > 0),
        "name": tern.Column(texts, device=spec),
        "flag": tern.Column(numbers % 2 == 0, device=spec),
        "time": tern.Column(numbers.astype("datetime64[us]"), device=spec),
    }
    return tern.Table(columns)


def lists_of(table: tern.Table) -> list[Any]:
    return [column.to_pylist() for column in table.copy_to("host").columns]


@case
def tables_travel_with_schema_and_nulls() -> None:
    for spec in SPECS:
        for first, count in ((0, TABLE_ROWS), (3, 21), (0, 0)):
            table = table_on(spec).slice(first, count)
            if comm.rank == 0:
                comm.send(table, 1)
            elif comm.rank == 1:
                there = comm.recv_table(0, device=spec)
                assert there.schema == table.schema and there.rows == count and there.device == table.device or count == 0
                assert lists_of(there) == lists_of(table)
            there = comm.bcast_table(table if comm.rank == 3 else None, 3, device=spec)
            assert lists_of(there) == lists_of(table)


@case
def tables_and_memory_do_not_mix() -> None:
    if comm.rank == 0:
        with raises(tern.TypeMismatchError, "rank 0 sends a table of 5 columns and 50 rows", "rank 1 receives into float32"):
            comm.send(table_on("host"), 1)
        with raises(tern.TypeMismatchError, "rank 1 receives a table"):
            comm.send(tern.Buffer(3, "float32", "host").fill(1), 1)
    elif comm.rank == 1:
        with raises(tern.TypeMismatchError, "rank 0 sends a table of 5 columns and 50 rows"):
            comm.recv(tern.Buffer(3, "float32", "host"), 0)
        with raises(tern.TypeMismatchError, "rank 0 sends float32 (3,), 12 B"):
            comm.recv_table(0)
    with raises(tern.TypeMismatchError, "Pass a Table" if comm.rank == 0 else "rank 0 could not take part"):
        comm.bcast_table(None, 0)


@case
def device_memory_goes_to_an_mpi_that_accepts_it() -> None:
    # Any MPI can use addresses of the host device. Only the answers about the device are replaced: that the host cannot
    # use its memory, and that the MPI library can.
    host, fake = tern.open_device("host"), tern.open_device("cuda:0?driver=sim")
    assert comm.is_direct(host) and not comm.is_direct(fake)
    before, after = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    with (
        mock.patch.object(_mpi_memory, "mpi_reads_device_memory", lambda device, module: True),
        mock.patch.object(_mpi_memory, "host_can_use", lambda buffer: False),
        mock.patch.object(_mpi_memory.StagedBytes, "__init__", None),
    ):
        assert comm.is_direct(fake)
        for kind in KINDS:
            x, y = (kind((6, 1000), "float64", device=host) for _ in range(2))
            stream = tern.Stream(host, "work")
            x.fill(comm.rank, stream)
            request = comm.isend(x, after, stream=stream)
            comm.recv(y, before, stream=stream)
            request.wait()
            x.fill(9, stream)
            comm.exchange_halo(y, before=before, after=after, stream=stream)
            comm.allreduce(x)
            stream.close()
            expected = [(comm.rank - shift) % comm.size for shift in (2, 1, 1, 1, 1, 0)]
            assert (y.to_numpy() == np.array(expected)[:, None]).all() and (x.to_numpy() == 36).all()


@case
def a_communicator_of_some_ranks_is_separate() -> None:
    half = mpi.Communicator(MPI.COMM_WORLD.Split(comm.rank % 2, comm.rank))
    x = tern.Buffer(4, "int32", "sim:0").fill(comm.rank)
    assert half.size == 2 and (half.allreduce(x).to_numpy() == (2 if comm.rank % 2 == 0 else 4)).all()
    half.close()
    with raises(tern.InvalidArgumentError, "closed"):
        half.allreduce(x)


@case
def ranks_and_tags_are_checked() -> None:
    x = tern.Buffer(4, "int32", "host").fill(1)
    for call in (lambda: comm.send(x, 4), lambda: comm.recv(x, -7), lambda: comm.bcast(x, 9), lambda: comm.exchange_halo(x, after=4)):
        with raises(tern.OutOfBoundsError, "4 ranks"):
            call()
    with raises(tern.OutOfBoundsError, "tag is -3"):
        comm.send(x, 0, -3)


@case
def ranks_that_wait_hear_that_a_rank_left() -> None:
    group = mpi.Communicator()
    x = tern.Buffer(4, "int32", "sim:0").fill(comm.rank)
    assert (group.allreduce(x).to_numpy() == 6).all()
    if comm.rank == 3:
        pending = group.irecv(tern.Buffer(4, "int32", "sim:0"), 0)
        with raises(tern.StreamMisuseError, "1 requests in flight"):
            group.close()
        assert not pending.is_done
    else:
        # Ranks 0 and 1 leave as soon as they hear of rank 3, so rank 2 may hear of one of them first.
        first = "waits for rank 3" if comm.rank < 2 else "waits for rank "
        with raises(tern.NotFoundError, first, "after 1 collectives") as caught:
            if comm.rank == 0:
                group.recv(x, 3)
            elif comm.rank == 1:
                group.send(x, 3)
            else:
                group.allreduce(x)
        assert (caught[0].rank == 3 or comm.rank == 2) and caught[0].left >= 1
        group.close()


def main() -> None:
    global comm
    faulthandler.dump_traceback_later(60, exit=True)
    comm = mpi.Communicator(timeout=20)
    chosen = sys.argv[1:] or list(cases)
    if chosen == ["--leave"]:
        leave()
        return
    for name in chosen:
        error, began = "", time.monotonic()
        try:
            cases[name]()
        except BaseException:
            error = traceback.format_exc()
        ranks = MPI.COMM_WORLD.gather(error)
        if ranks is not None:
            print(json.dumps({"case": name, "seconds": round(time.monotonic() - began, 2), "errors": {rank: text for rank, text in enumerate(ranks) if text}}), flush=True)
    for spec in SPECS:
        tern.open_device(spec).synchronize()


def leave() -> None:
    """Rank 1 ends with an exception. Rank 0 waits for it and must hear of it."""
    if comm.rank == 1:
        sys.exit("rank 1 gives up")
    try:
        comm.recv(tern.Buffer(4, "int32", "host"), 1)
    except tern.NotFoundError as error:
        print(f"rank 0 heard: {error}", flush=True)


if __name__ == "__main__":
    main()
