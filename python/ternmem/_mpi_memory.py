"""The memory of one transfer: bytes that MPI can use, in order with the work of streams.

Every class in this module has the same methods. ``fetch`` returns a piece that MPI reads, and ``room`` returns a piece
that MPI writes. Call ``store`` after MPI has written the piece. MPI may use a piece when ``is_ready`` of the piece returns
True. ``close`` ends the transfer, and later work on the memory comes after the transfer. A second call does nothing.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from . import _core, errors
from ._mpi_wire import failure

# Staged memory travels in pieces of this size, through two of them. Collectives use it for all memory, because all
# ranks must make the same calls.
PIECE_BYTES = 4 << 20

# An update reads too, and a read of bytes that were never written raises an error.
_uses: dict[str, tuple[Callable[..., _core.Use], ...]] = {
    "read": (_core.in_,),
    "write": (_core.out,),
    "update": (_core.inout, _core.in_),
}


class Piece(NamedTuple):
    """Bytes for one call of MPI."""

    memory: Callable[[], Any]
    is_ready: Callable[[], bool]


def _always() -> bool:
    return True


def mpi_reads_device_memory(device: _core.Device, module: str) -> bool:
    """Ask the MPI library that mpi4py has loaded whether it accepts addresses of this device."""
    if not device.spec.startswith("cuda") or "driver=" in device.spec:
        return False
    query = getattr(ctypes.CDLL(module), "MPIX_Query_cuda_support", None)
    return query is not None and query() == 1


def describe(x: Any) -> dict[str, Any]:
    """Return the dtype, the shape and the bytes of memory."""
    if not isinstance(x, _core.Buffer | _core.Array | _core.UnifiedBuffer | _core.ManagedBuffer):
        raise failure(
            errors.TypeMismatchError,
            f"MPI cannot use {type(x).__name__!r} as memory. Pass a Buffer, an Array, a UnifiedBuffer or a ManagedBuffer. "
            "Pass NumPy arrays to mpi4py.",
        )
    return {"dtype": str(x.dtype), "shape": list(x.shape), "bytes": x.nbytes}


def flat_bytes(buffer: _core.Buffer) -> _core.Buffer:
    """Return the bytes of a Buffer along one axis."""
    return buffer.reshape(buffer.size).view("uint8")


class ArrayBytes:
    """Memory of the host, in a NumPy array that its owner keeps leased."""

    is_staged = False

    def __init__(self, array: Any) -> None:
        self._bytes = array.reshape(-1).view(np.uint8)

    def fetch(self, slot: int, first: int, count: int) -> Piece:
        part = self._bytes[first : first + count]
        return Piece(lambda: part, _always)

    room = fetch

    def store(self, slot: int, first: int, count: int) -> None:
        pass

    def room_of_ranks(self, first: int, count: int, stride: int, ranks: int) -> tuple[Piece, int]:
        """Return room for the bytes [first, first + count) of each rank, and the distance between two ranks."""
        return self.room(0, first, stride * (ranks - 1) + count), stride

    def store_of_ranks(self, first: int, count: int, stride: int, ranks: int) -> None:
        pass

    def close(self, error: BaseException | None) -> None:
        pass


class NoBytes(ArrayBytes):
    """Stands for memory that failed during a transfer, so that the other ranks can finish their calls."""

    def __init__(self, size: int) -> None:
        self._scratch = np.zeros(min(size, PIECE_BYTES), np.uint8)

    def fetch(self, slot: int, first: int, count: int) -> Piece:
        return Piece(lambda: self._scratch[:count], _always)

    room = fetch

    def room_of_ranks(self, first: int, count: int, stride: int, ranks: int) -> tuple[Piece, int]:
        return self.room(0, 0, count * ranks), count


class LeasedBytes(ArrayBytes):
    """The host side of a UnifiedBuffer or a ManagedBuffer, under a lease."""

    def __init__(self, x: Any, access: str) -> None:
        lease = {"read": x.read_host, "write": x.discard_host, "update": x.rw_host}[access]()
        self._lease = lease
        super().__init__(lease.__enter__())

    def close(self, error: BaseException | None) -> None:
        lease, self._lease, self._bytes = self._lease, None, None
        if lease is not None and error is None:
            lease.close()
        elif lease is not None:
            lease.__exit__(type(error), error, None)


class RecordedBytes(ArrayBytes):
    """A Buffer in memory that MPI can use: host memory, or device memory if the MPI library accepts it.

    The use is recorded on a stream. The stream waits for earlier work, MPI waits for the stream, and later work on any
    stream waits for the end of the use.
    """

    def __init__(self, x: Any, access: str, stream: _core.Stream, address_to_memory: Callable[[int, int], Any] | None) -> None:
        self._buffer, self._access = x, access
        self._address_to_memory = address_to_memory
        # A lease of a UnifiedBuffer that updates the bytes checks that they were written, and allows no second one.
        uses = _uses[access][:1] if isinstance(x, _core.UnifiedBuffer) else _uses[access]
        self._recorder: _core.LaunchRecorder | None = _core.LaunchRecorder(stream, *(use(x) for use in uses))
        self._there = self._recorder.preflight()[0]
        self._mark = stream.mark()
        self._bytes = None

    def fetch(self, slot: int, first: int, count: int) -> Piece:
        return Piece(lambda: self._part(first, count), lambda: self._mark.is_done)

    room = fetch

    def close(self, error: BaseException | None) -> None:
        recorder, self._recorder, self._bytes = self._recorder, None, None
        if recorder is not None and error is None:
            recorder.commit()
        elif recorder is not None:
            recorder.__exit__(type(error), error, None)

    def _part(self, first: int, count: int) -> Any:
        if self._address_to_memory is not None:
            return self._address_to_memory(self._there.ptr + first, count)
        if self._bytes is None:
            flat = flat_bytes(self._buffer)
            self._bytes = np.asarray(flat) if self._access == "read" else flat.numpy()
        return self._bytes[first : first + count]


class StagedBytes:
    """Memory that only its device can use. Pieces of page-locked memory carry the bytes, in stream order."""

    is_staged = True
    _fetched: tuple[int, int, int] | None = None  # the piece that is in its lane already

    def __init__(self, buffer: _core.Buffer, stream: _core.Stream, access: str) -> None:
        self._buffer = flat_bytes(buffer)
        self._make_lanes(buffer.nbytes, stream)
        if access == "write":
            self._buffer.allocate(stream)
        else:
            # Bytes that were never written raise an error now, before any header travels.
            self._fetch(0, 0, min(buffer.nbytes, PIECE_BYTES))

    def fetch(self, slot: int, first: int, count: int) -> Piece:
        if self._fetched != (slot, first, count):
            self._fetch(slot, first, count)
        self._fetched = None
        return self._piece(slot, count)

    def room(self, slot: int, first: int, count: int) -> Piece:
        return self._piece(slot, count)

    def store(self, slot: int, first: int, count: int) -> None:
        self._copy_from(self._lanes[slot][:count], first)
        self._marks[slot] = self._stream.mark()

    def room_of_ranks(self, first: int, count: int, stride: int, ranks: int) -> tuple[Piece, int]:
        return self._piece(0, count * ranks), count

    def store_of_ranks(self, first: int, count: int, stride: int, ranks: int) -> None:
        for rank in range(ranks):
            self._copy_from(self._lanes[0][rank * count : (rank + 1) * count], first + rank * stride)
        self._marks[0] = self._stream.mark()

    def close(self, error: BaseException | None) -> None:
        pass

    def _make_lanes(self, nbytes: int, stream: _core.Stream) -> None:
        size = min(nbytes, PIECE_BYTES)
        slots = 2 if nbytes > size else 1
        self._stream = stream
        self._lanes = [_lane(size, stream.device) for _ in range(slots)]
        self._marks: list[_core.Mark | None] = [None] * slots

    def _copy_to(self, lane: _core.Buffer, first: int) -> None:
        lane.copy_from(self._buffer[first : first + lane.nbytes], self._stream)

    def _copy_from(self, lane: _core.Buffer, first: int) -> None:
        self._buffer[first : first + lane.nbytes].copy_from(lane, self._stream)

    def _fetch(self, slot: int, first: int, count: int) -> None:
        self._copy_to(self._lanes[slot][:count], first)
        self._marks[slot] = self._stream.mark()
        self._fetched = (slot, first, count)

    def _piece(self, slot: int, count: int) -> Piece:
        mark, lane = self._marks[slot], self._lanes[slot]
        return Piece(lambda: lane[:count].numpy(), lambda: mark is None or mark.is_done)


class LentRows:
    """Rows of a device lease, which another object keeps open."""

    def __init__(self, there: _core.DeviceArray, stream: _core.Stream, first: int = 0, rows: int | None = None) -> None:
        self._there, self.stream, self._first = there, stream, first
        self.shape = (there.shape[0] if rows is None else rows, *there.shape[1:])
        self._row_bytes = there.nbytes // there.shape[0] if there.shape[0] > 0 else 0

    def __getitem__(self, part: slice) -> LentRows:
        first, last, _ = part.indices(self.shape[0])
        return LentRows(self._there, self.stream, self._first + first, last - first)

    @property
    def fields(self) -> dict[str, Any]:
        """The description of the rows."""
        return {"dtype": str(self._there.dtype), "shape": list(self.shape), "bytes": self.nbytes}

    @property
    def nbytes(self) -> int:
        """The number of bytes."""
        return self.shape[0] * self._row_bytes

    @property
    def ptr(self) -> int:
        """The address of the first row."""
        return self._there.ptr + self._first * self._row_bytes


class DirectRows(ArrayBytes):
    """Rows of a device lease that MPI uses where they are."""

    def __init__(self, rows: LentRows, address_to_memory: Callable[[int, int], Any]) -> None:
        self._rows, self._address_to_memory = rows, address_to_memory
        self._mark = rows.stream.mark()

    def fetch(self, slot: int, first: int, count: int) -> Piece:
        return Piece(lambda: self._address_to_memory(self._rows.ptr + first, count), lambda: self._mark.is_done)

    room = fetch


class StagedRows(StagedBytes):
    """Rows of a device lease that travel through page-locked memory, on the stream of the lease."""

    def __init__(self, rows: LentRows) -> None:
        self._rows = rows
        self._make_lanes(rows.nbytes, rows.stream)

    def _copy_to(self, lane: _core.Buffer, first: int) -> None:
        with _core.LaunchRecorder(self._stream, _core.out(lane)) as (there,):
            self._stream.copy_bytes(there.ptr, self._rows.ptr + first, lane.nbytes)

    def _copy_from(self, lane: _core.Buffer, first: int) -> None:
        with _core.LaunchRecorder(self._stream, _core.in_(lane)) as (there,):
            self._stream.copy_bytes(self._rows.ptr + first, there.ptr, lane.nbytes)


def _lane(size: int, device: _core.Device) -> _core.Buffer:
    try:
        return _core.Buffer(size, "uint8", device, kind="pinned", contents="unspecified", tag="mpi").allocate()
    except errors.UnsupportedError:
        return _core.Buffer(size, "uint8", "host", contents="unspecified", tag="mpi").allocate()


def host_can_use(buffer: _core.Buffer) -> bool:
    """Return whether the host can use the memory of a Buffer where it is."""
    return buffer.kind != "device" or buffer.device.can("host_access")


Bytes = ArrayBytes | StagedBytes


class Opener:
    """Opens memory for transfers, in the way that suits the MPI of this process."""

    def __init__(self, module: str, address_to_memory: Callable[[int, int], Any]) -> None:
        self._module, self._address_to_memory = module, address_to_memory

    def is_direct(self, device: _core.Device) -> bool:
        """Return whether MPI can use memory of this device at its address."""
        return mpi_reads_device_memory(device, self._module)

    def open(self, x: Any, access: str, stream: Any = None) -> Bytes:
        """Open memory to ``'read'``, ``'write'`` or ``'update'``. Raises what a use of the memory raises."""
        if math.prod(x.shape) == 0:
            return ArrayBytes(np.empty(0, np.uint8))
        if isinstance(x, _core.UnifiedBuffer) and self.is_direct(x.default_device):
            return RecordedBytes(x, access, stream_of(x.default_device, stream), self._address_to_memory)
        if isinstance(x, _core.UnifiedBuffer | _core.ManagedBuffer):
            return LeasedBytes(x, access)
        buffer = x.buffer if isinstance(x, _core.Array) else x
        on = stream_of(buffer.device, stream)
        if host_can_use(buffer):
            return RecordedBytes(buffer, access, on, None)
        if self.is_direct(buffer.device):
            return RecordedBytes(buffer, access, on, self._address_to_memory)
        return StagedBytes(buffer, on, access)

    def open_rows(self, rows: LentRows) -> Bytes:
        """Open rows of a device lease."""
        if rows.nbytes == 0:
            return ArrayBytes(np.empty(0, np.uint8))
        return DirectRows(rows, self._address_to_memory) if self.is_direct(rows.stream.device) else StagedRows(rows)


def stream_of(device: _core.Device, stream: Any) -> _core.Stream:
    """Return the stream of a call: the default stream of the device unless the program names one."""
    if stream is None:
        return device.default_stream
    return stream if isinstance(stream, _core.Stream) else _core.Stream.borrow(stream, device)


def pieces(size: int, width: int) -> list[tuple[int, int, int]]:
    """Return the slot, the first byte and the number of bytes of each piece of whole elements."""
    longest = PIECE_BYTES // width * width
    return [(i % 2, first, min(longest, size - first)) for i, first in enumerate(range(0, size, longest))]
