"""ternmem.dask: values on the workers of a cluster, and their memory."""

from __future__ import annotations

import gc
import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import ternmem as tern

pytest.importorskip("distributed", reason="distributed is not installed")
pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")

from dask.distributed import Client, Event, wait
from distributed.protocol import deserialize, serialize

import ternmem.dask
from ternmem.dask import Received, Store

mib = 1 << 20
budget_bytes = 64 * mib
part_bytes = 8 * mib
# No test may hang: each wait for a result ends.
patience = 60.0


def column() -> tern.Column:
    return tern.Column(["a", None, "bcd"], device="host")


def table() -> tern.Table:
    return tern.Table({"key": tern.Column([3, 1, 2], "int64", "host"), "text": column()})


def values(device: tern.Device) -> dict[str, Any]:
    numbers = np.arange(6, dtype="int16").reshape(2, 3)
    buffer = tern.Buffer.from_numpy(numbers, device)
    made = {
        "buffer": buffer,
        "slice": buffer[1],
        "scalar": tern.Buffer.from_numpy(np.float32(1.5), device),
        "empty": tern.Buffer.from_numpy(np.zeros((0, 3)), device),
        "bool": tern.Buffer.from_numpy(np.array([True, False]), device),
        "array": tern.Array(np.arange(5.0), device=device),
        "unified": tern.UnifiedBuffer.from_numpy(numbers, device=device),
        "table": table().copy_to(device),
        "column": column().copy_to(device),
    }
    if device.can("managed_memory"):
        managed = tern.ManagedBuffer((2, 3), "int16", device)
        managed.copy_from(numbers)
        made["managed"] = managed
    return made


def contents(value: Any) -> Any:
    if isinstance(value, tern.Table):
        return [column.copy_to("host").to_pylist() for column in value.columns]
    if isinstance(value, tern.Column):
        return value.copy_to("host").to_pylist()
    return value.to_numpy().tolist()


# --- How values travel


def test_values_travel_through_a_message(device: tern.Device) -> None:
    for kind, value in values(device).items():
        header, frames = serialize(value, context={})
        assert header["serializer"] == "dask", kind
        read = deserialize(header, [bytes(frame) for frame in frames])
        assert type(read) is type(value), kind
        assert contents(read) == contents(value), kind
        if hasattr(value, "shape"):
            assert read.shape == value.shape, kind
            assert read.dtype == value.dtype, kind


def test_unwritten_buffers_travel(device: tern.Device) -> None:
    for value in (tern.Buffer((2, 3), "int8", device), tern.UnifiedBuffer((2, 3), "int8", device=device)):
        read = deserialize(*serialize(value, context={}))
        assert type(read) is type(value)
        assert read.shape == (2, 3)
        with pytest.raises(tern.NeverWrittenError):
            read.to_numpy()


def test_frames_of_host_memory_share_the_memory() -> None:
    buffer = tern.Buffer.from_numpy(np.arange(1000.0), "host")
    unified = tern.UnifiedBuffer.from_numpy(np.arange(1000.0), device="sim")
    for value, address in ((buffer, buffer.ptr), (unified, np.asarray(unified).ctypes.data)):
        _, frames = serialize(value, context={})
        assert np.frombuffer(frames[0], "u1").ctypes.data == address


def test_the_size_of_a_value_is_that_of_its_memory() -> None:
    from dask.sizeof import sizeof

    assert sizeof(tern.Buffer(1000, "float64", "sim")) == 8000
    assert sizeof(Received({}, [b"123", b"45"])) == 5


def test_a_value_that_cannot_be_read_raises_at_its_receiver() -> None:
    buffer = tern.UnifiedBuffer(10, device="sim").fill(1)
    with buffer.rw_host():
        header, frames = serialize(buffer, context={})
        with pytest.raises(TypeError):  # a spill keeps the value
            serialize(buffer, on_error="raise")
    with pytest.raises(tern.AccessConflictError, match="the sender could not read the value"):
        deserialize(header, frames)


good = {"kind": "buffer", "shape": [2, 3], "dtype": "int16", "memory": "device", "device": "sim:0", "written": True}


