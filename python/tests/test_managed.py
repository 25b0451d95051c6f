"""Managed memory: buffers, leases, policies, hints and prefetch plans."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import ternmem as tern
from ternmem import Hints, ManagedBuffer, MigrationPolicy, PrefetchPlan, sim


@pytest.fixture
def place(device: tern.Device) -> tern.Device:
    """A device with managed memory."""
    if not device.can("managed_memory"):
        pytest.skip("the device has no managed memory")
    return device


@pytest.fixture
def simulated() -> Iterator[tern.Device]:
    """A simulated device of its own, which takes every hint."""
    device = sim.open(seed=3)
    yield device
    assert sim.findings(device) == []


# --- Buffers


def test_a_new_buffer_has_no_memory(place: tern.Device) -> None:
    buffer = ManagedBuffer((3, 4), "int32", place)
    assert (buffer.shape, buffer.dtype, buffer.size, buffer.ndim, buffer.nbytes) == ((3, 4), np.int32, 12, 2, 48)
    assert len(buffer) == 3
    assert buffer.device == place
    assert not buffer.is_allocated
    assert "ManagedBuffer(shape=(3, 4)" in repr(buffer)


@pytest.mark.parametrize("shape", [(), 0, (3, 0, 2), 7, [2, 3]])
def test_shapes(place: tern.Device, shape: Any) -> None:
    elements = np.ones(shape, "float64")
    buffer = ManagedBuffer(shape, "float64", place)
    buffer.copy_from(elements)
    np.testing.assert_array_equal(buffer.to_numpy(), elements)


def test_bad_arguments(place: tern.Device) -> None:
    for dtype in (np.dtype([("a", "f4")]), ">f4", "M8[s]", object):
        with pytest.raises(TypeError) as raised:
            ManagedBuffer(4, dtype, place)
        assert isinstance(raised.value, tern.Error)
    with pytest.raises(ValueError, match="negative"):
        ManagedBuffer(-1, device=place)
    with pytest.raises(OverflowError):
        ManagedBuffer((1 << 40, 1 << 40), device=place)
    with pytest.raises(TypeError):
        len(ManagedBuffer((), device=place))
    buffer = ManagedBuffer(8, "float32", place)
    with pytest.raises(tern.ShapeMismatchError):
        buffer.copy_from(np.zeros(7, "float32"))
    with pytest.raises(tern.TypeMismatchError):
        buffer.copy_from(np.zeros(8, "complex64"))
    with pytest.raises(IndexError):
        buffer.slice(4, 5)
    with pytest.raises(ValueError, match="negative"):
        buffer.slice(-1, 2)
    with pytest.raises(TypeError):
        buffer.slice("a", 2)
    with pytest.raises(tern.NeverWrittenError):
        buffer.to_numpy()
    with pytest.raises(tern.NeverWrittenError):
        np.asarray(buffer)


def test_a_device_without_managed_memory_is_an_error() -> None:
    for spec in tern.devices():
        device = tern.open_device(spec)
        if not device.can("managed_memory"):
            with pytest.raises(NotImplementedError):
                ManagedBuffer(4, device=device)


def test_host_leases(place: tern.Device) -> None:
    buffer = ManagedBuffer((2, 3), "float32", place)
    with buffer.discard_host() as array:
        array[:] = np.arange(6).reshape(2, 3)
    with pytest.raises(ValueError, match="read-only"):
        array[0, 0] = 1
    with buffer.read_host() as array:
        assert not array.flags.writeable
        assert array[1, 2] == 5
    lease = buffer.rw_host()
    assert lease.is_open
    lease.array[1, 2] = 7
    lease.close()
    lease.close()
    assert not lease.is_open
    with pytest.raises(BufferError):
        lease.array  # noqa: B018
    assert buffer[1, 2] == 7
    buffer[0, 1] = 9
    assert np.asarray(buffer)[0, 1] == 9
    with pytest.raises(IndexError):
        buffer[5, 5]
    with pytest.raises(IndexError):
        buffer[5, 5] = 1


def test_an_array_outlives_its_lease_and_its_buffer(place: tern.Device) -> None:
    buffer = ManagedBuffer(1000, "int64", place)
    buffer.copy_from(np.arange(1000))
    with buffer.read_host() as array:
        pass
    del buffer
    gc.collect()
    others = [ManagedBuffer(1000, "int64", place) for _ in range(8)]
    for other in others:
        other.fill(7)
        other.synchronize()
    assert (array == np.arange(1000)).all()


def test_checked_host_leases_conflict(simulated: tern.Device) -> None:
    buffer = ManagedBuffer(4, device=simulated, checked=True)
    with buffer.discard_host():
        with pytest.raises(tern.AccessConflictError):
            buffer.read_host()
    buffer.read_host().close()


def test_device_leases_order_streams(place: tern.Device) -> None:
    buffer = ManagedBuffer(4096, "uint8", place)
    buffer.fill(1)
    first, second = place.stream("first"), place.stream("second")
    with buffer.rw_device(first) as array:
        assert array.shape == (4096,)
        if not place.spec.startswith("opencl"):
            first.fill_bytes(array.ptr, 4096, 2)
    with buffer.discard_device(second) as array:
        assert not array.is_read_only
        if not place.spec.startswith("opencl"):
            second.fill_bytes(array.ptr, 4096, 3)
    if not place.spec.startswith("opencl"):
        assert (buffer.to_numpy() == 3).all()
    with buffer.read_device() as array:
        assert array.is_read_only
    lease = buffer.read_device(first)
    lease.close()
    with pytest.raises(BufferError):
        lease.array  # noqa: B018


def test_an_exception_in_a_device_lease_ends_the_lease(simulated: tern.Device) -> None:
    buffer = ManagedBuffer(4096, "uint8", simulated)
    buffer.fill(1)
    with pytest.raises(ZeroDivisionError):
        with buffer.rw_device() as array:
            simulated.default_stream.fill_bytes(array.ptr, 4096, 2)
            raise ZeroDivisionError
    assert (buffer.to_numpy() == 2).all()


def test_slices_share_the_memory(place: tern.Device) -> None:
    buffer = ManagedBuffer(100, "int32", place)
    buffer.copy_from(np.arange(100))
    part = buffer.slice(10, 5)
    part[0] = -1
    assert buffer[10] == -1
    part.copy_from(np.full(5, 3))
    assert (buffer.to_numpy()[10:15] == 3).all()
    with part.read_device() as array:
        assert array.ptr == buffer.buffer.ptr + 40
        if place.spec.startswith("sim"):
            imported = tern.from_dlpack(array, device=place)
            assert isinstance(imported, tern.Buffer)
            assert (imported.to_numpy() == 3).all()


def test_copies_are_independent(place: tern.Device) -> None:
    buffer = ManagedBuffer((2, 2), "float32", place)
    assert copy.copy(buffer).shape == (2, 2)
    buffer.fill(2)
    for made in (copy.copy(buffer), copy.deepcopy(buffer)):
        buffer.fill(3)
        assert (made.to_numpy() == 2).all()
        buffer.fill(2)


def test_arrays_convert(place: tern.Device) -> None:
    buffer = ManagedBuffer(3, "float32", place)
    buffer.fill(1.5)
    assert np.asarray(buffer, dtype="float64").dtype == np.float64
    assert np.array(buffer, copy=True).flags.writeable


# --- Policies


def test_policies_are_values(simulated: tern.Device) -> None:
    policy = MigrationPolicy.prefer_device(simulated).accessed_by("host")
    assert policy == MigrationPolicy.prefer_device(simulated).accessed_by("host")
    assert hash(policy) == hash(MigrationPolicy.prefer_device(simulated).accessed_by("host"))
    assert policy != MigrationPolicy.prefer_host()
    assert policy != 5
    assert policy.preferred == simulated.place
    assert policy.accessors == ["host"]
    assert "overridden" in str(policy)
    assert MigrationPolicy().is_default
    assert MigrationPolicy.none() == MigrationPolicy()
    assert MigrationPolicy.read_mostly().is_read_mostly
    assert MigrationPolicy.prefer_host_numa(1).preferred == "host numa 1"
    assert MigrationPolicy.prefer_host_numa_current().preferred == "host numa current"
    with pytest.raises(ValueError, match="negative"):
        MigrationPolicy.prefer_host_numa(-1)


# --- Hints


def test_advice_can_be_queried_and_undone(simulated: tern.Device) -> None:
    buffer = ManagedBuffer(1 << 20, "uint8", simulated)
    hints = buffer.hints()
    assert not hints.query().is_read_mostly
    with hints.apply(MigrationPolicy.prefer_device(simulated).accessed_by("host")) as undo:
        assert undo.report.is_sent
        now = hints.query()
        assert now.preferred == simulated.place
        assert now.accessed_by == ["host"]
    assert hints.query().preferred is None
    assert hints.set_read_mostly((0, 65536)).is_sent
    assert hints.query().is_read_mostly_mixed
    hints.unset_read_mostly()
    assert not hints.query().is_read_mostly
    hints.set_preferred_location("host")
    assert hints.query().preferred == "host"
    hints.unset_preferred_location()
    hints.set_accessed_by(simulated)
    assert hints.query().accessed_by == [simulated.place]
    hints.unset_accessed_by(simulated)
    assert hints.query().accessed_by == []
    with pytest.raises(tern.DeviceMismatchError):
        hints.apply(MigrationPolicy.prefer_host(), place=simulated)


def test_a_prefetch_moves_the_pages(simulated: tern.Device) -> None:
    buffer = ManagedBuffer(4 << 20, "uint8", simulated)
    buffer.fill(1)
    simulated.synchronize()
    stream = simulated.stream("prefetch")
    before = sim.migrated_bytes(simulated)
    report = buffer.hints().prefetch("host", stream)
    stream.synchronize()
    assert report.is_sent
    assert report.skipped is None
    assert report.range.bytes == 4 << 20
    assert sim.migrated_bytes(simulated) - before == 4 << 20
    assert buffer.hints().query().last_prefetch == "host"
    hints = Hints(buffer)
    hints.discard(stream, (0, 1 << 20))
    with pytest.raises(tern.NeverWrittenError):
        buffer.to_numpy()
    hints.discard_prefetch(simulated, stream)
    buffer.fill(2, stream)
    assert (buffer.to_numpy() == 2).all()


def test_hints_on_every_device(place: tern.Device) -> None:
    buffer = ManagedBuffer(1 << 16, "uint8", place)
    buffer.fill(4)
    hints = buffer.hints()
    for report in (hints.set_read_mostly(), hints.prefetch(place), hints.prefetch("host", place.default_stream)):
        assert report.is_sent == (report.skipped is None)
    assert hints.effective_range((1, 2)).bytes == 2
    assert (buffer.to_numpy() == 4).all()


def test_a_strict_hint_raises_where_a_plain_one_is_skipped() -> None:
    host = tern.open_device("host")
    buffer = ManagedBuffer(4096, device=host)
    report = buffer.hints().set_read_mostly()
    assert not report.is_sent
    assert report.skipped
    with pytest.raises(NotImplementedError):
        buffer.hints(strict=True).set_read_mostly()


def test_bad_hints(simulated: tern.Device) -> None:
    buffer = ManagedBuffer(4096, "uint8", simulated)
    hints = buffer.hints()
    with pytest.raises(IndexError):
        hints.set_read_mostly((4000, 97))
    for bad in ((-1, 2), (0, -5)):
        with pytest.raises(ValueError, match="negative") as raised:
            hints.set_read_mostly(bad)
        assert isinstance(raised.value, tern.Error)
    for wrong in (5, "a", (1,), (1, 2, 3), ("a", 1), [0, 1]):
        with pytest.raises(TypeError) as mistyped:
            hints.set_read_mostly(wrong)
        assert isinstance(mistyped.value, tern.Error)
    with pytest.raises(OverflowError):
        hints.set_read_mostly((1 << 70, 1))
    with pytest.raises(TypeError) as place_error:
        hints.prefetch(5)
    assert isinstance(place_error.value, tern.Error)
    with pytest.raises(ValueError):
        hints.prefetch("device 9999")
    with pytest.raises(ValueError):
        hints.prefetch("no such place")
    for memory in (np.zeros(3), "a", 5):
        with pytest.raises(TypeError) as memory_error:
            Hints(memory)
        assert isinstance(memory_error.value, tern.Error)
    with pytest.raises(ValueError):
        Hints(tern.Buffer(4, device=simulated))


class _Owner:
    pass


def test_hints_on_foreign_memory_keep_its_owner(simulated: tern.Device) -> None:
    buffer = ManagedBuffer(4096, "uint8", simulated)
    buffer.fill(0)
    owner = _Owner()
    released = weakref.ref(owner)
    hints = Hints.over(simulated, buffer.buffer.ptr, 4096, owner)
    assert hints.prefetch("host").is_sent
    del owner
    assert released() is not None
    simulated.synchronize()
    del hints
    gc.collect()
    assert released() is None
    with pytest.raises(ValueError):
        Hints.over(simulated, buffer.buffer.ptr, 4096, None)
    ordinary = tern.Buffer(16, device=simulated).allocate()
    with pytest.raises(ValueError):
        Hints.over(simulated, ordinary.ptr, 16, _Owner())


# --- Plans


def test_a_plan_moves_its_entries(simulated: tern.Device) -> None:
    weights = ManagedBuffer(1 << 20, "uint8", simulated)
    unified = tern.UnifiedBuffer(1000, device=simulated)
    weights.fill(1)
    unified.fill(2)
    plan = PrefetchPlan()
    assert len(plan) == 0
    assert plan.execute().sent == 0
    plan.add(weights, simulated, (0, 65536)).add(weights, simulated, (65536, 65536)).add(unified, simulated)
    assert len(plan) == len(plan.entries) == 3
    assert len(plan.merged()) == 2
    assert plan.peaks[simulated.place] == 131072 + 4000
    assert "bytes" in str(plan)
    report = plan.execute(simulated.stream())
    assert (report.sent, report.skipped) == (3, 0)
    assert report.bytes == 131072 + 4000
    assert unified.state is tern.BufferState.SYNCHRONIZED
    again = plan.execute([simulated.stream()])
    assert again.skipped == 1
    assert plan.check(simulated, tern.Budget("large", 1 << 20)) == 131072 + 4000
    with pytest.raises(MemoryError):
        plan.check(simulated, tern.Budget("small", 1000))


def test_a_failed_entry_leaves_the_plan(simulated: tern.Device) -> None:
    plan = PrefetchPlan()
    buffer = ManagedBuffer(4096, "uint8", simulated)
    with pytest.raises(IndexError):
        plan.add(buffer, simulated, (0, 4097))
    with pytest.raises(TypeError):
        plan.add(np.zeros(3), simulated)
    with pytest.raises(ValueError):
        plan.add(tern.Buffer(4, device=simulated), simulated)
    with pytest.raises(ValueError):
        plan.add(buffer, "device 9999")
    assert len(plan) == 0
    plan.add(buffer, simulated)
    with pytest.raises(TypeError):
        plan.execute([5])


def test_a_plan_keeps_its_memory(place: tern.Device) -> None:
    plan = PrefetchPlan()
    buffer = ManagedBuffer(4096, "uint8", place)
    buffer.fill(1)
    plan.add(buffer, place)
    del buffer
    gc.collect()
    report = plan.execute(place.default_stream)
    assert report.sent + report.skipped == 1
