"""PyTorch: CUDA tensors in Tern's memory, and activations that leave the device when its memory is short.

>>> import torch
>>> import ternmem as tern
>>> import ternmem.torch
>>> budget = tern.Budget("training", 20 << 30)  # doctest: +SKIP
>>> pool = tern.BudgetResource(tern.Pool("cuda:0"), budget)  # doctest: +SKIP
>>> with ternmem.torch.use(pool):  # doctest: +SKIP
...     x = torch.ones(1000, device="cuda")

There are two routes. :func:`use` is a context manager: PyTorch keeps its caching allocator, which requests its segments
from Tern. :func:`enable` replaces PyTorch's allocator in the whole process, before PyTorch uses CUDA: each tensor is a
block of Tern.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import functools
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from . import _core, c, errors, libraries

try:
    import torch
    from torch.cuda.memory import CUDAPluggableAllocator, change_current_allocator
except ImportError as _missing:
    raise ImportError(f"ternmem.torch needs PyTorch, which cannot be imported: {_missing}. Install the package 'torch'.") from _missing

from ._torch_offload import OffloadedParameters, offload_parameters, offload_saved_tensors

__all__ = [
    "OffloadedParameters",
    "empty_cache",
    "enable",
    "graph",
    "is_enabled",
    "max_memory_allocated",
    "max_memory_reserved",
    "memory_allocated",
    "memory_reserved",
    "memory_snapshot",
    "memory_stats",
    "offload_parameters",
    "offload_saved_tensors",
    "rehearse",
    "reset_peak_memory_stats",
    "set_per_process_memory_fraction",
    "statistics",
    "use",
]


def _ordinal(device: Any) -> int:
    """Return the ordinal of a device in PyTorch's notation: an int, a str, a torch.device, or None for the current one."""
    if type(device) is int:
        return device
    if device is not None:
        device = torch.device(device)
        if device.type != "cuda":
            raise errors.InvalidDeviceError(f"'{device}' is not a CUDA device. Pass 'cuda:0', an ordinal or None.")
        if device.index is not None:
            return int(device.index)
    return int(torch.cuda.current_device())


# --- The MemPool route

@dataclasses.dataclass(eq=False)
class _OpenPool:
    pool: Any
    previous: _core.Resource | None  # the resource of PyTorch before


_lock = threading.RLock()
# The pools that are open, by the ordinal of their device. PyTorch uses the oldest one that is open, so only the newest is.
_open_pools: dict[int, list[_OpenPool]] = {}
# The pools of captured graphs. A MemPool must not end before the graph that uses it.
_graph_pools: list[tuple[weakref.ref[Any], Any]] = []


@functools.cache
def _allocator() -> Any:
    """Return the allocator of all pools. Segments refer to it without owning it, so it is never destroyed."""
    made = CUDAPluggableAllocator(_core.__file__, "tern_torch_malloc", "tern_torch_free")
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(made.allocator()))
    return made


def _begin(ordinal: int, pool: Any) -> None:
    # PyTorch's use_mem_pool() routes only the calling thread. backward() allocates on threads of its own.
    begin = getattr(torch._C, "_cuda_beginAllocateToPool", torch._C._cuda_beginAllocateCurrentThreadToPool)
    begin(ordinal, pool.id)


def _end(ordinal: int, pool: Any) -> None:
    torch._C._cuda_endAllocateToPool(ordinal, pool.id)
    torch._C._cuda_releasePool(ordinal, pool.id)


def _new_pool(ordinal: int) -> Any:
    torch.cuda.init()
    with torch.cuda.device(ordinal):
        return torch.cuda.MemPool(_allocator().allocator())


