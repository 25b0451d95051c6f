"""Transfer counters, gates and the statistics of tracked memory."""

from __future__ import annotations

import threading
from collections.abc import Generator

import numpy as np
import pytest

import ternmem as tern
from ternmem import TransferGate, sim, transfer_counts


@pytest.fixture
def simulated() -> tern.Device:
    return sim.open(seed=4)


def rows(device: tern.Device, count: int = 5000, tag: str | None = None) -> tern.Buffer:
    return tern.Buffer(count, "float32", device, tag=tag).fill(1)


def test_copies_are_counted_by_direction_and_purpose(accelerator: tern.Device) -> None:
    before = transfer_counts()
    buffer = rows(accelerator)
    buffer.copy_from(np.zeros(5000, "float32"))
    buffer.to_numpy()
    buffer[0].item()
    buffer.clone().synchronize()
    moved = transfer_counts() - before
    assert moved.host_to_device == {"copies": 1, "bytes": 20000}
    assert moved.at("device_to_host", "data") == {"copies": 1, "bytes": 20000}
    assert moved.at("device_to_host", "scalar") == {"copies": 1, "bytes": 4}
    assert moved.device_to_host == moved.at("device_to_host") == {"copies": 2, "bytes": 20004}
    assert moved.device_to_device == {"copies": 1, "bytes": 20000}
    assert moved.between_devices == {"copies": 0, "bytes": 0}
    assert moved == transfer_counts() - before
    assert moved != moved - moved
    assert "host_to_device" in repr(moved)


def test_copies_are_counted_by_tag(simulated: tern.Device) -> None:
    buffer = rows(simulated, tag="audited rows")
    buffer.to_numpy()
    assert transfer_counts("audited rows").device_to_host == {"copies": 1, "bytes": 20000}
    assert tern.transfer_counts_by_tag()["audited rows"].device_to_host["copies"] == 1
    assert tern.transfer_counts_of_other_tags().device_to_host["copies"] >= 0


def test_bad_directions() -> None:
    counts = transfer_counts()
    for direction, purpose in (("up", None), ("device_to_host", "fun")):
        with pytest.raises(ValueError, match="one of") as raised:
            counts.at(direction, purpose)
        assert isinstance(raised.value, tern.Error)
    with pytest.raises(ValueError, match="one of"):
        TransferGate("deny")
    with pytest.raises(TypeError):
        counts - 5  # type: ignore[operator]


def test_a_gate_refuses_to_read_data_back(accelerator: tern.Device) -> None:
    buffer = rows(accelerator)
    refused = tern.transfer_gate_statistics()["refused"]["copies"]
    with TransferGate() as gate:
        with pytest.raises(tern.DownloadRefusedError) as raised:
            buffer.to_numpy()
        assert "test_audit.py" in str(raised.value.site)
        assert buffer[3].item() == 1  # scalars pass
        assert gate.violations == {"copies": 1, "bytes": 20000}
        assert gate.small_reads == {"copies": 1, "bytes": 4}
    assert gate.violations == {"copies": 1, "bytes": 20000}
    assert (buffer.to_numpy() == 1).all()
    statistics = tern.transfer_gate_statistics()
    assert statistics["refused"]["copies"] == refused + 1
    assert "test_audit.py" in statistics["last"]


def test_gates_nest(simulated: tern.Device) -> None:
    buffer = rows(simulated)
    with TransferGate() as outer:
        with TransferGate("allow"):
            before = transfer_counts()
            buffer.to_numpy()
            assert (transfer_counts() - before).at("device_to_host", "result")["copies"] == 1
        with TransferGate("count") as inner:
            with pytest.raises(tern.DownloadRefusedError):
                buffer.to_numpy()
        assert inner.violations["copies"] == 1
        with pytest.raises(RuntimeError):
            outer.__enter__()
    with TransferGate("count") as counting:
        buffer.to_numpy()
    assert counting.violations == {"copies": 1, "bytes": 20000}
    with outer:  # a gate that has ended may be used again
        assert outer.violations["copies"] == 0


def test_an_exception_ends_the_gate(simulated: tern.Device) -> None:
    buffer = rows(simulated)
    with pytest.raises(ZeroDivisionError), TransferGate():
        raise ZeroDivisionError
    buffer.to_numpy()


def test_a_gate_covers_one_thread(simulated: tern.Device) -> None:
    buffer = rows(simulated)
    simulated.synchronize()
    read: list[int] = []
    with TransferGate() as gate:
        thread = threading.Thread(target=lambda: read.append(len(buffer.to_numpy())))
        thread.start()
        thread.join()
        failed: list[BaseException] = []

        def end_it() -> None:
            try:
                gate.__exit__(None, None, None)
            except RuntimeError as error:
                failed.append(error)

        thread = threading.Thread(target=end_it)
        thread.start()
        thread.join()
        assert len(failed) == 1
        with pytest.raises(tern.DownloadRefusedError):
            buffer.to_numpy()
    assert read == [5000]
    buffer.to_numpy()


def test_gates_that_end_in_the_wrong_order(simulated: tern.Device) -> None:
    buffer = rows(simulated)

    def gated() -> Generator[None, None, None]:
        with TransferGate():
            yield

    with TransferGate("allow"):
        first = gated()
        next(first)
        second = gated()
        next(second)
        with pytest.raises(StopIteration):
            next(first)  # ends the gate of `second` too
        buffer.to_numpy()
        with pytest.raises(StopIteration):
            next(second)
        third = gated()
        next(third)
        third.close()
        buffer.to_numpy()
        fourth = gated()
        next(fourth)
    buffer.to_numpy()
    del fourth
    buffer.to_numpy()


# --- Tracking


def test_tracked_memory(simulated: tern.Device) -> None:
    resource = tern.TrackingResource(tern.Pool(simulated), check_overlap=True)
    assert "no live blocks" in resource.leak_report()
    kept = tern.Buffer(1000, resource=resource, tag="kept").fill(1)
    gone = tern.Buffer(50, resource=resource, tag="gone").fill(1)
    simulated.synchronize()
    blocks = resource.live_blocks()
    assert [(block["tag"], block["bytes"]) for block in blocks] == [("kept", 4000), ("gone", 200)]
    assert blocks[0]["address"] == kept.ptr
    assert "test_audit.py" in blocks[0]["site"]
    totals = resource.tag_totals()
    assert totals["kept"]["live_bytes"] >= 4000
    assert totals["gone"]["allocations"] == 1
    del gone
    assert resource.tag_totals()["gone"]["live_blocks"] == 0
    assert len(resource.live_blocks()) == 1
    assert sum(resource.histogram().values()) == 2
    assert resource.histogram()[4096] == 1
    assert "kept" in resource.leak_report()
    assert "kept" in str(resource)
