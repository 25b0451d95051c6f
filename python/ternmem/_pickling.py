"""Pickles of buffers: the elements travel as bytes, out of band with protocol 5.

Those of shared arrays have a handle instead.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from . import _core


def device_of(spec: str) -> _core.Device:
    """Open the device of a pickle. The process that reads the pickle may have other devices."""
    try:
        return _core.open_device(spec)
    except ValueError:
        return _core.current_device()


def _bytes_of(buffer: _core.Buffer) -> Any:
    """Return the bytes as an array, without a copy if the host can use the memory."""
    if buffer.size == 0:
        return None
    flat = buffer.reshape(buffer.size).view("uint8")
    try:
        return np.asarray(flat)
    except _core.NotHostAccessibleError:
        return flat.to_numpy()


def _dtype_name(buffer: _core.Buffer | _core.ManagedBuffer) -> str:
    return str(buffer.dtype)


def _restore_buffer(shape: tuple[int, ...], dtype: str, spec: str, kind: str, elements: Any) -> _core.Buffer:
    made = _core.Buffer(shape, dtype, device_of(spec), kind=kind)
    if elements is not None:
        made.reshape(made.size).view("uint8").copy_from(elements)
    return made


def _restore_managed(shape: tuple[int, ...], dtype: str, spec: str, elements: Any) -> _core.ManagedBuffer:
    made = _core.ManagedBuffer(shape, dtype, device_of(spec))
    if elements is not None:
        made.buffer.reshape(made.size).view("uint8").copy_from(elements)
    return made


def reduce_buffer(self: _core.Buffer) -> Any:
    """Implement ``__reduce_ex__`` of Buffer."""
    elements = _bytes_of(self) if self.is_allocated else None
    # Memory of the host and of other libraries comes back as memory of the device.
    kind = self.kind if self.kind in ("pinned", "managed") else "device"
    return _restore_buffer, (self.shape, _dtype_name(self), self.device.spec, kind, elements)


def reduce_managed(self: _core.ManagedBuffer) -> Any:
    """Implement ``__reduce_ex__`` of ManagedBuffer."""
    elements = _bytes_of(self.buffer) if self.is_allocated else None
    return _restore_managed, (self.shape, _dtype_name(self), self.device.spec, elements)


def _restore_shared(handle: str, spec: str, shape: tuple[int, ...]) -> _core.SharedArray:
    # On no other device: the memory is of this one.
    return _core.SharedArray.open(handle, _core.open_device(spec), shape)


def reduce_shared(self: _core.SharedArray) -> Any:
    """Implement ``__reduce_ex__`` of SharedArray: the handle travels, and no elements."""
    return _restore_shared, (self.handle, self.device.spec, self.shape)
