"""BufferPool keeps buffers by shape, dtype and page locking."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import ternmem as tern
from ternmem import BufferPool


def test_a_released_buffer_is_used_again(device: tern.Device) -> None:
    pool = BufferPool(device=device)
    first = pool.acquire((10, 10), "float64")
    first.fill(3)
    pool.release(first)
    assert pool.acquire((10, 10), "float32") is not first
    assert pool.acquire(100, "float64") is not first
    again = pool.acquire([10, 10], np.float64)
    assert again is first
    assert (again.to_numpy() == 3).all(), "contents are not cleared"
    assert pool.stats == {"pool_size": 0, "total_acquired": 4, "total_released": 1, "cache_hits": 1, "cache_misses": 3}
    assert repr(pool).startswith("BufferPool(pool_size=0, total_acquired=4")


def test_the_pool_keeps_a_bounded_number(device: tern.Device) -> None:
    pool = BufferPool(device=device)
    buffers = [pool.acquire(4).fill(i) for i in range(101)]
    for buffer in buffers:
        pool.release(buffer)
    assert pool.stats["pool_size"] == 100
    assert [buffer.is_allocated for buffer in buffers] == [True] * 100 + [False]
    pool.set_limit(40)
    assert pool.stats["pool_size"] == 40
    assert [buffer.is_allocated for buffer in buffers] == [False] * 60 + [True] * 40 + [False]
    pool.clear()
    assert pool.stats["pool_size"] == 0
    assert not any(buffer.is_allocated for buffer in buffers)


def test_large_buffers_are_not_kept() -> None:
    pool = BufferPool(max_buffer_bytes=1000, device="host")
    for elements, kept in ((250, 1), (251, 1)):
        pool.release(pool.acquire(elements).fill(1))
        assert pool.stats["pool_size"] == kept


def test_a_buffer_is_released_once_and_to_its_pool() -> None:
    pool, other = BufferPool(device="host"), BufferPool(device="host")
    buffer = pool.acquire(4)
    for stranger in (tern.UnifiedBuffer(4, device="host"), other.acquire(4)):
        with pytest.raises(tern.InvalidArgumentError, match="not acquired from this pool"):
            pool.release(stranger)
    pool.release(buffer)
    with pytest.raises(ValueError, match="released before"):
        pool.release(buffer)
    assert pool.stats["pool_size"] == 1
    for limit in (lambda: BufferPool(-1), lambda: BufferPool(1, -1), lambda: pool.set_limit(-1)):
        with pytest.raises(ValueError, match="Use 0 or more"):
            limit()


def test_threads_never_get_the_same_buffer() -> None:
    pool = BufferPool(4, device="host")
    wrong: list[int] = []

    def work(mine: int) -> None:
        for _ in range(200):
            buffer = pool.acquire(16, "int32").fill(mine)
            if not (buffer.to_numpy() == mine).all():
                wrong.append(mine)
            pool.release(buffer)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    counts = pool.stats
    assert counts["total_acquired"] == counts["total_released"] == 1600
    assert counts["cache_hits"] + counts["cache_misses"] == 1600
