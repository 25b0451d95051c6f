"""MPI for Tern's memory: sends, receives, collectives and halos of buffers and tables, in stream order.

>>> from ternmem import mpi  # doctest: +SKIP
>>> comm = mpi.Communicator()  # doctest: +SKIP
>>> comm.allreduce(buffer)  # doctest: +SKIP

The module needs mpi4py: ``pip install 'ternmem[mpi]'``.
"""

from __future__ import annotations

import atexit
import weakref
from typing import Any

from . import _core, errors
from ._mpi_requests import Progress, Request, Steps
from ._mpi_wire import failure

try:
    from mpi4py import MPI
except (ImportError, RuntimeError) as error:  # mpi4py raises RuntimeError if it finds no MPI library
    raise ImportError(
        f"ternmem.mpi needs mpi4py and an MPI library, and mpi4py cannot be imported: {error}. Install mpi4py with "
        "pip install 'ternmem[mpi]', and the library with the package manager of the system, for example openmpi-bin."
    ) from error

from ._mpi_collectives import Collectives
from ._mpi_messages import Messages
from ._mpi_ranks import Ranks

__all__ = ["ANY_SOURCE", "ANY_TAG", "Communicator", "Request"]

ANY_SOURCE: int = MPI.ANY_SOURCE
ANY_TAG: int = MPI.ANY_TAG


