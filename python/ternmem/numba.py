"""Numba: device arrays in Tern's memory, through Numba's interface for external memory management (EMM).

>>> import ternmem as tern
>>> import ternmem.numba
>>> pool = tern.BudgetResource(tern.Pool("cuda:0"), tern.Budget("arrays", 4 << 30))  # doctest: +SKIP
>>> ternmem.numba.enable(pool)  # doctest: +SKIP
>>> x = numba.cuda.device_array(1000)  # doctest: +SKIP

``enable()`` must come before Numba makes a CUDA context. Without a line of code, the environment variable
``NUMBA_CUDA_MEMORY_MANAGER=ternmem.numba`` selects the default resource of each device.

Memory is allocated and freed in the order of the legacy default stream. Streams of ``numba.cuda.stream()`` wait for it, and
it waits for them. A refusal is Numba's ``CudaAPIError`` with the code ``CUDA_ERROR_OUT_OF_MEMORY``.
"""

from __future__ import annotations

import contextlib
import ctypes
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from . import _core, c, errors, libraries

try:
    from numba import cuda
    from numba.cuda.cudadrv import driver
except ImportError as _missing:
    raise ImportError(f"ternmem.numba needs Numba, which cannot be imported: {_missing}. Install the packages 'numba' and "
                      "'numba-cuda'.") from _missing

__all__ = ["MemoryManager", "enable", "statistics", "use"]

_legacy_stream = 0
_free = c.library.tern_free


def _out_of_memory(why: str) -> Exception:
    binding = getattr(driver, "binding", None)
    code = binding.CUresult.CUDA_ERROR_OUT_OF_MEMORY if binding is not None else 2
    made: Exception = driver.CudaAPIError(code, why)
    return made


class MemoryManager(cuda.HostOnlyCUDAMemoryManager):
    """Numba's memory manager: one for each context. Pinned and managed memory stay with Numba."""

    @property
    def interface_version(self) -> int:
        """The version of Numba's interface."""
        return 1

    def initialize(self) -> None:
        """Select the default resource of the device if :func:`enable` has not set one."""
        ordinal = self._ordinal()
        if c.plugin(c.NUMBA, ordinal) is None:
            c.set_plugin(c.NUMBA, ordinal, c.resource_for(None, ordinal, "numba"))

    def _ordinal(self) -> int:
        return int(self.context.device.id)

    def memalloc(self, size: int) -> Any:
        """Allocate device memory. Numba frees its pending memory and tries again if there is none."""
        ordinal = self._ordinal()

        def allocate() -> int:
            try:
                return c.plugin_allocate(c.NUMBA, ordinal, size, _legacy_stream)
            except errors.OutOfMemoryError as error:
                raise _out_of_memory(libraries.explained(str(error), c.plugin(c.NUMBA, ordinal))) from error

        address = self._attempt_allocation(allocate)
        memory = driver.AutoFreePointer(weakref.proxy(self.context), ctypes.c_void_p(address), size,
                                        finalizer=self._finalizer(address, size))
        self.allocations[address] = memory
        return memory.own()

    def _finalizer(self, address: int, size: int) -> Callable[[], None]:
        allocations, pending = self.allocations, self.deallocations

        def tern_free(address: int) -> None:
            _free(address, _legacy_stream)

        def finalize() -> None:
            # Numba clears the table when it resets the context, and finalizers run at the interpreter's exit too.
            allocations.pop(address, None)
            if pending.is_disabled:
                pending.add_item(tern_free, address, size)
            else:
                _free(address, _legacy_stream)

        return finalize

    def get_memory_info(self) -> Any:
        """Return the free and the total bytes of the device."""
        info = c.plugin(c.NUMBA, self._ordinal())
        memory = info.device.memory() if info is not None else _core.open_device(f"cuda:{self._ordinal()}").memory()
        return driver.MemoryInfo(free=memory.free_bytes, total=memory.total_bytes)

    def get_ipc_handle(self, memory: Any) -> Any:
        """Raises UnsupportedError: other processes cannot open memory of a pool. Use a :class:`ternmem.SharedArray`."""
        raise errors.UnsupportedError("memory of Tern's pools has no handle that another process can open. Share the elements in a "
                                      "ternmem.SharedArray, or allocate the array with Numba's own memory manager.")

    # What defer_cleanup() and reset() do for host memory, they do for this memory too: it is in the same two tables.


# The environment variable NUMBA_CUDA_MEMORY_MANAGER=ternmem.numba finds this name.
_numba_memory_manager = MemoryManager


def enable(resource: _core.Resource | None = None, device: int = 0) -> None:
    """Allocate Numba's device arrays from a resource from now on. Call it once for each device.

    The first call must come before Numba makes a CUDA context, because a context keeps its memory manager.

    Parameters
    ----------
    resource : Resource, optional
        By default the default resource of the device.
    device : int
        The ordinal.
    """
    current = driver._memory_manager
    if current is not None and current is not MemoryManager:
        raise errors.UnsupportedError(
            f"numba has its memory manager already: '{current.__name__}'. Call ternmem.numba.enable() before the first CUDA call "
            "of numba, or set NUMBA_CUDA_MEMORY_MANAGER=ternmem.numba in the environment.")
    chosen = c.resource_for(resource, device, "numba")
    if current is None:
        cuda.set_memory_manager(MemoryManager)
    c.set_plugin(c.NUMBA, device, chosen)


@contextlib.contextmanager
def use(resource: _core.Resource | None = None, device: int = 0) -> Iterator[None]:
    """Allocate Numba's device arrays from a resource inside of a ``with`` statement, in all threads.

    Calls :func:`enable`, so the first statement must come before Numba makes a CUDA context. Afterwards, the resource that was
    set before serves Numba, and the default resource of the device if there was none. Arrays may outlive the statement.
    """
    before = c.plugin(c.NUMBA, device)
    enable(resource, device)
    try:
        yield
    finally:
        c.set_plugin(c.NUMBA, device, before if before is not None else c.resource_for(None, device, "numba"))


def statistics(device: int = 0) -> c.Statistics:
    """Return the figures of the resource that Numba uses on a device."""
    with c.plugin_handle(c.NUMBA, device) as handle:
        return c.statistics(handle)
