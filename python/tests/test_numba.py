"""Numba with Tern's memory. Without a GPU, the tests call the memory manager as Numba does, with a context of their own."""

from __future__ import annotations

import gc
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

import ternmem as tern
from ternmem import c, libraries

cuda = pytest.importorskip("numba.cuda", reason="Numba is not installed")
from numba.cuda.cudadrv import driver  # noqa: E402

import ternmem.numba  # noqa: E402

mib = 1 << 20


def has_gpu() -> bool:
    # cuda.is_available() initializes Numba's driver, so another process asks.
    asked = subprocess.run([sys.executable, "-W", "ignore", "-c", "from numba import cuda; raise SystemExit(not cuda.is_available())"],
                           capture_output=True, check=False, timeout=60)
    return asked.returncode == 0


class Context:
    def __init__(self, ordinal: int = 0) -> None:
        self.device = type("Device", (), {"id": ordinal})()


@pytest.fixture
def shares() -> libraries.Shares:
    return libraries.share("cuda:0?driver=sim", limit_bytes=8 * mib, numba=6 * mib, torch=6 * mib)


@pytest.fixture
def manager(shares: libraries.Shares, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setattr(driver, "_memory_manager", None)
    monkeypatch.setattr(driver, "_logger", logging.getLogger("numba"), raising=False)
    ternmem.numba.enable(shares.numba)
    assert driver._memory_manager is ternmem.numba._numba_memory_manager
    context = Context()
    made = ternmem.numba.MemoryManager(context=context)
    made.initialize()
    assert made.interface_version == 1
    yield made
    c.set_plugin(c.NUMBA, 0, None)
    gc.collect()
    assert shares.numba.statistics["live_bytes"] == 0


def live(shares: libraries.Shares) -> int:
    return int(shares.numba.statistics["live_bytes"])


def test_memory_comes_from_the_resource_and_returns_there(manager: Any, shares: libraries.Shares) -> None:
    memory = manager.memalloc(1000)
    address = memory.device_ctypes_pointer.value
    assert c.find_block(address).bytes == 1024
    assert c.find_block(address).tag.startswith("numba")
    assert memory.size == 1000
    view = memory.view(10, 20)
    del memory
    assert live(shares) == 1024
    del view
    assert live(shares) == 0
    assert len(manager.allocations) == 0
    assert ternmem.numba.statistics().allocations == 1


def test_a_refusal_is_numbas_error_after_it_freed_its_pending_memory(manager: Any, shares: libraries.Shares) -> None:
    held = tern.Buffer(5 * mib, "uint8", shares.pool.device, resource=shares.torch, tag="torch").allocate()
    with pytest.raises(driver.CudaAPIError, match="budget 'libraries' cannot hold 4.0 MiB more") as caught:
        manager.memalloc(4 * mib)
    assert int(caught.value.code) == 2  # CUDA_ERROR_OUT_OF_MEMORY
    assert "torch 5.0 MiB" in str(caught.value)
    del held
    with manager.defer_cleanup():
        memory = manager.memalloc(4 * mib)
        del memory
        assert live(shares) == 4 * mib
    again = manager.memalloc(5 * mib)
    assert live(shares) == 5 * mib
    del again


def test_cleanup_is_deferred(manager: Any, shares: libraries.Shares) -> None:
    memory = manager.memalloc(1000)
    with manager.defer_cleanup():
        del memory
        assert live(shares) == 1024
    manager.deallocations.clear()
    assert live(shares) == 0


def test_a_reset_frees_all_memory_of_the_context(manager: Any, shares: libraries.Shares) -> None:
    memory = manager.memalloc(1000)
    manager.reset()
    assert live(shares) == 0
    again = manager.memalloc(1000)
    del memory  # frees nothing, although the address may be in use again
    assert live(shares) == 1024
    del again


def test_memory_info_and_handles_for_other_processes(manager: Any) -> None:
    free, total = manager.get_memory_info()
    assert 0 < free <= total
    memory = manager.memalloc(1000)
    with pytest.raises(tern.UnsupportedError, match=r"Share the elements in a ternmem.SharedArray"):
        manager.get_ipc_handle(memory)


def test_use_changes_the_resource_for_a_while(manager: Any, shares: libraries.Shares) -> None:
    other = tern.BudgetResource(tern.Pool("cuda:0?driver=sim"), tern.Budget("inner", None))
    with ternmem.numba.use(other):
        inner = manager.memalloc(1000)
    outer = manager.memalloc(3000)
    assert (other.statistics["live_bytes"], live(shares)) == (1024, 3072)
    del inner, outer


def test_errors_of_enable(shares: libraries.Shares, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "_memory_manager", driver.NumbaCUDAMemoryManager)
    with pytest.raises(tern.UnsupportedError, match=r"'NumbaCUDAMemoryManager'. Call ternmem.numba.enable\(\) before"):
        ternmem.numba.enable(shares.numba)
    monkeypatch.setattr(driver, "_memory_manager", None)
    with pytest.raises(tern.InvalidDeviceError, match="but CUDA device 0 is 'cuda:0'"):
        ternmem.numba.enable(tern.Pool("sim:0"))
    assert driver._memory_manager is None
    assert c.plugin(c.NUMBA, 0) is None


def test_the_environment_variable_finds_the_memory_manager() -> None:
    program = ("from numba.cuda.cudadrv import driver\n"
               "driver._ensure_memory_manager()\n"
               "import ternmem.numba\n"
               "assert driver._memory_manager is ternmem.numba.MemoryManager\n")
    ended = subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, check=False, timeout=60,
                           env={**os.environ, "NUMBA_CUDA_MEMORY_MANAGER": "ternmem.numba"})
    assert ended.returncode == 0, ended.stderr[-2000:]


