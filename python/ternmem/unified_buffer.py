"""UnifiedBuffer: one array with a copy on the host and on a device."""

from __future__ import annotations

import enum
from types import GenericAlias
from typing import Any, ClassVar

import numpy as np

from . import _core, _waiting
from ._pickling import device_of
from .errors import UnsupportedError


class BufferState(enum.Enum):
    """Which copies of a buffer are up to date.

    Attributes
    ----------
    UNINITIALIZED
        Nothing was written.
    HOST_ONLY, DEVICE_ONLY
        The other copy was dropped.
    SYNCHRONIZED
        Both copies are up to date.
    HOST_DIRTY, DEVICE_DIRTY
        This copy is newer than the other.
    MIXED
        Parts of the buffer differ.
    """

    UNINITIALIZED = "uninitialized"
    HOST_ONLY = "host_only"
    DEVICE_ONLY = "device_only"
    SYNCHRONIZED = "synchronized"
    HOST_DIRTY = "host_dirty"
    DEVICE_DIRTY = "device_dirty"
    MIXED = "mixed"


_states = tuple(BufferState)  # in the order of the C++ enumeration


class UnifiedBuffer(_core.UnifiedBuffer):
    """An array that can have a copy on the host and on a device.

    Tern copies bytes only when an access needs them. ``state`` says which copy is up to date.

    Parameters
    ----------
    shape : int or sequence of int
    dtype : dtype-like, default float32
    pinned : bool or 'prefer', default False
        Whether the host copy is page-locked. True raises an error if it cannot be.
    device : Device or str, optional
        The device of the second copy; by default the current device.
    tag : str, optional
        A name for reports.
    checked : bool, optional
        Whether Tern overwrites stale bytes with a pattern and detects host writes without a lease. By default as the
        environment variables TERN_CHECKED and TERN_CHECK say.
    """

    __class_getitem__: ClassVar[Any] = classmethod(GenericAlias)
    _pool: Any = None  # the BufferPool that it was acquired from, and the key there

    @property
    def state(self) -> BufferState:
        """Which copies are up to date. Moves nothing."""
        return _states[self._state]

    @property
    def metal(self) -> Any:
        """An MLX array. Raises UnsupportedError: this build has no Metal backend."""
        raise _no_metal()

    def mark_metal_dirty(self) -> None:
        """Raises UnsupportedError: this build has no Metal backend."""
        raise _no_metal()

    @classmethod
    def from_numpy(cls, array: Any, *, pinned: bool | str = False, device: Any = None) -> UnifiedBuffer:
        """Make a buffer with a copy of the elements of an array."""
        elements = np.asarray(array)
        made = cls(elements.shape, elements.dtype, pinned=pinned, device=device)
        made.copy_from(elements)
        return made

    def zeros(self) -> UnifiedBuffer:
        """Set every element to zero. Returns the buffer."""
        self.fill(0)
        return self

    def synchronize(self) -> None:
        """Bring both sides up to date, and wait for the work that uses the buffer."""
        if self.state is not BufferState.UNINITIALIZED:
            if self.state in (BufferState.DEVICE_DIRTY, BufferState.MIXED):
                self.sync_to_host()
            if self.state in (BufferState.HOST_DIRTY, BufferState.MIXED):
                self.sync_to_device()
        self.wait()

    async def ensure_on_device(self, stream: Any = None) -> UnifiedBuffer:
        """Bring the device copy up to date without blocking the event loop."""
        self.prefetch(stream)
        if stream is None:
            stream = self.default_device.default_stream
        elif not isinstance(stream, _core.Stream):
            stream = _core.Stream.borrow(stream, self.default_device)
        await _waiting.wait(stream.mark())
        return self

    async def ensure_on_host(self) -> UnifiedBuffer:
        """Bring the host copy up to date without blocking the event loop."""
        self.prefetch_host()
        await _waiting.wait(_core.copy_mark(self.default_device))
        self.sync_to_host()
        return self

    async def ensure_on(self, place: str | _core.Device) -> UnifiedBuffer:
        """Bring the copy of ``'host'`` or of a device up to date without blocking the event loop."""
        if place == "host":
            return await self.ensure_on_host()
        device = place if isinstance(place, _core.Device) else _core.open_device(place)
        return await self.ensure_on_device(device.default_stream)

    def __copy__(self) -> UnifiedBuffer:
        return self.__deepcopy__({})

    def __deepcopy__(self, memo: dict[int, Any]) -> UnifiedBuffer:
        made = type(self)(self.shape, self.dtype, device=self.default_device)
        if self.state is not BufferState.UNINITIALIZED:
            made.copy_from(self)
        memo[id(self)] = made
        return made

    def __reduce_ex__(self, protocol: Any) -> Any:
        written = self.state is not BufferState.UNINITIALIZED
        # NumPy's own pickle keeps the bytes out of band with protocol 5.
        elements = np.asarray(self) if written else None
        return _restore, (type(self), self.shape, self.dtype, self.default_device.spec, elements)

    def __repr__(self) -> str:
        return (
            f"UnifiedBuffer(shape={self.shape}, dtype={self.dtype}, state={self.state.value}, "
            f"device='{self.default_device.spec}', nbytes={self.nbytes})"
        )

    def _repr_html_(self) -> str:
        from .summary import unified_html

        return unified_html(self)


def _restore(cls: type[UnifiedBuffer], shape: tuple[int, ...], dtype: Any, spec: str, elements: Any) -> UnifiedBuffer:
    made = cls(shape, dtype, device=device_of(spec))
    if elements is not None:
        made.copy_from(elements)
    return made


def _no_metal() -> UnsupportedError:
    return UnsupportedError("this build of Tern has no Metal backend. Use `device` on this machine.")
