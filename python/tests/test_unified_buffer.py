"""The contract of UnifiedBuffer: constructor, states, verbs and documented sequences."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest

import ternmem as tern
from ternmem import BufferState, UnifiedBuffer


def made(device: tern.Device, shape: Any = 1000, dtype: Any = "float32") -> UnifiedBuffer:
    return UnifiedBuffer(shape, dtype, device=device)


def state_of(buffer: UnifiedBuffer) -> BufferState:
    """A function, because type checkers take a property for constant between two asserts."""
    return buffer.state


# --- Constructor and queries


def test_a_new_buffer_has_no_memory(device: tern.Device) -> None:
    buffer = made(device, (1024,))
    assert buffer.shape == (1024,)
    assert buffer.dtype == np.float32
    assert buffer.nbytes == 4096
    assert buffer.size == len(buffer) == 1024
    assert state_of(buffer) is BufferState.UNINITIALIZED
    assert not buffer.is_allocated


@pytest.mark.parametrize(("shape", "size"), [((), 1), (0, 0), ((3, 0, 2), 0), (7, 7), ([2, 3], 6)])
def test_shapes(device: tern.Device, shape: Any, size: int) -> None:
    buffer = made(device, shape)
    assert buffer.size == size
    buffer.zeros()
    assert buffer.to_numpy().shape == buffer.shape


def test_bad_arguments(device: tern.Device) -> None:
    with pytest.raises(ValueError, match="negative"):
        made(device, -1)
    with pytest.raises(ValueError, match="negative"):
        made(device, (2, -3))
    with pytest.raises(OverflowError):
        made(device, (1 << 40, 1 << 40))
    with pytest.raises(TypeError):
        UnifiedBuffer(4, "float32", True)  # type: ignore[call-arg]
    for dtype in (np.dtype([("a", "f4")]), ">f4", "M8[s]", "U3", object, "no such type"):
        with pytest.raises(TypeError):
            made(device, 4, dtype)
    with pytest.raises(TypeError):
        made(device, 1.5)
    with pytest.raises(TypeError):
        len(made(device, ()))


def test_every_state_has_its_value() -> None:
    assert [state.value for state in BufferState] == [
        "uninitialized",
        "host_only",
        "device_only",
        "synchronized",
        "host_dirty",
        "device_dirty",
        "mixed",
    ]
    assert BufferState("host_dirty") is BufferState.HOST_DIRTY


@pytest.mark.parametrize(
    "dtype",
    ["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32",
     "float64", "complex64", "complex128"],
)
def test_every_dtype_keeps_its_bits(device: tern.Device, dtype: str) -> None:
    elements = np.arange(24).reshape(4, 6).astype(dtype)
    buffer = made(device, (4, 6), dtype)
    buffer.copy_from(elements)
    buffer.sync_to_device()
    buffer.mark_device_dirty()
    assert buffer.dtype == np.dtype(dtype)
    np.testing.assert_array_equal(buffer.to_numpy(), elements)


# --- The two sides


def test_the_documented_sequences(device: tern.Device) -> None:
    for shape in (1000, (1024, 1024)):
        buffer = made(device, shape)
        buffer.host[:] = 1.0
        assert state_of(buffer) is BufferState.HOST_DIRTY
        buffer.sync_to_device()
        assert state_of(buffer) is BufferState.SYNCHRONIZED
        buffer.mark_device_dirty()
        assert state_of(buffer) is BufferState.DEVICE_DIRTY
        buffer.sync_to_host()
        assert state_of(buffer) is BufferState.SYNCHRONIZED
        buffer.host[...] = 2.0
        assert state_of(buffer) is BufferState.HOST_DIRTY
        assert buffer.device is not None
        assert state_of(buffer) is BufferState.SYNCHRONIZED
        assert (buffer.to_numpy() == 2.0).all()
        assert state_of(buffer) is BufferState.SYNCHRONIZED


def test_a_second_access_of_the_device_moves_nothing(accelerator: tern.Device) -> None:
    buffer = made(accelerator)
    buffer.host[:] = 3
    assert buffer.device.ptr == buffer.device.ptr
    assert buffer.statistics["to_device"] == {"copies": 1, "bytes": 4000}


def test_without_an_accelerator_both_sides_are_one_array() -> None:
    buffer = made(tern.open_device("host"))
    assert buffer.device is buffer.host
    buffer.host[:] = 5
    assert buffer.device is buffer.host
    assert buffer.statistics["moved"]["bytes"] == 0
    buffer.sync_to_device()
    buffer.mark_device_dirty()
    assert state_of(buffer) is BufferState.DEVICE_DIRTY
    buffer.sync_to_host()
    assert state_of(buffer) is BufferState.SYNCHRONIZED
    assert (buffer.host == 5).all()


def test_reads_never_make_the_host_dirty(device: tern.Device) -> None:
    buffer = made(device, (3, 4))
    with pytest.raises(tern.NeverWrittenError):
        np.asarray(buffer)
    with pytest.raises(tern.NeverWrittenError):
        buffer.sync_to_device()
    with pytest.raises(tern.NeverWrittenError):
        buffer.sync_to_host()
    buffer.fill(1)
    buffer.sync_to_device()
    array = np.asarray(buffer)
    with pytest.raises(ValueError, match="read-only"):
        array[0, 0] = 2
    assert buffer[1, 2] == 1
    assert buffer.to_numpy().flags.writeable
    with buffer.read_host() as lent:
        assert not lent.flags.writeable
    assert state_of(buffer) is BufferState.SYNCHRONIZED


def test_items_are_written_through_the_host(device: tern.Device) -> None:
    buffer = made(device, (3, 4)).zeros()
    buffer.sync_to_device()
    buffer[1] = 7
    assert state_of(buffer) is BufferState.HOST_DIRTY
    assert (buffer[1] == 7).all()
    assert buffer[0, 0] == 0
    with pytest.raises(IndexError):
        buffer[9] = 1
    with pytest.raises(ValueError, match="broadcast|convert"):
        buffer[1] = [1, 2, 3]
    assert (buffer[1] == 7).all()


def test_fill_runs_where_the_data_is(accelerator: tern.Device) -> None:
    buffer = made(accelerator)
    buffer.fill(1)
    assert state_of(buffer) is BufferState.HOST_DIRTY
    buffer.sync_to_device()
    buffer.drop_host()
    assert state_of(buffer) is BufferState.DEVICE_ONLY
    before = buffer.statistics["moved"]["bytes"]
    buffer.fill(2)
    assert buffer.statistics["moved"]["bytes"] == before
    assert state_of(buffer) is BufferState.DEVICE_ONLY
    assert (buffer.to_numpy() == 2).all()


def test_drops_tell_which_side_is_left(accelerator: tern.Device) -> None:
    buffer = made(accelerator).zeros()
    buffer.sync_to_device()
    buffer.drop_device()
    assert state_of(buffer) is BufferState.HOST_ONLY
    buffer.sync_to_device()
    buffer.drop_host()
    assert state_of(buffer) is BufferState.DEVICE_ONLY
    buffer.free()
    assert state_of(buffer) is BufferState.UNINITIALIZED
    assert not buffer.is_allocated


def test_marks_need_a_copy_and_no_newer_bytes(accelerator: tern.Device) -> None:
    buffer = made(accelerator)
    with pytest.raises(tern.BufferNotAllocatedError):
        buffer.mark_device_dirty()
    with pytest.raises(BufferError):
        buffer.mark_host_dirty()
    buffer.host[:] = 1
    buffer.sync_to_device()
    buffer.mark_device_dirty()
    with pytest.raises(tern.CoherenceConflictError):
        buffer.mark_host_dirty()


def test_allocate_writes_nothing(device: tern.Device) -> None:
    buffer = made(device).allocate()
    assert buffer.is_allocated
    assert state_of(buffer) is BufferState.UNINITIALIZED
    buffer.fill(4)
    assert (buffer.allocate().to_numpy() == 4).all()


def test_copies_check_shape_and_kind(device: tern.Device) -> None:
    buffer = made(device, (2, 3))
    with pytest.raises(ValueError, match="shape"):
        buffer.copy_from(np.zeros(3, "f4"))
    with pytest.raises(TypeError):
        buffer.copy_from(np.zeros((2, 3), "complex64"))
    with pytest.raises(TypeError):
        made(device, 3, "int32").copy_from(np.zeros(3, "f4"))
    buffer.copy_from(np.arange(6, dtype="float64").reshape(2, 3))
    assert state_of(buffer) is BufferState.HOST_DIRTY
    buffer.copy_from(np.asfortranarray(np.arange(6).reshape(2, 3)))
    out = np.zeros((2, 3))
    buffer.copy_to(out)
    np.testing.assert_array_equal(out, np.arange(6).reshape(2, 3))


def test_an_independent_copy_is_independent(device: tern.Device) -> None:
    buffer = made(device).fill(1)
    out = buffer.to_numpy()
    out[:] = 9
    assert (buffer.to_numpy() == 1).all()


def test_checked_buffers_find_writes_through_a_kept_array(accelerator: tern.Device) -> None:
    buffer = UnifiedBuffer(1000, device=accelerator, checked=True)
    kept = buffer.host
    kept[:] = 1
    buffer.sync_to_device()
    buffer.host[:] = 2
    buffer.host[:] = 3
    assert (buffer.to_numpy() == 3).all()
    buffer.sync_to_device()
    kept[:] = 4
    with pytest.raises(tern.ViolationError, match="mark_host_dirty"):
        buffer.device
    buffer.mark_host_dirty()
    buffer.sync_to_device()
    buffer.drop_host()
    assert (buffer.to_numpy() == 4).all()


def test_there_is_no_metal(device: tern.Device) -> None:
    buffer = made(device)
    with pytest.raises(tern.MetalError):
        buffer.metal
    with pytest.raises(NotImplementedError):
        buffer.mark_metal_dirty()
    assert state_of(buffer) is BufferState.UNINITIALIZED


def test_page_locked_memory_is_required_or_not_used(device: tern.Device) -> None:
    plain = UnifiedBuffer(1000, device=device).fill(1)
    assert not plain.is_pinned
    if device.can("host_access") and not device.is_host:
        with pytest.raises(NotImplementedError):
            UnifiedBuffer(1000, device=device, pinned=True)
    else:
        assert UnifiedBuffer(1000, device=device, pinned=True).fill(1).is_pinned == (not device.is_host)
    with pytest.raises(ValueError, match="pinned"):
        UnifiedBuffer(1, device=device, pinned="maybe")


def test_copies_and_pickles(device: tern.Device) -> None:
    buffer = made(device, (3, 4)).fill(6)
    for other in (copy.copy(buffer), copy.deepcopy(buffer), pickle.loads(pickle.dumps(buffer))):
        np.testing.assert_array_equal(other.to_numpy(), buffer.to_numpy())
        other[0] = 1
        assert (buffer.to_numpy() == 6).all()
    assert copy.deepcopy(made(device)).state is BufferState.UNINITIALIZED
    large = made(device, 1 << 20).fill(2)
    out_of_band: list[pickle.PickleBuffer] = []
    in_band = pickle.dumps(large, protocol=5, buffer_callback=out_of_band.append)
    assert len(in_band) < 1000
    assert sum(len(one.raw()) for one in out_of_band) == large.nbytes


def test_what_it_says_about_itself(device: tern.Device) -> None:
    buffer = made(device, (2, 3))
    assert "UnifiedBuffer(shape=(2, 3), dtype=float32, state=uninitialized" in repr(buffer)
    assert "<table>" in buffer._repr_html_()
    assert device.spec in buffer._repr_html_()
    assert "nbytes=24)" in repr(buffer)
    UnifiedBuffer[np.float32]  # type: ignore[misc]  # for annotations


def test_memory_summary_names_the_device_and_its_default_resource(device: tern.Device) -> None:
    previous = tern.default_resource(device)
    assert f"default resource '{previous.name}': " in tern.memory_summary(device)
    tern.set_default_resource(tern.BudgetResource(tern.Pool(device), tern.Budget("summary", 1 << 20)))
    try:
        buffer = tern.Buffer(1000, "uint8", device).allocate()
        lines = tern.memory_summary(device).splitlines()
        assert lines[0].startswith(f"{device.spec}: ")
        assert device.name in lines[0]
        assert lines[1].startswith("  default resource 'budget(pool)': ")
        assert "live in 1 blocks" in lines[1]
        assert lines[2].startswith("all unified buffers copied ")
        del buffer
    finally:
        tern.set_default_resource(previous)
    assert tern.memory_summary("host").startswith("host: ")
    assert tern.memory_summary().startswith(f"{tern.current_device().spec}: ")
    with pytest.raises(TypeError, match="a device is"):
        tern.memory_summary(3.5)  # type: ignore[arg-type]


# --- Leases, and arrays that outlive them


def test_leases_say_who_wrote(accelerator: tern.Device) -> None:
    buffer = made(accelerator)
    with buffer.discard_host() as array:
        array[:] = 1
    assert state_of(buffer) is BufferState.HOST_DIRTY
    with buffer.rw_device() as lent:
        assert lent.shape == (1000,)
        assert lent.ptr != 0
        assert not lent.is_read_only
    assert state_of(buffer) is BufferState.DEVICE_DIRTY
    with buffer.read_device() as lent:
        assert lent.is_read_only
    with buffer.rw_host() as array:
        array += 1
    assert state_of(buffer) is BufferState.HOST_DIRTY
    assert (buffer.to_numpy() == 2).all()


def test_a_conflict_names_both_lines(device: tern.Device) -> None:
    buffer = made(device).zeros()
    with buffer.rw_host():
        with pytest.raises(tern.AccessConflictError) as caught:
            buffer.rw_host()
        assert __file__ in str(caught.value)
        with pytest.raises(tern.AccessConflictError):
            buffer.rw_host(wait=0.01)
    with buffer.rw_host() as array:
        array[:] = 1


def test_a_lease_keeps_its_stream(device: tern.Device) -> None:
    buffer = made(device).fill(1)
    with buffer.rw_device(tern.Stream(device)) as array:
        assert array.shape == (1000,)
    assert (buffer.to_numpy() == 1).all()


def test_an_exception_abandons_a_discard_lease(device: tern.Device) -> None:
    buffer = made(device)
    with pytest.raises(RuntimeError, match="in the middle"), buffer.discard_host() as array:
        array[:10] = 1
        raise RuntimeError("in the middle")
    assert state_of(buffer) is BufferState.UNINITIALIZED
    lease = buffer.discard_host()
    lease.array[:10] = 1
    lease.commit(10)
    assert not lease.is_open
    assert state_of(buffer) is BufferState.MIXED


def test_arrays_outlive_their_lease(device: tern.Device) -> None:
    buffer = made(device).fill(3)
    with buffer.read_host() as array:
        kept = np.asarray(array)
        part = array[10:20]
    with buffer.rw_host() as array:
        written = array
        array[:] = 4
    assert not written.flags.writeable
    # The next access is no conflict, and the memory stays valid after the buffer is gone.
    buffer.fill(5)
    buffer.free()
    del buffer
    other = [made(device).fill(9) for _ in range(4)]
    assert kept[0] in (4, 5)
    assert part.shape == (10,)
    assert (written == kept).all()
    del other


def test_a_kept_array_is_not_evicted_or_overwritten_by_a_new_copy(accelerator: tern.Device) -> None:
    buffer = made(accelerator).fill(3)
    buffer.sync_to_device()
    with buffer.read_host() as array:
        kept = np.asarray(array)
    buffer.drop_host()
    buffer.fill(8)
    assert (buffer.to_numpy() == 8).all()
    assert (kept == 3).all(), "the array has the memory of the copy that was dropped"


def test_a_lease_shows_whether_it_is_open(device: tern.Device) -> None:
    x = tern.UnifiedBuffer((2, 3), "int16", device=device).fill(1)
    lease = x.read_host()
    assert repr(lease) == f"HostLease(open, shape=(2, 3), dtype=int16, device='{device.spec}')"
    lease.close()
    assert repr(lease).startswith("HostLease(closed")
    with x.read_device() as _:
        pass
    assert "DeviceLease(open" in repr(x.read_device())
