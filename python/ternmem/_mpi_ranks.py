"""The ranks of a communicator, on mpi4py: their numbers, the ranks that have left, and headers between ranks."""

from __future__ import annotations

from typing import Any

from mpi4py import MPI

from . import _core, errors
from . import _mpi_tables as tables
from ._mpi_memory import Bytes, Opener, describe
from ._mpi_requests import Steps
from ._mpi_wire import failure, pack, unpack

# What MPI may still use when nobody waits for it any more.
kept: list[Any] = []

# Tags of headers that the program does not see.
_GOODBYE, TO_BEFORE, TO_AFTER = 0, 1, 2

# The description of memory, and the memory or the error that opening it raised.
Opened = tuple[dict[str, Any], Bytes | Exception]


def _address_to_memory(address: int, count: int) -> Any:
    return MPI.buffer.fromaddress(address, count)


class Ranks:
    """This rank and the others."""

    def __init__(self, comm: Any) -> None:
        # Headers have the tags of the program, or tags of the library. Answers and bytes have tags that headers name.
        self.headers, self.own_headers, self.bodies = comm.Dup(), comm.Dup(), comm.Dup()
        self.rank: int = self.headers.Get_rank()
        self.size: int = self.headers.Get_size()
        self.last_tag: int = comm.Get_attr(MPI.TAG_UB)
        self.opener = Opener(MPI.__file__, _address_to_memory)
        self.begun = self.finished = 0  # collectives
        self.arrivals: list[_Arrival] = []  # receives that wait for a header, in the order of their calls
        self._left: dict[int, int] = {}  # the ranks that have left, and the collectives that they finished

    def try_open(self, x: Any, access: str, stream: Any) -> Opened:
        """Describe and open memory. An error is returned, so that other ranks hear of it before it is raised."""
        fields: dict[str, Any] = {}
        try:
            fields = describe(x)
            return fields, self.opener.open(x, access, stream)
        except Exception as error:
            return fields, error

    def open_table(self, table: Any) -> tuple[dict[str, Any], list[Any]]:
        """Describe and open a table to read."""
        try:
            fields, buffers = tables.split(table)
            return fields, self.open_parts(buffers, "read")
        except Exception as error:
            return {}, [error]

    def open_parts(self, buffers: list[_core.Buffer], access: str) -> list[Bytes]:
        """Open the buffers of a table, all or none."""
        opened: list[Bytes] = []
        try:
            for buffer in buffers:
                opened.append(self.opener.open(buffer, access))
        except Exception as error:
            close(opened, error)
            raise
        return opened

    def leave(self, in_flight: Any) -> None:
        """Tell all ranks that this rank has left the communicator."""
        text = pack({"finished": self.finished})
        for rank in range(self.size):
            if rank != self.rank:
                kept.append(self.own_headers.Isend([text, len(text), MPI.BYTE], rank, _GOODBYE))
        if in_flight is not None:
            kept.append(in_flight)

    def send_text(self, comm: Any, fields: dict[str, Any], dest: int, tag: int) -> Steps:
        """Send a header."""
        text = pack(fields)
        yield Completion(self, comm.Isend([text, len(text), MPI.BYTE], dest, tag), dest)

    def receive_text(self, comm: Any, source: int, tag: int) -> Steps:
        """Receive a header. Returns its fields and the rank that sent it."""
        arrival = _Arrival(self, comm, source, tag)
        try:
            yield arrival
            text, rank = arrival.take()
        finally:
            self.arrivals.remove(arrival)
        return unpack(text, rank), rank

    def check_left(self, peer: int | None) -> errors.Error | None:
        """Return an error if a rank that a wait needs has left: one rank, any rank, or all ranks of a collective."""
        while (message := self.own_headers.Improbe(MPI.ANY_SOURCE, _GOODBYE, status := MPI.Status())) is not None:
            text = bytearray(status.Get_count(MPI.BYTE))
            message.Recv([text, MPI.BYTE])
            self._left[status.Get_source()] = unpack(bytes(text), status.Get_source())["finished"]
        if peer is None:
            gone = [rank for rank, finished in self._left.items() if finished < self.begun]
        elif peer == MPI.ANY_SOURCE:
            gone = list(self._left) if len(self._left) == self.size - 1 else []
        else:
            gone = [peer] if peer in self._left else []
        if not gone:
            return None
        return failure(
            errors.NotFoundError,
            f"rank {self.rank} waits for rank {gone[0]}, which has left the communicator after {self._left[gone[0]]} collectives. "
            f"{len(self._left)} of {self.size} ranks have left. End this rank, or make a communicator of the other ranks.",
            rank=gone[0],
            left=len(self._left),
        )


def close(views: list[Bytes], error: BaseException | None) -> None:
    """End transfers of memory."""
    for view in views:
        view.close(error)


class Completion:
    """Returns whether a request of MPI is complete. Raises an error if a rank that it needs has left."""

    def __init__(self, ranks: Ranks, request: Any, peer: int | None) -> None:
        self._ranks, self._request, self._peer = ranks, request, peer
        self.count: int | None = None

    def __call__(self) -> bool:
        if self._test():
            return True
        left = self._ranks.check_left(self._peer)
        if left is None or self._test():
            return left is not None
        kept.append(self._request)
        raise left

    def cancel(self) -> None:
        """Cancel a receive that nothing will arrive for."""
        if self.count is None:
            self._request.Cancel()
            self._request.Wait()

    def _test(self) -> bool:
        status = MPI.Status()
        if self.count is None and self._request.Test(status):
            self.count = status.Get_count(MPI.BYTE)
        return self.count is not None


class _Arrival:
    """Returns whether a header has arrived. Raises an error if the rank that should send it has left."""

    def __init__(self, ranks: Ranks, comm: Any, source: int, tag: int) -> None:
        self._ranks, self._comm, self._source, self._tag = ranks, comm, source, tag
        self._message: Any = None
        self._status = MPI.Status()
        ranks.arrivals.append(self)

    def __call__(self) -> bool:
        if self._probe():
            return True
        left = self._ranks.check_left(self._source)
        if left is None or self._probe():
            return left is not None
        raise left

    def take(self) -> tuple[bytes, int]:
        """Receive the header. Returns its bytes and the rank that sent it."""
        text = bytearray(self._status.Get_count(MPI.BYTE))
        self._message.Recv([text, MPI.BYTE])
        return bytes(text), self._status.Get_source()

    def _probe(self) -> bool:
        """Look for the header. An earlier receive that fits the same headers comes first, as in MPI."""
        if self._message is None:
            arrivals = self._ranks.arrivals
            for earlier in arrivals[: arrivals.index(self)]:
                if earlier._message is None and self._fits(earlier) and not earlier._probe():
                    return False
            self._message = self._comm.Improbe(self._source, self._tag, self._status)
        return self._message is not None

    def _fits(self, other: _Arrival) -> bool:
        return (
            self._comm is other._comm
            and (self._source == other._source or MPI.ANY_SOURCE in (self._source, other._source))
            and (self._tag == other._tag or MPI.ANY_TAG in (self._tag, other._tag))
        )
