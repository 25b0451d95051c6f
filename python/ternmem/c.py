"""The C API of Tern, as ``ctypes`` functions.

>>> import ternmem as tern
>>> from ternmem import c
>>> pool = c.Handle(tern.Pool("sim"), "mesh")
>>> address = c.allocate(pool, 4096)
>>> c.find_block(address).bytes
4096
>>> c.free(address)

``library`` is the shared object. Its functions share devices, pools and budgets with the module. The functions of this
module raise the exceptions of :mod:`ternmem.errors`. Streams are handles of the driver, as integers.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import POINTER, byref, c_char_p, c_double, c_int, c_size_t, c_uint32, c_uint64, c_void_p
from typing import Any, NamedTuple

from . import _core, errors

__all__ = [
    "CUPY",
    "Block",
    "Handle",
    "NUMBA",
    "OTHER",
    "Statistics",
    "TORCH",
    "address_of",
    "allocate",
    "check",
    "error_of",
    "find_block",
    "free",
    "free_in_order",
    "last_error",
    "library",
    "plugin",
    "plugin_allocate",
    "record_use",
    "reset_peak",
    "set_plugin",
    "snapshot",
    "statistics",
    "trim",
]

# The numbers of tern_library.
TORCH, CUPY, NUMBA, OTHER = range(4)
_library_names = ("torch", "cupy", "numba", "other")
_max_ordinals = 64

assert _core.__file__ is not None
# CDLL releases the interpreter's lock during a call. An allocation may wait for another thread.
library = ctypes.CDLL(_core.__file__)


class ArenaId(ctypes.Structure):
    """``tern_arena_id``: the id of a graph's memory."""

    _fields_ = [("first", c_uint64), ("second", c_uint64)]


class _Block(ctypes.Structure):
    _fields_ = [("struct_bytes", c_size_t), ("address", c_void_p), ("bytes", c_size_t), ("tag", c_char_p),
                ("device", c_char_p)]


class _Statistics(ctypes.Structure):
    _fields_ = [("struct_bytes", c_size_t), ("live_bytes", c_size_t), ("live_blocks", c_size_t),
                ("peak_live_bytes", c_size_t), ("pending_bytes", c_size_t), ("held_bytes", c_size_t),
                ("peak_held_bytes", c_size_t), ("limit_bytes", c_size_t), ("allocations", c_uint64), ("frees", c_uint64),
                ("refusals", c_uint64), ("driver_calls", c_uint64)]


class PoolOptions(ctypes.Structure):
    """``tern_pool_options``. Set ``struct_bytes`` to ``ctypes.sizeof(PoolOptions)``."""

    _fields_ = [("struct_bytes", c_size_t), ("kind", c_int), ("limit_bytes", c_size_t), ("initial_bytes", c_size_t)]


class BudgetStatistics(ctypes.Structure):
    """``tern_budget_statistics``. Set ``struct_bytes`` to ``ctypes.sizeof(BudgetStatistics)``."""

    _fields_ = [("struct_bytes", c_size_t), ("limit_bytes", c_size_t), ("used_bytes", c_size_t),
                ("pending_bytes", c_size_t), ("peak_bytes", c_size_t)]


StreamFilter = ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p)

