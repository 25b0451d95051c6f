"""Memory on hosts and accelerators.

>>> import ternmem as tern
>>> x = tern.UnifiedBuffer((4,), "float32")
>>> x.host[:] = 1
>>> x.sync_to_device()
>>> x.state
<BufferState.SYNCHRONIZED: 'synchronized'>
"""

from . import _core, sim
from ._core import (
    Budget,
    BudgetResource,
    Buffer,
    CopyRequiredError,
    Device,
    DeviceArray,
    DeviceLease,
    Event,
    HostLease,
    Mark,
    MemoryInfo,
    Pool,
    Resource,
    Stream,
    StridedBuffer,
    TrackingResource,
    __version__,
    backends,
    best_device,
    current_device,
    default_resource,
    devices,
    from_dlpack,
    open_device,
    reclaim_deferred,
    set_default_resource,
    set_device,
    unified_totals,
)
from .errors import *  # noqa: F403
from .errors import __all__ as _error_names
from .summary import memory_summary
from .unified_buffer import BufferState, UnifiedBuffer

__all__ = [
    "Budget",
    "BudgetResource",
    "Buffer",
    "BufferState",
    "CopyRequiredError",
    "Device",
    "DeviceArray",
    "DeviceLease",
    "Event",
    "HostLease",
    "Mark",
    "MemoryInfo",
    "Pool",
    "Resource",
    "Stream",
    "StridedBuffer",
    "TrackingResource",
    "UnifiedBuffer",
    "__version__",
    "backends",
    "best_device",
    "current_device",
    "default_resource",
    "devices",
    "from_dlpack",
    "memory_summary",
    "open_device",
    "reclaim_deferred",
    "set_default_resource",
    "set_device",
    "sim",
    "unified_totals",
    *_error_names,
]
