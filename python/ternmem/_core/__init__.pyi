# Written by python/stubs.py with nanobind 3.1.0 and Python 3.11. Do not edit.
import builtins
import collections.abc
import typing

import numpy.typing as npt
from collections.abc import Sequence
import os

from ternmem._core import sim as sim, trace as trace


def _begin_end() -> None: ...

class MemoryInfo:
    """Free and total bytes of device memory."""

    @property
    def free_bytes(self) -> int:
        """The bytes that are free."""

    @property
    def total_bytes(self) -> int:
        """All bytes."""

    def __repr__(self) -> str: ...

class Device:
    """
    An open device: its properties, its memory and its default stream.

    Open one with :func:`open_device`. Two handles of one device are equal.
    """

    def __init__(self, spec: str) -> None:
        """
        Open the device with this spec, such as ``cuda:0``, ``sim`` or ``host``.
        """

    @property
    def spec(self) -> str:
        """The text that opens the device, such as ``cuda:0``."""

    @property
    def name(self) -> str:
        """The name of the hardware."""

    @property
    def driver(self) -> str:
        """The version of the driver."""

    @property
    def is_host(self) -> bool:
        """Whether the device is the host itself."""

    @property
    def id(self) -> int:
        """The number of the device in this process."""

    @property
    def place(self) -> str:
        """The place of the device's memory, such as ``'device 1'``."""

    @property
    def capabilities(self) -> list[str]:
        """The names of the optional features that the device has."""

    def can(self, capability: str) -> bool:
        """Return whether the device has a capability."""

    def memory(self) -> MemoryInfo:
        """Return the free and total bytes of device memory now."""

    def allocate(self, bytes: object) -> int:
        """Allocate memory without an owner. Returns its address, for release()."""

    def release(self, address: int) -> None:
        """Free memory of allocate(). No work may still use it."""

    def synchronize(self) -> None:
        """Wait until all work of the device is complete. Ctrl-C ends the wait."""

    @property
    def default_stream(self) -> Stream:
        """The stream that operations use if the program names none."""

    def stream(self, name: str | None = None, priority: int = 0) -> Stream:
        """Make a stream. The name is for reports."""

    def activity(self) -> dict[str, typing.Any]:
        """
        Return counts of recorded events, stream waits, host waits and kernel launches.
        """

    def __eq__(self, arg: object, /) -> bool: ...

    def __hash__(self) -> int: ...

    def __reduce__(self) -> tuple[typing.Any, ...]: ...

    def __repr__(self) -> str: ...

def open_device(spec: str) -> Device:
    """
    Open the device with this spec, such as ``cuda:0``, ``sim`` or ``host``.
    """

def best_device() -> Device:
    """
    Open the device that ``TERN_DEVICE`` names, or the best one of this machine.
    """

def devices() -> list[str]:
    """Return the specs of the devices that can be opened here."""

def backends() -> list[typing.Any]:
    """
    Return what Tern knows about each backend, and why one is not available.
    """

def set_device(device: object) -> None:
    """
    Choose the device of calls that name no device: a Device, a spec, or the number of an accelerator.
    """

def current_device() -> Device:
    """Return the device of calls that name no device."""

def copy_mark(device: Device) -> Mark:
    """
    Return a mark for the copies that the library has queued on its own stream.
    """

class Mark:
    """
    A point in the work of a stream. Stream.mark() makes it; ``await mark`` waits in an event loop.

    A mark costs nothing until a program waits for it.
    """

    def __await__(self) -> collections.abc.Generator[object, None, None]: ...

    @property
    def is_done(self) -> bool:
        """Whether the work up to the mark is complete. Does not wait."""

    def wait(self) -> None:
        """Wait until the work up to the mark is complete. Ctrl-C ends the wait."""

    def __eq__(self, arg: object, /) -> bool: ...

    def __hash__(self) -> int: ...

    def __repr__(self) -> str: ...

class Event:
    """
    A driver event: to measure time, or to order work of code that uses events.

    Parameters
    ----------
    device : Device or str, optional
        By default the current device.
    timing : bool
        Whether elapsed_ns() can measure with the event.
    """

    def __init__(self, device: object | None = None, *, timing: bool = False) -> None: ...

    @property
    def is_recorded(self) -> bool:
        """Whether Stream.record() was called with the event."""

    @property
    def is_done(self) -> bool:
        """Whether the work up to the latest record is complete. Does not wait."""

    @property
    def handle(self) -> int:
        """The driver's handle."""

    def synchronize(self) -> None:
        """
        Wait until the work up to the latest record is complete. Ctrl-C ends the wait.
        """

    def elapsed_ns(self, start: Event) -> int:
        """
        Return the nanoseconds from another event to this one. Both need ``timing=True``.
        """

class Stream:
    """
    A queue of work of a device. Work of one stream runs in order.

    Close it, or use it in a ``with`` statement; work that was submitted still completes.

    Parameters
    ----------
    device : Device or str, optional
        By default the current device.
    name : str, optional
        A name for reports.
    priority : int
        Lower numbers run first, as in CUDA.
    """

    def __init__(self, device: object | None = None, name: str | None = None, priority: int = 0) -> None: ...

    @staticmethod
    def borrow(stream: object, device: object | None = None) -> Stream:
        """
        Use a stream of another library: an object with ``__cuda_stream__``, or the driver's handle.
        """

    @property
    def device(self) -> Device:
        """The device."""

    @property
    def name(self) -> str:
        """The name for reports."""

    @property
    def handle(self) -> int:
        """The driver's handle."""

    def __cuda_stream__(self) -> tuple[int, int]: ...

    def mark(self) -> Mark:
        """Return a mark for everything submitted so far."""

    def wait(self, for_what: object) -> None:
        """
        Make later work of this stream start after a mark, an event or the work of another stream.
        """

    def record(self, event: Event) -> None:
        """Record an event: it covers everything submitted so far."""

    def copy_bytes(self, destination: int, source: int, bytes: int) -> None:
        """Queue a copy between addresses. The program orders it, not Tern."""

    def fill_bytes(self, destination: int, bytes: int, value: int) -> None:
        """Queue a fill at an address. The program orders it, not Tern."""

    @property
    def is_idle(self) -> bool:
        """Whether all submitted work is complete. Does not wait."""

    def synchronize(self) -> None:
        """
        Wait until all work submitted so far is complete. Ctrl-C ends the wait.
        """

    def close(self) -> None:
        """End the stream. Work that was submitted still completes."""

    def __enter__(self) -> typing.Self: ...

    def __exit__(self, *args: object) -> None: ...

    def __eq__(self, arg: object, /) -> bool: ...

    def __hash__(self) -> int: ...

    def __repr__(self) -> str: ...

def from_dlpack(x: object, *, device: object | None = None, copy: object | None = None) -> Buffer | StridedBuffer:
    """
    Import a tensor of another library without a copy.

    Parameters
    ----------
    x : object
        With ``__dlpack__`` and ``__dlpack_device__``, such as an array of NumPy, CuPy, JAX or torch.
    device : Device, optional
        The device that owns the memory. By default the device with the number that the tensor names.
    copy : bool, optional
        True always copies. False raises CopyRequiredError if a copy is needed.

    Returns
    -------
    Buffer or StridedBuffer
        A StridedBuffer if the elements are not adjacent.
    """

class Resource:
    """
    Where memory comes from: a Pool, or a resource that adds a check to another one.
    """

    @property
    def device(self) -> Device:
        """The device of the memory."""

    @property
    def name(self) -> str:
        """The name of the kind of resource."""

    def __repr__(self) -> str: ...

    @property
    def statistics(self) -> dict[str, typing.Any]:
        """Bytes in use and held, and counts of allocations."""

    def trim(self, keep_bytes: int = 0) -> int:
        """
        Return free memory to the driver, except for ``keep_bytes``. Returns the number of bytes.
        """

class Pool(Resource):
    """
    Keeps memory of the driver and reuses it, so most allocations cost nanoseconds.

    Parameters
    ----------
    device : Device or str, optional
        By default the current device.
    limit_bytes : int
        The most memory that the pool holds; 0 for no limit.
    initial_bytes : int
        Memory that the pool requests from the driver now.
    kind : {'device', 'pinned', 'managed'}
        The kind of memory.
    """

    def __init__(self, device: object | None = None, *, limit_bytes: object = 0, initial_bytes: object = 0, kind: str = 'device') -> None: ...

    def set_limit(self, limit_bytes: object) -> None:
        """
        Change the most memory that the pool holds; 0 for no limit. Returns memory above it to the driver.
        """

    @property
    def limit_bytes(self) -> int:
        """The most memory that the pool holds; 0 for no limit."""

    def __repr__(self) -> str: ...

    @property
    def pool_statistics(self) -> dict[str, typing.Any]:
        """
        What the pool holds, and how often it asked the driver and waited, as a dict.
        """

class SharedBudget:
    """
    One limit on bytes for several processes of a user. This process joins as a tenant.

    Parameters
    ----------
    name : str
        The name that all tenants use.
    tenant : str
        The name of this process, which no other living tenant has.
    limit_bytes : int, optional
        The limit of all tenants together. It counts only if no process has joined yet. Without it, the first process that joins raises NotFoundError.
    tenant_limit_bytes : int, optional
        The limit of this tenant. None means no limit.
    """

    def __init__(self, name: str, tenant: str, *, limit_bytes: object | None = None, tenant_limit_bytes: object | None = None) -> None: ...

    @property
    def name(self) -> str:
        """The name."""

    @property
    def tenant(self) -> str:
        """The name of this tenant."""

    @property
    def limit_bytes(self) -> int | None:
        """The limit of all tenants together in bytes. None means no limit."""

    @property
    def charged_bytes(self) -> int:
        """What all tenants together have charged."""

    @property
    def peak_bytes(self) -> int:
        """The most bytes that all tenants together had charged at one time."""

    def tenants(self) -> list[typing.Any]:
        """Return the tenants as a list of dicts."""

    def set_limit(self, limit_bytes: object | None, tenant: str | None = None) -> None:
        """
        Change the limit of all tenants together, or of one tenant; None for none. What is charged stays charged.
        """

    def ask(self, tenant: str, bytes: object) -> None:
        """
        Ask a tenant to give bytes back. It answers in its next allocation that its pool cannot recycle, or in answer_requests().
        """

    def answer_requests(self) -> dict[str, typing.Any]:
        """
        Evict copies of unified buffers and trim pools, if other tenants have asked for it. Return what was given back, as a dict.
        """

    def collect(self) -> int:
        """
        Take back what tenants had charged that have ended. Return the number of bytes.
        """

    def __repr__(self) -> str: ...