@contextlib.contextmanager
def use(resource: _core.Resource | None = None, device: Any = 0) -> Iterator[Any]:
    """Allocate the tensors of a ``with`` statement from a resource. The value is the ``torch.cuda.MemPool``.

    The statement applies to all threads. Inside, PyTorch's caching allocator requests its segments from the resource, and
    keeps unused segments until the statement ends or :func:`empty_cache` is called. When the resource refuses a segment, PyTorch raises
    ``torch.OutOfMemoryError``. A note on the error has Tern's sentence, and names who uses the budget. Tensors may outlive the
    statement.

    Parameters
    ----------
    resource : Resource, optional
        By default the default resource of the device.
    device : int, str or torch.device
    """
    if _enabled:
        raise errors.UnsupportedError("ternmem.torch.enable() has replaced the allocator of torch, and use() needs torch's own. "
                                      "Call only one of the two in a process.")
    ordinal = _ordinal(device)
    chosen = c.resource_for(resource, ordinal, "torch")
    _keep_captures_apart()
    made = _new_pool(ordinal)
    with _lock:
        mine = _OpenPool(made, c.plugin(c.TORCH, ordinal))
        c.set_plugin(c.TORCH, ordinal, chosen)
        opened = _open_pools.setdefault(ordinal, [])
        if opened:
            _end(ordinal, opened[-1].pool)
        opened.append(mine)
        _begin(ordinal, made)
    del made  # the pool frees its unused segments as soon as it is replaced
    before = c.last_error()
    try:
        yield mine.pool
    except torch.OutOfMemoryError as error:
        why = c.last_error()
        note = libraries.explained(why if why != before else "", chosen)  # backward() fails on a thread of its own
        if note:
            error.add_note(note)
        raise
    finally:
        with _lock:
            place = opened.index(mine)
            opened.remove(mine)
            if place < len(opened):  # another thread has opened a pool since
                opened[place].previous = mine.previous
            else:
                _end(ordinal, mine.pool)
                if opened:
                    _begin(ordinal, opened[-1].pool)
                c.set_plugin(c.TORCH, ordinal, mine.previous)
        _forget_graph_pools()


# PyTorch looks for the pool of an allocation in the order in which pools were opened. Without this, the memory of a graph
# that is captured inside of use() would come from the pool of use(), which reuses it after the capture.
@functools.cache
def _keep_captures_apart() -> None:
    kind = torch.cuda.CUDAGraph
    begin, end = kind.capture_begin, kind.capture_end

    @functools.wraps(begin)
    def capture_begin(self: Any, pool: Any = None, *arguments: Any, **options: Any) -> None:
        ordinal = torch.cuda.current_device()
        with _lock:
            opened = _open_pools.get(ordinal, [])
            if opened:
                _end(ordinal, opened[-1].pool)
                # As PyTorch does for its own pool, free the unused segments before a capture. During the capture their
                # memory could not be used again, because other streams have used it.
                opened[-1].pool = None
                opened[-1].pool = _new_pool(ordinal)
                c.library.tern_torch_empty_cache()
                if pool is None:
                    made = _new_pool(ordinal)
                    ctypes.pythonapi.Py_IncRef(ctypes.py_object(made))
                    _graph_pools.append((weakref.ref(self), made))
                    pool = made.id
        self._ternmem_resumes = list(opened)
        try:
            begin(self, pool, *arguments, **options)
        except BaseException:
            resume(self, ordinal)
            raise

    def resume(self: Any, ordinal: int) -> None:
        with _lock:
            opened = _open_pools.get(ordinal, [])
            if self.__dict__.pop("_ternmem_resumes", None) and opened:
                _begin(ordinal, opened[-1].pool)

    @functools.wraps(end)
    def capture_end(self: Any) -> None:
        try:
            end(self)
        finally:
            resume(self, torch.cuda.current_device())

    kind.capture_begin = capture_begin
    kind.capture_end = capture_end


def _free_unused_segments() -> None:
    """Replace the pools that are open: PyTorch frees the unused segments of a pool when the pool ends."""
    with _lock:
        for ordinal, opened in _open_pools.items():
            if opened:
                _end(ordinal, opened[-1].pool)
                opened[-1].pool = None
                opened[-1].pool = _new_pool(ordinal)
                _begin(ordinal, opened[-1].pool)


