"""Arrays that several processes use."""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import signal
import threading
from typing import Any

import numpy as np
import pytest

import ternmem as tern

# A forked child cannot use devices of its parent.
processes = multiprocessing.get_context("spawn")

PATIENCE = 60.0


@pytest.fixture
def sharing(device: tern.Device) -> tern.Device:
    if not device.can("shareable_memory"):
        pytest.skip("the device cannot share memory")
    return device


# The tests of the library end processes on every device. Here it is about the exceptions.
REAL = [spec for spec in tern.devices() if spec == "cuda:0"]


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def add_one(array: tern.SharedArray, rounds: int) -> None:
    for _ in range(rounds):
        array.acquire(PATIENCE)
        array.buffer.copy_from(array.to_numpy() + 1)
        array.publish()
    array.close()


def hold(array: tern.SharedArray, held: Any) -> None:
    array.acquire(PATIENCE)
    held.set()
    signal.pause()


def serve(spec: str, handles: Any) -> None:
    array = tern.SharedArray(10, "int32", spec)
    array.buffer.fill(7)
    array.publish()
    tern.open_device(spec).synchronize()
    handles.put(array.handle)
    signal.pause()


def test_goes_to_another_process_and_back_a_thousand_times(sharing: tern.Device) -> None:
    rounds = 1000
    array = tern.SharedArray((3, 5), "int64", sharing)
    peer = processes.Process(target=add_one, args=(array, rounds))
    peer.start()
    expected = np.arange(15).reshape(3, 5)
    array.buffer.copy_from(expected)
    for i in range(rounds):
        array.publish()
        array.acquire(PATIENCE)
        expected += 1
        if i % 100 == 0 or i == rounds - 1:
            np.testing.assert_array_equal(array.to_numpy(), expected)
    peer.join(PATIENCE)
    assert peer.exitcode == 0


def test_pickles_as_a_handle(sharing: tern.Device) -> None:
    array = tern.SharedArray((1 << 10, 1 << 10), "float32", sharing, tag="shared")
    band = pickle.dumps(array)
    assert len(band) < 1000
    theirs = pickle.loads(band)
    assert isinstance(theirs, tern.SharedArray)
    assert theirs.shape == array.shape == (1024, 1024)
    assert theirs.dtype == array.dtype == np.dtype("float32")
    assert theirs.device.spec == sharing.spec
    assert theirs.size == 1 << 20
    assert theirs.nbytes == 4 << 20
    assert theirs.handle == array.handle
    assert (array.is_exporter, theirs.is_exporter) == (True, False)
    assert (array.has_turn, theirs.has_turn) == (True, False)
    assert array.importers == 1
    assert repr(theirs) == f"SharedArray(shape=(1024, 1024), dtype=float32, device='{sharing.spec}')"
    array.buffer.fill(3)
    array.publish()
    sharing.synchronize()
    assert theirs.acquire(PATIENCE) is theirs
    assert (theirs.to_numpy() == 3).all()
    theirs.close()
    with pytest.raises(tern.NotAllocatedError, match="closed"):
        theirs.buffer  # noqa: B018


def test_is_seen_by_numpy_on_the_host() -> None:
    array = tern.SharedArray(100, "int16", "host")
    with tern.SharedArray.open(array.handle, "host") as theirs:
        array.numpy()[:] = np.arange(100)
        array.publish()
        theirs.acquire(PATIENCE)
        view = theirs.numpy()
        np.testing.assert_array_equal(view, np.arange(100))
        view[5] = 77
        theirs.publish()
        array.acquire(PATIENCE)
        assert array.numpy()[5] == 77
    # The view keeps the memory.
    del array, theirs
    gc.collect()
    assert view[5] == 77


def test_turns_out_of_order_are_refused(sharing: tern.Device) -> None:
    array = tern.SharedArray(4, "float32", sharing)
    with pytest.raises(tern.AccessConflictError):
        array.acquire()
    array.publish()
    with pytest.raises(tern.AccessConflictError):
        array.publish()
    with pytest.raises(tern.TimeoutError) as late:
        array.acquire(0.001)
    assert late.value.importers == 0
    with pytest.raises(ValueError):
        array.acquire(-1)


