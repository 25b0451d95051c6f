"""Messages between two ranks, and halos, which are messages between neighbours.

A message is a header with the description of the memory, an answer, and the bytes in pieces.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py import MPI

from . import _core, errors
from . import _mpi_tables as tables
from ._mpi_memory import ArrayBytes, Bytes, LentRows, NoBytes, Opener, describe, pieces, stream_of
from ._mpi_ranks import TO_AFTER, TO_BEFORE, Completion, Opened, Ranks, close, kept
from ._mpi_requests import Steps, together
from ._mpi_wire import bytes_text, error_of, failure, fields_of_error, mismatch, text_of


class Messages:
    """Sends and receives of one rank."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._tickets = 0

    def send(self, x: Any, opened: Opened, dest: int, tag: int) -> Steps:
        """Send memory that was opened to read. Returns x."""
        fields, view = opened
        yield from self._send_all(self._ranks.headers, fields, [view], dest, tag)
        return x

    def send_table(self, table: Any, dest: int, tag: int) -> Steps:
        """Send a table. Returns it."""
        fields, views = self._ranks.open_table(table)
        yield from self._send_all(self._ranks.headers, fields, views, dest, tag)
        return table

    def receive(self, x: Any, opened: Opened, source: int, tag: int) -> Steps:
        """Receive into memory that was opened to write. Returns x."""
        yield from self._receive(self._ranks.headers, opened, source, tag)
        return x

    def receive_table(self, device: Any, source: int, tag: int) -> Steps:
        """Receive a table into new memory. Returns the table."""
        made: list[_core.Table] = []

        def room(there: dict[str, Any], rank: int) -> list[Bytes]:
            if "columns" not in there:
                raise failure(
                    errors.TypeMismatchError,
                    f"rank {rank} sends {text_of(there)}, and rank {self._ranks.rank} receives a table. Receive it with recv().",
                    source=rank,
                    dest=self._ranks.rank,
                )
            table, buffers = tables.make(there, device)
            made.append(table)
            return self._ranks.open_parts(buffers, "write")

        yield from self._receive_all(self._ranks.headers, room, source, tag)
        return made[0]

    def exchange(self, x: Any, width: int, before: int | None, after: int | None, stream: Any) -> Steps:
        """Exchange rows with the neighbours. Returns x."""
        lease: Any = None
        error: Exception | None = None
        parts: list[Any] = [None] * 4
        try:
            base, lease = _open_grid(x, stream, self._ranks.opener)
            parts = _edges(base, width)
        except Exception as raised:
            error = raised
        steps = []
        for peer, own, halo, sent, received in (
            (before, parts[1], parts[0], TO_BEFORE, TO_AFTER),
            (after, parts[2], parts[3], TO_AFTER, TO_BEFORE),
        ):
            if peer is not None:
                opened = self._open_part(own, "read", stream, error)
                steps.append(self._send_all(self._ranks.own_headers, opened[0], [opened[1]], peer, sent))
                steps.append(self._receive(self._ranks.own_headers, self._open_part(halo, "write", stream, error), peer, received))
        try:
            yield from together(steps)
            if error is not None:
                raise error
        except BaseException as raised:
            if lease is not None:
                lease.__exit__(type(raised), raised, None)
            raise
        if lease is not None:
            lease.close()
        return x

    def _open_part(self, part: Any, access: str, stream: Any, error: Exception | None) -> Opened:
        if error is not None:
            return {}, error
        if isinstance(part, np.ndarray):
            return {"dtype": str(part.dtype), "shape": list(part.shape), "bytes": part.nbytes}, ArrayBytes(part)
        if isinstance(part, LentRows):
            try:
                return part.fields, self._ranks.opener.open_rows(part)
            except Exception as raised:
                return part.fields, raised
        return self._ranks.try_open(part, access, stream)

    def _send_all(self, comm: Any, fields: dict[str, Any], views: list[Any], dest: int, tag: int) -> Steps:
        opened = [view for view in views if not isinstance(view, Exception)]
        try:
            failed = next((view for view in views if isinstance(view, Exception)), None)
            if failed is not None:
                yield from self._ranks.send_text(comm, {"error": fields_of_error(failed)}, dest, tag)
                raise failed
            self._tickets += 1
            ticket = self._tickets % (self._ranks.last_tag // 2)
            yield from self._ranks.send_text(comm, {**fields, "ticket": ticket}, dest, tag)
            answer, _ = yield from self._ranks.receive_text(self._ranks.bodies, dest, 2 * ticket)
            if "error" in answer:
                prefix = "" if "dest" in answer["error"]["numbers"] else f"rank {dest} could not receive: "
                raise error_of(answer["error"], prefix, rank=dest)
            for view, size in zip(opened, _sizes(fields), strict=True):
                yield from self._send_bytes(view, size, dest, 2 * ticket + 1)
        except BaseException as error:
            close(opened, error)
            raise
        close(opened, None)

    def _receive(self, comm: Any, opened: Opened, source: int, tag: int) -> Steps:
        fields, view = opened

        def room(there: dict[str, Any], rank: int) -> list[Bytes]:
            if isinstance(view, Exception):
                raise view
            kind = mismatch(fields, there)
            if kind is not None:
                raise failure(
                    kind,
                    f"rank {rank} sends {text_of(there)}, and rank {self._ranks.rank} receives into {text_of(fields)}. "
                    "Use the same dtype and shape on both ranks.",
                    sent_bytes=there["bytes"],
                    expected_bytes=fields["bytes"],
                    source=rank,
                    dest=self._ranks.rank,
                )
            return [view]

        try:
            yield from self._receive_all(comm, room, source, tag)
        except BaseException as error:
            close([] if isinstance(view, Exception) else [view], error)
            raise

    def _receive_all(self, comm: Any, room: Callable[[dict[str, Any], int], list[Bytes]], source: int, tag: int) -> Steps:
        there, rank = yield from self._ranks.receive_text(comm, source, tag)
        if "error" in there:
            raise error_of(there["error"], f"rank {rank} could not send: ", rank=rank)
        ticket = there["ticket"]
        try:
            views = room(there, rank)
        except Exception as error:
            yield from self._ranks.send_text(self._ranks.bodies, {"error": fields_of_error(error)}, rank, 2 * ticket)
            raise
        try:
            yield from self._ranks.send_text(self._ranks.bodies, {}, rank, 2 * ticket)
            for view, size in zip(views, _sizes(there), strict=True):
                yield from self._receive_bytes(view, size, rank, 2 * ticket + 1)
        except BaseException as error:
            close(views, error)
            raise
        close(views, None)

    def _send_bytes(self, view: Bytes, size: int, dest: int, tag: int) -> Steps:
        sent: list[Completion | None] = [None, None]
        try:
            for slot, first, count in pieces(size, 1):
                previous = sent[slot]
                if previous is not None:
                    yield previous
                piece = view.fetch(slot, first, count)
                yield piece.is_ready
                sent[slot] = Completion(self._ranks, self._ranks.bodies.Isend([piece.memory(), count, MPI.BYTE], dest, tag), dest)
            for last in sent:
                if last is not None:
                    yield last
        except Exception:
            # The receiver expects bytes. No bytes tell it to stop.
            kept.append(self._ranks.bodies.Isend([b"", 0, MPI.BYTE], dest, tag))
            kept.extend(sent)
            raise

    def _receive_bytes(self, view: Bytes, size: int, source: int, tag: int) -> Steps:
        error: Exception | None = None
        received: list[tuple[Completion, int, int] | None] = [None, None]
        rounds = pieces(size, 1)
        # Two more rounds finish the last pieces.
        for slot, first, count in [*rounds, *((i % 2, 0, 0) for i in range(len(rounds), len(rounds) + 2))]:
            finished = received[slot]
            received[slot] = None
            if finished is not None:
                completion, at, expected = finished
                yield completion
                if completion.count != expected:
                    _cancel(received)
                    raise failure(
                        errors.SyncError,
                        f"rank {source} stopped a send to rank {self._ranks.rank} after {bytes_text(at)} of {bytes_text(size)}, because "
                        f"of an error on rank {source}. The memory of rank {self._ranks.rank} is incomplete: repeat the "
                        "transfer.",
                        source=source,
                        received_bytes=at,
                        expected_bytes=size,
                    )
                try:
                    view.store(slot, at, expected)
                except Exception as raised:
                    # The sender goes on, so the other pieces must be received.
                    error, view = error or raised, NoBytes(size)
            if count > 0:
                piece = view.room(slot, first, count)
                yield piece.is_ready
                request = self._ranks.bodies.Irecv([piece.memory(), count, MPI.BYTE], source, tag)
                received[slot] = Completion(self._ranks, request, source), first, count
        if error is not None:
            raise error


def _cancel(received: list[tuple[Completion, int, int] | None]) -> None:
    for one in received:
        if one is not None:
            one[0].cancel()


def _sizes(fields: dict[str, Any]) -> list[int]:
    return tables.sizes(fields) if "columns" in fields else [fields["bytes"]]


def _open_grid(x: Any, stream: Any, opener: Opener) -> tuple[Any, Any]:
    """Return the rows of a grid as an array or a Buffer, and the lease that they need or None."""
    describe(x)
    if isinstance(x, _core.UnifiedBuffer):
        device = x.default_device
        is_newer_there = "host" not in x.valid_places() and not device.can("host_access")
        if is_newer_there or opener.is_direct(device):
            # Only the edges travel to the host.
            on = stream_of(device, stream)
            lease = x.rw_device(on)
            return LentRows(lease.array, on), lease
    if isinstance(x, _core.UnifiedBuffer | _core.ManagedBuffer):
        host_lease = x.rw_host()
        return host_lease.array, host_lease
    return (x.buffer if isinstance(x, _core.Array) else x), None


def _edges(grid: Any, width: int) -> list[Any]:
    """Return the first halo, the first own rows, the last own rows and the last halo."""
    rows = grid.shape[0] if len(grid.shape) > 0 else 0
    if width < 1 or rows < 3 * width:
        raise failure(
            errors.InvalidArgumentError,
            f"a halo of {width} rows needs at least {3 * max(width, 1)} rows of memory, and the memory has {rows}. "
            "Use more rows on each rank, or fewer ranks.",
            width=width,
            rows=rows,
        )
    return [grid[:width], grid[width : 2 * width], grid[rows - 2 * width : rows - width], grid[rows - width :]]
