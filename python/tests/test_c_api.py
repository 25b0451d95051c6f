"""The C API through ctypes: against a model, with faults, from many threads, after a fork and at the interpreter's exit."""

from __future__ import annotations

import os
import queue
import random
import subprocess
import sys
import threading
from collections.abc import Callable
from ctypes import byref, c_size_t, c_void_p, sizeof
from typing import Any

import pytest

import ternmem as tern
from ternmem import c

kib, mib = 1 << 10, 1 << 20
specs = ["host", "sim:0", "cuda:0?driver=sim"]
programs = int(os.environ.get("TERN_PYTHON_PROGRAMS", "1000")) // 50


def stack(device: tern.Device, limit_bytes: int | None = None) -> tuple[tern.Pool, tern.Budget, c.Handle]:
    """A pool, a budget over it, and a handle of both."""
    pool = tern.Pool(device)
    budget = tern.Budget("test", limit_bytes, overflow="wait")
    return pool, budget, c.Handle(tern.BudgetResource(pool, budget), "test")


def assert_unused(device: tern.Device, pool: tern.Pool, budget: tern.Budget, handle: c.Handle) -> None:
    """Asserts that nothing is live or charged, and that the driver gets all memory back."""
    device.synchronize()
    c.trim(handle)  # also frees memory that other streams have used, in the order of a stream
    device.synchronize()
    c.trim(handle)
    now = c.statistics(handle)
    assert (now.live_bytes, now.live_blocks) == (0, 0)
    assert now.allocations >= now.frees  # requests of 0 bytes are not freed
    budget.set_limit(1)  # a request at the limit ends the charges of completed frees
    with pytest.raises(tern.OutOfBudgetError):
        c.allocate(handle, 4096)
    assert budget.used_bytes == 0
    budget.set_limit(None)
    assert pool.pool_statistics["held_bytes"] == 0


def ran(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False, timeout=60)


# --- Against a model


def run(device: tern.Device, seed: int) -> None:
    choose = random.Random(seed)
    pool, budget, handle = stack(device, 8 * mib)
    borrows = device.can("borrowed_streams")
    streams: list[tern.Stream | None] = [None]
    live: dict[int, int] = {}
    dead: set[int] = set()
    recorded: set[int] = set()
    delayed: dict[int, int] = {}  # freed memory that other streams have used may stay live for a while

    def handle_of(stream: tern.Stream | None) -> int:
        return stream.handle if stream is not None else choose.choice([0, 1, 2]) if borrows else 0

    for _ in range(choose.randint(20, 80)):
        action = choose.randrange(10)
        stream = choose.choice(streams)
        if action < 4:
            bytes = choose.choice([0, 1, 255, 256, 257, choose.randrange(64 * kib), choose.randrange(3 * mib)])
            alignment = choose.choice([0, 0, 16, 4096])
            try:
                address = c.allocate(handle, bytes, handle_of(stream), alignment)
            except tern.OutOfBudgetError:
                assert sum(live.values()) + sum(delayed.values()) + bytes + 2 * mib > 8 * mib, f"seed {seed}"
                continue
            if bytes == 0:
                assert address == 0
                continue
            found = c.find_block(address)
            assert found.address == address
            assert found.bytes >= bytes
            assert found.tag == "test"
            assert found.device == device.spec
            assert address % max(alignment, 256) == 0
            for start, size in live.items():
                assert address + found.bytes <= start or start + size <= address, f"seed {seed}: blocks overlap"
            live[address] = found.bytes
            dead.discard(address)
            delayed.pop(address, None)
        elif action < 7 and live:
            address = choose.choice(list(live))
            if choose.random() < 0.5:
                c.free(address, handle_of(stream))
            else:
                c.free_in_order(address)
            bytes = live.pop(address)
            dead.add(address)
            if address in recorded:
                recorded.discard(address)
                delayed[address] = bytes
        elif action == 7 and live:
            address = choose.choice(list(live))
            c.record_use(address, handle_of(stream))
            recorded.add(address)
        elif action == 8 and borrows:
            if len(streams) > 3:
                streams.pop(1).close()  # type: ignore[union-attr]
            streams.append(tern.Stream(device))
        else:
            for wrong in [*choose.sample(sorted(dead), min(2, len(dead))), 4096, next(iter(live), 0) + 256]:
                if wrong in live:
                    continue
                before = c.statistics(handle)
                for call in (c.free, c.free_in_order, c.find_block, lambda at: c.record_use(at, 0)):
                    with pytest.raises(tern.UseAfterFreeError, match="no live memory begins at"):
                        call(wrong)
                assert c.statistics(handle).frees == before.frees, f"seed {seed}"
        now = c.statistics(handle)
        assert 0 <= now.live_bytes - sum(live.values()) <= sum(delayed.values()), f"seed {seed}"
        assert 0 <= now.live_blocks - len(live) <= len(delayed), f"seed {seed}"
        # Frees that wait for other streams are pending, and stay charged as live.
        assert now.live_bytes <= budget.live_bytes <= now.live_bytes + now.pending_bytes
        addresses = {block.address for block in c.snapshot(device.spec)}
        assert set(live) <= addresses, f"seed {seed}"
        assert not (dead - set(delayed)) & addresses, f"seed {seed}"
    for address in live:
        c.free_in_order(address)
    assert_unused(device, pool, budget, handle)


