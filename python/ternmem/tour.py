"""A short tour: ``python -m ternmem.tour [DEVICE]``.

Each part prints what it did. The tour runs on the best device of the machine, or on the one that is named.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np

import ternmem as tern

from .summary import format_bytes


def buffers(device: tern.Device) -> None:
    grid = tern.Buffer((1000, 8), "float32", device)
    print(f"a Buffer of shape {grid.shape} has {format_bytes(grid.nbytes)}; allocated: {grid.is_allocated}")
    with tern.Stream(device, "produce") as produce, tern.Stream(device, "consume") as consume:
        grid.fill(1.5, produce)
        grid[10].fill(2.5, consume)  # Tern makes consume wait for produce
        consume.synchronize()
    print(f"two streams filled it in order: row 9 is {grid[9].to_numpy()[0]}, row 10 is {grid[10].to_numpy()[0]}")


def unified_buffers(device: tern.Device) -> None:
    x = tern.UnifiedBuffer((1024, 256), "float32", device=device)
    x.host[:] = 1
    print(f"after a write of the host:   {x.state.value}")
    x.sync_to_device()
    print(f"after sync_to_device():      {x.state.value}, {format_bytes(x.statistics['moved']['bytes'])} copied")
    x.sync_to_device()
    print(f"after another one:           {x.state.value}, {format_bytes(x.statistics['moved']['bytes'])} copied")


def leases(device: tern.Device) -> None:
    x = tern.UnifiedBuffer(1000, "float32", device=device, tag="x")
    with x.discard_host() as array:
        array[:] = np.arange(1000)
    with x.rw_device() as lent:
        print(f"a device lease hands out {lent}")
    print(f"the lease may have written:  {x.state.value}")
    with x.read_host() as array:
        kept = array[:3]
    print(f"arrays outlive their lease:  {kept}")
    try:
        with x.rw_host(), x.rw_host():
            pass
    except tern.AccessConflictError as error:
        print(f"two writers are refused:     {error.code}")


def pools_and_budgets(device: tern.Device) -> None:
    pool = tern.Pool(device, limit_bytes=64 << 20)
    budget = tern.Budget("tour", 1 << 20, overflow="fail")
    resource = tern.BudgetResource(pool, budget)
    for _ in range(100):
        tern.Buffer(1000, "float32", device, resource=resource).fill(1)
    device.synchronize()
    grows = pool.pool_statistics["grows"]
    print(f"100 buffers came from a pool; it asked the driver for memory {grows} time{'' if grows == 1 else 's'}")
    try:
        tern.Buffer(1 << 20, "float32", device, resource=resource).allocate()
    except MemoryError as error:
        print(f"4 MiB do not fit the budget: {type(error).__name__}, {budget.used_bytes} B are charged")


def exchange(device: tern.Device) -> None:
    elements = np.arange(6, dtype="float32")
    taken = tern.from_dlpack(elements)
    assert isinstance(taken, tern.Buffer)
    print(f"from_dlpack(array) shares:   {taken.ptr == elements.ctypes.data}")
    back = np.from_dlpack(taken)
    print(f"np.from_dlpack() shares:     {np.shares_memory(back, elements)}")
    there = tern.Buffer(6, "float32", device)
    there.copy_from(elements)
    print(f"on {device.spec} and back:".ljust(28), there.to_numpy())


def a_missing_wait(device: tern.Device) -> None:
    checked = tern.sim.open(seed=7, schedule="lazy", mode="collect", print_findings=False)
    produce, consume = checked.stream("produce"), checked.stream("consume")
    memory = checked.allocate(4096)
    produce.fill_bytes(memory, 4096, 1)
    consume.fill_bytes(memory, 4096, 2)  # consume.wait(produce) is missing
    checked.synchronize()
    checked.release(memory)
    found = tern.sim.findings(checked)[0]
    print(f"{found.code} {found.title} at {str(found.site).rsplit('/', 1)[-1]}")
    print(f"  what  {found.what}")
    print(f"  fix   {found.fix}")


def main(arguments: list[str]) -> None:
    device = tern.open_device(arguments[0]) if arguments else tern.best_device()
    print(f"ternmem {tern.__version__} on {device.spec} ({device.name})")
    parts: list[tuple[str, Callable[[tern.Device], None]]] = [
        ("A buffer on a device", buffers),
        ("A buffer on the host and on a device", unified_buffers),
        ("Leases", leases),
        ("A pool and a budget", pools_and_budgets),
        ("Exchange with NumPy", exchange),
        ("A missing wait, found on the simulated device", a_missing_wait),
    ]
    for title, part in parts:
        print(f"\n{title}")
        part(device)


if __name__ == "__main__":
    main(sys.argv[1:])
