"""Random programs of launches, against NumPy: memory of every kind, several streams, host access between."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

import ternmem as tern
from ternmem import Kernel, in_, inout, out, sim


def add(a: Any, b: Any, c: Any) -> None:
    c[:] = a + b


def twice(a: Any) -> None:
    a *= 2


def shift(a: Any, b: Any, by: int) -> None:
    b += a + by


def memory(device: tern.Device, kind: int, size: int) -> Any:
    if kind == 0:
        return tern.Buffer(size, "int64", device)
    if kind == 1:
        return tern.UnifiedBuffer(size, "int64", device=device)
    return tern.ManagedBuffer(size, "int64", device)


@pytest.mark.parametrize("spec", ["host", "sim"])
@pytest.mark.parametrize("seed", range(12))
def test_random_launches(spec: str, seed: int) -> None:
    choose = random.Random(seed)
    device = tern.open_device("host") if spec == "host" else sim.open(seed=seed)
    streams = [device.default_stream, device.stream("a"), device.stream("b")]
    kernels = [Kernel.from_function(device, function) for function in (add, twice, shift)]
    size = choose.choice([1, 7, 1000])
    buffers = [memory(device, number % 3, size) for number in range(6)]
    model = [np.full(size, number, "int64") for number in range(6)]
    for buffer, elements in zip(buffers, model, strict=True):
        buffer.copy_from(elements)
    for _ in range(120):
        i, j, k = choose.sample(range(6), 3)
        stream = choose.choice(streams)
        action = choose.randrange(8)
        if action == 0:
            kernels[0].launch(stream, size, in_(buffers[i]), in_(buffers[j]), out(buffers[k]))
            model[k] = model[i] + model[j]
        elif action == 1:
            kernels[1].launch(stream, size, inout(buffers[i]))
            model[i] = model[i] * 2
        elif action in (2, 3):
            by = choose.randrange(100)
            kernels[2].launch(stream, size, in_(buffers[i]), inout(buffers[j]), by)
            model[j] = model[j] + model[i] + by
        elif action == 4:
            buffers[i].fill(action, stream)
            model[i] = np.full(size, action, "int64")
        elif action == 5:
            model[i] = np.arange(size) + j
            buffers[i].copy_from(model[i])
        elif action == 6:
            np.testing.assert_array_equal(buffers[i].to_numpy(), model[i])
        else:
            # The memory stays alive for the launches that use it.
            kernels[2].launch(stream, size, in_(buffers[i]), inout(buffers[j]), 0)
            model[j] = model[j] + model[i]
            buffers[i] = memory(device, choose.randrange(3), size)
            model[i] = np.zeros(size, "int64")
            buffers[i].fill(0, stream)
        if action in (0, 1, 2, 3, 7) and any((elements > 1 << 38).any() for elements in model):
            for buffer, elements in zip(buffers, model, strict=True):
                elements[:] = 1
                buffer.fill(1)
    for buffer, elements in zip(buffers, model, strict=True):
        np.testing.assert_array_equal(buffer.to_numpy(), elements)
    device.synchronize()
    if spec == "sim":
        assert sim.findings(device) == []