@pytest.mark.parametrize("spec", specs)
def test_random_programs_do_what_a_model_does(spec: str) -> None:
    device = tern.open_device(spec)
    for seed in range(programs):
        run(device, seed)


# --- Errors


@pytest.mark.parametrize("spec", specs)
def test_errors_have_a_status_and_a_sentence(spec: str) -> None:
    device = tern.open_device(spec)
    pool, budget, handle = stack(device, mib)
    cases: list[tuple[Callable[[], object], type[Exception], str]] = [
        (lambda: c.allocate(handle, 2 * mib), tern.OutOfBudgetError, "budget 'test' cannot hold 2.0 MiB"),
        (lambda: c.allocate(handle, 100, 0, 3), tern.InvalidArgumentError, "an alignment of 3"),
        (lambda: c.allocate(handle, 2**64 - 1), tern.Error, "exceeds the largest possible allocation"),
        (lambda: c.free(12345), tern.UseAfterFreeError, "no live memory begins at 0x3039"),
        (lambda: c.check(c.library.tern_allocate(None, 1, 0, 0, byref(c_void_p()))), tern.InvalidArgumentError, "resource is null"),
        (lambda: c.check(c.library.tern_open_device(b"spam:0", byref(c_void_p()))), tern.InvalidDeviceError, "spam"),
        (lambda: c.check(c.library.tern_make_pool(None, None, byref(c_void_p()))), tern.InvalidArgumentError, "device is null"),
        (lambda: c.check(c.library.tern_find_block(0, None)), tern.UseAfterFreeError, "no live memory"),
        (lambda: c.check(c.library.tern_set_plugin(7, 0, None)), tern.InvalidArgumentError, "7 is not a library"),
        (lambda: c.check(c.library.tern_set_plugin(0, 64, None)), tern.InvalidDeviceError, "64 is not the ordinal"),
        (lambda: c.plugin_allocate(c.TORCH, -1, 1), tern.InvalidDeviceError, "-1 is not the ordinal"),
        (lambda: c.plugin_allocate(c.NUMBA, 63, 1), tern.InvalidDeviceError, "library 'numba' has no resource for CUDA device 63"),
        (lambda: c.plugin_handle(c.CUPY, 63), tern.InvalidDeviceError, "library 'cupy' has no resource"),
    ]
    for call, kind, text in cases:
        with pytest.raises(kind, match=text) as caught:
            call()
        assert str(caught.value) == c.last_error()
    assert_unused(device, pool, budget, handle)


def test_the_last_error_belongs_to_its_thread() -> None:
    with pytest.raises(tern.UseAfterFreeError):
        c.free(12345)
    seen: list[str] = []
    thread = threading.Thread(target=lambda: seen.append(c.last_error()))
    thread.start()
    thread.join()
    assert seen == [""]
    assert "0x3039" in c.last_error()


