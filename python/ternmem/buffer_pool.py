"""BufferPool: unified buffers that are used again."""

from __future__ import annotations

import collections
import threading
from typing import Any

import numpy as np

from .errors import InvalidArgumentError
from .unified_buffer import UnifiedBuffer

_Key = tuple[tuple[int, ...], Any, Any]


class BufferPool:
    """Keeps released unified buffers for the next request with the same shape, dtype and page locking.

    A buffer from the pool has the contents and the state that its last user left. Arrays of that user
    still share its memory. Safe from threads.

    Parameters
    ----------
    max_buffers : int, default 100
        The number of buffers that the pool keeps. Further ones are freed when they are released.
    max_buffer_bytes : int, default 10**9
        Larger buffers are not kept.
    device : Device or str, optional
        The device of the buffers; by default the current device.
    """

    def __init__(self, max_buffers: int = 100, max_buffer_bytes: int = 10**9, *, device: Any = None) -> None:
        self._device = device
        self._lock = threading.Lock()
        self._kept: collections.OrderedDict[int, tuple[_Key, UnifiedBuffer]] = collections.OrderedDict()
        self._max_buffers, self._max_buffer_bytes = _limit("max_buffers", max_buffers), _limit("max_buffer_bytes", max_buffer_bytes)
        self._acquired = self._released = self._hits = 0

    def acquire(self, shape: Any, dtype: Any = np.float32, pinned: bool | str = False) -> UnifiedBuffer:
        """Return a kept buffer, the one that was released last, or a new one.

        Parameters
        ----------
        shape : int or sequence of int
        dtype : dtype-like, default float32
        pinned : bool or 'prefer', default False
            Whether the host copy is page-locked.

        Returns
        -------
        UnifiedBuffer
        """
        wanted = (shape,) if isinstance(shape, int | np.integer) else shape
        key = (tuple(wanted), np.dtype(dtype), pinned)
        with self._lock:
            number = next((number for number in reversed(self._kept) if self._kept[number][0] == key), None)
            found = self._kept.pop(number)[1] if number is not None else None
        acquired = found if found is not None else UnifiedBuffer(shape, dtype, pinned=pinned, device=self._device)
        with self._lock:
            self._acquired += 1
            self._hits += found is not None
        acquired._pool = (self, key)
        return acquired

    def release(self, buffer: UnifiedBuffer) -> None:
        """Give a buffer back. Raises InvalidArgumentError if it is not from this pool, or is back already.

        Parameters
        ----------
        buffer : UnifiedBuffer
        """
        with self._lock:
            pool, key = getattr(buffer, "_pool", None) or (None, None)
            if pool is not self:
                raise InvalidArgumentError("the buffer was not acquired from this pool, or was released before.")
            buffer._pool = None
            self._released += 1
            has_room = len(self._kept) < self._max_buffers and buffer.nbytes <= self._max_buffer_bytes
            if has_room:
                self._kept[self._released] = (key, buffer)
        if not has_room:
            buffer.free()

    def clear(self) -> None:
        """Free all buffers that the pool keeps."""
        self._shrink(0)

    def set_limit(self, max_buffers: int) -> None:
        """Change how many buffers the pool keeps. Frees those that were released longest ago.

        Parameters
        ----------
        max_buffers : int
        """
        self._max_buffers = _limit("max_buffers", max_buffers)
        self._shrink(self._max_buffers)

    @property
    def stats(self) -> dict[str, int]:
        """Counts: pool_size, total_acquired, total_released, cache_hits, cache_misses."""
        with self._lock:
            return {
                "pool_size": len(self._kept),
                "total_acquired": self._acquired,
                "total_released": self._released,
                "cache_hits": self._hits,
                "cache_misses": self._acquired - self._hits,
            }

    def __repr__(self) -> str:
        return f"BufferPool({', '.join(f'{name}={count}' for name, count in self.stats.items())})"

    def _shrink(self, most: int) -> None:
        with self._lock:
            gone = [self._kept.popitem(last=False)[1][1] for _ in range(len(self._kept) - most)]
        for buffer in gone:
            buffer.free()


def _limit(name: str, value: int) -> int:
    if value < 0:
        raise InvalidArgumentError(f"{name} is {value}. Use 0 or more.")
    return value
