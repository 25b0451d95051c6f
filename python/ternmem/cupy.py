"""CuPy: arrays in Tern's memory.

>>> import cupy
>>> import ternmem as tern
>>> import ternmem.cupy
>>> pool = tern.BudgetResource(tern.Pool("cuda:0"), tern.Budget("arrays", 4 << 30))  # doctest: +SKIP
>>> with ternmem.cupy.use(pool):  # doctest: +SKIP
...     x = cupy.ones(1000)

Memory is allocated and freed in the order of CuPy's current stream. A refusal is CuPy's ``OutOfMemoryError``, which is a
``MemoryError``, with Tern's sentence.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

from . import _core, c, errors, libraries

try:
    import cupy
    from cupy.cuda import get_current_stream
    from cupy.cuda.device import get_device_id
    from cupy.cuda.memory import CFunctionAllocatorMemory, MemoryPointer, OutOfMemoryError
except ImportError as _missing:
    raise ImportError(f"ternmem.cupy needs CuPy, which cannot be imported: {_missing}. Install 'cupy-cuda12x' or "
                      "'cupy-cuda13x'.") from _missing

__all__ = ["enable", "statistics", "use"]


# --- Allocators. CuPy calls C functions if every device has a resource, and a Python function otherwise.


def _refuse(bytes: int, ordinal: int, status: int, why: str) -> None:
    """Raise the exception for a request that failed."""
    resource = c.plugin(c.CUPY, ordinal)
    error = c.error_of(status, why)
    if resource is not None and isinstance(error, errors.OutOfMemoryError):
        raise _out_of_memory(why, bytes, resource)
    raise error


@functools.cache
def _fast() -> Any:
    functions = _core.cupy_functions(cupy.cuda.stream.__pyx_capi__["get_current_stream_ptr"], _refuse)
    return cupy.cuda.CFunctionAllocator(0, *functions, None)


def _is_on_every_device() -> bool:
    count = int(cupy.cuda.runtime.getDeviceCount())
    return all(c.plugin(c.CUPY, ordinal) is not None for ordinal in range(count))


def _is_ours(allocator: Any) -> bool:
    return getattr(allocator, "__module__", None) == __name__ or getattr(allocator, "__self__", None) is _fast()


def _slow(previous: Callable[[int], Any]) -> Callable[[int], Any]:
    """Return an allocator for CuPy. ``previous`` serves the devices for which no resource was set."""
    malloc, free = c.address_of("tern_cupy_malloc"), c.address_of("tern_cupy_free")

    # CuPy calls this for each array. The defaults make the names local.
    def allocate(bytes: int, Memory: Any = CFunctionAllocatorMemory, Pointer: Any = MemoryPointer,
                 stream_of: Any = get_current_stream, device_id: Any = get_device_id, malloc: int = malloc,
                 free: int = free) -> Any:
        ordinal = device_id()
        stream = stream_of(ordinal).ptr
        memory = Memory(bytes, stream, malloc, free, ordinal)
        if memory.ptr or not bytes:
            return Pointer(memory, 0)
        return refused(bytes, stream, ordinal)

    def refused(bytes: int, stream: int, ordinal: int) -> Any:
        resource = c.plugin(c.CUPY, ordinal)
        if resource is None:
            return previous(bytes)
        try:
            address = c.plugin_allocate(c.CUPY, ordinal, bytes, stream)  # raises the exception that the null pointer stands for
        except errors.OutOfMemoryError as error:
            raise _out_of_memory(str(error), bytes, resource) from None
        c.free_in_order(address)
        memory = CFunctionAllocatorMemory(bytes, stream, malloc, free, ordinal)  # another thread has freed memory meanwhile
        if not memory.ptr:
            raise _out_of_memory(c.last_error(), bytes, resource)
        return MemoryPointer(memory, 0)

    return allocate


def _out_of_memory(why: str, bytes: int, resource: _core.Resource) -> Exception:
    live = int(resource.statistics["live_bytes"])
    error: Exception = OutOfMemoryError(bytes, live)
    error.args = (libraries.explained(why, resource),)
    return error


class _PinnedMemory:
    """Page-locked memory, as CuPy's PinnedMemoryPointer wants it."""

    __slots__ = ("_free", "ptr", "size")

    def __init__(self, handle: c.Handle, bytes: int) -> None:
        self._free = c.library.tern_free_in_order
        self.size = bytes
        self.ptr = 0
        self.ptr = c.allocate(handle, bytes)

    def __int__(self) -> int:
        return self.ptr

    def __del__(self) -> None:
        if self.ptr:
            self._free(self.ptr)


def _pinned_allocator(resource: _core.Resource) -> Callable[[int], Any]:
    handle = c.Handle(resource, "cupy pinned")

    def allocate(bytes: int) -> Any:
        try:
            return cupy.cuda.PinnedMemoryPointer(_PinnedMemory(handle, bytes), 0)
        except MemoryError as error:
            raise _out_of_memory(str(error), bytes, resource) from error

    return allocate


# The allocator of CuPy's pinned memory, of which CuPy has no getter.
_pinned: list[Callable[[int], Any]] = []


def _set_pinned(resource: _core.Resource | bool, ordinal: int) -> None:
    if resource is False:
        return
    if resource is True:
        resource = _core.default_resource(_core.open_device(f"cuda:{ordinal}"), "pinned")
    c.check_device(resource, ordinal)
    _pinned.append(_pinned_allocator(resource))
    cupy.cuda.set_pinned_memory_allocator(_pinned[-1])


def _unset_pinned() -> None:
    _pinned.pop()
    cupy.cuda.set_pinned_memory_allocator(_pinned[-1] if _pinned else cupy.get_default_pinned_memory_pool().malloc)


def enable(resource: _core.Resource | None = None, device: int = 0, *, pinned: _core.Resource | bool = False) -> None:
    """Allocate CuPy's arrays from a resource from now on, in all threads. Call it once for each device.

    Parameters
    ----------
    resource : Resource, optional
        By default the default resource of the device.
    device : int
        The ordinal. CuPy's previous allocator serves the devices without a resource.
    pinned : Resource or bool
        Also allocate CuPy's pinned memory: from this resource, or from the default resource for pinned memory if True.
    """
    c.set_plugin(c.CUPY, device, c.resource_for(resource, device, "cupy"))
    current = cupy.cuda.get_allocator()
    if _is_on_every_device():
        cupy.cuda.set_allocator(_fast().malloc)
    elif not _is_ours(current):
        cupy.cuda.set_allocator(_slow(current))
    _set_pinned(pinned, device)


@contextlib.contextmanager
def use(resource: _core.Resource | None = None, device: int = 0, *, pinned: _core.Resource | bool = False) -> Iterator[None]:
    """Allocate CuPy's arrays from a resource inside of a ``with`` statement, in all threads.

    Afterwards, CuPy has the allocator that it had before. Arrays may outlive the statement. The parameters are those of
    :func:`enable`.
    """
    previous = cupy.cuda.get_allocator()
    before = c.plugin(c.CUPY, device)
    count = len(_pinned)
    enable(resource, device, pinned=pinned)
    try:
        yield
    finally:
        if len(_pinned) > count:
            _unset_pinned()
        cupy.cuda.set_allocator(previous)
        c.set_plugin(c.CUPY, device, before)


def statistics(device: int = 0) -> c.Statistics:
    """Return the figures of the resource that CuPy uses on a device."""
    with c.plugin_handle(c.CUPY, device) as handle:
        return c.statistics(handle)