def test_status_names_and_versions() -> None:
    assert c.library.tern_abi_version() >= 1
    assert c.library.tern_version().decode() == tern.__version__
    assert c.library.tern_status_name(2) == b"TERN_OUT_OF_BUDGET"
    assert c.library.tern_status_name(99) == b"unknown status"


def test_structures_without_a_size_are_refused_and_smaller_ones_accepted() -> None:
    with c.open_device("host") as device:
        pool = c_void_p()
        # A caller that was compiled before the last field was added. The value there is not read.
        older = c.PoolOptions(sizeof(c.PoolOptions) - 8, initial_bytes=1 << 60)
        c.check(c.library.tern_make_pool(device, byref(older), byref(pool)))
        c.library.tern_release_resource(pool)
        options = c.PoolOptions(0)
        with pytest.raises(tern.InvalidArgumentError, match="struct_bytes of options"):
            c.check(c.library.tern_make_pool(device, byref(options), byref(c_void_p())))


@pytest.mark.parametrize("spec", specs)
def test_a_program_that_uses_only_the_c_api(spec: str) -> None:
    library, check = c.library, c.check
    pool, budget, parent, limited, address = (c_void_p() for _ in range(5))
    free, total, released = c_size_t(), c_size_t(), c_size_t()
    with c.open_device(spec) as device:
        check(library.tern_device_memory(device, byref(free), byref(total)))
        assert 0 < free.value <= total.value
        options = c.PoolOptions(sizeof(c.PoolOptions), 0, 64 * mib, 4 * mib)
        check(library.tern_make_pool(device, byref(options), byref(pool)))
        check(library.tern_make_budget(b"all", 2 * mib, None, byref(parent)))
        check(library.tern_make_budget(b"one", 2**64 - 1, parent, byref(budget)))
        check(library.tern_make_budget_resource(pool, budget, byref(limited)))
        check(library.tern_set_tag(limited, b"mesh"))
        check(library.tern_allocate(limited, mib, 0, 0, byref(address)))
        figures = c.BudgetStatistics(sizeof(c.BudgetStatistics))
        for one, limit in ((budget, 2**64 - 1), (parent, 2 * mib)):
            check(library.tern_get_budget_statistics(one, byref(figures)))
            assert (figures.limit_bytes, figures.used_bytes, figures.peak_bytes) == (limit, mib, mib)
        assert library.tern_allocate(limited, 2 * mib, 0, 0, byref(c_void_p())) == 2
        check(library.tern_set_budget_limit(parent, 4 * mib))
        second = c_void_p()
        check(library.tern_allocate(limited, 2 * mib, 0, 0, byref(second)))
        # Handles may be released in any order: the memory keeps its resource, its budget and its device.
        for release, one in ((library.tern_release_resource, pool), (library.tern_release_budget, parent),
                             (library.tern_release_budget, budget)):
            release(one)
        check(library.tern_free(second, 0))
        check(library.tern_reset_peak(limited))
        now = c.statistics(c.Handle.of_address(limited.value))  # owns the handle from here on
        assert now.live_bytes == mib
        assert now.peak_live_bytes <= 3 * mib
        check(library.tern_free(address, 0))
        check(library.tern_synchronize(device))


def test_memory_outlives_its_handle() -> None:
    pool, budget, handle = stack(tern.open_device("sim:0"), mib)
    address = c.allocate(handle, 1000)
    handle.close()
    handle.close()
    assert budget.live_bytes >= 1000
    c.free(address)
    assert budget.live_bytes == 0


def test_a_closed_handle_keeps_nothing() -> None:
    device = tern.sim.open()
    pool = tern.Pool(device, initial_bytes=4 * mib)
    handle = c.Handle(pool)
    del pool
    assert len(tern.sim.leaks(device)) > 0
    handle.close()
    assert tern.sim.leaks(device) == []
    handle = c.Handle(tern.Pool(device, initial_bytes=4 * mib))
    del handle
    assert tern.sim.leaks(device) == []


