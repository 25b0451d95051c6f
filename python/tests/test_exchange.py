"""DLPack and the other protocols, with NumPy and with hand-made capsules."""

from __future__ import annotations

import ctypes
import gc
from typing import Any

import numpy as np
import pytest

import ternmem as tern

get_name = ctypes.pythonapi.PyCapsule_GetName
get_name.restype = ctypes.c_char_p
get_name.argtypes = [ctypes.py_object]


def made(device: tern.Device, shape: Any = (3, 4), dtype: str = "float32") -> tern.Buffer:
    buffer = tern.Buffer(shape, dtype, device)
    buffer.copy_from(np.arange(buffer.size).reshape(buffer.shape).astype(dtype))
    return buffer


@pytest.mark.parametrize(
    ("version", "name"),
    [(None, b"dltensor"), ((0, 8), b"dltensor"), ((1, 0), b"dltensor_versioned"), ((1, 3), b"dltensor_versioned"),
     ((10, 10), b"dltensor_versioned")],
)
def test_the_capsule_has_the_version_that_was_asked_for(version: Any, name: bytes) -> None:
    capsule = made(tern.open_device("host")).__dlpack__(max_version=version)
    assert get_name(capsule) == name


def test_bad_arguments_of_dlpack() -> None:
    buffer = made(tern.open_device("host"))
    with pytest.raises(TypeError):
        buffer.__dlpack__(1)  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        buffer.__dlpack__(unknown=1)  # type: ignore[call-arg]
    for version in (1, (1,), (1, 2, 3), ("1", "0")):
        with pytest.raises(ValueError, match="max_version"):
            buffer.__dlpack__(max_version=version)
    with pytest.raises(ValueError, match="copy"):
        buffer.__dlpack__(copy=1)
    for stream in (0, 5, -2, 1 << 80, "x", 1.5, True):
        with pytest.raises(ValueError, match="stream"):
            buffer.__dlpack__(stream=stream)
    for device in ((99, 0), (2, 1 << 30)):
        with pytest.raises(BufferError):
            buffer.__dlpack__(dl_device=device)


def test_a_device_that_is_not_the_first_of_its_backend_is_passed_to_an_import() -> None:
    device = tern.open_device("cuda:0?driver=sim")
    buffer = made(device)
    taken = tern.from_dlpack(buffer, device=device)
    assert isinstance(taken, tern.Buffer)
    assert taken.device == device
    np.testing.assert_array_equal(taken.to_numpy(), buffer.to_numpy())
    with pytest.raises(tern.Error):
        tern.from_dlpack(buffer, device=tern.open_device("sim:0"))


def test_streams_of_a_cuda_device() -> None:
    device = tern.open_device("cuda:0?driver=sim")
    buffer = made(device)
    assert buffer.__dlpack_device__() == (2, 0)
    for stream in (None, -1, 1):
        assert buffer.__dlpack__(stream=stream) is not None
    for wrong in (0, -2, "x", 1.5):
        with pytest.raises(ValueError, match="stream"):
            buffer.__dlpack__(stream=wrong)
    with tern.Stream(device) as own:
        assert buffer.__dlpack__(stream=own.handle) is not None


def test_a_dropped_capsule_frees_the_memory_once() -> None:
    device = tern.open_device("sim")
    pool = tern.Pool(device, limit_bytes=16 << 20)
    for version in (None, (1, 0)):
        buffer = tern.Buffer(1000, device=device, resource=pool).fill(1)
        capsule = buffer.__dlpack__(max_version=version)
        del buffer
        assert pool.statistics["live_blocks"] == 1
        del capsule
        gc.collect()
        tern.reclaim_exported()  # waits for the device, because users of the capsule may have queued work
        assert pool.statistics["live_blocks"] == 0


def test_numpy_shares_the_memory() -> None:
    buffer = made(tern.open_device("host"))
    array = np.from_dlpack(buffer)
    assert array.ctypes.data == buffer.ptr
    if not np.from_dlpack(np.zeros(1)).flags.writeable:  # NumPy 2.1 and 2.2.0
        array = buffer.numpy()
    array[0, 0] = 99
    assert buffer.to_numpy()[0, 0] == 99
    del buffer
    gc.collect()
    assert array[0, 0] == 99


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (5,), (2, 3, 4)])
def test_round_trips_through_numpy(shape: tuple[int, ...]) -> None:
    elements = np.arange(int(np.prod(shape)), dtype="int32").reshape(shape)
    taken = tern.from_dlpack(elements)
    assert isinstance(taken, tern.Buffer)
    assert taken.shape == shape
    np.testing.assert_array_equal(taken.to_numpy(), elements)
    np.testing.assert_array_equal(np.from_dlpack(taken), elements)


