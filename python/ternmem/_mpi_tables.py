"""Tables as a description and a list of buffers, and back."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import _core, errors
from ._mpi_wire import failure

_parts = ("values", "validity", "offsets")


def split(table: Any) -> tuple[dict[str, Any], list[_core.Buffer]]:
    """Return the description of a table, and its buffers in the order of the description.

    The buffers are a copy: they have no rows outside of the table, and later work may write the table.
    """
    if not isinstance(table, _core.Table):
        raise failure(errors.TypeMismatchError, f"{type(table).__name__!r} is not a Table. Pass a Table.")
    rows = table.rows_host()
    compact = _core.Table.concat([table.slice(0, rows)])
    columns, buffers = [], []
    for field, column in zip(compact.schema.fields, compact.columns, strict=True):
        described = {
            "name": field.name,
            "type": [field.type.kind, field.type.unit, field.type.zone],
            "nullable": field.nullable,
            "metadata": field.metadata,
            "null_count": column.null_count,
        }
        for part in _parts:
            buffer = getattr(column, part)
            described[part] = None if buffer is None else [str(buffer.dtype), buffer.size]
            if buffer is not None and buffer.size > 0:
                buffers.append(buffer)
        columns.append(described)
    total = sum(buffer.nbytes for buffer in buffers)
    return {"columns": columns, "rows": rows, "bytes": total, "metadata": compact.schema.metadata}, buffers


def make(fields: dict[str, Any], device: Any) -> tuple[_core.Table, list[_core.Buffer]]:
    """Allocate the table of a description on a device. Returns it with its buffers, to be filled."""
    schema, columns, buffers = [], [], []
    for described in fields["columns"]:
        made: dict[str, _core.Buffer | None] = {}
        for part in _parts:
            made[part] = None
            if described[part] is not None:
                dtype, size = described[part]
                buffer = _core.Buffer(size, dtype, device, contents="unspecified", tag="mpi table")
                made[part] = buffer
                if size > 0:
                    buffers.append(buffer.allocate())
        kind = _type_of(*described["type"])
        schema.append(_core.Field(described["name"], kind, described["nullable"], described["metadata"] or None))
        values = made.pop("values")
        assert values is not None
        columns.append(_core.Column.over(kind, fields["rows"], values, null_count=described["null_count"], **made))
    return _core.Table(_core.Schema(schema, fields["metadata"] or None), columns, rows=fields["rows"]), buffers


def _type_of(kind: str, unit: str, zone: str) -> _core.LogicalType:
    if kind == "timestamp":
        return _core.LogicalType.timestamp(unit, zone)
    if kind in ("time", "duration"):
        return _core.LogicalType.time(unit) if kind == "time" else _core.LogicalType.duration(unit)
    return _core.LogicalType(kind)


def sizes(fields: dict[str, Any]) -> list[int]:
    """Return the bytes of each buffer of a description, in order."""
    listed = [described[part] for described in fields["columns"] for part in _parts if described[part] is not None]
    return [size * np.dtype(dtype).itemsize for dtype, size in listed if size > 0]