def test_the_error_without_numba_names_the_packages() -> None:
    program = "import sys; sys.modules['numba'] = None; import ternmem.numba"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert "ImportError: ternmem.numba needs Numba" in ended.stderr
    assert "Install the packages 'numba' and 'numba-cuda'" in ended.stderr


# Without kernels: Numba compiles them only with the versions of NumPy that it supports.
on_gpu = """
import gc
import numpy as np
from numba import cuda
from numba.cuda.cudadrv.driver import CudaAPIError
import ternmem as tern, ternmem.numba
from ternmem import c

pool = tern.BudgetResource(tern.Pool("cuda:0"), tern.Budget("arrays", 64 << 20))
ternmem.numba.enable(pool)

x = cuda.to_device(np.arange(100_000.0))
assert c.find_block(x.device_ctypes_pointer.value).bytes >= 800_000
out = cuda.device_array_like(x)
out.copy_to_device(x)
assert (out.copy_to_host() == np.arange(100_000.0)).all()
stream = cuda.stream()
for i in range(20):
    a = cuda.to_device(np.full(1 << 18, float(i)), stream=stream)
    b = cuda.device_array_like(a)
    b.copy_to_device(a, stream=stream)
    del a
    noise = cuda.to_device(np.full(1 << 18, -1.0))
    found = b.copy_to_host(stream=stream)
    stream.synchronize()
    assert (found == i).all()
part = out[10:20]
del out
assert (part.copy_to_host() == np.arange(10.0, 20)).all()
try:
    cuda.device_array(128 << 20, "uint8")
    raise AssertionError
except CudaAPIError as error:
    assert int(error.code) == 2 and "budget 'arrays' cannot hold" in str(error)
assert cuda.current_context().get_memory_info().total > 0
del x, b, noise, part
gc.collect()
assert ternmem.numba.statistics().live_bytes == 0
"""


def test_arrays_are_copied_in_the_pool() -> None:
    if not has_gpu():
        pytest.skip("Numba finds no GPU")
    ended = subprocess.run([sys.executable, "-W", "ignore", "-c", on_gpu], capture_output=True, text=True, check=False, timeout=120)
    assert ended.returncode == 0, ended.stderr[-2000:]
