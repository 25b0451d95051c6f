"""Random programs on UnifiedBuffer against a NumPy array that does the same."""

from __future__ import annotations

import os
import random

import numpy as np
import pytest

import ternmem as tern
from ternmem import BufferState, UnifiedBuffer

programs = int(os.environ.get("TERN_PYTHON_PROGRAMS", "1000"))


def run(device: tern.Device, seed: int) -> None:
    choose = random.Random(seed)
    shape = choose.choice([(7,), (4, 5), (2, 3, 4), (1000,), ()])
    dtype = choose.choice(["float32", "int64", "uint8", "complex64", "float16"])
    buffer = UnifiedBuffer(shape, dtype, device=device)
    model = np.zeros(shape, dtype)
    is_written = False
    kept: list[np.ndarray] = []
    for _ in range(choose.randint(5, 25)):
        action = choose.randrange(14)
        value = choose.randint(0, 100)
        if action == 0:
            buffer.fill(value)
            model[...] = value
            is_written = True
        elif action == 1:
            elements = np.random.default_rng(seed + value).integers(0, 100, shape).astype(dtype)
            buffer.copy_from(elements)
            model[...] = elements
            is_written = True
        elif action == 2:
            with buffer.discard_host() as array:
                array[...] = value
                kept.append(array)
            model[...] = value
            is_written = True
        elif action == 3 and is_written:
            with buffer.rw_host() as array:
                array[...] += 1
            model += 1
        elif action == 4 and is_written:
            with buffer.read_host() as array:
                np.testing.assert_array_equal(array, model)
                kept.append(array[...])
        elif action == 5 and is_written:
            np.testing.assert_array_equal(buffer.to_numpy(), model)
        elif action == 6 and is_written:
            buffer.sync_to_device()
        elif action == 7 and is_written:
            buffer.drop_host()
        elif action == 8 and is_written:
            buffer.drop_device()
        elif action == 9 and is_written:
            with buffer.rw_device():
                pass
        elif action == 10 and is_written:
            buffer.host[...] = value
            model[...] = value
        elif action == 11 and is_written and shape and model.size:
            buffer[0] = value
            model[0] = value
        elif action == 12 and is_written:
            buffer.synchronize()
        elif action == 13 and choose.random() < 0.2:
            buffer.free()
            is_written = False
        assert (buffer.state is BufferState.UNINITIALIZED) == (not is_written)
    if is_written:
        np.testing.assert_array_equal(buffer.to_numpy(), model)
        buffer.compare()
    for array in kept:
        array.sum()  # valid memory


@pytest.mark.parametrize("part", range(10))
def test_random_programs_agree_with_numpy(device: tern.Device, part: int) -> None:
    for seed in range(part, programs, 10):
        try:
            run(device, seed)
        except BaseException:
            print(f"seed {seed} on {device.spec}")
            raise
