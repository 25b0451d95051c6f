"""SharedBudget: one limit for several processes."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import ternmem as tern

MIB = 1 << 20


@pytest.fixture
def name() -> Iterator[str]:
    """A name that no other test process uses."""
    chosen = f"ternmem-test-{os.getpid()}"
    yield chosen
    gc.collect()  # a caught exception is in a cycle with the frame that has the handles
    path = f"/dev/shm/tern-budget-{os.geteuid()}-{chosen}"
    left = os.path.exists(path)
    if left:
        os.unlink(path)
    assert not left, "the last tenant has not deleted the file"


def run_tenant(name: str, pipe: Any) -> None:
    """Joins, fills 6 MiB with copies that can be fetched again, and answers what it is asked until told to stop."""
    shared = tern.SharedBudget(name, "child")
    device = tern.open_device("sim:0")
    resource = tern.BudgetResource(tern.Pool(device), tern.Budget("process", None, shared=shared))
    tern.set_default_resource(resource)
    buffers = [tern.UnifiedBuffer(MIB, "uint8", device=device).fill(7) for _ in range(6)]
    for buffer in buffers:
        buffer.sync_to_device()
    device.synchronize()
    pipe.send(shared.charged_bytes)
    while pipe.recv() == "answer":
        pipe.send(shared.answer_requests())
    pipe.send(all(buffer.host.sum() == 7 * MIB for buffer in buffers))
    pipe.recv()


Tenant = tuple[multiprocessing.process.BaseProcess, Any]


@pytest.fixture
def start(name: str) -> Iterator[Callable[[], Tenant]]:
    spawn = multiprocessing.get_context("spawn")
    started: list[multiprocessing.process.BaseProcess] = []

    def begin() -> Tenant:
        own, other = spawn.Pipe()
        process = spawn.Process(target=run_tenant, args=(name, other))
        process.start()
        other.close()
        started.append(process)
        return process, own

    yield begin
    for process in started:
        process.kill()
        process.join()


def test_processes_share_a_limit_and_shrink_for_each_other(name: str, start: Callable[[], Tenant]) -> None:
    shared = tern.SharedBudget(name, "parent", limit_bytes=8 * MIB)
    process, pipe = start()
    assert pipe.recv() == 6 * MIB
    assert shared.charged_bytes == 6 * MIB
    resource = tern.BudgetResource(tern.Pool(tern.open_device("sim:0")), tern.Budget("process", None, shared=shared))

    def take() -> tern.Buffer:
        return tern.Buffer(4 * MIB, "uint8", "sim:0", resource=resource).allocate()

    with pytest.raises(tern.OutOfBudgetError) as caught:
        take()
    assert caught.value.shared == name
    assert f"child 6.0 MiB (pid {process.pid})" in caught.value.tenants
    assert caught.value.missing == 2 * MIB

    # The child evicts two of its copies.
    shared.ask("child", 2 * MIB)
    assert {one["name"]: one["asked_bytes"] for one in shared.tenants()} == {"parent": 0, "child": 2 * MIB}
    pipe.send("answer")
    answer = pipe.recv()
    assert answer["asked_bytes"] == answer["evicted_bytes"] == 2 * MIB
    assert answer["trimmed_bytes"] >= 2 * MIB
    taken = take()
    assert shared.charged_bytes == shared.peak_bytes == 8 * MIB
    child = next(one for one in shared.tenants() if one["name"] == "child")
    assert child["pid"] == process.pid
    assert child["is_alive"]
    assert child["answers"] == 1
    assert child["evicted_bytes"] == 2 * MIB
    del taken

    pipe.send("check")  # the bytes are still right, and are fetched again if needed
    assert pipe.recv() is True


def test_a_killed_process_gives_back_what_it_had(name: str, start: Callable[[], Tenant]) -> None:
    shared = tern.SharedBudget(name, "parent", limit_bytes=8 * MIB)
    process, pipe = start()
    assert pipe.recv() == 6 * MIB
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert shared.charged_bytes == 6 * MIB
    assert [one["is_alive"] for one in shared.tenants()] == [True, False]
    resource = tern.BudgetResource(tern.Pool(tern.open_device("sim:0")), tern.Budget("process", None, shared=shared))
    tern.Buffer(8 * MIB, "uint8", "sim:0", resource=resource).allocate()
    assert [one["name"] for one in shared.tenants()] == ["parent"]
    assert shared.collect() == 0


def test_the_command_shows_the_tenants(name: str, start: Callable[[], Tenant]) -> None:
    if "TERN_TOOL" not in os.environ:
        pytest.skip("TERN_TOOL does not name the tern command")
    shared = tern.SharedBudget(name, "parent", limit_bytes=8 * MIB, tenant_limit_bytes=MIB)
    process, pipe = start()
    pipe.recv()
    shared.ask("child", 1024)
    process.kill()
    process.join()
    run = subprocess.run([os.environ["TERN_TOOL"], "top", "--shared", name], capture_output=True, text=True, check=True)
    first, _, *rows = run.stdout.splitlines()
    assert first == f"shared budget {name}: 6.0 MiB of 8.0 MiB in use, peak 6.0 MiB, 2 tenants"
    assert rows[1].split() == ["child", str(process.pid), "6.0", "MiB", "6.0", "MiB", "none", "1.0", "KiB", "dead"]
    assert rows[2].split() == ["parent", str(os.getpid()), "0", "B", "0", "B", "1.0", "MiB", "alive"]
    assert shared.collect() == 6 * MIB


def test_limits_change(name: str) -> None:
    shared = tern.SharedBudget(name, "a", limit_bytes=8 * MIB, tenant_limit_bytes=MIB)
    other = tern.SharedBudget(name, "b", limit_bytes=1)
    assert (other.name, other.tenant, other.limit_bytes) == (name, "b", 8 * MIB)
    shared.set_limit(None)
    shared.set_limit(2 * MIB, tenant="b")
    assert other.limit_bytes is None
    assert [one["limit_bytes"] for one in shared.tenants()] == [MIB, 2 * MIB]
    assert repr(shared) == f"SharedBudget('{name}', tenant='a', limit_bytes=None, charged_bytes=0)"
    assert shared.answer_requests() == {"asked_bytes": 0, "evicted_bytes": 0, "trimmed_bytes": 0}


def test_mistakes_are_errors(name: str) -> None:
    with pytest.raises(tern.NotFoundError, match="Join it with a limit"):
        tern.SharedBudget(name, "a")
    shared = tern.SharedBudget(name, "a", limit_bytes=8)
    for call, kind, words in (
        (lambda: tern.SharedBudget("a/b", "a", limit_bytes=1), tern.InvalidArgumentError, "cannot be the name"),
        (lambda: tern.SharedBudget(name, "a"), tern.InvalidArgumentError, f"in process {os.getpid()}"),
        (lambda: tern.SharedBudget(name, "b", limit_bytes=-1), ValueError, "limit_bytes"),
        (lambda: shared.ask("b", 1), tern.NotFoundError, "no tenant 'b'"),
        (lambda: shared.ask("a", -1), ValueError, "bytes"),
        (lambda: shared.set_limit(1, tenant="b"), tern.NotFoundError, "no tenant 'b'"),
        (lambda: tern.Budget("child", 1, parent=tern.Budget("root", 1), shared=shared), tern.InvalidArgumentError,
         "has a parent"),
    ):
        with pytest.raises(kind, match=words):
            call()
