"""GrowingArray: elements are added at its end, and it never moves. Scalar: one value of a device."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import ternmem as tern
from ternmem import Array, GrowingArray, Scalar, sim


def test_grows_from_all_kinds_of_elements(device: tern.Device) -> None:
    array = GrowingArray("int32", device)
    assert (array.size, array.nbytes, len(array), array.shape, array.ptr) == (0, 0, 0, (0,), 0)
    assert array.resident_bytes == 0
    array.append(np.arange(100, dtype="int32"))
    array.append([100, 101])
    array.append(Array(np.arange(102, 110, dtype="int32"), device=device))
    array.append(tern.Buffer.from_numpy(np.arange(110, 120, dtype="int32"), device))
    array.push_back(120)
    np.testing.assert_array_equal(array.to_numpy(), np.arange(121))
    np.testing.assert_array_equal(array.slice(100, 3).to_numpy(), [100, 101, 102])
    assert array.dtype == np.int32
    assert array.device == device
    assert array.capacity >= 121
    assert array.max_size > array.capacity
    assert "GrowingArray(size=121" in repr(array)


def test_grows_from_another_growing_array(device: tern.Device) -> None:
    one, two = GrowingArray(device=device), GrowingArray(device=device)
    one.append([1.0, 2.0])
    two.append(one)
    two.append(one)
    np.testing.assert_array_equal(two.to_numpy(), [1, 2, 1, 2])


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int8", "uint64"])
def test_takes_python_integers_of_any_width(device: tern.Device, dtype: str) -> None:
    array = GrowingArray(dtype, device)
    array.append([0, 1, 127])
    array.append((2, 3))
    np.testing.assert_array_equal(array.to_numpy(), np.array([0, 1, 127, 2, 3], dtype))
    with pytest.raises((tern.Error, OverflowError), match="cannot be converted"):
        array.append([1, 1 << 64])
    with pytest.raises(tern.Error, match="same kind"):
        array.append([1.5])
    assert array.size == 5


def test_does_not_move() -> None:
    array = GrowingArray("uint8", sim.open())
    array.push_back(1)
    address = array.ptr
    for _ in range(20):
        array.append(np.ones(1 << 20, dtype="uint8"))
    assert array.ptr == address
    assert array.moved_bytes == 0
    assert array.size == 20 * (1 << 20) + 1


def test_counts_pages_and_addresses_apart() -> None:
    device = sim.open()
    budget = tern.Budget("rows", 8 << 20)
    array = GrowingArray("uint8", device, reserved_bytes=64 << 20, budget=budget, tag="rows")
    array.resize(1)
    assert array.reserved_bytes == 64 << 20
    assert array.resident_bytes == budget.used_bytes == 2 << 20
    with pytest.raises(tern.OutOfBudgetError):
        array.resize(9 << 20)
    with pytest.raises(tern.CapacityError, match="Make it with more reserved_bytes"):
        array.resize((64 << 20) + 1)
    assert (array.size, budget.used_bytes) == (1, 2 << 20)
    array.clear()
    array.shrink_to_fit()
    device.synchronize()
    array.reclaim()
    assert (array.resident_bytes, array.pending_bytes, budget.used_bytes) == (0, 0, 0)


def test_new_elements_have_no_value(device: tern.Device) -> None:
    array = GrowingArray(device=device)
    array.append([1.0])
    array.reserve(1000)
    array.resize(3)
    with pytest.raises(tern.NeverWrittenError):
        array.to_numpy()
    array.slice(1, 2).fill(2)
    np.testing.assert_array_equal(array.to_numpy(), [1, 2, 2])


def test_does_not_shrink_while_others_share_it(device: tern.Device) -> None:
    array = GrowingArray(device=device)
    array.append([1.0, 2.0])
    part = array.slice(0, 1)
    with pytest.raises(tern.AccessConflictError):
        array.clear()
    del part
    array.clear()
    assert array.size == 0


def test_refuses_wrong_arguments(device: tern.Device) -> None:
    array = GrowingArray("int32", device)
    with pytest.raises(TypeError):
        array.append([1.5])
    with pytest.raises(tern.TypeMismatchError):
        array.append(Array([1.5], device=device))
    with pytest.raises(tern.Error):
        array.resize(-1)
    with pytest.raises(tern.SizeOverflowError):
        array.resize(2**63)
    with pytest.raises(TypeError):
        GrowingArray("int32", device, reserved_bytes="many")  # type: ignore[arg-type]
    assert array.size == 0


def test_serves_several_threads(device: tern.Device) -> None:
    array = GrowingArray("int64", device)

    def add(value: int) -> None:
        for _ in range(50):
            array.push_back(value)

    threads = [threading.Thread(target=add, args=(value,)) for value in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    values, counts = np.unique(array.to_numpy(), return_counts=True)
    assert (values.tolist(), counts.tolist()) == ([0, 1, 2, 3], [50] * 4)


def test_scalars_are_set_and_read_in_stream_order(device: tern.Device) -> None:
    stream, other = tern.Stream(device), tern.Stream(device)
    scalar = Scalar(1.5, "float64", device, stream)
    assert scalar.get(stream) == 1.5
    scalar.set(2.5, other)
    assert scalar.get(stream) == 2.5
    assert isinstance(scalar.get(), float)
    assert scalar.array.size == 1
    assert scalar.dtype == np.float64
    assert "Scalar(" in repr(scalar)
    with pytest.raises(tern.NeverWrittenError):
        Scalar(dtype="int32", device=device).get()


def test_kernels_use_both() -> None:
    device = sim.open()
    array = GrowingArray("float32", device)
    array.append([1, 2, 3])
    total = Scalar(0, "float32", device)

    def add(x: Any, sum_: Any) -> None:
        sum_[0] += x.sum()
        x *= 2

    kernel = tern.Kernel.from_function(device, add)
    kernel.launch(None, 1, tern.inout(array), tern.inout(total))
    assert total.get() == 6
    np.testing.assert_array_equal(array.to_numpy(), [2, 4, 6])
    with pytest.raises(tern.TypeMismatchError):
        kernel.launch(None, 1, array, tern.inout(total))
