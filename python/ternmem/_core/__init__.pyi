# Written by python/stubs.py. Do not edit.
import builtins
import collections.abc
import typing

import numpy.typing as npt
from ternmem._core import sim as sim


def _begin_end() -> None: ...

class MemoryInfo:
    """Free and total bytes of device memory."""

    @property
    def free_bytes(self) -> int: ...

    @property
    def total_bytes(self) -> int: ...

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
    def spec(self) -> str: ...

    @property
    def name(self) -> str: ...

    @property
    def driver(self) -> str: ...

    @property
    def is_host(self) -> bool:
        """Whether the device is the host itself."""

    @property
    def id(self) -> int:
        """The number of the device in this process."""

    @property
    def capabilities(self) -> list[str]:
        """The names of the optional features it has."""

    def can(self, capability: str) -> bool:
        """Return whether the device has a capability."""

    def memory(self) -> MemoryInfo:
        """Return the free and total bytes of device memory now."""

    def allocate(self, bytes: int) -> int:
        """Allocate memory without an owner. Returns its address, for release()."""

    def release(self, address: int) -> None:
        """Free memory of allocate(). No work may still use it."""

    def synchronize(self) -> None:
        """Wait until all work of the device is complete. Ctrl-C ends the wait."""

    @property
    def default_stream(self) -> Stream: ...

    def stream(self, name: str | None = None, priority: int = 0) -> Stream:
        """Make a stream."""

    def activity(self) -> dict[str, typing.Any]:
        """
        Return how often events were recorded, streams and the host waited, and kernels ran.
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
    Choose the device that is used where none is named: a Device, a spec, or the number of an
    accelerator.
    """

def current_device() -> Device:
    """Return the device that is used where none is named."""

def copy_mark(device: Device) -> Mark:
    """
    Return a mark for the copies that the library has queued on its own stream.
    """

class Mark:
    def __await__(self) -> collections.abc.Generator[object, None, None]: ...

    """
    A point in the work of a stream. A mark costs nothing until someone waits for it.
    """

    @property
    def is_done(self) -> bool: ...

    def wait(self) -> None:
        """Wait until the work up to the mark is complete. Ctrl-C ends the wait."""

    def __eq__(self, arg: object, /) -> bool: ...

    def __hash__(self) -> int: ...

    def __repr__(self) -> str: ...

class Event:
    """
    A driver event: to measure time, or to exchange order with code that uses events.
    """

    def __init__(self, device: object | None = None, *, timing: bool = False) -> None: ...

    @property
    def is_recorded(self) -> bool: ...

    @property
    def is_done(self) -> bool: ...

    @property
    def handle(self) -> int: ...

    def synchronize(self) -> None:
        """
        Wait until the work up to the latest record is complete. Ctrl-C ends the wait.
        """

    def elapsed_ns(self, start: Event) -> int:
        """Return the nanoseconds from another event to this one."""

class Stream:
    """
    A queue of work of a device. Work of one stream runs in order.

    Close it, or use it in a ``with`` statement; work that was submitted still completes.
    """

    def __init__(self, device: object | None = None, name: str | None = None, priority: int = 0) -> None: ...

    @staticmethod
    def borrow(stream: object, device: object | None = None) -> Stream:
        """
        Use a stream of another library: an object with ``__cuda_stream__``, or the driver's handle.
        """

    @property
    def device(self) -> Device: ...

    @property
    def name(self) -> str: ...

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
    def is_idle(self) -> bool: ...

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

def reclaim_deferred() -> int:
    """
    Free memory that other libraries have released, once no stream uses it. Returns the bytes that stay.

    Allocations do the same on their way.
    """

def from_dlpack(x: object, *, device: object | None = None, copy: object | None = None) -> Buffer | StridedBuffer:
    """
    Import a tensor of another library without a copy.

    Returns a Buffer, or a StridedBuffer if the elements are not adjacent.
    """

class Resource:
    """Where memory comes from."""

    @property
    def device(self) -> Device: ...

    @property
    def name(self) -> str: ...

    @property
    def statistics(self) -> dict[str, typing.Any]:
        """Bytes in use and held, and counts of allocations."""

    def trim(self, keep_bytes: int = 0) -> int:
        """Give free memory back to the driver. Returns the bytes given back."""

