"""ternmem.flight: tables over the loopback."""

from __future__ import annotations

import gc
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import ternmem as tern

pytest.importorskip("pyarrow.flight", reason="pyarrow is not installed, or has no Flight")

import pyarrow
from pyarrow import flight

import ternmem.flight
from ternmem.flight import ConnectionLostError, Server, fetch


def table(rows: int = 1000, device: Any = "host") -> tern.Table:
    made = tern.Table({
        "id": tern.Column(np.arange(rows), "int64"),
        "mass": tern.Column([None if i % 3 else i / 2 for i in range(rows)], "float64"),
        "text": tern.Column([None if i % 5 == 0 else str(i) * (i % 4) for i in range(rows)]),
        "flag": tern.Column(np.arange(rows) % 2 == 0, "bool"),
    })
    return made.copy_to(device)


def contents(read: tern.Table) -> list[Any]:
    return [read.schema.names, *[column.copy_to("host").to_pylist() for column in read.columns]]


@pytest.fixture(autouse=True)
def host_is_current() -> Iterator[None]:
    before = tern.current_device()
    tern.set_device("host")
    yield
    tern.set_device(before)


def test_a_table_is_fetched_in_pieces_and_whole(device: tern.Device) -> None:
    whole = contents(table())
    for piece_bytes in (1, 999, 16 << 20):
        with Server({"t": table(200 if piece_bytes == 1 else 1000, device)}, piece_bytes=piece_bytes) as server:
            read = fetch(server.location, "t", device)
        assert read.device == device
        assert contents(read) == (contents(table(200)) if piece_bytes == 1 else whole)


def test_empty_tables_keep_their_schema() -> None:
    with Server({"none": table(0)}) as server:
        read = fetch(server.location, "none")
    assert read.rows == 0
    assert read.schema.names == ["id", "mass", "text", "flag"]


def test_tern_copies_nothing_from_host_to_host() -> None:
    with Server({"t": table()}) as server:
        before = tern.transfer_counts()
        read = fetch(server.location, "t")
        moved = tern.transfer_counts() - before
    assert read["id"].is_external
    assert moved.device_to_host["copies"] == moved.host_to_device["copies"] == 0


def test_a_server_that_has_ended_holds_no_table() -> None:
    served = table()
    references = sys.getrefcount(served)
    with Server({"t": served}) as server:
        assert fetch(server.location, "t").rows == 1000
        assert sys.getrefcount(served) > references
    gc.collect()
    assert sys.getrefcount(served) == references
    with pytest.raises(tern.NotFoundError):
        server.remove("t")


def test_tables_come_and_go() -> None:
    with Server() as server:
        server.add("a", table(1))
        server.add("b", table(2))
        names = {info.descriptor.path[0] for info in flight.connect(server.location).list_flights()}
        assert names == {b"a", b"b"}
        assert fetch(server.location, "b").rows == 2
        server.remove("b")
        with pytest.raises(tern.NotFoundError, match="has no table 'b'. It has 'a'"):
            server.remove("b")
        with pytest.raises(tern.NotFoundError, match="has no table 'b'. It has 'a'"):
            fetch(server.location, "b")
        info = flight.connect(server.location).get_flight_info(flight.FlightDescriptor.for_path(b"a"))
        assert info.total_records == 1
        assert pyarrow.schema(info.schema).names == ["id", "mass", "text", "flag"]


def test_bad_tickets_are_refused_and_the_server_goes_on() -> None:
    with Server({"t": table(3)}) as server, flight.connect(server.location) as client:
        for ticket in (b"", b"\xff\xfe", b"t\0", b"x" * 10_000):
            with pytest.raises(KeyError):
                client.do_get(flight.Ticket(ticket)).read_all()
        with pytest.raises(KeyError):
            client.get_flight_info(flight.FlightDescriptor.for_command(b"t"))
        for name in ("", "no such table", "t\0", "a'b"):
            with pytest.raises(tern.NotFoundError, match="does not exist"):
                fetch(server.location, name)
        assert fetch(server.location, "t").rows == 3


def test_a_limit_ends_a_fetch() -> None:
    with Server({"t": table()}, piece_bytes=100) as server:
        with pytest.raises(tern.CapacityError, match="more than 5000 bytes"):
            fetch(server.location, "t", limit_bytes=5000)
        assert fetch(server.location, "t", limit_bytes=10 << 20).rows == 1000


def test_no_server_and_no_speaker_of_flight_are_lost_connections() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]

        def answer() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                connection.sendall(b"HTTP/1.0 200 OK\r\n\r\nhello" * 10)
                connection.close()

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        with pytest.raises((ConnectionLostError, tern.TimeoutError)):
            fetch(f"grpc://127.0.0.1:{port}", "t", timeout=2)
        listening.shutdown(socket.SHUT_RDWR)
        thread.join(timeout=10)
    with pytest.raises(ConnectionLostError, match="Check that the server runs") as raised:
        fetch(f"grpc://127.0.0.1:{port}", "t", timeout=5)
    assert isinstance(raised.value, ConnectionError)
    assert isinstance(raised.value, tern.Error)


