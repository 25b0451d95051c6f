"""Collectives: all ranks take part, in one order.

A collective starts with an agreement: the ranks exchange three numbers, and, if they disagree, their descriptions.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from mpi4py import MPI

from . import _mpi_memory, errors
from . import _mpi_tables as tables
from ._mpi_memory import Bytes, NoBytes, pieces
from ._mpi_ranks import Completion, Opened, Ranks, close
from ._mpi_requests import Steps
from ._mpi_wire import BLOCK_BYTES, error_of, failure, fields_of_error, mismatch, pack, text_of, unpack

_operations = {
    "sum": MPI.SUM, "prod": MPI.PROD, "min": MPI.MIN, "max": MPI.MAX,
    "band": MPI.BAND, "bor": MPI.BOR, "bxor": MPI.BXOR,
}  # fmt: skip
_types = {
    "int8": MPI.INT8_T, "int16": MPI.INT16_T, "int32": MPI.INT32_T, "int64": MPI.INT64_T,
    "uint8": MPI.UINT8_T, "uint16": MPI.UINT16_T, "uint32": MPI.UINT32_T, "uint64": MPI.UINT64_T,
    "float32": MPI.FLOAT, "float64": MPI.DOUBLE, "complex64": MPI.C_FLOAT_COMPLEX, "complex128": MPI.C_DOUBLE_COMPLEX,
}  # fmt: skip
_not_of_floats = ("band", "bor", "bxor")
_not_of_complex = (*_not_of_floats, "min", "max")


class Collectives:
    """The collectives of one rank."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks

    def counted(self, steps: Steps) -> Steps:
        """Count a collective, so that other ranks know whether a rank that leaves took part."""
        self._ranks.begun += 1
        try:
            result = yield from steps
        except errors.NotFoundError as error:
            self._ranks.finished += not hasattr(error, "left")
            raise
        except Exception:
            self._ranks.finished += 1
            raise
        self._ranks.finished += 1
        return result

    def broadcast(self, x: Any, opened: Opened, root: int) -> Steps:
        """Copy the memory of one rank to that of all ranks. Returns x."""
        fields, view = opened
        yield from self._collect({"call": "bcast", "root": root, **fields}, view, 1, root)
        return x

    def broadcast_table(self, table: Any, root: int, device: Any) -> Steps:
        """Copy a table of one rank to new memory of all others. Returns the table."""
        fields: dict[str, Any] = {}
        views: list[Any] = []
        if self._ranks.rank == root:
            fields, views = self._ranks.open_table(table)
        failed = next((view for view in views if isinstance(view, Exception)), None)
        yield from self._agree({"call": "bcast_table", "root": root}, failed)
        fields = yield from self._broadcast_fields(fields, root)
        error: Exception | None = None
        if self._ranks.rank != root:
            try:
                table, buffers = tables.make(fields, device)
                views = self._ranks.open_parts(buffers, "write")
            except Exception as raised:
                error = raised
        try:
            yield from self._agree({"call": "bcast_table"}, error)
            for view, size in zip(views, tables.sizes(fields), strict=True):
                yield from self._collect({"call": "bcast_table", "bytes": size}, view, 1, root)
        except BaseException as raised:
            close(views, raised)
            raise
        return table

    def reduce(self, x: Any, opened: Opened, op: Any) -> Steps:
        """Combine the elements of all ranks in place. Returns x."""
        fields, view = opened
        refused = None if isinstance(view, Exception) else _why_not_reducible(fields["dtype"], op)
        if refused is not None:
            assert not isinstance(view, Exception)
            view.close(refused)
            view = refused
        yield from self._collect({"call": "allreduce", "op": str(op), **fields}, view, _width(fields), None)
        return x

    def gather(self, opened: Opened, out: Any, target: Opened) -> Steps:
        """Collect the memory of all ranks. Returns out."""
        fields, view = opened
        out_fields, out_view = target
        views = [one for one in (view, out_view) if not isinstance(one, Exception)]
        error = next((one for one in (view, out_view) if isinstance(one, Exception)), None)
        if error is None:
            error = self._why_not_gathered(fields, out_fields)
        try:
            is_staged = any(one.is_staged for one in views)
            is_staged = yield from self._agree({"call": "allgather", **fields}, error, is_staged)
            assert not isinstance(view, Exception) and not isinstance(out_view, Exception)
            error = yield from self._gather_bytes(view, out_view, fields["bytes"])
            if is_staged:
                yield from self._agree({"call": "allgather"}, error)
        except BaseException as raised:
            close(views, raised)
            raise
        close(views, None)
        return out

    def _collect(self, fields: dict[str, Any], view: Bytes | Exception, width: int, root: int | None) -> Steps:
        """Broadcast from root, or reduce if there is none, in pieces of whole elements."""
        failed = view if isinstance(view, Exception) else None
        opened: Bytes = NoBytes(0) if isinstance(view, Exception) else view
        try:
            is_staged = yield from self._agree(fields, failed, opened.is_staged)
            error: Exception | None = None
            reads, writes = root in (None, self._ranks.rank), root != self._ranks.rank
            now = opened
            for _, first, count in pieces(fields["bytes"], width):
                try:
                    piece = now.fetch(0, first, count) if reads else now.room(0, first, count)
                except Exception as raised:
                    # The other ranks make their calls, so this one must make them too.
                    error, now = error or raised, NoBytes(fields["bytes"])
                    piece = now.room(0, first, count)
                yield piece.is_ready
                memory = piece.memory()
                if root is None:
                    what = [memory, count // width, _types[fields["dtype"]]]
                    request = self._ranks.bodies.Iallreduce(MPI.IN_PLACE, what, _operations[fields["op"]])
                else:
                    request = self._ranks.bodies.Ibcast([memory, count, MPI.BYTE], root)
                yield Completion(self._ranks, request, None)
                if writes:
                    try:
                        now.store(0, first, count)
                    except Exception as raised:
                        error, now = error or raised, NoBytes(fields["bytes"])
            if is_staged:
                yield from self._agree({"call": fields["call"]}, error)
            elif error is not None:
                raise error
        except BaseException as raised:
            opened.close(raised)
            raise
        opened.close(None)

    def _gather_bytes(self, view: Bytes, out: Bytes, size: int) -> Steps:
        """Gather the bytes of all ranks in pieces. Returns the error of this rank, if it failed."""
        error: Exception | None = None
        longest = max(1, _mpi_memory.PIECE_BYTES // self._ranks.size)
        for first in range(0, size, longest):
            count = min(longest, size - first)
            try:
                piece = view.fetch(0, first, count)
                room, extent = out.room_of_ranks(first, count, size, self._ranks.size)
            except Exception as raised:
                error, view, out = error or raised, NoBytes(count), NoBytes(count * self._ranks.size)
                piece, (room, extent) = view.fetch(0, 0, count), out.room_of_ranks(0, count, size, self._ranks.size)
            yield piece.is_ready
            yield room.is_ready
            kind = MPI.BYTE.Create_vector(1, count, count).Create_resized(0, extent).Commit()
            request = self._ranks.bodies.Iallgather([piece.memory(), count, MPI.BYTE], [room.memory(), 1, kind])
            yield Completion(self._ranks, request, None)
            kind.Free()
            try:
                out.store_of_ranks(first, count, size, self._ranks.size)
            except Exception as raised:
                error, view, out = error or raised, NoBytes(count), NoBytes(count * self._ranks.size)
        return error

    def _agree(self, fields: dict[str, Any], error: Exception | None, is_staged: bool = False) -> Steps:
        """Raise an error on every rank unless all ranks have the same description and none has failed.

        Returns whether memory of one rank is staged: then copies may fail later, and the ranks agree once more.
        """
        mine = dict(fields) if error is None else {"error": fields_of_error(error), "rank": self._ranks.rank}
        text = pack(mine)
        digest = int.from_bytes(hashlib.sha256(text).digest()[:7], "big")
        numbers = np.array([digest, -digest, is_staged], np.int64)
        yield Completion(self._ranks, self._ranks.bodies.Iallreduce(MPI.IN_PLACE, [numbers, 3, MPI.INT64_T], MPI.MAX), None)
        if numbers[0] == -numbers[1] and error is None:
            return bool(numbers[2])
        if self._ranks.size > 1:
            blocks = np.zeros((self._ranks.size, BLOCK_BYTES), np.uint8)
            block = np.zeros(BLOCK_BYTES, np.uint8)
            if len(text) > BLOCK_BYTES:
                too_long = Exception("the description of the call is too long")
                text = pack({"error": fields_of_error(too_long), "rank": self._ranks.rank})
            block[: len(text)] = np.frombuffer(text, np.uint8)
            yield Completion(self._ranks, self._ranks.bodies.Iallgather([block, MPI.BYTE], [blocks, MPI.BYTE]), None)
            if error is None:
                ranks = [unpack(bytes(one).rstrip(b"\0"), rank) for rank, one in enumerate(blocks)]
                raise _disagreement(ranks)
        assert error is not None
        raise error

    def _broadcast_fields(self, fields: dict[str, Any], root: int) -> Steps:
        text = pack(fields) if self._ranks.rank == root else b""
        length = np.array([len(text)], np.int64)
        yield Completion(self._ranks, self._ranks.bodies.Ibcast([length, 1, MPI.INT64_T], root), None)
        carried = np.frombuffer(text, np.uint8).copy() if self._ranks.rank == root else np.empty(int(length[0]), np.uint8)
        yield Completion(self._ranks, self._ranks.bodies.Ibcast([carried, carried.size, MPI.BYTE], root), None)
        return unpack(carried.tobytes(), root)

    def _why_not_gathered(self, fields: dict[str, Any], out: dict[str, Any]) -> Exception | None:
        is_same = fields["dtype"] == out["dtype"]
        if is_same and out["bytes"] == fields["bytes"] * self._ranks.size:
            return None
        return failure(
            errors.SizeMismatchError if is_same else errors.TypeMismatchError,
            f"{self._ranks.size} ranks cannot gather {text_of(fields)} each into {text_of(out)}. Use the same dtype for the "
            f"result, and {self._ranks.size} times the elements.",
            ranks=self._ranks.size,
            bytes=fields["bytes"],
            out_bytes=out["bytes"],
        )


def _width(fields: dict[str, Any]) -> int:
    kind = _types.get(fields.get("dtype", ""))
    return 1 if kind is None else int(kind.Get_size())


def _why_not_reducible(dtype: str, op: Any) -> errors.Error | None:
    if op not in tuple(_operations):
        return failure(errors.InvalidArgumentError, f"op is {op!r}. Use one of {', '.join(map(repr, _operations))}.")
    refused = _not_of_complex if dtype.startswith("complex") else _not_of_floats if dtype.startswith("float") else ()
    if dtype in _types and op not in refused:
        return None
    return failure(
        errors.UnsupportedError,
        f"MPI cannot combine elements of {dtype} with {op!r}. Convert the elements first (to integers for band, bor and bxor, "
        "otherwise for example to float32).",
    )


def _disagreement(ranks: list[dict[str, Any]]) -> errors.Error:
    """Return the error of a collective on the ranks that did not fail themselves."""
    for rank, fields in enumerate(ranks):
        if "error" in fields:
            return error_of(fields["error"], f"rank {rank} could not take part: ", rank=rank)
    for name in ("call", "root", "op", "dtype", "shape"):
        first = ranks[0].get(name)
        rank = next((rank for rank, fields in enumerate(ranks) if fields.get(name) != first), 0)
        if rank > 0:
            break
    else:
        return failure(
            errors.SizeMismatchError,
            "the ranks of a collective describe their memory in different ways. Use one version of Tern on all ranks.",
        )
    kind: type[errors.Error] = errors.InvalidArgumentError
    if name in ("dtype", "shape"):
        kind = mismatch(ranks[0], ranks[rank]) or errors.InvalidArgumentError
    texts = [f"{fields['call']} of {text_of(fields)}" if "dtype" in fields else str(fields["call"]) for fields in (ranks[0], ranks[rank])]
    return failure(
        kind,
        f"all ranks of a collective must use the same {name}: rank 0 has {first!r} in {texts[0]}, and rank {rank} has "
        f"{ranks[rank].get(name)!r} in {texts[1]}.",
        rank=rank,
        expected_bytes=ranks[0].get("bytes", 0),
        actual_bytes=ranks[rank].get("bytes", 0),
    )