def test_trimming_returns_what_is_unused() -> None:
    pool, budget, handle = stack(tern.sim.open())
    kept, address = c.allocate(handle, 4 * mib), c.allocate(handle, 8 * mib)
    c.free(address)
    assert pool.pool_statistics["held_bytes"] == 12 * mib
    pool.device.synchronize()
    assert c.trim(handle, 12 * mib) == 0
    assert c.trim(handle) == 8 * mib
    assert pool.pool_statistics["held_bytes"] == 4 * mib
    c.free(kept)
    assert_unused(pool.device, pool, budget, handle)


# --- Streams


@pytest.fixture
def cuda() -> tern.Device:
    return tern.open_device("cuda:0?driver=sim")


def test_a_stream_reuses_its_memory_without_a_wait(cuda: tern.Device) -> None:
    pool, budget, handle = stack(cuda, 6 * mib)
    with tern.Stream(cuda) as one:
        one.wait(tern.Stream(cuda).mark())
        for free in (lambda at: c.free(at, one.handle), c.free_in_order) * 10:
            free(c.allocate(handle, 6 * mib, one.handle))  # two blocks at a time would not fit
        assert pool.pool_statistics["host_waits"] == 0
        assert pool.pool_statistics["grows"] == 1
    assert_unused(cuda, pool, budget, handle)


def test_a_recorded_use_delays_the_reuse(cuda: tern.Device) -> None:
    pool, budget, handle = stack(cuda)
    one, other = tern.Stream(cuda), tern.Stream(cuda)
    address = c.allocate(handle, mib, one.handle)
    hold = tern.sim.open()  # only to have a second device: recording a stream of another device is an error below
    c.record_use(address, other.handle)
    c.record_use(address, other.handle)
    c.free_in_order(address)
    with pytest.raises(tern.UseAfterFreeError):
        c.free(address, one.handle)
    del hold
    other.close()  # the use stays valid
    one.close()
    assert_unused(cuda, pool, budget, handle)


def test_a_handle_that_the_driver_uses_again_is_another_stream(cuda: tern.Device) -> None:
    pool, budget, handle = stack(cuda)
    handles = set()
    addresses: list[int] = []
    reused = 0
    for _ in range(50):
        stream = tern.Stream(cuda)
        reused += stream.handle in handles
        handles.add(stream.handle)
        for address in addresses:
            c.record_use(address, stream.handle)
        addresses.append(c.allocate(handle, 64 * kib, stream.handle))
        if len(addresses) > 3:
            c.free_in_order(addresses.pop(0))
        stream.close()
    assert reused > 0, "the driver used no handle again, so the test shows nothing"
    for address in addresses:
        c.free_in_order(address)
    assert_unused(cuda, pool, budget, handle)


def test_destroyed_and_wrong_handles_are_errors_that_change_nothing(cuda: tern.Device) -> None:
    pool, budget, handle = stack(cuda)
    stream = tern.Stream(cuda)
    gone = stream.handle
    address = c.allocate(handle, 1000, gone)
    stream.close()
    del stream
    for wrong in (gone, 0xdead):
        for call in (lambda: c.allocate(handle, 1000, wrong), lambda: c.free(address, wrong), lambda: c.record_use(address, wrong)):
            with pytest.raises(tern.Error):
                call()
    assert c.find_block(address).bytes >= 1000
    assert c.statistics(handle).live_blocks == 1
    c.free_in_order(address)
    assert_unused(cuda, pool, budget, handle)


@pytest.mark.parametrize("spec", ["host", "sim:0"])
def test_devices_without_foreign_streams_take_only_the_default_stream(spec: str) -> None:
    device = tern.open_device(spec)
    pool, budget, handle = stack(device)
    with pytest.raises(tern.UnsupportedError, match="Pass NULL for its default stream"):
        c.allocate(handle, 100, 0x10)
    address = c.allocate(handle, 100)
    with pytest.raises(tern.UnsupportedError):
        c.free(address, 0x10)
    c.free(address)
    assert_unused(device, pool, budget, handle)


