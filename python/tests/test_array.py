"""Array: elements that are allocated at once and can grow."""

from __future__ import annotations

import numpy as np
import pytest

import ternmem as tern
from ternmem import Array, sim


def test_arrays_have_memory_at_once(device: tern.Device) -> None:
    array = Array.zeros(10, "int16", device)
    assert (array.size, array.numel, len(array), array.nbytes, array.shape) == (10, 10, 10, 20, (10,))
    assert array.dtype == np.int16
    assert array.device == device
    assert array.ptr != 0
    assert (array.to_numpy() == 0).all()
    assert "Array(size=10" in repr(array)
    fresh = Array.uninitialized(4, device=device)
    assert fresh.dtype == np.float32
    with pytest.raises(tern.NeverWrittenError):
        fresh.to_numpy()
    empty = Array.zeros(0, device=device)
    assert empty.to_numpy().shape == (0,)


def test_float16_keeps_its_bits(device: tern.Device) -> None:
    bits = (np.arange(64, dtype="uint16") * 1021).view("float16")
    np.testing.assert_array_equal(Array(bits, device=device).to_numpy().view("uint16"), bits.view("uint16"))


def test_arrays_grow_and_shrink(device: tern.Device) -> None:
    array = Array(np.arange(100), device=device)
    array.resize(1000)
    assert array.size == 1000
    with pytest.raises(tern.NeverWrittenError):
        array.to_numpy()
    np.testing.assert_array_equal(array.slice(0, 100).to_numpy(), np.arange(100))
    assert array.capacity >= 1000
    array.resize(50)
    np.testing.assert_array_equal(array.to_numpy(), np.arange(50))
    address = array.ptr
    array.resize(60)
    assert array.ptr == address  # in place
    other = array.slice(0, 10)
    array.resize(100000)
    array.fill(7)
    np.testing.assert_array_equal(other.to_numpy(), np.arange(10))  # kept the old memory
    assert (array.to_numpy() == 7).all()


def test_slices_and_buffers_share_the_memory(device: tern.Device) -> None:
    array = Array(np.arange(10.0), device=device)
    array.slice(2, 3).copy_from([0, 0, 0])
    np.testing.assert_array_equal(array.buffer.to_numpy(), [0, 1, 0, 0, 0, 5, 6, 7, 8, 9])
    array.buffer.fill(1)
    assert (array.to_numpy() == 1).all()


def test_kernels_take_arrays() -> None:
    device = sim.open(seed=3)
    array = Array(np.arange(10.0), device=device)
    tern.Kernel.from_function(device, lambda x: np.multiply(x, 2, out=x)).launch(None, 10, tern.inout(array))
    np.testing.assert_array_equal(array.to_numpy(), np.arange(10.0) * 2)
    assert sim.findings(device) == []


def test_exchange() -> None:
    array = Array(np.arange(10.0), device="host")
    np.testing.assert_array_equal(np.from_dlpack(array), np.arange(10.0))


def test_bad_arguments(device: tern.Device) -> None:
    for dtype in (np.dtype([("a", "f4")]), ">f4", "M8[s]", object):
        with pytest.raises(TypeError):
            Array.zeros(4, dtype, device)
    for count in (-1, -(1 << 70)):
        with pytest.raises(ValueError, match="negative"):
            Array.zeros(count, device=device)
    with pytest.raises(OverflowError):
        Array.zeros(1 << 62, device=device)
    with pytest.raises(TypeError):
        Array.zeros("a", device=device)
    with pytest.raises(ValueError):
        Array(np.zeros((2, 2)), device=device)
    with pytest.raises(TypeError):
        Array([object()], device=device)
    with pytest.raises(TypeError):
        Array([1.5], "int32", device)
    array = Array.zeros(4, device=device)
    for first, count in ((3, 2), (5, 0), (1 << 62, 1), (0, 1 << 62)):
        with pytest.raises(IndexError):
            array.slice(first, count)
    with pytest.raises(ValueError, match="negative"):
        array.slice(-1, 1)
    with pytest.raises(ValueError):
        array.copy_from([1, 2, 3])
    with pytest.raises(ValueError, match="negative"):
        array.resize(-1)
    with pytest.raises((OverflowError, MemoryError)):
        array.resize(1 << 61)
    with pytest.raises(ValueError):
        array.slice(1, 2).resize(3)
    assert (array.to_numpy() == 0).all()


def test_a_gate_covers_arrays(accelerator: tern.Device) -> None:
    array = Array.zeros(5000, device=accelerator)
    with tern.TransferGate(), pytest.raises(tern.DownloadRefusedError):
        array.to_numpy()