def test_imports_share_the_memory_and_keep_it_alive() -> None:
    elements = np.arange(12.0)
    taken = tern.from_dlpack(elements)
    assert isinstance(taken, tern.Buffer)
    assert taken.is_external
    assert taken.ptr == elements.ctypes.data
    elements[3] = 7
    assert taken.to_numpy()[3] == 7
    del elements
    gc.collect()
    assert taken.to_numpy()[3] == 7
    copied = tern.from_dlpack(np.arange(3.0), copy=True)
    assert isinstance(copied, tern.Buffer)
    assert not copied.is_external


def test_strided_tensors_keep_their_strides() -> None:
    elements = np.arange(24).reshape(4, 6)[:, ::2]
    taken = tern.from_dlpack(elements)
    assert isinstance(taken, tern.StridedBuffer)
    assert taken.shape == (4, 3)
    assert not taken.is_contiguous
    np.testing.assert_array_equal(taken.contiguous().to_numpy(), elements)


def test_read_only_arrays_stay_read_only() -> None:
    elements = np.arange(4.0)
    elements.flags.writeable = False
    taken = tern.from_dlpack(elements)
    assert isinstance(taken, tern.Buffer)
    with pytest.raises(ValueError):
        taken.fill(1)
    with pytest.raises(BufferError):
        taken.__dlpack__()
    assert not np.from_dlpack(taken).flags.writeable


def test_a_capsule_is_consumed_once() -> None:
    class Twice:
        def __init__(self) -> None:
            self.capsule = np.arange(3.0).__dlpack__()

        def __dlpack__(self, **_: Any) -> Any:
            return self.capsule

        def __dlpack_device__(self) -> tuple[int, int]:
            return (1, 0)

    producer = Twice()
    tern.from_dlpack(producer)
    with pytest.raises(BufferError, match="consumed"):
        tern.from_dlpack(producer)


def test_producers_of_other_kinds() -> None:
    class Old:
        def __dlpack__(self) -> Any:
            return np.arange(3.0).__dlpack__()

        def __dlpack_device__(self) -> tuple[int, int]:
            return (1, 0)

    taken = tern.from_dlpack(Old())
    assert isinstance(taken, tern.Buffer)
    np.testing.assert_array_equal(taken.to_numpy(), np.arange(3.0))

    class Failing(Old):
        def __dlpack__(self, **_: Any) -> Any:
            raise BufferError("not now")

    with pytest.raises(BufferError, match="not now"):
        tern.from_dlpack(Failing())

    class NoCapsule(Old):
        def __dlpack__(self, **_: Any) -> Any:
            return 1

    with pytest.raises(TypeError):
        tern.from_dlpack(NoCapsule())

    class Elsewhere(Old):
        def __dlpack_device__(self) -> tuple[int, int]:
            return (99, 0)

    with pytest.raises(BufferError):
        tern.from_dlpack(Elsewhere())
    for nothing in (None, 3, object()):
        with pytest.raises(TypeError):
            tern.from_dlpack(nothing)


def test_copies_to_the_host() -> None:
    buffer = made(tern.open_device("sim"))
    array = np.from_dlpack(buffer, device="cpu")
    np.testing.assert_array_equal(array, buffer.to_numpy())
    with pytest.raises(tern.CopyRequiredError):
        buffer.__dlpack__(dl_device=(1, 0), copy=False)


def test_the_buffer_protocol() -> None:
    buffer = made(tern.open_device("host"), (2, 3), "int32")
    view = memoryview(buffer)
    assert view.shape == (2, 3)
    assert view.format == "i"
    assert bytes(view) == np.arange(6, dtype="int32").tobytes()
    with pytest.raises(BufferError):
        memoryview(made(tern.open_device("sim")))
    with pytest.raises(BufferError):
        np.asarray(made(tern.open_device("sim")))