class Budget:
    """
    A limit on bytes. A BudgetResource charges memory to it.

    Parameters
    ----------
    name : str
        A name for reports and errors.
    limit_bytes : int or None
        None counts bytes and never refuses a request.
    parent : Budget, optional
        A budget that is charged for the same bytes.
    overflow : {'fail', 'wait', 'evict', 'spill'}
        What a request at the limit may do: raise OutOfBudgetError, wait for pending frees, drop copies
        that can be fetched again, or also move data elsewhere.
    shared : SharedBudget, optional
        A limit for several processes that is charged for the same bytes. Only for a budget without a parent.
    """

    def __init__(self, name: str, limit_bytes: object | None, *, parent: Budget | None = None, overflow: str = 'spill', shared: SharedBudget | None = None) -> None: ...

    @property
    def name(self) -> str:
        """The name."""

    @property
    def path(self) -> str:
        """The names from the topmost parent to this budget."""

    @property
    def limit_bytes(self) -> int | None:
        """The limit in bytes. None means no limit."""

    def set_limit(self, limit_bytes: object | None) -> None:
        """Change the limit; None for none. What is charged stays charged."""

    @property
    def used_bytes(self) -> int:
        """Bytes in use, and bytes whose free is still pending."""

    @property
    def live_bytes(self) -> int:
        """Bytes in use."""

    @property
    def pending_bytes(self) -> int:
        """
        Bytes that are freed but still charged, because their stream has not passed the free.
        """

    @property
    def charged_bytes(self) -> int:
        """Used bytes, and bytes of requests that are under way or reserved."""

    @property
    def peak_bytes(self) -> int:
        """The most bytes that were used at one time."""

    def __repr__(self) -> str: ...

class BudgetResource(Resource):
    """
    Charges each block of another resource to a budget.

    Parameters
    ----------
    upstream : Resource
        Where the memory comes from.
    budget : Budget
    """

    def __init__(self, upstream: Resource, budget: Budget) -> None: ...

class PressureResource(Resource):
    """
    Calls a function when another resource is out of memory, and then tries the request again.

    Parameters
    ----------
    upstream : Resource
        Where the memory comes from.
    handler : callable
        Gets the number of bytes that the request needs, frees memory, and returns the number of bytes freed.
        Runs on the thread of the request. Must not use the memory that the request is for.
    """

    def __init__(self, upstream: Resource, handler: object) -> None: ...

class TrackingResource(Resource):
    """
    Records each live block of another resource, and the line that allocated it.

    Parameters
    ----------
    upstream : Resource
    check_overlap : bool
        Check that no new block overlaps a live one.
    """

    def __init__(self, upstream: Resource, *, check_overlap: bool = False) -> None: ...

    def live_blocks(self) -> list[typing.Any]:
        """Return the live blocks as a list of dicts, oldest first."""

    def tag_totals(self) -> dict[str, typing.Any]:
        """
        Return one snapshot of all tags that were ever used, by tag, the largest first.
        """

    def histogram(self) -> dict[int, int]:
        """
        Return the number of allocations in each size class. The keys are the upper bounds of the classes, in bytes.
        """

    def leak_report(self) -> str:
        """Return the live blocks by tag and line as text."""

    def __str__(self) -> str: ...

def default_resource(device: object | None = None, kind: str = 'device') -> Resource:
    """Return the resource of buffers that name no resource."""

def set_default_resource(resource: Resource) -> Resource | None:
    """
    Use a resource for all buffers that name none, have its device and use its kind of memory.

    To undo this later, keep the result of default_resource() and set it again.

    Parameters
    ----------
    resource : Resource

    Returns
    -------
    Resource or None
        The resource that was set before, or None if none was.
    """

class Buffer:
    """
    An array of elements in memory of one device. Memory is allocated on first use.

    Parameters
    ----------
    shape : int or sequence of int
    dtype : dtype-like, default float32
    device : Device or str, optional
        By default that of the resource, or else the current device.
    kind : {'device', 'pinned', 'managed'}
        Device memory, page-locked host memory, or memory that migrates between host and device.
    contents : {'uninitialized', 'zero', 'unspecified'}
        A read of uninitialized elements raises NeverWrittenError. Unspecified elements may be read.
    tag : str, optional
        A name for reports.
    resource : Resource, optional
        Where the memory comes from; by default the default resource of the device.
    """

    def __buffer__(self, flags: int, /) -> memoryview: ...

    def __init__(self, shape: object, dtype: object | None = None, device: object | None = None, *, kind: str = 'device', contents: str = 'uninitialized', tag: str | None = None, resource: Resource | None = None) -> None: ...

    @staticmethod
    def from_numpy(array: object, device: object | None = None, *, tag: object | None = None) -> typing.Any:
        """
        Make a buffer with the shape, the dtype and the elements of an array.

        Parameters
        ----------
        array : array-like
        device : Device or str, optional
            By default the current device.
        tag : str, optional
            A name for reports.

        Returns
        -------
        Buffer
        """

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents."""

    @property
    def dtype(self) -> typing.Any:
        """
        The type of an element: a NumPy dtype, or a name if NumPy has no such type.
        """

    @property
    def size(self) -> int:
        """The number of elements."""

    @property
    def numel(self) -> int:
        """The number of elements."""

    @property
    def ndim(self) -> int:
        """The number of dimensions."""

    @property
    def nbytes(self) -> int:
        """The number of bytes."""

    @property
    def device(self) -> Device:
        """The device of the memory."""

    @property
    def kind(self) -> str:
        """
        The kind of memory: ``'device'``, ``'pinned'``, ``'managed'``, ``'host'`` or ``'file'``.
        """

    @property
    def is_pinned(self) -> bool:
        """Whether the memory is page-locked host memory."""

    @property
    def is_external(self) -> bool:
        """Whether another library owns the memory."""

    @property
    def is_allocated(self) -> bool:
        """Whether the buffer has memory; the first use allocates it."""

    @property
    def ptr(self) -> int:
        """The address of the first element."""

    def allocate(self, stream: object | None = None) -> typing.Self:
        """Allocate the memory now. Returns the buffer."""

    def copy_from(self, source: object, stream: object | None = None) -> typing.Any:
        """
        Copy all elements of an array or a Buffer into this buffer. Returns the buffer.

        A copy from a Buffer is queued on the stream; from an array the host waits.
        """

    def to_numpy(self) -> npt.NDArray[typing.Any]:
        """Return an independent NumPy array with the elements."""

    def numpy(self) -> npt.NDArray[typing.Any]:
        """
        Return a NumPy array over the same memory. Raises BufferError for memory that the host cannot use.
        """

    def __array__(self, dtype: object | None = None, copy: object | None = None) -> npt.NDArray[typing.Any]: ...

    def fill(self, value: object, stream: object | None = None) -> typing.Self:
        """Set every element to one value, in stream order. Returns the buffer."""

    def clone(self, stream: object | None = None) -> Buffer:
        """Return a Buffer with a copy of the elements."""

    def reshape(self, *shape: object) -> Buffer:
        """
        Return the same memory with another shape: integers or one sequence of them. One extent may be -1.
        """

    def view(self, dtype: object) -> Buffer:
        """Return the same memory with another dtype."""

    def __getitem__(self, key: object | None) -> Buffer: ...

    def __setitem__(self, key: object | None, value: object) -> None: ...

    def __len__(self) -> int: ...

    def item(self) -> typing.Any:
        """Return the only element."""

    def synchronize(self) -> None:
        """Wait until no stream uses the memory. Ctrl-C ends the wait."""

    def __dlpack__(self, *, stream: object | None = None, max_version: object | None = None, dl_device: object | None = None, copy: object | None = None) -> typing.Any: ...

    def __dlpack_device__(self) -> tuple[int, int]: ...

    @property
    def __cuda_array_interface__(self) -> dict[str, typing.Any]: ...

    def __reduce_ex__(self, protocol: object) -> typing.Any: ...

    def __copy__(self) -> Buffer: ...

    def __deepcopy__(self, memo: object) -> Buffer: ...

    def __repr__(self) -> str: ...

class StridedBuffer:
    """
    Elements of another library that are not adjacent in memory.

    from_dlpack() makes it. contiguous() copies the elements to a Buffer.
    """

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents."""

    @property
    def strides(self) -> list[int]:
        """The strides, in elements."""

    @property
    def dtype(self) -> typing.Any:
        """The type of an element."""

    @property
    def is_contiguous(self) -> bool:
        """Whether the elements are adjacent, in row-major order."""

    def __array__(self, dtype: object | None = None, copy: object | None = None) -> npt.NDArray[typing.Any]: ...

    def __repr__(self) -> str: ...

    def contiguous(self, stream: object | None = None) -> Buffer:
        """Return a Buffer with the elements in row-major order."""

class HostMemory:
    """Memory of the host. NumPy arrays over it keep it alive."""

    def __buffer__(self, flags: int, /) -> memoryview: ...

class HostLease:
    """
    An open access of the host to a UnifiedBuffer. A ``with`` statement returns a NumPy array.

    The end of the lease makes the array read-only. Its memory stays valid.
    """

    @property
    def array(self) -> npt.NDArray[typing.Any]:
        """The NumPy array of the lease."""

    @property
    def is_open(self) -> bool:
        """Whether the lease is open."""

    def __repr__(self) -> str: ...

    def close(self) -> None:
        """Close the lease."""

    def commit(self, count: int) -> None:
        """
        Close a discard lease of which only the first ``count`` elements were written.
        """

    def __array__(self, dtype: object | None = None, copy: object | None = None) -> npt.NDArray[typing.Any]: ...

    def __enter__(self) -> npt.NDArray[typing.Any]: ...

    def __exit__(self, type: object | None = None, value: object | None = None, traceback: object | None = None) -> None: ...