@pytest.mark.parametrize(
    ("change", "frames"),
    [
        ({}, [b"12345678901"]),
        ({}, [b"1234567890123"]),
        ({}, []),
        ({"written": False}, [b"123456789012"]),
        ({"written": 1}, [b"123456789012"]),
        ({"shape": [2, -3]}, [b"123456789012"]),
        ({"shape": [2, 2.5]}, [b"123456789012"]),
        ({"shape": "23"}, [b"123456789012"]),
        ({"shape": None}, [b"123456789012"]),
        ({"shape": [1 << 62, 1 << 62]}, [b"123456789012"]),
        ({"shape": [1 << 45]}, [b"123456789012"]),
        ({"shape": [1] * 100}, [b"12"]),
        ({"dtype": "object"}, [b"123456789012"]),
        ({"dtype": "no such type"}, [b"123456789012"]),
        ({"dtype": 7}, [b"123456789012"]),
        ({"dtype": None}, [b"123456789012"]),
        ({"memory": "disk"}, [b"123456789012"]),
        ({"kind": "array"}, [b"123456789012"]),
        ({"kind": "array", "shape": [5], "dtype": "bf16"}, [b"1"]),
        ({"kind": "unified", "shape": [1 << 45]}, [b"123456789012"]),
        ({"kind": "spaceship"}, [b"123456789012"]),
        ({"kind": "table"}, [b"123456789012"]),
        ({"kind": "column"}, []),
    ],
)
def test_a_damaged_message_is_refused(change: dict[str, Any], frames: list[bytes]) -> None:
    with pytest.raises(tern.BadFormatError):
        Received({**good, **change}, frames).open()
    with pytest.raises(tern.BadFormatError):
        Received(7, frames).open()


def test_a_cut_or_changed_arrow_stream_is_refused() -> None:
    header, frames = serialize(table(), context={})
    whole = bytes(frames[0])
    for length in range(0, len(whole) - 8, 7):
        with pytest.raises(tern.Error):
            deserialize(header, [whole[:length]])
    for position in range(0, len(whole), 11):
        changed = whole[:position] + bytes([whole[position] ^ 0xFF]) + whole[position + 1 :]
        try:
            deserialize(header, [changed])
        except tern.Error:
            pass


def test_a_message_in_pieces_is_joined() -> None:
    read = Received(good, [b"\1\0\2\0\3", b"\0\4\0\5\0\6\0"]).open()
    assert contents(read) == [[1, 2, 3], [4, 5, 6]]


def test_a_store_spills_only_values_that_nothing_uses(tmp_path: pathlib.Path) -> None:
    device = tern.open_device("sim")
    store = Store(str(tmp_path))
    store.device = device
    store.budget = tern.Budget("store", 64 * mib)
    resource = tern.BudgetResource(tern.Pool(device), store.budget)

    def made() -> tern.Buffer:
        return tern.Buffer(mib, "uint8", device, resource=resource).fill(7)

    assert store.free(1) == 0
    used, inner = made(), made()
    store["used"] = used
    store["inner used"] = [inner, 1]
    store["number"] = 5
    store["idle"] = made()
    store["list"] = ["text", {"key": made()}]
    assert store.free(1) == mib
    assert set(store.disk) == {"idle"}
    assert store.free(64 * mib) == mib
    assert set(store.disk) == {"idle", "list"}
    assert set(store.memory) == {"used", "inner used", "number"}
    assert store.spills == 2
    assert store.spilled_total.memory >= 2 * mib
    assert (store["idle"].to_numpy() == 7).all()
    assert (store["list"][1]["key"].to_numpy() == 7).all()
    # A message refers to no value, so a value can be spilled while it is sent.
    token = ternmem.dask._is_serving.set(True)
    sent = [store[key] for key in ("used", "idle", "list", "number")]
    ternmem.dask._is_serving.reset(token)
    assert [type(value) for value in sent] == [Received, Received, list, int]
    assert isinstance(sent[2][1]["key"], Received)
    store.free(64 * mib)
    assert set(store.disk) == {"idle", "list"}
    assert contents(sent[2][1]["key"].open()) == [7] * mib
    del sent
    assert store.evict() > 0  # Dask's own request spills values in use too
    assert contents(store["used"]) == contents(used)
    del store, resource
    gc.collect()
    assert not ternmem.dask._stores


def test_a_table_at_any_address_is_read() -> None:
    header, frames = serialize(table(), context={})
    for offset in range(16):
        moved = bytearray(offset) + frames[0]
        assert contents(deserialize(header, [memoryview(moved)[offset:]])) == contents(table())