class Pool(Resource):
    """
    Keeps memory of the driver and reuses it, so most allocations cost nanoseconds.

    Parameters
    ----------
    device : Device or str, optional
    limit_bytes : int
        The most memory held from the driver; 0 for no limit.
    initial_bytes : int
        Memory that is taken from the driver at once.
    kind : {'device', 'pinned', 'managed'}
    """

    def __init__(self, device: object | None = None, *, limit_bytes: int = 0, initial_bytes: int = 0, kind: str = 'device') -> None: ...

    @property
    def pool_statistics(self) -> dict[str, typing.Any]: ...

class Budget:
    """
    A limit on bytes, possibly below another one.

    Parameters
    ----------
    name : str
    limit_bytes : int, optional
        None counts bytes and never refuses.
    parent : Budget, optional
    overflow : {'fail', 'wait', 'evict', 'spill'}
        What a request at the limit may do.
    """

    def __init__(self, name: str, limit_bytes: int | None, *, parent: Budget | None = None, overflow: str = 'spill') -> None: ...

    @property
    def name(self) -> str: ...

    @property
    def path(self) -> str: ...

    @property
    def limit_bytes(self) -> int | None: ...

    @property
    def used_bytes(self) -> int: ...

    @property
    def live_bytes(self) -> int: ...

    @property
    def pending_bytes(self) -> int: ...

    @property
    def charged_bytes(self) -> int: ...

    def __repr__(self) -> str: ...

class BudgetResource(Resource):
    """Charges each block of another resource to a budget."""

    def __init__(self, upstream: Resource, budget: Budget) -> None: ...

class TrackingResource(Resource):
    """Knows each live block of another resource, and the line that made it."""

    def __init__(self, upstream: Resource) -> None: ...

    @property
    def live_blocks(self) -> list[typing.Any]:
        """
        The live blocks, oldest first: their bytes, their tag and the line that allocated them.
        """

    def leak_report(self) -> str:
        """Return the live blocks by tag and line as text, or 'no live blocks'."""

def default_resource(device: object | None = None, kind: str = 'device') -> Resource:
    """Return the resource that buffers use where none is named."""

def set_default_resource(resource: Resource, kind: str = 'device') -> Resource:
    """
    Use a resource for all buffers of its device that name none. Returns the previous one.
    """

class Buffer:
    def __buffer__(self, flags: int, /) -> memoryview: ...

    """
    An array of elements in memory of one device. Memory is allocated on first use.

    Parameters
    ----------
    shape : int or sequence of int
    dtype : dtype-like, default float32
    device : Device or str, optional
    kind : {'device', 'pinned', 'managed'}
    contents : {'uninitialized', 'zero', 'unspecified'}
    tag : str, optional
        A name for reports.
    resource : Resource, optional
        Where the memory comes from.
    """

    def __init__(self, shape: object, dtype: object | None = None, device: object | None = None, *, kind: str = 'device', contents: str = 'uninitialized', tag: str | None = None, resource: Resource | None = None) -> None: ...

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> typing.Any: ...

    @property
    def size(self) -> int: ...

    @property
    def numel(self) -> int: ...

    @property
    def ndim(self) -> int: ...

    @property
    def nbytes(self) -> int: ...

    @property
    def device(self) -> Device: ...

    @property
    def kind(self) -> str: ...

    @property
    def is_pinned(self) -> bool: ...

    @property
    def is_external(self) -> bool:
        """Whether another library owns the memory."""

    @property
    def is_allocated(self) -> bool: ...

    @property
    def ptr(self) -> int:
        """The address of the first element."""

    def allocate(self, stream: object | None = None) -> typing.Self:
        """Allocate the memory now."""

    def copy_from(self, source: object, stream: object | None = None) -> None:
        """
        Copy all elements in, from an array or from another Buffer.

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
        """Set every element, in stream order."""

    def clone(self, stream: object | None = None) -> Buffer:
        """Return a Buffer with a copy of the elements."""

    def reshape(self, shape: object) -> Buffer:
        """Return the same memory with another shape."""

    def view(self, dtype: object) -> Buffer:
        """Return the same memory with another dtype."""

    def __getitem__(self, arg: object, /) -> Buffer: ...

    def __len__(self) -> int: ...

    def item(self) -> typing.Any:
        """Return the only element."""

    def synchronize(self) -> None:
        """Wait until no stream uses the memory. Ctrl-C ends the wait."""

    def __dlpack__(self, *, stream: object | None = None, max_version: object | None = None, dl_device: object | None = None, copy: object | None = None) -> typing.Any: ...

    def __dlpack_device__(self) -> tuple[int, int]: ...

    @property
    def __cuda_array_interface__(self) -> dict[str, typing.Any]: ...

    def __copy__(self) -> Buffer: ...

    def __deepcopy__(self, arg: object, /) -> Buffer: ...

    def __reduce__(self) -> typing.Any: ...

    def __repr__(self) -> str: ...

class StridedBuffer:
    """Elements of another library that are not adjacent in memory."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def strides(self) -> list[int]:
        """The strides, in elements."""

    @property
    def dtype(self) -> typing.Any: ...

    @property
    def is_contiguous(self) -> bool: ...

    def contiguous(self, stream: object | None = None) -> Buffer:
        """Return a Buffer with the elements in row-major order."""

