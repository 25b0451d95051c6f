"""PyTorch with Tern's memory. The tests of CUDA memory need a GPU; the others replace PyTorch's entry points or use its CPU."""

from __future__ import annotations

import contextlib
import gc
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

import ternmem as tern
from ternmem import c, libraries

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
import ternmem.torch  # noqa: E402
from ternmem import _torch_offload  # noqa: E402

mib = 1 << 20
specs = ["host", "sim:0", "cuda:0?driver=sim"]
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch finds no GPU")
needs_cuda_build = pytest.mark.skipif(not hasattr(torch._C, "_cuda_customAllocator"), reason="this PyTorch is built without CUDA")


def ran(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, check=False, timeout=120)


def check(program: str) -> None:
    ended = ran(program)
    assert ended.returncode == 0, ended.stderr[-2000:]


# --- Tensors in unified buffers


def model() -> Any:
    torch.manual_seed(3)
    nn = torch.nn
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3), nn.GELU(), nn.Flatten(),
                         nn.Linear(4 * 14 * 14, 16), nn.Softmax(-1))


def gradients(net: Any, x: Any, context: Any) -> list[Any]:
    net.zero_grad()
    with context:
        y = net(x).square().sum()
    y.backward()
    return [one.grad.clone() for one in net.parameters()]