_signatures: dict[str, tuple[Any, list[Any]]] = {
    "tern_abi_version": (c_uint32, []),
    "tern_version": (c_char_p, []),
    "tern_last_error": (c_char_p, []),
    "tern_last_status": (c_int, []),
    "tern_status_name": (c_char_p, [c_int]),
    "tern_open_device": (c_int, [c_char_p, POINTER(c_void_p)]),
    "tern_release_device": (None, [c_void_p]),
    "tern_device_memory": (c_int, [c_void_p, POINTER(c_size_t), POINTER(c_size_t)]),
    "tern_synchronize": (c_int, [c_void_p]),
    "tern_make_pool": (c_int, [c_void_p, POINTER(PoolOptions), POINTER(c_void_p)]),
    "tern_default_resource": (c_int, [c_void_p, c_int, POINTER(c_void_p)]),
    "tern_make_budget": (c_int, [c_char_p, c_size_t, c_void_p, POINTER(c_void_p)]),
    "tern_set_budget_limit": (c_int, [c_void_p, c_size_t]),
    "tern_release_budget": (None, [c_void_p]),
    "tern_make_budget_resource": (c_int, [c_void_p, c_void_p, POINTER(c_void_p)]),
    "tern_set_tag": (c_int, [c_void_p, c_char_p]),
    "tern_release_resource": (None, [c_void_p]),
    "tern_allocate": (c_int, [c_void_p, c_size_t, c_size_t, c_void_p, POINTER(c_void_p)]),
    "tern_free": (c_int, [c_void_p, c_void_p]),
    "tern_free_in_order": (c_int, [c_void_p]),
    "tern_record_use": (c_int, [c_void_p, c_void_p]),
    "tern_find_block": (c_int, [c_void_p, POINTER(_Block)]),
    "tern_get_statistics": (c_int, [c_void_p, POINTER(_Statistics)]),
    "tern_reset_peak": (c_int, [c_void_p]),
    "tern_get_budget_statistics": (c_int, [c_void_p, POINTER(BudgetStatistics)]),
    "tern_trim": (c_int, [c_void_p, c_size_t, POINTER(c_size_t)]),
    "tern_snapshot": (c_int, [c_void_p, POINTER(_Block), c_size_t, POINTER(c_size_t)]),
    "tern_begin_arena": (c_int, [c_int, ArenaId, StreamFilter, c_void_p]),
    "tern_end_arena": (c_int, [c_int, ArenaId]),
    "tern_release_arena": (c_int, [c_int, ArenaId]),
    "tern_get_arena": (c_int, [c_int, ArenaId, POINTER(c_size_t), POINTER(c_size_t)]),
    "tern_reserve_arena": (c_int, [c_int, c_size_t]),
    "tern_begin_rehearsal": (c_int, [c_int]),
    "tern_end_rehearsal": (c_int, [c_int, POINTER(c_size_t)]),
    "tern_set_plugin": (c_int, [c_int, c_int, c_void_p]),
    "tern_get_plugin": (c_int, [c_int, c_int, POINTER(c_void_p)]),
    "tern_plugin_allocate": (c_int, [c_int, c_int, c_size_t, c_void_p, POINTER(c_void_p)]),
    "tern_cupy_malloc": (c_void_p, [c_void_p, c_size_t, c_int]),
    "tern_cupy_free": (None, [c_void_p, c_void_p, c_int]),
    "tern_torch_malloc": (c_void_p, [c_size_t, c_int, c_void_p]),
    "tern_torch_free": (None, [c_void_p, c_size_t, c_int, c_void_p]),
    "tern_torch_record_stream": (None, [c_void_p, c_void_p]),
    "tern_torch_base": (c_void_p, [c_void_p, POINTER(c_size_t)]),
    "tern_torch_empty_cache": (None, []),
    "tern_torch_set_fraction": (c_int, [c_double, c_int]),
}
for _name, (_result, _arguments) in _signatures.items():
    _function = getattr(library, _name)
    _function.restype = _result
    _function.argtypes = _arguments

# The exceptions of tern_status.
_exceptions: dict[int, type[errors.Error]] = {
    1: errors.OutOfMemoryError,
    2: errors.OutOfBudgetError,
    3: errors.UseAfterFreeError,
    4: errors.InvalidArgumentError,
    5: errors.InvalidDeviceError,
    6: errors.StreamMisuseError,
    7: errors.UnsupportedError,
    8: errors.AfterForkError,
    9: errors.DeviceLostError,
    10: errors.Error,
}


def last_error() -> str:
    """Return the message of the last failed call of this thread, or an empty string."""
    text: bytes = library.tern_last_error()
    return text.decode(errors="replace")


def error_of(status: int, message: str) -> errors.Error:
    """Return the exception of a ``tern_status``."""
    return _exceptions.get(status, errors.Error)(message)


