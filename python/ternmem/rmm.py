"""RMM: a memory resource of RMM, and of the RAPIDS libraries, over a resource of Tern.

>>> import rmm
>>> import ternmem as tern
>>> import ternmem.rmm
>>> pool = tern.Pool("cuda:0")  # doctest: +SKIP
>>> rmm.mr.set_current_device_resource(ternmem.rmm.resource(pool))  # doctest: +SKIP

Memory is allocated and freed in the order of the stream that RMM passes. A refusal is a ``MemoryError`` with Tern's sentence,
which RMM turns into ``rmm::out_of_memory`` in C++. RMM calls Python for each allocation.
"""

from __future__ import annotations

from typing import Any

from . import _core, c, errors, libraries

try:
    import rmm
except ImportError as _missing:
    raise ImportError(f"ternmem.rmm needs RMM, which cannot be imported: {_missing}. Install 'rmm-cu12' or 'rmm-cu13'.") from _missing

__all__ = ["resource"]


def _handle_of(stream: Any) -> int:
    return int(stream.__cuda_stream__()[1]) if stream is not None else 0


def resource(resource: _core.Resource, tag: str = "rmm") -> Any:
    """Return an ``rmm.mr.CallbackMemoryResource`` over a resource.

    Parameters
    ----------
    resource : Resource
    tag : str
        Names the memory in reports.
    """
    handle = c.Handle(resource, tag)

    def allocate(bytes: int, stream: Any = None) -> int:
        try:
            return c.allocate(handle, bytes, _handle_of(stream))
        except errors.OutOfMemoryError as error:
            raise type(error)(libraries.explained(str(error), resource)) from error

    def deallocate(address: int, bytes: int, stream: Any = None) -> None:
        c.free(address, _handle_of(stream))

    return rmm.mr.CallbackMemoryResource(allocate, deallocate)