def _forget_graph_pools() -> None:
    """Free the pools of graphs that have ended."""
    with _lock:
        for entry in list(_graph_pools):
            graph_of, pool = entry
            if graph_of() is None and pool.use_count() == 1:
                _graph_pools.remove(entry)
                ctypes.pythonapi.Py_DecRef(ctypes.py_object(pool))


# --- The global route

# The allocator, and the ordinals for which it has a resource.
_enabled: list[Any] = []
_enabled_ordinals: set[int] = set()

_hooks = {
    "set_base_alloc_fn": "tern_torch_base",
    "set_begin_allocate_to_pool": "tern_torch_begin_pool",
    "set_end_allocate_to_pool_fn": "tern_torch_end_pool",
    "set_memory_fraction_fn": "tern_torch_set_fraction",
    "set_record_stream_fn": "tern_torch_record_stream",
    "set_release_pool": "tern_torch_release_pool",
    "set_reset_fn": "tern_torch_empty_cache",
}


def enable(resource: _core.Resource | None = None, device: Any = 0) -> None:
    """Replace the allocator of PyTorch in this process. Each CUDA tensor is then a block of the resource.

    Call it before PyTorch uses CUDA, once for each device. PyTorch cannot go back to its own allocator. A refusal is a
    ``RuntimeError`` with Tern's sentence. ``torch.cuda.memory_stats()``, ``torch.cuda.memory_summary()``,
    ``torch.cuda.memory_snapshot()`` and the functions like them return Tern's figures.

    Parameters
    ----------
    resource : Resource, optional
        By default the default resource of the device.
    device : int, str or torch.device
    """
    ordinal = 0 if device is None else _ordinal(device)
    too_late = errors.UnsupportedError(
        "torch has used CUDA in this process already, so its allocator cannot be replaced. Call ternmem.torch.enable() before "
        "the first CUDA call of torch, or use the context manager ternmem.torch.use(), which works at any time.")
    if not _enabled and torch.cuda.is_initialized():
        raise too_late
    chosen = c.resource_for(resource, ordinal, "torch")
    with _lock:
        if not _enabled:
            allocator = CUDAPluggableAllocator(_core.__file__, "tern_torch_malloc_or_throw", "tern_torch_free")
            hooked = allocator.allocator()
            for setter, function in _hooks.items():
                if hasattr(hooked, setter):  # older versions of PyTorch lack some
                    getattr(hooked, setter)(c.address_of(function))
            try:
                change_current_allocator(allocator)
            except RuntimeError as error:
                raise too_late from error
            _enabled.append(allocator)
            _replace_statistics()
        c.set_plugin(c.TORCH, ordinal, chosen)
        _enabled_ordinals.add(ordinal)


def is_enabled(device: Any = None) -> bool:
    """Return whether :func:`enable` was called for the device."""
    return bool(_enabled_ordinals) and _ordinal(device) in _enabled_ordinals


def _need_enabled(what: str, ordinal: int) -> None:
    if ordinal not in _enabled_ordinals:
        raise errors.UnsupportedError(f"{what} needs each allocation of torch, and torch's own allocator is in use for device "
                                      f"{ordinal}. Call ternmem.torch.enable() at the start of the program.")


def _replace_statistics() -> None:
    """Let the functions of torch.cuda return Tern's figures. For another allocator than its own, PyTorch raises an error."""
    module = torch._C
    module._cuda_memoryStats = _nested_stats
    module._cuda_resetPeakMemoryStats = _reset_peak
    module._cuda_resetAccumulatedMemoryStats = lambda ordinal: None
    module._cuda_memorySnapshot = _torch_snapshot


# --- Figures


def statistics(device: Any = None) -> c.Statistics:
    """Return the figures of the resource that PyTorch uses on a device."""
    with c.plugin_handle(c.TORCH, _ordinal(device)) as handle:
        return c.statistics(handle)


