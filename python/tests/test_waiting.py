"""Threads, signals and asyncio."""

from __future__ import annotations

import asyncio
import threading

import numpy as np

import ternmem as tern
from ternmem import BufferState, UnifiedBuffer


def test_threads_share_a_buffer(device: tern.Device) -> None:
    buffer = UnifiedBuffer(1000, device=device).zeros()
    failures: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(100):
                with buffer.rw_host(wait=60) as array:
                    array += 1
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert (buffer.to_numpy() == 800).all()


def test_marks_and_buffers_can_be_awaited(accelerator: tern.Device) -> None:
    async def program() -> None:
        stream = tern.Stream(accelerator)
        buffers = [UnifiedBuffer(1000, device=accelerator).fill(i) for i in range(20)]
        for buffer in buffers:
            buffer.prefetch(stream)
        await stream.mark()
        await asyncio.gather(*(buffer.ensure_on_device() for buffer in buffers))
        assert all(buffer.state is BufferState.SYNCHRONIZED for buffer in buffers)
        for buffer in buffers:
            buffer.mark_device_dirty()
        await asyncio.gather(*(buffer.ensure_on("host") for buffer in buffers))
        for i, buffer in enumerate(buffers):
            assert buffer.state is BufferState.SYNCHRONIZED
            np.testing.assert_array_equal(np.asarray(buffer), i)

    before = threading.active_count()
    asyncio.run(program())
    assert threading.active_count() <= before + 1, "one thread for all waits"


def test_streams_wait_for_each_other(accelerator: tern.Device) -> None:
    first, second = tern.Stream(accelerator, "first"), tern.Stream(accelerator, "second")
    buffer = tern.Buffer(1000, device=accelerator)
    buffer.fill(1, first)
    second.wait(first)
    second.wait(first.mark())
    event = tern.Event(accelerator)
    first.record(event)
    second.wait(event)
    buffer.fill(2, second)
    second.synchronize()
    assert second.is_idle
    assert first.mark().is_done or True
    assert (buffer.to_numpy() == 2).all()
    assert first != second
    assert "first" in repr(first)
    first.close()
    second.close()


def test_a_stream_of_another_library_can_be_awaited() -> None:
    device = tern.open_device("cuda:0?driver=sim")
    stream = tern.Stream(device)

    class Foreign:
        def __cuda_stream__(self) -> tuple[int, int]:
            return 0, stream.handle

    buffer = UnifiedBuffer(1000, device=device).fill(1)
    asyncio.run(buffer.ensure_on_device(Foreign()))
    assert buffer.state is BufferState.SYNCHRONIZED
    stream.close()