class DeviceLease:
    """
    An open access of a device to a UnifiedBuffer. A ``with`` statement returns a DeviceArray.

    Work that is submitted to the stream of the lease while it is open may use the memory.
    """

    @property
    def array(self) -> DeviceArray:
        """The device memory of the lease."""

    @property
    def is_open(self) -> bool:
        """Whether the lease is open."""

    def __repr__(self) -> str: ...

    def close(self) -> None:
        """Close the lease. Does not wait for the work."""

    def __enter__(self) -> DeviceArray: ...

    def __exit__(self, type: object | None = None, value: object | None = None, traceback: object | None = None) -> None: ...

class UnifiedBuffer:
    """
    An array that can have a copy on the host and on a device. Tern copies bytes only when an
    access needs them, and knows which copy is up to date.

    Parameters
    ----------
    shape : int or sequence of int
    dtype : dtype-like, default float32
    pinned : bool or 'prefer', default False
        Whether the host copy is page-locked.
    device : Device or str, optional
        The device of the second copy; by default the current device.
    tag : str, optional
        A name for reports.
    """

    def __init__(self, shape: object, dtype: object | None = None, *, pinned: object = False, device: object | None = None, tag: str | None = None, checked: bool | None = None) -> None: ...

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents."""

    @property
    def dtype(self) -> typing.Any:
        """The type of an element."""

    @property
    def nbytes(self) -> int:
        """The number of bytes of one copy."""

    @property
    def size(self) -> int:
        """The number of elements."""

    @property
    def ndim(self) -> int:
        """The number of dimensions."""

    @property
    def _state(self) -> int: ...

    @property
    def default_device(self) -> Device:
        """The device of the second copy."""

    @property
    def tag(self) -> str:
        """The name for reports."""

    @property
    def is_pinned(self) -> bool:
        """Whether the host copy is page-locked; False before there is one."""

    @property
    def is_allocated(self) -> bool:
        """Whether the host or the device has a copy."""

    @property
    def statistics(self) -> dict[str, typing.Any]:
        """
        What the buffer has copied so far: ``{'copies', 'bytes'}`` by direction. ``'moved'`` is the sum.
        """

    @property
    def transfers(self) -> list[typing.Any]:
        """The latest 64 transfers, oldest first."""

    def valid_places(self) -> list[str]:
        """Return the places in which every element is up to date."""

    def __len__(self) -> int: ...

    @property
    def host(self) -> npt.NDArray[typing.Any]:
        """
        A writable NumPy array over the host copy. Downloads newer bytes of the device.

        NumPy cannot report writes, so reading this property marks the host copy as written.
        """

    @property
    def device(self) -> typing.Any:
        """
        A DeviceArray over the device copy, or a NumPy array if the device is the host. Uploads newer bytes of the host.

        Call mark_device_dirty() after work has written to it.
        """

    def __array__(self, dtype: object | None = None, copy: object | None = None) -> npt.NDArray[typing.Any]: ...

    def __getitem__(self, arg: object, /) -> typing.Any: ...

    def __setitem__(self, arg0: object, arg1: object, /) -> None: ...

    def read_host(self, wait: float | None = None) -> HostLease:
        """
        Open a lease of the host copy. The program reads the elements.

        Parameters
        ----------
        wait : float, optional
            Seconds to wait until a conflicting lease closes. By default the call raises at once.

        Returns
        -------
        HostLease
            In a ``with`` statement, a NumPy array.
        """

    def read_device(self, stream: object | None = None, wait: float | None = None) -> DeviceLease:
        """
        Open a lease of the device copy. The program reads the elements.

        Parameters
        ----------
        stream : Stream, optional
            The stream of the work; by default the default stream of the device.
        wait : float, optional
            Seconds to wait until a conflicting lease closes. By default the call raises at once.

        Returns
        -------
        DeviceLease
            In a ``with`` statement, a DeviceArray.
        """

    def rw_host(self, wait: float | None = None) -> HostLease:
        """
        Open a lease of the host copy. The program reads and writes the elements.

        Parameters
        ----------
        wait : float, optional
            Seconds to wait until a conflicting lease closes. By default the call raises at once.

        Returns
        -------
        HostLease
            In a ``with`` statement, a NumPy array.
        """

    def rw_device(self, stream: object | None = None, wait: float | None = None) -> DeviceLease:
        """
        Open a lease of the device copy. The program reads and writes the elements.

        Parameters
        ----------
        stream : Stream, optional
            The stream of the work; by default the default stream of the device.
        wait : float, optional
            Seconds to wait until a conflicting lease closes. By default the call raises at once.

        Returns
        -------
        DeviceLease
            In a ``with`` statement, a DeviceArray.
        """

    def discard_host(self, wait: float | None = None) -> HostLease:
        """
        Open a lease of the host copy. The program overwrites all elements, so nothing is copied in.

        Parameters
        ----------
        wait : float, optional
            Seconds to wait until a conflicting lease closes. By default the call raises at once.

        Returns
        -------
        HostLease
            In a ``with`` statement, a NumPy array.
        """

    def discard_device(self, stream: object | None = None, wait: float | None = None) -> DeviceLease:
        """
        Open a lease of the device copy. The program overwrites all elements, so nothing is copied in.

        Parameters
        ----------
        stream : Stream, optional
            The stream of the work; by default the default stream of the device.
        wait : float, optional
            Seconds to wait until a conflicting lease closes. By default the call raises at once.

        Returns
        -------
        DeviceLease
            In a ``with`` statement, a DeviceArray.
        """

    def allocate(self, host: bool = True, device: bool = True) -> typing.Self:
        """Allocate memory for the copies now. Returns the buffer."""

    def free(self) -> None:
        """Free all copies. Arrays that are still in use keep their memory."""

    def drop_host(self) -> None:
        """Free the host copy; newer bytes go to the device first."""

    def drop_device(self) -> None:
        """Free the device copy; newer bytes go to the host first."""

    def sync_to_device(self) -> None:
        """Bring the device copy up to date. Copies nothing if it is."""

    def sync_to_host(self) -> None:
        """
        Bring the host copy up to date, and wait for it. Copies nothing if it is.
        """

    def mark_host_dirty(self) -> None:
        """
        Mark the host copy as written. For writes through an array that the program has kept.
        """

    def mark_device_dirty(self, stream: object | None = None) -> None:
        """Mark the device copy as written by work on the stream."""

    def fill(self, value: object, stream: object | None = None) -> typing.Self:
        """
        Set every element to one value. Returns the buffer.

        With a stream, writes the device copy. Without one, writes the copy that is up to date.
        """

    def copy_from(self, array: object) -> None:
        """
        Copy an array of the same shape into the buffer. Casts of the same kind, as in NumPy, are allowed.
        """

    def copy_to(self, array: object) -> None:
        """Copy all elements into a NumPy array."""

    def to_numpy(self) -> npt.NDArray[typing.Any]:
        """Return an independent NumPy array with the newest bytes."""

    def prefetch(self, stream: object | None = None) -> None:
        """Queue the copies that a read on this stream would need."""

    def prefetch_host(self) -> None:
        """Queue the copies that a read of the host would need."""

    def wait(self) -> None:
        """Wait until no stream uses memory of the buffer. Ctrl-C ends the wait."""

    def compare(self) -> None:
        """
        Compare all copies that should be equal. Raises ViolationError if one differs.
        """

class DeviceArray:
    """
    Device memory of a lease or of a UnifiedBuffer, for other libraries.

    Pass it to ``cupy.from_dlpack``, ``torch.from_dlpack`` or ``cupy.asarray``, or pass ``ptr`` to a kernel.
    """

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents."""

    @property
    def dtype(self) -> typing.Any:
        """The type of an element."""

    @property
    def device(self) -> Device:
        """The device of the memory."""

    @property
    def ptr(self) -> int:
        """The address of the first element."""

    @property
    def nbytes(self) -> int:
        """The number of bytes."""

    @property
    def size(self) -> int:
        """The number of elements."""

    @property
    def is_read_only(self) -> bool:
        """
        Whether the lease is a read lease. Work must not write the memory then.
        """

    def __array__(self, dtype: object | None = None, copy: object | None = None) -> npt.NDArray[typing.Any]: ...

    def __dlpack__(self, *, stream: object | None = None, max_version: object | None = None, dl_device: object | None = None, copy: object | None = None) -> typing.Any: ...

    def __dlpack_device__(self) -> tuple[int, int]: ...

    @property
    def __cuda_array_interface__(self) -> dict[str, typing.Any]: ...

    def __repr__(self) -> str: ...

def unified_totals() -> dict[str, typing.Any]:
    """Return what all unified buffers of the process have copied."""

class ManagedHostLease:
    """
    An open access of the host to a ManagedBuffer. A ``with`` statement returns a NumPy array.

    The end of the lease makes the array read-only. Its memory stays valid.
    """

    @property
    def array(self) -> npt.NDArray[typing.Any]:
        """
        The array of the lease. Raises NotAllocatedError if the lease is closed.
        """

    @property
    def is_open(self) -> bool:
        """Whether the lease is open."""

    def close(self) -> None:
        """Close the lease. A second call does nothing."""

    def __enter__(self) -> npt.NDArray[typing.Any]: ...

    def __exit__(self, type: object | None = None, value: object | None = None, traceback: object | None = None) -> None: ...

class ManagedDeviceLease:
    """
    An open access of a stream to a ManagedBuffer. A ``with`` statement returns a DeviceArray.

    Work that is submitted to the stream while the lease is open may use the memory. Closing
    the lease does not wait for that work; later uses do.
    """

    @property
    def array(self) -> DeviceArray:
        """
        The array of the lease. Raises NotAllocatedError if the lease is closed.
        """

    @property
    def is_open(self) -> bool:
        """Whether the lease is open."""

    def close(self) -> None:
        """Close the lease. A second call does nothing."""

    def __enter__(self) -> DeviceArray: ...

    def __exit__(self, type: object | None = None, value: object | None = None, traceback: object | None = None) -> None: ...