@pytest.fixture
def stored(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The tensors that were stored in unified buffers."""
    made: list[Any] = []
    before = _torch_offload._Stored.__init__

    def init(self: Any, *arguments: Any) -> None:
        before(self, *arguments)
        made.append(self)

    monkeypatch.setattr(_torch_offload._Stored, "__init__", init)
    return made


@pytest.mark.parametrize("spec", specs)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_offloaded_activations_change_no_bit_of_the_gradients(spec: str, dtype: Any, stored: list[Any]) -> None:
    net = model().to(dtype)
    x = torch.randn(5, 3, 16, 16, dtype=dtype).to(memory_format=torch.channels_last)
    expected = gradients(net, x, contextlib.nullcontext())
    found = gradients(net, x, ternmem.torch.offload_saved_tensors(1, device=spec))
    assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))
    assert len(stored) >= 6


def test_offloaded_activations_can_leave_the_host(stored: list[Any]) -> None:
    net, x = model(), torch.randn(5, 3, 16, 16)
    expected = gradients(net, x, contextlib.nullcontext())
    net.zero_grad()
    with ternmem.torch.offload_saved_tensors(1, device="sim:0"):
        y = net(x).square().sum()
    for one in stored:
        one.buffer.sync_to_device()
        one.buffer.drop_host()
    y.backward()
    assert all(torch.equal(a, b.grad) for a, b in zip(expected, net.parameters(), strict=True))
    del y
    stored.clear()


def test_small_tensors_and_parameters_stay_where_they_are(stored: list[Any]) -> None:
    weight = torch.randn(300, 300, requires_grad=True)
    x = torch.randn(2, 300, requires_grad=True)
    with ternmem.torch.offload_saved_tensors(300 * 300):
        y = torch.nn.functional.linear(x, weight).relu().sum()
    assert stored == []
    y.backward()
    large = torch.randn(300, 300)
    with ternmem.torch.offload_saved_tensors(300 * 300):
        (large * weight).exp().sum().backward()
    assert len(stored) >= 1
    assert all(tuple(one.shape) == (300, 300) for one in stored)
    count = len(stored)
    wide = torch.randn(300, 600)
    with ternmem.torch.offload_saved_tensors(1):
        (wide[:, ::2] * weight).sum().backward()  # a tensor with gaps
    assert len(stored) == count


@pytest.mark.parametrize("tensor", [
    torch.arange(24.0).reshape(2, 3, 4), torch.arange(24.0).reshape(2, 3, 4).permute(2, 0, 1), torch.arange(24).to(torch.int16),
    torch.tensor(2.5), torch.arange(24.0).reshape(4, 6)[:, ::2], torch.ones(3, 1).expand(3, 5),
    torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last), torch.randn(7).to(torch.complex64), torch.tensor([True, False]),
], ids=lambda tensor: f"{tuple(tensor.shape)}-{tuple(tensor.stride())}-{tensor.dtype}")
def test_a_stored_tensor_has_equal_elements_and_strides(tensor: Any) -> None:
    stored = _torch_offload._Stored(tensor, tern.open_device("sim:0"), "test")
    again = stored.load()
    assert torch.equal(tensor, again)
    assert again.dtype == tensor.dtype
    if _torch_offload._has_no_gaps(tensor):
        assert again.stride() == tensor.stride()
    assert stored.buffer.tag == "test"


def test_a_unified_buffer_is_on_the_device_of_its_tensor() -> None:
    tensor = type("Tensor", (), {"is_cuda": True, "device": torch.device("cuda:1")})()
    with pytest.raises(tern.DeviceMismatchError, match="a tensor on 'cuda:1' cannot have its unified buffer on 'sim:0'"):
        _torch_offload._device_for(tensor, tern.open_device("sim:0"))
    device = tern.open_device("cuda:0?driver=sim")
    tensor.device = torch.device("cuda:0")
    assert _torch_offload._device_for(tensor, device) is device


def test_offloaded_parameters_compute_the_same() -> None:
    net, x = model().eval(), torch.randn(5, 3, 16, 16)
    sizes = [one.numel() for one in net.parameters()]
    with torch.no_grad():
        expected = net(x)
        with ternmem.torch.offload_parameters(net, 256, device="sim:0") as offloaded:
            left = [one.numel() for one in net.parameters()]
            assert sum(size == 0 for size in left) == 3
            assert offloaded.nbytes == 4 * sum(size for size, now in zip(sizes, left, strict=True) if now == 0)
            for _ in range(2):
                assert torch.equal(net(x), expected)
            assert [one.numel() for one in net.parameters()] == left
            with pytest.raises(RuntimeError):
                net(torch.randn(5, 4, 16, 16))
            assert [one.numel() for one in net.parameters()] == left
    offloaded.restore()
    assert [one.numel() for one in net.parameters()] == sizes
    assert torch.equal(net(x), expected)


def test_offloaded_parameters_refuse_a_backward_pass() -> None:
    net = torch.nn.Linear(100, 100)
    with ternmem.torch.offload_parameters(net, 1), pytest.raises(tern.UnsupportedError, match=r"Call the module inside of torch.no_grad"):
        net(torch.randn(1, 100))


def test_a_shared_parameter_is_stored_once() -> None:
    one, other = torch.nn.Linear(10, 10), torch.nn.Linear(10, 10)
    other.weight = one.weight
    net, x = torch.nn.Sequential(one, other), torch.randn(2, 10)
    with torch.no_grad():
        expected = net(x)
        with ternmem.torch.offload_parameters(net, 400, device="sim:0") as offloaded:
            assert offloaded.nbytes == 400
            assert torch.equal(net(x), expected)
    assert torch.equal(net(x), expected)


# --- The MemPool route, with PyTorch's entry points replaced


class FakePool:
    count = 0

    def __init__(self, allocator: Any) -> None:
        FakePool.count += 1
        self.id = (0, FakePool.count)

    def use_count(self) -> int:
        return 1


class FakeGraph:
    def __init__(self, calls: list[Any]) -> None:
        self.calls = calls

    def capture_begin(self, pool: Any = None, capture_error_mode: str = "global") -> None:
        self.calls.append(("capture", pool))

    def capture_end(self) -> None:
        self.calls.append(("captured", None))


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """The calls that the module makes to PyTorch's allocator."""
    made: list[Any] = []
    FakePool.count = 0

    class Allocator:
        def allocator(self) -> object:
            return object()

    monkeypatch.setattr(ternmem.torch, "_allocator", Allocator)
    monkeypatch.setattr(torch.cuda, "MemPool", FakePool, raising=False)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", type("Graph", (FakeGraph,), dict(vars(FakeGraph))))
    monkeypatch.setattr(torch.cuda, "device", lambda ordinal: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    for name, word in (("_cuda_beginAllocateToPool", "begin"), ("_cuda_endAllocateToPool", "end"), ("_cuda_releasePool", "release")):
        monkeypatch.setattr(torch._C, name, lambda ordinal, pool, word=word: made.append((word, pool[1])), raising=False)
    ternmem.torch._keep_captures_apart.cache_clear()
    yield made
    ternmem.torch._keep_captures_apart.cache_clear()
    ternmem.torch._graph_pools.clear()
    assert not any(ternmem.torch._open_pools.values())
    assert c.plugin(c.TORCH, 0) is None


@pytest.fixture
def resource() -> tern.BudgetResource:
    return tern.BudgetResource(tern.Pool("cuda:0?driver=sim"), tern.Budget("tensors", 4 * mib))


def test_use_opens_a_pool_and_closes_it(calls: list[Any], resource: tern.Resource) -> None:
    with pytest.raises(KeyError), ternmem.torch.use(resource) as pool:
        assert pool.id == (0, 1)
        assert c.plugin(c.TORCH, 0) is resource
        raise KeyError
    assert calls == [("begin", 1), ("end", 1), ("release", 1)]


def test_only_the_innermost_pool_is_open(calls: list[Any], resource: tern.Resource) -> None:
    inner = tern.BudgetResource(tern.Pool("cuda:0?driver=sim"), tern.Budget("inner", None))
    with ternmem.torch.use(resource):
        with ternmem.torch.use(inner):
            assert c.plugin(c.TORCH, 0) is inner
        assert c.plugin(c.TORCH, 0) is resource
    words = [("begin", 1), ("end", 1), ("release", 1), ("begin", 2), ("end", 2), ("release", 2), ("begin", 1), ("end", 1), ("release", 1)]
    assert calls == words


def test_statements_of_two_threads_may_end_in_any_order(calls: list[Any], resource: tern.Resource) -> None:
    other = tern.BudgetResource(tern.Pool("cuda:0?driver=sim"), tern.Budget("other", None))
    first, second = ternmem.torch.use(resource), ternmem.torch.use(other)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert c.plugin(c.TORCH, 0) is other
    second.__exit__(None, None, None)
    assert calls == [("begin", 1), ("end", 1), ("release", 1), ("begin", 2), ("end", 2), ("release", 2)]


def test_a_capture_has_a_pool_of_its_own(calls: list[Any], resource: tern.Resource) -> None:
    graph = torch.cuda.CUDAGraph(calls)

    def opened(number: int) -> list[Any]:
        return [("begin", number)]

    def closed(number: int) -> list[Any]:
        return [("end", number), ("release", number)]

    with ternmem.torch.use(resource):
        graph.capture_begin(capture_error_mode="relaxed")
        graph.capture_end()
        graph.capture_begin((7, 7))
        graph.capture_end()
    outside = torch.cuda.CUDAGraph(calls)
    outside.capture_begin()
    outside.capture_end()
    # Each capture ends the pool that was open, so that its unused segments are free. Pool 3 is that of the first graph.
    assert calls == [*opened(1), *closed(1), ("capture", (0, 3)), ("captured", None), *opened(2), *closed(2), ("capture", (7, 7)),
                     ("captured", None), *opened(4), *closed(4), ("capture", None), ("captured", None)]
    assert len(ternmem.torch._graph_pools) == 1  # the pool lives as long as its graph
    del graph
    ternmem.torch._forget_graph_pools()
    assert ternmem.torch._graph_pools == []


def test_empty_cache_ends_the_pool_with_its_unused_segments(calls: list[Any], resource: tern.Resource,
                                                            monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: calls.append("empty"))
    ended: list[int] = []
    monkeypatch.setattr(FakePool, "__del__", lambda self: ended.append(self.id[1]), raising=False)
    with ternmem.torch.use(resource):
        ternmem.torch.empty_cache()
        assert ended == [1]
    assert ended == [1, 2]
    assert calls == [("begin", 1), ("end", 1), ("release", 1), ("begin", 2), "empty", ("end", 2), ("release", 2)]


def test_a_failed_capture_opens_the_pool_again(calls: list[Any], resource: tern.Resource) -> None:
    def fail(self: Any, *arguments: Any, **options: Any) -> None:
        raise RuntimeError("busy")

    torch.cuda.CUDAGraph.capture_begin = fail
    with ternmem.torch.use(resource):
        with pytest.raises(RuntimeError, match="busy"):
            torch.cuda.CUDAGraph(calls).capture_begin()
        assert calls == [("begin", 1), ("end", 1), ("release", 1), ("begin", 2)]


def test_an_out_of_memory_error_names_who_uses_the_budget(calls: list[Any]) -> None:
    shares = libraries.share("cuda:0?driver=sim", limit_bytes=8 * mib, torch=4 * mib, cupy=8 * mib)
    kept = tern.Buffer(6 * mib, "uint8", "cuda:0?driver=sim", resource=shares.cupy, tag="cupy").allocate()
    with pytest.raises(torch.OutOfMemoryError) as caught, ternmem.torch.use(shares.torch):
        assert c.library.tern_torch_malloc(3 * mib, 0, 0) is None
        raise torch.OutOfMemoryError("CUDA out of memory")
    assert str(caught.value) == "CUDA out of memory"
    (note,) = caught.value.__notes__
    assert "budget 'libraries' cannot hold 3.0 MiB more" in note
    assert "cupy 6.0 MiB" in note
    # The refusal was on another thread: only the uses are known.
    with pytest.raises(torch.OutOfMemoryError) as caught, ternmem.torch.use(shares.torch):
        raise torch.OutOfMemoryError("CUDA out of memory")
    assert caught.value.__notes__ == ["budget 'libraries': 6.0 MiB of 8.0 MiB; torch 0 B of 4.0 MiB, cupy 6.0 MiB of 8.0 MiB"]
    del kept


def test_errors_of_the_routes() -> None:
    with pytest.raises(tern.InvalidDeviceError, match="has memory of 'sim:0', but CUDA device 0 is 'cuda:0'"), \
            ternmem.torch.use(tern.Pool("sim:0")):
        pass
    with pytest.raises(tern.InvalidDeviceError, match="'cpu' is not a CUDA device"):
        ternmem.torch.memory_stats("cpu")
    with pytest.raises(tern.UnsupportedError, match=r"Call ternmem.torch.enable\(\) at the start of the program"):
        ternmem.torch.rehearse(print, 0)
    with pytest.raises(tern.InvalidArgumentError, match=r"1.5 is not a fraction"):
        ternmem.torch.set_per_process_memory_fraction(1.5, 0)
    with pytest.raises(tern.InvalidDeviceError, match="library 'torch' has no resource"):
        ternmem.torch.set_per_process_memory_fraction(0.5, 0)


def test_enable_after_the_first_cuda_call_is_refused(monkeypatch: pytest.MonkeyPatch, resource: tern.Resource) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    with pytest.raises(tern.UnsupportedError, match=r"torch has used CUDA in this process already.*ternmem.torch.use\(\)"):
        ternmem.torch.enable(resource)
    assert not ternmem.torch.is_enabled(0)


def test_the_error_without_torch_names_the_package() -> None:
    ended = ran("import sys; sys.modules['torch'] = None; import ternmem.torch")
    assert "ImportError: ternmem.torch needs PyTorch" in ended.stderr
    assert "Install the package 'torch'" in ended.stderr


# PyTorch accepts the allocator without a GPU. The program then calls Tern's functions as PyTorch would.
enabled = """
import torch
import ternmem as tern, ternmem.torch
from ternmem import c

budget = tern.Budget("tensors", 4 << 20)
resource = tern.BudgetResource(tern.Pool("cuda:0?driver=sim"), budget)
ternmem.torch.enable(resource)
assert torch.cuda.get_allocator_backend() == "pluggable"
assert ternmem.torch.is_enabled(0) and not ternmem.torch.is_enabled(1)
address = c.library.tern_torch_malloc(1 << 20, 0, 0)
c.library.tern_torch_free(c.library.tern_torch_malloc(2 << 20, 0, 0), 0, 0, 0)
stats = ternmem.torch.memory_stats(0)
assert stats["allocated_bytes.all.current"] == ternmem.torch.memory_allocated(0) == 1 << 20
assert stats["allocated_bytes.all.peak"] == ternmem.torch.max_memory_allocated(0) == 3 << 20
assert stats["allocation.all.allocated"] == 2 and stats["allocation.all.freed"] == 1
assert stats["reserved_bytes.all.current"] == ternmem.torch.memory_reserved(0) <= ternmem.torch.max_memory_reserved(0)
assert stats["active_bytes.all.current"] == budget.used_bytes >= 1 << 20
assert stats["num_ooms"] == 0 and stats["num_alloc_retries"] == 0
torch.cuda.memory.is_initialized = lambda: True
assert torch.cuda.memory_allocated(0) == 1 << 20 and torch.cuda.max_memory_allocated(0) == 3 << 20
assert "1024 KiB" in torch.cuda.memory_summary(0)
assert torch.cuda.memory_snapshot()[0]["device"] == 0
assert c.library.tern_torch_malloc(8 << 20, 0, 0) is None
assert ternmem.torch.memory_stats(0)["num_ooms"] == 1
assert torch._C._cuda_memoryStats(0)["allocated_bytes"]["all"]["current"] == 1 << 20
(segment,) = [one for one in ternmem.torch.memory_snapshot(0) if one["address"] == address]
assert segment["total_size"] == 1 << 20 and segment["tag"].startswith("torch")
assert torch._C._cuda_memorySnapshot(None)["segments"][0]["device"] == 0
ternmem.torch.set_per_process_memory_fraction(0.5, 0)
assert budget.limit_bytes > 4 << 20
other = tern.BudgetResource(tern.Pool("cuda:0?driver=sim"), tern.Budget("other", None))
ternmem.torch.enable(other)
assert ternmem.torch.memory_allocated(0) == 0
c.library.tern_torch_free(address, 0, 0, 0)
ternmem.torch.reset_peak_memory_stats(0)
ternmem.torch.empty_cache()
try:
    with ternmem.torch.use(resource):
        raise AssertionError
except tern.UnsupportedError as error:
    assert "Call only one of the two" in str(error)
"""


@needs_cuda_build
def test_enable_replaces_the_allocator_and_the_statistics() -> None:
    check(enabled)


# --- With a GPU


@pytest.fixture
def pool() -> Iterator[tern.BudgetResource]:
    made = tern.BudgetResource(tern.Pool("cuda:0"), tern.Budget("tensors", 256 * mib))
    yield made
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()
    ternmem.torch.empty_cache()
    torch.cuda.empty_cache()
    assert made.statistics["live_bytes"] == 0


@needs_gpu
def test_tensors_of_all_threads_are_in_the_pool(pool: tern.BudgetResource) -> None:
    with ternmem.torch.use(pool):
        x = torch.randn(1000, 1000, device="cuda", requires_grad=True)
        assert pool.statistics["live_bytes"] >= 4_000_000
        before = torch.cuda.memory_stats()["reserved_bytes.all.current"]
        x.exp().sum().backward()  # on a thread of autograd
        grown = torch.cuda.memory_stats()["reserved_bytes.all.current"] - before
        assert pool.statistics["live_bytes"] >= 4_000_000 + grown
        assert torch.equal(x.grad, x.detach().exp())
    kept = x.detach().clone()
    assert torch.equal(kept, x)  # tensors outlive the statement


@needs_gpu
def test_a_refusal_is_an_out_of_memory_error(pool: tern.BudgetResource) -> None:
    with pytest.raises(torch.OutOfMemoryError) as caught, ternmem.torch.use(pool):
        torch.empty(512 * mib, dtype=torch.uint8, device="cuda")
    assert any("budget 'tensors' cannot hold" in note for note in caught.value.__notes__)


@needs_gpu
def test_a_graph_keeps_its_memory_inside_of_use(pool: tern.BudgetResource) -> None:
    with ternmem.torch.use(pool):
        x = torch.zeros(100_000, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = (x + 1) * 2
            z = y.cumsum(0)
        for value in range(3):
            x.fill_(value)
            filled = [torch.full((100_000,), -1.0, device="cuda") for _ in range(20)]
            graph.replay()
            assert (y == 2 * (value + 1)).all()
            assert z[-1] == 2 * (value + 1) * 100_000
            assert all((one == -1).all() for one in filled)
        assert pool.statistics["live_bytes"] > 0
    del graph, x, y, z, filled


@needs_gpu
@pytest.mark.parametrize("limit_bytes", [None, 24 * mib])
def test_offloaded_activations_of_cuda_tensors(limit_bytes: int | None) -> None:
    device = tern.open_device("cuda:0")
    previous = tern.default_resource(device)
    tern.set_default_resource(tern.BudgetResource(tern.Pool(device), tern.Budget("copies", limit_bytes)))
    try:
        torch.manual_seed(5)
        layers = [torch.nn.Linear(512, 512) for _ in range(12)]
        net = torch.nn.Sequential(*(part for layer in layers for part in (layer, torch.nn.Tanh()))).cuda()
        x = torch.randn(2048, 512, device="cuda")
        expected = gradients(net, x, contextlib.nullcontext())
        found = gradients(net, x, ternmem.torch.offload_saved_tensors())
        assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))
        with torch.no_grad():
            y = net(x)
            with ternmem.torch.offload_parameters(net):
                assert torch.equal(net(x), y)
    finally:
        gc.collect()
        torch.cuda.synchronize()
        tern.reclaim_deferred()
        tern.set_default_resource(previous)


enabled_on_gpu = """
import gc
import torch
import ternmem as tern, ternmem.torch

budget = tern.Budget("tensors", 256 << 20)
pool = tern.Pool("cuda:0")
ternmem.torch.enable(tern.BudgetResource(pool, budget))
x = torch.randn(1000, 1000, device="cuda", requires_grad=True)
(x @ x).tanh().sum().backward()
assert torch.cuda.memory_allocated() == ternmem.torch.memory_allocated() >= 8_000_000
assert torch.cuda.max_memory_allocated() >= torch.cuda.memory_allocated()
assert "CUDA" in torch.cuda.memory_summary()
assert any(one["tag"].startswith("torch") for one in torch.cuda.memory_snapshot())
try:
    torch.empty(512 << 20, dtype=torch.uint8, device="cuda")
    raise AssertionError
except RuntimeError as error:
    assert "budget 'tensors' cannot hold 512.0 MiB" in str(error)

side = torch.cuda.Stream()
for i in range(20):
    a = torch.full((1 << 20,), float(i), device="cuda")
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(1_000_000)
        b = a * 2
    a.record_stream(side)
    del a
    torch.full((1 << 20,), -1.0, device="cuda")
    torch.cuda.current_stream().wait_stream(side)
    assert (b == 2 * i).all()

static = torch.zeros(1000, 1000, device="cuda")
def work():
    return ((static + 1) @ static).cumsum(0)
warm = torch.cuda.graph.default_capture_stream = torch.cuda.Stream()
with torch.cuda.stream(warm):
    work()
needed = ternmem.torch.rehearse(work)
assert 8_000_000 <= needed <= 16_000_000, needed
graph = torch.cuda.CUDAGraph()
torch.cuda.synchronize()
torch.cuda.empty_cache()  # ends the delayed frees of recorded streams, which count as live
before = budget.live_bytes
with ternmem.torch.graph(graph, bytes=needed):
    out = work()
assert needed <= budget.live_bytes - before <= needed + (2 << 20), (needed, budget.live_bytes - before)
for value in range(3):
    static.fill_(value)
    noise = [torch.full((1000, 1000), -1.0, device="cuda") for _ in range(8)]
    graph.replay()
    assert torch.equal(out, ((static + 1) @ static).cumsum(0))
del graph, out, noise, static, x, b
torch._C._cuda_clearCublasWorkspaces()
gc.collect()
torch.cuda.synchronize()
torch.cuda.empty_cache()
assert budget.live_bytes == 0, torch.cuda.memory_snapshot()
assert pool.pool_statistics["held_bytes"] == 0
"""


@needs_gpu
def test_the_global_route() -> None:
    check(enabled_on_gpu)


@needs_gpu
def test_enable_is_too_late_after_a_tensor() -> None:
    check("import torch, ternmem as tern, ternmem.torch\n"
          "torch.zeros(1, device='cuda')\n"
          "try:\n    ternmem.torch.enable()\n    raise AssertionError\n"
          "except tern.UnsupportedError as error:\n    assert 'before the first CUDA call' in str(error)\n")