def check(status: int) -> None:
    """Raise the exception of a ``tern_status``. Does nothing for ``TERN_OK``."""
    if status:
        raise error_of(status, last_error())


def address_of(name: str) -> int:
    """Return the address of a function of the C API, for a library that takes addresses of functions."""
    address = ctypes.cast(getattr(library, name), c_void_p).value
    assert address is not None
    return address


class Handle:
    """A ``tern_resource``: a resource with a name for its memory.

    Memory keeps its resource, so a handle may be closed while its memory is in use.

    Parameters
    ----------
    resource : Resource
    tag : str
        Names the memory in reports and errors.
    """

    def __init__(self, resource: _core.Resource, tag: str = "") -> None:
        self.resource: _core.Resource | None = resource
        self._as_parameter_: int | None = _core.c_handle(resource, tag)

    @classmethod
    def of_address(cls, address: int | None, resource: _core.Resource | None = None) -> Handle:
        """Own a handle that the C API returned."""
        made = cls.__new__(cls)
        made.resource = resource
        made._as_parameter_ = address
        return made

    def close(self) -> None:
        """Release the handle. A second call does nothing."""
        address, self._as_parameter_, self.resource = self._as_parameter_, None, None
        if address is not None:
            _release_resource(address)

    def __enter__(self) -> Handle:
        return self

    def __exit__(self, *args: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_as_parameter_", None) is not None:
            self.close()


# Used at the interpreter's exit, when the globals of the module may be gone.
_release_resource = library.tern_release_resource


class Block(NamedTuple):
    """Live memory."""

    address: int
    bytes: int
    tag: str
    device: str


class Statistics(NamedTuple):
    """The figures of a resource. See ``tern_statistics`` in ``tern/c/tern.h``."""

    live_bytes: int
    live_blocks: int
    peak_live_bytes: int
    pending_bytes: int
    held_bytes: int
    peak_held_bytes: int
    limit_bytes: int
    allocations: int
    frees: int
    refusals: int
    driver_calls: int


def allocate(handle: Handle, bytes: int, stream: int = 0, alignment: int = 0) -> int:
    """Allocate memory in the order of a stream. Returns its address, and 0 for 0 bytes."""
    address = c_void_p()
    check(library.tern_allocate(handle, bytes, alignment, stream, byref(address)))
    return address.value or 0


def free(address: int, stream: int = 0) -> None:
    """Free memory of any resource in the order of a stream."""
    check(library.tern_free(address, stream))


def free_in_order(address: int) -> None:
    """Free memory in the order of the stream that allocated it."""
    check(library.tern_free_in_order(address))


def record_use(address: int, stream: int) -> None:
    """State that another stream uses the memory too, until it is freed."""
    check(library.tern_record_use(address, stream))


def _block(one: _Block) -> Block:
    return Block(one.address or 0, one.bytes, one.tag.decode(errors="replace"), one.device.decode())


def find_block(address: int) -> Block:
    """Find the live memory that begins at an address."""
    found = _Block(ctypes.sizeof(_Block))
    check(library.tern_find_block(address, byref(found)))
    return _block(found)


def statistics(handle: Handle) -> Statistics:
    """Return the figures of a resource."""
    now = _Statistics(ctypes.sizeof(_Statistics))
    check(library.tern_get_statistics(handle, byref(now)))
    return Statistics(*(getattr(now, name) for name in Statistics._fields))


def reset_peak(handle: Handle) -> None:
    """Restart the peak of the live bytes. Raises UnsupportedError if no budget is around the resource."""
    check(library.tern_reset_peak(handle))


def trim(handle: Handle, keep_bytes: int = 0) -> int:
    """Return unused memory to the driver until at most ``keep_bytes`` are held. Returns the number of bytes."""
    released = c_size_t()
    check(library.tern_trim(handle, keep_bytes, byref(released)))
    return released.value


@contextmanager
def open_device(spec: str) -> Iterator[int]:
    """Open a device for the ``with`` statement. The value is the ``tern_device``, as an address."""
    device = c_void_p()
    check(library.tern_open_device(spec.encode(), byref(device)))
    try:
        assert device.value is not None
        yield device.value
    finally:
        library.tern_release_device(device)


def snapshot(spec: str) -> list[Block]:
    """Return the live blocks of all resources of a device."""
    with open_device(spec) as device:
        count = c_size_t()
        check(library.tern_snapshot(device, None, 0, byref(count)))
        while True:
            capacity = count.value + 64  # other threads allocate meanwhile
            blocks = (_Block * capacity)()
            blocks[0].struct_bytes = ctypes.sizeof(_Block)
            check(library.tern_snapshot(device, blocks, capacity, byref(count)))
            if count.value <= capacity:
                return [_block(one) for one in blocks[:count.value]]


# --- Plug-ins

# The resources that were set, so that reports can name their budgets.
_resources: dict[tuple[int, int], _core.Resource] = {}


def set_plugin(library_number: int, ordinal: int, resource: _core.Resource | None) -> None:
    """Set the resource for the memory that a library allocates on the CUDA device with this ordinal.

    None removes it. Memory that the library has already allocated stays where it is. Raises InvalidDeviceError if the
    resource is of another device.
    """
    if resource is None:
        check(library.tern_set_plugin(library_number, ordinal, None))
        _resources.pop((library_number, ordinal), None)
        return
    check_device(resource, ordinal)
    with Handle(resource) as handle:
        check(library.tern_set_plugin(library_number, ordinal, handle))
    _resources[library_number, ordinal] = resource


def plugin(library_number: int, ordinal: int) -> _core.Resource | None:
    """Return the resource that was set for a library and a device, or None."""
    return _resources.get((library_number, ordinal))


def plugin_handle(library_number: int, ordinal: int) -> Handle:
    """Return a handle of the resource of a library. Raises InvalidDeviceError if there is none."""
    address = c_void_p()
    check(library.tern_get_plugin(library_number, ordinal, byref(address)))
    return Handle.of_address(address.value, _resources.get((library_number, ordinal)))


def plugin_allocate(library_number: int, ordinal: int, bytes: int, stream: int = 0) -> int:
    """Allocate memory as the library with this number. Returns its address, and 0 for 0 bytes."""
    address = c_void_p()
    check(library.tern_plugin_allocate(library_number, ordinal, bytes, stream, byref(address)))
    return address.value or 0


def check_device(resource: _core.Resource, ordinal: int) -> None:
    """Raise InvalidDeviceError unless the resource is of the CUDA device with this ordinal."""
    spec = resource.device.spec
    if spec.partition("?")[0] != f"cuda:{ordinal}":
        raise errors.InvalidDeviceError(
            f"resource '{resource.name}' has memory of '{spec}', but CUDA device {ordinal} is 'cuda:{ordinal}' in Tern. Use a "
            f"resource of 'cuda:{ordinal}', or pass the ordinal of the other device.")


# By the name of the library and the ordinal: a resource without a budget, and the budget resource around it.
_unlimited: dict[tuple[str, int], tuple[_core.Resource, _core.BudgetResource]] = {}


def resource_for(resource: _core.Resource | None, ordinal: int, name: str) -> _core.Resource:
    """Return the resource for a library: the given one, or the default resource of the device.

    A resource without a budget gets one without a limit, so that the library has figures of its own.
    """
    if type(ordinal) is not int or not 0 <= ordinal < _max_ordinals:
        raise errors.InvalidDeviceError(f"{ordinal!r} is not the ordinal of a CUDA device. Use 0 to {_max_ordinals - 1}.")
    if resource is None:
        resource = _core.default_resource(_core.open_device(f"cuda:{ordinal}"))
    check_device(resource, ordinal)
    if isinstance(resource, _core.BudgetResource):
        return resource
    # A new budget counts what is live in the resource, so each library has one budget for each resource.
    known = _unlimited.get((name, ordinal))
    if known is None or known[0] is not resource:
        known = _unlimited[name, ordinal] = (resource, _core.BudgetResource(resource, _core.Budget(name, None)))
    return known[1]