class ManagedBuffer:
    """
    An array at one address, for the host and for devices. The driver moves its pages to the
    processor that touches them.

    Leases order the uses and copy nothing. Memory is allocated on first use.

    Parameters
    ----------
    shape : int or sequence of int
    dtype : dtype-like, default float32
    device : Device or str, optional
        By default the current device. Raises UnsupportedError if the device has no managed memory.
    tag : str, optional
        A name for reports.
    resource : Resource, optional
        Where the memory comes from: a resource of managed memory.
    checked : bool, optional
        Whether conflicting host leases raise AccessConflictError; by default as TERN_CHECKED says.
    """

    def __init__(self, shape: object, dtype: object | None = None, device: object | None = None, *, tag: str | None = None, resource: Resource | None = None, checked: bool | None = None) -> None: ...

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of elements along each axis."""

    @property
    def dtype(self) -> typing.Any:
        """The type of an element."""

    @property
    def size(self) -> int:
        """The number of elements."""

    @property
    def ndim(self) -> int:
        """The number of axes."""

    @property
    def nbytes(self) -> int:
        """The number of bytes."""

    @property
    def device(self) -> Device:
        """The device."""

    @property
    def is_allocated(self) -> bool:
        """Whether there is memory yet."""

    @property
    def host_waits_for_device(self) -> bool:
        """
        Whether a host lease waits for all work of the device, and not only for uses of this buffer.
        """

    @property
    def buffer(self) -> Buffer:
        """The same memory as a Buffer, for copies, kernels and exchange."""

    def __len__(self) -> int: ...

    def slice(self, first: object, count: object) -> ManagedBuffer:
        """
        Return elements [first, first + count) of the same memory.

        Parameters
        ----------
        first : int
        count : int

        Returns
        -------
        ManagedBuffer
            One-dimensional.
        """

    def hints(self, *, strict: bool = False) -> Hints:
        """
        Return an object that tells the driver how the memory will be used.

        Parameters
        ----------
        strict : bool
            Raise UnsupportedError for a hint that the device does not support, instead of skipping it.

        Returns
        -------
        Hints
        """

    def read_host(self) -> ManagedHostLease:
        """
        Open a lease of the host for reading. Waits for the writes of streams.

        Returns
        -------
        ManagedHostLease
        """

    def rw_host(self) -> ManagedHostLease:
        """
        Open a lease of the host for reading and writing. Waits for the uses of streams.

        Returns
        -------
        ManagedHostLease
        """

    def discard_host(self) -> ManagedHostLease:
        """
        Open a lease of the host that overwrites all elements.

        Returns
        -------
        ManagedHostLease
        """

    def read_device(self, stream: object | None = None) -> ManagedDeviceLease:
        """
        Open a lease for work on a stream that reads.

        Parameters
        ----------
        stream : Stream, optional
            By default the default stream of the device.

        Returns
        -------
        ManagedDeviceLease
        """

    def rw_device(self, stream: object | None = None) -> ManagedDeviceLease:
        """
        Open a lease for work on a stream that reads and writes.

        Parameters
        ----------
        stream : Stream, optional
            By default the default stream of the device.

        Returns
        -------
        ManagedDeviceLease
        """

    def discard_device(self, stream: object | None = None) -> ManagedDeviceLease:
        """
        Open a lease for work on a stream that overwrites all elements.

        Parameters
        ----------
        stream : Stream, optional
            By default the default stream of the device.

        Returns
        -------
        ManagedDeviceLease
        """

    def fill(self, value: object, stream: object | None = None) -> ManagedBuffer:
        """Set every element, in stream order. Returns the buffer."""

    def copy_from(self, array: object) -> None:
        """
        Copy elements of the same shape in; NumPy's same-kind casts are allowed.
        """

    def to_numpy(self) -> npt.NDArray[typing.Any]:
        """Return an independent NumPy array with the elements."""

    def synchronize(self) -> None:
        """Wait until no stream uses the memory."""

    def __array__(self, dtype: object | None = None, copy: object | None = None) -> npt.NDArray[typing.Any]: ...

    def __getitem__(self, arg: object, /) -> typing.Any: ...

    def __setitem__(self, arg0: object, arg1: object, /) -> None: ...

    def __dlpack__(self, *, stream: object | None = None, max_version: object | None = None, dl_device: object | None = None, copy: object | None = None) -> typing.Any: ...

    def __dlpack_device__(self) -> tuple[int, int]: ...

    @property
    def __cuda_array_interface__(self) -> dict[str, typing.Any]: ...

    def __reduce_ex__(self, protocol: object) -> typing.Any: ...

    def __copy__(self) -> ManagedBuffer: ...

    def __deepcopy__(self, memo: object) -> ManagedBuffer: ...

    def __repr__(self) -> str: ...

class MigrationPolicy:
    """
    Where pages of managed memory should be, and which places keep them mapped.

    An immutable value. Make one with a static method and apply it with :meth:`Hints.apply`.
    A place is ``'host'``, ``'host numa 1'``, a Device, or the spec of a device.
    """

    def __init__(self) -> None: ...

    @staticmethod
    def none() -> MigrationPolicy:
        """
        Return the driver's own policy: pages move to the processor that touches them.
        """

    @staticmethod
    def read_mostly() -> MigrationPolicy:
        """Return a policy that lets every reader have a copy of a page."""

    @staticmethod
    def prefer_device(device: object) -> MigrationPolicy:
        """Return a policy that keeps pages on a device."""

    @staticmethod
    def prefer_host() -> MigrationPolicy:
        """Return a policy that keeps pages on the host."""

    @staticmethod
    def prefer_host_numa(node: object) -> MigrationPolicy:
        """Return a policy that keeps pages on one NUMA node of the host."""

    @staticmethod
    def prefer_host_numa_current() -> MigrationPolicy:
        """
        Return a policy that keeps pages on the NUMA node of the thread that applies it.
        """

    def accessed_by(self, place: object) -> MigrationPolicy:
        """Return this policy with one more place that keeps the pages mapped."""

    @property
    def is_default(self) -> bool:
        """Whether applying the policy does nothing."""

    @property
    def is_read_mostly(self) -> bool:
        """Whether every reader may have a copy of a page."""

    @property
    def preferred(self) -> typing.Any:
        """The place where pages should stay, or None."""

    @property
    def accessors(self) -> list[str]:
        """The places that keep the pages mapped."""

    def __eq__(self, arg: object, /) -> bool: ...

    def __hash__(self) -> int: ...

    def __str__(self) -> str: ...

    def __repr__(self) -> str: ...

class HintRange:
    """The bytes that a hint is about, and those that share their pages."""

    def __init__(self, offset_bytes: object, bytes: object) -> None: ...

    @property
    def offset_bytes(self) -> int:
        """The first byte."""

    @property
    def bytes(self) -> int:
        """The number of bytes."""

    @property
    def before_bytes(self) -> int:
        """How many bytes before the range the hint affects too."""

    @property
    def after_bytes(self) -> int:
        """How many bytes after the range the hint affects too."""

    def __eq__(self, arg: object, /) -> bool: ...

    def __repr__(self) -> str: ...

class HintReport:
    """What a hint did."""

    @property
    def is_sent(self) -> bool:
        """Whether the hint reached the driver."""

    @property
    def skipped(self) -> typing.Any:
        """Why the hint did not reach the driver, as a sentence; None if it did."""

    @property
    def range(self) -> HintRange:
        """The bytes that the hint is about."""

    @property
    def moved_bytes(self) -> int | None:
        """The bytes that move, for a unified buffer; None for managed memory."""

    def __repr__(self) -> str: ...

class ManagedInfo:
    """The settings of managed memory that the driver reports."""

    @property
    def is_read_mostly(self) -> bool:
        """Whether every reader may have a copy of a page."""

    @property
    def accessed_by(self) -> list[str]:
        """The places that keep the pages mapped."""

    @property
    def preferred(self) -> typing.Any:
        """The preferred place, or None."""

    @property
    def last_prefetch(self) -> typing.Any:
        """The place of the last prefetch, or None."""

    @property
    def is_read_mostly_mixed(self) -> bool:
        """Whether parts of the range differ in is_read_mostly."""

    @property
    def is_preferred_mixed(self) -> bool:
        """Whether parts of the range differ in preferred."""

    @property
    def is_accessed_by_mixed(self) -> bool:
        """Whether parts of the range differ in accessed_by."""

    @property
    def is_last_prefetch_mixed(self) -> bool:
        """Whether parts of the range differ in last_prefetch."""

    def __repr__(self) -> str: ...

class HintUndo:
    """
    The settings from before a policy was applied. In a ``with`` statement they are restored at the end.
    """

    @property
    def report(self) -> HintReport:
        """What the policy did."""

    def restore(self) -> None:
        """Restore the settings that the policy has changed."""

    def __enter__(self) -> HintUndo: ...

    def __exit__(self, *args: object) -> None: ...

class Hints:
    """
    Tells the driver how managed memory will be used.

    A hint covers the whole buffer, or the bytes of ``range``: a tuple (offset_bytes, bytes). Drivers
    apply hints to whole pages. A hint that the device does not support is skipped, and the report
    says why.

    Parameters
    ----------
    buffer : ManagedBuffer or Buffer
        The memory, which stays allocated as long as this object.
    strict : bool
        Raise UnsupportedError for a hint that the device does not support.
    """

    def __init__(self, buffer: object, *, strict: bool = False) -> None: ...

    @staticmethod
    def over(device: object, address: int, bytes: object, owner: object | None, *, strict: bool = False) -> Hints:
        """
        Return hints on managed memory of another library.

        Parameters
        ----------
        device : Device or str
        address : int
        bytes : int
        owner : object
            Keeps the memory alive. The hints hold a reference to it.
        strict : bool
        """

    @property
    def buffer(self) -> Buffer:
        """The memory as a Buffer."""

    @property
    def strict(self) -> bool:
        """Whether unsupported hints raise."""

    def effective_range(self, range: object | None = None) -> HintRange:
        """
        Return the bytes that a hint on the range would affect. Allocates the memory.
        """

    def set_read_mostly(self, range: object | None = None) -> HintReport:
        """Let every reader have a copy of a page."""

    def unset_read_mostly(self, range: object | None = None) -> HintReport:
        """Undo set_read_mostly()."""

    def set_preferred_location(self, place: object, range: object | None = None) -> HintReport:
        """Keep the pages in a place."""

    def unset_preferred_location(self, range: object | None = None) -> HintReport:
        """Remove the preferred place."""

    def set_accessed_by(self, place: object, range: object | None = None) -> HintReport:
        """Keep the pages mapped for a place."""

    def unset_accessed_by(self, place: object, range: object | None = None) -> HintReport:
        """Do not keep the pages mapped for a place any more."""

    def apply(self, policy: MigrationPolicy, range: object | None = None, *, place: object | None = None) -> HintUndo:
        """
        Apply a policy, all of it or nothing.

        Parameters
        ----------
        policy : MigrationPolicy
        range : tuple of int, optional
        place : str or Device, optional
            Raise DeviceMismatchError if the policy prefers another place.

        Returns
        -------
        HintUndo
            Restores the settings from before.
        """

    def query(self, range: object | None = None) -> ManagedInfo:
        """
        Return the settings that the driver reports. Raises UnsupportedError on a device without advice.
        """

    def prefetch(self, place: object, stream: object | None = None, range: object | None = None) -> HintReport:
        """Move the pages to a place, in stream order. Returns a HintReport."""

    def discard(self, stream: object | None = None, range: object | None = None) -> HintReport:
        """
        Say that the bytes are no longer needed: they count as never written. Returns a HintReport.
        """

    def discard_prefetch(self, place: object, stream: object | None = None, range: object | None = None) -> HintReport:
        """
        Discard the bytes and move the empty pages to a place. Returns a HintReport.
        """

class PrefetchPlan:
    """
    A list of memory and the places that it should move to. Made once, executed any number of times.
    """

    def __init__(self) -> None: ...

    class Report:
        """What an execution did, counted in entries."""

        @property
        def sent(self) -> int:
            """Entries that were sent."""

        @property
        def skipped(self) -> int:
            """
            Entries of which nothing had to move, or that the device does not support.
            """

        @property
        def bytes(self) -> int:
            """Bytes sent, and for unified buffers bytes that move."""

        def __repr__(self) -> str: ...

    def add(self, memory: object, place: object, range: object | None = None) -> PrefetchPlan:
        """
        Add an entry. If it fails, the plan stays as it was.

        Parameters
        ----------
        memory : ManagedBuffer, Buffer or UnifiedBuffer
        place : str or Device
        range : tuple of int, optional
            (offset_bytes, bytes); by default all bytes.

        Returns
        -------
        PrefetchPlan
            The plan itself.
        """

    def __len__(self) -> int: ...

    @property
    def entries(self) -> list[str]:
        """One line of text for each entry, in the order of adding."""

    def merged(self) -> PrefetchPlan:
        """Return an equivalent plan with as few entries as possible."""

    @property
    def peaks(self) -> dict[str, typing.Any]:
        """
        The largest number of bytes that the plan has at each place at one time, by place.
        """

    def check(self, place: object, budget: Budget) -> int:
        """
        Return the peak at a place, or raise OutOfBudgetError if it does not fit into the budget.
        """

    def execute(self, stream: object | None = None, *, strict: bool = False) -> PrefetchPlan.Report:
        """
        Queue all prefetches.

        Parameters
        ----------
        stream : Stream or list of Stream, optional
            One stream, or one for each device.
        strict : bool
            Raise UnsupportedError for an entry that the device does not support.

        Returns
        -------
        PrefetchPlan.Report
        """

    def __str__(self) -> str: ...

    def __repr__(self) -> str: ...

class Use:
    """
    Memory together with what a kernel does to it. Made by :func:`in_`, :func:`out` and :func:`inout`.
    """

    @property
    def memory(self) -> typing.Any:
        """The Buffer, UnifiedBuffer or ManagedBuffer."""

    @property
    def access(self) -> str:
        """``'in_'``, ``'out'`` or ``'inout'``."""

    def __repr__(self) -> str: ...

def in_(memory: object) -> Use:
    """
    Declare that a kernel reads the memory.

    Parameters
    ----------
    memory : Buffer, Array, UnifiedBuffer or ManagedBuffer

    Returns
    -------
    Use
    """

def out(memory: object) -> Use:
    """
    Declare that a kernel overwrites all of the memory and reads none of it.

    Parameters
    ----------
    memory : Buffer, Array, UnifiedBuffer or ManagedBuffer

    Returns
    -------
    Use
    """

def inout(memory: object) -> Use:
    """
    Declare that a kernel reads and writes the memory, or writes a part of it.

    Parameters
    ----------
    memory : Buffer, Array, UnifiedBuffer or ManagedBuffer

    Returns
    -------
    Use
    """

class Elements:
    """
    The size of a launch with one thread for each element. Made by :func:`elements`.
    """

    @property
    def count(self) -> int:
        """The number of elements."""

    @property
    def block_threads(self) -> int:
        """Threads of a block; 0 for a number that suits the kernel."""

def elements(count: object, block_threads: object = 0) -> Elements:
    """
    Return the size of a launch with one thread for each element.

    The last block may have more threads than elements are left, so pass the count to the kernel too.

    Parameters
    ----------
    count : int
    block_threads : int
        0 uses a number that suits the kernel.

    Returns
    -------
    Elements
    """

class LaunchSize:
    """
    The grid and block sizes of a launch.

    Parameters
    ----------
    grid : int or tuple of int
        Blocks along up to three axes.
    block : int or tuple of int
        Threads of a block along up to three axes.
    shared_bytes : int
        Dynamic shared memory of a block.
    """

    def __init__(self, grid: object, block: object, shared_bytes: object = 0) -> None: ...

    @property
    def grid(self) -> tuple[typing.Any, ...]:
        """Blocks along each axis."""

    @property
    def block(self) -> tuple[typing.Any, ...]:
        """Threads of a block along each axis."""

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block."""

    def __repr__(self) -> str: ...

