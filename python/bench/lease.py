"""Times of leases and of DLPack round trips, beside those of torch.

    python python/bench/lease.py [DEVICE]
"""

from __future__ import annotations

import sys
import timeit
from collections.abc import Callable
from typing import Any

import numpy as np

import ternmem as tern


def ns(body: Callable[[], Any], repeats: int = 20000) -> float:
    """The best of seven runs, per call."""
    body()
    return min(timeit.repeat(body, number=repeats, repeat=7)) / repeats * 1e9


def report(what: str, time: float, beside: str = "") -> None:
    print(f"{what:<44}{time:>9.0f} ns  {beside}")


def leases(device: tern.Device) -> None:
    x = tern.UnifiedBuffer(1024, "float32", device=device).fill(1)
    x.sync_to_device()

    def read_host() -> None:
        x.read_host().close()

    def with_array() -> None:
        with x.read_host():
            pass

    def read_device() -> None:
        x.read_device().close()

    def with_device() -> None:
        with x.read_device():
            pass

    report("host lease, open and close", ns(read_host), "goal 1500")
    report("host lease with a NumPy array", ns(with_array))
    report("device lease, open and close", ns(read_device), "goal 1500")
    report("device lease with a DeviceArray", ns(with_device))


def round_trips(device: tern.Device) -> None:
    array = np.zeros(1024, "float32")
    buffer = tern.Buffer(1024, "float32", "host").fill(1)
    report("numpy to numpy", ns(lambda: np.from_dlpack(array)))
    report("tern to numpy", ns(lambda: np.from_dlpack(buffer)))
    report("numpy to tern", ns(lambda: tern.from_dlpack(array)))
    try:
        import torch
    except ImportError:
        print("torch is not installed, so its round trips are not measured")
        return
    torch_round_trips(torch, buffer, torch.zeros(1024), "")
    if device.spec == "cuda:0" and torch.cuda.is_available():
        there = tern.Buffer(1024, "float32", device).fill(1)
        device.synchronize()
        torch_round_trips(torch, there, torch.zeros(1024, device="cuda"), " on cuda")


def torch_round_trips(torch: Any, buffer: tern.Buffer, tensor: Any, where: str) -> None:
    own = ns(lambda: torch.from_dlpack(tensor))
    there, back = ns(lambda: torch.from_dlpack(buffer)), ns(lambda: tern.from_dlpack(tensor))
    report(f"torch to torch{where}", own)
    report(f"tern to torch{where}", there, f"{there / own:.2f} x torch to torch, goal 2")
    report(f"torch to tern{where}", back, f"{back / own:.2f} x torch to torch, goal 2")


def main(arguments: list[str]) -> None:
    device = tern.open_device(arguments[0]) if arguments else tern.best_device()
    print(f"ternmem {tern.__version__} on {device.spec}")
    leases(device)
    round_trips(device)


if __name__ == "__main__":
    main(sys.argv[1:])
