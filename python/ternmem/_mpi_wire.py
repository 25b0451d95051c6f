"""What ranks tell each other before bytes travel: descriptions of memory, and errors."""

from __future__ import annotations

import json
import re
from typing import Any

from . import errors

# The first bytes of every header. The digit changes with the format.
MAGIC = b"TERNMPI1"
# What each rank tells all others after a disagreement.
BLOCK_BYTES = 4096
_longest_text = 1500
_own_exceptions: tuple[tuple[type[BaseException], type[errors.Error]], ...] = (
    (MemoryError, errors.OutOfMemoryError),
    (NotImplementedError, errors.UnsupportedError),
    (TypeError, errors.TypeMismatchError),
    (ValueError, errors.InvalidArgumentError),
)
_units = ("B", "KiB", "MiB", "GiB", "TiB")


def pack(fields: dict[str, Any]) -> bytes:
    """Return the bytes of a header."""
    return MAGIC + json.dumps(fields, sort_keys=True).encode()


def unpack(data: bytes, rank: int) -> dict[str, Any]:
    """Return the fields of a header. Raises BadFormatError if it is not one of this version."""
    if not data.startswith(MAGIC):
        found = data[: len(MAGIC)]
        raise failure(
            errors.BadFormatError,
            f"a header of {len(data)} B from rank {rank} starts with {found!r} and not with {MAGIC!r}. "
            "Use the same version of Tern on all ranks.",
            rank=rank,
        )
    fields: dict[str, Any] = json.loads(data[len(MAGIC) :])
    return fields


def failure(kind: type[errors.Error], text: str, **numbers: Any) -> errors.Error:
    """Return an error with a code, and with its numbers as attributes."""
    made = kind(text)
    words = re.findall("[A-Z][a-z]*", kind.__name__)[:-1]
    made.code = "_".join(words).lower()
    for name, number in numbers.items():
        setattr(made, name, number)
    return made


def fields_of_error(error: BaseException) -> dict[str, Any]:
    """Return what another rank needs to raise the same error."""
    kind: type[Any] = next((ours for theirs, ours in _own_exceptions if isinstance(error, theirs)), errors.Error)
    if isinstance(error, errors.Error):
        kind = type(error)
    numbers = {name: value for name, value in vars(error).items() if isinstance(value, int | str)}
    numbers.pop("code", None)
    numbers.pop("site", None)
    return {"class": kind.__name__, "text": str(error)[:_longest_text], "numbers": numbers}


def error_of(fields: dict[str, Any], prefix: str = "", **numbers: Any) -> errors.Error:
    """Return the error that another rank described."""
    kind = getattr(errors, fields["class"], errors.Error)
    return failure(kind, prefix + fields["text"], **{**fields["numbers"], **numbers})


def bytes_text(count: int) -> str:
    """Return a number of bytes as Tern's messages show it."""
    if count < 1024:
        return f"{count} B"
    power = min((count.bit_length() - 1) // 10, len(_units) - 1)
    return f"{count / 1024**power:.1f} {_units[power]}"


def text_of(fields: dict[str, Any]) -> str:
    """Return a description of memory as text."""
    if "columns" in fields:
        return f"a table of {len(fields['columns'])} columns and {fields['rows']} rows, {bytes_text(fields['bytes'])}"
    shape = tuple(fields["shape"])
    return f"{fields['dtype']} {shape}, {bytes_text(fields['bytes'])}"


def mismatch(here: dict[str, Any], there: dict[str, Any]) -> type[errors.Error] | None:
    """Return the class of the error for two descriptions of memory, or None if they agree."""
    if ("columns" in here) != ("columns" in there) or here.get("dtype") != there.get("dtype"):
        return errors.TypeMismatchError
    if here.get("bytes") != there.get("bytes"):
        return errors.SizeMismatchError
    return errors.ShapeMismatchError if here.get("shape") != there.get("shape") else None