class Kernel:
    """
    Code that runs on a device. Each launch declares what the kernel does with its arguments.

    Make one with :meth:`from_text`, :meth:`from_function`, :meth:`from_source` or :meth:`from_image`.
    """

    @staticmethod
    def from_function(device: object, function: object, name: str | None = None) -> Kernel:
        """
        Make a kernel of a Python function, for the host and for simulated devices.

        Each launch calls the function once. The function gets a NumPy array for each declared memory, read-only for
        :func:`in_`, and all other arguments as they were passed. It must not call the device.

        If the function raises, the exception is raised by the next call of the launching thread that waits, or by a
        call of another thread that waits for the stream or reads memory of the device.

        Parameters
        ----------
        device : Device or str
        function : callable
        name : str, optional
            By default the name of the function.

        Returns
        -------
        Kernel
        """

    @staticmethod
    def from_source(device: object, text: str, entry: str, options: str = '') -> Kernel:
        """
        Compile a kernel: OpenCL C on OpenCL devices, CUDA C++ on CUDA devices.

        A simulated device checks the order of the launches, and runs no code of the text.

        Parameters
        ----------
        device : Device or str
        text : str
        entry : str
            The name of the kernel in the text.
        options : str
            Options of the device's compiler.

        Returns
        -------
        Kernel
        """

    @staticmethod
    def from_text(device: object, text: str, entry: str = '') -> Kernel:
        """
        Load a portable kernel, on any device.

        The text declares what the kernel does with its parameters, so a launch takes memory without in_(), out()
        or inout(), and Python numbers. Host devices compile the text with the C++ compiler of the system, once: the
        result is kept on disk. Simulated devices interpret it, and report its mistakes with their lines.

        Parameters
        ----------
        device : Device or str
        text : str
            One or more kernels.
        entry : str
            The name of the kernel; may be left out if there is one.

        Returns
        -------
        Kernel
        """

    @staticmethod
    def from_image(device: object, image: object, entry: str) -> Kernel:
        """
        Load a kernel from PTX or a cubin.

        Parameters
        ----------
        device : Device or str
        image : bytes or str
        entry : str

        Returns
        -------
        Kernel
        """

    @property
    def name(self) -> str:
        """The name, for reports."""

    @property
    def device(self) -> Device:
        """The device."""

    @property
    def info(self) -> dict[str, typing.Any]:
        """What the device knows about the parameters."""

    def launch(self, stream: object | None, size: object | None, *arguments: object) -> Mark:
        """
        Launch the kernel in stream order, after the work that its declared uses need.

        Parameters
        ----------
        stream : Stream or None
            None means the default stream of the device.
        size : int, Elements, LaunchSize or None
            An integer means elements(n). None means one thread for each element, for portable
            element kernels and reductions.
        *arguments
            Memory as in_(x), out(x) or inout(x). Values of compiled kernels are NumPy scalars.

        Returns
        -------
        Mark
            The end of the launch.
        """

    def __repr__(self) -> str: ...

def fence_to(theirs: Stream, ours: Stream) -> None:
    """Make later work on ``theirs`` wait for all work on ``ours`` so far."""

def fence_from(theirs: Stream, ours: Stream) -> None:
    """Make later work on ``ours`` wait for all work on ``theirs`` so far."""

class LogicalType:
    """
    What the values of a column mean: numbers, booleans, times or texts.

    Parameters
    ----------
    kind : str or dtype-like
        A name such as ``'i32'``, ``'bool'``, ``'utf8'`` or ``'date32'``, or a dtype of NumPy.
    """

    def __init__(self, kind: object) -> None: ...

    @staticmethod
    def time(unit: str) -> LogicalType:
        """Return the type of a time of day. The unit is 's', 'ms', 'us' or 'ns'."""

    @staticmethod
    def timestamp(unit: str, zone: str = '') -> LogicalType:
        """Return the type of a time since 1970, in UTC if a zone is given."""

    @staticmethod
    def duration(unit: str) -> LogicalType:
        """Return the type of a duration."""

    @property
    def kind(self) -> str:
        """The name of the kind."""

    @property
    def unit(self) -> str:
        """The unit of time."""

    @property
    def zone(self) -> str:
        """The time zone, or an empty text."""

    @property
    def is_variable(self) -> bool:
        """Whether values have different lengths."""

    @property
    def dtype(self) -> typing.Any:
        """The dtype of the elements in memory."""

    def __eq__(self, arg: object, /) -> bool: ...

    def __hash__(self) -> int: ...

    def __str__(self) -> str: ...

    def __repr__(self) -> str: ...

class Field:
    """
    One field of a schema.

    Parameters
    ----------
    name : str
    type : LogicalType, str or dtype-like
    nullable : bool
    metadata : dict of str, optional
    """

    def __init__(self, name: str, type: object, nullable: bool = True, metadata: object | None = None) -> None: ...

    @property
    def name(self) -> str:
        """The name."""

    @property
    def type(self) -> LogicalType:
        """The type of the values."""

    @property
    def nullable(self) -> bool:
        """Whether values may be missing."""

    @property
    def metadata(self) -> dict[str, typing.Any]:
        """The metadata, as a new dict."""

    def __arrow_c_schema__(self) -> typing.Any:
        """Export the field to another library."""

    def __eq__(self, arg: object, /) -> bool: ...

    def __repr__(self) -> str: ...

