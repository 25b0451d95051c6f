"""The time of an allocation and its free through each plug-in, beside the library's own allocator.

    python python/bench/plugins.py

Needs a GPU. Libraries that are not installed are left out. Each allocator runs in a process of its own, because most
libraries accept an allocator only before they use CUDA.
"""

from __future__ import annotations

import json
import subprocess
import sys
import timeit
from collections.abc import Callable
from typing import Any

import ternmem as tern

sizes = {"4 KiB": 4 << 10, "1 MiB": 1 << 20, "20 MiB": 20 << 20}
# The first of each library is the library's own allocator.
allocators = {
    "torch.empty": ["torch own", "torch use()", "torch enable()"],
    "cupy.cuda.alloc": ["cupy own", "cupy use()"],
    "numba device_array": ["numba own", "numba enable()"],
}


def ns(body: Callable[[], Any], repeats: int = 10000) -> float:
    """The best of seven runs, per call."""
    for _ in range(100):
        body()
    return min(timeit.repeat(body, number=repeats, repeat=7)) / repeats * 1e9


def torch_times() -> dict[str, float]:
    import torch

    place = torch.device("cuda", 0)
    torch.cuda.synchronize()
    return {name: ns(lambda: torch.empty(bytes, dtype=torch.uint8, device=place)) for name, bytes in sizes.items()}


def cupy_times() -> dict[str, float]:
    import cupy

    # CuPy makes the context current with the first call that needs it, and asking for the device needs none.
    cupy.cuda.Device(0).synchronize()
    return {name: ns(lambda: cupy.cuda.alloc(bytes)) for name, bytes in sizes.items()}


def numba_times() -> dict[str, float]:
    from numba import cuda

    cuda.current_context()
    return {name: ns(lambda: cuda.device_array(bytes, "uint8"), 2000) for name, bytes in sizes.items()}


def resource() -> tern.Resource:
    return tern.BudgetResource(tern.Pool("cuda:0"), tern.Budget("bench", None))


def measured(allocator: str) -> dict[str, float]:
    """The times of one allocator, by the name of the size."""
    match allocator:
        case "torch own":
            return torch_times()
        case "torch use()":
            import ternmem.torch

            with ternmem.torch.use(resource()):
                return torch_times()
        case "torch enable()":
            import ternmem.torch

            ternmem.torch.enable(resource())
            return torch_times()
        case "cupy own":
            return cupy_times()
        case "cupy use()":
            import ternmem.cupy

            with ternmem.cupy.use(resource()):
                return cupy_times()
        case "numba own":
            return numba_times()
        case "numba enable()":
            import ternmem.numba

            ternmem.numba.enable(resource())
            return numba_times()
    raise ValueError(allocator)


def main() -> None:
    if len(sys.argv) == 2:
        print(json.dumps(measured(sys.argv[1])))
        return
    if not any(spec.startswith("cuda:") for spec in tern.devices()):
        sys.exit("this benchmark needs a GPU of NVIDIA, and there is none.")
    print(f"{'allocate and free':<24}{'allocator':<18}" + "".join(f"{name:>18}" for name in sizes))
    for call, names in allocators.items():
        own: dict[str, float] = {}
        for name in names:
            ran = subprocess.run([sys.executable, __file__, name], capture_output=True, text=True, check=False, timeout=120)
            if ran.returncode != 0:
                print(f"{call:<24}{name:<18}  {(ran.stderr.strip().splitlines() or ['failed'])[-1]}")
                continue
            times = json.loads(ran.stdout.splitlines()[-1])
            own = own or times
            print(f"{call:<24}{name:<18}" + "".join(f"{times[size]:>9.0f} ns {times[size] / own[size]:>4.2f}x" for size in sizes))


if __name__ == "__main__":
    main()
