"""Dask: Tern's memory on the workers of a ``dask.distributed`` cluster.

>>> from dask.distributed import Client
>>> import ternmem.dask
>>> cluster = ternmem.dask.LocalCluster(2, device="host", budget_bytes=64 << 20)  # doctest: +SKIP
>>> client = Client(cluster)  # doctest: +SKIP

Importing the module registers the serialization of buffers and tables. Clients must import the module. Workers import
it when they receive :class:`Store` or :class:`WorkerPlugin`.

Receiving a message never allocates device memory. A worker keeps the message as a :class:`Received`, and opens it when a
task needs the value. An error then fails only this task. An error inside of Dask's deserialization would stop the cluster.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import gc
import logging
import os
import pathlib
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from . import _core, errors, trace
from ._pickling import _bytes_of, device_of
from .unified_buffer import BufferState, UnifiedBuffer

try:
    import dask
    import distributed
    from dask.sizeof import sizeof
    from distributed.protocol import dask_deserialize, dask_serialize
    from distributed.spill import HandledError, SpilledSize, SpillBuffer
except ImportError as _missing:
    raise ImportError(
        f"ternmem.dask needs dask.distributed, which cannot be imported: {_missing}. Install 'ternmem[dask]'."
    ) from _missing

__all__ = ["LocalCluster", "Received", "Store", "WorkerPlugin"]

_logger = logging.getLogger(__name__)
_arrays = (_core.Buffer, _core.ManagedBuffer, UnifiedBuffer, _core.Array)
_tables = (_core.Table, _core.Column)
_tern_types = (*_arrays, *_tables)
_kinds = {_core.Buffer: "buffer", _core.ManagedBuffer: "managed", UnifiedBuffer: "unified", _core.Array: "array"}

# The stores of this process. A process with a store is a worker, and keeps what arrives closed.
_stores: weakref.WeakSet[Store] = weakref.WeakSet()
# Set while a worker answers a request of a peer. The store then returns closed values, which need no device memory.
_is_serving: contextvars.ContextVar[bool] = contextvars.ContextVar("ternmem_is_serving", default=False)


# --- How values travel


def _arrow() -> Any:
    try:
        import pyarrow
    except ImportError as missing:
        raise ImportError("tables travel as Arrow streams, and pyarrow cannot be imported. Install 'ternmem[dask]'.") from missing
    return pyarrow


def _dump_array(value: Any) -> tuple[dict[str, Any], list[Any]]:
    shape = [value.size] if isinstance(value, _core.Array) else list(value.shape)
    header: dict[str, Any] = {"kind": _kinds[type(value)], "shape": shape, "dtype": str(value.dtype), "memory": "device"}
    if isinstance(value, UnifiedBuffer):
        header["device"] = value.default_device.spec
        is_written = value.state is not BufferState.UNINITIALIZED
        # A lease of the host copy. The array keeps the memory after the lease.
        elements = np.asarray(value).reshape(-1).view("uint8") if is_written and value.size else None
    else:
        header["device"] = value.device.spec
        if isinstance(value, _core.Array):
            is_written = True
            elements = value.to_numpy().view("uint8") if value.size else None
        else:
            buffer = value.buffer if isinstance(value, _core.ManagedBuffer) else value
            if buffer.kind == "pinned":
                header["memory"] = "pinned"
            is_written = buffer.is_allocated
            elements = _bytes_of(buffer) if is_written else None
    header["written"] = is_written
    return header, [] if elements is None else [elements.data.cast("B")]


def _dump_table(value: Any) -> tuple[dict[str, Any], list[Any]]:
    pyarrow = _arrow()
    is_table = isinstance(value, _core.Table)
    spec = value.device.spec if value.device is not None else "host"
    here = value if value.device is None or value.device.is_host else value.copy_to("host")
    batch = pyarrow.record_batch(here) if is_table else pyarrow.record_batch([pyarrow.array(here)], names=[""])
    sink = pyarrow.BufferOutputStream()
    with pyarrow.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return {"kind": "table" if is_table else "column", "device": spec}, [memoryview(sink.getvalue())]


def _dump(value: Any, context: Any = None) -> tuple[dict[str, Any], list[Any]]:
    try:
        return _dump_table(value) if isinstance(value, _tables) else _dump_array(value)
    except Exception as error:
        # A message must travel: the receiver raises the error when it opens the value. A spill has no context; there
        # the error tells the store that the value has to stay.
        if context is None:
            raise
        return {"kind": "failed", "error": type(error).__name__, "text": str(error)}, []


class Received:
    """A received value, as the bytes of its message.

    Parameters
    ----------
    header : dict
    frames : list of bytes-like
    """

    def __init__(self, header: Any, frames: list[Any]) -> None:
        self.header = header
        self.frames = frames

    @property
    def nbytes(self) -> int:
        """The number of bytes of the frames."""
        return sum(memoryview(frame).nbytes for frame in self.frames)

    def open(self) -> Any:
        """Return the value: allocate its memory and copy the bytes there.

        Raises BadFormatError if the header and the frames do not fit together, OutOfBudgetError without memory, and
        the error of the sender if it could not read the value.
        """
        header = self.header if isinstance(self.header, dict) else {}
        kind = header.get("kind")
        if kind == "failed":
            raise _error_of(header)
        if kind in ("table", "column"):
            return self._open_table(kind)
        if kind not in _kinds.values():
            raise errors.BadFormatError(f"a message names the kind of value {kind!r}, which Tern does not have. Use one "
                                        "version of ternmem on all workers.")
        return self._open_array(header, kind)

    def _open_array(self, header: dict[str, Any], kind: Any) -> Any:
        shape, is_written, memory = header.get("shape"), header.get("written"), header.get("memory")
        if not isinstance(shape, list | tuple) or not all(type(extent) is int and extent >= 0 for extent in shape):
            raise errors.BadFormatError(f"a message has the shape {shape!r}. A shape is a list of integers from 0 up.")
        if memory not in ("device", "pinned") or type(is_written) is not bool or (kind == "array" and len(shape) != 1):
            raise errors.BadFormatError(f"the header of a message is damaged: {header!r}. Use one version of ternmem on all "
                                        "workers.")
        device = _device_for(header.get("device"))
        try:
            if kind == "unified":
                made: Any = UnifiedBuffer(tuple(shape), header.get("dtype"), device=device)
            elif kind == "managed":
                made = _core.ManagedBuffer(tuple(shape), header.get("dtype"), device)
            else:
                made = _core.Buffer(tuple(shape), header.get("dtype"), device, kind=memory)
        except (TypeError, ValueError, OverflowError) as error:
            raise errors.BadFormatError(f"a message has elements of type {header.get('dtype')!r} and the shape "
                                        f"{shape!r}, which Tern cannot make: {error}") from error
        expected = made.nbytes if is_written else 0
        if self.nbytes != expected:
            raise errors.BadFormatError(f"a message has {self.nbytes} bytes of elements, and its header says {expected}. "
                                        "The message was damaged or cut.")
        elements = _joined(self.frames) if expected else None
        if kind == "array":
            dtype = np.dtype(header["dtype"])
            return _core.Array(np.empty(0, dtype) if elements is None else elements.view(dtype), device=device)
        if elements is not None and kind == "unified":
            with made.discard_host() as array:
                array.reshape(-1).view("uint8")[:] = elements
        elif elements is not None:
            buffer = made.buffer if kind == "managed" else made
            buffer.reshape(buffer.size).view("uint8").copy_from(elements)
        return made

    def _open_table(self, kind: str) -> Any:
        pyarrow = _arrow()
        try:
            with pyarrow.ipc.open_stream(_aligned(pyarrow, _joined(self.frames))) as reader:
                batches = list(reader)
            if len(batches) != 1 or (kind == "column" and batches[0].num_columns != 1):
                raise errors.BadFormatError(f"a message with a {kind} has {len(batches)} batches. It was damaged or cut.")
            batches[0].validate(full=True)
        except (pyarrow.ArrowException, OSError) as error:
            raise errors.BadFormatError(f"a message with a {kind} is not a whole Arrow stream: {error}") from error
        here = _core.from_arrow(batches[0] if kind == "table" else batches[0].column(0))
        device = _device_for(self.header.get("device"))
        return here if device.is_host else here.copy_to(device)

    def __repr__(self) -> str:
        return f"Received({self.header!r}, nbytes={self.nbytes})"


def _joined(frames: list[Any]) -> Any:
    arrays = [np.frombuffer(frame, "uint8") for frame in frames]
    if len(arrays) == 1:
        return arrays[0]
    return np.concatenate(arrays) if arrays else np.empty(0, "uint8")


def _aligned(pyarrow: Any, elements: Any) -> Any:
    """Return the bytes as an Arrow buffer. Columns need aligned memory, and Dask reads messages to any address."""
    if elements.size and elements.ctypes.data % 64 == 0:
        return pyarrow.py_buffer(elements)
    copied = pyarrow.allocate_buffer(elements.size)
    np.frombuffer(copied, "uint8")[:] = elements
    return copied


def _device_for(spec: Any) -> _core.Device:
    """Return the device of a worker, and elsewhere the device of the sender if this process has it."""
    for store in _stores:
        if store.device is not None:
            return store.device
    return device_of(spec) if isinstance(spec, str) else _core.current_device()


def _error_of(header: dict[str, Any]) -> Exception:
    name = header.get("error")
    made = getattr(errors, name, None) if name in errors.__all__ else None
    text = f"the sender could not read the value: {header.get('text')}"
    return made(text) if made is not None else errors.Error(f"{name}: {text}")


def _load(header: Any, frames: list[Any]) -> Any:
    arrived = Received(header, frames)
    return arrived if _stores else arrived.open()


def _register() -> None:
    for kind in _tern_types:
        dask_serialize.register(kind)(_dump)
        dask_deserialize.register(kind)(_load)
        sizeof.register(kind)(lambda value: int(value.nbytes))
    dask_serialize.register(Received)(lambda value: (value.header, value.frames))
    dask_deserialize.register(Received)(_load)
    sizeof.register(Received)(lambda value: value.nbytes)


_register()


# --- What a worker keeps


def _opened(value: Any) -> Any:
    """Return the value with everything in it opened. Dask takes lists, tuples, sets and dicts apart; so does this."""
    if isinstance(value, Received):
        return value.open()
    if type(value) in (list, tuple, set) and any(_has_received(part) for part in value):
        return type(value)(_opened(part) for part in value)
    if type(value) is dict and any(_has_received(part) for part in value.values()):
        return {key: _opened(part) for key, part in value.items()}
    return value


def _closed(value: Any) -> Any:
    """Return the value with the buffers and tables in it as Received."""
    if isinstance(value, _tern_types):
        return Received(*_dump(value, context={}))
    if type(value) in (list, tuple):
        return type(value)(_closed(part) for part in value)
    if type(value) is dict:
        return {key: _closed(part) for key, part in value.items()}
    return value


def _has_received(value: Any) -> bool:
    if type(value) in (list, tuple, set, dict):
        return any(_has_received(part) for part in _parts(value))
    return isinstance(value, Received)


def _parts(value: Any) -> Iterable[Any]:
    return value.values() if type(value) is dict else value


def _is_evictable(container: Any, idle_references: int = 3) -> bool:
    """Return whether the container has buffers, and nothing else uses the buffers.

    A part that nothing else uses has the references of the container, of the loop and of getrefcount().
    """
    found = False
    for part in _parts(container):
        is_container = type(part) in (list, tuple, set, dict)
        if not is_container and not isinstance(part, _tern_types):
            continue
        if sys.getrefcount(part) > idle_references:
            return False
        if is_container and _parts(part) and not _is_evictable(part):
            return False
        found = True
    return found


class Store(SpillBuffer):
    """The values of a worker. Pass it as ``data=ternmem.dask.Store``.

    The store spills the least recently used values to files if Dask finds too much memory in use, or if a request for
    Tern's memory does not fit into the budget of the worker. For the budget, the store spills only values that no task
    uses, because spilling other values frees nothing.

    Parameters
    ----------
    worker_local_directory : str
    """

    def __init__(self, worker_local_directory: str) -> None:
        super().__init__(os.path.join(worker_local_directory, "storage"), target=sys.maxsize)
        self.device: _core.Device | None = None
        self.budget: _core.Budget | None = None
        self.spills = 0
        self.drops = 0
        self._counting = threading.Lock()
        _stores.add(self)

    def __hash__(self) -> int:
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other

    def __getitem__(self, key: Any) -> Any:
        if _is_serving.get():
            return self._closed(key)
        value = super().__getitem__(key)
        try:
            opened = _opened(value)
        except Exception as error:
            _forget_frames(error)
            raise
        if opened is not value and key in self.fast:
            self.fast.set_noevict(key, opened)
        return opened

    def _closed(self, key: Any) -> Any:
        """Return a value for a message.

        The message refers to host memory and not to the value, so that the value can be spilled while it is sent.
        """
        try:
            return _closed(self.fast.d[key])
        except KeyError:
            return self.slow[key]

    def fast_to_slow(self, key: Any, value: Any) -> None:
        """Write a value to its file."""
        super().fast_to_slow(key, value)
        with self._counting:
            self.spills += 1

    @property
    def spilled_total(self) -> SpilledSize:
        """The bytes of the values in files, in memory and on disk."""
        # Dask's own sum is for one thread.
        return sum(list(self._slow_uncached.weight_by_key.values()), SpilledSize(0, 0))

    def free(self, need_bytes: int) -> int:
        """Free memory of the budget. Returns the number of bytes.

        Unified buffers move to their host copies. Other values are spilled.

        Parameters
        ----------
        need_bytes : int
        """
        budget = self.budget
        if budget is None or need_bytes > (budget.limit_bytes or 0):
            return 0
        before = budget.live_bytes
        for attempt in range(_max_attempts):
            for key in list(self.fast.order):
                if before - budget.live_bytes >= need_bytes:
                    return before - budget.live_bytes
                value = [self.fast.d.get(key)]
                if _is_evictable(value, idle_references=4):  # `fast` has the fourth
                    self._free_one(key, value)
                value.clear()
            if before - budget.live_bytes >= need_bytes:
                break
            # The thread of the task before may still have its arguments and its result. It drops them in a moment.
            if attempt == 0:
                gc.collect()
            time.sleep(_pause_s)
        return max(before - budget.live_bytes, 0)

    def _free_one(self, key: Any, value: list[Any]) -> None:
        if isinstance(value[0], UnifiedBuffer) and not value[0].default_device.is_host:
            try:
                value[0].drop_device()
                with self._counting:
                    self.drops += 1
            except errors.Error:
                _logger.warning("the device copy of %r stays in memory", key, exc_info=True)
            return
        value.clear()
        try:
            with self._capture_metrics(), self._handle_errors(None):
                self.fast.evict(key)
        except (HandledError, KeyError):
            pass  # logged, or another thread was faster


# How often, and after which pause, a request looks again for values to spill.
_max_attempts = 50
_pause_s = 0.01


def _forget_frames(error: Exception) -> None:
    """Drop the local variables of the failed call once it has ended.

    Dask keeps the error of a task. Its traceback refers to the frame that has the other arguments of the task, and
    they would stay in memory.
    """
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return
    loop.call_soon(lambda: traceback.clear_frames(error.__traceback__))


def _free_in(store: weakref.ref[Store], need_bytes: int) -> int:
    found = store()
    return found.free(need_bytes) if found is not None else 0


class WorkerPlugin(distributed.WorkerPlugin):
    """Sets up Tern on each worker: a device, a pool, a budget, and optionally a recording.

    The worker needs ``data=ternmem.dask.Store``; :func:`LocalCluster` passes it.

    Parameters
    ----------
    device : str or sequence of str
        The spec of the device. Workers with the names 0, 1, 2, ... take the devices of a sequence in turn.
    budget_bytes : int
        The limit on the memory of the worker's device. On the device ``host``, the limit on the memory of buffers.
    trace : path, optional
        A folder. Each worker writes a recording of its memory to it.
    """

    name = "ternmem"

    def __init__(self, device: str | Sequence[str], budget_bytes: int, *, trace: str | os.PathLike[str] | None = None) -> None:
        self.devices = [device] if isinstance(device, str) else list(device)
        if not self.devices:
            raise errors.InvalidArgumentError("the list of devices is empty. Name a device, such as 'cuda:0'.")
        if budget_bytes <= 0:
            raise errors.InvalidArgumentError(f"budget_bytes is {budget_bytes}. A worker needs 1 byte or more.")
        self.budget_bytes = budget_bytes
        self.trace = None if trace is None else os.fspath(trace)

    def setup(self, worker: Any) -> None:
        """Open the device and limit its memory."""
        store = worker.data
        if not isinstance(store, Store):
            raise errors.InvalidArgumentError(
                f"the worker '{worker.name}' keeps its values in a {type(store).__name__}, which cannot free memory of a "
                "budget. Start the worker with data=ternmem.dask.Store, or use ternmem.dask.LocalCluster."
            )
        name = str(worker.name)
        device = _core.open_device(self.devices[int(name) % len(self.devices) if name.isdecimal() else 0])
        limit, target = worker.memory_manager.memory_limit, worker.memory_manager.memory_target_fraction
        if device.is_host and limit and self.budget_bytes > limit:
            raise errors.InvalidArgumentError(f"the budget of the worker '{name}' has {self.budget_bytes} bytes of host "
                                              f"memory, and its memory limit is {limit}. Lower the budget.")
        if limit and target:
            store.n = int(limit * target) + (0 if device.is_host else self.budget_bytes)
        store.budget = _core.Budget(f"worker {name}", self.budget_bytes)
        store.device = device
        limited = _core.BudgetResource(_core.Pool(device), store.budget)
        _core.set_default_resource(_core.PressureResource(limited, functools.partial(_free_in, weakref.ref(store))))
        _core.set_device(device)
        worker.metrics["ternmem"] = _metrics
        worker.handlers["get_data"] = _serving(worker.handlers["get_data"])
        if self.trace is not None:
            pathlib.Path(self.trace).mkdir(parents=True, exist_ok=True)
            trace.start(os.path.join(self.trace, f"worker-{name}-{os.getpid()}.trace"))

    def teardown(self, worker: Any) -> None:
        """End the recording."""
        if self.trace is not None:
            trace.stop()


def _metrics(worker: Any) -> dict[str, int]:
    store = worker.data
    return {
        "used_bytes": store.budget.used_bytes,
        "peak_bytes": store.budget.peak_bytes,
        "limit_bytes": store.budget.limit_bytes or 0,
        "spills": store.spills,
        "drops": store.drops,
        "spilled_bytes": store.spilled_total.disk,
    }


def _serving(get_data: Any) -> Any:
    @functools.wraps(get_data)
    async def serve(comm: Any, *arguments: Any, **options: Any) -> Any:
        before = _is_serving.set(True)
        try:
            return await get_data(comm, *arguments, **options)
        finally:
            _is_serving.reset(before)

    return serve


def LocalCluster(
    n_workers: int | None = None,
    *,
    device: str | Sequence[str],
    budget_bytes: int,
    trace: str | os.PathLike[str] | None = None,
    **options: Any,
) -> Any:
    """Start workers on this machine, each with a device and a budget.

    Parameters
    ----------
    n_workers : int, optional
    device : str or sequence of str
        As for :class:`WorkerPlugin`.
    budget_bytes : int
        The budget of each worker.
    trace : path, optional
        A folder for recordings.
    **options
        Passed on to ``distributed.LocalCluster``.

    Returns
    -------
    distributed.LocalCluster
    """
    if options.pop("processes", True) is not True:
        raise errors.InvalidArgumentError("workers of one process would share one budget. Leave out 'processes', or pass True.")
    plugins = [*options.pop("plugins", ()), WorkerPlugin(device, budget_bytes, trace=trace)]
    return distributed.LocalCluster(n_workers=n_workers, processes=True, data=Store, plugins=plugins, **options)