class Schema:
    """
    The fields of a table in order.

    Parameters
    ----------
    fields : list of Field, list of (name, type), or an object with ``__arrow_c_schema__``
    metadata : dict of str, optional
    """

    def __init__(self, fields: object, metadata: object | None = None) -> None: ...

    @property
    def fields(self) -> list[Field]:
        """The fields."""

    @property
    def names(self) -> list[typing.Any]:
        """The names of the fields."""

    @property
    def metadata(self) -> dict[str, typing.Any]:
        """The metadata, as a new dict."""

    def __len__(self) -> int: ...

    def check_match(self, wanted: object, *, allows_sign_change: bool = False, allows_symbol_as_number: bool = False) -> None:
        """
        Raise an error that names the field, unless data of this schema can be used as data of the schema ``wanted``.
        """

    def __arrow_c_schema__(self) -> typing.Any:
        """Export the schema to another library."""

    def __eq__(self, arg: object, /) -> bool: ...

    def __repr__(self) -> str: ...

class Column:
    """
    Values of one type in memory of one device. Values may be missing.

    Parameters
    ----------
    values : array-like or list
        Numbers, booleans, times, or str, bytes and None. They are copied to the device.
    type : LogicalType, str or dtype-like, optional
        By default the type of the values.
    device : Device or str, optional
    valid : array-like of bool, optional
        False for each value that is missing.
    tag : str, optional
        A name for reports.
    """

    def __init__(self, values: object, type: object | None = None, device: object | None = None, *, valid: object | None = None, tag: str | None = None) -> None: ...

    def __array__(self, dtype: object | None = None, copy: object | None = None) -> npt.NDArray[typing.Any]: ...

    @staticmethod
    def allocate(type: object, capacity: object, device: object | None = None, *, nullable: bool = False, data_bytes: object = 0) -> Column:
        """Allocate a column of ``capacity`` values, to be written by kernels."""

    @staticmethod
    def over(type: object, capacity: object, values: Buffer, *, validity: Buffer | None = None, offsets: Buffer | None = None, first: object = 0, null_count: int | None = None) -> Column:
        """Make a column over existing buffers. Copies nothing."""

    @staticmethod
    def pack(booleans: Buffer) -> Column:
        """Convert booleans of one byte each to a column of bits."""

    @property
    def type(self) -> LogicalType:
        """The type of the values."""

    @property
    def capacity(self) -> int:
        """The number of values that the column has room for."""

    def __len__(self) -> int: ...

    @property
    def device(self) -> typing.Any:
        """The device; None for a column without bytes."""

    @property
    def is_nullable(self) -> bool:
        """Whether there is a validity bitmap."""

    @property
    def is_external(self) -> bool:
        """Whether another library owns the memory."""

    @property
    def null_count(self) -> int | None:
        """The number of missing values; None if they were not counted."""

    def count_nulls(self, rows: object | None = None) -> int:
        """
        Return how many of the first rows are missing. Reads the bitmap if that is not known.
        """

    @property
    def values(self) -> typing.Any:
        """
        The values as a Buffer, for kernels; bits for booleans, bytes for texts.
        """

    @property
    def validity(self) -> typing.Any:
        """
        The validity bitmap, or None if no value is missing. A program may write it; the column then counts its nulls again.
        """

    @property
    def offsets(self) -> typing.Any:
        """The offsets of texts, or None."""

    @property
    def nbytes(self) -> int:
        """The bytes of all buffers at full capacity."""

    def slice(self, first: object, count: object) -> Column:
        """Return values [first, first + count) in the same memory."""

    def unpack(self) -> Buffer:
        """Convert a column of bits to a Buffer with one byte for each value."""

    def copy_to(self, device: object, stream: object | None = None) -> Column:
        """
        Copy the column to new memory on a device. Without a stream the host waits.
        """

    def valid(self) -> typing.Any:
        """Return an array of bool, False for each value that is missing."""

    def to_numpy(self) -> npt.NDArray[typing.Any]:
        """
        Return an independent NumPy array. Elements of missing values are unspecified.
        """

    def to_pylist(self) -> list[typing.Any]:
        """Return a list of Python values, with None for missing ones."""

    def __arrow_c_schema__(self) -> typing.Any:
        """Export the type to another library."""

    def __arrow_c_array__(self, requested_schema: object | None = None) -> tuple[typing.Any, ...]:
        """
        Export the values to another library. Raises ArrowRejectedError for memory that the host cannot read.
        """

    def __arrow_c_device_array__(self, requested_schema: object | None = None, **kwargs: object) -> tuple[typing.Any, ...]:
        """Export the values to another library, in memory of any device."""

    def __repr__(self) -> str: ...

class Table:
    """
    Columns of equal length on one device, with a schema and a row count.

    Parameters
    ----------
    schema : Schema, list of fields, or dict
        A dict of names and columns needs no second argument.
    columns : list of Column, optional
    rows : int, optional
        The row count; by default all rows are filled.
    row_count : Buffer, optional
        The row count in device memory: one uint32 or uint64 that kernels write.
    """

    def __init__(self, schema: object, columns: object | None = None, *, rows: int | None = None, row_count: Buffer | None = None) -> None: ...

    @staticmethod
    def allocate(schema: object, capacity: object, device: object | None = None, *, data_bytes: object = 0) -> Table:
        """
        Allocate a table, to be written by kernels. The row count is on the device.
        """

    @staticmethod
    def concat(tables: Sequence[Table]) -> Table:
        """Return the rows of several tables one after the other, in new memory."""

    @property
    def schema(self) -> Schema:
        """The schema."""

    @property
    def columns(self) -> list[Column]:
        """The columns."""

    @property
    def names(self) -> list[typing.Any]:
        """The names of the columns."""

    def column(self, key: object) -> Column:
        """Return a column by its index or name."""

    def __getitem__(self, arg: object, /) -> Column: ...

    @property
    def device(self) -> typing.Any:
        """The device; None if no column has a byte."""

    @property
    def arity(self) -> int:
        """The number of columns."""

    @property
    def capacity(self) -> int:
        """The number of rows that the columns have room for."""

    @property
    def nbytes(self) -> int:
        """The bytes of all columns at full capacity."""

    @property
    def rows(self) -> int | None:
        """The row count if the host knows it, else None. Never waits."""

    def rows_host(self) -> int:
        """
        Return the row count. Waits for the kernel that writes it, if the host does not know it.
        """

    def __len__(self) -> int: ...

    @property
    def row_count(self) -> typing.Any:
        """
        The integer that kernels read and write, or None if only the host has the count.
        """

    def set_rows(self, rows: object, stream: object | None = None) -> None:
        """Set the row count, in stream order."""

    def select(self, columns: object) -> Table:
        """
        Return a table of these columns, by names or by indices, in the same memory.
        """

    def slice(self, first: object, count: object) -> Table:
        """Return rows [first, first + count) in the same memory."""

    def copy_to(self, device: object, stream: object | None = None) -> Table:
        """
        Copy the table to new memory on a device. Without a stream the host waits.
        """

    def __arrow_c_schema__(self) -> typing.Any:
        """Export the schema to another library."""

    def __arrow_c_array__(self, requested_schema: object | None = None) -> tuple[typing.Any, ...]:
        """
        Export the rows to another library. Raises ArrowRejectedError for memory that the host cannot read.
        """

    def __arrow_c_device_array__(self, requested_schema: object | None = None, **kwargs: object) -> tuple[typing.Any, ...]:
        """Export the rows to another library, in memory of any device."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> typing.Any:
        """Export the rows to another library as a stream of one chunk."""

    def __arrow_c_device_stream__(self, requested_schema: object | None = None, **kwargs: object) -> typing.Any:
        """Export the rows as a stream of one chunk, in memory of any device."""

    def __repr__(self) -> str: ...

def from_arrow(x: object, *, device: object | None = None, tag: str | None = None, checks_text: bool = False) -> typing.Any:
    """
    Import an Arrow array, table or stream of another library without a copy.

    Several chunks of a stream are copied together, and text views are copied into offsets.

    Parameters
    ----------
    x : object
        With ``__arrow_c_device_array__``, ``__arrow_c_array__``, ``__arrow_c_device_stream__`` or ``__arrow_c_stream__``.
    device : Device or str, optional
        Where the memory is; by default as the array says.
    tag : str, optional
        A name for reports.
    checks_text : bool
        Check that every text is UTF-8.

    Returns
    -------
    Table or Column
        A struct becomes a Table.
    """

class TransferCounts:
    """
    How many copies of buffers moved how many bytes, by direction and purpose.

    Subtract two readings of :func:`transfer_counts` to see what a piece of code moved.
    """

    @property
    def host_to_device(self) -> dict[str, typing.Any]:
        """``{'copies', 'bytes'}`` from the host to devices."""

    @property
    def device_to_host(self) -> dict[str, typing.Any]:
        """``{'copies', 'bytes'}`` from devices to the host."""

    @property
    def device_to_device(self) -> dict[str, typing.Any]:
        """``{'copies', 'bytes'}`` within a device."""

    @property
    def between_devices(self) -> dict[str, typing.Any]:
        """``{'copies', 'bytes'}`` from one device to another."""

    def at(self, direction: str, purpose: str | None = None) -> dict[str, typing.Any]:
        """
        Return the count of a direction, or of a direction and a purpose.

        Parameters
        ----------
        direction : {'host_to_device', 'device_to_host', 'device_to_device', 'between_devices'}
        purpose : {'scalar', 'metadata', 'data', 'result'}, optional

        Returns
        -------
        dict
        """

    def __sub__(self, arg: TransferCounts, /) -> TransferCounts: ...

    def __eq__(self, arg: object, /) -> bool: ...

    def __repr__(self) -> str: ...

def transfer_counts(tag: str | None = None) -> TransferCounts:
    """
    Return what copies of buffers have moved in this process so far.

    Parameters
    ----------
    tag : str, optional
        Count only memory with this tag.

    Returns
    -------
    TransferCounts
    """

def transfer_counts_by_tag() -> dict[str, typing.Any]:
    """Return the counts of each tag, as a dict of TransferCounts."""

def transfer_counts_of_other_tags() -> TransferCounts:
    """Return the counts of the tags that are not counted separately."""

def transfer_gate_statistics() -> dict[str, typing.Any]:
    """
    Return the copies that all gates refused or counted, and the Python line of the latest one.
    """

def deferred_frees() -> dict[str, typing.Any]:
    """
    Return the number and the bytes of blocks whose buffers are deleted but whose memory is still in use.
    """

def reclaim_deferred() -> dict[str, typing.Any]:
    """
    Free memory of deleted buffers that no work uses any more. Does not wait. Returns what is left.
    """

def reclaim_exported() -> dict[str, typing.Any]:
    """
    Wait for the devices of exported memory without handles, and free the memory. Returns what is left.

    Another library may use memory on streams that Tern does not know, so exported memory is freed only after a
    wait for its device.
    """

class TransferGate:
    """
    A ``with`` block in which copies of data from devices to the host raise DownloadRefusedError.

    Scalars and metadata of up to 4,096 bytes may be read. A gate covers one thread. Gates nest, and the
    strictest one applies; inside of a gate with ``mode='allow'`` the gates around it do not apply.

    Parameters
    ----------
    mode : {'refuse', 'count', 'allow'}
        ``'count'`` lets copies through and counts them.
    """

    def __init__(self, mode: str = 'refuse') -> None: ...

    @property
    def violations(self) -> dict[str, typing.Any]:
        """What the gate refused or counted."""

    @property
    def small_reads(self) -> dict[str, typing.Any]:
        """The scalars and metadata that passed."""

    def __enter__(self) -> TransferGate: ...

    def __exit__(self, *args: object) -> None: ...

class Array:
    """
    Elements in memory of a device, along one axis. Memory is allocated at once, and can grow.

    Copies of the handle and slices share the memory. A Buffer has any shape; an Array can be resized.

    Parameters
    ----------
    values : array-like
        One axis. The elements are copied to the device.
    dtype : dtype-like, optional
        By default that of the values.
    device : Device or str, optional
    tag : str, optional
        A name for reports.
    resource : Resource, optional
        Where the memory comes from.
    """

    def __init__(self, values: object, dtype: object | None = None, device: object | None = None, *, tag: str | None = None, resource: Resource | None = None) -> None: ...

    @staticmethod
    def uninitialized(count: object, dtype: object | None = None, device: object | None = None, *, tag: str | None = None, resource: Resource | None = None) -> Array:
        """
        Allocate elements without a value. Reading one before it is written raises NeverWrittenError.
        """

    @staticmethod
    def zeros(count: object, dtype: object | None = None, device: object | None = None, *, tag: str | None = None, resource: Resource | None = None) -> Array:
        """Allocate elements whose bytes are all 0."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of elements, as a tuple."""

    @property
    def dtype(self) -> typing.Any:
        """The type of an element."""

    @property
    def size(self) -> int:
        """The number of elements."""

    @property
    def numel(self) -> int:
        """The number of elements."""

    @property
    def nbytes(self) -> int:
        """The number of bytes."""

    @property
    def capacity(self) -> int:
        """
        The number of elements up to which resize() can grow the array in place.
        """

    @property
    def device(self) -> Device:
        """The device."""

    @property
    def ptr(self) -> int:
        """The address of the first element."""

    @property
    def buffer(self) -> Buffer:
        """The elements as a Buffer in the same memory."""

    def __len__(self) -> int: ...

    def slice(self, first: object, count: object) -> Array:
        """Return elements [first, first + count) in the same memory."""

    def resize(self, count: object, stream: object | None = None) -> None:
        """
        Change the number of elements, in stream order. Existing elements keep their values; new ones have none.

        Grows in place if the memory is large enough and no other handle uses it. Otherwise other handles keep the old memory.
        """

    def fill(self, value: object, stream: object | None = None) -> Array:
        """Set every element, in stream order. Returns the array."""

    def copy_from(self, values: object) -> None:
        """
        Copy elements of the same number in; NumPy's same-kind casts are allowed.
        """

    def to_numpy(self) -> npt.NDArray[typing.Any]:
        """Return an independent NumPy array with the elements."""

    def __array__(self, dtype: object | None = None, copy: object | None = None) -> npt.NDArray[typing.Any]: ...

    def __dlpack__(self, *, stream: object | None = None, max_version: object | None = None, dl_device: object | None = None, copy: object | None = None) -> typing.Any: ...

    def __dlpack_device__(self) -> tuple[int, int]: ...

    def __repr__(self) -> str: ...

