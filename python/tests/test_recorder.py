"""LaunchRecorder: launches that Tern does not make."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import ternmem as tern
from ternmem import LaunchRecorder, in_, inout, out, sim


@pytest.fixture
def simulated() -> Iterator[tern.Device]:
    device = sim.open(seed=8)
    yield device
    device.synchronize()
    assert sim.findings(device) == []


def filled(device: tern.Device, kind: str, value: int = 1) -> Any:
    types: dict[str, Any] = {"buffer": tern.Buffer, "unified": tern.UnifiedBuffer, "managed": tern.ManagedBuffer}
    return types[kind](400, "uint8", device=device).fill(value)


@pytest.mark.parametrize("kind", ["buffer", "unified", "managed"])
def test_launches_are_ordered(simulated: tern.Device, kind: str) -> None:
    x = filled(simulated, kind)
    first, second = simulated.stream("first"), simulated.stream("second")
    for value in range(2, 12):
        stream = first if value % 2 == 0 else second
        with LaunchRecorder(stream, out(x)) as (array,):
            assert (array.shape, array.dtype, array.is_read_only) == ((400,), np.uint8, False)
            stream.fill_bytes(array.ptr, 400, value)
    assert (x.to_numpy() == 11).all()


def test_several_uses(simulated: tern.Device) -> None:
    x, y, z = (filled(simulated, kind, 3) for kind in ("buffer", "unified", "managed"))
    stream = simulated.stream()
    recorder = LaunchRecorder(stream, in_(x), inout(y), out(z.slice(10, 5)))
    assert len(recorder) == 3
    a, b, c = recorder.preflight()
    assert a.is_read_only
    assert c.shape == (5,)
    assert c.ptr == z.buffer.ptr + 10
    stream.copy_bytes(b.ptr, a.ptr, 400)
    stream.fill_bytes(c.ptr, 5, 9)
    recorder.commit()
    assert recorder.skipped == 0
    assert y.state is tern.BufferState.DEVICE_DIRTY
    assert (y.to_numpy() == 3).all()
    assert z.to_numpy().sum() == 395 * 3 + 5 * 9


def test_an_exception_in_the_block(simulated: tern.Device) -> None:
    x, u = filled(simulated, "buffer"), filled(simulated, "unified")
    dropped = tern.launch_statistics()["dropped"]
    with pytest.raises(ZeroDivisionError):
        with LaunchRecorder(None, inout(x), inout(u)):
            raise ZeroDivisionError
    assert tern.launch_statistics()["dropped"] == dropped + 1
    assert (x.to_numpy() == 1).all()
    assert (u.to_numpy() == 1).all()


def test_wrong_order_of_calls(simulated: tern.Device) -> None:
    x = filled(simulated, "buffer")
    recorder = LaunchRecorder(None, inout(x))
    with pytest.raises(tern.StreamMisuseError):
        recorder.commit()
    recorder.preflight()
    with pytest.raises(tern.StreamMisuseError):
        recorder.preflight()
    recorder.cancel()
    recorder.cancel()
    with pytest.raises(tern.StreamMisuseError):
        recorder.commit()
    with recorder:  # may be used again
        pass
    assert (x.to_numpy() == 1).all()


@pytest.mark.parametrize("kind", ["buffer", "unified", "managed"])
def test_a_failed_preflight_changes_nothing(simulated: tern.Device, kind: str) -> None:
    x = filled(simulated, "unified")
    types: dict[str, Any] = {"buffer": tern.Buffer, "unified": tern.UnifiedBuffer, "managed": tern.ManagedBuffer}
    unwritten = types[kind](400, "uint8", device=simulated)
    with pytest.raises(tern.NeverWrittenError):
        LaunchRecorder(None, inout(x), in_(unwritten)).preflight()
    with LaunchRecorder(None, inout(x)):
        pass
    assert (x.to_numpy() == 1).all()


def test_bad_arguments(simulated: tern.Device) -> None:
    x = filled(simulated, "buffer")
    for bad in (x, 5, np.zeros(3)):
        with pytest.raises(TypeError) as raised:
            LaunchRecorder(None, bad, device=simulated)
        assert isinstance(raised.value, tern.Error)
    with pytest.raises(TypeError):
        LaunchRecorder("a stream", in_(x))
    other = sim.open(seed=1)
    with pytest.raises(tern.DeviceMismatchError):
        LaunchRecorder(other.default_stream, in_(x)).preflight()


def test_a_borrowed_stream_takes_part() -> None:
    device = tern.open_device("cuda:0?driver=sim")
    x = filled(device, "buffer")
    theirs = device.stream("theirs")
    with LaunchRecorder(theirs.handle, inout(x)) as (array,):
        theirs.fill_bytes(array.ptr, 400, 5)
    assert (x.to_numpy() == 5).all()