def test_a_server_that_dies_in_the_middle_is_a_lost_connection() -> None:
    program = (
        "import itertools, sys, time, pyarrow as pa, pyarrow.flight as flight\n"
        "batch = pa.record_batch({'x': pa.array(range(1000))})\n"
        "class Server(flight.FlightServerBase):\n"
        "    def do_get(self, context, ticket):\n"
        "        return flight.GeneratorStream(batch.schema, itertools.chain([batch], stall()))\n"
        "def stall():\n"
        "    print('sent', flush=True)\n"
        "    time.sleep(60)\n"
        "    yield batch\n"
        "server = Server('grpc://127.0.0.1:0')\n"
        "print(server.port, flush=True)\n"
        "server.serve()\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        port = int(running.stdout.readline())

        def kill() -> None:
            assert running.stdout is not None
            running.stdout.readline()
            os.kill(running.pid, signal.SIGKILL)

        killer = threading.Thread(target=kill)
        killer.start()
        with pytest.raises(ConnectionLostError):
            fetch(f"grpc://127.0.0.1:{port}", "t", timeout=30)
        killer.join(timeout=10)


class Hostile(flight.FlightServerBase):
    """Sends what the function makes."""

    def __init__(self, schema: Any, make: Callable[[], Iterator[Any]]) -> None:
        self.schema, self.make = schema, make
        super().__init__("grpc://127.0.0.1:0")

    def do_get(self, context: Any, ticket: Any) -> Any:
        return flight.GeneratorStream(self.schema, self.make())


def text_with(offsets: list[int], data: bytes) -> Any:
    array = pyarrow.Array.from_buffers(
        pyarrow.string(), len(offsets) - 1,
        [None, pyarrow.py_buffer(np.array(offsets, "int32")), pyarrow.py_buffer(data)])
    return pyarrow.record_batch([array], names=["x"])


def numbers() -> Any:
    return pyarrow.record_batch({"x": pyarrow.array([1, 2, 3])})


def fail_late() -> Iterator[Any]:
    yield numbers()
    raise RuntimeError("planted")


def endless() -> Iterator[Any]:
    while True:
        yield numbers()


def stalled() -> Iterator[Any]:
    yield numbers()
    time.sleep(0.8)


@pytest.mark.parametrize(
    ("schema", "make", "expected"),
    [
        (text_with([0], b"").schema, lambda: iter([text_with([0, 1, 2], b"\xff\xfe")]), tern.BadFormatError),
        (text_with([0], b"").schema, lambda: iter([text_with([0, 2, 1], b"ab")]), tern.Error),
        (numbers().schema, lambda: iter([text_with([0, 1], b"a")]), tern.Error),
        (numbers().schema, fail_late, tern.Error),
        (numbers().schema, endless, tern.CapacityError),
        (numbers().schema, stalled, tern.TimeoutError),
        (pyarrow.schema([("x", pyarrow.list_(pyarrow.int8()))]),
         lambda: iter([pyarrow.record_batch({"x": pyarrow.array([[1], [2, 3]], pyarrow.list_(pyarrow.int8()))})]),
         tern.Error),
    ],
    ids=["not UTF-8", "offsets go back", "another schema", "an exception", "endless", "stalled", "lists"],
)
def test_a_hostile_stream_raises_an_error_of_tern(schema: Any, make: Any, expected: type[Exception]) -> None:
    with Hostile(schema, make) as server:
        with pytest.raises(expected):
            fetch(f"grpc://127.0.0.1:{server.port}", "t", limit_bytes=5000, timeout=0.4 if make is stalled else 10)


def test_a_device_without_memory_fails_the_request_and_the_server_goes_on() -> None:
    with Server({"t": table(3)}) as server:
        device = tern.sim.open()
        budget = tern.Budget("small", 16, overflow="fail")
        tern.set_default_resource(tern.BudgetResource(tern.Pool(device), budget))
        with pytest.raises(tern.OutOfBudgetError):
            fetch(server.location, "t", device)
        assert budget.used_bytes == 0
        assert fetch(server.location, "t").rows == 3


def test_wrong_settings_are_refused() -> None:
    with pytest.raises(tern.InvalidArgumentError, match="piece_bytes is 0"):
        Server(piece_bytes=0)
    program = "import sys; sys.modules['pyarrow.flight'] = None; import ternmem.flight"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert "Install 'ternmem[flight]'" in ended.stderr
    assert ternmem.flight.__all__ == ["ConnectionLostError", "Server", "fetch"]