def test_the_cuda_array_interface() -> None:
    buffer = made(tern.open_device("cuda:0?driver=sim"))
    described = buffer.__cuda_array_interface__
    assert described["shape"] == (3, 4)
    assert described["typestr"] == "<f4"
    assert described["data"] == (buffer.ptr, False)
    assert described["version"] == 3
    assert described["strides"] is None
    assert described["stream"] not in (0, None)
    assert not hasattr(made(tern.open_device("host")), "__cuda_array_interface__")
    assert not hasattr(made(tern.open_device("sim")), "__cuda_array_interface__")


def test_leases_are_exported_too() -> None:
    device = tern.open_device("cuda:0?driver=sim")
    unified = tern.UnifiedBuffer((3, 4), device=device).fill(2)
    with unified.read_device() as lent:
        assert lent.__dlpack_device__() == (2, 0)
        with pytest.raises(BufferError):
            lent.__dlpack__()  # read-only needs a versioned capsule
        assert lent.__dlpack__(max_version=(1, 0)) is not None
        assert lent.__cuda_array_interface__["data"] == (lent.ptr, True)
    with unified.rw_device() as lent:
        assert lent.__dlpack__() is not None
        assert lent.__cuda_array_interface__["data"] == (lent.ptr, False)
    kept = unified.device
    unified.free()
    assert kept.__dlpack__() is not None


def test_from_numpy_copies_the_elements(device: tern.Device) -> None:
    values = np.arange(6, dtype="int16").reshape(2, 3)
    x = tern.Buffer.from_numpy(values, device, tag="grid")
    assert (x.shape, x.dtype, x.device) == ((2, 3), np.dtype("int16"), device)
    assert np.array_equal(x.to_numpy(), values)
    assert x.copy_from(values + 1) is x
    assert np.array_equal(x.to_numpy(), values + 1)


def test_a_buffer_of_a_device_is_copied_to_a_unified_buffer(device: tern.Device) -> None:
    source = tern.Buffer.from_numpy(np.arange(4, dtype="float32"), device)
    unified = tern.UnifiedBuffer((4,), "float32", device=device)
    unified.copy_from(source)
    assert np.array_equal(unified.to_numpy(), [0, 1, 2, 3])


def test_the_limits_of_a_pool_and_a_budget_can_change() -> None:
    pool = tern.Pool("sim:0", limit_bytes=4 << 20)
    budget = tern.Budget("small", 1000)
    resource = tern.BudgetResource(pool, budget)
    with pytest.raises(tern.OutOfBudgetError):
        tern.Buffer(4000, "int8", resource=resource).allocate()
    budget.set_limit(8 << 20)
    with pytest.raises(tern.OutOfMemoryError):
        tern.Buffer(6 << 20, "int8", resource=resource).allocate()
    pool.set_limit(8 << 20)
    x = tern.Buffer(6 << 20, "int8", resource=resource).allocate()
    assert (pool.limit_bytes, budget.limit_bytes) == (8 << 20, 8 << 20)
    assert f"limit_bytes={8 << 20}, live_bytes={x.nbytes}" in repr(pool)
    budget.set_limit(None)
    assert budget.limit_bytes is None


def test_reshape_takes_integers_a_sequence_and_one_open_extent(device: tern.Device) -> None:
    x = tern.Buffer.from_numpy(np.arange(12, dtype="int32"), device)
    assert x.reshape(3, 4).shape == x.reshape((3, 4)).shape == x.reshape(3, -1).shape == (3, 4)
    assert x.reshape(3, 4).reshape(-1).shape == x.reshape(12).shape == (12,)
    assert np.array_equal(x.reshape(-1, 6).to_numpy(), np.arange(12).reshape(2, 6))
    for wrong in ((5, -1), (0, -1), (5, 5)):
        with pytest.raises(tern.Error):
            x.reshape(*wrong)
    with pytest.raises(tern.InvalidArgumentError):
        x.reshape(-1, -1)


def test_parts_are_written_by_index(device: tern.Device) -> None:
    x = tern.Buffer.from_numpy(np.zeros((3, 2), "float32"), device)
    x[0] = 1
    x[1:3] = [[2, 3], [4, 5]]
    x[2] = x[0]
    assert np.array_equal(x.to_numpy(), [[1, 1], [2, 3], [1, 1]])
    with pytest.raises(tern.ShapeMismatchError):
        x[0] = [1, 2, 3]
    with pytest.raises(tern.Error):
        x[7] = 1