def _stat(current: int, peak: int, allocated: int = 0, freed: int = 0) -> dict[str, dict[str, int]]:
    whole = {"current": current, "peak": peak, "allocated": allocated, "freed": freed}
    return {"all": whole, "large_pool": dict(whole), "small_pool": dict.fromkeys(whole, 0)}


def _nested_stats(ordinal: int) -> dict[str, Any]:
    now = statistics(ordinal)
    live, held = now.live_bytes, now.held_bytes
    peak, peak_held = max(now.peak_live_bytes, live), max(now.peak_held_bytes, held)
    counts = _stat(now.live_blocks, now.live_blocks, now.allocations, now.frees)
    none = dict.fromkeys(("current", "peak", "allocated", "freed"), 0)
    return {
        "allocation": counts,
        "segment": _stat(0, 0),
        "active": counts,
        "inactive_split": _stat(0, 0),
        "allocated_bytes": _stat(live, peak),
        "reserved_bytes": _stat(held, peak_held),
        "active_bytes": _stat(live + now.pending_bytes, max(peak, live + now.pending_bytes)),
        "inactive_split_bytes": _stat(0, 0),
        "requested_bytes": _stat(live, peak),
        "oversize_allocations": none,
        "oversize_segments": dict(none),
        "max_split_size": -1,
        "num_alloc_retries": 0,
        "num_ooms": now.refusals,
        "num_sync_all_streams": 0,
        "num_device_alloc": now.driver_calls,
        "num_device_free": 0,
    }