# --- Faults


def fault_program(handle: c.Handle) -> list[Exception]:
    """Allocates and frees, and returns the errors. A free that fails is repeated."""
    failed: list[Exception] = []
    live: list[int] = []

    def succeeds(call: Callable[[], object]) -> bool:
        try:
            call()
        except tern.Error as error:
            assert str(error)
            failed.append(error)
            return False
        return True

    for bytes in (1000, 3 * mib, 64 * kib, 3 * mib, 100, 5 * mib):
        if succeeds(lambda bytes=bytes: live.append(c.allocate(handle, bytes))):  # type: ignore[misc]
            succeeds(lambda: c.record_use(live[-1], 0))
        if len(live) > 2 and succeeds(lambda: c.free(live[0])):
            live.pop(0)
    succeeds(lambda: c.trim(handle))
    for address in live:
        assert any(succeeds(lambda address=address: c.free(address)) for _ in range(3)), failed[-1]  # type: ignore[misc]
    return failed


@pytest.mark.parametrize(("fault_class", "kind"), [("allocate", "oom"), ("allocate", "fail"), ("map", "oom"), ("map", "fail"),
                                                   ("record", "fail"), ("query", "fail"), ("query", "not_ready")])
def test_a_driver_call_that_fails_leaks_and_charges_nothing(fault_class: str, kind: str) -> None:
    device = tern.sim.open(print_findings=False)
    pool, budget, handle = stack(device, 64 * mib)
    assert fault_program(handle) == []
    count = tern.sim.calls(device, fault_class)
    assert_unused(device, pool, budget, handle)
    del pool, handle
    refusals = 0
    for at in range(1, count + 1):
        for rule in (f"{fault_class}#{at}={kind}", f"{fault_class}#{at}+={kind}"):
            pool, budget, handle = stack(device, 64 * mib)
            tern.sim.set_faults(device, rule)
            refusals += len(fault_program(handle))
            tern.sim.set_faults(device, "")
            assert_unused(device, pool, budget, handle)
            handle.close()
            del pool, handle
            device.synchronize()
            assert tern.sim.leaks(device) == [], rule
            assert tern.sim.findings(device) == [], rule
    if fault_class in ("allocate", "map"):
        assert refusals > 0
    print(f"{fault_class}={kind}: {2 * count} plans, {refusals} failed calls")


with_faults = """
import sys
sys.path.insert(0, sys.argv[1])
import ternmem as tern
from test_c_api import assert_unused, fault_program, mib, stack
device = tern.open_device("cuda:0?driver=sim")
pool, budget, handle = stack(device, 64 * mib)
print(len(fault_program(handle)))
assert_unused(device, pool, budget, handle)
"""


