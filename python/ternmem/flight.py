"""Arrow Flight: tables between services.

>>> import ternmem as tern
>>> import ternmem.flight
>>> with ternmem.flight.Server({"masses": tern.Table({"mass": tern.Column([1.5, 2.0])})}) as server:
...     ternmem.flight.fetch(server.location, "masses")["mass"].to_pylist()
[1.5, 2.0]
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping
from typing import Any

from . import _core, errors

try:
    import pyarrow
    from pyarrow import flight
except ImportError as _missing:
    raise ImportError(
        f"ternmem.flight needs pyarrow with Flight, which cannot be imported: {_missing}. Install 'ternmem[flight]'."
    ) from _missing

__all__ = ["ConnectionLostError", "Server", "fetch"]


class ConnectionLostError(errors.Error, ConnectionError):
    """There is no server at the location, or the server ended before the whole table had arrived."""

    code = "connection_lost"


class Server(flight.FlightServerBase):
    """Serves tables by name, from threads of its own. The ticket of a table is its name in UTF-8.

    A table on the host is sent from its own memory. A table of a device is copied to the host in pieces, one at a
    time for each request.

    Parameters
    ----------
    tables : mapping of str to Table, optional
    location : str
        By default any free port of this machine.
    piece_bytes : int
        The size of the pieces in which the server sends a table.
    **options
        Passed on to ``pyarrow.flight.FlightServerBase``, for example certificates.
    """

    def __init__(
        self,
        tables: Mapping[str, _core.Table] | None = None,
        location: str = "grpc://127.0.0.1:0",
        *,
        piece_bytes: int = 16 << 20,
        **options: Any,
    ) -> None:
        if piece_bytes <= 0:
            raise errors.InvalidArgumentError(f"piece_bytes is {piece_bytes}. Use 1 or more.")
        self._lock = threading.Lock()
        self._tables = dict(tables or {})
        self._piece_bytes = piece_bytes
        host = location.partition("://")[2].rpartition(":")[0]
        self._origin = (location.partition("://")[0], host)
        super().__init__(location, **options)

    @property
    def location(self) -> str:
        """The location that a client passes to fetch()."""
        scheme, host = self._origin
        return f"{scheme}://{host}:{self.port}"

    def add(self, name: str, table: _core.Table) -> None:
        """Serve a table. It replaces a table of the same name.

        Parameters
        ----------
        name : str
        table : Table
        """
        with self._lock:
            self._tables[name] = table

    def remove(self, name: str) -> None:
        """Stop serving a table. Requests that have begun continue.

        Parameters
        ----------
        name : str
        """
        with self._lock:
            if self._tables.pop(name, None) is None:
                raise errors.NotFoundError(f"the server has no table '{name}'. It has {_names(self._tables)}.")

    def shutdown(self) -> None:
        """Stop the server and release its tables. Requests that have begun end first."""
        super().shutdown()
        self._release()

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)
        self._release()

    def do_get(self, context: Any, ticket: Any) -> Any:
        """Answer a request of Flight for a table."""
        table = self._find(ticket.ticket)
        schema = pyarrow.schema(table.schema)
        return flight.GeneratorStream(schema, _pieces(table, self._piece_bytes))

    def get_flight_info(self, context: Any, descriptor: Any) -> Any:
        """Answer a request of Flight for the schema and the size of a table."""
        path = descriptor.path or [b""]
        return self._info(path[0], self._find(path[0]))

    def list_flights(self, context: Any, criteria: Any) -> Iterator[Any]:
        """Answer a request of Flight for all tables."""
        with self._lock:
            now = dict(self._tables)
        return iter([self._info(name.encode(), table) for name, table in now.items()])

    def _release(self) -> None:
        # Some versions of pyarrow keep a server that has ended.
        with self._lock:
            self._tables.clear()

    def _find(self, name: bytes) -> _core.Table:
        text = name.decode("utf-8", "replace")
        with self._lock:
            table = self._tables.get(text)
            names = _names(self._tables)
        if table is None:
            raise KeyError(f"the server has no table '{text[:100]}'. It has {names}.")
        return table

    def _info(self, name: bytes, table: _core.Table) -> Any:
        descriptor = flight.FlightDescriptor.for_path(name)
        endpoint = flight.FlightEndpoint(name, [self.location])
        return flight.FlightInfo(pyarrow.schema(table.schema), descriptor, [endpoint], table.rows_host(), table.nbytes)


def _names(tables: Mapping[str, _core.Table]) -> str:
    shown = ", ".join(f"'{name}'" for name in sorted(tables)[:10])
    return (shown + (", ..." if len(tables) > 10 else "")) or "none"


def _pieces(table: _core.Table, piece_bytes: int) -> Iterator[Any]:
    rows = table.rows_host()
    row_bytes = max(1, table.nbytes // max(1, table.capacity))
    count = max(1, piece_bytes // row_bytes)
    is_on_host = table.device is None or table.device.is_host
    for first in range(0, rows, count):
        piece = table.slice(first, min(count, rows - first))
        yield pyarrow.record_batch(piece if is_on_host else piece.copy_to("host"))


def fetch(
    location: Any,
    name: str,
    device: _core.Device | str = "host",
    *,
    limit_bytes: int | None = None,
    timeout: float | None = 60.0,
    **options: Any,
) -> _core.Table:
    """Fetch a table from a server of Flight.

    A table that arrives in one piece at aligned addresses is not copied on the host. Otherwise the pieces are copied
    once on the host, to join them.

    Parameters
    ----------
    location : str
        Such as ``'grpc://10.0.0.1:8815'``.
    name : str
    device : Device or str
        The device of the returned table.
    limit_bytes : int, optional
        Raise CapacityError if more bytes arrive.
    timeout : float, optional
        Seconds for the whole fetch. None waits for as long as the server lives.
    **options
        Passed on to ``pyarrow.flight.connect``, for example certificates.

    Returns
    -------
    Table

    Raises
    ------
    NotFoundError
        The server has no table of this name.
    ConnectionLostError
        There is no server, or the server ended.
    TimeoutError
    BadFormatError
        The received bytes are not a valid table.
    """
    place = device if isinstance(device, _core.Device) else _core.open_device(device)
    what = f"the table '{name}' of {location}"
    with _translated(what, timeout), flight.connect(location, **options) as client:
        reader = client.do_get(flight.Ticket(name.encode()), flight.FlightCallOptions(timeout=timeout))
        batches, arrived = [], 0
        try:
            for chunk in reader:
                batch = chunk.data
                if batch is None:
                    continue
                arrived += batch.get_total_buffer_size()
                if limit_bytes is not None and arrived > limit_bytes:
                    raise errors.CapacityError(
                        f"{what} has more than {limit_bytes} bytes: {arrived} have arrived. Raise limit_bytes."
                    )
                # The bytes come from elsewhere: offsets may point outside, texts may not be UTF-8.
                batch.validate(full=True)
                batches.append(batch)
        except BaseException:
            reader.cancel()
            raise
        table: _core.Table = _core.from_arrow(_joined(batches, reader.schema))
    return table if place.is_host else table.copy_to(place)


def _joined(batches: list[Any], schema: Any) -> Any:
    if len(batches) == 1 and _is_aligned(batches[0]):
        return batches[0]
    # With the batch without rows, Arrow copies a single piece too.
    empty = pyarrow.RecordBatch.from_arrays([pyarrow.array([], field.type) for field in schema], schema=schema)
    return pyarrow.concat_batches([*batches, empty])


def _is_aligned(batch: Any) -> bool:
    buffers = [buffer for column in batch.columns for buffer in column.buffers() if buffer is not None]
    return all(buffer.address % 16 == 0 for buffer in buffers)


@contextlib.contextmanager
def _translated(what: str, timeout: float | None) -> Iterator[None]:
    """Raise errors of Tern for those of Flight."""
    try:
        yield
    except errors.Error:
        raise
    except flight.FlightTimedOutError as error:
        raise errors.TimeoutError(f"{what} has not arrived within {timeout} seconds. Raise the timeout.") from error
    except flight.FlightUnavailableError as error:
        raise ConnectionLostError(f"{what} cannot be fetched: {_first_line(error)} Check that the server runs.") from error
    except KeyError as error:
        raise errors.NotFoundError(f"{what} does not exist: {_first_line(error)}") from error
    except pyarrow.ArrowInvalid as error:
        raise errors.BadFormatError(f"{what} is damaged: {_first_line(error)}") from error
    except (pyarrow.ArrowException, flight.FlightError, OSError) as error:
        raise errors.Error(f"{what} cannot be fetched: {_first_line(error)}") from error


def _first_line(error: BaseException) -> str:
    text = str(error.args[0] if error.args else error).strip()
    line = text.splitlines()[0] if text else type(error).__name__
    return line.partition(". Detail:")[0].partition(" gRPC client debug context")[0].rstrip(".") + "."