class HostMemory:
    def __buffer__(self, flags: int, /) -> memoryview: ...

    """Memory of the host. NumPy arrays over it keep it alive."""

class HostLease:
    """
    An open access of the host. In a ``with`` statement it gives a NumPy array.

    The array stays valid memory after the lease; it is read-only then.
    """

    @property
    def array(self) -> npt.NDArray[typing.Any]: ...

    @property
    def is_open(self) -> bool: ...

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
    An open access of a device, for work that is submitted to its stream.

    In a ``with`` statement it gives a DeviceArray.
    """

    @property
    def array(self) -> DeviceArray: ...

    @property
    def is_open(self) -> bool: ...

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
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> typing.Any: ...

    @property
    def nbytes(self) -> int: ...

    @property
    def size(self) -> int: ...

    @property
    def ndim(self) -> int: ...

    @property
    def _state(self) -> int: ...

    @property
    def default_device(self) -> Device: ...

    @property
    def tag(self) -> str: ...

    @property
    def is_pinned(self) -> bool:
        """Whether the host copy is page-locked; False before there is one."""

    @property
    def is_allocated(self) -> bool: ...

    @property
    def statistics(self) -> dict[str, typing.Any]:
        """What the buffer has copied so far."""

    @property
    def transfers(self) -> list[typing.Any]:
        """The latest 64 transfers, oldest first."""

    def valid_places(self) -> list[str]:
        """Return the places in which every element is up to date."""

    def __len__(self) -> int: ...

    @property
    def host(self) -> npt.NDArray[typing.Any]:
        """
        A writable NumPy array. NumPy cannot report writes, so the access marks the host as written.
        """

    @property
    def device(self) -> typing.Any:
        """
        The device side, up to date. Call mark_device_dirty() after writing to it.
        """

    def __array__(self, dtype: object | None = None, copy: object | None = None) -> npt.NDArray[typing.Any]: ...

    def __getitem__(self, arg: object, /) -> typing.Any: ...

    def __setitem__(self, arg0: object, arg1: object, /) -> None: ...

    def read_host(self, wait: float | None = None) -> HostLease: ...

    def read_device(self, stream: object | None = None, wait: float | None = None) -> DeviceLease: ...

    def rw_host(self, wait: float | None = None) -> HostLease: ...

    def rw_device(self, stream: object | None = None, wait: float | None = None) -> DeviceLease: ...

    def discard_host(self, wait: float | None = None) -> HostLease: ...

    def discard_device(self, stream: object | None = None, wait: float | None = None) -> DeviceLease: ...

    def allocate(self, host: bool = True, device: bool = True) -> typing.Self:
        """Allocate memory. The contents stay unwritten."""

    def free(self) -> None:
        """Free all copies. Arrays that are still in use keep their memory."""

    def drop_host(self) -> None:
        """Free the host copy; newer bytes go to the device first."""

    def drop_device(self) -> None:
        """Free the device copy; newer bytes go to the host first."""

    def sync_to_device(self) -> None:
        """Bring the device copy up to date."""

    def sync_to_host(self) -> None:
        """Bring the host copy up to date."""

    def mark_host_dirty(self) -> None:
        """Say that the host copy was written through an array that was kept."""

    def mark_device_dirty(self, stream: object | None = None) -> None:
        """Say that work on the stream wrote the device copy."""

    def fill(self, value: object, stream: object | None = None) -> typing.Self:
        """Set every element, where the data is."""

    def copy_from(self, array: object) -> None:
        """
        Copy elements of the same shape in; NumPy's same-kind casts are allowed.
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
    """Device memory of a lease or of a UnifiedBuffer, for other libraries."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> typing.Any: ...

    @property
    def device(self) -> Device: ...

    @property
    def ptr(self) -> int: ...

    @property
    def nbytes(self) -> int: ...

    @property
    def size(self) -> int: ...

    @property
    def is_read_only(self) -> bool: ...

    def __dlpack__(self, *, stream: object | None = None, max_version: object | None = None, dl_device: object | None = None, copy: object | None = None) -> typing.Any: ...

    def __dlpack_device__(self) -> tuple[int, int]: ...

    @property
    def __cuda_array_interface__(self) -> dict[str, typing.Any]: ...

    def __repr__(self) -> str: ...

def unified_totals() -> dict[str, typing.Any]:
    """Return what all unified buffers of the process have copied."""

__version__: str

class Error(builtins.RuntimeError):
    code: str
    site: str | None
    def __getattr__(self, name: str) -> typing.Any: ...

class SizeOverflowError(Error, builtins.OverflowError):
    ...

class InvalidArgumentError(Error, builtins.ValueError):
    ...

class InvalidViewError(Error, builtins.IndexError):
    ...

class MisalignedError(Error, builtins.ValueError):
    ...

class SizeMismatchError(Error, builtins.ValueError):
    ...

class ShapeMismatchError(Error, builtins.ValueError):
    ...

class TypeMismatchError(Error, builtins.TypeError):
    ...

class NotAllocatedError(Error, builtins.BufferError):
    ...

class NeverWrittenError(Error, builtins.ValueError):
    ...

class NotHostAccessibleError(Error, builtins.BufferError):
    ...

class ReadOnlyError(Error, builtins.ValueError):
    ...

class OutOfMemoryError(Error, builtins.MemoryError):
    ...

class OutOfBudgetError(OutOfMemoryError):
    ...

class UseAfterFreeError(Error):
    ...

class OutOfBoundsError(Error, builtins.IndexError):
    ...

class StreamMisuseError(Error):
    ...

class UntrackedBufferError(Error):
    ...

class DownloadRefusedError(Error):
    ...

class DeviceMismatchError(Error, builtins.ValueError):
    ...

class InvalidDeviceError(Error, builtins.ValueError):
    ...

class UnsupportedError(Error, builtins.NotImplementedError):
    ...

class SyncError(Error):
    ...

class CoherenceConflictError(Error):
    ...

class AccessConflictError(Error):
    ...

class DlpackRejectedError(Error, builtins.BufferError):
    ...

class ArrowRejectedError(Error, builtins.BufferError):
    ...

class CapacityError(Error):
    ...

class TimeoutError(Error, builtins.TimeoutError):
    ...

class NotFoundError(Error, builtins.LookupError):
    ...

class AfterForkError(Error):
    ...

class AfterShutdownError(Error):
    ...

class DeviceLostError(Error):
    ...

class FileError(Error, builtins.OSError):
    ...

class BadFormatError(Error, builtins.ValueError):
    ...

class ViolationError(Error):
    ...

class DriverError(Error):
    ...

class CopyRequiredError(DlpackRejectedError, builtins.ValueError):
    ...