def open_file(path: str | os.PathLike[str], dtype: object | None = None, shape: object | None = None, *, offset: int = 0, map: bool = False, writable: bool = False, create: bool = False, tag: str | None = None) -> Buffer:
    """
    Open a file as a Buffer. Reads nothing.

    ``weights.copy_from(file, stream)`` queues a copy and returns immediately: the file is read in the background, in the order of the stream. ``file.copy_from(weights, stream)`` writes. A failure is raised by the next synchronize() of the stream.

    Parameters
    ----------
    path : str or os.PathLike
    dtype : dtype-like, default uint8
    shape : int or sequence of int, optional
        By default one dimension, up to the end of the file.
    offset : int
        The first byte.
    map : bool
        Map the file now, for access by the host. By default the host reads the file at its first access.
    writable : bool
        Open for reading and writing. By default writing raises ReadOnlyError.
    create : bool
        Like ``writable``, and make the file, or extend it, if it is missing or shorter. Needs ``shape``.
    tag : str, optional
        A name for reports.

    Returns
    -------
    Buffer
    """

def flush(file: Buffer) -> None:
    """
    Wait until all writes to a file from open_file() are on the disk. Raises FileError if a write failed.
    """

class GrowingArray:
    """
    An array at whose end elements are added, and whose addresses never change.

    Reserves addresses, and backs them with pages as it grows, so growing copies nothing. Elements can be removed only while no Array, Buffer or other handle shares the memory.

    Parameters
    ----------
    dtype : dtype-like, default float32
    device : Device or str, optional
        By default the current device.
    reserved_bytes : int, optional
        The size that the array cannot exceed. By default the memory of the device.
    budget : Budget, optional
        Charged for pages, not for addresses.
    tag : str, optional
        A name for reports.
    """

    def __init__(self, dtype: object | None = None, device: object | None = None, *, reserved_bytes: int | None = None, budget: Budget | None = None, tag: str | None = None) -> None: ...

    def append(self, values: object, stream: object | None = None) -> None:
        """
        Add copies of elements.

        Elements of a Buffer, an Array or a GrowingArray are copied in stream order. Elements of the host are copied before the call returns.
        """

    def push_back(self, value: object, stream: object | None = None) -> None:
        """Add one element, in stream order."""

    def resize(self, count: object, stream: object | None = None) -> None:
        """
        Change the number of elements. New elements have no value. Removing elements keeps the memory.
        """

    def reserve(self, count: object, stream: object | None = None) -> None:
        """
        Provide memory for at least so many elements. Does not change the size.
        """

    def clear(self) -> None:
        """Remove all elements and keep the memory."""

    def shrink_to_fit(self, stream: object | None = None) -> None:
        """
        Free the memory behind the elements, once the streams that used it are done. The host does not wait.
        """

    def reclaim(self) -> int:
        """Free pending pages whose last users are done. Returns the bytes."""

    def slice(self, first: object, count: object) -> Array:
        """Return elements [first, first + count) in the same memory."""

    @property
    def array(self) -> Array:
        """The elements of now as an Array in the same memory."""

    @property
    def buffer(self) -> Buffer:
        """The elements of now as a Buffer in the same memory."""

    def to_numpy(self) -> npt.NDArray[typing.Any]:
        """Return an independent NumPy array with the elements."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of elements, as a tuple."""

    @property
    def dtype(self) -> typing.Any:
        """The type of an element."""

    @property
    def size(self) -> int:
        """The number of elements."""

    @property
    def nbytes(self) -> int:
        """The number of bytes."""

    @property
    def capacity(self) -> int:
        """The number of elements for which there is memory."""

    @property
    def max_size(self) -> int:
        """The number of elements that the array can have at most."""

    @property
    def resident_bytes(self) -> int:
        """The memory that the array holds, which a budget is charged."""

    @property
    def pending_bytes(self) -> int:
        """The part of resident_bytes that is freed once its last users are done."""

    @property
    def reserved_bytes(self) -> int:
        """The addresses, which take no memory."""

    @property
    def moved_bytes(self) -> int:
        """
        The bytes that were copied to new memory: 0 on devices with virtual memory.
        """

    @property
    def device(self) -> Device:
        """The device."""

    @property
    def ptr(self) -> int:
        """The address of the first element; 0 without elements."""

    def __len__(self) -> int: ...

    def __repr__(self) -> str: ...

class Scalar:
    """
    One value in memory of a device, which streams set and get in their order.

    Parameters
    ----------
    value : number, optional
        By default the scalar has no value.
    dtype : dtype-like, default float32
    device : Device or str, optional
        By default the current device.
    stream : Stream, optional
        Sets the value.
    tag : str, optional
        A name for reports.
    """

    def __init__(self, value: object | None = None, dtype: object | None = None, device: object | None = None, stream: object | None = None, *, tag: str | None = None) -> None: ...

    def set(self, value: object, stream: object | None = None) -> None:
        """Set the value, in stream order. The host does not wait."""

    def get(self, stream: object | None = None) -> typing.Any:
        """
        Return the value that earlier work of the stream leaves, as a Python number. Waits for that work.

        Raises NeverWrittenError before the first set().
        """

    @property
    def array(self) -> Array:
        """The value as an Array of one element in the same memory."""

    @property
    def dtype(self) -> typing.Any:
        """The type of the value."""

    @property
    def device(self) -> Device:
        """The device."""

    def __repr__(self) -> str: ...