@pytest.mark.parametrize("rule", ["allocate#1=oom", "allocate#3=fail", "map#2=fail", "map#5=oom", "record#1=fail", "query#1=fail"])
def test_a_cuda_driver_that_fails_once_leaks_and_charges_nothing(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERN_SIM_FAULTS", rule)
    ended = ran(with_faults, os.path.dirname(__file__))
    assert (ended.returncode, ended.stderr) == (0, "")


def test_a_lost_device_can_still_be_freed() -> None:
    device = tern.sim.open(print_findings=False)
    _, budget, handle = stack(device)
    address = c.allocate(handle, mib)
    tern.sim.set_faults(device, "sync#1=lost")
    with pytest.raises(tern.DeviceLostError):
        device.synchronize()
    with pytest.raises(tern.DeviceLostError):
        c.allocate(handle, 32 * mib)
    c.free(address)
    assert budget.live_bytes == 0


# --- Threads


@pytest.mark.parametrize("spec", specs)
def test_sixteen_threads_allocate_and_free_memory_of_each_other(spec: str) -> None:
    device = tern.open_device(spec)
    pool, budget, handle = stack(device, 256 * mib)
    shared: queue.SimpleQueue[int] = queue.SimpleQueue()
    refused: list[int] = []
    failures: list[BaseException] = []

    def work(seed: int) -> None:
        choose = random.Random(seed)
        stream = tern.Stream(device) if device.can("borrowed_streams") else None
        number = stream.handle if stream is not None else 0
        try:
            for _ in range(150):
                shared.put(c.allocate(handle, choose.randrange(1, 256 * kib), number))
                address = shared.get()
                c.record_use(address, number)
                if choose.random() < 0.5:
                    c.free_in_order(address)
                else:
                    c.free(address, number)
                try:
                    c.find_block(address)
                    c.statistics(handle)
                except tern.UseAfterFreeError:
                    refused.append(1)
        except BaseException as error:
            failures.append(error)
        finally:
            if stream is not None:
                stream.close()

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert failures == []
    assert c.statistics(handle).allocations == 16 * 150
    assert_unused(device, pool, budget, handle)


@pytest.mark.parametrize("spec", specs)
def test_of_two_frees_of_one_address_one_succeeds(spec: str) -> None:
    device = tern.open_device(spec)
    pool, budget, handle = stack(device)
    results: list[bool] = []

    for _ in range(50):
        address = c.allocate(handle, 1000)
        barrier = threading.Barrier(4)

        def attempt(address: int = address, barrier: threading.Barrier = barrier) -> None:
            barrier.wait()
            try:
                c.free(address)
                results.append(True)
            except tern.UseAfterFreeError:
                results.append(False)

        threads = [threading.Thread(target=attempt) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sum(results) == 50
    assert len(results) == 200
    assert_unused(device, pool, budget, handle)


# --- Plug-ins


@pytest.fixture
def plugin(cuda: tern.Device) -> Any:
    made = [stack(cuda, 4 * mib) for _ in range(2)]
    yield made
    for library in (c.TORCH, c.CUPY, c.NUMBA, c.OTHER):
        c.set_plugin(library, 0, None)
    for pool, budget, handle in made:
        assert_unused(cuda, pool, budget, handle)


def test_each_library_has_a_resource_of_its_own(plugin: Any) -> None:
    (_, one_budget, one), (_, other_budget, other) = plugin
    c.set_plugin(c.TORCH, 0, one.resource)
    c.set_plugin(c.CUPY, 0, other.resource)
    address = c.library.tern_torch_malloc(1000, 0, 0)
    second = c.library.tern_cupy_malloc(0, 3000, 0)
    assert c.find_block(address).tag == "torch"
    assert c.find_block(second).tag == "cupy"
    assert (one_budget.live_bytes, other_budget.live_bytes) == (1024, 3072)
    assert c.library.tern_torch_malloc(8 * mib, 0, 0) is None
    assert "budget 'test' cannot hold 8.0 MiB" in c.last_error()
    assert c.library.tern_cupy_malloc(0, 8 * mib, 0) is None
    assert c.library.tern_torch_malloc(0, 0, 0) is None
    c.library.tern_torch_free(address, 1000, 0, 0)
    c.library.tern_cupy_free(0, second, 0)
    c.library.tern_torch_free(None, 0, 0, 0)
    c.library.tern_cupy_free(0, None, 0)


def test_a_plugin_can_be_set_twice_and_removed(plugin: Any) -> None:
    (_, one_budget, one), (_, other_budget, other) = plugin
    c.set_plugin(c.OTHER, 0, one.resource)
    first = c.plugin_allocate(c.OTHER, 0, 1000)
    c.set_plugin(c.OTHER, 0, other.resource)
    second = c.plugin_allocate(c.OTHER, 0, 1000)
    with c.plugin_handle(c.OTHER, 0) as handle:
        assert c.statistics(handle).live_bytes == 1024
    assert (one_budget.live_bytes, other_budget.live_bytes) == (1024, 1024)
    c.set_plugin(c.OTHER, 0, None)
    assert c.plugin(c.OTHER, 0) is None
    with pytest.raises(tern.InvalidDeviceError, match="library 'other' has no resource for CUDA device 0"):
        c.plugin_allocate(c.OTHER, 0, 1000)
    c.free(first)  # memory is freed by the resource that allocated it
    c.free(second)
    assert (one_budget.live_bytes, other_budget.live_bytes) == (0, 0)


def test_a_resource_of_another_device_is_refused() -> None:
    for spec in ("host", "sim:0", "cuda:0?driver=sim"):
        ordinal = 1 if spec.startswith("cuda") else 0
        with pytest.raises(tern.InvalidDeviceError, match=f"but CUDA device {ordinal} is 'cuda:{ordinal}'"):
            c.set_plugin(c.TORCH, ordinal, tern.Pool(spec))
    for wrong in (-1, 64, "0"):
        with pytest.raises(tern.InvalidDeviceError, match="is not the ordinal of a CUDA device"):
            c.resource_for(None, wrong, "torch")  # type: ignore[arg-type]


def test_a_resource_without_a_budget_gets_one_budget() -> None:
    pool, other = tern.Pool("cuda:0?driver=sim"), tern.Pool("cuda:0?driver=sim")
    limited = c.resource_for(pool, 0, "test")
    assert isinstance(limited, tern.BudgetResource)
    assert c.resource_for(pool, 0, "test") is limited
    assert c.resource_for(other, 0, "test") is not limited
    assert c.resource_for(limited, 0, "test") is limited


def test_the_resource_changes_while_threads_allocate(plugin: Any) -> None:
    (_, _, one), (_, _, other) = plugin
    c.set_plugin(c.TORCH, 0, one.resource)
    is_over = threading.Event()
    failures: list[BaseException] = []

    def work() -> None:
        try:
            while not is_over.is_set():
                c.library.tern_torch_free(c.library.tern_torch_malloc(1000, 0, 0), 1000, 0, 0)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for i in range(200):
        c.set_plugin(c.TORCH, 0, (one if i % 2 else other).resource)
    is_over.set()
    for thread in threads:
        thread.join(60)
    assert failures == []


def test_figures_of_a_plugin(plugin: Any) -> None:
    (_, budget, one), _ = plugin
    c.set_plugin(c.TORCH, 0, one.resource)
    address = c.library.tern_torch_malloc(mib, 0, 0)
    size = c_size_t()
    assert c.library.tern_torch_base(address, byref(size)) == address
    assert size.value == mib
    c.library.tern_torch_record_stream(address, 2)
    c.library.tern_torch_free(address, mib, 0, 0)
    with c.plugin_handle(c.TORCH, 0) as handle:
        assert c.statistics(handle).peak_live_bytes == mib
        c.library.tern_torch_empty_cache()
        budget.set_limit(1)
        assert c.library.tern_torch_malloc(1000, 0, 0) is None  # ends the charge of the free
        c.reset_peak(handle)
        assert c.statistics(handle).peak_live_bytes == 0
    c.library.tern_torch_set_fraction(0.5, 0)
    assert budget.limit_bytes is not None
    assert budget.limit_bytes > 4 * mib


# --- Arenas


def test_an_arena_keeps_its_memory_for_itself(plugin: Any) -> None:
    (_, budget, one), _ = plugin
    c.set_plugin(c.TORCH, 0, one.resource)
    needed = c_size_t()
    c.check(c.library.tern_begin_rehearsal(0))
    rehearsed = [c.plugin_allocate(c.TORCH, 0, bytes) for bytes in (1000, 5000)]
    c.check(c.library.tern_end_rehearsal(0, byref(needed)))
    assert needed.value == 1024 + 5120
    for address in rehearsed:
        c.free(address)

    arena = c.ArenaId(1, 2)
    c.check(c.library.tern_reserve_arena(0, needed.value))
    none = c.StreamFilter()
    c.check(c.library.tern_begin_arena(0, arena, none, None))
    first = [c.plugin_allocate(c.TORCH, 0, bytes) for bytes in (1000, 5000)]
    held, used = c_size_t(), c_size_t()
    c.check(c.library.tern_get_arena(0, arena, byref(held), byref(used)))
    assert used.value == needed.value
    assert held.value == needed.value
    for address in first:
        c.free(address)
    assert [c.plugin_allocate(c.TORCH, 0, bytes) for bytes in (1000, 5000)] == first
    c.check(c.library.tern_end_arena(0, arena))
    outside = c.plugin_allocate(c.TORCH, 0, 1000)
    assert not first[0] <= outside < first[0] + needed.value
    c.check(c.library.tern_release_arena(0, arena))
    assert budget.live_bytes >= needed.value  # the arena keeps its memory as long as a block of it is live
    for address in [*first, outside]:
        c.free(address)
    assert budget.live_bytes == 0
    for call in (c.library.tern_end_arena, c.library.tern_release_arena):
        with pytest.raises(tern.InvalidArgumentError, match="device 0 has no arena 1, 2"):
            c.check(call(0, arena))


def test_a_filter_chooses_the_streams_of_an_arena(plugin: Any, cuda: tern.Device) -> None:
    (_, _, one), _ = plugin
    c.set_plugin(c.TORCH, 0, one.resource)
    with tern.Stream(cuda) as stream:
        accepts = c.StreamFilter(lambda context, asked: int(asked == stream.handle))
        c.check(c.library.tern_begin_arena(0, c.ArenaId(3, 0), accepts, None))
        inside = c.plugin_allocate(c.TORCH, 0, 1000, stream.handle)
        outside = c.plugin_allocate(c.TORCH, 0, 1000, 0)
        used = c_size_t()
        c.check(c.library.tern_get_arena(0, c.ArenaId(3, 0), None, byref(used)))
        assert used.value == 1024
        c.free(inside, stream.handle)
        c.free(outside)
        c.check(c.library.tern_end_arena(0, c.ArenaId(3, 0)))
        c.check(c.library.tern_release_arena(0, c.ArenaId(3, 0)))


# --- The process


at_exit = """
import atexit, sys, threading, time
import ternmem as tern
from ternmem import c

handle = c.Handle(tern.BudgetResource(tern.Pool(sys.argv[1]), tern.Budget("b", None)), "exit")
if sys.argv[1].startswith("cuda"):
    c.set_plugin(c.TORCH, 0, handle.resource)
late = c.allocate(handle, 1000)
atexit.register(lambda: c.free(late))
kept = [c.allocate(handle, 1000) for _ in range(10)]
class Late:
    def __init__(self): self.free, self.address = c.library.tern_free_in_order, c.allocate(handle, 100)
    def __del__(self): self.free(self.address)
keep = Late()
cycle = [keep]; cycle.append(cycle)
def work():
    while True:
        c.free(c.allocate(handle, 1000))
threading.Thread(target=work, daemon=True).start()
time.sleep(0.05)
"""


@pytest.mark.parametrize("spec", specs)
def test_memory_may_be_live_at_the_interpreters_exit(spec: str) -> None:
    ended = ran(at_exit, spec)
    assert (ended.returncode, ended.stderr) == (0, "")


after_fork = """
import os, sys, warnings
import ternmem as tern
from ternmem import c

warnings.simplefilter("ignore", DeprecationWarning)
pool = tern.Pool(sys.argv[1])
handle = c.Handle(pool, "fork")
address, second = c.allocate(handle, 1000), c.allocate(handle, 1000)
child = os.fork()
if child == 0:
    try:
        c.allocate(handle, 10)
        os._exit(3)
    except tern.AfterForkError as error:
        assert "forked" in str(error)
    try:
        c.free_in_order(address)
        c.free(second)
    except tern.AfterForkError:
        pass
    handle.close()
    sys.exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert c.statistics(handle).live_blocks == 2
c.free(address)
c.free(second)
assert c.statistics(handle).live_blocks == 0
"""


@pytest.mark.parametrize("spec", ["sim:0", "cuda:0?driver=sim"])
def test_a_forked_child_uses_nothing_of_its_parent(spec: str) -> None:
    ended = ran(after_fork, spec)
    assert (ended.returncode, ended.stderr) == (0, "")
