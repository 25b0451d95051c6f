"""CuPy with Tern's memory. Without a GPU, the tests replace only CuPy's current stream and device."""

from __future__ import annotations

import ctypes
import gc
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

import ternmem as tern
from ternmem import c, libraries

cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
import ternmem.cupy  # noqa: E402

mib = 1 << 20


def has_gpu() -> bool:
    try:
        return bool(cupy.cuda.runtime.getDeviceCount())
    except cupy.cuda.runtime.CUDARuntimeError:
        return False


needs_gpu = pytest.mark.skipif(not has_gpu(), reason="CuPy finds no GPU")


class Stream:
    def __init__(self, ptr: int) -> None:
        self.ptr = ptr


@pytest.fixture
def shares(monkeypatch: pytest.MonkeyPatch) -> Iterator[libraries.Shares]:
    monkeypatch.setattr(ternmem.cupy, "_is_on_every_device", lambda: False)
    before = cupy.cuda.get_allocator()
    made = libraries.share("cuda:0?driver=sim", limit_bytes=8 * mib, cupy=6 * mib, torch=6 * mib)
    yield made
    assert cupy.cuda.get_allocator() == before
    assert c.plugin(c.CUPY, 0) is None
    assert made.cupy.statistics["live_bytes"] == 0


def allocate(bytes: int, ordinal: int = 0, stream: int = 0) -> Any:
    """What cupy.cuda.alloc() does, on a device of our choice."""
    return cupy.cuda.get_allocator()(bytes, stream_of=lambda ordinal: Stream(stream), device_id=lambda: ordinal)


def test_memory_comes_from_the_resource_and_returns_there(shares: libraries.Shares) -> None:
    stream = tern.Stream(shares.pool.device)
    with ternmem.cupy.use(shares.cupy):
        memory = allocate(1000, stream=stream.handle)
        assert c.find_block(memory.ptr).bytes == 1024
        assert c.find_block(memory.ptr).tag.startswith("cupy")
        assert (memory.mem.size, memory.device_id) == (1000, 0)
        assert ternmem.cupy.statistics().live_bytes == 1024
        assert allocate(0).ptr == 0
        view = memory + 100
        del memory
        assert shares.cupy.statistics["live_bytes"] == 1024
        del view
        assert shares.cupy.statistics["live_bytes"] == 0
        with pytest.raises(tern.Error, match="0xdead|INVALID"):  # the stream is that of CuPy
            allocate(1000, stream=0xdead)
        kept = allocate(1000)
    assert shares.cupy.statistics["live_bytes"] == 1024
    del kept  # memory outlives the statement


def test_a_refusal_is_cupys_error_with_the_sentence_of_tern(shares: libraries.Shares) -> None:
    held = tern.Buffer(5 * mib, "uint8", shares.pool.device, resource=shares.torch, tag="torch").allocate()
    with ternmem.cupy.use(shares.cupy):
        with pytest.raises(cupy.cuda.memory.OutOfMemoryError, match="budget 'libraries' cannot hold 4.0 MiB more") as caught:
            allocate(4 * mib)
        assert isinstance(caught.value, MemoryError)
        assert "torch 5.0 MiB" in str(caught.value)
    del held


def test_a_request_that_fails_is_tried_again(shares: libraries.Shares) -> None:
    fails = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)(lambda stream, bytes, ordinal: None)
    address = ctypes.cast(fails, ctypes.c_void_p).value
    with ternmem.cupy.use(shares.cupy):
        memory = cupy.cuda.get_allocator()(1000, stream_of=lambda ordinal: Stream(0), device_id=lambda: 0, malloc=address)
        assert c.find_block(memory.ptr).bytes == 1024
        assert shares.cupy.statistics["live_blocks"] == 1
    del memory


def test_nested_statements_restore_what_was_before(shares: libraries.Shares) -> None:
    other = tern.BudgetResource(tern.Pool("cuda:0?driver=sim"), tern.Budget("inner", None))
    before = cupy.cuda.get_allocator()
    with ternmem.cupy.use(shares.cupy):
        outer = allocate(100)
        with ternmem.cupy.use(other):
            inner = allocate(100)
        assert c.plugin(c.CUPY, 0) is shares.cupy
        again = allocate(100)
        assert other.statistics["live_bytes"] == 256
        assert shares.cupy.statistics["live_bytes"] == 512
    assert cupy.cuda.get_allocator() == before
    with pytest.raises(KeyError), ternmem.cupy.use(shares.cupy):
        raise KeyError
    assert cupy.cuda.get_allocator() == before
    del outer, inner, again


def test_the_previous_allocator_serves_other_devices(shares: libraries.Shares) -> None:
    asked: list[int] = []
    before = cupy.cuda.get_allocator()

    def previous(bytes: int) -> str:
        asked.append(bytes)
        return "memory"

    cupy.cuda.set_allocator(previous)
    try:
        with ternmem.cupy.use(shares.cupy):
            assert allocate(100, ordinal=1) == "memory"
    finally:
        cupy.cuda.set_allocator(before)
    assert asked == [100]


def test_a_resource_of_another_device_is_refused(shares: libraries.Shares) -> None:
    for resource, ordinal in ((tern.Pool("sim:0"), 0), (shares.cupy, 1)):
        with pytest.raises(tern.InvalidDeviceError, match="but CUDA device"):
            ternmem.cupy.enable(resource, ordinal)
    with pytest.raises(tern.InvalidDeviceError, match="library 'cupy' has no resource"):
        ternmem.cupy.statistics()