class PausableResource(Resource):
    """
    Memory whose pages can leave the device and come back, while its addresses stay.

    Parameters
    ----------
    device : Device or str, optional
        By default the current device.
    budget : Budget, optional
        Charged for the pages that are on the device.
    directory : str
        Where ``pause(keep='disk')`` writes files, which have no names.
    verify : bool
        Compare checksums when bytes come back.
    """

    def __init__(self, device: object | None = None, *, budget: Budget | None = None, directory: str = '/var/tmp', verify: bool = True) -> None: ...

    def pause(self, what: object | None = None, *, keep: str = 'host', after: object | None = None) -> None:
        """
        Let memory leave the device behind all work that uses it. Does not wait.

        Parameters
        ----------
        what : str, Buffer or Array, optional
            A tag, or one piece of memory. Without it, everything.
        keep : {'host', 'disk', 'nothing'}
            Where the bytes are meanwhile.
        after : Stream, optional
            A stream whose work uses the memory by its address.
        """

    def resume(self, what: object | None = None, *, stream: object | None = None) -> None:
        """
        Bring the bytes back to the same addresses: all of them, or none if there is too little memory.

        Parameters
        ----------
        what : str, Buffer or Array, optional
            A tag, or one piece of memory. Without it, everything.
        stream : Stream, optional
            Its later work comes after the bytes.
        """

    def reclaim(self) -> int:
        """
        Free pages whose bytes have left. Returns the number of bytes. Does not wait.
        """

    def wait(self) -> None:
        """Wait until the pages of everything that is paused are freed."""

    @property
    def pause_statistics(self) -> dict[str, typing.Any]:
        """
        The bytes of addresses, of pages on the device, and of what is paused, as a dict.
        """

class LaunchRecorder:
    """
    Declares the memory of launches that Tern does not make: by CuPy, Numba, Triton or a driver.

    A ``with`` statement returns a DeviceArray for each use. The stream waits for the work that the uses
    need, and later uses wait for what was submitted in the block.

    >>> with tern.LaunchRecorder(stream, tern.in_(x), tern.inout(y)) as (a, b):  # doctest: +SKIP
    ...     kernel(a, b)

    If the block raises, later work still waits for the block, and a Buffer does not count as written.

    Parameters
    ----------
    stream : Stream, int, or an object with ``__cuda_stream__``
        The stream of the launches; None for the default stream.
    *uses : Use
        in_(x), out(x) or inout(x).
    device : Device or str, optional
        By default the device of the first use.
    permissive : bool
        Skip memory whose uses cannot be tracked, instead of raising UntrackedBufferError.
    """

    def __init__(self, stream: object | None, *uses: object, device: object | None = None, permissive: bool = False) -> None: ...

    def preflight(self) -> tuple[typing.Any, ...]:
        """Check all uses and queue the waits. Returns a tuple of DeviceArray."""

    def commit(self) -> None:
        """Record the uses, after the launches were submitted."""

    def cancel(self) -> None:
        """End the recorder without a launch. Nothing counts as used."""

    @property
    def skipped(self) -> int:
        """The number of uses that were skipped."""

    def __len__(self) -> int: ...

    def __enter__(self) -> tuple[typing.Any, ...]: ...

    def __exit__(self, type: object | None = None, value: object | None = None, traceback: object | None = None) -> None: ...

def launch_statistics() -> dict[str, typing.Any]:
    """
    Return ``{'dropped': n}``: the number of recorders that ended without commit().
    """

class SharedArray:
    """
    An array that several processes of this machine use, without a copy.

    The process that makes the array exports it. Other processes get it as a pickle, or open its handle. Processes take turns: publish() ends a turn, acquire() waits for the next one.

    Parameters
    ----------
    shape : int or sequence of int
    dtype : dtype-like, default float32
    device : Device or str, optional
        By default the current device.
    budget : Budget, optional
        Charged with the memory, in whole pages.
    tag : str, optional
        A name for reports.
    """

    def __init__(self, shape: object, dtype: object | None = None, device: object | None = None, *, budget: Budget | None = None, tag: str | None = None) -> None: ...

    @staticmethod
    def open(handle: str, device: object | None = None, shape: object | None = None, *, timeout: float | None = None, budget: Budget | None = None, tag: str | None = None) -> SharedArray:
        """
        Open an array of another process, or of this one.

        Parameters
        ----------
        handle : str
            What ``handle`` is in the process that made the array.
        device : Device or str, optional
            The device on which the array was made; by default the current device.
        shape : int or sequence of int, optional
            By default one dimension.
        timeout : float, optional
            Seconds to wait for an answer; by default ten.
        budget : Budget, optional
            Charged with the memory, in whole pages.
        tag : str, optional
            A name for reports.

        Returns
        -------
        SharedArray
        """

    @property
    def handle(self) -> str:
        """
        The text with which processes of the same user open the array. It contains a secret.
        """

    @property
    def buffer(self) -> Buffer:
        """
        The elements as a Buffer, for kernels and copies. Use them only during a turn.
        """

    def numpy(self) -> npt.NDArray[typing.Any]:
        """
        Return a NumPy array over the memory. Raises BufferError for memory that the host cannot use.
        """

    def to_numpy(self) -> npt.NDArray[typing.Any]:
        """Return an independent NumPy array with the elements."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents."""

    @property
    def dtype(self) -> typing.Any:
        """The type of an element."""

    @property
    def size(self) -> int:
        """The number of elements."""

    @property
    def nbytes(self) -> int:
        """The number of bytes."""

    @property
    def device(self) -> Device:
        """The device of the memory."""

    @property
    def is_exporter(self) -> bool:
        """Whether this process made the array."""

    @property
    def has_turn(self) -> bool:
        """Whether this process may use the elements now."""

    @property
    def importers(self) -> int:
        """How many importers an exporter has now."""

    def publish(self, stream: object | None = None) -> None:
        """
        End the turn after all earlier uses of the array, in stream order.

        The host does not wait. A simulated device works only while the host waits for it, so synchronize the stream there if no acquire() follows.
        """

    def acquire(self, timeout: float | None = None) -> SharedArray:
        """
        Wait for the next turn. Returns the array.

        Raises PeerLostError if the other process has ended, and TimeoutError after so many seconds. Ctrl-C ends the wait.
        """

    def close(self) -> None:
        """
        Close the array now. Other processes are told, and the memory is freed when the last of them has closed it. Buffers of the array stay valid.
        """

    def __reduce_ex__(self, protocol: object) -> typing.Any: ...

    def __enter__(self) -> SharedArray: ...

    def __exit__(self, *args: object) -> None: ...

    def __repr__(self) -> str: ...

def c_handle(resource: Resource, tag: str = '') -> int:
    """
    Return a handle of the C API for a resource, as an address. Release it with ``tern_release_resource``. The module ``ternmem.c`` calls the functions of the C API.
    """

def cupy_functions(current_stream: object, refuse: object) -> tuple[typing.Any, ...]:
    """
    Return the addresses of the functions for ``cupy.cuda.CFunctionAllocator``.

    ``current_stream`` is the capsule of CuPy's C function, and ``refuse(bytes, ordinal, status, message)`` raises the exception. It is kept from the first call on.
    """

__version__: str

class Error(builtins.RuntimeError):
    """The base class of every exception that Tern raises.

    ``code`` is the name of the error, such as ``out_of_memory``; ``site`` is the Python line of
    the call, if known. The numbers of the message are attributes too.
    """
    code: str
    site: str | None
    def __getattr__(self, name: str) -> typing.Any: ...

class SizeOverflowError(Error, builtins.OverflowError):
    """A size in bytes does not fit into 64 bits."""

class InvalidArgumentError(Error, builtins.ValueError):
    """An argument has a value that the call does not allow."""

class InvalidViewError(Error, builtins.IndexError):
    """A part lies outside of its buffer."""

class MisalignedError(Error, builtins.ValueError):
    """An address or an offset is not aligned for the element type."""

class SizeMismatchError(Error, builtins.ValueError):
    """Two sizes differ that must be equal."""

class ShapeMismatchError(Error, builtins.ValueError):
    """Two shapes differ that must be equal."""

class TypeMismatchError(Error, builtins.TypeError):
    """An argument has a type or a dtype that the call does not accept."""

class NotAllocatedError(Error, builtins.BufferError):
    """The object has no memory, or its lease is closed."""

class NeverWrittenError(Error, builtins.ValueError):
    """A read of elements that were never written."""

class NotHostAccessibleError(Error, builtins.BufferError):
    """The host cannot use this memory. Copy it with to_numpy()."""

class ReadOnlyError(Error, builtins.ValueError):
    """A write to memory that must not be written."""

class OutOfMemoryError(Error, builtins.MemoryError):
    """The device or the host has too little free memory."""

class OutOfBudgetError(OutOfMemoryError):
    """A request does not fit into a Budget."""

class UseAfterFreeError(Error):
    """Memory is used that was freed before."""

class OutOfBoundsError(Error, builtins.IndexError):
    """An index is outside of its range."""

class StreamMisuseError(Error):
    """A stream, a mark or an event is used in a way that the driver does not allow, such as after close()."""

class UntrackedBufferError(Error):
    """Tern cannot track the use of this memory."""

class DownloadRefusedError(Error):
    """A TransferGate refuses a copy from a device to the host."""

class DeviceMismatchError(Error, builtins.ValueError):
    """Objects of two devices are used together."""

class InvalidDeviceError(Error, builtins.ValueError):
    """A device does not exist, or its backend is not available."""

class UnsupportedError(Error, builtins.NotImplementedError):
    """The device or this build does not support the operation."""

class SyncError(Error):
    """A copy between the host and a device failed."""

class CoherenceConflictError(Error):
    """The host and the device have both written the same bytes."""

class AccessConflictError(Error):
    """Another lease of the same bytes is open. Close it first."""

class DlpackRejectedError(Error, builtins.BufferError):
    """A tensor cannot be exchanged with DLPack."""

class ArrowRejectedError(Error, builtins.BufferError):
    """Data cannot be exchanged with Arrow."""

class CapacityError(Error):
    """A fixed capacity is exhausted."""

class TimeoutError(Error, builtins.TimeoutError):
    """A wait took longer than its limit."""

class NotFoundError(Error, builtins.LookupError):
    """A name does not exist, such as that of a column or a kernel."""

class AfterForkError(Error):
    """A device that was opened before a fork is used in the child."""

class AfterShutdownError(Error):
    """Tern is used after its shutdown."""

class DeviceLostError(Error):
    """The device failed and cannot be used any more."""

class PeerLostError(Error, builtins.ConnectionError):
    """The other process of a SharedArray has ended, or has closed the array."""

class FileError(Error, builtins.OSError):
    """An operation on a file failed."""

class BadFormatError(Error, builtins.ValueError):
    """A file or a text does not have the expected format."""

class ViolationError(Error):
    """A checker found an error, such as a missing wait. The message is the report."""

class DriverError(Error):
    """A call of the driver failed."""

class CopyRequiredError(DlpackRejectedError, builtins.ValueError):
    """An exchange needs a copy, and ``copy=False`` forbids it."""