class Communicator:
    """A group of ranks that exchange Tern's memory: Buffer, Array, UnifiedBuffer, ManagedBuffer and Table.

    Every call waits for work that was queued on the memory earlier, and later work on the memory waits for the call.
    Ranks compare dtypes and shapes before bytes travel. If these differ, or if one rank fails, each rank of the call
    raises an error. All ranks construct a communicator together. Use a communicator from one thread at a time.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm, optional
        Has the ranks of the new communicator; by default all ranks of the program. Messages do not mix with those of
        ``comm``.
    timeout : float, optional
        Seconds after which a wait raises TimeoutError. By default waits have no limit.
    """

    def __init__(self, comm: Any = None, *, timeout: float | None = None) -> None:
        self._ranks = Ranks(MPI.COMM_WORLD if comm is None else comm)
        self._messages, self._collectives = Messages(self._ranks), Collectives(self._ranks)
        self._progress = Progress(timeout)
        self._is_open = True
        _open_communicators.add(self)

    @property
    def rank(self) -> int:
        """The number of this process, from 0."""
        return self._ranks.rank

    @property
    def size(self) -> int:
        """The number of ranks."""
        return self._ranks.size

    def is_direct(self, device: _core.Device) -> bool:
        """Whether MPI uses memory of this device directly. If not, bytes travel through page-locked memory.

        For a CUDA device, calls MPIX_Query_cuda_support() of the MPI library.
        """
        return device.is_host or device.can("host_access") or self._ranks.opener.is_direct(device)

    def send(self, x: Any, dest: int, tag: int = 0, *, stream: Any = None) -> None:
        """Send memory or a Table to a rank. When the call returns, the memory may be written.

        The call returns only after the receiver has accepted the message.

        Parameters
        ----------
        x : Buffer, Array, UnifiedBuffer, ManagedBuffer or Table
        dest : int
        tag : int
            From 0. A receive finds the message by rank and tag.
        stream : Stream, optional
            The stream that uses the memory; by default the default stream of the device.
        """
        self.isend(x, dest, tag, stream=stream).wait()

    def isend(self, x: Any, dest: int, tag: int = 0, *, stream: Any = None) -> Request:
        """Start a send. Do not write the memory before the request is done."""
        self._check_rank("dest", dest)
        self._check_tag(tag)
        if isinstance(x, _core.Table):
            steps = self._messages.send_table(x, dest, tag)
        else:
            steps = self._messages.send(x, self._ranks.try_open(x, "read", stream), dest, tag)
        return self._start(steps, f"a send to rank {dest} with tag {tag}")

    def recv(self, x: Any, source: int = ANY_SOURCE, tag: int = ANY_TAG, *, stream: Any = None) -> Any:
        """Receive into memory of the same dtype and shape as the sent memory. Returns the memory."""
        return self.irecv(x, source, tag, stream=stream).wait()

    def irecv(self, x: Any, source: int = ANY_SOURCE, tag: int = ANY_TAG, *, stream: Any = None) -> Request:
        """Start a receive. Do not use the memory before the request is done."""
        self._check_source(source, tag)
        opened = self._ranks.try_open(x, "write", stream)
        return self._start(self._messages.receive(x, opened, source, tag), _text_of_receive(source, tag))

    def recv_table(self, source: int = ANY_SOURCE, tag: int = ANY_TAG, *, device: Any = None) -> _core.Table:
        """Receive a Table in new memory on a device; by default on the current device."""
        self._check_source(source, tag)
        steps = self._messages.receive_table(device, source, tag)
        made: _core.Table = self._start(steps, _text_of_receive(source, tag)).wait()
        return made

    def bcast(self, x: Any, root: int = 0, *, stream: Any = None) -> Any:
        """Copy the memory of the rank ``root`` to the memory of all ranks. Returns the memory."""
        self._check_rank("root", root)
        opened = self._ranks.try_open(x, "read" if root == self.rank else "write", stream)
        return self._collect(self._collectives.broadcast(x, opened, root), f"a broadcast from rank {root}").wait()

    def bcast_table(self, table: _core.Table | None = None, root: int = 0, *, device: Any = None) -> _core.Table:
        """Copy a Table of the rank ``root`` to new memory of all other ranks. Returns the table.

        Parameters
        ----------
        table : Table, optional
            Only ``root`` passes it.
        root : int
        device : Device or str, optional
            Where the other ranks allocate the table; by default the current device.
        """
        self._check_rank("root", root)
        steps = self._collectives.broadcast_table(table, root, device)
        made: _core.Table = self._collect(steps, f"a broadcast of a table from rank {root}").wait()
        return made

    def allreduce(self, x: Any, op: str = "sum", *, stream: Any = None) -> Any:
        """Combine the elements of all ranks, in place: each rank gets the results. Returns the memory.

        Parameters
        ----------
        x : Buffer, Array, UnifiedBuffer or ManagedBuffer
        op : {'sum', 'prod', 'min', 'max', 'band', 'bor', 'bxor'}
        stream : Stream, optional
        """
        return self.iallreduce(x, op, stream=stream).wait()

    def iallreduce(self, x: Any, op: str = "sum", *, stream: Any = None) -> Request:
        """Start an all-reduce. Do not use the memory before the request is done. Collectives run one after the other."""
        opened = self._ranks.try_open(x, "update", stream)
        return self._collect(self._collectives.reduce(x, opened, op), f"an all-reduce with {op!r}")

    def allgather(self, x: Any, out: Any, *, stream: Any = None) -> Any:
        """Collect the memory ``x`` of all ranks in ``out``, in the order of the ranks. Returns ``out``.

        Parameters
        ----------
        x : Buffer, Array, UnifiedBuffer or ManagedBuffer
        out : Buffer, Array, UnifiedBuffer or ManagedBuffer
            Of the same dtype, with the elements of all ranks: for example of the shape ``(size, *x.shape)``.
        stream : Stream, optional
        """
        opened = self._ranks.try_open(x, "read", stream)
        target = self._ranks.try_open(out, "write", stream)
        return self._collect(self._collectives.gather(opened, out, target), "an all-gather").wait()

    def exchange_halo(
        self, x: Any, width: int = 1, *, before: int | None = None, after: int | None = None, stream: Any = None
    ) -> Any:
        """Exchange rows with the neighbours of a grid that is split along its first axis. Returns the memory.

        The first and the last ``width`` rows of ``x`` are copies of rows of the neighbours. Each rank sends the
        ``width`` rows next to these copies, and receives into the copies.

        Parameters
        ----------
        x : Buffer, UnifiedBuffer or ManagedBuffer
            With at least ``3 * width`` rows.
        width : int
        before, after : int, optional
            The ranks with the rows before and after those of this rank. None at an end of the grid.
        stream : Stream, optional
        """
        return self.iexchange_halo(x, width, before=before, after=after, stream=stream).wait()

    def iexchange_halo(
        self, x: Any, width: int = 1, *, before: int | None = None, after: int | None = None, stream: Any = None
    ) -> Request:
        """Start an exchange of rows with the neighbours. Do not use the memory before the request is done."""
        for name, neighbour in (("before", before), ("after", after)):
            if neighbour is not None:
                self._check_rank(name, neighbour)
        steps = self._messages.exchange(x, width, before, after, stream)
        return self._start(steps, f"a halo exchange with the ranks {before} and {after}")

    def close(self) -> None:
        """Leave the communicator. Ranks that wait for this rank raise NotFoundError.

        Raises StreamMisuseError if requests are in flight, but leaves nevertheless. The exit of the program closes a
        communicator too.
        """
        if not self._is_open:
            return
        self._is_open = False
        _open_communicators.discard(self)
        in_flight = self._progress.count
        # MPI may still write the memory of requests in flight, so they live until the end of the process.
        self._ranks.leave(self._progress if in_flight > 0 else None)
        if in_flight > 0:
            raise failure(
                errors.StreamMisuseError,
                f"rank {self.rank} leaves with {in_flight} requests in flight. Wait for each request first.",
                in_flight=in_flight,
            )

    def __enter__(self) -> Communicator:
        return self

    def __exit__(self, kind: Any, value: Any, traceback: Any) -> None:
        try:
            self.close()
        except errors.StreamMisuseError:
            if kind is None:
                raise

    def __repr__(self) -> str:
        return f"Communicator(rank={self.rank}, size={self.size}, in_flight={self._progress.count})"

    def _start(self, steps: Steps, what: str, *, is_collective: bool = False) -> Request:
        if not self._is_open:
            steps.close()
            raise failure(
                errors.InvalidArgumentError,
                f"{what} needs an open communicator, and this communicator is closed. Make a new one on all ranks.",
            )
        request = Request(self._progress, steps, f"{what}, on rank {self.rank} of {self.size},", is_collective)
        self._progress.advance()
        return request

    def _collect(self, steps: Steps, what: str) -> Request:
        return self._start(self._collectives.counted(steps), what, is_collective=True)

    def _check_rank(self, name: str, rank: int) -> None:
        if not 0 <= rank < self.size:
            raise failure(
                errors.OutOfBoundsError,
                f"{name} is {rank}, and the communicator has {self.size} ranks. Use 0 to {self.size - 1}.",
                rank=rank,
                size=self.size,
            )

    def _check_source(self, source: int, tag: int) -> None:
        if source != ANY_SOURCE:
            self._check_rank("source", source)
        if tag != ANY_TAG:
            self._check_tag(tag)

    def _check_tag(self, tag: int) -> None:
        last = self._ranks.last_tag
        if not 0 <= tag <= last:
            raise failure(errors.OutOfBoundsError, f"tag is {tag}. Use 0 to {last}.", tag=tag, last_tag=last)


def _text_of_receive(source: int, tag: int) -> str:
    ranks = "any rank" if source == ANY_SOURCE else f"rank {source}"
    return f"a receive from {ranks} with {'any tag' if tag == ANY_TAG else f'tag {tag}'}"


_open_communicators: weakref.WeakSet[Communicator] = weakref.WeakSet()


@atexit.register
def _leave_at_exit() -> None:
    """Leave before mpi4py ends MPI: other ranks may wait for this rank."""
    for communicator in list(_open_communicators):
        if not MPI.Is_finalized():
            communicator.__exit__(SystemExit, None, None)