def _flat(prefix: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, part in value.items():
            yield from _flat(f"{prefix}.{key}" if prefix else key, part)
    else:
        yield prefix, value


def memory_stats(device: Any = None) -> dict[str, Any]:
    """Return the figures with the keys of ``torch.cuda.memory_stats()``, such as ``'allocated_bytes.all.current'``.

    Under :func:`enable` the figures are Tern's. Tern has one pool for all sizes: ``large_pool`` equals ``all``. Figures that
    Tern does not have are 0. Otherwise the figures are those of PyTorch's caching allocator.
    """
    ordinal = _ordinal(device)
    if ordinal not in _enabled_ordinals:
        found: dict[str, Any] = torch.cuda.memory_stats(ordinal)
        return found
    return dict(sorted(_flat("", _nested_stats(ordinal))))


def memory_allocated(device: Any = None) -> int:
    """Return the bytes of the live tensors."""
    return int(memory_stats(device).get("allocated_bytes.all.current", 0))


def max_memory_allocated(device: Any = None) -> int:
    """Return the peak of :func:`memory_allocated`."""
    return int(memory_stats(device).get("allocated_bytes.all.peak", 0))


def memory_reserved(device: Any = None) -> int:
    """Return the bytes that the allocator holds."""
    return int(memory_stats(device).get("reserved_bytes.all.current", 0))


def max_memory_reserved(device: Any = None) -> int:
    """Return the peak of :func:`memory_reserved`."""
    return int(memory_stats(device).get("reserved_bytes.all.peak", 0))


def _reset_peak(ordinal: int) -> None:
    with c.plugin_handle(c.TORCH, ordinal) as handle:
        c.reset_peak(handle)


def reset_peak_memory_stats(device: Any = None) -> None:
    """Restart the peak of the bytes of live tensors. Under :func:`enable` the peak of the held bytes stays."""
    ordinal = _ordinal(device)
    if ordinal in _enabled_ordinals:
        _reset_peak(ordinal)
    else:
        torch.cuda.reset_peak_memory_stats(ordinal)


def empty_cache() -> None:
    """Return unused memory to the driver: of PyTorch's caching allocator, and of the resources that PyTorch uses."""
    _forget_graph_pools()
    _free_unused_segments()
    if not _enabled:
        torch.cuda.empty_cache()
    c.library.tern_torch_empty_cache()


def set_per_process_memory_fraction(fraction: float, device: Any = None) -> None:
    """Limit the resource that PyTorch uses to a fraction of the device's memory."""
    if not 0 < fraction <= 1:
        raise errors.InvalidArgumentError(f"{fraction} is not a fraction of the memory of a device. Use more than 0 and at most 1.")
    ordinal = _ordinal(device)
    c.plugin_handle(c.TORCH, ordinal).close()  # raises without a resource
    c.check(c.library.tern_torch_set_fraction(fraction, ordinal))


def memory_snapshot(device: Any = None) -> list[dict[str, Any]]:
    """Return the live blocks of a device in the form of ``torch.cuda.memory_snapshot()``, with their tags.

    The list has the blocks of all libraries that use Tern. Each block is a segment.
    """
    ordinal = _ordinal(device)
    resource = c.plugin(c.TORCH, ordinal)
    spec = f"cuda:{ordinal}" if resource is None else resource.device.spec
    return [{
        "device": ordinal,
        "address": one.address,
        "total_size": one.bytes,
        "allocated_size": one.bytes,
        "active_size": one.bytes,
        "requested_size": one.bytes,
        "stream": 0,
        "segment_type": "large",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "frames": [],
        "tag": one.tag,
        "blocks": [{"address": one.address, "size": one.bytes, "requested_size": one.bytes, "state": "active_allocated",
                    "frames": []}],
    } for one in c.snapshot(spec)]


def _torch_snapshot(mempool_id: Any = None) -> dict[str, Any]:
    ordinals = sorted(_enabled_ordinals)
    return {
        "segments": [segment for ordinal in ordinals for segment in memory_snapshot(ordinal)],
        "device_traces": [[] for _ in range(max(ordinals, default=-1) + 1)],
        "allocator_settings": {},
        "external_annotations": [],
    }


# --- Graphs


def rehearse(function: Callable[[], object], device: Any = None) -> int:
    """Call the function and return the exact number of bytes that a CUDA graph of the same work needs.

    The function runs on the stream that ``torch.cuda.graph`` captures. Call it once before, so that libraries have their
    workspaces. Needs :func:`enable`.

    >>> bytes = ternmem.torch.rehearse(step)  # doctest: +SKIP
    >>> with ternmem.torch.graph(captured, bytes=bytes):  # doctest: +SKIP
    ...     step()
    """
    ordinal = _ordinal(device)
    _need_enabled("rehearse()", ordinal)
    kind = torch.cuda.graph
    if kind.default_capture_stream is None:
        kind.default_capture_stream = torch.cuda.Stream()
    stream = kind.default_capture_stream
    stream.wait_stream(torch.cuda.current_stream())
    needed = ctypes.c_size_t()
    with torch.cuda.stream(stream):
        c.check(c.library.tern_begin_rehearsal(ordinal))
        try:
            function()
        finally:
            status = c.library.tern_end_rehearsal(ordinal, ctypes.byref(needed))
    torch.cuda.current_stream().wait_stream(stream)
    c.check(status)
    return needed.value


@contextlib.contextmanager
def graph(cuda_graph: Any, *, bytes: int | None = None, **options: Any) -> Iterator[Any]:
    """Capture a ``torch.cuda.CUDAGraph``, like ``torch.cuda.graph``.

    Parameters
    ----------
    cuda_graph : torch.cuda.CUDAGraph
    bytes : int, optional
        Allocate the memory of the graph as one block of this size. :func:`rehearse` returns the size. Needs :func:`enable`.
        Without it, the memory grows while the graph is captured.
    **options
        The other arguments of ``torch.cuda.graph``.
    """
    if bytes is not None:
        ordinal = _ordinal(None)
        _need_enabled("graph() with a number of bytes", ordinal)
        c.check(c.library.tern_reserve_arena(ordinal, bytes))
    with torch.cuda.graph(cuda_graph, **options):
        yield cuda_graph
