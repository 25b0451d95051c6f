"""A producer and a consumer that wait for copies without blocking the event loop."""

from __future__ import annotations

import asyncio

import ternmem as tern


async def produce(queue: asyncio.Queue[tern.UnifiedBuffer | None], device: tern.Device) -> None:
    for i in range(5):
        part = tern.UnifiedBuffer(10_000, "float32", device=device, tag=f"part {i}").fill(i)
        await part.ensure_on_device()
        await queue.put(part)
    await queue.put(None)


async def consume(queue: asyncio.Queue[tern.UnifiedBuffer | None]) -> float:
    total = 0.0
    while (part := await queue.get()) is not None:
        part.mark_device_dirty()  # as if a kernel had written it
        await part.ensure_on("host")
        with part.read_host() as array:
            total += float(array.sum())
    return total


async def main() -> None:
    queue: asyncio.Queue[tern.UnifiedBuffer | None] = asyncio.Queue(maxsize=2)
    _, total = await asyncio.gather(produce(queue, tern.best_device()), consume(queue))
    print(f"total {total:.0f}")
    assert total == 100_000


if __name__ == "__main__":
    asyncio.run(main())
