"""Copies and pickles of buffers."""

from __future__ import annotations

import copy
import gc
import pickle
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import ternmem as tern


def made(kind: str, device: tern.Device, elements: Any) -> Any:
    array = np.asarray(elements)
    if kind == "unified":
        buffer: Any = tern.UnifiedBuffer(array.shape, array.dtype, device=device)
    elif kind == "managed":
        if not device.can("managed_memory"):
            pytest.skip("the device has no managed memory")
        buffer = tern.ManagedBuffer(array.shape, array.dtype, device)
    else:
        buffer = tern.Buffer(array.shape, array.dtype, device)
    buffer.copy_from(array)
    return buffer


@pytest.mark.parametrize("kind", ["buffer", "unified", "managed"])
@pytest.mark.parametrize("protocol", range(2, 6))
def test_pickles(device: tern.Device, kind: str, protocol: int) -> None:
    for elements in (np.arange(12, dtype="int16").reshape(3, 4), np.float64(2.5), np.zeros((0, 3)), np.array([True])):
        buffer = made(kind, device, elements)
        read = pickle.loads(pickle.dumps(buffer, protocol))
        assert type(read) is type(buffer)
        assert read.shape == buffer.shape
        assert read.dtype == buffer.dtype
        np.testing.assert_array_equal(read.to_numpy(), elements)


@pytest.mark.parametrize("kind", ["buffer", "unified", "managed"])
def test_bytes_travel_out_of_band(device: tern.Device, kind: str) -> None:
    elements = np.arange(1 << 20, dtype="float32")
    buffer = made(kind, device, elements)
    pieces: list[pickle.PickleBuffer] = []
    band = pickle.dumps(buffer, 5, buffer_callback=pieces.append)
    assert len(band) < 1000
    assert sum(piece.raw().nbytes for piece in pieces) == 4 << 20
    del buffer
    gc.collect()
    read = pickle.loads(band, buffers=pieces)
    np.testing.assert_array_equal(read.to_numpy(), elements)


def test_host_memory_is_not_copied_for_a_pickle() -> None:
    buffer = made("buffer", tern.open_device("host"), np.arange(1000.0))
    pieces: list[pickle.PickleBuffer] = []
    pickle.dumps(buffer, 5, buffer_callback=pieces.append)
    assert np.frombuffer(pieces[0].raw(), "u1").ctypes.data == buffer.ptr


@pytest.mark.parametrize("kind", ["buffer", "unified", "managed"])
def test_unwritten_buffers(device: tern.Device, kind: str) -> None:
    if kind == "managed" and not device.can("managed_memory"):
        pytest.skip("the device has no managed memory")
    types: dict[str, Any] = {"buffer": tern.Buffer, "unified": tern.UnifiedBuffer, "managed": tern.ManagedBuffer}
    buffer = types[kind]((2, 3), "int8", device=device)
    for read in (pickle.loads(pickle.dumps(buffer)), copy.copy(buffer), copy.deepcopy(buffer)):
        assert read.shape == (2, 3)
        assert read.dtype == np.int8
        with pytest.raises(tern.NeverWrittenError):
            read.to_numpy()


@pytest.mark.parametrize("kind", ["buffer", "unified", "managed"])
def test_copies_are_independent(device: tern.Device, kind: str) -> None:
    buffer = made(kind, device, np.arange(6.0).reshape(2, 3))
    shared = [buffer, buffer]
    for copied in (copy.copy(buffer), copy.deepcopy(buffer), copy.deepcopy(shared)[0]):
        assert type(copied) is type(buffer)
        copied.fill(9)
        np.testing.assert_array_equal(buffer.to_numpy(), np.arange(6.0).reshape(2, 3))
    twice = copy.deepcopy(shared)
    assert twice[0] is twice[1]


def test_a_view_takes_only_its_own_bytes(device: tern.Device) -> None:
    buffer = made("buffer", device, np.arange(100))
    part = buffer[10:20]
    band = pickle.dumps(part)
    assert len(band) < 600
    np.testing.assert_array_equal(pickle.loads(band).to_numpy(), np.arange(10, 20))


def test_float16_and_bfloat16_keep_their_bits(device: tern.Device) -> None:
    for dtype in ("float16", "bf16"):
        buffer = tern.Buffer(8, dtype, device)
        bits = np.arange(8, dtype="uint16") * 4099
        buffer.view("uint16").copy_from(bits)
        read = pickle.loads(pickle.dumps(buffer, 5))
        np.testing.assert_array_equal(read.view("uint16").to_numpy(), bits)
        assert read.dtype == buffer.dtype


def test_another_process_reads_a_pickle() -> None:
    buffer = made("buffer", tern.open_device("sim:0"), np.arange(5))
    program = "import pickle, sys; print(pickle.load(sys.stdin.buffer).to_numpy().tolist())"
    done = subprocess.run([sys.executable, "-c", program], input=pickle.dumps(buffer), capture_output=True, timeout=60, check=True)
    assert done.stdout == b"[0, 1, 2, 3, 4]\n"
