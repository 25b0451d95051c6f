"""The simulated device: a device in host memory that checks the order of every access.

>>> from ternmem import sim
>>> device = sim.open(seed=7)
"""

from ._core.sim import (
    Finding,
    calls,
    findings,
    hold,
    leaks,
    migrated_bytes,
    open,
    resume,
    set_faults,
    trace_hash,
    virtual_time_ns,
)

__all__ = [
    "Finding",
    "calls",
    "findings",
    "hold",
    "leaks",
    "migrated_bytes",
    "open",
    "resume",
    "set_faults",
    "trace_hash",
    "virtual_time_ns",
]