# --- A cluster


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with (
        ternmem.dask.LocalCluster(3, threads_per_worker=1, device="sim", budget_bytes=budget_bytes,
                                  memory_limit="2GiB", dashboard_address=None) as cluster,
        Client(cluster) as made,
    ):
        yield made


def make(number: int, nbytes: int = part_bytes) -> tern.Buffer:
    made: tern.Buffer = tern.Buffer.from_numpy(np.full(nbytes // 8, float(number)))
    return made


def first(value: Any) -> float:
    assert (value.to_numpy() == value[0].item()).all()
    return float(value[0].item())


def pair(left: tern.Buffer, right: tern.Buffer) -> float:
    for value in (left, right):
        assert value[0].item() == value[-1:].item()
    return float(left[0].item() + right[0].item())


def figures(client: Client) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = client.run(lambda dask_worker: dask_worker.metrics["ternmem"](dask_worker))
    return found


def test_a_working_set_of_four_budgets_is_right_and_stays_within_them(client: Client) -> None:
    count = 4 * budget_bytes // part_bytes
    parts = client.map(make, range(count))
    wait(parts, timeout=patience)
    pairs = [client.submit(pair, parts[i], parts[(7 * i + 5) % count]) for i in range(count)]
    assert client.gather(pairs) == [i + (7 * i + 5) % count for i in range(count)]
    now = figures(client)
    for worker, one in now.items():
        print(f"{worker}: {count} parts of {part_bytes} bytes, {one}")
        assert one["limit_bytes"] == budget_bytes
        assert 0 < one["peak_bytes"] <= budget_bytes
        assert one["spills"] > 0
    assert any(one["peak_bytes"] == budget_bytes for one in now.values())

    # The dashboard and scheduler_info() get the figures with the next heartbeat.
    end = time.monotonic() + patience
    while time.monotonic() < end:
        infos = client.scheduler_info(n_workers=-1)["workers"].values()
        if all(info["metrics"].get("ternmem", {}).get("spills", 0) > 0 for info in infos):
            break
        time.sleep(0.05)
    assert len(infos) == 3
    assert all(info["metrics"]["ternmem"]["limit_bytes"] == budget_bytes for info in infos)


def test_device_copies_of_unified_buffers_go_to_the_host(client: Client) -> None:
    def make_unified(number: int) -> tern.UnifiedBuffer:
        made = tern.UnifiedBuffer(part_bytes // 8, "float64").fill(number)
        made.sync_to_device()
        made.drop_host()
        return made

    worker = next(iter(figures(client)))
    parts = client.map(make_unified, range(12), workers=[worker], pure=False)
    wait(parts, timeout=patience)
    # A plain buffer asks the store, which drops device copies.
    big = client.submit(make, 1, budget_bytes // 2, workers=[worker], pure=False)
    assert big.result(timeout=patience).nbytes == budget_bytes // 2
    assert client.gather(client.map(first, parts)) == list(range(12))
    one = figures(client)[worker]
    assert one["drops"] > 0
    assert one["peak_bytes"] <= budget_bytes


def test_values_of_every_kind_travel_between_workers(client: Client) -> None:
    def make_all() -> dict[str, Any]:
        return {"all": values(tern.current_device()), "pair": (table(), [column()]), "number": 7}

    def read(made: dict[str, Any]) -> dict[str, Any]:
        assert made["number"] == 7
        assert made["all"]["buffer"].device == tern.open_device("sim")
        return {kind: contents(value) for kind, value in made["all"].items()} | {"pair": contents(made["pair"][0])}

    here, there, *_ = figures(client)
    made = client.submit(make_all, workers=[here], pure=False)
    found = client.submit(read, made, workers=[there], pure=False).result(timeout=patience)
    expected = {kind: contents(value) for kind, value in values(tern.open_device("sim")).items()}
    assert found == {**expected, "pair": contents(table())}
    gathered = client.gather(made)  # the client opens values as it gets them
    assert contents(gathered["all"]["unified"]) == expected["unified"]
    sent = client.scatter(tern.Buffer.from_numpy(np.full(3, 2.5), "host"))
    assert client.submit(first, sent).result(timeout=patience) == 2.5


def test_a_receiver_with_too_little_memory_fails_the_task_and_goes_on(client: Client) -> None:
    too_large = client.scatter(tern.Buffer.from_numpy(np.zeros(budget_bytes + part_bytes, "uint8"), "host"))
    with pytest.raises(tern.OutOfBudgetError):
        client.submit(first, too_large).result(timeout=patience)

    # The task holds the budget itself while its arguments arrive on the worker.
    def use_all(kept: list[tern.Buffer]) -> int:
        return len(kept)

    here, there, *_ = figures(client)
    parts = client.map(make, range(100, 110), workers=[here], pure=False)
    with pytest.raises(tern.OutOfBudgetError):
        client.submit(use_all, parts, workers=[there], pure=False).result(timeout=patience)
    assert client.submit(use_all, parts[:6], workers=[there], pure=False).result(timeout=patience) == 6
    assert all(one["peak_bytes"] <= budget_bytes for one in figures(client).values())


def test_a_worker_without_free_memory_still_sends_its_values(client: Client) -> None:
    def hold_all() -> int:
        held = tern.Buffer(budget_bytes, "uint8").fill(1)
        Event("all is held").set()
        assert Event("end").wait(patience)
        return held.nbytes

    here, there, *_ = figures(client)
    parts = client.map(make, range(300, 304), workers=[here], pure=False)
    wait(parts, timeout=patience)
    holding = client.submit(hold_all, workers=[here], pure=False)
    assert Event("all is held", client=client).wait(patience)
    try:
        assert client.submit(pair, parts[0], parts[3], workers=[there], pure=False).result(timeout=patience) == 603
        assert first(parts[1].result(timeout=patience)) == 301
    finally:
        Event("end", client=client).set()
    assert holding.result(timeout=patience) == budget_bytes
    assert client.submit(first, parts[2], workers=[here], pure=False).result(timeout=patience) == 302


@pytest.mark.parametrize("change", [{"shape": [2, 4]}, {"dtype": "spam"}, {"kind": "spaceship"}])
def test_a_damaged_message_fails_the_task_and_the_worker_goes_on(client: Client, change: dict[str, Any]) -> None:
    def make_damaged(change: dict[str, Any]) -> Received:
        return Received({**good, **change}, [b"123456789012"])

    here, there, *_ = figures(client)
    damaged = client.submit(make_damaged, change, workers=[here], pure=False)
    with pytest.raises(tern.BadFormatError):
        client.submit(first, damaged, workers=[there], pure=False).result(timeout=patience)
    with pytest.raises(tern.BadFormatError):
        damaged.result(timeout=patience)
    assert client.submit(first, make(3, 80), workers=[there], pure=False).result(timeout=patience) == 3


def test_a_computation_completes_although_a_worker_is_killed(client: Client) -> None:
    parts = client.map(make, range(200, 216), [mib] * 16)
    wait(parts, timeout=patience)
    pids = client.run(os.getpid)
    pairs = [client.submit(pair, parts[i], parts[15 - i]) for i in range(16)]
    os.kill(next(iter(pids.values())), signal.SIGKILL)
    assert client.gather(pairs) == [415.0] * 16
    client.wait_for_workers(3, timeout=patience)
    again = figures(client)  # the new worker has a budget too
    assert [one["limit_bytes"] for one in again.values()] == [budget_bytes] * 3


# --- Settings


def test_wrong_settings_are_refused() -> None:
    with pytest.raises(tern.InvalidArgumentError, match="workers of one process would share one budget"):
        ternmem.dask.LocalCluster(1, device="sim", budget_bytes=mib, processes=False)
    with pytest.raises(tern.InvalidArgumentError, match="budget_bytes is 0"):
        ternmem.dask.WorkerPlugin("sim", 0)
    with pytest.raises(tern.InvalidArgumentError, match="the list of devices is empty"):
        ternmem.dask.WorkerPlugin([], mib)

    class Worker:
        name = "0"
        data: dict[str, Any] = {}

    with pytest.raises(tern.InvalidArgumentError, match=r"keeps its values in a dict.*data=ternmem.dask.Store"):
        ternmem.dask.WorkerPlugin("sim", mib).setup(Worker())


def test_the_error_without_distributed_names_the_extra() -> None:
    program = "import sys; sys.modules['distributed'] = None; import ternmem.dask"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert "ImportError: ternmem.dask needs dask.distributed" in ended.stderr
    assert "Install 'ternmem[dask]'" in ended.stderr