@pytest.fixture
def fast(shares: libraries.Shares, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """What CuPy does with the C functions, on a stream of our choice."""
    monkeypatch.setattr(ternmem.cupy, "_is_on_every_device", lambda: True)
    stream = [0]
    function = ctypes.CFUNCTYPE(ctypes.c_ssize_t)(lambda: stream[0])
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    name = b"intptr_t (void)"
    capsule = new(ctypes.cast(function, ctypes.c_void_p), name, None)
    functions = tern._core.cupy_functions(capsule, ternmem.cupy._refuse)

    def allocate(bytes: int, handle: int = 0) -> Any:
        stream[0] = handle
        return cupy.cuda.memory.CFunctionAllocatorMemory(bytes, 0, *functions, 0)

    yield allocate
    tern._core.cupy_functions(cupy.cuda.stream.__pyx_capi__["get_current_stream_ptr"], ternmem.cupy._refuse)


def test_cupy_calls_c_functions_if_every_device_has_a_resource(fast: Any, shares: libraries.Shares) -> None:
    before = cupy.cuda.get_allocator()
    stream = tern.Stream(shares.pool.device)
    with ternmem.cupy.use(shares.cupy):
        assert cupy.cuda.get_allocator() == ternmem.cupy._fast().malloc
        memory = fast(1000, stream.handle)
        assert c.find_block(memory.ptr).bytes == 1024
        assert shares.cupy.statistics["live_bytes"] == 1024
        with pytest.raises(cupy.cuda.memory.OutOfMemoryError, match="cannot hold 7.0 MiB"):
            fast(7 * mib)
        with pytest.raises(Exception, match="INVALID"):
            fast(1000, 0xdead)
        with ternmem.cupy.use(shares.torch):
            assert cupy.cuda.get_allocator() == ternmem.cupy._fast().malloc
        del memory
        assert shares.cupy.statistics["live_bytes"] == 0
    assert cupy.cuda.get_allocator() == before
    with pytest.raises(tern.InvalidDeviceError, match="library 'cupy' has no resource for CUDA device 0"):
        fast(1000)


def test_pinned_memory_comes_from_a_pinned_pool(shares: libraries.Shares) -> None:
    pool = tern.Pool("cuda:0?driver=sim", kind="pinned")
    small = tern.BudgetResource(pool, tern.Budget("pinned", mib))
    with ternmem.cupy.use(shares.cupy, pinned=small):
        memory = ternmem.cupy._pinned[-1](1000)
        assert memory.size() == 1000
        assert small.statistics["live_bytes"] >= 1000
        assert c.find_block(memory.ptr).tag.startswith("cupy pinned")
        with pytest.raises(cupy.cuda.memory.OutOfMemoryError, match="budget 'pinned' cannot hold 2.0 MiB"):
            ternmem.cupy._pinned[-1](2 * mib)
        view = memory + 10
        del memory
        assert small.statistics["live_bytes"] >= 1000
        del view
    assert small.statistics["live_bytes"] == 0
    assert ternmem.cupy._pinned == []


def test_the_error_without_cupy_names_the_package() -> None:
    program = "import sys; sys.modules['cupy'] = None; import ternmem.cupy"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert "ImportError: ternmem.cupy needs CuPy" in ended.stderr
    assert "Install 'cupy-cuda12x'" in ended.stderr


# --- With a GPU


@pytest.fixture
def pool() -> Iterator[tern.BudgetResource]:
    made = tern.BudgetResource(tern.Pool("cuda:0"), tern.Budget("arrays", 64 * mib))
    yield made
    gc.collect()
    assert made.statistics["live_bytes"] == 0


@needs_gpu
def test_cupy_counts_its_devices() -> None:
    assert not ternmem.cupy._is_on_every_device()


@needs_gpu
def test_arrays_compute_in_the_pool(pool: tern.BudgetResource) -> None:
    with ternmem.cupy.use(pool):
        x = cupy.arange(100_000, dtype="float64")
        assert c.find_block(x.data.ptr).bytes >= 800_000
        assert float((x * 2).sum()) == 100_000 * 99_999
        with cupy.cuda.Stream() as stream:
            y = cupy.sort(x[::-1])
            del x
            z = y + 1
            stream.synchronize()
        assert float(z[-1]) == 100_000
        with pytest.raises(cupy.cuda.memory.OutOfMemoryError, match="budget 'arrays' cannot hold"):
            cupy.empty(128 * mib, "uint8")
    del y, z


@needs_gpu
def test_memory_is_reused_in_the_order_of_streams(pool: tern.BudgetResource) -> None:
    first, second = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream(non_blocking=True)
    with ternmem.cupy.use(pool):
        for i in range(50):
            with first:
                x = cupy.full(1 << 20, i, dtype="int32")
                y = x * 2
            with second:
                noise = cupy.full(1 << 20, -1, dtype="int32")
            first.synchronize()
            assert int(y.sum()) == 2 * i << 20
            del x, y, noise


@needs_gpu
def test_pinned_arrays_are_copied(pool: tern.BudgetResource) -> None:
    pinned = tern.BudgetResource(tern.Pool("cuda:0", kind="pinned"), tern.Budget("pinned", None))
    import cupyx

    with ternmem.cupy.use(pool, pinned=pinned):
        array = cupyx.empty_pinned(1000, "float32")
        array[:] = 3
        assert pinned.statistics["live_bytes"] >= 4000
        x = cupy.asarray(array)
        assert float(x.sum()) == 3000
        del array, x
    gc.collect()