@pytest.mark.parametrize("spec", ["sim:0", *REAL])
def test_the_end_of_the_exporter_is_an_error_that_names_it(spec: str) -> None:
    sharing = tern.open_device(spec)
    handles = processes.Queue()
    peer = processes.Process(target=serve, args=(sharing.spec, handles))
    peer.start()
    handle = handles.get(timeout=PATIENCE)
    before = descriptors()
    with tern.SharedArray.open(handle, sharing) as array:
        array.acquire(PATIENCE)
        peer.kill()
        peer.join(PATIENCE)
        assert (array.to_numpy() == 7).all()
        array.publish()
        with pytest.raises(tern.PeerLostError, match="has ended") as lost:
            array.acquire(PATIENCE)
        assert lost.value.pid == peer.pid
        assert isinstance(lost.value, ConnectionError)
        with pytest.raises(tern.PeerLostError):
            tern.SharedArray.open(handle, sharing)
    tern.reclaim_deferred()
    if spec == "sim:0":  # a driver opens files when it likes
        assert descriptors() == before


@pytest.mark.parametrize("spec", ["host", *REAL])
def test_the_end_of_an_importer_during_its_turn_is_told_once(spec: str) -> None:
    sharing = tern.open_device(spec)
    array = tern.SharedArray(4, "float32", sharing)
    held = processes.Event()
    peer = processes.Process(target=hold, args=(array, held))
    peer.start()
    array.publish()
    sharing.synchronize()
    assert held.wait(PATIENCE)
    peer.kill()
    peer.join(PATIENCE)
    with pytest.raises(tern.PeerLostError) as lost:
        array.acquire(PATIENCE)
    assert lost.value.pid == peer.pid
    assert array.has_turn
    array.publish()


def test_other_handles_are_refused(sharing: tern.Device) -> None:
    array = tern.SharedArray(4, "float32", sharing)
    right = array.handle
    for text in ("", "handle", right[:-1], right + "0", right.replace("tern", "nret"), "\udc80", right * 1000):
        with pytest.raises((tern.BadFormatError, UnicodeEncodeError, TypeError)):
            tern.SharedArray.open(text, sharing)
    wrong_secret = right[:-1] + ("0" if right[-1] != "0" else "1")
    with pytest.raises(tern.NotFoundError):
        tern.SharedArray.open(wrong_secret, sharing)
    with pytest.raises(tern.ShapeMismatchError):
        tern.SharedArray.open(right, sharing, (2, 3))
    other = "sim" if sharing.spec == "host" else "host"
    with pytest.raises(tern.DeviceMismatchError):
        tern.SharedArray.open(right, other)
    array.close()
    with pytest.raises(tern.NotFoundError):
        tern.SharedArray.open(right, sharing)
    with pytest.raises(tern.NotAllocatedError):
        array.publish()
    array.close()


def test_each_process_charges_its_own_budget(sharing: tern.Device) -> None:
    budget = tern.Budget("shared", 3 << 20)
    with tern.SharedArray(4, "float32", sharing, budget=budget) as array:
        charged = budget.used_bytes
        assert charged > 0
        with pytest.raises(tern.OutOfBudgetError):
            tern.SharedArray.open(array.handle, sharing, budget=budget)
        assert budget.used_bytes == charged
    assert budget.used_bytes == 0


def test_close_is_heard_by_a_thread_that_waits(sharing: tern.Device) -> None:
    array = tern.SharedArray(4, "float32", sharing)
    array.publish()
    caught = []

    def wait() -> None:
        try:
            array.acquire()
        except tern.Error as error:
            caught.append(error.code)

    waiter = threading.Thread(target=wait)
    waiter.start()
    array.close()
    waiter.join(PATIENCE)
    assert caught == ["not_allocated"]


def test_devices_that_cannot_share_say_so(device: tern.Device) -> None:
    if device.can("shareable_memory"):
        pytest.skip("the device can share memory")
    with pytest.raises(tern.UnsupportedError, match="shareable_memory"):
        tern.SharedArray(4, "float32", device)
